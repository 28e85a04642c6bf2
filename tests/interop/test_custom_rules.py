"""JAX functions with derivative rules of their own, through `from_jax`."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as onp
import pytest

import functx as fx

X = onp.random.RandomState(0).uniform(0.2, 0.9, (4, 3)).astype("float32")


def close(x, y, tolerance=1e-5):
    onp.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance)


@jax.custom_jvp
def scaled(x, n):
    return jnp.multiply(x, n)


@scaled.defjvp
def scaled_jvp(primals, tangents):
    return scaled(*primals), tangents[0] * 7 * primals[0]


@jax.custom_vjp
def product(x, y):
    return x * y


product.defvjp(
    lambda x, y: (x * y, (x, y)), lambda saved, ct: (ct * saved[1] * 3, ct * saved[0] * 5)
)


@jax.custom_vjp
def doubled_back(x):
    return jnp.sin(x)


doubled_back.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (2.0 * ct * jnp.cos(x),))


def over_rows(scan):
    def f(x):
        return scan(lambda c, r: (scaled(c, 2.0) + r, product(c, r)), x[0], x)[1].sum()

    return f


def unrolled_scan(f, carry, xs):
    rows = []
    for x in xs:
        carry, row = f(carry, x)
        rows.append(row)
    return carry, jnp.stack(rows)


def second_order(library, f):
    return library.grad(lambda x: (library.grad(f)(x) ** 2).sum())


@pytest.mark.parametrize(
    "f",
    [
        lambda x: scaled(x, 2.0).sum(),
        lambda x: product(x, x + 1).sum(),
        jax.jit(lambda x: scaled(product(x, jnp.sin(x)), 3.0).sum()),
        over_rows(jax.lax.scan),
    ],
)
def test_custom_rules_are_kept_by_every_transform(f):
    slope = jax.jit(jax.grad(f))(X)
    close(fx.grad(fx.from_jax(f))(X), slope)
    rows = onp.stack([X, X[::-1]])
    slopes = jax.jit(jax.vmap(jax.grad(f)))(rows)
    close(fx.vmap(fx.grad(fx.from_jax(f)))(rows), slopes)
    close(fx.grad(lambda x: fx.vmap(fx.from_jax(f))(x).sum())(rows), slopes)
    # Forward mode transposes a backward rule, which JAX refuses.
    close(fx.jvp(fx.from_jax(f), (X,), (X,))[1], (slope * X).sum())


@pytest.mark.parametrize(
    ("f", "like"),
    [
        (lambda x: scaled(x, 2.0).sum(), None),
        (lambda x: product(x, x + 1).sum(), None),
        # JAX's own scan forgets the rule here, and differs from the loop that it stands for.
        (over_rows(jax.lax.scan), over_rows(unrolled_scan)),
    ],
)
def test_custom_rules_are_kept_at_second_order(f, like):
    close(second_order(fx, fx.from_jax(f))(X), jax.jit(second_order(jax, like or f))(X), 1e-4)


def counting(n):
    """The same function for each n, with the slope n of its own and n - 1 of its slope."""

    @jax.custom_jvp
    def f(x):
        return jnp.sin(x)

    @f.defjvp
    def rule(primals, tangents):
        return f(*primals), tangents[0] * counting(n - 1)(*primals) * n

    return f


def test_rules_that_look_alike_are_told_apart():
    for n in (5, 3):
        wanted = jax.jit(jax.grad(jax.grad(jax.grad(counting(n)))))(1.0)
        given = fx.grad(fx.grad(fx.grad(fx.from_jax(counting(n)))))(1.0)
        close(given, wanted)


def test_arrays_that_a_function_with_a_rule_closes_over():
    table = jnp.arange(3.0)

    @jax.custom_jvp
    def f(x):
        return x * table

    f.defjvp(lambda p, t: (f(*p), t[0] * (table + 1)))

    @jax.custom_vjp
    def g(x):
        return x * table

    g.defvjp(lambda x: (g(x), x), lambda x, ct: (ct * table * 5 * x,))

    def loss(x):
        return (f(x) * g(x)).sum()

    close(fx.grad(fx.from_jax(loss))(X), jax.jit(jax.grad(loss))(X))
    close(fx.vmap(fx.grad(fx.from_jax(loss)))(X), jax.jit(jax.vmap(jax.grad(loss)))(X))
    with pytest.raises(fx.errors.GradientError, match="the function closes over"):
        fx.grad(fx.from_jax(lambda t: with_rule(t)))(X[0])


def with_rule(t):
    f = jax.custom_vjp(lambda x: x * t.sum())
    f.defvjp(lambda x: (f(x), x), lambda x, ct: (ct * x,))
    return f(2.0)


def test_a_rule_is_traced_when_it_is_needed():
    seen = []

    @jax.custom_jvp
    def f(x):
        return x

    f.defjvp(lambda p, t: (seen.append(1) or p[0], t[0]))
    translated = fx.from_jax(lambda x: f(x))
    fx.jit(translated)(X)
    assert not seen
    fx.grad(lambda x: translated(x).sum())(X)
    assert seen


def test_the_same_computation_compiles_once():
    def loss(n):
        def f(x):
            return jnp.sum(scaled(jax.nn.relu(product(x, x + 1)), n))

        return fx.grad(fx.from_jax(lambda x: f(x)))

    fx.clear_caches()
    for _ in range(3):
        loss(2.0)(X)
    assert fx.cache_info()["programs"].size == fx.cache_info()["programs"].misses
    before = fx.cache_info()["programs"].size
    loss(2.0)(X)
    assert fx.cache_info()["programs"].size == before


@pytest.mark.parametrize(
    ("fun", "shown"),
    [(jax.nn.relu, "rule of relu"), (lambda x: doubled_back(x) * 2.0, "rule of doubled_back")],
    ids=["jvp", "vjp"],
)
@pytest.mark.parametrize("transform", [lambda f: f, fx.vmap, lambda f: fx.vmap(fx.vmap(f))])
def test_a_program_prints_with_rules_that_wait_to_be_traced(fun, shown, transform):
    program = fx.make_ir(transform(fx.from_jax(fun)))(onp.ones((2, 3), "float32"))
    text = str(program)
    assert f"rule=<{shown}" in text and "0x" not in text
    assert fx.Program.parse(text) == program


@jax.custom_vjp
def perturbed_product(x, y):
    return x * y, jnp.cos(x)


def perturbed_forward(x, y):
    told = 1.0 * x.perturbed + 10.0 * y.perturbed
    return perturbed_product(x.value, y.value), (x.value, y.value, told)


def perturbed_backward(saved, cts):
    x, y, told = saved
    zero = jax.custom_derivatives.SymbolicZero
    first, second = (0.0 if type(ct) is zero else ct for ct in cts)
    told = told + 100.0 * (type(cts[0]) is not zero) + 1000.0 * (type(cts[1]) is not zero)
    return first * y * told - second * jnp.sin(x), first * x * told


perturbed_product.defvjp(perturbed_forward, perturbed_backward, symbolic_zeros=True)


@jax.custom_jvp
def told_tangents(x, y):
    return x * y


@partial(told_tangents.defjvp, symbolic_zeros=True)
def told_tangents_jvp(primals, tangents):
    (x, y), zero = primals, jax.custom_derivatives.SymbolicZero
    still = [type(t) is zero for t in tangents]
    dx, dy = (0.0 if type(t) is zero else t for t in tangents)
    return x * y, (dx * y + dy * x) * (1 + still[0] + 10 * still[1])


@pytest.mark.parametrize(
    "f",
    [
        lambda x, y: told_tangents(x, y).sum(),
        lambda x, y: perturbed_product(x, y)[0].sum(),
        lambda x, y: perturbed_product(x, y)[1].sum(),
        lambda x, y: sum(perturbed_product(x, y)).sum(),
        lambda x, y: perturbed_product(x, jax.lax.stop_gradient(y))[0].sum(),
    ],
)
def test_rules_with_symbolic_zeros_are_told_what_varies(f):
    def slopes(library):
        plain = [library.grad(f, argnums) for argnums in (0, 1, (0, 1))]
        mapped = [library.vmap(slope, in_axes=(0, None)) for slope in plain]
        whole = library.jit(
            lambda xs, y: ([g(xs[0], y) for g in plain], [g(xs, y) for g in mapped])
        )
        return whole(X, X[1])

    jax.tree.map(close, slopes(fx), slopes(jax))


@jax.custom_batching.custom_vmap
def rescaled(x, y):
    return jnp.sin(x) * y * jnp.arange(3.0)


@rescaled.def_vmap
def _(size, in_batched, x, y):
    x, y = [jnp.atleast_1d(v) for v in (x, y)]
    return 2 * jnp.sin(x)[:, None] * y[:, None] * jnp.arange(3.0), True


def test_functions_of_jax_with_a_batching_rule_have_derivatives_of_every_order():
    def f(x):
        return rescaled(x, 2.0).sum()

    def results(x):
        pairs = fx.vmap(rescaled, (0, None))(x, 2.0).sum()
        return (
            pairs,
            fx.grad(fx.grad(fx.grad(f)))(x[0]),
            fx.vmap(fx.grad(f))(x),
            fx.hessian(f)(x[0]),
        )

    xs = onp.array([0.3, 0.7], "float32")
    with pytest.raises(ValueError, match="Linearization failed"):
        jax.grad(f)(0.3)
    pairs, third, slopes, second = fx.jit(results)(xs)
    onp.testing.assert_allclose(pairs, jax.vmap(rescaled, (0, None))(xs, 2.0).sum(), rtol=1e-5)
    onp.testing.assert_allclose(third, -6 * onp.cos(0.3), rtol=1e-5)
    onp.testing.assert_allclose(second, -6 * onp.sin(0.3), rtol=1e-5)
    onp.testing.assert_allclose(slopes, 12 * onp.cos(xs), rtol=1e-5)


def test_a_batching_rule_of_jax_may_close_over_values_that_are_mapped_too():
    def f(w, x):
        @jax.custom_batching.custom_vmap
        def scaled(d):
            return d["x"] * w, jnp.ones(())

        @scaled.def_vmap
        def _(size, in_batched, d):
            return (3 * d["x"] * w, jnp.ones(())), (in_batched[0]["x"], False)

        return scaled({"x": x})[0]

    xs = onp.array([0.3, 0.7], "float32")
    results = fx.jit(lambda w: (fx.vmap(f, (None, 0))(w, xs), fx.vmap(fx.grad(f))(xs, xs)))
    onp.testing.assert_allclose(results(2.0), [6 * xs, 3 * xs], rtol=1e-6)
