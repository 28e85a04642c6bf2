"""Operations that only derivatives see: stopped ones, named values, sums over devices, refusals, zeros."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar

from functx import ops
from functx.core import tree
from functx.core.errors import ArgumentError, DTypeError, FunctxError, type_name
from functx.core.index_sets import DependentOperand, IndexSets, Sets
from functx.core.masks import inexact_mask, select_where
from functx.core.primitive import LinearInput, Primitive
from functx.core.primitive_families import HasNewStrides, View
from functx.core.program import Equation
from functx.core.samples import EXACT, f32, i32, sample
from functx.core.strides import MemoryOrder, Strides, strides_in_order
from functx.core.types import ShapedArray, is_inexact
from functx.core.typing import (
    ArrayLike,
    Cotangents,
    Dim,
    IRValue,
    Mask,
    NumPyArray,
    PyTree,
    PyTreeOrKeys,
    Tangent,
    Value,
)
from functx.ops.families import Linear, MapsLastDims, MovesElements, TransposedByVJP, UnchangedValue
from functx.ops.operands import batch_size

if TYPE_CHECKING:
    from functx.core.program import Atom
    from functx.lowering.stablehlo_emitter import LoweringContext
    from functx.ops.operands import RewriteContext, Simplified


class StopGradient(UnchangedValue):
    """`x` without derivative."""

    memory_order = MemoryOrder.OPERANDS
    differentiable = False
    samples = sample(f32[3], gradients={0: [0.0, 0.0, 0.0]}), sample(i32[3])


class Detach(UnchangedValue, View):
    """`x`, a constant for reverse mode; with `shares_memory` a view of it.

    Forward mode takes it as a constant too, unless `keeps_tangent`. A `writable` view may be written
    to where derivatives are recorded; `x` then has the new value, and keeps its derivative.
    """

    shares_memory: bool
    keeps_tangent: bool = False
    writable: bool = False
    is_constant_in_reverse_mode = True
    samples = (
        sample(f32[3], shares_memory=True, gradients={0: [0.0, 0.0, 0.0]}),
        sample(f32[3], shares_memory=False, gradients={0: [0.0, 0.0, 0.0]}),
    )

    @property
    def differentiable(self) -> bool:  # type: ignore[override]
        return self.keeps_tangent

    @property
    def has_own_history(self) -> bool:  # type: ignore[override]
        return self.writable

    def with_history(self, before: Value, value: Value) -> Value:
        return WithValue()(before, value) if is_inexact(value.dtype) else value

    def jvp(self, primals: Sequence[Value], tangents: Sequence[Tangent]) -> tuple[Value, Tangent]:
        return self(*primals), None if tangents[0] is None else self(tangents[0])

    def tangent_mask(self, masks: Sequence[Mask], args: Sequence[Value]) -> Mask:
        return masks[0]

    def transpose(self, ct: Value, x: Value) -> Cotangents:
        return (None,)

    def scatter_into_base(self, part: Value, index: int, x: Value, *args: Value) -> Value:
        return WithValue()(x, part) if self.writable and is_inexact(x.dtype) else part

    def view_strides(self, x: ShapedArray, strides: tuple[int, ...]) -> tuple[int, ...] | None:
        return strides if self.shares_memory else None


class WithValue(MapsLastDims):
    """The value `new` with the derivative of `x`: an array after a write that no derivative sees."""

    memory_order = MemoryOrder.OPERANDS
    rounding = EXACT
    samples = (
        sample(f32[3], f32[3], gradients={0: [1.0, 1.0, 1.0], 1: [0.0, 0.0, 0.0]}),
        sample(i32[3], i32[3]),
    )

    def abstract_eval(self, x: ShapedArray, new: ShapedArray) -> ShapedArray:
        if new.shape != x.shape or new.dtype != x.dtype:
            raise DTypeError(
                f"with_value: the new value must have the type of the array; got {new!r} for {x!r}"
            )
        return new

    def jvp(self, primals: Sequence[Value], tangents: Sequence[Tangent]) -> tuple[Value, Tangent]:
        return self(*primals), tangents[0]

    def vjp(
        self, ct: Value, out: Value, args: Sequence[Value], active: Sequence[bool]
    ) -> Cotangents:
        return ct, None

    def index_sets(self, sets: IndexSets, *operands: DependentOperand) -> Sets:
        return operands[0].sets

    def varying_outputs(
        self, avals: Sequence[ShapedArray], active: Sequence[bool]
    ) -> Sequence[bool]:
        return [active[0]]

    def cotangent_masks(self, mask: Mask, args: Sequence[Value]) -> Sequence[Mask]:
        return mask, None

    def simplify(self, context: RewriteContext, x: Atom, new: Atom) -> Simplified:
        return new

    def numpy(self, x: NumPyArray, new: NumPyArray) -> ArrayLike:
        return new

    def lower(self, ctx: LoweringContext, x: IRValue, new: IRValue) -> IRValue:
        return new


class CheckpointName(UnchangedValue, MovesElements, Linear):
    """`x` with the name `label`, to which policies of checkpoints refer."""

    label: str
    jax_primitive = "name"
    samples = sample(f32[3], label="x"), sample(i32[3], label="x")

    @classmethod
    def from_jax_params(cls, name: str) -> CheckpointName:
        return cls(name)

    def jvp(self, primals: Sequence[Value], tangents: Sequence[Tangent]) -> tuple[Value, Tangent]:
        return self(*primals), tangents[0]

    def transpose(self, ct: Value, x: Value) -> Cotangents:
        return (ct,)


def stop_gradient(x: PyTreeOrKeys) -> PyTree:
    """`x`, an array or a pytree of arrays, without derivative."""
    return tree.map(StopGradient(), x)


def checkpoint_name(x: PyTreeOrKeys, name: str) -> PyTree:
    """`x`, an array or a pytree of arrays, with a name to which policies of checkpoints refer.

    See `functx.checkpoint_policies.save_only_these_names`.

    >>> import functx
    >>> float(functx.checkpoint_name(2.0, "two"))
    2.0
    """
    if not isinstance(name, str):
        raise ArgumentError(f"checkpoint_name: the name must be a string; got {type_name(name)}")
    return tree.map(CheckpointName(name), x)


TRANSPOSED_KIND = {"argument": "sum", "result": "share", "sum": "sum", "share": "share"}


class DerivativeBoundary(UnchangedValue, TransposedByVJP, HasNewStrides):
    """`x`, an argument or a result of a differentiated function, or the cotangent of one.

    `axes` are names with lengths. `like` may be replicated along some of them, which is known only
    when the program is lowered for a mesh: then the kind "sum" sums `x` over these axes, "share"
    divides it by their length, and "argument" and "result" leave it alone.
    """

    kind: str
    axes: tuple[tuple[Hashable, int], ...]
    memory_order = MemoryOrder.OPERANDS
    linear = (0,)
    samples = (
        sample(f32[3], f32[2], kind="argument", axes=(("i", 4),)),
        sample(f32[3], f32[2], kind="share", axes=(("i", 4),)),
    )

    @property
    def named_axes(self) -> frozenset[Any]:  # type: ignore[override]
        return frozenset([name for name, _ in self.axes])

    @property
    def is_identity(self) -> bool:
        """Whether the output is always the operand."""
        return self.kind in ("argument", "result")

    def new_strides(
        self, avals: Sequence[ShapedArray], strides: Sequence[Strides], shape: tuple[int, ...]
    ) -> Strides:
        return strides_in_order(shape, strides[:1])

    def jvp(self, primals: Sequence[Value], tangents: Sequence[Tangent]) -> tuple[Value, Tangent]:
        (x, like), (t, _) = primals, tangents
        if self.is_identity:
            return x, t
        return self(x, like), None if t is None else self(t, like)

    def index_sets(self, sets: IndexSets, *operands: DependentOperand) -> Sets:
        return operands[0].sets

    def forward(self, args: Sequence[Value], active: Sequence[bool]) -> tuple[Any, Any]:
        # After differentiation an argument or a result is an ordinary value.
        out = args[0] if self.is_identity else self(*args)
        return [out], [out]

    def vjp(
        self, ct: Value, out: Value, args: Sequence[Value], active: Sequence[bool]
    ) -> Cotangents:
        return DerivativeBoundary(TRANSPOSED_KIND[self.kind], self.axes)(ct, args[1]), None

    def batch(self, args: Sequence[Value], dims: Sequence[Dim]) -> tuple[Value, Dim]:
        (x, like), (dim, _) = args, dims
        x = ops.batch_dim_at(x, dim, 0, batch_size(args, dims))
        return self(x, like), 0


class Refused(Primitive, abstract=True):
    """The placeholder of a tangent or cotangent that no rule computes.

    Its lowering raises `error`. It counts as linear in its operands, and is removed by dead-code
    elimination where no result needs it.
    """

    error: Exception
    result: ShapedArray
    name: ClassVar[str] = "refused"

    def abstract_eval(self, *avals: ShapedArray) -> ShapedArray:
        return self.result

    def jvp(self, primals: Sequence[Value], tangents: Sequence[Tangent]) -> tuple[Value, Tangent]:
        return self(*primals), self(*[t for t in tangents if t is not None])

    def transpose(self, ct: Value, *args: Value | LinearInput) -> Cotangents:
        return [
            Refused(self.error, x.aval)(ct) if isinstance(x, LinearInput) else None for x in args
        ]

    def batch(self, args: Sequence[Value], dims: Sequence[Dim]) -> tuple[Value, Dim]:
        size = batch_size(args, dims)
        result = self.result.update(shape=(size, *self.result.shape))
        return Refused(self.error, result)(*args), 0

    def lower(self, ctx: LoweringContext, *values: IRValue) -> IRValue:
        if isinstance(self.error, FunctxError):
            self.error.source = ctx.source
        raise self.error.with_traceback(None)


def refused(
    error: Exception, operands: Sequence[Value], avals: Sequence[ShapedArray], mask: Sequence[bool]
) -> list[Value | None]:
    """Placeholders, computed from `operands`, for the `avals` that `mask` marks; else None."""
    return [Refused(error, a)(*operands) if on else None for a, on in zip(avals, mask, strict=True)]


def raise_refusal(programs: Iterable[Iterable[Equation]]) -> None:
    """Raise the error of the first placeholder in `programs`, if there is one."""
    for eqn in chain(*programs):
        if type(eqn.primitive) is Refused:
            raise eqn.primitive.error.with_traceback(None)


def instantiate_zeros(
    values: Sequence[Value | None], like: Sequence[Value | ShapedArray]
) -> list[Value]:
    """`values` with zeros of the types of `like` in place of None."""
    return [ops.zeros_like(a) if x is None else x for x, a in zip(values, like, strict=True)]


def inexact_cotangents(cts: Cotangents, avals: Sequence[ShapedArray]) -> list[Value]:
    """The cotangents of the inexact outputs, with zeros for None."""
    mask = inexact_mask(avals)
    return instantiate_zeros(select_where(cts, mask), select_where(avals, mask))
