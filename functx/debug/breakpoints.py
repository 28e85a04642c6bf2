"""`debug.breakpoint`: a debugger prompt in the user's function, with the values of its variables."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import CodeType
from typing import Any

from functx import ops
from functx.core import tree
from functx.core.source_info import user_frame
from functx.core.tracer import Tracer
from functx.transforms.tracer_values import tracer_value


def breakpoint(*, ordered: bool = False) -> None:
    """Stop at this line, at a prompt of `pdb` in which variables have their values.

    If the values are known while the function is traced (under `grad`, `vjp`, `jvp`, `vmap` of
    concrete arguments, and without a transform), the prompt is Python's debugger in the function
    itself: `n` runs the next line, and a traced array shows its value. Otherwise, as under `jit`
    and in the body of a loop, the prompt opens each time the running program reaches this line:
    `p`, `pp`, `l` and any expression show the variables of the function at this line, as NumPy
    arrays, and `c` continues. `q` ends the program. With `ordered`, prompts open in the order of
    the program, like the calls of `debug.callback`.

    >>> import functx, io, sys
    >>> def loss(x):
    ...     y = x * 2
    ...     functx.debug.breakpoint()
    ...     return y * y
    >>> stdin, sys.stdin = sys.stdin, io.StringIO("p float(y) + 1\\nc\\n")
    >>> print("value", functx.jit(loss)(3.0)); sys.stdin = stdin  # doctest: +ELLIPSIS
    > <doctest ...>(3)loss()
    -> functx.debug.breakpoint()
    (Pdb) 7.0
    (Pdb) value 36.0
    """
    frame = user_frame(sys._getframe(1))
    assert frame is not None
    variables = {k: x for k, x in frame.f_locals.items() if k.isidentifier()}
    traced = {k: x for k, x in variables.items() if any(map(_is_open_tracer, tree.leaves(x)))}
    leaves = [x for x in tree.leaves(traced) if _is_open_tracer(x)]
    if all(tracer_value(x) is not None for x in leaves):
        from functx.debug.debugger import Debugger

        Debugger().set_trace(frame)
        return
    known = {k: x for k, x in variables.items() if k not in traced}
    callback = BreakpointCallback(frame.f_code, frame.f_lineno, frame.f_globals, known)
    host, leaves = ops.flat_callback("debug.breakpoint", callback, (traced,), {}, static_too=True)
    ops.DebugCallback(host, (), bool(ordered))(*leaves)


def _is_open_tracer(x: Any) -> bool:
    return type(x) is Tracer and x.builder.is_open


class BreakpointCallback:
    """The callback that opens a prompt at a line of the user's function."""

    def __init__(
        self, code: CodeType, line: int, scope: dict[str, Any], variables: Mapping[str, Any]
    ):
        self.code, self.line, self.scope, self.variables = code, line, scope, variables
        self.__name__ = "breakpoint"

    def __call__(self, traced: Mapping[str, Any]) -> None:
        from functx.debug.debugger import FrozenFrameDebugger

        # The code runs at that line, in a frame whose locals are the values.
        prompt = FrozenFrameDebugger()
        prompt.reset()
        values = {**self.variables, **traced, _PROMPT_NAME: prompt}
        text = "\n" * (self.line - 1) + f"{_PROMPT_NAME}.interaction({_CURRENT_FRAME}, None)"
        code = compile(text, self.code.co_filename, "exec")
        exec(code.replace(co_name=self.code.co_name), self.scope, values)
        prompt.end()


_PROMPT_NAME = "__prompt__"
_CURRENT_FRAME = "__import__('sys')._getframe()"
