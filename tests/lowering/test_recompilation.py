"""Warnings of calls that compile again and again: when, and what they say."""

import warnings
from functools import partial

import jax
import numpy as np
import pytest

import functx
import functx.numpy as fnp
from functx import grad, jit, vjp, vmap
from functx.core.errors import RecompilationWarning
from functx.lowering.recompilation import COMPILATIONS_BEFORE_WARNING

TIMES = range(1, COMPILATIONS_BEFORE_WARNING + 4)


def ones(n):
    return np.ones(n, "float32")


def shapes():
    f = jit(lambda x, y: x * y)
    for n in TIMES:
        f(ones(n), 2.0)


def dtypes():
    f = jit(lambda x: x + x)
    for dtype in ("int8", "int16", "int32", "uint8", "uint16", "float32"):
        f(np.ones(2, dtype))


def weak_types():
    f = jit(lambda y, x: x["a"] * y)
    for n in TIMES:
        f(2.0 if n % 2 else np.float32(2.0), {"a": ones(n // 2)})


def static_arguments():
    f = jit(lambda x, n: x * n, static_argnums=1)
    for n in TIMES:
        f(2.0, n)


def static_keywords():
    def scale(x, *, n):
        return x * n

    f = jit(scale, static_argnames="n")
    for n in TIMES:
        f(2.0, n=n)


def new_functions():
    for n in TIMES:
        jit(lambda x, n=n: x * n)(2.0)


def new_partials():
    for n in TIMES:
        jit(partial(fixed, n=n))(2.0)


def fixed(x, n):
    return x * n


def new_gradients():
    for n in TIMES:
        jit(grad(lambda x, n=n: x * n))(2.0)


def structures():
    f = jit(lambda xs: sum(xs.values()))
    for n in TIMES:
        f({str(i): 1.0 for i in range(n)})


def wide_types():
    f = jit(lambda x: x * 2.0)
    for n in TIMES:
        with jax.enable_x64(n % 2 == 0):
            f(np.ones(n // 2))


def shapes_of_a_gradient():
    for n in TIMES:
        grad(lambda x: (x * x).sum())(ones(n))


def shapes_of_a_pullback():
    for n in TIMES:
        vjp(lambda x: x * 2.0, ones(n))


def lengths_of_a_batch():
    for n in TIMES:
        vmap(lambda x: x + 1.0)(ones(n))


def captured_arrays():
    for n in TIMES:
        w = ones(n)
        grad(lambda x, w=w: (x * w).sum())(2.0)


def captured_arrays_of_jit():
    for n in TIMES:
        w = ones(n)
        jit(lambda x, w=w: (x * w).sum())(2.0)


def lengths_of_a_loop():
    for n in TIMES:
        grad(lambda x, n=n: powers(x, n))(2.0)


def powers(x, n):
    for _ in range(n):
        x = fnp.sin(x)
    return x


def ints_in_a_shape():
    for n in TIMES:
        vmap(lambda x, n=n: x[:n].sum())(np.ones((2, 20), "float32"))


def ints_in_an_exponent():
    for n in TIMES:
        grad(lambda x, n=n: x**n)(2.0)


@pytest.mark.parametrize(
    ("calls", "what", "differing", "cure"),
    [
        (shapes, "jit(lambda)", "argument `x`: f32[5] before, f32[6] now", "Pad `x`"),
        (dtypes, "jit(lambda)", "argument `x`: u16[2] before, f32[2] now", "Convert `x` to one"),
        (weak_types, "jit(lambda)", "argument `y`: ~f32[] before, f32[] now", "weak type (~)"),
        (static_arguments, "jit(lambda)", "static argument `n`: 5 before, 6 now", "not static"),
        (static_keywords, "jit(scale)", "static argument `n`: 5 before, 6 now", "not static"),
        (new_functions, "jit(lambda)", "the function: it is a new object", "Call jit once"),
        (new_partials, "jit(partial)", "the function: it is a new object", "Call jit once"),
        (new_gradients, "jit(grad_lambda)", "the function: it is a new object", "Call jit once"),
        (structures, "jit(lambda)", "the structure of the arguments: PyTreeDef", "same keys"),
        (wide_types, "jit(lambda)", "jax_enable_x64: False before, True now", "Set it once"),
        (shapes_of_a_gradient, "lambda", "argument `x`: f32[5] before, f32[6] now", "Pad `x`"),
        (shapes_of_a_pullback, "lambda", "argument `x`: f32[5] before, f32[6] now", "Pad `x`"),
        (lengths_of_a_batch, "lambda", "argument `x`: f32[5] before, f32[6] now", "Pad `x`"),
        (captured_arrays, "lambda", "function captures: f32[5] before, f32[6]", "as an argument"),
        (captured_arrays_of_jit, "jit(lambda)", "function captures: f32[5] before", "argument"),
        (lengths_of_a_loop, "lambda", "5 operations before, 6 now", "functx.lax.fori_loop"),
        (
            ints_in_a_shape,
            "lambda",
            "slice[start=(0,), limit=(5,)] before, slice[start=(0,), limit=(6,)] now, at test_recomp",
            "decides a shape",
        ),
        (ints_in_an_exponent, "lambda", "integer_pow[exponent=5] before", "an exponent"),
    ],
)
def test_a_call_that_compiles_again_and_again_is_told_once(calls, what, differing, cure):
    functx.clear_caches()
    with pytest.warns(RecompilationWarning) as caught:
        calls()
    (warning,) = caught
    text = str(warning.message)
    assert text.startswith(f"{what}: one call should compile a few times at most")
    assert f"got {COMPILATIONS_BEFORE_WARNING + 1} times" in text
    assert differing in text
    assert cure in text
    assert f"test_recompilation.py:{warning.lineno} in {calls.__name__}: " in text
    assert warning.filename == __file__


def test_what_was_captured_compiles_little_as_an_argument_of_few_shapes():
    functx.clear_caches()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        f = jit(lambda x, w: (x * w).sum())
        for n in TIMES:
            f(2.0, ones(8 * (1 + n // 8)))


def test_calls_that_compile_a_handful_of_times_are_not_told():
    functions = [fnp.sin, fnp.cos, fnp.tan, fnp.exp, fnp.log, fnp.sqrt, fnp.tanh, fnp.arctan]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Other functions, at one place, of one code.
        for function in functions:
            assert np.isfinite(jit(lambda x, f=function: f(x))(0.5))
            assert np.isfinite(grad(lambda x, f=function: f(x))(0.5))
        # Other numbers, which compile twice.
        for n in TIMES:
            grad(lambda x, v=float(n): fnp.log(x) * v)(0.5)
        f = jit(lambda x: x * 3.0)
        for n in range(COMPILATIONS_BEFORE_WARNING):
            f(ones(n))
        for _ in range(20):
            f(ones(2))


def test_forgetting_what_was_compiled_starts_the_count_anew():
    f = jit(lambda x: x * 3.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in TIMES:
            functx.clear_caches()
            f(2.0)
