"""Exchanges: collectives in which each place gets other parts than it gave."""

from __future__ import annotations

from math import prod
from typing import Any

from jax import lax

from functx.core.avals import ShapedArray
from functx.core.errors import CollectiveError, ShapeError
from functx.core.primitive import Primitive
from functx.core.samples import f32, sample
from functx.ops.arithmetic import mul
from functx.ops.collectives import AxisIndexGroups, Collective, broadcast_new_dim, take_or_zero
from functx.ops.families import Linear
from functx.ops.operands import check_axes, literal
from functx.ops.reductions import reduce_sum
from functx.ops.shaping import PermuteDims, Reshape, moveaxis, reshape


class TiledCollective(Collective, Linear, abstract=True):
    """Parts of operands, one for each place, change places.

    `sizes` are the numbers of places along the axes, or that in a group. Of several axes, the
    first counts most.
    """

    sizes: tuple[int, ...]
    groups: AxisIndexGroups = None

    def check_divisible(self, x: ShapedArray, axis: int) -> int:
        """The length of a part, one of as many as there are places, of dimension `axis`."""
        count = prod(self.sizes)
        if x.shape[axis] % count:
            raise ShapeError(
                f"{self.name}: dimension {axis} must be a multiple of the {count} places that it "
                f"is divided among; got {x!r}",
                fix="Pad it, for instance with functx.numpy.pad.",
            )
        return x.shape[axis] // count


class AllGather(TiledCollective):
    """The operands of all places, in their order, joined along the dimension `axis`.

    If `invariant`, the result is known to be the same in all places.
    """

    axis: int  # type: ignore[misc]
    invariant: bool = False
    samples = (
        sample(f32[4, 3, 2], axes=("i",), axis=1, sizes=(4,), across=(("i", 4),)),
        sample(
            f32[4, 2], axes=("i",), axis=0, sizes=(2,), groups=((0, 3), (2, 1)), across=(("i", 4),)
        ),
    )

    def abstract_eval(self, x):
        check_axes(self.name, self.axis, x.ndim)
        return resize_dim(x, self.axis, x.shape[self.axis] * prod(self.sizes))

    def varying_axes(self, over):
        if self.invariant and self.groups is None:
            return over - self.named_axes
        return super().varying_axes(over)

    def transpose(self, ct, x):
        return (PsumScatter(self.axes, self.sizes, self.groups, self.axis)(ct),)

    def batch_elsewhere(self, x, dim):
        axis = self.axis + (dim <= self.axis)
        return AllGather(self.axes, self.sizes, self.groups, axis, self.invariant)(x), dim

    def split_by_axis(self, x):
        each = zip(reversed(self.axes), reversed(self.sizes), strict=True)
        return [AllGather((name,), (size,), None, self.axis) for name, size in each]

    def batch_over_axis(self, x, dim, size):
        x = broadcast_new_dim(x, size, self.axis) if dim is None else moveaxis(x, dim, self.axis)
        return merge_dims(x, self.axis), None

    def jax_collective(self, x):
        return lax.all_gather(
            x, self.axes, axis=self.axis, tiled=True, axis_index_groups=self.groups
        )


class PsumScatter(TiledCollective):
    """The sum over all places; each place has its part of the dimension `axis`."""

    axis: int  # type: ignore[misc]
    accepts = "iufc"
    samples = (sample(f32[4, 3, 8], axes=("i",), axis=1, sizes=(4,), across=(("i", 4),)),)

    def abstract_eval(self, x):
        self.check(x)
        check_axes(self.name, self.axis, x.ndim)
        return resize_dim(x, self.axis, self.check_divisible(x, self.axis))

    def transpose(self, ct, x):
        return (AllGather(self.axes, self.sizes, self.groups, self.axis)(ct),)

    def batch_elsewhere(self, x, dim):
        axis = self.axis + (dim <= self.axis)
        return PsumScatter(self.axes, self.sizes, self.groups, axis)(x), dim

    def split_by_axis(self, x):
        each = zip(self.axes, self.sizes, strict=True)
        return [PsumScatter((name,), (size,), None, self.axis) for name, size in each]

    def batch_over_axis(self, x, dim, size):
        x = mul(x, literal(size, x.dtype)) if dim is None else reduce_sum(x, (dim,))
        return split_dim(x, self.axis, (size,)), self.axis

    def jax_collective(self, x):
        return lax.psum_scatter(
            x,
            self.axes,
            scatter_dimension=self.axis,
            tiled=True,
            axis_index_groups=self.groups,
        )


class AllToAll(TiledCollective):
    """Part number j of dimension `split` goes to place j, which joins those it gets along `concat`."""

    split: int  # type: ignore[misc]
    concat: int  # type: ignore[misc]
    samples = (
        sample(f32[4, 3, 8], axes=("i",), split=1, concat=0, sizes=(4,), across=(("i", 4),)),
    )

    def abstract_eval(self, x):
        check_axes(self.name, self.split, x.ndim)
        check_axes(self.name, self.concat, x.ndim)
        x = resize_dim(x, self.split, self.check_divisible(x, self.split))
        return resize_dim(x, self.concat, x.shape[self.concat] * prod(self.sizes))

    def transpose(self, ct, x):
        back = AllToAll(self.axes, self.sizes, self.groups, self.concat, self.split)
        return (back(ct),)

    def batch_elsewhere(self, x, dim):
        split, concat = (k + (dim <= k) for k in (self.split, self.concat))
        return AllToAll(self.axes, self.sizes, self.groups, split, concat)(x), dim

    def split_by_axis(self, x):
        k, c, n = self.split, self.concat, len(self.sizes)
        part = x.shape[k] // prod(self.sizes)
        shape = (*x.shape[:k], *self.sizes, part, *x.shape[k + 1 :])
        steps: list[Primitive] = [Reshape(shape)]
        for i, (name, size) in enumerate(zip(self.axes, self.sizes, strict=True)):
            steps.append(AllToAll((name,), (size,), None, k + i, k + i))
        others = [*range(k), *range(k + n, len(shape))]
        order = (*others[:c], *range(k, k + n), *others[c:])
        after = self.abstract_eval(x)
        return [*steps, PermuteDims(order), Reshape(after.shape)]

    def batch_over_axis(self, x, dim, size):
        x = broadcast_new_dim(x, size) if dim is None else moveaxis(x, dim, 0)
        # The places that get the parts come first, then those that sent them.
        x = moveaxis(split_dim(x, self.split + 1, (size,)), self.split + 1, 0)
        return merge_dims(moveaxis(x, 1, self.concat + 1), self.concat + 1), 0

    def jax_collective(self, x):
        return lax.all_to_all(
            x, self.axes, self.split, self.concat, tiled=True, axis_index_groups=self.groups
        )


class Ppermute(Collective, Linear):
    """The operand of another place, by the pairs (source, destination) in `perm`, or zeros."""

    perm: tuple[tuple[int, int], ...]
    samples = (
        sample(f32[4, 3], axes=("i",), perm=((0, 1), (1, 2), (2, 3), (3, 0)), across=(("i", 4),)),
        sample(f32[4], axes=("i",), perm=((3, 0), (0, 2)), across=(("i", 4),)),
    )

    def abstract_eval(self, x):
        return x

    def transpose(self, ct, x):
        back = sorted([(destination, source) for source, destination in self.perm])
        return (Ppermute(self.axes, tuple(back))(ct),)

    def batch_elsewhere(self, x, dim):
        return self(x), dim

    def split_by_axis(self, x):
        raise CollectiveError(
            f"ppermute: pairs over several axes must be sent between devices; got {self.axes} "
            "under a vmap over one of them",
            fix="Send over one axis after the other.",
        )

    def batch_over_axis(self, x, dim, size):
        source = {to: place for place, to in self.perm}
        if dim is None and len(source) == size:
            return x, None
        x = broadcast_new_dim(x, size) if dim is None else moveaxis(x, dim, 0)
        return take_or_zero(x, 0, [source.get(to) for to in range(size)]), 0

    def jax_collective(self, x):
        return lax.ppermute(x, self.axes, self.perm)


def merge_dims(x: Any, dim: int) -> Any:
    """`x` with dimension `dim` and the next as one."""
    return reshape(x, (*x.shape[:dim], x.shape[dim] * x.shape[dim + 1], *x.shape[dim + 2 :]))


def split_dim(x: Any, dim: int, sizes: tuple[int, ...]) -> Any:
    """`x` with dimension `dim` as several: of `sizes`, and of what is left."""
    rest = x.shape[dim] // prod(sizes)
    return reshape(x, (*x.shape[:dim], *sizes, rest, *x.shape[dim + 1 :]))


def resize_dim(x: ShapedArray, dim: int, size: int) -> ShapedArray:
    """The aval `x` with another length of dimension `dim`."""
    return x.update(shape=(*x.shape[:dim], size, *x.shape[dim + 1 :]))
