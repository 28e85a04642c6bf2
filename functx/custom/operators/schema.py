"""The schema of an operator: the types of what it takes and gives, and what it writes to."""

from __future__ import annotations

import re
from ast import literal_eval
from typing import Any

import numpy as np

from functx.core.errors import SchemaError
from functx.core.records import Record
from functx.core.types import DTYPES_BY_SHORT_NAME, SHORT_NAMES

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
        from functx.custom.operators.schema import parse_schema

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


SCHEMA_EXAMPLE = "(Array x, int n=3, *, float eps=1e-5) -> Array"

# PyTorch's words for the same types.
_PYTORCH_TYPES = {
    "Tensor": "Array",
    "SymInt": "int",
    "Scalar": "Number",
    "ScalarType": "dtype",
    "Device": "device",
}
_ITEM = re.compile(
    r"(?P<base>\w+)(\((?P<alias>\w+!?)\))?(?P<marks>[?\[\]]*)"
    r"(\s+(?P<name>[^\W\d]\w*))?(\s*=\s*(?P<default>.+))?"
)
_TYPE_SUFFIXES = {
    "": {},
    "?": {"optional": True},
    "[]": {"is_list": True},
    "?[]": {"is_list": True, "optional_elements": True},
    "[]?": {"is_list": True, "optional": True},
    "?[]?": {"is_list": True, "optional_elements": True, "optional": True},
}


def parse_schema(text: str) -> Schema:
    """The schema that `text`, such as `(Array x, int n=3) -> Array`, stands for.

    Takes PyTorch's words too (`Tensor`, `SymInt`, `Scalar`). Raises SchemaError for other text.
    """
    found = re.fullmatch(r"\s*([\w.:]*)\s*(\(.*\))\s*->\s*(.*?)\s*", text, re.DOTALL)
    if found is None:
        raise _parse_error(text, "arguments in parentheses, `->`, and the results")
    if found[1]:
        raise SchemaError(
            f"schema: the text must begin with the arguments, without a name; got {text!r}",
            fix=f"Leave out `{found[1]}`: {SCHEMA_EXAMPLE}",
        )
    arguments = []
    keyword_only = False
    for item in _split_items(found[2], text):
        if item == "*":
            keyword_only = True
        else:
            arguments.append(_argument(item, keyword_only, text))
    names = [a.name for a in arguments]
    if len(set(names)) != len(names):
        raise _parse_error(text, "a name of its own for each argument")
    whole = found[3]
    single = not whole.startswith("(")
    returns = [_return(item, text) for item in ([whole] if single else _split_items(whole, text))]
    return Schema(tuple(arguments), tuple(returns), single)


def _split_items(text: str, whole: str) -> list[str]:
    """What stands between commas in the parentheses that enclose `text`."""
    if not text.endswith(")"):
        raise _parse_error(whole, "`)` at the end of the results")
    items, depth, start = [], 0, 1
    for i, mark in enumerate(text):
        depth += (mark in "([") - (mark in ")]")
        if (mark == "," and depth == 1) or i == len(text) - 1:
            items.append(text[start:i].strip())
            start = i + 1
    if depth:
        raise _parse_error(whole, "brackets that match")
    return [] if items == [""] else items


def _type(item: str, whole: str) -> tuple[Type, re.Match[str]]:
    found = _ITEM.fullmatch(item)
    if found is None or found["marks"] not in _TYPE_SUFFIXES:
        raise _parse_error(whole, f"a type and a name in place of `{item}`")
    base = _PYTORCH_TYPES.get(found["base"], found["base"])
    if base not in BASES:
        raise _parse_error(whole, f"one of {', '.join(BASES)} in place of `{found['base']}`")
    return Type(base, **_TYPE_SUFFIXES[found["marks"]]), found


def _argument(item: str, keyword_only: bool, whole: str) -> Argument:
    kind, found = _type(item, whole)
    if not found["name"]:
        raise _parse_error(whole, f"a name behind `{item}`")
    text = found["default"]
    default = NO_DEFAULT if text is None else _default(text, kind, whole)
    return Argument(found["name"], kind, default, keyword_only, found["alias"] or "")


def _return(item: str, whole: str) -> Return:
    kind, found = _type(item, whole)
    return Return(kind, found["name"] or "", found["alias"] or "")


def _default(text: str, kind: Type, whole: str) -> Any:
    if kind.base == "dtype" and text in DTYPES_BY_SHORT_NAME:
        return DTYPES_BY_SHORT_NAME[text]
    try:
        value = literal_eval(text)
    except (ValueError, SyntaxError):
        raise _parse_error(
            whole, f"a number, a string, a list or None in place of `{text}`"
        ) from None
    return tuple(value) if isinstance(value, list) else value


def _parse_error(text: str, wanted: str) -> SchemaError:
    return SchemaError(
        f"schema: the text must have {wanted}; got {text!r}", fix=f"Write it like {SCHEMA_EXAMPLE}"
    )
