"""The names that values of a run have in all runs.

Each run appends equations with variables of its own. The first run that comes through a segment gives these
their names, the variables of the segment; later runs give theirs the same ones. After a merge, the names are
those of the path that the run has merged with.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from functx.core.builder import Builder
from functx.core.program import Atom, Var
from functx.transforms.explore.merging import Renaming
from functx.transforms.explore.paths import Findings, Merge


class Names:
    """The names of the variables of one run, renamed at each merge when they are next asked for."""

    def __init__(self, builder: Builder, findings: Findings):
        self.builder, self.findings = builder, findings
        self.renamings: list[Renaming] = []
        self._names: dict[Var, tuple[Any, int]] = {}

    def name(self, atom: Atom) -> Atom | Merge:
        """The atom that stands for `atom` of this run in all runs; the merge since which there is none."""
        if type(atom) is not Var:
            return atom
        known = self._names.get(atom)
        if known is None:
            value = self.builder.captured_value(atom)
            assert value is not None, "a value has an equation or is captured"
            known = self.findings.capture(value), 0
        found, count = known
        for renaming in self.renamings[count:]:
            if isinstance(found, Merge):
                break
            found = renaming(found)
        self._names[atom] = found, len(self.renamings)
        return found  # type: ignore[no-any-return]

    def needed_name(self, atom: Atom) -> Atom:
        """As `name`, where the run needs the value. Raises Restart without a name: the merge was wrong."""
        found = self.name(atom)
        if isinstance(found, Merge):
            self.findings.refuse(found)
        return found

    def set(self, own: Sequence[Var], names: Sequence[Any]) -> None:
        """Give variables of this run the names that they have now."""
        count = len(self.renamings)
        self._names.update({v: (name, count) for v, name in zip(own, names, strict=True)})
