"""Joint programs of a function and its gradient, and their partition in two."""

from functx.aot.partition import (
    JointProgram,
    MinCutConfig,
    Partition,
    default_partition,
    joint_program,
    min_cut_rematerialization_partition,
)

__all__ = [
    "JointProgram",
    "MinCutConfig",
    "Partition",
    "default_partition",
    "joint_program",
    "min_cut_rematerialization_partition",
]
