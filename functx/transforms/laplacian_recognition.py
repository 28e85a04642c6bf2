"""The recognition of sums of second derivatives while a function is traced: Laplacians take their place.

The results of `hessian` and `hvp` are known to be a Hessian and its product with a vector, so no formula is
guessed. Operations that only move elements are followed to the sum of a diagonal (`trace`,
`einsum("ii->", ...)`, `diagonal(...).sum()`), or to the product v · H v and, after `vmap` over v, to its
sum. At the end of the trace the sum is replaced, unless something else needs the Hessian or the product.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from functx import ops
from functx.core import tree
from functx.core.builder import Builder
from functx.core.concretization import is_concrete_literal
from functx.core.config import config
from functx.core.dead_code import dce_equations
from functx.core.primitive import Primitive
from functx.core.primitive_families import CopiesOperand, View
from functx.core.program import Atom, Equation, Literal, Program, Var
from functx.core.tracer import Tracer, aval_of, current_builder
from functx.core.types import Shape, is_complex, is_inexact
from functx.core.typing import ArrayLike, Dim, Function, PyTree, Value
from functx.ops.views import AsStrided
from functx.transforms.argument_names import wrap_transform
from functx.transforms.grad import DifferentiatedFunction
from functx.transforms.second_derivatives import (
    DifferentiatedArray,
    Direction,
    RowTerm,
    SecondDerivatives,
    VaryingValues,
)
from functx.transforms.tracing_api import has_aval


class SecondDerivativeValue(NamedTuple):
    """A value that holds second derivatives of `fun`, found by operations on the variable `source`.

    `kind` is "hessian" or "diagonal", with elements in the order of the output and then of the coordinates;
    "product" for H v, and "factors" for its product with v = `tangent`, elementwise; "element" for one
    element of H v, that of `coordinate`; or "forms", the v · H v of the rows of `tangent`, or elements.
    """

    fun: DifferentiatedArray
    source: Var
    kind: str
    tangent: Atom | None = None
    coordinate: Atom | int | None = None

    @property
    def out_shape(self) -> Shape:
        return self.fun.program.out_avals[0].shape

    def after(self, primitive: Primitive, inputs: Sequence[Atom], x: Atom) -> str | None:
        """The kind of the output of an operation on it, `x`; "sum" for a sum of second derivatives."""
        n, shape = self.fun.argument.size, x.aval.shape
        if isinstance(primitive, ops.Reshape):
            if self.kind == "element":
                return "sum"
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
            if element_read(primitive, inputs, shape) is not None:
                return "element"
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


def element_read(primitive: Primitive, inputs: Sequence[Atom], shape: Shape) -> Atom | int | None:
    """The position of the element that an operation reads of a vector of this shape; None for no such."""
    if len(shape) == 1 and isinstance(primitive, ops.DynamicSlice) and primitive.sizes == (1,):
        return inputs[1]
    if len(shape) == 1 and isinstance(primitive, ops.Slice):
        (start,), (limit,) = primitive.start, primitive.limit
        return start if limit == start + 1 else None
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
        self.values: dict[Atom, SecondDerivativeValue] = {}
        self.sums: dict[Atom, SecondDerivatives] = {}
        self.partial_sums: set[Atom] = set()
        """The sums that are operands of a larger one."""
        self.increments: dict[Atom, tuple[Atom, SecondDerivatives]] = {}
        """For each value that is another value plus a sum: that value, and the sum."""
        self.replacements: dict[Atom, tuple[Atom, SecondDerivatives]] = {}
        """For the variable of each sum: the result of the jet that computes it, and the sum."""

    def follow(self, primitive: Primitive, inputs: Sequence[Atom], out: Tracer) -> None:
        """Called with each operation that is appended."""
        # After a write, an operand may have another value than when the derivative was taken.
        if self.builder.writes:
            return
        if isinstance(primitive, ops.Add) and any(a in self.sums for a in inputs):
            self.add(inputs, out)
            return
        if isinstance(primitive, CopiesOperand) and inputs[0] in self.sums:
            self.sums[out.atom] = self.sums[inputs[0]]
        x = next((a for a in inputs if a in self.values), None)
        if x is None:
            return
        value = self.values[x]
        if isinstance(primitive, CopiesOperand):
            self.values[out.atom] = value
            return
        kind = value.after(primitive, inputs, x)
        if kind == "sum" and (value.kind != "element" or not out.shape):
            direction = None
            if value.tangent is not None:
                direction = Direction(value.tangent, value.kind == "forms", value.coordinate)
            directions = None if direction is None else (direction,)
            self.sums[out.atom] = SecondDerivatives(
                value.fun, frozenset([value.source]), directions
            )
        elif kind == "element":
            at = element_read(primitive, inputs, x.aval.shape)
            self.values[out.atom] = value._replace(kind=kind, coordinate=at)
        elif kind not in (None, "sum"):
            self.values[out.atom] = value._replace(kind=kind)

    def add(self, inputs: Sequence[Atom], out: Tracer) -> None:
        """Follow an addition of which an operand is a sum."""
        x, other = inputs if inputs[0] in self.sums else reversed(inputs)
        term, added = self.sums[x], self.sums.get(other)
        if added is not None:
            total = term.plus(added, self.builder)
        else:
            is_zero = is_concrete_literal(other) and other.value == 0  # type: ignore[union-attr]
            total = term if is_zero and out.shape == x.aval.shape else None
        if total is None:
            self.increments[out.atom] = other, term
        else:
            self.sums[out.atom] = total
            self.partial_sums.update(inputs)

    def emit_jets(self) -> None:
        """Compute each sum by a jet, right after its operands and the sum as it is computed now."""
        builder = self.builder
        if builder.writes or not self.sums:
            return
        varying, outer = VaryingValues(), builder.source
        count = len(builder.equations)
        producer: dict[Atom, int] = {
            v: i for i, eqn in enumerate(builder.equations) for v in eqn.outputs
        }
        inserted: dict[int, list[Equation]] = {}
        for atom, term in list(self.sums.items()):
            if atom in self.partial_sums or atom not in producer:
                continue
            position = max(producer.get(a, 0) for a in (atom, *term.operands()))
            start = len(builder.equations)
            builder.source = builder.equations[producer[atom]].source
            total = term.emit(builder, varying)
            if total is not None:
                aval = atom.aval
                total = ops.convert_element_type(total, aval.dtype, aval.weak_type)
                self.replacements[atom] = builder.atom(total), term
            inserted.setdefault(position, []).extend(builder.equations[start:])
        builder.source = outer
        equations = builder.equations[:count]
        in_order = [e for i, eqn in enumerate(equations) for e in (eqn, *inserted.get(i, ()))]
        builder.replace_equations(0, in_order)

    def replace_sums(
        self, equations: list[Equation], outputs: list[Atom]
    ) -> tuple[list[Equation], list[Atom]]:
        """The program with the sums replaced whose Hessian or product nothing else needs."""
        sums = dict(self.replacements)
        while sums:
            substitutes = {a: total for a, (total, _) in sums.items()}
            replaced = [eqn.with_substitutes(substitutes) for eqn in equations]
            outs = [substitutes.get(a, a) for a in outputs]
            needed = {v for eqn in dce_equations(replaced, outs) for v in eqn.outputs}
            kept = {a: found for a, found in sums.items() if not found[1].sources & needed}
            if len(kept) == len(sums):
                return replaced, outs
            sums = kept
        return equations, outputs

    def note_rows(self, program: Program, outputs: Sequence[Atom]) -> None:
        """Note which `outputs` of the finished `program` are second derivatives, for loops and `vmap`."""
        if self.builder.writes:
            return
        noted = {}
        for i, atom in enumerate(outputs):
            carry, term = self.increments.get(atom, (None, self.sums.get(atom)))
            found = term and RowTerm.of(term, program, carry, self.builder)
            if found is not None:
                noted[i] = found
        if noted:
            program.memo["row_terms"] = RowTerms(noted)


class RowTerms:
    """The outputs of a program that are second derivatives, by position; its memo holds them."""

    def __init__(self, terms: Mapping[int, RowTerm]):
        self.terms = terms

    def note(
        self,
        args: Sequence[ArrayLike],
        dims: Sequence[Dim],
        outs: Sequence[Value],
        num_carries: int = 0,
    ) -> None:
        """Note which `outs` of `vmap` or a loop of the program are second derivatives by row, or their sums.

        `args` are its inputs, with rows along `dims`. The first `num_carries` are the carries of a loop at its
        start; a sum in carry k is output k.
        """
        builder = recognizing_builder()
        if builder is None:
            return
        differing = [i < num_carries for i in range(len(args))]
        for i, term in self.terms.items():
            out = outs[i]
            if type(out) is not Tracer or type(out.atom) is not Var:
                continue
            if term.carry != (i if i < num_carries else None):
                continue
            if (found := term.rows(builder, args, dims, differing)) is None:
                continue
            fun, direction = found
            recognizer = recognizer_of(builder)
            if term.carry is None:
                recognizer.values[out.atom] = SecondDerivativeValue(
                    fun, out.atom, "forms", *direction[::2]
                )
            else:
                start, source = builder.atom(args[i]), frozenset([out.atom])
                recognizer.sums[out.atom] = SecondDerivatives(fun, source, (direction,), start)


def computed_part(builder: Builder, x: Var) -> Var:
    """The variable that `x` is a copy or a view of; readers of `x` may read it instead."""
    while (position := builder.producer(x)) is not None:
        eqn = builder.equations[position]
        moves = isinstance(eqn.primitive, (View, CopiesOperand))
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
    if len(primals) == 1 and type(out) is tuple and has_aval(tangents[0]):
        note(fun, 0, tuple(primals), {}, out[0], lambda _, x: x, tangents[0])


def note(
    fun: Function,
    argnum: int,
    args: tuple[PyTree, ...],
    kwargs: dict[str, PyTree],
    result: PyTree,
    shape: Callable[[Shape, Shape], Shape],
    tangent: Value | None = None,
) -> None:
    """Note that `result` is a Hessian or a product with it, if `fun` takes one real array to one array and does nothing else."""
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
    if call.traced.written or program.draws or program.effects or program.named_axes:
        return
    if len(program.outputs) != 1:
        return
    found = DifferentiatedArray(program, call.operands, call.active)
    out, x = program.out_avals[0], aval_of(args[argnum])
    if not is_real(out.dtype) or result.shape != shape(out.shape, x.shape):
        return
    at = None if tangent is None else builder.atom(tangent)
    if at is not None and (at.aval.shape, at.aval.dtype) != (x.shape, x.dtype):
        return
    kind = "hessian" if tangent is None else "product"
    value = SecondDerivativeValue(found, computed_part(builder, result.atom), kind, at)
    recognizer_of(builder).values[result.atom] = value
