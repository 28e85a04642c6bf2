"""Schemas of operators: the types of arguments and results, and their aliases; and their text."""

from __future__ import annotations

import re
from ast import literal_eval

import numpy as np

from functx.core.errors import SchemaError
from functx.core.rewriting import Record
from functx.core.types import DTYPES_BY_SHORT_NAME, SHORT_NAMES

ARRAY = "Array"
SCALARS = ("int", "float", "bool", "Number")
BASES = (ARRAY, *SCALARS, "str", "dtype", "device")


class _NoDefault:
    """The default of a required argument."""

    def __repr__(self) -> str:
        return "no default"


NO_DEFAULT = _NoDefault()


class Type(Record):
    """The type of an argument or result: one of `BASES`, or a list of it.

    `optional` allows None, `optional_elements` allows None in place of elements of a list.
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
        """The text of the type in a schema, with the alias in parentheses: `Array(a!)`."""
        alias = f"({alias})" if alias else ""
        element = f"{self.base}{alias}{'?' * self.optional_elements}"
        return f"{element}{'[]' if self.is_list else ''}{'?' * self.optional}"

    def __str__(self) -> str:
        return self.text()


class Argument(Record):
    """An argument of an operator; an alias with `!` marks it as written to."""

    name: str
    type: Type
    default: object = NO_DEFAULT
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
    """The arguments and results of an operator.

    `returns_single` says that the result is one value and not a tuple. Prints as
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
        """The schema written in `text`, in the form that `print` shows.

        Raises SchemaError for other text.
        """
        return parse_schema(text)

    @property
    def arrays(self) -> tuple[Argument, ...]:
        """The arguments that are arrays, or hold arrays."""
        return tuple([a for a in self.arguments if a.type.is_array])

    @property
    def positional(self) -> tuple[Argument, ...]:
        """The positional arguments."""
        return tuple([a for a in self.arguments if not a.keyword_only])

    @property
    def mutated(self) -> tuple[Argument, ...]:
        """The arguments that are written to."""
        return tuple([a for a in self.arguments if a.mutated])

    @property
    def new_returns(self) -> tuple[Return, ...]:
        """The results that are not arguments, which an equation of the operator gives first."""
        return tuple([r for r in self.returns if not r.alias])


def is_functional_schema(schema: Schema | str) -> bool:
    """Whether an operator of this schema writes to no argument and returns only new values.

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


def format_default(value: object) -> str:
    """The text of a default in a schema."""
    if isinstance(value, np.dtype) and value in SHORT_NAMES:
        return SHORT_NAMES[value]
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(format_default, value))}]"
    return repr(value)


SCHEMA_EXAMPLE = "(Array x, int n=3, *, float eps=1e-5) -> Array"

# PyTorch's names of the types.
_PYTORCH_TYPES = {
    "Tensor": "Array",
    "SymInt": "int",
    "Scalar": "Number",
    "ScalarType": "dtype",
    "Device": "device",
}
_ITEM = re.compile(
    r"(?P<base>\w+)(\((?P<alias>\w+!?)\))?(?P<suffix>[?\[\]]*)"
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
    """The schema written in `text`, such as `(Array x, int n=3) -> Array`.

    PyTorch's names of types are accepted (`Tensor`, `SymInt`, `Scalar`). Raises SchemaError for
    other text.
    """
    match = re.fullmatch(r"\s*([\w.:]*)\s*(\(.*\))\s*->\s*(.*?)\s*", text, re.DOTALL)
    if match is None:
        raise _parse_error(text, "arguments in parentheses, `->`, and the results")
    name, arguments_text, returns_text = match.groups()
    if name:
        raise SchemaError(
            f"schema: the text must begin with the arguments, without a name; got {text!r}",
            fix=f"Leave out `{name}`: {SCHEMA_EXAMPLE}",
        )
    arguments = []
    keyword_only = False
    for item in _split_items(arguments_text, text):
        if item == "*":
            keyword_only = True
        else:
            arguments.append(_argument(item, keyword_only, text))
    names = [a.name for a in arguments]
    if len(set(names)) != len(names):
        raise _parse_error(text, "a name of its own for each argument")
    single = not returns_text.startswith("(")
    items = [returns_text] if single else _split_items(returns_text, text)
    return Schema(tuple(arguments), tuple([_return(item, text) for item in items]), single)


def _split_items(text: str, whole: str) -> list[str]:
    """The items between the commas of `text`, a list in parentheses."""
    if not text.endswith(")"):
        raise _parse_error(whole, "`)` at the end of the results")
    items, depth, start = [], 0, 1
    for i, character in enumerate(text):
        depth += (character in "([") - (character in ")]")
        if (character == "," and depth == 1) or i == len(text) - 1:
            items.append(text[start:i].strip())
            start = i + 1
    if depth:
        raise _parse_error(whole, "brackets that match")
    return [] if items == [""] else items


def _type(item: str, whole: str) -> tuple[Type, re.Match[str]]:
    match = _ITEM.fullmatch(item)
    if match is None or match["suffix"] not in _TYPE_SUFFIXES:
        raise _parse_error(whole, f"a type and a name in place of `{item}`")
    base = _PYTORCH_TYPES.get(match["base"], match["base"])
    if base not in BASES:
        raise _parse_error(whole, f"one of {', '.join(BASES)} in place of `{match['base']}`")
    return Type(base, **_TYPE_SUFFIXES[match["suffix"]]), match


def _argument(item: str, keyword_only: bool, whole: str) -> Argument:
    item_type, match = _type(item, whole)
    if not match["name"]:
        raise _parse_error(whole, f"a name behind `{item}`")
    text = match["default"]
    default = NO_DEFAULT if text is None else _default(text, item_type, whole)
    return Argument(match["name"], item_type, default, keyword_only, match["alias"] or "")


def _return(item: str, whole: str) -> Return:
    item_type, match = _type(item, whole)
    return Return(item_type, match["name"] or "", match["alias"] or "")


def _default(text: str, item_type: Type, whole: str) -> object:
    if item_type.base == "dtype" and text in DTYPES_BY_SHORT_NAME:
        return DTYPES_BY_SHORT_NAME[text]
    try:
        value = literal_eval(text)
    except (ValueError, SyntaxError):
        raise _parse_error(
            whole, f"a number, a string, a list or None in place of `{text}`"
        ) from None
    return tuple(value) if isinstance(value, list) else value


def _parse_error(text: str, requirement: str) -> SchemaError:
    return SchemaError(
        f"schema: the text must have {requirement}; got {text!r}",
        fix=f"Write it like {SCHEMA_EXAMPLE}",
    )
