"""Functions with rules of the user's that draw from generators: the states become an argument and a result."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from functx.core.captured_state import CapturedState, StateInputs, state_inputs
from functx.core.context import ContextValue
from functx.core.errors import CapturedWriteError, ImplicitDrawError
from functx.core.tracer import Tracer, current_builder
from functx.core.typing import Function, PyTree, Value
from functx.custom.rule_results import CustomVJPPrimal
from functx.ops.views import Copy
from functx.transforms.aliasing import write_state
from functx.transforms.argument_names import function_name

if TYPE_CHECKING:
    from functx.custom.custom_function import CustomFunction
    from functx.transforms.tracing_api import TracedFunction

States = tuple[CapturedState, ...]


def states_moved_on(traced: TracedFunction) -> States:
    """The states that a function draws from; none if it writes to anything else that it captures."""
    own = len(traced.program.inputs) - len(traced.captured)
    found = [state_of(traced.captured[i - own]) if i >= own else None for i in traced.written]
    states = [state for state in found if state is not None]
    return tuple(states) if len(states) == len(found) else ()


def state_of(captured: object) -> CapturedState | None:
    """The state that a captured value is, or stands for; None if it is no state."""
    if isinstance(captured, CapturedState):
        return captured
    inputs = state_inputs.get()
    if type(captured) is Tracer and inputs is not None:
        for state, words in (*inputs.forward.items(), *inputs.backward.items()):
            if words.atom is captured.atom:
                return state
    return None


def call_with_states(custom: CustomFunction, states: States, args: Sequence[PyTree]) -> PyTree:
    """The result of a call of `custom`, with the states that it and its rules draw from moved on."""
    key = states, len(args), custom.rule_functions()
    found: CustomFunction | None = custom.by_states.get(key)
    if found is None:
        found = custom.by_states[key] = custom.with_states(StateThreading(states, len(args)))
        found.original = custom.original
    builder = current_builder.get()
    words = [s.read() if builder is None else builder.tracer(s) for s in states]
    out, new = found(*args, tuple(words))
    for state, moved in zip(states, new, strict=True):
        write_state(state, moved)
    return out


class StateThreading:
    """Makes functions and rules of `num_args` arguments that draw from `states` into others that take them last."""

    def __init__(self, states: States, num_args: int):
        self.states, self.num_args = states, num_args

    def run(
        self, fun: Function, args: Sequence[Any], words: Sequence[Value]
    ) -> tuple[Any, tuple[Value, ...]]:
        """`fun(*args)` where `words` are the states, and the states afterwards."""
        copies = [Copy()(x) for x in words]
        outer = state_inputs.get()
        own = dict(zip(self.states, copies, strict=True))
        inputs = StateInputs(own) if outer is None else StateInputs({**outer.forward, **own})
        with ContextValue(state_inputs, inputs):
            out = fun(*args)
        return out, tuple([Copy()(x) for x in copies])

    def function(self, fun: Function) -> Function:
        """`fun` itself: from its arguments and the states to its result and the states."""

        def call(*args: PyTree) -> tuple[PyTree, tuple[Value, ...]]:
            return self.run(fun, args[:-1], args[-1])

        return named_as(call, fun)

    def jvp_rule(self, rule: Function) -> Function:
        """A rule for forward mode: the states have no tangent."""

        def call(*args: PyTree) -> PyTree:
            *nondiff, primals, tangents = args
            pair, new = self.run(rule, (*nondiff, primals[:-1], tangents[:-1]), primals[-1])
            if not isinstance(pair, (tuple, list)) or len(pair) != 2:
                return pair
            return (pair[0], new), (pair[1], None)

        return named_as(call, rule)

    def forward_rule(self, rule: Function) -> Function:
        """A forward rule."""

        def call(*args: PyTree) -> PyTree:
            words = [x.value if isinstance(x, CustomVJPPrimal) else x for x in args[-1]]
            pair, new = self.run(rule, args[:-1], words)
            if not isinstance(pair, (tuple, list)) or len(pair) != 2:
                return pair
            return (pair[0], new), pair[1]

        return named_as(call, rule)

    def backward_rule(self, rule: Function) -> Function:
        """A backward rule, which must not draw."""

        def call(*args: PyTree) -> PyTree:
            *others, cts = args
            try:
                out = rule(*others, cts[0])
            except (CapturedWriteError, ImplicitDrawError) as error:
                error.state = None
                raise
            return (*out, None) if isinstance(out, (tuple, list)) else out

        return named_as(call, rule)


def named_as(call: Callable[..., Any], fun: Function) -> Function:
    """`call` with the name of `fun`, whose line messages show."""
    own = inspect.signature(call)
    call.__name__ = function_name(fun)
    call.__wrapped__ = fun  # type: ignore[attr-defined]
    call.__signature__ = own  # type: ignore[attr-defined]
    return call
