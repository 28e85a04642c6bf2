"""Derivatives that a rule refuses to compute: an error, if a result needs one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, ClassVar

from functx.core.errors import FunctxError
from functx.core.primitive import Primitive
from functx.core.program import Equation
from functx.core.types import ShapedArray
from functx.ops.operands import batch_size


class Refused(Primitive, abstract=True):
    """The placeholder of a tangent or cotangent that no rule computes.

    Its lowering raises `error`. It counts as linear in its operands, and is removed by dead-code
    elimination where no result needs it.
    """

    error: Exception
    result: ShapedArray
    name: ClassVar[str] = "refused"

    def abstract_eval(self, *avals):
        return self.result

    def jvp(self, primals, tangents):
        return self(*primals), self(*[t for t in tangents if t is not None])

    def transpose(self, ct, *args):
        return [Refused(self.error, x.aval)(ct) for x in args]

    def batch(self, args, dims):
        size = batch_size(args, dims)
        result = self.result.update(shape=(size, *self.result.shape))
        return Refused(self.error, result)(*args), 0

    def lower(self, ctx, *values):
        if isinstance(self.error, FunctxError):
            self.error.source = ctx.source
        raise self.error.with_traceback(None)


def refused(
    error: Exception, operands: Sequence[Any], avals: Sequence[ShapedArray], mask: Sequence[bool]
) -> list[Any]:
    """Placeholders, computed from `operands`, for the `avals` that `mask` marks; else None."""
    return [Refused(error, a)(*operands) if on else None for a, on in zip(avals, mask, strict=True)]


def raise_refusal(programs: Iterable[Iterable[Equation]]) -> None:
    """Raise the error of the first placeholder in `programs`, if there is one."""
    for eqn in chain(*programs):
        if type(eqn.primitive) is Refused:
            raise eqn.primitive.error
