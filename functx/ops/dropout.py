"""Dropout: elements that a key chooses are left out, and the others stand for them."""

from __future__ import annotations

from functx.core.dtypes import canonical_dtype
from functx.core.errors import ShapeError, ValueRangeError
from functx.core.primitive import Primitive
from functx.core.samples import f32, sample, u32
from functx.ops.arithmetic import div
from functx.ops.distributions import RandomBernoulli
from functx.ops.families import check_same_dtype
from functx.ops.operands import literal
from functx.ops.random_bits import check_key
from functx.ops.selection import select
from functx.ops.shaping import zeros_like


class Dropout(Primitive):
    """`x / (1 - rate)` where the key says so, each with probability 1 - rate, and 0 elsewhere.

    Linear in `x`, and drawn again where a derivative needs it, so that nothing is kept.
    """

    rate: float
    accepts = "f"
    samples = (
        sample(f32[3, 4], u32[2], rate=0.4),
        sample(f32[3], u32[2], rate=1.0),
    )

    def abstract_eval(self, x, key):
        if not 0 <= self.rate <= 1:
            raise ValueRangeError(
                f"{self.name}: rate must be a probability, from 0 to 1; got {self.rate}"
            )
        check_same_dtype(self, (x,))
        check_key(self, key)
        if key.ndim != 1:
            raise ShapeError(
                f"{self.name}: the key must be one key, u32[2]; got {key!r}",
                fix="Use vmap to draw with an array of keys.",
            )
        return x

    def decompose(self, x, key):
        if self.rate == 1:
            return zeros_like(x)
        kept = RandomBernoulli(x.shape)(key, literal(1.0 - self.rate, canonical_dtype(float)))
        return select(kept, div(x, 1.0 - self.rate), 0.0)

    def jvp(self, primals, tangents):
        (x, key), (t, _) = primals, tangents
        return self(x, key), self(t, key)

    def vjp(self, ct, out, args, active):
        return self(ct, args[1]), None

    def transpose(self, ct, x, key):
        return self(ct, key), None
