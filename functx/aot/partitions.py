"""Partitions of a joint program into a forward and a backward program."""

from __future__ import annotations

from itertools import groupby
from operator import index

from functx.core.effects import Effect
from functx.core.errors import ArgumentError, ValueRangeError, type_name
from functx.core.program import Program
from functx.passes import min_cut, partition
from functx.passes.memory_planning import JointProgram
from functx.passes.partition import Partition
from functx.passes.recompute_heuristics import MinCutConfig


def default_partition(joint: JointProgram, num_fwd_outputs: int | None = None) -> Partition:
    """`(forward, backward)`, where all values are saved that the backward program uses.

    `forward` takes the primals and returns the outputs, then the saved values; `backward` takes the
    saved values, then the tangents, and returns the gradients. Of an operation with several
    outputs, those that are used are saved. Sizes are static, and never saved; nor are cheap values
    that depend on no input, which both programs compute. If values are marked to be recomputed, the
    partition is that of the minimum cut. `num_fwd_outputs` is the number of outputs of the
    function, by default that of the joint program.

    Raises ArgumentError unless `joint` is a joint program, ProgramError if the gradients depend
    on values that neither program can compute.
    """
    joint = check_joint("default_partition", joint, num_fwd_outputs)
    if joint.recompute:
        return min_cut.min_cut_partition(joint, MinCutConfig())
    return partition.default_partition(joint)


def min_cut_rematerialization_partition(
    joint: JointProgram, num_fwd_outputs: int | None = None, config: MinCutConfig | None = None
) -> Partition:
    """`(forward, backward)` as by `default_partition`, with the cheapest saved values.

    These are a minimum cut between the primals and the backward program: the fewest bytes,
    weighted by `1.1 ** distance`. All other values are recomputed from them, just before their
    use. `config` says what may be recomputed. Without gradients it is the default partition.

    >>> import functx, numpy
    >>> np = functx.numpy
    >>> joint = functx.aot.joint_program(lambda x: np.cos(np.cos(np.cos(x))))(numpy.ones(3))
    >>> forward, backward = functx.aot.min_cut_rematerialization_partition(joint)
    >>> len(forward.outputs), len(backward.inputs)
    (2, 2)
    """
    name = "min_cut_rematerialization_partition"
    if config is not None and not isinstance(config, MinCutConfig):
        raise ArgumentError(
            f"{name}: config must be a functx.aot.MinCutConfig; got {type_name(config)}"
        )
    return min_cut.min_cut_partition(
        check_joint(name, joint, num_fwd_outputs), config or MinCutConfig()
    )


def check_joint(name: str, joint: object, num_outputs: int | None) -> JointProgram:
    """`joint`, with `num_outputs` outputs of the function, by default its own."""
    if not isinstance(joint, JointProgram):
        raise ArgumentError(
            f"{name}: the argument must be a joint program, with its tangents marked; got "
            f"{type_name(joint)}",
            fix="Make one with functx.aot.joint_program(f)(*args), or by functx.aot.JointProgram("
            "program, primals, outputs).",
        )
    if not has_trailing_writes(joint.program):
        raise ArgumentError(
            f"{name}: a joint program must have no writes but those to its inputs at its end; got one that "
            "writes to its values",
            fix="Make it of functx.functionalize(f), as functx.aot.joint_program(f) does.",
        )
    num_outputs = joint.num_outputs if num_outputs is None else num_outputs
    total = len(joint.program.outputs)
    try:
        count = index(num_outputs)
    except TypeError:
        raise ArgumentError(
            f"{name}: num_fwd_outputs must be an integer; got {type_name(num_outputs)}"
        ) from None
    if not 0 <= count <= total or not 0 <= joint.num_primals <= len(joint.program.inputs):
        raise ValueRangeError(
            f"{name}: num_fwd_outputs and primals must be at most the numbers of outputs and inputs; "
            f"got {count} of {total} outputs, {joint.num_primals} of {len(joint.program.inputs)} inputs"
        )
    return joint._replace(num_outputs=count)


def has_trailing_writes(program: Program) -> bool:
    """Whether all writes of a program are to its inputs, after all other equations."""
    if not program.writes:
        return True
    *others, last = [
        [*group] for _, group in groupby(program, lambda e: Effect.WRITE in e.primitive.effects)
    ]
    return (
        len(others) <= 1
        and Effect.WRITE in last[0].primitive.effects
        and all([eqn.inputs[0] in program.inputs for eqn in last])
    )
