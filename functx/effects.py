"""Effects that users register for operators: calls with one are never dropped, merged or reordered."""

from __future__ import annotations

from typing import TypeAlias

from functx.core.argument_errors import explain_errors as _explain_errors
from functx.core.caches import invalidate_caches
from functx.core.effect_registry import (
    EffectRegistration,
    add_registration,
    apply_registrations,
    last_registration,
    remove_registration,
)
from functx.core.effects import Effect
from functx.core.errors import AliasingEffectError, ArgumentError, RegistrationError, type_name
from functx.core.primitive import Primitive
from functx.custom.higher_order_op import HigherOrderOp, higher_order_operations
from functx.custom.operators.operator import Operator
from functx.custom.operators.registry import resolve_operator

__all__ = ["CALLBACK", "ORDERED", "Effect", "EffectHandle", "register", "registered"]

Target: TypeAlias = Operator | HigherOrderOp | type[Primitive]
"""An operation whose effect can be registered."""

ORDERED = Effect.ORDERED
"""The effect of an operation that runs in the order of the program, with all others of the kind."""
CALLBACK = Effect.CALLBACK
"""The effect of an operation that runs in any order."""


class EffectHandle:
    """A registered effect, which `remove` takes back."""

    def __init__(self, target: Target, registration: EffectRegistration):
        self.target, self.registration = target, registration

    def remove(self) -> None:
        """Removes the registration; an earlier one holds again, or what the operator does itself.

        Nothing happens if it was removed before.
        """
        if remove_registration(_primitive_class(self.target), self.registration):
            _apply(self.target)

    def __enter__(self) -> EffectHandle:
        return self

    def __exit__(self, *exception: object) -> None:
        self.remove()

    def __repr__(self) -> str:
        return f"<{_label(self.target)}: {self.registration!r}>"


def register(op: Target | str, kind: Effect | None) -> EffectHandle:
    """Register the effect of an operator, a higher-order operation or a user's primitive.

    `op` may also be the name of an operator. `kind` is `ORDERED`, a kind of the user's (`Effect(name)`),
    or `CALLBACK` for calls in any order; None says that calls have no effect. An equation with an effect
    stays where its results are unused, is not merged with an equal one, is not computed again in a
    backward program, and keeps its order among the equations of its kind. `vmap` runs it for each
    element in turn, and a derivative runs it once. It holds at once, also in functions that were
    compiled before. A later registration replaces an earlier one until its handle is removed.

    Raises AliasingEffectError for an operator that writes to an argument or returns one,
    RegistrationError for a primitive of functx and for an operator with a decomposition.

    >>> import functx
    >>> @functx.custom_op("doc::logged", kernel="numpy")
    ... def logged(x: functx.Array) -> functx.Array:
    ...     print("logged", x)
    ...     return x.copy()
    >>> _ = logged.def_abstract(lambda x: x)
    >>> handle = functx.effects.register(logged, functx.effects.ORDERED)
    >>> functx.make_ir(lambda x: [logged(x), x][1])(1.0).effects
    frozenset({ordered})
    >>> handle.remove()
    >>> functx.library.destroy("doc::logged")
    """
    target = _resolve(op, "effects.register")
    _check_may_have_effect(target, kind)
    registration = add_registration(_primitive_class(target), kind)
    _apply(target)
    return EffectHandle(target, registration)


def registered(op: Target | str) -> Effect | None:
    """The kind of effect that is registered for an operator; None for no effect, or none registered.

    >>> import functx
    >>> @functx.custom_op("doc::shown")
    ... def shown(x: functx.Array) -> functx.Array: ...
    >>> with functx.effects.register("doc::shown", functx.effects.ORDERED):
    ...     functx.effects.registered(shown)
    ordered
    >>> functx.library.destroy("doc::shown")
    """
    registration = last_registration(_primitive_class(_resolve(op, "effects.registered")))
    return None if registration is None else registration.kind


def _resolve(op: object, caller: str) -> Target:
    """The operator `op`, or the one of that name, or the class of a user's primitive."""
    if isinstance(op, HigherOrderOp):
        return op
    if isinstance(op, str) and op in higher_order_operations:
        return higher_order_operations[op]
    if isinstance(op, type) and issubclass(op, Primitive) and op.is_user_defined:
        return op
    return resolve_operator(op, caller)  # type: ignore[arg-type]


def _primitive_class(target: Target) -> type[Primitive]:
    cls: type[Primitive] = target if isinstance(target, type) else target.primitive
    return cls


def _label(target: Target) -> str:
    return _primitive_class(target).name


def _apply(target: Target) -> None:
    """Lets all later calls, also of compiled functions, have the effect that holds now."""
    apply_registrations()
    if isinstance(target, Operator):
        # It clears all caches if a program may have a call.
        target.rules_changed()
    else:
        invalidate_caches()


def _check_may_have_effect(target: Target, kind: object) -> None:
    """Raise an error unless `target` may have an effect of that kind."""
    label = f"effects.register({_label(target)})"
    if kind is None:
        return
    if not isinstance(kind, Effect):
        raise ArgumentError(
            f"{label}: the kind must be an Effect or None; got {type_name(kind)} {kind!r}",
            fix='Pass functx.effects.ORDERED, or a kind of your own: functx.effects.Effect("log").',
        )
    if kind in (Effect.WRITE, Effect.CHECK, Effect.PROGRESS):
        raise ArgumentError(
            f"{label}: the kind must be one that operators may have; got {kind!r}, which functx "
            "gives to writes, checks and the progress of loops alone",
            fix="Name the arguments that an operator writes to in mutates_args."
            if kind is Effect.WRITE
            else "Pass functx.effects.ORDERED.",
        )
    if not isinstance(target, Operator):
        return
    schema = target.schema
    if schema.mutated or any(r.alias for r in schema.returns):
        raise AliasingEffectError(
            f"{label}: an operator with an effect must neither write to an argument nor return one; "
            f"got one that {'writes to' if schema.mutated else 'returns'} an argument",
            f"schema {schema}",
            fix="Let it return a new array.",
        )
    if target.composite is not None:
        raise RegistrationError(
            f"{label}: an operator with a decomposition has the effects of what it is made of; got an "
            "effect for it",
            f"the decomposition was given at {target.composite.location}",
            fix="Define the operator without a decomposition.",
        )


_explain_errors(__name__)
