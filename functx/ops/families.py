"""Families of primitives: base classes with the rules that their members share."""

from __future__ import annotations

from collections.abc import Callable, KeysView, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import numpy as np

from functx import ops
from functx.core.backend import backend
from functx.core.builder import Builder
from functx.core.errors import DTypeError, ShapeError
from functx.core.index_sets import DependentOperand, IndexSets, Sets
from functx.core.masks import mask_of
from functx.core.primitive import LinearInput, Primitive, is_linear_input, operand_aval, rule
from functx.core.primitive_families import HasJet
from functx.core.program import Atom, Var
from functx.core.samples import EXACT
from functx.core.strides import MemoryOrder
from functx.core.tracer import Tracer, aval_of
from functx.core.types import DType, ShapedArray, is_inexact, kind
from functx.core.typing import (
    ArrayLike,
    Cotangent,
    Function,
    IRValue,
    Mask,
    NumPyArray,
    Tangent,
    Value,
    Values,
)
from functx.ops.operands import batch_size, literal, promote_scalars

if TYPE_CHECKING:
    from functx.lowering.stablehlo_emitter import LoweringContext
    from functx.transforms.coefficients import Series
    from functx.transforms.series import SeriesEvaluator


class Elementwise(Primitive, abstract=True):
    """An elementwise operation on operands of one dtype and of one shape, or scalars.

    The Jacobian with respect to each operand is diagonal, so `jvp` and `vjp` multiply by the same
    derivative. A subclass defines it once, as `partial`.
    """

    memory_order = MemoryOrder.OPERANDS
    accepts: ClassVar[str] = "biufc"
    """The kinds of dtype the operation takes: bool, int, uint, float, complex."""
    linear: ClassVar[tuple[int, ...]] = ()
    """The operands in which the operation is linear while the others are fixed."""
    widens_one_byte_floats: ClassVar[bool] = False
    """Whether the value and the derivatives of floats of one byte are those of float32, rounded.

    In such a dtype, the steps of a formula overflow, often to nan, where its result does not.
    """

    @rule
    def partial(self, i: int, t: Value, out: Value, *args: Value) -> Tangent:
        """`t` times the partial derivative of the output in operand `i`.

        `out` is the output, None when operand `i` is one of those in `linear`.
        """
        raise self.missing_rule_error("partial")

    def rounded_partial(self, i: int, t: Value, out: Value, *args: Value) -> Tangent:
        """`partial`, by way of float32 where `computes_in_float32` says so."""
        if out is None or not self.computes_in_float32(t.dtype):
            return self.partial(i, t, out, *args)
        wide = [ops.convert_element_type(x, np.float32) for x in args]
        t = ops.convert_element_type(t, np.float32)
        term = self.partial(i, t, self(*wide), *wide)
        return None if term is None else ops.convert_element_type(term, args[i].dtype)

    def computes_in_float32(self, dtype: DType) -> bool:
        """Whether operands of `dtype` are converted to float32, and what comes of them back."""
        is_narrow = self.widens_one_byte_floats and dtype.itemsize == 1 and kind(dtype) == "f"
        return is_narrow and not self.is_user_defined

    @rule
    def nonzero_derivative_mask(self, i: int, *args: Value) -> Mask:
        """The mask of elements where the output varies with operand `i`; None stands for all."""
        return None

    @rule
    def preserves_zero(self, i: int, *args: Value) -> bool:
        """Whether `partial` of a zero `t` is zero even if operands are nan or infinite."""
        return False

    @rule
    def abstract_eval(self, *avals: ShapedArray) -> ShapedArray:
        check_same_dtype(self, avals)
        return ShapedArray(
            elementwise_shape(self, avals),
            self.out_dtype(avals[0].dtype),
            all([aval.weak_type for aval in avals]),
        )

    def out_dtype(self, dtype: DType) -> DType:
        return dtype

    @rule
    def jvp(self, primals: Values, tangents: Sequence[Tangent]) -> tuple[Value, Tangent]:
        out = self(*primals)
        total = None
        for i, t in enumerate(tangents):
            if t is not None:
                term = self.rounded_partial(i, t, out, *primals)
                if term is None:
                    continue
                if term is not t and not self.preserves_zero(i, *primals):
                    term = apply_mask(mask_of(t), term)
                term = broadcast_scalar(term, out.shape)
                total = term if total is None else ops.add(total, term)
        return out, total

    def tangent_mask(self, masks: Sequence[Mask | bool], args: Values) -> Mask:
        varying_masks = [mask for mask, x in zip(masks, args, strict=True) if is_inexact(x.dtype)]
        # Where no operand has a mask, the output is taken to vary everywhere.
        if len(args) > 1 and all(mask is None for mask in varying_masks):
            return None
        total = None
        for i, mask in enumerate(masks):
            if not isinstance(mask, bool):
                mask = combine_masks(mask, self.nonzero_derivative_mask(i, *args))
                if mask is None:
                    return None
                total = mask if total is None else unite_masks(total, mask)
                if total is None:
                    return None
        return total

    def masked_tangent(self, mask: Mask, t: Value, primals: Values) -> Value:
        """`t`, zero where `mask` is false, if a subclass computed it by its own `jvp`."""
        if type(self).jvp is Elementwise.jvp or self.preserves_zero(0, *primals):
            return t
        return apply_mask(mask, t)

    @rule
    def vjp(self, ct: Value, out: Value, args: Values, active: Sequence[bool]) -> list[Cotangent]:
        # An infinite derivative times a zero cotangent gives no nan under the mask.
        mask, cts = mask_of(ct), []
        for i, x in enumerate(args):
            term = self.rounded_partial(i, ct, out, *args) if active[i] else None
            if term is not None:
                if term is not ct and not self.preserves_zero(i, *args):
                    term = apply_mask(mask, term)
                term = unbroadcast_scalar(term, x)
            cts.append(term)
        return cts

    def masked_cotangents(self, mask: Value, cts: Sequence[Cotangent]) -> Sequence[Cotangent]:
        """`cts`, zero where `mask` is false, if a rule computed them that knows no masks."""
        if type(self).vjp is Elementwise.vjp and not self.is_user_defined:
            return cts
        return [
            apply_mask(mask, ct) if ct is not None and mask.shape in ((), ct.shape) else ct
            for ct in cts
        ]

    def cotangent_masks(self, mask: Mask, args: Values) -> list[Mask]:
        operand_masks = [
            combine_masks(mask, self.nonzero_derivative_mask(i, *args)) for i in range(len(args))
        ]
        return [
            operand_mask
            if operand_mask is not None and operand_mask.shape in ((), x.shape)
            else None
            for operand_mask, x in zip(operand_masks, args, strict=True)
        ]

    @rule
    def transpose(self, ct: Value, *args: Value) -> list[Cotangent]:
        return Elementwise.vjp(self, ct, None, args, [is_linear_input(x) for x in args])  # type: ignore[arg-type]

    def index_sets(self, sets: IndexSets, *operands: DependentOperand) -> Sets:
        return sets.union(*[x.sets for x in operands])

    def batch(self, args: Values, dims: Sequence[int | None]) -> tuple[Value, int]:
        args, dim = align_batch_dims(args, dims)
        return self(*args), dim


class Unary(Elementwise, abstract=True):
    """An elementwise operation on one operand; a subclass defines `derivative(out, x)`."""

    @rule
    def derivative(self, out: Value, x: Value) -> Value:
        raise self.missing_rule_error("derivative")

    @rule
    def partial(self, i: int, t: Value, out: Value, *args: Value) -> Tangent:
        return ops.mul(t, self.derivative(out, *args))


class Inexact(Unary, abstract=True):
    """An elementwise function of one real or complex floating point operand."""

    accepts = "fc"
    widens_one_byte_floats = True


class RealFunction(Inexact, abstract=True):
    """An elementwise function of one real floating point operand."""

    accepts = "f"


class Binary(Elementwise, abstract=True):
    """An elementwise operation on two operands; a subclass defines `partial`."""


class Comparison(Elementwise, abstract=True):
    """A comparison of two operands, elementwise, with a boolean output that never varies."""

    differentiable = False

    def abstract_eval(self, *avals: ShapedArray) -> ShapedArray:
        check_same_dtype(self, avals)
        return ShapedArray(elementwise_shape(self, avals), ops.BOOL)


class Bitwise(Elementwise, abstract=True):
    """An elementwise operation on integers or booleans, without derivatives."""

    differentiable = False
    accepts = "biu"


class Linear(Primitive, abstract=True):
    """An operation linear in all operands together: the tangent is the operation of the tangents."""

    is_element_mapping: ClassVar[bool] = False
    """Whether the operation has one operand and each element of it goes to one output element."""

    def jvp(self, primals: Values, tangents: Sequence[Tangent]) -> tuple[Value, Tangent]:
        tangents = [
            ops.zeros_like(x) if t is None else t for x, t in zip(primals, tangents, strict=True)
        ]
        return self(*primals), self(*tangents)

    def vjp(
        self, ct: Value, out: Value, args: Values, active: Sequence[bool]
    ) -> Sequence[Cotangent]:
        return self.transpose(ct, *[LinearInput(aval_of(x)) for x in args])

    def tangent_mask(self, masks: Sequence[Mask], args: Values) -> Mask:
        if masks[0] is None or not self.is_element_mapping or not masks[0].shape:
            return masks[0] if self.is_element_mapping else None
        return self(masks[0])

    def cotangent_masks(self, mask: Mask, args: Values) -> Sequence[Mask]:
        if mask is None or not self.is_element_mapping or not mask.shape:
            return [mask if self.is_element_mapping else None] * len(args)
        return self.transpose(mask, LinearInput(operand_aval(args[0]).update(dtype=ops.BOOL)))


class TransposedByVJP(Primitive, abstract=True):
    """An operation whose `vjp` reads neither the output nor the operands that it is linear in.

    That rule is its `transpose` too, with these operands as the active ones. The `jvp` here is that of
    operations which are jointly linear in their inexact operands; others define their own.
    """

    vjp: ClassVar[Callable[..., Any]]

    @rule
    def jvp(self, primals: Values, tangents: Sequence[Tangent]) -> tuple[Any, Any]:
        changes = [
            x if not is_inexact(x.dtype) else ops.zeros_like(x) if t is None else t
            for x, t in zip(primals, tangents, strict=True)
        ]
        return self(*primals), self(*changes)

    @rule
    def transpose(self, ct: Any, *args: Value) -> Sequence[Cotangent]:
        return self.vjp(ct, None, args, [is_linear_input(x) for x in args])


class Bilinear(TransposedByVJP, HasJet, abstract=True):
    """A product of two operands, linear in each of them."""

    def lhs_cotangent(self, ct: Value, x: Value, y: Value) -> Value:
        """The cotangent of the first operand `x`, of which only the type is read."""
        raise NotImplementedError

    def rhs_cotangent(self, ct: Value, x: Value, y: Value) -> Value:
        """The cotangent of the second operand `y`, of which only the type is read."""
        raise NotImplementedError

    def jvp(self, primals: Values, tangents: Sequence[Tangent]) -> tuple[Value, Tangent]:
        (x, y), (dx, dy) = primals, tangents
        terms = [self(dx, y)] if dx is not None else []
        terms += [self(x, dy)] if dy is not None else []
        return self(x, y), reduce(ops.add, terms)

    def vjp(self, ct: Value, out: Value, args: Values, active: Sequence[bool]) -> list[Cotangent]:
        x, y = args
        return [
            self.lhs_cotangent(ct, x, y) if active[0] else None,
            self.rhs_cotangent(ct, x, y) if active[1] else None,
        ]

    def jet(self, evaluator: SeriesEvaluator, x: Series, y: Series) -> Series:
        return evaluator.product(self, x, y)


class MovesElements(Primitive, abstract=True):
    """An operation each of whose output elements is an element of an operand, or constant.

    Index sets are numbers in arrays, so the operation itself moves them; 0 stands for what is constant.
    """

    rounding = EXACT

    def index_sets(self, sets: IndexSets, *operands: DependentOperand) -> Any:
        numbers = [
            np.zeros(x.aval.shape, np.int32) if x.sets is None else np.asarray(x.sets, order="C")
            for x in operands
        ]
        if self.numpy is not None:
            return self.numpy(*numbers)
        return backend.evaluate_eagerly(self, numbers)


class UnchangedValue(Primitive, abstract=True):
    """An operation whose value is that of its first operand."""

    rounding = EXACT

    @rule
    def abstract_eval(self, x: ShapedArray, *others: ShapedArray) -> ShapedArray:
        return x

    @rule
    def batch(self, args: Values, dims: Sequence[int | None]) -> tuple[Value, int | None]:
        return self(*args), dims[0]

    def numpy(self, x: NumPyArray, *others: NumPyArray) -> NumPyArray:
        return x

    @rule
    def lower(self, ctx: LoweringContext, x: IRValue, *others: IRValue) -> IRValue:
        return x


class MapsLastDims(Primitive, abstract=True):
    """An operation on the last dimensions of its operands, once for each index of the others."""

    def batch(self, args: Values, dims: Sequence[int | None]) -> tuple[Any, Any]:
        outs = self(*ops.batch_dims_at(args, dims))
        return outs, [0] * len(outs) if self.multiple_results else 0


class ShiftsAxis(Primitive, abstract=True):
    """An operation along a field `axis`, whose operands and outputs have the same dimensions."""

    def batch(self, args: Values, dims: Sequence[int | None]) -> tuple[Any, Any]:
        dim = next(d for d in dims if d is not None)
        batched = self.replace(axis=self.axis + (self.axis >= dim))  # type: ignore[attr-defined]
        outs = batched(*ops.batch_dims_at(args, dims, dim))
        return outs, [dim] * len(outs) if self.multiple_results else dim


class Constant(Primitive, abstract=True):
    """An operation without operands, whose output is always the same."""

    differentiable = False


def lower_to(operation: Callable[..., IRValue]) -> Callable[..., IRValue]:
    """The rule `lower` of a primitive that is one `operation` of StableHLO, without attributes."""

    def lower(self: Primitive, ctx: LoweringContext, *values: IRValue) -> IRValue:
        return operation(*values)

    return lower


class _ChecksDType(Protocol):
    name: ClassVar[str]
    accepts: ClassVar[str]


def check_same_dtype(primitive: _ChecksDType, avals: Sequence[ShapedArray]) -> None:
    dtype = avals[0].dtype
    if any(aval.dtype != dtype for aval in avals[1:]):
        raise DTypeError(
            f"{primitive.name}: operands must have one dtype; got "
            + " and ".join(map(repr, avals)),
            fix="Convert with astype, or use the function of functx.numpy, which promotes.",
        )
    if kind(dtype) not in primitive.accepts:
        kinds = {"b": "bool", "i": "int", "u": "uint", "f": "float", "c": "complex"}
        raise DTypeError(
            f"{primitive.name}: operands must be "
            + " or ".join(kinds[k] for k in primitive.accepts)
            + f"; got {avals[0]!r}",
            fix="Convert with astype.",
        )


def elementwise_shape(primitive: Primitive, avals: Sequence[ShapedArray]) -> tuple[int, ...]:
    """The shape of the operands that are not scalars; raises ShapeError if they have several."""
    shape: tuple[int, ...] = ()
    for aval in avals:
        if aval.shape != shape and aval.shape:
            if shape:
                raise ShapeError(
                    f"{primitive.name}: operands must have one shape, or be scalars; got "
                    + " and ".join(map(repr, avals)),
                    fix="Broadcast with functx.numpy.broadcast_to, or use functx.numpy, which does.",
                )
            shape = aval.shape
    return shape


def align_batch_dims(args: Values, dims: Sequence[int | None]) -> tuple[list[Value], int]:
    """The operands of an elementwise operation with one common batch dimension, which is returned too.

    Unbatched operands are broadcast, except scalars. Batched scalars are broadcast to the shape.
    """
    rank = max(x.ndim - (d is not None) for x, d in zip(args, dims, strict=True))
    size = batch_size(args, dims)
    dim = next(
        (d for x, d in zip(args, dims, strict=True) if d is not None and x.ndim == rank + 1), 0
    )
    shape: tuple[int, ...] = next(
        (x.shape for x, d in zip(args, dims, strict=True) if d is not None and x.ndim == rank + 1),
        (),
    )
    if not shape:
        element_shape = next(
            x.shape for x, d in zip(args, dims, strict=True) if d is None and x.ndim == rank
        )
        shape = (size, *element_shape)
    aligned = []
    for x, d in zip(args, dims, strict=True):
        if d is None:
            other_dims = [i for i in range(rank + 1) if i != dim]
            aligned.append(x if x.ndim == 0 else ops.broadcast_in_dim(x, shape, tuple(other_dims)))
        elif x.ndim < rank + 1:
            aligned.append(ops.broadcast_in_dim(x, shape, (dim,)))
        else:
            aligned.append(ops.moveaxis(x, d, dim))
    return aligned, dim


def combine_masks(mask: Mask, other: Mask) -> Mask:
    """The conjunction of two masks; None stands for true everywhere."""
    if mask is None or other is None:
        return other if mask is None else mask
    if isinstance(mask, Tracer) and isinstance(other, Tracer) and mask.shape == other.shape:
        terms, others = mask_terms(mask), mask_terms(other)
        if terms >= others or others >= terms:
            return mask if terms >= others else other
    return ops.bitwise_and(mask, other)


def unite_masks(mask: Value, other: Value) -> Mask:
    """The disjunction of two masks; None where it is known to be true everywhere.

    So it is for a value that both branches of a selection read.
    """
    if isinstance(mask, Tracer) and isinstance(other, Tracer) and mask.shape == other.shape:
        terms, others = mask_terms(mask), mask_terms(other)
        if terms <= others or others <= terms:
            return mask if terms <= others else other
        differing = terms ^ others
        if len(differing) == 2 and len({term.atom for term in differing}) == 1:
            total: Mask = None
            for term in terms:
                if term not in differing:
                    total = combine_masks(total, term.value())
            return total
    return ops.bitwise_or(mask, other)


class MaskTerm(NamedTuple):
    """An array of booleans, or its negation."""

    atom: Atom
    builder: Builder
    is_true: bool

    def value(self) -> Value:
        """The mask that this is."""
        array = Tracer(self.atom, self.builder)
        return array if self.is_true else ops.bitwise_not(array)


def mask_terms(mask: Tracer) -> KeysView[MaskTerm]:
    """The terms whose conjunction is `mask`, in order."""
    terms: dict[MaskTerm, None] = {}
    pending = [MaskTerm(mask.atom, mask.builder, True)]
    while pending:
        term = pending.pop()
        eqn = None
        if type(term.atom) is Var and len(terms) < MAX_MASK_TERMS:
            eqn = term.builder.defining_equation(term.atom)
        if eqn is not None and type(eqn.primitive) is ops.Not:
            pending.append(term._replace(atom=eqn.inputs[0], is_true=not term.is_true))
        elif eqn is not None and type(eqn.primitive) is ops.And and term.is_true:
            pending += [term._replace(atom=x) for x in eqn.inputs]
        else:
            terms[term] = None
    return terms.keys()


MAX_MASK_TERMS = 8
"""The number of terms after which conjunctions of masks are taken as they are."""


def apply_mask(mask: Mask, x: Value) -> Value:
    """`x` where `mask` holds, zero elsewhere; `x` itself for no mask."""
    return x if mask is None else ops.select(mask, x, literal(0, x.dtype))


def broadcast_scalar(x: Value, shape: tuple[int, ...]) -> Value:
    """`x`, as an array of `shape` if it is a scalar."""
    return ops.full(shape, x) if x.shape != shape else x


def unbroadcast_scalar(x: Value, like: Value) -> Value:
    """The cotangent `x` summed to the shape of `like`, a scalar, if that was broadcast."""
    if x.shape == like.shape:
        return x
    return ops.reduce_sum(x, tuple(range(x.ndim)))


def unary_function(primitive: type[Primitive], name: str = "") -> Callable[[ArrayLike], Value]:
    """The public function of an elementwise primitive of one operand, with the primitive's docstring.

    It is called `name`, by default as the primitive is.
    """

    def function(x: ArrayLike) -> Value:
        return primitive()(x)

    return _document(function, primitive, name)


def binary_function(
    primitive: type[Primitive], name: str = ""
) -> Callable[[ArrayLike, ArrayLike], Value]:
    """The public function of an elementwise primitive of two operands, as `unary_function`.

    A Python scalar gets the dtype of the other operand.
    """

    def function(x: ArrayLike, y: ArrayLike) -> Value:
        return primitive()(*promote_scalars(x, y))

    return _document(function, primitive, name)


def _document(function: Function, primitive: type[Primitive], name: str) -> Function:
    function.__name__ = function.__qualname__ = name or primitive.name
    function.__module__ = primitive.__module__
    doc = primitive.__doc__ or ""
    end = min([i for i in (doc.find(";"), doc.find(".\n")) if i >= 0], default=len(doc.rstrip(".")))
    function.__doc__ = f"{doc[:end]}, elementwise{doc[end:]}"
    return function
