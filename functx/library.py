"""Custom operators: their definition, their rules by name, and the table that they are in."""

from functx.core.argument_errors import explain_errors as _explain_errors
from functx.core.caches import scoped
from functx.custom.operators.definition import custom_op, define
from functx.custom.operators.dispatch import Mode
from functx.custom.operators.operator import Operator
from functx.custom.operators.outputs import AbstractContext, get_ctx
from functx.custom.operators.primitives import VmapInfo
from functx.custom.operators.registry import (
    def_abstract,
    def_jvp,
    def_vmap,
    destroy,
    get,
    impl,
    register_autograd,
)
from functx.custom.operators.schema import Argument, Return, Schema, Type, is_functional_schema
from functx.custom.operators.schema_inference import infer_schema

__all__ = [
    "AbstractContext",
    "Argument",
    "Mode",
    "Operator",
    "Return",
    "Schema",
    "Type",
    "VmapInfo",
    "custom_op",
    "def_abstract",
    "def_jvp",
    "def_vmap",
    "define",
    "destroy",
    "get",
    "get_ctx",
    "impl",
    "infer_schema",
    "is_functional_schema",
    "register_autograd",
    "scoped",
]

_explain_errors(__name__)
