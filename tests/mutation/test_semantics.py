"""Semantics of writes and views under every transform, one test for each guarantee, against NumPy."""

from __future__ import annotations

from types import SimpleNamespace

import jax
import numpy
import pytest

import functx
import functx.numpy as np
from functx import functionalize, grad, jit, jvp, linearize, make_ir, vjp, vmap
from functx.core.effects import Effect
from functx.core.errors import (
    ArgumentError,
    ArgumentWriteError,
    CapturedWriteError,
    DTypeError,
    FunctionalizeError,
    ImmutableArrayError,
    ShapeError,
)
from functx.core.primitive_families import CopiesOperand, View
from functx.lax import cond, fori_loop, scan, while_loop


def ones(*shape):
    return numpy.ones(shape, "float32")


def ramp(*shape):
    return numpy.arange(numpy.prod(shape), dtype="float32").reshape(shape)


def double_and_add(x, y):
    x[0] = y
    x += y
    return (x * y).sum()


def close(a, b):
    numpy.testing.assert_allclose(numpy.asarray(a), numpy.asarray(b), rtol=1e-5, atol=1e-5)


# Views and writes


def test_a_write_through_a_view_of_views_is_seen_by_its_base_and_its_siblings():
    def f(n, x):
        a = x[1:]
        b = a.T
        c = b.reshape(2, 2, 2)[::-1]
        d = x.ravel()
        c[0, 1] = 7.0
        b[0] += d[2:4]
        return n.concatenate([a.ravel(), b.ravel(), c.ravel(), d])

    x, y = ramp(3, 4), ramp(3, 4)
    close(jit(lambda x: f(np, x))(y), f(numpy, x))
    close(y, x)


def test_a_reshape_that_numpy_must_copy_shares_nothing():
    def f(x):
        flat = x.T.reshape(-1)
        flat[0] = 100.0
        return flat.sum() + x.sum()

    close(jit(f)(ramp(2, 3)), f(ramp(2, 3)))


def test_a_scalar_taken_out_of_an_array_does_not_follow_it():
    def f(x):
        first = x[0]
        x[0] = 9.0
        first += 1.0
        return first

    assert jit(f)(ramp(3) + 2) == 3.0


def test_the_last_write_to_a_repeated_index_stays():
    def f(x):
        x[[0, 1, 0]] = np.array([1.0, 2.0, 3.0])
        return x + 0.0

    close(jit(f)(ones(3)), [3.0, 2.0, 1.0])


def test_an_augmented_assignment_through_repeated_indices_counts_each_element_once():
    def f(x):
        x[numpy.array([0, 0, 1])] += 1.0
        return x + 0.0

    close(jit(f)(numpy.zeros(3, "float32")), [1.0, 1.0, 0.0])


def test_an_assignment_casts_and_an_augmented_one_keeps_the_kind():
    def assign(x):
        x[0] = 2.7
        return x + 0

    def divide(x):
        x /= 2
        return x

    assert jit(assign)(numpy.zeros(2, "int32")).tolist() == [2, 0]
    with pytest.raises(DTypeError, match=r"x /= y: the result must be of the kind .* int32"):
        jit(divide)(numpy.zeros(2, "int32"))


def test_a_value_must_broadcast_into_the_target_alone():
    def longer(x):
        x[:2] = np.zeros(3)

    def higher(x):
        x += np.zeros((2, 3))

    with pytest.raises(ShapeError, match="must broadcast"):
        jit(longer)(ones(3))
    with pytest.raises(ShapeError, match=r"x \+= y: the value must broadcast to the shape"):
        jit(higher)(ones(3))


def test_a_view_that_repeats_elements_is_read_only():
    def f(x):
        wide = np.broadcast_to(x, (2, 3))
        wide[0] = 1.0

    with pytest.raises(ImmutableArrayError, match="a view that repeats elements"):
        jit(f)(ones(3))


def test_a_read_only_view_sees_later_writes():
    def f(n, x):
        wide = n.broadcast_to(x, (2, 3))
        x[1] = 5.0
        return wide.sum()

    close(jit(lambda x: f(np, x))(ones(3)), f(numpy, ones(3)))


def test_complex_parts_are_views():
    def f(x):
        x.real[0] = 3.0
        x.imag += 2.0
        return x * 1.0

    x, y = ones(2).astype("complex64"), ones(2).astype("complex64")
    close(jit(f)(x), f(y))
    close(x, y)


def test_the_memory_of_a_wider_loop_is_written_in_the_order_of_the_program():
    def f(x):
        history = []
        for i in range(4):
            x[i % 2] += x[(i + 1) % 2]
            history.append(x[0])
        return sum(history)

    close(jit(f)(ones(2)), f(ones(2)))


# Arguments


def test_jit_changes_the_numpy_arrays_of_the_caller_each_time():
    x, y, fast = ramp(3), ramp(3), jit(double_and_add)
    for _ in range(3):
        close(fast(x, 2.0), double_and_add(y, 2.0))
        close(x, y)


def test_jax_arrays_are_never_changed():
    x = jax.numpy.arange(3.0)
    close(jit(double_and_add)(x, 2.0), 22.0)
    close(grad(double_and_add)(x, 2.0), [0.0, 2.0, 2.0])
    close(x, [0.0, 1.0, 2.0])


def test_a_read_only_argument_is_refused_unchanged():
    x, other = ones(3), ones(3)
    x.flags.writeable = False

    def both(a, b):
        b += 1.0
        a += 1.0

    with pytest.raises(ImmutableArrayError, match="must be writable; got a read-only array"):
        jit(both)(x, other)
    close(other, ones(3))


@pytest.mark.parametrize("transform", [grad, lambda f: lambda *a: vjp(f, *a)[1](1.0)[0]])
def test_derivatives_are_taken_before_the_write_and_write_back(transform):
    x = ramp(3)
    close(transform(double_and_add)(x, 2.0), [0.0, 2.0, 2.0])
    close(x, [4.0, 3.0, 4.0])


def test_forward_mode_writes_back_and_pushes_through_the_writes():
    x = ramp(3)
    value, slope = jvp(double_and_add, (x, 2.0), (ones(3), 0.0))
    close((value, slope), (22.0, 4.0))
    close(x, [4.0, 3.0, 4.0])
    value, push = linearize(double_and_add, ramp(3), 2.0)
    close(push(ones(3), 0.0), 4.0)


def test_a_pullback_keeps_the_values_from_before_a_later_write():
    def f(x):
        value, pull = vjp(lambda y: (y * y).sum(), x)
        x[0] = 100.0
        return pull(1.0)[0]

    close(jit(f)(ramp(3)), 2 * ramp(3))


def test_a_gradient_is_an_array_of_its_own():
    def f(x, y):
        g = grad(lambda x: (x * y).sum())(x)
        g += 1.0
        return y * 1.0

    close(jit(f)(ones(3), ramp(3)), ramp(3))


def test_vmap_writes_each_batch_element_back_to_its_slice():
    def f(x):
        x[0] = x.sum()
        return x

    x = ramp(2, 3)
    wanted = numpy.stack([f(row) for row in ramp(2, 3)])
    close(vmap(f)(x), wanted)
    close(x, wanted)
    y = ramp(3, 2)
    vmap(f, in_axes=1)(y)
    close(y, numpy.stack([f(column) for column in ramp(3, 2).T], axis=1))


def test_vmap_refuses_to_write_a_mapped_value_into_a_shared_argument():
    def f(x, shared):
        shared[0] = x
        return x

    with pytest.raises(
        functx.errors.FunctxError, match="got `shared`, to which such values are written"
    ):
        vmap(f, in_axes=(0, None))(ones(3), ones(3))


VIEWS = {
    "the same": lambda b: (b[:6], b[:6]),
    "overlapping": lambda b: (b[:6], b[3:9]),
    "reversed": lambda b: (b[:6], b[5::-1]),
    "disjoint": lambda b: (b[:6], b[6:12]),
    "interleaved": lambda b: (b[::2], b[1::2]),
    "crossing": lambda b: (b.reshape(3, 4)[:, 1], b.reshape(3, 4)[1, :3]),
}


SHARING = {
    "jit": jit,
    "functionalize": functionalize,
    "value_and_grad": lambda f: lambda *args: functx.value_and_grad(f)(*args)[0],
    "vjp": lambda f: lambda *args: vjp(f, *args)[0],
}


@pytest.mark.parametrize("views", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("transform", SHARING.values(), ids=SHARING)
@pytest.mark.parametrize("traced", [False, True], ids=["", "views of a traced array"])
def test_arguments_that_share_memory_are_one_array(views, transform, traced):
    def f(x, y):
        x *= 2.0
        y[1:] += x[:-1]
        return (x * y).sum()

    block, expected = ramp(12), ramp(12)
    call = lambda block: transform(f)(*views(block))  # noqa: E731
    close((jit(call) if traced else call)(block), f(*views(expected)))
    close(block, expected)


def test_slices_that_do_not_overlap_are_not_made_one_array():
    def f(block):
        def both(x, y):
            x += y
            return (x * y).sum()

        return grad(both, (0, 1))(block[::2], block[1::2])

    program = str(make_ir(functionalize(f))(ramp(6)))
    assert "scatter" not in program and "strided" not in program
    x, y = ramp(6)[::2], ramp(6)[1::2]
    for got, wanted in zip(jit(f)(ramp(6)), (y, x + 2 * y), strict=True):
        close(got, wanted)


def test_an_argument_that_shares_memory_with_an_array_around_is_not_written_to():
    def f(block):
        def inner(x):
            x += block[1]
            return x.sum()

        return grad(inner)(block[:3])

    with pytest.raises(ArgumentError, match=r"with an array around the function; got f32\[3\]"):
        jit(f)(ramp(6))


def test_arguments_that_overlap_at_traced_positions_are_refused():
    def f(block, i):
        return functionalize(lambda x, y: x.__iadd__(y))(block[i], block[1])

    with pytest.raises(ArgumentError, match="must lie in it at places that are known"):
        jit(f)(ramp(6, 2), 1)


def test_vmap_refuses_arguments_that_share_memory_if_one_is_written_to():
    def f(x, y):
        x += y

    block = ramp(6, 2)
    with pytest.raises(ArgumentError, match="must not share memory with another"):
        vmap(f)(block[:4], block[2:])


# Captured arrays


def test_a_transform_refuses_writes_to_traced_arrays_around_it():
    def outer(x):
        def inner(y):
            x[0] = y
            return y

        return grad(inner)(1.0)

    with pytest.raises(CapturedWriteError, match=r"a function under grad must not write .* `x`"):
        jit(outer)(ones(3))


@pytest.mark.parametrize("transform", [jit, grad, vmap])
def test_a_transform_names_the_numpy_array_around_it_that_is_written_to(transform):
    table = ones(3)

    def f(x):
        table[0] = x.sum()
        return x.sum()

    x = ones(2, 2) if transform is vmap else ones(2)
    with pytest.raises(CapturedWriteError, match=r"for the NumPy array `table`") as error:
        transform(f)(x)
    assert "table[0] = x.sum()" in str(error.value)
    close(table, ones(3))


@pytest.mark.parametrize("written", ["table[:1]", "table[0]", "around.table[0]", "tables[0][0]"])
def test_an_array_around_is_refused_without_the_text_of_the_code(written):
    scope = {"table": ones(3), "tables": [ones(3)], "around": SimpleNamespace(table=ones(3))}
    exec(f"def f(x):\n    {written} = x.sum()\n    return x.sum()", scope)
    name = r"an array of NumPy's" if "tables" in written else r"the NumPy array `table`"
    for transform in (jit, grad):
        with pytest.raises(CapturedWriteError, match=name):
            transform(scope["f"])(ones(2))


def test_functions_with_rules_of_their_own_do_not_write_to_arguments():
    @functx.custom_jvp
    def f(x):
        x += 1.0
        return x.sum()

    f.defjvp(lambda primals, tangents: (f(*primals), tangents[0].sum()))
    with pytest.raises(ArgumentWriteError, match=r"custom_jvp\(f\).* writes to `x`"):
        grad(f)(ones(3))


# Loops and branches


def loops(n, x, fori, scan_, while_, cond_):
    buffer = n.zeros(4, "float32")

    def fill(i, c):
        buffer[i] = c * x[i % 3]
        return buffer[i] + c

    total = fori(0, 4, fill, n.float32(1.0))

    def row(c, i):
        x[i] += c
        return c + 1, x.sum()

    _, sums = scan_(row, n.float32(0.0), n.arange(3))
    while_(lambda s: s[0] < 2, lambda s: (buffer.__isub__(5.0), (s[0] + 1,))[1], (0,))
    cond_(buffer[0] < 0, lambda: buffer.__setitem__(3, 100.0), lambda: None)
    return total + (buffer * n.arange(4)).sum() + sums.sum()


def plain_fori(first, last, body, c):
    for i in range(first, last):
        c = body(i, c)
    return c


def plain_scan(body, c, xs):
    ys = []
    for x in xs:
        c, y = body(c, x)
        ys.append(y)
    return c, numpy.array(ys)


def plain_while(holds, body, s):
    while holds(s):
        s = body(s)
    return s


def plain_cond(holds, yes, no):
    return yes() if holds else no()


def plain(x):
    return loops(numpy, x, plain_fori, plain_scan, plain_while, plain_cond)


def traced(x):
    return loops(np, x, fori_loop, scan, while_loop, cond)


def test_loops_and_branches_carry_the_arrays_that_their_bodies_write_to():
    x, y = ramp(3) + 1, ramp(3) + 1
    close(jit(traced)(x), plain(y))
    close(x, y)


def test_loops_and_branches_with_writes_differentiate_and_map():
    x = (ramp(3) + 1).astype("float64")
    slopes = []
    for i in range(3):
        up, down = x.copy(), x.copy()
        up[i] += 1e-4
        down[i] -= 1e-4
        slopes.append((plain(up) - plain(down)) / 2e-4)
    numpy.testing.assert_allclose(grad(traced)(ramp(3) + 1), slopes, rtol=1e-2)
    lanes = numpy.stack([ramp(3) + 1, ramp(3) + 2])
    wanted = [plain(lane.copy()) for lane in lanes]
    close(vmap(traced)(lanes), wanted)


# functionalize


def test_make_ir_shows_the_writes_and_functionalize_removes_them():
    written = make_ir(double_and_add)(ones(3), 2.0)
    pure = make_ir(functionalize(double_and_add))(ones(3), 2.0)
    assert Effect.WRITE in written.effects and "write" in str(written)
    assert not pure.effects and len(pure.outputs) == 2
    result, (last,) = pure(ramp(3), 2.0)
    close(result, 22.0)
    close(last, [4.0, 3.0, 4.0])


def test_views_are_copied_where_they_are_to_be_removed():
    def f(x):
        v = x[1:]
        v += 1.0
        return x.T

    pure = make_ir(functionalize(f, remove="mutations_and_views"))(ones(3, 2))
    views = [eqn for eqn in pure if isinstance(eqn.primitive, View)]
    copied = {
        atom for eqn in pure if isinstance(eqn.primitive, CopiesOperand) for atom in eqn.inputs
    }
    assert views and all(eqn.outputs[0] in copied for eqn in views)


def test_writes_without_an_effect_vanish():
    def f(x):
        x[...] = x
        x[1:] = x[1:]
        return x * 2.0

    assert len(make_ir(functionalize(f))(ones(3)).outputs) == 1


def test_an_unknown_value_of_remove_is_refused_and_names_the_known_ones():
    with pytest.raises(FunctionalizeError, match=r"'mutations' .*'mutations_and_views'"):
        functionalize(double_and_add, remove="views")


@pytest.mark.parametrize(
    "compose",
    [
        lambda f: grad(functionalize(f)),
        lambda f: functionalize(grad(f)),
        lambda f: jit(functionalize(grad(f))),
        lambda f: jit(grad(jit(functionalize(f)))),
        lambda f: grad(make_ir(f)(ones(3), 2.0)),
    ],
)
def test_functionalize_composes_on_either_side(compose):
    close(compose(double_and_add)(ramp(3), 2.0), [0.0, 2.0, 2.0])


def test_a_program_with_writes_parses_back_and_runs_as_it_did():
    program = make_ir(double_and_add)(ones(3), 2.0)
    again = functx.Program.parse(str(program))
    assert again == program and again.writes
    x = ramp(3)
    close(again(x, 2.0), 22.0)
    close(x, [4.0, 3.0, 4.0])


# Python control flow


def test_python_branches_see_earlier_writes():
    def f(x):
        b = np.zeros(3)
        b[0] = x
        if b[0] > 1.0:
            b[1] = b[0] * x
        while b[1] > 5.0:
            b[1] /= 2.0
        return b.sum()

    close(grad(f)(3.0), 1.0 + 2 * 3.0 / 2)
    close(grad(f)(0.5), 1.0)


@pytest.mark.parametrize("views", VIEWS.values(), ids=VIEWS)
def test_operands_of_a_branch_that_share_memory_are_one_array(views):
    def f(x, y):
        x *= 2.0
        y[1:] += x[:-1]
        return (x * y).sum()

    def branch(block):
        x, y = views(block)
        return cond(block[1] > 0, f, lambda x, y: 0.0, x, y)

    block, expected = ramp(12), ramp(12)
    close(jit(branch)(block), f(*views(expected)))
    close(block, expected)


def test_an_operand_of_a_branch_is_reshaped_by_its_memory_layout():
    def f(x):
        flat = x.reshape(-1)
        flat[1] = 50.0
        return flat * 1

    def branch(x):
        return cond(x[1, 1] > 0, f, lambda x: np.zeros(6), x)

    for order in "CF":
        x, expected = ramp(2, 3).copy(order), ramp(2, 3).copy(order)
        close(jit(branch)(x), f(expected))
        close(x, expected)
