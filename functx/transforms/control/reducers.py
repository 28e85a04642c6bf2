"""`Reduce` and `ReduceWindow`: elements combined by a program, over axes and within windows."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from functx.core.errors import ShapeError
from functx.core.primitive import Primitive
from functx.core.program import Program
from functx.core.rewriting import apply, cached_rewrite
from functx.core.samples import f64, i32, sample
from functx.core.tracing import aval_of, trace_closed
from functx.ops.arithmetic import add, mul
from functx.ops.comparison import gt
from functx.ops.joining import concatenate, pad
from functx.ops.operands import batch_size, check_axes, tuple_delete
from functx.ops.selection import select
from functx.ops.shaping import batch_dim_at, broadcast_in_dim, permute_dims, reshape
from functx.ops.slicing import slice as slice_
from functx.ops.window_shapes import Window, check_window, dilate_dim
from functx.ops.windows import lower_window_program
from functx.transforms.batching import Batch, BatchWithInferredOutDims
from functx.transforms.expand import builtin_decomposition


class ProgramReduction(Primitive, abstract=True):
    """Arrays of one shape, whose elements `program` combines, two at a time.

    Operands: n arrays, n scalars that the result begins with, then consts. The program takes
    an element of each array, another of each, and the consts, and must be associative.
    """

    program: Program
    multiple_results = True

    def split_operands(self, items: Sequence[Any]) -> tuple[Any, Any, Any]:
        """`items`, one an operand: those of the arrays, of the scalars, and of the consts."""
        n = len(self.program.outputs)
        return items[:n], items[n : 2 * n], items[2 * n :]

    def result_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the results for arrays of `shape`."""
        raise NotImplementedError

    def with_batch_dim(self) -> Primitive:
        """The same operation on arrays that have a further dimension, the first."""
        raise NotImplementedError

    def abstract_eval(self, *avals):
        xs, starts, consts = self.split_operands(avals)
        shape, elements = xs[0].shape, self.program.in_avals[: len(xs)]
        types = [(a.shape, a.dtype) for a in (*xs, *starts, *consts)]
        wanted = [(s, a.dtype) for s in (shape, ()) for a in elements]
        wanted += [(a.shape, a.dtype) for a in self.program.in_avals[2 * len(xs) :]]
        if types != wanted:
            raise ShapeError(
                f"{self.name}: operands must be arrays of one shape and scalars, as the program "
                f"takes them; got {list(avals)} for {self.program.in_avals}"
            )
        out_shape = self.result_shape(shape)
        return [x.update(shape=out_shape, weak_type=False) for x in xs]

    def batch(self, args, dims):
        size = batch_size(args, dims)
        xs, *rest = self.split_operands(args)
        x_dims, *rest_dims = self.split_operands(dims)
        if all(d is None for group in rest_dims for d in group):
            xs = [batch_dim_at(x, d, 0, size) for x, d in zip(xs, x_dims, strict=True)]
            return self.with_batch_dim()(*xs, *rest[0], *rest[1]), [0] * len(xs)
        lanes = tuple(
            [
                aval_of(x) if d is None else aval_of(x).update(shape=tuple_delete(x.shape, (d,)))
                for x, d in zip(args, dims, strict=True)
            ]
        )
        batch = BatchWithInferredOutDims(size, tuple(dims))
        batched, out_dims = cached_rewrite(batch, builtin_decomposition(self, lanes))
        return apply(None, batched, args), out_dims


def _argmax_program() -> Program:
    def better(x: Any, n: Any, y: Any, m: Any) -> list[Any]:
        return [select(gt(y, x), y, x), select(gt(y, x), m, n)]

    return trace_closed(better, [f64[()], i32[()], f64[()], i32[()]], name="better")


def _affine_program() -> Program:
    # Associative and not commutative in the second pair: (a, b) is the map t -> a t + b.
    def compose(a: Any, b: Any, c: Any, d: Any, scale: Any) -> list[Any]:
        return [mul(mul(a, c), scale), add(mul(mul(c, b), scale), d)]

    return trace_closed(compose, [f64[()]] * 5, name="compose")


class Reduce(ProgramReduction):
    """The elements over `axes`, which leave the shape, combined by `program`.

    It is done by halves, many elements at once; a compiled reduction would take one by one.
    """

    axes: tuple[int, ...]
    samples = (
        sample(
            f64[3, 4], i32[3, 4], f64[()], i32[()],
            program=_argmax_program(), axes=(1,), distinct=True, dtypes=("f64",), values={2: -9.0},
        ),
        sample(
            f64[5, 2], f64[5, 2], f64[()], f64[()], f64[()],
            program=_affine_program(), axes=(0,), dtypes=("f64",), values={4: 1.0},
        ),
        sample(
            f64[0], i32[0], f64[()], i32[()],
            program=_argmax_program(), axes=(0,), dtypes=("f64",),
        ),
    )  # fmt: skip

    def result_shape(self, shape):
        check_axes(self.name, self.axes, len(shape))
        return tuple_delete(shape, self.axes)

    def with_batch_dim(self):
        return Reduce(self.program, tuple([axis + 1 for axis in self.axes]))

    def decompose(self, *args):
        xs, starts, consts = self.split_operands(args)
        shape = xs[0].shape
        kept = tuple_delete(range(len(shape)), self.axes)
        axes = tuple(sorted(self.axes))
        count, out_shape = prod([shape[a] for a in axes]), tuple_delete(shape, axes)
        lanes = prod(out_shape)
        if not count or not lanes:
            return [broadcast_in_dim(start, out_shape, ()) for start in starts]
        rows = [reshape(permute_dims(x, (*axes, *kept)), (count, lanes)) for x in xs]
        totals = [reshape(x, (lanes,)) for x in tree_reduce(self.program, rows, consts)]
        n, none = len(xs), (None,) * len(consts)
        combine = Batch(lanes, (None,) * n + (0,) * n + none, (0,) * n)
        outs = apply(combine, self.program, [*starts, *totals, *consts])
        return [reshape(x, out_shape) for x in outs]


def tree_reduce(program: Program, rows: Sequence[Any], consts: Sequence[Any]) -> Sequence[Any]:
    """All rows of arrays made one row, by combining neighbours until one is left."""
    count, lanes = rows[0].shape
    n, none = len(rows), (None,) * len(consts)
    while count > 1:
        half = count // 2
        pairs = [
            reshape(slice_(x, (first, 0), (2 * half, lanes), (2, 1)), (half * lanes,))
            for first in (0, 1)
            for x in rows
        ]
        combine = Batch(half * lanes, (0,) * (2 * n) + none, (0,) * n)
        found = apply(combine, program, [*pairs, *consts])
        joined = [reshape(x, (half, lanes)) for x in found]
        if count % 2:
            last = [slice_(x, (count - 1, 0), (count, lanes)) for x in rows]
            joined = [concatenate(parts, 0) for parts in zip(joined, last, strict=True)]
        rows, count = joined, half + count % 2
    return rows


_VECTOR_WINDOW: dict[str, Any] = {
    "sizes": (3,),
    "strides": (2,),
    "padding": ((1, 2),),
    "base_dilation": (2,),
    "window_dilation": (1,),
}


class ReduceWindow(ProgramReduction):
    """The elements in each window combined by `program`; see `Window` for the other fields.

    Padding consists of the scalars that the result begins with.
    """

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    base_dilation: tuple[int, ...]
    window_dilation: tuple[int, ...]
    samples = (
        sample(
            f64[3, 4], i32[3, 4], f64[()], i32[()],
            program=_argmax_program(), distinct=True, dtypes=("f64",), values={2: -9.0},
            sizes=(2, 2), strides=(1, 2), padding=((0, 0), (1, 1)),
            base_dilation=(1, 1), window_dilation=(1, 2),
        ),
        sample(
            f64[4], f64[4], f64[()], f64[()], f64[()],
            program=_affine_program(), dtypes=("f64",), values={4: 1.0}, **_VECTOR_WINDOW,
        ),
    )  # fmt: skip

    @property
    def window(self) -> Window:
        return Window(
            self.sizes, self.strides, self.padding, self.base_dilation, self.window_dilation
        )

    def result_shape(self, shape):
        check_window(self.name, shape, self.window)
        return self.window.result_shape(shape)

    def with_batch_dim(self):
        return ReduceWindow(self.program, *self.window.with_batch_dim(0))

    def decompose(self, *args):
        xs, starts, consts = self.split_operands(args)
        rows = [window_patches(x, start, self.window) for x, start in zip(xs, starts, strict=True)]
        return Reduce(self.program, (0,))(*rows, *starts, *consts)

    def lower(self, ctx, *values):
        xs, starts, consts = self.split_operands(values)
        (aval, *_) = ctx.avals_out
        # What combines two elements of a window cannot see values around it.
        if consts or not aval.size or not aval.shape:
            return ctx.module.emit(builtin_decomposition(self, tuple(ctx.avals_in)), values)
        n = len(xs)
        begin = cached_rewrite(Batch(aval.size, (None,) * n + (0,) * n, (0,) * n), self.program)
        return lower_window_program(ctx, self.window, xs, starts, self.program, begin)


def window_patches(x: Any, start: Any, window: Window) -> Any:
    """For each place in a window, in row-major order, what lies there in all the windows."""
    counts = window.result_shape(x.shape)
    x = pad(x, start, window.pad_config())
    for d, (size, stride, apart) in enumerate(
        zip(window.sizes, window.strides, window.window_dilation, strict=True)
    ):
        # The first d axes run over places in a window, the next d over windows.
        parts = []
        for k in range(size):
            first, limit, steps = [0] * x.ndim, list(x.shape), [1] * x.ndim
            # Where no window fits, its places may lie beyond the array.
            first[2 * d], steps[2 * d] = k * apart if counts[d] else 0, stride
            limit[2 * d] = first[2 * d] + dilate_dim(counts[d], stride)
            part = slice_(x, tuple(first), tuple(limit), tuple(steps))
            parts.append(reshape(part, (*part.shape[:d], 1, *part.shape[d:])))
        x = concatenate(parts, d)
    return reshape(x, (prod(window.sizes), *counts))
