"""Guarantees for views, writes, `functionalize` and arguments, one test for each."""

from functools import partial

import jax
import numpy
import pytest

import functx
import functx.numpy as np
from functx import checkpoint, functionalize, grad, jit, jvp, lax, make_ir, vjp, vmap
from functx.core.errors import (
    ArgumentError,
    ArgumentWriteError,
    CapturedWriteError,
    FunctionalizeError,
    ImmutableArrayError,
)
from tests.by_reference import by_reference


def ramp(*shape):
    return numpy.arange(1.0, numpy.prod(shape) + 1).astype("float32").reshape(shape)


def close(a, b):
    numpy.testing.assert_allclose(numpy.asarray(a), numpy.asarray(b), rtol=1e-5, atol=1e-5)


# Views

VIEWS = {
    "x[1:, ::-2]": (3, 4),
    "x[..., None, 1]": (3, 4),
    "x[1]": (3, 4),
    "x[1, 2, ...]": (3, 4),
    "x.T": (3, 4),
    "n.transpose(x, (2, 0, 1))": (2, 3, 4),
    "n.swapaxes(x, 0, 2)": (2, 3, 4),
    "n.moveaxis(x, 0, 1)": (2, 3, 4),
    "n.rollaxis(x, 2)": (2, 3, 4),
    "n.permute_dims(x, (1, 0))": (3, 4),
    "x.reshape(2, 6)": (3, 4),
    "x.ravel()": (3, 4),
    "n.squeeze(x)": (1, 3, 1),
    "n.expand_dims(x, (0, 2))": (3, 4),
    "n.atleast_3d(x)": (3, 4),
    "n.flip(x, 1)": (3, 4),
    "n.rot90(x)": (3, 4),
    "n.split(x, 2, axis=1)[1]": (3, 4),
    "n.array_split(x, 3)[2]": (4, 2),
    "n.hsplit(x, 2)[1]": (3, 4),
    "n.vsplit(x, 3)[1]": (3, 4),
    "n.dsplit(x, 2)[0]": (2, 1, 4),
    "n.unstack(x, axis=1)[2]": (3, 4),
    "list(x)[2]": (3, 4),
    "x.view('int32').view('float32')": (3, 4),
    "n.asarray(x)": (3, 4),
    "x[::-1].T[1:].reshape(3, 3)[1, ::-1][1:]": (3, 4),
}


def test_a_write_through_each_kind_of_view_is_seen_by_the_array_and_the_other_way_round():
    with by_reference():
        for text, shape in VIEWS.items():
            scope = {}
            write = f"v = {text}\n    v[...] = 50\n    x += 1\n    return v * 1, x * 1"
            exec(f"def f(n, x):\n    {write}", scope)
            x = ramp(*shape)
            got, wanted = functionalize(partial(scope["f"], np))(x), scope["f"](numpy, ramp(*shape))
            for one, other in zip((*got, x), (*wanted, wanted[1]), strict=True):
                numpy.testing.assert_array_equal(one, other, err_msg=text)


READ_ONLY = {
    "np.diagonal(x)": r"a view of f32\[3,3\]",
    "x.diagonal(1)": r"a view of f32\[3,3\]",
    "np.broadcast_to(x, (2, 3, 3))": r"a view of f32\[3,3\]",
    "np.broadcast_to(x, (2, 3, 3))[0]": "repeats elements or is read-only",
    "np.lib.stride_tricks.sliding_window_view(x, 2, axis=0)": "repeats elements or is read-only",
}


@pytest.mark.parametrize("text", READ_ONLY)
def test_views_that_numpy_makes_read_only_are_not_written_to(text):
    scope = {"np": np}
    exec(f"def f(x):\n    v = {text}\n    v[...] = 1", scope)
    x = ramp(3, 3)
    with pytest.raises(ImmutableArrayError, match=READ_ONLY[text]) as error:
        jit(scope["f"])(x)
    assert "in f" in str(error.value) and ".copy()" in str(error.value)
    close(x, ramp(3, 3))


def test_views_of_views_may_be_thousands_deep():
    def f(x):
        v = x
        for _ in range(2000):
            v = v[::-1]
        v[0] = 9.0
        return v[1] + x[0]

    program = make_ir(functionalize(f))(ramp(3))
    close(
        program(
            ramp(3),
        )[0],
        11.0,
    )


def test_parts_of_a_split_are_written_to_under_grad():
    def f(x):
        a, b = np.split(x, 2)
        a *= b
        b[0] = a[1]
        return (x * np.arange(4.0)).sum()

    # a b0, a b1 at 0 and 1; then b0 = a1 b1.
    close(grad(f)(ramp(4)), [0.0, 3 * 4.0, 0.0, 3 * 2.0 + 3.0])


# Writes

OPERATORS = ["+=", "-=", "*=", "/=", "//=", "%=", "**=", "&=", "|=", "^=", "<<=", ">>=", "@="]


@pytest.mark.parametrize("operator", OPERATORS)
def test_each_operator_keeps_the_array_its_dtype_and_its_views(operator):
    scope = {}
    exec(
        f"def f(x, y):\n    v, old = x.T, x\n    x {operator} y\n    return v * 1, x is old", scope
    )
    kind = "int16" if operator[0] in "&|^<>" else "float16"
    x = numpy.array([[5, 3], [2, 7]], kind)
    y = numpy.array([[1, 2], [2, 1]], kind)
    wanted, other = scope["f"](x.copy(), y)[0], x.copy()
    got, same = jit(scope["f"])(other, y)
    assert got.dtype == kind and same
    numpy.testing.assert_array_equal(numpy.asarray(got), wanted)
    numpy.testing.assert_array_equal(other.T, wanted)


# functionalize


def test_functionalize_takes_and_changes_arrays_anywhere_in_its_arguments():
    table = ramp(2)

    def f(state, *, rate):
        state["w"][0] -= rate[0]
        np.add(state["b"], 1.0, out=state["b"])
        rate[0][...] = 0.0
        return {"sum": state["w"].sum(), "same": table}

    state, rate = {"w": ramp(2, 2), "b": ramp(3), "untouched": ramp(1)}, (ramp(2),)
    out = functionalize(f)(state, rate=rate)
    close(out["sum"], 10 - 3)
    assert out["same"] is table or numpy.array_equal(out["same"], table)
    close(state["w"], [[0, 0], [3, 4]])
    close(state["b"], [2, 3, 4])
    close(rate[0], [0, 0])
    program = make_ir(functionalize(f))(
        {"w": ramp(2, 2), "b": ramp(3), "untouched": ramp(1)}, rate=rate
    )
    _, written = program({"w": ramp(2, 2), "b": ramp(3), "untouched": ramp(1)}, rate=(ramp(2),))
    assert len(written) == 3 and not program.writes


def test_functionalize_names_the_values_that_remove_may_have():
    for remove in ("views", None, 1):
        with pytest.raises(
            FunctionalizeError, match=r"writes become new values.*copied as well.*got"
        ):
            functionalize(lambda x: x, remove=remove)


def test_an_array_made_inside_is_resized_and_copied_back():
    def f(x):
        y = x.copy()
        y.resize(6)
        y[4:] = 1.0
        y.resize((2, 2))
        x[...] = y
        return y

    x = ramp(2, 2) + 1
    close(functionalize(f)(x), x)


COMPOSED = {
    "grad of functionalize": lambda f, x: grad(functionalize(f))(x),
    "functionalize of grad": lambda f, x: functionalize(grad(f))(x),
    "of views too": lambda f, x: functionalize(grad(f), remove="mutations_and_views")(x),
    "vmap of functionalize of jvp": lambda f, x: vmap(
        functionalize(lambda t: jvp(f, (np.asarray(x) * 1,), (t,))[1])
    )(numpy.eye(3, dtype="float32")),
    "functionalize of a compiled function": lambda f, x: functionalize(grad(jit(f)))(x),
    "functionalize of a program": lambda f, x: functionalize(grad(make_ir(f)(ramp(3))))(x),
    "of a checkpoint in a loop in a lane": lambda f, x: functionalize(
        vmap(lambda x: lax.scan(lambda c, _: (c, grad(checkpoint(f))(x)), 0, None, length=1)[1][0])
    )(x[None])[0],
    "five deep": lambda f, x: jit(
        vmap(lambda x: lax.cond(x[0] > 0, lambda: grad(functionalize(jit(f)))(x), lambda: x))
    )(x[None])[0],
}


@pytest.mark.parametrize("compose", COMPOSED.values(), ids=COMPOSED)
def test_functionalize_composes_with_everything(compose):
    def f(x):
        v = x[::-1]
        v[0] = x[0] * x[1]
        x *= 2.0
        return (x * v).sum()

    # With x0 x1 at x2, doubled: 8 x0^2 x1 + 4 x1^2.
    close(compose(f, ramp(3)), [16 * 1 * 2, 8 * 1 + 8 * 2, 0])


def test_writes_that_leave_everything_as_it_was_vanish():
    def f(x, y):
        kept = x.copy()
        x[...] = 5.0
        x[...] = kept
        y[...] = y.copy()
        y[1:] = y[1:]
        y.T[...] = y
        return x.sum() + y.sum()

    program = make_ir(functionalize(f))(ramp(3), ramp(3))
    assert len(program.outputs) == 1
    x = ramp(3)
    x.flags.writeable = False
    close(jit(f)(x, ramp(3)), 12.0)


def test_the_pure_program_differentiates_at_the_values_before_the_writes():
    def f(x, y):
        x *= y
        y[0] = 7.0
        return x.sum()

    program = make_ir(functionalize(f))(ramp(2), ramp(2))
    (out, (x, y)), pull = vjp(program, ramp(2), ramp(2))
    close(out, 5.0)
    close(x, [1, 4])
    close(y, [7, 2])
    ct_x, ct_y = pull((1.0, (numpy.float32([10, 20]), numpy.float32([3, 5]))))
    close(ct_x, [11 * 1, 21 * 2])
    close(ct_y, [11 * 1, 21 * 2 + 5])


# Arguments


def test_an_array_passed_twice_is_one_array_and_two_arrays_are_two():
    @jit
    def f(x, y):
        x += y
        y *= 10.0
        return x - y

    for _ in range(2):
        both = ramp(3)
        close(f(both, both), [0, 0, 0])
        close(both, 20 * ramp(3))
        one, other = ramp(3), ramp(3)
        close(f(one, other), 2 * ramp(3) - 10 * ramp(3))
        close(one, 2 * ramp(3))
        close(other, 10 * ramp(3))


APART = {
    "halves": lambda b: (b[:6], b[6:]),
    "every other": lambda b: (b[::2], b[1::2]),
    "columns": lambda b: (b.reshape(3, 4)[:, :2], b.reshape(3, 4)[:, 2:]),
    "rows": lambda b: (b.reshape(3, 4)[0], b.reshape(3, 4)[2]),
    "corners": lambda b: (b.reshape(3, 4)[:1, :1], b.reshape(3, 4)[1:, 1:]),
    "backwards": lambda b: (b[5::-1], b[6:]),
}


@pytest.mark.parametrize("views", APART.values(), ids=APART)
def test_slices_that_are_provably_apart_stay_two_arguments(views):
    def f(x, y):
        x += 1.0
        return x.sum() * y.sum()

    block, expected = ramp(12), ramp(12)
    program = functx.jit(f).lower(*views(block)).as_text()
    found = functionalize(f)(*views(block))
    close(found, f(*views(expected)))
    close(block, expected)
    assert "scatter" not in program
    inside = str(make_ir(functionalize(lambda b: functionalize(f)(*views(b))))(ramp(12)))
    assert "strided" not in inside and "scatter" not in inside


def test_a_view_of_an_argument_that_is_returned_has_memory_of_its_own():
    def f(x):
        x += 1.0
        return x[::-1]

    x = ramp(3)
    out = functionalize(f)(x)
    x[...] = 0.0
    close(out, [4, 3, 2])


# Lanes


def test_batch_elements_are_written_back_for_every_axis_argument_and_depth():
    def f(x, named):
        x[0] += named["y"][0]
        named["y"][...] = 0.0
        return x

    x, y = ramp(2, 3, 4), ramp(4, 2, 3)
    wanted_x, wanted_y = x.copy(), y.copy()
    for i in range(3):
        for j in range(2):
            f(wanted_x[j, i], {"y": wanted_y[:, j, i]})
    out = vmap(vmap(f, in_axes=(0, {"y": 1})), in_axes=(1, 2), out_axes=1)(x, {"y": y})
    close(x, wanted_x)
    close(y, wanted_y)
    close(out, wanted_x)


def test_batch_elements_are_not_written_back_to_jax_or_read_only_arrays():
    def f(x):
        x[0] = x.sum()
        return x * 1

    given = jax.numpy.asarray(ramp(2, 3))
    close(vmap(f)(given)[:, 0], [6, 15])
    close(given, ramp(2, 3))
    fixed = ramp(2, 3)
    fixed.flags.writeable = False
    with pytest.raises(ImmutableArrayError, match="must be writable; got a read-only array"):
        vmap(f)(fixed)


# Captured arrays

TABLE = ramp(3)


def by_item(y):
    TABLE[0] = y


def by_item_update(y):
    TABLE[0] += y


def by_slice(y):
    TABLE[:] = y


def by_update(y):
    global TABLE
    TABLE += y


def by_flat(y):
    TABLE.flat[0] = y


WRITES = [
    by_item,
    by_item_update,
    by_slice,
    by_update,
    by_flat,
    lambda y: np.add(TABLE, y, out=TABLE),
    lambda y: np.add.at(TABLE, [0], y),
    lambda y: numpy.add.at(TABLE, [0], y),
    lambda y: np.copyto(TABLE, y),
    lambda y: np.put(TABLE, [0], y),
    lambda y: np.reshape(TABLE, (1, 3)).__setitem__(0, y),
]
AROUND = {
    "jit": lambda f: jit(f)(1.5),
    "grad": lambda f: grad(f)(1.5),
    "vmap": lambda f: vmap(f)(ramp(2)),
    "jvp": lambda f: jvp(f, (1.5,), (1.0,)),
    "a loop in jit": lambda f: jit(lambda y: lax.fori_loop(0, 2, lambda i, c: f(c), y))(1.5),
}


@pytest.mark.parametrize("around", AROUND.values(), ids=AROUND)
@pytest.mark.parametrize("write", WRITES, ids=range(len(WRITES)))
def test_a_captured_array_is_not_written_to_and_the_error_names_it_and_the_line(around, write):
    with pytest.raises(CapturedWriteError) as error:
        around(lambda y: (write(y), y * y)[1])
    message = str(error.value)
    assert "TABLE" in message and "test_rows.py" in message, message
    close(TABLE, ramp(3))


@pytest.mark.parametrize("transform", [grad, vmap, functionalize])
def test_a_traced_array_from_around_is_not_written_to(transform):
    def outer(x):
        def inner(y):
            x[0] = y.sum()
            return y.sum()

        return transform(inner)(x * 1.0 if transform is not vmap else x)

    with pytest.raises(CapturedWriteError, match=r"must not write to an array from outside .*`x`"):
        jit(outer)(ramp(3))


def test_a_function_that_fails_changes_nothing():
    def f(x, y):
        x += 1.0
        y[0] = 5.0
        raise KeyError("half way")

    for transform in (jit, functionalize, vmap, grad):
        x, y = ramp(2, 2), ramp(2, 2)
        with pytest.raises(KeyError):
            transform(f)(x, y)
        close(x, ramp(2, 2))
        close(y, ramp(2, 2))


def test_two_dtypes_in_one_memory_are_refused():
    def f(x, y):
        x += 1.0
        return y.sum()

    block = ramp(4)
    with pytest.raises(ArgumentError, match=r"must have one dtype; got ndarray float32\[4\] and"):
        functionalize(f)(block, block.view("int32"))


def test_a_loop_outside_of_any_trace_writes_to_numpy_arrays_through_views_of_functx():
    table, rows = numpy.zeros(3, "float32"), ramp(3)

    def body(i, c):
        np.reshape(table, (1, 3))[0, i] = c * np.asarray(rows)[i]
        return c + 1

    close(lax.fori_loop(0, 3, body, 1.0), 4)
    close(table, [1, 4, 9])
    part = table[1:]
    with pytest.raises(ArgumentError, match="shares memory with an array around the function"):
        lax.fori_loop(0, 3, lambda i, c: (body(i, c), c + np.asarray(part)[i % 2])[1], 1.0)
    close(table, [1, 4, 9])
    with pytest.raises(CapturedWriteError, match="a view of the NumPy array `table`"):
        jit(lambda c: lax.fori_loop(0, 3, body, c))(1.0)


def test_ufunc_at_without_indices_writes_nothing():
    x = numpy.zeros((0, 3))
    functionalize(lambda x: numpy.divide.at(x, numpy.s_[..., 1], 2.0))(x)
    functionalize(lambda x: numpy.sqrt.at(x, ...))(x)


@pytest.mark.parametrize("dtype", ["float64", "int64"])
def test_elements_that_are_not_written_to_keep_all_their_bits_in_arrays_of_64(dtype):
    def f(x):
        x[0] = 5
        x[2] *= 2
        return x.sum()

    def in_a_lane(f):
        return lambda x: vmap(f)(x[None])

    for transform in (jit, functionalize, in_a_lane):
        x = numpy.array([0.1, 1 / 3, 4, numpy.nan if dtype == "float64" else 2**40]).astype(dtype)
        if dtype == "int64":
            x[1] = 2**40 + 1
        wanted = x.copy()
        f(wanted)
        transform(f)(x)
        numpy.testing.assert_array_equal(x, wanted)


def test_the_condition_of_a_loop_does_not_write():
    def f(x):
        def holds(i):
            x[0] = 5.0
            return i < 3

        return lax.while_loop(holds, lambda i: i + 1, 0)

    with pytest.raises(
        ArgumentWriteError, match=r"while_loop\(holds\): .* got one that writes to `x`"
    ):
        jit(f)(ramp(3))

    def changing(carry):
        carry[0] += 1.0
        return carry[0] < 3

    with pytest.raises(ArgumentWriteError, match="got one that writes to its carry"):
        lax.while_loop(changing, lambda x: x + 1, ramp(3))


def test_functionalize_keeps_the_rules_of_a_function():
    @functx.custom_jvp
    def sine(v):
        return np.sin(v)

    sine.defjvp(lambda primals, tangents: (sine(*primals), 100.0 * tangents[0]))
    assert functx.grad(functx.functionalize(sine))(0.0) == 100.0
