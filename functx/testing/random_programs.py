"""Random programs, verified: `python -m functx.testing.random_programs 0:10000`.

Each seed determines a random function, up to five transforms of it, and arguments. Each transform
is checked by its definition: the reference interpreter runs its program and the program before it,
and compares them (a loop over batch elements for `vmap`, differences in float64 for derivatives,
equal values for `jit`). The last program then runs on the execution paths of `verify`.
"""

from __future__ import annotations

import argparse
import traceback
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np
from numpy.random import RandomState

import functx
import functx.numpy as fnp
from functx.core.errors import (
    DecompositionError,
    FunctxError,
    ProgramError,
    RuleError,
    VerificationError,
)
from functx.core.program import Program
from functx.core.program_editing import replace_program_fields
from functx.core.tracer import aval_of
from functx.core.types import is_complex, is_inexact, kind
from functx.core.typing import ArrayLike, Value
from functx.testing.derivative_checks import (
    DirectionalDerivative,
    additive_directional_derivatives,
    all_finite,
    derivative_tolerance,
    differs_where_smooth,
    directional_derivatives,
    has_explicit_derivatives,
    run_perturbed,
)
from functx.testing.numerical_derivatives import real_inner_product
from functx.testing.random_functions import RandomFunction, random_arguments, random_array
from functx.testing.reference.interpreter import (
    Array,
    NumpyInterpreter,
    StepLimitExceeded,
    copy_arguments,
    widen_array,
)
from functx.testing.shrinking import ProgramCase
from functx.testing.verification import (
    ExecutionPaths,
    ExpectedOutputs,
    describe_case,
    verify_derivatives,
    verify_execution_paths,
)
from functx.transforms.make_ir import make_ir

Function = Callable[..., list[Value]]

Check = Callable[["TransformStage", "TransformStage"], None]
Transformed = tuple["TransformStage", Check]

MAX_TRANSFORMS, MAX_EQUATIONS, MAX_STEPS = 5, 400, 200_000
"""Limits: transforms of a function, equations of a program, interpreter steps of a run."""


PATH_NAMES = [path.name for path in ExecutionPaths().all()]
FULL_STRENGTH = PATH_NAMES.index("lowered with all passes at full strength")


class TransformStage(NamedTuple):
    """A function of arrays, its arguments, and its program for them."""

    function: Function
    args: list[Array]
    program: Program

    @staticmethod
    def of(function: Function, args: list[Array]) -> TransformStage:
        return TransformStage(function, args, make_ir(function)(*args))

    @property
    def case(self) -> ProgramCase:
        """The program with its arguments and captured values."""
        program = replace_program_fields(self.program, captured=())
        return ProgramCase(program, [*self.args, *self.program.captured])

    def run(self, args: Sequence[ArrayLike]) -> list[Array]:
        """The outputs on other arguments by the reference interpreter, in its wide dtypes."""
        values = copy_arguments(self.program, [*args, *self.program.captured])
        return NumpyInterpreter(limit=MAX_STEPS).run(self.program, values)

    def run_perturbed(self, tangents: Sequence[Array | None], step: float) -> list[Array]:
        """The outputs on arguments moved by `step` along `tangents`; None is a fixed argument."""
        wide = copy_arguments(self.program, [*self.args, *self.program.captured])
        directions = [t if t is None else widen_array(t) for t in tangents]
        directions += [None] * len(self.program.captured)
        return run_perturbed(self.program, wide, directions, step, MAX_STEPS)


def check_unchanged(before: TransformStage, after: TransformStage) -> None:
    """Check that a stage has the outputs of the stage before it."""
    compare_arrays(after, before.run(before.args))


def compare_arrays(stage: TransformStage, arrays: Sequence[Array]) -> None:
    """Check the outputs of a stage by the reference interpreter against arrays."""
    expected = ExpectedOutputs(*stage.case)
    for k, x in enumerate(arrays):
        if np.shape(x) != expected.values[k].shape or expected.exceeds_bound(k, x).any():
            raise_contradiction(stage, f"output {k} must be\n{x}\ngot\n{expected.values[k]}")


def raise_contradiction(stage: TransformStage, mismatch: str) -> None:
    """Raise VerificationError: a transform contradicts its definition."""
    raise VerificationError(
        f"{stage.program.name}: a transform must follow its definition; {mismatch}",
        *describe_case(stage.case),
    )


# The transforms: each returns the next stage and `check(before, after)`, which compares by definition.


def apply_jit(random: RandomState, stage: TransformStage) -> Transformed:
    return TransformStage.of(functx.jit(stage.function), stage.args), check_unchanged


def apply_checkpoint(random: RandomState, stage: TransformStage) -> Transformed:
    return TransformStage.of(functx.checkpoint(stage.function), stage.args), check_unchanged


def apply_functionalize(random: RandomState, stage: TransformStage) -> Transformed:
    return TransformStage.of(functx.functionalize(stage.function), stage.args), check_unchanged


def apply_vmap(random: RandomState, stage: TransformStage) -> Transformed:
    """A batch of two: some arguments are batched along their first or last dimension."""
    axes: list[int | None] = []
    batched = []
    for i, x in enumerate(stage.args):
        axis = [None, 0, -1][random.randint(3)] if i else 0
        other = random_array(random, aval_of(x).dtype, np.shape(x))
        axes.append(axis)
        batched.append(x if axis is None else np.stack([x, other], axis))

    def check(before: TransformStage, after: TransformStage) -> None:
        elements = []
        for index in range(2):
            args = [
                x if axis is None else np.take(x, index, axis)
                for x, axis in zip(batched, axes, strict=True)
            ]
            elements.append(before.run(args))
        compare_arrays(after, [np.stack(rows) for rows in zip(*elements, strict=True)])

    return TransformStage.of(functx.vmap(stage.function, in_axes=tuple(axes)), batched), check


def random_tangents(random: RandomState, stage: TransformStage) -> tuple[list[int], list[Array]]:
    """The positions of the inexact arguments, and a random tangent for each."""
    varying = [i for i, x in enumerate(stage.args) if is_inexact(aval_of(x).dtype)]
    tangents = [
        random_array(random, aval_of(stage.args[i]).dtype, np.shape(stage.args[i])) for i in varying
    ]
    return varying, tangents


def restrict_to_varying(
    stage: TransformStage, varying: Sequence[int], args: Sequence[ArrayLike]
) -> Function:
    """The inexact outputs as a function of the varying arguments; the others are from `args`."""

    def function(*xs: Value) -> list[Value]:
        replaced = dict(zip(varying, xs, strict=True))
        outs = stage.function(*[replaced.get(i, x) for i, x in enumerate(args)])
        return [x for x in outs if is_inexact(aval_of(x).dtype)]

    return function


def check_directional_derivatives(
    before: TransformStage,
    after: TransformStage,
    varying: Sequence[int],
    tangents: Sequence[Array],
    find_mismatch: Callable[[list[DirectionalDerivative]], str | None],
) -> None:
    """Check the outputs of `after` against directional derivatives of the inexact outputs of `before`.

    `find_mismatch(derivatives)` returns a message, or None if they agree. Programs with
    conventional derivatives (at kinks, by custom rules) are not checked.
    """
    if has_explicit_derivatives(before.program):
        return
    directions: list[Array | None] = [None] * len(before.args)
    for i, t in zip(varying, tangents, strict=True):
        directions[i] = t
    inexact_outs = [k for k, a in enumerate(before.program.out_avals) if is_inexact(a.dtype)]

    def at(tangents: Sequence[Array | None], step: float) -> list[Array]:
        outs = before.run_perturbed(tangents, step)
        return [outs[k] for k in inexact_outs]

    mismatch = find_mismatch(directional_derivatives(at, directions))
    if mismatch is not None:
        mismatch = find_mismatch(additive_directional_derivatives(at, directions))
    if mismatch is not None and is_well_conditioned(after):
        raise_contradiction(after, mismatch)


def is_well_conditioned(stage: TransformStage) -> bool:
    """Whether rounding errors leave the outputs of a stage much as they are.

    They decide the cosine of a large number, which a difference of values does not see.
    """
    expected = ExpectedOutputs(*stage.case)
    with np.errstate(all="ignore"):
        return not any(
            (np.abs(sample[k] - value) > 0.5 * (1 + np.abs(value))).any()
            for k, value in enumerate(expected.values)
            if is_inexact(value.dtype)
            for sample in expected.samples
        )


def apply_jvp(random: RandomState, stage: TransformStage) -> Transformed:
    """The tangents of all inexact outputs, by `jvp` or `linearize`."""
    varying, tangents = random_tangents(random, stage)
    linear = random.randint(2)

    def function(*args: Value) -> list[Value]:
        f, primals = restrict_to_varying(stage, varying, args), [args[i] for i in varying]
        if linear:
            return list(functx.linearize(f, *primals)[1](*tangents))
        return list(functx.jvp(f, primals, tangents)[1])

    def check(before: TransformStage, after: TransformStage) -> None:
        got = after.run(after.args)

        def find_mismatch(derivatives: list[DirectionalDerivative]) -> str | None:
            for k, (expected, smooth) in enumerate(derivatives):
                if differs_where_smooth(after.program, got[k], expected, smooth):
                    return f"tangent {k} must be\n{expected}\ngot\n{got[k]}"
            return None

        check_directional_derivatives(before, after, varying, tangents, find_mismatch)

    return TransformStage.of(function, stage.args), check


def apply_vjp(random: RandomState, stage: TransformStage) -> Transformed:
    """The cotangents of all inexact arguments, by `vjp`, or by `grad` of a sum."""
    varying, tangents = random_tangents(random, stage)
    outs = [a for a in stage.program.out_avals if is_inexact(a.dtype)]
    cts = [random_array(random, a.dtype, a.shape) for a in outs]
    real = all(kind(aval_of(stage.args[i]).dtype) == "f" for i in varying)
    by_grad = real and not any(is_complex(a.dtype) for a in outs) and random.randint(2)

    def function(*args: Value) -> list[Value]:
        f, primals = restrict_to_varying(stage, varying, args), [args[i] for i in varying]
        if not by_grad:
            return list(functx.vjp(f, *primals)[1](cts))

        def total(*xs: Value) -> Value | int:
            return sum([fnp.sum(c * y, dtype="float32") for c, y in zip(cts, f(*xs), strict=True)])

        return list(functx.grad(total, argnums=tuple(range(len(primals))))(*primals))

    def check(before: TransformStage, after: TransformStage) -> None:
        got = after.run(after.args)

        def find_mismatch(derivatives: list[DirectionalDerivative]) -> str | None:
            if not all(smooth.all() for _, smooth in derivatives) or not all_finite(got):
                return None
            left = real_inner_product(got, tangents)
            right = real_inner_product(cts, [b for b, _ in derivatives])
            scale = sum(float(np.sum(np.abs(b))) for b, _ in derivatives)
            scale += sum(float(np.sum(np.abs(x))) for x in got)
            if abs(left - right) <= 4 * derivative_tolerance(after.program) * (1 + scale):
                return None
            return f"<J* c, t> must be <c, J t>, {right!r}; got {left!r}"

        check_directional_derivatives(before, after, varying, tangents, find_mismatch)

    return TransformStage.of(function, stage.args), check


def apply_jacobian(random: RandomState, stage: TransformStage) -> Transformed:
    """The Jacobian of the first inexact output, row by row or column by column."""
    varying, tangents = random_tangents(random, stage)
    transform = functx.jacfwd if random.randint(2) else functx.jacrev

    def function(*args: Value) -> list[Value]:
        f, primals = restrict_to_varying(stage, varying, args), [args[i] for i in varying]
        return [transform(lambda x: f(x, *primals[1:])[0])(primals[0])]

    def check(before: TransformStage, after: TransformStage) -> None:
        (got,), t = after.run(after.args), tangents[0]
        product = np.tensordot(got, widen_array(t), np.ndim(t))

        def find_mismatch(derivatives: list[DirectionalDerivative]) -> str | None:
            mismatch = differs_where_smooth(after.program, product, *derivatives[0])
            return f"J t must be\n{derivatives[0].change}\ngot\n{product}" if mismatch else None

        check_directional_derivatives(before, after, varying[:1], tangents[:1], find_mismatch)

    return TransformStage.of(function, stage.args), check


def is_real_valued(stage: TransformStage) -> bool:
    """Whether the stage has inexact arguments and outputs, and all of them are real."""
    ins = [a for a in map(aval_of, stage.args) if is_inexact(a.dtype)]
    outs = [a for a in stage.program.out_avals if is_inexact(a.dtype)]
    return bool(ins and outs) and not any(is_complex(a.dtype) for a in (*ins, *outs))


def apply_random_transform(random: RandomState, stage: TransformStage) -> Transformed:
    """The stage under one more random transform, and its check."""
    choices = [apply_jit, apply_checkpoint, apply_functionalize, apply_vmap]
    ins = any(is_inexact(aval_of(x).dtype) for x in stage.args)
    if ins and any(is_inexact(a.dtype) for a in stage.program.out_avals):
        choices += [apply_jvp, apply_jvp, apply_vjp, apply_vjp, apply_vjp]
    if is_real_valued(stage) and sum(np.size(x) for x in stage.args) <= 12:
        choices += [apply_jacobian]
    return choices[random.randint(len(choices))](random, stage)


def verify_seed(seed: int, ways: int | None = None) -> str | None:
    """Check the random program of a seed, on `ways` execution paths of `verify`, by default on all.

    Returns the reason if a transform was refused, else None. Raises VerificationError for a
    difference, and unexpected errors of functx or XLA as they are.
    """
    random = RandomState(seed)
    depth = [0, 0, 0, 1, 1, 2, 3, 4, MAX_TRANSFORMS][random.randint(9)]
    with jax.enable_x64(bool(seed % 2)):
        try:
            stage, refused = build_stage(random, seed, depth)
            remaining = [i for i in random.permutation(len(PATH_NAMES)) if i != FULL_STRENGTH]
            selected = None if ways is None else [FULL_STRENGTH, *remaining][:ways]
            case = verify_execution_paths(stage.case, selected)
            if is_differentiated(seed, depth) and not depth:
                verify_derivatives(case)
        except StepLimitExceeded:
            return None
        except FunctxError as error:
            raise error.add(f"seed {seed}") from None
    return refused


def is_differentiated(seed: int, depth: int) -> bool:
    """Whether the random function of a seed is differentiated."""
    return depth > 0 or seed % 3 > 0


def build_stage(random: RandomState, seed: int, depth: int) -> tuple[TransformStage, str | None]:
    """The random function of a seed under `depth` checked transforms, and why the next one was refused.

    The reason is None if no transform was refused.
    """
    steps = 8 if not depth else max(6 - depth, 2)
    smooth = is_differentiated(seed, depth)
    function = RandomFunction(seed, steps, 1 if depth > 1 else 2, writes=depth < 2, smooth=smooth)
    stage = TransformStage.of(function, random_arguments(seed))
    for _ in range(depth):
        try:
            after, check = apply_random_transform(random, stage)
        except (RuleError, ProgramError, DecompositionError):
            raise
        except FunctxError as error:
            return stage, f"{type(error).__name__}: {error.problem}"
        if sum(len(program) for program in after.program.walk()) > MAX_EQUATIONS:
            break
        check(stage, after)
        stage = after
    return stage, None


def main() -> None:
    """Verify a range of seeds, and print every failure."""
    parser = argparse.ArgumentParser(description=verify_seed.__doc__)
    parser.add_argument("seeds", help="first:last, the last not included")
    parser.add_argument(
        "--ways", type=int, help="the number of execution paths for each, by default all"
    )
    options = parser.parse_args()
    first, last = map(int, options.seeds.split(":"))
    failures = 0
    for seed in range(first, last):
        if seed % 25 == 0:
            functx.clear_caches()
            jax.clear_caches()
        try:
            refused = verify_seed(seed, options.ways)
            if refused is not None:
                print(f"seed {seed} refused: {refused}", flush=True)
        except Exception as error:
            failures += 1
            trail = "".join(traceback.format_tb(error.__traceback__)[-3:])
            print(f"seed {seed}: {type(error).__name__}: {error}\n{trail}", flush=True)
    print(f"seeds {first}:{last} done, {failures} failures", flush=True)


if __name__ == "__main__":
    main()
