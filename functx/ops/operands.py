"""Operands: Python scalars given the dtype of the array beside them, axes made canonical."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import copysign, isnan
from numbers import Integral
from operator import index
from typing import Any, NamedTuple

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
    ValueRangeError,
    short_repr,
)
from functx.core.named_axes import batched_axis
from functx.core.ndarray import as_ndarray
from functx.core.program import Equation, Literal, scalar_literal
from functx.core.tracer import Tracer, aval_of, current_builder
from functx.core.types import (
    DType,
    ShapedArray,
    accumulation_dtype,
    is_complex,
    is_inexact,
    is_integer,
    kind,
)

PYTHON_SCALARS = frozenset({bool, int, float, complex})


def identity_result(x: Any) -> Any:
    """`x`, of which an operation changes nothing; outside a trace, a NumPy array as an `ndarray`."""
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
        whole = isinstance(value, int) or (
            not isinstance(value, complex) and float(value).is_integer()
        )
        if not whole:
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
    """-1 in `dtype`; of unsigned integers the highest, with which 1 adds up to 0."""
    return literal(_integer_bounds(dtype)[1] if kind(dtype) == "u" else -1, dtype)


@lru_cache(maxsize=64)
def _integer_bounds(dtype: DType) -> tuple[int, int]:
    return int(iinfo(dtype).min), int(iinfo(dtype).max)


def is_finite_literal(x: Any, but_zero: bool = False) -> bool:
    """Whether `x`, an operand of a rule, is a number written in the program, and finite.

    With `but_zero`, not if it is 0.
    """
    atom = getattr(x, "atom", x)
    if type(atom) is not Literal or (but_zero and not atom.value):
        return False
    return is_finite(atom.value)


def promote_scalars(*args: Any) -> tuple[Any, ...]:
    """`args` with Python scalars made literals of the dtype of the first array among them."""
    scalars = [type(x) in PYTHON_SCALARS for x in args]
    if True not in scalars or False not in scalars:
        return args
    x = args[scalars.index(False)]
    dtype = aval_of(x).dtype
    return tuple(literal(y, dtype) if type(y) in PYTHON_SCALARS else y for y in args)


def canonical_axis(axis: Any, ndim: int, name: str = "axis") -> int:
    """`axis` in `0 <= axis < ndim`, counted from the end when negative."""
    try:
        number = index(axis)
    except TypeError:
        raise ArgumentError(f"{name} must be an integer; got {short_repr(axis)}") from None
    if not -ndim <= number < ndim:
        raise AxisError(
            f"{name} must be in [{-ndim}, {ndim}) for an array of {ndim} dimensions; got {axis}"
        )
    return number % ndim


def is_sequence_of_ints(integers: Any) -> bool:
    """Whether `integers` are a sequence of them, or an array, rather than one."""
    return isinstance(integers, Sequence) or getattr(integers, "ndim", 0) > 0


def canonical_axes(axes: Any, ndim: int, name: str = "axis") -> tuple[int, ...]:
    """`axes`, an int, several, or None for all, as distinct non-negative ints in order given."""
    if axes is None:
        return tuple(range(ndim))
    if not isinstance(axes, (tuple, list)):
        axes = tuple(axes) if is_sequence_of_ints(axes) else (axes,)
    canonical = tuple(canonical_axis(axis, ndim, name) for axis in axes)
    if len(set(canonical)) != len(canonical):
        raise AxisError(f"{name} must name each axis once; got {tuple(axes)}")
    return canonical


def canonical_axis_sequence(axes: Any, ndim: int, name: str) -> tuple[int, ...]:
    """`axes`, a sequence of ints, as `canonical_axes` makes them; an int or None is none."""
    try:
        given = tuple(axes)
    except TypeError:
        raise ArgumentError(f"{name} must be a sequence of integers; got {axes!r}") from None
    return canonical_axes(given, ndim, name)


def check_axes(op: str, axes: Any, ndim: int) -> None:
    """Raise AxisError unless `axes`, one or several, are distinct and count from the start."""
    several = (axes,) if isinstance(axes, int) else axes
    if len(set(several)) != len(several) or not all(0 <= axis < ndim for axis in several):
        raise AxisError(f"{op}: each axis must be in [0, {ndim}), and named once; got {axes}")


def canonical_shape(shape: Any, name: str = "shape") -> tuple[int, ...]:
    """`shape`, an int or a sequence, as a tuple of non-negative ints."""
    if type(shape) is tuple and all([type(n) is int and 0 <= n < 2**63 for n in shape]):
        return shape
    try:
        dims = tuple([index(n) for n in (shape if is_sequence_of_ints(shape) else (shape,))])
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
    """The items at positions not in `left_out`."""
    return tuple(n for i, n in enumerate(items) if i not in left_out)


def batch_size(args: Sequence[Any], dims: Sequence[int | None]) -> int:
    """The length of the batch that operands have along `dims`, or of the one at work."""
    for x, d in zip(args, dims, strict=True):
        if d is not None:
            return x.shape[d]  # type: ignore[no-any-return]
    axis = batched_axis()
    assert axis is not None, "nothing is batched"
    return axis.size


def as_float(what: str, value: Any) -> float:
    """The Python float that `value`, called `what`, stands for; ArgumentError if none."""
    return float(_convert_static(float, "a number", what, value))


def as_int(what: str, value: Any) -> int:
    """The Python int that `value`, called `what`, stands for; ArgumentError if none."""
    return int(_convert_static(index, "an integer", what, value))


def as_bool(what: str, value: Any) -> bool:
    """The bool that `value`, called `what`, stands for; ArgumentError if none."""
    if value is None or isinstance(value, Integral | np.bool_):
        return bool(value)
    array = isinstance(value, Tracer | np.ndarray) or hasattr(value, "__array__")
    return bool(_convert_static(bool if array else _raise_type_error, "True or False", what, value))


def as_ints(what: str, values: Any, count: int) -> tuple[int, ...]:
    """So many Python ints; ArgumentError for what is no sequence of so many."""
    try:
        given: Sequence[Any] = tuple(values)
    except TypeError:
        given = ()
    if len(given) != count or isinstance(values, str | bytes | dict | set):
        raise ArgumentError(
            f"{what} must be {count} integers, one a dimension; got {short_repr(values)}"
        )
    return tuple([as_int(what, value) for value in given])


def _convert_static(make: Callable[[Any], Any], kind: str, what: str, value: Any) -> Any:
    try:
        return make(value if not isinstance(value, str | bytes) else None)
    except ConcretizationError as error:
        details = error.details
    except (TypeError, ValueError, OverflowError):
        details = []
    raise ArgumentError(
        f"{what} must be {kind}, known while tracing; got {short_repr(value)}",
        *details,
        fix="Make the argument static (static_argnums, a closure)." if details else "",
    )


def _raise_type_error(value: Any) -> Any:
    raise TypeError


def check_index_range(
    name: str, what: str, numbers: Any, length: int, ignored: int | None = None
) -> None:
    """Raise unless `numbers`, called `what`, are integers from 0 to below `length`, or `ignored`.

    Those that are traced are not looked at. Raises IndexingError, and DTypeError.
    """
    aval = aval_of(numbers)
    if not is_integer(aval.dtype):
        raise DTypeError(
            f"{name}: {what} must be integers; got {aval!r}", fix="Convert with astype(int)."
        )
    values = concrete_value(numbers)
    if values is None or values.size == 0:
        return
    outside = (values < 0) | (values >= length)
    if ignored is not None:
        outside &= values != ignored
    if outside.any():
        place = tuple([int(i) for i in np.unravel_index(np.argmax(outside), values.shape)])
        besides = "" if ignored is None else f" or ignore_index, {ignored}"
        raise IndexingError(
            f"{name}: {what} must be in [0, {length}){besides}; got {int(values[place])} at "
            f"{place} of {aval!r}"
        )


def concrete_value(x: Any) -> np.ndarray[Any, Any] | None:
    """The value of `x` if it is there already; None for what is traced, or would be computed."""
    while type(x) is Tracer:
        builder, atom = x.builder, x.atom
        if isinstance(atom, Literal):
            return np.asarray(atom.value)
        # What is written to does not hold what it came with.
        if builder.writes:
            return None
        found = builder.values.get(atom)
        x = builder.captured_value(atom) if found is None else found
    value = None if x is None else backend.concrete_or_none(x)
    return None if value is None else np.asarray(value)


def upcast_aval(aval: ShapedArray) -> ShapedArray:
    """`aval`, or single precision in place of half floats."""
    wide = accumulation_dtype(aval.dtype)
    return aval if wide == aval.dtype else aval.update(dtype=wide)


def upcast_half(x: Any) -> Any:
    """`x` in single precision if it holds half floats, else as it is."""
    wide = accumulation_dtype(x.dtype)
    return x if wide == x.dtype else ops.convert_element_type(x, wide)


def cast_like_input(x: Any, like: Any) -> Any:
    """`x` in the dtype of `like`, which it was computed from after `upcast_half`."""
    return x if x.dtype == like.dtype else ops.convert_element_type(x, like.dtype)


def sum_upcast(x: Any, axes: tuple[int, ...]) -> Any:
    """The sum over `axes`, of half floats in single precision."""
    return cast_like_input(ops.reduce_sum(upcast_half(x), axes), x)


class DefUse(NamedTuple):
    """What is known where a rule simplifies: the makers of variables, and how often each is used."""

    producers: dict[Any, Equation]
    uses: dict[Any, int]

    def defining_equation(self, atom: Any, primitive: type[Any]) -> Equation | None:
        """The equation that computes `atom`, if it is of this primitive."""
        eqn = self.producers.get(atom)
        return eqn if eqn is not None and type(eqn.primitive) is primitive else None

    def has_one_use(self, atom: Any) -> bool:
        """Whether one equation alone looks at `atom`, and it is no output."""
        return self.uses.get(atom) == 1


def is_literal_equal(atom: Any, value: Any) -> bool:
    """Whether `atom` is this real number, of this sign, written in the program."""
    if type(atom) is not Literal or is_complex(atom.aval.dtype) or atom.value != value:
        return False
    return bool(value) or copysign(1.0, atom.value) == copysign(1.0, value)


def has_exact_arithmetic(*atoms: Any) -> bool:
    """Whether the operands are integers or booleans, whose arithmetic has no exceptions."""
    return all([kind(atom.aval.dtype) in "biu" for atom in atoms])


def all_ones(aval: ShapedArray) -> Any:
    """The number of which every bit is set."""
    if kind(aval.dtype) == "b":
        return True
    return -1 if kind(aval.dtype) == "i" else 2 ** (8 * aval.dtype.itemsize) - 1


def is_same_value(x: Any, y: Any) -> bool:
    """Whether two atoms are one variable, or one number, which is not nan."""
    if type(x) is Literal and type(y) is Literal:
        return x == y and not (type(x.value) is float and isnan(x.value))
    return x is y
