"""Sources: the user's line that an equation comes from, recorded cheaply and described on demand."""

from __future__ import annotations

import contextlib
import dis
import linecache
import os
import re
import sys
import warnings
from bisect import bisect_right
from contextlib import suppress
from contextvars import ContextVar
from functools import cached_property, lru_cache
from itertools import islice
from types import CodeType, FrameType, TracebackType
from typing import Any

Source = tuple[CodeType, int]
"""A code object, and the offset of the instruction in it that was running."""

named_scopes: ContextVar[str] = ContextVar("named_scopes", default="")
"""The names of the scopes around the code that is traced, outermost first, with slashes between them."""

_LONGEST_CHAIN = 100


def closure_values(fun: object) -> list[Any]:
    """The values in the closure of a function; cells that are still empty have none."""
    found = []
    for cell in getattr(fun, "__closure__", None) or ():
        with suppress(ValueError):
            found.append(cell.cell_contents)
    return found


def unwrap_function(fun: object, *attributes: str) -> Any:
    """The innermost function that `fun` wraps, by `__wrapped__` or one of `attributes`.

    `fun` itself if the chain does not end, as for objects that have every attribute.
    """
    inner = fun
    for _ in range(_LONGEST_CHAIN):
        for name in ("__wrapped__", *attributes):
            following = getattr(inner, name, None)
            if following is not None:
                break
        else:
            return inner
        inner = following
    return fun


class LibrarySource(tuple[CodeType, int]):
    """The source of an equation in an installed package; `user` is the user's line that called it.

    Equal to the plain source.
    """

    user: Source


class ScopedSource(tuple[CodeType, int]):
    """The source of an equation under `named_scope`; `scope` is the path of names.

    Equal to the plain source. The marked sources below have a `scope` too where there is one.
    """

    scope: str


class DerivedSource(tuple[CodeType, int]):
    """The source of an equation that a transform derived from one of the user.

    Equal to the plain source. Variables of such equations do not get names of the user's variables.
    """

    user: Source


class BackwardSource(DerivedSource):
    """The source of an equation of the backward computation of one of the user."""


def derived_source(source: Source | None) -> Source | None:
    """`source`, marked as that of an equation that a transform derived."""
    if source is None or isinstance(source, DerivedSource):
        return source
    return DerivedSource(source) if type(source) is tuple else _marked_source(DerivedSource, source)


def backward_source(source: Source | None) -> Source | None:
    """`source`, marked as that of an equation of a backward computation."""
    if source is None:
        return source
    return (
        BackwardSource(source) if type(source) is tuple else _marked_source(BackwardSource, source)
    )


def scoped_source(source: Source, scope: str) -> Source:
    """`source`, marked as that of an equation under the names `scope`."""
    kind: type[Any] = ScopedSource if type(source) is tuple else type(source)
    scoped = kind(source)
    vars(scoped).update(getattr(source, "__dict__", {}), scope=scope)
    return scoped  # type: ignore[no-any-return]


def scope_of(source: Source | None) -> str:
    """The path of names of `named_scope` around an equation, such as "encoder/attention"; "" for none."""
    return "" if source is None or type(source) is tuple else vars(source).get("scope", "")


def _marked_source(kind: type[DerivedSource], source: Source) -> Source:
    marked = kind(source)
    vars(marked).update(vars(source))
    return marked


def user_line(source: Source) -> Source:
    """The user's line for a source in an installed package; any other source unchanged."""
    return source if type(source) is tuple else vars(source).get("user", source)


@lru_cache(maxsize=1024)
def expression_key(source: Source) -> tuple[CodeType, Any]:
    """The position in the text of the expression that was running, else its offset.

    Equal for all runs of the expression, while the offset may change when Python specializes it.
    """
    code, offset = source
    return code, next(islice(code.co_positions(), offset // 2, None), offset)


_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_JAX = f"{os.sep}jax{os.sep}_src{os.sep}"
_INSTALLED = re.compile(r".*[/\\](?:site|dist)-packages[/\\]")
_INTERMEDIATE_FILES = f"<{__name__}>", contextlib.__file__
_LIBRARY_PREFIXES = (
    # The standard library, scripts that start an installed package, and generated code.
    os.path.dirname(os.path.abspath(os.__file__)) + os.sep,
    os.path.join(sys.prefix, "Scripts" if os.name == "nt" else "bin") + os.sep,
    *("<frozen ", "<__array_function__", "<attrs generated", "<@beartype"),
)

FUNCTX_OR_JAX, INSTALLED_PACKAGE, USER_CODE = 2, 1, 0


class _FileOwners(dict[str, int]):
    """The owner of a file by name: functx or JAX, an installed package, or the user.

    Files of Python's context managers count as JAX's, since they run between frames of JAX.
    """

    def __missing__(self, filename: str) -> int:
        if filename.startswith((_PACKAGE, *_INTERMEDIATE_FILES)) or _JAX in filename:
            owner = FUNCTX_OR_JAX
        elif filename.startswith(_LIBRARY_PREFIXES) or _INSTALLED.match(filename):
            owner = INSTALLED_PACKAGE
        else:
            owner = USER_CODE
        if len(self) >= 4096:
            self.clear()
        self[filename] = owner
        return owner


file_owner = _FileOwners()
# The functions that `dataclass` generates, which have no file.
_DATACLASS_CODE_PREFIX = "__create_fn__."


def user_frame(frame: FrameType | None) -> FrameType | None:
    """The innermost frame, from `frame` outwards, that runs code of neither functx nor JAX."""
    while frame is not None and (
        file_owner[frame.f_code.co_filename] is FUNCTX_OR_JAX
        or frame.f_code.co_qualname.startswith(_DATACLASS_CODE_PREFIX)
    ):
        frame = frame.f_back
    return frame


def user_source(depth: int = 1) -> Source | None:
    """The source of the innermost caller outside functx and JAX."""
    frame = user_frame(sys._getframe(depth))
    return None if frame is None else frame_source(frame)


def warn_at_user_line(warning: str | Warning, category: type[Warning]) -> None:
    """Warn at the line of the user's code that runs now."""
    found = user_source(2)
    line = None if found is None else user_line(found)
    where = ("functx", 0) if line is None else (line[0].co_filename, line_number(line))
    warnings.warn_explicit(warning, category, *where)


def frame_source(frame: FrameType) -> Source:
    """The source of `frame`, with the user's line that called it if it runs an installed package."""
    source = frame.f_code, frame.f_lasti
    outer: FrameType | None = frame
    while outer is not None:
        if file_owner[outer.f_code.co_filename] is USER_CODE:
            break
        outer = outer.f_back
    if outer is None or outer is frame:
        return source
    library_source = LibrarySource(source)
    library_source.user = outer.f_code, outer.f_lasti
    return library_source


class _CodeInfo:
    """The lines and instructions of one code object, in order of their offsets."""

    def __init__(self, code: CodeType):
        self.code = code

    @cached_property
    def lines(self) -> tuple[list[int], list[int]]:
        """The start offset of each run of instructions, and its line."""
        starts, lines = [0], [self.code.co_firstlineno]
        for start, _, line in self.code.co_lines():
            if line is not None:
                starts.append(start)
                lines.append(line)
        return starts, lines

    @cached_property
    def instructions(self) -> list[dis.Instruction]:
        skipped = ("CACHE", "EXTENDED_ARG")
        return [i for i in dis.get_instructions(self.code) if i.opname not in skipped]

    @cached_property
    def offsets(self) -> list[int]:
        """The start offset of each instruction."""
        return [instruction.offset for instruction in self.instructions]

    def line(self, offset: int) -> int:
        starts, lines = self.lines
        return lines[bisect_right(starts, offset) - 1]

    def stored_names(self, offset: int) -> tuple[str, ...]:
        """The variables that the result of the instruction at `offset` is directly assigned to."""
        # The offset of a calling frame may be that of the cache entries after its instruction.
        following = bisect_right(self.offsets, offset)
        instructions = self.instructions
        if instructions[following : following + 1] and instructions[following].opname == "COPY":
            following += 1
        if following >= len(instructions):
            return ()
        if instructions[following].opname != "UNPACK_SEQUENCE":
            return _stored(instructions[following])[:1]
        count = instructions[following].arg or 0
        names: tuple[str, ...] = ()
        for instruction in instructions[following + 1 : following + 1 + count]:
            names += _stored(instruction)
        return names[:count] if len(names) >= count else ()

    def container(self, offset: int) -> str | None:
        """The variable whose item the instruction at `offset` assigns.

        "" if the container has no name; None if the instruction is not an item assignment.
        """
        position = bisect_right(self.offsets, offset) - 1
        depth = {"STORE_SUBSCR": 1, "STORE_SLICE": 2}.get(self.instructions[position].opname)
        if depth is None:
            return None
        # Go back over the instructions that compute the index, to the load of the container.
        while depth > 0 and position > 0:
            position -= 1
            instruction = self.instructions[position]
            depth -= dis.stack_effect(instruction.opcode, instruction.arg)
            if instruction.opname == "SWAP":
                return ""
        loaded = self.instructions[position - 1]
        named = loaded.opname.startswith("LOAD_") and isinstance(loaded.argval, str)
        return loaded.argval if named else ""


def _stored(instruction: dis.Instruction) -> tuple[str, ...]:
    """The variables that an instruction stores to, in order."""
    name = instruction.opname
    if not name.startswith("STORE_") or name in ("STORE_ATTR", "STORE_SUBSCR", "STORE_SLICE"):
        return ()
    # Since Python 3.13, one instruction may store twice, or store and load.
    names = instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
    return names[:1] if name == "STORE_FAST_LOAD_FAST" else names


# By identity, since hashing a code object is slow. The entry keeps the code object alive, so that its
# identity is not reused.
_codes: dict[int, _CodeInfo] = {}


def _code_info(code: CodeType) -> _CodeInfo:
    found = _codes.get(id(code))
    if found is None:
        if len(_codes) >= 1024:
            _codes.clear()
        found = _codes[id(code)] = _CodeInfo(code)
    return found


def line_number(source: Source) -> int:
    """The line number of a source."""
    return _code_info(source[0]).line(source[1])


def assigned_names(source: Source) -> tuple[str, ...]:
    """The variables that the user's code directly assigns the results to."""
    return _code_info(source[0]).stored_names(source[1])


def is_raise_instruction(code: CodeType, offset: int) -> bool:
    """Whether the instruction at `offset` is a `raise` or a failed `assert`, not a call."""
    return _operation_name(code, offset) == "RAISE_VARARGS"


LIST_SEARCH_FIX = (
    "With xs = functx.numpy.stack(the_list), (xs == x).any() says whether a number is in it, and "
    "functx.numpy.argmax(xs == x) where."
)


def list_search(source: Source | None) -> str:
    """`in`, `index`, `count` or `remove`, if the line of `source` looks for a value in a list; else empty."""
    if source is None:
        return ""
    if _operation_name(*source) == "CONTAINS_OP":
        return "in"
    called = re.findall(r"\.(index|count|remove)\(", line_text(source))
    return called[0] if called and _operation_name(*source).startswith("CALL") else ""


def _operation_name(code: CodeType, offset: int) -> str:
    """The name of the instruction at `offset`."""
    position = bisect_right(_code_info(code).offsets, offset) - 1
    return _code_info(code).instructions[position].opname


def traceback_source(trail: TracebackType | None) -> Source | None:
    """The innermost source outside functx and JAX in a traceback, with the user's line that called it."""
    line: Source | None = None
    user: Source | None = None
    while trail is not None:
        frame = trail.tb_frame
        if user_frame(frame) is frame:
            line = frame.f_code, trail.tb_lasti
            if file_owner[frame.f_code.co_filename] is USER_CODE:
                user = line
        trail = trail.tb_next
    if line is user or line is None or user is None:
        return line
    library_source = LibrarySource(line)
    library_source.user = user
    return library_source


_ITEM_ASSIGNMENT = re.compile(r"([\w.]+)\[[^=]*\]\s*(?:[-+*/%&|^@]|//|\*\*|<<|>>)?=(?!=)")


def assigned_container(source: Source | None) -> str | None:
    """The container that the user's line assigns an item of, "" without a name; None for other lines."""
    container = None if source is None else _code_info(source[0]).container(source[1])
    written = (
        source is not None and container is not None and _ITEM_ASSIGNMENT.search(line_text(source))
    )
    return written[1] if written else container


def line_text(source: Source | None) -> str:
    """The text of the line of a source; empty if it is not known."""
    if source is None:
        return ""
    return linecache.getline(source[0].co_filename, line_number(source)).strip()


def describe_source(source: Source | None) -> str:
    """`file.py:31 in main`: a source as errors and programs show it.

    A notebook cell is `cell In[3], line 2`. The user's line comes first, then the line of the installed
    package that it called.
    """
    if source is None:
        return "unknown line"
    user = user_line(source)
    return _location_text(user) + (
        f", through {_location_text(source)}" if user is not source else ""
    )


def source_line(source: Source | None) -> str:
    """`file.py:31 in main: losses = vmap(loss)(rows)`: the location and the text of the line."""
    if source is None:
        return "unknown line"
    user = user_line(source)
    through = f"\n    through {_location_and_code(source)}" if user is not source else ""
    return _location_and_code(user) + through


def _location_and_code(source: Source) -> str:
    text = line_text(source)
    return f"{_location_text(source)}: {text}" if text else _location_text(source)


def _location_text(source: Source) -> str:
    code, line = source[0], line_number(source)
    function = code.co_qualname.replace(".<locals>", "")
    cell = _notebook_cell(code.co_filename)
    if cell is not None:
        within = "" if function.startswith("<") and function != "<lambda>" else f" in {function}"
        return f"{cell}, line {line}{within}"
    filename = code.co_filename
    if file_owner[filename] is INSTALLED_PACKAGE:
        # `optax/_src/transform.py`: the package is part of the name.
        shown = _INSTALLED.sub("", filename)
        shown = shown if shown != filename else os.path.basename(filename)
    else:
        shown = os.path.basename(filename)
    return f"{shown}:{line} in {function}"


def ipython_shell() -> Any:
    """The IPython shell of this process; None without one."""
    ipython = sys.modules.get("IPython")
    found = getattr(ipython, "get_ipython", None)
    return None if found is None else found()


def _notebook_cell(filename: str) -> str | None:
    """`cell In[3]` for the code of a notebook cell; None for other code."""
    shell = ipython_shell()
    if shell is None:
        return None
    try:
        label, number = shell.compile.format_code_name(filename)
    except (AttributeError, TypeError):
        return None
    return f"{label.lower()} {number}"
