"""Callbacks as they run: what is called, how often, in which order, and what goes wrong."""

import os
import subprocess
import sys
from functools import partial

import jax
import numpy as np
import pytest

import functx
from functx import debug, lax
from functx.core.effects import Effect
from functx.core.errors import (
    ArgumentError,
    CallbackResultError,
    DTypeError,
    FormatError,
    MissingRuleError,
    ValueRangeError,
)
from functx.ops.callbacks import VMAP_METHODS

X = np.float32(2)
ROW = np.arange(3, dtype=np.float32)
SCALAR = jax.ShapeDtypeStruct((), np.float32)


@pytest.fixture
def seen():
    return []


@pytest.fixture(params=[False, True], ids=["unordered", "ordered"])
def ordered(request):
    return request.param


def run(fun, *args):
    """What `fun(*args)` returns, when all its callbacks have run."""
    out = fun(*args)
    functx.effects_barrier()
    return jax.tree.map(lambda x: np.asarray(x).tolist(), out)


def show(seen, ordered=False):
    """A function that shows its values to `seen`."""

    def shows(*values):
        debug.callback(lambda *xs: seen.append(tuple(map(float, xs))), *values, ordered=ordered)

    return shows


def counting(seen, ordered=False):
    """A function of effect: adds one to its argument, and keeps it in `seen`."""

    def host(x):
        seen.append(float(x))
        return np.float32(x + 1)

    return lambda x: functx.io_callback(host, SCALAR, x, ordered=ordered)


# Debug callbacks


def powers(shows):
    """The sixth power by a scan that shows its carry, 1, x and x**2 times x."""

    def body(c, _):
        shows(c)
        return c * c, c

    return lambda x: lax.scan(body, x, None, 2)[0] * x * x


TRANSFORMS = {
    "plain": lambda f: f,
    "jit": functx.jit,
    "grad": functx.grad,
    "value_and_grad": functx.value_and_grad,
    "jit of grad": lambda f: functx.jit(functx.grad(f)),
    "grad of jit": lambda f: functx.grad(functx.jit(f)),
    "jvp": lambda f: lambda x: functx.jvp(f, (x,), (x,)),
    "vjp": lambda f: lambda x: functx.vjp(f, x)[1](x),
    "linearize": lambda f: lambda x: functx.linearize(f, x)[1](x),
    "jacfwd": functx.jacfwd,
    "jacrev": functx.jacrev,
    "hessian": functx.hessian,
    "checkpoint": lambda f: functx.grad(functx.checkpoint(f)),
    "jvp of checkpoint": lambda f: lambda x: functx.jvp(functx.checkpoint(f), (x,), (x,)),
    "jax.jit": jax.jit,
    "jax.grad": lambda f: jax.grad(functx.jit(f)),
    "jax.jit of jax.grad": lambda f: jax.jit(jax.grad(functx.jit(f))),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_value_is_shown_once_a_step_whatever_the_transform(name, seen, ordered):
    run(TRANSFORMS[name](powers(show(seen, ordered))), X)
    assert seen == [(2.0,), (4.0,)]


def test_each_lane_shows_its_value_in_turn(seen, ordered):
    run(functx.vmap(functx.grad(powers(show(seen, ordered)))), ROW[1:])
    assert seen == [(1.0,), (2.0,), (1.0,), (4.0,)]


def test_lanes_of_lanes_show_their_values_in_order(seen, ordered):
    shows = show(seen, ordered)
    over = functx.vmap(functx.vmap(shows, in_axes=(0, None)), in_axes=(None, 0))
    run(over, ROW[:2], ROW[1:])
    assert seen == [(0.0, 1.0), (1.0, 1.0), (0.0, 2.0), (1.0, 2.0)]


def test_what_all_lanes_share_is_shown_once(seen, ordered):
    run(functx.vmap(lambda x: (show(seen, ordered)(X), x)[1]), ROW)
    assert seen == [(2.0,)]


def test_only_the_branch_that_is_taken_shows_its_value(seen, ordered):
    shows = show(seen, ordered)

    def f(x):
        return lax.cond(x > 0, lambda x: (shows(x), 2 * x)[1], lambda x: (shows(x - 9), x)[1], x)

    assert run(functx.jit(f), X) == 4.0
    assert run(functx.vmap(functx.grad(f)), ROW) == [1.0, 2.0, 2.0]
    assert seen == [(2.0,), (-9.0,), (1.0,), (2.0,)]


def test_a_while_loop_shows_conditions_and_steps_in_order(seen, ordered):
    shows = show(seen, ordered)

    def f(x):
        return lax.while_loop(lambda c: (shows(c), c < 4)[1], lambda c: (shows(c, c), c * 2)[1], x)

    assert run(functx.jit(f), X) == 4.0
    assert seen == [(2.0,), (2.0, 2.0), (4.0,)]
    seen.clear()
    assert run(lambda x: functx.jvp(f, (x,), (x,))[1], X) == 4.0
    assert seen == [(2.0,), (2.0, 2.0), (4.0,)]


def test_a_lane_that_has_stopped_shows_nothing(seen, ordered):
    shows = show(seen, ordered)
    f = functx.vmap(lambda x: lax.while_loop(lambda c: c < 2, lambda c: (shows(c), c + 1)[1], x))
    assert run(f, ROW) == [2.0, 2.0, 2.0]
    assert seen == [(0.0,), (1.0,), (1.0,)]


def test_a_rule_shows_what_it_is_given(seen, ordered):
    shows = show(seen, ordered)

    @functx.custom_vjp
    def f(x):
        shows(x)
        return x * x

    f.defvjp(lambda x: (x * x, x), lambda x, ct: ((shows(x, ct), 2 * x * ct)[1],))
    assert run(functx.grad(f), X) == 4.0
    assert run(f, X) == 4.0
    assert seen == [(2.0, 1.0), (2.0,)]


def test_callbacks_in_called_functions_keep_the_order_of_the_program(seen):
    shows = show(seen, ordered=True)
    inner = functx.jit(lambda x: (shows(x), x + 1)[1])
    run(functx.jit(lambda x: (shows(inner(inner(x)) * 0), inner(x))[1]), X)
    assert seen == [(2.0,), (3.0,), (0.0,), (2.0,)]


def test_ordered_callbacks_keep_their_order_from_call_to_call(seen):
    f = functx.jit(lambda x: (show(seen, ordered=True)(x), x)[1])
    for i in range(20):
        (f if i % 3 else show(seen, ordered=True))(np.float32(i))
    functx.effects_barrier()
    assert seen == [(float(i),) for i in range(20)]


def test_a_callback_gets_numpy_arrays_in_its_pytrees_and_all_else_as_it_is(seen):
    def host(x, *, tree):
        seen.append((type(x), x.dtype, type(tree["a"][0]), tree["b"]))

    f = lambda x: debug.callback(host, x, tree={"a": [x], "b": "text"})  # noqa: E731
    run(f, X)
    run(functx.jit(f), X)
    run(functx.jit(lambda x: debug.callback()(host, x, tree={"a": [x], "b": None})), X)
    kinds = (np.ndarray, np.dtype("float32"), np.ndarray)
    assert seen == [(*kinds, "text"), (*kinds, "text"), (*kinds, None)]


def test_outside_a_trace_it_runs_at_once(seen):
    show(seen)(1.0)
    assert seen == [(1.0,)]
    assert counting(seen)(X) == 3.0
    assert type(functx.pure_callback(np.sin, X, X)) is functx.numpy.ndarray
    assert isinstance(functx.pure_callback(np.sin, X, jax.numpy.ones(())), jax.Array)


def test_jax_may_be_tracing_what_depends_on_nothing(seen):
    f = jax.jit(lambda x: (show(seen)(5.0), x)[1])
    for _ in range(2):
        run(f, X)
    assert seen == [(5.0,), (5.0,)]


@pytest.mark.parametrize("wrap", [lambda f: f, functx.jit, jax.jit], ids=["eager", "jit", "jax"])
def test_print_formats_values(wrap, capsys):
    def f(x, v):
        debug.print("x={:.2f} {v[1]:>4.1f} {name} {{}} {!r}", x, x, v=v, name="text")
        debug.print("no fields", v)
        debug.print(ordered=True)("{}", {"a": (x, None)})

    wrap(f)(X, ROW)
    functx.effects_barrier()
    wanted = "x=2.00  1.0 text {} array(2., dtype=float32)"
    assert sorted(capsys.readouterr().out.splitlines()) == sorted(
        [wanted, "no fields [0. 1. 2.]", "{'a': (array(2., dtype=float32), None)}"]
    )


def test_prints_are_ordered_on_request_alone(ordered):
    for shows in (
        partial(debug.print, "{}", ordered=ordered),
        partial(debug.print(ordered=ordered), "{}"),
    ):
        program = functx.make_ir(lambda x, shows=shows: shows(x))(X)
        assert (Effect.ORDERED in program.effects) == ordered


def test_print_uses_the_print_options_of_the_call(capsys):
    with np.printoptions(precision=2):
        functx.jit(lambda x: debug.print("{}", x / 3))(ROW)
    functx.effects_barrier()
    assert capsys.readouterr().out == "[0.   0.33 0.67]\n"


@pytest.mark.parametrize(
    ("call", "error", "problem"),
    [
        (lambda x: debug.print(x), ArgumentError, "must be a format string; got f32[]"),
        (lambda x: debug.print("{} {}", x), FormatError, "got none for field 1, given 1 values"),
        (lambda x: debug.print("{y}", x=x), FormatError, "got none for field `y`, given `x`"),
        (lambda x: debug.print("{}", x, x), FormatError, "without one for argument 1"),
        (lambda x: debug.print("x", x=x), FormatError, "without one for `x`"),
        (lambda x: debug.print(f"{x}", x), FormatError, "must be filled in when the program runs"),
        (lambda x: debug.print("{", x), FormatError, "that str.format takes; got '{', of which"),
        (lambda x: debug.print("{0.foo}", x), FormatError, "has no attribute 'foo'"),
        (lambda x: debug.print("{:d}", x), FormatError, "the format 'd' must be one for its value"),
        (lambda x: debug.callback("f", x), ArgumentError, "must be a function; got str 'f'"),
    ],
)
def test_a_mistake_in_a_debug_call_is_found_when_it_is_traced(call, error, problem):
    with pytest.raises(error) as e:
        functx.jit(lambda x: (call(x), x)[1])(X)
    assert problem in e.value.problem
    assert "test_callbacks.py" in str(e.value)


# Callbacks with results


def test_a_pure_callback_takes_and_gives_pytrees():
    def host(tree, *, shift):
        return {"sum": tree["a"] + tree["b"][0] + shift, "pair": [tree["a"], 3]}

    out = {"sum": jax.ShapeDtypeStruct((3,), np.float32), "pair": (ROW, jax.numpy.int32(0))}
    f = lambda t: functx.pure_callback(host, out, t, shift=1.0)  # noqa: E731
    wanted = {"sum": [1.0, 3.0, 5.0], "pair": ([0.0, 1.0, 2.0], 3)}
    assert run(f, {"a": ROW, "b": [ROW]}) == wanted
    assert run(functx.jit(f), {"a": ROW, "b": [ROW]}) == wanted


@pytest.mark.parametrize("method", VMAP_METHODS)
@pytest.mark.parametrize("nested", [False, True])
def test_vmap_of_a_pure_callback_calls_it_as_jax_does(method, nested, seen):
    def host(a, b):
        seen.append((np.shape(a), np.shape(b)))
        return np.asarray(a + b, np.float32)

    def mapped(lib):
        f = lambda a, b: lib.pure_callback(host, SCALAR, a, b, vmap_method=method)  # noqa: E731
        f = lib.vmap(f, in_axes=(0, None))
        return lib.vmap(f, in_axes=(None, 0)) if nested else f

    args = (ROW, ROW[:2] if nested else X)
    wanted = run(mapped(jax), *args)
    shapes = seen.copy()
    seen.clear()
    assert run(mapped(functx), *args) == wanted
    assert seen == shapes


def test_vmap_of_what_all_lanes_share_needs_no_method(seen):
    f = functx.vmap(lambda x: x + functx.pure_callback(lambda: (seen.append(1), X)[1], SCALAR))
    assert run(f, ROW) == [2.0, 3.0, 4.0]
    assert seen == [1]


def test_an_io_callback_is_called_for_each_lane_and_its_results_stacked(seen, ordered):
    f = counting(seen, ordered)
    assert run(functx.vmap(functx.vmap(f)), ROW[:, None]) == [[1.0], [2.0], [3.0]]
    assert seen == [0.0, 1.0, 2.0]
    assert run(functx.vmap(f), ROW[:0]) == []


def test_an_io_callback_in_a_loop_is_called_once_a_step(seen, ordered):
    f = counting(seen, ordered)
    assert run(functx.jit(lambda x: lax.fori_loop(0, 3, lambda i, c: f(c), x)), X) == 5.0
    assert run(lambda x: lax.while_loop(lambda c: c < 4, f, x), X) == 4.0
    assert run(lambda x: jax.lax.fori_loop(0, 2, lambda i, c: f(c), x), X) == 4.0
    assert seen == [2.0, 3.0, 4.0, 2.0, 3.0, 2.0, 3.0]


@pytest.mark.parametrize("loop", ["scan", "while"])
def test_a_derivative_uses_what_an_io_callback_without_operands_gives_each_step(loop):
    def f(x):
        numbers = iter([2.0, 3.0, 5.0])

        def step(c):
            return c * functx.io_callback(lambda: np.float32(next(numbers)), SCALAR, ordered=True)

        if loop == "scan":
            return lax.scan(lambda c, _: (step(c), None), x, length=3)[0]
        return lax.while_loop(
            lambda c: c[0] < 3, lambda c: (c[0] + 1, step(c[1])), (0, x), max_steps=4
        )[1]

    assert float(functx.jit(functx.grad(f))(X)) == 30.0
    assert float(functx.jit(lambda x: functx.jvp(f, (x,), (x,))[1])(X)) == 60.0


def test_an_io_callback_whose_result_nobody_uses_is_called(seen, ordered):
    run(functx.jit(lambda x: (counting(seen, ordered)(x), x)[1]), X)
    run(functx.grad(lambda x: (counting(seen, ordered)(x), x)[1]), X)
    run(functx.jit(lambda x: functx.io_callback(lambda v: seen.append(1), None, x)), X)
    assert seen == [2.0, 2.0, 1]


def pure(x):
    return functx.pure_callback(lambda x: np.float32(x + 1), SCALAR, x)


CUT = {
    "unused": lambda f: lambda x: (f(x), x * x)[1],
    "stopped": lambda f: lambda x: functx.stop_gradient(f(x)) * x,
    "stopped input": lambda f: lambda x: f(functx.stop_gradient(x)) * x,
    "in jit": lambda f: lambda x: functx.stop_gradient(functx.jit(f)(x)) * x,
    "beside, in jit": lambda f: lambda x: functx.jit(lambda x: (f(x), x * x))(x)[1],
    "in a loop": lambda f: (
        lambda x: lax.fori_loop(0, 2, lambda i, c: c * functx.stop_gradient(f(c)), x)
    ),
    "in a branch": lambda f: (
        lambda x: lax.cond(x > 0, lambda x: functx.stop_gradient(f(x)) * x, lambda x: x, x)
    ),
}


@pytest.mark.parametrize("where", CUT)
def test_a_result_that_no_derivative_needs_may_come_of_a_callback(where, seen):
    plain = CUT[where](lambda x: functx.stop_gradient(x + 1))
    for transform in (functx.grad, lambda f: lambda x: functx.jvp(f, (x,), (x,))):
        for callback in (pure, counting(seen)):
            assert run(transform(CUT[where](callback)), X) == run(transform(plain), X)


@pytest.mark.parametrize(
    "transform",
    [
        functx.grad,
        lambda f: lambda x: functx.jvp(f, (x,), (x,)),
        lambda f: functx.jit(functx.grad(functx.jit(f))),
        lambda f: functx.grad(lambda x: lax.fori_loop(0, 2, lambda i, c: f(c), x)),
        lambda f: functx.grad(lambda x: lax.cond(x > 0, f, f, x)),
        lambda f: lambda x: functx.linearize(f, x)[1](x),
        lambda f: functx.grad(functx.checkpoint(f)),
        lambda f: functx.vmap(functx.grad(f), axis_size=2, in_axes=None),
        functx.hessian,
    ],
)
def test_a_derivative_through_a_callback_is_refused(transform):
    with pytest.raises(MissingRuleError, match=r"pure_callback.*: a callback must stand in") as e:
        transform(pure)(X)
    assert "functx.custom_jvp or functx.custom_vjp" in e.value.fix
    assert "at test_callbacks.py" in str(e.value)


def test_an_io_callback_is_refused_likewise():
    with pytest.raises(MissingRuleError, match=r"io_callback\(host\): a callback must stand in"):
        functx.grad(counting([]))(X)


def test_a_rule_makes_a_callback_differentiable():
    @functx.custom_jvp
    def sine(x):
        return functx.pure_callback(np.sin, x, x, vmap_method="expand_dims")

    sine.defjvp(lambda x, t: (sine(x[0]), functx.numpy.cos(x[0]) * t[0]))
    np.testing.assert_allclose(functx.vmap(functx.grad(sine))(ROW), np.cos(ROW), rtol=1e-6)


# Mistakes


@pytest.mark.parametrize(
    ("call", "error", "problem"),
    [
        (lambda x: functx.pure_callback(3, x, x), ArgumentError, "must be a function; got int"),
        (
            lambda x: functx.pure_callback(np.sin, x, x, vmap_method="loop"),
            ValueRangeError,
            "'broadcast_all' or None; got 'loop'",
        ),
        (
            lambda x: functx.io_callback(len, {"a": [1.0]}, x),
            ArgumentError,
            "a shape and a dtype; got float for `result_shape_dtypes['a'][0]`",
        ),
        (
            lambda x: functx.pure_callback(len, {"a": np.zeros(3)}, x),
            DTypeError,
            "got float64 for `result_shape_dtypes['a']` while 64-bit types are off",
        ),
        (
            lambda x: functx.pure_callback(len, np.zeros(3, "O"), x),
            DTypeError,
            "got object for `result_shape_dtypes`",
        ),
        (
            lambda x: functx.pure_callback(len, x, {"w": ["text"]}),
            ArgumentError,
            "arguments must be arrays, numbers or pytrees of them; got str for `args[0]['w'][0]`",
        ),
        (
            lambda x: functx.io_callback(len, x, k={"w": object()}),
            ArgumentError,
            "got object for `k['w']`",
        ),
    ],
)
@pytest.mark.parametrize("wrap", [lambda f: f, functx.jit], ids=["eager", "jit"])
def test_a_mistake_in_a_call_is_found_when_it_is_traced(wrap, call, error, problem):
    with pytest.raises(error) as e:
        wrap(call)(X)
    assert problem in e.value.problem
    assert "test_callbacks.py" in str(e.value)


@pytest.mark.parametrize(
    ("result", "problem"),
    [
        (np.zeros(3, "f"), "got ndarray float32[3] for result['a']: f32[]"),
        (np.int32(1), "got int32 int32[] for result['a']: f32[]"),
        (1j, "got complex for result['a']: f32[]"),
        ("text", "got str for result['a']: f32[]"),
    ],
)
@pytest.mark.parametrize(
    "wrap", [lambda f: f, functx.jit, functx.vmap], ids=["eager", "jit", "vmap"]
)
def test_a_result_of_another_type_is_refused(wrap, result, problem):
    def host(x):
        return {"a": result}

    f = lambda x: functx.pure_callback(host, {"a": SCALAR}, x, vmap_method="sequential")  # noqa: E731
    with pytest.raises(CallbackResultError, match="host: the callback must return what") as e:
        run(wrap(f), ROW if wrap is functx.vmap else X)
    assert problem in e.value.problem
    assert "functx.pure_callback(host, {" in str(e.value)


@pytest.mark.parametrize("wrap", [lambda f: f, functx.jit], ids=["eager", "jit"])
def test_a_result_of_another_structure_is_refused(wrap):
    f = wrap(lambda x: functx.io_callback(lambda x: (x, x), {"a": SCALAR}, x))
    with pytest.raises(CallbackResultError, match="must return the structure of result_shape") as e:
        run(f, X)
    assert e.value.details == ["expected PyTreeDef({'a': *})", "got      PyTreeDef((*, *))"]


def test_numbers_and_wide_arrays_fit_where_nothing_is_lost_that_jax_keeps():
    for result in (1.5, np.float64(1.5), np.float32(1.5)):
        f = functx.jit(lambda x, r=result: functx.pure_callback(lambda _: r, SCALAR, x))
        assert run(f, X) == 1.5
    with jax.enable_x64():
        f = functx.jit(lambda x: functx.pure_callback(lambda _: np.float64(1), SCALAR, x))
        with pytest.raises(CallbackResultError, match="got float64 float64"):
            run(f, X)


def test_vmap_of_a_pure_callback_without_a_method_lists_the_methods():
    with pytest.raises(MissingRuleError, match=r"pure_callback\(lambda\): a vmap_method must") as e:
        functx.vmap(pure)(ROW)
    assert all(repr(method) in e.value.fix for method in VMAP_METHODS)
    assert "in pure: return functx.pure_callback" in str(e.value)


class OwnError(Exception):
    pass


@pytest.mark.parametrize(
    "call",
    [
        lambda f, x: f(x),
        lambda f, x: functx.jit(f)(x),
        lambda f, x: functx.vmap(f)(np.stack([x, x])),
        lambda f, x: functx.grad(lambda x: functx.stop_gradient(f(x)) * x)(x),
        lambda f, x: functx.jit(lambda x: lax.fori_loop(0, 2, lambda i, c: f(c), x))(x),
    ],
)
@pytest.mark.parametrize("kind", ["debug", "io", "pure"])
def test_what_a_callback_raises_reaches_the_user(call, kind):
    def fails(x):
        raise OwnError("mine")

    calls = {
        "debug": lambda x: (debug.callback(fails, x), x)[1],
        "io": lambda x: functx.io_callback(fails, SCALAR, x),
        "pure": lambda x: functx.pure_callback(fails, SCALAR, x, vmap_method="sequential"),
    }
    with pytest.raises(OwnError, match="mine"):
        run(call, calls[kind], X)
    # What went wrong once does no harm to what comes after.
    assert run(functx.jit(lambda x: x + 1), X) == 3.0


# Several devices, and progress

ON_TWO_DEVICES = """
import jax, numpy as np, functx
from jax.sharding import NamedSharding, PartitionSpec
mesh = jax.make_mesh((2,), ("d",))
x = jax.device_put(np.arange(4, dtype="f"), NamedSharding(mesh, PartitionSpec("d")))
seen = []
def f(x):
    functx.debug.callback(lambda v: seen.append(v.tolist()), x)
    return functx.io_callback(lambda v: (seen.append("io"), v + 1)[1], x, x)
print(functx.jit(f)(x).tolist())
functx.effects_barrier()
print(sorted(map(str, seen)))
"""


def test_a_program_on_two_devices_calls_once():
    flags = f"--xla_force_host_platform_device_count=2 {os.environ['XLA_FLAGS']}"
    done = subprocess.run(
        [sys.executable, "-c", ON_TWO_DEVICES],
        env={**os.environ, "XLA_FLAGS": flags},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == ["[1.0, 2.0, 3.0, 4.0]", "['[0.0, 1.0, 2.0, 3.0]', 'io']"]


def steps(text):
    """The lines of progress that were written: whether each ended, and its text."""
    return [part for part in text.replace("\n", "").split("\r") if part]


def summing(name, n=300):
    return lambda x: lax.scan(lambda c, a: (c + a * x, None), x, np.ones(n, "f"), progress=name)[0]


@pytest.mark.parametrize(
    "transform",
    [
        lambda f: f,
        functx.jit,
        functx.grad,
        lambda f: lambda x: functx.jvp(f, (x,), (x,)),
        lambda f: functx.vmap(f, axis_size=3, in_axes=None),
        lambda f: lambda x: functx.vmap(f)(np.stack([x, x])),
        functx.checkpoint,
    ],
)
def test_a_loop_shows_its_progress_once_and_ends_the_line(transform, capsys):
    run(transform(summing("sum")), X)
    text = capsys.readouterr().err
    assert text.count("\n") == 1
    first, *_, last = steps(text)
    assert first.startswith("sum:   0% [--------------------] 0/300 00:00")
    assert last.startswith("sum: 100% [####################] 300/300 00:00 ")
    assert last.rstrip().endswith("/s")


def test_a_loop_is_shown_at_most_about_a_hundred_times_and_never_backwards(capsys, monkeypatch):
    monkeypatch.setattr("functx.ops.progress._MIN_INTERVAL_SECONDS", 0.0)
    run(functx.jit(summing("many", 1050)), X)
    counts = [int(line.split("] ")[1].split("/")[0]) for line in steps(capsys.readouterr().err)]
    assert counts == [*range(0, 1050, 11), 1050]
    assert len(counts) <= 102


def test_a_loop_of_unknown_length_shows_count_and_rate(capsys, monkeypatch):
    monkeypatch.setattr("functx.ops.progress._MIN_INTERVAL_SECONDS", 0.0)
    f = lambda n: lax.while_loop(lambda c: c < n, lambda c: c + 1, 0, progress="up")  # noqa: E731
    assert run(functx.jit(f), 40) == 40
    counts = [int(line.split()[1]) for line in steps(capsys.readouterr().err)]
    assert counts == [*range(9), *range(10, 17, 2), *range(20, 33, 4), 40]
    assert run(functx.vmap(f), np.array([3, 7])) == [3, 7]
    assert capsys.readouterr().err.count("\n") == 1
    assert run(lambda n: lax.fori_loop(0, n, lambda i, c: c + i, 0, progress="to n"), 4) == 6
    assert steps(capsys.readouterr().err)[-1].startswith("to n: 100% [####################] 4/4")


def test_progress_must_have_a_name():
    for loop in (
        lambda: lax.scan(lambda c, x: (c, x), 0.0, ROW, progress=True),
        lambda: lax.while_loop(lambda c: c < 0, lambda c: c, 0.0, progress=""),
        lambda: lax.fori_loop(0, 3, lambda i, c: c, 0.0, progress=1),
    ):
        with pytest.raises(ArgumentError, match="progress must be a name for the line"):
            loop()
