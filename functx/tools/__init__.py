"""Tools that show programs: pages, differences, costs, nan, memory, and the passes before the lowering."""

from functx.tools.cost import cost
from functx.tools.difference import diff
from functx.tools.explain_nan import explain_nan
from functx.tools.memory import memory
from functx.tools.passes import outlined, passes, simplified
from functx.tools.program_page import html

__all__ = ["cost", "diff", "explain_nan", "html", "memory", "outlined", "passes", "simplified"]
