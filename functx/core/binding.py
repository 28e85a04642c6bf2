"""`bind`: an operation on values becomes an equation, or is computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from functx.core.backend import InnerJaxTrace, backend
from functx.core.captured_state import read_states, state_table
from functx.core.tracer import Tracer, context_builder, current_builder, recording_operand
from functx.core.wrapper_dispatch import dispatch
from functx.core.wrappers import WrapperOperand, is_wrapper

if TYPE_CHECKING:
    from functx.core.primitive import Primitive


def bind(primitive: Primitive, args: Sequence[Any]) -> Any:
    """Append `primitive(*args)` to the program of the current builder; evaluate it if there is no builder.

    An operation on wrapper types goes to their handlers. Inside a trace of JAX that began later,
    operations on values that are not traced by functx belong to JAX, which may use the results after
    functx's trace has ended.
    """
    builder = context_builder()
    if builder is None or not builder.is_open:
        builder = builder and current_builder.innermost()
        if builder is None:
            if state_table.get() is not None:
                args = read_states(args)
            variable = recording_operand(args)
            if variable is not None:
                return variable.record(primitive, args)
            return backend.evaluate(primitive, args)
    untraced = not args or (type(args[0]) is not Tracer and type(args[-1]) is not Tracer)
    if not (untraced or primitive.is_context_dependent) or not backend.inside_jax_trace():
        try:
            return builder.append(primitive, args)
        except (InnerJaxTrace, WrapperOperand):
            # Handlers run outside of this clause, so that their errors do not show this exception.
            pass
    if any([is_wrapper(x) for x in args]):
        return dispatch(primitive, args)
    return backend.evaluate(primitive, args)
