"""JAX code inside a trace of functx: the JAX trace around it, and functions that `from_jax` takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.core
import numpy as np
from jax.extend.core import (
    ClosedJaxpr,
    Primitive,
    Var,
    find_top_trace,
    new_jaxpr_eqn,
    set_current_trace,
)
from jax.extend.linear_util import WrappedFun

from functx.core import tree
from functx.core.backend import backend
from functx.core.caches import Cache
from functx.core.masks import select_where
from functx.core.named_axes import bound_axes
from functx.core.program import scalar_literal
from functx.core.source_info import Source, source_line, user_source
from functx.core.tracer import (
    PRNGKeyTracer,
    Tracer,
    aval_of,
    current_builder,
    recording_operand,
)
from functx.core.tree import TreeDef
from functx.core.types import SHORT_NAMES, is_inexact
from functx.core.typing import Avals, Function, PyTree, Value, Values
from functx.interop import array_rules, control_rules  # noqa: F401 - register rules
from functx.interop.custom_rules import JaxJVPFunction, JaxVJPFunction, made_by_jax, reset_stores
from functx.interop.jaxprs import (
    JaxprLike,
    MutableStateError,
    aval_from_jax_or_none,
    constant_array,
    function_fingerprint,
    jax_avals,
    jaxpr_of,
    reference_error,
)
from functx.interop.translation import (
    inline_jaxpr,
    translate_equation,
    translate_jaxpr,
    with_jax_type,
)
from functx.lowering.jax_bridge import JaxAval, prng_key_type
from functx.transforms.aliasing import copy_if_aliased
from functx.transforms.argument_names import check_callable, function_name, wrap_transform
from functx.transforms.tracing_api import call_as_program

VALUE_ERRORS = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)
"""The errors of JAX for Python code that reads the value of an array that has none."""


class FunctxTrace(jax.core.Trace):
    """The trace of JAX that is current while functx traces.

    It appends the operations that JAX binds to the innermost program being built. `outer_trace`
    is the trace that was current before functx began to trace.
    """

    __slots__ = ("outer_trace",)
    outer_trace: jax.core.Trace | None

    def __init__(self, outer: jax.core.Trace | None):
        super().__init__()
        self.outer_trace = outer.outer_trace if type(outer) is FunctxTrace else outer

    def stage_value(self, val: Value) -> Value:
        if not should_stage([val]):
            # JAX indexes an array with traced values, but not the literal that may stand for it.
            with set_current_trace(self.outer_trace):
                return jax.lax.stage(val)
        with set_current_trace(self):
            builder = current_builder.require()
            return Tracer(builder.atom(to_functx_value(val)), builder)

    def process_primitive(
        self, primitive: Primitive, args: Values, params: dict[str, Any], /
    ) -> Value | list[Value]:
        if current_builder.innermost() is None:
            with set_current_trace(self.outer_trace):
                return primitive.bind(*args, **params)
        avals = [jax.typeof(x) for x in args]
        check_references(primitive, args, avals)
        if not should_stage(args):
            with set_current_trace(self.outer_trace):
                return primitive.bind(*args, **params)
        found, effects = primitive.abstract_eval(*avals, **params)
        out_avals = found if primitive.multiple_results else [found]
        eqn = new_jaxpr_eqn([*map(Var, avals)], [*map(Var, out_avals)], primitive, params, effects)
        outs = self.append_equations(
            lambda *values: translate_equation(eqn, values), args, out_avals
        )
        return outs if primitive.multiple_results else outs[0]

    def process_call(
        self, primitive: Primitive, fun: WrappedFun, args: Values, params: dict[str, Any], /
    ) -> list[Value]:
        with set_current_trace(self):
            return fun.call_wrapped(*args)

    def process_custom_jvp_call(
        self,
        primitive: Primitive,
        fun: WrappedFun,
        jvp: WrappedFun,
        args: Values,
        /,
        **params: object,
    ) -> list[Value]:
        return self.stage_call(
            primitive,
            args,
            lambda: JaxJVPFunction(fun, jvp),
            subfuns=(fun, jvp),
            **params,
        )

    def process_custom_vjp_call(
        self,
        primitive: Primitive,
        fun: WrappedFun,
        fwd: WrappedFun,
        bwd: WrappedFun,
        args: Values,
        /,
        **params: Any,
    ) -> list[Value]:
        return self.stage_call(
            primitive,
            args,
            lambda: JaxVJPFunction(fun, fwd, bwd, params["out_trees"]),
            subfuns=(fun, fwd, bwd),
            **params,
        )

    def process_shard_map(
        self, primitive: Primitive, fun: Function, args: Values, /, **params: Any
    ) -> Any:
        call = partial(primitive.bind, subfuns=(fun,), **params)
        if not should_stage(args):
            with set_current_trace(self.outer_trace):
                return call(*args)
        result: Any = None

        def mapped(*xs: Value) -> list[Value]:
            nonlocal result
            result = call(*xs)
            return list(result)

        # The result is a pytree of its own class, whose leaves are those of the user's function.
        outs = self.append_jaxpr(self.jaxpr_of_call(mapped, args), args)
        return result.update(outs)

    def stage_call(
        self,
        primitive: Primitive,
        args: Values,
        with_values: Callable[[], Function],
        **params: Any,
    ) -> list[Value]:
        """A call with functions among its parameters, translated from the jaxpr that JAX makes of it.

        While JAX makes a jaxpr, arrays have no values. Where the Python code of the user reads some,
        the function that `with_values` returns is called instead.
        """
        if not should_stage(args):
            with set_current_trace(self.outer_trace):
                return params["subfuns"][0].call_wrapped(*args)
        function = None
        try:
            closed = self.jaxpr_of_call(partial(primitive.bind, **params), args)
        except VALUE_ERRORS:
            # A rule with symbolic zeros is traced later, when no values are known.
            if params["symbolic_zeros"]:
                raise
            function = with_values()
        if function is not None:
            with set_current_trace(self):
                outs = made_by_jax(function(*args))
        else:
            outs = self.append_jaxpr(closed, args)
        # JAX reads the structure of the result either from the function or from its rule.
        for rule in params["subfuns"][1:]:
            reset_stores(rule)
        return outs

    def jaxpr_of_call(self, call: Function, args: Values) -> ClosedJaxpr:
        """The jaxpr of `call` for arguments as `args`."""
        with set_current_trace(self):
            return jaxpr_of(call, [*map(jax.typeof, args)])

    def append_jaxpr(self, closed: ClosedJaxpr, args: Values) -> list[Value]:
        """The outputs of a jaxpr on the JAX values `args`, its equations appended to the program."""
        consts = [to_functx_value(c) for c in closed.consts]
        return self.append_equations(
            lambda *values: inline_jaxpr(closed.jaxpr, consts, values), args, closed.out_avals
        )

    def append_equations(
        self, body: Callable[..., Values], args: Values, out_avals: Sequence[Any]
    ) -> list[Value]:
        """The outputs of `body` on the JAX values `args`, as JAX values of types `out_avals`."""
        builder = current_builder.require()
        outer = builder.source
        builder.source = outer or user_source(3)
        try:
            with set_current_trace(self):
                values = [to_functx_value(x) for x in args]
                outs = copy_if_aliased(body(*values), values)
                return [to_jax_value(x, aval) for x, aval in zip(outs, out_avals, strict=True)]
        finally:
            builder.source = outer


def check_references(primitive: Primitive, args: Values, avals: Sequence[Any]) -> None:
    """Raise an error for references, other than to read a whole one, which happens before the program runs."""
    if primitive.name == "get" and not any(isinstance(x, Tracer) for x in args):
        return
    for aval in avals:
        if isinstance(aval, jax.ref.AbstractRef):
            raise reference_error(aval)


def should_stage(args: Values) -> bool:
    """Whether an operation on `args` becomes an equation.

    An operation on constants does not if functx lacks one of their types, nor inside
    `jax.ensure_compile_time_eval`.
    """
    if any(isinstance(x, jax.core.Tracer) for x in args):
        return True
    if jax.config.eager_constant_folding:  # type: ignore[attr-defined]
        return False
    return all(aval_from_jax_or_none(jax.typeof(x)) is not None for x in args)


def to_functx_value(x: Value) -> Value:
    """A JAX value as a value of the program being traced."""
    if type(x) is Tracer:
        return x
    if type(x) is PRNGKeyTracer:
        return x.key_data
    aval = jax.typeof(x)
    if isinstance(aval, jax.ref.AbstractRef):
        raise reference_error(aval)
    if prng_key_type(aval.dtype) is not None:
        with backend.outer_jax_trace():
            return constant_array(x)
    if isinstance(x, jax.Array) or aval.shape:
        return x
    builder = current_builder.require()
    number = np.asarray(x).item()
    return Tracer(scalar_literal(number, aval.dtype, bool(aval.weak_type), repr(number)), builder)


def to_jax_value(x: Value, aval: JaxAval) -> Value:
    """A value of the program being traced as a JAX value of type `aval`."""
    if type(x) is not Tracer:
        builder = current_builder.require()
        x = Tracer(builder.atom(x), builder)
    x = with_jax_type(x, aval)
    if type(x) is Tracer:
        x.builder.mark_made_by_jax(x.atom)
    return x


def run_in_functx_trace(fun: Function, args: Values) -> PyTree:
    """`fun(*args)`, with operations of JAX as equations of the program being built."""
    trace = FunctxTrace(find_top_trace(()))
    axes = bound_axes()
    if not axes:
        with set_current_trace(trace):
            return fun(*args)
    out = None

    def within() -> None:
        nonlocal out
        with set_current_trace(trace):
            out = fun(*args)

    # JAX binds names of axes only while it traces a function.
    jax.make_jaxpr(within, axis_env=[(axis.name, axis.size) for axis in axes])()
    return out


def outer_jax_trace() -> AbstractContextManager[None]:
    """A context with the JAX trace that was current before functx began to trace."""
    trace = find_top_trace(())
    if type(trace) is not FunctxTrace:
        return nullcontext()
    return set_current_trace(trace.outer_trace)


def is_in_jax_trace() -> bool:
    """Whether JAX's own trace is active inside the innermost trace of functx."""
    return type(find_top_trace(())) is not FunctxTrace


backend.jax_trace = FunctxTrace(None)
backend.call_traced = run_in_functx_trace
backend.outer_jax_trace = outer_jax_trace
backend.inside_jax_trace = is_in_jax_trace


@cache
def abstract_jax_scalar() -> jax.core.AbstractValue:
    """A scalar tracer of JAX, through which JAX must assume that derivatives go."""
    found: list[Any] = []
    jax.make_jaxpr(found.append)(0.0)
    return found[0]


def _contents(self: Tracer) -> list[tuple[str, Any]]:
    # `jax.closure_convert` makes arguments of the tracers that it finds here.
    return [("value", abstract_jax_scalar())] if is_inexact(self.dtype) else []


Tracer._contents = _contents  # type: ignore[method-assign, assignment]


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
            if recording_operand(tree.flatten((args, kwargs))[0]) is not None:
                return call_as_program(wrapper, args, kwargs, "from_jax")
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
        self.jitted: jax.stages.Wrapped | None = None
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

    def jaxpr(self, avals: Avals) -> tuple[JaxprLike, OutputStructure]:
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
