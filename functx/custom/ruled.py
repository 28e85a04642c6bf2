"""What the primitives share whose derivative is what a rule of the user's says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from functx.core.primitive import Primitive
from functx.core.program import Program
from functx.core.rewriting import cached_rewrite
from functx.custom.deferral import transform_rules
from functx.ops.operands import batch_size
from functx.transforms.batching import Batch
from functx.transforms.marks import inexact_mask, select_where


class CustomDerivativeCall(Primitive, abstract=True):
    """The outputs of `primal`, with a derivative of which `rule` speaks.

    The last `captured` operands are not differentiated.
    """

    primal: Program
    rule: Any
    captured: int = 0
    not_executed = ("rule",)
    multiple_results = True

    def explicit_operands(self, args: Sequence[Any]) -> Sequence[Any]:
        """The operands that are not captured."""
        return args[: len(args) - self.captured]

    def varying(self, args: Sequence[Any], active: Sequence[bool]) -> tuple[bool, ...]:
        """Which of the inexact operands, except captured ones, are active."""
        return tuple(
            select_where(self.explicit_operands(active), inexact_mask(self.explicit_operands(args)))
        )

    def batched_rule(
        self, size: int, dims: tuple[int | None, ...], inexact: tuple[bool, ...]
    ) -> Callable[[tuple[Program, ...]], tuple[Program, ...]]:
        """The change of the rule to that for batches of `size` along `dims`."""
        raise NotImplementedError

    def abstract_eval(self, *avals: Any) -> Any:
        return self.primal.out_avals

    def batch(self, args: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        size = batch_size(args, dims)
        zeros = (0,) * len(self.primal.outputs)
        primal = cached_rewrite(Batch(size, tuple(dims), zeros), self.primal)
        change = self.batched_rule(
            size, tuple(dims), tuple(inexact_mask(self.explicit_operands(args)))
        )
        batched = type(self)(primal, transform_rules(self.rule, change), self.captured)
        return batched(*args), list(zeros)

    def lower(self, ctx: Any, *values: Any) -> Any:
        return ctx.call(self.primal, values)
