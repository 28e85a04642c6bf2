"""The two forms in which a backward rule is given: by names and saved values, or by a context."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from functx.core.errors import RegistrationError
from functx.custom.operators.gradients import GradientChecker, Gradients
from functx.custom.operators.registry import Registration, get_rule
from functx.custom.operators.results import OutputTypes
from functx.custom.operators.traced import Residuals, inline_rule

if TYPE_CHECKING:
    from functx.custom.operators.equations import OperatorPrimitive

SAVE_RULE = "save_for_backward"
BACKWARD_RULE = "backward"
AUTOGRAD_RULE = "autograd formula"


class BackwardContext:
    """Reserved: what a `backward` rule gets first."""

    __slots__ = ()


class AutogradContext:
    """What `setup_context` notes for the backward rule: arrays to save, and any attribute."""

    def __init__(self, needs_input_grad: tuple[Any, ...]):
        self.__dict__["_functx_saved"] = ()
        self.__dict__["_functx_needs"] = needs_input_grad

    @property
    def needs_input_grad(self) -> tuple[Any, ...]:
        """Which of the positional arguments that were passed a derivative is taken in.

        A list of arrays has a list.
        """
        return self.__dict__["_functx_needs"]  # type: ignore[no-any-return]

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """The arrays that `save_for_backward` was given."""
        return self.__dict__["_functx_saved"]  # type: ignore[no-any-return]

    def save_for_backward(self, *arrays: Any) -> None:
        """Keep arrays for the backward rule, which finds them as `saved_tensors`."""
        self.__dict__["_functx_saved"] = arrays


def _context_attributes(context: AutogradContext) -> dict[str, Any]:
    """All that was set on a context, the saved arrays included."""
    return {k: v for k, v in context.__dict__.items() if k != "_functx_needs"}


def _restored_context(context: AutogradContext, noted: dict[str, Any]) -> AutogradContext:
    """A context on which that is set."""
    made = AutogradContext(context.needs_input_grad)
    made.__dict__.update(noted)
    return made


class BackwardByName(NamedTuple):
    """`save_for_backward(inputs, output)` and `backward(ctx, saved, *grads)`."""

    save_rule: Registration
    rule: Registration

    def save(
        self,
        call: OperatorPrimitive,
        results: OutputTypes,
        args: Any,
        outs: Any,
        active: Sequence[bool],
    ) -> Residuals:
        """What the backward rule gets of the arguments and results."""
        saved: Any = None

        def body(*xs: Any) -> list[Any]:
            nonlocal saved
            inputs = call.operator.arguments.unflatten(call, xs[: len(args)])
            output = results.unflatten(call.operator.schema, xs[len(args) :])
            found = self.save_rule(call.operator.arguments.namedtuple_class(*inputs), output)
            saved = Residuals.flatten(found)
            return list(saved.arrays)

        found, _ = inline_rule(f"{call.operator.__name__}_save", body, [*args, *outs])
        return saved._replace(arrays=found)  # type: ignore[no-any-return]

    def run_backward(
        self,
        call: OperatorPrimitive,
        results: OutputTypes,
        saved: Residuals,
        cts: Sequence[Any],
        args: Any,
    ) -> Gradients:
        """The cotangents of the operands, for those of the results."""

        def rule(
            arrays: Sequence[Any], grads: Sequence[Any], checked: GradientChecker
        ) -> Gradients:
            found = self.rule(BackwardContext(), saved.unflatten(arrays), *grads)
            return checked.from_dict(found)

        return _run_backward_rule(call, self.rule, results, saved, cts, args, rule)


class BackwardByContext(NamedTuple):
    """`setup_context(ctx, inputs, output)` and `backward(ctx, *grads)`."""

    rule: Registration

    def save(
        self,
        call: OperatorPrimitive,
        results: OutputTypes,
        args: Any,
        outs: Any,
        active: Sequence[bool],
    ) -> Any:
        """The context, and what is noted in it, as far as it is arrays apart from the rest."""
        arguments = call.operator.arguments
        context = AutogradContext(_needs_input_grad(call, active))
        setup = self.rule.option
        if setup is None:
            return context, Residuals.flatten({})
        saved: Any = None

        def body(*xs: Any) -> list[Any]:
            nonlocal saved
            inputs, keywords = arguments.call_arguments(call, xs[: len(args)])
            output = results.unflatten(call.operator.schema, xs[len(args) :])
            given: dict[str, Any] = {"keyword_only_inputs": keywords} if keywords else {}
            given |= {"ctx": context, "inputs": tuple(inputs), "output": output}
            self.rule.run(setup, (), given)
            saved = Residuals.flatten(_context_attributes(context))
            return list(saved.arrays)

        found, _ = inline_rule(f"{call.operator.__name__}_setup", body, [*args, *outs])
        return context, saved._replace(arrays=found)

    def run_backward(
        self,
        call: OperatorPrimitive,
        results: OutputTypes,
        saved: Any,
        cts: Sequence[Any],
        args: Any,
    ) -> Gradients:
        """The cotangents of the operands, for those of the results."""
        context, noted = saved

        def rule(
            arrays: Sequence[Any], grads: Sequence[Any], checked: GradientChecker
        ) -> Gradients:
            found = self.rule(_restored_context(context, noted.unflatten(arrays)), *grads)
            return checked.from_tuple(found, call.operator.arguments.num_passed(call))

        return _run_backward_rule(call, self.rule, results, noted, cts, args, rule)


def _needs_input_grad(call: OperatorPrimitive, active: Sequence[bool]) -> tuple[Any, ...]:
    """`needs_input_grad` of a call."""
    arguments = call.operator.arguments
    marks = arguments.unflatten(call, active, lambda _: False)
    passed = marks[: arguments.num_passed(call)]
    return tuple([[bool(on) for on in m] if isinstance(m, list) else bool(m) for m in passed])


def _run_backward_rule(
    call: OperatorPrimitive,
    registration: Registration,
    results: OutputTypes,
    saved: Residuals,
    cts: Sequence[Any],
    args: Sequence[Any],
    rule: Any,
) -> Gradients:
    """What `rule(saved arrays, gradients of the results, check)` gives, in the trace that is on.

    `cts` has None for a result that has no gradient.
    """
    given = [ct for ct in cts if ct is not None]
    marks: list[bool] = []

    def body(*xs: Any) -> list[Any]:
        own = xs[: len(given)]
        rest = iter(own)
        grads = results.group_lists([next(rest) if ct is not None else None for ct in cts])
        held = xs[len(given) : len(given) + len(saved.arrays)]
        found = rule(held, grads, GradientChecker(call, registration, xs[len(given) + len(held) :]))
        marks.extend(g is not None for g in found)
        return [g for g in found if g is not None]

    operands = [*given, *saved.arrays, *args]
    found, _ = inline_rule(f"{call.operator.__name__}_backward", body, operands)
    rest = iter(found)
    return [next(rest) if on else None for on in marks]


def backward_rule_of(call: OperatorPrimitive) -> BackwardByName | BackwardByContext | None:
    """The backward rule that holds now; None if there is none.

    Raises RegistrationError where only half of one was registered.
    """
    operator = call.operator
    explicit = get_rule(operator, AUTOGRAD_RULE)
    if explicit is not None:
        return BackwardByContext(explicit)
    saving, backward = get_rule(operator, SAVE_RULE), get_rule(operator, BACKWARD_RULE)
    if saving is not None and backward is not None:
        return BackwardByName(saving, backward)
    found = saving or backward
    if found is None:
        return None
    other = BACKWARD_RULE if found is saving else SAVE_RULE
    raise RegistrationError(
        f"{operator.qualname}: save_for_backward and backward must both be registered for a "
        f"derivative; got {found.kind} alone, registered at {found.location}, and no {other}",
        fix=f"Register the other half: @{operator.__name__}.{other}.",
        source=found.source,
    )
