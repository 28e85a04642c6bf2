"""Taylor series of the values of a program along a curve, or along many: the mechanism of Taylor mode.

The series of a value is lazy: a coefficient is computed when it is first read. An operation y = f(x) has
the series y' = J(x, x'), where J is its `jvp` rule, applied to series in turn. Coefficient k of y follows
from coefficient k - 1 of y', which needs only lower ones of y, so J may read the series of y itself. This
is the classical recurrence of each function (Griewank and Walther, "Evaluating Derivatives", chapter 13),
found from the rule for its first derivative. A primitive states `jet` only where it has a shorter way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from functx import ops
from functx.core.masks import inexact_mask, scatter_where, select_where
from functx.core.named_axes import AxisNames
from functx.core.primitive import Primitive
from functx.core.primitive_families import HasJet, HasPrograms
from functx.core.program import Atom, Equation, Program, Var
from functx.core.rewriting import Rewrite, bind_equation, interpret, rewrite_by_structure
from functx.core.tracer import Tracer, aval_of, current_builder
from functx.core.types import ShapedArray, is_floating, is_inexact
from functx.core.typing import Flags, Value
from functx.ops.families import Elementwise
from functx.transforms.batching import interpret_batched
from functx.transforms.coefficients import Coefficient, Curves, Series, UncollapsedError, scaled
from functx.transforms.dce import RemoveEffects, active_outputs, varying_output_mask, with_io
from functx.transforms.decompose import decompose_missing_rules
from functx.transforms.forward_mode import JVPRewrite
from functx.transforms.symbolic_zeros import nonzero_output_mask


class TangentRule(NamedTuple):
    """The `jvp` rule of an operation, as a program of primals and tangents of the varying operands.

    It returns the tangents of those outputs that `mask` marks. `is_affine` says whether it depends on no
    varying operand differentiably: then the operation is linear in these but for a constant.
    """

    program: Program
    mask: list[bool]
    is_affine: bool


class TraceTangentRule(Rewrite[TangentRule]):
    """The rule of a program with one equation, for tangents of the inputs marked `varying`."""

    varying: tuple[bool, ...]

    def __call__(self, program: Program) -> TangentRule:
        both = decompose_missing_rules(JVPRewrite(self.varying)(program), "jvp", "jet")
        count = len(program.outputs)
        nonzero = nonzero_output_mask(both)[count:]
        tangents = select_where(both.outputs[count:], nonzero)
        # The effects of the operation take place with its first coefficients.
        rule = RemoveEffects()(with_io(both, both.inputs, tangents))
        mask = [bool(on) for on in scatter_where(nonzero, inexact_mask(program.out_avals))]
        primals_only = (*self.varying, *[False] * sum(self.varying))
        return TangentRule(rule, mask, not any(active_outputs(rule, primals_only)))


class SeriesEvaluator:
    """Computes the series of the values of programs along `curves`."""

    def __init__(self, curves: Curves):
        self.curves = curves
        self.basis: Coefficient | None = None
        """The coefficient of a vector that is the identity matrix: each curve moves along one coordinate."""
        self.memo: dict[tuple[Any, ...], list[Series]] = {}

    def evaluate_eagerly(
        self, program: Program, args: Sequence[Series], terms: int
    ) -> list[Series]:
        """The series of the outputs; coefficients 0 to `terms` are computed equation by equation."""

        def step(eqn: Equation, *operands: tuple[Value, Series]) -> list[tuple[Value, Series]]:
            outs = self.apply(eqn.primitive, [series for _, series in operands], eqn)
            orders = range(terms + 1)
            # The highest order of a loop computes the others with it.
            for k in reversed(orders) if isinstance(eqn.primitive, HasPrograms) else orders:
                for out in outs:
                    if not (k and out.is_constant):
                        out[k]
            return [(out.first.value, out) for out in outs]

        pairs = [(x.first.value, x) for x in args]
        outs = interpret(program, pairs, step, constant=lambda c: (c, Series.constant(c)))
        return [series for _, series in outs]

    def evaluate(self, program: Program, args: Sequence[Series]) -> list[Series]:
        """The series of the outputs, of which no coefficient is computed yet."""
        builder = current_builder.require()
        env: dict[Any, Series] = dict(zip(program.inputs, args, strict=True))
        equations: Sequence[Equation] = program.equations
        if program.has_captures:
            from functx.core.captures import split_captured

            captured, equations = split_captured(program)
            env.update((v, Series.constant(builder.tracer(x))) for v, x in captured.items())

        def read(atom: Atom) -> Series:
            if type(atom) is Var:
                return env[atom]
            return Series.constant(Tracer(atom, builder))

        in_order: list[Series] = []
        for eqn in equations:
            outs = self.apply(eqn.primitive, [read(a) for a in eqn.inputs])
            env.update(zip(eqn.outputs, outs, strict=True))
            in_order += [x for x in outs if not x.is_constant]

        def output(series: Series) -> Series:
            def compute(k: int) -> Coefficient | None:
                # In the order of the program, so that a long one needs no deep recursion.
                for x in in_order:
                    x[k]
                return series[k]

            return Series(series.aval, compute, series.is_constant, series.is_shifted)

        return [output(read(atom)) for atom in program.outputs]

    def apply(
        self, primitive: Primitive, args: Sequence[Series], eqn: Equation | None = None
    ) -> list[Series]:
        """The series of the outputs of an operation; one object for one operation on the same series."""
        key = (primitive, *[id(x) for x in args])
        outs = None if primitive.effects else self.memo.get((*key,))
        if outs is None:
            outs = self.compute_outputs(primitive, args, eqn)
            # The memo keeps the operands alive, since it knows them by their addresses.
            self.memo[key] = outs
            self.memo[(*key, "operands")] = list(args)
        return outs

    def compute_outputs(
        self, primitive: Primitive, args: Sequence[Series], eqn: Equation | None
    ) -> list[Series]:
        varying = tuple([not x.is_constant for x in args])
        avals = tuple([x.aval for x in args])
        out_avals = primitive.out_avals(avals)
        first = self.lazily_bound(primitive, args, eqn)
        active = (
            varying_output_mask(primitive, avals, varying, out_avals)
            if primitive.differentiable and any(varying)
            else [False] * len(out_avals)
        )
        if primitive.effects and not (isinstance(primitive, HasJet) and any(active)):
            # In the order of the program, and also where no output is read.
            first()
        if not any(active):
            return [
                Series(a, lambda k, i=i: None if k else first()[i], is_constant=True)  # type: ignore[misc]
                for i, a in enumerate(out_avals)
            ]
        if isinstance(primitive, HasJet):
            outs = primitive.jet(self, *args)
            if outs is not None:
                return primitive.as_list(outs)
        return self.outputs_by_jvp(primitive, args, out_avals, active, first)

    def lazily_bound(
        self, primitive: Primitive, args: Sequence[Series], eqn: Equation | None
    ) -> Callable[[], list[Coefficient | None]]:
        """A function that gives the first coefficients of the outputs, computed by its first call."""
        outs: list[Coefficient | None] = []

        def first() -> list[Coefficient | None]:
            if not outs:
                shifted = [x for x in args if x.is_shifted]
                if shifted and all(x[0] is None for x in shifted):
                    return [None] * (
                        len(eqn.outputs) if eqn else len(self.out_avals(primitive, args))
                    )
                operands = [x.first for x in args]
                degree = self.first_degree(primitive, args)
                values = self.bind(primitive, operands, degree, eqn)
                outs.extend([Coefficient(x, degree) for x in values])
            return outs

        return first

    def first_degree(self, primitive: Primitive, args: Sequence[Series]) -> int:
        """The degree of the first coefficients of the outputs: a product of derivatives adds theirs."""
        degrees = [x.first.degree for x in args]
        shifted = [d > 0 for d in degrees]
        if sum(shifted) < 2 or self.curves.directions is None:
            return sum(degrees)
        equation = one_equation_program(primitive, tuple([x.aval for x in args]))
        if rewrite_by_structure(TraceTangentRule(tuple(shifted)), equation).is_affine:
            return self.curves.common_degree([d for d in degrees if d])
        # Derivatives are factors of first power, so of two derivatives it is a product.
        if sum(shifted) > 2:
            raise UncollapsedError
        return sum(degrees)

    def out_avals(self, primitive: Primitive, args: Sequence[Series]) -> Sequence[ShapedArray]:
        return primitive.out_avals(tuple([x.aval for x in args]))

    def outputs_by_jvp(
        self,
        primitive: Primitive,
        args: Sequence[Series],
        out_avals: Sequence[ShapedArray],
        active: Flags,
        first: Callable[[], list[Coefficient | None]],
    ) -> list[Series]:
        """The series of the outputs by the `jvp` rule of the operation."""
        equation = one_equation_program(primitive, tuple([x.aval for x in args]))
        varying = tuple([not x.is_constant and is_inexact(x.aval.dtype) for x in args])
        rule = rewrite_by_structure(TraceTangentRule(varying), equation)
        is_shifted = any(x.is_shifted for x in args)
        higher: Callable[[int], Sequence[Coefficient | None]]
        if rule.is_affine:
            higher = self.affine_coefficients(equation, args, varying)
        elif self.is_composition(primitive, args, varying, out_avals):
            return [self.composition(primitive, args, varying.index(True), out_avals[0])]
        else:
            derivatives: list[Series] = []

            def higher(k: int) -> Sequence[Coefficient | None]:
                if not derivatives:
                    tangents = [self.derivative(x) for x in select_where(args, varying)]
                    derivatives.extend(self.evaluate(rule.program, [*args, *tangents]))
                terms = [scaled(series[k - 1], 1 / k) for series in derivatives]
                return scatter_where(terms, rule.mask)

        def output(i: int) -> Series:
            def compute(k: int) -> Coefficient | None:
                return higher(k)[i] if k else first()[i]

            on = active[i] and rule.mask[i]
            return Series(out_avals[i], compute, is_constant=not on, is_shifted=is_shifted and on)

        return [output(i) for i in range(len(out_avals))]

    def is_composition(
        self,
        primitive: Primitive,
        args: Sequence[Series],
        varying: Flags,
        out_avals: Sequence[ShapedArray],
    ) -> bool:
        """Whether an operation on many curves is a real function of the elements of one operand."""
        if self.curves.directions is None or not isinstance(primitive, Elementwise):
            return False
        x = args[varying.index(True)]
        is_real = is_floating(x.aval.dtype) and is_floating(out_avals[0].dtype)
        return (
            sum(varying) == 1
            and is_real
            and not x.is_shifted
            and x.aval.shape == out_avals[0].shape
        )

    def composition(
        self, primitive: Primitive, args: Sequence[Series], i: int, out_aval: ShapedArray
    ) -> Series:
        """The series of a function of the elements of operand i, by its own Taylor coefficients there.

        These do not depend on the curves, of which only the powers of the change are computed for each.
        """
        x, order = args[i], self.curves.order
        line = Series.given(x.first.value, [ops.constant_like(x.aval, 1)])
        alone = SeriesEvaluator(Curves(order))
        (local,) = alone.apply(primitive, [*args[:i], line, *args[i + 1 :]])
        change = Series(x.aval, lambda k: x[k] if k else None)
        powers = [change]
        while len(powers) < order:
            powers.append(self.product(ops.Mul(), powers[-1], change))

        def compute(k: int) -> Coefficient | None:
            if not k:
                return local[0]
            pairs = [(local[m], powers[m - 1][k]) for m in range(1, k + 1)]
            terms = [
                self.multiply(ops.Mul(), Coefficient(c.value, 0), power)
                for c, power in pairs
                if c is not None and power is not None
            ]
            return self.add(terms)

        return Series(out_aval, compute)

    def affine_coefficients(
        self, equation: Program, args: Sequence[Series], varying: Flags
    ) -> Callable[[int], Sequence[Coefficient | None]]:
        """A function that gives coefficient k of all outputs of an operation that is linear in `varying`."""
        memo: dict[int, Sequence[Coefficient | None]] = {}

        def compute(k: int) -> Sequence[Coefficient | None]:
            terms = [x[k] if on else None for x, on in zip(args, varying, strict=True)]
            present = tuple([c is not None for c in terms])
            if not any(present):
                return [None] * len(equation.outputs)
            rule = rewrite_by_structure(TraceTangentRule(present), equation)
            tangents = [c for c in terms if c is not None]
            degree = self.curves.common_degree([c.degree for c in tangents])
            operands = [*[x.first for x in args], *tangents]
            values = self.run(rule.program, operands, degree)
            return scatter_where([Coefficient(x, degree) for x in values], rule.mask)

        def coefficients(k: int) -> Sequence[Coefficient | None]:
            if k not in memo:
                memo[k] = compute(k)
            return memo[k]

        return coefficients

    def derivative(self, series: Series) -> Series:
        """The series of the derivative in the parameter of the curves."""

        def compute(k: int) -> Coefficient | None:
            return scaled(series[k + 1], float(k + 1))

        return Series(series.aval, compute, is_shifted=True)

    def product(self, primitive: Primitive, x: Series, y: Series) -> Series:
        """The series of a bilinear operation: sums of products of coefficients."""
        aval = self.out_avals(primitive, (x, y))[0]

        def compute(k: int) -> Coefficient | None:
            pairs = [(x[i], y[k - i]) for i in range(k + 1)]
            return self.add([self.multiply(primitive, a, b) for a, b in pairs if a and b])

        is_shifted = x.is_shifted or y.is_shifted
        return Series(aval, compute, x.is_constant and y.is_constant, is_shifted)

    def quotient(self, divide: Primitive, x: Series, y: Series) -> Series:
        """The series of x / y: of x = y * out, the terms with `out` of lower order are known."""
        aval = self.out_avals(divide, (x, y))[0]

        def compute(k: int) -> Coefficient | None:
            pairs = [(y[i], out[k - i]) for i in range(1, k + 1)]
            known = self.add([self.multiply(ops.Mul(), a, b) for a, b in pairs if a and b])
            c = x[k]
            if known is not None:
                difference = (
                    ops.neg(known.value)
                    if c is None
                    else self.bind(ops.Sub(), [c, known], known.degree)[0]
                )
                c = Coefficient(difference, known.degree)
            return None if c is None else self.multiply(divide, c, y.first)

        out = Series(aval, compute, is_shifted=x.is_shifted)
        return out

    def multiply(self, primitive: Primitive, a: Coefficient, b: Coefficient) -> Coefficient:
        """A bilinear operation of two coefficients; at the highest degree, the sum over the curves."""
        degree = a.degree + b.degree
        if self.basis is not None and isinstance(primitive, ops.DotGeneral):
            for side, c, matrix in ((0, a, b), (1, b, a)):
                contracted = primitive.contracting_dims
                if c is self.basis and not matrix.degree and len(contracted[0]) == 1:
                    columns = ops.moveaxis(matrix.value, contracted[1 - side][0], 0)
                    dtype = primitive.preferred_element_type or columns.dtype
                    return Coefficient(ops.convert_element_type(columns, dtype), degree)
        (value,) = self.bind(primitive, [a, b], degree)
        return Coefficient(value, degree)

    def add(self, terms: Sequence[Coefficient]) -> Coefficient | None:
        """The sum of coefficients, None without any; UncollapsedError if they have several degrees."""
        if not terms:
            return None
        degree = self.curves.common_degree([c.degree for c in terms])
        total = terms[0].value
        for c in terms[1:]:
            total = ops.add(total, c.value)
        return Coefficient(total, degree)

    def bind(
        self,
        primitive: Primitive,
        operands: Sequence[Coefficient],
        degree: int,
        eqn: Equation | None = None,
    ) -> list[Value]:
        """The coefficients of this degree that an operation gives; at the highest, summed over the curves."""
        if not any(self.curves.is_batched(c.degree) for c in operands):
            values = [c.value for c in operands]
            if eqn is not None:
                return [*bind_equation(eqn, *values)]
            return primitive.as_list(primitive(*values))
        avals = tuple([self.curve_aval(c) for c in operands])
        return self.run(one_equation_program(primitive, avals), operands, degree)

    def curve_aval(self, c: Coefficient) -> ShapedArray:
        """The type of a coefficient along one curve."""
        aval = aval_of(c.value)
        return aval.update(shape=aval.shape[1:]) if self.curves.is_batched(c.degree) else aval

    def run(self, program: Program, operands: Sequence[Coefficient], degree: int) -> list[Value]:
        """As `bind`, for the outputs of a program."""
        curves = self.curves
        values = [c.value for c in operands]
        dims = [0 if curves.is_batched(c.degree) else None for c in operands]
        if all(d is None for d in dims):
            return [*current_builder.require().inline(program, values)]
        size = curves.directions
        assert size is not None
        outs = []
        for x, d in interpret_batched(program, values, dims, AxisNames().with_size(size)):
            if d is not None:
                x = ops.moveaxis(x, d, 0)
                if not curves.is_batched(degree):
                    if degree != curves.order or not is_inexact(x.dtype):
                        raise UncollapsedError
                    x = curves.collapse(x)
            elif curves.is_batched(degree):
                x = ops.broadcast_in_dim(x, (size, *x.shape), tuple(range(1, x.ndim + 1)))
            outs.append(x)
        return outs

    def instantiated(self, series: Series, terms: int) -> list[Value]:
        """Coefficients 1 to `terms` of a series that is not shifted, with zeros for None."""
        return [
            ops.zeros_like(self.curves.aval(series.aval, k)) if c is None else c.value
            for k, c in ((k, series[k]) for k in range(1, terms + 1))
        ]


def one_equation_program(primitive: Primitive, avals: tuple[ShapedArray, ...]) -> Program:
    """The program of one operation on operands of types `avals`."""
    inputs = [Var(a) for a in avals]
    outputs = [Var(a) for a in primitive.out_avals(avals)]
    return Program(primitive.name, inputs, [Equation(primitive, [*inputs], outputs, None)], outputs)
