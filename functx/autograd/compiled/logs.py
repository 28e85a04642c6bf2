"""The logs of captured walks: the programs, and the reasons of captures."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

from functx.autograd.compiled.splits import SizeChange, Structure
from functx.autograd.nodes import Node

programs = logging.getLogger("functx.compiled_autograd")
verbose = logging.getLogger("functx.compiled_autograd.verbose")


class Levels(NamedTuple):
    """Which logs were on when compiled autograd was enabled."""

    programs: bool
    verbose: bool

    def log_program(self, program: Any) -> None:
        """Logs a captured program."""
        if self.programs:
            programs.debug("%s", program)

    def log_miss(
        self, nodes: Sequence[Node], structure: Structure, others: Sequence[Structure]
    ) -> None:
        """Logs the first node of a kind that no walk before had at its place."""
        if self.verbose:
            position = structure.first_difference(others)
            tried = [other.sizes for other in others if other.form == structure.form]
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
