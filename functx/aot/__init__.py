"""Joint programs of functions and their gradients, and their partition into forward and backward."""

from functx.aot.analysis import analyze
from functx.aot.compilers import default_compiler
from functx.aot.functions import aot_function
from functx.aot.joint import create_joint
from functx.aot.meta import BaseKind, InputInfo, Meta, MutationKind, OutputInfo, OutputKind
from functx.aot.modules import AotModule, aot_module
from functx.aot.partitions import default_partition, min_cut_rematerialization_partition
from functx.aot.prepared import (
    create_functionalized_fn,
    fn_input_mutations_to_outputs,
    fn_prepped_for_autograd,
    joint_program,
)
from functx.aot.random_state import with_random_state
from functx.aot.tokens import token_kinds, with_tokens
from functx.core.argument_errors import explain_errors as _explain_errors
from functx.core.program import Part
from functx.core.tracing import program_part
from functx.passes.memory_planning import JointProgram
from functx.passes.min_cut import MinCutConfig, Partition

__all__ = [
    "AotModule",
    "BaseKind",
    "InputInfo",
    "JointProgram",
    "Meta",
    "MinCutConfig",
    "MutationKind",
    "OutputInfo",
    "OutputKind",
    "Part",
    "Partition",
    "analyze",
    "aot_function",
    "aot_module",
    "create_functionalized_fn",
    "create_joint",
    "default_compiler",
    "default_partition",
    "fn_input_mutations_to_outputs",
    "fn_prepped_for_autograd",
    "joint_program",
    "min_cut_rematerialization_partition",
    "program_part",
    "token_kinds",
    "with_random_state",
    "with_tokens",
]

_explain_errors(__name__)
