"""How much memory a derivative may take: what users may say, and what it means."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

from functx.core.errors import ArgumentError, ValueRangeError, type_name
from functx.core.records import Record

MEMORY_MODES = "off", "min_cut"
_UNITS = {"b": 1} | {
    f"{letter}{suffix}": base**power
    for power, letter in enumerate("kmgt", 1)
    for suffix, base in (("b", 1000), ("ib", 1024))
}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?i?b)\s*", re.IGNORECASE)


class MemoryBudget(Record):
    """The temporaries that a derivative may take: `bytes`, or a `fraction` of what it takes plainly."""

    bytes: int = 0
    fraction: float | None = None

    def bytes_for(self, plain: int) -> int:
        """The bytes, where the plain derivative takes so many."""
        return self.bytes if self.fraction is None else int(self.fraction * plain)


def parse_memory_mode(what: str, given: Any) -> str | MemoryBudget | None:
    """`given` as a memory mode: a word of `MEMORY_MODES`, a budget, or None for None.

    Raises ArgumentError and ValueRangeError for anything else, in the name of `what`.
    """
    if given is None or isinstance(given, MemoryBudget):
        return given
    must = f"{what}: memory must be one of {MEMORY_MODES} or a budget"
    fix = 'Give a size as "2GiB" or "500MB", an int of bytes, or a float from 0 to 1.'
    if isinstance(given, str):
        if given in MEMORY_MODES:
            return given
        found = _SIZE.fullmatch(given)
        if found is None:
            raise ValueRangeError(f"{must}; got {given!r}", fix=fix)
        return MemoryBudget(int(Decimal(found[1]) * _UNITS[found[2].lower()]))
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise ArgumentError(f"{must}; got {type_name(given)}", fix=fix)
    if isinstance(given, int):
        if given < 0:
            raise ValueRangeError(f"{must} of no less than 0 bytes; got {given}", fix=fix)
        return MemoryBudget(given)
    if not 0 <= given <= 1:
        raise ValueRangeError(
            f"{must}, of which a float is a fraction from 0 to 1; got {given}", fix=fix
        )
    return MemoryBudget(fraction=given)


def format_bytes(count: float) -> str:
    """`1.5 MiB`: a number of bytes for reading."""
    power = 0
    while abs(count) >= 1024 and power < len(_BYTE_UNITS) - 1:
        count, power = count / 1024, power + 1
    return f"{count:.{int(power > 0)}f} {_BYTE_UNITS[power]}"


_BYTE_UNITS = "B", "KiB", "MiB", "GiB", "TiB"
