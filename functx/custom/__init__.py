"""Functions with user-defined rules: derivatives, batching, checkpoints, solvers and operators."""

from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

if _TYPE_CHECKING:
    from functx.custom.higher_order_op import HigherOrderOp

__all__ = ["HigherOrderOp"]


def __getattr__(name: str) -> _Any:
    if name == "HigherOrderOp":
        from functx.custom.higher_order_op import HigherOrderOp

        return HigherOrderOp
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
