"""Which residuals derivatives save, when a program is split into a forward and a backward one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from functx.core.program import Program
from functx.transforms.reverse_mode import SplitVJP, ValueAndGrad

Programs = TypeVar("Programs", bound=tuple[Program, ...])
Split = Callable[[Program], Programs]


class LimitResiduals(Protocol):
    """The type of `PartialEvaluationPolicy.limit_residuals`."""

    def __call__(
        self, split: Split[Programs], free: tuple[int, ...] = (), consts: int = 0
    ) -> Split[Programs]:
        """The split that saves the residuals of the policy."""


def _save_all(
    split: Split[Programs], free: tuple[int, ...] = (), consts: int = 0
) -> Split[Programs]:
    return split


def _recomputes_nothing(split: Split[Programs], program: Program) -> bool:
    return False


class PartialEvaluationPolicy:
    """The residuals that derivatives save: all, unless `functx.passes` supplies another policy.

    A split is a rewrite to a forward program, which returns the outputs and then the residuals,
    and to one or more backward programs, which take the residuals last.
    """

    limit_residuals: LimitResiduals = staticmethod(_save_all)
    """`limit_residuals(split, free=(), consts=0)`: a split that saves the residuals of the policy.

    The inputs at the indices `free` cost nothing to save. The first `consts` inputs are the same
    in every run of the program.
    """
    recomputes_forward: Callable[[Callable[[Program], tuple[Program, ...]], Program], bool] = (
        staticmethod(_recomputes_nothing)
    )
    """Whether the backward programs of a split of `limit_residuals` repeat forward equations."""
    vjp_split: Callable[[tuple[bool, ...]], Split[tuple[Program, Program]]] = SplitVJP
    """The split for the cotangents of the inputs marked active; see `SplitVJP`."""
    gradient_rewrite: Callable[[tuple[bool, ...], bool], Callable[[Program], Program]] = (
        ValueAndGrad
    )
    """The rewrite to outputs and gradients; see `ValueAndGrad` for its fields."""


policy = PartialEvaluationPolicy()
