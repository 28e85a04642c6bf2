"""`reduce` and `reduce_window`: reductions by any function, over axes and within windows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from functx import ops
from functx.core import tree
from functx.core.errors import (
    ArgumentError,
    DTypeError,
    EffectError,
    ShapeError,
    TreeError,
    type_name,
)
from functx.core.masks import T, split_list
from functx.core.primitive import Primitive
from functx.core.program import Literal, Program
from functx.core.rewriting import apply, cached_rewrite
from functx.core.samples import LazySamples, f64, i32, sample
from functx.core.tracebacks import api_boundary
from functx.core.tracer import Tracer, aval_of
from functx.core.tracing import trace_closed
from functx.core.types import ShapedArray, kind
from functx.core.typing import ArrayLike, Avals, Dims, Function, IRValue, PyTree, Value, Values
from functx.ops.operands import batch_size, canonical_axis_sequence, check_axes, tuple_delete
from functx.transforms.batching import Batch, BatchWithInferredOutDims
from functx.transforms.control.body_tracing import (
    body_name,
    cast_outputs,
    cast_to_strong,
    check_callables,
    common_aval,
)
from functx.transforms.decompose import builtin_decomposition
from functx.transforms.tracing_api import TracedFunction, trace_function

if TYPE_CHECKING:
    from functx.lowering.stablehlo_emitter import LoweringContext


class ProgramReduction(Primitive, abstract=True):
    """A reduction of arrays of one shape by `program`, which combines two elements.

    Operands: n arrays, n initial scalars, then consts. The program takes an element of each
    array, another of each, and the consts; it must be associative.
    """

    program: Program
    multiple_results = True

    def split_operands(self, items: Sequence[T]) -> tuple[Sequence[T], Sequence[T], Sequence[T]]:
        """Split `items`, one an operand, into those of the arrays, initial values and consts."""
        n = len(self.program.outputs)
        xs, init_values, consts = split_list(items, [n, n])
        return xs, init_values, consts

    def result_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the results for arrays of `shape`."""
        raise NotImplementedError

    def with_batch_dim(self) -> Primitive:
        """The same operation on arrays with one more dimension, the first."""
        raise NotImplementedError

    def abstract_eval(self, *avals: ShapedArray) -> Avals:
        xs, init_values, consts = self.split_operands(avals)
        shape, elements = xs[0].shape, self.program.in_avals[: len(xs)]
        types = [(a.shape, a.dtype) for a in (*xs, *init_values, *consts)]
        expected = [(s, a.dtype) for s in (shape, ()) for a in elements]
        expected += [(a.shape, a.dtype) for a in self.program.in_avals[2 * len(xs) :]]
        if types != expected:
            raise ShapeError(
                f"{self.name}: operands must be arrays of one shape and scalars, as the program "
                f"takes them; got {list(avals)} for {self.program.in_avals}"
            )
        out_shape = self.result_shape(shape)
        return [x.update(shape=out_shape, weak_type=False) for x in xs]

    def batch(self, args: Values, dims: Dims) -> tuple[Values, Dims]:
        size = batch_size(args, dims)
        xs, *others = self.split_operands(args)
        x_dims, *other_dims = self.split_operands(dims)
        if all(d is None for group in other_dims for d in group):
            xs = [ops.batch_dim_at(x, d, 0, size) for x, d in zip(xs, x_dims, strict=True)]
            return self.with_batch_dim()(*xs, *others[0], *others[1]), [0] * len(xs)
        element_avals = tuple(
            [
                aval_of(x) if d is None else aval_of(x).update(shape=tuple_delete(x.shape, (d,)))
                for x, d in zip(args, dims, strict=True)
            ]
        )
        batch = BatchWithInferredOutDims(size, tuple(dims))
        batched, out_dims = cached_rewrite(batch, builtin_decomposition(self, element_avals))
        return apply(None, batched, args), out_dims


def _argmax_program() -> Program:
    def better(x: Value, n: Value, y: Value, m: Value) -> list[Value]:
        return [ops.select(ops.gt(y, x), y, x), ops.select(ops.gt(y, x), m, n)]

    return trace_closed(better, [f64[()], i32[()], f64[()], i32[()]], name="better")


def _affine_program() -> Program:
    # Associative and not commutative in the second pair: (a, b) is the map t -> a t + b.
    def compose(a: Value, b: Value, c: Value, d: Value, scale: Value) -> list[Value]:
        return [ops.mul(ops.mul(a, c), scale), ops.add(ops.mul(ops.mul(c, b), scale), d)]

    return trace_closed(compose, [f64[()]] * 5, name="compose")


class Reduce(ProgramReduction):
    """The elements along `axes`, which leave the shape, combined by `program`.

    It combines halves of the elements, many at once; XLA's reduction would take one by one.
    """

    axes: tuple[int, ...]
    samples = LazySamples(lambda: (
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
    ))  # fmt: skip

    def result_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        check_axes(self.name, self.axes, len(shape))
        return tuple_delete(shape, self.axes)

    def with_batch_dim(self) -> Primitive:
        return Reduce(self.program, tuple([axis + 1 for axis in self.axes]))

    def decompose(self, *args: Value) -> Values:
        xs, init_values, consts = self.split_operands(args)
        shape = xs[0].shape
        other_axes = tuple_delete(range(len(shape)), self.axes)
        axes = tuple(sorted(self.axes))
        count, out_shape = prod([shape[a] for a in axes]), tuple_delete(shape, axes)
        num_results = prod(out_shape)
        if not count or not num_results:
            return [ops.broadcast_in_dim(start, out_shape, ()) for start in init_values]
        rows = [
            ops.reshape(ops.permute_dims(x, (*axes, *other_axes)), (count, num_results)) for x in xs
        ]
        totals = [ops.reshape(x, (num_results,)) for x in tree_reduce(self.program, rows, consts)]
        n, none = len(xs), (None,) * len(consts)
        combine = Batch(num_results, (None,) * n + (0,) * n + none, (0,) * n)
        outs = apply(combine, self.program, [*init_values, *totals, *consts])
        return [ops.reshape(x, out_shape) for x in outs]


def tree_reduce(program: Program, rows: Values, consts: Values) -> Values:
    """One row that combines all rows of arrays, by combining neighbours until one is left."""
    count, num_columns = rows[0].shape
    n, none = len(rows), (None,) * len(consts)
    while count > 1:
        half = count // 2
        pairs = [
            ops.reshape(
                ops.slice(x, (first, 0), (2 * half, num_columns), (2, 1)), (half * num_columns,)
            )
            for first in (0, 1)
            for x in rows
        ]
        combine = Batch(half * num_columns, (0,) * (2 * n) + none, (0,) * n)
        combined = apply(combine, program, [*pairs, *consts])
        joined = [ops.reshape(x, (half, num_columns)) for x in combined]
        if count % 2:
            last = [ops.slice(x, (count - 1, 0), (count, num_columns)) for x in rows]
            joined = [ops.concatenate(parts, 0) for parts in zip(joined, last, strict=True)]
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

    The padding consists of the initial values.
    """

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    base_dilation: tuple[int, ...]
    window_dilation: tuple[int, ...]
    samples = LazySamples(lambda: (
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
    ))  # fmt: skip

    @property
    def window(self) -> ops.Window:
        return ops.Window(
            self.sizes, self.strides, self.padding, self.base_dilation, self.window_dilation
        )

    def result_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        ops.check_window(self.name, shape, self.window)
        return self.window.result_shape(shape)

    def with_batch_dim(self) -> Primitive:
        return ReduceWindow(self.program, *self.window.with_batch_dim(0))

    def decompose(self, *args: Value) -> Values:
        xs, init_values, consts = self.split_operands(args)
        patches = [
            window_patches(x, init_value, self.window)
            for x, init_value in zip(xs, init_values, strict=True)
        ]
        return Reduce(self.program, (0,))(*patches, *init_values, *consts)

    def lower(self, ctx: LoweringContext, *values: IRValue) -> Sequence[IRValue]:
        xs, init_values, consts = self.split_operands(values)
        (aval, *_) = ctx.avals_out
        # XLA's reduction cannot take consts.
        if consts or not aval.size or not aval.shape:
            return ctx.module.emit(builtin_decomposition(self, tuple(ctx.avals_in)), values)
        n = len(xs)
        with_init_values = cached_rewrite(
            Batch(aval.size, (None,) * n + (0,) * n, (0,) * n), self.program
        )
        return ops.lower_window_program(
            ctx, self.window, xs, init_values, self.program, with_init_values
        )


def window_patches(x: Value, init_value: ArrayLike, window: ops.Window) -> Value:
    """For each position in a window, in row-major order, the elements there of all windows."""
    counts = window.result_shape(x.shape)
    x = ops.pad(x, init_value, window.pad_config())
    for d, (size, stride, spacing) in enumerate(
        zip(window.sizes, window.strides, window.window_dilation, strict=True)
    ):
        # The first d axes run over positions in a window, the next d over windows.
        parts = []
        for k in range(size):
            first, limit, steps = [0] * x.ndim, list(x.shape), [1] * x.ndim
            # If no window fits, its positions may be out of range.
            first[2 * d], steps[2 * d] = k * spacing if counts[d] else 0, stride
            limit[2 * d] = first[2 * d] + ops.dilate_dim(counts[d], stride)
            part = ops.slice(x, tuple(first), tuple(limit), tuple(steps))
            parts.append(ops.reshape(part, (*part.shape[:d], 1, *part.shape[d:])))
        x = ops.concatenate(parts, d)
    return ops.reshape(x, (prod(window.sizes), *counts))


class Monoid(NamedTuple):
    """The reductions of an associative operation; `neutral` is its neutral element by dtype."""

    reduction: type[Primitive]
    neutral: Callable[[Any], Any]
    window_reduction: type[Primitive] | None = None


_MONOIDS: dict[type[Primitive], Monoid] = {
    ops.Add: Monoid(ops.ReduceSum, lambda dtype: 0, ops.ReduceWindowSum),
    ops.Mul: Monoid(ops.ReduceProd, lambda dtype: 1),
    ops.Max: Monoid(ops.ReduceMax, ops.lowest, ops.ReduceWindowMax),
    ops.Min: Monoid(ops.ReduceMin, ops.highest, ops.ReduceWindowMin),
    ops.And: Monoid(ops.ReduceAnd, lambda dtype: -1 if kind(dtype) == "i" else ops.highest(dtype)),
    ops.Or: Monoid(ops.ReduceOr, lambda dtype: 0),
    ops.Xor: Monoid(ops.ReduceXor, lambda dtype: 0),
}


def monoid_of(program: Program) -> tuple[Primitive, Monoid] | None:
    """The operation and its monoid if `program` only applies a known one to its two inputs."""
    if len(program.inputs) != 2 or len(program.equations) != 1:
        return None
    (eqn,) = program.equations
    monoid = _MONOIDS.get(type(eqn.primitive))
    if monoid is None or eqn.outputs != program.outputs or {*eqn.inputs} != {*program.inputs}:
        return None
    return eqn.primitive, monoid


class ReduceCall(NamedTuple):
    """A checked call: leaves of the operands and initial values, the program, and its consts."""

    xs: list[Any]
    init_values: list[Any]
    program: Program
    consts: list[Value]
    out_tree: tree.TreeDef

    def monoid(self, windowed: bool) -> tuple[Primitive, Any, Any] | None:
        """The operation, its reduction, and the initial value unless neutral; None without."""
        known = monoid_of(self.program) if not self.consts else None
        if known is None:
            return None
        operation, monoid = known
        reduction: Any = monoid.window_reduction if windowed else monoid.reduction
        dtype = aval_of(self.xs[0]).dtype
        if reduction is None or kind(dtype) not in reduction.accepts:
            return None
        init_value = self.init_values[0]
        neutral = kind(dtype) != "c" or reduction in (
            ops.ReduceSum,
            ops.ReduceProd,
            ops.ReduceWindowSum,
        )
        if neutral and _equals_number(init_value, monoid.neutral(dtype)):
            init_value = None
        return operation, reduction, init_value


def _equals_number(x: object, number: complex) -> bool:
    """Whether `x` is known to equal `number`."""
    if type(x) is Tracer:
        x = x.atom
    value = x.value if type(x) is Literal else x
    return isinstance(value, (bool, int, float, complex, np.generic, np.ndarray)) and bool(
        value == number
    )


@api_boundary
def reduce(
    operands: PyTree, init_values: PyTree, computation: Function, dimensions: Sequence[int]
) -> PyTree:
    """Combine the elements of `operands` along `dimensions` by `computation`, two at a time.

    `operands` is an array or a pytree of arrays of one shape; `init_values` has the same
    structure, of scalars of the same dtypes. `computation(x, y)` takes two scalars, or two such
    pytrees of them, and returns another. It must be associative; `init_values` is combined with
    the result once. It may close over values. Returns arrays without the axes in `dimensions`. A
    computation that is a single operation with a reduction, such as `lax.add`, becomes that
    reduction, with its derivative for ties.

    Raises TreeError, ShapeError and DTypeError if operands, initial values and results of
    `computation` do not match.

    >>> import functx, numpy
    >>> x = numpy.array([[1.0, 2.0], [3.0, 4.0]])
    >>> functx.lax.reduce(x, 1.0, lambda x, y: x * y, (1,)).tolist()
    [2.0, 12.0]
    """
    call = _check_reduce_call("reduce", operands, init_values, computation)
    shape = aval_of(call.xs[0]).shape
    axes = canonical_axis_sequence(dimensions, len(shape), "reduce: dimensions")
    monoid = call.monoid(windowed=False)
    if monoid is None:
        outs = Reduce(call.program, axes)(*call.xs, *call.init_values, *call.consts)
        return tree.unflatten(call.out_tree, outs)
    operation, reduction, init_value = monoid
    total = reduction(axes)(call.xs[0])
    return tree.unflatten(
        call.out_tree, [total if init_value is None else operation(init_value, total)]
    )


@api_boundary
def reduce_window(
    operand: PyTree,
    init_value: PyTree,
    computation: Function,
    window_dimensions: Sequence[int],
    window_strides: Sequence[int] | None = None,
    padding: str | Sequence[tuple[int, int]] = "VALID",
    base_dilation: Sequence[int] | None = None,
    window_dilation: Sequence[int] | None = None,
) -> PyTree:
    """Combine the elements in each window of `operand` by `computation`, two at a time.

    `operand`, `init_value` and `computation` are as in `reduce`. The windows begin at multiples
    of `window_strides`; their elements are `window_dilation` apart. The operand gets
    `base_dilation - 1` holes between neighbours, and `padding`: "VALID", "SAME", "SAME_LOWER",
    or a pair `(low, high)` for each dimension. Holes and padding are filled with `init_value`.
    The derivative of a maximum or minimum belongs to the first of the elements that tie.

    Raises as `reduce`, and ShapeError, ValueRangeError and ArgumentError for windows that do
    not fit the operand.

    >>> import functx, numpy
    >>> x = numpy.arange(6.0)
    >>> functx.lax.reduce_window(x, 0.0, functx.lax.add, (2,), (2,), "VALID").tolist()
    [1.0, 5.0, 9.0]
    """
    call = _check_reduce_call("reduce_window", operand, init_value, computation)
    window = ops.make_window(
        "reduce_window",
        aval_of(call.xs[0]).shape,
        window_dimensions,
        window_strides,
        padding,
        base_dilation,
        window_dilation,
    )
    monoid = call.monoid(windowed=True)
    if monoid is None:
        outs = ReduceWindow(call.program, *window)(*call.xs, *call.init_values, *call.consts)
        return tree.unflatten(call.out_tree, outs)
    operation, reduction, start = monoid
    (x,) = call.xs
    if start is not None and reduction is ops.ReduceWindowSum:
        ops.check_window("reduce_window", aval_of(x).shape, window)
        x, window = ops.pad(x, start, window.pad_config()), window.without_padding()
    total = reduction(*window)(x)
    return tree.unflatten(call.out_tree, [total if start is None else operation(start, total)])


def _check_reduce_call(
    caller: str, operands: PyTree, init_values: PyTree, computation: Function
) -> ReduceCall:
    """The arguments of `reduce` or `reduce_window`, checked, with `computation` traced."""
    check_callables(caller, computation=computation)
    caller = body_name(caller, computation)
    xs, structure = tree.flatten(operands)
    init_leaves, init_tree = tree.flatten(init_values)
    tree.check_same_structure(structure, init_tree, f"{caller}: the initial values", "the operands")
    if not xs:
        raise TreeError(f"{caller}: there must be at least one operand; got {operands!r}")
    paths = [tree.keystr(path) for path, _ in tree.leaves_with_path(operands)]
    avals = [_operand_aval(caller, "operand", path, x) for path, x in zip(paths, xs, strict=True)]
    scalars = [ShapedArray((), a.dtype) for a in avals]
    for path, aval in zip(paths, avals, strict=True):
        if aval.shape != avals[0].shape:
            raise ShapeError(
                f"{caller}: operands must have one shape; got operand{paths[0]}: {avals[0]!r} and "
                f"operand{path}: {aval!r}"
            )
    for path, x, scalar in zip(paths, init_leaves, scalars, strict=True):
        _check_initial_value(caller, path, x, scalar)
    in_tree = tree.structure(((operands, operands), {}))
    traced = trace_function(computation, in_tree, [*scalars, *scalars], "reduce")
    tree.check_same_structure(
        structure, traced.out_tree, f"{caller}: what the computation returns", "the operands"
    )
    _check_computation(caller, paths, traced, scalars)
    program = cast_outputs(traced.program, scalars)
    init_scalars = [
        cast_to_strong(x, scalar) for x, scalar in zip(init_leaves, scalars, strict=True)
    ]
    return ReduceCall(xs, init_scalars, program, traced.captured, structure)


def _check_initial_value(caller: str, path: str, x: object, scalar: ShapedArray) -> None:
    """Raise unless the initial value `x` of the operand at `path` is a number of the type `scalar`."""
    aval = _operand_aval(caller, "initial value", path, x)
    if aval.shape:
        raise ShapeError(
            f"{caller}: initial values must be scalars; got {aval!r} for operand{path}"
        )
    if common_aval((scalar, aval)) is not scalar:
        raise DTypeError(
            f"{caller}: an initial value must have the dtype of its operand; got {aval!r} for "
            f"operand{path}: {scalar.dtype}",
            fix="Convert it with astype, or give a Python number, which takes that dtype.",
        )


def _check_computation(
    caller: str, paths: Sequence[str], traced: TracedFunction, scalars: Sequence[ShapedArray]
) -> None:
    """Raise unless a traced computation returns the types `scalars`, and does nothing else."""
    traced.refuse_writes(caller)
    for path, out, scalar in zip(paths, traced.program.out_avals, scalars, strict=True):
        if common_aval((scalar, out)) is not scalar:
            raise (ShapeError if out.shape else DTypeError)(
                f"{caller}: the computation must return scalars of the types that it takes; got "
                f"{out!r} for operand{path}, of which it takes {scalar!r}",
                fix="Convert the result with astype, or reduce operands of the wider dtype.",
            )
    if traced.program.effects:
        raise EffectError(
            f"{caller}: the computation must have no effects, since it is called as often as the "
            f"compiler sees fit; got {sorted(map(repr, traced.program.effects))}",
            fix="Use scan for effects in an order.",
        )


def _operand_aval(caller: str, role: str, path: str, x: object) -> ShapedArray:
    """The type of an operand or initial value; raises unless it is an array or a number."""
    try:
        return aval_of(x)
    except ArgumentError:
        raise ArgumentError(
            f"{caller}: each {role} must be an array or a number; got {type_name(x)}"
            + (f" at {path}" if path else "")
        ) from None
