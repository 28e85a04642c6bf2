"""NumPy definitions of control flow, calls, callbacks, collectives and random draws."""

from __future__ import annotations

from functools import lru_cache

import jax
import numpy as np

from functx.testing.reference.interpreter import exact_dtypes, numpy_definition, runs_subprograms
from functx.testing.reference.reductions import sliding_windows

# ruff: noqa: N802 - a definition has the name of the primitive class


@runs_subprograms
def Call(run, *args, program, **others):
    return run(program, args)


Checkpoint = CustomVmap = RematerializedCall = Call


@runs_subprograms
def CustomJVP(run, *args, primal, **others):
    return run(primal, args)


@runs_subprograms
def CustomVJP(run, *args, primal, **others):
    return run(primal, args)


@runs_subprograms
def CustomVJPTangent(run, *args, backward, function):
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
def Cond(run, index, *args, branches):
    return run(branches[int(index)], args)


@runs_subprograms
def Scan(run, *args, program, consts, carries, length, reverse, unroll):
    constants, carry, xs = args[:consts], args[consts : consts + carries], args[consts + carries :]
    steps = []
    for i in reversed(range(length)) if reverse else range(length):
        outs = run(program, [*constants, *carry, *[x[i] for x in xs]])
        carry = outs[:carries]
        steps.append(outs[carries:])
    steps = steps[::-1] if reverse else steps
    ys = [
        np.array([step[k] for step in steps], None if steps else y.aval.dtype).reshape(
            length, *y.aval.shape
        )
        for k, y in enumerate(program.outputs[carries:])
    ]
    return [*carry, *ys]


@runs_subprograms
def While(run, *args, condition, body, condition_consts, body_consts, checkpoints, max_steps):
    end = condition_consts + body_consts
    condition_operands, body_operands = args[:condition_consts], args[condition_consts:end]
    carry = args[end:]
    while run(condition, [*condition_operands, *carry])[0]:
        carry = run(body, [*body_operands, *carry])
    return carry


@runs_subprograms
def Reduce(run, *args, program, axes):
    n = len(program.outputs)
    xs, inits, consts = args[:n], args[n : 2 * n], args[2 * n :]
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
def ReduceWindow(run, *args, program, **window):
    n = len(program.outputs)
    xs, inits = args[:n], args[n : 2 * n]
    windows = [sliding_windows(x, **window, fill=init) for x, init in zip(xs, inits, strict=True)]
    return Reduce(run, *windows, *args[n:], program=program, axes=(windows[0].ndim - 1,))


@runs_subprograms
def CustomLinearSolve(run, *args, solve, **others):
    return run(solve, args)


@runs_subprograms
def CustomRoot(run, *args, solve, **others):
    return run(solve, args)


@exact_dtypes
def PureCallback(*args, callback, results, **others):
    return callback(args, results)


@exact_dtypes
def IoCallback(*args, callback, results, ordered):
    return callback(args, results)


@exact_dtypes
def DebugCallback(*args, callback, results, ordered):
    return callback(args, results)


@exact_dtypes
def ShowProgress(*args, label, total, done):
    return []


@exact_dtypes
def JaxCall(*args, function):
    return compiled(function)(*args)


@lru_cache(maxsize=1024)
def compiled(function):
    """`function` compiled by JAX, because a loop may call it many times."""
    return jax.jit(function)


def NamedAxisMap(*xs, primitive, axes):
    count = len(axes)
    xs = [x.reshape(-1, *x.shape[count:]) for x in xs] or [np.zeros(axes[0][1])]
    out = numpy_definition(primitive)(*xs)
    return out.reshape(*[n for _, n in axes], *out.shape[1:])


def grouped_collective(function):
    """The definition of a collective: `function` maps the operands of a group of devices to the results."""

    def apply(x, axes, groups=None, **params):
        groups = groups or (tuple(range(len(x))),)
        results = {}
        for group in groups:
            outs = function(x[list(group)], **params)
            results.update(zip(group, outs, strict=True))
        return np.stack([results[index] for index in range(len(x))])

    return apply


@grouped_collective
def Psum(x):
    return [x.sum(0)] * len(x)


@grouped_collective
def Pmax(x):
    return [x.max(0)] * len(x)


@grouped_collective
def Pmin(x):
    return [x.min(0)] * len(x)


@grouped_collective
def AllGather(x, axis, sizes, invariant):
    return [np.concatenate(list(x), axis)] * len(x)


@grouped_collective
def PsumScatter(x, axis, sizes):
    return np.split(x.sum(0), len(x), axis)


@grouped_collective
def AllToAll(x, split, concat, sizes):
    parts = [np.split(operand, len(x), split) for operand in x]
    return [np.concatenate([p[index] for p in parts], concat) for index in range(len(x))]


@grouped_collective
def Ppermute(x, perm):
    out = np.zeros_like(x)
    for source, destination in perm:
        out[destination] = x[source]
    return out


@grouped_collective
def Pvary(x):
    return x


def AxisIndex(x, axis, size):
    return np.arange(size)


def vectorize_over_keys(function):
    """The definition that maps `function(key, *operands, **params)` over a batch of keys."""

    def vectorized(key, *operands, **params):
        draws = [
            np.asarray(function(jax.random.wrap_key_data(words), *operands, **params))
            for words in key.reshape(-1, 2)
        ]
        return np.stack(draws).reshape(*key.shape[:-1], *draws[0].shape)

    return exact_dtypes(vectorized)


@exact_dtypes
def RandomSeed(seed):
    with jax.enable_x64(seed.dtype.itemsize == 8):
        rows = [np.asarray(jax.random.key_data(jax.random.key(s))) for s in seed.ravel()]
    return np.stack(rows).reshape(*seed.shape, 2)


@exact_dtypes
def RandomFoldIn(key, data):
    # The first dimensions of `data` are those of the keys.
    keys = np.broadcast_to(
        np.expand_dims(key, tuple(range(key.ndim - 1, data.ndim))), (*data.shape, 2)
    )
    rows = [
        np.asarray(jax.random.key_data(jax.random.fold_in(jax.random.wrap_key_data(k), d)))
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
    lambda key, shape, dtype, fine: jax.random.gumbel(
        key, shape, dtype, mode="high" if fine else "low"
    )
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


def Dropout(x, key, rate):
    wide = np.float64 if jax.config.jax_enable_x64 else np.float32
    mask = jax.random.bernoulli(key, np.asarray(1 - rate, wide), x.shape)
    return np.where(mask, x / max(1 - rate, 0.1), 0)
