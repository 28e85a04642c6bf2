"""The arrays of a function's result, and which of them are arguments or one another."""

from __future__ import annotations

from typing import Any

from functx.aot.call_arguments import ArgumentPlan, first_occurrences
from functx.autograd.variable import Variable
from functx.core import tree
from functx.core.tracer import Tracer, current_builder
from functx.core.typing import Function, PyTree, Value
from functx.transforms.argument_names import function_name
from functx.transforms.tracing_api import has_aval

NUMBER_TYPES = frozenset({int, float, bool, complex})
"""The types of numbers, which are no arrays."""


class ArrayResults:
    """A function as one that returns the arrays of its result, in a list.

    A call sets `out_tree`, the structure of the result, in which what is no array is static, and so is
    a Variable from around the function. For each array, `returned` has the number of the argument that is
    the same object, or None, and `same_objects` the number of the first array that is. With
    `on_variables`, traced arguments stand for Variables.
    """

    def __init__(self, fun: Function, on_variables: bool):
        self.__wrapped__, self.on_variables = fun, on_variables
        self.__name__ = function_name(fun)
        self.out_tree: Any = None
        self.returned: list[int | None] = []
        self.same_objects: tuple[int, ...] = ()

    def __call__(self, *args: PyTree, **kwargs: PyTree) -> list[Any]:
        current_builder.require().inputs_are_variables = self.on_variables
        given = [x for x in tree.leaves((args, kwargs)) if isinstance(x, Tracer)]
        leaves, structure = tree.flatten_with_key_data(self.__wrapped__(*args, **kwargs))
        static = {i: x for i, x in enumerate(leaves) if is_static_result(x)}
        self.out_tree = tree.treedef_with_static(structure, static)
        arrays = [x for i, x in enumerate(leaves) if i not in static]
        position = {id(x): i for i, x in reversed([*enumerate(given)])}
        self.returned = [position.get(id(x)) for x in arrays]
        self.same_objects = first_occurrences(arrays)
        return arrays

    def of_inputs(self, plan: ArgumentPlan, in_tree: tree.TreeDef) -> Function:
        """The function of the inputs of a plan, for arguments of the structure `in_tree`."""

        def call(*inputs: Value) -> list[Any]:
            args, kwargs = in_tree.unflatten(plan.leaves_of(inputs))
            return self(*args, **kwargs)

        call.__name__ = self.__name__
        return call


def is_static_result(x: object) -> bool:
    """Whether a part of a result is returned as it is: what is no array, and a Variable of the user's."""
    return type(x) in NUMBER_TYPES or isinstance(x, Variable) or not has_aval(x)
