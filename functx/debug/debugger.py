"""The debuggers of breakpoints; imported by the first breakpoint, since pdb is slow to import."""

from __future__ import annotations

import pdb
import sys
from bdb import BdbQuit
from types import FrameType, TracebackType


class Debugger(pdb.Pdb):
    """Python's debugger; it continues at the end of its input, and skips functx and JAX."""

    def __init__(self) -> None:
        replaced = sys.stdin is not sys.__stdin__
        streams = {"stdin": sys.stdin, "stdout": sys.stdout} if replaced else {}
        super().__init__(skip=["functx.*", "jax.*", "jax"], **streams)  # type: ignore[arg-type]

    def do_EOF(self, arg: str) -> bool | None:  # noqa: N802 - the name that cmd.Cmd looks for
        """Continue, as `continue` does."""
        return self.do_continue(arg)


class FrozenFrameDebugger(Debugger):
    """A debugger at a frame that is not running: it shows values, continues or ends the program."""

    def get_stack(
        self, f: FrameType | None, t: TracebackType | None
    ) -> tuple[list[tuple[FrameType, int]], int]:
        assert f is not None
        return [(f, f.f_lineno)], 0

    def do_continue(self, arg: str) -> bool | None:
        """Continue the program."""
        return True

    do_c = do_cont = do_n = do_next = do_s = do_step = do_r = do_return = do_continue
    do_u = do_until = do_unt = do_continue

    def do_quit(self, arg: str) -> bool | None:
        """End the program."""
        self.quitting = True
        return True

    do_q = do_exit = do_quit

    def end(self) -> None:
        """Raise BdbQuit if the user quit."""
        if self.quitting:
            raise BdbQuit
