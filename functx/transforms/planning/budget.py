"""Plans that keep to a budget: of ever less that is kept, the first that fits."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

from functx.core.budgets import MemoryBudget, format_bytes
from functx.core.errors import MemoryBudgetWarning
from functx.core.program import Program
from functx.core.provenance import line_number, user_line, user_source
from functx.core.rewriting import cached_rewrite
from functx.transforms.planning.bans import MinCutConfig
from functx.transforms.planning.peak import temporary_bytes
from functx.transforms.planning.planned import MIN_CUT_PLAN, MemoryPlan, use_memory_plan

# The estimate does not know how XLA pads arrays and leaves gaps between them.
_MARGIN = 1.2
_RECOMPUTE_PRICES = (*[2.0**-n for n in range(-1, 8)], 0.0)


def candidate_plans(equations: int) -> Iterator[Any]:
    """Plans from nothing computed again to whole sections, for a program of so many equations."""
    yield "off"
    yield MIN_CUT_PLAN
    for price in _RECOMPUTE_PRICES:
        yield MemoryPlan(MinCutConfig(aggressive=True, price=price))
    count = 2
    while count <= equations // 4:
        yield MemoryPlan(MinCutConfig(aggressive=True, price=0.0), count)
        count *= 2


def plan_within_budget(
    budget: MemoryBudget, rewrite: Callable[[Program], Program], program: Program
) -> tuple[Any, Program]:
    """The first plan, and `rewrite(program)` under it, whose temporaries fit in `budget`.

    Where none does, MemoryBudgetWarning says what the least is, and the one that takes it is given.
    """
    best: tuple[Any, Program] | None = None
    least = plain = 0
    for plan in candidate_plans(len(program.equations)):
        with use_memory_plan(plan):
            made = cached_rewrite(rewrite, program)
        need = cached_rewrite(temporary_bytes, made)
        plain = plain or need
        if best is None or need < least:
            best, least = (plan, made), need
        if fits_budget(need, budget, plain):
            return plan, made
    assert best is not None
    limit = budget.bytes_for(plain)
    warn_at_user_line(
        MemoryBudgetWarning(
            f"memory: the derivative of {program.name} must be given at least "
            f"{format_bytes(least * _MARGIN)} for temporaries; got {format_bytes(limit)}",
            f"It takes the least; with nothing computed again it is {format_bytes(plain * _MARGIN)}.",
            fix="Raise the budget, or differentiate smaller batches.",
        )
    )
    return best


def warn_at_user_line(warning: MemoryBudgetWarning) -> None:
    """Warn at the user's line."""
    asked = user_source()
    source = None if asked is None else user_line(asked)
    where = ("functx", 0) if source is None else (source[0].co_filename, line_number(source))
    warnings.warn_explicit(warning, MemoryBudgetWarning, *where)


def fits_budget(need: int, budget: MemoryBudget, plain: int) -> bool:
    """Whether a derivative that needs so much, where it plainly takes `plain`, fits in `budget`."""
    if budget.fraction is not None:
        return need <= budget.bytes_for(plain)
    return need * _MARGIN <= budget.bytes
