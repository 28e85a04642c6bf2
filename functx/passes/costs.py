"""Costs of equations: floating-point operations, special functions, and bytes moved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import log2, prod
from typing import NamedTuple

from functx import ops
from functx.core.primitive import Primitive
from functx.core.program import Equation, Program, programs_in_parameter
from functx.core.rewriting import cached_rewrite
from functx.core.types import ShapedArray
from functx.ops.convolution import Convolution
from functx.ops.cumulative import Cumulative, LinearRecurrence
from functx.ops.families import Elementwise, Inexact
from functx.ops.windows import WindowReduction
from functx.transforms.control.cond import Cond
from functx.transforms.decompose import lowering_decomposition


@dataclass(frozen=True)
class Cost:
    """The work of an equation or a program.

    `flops` counts operations on numbers: a multiplication and an addition are two, as are those on
    complex numbers. `transcendentals` counts values of functions such as `exp`; they are not among
    the flops. `bytes` counts operands that are read and results that are written. Where a number is not
    known, of the steps of a `while` loop, in a callback, or in a primitive of the user without a
    decomposition, the cost `is_lower_bound`.
    """

    flops: int = 0
    transcendentals: int = 0
    bytes: int = 0
    is_lower_bound: bool = False

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.flops + other.flops,
            self.transcendentals + other.transcendentals,
            self.bytes + other.bytes,
            self.is_lower_bound or other.is_lower_bound,
        )

    def __mul__(self, times: int) -> Cost:
        return Cost(
            self.flops * times,
            self.transcendentals * times,
            self.bytes * times,
            self.is_lower_bound,
        )


def bytes_of(aval: ShapedArray) -> int:
    """The bytes of an array."""
    return aval.size * aval.dtype.itemsize


def contraction_flops(eqn: Equation) -> int | None:
    """The flops of a matrix product or a convolution; None for other equations."""
    primitive = eqn.primitive
    if isinstance(primitive, ops.DotGeneral):
        shape = eqn.inputs[0].aval.shape
        terms = prod([shape[d] for d in primitive.contracting_dims[0]])
    elif isinstance(primitive, Convolution):
        kernel = eqn.inputs[1].aval
        terms = kernel.size // max(kernel.shape[primitive.layouts.kernel[0]], 1)
    else:
        return None
    return 2 * eqn.outputs[0].aval.size * terms


def _factorization(count: Callable[[int, int], float]) -> Callable[[Equation], float]:
    """The operations on each of a batch of matrices, from its rows and columns."""

    def flops(eqn: Equation) -> float:
        *batch, rows, columns = eqn.inputs[0].aval.shape
        return prod(batch) * count(max(rows, columns), min(rows, columns))

    return flops


def _solve(eqn: Equation) -> float:
    """Substitution with one triangular factor of the first operand."""
    return eqn.outputs[0].aval.size * eqn.inputs[0].aval.shape[-1]


def _sort(eqn: Equation) -> float:
    """Comparisons of the first operand along the axis that is sorted."""
    x = eqn.inputs[0].aval
    return x.size * log2(max(x.shape[getattr(eqn.primitive, "axis", -1)], 2))


def _fft(eqn: Equation) -> float:
    """Of a transform of complex numbers; one of real numbers takes half of it."""
    x, y, primitive = eqn.inputs[0].aval, eqn.outputs[0].aval, eqn.primitive
    points = y if primitive.name == "inverse_real_fft" else x
    ndim: int = len(getattr(primitive, "lengths", ())) or getattr(primitive, "ndim", 1)
    return 5 * points.size * log2(max(prod(points.shape[points.ndim - ndim :]), 1))


_FLOPS: dict[str, Callable[[Equation], float]] = {
    # Leading terms, as in Golub and Van Loan, Matrix Computations; m >= n.
    "cholesky": _factorization(lambda m, n: n**3 / 3),
    "lu": _factorization(lambda m, n: n * n * (m - n / 3)),
    "det": _factorization(lambda m, n: 2 * n**3 / 3),
    "balanced_cofactors": _factorization(lambda m, n: 2 * n**3),
    "qr": _factorization(lambda m, n: 4 * m * n * n - 4 * n**3 / 3),
    "geqrf": _factorization(lambda m, n: 2 * n * n * (m - n / 3)),
    "eigh": _factorization(lambda m, n: 9 * n**3),
    "eig": _factorization(lambda m, n: 25 * n**3),
    "schur": _factorization(lambda m, n: 25 * n**3),
    "hessenberg": _factorization(lambda m, n: 10 * n**3 / 3),
    "tridiagonal": _factorization(lambda m, n: 4 * n**3 / 3),
    "svd": _factorization(lambda m, n: 4 * m * n * n + 8 * n**3),
    "triangular_solve": _solve,
    "lu_solve": lambda eqn: 2 * _solve(eqn),
    "tridiagonal_solve": lambda eqn: 8 * eqn.outputs[0].aval.size,
    "sort": _sort,
    "top_k": _sort,
    "fft": _fft,
    "real_fft": lambda eqn: _fft(eqn) / 2,
    "inverse_real_fft": lambda eqn: _fft(eqn) / 2,
    "argmax": lambda eqn: eqn.inputs[0].aval.size,
    "argmin": lambda eqn: eqn.inputs[0].aval.size,
    "search_sorted": lambda eqn: (
        eqn.outputs[0].aval.size * log2(max(eqn.inputs[0].aval.shape[-1], 1) + 1)
    ),
    **dict.fromkeys(
        ("scatter_add", "scatter_mul", "scatter_min", "scatter_max"),
        lambda eqn: eqn.inputs[2].aval.size,
    ),
}
"""Operations of primitives that XLA computes by an algorithm of its own."""
_UNKNOWN = "io_callback", "jax_call", "pure_callback"


def own_cost(eqn: Equation) -> Cost:
    """The flops and transcendentals of an equation without sub-programs."""
    primitive, size = eqn.primitive, sum([v.aval.size for v in eqn.outputs])
    flops = contraction_flops(eqn)
    if flops is not None:
        return Cost(flops)
    if primitive.name in _FLOPS:
        return Cost(round(_FLOPS[primitive.name](eqn)))
    opened = lowering_decomposition(primitive, tuple([a.aval for a in eqn.inputs]))
    if opened is not None:
        return cached_rewrite(program_work, opened)
    if isinstance(primitive, Inexact):
        return Cost(transcendentals=size)
    if isinstance(primitive, Elementwise):
        return Cost(size)
    if isinstance(primitive, ops.Reduction):
        return Cost(max(eqn.inputs[0].aval.size - size, 0))
    if isinstance(primitive, WindowReduction):
        return Cost(size * prod(primitive.sizes))
    if isinstance(primitive, Cumulative):
        return Cost(eqn.inputs[0].aval.size)
    if isinstance(primitive, LinearRecurrence):
        return Cost(2 * size)
    return Cost(is_lower_bound=primitive.is_user_defined or primitive.name in _UNKNOWN)


class SubprogramRun(NamedTuple):
    """A sub-program of an equation that runs `times` times; with `is_lower_bound`, perhaps more often."""

    program: Program
    times: int = 1
    is_lower_bound: bool = False


def steps_of(primitive: Primitive) -> list[SubprogramRun]:
    """The sub-programs that an operation runs; of the branches of a conditional, the one with most work."""
    names = [name for name in primitive.fields if name not in primitive.not_executed]
    programs = [p for name in names for p in programs_in_parameter(getattr(primitive, name))]
    if isinstance(primitive, Cond):
        work = [cached_rewrite(program_work, p) for p in programs]
        most = max(work, key=lambda c: c.flops + c.transcendentals)
        return [SubprogramRun(programs[work.index(most)])]
    times: int = getattr(primitive, "length", 1)
    unbounded: bool = getattr(primitive, "unbounded", False)
    return [SubprogramRun(p, times, unbounded) for p in programs]


def equation_work(eqn: Equation) -> Cost:
    """The flops and transcendentals of an equation, for all runs of the programs inside."""
    steps = steps_of(eqn.primitive)
    if not steps:
        return own_cost(eqn)
    runs = [
        cached_rewrite(program_work, step.program) * step.times
        + Cost(is_lower_bound=step.is_lower_bound)
        for step in steps
    ]
    return sum(runs, Cost())


def program_work(program: Program) -> Cost:
    """The flops and transcendentals of a program, for all runs of the programs inside."""
    return sum(map(equation_work, program), Cost())
