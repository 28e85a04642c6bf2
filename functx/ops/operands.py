"""Operands and parameters: scalars promoted, axes and shapes canonicalized, static values checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import copysign, isnan
from numbers import Integral
from operator import index
from typing import TYPE_CHECKING, Any, NamedTuple, SupportsIndex, TypeAlias

import numpy as np
from ml_dtypes import iinfo

from functx import ops
from functx.core.backend import backend
from functx.core.concretization import is_finite
from functx.core.errors import (
    ArgumentError,
    AxisError,
    ConcretizationError,
    DTypeError,
    IndexingError,
    ShapeError,
    ValueRangeError,
    short_repr,
)
from functx.core.named_axes import batched_axis
from functx.core.program import Atom, Equation, Literal, scalar_literal
from functx.core.rewriting import T
from functx.core.tracer import Tracer, as_ndarray, aval_of, current_builder
from functx.core.types import (
    DType,
    Shape,
    ShapedArray,
    accumulation_dtype,
    is_complex,
    is_inexact,
    is_integer,
    kind,
)
from functx.core.typing import ArrayLike, Axes, ShapeLike, Value, Values

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    from functx.core.primitive import Primitive

Dims = tuple[int, ...]
"""Dimensions of an array."""
PYTHON_SCALARS = frozenset({bool, int, float, complex})


def identity_result(x: ArrayLike) -> Any:
    """The result `x` of an operation that changes nothing; outside a trace a NumPy array becomes `ndarray`."""
    return as_ndarray(x) if type(x) is np.ndarray and current_builder.get() is None else x


def literal(value: Any, dtype: DType) -> Literal:
    """The scalar `value` as a literal of exactly `dtype`, which an integer must fit."""
    if type(value) is float and dtype.kind == "f":
        return scalar_literal(value, dtype, False, repr(value))
    if is_complex(dtype):
        value = complex(value)
    elif is_inexact(dtype):
        if isinstance(value, complex):
            raise DTypeError(f"a complex number must not become {dtype}; got {value}")
        value = float(value)
    elif dtype == np.bool_:
        value = bool(value)
    else:
        is_integer_value = isinstance(value, int) or (
            not isinstance(value, complex) and float(value).is_integer()
        )
        if not is_integer_value:
            raise DTypeError(
                f"a number must fit the dtype {dtype} of the array beside it; got {value!r}",
                fix="Convert the array with astype, or use functx.numpy, which promotes.",
            )
        value = int(value)
        low, high = _integer_bounds(dtype)
        if not low <= value <= high:
            raise ValueRangeError(
                f"a Python int must fit the dtype that it gets; got {value} for {dtype}",
                fix="Convert the array with astype, or give a wider dtype.",
            )
    return scalar_literal(value, dtype, False, repr(value))


def minus_one(dtype: DType) -> Literal:
    """-1 in `dtype`; of an unsigned one the highest integer, whose sum with 1 is 0."""
    return literal(_integer_bounds(dtype)[1] if kind(dtype) == "u" else -1, dtype)


@lru_cache(maxsize=64)
def _integer_bounds(dtype: DType) -> tuple[int, int]:
    return int(iinfo(dtype).min), int(iinfo(dtype).max)


def is_finite_literal(x: Value, but_zero: bool = False) -> bool:
    """Whether `x`, an operand of a rule, is a finite literal; with `but_zero`, other than 0."""
    atom = getattr(x, "atom", x)
    if type(atom) is not Literal or (but_zero and not atom.value):
        return False
    return is_finite(atom.value)


def promote_scalars(*args: ArrayLike) -> tuple[Any, ...]:
    """`args` with Python scalars made literals of the dtype of the first array among them."""
    scalars = [type(x) in PYTHON_SCALARS for x in args]
    if True not in scalars or False not in scalars:
        return args
    x = args[scalars.index(False)]
    dtype = aval_of(x).dtype
    return tuple(literal(y, dtype) if type(y) in PYTHON_SCALARS else y for y in args)


def canonical_axis(axis: object, ndim: int, name: str = "axis") -> int:
    """`axis` normalized to `0 <= axis < ndim`; a negative one counts from the end."""
    try:
        number = index(axis)  # type: ignore[arg-type]
    except TypeError:
        cure = "Give several arrays as one list, f([x, y])." if hasattr(axis, "dtype") else ""
        raise ArgumentError(
            f"{name} must be an integer; got {short_repr(axis)}", fix=cure
        ) from None
    if not -ndim <= number < ndim:
        raise AxisError(
            f"{name} must be in [{-ndim}, {ndim}) for an array of {ndim} dimensions; got {axis}"
        )
    return number % ndim


def is_sequence_of_ints(integers: Axes) -> TypeIs[Sequence[SupportsIndex]]:
    """Whether `integers` is a sequence or an array with dimensions, not one integer.

    Sets have no order, and an iterator has its integers for the first reader alone.
    """
    return isinstance(integers, Sequence) or getattr(integers, "ndim", 0) > 0


def canonical_axes(axes: Axes, ndim: int, name: str = "axis") -> tuple[int, ...]:
    """`axes`, an int, several, or None for all, as distinct non-negative ints in order given."""
    if axes is None:
        return tuple(range(ndim))
    if not isinstance(axes, (tuple, list)):
        axes = tuple(axes) if is_sequence_of_ints(axes) else (axes,)
    canonical = tuple(canonical_axis(axis, ndim, name) for axis in axes)
    if len(set(canonical)) != len(canonical):
        raise AxisError(f"{name} must name each axis once; got {tuple(axes)}")
    return canonical


def canonical_axis_sequence(axes: Sequence[SupportsIndex], ndim: int, name: str) -> tuple[int, ...]:
    """`canonical_axes` of a sequence; raises ArgumentError for an int or None."""
    try:
        numbers = tuple(axes)
    except TypeError:
        raise ArgumentError(f"{name} must be a sequence of integers; got {axes!r}") from None
    return canonical_axes(numbers, ndim, name)


def check_axes(op: str, axes: int | Sequence[int], ndim: int) -> None:
    """Raise AxisError unless `axes`, one or several, are distinct and count from the start."""
    several = (axes,) if isinstance(axes, int) else axes
    if len(set(several)) != len(several) or not all(0 <= axis < ndim for axis in several):
        raise AxisError(f"{op}: each axis must be in [0, {ndim}), and named once; got {axes}")


def shape_entries(shape: ShapeLike) -> tuple[Any, ...]:
    """The entries of `shape`, a number or any iterable but an array without dimensions."""
    has_several = hasattr(shape, "__iter__") and getattr(shape, "ndim", 1) > 0
    return tuple(shape) if has_several else (shape,)  # type: ignore[arg-type]


def canonical_shape(shape: ShapeLike, name: str = "shape") -> tuple[int, ...]:
    """`shape`, an int or any iterable of them, as a tuple of non-negative ints."""
    if type(shape) is tuple and all([type(n) is int and 0 <= n < 2**63 for n in shape]):
        return shape
    try:
        dims = tuple([index(n) for n in shape_entries(shape)])
    except ConcretizationError as error:
        raise ArgumentError(
            f"{name} must be made of integers known while tracing; got {short_repr(shape)}",
            *error.details,
            fix="Make the argument static (static_argnums, a closure).",
        ) from None
    except TypeError:
        raise ArgumentError(
            f"{name} must be made of integers known while tracing; got {short_repr(shape)}",
            fix="Pass a tuple of ints, or one int.",
        ) from None
    if any(n < 0 for n in dims):
        raise ArgumentError(f"{name} must not be negative; got {dims}")
    if any(n >= 2**63 for n in dims):
        raise ArgumentError(f"{name} must be less than 2**63; got {dims}")
    return dims


def tuple_delete(items: Sequence[int], left_out: Sequence[int]) -> tuple[int, ...]:
    """The items whose positions are not in `left_out`."""
    return tuple(n for i, n in enumerate(items) if i not in left_out)


def shift_dims(dims: Dims, dim: int) -> Dims:
    """`dims` after a dimension is inserted at `dim`."""
    return tuple([d + (d >= dim) for d in dims])


def check_parameter_shapes(name: str, parameters: Sequence[ShapedArray], shape: Shape) -> None:
    """Raise ShapeError unless the parameters of a draw are scalars or have the shape of its result."""
    for parameter in parameters:
        if parameter.shape not in ((), shape):
            raise ShapeError(
                f"{name}: parameters must be scalars or have the shape {shape} of the result; "
                f"got {parameter!r}"
            )


def batch_size(args: Values, dims: Sequence[int | None]) -> int:
    """The length of the batch dimensions `dims` of the operands, or of the axis being batched."""
    for x, d in zip(args, dims, strict=True):
        if d is not None:
            return x.shape[d]  # type: ignore[no-any-return]
    axis = batched_axis()
    assert axis is not None, "nothing is batched"
    return axis.size


def as_float(name: str, value: object) -> float:
    """The Python float that `value`, called `name`, stands for; ArgumentError if none."""
    return _convert_static(float, "a number", name, value)


def as_int(name: str, value: object) -> int:
    """The Python int that `value`, called `name`, stands for; ArgumentError if none."""
    return _convert_static(index, "an integer", name, value)


def as_bool(name: str, value: object) -> bool:
    """The bool that `value`, called `name`, stands for; ArgumentError if none."""
    if value is None or isinstance(value, Integral | np.bool_):
        return bool(value)
    array = isinstance(value, Tracer | np.ndarray) or hasattr(value, "__array__")
    return bool(_convert_static(bool if array else _raise_type_error, "True or False", name, value))


def as_ints(name: str, values: Sequence[SupportsIndex], count: int) -> tuple[int, ...]:
    """So many Python ints; ArgumentError for what is no sequence of so many."""
    try:
        numbers: Sequence[Any] = tuple(values)
    except TypeError:
        numbers = ()
    if len(numbers) != count or isinstance(values, str | bytes | dict | set):
        raise ArgumentError(
            f"{name} must be {count} integers, one a dimension; got {short_repr(values)}"
        )
    return tuple([as_int(name, value) for value in numbers])


def _convert_static(make: Callable[[Any], T], kind: str, name: str, value: object) -> T:
    try:
        return make(value if not isinstance(value, str | bytes) else None)
    except ConcretizationError as error:
        details = error.details
    except (TypeError, ValueError, OverflowError):
        details = []
    raise ArgumentError(
        f"{name} must be {kind}, known while tracing; got {short_repr(value)}",
        *details,
        fix="Make the argument static (static_argnums, a closure)." if details else "",
    )


def _raise_type_error(value: Value) -> Value:
    raise TypeError


def check_index_range(
    name: str, what: str, numbers: ArrayLike, length: int, ignored: int | None = None
) -> None:
    """Raise unless `numbers`, called `what`, are integers in [0, length), or `ignored`.

    Traced values are not checked. Raises IndexingError and DTypeError.
    """
    aval = aval_of(numbers)
    if not is_integer(aval.dtype):
        raise DTypeError(
            f"{name}: {what} must be integers; got {aval!r}", fix="Convert with astype(int)."
        )
    values = concrete_value(numbers)
    if values is None or values.size == 0:
        return
    is_outside = (values < 0) | (values >= length)
    if ignored is not None:
        is_outside &= values != ignored
    if is_outside.any():
        position = tuple([int(i) for i in np.unravel_index(np.argmax(is_outside), values.shape)])
        alternative = "" if ignored is None else f" or ignore_index, {ignored}"
        raise IndexingError(
            f"{name}: {what} must be in [0, {length}){alternative}; got {int(values[position])} at "
            f"{position} of {aval!r}"
        )


def concrete_value(x: ArrayLike | None) -> np.ndarray[Any, Any] | None:
    """The value of `x` if it is known; None if it is traced or would have to be computed."""
    while type(x) is Tracer:
        builder, atom = x.builder, x.atom
        if isinstance(atom, Literal):
            return np.asarray(atom.value)
        # A builder with writes may have changed the value.
        if builder.writes:
            return None
        found = builder.values.get(atom)
        x = builder.captured_value(atom) if found is None else found
    value = None if x is None else backend.concrete_or_none(x)
    return None if value is None else np.asarray(value)


def upcast_aval(aval: ShapedArray) -> ShapedArray:
    """`aval` with half floats replaced by single precision."""
    dtype = accumulation_dtype(aval.dtype)
    return aval if dtype == aval.dtype else aval.update(dtype=dtype)


def upcast_half(x: Value) -> Value:
    """`x` in single precision if it holds half floats, else `x`."""
    dtype = accumulation_dtype(x.dtype)
    return x if dtype == x.dtype else ops.convert_element_type(x, dtype)


def cast_like(x: Value, like: Value | ShapedArray) -> Value:
    """`x` in the dtype of `like`."""
    return x if x.dtype == like.dtype else ops.convert_element_type(x, like.dtype)


def sum_upcast(x: Value, axes: tuple[int, ...]) -> Value:
    """The sum over `axes`; half floats are summed in single precision."""
    return cast_like(ops.reduce_sum(upcast_half(x), axes), x)


Simplified: TypeAlias = "Atom | complex | tuple[Primitive, Sequence[Atom]] | None"
"""The result of a `simplify` rule: an atom or a number, a primitive and its operands, or None."""


class RewriteContext(NamedTuple):
    """The context of a `simplify` rule: the equation that defines each variable, and its uses so far."""

    producers: dict[Atom, Equation]
    uses: dict[Atom, int]

    def defining_equation(self, atom: Atom, primitive: type[Primitive]) -> Any:
        """The equation that defines `atom`, if it has this primitive; else None."""
        eqn = self.producers.get(atom)
        return eqn if eqn is not None and type(eqn.primitive) is primitive else None

    def has_one_use(self, atom: Atom) -> bool:
        """Whether `atom` is used by one equation and is no output."""
        return self.uses.get(atom) == 1


def is_literal_equal(atom: Atom, value: float) -> bool:
    """Whether `atom` is a literal equal to this real number, with the same sign of zero."""
    if type(atom) is not Literal or is_complex(atom.aval.dtype) or atom.value != value:
        return False
    return bool(value) or copysign(1.0, atom.value) == copysign(1.0, value)


def has_exact_arithmetic(*atoms: Atom) -> bool:
    """Whether the operands are integers or booleans, whose arithmetic does not round."""
    return all([kind(atom.aval.dtype) in "biu" for atom in atoms])


def all_ones(aval: ShapedArray) -> int:
    """The number of the dtype of `aval` with all bits set."""
    if kind(aval.dtype) == "b":
        return True
    return -1 if kind(aval.dtype) == "i" else 2 ** (8 * aval.dtype.itemsize) - 1


def is_same_value(x: Atom, y: Atom) -> bool:
    """Whether two atoms are the same variable, or equal literals other than nan."""
    if type(x) is Literal and type(y) is Literal:
        return x == y and not (type(x.value) is float and isnan(x.value))
    return x is y


def broadcast_along(x: Value, like: Value | ShapedArray, axes: Shape) -> Value:
    """`x` repeated along `axes`, which it lacks, to the shape of `like`."""
    return ops.broadcast_in_dim(x, like.shape, tuple_delete(range(like.ndim), axes))
