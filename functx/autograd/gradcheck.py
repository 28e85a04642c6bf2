"""`gradcheck` and `gradgradcheck` of functions that run on Variables: walks compared with differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import jax

from functx import ops
from functx.autograd.forward_ad import dual_level, make_dual, unpack_dual
from functx.autograd.functional_calls import gradients, zeros_like
from functx.autograd.variable import Variable, as_variable
from functx.core import tree
from functx.core.errors import (
    ArgumentError,
    AutogradError,
    EmptyInputsError,
    GradcheckError,
    OnceDifferentiableError,
)
from functx.core.tracer import Tracer
from functx.core.typing import Function, PyTree, Value
from functx.testing.gradcheck import GradcheckOptions, GradientCheck, random_like, run_gradcheck
from functx.testing.numerical_derivatives import Differentiation


class Walks(Differentiation):
    """Differentiation by walks and dual numbers: of Variables that require gradients."""

    def varies(self, x: Any) -> bool:
        return isinstance(x, Variable) and x.requires_grad

    def argument(self, x: Any) -> Any:
        return x if isinstance(x, Tracer) else Variable(x, requires_grad=True)

    def vjp(self, flat: Callable[..., list[Value]], xs: Sequence[Any]) -> tuple[list[Value], Any]:
        leaves = [self.argument(x) for x in xs]
        outs = flat(*leaves)

        def pullback(cts: Sequence[Any], is_batched: bool = False) -> list[Value]:
            pairs = [(y, ct) for y, ct in zip(outs, cts, strict=True) if ct is not None]
            # Cotangents are conjugates of the gradients that users see.
            found = gradients(
                [y for y, _ in pairs],
                leaves,
                [ops.conj_if_complex(as_variable(ct)) for _, ct in pairs],
                create_graph=False,
                is_batched=is_batched,
            )
            return [
                zeros_like(x) if g is None else ops.conj_if_complex(g)
                for g, x in zip(found, leaves, strict=True)
            ]

        return outs, pullback

    def batched(self, pullback: Any, cts: Sequence[Any]) -> Sequence[Value]:
        found: Sequence[Value] = pullback(cts, is_batched=True)
        return found

    def jvp(
        self, flat: Callable[..., list[Value]], xs: Sequence[Any], tangents: Sequence[Any]
    ) -> Sequence[Value]:
        with dual_level():
            duals = [
                Variable(x) if t is None else make_dual(Variable(x), Variable(t))
                for x, t in zip(xs, tangents, strict=True)
            ]
            parts = [unpack_dual(y) for y in flat(*duals)]
            return [zeros_like(y) if t is None else t for y, t in parts]


def gradcheck(func: Function, inputs: PyTree, **options: Any) -> bool:
    """Compare the Jacobians of `func` by walks with central differences.

    This is `functx.testing.gradcheck`, with its options and checks, for a function that runs on
    Variables: those of `inputs` that require gradients vary, all others are passed as they are.
    Outputs that do not require gradients are not compared. Forward mode is that of dual numbers. With
    `check_undefined_grad`, a rule that raises for a gradient of None is a failure. The inputs should
    be float64 or complex128, made inside `jax.enable_x64()`.

    Returns True. On a mismatch raises GradcheckError, or returns False with
    `raise_exception=False`. Raises EmptyInputsError (a ValueError) if no input requires a gradient,
    AutogradError for one that repeats elements of its memory, and GradcheckModeError and ArgumentError as `functx.testing.gradcheck` does.

    >>> import jax
    >>> from functx.autograd import Variable, gradcheck
    >>> with jax.enable_x64():
    ...     gradcheck(lambda x: x * x, Variable([1.0, 2.0], requires_grad=True))
    True
    """
    chosen = options_of("gradcheck", options)
    check_inputs("gradcheck", inputs)
    return run_gradcheck(func, inputs, chosen, Walks())


def gradgradcheck(
    func: Function, inputs: PyTree, grad_outputs: PyTree = None, **options: Any
) -> bool:
    """Compare the second derivatives of `func`, by walks of walks, with central differences.

    This is `gradcheck` of the function from the inputs and `grad_outputs` to the gradients.
    `grad_outputs` are the gradients of the outputs that require some, by default random. Options,
    results and errors are those of `gradcheck`; a gradient that is marked `once_differentiable` is a
    failure, too.

    >>> import jax
    >>> from functx.autograd import Variable, gradgradcheck
    >>> with jax.enable_x64():
    ...     gradgradcheck(lambda x: x**3, Variable([1.0, 2.0], requires_grad=True))
    True
    """
    chosen = options_of("gradgradcheck", options)
    check_inputs("gradgradcheck", inputs)
    with jax.enable_x64():
        check = GradientCheck(func, inputs, None, Walks())
        xs = [Variable(x, requires_grad=True) for x in check.xs]
        if not check.inexact_outputs:
            raise ArgumentError(
                f"gradgradcheck({check.name}): at least one output must require a gradient; got none"
            )
        given = (
            [random_like(out, seed) for seed, out in enumerate(check.flat(*xs))]
            if grad_outputs is None
            else tree.leaves(grad_outputs)
        )
        cts = [Variable(x, requires_grad=True) for x in given]

        def gradient(*values: Any) -> list[Any]:
            inputs, cts = values[: len(xs)], values[len(xs) :]
            found = gradients(check.flat(*inputs), inputs, cts, create_graph=True)
            return [zeros_like(x) if g is None else g for g, x in zip(found, inputs, strict=True)]

        gradient.__name__ = f"the gradient of {check.name}"
        try:
            return run_gradcheck(gradient, (*xs, *cts), chosen, Walks())
        except OnceDifferentiableError as error:
            if not chosen.raise_exception:
                return False
            raise GradcheckError(
                f"gradgradcheck({check.name}): the gradient must be differentiable; got {error}"
            ) from error


def options_of(function: str, options: dict[str, Any]) -> GradcheckOptions:
    """The options of a check; ArgumentError for a name that is none."""
    names = [field.name for field in fields(GradcheckOptions)]
    unknown = [name for name in options if name not in names]
    if unknown:
        raise ArgumentError(
            f"{function}: the options are {', '.join(names)}; got {', '.join(unknown)}"
        )
    return GradcheckOptions(**options)


def check_inputs(function: str, inputs: PyTree) -> None:
    """Raise an error unless an input requires a gradient, and each that does has its own elements."""
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
