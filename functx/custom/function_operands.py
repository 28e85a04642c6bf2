"""Functions among the operands of a higher-order operation, as its rules get them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from functx.core import tree
from functx.core.errors import ArgumentError, TreeError
from functx.core.masks import inexact_mask, scatter_where, select_where
from functx.core.named_axes import Axis
from functx.core.program import Program
from functx.core.program_calls import apply_program
from functx.core.rewriting import cached_rewrite
from functx.core.tracer import aval_of
from functx.core.types import is_inexact
from functx.core.typing import Cotangent, Flags, PyTree, Tangents, Value, Values
from functx.transforms.forward_mode import JVPRewrite
from functx.transforms.jvp import vjp
from functx.transforms.tangents import unflatten_tangents
from functx.transforms.vmap import vmap


class FunctionOperand:
    """A traced function, which a rule of a higher-order operation calls.

    `captured` holds the values that the function closes over. They take part in the transform whose
    rule gets the function: `vmap`, `jvp` and `vjp` map and differentiate in them too.
    """

    def __init__(
        self,
        program: Program,
        captured: Values,
        in_tree: tree.TreeDef,
        out_tree: tree.TreeDef,
        batched: Flags = (),
        axis: Axis | None = None,
    ):
        self.program, self.captured = program, list(captured)
        self.in_tree, self.out_tree = in_tree, out_tree
        self.batched, self.axis = tuple(batched), axis
        self.__name__ = program.name

    def __repr__(self) -> str:
        return f"<function {self.__name__} of a higher-order operation>"

    def __call__(self, *args: PyTree, **kwargs: PyTree) -> PyTree:
        """The result of the function for arguments of the types that it was traced for."""
        if any(self.batched):
            raise ArgumentError(
                f"{self.__name__}: a function that closes over values of a batch must be mapped; got a "
                "call of it in a vmap rule",
                fix=f"Write {self.__name__}.vmap(in_dims)(*args).",
            )
        return self.call_with(self.captured, args, kwargs)

    def call_with(
        self, captured: Values, args: tuple[PyTree, ...], kwargs: dict[str, PyTree]
    ) -> PyTree:
        """The result for other values in place of those that the function closes over."""
        leaves = self.flatten_arguments(args, kwargs)
        return tree.unflatten(self.out_tree, apply_program(self.program, [*leaves, *captured]))

    def flatten_arguments(self, args: tuple[PyTree, ...], kwargs: dict[str, PyTree]) -> list[Value]:
        """The leaves of the arguments; TreeError unless they have the structure that was traced."""
        leaves, structure = tree.flatten_with_key_data((args, kwargs))
        if structure != self.in_tree:
            raise TreeError(
                f"{self.__name__}: arguments must have the structure that the function was traced for; "
                f"got {tree.describe_difference(self.in_tree, structure)}",
                *tree.full_structures(self.in_tree, structure),
                fix="Pass the operation a program of it: functx.make_ir(f)(*args).",
            )
        return leaves

    def vmap(self, in_dims: PyTree = 0, out_dims: PyTree = 0) -> Callable[..., PyTree]:
        """The function on batches, as by `functx.vmap`, also of what it closes over."""

        def call(captured: Values, *args: PyTree) -> PyTree:
            return self.call_with(captured, args, {})

        call.__name__ = self.__name__
        captured_dims = [0 if on else None for on in self.batched] or [None] * len(self.captured)

        def mapped(*args: PyTree) -> PyTree:
            dims = in_dims if isinstance(in_dims, (tuple, list)) else (in_dims,) * len(args)
            axis = self.axis
            names = () if axis is None else axis.mesh_axes
            batch = vmap(
                call,
                (captured_dims, *dims),
                out_dims,
                axis_name=None if axis is None else axis.name,
                axis_size=None if axis is None else axis.size,
                spmd_axis_name=names or None,
                randomness=(axis and axis.randomness) or "error",
            )
            return batch(self.captured, *args)

        mapped.__name__ = self.__name__
        return mapped

    def vjp(self, *args: PyTree) -> tuple[PyTree, Callable[[PyTree], tuple[PyTree, ...]]]:
        """`(f(*args), pullback)`, where `pullback(ct)` gives the cotangent of the function, then of `args`.

        The cotangent of a function is that of what it closes over. Two of one function can be added.
        """

        def call(captured: Values, *args: PyTree) -> PyTree:
            return self.call_with(captured, args, {})

        call.__name__ = self.__name__
        out, pull = vjp(call, self.captured, *args)

        def pullback(ct: PyTree) -> tuple[PyTree, ...]:
            captured_cts, *arg_cts = pull(ct)
            return FunctionCotangent(self, captured_cts), *arg_cts

        return out, pullback


class FunctionTangent:
    """The tangent of a function: called as `(primals, tangents)`, it gives the output and its tangent.

    Both are tuples, one entry for each argument; a tangent None is zero.
    """

    def __init__(self, function: FunctionOperand, tangents: Tangents):
        self.function, self.tangents = function, tangents
        self.__name__ = f"jvp_{function.__name__}"

    def __call__(
        self, primals: Sequence[PyTree], tangents: Sequence[PyTree]
    ) -> tuple[PyTree, PyTree]:
        function = self.function
        args = tuple(primals)
        leaves = function.flatten_arguments(args, {})
        found = tree.flatten_with_nones(tree.structure(args), tuple(tangents))
        if isinstance(found, tree.StructureDifference):
            raise TreeError(
                f"{self.__name__}: tangents must have the structure of the primals; got {found}"
            )
        inputs = [*leaves, *function.captured]
        in_tangents = [
            t if t is not None and is_inexact(aval_of(x).dtype) else None
            for x, t in zip(inputs, [*found, *self.tangents], strict=True)
        ]
        varying = tuple([t is not None for t in in_tangents])
        rewritten = cached_rewrite(JVPRewrite(varying), function.program)
        outs = apply_program(rewritten, [*inputs, *select_where(in_tangents, varying)])
        avals = function.program.out_avals
        count = len(avals)
        out_tangents = scatter_where(outs[count:], inexact_mask(avals))
        return (
            tree.unflatten(function.out_tree, outs[:count]),
            unflatten_tangents(function.out_tree, avals, out_tangents),
        )


class FunctionCotangent:
    """The cotangents of the values that a function closes over, None for zero."""

    def __init__(self, function: FunctionOperand, cts: Sequence[Cotangent]):
        self.function, self.cts = function, list(cts)

    def __add__(self, other: FunctionCotangent | None) -> FunctionCotangent:
        if other is None:
            return self
        if type(other) is not FunctionCotangent or other.function is not self.function:
            return NotImplemented
        sums: list[Any] = [
            b if a is None else a if b is None else a + b
            for a, b in zip(self.cts, other.cts, strict=True)
        ]
        return FunctionCotangent(self.function, sums)

    def __radd__(self, other: object) -> FunctionCotangent:
        # The start of `sum`.
        if other is None or other == 0:
            return self
        return NotImplemented

    def __repr__(self) -> str:
        return f"<cotangent of {self.function.__name__}>"


class StatefulFunction:
    """A function that reads or writes arrays around it, as one that takes and returns them.

    It is called as `f(state, *args)`, where `state` is a tuple of these arrays, and returns
    `(output, state)`. `places` gives the place in the state of each captured value, None for one that
    is not written to; the function writes to the last `count` of them.
    """

    def __init__(self, function: FunctionOperand, places: Sequence[int | None], count: int):
        self.function, self.places, self.count = function, places, count
        self.__name__ = function.__name__

    def __call__(self, state: Sequence[Value], *args: PyTree) -> tuple[PyTree, tuple[Value, ...]]:
        function, count = self.function, self.count
        leaves = function.flatten_arguments(args, {})
        captured = [
            x if place is None else state[place]
            for x, place in zip(function.captured, self.places, strict=True)
        ]
        outs = apply_program(function.program, [*leaves, *captured])
        new = list(state)
        for place, x in zip(self.places[len(self.places) - count :], outs[:count], strict=True):
            assert place is not None
            new[place] = x
        return tree.unflatten(function.out_tree, outs[count:]), tuple(new)
