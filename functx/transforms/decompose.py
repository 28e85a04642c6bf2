"""`decompose`, and the rewrites that replace primitives without some rule by decompositions."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from contextvars import ContextVar
from functools import lru_cache, partial
from typing import Any, ClassVar

import numpy as np

from functx import ops
from functx.core import tree
from functx.core.backend import backend
from functx.core.caches import clear_on_rule_change
from functx.core.captures import close_over
from functx.core.config import contextual_key
from functx.core.context import ContextValue
from functx.core.decompositions import (
    Decomposition,
    PrimitiveClass,
    Primitives,
    class_decomposition,
    decomposition_table,
    fallback_decomposition,
    find_decomposition,
    function_location,
    missing_decomposition_error,
    resolve_primitives,
)
from functx.core.errors import ArgumentError, DecompositionError, FunctxError, type_name
from functx.core.primitive import Primitive
from functx.core.program import Equation, Program
from functx.core.program_calls import cast_scalar
from functx.core.rewriting import Rewrite, apply, bind_equation, cached_rewrite, user_rule_runs
from functx.core.tracer import aval_of, current_builder
from functx.core.tracing import map_equations, trace_closed
from functx.core.types import ShapedArray, x64_enabled
from functx.core.typing import Function, PyTree, Value, Values
from functx.ops.families import Elementwise
from functx.transforms.argument_names import check_callable, wrap_transform
from functx.transforms.tracing_api import avals_of, trace_function

FindDecomposition = Callable[[Primitive], Decomposition | None]


class Decompose(Rewrite[Program]):
    """A rewrite that replaces primitives by decompositions; with `at_any_depth`, in sub-programs too."""

    at_any_depth: ClassVar[bool] = True

    def find_decomposition(self, primitive: Primitive) -> Decomposition | None:
        """The decomposition to apply to `primitive`; None to keep it."""
        raise NotImplementedError

    def __call__(self, program: Program) -> Program:
        if self.at_any_depth:
            program = program.map_subprograms(partial(cached_rewrite, self))
        return apply_decompositions(program, self, self.find_decomposition)


class DecomposeMissingRules(Decompose):
    """The rewrite that decomposes every primitive without any of `rules`.

    Users' decompositions that replace built-in rules are applied too.
    """

    rules: tuple[str, ...]

    at_any_depth = False

    def find_decomposition(self, primitive: Primitive) -> Decomposition | None:
        # A primitive without derivative needs no rules for it.
        if not primitive.differentiable and _DERIVATIVE_RULES.issuperset(self.rules):
            return None
        return fallback_decomposition(type(primitive), self.rules)


_DERIVATIVE_RULES = frozenset({"jvp", "vjp", "transpose"})


def decompose_missing_rules(program: Program, *rules: str) -> Program:
    """`program` with every primitive decomposed that has none of `rules`."""
    return cached_rewrite(DecomposeMissingRules(rules), program)


def apply_decompositions(
    program: Program, rewrite: Callable[[Program], Program], choose: FindDecomposition
) -> Program:
    """`program` with each primitive replaced by the decomposition that `choose` returns, if any.

    `rewrite` is the rewrite that does so, and is applied to the decompositions in turn.
    """
    primitives = {e.primitive for e in program}
    chosen = {p: entry for p in primitives if (entry := choose(p)) is not None}
    if not chosen:
        return program

    def step(eqn: Equation, *args: Value) -> Values:
        entry = chosen.get(eqn.primitive)
        if entry is None:
            return bind_equation(eqn, *args)
        inner = decomposed_program(entry, eqn.primitive, tuple([aval_of(x) for x in args]), rewrite)
        return current_builder.get().inline(inner, args)  # type: ignore[union-attr]

    return map_equations(program, step)


_DecompositionStack = tuple[tuple[Primitive, tuple[ShapedArray, ...]], ...]
_decomposition_stack: ContextVar[_DecompositionStack] = ContextVar("within", default=())
MAX_DECOMPOSITION_DEPTH = 64


def decomposed_program(
    entry: Decomposition,
    primitive: Primitive,
    avals: tuple[ShapedArray, ...],
    rewrite: Callable[[Program], Program],
) -> Program:
    """The program of `primitive` on operands of `avals` by the decomposition `entry`, rewritten.

    Raises DecompositionError if that needs the same primitive on the same types again.
    """
    around, here = _decomposition_stack.get(), (primitive, avals)
    if here in around or len(around) == MAX_DECOMPOSITION_DEPTH:
        first = around.index(here) if here in around else len(around) - 3
        names = [p.name for p, _ in (*around[first:], here)]
        raise DecompositionError(
            f"{primitive.name}: a decomposition must come to an end, and so not contain what it "
            f"decomposes; got {' in '.join(reversed(names))}",
            f"{primitive!r} on {_avals_text(avals)}, decomposed at {entry.location}",
            fix="Write it with other primitives, or with the same on smaller operands.",
        )
    with ContextValue(_decomposition_stack, (*around, here)):
        program = trace_decomposition(entry, primitive, avals, contextual_key(x64_enabled()))
        return cached_rewrite(rewrite, program)


class ApplyUserDecompositions(Decompose):
    """The rewrite that applies users' decompositions at any depth, where the lowering would.

    It runs before each lookup of an executable, since the values that a decomposition reads may
    have changed.
    """

    def find_decomposition(self, primitive: Primitive) -> Decomposition | None:
        entry = fallback_decomposition(type(primitive), ("lower",))
        return entry if entry is not None and entry.is_user_defined else None


apply_user_decompositions = ApplyUserDecompositions()


def lowering_decomposition(primitive: Primitive, avals: tuple[ShapedArray, ...]) -> Program | None:
    """The program that the lowering emits for `primitive`; None to use its `lower` rule."""
    return _cached_lowering_decomposition(primitive, avals, contextual_key(x64_enabled()))


@lru_cache(maxsize=4096)
def _cached_lowering_decomposition(
    primitive: Primitive, avals: tuple[ShapedArray, ...], _context: Hashable
) -> Program | None:
    if isinstance(primitive, Elementwise) and primitive.computes_in_float32(avals[0].dtype):
        return by_way_of_float32(primitive, avals)
    entry = fallback_decomposition(type(primitive), ("lower",))
    return (
        None
        if entry is None
        else decomposed_program(entry, primitive, avals, DecomposeMissingRules(("lower",)))
    )


def by_way_of_float32(primitive: Primitive, avals: tuple[ShapedArray, ...]) -> Program:
    """The program that applies `primitive` to its operands in float32, and rounds the result."""

    def body(*args: Value) -> list[Value]:
        out = primitive(*[ops.convert_element_type(x, np.float32) for x in args])
        return [ops.convert_element_type(out, avals[0].dtype)]

    with ContextValue(current_builder, None):
        return trace_closed(body, avals, name=primitive.name)


clear_on_rule_change(_cached_lowering_decomposition.cache_clear)


def builtin_decomposition(primitive: Primitive, avals: tuple[ShapedArray, ...]) -> Program:
    """The decomposition by the class of `primitive` on operands of `avals`, as a program."""
    entry = class_decomposition(type(primitive))
    assert entry is not None
    return trace_decomposition(entry, primitive, avals, contextual_key(x64_enabled()))


def trace_decomposition(
    entry: Decomposition, primitive: Primitive, avals: tuple[ShapedArray, ...], context: Hashable
) -> Program:
    """The program of the decomposition `entry` of `primitive` on operands of `avals`.

    The programs of functx's decompositions are cached; a user's decomposition is traced each time.
    """
    if not entry.is_user_defined:
        return _cached_trace(entry, primitive, avals, context)
    user_rule_runs.record()
    return _trace_checked(entry, primitive, avals)


@lru_cache(maxsize=1024)
def _cached_trace(
    entry: Decomposition, primitive: Primitive, avals: tuple[ShapedArray, ...], _context: Hashable
) -> Program:
    return _trace_checked(entry, primitive, avals)


clear_on_rule_change(_cached_trace.cache_clear)


def _trace_checked(
    entry: Decomposition, primitive: Primitive, avals: tuple[ShapedArray, ...]
) -> Program:
    """The program of the decomposition `entry`, with results of the types that `primitive` states.

    Raises DecompositionError for results of other types, and for one that is not functional.
    """
    stated = primitive.out_avals(avals)

    def body(*args: Value) -> list[Value]:
        try:
            outs = tree.leaves(entry(primitive, args))
        except FunctxError as error:
            error.add(f"in the decomposition: {entry.location}")
            raise
        return check_decomposition_results(entry, primitive, outs, stated)

    body.__name__ = primitive.name
    with ContextValue(current_builder, None):
        traced = trace_function(body, tree.structure((tuple(avals), {})), avals, "decompose")
        program = traced.program
        if traced.written or program.effects - primitive.effects:
            if traced.written:
                raise not_functional_error(
                    entry, primitive, "writes to one", "Write to a copy (x.copy())"
                )
            fix = "Leave prints and callbacks to what calls the operation"
            raise not_functional_error(entry, primitive, "has effects", fix)
        if traced.captured:
            if any(backend.concrete_or_none(x) is None for x in traced.captured):
                fix = "Give what JAX traces to the operation, or make the decomposition without it"
                raise not_functional_error(
                    entry, primitive, "uses an array that JAX is tracing", fix
                )
            program = close_over(program, traced.captured)
    return program


def check_decomposition_results(
    entry: Decomposition, primitive: Primitive, outs: list[Value], stated: tuple[ShapedArray, ...]
) -> list[Value]:
    """The results of a decomposition, converted to the types that the primitive states."""
    if len(outs) == len(stated):
        outs = [cast_scalar(x, aval) for x, aval in zip(outs, stated, strict=True)]
    try:
        avals: Any = [aval_of(x) for x in outs]
    except ArgumentError:
        avals = [type_name(x) for x in outs]
    if [_without_weak_type(a) for a in avals] != [_without_weak_type(a) for a in stated]:
        raise DecompositionError(
            f"{primitive!r}: a decomposition must return {_avals_text(stated)}, as the primitive states; "
            f"got {_avals_text(avals)}",
            f"the decomposition: {entry.location}",
            fix="Convert with astype, or reshape, before it returns.",
        )
    return [
        x if given is aval else ops.convert_element_type(x, aval.dtype, aval.weak_type)
        for x, given, aval in zip(outs, avals, stated, strict=True)
    ]


def _without_weak_type(aval: ShapedArray) -> ShapedArray:
    return aval.update(weak_type=False) if type(aval) is ShapedArray else aval


def not_functional_error(
    entry: Decomposition, primitive: Primitive, got: str, fix: str
) -> DecompositionError:
    return DecompositionError(
        f"{primitive.name}: a decomposition must compute its results from its operands, and do "
        f"nothing else; got one that {got}",
        f"the decomposition: {entry.location}",
        fix=f"{fix}.",
    )


def _avals_text(avals: Iterable[object]) -> str:
    return ", ".join(map(str, avals)) or "nothing"


def decompose(
    fun: Function | None = None,
    *,
    table: str | Mapping[Any, Function] = "general",
    only: Primitives | None = None,
    keep: Primitives | None = None,
) -> Function:
    """`fun`, whose program has each composite replaced by its decomposition, with the same results.

    `table` names a table of `functx.decomp`, or is a dictionary that
    `functx.decomp.get_decompositions` returns. A registered decomposition also applies to a
    primitive that has rules of its own. `only` selects the composites to decompose, `keep` those to
    leave: primitive classes, their names, or functions of functx such as `nn.softmax`, one or
    several. Composites inside decompositions, loops, branches and calls are decomposed likewise.

    Raises MissingRuleError for a composite in `only` without a decomposition, and
    RegistrationError for an unknown name or table.

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

    def wrapper(*args: PyTree, **kwargs: PyTree) -> PyTree:
        leaves, in_tree = tree.flatten_with_key_data((args, kwargs))
        avals = avals_of(leaves, "decompose", fun, in_tree)
        traced = trace_function(fun, in_tree, avals, "decompose", values=leaves)
        operands = [*leaves, *traced.captured]
        program = cached_rewrite(rewrite, traced.program)
        outs = traced.finish_call(operands, apply(None, program, operands))
        return tree.unflatten(traced.out_tree, outs)

    return wrap_transform(wrapper, fun, "decompose")


class DecomposeSelected(Decompose):
    """The rewrite that decomposes the selected composites.

    `entries` is the name of a table, or a tuple of decompositions. `only` and `keep` are as in
    `decompose`.
    """

    entries: str | tuple[Decomposition, ...]
    only: frozenset[PrimitiveClass] | None
    keep: frozenset[PrimitiveClass]

    def find_decomposition(self, primitive: Primitive) -> Decomposition | None:
        cls = type(primitive)
        if cls in self.keep or not (self.only is None or cls in self.only):
            return None
        return self.lookup(cls)

    def lookup(self, cls: PrimitiveClass) -> Decomposition | None:
        if isinstance(self.entries, str):
            return find_decomposition(cls, self.entries)
        return next((entry for entry in self.entries if entry.cls is cls), None)


def decomposition_rewrite(table: str | Mapping[Any, Function]) -> DecomposeSelected:
    """The rewrite that applies all decompositions of a table, at any depth."""
    return DecomposeSelected(_table_entries(table), None, frozenset())


def _table_entries(table: str | Mapping[Any, Function]) -> str | tuple[Decomposition, ...]:
    if not isinstance(table, Mapping):
        decomposition_table(table, "decompose")
        return table
    named = [(cls, f) for op, f in table.items() for cls in resolve_primitives([op], "decompose")]
    return tuple([Decomposition(cls, f, "general", function_location(f)) for cls, f in named])


def _primitive_set(ops: Primitives | None, option: str) -> frozenset[PrimitiveClass] | None:
    return None if ops is None else frozenset(resolve_primitives(ops, f"decompose: {option}"))
