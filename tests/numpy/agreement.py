"""Comparison of calls of a functx namespace with the same calls of the JAX namespace.

A call is a text with the namespace, `np` or `lax`, and operands `x`, `y` and `z`, followed by the
types of the operands: `("np.matmul(x, y)", "f32[2,3]", "f32[3]")`.
"""

import jax
import jax.numpy as jnp
import numpy

from functx.lowering.jit import jit
from functx.transforms.jvp import jvp, vjp
from functx.transforms.vmap import vmap

TOLERANCE = {"float16": 2e-3, "bfloat16": 2e-2, "float64": 1e-11, "complex128": 1e-11}
DTYPES = {"f": "float", "bf": "bfloat", "i": "int", "u": "uint", "c": "complex", "bool": "bool"}


def operand(random, text):
    """A random array of a type such as `f32[2,3]`; `~f32[2,3]` is weakly typed."""
    name, _, dims = text.lstrip("~").rstrip("]").partition("[")
    shape = tuple(int(n) for n in dims.split(",") if n)
    letters = name.rstrip("0123456789")
    dtype = jnp.dtype(DTYPES[letters] + name[len(letters) :])
    if text.startswith("~"):
        return jnp.full(shape, random.uniform(-2, 2))
    if dtype.kind in "iub":
        x = random.randint(0 if dtype.kind in "ub" else -9, 2 if dtype.kind == "b" else 10, shape)
    else:
        x = random.uniform(-2, 2, shape)
    if dtype.kind == "c":
        x = x + 1j * random.uniform(-2, 2, shape)
    return numpy.asarray(x).astype(dtype)


def operands(types, seed=0):
    random = numpy.random.RandomState(seed)
    return [operand(random, text) for text in types]


def function(text, namespace):
    code = compile(text, text, "eval")

    def call(*args):
        scope = {
            "np": namespace,
            "lax": namespace,
            "numpy": numpy,
            **dict(zip("xyz", args, strict=False)),
        }
        return eval(code, scope)

    return call


def agree(ours, theirs, text, *types):
    """Require equal results of the call under `jit` in both namespaces."""
    args = operands(types)
    same(jit(function(text, ours))(*args), jax.jit(function(text, theirs))(*args))


def agree_at_once(ours, theirs, text, *types):
    """Require equal results of the call outside a trace in both namespaces."""
    args = operands(types)
    expected = function(text, theirs)(*[jnp.asarray(x) for x in args])
    same(function(text, ours)(*args), expected, weak=False)


def agree_mapped(ours, theirs, text, *types):
    """Require equal results of the call under `vmap` over two elements in both namespaces."""
    batches = [numpy.stack(pair) for pair in zip(operands(types), operands(types, 1), strict=True)]
    found = vmap(function(text, ours))(*batches)
    same(found, jax.jit(jax.vmap(function(text, theirs)))(*batches), weak=False)


def agree_in_derivatives(ours, theirs, text, *types):
    """Require equal VJPs and JVPs of the call in both namespaces."""
    primals, tangents = operands(types), operands(types, seed=1)
    out, back = jax.vjp(function(text, theirs), *primals)
    cts = jax.tree.map(cotangent, out)
    found, pullback = vjp(function(text, ours), *primals)
    given = jax.tree.unflatten(jax.tree.structure(found), jax.tree.leaves(cts))
    same(pullback(given), back(cts), weak=False)
    expected = jax.jvp(function(text, theirs), primals, tangents)[1]
    found = jvp(function(text, ours), tuple(primals), tuple(tangents))[1]
    same(found, expected, weak=False)


def cotangent(x):
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        return numpy.zeros(x.shape, jax.dtypes.float0)
    return numpy.cos(numpy.arange(x.size)).reshape(x.shape).astype(x.dtype)


def known_leaves(tree):
    """The leaves without float0 tangents, which JAX returns and functx omits."""
    return [x for x in jax.tree.leaves(tree) if x.dtype != jax.dtypes.float0]


def same(found, expected, weak=True):
    found, expected = known_leaves(found), known_leaves(expected)
    assert len(found) == len(expected), f"{len(found)} results for {len(expected)}"
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.shape == theirs.shape
        assert ours.dtype == theirs.dtype
        if weak:
            assert getattr(ours, "weak_type", False) == getattr(theirs, "weak_type", False)
        if theirs.dtype.kind in "iub":
            numpy.testing.assert_array_equal(ours, theirs)
            continue
        wide = numpy.complex128 if theirs.dtype.kind == "c" else numpy.float64
        tolerance = TOLERANCE.get(str(theirs.dtype), 2e-5)
        numpy.testing.assert_allclose(
            numpy.asarray(ours).astype(wide),
            numpy.asarray(theirs).astype(wide),
            tolerance,
            tolerance,
        )


def label(call):
    return " ".join(map(str, call))
