"""Functions chosen by the platform that a program runs on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from functx.core.errors import ArgumentError, ValueRangeError, type_name
from functx.core.typing import PyTree
from functx.ops.staging import PlatformIndex
from functx.transforms.control.body_tracing import trace_branches
from functx.transforms.control.cond import run_branch


def platform_dependent(
    *args: PyTree, default: Callable[..., Any] | None = None, **per_platform: Callable[..., Any]
) -> PyTree:
    """`per_platform[name](*args)` on the platform `name` (cpu, cuda, rocm, tpu), else `default(*args)`.

    All functions are traced, and those of one result type; the program has those of the platforms it is
    compiled for. Raises ArgumentError for a platform without a function where there is no default.

    >>> from functx import lax
    >>> float(lax.platform_dependent(2.0, cpu=lambda x: x + 1, default=lambda x: x * x))
    3.0
    """
    functions = per_platform if default is None else {**per_platform, "default": default}
    for name, function in functions.items():
        if not callable(function):
            raise ArgumentError(
                f"platform_dependent: {name} must be a function; got {type_name(function)}"
            )
    if "gpu" in functions or not functions:
        raise ValueRangeError(
            f"platform_dependent: platforms must be named cpu, cuda, rocm or tpu; got {[*functions]}",
            fix="Pass cuda= and rocm= for GPUs.",
        )
    names: dict[Callable[..., Any], tuple[str, ...]] = {}
    for name, function in functions.items():
        names[function] = (*names.get(function, ()), name)
    branches = {" or ".join(each): function for function, each in names.items()}
    traced = trace_branches(branches, args, "platform_dependent")
    return run_branch(traced, args, PlatformIndex(tuple(names.values()))())
