"""Finds formulas in programs: a formula is a small traced program, matched up to notation.

Sums and products match in any order and by whatever primitives they are written; factors that are
numbers, broadcasts and casts between float types are looked through. An input of the formula stands
for any real array.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import frexp, isclose, isfinite, isnan, prod
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from ml_dtypes import finfo

from functx import ops
from functx.core.primitive import Primitive
from functx.core.program import Atom, Equation, Literal, Program, Var
from functx.core.types import is_complex, is_floating
from functx.ops.operands import literal
from functx.ops.views import Copy

Dims = tuple[int | None, ...]
"""For each dimension of an array, the dimension of the result that it becomes.

-1 - k is the k-th dimension that the formula sums over; None has size 1 and matches any.
"""
Producers = Mapping[Atom, Equation]

SUMS = ops.Add, ops.Sub
PRODUCTS = ops.Mul, ops.Div, ops.IntegerPow, ops.Square
MAX_FACTORS = 8
MAX_DEPTH = 8


class Operand(NamedTuple):
    """`scale` times `atom`, whose dimensions lie at `dims` of the result."""

    scale: float
    atom: Atom
    dims: Dims


UNIT = literal(1.0, np.dtype("float32"))
"""The atom of a number, which is its scale."""


Path = tuple[int, ...]
"""A place in a product: the numbers of operands on the way from the last equation."""


class PowerFactor(NamedTuple):
    """An operand of a product as it stands in the program, without its scale, its power and places."""

    written: Operand
    core: Operand
    power: int
    paths: tuple[Path, ...] = ((),)


class Product(NamedTuple):
    """The factors of a product, nested products multiplied out, and every operand on the way by its place."""

    factors: list[PowerFactor]
    nodes: Mapping[Path, PowerFactor]

    def others(self, matched: Sequence[PowerFactor]) -> list[PowerFactor]:
        """The largest operands without the `matched` factors, innermost first: as they stand in the program."""
        used = [path for factor in matched for path in factor.paths]
        kept: dict[Path, PowerFactor] = {}
        for factor in self.factors:
            for path in () if factor.core.atom is UNIT else factor.paths:
                if path in used:
                    continue
                own = next(
                    path[:n]
                    for n in range(len(path) + 1)
                    if not any([other[:n] == path[:n] for other in used])
                )
                kept[own] = self.nodes[own]
        return [kept[path] for path in sorted(kept, key=len, reverse=True)]


class Binding(NamedTuple):
    """The operand that an input of a formula stands for, as it is written and without its scale."""

    written: Operand
    core: Operand


class Match(NamedTuple):
    """A place where a program computes `ratio` times a `power` of a formula, times the factors `rest`.

    `axes` are those that the formula sums over, and `dims` the place of its sums in the result. If the
    formula is a power of a `root`, this is the factor that the product has a power of.
    """

    bindings: Mapping[Atom, Binding] = MappingProxyType({})
    axes: tuple[int, ...] | None = None
    dims: Dims = ()
    ratio: float = 1.0
    power: int = 1
    rest: tuple[PowerFactor, ...] = ()
    root: PowerFactor | None = None


class Notation:
    """Reads the equations of a program as scaled operands, sums and products."""

    def __init__(self, producers: Producers):
        self.producers = producers
        self.forget()

    def forget(self) -> None:
        """Clears what was read, after equations have been replaced."""
        self.cores: dict[tuple[Atom, Dims], Operand] = {}
        self.products: dict[tuple[Atom, Dims], Product] = {}

    def core(self, x: Operand) -> Operand:
        """`x` without negation, numeric factors, casts and broadcasts; a number as a multiple of 1."""
        key = x.atom, x.dims
        found = self.cores.get(key)
        if found is None:
            found = self.cores[key] = self.find_core(Operand(1.0, *key))
        return found if x.scale == 1 else Operand(x.scale * found.scale, found.atom, found.dims)

    def find_core(self, x: Operand) -> Operand:
        scale, atom, dims = x
        while type(atom) is Var:
            eqn = self.producers.get(atom)
            look_through = None if eqn is None else TRANSPARENT.get(type(eqn.primitive))
            found = None if look_through is None else look_through(eqn, dims)
            if found is None:
                return Operand(scale, atom, dims)
            scale, atom, dims = scale * found.scale, found.atom, found.dims
        if is_number(atom):
            return Operand(scale * atom.value, UNIT, ())  # type: ignore[union-attr]
        return Operand(scale, atom, ())

    def terms(self, x: Operand) -> list[Operand]:
        """The two terms of a sum, in the order in which they restrict a match most."""
        eqn = self.producers[x.atom]
        a, b = [Operand(x.scale, a, dims_of_operand(a, x.dims)) for a in eqn.inputs]
        return [a, b._replace(scale=-b.scale) if type(eqn.primitive) is ops.Sub else b]

    def product(self, x: Operand) -> Product:
        """The factors of a product without its scale."""
        key = x.atom, x.dims
        found = self.products.get(key)
        if found is None:
            found = self.products[key] = self.find_product(Operand(1.0, *key))
        return found

    def find_product(self, x: Operand) -> Product:
        pending = [PowerFactor(x, x, 1)]
        found: list[PowerFactor] = []
        nodes: dict[Path, PowerFactor] = {}
        while pending:
            factor = pending.pop()
            (path,) = factor.paths
            nodes[path] = factor
            eqn = self.producers.get(factor.core.atom)
            if eqn is None or type(eqn.primitive) not in PRODUCTS or len(found) > MAX_FACTORS:
                found.append(factor)
                continue
            for i, atom in enumerate(eqn.inputs):
                written = Operand(1.0, atom, dims_of_operand(atom, factor.core.dims))
                power = factor.power * power_of_operand(eqn.primitive, i)
                pending.append(PowerFactor(written, self.core(written), power, ((*path, i),)))
            # The scale of a product that is multiplied out is that of a number among its factors.
            if factor.core.scale != 1:
                scale = Operand(factor.core.scale, UNIT, ())
                found.append(PowerFactor(scale, scale, factor.power, factor.paths))
        return Product(self.merged(found), nodes)

    def merged(self, factors: Sequence[PowerFactor]) -> list[PowerFactor]:
        """`factors` with one power of each array in place of several factors; x / x stays, nan at 0.

        Where two have different scales, a number is a factor too.
        """
        found: list[PowerFactor] = []
        for factor in factors:
            for i, other in enumerate(found):
                x, y = factor.core, other.core
                if x.atom is UNIT or x.dims != y.dims:
                    continue
                if factor.power * other.power > 0 and self.same(x.atom, y.atom):
                    power = other.power + factor.power
                    found[i] = other._replace(power=power, paths=other.paths + factor.paths)
                    if x.scale != y.scale:
                        ratio = Operand(x.scale / y.scale, UNIT, ())
                        found.append(PowerFactor(ratio, ratio, factor.power, factor.paths))
                    break
            else:
                found.append(factor)
        return [f for f in found if f.power]

    def same(self, x: Atom, y: Atom, depth: int = MAX_DEPTH) -> bool:
        """Whether two atoms are one variable, or outputs of equal equations on equal operands."""
        if x is y or type(x) is Literal or type(y) is Literal:
            return x is y or x == y
        a, b = self.producers.get(x), self.producers.get(y)
        if a is None or b is None or depth == 0 or a.primitive is not b.primitive:
            return False
        primitive = a.primitive
        if primitive.multiple_results or primitive.effects or primitive.no_cse:
            return False
        return all([self.same(p, q, depth - 1) for p, q in zip(a.inputs, b.inputs, strict=True)])


def is_number(atom: Atom) -> bool:
    """Whether `atom` is a literal whose value is a known real number."""
    return type(atom) is Literal and type(atom.value) in (int, float)


def is_power_of_two(scale: float) -> bool:
    """Whether a multiplication by `scale`, or minus that, is exact."""
    return abs(frexp(scale)[0]) == 0.5


def dims_of_operand(atom: Atom, dims: Dims) -> Dims:
    """The dimensions of an operand of an elementwise operation: those of the output, or a scalar's."""
    return dims if atom.aval.shape else ()


def possible_powers(wanted: Sequence[PowerFactor], factors: Sequence[PowerFactor]) -> Sequence[int]:
    """The powers to which a formula of `wanted` factors may be raised: (1,) if it has several factors."""
    if len(wanted) > 1:
        return (1,)
    quotients = [divmod(f.power, wanted[0].power) for f in factors]
    return sorted({power for power, rest in quotients if rest == 0 and power > 0})


def number_of(factors: Sequence[PowerFactor]) -> float:
    """The product of the numbers among some factors; inf, 0 or nan if it is out of range."""
    return prod([power_of(f.core.scale, f.power) for f in factors if f.core.atom is UNIT])


def power_of(x: float, exponent: int) -> float:
    """`x` to a power, inf or 0 where Python raises an error."""
    with np.errstate(all="ignore"):
        return float(np.float64(x) ** exponent)


def is_inside(path: Path, other: Path) -> bool:
    """Whether a place is another one or inside it."""
    return path[: len(other)] == other


def power_of_operand(primitive: Primitive, index: int) -> int:
    """The power of an operand in a product."""
    if type(primitive) is ops.IntegerPow:
        return primitive.exponent
    return 2 if type(primitive) is ops.Square else -1 if type(primitive) is ops.Div and index else 1


def _scaled_by_number(eqn: Equation, dims: Dims) -> Operand | None:
    """The operand of a product or quotient with a number."""
    x, y = eqn.inputs
    if type(eqn.primitive) is ops.Mul and is_number(x):
        x, y = y, x
    if type(x) is Literal or not is_number(y) or not is_floating(y.aval.dtype):
        return None
    scale: float = y.value  # type: ignore[union-attr]
    if not scale or not isfinite(scale):
        return None
    scale = 1 / scale if type(eqn.primitive) is ops.Div else scale
    return Operand(scale, x, dims_of_operand(x, dims))


def _broadcast_operand(eqn: Equation, dims: Dims) -> Operand:
    (x,), primitive = eqn.inputs, eqn.primitive
    sizes = zip(x.aval.shape, primitive.dims, strict=True)  # type: ignore[attr-defined]
    shape = primitive.shape  # type: ignore[attr-defined]
    return Operand(1.0, x, tuple([dims[d] if n == shape[d] else None for n, d in sizes]))


def _reshape_operand(eqn: Equation, dims: Dims) -> Operand | None:
    """The operand of a reshape that adds or removes dimensions of size 1 alone."""
    before, after = eqn.inputs[0].aval.shape, eqn.outputs[0].aval.shape
    if [n for n in before if n != 1] != [n for n in after if n != 1]:
        return None
    kept = iter([d for d, n in zip(dims, after, strict=True) if n != 1])
    return Operand(1.0, eqn.inputs[0], tuple([None if n == 1 else next(kept) for n in before]))


def _cast_operand(eqn: Equation, dims: Dims) -> Operand | None:
    x = eqn.inputs[0]
    return (
        Operand(1.0, x, dims)
        if is_floating(x.aval.dtype) and is_floating(eqn.outputs[0].aval.dtype)
        else None
    )


TRANSPARENT: dict[type[Primitive], Callable[[Any, Dims], Operand | None]] = {
    ops.Neg: lambda eqn, dims: Operand(-1.0, eqn.inputs[0], dims),
    ops.Mul: _scaled_by_number,
    ops.Div: _scaled_by_number,
    ops.Full: lambda eqn, dims: Operand(1.0, eqn.inputs[0], ()),
    ops.BroadcastInDim: _broadcast_operand,
    ops.Reshape: _reshape_operand,
    ops.ConvertElementType: _cast_operand,
    Copy: lambda eqn, dims: Operand(1.0, eqn.inputs[0], dims),
}
"""The primitives that are looked through, with the functions that give their operand, scaled."""


class Pattern(Notation):
    """The program of a formula, whose inputs stand for any arrays."""

    def __init__(self, program: Program):
        super().__init__(program.def_use.producers)
        self.names = program.inputs
        self.inputs = frozenset(program.inputs)
        (self.root,) = program.outputs


class Matcher:
    """Matches one formula against the equations of a program."""

    def __init__(self, pattern: Pattern, target: Notation, accepts_complex: bool = False):
        self.inputs = pattern.inputs
        self.pattern, self.target, self.accepts_complex = pattern, target, accepts_complex

    def match_root(self, eqn: Equation) -> Match | None:
        """The first match of the formula that `eqn` computes the outermost operation of."""
        (out,) = eqn.outputs
        target = Operand(1.0, out, tuple(range(out.aval.ndim)))
        pattern = self.pattern.core(Operand(1.0, self.pattern.root, ()))
        kind = type(self.pattern.producers[pattern.atom].primitive)
        if kind in SUMS:
            for ratio in self.possible_ratios(pattern, target):
                scaled = pattern._replace(scale=ratio)
                for found in self.match_sum(scaled, target, Match()):
                    return found._replace(ratio=ratio)
            return None
        if kind in PRODUCTS:
            return next(self.match_product(pattern, target, Match(), is_root=True), None)
        return next(self.match_operation(pattern, target, Match()), None)

    def possible_ratios(self, pattern: Operand, target: Operand) -> Sequence[float]:
        """The ratios in which a sum may be the formula: that of the numbers in them, else 1 and -1."""
        numbers = []
        for notation, x in ((self.pattern, pattern), (self.target, target)):
            cores = [notation.core(term) for term in notation.terms(x)]
            numbers.append([core.scale for core in cores if core.atom is UNIT])
        if len(numbers[0]) == len(numbers[1]) == 1 and numbers[1][0]:
            return (numbers[1][0] / numbers[0][0],)
        return (1.0, -1.0) if len(numbers[0]) == 0 or not numbers[1] else ()

    def match(self, p: Operand, t: Operand, found: Match) -> Iterator[Match]:
        """The matches in which `t` has the value of `p`."""
        pattern = self.pattern.core(p)
        if pattern.atom in self.inputs:
            yield from self.bind(pattern, t, found)
            return
        target = self.target.core(t)
        if pattern.atom is UNIT:
            if target.atom is UNIT:
                same = pattern.scale == target.scale or isnan(pattern.scale + target.scale)
                if same and isnan(pattern.scale) == isnan(target.scale):
                    yield found
            elif (
                type(target.atom) is Literal
                and target.scale
                and (
                    # A symbolic scalar, which records the comparison.
                    target.atom.value == pattern.scale / target.scale
                )
            ):
                yield found
            return
        yield from self.match_core(pattern, target, found)

    def match_core(self, pattern: Operand, target: Operand, found: Match) -> Iterator[Match]:
        """As `match`, of operands without outer scales, casts and broadcasts."""
        kind, other = self.kinds(pattern, target)
        if kind in SUMS and other in SUMS:
            yield from self.match_sum(pattern, target, found)
        elif kind in PRODUCTS and other in PRODUCTS:
            yield from self.match_product(pattern, target, found)
        elif kind is other and self.is_same_scale(pattern, target, kind):
            yield from self.match_operation(pattern, target, found)

    def kinds(self, pattern: Operand, target: Operand) -> tuple[Any, Any]:
        """The primitives that compute two operands; None for an input of the program."""
        eqn = self.target.producers.get(target.atom)
        kind = type(self.pattern.producers[pattern.atom].primitive)
        return kind, None if eqn is None else type(eqn.primitive)

    def is_same_scale(self, pattern: Operand, target: Operand, kind: type[Primitive]) -> bool:
        """Whether two results of one operation are equal multiples, of sums or else of means."""
        if pattern.scale == target.scale or kind is not ops.ReduceSum:
            return pattern.scale == target.scale
        counts = [
            prod([eqn.inputs[0].aval.shape[d] for d in eqn.primitive.axes])  # type: ignore[attr-defined]
            for eqn in (self.pattern.producers[pattern.atom], self.target.producers[target.atom])
        ]
        tolerance = min(float(finfo(target.atom.aval.dtype).eps), 1e-6)
        return isclose(pattern.scale * counts[0], target.scale * counts[1], rel_tol=tolerance)

    def bind(self, pattern: Operand, t: Operand, found: Match) -> Iterator[Match]:
        """The match in which an input of the formula stands for an operand."""
        scale = t.scale / pattern.scale
        core = self.target.core(t._replace(scale=scale))
        before = found.bindings.get(pattern.atom)
        if before is not None:
            if before.core.scale == core.scale and self.is_same_array(before.core, core):
                yield self.rebound(found, pattern.atom, self.binding(t._replace(scale=scale)))
        elif (
            core.atom is not UNIT
            and type(t.atom) is Var
            and (
                is_floating(t.atom.aval.dtype)
                or (self.accepts_complex and is_complex(t.atom.aval.dtype))
            )
            and is_power_of_two(scale)
        ):
            bound = self.binding(t._replace(scale=scale))
            yield found._replace(bindings={**found.bindings, pattern.atom: bound})

    def binding(self, written: Operand) -> Binding:
        """The binding to an operand; it is written without its own scale if that undoes the outer one."""
        core = self.target.core(written)
        same_dtype = core.atom.aval.dtype == written.atom.aval.dtype
        if written.scale != 1 and is_power_of_two(core.scale) and same_dtype:
            written = core
        return Binding(written, core)

    def rebound(self, found: Match, name: Atom, binding: Binding) -> Match:
        """`found` with the operand outside of a sum, if an input stands for one inside and outside."""
        if any([d is not None and d < 0 for d in binding.written.dims]):
            return found
        return found._replace(bindings={**found.bindings, name: binding})

    def is_same_array(self, x: Operand, y: Operand) -> bool:
        """Whether two operands without scales are one array in one place, up to sums over it."""
        return (
            len(x.dims) == len(y.dims)
            and all(
                [
                    a == b or a is None or b is None or a < 0 or b < 0
                    for a, b in zip(x.dims, y.dims, strict=True)
                ]
            )
            and self.target.same(x.atom, y.atom)
        )

    def match_sum(self, pattern: Operand, target: Operand, found: Match) -> Iterator[Match]:
        if self.target.producers[target.atom].primitive.__class__ not in SUMS:
            return
        p, q = sorted(self.pattern.terms(pattern), key=self.generality)
        a, b = self.target.terms(target)
        for one, other in ((a, b), (b, a)):
            for first in self.match(p, one, found):
                yield from self.match(q, other, first)

    def generality(self, x: Operand) -> int:
        """A rank that puts operations first, then numbers, then inputs of the formula."""
        atom = self.pattern.core(x).atom
        return 2 if atom in self.inputs else 1 if atom is UNIT else 0

    def match_product(
        self, pattern: Operand, target: Operand, found: Match, is_root: bool = False
    ) -> Iterator[Match]:
        """The matches of a product; with `is_root` other factors may be left over.

        A formula that is one factor then matches its powers too.
        """
        product = self.target.product(target)
        wanted = self.pattern.product(pattern).factors
        scale = pattern.scale * number_of(wanted)
        wanted = [f for f in wanted if f.core.atom is not UNIT]
        wanted.sort(key=lambda f: self.generality(f.core))
        numbers = [f for f in product.factors if f.core.atom is UNIT]
        factors = [f for f in product.factors if f.core.atom is not UNIT]
        is_of_root = len(wanted) == 1 and wanted[0].power > 1
        for power in possible_powers(wanted, factors) if is_root else (1,):
            ratio = target.scale / power_of(scale, power)
            if not is_root:
                ratio *= number_of(numbers)
            raised = [f._replace(power=f.power * power) for f in wanted]
            for match, used in self.assign(raised, factors, found._replace(ratio=ratio)):
                if is_root:
                    rest = product.others(used)
                    places = [path for factor in rest for path in factor.paths]
                    outside = [
                        n for n in numbers if not any([is_inside(n.paths[0], p) for p in places])
                    ]
                    ratio = match.ratio * number_of(outside)
                    root = used[0] if is_of_root else None
                    yield match._replace(rest=tuple(rest), ratio=ratio, power=power, root=root)
                elif len(used) == len(factors) and isclose(match.ratio, 1.0, rel_tol=1e-15):
                    yield match._replace(ratio=found.ratio)

    def assign(
        self, wanted: Sequence[PowerFactor], factors: Sequence[PowerFactor], found: Match
    ) -> Iterator[tuple[Match, Sequence[PowerFactor]]]:
        """The matches of factors of the formula with different factors, and these."""
        if not wanted:
            yield found, ()
            return
        (first, *others) = wanted
        for i, factor in enumerate(factors):
            if factor.power == first.power:
                remaining = [*factors[:i], *factors[i + 1 :]]
                for match in self.match_factor(first, factor, found):
                    for last, used in self.assign(others, remaining, match):
                        yield last, (factor, *used)

    def match_factor(
        self, first: PowerFactor, factor: PowerFactor, found: Match
    ) -> Iterator[Match]:
        """The matches of one factor; the ratio of the scales becomes one of the products."""
        pattern, target = first.core, factor.core
        ratio = power_of(target.scale / pattern.scale, first.power)
        if pattern.atom in self.inputs:
            before = found.bindings.get(pattern.atom)
            if before is None:
                unscaled = first.core._replace(scale=1.0)
                bound = self.bind(unscaled, factor.written, found)
                yield from [
                    m._replace(ratio=m.ratio / power_of(pattern.scale, first.power)) for m in bound
                ]
            elif self.is_same_array(before.core, target):
                # As the operand is bound: `written` times a power of two, the scale of `before`.
                scale = before.core.scale / target.scale
                if is_power_of_two(scale):
                    written = factor.written._replace(scale=scale)
                    found = self.rebound(found, pattern.atom, self.binding(written))
                before_ratio = power_of(before.core.scale, first.power)
                yield found._replace(ratio=found.ratio * ratio / before_ratio)
            return
        kind, other = self.kinds(pattern, target)
        if kind is ops.ReduceSum and other is kind:
            if self.is_same_scale(pattern, target, kind):
                yield from self.match_operation(pattern, target, found)
            return
        inner = self.match_core(pattern._replace(scale=1.0), target._replace(scale=1.0), found)
        yield from [m._replace(ratio=m.ratio * ratio) for m in inner]

    def match_operation(self, pattern: Operand, target: Operand, found: Match) -> Iterator[Match]:
        """The matches of an operation that is neither sum nor product, by its operands."""
        p, t = self.pattern.producers[pattern.atom], self.target.producers[target.atom]
        dims = target.dims
        if "axes" in p.primitive.fields:
            axes = t.primitive.axes  # type: ignore[attr-defined]
            if found.axes not in (None, axes) or p.primitive.replace(axes=axes) is not t.primitive:
                return
            found = found._replace(axes=axes, dims=dims)
            ndim = t.inputs[0].aval.ndim
            if t.outputs[0].aval.ndim < ndim:
                kept, reduced = iter(dims), iter(range(-1, -1 - len(axes), -1))
                dims = tuple([next(reduced if d in axes else kept) for d in range(ndim)])
        elif p.primitive is not t.primitive:
            return
        yield from self.match_all(p.inputs, t.inputs, dims, found)

    def match_all(
        self, patterns: Sequence[Atom], targets: Sequence[Atom], dims: Dims, found: Match
    ) -> Iterator[Match]:
        """The matches of all operands of an operation in order."""
        if not patterns:
            yield found
            return
        t = Operand(1.0, targets[0], dims_of_operand(targets[0], dims))
        for first in self.match(Operand(1.0, patterns[0], ()), t, found):
            yield from self.match_all(patterns[1:], targets[1:], dims, first)
