"""Which residuals derivatives save, when a program is split into a forward and a backward one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from functx.core.program import Program
from functx.transforms.reverse_mode import SplitVJP, ValueAndGrad


def _save_all(split: Any, free: tuple[int, ...] = (), consts: int = 0) -> Any:
    return split


def _recomputes_nothing(split: Any, program: Program) -> bool:
    return False


class PartialEvaluationPolicy:
    """The residuals that derivatives save: all, unless `functx.passes` supplies another policy.

    A split is a rewrite to a forward program, which returns the outputs and then the residuals,
    and to one or more backward programs, which take the residuals last.
    """

    limit_residuals: Callable[..., Any] = staticmethod(_save_all)
    """`limit_residuals(split, free=(), consts=0)`: a split that saves the residuals of the policy.

    The inputs at the indices `free` cost nothing to save. The first `consts` inputs are the same
    in every run of the program.
    """
    recomputes_forward: Callable[[Any, Program], bool] = staticmethod(_recomputes_nothing)
    """Whether the backward programs of a split of `limit_residuals` repeat forward equations."""
    vjp_split: Callable[[tuple[bool, ...]], Any] = SplitVJP
    """The split for the cotangents of the inputs marked active; see `SplitVJP`."""
    gradient_rewrite: Callable[[tuple[bool, ...], bool], Any] = ValueAndGrad
    """The rewrite to outputs and gradients; see `ValueAndGrad` for its fields."""


policy = PartialEvaluationPolicy()
