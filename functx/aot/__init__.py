"""Joint programs of functions and their gradients, and their partition in forward and backward."""

from functx.aot.joint import joint_program
from functx.aot.partitions import default_partition, min_cut_rematerialization_partition
from functx.passes.memory_planning import JointProgram
from functx.passes.min_cut import MinCutConfig, Partition

__all__ = [
    "JointProgram",
    "MinCutConfig",
    "Partition",
    "default_partition",
    "joint_program",
    "min_cut_rematerialization_partition",
]
