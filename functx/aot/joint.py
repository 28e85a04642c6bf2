"""The joint program of a function: its outputs, and the gradients in its inputs."""

from __future__ import annotations

from collections.abc import Callable

from functx.core.errors import GradientError
from functx.core.masks import inexact_mask
from functx.core.typing import Function, PyTree
from functx.passes.memory_planning import JointProgram, inline_checkpoints, join_split
from functx.transforms.argument_names import check_callable, function_name, wrap_transform
from functx.transforms.make_ir import functionalize, make_ir
from functx.transforms.reverse_mode import SplitVJP


def joint_program(fun: Function) -> Callable[..., JointProgram]:
    """The function that returns the `JointProgram` of `fun` for its arguments.

    The program takes the primals (the leaves of the arguments, then the captured values of
    `fun`), then a tangent for each inexact output of `fun`; it returns the outputs, then the
    gradients in the inexact primals. It is functionalized: the new values of mutated arguments
    follow the outputs of `fun`. Regions under `functx.checkpoint` are inlined; `recompute` holds
    the values that they recompute. Arguments may be arrays, or anything with `shape` and `dtype`.

    Raises GradientError for a function without inexact outputs.

    >>> import functx, numpy
    >>> joint = functx.aot.joint_program(functx.numpy.sin)(numpy.float32(1.0))
    >>> joint.primals, len(joint.tangents), len(joint.program.outputs)
    (1, 1, 2)
    """
    check_callable(fun, "joint_program")

    def wrapper(*args: PyTree, **kwargs: PyTree) -> JointProgram:
        program = make_ir(functionalize(fun))(*args, **kwargs)
        if not any(inexact_mask(program.out_avals)):
            raise GradientError(
                f"joint_program({function_name(fun)}): an output must be inexact to have a gradient; "
                f"got {program.out_avals}"
            )
        values, backward = SplitVJP(tuple(inexact_mask(program.in_avals)))(program)
        return inline_checkpoints(join_split(values, len(program.outputs), [backward]))

    return wrap_transform(wrapper, fun, "joint_program")
