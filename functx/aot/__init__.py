"""Joint programs of functions and their gradients, and their partition into forward and backward."""

from functx.aot.analysis import analyze as analyze
from functx.aot.compilers import default_compiler as default_compiler
from functx.aot.functions import aot_function as aot_function
from functx.aot.joint import create_joint as create_joint
from functx.aot.meta import BaseKind as BaseKind
from functx.aot.meta import InputInfo as InputInfo
from functx.aot.meta import Meta as Meta
from functx.aot.meta import MutationKind as MutationKind
from functx.aot.meta import OutputInfo as OutputInfo
from functx.aot.meta import OutputKind as OutputKind
from functx.aot.modules import AotModule as AotModule
from functx.aot.modules import aot_module as aot_module
from functx.aot.partitions import default_partition as default_partition
from functx.aot.partitions import (
    min_cut_rematerialization_partition as min_cut_rematerialization_partition,
)
from functx.aot.prepared import create_functionalized_fn as create_functionalized_fn
from functx.aot.prepared import fn_input_mutations_to_outputs as fn_input_mutations_to_outputs
from functx.aot.prepared import fn_prepped_for_autograd as fn_prepped_for_autograd
from functx.aot.prepared import joint_program as joint_program
from functx.aot.random_state import with_random_state as with_random_state
from functx.aot.tokens import token_kinds as token_kinds
from functx.aot.tokens import with_tokens as with_tokens
from functx.core.argument_errors import explain_errors as _explain_errors
from functx.core.program import Part as Part
from functx.core.tracing import program_part as program_part
from functx.passes.memory_planning import JointProgram as JointProgram
from functx.passes.partition import Partition as Partition
from functx.passes.recompute_heuristics import MinCutConfig as MinCutConfig

__all__ = _explain_errors(__name__)
