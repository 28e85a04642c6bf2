"""Joint programs, and what a forward program saves for a backward one."""

from __future__ import annotations

from collections.abc import Callable
from operator import index
from typing import Any

from functx.core.errors import ArgumentError, GradientError, ValueRangeError, type_name
from functx.passes import min_cut
from functx.passes.joint_programs import JointProgram, inline_checkpoints, join_split
from functx.passes.min_cut import MinCutConfig, Partition
from functx.transforms.argument_names import check_callable, function_name, wrap_transform
from functx.transforms.make_ir import functionalize, make_ir
from functx.transforms.operand_masks import inexact_mask
from functx.transforms.reverse_mode import SplitVJP

__all__ = [
    "JointProgram",
    "MinCutConfig",
    "Partition",
    "default_partition",
    "joint_program",
    "min_cut_rematerialization_partition",
]


def joint_program(fun: Callable[..., Any]) -> Callable[..., JointProgram]:
    """The function that returns the `Joint` program of `fun` for the given arguments.

    Its program takes the primals, the leaves of the arguments and what `fun` closes over, then a
    tangent for each inexact output of `fun`; it returns the outputs, then the gradients in the
    inexact primals. Writes are removed first: new values of arguments that `fun` writes to are
    outputs behind its own. Regions under `functx.checkpoint` are opened up, and `recompute` holds what
    they compute again. Arguments may be arrays, or anything with `shape` and `dtype`.

    Raises GradientError for a function without inexact outputs.

    >>> import functx, numpy
    >>> joint = functx.aot.joint_program(functx.numpy.sin)(numpy.float32(1.0))
    >>> joint.primals, len(joint.tangents), len(joint.program.outputs)
    (1, 1, 2)
    """
    check_callable(fun, "joint_program")

    def wrapper(*args: Any, **kwargs: Any) -> JointProgram:
        program = make_ir(functionalize(fun))(*args, **kwargs)
        if not any(inexact_mask(program.out_avals)):
            raise GradientError(
                f"joint_program({function_name(fun)}): an output must be inexact to have a gradient; "
                f"got {program.out_avals}"
            )
        values, backward = SplitVJP(tuple(inexact_mask(program.in_avals)))(program)
        return inline_checkpoints(join_split(values, len(program.outputs), [backward]))

    return wrap_transform(wrapper, fun, "joint_program")


def default_partition(joint: JointProgram, num_fwd_outputs: int | None = None) -> Partition:
    """`(forward, backward)`, where all is saved that the backward program uses of the forward one.

    `forward` takes the primals and returns the outputs, then what is saved; `backward` takes the
    tangents, then what is saved, and returns the gradients. Of an operation with several outputs
    those are saved that are used. Sizes are part of programs, and never saved. Where something
    is marked to be computed again, it is the partition by the cheapest cut. `num_fwd_outputs`,
    how many outputs are those of the function, may be given where the joint program is another's.

    Raises ArgumentError for what is no joint program, ProgramError where the gradients need what
    cannot be had.
    """
    joint = check_joint("default_partition", joint, num_fwd_outputs)
    if joint.recompute:
        return min_cut.min_cut_partition(joint, MinCutConfig())
    return min_cut.default_partition(joint)


def min_cut_rematerialization_partition(
    joint: JointProgram, num_fwd_outputs: int | None = None, config: MinCutConfig | None = None
) -> Partition:
    """`(forward, backward)` as `default_partition`, with the cheapest values saved.

    They are those between the primals and the backward program that take the fewest bytes,
    weighted by `1.1 ** distance`; the rest is computed again from them, just before it is used.
    `config` says what may be. Without gradients it is the default partition.

    >>> import functx, numpy
    >>> np = functx.numpy
    >>> joint = functx.aot.joint_program(lambda x: np.cos(np.cos(np.cos(x))))(numpy.ones(3))
    >>> forward, backward = functx.aot.min_cut_rematerialization_partition(joint)
    >>> len(forward.outputs), len(backward.inputs)
    (2, 2)
    """
    what = "min_cut_rematerialization_partition"
    if config is not None and not isinstance(config, MinCutConfig):
        raise ArgumentError(
            f"{what}: config must be a functx.aot.MinCutConfig; got {type_name(config)}"
        )
    return min_cut.min_cut_partition(
        check_joint(what, joint, num_fwd_outputs), config or MinCutConfig()
    )


def check_joint(what: str, joint: Any, outputs: Any) -> JointProgram:
    """`joint`, with so many of its outputs those of the function."""
    if not isinstance(joint, JointProgram):
        raise ArgumentError(
            f"{what}: the argument must be a joint program, with its tangents marked; got "
            f"{type_name(joint)}",
            fix="Make one with functx.aot.joint_program(f)(*args), or by functx.aot.JointProgram("
            "program, primals, outputs).",
        )
    if joint.program.writes:
        raise ArgumentError(
            f"{what}: a joint program must have no writes; got one that writes to its values",
            fix="Make it of functx.functionalize(f), as functx.aot.joint_program(f) does.",
        )
    given = joint.outputs if outputs is None else outputs
    count = len(joint.program.outputs)
    try:
        number = index(given)
    except TypeError:
        raise ArgumentError(
            f"{what}: num_fwd_outputs must be an integer; got {type_name(given)}"
        ) from None
    if not 0 <= number <= count or not 0 <= joint.primals <= len(joint.program.inputs):
        raise ValueRangeError(
            f"{what}: a joint program must have the outputs and the primals that it is said to; "
            f"got {number} of {count} outputs, {joint.primals} of {len(joint.program.inputs)} inputs"
        )
    return joint._replace(outputs=number)
