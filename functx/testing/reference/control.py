"""NumPy definitions of control flow, calls, callbacks, collectives and random draws."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import lru_cache

import jax
import numpy as np

from functx.core.backend import backend
from functx.core.primitive import Primitive
from functx.core.program import Program
from functx.core.types import Shape, x64_enabled
from functx.core.typing import Function
from functx.custom import custom_root
from functx.testing.reference.interpreter import (
    Array,
    Definition,
    Run,
    exact_dtypes,
    numpy_definition,
    runs_subprograms,
    takes_primitive,
)
from functx.testing.reference.reductions import sliding_windows
from functx.transforms.control import reduce, scan, while_loop

# ruff: noqa: N802 - a definition has the name of the primitive class


@runs_subprograms
def Call(run: Run, *args: Array, program: Program, **others: object) -> list[Array]:
    return run(program, args)


Checkpoint = CustomVmap = LinearCall = NamedComposite = RematerializedCall = Call


@runs_subprograms
def CustomJVP(run: Run, *args: Array, primal: Program, **others: object) -> list[Array]:
    return run(primal, args)


@runs_subprograms
def CustomVJP(run: Run, *args: Array, primal: Program, **others: object) -> list[Array]:
    return run(primal, args)


@runs_subprograms
def CustomVJPTangent(run: Run, *args: Array, backward: Program, function: object) -> list[Array]:
    # Each element is the product of the tangents with the cotangents that its basis vector gives.
    tangents, residuals = args[: len(backward.outputs)], args[len(backward.outputs) :]
    avals = backward.in_avals[: len(backward.inputs) - len(residuals)]
    outs = [np.zeros(aval.shape, aval.dtype) for aval in avals]
    for i, out in enumerate(outs):
        for index in np.ndindex(out.shape):
            cts = [np.zeros(aval.shape, aval.dtype) for aval in avals]
            cts[i][index] = 1
            products = zip(tangents, run(backward, [*cts, *residuals]), strict=True)
            out[index] = sum(np.sum(t * ct) for t, ct in products)
    return outs


@runs_subprograms
def Cond(run: Run, index: Array, *args: Array, branches: Sequence[Program]) -> list[Array]:
    return run(branches[int(index)], args)


@runs_subprograms
@takes_primitive
def Scan(run: Run, loop: scan.Scan, *args: Array) -> list[Array]:
    constants, carry, xs = loop.split_operands(args)
    steps, length, carries = [], loop.length, loop.carries
    for i in reversed(range(length)) if loop.reverse else range(length):
        outs = run(loop.program, [*constants, *carry, *[x[i] for x in xs]])
        carry = outs[:carries]
        steps.append(outs[carries:])
    steps = steps[::-1] if loop.reverse else steps
    ys = [
        np.array([step[k] for step in steps], None if steps else y.aval.dtype).reshape(
            length, *y.aval.shape
        )
        for k, y in enumerate(loop.program.outputs[carries:])
    ]
    return [*carry, *ys]


@runs_subprograms
@takes_primitive
def While(run: Run, loop: while_loop.While, *args: Array) -> Sequence[Array]:
    condition_operands, body_operands, carry = loop.split_operands(args)
    while run(loop.condition, [*condition_operands, *carry])[0]:
        carry = run(loop.body, [*body_operands, *carry])
    return carry


@runs_subprograms
def Reduce(run: Run, *args: Array, program: Program, axes: Shape) -> list[Array]:
    n = len(program.outputs)
    xs, inits, consts = [*args[:n]], [*args[n : 2 * n]], args[2 * n :]
    out_axes = [d for d in range(xs[0].ndim) if d not in axes]
    xs = [np.transpose(x, (*out_axes, *sorted(axes))) for x in xs]
    shape = xs[0].shape[: len(out_axes)]
    outs = [np.empty(shape, x.dtype) for x in xs]
    for index in np.ndindex(shape):
        accumulators = inits
        for elements in zip(*[x[index].ravel() for x in xs], strict=True):
            accumulators = run(program, [*accumulators, *elements, *consts])
        for out, x in zip(outs, accumulators, strict=True):
            out[index] = x
    return outs


@runs_subprograms
@takes_primitive
def ReduceWindow(run: Run, window: reduce.ReduceWindow, *args: Array) -> list[Array]:
    n = len(window.program.outputs)
    xs, inits = args[:n], args[n : 2 * n]
    windows = [sliding_windows(x, window, init) for x, init in zip(xs, inits, strict=True)]
    return Reduce(run, *windows, *args[n:], program=window.program, axes=(windows[0].ndim - 1,))


@runs_subprograms
def CustomLinearSolve(run: Run, *args: Array, solve: Program, **others: object) -> list[Array]:
    return run(solve, args)


@runs_subprograms
@takes_primitive
def CustomRoot(run: Run, root: custom_root.CustomRoot, *args: Array) -> list[Array]:
    outs = run(root.solve, args)
    if root.factorize is None or not root.returns_factors:
        return outs
    guess, consts = root.split_operands(args)
    return [*outs, *run(root.factorize, [*outs[: len(guess)], *consts])]


@exact_dtypes
def PureCallback(
    *args: Array, callback: Function, results: object, **others: object
) -> list[Array]:
    return callback(args, results)


@exact_dtypes
def IoCallback(*args: Array, callback: Function, results: object, ordered: bool) -> list[Array]:
    return callback(args, results)


@exact_dtypes
def Check(*args: Array, sites: object) -> list[Array]:
    return []


@exact_dtypes
def DebugCallback(*args: Array, callback: Function, results: object, ordered: bool) -> list[Array]:
    return callback(args, results)


@exact_dtypes
@runs_subprograms
def WithEffects(
    run: Run, *args: Array, operation: Primitive, kinds: tuple[str, ...]
) -> list[Array]:
    tokens, operands = args[: len(kinds)], args[len(kinds) :]
    definition = numpy_definition(operation, run)
    outs = backend.evaluate(operation, operands) if definition is None else definition(*operands)
    return [*tokens, *operation.as_list(outs)]


@exact_dtypes
def ShowProgress(*args: Array, label: str, total: int, done: int) -> list[Array]:
    return []


@exact_dtypes
def JaxCall(*args: Array, function: Function) -> Array:
    return compiled(function)(*args)


@lru_cache(maxsize=1024)
def compiled(function: Function) -> Function:
    """`function` compiled by JAX, because a loop may call it many times."""
    return jax.jit(function)


def NamedAxisMap(*xs: Array, primitive: Primitive, axes: Sequence[tuple[Hashable, int]]) -> Array:
    count = len(axes)
    rows = [x.reshape(-1, *x.shape[count:]) for x in xs] or [np.zeros(axes[0][1])]
    definition = numpy_definition(primitive)
    assert definition is not None
    out = definition(*rows)
    return out.reshape(*[n for _, n in axes], *out.shape[1:])


def grouped_collective(function: Function) -> Definition:
    """The definition of a collective: `function` maps the operands of a group of devices to the results."""

    def apply(
        x: Array, axes: object, groups: Sequence[Shape] | None = None, **params: object
    ) -> Array:
        groups = groups or (tuple(range(len(x))),)
        results: dict[int, Array] = {}
        for group in groups:
            outs = function(x[list(group)], **params)
            results.update(zip(group, outs, strict=True))
        return np.stack([results[index] for index in range(len(x))])

    return apply


@grouped_collective
def Psum(x: Array) -> list[Array]:
    return [x.sum(0)] * len(x)


@grouped_collective
def Pmax(x: Array) -> list[Array]:
    return [x.max(0)] * len(x)


@grouped_collective
def Pmin(x: Array) -> list[Array]:
    return [x.min(0)] * len(x)


@grouped_collective
def AllGather(x: Array, axis: int, sizes: object, invariant: bool) -> list[Array]:
    return [np.concatenate(list(x), axis)] * len(x)


@grouped_collective
def PsumScatter(x: Array, axis: int, sizes: object) -> list[Array]:
    return np.split(x.sum(0), len(x), axis)


@grouped_collective
def AllToAll(x: Array, split: int, concat: int, sizes: object) -> list[Array]:
    parts = [np.split(operand, len(x), split) for operand in x]
    return [np.concatenate([p[index] for p in parts], concat) for index in range(len(x))]


@grouped_collective
def Ppermute(x: Array, perm: Sequence[Shape]) -> Array:
    out = np.zeros_like(x)
    for source, destination in perm:
        out[destination] = x[source]
    return out


@grouped_collective
def Pvary(x: Array) -> Array:
    return x


def AxisIndex(x: Array, axis: object, size: int) -> Array:
    return np.arange(size)


def vectorize_over_keys(function: Function) -> Definition:
    """The definition that maps `function(key, *operands, **params)` over a batch of keys."""

    def vectorized(
        key: Array, *operands: Array, partitionable: bool = True, **params: object
    ) -> Array:
        rows = key.reshape(-1, 2)
        # One key tells the shape of the draws where there is none.
        some = rows if len(rows) else np.zeros((1, 2), key.dtype)
        with jax.threefry_partitionable(partitionable):
            draws = [
                np.asarray(
                    function(
                        jax.random.wrap_key_data(jax.numpy.asarray(words)), *operands, **params
                    )
                )
                for words in some
            ]
        return np.stack(draws)[: len(rows)].reshape((*key.shape[:-1], *draws[0].shape))

    return exact_dtypes(vectorized)


@exact_dtypes
def RandomSeed(seed: Array) -> Array:
    with jax.enable_x64(seed.dtype.itemsize == 8):
        rows = [np.asarray(jax.random.key_data(jax.random.key(s))) for s in seed.ravel()]
    return np.stack(rows).reshape(*seed.shape, 2)


@exact_dtypes
def RandomFoldIn(key: Array, data: Array) -> Array:
    # The first dimensions of `data` are those of the keys.
    keys = np.broadcast_to(
        np.expand_dims(key, tuple(range(key.ndim - 1, data.ndim))), (*data.shape, 2)
    )
    rows = [
        np.asarray(
            jax.random.key_data(
                jax.random.fold_in(jax.random.wrap_key_data(jax.numpy.asarray(k)), d)
            )
        )
        for k, d in zip(keys.reshape(-1, 2), data.ravel(), strict=True)
    ]
    return np.stack(rows).reshape(keys.shape)


RandomSplit = vectorize_over_keys(
    lambda key, shape: jax.random.key_data(jax.random.split(key, shape))
)
RandomBits = vectorize_over_keys(jax.random.bits)
RandomUniform = vectorize_over_keys(jax.random.uniform)
RandomUniformBetween = vectorize_over_keys(
    lambda key, low, high, shape: jax.random.uniform(key, shape, low.dtype, low, high)
)
RandomNormal = vectorize_over_keys(jax.random.normal)
RandomTruncatedNormal = vectorize_over_keys(
    lambda key, low, high, shape: jax.random.truncated_normal(key, low, high, shape, low.dtype)
)
RandomExponential = vectorize_over_keys(jax.random.exponential)
RandomLaplace = vectorize_over_keys(jax.random.laplace)
RandomLogistic = vectorize_over_keys(jax.random.logistic)
RandomCauchy = vectorize_over_keys(jax.random.cauchy)
RandomGumbel = vectorize_over_keys(
    lambda key, shape, dtype, mode: jax.random.gumbel(key, shape, dtype, mode=mode)
)
RandomBernoulli = vectorize_over_keys(
    lambda key, p, shape, fine: jax.random.bernoulli(key, p, shape, mode="high" if fine else "low")
)
RandomIntegers = vectorize_over_keys(
    lambda key, low, count, shape: jax.random.randint(key, shape, low, low + count, low.dtype)
)
RandomShuffle = vectorize_over_keys(
    lambda key, x, axis: jax.random.permutation(key, x, axis, independent=True)
)


def Dropout(x: Array, key: Array, rate: float, partitionable: bool) -> Array:
    wide = np.float64 if x64_enabled() else np.float32
    with jax.threefry_partitionable(partitionable):
        mask = jax.random.bernoulli(key, np.asarray(1 - rate, wide), x.shape)
    return np.where(mask, x / max(1 - rate, 0.1), 0)
