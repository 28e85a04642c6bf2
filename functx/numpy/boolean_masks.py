"""Boolean masks: what they select where their values are known, and where they are not."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

from functx import ops
from functx.core.errors import IndexingError
from functx.core.program import Literal
from functx.core.tracer import Tracer, aval_of
from functx.core.types import Shape
from functx.numpy.indexer import cast_for_assignment, drop_leading_ones
from functx.numpy.promotion import broadcast_to


class BooleanMaskIndex(NamedTuple):
    """An index that is a boolean mask of the axes from `axis` on, and all of the others."""

    mask: Any
    axis: int

    def broadcast_mask(self, shape: Shape) -> Any:
        """The mask of each element of an array of `shape`; a scalar stays one."""
        own = aval_of(self.mask).shape
        if own != shape[self.axis : self.axis + len(own)]:
            raise IndexingError(
                "x.at[mask]: a mask must have the shape of the axes that it stands for; got "
                f"{own} from axis {self.axis} on of an array of shape {shape}"
            )
        if not own or own == shape:
            return self.mask
        return ops.broadcast_in_dim(self.mask, shape, tuple(range(self.axis, self.axis + len(own))))

    def trailing_axes(self, shape: Shape) -> int:
        """The number of axes that follow those of the mask."""
        return len(shape) - self.axis - aval_of(self.mask).ndim

    def is_uniform(self, values: Any, shape: Shape) -> bool:
        """Whether all elements that the mask selects get the same of `values`.

        Then their number need not be known.
        """
        own, after = aval_of(values).shape, self.trailing_axes(shape)
        return len(own) <= after or own[-1 - after] == 1

    def broadcast_values(self, values: Any, shape: Shape) -> Any:
        """`values` for each element of an array of `shape`; a scalar stays one."""
        after = self.trailing_axes(shape)
        values = drop_leading_ones(values, self.axis + 1 + after)
        own = aval_of(values).shape
        if not own:
            return values
        if len(own) > after:
            at = len(own) - after - 1
            masked = [1] * aval_of(self.mask).ndim
            values = ops.reshape(values, (*own[:at], *masked, *own[at + 1 :]))
        return broadcast_to(values, shape)


def parse_mask_index(idx: Any, shape: Shape) -> BooleanMaskIndex | None:
    """`idx` as a mask, if it has one and otherwise only full slices and Ellipsis."""
    items = idx if type(idx) is tuple else (idx,)
    masks = [i for i, item in enumerate(items) if _is_mask(item)]
    if len(masks) != 1:
        return None
    (at,) = masks
    before, after = items[:at], items[at + 1 :]
    if not all(item is Ellipsis or _is_full(item) for item in (*before, *after)):
        return None
    axis = at
    if any(item is Ellipsis for item in before):
        axis = len(shape) - items[at].ndim - len(after)
    return BooleanMaskIndex(items[at], axis) if 0 <= axis <= len(shape) - items[at].ndim else None


def _is_mask(item: Any) -> bool:
    if type(item) is Tracer:
        return item.dtype == bool
    return getattr(item, "ndim", 0) > 0 and item.dtype == bool


def _is_full(item: Any) -> bool:
    return type(item) is slice and item.start is item.stop is item.step is None


class MaskedElements:
    """The elements of an array where a mask holds whose value is not known: nobody knows how many.

    Numbers, and elements at the same places of other arrays, can be combined with them, and what
    comes of that be written to the same places. All else raises `error`.
    """

    __slots__ = ("array", "axes", "error")

    def __init__(self, whole: Any, axes: BooleanMaskIndex, error: IndexingError):
        self.array, self.axes, self.error = whole, axes, error

    def __getattr__(self, name: str) -> Any:
        raise self.error

    def unmasked_operand(self, other: Any) -> Any:
        """`other` for all elements of the array, also where the mask does not hold."""
        shape = aval_of(self.array).shape
        if type(other) is MaskedElements:
            alike = other.axes.axis == self.axes.axis and aval_of(other.array).shape == shape
            if not alike or not is_same_mask(other.axes.mask, self.axes.mask):
                raise self.error
            return other.array
        if not self.axes.is_uniform(other, shape):
            raise self.error
        return self.axes.broadcast_values(other, shape)

    def select_into(self, x: Any) -> Any:
        """`x` with these elements where the mask holds."""
        aval = aval_of(x)
        return ops.select(
            self.axes.broadcast_mask(aval.shape), cast_for_assignment(self.array, aval.dtype), x
        )


def is_same_mask(mask: Any, other: Any) -> bool:
    """Whether two masks are one, or computed in one way from arrays not written to in between."""
    if type(mask) is not Tracer or type(other) is not Tracer or mask.builder is not other.builder:
        return mask is other
    builder = mask.builder
    pending: list[tuple[Any, Any]] = [(mask.atom, other.atom)]
    alike: set[Any] = set()
    places: list[int] = []
    while pending:
        a, b = pending.pop()
        if a is b or (a, b) in alike or (type(a) is type(b) is Literal and a.key == b.key):
            continue
        alike.add((a, b))
        positions = builder.producer(a), builder.producer(b)
        if None in positions:
            return False
        one, two = [builder.equations[i] for i in positions]  # type: ignore[index]
        if one.primitive is not two.primitive or one.outputs.index(a) != two.outputs.index(b):
            return False
        places += positions  # type: ignore[arg-type]
        pending += zip(one.inputs, two.inputs, strict=True)
    between = builder.equations[min(places, default=0) : max(places, default=0)]
    return not any(eqn.primitive.effects for eqn in between)


def masked_elements(x: Any, idx: Any, error: IndexingError) -> MaskedElements | None:
    """What `x[idx]` is where `idx` is a mask without a known value; None where it is not."""
    if type(x) is not Tracer:
        return None
    axes = parse_mask_index(idx, x.shape)
    if axes is None or type(axes.mask) is not Tracer:
        return None
    # Where the mask does not hold, nothing may go wrong, derivatives included.
    whole = ops.select(axes.broadcast_mask(x.shape), x, ops.constant_like(x, 1))
    return MaskedElements(whole, axes, error)


def _masked_operator(fun: Callable[[Any, Any], Any], in_place: bool, reflected: bool) -> Any:
    def method(self: MaskedElements, other: Any) -> Any:
        other = self.unmasked_operand(other)
        whole = fun(other, self.array) if reflected else fun(self.array, other)
        if in_place:
            from functx.numpy.mutation import check_same_kind_cast

            check_same_kind_cast(aval_of(whole), self.array.dtype, "x[mask] op= y")
        return MaskedElements(whole, self.axes, self.error)

    return method


def _raise_unknown_mask(self: MaskedElements, *args: Any) -> Any:
    raise self.error


for _name in [
    "add",
    "sub",
    "mul",
    "truediv",
    "floordiv",
    "mod",
    "pow",
    "and",
    "or",
    "xor",
    "lshift",
    "rshift",
]:
    _fun = getattr(operator, _name if _name not in ("and", "or") else f"{_name}_")
    for _prefix, _in_place, _reflected in (
        ("", False, False),
        ("i", True, False),
        ("r", False, True),
    ):
        setattr(
            MaskedElements, f"__{_prefix}{_name}__", _masked_operator(_fun, _in_place, _reflected)
        )
for _name in [
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "neg",
    "pos",
    "abs",
    "invert",
    "matmul",
    "rmatmul",
    "len",
    "iter",
    "getitem",
    "setitem",
    "bool",
    "int",
    "float",
    "index",
    "complex",
    "array",
    "array_ufunc",
    "array_function",
    "jax_array",
]:
    setattr(MaskedElements, f"__{_name}__", _raise_unknown_mask)
MaskedElements.__hash__ = object.__hash__  # type: ignore[method-assign]
