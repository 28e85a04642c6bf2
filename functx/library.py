"""Custom operators: their definition, their rules by name, and the table that they are in."""

from functx.core.argument_errors import explain_errors as _explain_errors
from functx.core.caches import scoped as scoped
from functx.custom.operators.definition import custom_op as custom_op
from functx.custom.operators.definition import define as define
from functx.custom.operators.dispatch import Mode as Mode
from functx.custom.operators.operator import Operator as Operator
from functx.custom.operators.outputs import AbstractContext as AbstractContext
from functx.custom.operators.outputs import get_ctx as get_ctx
from functx.custom.operators.primitives import VmapInfo as VmapInfo
from functx.custom.operators.registry import def_abstract as def_abstract
from functx.custom.operators.registry import def_jvp as def_jvp
from functx.custom.operators.registry import def_vmap as def_vmap
from functx.custom.operators.registry import destroy as destroy
from functx.custom.operators.registry import get as get
from functx.custom.operators.registry import impl as impl
from functx.custom.operators.registry import register_autograd as register_autograd
from functx.custom.operators.schema import Argument as Argument
from functx.custom.operators.schema import Return as Return
from functx.custom.operators.schema import Schema as Schema
from functx.custom.operators.schema import Type as Type
from functx.custom.operators.schema import is_functional_schema as is_functional_schema
from functx.custom.operators.schema_inference import infer_schema as infer_schema

__all__ = _explain_errors(__name__)
