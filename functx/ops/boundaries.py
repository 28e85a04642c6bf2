"""Where a derivative that is taken on every device of a mesh begins and ends.

A derivative treats the places of an axis as one function of all of them: what is the same in
all places is counted once in each. So the cotangent of a result that is the same in all is
divided among them, and that of an argument that all share is summed.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from functx.core.primitive import Primitive
from functx.core.samples import f32, sample
from functx.ops.operands import batch_size
from functx.ops.shaping import batch_dim_at

TRANSPOSED_KIND = {"argument": "sum", "result": "share", "sum": "sum", "share": "share"}


class DerivativeBoundary(Primitive):
    """`x`, an argument or a result of what is differentiated, or a cotangent of one.

    Along which of the `axes`, names with lengths, `like` is the same in all places is known only
    where the devices are: there a "sum" adds up the places along these, a "share" divides among
    them, and the others are `x`.
    """

    kind: str
    axes: tuple[tuple[Hashable, int], ...]
    linear = (0,)
    samples = (
        sample(f32[3], f32[2], kind="argument", axes=(("i", 4),)),
        sample(f32[3], f32[2], kind="share", axes=(("i", 4),)),
    )

    @property
    def named_axes(self) -> frozenset[Any]:  # type: ignore[override]
        return frozenset([name for name, _ in self.axes])

    @property
    def is_identity(self) -> bool:
        """Whether the value is the operand wherever it is asked for."""
        return self.kind in ("argument", "result")

    def abstract_eval(self, x, like):
        return x

    def jvp(self, primals, tangents):
        (x, like), (t, _) = primals, tangents
        if self.is_identity:
            return x, t
        return self(x, like), None if t is None else self(t, like)

    def forward(self, args, active):
        # Once differentiated, an argument or a result is nothing special any more.
        out = args[0] if self.is_identity else self(*args)
        return [out], [out]

    def vjp(self, ct, out, args, active):
        return DerivativeBoundary(TRANSPOSED_KIND[self.kind], self.axes)(ct, args[1]), None

    def transpose(self, ct, x, like):
        return DerivativeBoundary(TRANSPOSED_KIND[self.kind], self.axes)(ct, like), None

    def batch(self, args, dims):
        (x, like), (dim, _) = args, dims
        x = batch_dim_at(x, dim, 0, batch_size(args, dims))
        return self(x, like), 0

    def lower(self, ctx, x, like):
        return x
