"""Comparison of tables of calls with JAX, compiled as one program to save time.

A call is a text with the namespace `np` and the operands below. `numpy` is NumPy.
"""

import jax
import jax.numpy as jnp
import numpy

import functx.numpy
from functx.core.rewriting import apply
from functx.core.tracing import trace
from functx.core.types import ShapedArray, canonical_dtype
from tests.numpy.agreement import same

_random = numpy.random.RandomState(0)
OPERANDS = {
    "b": numpy.array([True, False, True]),
    "b2": numpy.array([[True, False, True], [False, False, True]]),
    "i": numpy.array([[1, -2, 3], [4, -5, 0]], "int32"),
    "i3": numpy.array([3, 1, 2], "int32"),
    "whole": numpy.array([5, -7, 8, 0, -9, 15, 2147483647], "int32"),
    "parts": numpy.array([2, 2, -3, 0, 0, -4, -1], "int32"),
    "i8": numpy.array([3, -100, 7], "int8"),
    "u8": numpy.array([3, 200, 0], "uint8"),
    "u": numpy.array([3, 7, 1], "uint32"),
    "s": numpy.float32(1.5),
    "f": _random.uniform(-2, 2, (2, 3)).astype("float32"),
    "g": _random.uniform(0.5, 2, 3).astype("float32"),
    "t": _random.uniform(-2, 2, (2, 3, 4)).astype("float32"),
    "none": numpy.zeros((0, 3), "float32"),
    "odd": numpy.array([0, -0.0, numpy.inf, -numpy.inf, numpy.nan, 1, -1, 2.5, -1.5], "float32"),
    "odd2": numpy.array([numpy.nan, 1, 0, -numpy.inf, numpy.inf, 2, -3, 0.5, -0.5], "float32"),
    "gaps": numpy.array([2, -3, numpy.nan, 0.5, -0.5], "float32"),
    "bf": _random.uniform(-2, 2, 3).astype(jnp.bfloat16),
    "h": _random.uniform(-2, 2, 3).astype("float16"),
    "c": (_random.uniform(-2, 2, 3) + 1j * _random.uniform(-2, 2, 3)).astype("complex64"),
}


def calls(text):
    return [line.strip() for line in text.splitlines() if line.strip()]


def evaluate(texts, namespace, values):
    scope = {"np": namespace, "numpy": numpy, **values}
    return [eval(text, scope) for text in texts]


def functx_program(texts):
    """The functx program of the calls, its captured values, and the number of results of each call."""
    avals = [ShapedArray(x.shape, canonical_dtype(x.dtype)) for x in OPERANDS.values()]

    def body(*xs):
        outs = evaluate(texts, functx.numpy, dict(zip(OPERANDS, xs, strict=True)))
        outs = [jax.tree.flatten(out, is_leaf=lambda x: hasattr(x, "aval"))[0] for out in outs]
        sizes.extend(map(len, outs))
        return [x for out in outs for x in out]

    sizes = []
    program, captured = trace(body, avals)
    return program, captured, sizes


def jax_function(texts):
    def body(*xs):
        return evaluate(texts, jnp, dict(zip(OPERANDS, xs, strict=True)))

    return body


def check_values(texts):
    """Require the values, dtypes and weak types of JAX."""
    program, captured, sizes = functx_program(texts)
    expected = jax.jit(jax_function(texts))(*OPERANDS.values())
    outs = iter(
        zip(program.outputs, apply(None, program, [*OPERANDS.values(), *captured]), strict=True)
    )
    wrong = []
    for text, size, want in zip(texts, sizes, expected, strict=True):
        pairs = [next(outs) for _ in range(size)]
        try:
            same([value for _, value in pairs], want, weak=False)
            check_weak([atom.aval for atom, _ in pairs], want)
        except AssertionError as error:
            wrong.append(f"{text}: {error}")
    assert not wrong, "\n".join(wrong)


def check_types(texts):
    """Require the shapes and dtypes of JAX."""
    program, _, sizes = functx_program(texts)
    expected = jax.eval_shape(jax_function(texts), *OPERANDS.values())
    outs = iter(program.outputs)
    wrong = []
    for text, size, want in zip(texts, sizes, expected, strict=True):
        avals = [next(outs).aval for _ in range(size)]
        want = jax.tree.leaves(want)
        if [(a.shape, a.dtype) for a in avals] != [(a.shape, a.dtype) for a in want]:
            wrong.append(f"{text}: {avals}, not {want}")
    assert not wrong, "\n".join(wrong)


def check_weak(avals, expected):
    """Require the weak types of JAX; comparisons are never weak in functx."""
    for aval, want in zip(avals, jax.tree.leaves(expected), strict=True):
        assert aval.weak_type == want.weak_type or aval.dtype == bool, f"got {aval}"


def check_at_once(texts):
    """Require that calls outside a trace return NumPy arrays, equal to the results of the program."""
    program, captured, sizes = functx_program(texts)
    outs = iter(apply(None, program, [*OPERANDS.values(), *captured]))
    for text, size in zip(texts, sizes, strict=True):
        values = jax.tree.leaves(evaluate([text], functx.numpy, OPERANDS))
        assert all(isinstance(x, (numpy.ndarray, numpy.generic)) for x in values), text
        same(values, [next(outs) for _ in range(size)], weak=False)
