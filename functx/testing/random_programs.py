"""Random programs, verified: `python -m functx.testing.random_programs 0:10000`.

Each seed makes a random function, up to five transforms around it, and arguments. Each transform
is measured by its definition: what its program computes, by the reference interpreter, against
what the program before it computes there (a loop over lanes for `vmap`, differences in float64 for
derivatives, the same values for `jit`). The last program then runs in the ways of `verify`.
"""

from __future__ import annotations

import argparse
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

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
from functx.testing.numerical_derivatives import real_inner_product
from functx.testing.random_functions import RandomFunction, random_arguments, random_array
from functx.testing.reference.interpreter import (
    Array,
    NumpyInterpreter,
    StepLimitExceeded,
    copy_arguments,
    widen_array,
)
from functx.testing.verification.derivative_checks import (
    CONVENTIONAL_DERIVATIVES,
    DirectionalDerivative,
    additive_directional_derivatives,
    all_finite,
    derivative_tolerance,
    differs_where_smooth,
    directional_derivatives,
    has_explicit_derivatives,
    run_perturbed,
)
from functx.testing.verification.shrinking import ProgramCase
from functx.testing.verification.verify import (
    ExecutionPaths,
    ExpectedOutputs,
    describe_case,
    verify_derivatives,
    verify_execution_paths,
)
from functx.transforms.make_ir import make_ir

Function = Callable[..., list[Any]]

DEEPEST, LONGEST, STEPS = 5, 400, 200_000
"""The most transforms, the most equations of a program, and the most steps of a run."""


NAMES = [way.name for way in ExecutionPaths().all()]
FULL_STRENGTH = NAMES.index("lowered with all passes at full strength")


class Stage(NamedTuple):
    """A function of a list of arrays, its arguments, and its program on these."""

    function: Function
    args: list[Any]
    program: Program

    @staticmethod
    def of(function: Function, args: list[Any]) -> Stage:
        return Stage(function, args, make_ir(function)(*args))

    @property
    def case(self) -> ProgramCase:
        """The program and its arguments, those that it captured too."""
        program = replace_program_fields(self.program, captured=())
        return ProgramCase(program, [*self.args, *self.program.captured])

    def run(self, args: Sequence[Any]) -> list[Array]:
        """The outputs on other arguments, by the reference interpreter, as wide as it has them."""
        values = copy_arguments(self.program, [*args, *self.program.captured])
        return NumpyInterpreter(limit=STEPS).run(self.program, values)

    def run_perturbed(self, tangents: Sequence[Any], step: float) -> list[Array]:
        """The outputs on arguments moved along `tangents`, None for those that stay."""
        wide = copy_arguments(self.program, [*self.args, *self.program.captured])
        along = [t if t is None else widen_array(t) for t in tangents]
        along += [None] * len(self.program.captured)
        return run_perturbed(self.program, wide, along, step, STEPS)


def check_unchanged(before: Stage, after: Stage) -> None:
    """Check that the outputs are those of the stage before."""
    compare_arrays(after, before.run(before.args))


def compare_arrays(stage: Stage, wanted: Sequence[Array]) -> None:
    """Check the outputs of a stage, by the reference interpreter, against arrays."""
    expected = ExpectedOutputs(*stage.case)
    for k, x in enumerate(wanted):
        if np.shape(x) != expected.values[k].shape or expected.exceeds_bound(k, x).any():
            raise_contradiction(stage, f"output {k} must be\n{x}\ngot\n{expected.values[k]}")


def raise_contradiction(stage: Stage, said: str) -> None:
    raise VerificationError(
        f"{stage.program.name}: a transform must give what its definition says; {said}",
        *describe_case(stage.case),
    )


# The transforms, each with its definition.


def apply_jit(random: Any, stage: Stage) -> tuple[Stage, Any]:
    return Stage.of(functx.jit(stage.function), stage.args), check_unchanged


def apply_checkpoint(random: Any, stage: Stage) -> tuple[Stage, Any]:
    return Stage.of(functx.checkpoint(stage.function), stage.args), check_unchanged


def apply_functionalize(random: Any, stage: Stage) -> tuple[Stage, Any]:
    return Stage.of(functx.functionalize(stage.function), stage.args), check_unchanged


def apply_vmap(random: Any, stage: Stage) -> tuple[Stage, Any]:
    """A batch of two, of some of the arguments along their first or last dimension."""
    axes: list[int | None] = []
    batched = []
    for i, x in enumerate(stage.args):
        axis = [None, 0, -1][random.randint(3)] if i else 0
        other = random_array(random, aval_of(x).dtype, np.shape(x))
        axes.append(axis)
        batched.append(x if axis is None else np.stack([x, other], axis))

    def check(before: Stage, after: Stage) -> None:
        lanes = []
        for lane in range(2):
            args = [
                x if axis is None else np.take(x, lane, axis)
                for x, axis in zip(batched, axes, strict=True)
            ]
            lanes.append(before.run(args))
        compare_arrays(after, [np.stack(rows) for rows in zip(*lanes, strict=True)])

    return Stage.of(functx.vmap(stage.function, in_axes=tuple(axes)), batched), check


def random_tangents(random: Any, stage: Stage) -> tuple[list[int], list[Any]]:
    """The arguments that vary, and where to."""
    varying = [i for i, x in enumerate(stage.args) if is_inexact(aval_of(x).dtype)]
    tangents = [
        random_array(random, aval_of(stage.args[i]).dtype, np.shape(stage.args[i])) for i in varying
    ]
    return varying, tangents


def restrict_to_varying(stage: Stage, varying: Sequence[int], args: Sequence[Any]) -> Function:
    """The inexact outputs as a function of the arguments that vary; the others are `args`."""

    def function(*xs: Any) -> list[Any]:
        new = dict(zip(varying, xs, strict=True))
        outs = stage.function(*[new.get(i, x) for i, x in enumerate(args)])
        return [x for x in outs if is_inexact(aval_of(x).dtype)]

    return function


def check_directional_derivatives(
    before: Stage,
    after: Stage,
    varying: Sequence[int],
    tangents: Sequence[Any],
    against: Callable[[list[DirectionalDerivative]], str | None],
) -> None:
    """Check the outputs of `after` against the change of each inexact output before along tangents.

    `against(changes)` says how they contradict it, if they do. Nothing is checked where a
    derivative is only stated.
    """
    if has_explicit_derivatives(before.program, CONVENTIONAL_DERIVATIVES):
        return
    along: list[Any] = [None] * len(before.args)
    for i, t in zip(varying, tangents, strict=True):
        along[i] = t
    kept = [k for k, a in enumerate(before.program.out_avals) if is_inexact(a.dtype)]

    def at(tangents: Sequence[Any], step: float) -> list[Array]:
        outs = before.run_perturbed(tangents, step)
        return [outs[k] for k in kept]

    said = against(directional_derivatives(at, along))
    if said is not None:
        said = against(additive_directional_derivatives(at, along))
    if said is not None:
        raise_contradiction(after, said)


def apply_jvp(random: Any, stage: Stage) -> tuple[Stage, Any]:
    """The tangents of all inexact outputs, by `jvp` or `linearize`."""
    varying, tangents = random_tangents(random, stage)
    linear = random.randint(2)

    def function(*args: Any) -> list[Any]:
        f, primals = restrict_to_varying(stage, varying, args), [args[i] for i in varying]
        if linear:
            return list(functx.linearize(f, *primals)[1](*tangents))
        return list(functx.jvp(f, primals, tangents)[1])

    def check(before: Stage, after: Stage) -> None:
        got = after.run(after.args)

        def against(changes: list[DirectionalDerivative]) -> str | None:
            for k, (wanted, smooth) in enumerate(changes):
                if differs_where_smooth(after.program, got[k], wanted, smooth):
                    return f"tangent {k} must be\n{wanted}\ngot\n{got[k]}"
            return None

        check_directional_derivatives(before, after, varying, tangents, against)

    return Stage.of(function, stage.args), check


def apply_vjp(random: Any, stage: Stage) -> tuple[Stage, Any]:
    """The cotangents of all inexact arguments, by `vjp`, or by `grad` of a sum."""
    varying, tangents = random_tangents(random, stage)
    outs = [a for a in stage.program.out_avals if is_inexact(a.dtype)]
    cts = [random_array(random, a.dtype, a.shape) for a in outs]
    real = all(kind(aval_of(stage.args[i]).dtype) == "f" for i in varying)
    by_grad = real and not any(is_complex(a.dtype) for a in outs) and random.randint(2)

    def function(*args: Any) -> list[Any]:
        f, primals = restrict_to_varying(stage, varying, args), [args[i] for i in varying]
        if not by_grad:
            return list(functx.vjp(f, *primals)[1](cts))

        def total(*xs: Any) -> Any:
            return sum([fnp.sum(c * y, dtype="float32") for c, y in zip(cts, f(*xs), strict=True)])

        return list(functx.grad(total, argnums=tuple(range(len(primals))))(*primals))

    def check(before: Stage, after: Stage) -> None:
        got = after.run(after.args)

        def against(changes: list[DirectionalDerivative]) -> str | None:
            if not all(smooth.all() for _, smooth in changes) or not all_finite(got):
                return None
            left = real_inner_product(got, tangents)
            right = real_inner_product(cts, [b for b, _ in changes])
            scale = sum(float(np.sum(np.abs(b))) for b, _ in changes)
            scale += sum(float(np.sum(np.abs(x))) for x in got)
            if abs(left - right) <= 4 * derivative_tolerance(after.program) * (1 + scale):
                return None
            return f"<J* c, t> must be <c, J t>, {right!r}; got {left!r}"

        check_directional_derivatives(before, after, varying, tangents, against)

    return Stage.of(function, stage.args), check


def apply_jacobian(random: Any, stage: Stage) -> tuple[Stage, Any]:
    """The Jacobian of the first inexact output, row by row or column by column."""
    varying, tangents = random_tangents(random, stage)
    transform = functx.jacfwd if random.randint(2) else functx.jacrev

    def function(*args: Any) -> list[Any]:
        f, primals = restrict_to_varying(stage, varying, args), [args[i] for i in varying]
        return [transform(lambda x: f(x, *primals[1:])[0])(primals[0])]

    def check(before: Stage, after: Stage) -> None:
        (got,), t = after.run(after.args), tangents[0]
        product = np.tensordot(got, widen_array(t), np.ndim(t))

        def against(changes: list[DirectionalDerivative]) -> str | None:
            far = differs_where_smooth(after.program, product, *changes[0])
            return f"J t must be\n{changes[0].change}\ngot\n{product}" if far else None

        check_directional_derivatives(before, after, varying[:1], tangents[:1], against)

    return Stage.of(function, stage.args), check


def is_real_valued(stage: Stage) -> bool:
    """Whether all arguments that vary and all outputs are real, and some of both there are."""
    ins = [a for a in map(aval_of, stage.args) if is_inexact(a.dtype)]
    outs = [a for a in stage.program.out_avals if is_inexact(a.dtype)]
    return bool(ins and outs) and not any(is_complex(a.dtype) for a in (*ins, *outs))


def apply_random_transform(random: Any, stage: Stage) -> tuple[Stage, Any]:
    """The stage under one more transform, and the check of that."""
    choices = [apply_jit, apply_checkpoint, apply_functionalize, apply_vmap]
    ins = any(is_inexact(aval_of(x).dtype) for x in stage.args)
    if ins and any(is_inexact(a.dtype) for a in stage.program.out_avals):
        choices += [apply_jvp, apply_jvp, apply_vjp, apply_vjp, apply_vjp]
    if is_real_valued(stage) and sum(np.size(x) for x in stage.args) <= 12:
        choices += [apply_jacobian]
    return choices[random.randint(len(choices))](random, stage)


def verify_seed(seed: int, ways: int | None = None) -> str | None:
    """Check the random program of a seed, run in so many of the ways of `verify`, by default in all.

    Returns why a transform was refused, if one was. Raises VerificationError where something
    differs, and what functx or XLA raises where they should not.
    """
    random = np.random.RandomState(seed)
    depth = [0, 0, 0, 1, 1, 2, 3, 4, DEEPEST][random.randint(9)]
    with jax.enable_x64(bool(seed % 2)):
        try:
            stage, refused = build_stage(random, seed, depth)
            others = [i for i in random.permutation(len(NAMES)) if i != FULL_STRENGTH]
            chosen = None if ways is None else [FULL_STRENGTH, *others][:ways]
            case = verify_execution_paths(stage.case, chosen)
            if is_differentiated(seed, depth) and not depth:
                verify_derivatives(case)
        except StepLimitExceeded:
            return None
        except FunctxError as error:
            raise error.add(f"seed {seed}") from None
    return refused


def is_differentiated(seed: int, depth: int) -> bool:
    """Whether derivatives of the random function of a seed are asked for."""
    return depth > 0 or seed % 3 > 0


def build_stage(random: Any, seed: int, depth: int) -> tuple[Stage, str | None]:
    """The random function of a seed under `depth` transforms, each checked by its definition.

    And why one more transform was refused, if it was.
    """
    steps = 8 if not depth else max(6 - depth, 2)
    smooth = is_differentiated(seed, depth)
    function = RandomFunction(seed, steps, 1 if depth > 1 else 2, writes=depth < 2, smooth=smooth)
    stage = Stage.of(function, random_arguments(seed))
    for _ in range(depth):
        try:
            after, check = apply_random_transform(random, stage)
        except (RuleError, ProgramError, DecompositionError):
            raise
        except FunctxError as error:
            return stage, f"{type(error).__name__}: {error.problem}"
        if sum(len(each) for each in after.program.walk()) > LONGEST:
            break
        check(stage, after)
        stage = after
    return stage, None


def main() -> None:
    """Verify a range of seeds, and print what differs."""
    parser = argparse.ArgumentParser(description=verify_seed.__doc__)
    parser.add_argument("seeds", help="first:last, the last not included")
    parser.add_argument("--ways", type=int, help="how many of the ways to run each, by default all")
    given = parser.parse_args()
    first, last = map(int, given.seeds.split(":"))
    wrong = 0
    for seed in range(first, last):
        if seed % 25 == 0:
            functx.clear_caches()
            jax.clear_caches()
        try:
            refused = verify_seed(seed, given.ways)
            if refused is not None:
                print(f"seed {seed} refused: {refused}", flush=True)
        except Exception as error:
            wrong += 1
            trail = "".join(traceback.format_tb(error.__traceback__)[-3:])
            print(f"seed {seed}: {type(error).__name__}: {error}\n{trail}", flush=True)
    print(f"seeds {first}:{last} done, {wrong} wrong", flush=True)


if __name__ == "__main__":
    main()
