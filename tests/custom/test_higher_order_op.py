"""Higher-order operations of users: their rules under every transform, and what is missing or wrong."""

import pickle
from contextlib import contextmanager

import jax
import numpy as np
import pytest

import functx
import functx.numpy as xp
from functx import Program, aot, debug, effects, lax
from functx.autograd import Variable
from functx.core.errors import (
    ArgumentError,
    ArgumentWriteError,
    MissingHigherOrderRuleError,
    OperatorNameError,
    OperatorRuleError,
    RegistrationError,
    RuleError,
    StaticArgumentError,
    TreeError,
    ValueRangeError,
)
from functx.custom import HigherOrderOp

X = np.arange(1, 4, dtype=np.float32)
W = np.array([0.5, 0.25, 2], np.float32)
XS, WS = np.stack([X, 2 * X]), np.stack([W, -W])

twice = HigherOrderOp("higher_order_test::twice")


@twice.def_rule("lowering")
def twice_lowering(f, x):
    return f(f(x))


@twice.def_rule("vmap")
def twice_vmap(info, in_dims, f, x):
    if in_dims[1] is None:
        x = xp.broadcast_to(x, (info.batch_size, *x.shape))
    return twice(f.vmap(0), x), 0


def twice_jvp(primals, tangents):
    (_, x), (df, dx) = primals, tangents
    y, dy = df((x,), (dx,))
    return df((y,), (dy,))


def twice_vjp(f, x):
    y, first = f.vjp(x)
    z, second = f.vjp(y)

    def pullback(ct):
        df_of_second, dy = second(ct)
        df_of_first, dx = first(dy)
        return sum([df_of_second, df_of_first]), dx

    return z, pullback


@twice.def_rule("functionalize")
def twice_functionalize(state, f, x):
    y, state = f(state, x)
    return f(state, y)


@pytest.fixture(params=["jvp", "vjp", "both"])
def derivatives(request):
    """`twice` with these derivative rules alone."""
    with functx.decomp.scoped():
        if request.param != "vjp":
            twice.def_rule("jvp", twice_jvp)
        if request.param != "jvp":
            twice.def_rule("vjp", twice_vjp)
        yield request.param


def loss(op):
    def f(w, x):
        return (op(lambda y: xp.sin(w * y), x) * x).sum()

    return f


def agree(transform, *args, of=loss):
    found, wanted = transform(of(twice))(*args), transform(of(twice_lowering))(*args)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_a_call_is_one_equation_that_prints_parses_and_pickles():
    program = functx.make_ir(loss(twice))(W, X)
    assert [eqn.primitive.name for eqn in program] == [
        "higher_order_test::twice",
        "mul",
        "reduce_sum",
    ]
    assert "higher_order_test::twice[programs=(lambda,), captures=(1,)] x w" in str(program)
    assert Program.parse(str(program)) == program == pickle.loads(pickle.dumps(program))
    program.lint()
    opened = functx.make_ir(functx.decompose(loss(twice)))(W, X)
    assert [eqn.primitive.name for eqn in opened][:4] == ["mul", "sin", "mul", "sin"]


def test_values_and_batches_are_those_of_the_lowering_rule():
    agree(lambda f: f, W, X)
    agree(functx.jit, W, X)
    agree(lambda f: functx.vmap(f, (None, 1)), W, XS.T)
    agree(lambda f: functx.vmap(f, (0, None)), WS, X)
    agree(lambda f: functx.vmap(functx.vmap(f, (None, 0)), (0, None)), WS, XS)
    agree(lambda f: jax.vmap(functx.jit(f)), WS, XS)


def test_derivatives_of_each_kind_of_rule_reach_the_function_and_what_it_closes_over(derivatives):
    agree(lambda f: lambda *args: functx.jvp(f, args, args), W, X)
    agree(lambda f: functx.jit(functx.hessian(f)), W, X)
    agree(lambda f: functx.grad(f, (0, 1)), W, X)
    agree(lambda f: functx.jit(functx.vmap(functx.grad(f, (0, 1)), (0, None))), WS, X)
    agree(lambda f: functx.grad(lambda *args: functx.vmap(f)(*args).sum()), WS, XS)
    agree(lambda f: jax.grad(functx.jit(f)), W, X)
    if derivatives != "jvp":
        agree(lambda f: functx.jacrev(functx.jacrev(f, (0, 1)), (0, 1)), W, X)


def test_calls_in_loops_branches_and_checkpoints_are_differentiated(derivatives):
    def loop(op):
        def f(w, x):
            step = functx.checkpoint(loss(op))
            c, _ = lax.scan(lambda c, r: (c * xp.cos(step(w, r)), None), w, xp.stack([x, 2 * x]))
            return lax.cond(c.sum() > -9, loss(op), lambda w, x: x.sum(), c, x)

        return f

    agree(lambda f: functx.jit(functx.grad(f, (0, 1))), W, X, of=loop)


def test_nested_calls_and_functions_of_pytrees(derivatives):
    def nested(op):
        def f(w, x):
            def inner(d):
                return {"a": d["b"], "b": op(lambda y: y * w, d["a"])}

            return op(inner, {"a": x, "b": w})["a"].sum()

        return f

    agree(lambda f: functx.grad(f, (0, 1)), W, X, of=nested)


def test_writes_to_arrays_around_the_function_go_through_the_rule():
    def writer(op):
        def f(x):
            counts, total = xp.zeros(3, "f"), xp.zeros((), "f")
            tail = counts[1:]

            def step(y):
                tail[...] += y[1:]
                total[...] = total + counts.sum()
                return y * 2 + counts

            return (op(step, x) * counts).sum() + total

        return f

    agree(lambda f: f, X, of=writer)
    agree(functx.jit, X, of=writer)
    agree(functx.grad, X, of=writer)
    agree(lambda f: functx.jit(functx.vmap(functx.grad(f))), XS, of=writer)


def test_a_function_communicates_across_the_batch():
    def f(x):
        return twice(lambda y: y - lax.pmean(y, "i"), x)

    np.testing.assert_allclose(functx.vmap(f, axis_name="i")(XS), XS - XS.mean(0))


def test_a_call_of_mixed_arguments_parses_and_pickles():
    with operation("mixed", lowering=lambda x, f, d, g: (f(x, d), g(x, d))) as mixed:

        def f(x):
            return mixed(x, lambda a, d: a * d["k"], {"k": x}, lambda a, d: a + d["k"])

        program = functx.make_ir(f)(X)
        assert "structure=<CallStructure>" in str(program)
        assert Program.parse(str(program)) == program == pickle.loads(pickle.dumps(program))
        for found, wanted in zip(functx.jit(f)(X), (X * X, 2 * X), strict=True):
            np.testing.assert_array_equal(found, wanted)


def test_draws_of_a_function_go_through_the_rule():
    def noisy(x):
        return twice(lambda y: y + functx.random.rand(3), x)

    def seeded(transform, *args):
        functx.random.seed(3)
        return np.asarray(transform(noisy)(*args))

    eager = seeded(lambda f: f, X)
    np.testing.assert_array_equal(seeded(functx.jit, X), eager)
    same, different = (
        seeded(lambda f, mode=mode: functx.vmap(f, randomness=mode), np.stack([X, X]))
        for mode in ("same", "different")
    )
    np.testing.assert_array_equal(same, np.stack([eager, eager]))
    assert (different[0] != different[1]).all()


@contextmanager
def operation(name, **rules):
    op = HigherOrderOp(f"higher_order_test_{name}")
    with functx.decomp.scoped():
        for transform, rule in rules.items():
            op.def_rule(transform, rule)
        yield op
    del functx.Primitive.registry[op.name]


def test_an_operation_needs_no_function_and_takes_static_options():
    with operation("total", lowering=lambda x, axis: xp.sum(x, axis)) as total:

        @total.def_rule(functx.vjp)
        def total_vjp(x, axis):
            return total(x, axis=axis), lambda ct: (
                xp.broadcast_to(xp.expand_dims(ct, axis), x.shape),
            )

        total.def_rule("vmap", lambda info, dims, x, axis: (total(x, axis=axis + 1), 0))
        assert functx.jit(lambda x: total(x, axis=0))(X) == 6 == total(X, axis=0)
        grad = functx.grad(lambda x: total(x**3, axis=0))
        np.testing.assert_allclose(functx.vmap(grad)(XS), 3 * XS**2)
        np.testing.assert_allclose(functx.jacrev(grad)(X), np.diag(6 * X))
        text = str(functx.make_ir(lambda x: total(x, axis=0))(X))
        assert "[options=(('axis', 0),)]" in text
        with pytest.raises(StaticArgumentError, match=r"`axis` must be hashable(.|\n)*by position"):
            functx.jit(lambda x: total(x, axis=x))(X)


def test_a_missing_rule_names_the_operation_and_the_transform():
    calls = {
        "vmap": lambda op: functx.vmap(lambda x: op(xp.sin, x))(XS),
        "vjp": lambda op: functx.grad(lambda x: op(xp.sin, x).sum())(X),
        "jvp": lambda op: functx.jvp(lambda x: op(xp.sin, x), (X,), (X,)),
    }
    with operation("bare", lowering=lambda f, x: f(x)) as op:
        for transform, call in calls.items():
            with pytest.raises(
                NotImplementedError, match=f"test_bare: .*for {transform} here"
            ) as e:
                call(op)
            assert f'def_rule("{transform}")' in e.value.fix

        def writes(x):
            n = xp.zeros(())

            def f(y):
                n[...] = y.sum()
                return y

            return op(f, x) + n

        with pytest.raises(MissingHigherOrderRuleError, match="for functionalize here"):
            functx.jit(writes)(X)
    with operation("empty") as op, pytest.raises(NotImplementedError, match=r"lowering.*nothing"):
        op(xp.sin, X)


def test_results_of_wrong_rules_are_refused():
    def vjp_of(pullback):
        def rule(f, x):
            out, pull = f.vjp(x)
            return out, (lambda ct: pullback(*pull(ct))) if callable(pullback) else pullback

        return rule

    wrong = [
        (vjp_of(3), OperatorRuleError, "a function as pullback; got int"),
        (vjp_of(lambda df, dx: (dx,)), OperatorRuleError, "gives 2 cotangents"),
        (vjp_of(lambda df, dx: (None, dx)), OperatorRuleError, "closes over values that are diff"),
        (vjp_of(lambda df, dx: (df, dx[0])), RuleError, r"got f32\[\] where f32\[3\]"),
        (lambda f, x: f(x), RuleError, "must be a pair"),
    ]
    with operation("wrong", lowering=lambda f, x: f(x)) as op:
        for rule, error, message in wrong:
            op.def_rule("vjp", rule, allow_override=True)
            with pytest.raises(error, match=message):
                functx.grad(lambda w: op(lambda y: w * y, X).sum())(W)
        batched = functx.vmap(lambda w: op(lambda y: w * y, X))
        wrong = [
            (lambda info, dims, f, x: (f(x), 0), ArgumentError, "must be mapped"),
            (lambda info, dims, f, x: f.vmap(None)(x), OperatorRuleError, "return a pair"),
            (lambda info, dims, f, x: (f.vmap(None)(x), 5), OperatorRuleError, "got 5"),
        ]
        for rule, error, message in wrong:
            op.def_rule("vmap", rule, allow_override=True)
            with pytest.raises(error, match=message):
                batched(WS)
        program = functx.make_ir(lambda y, z: y * z)(X, X)
        with pytest.raises(TreeError, match="the structure that the function was traced for"):
            functx.jit(lambda x: op(program, x))(X)
        double = functx.make_ir(lambda y: 2 * y)(X)
        np.testing.assert_array_equal(functx.jit(lambda x: op(double, x))(X), 2 * X)

        def writes(y):
            y[0] = 1.0
            return y

        with pytest.raises(ArgumentWriteError, match="`writes`"):
            functx.jit(lambda x: op(writes, x))(X)


def test_effects_of_functions_and_of_the_operation_are_kept():
    seen = []

    def noted(y):
        debug.callback(lambda y: seen.append(float(y.sum())), y, ordered=True)
        return y * y

    with operation("noted", lowering=lambda f, x: f(x)) as op:
        op.def_rule("jvp", lambda primals, tangents: tangents[0](primals[1:], tangents[1:]))
        slope = functx.jit(functx.grad(lambda x: op(noted, x).sum()))(X)
        functx.effects_barrier()
        np.testing.assert_allclose(slope, 2 * X)
        assert seen == [6.0]
        unused = functx.jit(lambda x: (op(xp.sin, x), x)[1])
        assert not functx.make_ir(unused)(X).effects
        with effects.register(op, effects.ORDERED):
            program = aot.with_tokens(functx.make_ir(lambda x: (op(xp.sin, x), x)[1])(X))
            assert [eqn.primitive.name for eqn in program] == ["with_effects"]
            assert effects.registered(op.name) is effects.ORDERED


def test_variables_go_through_an_operation(derivatives):
    v = Variable(X, requires_grad=True)
    twice(lambda y: y * v, v).sum().backward()
    np.testing.assert_allclose(v.grad, 3 * X**2)


def test_mistakes_in_definitions():
    for name in ("a b", "a::b::c", 3):
        with pytest.raises(OperatorNameError, match="must be an identifier"):
            HigherOrderOp(name)
    for name in ("sin", twice.name):
        with pytest.raises(RegistrationError, match=f"got '{name}' again"):
            HigherOrderOp(name)
    with pytest.raises(ValueRangeError, match=r"got 'grad'(.|\n)*that of vjp"):
        twice.def_rule("grad")
    with pytest.raises(
        RegistrationError, match=r"lowering must be registered once(.|\n)*allow_over"
    ):
        twice.def_rule("lowering", twice_lowering)
    with pytest.raises(ArgumentError, match="must be a function; got int"):
        twice.def_rule("jvp", 3)
