"""`TwoArray`, the smallest wrapper type: two arrays that undergo the same operations."""

from __future__ import annotations

from typing import Any

from functx.core.errors import ShapeError
from functx.core.tracer import aval_of
from functx.core.typing import ArrayLike
from functx.core.wrappers import ArrayWrapper


class TwoArray(ArrayWrapper):
    """Two arrays `a` and `b` of one shape, each of which every operation is applied to.

    Operands that are no TwoArray take part in both operations. Tests of transforms use it as an array
    made of arrays.

    Raises ShapeError for arrays of different shapes.

    >>> import functx
    >>> from functx.testing import TwoArray
    >>> import functx.numpy as np
    >>> functx.jit(lambda x: 2.0 * x[0])(TwoArray(np.ones(3), np.zeros(3)))
    TwoArray(a=Array(2., dtype=float32), b=Array(0., dtype=float32))
    """

    def __init__(self, a: ArrayLike, b: ArrayLike):
        shapes = [getattr(x, "shape", None) for x in (a, b)]
        if None not in shapes and shapes[0] != shapes[1]:
            raise ShapeError(
                f"TwoArray: the arrays must have one shape; got {aval_of(a)!r} and {aval_of(b)!r}"
            )
        self.a, self.b = a, b

    def __functx_flatten__(self) -> tuple[tuple[str, str], None]:
        return ("a", "b"), None

    @staticmethod
    def __functx_unflatten__(inner: dict[str, Any], meta: None, shape: tuple[int, ...]) -> TwoArray:
        return TwoArray(inner["a"], inner["b"])

    def __functx_dispatch__(
        self, op: Any, types: tuple[type, ...], args: tuple[Any, ...], params: dict[str, Any]
    ) -> Any:
        if op.name == "write" and not isinstance(args[0], TwoArray):
            # One array cannot hold two values.
            return NotImplemented
        a, b = [
            op(*[getattr(x, name) if isinstance(x, TwoArray) else x for x in args], **params)
            for name in ("a", "b")
        ]
        if isinstance(a, (list, tuple)):
            return [TwoArray(x, y) for x, y in zip(a, b, strict=True)]
        return TwoArray(a, b)
