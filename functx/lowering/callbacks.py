"""Callbacks in a module: the call from the device, JAX's effects and tokens, failures."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import cache
from threading import local
from typing import Any

import jax
import numpy as np
from jax.experimental import io_callback
from jax.extend.core import find_top_trace
from jax.interpreters import mlir

from functx.core.effects import NO_EFFECTS, Effect, Effects
from functx.core.errors import FunctxError
from functx.core.program import Program
from functx.core.provenance import Source, source_line
from functx.lowering.arrays import jax_aval
from functx.ops.callbacks import IoCallback, OnHost


@cache
def _jax_effects(effects: Effects, with_results: bool) -> frozenset[Any]:
    found: set[Any] = set()
    if Effect.ORDERED in effects:
        found.add(ordered_effect())
    if effects - {Effect.ORDERED}:
        found |= jax.make_jaxpr(lambda: jax.debug.callback(_nothing))().effects
    # JAX keeps those with results out of what it may do twice.
    if with_results:
        found |= jax.make_jaxpr(lambda: io_callback(_nothing, None))().effects
    return frozenset(found)


@cache
def ordered_effect() -> Any:
    """JAX's effect whose token goes through the programs with ordered callbacks."""
    (effect,) = jax.make_jaxpr(lambda: jax.debug.callback(_nothing, ordered=True))().effects
    return effect


@cache
def _ordered_io_effect() -> Any:
    (effect,) = jax.make_jaxpr(lambda: io_callback(_nothing, None, ordered=True))().effects
    return effect


def _nothing() -> None:
    """A callback for the sake of its effect."""


def jax_effects(program: Program) -> frozenset[Any]:
    """The effects of `program` in JAX's terms."""
    if not program.effects:
        return NO_EFFECTS
    with_results: bool | None = program.memo.get(jax_effects)
    if with_results is None:
        with_results = program.memo[jax_effects] = any(
            type(eqn.primitive) is IoCallback for each in program.walk() for eqn in each
        )
    return _jax_effects(program.effects, with_results)


def emit(ctx: Any, primitive: OnHost, values: Sequence[Any]) -> list[Any]:
    """The outputs of a call of the host, which waits for the module's token if it is ordered."""
    module = ctx.module
    ordered = Effect.ORDERED in primitive.effects
    call = FromDevice(primitive, ctx.source)
    avals_in = [jax_aval(a) for a in ctx.avals_in]
    avals_out = [jax_aval(a) for a in ctx.avals_out]
    context = module.jax_context.replace(avals_in=avals_in, avals_out=avals_out)
    if getattr(module.module_context.axis_context, "num_devices", 0) != 1:
        return _emit_on_one_of_many(context, module, call, ordered, values)
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
    return list(results)


def _emit_on_one_of_many(
    context: Any, module: Any, call: FromDevice, ordered: bool, values: Sequence[Any]
) -> list[Any]:
    """The same where the module runs on several devices: JAX's own callback runs on one."""
    avals = context.avals_out
    if call.primitive.effects:

        def through_jax(*xs: Any) -> Any:
            return io_callback(call, avals, *xs, ordered=ordered)

    else:

        def through_jax(*xs: Any) -> Any:
            return jax.pure_callback(call, avals, *xs)

    effect = _ordered_io_effect()
    tokens = {effect: module.token} if ordered else {}
    context = context.replace(tokens_in=mlir.TokenSet(tokens), tokens_out=None)
    outs = mlir.lower_fun(through_jax, multiple_results=True)(context, *values)
    if ordered:
        module.token = context.tokens_out.get(effect)
    return [out[0] if isinstance(out, (list, tuple)) else out for out in outs]


class FromDevice:
    """A call of the host, as the device makes it: keeps what the callback raises for `reraise`."""

    def __init__(self, primitive: OnHost, source: Source | None):
        self.primitive, self.source = primitive, source

    def __call__(self, *arrays: Any) -> tuple[Any, ...]:
        _running.depth = getattr(_running, "depth", 0) + 1
        try:
            return tuple(self.primitive.run(*map(np.asarray, arrays)))
        except BaseException as error:
            name = self.primitive.host_name
            if isinstance(error, FunctxError):
                error.source = self.source
            elif self.source is not None:
                error.add_note(f"in the callback {name}, called at {source_line(self.source)}")
            _failures.append(error)
            raise
        finally:
            _running.depth -= 1


_running = local()
_failures: deque[BaseException] = deque(maxlen=16)


def reraise(error: BaseException) -> None:
    """Raise what a callback raised, if that is why JAX raised `error`."""
    text = str(error)
    while _failures:
        failure = _failures.popleft()
        if type(failure).__name__ in text:
            raise failure.with_traceback(_without_jax(failure.__traceback__)) from None


def _without_jax(trail: Any) -> Any:
    """A traceback from the callback on."""
    while trail is not None and trail.tb_frame.f_code.co_filename == __file__:
        trail = trail.tb_next
    return trail


def waiting(run: Callable[..., Any], *args: Any) -> Any:
    """`run(*args)`, where what a callback raises is raised as it was."""
    try:
        return run(*args)
    except jax.errors.JaxRuntimeError as error:
        reraise(error)
        raise


def effects_barrier() -> None:
    """Wait until all callbacks of the programs that were started have run.

    Raises what one of them raised.

    >>> import functx
    >>> seen = []
    >>> functx.jit(lambda x: functx.debug.callback(seen.append, x))(3.0)
    >>> functx.effects_barrier()
    >>> [float(x) for x in seen]
    [3.0]
    """
    waiting(jax.effects_barrier)


def run_now(primitive: OnHost, args: Sequence[Any]) -> list[Any]:
    """The outputs of a call of the host outside of any program, as NumPy arrays."""
    if Effect.ORDERED in primitive.effects and not getattr(_running, "depth", 0):
        effects_barrier()
    return primitive.run(*args)


def jax_is_tracing() -> bool:
    """Whether what is computed now becomes part of a program of JAX's."""
    return type(find_top_trace(())).__name__ != "EvalTrace"
