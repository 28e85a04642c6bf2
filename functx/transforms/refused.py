"""Derivatives that a rule refuses to compute: an error, if a result needs one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, ClassVar

from functx.core.errors import FunctxError
from functx.core.primitive import LinearInput, Primitive
from functx.core.program import Equation
from functx.core.types import ShapedArray
from functx.core.typing import Cotangent, Dim, IRValue, Tangent, Value
from functx.ops.operands import batch_size

if TYPE_CHECKING:
    from functx.lowering.stablehlo_emitter import LoweringContext


class Refused(Primitive, abstract=True):
    """The placeholder of a tangent or cotangent that no rule computes.

    Its lowering raises `error`. It counts as linear in its operands, and is removed by dead-code
    elimination where no result needs it.
    """

    error: Exception
    result: ShapedArray
    name: ClassVar[str] = "refused"

    def abstract_eval(self, *avals: ShapedArray) -> ShapedArray:
        return self.result

    def jvp(self, primals: Sequence[Value], tangents: Sequence[Tangent]) -> tuple[Value, Tangent]:
        return self(*primals), self(*[t for t in tangents if t is not None])

    def transpose(self, ct: Value, *args: LinearInput) -> Sequence[Cotangent]:
        return [Refused(self.error, x.aval)(ct) for x in args]

    def batch(self, args: Sequence[Value], dims: Sequence[Dim]) -> tuple[Value, Dim]:
        size = batch_size(args, dims)
        result = self.result.update(shape=(size, *self.result.shape))
        return Refused(self.error, result)(*args), 0

    def lower(self, ctx: LoweringContext, *values: IRValue) -> IRValue:
        if isinstance(self.error, FunctxError):
            self.error.source = ctx.source
        raise self.error.with_traceback(None)


def refused(
    error: Exception, operands: Sequence[Value], avals: Sequence[ShapedArray], mask: Sequence[bool]
) -> list[Value | None]:
    """Placeholders, computed from `operands`, for the `avals` that `mask` marks; else None."""
    return [Refused(error, a)(*operands) if on else None for a, on in zip(avals, mask, strict=True)]


def raise_refusal(programs: Iterable[Iterable[Equation]]) -> None:
    """Raise the error of the first placeholder in `programs`, if there is one."""
    for eqn in chain(*programs):
        if type(eqn.primitive) is Refused:
            raise eqn.primitive.error
