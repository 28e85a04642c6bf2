"""`simplified`: a program as it is lowered, made simpler, for reading."""

from __future__ import annotations

from functx.core.checking import check_program_argument
from functx.core.config import SIMPLIFY_MODES, check_choice
from functx.core.program import Program
from functx.transforms.simplify.simplify import Simplify


def simplified(program: Program, mode: str = "always") -> Program:
    """`program` made simpler: what it computes, in fewer and cheaper equations.

    `mode` is one of those of `functx.config.simplify`; what is lowered is by default what "auto"
    gives. A program in which values change is returned as it is; see `functx.functionalize`.

    >>> import functx
    >>> program = functx.make_ir(lambda x: (x * 1 + x * 1, x - 0))(2.0)
    >>> len(program), len(functx.tools.simplified(program))
    (4, 1)
    """
    check_choice("simplified: mode", mode, SIMPLIFY_MODES)
    check_program_argument("simplified", program)
    return Simplify(mode, deep=True)(program)
