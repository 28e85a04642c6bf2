"""`Exported`: a program with its signature, which is called, transformed, saved and loaded."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

from functx import ops
from functx.core import tree
from functx.core.errors import ArgumentError, ExportError, ValueRangeError, type_name
from functx.core.memory_layouts import noncontiguous_strides
from functx.core.program import Program
from functx.core.program_calls import argument_structure_error, cast_scalar
from functx.core.program_editing import replace_program_fields
from functx.core.rewriting import apply
from functx.core.tracebacks import api_boundary
from functx.core.tracer import aval_of, recording_operand, variables
from functx.core.tree import TreeDef
from functx.core.types import ShapedArray
from functx.core.typing import PyTree, Value
from functx.export.archives import (
    Contents,
    archive_of_contents,
    contents_of_archive,
    enabled_types,
    lower,
)
from functx.export.calls import OtherTypes, StableHLOCall
from functx.export.files import (
    Archive,
    archive_of_bytes,
    archive_to_bytes,
    load_archive,
    save_archive,
)
from functx.export.signature import Signature
from functx.lowering.jitted_function import is_outermost
from functx.lowering.portable import portable_text
from functx.transforms.aliasing import (
    copy_transform_results,
    have_aliased_pair,
    shared_buffers,
    write_back_arguments,
)


class Exported:
    """The program of a function or a module for arguments of fixed types, with its signature.

    It is called like the function, which it does not trace, and every transform takes it as a function.
    `save` makes a file of it, which `functx.export.load` reads without the user's code.
    """

    def __init__(self, contents: Contents):
        self._contents = contents
        self._interface = contents.interface
        self._archive = contents.archive
        self._program: Program | None = None
        self.__name__ = contents.interface.name
        self.signature: Signature = contents.signature
        """Which input and which output of the program is which."""
        self.platforms: tuple[str, ...] = contents.platforms
        """The platforms for which a file holds StableHLO."""
        self.state_dict: dict[str, Any] = dict(contents.state)
        """The parameters, then the buffers, of a module when it was exported; empty for a function."""

    @property
    def program(self) -> Program:
        """The program, without writes; that of a file is read when it is first needed.

        Called as a function it gives what the function returns; if that writes to its arguments, a pair
        of the result and the new values of these.
        """
        if self._program is None:
            self._program = self._make_program()
        return self._program

    def _make_program(self) -> Program:
        interface, trees = self._interface, None
        if interface.in_tree is not None:
            out_tree = interface.out_tree
            if interface.written:
                new = tree.structure((0,) * len(interface.written))
                out_tree = tree.treedef_tuple([out_tree, new])
            trees = interface.in_tree, out_tree
        names = [*interface.in_names]
        return replace_program_fields(
            self._contents.make_program(),
            in_names=names.copy,
            trees=trees,
            captured=[*self._contents.constants],
        )

    @property
    def fun_name(self) -> str:
        """The name of the function, or of the class of the module."""
        return self._interface.name

    @property
    def in_avals(self) -> tuple[ShapedArray, ...]:
        """The types of the arguments; constants are not among them."""
        avals = self._interface.in_avals
        return avals[: len(avals) - len(self._contents.constants)]

    @property
    def out_avals(self) -> tuple[ShapedArray, ...]:
        """The types of the outputs of the program."""
        return self._interface.out_avals

    @property
    def in_tree(self) -> TreeDef | None:
        """The structure of `(args, kwargs)`; None if a call takes the inputs of the program."""
        return self._interface.in_tree

    @property
    def out_tree(self) -> TreeDef | None:
        """The structure of the result; None if a call returns the outputs of the program."""
        return self._interface.out_tree

    def __reduce__(self) -> tuple[object, ...]:
        return deserialize, (self.serialize(),)

    def __repr__(self) -> str:
        return f"Exported({self.fun_name}, platforms={self.platforms})"

    def __str__(self) -> str:
        """The text of the program; that of a file is the text in it, with the lines of the user."""
        archive = self._contents.archive
        return str(self.program) if archive is None else archive.texts["program"]

    @api_boundary
    def __call__(self, *args: PyTree, **kwargs: PyTree) -> PyTree:
        """The result of the function; NumPy arrays that the function writes to are written.

        Raises TreeError for arguments of another structure, ArgumentError for one of another type, and
        ExportError for a written argument that shares memory with another.
        """
        interface, compiled = self._interface, self._compiled
        computes = is_outermost()
        with enabled_types(interface):
            if (
                compiled is not None
                and compiled.takes_arguments_as_given
                and computes
                and not variables.exist
            ):
                with suppress(OtherTypes, TypeError, ValueError, OverflowError):
                    return compiled(args, kwargs)[0]
            given = enumerate(self._flatten_arguments(args, kwargs))
            leaves = [self._check_argument(i, x) for i, x in given]
            if interface.written:
                self._check_memory(leaves)
            if compiled is not None and computes and recording_operand(leaves) is None:
                result, new = compiled(*interface.unflatten(leaves))
                if not variables.exist:
                    # The arguments as given were refused above: later calls convert them at once.
                    compiled.takes_arguments_as_given = False
                write_back_arguments(leaves, dict(zip(interface.written, new, strict=True)))
                return result
            outs = self._run(leaves)
            if interface.out_tree is None:
                return outs
            count = len(outs) - len(interface.written)
            results = copy_transform_results(outs[:count], leaves)
            write_back_arguments(leaves, dict(zip(interface.written, outs[count:], strict=True)))
            return tree.unflatten(interface.out_tree, results)

    call = __call__
    """The name of `__call__` in JAX."""

    def _flatten_arguments(self, args: tuple[PyTree, ...], kwargs: dict[str, PyTree]) -> list[Any]:
        interface = self._interface
        if interface.in_tree is None:
            count = len(self.in_avals)
            if kwargs or len(args) != count:
                raise ArgumentError(
                    f"{interface.name}: an exported program with flat arguments takes {count} of them by "
                    f"position; got {len(args)}"
                    + "".join([f", and {name!r} by name" for name in kwargs]),
                    f"they are {', '.join(interface.in_names[:count])}",
                )
            return tree.keys_to_key_data([*args], tree.structure((0,) * count))[0]
        leaves, structure = tree.flatten_with_key_data((args, kwargs))
        if structure != interface.in_tree:
            raise argument_structure_error(
                interface.name,
                "the function was exported for",
                interface.in_tree,
                structure,
                interface.in_names,
            )
        return leaves

    def _check_argument(self, i: int, x: Any) -> Any:
        """Argument `i`, a Python number as one of NumPy; ArgumentError if it has another type."""
        aval = self._interface.in_avals[i]
        x = cast_scalar(x, aval.update(weak_type=False))
        try:
            actual = aval_of(x)
        except ArgumentError:
            actual = None
        if actual is None or actual.shape != aval.shape or actual.dtype != aval.dtype:
            raise ArgumentError(
                f"{self.fun_name}: argument `{self._interface.in_names[i]}` must be {aval!r}; got "
                f"{type_name(x)}",
                fix="Convert it, or export the function for arguments of this type.",
            ) from None
        return x

    def _check_memory(self, leaves: Sequence[Any]) -> None:
        """Raises ExportError for written arguments whose memory is another than in the trace."""
        interface = self._interface
        shared = {i for buffer in shared_buffers(leaves) for i, _ in buffer.members}
        if not shared.isdisjoint(interface.written) or have_aliased_pair(leaves, interface.written):
            raise ExportError(
                f"{self.fun_name}: arguments that an exported function writes to must not share memory "
                "with others; got arguments that do",
                fix="Pass a copy of one of them.",
            )
        if interface.layout_dependent:
            for name, x in zip(interface.in_names, leaves, strict=False):
                if noncontiguous_strides(x) is not None:
                    raise ExportError(
                        f"{self.fun_name}: arguments must be in row-major order, on which the writes of "
                        f"the function depend; got `{name}` in another order",
                        fix="Pass numpy.ascontiguousarray(x).",
                    )

    def _run(self, leaves: list[Any]) -> list[Any]:
        """The outputs of the program: inlined inside a trace, computed outside one."""
        program = self.program
        given = zip([*leaves, *self._contents.constants], program.inputs, strict=True)
        return apply(None, program, [_as_typed(x, v.aval) for x, v in given])

    @cached_property
    def _compiled(self) -> StableHLOCall | None:
        """The call of the StableHLO of a file; None without any."""
        contents = self._contents
        return StableHLOCall(contents) if contents.modules else None

    @api_boundary
    def mlir_module(self, platform: str | None = None) -> str:
        """The text of the StableHLO for a platform, by default the first of `platforms`.

        Raises ValueRangeError for a platform that the program was not exported for.
        """
        name = platform or next(iter(self.platforms), "cpu")
        if name not in self.platforms:
            raise ValueRangeError(
                f"{self.fun_name}: the platform must be one that it was exported for, "
                f"{self.platforms}; got {name!r}"
            )
        return portable_text(lower(self._contents, name))

    @api_boundary
    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a file that `functx.export.load` reads in any process, without the user's code.

        It holds the printed program, the signature, constants, and StableHLO for `platforms`, but no
        code of Python. The file is there as a whole or not at all.

        Raises ExportError for an operation that a file cannot hold, such as a callback, which it names,
        and for a pytree class that is not registered.
        """
        save_archive(self._to_archive(), path)

    @api_boundary
    def serialize(self) -> bytes:
        """The bytes of the file that `save` writes; `functx.export.deserialize` reads them."""
        return archive_to_bytes(self._to_archive())

    def _to_archive(self) -> Archive:
        if self._archive is None:
            self._archive = archive_of_contents(self._contents)
        return self._archive


def _as_typed(x: Value, aval: ShapedArray) -> Value:
    """`x`, whose dtype is that of `aval`, with the same weak type."""
    is_equal = aval_of(x).weak_type == aval.weak_type
    return x if is_equal else ops.convert_element_type(x, aval.dtype, aval.weak_type)


@api_boundary
def load(path: str | os.PathLike[str]) -> Exported:
    """The exported program of a file that `Exported.save` wrote.

    Its checksum, its version and the names in it are checked, and no code in the file can run. The
    printed program is read when it is needed: for a transform, or on a platform whose StableHLO the
    file does not hold. The StableHLO is compiled at the first call.

    Raises ExportFileError for a file that is cut, altered, newer than this version or no such file,
    and UnregisteredNameError for an operator or a pytree class that is not registered.

    >>> import functx, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     functx.export.export(functx.numpy.sin)(0.0).save(f"{folder}/sin.zip")
    ...     sin = functx.export.load(f"{folder}/sin.zip")
    >>> float(functx.grad(sin)(0.0))
    1.0
    """
    return Exported(contents_of_archive(load_archive(path)))


@api_boundary
def deserialize(data: bytes) -> Exported:
    """The exported program of the bytes that `Exported.serialize` returned; as `load` for a file.

    >>> import functx
    >>> data = functx.export.export(lambda x: {"double": x * 2.0})(1.0).serialize()
    >>> {name: float(x) for name, x in functx.export.deserialize(data)(3.0).items()}
    {'double': 6.0}
    """
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise ArgumentError(f"deserialize: data must be bytes; got {type_name(data)}")
    return Exported(contents_of_archive(archive_of_bytes(bytes(data))))
