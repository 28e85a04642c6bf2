"""Families: what whole groups of primitives have in common, given once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from functx import ops
from functx.core.errors import DTypeError, ShapeError
from functx.core.primitive import LinearInput, Primitive
from functx.core.tracer import aval_of
from functx.core.types import ShapedArray, is_inexact, kind
from functx.ops.operands import batch_size, literal, promote_scalars


class Elementwise(Primitive, abstract=True):
    """Operands of one dtype and one shape, or scalars; each output element from its own inputs.

    The Jacobian with respect to an operand is diagonal, so pushing a tangent and pulling a
    cotangent multiply by the same thing. A subclass says it once, as `partial`.
    """

    scalars_broadcast = True
    accepts: ClassVar[str] = "biufc"
    """The kinds of dtype the operation takes: bool, int, uint, float, complex."""
    linear: ClassVar[tuple[int, ...]] = ()
    """The operands that the operation is linear in, the others fixed."""
    has_finite_derivative: ClassVar[bool] = False
    """Whether derivatives are finite wherever the operands and the output are."""

    def partial(self, i: int, t: Any, out: Any, *args: Any) -> Any:
        """`t` times the derivative of the output with respect to operand `i`.

        `out` is the output, None when operand `i` is one of those in `linear`.
        """
        raise self.missing_rule_error("partial")

    def nonzero_derivative_mask(self, i: int, *args: Any) -> Any:
        """Where the output varies with operand `i`, as a boolean array; None for anywhere."""
        return None

    def preserves_zero(self, i: int, *args: Any) -> bool:
        """Whether `partial` makes zero of a zero `t` whatever the operands are, nan or infinite."""
        return False

    def abstract_eval(self, *avals: Any) -> Any:
        check_same_dtype(self, avals)
        return ShapedArray(
            elementwise_shape(self, avals),
            self.out_dtype(avals[0].dtype),
            all([aval.weak_type for aval in avals]),
        )

    def out_dtype(self, dtype: Any) -> Any:
        return dtype

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return self.jvp_where([None] * len(primals), primals, tangents)

    def jvp_where(
        self, lives: Sequence[Any], primals: Sequence[Any], tangents: Sequence[Any]
    ) -> tuple[Any, Any]:
        """As `jvp`, with zeros of each tangent wherever `lives` says that it is zero."""
        out = self(*primals)
        total = None
        for i, t in enumerate(tangents):
            if t is not None:
                term = self.partial(i, t, out, *primals)
                if lives[i] is not None and term is not t and not self.preserves_zero(i, *primals):
                    term = apply_mask(lives[i], term)
                term = broadcast_scalar(term, out.shape)
                total = term if total is None else ops.add(total, term)
        return out, total

    def tangent_mask(self, lives: Sequence[Any], args: Sequence[Any]) -> Any:
        given = [live for live, x in zip(lives, args, strict=True) if is_inexact(x.dtype)]
        # Where all vary freely, what does not vary with one does with another.
        if len(args) > 1 and all(live is None for live in given):
            return None
        total = None
        for i, live in enumerate(lives):
            if live is not False:
                live = combine_masks(live, self.nonzero_derivative_mask(i, *args))
                if live is None:
                    return None
                total = live if total is None else ops.bitwise_or(total, live)
        return total

    def vjp(self, ct: Any, out: Any, args: Sequence[Any], active: Sequence[bool]) -> list[Any]:
        return self.vjp_where(None, ct, out, args, active)

    def vjp_where(
        self, live: Any, ct: Any, out: Any, args: Sequence[Any], active: Sequence[bool]
    ) -> list[Any]:
        """As `vjp`, with zeros wherever `live` says that the cotangent is zero.

        So an infinite derivative at a place without influence makes no nan.
        """
        cts: list[Any] = []
        for i, x in enumerate(args):
            found = self.partial(i, ct, out, *args) if active[i] else None
            if found is not None:
                if live is not None and found is not ct and not self.preserves_zero(i, *args):
                    found = apply_mask(live, found)
                found = unbroadcast_scalar(found, x)
            cts.append(found)
        return cts

    def cotangent_masks(self, live: Any, args: Sequence[Any]) -> list[Any]:
        found = [
            combine_masks(live, self.nonzero_derivative_mask(i, *args)) for i in range(len(args))
        ]
        return [
            here if here is not None and here.shape in ((), x.shape) else None
            for here, x in zip(found, args, strict=True)
        ]

    def transpose(self, ct: Any, *args: Any) -> list[Any]:
        return [
            unbroadcast_scalar(self.partial(i, ct, None, *args), x)
            if type(x) is LinearInput
            else None
            for i, x in enumerate(args)
        ]

    def batch(self, args: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, int]:
        args, dim = align_batch_dims(args, dims)
        return self(*args), dim


class Unary(Elementwise, abstract=True):
    """One operand; a subclass gives `derivative(out, x)`, the factor at each element."""

    def derivative(self, out: Any, x: Any) -> Any:
        raise self.missing_rule_error("derivative")

    def partial(self, i: int, t: Any, out: Any, *args: Any) -> Any:
        return ops.mul(t, self.derivative(out, *args))


class Inexact(Unary, abstract=True):
    """A unary function of real or complex floating point operands."""

    accepts = "fc"


class Binary(Elementwise, abstract=True):
    """Two operands; a subclass gives `partial`."""


class Comparison(Elementwise, abstract=True):
    """Two operands; the output is boolean and never varies."""

    differentiable = False

    def abstract_eval(self, *avals: Any) -> Any:
        check_same_dtype(self, avals)
        return ShapedArray(elementwise_shape(self, avals), ops.BOOL)


class Bitwise(Elementwise, abstract=True):
    """An operation on integers or booleans; nothing varies smoothly."""

    differentiable = False
    accepts = host_kernel_kinds = "biu"


class Linear(Primitive, abstract=True):
    """Linear in all its operands together: tangents go through the operation itself."""

    is_element_mapping: ClassVar[bool] = False
    """True: of one operand, each of whose elements goes to one of the output."""

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        tangents = [
            ops.zeros_like(x) if t is None else t for x, t in zip(primals, tangents, strict=True)
        ]
        return self(*primals), self(*tangents)

    def vjp(self, ct: Any, out: Any, args: Sequence[Any], active: Sequence[bool]) -> Sequence[Any]:
        return self.transpose(ct, *[LinearInput(aval_of(x)) for x in args])

    def tangent_mask(self, lives: Sequence[Any], args: Sequence[Any]) -> Any:
        if lives[0] is None or not self.is_element_mapping or not lives[0].shape:
            return lives[0] if self.is_element_mapping else None
        return self(lives[0])

    def cotangent_masks(self, live: Any, args: Sequence[Any]) -> Sequence[Any]:
        if live is None or not self.is_element_mapping or not live.shape:
            return [live if self.is_element_mapping else None] * len(args)
        return self.transpose(live, LinearInput(aval_of(args[0]).update(dtype=ops.BOOL)))


class Constant(Primitive, abstract=True):
    """No operands: the output is the same wherever it is asked for."""

    differentiable = False


def check_same_dtype(primitive: Any, avals: Sequence[ShapedArray]) -> None:
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


def elementwise_shape(primitive: Any, avals: Sequence[ShapedArray]) -> tuple[int, ...]:
    """The one shape of the operands that are not scalars."""
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


def align_batch_dims(args: Sequence[Any], dims: Sequence[int | None]) -> tuple[list[Any], int]:
    """Operands of an elementwise operation with their batch dimensions in one place.

    Unbatched operands are broadcast, except scalars; batched scalars get unit dimensions.
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
        lane = next(
            x.shape for x, d in zip(args, dims, strict=True) if d is None and x.ndim == rank
        )
        shape = (size, *lane)
    aligned = []
    for x, d in zip(args, dims, strict=True):
        if d is None:
            kept = [i for i in range(rank + 1) if i != dim]
            aligned.append(x if x.ndim == 0 else ops.broadcast_in_dim(x, shape, tuple(kept)))
        elif x.ndim < rank + 1:
            aligned.append(ops.broadcast_in_dim(x, shape, (dim,)))
        else:
            aligned.append(ops.moveaxis(x, d, dim))
    return aligned, dim


def combine_masks(live: Any, there: Any) -> Any:
    """Where both hold, None standing for anywhere."""
    if live is None or there is None:
        return there if live is None else live
    return ops.bitwise_and(live, there)


def apply_mask(live: Any, x: Any) -> Any:
    """`x` where `live` holds, zero elsewhere."""
    return ops.select(live, x, literal(0, x.dtype))


def broadcast_scalar(x: Any, shape: tuple[int, ...]) -> Any:
    """`x`, as an array of `shape` if it is a scalar."""
    return ops.full(shape, x) if x.shape != shape else x


def unbroadcast_scalar(x: Any, like: Any) -> Any:
    """The cotangent `x` for `like`, which may be a scalar that stood for an array."""
    if x.shape == like.shape:
        return x
    return ops.reduce_sum(x, tuple(range(x.ndim)))


def unary_function(primitive: type[Primitive], name: str = "") -> Callable[[Any], Any]:
    """The public function of an elementwise primitive of one operand, with the primitive's docstring.

    It is called `name`, by default as the primitive is.
    """

    def function(x: Any) -> Any:
        return primitive()(x)

    return _document(function, primitive, name)


def binary_function(primitive: type[Primitive], name: str = "") -> Callable[[Any, Any], Any]:
    """The public function of an elementwise primitive of two operands, as `unary_function`.

    A Python scalar gets the dtype of the other operand.
    """

    def function(x: Any, y: Any) -> Any:
        return primitive()(*promote_scalars(x, y))

    return _document(function, primitive, name)


def _document(function: Any, primitive: type[Primitive], name: str) -> Any:
    function.__name__ = function.__qualname__ = name or primitive.name
    function.__module__ = primitive.__module__
    doc = primitive.__doc__ or ""
    end = min([i for i in (doc.find(";"), doc.find(".\n")) if i >= 0], default=len(doc.rstrip(".")))
    function.__doc__ = f"{doc[:end]}, elementwise{doc[end:]}"
    return function
