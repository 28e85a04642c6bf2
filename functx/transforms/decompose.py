"""`decompose`: a function whose program has its composites opened up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from functx.core import tree
from functx.core.decompositions import (
    Decomposition,
    PrimitiveClass,
    decomposition_table,
    find_decomposition,
    function_location,
    missing_decomposition_error,
    resolve_primitives,
)
from functx.core.errors import ArgumentError
from functx.core.primitive import Primitive
from functx.core.program import Program
from functx.core.records import Rewrite
from functx.core.rewriting import apply, cached_rewrite
from functx.transforms.calls import avals_of, check_callable, trace_function, wrap_transform
from functx.transforms.expand import apply_decompositions


def decompose(
    fun: Callable[..., Any] | None = None,
    *,
    table: Any = "general",
    only: Any = None,
    keep: Any = None,
) -> Any:
    """`fun`, whose program has each composite replaced by what it is made of, with its results.

    The decompositions are those of a table of `functx.decomp`, by name, or of a dictionary
    from `functx.decomp.get_decompositions`. What was registered for a primitive that has rules of
    its own is opened up, too. `only` names what to open up, `keep` what to leave: primitive
    classes, their names, or functions of functx such as `nn.softmax`, one or several. What
    is inside a decomposition, a loop, a branch or a call is opened up likewise.

    Raises MissingRuleError if there is nothing to open up one of `only` by, RegistrationError for
    an unknown name or table.

    >>> import functx, numpy
    >>> x = numpy.ones(3, "float32")
    >>> [eqn.primitive.name for eqn in functx.make_ir(functx.decompose(functx.nn.silu))(x)]
    ['logistic', 'mul']
    """
    if fun is None:
        return partial(decompose, table=table, only=only, keep=keep)
    check_callable(fun, "decompose")
    if only is not None and keep is not None:
        raise ArgumentError(
            "decompose: it takes `only`, what to open up, or `keep`, what to leave; got both"
        )
    rewrite = DecomposeSelected(
        _table_entries(table),
        _primitive_set(only, "only"),
        _primitive_set(keep, "keep") or frozenset(),
    )
    for cls in rewrite.only or ():
        if rewrite.lookup(cls) is None:
            raise missing_decomposition_error(
                cls, "decompose", table if isinstance(table, str) else "general"
            )

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        leaves, in_tree = tree.flatten_with_key_data((args, kwargs))
        avals = avals_of(leaves, "decompose", fun, in_tree)
        traced = trace_function(fun, in_tree, avals, "decompose", values=leaves)
        operands = [*leaves, *traced.captured]
        program = cached_rewrite(rewrite, traced.program)
        outs = traced.finish_call(operands, apply(None, program, operands))
        return tree.unflatten(traced.out_tree, outs)

    return wrap_transform(wrapper, fun, "decompose")


class DecomposeSelected(Rewrite[Program]):
    """The rewrite to a program without the composites that are to be opened up.

    `entries` is the name of a table, or holds decompositions outright.
    """

    entries: str | tuple[Decomposition, ...]
    only: frozenset[PrimitiveClass] | None
    keep: frozenset[PrimitiveClass]

    def find_decomposition(self, primitive: Primitive) -> Decomposition | None:
        """What `primitive` is to be opened up by; None to leave it."""
        cls = type(primitive)
        if cls in self.keep or not (self.only is None or cls in self.only):
            return None
        return self.lookup(cls)

    def lookup(self, cls: PrimitiveClass) -> Decomposition | None:
        if isinstance(self.entries, str):
            return find_decomposition(cls, self.entries)
        return next((entry for entry in self.entries if entry.cls is cls), None)

    def __call__(self, program: Program) -> Program:
        return apply_decompositions(
            program.map_subprograms(self.rewrite_subprogram), self, self.find_decomposition
        )

    def rewrite_subprogram(self, program: Program) -> Program:
        """A program within an equation, opened up."""
        opened: Program = cached_rewrite(self, program)
        return opened


def _table_entries(table: Any) -> Any:
    if not isinstance(table, Mapping):
        decomposition_table(table, "decompose")
        return table
    named = [(cls, f) for op, f in table.items() for cls in resolve_primitives([op], "decompose")]
    return tuple([Decomposition(cls, f, "general", function_location(f)) for cls, f in named])


def _primitive_set(ops: Any, what: str) -> frozenset[PrimitiveClass] | None:
    return None if ops is None else frozenset(resolve_primitives(ops, f"decompose: {what}"))
