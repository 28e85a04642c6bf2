"""The JAX trace under which functx traces: operations of JAX become equations of the program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import jax
import jax.core
import numpy as np
from jax.extend.core import Var, find_top_trace, new_jaxpr_eqn, set_current_trace

from functx.core.backend import backend
from functx.core.named_axes import bound_axes
from functx.core.program import scalar_literal
from functx.core.source_info import user_source
from functx.core.tracer import PRNGKeyTracer, Tracer, current_builder
from functx.core.types import is_inexact
from functx.core.typing import Function, Value, Values
from functx.interop import array_rules, control_rules  # noqa: F401 - register rules
from functx.interop.custom_rules import JaxJVPFunction, JaxVJPFunction, made_by_jax, reset_stores
from functx.interop.jaxprs import aval_from_jax_or_none, constant_array, jaxpr_of
from functx.interop.translation import inline_jaxpr, translate_equation, with_jax_type
from functx.lowering.jax_bridge import JaxAval, prng_key_type
from functx.transforms.aliasing import copy_if_aliased

VALUE_ERRORS = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)
"""The errors of JAX for Python code that reads the value of an array that has none."""


class FunctxTrace(jax.core.Trace):  # type: ignore[type-arg]
    """The trace of JAX that is current while functx traces.

    It appends the operations that JAX binds to the innermost program being built. `outer_trace`
    is the trace that was current before functx began to trace.
    """

    __slots__ = ("outer_trace",)
    outer_trace: Any

    def __init__(self, outer: Any):
        super().__init__()
        self.outer_trace = outer.outer_trace if type(outer) is FunctxTrace else outer

    def stage_value(self, val: Any) -> Any:
        if not should_stage([val]):
            return val
        with set_current_trace(self):
            builder = current_builder.require()
            return Tracer(builder.atom(to_functx_value(val)), builder)

    def process_primitive(self, primitive: Any, args: Any, params: Any, /) -> Any:
        if current_builder.innermost() is None or not should_stage(args):
            with set_current_trace(self.outer_trace):
                return primitive.bind(*args, **params)
        avals = [jax.typeof(x) for x in args]
        found, effects = primitive.abstract_eval(*avals, **params)
        out_avals = found if primitive.multiple_results else [found]
        eqn = new_jaxpr_eqn([*map(Var, avals)], [*map(Var, out_avals)], primitive, params, effects)
        outs = self.append_equations(
            lambda *values: translate_equation(eqn, values), args, out_avals
        )
        return outs if primitive.multiple_results else outs[0]

    def process_call(self, primitive: Any, fun: Any, args: Any, params: Any, /) -> Any:
        with set_current_trace(self):
            return fun.call_wrapped(*args)

    def process_custom_jvp_call(
        self, primitive: Any, fun: Any, jvp: Any, args: Any, /, **params: Any
    ) -> Any:
        return self.stage_call(
            primitive,
            args,
            lambda: JaxJVPFunction(fun, jvp),
            subfuns=(fun, jvp),
            **params,
        )

    def process_custom_vjp_call(
        self, primitive: Any, fun: Any, fwd: Any, bwd: Any, args: Any, /, **params: Any
    ) -> Any:
        return self.stage_call(
            primitive,
            args,
            lambda: JaxVJPFunction(fun, fwd, bwd, params["out_trees"]),
            subfuns=(fun, fwd, bwd),
            **params,
        )

    def process_shard_map(self, primitive: Any, fun: Any, args: Any, /, **params: Any) -> Any:
        return self.stage_call(primitive, args, subfuns=(fun,), **params)

    def stage_call(
        self,
        primitive: Any,
        args: Values,
        with_values: Callable[[], Function] | None = None,
        **params: Any,
    ) -> Any:
        """A call with functions among its parameters, translated from the jaxpr that JAX makes of it.

        While JAX makes a jaxpr, arrays have no values. Where the Python code of the user reads some,
        the function that `with_values` returns is called instead.
        """
        if not should_stage(args):
            with set_current_trace(self.outer_trace):
                return params["subfuns"][0].call_wrapped(*args)
        function = None
        try:
            with set_current_trace(self):
                closed = jaxpr_of(
                    lambda *xs: primitive.bind(*xs, **params), [*map(jax.typeof, args)]
                )
        except VALUE_ERRORS:
            # A rule with symbolic zeros is traced later, when no values are known.
            if with_values is None or params["symbolic_zeros"]:
                raise
            function = with_values()
        if function is not None:
            with set_current_trace(self):
                outs = made_by_jax(function(*args))
        else:
            consts = [to_functx_value(c) for c in closed.consts]
            outs = self.append_equations(
                lambda *values: inline_jaxpr(closed.jaxpr, consts, values), args, closed.out_avals
            )
        # JAX reads the structure of the result either from the function or from its rule.
        for rule in params["subfuns"][1:]:
            reset_stores(rule)
        return outs

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


def to_functx_value(x: Any) -> Any:
    """A JAX value as a value of the program being traced."""
    if type(x) is Tracer:
        return x
    if type(x) is PRNGKeyTracer:
        return x.key_data
    aval = jax.typeof(x)
    if prng_key_type(aval.dtype) is not None:
        with backend.outer_jax_trace():
            return constant_array(x)
    if isinstance(x, jax.Array) or aval.shape:
        return x
    builder = current_builder.require()
    number = np.asarray(x).item()
    return Tracer(scalar_literal(number, aval.dtype, bool(aval.weak_type), repr(number)), builder)


def to_jax_value(x: Any, aval: JaxAval) -> Any:
    """A value of the program being traced as a JAX value of type `aval`."""
    if type(x) is not Tracer:
        builder = current_builder.require()
        x = Tracer(builder.atom(x), builder)
    x = with_jax_type(x, aval)
    if type(x) is Tracer:
        x.builder.mark_made_by_jax(x.atom)
    return x


def run_in_functx_trace(fun: Function, args: Values) -> Any:
    """`fun(*args)`, with operations of JAX as equations of the program being built."""
    trace = FunctxTrace(find_top_trace(()))
    axes = bound_axes()
    if not axes:
        with set_current_trace(trace):
            return fun(*args)
    out: Any = None

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
    return set_current_trace(trace.outer_trace)  # type: ignore[no-any-return]


def is_in_jax_trace() -> bool:
    """Whether JAX's own trace is active inside the innermost trace of functx."""
    return type(find_top_trace(())) is not FunctxTrace


backend.jax_trace = FunctxTrace(None)
backend.call_traced = run_in_functx_trace
backend.outer_jax_trace = outer_jax_trace
backend.inside_jax_trace = is_in_jax_trace


@cache
def abstract_jax_scalar() -> Any:
    """A scalar tracer of JAX, through which JAX must assume that derivatives go."""
    found: list[Any] = []
    jax.make_jaxpr(found.append)(0.0)
    return found[0]


def _contents(self: Tracer) -> list[tuple[str, Any]]:
    # `jax.closure_convert` makes arguments of the tracers that it finds here.
    return [("value", abstract_jax_scalar())] if is_inexact(self.dtype) else []


Tracer._contents = _contents  # type: ignore[method-assign, assignment]
