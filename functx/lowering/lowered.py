"""Functions lowered and compiled ahead of their calls, for given types of arguments."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import jax

from functx.core import tree
from functx.core.errors import ArgumentError, type_name
from functx.core.program import Program
from functx.core.tracer import abstractify
from functx.core.typing import PyTree
from functx.lowering.argument_checks import check_usable
from functx.lowering.captured_arrays import read_hidden_states, write_back_call
from functx.lowering.jax_bridge import call_reraising_callback_errors
from functx.transforms.argument_names import InputNames


class ArgumentTypes:
    """The types of the arguments of a lowered or compiled function, from its `args_info`."""

    args_info: PyTree

    @property
    def in_tree(self) -> tree.TreeDef:
        """The structure of the arguments: positional ones, and those by name."""
        return tree.structure(self.args_info)

    @property
    def in_avals(self) -> PyTree:
        """The abstract values of the arguments: positional ones, and those by name."""
        leaves, in_tree = tree.flatten(self.args_info)
        return tree.unflatten(in_tree, [abstractify(x) for x in leaves])

    @property
    def donate_argnums(self) -> tuple[int, ...]:
        """The positions of donated arrays among the flattened arguments."""
        return tuple([i for i, info in enumerate(tree.leaves(self.args_info)) if info.donated])


class Traced(ArgumentTypes):
    """A function traced for one set of argument types, not yet lowered."""

    def __init__(self, name: str, program: Program, lower: Callable[[], Lowered]):
        self.fun_name = name
        self.jaxpr = program
        """The program of the function."""
        self._lower = cache(lower)

    def __call__(self, *args: PyTree, **kwargs: PyTree) -> PyTree:
        return self.lower().compile()(*args, **kwargs)

    def lower(self) -> Lowered:
        """The function lowered to StableHLO."""
        return self._lower()

    @property
    def args_info(self) -> PyTree:
        """The shapes and dtypes of the arguments, and whether they are donated."""
        return self.lower().args_info

    @property
    def out_tree(self) -> tree.TreeDef:
        """The structure of the result."""
        assert self.jaxpr.trees is not None
        return self.jaxpr.trees[1]

    @property
    def out_avals(self) -> PyTree:
        """The abstract values of the results."""
        return tree.unflatten(self.out_tree, self.jaxpr.out_avals[: self.out_tree.num_leaves])

    @property
    def out_info(self) -> PyTree:
        """The shapes and dtypes of the results."""
        return self.lower().out_info


class Lowered(ArgumentTypes):
    """A function lowered to StableHLO for one set of argument types, not yet compiled."""

    def __init__(self, call: CallingConvention, lowered: jax.stages.Lowered):
        self._call, self._lowered = call, lowered

    def compile(self, compiler_options: jax.stages.CompilerOptions | None = None) -> Compiled:
        """The executable."""
        return Compiled(self._call, self._lowered.compile(compiler_options))

    def as_text(self, dialect: str | None = None, **options: Any) -> str:
        """The module as text, StableHLO by default, or in another `dialect` that JAX knows."""
        return str(self._lowered.as_text(dialect, **options))

    def compiler_ir(self, dialect: str | None = None) -> Any:
        """The module itself, StableHLO by default, or in another `dialect` that JAX knows."""
        return self._lowered.compiler_ir(dialect)

    def cost_analysis(self) -> Any:
        """XLA's estimate of what the module costs to run: flops, bytes accessed, and more."""
        return self._lowered.cost_analysis()

    @property
    def args_info(self) -> PyTree:
        """The shapes and dtypes of the arguments, and whether they are donated."""
        return without_first_argument(self._lowered.args_info)

    @property
    def out_tree(self) -> tree.TreeDef:
        """The structure of the result."""
        return tree.structure(self.out_info)

    @property
    def out_info(self) -> PyTree:
        """The shapes and dtypes of the results."""
        info = self._lowered.out_info
        return info[0] if self._call.writes else info


class Compiled(ArgumentTypes):
    """A function compiled for one set of argument types; call it with such arguments.

    Static arguments are part of the executable, and left out of the call.
    """

    def __init__(self, call: CallingConvention, compiled: jax.stages.Compiled):
        self._call, self._compiled = call, compiled

    def __call__(self, *args: PyTree, **kwargs: PyTree) -> PyTree:
        try:
            compiled = partial(self._compiled, **kwargs) if kwargs else self._compiled
            hidden = read_hidden_states(self._call.captured)
            out = call_reraising_callback_errors(compiled, hidden, *args)
        except (TypeError, ValueError, OverflowError, RuntimeError):
            self._call.check(args, kwargs)
            raise
        if not self._call.writes:
            return out
        states, _ = self._call.captured
        write_back_call(tree.leaves((args, kwargs)), states, out[1])
        return out[0]

    def call(self, *args: PyTree, **kwargs: PyTree) -> PyTree:
        """The result of the function, as of a call of this object."""
        return self(*args, **kwargs)

    def as_text(self) -> str:
        """The optimised module as text."""
        return str(self._compiled.as_text())

    def cost_analysis(self) -> Any:
        """XLA's estimate of what a run costs: flops, bytes accessed, and more."""
        return self._compiled.cost_analysis()

    def memory_analysis(self) -> Any:
        """The bytes that arguments, results, temporaries and code take."""
        return self._compiled.memory_analysis()

    @property
    def args_info(self) -> PyTree:
        """The shapes and dtypes of the arguments, and whether they are donated."""
        return without_first_argument(self._call.args_info)

    @property
    def out_info(self) -> PyTree:
        """The shapes and dtypes of the results."""
        info = self._compiled.out_info
        return info[0] if self._call.writes else info

    @property
    def out_tree(self) -> tree.TreeDef:
        """The structure of the result."""
        return tree.structure(self.out_info)

    @property
    def input_shardings(self) -> PyTree:
        """The shardings of the arguments."""
        return without_first_argument(self._compiled.input_shardings)

    @property
    def output_shardings(self) -> PyTree:
        """The shardings of the results."""
        shardings = self._compiled.output_shardings
        return shardings[0] if self._call.writes else shardings

    @property
    def input_formats(self) -> PyTree:
        """The layouts in memory and the shardings of the arguments."""
        return without_first_argument(self._compiled.input_formats)

    @property
    def output_formats(self) -> PyTree:
        """The layouts in memory and the shardings of the results."""
        formats = self._compiled.output_formats
        return formats[0] if self._call.writes else formats

    def runtime_executable(self) -> Any:
        """XLA's executable."""
        return self._compiled.runtime_executable()


def without_first_argument(info: PyTree) -> PyTree:
    """`(args, kwargs)`, facts about arguments, without those of the captured arrays, which come first."""
    args, kwargs = info
    return tuple(args[1:]), kwargs


class CallingConvention(NamedTuple):
    """The hidden and the visible arguments of a compiled function.

    `captured` are the hidden arguments; `in_names` gives the names of the leaves of the visible ones;
    `args_info` is JAX's description of both, captured first.
    """

    name: str
    in_names: InputNames
    captured: tuple[Any, ...]
    args_info: PyTree
    writes: bool = False

    def check(self, args: PyTree, kwargs: PyTree) -> None:
        """Raises ArgumentError for arguments of other types than the function was compiled for."""
        what = f"compiled {self.name}"
        expected, in_tree = tree.flatten((tuple(self.args_info[0][1:]), self.args_info[1]))
        leaves, given_tree = tree.flatten((args, kwargs))
        tree.check_same_structure(
            in_tree, given_tree, f"{what}: the arguments", "those it was compiled for"
        )
        names = self.in_names()
        for name, x, wanted in zip(names, leaves, expected, strict=True):
            given = _type_text(x)
            if isinstance(x, jax.core.Tracer):
                raise ArgumentError(
                    f"{what}: arguments must be arrays, since no trace can look into what is "
                    f"compiled; got a traced {given} for `{name}`",
                    fix="Call the function itself in place of the compiled one.",
                )
            if given != _type_text(wanted):
                raise ArgumentError(
                    f"{what}: arguments must have the types that it was compiled for; "
                    f"got {given} for `{name}`: {_type_text(wanted)}",
                    fix="Lower and compile the function for these types too.",
                )
        check_usable(what, names, leaves)


def _type_text(x: object) -> str:
    """`f32[3]` for an array or its aval, else the name of the class."""
    try:
        return repr(abstractify(x).update(weak_type=False))
    except ArgumentError:
        return type_name(x)
