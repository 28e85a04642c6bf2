"""Windows: where they lie on an array, and what users say of them."""

from __future__ import annotations

from operator import index
from typing import Any, NamedTuple

from functx.core.avals import Shape
from functx.core.errors import ArgumentError, ShapeError, ValueRangeError

Dims = tuple[int, ...]
Pairs = tuple[tuple[int, int], ...]


class Window(NamedTuple):
    """How windows lie on an array, a number for each dimension.

    The array first gets `base_dilation - 1` holes between neighbours, then `padding`. A
    window has `sizes` elements, `window_dilation` apart, and begins at multiples of `strides`.
    """

    sizes: Dims
    strides: Dims
    padding: Pairs
    base_dilation: Dims
    window_dilation: Dims

    def result_shape(self, shape: Shape) -> Shape:
        """How many places the windows have on an array of `shape`."""
        return tuple(
            [
                max((dilate_dim(n, hole) + low + high - dilate_dim(size, apart)) // stride + 1, 0)
                for n, size, stride, (low, high), hole, apart in zip(shape, *self, strict=True)
            ]
        )

    def pad_config(self) -> tuple[tuple[int, int, int], ...]:
        """The padding, holes included, as `pad` takes it."""
        return tuple(
            [
                (low, high, hole - 1)
                for (low, high), hole in zip(self.padding, self.base_dilation, strict=True)
            ]
        )

    def without_padding(self) -> Window:
        """The same windows on an array that has been padded already."""
        ones = (1,) * len(self.sizes)
        return self._replace(padding=((0, 0),) * len(ones), base_dilation=ones)

    def with_batch_dim(self, dim: int) -> Window:
        """The same windows on an array that has a further dimension, at `dim`."""

        def insert(numbers: Any, new: Any) -> Any:
            return (*numbers[:dim], new, *numbers[dim:])

        new = (1, 1, (0, 0), 1, 1)
        return Window(*[insert(field, n) for field, n in zip(self, new, strict=True)])


def dilate_dim(n: int, step: int) -> int:
    """The length of `n` elements that lie `step` apart."""
    return (n - 1) * step + 1 if n else 0


def check_window(what: str, shape: Shape, window: Window) -> None:
    """Raise unless `window` has positive numbers for each dimension of an array of `shape`."""
    fields: Any = zip(Window._fields, window, strict=True)
    for name, numbers in fields:
        if len(numbers) != len(shape):
            raise ShapeError(
                f"{what}: {_ARGUMENT_NAMES[name]} must have an entry for each of {len(shape)} "
                f"dimensions; got {numbers} for shape {shape}"
            )
        if name != "padding" and any(n < 1 for n in numbers):
            raise ValueRangeError(
                f"{what}: {_ARGUMENT_NAMES[name]} must be positive; got {numbers}"
            )
    for n, (low, high), hole in zip(shape, window.padding, window.base_dilation, strict=True):
        if dilate_dim(n, hole) + low + high < 0:
            raise ShapeError(
                f"{what}: padding must not make a length negative; got {window.padding} for "
                f"shape {shape}"
            )


_ARGUMENT_NAMES = {
    "sizes": "window_dimensions",
    "strides": "window_strides",
    "padding": "padding",
    "base_dilation": "base_dilation",
    "window_dilation": "window_dilation",
}


def make_window(
    what: str,
    shape: Shape,
    window_dimensions: Any,
    window_strides: Any = None,
    padding: Any = "VALID",
    base_dilation: Any = None,
    window_dilation: Any = None,
) -> Window:
    """The windows on an array of `shape`; None stands for ones.

    `padding` is a pair for each dimension, or one of: "VALID" for none, "SAME" for as much as
    makes the result as long as the array without holes, divided by the strides, with the odd
    element behind, "SAME_LOWER" with the odd one in front. Errors begin with `what`.
    """
    ones = (1,) * len(shape)
    given = (window_dimensions, window_strides, base_dilation, window_dilation)
    names = ("sizes", "strides", "base_dilation", "window_dilation")
    sizes, strides, holes, apart = [
        ones if numbers is None else _canonical_ints(what, _ARGUMENT_NAMES[name], numbers)
        for name, numbers in zip(names, given, strict=True)
    ]
    pairs = ((0, 0),) * len(shape)
    window = Window(sizes, strides, pairs, holes, apart)
    check_window(what, shape, window)
    if not isinstance(padding, str):
        return window._replace(padding=canonical_padding(what, padding))
    if padding.upper() not in ("SAME", "SAME_LOWER", "VALID"):
        raise ValueRangeError(
            f'{what}: padding must be "SAME", "SAME_LOWER", "VALID" or pairs; got {padding!r}'
        )
    if padding.upper() != "VALID":
        missing = [
            max((-(-n // stride) - 1) * stride + dilate_dim(k, step) - n, 0)
            for n, k, stride, step in zip(shape, sizes, strides, apart, strict=True)
        ]
        less = [(total // 2, total - total // 2) for total in missing]
        pairs = tuple(less if padding.upper() == "SAME" else [pair[::-1] for pair in less])
    return window._replace(padding=pairs)


def _canonical_ints(what: str, name: str, numbers: Any) -> Dims:
    try:
        return tuple([index(n) for n in numbers])
    except TypeError:
        raise ArgumentError(
            f"{what}: {name} must be integers, one a dimension; got {numbers!r}"
        ) from None


def canonical_padding(what: str, padding: Any) -> Pairs:
    """`padding` as a pair for each dimension; ArgumentError, which begins with `what`, for others."""
    try:
        return tuple([(index(low), index(high)) for low, high in padding])
    except (TypeError, ValueError):
        raise ArgumentError(
            f"{what}: padding must be a name, or a pair (low, high) for each dimension; "
            f"got {padding!r}"
        ) from None
