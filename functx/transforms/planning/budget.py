"""Plans that keep to a budget: of ever less that is kept, the first that fits."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

from functx.core.budgets import Budget, size_text
from functx.core.errors import MemoryBudgetWarning
from functx.core.program import Program
from functx.core.provenance import line_number, user_source, users
from functx.core.rewriting import rewritten
from functx.transforms.planning.bans import Config
from functx.transforms.planning.peak import temporary_bytes
from functx.transforms.planning.planned import MIN_CUT, Plan, asking_for

# The estimate does not know how XLA pads arrays and leaves gaps between them.
_MARGIN = 1.2
_PRICES = (*[2.0**-n for n in range(-1, 8)], 0.0)


def plans(equations: int) -> Iterator[Any]:
    """Plans from nothing computed again to whole sections, for a program of so many equations."""
    yield "off"
    yield MIN_CUT
    for price in _PRICES:
        yield Plan(Config(aggressive=True, price=price))
    count = 2
    while count <= equations // 4:
        yield Plan(Config(aggressive=True, price=0.0), count)
        count *= 2


def fitting_plan(
    budget: Budget, rewrite: Callable[[Program], Program], program: Program
) -> tuple[Any, Program]:
    """The first plan, and `rewrite(program)` under it, whose temporaries fit in `budget`.

    Where none does, MemoryBudgetWarning says what the least is, and the one that takes it is given.
    """
    best: tuple[Any, Program] | None = None
    least = plain = 0
    for plan in plans(len(program.equations)):
        with asking_for(plan):
            made = rewritten(rewrite, program)
        need = rewritten(temporary_bytes, made)
        plain = plain or need
        if best is None or need < least:
            best, least = (plan, made), need
        if fits(need, budget, plain):
            return plan, made
    assert best is not None
    limit = budget.of(plain)
    warn(
        MemoryBudgetWarning(
            f"memory: the derivative of {program.name} must be given at least "
            f"{size_text(least * _MARGIN)} for temporaries; got {size_text(limit)}",
            f"It takes the least; with nothing computed again it is {size_text(plain * _MARGIN)}.",
            fix="Raise the budget, or differentiate smaller batches.",
        )
    )
    return best


def warn(warning: MemoryBudgetWarning) -> None:
    """Warn at the user's line."""
    asked = user_source()
    source = None if asked is None else users(asked)
    where = ("functx", 0) if source is None else (source[0].co_filename, line_number(source))
    warnings.warn_explicit(warning, MemoryBudgetWarning, *where)


def fits(need: int, budget: Budget, plain: int) -> bool:
    """Whether a derivative that needs so much, where it plainly takes `plain`, fits in `budget`."""
    if budget.fraction is not None:
        return need <= budget.of(plain)
    return need * _MARGIN <= budget.bytes
