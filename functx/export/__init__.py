"""Programs that leave the process: exported with a signature, saved to a file, and loaded without user code."""

from functx.core.argument_errors import explain_errors as _explain_errors
from functx.export.exported import Exported, deserialize, load
from functx.export.functions import export
from functx.export.joint_functions import joint_simple
from functx.export.modules import module
from functx.export.signature import BackwardSignature, Signature
from functx.export.structures import (
    register_namedtuple_serialization,
    register_pytree_node_serialization,
    register_wrapper_serialization,
)

__all__ = [
    "BackwardSignature",
    "Exported",
    "Signature",
    "deserialize",
    "export",
    "joint_simple",
    "load",
    "module",
    "register_namedtuple_serialization",
    "register_pytree_node_serialization",
    "register_wrapper_serialization",
]

_explain_errors(__name__)
