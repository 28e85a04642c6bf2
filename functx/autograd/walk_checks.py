"""Differentiation on Variables for `gradcheck.py`, which imports this when a check runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

from functx import ops
from functx.autograd.backward import walk_backward
from functx.autograd.forward_ad import dual_level, make_dual, unpack_dual
from functx.autograd.functional_calls import gradients, zeros_like
from functx.autograd.variable import Variable, as_variable
from functx.core import tree
from functx.core.errors import ArgumentError, AutogradError, EmptyInputsError, GradientCountError
from functx.core.tracer import Tracer
from functx.core.typing import Function, PyTree, Value
from functx.testing.gradcheck import GradcheckOptions, GradientCheck, random_like
from functx.testing.numerical_derivatives import Differentiation


class Walks(Differentiation):
    """Differentiation in Variables that require gradients, by walks and dual numbers."""

    def varies(self, x: object) -> bool:
        return isinstance(x, Variable) and x.requires_grad

    def argument(self, x: Any) -> Any:
        return x if isinstance(x, Tracer) else Variable(x, requires_grad=True)

    def vjp(self, flat: Callable[..., list[Value]], xs: Sequence[Any]) -> tuple[list[Value], Any]:
        leaves = [self.argument(x) for x in xs]
        outs = flat(*leaves)

        def pullback(cts: Sequence[Any], is_batched: bool = False) -> list[Value]:
            # Cotangents are conjugates of the gradients that users see.
            grads = [None if ct is None else ops.conj_if_complex(as_variable(ct)) for ct in cts]
            if any([g is None for g in grads]):
                roots = list(zip(outs, grads, strict=True))
                results = walk_backward(roots, True, False, leaves, accumulate=False)
            else:
                results = gradients(outs, leaves, grads, create_graph=False, is_batched=is_batched)
            return [
                zeros_like(x) if g is None else ops.conj_if_complex(g)
                for g, x in zip(results, leaves, strict=True)
            ]

        return outs, pullback

    def batched(self, pullback: Any, cts: Sequence[Any]) -> Sequence[Value]:
        batches: Sequence[Value] = pullback(cts, is_batched=True)
        return batches

    def jvp(
        self, flat: Callable[..., list[Value]], xs: Sequence[Any], tangents: Sequence[Any]
    ) -> Sequence[Value]:
        with dual_level():
            duals = [
                self.argument(x) if t is None else make_dual(self.argument(x), Variable(t))
                for x, t in zip(xs, tangents, strict=True)
            ]
            parts = [unpack_dual(y) for y in flat(*duals)]
            return [zeros_like(y) if t is None else t for y, t in parts]


def gradient_of(check: GradientCheck, grad_outputs: PyTree) -> tuple[Function, list[Variable]]:
    """The gradient of the function of a check, and its arguments: inputs and `grad_outputs`."""
    xs = [Variable(x, requires_grad=True) for x in check.xs]
    if not check.inexact_outputs:
        raise ArgumentError(
            f"gradgradcheck({check.name}): at least one output must require a gradient; got none"
        )
    values = (
        [random_like(out, seed) for seed, out in enumerate(check.flat(*xs))]
        if grad_outputs is None
        else tree.leaves(grad_outputs)
    )
    if len(values) != len(check.inexact_outputs):
        raise GradientCountError(
            "gradgradcheck: grad_outputs must have an entry for each output that requires a "
            f"gradient; got {len(values)} for {len(check.inexact_outputs)}"
        )

    def gradient(*arguments: Any) -> list[Any]:
        inputs, cts = arguments[: len(xs)], arguments[len(xs) :]
        slopes = gradients(check.flat(*inputs), inputs, cts, create_graph=True)
        return [zeros_like(x) if g is None else g for g, x in zip(slopes, inputs, strict=True)]

    gradient.__name__ = f"the gradient of {check.name}"
    return gradient, [*xs, *[Variable(x, requires_grad=True) for x in values]]


def options_of(function: str, options: dict[str, Any]) -> GradcheckOptions:
    """The options of a check; ArgumentError for an unknown name."""
    names = [field.name for field in fields(GradcheckOptions)]
    unknown = [name for name in options if name not in names]
    if unknown:
        raise ArgumentError(
            f"{function}: the options are {', '.join(names)}; got {', '.join(unknown)}"
        )
    return GradcheckOptions(**options)


def check_inputs(function: str, inputs: PyTree) -> None:
    """Raise an error unless an input requires a gradient, or if one repeats elements."""
    varying = [
        (i, x)
        for i, x in enumerate(tree.leaves(inputs))
        if isinstance(x, Variable) and x.requires_grad
    ]
    if not varying:
        raise EmptyInputsError(
            f"{function}: at least one input must require a gradient; got none",
            fix="Make it with functx.autograd.Variable(x, requires_grad=True).",
        )
    for i, x in varying:
        if x.size and 0 in [s for s, n in zip(x.strides_(), x.shape, strict=True) if n > 1]:
            raise AutogradError(
                f"{function}: each element of an input must have memory of its own; got input {i}, "
                "which repeats elements (a stride of 0)",
                fix="Pass a copy of it.",
            )
