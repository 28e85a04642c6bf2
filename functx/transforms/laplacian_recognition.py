"""The recognition of `trace(hessian(f)(x))` while it is traced: the Laplacian takes its place.

What `hessian` returns is known to be a Hessian, so no formula is guessed. Operations that only move its
elements are followed to the sum of its diagonal: `trace`, `einsum("ii->", ...)`, `diagonal(...).sum()`.
The Hessian remains where something else uses it, and is dead code otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from functx import ops
from functx.core import tree
from functx.core.config import config
from functx.core.primitive import Primitive
from functx.core.program import Atom, Var
from functx.core.rewriting import apply
from functx.core.tracer import Tracer, aval_of, current_builder
from functx.core.tracing import Builder
from functx.core.types import Shape, is_complex, is_inexact
from functx.core.typing import Function, PyTree, Value
from functx.ops.views import AsStrided
from functx.transforms.argument_names import wrap_transform
from functx.transforms.chunked_batching import standard_basis
from functx.transforms.grad import Argnums, DifferentiatedCall, DifferentiatedFunction
from functx.transforms.series import CollapsedJet, Curves


class KnownHessian(NamedTuple):
    """A value that holds the Hessians of an output of shape `out_shape` in `size` coordinates, or their diagonals.

    Its elements are in the order of (*out_shape, size, size), or of (*out_shape, size).
    """

    call: DifferentiatedCall
    out_shape: Shape
    size: int
    is_diagonal: bool = False

    def after(self, primitive: Primitive, x: Atom) -> KnownHessian | None:
        """What an operation on it, as operand `x`, gives; None if that is neither."""
        if isinstance(primitive, ops.Reshape):
            return self
        n, diagonal = self.size, self._replace(is_diagonal=True)
        if self.is_diagonal or not n:
            return None
        if isinstance(primitive, AsStrided):
            along = primitive.replace(writable=False)
            takes = AsStrided((n,), (0, 0), ((1, 1),), False)
            return diagonal if along is takes and x.aval.shape == (n, n) else None
        if isinstance(primitive, ops.Slice) and x.aval.shape == (*self.out_shape, n * n):
            whole = x.aval.shape[:-1]
            start = (*[0] * len(whole), 0)
            steps = (*[1] * len(whole), n + 1)
            takes_diagonal = (
                tuple(primitive.start) == start
                and tuple(primitive.limit[:-1]) == whole
                and primitive.limit[-1] > n * n - n - 1
                and tuple(primitive.strides or ()) == steps
            )
            return diagonal if takes_diagonal else None
        return None

    def is_summed_by(self, primitive: Primitive, x: Atom) -> bool:
        """Whether an operation on it, as operand `x`, gives the Laplacian."""
        if not self.is_diagonal or not isinstance(primitive, ops.ReduceSum):
            return False
        ndim = len(self.out_shape)
        return x.aval.shape == (*self.out_shape, self.size) and tuple(primitive.axes) == (ndim,)

    def laplacian(self) -> Value:
        """The Laplacian, appended to the current trace."""
        traced, operands = self.call.traced, self.call.operands
        avals = [a for a, on in zip(traced.program.in_avals, self.call.active, strict=True) if on]
        rewrite = CollapsedJet(self.call.active, Curves(2, self.size), 2)
        outs = apply(rewrite, traced.program, [*operands, *standard_basis(avals)])
        return ops.mul(outs[len(traced.program.outputs)], 2.0)


class LaplacianRecognizer:
    """Follows the Hessians in the program of one trace, and gives Laplacians for their traces."""

    def __init__(self, builder: Builder):
        self.builder = builder
        self.known: dict[Var, KnownHessian] = {}

    def __call__(self, primitive: Primitive, inputs: Sequence[Atom], out: Tracer) -> Tracer:
        x = inputs[0] if inputs else None
        known = self.known.get(x) if type(x) is Var else None
        # After a write, an operand may have another value than when the Hessian was taken.
        if known is None or x is None or len(inputs) != 1 or self.builder.writes:
            return out
        if known.is_summed_by(primitive, x):
            total = ops.convert_element_type(known.laplacian(), out.dtype, out.weak_type)
            return self.builder.tracer(total)
        after = known.after(primitive, x)
        if after is not None and type(out.atom) is Var:
            self.known[out.atom] = after
        return out


def with_recognized_trace(hessian_of: Function, fun: Function, argnums: Argnums) -> Function:
    """`hessian_of`, the function of the Hessian of `fun`, whose results in a trace are known to be such."""

    def wrapper(*args: PyTree, **kwargs: PyTree) -> PyTree:
        result = hessian_of(*args, **kwargs)
        builder = current_builder.get()
        if config.recognize_laplacians and type(result) is Tracer and type(builder) is Builder:
            note_hessian(builder, result, fun, argnums, args, kwargs)
        return result

    return wrap_transform(wrapper, fun, "hessian")


def note_hessian(
    builder: Builder,
    result: Tracer,
    fun: Function,
    argnums: Argnums,
    args: tuple[PyTree, ...],
    kwargs: dict[str, PyTree],
) -> None:
    """Note that `result` is the Hessian of `fun` in one array, if nothing else happens in `fun`."""
    if builder.writes or not isinstance(argnums, int) or not -len(args) <= argnums < len(args):
        return
    if tree.structure(args[argnums]) != tree.structure(0):
        return
    differentiated = DifferentiatedFunction(
        fun,
        fun,
        "hessian",
        argnums,
        lambda dtype: is_inexact(dtype) and not is_complex(dtype),
        "real",
        "",
        False,
        False,
    )
    call = differentiated.trace(args, kwargs)
    program = call.traced.program
    plain = not (call.traced.written or program.draws or program.effects)
    if not plain or len(program.outputs) != 1 or type(result.atom) is not Var:
        return
    out_shape, shape = program.out_avals[0].shape, aval_of(args[argnums]).shape
    size = int(aval_of(args[argnums]).size)
    if result.shape != (*out_shape, *shape, *shape):
        return
    if builder.recognizer is None:
        builder.recognizer = LaplacianRecognizer(builder)
    if isinstance(builder.recognizer, LaplacianRecognizer):
        builder.recognizer.known[result.atom] = KnownHessian(call, out_shape, size)
