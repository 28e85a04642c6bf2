"""Where in the user's code an equation comes from, found cheaply and told in full only on demand."""

from __future__ import annotations

import dis
import linecache
import os
import sys
from functools import lru_cache
from types import CodeType, FrameType

# The code object and the offset of the instruction in it that was running.
Source = tuple[CodeType, int]

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


class _Ours(dict[str, bool]):
    """Whether a file is one of functx's or of JAX's own, remembered by file name."""

    def __missing__(self, filename: str) -> bool:
        ours = filename.startswith(_PACKAGE) or f"{os.sep}jax{os.sep}_src{os.sep}" in filename
        self[filename] = ours = ours or filename == f"<{__name__}>"
        return ours


_is_ours = _Ours()


def user_frame(frame: FrameType | None) -> FrameType | None:
    """The innermost frame at or outside `frame` that runs the user's code."""
    while frame is not None and _is_ours[frame.f_code.co_filename]:
        frame = frame.f_back
    return frame


def user_source(depth: int = 1) -> Source | None:
    """The source of whatever in the user's code is now calling us."""
    frame = user_frame(sys._getframe(depth))
    return None if frame is None else (frame.f_code, frame.f_lasti)


@lru_cache(maxsize=65536)
def line_number(source: Source) -> int:
    code, offset = source
    for start, stop, line in code.co_lines():
        if start <= offset < stop and line is not None:
            return line
    return code.co_firstlineno


def describe(source: Source | None) -> str:
    """`file.py:31 in main`, the form in which errors and programs name a line."""
    if source is None:
        return "unknown line"
    code = source[0]
    return f"{os.path.basename(code.co_filename)}:{line_number(source)} in {code.co_qualname}"


def source_line(source: Source | None) -> str:
    """`file.py:31 in main: losses = vmap(loss)(rows)`: the place and the text of the line."""
    if source is None:
        return "unknown line"
    text = linecache.getline(source[0].co_filename, line_number(source)).strip()
    return f"{describe(source)}: {text}" if text else describe(source)


@lru_cache(maxsize=1024)
def _instructions(code: CodeType) -> dict[int, dis.Instruction]:
    return {
        before.offset: after
        for before, after in _pairs([i for i in dis.get_instructions(code) if i.opname != "CACHE"])
    }


def _pairs(items: list[dis.Instruction]) -> zip[tuple[dis.Instruction, dis.Instruction]]:
    return zip(items, items[1:], strict=False)


@lru_cache(maxsize=65536)
def assigned_name(source: Source) -> str | None:
    """The variable that the user's code stores the result in, where it does so at once."""
    after = _instructions(source[0]).get(source[1])
    if after is not None and after.opname.startswith("STORE_") and isinstance(after.argval, str):
        return after.argval if after.opname not in ("STORE_ATTR", "STORE_SUBSCR") else None
    return None
