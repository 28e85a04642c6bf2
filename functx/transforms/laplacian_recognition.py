"""The recognition of sums of second derivatives while a function is traced: Laplacians take their place.

What `hessian` and `hvp` return is known to be a Hessian, and its product with a vector, so no formula is
guessed. Operations that only move elements are followed to the sum of a diagonal (`trace`,
`einsum("ii->", ...)`, `diagonal(...).sum()`), or to the product v · H v and, after `vmap` over v, to its
sum. At the end of the trace the sum is replaced, unless something else needs the Hessian or the product.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from functx import ops
from functx.core import tree
from functx.core.config import config
from functx.core.primitive import Primitive, View
from functx.core.program import Atom, Equation, Literal, Program, Var, dce_equations
from functx.core.rewriting import apply
from functx.core.tracer import Tracer, aval_of, current_builder
from functx.core.tracing import Builder
from functx.core.types import Shape, ShapedArray, is_complex, is_inexact
from functx.core.typing import ArrayLike, Dim, Function, PyTree, Value
from functx.ops.views import AsStrided
from functx.transforms.argument_names import wrap_transform
from functx.transforms.coefficients import Curves
from functx.transforms.collapsed_jet import CollapsedJet
from functx.transforms.grad import DifferentiatedFunction


class DifferentiatedArray(NamedTuple):
    """A function of one array, as a program with one output, and its operands in a trace."""

    program: Program
    operands: Sequence[ArrayLike]
    active: tuple[bool, ...]

    @property
    def argument(self) -> ShapedArray:
        """The type of the array."""
        return self.program.in_avals[self.active.index(True)]

    def sum_of_second_derivatives(self, directions: Value | None) -> Value:
        """The sum of the second derivatives along the rows of `directions`, or along all coordinates."""
        count = self.argument.size if directions is None else directions.shape[0]
        rewrite = CollapsedJet(self.active, Curves(2, count), 2, along_basis=directions is None)
        rows = [] if directions is None else [directions]
        return ops.mul(apply(rewrite, self.program, [*self.operands, *rows])[1], 2.0)


class Known(NamedTuple):
    """A value that holds second derivatives of `fun`, found by operations on the variable `source`.

    `kind` is "hessian" or "diagonal", with elements in the order of the output and then of the coordinates;
    "product" for H v, and "factors" for its product with v = `tangent`, elementwise; or "forms", the
    v · H v of the rows of `tangent`.
    """

    fun: DifferentiatedArray
    source: Var
    kind: str
    tangent: Atom | None = None

    @property
    def out_shape(self) -> Shape:
        return self.fun.program.out_avals[0].shape

    def after(self, primitive: Primitive, inputs: Sequence[Atom], x: Atom) -> str | None:
        """The kind of the output of an operation on it, `x`; "sum" for a sum of second derivatives."""
        n, shape = self.fun.argument.size, x.aval.shape
        if isinstance(primitive, ops.Reshape):
            return self.kind if self.kind in ("hessian", "diagonal") else None
        if isinstance(primitive, ops.ReduceSum):
            lead = len(self.out_shape)
            summed = {
                "diagonal": ((lead,), (*self.out_shape, n)),
                "factors": (tuple(range(len(shape))), shape),
                "forms": ((0,), shape),
            }
            return "sum" if summed.get(self.kind) == (tuple(primitive.axes), shape) else None
        if self.kind == "product":
            with_tangent = (
                len(inputs) == 2 and self.tangent in inputs and inputs[0] is not inputs[1]
            )
            if not with_tangent or any(a.aval.shape != shape for a in inputs):
                return None
            if isinstance(primitive, ops.DotGeneral):
                every = tuple(range(len(shape)))
                return "sum" if primitive.contracting_dims == (every, every) else None
            return "factors" if isinstance(primitive, ops.Mul) else None
        if self.kind == "hessian" and n and takes_diagonal(primitive, shape, (*self.out_shape, n)):
            return "diagonal"
        return None


def takes_diagonal(primitive: Primitive, shape: Shape, diagonal: Shape) -> bool:
    """Whether an operation on matrices, of `shape` with elements in order, gives the whole diagonals."""
    *lead, n = diagonal
    if isinstance(primitive, AsStrided):
        whole = AsStrided((n,), (0, 0), ((1, 1),), False)
        return shape == (n, n) and primitive.replace(writable=False) is whole
    if not isinstance(primitive, ops.Slice) or shape != (*lead, n * n):
        return False
    limit = tuple(primitive.limit)
    is_whole = limit[:-1] == tuple(lead) and limit[-1] > (n - 1) * (n + 1)
    steps = (*[1] * len(lead), n + 1)
    return is_whole and not any(primitive.start) and tuple(primitive.strides or ()) == steps


class LaplacianRecognizer:
    """Follows second derivatives through the operations of one trace, and replaces their sums at its end."""

    def __init__(self, builder: Builder):
        self.builder = builder
        self.known: dict[Atom, Known] = {}
        self.sums: dict[Atom, tuple[Atom, Known]] = {}

    def follow(self, primitive: Primitive, inputs: Sequence[Atom], out: Tracer) -> None:
        """Called with each operation that is appended."""
        # After a write, an operand may have another value than when the derivative was taken.
        x = next((a for a in inputs if a in self.known), None)
        if x is None or self.builder.writes:
            return
        known = self.known[x]
        kind = known.after(primitive, inputs, x)
        if kind == "sum":
            total = self.builder.atom(
                ops.convert_element_type(self.second_derivatives(known), out.dtype, out.weak_type)
            )
            self.sums[out.atom] = total, known
        elif kind is not None:
            self.known[out.atom] = known._replace(kind=kind)

    def second_derivatives(self, known: Known) -> Value:
        """The sum of second derivatives that a value stands for."""
        fun = known.fun
        if known.tangent is None:
            return fun.sum_of_second_derivatives(None)
        tangent = Tracer(known.tangent, self.builder)
        rows = tangent if known.kind == "forms" else ops.expand_dims(tangent, 0)
        return fun.sum_of_second_derivatives(rows)

    def replace_sums(
        self, equations: list[Equation], outputs: list[Atom]
    ) -> tuple[list[Equation], list[Atom]]:
        """The program with the sums replaced whose Hessian or product nothing else needs."""
        sums = {a: found for a, found in self.sums.items() if not self.builder.writes}
        while sums:
            substitutes = {a: total for a, (total, _) in sums.items()}
            replaced = [
                eqn.replace(inputs=[substitutes.get(a, a) for a in eqn.inputs]) for eqn in equations
            ]
            outs = [substitutes.get(a, a) for a in outputs]
            needed = {v for eqn in dce_equations(replaced, outs) for v in eqn.outputs}
            kept = {a: found for a, found in sums.items() if found[1].source not in needed}
            if len(kept) == len(sums):
                self.sums = sums
                return replaced, outs
            sums = kept
        self.sums = {}
        return equations, outputs

    def note_forms(self, program: Program) -> None:
        """Note which outputs of the finished `program` are v · H v, for `vmap` over v."""
        position: dict[Atom, int] = {v: i for i, v in enumerate(program.inputs)}
        forms: dict[int, tuple[DifferentiatedArray, list[int], int]] = {}
        totals = dict(self.sums.values())
        for i, atom in enumerate(program.outputs):
            known = totals.get(atom)
            if known is None or known.tangent is None or known.kind == "forms":
                continue
            operands = [position.get(self.builder.atom(x)) for x in known.fun.operands]
            row = position.get(known.tangent)
            if row is not None and all(n is not None for n in operands):
                fun = known.fun._replace(operands=())
                forms[i] = fun, [n for n in operands if n is not None], row
        if forms:
            program.memo["batched_forms"] = BatchedForms(forms)


class BatchedForms:
    """The outputs of a program that are v · H v: the function, and its operands and v among the inputs."""

    def __init__(self, forms: Mapping[int, tuple[DifferentiatedArray, list[int], int]]):
        self.forms = forms

    def note_batch(
        self, operands: Sequence[ArrayLike], dims: Sequence[Dim], outs: Sequence[Value]
    ) -> None:
        """Note which `outs` of `vmap` of the program hold the v · H v of the rows of an array."""
        builder = recognizing_builder()
        for i, (fun, positions, row) in self.forms.items():
            out = outs[i]
            if builder is None or type(out) is not Tracer or type(out.atom) is not Var:
                return
            if dims[row] != 0 or any(dims[n] is not None for n in positions):
                continue
            shared = fun._replace(operands=[operands[n] for n in positions])
            known = Known(shared, out.atom, "forms", builder.atom(operands[row]))
            recognizer_of(builder).known[out.atom] = known


def computed_part(builder: Builder, x: Var) -> Var:
    """The variable that `x` is a copy or a view of; readers of `x` may read it instead."""
    while (position := builder.producer(x)) is not None:
        eqn = builder.equations[position]
        moves = isinstance(eqn.primitive, View) or eqn.primitive.is_copy
        if not moves or type(eqn.inputs[0]) is not Var:
            break
        x = eqn.inputs[0]
    return x


def recognizing_builder() -> Builder | None:
    """The builder of the current trace, if its program may be changed so."""
    builder = current_builder.get()
    plain = type(builder) is Builder and not builder.writes and config.recognize_laplacians
    return builder if plain else None


def recognizer_of(builder: Builder) -> LaplacianRecognizer:
    """The recognizer of a trace."""
    if builder.recognizer is None:
        builder.recognizer = LaplacianRecognizer(builder)
    return builder.recognizer  # type: ignore[return-value]


def with_recognized_trace(hessian_of: Function, fun: Function, argnums: object) -> Function:
    """`hessian_of`, the function of the Hessian of `fun`, whose results in a trace are known to be such."""

    def wrapper(*args: PyTree, **kwargs: PyTree) -> PyTree:
        result = hessian_of(*args, **kwargs)
        if isinstance(argnums, int):
            note(fun, argnums, args, kwargs, result, lambda out, x: (*out, *x, *x))
        return result

    return wrap_transform(wrapper, fun, "hessian")


def note_product(fun: Function, primals: Sequence[PyTree], tangents: PyTree, out: PyTree) -> None:
    """Note that `out`, a tuple, is the Hessian of `fun` of one array times a vector."""
    if len(primals) == 1 and type(out) is tuple and type(tangents[0]) is Tracer:
        note(fun, 0, tuple(primals), {}, out[0], lambda _, x: x, tangents[0])


def note(
    fun: Function,
    argnum: int,
    args: tuple[PyTree, ...],
    kwargs: dict[str, PyTree],
    result: PyTree,
    shape: Callable[[Shape, Shape], Shape],
    tangent: Tracer | None = None,
) -> None:
    """Note what `result` is, if `fun` takes one real array to one array and does nothing else."""
    builder = recognizing_builder()
    if builder is None or type(result) is not Tracer or type(result.atom) is Literal:
        return
    if not -len(args) <= argnum < len(args) or tree.structure(args[argnum]) != tree.structure(0):
        return

    def is_real(dtype: object) -> bool:
        return is_inexact(dtype) and not is_complex(dtype)  # type: ignore[arg-type]

    if not is_real(aval_of(args[argnum]).dtype):
        return
    differentiated = DifferentiatedFunction(
        fun, fun, "hessian", argnum, is_real, "real", "", False, False
    )
    call = differentiated.trace(args, kwargs)
    program = call.traced.program
    if call.traced.written or program.draws or program.effects or len(program.outputs) != 1:
        return
    found = DifferentiatedArray(program, call.operands, call.active)
    out, x = program.out_avals[0], aval_of(args[argnum])
    if not is_real(out.dtype) or result.shape != shape(out.shape, x.shape):
        return
    at = None if tangent is None else builder.atom(tangent)
    kind = "hessian" if tangent is None else "product"
    known = Known(found, computed_part(builder, result.atom), kind, at)
    recognizer_of(builder).known[result.atom] = known
