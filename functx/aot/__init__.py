"""Joint programs of functions and their gradients, and their partition in forward and backward."""

from functx.aot.analysis import analyze
from functx.aot.compilers import default_compiler
from functx.aot.functions import aot_function
from functx.aot.joint import joint_program
from functx.aot.meta import BaseKind, InputInfo, Meta, MutationKind, OutputInfo, OutputKind
from functx.aot.partitions import default_partition, min_cut_rematerialization_partition
from functx.aot.tokens import token_kinds, with_tokens
from functx.passes.memory_planning import JointProgram
from functx.passes.min_cut import MinCutConfig, Partition

__all__ = [
    "BaseKind",
    "InputInfo",
    "JointProgram",
    "Meta",
    "MinCutConfig",
    "MutationKind",
    "OutputInfo",
    "OutputKind",
    "Partition",
    "analyze",
    "aot_function",
    "default_compiler",
    "default_partition",
    "joint_program",
    "min_cut_rematerialization_partition",
    "token_kinds",
    "with_tokens",
]
