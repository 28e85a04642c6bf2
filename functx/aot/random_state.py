"""Functions that draw from the default generator, as functions from a seed and an offset to a new offset."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from functx import ops
from functx.core.captured_state import StateInputs, state_inputs
from functx.core.context import ContextValue
from functx.core.errors import ArgumentError, GeneratorError, type_name
from functx.core.generator_state import DEFAULT_STATE, pack_state
from functx.core.tracer import Tracer, aval_of, current_builder
from functx.core.types import ShapedArray
from functx.core.typing import Function, PyTree, Value
from functx.ops.views import Copy
from functx.transforms.argument_names import check_callable, function_name, wrap_transform
from functx.transforms.make_ir import functionalize

WORDS_AVAL = ShapedArray((2,), np.dtype("uint32"))
"""The type of a seed or an offset in programs: the low and the high word."""


def with_random_state(fun: Function, joint: bool = False) -> Function:
    """`fun` as a function that takes the state of the default generator, and returns the new offset.

    The result takes `(*primals, seed, offset)` and returns `(*outs, new_offset)`. With `joint`, `fun` is a
    joint function, from primals and tangents to outputs and gradients; the result takes
    `(primals, tangents, fw_seed, fw_offset, bw_seed, bw_offset)` and returns
    `((*outs, new_fw_offset), (*grads, new_bw_offset))`, and draws in the backward part, that is under
    `program_part(Part.BACKWARD)`, come from the second state. The default generator itself stays as it is.

    A seed and an offset are ints or uint64, as `random.get_state` returns them, or arrays of their low
    and high word, `uint32[2]`, which are the inputs of programs. The new offset is of the kind of the
    offset. It is the offset itself if nothing is drawn, and else a multiple of four.

    Raises GeneratorError for a seed or an offset that is neither, and ArgumentError for a joint function
    that does not return a pair.

    >>> import functx
    >>> from functx import random
    >>> noisy = functx.aot.with_random_state(lambda x: x + random.rand(3))
    >>> out, offset = noisy(0.0, 7, 0)
    >>> bool((out == random.rand(3, generator=random.Generator(7))).all()), int(offset)
    (True, 4)
    """
    check_callable(fun, "with_random_state")
    label = f"with_random_state({function_name(fun)})"
    traced = joint_with_states(fun, label) if joint else forward_with_state(fun)
    num_words = 4 if joint else 2

    def wrapper(*args: PyTree) -> PyTree:
        if len(args) < num_words or (joint and len(args) != 6):
            form = "(primals, tangents, " if joint else "(*primals, "
            names = "fw_seed, fw_offset, bw_seed, bw_offset)" if joint else "seed, offset)"
            raise ArgumentError(f"{label}: the arguments must be {form}{names}; got {len(args)}")
        numbers = args[-num_words:]
        words = [words_of_number(x, label) for x in numbers]
        call = traced if current_builder.get() is not None else functionalize(traced)
        out = call(*args[:-num_words], *words)
        if not joint:
            return (*out[:-1], offset_like(numbers[1], out[-1]))
        outs, grads = out
        return (
            (*outs[:-1], offset_like(numbers[1], outs[-1])),
            (*grads[:-1], offset_like(numbers[3], grads[-1])),
        )

    return wrap_transform(wrapper, fun, "with_random_state")


def forward_with_state(fun: Function) -> Callable[..., Any]:
    """`fun` on the words of a seed and an offset, which it takes and returns last."""

    def call(*args: PyTree) -> tuple[Any, ...]:
        *primals, seed, offset = args
        state = make_state(seed, offset)
        out = with_inputs(StateInputs({DEFAULT_STATE: state}), fun, primals)
        return (*as_tuple(out), offset_of(state))

    call.__name__ = function_name(fun)
    return call


def joint_with_states(fun: Function, label: str) -> Callable[..., Any]:
    """The joint function `fun` on the words of two states."""

    def call(primals: PyTree, tangents: PyTree, *words: Value) -> tuple[Any, Any]:
        forward, backward = make_state(*words[:2]), make_state(*words[2:])
        inputs = StateInputs({DEFAULT_STATE: forward}, {DEFAULT_STATE: backward})
        out = with_inputs(inputs, fun, (primals, tangents))
        if not isinstance(out, tuple) or len(out) != 2:
            raise ArgumentError(
                f"{label}: a joint function must return (outputs, gradients); got {type_name(out)}",
                fix="Make one with functx.aot.create_joint, or leave joint out.",
            )
        outs, grads = out
        return (*as_tuple(outs), offset_of(forward)), (*as_tuple(grads), offset_of(backward))

    call.__name__ = function_name(fun)
    return call


def with_inputs(inputs: StateInputs, fun: Function, args: Sequence[PyTree]) -> PyTree:
    """`fun(*args)`, where traced arrays stand for states."""
    with ContextValue(state_inputs, inputs):
        return fun(*args)


def make_state(seed: Value, offset: Value) -> Tracer:
    """The traced state of a seed and an offset, which draws write to."""
    return Copy()(ops.concatenate([seed, offset], 0))  # type: ignore[no-any-return]


def offset_of(state: Tracer) -> Value:
    """The words of the offset of a state as it is now."""
    return ops.slice_in_dim(Copy()(state), 2, 4)


def as_tuple(out: PyTree) -> tuple[Any, ...]:
    """The outputs of a function, of which a single one is no tuple."""
    return tuple(out) if isinstance(out, (tuple, list)) else (out,)


def words_of_number(x: object, label: str) -> Any:
    """A seed or an offset as two words."""
    try:
        aval = aval_of(x)
    except (ArgumentError, OverflowError):
        aval = None
    if type(x) is int or (isinstance(x, np.generic) and x.dtype == np.uint64):
        if 0 <= int(x) < 2**64:
            return pack_state(int(x), 0)[:2]
    elif isinstance(x, ShapedArray) or (
        aval is not None and aval.shape == WORDS_AVAL.shape and aval.dtype == WORDS_AVAL.dtype
    ):
        return x
    fix = "Pass seed, offset = functx.random.get_state()."
    if isinstance(x, Tracer):
        fix = "Pass the words of each number n: numpy.array([n % 2**32, n >> 32], 'uint32')."
    raise GeneratorError(
        f"{label}: a seed and an offset must be ints from 0 to 2**64 - 1, or their low and high words, "
        f"u32[2]; got {type_name(x)}{f' {x}' if type(x) is int else ''}",
        fix=fix,
    )


def offset_like(given: object, words: object) -> Any:
    """The new offset as the one that was given: a uint64 if that was a number, else two words."""
    if type(given) is not int and not isinstance(given, np.generic):
        return words
    if isinstance(words, Tracer):
        return words
    low, high = np.asarray(words).tolist()
    return np.uint64(high << 32 | low)
