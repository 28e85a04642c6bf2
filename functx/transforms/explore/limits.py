"""Errors of explorations that reach a limit: of paths, of iterations, of recursion or of nesting."""

from __future__ import annotations

from functx.core.errors import IterationLimitError, PathLimitError
from functx.core.program import Var
from functx.core.source_info import Source, source_line, user_line
from functx.transforms.explore.paths import Arrival, Explorer


def iteration_limit_error(
    explorer: Explorer, before: Arrival, after: Arrival
) -> IterationLimitError:
    """The error for a path that has come too often to one place, the last two times in these states."""
    names = ", ".join(changed_names(before, after))
    if names:
        got = f"got other values of {names}"
    elif after.constants() in explorer.findings.unmerged:
        got = (
            "got one state after which the function does not always compute the same, so that paths that "
            "come to it were not merged"
        )
    else:
        got = "got other values of what no local variable shows"
    shown = (
        "Keep what the loop changes in traced arrays of fixed shapes and in numbers, or write it with "
        "functx.lax.while_loop; to unroll more of it, pass larger `iterations` and `paths`."
    )
    hidden = (
        "Keep in local variables of their own what the loop depends on: give the variable of a `for` around "
        "it no other value, count with `while i < n`; or write the loop with functx.lax.while_loop."
    )
    return IterationLimitError(
        f"explore({explorer.name}): a loop must repeat its state within {explorer.iterations} iterations; "
        + got,
        fix=shown if names else hidden,
        source=None if after.source is None else user_line(after.source),
    )


def changed_names(before: Arrival, after: Arrival) -> list[str]:
    """The local variables whose values differ between two arrivals, for a message."""
    return [
        f"`{name}`"
        for i, name in after.structure
        if before.structure.get((i, name)) != after.structure[i, name]
        or any(
            [
                type(leaf) is not Var and repr(before.leaves.get(key)) != repr(leaf)
                for key, leaf in after.leaves.items()
                if key[:2] == (i, name)
            ]
        )
    ]


def recursion_error(
    explorer: Explorer, function: str, times: int, source: Source | None
) -> IterationLimitError:
    """The error for a function that calls itself too often."""
    return IterationLimitError(
        f"explore({explorer.name}): recursion on a traced value has no end that is known while "
        f"tracing; got {function} within itself {times} times",
        fix="Write it as a loop: `while` with the condition of the recursion.",
        source=None if source is None else user_line(source),
    )


def path_limit_error(explorer: Explorer) -> PathLimitError:
    """The error for too many paths, which names the lines where most of them part."""
    lines: dict[str, int] = {}
    for decisions in explorer.decisions.values():
        for each in decisions:
            line = source_line(each.source)
            lines[line] = lines.get(line, 0) + 1
    most = sorted(lines.items(), key=lambda item: -item[1])[:3]
    return PathLimitError(
        f"explore({explorer.name}): the function must have at most {explorer.paths} paths; got more",
        *[f"{count} decisions at {line}" for line, count in most],
        fix="Choose between values with functx.numpy.where or functx.lax.cond at that line, or pass a "
        "larger `paths`.",
    )


def nesting_error(explorer: Explorer) -> PathLimitError:
    """The error for branches in branches that are too deep, as those of a long `for` with a `break`."""
    return PathLimitError(
        f"explore({explorer.name}): branches must not be nested deeper than Python's recursion limit allows; "
        f"got {sum(map(len, explorer.decisions.values()))} decisions",
        fix="Count with `while i < n` in place of a `for` with `break` or `return`, which is unrolled: it "
        "becomes one loop of the program.",
    )
