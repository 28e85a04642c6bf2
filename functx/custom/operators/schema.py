"""The schema of an operator: the types of what it takes and gives, and what it writes to."""

from __future__ import annotations

from typing import Any

import numpy as np

from functx.core.dtypes import SHORT_NAMES
from functx.core.records import Record

ARRAY = "Array"
SCALARS = ("int", "float", "bool", "Number")
BASES = (ARRAY, *SCALARS, "str", "dtype", "device")


class _NoDefault:
    """The default of an argument that must be given."""

    def __repr__(self) -> str:
        return "no default"


NO_DEFAULT = _NoDefault()


class Type(Record):
    """A type: one of `BASES`, or a list of it; `optional` allows None for it.

    With `holes` a list may have None in place of elements.
    """

    base: str
    is_list: bool = False
    optional: bool = False
    optional_elements: bool = False

    @property
    def is_array(self) -> bool:
        """Whether values are arrays, or hold arrays."""
        return self.base == ARRAY

    def text(self, alias: str = "") -> str:
        """The type as schemas show it, with `(a!)` behind the name where there is an alias."""
        mark = f"({alias})" if alias else ""
        holes = "?" if self.optional_elements else ""
        return f"{self.base}{mark}{holes}{'[]' if self.is_list else ''}{'?' * self.optional}"

    def __str__(self) -> str:
        return self.text()


class Argument(Record):
    """An argument of an operator; an alias with `!` says that it is written to."""

    name: str
    type: Type
    default: Any = NO_DEFAULT
    keyword_only: bool = False
    alias: str = ""

    @property
    def mutated(self) -> bool:
        """Whether the operator writes to it."""
        return self.alias.endswith("!")

    def __str__(self) -> str:
        default = "" if self.default is NO_DEFAULT else f"={format_default(self.default)}"
        return f"{self.type.text(self.alias)} {self.name}{default}"


class Return(Record):
    """A result of an operator; one with an alias is an argument, or a view of one."""

    type: Type
    name: str = ""
    alias: str = ""

    def __str__(self) -> str:
        return f"{self.type.text(self.alias)} {self.name}".rstrip()


class Schema(Record):
    """What an operator takes, gives and writes to.

    `single` says that the result is one value and no tuple. Prints as
    `(Array x, Array(a!) y, int n=3, *, float eps=1e-05) -> Array`.
    """

    arguments: tuple[Argument, ...]
    returns: tuple[Return, ...]
    returns_single: bool = True

    def __str__(self) -> str:
        parts: list[str] = []
        for argument in self.arguments:
            if argument.keyword_only and "*" not in parts:
                parts.append("*")
            parts.append(str(argument))
        returns = ", ".join(map(str, self.returns))
        return f"({', '.join(parts)}) -> {returns if self.returns_single else f'({returns})'}"

    @staticmethod
    def parse(text: str) -> Schema:
        """The schema that `text`, in the form that `print` shows, stands for."""
        from functx.custom.operators.schema_text import parse_schema

        return parse_schema(text)

    @property
    def arrays(self) -> tuple[Argument, ...]:
        """The arguments that are arrays, or hold arrays."""
        return tuple([a for a in self.arguments if a.type.is_array])

    @property
    def positional(self) -> tuple[Argument, ...]:
        """The arguments that may be given by position."""
        return tuple([a for a in self.arguments if not a.keyword_only])

    @property
    def mutated(self) -> tuple[Argument, ...]:
        """The arguments that are written to."""
        return tuple([a for a in self.arguments if a.mutated])

    @property
    def new_returns(self) -> tuple[Return, ...]:
        """The results that are no arguments: what an equation of the operator gives first."""
        return tuple([r for r in self.returns if not r.alias])


def is_functional_schema(schema: Schema | str) -> bool:
    """Whether an operator of this schema writes to nothing, and returns something new.

    An argument may have an alias as long as no result has it.

    >>> from functx.library import is_functional_schema
    >>> is_functional_schema("(Array(a) x) -> Array")
    True
    >>> is_functional_schema("(Array(a!) x) -> Array")
    False
    """
    if isinstance(schema, str):
        schema = Schema.parse(schema)
    return bool(schema.returns) and not schema.mutated and not any(r.alias for r in schema.returns)


def format_default(value: Any) -> str:
    """A default as schemas show it."""
    if isinstance(value, np.dtype) and value in SHORT_NAMES:
        return SHORT_NAMES[value]
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(format_default, value))}]"
    return repr(value)
