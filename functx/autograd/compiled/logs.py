"""The logs of captured walks: the programs, and the reasons of captures; warnings of many captures."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from functx.autograd.compiled.keys import SizeChange, Structure
from functx.autograd.nodes import Node
from functx.core.source_info import user_source
from functx.lowering.recompilation import warn_of_repeats

programs = logging.getLogger("functx.compiled_autograd")
verbose = programs.getChild("verbose")


class Levels(NamedTuple):
    """Which logs were on when compiled autograd was enabled."""

    programs: bool
    verbose: bool

    def log_not_captured(self, nodes: Sequence[Node]) -> None:
        """Logs a walk that cannot be captured."""
        if self.verbose:
            verbose.debug(
                "not captured: a walk of %d nodes reads an array that no node has saved", len(nodes)
            )

    def log_program(self, program: object) -> None:
        """Logs a captured program."""
        if self.programs:
            programs.debug("%s", program)

    def log_miss(
        self, nodes: Sequence[Node], structure: Structure, others: Sequence[Structure]
    ) -> None:
        """Logs the first node of a kind that no walk before had at its place."""
        if self.verbose:
            position = structure.first_difference(others)
            tried = [other.sizes for other in others if other.sizeless == structure.sizeless]
            verbose.debug(
                "captured: %s is new here; the key has %d entries, sizes tried before: %s",
                describe_node(nodes, position),
                structure.length,
                tried,
            )

    def log_sizes(self, nodes: Sequence[Node], changes: Sequence[SizeChange]) -> None:
        """Logs the sizes that differ from those of the last walk of the structure, and are dynamic now."""
        if self.verbose:
            for change in changes:
                verbose.debug(
                    "captured: size %d of %s changed from %d to %d, and is dynamic now",
                    change.number,
                    describe_node(nodes, change.position),
                    change.old,
                    change.new,
                )


def current_levels() -> Levels:
    """The logs that are on now."""
    return Levels(programs.isEnabledFor(logging.DEBUG), verbose.isEnabledFor(logging.DEBUG))


def describe_node(nodes: Sequence[Node], position: int) -> str:
    """`node tanh (3)`: the node at a position of a walk, or its root."""
    return "root (0)" if position < 0 else f"node {nodes[position].label} ({position + 1})"


class CaptureRecord(NamedTuple):
    """One capture, as far as it is compared with the next by the same call of `backward`."""

    structure: Structure
    labels: list[str]

    def may_be_same_function(self, before: CaptureRecord) -> bool:
        """Whether the two walks have the same kinds of nodes."""
        return set(self.labels) == set(before.labels)

    def difference(self, before: CaptureRecord) -> tuple[str, str]:
        """The first node that differs, and advice on it."""
        advice = (
            "Walks share a capture if they have the same operations, hooks, wanted leaves and leaves with "
            "`.grad`; around one that changes each time, use functx.compiled_autograd.disable()."
        )
        if self.structure.sizeless == before.structure.sizeless:
            return "the sizes alone, or what was captured before is forgotten", advice
        position = self.structure.first_difference([before.structure])
        if position < 0:
            return "the roots, or the leaves that are wanted", advice
        name = f"node {self.labels[position]} ({position + 1})"
        was = before.labels[position : position + 1]
        if was == [self.labels[position]]:
            return f"{name}, by its hooks, parameters, operands or `.grad`", advice
        return f"{name}, {was[0] if was else 'nothing'} before", advice


def warn_of_captures(compiler: str, nodes: Sequence[Node], structure: Structure) -> None:
    """Counts a capture for a compiler by the line that calls `backward`; warns when there are too many."""
    source = user_source()
    if source is None:
        return
    warn_of_repeats(
        source,
        source[0],
        compiler,
        lambda: CaptureRecord(structure, [node.label for node in nodes]),
        "compiled_autograd: one backward() should capture a few walks at most, since that takes far "
        "longer than to run them",
    )
