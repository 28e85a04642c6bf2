"""Derivatives under a plan: the same numbers, fewer bytes, budgets kept, mistakes named."""

import warnings

import numpy as onp
import pytest

import functx as fx
import functx.numpy as np
from functx.core.config import parse_memory_mode
from functx.core.errors import ArgumentError, MemoryBudgetWarning, ValueRangeError
from functx.passes.memory_planning import temporary_bytes
from functx.passes.rematerialization import SplitIntoSegments
from functx.transforms.call_primitive import RematerializedCall
from tests.lowering.test_outlining import lines_run

RANDOM = onp.random.RandomState(0)


def normal(*shape):
    return (0.5 * RANDOM.randn(*shape)).astype("float32")


X, W, V = normal(6, 8), normal(8, 8), normal(8)
KEY = fx.random.PRNGKey(1)


def mlp(x, w, v):
    for _ in range(3):
        x = np.tanh(np.sin(x @ w) * x + v)
    return np.sum(x**2)


def normed(x, w, v):
    for _ in range(2):
        x = x + fx.nn.gelu(fx.nn.layer_norm(x @ w, 8, v, v))
    return np.mean(fx.nn.softmax(x) * x)


def attention(x, w, v):
    q = (x @ w).reshape(1, 6, 2, 4)
    return np.sum(fx.nn.dot_product_attention(q, np.sin(q), np.exp(q), is_causal=True) * v[:4])


def scanned(x, w, v):
    def step(c, row):
        h = np.sin(np.exp(np.tanh(c @ w) * row))
        return h, np.cos(h)

    last, rows = fx.lax.scan(step, v, x)
    return np.sum(last) + np.sum(rows**2)


def chosen(x, w, v):
    y = fx.lax.cond(x[0, 0] > 0, lambda x: np.sin(np.exp(x @ w)), lambda x: x * v, x)
    return np.sum(fx.lax.fori_loop(0, 3, lambda _, y: np.sin(np.tanh(y)), y))


def checkpointed(x, w, v):
    block = fx.checkpoint(lambda x: np.sin(np.tanh(x @ w) * v))
    saving = fx.checkpoint(lambda x: np.exp(np.sin(x)), policy=fx.checkpoint_policies.min_cut)
    return np.sum(saving(block(block(x))))


@fx.custom_vjp
def scaled(x):
    return np.sin(x) * 2.0


scaled.defvjp(lambda x: (scaled(x), (x, np.cos(x))), lambda saved, ct: (3.0 * ct * saved[1],))


def ruled(x, w, v):
    return np.sum(np.tanh(scaled(np.sin(x @ w))) * v)


def noisy(x, w, v):
    kept = fx.random.bernoulli(KEY, 0.5, x.shape)
    return np.sum(np.sin(np.exp(np.where(kept, x @ w, 0.0))) * fx.random.normal(KEY, (6, 8)))


def written(x, w, v):
    y = np.zeros(x.shape, "float32")
    y[1:] = np.sin(np.exp(x[1:] @ w))
    y += np.tanh(x)
    y[0] *= v
    return np.sum(np.exp(y))


def called(x, w, v):
    block = fx.jit(lambda x: np.sin(np.exp(np.tanh(x @ w)) * v))
    return np.sum(block(block(x)))


def masked(x, w, v):
    return np.sum(np.where(x > 0, np.log(np.sin(np.where(x > 0, x, 1.0) * 0.5)), np.exp(x @ w)))


FUNCTIONS = [
    mlp, normed, attention, scanned, chosen, checkpointed, ruled, noisy, written, called, masked,
]  # fmt: skip


def close(found, wanted):
    for a, b in zip(fx.tree.leaves(found), fx.tree.leaves(wanted), strict=True):
        onp.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


def plain(f, *args):
    with fx.config.set(memory="off"):
        return fx.jit(f)(*args)


@pytest.mark.parametrize(
    "f, memory",
    [*[(f, "min_cut") for f in FUNCTIONS], *[(f, 0.0) for f in (mlp, called, noisy, chosen)]],
    ids=lambda x: getattr(x, "__name__", str(x)),
)
def test_values_and_gradients_are_those_of_the_plain_program(f, memory):
    g = fx.value_and_grad(f, argnums=(0, 1, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MemoryBudgetWarning)
        close(fx.jit(g, memory=memory)(X, W, V), plain(g, X, W, V))


@pytest.mark.parametrize("f", [scanned, called, ruled], ids=lambda f: f.__name__)
def test_plans_nest_in_all_transforms(f):
    slope = fx.grad(f)

    def curved(x):
        return np.sum(fx.grad(lambda x: np.sum(slope(x, W, V) * x))(x))

    transformed = {
        "vmap of grad": (fx.vmap(slope, (0, None, None)), (onp.stack([X, -X]), W, V)),
        "grad of grad": (curved, (X,)),
        "vjp": (lambda x: fx.vjp(lambda x: f(x, W, V), x)[1](2.0), (X,)),
    }
    if f is not ruled:
        transformed["jvp of grad"] = lambda x: fx.jvp(lambda x: slope(x, W, V), (x,), (x,)), (X,)
    for g, args in transformed.values():
        close(fx.jit(g, memory="min_cut")(*args), plain(g, *args))


def test_without_jit_and_under_the_switch_of_the_process():
    expected = plain(fx.grad(mlp), X, W, V)
    with fx.config.set(memory="min_cut"):
        close(fx.grad(mlp)(X, W, V), expected)
        close(fx.jacrev(lambda x: mlp(x, W, V))(X), expected)
        value, pull = fx.vjp(lambda x: mlp(x, W, V), X)
        kept = sum(r.nbytes for r in fx.tree.leaves(pull))
        close(pull(1.0)[0], expected)
    with fx.config.set(memory="off"):
        pull = fx.vjp(lambda x: mlp(x, W, V), X)[1]
        assert kept < sum(r.nbytes for r in fx.tree.leaves(pull))
    close(value, plain(mlp, X, W, V))


@pytest.mark.parametrize(
    "f, x",
    [
        (lambda x: np.sum(np.sin(np.exp(x))), onp.zeros((0, 3), "float32")),
        (lambda x: np.sum(x * 0 + 1.0), X),
        (lambda x: np.sum(fx.stop_gradient(np.exp(x))), X),
        (lambda x: np.sum(np.sin(np.exp(x.real)) * x.imag), X.astype("complex64")),
        (lambda x: np.sum(np.sin(np.exp(x))).astype("float32"), X.astype("float16")),
    ],
)
def test_empty_arrays_constants_and_other_dtypes(f, x):
    g = fx.grad(f)
    close(fx.jit(g, memory="min_cut")(x), plain(g, x))


def test_integer_operands_and_auxiliary_results():
    def f(x, i, n):
        y = np.sin(np.exp(x[i] * n))
        return np.sum(y), (y, i + 1)

    g = fx.grad(f, argnums=(0, 1), has_aux=True, allow_int=True)
    args = X, onp.array([0, 2]), 3
    close(fx.jit(g, memory="min_cut")(*args), plain(g, *args))


def test_effects_happen_once():
    seen = []

    def f(x):
        known = fx.stop_gradient(x)
        drawn = fx.io_callback(lambda x: seen.append("io") or x, fx.eval_shape(np.sin, X), known)
        fx.debug.callback(lambda: seen.append("debug"))
        return np.sum(np.sin(np.sin(np.exp(x * drawn))))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MemoryBudgetWarning)
        for memory in ("min_cut", 0.0):
            seen.clear()
            fx.jit(fx.grad(f), memory=memory)(X)
            fx.effects_barrier()
            assert sorted(seen) == ["debug", "io"]


def test_what_saves_nothing_stays_as_it_was():
    def f(x, w):
        return np.sum(x @ w)

    program = fx.make_ir(fx.jit(fx.grad(f), memory="min_cut"))(X, W)
    assert all(type(e.primitive) is not RematerializedCall for p in program.walk() for e in p)
    program = fx.make_ir(fx.jit(fx.grad(mlp), memory="min_cut"))(X, W, V)
    assert any(type(e.primitive) is RematerializedCall for p in program.walk() for e in p)


def test_a_block_that_is_called_often_is_planned_once():
    block = fx.jit(lambda x, w: np.sin(np.exp(np.tanh(x @ w))))

    def f(x, ws):
        for w in ws:
            x = block(x, w)
        return np.sum(x)

    program = fx.make_ir(fx.jit(fx.grad(f), memory="min_cut"))(X, [W] * 5)
    again = {
        e.primitive for p in program.walk() for e in p if type(e.primitive) is RematerializedCall
    }
    assert len([p for p in again if p.program.name.startswith("pullback_lambda")]) == 1


def test_a_plan_belongs_to_the_function_that_asks_for_it():
    inner = fx.jit(fx.grad(lambda x: np.sum(np.sin(np.exp(np.tanh(x))))))

    def reruns(memory):
        program = fx.make_ir(fx.jit(lambda x: inner(x), memory=memory))(X)
        return sum(type(e.primitive) is RematerializedCall for p in program.walk() for e in p)

    assert [reruns(m) for m in ("off", "min_cut", "off", "min_cut")] == [0, 1, 0, 1]
    with fx.config.set(memory="min_cut"):
        assert [reruns(m) for m in (None, "off")] == [1, 0]


def deep(ws, x):
    for w in ws:
        x = np.tanh(np.sin(x @ w) * 0.5)
    return np.sum(x**2)


DEEP = [normal(8, 8) for _ in range(12)], normal(256, 8)


def temporaries(memory, f, args):
    """What XLA takes for the derivative."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MemoryBudgetWarning)
        lowered = fx.jit(fx.grad(f), memory=memory).lower(*args)
    return lowered.compile().memory_analysis().temp_size_in_bytes


def test_the_compiled_program_takes_less():
    off, cut, half, least = [temporaries(m, deep, DEEP) for m in ("off", "min_cut", 0.5, 0.0)]
    assert cut < 0.7 * off
    assert half <= 0.5 * off
    assert least <= half


def test_a_smaller_budget_never_needs_more_and_what_fits_is_left_alone():
    def need(memory):
        with warnings.catch_warnings(), fx.config.set(memory=memory):
            warnings.simplefilter("ignore", MemoryBudgetWarning)
            return temporary_bytes(fx.make_ir(fx.grad(deep))(*DEEP))

    plainly = need("off")
    budgets = [1.0, 0.7, 0.5, 0.3, 0.0]
    needs = [need(b) for b in budgets]
    assert needs[0] == plainly and needs == sorted(needs, reverse=True)
    assert all(n <= max(b * plainly, needs[-1]) for n, b in zip(needs, budgets, strict=True))
    assert need("1GiB") == need(10**9) == plainly


def test_a_budget_that_is_too_small_is_a_warning_that_says_the_least():
    with pytest.warns(
        MemoryBudgetWarning, match=r"at least \d.* for temporaries; got 1 B"
    ) as caught:
        found = fx.jit(fx.grad(deep), memory=1)(*DEEP)
    assert caught[0].filename == __file__
    assert "Raise the budget" in str(caught[0].message)
    close(found, plain(fx.grad(deep), *DEEP))


@pytest.mark.parametrize(
    "given, error, text",
    [
        ("much", ValueRangeError, "must be one of .* or a budget; got 'much'"),
        ("3 apples", ValueRangeError, '"2GiB" or "500MB"'),
        (-1, ValueRangeError, "no less than 0 bytes; got -1"),
        (1.5, ValueRangeError, "a fraction from 0 to 1; got 1.5"),
        (float("nan"), ValueRangeError, "got nan"),
        (True, ArgumentError, "got bool"),
        ([1], ArgumentError, "got list"),
    ],
)
def test_what_is_no_budget_is_refused(given, error, text):
    with pytest.raises(error, match=text):
        fx.jit(mlp, memory=given)
    with pytest.raises(error, match=text):
        fx.config.update("memory", given)


def test_a_budget_may_be_as_large_as_one_likes():
    assert parse_memory_mode("jit", "9" * 400 + "TiB").bytes_for(0) > 10**400


def test_the_policy_min_cut_saves_what_is_slow_and_repeats_the_rest():
    def count(name, policy):
        block = fx.checkpoint(lambda x: np.tanh(np.sin(x @ W)), policy=policy)
        program = fx.make_ir(fx.value_and_grad(lambda x: np.sum(block(x))))(X)
        return sum(e.primitive.name == name for p in program.walk() for e in p)

    policies = fx.checkpoint_policies
    assert count("dot_general", policies.min_cut) == count("dot_general", None) - 1 == 2
    assert count("sin", policies.min_cut) == count("sin", policies.everything_saveable) + 1
    assert repr(policies.min_cut) == "min_cut"
    both = policies.save_from_both_policies(policies.min_cut, policies.nothing_saveable)
    assert count("dot_general", both) == 2


def test_the_effort_to_cut_into_sections_is_linear_in_the_length_of_the_program():
    def effort(count):
        def f(x):
            for _ in range(count):
                x = np.tanh(x) * 0.5
            return x

        program = fx.make_ir(f)(X)
        found = SplitIntoSegments(count // 10)(program)
        assert len(found) == count // 10
        return lines_run(lambda: SplitIntoSegments(count // 10)(program)) / len(program)

    assert effort(400) < 1.3 * effort(100)
