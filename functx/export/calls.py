"""Calls of loaded programs that JAX dispatches, by the StableHLO of their file."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import jax

from functx.core import tree
from functx.core.tracer import aval_of
from functx.core.typing import PyTree
from functx.export.archives import Contents, Interface
from functx.lowering.portable import PortableProgram


class OtherTypes(Exception):
    """The arguments of a call do not have the structure and the dtypes of the program."""


class StableHLOCall:
    """The call of a program on pytrees, compiled from StableHLO.

    `takes_arguments_as_given` says whether arguments may be passed without a check, since the first ones
    had the types of the program: JAX then finds the executable by their types.
    """

    def __init__(self, contents: Contents):
        self.constants, interface = contents.constants, contents.interface
        program = PortableProgram(
            interface.name,
            interface.in_avals,
            interface.out_avals,
            contents.modules,
            contents.make_program,
        )
        self.takes_arguments_as_given = not interface.written

        def call(
            constants: Sequence[Any], args: PyTree, kwargs: PyTree
        ) -> tuple[PyTree, list[Any]]:
            leaves = leaves_of_call(interface, args, kwargs)
            outs = program(*leaves, *constants)
            count = len(outs) - len(interface.written)
            result = outs[:count]
            if interface.out_tree is not None:
                result = tree.unflatten(interface.out_tree, result)
            return result, outs[count:]

        call.__name__ = call.__qualname__ = interface.name
        self.dispatch = jax.jit(call)

    @cached_property
    def device_constants(self) -> list[jax.Array]:
        """The constants of the program on the device."""
        return [jax.numpy.asarray(x) for x in self.constants]

    def __call__(self, args: PyTree, kwargs: PyTree) -> tuple[PyTree, list[Any]]:
        """The result, and the new values of the arguments that are written to.

        Raises OtherTypes for arguments of other types than those of the program.
        """
        found: tuple[PyTree, list[Any]] = self.dispatch(self.device_constants, args, kwargs)
        return found


def leaves_of_call(interface: Interface, args: PyTree, kwargs: PyTree) -> list[Any]:
    """The leaves of the arguments of a call; OtherTypes if they do not fit the program."""
    if interface.in_tree is None:
        leaves, structure = tree.flatten_with_key_data(args)
        is_right = not kwargs and len(structure.children()) == len(leaves)
    else:
        leaves, structure = tree.flatten_with_key_data((args, kwargs))
        is_right = structure == interface.in_tree
    avals = interface.in_avals[: len(leaves)]
    if is_right and len(avals) == len(leaves):
        found = [aval_of(x) for x in leaves]
        if all(
            [a.shape == b.shape and a.dtype == b.dtype for a, b in zip(found, avals, strict=True)]
        ):
            return leaves
    raise OtherTypes
