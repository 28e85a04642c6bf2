"""Why a run failed: a wrong merge, a number that must stay one, or an error of the user's function."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from functx.core.errors import FunctxError, IterationLimitError, PathLimitError, ReplayError
from functx.core.program import Equation
from functx.core.source_info import source_line
from functx.transforms.explore.paths import Merge, Route

if TYPE_CHECKING:
    from functx.transforms.explore.run import Run


class PathEnds(BaseException):
    """Ends a run of the function whose remaining program is known."""


class Contradiction(BaseException):
    """Ends a run whose outcomes exclude each other."""


class ReplayMismatch(BaseException):
    """Ends a run that differs from the known path; `args[0]` is its first other equation, if any."""


class Crossing(NamedTuple):
    """A merge that a run has come through, and the number of outcomes before it."""

    merge: Merge
    outcomes: int


def raise_for_mismatch(run: Run, eqn: Equation | None) -> NoReturn:
    """Raise for a run that differs from the known path.

    Raises Restart where one of both merged wrongly, and ReplayError where the function is not repeatable.
    """
    for merge in suspects(run):
        run.findings.refuse(merge)
    raise ReplayError(
        f"explore({run.explorer.name}): the function must compute the same whenever it runs; got "
        + (f"{eqn.primitive!r}, which it did not compute before" if eqn else "another end"),
        *[
            f"after {s.outcome} at {source_line(s.decision.source)}"
            for s in run.outcomes.history[-1:]
        ],
        fix="Leave out side effects, such as appending to a list from outside, and random numbers of "
        "Python or NumPy: the function runs once for each outcome of its decisions.",
        source=None if eqn is None else eqn.source,
    ) from None


def suspects(run: Run) -> Iterator[Merge]:
    """The merges that may have made `run` differ from the known path, the likeliest one first."""
    found = find_wrong_merge(run, run.outcomes.taken(), run.crossings)
    if found is not None:
        yield found
    # The known path is itself the wrong one: a run recorded it after a wrong merge.
    known, _ = replay(run, run.segment.path())
    recorded_path = known.segment.recorded_path
    recording, _ = replay(run, recorded_path)
    found = find_wrong_merge(run, recorded_path, recording.crossings)
    if found is not None:
        yield found
    yield from [x.merge for x in [*recording.crossings, *run.crossings][-1:]]


def find_wrong_merge(
    run: Run, outcomes: Sequence[bool], crossings: Sequence[Crossing]
) -> Merge | None:
    """A merge after which the function does not go on as it does after the path that was there first.

    `crossings` are those of a run with these outcomes. The run is repeated from later and later
    merges on: it begins with the path that was first at the merge, and goes on with the outcomes that
    follow. Bisection finds a merge before which these runs match the known path, and after which they do not,
    or the reverse. None if there is none.
    """

    def matches(skipped: int) -> bool:
        if not skipped:
            return replay(run, outcomes)[1]
        merge, count = crossings[skipped - 1]
        return replay(run, [*merge.decision.arrival.segment.path(), *outcomes[count:]])[1]

    low, high = 0, len(crossings)
    if not crossings or matches(low) == (last := matches(high)):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        if matches(middle) == last:
            high = middle
        else:
            low = middle
    return crossings[low].merge


def replay(run: Run, path: Sequence[bool]) -> tuple[Run, bool]:
    """A run that ends after the outcomes `path`, and whether it matches the known graph."""
    again = type(run)(run.explorer, Route(path, contradicts=True, is_replay=True))
    try:
        again.execute()
    except (ReplayMismatch, Exception, GeneratorExit):
        return again, False
    return again, True


def restart_or_explain(run: Run, error: BaseException) -> None:
    """Raise Restart for an error that a merge, or a number as a traced value, may have caused.

    Else name the outcomes that led to the error.
    """
    if isinstance(error, (PathLimitError, IterationLimitError, ReplayError)):
        return
    run.findings.give_up_numbers(run.numbers)
    if run.crossings and not is_error_of_path(run, error):
        wrong = find_wrong_merge(run, run.outcomes.taken(), run.crossings)
        run.findings.refuse(wrong or run.crossings[-1].merge)
    if run.outcomes.history and not isinstance(error, FunctxError):
        outcomes = [
            f"  {s.outcome}: {source_line(s.decision.source)}" for s in run.outcomes.history
        ]
        error.add_note("\n".join(["explored with these outcomes:", *outcomes]))


def is_error_of_path(run: Run, error: BaseException) -> bool:
    """Whether a run with the same outcomes that does not merge ends with the same error."""
    try:
        type(run)(run.explorer, Route(run.outcomes.taken(), merges=False)).execute()
    except Contradiction:
        return False
    except Exception as found:
        return type(found) is type(error)
    return False
