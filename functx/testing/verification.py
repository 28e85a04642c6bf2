"""`verify`: a program runs on several execution paths, which must agree with the reference interpreter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_dtypes import finfo

from functx.core import tree
from functx.core.backend import backend
from functx.core.captured_state import read_states
from functx.core.effects import Effect
from functx.core.errors import ArgumentError, EffectError, VerificationError
from functx.core.functionalization import Functionalize
from functx.core.program import Program
from functx.core.program_editing import replace_program_fields
from functx.core.rewriting import cached_rewrite
from functx.core.types import is_inexact
from functx.core.typing import ArrayLike, PyTree, Value
from functx.lowering.functx_call import bind_functx_call
from functx.passes.pipeline import ALL_PASSES, OPTIONAL_PASSES, REQUIRED_PASSES, select_passes
from functx.testing.derivative_checks import derivative_programs, find_derivative_mismatch
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
from functx.testing.shrinking import ProgramCase, shrink
from functx.transforms.argument_names import check_callable, copy_function_metadata
from functx.transforms.dce import RemoveEffects
from functx.transforms.literal_lifting import collect_literals, lift_literals, pack_literals
from functx.transforms.make_ir import make_ir

TOLERANCE_FACTORS = {"results": 4.0, "spread": 8.0}
"""Factors of the tolerance: of a rounding of the result, and of the spread of the sampled runs."""

INITIAL_SAMPLES, CONFIRMING_SAMPLES = 3, 40
"""The number of runs with random rounding errors: at first, and before a mismatch is reported."""


class ExpectedOutputs:
    """The outputs of a program by the reference interpreter, with tolerances from sampled rounding.

    The program also runs with a random error of about one rounding in every operation. Real
    numbers may differ from the reference by a multiple of the spread of these runs, so the
    tolerance of a sum follows its terms. Integers, booleans, nans and infinities must be equal.
    Elements that rounding decides (an integer, branch, nan or infinity that differs between the
    runs) are not compared.
    """

    def __init__(self, program: Program, args: Sequence[ArrayLike], runs: int = INITIAL_SAMPLES):
        self.program, self.args, self.avals = program, args, program.out_avals
        interpreter = NumpyInterpreter(RoundingErrors())
        self.values = self.outputs(interpreter)
        self.limit = interpreter.limit_of_similar_runs
        self.samples: list[list[Array]] = []
        self.draw_samples(runs)

    def outputs(self, interpreter: NumpyInterpreter) -> list[Array]:
        """The outputs of one run."""
        return interpreter.run(self.program, copy_arguments(self.program, self.args))

    def draw_samples(self, runs: int) -> None:
        """Extend `samples` to `runs` runs with random rounding errors."""
        for seed in range(len(self.samples), runs):
            rounding = RoundingErrors(seed, clips=seed % 2 == 0, narrow=seed % 4 == 2)
            interpreter = NumpyInterpreter(rounding, self.limit)
            try:
                outs = self.outputs(interpreter)
            except StepLimitExceeded:
                outs = [np.full_like(x, np.nan) if is_inexact(x.dtype) else ~x for x in self.values]
            self.samples.append(outs)

    def first_mismatch(self, outs: Sequence[Any]) -> int | None:
        """The index of the first output that does not match, or None if all match."""
        for k in range(len(self.values)):
            if self.mismatch_mask(k, outs[k]).any():
                self.draw_samples(CONFIRMING_SAMPLES)
                if self.mismatch_mask(k, outs[k]).any():
                    return k
        return None

    def mismatch_mask(self, k: int, out: ArrayLike) -> Array:
        """The mask of elements of output `k` out of tolerance; true if the shape or the dtype is wrong."""
        out = np.asarray(out)
        if out.shape != self.avals[k].shape or out.dtype != self.avals[k].dtype:
            return np.array(True)
        return self.exceeds_bound(k, out)

    def exceeds_bound(self, k: int, out: Array) -> Array:
        """The mask of elements of output `k` out of tolerance; `out` may have a wider dtype."""
        aval, value = self.avals[k], self.values[k]
        sampled = [sample[k] for sample in self.samples]
        if not is_inexact(aval.dtype):
            return np.all([x == value for x in sampled], axis=0) & (out != value)
        out, info = widen_array(out), finfo(aval.dtype)
        with np.errstate(all="ignore"):
            spread = np.max([np.abs(x - value) for x in sampled], axis=0)
            bound = TOLERANCE_FACTORS["results"] * float(info.eps) * np.abs(value)
            bound = bound + TOLERANCE_FACTORS["spread"] * spread + float(info.tiny)
            is_close = np.abs(out - value) <= bound
        # Rounding to the dtype may overflow the largest numbers to infinity.
        is_close |= equal_or_both_nan(widen_array(narrow_array(value, aval.dtype)), out)
        finiteness_agrees = np.all([np.isfinite(x) == np.isfinite(value) for x in sampled], axis=0)
        samples_agree = np.all([equal_or_both_nan(x, value) for x in sampled], axis=0)
        return np.where(
            np.isfinite(value),
            finiteness_agrees & ~is_close,
            samples_agree & ~equal_or_both_nan(out, value),
        )


class ExpectedOutputsWithWrites(ExpectedOutputs):
    """Expected outputs of a program with writes, which run in NumPy memory; written arguments come last."""

    def __init__(self, program: Program, args: Sequence[ArrayLike], runs: int = INITIAL_SAMPLES):
        self.written = cached_rewrite(Functionalize(), program).written
        super().__init__(program, args, runs)
        self.avals = [*self.avals, *[program.in_avals[i] for i in self.written]]

    def outputs(self, interpreter: NumpyInterpreter) -> list[Array]:
        args = copy_arguments(self.program, self.args)
        outs = [np.array(x) for x in interpreter.run(self.program, args)]
        return [*outs, *[args[i] for i in self.written]]


def equal_or_both_nan(x: Array, y: Array) -> Array:
    """The mask of equal elements; nans are equal, and so are all nonfinite complex numbers."""
    if np.iscomplexobj(x):
        return (x == y) | (~np.isfinite(x) & ~np.isfinite(y))
    return (x == y) | (np.isnan(x) & np.isnan(y))


class ExecutionPath(NamedTuple):
    """One way to run a program: its name, and `run(program, args)`, which returns the outputs."""

    name: str
    run: Callable[[Program, Sequence[Any]], list[Any]]


class ExecutionPaths:
    """The ways to run programs; equal lowered modules on equal arguments run once."""

    def __init__(self) -> None:
        self.outputs: dict[Any, list[Any]] = {}

    def all(self) -> list[ExecutionPath]:
        """All execution paths, those with the fewest passes first."""
        single_passes = [
            ExecutionPath(
                f"lowered with the pass `{name}` alone",
                partial(self.lowered, (*REQUIRED_PASSES, name)),
            )
            for name in OPTIONAL_PASSES
        ]
        return [
            ExecutionPath("lowered without any pass", partial(self.lowered, REQUIRED_PASSES)),
            *single_passes,
            ExecutionPath(
                "lowered with all passes at full strength", partial(self.lowered, ALL_PASSES)
            ),
            ExecutionPath("compiled as by functx.jit", self.compiled),
            ExecutionPath("called inside jax.jit", self.inside_jax),
            ExecutionPath("compiled with its numbers as inputs", self.with_lifted_literals),
            ExecutionPath("printed and parsed", self.after_print_and_parse),
        ]

    def lowered(
        self, passes: Sequence[str], program: Program, args: Sequence[ArrayLike]
    ) -> list[Array]:
        """The outputs with `passes` at full strength and little optimization by XLA."""
        return self.run(program, args, select_passes(*passes, always=True), FAST_COMPILE_OPTIONS)

    def compiled(self, program: Program, args: Sequence[ArrayLike]) -> list[Array]:
        """The outputs as `functx.jit` computes them."""
        return self.run(program, args, nullcontext(), {})

    def inside_jax(self, program: Program, args: Sequence[ArrayLike]) -> list[Array]:
        """The outputs of the program called inside `jax.jit`."""
        return self.run_function(
            lambda *xs: backend.run(None, program, xs), args, FAST_COMPILE_OPTIONS
        )

    def with_lifted_literals(self, program: Program, args: Sequence[ArrayLike]) -> list[Array]:
        """The outputs of the program with its literals as inputs."""
        literals = collect_literals(program)
        lifted = lift_literals(lambda p: p, program, range(len(literals)))
        if lifted is None:
            return self.compiled(program, args)
        return self.run(
            lifted.program, [*args, *pack_literals(literals)], nullcontext(), FAST_COMPILE_OPTIONS
        )

    def after_print_and_parse(self, program: Program, args: Sequence[ArrayLike]) -> list[Array]:
        """The outputs of the program after printing and parsing."""
        return self.lowered(REQUIRED_PASSES, Program.parse(str(program)), args)

    def run(
        self,
        program: Program,
        args: Sequence[ArrayLike],
        passes: AbstractContextManager[object],
        options: dict[str, Any],
    ) -> list[Array]:
        """The outputs of `program`, lowered in the context `passes` and compiled with `options`."""
        with passes:
            return self.run_function(lambda *xs: bind_functx_call(program, xs), args, options)

    def run_function(
        self,
        function: Callable[..., list[Value]],
        args: Sequence[ArrayLike],
        options: dict[str, Any],
    ) -> list[Array]:
        """The outputs of a function of JAX arrays, compiled with `options`, or those of an equal module."""
        lowered = jax.jit(function).lower(*args)
        key = lowered.as_text(), *options, *[np.asarray(x).tobytes() for x in args]
        if key not in self.outputs:
            outs = lowered.compile(options)(*args)
            self.outputs[key] = [np.asarray(x) for x in outs]
        return self.outputs[key]


def functionalized_in_numpy(program: Program, args: Sequence[ArrayLike]) -> list[Array]:
    """The outputs of the functionalized program, and the new values of the written arrays, in NumPy."""
    return interpret_in_numpy(cached_rewrite(Functionalize(), program).program, *args)


def verify(fun: Callable[..., Any], *misplaced: object) -> Callable[..., Any]:
    """`fun`, verified at each call: its program runs in several ways, which must agree.

    `fun` is a function of arrays, transformed or not, or a `Program`; its arguments go to the
    result, as in `verify(f)(x)`, and `verify(f, x)` is an ArgumentError. The reference is
    `functx.testing.interpret_in_numpy`, which runs the program equation by equation in NumPy, in
    float64 and complex128. It is compared with

    - the program lowered without any pass, with each pass alone, with all of them at full
      strength, and compiled as `functx.jit` compiles it;
    - the program called inside `jax.jit`, compiled with its numbers as arguments, and printed and
      parsed again;
    - NumPy's own writes and views in memory, where the program writes in place;
    - its derivatives, for inexact arguments: `<c, J t> = <J* c, t>`, differences of its values in
      float64, and the programs of both derivatives in all the ways above.

    Integers, booleans, nans and infinities must be equal. The tolerance of real numbers comes from
    rounding: the reference runs again with a random error of about one rounding in each operation,
    and the spread of these runs bounds the difference. A user's primitive without a NumPy
    definition runs in the reference as its lowered equation; so do `eigh` and `svd`, which have
    several right answers.

    Returns the results of `fun`, computed by the reference interpreter. Raises VerificationError
    with the smallest program found that still differs, its arguments, both values, and the way.

    >>> import functx
    >>> float(functx.testing.verify(lambda x: x * 2.0 + 1.0)(3.0))
    7.0
    """
    check_callable(fun, "verify")
    if misplaced:
        raise ArgumentError(
            f"verify: the function must be the only argument; got {len(misplaced)} more",
            fix="Write verify(f)(*args).",
        )

    def wrapper(*args: PyTree, **kwargs: PyTree) -> PyTree:
        program = fun if type(fun) is Program else make_ir(fun)(*args, **kwargs)
        leaves = [*tree.flatten_with_key_data((args, kwargs))[0], *read_states(program.captured)]
        pairs = zip(leaves, program.in_avals, strict=True)
        outs = verify_program(
            replace_program_fields(program, captured=()), [np.array(x, a.dtype) for x, a in pairs]
        )
        return outs if program.trees is None else tree.unflatten(program.trees[1], outs)

    return copy_function_metadata(wrapper, fun, "verify")


def verify_program(program: Program, args: Sequence[Array], orders: int = 1) -> list[Array]:
    """The outputs of `program` by the reference interpreter, after all ways to run it agreed.

    The derivatives up to order `orders` are verified too.
    """
    if program.effects - {Effect.WRITE}:
        program = cached_rewrite(RemoveEffects(), program)
    case = verify_execution_paths(ProgramCase(program, list(args)))
    if orders:
        verify_derivatives(case, orders)
    return interpret_in_numpy(program, *args)


def verify_execution_paths(case: ProgramCase, selected: Sequence[int] | None = None) -> ProgramCase:
    """Check all execution paths of a case, or those numbered in `selected`; the case without writes."""
    if case.program.writes:
        pure = ExecutionPath("writes made pure by `functionalize`", functionalized_in_numpy)
        check_execution_path(case, pure, ExpectedOutputsWithWrites(*case))
        case = ProgramCase(cached_rewrite(Functionalize(), case.program).program, case.args)
    paths, expected = ExecutionPaths().all(), ExpectedOutputs(*case)
    for path in paths if selected is None else [paths[i] for i in selected]:
        check_execution_path(case, path, expected)
    return case


def check_execution_path(case: ProgramCase, path: ExecutionPath, expected: ExpectedOutputs) -> None:
    """Raise VerificationError with the shrunk case if the outputs of `path` are not the expected ones."""
    difference = find_mismatch(path, case, expected)
    if difference is None:
        return
    small = shrink(case, lambda smaller: find_mismatch(path, smaller) is not None)
    difference = find_mismatch(path, small) or difference
    raise VerificationError(
        f"{case.program.name}: a program must give the same in every way to run it; {path.name}, "
        f"it gives {difference.got} where the reference interpreter gives {difference.expected}",
        *describe_case(small),
    )


class Mismatch(NamedTuple):
    """The output on an execution path and by the reference interpreter, as text."""

    got: str
    expected: str


def find_mismatch(
    path: ExecutionPath, case: ProgramCase, expected: ExpectedOutputs | None = None
) -> Mismatch | None:
    """The mismatch of `path` with the reference interpreter on a case, or None."""
    if expected is None:
        expected = (
            ExpectedOutputs(*case) if not case.program.writes else ExpectedOutputsWithWrites(*case)
        )
    try:
        outs = path.run(*case)
    except Exception as error:
        return Mismatch(f"{type(error).__name__}: {error}", format_array(expected.values[0]))
    k = expected.first_mismatch(outs)
    if k is None:
        return None
    return Mismatch(format_array(outs[k]), format_array(expected.values[k]))


def verify_derivatives(case: ProgramCase, orders: int = 0) -> None:
    """Check the derivatives of a case by definition; with `orders`, verify their programs too."""
    derivatives = derivative_programs(*case)
    if derivatives is None:
        return
    mismatch = find_derivative_mismatch(*case, derivatives)
    if mismatch is not None:
        small = shrink(case, lambda smaller: describe_derivative_mismatch(smaller) is not None)
        raise VerificationError(
            f"{case.program.name}: derivatives must agree with each other and with the values; "
            f"{describe_derivative_mismatch(small) or mismatch}",
            *describe_case(small),
        )
    for program, directions in (
        (derivatives.jvp_program, derivatives.tangents),
        (derivatives.vjp_program, derivatives.cts),
    ):
        if program is not None and orders:
            verify_program(program, [*case.args, *directions], orders - 1)


def describe_derivative_mismatch(case: ProgramCase) -> str | None:
    """The contradiction between the derivatives of a case and each other or its values, or None."""
    derivatives = derivative_programs(*case)
    return None if derivatives is None else find_derivative_mismatch(*case, derivatives)


def describe_case(case: ProgramCase) -> list[str]:
    """The program of a case and its arguments, as lines of a message."""
    pairs = zip(case.program.inputs, case.args, strict=True)
    lines = [f"argument {i}, {v.aval!r}: {format_array(x)}" for i, (v, x) in enumerate(pairs)]
    return ["the smallest program found that differs:", *str(case.program).splitlines(), *lines]


def format_array(x: ArrayLike) -> str:
    """An array in one line."""
    return np.array2string(np.asarray(x), separator=", ", threshold=60).replace("\n", " ")


def verify_before_compile(program: Program, args: Sequence[ArrayLike]) -> None:
    """Verify a program before it is compiled, for `config.verify`.

    Not verified are programs made during a verification, programs with arguments that JAX traces,
    which have no values, and programs whose effects have results, which must run only once.
    """
    values = [backend.raw_key_data(x) for x in read_states(args)]
    is_traced = any(isinstance(x, jax.core.Tracer) for x in values)
    if _verifying.get() or is_traced or program.has_captures or program.named_axes:
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
