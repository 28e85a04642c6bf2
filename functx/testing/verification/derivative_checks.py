"""Checks of the derivatives of a program by their definition: differences and dot products."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import numpy as np
from ml_dtypes import finfo

from functx import ops
from functx.core.errors import FunctxError, ProgramError, RuleError
from functx.core.program import Equation, Program
from functx.core.tracer import current_builder
from functx.core.tracing import trace
from functx.core.types import ShapedArray, is_complex, is_inexact
from functx.testing.numerical_derivatives import central_difference, real_inner_product
from functx.testing.reference.interpreter import (
    EXACT_DTYPE_RULES,
    Array,
    Compute,
    NumpyInterpreter,
    RoundingErrors,
    StepLimitExceeded,
    copy_arguments,
)
from functx.transforms.jvp import jvp, vjp
from functx.transforms.refused import Refused

CONVENTIONAL_DERIVATIVES = frozenset({"stop_gradient"})
"""Operations with derivatives by convention."""
EXPLICIT_DERIVATIVES = CONVENTIONAL_DERIVATIVES | {"custom_jvp", "custom_vjp", "custom_root"}
"""Primitives whose derivative is a given rule, not the derivative of their values."""
BACKWARD_SUFFIX = "_backward"
"""The end of the names of those that take results of others, and have derivatives as if made with them."""

GAP_SAMPLES = 5
"""How often a difference is measured with errors before it is believed."""

STEP, SMALL, CLOSE, TIGHT = 1e-3, 1e-3 / 8, 1e-4, 1e-6
"""The two steps of differences; how close derivatives must be to them, and dot products to each other."""


class DerivativePrograms(NamedTuple):
    """The programs of J t, from the arguments and t, and of J* c, from the arguments and c.

    One is None where functx has no such derivative of the program.
    """

    jvp_program: Program | None
    vjp_program: Program | None
    tangents: list[Array]
    cts: list[Array]


def derivative_programs(program: Program, args: Sequence[Any]) -> DerivativePrograms | None:
    """Both derivatives of a pure program, and where to take them; None if nothing varies."""
    avals, n = program.in_avals, len(program.inputs)
    varying = [i for i, a in enumerate(avals) if is_inexact(a.dtype)]
    kept = [k for k, a in enumerate(program.out_avals) if is_inexact(a.dtype)]
    if not varying or not kept:
        return None
    moving, results = [avals[i] for i in varying], [program.out_avals[k] for k in kept]

    def function(args: Sequence[Any]) -> tuple[Callable[..., list[Any]], list[Any]]:
        def flat(*xs: Any) -> list[Any]:
            new = dict(zip(varying, xs, strict=True))
            given = [new.get(i, x) for i, x in enumerate(args)]
            outs = current_builder.require().inline(program, given)
            return [outs[k] for k in kept]

        return flat, [args[i] for i in varying]

    def pushed(*xs: Any) -> list[Any]:
        flat, primals = function(xs[:n])
        return list(jvp(flat, primals, list(xs[n:]))[1])

    def pulled(*xs: Any) -> list[Any]:
        flat, primals = function(xs[:n])
        return list(vjp(flat, *primals)[1](list(xs[n:])))

    random = np.random.RandomState(len(program.equations))
    return DerivativePrograms(
        trace_derivative(pushed, [*avals, *moving], f"jvp_{program.name}"),
        trace_derivative(pulled, [*avals, *results], f"vjp_{program.name}"),
        [random_direction(random, a) for a in moving],
        [random_direction(random, a) for a in results],
    )


def trace_derivative(
    body: Callable[..., list[Any]], avals: Sequence[ShapedArray], name: str
) -> Any:
    """The program of a derivative; None where functx says that there is none."""
    try:
        program = trace(body, avals, name=name)[0]
    except (RuleError, ProgramError):
        raise
    except FunctxError:
        return None
    primitives = [eqn.primitive for each in program.walk() for eqn in each]
    return None if any(type(p) is Refused for p in primitives) else program


def random_direction(random: Any, aval: ShapedArray) -> Array:
    x = random.uniform(-1.0, 1.0, aval.shape)
    if is_complex(aval.dtype):
        x = x + 1j * random.uniform(-1.0, 1.0, aval.shape)
    return np.asarray(x).astype(aval.dtype)


def find_derivative_mismatch(
    program: Program, args: Sequence[Any], found: DerivativePrograms
) -> str | None:
    """How the derivatives of `program` contradict each other or its values; None if they do not.

    All is computed by the reference interpreter in float64, whatever the dtypes of the program.
    """
    given = copy_arguments(program, args)
    tangents = [np.asarray(t, wide_dtype_of(t)) for t in found.tangents]
    cts = [np.asarray(c, wide_dtype_of(c)) for c in found.cts]
    pushed = run_in_numpy(found.jvp_program, [*given, *tangents])
    pulled = run_in_numpy(found.vjp_program, [*given, *cts])
    if pushed is not None and pulled is not None and all_finite(pushed) and all_finite(pulled):
        left, right = real_inner_product(cts, pushed), real_inner_product(pulled, tangents)
        scale = sum(
            float(np.sum(np.abs(a) * np.abs(b)))
            for a, b in zip([*cts, *pulled], [*pushed, *tangents], strict=True)
        )
        gap = left - right
        if abs(gap) > TIGHT * (scale + 1.0) and abs(gap) > rounding_spread(found, given, gap):
            return f"<c, J t> must be <J* c, t>; got {left!r} and {right!r}"
    if pushed is None or has_explicit_derivatives(program, EXPLICIT_DERIVATIVES):
        return None
    return find_difference_mismatch(program, given, tangents, pushed)


def rounding_spread(found: DerivativePrograms, given: Sequence[Array], gap: float) -> float:
    """How far rounding moves `gap`, the difference <c, J t> - <J* c, t>.

    Numbers in rules have the digits of their dtype alone, which the sine of a large number, say,
    makes into a difference of any size.
    """
    gaps = []
    for seed in range(GAP_SAMPLES):
        pushed, pulled = [
            NumpyInterpreter(RoundingErrors(seed, clips=False)).run(
                p, [np.array(x) for x in (*given, *along)]
            )
            for p, along in ((found.jvp_program, found.tangents), (found.vjp_program, found.cts))
            if p is not None
        ]
        left = real_inner_product(found.cts, pushed)
        gaps.append(abs(left - real_inner_product(pulled, found.tangents) - gap))
    return 8 * max(gaps)


def has_explicit_derivatives(program: Program, names: Collection[str]) -> bool:
    """Whether differences say nothing of the derivatives of a program.

    It has operations of these names, or backward ones, or embeddings with a row of padding, which
    counts as a constant, or the reference rounds within it.
    """
    for each in program.walk():
        for eqn in each.equations:
            name = eqn.primitive.name
            rounds = type(eqn.primitive).__name__ in EXACT_DTYPE_RULES
            if name in names or name.endswith(BACKWARD_SUFFIX):
                return True
            if type(eqn.primitive) is ops.Embedding and eqn.primitive.padding is not None:
                return True
            if rounds and any(is_inexact(a.aval.dtype) for a in eqn.inputs):
                return True
    return False


def find_difference_mismatch(
    program: Program, given: Sequence[Array], tangents: Sequence[Array], pushed: Sequence[Array]
) -> str | None:
    """How J t differs from the change of the values along t, where that is smooth."""
    kept = [k for k, a in enumerate(program.out_avals) if is_inexact(a.dtype)]

    def at(tangents: Sequence[Array], step: float) -> list[Array]:
        moving = iter(tangents)
        along = [next(moving) if is_inexact(a.dtype) else None for a in program.in_avals]
        outs = run_perturbed(program, given, along, step)
        return [outs[k] for k in kept]

    said = None
    for changes in (directional_derivatives, additive_directional_derivatives):
        rows = zip(kept, pushed, changes(at, tangents), strict=True)
        far = [
            (k, got, row.change) for k, got, row in rows if differs_where_smooth(program, got, *row)
        ]
        if not far:
            return None
        said = "J t must be the change along t; got, for output {},\n{}\nfor\n{}".format(*far[0])
    return said


class DirectionalDerivative(NamedTuple):
    """The derivative of an array along a direction, and the mask of where the array is smooth."""

    change: Array
    smooth: Array


PerturbedOutputs = Callable[[Sequence[Any], float], list[Array]]
"""Arrays as a function of tangents and of the step along them."""


def directional_derivatives(
    at: PerturbedOutputs, tangents: Sequence[Any]
) -> list[DirectionalDerivative]:
    """The derivatives of the arrays `at(tangents, s)` at s = 0.

    They are smooth where two steps agree on them, and so do the sides: at a kink the difference of
    both sides is the mean of their slopes.
    """

    def along(step: float) -> list[Array]:
        return at(tangents, step)

    found = []
    with np.errstate(all="ignore"):
        differences = central_difference(along, STEP), central_difference(along, SMALL)
        rows = zip(along(-SMALL), along(0.0), along(SMALL), *differences, strict=True)
        for left, value, right, coarse, fine in rows:
            near = np.abs(coarse - fine) <= CLOSE / 10 * (1 + np.abs(fine))
            bend = np.abs(right - 2 * value + left) / SMALL
            found.append(
                DirectionalDerivative(fine, near & (bend <= 100 * SMALL * (1 + np.abs(fine))))
            )
    return found


def additive_directional_derivatives(
    at: PerturbedOutputs, tangents: Sequence[Any]
) -> list[DirectionalDerivative]:
    """The same, smooth where the slopes along two parts of the tangents add up to that along both.

    They do not at a point such as the origin of x y / z, which has a slope along every line and
    no derivative. It takes three times as long, and so is asked for in case of doubt.
    """
    random = np.random.RandomState(len(tangents))
    parts = [t if t is None else t * random.uniform(0.1, 0.9, np.shape(t)) for t in tangents]
    rest = [t if t is None else t - part for t, part in zip(tangents, parts, strict=True)]
    rows = zip(
        *[directional_derivatives(at, each) for each in (tangents, parts, rest)], strict=True
    )
    found = []
    for (change, smooth), part, other in rows:
        with np.errstate(all="ignore"):
            difference = np.abs(part.change + other.change - change)
        adds_up = difference <= CLOSE / 4 * (1 + np.abs(change))
        found.append(DirectionalDerivative(change, smooth & adds_up & part.smooth & other.smooth))
    return found


class NanAtClampTies(RoundingErrors):
    """No rounding, but nan for elements of `clamp` whose operands tie.

    What follows from them is nan, and so not smooth. The derivative there is a convention, JAX's:
    where x equals a bound, or equal bounds are above x, it is 0 for both.
    """

    def outputs(self, eqn: Equation, args: Sequence[Array], compute: Compute) -> list[Array]:
        outs = compute(args)
        if eqn.primitive.name == "clamp" and is_inexact(eqn.outputs[0].aval.dtype):
            low, x, high = args
            ties = (x == low) | (x == high) | ((low == high) & (x < low))
            return [np.where(ties, np.nan, outs[0])]
        return outs


def run_perturbed(
    program: Program,
    args: Sequence[Array],
    tangents: Sequence[Any],
    step: float,
    limit: float = math.inf,
) -> list[Array]:
    """The outputs on arguments moved along `tangents`, None for those that stay.

    At step 0 they are nan where differences say nothing: where `clamp` has a tie, and where
    arguments are so large that a step is lost in their digits.
    """
    pairs = list(zip(args, tangents, strict=True))
    plain = NumpyInterpreter(limit=limit)
    outs = plain.run(program, [np.array(x if t is None else x + step * t) for x, t in pairs])
    if step:
        return outs
    # A loop that waits for a nan to be small never ends.
    knowing = NumpyInterpreter(NanAtClampTies(), limit=1000 + 4 * plain.steps)
    try:
        return knowing.run(
            program, [np.array(x if t is None else nan_where_step_is_lost(x, t)) for x, t in pairs]
        )
    except StepLimitExceeded:
        return [np.full(x.shape, np.nan) for x in outs]


def nan_where_step_is_lost(x: Array, t: Any) -> Array:
    """`x`, with nan where a step along `t` is lost in its digits."""
    with np.errstate(all="ignore"):
        lost = np.spacing(np.abs(x)) > CLOSE * SMALL * np.abs(t)
    return np.where(lost & (t != 0), np.nan, x)


def derivative_tolerance(program: Program) -> float:
    """How close a derivative must be to differences: the numbers in its rules have the dtypes' digits."""
    outs = [v for each in program.walk() for eqn in each.equations for v in eqn.outputs]
    units = [float(finfo(v.aval.dtype).eps) for v in outs if is_inexact(v.aval.dtype)]
    return max([CLOSE, *[32 * unit for unit in units]])


def differs_where_smooth(program: Program, got: Array, wanted: Array, smooth: Array) -> bool:
    """Whether a derivative, which `program` gives, is not the change where that is smooth."""
    with np.errstate(all="ignore"):
        near = np.abs(got - wanted) <= derivative_tolerance(program) * (1 + np.abs(wanted))
    return bool(np.any(smooth & ~near))


def run_in_numpy(program: Program | None, args: Sequence[Array]) -> list[Array] | None:
    return None if program is None else NumpyInterpreter().run(program, [np.array(x) for x in args])


def wide_dtype_of(x: Array) -> Any:
    return np.complex128 if np.iscomplexobj(x) else np.float64


def all_finite(xs: Sequence[Array]) -> bool:
    return all(np.isfinite(x).all() for x in xs)
