"""The contents of the file of an exported program: made of an archive, and made into one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from functx.core import tree
from functx.core.errors import ExportError, ExportFileError, FunctxError
from functx.core.program import Program
from functx.core.tracer import aval_of
from functx.core.tree import TreeDef
from functx.core.types import ShapedArray
from functx.export.files import Archive, array_of_plain, aval_from_json, aval_to_json
from functx.export.programs import (
    ProgramTexts,
    check_registered,
    program_of_texts,
    program_to_texts,
)
from functx.export.signature import Signature, signature_from_json, signature_to_json
from functx.export.structures import structure_from_json, structure_to_json
from functx.lowering.portable import lower_to_portable


class Interface(NamedTuple):
    """The types, names and structures by which an exported program is called.

    `in_avals` are the types of all inputs, those of the constants last. The outputs are the leaves of the
    result, then the new values of the inputs `written`. Without trees, a call takes and returns arrays
    in the order of the program. A `layout_dependent` program is right only for arguments in row-major
    order, and one that `uses_64_bits` runs with 64-bit types on.
    """

    name: str
    in_names: tuple[str, ...]
    in_avals: tuple[ShapedArray, ...]
    out_avals: tuple[ShapedArray, ...]
    in_tree: TreeDef | None = None
    out_tree: TreeDef | None = None
    written: tuple[int, ...] = ()
    layout_dependent: bool = False
    uses_64_bits: bool = False

    def unflatten(self, leaves: Sequence[Any]) -> tuple[Any, Any]:
        """`(args, kwargs)` of a call with these leaves."""
        return (tuple(leaves), {}) if self.in_tree is None else tree.unflatten(self.in_tree, leaves)


class Contents(NamedTuple):
    """The parts of an exported program.

    `constants` are the values of the last inputs, and `state` those of the parameters and buffers of a
    module by name. `modules` holds StableHLO by platform, `archive` the file that the parts come from.
    """

    interface: Interface
    signature: Signature
    platforms: tuple[str, ...]
    constants: Sequence[Any]
    state: Mapping[str, Any]
    make_program: Callable[[], Program]
    modules: Mapping[str, bytes] = {}
    archive: Archive | None = None


def archive_of_contents(contents: Contents) -> Archive:
    """The archive of an exported program, for which it is lowered.

    Raises ExportError for what a file cannot hold.
    """
    interface, program = contents.interface, contents.make_program()
    name = interface.name
    in_tree, out_tree = [
        None if each is None else structure_to_json(each, name)
        for each in (interface.in_tree, interface.out_tree)
    ]
    texts = program_to_texts(program)
    # Operations of users are those that are registered where the file is loaded, so they stay equations.
    is_lowered = not program.effects and not texts.registered
    lowered_for = contents.platforms if is_lowered else ()
    constants = interface.in_avals[len(interface.in_avals) - len(contents.constants) :]
    state = [aval_of(x) for x in contents.state.values()]
    values = zip((*contents.constants, *contents.state.values()), (*constants, *state), strict=True)
    # Outside of 64-bit mode, arrays of the user are wider than their types.
    arrays = [np.asarray(x).astype(aval.dtype, copy=False) for x, aval in values]
    manifest = {
        "jax": jax.__version__,
        "name": name,
        "inputs": [
            [each, aval_to_json(aval)]
            for each, aval in zip(interface.in_names, interface.in_avals, strict=True)
        ],
        "outputs": [aval_to_json(aval) for aval in interface.out_avals],
        "in_tree": in_tree,
        "out_tree": out_tree,
        "written": [*interface.written],
        "layout_dependent": interface.layout_dependent,
        "uses_64_bits": interface.uses_64_bits,
        "constants": len(contents.constants),
        "state": [
            [each, aval_to_json(aval)] for each, aval in zip(contents.state, state, strict=True)
        ],
        "signature": signature_to_json(contents.signature),
        "registered": [*texts.registered],
        "rules": [len(programs) for programs in texts.rules],
        "platforms": [*contents.platforms],
        "stablehlo": [*lowered_for],
    }
    rules = {
        _rule_path(i, k): text
        for i, found in enumerate(texts.rules)
        for k, text in enumerate(found)
    }
    modules = {_module_path(p): lower(contents, p) for p in lowered_for}
    return Archive(manifest, {"program": texts.program, **rules}, modules, arrays)


def lower(contents: Contents, platform: str) -> bytes:
    """The StableHLO of an exported program for a platform; ExportError where there is none."""
    interface = contents.interface
    found = contents.modules.get(platform)
    if found is not None:
        return found
    try:
        with enabled_types(interface):
            return lower_to_portable(contents.make_program(), platform)
    except FunctxError:
        raise
    except (ValueError, NotImplementedError) as error:
        raise ExportError(
            f"{interface.name}: a program must have StableHLO for {platform} that other processes can "
            f"run; got {str(error).strip()}",
            fix="Export it with platforms=(): the file then holds the program alone, which is lowered "
            "where it is loaded.",
        ) from error


def enabled_types(interface: Interface) -> AbstractContextManager[Any]:
    """The context in which the program runs: with 64-bit types, if it uses any."""
    return jax.enable_x64(True) if interface.uses_64_bits else nullcontext()  # type: ignore[no-untyped-call]


def contents_of_archive(archive: Archive) -> Contents:
    """The parts of an archive.

    Raises ExportFileError for one that does not describe a program, and UnregisteredNameError for a
    name that must be registered and is not.
    """
    try:
        return _read_contents(archive)
    except FunctxError:
        raise
    except (
        *(ArithmeticError, AttributeError, LookupError),
        *(RecursionError, TypeError, ValueError),
    ) as error:
        raise ExportFileError(
            "load: the manifest of a saved program must describe it as this version of functx does; got "
            f"{type(error).__name__}: {error}",
            fix="Save the program again with this version of functx.",
        ) from None


def _read_contents(archive: Archive) -> Contents:
    manifest = archive.manifest
    inputs = [(name, aval_from_json(aval)) for name, aval in manifest["inputs"]]
    in_tree, out_tree = [
        None if manifest[key] is None else structure_from_json(manifest[key])
        for key in ("in_tree", "out_tree")
    ]
    interface = Interface(
        manifest["name"],
        tuple([name for name, _ in inputs]),
        tuple([aval for _, aval in inputs]),
        tuple([aval_from_json(aval) for aval in manifest["outputs"]]),
        in_tree,
        out_tree,
        tuple(manifest["written"]),
        manifest["layout_dependent"],
        manifest["uses_64_bits"],
    )
    count, state = manifest["constants"], manifest["state"]
    _check_consistent(interface, count)
    avals = [
        *interface.in_avals[len(inputs) - count :],
        *[aval_from_json(aval) for _, aval in state],
    ]
    arrays = [array_of_plain(x, aval) for x, aval in zip(archive.arrays, avals, strict=True)]
    texts = ProgramTexts(
        archive.texts["program"],
        tuple(
            [
                tuple([archive.texts[_rule_path(i, k)] for k in range(length)])
                for i, length in enumerate(manifest["rules"])
            ]
        ),
        tuple(manifest["registered"]),
    )
    check_registered(texts)
    return Contents(
        interface,
        signature_from_json(manifest["signature"]),
        tuple(manifest["platforms"]),
        arrays[:count],
        dict(zip([name for name, _ in state], arrays[count:], strict=True)),
        partial(_read_program, texts, interface),
        {p: archive.data[_module_path(p)] for p in manifest["stablehlo"]},
        archive,
    )


def _check_consistent(interface: Interface, constants: int) -> None:
    """Raises ValueError if the parts of an interface do not fit each other."""
    inputs, outputs = len(interface.in_avals), len(interface.out_avals)
    flags = interface.layout_dependent, interface.uses_64_bits
    if type(interface.name) is not str or any(type(flag) is not bool for flag in flags):
        raise ValueError(f"the name {interface.name!r}, and flags {flags}")
    if type(constants) is not int or not 0 <= constants <= inputs:
        raise ValueError(f"{constants} constants among {inputs} inputs")
    if any(type(i) is not int or not 0 <= i < inputs for i in interface.written):
        raise ValueError(f"writes to inputs {interface.written}")
    if interface.in_tree is None or interface.out_tree is None:
        if interface.in_tree is not interface.out_tree or interface.written:
            raise ValueError("a structure without another one")
        return
    leaves = interface.in_tree.num_leaves, interface.out_tree.num_leaves
    if leaves != (inputs - constants, outputs - len(interface.written)):
        raise ValueError(f"structures of {leaves[0]} inputs and {leaves[1]} outputs")


def _read_program(texts: ProgramTexts, interface: Interface) -> Program:
    """The program of its texts; ExportFileError if it has other types than the interface."""
    with enabled_types(interface):
        program = program_of_texts(texts)
    for kind, stated, found in (
        ("inputs", interface.in_avals, program.in_avals),
        ("outputs", interface.out_avals, program.out_avals),
    ):
        if stated != tuple(found):
            raise ExportFileError(
                f"load: the {kind} of a saved program must have the types that its file states, "
                f"{stated}; got {tuple(found)}"
            )
    return program


def _rule_path(rule: int, part: int) -> str:
    return f"rules/{rule}/{part}"


def _module_path(platform: str) -> str:
    return f"stablehlo/{platform}.mlirbc"
