"""The context of a call of a `Function`, and the values that it saves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import ref

import numpy as np

from functx.autograd.nodes import Edge, Node, SavedValue, freed_error
from functx.autograd.saved import PackedValue, load_variable, pack_saved
from functx.autograd.variable import Variable, as_variable
from functx.core import tree
from functx.core.errors import FunctionContextError, GradientTypeError, type_name
from functx.core.tracer import aval_of
from functx.core.types import is_inexact
from functx.core.typing import Value
from functx.custom.operators.derivatives import AutogradContext
from functx.custom.rule_tracing import is_array


class CallState:
    """The state of a call of a `Function`: its marks, its node, and the structure of its output.

    `node()` is the node of the call, None without one. `out_tree` is the structure of the output of a
    NestedIOFunction.
    """

    __slots__ = ("dirty", "materialize", "name", "node", "non_differentiable", "out_tree")

    def __init__(self, name: str):
        self.name = name
        self.dirty: tuple[Any, ...] = ()
        self.non_differentiable: tuple[Any, ...] = ()
        self.materialize = True
        self.node: Callable[[], Node | None] = lambda: None
        self.out_tree: Any = None

    def check_dirty(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Raise FunctionContextError for a dirty array that is not both an input and an output."""
        for x in self.dirty:
            for role, arrays in (("an input", inputs), ("an output", outputs)):
                if not is_among(x, arrays):
                    raise FunctionContextError(
                        f"{self.name}: an array that is marked dirty must be an input and an output; "
                        f"got {aval_of(x)!r}, which is not {role}",
                        fix="Mark the inputs that forward writes to, and return them.",
                    )


class FunctionContext(AutogradContext):
    """The first argument of the rules of a `Function`: its saved arrays, marks and attributes."""

    def __init__(self, name: str, needs_input_grad: tuple[bool, ...]):
        super().__init__(needs_input_grad)
        self.__dict__["_functx_saved_forward"] = None
        self.__dict__["_functx_state"] = CallState(name)

    @property
    def saved_tensors(self) -> tuple[Value, ...]:
        """The arrays that were passed to `save_for_backward`; in `jvp`, to `save_for_forward`.

        Raises SavedValueError if one was written to since, or if the walk before freed them.
        """
        saved, state = self.__dict__["_functx_saved"], state_of(self)
        if saved is None:
            raise freed_error(state.name)
        return tuple(load_values(saved, state.node(), state.name))

    def save_for_backward(self, *arrays: Value) -> None:
        """Save arrays, or None, for `backward`, which reads them as `saved_tensors`.

        Raises GradientTypeError for anything else.
        """
        self.__dict__["_functx_saved"] = check_arrays(self, arrays, "save_for_backward")

    def save_for_forward(self, *arrays: Value) -> None:
        """Save arrays, or None, for `jvp`, which reads them as `saved_tensors`."""
        self.__dict__["_functx_saved_forward"] = check_arrays(self, arrays, "save_for_forward")

    def mark_dirty(self, *arrays: Value) -> None:
        """Declare the inputs that `forward` writes to, each of which it returns."""
        state_of(self).dirty = arrays

    def mark_non_differentiable(self, *arrays: Value) -> None:
        """Declare the outputs without a gradient, for which `backward` gets zeros."""
        state_of(self).non_differentiable = check_arrays(
            self,
            arrays,
            "mark_non_differentiable",
            "Pass the arrays alone: other outputs have none.",
        )

    def set_materialize_grads(self, value: bool) -> None:
        """Set whether a missing gradient is zeros, as by default, or None."""
        state_of(self).materialize = bool(value)


def state_of(context: FunctionContext) -> CallState:
    """The state of the call of a context."""
    return context.__dict__["_functx_state"]  # type: ignore[no-any-return]


def check_arrays(
    context: FunctionContext,
    arrays: tuple[Value, ...],
    method: str,
    fix: str = "Keep it as an attribute (ctx.name = value).",
) -> tuple[Value, ...]:
    """`arrays`; GradientTypeError if one is neither an array nor None."""
    for i, x in enumerate(arrays):
        if x is not None and not is_array(x):
            raise GradientTypeError(
                f"{state_of(context).name}: {method} takes arrays and None; got {type_name(x)} as "
                f"number {i}",
                fix=fix,
            )
    return arrays


def load_values(values: list[Any], node: Node | None, label: str) -> list[Any]:
    """Saved values as arrays with their history; SavedValueError after a write."""
    return [
        load_variable(values, k, node, label) if isinstance(x, (SavedValue, PackedValue)) else x
        for k, x in enumerate(values)
    ]


def free_saved(context: FunctionContext) -> None:
    """Frees the saved values, if there are any."""
    if context.__dict__["_functx_saved"]:
        context.__dict__["_functx_saved"] = None


def keeps_computed_values(context: FunctionContext, known: Sequence[Any]) -> bool:
    """Whether the context keeps an array that is none of `known`, the inputs and outputs."""
    attributes = [v for k, v in context.__dict__.items() if k != "_functx_saved_forward"]
    return any(
        [
            isinstance(x, Variable) and is_inexact(x.dtype) and not is_among(x, known)
            for x in tree.leaves(attributes)
        ]
    )


def saved_values(
    arrays: Sequence[Any],
    edges: dict[int, Edge | None],
    results: dict[int, tuple[Any, int]],
) -> list[Any]:
    """The objects that a call saves, with a SavedValue for each array.

    `edges` are those of the inputs before the call, and `results` its outputs with their numbers, by
    the `id` of the array that `forward` saw. Edges of outputs would be cycles.
    """

    def save(x: Any) -> SavedValue | PackedValue:
        if not is_array(x):
            return x
        key = id(x)
        result, number = results.get(key, (None, None))
        if result is not None and (key not in edges or result is x):
            counter, number = result.version_counter, number if result.requires_grad else None
            saved = SavedValue(
                result.read(), None, counter, counter.version, number, None, ref(result)
            )
            return pack_saved(saved)
        x = as_variable(x.copy() if isinstance(x, np.ndarray) else x)
        edge = edges.get(key, x.edge)
        x._check_not_inference("save_for_backward", "be saved for a derivative")
        counter = x.version_counter
        return pack_saved(
            SavedValue(x.read(), edge, counter, counter.version, None, x._dual, ref(x))
        )

    return [save(x) for x in arrays]


def is_among(x: object, arrays: Sequence[Any]) -> bool:
    """Whether `x` is one of `arrays`, the same object."""
    return any([x is y for y in arrays])
