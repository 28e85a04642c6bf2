"""Windows of arrays: sums and extrema over them, and their arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import index
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, SupportsIndex

import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from functx import ops
from functx.core.errors import ArgumentError, ShapeError, ValueRangeError
from functx.core.index_sets import DependentOperand, IndexSets, Sets
from functx.core.primitive import Primitive
from functx.core.program import Program
from functx.core.samples import EXACT, bool_, c64, f32, i32, sample
from functx.core.types import Shape, ShapedArray
from functx.core.typing import Cotangents, Dim, IRValue, Tangent, Value, Values
from functx.ops.families import Linear, check_same_dtype
from functx.ops.operands import Dims, upcast_aval

if TYPE_CHECKING:
    from functx.lowering.stablehlo_emitter import LoweringContext

Pairs = tuple[tuple[int, int], ...]


class Window(NamedTuple):
    """The positions of windows on an array, with a number for each dimension.

    First `base_dilation - 1` elements are inserted between neighbours, then `padding` is added. A
    window has `sizes` elements, `window_dilation` apart, and begins at multiples of `strides`.
    """

    sizes: Dims
    strides: Dims
    padding: Pairs
    base_dilation: Dims
    window_dilation: Dims

    def result_shape(self, shape: Shape) -> Shape:
        """The number of windows on an array of `shape`, in each dimension."""
        return tuple(
            [
                max(
                    (dilate_dim(n, base_step) + low + high - dilate_dim(size, window_step))
                    // stride
                    + 1,
                    0,
                )
                for n, size, stride, (low, high), base_step, window_step in zip(
                    shape, *self, strict=True
                )
            ]
        )

    def pad_config(self) -> tuple[tuple[int, int, int], ...]:
        """The padding and base dilation in the form that `pad` takes."""
        return tuple(
            [
                (low, high, base_step - 1)
                for (low, high), base_step in zip(self.padding, self.base_dilation, strict=True)
            ]
        )

    def union(self, sets: IndexSets, x: Sets) -> Sets:
        """The unions of the index sets in each window."""
        if x is None:
            return None
        padded: Any = ops.Pad(self.pad_config()).numpy(x, np.zeros((), np.int32))
        counts = self.without_padding().result_shape(padded.shape)
        for axis, (count, size, stride, apart) in enumerate(
            zip(counts, self.sizes, self.strides, self.window_dilation, strict=True)
        ):
            positions = np.arange(count)[:, None] * stride + np.arange(size) * apart
            padded = sets.union_along(np.take(padded, positions, axis), (axis + 1,))
        return padded  # type: ignore[no-any-return]

    def without_padding(self) -> Window:
        """The same windows on an array that is already padded and dilated."""
        ones = (1,) * len(self.sizes)
        return self._replace(padding=((0, 0),) * len(ones), base_dilation=ones)

    def with_batch_dim(self, dim: int) -> Window:
        """The same windows on an array with a further dimension at `dim`."""
        new = (1, 1, (0, 0), 1, 1)
        return Window._make(
            [ops.tuple_insert(field, dim, n) for field, n in zip(self, new, strict=True)]
        )


def dilate_dim(n: int, step: int) -> int:
    """The extent of `n` elements that are `step` apart."""
    return (n - 1) * step + 1 if n else 0


def check_window(what: str, shape: Shape, window: Window) -> None:
    """Raise unless `window` has positive numbers for each dimension of an array of `shape`."""
    fields: Iterable[tuple[str, tuple[Any, ...]]] = zip(Window._fields, window, strict=True)
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
    for n, (low, high), base_step in zip(shape, window.padding, window.base_dilation, strict=True):
        if dilate_dim(n, base_step) + low + high < 0:
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
    window_dimensions: Sequence[int],
    window_strides: Sequence[int] | None = None,
    padding: str | Sequence[tuple[int, int]] = "VALID",
    base_dilation: Sequence[int] | None = None,
    window_dilation: Sequence[int] | None = None,
) -> Window:
    """The windows on an array of `shape`; None stands for ones.

    `padding` is a pair for each dimension, or "VALID" for none, "SAME" for a result as long as the
    undilated array divided by the strides, with an odd element of padding at the end, or
    "SAME_LOWER" with the odd element at the start. Errors begin with `what`.
    """
    ones = (1,) * len(shape)
    arguments = (window_dimensions, window_strides, base_dilation, window_dilation)
    names = ("sizes", "strides", "base_dilation", "window_dilation")
    sizes, strides, base_steps, window_step = [
        ones if numbers is None else _canonical_ints(what, _ARGUMENT_NAMES[name], numbers)
        for name, numbers in zip(names, arguments, strict=True)
    ]
    pairs = ((0, 0),) * len(shape)
    window = Window(sizes, strides, pairs, base_steps, window_step)
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
            for n, k, stride, step in zip(shape, sizes, strides, window_step, strict=True)
        ]
        centered = [(total // 2, total - total // 2) for total in missing]
        pairs = tuple(centered if padding.upper() == "SAME" else [pair[::-1] for pair in centered])
    return window._replace(padding=pairs)


def _canonical_ints(what: str, name: str, numbers: Sequence[int]) -> Dims:
    try:
        return tuple([index(n) for n in numbers])
    except TypeError:
        raise ArgumentError(
            f"{what}: {name} must be integers, one a dimension; got {numbers!r}"
        ) from None


def canonical_padding(name: str, padding: Iterable[tuple[SupportsIndex, SupportsIndex]]) -> Pairs:
    """`padding` as a pair for each dimension; ArgumentError, which begins with `name`, for others."""
    try:
        return tuple([(index(low), index(high)) for low, high in padding])
    except (TypeError, ValueError):
        raise ArgumentError(
            f"{name}: padding must be a name, or a pair (low, high) for each dimension; "
            f"got {padding!r}"
        ) from None


class WindowReduction(Primitive, abstract=True):
    """The combination of the elements of one operand in each window; `Window` documents the fields."""

    sizes: Dims
    strides: Dims
    padding: Pairs
    base_dilation: Dims
    window_dilation: Dims
    accepts: ClassVar[str] = "biuf"

    @classmethod
    def from_jax_params(
        cls,
        window_dimensions: Dims,
        window_strides: Dims,
        padding: Pairs,
        base_dilation: Dims,
        window_dilation: Dims,
    ) -> WindowReduction:
        dims = window_dimensions, window_strides, base_dilation, window_dilation
        sizes, strides, base_dilation, window_dilation = [tuple(map(int, d)) for d in dims]
        pairs = tuple([(int(low), int(high)) for low, high in padding])
        return cls(sizes, strides, pairs, base_dilation, window_dilation)

    @property
    def window(self) -> Window:
        return Window(
            self.sizes, self.strides, self.padding, self.base_dilation, self.window_dilation
        )

    def abstract_eval(self, x: ShapedArray) -> ShapedArray:
        check_same_dtype(self, (x,))
        check_window(self.name, x.shape, self.window)
        return x.update(shape=self.window.result_shape(x.shape))

    def batch(self, args: Values, dims: Sequence[int]) -> tuple[Value, Dim]:
        (x,), (dim,) = args, dims
        return type(self)(*self.window.with_batch_dim(dim))(x), dim

    def index_sets(self, sets: IndexSets, *operands: DependentOperand) -> Sets:
        return self.window.union(sets, operands[0].sets)

    def reduce(
        self,
        ctx: LoweringContext,
        x: IRValue,
        operation: Callable[..., ir.OpView],
        start: complex,
        out: ShapedArray | None = None,
    ) -> IRValue:
        """The elements of each window combined by an operation class, starting with `start`.

        `out` is the type of the result, by default that of the equation.
        """

        def combine(pair: Sequence[IRValue]) -> list[IRValue]:
            return [operation(*pair).result]

        return lower_window(
            ctx, self.window, [x], [start], combine, None if out is None else [out]
        )[0]


def _vector_window(size: int, stride: int = 1, **changes: object) -> dict[str, Any]:
    """The parameters of windows on a vector."""
    fields: dict[str, Any] = {
        "sizes": (size,),
        "strides": (stride,),
        "padding": ((0, 0),),
        "base_dilation": (1,),
        "window_dilation": (1,),
    }
    return fields | changes


_PLAIN: dict[str, Any] = {
    "sizes": (2, 3),
    "strides": (1, 2),
    "padding": ((1, 0), (1, 1)),
    "base_dilation": (1, 1),
    "window_dilation": (1, 1),
}
_DILATED: dict[str, Any] = {
    "sizes": (2, 2),
    "strides": (2, 1),
    "padding": ((0, 2), (-1, 1)),
    "base_dilation": (2, 1),
    "window_dilation": (1, 2),
}


class ReduceWindowSum(WindowReduction, Linear):
    """The sum of the elements in each window; padding counts as zero."""

    accepts = "iufc"
    samples = (
        sample(f32[3, 4], **_PLAIN),
        sample(f32[3, 4], **_DILATED),
        sample(c64[5], **_vector_window(2)),
        sample(f32[0], **_vector_window(2, padding=((2, 1),))),
    )

    def transpose(self, ct: Value, x: Value) -> Cotangents:
        if not x.size or not ct.size:
            return (ops.zeros_like(x),)
        # out[o] = sum_k x[(stride o + apart k - low) / hole], so x[i] gets the sum over k of
        # ct[(hole i + low - apart k) / stride]: windows on the dilated ct, in reverse.
        config = []
        for n, count, size, stride, (low, _), base_step, window_step in zip(
            x.shape, ct.shape, *self.window, strict=True
        ):
            before = dilate_dim(size, window_step) - 1 - low
            after = (
                dilate_dim(n, base_step)
                + dilate_dim(size, window_step)
                - 1
                - before
                - dilate_dim(count, stride)
            )
            config.append((before, after, stride - 1))
        ones = (1,) * x.ndim
        flat = self.window._replace(
            strides=self.base_dilation, padding=((0, 0),) * x.ndim, base_dilation=ones
        )
        return (ReduceWindowSum(*flat)(ops.pad(ct, 0, config)),)

    def lower(self, ctx: LoweringContext, x: IRValue) -> IRValue:
        (aval,), (out_aval,) = ctx.avals_in, ctx.avals_out
        wide, wide_out = upcast_aval(aval), upcast_aval(out_aval)
        if wide is aval:
            return self.reduce(ctx, x, stablehlo.AddOp, 0)
        x = ctx.convert(x, aval, wide)
        return ctx.convert(self.reduce(ctx, x, stablehlo.AddOp, 0, wide_out), wide_out, out_aval)


class WindowExtremum(WindowReduction, abstract=True):
    """The largest or smallest element in each window; the first of elements that tie has the derivative."""

    direction: ClassVar[str]
    """The comparison by which an element replaces another."""
    rounding = EXACT
    samples = (
        sample(f32[3, 4], distinct=True, **_PLAIN),
        sample(f32[3, 4], distinct=True, **_DILATED),
        sample(
            f32[4], values={0: [2.0] * 4}, gradients={0: [1.0, 1.0, 1.0, 0.0]}, **_vector_window(2)
        ),
        sample(i32[5], **_vector_window(2, 2)),
        sample(bool_[5], **_vector_window(3)),
    )

    def jvp(self, primals: Values, tangents: Values) -> tuple[Value, Tangent]:
        (x,), (t,) = primals, tangents
        out = self(x)
        if not x.size or not out.size:
            return out, None
        positions = self.argument_primitive()(x)
        # A window of padding alone has an index out of range, which reads zero.
        pick = ops.Gather(
            collapsed_slice_dims=(0,),
            start_index_map=(0,),
            slice_sizes=(1,),
            mode="fill",
            fill_value=0,
        )
        return out, pick(ops.reshape(t, (x.size,)), ops.reshape(positions, (*out.shape, 1)))

    def argument_primitive(self) -> Primitive:
        """The operation that gives the index of the extremum in each window."""
        raise NotImplementedError

    def lower(self, ctx: LoweringContext, x: IRValue) -> IRValue:
        scalar = ShapedArray((), ctx.avals_in[0].dtype)
        is_max = self.direction == "GT"
        start = ops.lowest(scalar.dtype) if is_max else ops.highest(scalar.dtype)
        if not ops.may_leave_out_nans(ctx):
            return self.reduce(ctx, x, stablehlo.MaxOp if is_max else stablehlo.MinOp, start)

        def combine(pair: Sequence[IRValue]) -> list[IRValue]:
            a, b = pair
            is_first = ctx.compare(a, b, self.direction, scalar)
            is_first = stablehlo.or_(is_first, ctx.compare(a, a, "NE", scalar))
            return [stablehlo.select(is_first, a, b)]

        return lower_window(ctx, self.window, [x], [start], combine)[0]


class ReduceWindowMax(WindowExtremum):
    """The largest element in each window, nan if there is one; padding lies below all."""

    direction = "GT"

    def argument_primitive(self) -> Primitive:
        return ReduceWindowArgmax(*self.window)


class ReduceWindowMin(WindowExtremum):
    """The smallest element in each window, nan if there is one; padding lies above all."""

    direction = "LT"

    def argument_primitive(self) -> Primitive:
        return ReduceWindowArgmin(*self.window)


class WindowArgExtremum(WindowReduction, abstract=True):
    """The index of the first extremum in each window, in row-major order of the operand.

    It is the number of elements for a window without any. The first `batch_ndim` dimensions are batch
    dimensions: indices are within a batch element.
    """

    batch_ndim: int = 0
    differentiable = False
    direction: ClassVar[str]
    """The comparison by which an element replaces another."""
    samples = (
        sample(f32[3, 4], **_PLAIN),
        sample(f32[3, 4], **_DILATED),
        sample(f32[3, 4], batch_ndim=1, **_PLAIN),
        sample(i32[5], **_vector_window(2, padding=((2, 0),))),
    )

    def abstract_eval(self, x: ShapedArray) -> ShapedArray:
        out = super().abstract_eval(x)
        return ShapedArray(out.shape, _index_dtype(x))

    def batch(self, args: Values, dims: Sequence[int]) -> tuple[Value, Dim]:
        (x,), (dim,) = args, dims
        fields = self.window.with_batch_dim(0)
        return type(self)(*fields, self.batch_ndim + 1)(ops.moveaxis(x, dim, 0)), 0

    def lower(self, ctx: LoweringContext, x: IRValue) -> IRValue:
        (aval,), (out,) = ctx.avals_in, ctx.avals_out
        value, position = ShapedArray((), aval.dtype), ShapedArray((), out.dtype)
        element_aval = ShapedArray(aval.shape[self.batch_ndim :], out.dtype)
        flat = stablehlo.iota(ctx.type(element_aval.update(shape=(element_aval.size,))), 0)
        positions = stablehlo.broadcast_in_dim(
            ctx.type(aval.update(dtype=out.dtype)),
            stablehlo.reshape(ctx.type(element_aval), flat),
            ctx.i64_array(range(self.batch_ndim, aval.ndim)),
        )
        worst = ops.lowest(aval.dtype) if self.direction == "GT" else ops.highest(aval.dtype)

        def combine(pairs: Sequence[IRValue]) -> list[IRValue]:
            return ops.select_first_extremum(ctx, self.direction, pairs, value, position)

        starts = [worst, element_aval.size]
        avals = [out.update(dtype=aval.dtype), out]
        return lower_window(ctx, self.window, [x, positions], starts, combine, avals)[1]


class ReduceWindowArgmax(WindowArgExtremum):
    """The index of the first largest element in each window, or of the first nan."""

    direction = "GT"


class ReduceWindowArgmin(WindowArgExtremum):
    """The index of the first smallest element in each window, or of the first nan."""

    direction = "LT"


def _index_dtype(x: ShapedArray) -> np.dtype[Any]:
    return np.dtype("int32" if x.size < 2**31 else "int64")


def lower_window(
    ctx: LoweringContext,
    window: Window,
    operands: Sequence[IRValue],
    starts: Sequence[Any],
    combine: Callable[[Sequence[IRValue]], Sequence[IRValue]],
    avals: Sequence[ShapedArray] | None = None,
) -> list[IRValue]:
    """The combination of the elements of `operands` in each window, with padding of `starts`.

    `starts` are numbers or scalar values. `combine` takes an element of each operand, then another of
    each. `avals` are the types of the results, by default those of the equation.
    """
    avals = ctx.avals_out if avals is None else avals
    scalars = [ShapedArray((), aval.dtype) for aval in avals]
    starts = [
        x if isinstance(x, ir.Value) else ctx.constant(x, scalar)
        for x, scalar in zip(starts, scalars, strict=True)
    ]
    if any(amount < 0 for pair in window.padding for amount in pair):
        # XLA for CPU aborts on windows of one element with negative padding.
        operands, window = pad_for_window(ctx, window, operands, starts), window.without_padding()
    padding = np.array(window.padding, np.int64).reshape(len(window.sizes), 2)
    op = stablehlo.ReduceWindowOp(
        [ctx.type(aval) for aval in avals],
        list(operands),
        starts,
        ctx.i64_array(window.sizes),
        window_strides=ctx.i64_array(window.strides),
        base_dilations=ctx.i64_array(window.base_dilation),
        window_dilations=ctx.i64_array(window.window_dilation),
        padding=ir.DenseIntElementsAttr.get(padding.data),
    )
    types = [ctx.type(scalar) for scalar in scalars]
    block = op.regions[0].blocks.append(*types, *types)
    with ir.InsertionPoint(block):
        stablehlo.return_(combine(list(block.arguments)))
    return list(op.results)


def pad_for_window(
    ctx: LoweringContext, window: Window, xs: Sequence[IRValue], starts: Sequence[Any]
) -> list[IRValue]:
    """The values `xs` with the base dilation and the padding of `window`, filled with `starts`."""
    low, high, inner = [
        ctx.i64_array(amounts) for amounts in zip(*window.pad_config(), strict=True)
    ]
    return [stablehlo.pad(x, start, low, high, inner) for x, start in zip(xs, starts, strict=True)]


def lower_window_program(
    ctx: LoweringContext,
    window: Window,
    xs: Sequence[IRValue],
    starts: Sequence[Any],
    program: Program,
    begin: Program,
) -> list[IRValue]:
    """The combination of the elements of `xs` in each window by `program`, starting with `starts`.

    `begin` combines the scalars `starts` with all results, as vectors, as `program` does elements.
    """
    n, flag = len(xs), ShapedArray((), np.dtype("bool"))
    xs = pad_for_window(ctx, window, xs, starts)
    is_element = ctx.constant(True, flag.update(shape=tuple(xs[0].type.shape)))

    # XLA assumes that the initial value of a reduction is neutral and may use it any number of times.
    # So the initial value has a false flag, and only elements with a true flag are combined.
    def combine(pair: Sequence[IRValue]) -> list[IRValue]:
        (*left, a), (*right, b) = pair[: n + 1], pair[n + 1 :]
        both = ctx.module.emit(program, [*left, *right])
        kept = [
            stablehlo.select(a, stablehlo.select(b, z, x), y)
            for x, y, z in zip(left, right, both, strict=True)
        ]
        return [*kept, stablehlo.or_(a, b)]

    outs: Sequence[ShapedArray] = ctx.avals_out
    size, types = outs[0].size, ctx.out_types
    avals = [*outs, flag.update(shape=outs[0].shape)]
    unpadded = window.without_padding()
    found = lower_window(ctx, unpadded, [*xs, is_element], [*starts, False], combine, avals)[:n]
    vectors = [ctx.type(a.update(shape=(size,))) for a in outs]
    flat = [stablehlo.reshape(t, x) for t, x in zip(vectors, found, strict=True)]
    results = ctx.module.emit(begin, [*starts, *flat])
    return [stablehlo.reshape(t, x) for t, x in zip(types, results, strict=True)]
