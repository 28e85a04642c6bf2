"""Tools around programs and the package itself."""

from functx.tools.explain_nan import explain_nan
from functx.tools.memory import memory
from functx.tools.outlined import outlined
from functx.tools.simplified import simplified

__all__ = ["explain_nan", "memory", "outlined", "simplified"]
