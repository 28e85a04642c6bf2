"""Callbacks in a module: calls of the host by the device, JAX's effects and tokens, errors."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import cache
from threading import local
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

import jax
import numpy as np
from jax.experimental import io_callback
from jax.extend.core import find_top_trace
from jax.interpreters import mlir

from functx import ops
from functx.core.errors import FunctxError
from functx.core.program import NO_EFFECTS, Effect, Effects, Program
from functx.core.source_info import Source, source_line
from functx.core.typing import ArrayLike, Function, IRValue, IRValues, NumPyArray, PyTree
from functx.lowering.jax_bridge import jax_aval

if TYPE_CHECKING:
    from functx.lowering.stablehlo_emitter import LoweringContext


@cache
def _jax_effects(effects: Effects, with_results: bool) -> frozenset[Any]:
    found: set[Any] = set()
    if Effect.ORDERED in effects:
        found.add(ordered_effect())
    if effects - {Effect.ORDERED}:
        found |= jax.make_jaxpr(lambda: jax.debug.callback(_no_op))().effects
    # JAX never runs callbacks with results twice.
    if with_results:
        found |= jax.make_jaxpr(lambda: io_callback(_no_op, None))().effects
    return frozenset(found)


@cache
def ordered_effect() -> Any:
    """JAX's effect for ordered callbacks, whose token is passed from one to the next."""
    (effect,) = jax.make_jaxpr(lambda: jax.debug.callback(_no_op, ordered=True))().effects
    return effect


@cache
def _ordered_io_effect() -> Any:
    (effect,) = jax.make_jaxpr(lambda: io_callback(_no_op, None, ordered=True))().effects
    return effect


def _no_op() -> None:
    """A callback that does nothing, from which JAX's effects are read."""


def jax_effects(program: Program) -> frozenset[Any]:
    """JAX's effects for those of `program`."""
    if not program.effects:
        return NO_EFFECTS
    with_results: bool | None = program.memo.get(jax_effects)
    if with_results is None:
        with_results = program.memo[jax_effects] = any(
            type(eqn.primitive) is ops.IoCallback for each in program.walk() for eqn in each
        )
    return _jax_effects(program.effects, with_results)


def emit_callback(
    ctx: LoweringContext, primitive: ops.HostPrimitive, values: IRValues
) -> list[IRValue]:
    """The outputs of a call of the host, which takes and returns the module's token if it is ordered."""
    module = ctx.module
    ordered = Effect.ORDERED in primitive.effects
    call = DeviceCallback(primitive, ctx.source)
    avals_in = [jax_aval(a) for a in ctx.avals_in]
    avals_out = [jax_aval(a) for a in ctx.avals_out]
    context = module.jax_context.replace(avals_in=avals_in, avals_out=avals_out)
    if getattr(module.module_context.axis_context, "num_devices", 0) != 1:
        return _emit_on_one_device(context, module, call, ordered, values)
    results, token, _ = mlir.emit_python_callback(
        context,
        call,
        module.token if ordered else None,
        list(values),
        avals_in,
        avals_out,
        has_side_effect=bool(primitive.effects),
        returns_token=ordered,
    )
    if ordered:
        module.token = token
    return cast("list[IRValue]", list(results))


def _emit_on_one_device(
    context: Any, module: Any, call: DeviceCallback, ordered: bool, values: IRValues
) -> list[IRValue]:
    """The outputs of a call of the host in a module for several devices, where one of them calls."""
    avals = context.avals_out
    if call.primitive.effects:

        def through_jax(*xs: IRValue) -> PyTree:
            return io_callback(call, avals, *xs, ordered=ordered)

    else:

        def through_jax(*xs: IRValue) -> PyTree:
            return jax.pure_callback(call, avals, *xs)

    effect = _ordered_io_effect()
    tokens = {effect: module.token} if ordered else {}
    context = context.replace(tokens_in=mlir.TokenSet(tokens), tokens_out=None)
    outs = mlir.lower_fun(through_jax, multiple_results=True)(context, *values)
    if ordered:
        module.token = context.tokens_out.get(effect)
    return [out[0] if isinstance(out, (list, tuple)) else out for out in outs]


class DeviceCallback:
    """A host function called by the device, which keeps its errors for `reraise_callback_error`."""

    def __init__(self, primitive: ops.HostPrimitive, source: Source | None):
        self.primitive, self.source = primitive, source

    def __call__(self, *arrays: ArrayLike) -> tuple[Any, ...]:
        _thread_state.depth = getattr(_thread_state, "depth", 0) + 1
        try:
            return tuple(self.primitive.run(*map(np.asarray, arrays)))
        except BaseException as error:
            name = self.primitive.display_name
            if isinstance(error, FunctxError):
                error.source = self.source
            elif self.source is not None:
                error.add_note(f"in the callback {name}, called at {source_line(self.source)}")
            _callback_errors.append(error)
            raise
        finally:
            _thread_state.depth -= 1


_thread_state = local()
_callback_errors: deque[BaseException] = deque(maxlen=16)


def reraise_callback_error(error: BaseException) -> None:
    """Raises the error of a callback, if JAX raised `error` because of it."""
    text = str(error)
    while _callback_errors:
        failure = _callback_errors.popleft()
        if type(failure).__name__ in text:
            raise failure.with_traceback(_traceback_from_callback(failure.__traceback__)) from None


def _traceback_from_callback(trail: TracebackType | None) -> TracebackType | None:
    """The part of a traceback that starts at the callback."""
    while trail is not None and trail.tb_frame.f_code.co_filename == __file__:
        trail = trail.tb_next
    return trail


def call_reraising_callback_errors(run: Function, *args: PyTree) -> PyTree:
    """`run(*args)`; an error in a callback is raised as the callback raised it."""
    try:
        return run(*args)
    except jax.errors.JaxRuntimeError as error:
        reraise_callback_error(error)
        raise


def effects_barrier() -> None:
    """Waits until all callbacks of started programs have run.

    Raises the error of a callback that failed.

    >>> import functx
    >>> seen = []
    >>> functx.jit(lambda x: functx.debug.callback(seen.append, x))(3.0)
    >>> functx.effects_barrier()
    >>> [float(x) for x in seen]
    [3.0]
    """
    call_reraising_callback_errors(jax.effects_barrier)


def run_callback(primitive: ops.HostPrimitive, args: Sequence[NumPyArray]) -> list[NumPyArray]:
    """The outputs of a call of the host outside of any program, as NumPy arrays."""
    if Effect.ORDERED in primitive.effects and not getattr(_thread_state, "depth", 0):
        effects_barrier()
    return primitive.run(*args)


def jax_is_tracing() -> bool:
    """Whether operations of JAX become part of a jaxpr now."""
    return type(find_top_trace(())).__name__ != "EvalTrace"
