"""Tools that show programs: pages, pictures, profiles, values, differences, costs, nan and memory."""

from functx.core.argument_errors import explain_errors as _explain_errors
from functx.tools.cost import cost
from functx.tools.difference import diff
from functx.tools.explain_nan import explain_nan
from functx.tools.machine import machine
from functx.tools.memory import memory
from functx.tools.passes import outlined, passes, replaced_formulas, simplified
from functx.tools.picture import picture
from functx.tools.products import products
from functx.tools.profile import profile
from functx.tools.program_page import html
from functx.tools.python_source import python_source
from functx.tools.stablehlo_files import save_stablehlo
from functx.tools.watch import watch

__all__ = [
    "cost",
    "diff",
    "explain_nan",
    "html",
    "machine",
    "memory",
    "outlined",
    "passes",
    "picture",
    "products",
    "profile",
    "python_source",
    "replaced_formulas",
    "save_stablehlo",
    "simplified",
    "watch",
]

_explain_errors(__name__)
