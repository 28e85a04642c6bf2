"""`verify`: a function's program, run in several independent ways that must agree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple

import jax
import numpy as np

from functx.core import tree
from functx.core.editing import replace_program_fields
from functx.core.effects import Effect
from functx.core.errors import EffectError, VerificationError
from functx.core.program import Program
from functx.core.rewriting import cached_rewrite
from functx.core.storage import Functionalize
from functx.core.tracing import backend
from functx.testing.reference.interpreter import interpret_in_numpy
from functx.testing.verification.bounds import ExpectedOutputs, ExpectedOutputsWithWrites
from functx.testing.verification.reduction import ProgramCase, shrink
from functx.testing.verification.slopes import derivative_programs, find_derivative_mismatch
from functx.testing.verification.ways import ExecutionPath, ExecutionPaths, functionalized_in_numpy
from functx.transforms.calls import check_callable, copy_function_metadata
from functx.transforms.effects import RemoveEffects
from functx.transforms.make_ir import make_ir


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
