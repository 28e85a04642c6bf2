"""Programs that leave the process: exported with a signature, saved to a file, and loaded without user code."""

from functx.core.argument_errors import explain_errors as _explain_errors
from functx.export.exported import Exported as Exported
from functx.export.exported import deserialize as deserialize
from functx.export.exported import load as load
from functx.export.functions import export as export
from functx.export.joint_functions import joint_simple as joint_simple
from functx.export.modules import module as module
from functx.export.signature import BackwardSignature as BackwardSignature
from functx.export.signature import Signature as Signature
from functx.export.structures import (
    register_namedtuple_serialization as register_namedtuple_serialization,
)
from functx.export.structures import (
    register_pytree_node_serialization as register_pytree_node_serialization,
)
from functx.export.structures import (
    register_wrapper_serialization as register_wrapper_serialization,
)

__all__ = _explain_errors(__name__)
