"""Comparison of calls of a functx namespace with the same calls of the JAX namespace.

A call is a text with the namespace, `np` or `lax`, and operands `x`, `y` and `z`, followed by the
types of the operands: `("np.matmul(x, y)", "f32[2,3]", "f32[3]")`.
"""

import jax
import jax.numpy as jnp
import numpy

import functx

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


def values(framework, call):
    return call


def values_of_a_batch(framework, call):
    return framework.vmap(call)


def derivatives(framework, call):
    def cotangents_and_tangents(primals, tangents):
        out, pullback = framework.vjp(call, *primals)
        cotangents = pullback(jax.tree.map(cotangent, out))
        return known_leaves([cotangents, framework.jvp(call, tuple(primals), tuple(tangents))[1]])

    return cotangents_and_tangents


class Agreement:
    """Calls whose results must be equal in both namespaces under `jit`.

    A few are compiled in one program for each namespace, since small programs take the compiler no
    less time than large ones. Where such a program has an error, each of its calls gets its own.
    """

    def __init__(self, ours, theirs, calls, evaluation=values, weak=True):
        self.namespaces = (functx, ours), (jax, theirs)
        self.calls, self.evaluation, self.weak = list(calls), evaluation, weak
        self.results = {}

    def check(self, call, size=16):
        number = self.calls.index(call)
        first = number - number % size
        if first not in self.results:
            try:
                self.results[first] = self.evaluate(self.calls[first : first + size])
            except Exception:
                self.results[first] = None
        found, expected = self.results[first] or self.evaluate([call])
        place = number - first if self.results[first] else 0
        same(found[place], expected[place], self.weak)

    def evaluate(self, calls):
        """The results of the calls in both namespaces."""
        args = [self.operands(types) for _, *types in calls]
        results = []
        for framework, namespace in self.namespaces:
            evaluations = [
                self.evaluation(framework, function(text, namespace)) for text, *_ in calls
            ]

            def together(args, evaluations=evaluations):
                return [f(*xs) for f, xs in zip(evaluations, args, strict=True)]

            results.append(framework.jit(together)(args))
        return results

    def operands(self, types):
        if self.evaluation is values:
            return operands(types)
        pairs = operands(types), operands(types, seed=1)
        if self.evaluation is derivatives:
            return pairs
        return [numpy.stack(pair) for pair in zip(*pairs, strict=True)]


def agree_at_once(ours, theirs, text, *types):
    """Require equal results of the call outside a trace in both namespaces."""
    args = operands(types)
    try:
        expected = jax.jit(function(text, theirs))(*args)
    except (jax.errors.JAXTypeError, jax.errors.JAXIndexError):
        # The values of the operands decide about the shape. NumPy compiles nothing, in wider types.
        expected = jax.tree.map(
            lambda x: numpy.asarray(x, jax.dtypes.canonicalize_dtype(numpy.asarray(x).dtype)),
            function(text, numpy)(*args),
        )
    same(function(text, ours)(*args), expected, weak=False)


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
