"""The values that a program must have, and how far from them a computation may be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_dtypes import finfo

from functx.core import tree
from functx.core.backend import backend
from functx.core.errors import EffectError, VerificationError
from functx.core.functionalization import Functionalize
from functx.core.program import Effect, Program
from functx.core.program_editing import replace_program_fields
from functx.core.rewriting import cached_rewrite
from functx.core.types import is_inexact
from functx.lowering.functx_call import bind_functx_call
from functx.passes.pipeline import ALL_PASSES, OPTIONAL_PASSES, REQUIRED_PASSES, select_passes
from functx.testing.reference.interpreter import (
    Array,
    NumpyInterpreter,
    RoundingErrors,
    StepLimitExceeded,
    copy_arguments,
    interpret_in_numpy,
    narrow_array,
    widen_array,
)
from functx.testing.rule_evaluation import FAST_COMPILE_OPTIONS
from functx.testing.verification.derivative_checks import (
    derivative_programs,
    find_derivative_mismatch,
)
from functx.testing.verification.shrinking import ProgramCase, shrink
from functx.transforms.argument_names import check_callable, copy_function_metadata
from functx.transforms.dce import RemoveEffects
from functx.transforms.literal_lifting import collect_literals, lift_literals, pack_literals
from functx.transforms.make_ir import make_ir

TOLERANCE_FACTORS = {"results": 4.0, "spread": 8.0}
"""The bound: units in the last place of the result, and multiples of its spread by rounding."""

INITIAL_SAMPLES, CONFIRMING_SAMPLES = 3, 40
"""How often the reference is run with errors: at first, and before a difference is believed."""


class ExpectedOutputs:
    """The outputs of a program by the reference interpreter, and how far rounding moves them.

    Real numbers may differ from the reference by the spread of runs in which every operation
    errs at random by about a rounding of its dtype, so that a sum may be off by what its terms
    explain, and no more. Integers and booleans are exact. A nan must be a nan and an infinity
    that infinity. Elements that the errors turn from one integer, branch or kind of number into
    another are decided by rounding, and not compared.
    """

    def __init__(self, program: Program, args: Sequence[Any], runs: int = INITIAL_SAMPLES):
        self.program, self.args, self.avals = program, args, program.out_avals
        interpreter = NumpyInterpreter(RoundingErrors())
        self.values = self.outputs(interpreter)
        # A loop that ends by convergence may never end with errors.
        self.limit = 1000 + 4 * interpreter.steps
        self.samples: list[list[Array]] = []
        self.draw_samples(runs)

    def outputs(self, interpreter: NumpyInterpreter) -> list[Array]:
        """The outputs of a run."""
        return interpreter.run(self.program, copy_arguments(self.program, self.args))

    def draw_samples(self, runs: int) -> None:
        """Let there be at least so many runs with errors."""
        for seed in range(len(self.samples), runs):
            rounding = RoundingErrors(seed, clips=seed % 2 == 0, narrow=seed % 4 == 2)
            interpreter = NumpyInterpreter(rounding, self.limit)
            try:
                outs = self.outputs(interpreter)
            except StepLimitExceeded:
                outs = [np.full_like(x, np.nan) if is_inexact(x.dtype) else ~x for x in self.values]
            self.samples.append(outs)

    def first_mismatch(self, outs: Sequence[Any]) -> int | None:
        """The number of the first output that `outs` has wrong; None if it has them all right."""
        for k in range(len(self.values)):
            if self.mismatch_mask(k, outs[k]).any():
                self.draw_samples(CONFIRMING_SAMPLES)
                if self.mismatch_mask(k, outs[k]).any():
                    return k
        return None

    def mismatch_mask(self, k: int, out: Any) -> Array:
        """The elements of output `k` that are not as the program states or beyond the bound."""
        out = np.asarray(out)
        if out.shape != self.avals[k].shape or out.dtype != self.avals[k].dtype:
            return np.array(True)
        return self.exceeds_bound(k, out)

    def exceeds_bound(self, k: int, out: Array) -> Array:
        """The elements of output `k` that are beyond its bound, as a mask; `out` may be wide."""
        aval, value = self.avals[k], self.values[k]
        rows = [sample[k] for sample in self.samples]
        if not is_inexact(aval.dtype):
            return np.all([row == value for row in rows], axis=0) & (out != value)
        out, info = widen_array(out), finfo(aval.dtype)
        with np.errstate(all="ignore"):
            spread = np.max([np.abs(row - value) for row in rows], axis=0)
            bound = TOLERANCE_FACTORS["results"] * float(info.eps) * np.abs(value)
            bound = bound + TOLERANCE_FACTORS["spread"] * spread + float(info.tiny)
            near = np.abs(out - value) <= bound
        # Rounding to the dtype itself may make the largest numbers infinite.
        near |= equal_or_both_nan(widen_array(narrow_array(value, aval.dtype)), out)
        alike = np.all([np.isfinite(row) == np.isfinite(value) for row in rows], axis=0)
        special = np.all([equal_or_both_nan(row, value) for row in rows], axis=0)
        return np.where(np.isfinite(value), alike & ~near, special & ~equal_or_both_nan(out, value))


class ExpectedOutputsWithWrites(ExpectedOutputs):
    """The same for a program that writes, in NumPy memory; written arguments follow the outputs."""

    def __init__(self, program: Program, args: Sequence[Any], runs: int = INITIAL_SAMPLES):
        self.written = cached_rewrite(Functionalize(), program).written
        super().__init__(program, args, runs)
        self.avals = [*self.avals, *[program.in_avals[i] for i in self.written]]

    def outputs(self, interpreter: NumpyInterpreter) -> list[Array]:
        given = copy_arguments(self.program, self.args)
        outs = [np.array(x) for x in interpreter.run(self.program, given)]
        return [*outs, *[given[i] for i in self.written]]


def equal_or_both_nan(x: Array, y: Array) -> Any:
    """Where two arrays are equal, nan and nan too; an infinite complex number equals any other."""
    if np.iscomplexobj(x):
        return (x == y) | (~np.isfinite(x) & ~np.isfinite(y))
    return (x == y) | (np.isnan(x) & np.isnan(y))


class ExecutionPath(NamedTuple):
    """A way to run a program: its name, and `run(program, args)`, which gives the outputs."""

    name: str
    run: Callable[[Program, Sequence[Any]], list[Any]]


class ExecutionPaths:
    """The ways to run one program on one set of arguments; equal lowered text runs once."""

    def __init__(self) -> None:
        self.outputs: dict[Any, list[Any]] = {}

    def all(self) -> list[ExecutionPath]:
        """Every way, those that do least first."""
        alone = [
            ExecutionPath(
                f"lowered with the pass `{name}` alone",
                partial(self.lowered, (*REQUIRED_PASSES, name)),
            )
            for name in OPTIONAL_PASSES
        ]
        return [
            ExecutionPath("lowered without any pass", partial(self.lowered, REQUIRED_PASSES)),
            *alone,
            ExecutionPath(
                "lowered with all passes at full strength", partial(self.lowered, ALL_PASSES)
            ),
            ExecutionPath("compiled as by functx.jit", self.compiled),
            ExecutionPath("called inside jax.jit", self.inside_jax),
            ExecutionPath("compiled with its numbers as inputs", self.with_lifted_literals),
            ExecutionPath("printed and parsed", self.after_print_and_parse),
        ]

    def lowered(self, passes: Sequence[str], program: Program, args: Sequence[Any]) -> list[Any]:
        """The outputs when these passes do all that they can, and XLA little."""
        return self.run(program, args, select_passes(*passes, always=True), FAST_COMPILE_OPTIONS)

    def compiled(self, program: Program, args: Sequence[Any]) -> list[Any]:
        """The outputs as users get them."""
        return self.run(program, args, nullcontext(), {})

    def inside_jax(self, program: Program, args: Sequence[Any]) -> list[Any]:
        """The outputs of the program called in a function of JAX's."""
        return [*jax.jit(lambda *xs: backend.run(None, program, xs))(*args)]

    def with_lifted_literals(self, program: Program, args: Sequence[Any]) -> list[Any]:
        """The outputs of the program that takes its literals as arguments."""
        literals = collect_literals(program)
        lifted = lift_literals(lambda p: p, program, range(len(literals)))
        if lifted is None:
            return self.compiled(program, args)
        return self.run(
            lifted.program, [*args, *pack_literals(literals)], nullcontext(), FAST_COMPILE_OPTIONS
        )

    def after_print_and_parse(self, program: Program, args: Sequence[Any]) -> list[Any]:
        """The outputs of the program that its text stands for."""
        return self.lowered(REQUIRED_PASSES, Program.parse(str(program)), args)

    def run(
        self, program: Program, args: Sequence[Any], passes: Any, options: dict[str, Any]
    ) -> list[Any]:
        """The outputs of `program`, lowered in the context `passes` and compiled with `options`."""

        def f(*xs: Any) -> list[Any]:
            return bind_functx_call(program, xs)

        with passes:
            lowered = jax.jit(f).lower(*args)
        key = lowered.as_text(), *options, *[np.asarray(x).tobytes() for x in args]
        if key not in self.outputs:
            outs = lowered.compile(options)(*args)
            self.outputs[key] = [np.asarray(x) for x in outs]
        return self.outputs[key]


def functionalized_in_numpy(program: Program, args: Sequence[Any]) -> list[Any]:
    """The outputs of `program` without writes, and the new values of the arrays that it writes to."""
    return interpret_in_numpy(cached_rewrite(Functionalize(), program).program, *args)


def verify(fun: Callable[..., Any]) -> Callable[..., Any]:
    """`fun`, checked at each call: its program is run in several ways, which must agree.

    `fun` is a function of arrays, transformed or not, or a `Program`. The measure is the
    reference interpreter (`functx.testing.interpret_in_numpy`), which runs the program equation by
    equation in NumPy, in float64 and complex128. It is compared with

    - the program lowered without any pass, with each pass alone, with all of them at full
      strength, and compiled as `functx.jit` compiles it;
    - the program called inside `jax.jit`, compiled with its numbers as arguments, and printed and
      parsed again;
    - NumPy's own writes and views in memory, where the program writes in place;
    - for inexact arguments its derivatives: `<c, J t> = <J* c, t>`, differences of its values in
      float64, and the programs of both derivatives in all the ways above.

    Integers and booleans must be equal, nans be nans. Real numbers may differ by what rounding
    explains: the reference runs again with errors of the size of a rounding in each operation,
    and its spread is the bound, so it follows the magnitudes that were added up. A primitive of a
    user's, which has no NumPy meaning, is run in the reference as that one equation lowered alone;
    so are `eigh` and `svd`, which choose among several right answers.

    Returns what `fun` returns, computed by the reference interpreter. Raises VerificationError with
    the smallest program found that shows the difference, its arguments, both values, and the way
    that makes it differ.

    >>> import functx
    >>> float(functx.testing.verify(lambda x: x * 2.0 + 1.0)(3.0))
    7.0
    """
    check_callable(fun, "verify")

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        program = fun if type(fun) is Program else make_ir(fun)(*args, **kwargs)
        leaves = [*tree.leaves((args, kwargs)), *program.captured]
        pairs = zip(leaves, program.in_avals, strict=True)
        outs = verify_program(
            replace_program_fields(program, captured=()), [np.array(x, a.dtype) for x, a in pairs]
        )
        return outs if program.trees is None else tree.unflatten(program.trees[1], outs)

    return copy_function_metadata(wrapper, fun, "verify")


def verify_program(program: Program, args: Sequence[Any], orders: int = 1) -> list[Any]:
    """The outputs of `program` by the reference interpreter, once every way agrees with it.

    `orders` says how many derivatives are checked too.
    """
    if program.effects - {Effect.WRITE}:
        program = cached_rewrite(RemoveEffects(), program)
    case = verify_execution_paths(ProgramCase(program, list(args)))
    if orders:
        verify_derivatives(case, orders)
    return interpret_in_numpy(program, *args)


def verify_execution_paths(case: ProgramCase, chosen: Sequence[int] | None = None) -> ProgramCase:
    """The case without writes, once every way to run it agrees; `chosen` numbers those to try."""
    if case.program.writes:
        pure = ExecutionPath("writes made pure by `functionalize`", functionalized_in_numpy)
        check_execution_path(case, pure, ExpectedOutputsWithWrites(*case))
        case = ProgramCase(cached_rewrite(Functionalize(), case.program).program, case.args)
    ways, expected = ExecutionPaths().all(), ExpectedOutputs(*case)
    for way in ways if chosen is None else [ways[i] for i in chosen]:
        check_execution_path(case, way, expected)
    return case


def check_execution_path(case: ProgramCase, way: ExecutionPath, expected: ExpectedOutputs) -> None:
    """Raise VerificationError, with the smallest case, if `way` gives other than is expected."""
    difference = find_mismatch(way, case, expected)
    if difference is None:
        return
    small = shrink(case, lambda smaller: find_mismatch(way, smaller) is not None)
    difference = find_mismatch(way, small) or difference
    raise VerificationError(
        f"{case.program.name}: a program must give the same in every way to run it; {way.name}, "
        f"it gives {difference.got} where the reference interpreter gives {difference.wanted}",
        *describe_case(small),
    )


class Mismatch(NamedTuple):
    """The result of a way and that of the reference interpreter, as text."""

    got: str
    wanted: str


def find_mismatch(
    way: ExecutionPath, case: ProgramCase, expected: ExpectedOutputs | None = None
) -> Mismatch | None:
    """How `way` differs from the reference interpreter on a case; None if it does not."""
    if expected is None:
        expected = (
            ExpectedOutputs(*case) if not case.program.writes else ExpectedOutputsWithWrites(*case)
        )
    try:
        outs = way.run(*case)
    except Exception as error:
        return Mismatch(f"{type(error).__name__}: {error}", format_array(expected.values[0]))
    k = expected.first_mismatch(outs)
    if k is None:
        return None
    return Mismatch(format_array(outs[k]), format_array(expected.values[k]))


def verify_derivatives(case: ProgramCase, orders: int = 0) -> None:
    """Check the derivatives of a case by definition; with `orders`, their programs in all ways too."""
    found = derivative_programs(*case)
    if found is None:
        return
    said = find_derivative_mismatch(*case, found)
    if said is not None:
        small = shrink(case, lambda smaller: describe_derivative_mismatch(smaller) is not None)
        raise VerificationError(
            f"{case.program.name}: derivatives must agree with each other and with the values; "
            f"{describe_derivative_mismatch(small) or said}",
            *describe_case(small),
        )
    for derived, directions in (
        (found.jvp_program, found.tangents),
        (found.vjp_program, found.cts),
    ):
        if derived is not None and orders:
            verify_program(derived, [*case.args, *directions], orders - 1)


def describe_derivative_mismatch(case: ProgramCase) -> str | None:
    """How the derivatives of a case contradict each other or its values."""
    found = derivative_programs(*case)
    return None if found is None else find_derivative_mismatch(*case, found)


def describe_case(case: ProgramCase) -> list[str]:
    """The program of a case and its arguments, for a message."""
    pairs = zip(case.program.inputs, case.args, strict=True)
    lines = [f"argument {i}, {v.aval!r}: {format_array(x)}" for i, (v, x) in enumerate(pairs)]
    return ["the smallest program found that differs:", *str(case.program).splitlines(), *lines]


def format_array(x: Any) -> str:
    return np.array2string(np.asarray(x), separator=", ", threshold=60).replace("\n", " ")


def verify_before_compile(program: Program, args: Sequence[Any]) -> None:
    """Check a program that is about to be compiled, unless it is one of those made for a check.

    Arguments that JAX traces have no values to check on, and an effect with results runs only once.
    """
    values = [backend.raw_key_data(x) for x in args]
    traced = any(isinstance(x, jax.core.Tracer) for x in values)
    if _verifying.get() or traced or program.has_captures or program.named_axes:
        return
    token = _verifying.set(True)
    try:
        pairs = zip(values, program.in_avals, strict=True)
        if program.effects:
            program = cached_rewrite(RemoveEffects(), program)
        verify_program(program, [np.array(x, a.dtype) for x, a in pairs])
    except EffectError:
        return
    finally:
        _verifying.reset(token)


_verifying: ContextVar[bool] = ContextVar("verifying", default=False)
