"""Checks of the derivatives of a program against differences of its values and against each other."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from ml_dtypes import finfo

from functx import ops
from functx.core.errors import FunctxError, ProgramError, RuleError
from functx.core.masks import indices_where, inexact_mask
from functx.core.primitive import Primitive
from functx.core.program import Equation, Program
from functx.core.tracer import current_builder
from functx.core.tracing import trace
from functx.core.types import is_inexact
from functx.core.typing import ArrayLike, Avals, Value, Values
from functx.ops.autodiff import Refused
from functx.testing.numerical_derivatives import (
    central_difference,
    random_direction,
    real_inner_product,
)
from functx.testing.reference.interpreter import (
    EXACT_DTYPE_DEFINITIONS,
    Array,
    Compute,
    NumpyInterpreter,
    RoundingErrors,
    StepLimitExceeded,
    copy_arguments,
    definition_by_class,
)
from functx.testing.reference.linear_algebra import eigendecomposition
from functx.transforms.control.predication import MaskedOperand
from functx.transforms.jvp import jvp, vjp
from functx.transforms.spectral_functions import SpectralFunction

USER_RULES = frozenset({"custom_jvp", "custom_vjp", "custom_root"})
"""Primitives whose derivative is a user's rule, not that of their values."""

BACKWARD_SUFFIX = "_backward"
"""Suffix of primitives with results of other primitives as operands, differentiated as one formula."""

GAP_SAMPLES = 5
"""The number of runs with random rounding errors before a gap of inner products is reported."""

STEP, SMALL_STEP = 1e-3, 1e-3 / 8
"""The two steps of central differences."""

DIFFERENCE_TOLERANCE, INNER_PRODUCT_TOLERANCE = 1e-4, 1e-6
"""Relative tolerances: of derivatives against differences, and of inner products."""

EIGENVALUE_GAP = 1e-3
"""The relative gap of eigenvalues below which third derivatives of functions of matrices are imprecise."""


class DerivativePrograms(NamedTuple):
    """The programs from arguments and t to J t, and from arguments and c to J* c; with random t and c.

    A program is None if functx refuses that derivative.
    """

    jvp_program: Program | None
    vjp_program: Program | None
    tangents: list[Array]
    cts: list[Array]


def derivative_programs(program: Program, args: Sequence[ArrayLike]) -> DerivativePrograms | None:
    """The derivative programs of a pure program, with random directions; None without inexact values."""
    avals, n = program.in_avals, len(program.inputs)
    varying = indices_where(inexact_mask(avals))
    inexact_outs = indices_where(inexact_mask(program.out_avals))
    if not varying or not inexact_outs:
        return None
    tangent_avals = [avals[i] for i in varying]
    ct_avals = [program.out_avals[k] for k in inexact_outs]

    def function(args: Values) -> tuple[Callable[..., list[Value]], list[Value]]:
        def flat(*xs: Value) -> list[Value]:
            replaced = dict(zip(varying, xs, strict=True))
            operands = [replaced.get(i, x) for i, x in enumerate(args)]
            outs = current_builder.require().inline(program, operands)
            return [outs[k] for k in inexact_outs]

        return flat, [args[i] for i in varying]

    def jvp_body(*xs: Value) -> list[Value]:
        flat, primals = function(xs[:n])
        return list(jvp(flat, primals, list(xs[n:]))[1])

    def vjp_body(*xs: Value) -> list[Value]:
        flat, primals = function(xs[:n])
        return list(vjp(flat, *primals)[1](list(xs[n:])))

    random = np.random.RandomState(len(program.equations))
    return DerivativePrograms(
        trace_derivative(jvp_body, [*avals, *tangent_avals], f"jvp_{program.name}"),
        trace_derivative(vjp_body, [*avals, *ct_avals], f"vjp_{program.name}"),
        [random_direction(random, a) for a in tangent_avals],
        [random_direction(random, a) for a in ct_avals],
    )


def trace_derivative(body: Callable[..., list[Value]], avals: Avals, name: str) -> Program | None:
    """The program of a derivative, or None if functx refuses it."""
    try:
        program = trace(body, avals, name=name)[0]
    except (RuleError, ProgramError):
        raise
    except FunctxError:
        return None
    primitives = [eqn.primitive for subprogram in program.walk() for eqn in subprogram]
    return None if any(type(p) is Refused for p in primitives) else program


def find_derivative_mismatch(
    program: Program, args: Sequence[ArrayLike], derivatives: DerivativePrograms
) -> str | None:
    """The contradiction between the derivatives of `program` and each other or its values, or None.

    The reference interpreter computes all values, in float64 whatever the dtypes of the program.
    """
    wide_args = copy_arguments(program, args)
    tangents = [np.asarray(t, wide_dtype_of(t)) for t in derivatives.tangents]
    cts = [np.asarray(c, wide_dtype_of(c)) for c in derivatives.cts]
    out_tangents = run_in_numpy(derivatives.jvp_program, [*wide_args, *tangents])
    in_cts = run_in_numpy(derivatives.vjp_program, [*wide_args, *cts])
    if (
        out_tangents is not None
        and in_cts is not None
        and all_finite(out_tangents)
        and all_finite(in_cts)
    ):
        left, right = real_inner_product(cts, out_tangents), real_inner_product(in_cts, tangents)
        scale = sum(
            float(np.sum(np.abs(a) * np.abs(b)))
            for a, b in zip([*cts, *in_cts], [*out_tangents, *tangents], strict=True)
        )
        gap = left - right
        if abs(gap) > INNER_PRODUCT_TOLERANCE * (scale + 1.0) and abs(gap) > rounding_spread(
            derivatives, wide_args, gap
        ):
            return f"<c, J t> must be <J* c, t>; got {left!r} and {right!r}"
    if out_tangents is None or has_explicit_derivatives(program, USER_RULES):
        return None
    return find_difference_mismatch(program, wide_args, tangents, out_tangents)


def rounding_spread(
    derivatives: DerivativePrograms, wide_args: Sequence[Array], gap: float
) -> float:
    """The spread of `gap`, which is <c, J t> - <J* c, t>, over runs with random rounding errors.

    Literals in rules have the precision of their dtype, and an operation such as the sine of a
    large number amplifies their errors without bound.
    """
    gaps = []
    for seed in range(GAP_SAMPLES):
        out_tangents, in_cts = [
            NumpyInterpreter(RoundingErrors(seed, clips=False)).run(
                p, [np.array(x) for x in (*wide_args, *directions)]
            )
            for p, directions in (
                (derivatives.jvp_program, derivatives.tangents),
                (derivatives.vjp_program, derivatives.cts),
            )
            if p is not None
        ]
        left = real_inner_product(derivatives.cts, out_tangents)
        gaps.append(abs(left - real_inner_product(in_cts, derivatives.tangents) - gap))
    return 8 * max(gaps)


@cache
def has_stated_derivative(cls: type[Primitive]) -> bool:
    """Whether the derivative of a primitive is a convention: all samples that have one state it."""
    samples = [s for s in cls.samples if any(is_inexact(a.dtype) for a in s.avals)]
    return bool(samples) and all(s.gradients is not None for s in samples)


def has_explicit_derivatives(program: Program, names: Collection[str] = ()) -> bool:
    """Whether the derivatives of a program are not those of its values, so differences cannot check them.

    That is so for primitives in `names`, for conventions, for backward primitives, for embeddings with a padding
    row, which counts as a constant, and where the reference rounds to the dtype.
    """
    for subprogram in program.walk():
        for eqn in subprogram.equations:
            name = eqn.primitive.name
            rounds = definition_by_class(type(eqn.primitive)) in EXACT_DTYPE_DEFINITIONS
            if name in names or name.endswith(BACKWARD_SUFFIX):
                return True
            if has_stated_derivative(type(eqn.primitive)):
                return True
            if type(eqn.primitive) is ops.Embedding and eqn.primitive.padding is not None:
                return True
            if rounds and any(is_inexact(a.aval.dtype) for a in eqn.inputs):
                return True
    return False


def find_difference_mismatch(
    program: Program,
    wide_args: Sequence[Array],
    tangents: Sequence[Array],
    out_tangents: Sequence[Array],
) -> str | None:
    """The difference between J t and the change of the values along t, where that is smooth, or None."""
    inexact_outs = indices_where(inexact_mask(program.out_avals))
    plain = NumpyInterpreter()
    values = plain.run(program, [np.array(x) for x in wide_args])

    def at(tangents: Sequence[Array | None], step: float) -> list[Array]:
        remaining = iter(tangents)
        directions = [next(remaining) if is_inexact(a.dtype) else None for a in program.in_avals]
        try:
            outs = run_perturbed(program, wide_args, directions, step, plain.limit_of_similar_runs)
        except StepLimitExceeded:
            outs = [np.full(np.shape(x), np.nan) for x in values]
        return [outs[k] for k in inexact_outs]

    message = None
    for derivatives in (directional_derivatives, additive_directional_derivatives):
        rows = zip(inexact_outs, out_tangents, derivatives(at, tangents), strict=True)
        mismatches = [
            (k, got, row.change) for k, got, row in rows if differs_where_smooth(program, got, *row)
        ]
        if not mismatches:
            return None
        message = "J t must be the change along t; got, for output {},\n{}\nfor\n{}".format(
            *mismatches[0]
        )
    return message


class DirectionalDerivative(NamedTuple):
    """The derivative of an array along a direction, and the mask of the elements that are smooth."""

    change: Array
    smooth: Array


PerturbedOutputs = Callable[[Sequence[Array | None], float], list[Array]]
"""A function from tangents and a step along them to arrays."""


def directional_derivatives(
    at: PerturbedOutputs, tangents: Sequence[Array | None]
) -> list[DirectionalDerivative]:
    """The derivatives of the arrays `at(tangents, s)` at s = 0.

    An element is smooth if the differences of two step sizes agree, and the slopes at both sides
    too; at a kink the central difference is the mean of both slopes.
    """

    def at_step(step: float) -> list[Array]:
        return at(tangents, step)

    derivatives = []
    with np.errstate(all="ignore"):
        differences = central_difference(at_step, STEP), central_difference(at_step, SMALL_STEP)
        rows = zip(
            at_step(-SMALL_STEP), at_step(0.0), at_step(SMALL_STEP), *differences, strict=True
        )
        for left, value, right, coarse, fine in rows:
            steps_agree = np.abs(coarse - fine) <= DIFFERENCE_TOLERANCE / 10 * (1 + np.abs(fine))
            slope_change = np.abs(right - 2 * value + left) / SMALL_STEP
            sides_agree = slope_change <= 100 * SMALL_STEP * (1 + np.abs(fine))
            derivatives.append(DirectionalDerivative(fine, steps_agree & sides_agree))
    return derivatives


def additive_directional_derivatives(
    at: PerturbedOutputs, tangents: Sequence[Array | None]
) -> list[DirectionalDerivative]:
    """`directional_derivatives`, smooth only where the derivatives along two parts add up to the whole.

    The parts sum to the tangents. At the origin of x y / z, for example, there is a slope along
    every line but no derivative. This takes three times as long, so it only confirms a mismatch.
    """
    random = np.random.RandomState(len(tangents))
    parts = [t if t is None else t * random.uniform(0.1, 0.9, np.shape(t)) for t in tangents]
    other_parts = [t if t is None else t - part for t, part in zip(tangents, parts, strict=True)]
    rows = zip(
        *[directional_derivatives(at, ts) for ts in (tangents, parts, other_parts)], strict=True
    )
    derivatives = []
    for (change, smooth), part, other in rows:
        with np.errstate(all="ignore"):
            difference = np.abs(part.change + other.change - change)
        adds_up = difference <= DIFFERENCE_TOLERANCE / 4 * (1 + np.abs(change))
        smooth = smooth & adds_up & part.smooth & other.smooth
        derivatives.append(DirectionalDerivative(change, smooth))
    return derivatives


class NanWithoutDerivative(RoundingErrors):
    """No rounding errors, but nan for results that have no derivative or one by convention.

    Values computed from them are nan, hence not smooth. The derivative of `clamp` at a tie is JAX's
    convention: where x equals a bound, or equal bounds are above x, it is 0 for both. Where a selection
    has equal operands, its condition may be that they are. Third derivatives of functions of matrices
    are undefined where eigenvalues are equal.
    """

    def outputs(self, eqn: Equation, args: Sequence[Array], compute: Compute) -> list[Array]:
        outs, primitive = compute(args), eqn.primitive
        if type(primitive) is ops.Clamp and is_inexact(eqn.outputs[0].aval.dtype):
            low, x, high = args
            ties = (x == low) | (x == high) | ((low == high) & (x < low))
            return [np.where(ties, np.nan, outs[0])]
        if type(primitive) is ops.Select and is_inexact(eqn.outputs[0].aval.dtype):
            return [np.where(args[1] == args[2], np.nan, outs[0])]
        if type(primitive) is SpectralFunction and primitive.order == 2:
            w = np.sort(eigendecomposition(args[0], primitive.rows)[0])
            gaps, size = np.diff(w), np.abs(w).max(-1, keepdims=True)
            ties = np.any(gaps <= EIGENVALUE_GAP * size, axis=-1)
            return [np.where(ties[..., None, None], np.nan, outs[0])]
        return outs


class InactiveReplaced(RoundingErrors):
    """No rounding errors, but operands of inactive elements are `filler`.

    No derivative passes such an operand, though its value may be among the residuals of a program.
    """

    def __init__(self, filler: float):
        super().__init__()
        self.filler = filler

    def outputs(self, eqn: Equation, args: Sequence[Array], compute: Compute) -> list[Array]:
        outs = compute(args)
        if type(eqn.primitive) is MaskedOperand and is_inexact(outs[0].dtype):
            mask = args[0].reshape(args[0].shape + (1,) * (outs[0].ndim - args[0].ndim))
            return [np.where(mask, outs[0], self.filler)]
        return outs


def run_perturbed(
    program: Program,
    args: Sequence[Array],
    tangents: Sequence[Array | None],
    step: float,
    limit: float = math.inf,
) -> list[Array]:
    """The outputs on arguments moved by `step` along `tangents`; None is a fixed argument.

    At step 0 they are nan where differences cannot check derivatives: where an operation has none
    (`NanWithoutDerivative`), where operands of inactive elements count (`InactiveReplaced`), and
    where an argument is so large that a step is lost in its digits.
    """
    pairs = list(zip(args, tangents, strict=True))
    plain = NumpyInterpreter(limit=limit)
    outs = plain.run(program, [np.array(x if t is None else x + step * t) for x, t in pairs])
    if step:
        return outs
    marked = [x if t is None else nan_where_step_is_lost(x, t) for x, t in pairs]
    runs: list[tuple[RoundingErrors, Sequence[Array]]] = [(NanWithoutDerivative(), marked)]
    if any(type(eqn.primitive) is MaskedOperand for each in program.walk() for eqn in each):
        runs += [(InactiveReplaced(filler), args) for filler in (-0.75, 1.25)]
    try:
        for rule, xs in runs:
            interpreter = NumpyInterpreter(rule, plain.limit_of_similar_runs)
            found = interpreter.run(program, [np.array(x) for x in xs])
            outs = [np.where(x == y, x, np.nan) for x, y in zip(outs, found, strict=True)]
    except StepLimitExceeded:
        return [np.full(x.shape, np.nan) for x in outs]
    return outs


def nan_where_step_is_lost(x: Array, t: Array) -> Array:
    """`x`, with nan where a step along `t` is lost in its digits."""
    with np.errstate(all="ignore"):
        lost = np.spacing(np.abs(x)) > DIFFERENCE_TOLERANCE * SMALL_STEP * np.abs(t)
    return np.where(lost & (t != 0), np.nan, x)


def derivative_tolerance(program: Program) -> float:
    """The tolerance against differences: literals of rules have the precision of the program's dtypes."""
    outs = [v for subprogram in program.walk() for eqn in subprogram for v in eqn.outputs]
    units = [float(finfo(v.aval.dtype).eps) for v in outs if is_inexact(v.aval.dtype)]
    return max([DIFFERENCE_TOLERANCE, *[32 * unit for unit in units]])


def differs_where_smooth(program: Program, got: Array, expected: Array, smooth: Array) -> bool:
    """Whether a derivative of `program` differs from the expected one in a smooth element."""
    with np.errstate(all="ignore"):
        tolerance = derivative_tolerance(program) * (1 + np.abs(expected))
        is_close = np.abs(got - expected) <= tolerance
    return bool(np.any(smooth & ~is_close))


def run_in_numpy(program: Program | None, args: Sequence[Array]) -> list[Array] | None:
    """The outputs of `program` by the reference interpreter, or None without a program."""
    return None if program is None else NumpyInterpreter().run(program, [np.array(x) for x in args])


def wide_dtype_of(x: Array) -> type[np.inexact[Any]]:
    """float64, or complex128 for a complex array."""
    return np.complex128 if np.iscomplexobj(x) else np.float64


def all_finite(xs: Sequence[Array]) -> bool:
    """Whether all elements of all arrays are finite."""
    return all(np.isfinite(x).all() for x in xs)
