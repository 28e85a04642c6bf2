"""What a program repeats is compiled once: the same values, the structure, and the effort."""

import sys
from collections import Counter

import jax
import numpy as np
import pytest

import functx
import functx.numpy as fnp
from functx.core.errors import ArgumentError, ValueRangeError
from functx.passes.loop_rerolling import accumulates_cotangent
from functx.passes.outlining import DeduplicateCalls, Outline
from functx.tools import outlined
from functx.transforms.call_primitive import Call
from functx.transforms.control.scan import Scan

random = np.random.RandomState(0)


@pytest.fixture(autouse=True)
def switched_by_the_test_alone():
    with functx.config.set(outline="auto", memory="off"):
        yield


def normal(*shape, scale=1.0):
    return (random.randn(*shape) * scale).astype("float32")


STEPS = 9
X, W = normal(4, 6), normal(6, 6, scale=0.3)
ROWS = normal(STEPS, 4, 6)
WEIGHTS = [normal(6, 6, scale=0.3) for _ in range(6)]


def layers(x, weights):
    for w in weights:
        x = fnp.tanh(x @ w) + 0.1 * x
    return x


def time_steps(w, xs):
    h, found = fnp.zeros((4, 6), "float32"), []
    for t in range(STEPS):
        h = fnp.tanh(xs[t] + h @ w)
        found.append(h)
    return fnp.stack(found)


def rows_by_iteration(w, xs):
    h, total = fnp.zeros((4, 6), "float32"), 0.0
    for x in xs:
        h = fnp.tanh(x + h @ w)
        total = total + fnp.sum(h**2)
    return total


def other_literals(x):
    for i in range(STEPS):
        x = fnp.sin(x) * (0.3 + i * i * 0.01) + float(i)
    return x


def nested(x, w):
    for _ in range(4):
        for _ in range(4):
            x = fnp.tanh(x @ w) + 0.1 * x
        x = x / fnp.sqrt(1 + fnp.sum(x**2))
        for _ in range(3):
            x = fnp.sin(x) * fnp.cos(x * 0.5) + x
    return x


def several_kinds(x, weights, w):
    x = layers(x, weights[:4])
    for each in weights:
        x = fnp.sin(x @ each) * fnp.cos(x)
    for _ in range(5):
        x = fnp.exp(-(x**2)) @ w
    return x


def scattered(x, weights):
    def part(x, w):
        return fnp.tanh(x @ w) + 0.1 * fnp.sin(x) * fnp.cos(x)

    x = part(x, weights[0])
    x = part(x.sum(0, keepdims=True) + x, weights[1])
    return part(fnp.exp(-x) * 3.0, weights[2])


def leapfrog(x, w):
    before = x
    for _ in range(STEPS):
        x, before = 2 * x - before + 0.01 * fnp.sin(x @ w), x
    return x


def buffer(x):
    b = fnp.zeros((STEPS + 1, 6), "float32")
    b[0] = x[0]
    for i in range(STEPS):
        b[i + 1] = fnp.sin(b[i]) * 0.9 + x[1]
    return b


def runge_kutta(x, dt):
    def slope(x):
        return fnp.sin(x) * 0.5 - x**2 * 0.1

    for _ in range(STEPS):
        first = slope(x)
        second = slope(x + dt / 2 * first)
        third = slope(x + dt / 2 * second)
        x = x + dt / 6 * (first + 2 * second + 2 * third + slope(x + dt * third))
    return x


def scalars(x, numbers):
    for each in numbers:
        x = fnp.sin(x * each) + each
    return x


def windows(x):
    flat = x.reshape(-1)
    return fnp.stack([fnp.sum(fnp.sin(flat[i : i + 8]) * 2.0) for i in range(STEPS)])


def branches(x):
    for i in range(STEPS):
        x = fnp.where(x > 0.1 * i, fnp.log(fnp.abs(x) + 1), x * 0.5)
    return x


def optimizer(x):
    m, v = x * 0, x * 0
    for t in range(1, STEPS):
        g = functx.grad(lambda x: fnp.sum(fnp.sin(x) ** 2 * x))(x)
        m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
        x = x - 0.1 * (m / (1 - 0.9**t)) / (fnp.sqrt(v / (1 - 0.99**t) + 1e-4) + 1e-3)
    return x


def masked_layers(x, weights):
    for w in weights:
        x = fnp.where(x > 0, fnp.sqrt(fnp.where(x > 0.5, x, 0.0)) * 2.0, 0.0) @ w + 0.1
    return x


def with_identity(x, weights):
    kept = []
    for w in weights:
        kept.append(w)
        x = fnp.tanh(x @ w) * fnp.sum(w) + fnp.sin(x)
    return x, kept


def loop_of_layers(x, weights):
    return functx.lax.scan(lambda x, _: (layers(x, weights), None), x, None, length=3)[0]


def constants():
    return [fnp.sin(fnp.cos(fnp.ones(3) * 2.0) + fnp.exp(fnp.ones(3))) for _ in range(4)]


PROGRAMS = {
    "layers": (layers, (X, WEIGHTS)),
    "time steps": (time_steps, (W, ROWS)),
    "rows by iteration": (rows_by_iteration, (W, ROWS)),
    "other literals": (other_literals, (X,)),
    "nested": (nested, (X, W)),
    "several kinds": (several_kinds, (X, WEIGHTS, W)),
    "scattered": (scattered, (X, WEIGHTS)),
    "leapfrog": (leapfrog, (X, W)),
    "buffer": (buffer, (X,)),
    "runge kutta": (runge_kutta, (X, 0.01)),
    "scalars": (scalars, (X, [0.1 * i for i in range(STEPS)])),
    "windows": (windows, (X,)),
    "branches": (branches, (X,)),
    "optimizer": (optimizer, (X,)),
    "masked layers": (masked_layers, (X, WEIGHTS)),
    "with identity": (with_identity, (X, WEIGHTS)),
    "loop of layers": (loop_of_layers, (X, WEIGHTS)),
}


def squares(f):
    return lambda *args: sum(fnp.sum(y * y) for y in functx.tree.leaves(f(*args)))


def check_equal(f, *args):
    plain = functx.jit(f, outline="never")(*args)
    for a, b in zip(
        jax.tree_util.tree_leaves(functx.jit(f, outline="always")(*args)),
        jax.tree_util.tree_leaves(plain),
        strict=True,
    ):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", PROGRAMS)
def test_values_are_those_of_the_flat_program(name):
    f, args = PROGRAMS[name]
    check_equal(f, *args)


@pytest.mark.parametrize("name", PROGRAMS)
def test_derivatives_are_those_of_the_flat_program(name):
    f, args = PROGRAMS[name]
    check_equal(functx.grad(squares(f)), *args)


@pytest.mark.parametrize("name", ["layers", "time steps", "nested", "scalars"])
def test_tangents_and_batches_are_those_of_the_flat_program(name):
    f, args = PROGRAMS[name]
    check_equal(lambda *args: functx.jvp(f, args, args)[1], *args)
    check_equal(functx.vmap(lambda x: f(x, *args[1:])), np.stack([args[0]] * 3))


def test_programs_in_sixty_four_bits_and_half_floats_keep_their_types(x64):
    check_equal(functx.grad(squares(time_steps)), W.astype("float64"), ROWS.astype("float64"))
    check_equal(layers, X.astype("float16"), [w.astype("float16") for w in WEIGHTS])


def program_of(f, *args):
    return functx.make_ir(functx.functionalize(f))(*args)


def kinds(program):
    return Counter(type(e.primitive) for e in program if type(e.primitive) in (Call, Scan))


def test_a_block_is_transformed_once():
    weights = [normal(6, 6) for _ in range(8)]
    with functx.config.set(outline="always"):
        program = functx.make_ir(functx.grad(squares(layers), 1))(X, weights)
        batched = functx.make_ir(functx.vmap(lambda x: layers(x, weights)))(np.stack([X] * 2))
    called = Counter(e.primitive.program for e in program if type(e.primitive) is Call)
    assert sorted(called.values())[-2:] == [7, 8]
    assert "pullback_block_1 x 7" in str(program)
    assert len({e.primitive for e in batched if type(e.primitive) is Call}) == 1


def test_what_a_block_passes_on_is_not_copied():
    with functx.config.set(outline="always"):
        program = functx.make_ir(functx.grad(squares(layers), 1))(X, WEIGHTS)
    for nested in {e.primitive.program for e in program if type(e.primitive) is Call}:
        assert {*nested.inputs}.isdisjoint(nested.outputs)


def test_a_gradient_stays_finite_where_a_block_did_not_select():
    with functx.config.set(outline="always"):
        grads = functx.grad(squares(masked_layers))(X, WEIGHTS)
    assert np.isfinite(grads).all()


def test_steps_of_a_solver_are_transformed_in_the_open():
    with functx.config.set(outline="always"):
        assert Call not in kinds(functx.make_ir(functx.grad(squares(leapfrog)))(X, W))


def test_lookups_of_large_and_small_rows_are_outside_of_the_calls_that_take_them():
    large = np.ones((4, 300), "float32"), np.ones((300, 300), "float32")
    for args in large, (X, W):
        with functx.config.set(outline="always"):
            program = functx.make_ir(functx.grad(squares(rows_of_weights), (0, 1)))(*args)
        blocks = {e.primitive.program for e in program if type(e.primitive) is Call}
        assert blocks
        assert not any(accumulates_cotangent(eqn) for block in blocks for eqn in block)
    check_equal(functx.grad(squares(rows_of_weights), (0, 1)), X, W)


def test_steps_are_one_loop_before_they_are_differentiated():
    def solve(x, w, rows):
        for t in range(STEPS):
            x = x + 0.1 * fnp.sin(x @ w) + fnp.roll(x, 1) * rows[t]
        return fnp.sum(x**2)

    args = X, W, ROWS
    with functx.config.set(outline="always"):
        program = functx.make_ir(functx.grad(solve, (0, 1, 2)))(*args)
        forward, backward = [e for e in program if type(e.primitive) is Scan]
        # A row of ROWS for each step, and a cotangent of each, not of the whole in each step.
        assert program.inputs[2] in forward.inputs
        assert backward.outputs[-1].aval.shape == ROWS.shape
        tangent = functx.make_ir(lambda *args: functx.jvp(solve, args, args))(*args)
        assert kinds(tangent) == {Scan: 1}
    check_equal(functx.grad(solve, (0, 1, 2)), *args)
    check_equal(functx.hessian(lambda x: solve(x, W, ROWS)), X)


def test_loops_that_stack_are_differentiated_in_the_open_and_lookups_are_summed_in_place():
    def backwards(x, rows):
        for t in range(STEPS):
            x = fnp.sin(x) + rows[STEPS - 1 - t]
        return x

    with functx.config.set(outline="always"):
        assert Scan not in kinds(functx.make_ir(functx.grad(squares(time_steps), 1))(W, ROWS))
        program = functx.make_ir(functx.grad(squares(backwards), 1))(X, ROWS)
    _, backward = [e.primitive.program for e in program if type(e.primitive) is Scan]
    assert not any(
        eqn.outputs[0].aval.shape == ROWS.shape and eqn.primitive.name == "add" for eqn in backward
    )


def test_gradients_stay_finite_where_the_result_of_steps_is_not_selected():
    def roots(x):
        y = x
        for _ in range(STEPS):
            y = fnp.sqrt(y) * 1.1
        return fnp.where(x > 0, y, 0.0)

    def waves(x):
        y = x / (x > 0)
        for _ in range(STEPS):
            y = fnp.sin(y) * 1.1
        return fnp.where(x > 0, y, 0.0)

    x = np.float32([1.0, 2.0, 0.0, -1.0])
    with functx.config.set(outline="always"):
        for f in roots, waves:
            assert Scan not in kinds(functx.make_ir(functx.grad(squares(f)))(x))
            assert np.isfinite(functx.grad(squares(f))(x)).all()
            assert np.isfinite(functx.jvp(f, (x,), (x,))[1]).all()


def rows_of_weights(x, w):
    weights = [w * 0.5**i for i in range(5)]
    for i, each in enumerate(weights):
        x = fnp.tanh(x @ each + w[i]) + fnp.sin(x)
    return x


def test_layers_are_calls_of_one_program_forward_and_one_backward():
    weights = [normal(6, 6) for _ in range(8)]
    program = outlined(program_of(functx.grad(squares(layers), 1), X, weights), "always")
    called = Counter(e.primitive.program for e in program if type(e.primitive) is Call)
    assert sorted(called.values())[-2:] >= [6, 6]
    assert len(program) < 30


def test_a_printed_program_says_how_often_a_block_is_called_and_parses_back():
    program = outlined(program_of(layers, X, WEIGHTS), "always")
    text = str(program)
    calls = [e for e in program if type(e.primitive) is Call]
    assert f"block_1 x {len(calls)}" in text
    assert "noinline=True" in text
    assert functx.Program.parse(text) == program


def test_steps_on_the_same_weights_are_one_loop():
    assert kinds(outlined(program_of(leapfrog, X, W), "always")) == {Scan: 1}
    program = outlined(program_of(time_steps, W, ROWS), "always")
    (loop,) = [e for e in program if type(e.primitive) is Scan]
    assert loop.primitive.length == STEPS
    assert f"iota[dtype=i32, shape=({STEPS},)]" in str(program)
    assert functx.Program.parse(str(program)) == program


def test_a_loop_backwards_looks_up_what_the_loop_forwards_stacked():
    program = outlined(program_of(functx.grad(rows_by_iteration), W, ROWS), "always")
    forwards, backwards = [e for e in program if type(e.primitive) is Scan]
    assert not {*backwards.inputs}.isdisjoint(forwards.outputs)


def test_parts_of_arrays_that_are_given_are_not_stacked_again():
    def f(w, xs):
        h = fnp.zeros((4, 6), "float32")
        for x in xs:
            h = fnp.tanh(x @ w + h @ w)
        return fnp.sum(h + fnp.sin(xs))

    program = outlined(program_of(functx.grad(f), W, ROWS), "always")
    forwards, backwards = [e for e in program if type(e.primitive) is Scan]
    xs = program.inputs[1]
    assert xs in forwards.inputs
    assert xs in backwards.inputs


def test_a_number_may_be_both_an_operand_and_the_place_of_a_row():
    def f(x, rows, n):
        for i, row in enumerate([rows[i] for i in range(4)]):
            n = n * 2 + i
            x = fnp.tanh(x + row) * n
        return x

    check_equal(f, normal(6), normal(4, 6), np.int32(1))


def test_the_length_of_the_outlined_program_does_not_grow_with_the_steps():
    def steps(count):
        def f(w, xs):
            h = fnp.zeros((4, 6), "float32")
            for t in range(count):
                h = fnp.tanh(xs[t] + h @ w)
            return fnp.sum(h)

        return len(outlined(program_of(functx.grad(f), W, normal(count, 4, 6))))

    assert steps(80) == steps(160) < 40


def test_repeats_in_repeats_are_programs_in_programs():
    def f(x, weights):
        for w in weights:
            for _ in range(4):
                x = fnp.tanh(x @ w) * 2.0 + fnp.cos(x) * fnp.sin(x * 0.5)
            x = fnp.exp(-x) + 1.0
        return x

    program = outlined(program_of(f, X, WEIGHTS), "always")
    (block,) = {e.primitive.program for e in program if type(e.primitive) is Call}
    assert kinds(block)


def test_other_literals_become_operands():
    def f(x, weights):
        for i, w in enumerate(weights):
            x = fnp.tanh(x @ w) * (i + 0.5) + fnp.sin(x)
        return x

    program = outlined(program_of(f, X, WEIGHTS), "always")
    calls = [e for e in program if type(e.primitive) is Call]
    assert len({e.primitive for e in calls}) == 1
    found = [[a.value for a in e.inputs if type(a) is not functx.core.program.Var] for e in calls]
    assert found == [[i + 0.5] for i in range(len(WEIGHTS))]


def test_other_starts_of_slices_become_operands():
    def f(x, weights):
        for i, w in enumerate(weights):
            x = x + fnp.tanh(x[:, i : i + 1] @ w[:1]) * fnp.sin(x)
        return x

    program = outlined(program_of(f, normal(4, 6), WEIGHTS), "always")
    (block,) = {e.primitive.program for e in program if type(e.primitive) is Call}
    assert "dynamic_slice" in str(block)
    check_equal(f, X, WEIGHTS)


def test_the_body_of_a_loop_is_outlined_too():
    program = outlined(program_of(loop_of_layers, X, WEIGHTS), "always")
    (loop,) = [e.primitive for e in program if type(e.primitive) is Scan]
    assert kinds(loop.program) == {Call: len(WEIGHTS)}


def test_what_has_no_operands_can_be_a_block():
    check_equal(constants)


def test_each_block_is_emitted_once_and_kept_apart():
    text = functx.jit(layers, outline="always").lower(X, WEIGHTS).as_text()
    assert text.count("func.func private @block") == 1
    assert text.count('inlineable = "false"') == len(WEIGHTS)
    assert "block" not in functx.jit(layers, outline="never").lower(X, WEIGHTS).as_text()


def test_a_long_program_is_outlined_by_default():
    weights = [normal(6, 6) for _ in range(60)]
    text = functx.jit(lambda x, weights: layers(x, weights)).lower(X, weights).as_text()
    assert text.count("func.func private @block") == 1
    # Six layers make a call of 24 operations.
    assert text.count('inlineable = "false"') == 10


def test_scalars_that_are_given_or_returned_one_by_one_stay_in_the_open():
    many = [float(i) for i in range(150)]
    gradient = functx.grad(lambda *xs: sum(x * x for x in xs), argnums=tuple(range(150)))
    assert "while" not in functx.jit(gradient).lower(*many).as_text()
    assert "while" not in functx.jit(lambda x: [x * i for i in many]).lower(1.0).as_text()


def test_a_short_program_stays_flat_by_default():
    program = program_of(layers, X, WEIGHTS)
    assert outlined(program) == program
    assert outlined(program, "never") == program


def test_the_switch_forces_and_forbids():
    def text():
        return functx.jit(lambda x, w: layers(x, w)).lower(X, WEIGHTS).as_text()

    with functx.config.set(outline="always"):
        assert "block" in text()
    assert "block" not in text()
    with pytest.raises(ValueRangeError, match="outline must be one of"):
        functx.config.outline = "sometimes"


def test_a_mode_that_is_none_is_refused():
    with pytest.raises(ValueRangeError, match="jit: outline must be one of"):
        functx.jit(layers, outline="all")
    with pytest.raises(ValueRangeError, match="outlined: mode must be one of"):
        outlined(program_of(layers, X, WEIGHTS), "all")
    with pytest.raises(ValueRangeError, match="jit: outline must be one of"):
        functx.jit(layers, outline=X)
    with pytest.raises(ArgumentError, match="outlined: the argument must be a program; got func"):
        outlined(layers)
    with pytest.raises(ArgumentError, match="name of an option"):
        functx.config.update("outlines", "never")
    with pytest.raises(ArgumentError, match="name of an option"):
        functx.config.outlines = "never"
    with pytest.raises(ArgumentError, match="name of an option"), functx.config.set(outlines=1):
        pass
    with pytest.raises(ArgumentError, match="got 3"):
        functx.config.update(3, "never")


def test_effects_keep_their_order(capfd):
    def f(x, weights):
        for i, w in enumerate(weights):
            x = fnp.tanh(x @ w) * 2.0 + fnp.sin(x)
            functx.debug.print("layer {} {}", i, fnp.sum(x), ordered=True)
        return x

    shown = []
    for mode in ("never", "always"):
        functx.jit(f, outline=mode)(X, WEIGHTS)
        functx.effects_barrier()
        shown.append([line.split()[1] for line in capfd.readouterr().out.splitlines()])
    assert shown[0] == shown[1] == [str(i) for i in range(len(WEIGHTS))]


def test_callbacks_are_called_once_each():
    seen = []

    def f(x):
        for i in range(STEPS):
            x = fnp.tanh(x) * 2.0 + fnp.sin(x)
            functx.debug.callback(lambda i: seen.append(int(i)), i)
        return x

    functx.jit(f, outline="always")(X)
    functx.effects_barrier()
    assert sorted(seen) == list(range(STEPS))


def test_a_program_in_which_values_change_stays_as_it_is():
    program = functx.make_ir(buffer)(X)
    assert program.writes
    assert outlined(program, "always") == program


def lines_run(run):
    """How many lines of Python `run()` takes."""
    count = 0

    def line(frame, event, arg):
        nonlocal count
        count += event == "line"
        return line

    before = sys.gettrace()
    sys.settrace(line)
    try:
        run()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("name", ["layers", "steps", "random"])
def test_the_effort_is_linear_in_the_length_of_the_program(name):
    def program(count):
        if name == "layers":
            weights = [normal(6, 6) for _ in range(count)]
            return program_of(functx.grad(squares(layers), 1), X, weights)
        if name == "steps":
            return program_of(functx.grad(squares(steps_of_one(count))), X, W)
        return program_of(unlike(count * 10), X)

    efforts = []
    for count in (40, 80, 160):
        with functx.config.set(outline="never"):
            given = program(count)
        Outline("always")(given)
        efforts.append(lines_run(lambda given=given: Outline("always")(given)) / len(given))
    assert efforts[2] < 1.3 * efforts[0]


def steps_of_one(count):
    def f(x, w):
        for _ in range(count):
            x = fnp.tanh(x @ w) + fnp.sin(x) * 0.5
        return x

    return f


def unlike(count):
    """A program whose equations follow each other at random."""
    choices = [fnp.sin, fnp.cos, fnp.tanh, fnp.exp, fnp.abs, fnp.square]
    order = random.randint(0, len(choices), count)

    def f(x):
        for i in order:
            x = choices[i](x)
        return x

    return f


GIVES_ONE_VALUE_TWICE = """
program f(x: f32[2,3], y: f32[2,3]):
  a: f32[2,3], b: f32[2,3] = call[program=block, noinline=True] x
    program block(x: f32[2,3]):
      a: f32[2,3] = sin x
      b: f32[2,3] = sin x
      return a, b
  c: f32[2,3] = rev[axes=(0,)] b
  d: f32[2,3] = cos y
  e: f32[2,3] = mul a d
  f: f32[2,3] = add c e
  return f
"""
GETS_ONE_VALUE_TWICE = """
program f(x: f32[2,3], y: f32[2,3]):
  a: f32[2,3] = sin x
  b: f32[2,3] = sin x
  c: f32[2,3], d: f32[2,3], e: f32[2,3] = call[program=block, noinline=True] a b y
    program block(x: f32[2,3], y: f32[2,3], z: f32[2,3]):
      a: f32[2,3] = rev[axes=(0,)] x
      b: f32[2,3] = cos y
      c: f32[2,3] = mul a b
      return c, b, z
  f: f32[2,3] = add c d
  g: f32[2,3] = mul f e
  return g
"""


@pytest.mark.parametrize("text", [GIVES_ONE_VALUE_TWICE, GETS_ONE_VALUE_TWICE])
def test_a_call_that_is_kept_apart_gets_and_gives_no_value_twice(text, optimised):
    program = functx.Program.parse(text)
    x, y = normal(2, 3), normal(2, 3)
    once = DeduplicateCalls()(program)
    (call,) = [eqn for eqn in once if type(eqn.primitive) is Call]
    assert len({*call.inputs}) == len(call.inputs)
    outputs = call.primitive.program.outputs
    assert len({*outputs}) == len(outputs) == len(call.outputs)
    np.testing.assert_allclose(once(x, y), program(x, y), rtol=1e-6)
    found = functx.jit(program)(x, y)
    sine = np.sin(x)
    if text is GIVES_ONE_VALUE_TWICE:
        wanted = sine[::-1] + sine * np.cos(y)
    else:
        wanted = (sine[::-1] * np.cos(sine) + np.cos(sine)) * y
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
