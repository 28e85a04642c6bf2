"""Effects that users register for operators: kept, in order, once, and at once."""

from contextlib import ExitStack

import jax
import numpy as np
import pytest

import functx
import functx.numpy as xp
from functx import Program, effects, lax
from functx.core.errors import (
    AliasingEffectError,
    ArgumentError,
    EffectError,
    OperatorNameError,
    ParseError,
    RegistrationError,
)

LOG = effects.Effect("log")
X = np.arange(3, dtype=np.float32)


@pytest.fixture
def seen():
    return []


@pytest.fixture
def operators(seen):
    """Two operators of NumPy code and one of JAX code, which note their calls, and add 1."""

    def note(name, x):
        seen.append((name, float(x.sum())))
        return x + 1

    def partial_note(name):
        return lambda x: note(name, x)

    def make(name, kernel, language):
        op = functx.custom_op(
            f"effects_test::{name}", kernel, schema="(Array x) -> Array", kernel=language
        )
        op.def_abstract(lambda x: x)
        op.register_autograd(lambda ctx, ct: ct)
        return op

    def of_jax(x):
        jax.debug.callback(lambda x: note("j", x), x, ordered=True)
        return x + 1

    a, b = (make(name, partial_note(name), "numpy") for name in "ab")
    made = [a, b, make("j", of_jax, "jax")]
    yield made
    for op in made:
        functx.library.destroy(op)


@pytest.fixture
def registered(operators):
    a, b, j = operators
    with ExitStack() as stack:
        stack.enter_context(effects.register(a, effects.ORDERED))
        stack.enter_context(effects.register("effects_test::b", LOG))
        stack.enter_context(effects.register(j, LOG))
        yield operators


def unused(ops):
    a, b, j = ops

    def f(x):
        a(x)
        b(2 * x)
        a(x)
        j(x)
        return x.sum()

    return f


def calls(*sums):
    """The calls of `unused` on elements with these sums, one after the other for each operator."""
    factors = ("a", 1), ("b", 2), ("a", 1), ("j", 1)
    return [(name, factor * s) for name, factor in factors for s in sums]


def run(seen, fun, *args):
    seen.clear()
    out = fun(*args)
    functx.effects_barrier()
    return out, list(seen)


def test_a_call_with_an_effect_stays_where_nobody_uses_its_result(operators):
    f = unused(operators)
    assert [eqn.primitive.name for eqn in functx.make_ir(f)(X)] == ["reduce_sum"]
    with effects.register(operators[0], effects.ORDERED), effects.register(operators[1], LOG):
        program = functx.make_ir(f)(X)
        names = [eqn.primitive.name for eqn in program]
        assert names == [
            "effects_test::" + "a",
            "mul",
            "effects_test::b",
            "effects_test::a",
            "reduce_sum",
        ]
        assert str(program).splitlines()[0] == "program f(x: f32[3]) with log, ordered:"
        assert Program.parse(str(program)) == program
        with pytest.raises(ParseError, match="`log`"):
            Program.parse(str(program).replace("with log", "with lag"))
    assert program.effects == frozenset()


def test_calls_run_once_in_the_order_of_the_program_under_every_transform(registered, seen):
    f, rows = unused(registered), np.stack([X, 2 * X])
    grad = functx.jit(functx.grad(f))
    assert run(seen, f, X)[1] == calls(3)
    assert run(seen, functx.jit(f), X)[1] == calls(3)
    assert run(seen, grad, X)[1] == calls(3)
    assert run(seen, jax.grad(functx.jit(f)), X)[1] == calls(3)
    assert run(seen, functx.grad(functx.checkpoint(f)), X)[1] == calls(3)
    assert run(seen, functx.vmap(functx.grad(f)), rows)[1] == calls(3, 6)


def test_calls_run_in_order_in_loops_and_branches(registered, seen):
    f = unused(registered)

    def loop(x):
        return lax.scan(lambda c, _: ((f(c), c + 1)[1], None), x, None, 2)[0].sum()

    def branch(x):
        return lax.cond(x.sum() > 0, f, lambda x: x.sum(), x)

    def until(x):
        return lax.while_loop(lambda c: c.sum() < 8, lambda c: (f(c), c + 1)[1], x)

    assert run(seen, functx.jit(functx.grad(loop)), X)[1] == calls(3) + calls(6)
    assert run(seen, functx.jit(branch), X)[1] == calls(3)
    assert run(seen, functx.jit(branch), -X)[1] == []
    assert run(seen, functx.jit(until), X)[1] == calls(3) + calls(6)
    # Each element on its own, since only one reaches the branch.
    rows = np.stack([-X, X])
    assert run(seen, functx.vmap(branch), rows)[1] == calls(3)
    steps = [-3, 0, 3, 6], [3, 6]
    _, found = run(seen, functx.vmap(until), rows)
    assert found == [call for sums in steps for s in sums for call in calls(s)]


def test_unrolled_calls_are_neither_merged_nor_left_out(registered, seen):
    a = registered[0]

    def repeated(x):
        for _ in range(6):
            a(X)
            x = xp.sin(a(x))
        return x

    out, found = run(seen, functx.jit(repeated), X)
    assert len(found) == 12 and found[::2] == [("a", 3.0)] * 6
    np.testing.assert_allclose(out, repeated(X), rtol=1e-6)


def test_an_effect_holds_at_once_and_its_removal_too(operators, seen):
    f = functx.jit(unused(operators))
    looped = functx.make_ir(
        lambda x: lax.scan(lambda c, _: (operators[1](c), None), x, None, 2)[0]
    )(X)
    assert run(seen, f, X) == (3.0, [])
    first = effects.register(operators[1], effects.ORDERED)
    assert run(seen, f, X) == (3.0, [("b", 6.0)])
    assert looped.effects == {effects.ORDERED} == looped.equations[0].primitive.effects
    second = effects.register(operators[1], LOG)
    assert looped.effects == {LOG}
    first.remove()
    assert effects.registered("effects_test::b") is LOG
    with effects.register(operators[1], None):
        assert run(seen, f, X) == (3.0, []) and not looped.effects
    assert run(seen, f, X) == (3.0, [("b", 6.0)])
    for _ in range(2):
        second.remove()
    assert run(seen, f, X) == (3.0, []) and not looped.effects
    with functx.decomp.scoped():
        effects.register(operators[1], LOG)
        assert looped.equations[0].primitive.is_context_dependent
    assert effects.registered(operators[1]) is None and not looped.effects
    with pytest.raises(OperatorNameError, match=r"effects\.registered: there must be an operator"):
        effects.registered("effects_test::none")


def test_a_jvp_rule_runs_the_effect_once_whether_it_calls_the_operator_or_not(seen):
    def rules(op):
        yield lambda p, t: (p.x * p.x, 2 * p.x * t.x)
        yield lambda p, t: (op(p.x), 2 * p.x * t.x)
        yield lambda p, t: ((y := op(p.x)), 2 * (y / p.x) * t.x)

    @functx.custom_op("effects_test::square", kernel="numpy")
    def square(x: functx.Array) -> functx.Array:
        seen.append(float(x.sum()))
        return x * x

    square.def_abstract(lambda x: x)
    effects.register(square, LOG)
    x = X + 1
    for rule in rules(square):
        square.def_jvp(rule)
        for derivative in (
            functx.jit(functx.grad(lambda x: square(x).sum())),
            lambda x: functx.jvp(square, (x,), (x / x,))[1],
            lambda x: functx.linearize(square, x)[1](x / x),
        ):
            slope, found = run(seen, derivative, x)
            np.testing.assert_allclose(slope, 2 * x)
            assert found == [6.0]
    functx.library.destroy(square)


def test_a_backward_rule_runs_its_effect_once_in_forward_mode(seen):
    def make(name, rule):
        op = functx.custom_op(
            f"effects_test::{name}",
            lambda x: seen.append((name, float(x.sum()))) or x.copy(),
            schema="(Array x) -> Array",
            kernel="numpy",
        )
        op.def_abstract(lambda x: x)
        op.register_autograd(lambda ctx, ct: rule(ct))
        effects.register(op, effects.ORDERED)
        return op

    probe = make("probe", lambda ct: probe(ct))
    plain = make("plain", lambda ct: ct)
    calls_plain = make("calls_plain", lambda ct: plain(ct))

    def tangent(f):
        return lambda x: functx.jvp(f, (x,), (x,))[1]

    def notes(f, x):
        seen.clear()
        f(x)
        functx.effects_barrier()
        return seen[:]

    def loss(x):
        return probe(x * 3).sum()

    # The second call is on the tangent, the last one of `grad` on the cotangent.
    once, rows = [("probe", 9.0)], np.stack([X, 2 * X])
    assert notes(tangent(loss), X) == once * 2
    assert notes(functx.jit(tangent(tangent(loss))), X) == once * 4
    assert notes(functx.vmap(tangent(loss)), rows) == [("probe", 9.0), ("probe", 18.0)] * 2
    assert notes(functx.grad(tangent(loss)), X) == [*once * 2, ("probe", 3.0)]
    # A rule without an effect leaves it to the call, at zero.
    assert notes(tangent(calls_plain), X) == [("calls_plain", 3.0), ("plain", 0.0)]
    for op in (probe, plain, calls_plain):
        functx.library.destroy(op)


def test_an_effect_with_results_is_not_computed_again(registered):
    a = registered[0]
    grad = functx.grad(functx.checkpoint(lambda x: (a(x) * x).sum()))
    np.testing.assert_allclose(grad(X), 2 * X + 1)
    with pytest.raises(EffectError, match="must not be needed while a function is traced"):
        functx.grad(lambda x: x.sum() if a(x).sum() > 0 else -x.sum())(X)


def test_an_operator_that_writes_or_returns_an_argument_has_no_effect(operators):
    @functx.custom_op("effects_test::fill", mutates_args=("x",))
    def fill(x: functx.Array) -> None: ...

    @functx.custom_op("effects_test::made", decomposition=True)
    def made(x: functx.Array) -> functx.Array:
        return 2 * x

    with pytest.raises(AliasingEffectError, match=r"writes to an argument(.|\n)*new array"):
        effects.register(fill, LOG)
    with pytest.raises(RegistrationError, match="decomposition"):
        effects.register(made, LOG)
    with pytest.raises(RegistrationError, match="sin is a primitive"):
        effects.register(functx.ops.Sin, LOG)
    with pytest.raises(OperatorNameError, match="effects_test::none"):
        effects.register("effects_test::none", LOG)
    with pytest.raises(ArgumentError, match=r"got str 'log'(.|\n)*Effect\(\"log\"\)"):
        effects.register(operators[0], "log")
    with pytest.raises(ArgumentError, match=r"got write(.|\n)*mutates_args"):
        effects.register(operators[0], effects.Effect.WRITE)
    with pytest.raises(ArgumentError, match="must be an identifier; got str 'a b'"):
        effects.Effect("a b")
    for op in (fill, made):
        functx.library.destroy(op)
