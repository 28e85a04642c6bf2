"""The signature of an exported program: which input and which output is which."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, TypeVar

from functx.export.structures import JSON

T = TypeVar("T")


@dataclass(frozen=True)
class BackwardSignature:
    """The outputs of a joint program that the backward part computes, and the loss they belong to.

    Outputs are called `output_0`, `output_1`, ... in their order.
    """

    gradients_to_parameters: Mapping[str, str]
    """The outputs that are gradients, with the dotted names of their parameters."""
    gradients_to_user_inputs: Mapping[str, str]
    """The outputs that are gradients, with the names of their inputs."""
    loss_output: str | None
    """The output that is the loss; the new values of buffers and inputs before it are counted.

    None if the program takes tangents.
    """


@dataclass(frozen=True)
class Signature:
    """The inputs and outputs of an exported program by name, in the order of the program.

    The inputs are parameters, buffers, user inputs, then constants: arrays that the function closes
    over. Their names are those of the printed program. The outputs, called `output_0`, `output_1`, ...,
    are the new values of what is written, the user outputs, then the gradients; of a function of
    `functx.export.export`, user outputs are first.
    """

    parameters: tuple[str, ...] = ()
    """The dotted names of the parameters of the module."""
    buffers: tuple[str, ...] = ()
    """The dotted names of the buffers of the module."""
    user_inputs: tuple[str, ...] = ()
    user_outputs: tuple[str, ...] = ()
    inputs_to_parameters: Mapping[str, str] = field(default_factory=dict)
    inputs_to_buffers: Mapping[str, str] = field(default_factory=dict)
    buffers_to_mutate: Mapping[str, str] = field(default_factory=dict)
    """The outputs that are new values of buffers, with the dotted names of these."""
    parameters_to_mutate: Mapping[str, str] = field(default_factory=dict)
    """The outputs that are new values of parameters, with the dotted names of these."""
    user_inputs_to_mutate: Mapping[str, str] = field(default_factory=dict)
    """The outputs that are new values of user inputs, with the names of these."""
    constants: tuple[str, ...] = ()
    """The inputs that are arrays which the function closes over; calls do not pass them."""
    backward_signature: BackwardSignature | None = None
    """The signature of the backward part of a joint program; None for others."""

    def __str__(self) -> str:
        """A table with a line for each part that is not empty; those of the backward part are indented."""
        parts = {f.name: getattr(self, f.name) for f in fields(self)}
        backward = parts.pop("backward_signature")
        lines = _table_lines(parts)
        if backward is not None:
            lines += ["backward_signature", *[f"  {line}" for line in _table_lines(vars(backward))]]
        return "\n".join(lines)


def _table_lines(parts: Mapping[str, object]) -> list[str]:
    """A line for each part that is not empty."""
    shown = {name: _part_text(value) for name, value in parts.items() if value}
    width = max(map(len, shown), default=0)
    return [f"{name:{width}}  {text}" for name, text in shown.items()]


def _part_text(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join([f"{key}: {name}" for key, name in value.items()])
    return value if isinstance(value, str) else ", ".join(value)  # type: ignore[arg-type]


def output_names(start: int, count: int) -> tuple[str, ...]:
    """The names of `count` outputs from number `start` on."""
    return tuple([f"output_{i}" for i in range(start, start + count)])


def signature_to_json(signature: Signature) -> JSON:
    """The JSON of a signature."""
    return asdict(signature)


def signature_from_json(value: JSON) -> Signature:
    """The signature of its JSON; ValueError for other parts than names."""
    parts = {**value}
    backward = parts["backward_signature"]
    if backward is not None:
        parts["backward_signature"] = _of_names(BackwardSignature, {**backward})
    return _of_names(Signature, parts)


def _of_names(cls: type[T], parts: dict[str, Any]) -> T:
    """The `cls` of these parts, lists as tuples; each part must consist of names, as its type says."""
    for part in fields(cls):  # type: ignore[arg-type]
        value, kind = parts[part.name], str(part.type)
        if kind.startswith("tuple"):
            parts[part.name] = tuple(value)
            texts, is_right = value, type(value) is list
        elif kind.startswith("Mapping"):
            texts, is_right = [*value, *value.values()], type(value) is dict
        else:
            is_name = kind.startswith("str") and value is not None
            texts, is_right = [value] if is_name else [], True
        if not is_right or not all(type(text) is str for text in texts):
            raise ValueError(f"{part.name} must consist of names")
    return cls(**parts)
