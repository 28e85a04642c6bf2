"""The equations of captured walks that call Python, between the parts that are compiled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from functx.core.effects import Effect, Effects
from functx.core.errors import CapturedWalkError
from functx.core.primitive import Primitive
from functx.core.types import ShapedArray


class PythonCall(Primitive, abstract=True):
    """Calls entry `index` of the list of hooks that a walk is run with.

    `types` are those of the outputs, where they do not follow from the operands.

    Such equations are neither moved nor dropped, and cannot be lowered.
    """

    index: int
    types: tuple[ShapedArray, ...] = ()
    multiple_results = True
    differentiable = False
    no_cse = True
    effects: ClassVar[Effects] = frozenset([Effect.ORDERED])

    def abstract_eval(self, *avals: ShapedArray) -> Sequence[ShapedArray]:
        return self.types

    def lower(self, ctx: object, *values: object) -> Any:
        raise CapturedWalkError(
            f"{self.name}: a captured walk must be compiled in stages, since it calls Python; got its "
            "program whole",
            fix="Return functx.compiled_autograd.compile_stages(program) from the compiler function.",
        )


class CallHook(PythonCall, abstract=True):
    """Calls the hooks of a node, which may replace the gradients that are the operands.

    `kind` says which hooks: "value", "pre", "post", "post_accumulate"; "unpack" loads a saved value.
    """

    kind: str = "value"

    def abstract_eval(self, *avals: ShapedArray) -> Sequence[ShapedArray]:
        return avals if self.kind in ("value", "pre") else self.types


class AddToGrad(PythonCall, abstract=True):
    """Adds a gradient to `.grad` of a leaf.

    The operands are `.grad` before, unless that is None, and the gradient.
    """

    name = "accumulate_grad"


class CallBackward(PythonCall, abstract=True):
    """Calls the backward rule of a node: the operands are the gradients of its outputs, then what it saved.

    `types` are those of the inputs of the forward call that have a gradient. A rule whose result differs
    is refused (`check_gradient`).
    """


class RunCallbacks(PythonCall, abstract=True):
    """Calls the functions that `queue_callback` queued in the walk."""
