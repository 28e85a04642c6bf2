"""`from_jax`: a JAX function made callable on traced values of functx."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import numpy as np

from functx.core import tree
from functx.core.caches import Cache
from functx.core.named_axes import bound_axes
from functx.core.source_info import Source, source_line, user_source
from functx.core.tracer import Tracer, aval_of, check_no_escaped_tracers, current_builder
from functx.core.tree import TreeDef
from functx.core.types import SHORT_NAMES, ShapedArray
from functx.core.typing import Function, PyTree, Value, Values
from functx.interop import jax_trace  # noqa: F401 - holds the rules of translation too
from functx.interop.jaxprs import (
    JaxprLike,
    MutableStateError,
    function_fingerprint,
    jax_avals,
    jaxpr_of,
)
from functx.interop.translation import translate_jaxpr, with_jax_type
from functx.lowering.jax_bridge import JaxAval, prng_key_type
from functx.transforms.aliasing import copy_if_aliased
from functx.transforms.argument_names import check_callable, function_name, wrap_transform
from functx.transforms.operand_masks import select_where


def from_jax(fun: Function) -> Function:
    """`fun`, a function of JAX, as a function that also takes functx tracers.

    In a trace, JAX traces `fun`, and its jaxpr becomes functx equations, which every transform
    handles like any others: functions of `jax.numpy`, `jax.nn`, `jax.scipy` and of libraries,
    `jit`, `scan`, `while_loop`, `cond`, `checkpoint` with its policy, random numbers. Functions
    with `jax.custom_jvp` and `jax.custom_vjp` keep their rules. A JAX primitive without a
    counterpart becomes a `jax_call`, whose rules are JAX's. Outside of a trace the result calls
    `fun`.

    Arguments are pytrees. Their arrays are traced; `fun` gets all other leaves, such as numbers,
    strings and functions, as they are. Arrays in the closure of `fun` are captured.

    Derivatives follow functx's conventions where a JAX primitive has a counterpart: the
    derivative of `abs` at 0 is 0. The translation is cached by argument types if `fun` reads
    only values that cannot change: modules of JAX and NumPy, numbers, `jax.Array`s, and functions
    that read only such values. Otherwise each call traces `fun`, and only its parts under
    `jax.jit` are cached.

    Raises ArgumentError if `fun` is not callable, and the errors of `fun`.

    >>> import functx, jax
    >>> program = functx.make_ir(functx.from_jax(jax.numpy.tanh))(2.0)
    >>> [eqn.primitive for eqn in program]
    [tanh]
    """
    check_callable(fun, "from_jax")
    traced = TracedJaxFunction(fun)

    def wrapper(*args: PyTree, **kwargs: PyTree) -> PyTree:
        if current_builder.get() is None:
            check_no_escaped_tracers(tree.leaves((args, kwargs)))
            return fun(*args, **kwargs)
        return traced.call_in_trace(args, kwargs)

    made = wrap_transform(wrapper, fun, "from_jax")
    made.__name__ = function_name(fun)
    return made


class TracedJaxFunction:
    """A JAX function, called in traces of functx, with a cache of JAX's traces."""

    def __init__(self, fun: Function):
        self.fun = fun
        self.flat_functions = Cache("from_jax functions", 64)

    def call_in_trace(self, args: tuple[PyTree, ...], kwargs: PyTree) -> PyTree:
        """The result, as equations of the program being traced."""
        builder = current_builder.require()
        leaves, in_tree = tree.flatten((args, kwargs))
        operands = [ArrayArgument.of(x) for x in leaves]
        arrays = [each for each in operands if each is not None]
        static = [_ARRAY_LEAF if each else x for x, each in zip(leaves, operands, strict=True)]
        outer = builder.source
        builder.source = source = outer or user_source()
        try:
            with add_call_note(self.fun, source):
                flat = self.flat_function(in_tree, static)
                jaxpr, results = flat.jaxpr([each.jax_aval for each in arrays])
            values = [each.value for each in arrays]
            avals = [aval_of(x) for x in values]
            outs = copy_if_aliased(
                translate_jaxpr(jaxpr, avals, function_name(self.fun))(values), values
            )
            outs = [with_jax_type(x, aval) for x, aval in zip(outs, jaxpr.out_avals, strict=True)]
        finally:
            builder.source = outer
        return results.unflatten_arrays(outs)

    def flat_function(self, in_tree: TreeDef, static: Sequence[PyTree]) -> FlatJaxFunction:
        """The function of the array arguments, cached as long as the values that it reads are equal."""
        try:
            fingerprints = [x if x is _ARRAY_LEAF else function_fingerprint(x) for x in static]
            key = function_fingerprint(self.fun), in_tree, tuple(fingerprints)
        except MutableStateError:
            return FlatJaxFunction(self.fun, in_tree, static)
        flat: FlatJaxFunction | None = self.flat_functions.get(key)
        if flat is None:
            flat = FlatJaxFunction(self.fun, in_tree, static)
            flat.enable_trace_cache()
            self.flat_functions.put(key, flat)
        return flat


class FlatJaxFunction:
    """A function of the array leaves of the arguments, which returns the array leaves of the result."""

    def __init__(self, fun: Function, in_tree: TreeDef, static: Sequence[PyTree]):
        self.results: OutputStructure | None = None
        self.jitted: Any = None
        self.traces: dict[int, tuple[JaxprLike, OutputStructure]] = {}

        def flat(*arrays: Value) -> list[Value]:
            remaining = iter(arrays)
            leaves = [next(remaining) if x is _ARRAY_LEAF else x for x in static]
            args, kwargs = tree.unflatten(in_tree, leaves)
            outs, self.results = OutputStructure.of(fun(*args, **kwargs))
            return outs

        # JAX's messages show this name.
        flat.__name__, flat.__wrapped__ = function_name(fun), fun  # type: ignore[attr-defined]
        self.function = flat

    def enable_trace_cache(self) -> None:
        """Let JAX cache its traces of this function."""
        self.jitted = jax.jit(self.function)

    def jaxpr(self, avals: Sequence[ShapedArray]) -> tuple[JaxprLike, OutputStructure]:
        """The jaxpr for arguments of `avals`, and the structure of the result that its outputs are in."""
        if self.jitted is None or bound_axes():
            # JAX needs the axes that functx binds, and does not cache by them.
            jaxpr = jaxpr_of(self.function, avals)
            assert self.results is not None
            return jaxpr, self.results
        jaxpr = self.jitted.trace(*jax_avals(avals)).jaxpr
        trace = self.traces.get(id(jaxpr))
        if trace is None:
            assert self.results is not None
            trace = self.traces[id(jaxpr)] = jaxpr, self.results
        return trace


@contextmanager
def add_call_note(fun: Function, source: Source | None) -> Iterator[None]:
    """Adds the line of the call to an error of a JAX function."""
    try:
        yield
    except Exception as error:
        where = f", called at {source_line(source)}" if source else ""
        error.add_note(f"in functx.from_jax({function_name(fun)}){where}")
        raise


class ArrayArgument(NamedTuple):
    """An array among the arguments: its value in a program, and its type as JAX sees it."""

    value: Value
    jax_aval: JaxAval

    @staticmethod
    def of(x: Value) -> ArrayArgument | None:
        """The array that an argument is; None for any other value."""
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
    """The result of a JAX function with its arrays left out."""

    structure: TreeDef
    static_leaves: list[PyTree]

    @staticmethod
    def of(out: PyTree) -> tuple[list[Any], OutputStructure]:
        """The arrays and numbers of a result, and its structure without them."""
        leaves, structure = tree.flatten(out)
        arrays = [isinstance(x, (jax.Array, np.ndarray, np.generic, *_NUMBERS)) for x in leaves]
        static = [_ARRAY_LEAF if on else x for x, on in zip(leaves, arrays, strict=True)]
        return select_where(leaves, arrays), OutputStructure(structure, static)

    def unflatten_arrays(self, arrays: Values) -> PyTree:
        """The result, with values of a program in place of its arrays."""
        remaining = iter(arrays)
        leaves = [next(remaining) if x is _ARRAY_LEAF else x for x in self.static_leaves]
        return tree.unflatten(self.structure, leaves)


_NUMBERS = (bool, int, float, complex)
_ARRAY_LEAF = object()
