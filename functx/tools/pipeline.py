"""`outlined`: what a program repeats, as programs and loops of its own, for reading."""

from __future__ import annotations

from functx.core.checking import check_program_argument
from functx.core.config import OUTLINE_MODES, SIMPLIFY_MODES, check_choice
from functx.core.program import Program
from functx.passes.outlining import Outline
from functx.passes.simplify import Simplify


def outlined(program: Program, mode: str = "auto") -> Program:
    """`program` as it is lowered: repeats are calls of programs of their own, or loops.

    `mode` is one of those of `functx.config.outline`. A program in which values change is
    returned as it is; see `functx.functionalize`.

    >>> import functx
    >>> def steps(x):
    ...     for _ in range(50):
    ...         x = functx.numpy.sin(x) * 0.5 + x / 3.0
    ...     return x
    >>> program = functx.make_ir(steps)(1.0)
    >>> len(program), len(functx.tools.outlined(program))
    (200, 1)
    """
    check_choice("outlined: mode", mode, OUTLINE_MODES)
    check_program_argument("outlined", program)
    found = Outline(mode)(program)
    return found.map_subprograms(lambda nested: outlined(nested, mode))


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
