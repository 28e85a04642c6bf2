"""Boolean masks as indices: the elements that a mask with an unknown value selects."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

from functx import ops
from functx.core.errors import IndexingError
from functx.core.program import Atom, Literal
from functx.core.tracer import Tracer, aval_of
from functx.core.types import Shape
from functx.core.typing import ArrayLike, Index, Value
from functx.numpy.indexer import cast_for_assignment, drop_leading_ones
from functx.numpy.promotion import broadcast_to


class BooleanMaskIndex(NamedTuple):
    """An index with a boolean mask of the axes from `axis` on, and full slices of the others."""

    mask: Value
    axis: int

    def broadcast_mask(self, shape: Shape) -> Value:
        """The mask broadcast to `shape`; a scalar mask stays a scalar."""
        mask_shape = aval_of(self.mask).shape
        if mask_shape != shape[self.axis : self.axis + len(mask_shape)]:
            raise IndexingError(
                "x.at[mask]: a mask must have the shape of the axes that it indexes; got "
                f"{mask_shape} from axis {self.axis} on of an array of shape {shape}"
            )
        if not mask_shape or mask_shape == shape:
            return self.mask
        return ops.broadcast_in_dim(
            self.mask, shape, tuple(range(self.axis, self.axis + len(mask_shape)))
        )

    def trailing_axes(self, shape: Shape) -> int:
        """The number of axes behind those of the mask."""
        return len(shape) - self.axis - aval_of(self.mask).ndim

    def is_uniform(self, values: Value, shape: Shape) -> bool:
        """Whether `values` has the same value for all elements that the mask selects.

        Then the number of elements need not be known.
        """
        value_shape, trailing = aval_of(values).shape, self.trailing_axes(shape)
        return len(value_shape) <= trailing or value_shape[-1 - trailing] == 1

    def broadcast_values(self, values: Value, shape: Shape) -> Value:
        """`values` broadcast to the elements of an array of `shape`; a scalar stays a scalar."""
        trailing = self.trailing_axes(shape)
        values = drop_leading_ones(values, self.axis + 1 + trailing)
        value_shape = aval_of(values).shape
        if not value_shape:
            return values
        if len(value_shape) > trailing:
            position = len(value_shape) - trailing - 1
            unit_dims = [1] * aval_of(self.mask).ndim
            values = ops.reshape(
                values, (*value_shape[:position], *unit_dims, *value_shape[position + 1 :])
            )
        return broadcast_to(values, shape)


def parse_mask_index(idx: Index, shape: Shape) -> BooleanMaskIndex | None:
    """`idx` as a mask index if it consists of one mask, full slices and Ellipsis; else None."""
    items = idx if type(idx) is tuple else (idx,)
    masks = [i for i, item in enumerate(items) if _is_mask(item)]
    if len(masks) != 1:
        return None
    (position,) = masks
    before, after = items[:position], items[position + 1 :]
    if not all(item is Ellipsis or _is_full(item) for item in (*before, *after)):
        return None
    axis = position
    if any(item is Ellipsis for item in before):
        axis = len(shape) - items[position].ndim - len(after)
    return (
        BooleanMaskIndex(items[position], axis)
        if 0 <= axis <= len(shape) - items[position].ndim
        else None
    )


def _is_mask(item: object) -> bool:
    if type(item) is Tracer:
        return item.dtype == bool
    return getattr(item, "ndim", 0) > 0 and getattr(item, "dtype", None) == ops.BOOL


def _is_full(item: object) -> bool:
    return type(item) is slice and item.start is item.stop is item.step is None


class MaskedElements:
    """The elements of an array that a mask selects whose value, and so their number, is not known.

    Arithmetic with numbers, and with elements of other arrays under the same mask, is possible,
    and its result can be written under the same mask. All other uses raise `error`.
    """

    __slots__ = ("array", "axes", "error")

    def __init__(self, array: Value, axes: BooleanMaskIndex, error: IndexingError):
        self.array, self.axes, self.error = array, axes, error

    def __getattr__(self, name: str) -> NoReturn:
        raise self.error

    def unmasked_operand(self, other: Value | MaskedElements) -> Value:
        """`other` for all elements of the array, those outside the mask too."""
        shape = aval_of(self.array).shape
        if isinstance(other, MaskedElements):
            same_axes = other.axes.axis == self.axes.axis and aval_of(other.array).shape == shape
            if not same_axes or not is_same_mask(other.axes.mask, self.axes.mask):
                raise self.error
            return other.array
        if not self.axes.is_uniform(other, shape):
            raise self.error
        return self.axes.broadcast_values(other, shape)

    def select_into(self, x: Value) -> Value:
        """`x` with these elements where the mask is True."""
        aval = aval_of(x)
        return ops.select(
            self.axes.broadcast_mask(aval.shape), cast_for_assignment(self.array, aval.dtype), x
        )


def is_same_mask(mask: ArrayLike, other: ArrayLike) -> bool:
    """Whether two masks are equal: one value, or equal computations without a write in between."""
    if type(mask) is not Tracer or type(other) is not Tracer or mask.builder is not other.builder:
        return mask is other
    builder = mask.builder
    pending: list[tuple[Any, Any]] = [(mask.atom, other.atom)]
    compared: set[tuple[Atom, Atom]] = set()
    equation_positions: list[int] = []
    while pending:
        a, b = pending.pop()
        if a is b or (a, b) in compared or (type(a) is type(b) is Literal and a.key == b.key):
            continue
        compared.add((a, b))
        positions = builder.producer(a), builder.producer(b)
        if None in positions:
            return False
        eqn, other_eqn = [builder.equations[i] for i in positions]  # type: ignore[index]
        if eqn.primitive is not other_eqn.primitive or eqn.outputs.index(
            a
        ) != other_eqn.outputs.index(b):
            return False
        equation_positions += positions  # type: ignore[arg-type]
        pending += zip(eqn.inputs, other_eqn.inputs, strict=True)
    between = builder.equations[
        min(equation_positions, default=0) : max(equation_positions, default=0)
    ]
    return not any(eqn.primitive.effects for eqn in between)


def masked_elements(x: ArrayLike, idx: Index, error: IndexingError) -> MaskedElements | None:
    """The value of `x[idx]` if `idx` has a mask with an unknown value; else None."""
    if type(x) is not Tracer:
        return None
    axes = parse_mask_index(idx, x.shape)
    if axes is None or type(axes.mask) is not Tracer:
        return None
    # The value 1 outside the mask keeps later operations and their derivatives finite.
    array = ops.select(axes.broadcast_mask(x.shape), x, ops.constant_like(x, 1))
    return MaskedElements(array, axes, error)


def _masked_operator(
    fun: Callable[[ArrayLike, ArrayLike], Value], in_place: bool, reflected: bool
) -> Callable[[MaskedElements, Value | MaskedElements], MaskedElements]:
    def method(self: MaskedElements, other: Value | MaskedElements) -> MaskedElements:
        other = self.unmasked_operand(other)
        result = fun(other, self.array) if reflected else fun(self.array, other)
        if in_place:
            from functx.numpy.mutation import check_same_kind_cast

            check_same_kind_cast(aval_of(result), self.array.dtype, "x[mask] op= y")
        return MaskedElements(result, self.axes, self.error)

    return method


def _raise_unknown_mask(self: MaskedElements, *args: object) -> NoReturn:
    raise self.error


OPERATOR_SYMBOLS = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "truediv": "/",
    "floordiv": "//",
    "mod": "%",
    "pow": "**",
    "matmul": "@",
    "and": "&",
    "or": "|",
    "xor": "^",
    "lshift": "<<",
    "rshift": ">>",
}
"""The symbol of each arithmetic operator, by the name of its method."""
_OTHER_OPERATIONS = (
    "eq ne lt le gt ge neg pos abs invert matmul rmatmul imatmul len iter getitem setitem "
    "bool int float index complex array array_ufunc array_function jax_array"
)
for _name in OPERATOR_SYMBOLS:
    for _prefix in ("", "i", "r"):
        _method = _masked_operator(
            getattr(operator, f"__{_name}__"), _prefix == "i", _prefix == "r"
        )
        setattr(MaskedElements, f"__{_prefix}{_name}__", _method)
for _name in _OTHER_OPERATIONS.split():
    setattr(MaskedElements, f"__{_name}__", _raise_unknown_mask)
MaskedElements.__hash__ = object.__hash__  # type: ignore[method-assign]
