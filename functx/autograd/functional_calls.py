"""Calls of functions by `autograd.functional`: their arguments, results and gradients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import jax
import numpy as np

from functx import numpy as fnp
from functx import ops
from functx.autograd.backward import grad, refuse_traced
from functx.autograd.forward_ad import alias
from functx.autograd.modes import enable_grad, inference_mode
from functx.autograd.variable import Variable, as_variable
from functx.core.errors import (
    FunctionalArgumentError,
    FunctionalTypeError,
    IndependenceError,
    type_name,
)
from functx.core.tracer import Tracer
from functx.core.types import is_inexact
from functx.core.typing import ArrayLike, Function
from functx.transforms.argument_names import check_callable

ArrayOrTuple: TypeAlias = "ArrayLike | Sequence[ArrayLike]"
"""An array, or a tuple of arrays."""


@contextmanager
def gradients_enabled() -> Iterator[None]:
    """A context in which operations get nodes, in all modes of the caller."""
    with inference_mode(False), enable_grad():
        yield


class FunctionalCall:
    """A call of `func` on new Variables of its inputs, for the function `name`.

    An input that `func` captures is another Variable, and constant. With `create_graph`, inputs keep
    their history. With `strict`, each output must depend on a value that requires a gradient.
    """

    def __init__(
        self, name: str, func: Function, inputs: ArrayOrTuple, create_graph: bool, strict: bool
    ):
        check_callable(func, name)
        self.name, self.create_graph, self.strict = name, create_graph, strict
        arrays, self.is_single_input = as_arrays(name, "inputs", inputs)
        refuse_traced(name, arrays)
        self.inputs = [
            alias(x) if create_graph and may_have_gradient(x) else Variable(x, is_inexact(x.dtype))
            for x in arrays
        ]
        outputs = func(*self.inputs)
        self.outputs, self.is_single_output = as_arrays(name, "the result of func", outputs)
        for i, y in enumerate(self.outputs):
            if not may_have_gradient(y):
                self.refuse_if_strict(f"output {i}, which depends on no input")

    def refuse_if_strict(self, got: str) -> None:
        """Raises IndependenceError with `strict`."""
        if self.strict:
            raise IndependenceError(
                f"{self.name}: with strict=True, outputs and inputs must depend on each other; got {got}",
                fix="Leave strict out, which gives zeros.",
            )

    def scalar_gradient(self) -> list[Any]:
        """The differentiable gradient of the output, which must be one element; None for zeros."""
        check_scalar(self.name, self.outputs, self.is_single_output)
        slopes = gradients(self.outputs, self.inputs, [None], create_graph=True)
        self.check_gradient(slopes)
        return slopes

    def check_gradient(self, slopes: Sequence[Any]) -> None:
        """With `strict`, raise IndependenceError for a gradient that depends on no input."""
        for j, g in enumerate(slopes):
            if g is None:
                self.refuse_if_strict(f"input {j}, on which no output depends")
            elif not may_have_gradient(g):
                self.refuse_if_strict(f"a derivative in input {j} that depends on no input")

    def results_with(self, derivatives: Sequence[Any], kind: str, order: str) -> tuple[Any, Any]:
        """The outputs, and derivatives for each input or output, the `kind`, with zeros for None.

        Errors name the `order` of the derivative.
        """
        templates, is_single = self.outputs, self.is_single_output
        if kind == "input":
            templates, is_single = self.inputs, self.is_single_input
        for i, g in enumerate(derivatives):
            if g is None:
                self.refuse_if_strict(
                    f"{kind} {i}, for which the {order} is zero since nothing depends on it"
                )
            elif self.create_graph and not may_have_gradient(g):
                self.refuse_if_strict(f"a {order} for {kind} {i} that depends on no input")
        pairs = zip(derivatives, templates, strict=True)
        values = [zeros_like(x) if g is None else g for g, x in pairs]
        outputs = self.results(self.outputs, self.is_single_output)
        return outputs, self.results(values, is_single)

    def results(self, values: Sequence[Any], is_single: bool) -> Any:
        """Values as the user gets them: one or a tuple, without history unless `create_graph`."""
        if not self.create_graph:
            values = [x.detach() for x in values]
        return values[0] if is_single else tuple(values)


def as_arrays(function: str, argument: str, values: Any) -> tuple[list[Any], bool]:
    """An array or a tuple of arrays as a list of Variables, and whether it is one array.

    Traced values stay as they are.
    """
    is_single = not isinstance(values, tuple)
    arrays = [values] if is_single else [*values]
    for i, x in enumerate(arrays):
        if not isinstance(x, (Tracer, jax.Array, np.ndarray, np.generic)):
            place = "" if is_single else f" at place {i} of the tuple"
            raise FunctionalTypeError(
                f"{function}: {argument} must be an array or a tuple of arrays; got "
                f"{type_name(x)}{place}",
                fix="Make an array of numbers with functx.autograd.Variable(x).",
            )
    return [x if isinstance(x, Tracer) else as_variable(x) for x in arrays], is_single


def vector_for(name: str, v: ArrayOrTuple | None, templates: Sequence[Any], kind: str) -> list[Any]:
    """The entries of the vector `v`, one for each of `templates`, of the `kind` input or output.

    For one template of a single element, `v` may be left out: the entry is None.
    """
    if v is None:
        if len(templates) != 1 or templates[0].size != 1:
            shown = ", ".join([repr(x.atom.aval) for x in templates])
            raise FunctionalArgumentError(
                f"{name}: v can be left out only for one {kind} of one element; got {shown}",
                fix=f"Pass a vector with the shape of each {kind}.",
            )
        return [None]
    entries, _ = as_arrays(name, "v", v)
    if len(entries) != len(templates):
        raise FunctionalArgumentError(
            f"{name}: v must have an entry for each {kind}, {len(templates)}; got {len(entries)}"
        )
    for i, (x, template) in enumerate(zip(entries, templates, strict=True)):
        if x.shape != template.shape:
            raise FunctionalArgumentError(
                f"{name}: entry {i} of v must have the shape {template.shape} of its {kind}; "
                f"got {x.shape}"
            )
    return entries


def may_have_gradient(x: Any) -> bool:
    """Whether a value may have a gradient; None has none."""
    if x is None:
        return False
    return x.requires_grad if isinstance(x, Variable) else is_inexact(x.dtype)


def zeros_like(x: Any) -> Variable:
    """Zeros of the type of `x`."""
    return as_variable(ops.zeros_like(x.atom.aval))


def check_scalar(function: str, outputs: Sequence[Any], is_single: bool) -> None:
    """Raise FunctionalArgumentError unless the outputs are one array of one element."""
    if not is_single or outputs[0].size != 1:
        shown = repr(outputs[0].atom.aval) if is_single else f"a tuple of {len(outputs)}"
        raise FunctionalArgumentError(
            f"{function}: func must return one array of one element; got {shown}",
            fix="Reduce the result to a number (y.sum()).",
        )


def gradients(
    outputs: Sequence[Any],
    inputs: Sequence[Any],
    cotangents: Sequence[Any],
    create_graph: bool,
    is_batched: bool = False,
) -> list[Any]:
    """The gradients in `inputs`, None where no output depends on them; an output may be None."""
    roots = [(y, ct) for y, ct in zip(outputs, cotangents, strict=True) if may_have_gradient(y)]
    differentiable = [x for x in inputs if may_have_gradient(x)]
    if not roots or not differentiable:
        return [None] * len(inputs)
    results = iter(
        grad(
            [y for y, _ in roots],
            differentiable,
            [ct for _, ct in roots],
            retain_graph=True,
            create_graph=create_graph,
            allow_unused=True,
            is_grads_batched=is_batched,
        )
    )
    return [next(results) if may_have_gradient(x) else None for x in inputs]


def pushed_forward(
    outputs: Sequence[Any], inputs: Sequence[Any], vector: Sequence[Any], create_graph: bool
) -> tuple[list[Any], list[Any]]:
    """The gradients of `outputs` along cotangents, and from them the tangents along `vector`.

    The gradients are linear in the cotangents, so their derivative in these is the transposed map.
    """
    cts = [
        Variable(zeros_like(x), requires_grad=True) if may_have_gradient(x) else None
        for x in outputs
    ]
    pulled = gradients(outputs, inputs, cts, create_graph=True)
    return pulled, gradients(pulled, cts, vector, create_graph)


def basis_of(x: Any) -> Any:
    """The unit arrays with the shape of `x`, along a new leading axis."""
    return np.eye(x.size, dtype=x.dtype).reshape(x.size, *x.shape)


def reverse_rows(y: Any, inputs: Sequence[Any], create_graph: bool, vectorize: bool) -> list[Any]:
    """The Jacobian of `y` in each input, rows along the first axis; None for zeros."""
    basis = basis_of(y)
    if vectorize and y.size:
        return gradients([y], inputs, [basis], create_graph, is_batched=True)
    rows = [gradients([y], inputs, [unit], create_graph) for unit in basis]
    return [
        None
        if all([row[j] is None for row in rows])
        else fnp.stack([zeros_like(x) if row[j] is None else row[j] for row in rows])
        for j, x in enumerate(inputs)
    ]
