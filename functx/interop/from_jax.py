"""`from_jax`: a JAX function made callable on traced values of functx."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import numpy as np

from functx.core import tree
from functx.core.axes import bound_axes
from functx.core.dtypes import SHORT_NAMES
from functx.core.provenance import source_line, user_source
from functx.core.tracing import Tracer, aval_of, check_no_tracers, current_builder
from functx.interop import (  # noqa: F401
    algebra,
    callbacks,
    collectives,
    control,
    custom_rules,
    elementwise,
    jax_trace,
    keys,
    shapes,
)
from functx.interop.jaxprs import jaxpr_of, to_jax
from functx.interop.snapshots import Changeable, snapshot
from functx.interop.translation import of_type, translate
from functx.lowering.cache import Cache
from functx.lowering.keys import key_type
from functx.transforms.calls import check_callable, fresh, name_of, transformed


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
    calls = JaxCalls(fun)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if current_builder.get() is None:
            check_no_tracers(tree.leaves((args, kwargs)))
            return fun(*args, **kwargs)
        return calls.traced(args, kwargs)

    made = transformed(wrapper, fun, "from_jax")
    made.__name__ = name_of(fun)
    return made


class JaxCalls:
    """A function of JAX, called in traces of functx; what is remembered of its traces."""

    def __init__(self, fun: Callable[..., Any]):
        self.fun = fun
        self.flat = Cache("from_jax functions", 64)

    def traced(self, args: Any, kwargs: Any) -> Any:
        """The result, as equations of the program being traced."""
        builder = current_builder.here()
        leaves, in_tree = tree.flatten((args, kwargs))
        operands = [Operand.of(x) for x in leaves]
        given = [each for each in operands if each is not None]
        fixed = [_ARRAY if each else x for x, each in zip(leaves, operands, strict=True)]
        outer = builder.source
        builder.source = source = outer or user_source()
        try:
            with noted(self.fun, source):
                flat = self.flattened(in_tree, fixed)
                jaxpr, results = flat.jaxpr([each.jax_aval for each in given])
            values = [each.value for each in given]
            avals = [aval_of(x) for x in values]
            outs = fresh(translate(jaxpr, avals, name_of(self.fun))(values), values)
            outs = [of_type(x, aval) for x, aval in zip(outs, jaxpr.out_avals, strict=True)]
        finally:
            builder.source = outer
        return results.filled(outs)

    def flattened(self, in_tree: Any, fixed: Sequence[Any]) -> FlatFunction:
        """The function of the arrays among its arguments, the same one while it reads the same."""
        try:
            static = [x if x is _ARRAY else snapshot(x) for x in fixed]
            key = snapshot(self.fun), in_tree, tuple(static)
        except Changeable:
            return FlatFunction(self.fun, in_tree, fixed)
        flat: FlatFunction | None = self.flat.get(key)
        if flat is None:
            flat = FlatFunction(self.fun, in_tree, fixed)
            flat.remember()
            self.flat.put(key, flat)
        return flat


class FlatFunction:
    """A function of the arrays among the arguments of another, which returns its arrays."""

    def __init__(self, fun: Callable[..., Any], in_tree: Any, fixed: Sequence[Any]):
        self.results: Results | None = None
        self.jitted: Any = None
        self.traced: dict[int, tuple[Any, Results]] = {}

        def flat(*arrays: Any) -> list[Any]:
            rest = iter(arrays)
            leaves = [next(rest) if x is _ARRAY else x for x in fixed]
            args, kwargs = tree.unflatten(in_tree, leaves)
            outs, self.results = Results.of(fun(*args, **kwargs))
            return outs

        # What JAX's messages call the function.
        flat.__name__, flat.__wrapped__ = name_of(fun), fun  # type: ignore[attr-defined]
        self.flat = flat

    def remember(self) -> None:
        """Let JAX remember its traces of this function."""
        self.jitted = jax.jit(self.flat)

    def jaxpr(self, avals: Sequence[Any]) -> tuple[Any, Results]:
        """The jaxpr on arguments of `avals`, and where its outputs stand in the result."""
        if self.jitted is None or bound_axes():
            # JAX is to know the axes that functx binds, and not to remember them.
            found = jaxpr_of(self.flat, avals)
            assert self.results is not None
            return found, self.results
        found = self.jitted.trace(*to_jax(avals)).jaxpr
        known = self.traced.get(id(found))
        if known is None:
            assert self.results is not None
            known = self.traced[id(found)] = found, self.results
        return known


@contextmanager
def noted(fun: Callable[..., Any], source: Any) -> Iterator[None]:
    """Say of an error of a JAX function where it was called."""
    try:
        yield
    except Exception as error:
        where = f", called at {source_line(source)}" if source else ""
        error.add_note(f"in functx.from_jax({name_of(fun)}){where}")
        raise


class Operand(NamedTuple):
    """An array among the arguments: its value in a program, and its type as JAX sees it."""

    value: Any
    jax_aval: Any

    @staticmethod
    def of(x: Any) -> Operand | None:
        """The operand that an argument is; None for what is no array."""
        if type(x) is Tracer:
            return Operand(x, x.atom.aval)
        if isinstance(x, jax.Array):
            if key_type(x.dtype) is not None:
                return Operand(jax.random.key_data(x), jax.ShapeDtypeStruct(x.shape, x.dtype))
            return Operand(x, aval_of(x))
        if isinstance(x, np.ndarray) and x.dtype in SHORT_NAMES:
            return Operand(x, aval_of(x))
        return None


class Results(NamedTuple):
    """What a JAX function returned, but for its arrays: where they stand among the rest."""

    structure: Any
    fixed: list[Any]

    @staticmethod
    def of(out: Any) -> tuple[list[Any], Results]:
        """The arrays and numbers of a result, and the rest."""
        leaves, structure = tree.flatten(out)
        arrays = [isinstance(x, (jax.Array, np.ndarray, np.generic, *_NUMBERS)) for x in leaves]
        fixed = [_ARRAY if on else x for x, on in zip(leaves, arrays, strict=True)]
        return [x for x, on in zip(leaves, arrays, strict=True) if on], Results(structure, fixed)

    def filled(self, arrays: Sequence[Any]) -> Any:
        """The result, with values of a program in place of its arrays."""
        rest = iter(arrays)
        leaves = [next(rest) if x is _ARRAY else x for x in self.fixed]
        return tree.unflatten(self.structure, leaves)


_NUMBERS = (bool, int, float, complex)
_ARRAY = object()
