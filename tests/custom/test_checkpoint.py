"""Checkpoints: the values that they save and recompute, and effects, which they do not repeat."""

from functools import partial

import jax
import jax.ad_checkpoint
import jax.numpy as jnp
import numpy as onp
import pytest

import functx as fx
import functx.numpy as np
from functx import checkpoint_policies as policies
from functx.core.effects import Effect
from functx.core.errors import ArgnumsError, ArgumentError, TreeError
from functx.core.primitive import Primitive
from functx.custom.checkpoint import Checkpoint

ONE = onp.float32(1.0)


def chain(x):
    return np.sin(np.sin(np.sin(x)))


def test_prevent_cse_may_say_it_of_each_argument():
    args = {"x": ONE, "w": 2 * ONE}
    for marks, apart in [({"w": False, "x": True}, True), ({"w": False, "x": False}, False)]:
        block = fx.checkpoint(lambda d: np.sin(d["x"] * d["w"]), prevent_cse=(marks,))
        assert float(fx.grad(block)(args)["w"]) == float(jnp.cos(2.0))
        assert ("optimization_barrier" in fx.jit(fx.grad(block)).lower(args).as_text()) is apart
    with pytest.raises(TreeError, match="prevent_cse must be a tree prefix"):
        fx.grad(fx.checkpoint(lambda d: d["x"], prevent_cse=({"w": False},)))(args)
    with pytest.raises(ArgumentError, match="prevent_cse must be made of True and False; got 1"):
        fx.grad(fx.checkpoint(lambda d: d["x"], prevent_cse=(1,)))(args)


@pytest.mark.parametrize(
    "transform",
    [
        fx.grad,
        fx.hessian,
        fx.jacfwd,
        lambda f: fx.grad(fx.grad(fx.grad(f))),
        lambda f: fx.jit(fx.grad(f)),
        lambda f: lambda x: fx.vmap(fx.hessian(f))(np.stack([x, x])),
        lambda f: lambda x: fx.linearize(f, x)[1](ONE),
    ],
)
def test_a_checkpoint_changes_no_derivative(transform):
    got = transform(fx.checkpoint(chain))(ONE)
    onp.testing.assert_allclose(got, transform(chain)(ONE), rtol=1e-5)


def sines(program):
    return sum(e.primitive is Primitive.registry["sin"]() for p in program.walk() for e in p)


@pytest.mark.usefixtures("all_kept")
def test_a_checkpoint_saves_only_its_arguments_and_recomputes():
    x = onp.ones(3, onp.float32)

    def kept(f):
        return [r.shape for r in fx.tree.leaves(fx.vjp(f, x)[1])]

    assert kept(fx.checkpoint(chain)) == [(3,)]
    assert len(kept(chain)) > 1
    program = fx.make_ir(fx.grad(lambda x: fx.remat(chain)(x).sum() * 2.0))(x)
    (again,) = [e for e in program if isinstance(e.primitive, Checkpoint)]
    assert again.primitive.differentiated and sines(again.primitive.program) == 2
    text = fx.jit(fx.grad(lambda x: (fx.checkpoint(chain)(x) ** 2).sum())).lower(x).as_text()
    assert "optimization_barrier" in text


def test_checkpoint_as_a_decorator_with_static_arguments_and_keywords():
    @partial(fx.checkpoint, static_argnums=(1,))
    def f(x, name, *, scale):
        return getattr(np, name)(x) * scale["by"]

    slope = fx.grad(lambda x: f(x, "sin", scale={"by": 2.0}))(0.0)
    assert float(slope) == 2.0
    assert float(f(0.0, "cos", scale={"by": 2.0})) == 2.0
    assert float(fx.grad(fx.checkpoint(lambda x: x if x > 0 else -x))(-1.0)) == -1.0


ROW = onp.linspace(-1.0, 1.0, 4, dtype=onp.float32)
WEIGHTS = onp.random.RandomState(0).randn(4, 4).astype(onp.float32) / 2


def network(xp, name):
    def f(w, x):
        h = name(xp.tanh(w @ x), "h")
        g = name(xp.sin(w @ h), "g")
        return xp.exp(w @ g).sum()

    return f


def residuals(f, vjp):
    return sorted([r.shape for r in fx.tree.leaves(vjp(f, WEIGHTS, ROW)[1])])


POLICIES = {
    "nothing": lambda p: p.nothing_saveable,
    "dots": lambda p: p.dots_saveable,
    "checkpoint_dots": lambda p: p.checkpoint_dots,
    "dots without batch": lambda p: p.dots_with_no_batch_dims_saveable,
    "checkpoint_dots without batch": lambda p: p.checkpoint_dots_with_no_batch_dims,
    "only h": lambda p: p.save_only_these_names("h"),
    "names but h": lambda p: p.save_any_names_but_these("h"),
}


@pytest.mark.parametrize("of", POLICIES.values(), ids=POLICIES)
def test_a_policy_decides_what_is_saved(of):
    mine = fx.checkpoint(network(np, fx.checkpoint_name), policy=of(policies))
    theirs = jax.checkpoint(
        network(jnp, jax.ad_checkpoint.checkpoint_name), policy=of(jax.checkpoint_policies)
    )
    assert residuals(mine, fx.vjp) == residuals(theirs, jax.vjp)


@pytest.mark.parametrize("of", POLICIES.values(), ids=POLICIES)
def test_a_policy_tells_products_with_batch_dimensions_from_others(of):
    def f(xp):
        return lambda w, x: xp.exp(xp.sin(w @ x) @ xp.cos(x[0])).sum()

    def kept(m, xp, policy):
        pull = m.vjp(m.checkpoint(f(xp), policy=policy), batches, batches)[1]
        return sorted([r.shape for r in m.tree.leaves(pull)])

    batches = onp.stack([WEIGHTS, WEIGHTS.T])
    assert kept(fx, np, of(policies)) == kept(jax, jnp, of(jax.checkpoint_policies))


PLAIN = network(jnp, lambda x, name: x)
MORE = {
    "everything": policies.everything_saveable,
    "h or dots": policies.save_from_both_policies(
        policies.save_only_these_names("h"), policies.dots_saveable
    ),
    "all but h": policies.save_anything_except_these_names("h"),
    "a function": lambda primitive, *avals, **params: primitive.name == "sin" and not params,
}


@pytest.mark.parametrize(
    "policy", [*MORE.values(), policies.nothing_saveable, policies.save_only_these_names("h")]
)
def test_a_policy_changes_no_gradient(policy):
    f = fx.jit(fx.grad(fx.checkpoint(network(np, fx.checkpoint_name), policy=policy), (0, 1)))
    want = jax.jit(jax.grad(PLAIN, (0, 1)))(WEIGHTS, ROW)
    for a, b in zip(f(WEIGHTS, ROW), want, strict=True):
        onp.testing.assert_allclose(a, b, rtol=1e-5)


@pytest.mark.parametrize("policy", [policies.dots_saveable, policies.save_only_these_names("g")])
def test_a_policy_changes_no_derivative(policy):
    f = fx.checkpoint(network(np, fx.checkpoint_name), policy=policy)
    want = jax.jit(jax.hessian(PLAIN, 1))(WEIGHTS, ROW)
    for second in (fx.hessian, lambda f, i: fx.jacrev(fx.jacrev(f, i), i)):
        onp.testing.assert_allclose(second(f, 1)(WEIGHTS, ROW), want, rtol=1e-4, atol=1e-5)
    rows = onp.stack([ROW, 2 * ROW])
    want = jax.jit(jax.vmap(jax.grad(PLAIN, 1), (None, 0)))(WEIGHTS, rows)
    onp.testing.assert_allclose(fx.vmap(fx.grad(f, 1), (None, 0))(WEIGHTS, rows), want, rtol=1e-5)
    slope = jax.jvp(PLAIN, (WEIGHTS, ROW), (WEIGHTS, ROW))[1]
    onp.testing.assert_allclose(fx.jvp(f, (WEIGHTS, ROW), (WEIGHTS, ROW))[1], slope, rtol=1e-4)


def repeated(program):
    """The primitives that are computed again, by name."""
    (again,) = [
        e.primitive.program for e in program if getattr(e.primitive, "differentiated", False)
    ]
    return [e.primitive.name for e in again]


@pytest.mark.parametrize("wrap", [lambda f: f, fx.jit])
def test_saved_values_are_not_recomputed(wrap):
    def names(policy):
        f = fx.checkpoint(wrap(network(np, fx.checkpoint_name)), policy=policy)
        found = repeated(fx.make_ir(fx.grad(f))(WEIGHTS, ROW))
        return [found.count(n) for n in ("tanh", "sin", "exp")], found.count("dot_general")

    elementwise, dots = names(None)
    assert elementwise == [1, 1, 1]
    assert names(policies.dots_saveable) == ([1, 1, 1], dots - 3)
    assert names(policies.everything_saveable) == ([0, 0, 0], dots - 3)
    # A saved name stands for what was named, so that this need not be computed for itself.
    assert names(policies.save_only_these_names("h")) == ([0, 1, 1], dots - 1)
    assert names(policies.save_only_these_names("h", "g")) == ([0, 0, 1], dots - 1)


def test_policies_see_the_primitive_its_types_and_its_parameters():
    seen = []

    def policy(primitive, *avals, **params):
        seen.append((primitive.name, avals, params))
        return False

    f = fx.checkpoint(lambda x: np.sin(fx.checkpoint_name(x * 2.0, "y")).sum(), policy=policy)
    fx.make_ir(fx.grad(f))(ROW)
    by_name = {name: (avals, params) for name, avals, params in seen}
    assert by_name["checkpoint_name"][1] == {"name": "y"}
    assert [repr(a) for a in by_name["mul"][0]] == ["f32[4]", "f32[]"]


def test_policies_made_alike_are_one():
    save = policies.save_only_these_names
    assert save("a", "b") == save("a", "b") != save("a")
    both = policies.save_from_both_policies
    assert both(save("a"), policies.dots_saveable) == both(save("a"), policies.dots_saveable)


@pytest.mark.usefixtures("all_kept")
def test_a_loop_in_a_checkpoint_saves_only_its_carries():
    def loss(x, f):
        return fx.lax.scan(lambda c, _: (f(c), None), x, length=5)[0].sum()

    def kept(f):
        return [r.shape for r in fx.tree.leaves(fx.vjp(partial(loss, f=f), ROW)[1])]

    assert kept(fx.checkpoint(chain)) == [(5, 4)]
    assert len(kept(chain)) > 1
    got = fx.grad(partial(loss, f=fx.checkpoint(chain)))(ROW)
    onp.testing.assert_allclose(got, fx.grad(partial(loss, f=chain))(ROW), rtol=1e-5)


def test_a_policy_reaches_into_loops():
    def of(m, xp):
        def step(w, c):
            return xp.tanh(w @ xp.sin(w @ c))

        return lambda w, x: m.lax.scan(lambda c, _: (step(w, c), None), x, length=3)[0].sum()

    save = policies.dots_saveable
    mine, theirs = fx.checkpoint(of(fx, np), policy=save), of(jax, jnp)
    kept = residuals(jax.checkpoint(theirs, policy=jax.checkpoint_policies.dots_saveable), jax.vjp)
    assert residuals(mine, fx.vjp) == kept
    program = fx.make_ir(fx.grad(mine))(WEIGHTS, ROW)
    (again,) = [
        e.primitive.program for e in program if getattr(e.primitive, "differentiated", False)
    ]
    (repeated, _) = [e.primitive.program for e in again if e.primitive.name == "scan"]
    assert sorted([e.primitive.name for e in repeated]) == ["cos", "sin", "tanh"]
    for got, want in zip(
        fx.jit(fx.grad(mine, (0, 1)))(WEIGHTS, ROW),
        jax.jit(jax.grad(theirs, (0, 1)))(WEIGHTS, ROW),
        strict=True,
    ):
        onp.testing.assert_allclose(got, want, rtol=1e-4)


def test_unused_results_of_a_checkpoint_are_not_computed():
    @fx.checkpoint
    def both(x, y):
        return np.sin(x), np.exp(y)

    program = fx.make_ir(lambda x, y: both(x, y)[0])(1.0, 2.0)
    (eqn,) = program
    assert [inner.primitive.name for inner in eqn.primitive.program] == ["sin"]
    assert eqn.inputs == [program.inputs[0]]
    gradient = fx.make_ir(fx.grad(lambda x, y: both(x, y)[0], (0, 1)))(1.0, 2.0)
    assert "exp" not in str(gradient)
    assert fx.grad(lambda x, y: both(x, y)[0], (0, 1))(1.0, 2.0) == (
        pytest.approx(onp.cos(1.0)),
        0.0,
    )


def test_checkpoints_nest():
    inner = fx.checkpoint(lambda y: np.sin(np.sin(y)))
    f = fx.checkpoint(lambda x: np.sin(inner(x)))
    assert len(fx.tree.leaves(fx.vjp(f, ROW)[1])) == 1
    for d in (fx.grad, lambda f: fx.grad(fx.grad(f)), fx.jacfwd):
        onp.testing.assert_allclose(d(f)(ONE), d(chain)(ONE), rtol=1e-5)


class Draw(Primitive, abstract=True):
    """Another number at each call, as from a device outside."""

    effects = frozenset({Effect.ORDERED})
    differentiable = False

    def abstract_eval(self, x):
        return x


class Note(Primitive, abstract=True):
    """Tells somebody of a value."""

    effects = frozenset({Effect.CALLBACK})
    multiple_results = True
    differentiable = False

    def abstract_eval(self, x):
        return []


def equations(program, kind):
    return sum(type(e.primitive) is kind for p in program.walk() for e in p)


@pytest.mark.parametrize("wrap", [lambda f: f, fx.jit])
@pytest.mark.parametrize("policy", [None, policies.dots_saveable])
def test_effects_are_not_repeated(wrap, policy):
    def f(x):
        Note()(x)
        noise = Draw()(x)
        return (np.sin(np.sin(x)) * noise).sum()

    program = fx.make_ir(fx.value_and_grad(fx.checkpoint(wrap(f), policy=policy)))(ROW)
    assert equations(program, Draw) == equations(program, Note) == 1
    # The draw is kept for the backward sweep, beside the argument.
    (first, again) = [e for e in program if type(e.primitive) is Checkpoint]
    assert first.outputs[1] in again.inputs

    def loop(x):
        return fx.lax.scan(lambda c, _: (wrap(f)(c) * c, None), x, length=3)[0].sum()

    program = fx.make_ir(fx.grad(fx.checkpoint(loop, policy=policy)))(ROW)
    assert equations(program, Draw) == equations(program, Note) == 1
    program = fx.make_ir(lambda x: fx.linearize(fx.checkpoint(f, policy=policy), x)[1](x))(ROW)
    assert equations(program, Draw) == equations(program, Note) == 1


def test_static_arguments_by_name():
    f = fx.checkpoint(lambda x, *, op: getattr(np, op)(x), static_argnames="op")
    assert float(fx.grad(lambda x: f(x, op="sin"))(0.0)) == 1.0


def test_names_of_pytrees_and_outside_of_transforms():
    x = {"a": ROW, "b": (ROW, None)}
    out = fx.checkpoint_name(x, "x")
    assert fx.tree.structure(out) == fx.tree.structure(x)
    onp.testing.assert_array_equal(out["b"][0], ROW)
    onp.testing.assert_array_equal(fx.vmap(lambda x: fx.checkpoint_name(x, "x"))(ROW), ROW)


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda: fx.checkpoint(3), ArgumentError, "must be a function; got int"),
        (lambda: fx.checkpoint(chain, policy="dots"), ArgumentError, "policy must be a function"),
        (lambda: fx.checkpoint(chain, concrete=True), ArgumentError, "concrete must be False"),
        (
            lambda: fx.grad(fx.checkpoint(chain, static_argnums=1))(1.0),
            ArgnumsError,
            "static_argnums must name positional arguments",
        ),
        (
            lambda: fx.grad(fx.checkpoint(chain, policy=lambda *_, **__: "yes"))(1.0),
            ArgumentError,
            "must return True or False; got str for sin",
        ),
        (lambda: fx.checkpoint_name(ONE, 3), ArgumentError, "the name must be a string; got int"),
        (
            lambda: policies.save_only_these_names(["a", "b"]),
            ArgumentError,
            "names must be strings; got list",
        ),
        (
            lambda: policies.save_from_both_policies(policies.dots_saveable, None),
            ArgumentError,
            "policies must be functions; got NoneType",
        ),
    ],
)
def test_mistakes_are_named(make, error, match):
    with pytest.raises(error, match=match):
        make()
