"""Schemas read from text: the inverse of how they print."""

from __future__ import annotations

import re
from ast import literal_eval
from typing import Any

from functx.core.dtypes import DTYPES_BY_SHORT_NAME
from functx.core.errors import SchemaError
from functx.custom.operators.schema import BASES, NO_DEFAULT, Argument, Return, Schema, Type

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
    "?[]": {"is_list": True, "holes": True},
    "[]?": {"is_list": True, "optional": True},
    "?[]?": {"is_list": True, "holes": True, "optional": True},
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
