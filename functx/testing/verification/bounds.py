"""The values that a program must have, and how far from them a computation may be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from ml_dtypes import finfo

from functx.core.dtypes import is_inexact
from functx.core.program import Program
from functx.core.rewriting import cached_rewrite
from functx.core.storage import Functionalize
from functx.testing.reference.interpreter import (
    Array,
    NumpyInterpreter,
    StepLimitExceeded,
    copy_arguments,
    narrow_array,
    widen_array,
)
from functx.testing.reference.rounding import RoundingErrors

TOLERANCE_FACTORS = {"results": 4.0, "spread": 8.0}
"""The bound: units in the last place of the result, and multiples of its spread by rounding."""

INITIAL_SAMPLES, CONFIRMING_SAMPLES = 3, 40
"""How often the reference is run with errors: at first, and before a difference is believed."""


class ExpectedOutputs:
    """The outputs of a program by the reference interpreter, and how far rounding moves them.

    Real numbers may differ from the reference by the spread of runs in which every operation
    errs at random by about a rounding of its dtype, so that a sum may be off by what its terms
    explain, and no more. Integers and booleans are exact. A nan must be a nan and an infinity
    that infinity. Elements that the errors turn from one integer, branch or kind of number into
    another are decided by rounding, and not compared.
    """

    def __init__(self, program: Program, args: Sequence[Any], runs: int = INITIAL_SAMPLES):
        self.program, self.args, self.avals = program, args, program.out_avals
        interpreter = NumpyInterpreter(RoundingErrors())
        self.values = self.outputs(interpreter)
        # A loop that ends by convergence may never end with errors.
        self.limit = 1000 + 4 * interpreter.steps
        self.samples: list[list[Array]] = []
        self.draw_samples(runs)

    def outputs(self, interpreter: NumpyInterpreter) -> list[Array]:
        """The outputs of a run."""
        return interpreter.run(self.program, copy_arguments(self.program, self.args))

    def draw_samples(self, runs: int) -> None:
        """Let there be at least so many runs with errors."""
        for seed in range(len(self.samples), runs):
            rounding = RoundingErrors(seed, clips=seed % 2 == 0, narrow=seed % 4 == 2)
            interpreter = NumpyInterpreter(rounding, self.limit)
            try:
                outs = self.outputs(interpreter)
            except StepLimitExceeded:
                outs = [np.full_like(x, np.nan) if is_inexact(x.dtype) else ~x for x in self.values]
            self.samples.append(outs)

    def first_mismatch(self, outs: Sequence[Any]) -> int | None:
        """The number of the first output that `outs` has wrong; None if it has them all right."""
        for k in range(len(self.values)):
            if self.mismatch_mask(k, outs[k]).any():
                self.draw_samples(CONFIRMING_SAMPLES)
                if self.mismatch_mask(k, outs[k]).any():
                    return k
        return None

    def mismatch_mask(self, k: int, out: Any) -> Array:
        """The elements of output `k` that are not as the program states or beyond the bound."""
        out = np.asarray(out)
        if out.shape != self.avals[k].shape or out.dtype != self.avals[k].dtype:
            return np.array(True)
        return self.exceeds_bound(k, out)

    def exceeds_bound(self, k: int, out: Array) -> Array:
        """The elements of output `k` that are beyond its bound, as a mask; `out` may be wide."""
        aval, value = self.avals[k], self.values[k]
        rows = [sample[k] for sample in self.samples]
        if not is_inexact(aval.dtype):
            return np.all([row == value for row in rows], axis=0) & (out != value)
        out, info = widen_array(out), finfo(aval.dtype)
        with np.errstate(all="ignore"):
            spread = np.max([np.abs(row - value) for row in rows], axis=0)
            bound = TOLERANCE_FACTORS["results"] * float(info.eps) * np.abs(value)
            bound = bound + TOLERANCE_FACTORS["spread"] * spread + float(info.tiny)
            near = np.abs(out - value) <= bound
        # Rounding to the dtype itself may make the largest numbers infinite.
        near |= equal_or_both_nan(widen_array(narrow_array(value, aval.dtype)), out)
        alike = np.all([np.isfinite(row) == np.isfinite(value) for row in rows], axis=0)
        special = np.all([equal_or_both_nan(row, value) for row in rows], axis=0)
        return np.where(np.isfinite(value), alike & ~near, special & ~equal_or_both_nan(out, value))


class ExpectedOutputsWithWrites(ExpectedOutputs):
    """The same for a program that writes, in NumPy memory; written arguments follow the outputs."""

    def __init__(self, program: Program, args: Sequence[Any], runs: int = INITIAL_SAMPLES):
        self.written = cached_rewrite(Functionalize(), program).written
        super().__init__(program, args, runs)
        self.avals = [*self.avals, *[program.in_avals[i] for i in self.written]]

    def outputs(self, interpreter: NumpyInterpreter) -> list[Array]:
        given = copy_arguments(self.program, self.args)
        outs = [np.array(x) for x in interpreter.run(self.program, given)]
        return [*outs, *[given[i] for i in self.written]]


def equal_or_both_nan(x: Array, y: Array) -> Any:
    """Where two arrays are equal, nan and nan too; an infinite complex number equals any other."""
    if np.iscomplexobj(x):
        return (x == y) | (~np.isfinite(x) & ~np.isfinite(y))
    return (x == y) | (np.isnan(x) & np.isnan(y))
