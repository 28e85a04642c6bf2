"""Operations that hold programs or functions."""

# ruff: noqa: N802 - functions are named as the classes whose meaning they are

from __future__ import annotations

from functools import lru_cache

import jax
import numpy as np

from functx.testing.reference.meanings import (
    REFERENCE_RULES,
    SUBPROGRAM_RULES,
    exact_dtype_rule,
    subprogram_rule,
)
from functx.testing.reference.reductions import sliding_windows


@subprogram_rule
def Call(run, *args, program, **others):
    return run(program, args)


REFERENCE_RULES |= dict.fromkeys(("Checkpoint", "CustomVmap", "Rerun"), Call)
SUBPROGRAM_RULES.update(("Checkpoint", "CustomVmap", "Rerun"))


@subprogram_rule
def CustomJVP(run, *args, primal, **others):
    return run(primal, args)


@subprogram_rule
def CustomVJP(run, *args, primal, **others):
    return run(primal, args)


@subprogram_rule
def Cond(run, index, *args, branches):
    return run(branches[int(index)], args)


@subprogram_rule
def Scan(run, *args, program, consts, carries, length, reverse, unroll):
    constants, carry, xs = args[:consts], args[consts : consts + carries], args[consts + carries :]
    rows = []
    for i in reversed(range(length)) if reverse else range(length):
        outs = run(program, [*constants, *carry, *[x[i] for x in xs]])
        carry = outs[:carries]
        rows.append(outs[carries:])
    rows = rows[::-1] if reverse else rows
    types = [atom.aval for atom in program.outputs[carries:]]
    stacks = [
        np.array([row[k] for row in rows], None if rows else a.dtype).reshape(length, *a.shape)
        for k, a in enumerate(types)
    ]
    return [*carry, *stacks]


@subprogram_rule
def While(run, *args, condition, body, condition_consts, body_consts, checkpoints, max_steps):
    m, n = condition_consts, condition_consts + body_consts
    carry = args[n:]
    while run(condition, [*args[:m], *carry])[0]:
        carry = run(body, [*args[m:n], *carry])
    return carry


@subprogram_rule
def Reduce(run, *args, program, axes):
    n = len(program.outputs)
    xs, starts, consts = args[:n], args[n : 2 * n], args[2 * n :]
    kept = [d for d in range(xs[0].ndim) if d not in axes]
    rows = [np.transpose(x, (*kept, *sorted(axes))) for x in xs]
    shape = rows[0].shape[: len(kept)]
    outs = [np.empty(shape, x.dtype) for x in xs]
    for place in np.ndindex(shape):
        total = starts
        for elements in zip(*[x[place].ravel() for x in rows], strict=True):
            total = run(program, [*total, *elements, *consts])
        for out, x in zip(outs, total, strict=True):
            out[place] = x
    return outs


@subprogram_rule
def ReduceWindow(run, *args, program, **window):
    n = len(program.outputs)
    xs, starts = args[:n], args[n : 2 * n]
    rows = [sliding_windows(x, **window, fill=start) for x, start in zip(xs, starts, strict=True)]
    return Reduce(run, *rows, *args[n:], program=program, axes=(rows[0].ndim - 1,))


@subprogram_rule
def CustomLinearSolve(run, *args, solve, **others):
    return run(solve, args)


@subprogram_rule
def CustomRoot(run, *args, solve, **others):
    return run(solve, args)


@exact_dtype_rule
def PureCallback(*args, callback, results, **others):
    return callback(args, results)


@exact_dtype_rule
def IoCallback(*args, callback, results, ordered):
    return callback(args, results)


@exact_dtype_rule
def DebugCallback(*args, callback, results, ordered):
    return callback(args, results)


@exact_dtype_rule
def ShowProgress(*args, label, total, done):
    return []


@exact_dtype_rule
def JaxCall(*args, function):
    return compiled(function)(*args)


@lru_cache(maxsize=1024)
def compiled(function):
    """`function` compiled by JAX: a loop calls it many times."""
    return jax.jit(function)
