"""The hooks that a walk runs on gradients, shown to them as Variables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from functx import ops
from functx.autograd.gradients import (
    Gradient,
    add_to_grad,
    array_of_gradient,
    is_written,
    record,
)
from functx.autograd.hooks import NodeHooks, hook_name
from functx.autograd.nodes import AccumulateGrad, Node
from functx.autograd.recorded import Recorded
from functx.autograd.variable import Variable, make_variable, variable_of_literal
from functx.core.binding import bind
from functx.core.errors import AutogradError, GradientTypeError, HookResultError, type_name
from functx.core.primitive import Primitive
from functx.core.program import Literal
from functx.core.tracer import aval_of, current_builder
from functx.core.types import ShapedArray, is_complex
from functx.ops.operands import literal

_or = ops.Or()
_conj = ops.Conj()
_not_equal = ops.Ne()


class HookRunner:
    """Runs the hooks of nodes on the gradients of a walk, and checks what they return.

    With `has_recorded_values` the values of gradients are Recorded, else arrays that `bind` takes:
    Variables where the walk is differentiated, traced values where it is batched.
    """

    has_recorded_values: bool

    def bind(self, primitive: Primitive, args: Sequence[Any]) -> Any:
        """The output of an operation on values of the walk."""
        return record(primitive, args) if self.has_recorded_values else bind(primitive, args)

    def variable_of(self, gradient: Gradient) -> Any:
        """A gradient as the Variable that hooks and users see, which they may write to."""
        x = gradient.value
        if type(x) is Recorded:
            x = make_variable(x, None)
        elif type(x) is Literal:
            x = variable_of_literal(x)
        elif isinstance(x, Variable):
            x, dual = make_variable(x.read(), x.edge), x._dual
            x._dual = dual
        return bind(_conj, (x,)) if is_complex(x.dtype) else x

    def gradient_of(self, x: Any) -> Gradient:
        """The gradient that a hook or a user gave."""
        if type(x) is Literal:
            return Gradient(x if self.has_recorded_values else variable_of_literal(x))
        if is_complex(x.dtype):
            x = bind(_conj, (x,))
        return Gradient(x.read() if self.has_recorded_values else x)

    def run_value_hooks(
        self, node: Node, hooks: NodeHooks, gradients: list[Gradient | None]
    ) -> list[Gradient | None]:
        """The gradients after the hooks of the values; adds them to `.grad` of those that retain it."""
        gradients = list(gradients)
        for index, table in list(hooks.values.items()):
            for hook in table.each():
                gradient = gradients[index]
                if gradient is None:
                    break
                shown = self.variable_of(gradient)
                value = hook(shown)
                if (value is None or value is shown) and not is_written(shown):
                    continue
                label = f"hook `{hook_name(hook)}`"
                value = shown if value is None else value
                gradients[index] = self.replaced(label, value, node.out_avals[index], gradient)
        for index, reference in list(hooks.retained.items()):
            x, gradient = reference(), gradients[index]
            if x is not None and gradient is not None and x.is_current:
                if current_builder.get() is not None:
                    raise AutogradError(
                        "retain_grad: a walk for a batch of gradients (is_grads_batched) must not keep "
                        f"gradients; got one that passes {x!r}",
                        fix="Pass the value as an input of grad.",
                    )
                # Always a new object: the one before may have a history.
                add_to_grad(x, self.variable_of(gradient), create_graph=True)
        return gradients

    def replaced(
        self, label: str, value: object, aval: ShapedArray, before: Gradient | None
    ) -> Gradient:
        """The gradient that a hook returned in place of `before`.

        Where that was masked, the new one is masked as long as the hook leaves it zero.
        """
        x = array_of_gradient(value, label)
        if x.shape != aval.shape or x.dtype != aval.dtype:
            raise HookResultError(
                f"{label}: a gradient must have the shape and dtype of its value; got "
                f"{aval_of(x)!r} for {aval!r}",
                fix="Return one of the type of the gradient that the hook gets, or None.",
            )
        gradient = self.gradient_of(x)
        if before is None or before.mask is None:
            return gradient
        changed = self.bind(_not_equal, (gradient.value, literal(0, aval.dtype)))
        return gradient._replace(mask=self.bind(_or, (before.mask, changed)))

    def run_prehooks(
        self, node: Node, hooks: NodeHooks, gradients: list[Gradient | None]
    ) -> list[Gradient | None]:
        for hook in hooks.pre.each():
            given = self.variables_of(gradients)
            values = hook(given)
            if values is None and any(map(is_written, given)):
                values = given
            if values is not None:
                label = f"prehook `{hook_name(hook)}`"
                if not isinstance(values, tuple):
                    raise GradientTypeError(
                        f"{label}: the result must be a tuple of gradients or None; got "
                        f"{type_name(values)}",
                        fix="Return a tuple, (gradient,) for one output.",
                    )
                gradients = self.all_replaced(label, values, given, node.out_avals, gradients)
        return gradients

    def run_posthooks(
        self,
        node: Node,
        hooks: NodeHooks,
        results: list[Gradient | None],
        gradients: list[Gradient | None],
    ) -> list[Gradient | None]:
        avals = [None if e is None else e[0].out_avals[e[1]] for e in node.edges]
        outputs = self.variables_of(gradients)
        for hook in hooks.post.each():
            given = self.variables_of(results)
            values = hook(given, outputs)
            if values is None and any(map(is_written, given)):
                values = given
            if values is not None:
                values = values if isinstance(values, tuple) else (values,)
                label = f"posthook `{hook_name(hook)}`"
                results = self.all_replaced(label, values, given, avals, results)
        return results

    def variables_of(self, gradients: Sequence[Gradient | None]) -> tuple[Variable | None, ...]:
        """Gradients as the Variables that hooks and users see."""
        return tuple([None if g is None else self.variable_of(g) for g in gradients])

    def all_replaced(
        self,
        label: str,
        values: tuple[Any, ...],
        given: Sequence[Variable | None],
        avals: Sequence[ShapedArray | None],
        before: list[Gradient | None],
    ) -> list[Gradient | None]:
        """The gradients that a hook of a node returned in place of `before`, which it got as `given`."""
        if len(values) != len(before):
            raise HookResultError(
                f"{label}: there must be a gradient or None for each of {len(before)}; got "
                f"{len(values)}",
                fix="Return as many gradients as the hook gets, or None.",
            )
        results: list[Gradient | None] = []
        for value, shown, aval, old in zip(values, given, avals, before, strict=True):
            if value is shown and not is_written(shown):
                results.append(old)
            elif value is None or aval is None:
                results.append(None)
            else:
                results.append(self.replaced(label, value, aval, old))
        return results

    def run_post_accumulate_hooks(self, node: AccumulateGrad, hooks: NodeHooks) -> None:
        for hook in hooks.post_accumulate.each():
            result = hook(node.variable)
            if result is not None:
                raise HookResultError(
                    f"post-accumulate hook `{hook_name(hook)}`: it must return None; got "
                    f"{type_name(result)}",
                    fix="Write to x.grad in place of returning a gradient.",
                )
