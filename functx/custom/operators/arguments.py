"""What a call of an operator gets, told apart: arrays as operands, all else as parameters."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from operator import index
from typing import Any, NamedTuple

import jax
import numpy as np

from functx.core.errors import ArgumentError, FunctxError, type_name
from functx.core.primitive import Primitive
from functx.core.tracing import Tracer, aval_of, backend
from functx.custom.operators.schema import NO_DEFAULT, Argument, Schema, Type


class BoundArguments(NamedTuple):
    """The arrays of a call, and the parameters of its primitive."""

    operands: list[Any]
    parameters: dict[str, Any]


class ArgumentBinder:
    """The arguments that a schema says, as operands and parameters and back again.

    A plain array is an operand and no more. An array that may be None has a parameter that
    says whether it is there, a list of arrays one that says how many there are, or which.
    """

    def __init__(self, qualname: str, schema: Schema):
        self.qualname, self.schema = qualname, schema
        self.fields = [
            None
            if a.type.is_array and not (a.type.is_list or a.type.optional)
            else parameter_name(a.name)
            for a in schema.arguments
        ]
        self.takes_only_arrays = not any(self.fields)
        self.names = tuple([a.name for a in schema.arguments])
        self.positional = len(schema.positional)

    @property
    def parameter_defaults(self) -> dict[str, Any]:
        """The defaults of the parameters that have one, as the primitive keeps them."""
        found: dict[str, Any] = {}
        for argument, field in zip(self.schema.arguments, self.fields, strict=True):
            if field is not None and argument.type.is_array:
                if not argument.type.is_list:
                    found[field] = True
            elif field is not None and argument.default is not NO_DEFAULT:
                found[field] = self.to_parameter(argument, argument.default)
        return found

    @cached_property
    def namedtuple_class(self) -> Any:
        """Named tuples with a field for each argument."""
        name = f"{self.qualname.replace('::', '_')}_inputs"
        return namedtuple(name, self.names, rename=True)  # type: ignore[misc]

    def bind(self, args: Sequence[Any], kwargs: dict[str, Any]) -> BoundArguments:
        """The operands and parameters of a call; ArgumentError for one that does not fit."""
        values = args
        if kwargs or len(args) != len(self.names) or self.positional != len(self.names):
            values = self.all_values(args, kwargs)
        if self.takes_only_arrays:
            return BoundArguments(
                [
                    self.check_array(a, x)
                    for a, x in zip(self.schema.arguments, values, strict=True)
                ],
                {},
            )
        operands: list[Any] = []
        parameters: dict[str, Any] = {}
        for argument, field, value in zip(self.schema.arguments, self.fields, values, strict=True):
            if field is None:
                operands.append(self.check_array(argument, value))
            elif not argument.type.is_array:
                parameters[field] = self.to_parameter(argument, value)
            elif argument.type.is_list:
                found = self.check_array_list(argument, value)
                operands += [x for x in found if x is not None]
                marks = tuple([x is not None for x in found])
                parameters[field] = marks if argument.type.optional_elements else len(marks)
            else:
                parameters[field] = value is not None
                if value is not None:
                    operands.append(self.check_array(argument, value))
        return BoundArguments(operands, parameters)

    def all_values(self, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
        """The values of all arguments, those left to their defaults included."""
        if len(args) > self.positional:
            raise self.error(
                f"must be given at most {self.positional} positional arguments; got {len(args)}"
            )
        if unknown := kwargs.keys() - set(self.names):
            raise self.error(f"takes no argument called {', '.join(map(repr, sorted(unknown)))}")
        values = list(args)
        if twice := kwargs.keys() & set(self.names[: len(args)]):
            raise self.error(f"must be given each argument once; got `{twice.pop()}` twice")
        for argument in self.schema.arguments[len(args) :]:
            value = kwargs.get(argument.name, argument.default)
            if value is NO_DEFAULT:
                raise self.error(f"must be given `{argument.name}`; got no value for it")
            values.append(value)
        return values

    def error(self, problem: str) -> ArgumentError:
        return ArgumentError(f"{self.qualname}: the operator {problem}", f"schema {self.schema}")

    def check_array(self, argument: Argument, value: Any) -> Any:
        """`value` as an operand."""
        if type(value) is not Tracer:
            try:
                aval_of(value)
            except ArgumentError:
                words = backend.raw_key_data(value)
                if words is value:
                    raise self.type_error(argument, value) from None
                return words
        return value

    def check_array_list(self, argument: Argument, value: Any) -> list[Any]:
        if not isinstance(value, (list, tuple)):
            raise self.type_error(argument, value)
        holes = argument.type.optional_elements
        return [x if x is None and holes else self.check_array(argument, x) for x in value]

    def to_parameter(self, argument: Argument, value: Any) -> Any:
        """`value` as a parameter: hashable, with tuples for lists."""
        kind = argument.type
        if value is None and kind.optional:
            return None
        convert = _CONVERTERS[kind.base]
        try:
            if not kind.is_list:
                return convert(value)
            if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
                raise TypeError
            return tuple([convert(x) for x in value])
        except (TypeError, ValueError) as error:
            if isinstance(error, FunctxError):
                raise
            raise self.type_error(argument, value) from None

    def type_error(self, argument: Argument, value: Any) -> ArgumentError:
        traced = isinstance(value, jax.core.Tracer)
        return ArgumentError(
            f"{self.qualname}: `{argument.name}` must be {_describe_type(argument.type)}; "
            f"got {type_name(value)} {str(value)[:40]!r}",
            f"schema {self.schema}",
            fix="Make it static (static_argnums), or declare it an array." if traced else "",
        )

    def unflatten(
        self,
        primitive: Primitive,
        leaves: Sequence[Any],
        static: Callable[[Any], Any] | None = None,
    ) -> list[Any]:
        """One value for each argument: `leaves`, one an operand, in the place of arrays.

        `static` says what to make of parameters; by default they are as the user gave them.
        """
        rest: Iterator[Any] = iter(leaves)
        if self.takes_only_arrays:
            return list(rest)
        found: list[Any] = []
        for argument, field in zip(self.schema.arguments, self.fields, strict=True):
            if field is None:
                found.append(next(rest))
                continue
            value = getattr(primitive, field)
            if not argument.type.is_array:
                value = list(value) if isinstance(value, tuple) else value
                found.append(value if static is None else static(value))
            elif not argument.type.is_list:
                found.append(next(rest) if value else None)
            else:
                marks = value if argument.type.optional_elements else (True,) * value
                found.append([next(rest) if on else None for on in marks])
        return found

    def call_arguments(
        self, primitive: Primitive, leaves: Sequence[Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        """The positional and keyword arguments of a function that takes them all."""
        values = self.unflatten(primitive, leaves)
        keywords = zip(self.names[self.positional :], values[self.positional :], strict=True)
        return values[: self.positional], dict(keywords)

    def num_passed(self, primitive: Primitive) -> int:
        """How many positional arguments are not left to their defaults, counted from the first."""
        count = self.positional
        values = self.unflatten(primitive, [_PLACEHOLDER] * self.num_operands(primitive))
        while count and self.is_default(self.schema.arguments[count - 1], values[count - 1]):
            count -= 1
        return count

    def is_default(self, argument: Argument, value: Any) -> bool:
        """Whether `value` is what the argument is if nobody gives it."""
        if argument.default is NO_DEFAULT:
            return False
        if argument.type.is_array:
            return value is None
        default = self.to_parameter(argument, argument.default)
        given = tuple(value) if isinstance(value, list) else value
        return type(default) is type(given) and bool(default == given)

    def num_operands(self, primitive: Primitive) -> int:
        """How many operands there are."""
        total = 0
        for argument, field in zip(self.schema.arguments, self.fields, strict=True):
            if field is None:
                total += 1
            elif argument.type.is_array:
                value = getattr(primitive, field)
                total += sum(value) if isinstance(value, tuple) else int(value)
        return total

    def operand_names(self, primitive: Primitive) -> list[str]:
        """`x`, `xs[0]`, ...: what messages call each operand."""
        found: list[str] = []
        numbers = iter(range(self.num_operands(primitive)))
        values = self.unflatten(primitive, list(numbers), lambda _: None)
        for name, value in zip(self.names, values, strict=True):
            if isinstance(value, list):
                found += [f"{name}[{i}]" for i, x in enumerate(value) if x is not None]
            elif value is not None:
                found.append(name)
        return found

    def written(self, primitive: Primitive) -> list[int]:
        """The operands that the operator writes to."""
        if not self.schema.mutated:
            return []
        numbers = self.unflatten(primitive, range(self.num_operands(primitive)), lambda _: None)
        found: list[int] = []
        for argument, value in zip(self.schema.arguments, numbers, strict=True):
            if argument.mutated and value is not None:
                found += [i for i in value if i is not None] if isinstance(value, list) else [value]
        return found


class _ArrayPlaceholder:
    """Stands for an array."""


_PLACEHOLDER = _ArrayPlaceholder()


def parameter_name(name: str) -> str:
    """The name of the parameter for an argument: its own, or with `_` where a primitive has that."""
    return f"{name}_" if hasattr(Primitive, name) or name in _RESERVED_FIELDS else name


_RESERVED_FIELDS = {"operator", "types", "name"}


def _describe_type(kind: Type) -> str:
    base = _TYPE_DESCRIPTIONS[kind.base]
    text = f"a list of {base[1]}" if kind.is_list else base[0]
    return f"{text} or None" if kind.optional else text


_TYPE_DESCRIPTIONS = {
    "Array": ("an array", "arrays"),
    "int": ("an int", "ints"),
    "float": ("a float", "floats"),
    "bool": ("a bool", "bools"),
    "Number": ("a number", "numbers"),
    "str": ("a string", "strings"),
    "dtype": ("a dtype", "dtypes"),
    "device": ("a device of JAX or a platform", "devices"),
}


def _number(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if not isinstance(value, (bool, int, float, complex)):
        raise TypeError
    return value


def _int(value: Any) -> int:
    return int(index(value))


def _float(value: Any) -> float:
    if isinstance(value, (str, bytes)):
        raise TypeError
    return float(value)


def _bool(value: Any) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError
    return bool(value)


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _dtype(value: Any) -> Any:
    if value is None:
        raise TypeError
    return np.dtype(value)


def _device(value: Any) -> Any:
    if not isinstance(value, (str, jax.Device)):
        raise TypeError
    return value


_CONVERTERS: dict[str, Callable[[Any], Any]] = {
    "int": _int,
    "float": _float,
    "bool": _bool,
    "Number": _number,
    "str": _string,
    "dtype": _dtype,
    "device": _device,
}
