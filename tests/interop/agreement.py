"""What a JAX function gives through `from_jax`, beside what JAX makes of it."""

import jax
import jax.numpy as jnp
import numpy as onp

import functx as fx
from functx.testing import interpret_in_numpy


def differentiable(args):
    """The positions of the real operands."""
    return tuple(i for i, x in enumerate(args) if onp.asarray(x).dtype.kind == "f")


def scalar(f):
    """`f` followed by a weighted sum of all that it returns and that can vary."""

    def loss(*args):
        total = jnp.zeros(())
        for x in jax.tree.leaves(f(*args)):
            if jnp.issubdtype(x.dtype, jnp.inexact):
                weights = jnp.cos(jnp.arange(x.size, dtype="float32")).reshape(x.shape)
                total += jnp.sum(jnp.real(x) * weights + 0.5 * jnp.imag(x))
        return total

    return loss


def interpreted(f, *args):
    """The results of a function by the NumPy definitions of its program, which need no compilation."""
    structures = []

    def leaves(*args):
        found, structure = jax.tree.flatten(f(*args))
        structures.append(structure)
        return found

    outs = interpret_in_numpy(fx.make_ir(leaves)(*args), *jax.tree.leaves(args))
    return jax.tree.unflatten(structures[-1], outs)


def check(f, *args, derivatives=True, batches=True, tolerance=2e-3):
    """Fail unless `from_jax(f)` agrees with `f` in values, derivatives and batches."""
    numbers = differentiable(args) if derivatives else ()
    loss = scalar(f)
    batch = [onp.stack([x, x[::-1]]) for x in map(onp.asarray, args)]

    def of_numbers(loss):
        def of_numbers(*xs):
            rest = iter(xs)
            return loss(*[next(rest) if i in numbers else x for i, x in enumerate(args)])

        return of_numbers

    def by_jax(xs, batch):
        found = {"batch": jax.vmap(f)(*batch)} if batches else {}
        if numbers:
            found["gradient"] = jax.grad(of_numbers(loss), range(len(xs)))(*xs)
        return found

    def by_functx(xs, batch):
        found = {}
        if batches:
            found["batch"] = fx.vmap(fx.from_jax(f))(*batch)
        if numbers:
            through = of_numbers(fx.from_jax(loss))
            found["gradient"] = fx.grad(through, tuple(range(len(xs))))(*xs)
            found["derivative"] = fx.jvp(through, xs, tuple([x * 0 + 1 for x in xs]))[1]
        return found

    def compiled(args, xs, batch):
        return by_jax(xs, batch), fx.jit(fx.from_jax(f), inline=True)(*args)

    numbers_given = [args[i] for i in numbers]
    wanted, value = jax.jit(compiled)(list(args), numbers_given, batch)
    given = {"value": value, **interpreted(by_functx, numbers_given, batch)}
    # What JAX need not compute for the comparison.
    wanted["value"] = jax.tree.map(lambda x: x[0], wanted["batch"]) if batches else f(*args)
    if numbers:
        total = sum([onp.asarray(x, "float64").sum() for x in wanted["gradient"]])
        wanted["derivative"] = onp.asarray(total, jax.eval_shape(loss, *args).dtype)
    for kind in wanted:
        assert jax.tree.structure(wanted[kind]) == jax.tree.structure(given[kind])
        for x, y in zip(jax.tree.leaves(given[kind]), jax.tree.leaves(wanted[kind]), strict=True):
            assert (x.shape, x.dtype) == (y.shape, y.dtype), kind
            exact = y.dtype.kind not in "fcV"
            x, y = [v if exact else onp.asarray(v, "complex128") for v in (x, y)]
            bound = 0 if exact else 3e-4 if kind in ("value", "batch") else tolerance
            onp.testing.assert_allclose(x, y, rtol=bound, atol=bound, err_msg=kind)
