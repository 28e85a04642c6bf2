"""`explore`: Python control flow on traced values as `cond` and `while`."""

from __future__ import annotations

from threading import RLock, active_count

from functx.core import tree
from functx.core.errors import ArgumentError, IterationLimitError, type_name
from functx.core.tracer import current_builder
from functx.core.typing import Function, PyTree
from functx.transforms.aliasing import write_back_arguments
from functx.transforms.argument_names import as_decorator, check_callable, wrap_transform
from functx.transforms.explore.emission import Emitter
from functx.transforms.explore.graph import FlowGraph
from functx.transforms.explore.joins import join_common_ends
from functx.transforms.explore.limits import nesting_error, path_limit_error
from functx.transforms.explore.paths import Explorer, Findings, Restart
from functx.transforms.tracing_api import call_as_program

_RESTARTS = 200


def explore(fun: Function | None = None, *, paths: int = 1000, iterations: int = 200) -> Function:
    """`fun`, whose Python control flow may depend on traced values.

    >>> import functx
    >>> @functx.jit
    ... @functx.explore
    ... def collatz(n):
    ...     steps = 0
    ...     while n != 1:
    ...         n = n // 2 if n % 2 == 0 else 3 * n + 1
    ...         steps += 1
    ...     return steps
    >>> int(collatz(27))
    111
    """
    if fun is None:
        return as_decorator(explore, locals())
    check_callable(fun, "explore")
    for name, limit in (("paths", paths), ("iterations", iterations)):
        if type(limit) is not int or limit < 1:
            raise ArgumentError(
                f"explore: {name} must be a positive int; got {type_name(limit)} {limit!r}"
            )

    def traced(*args: PyTree, **kwargs: PyTree) -> PyTree:
        return run_explored(fun, args, kwargs, paths, iterations)

    def wrapper(*args: PyTree, **kwargs: PyTree) -> PyTree:
        if current_builder.get() is None:
            return call_as_program(traced, args, kwargs, "explore")
        return traced(*args, **kwargs)

    return wrap_transform(wrapper, fun, "explore")


def run_explored(
    fun: Function, args: PyTree, kwargs: PyTree, paths: int, iterations: int
) -> PyTree:
    """The result of `fun(*args, **kwargs)`, appended to the current program with `cond` and `while`."""
    explorer = Explorer(fun, args, kwargs, paths, iterations)
    # Iterators of explorations in other threads would be taken for those of this one.
    with _exploring:
        graph = find_graph(explorer)
    builder = current_builder.require()
    outer, builder.explorer = builder.explorer, None
    try:
        values = [*explorer.findings.captures.values()]
        captured = {var: builder.tracer(x) for var, x in values}
        try:
            outs = Emitter(graph).emit(captured)
        except RecursionError:
            raise nesting_error(explorer) from None
        outs = [builder.tracer(x) for x in outs]
        array_of = dict(values)
        arrays = [array_of[v] for v in graph.written]
        count = len(outs) - len(arrays)
        write_back_arguments(arrays, dict(enumerate(outs[count:])))
    finally:
        builder.explorer = outer
    return tree.unflatten(graph.out_tree, outs[:count])


_exploring = RLock()


def find_graph(explorer: Explorer) -> FlowGraph:
    """The graph of an explored function, whose merges are verified."""
    retries = 0 if active_count() == 1 else 8
    for _ in range(_RESTARTS):
        try:
            explorer.explore()
            graph = FlowGraph(explorer)
        except Restart:
            continue
        except IterationLimitError:
            # Iterators of other threads may have hidden that two states are equal.
            retries -= 1
            if retries < 0:
                raise
            explorer.findings = Findings()
            continue
        join_common_ends(graph)
        return graph
    raise path_limit_error(explorer)
