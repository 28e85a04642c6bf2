"""The arguments of operators: arrays become operands, all other values parameters of a primitive.

`ArgumentBinder` converts the arguments of a call; `OperatorPrimitive` gives them back to rules.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cached_property
from operator import index
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, SupportsFloat, SupportsIndex

import jax
import numpy as np

from functx.core.backend import backend
from functx.core.errors import ArgumentError, FunctxError, type_name
from functx.core.primitive import Primitive
from functx.core.tracer import Tracer, aval_of
from functx.core.types import DType, ShapedArray
from functx.core.typing import DTypeLike, PyTree, Value, Values
from functx.custom.operators.registry import resolve_operator
from functx.custom.operators.schema import NO_DEFAULT, Argument, Schema, Type

if TYPE_CHECKING:
    from functx.custom.operators.operator import Operator
    from functx.custom.operators.outputs import OutputTypes


class BoundArguments(NamedTuple):
    """The arrays of a call, and the parameters of its primitive."""

    operands: list[PyTree]
    parameters: dict[str, Hashable]


class ArgumentBinder:
    """The conversion of the arguments of a schema to operands and parameters, and back.

    An array is an operand. An optional array also has a flag as a parameter, False for None; a
    list of arrays has its length, or a flag for each element if these are optional.
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
    def parameter_defaults(self) -> dict[str, PyTree]:
        """The defaults of the primitive's parameters."""
        defaults: dict[str, PyTree] = {}
        for argument, field in zip(self.schema.arguments, self.fields, strict=True):
            if field is not None and argument.type.is_array:
                if not argument.type.is_list:
                    defaults[field] = True
            elif field is not None and argument.default is not NO_DEFAULT:
                defaults[field] = self.to_parameter(argument, argument.default)
        return defaults

    @cached_property
    def namedtuple_class(self) -> Callable[..., tuple[PyTree, ...]]:
        """Named tuples with a field for each argument."""
        name = f"{self.qualname.replace('::', '_')}_inputs"
        return namedtuple(name, self.names, rename=True)

    def bind(self, args: Sequence[PyTree], kwargs: dict[str, PyTree]) -> BoundArguments:
        """The operands and parameters of a call; ArgumentError if it does not fit the schema."""
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
        operands: list[PyTree] = []
        parameters: dict[str, PyTree] = {}
        for argument, field, value in zip(self.schema.arguments, self.fields, values, strict=True):
            if field is None:
                operands.append(self.check_array(argument, value))
            elif not argument.type.is_array:
                parameters[field] = self.to_parameter(argument, value)
            elif argument.type.is_list:
                elements = self.check_array_list(argument, value)
                operands += [x for x in elements if x is not None]
                flags = tuple([x is not None for x in elements])
                parameters[field] = flags if argument.type.optional_elements else len(flags)
            else:
                parameters[field] = value is not None
                if value is not None:
                    operands.append(self.check_array(argument, value))
        return BoundArguments(operands, parameters)

    def all_values(self, args: Sequence[PyTree], kwargs: dict[str, PyTree]) -> list[PyTree]:
        """The values of all arguments, with defaults filled in."""
        if len(args) > self.positional:
            raise self.error(
                f"must be given at most {self.positional} positional arguments; got {len(args)}"
            )
        if unknown := kwargs.keys() - set(self.names):
            got = ", ".join([f"`{name}`" for name in sorted(unknown)])
            raise self.error(f"must be given arguments of its schema; got {got}")
        values = list(args)
        if repeated := kwargs.keys() & set(self.names[: len(args)]):
            raise self.error(f"must be given each argument once; got `{repeated.pop()}` twice")
        for argument in self.schema.arguments[len(args) :]:
            value = kwargs.get(argument.name, argument.default)
            if value is NO_DEFAULT:
                raise self.error(f"must be given `{argument.name}`; got no value for it")
            values.append(value)
        return values

    def error(self, problem: str) -> ArgumentError:
        return ArgumentError(f"{self.qualname}: the operator {problem}", f"schema {self.schema}")

    def check_array(self, argument: Argument, value: PyTree) -> Value:
        """`value` as an operand; the key data of a typed key."""
        if type(value) is not Tracer:
            try:
                aval_of(value)
            except ArgumentError:
                key_data = backend.raw_key_data(value)
                if key_data is value:
                    raise self.type_error(argument, value) from None
                return key_data
        return value

    def check_array_list(self, argument: Argument, value: object) -> list[Any]:
        if not isinstance(value, (list, tuple)):
            raise self.type_error(argument, value)
        optional = argument.type.optional_elements
        return [x if x is None and optional else self.check_array(argument, x) for x in value]

    def to_parameter(self, argument: Argument, value: object) -> Hashable:
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

    def type_error(self, argument: Argument, value: object) -> ArgumentError:
        traced = isinstance(value, jax.core.Tracer)
        return ArgumentError(
            f"{self.qualname}: `{argument.name}` must be {_describe_type(argument.type)}; "
            f"got {type_name(value)} {str(value)[:40]!r}",
            f"schema {self.schema}",
            fix="Make it static (static_argnums), or declare it an array." if traced else "",
        )

    def is_default(self, argument: Argument, value: object) -> bool:
        """Whether `value` is the default of the argument."""
        if argument.default is NO_DEFAULT:
            return False
        if argument.type.is_array:
            return value is None
        default = self.to_parameter(argument, argument.default)
        parameter = tuple(value) if isinstance(value, list) else value
        return type(default) is type(parameter) and bool(default == parameter)


class OperatorPrimitive(Primitive, abstract=True):
    """The primitive of an operator, with the name `namespace::name`.

    Its operands are the arrays among the arguments; the other arguments are its parameters. It
    gives the results, then the new values of the mutated operands.
    """

    operator: ClassVar[Operator]
    multiple_results = True

    def __init_subclass__(cls, abstract: bool = False):
        super().__init_subclass__(abstract)
        # It checks the results of the rules that users register, and defines its own.
        cls.is_user_defined = False

    def __reduce__(self) -> tuple[Callable[..., Primitive], tuple[str, list[Hashable]]]:
        return _unpickle, (self.operator.qualname, [getattr(self, f) for f in self.fields])

    def output_types(self, avals: tuple[ShapedArray, ...]) -> OutputTypes:
        """The types of the results for operands of `avals`, cached."""
        raise NotImplementedError

    def output_types_of(self, operands: Values) -> OutputTypes:
        """The types of the results for `operands`."""
        return self.output_types(tuple([aval_of(x) for x in operands]))

    def unflatten(
        self, leaves: Sequence[PyTree], static: Callable[[PyTree], PyTree] | None = None
    ) -> list[PyTree]:
        """One value for each argument, with `leaves`, one for each operand, in place of arrays.

        `static` is applied to the values that are no arrays; by default they are unchanged.
        """
        arguments = self.operator.arguments
        remaining: Iterator[PyTree] = iter(leaves)
        if arguments.takes_only_arrays:
            return list(remaining)
        values: list[PyTree] = []
        for argument, field in zip(arguments.schema.arguments, arguments.fields, strict=True):
            if field is None:
                values.append(next(remaining))
                continue
            value = getattr(self, field)
            if not argument.type.is_array:
                value = list(value) if isinstance(value, tuple) else value
                values.append(value if static is None else static(value))
            elif not argument.type.is_list:
                values.append(next(remaining) if value else None)
            else:
                flags = value if argument.type.optional_elements else (True,) * value
                values.append([next(remaining) if on else None for on in flags])
        return values

    def call_arguments(self, leaves: Sequence[PyTree]) -> tuple[list[PyTree], dict[str, PyTree]]:
        """The positional and keyword arguments of a rule, with `leaves` in place of arrays."""
        values, arguments = self.unflatten(leaves), self.operator.arguments
        keywords = zip(
            arguments.names[arguments.positional :], values[arguments.positional :], strict=True
        )
        return values[: arguments.positional], dict(keywords)

    def named_arguments(
        self, leaves: Sequence[PyTree], static: Callable[[PyTree], PyTree] | None = None
    ) -> tuple[PyTree, ...]:
        """A named tuple of the values that `unflatten` gives."""
        return self.operator.arguments.namedtuple_class(*self.unflatten(leaves, static))

    def num_passed(self) -> int:
        """The number of positional arguments up to the last that differs from its default."""
        arguments = self.operator.arguments
        count = arguments.positional
        values = self.operand_indices()
        while count and arguments.is_default(
            arguments.schema.arguments[count - 1], values[count - 1]
        ):
            count -= 1
        return count

    def num_operands(self) -> int:
        """The number of operands."""
        total = 0
        arguments = self.operator.arguments
        for argument, field in zip(arguments.schema.arguments, arguments.fields, strict=True):
            if field is None:
                total += 1
            elif argument.type.is_array:
                value = getattr(self, field)
                total += sum(value) if isinstance(value, tuple) else int(value)
        return total

    def operand_indices(self, static: Callable[[PyTree], PyTree] | None = None) -> list[PyTree]:
        """The values of the arguments, with the indices of operands in place of arrays."""
        return self.unflatten(range(self.num_operands()), static)

    def operand_names(self) -> list[str]:
        """The names of the operands in messages: `x`, `xs[0]`, ..."""
        names: list[str] = []
        indices = self.operand_indices(lambda _: None)
        for name, value in zip(self.operator.arguments.names, indices, strict=True):
            if isinstance(value, list):
                names += [f"{name}[{i}]" for i, x in enumerate(value) if x is not None]
            elif value is not None:
                names.append(name)
        return names

    def mutated_operands(self) -> list[int]:
        """The indices of the operands that the operator writes to."""
        schema = self.operator.schema
        if not schema.mutated:
            return []
        mutated: list[int] = []
        for argument, value in zip(schema.arguments, self.operand_indices(), strict=True):
            if argument.mutated:
                elements = value if isinstance(value, list) else [value]
                mutated += [i for i in elements if i is not None]
        return mutated

    def aliased_arguments(self, operands: Sequence[PyTree]) -> dict[str, PyTree]:
        """The arguments that are also results, by alias."""
        schema = self.operator.schema
        if len(schema.new_returns) == len(schema.returns):
            return {}
        values = self.unflatten(operands)
        return {a.alias: x for a, x in zip(schema.arguments, values, strict=True) if a.alias}

    def device_argument(self) -> str | jax.Device | None:
        """The value of the `device` argument; None if there is none."""
        arguments = self.operator.arguments
        for argument, field in zip(arguments.schema.arguments, arguments.fields, strict=True):
            if argument.type.base == "device" and field is not None:
                return getattr(self, field)
        return None


def _unpickle(qualname: str, values: Sequence[Hashable]) -> OperatorPrimitive:
    """The primitive of the operator called `qualname`, with these parameters."""
    return resolve_operator(qualname).primitive(*values)


def parameter_name(name: str) -> str:
    """The parameter's name for an argument: `name`, with `_` if primitives have such an attribute."""
    return f"{name}_" if hasattr(OperatorPrimitive, name) or name in _RESERVED_FIELDS else name


_RESERVED_FIELDS = {"operator", "output_types", "types", "name"}


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


def _number(value: object) -> complex:
    if isinstance(value, np.generic):
        value = value.item()
    if not isinstance(value, (bool, int, float, complex)):
        raise TypeError
    return value


def _int(value: SupportsIndex) -> int:
    return int(index(value))


def _float(value: SupportsFloat | SupportsIndex | str | bytes) -> float:
    if isinstance(value, (str, bytes)):
        raise TypeError
    return float(value)


def _bool(value: object) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError
    return bool(value)


def _string(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _dtype(value: DTypeLike) -> DType:
    if value is None:
        raise TypeError
    return np.dtype(value)


def _device(value: object) -> str | jax.Device:
    if not isinstance(value, (str, jax.Device)):
        raise TypeError
    return value


_CONVERTERS: dict[str, Callable[[Any], Hashable]] = {
    "int": _int,
    "float": _float,
    "bool": _bool,
    "Number": _number,
    "str": _string,
    "dtype": _dtype,
    "device": _device,
}
