"""JAX code as it stands inside functx's transforms, against the same code in pure JAX."""

from functools import partial

import jax
import jax.custom_batching
import jax.numpy as jnp
import numpy as onp
import pytest
from jax.experimental.ode import odeint
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import functx as fx
from functx import numpy as np
from functx.core.errors import CapturedWriteError, ConcretizationError

X = jnp.arange(1.0, 4.0) + 0.3
ROWS = jnp.stack([X, X * 1.1])
A = jnp.arange(9.0).reshape(3, 3) / 7
WEIGHTS = jnp.array([0.3, 0.5, 0.7])


def stop(x):
    return jax.lax.stop_gradient(x)


@jax.custom_jvp
def tripled(x):
    return jnp.sin(x)


tripled.defjvp(lambda primals, tangents: (jnp.sin(primals[0]), 3 * tangents[0]))


@jax.custom_vjp
def bent(x):
    return jnp.sin(x)


bent.defvjp(lambda x: (jnp.sin(x), x), lambda r, g: (g * r,))


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def power(n, x):
    return x**n


power.defvjp(lambda n, x: (x**n, x), lambda n, r, g: (5 * n * g * r,))


@jax.jit
def long(x):
    for _ in range(40):
        x = jnp.sin(x) * 1.1
    return x


def step(carry, row):
    return carry * 0.5 + jnp.sin(row), carry


def converted(x):
    closed, consts = jax.closure_convert(lambda y: y * x, x)
    return closed(x, *consts)


PLAIN = {
    "ufunc": jnp.sin,
    "softmax": jax.nn.softmax,
    "activations": lambda x: jax.nn.relu(x - 2) + jax.nn.gelu(x) + jax.nn.silu(x),
    "where": lambda x: jnp.where(x > 2, x**2, jnp.zeros(3)),
    "array[tracer]": lambda x: A[jnp.int32(x[0])] * x,
    "tracer[array]": lambda x: x[jnp.array([0, 2, 0])],
    "array.at": lambda x: A.at[1].set(x).at[0, 1].multiply(x[2]) @ x,
    "products": lambda x: A @ x + x @ A + jnp.einsum("ij,j->i", A, x),
    "mixed operands": lambda x: jnp.add(x, onp.ones(3, onp.float32)) * 2 + jnp.maximum(1, x),
    "cond": lambda x: jax.lax.cond(x[0] > 1, lambda y: y * 2, lambda y: y * 3, x),
    "vmap": lambda x: jax.vmap(lambda r: jnp.sum(r * x))(A) + jax.vmap(lambda r: r**2)(x),
    "grad": lambda x: jax.grad(lambda y: jnp.sum(jnp.sin(y) * x))(x),
    "hessian": lambda x: jax.hessian(lambda y: jnp.sum(y**3 * x))(x) @ x,
    "jacfwd": lambda x: jax.jacfwd(lambda y: y**3 * x)(x) @ x,
    "scan": lambda x: (
        sum(jax.tree.map(jnp.ravel, [*jax.lax.scan(step, x, A)])[0:1])
        + jax.lax.scan(step, x, A)[1].sum(0)
    ),
    "scan over a closure": lambda x: jax.lax.scan(lambda c, r: (c * x + r, None), X, A)[0],
    "fori_loop": lambda x: jax.lax.fori_loop(0, 3, lambda i, c: c * x, x),
    "while_loop": lambda x: (
        jax.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * stop(x)), (0, stop(x)))[
            1
        ]
        * x
    ),
    "map": lambda x: jax.lax.map(lambda r: r * x, A).sum(0),
    "jit": lambda x: jax.jit(lambda y: y * x)(x),
    "calls": lambda x: long(x) + long(x * 2),
    "custom_jvp": tripled,
    "custom_vjp": bent,
    "nondiff_argnums": partial(power, 3),
    "checkpoint": lambda x: jax.checkpoint(lambda y: jnp.sin(jnp.sin(y) * x))(x),
    "stop_gradient": lambda x: stop(x) * x,
    "keys": lambda x: jax.random.normal(jax.random.key(3), (3,)) * x,
    "raw keys": lambda x: jax.random.uniform(jax.random.split(jax.random.PRNGKey(3))[1], (3,)) * x,
    "arrays of keys": lambda x: (
        sum(
            jax.random.normal(jax.random.fold_in(k, 2), (3,))
            for k in jax.random.split(jax.random.key(3))
        )
        * x
    ),
    "pure_callback": lambda x: (
        jax.pure_callback(
            onp.sin, jax.ShapeDtypeStruct((3,), jnp.float32), stop(x), vmap_method="sequential"
        )
        * x
    ),
    "closure_convert": converted,
    "eval_shape": lambda x: jnp.ones(jax.eval_shape(jnp.outer, x, x).shape).sum() * x,
    "jax.scipy": lambda x: jax.scipy.special.gammaln(x) + jax.scipy.stats.norm.logpdf(x),
    "linalg": lambda x: jnp.linalg.solve(A + jnp.diag(x), x) + jnp.linalg.inv(A + jnp.diag(X)) @ x,
    "cholesky": lambda x: jax.scipy.linalg.cho_solve(
        jax.scipy.linalg.cho_factor(A @ A.T + jnp.diag(x)), x
    ),
    "fft": lambda x: jnp.abs(jnp.fft.fft(x)),
    "sorting": lambda x: jnp.sort(-x) * x[jnp.argsort(-x)],
    "logsumexp": lambda x: jax.nn.logsumexp(x) * jax.scipy.special.logsumexp(x, b=2.0) * x,
}
"""Functions of JAX alone."""

NESTED = {
    "ops of both": lambda np, x: np.sin(jnp.cos(x)) * jnp.exp(np.cos(x)),
    "jax.grad of an op": lambda np, x: jax.grad(lambda y: (np.sin(y) * x).sum())(x),
    "jax.vmap of an op": lambda np, x: jax.vmap(lambda r: np.dot(r, x))(A),
    "jax.grad of grad": lambda np, x: jax.grad(
        lambda y: grad(np)(lambda z: (z**3 * y * x).sum())(y).sum()
    )(x),
    "jax.vmap of grad": lambda np, x: jax.vmap(grad(np)(lambda y: jnp.sin(y) * x[0]))(x),
    "scan": lambda np, x: jax.lax.scan(lambda c, r: (np.sin(c) * x + r, np.cos(x)), x, A)[0],
    "while_loop": lambda np, x: (
        jax.lax.while_loop(
            lambda c: c[0] < 3, lambda c: (c[0] + 1, np.sin(c[1]) * stop(x)), (0, stop(x))
        )[1]
        * x
    ),
    "cond": lambda np, x: jax.lax.cond(x[0] > 1, lambda y: np.sin(y) * x, lambda y: y * 3, x),
    "vmap of jax.grad": lambda np, x: (
        namespace(np).vmap(lambda r: jax.grad(lambda y: np.sum(jnp.sin(y) * r * x))(r))(A).sum(0)
    ),
    "jax.jit of vmap": lambda np, x: jax.jit(namespace(np).vmap(lambda r: jnp.sum(r * x)))(A),
    "jax.jvp of jit": lambda np, x: jax.jvp(
        lambda y: namespace(np).jit(lambda z: np.sin(z) * y)(x * y), (x,), (x,)
    )[1],
    "jax.vjp of scan": lambda np, x: jax.vjp(
        lambda y: namespace(np).lax.scan(lambda c, r: (c * y, c), x, None, length=3)[0], x
    )[1](x)[0],
    "views in jax.grad": lambda np, x: jax.grad(lambda y: (x[1:] * y[:2]).sum() + np.sum(x[::2]))(
        x
    ),
}
"""Functions of JAX and of `np`, which is `functx.numpy` or its counterpart in JAX."""


def namespace(np):
    return fx if np is fx.numpy else jax


def grad(np):
    return namespace(np).grad


SIZE = 6
GROUPS = [[*PLAIN][i : i + SIZE] for i in range(0, len(PLAIN), SIZE)]
NESTED_GROUPS = [[*NESTED][i : i + SIZE] for i in range(0, len(NESTED), SIZE)]


def check(functions, pure):
    """Values and gradients of `functions` under each stack of transforms are those of `pure`."""

    def values(table):
        return lambda x: {name: f(x) for name, f in table.items()}

    def loss(table):
        return lambda x: sum(
            [(i + 1) * jnp.sum(out * WEIGHTS) for i, out in enumerate(values(table)(x).values())]
        )

    got, want = fx.jit(values(functions))(X), jax.jit(values(pure))(X)
    for name in functions:
        close(got[name], want[name], name)
    slope = jax.jit(jax.grad(loss(pure)))
    close(fx.grad(loss(functions))(X), slope(X), "grad")
    close(fx.jit(fx.grad(loss(functions)))(X), slope(X), "jit(grad)")
    close(fx.vmap(fx.grad(loss(functions)))(ROWS), jnp.stack([slope(x) for x in ROWS]), "vmap")
    close(jax.grad(fx.jit(loss(functions)))(X), slope(X), "jax.grad(jit)")


def close(got, want, what):
    onp.testing.assert_allclose(got, want, rtol=2e-4, atol=1e-5, err_msg=what)


@pytest.mark.parametrize("names", GROUPS, ids=lambda names: names[0])
def test_jax_code_inside_gives_the_values_and_gradients_of_jax(names):
    table = {name: PLAIN[name] for name in names}
    check(table, table)


@pytest.mark.parametrize("names", NESTED_GROUPS, ids=lambda names: names[0])
def test_transforms_of_jax_inside_nest_with_those_of_functx(names):
    check(
        {name: partial(NESTED[name], fx.numpy) for name in names},
        {name: partial(NESTED[name], jnp) for name in names},
    )


def test_solvers_whose_backward_rule_is_not_linear():
    times = jnp.linspace(0.0, 1.0, 5)
    table = {
        "odeint": lambda x: odeint(lambda y, t, p: -p * y, x, times, x)[-1],
        "odeint of a closure": lambda x: odeint(lambda y, t: -x * y, x, times)[-1],
    }
    check(table, table)


def test_rules_of_jax_may_use_traced_values_around_them():
    def closing_over(x, c):
        @jax.custom_vjp
        def g(x):
            return jnp.sin(x)

        @jax.custom_jvp
        def h(x):
            return jnp.cos(x)

        g.defvjp(lambda x: (jnp.sin(x), (x, c * 2)), lambda r, ct: (ct * c * r[1],))
        h.defjvp(lambda p, t: (jnp.cos(p[0]), t[0] * c))
        return jnp.sum(g(x) * h(x))

    @partial(jax.custom_jvp, nondiff_argnums=(0, 1))
    def scaled(n, d, x):
        return x * 1.0

    scaled.defjvp(lambda n, d, p, t: (p[0], t[0] * n * d["a"]))

    def static(x, c):
        return jnp.sum(scaled(3, {"a": c}, x) + scaled(4, {"a": 5.0}, x))

    def expn(x, c):
        return jnp.sum(jax.scipy.special.expn(c, x))

    orders = jnp.array([2.0, 2.0, 3.0])
    for f in (closing_over, static, expn):
        want = jax.jit(jax.grad(f))(X, orders)
        close(fx.grad(f)(X, orders), want, "grad")
        close(fx.jit(fx.grad(f))(X, orders), want, "jit(grad)")
        rows = jnp.stack([orders, orders + 1])
        want = jax.jit(jax.vmap(jax.grad(f)))(ROWS, rows)
        close(fx.vmap(fx.grad(f))(ROWS, rows), want, "vmap(grad)")


def test_rules_of_jax_that_read_other_values_are_other_rules():
    factor = 1.0

    def made(k):
        @jax.custom_jvp
        def h(x):
            return jnp.cos(x)

        h.defjvp(lambda p, t: (jnp.cos(p[0]), t[0] * k * factor))
        return lambda x: jnp.sum(h(x))

    for k in (2.0, 3.0, X, X * 2):
        for factor in (1.0, 4.0):
            close(fx.grad(made(k))(X), jnp.ones(3) * k * factor, str(k))


def test_rules_of_jax_are_traced_for_derivatives_alone():
    @jax.custom_jvp
    def h(x):
        return x * 2

    h.defjvp(lambda p, t: 1 / 0)
    for f in (h, lambda x: h(x), fx.from_jax(lambda x: h(x))):
        for _ in range(2):
            close(fx.jit(f)(X), X * 2, "jit")
    with pytest.raises(ZeroDivisionError):
        fx.grad(lambda x: jnp.sum(h(x)))(X)


def test_jax_code_sees_what_arrays_hold_now():
    def f(x):
        b = np.zeros(3)
        tail = b[1:]
        first = jnp.sin(tail + x[:2])
        b[...] = x
        second, reshaped = jnp.sum(tail), jax.lax.reshape(b, (3, 1))
        b[0] = 9.0
        return first, second, reshaped, fx.from_jax(jax.lax.neg)(b), b

    got = fx.jit(f)(X)
    want = jnp.sin(X[:2]), jnp.sum(X[1:]), X[:, None], -X.at[0].set(9), X.at[0].set(9)
    for a, b in zip(got, want, strict=True):
        close(a, b, "")


def test_operators_of_captured_arrays_are_those_of_functx():
    ints = jnp.arange(1, 4)

    def numbers(x):
        y = WEIGHTS + x
        kept = y
        y += 1.0
        found = [kept, y, WEIGHTS - x, WEIGHTS * x, WEIGHTS / x, WEIGHTS**x, WEIGHTS // x]
        return [*found, WEIGHTS % x, *divmod(WEIGHTS, x), A @ x]

    def bits(n):
        return [ints & n, ints | n, ints ^ n, ints << n, ints >> n]

    def within(x):
        return jax.vmap(lambda a: (WEIGHTS + a) * x)(A).sum() + jax.grad(lambda a: (A @ a) @ x)(x)

    for f, x in ((numbers, X), (bits, ints), (within, X)):
        for got, want in zip(fx.jit(f)(x), jax.jit(f)(x), strict=True):
            onp.testing.assert_allclose(got, want, rtol=1e-6)
            assert got.dtype == want.dtype


def test_augmented_assignment_rebinds_what_jax_made():
    def f(np, x):
        y = before = jnp.sin(x)
        y *= 2
        z = same = y + np.cos(x)
        z -= x[:1]
        return before, y, same, z

    for got, want in zip(fx.jit(partial(f, np))(X), f(jnp, X), strict=True):
        close(got, want, "")


WRITERS = {
    "grad": lambda b: jax.grad(lambda y: (b.__setitem__(0, y), y)[1])(1.0),
    "scan": lambda b: jax.lax.scan(lambda c, y: (b.__setitem__(0, 1.0), (c, y))[1], 0.0, X),
    "jit": lambda b: jax.grad(lambda y: (fx.jit(lambda b: b.__setitem__(0, y))(b), y)[1])(1.0),
}


@pytest.mark.parametrize("how", WRITERS)
def test_what_jax_traces_must_not_write_to_arrays_around_it(how):
    with pytest.raises(CapturedWriteError, match="a function that JAX traces must not write"):
        fx.jit(lambda x: (WRITERS[how](x), x)[1])(onp.ones(3, "float32"))


def test_effects_stay_where_jax_puts_them(capsys):
    def f(x):
        jax.lax.cond(x[0] > 100, lambda: (fx.debug.print("never", x), 0)[1], lambda: 0)
        jax.lax.fori_loop(0, 2, lambda i, c: (fx.debug.print("twice"), c)[1], 0)
        jax.debug.print("JAX's {}", x[0])
        jax.debug.print("nothing traced")
        return x

    fx.jit(f)(X)
    fx.effects_barrier()
    lines = sorted(capsys.readouterr().out.splitlines())
    assert lines == ["JAX's 1.2999999523162842", "nothing traced", "twice", "twice"]


def test_named_axes_are_known_to_both():
    def inside(x):
        return x / jax.lax.psum(x, "i") + jax.lax.axis_index("i") + jax.lax.psum(1, "i")

    close(fx.vmap(inside, axis_name="i")(X), jax.vmap(inside, axis_name="i")(X), "functx outside")

    def outside(lax, x):
        def f(y):
            return lax.psum(y, "i") + lax.psum(x, "i") + lax.axis_index("i")

        return jax.vmap(f, axis_name="i")(x)

    close(fx.jit(partial(outside, fx.lax))(X), outside(jax.lax, X), "JAX outside")


def test_what_jax_gives_once_for_a_batch_has_no_batch_dimension():
    eqxi = pytest.importorskip("equinox.internal")

    def f(x):
        goes = eqxi.nonbatchable(eqxi.unvmap_any(x[0] > 2))
        loop = eqxi.while_loop(
            lambda c: c[0] < 3,
            lambda c: (c[0] + 1, jnp.sin(c[1]) * x),
            (0, x),
            max_steps=4,
            kind="checkpointed",
        )
        return jnp.sum(loop[1] * goes)

    rows = jnp.stack([X, X + 1])
    close(fx.vmap(fx.grad(f))(rows), jax.vmap(jax.grad(f))(rows), "vmap(grad)")


@jax.custom_jvp
def fixed(x):
    return x


@partial(fixed.defjvp, symbolic_zeros=True)
def fixed_jvp(primals, tangents):
    if type(tangents[0]) is not jax.custom_derivatives.SymbolicZero:
        raise RuntimeError("varies")
    return fixed(*primals), tangents[0]


@jax.custom_jvp
def with_floor(x):
    return 2 * x, jnp.floor(x)


@with_floor.defjvp
def with_floor_jvp(primals, tangents):
    return with_floor(*primals), (2 * tangents[0], jnp.zeros_like(*primals))


@jax.jit
def with_floor_in_reference(x):
    ref = jax.new_ref(2 * x)
    ref[...] = 2 * ref[...]
    return ref[...], jnp.floor(x)


STILL = {
    "sign": lambda x: (x, jnp.sign(x)),
    "rule": with_floor,
    "reference": with_floor_in_reference,
    "call": jax.jit(lambda x: (2 * x, with_floor(x)[1])),
    "scan": lambda x: jax.lax.scan(lambda c, _: ((c[0] * x, c[1] + 1), None), (x, 0.0), None, 3)[0],
    "cond": lambda x: jax.lax.cond(x > 0, with_floor, lambda x: (x, 2.0), x),
}


def test_outputs_that_jax_knows_not_to_vary_do_not():
    def product(give, x):
        moving, still = give(x)
        return moving * fixed(still)

    def alone(give, x):
        return give(x)[0] * give(1 * x)[1]

    for name, give in STILL.items():
        want = jax.grad(partial(alone, give))(1.3)
        for how in (
            fx.grad(partial(product, give)),
            lambda x, give=give: fx.jvp(partial(product, give), (x,), (1.0,))[1],
        ):
            close(how(jnp.float32(1.3)), want, name)
    with pytest.raises(RuntimeError, match="varies"):
        fx.grad(lambda x: product(lambda x: (x, jnp.sin(x)), x))(1.3)


def test_typed_keys_are_traced_as_their_words():
    def draws(key):
        first, second = jax.random.split(key)
        return jax.random.normal(first), jax.random.uniform(second, (2,)), jax.random.key_data(key)

    key = jax.random.key(0)
    for a, b in zip(fx.jit(draws)(key), draws(key), strict=True):
        close(a, b, "")
    keys = jax.random.split(key, 3)
    close(fx.vmap(jax.random.normal)(keys), jax.vmap(jax.random.normal)(keys), "vmap")
    both = fx.jit(lambda x: jax.random.normal(fx.random.split(jax.random.key(1))[0]) * x)
    close(both(X), jax.random.normal(jax.random.split(jax.random.key(1))[0]) * X, "functx.random")
    close(fx.jit(lambda x: jax.random.normal(key) * x)(X), jax.random.normal(key) * X, "closure")


KEYS = {
    "split": (jax.random.split, 0),
    "new": (lambda key: (jax.random.key(3), {"x": 1.0, "key": key}), 0),
    "indexed": (lambda key: jax.random.split(key, (3, 2))[1, -1], 0),
    "mapped": (
        lambda key: jax.vmap(jax.random.fold_in)(jax.random.split(key, 2), jnp.arange(2)),
        0,
    ),
    "last axes": (lambda key: jax.random.split(key, 2), -1),
}


def test_what_jax_is_told_to_evaluate_while_tracing_is_evaluated():
    seen = []

    def timed(x):
        with jax.ensure_compile_time_eval():
            seen.append(jax.nn.relu(jnp.where(True, -1.0, 2.0)))
            seen.append(jax.random.uniform(jax.random.key(0)))
            seen.append(jnp.full(3, 2.0))
            seen.append(jnp.sin(x))
            # JAX keeps an array that it would trace as a literal, which is no array to index.
            seen.append(jnp.asarray(onp.arange(3.0))[(x[0] > 100.0).astype(int)])
        return x * seen[2] + seen[4]

    close(fx.jit(fx.grad(lambda x: timed(x).sum()))(X), 2.0, "value")
    assert [isinstance(x, jax.core.Tracer) for x in seen[:5]] == [False, False, False, True, True]


def plain(tree):
    """The words in place of typed keys, and what says that they were keys."""
    leaves = jax.tree.leaves(tree)
    keys = [jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) for x in map(jnp.asarray, leaves)]
    words = [jax.random.key_data(x) if on else x for x, on in zip(leaves, keys, strict=True)]
    return words, [x.dtype if on else None for x, on in zip(leaves, keys, strict=True)]


def every_use_of_keys(of, names, key):
    """Results of functions of `KEYS` by the transforms of a module."""
    keys = jax.random.split(key, (2, 3))
    fold, lax = jax.random.fold_in, of.lax
    found = {}
    for name in names:
        fun, axis = KEYS[name]
        found[name] = [
            of.checkpoint(fun)(key),
            of.vmap(of.vmap(fun, axis, axis), axis, axis)(keys),
            lax.scan(lambda k, _, fun=fun: (fold(k, 1), fun(k)), key, jnp.ones(2)),
            lax.scan(lambda x, k, fun=fun: (x + 1.0, fun(k)), 0.0, keys[0]),
        ]
    found["cond"] = lax.cond(jnp.sum(key_sum(key)) > 0, lambda k: fold(k, 2), lambda k: k, key)
    found["while"] = lax.while_loop(
        lambda c: c[0] < 3, lambda c: (c[0] + 1, fold(c[1], c[0])), (0, key)
    )
    found["fori"] = lax.fori_loop(0, 3, lambda i, k: fold(k, i), key)
    found["aux"] = of.value_and_grad(lambda x, k: (x * key_sum(k), k), has_aux=True)(1.0, key)
    found["jvp"] = of.jvp(lambda x: (x, key), (1.0,), (2.0,))[0]
    return found


def rules_with_keys(of, key):
    """Results of functions with rules, of maps and of devices, which get and return keys."""
    fold, split = jax.random.fold_in, jax.random.split

    def f(x, key):
        return x * key_sum(key), fold(key, 1)

    jvp, vjp, symbolic = of.custom_jvp(f), of.custom_vjp(f), of.custom_vjp(f)
    rows, one_by_one = of.custom_batching.custom_vmap(f), of.custom_batching.sequential_vmap(f)
    jvp.defjvp(lambda xs, ts: (f(*xs), (ts[0] * key_sum(fold(xs[1], 2)), ts[1])))
    vjp.defvjp(lambda x, k: (f(x, k), fold(k, 3)), lambda k, ct: (ct[0] * key_sum(k), None))
    symbolic.defvjp(
        lambda x, k: (f(x.value, k.value), (k.value, k.perturbed)),
        lambda saved, ct: (ct[0] * key_sum(saved[0]) + saved[1], None),
        symbolic_zeros=True,
    )

    @rows.def_vmap
    def _(size, batched, x, k):
        return (x * size, jax.vmap(partial(fold, data=4))(k)), tuple(batched)

    keys, xs, found = split(key, 4), jnp.arange(4.0), {}
    for name, fun in {"jvp": jvp, "vjp": vjp, "symbolic": symbolic}.items():
        gradient = of.grad(fun, has_aux=True)
        found[name] = fun(2.0, key), gradient(2.0, key), of.vmap(gradient)(xs, keys)
    for name, fun in {"rows": rows, "one_by_one": one_by_one}.items():
        found[name] = fun(2.0, key), of.vmap(fun)(xs, keys)
    found["map"] = [of.lax.map(partial(f, 2.0), keys, batch_size=n) for n in (2, 3)]
    mesh = jax.make_mesh((1,), ("d",), axis_types=(AxisType.Auto,))
    specs = PartitionSpec("d"), PartitionSpec()
    mapped = of.shard_map(f, mesh=mesh, in_specs=specs, out_specs=specs, check_vma=False)
    found["devices"] = mapped(xs, key)
    found["placed"] = of.lax.with_sharding_constraint(keys, NamedSharding(mesh, specs[0]))
    return found


def key_sum(key):
    return jnp.sum(jax.random.key_data(key) % 7).astype(jnp.float32)


@pytest.mark.parametrize("generator", ["threefry2x32", "rbg"])
def test_typed_keys_are_keys_inside_and_as_results(generator):
    key = jax.random.key(0, impl=generator)

    def same(got, want):
        (words, dtypes), (wanted, types) = plain(got), plain(want)
        assert dtypes == types
        jax.tree.map(onp.testing.assert_array_equal, words, wanted)

    uses = jax.jit(partial(every_use_of_keys, jax, KEYS))(key)
    same(fx.jit(partial(every_use_of_keys, fx, KEYS))(key), uses)
    want = jax.jit(partial(rules_with_keys, jax))(key)
    same(fx.jit(partial(rules_with_keys, fx))(key), want)
    same(rules_with_keys(fx, key), want)
    if generator == "rbg":
        found = every_use_of_keys(fx, ["last axes"], key)
        same(found, {name: uses[name] for name in found})
    both = [fun for fun, _ in KEYS.values()]
    together = fx.jit(lambda key: [fx.from_jax(fun)(key) for fun in both])
    wanted = jax.jit(lambda key: [fun(key) for fun in both])(key)
    same(together(key), wanted)
    same(together.lower(key).compile()(key), wanted)
    keys = jax.random.split(key, 2)
    wanted = jax.jit(jax.vmap(lambda k: [fun(k) for fun in both]))(keys)
    same(jax.jit(jax.vmap(together))(keys), wanted)
    assert fx.eval_shape(jax.random.split, key) == jax.eval_shape(jax.random.split, key)


def test_traced_values_are_arrays_of_jax():
    seen = []

    def f(x):
        seen.append(isinstance(x, jax.Array) and isinstance(jnp.sin(x), jax.Array))
        seen.append(jax.typeof(x).shape == (3,) and jnp.result_type(x) == jnp.float32)
        return x if jnp.sum(x) > 0 else -x

    close(fx.grad(lambda x: jnp.sum(f(x)))(X), jnp.ones(3), "control flow")
    constants = fx.jit(lambda x: onp.asarray(jnp.ones(3)) * int(jnp.sum(jnp.ones(3))) * x)
    close(constants(X), 3 * X, "what depends on no argument has a value")
    assert seen == [True, True]
    with pytest.raises(ConcretizationError, match="`if` needs the value"):
        fx.jit(f)(X)


KINDS = {bool: "b", int: "i", float: "f"}


def test_rules_of_jax_may_read_dictionaries_whose_keys_have_no_order():
    @jax.custom_jvp
    def f(x):
        return jnp.sin(x) * len(KINDS)

    @f.defjvp
    def _(primals, tangents):
        return f(*primals), tangents[0] * len(KINDS)

    assert fx.jit(fx.grad(f))(0.5) == 3.0


def test_functions_return_values_of_a_trace_of_jax_around_them():
    def returned(fx_or_jax, numpy, y):
        lax, one = fx_or_jax.lax, numpy.ones(3)
        return [
            fx_or_jax.jit(lambda q: (y, q))(one)[0],
            fx_or_jax.vmap(lambda q: y, out_axes=None)(one),
            fx_or_jax.checkpoint(lambda q: y)(one),
            fx_or_jax.vjp(lambda q: (y, q), one)[0][0],
            fx_or_jax.grad(lambda q: (q.sum(), y), has_aux=True)(one)[1],
            lax.scan(lambda c, q: (y, y), one, one)[1][1],
            lax.fori_loop(0, 2, lambda i, c: y, one),
            lax.cond(y[0] > 0, lambda: y, lambda: y * 2),
            lax.cond(y[0] < 0, lambda a: (a, y), lambda a: (y, a), y)[0],
            lax.switch(numpy.argmax(y), [lambda: y, lambda: one, lambda: y]),
        ]

    x, wide = jnp.array([0.4, -0.8, 1.3]), jnp.ones((2, 3)) * jnp.array([[0.5], [-2.0]])
    theirs, ours = [
        lambda x, module=module, numpy=numpy: jnp.stack(returned(module, numpy, jnp.sin(x)))
        for module, numpy in ((jax, jnp), (fx, np))
    ]
    for verb in (jax.jit, jax.jacfwd, jax.jacrev):
        onp.testing.assert_allclose(verb(ours)(x), jax.jit(verb(theirs))(x), rtol=1e-6)
    onp.testing.assert_allclose(jax.vmap(ours)(wide), jax.jit(jax.vmap(theirs))(wide), rtol=1e-6)


def test_what_a_jitted_function_of_jax_makes_of_arrays_alone_is_its_own():
    w = np.array([1.0, 2.0, 3.0])
    for around in (jax.jit, jax.checkpoint):
        kept = around(lambda x: np.outer(w, w) @ x + np.full(3, 2.0) * w + np.zeros(3))
        for _ in range(2):
            for call in (fx.grad, lambda f: fx.jit(fx.grad(f))):
                found = call(lambda y, kept=kept: np.sum(kept(y)))(np.ones(3))
                assert found.tolist() == [6.0, 12.0, 18.0]


def test_jax_takes_arrays_of_functx_around_the_function_as_its_own():
    rows, table = np.array([1, 0, 2, 1]), np.arange(4.0)

    def f(x):
        staged = jnp.asarray(table) + jnp.stack([table, x])[0] + jnp.where(rows > 0, x, table)
        return jax.ops.segment_sum(x * staged, rows, 3).sum() + jnp.take(table, rows) @ x

    x = onp.arange(4.0, dtype="float32") + 1.0
    wanted = jax.jit(jax.grad(f))(x)
    for call in (fx.grad(f), fx.jit(fx.grad(f)), lambda x: fx.vmap(fx.grad(f))(x[None])[0]):
        onp.testing.assert_allclose(call(x), wanted, rtol=1e-6)


def test_functions_of_jax_take_integers_that_the_caller_of_a_transform_gave():
    def f(x, n):
        return jax.lax.fori_loop(0, n, lambda i, c: c + x * jnp.arange(n)[i], x)

    assert fx.vmap(f, in_axes=(0, None))(onp.float32([1, 2]), 4).tolist() == [7, 14]
    assert [float(fx.grad(f)(2.0, n)) for n in (4, 3)] == [7, 4]
    with pytest.raises(jax.errors.ConcretizationTypeError):
        fx.vmap(f, in_axes=(None, 0))(2.0, onp.arange(3))


def pulled_back(x):
    out, pullback = jax.vjp(jnp.sin, x)
    return pullback(out)[0]


def called_back(x):
    return jax.pure_callback(onp.cos, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


@pytest.mark.parametrize("f", [pulled_back, called_back, lambda x: x * jax.lax.psum(x, "d")])
def test_shard_map_of_jax_is_traced_with_its_pytrees(f):
    specs = {"x": PartitionSpec("d")}
    mesh = jax.make_mesh((1,), ("d",), axis_types=(AxisType.Auto,))

    def mapped(of, x):
        body = jax.shard_map(
            lambda a: {"y": (f(a["x"]), a["x"])},
            mesh=mesh,
            in_specs=(specs,),
            out_specs={"y": PartitionSpec("d")},
        )
        known = body({"x": X})["y"][0]
        return body({"x": x})["y"][0] * known + body({"x": x * x})["y"][1]

    for of in (jax, fx):
        found = of.jit(partial(mapped, of))(X)
        onp.testing.assert_allclose(found, mapped(jax, X), rtol=1e-6)
    if f is not called_back:
        slopes = [of.grad(lambda x, of=of: mapped(of, x).sum())(X) for of in (jax, fx)]
        onp.testing.assert_allclose(slopes[1], slopes[0], rtol=1e-6)


def repeated(step, x):
    return fx.lax.fori_loop(0, 3, lambda i, y: step(y), x)


WAYS_TO_CALL = {
    "jit": lambda f: fx.jit(f)(2.0),
    "grad": lambda f: fx.grad(f)(2.0),
    "vmap": lambda f: fx.vmap(f)(X),
    "loop": lambda f: repeated(f, 2.0),
    "branch": lambda f: fx.lax.cond(False, f, lambda x: x, 2.0),
    "jit of JAX": lambda f: fx.jit(jax.jit(f))(2.0),
    "from_jax": lambda f: fx.jit(fx.from_jax(f))(2.0),
}
USES_OF_REFERENCES = {
    "a traced value": lambda ref, x: ref.__setitem__(..., ref[...] + x),
    "a constant array": lambda ref, x: ref.__setitem__(..., X),
    "an element": lambda ref, x: ref[1],
    "a sum": lambda ref, x: jax.ref.addupdate(ref, ..., X),
}


@pytest.mark.parametrize("how", WAYS_TO_CALL)
@pytest.mark.parametrize("use", USES_OF_REFERENCES)
def test_traces_do_not_write_to_references_of_jax(how, use):
    ref = jax.new_ref(X)
    with pytest.raises(CapturedWriteError, match="must not write to a Ref of JAX"):
        WAYS_TO_CALL[how](lambda x: (USES_OF_REFERENCES[use](ref, x), x)[1])
    onp.testing.assert_array_equal(ref[...], X)


def test_a_whole_reference_of_jax_is_read_at_each_call():
    ref = jax.new_ref(jnp.float32(1.0))
    f = fx.jit(fx.grad(lambda x: repeated(lambda y: y * ref[...], x)))
    assert f(2.0) == 1.0
    ref[...] = 2.0
    assert f(2.0) == 8.0


def test_functions_under_the_jit_of_jax_may_have_references():
    def f(x):
        ref = jax.new_ref(x)
        ref[...] = ref[...] * x
        return jax.ref.freeze(ref)

    assert fx.grad(jax.jit(f))(3.0) == 6.0
    with pytest.raises(CapturedWriteError, match="must not write to a Ref of JAX"):
        fx.grad(f)(3.0)
