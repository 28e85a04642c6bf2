"""What `print` and f-strings show of a traced array: its value, wherever there is one."""

import jax
import numpy as np
import pytest

import functx
import functx.numpy as xp
from functx import checkpoint, grad, hessian, jacfwd, jacrev, jit, jvp, linearize, vjp, vmap

F32 = np.float32


def seen(transform, fun, *args):
    """What `fun` noted with its argument `note` while `transform` called it."""
    notes = []
    transform(lambda *xs: fun(notes.append, *xs))(*args)
    return notes


def note_sine(note, x):
    y = xp.sin(x) * 2
    note((repr(x), str(x) == repr(x) == f"{x}", repr(y), f"{y:.1f}"))
    return y.sum()


@pytest.mark.parametrize(
    "transform",
    [grad, hessian, jacfwd, jacrev, lambda f: lambda x: grad(lambda y: checkpoint(f)(y) * 2)(x)]
    + [lambda f, v=verb: lambda x: v(f, x) for verb in (linearize, vjp)]
    + [lambda f: lambda x: jvp(f, (x,), (x,)), lambda f: jax.grad(lambda x: jvp(f, (x,), (x,))[0])],
)
def test_a_derivative_of_known_arguments_shows_values(transform):
    for x, same, y, formatted in seen(transform, note_sine, np.arange(3, dtype=F32)):
        assert x.startswith("Traced<f32[3]> in ") and same
        assert x.endswith(") with value [0. 1. 2.]")
        assert y.endswith(") with value [0.        1.6829419 1.8185948]")
        assert formatted == "Traced<[0.0 1.7 1.8]>"


@pytest.mark.parametrize("transform", [jit, lambda f: jit(grad(f)), lambda f: jax.jit(grad(f))])
def test_what_has_no_value_yet_shows_its_type(transform):
    ((x, _, y, formatted),) = seen(transform, note_sine, np.zeros(3, F32))
    assert x == y and x in ("Traced<f32[3]> in jit(lambda)", "Traced<f32[3]> in grad(lambda)")
    assert formatted == "Traced<f32[3]>"


def test_a_batch_shows_all_its_lanes_through_all_levels():
    def note_product(note, x, y):
        note(repr(x * y).split(") ")[1])
        note(repr(functx.lax.pmean(x, "i")).split(") ")[1])
        return x * y

    def twice(f):
        inner = vmap(f, in_axes=(0, None), axis_name="j")
        return vmap(inner, in_axes=(None, 0), axis_name="i")

    xs, ys = np.arange(3, dtype=F32), np.arange(2, dtype=F32)
    lanes = "with 2 x 3 lanes\n[[0. {}. {}.]\n [0. 1. 2.]]"
    assert seen(twice, note_product, xs, ys) == [lanes.format(0, 0), lanes.format(1, 2)]
    rows = np.arange(6, dtype=F32).reshape(3, 2)
    summed = lambda f: grad(lambda x: vmap(f, in_axes=1)(x).sum())  # noqa: E731
    for transform in (lambda f: vmap(grad(f), in_axes=1), summed):
        ((x, _, _, formatted),) = seen(transform, note_sine, rows)
        assert x.endswith("with 2 lanes\n[[0. 2. 4.]\n [1. 3. 5.]]")
        assert formatted == "Traced<[[0.0 1.8 -1.5]\n [1.7 0.3 -1.9]]>"


def test_what_was_written_shows_as_it_is_now():
    def note_writes(note, x):
        buffer = xp.zeros(2)
        part = buffer[1:]
        part[...] = x
        note(repr(buffer).split("with ")[1])
        buffer[1] = 5
        note(repr(part).split("with ")[1])
        return buffer.sum()

    assert seen(grad, note_writes, 3.0) == ["value [0. 3.]", "value [5.]"]
    lanes = ["2 lanes\n[[0. 3.]\n [0. 4.]]", "2 lanes\n[[5.]\n [5.]]"]
    assert seen(vmap, note_writes, np.array([3, 4], F32)) == lanes


def test_formats_take_one_element_each_and_long_arrays_are_abbreviated():
    def note_formats(note, x):
        wide = xp.broadcast_to(x, (2000,))
        note((f"{x:>5}", f"{x > 1:>5}", f"{x * 1j:.0f}", f"{x.astype('bfloat16'):.2f}"))
        note((repr(wide).split("value ")[1], f"{wide:.0f}"))
        return x

    scalars, long = seen(grad, note_formats, 2.0)
    assert scalars == ("Traced<  2.0>", "Traced<    1>", "Traced<0+2j>", "Traced<2.00>")
    assert long == ("[2. 2. 2. ... 2. 2. 2.]", "Traced<[2 2 2 ... 2 2 2]>")
    assert seen(jit, lambda note, x: note(f"{x:.3f}"), 2.0) == ["Traced<~f32[]>"]


def test_to_show_a_value_changes_nothing_and_calls_nothing():
    calls = []

    def note_quietly(note, x):
        y = functx.pure_callback(lambda v: calls.append(v) or v, jax.ShapeDtypeStruct((), F32), x)
        functx.debug.callback(calls.append, x)
        around = functx.lax.while_loop(lambda c: c < 1, lambda c: c + y, 0 * x)
        note((repr(y), repr(around), len(calls)))
        return x * 2

    plain = functx.make_ir(lambda x: vmap(lambda y: y * 2)(x))(np.ones(2, F32))
    printing = functx.make_ir(lambda x: vmap(lambda y: (repr(y * 3), y * 2)[1])(x))(np.ones(2, F32))
    assert len(printing.equations) == len(plain.equations)
    for transform in (grad, lambda f: vmap(f, axis_size=1, in_axes=None)):
        calls.clear()
        ((y, around, count),) = seen(transform, note_quietly, F32(1))
        assert "with" not in y + around and count == 0


def test_a_trace_that_has_ended_and_code_that_has_no_values():
    saved = seen(grad, lambda note, x: note(x) or x, 1.0)
    assert repr(saved) == "[Traced<~f32[]> in grad(lambda), which has ended]"
    steps = seen(
        grad,
        lambda note, x: functx.lax.scan(lambda c, _: (note(repr(c)) or c * x, ()), 1.0, length=3)[
            0
        ],
        2.0,
    )
    assert steps and all("with" not in step for step in steps)


def test_an_error_of_an_evaluation_is_left_to_the_program():
    def note_nan(note, x):
        note(repr(xp.log(x)))
        return xp.log(x + 3)

    with jax.debug_nans(True):
        (text,) = seen(grad, note_nan, -1.0)
    assert text.startswith("Traced<~f32[]> in grad(lambda)")
