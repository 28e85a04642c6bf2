"""Functions of eigenvalues, element by element, as the equations of a program show them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from functx.core.avals import ShapedArray
from functx.core.program import Equation, Literal
from functx.core.tracing import Tracer, current_builder
from functx.ops.arithmetic import div, mul
from functx.ops.complexes import conj
from functx.ops.conversion import ConvertElementType, convert_element_type
from functx.ops.creation import Iota
from functx.ops.families import Elementwise
from functx.ops.shaping import BroadcastInDim, Full, PermuteDims, Reshape, broadcast_in_dim
from functx.ops.slicing import Slice
from functx.transforms.simplify.factors import Label, LabelGroup, LabelGroups, resolve_labels


class ConjugatedAtom(NamedTuple):
    """The complex conjugate of another atom, in its place in a product."""

    atom: Any


class EigenvalueTerm(NamedTuple):
    """The eigenvalues themselves."""


class EigenvalueIndices(NamedTuple):
    """The positions of the eigenvalues, as `aval.dtype`."""

    aval: ShapedArray


class ParameterTerm(NamedTuple):
    """The `place`-th of the arrays that do not vary along the eigenvalues."""

    place: int


class ElementwiseTerm(NamedTuple):
    """An elementwise operation on expressions and literals."""

    operation: Callable[..., Any]
    operands: tuple[Any, ...]


class ExpressionBuilder:
    """Arrays with the label of the eigenvalues, as elementwise functions of the eigenvalues.

    `values` is the variable of the eigenvalues, and `window` the range of them that has the label.
    An array without the label is a parameter, whatever it depends on: where eigenvalues are equal,
    a divided difference is a derivative in which parameters do not vary. `batch` has the labels of
    the dimensions before that of the eigenvalues, None as long as these did not occur.
    """

    def __init__(
        self, makers: dict[Any, Equation], values: Any, label: Label, window: tuple[int, int],
        batch: LabelGroup | None = None,
    ):  # fmt: skip
        self.producers, self.values, self.label, self.window = makers, values, label, window
        self.whole = window == (0, values.aval.shape[-1])
        self.batch = batch
        self.parameters: list[tuple[Any, LabelGroups]] = []
        self.memo: dict[Any, Any] = {}

    def of(self, atom: Any, groups: LabelGroups, inside: bool = False) -> Any:
        """The expression of `atom` with labels along its dimensions; None if it is none.

        `inside` says that the label stands for all eigenvalues, not those of the window.
        """
        if type(atom) is Literal:
            return atom
        groups = tuple([resolve_labels(group) for group in groups])
        key = atom, groups, inside
        if key not in self.memo:
            self.memo[key] = self.expression(atom, groups, inside)
        return self.memo[key]

    def expression(self, atom: Any, groups: LabelGroups, inside: bool) -> Any:
        if type(atom) is ConjugatedAtom:
            inner = self.of(atom.atom, groups, inside)
            return None if inner is None else ElementwiseTerm(conj, (inner,))
        labels = [label for group in groups for label in group]
        if labels.count(self.label) > 1:
            return None
        if self.label not in labels:
            self.parameters.append((atom, groups))
            return ParameterTerm(len(self.parameters) - 1)
        if atom is self.values:
            batch = tuple([label for group in groups[:-1] for label in group])
            if self.batch is None:
                self.batch = batch
            fits = groups[-1] == (self.label,) and batch == self.batch
            return EigenvalueTerm() if fits and (inside or self.whole) else None
        eqn = self.producers.get(atom)
        return None if eqn is None else self.elementwise_term(eqn, groups, inside)

    def elementwise_term(self, eqn: Equation, groups: LabelGroups, inside: bool) -> Any:
        primitive: Any = eqn.primitive
        kind = type(primitive)
        if isinstance(primitive, Elementwise) or kind is ConvertElementType:
            operands = [self.of(x, groups if x.aval.ndim else (), inside) for x in eqn.inputs]
            return None if None in operands else ElementwiseTerm(primitive, tuple(operands))
        if kind is Iota:
            along = groups[primitive.dimension] == (self.label,) and (inside or self.whole)
            alone = sum(map(len, groups)) == 1
            return EigenvalueIndices(eqn.outputs[0].aval) if along and alone else None
        (x, *_) = [*eqn.inputs, None]
        if kind is BroadcastInDim:
            dims = zip(x.aval.shape, primitive.dims, strict=True)
            return self.of(x, tuple([() if n == 1 else groups[d] for n, d in dims]), inside)
        if kind is Full:
            return self.of(x, (), inside)
        if kind is PermuteDims:
            place = {axis: i for i, axis in enumerate(primitive.axes)}
            return self.of(x, tuple([groups[place[d]] for d in range(len(groups))]), inside)
        if kind is Reshape:
            given = squeeze_groups(x.aval.shape, eqn.outputs[0].aval.shape, groups)
            return None if given is None else self.of(x, given, inside)
        if kind is Slice and not inside and primitive.strides is None:
            bounds = zip(primitive.start, primitive.limit, x.aval.shape, strict=True)
            parts = [(a, b) for a, b, n in bounds if (a, b) != (0, n)]
            axes = [d for d, group in enumerate(groups) if group == (self.label,)]
            own = [(primitive.start[d], primitive.limit[d]) for d in axes]
            return self.of(x, groups, True) if parts == own == [self.window] else None
        return None


def squeeze_groups(
    shape: tuple[int, ...], out: tuple[int, ...], groups: Sequence[LabelGroup]
) -> LabelGroups | None:
    """The groups of labels along `shape` when it is reshaped to `out`; None if others are regrouped."""
    if [n for n in shape if n != 1] != [n for n in out if n != 1]:
        return None
    rest = iter([group for group, n in zip(groups, out, strict=True) if n != 1])
    return tuple([() if n == 1 else next(rest) for n in shape])


class ExpressionEvaluator:
    """The values of expressions, for arrays of eigenvalues and of parameters."""

    def __init__(self, w: Any, places: Any, parameters: Sequence[Any]):
        self.w, self.places, self.parameters = w, places, parameters
        self.memo: dict[int, Any] = {}

    def of(self, x: Any) -> Any:
        """The array of an expression, or a scalar that stands for one."""
        if type(x) is float:
            return x
        if type(x) is Literal:
            return Tracer(x, current_builder.require())
        if type(x) is EigenvalueTerm:
            return self.w
        if type(x) is ParameterTerm:
            return self.parameters[x.place]
        if id(x) not in self.memo:
            if type(x) is EigenvalueIndices:
                self.memo[id(x)] = convert_element_type(self.places, x.aval.dtype)
            else:
                self.memo[id(x)] = x.operation(*[self.of(y) for y in x.operands])
        return self.memo[id(x)]


def product_expression(factors: Iterable[tuple[Any, bool]]) -> Any:
    """The expression of a product of expressions, some of which divide; None for that of none."""
    found: Any = None
    for x, divides in sorted(factors, key=lambda pair: pair[1]):
        if found is None:
            found = ElementwiseTerm(div, (1.0, x)) if divides else x
        else:
            found = ElementwiseTerm(div if divides else mul, (found, x))
    return found


def broadcast_batch(x: Any, shape: tuple[int, ...]) -> Any:
    """`x`, which has the first dimensions of `shape`, repeated along the others."""
    return x if not x.shape else broadcast_in_dim(x, shape, tuple(range(x.ndim)))
