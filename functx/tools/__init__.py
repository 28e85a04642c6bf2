"""Tools around programs and the package itself."""

from functx.tools.explain_nan import explain_nan
from functx.tools.memory import memory
from functx.tools.pipeline import outlined, simplified

__all__ = ["explain_nan", "memory", "outlined", "simplified"]
