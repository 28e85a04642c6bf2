"""Compiled autograd: the backward walk captured as a program, and found again by its structure.

Under `enable()`, the walk of a `backward()` or `grad()` is captured as one program, which prints. The
next walk of the same structure, with other values, hooks or closures, runs that program. A hook is
called between its stages; a hook that only computes is compiled together with them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from functx.autograd.compiled.compilers import WalkCompiler, check_compiler, clear_walks, in_region
from functx.autograd.compiled.counters import counters
from functx.autograd.compiled.programs import CapturedProgram, compile_stages
from functx.autograd.engine import walk_compiler
from functx.autograd.modes import ModeContext, set_var
from functx.core.argument_errors import explain_errors as _explain_errors
from functx.core.errors import CapturedWalkError

__all__ = [
    "CapturedProgram",
    "compile_stages",
    "counters",
    "disable",
    "enable",
    "in_compiled_autograd_region",
    "reset",
]


class enable(ModeContext):  # noqa: N801 - PyTorch's name
    """A context, and a decorator, in which backward walks run as captured programs.

    `compiler_fn(program)` gets each captured program, a `CapturedProgram`, and returns a function of the
    lists of its groups, such as `compile_stages(program)`. Without it, a walk is compiled when its
    structure and sizes come back; until then it runs node by node. With `dynamic`, walks that differ in
    sizes alone count as one capture from the start, else from the second size on. It holds for walks that
    begin in this context (`contextvars`), wherever their values were computed.

    Walks under `detect_anomaly` and for batches of gradients (`is_grads_batched`) are not captured.

    Raises WalkCompilerError for a `compiler_fn` that is not callable, or that returns nothing callable.

    >>> import functx
    >>> from functx.autograd import Variable
    >>> x = Variable(3.0, requires_grad=True)
    >>> with functx.compiled_autograd.enable():
    ...     for _ in range(3):
    ...         (x * x).backward()
    >>> print(x.grad)
    18.0
    """

    def __init__(self, compiler_fn: Callable[[Any], Any] | None = None, *, dynamic: bool = False):
        check_compiler(compiler_fn)
        self.compiler_fn, self.dynamic = compiler_fn, bool(dynamic)

    def enter(self) -> Callable[[], None]:
        return set_var(walk_compiler, WalkCompiler(self.compiler_fn, self.dynamic))

    def fresh(self) -> ModeContext:
        return enable(self.compiler_fn, dynamic=self.dynamic)


class disable(ModeContext):  # noqa: N801 - PyTorch's name
    """A context, and a decorator, in which backward walks run node by node, also inside `enable()`."""

    def __init__(self) -> None:
        super().__init__()

    def enter(self) -> Callable[[], None]:
        return set_var(walk_compiler, None)


def reset() -> None:
    """Forget all captured walks, counts, and the compiler of this context.

    Raises CapturedWalkError while a compiled walk runs.
    """
    if in_region.get():
        raise CapturedWalkError(
            "reset: it must not be called while a compiled walk runs; got a call in one",
            fix="Call it before or after backward().",
        )
    clear_walks()
    walk_compiler.set(None)


def in_compiled_autograd_region() -> bool:
    """Whether a compiled walk runs in this context, as its hooks see it."""
    return in_region.get()


_explain_errors(__name__)
