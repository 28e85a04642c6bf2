"""The inference of schemas from the annotations of functions, and checks against signatures."""

from __future__ import annotations

import inspect
import numbers
import re
import types
import typing
from collections import abc
from collections.abc import Iterable
from typing import Any, TypeAlias

import jax
import numpy as np

from functx.core.errors import ArgumentError, SchemaError, type_name
from functx.core.source_info import unwrap_function
from functx.core.tracer import Array, Tracer, ndarray
from functx.core.typing import Function
from functx.custom.operators.schema import (
    ARRAY,
    NO_DEFAULT,
    SCALARS,
    Argument,
    Return,
    Schema,
    Type,
)
from functx.transforms.argument_names import function_name

Annotation: TypeAlias = Any
"""The annotation of a parameter or result: a type, or what stands for types."""
UNKNOWN = "unknown"

_BASE_OF_ANNOTATION: dict[Annotation, str] = {
    jax.Array: ARRAY,
    Array: ARRAY,
    np.ndarray: ARRAY,
    ndarray: ARRAY,
    Tracer: ARRAY,
    int: "int",
    float: "float",
    bool: "bool",
    str: "str",
    numbers.Number: "Number",
    np.dtype: "dtype",
    jax.Device: "device",
}
_LIST_TYPES = (list, abc.Sequence)
_PARAMETER_TYPES = (
    "Array, int, float, bool, str, Number, numpy.dtype, jax.Device; Optional of one of them; "
    "list or Sequence of Array, Optional[Array] or numbers"
)
_RETURN_TYPES = f"Array, list[Array], {', '.join(SCALARS)}, a tuple of them, or None"


def infer_schema(
    fun: Function, *, mutates_args: str | Iterable[str] = (), op_name: str | None = None
) -> Schema:
    """The schema of the function `fun`, from its annotations.

    `mutates_args` names the arguments that it writes to, or is "unknown", which stands for
    all arrays. Arrays are annotated with `functx.Array`, `jax.Array`, or the `ndarray` of `functx.numpy` or `numpy`.

    Raises SchemaError for a parameter without an annotation, or with one of another type.

    >>> import functx
    >>> def scaled(x: functx.Array, factor: float = 2.0) -> functx.Array:
    ...     return x * factor
    >>> print(functx.library.infer_schema(scaled, mutates_args=()))
    (Array x, float factor=2.0) -> Array
    """
    label = f"infer_schema({op_name or function_name(fun)})"
    signature = _signature(fun, label)
    arguments = [_argument(p, fun, label) for p in signature.parameters.values()]
    returns, single = _returns(
        _resolve_annotation(signature.return_annotation, fun, label, "return"), label
    )
    return Schema(mark_mutated(label, arguments, mutates_args), returns, single)


def _signature(fun: Function, label: str) -> inspect.Signature:
    """The signature of a function; SchemaError for variadic or positional-only parameters."""
    try:
        signature = inspect.signature(fun)
    except (TypeError, ValueError):
        raise SchemaError(
            f"{label}: a function must have a signature; got {type_name(fun)}"
        ) from None
    for p in signature.parameters.values():
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD, p.POSITIONAL_ONLY):
            shown: dict[object, str] = {
                p.VAR_POSITIONAL: f"*{p.name}",
                p.VAR_KEYWORD: f"**{p.name}",
            }
            raise SchemaError(
                f"{label}: parameters must be plain ones, by position or keyword; "
                f"got `{shown.get(p.kind, p.name + ', /')}`, which is not supported",
                fix="Take a list, or a parameter for each value.",
            )
    return signature


def _resolve_annotation(annotation: Annotation, fun: Function, label: str, name: str) -> Annotation:
    """An annotation as a type; a string is evaluated in the globals of the function."""
    if not isinstance(annotation, str):
        return annotation
    fun = unwrap_function(fun)
    try:
        return eval(annotation, getattr(fun, "__globals__", {}))
    except Exception as error:
        raise SchemaError(
            f"{label}: annotations must be names known where the function is defined; "
            f"got {annotation!r} for `{name}`: {error}",
            fix="Import the type at the top of that module.",
        ) from None


def _argument(p: inspect.Parameter, fun: Function, label: str) -> Argument:
    if p.annotation is p.empty:
        raise SchemaError(
            f"{label}: every parameter must have an annotation; got none for `{p.name}`",
            fix=f"Annotate it with one of: {_PARAMETER_TYPES}.",
        )
    annotation = _resolve_annotation(p.annotation, fun, label, p.name)
    kind = _parameter_type(annotation)
    if kind is None:
        raise SchemaError(
            f"{label}: the parameter `{p.name}` must be of a type that an operator takes; "
            f"got {_annotation_text(annotation)}",
            fix=_suggest_list(annotation) or f"Use one of: {_PARAMETER_TYPES}.",
        )
    default: Any = NO_DEFAULT if p.default is p.empty else p.default
    if default is not NO_DEFAULT and not _is_valid_default(default):
        raise SchemaError(
            f"{label}: the default of `{p.name}` must be None, a number, a string, a dtype or a "
            f"device; got {type_name(default)}"
        )
    if kind.base == "dtype" and default is not NO_DEFAULT and default is not None:
        default = np.dtype(default)
    if isinstance(default, list):
        default = tuple(default)
    return Argument(p.name, kind, default, p.kind is p.KEYWORD_ONLY)


def _is_valid_default(default: object) -> bool:
    if isinstance(default, (list, tuple)):
        return all(isinstance(x, (int, float)) for x in default)
    types_of_defaults = (int, float, complex, str, np.dtype, np.generic, jax.Device, type(None))
    is_dtype = any(default is t for t in (bool, int, float, complex))
    return is_dtype or isinstance(default, types_of_defaults)


def _origin(annotation: Annotation) -> Annotation:
    """The class or special form without its parameters; None for an annotation without any."""
    return typing.get_origin(annotation)


def _strip_optional(annotation: Annotation) -> tuple[Annotation, bool]:
    """`X, True` for `Optional[X]`; other annotations unchanged, with False."""
    if _origin(annotation) in (typing.Union, types.UnionType):
        kinds = [a for a in typing.get_args(annotation) if a is not type(None)]
        if len(kinds) == 1 and len(typing.get_args(annotation)) == 2:
            return kinds[0], True
    return annotation, False


def _base_type(annotation: Annotation) -> str | None:
    origin = _origin(annotation)
    try:
        return _BASE_OF_ANNOTATION.get(origin if origin in (np.ndarray, np.dtype) else annotation)
    except TypeError:
        return None


def _parameter_type(annotation: Annotation) -> Type | None:
    inner, optional = _strip_optional(annotation)
    if _origin(inner) not in _LIST_TYPES:
        base = _base_type(inner)
        return None if base is None else Type(base, optional=optional)
    element, optional_elements = _strip_optional(typing.get_args(inner)[0])
    base = _base_type(element)
    if base == ARRAY and not optional:
        return Type(base, is_list=True, optional_elements=optional_elements)
    if base in SCALARS and not optional_elements:
        return Type(base, is_list=True, optional=optional)
    return None


def _suggest_list(annotation: Annotation) -> str:
    """The advice to use a list in place of a tuple of one type; empty for other annotations."""
    inner, optional = _strip_optional(annotation)
    elements = {a for a in typing.get_args(inner) if a is not ...}
    if _origin(inner) is not tuple or len(elements) != 1:
        return ""
    element = elements.pop()
    list_type: Annotation = list[element]  # type: ignore[valid-type]
    if _parameter_type(list_type | None if optional else list_type) is None:
        return ""
    text = f"list[{_annotation_text(element)}]"
    return f"Use {f'Optional[{text}]' if optional else text} in place of the tuple."


def _annotation_text(annotation: Annotation) -> str:
    text = (
        annotation.__name__
        if isinstance(annotation, type) and not typing.get_origin(annotation)
        else str(annotation)
    )
    return re.sub(r"(\w+\.)*_jax\.Array", "Array", text)


def _returns(annotation: Annotation, label: str) -> tuple[tuple[Return, ...], bool]:
    """The results, and whether the result is a single value and not a tuple."""
    if annotation is inspect.Signature.empty:
        raise SchemaError(
            f"{label}: the result must have an annotation; got none",
            fix=f"Write -> and one of: {_RETURN_TYPES}.",
        )
    if annotation is None or annotation is type(None):
        return (), False
    if _origin(annotation) is not tuple:
        return (Return(_return_type(annotation, label)),), True
    parts = typing.get_args(annotation)
    if ... in parts:
        raise SchemaError(
            f"{label}: a tuple of results must have a known length; got {_annotation_text(annotation)}",
            fix="Return list[Array], or a tuple with a type for each result.",
        )
    return tuple([Return(_return_type(part, label)) for part in parts]), False


def _return_type(annotation: Annotation, label: str) -> Type:
    kind = _parameter_type(annotation)
    array_types = Type(ARRAY), Type(ARRAY, is_list=True)
    if kind is not None and kind in (*array_types, *map(Type, SCALARS)):
        return kind
    raise SchemaError(
        f"{label}: a result must be of a type that an operator returns; got {_annotation_text(annotation)}",
        fix=f"Use one of: {_RETURN_TYPES}.",
    )


def mark_mutated(
    label: str, arguments: Iterable[Argument], mutates_args: str | Iterable[str]
) -> tuple[Argument, ...]:
    """The arguments, with those that `mutates_args` names marked as written to.

    Raises SchemaError for a name that is not that of an array argument.
    """
    arguments = list(arguments)
    by_name = {a.name: a for a in arguments}
    if mutates_args == UNKNOWN:
        mutates_args = [a.name for a in arguments if a.type.is_array]
    if isinstance(mutates_args, str):
        raise SchemaError(
            f'{label}: mutates_args must be an iterable of names, or "unknown"; got {mutates_args!r}',
            fix=f"Pass ({mutates_args!r},).",
        )
    names = list(mutates_args)
    if unknown := [name for name in names if name not in by_name]:
        raise SchemaError(
            f"{label}: mutates_args must name parameters; got {', '.join(map(repr, unknown))}, "
            f"and the parameters {', '.join(by_name)}"
        )
    if immutable := [name for name in names if not by_name[name].type.is_array]:
        raise SchemaError(
            f"{label}: only arrays can be written to; mutates_args has "
            + ", ".join([f"`{by_name[name].type} {name}`" for name in immutable])
        )
    letters = iter("abcdefghijklmnopqrstuvwxyz" * (1 + len(names) // 26))
    return tuple(
        [a.replace(alias=f"{next(letters)}!") if a.name in names else a for a in arguments]
    )


def check_signature(label: str, schema: Schema, fun: Function, declaration: bool = False) -> None:
    """Raise SchemaError unless `fun` takes the arguments of `schema`, in their order.

    A `declaration` must have neither annotations nor defaults.
    """
    signature = _signature(fun, label)
    parameters = signature.parameters.values()
    actual = [(p.name, p.kind is p.KEYWORD_ONLY) for p in parameters]
    if actual != [(a.name, a.keyword_only) for a in schema.arguments]:
        raise SchemaError(
            f"{label}: the signature must match the schema; got {_signature_text(signature)}",
            f"schema    {schema}",
            f"signature {_signature_text(signature)}",
            fix="Give the function the same names, in the same order, with the same `*`.",
        )
    if declaration:
        annotated = [p.name for p in parameters if p.annotation is not p.empty]
        if annotated or signature.return_annotation is not signature.empty:
            raise SchemaError(
                f"{label}: a function with a schema must have no annotations; "
                f"got some for {', '.join(annotated) or 'the result'}"
            )
        if defaults := [p.name for p in parameters if p.default is not p.empty]:
            raise SchemaError(
                f"{label}: a function with a schema must have no defaults; got some for "
                f"{', '.join(defaults)}",
                fix="State them in the schema: int n=3.",
            )


def _signature_text(signature: inspect.Signature) -> str:
    empty = inspect.Parameter.empty
    return str(
        inspect.Signature([p.replace(annotation=empty) for p in signature.parameters.values()])
    )


def check_given_schema(
    label: str, schema: str | Schema, mutates_args: str | Iterable[str] | None = None
) -> Schema:
    """`schema` as a Schema; SchemaError if `mutates_args` contradicts it."""
    if isinstance(schema, str):
        schema = Schema.parse(schema)
    if not isinstance(schema, Schema):
        raise ArgumentError(
            f"{label}: the schema must be a string or a Schema; got {type_name(schema)}",
        )
    if mutates_args is not None and mutates_args != UNKNOWN:
        marked = mark_mutated(label, schema.arguments, mutates_args)
        named = {m.name for m, a in zip(marked, schema.arguments, strict=True) if m is not a}
        mutated = {a.name for a in schema.mutated}
        if named != mutated:
            raise SchemaError(
                f"{label}: mutates_args must name the arguments that the schema marks with `!`; "
                f"got {', '.join(sorted(named)) or 'none'}, "
                f"and in the schema {', '.join(sorted(mutated)) or 'none'}",
                f"schema {schema}",
            )
    return schema
