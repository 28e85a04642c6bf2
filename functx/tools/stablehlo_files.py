"""`save_stablehlo`: a function as a file of StableHLO that Netron and Model Explorer show."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from functx.core.context import ContextValue
from functx.core.source_info import Source, scope_of
from functx.core.typing import Function, PyTree
from functx.lowering.functx_call import jit_program
from functx.lowering.portable import portable_bytes
from functx.lowering.stablehlo_emitter import location_name
from functx.tools.markup import check_ending
from functx.tools.user_lines import line_of
from functx.transforms.argument_names import check_callable, wrap_transform
from functx.transforms.make_ir import functionalize, make_ir


def save_stablehlo(fun: Function) -> Callable[..., None]:
    """The function `save(path, *args)` that writes `fun(*args)` as StableHLO, for viewers of graphs.

    A path that ends in `.mlir` gets text, which Netron and Model Explorer open; one in `.mlirbc` the
    same in portable bytes, which Model Explorer opens, also one made for other versions of StableHLO.
    It groups the operations by named scope, function and line of the user. The file names the source
    files, and is no program that functx loads again; `functx.export` makes those. Arguments may have
    a shape and a dtype alone; nothing is compiled.

    Raises ArgumentError for what is no function or for another ending, and whatever `fun` raises.

    >>> import functx, pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "sine.mlir"
    >>> functx.tools.save_stablehlo(functx.numpy.sin)(path, 1.0)
    >>> "stablehlo.sine" in path.read_text()
    True
    """
    check_callable(fun, "save_stablehlo")

    def wrapper(path: str | PathLike[str], /, *args: PyTree, **kwargs: PyTree) -> None:
        check_ending("save_stablehlo", path, (".mlir", ".mlirbc"))
        program = make_ir(functionalize(fun))(*args, **kwargs)
        with ContextValue(location_name, group_of):
            lowered = jit_program(program, keep_unused=True).lower(*program.in_avals)
        module: Any = lowered.compiler_ir("stablehlo")
        text = module.operation.get_asm(enable_debug_info=True)
        if fspath(path).endswith(".mlir"):
            Path(path).write_text(text, encoding="utf-8")
        else:
            Path(path).write_bytes(portable_bytes(text))

    return wrap_transform(wrapper, fun, "save_stablehlo")


def group_of(source: Source | None) -> str:
    """The groups of an operation, with slashes between: named scopes, direction, function and line."""
    if source is None:
        return ""
    line = line_of(source)
    _, _, function = line.place.rpartition(" in ")
    parts = [
        *scope_of(source).split("/"),
        "backward" if line.is_backward else "",
        function,
        f"{line.number}: {line.text}",
    ]
    return "/".join([part.replace("/", "\u2215") for part in parts if part])
