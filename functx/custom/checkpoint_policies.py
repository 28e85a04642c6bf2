"""Policies for `checkpoint(policy=...)`, by JAX's names.

A policy is called as `policy(primitive, *avals, **params)` for each equation whose outputs the
derivative needs, with the primitive, the types of its operands and its parameters. It returns
whether to save the outputs (True) or to recompute them (False). An equation of `checkpoint_name`
has the parameter `name`. There are no policies that offload to another memory, since programs
have no memory spaces.
"""

from __future__ import annotations

from collections.abc import Callable

from functx import ops
from functx.core.errors import ArgumentError, type_name
from functx.core.primitive import Primitive
from functx.core.rewriting import Record
from functx.core.types import ShapedArray
from functx.passes.memory_planning import is_cheap_to_recompute

Policy = Callable[..., bool]

__all__ = [
    "checkpoint_dots",
    "checkpoint_dots_with_no_batch_dims",
    "dots_saveable",
    "dots_with_no_batch_dims_saveable",
    "everything_saveable",
    "min_cut",
    "nothing_saveable",
    "save_any_names_but_these",
    "save_anything_except_these_names",
    "save_from_both_policies",
    "save_only_these_names",
]


def everything_saveable(*_: object, **__: object) -> bool:
    """Save every value, as without a checkpoint."""
    return True


def nothing_saveable(*_: object, **__: object) -> bool:
    """Save only the arguments, as without a policy."""
    return False


def dots_saveable(primitive: Primitive, *_: object, **__: object) -> bool:
    """Save the outputs of matrix products, and recompute all other values."""
    return isinstance(primitive, ops.DotGeneral)


def dots_with_no_batch_dims_saveable(primitive: Primitive, *_: object, **__: object) -> bool:
    """Save the outputs of matrix products without batch dimensions, such as those with weights."""
    return isinstance(primitive, ops.DotGeneral) and primitive.batch_dims == ((), ())


class MinCut(Record):
    """Save the fewest bytes from which all other values are cheap to recompute.

    The values are chosen together, by a minimum cut of the program; see `functx.aot`. As a part
    of another policy it decides on one equation: it saves outputs that are slow to compute.
    """

    def __call__(self, primitive: Primitive, *_: object, **__: object) -> bool:
        return not is_cheap_to_recompute(primitive)

    def __repr__(self) -> str:
        return "min_cut"


min_cut = MinCut()
checkpoint_dots = dots_saveable
checkpoint_dots_with_no_batch_dims = dots_with_no_batch_dims_saveable


def save_only_these_names(*names: str) -> Policy:
    """A policy that saves the values that `checkpoint_name` gives one of `names`."""
    return SaveByName(_check_names("save_only_these_names", names), listed=True, unnamed=False)


def save_any_names_but_these(*names: str) -> Policy:
    """A policy that saves the values that `checkpoint_name` gives any name but `names`."""
    return SaveByName(_check_names("save_any_names_but_these", names), listed=False, unnamed=False)


def save_anything_except_these_names(*names: str) -> Policy:
    """A policy that saves all values except those that `checkpoint_name` gives one of `names`."""
    return SaveByName(
        _check_names("save_anything_except_these_names", names), listed=False, unnamed=True
    )


def save_from_both_policies(policy_1: Policy, policy_2: Policy) -> Policy:
    """A policy that saves the values that either of two policies saves."""
    for policy in (policy_1, policy_2):
        if not callable(policy):
            raise ArgumentError(
                f"save_from_both_policies: policies must be functions; got {type_name(policy)}"
            )
    return SaveFromEither(policy_1, policy_2)


# Records: policies with equal fields are equal, and so are the programs that hold them.
class SaveByName(Record):
    """Saves the values with one of `names`, or with another name, and those without a name or not."""

    names: tuple[str, ...]
    listed: bool
    unnamed: bool

    def __call__(
        self, primitive: Primitive, *_: object, name: str | None = None, **__: object
    ) -> bool:
        if not isinstance(primitive, ops.CheckpointName):
            return self.unnamed
        return (name in self.names) is self.listed


class SaveFromEither(Record):
    """Saves the values that `first` or `second` saves."""

    first: Policy
    second: Policy

    def __call__(self, primitive: Primitive, *avals: ShapedArray, **params: object) -> bool:
        return self.first(primitive, *avals, **params) or self.second(primitive, *avals, **params)


def _check_names(policy: str, names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if not isinstance(name, str):
            raise ArgumentError(
                f"{policy}: names must be strings; got {type_name(name)}",
                fix="Pass each as an argument of its own.",
            )
    return names
