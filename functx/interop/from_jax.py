"""`from_jax`: a JAX function made callable on traced values of functx."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import numpy as np

from functx.core import tree
from functx.core.caches import Cache
from functx.core.named_axes import bound_axes
from functx.core.source_info import source_line, user_source
from functx.core.tracer import Tracer, aval_of, check_no_escaped_tracers, current_builder
from functx.core.types import SHORT_NAMES
from functx.interop import (  # noqa: F401
    array_rules,
    control_rules,
    custom_rules,
    jax_trace,
)
from functx.interop.jaxprs import MutableStateError, function_fingerprint, jax_avals, jaxpr_of
from functx.interop.translation import translate_jaxpr, with_jax_type
from functx.lowering.jax_bridge import prng_key_type
from functx.transforms.aliasing import copy_if_aliased
from functx.transforms.argument_names import check_callable, function_name, wrap_transform


def from_jax(fun: Callable[..., Any]) -> Callable[..., Any]:
    """`fun`, a function of JAX, made to take traced values of functx as well.

    In a trace, `fun` is traced by JAX, and its jaxpr becomes functx equations, which every
    transform takes like any others: what `jax.numpy`, `jax.nn`, `jax.scipy` and libraries
    on top of them compute, `jit`, `scan`, `while_loop`, `cond`, `checkpoint` with its
    policy, random numbers. Functions with `jax.custom_jvp` and `jax.custom_vjp` keep
    their rules. What has no counterpart stays as it is, in a `jax_call`, whose derivatives
    JAX gives. Outside of a trace it is just `fun`.

    Arguments are pytrees. Arrays in them are traced; whatever else, numbers and strings
    and functions, `fun` gets as it is. Arrays that it closes over are captured.

    Derivatives follow functx's conventions where a JAX primitive has a counterpart: that of
    `abs` at 0 is 0, say. The translation is remembered for each set of argument types, as
    long as what `fun` reads from around it cannot have changed: modules of JAX and NumPy,
    numbers, `jax.Array`s, functions that read no more. Else `fun` is traced anew, and only
    what is under `jax.jit` inside is remembered.

    Raises ArgumentError for what is no function, and whatever `fun` raises.

    >>> import functx, jax
    >>> program = functx.make_ir(functx.from_jax(jax.numpy.tanh))(2.0)
    >>> [eqn.primitive for eqn in program]
    [tanh]
    """
    check_callable(fun, "from_jax")
    calls = TracedJaxFunction(fun)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if current_builder.get() is None:
            check_no_escaped_tracers(tree.leaves((args, kwargs)))
            return fun(*args, **kwargs)
        return calls.call_in_trace(args, kwargs)

    made = wrap_transform(wrapper, fun, "from_jax")
    made.__name__ = function_name(fun)
    return made


class TracedJaxFunction:
    """A function of JAX, called in traces of functx; what is remembered of its traces."""

    def __init__(self, fun: Callable[..., Any]):
        self.fun = fun
        self.flat_functions = Cache("from_jax functions", 64)

    def call_in_trace(self, args: Any, kwargs: Any) -> Any:
        """The result, as equations of the program being traced."""
        builder = current_builder.require()
        leaves, in_tree = tree.flatten((args, kwargs))
        operands = [ArrayArgument.of(x) for x in leaves]
        given = [each for each in operands if each is not None]
        fixed = [_ARRAY_LEAF if each else x for x, each in zip(leaves, operands, strict=True)]
        outer = builder.source
        builder.source = source = outer or user_source()
        try:
            with add_call_note(self.fun, source):
                flat = self.flat_function(in_tree, fixed)
                jaxpr, results = flat.jaxpr([each.jax_aval for each in given])
            values = [each.value for each in given]
            avals = [aval_of(x) for x in values]
            outs = copy_if_aliased(
                translate_jaxpr(jaxpr, avals, function_name(self.fun))(values), values
            )
            outs = [with_jax_type(x, aval) for x, aval in zip(outs, jaxpr.out_avals, strict=True)]
        finally:
            builder.source = outer
        return results.unflatten_arrays(outs)

    def flat_function(self, in_tree: Any, fixed: Sequence[Any]) -> FlatFunction:
        """The function of the arrays among its arguments, the same one while it reads the same."""
        try:
            static = [x if x is _ARRAY_LEAF else function_fingerprint(x) for x in fixed]
            key = function_fingerprint(self.fun), in_tree, tuple(static)
        except MutableStateError:
            return FlatFunction(self.fun, in_tree, fixed)
        flat: FlatFunction | None = self.flat_functions.get(key)
        if flat is None:
            flat = FlatFunction(self.fun, in_tree, fixed)
            flat.enable_trace_cache()
            self.flat_functions.put(key, flat)
        return flat


class FlatFunction:
    """A function of the arrays among the arguments of another, which returns its arrays."""

    def __init__(self, fun: Callable[..., Any], in_tree: Any, fixed: Sequence[Any]):
        self.results: OutputStructure | None = None
        self.jitted: Any = None
        self.call_in_trace: dict[int, tuple[Any, OutputStructure]] = {}

        def flat(*arrays: Any) -> list[Any]:
            rest = iter(arrays)
            leaves = [next(rest) if x is _ARRAY_LEAF else x for x in fixed]
            args, kwargs = tree.unflatten(in_tree, leaves)
            outs, self.results = OutputStructure.of(fun(*args, **kwargs))
            return outs

        # What JAX's messages call the function.
        flat.__name__, flat.__wrapped__ = function_name(fun), fun  # type: ignore[attr-defined]
        self.flat_functions = flat

    def enable_trace_cache(self) -> None:
        """Let JAX remember its traces of this function."""
        self.jitted = jax.jit(self.flat_functions)

    def jaxpr(self, avals: Sequence[Any]) -> tuple[Any, OutputStructure]:
        """The jaxpr on arguments of `avals`, and where its outputs stand in the result."""
        if self.jitted is None or bound_axes():
            # JAX is to know the axes that functx binds, and not to remember them.
            found = jaxpr_of(self.flat_functions, avals)
            assert self.results is not None
            return found, self.results
        found = self.jitted.trace(*jax_avals(avals)).jaxpr
        known = self.call_in_trace.get(id(found))
        if known is None:
            assert self.results is not None
            known = self.call_in_trace[id(found)] = found, self.results
        return known


@contextmanager
def add_call_note(fun: Callable[..., Any], source: Any) -> Iterator[None]:
    """Say of an error of a JAX function where it was called."""
    try:
        yield
    except Exception as error:
        where = f", called at {source_line(source)}" if source else ""
        error.add_note(f"in functx.from_jax({function_name(fun)}){where}")
        raise


class ArrayArgument(NamedTuple):
    """An array among the arguments: its value in a program, and its type as JAX sees it."""

    value: Any
    jax_aval: Any

    @staticmethod
    def of(x: Any) -> ArrayArgument | None:
        """The operand that an argument is; None for what is no array."""
        if type(x) is Tracer:
            return ArrayArgument(x, x.atom.aval)
        if isinstance(x, jax.Array):
            if prng_key_type(x.dtype) is not None:
                return ArrayArgument(jax.random.key_data(x), jax.ShapeDtypeStruct(x.shape, x.dtype))
            return ArrayArgument(x, aval_of(x))
        if isinstance(x, np.ndarray) and x.dtype in SHORT_NAMES:
            return ArrayArgument(x, aval_of(x))
        return None


class OutputStructure(NamedTuple):
    """What a JAX function returned, but for its arrays: where they stand among the rest."""

    structure: Any
    static_leaves: list[Any]

    @staticmethod
    def of(out: Any) -> tuple[list[Any], OutputStructure]:
        """The arrays and numbers of a result, and the rest."""
        leaves, structure = tree.flatten(out)
        arrays = [isinstance(x, (jax.Array, np.ndarray, np.generic, *_NUMBERS)) for x in leaves]
        fixed = [_ARRAY_LEAF if on else x for x, on in zip(leaves, arrays, strict=True)]
        return [x for x, on in zip(leaves, arrays, strict=True) if on], OutputStructure(
            structure, fixed
        )

    def unflatten_arrays(self, arrays: Sequence[Any]) -> Any:
        """The result, with values of a program in place of its arrays."""
        rest = iter(arrays)
        leaves = [next(rest) if x is _ARRAY_LEAF else x for x in self.static_leaves]
        return tree.unflatten(self.structure, leaves)


_NUMBERS = (bool, int, float, complex)
_ARRAY_LEAF = object()
