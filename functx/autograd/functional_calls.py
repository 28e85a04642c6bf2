"""Calls of functions by `autograd.functional`: their arguments, results and gradients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

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
from functx.core.typing import Function
from functx.transforms.argument_names import check_callable


@contextmanager
def gradients_enabled() -> Iterator[None]:
    """A context in which operations get nodes, whatever modes the caller is in."""
    with inference_mode(False), enable_grad():
        yield


class FunctionalCall:
    """A call of `func` by the function `name`, on inputs made anew, so that captured copies are constant.

    With `create_graph`, inputs with a history keep it. With `strict`, each output must depend on
    something that requires a gradient.
    """

    def __init__(self, name: str, func: Function, inputs: Any, create_graph: bool, strict: bool):
        check_callable(func, name)
        self.name, self.create_graph, self.strict = name, create_graph, strict
        given, self.is_single_input = arrays(name, "inputs", inputs)
        refuse_traced(name, given)
        self.inputs = [
            alias(x) if create_graph and depends(x) else Variable(x, is_inexact(x.dtype))
            for x in given
        ]
        outputs = func(*self.inputs)
        self.outputs, self.is_single_output = arrays(name, "the result of func", outputs)
        for i, y in enumerate(self.outputs):
            if not depends(y):
                self.refuse(f"output {i}, which depends on no input")

    def refuse(self, got: str) -> None:
        """Raises IndependenceError with `strict`."""
        if self.strict:
            raise IndependenceError(
                f"{self.name}: with strict=True, outputs and inputs must depend on each other; got {got}",
                fix="Leave strict out, which gives zeros.",
            )

    def scalar_gradient(self) -> list[Any]:
        """The differentiable gradient of the output, which must be one element; None for zeros."""
        check_scalar(self.name, self.outputs, self.is_single_output)
        found = gradients(self.outputs, self.inputs, [None], create_graph=True)
        self.check_gradient(found)
        return found

    def check_gradient(self, found: Sequence[Any]) -> None:
        """Checks that gradients in the inputs depend on something, with `strict`."""
        for j, g in enumerate(found):
            if g is None:
                self.refuse(f"input {j}, on which no output depends")
            elif not depends(g):
                self.refuse(f"a derivative in input {j} that depends on no input")

    def filled(
        self, found: Sequence[Any], likes: Sequence[Any], kind: str, order: str
    ) -> list[Any]:
        """Derivatives, one for each of `likes`, with zeros for None.

        Errors name the derivative `order`, and the number of the input or output, its `kind`.
        """
        for i, g in enumerate(found):
            if g is None:
                self.refuse(
                    f"{kind} {i}, for which the {order} is zero since nothing depends on it"
                )
            elif self.create_graph and not depends(g):
                self.refuse(f"a {order} for {kind} {i} that depends on no input")
        return [zeros_like(x) if g is None else g for g, x in zip(found, likes, strict=True)]

    def results(self, values: Sequence[Any], is_single: bool) -> Any:
        """Values as the user gets them: one or a tuple, without history unless `create_graph`."""
        if not self.create_graph:
            values = [x.detach() for x in values]
        return values[0] if is_single else tuple(values)


def arrays(function: str, argument: str, values: Any) -> tuple[list[Any], bool]:
    """An array or a tuple of arrays as a list, and whether it is one; traced values stay as they are."""
    is_single = not isinstance(values, tuple)
    found = [values] if is_single else [*values]
    for i, x in enumerate(found):
        if not isinstance(x, (Tracer, jax.Array, np.ndarray, np.generic)):
            place = "" if is_single else f" at place {i} of the tuple"
            raise FunctionalTypeError(
                f"{function}: {argument} must be an array or a tuple of arrays; got "
                f"{type_name(x)}{place}",
                fix="Make an array of numbers with functx.autograd.Variable(x).",
            )
    return [x if isinstance(x, Tracer) else as_variable(x) for x in found], is_single


def vector_for(name: str, v: Any, likes: Sequence[Any], kind: str) -> list[Any]:
    """The vector `v` with an entry for each of `likes`, which are of the `kind` input or output.

    It may be left out for one of a single element: the entry is None.
    """
    if v is None:
        if len(likes) != 1 or likes[0].size != 1:
            shown = ", ".join([repr(x.atom.aval) for x in likes])
            raise FunctionalArgumentError(
                f"{name}: v can be left out only for one {kind} of one element; got {shown}",
                fix=f"Pass a vector with the shape of each {kind}.",
            )
        return [None]
    entries, _ = arrays(name, "v", v)
    if len(entries) != len(likes):
        raise FunctionalArgumentError(
            f"{name}: v must have an entry for each {kind}, {len(likes)}; got {len(entries)}"
        )
    for i, (x, like) in enumerate(zip(entries, likes, strict=True)):
        if x.shape != like.shape:
            raise FunctionalArgumentError(
                f"{name}: entry {i} of v must have the shape {like.shape} of its {kind}; "
                f"got {x.shape}"
            )
    return entries


def depends(x: Any) -> bool:
    """Whether a value may have a gradient; None has none."""
    if x is None:
        return False
    return x.requires_grad if isinstance(x, Variable) else is_inexact(x.dtype)


def zeros_like(x: Any) -> Any:
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
    roots = [(y, ct) for y, ct in zip(outputs, cotangents, strict=True) if depends(y)]
    wanted = [x for x in inputs if depends(x)]
    if not roots or not wanted:
        return [None] * len(inputs)
    found = iter(
        grad(
            [y for y, _ in roots],
            wanted,
            [ct for _, ct in roots],
            retain_graph=True,
            create_graph=create_graph,
            allow_unused=True,
            is_grads_batched=is_batched,
        )
    )
    return [next(found) if depends(x) else None for x in inputs]


def pushed_forward(
    outputs: Sequence[Any], inputs: Sequence[Any], vector: Sequence[Any], create_graph: bool
) -> tuple[list[Any], list[Any]]:
    """The gradients of `outputs` along cotangents, and from them the tangents along `vector`.

    The gradients are linear in the cotangents, so their derivative in these is the transposed map.
    """
    cts = [Variable(zeros_like(x), requires_grad=True) if depends(x) else None for x in outputs]
    pulled = gradients(outputs, inputs, cts, create_graph=True)
    return pulled, gradients(pulled, cts, vector, create_graph)


def basis_of(x: Any) -> Any:
    """The unit arrays with the shape of `x`, along a new leading axis."""
    return np.eye(x.size, dtype=x.dtype).reshape(x.size, *x.shape)


def reverse_rows(y: Any, inputs: Sequence[Any], create_graph: bool, vectorize: bool) -> list[Any]:
    """The Jacobian of `y` in each of the inputs, with all rows along one axis; None for zeros."""
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
