"""Tools that show programs: pages, pictures, profiles, values, differences, costs, nan and memory."""

from functx.core.argument_errors import explain_errors as _explain_errors
from functx.tools.cost import cost as cost
from functx.tools.difference import diff as diff
from functx.tools.explain_nan import explain_nan as explain_nan
from functx.tools.machine import machine as machine
from functx.tools.memory import memory as memory
from functx.tools.passes import outlined as outlined
from functx.tools.passes import passes as passes
from functx.tools.passes import replaced_formulas as replaced_formulas
from functx.tools.passes import simplified as simplified
from functx.tools.picture import picture as picture
from functx.tools.products import products as products
from functx.tools.profile import profile as profile
from functx.tools.program_page import html as html
from functx.tools.python_source import python_source as python_source
from functx.tools.stablehlo_files import save_stablehlo as save_stablehlo
from functx.tools.watch import watch as watch

__all__ = _explain_errors(__name__)
