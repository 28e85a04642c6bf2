"""The search for the NumPy definition of a primitive: on its class, or in the modules beside this one."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from importlib import import_module
from typing import Any, TypeVar

from functx.core.primitive import Primitive

MODULES = ("control", "elementwise", "linear_algebra", "nn", "reductions")
"""The modules of definitions that are too long for the class, or need SciPy or JAX.

Such a definition is a function with the name of the class: `DotGeneral(*operands, **parameters)`.
"""

Definition = Callable[..., Any]
DefinitionT = TypeVar("DefinitionT", bound=Definition)

EXACT_DTYPE_DEFINITIONS: set[Definition] = set()
"""Definitions that take operands in the dtypes of the program, not wide ones."""

SUBPROGRAM_DEFINITIONS: set[Definition] = set()
"""Definitions that take `run(program, args)` as the first argument."""


def exact_dtypes(definition: DefinitionT) -> DefinitionT:
    """`definition`, noted as one that takes operands in the dtypes of the program."""
    EXACT_DTYPE_DEFINITIONS.add(definition)
    return definition


def runs_subprograms(definition: DefinitionT) -> DefinitionT:
    """`definition`, noted as one that runs subprograms."""
    SUBPROGRAM_DEFINITIONS.add(definition)
    return definition


@cache
def definition_by_name(class_name: str) -> Definition | None:
    """The function of the modules of definitions with the name of a primitive class of functx."""
    modules = [import_module(f"{__package__}.{name}") for name in MODULES]
    return next((vars(m)[class_name] for m in modules if class_name in vars(m)), None)


def definition_by_class(cls: type[Primitive]) -> Definition | None:
    """The definition of a primitive class: `numpy` of the class, or else a function with its name."""
    if cls.numpy is not None:
        return cls.numpy
    return definition_by_name(cls.__name__) if cls.__module__.startswith("functx.") else None


def numpy_definition(primitive: Primitive, *first: Any) -> Definition | None:
    """The function of operands that defines `primitive`; None if it has no definition.

    `first` is the argument of definitions that run subprograms.
    """
    if primitive.numpy is not None:
        return primitive.numpy
    definition = definition_by_class(type(primitive))
    if definition is None:
        return None
    parameters = {field: getattr(primitive, field) for field in primitive.fields}
    return partial(
        definition, *(first if definition in SUBPROGRAM_DEFINITIONS else ()), **parameters
    )
