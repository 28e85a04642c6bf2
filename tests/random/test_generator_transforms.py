"""Draws under transforms: the numbers and the state are those of the same calls without them."""

import threading

import jax
import numpy as np
import pytest

import functx
import functx.numpy as fnp
from functx import lax, random
from functx.core.errors import (
    ConcretizationError,
    EscapedTracerError,
    GeneratorError,
    ImplicitDrawError,
    OutAxesError,
    RandomnessError,
)
from functx.random import generator as draws

X = np.arange(1.0, 4.0, dtype=np.float32)
ROWS = np.ones((3, 3), np.float32)


def seeded(fun, *args):
    """The result of a call after seed 5, and the state afterwards."""
    random.seed(5)
    out = jax.tree.map(np.asarray, fun(*args))
    return out, random.get_state().tolist()


def check_same(fun, expected, *args):
    """Both give the same results and leave the same state."""
    (found, state), (wanted, wanted_state) = seeded(fun, *args), seeded(expected, *args)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-6), found, wanted)
    assert state == wanted_state


def noisy(x):
    return (fnp.sin(x) * random.rand(3)).sum() + random.randn(())


def frozen():
    """`noisy` with the numbers that it draws after seed 5, as a function without draws."""
    random.seed(5)
    factors, shift = random.rand(3), random.randn(())
    return lambda x: (fnp.sin(x) * factors).sum() + shift


def test_a_compiled_function_draws_what_the_function_draws_and_each_call_others():
    compiled = functx.jit(noisy)
    check_same(lambda x: [compiled(x), compiled(x)], lambda x: [noisy(x), noisy(x)], X)
    first, second = seeded(lambda x: [compiled(x), compiled(x)], X)[0]
    assert first != second


@pytest.mark.parametrize(
    "transform",
    [
        functx.grad,
        functx.value_and_grad,
        functx.hessian,
        functx.jacfwd,
        functx.jacrev,
        functx.functionalize,
        functx.checkpoint,
        lambda f: functx.jit(functx.grad(f)),
        lambda f: functx.grad(functx.jit(f)),
        lambda f: functx.jit(functx.grad(functx.checkpoint(f))),
        lambda f: functx.grad(lambda x: functx.grad(f)(x).sum()),
        lambda f: lambda x: functx.jvp(f, (x,), (x,)),
        lambda f: lambda x: functx.vjp(f, x)[1](1.0),
        lambda f: lambda x: functx.linearize(f, x)[1](x),
    ],
)
def test_derivatives_repeat_the_numbers_of_the_function(transform):
    found, state = seeded(transform(noisy), X)
    expected = jax.tree.map(np.asarray, transform(frozen())(X))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-6), found, expected)
    assert state == [5, 8]


def test_draws_are_differentiable_in_their_parameters():
    def f(mean, std, rate):
        return draws.normal(mean, std) + draws.exponential(rate)

    random.seed(5)
    z, e = random.randn(()), draws.exponential(1.0)
    random.seed(5)
    found = functx.grad(f, argnums=(0, 1, 2))(1.0, 2.0, 4.0)
    np.testing.assert_allclose(found, [1.0, z, -e / 16], rtol=1e-6)
    assert functx.grad(lambda p: p * draws.bernoulli(p))(1.0) == 1.0


def scanned(x):
    return lax.scan(lambda c, _: (c + random.rand(3), random.randn(())), x, None, length=3)


def unrolled(x):
    ys = []
    for _ in range(3):
        x = x + random.rand(3)
        ys.append(random.randn(()))
    return x, np.stack(ys)


def until_three(x):
    return lax.while_loop(lambda c: c < 3.0, lambda c: c + random.rand(()), x)


def until_three_in_python(x):
    while x < 3.0:
        x = x + random.rand(())
    return x


def perhaps(p, x):
    return lax.cond(p, lambda x: x + random.rand(3), lambda x: x, x)


def test_loops_and_branches_carry_the_state():
    check_same(scanned, unrolled, X)
    check_same(functx.jit(scanned), unrolled, X)
    check_same(until_three, until_three_in_python, np.float32(0))
    check_same(functx.jit(perhaps), lambda p, x: x + random.rand(3), True, X)
    check_same(functx.jit(perhaps), lambda p, x: x, False, X)
    check_same(
        functx.grad(lambda x: (scanned(x)[0] * fnp.sin(x)).sum()),
        lambda x: unrolled(x)[0] * np.cos(x) + np.sin(x),
        X,
    )


MODES = {"same": (3,), "different": (3, 3)}
"""The shape that all elements of a batch of three draw together, of three numbers each."""


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("chunk", [None, 1, 2])
def test_elements_of_a_batch_draw_the_same_or_as_one_draw(mode, chunk):
    mapped = functx.vmap(lambda x: x * random.rand(3), randomness=mode, chunk_size=chunk)
    check_same(mapped, lambda x: x * random.rand(*MODES[mode]), ROWS)


@pytest.mark.parametrize("mode", MODES)
def test_batches_compose_with_other_transforms(mode):
    def expected(x):
        return x * random.rand(*MODES[mode])

    def vmap(f):
        return functx.vmap(f, randomness=mode)

    check_same(vmap(functx.jit(lambda x: x * random.rand(3))), expected, ROWS)
    check_same(vmap(functx.grad(lambda x: (x * random.rand(3)).sum())), expected, ROWS)
    summed = functx.grad(lambda x: vmap(lambda r: r * random.rand(3))(x).sum())
    check_same(functx.jit(summed), expected, ROWS)
    check_same(
        vmap(
            functx.checkpoint(
                lambda x: lax.scan(lambda c, _: (c * random.rand(3), c), x, None, 2)[0]
            )
        ),
        lambda x: expected(expected(x)),
        ROWS,
    )


@pytest.mark.parametrize("mode", MODES)
def test_where_elements_take_other_branches_the_state_moves_if_any_draws(mode):
    def expected(p, x):
        x = np.where(p[:, None], x + random.rand(*MODES[mode]), x) if p.any() else x
        return x + random.rand(*MODES[mode])

    mapped = functx.vmap(lambda p, x: perhaps(p, x) + random.rand(3), randomness=mode)
    check_same(mapped, expected, np.array([True, False, True]), ROWS)
    check_same(mapped, expected, np.array([False, False, False]), ROWS)


@pytest.mark.parametrize("mode", MODES)
def test_where_elements_leave_a_loop_one_after_another_the_others_go_on(mode):
    def expected(x):
        while (x < 3).any():
            x = np.where(x < 3, x + random.rand(*MODES[mode][:-1]), x)
        return x

    mapped = functx.jit(functx.vmap(until_three, randomness=mode))
    check_same(mapped, expected, np.array([0.0, 1.0, 2.5], np.float32))


BODIES = {
    "scan": lambda x: lax.scan(lambda c, _: (c + random.rand(3), None), x, None, 2)[0],
    "while": lambda x: lax.while_loop(
        lambda c: c[0] < 2, lambda c: (c[0] + 1, c[1] + random.rand(3)), (0, x)
    )[1],
    "checkpoint in jit": functx.jit(
        functx.checkpoint(lambda x: x + random.rand(3) + random.rand(3))
    ),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", BODIES)
def test_loops_and_calls_in_branches_of_a_batch_move_the_state_if_any_element_runs_them(name, mode):
    def draw_twice():
        return random.rand(*MODES[mode]) + random.rand(*MODES[mode])

    def branch(p, x):
        return lax.cond(p, BODIES[name], lambda x: x, x) + random.rand(3)

    def expected(p, x):
        x = np.where(p[:, None], x + draw_twice(), x) if p.any() else x
        return x + random.rand(*MODES[mode])

    mapped = functx.vmap(branch, randomness=mode)
    for p in ([True, False, True], [False, False, False]):
        check_same(mapped, expected, np.array(p), ROWS)

    def loop(n, x):
        return lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, BODIES[name](c[1])), (0, x))[
            1
        ]

    def expected_loop(n, x):
        for i in range(n.max()):
            x = np.where((i < n)[:, None], x + draw_twice(), x)
        return x

    check_same(functx.vmap(loop, randomness=mode), expected_loop, np.array([0, 2, 1]), ROWS)


def test_the_modes_of_nested_batches_are_independent():
    def nested(outer, inner):
        return lambda x: functx.vmap(
            lambda row: functx.vmap(lambda _: random.rand(2), randomness=inner)(row),
            randomness=outer,
        )(x)

    shape = (3, 3, 2)
    check_same(
        nested("different", "same"),
        lambda x: np.broadcast_to(random.rand(3, 2)[:, None], shape),
        ROWS,
    )
    check_same(
        nested("same", "different"), lambda x: np.broadcast_to(random.rand(3, 2), shape), ROWS
    )
    check_same(nested("same", "same"), lambda x: np.broadcast_to(random.rand(2), shape), ROWS)
    # The inner batch is the faster one of a draw for both.
    found, state = seeded(nested("different", "different"), ROWS)
    assert len(set(found.ravel().tolist())) == 18
    assert state == [5, 20]
    for inner in ("same", "different"):
        with pytest.raises(RandomnessError, match="got rand under randomness='error'"):
            nested("error", inner)(ROWS)


def test_a_batched_probability_needs_draws_that_differ():
    def draw(p):
        return draws.bernoulli(p)

    p = X / 4
    check_same(functx.vmap(draw, randomness="different"), draw, p)
    for f in (draw, functx.grad(lambda p: p * draw(p)), functx.jit(draw)):
        for chunk in (None, 1):
            with pytest.raises(RandomnessError, match=r"must be the same for all .* bernoulli"):
                functx.vmap(f, randomness="same", chunk_size=chunk)(p)
    # Numbers that are computed from a shared draw may be batched.
    shifted = functx.vmap(lambda m: draws.normal(m, 1.0), randomness="same")
    check_same(shifted, lambda m: m + random.randn(()), X)


def test_another_mode_names_the_three():
    with pytest.raises(RandomnessError, match=r"'error' .*'same' .*'different' .*got 'split'"):
        functx.vmap(lambda x: x, randomness="split")
    with pytest.raises(RandomnessError, match="got bernoulli"):
        functx.vmap(lambda x: draws.dropout(x), chunk_size=1)(ROWS)


def test_a_state_that_is_mapped_gives_each_element_its_own_numbers():
    states = np.stack([np.array([s, 0, 0, 0], np.uint32) for s in (1, 2)])

    def draw(state):
        return random.run_with_rng_state(state, random.rand, 3)

    random.seed(0)
    expected = [random.rand(3, generator=random.Generator(s)).tolist() for s in (1, 2)]
    for mode in ("error", "same", "different"):
        assert functx.vmap(draw, randomness=mode)(states).tolist() == expected
    with pytest.raises(OutAxesError, match="the state of a generator"):
        functx.vmap(random.set_state)(states)
    assert random.get_state().tolist() == [0, 0]


def test_seeds_and_states_are_set_and_read_inside():
    def f(x):
        state = random.get_state()
        a = random.rand(3)
        random.seed(9)
        b = random.rand(3)
        random.set_state(state)
        return x * a, b, random.run_with_rng_state(state, random.rand, 3), random.rand(3)

    check_same(functx.jit(f), f, X)
    with pytest.raises(GeneratorError, match="initial_seed: the seed must be read outside"):
        functx.jit(random.initial_seed)()


def test_a_captured_generator_moves_on_and_one_that_is_made_inside_begins_anew():
    captured = random.Generator(3)
    compiled = functx.jit(lambda x: x * random.rand(3, generator=captured))
    expected = [random.rand(3, generator=g) for g in [random.Generator(3)] for _ in range(2)]
    np.testing.assert_allclose([compiled(X), compiled(X)], [X * r for r in expected], rtol=1e-6)
    assert captured.get_state().tolist() == [3, 8]
    inside = functx.jit(
        lambda x: (
            x * functx.grad(lambda y: (y * random.rand(3, generator=random.Generator(3))).sum())(x)
        )
    )
    np.testing.assert_allclose([inside(X), inside(X)], [X * expected[0]] * 2, rtol=1e-6)
    escaped = []
    functx.jit(lambda: escaped.append(random.Generator(0)))()
    with pytest.raises(GeneratorError, match="after the function has ended"):
        random.rand(3, generator=escaped[0])
    with pytest.raises(EscapedTracerError):
        functx.jit(lambda: random.rand(3, generator=escaped[0]))()


def test_nothing_is_stored_by_a_call_that_raises():
    def boom(x):
        random.rand(3)
        raise KeyError

    random.seed(1)
    for transform in (functx.jit, functx.grad, functx.vmap):
        with pytest.raises(KeyError):
            transform(boom)(X)
    assert random.get_state().tolist() == [1, 0]


def test_python_branches_on_a_draw_where_the_program_runs_at_once():
    def f(x):
        return x * 2.0 if random.rand(()) > 0.5 else x * 3.0

    def nested(x):
        return random.rand(()) + functx.grad(f)(x) * x

    check_same(functx.grad(nested), lambda x: (random.rand(()), functx.grad(f)(x))[1], 1.0)
    for transform in (functx.jit, lambda f: functx.vmap(f, randomness="different")):
        with pytest.raises(ConcretizationError, match="depends on the state of a generator"):
            transform(f)(X)


def test_threads_share_a_compiled_function_and_not_the_state():
    compiled = functx.jit(lambda x: x * random.rand(3))
    found = {}

    def run(number):
        random.seed(number)
        found[number] = np.asarray(compiled(X)).tolist(), random.get_state().tolist()

    threads = [threading.Thread(target=run, args=(n,)) for n in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in (1, 2, 3):
        expected = X * random.rand(3, generator=random.Generator(number))
        np.testing.assert_allclose(found[number][0], expected, rtol=1e-6)
        assert found[number][1] == [number, 4]


def test_lowered_and_compiled_ahead_it_draws_other_numbers_in_each_call():
    compiled = functx.jit(lambda x: x * random.rand(3)).lower(X).compile()
    check_same(
        lambda x: [compiled(x), compiled(x)], lambda x: [x * random.rand(3) for _ in range(2)], X
    )


def test_in_place_forms_are_functionalized():
    def f(x):
        y = fnp.zeros((2, 3))
        random.uniform_(y[0])
        random.normal_(x)
        return y

    def plain(x):
        return np.stack([random.rand(3), random.randn(3) * 0])

    x, z = np.zeros(3, np.float32), np.zeros(3, np.float32)
    check_same(functx.jit(f), plain, x)
    seeded(f, z)
    np.testing.assert_allclose(x, z, rtol=1e-6)


def test_a_program_holds_neither_seed_nor_offset():
    program = functx.make_ir(functx.functionalize(lambda x: x * random.rand(3)))(X)
    assert "draw_uniform[shape=(3,)] c0" in str(program)
    before = random.get_state().tolist()
    out, (state,) = program(X)
    assert random.get_state().tolist() == before
    assert out.shape == (3,)
    assert state.shape == (4,)
    parsed = functx.Program.parse(str(program))
    assert parsed == program


def test_a_call_of_a_program_and_its_verification_draw_from_the_generator():
    program = functx.make_ir(lambda x: x * random.rand(3))(X)
    check_same(
        lambda x: [program(x), program(x)], lambda x: [x * random.rand(3) for _ in range(2)], X
    )
    check_same(
        functx.jit(lambda x: program(x) + program(x)),
        lambda x: x * random.rand(3) + x * random.rand(3),
        X,
    )
    before = random.get_state().tolist()
    functx.testing.verify(lambda x: x * random.rand(3))(X)
    assert "finite" in str(functx.tools.explain_nan(lambda x: (x * random.rand(3)).sum())(X))
    assert random.get_state().tolist() == before


def test_transforms_of_jax_must_not_see_a_draw():
    random.seed(2)
    for f in (noisy, functx.jit(noisy), functx.grad(noisy)):
        for transform in (jax.jit, jax.vmap, jax.grad):
            with pytest.raises(ImplicitDrawError, match=r"Use functx\.jit"):
                transform(f)(X if transform is not jax.vmap else ROWS)
    assert random.get_state().tolist() == [2, 0]


def noisy_jvp(symbolic_zeros):
    f = functx.custom_jvp(lambda x: x * random.rand(3))
    f.defjvp(lambda primals, tangents: (f(*primals), tangents[0] * 10.0), symbolic_zeros)
    return f


def noisy_vjp(symbolic_zeros, draws_in_primal=True):
    f = functx.custom_vjp(lambda x: x * random.rand(3) if draws_in_primal else x)

    def forward(x):
        x = x.value if symbolic_zeros else x
        return x * random.rand(3), None

    f.defvjp(forward, lambda residuals, ct: (ct * 10.0,), symbolic_zeros)
    return f


class Noisy(functx.autograd.Function):
    @staticmethod
    def forward(x):
        return x * random.rand(3)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 10.0


RULES = {
    "jvp": noisy_jvp(False),
    "jvp with symbolic zeros": noisy_jvp(True),
    "vjp": noisy_vjp(False),
    "vjp with symbolic zeros": noisy_vjp(True),
    "Function": Noisy.apply,
}


@pytest.mark.parametrize("name", RULES)
def test_functions_with_rules_draw_and_move_the_state_on(name):
    f = RULES[name]
    check_same(
        functx.jit(lambda x: f(x) + f(x)), lambda x: x * random.rand(3) + x * random.rand(3), X
    )

    def factor(shape):
        random.rand(*shape)
        return 10.0 * random.rand(*shape)

    def product(x):
        return (f(x) * random.rand(3)).sum()

    check_same(functx.grad(product), lambda x: factor((3,)), X)
    for mode, shape in MODES.items():
        mapped = functx.vmap(functx.grad(product), randomness=mode)
        check_same(mapped, lambda x, shape=shape: factor(shape) + 0 * x, ROWS)
        summed = functx.grad(lambda x, mode=mode: functx.vmap(product, randomness=mode)(x).sum())
        check_same(summed, lambda x, shape=shape: factor(shape) + 0 * x, ROWS)


def test_a_forward_rule_may_draw_where_the_function_does_not():
    f = noisy_vjp(False, draws_in_primal=False)
    check_same(functx.grad(lambda x: (f(x) ** 2).sum()), lambda x: 20.0 * x * random.rand(3), X)
    check_same(functx.jit(f), lambda x: x, X)


CHECKPOINTED = functx.checkpoint(
    lambda x: lax.scan(lambda c, _: (fnp.sin(c * random.rand(3)), None), x, None, 2)[0]
)


@pytest.mark.parametrize("mode", ["error", *MODES])
def test_a_mapped_pullback_repeats_the_numbers_of_the_function(mode):
    cts = np.eye(3, dtype=np.float32)
    _, pullback = functx.vjp(CHECKPOINTED, X)
    rows = np.stack([pullback(ct)[0] for ct in cts])

    def vmap(f, **options):
        return functx.vmap(f, randomness=mode, **options)

    for mapped in (vmap(pullback), vmap(functx.jit(pullback)), vmap(pullback, chunk_size=1)):
        np.testing.assert_allclose(mapped(cts)[0], rows, rtol=1e-5)
    twice = vmap(lambda c: vmap(pullback)(c)[0])(np.stack([cts, cts]))
    np.testing.assert_allclose(twice, [rows, rows], rtol=1e-5)
    _, push = functx.linearize(CHECKPOINTED, X)
    np.testing.assert_allclose(vmap(push)(cts), [push(ct) for ct in cts], rtol=1e-5)


def test_a_pullback_of_a_batch_that_is_mapped_again_repeats_the_numbers_of_each_element():
    cts = np.eye(3, dtype=np.float32)

    def jacobian(x):
        return functx.vmap(functx.vjp(CHECKPOINTED, x)[1])(cts)[0]

    check_same(
        functx.vmap(jacobian, randomness="different"),
        functx.vmap(functx.jacrev(CHECKPOINTED), randomness="different"),
        np.stack([X, 2 * X]),
    )


def test_map_in_batches_draws_for_each_row():
    rows = lax.map(lambda r: r * random.rand(3), np.ones((5, 3), np.float32), batch_size=2)
    assert len(set(np.asarray(rows).ravel().tolist())) == 15


def test_jit_that_is_off_and_generators_as_static_arguments_draw_as_well():
    with jax.disable_jit():
        check_same(functx.jit(lambda x: x * random.rand(3)), lambda x: x * random.rand(3), X)
    compiled = functx.jit(lambda g: random.rand(3, generator=g), static_argnums=0)
    first = random.Generator(1)
    found = [
        compiled(first).tolist(),
        compiled(random.Generator(2)).tolist(),
        compiled(first).tolist(),
    ]
    one, two = random.Generator(1), random.Generator(2)
    expected = [random.rand(3, generator=g).tolist() for g in (one, two, one)]
    assert found == expected
