"""Progress bars of loops, shown on one line while they run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from time import monotonic
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from functx import ops
from functx.core.effects import Effect, Effects
from functx.core.errors import DTypeError, ShapeError
from functx.core.samples import i32, sample
from functx.core.types import ShapedArray, is_integer
from functx.core.typing import Dim, IRValue, NumPyArray, Values
from functx.ops.callbacks import HostPrimitive

if TYPE_CHECKING:
    from functx.lowering.stablehlo_emitter import LoweringContext

# The number of reports of a loop, and the minimal time between two lines.
_MAX_REPORTS = 100
_MIN_INTERVAL_SECONDS = 0.05
_BOOL = ShapedArray((), np.dtype(bool))
_I32 = ShapedArray((), np.dtype("int32"))


class ProgressBar:
    """The progress bar of one loop on standard error: its name, progress and speed."""

    instances: ClassVar[dict[tuple[str, int | None], ProgressBar]] = {}

    def __init__(self, label: str, total: int | None):
        self.label, self.total = label, total
        self.started, self.written = monotonic(), 0.0
        self.step = self.width = 0

    def show(self, step: int, done: bool) -> None:
        """Write the line again for `step` steps, and end it if the loop is `done`."""
        now = monotonic()
        if step <= 0 and not done:
            self.started, self.written, self.step = now, 0.0, 0
        # Steps may be reported late but do not decrease.
        self.step = max(step, self.step)
        if now - self.written < _MIN_INTERVAL_SECONDS and not done:
            return
        self.written = now
        text = self.text(self.step, now - self.started)
        sys.stderr.write(f"\r{text:{self.width}}" + ("\n" if done else ""))
        sys.stderr.flush()
        self.width = 0 if done else len(text)
        if done:
            self.step = 0

    def text(self, step: int, elapsed: float) -> str:
        """`train:  35% [#######-------------] 350/1000 00:02 175.0/s`."""
        rate = f"{step / elapsed:.1f}/s" if step and elapsed > 0 else "?/s"
        minutes, seconds = divmod(int(elapsed), 60)
        hours, minutes = divmod(minutes, 60)
        time = f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes:02}:{seconds:02}"
        if self.total is None:
            return f"{self.label}: {step} {time} {rate}"
        part = step / self.total if self.total else 1.0
        bar = "#" * int(20 * part)
        return f"{self.label}: {part:4.0%} [{bar:-<20}] {step}/{self.total} {time} {rate}"


class ShowProgress(HostPrimitive):
    """Shows that `step` steps of the loop `label` are done, about 100 times in a loop.

    With a `total` it reports after equal parts of it, else at intervals that grow. With `done` it
    ends the line, after the scalar operands that follow the step have been computed.
    """

    label: str
    total: int | None = None
    done: bool = False
    effects: ClassVar[Effects] = frozenset([Effect.PROGRESS])
    differentiable = False
    samples = (
        sample(i32[()], label="sample", total=300, values={0: 1}, dtypes=("i32",)),
        sample(i32[()], label="sample", values={0: 127}, dtypes=("i32",)),
        sample(i32[()], i32[()], label="sample", total=3, done=True, dtypes=("i32",)),
    )

    def abstract_eval(self, step: ShapedArray, *after: ShapedArray) -> Sequence[ShapedArray]:
        if any(a.shape for a in after):
            raise ShapeError(f"show_progress: operands must be scalars; got {after}")
        if step.shape or not is_integer(step.dtype):
            raise DTypeError(f"show_progress: the step must be an integer scalar; got {step!r}")
        return ()

    @property
    def display_name(self) -> str:
        return f"progress of {self.label}"

    def run(self, *arrays: NumPyArray) -> list[NumPyArray]:
        key = self.label, self.total
        bar = ProgressBar.instances.get(key) or ProgressBar.instances.setdefault(
            key, ProgressBar(*key)
        )
        bar.show(int(arrays[0]), self.done)
        return []

    def batch(self, args: Values, dims: Sequence[Dim]) -> tuple[Values, Sequence[Dim]]:
        # One line for the whole batch, of the element with the most steps.
        (step, *after), (dim, *after_dims) = args, dims
        some = [
            x if d is None else ops.squeeze(ops.slice_in_dim(x, 0, 1))
            for x, d in zip(after, after_dims, strict=True)
            if d is None or x.size
        ]
        return self(step if dim is None else ops.reduce_max(step, (dim,)), *some), ()

    def lower(self, ctx: LoweringContext, step: IRValue, *after: IRValue) -> Sequence[IRValue]:
        if self.done:
            return ctx.callback(self, [step, *after])
        op = stablehlo.CaseOp([], ctx.convert(self.should_report(ctx, step), _BOOL, _I32), 2)
        for region, shown in zip(op.regions, (False, True), strict=True):
            with ir.InsertionPoint(region.blocks.append()):
                if shown:
                    ctx.callback(self, [step])
                stablehlo.return_([])
        return []

    def should_report(self, ctx: LoweringContext, step: IRValue) -> IRValue:
        """Whether to report `step`."""
        aval = ctx.avals_in[0]
        if self.total is not None:
            every = max(-(-self.total // _MAX_REPORTS), 1)
            rest = stablehlo.remainder(step, ctx.constant(every, aval))
        else:
            # All but the first three binary digits are 0, so the intervals grow.
            bits = aval.dtype.itemsize * 8
            length = stablehlo.subtract(
                ctx.constant(bits - 3, aval), stablehlo.count_leading_zeros(step)
            )
            digits = stablehlo.maximum(length, ctx.constant(0, aval))
            one = ctx.constant(1, aval)
            mask = stablehlo.subtract(stablehlo.shift_left(one, digits), one)
            rest = stablehlo.and_(step, mask)
        return ctx.compare(rest, ctx.constant(0, aval), "EQ", aval)
