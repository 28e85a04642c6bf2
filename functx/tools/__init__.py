"""Tools for programs: explanations of nan, memory use, and the passes before the lowering."""

from functx.tools.explain_nan import explain_nan
from functx.tools.memory import memory
from functx.tools.passes import outlined, passes, simplified

__all__ = ["explain_nan", "memory", "outlined", "passes", "simplified"]
