"""Effect tokens: the order of effects as dataflow, and the order in which effects take place."""

import numpy as np
import pytest

import functx
from functx import Program, aot, debug, effects, lax
from functx.core.errors import ArgumentError, MissingTokenError
from functx.ops.effect_tokens import TOKEN, WithEffects

X = np.arange(3, dtype=np.float32)
EMPTY = np.zeros(0, bool)
LOG = effects.Effect("log")


@pytest.fixture
def seen():
    return []


@pytest.fixture
def operators(seen):
    """Two operators that note their calls: one of the kind "ordered", one of the kind "log"."""
    made = []
    for name, kind in (("a", effects.ORDERED), ("b", LOG)):

        def kernel(x, name=name):
            seen.append((name, float(x.sum())))
            return x + 1

        op = functx.custom_op(
            f"tokens_test::{name}", _of_one(kernel), schema="(Array x) -> Array", kernel="numpy"
        )
        op.def_abstract(lambda x: x)
        op.register_autograd(lambda ctx, ct: ct)
        effects.register(op, kind)
        made.append(op)
    yield made
    for op in made:
        functx.library.destroy(op)


def _of_one(kernel):
    return lambda x: kernel(x)


def run(seen, fun, *args):
    seen.clear()
    out = fun(*args)
    functx.effects_barrier()
    return out, list(seen)


def lines(program):
    return [" ".join(line.split("#")[0].split()) for line in str(program).splitlines()]


def in_any_order(x):
    return None


def prints(x):
    debug.print("first {}", x, ordered=True)
    debug.print("then {}", x, ordered=True)
    return x * 2


def everywhere(operators):
    """A function with effects of two kinds in calls, loops, branches and checkpoints."""
    a, b = operators

    def f(x):
        a(x)
        c, _ = lax.scan(lambda c, _: (b(c), a(c).sum()), b(x), None, 2)
        c = lax.cond(c.sum() > 0, a, lambda c: c * 2, c)
        c = lax.while_loop(lambda c: c.sum() < 25, lambda c: (b(c), c + 1)[1], c, max_steps=4)
        c = functx.checkpoint(lambda c: a(c) * c)(functx.jit(a)(c))
        return c.sum()

    return f


def test_tokens_go_from_each_print_to_the_next(capfd):
    program = aot.with_tokens(functx.make_ir(prints)(X))
    assert lines(program) == [
        "program prints(token: bool[0], x: f32[3]) with ordered:",
        "a: bool[0] = with_effects[operation=@debug_callback[callback=<print 'first {}'>, "
        "ordered=True]] token x",
        "b: bool[0] = with_effects[operation=@debug_callback[callback=<print 'then {}'>, "
        "ordered=True]] a x",
        "c: f32[3] = mul x 2.0:f32",
        "return b, c",
    ]
    assert Program.parse(str(program)) == program
    token, out = program(EMPTY, X)
    functx.effects_barrier()
    assert capfd.readouterr().out == "first [0. 1. 2.]\nthen [0. 1. 2.]\n"
    assert token.shape == (0,) and token.dtype == bool
    np.testing.assert_array_equal(out, 2 * X)


def test_each_kind_has_a_chain_of_its_own(operators):
    a, b = operators

    def f(x):
        b(x)
        a(x)
        b(a(x))
        debug.callback(in_any_order, x)
        return x

    program = functx.make_ir(f)(X)
    assert aot.token_kinds(program) == (LOG, effects.ORDERED)
    assert lines(aot.with_tokens(program)) == [
        "program f(log_token: bool[0], ordered_token: bool[0], x: f32[3]) with callback, log, ordered:",
        "a: bool[0], _: f32[3] = with_effects[operation=@tokens_test::b, kinds=('log',)] log_token x",
        "b: bool[0], _: f32[3] = with_effects[operation=@tokens_test::a] ordered_token x",
        "c: bool[0], d: f32[3] = with_effects[operation=@tokens_test::a] b x",
        "e: bool[0], _: f32[3] = with_effects[operation=@tokens_test::b, kinds=('log',)] a d",
        "() = debug_callback[callback=<in_any_order>] x",
        "return e, c, x",
    ]
    swapped = aot.with_tokens(program, (effects.ORDERED, LOG, effects.Effect("never")))
    assert swapped.input_names() == ["ordered_token", "log_token", "never_token", "x"]
    # A token that no effect needs comes back as it was.
    assert swapped.outputs[2] is swapped.inputs[2]


def test_loops_branches_and_calls_take_and_return_tokens(operators, seen):
    program = functx.make_ir(everywhere(operators))(X)
    with_tokens = aot.with_tokens(program)
    for each in with_tokens.walk():
        for eqn in each:
            if eqn.primitive.effects:
                assert eqn.outputs[0].aval is TOKEN, eqn
                assert any(a.aval is TOKEN for a in eqn.inputs)
    assert Program.parse(str(with_tokens)) == with_tokens
    with_tokens.lint()
    (*tokens, out), found = run(seen, functx.jit(with_tokens), EMPTY, EMPTY, X)
    assert [token.shape for token in tokens] == [(0,), (0,)]
    assert (out, found) == run(seen, functx.jit(program), X)
    assert len(found) > 8


def test_a_program_with_tokens_is_transformed_like_one_without(operators, seen):
    program = functx.make_ir(everywhere(operators))(X)
    with_tokens = aot.with_tokens(program)
    rows = np.stack([X, 2 * X])

    def result(x):
        return with_tokens(EMPTY, EMPTY, x)[-1]

    for transform, x in ((functx.grad, X), (functx.vmap, rows)):
        out, found = run(seen, functx.jit(transform(result)), x)
        wanted, calls = run(seen, functx.jit(transform(program)), x)
        np.testing.assert_allclose(out, wanted)
        assert found == calls
    batched = functx.vmap(with_tokens, (None, None, 0), (None, None, 0))
    tokens = batched(EMPTY, EMPTY, rows)[:2]
    assert [token.shape for token in tokens] == [(0,), (0,)]


def test_a_loop_whose_condition_has_effects_is_one_effect(operators, seen):
    a, b = operators
    program = functx.make_ir(
        lambda x: lax.while_loop(lambda c: a(c).sum() < 9, lambda c: (b(c), c + 1)[1], x)
    )(X)
    with_tokens = aot.with_tokens(program)
    (eqn,) = with_tokens
    assert type(eqn.primitive) is WithEffects
    assert eqn.primitive.kinds == ("log", "ordered")
    assert Program.parse(str(with_tokens)) == with_tokens
    assert run(seen, with_tokens, EMPTY, EMPTY, X)[1] == run(seen, program, X)[1]


def test_a_program_without_ordered_effects_needs_no_tokens():
    program = functx.make_ir(lambda x: debug.callback(lambda x: None, x) or x)(X)
    assert aot.with_tokens(program) is program and aot.token_kinds(program) == ()


def test_tokens_of_a_checkpoint_are_not_computed_again():
    def f(x):
        debug.print("once {}", x, ordered=True)
        return (x * x).sum()

    program = aot.with_tokens(functx.make_ir(functx.checkpoint(f))(X))
    grad = functx.make_ir(functx.grad(lambda x: program(EMPTY, x)[1]))(X)
    printed = [e for p in grad.walk() for e in p if e.primitive.name == "debug_callback"]
    assert len(printed) == 1
    np.testing.assert_allclose(grad(X), 2 * X)


@pytest.mark.parametrize(
    "partition", [aot.default_partition, aot.min_cut_rematerialization_partition]
)
def test_the_backward_program_of_a_partition_has_its_own_tokens_behind_all_else(
    operators, seen, partition
):
    a, b = operators

    @functx.custom_vjp
    def doubled(x):
        return 2 * a(x)

    doubled.defvjp(lambda x: (2 * a(x), x), lambda x, ct: (b(ct) + b(x),))
    joint = aot.joint_program(lambda x: (doubled(x) * a(x)).sum())(X)
    plain = partition(joint)
    found = aot.with_tokens(plain)
    forward, backward = found
    calls = [(e.primitive.name, e.inputs[0].aval) for p in found for e in p if e.primitive.effects]
    assert calls == [("with_effects", TOKEN)] * 4
    assert forward.inputs[0].aval is TOKEN is forward.outputs[0].aval
    assert backward.inputs[-1].aval is TOKEN is backward.outputs[-1].aval
    assert (found.num_forward_tokens, found.num_backward_tokens) == (1, 1)
    assert [len(found.saved), len(found.tangents)] == [len(plain.saved), len(plain.tangents)]
    (_, out, *saved), in_forward = run(seen, forward, EMPTY, X)
    assert in_forward == [("a", 3.0)] * 2
    (gradient, _), in_backward = run(seen, backward, *saved, np.float32(1), EMPTY)
    assert [name for name, _ in in_backward] == ["b", "b"]
    np.testing.assert_allclose(out, (2 * (X + 1) ** 2).sum())
    np.testing.assert_allclose(gradient, (X + 2) + (X + 1) + 2 * (X + 1))


def test_writes_at_the_end_of_a_program_stay_there(operators, seen):
    def f(x):
        y = operators[0](x)
        x *= 2.0
        return y

    program = aot.with_tokens(functx.make_ir(f)(X))
    program.lint()
    x = X.copy()
    (_, y), found = run(seen, program, EMPTY, x)
    np.testing.assert_array_equal(x, 2 * X)
    np.testing.assert_array_equal(y, X + 1)
    assert found == [("a", 3.0)]


def test_captured_values_stay_the_last_inputs():
    w = np.full(3, 2, np.float32)

    def f(x):
        debug.print("{}", x, ordered=True)
        return x * w

    program = aot.with_tokens(functx.make_ir(f)(X))
    assert [v.aval for v in program.inputs[:1]] == [TOKEN] and len(program.inputs) == 3
    np.testing.assert_array_equal(program(EMPTY, X)[1], 2 * X)


def test_mistakes_with_tokens_name_the_operation_and_the_kind(operators):
    program = functx.make_ir(everywhere(operators))(X)
    with pytest.raises(
        MissingTokenError, match=r"tokens_test::b, whose effect is 'log'.*got ordered"
    ):
        aot.with_tokens(program, [effects.ORDERED])
    with pytest.raises(
        MissingTokenError, match=r"tokens_test::a, whose effect is 'ordered'(.|\n)*none"
    ):
        functx.make_ir(lambda: WithEffects(operators[0].primitive())())()
    with pytest.raises(MissingTokenError, match="got f32"):
        functx.make_ir(lambda x: WithEffects(operators[0].primitive())(x, x))(X)
    with pytest.raises(ArgumentError, match="must have no tokens"):
        aot.with_tokens(aot.with_tokens(program))
    with pytest.raises(ArgumentError, match="kinds must be ordered effects; got str 'log'"):
        aot.with_tokens(program, ["log"])
    with pytest.raises(ArgumentError, match="kinds must be ordered effects; got callback"):
        aot.with_tokens(program, [effects.CALLBACK])
    with pytest.raises(ArgumentError, match="must be a program; got function"):
        aot.with_tokens(prints)
    with pytest.raises(ArgumentError, match=r"`token` must be bool\[0\]"):
        aot.with_tokens(functx.make_ir(prints)(X))(np.zeros(1, bool), X)
