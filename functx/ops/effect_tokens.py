"""Effect tokens: empty arrays that make the order of effects a part of the dataflow."""

from __future__ import annotations

from typing import Any

import numpy as np

from functx.core import tree
from functx.core.effects import Effects
from functx.core.errors import MissingTokenError
from functx.core.primitive import Primitive
from functx.core.samples import LazySamples, f32, sample
from functx.core.types import ShapedArray
from functx.core.typing import Avals, Value, Values
from functx.ops.callbacks import DebugCallback, FlatCallback

TOKEN = ShapedArray((0,), np.dtype(bool))
"""The type of a token: an empty array."""


def _observe(x: Value) -> None:
    """Does nothing with `x`."""


class WithEffects(Primitive):
    """`operation`, whose effects come after those that the tokens stand for.

    Operands: a token for each of `kinds`, the names of effects, then the operands of `operation`.
    Outputs: a new token for each kind, then the outputs of `operation`. All rules follow from those of
    the operation, which keeps the order of effects itself: tokens cost nothing.
    """

    operation: Primitive
    kinds: tuple[str, ...] = ("ordered",)
    multiple_results = True
    samples = LazySamples(
        lambda: (
            sample(
                TOKEN, f32[3],
                operation=DebugCallback(FlatCallback(_observe, tree.structure(((0,), {}))), (), True),
                dtypes=("f32",),
            ),
        )
    )  # fmt: skip

    @property
    def effects(self) -> Effects:  # type: ignore[override]
        return self.operation.effects

    @property
    def named_axes(self) -> frozenset[Any]:  # type: ignore[override]
        return self.operation.named_axes

    def abstract_eval(self, *avals: ShapedArray) -> Avals:
        count, name = len(self.kinds), self.operation.name
        for i, kind in enumerate(self.kinds):
            if i >= len(avals) or avals[i] is not TOKEN:
                got = repr(avals[i]) if i < len(avals) else "none"
                raise MissingTokenError(
                    f"with_effects: {name}, whose effect is {kind!r}, must be given a token, of type "
                    f"{TOKEN!r}; got {got} as operand {i}",
                    fix="Pass numpy.zeros(0, bool), or the token that the effect before it returned.",
                )
        outs = self.operation.out_avals(avals[count:])
        return [*avals[:count], *outs]

    def decompose(self, *args: Value) -> Values:
        count = len(self.kinds)
        return [*args[:count], *self.operation.as_list(self.operation(*args[count:]))]
