"""Random functions of arrays, made of every primitive, control flow, custom rules and writes.

A seed and the types of the arguments determine a function, so every trace of it is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import prod
from typing import Any, TypeVar

import jax
import numpy as np
from numpy.random import RandomState

import functx
import functx.numpy as fnp
from functx import lax
from functx.core.errors import FunctxError
from functx.core.primitive import Primitive
from functx.core.samples import Sample, avals_with_dtype, draw_operands
from functx.core.tracer import aval_of
from functx.core.types import DTYPES_BY_SHORT_NAME, ShapedArray, is_complex, is_inexact, kind
from functx.core.typing import Function, NumPyArray, Value, Values
from functx.ops.views import Copy

T = TypeVar("T")

DTYPES = ("f32",) * 8 + (
    "bf16",
    "f16",
    "f64",
    "f64",
    "c64",
    "c128",
    "i32",
    "i64",
    "i8",
    "u8",
    "bool",
)
SHAPES = ((), (3,), (4,), (2, 3), (3, 3), (1, 4), (2, 3, 2), (0, 3))

EXCLUDED_PRIMITIVES = frozenset(
    {
        *("custom_jvp", "custom_vjp", "custom_vmap", "custom_root", "custom_linear_solve"),
        *("shard_map", "sharding_constraint", "pure_callback", "named_axis_map"),
        *("rematerialized_call", "masked_operand", "any_active"),
    }
)
"""Primitives that hold rules, need devices or the host, or occur only in results of rules."""


@cache
def eligible_primitives() -> list[type[Primitive]]:
    """The primitives of functx that a random function may apply to the operands of their samples.

    Primitives with effects or named axes are left out.
    """
    return [
        cls
        for name, cls in sorted(Primitive.registry.items())
        if cls.__module__.startswith("functx.") and name not in EXCLUDED_PRIMITIVES
        if cls.samples and not cls(**cls.samples[0].params).is_context_dependent
    ]


def random_arguments(seed: int) -> list[NumPyArray]:
    """One to three arrays of random dtypes and small shapes; the dtype of the first is usually inexact."""
    random = RandomState(seed)
    first = DTYPES[random.randint(len(DTYPES))]
    names = [first, *[str(random.choice([first, *DTYPES])) for _ in range(random.randint(3))]]
    shapes = [SHAPES[random.randint(len(SHAPES))] for _ in names]
    return [
        random_array(random, DTYPES_BY_SHORT_NAME[n], s) for n, s in zip(names, shapes, strict=True)
    ]


def random_array(random: RandomState, dtype: np.dtype[Any], shape: Sequence[int]) -> NumPyArray:
    """A random array of small numbers."""
    x = random.uniform(-2.0, 2.0, shape)
    if is_complex(dtype):
        x = x + 1j * random.uniform(-2.0, 2.0, shape)
    if kind(dtype) == "b":
        return np.asarray(x > 0)
    if not is_inexact(dtype):
        x = np.abs(np.round(x * 2)) if kind(dtype) == "u" else np.round(x * 2)
    return np.asarray(x).astype(dtype)


@jax.custom_batching.custom_vmap
def _jax_identity(x: Value) -> Value:
    return x


_jax_identity.def_vmap(lambda size, batched, x: (x, batched[0]))


@functx.custom_jvp
def identity_through_jax(x: Value) -> Value:
    """`x`, returned unchanged by a JAX function: the same value in the compiled program."""
    return functx.from_jax(_jax_identity)(x)


identity_through_jax.defjvp(lambda xs, ts: (identity_through_jax(*xs), ts[0]))


@functx.custom_jvp
def with_jvp_rule(x: Value) -> Value:
    """x sin x, with a rule for its tangent."""
    return x * fnp.sin(x)


with_jvp_rule.defjvp(
    lambda xs, ts: (
        xs[0] * fnp.sin(xs[0]),
        ts[0] * (fnp.sin(xs[0]) + xs[0] * fnp.cos(xs[0])),
    )
)


@functx.custom_vjp
def with_vjp_rule(x: Value) -> Value:
    """x cos x, with a rule for its cotangent."""
    return x * fnp.cos(x)


with_vjp_rule.defvjp(
    lambda x: (x * fnp.cos(x), x),
    lambda x, ct: (ct * (fnp.cos(x) - x * fnp.sin(x)),),
)


class RandomFunction:
    """A function of arrays that takes `steps` random steps and returns a list of arrays.

    With a `depth` above 0, steps also call, repeat or choose among smaller random functions. With
    `writes`, steps write in place. With `smooth`, all steps have forward and reverse derivatives.
    """

    def __init__(
        self, seed: int, steps: int = 8, depth: int = 2, writes: bool = True, smooth: bool = True
    ):
        self.seed, self.steps, self.depth, self.writes = seed, steps, depth, writes
        self.smooth = smooth
        self.__name__ = f"random_{seed}"

    def __call__(self, *args: Value) -> list[Value]:
        run = RandomFunctionRun(RandomState(self.seed), args, self)
        for _ in range(self.steps):
            run.step()
        outs = run.values[len(args) :] or run.values
        return outs[-3:]


class RandomFunctionRun:
    """One call of a random function: its random state and the values computed so far."""

    def __init__(self, random: RandomState, args: Values, function: RandomFunction):
        self.random, self.smooth = random, function.smooth
        self.values: list[Value] = list(args)
        # Steps that run smaller random functions.
        nested = (
            call_step,
            repeated_call_step,
            fori_loop_step,
            scan_step,
            while_loop_step,
            cond_step,
            switch_step,
            checkpoint_step,
        )
        plain = (
            arithmetic_step,
            literal_step,
            reuse_step,
            shape_step,
            reduction_step,
            jax_function_step,
            jax_function_step,
            custom_rule_step,
        )
        self.step_functions = [*plain, *[primitive_step] * 8]
        if function.depth:
            self.step_functions += [*nested, vmap_step, vmap_step]
        if function.writes:
            self.step_functions += [write_step, view_write_step]

    def step(self) -> None:
        """Take one random step, or none if its operands have types that it refuses."""
        step = self.choice(self.step_functions)
        try:
            new = step(self)
        except FunctxError:
            return
        self.values += new if isinstance(new, list) else [new]

    def choice(self, options: Sequence[T]) -> T:
        return options[self.random.randint(len(options))]

    def value(self) -> Value:
        """One of the values so far, recent ones more often."""
        back = 1 + int(self.random.exponential(2.0))
        return self.values[-min(back, len(self.values))]

    def inexact(self) -> Value:
        """One of the values, converted to float32 if its dtype is not inexact."""
        x = self.value()
        return x if is_inexact(aval_of(x).dtype) else fnp.asarray(x).astype("float32")

    def value_like(self, aval: ShapedArray) -> Value:
        """One of the values, fitted to `aval`."""
        return fit_to_aval(self.value(), aval)

    def random_function(self) -> RandomFunction:
        """A small random function without writes."""
        return RandomFunction(int(self.random.randint(2**31)), self.random.randint(1, 4), 0, False)

    def random_body(self, aval: ShapedArray) -> Callable[..., Value]:
        """A small random function with one result of type `aval`, whose floats are bounded by a sine."""
        function = self.random_function()
        return lambda *xs: bound_by_sine(fit_to_aval(function(*xs)[-1], aval))


def fit_to_aval(x: Value, aval: ShapedArray) -> Value:
    """The elements of `x`, repeated or cut off, in an array of type `aval`."""
    source = aval_of(x)
    x = fnp.asarray(x)
    if source.shape != aval.shape:
        size = prod(aval.shape)
        x = x.reshape(-1)
        if not x.size:
            x = fnp.zeros(1, source.dtype)
        if x.size < size:
            x = fnp.tile(x, -(-size // x.size))
        x = x[:size].reshape(aval.shape)
    if is_complex(source.dtype) and not is_complex(aval.dtype):
        x = fnp.real(x)
    if kind(source.dtype) in "fc" and kind(aval.dtype) in "iu":
        # A conversion of a float out of range of the integer dtype is undefined.
        x = fnp.clip(fnp.nan_to_num(x), 0, 100)
    return x if aval_of(x).dtype == aval.dtype else x.astype(aval.dtype)


def bound_by_sine(x: Value) -> Value:
    """sin(x) for floats, `x` for other dtypes."""
    return fnp.sin(x) if kind(aval_of(x).dtype) == "f" else x


# The steps: each takes a `RandomFunctionRun` and returns one or several new values.


def primitive_step(run: RandomFunctionRun) -> Value | list[Value]:
    """A random primitive with the parameters of a sample, in a random dtype, mostly on values so far."""
    cls = run.choice(eligible_primitives())
    sample = run.choice(cls.samples)
    avals = sample.avals
    dtype = DTYPES_BY_SHORT_NAME[run.choice(DTYPES)]
    inexact_dtype = next((a.dtype for a in avals if is_inexact(a.dtype)), None)
    if inexact_dtype is not None and sample.dtypes is None and kind(dtype) == kind(inexact_dtype):
        avals = avals_with_dtype(sample, dtype)
    operands = []
    constants = zip(
        avals, draw_operands(sample._replace(avals=avals), run.random.randint(1000)), strict=True
    )
    for i, (aval, constant) in enumerate(constants):
        use_value = run.random.rand() < 0.8 and i not in (sample.values or {})
        operands.append(clip_to_domain(run.value_like(aval), sample, i) if use_value else constant)
    return cls(**sample.params)(*operands)


def clip_to_domain(x: Value, sample: Sample, i: int) -> Value:
    """`x` moved into the domain of operand `i` of a sample."""
    low, high = sample.domain_of(i)
    dtype_kind = kind(aval_of(x).dtype)
    if dtype_kind in "iu":
        x = fnp.clip(x, max(int(low), 0 if dtype_kind == "u" else int(low)), int(high))
        return fnp.where(x == 0, x + 1, x) if i in sample.nonzero else x
    if dtype_kind == "b" or (not aval_of(x).shape and dtype_kind == "c"):
        return x
    if (low, high) != (-2.0, 2.0) and dtype_kind == "f":
        x = low + (high - low) * (0.5 + 0.5 * fnp.sin(x))
    if i in sample.nonzero:
        x = fnp.where(fnp.abs(x) < 0.5, x + 1, x)
    return x


def arithmetic_step(run: RandomFunctionRun) -> Value:
    x, y = run.value(), run.value()
    y = fit_to_aval(y, aval_of(y).update(shape=aval_of(x).shape))
    operations = (fnp.add, fnp.subtract, fnp.multiply, fnp.divide, fnp.maximum, fnp.minimum)
    rare = (fnp.hypot, fnp.arctan2, fnp.greater, fnp.equal, fnp.logaddexp, fnp.heaviside)
    return run.choice((*operations, *operations, *rare))(x, y)


def literal_step(run: RandomFunctionRun) -> Value:
    """An expression with literals that occur twice, or that simplification removes."""
    x, n = run.inexact(), run.choice([0.0, 1.0, -1.0, 2.0, 0.3, -0.7, 1e-3])
    forms = (
        lambda: x * n + n,
        lambda: (x - n) * n,
        lambda: n / (x + 2.5) + n,
        lambda: fnp.where(x > n, x, n),
        lambda: x**2 * n - n * x,
        lambda: (x + n) - n,
        lambda: fnp.maximum(x, n) * fnp.minimum(x, n),
    )
    return run.choice(forms)()


def reuse_step(run: RandomFunctionRun) -> Value:
    x = run.value()
    y = fnp.negative(x) if kind(aval_of(x).dtype) != "b" else ~x
    forms = (
        lambda: x + x,
        lambda: x * y,
        lambda: fnp.stack([x, y, x]),
        lambda: fnp.where(x == y, x, y),
    )
    return run.choice(forms)()


def shape_step(run: RandomFunctionRun) -> Value:
    x = fnp.asarray(run.value())
    forms = [lambda: x.reshape(-1), lambda: x.T, lambda: x[None], lambda: x.reshape(x.shape[::-1])]
    if x.ndim:
        forms += [lambda: x[::-1], lambda: x[1:], lambda: fnp.concatenate([x, x[:1]])]
        forms += [lambda: x[..., -1], lambda: fnp.roll(x, 1, 0), lambda: x[np.array([0, -1, 0])]]
    return run.choice(forms)()


def reduction_step(run: RandomFunctionRun) -> Value:
    x = run.value()
    reductions: tuple[Function, ...] = fnp.sum, fnp.mean, fnp.prod, fnp.max, fnp.min, fnp.var
    axis = None if not aval_of(x).shape else run.random.randint(len(aval_of(x).shape))
    functions: tuple[Function, ...] = (*reductions, fnp.cumsum, fnp.argmax)
    return run.choice(functions)(x, axis=axis)


def jax_function_step(run: RandomFunctionRun) -> Value | list[Value]:
    """Values that JAX functions return unchanged, and a sine by JAX."""
    x = run.inexact()
    # JAX has no reverse derivative of its own custom_vmap.
    identity: Function = identity_through_jax if run.smooth else functx.from_jax(_jax_identity)
    forms = (
        lambda: [identity(x) + x, fnp.sin(x) + x],
        lambda: [identity(x) * x, x * identity(x), x * x[::-1] if aval_of(x).shape else x * 2],
        lambda: functx.from_jax(jax.numpy.sin)(x) * x,
    )
    return run.choice(forms)()


def custom_rule_step(run: RandomFunctionRun) -> Value:
    """A function with a rule of its own for its derivative."""
    return run.choice((with_jvp_rule, with_vjp_rule))(run.inexact())


def call_step(run: RandomFunctionRun) -> list[Value]:
    return functx.jit(run.random_function())(run.value(), run.value())


def repeated_call_step(run: RandomFunctionRun) -> Value:
    """A program that is called twice, the second time on its first result."""
    x = run.value()
    function = functx.jit(run.random_body(aval_of(x)))
    return function(function(x))


def checkpoint_step(run: RandomFunctionRun) -> list[Value]:
    return functx.checkpoint(run.random_function())(run.value())


def fori_loop_step(run: RandomFunctionRun) -> Value:
    x, const = run.value(), run.value()
    body = run.random_body(aval_of(x))
    return lax.fori_loop(0, 3, lambda i, c: body(c, const, i), x)


def scan_step(run: RandomFunctionRun) -> list[Value]:
    x, xs = run.value(), fnp.asarray(run.value())
    xs = xs if xs.ndim and xs.shape[0] else fnp.stack([xs.sum()] * 3)
    body, ys_function = run.random_body(aval_of(x)), run.random_function()
    reverse = bool(run.random.randint(2))

    def step(carry: Value, row: Value) -> tuple[Value, list[Value]]:
        return body(carry, row), ys_function(row, carry)

    carry, ys = lax.scan(step, x, xs, reverse=reverse)
    return [carry, *ys]


def while_loop_step(run: RandomFunctionRun) -> Value:
    x = run.value()
    body = run.random_body(aval_of(x))
    steps = run.random.randint(4)
    max_steps = run.choice([None, 4])
    state = lax.while_loop(
        lambda s: s[0] < steps, lambda s: (s[0] + 1, body(s[1])), (0, x), max_steps=max_steps
    )
    return state[1]


def cond_step(run: RandomFunctionRun) -> Value:
    x = run.value()
    aval = aval_of(x)
    condition = fit_to_aval(run.value(), ShapedArray((), np.dtype("bool")))
    return lax.cond(condition, run.random_body(aval), run.random_body(aval), x)


def switch_step(run: RandomFunctionRun) -> Value:
    x = run.value()
    aval = aval_of(x)
    index = fit_to_aval(run.value(), ShapedArray((), np.dtype("int32")))
    return lax.switch(
        index, [run.random_body(aval), run.random_body(aval), run.random_body(aval)], x
    )


def vmap_step(run: RandomFunctionRun) -> Value:
    """A function mapped over the first dimension, with collectives along its name."""
    x = fnp.asarray(run.inexact())
    x = x if x.ndim and x.shape[0] else fnp.stack([x.sum(), x.sum() + 1])
    inner = run.random_function()
    n = x.shape[0]
    forms = (
        lambda r: r - lax.psum(r, "i") / n,
        lambda r: fnp.sin(r) * lax.pmean(inner(r)[0], "i"),
        lambda r: lax.ppermute(r, "i", [(j, (j + 1) % n) for j in range(n)]) * r,
        lambda r: lax.all_gather(r, "i").sum(axis=0) + lax.axis_index("i"),
        lambda r: inner(r, x)[0],
    )
    return functx.vmap(run.choice(forms), axis_name="i")(x)


def write_step(run: RandomFunctionRun) -> Value | list[Value]:
    """An array that is read and then written in place."""
    x = Copy()(fnp.asarray(run.value()))
    part = run.value()
    aval = aval_of(x)
    if not aval.shape:
        x[...] = fit_to_aval(part, aval)
        return x
    read = x + x
    x[1:] = fit_to_aval(part, aval.update(shape=(max(aval.shape[0] - 1, 0), *aval.shape[1:])))
    if kind(aval.dtype) != "b":
        x[..., 0] += x[..., -1]
    return [read, x]


def view_write_step(run: RandomFunctionRun) -> list[Value]:
    """An array that is written and read through views."""
    x = Copy()(fnp.asarray(run.value()))
    views = [x.T, x.reshape(-1), x[...], x[::-1] if x.ndim else x[None]]
    view, other = run.choice(views), run.choice(views)
    view[...] = fit_to_aval(run.value(), aval_of(view))
    if kind(aval_of(x).dtype) in "fc":
        other *= 0.5
    return [other + other if kind(aval_of(other).dtype) != "b" else other, x]
