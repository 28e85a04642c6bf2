"""0-d arrays on the host that captured walks read beside arrays on another device."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec, Sharding

from functx.autograd.compiled.graphs import SCALAR, WalkGraph
from functx.autograd.recorded import Recorded, constant
from functx.core.program import Atom


def movable_inputs(
    numbers: Sequence[int],
    variables: Sequence[Atom],
    seen_by_python: Collection[Atom],
    graph: WalkGraph,
) -> list[int]:
    """The numbers of the 0-d arrays among the inputs of a program that its equations alone read.

    `seen_by_python` are the atoms that calls of Python and the caller get, where the user sees the device.
    """
    return [
        number
        for number, v in zip(numbers, variables, strict=True)
        if not v.aval.shape and graph.canonical[number] != SCALAR and v not in seen_by_python
    ]


def move_from_host(graph: WalkGraph, inputs: Sequence[int], movable: Sequence[int]) -> bool:
    """Moves 0-d arrays on the host to the device of the other inputs; returns whether there were any.

    JAX itself moves arrays that the user has not put on a device.
    """
    values = graph.values
    host = {n: s for n in movable if (s := sharding_of(values[n])) is not None and is_host(s)}
    if not host:
        return False
    others = [s for n in inputs if n not in host and (s := sharding_of(values[n])) is not None]
    moved = False
    for n, sharding in host.items():
        other = next((s for s in others if s.device_set != sharding.device_set), None)
        if other is not None and (target := replicated(other)) is not None:
            values[n] = constant(jax.device_put(values[n].look(), target))
            moved = True
    return moved


def sharding_of(x: object) -> Sharding | None:
    """Where the user has put an array, or those that it is computed from; None if nowhere, or unknown."""
    if type(x) is not Recorded:
        return None
    arrays = [x.value] if x.recording is None else getattr(x.recording, "captured", ())
    return next((a.sharding for a in arrays if isinstance(a, jax.Array) and a.committed), None)


def is_host(sharding: Sharding) -> bool:
    """Whether a sharding is one device of the host."""
    devices: set[Any] = sharding.device_set
    return [d.platform for d in devices] == ["cpu"]


def replicated(sharding: Sharding) -> Sharding | None:
    """The sharding that puts a whole array on each of the devices; None if it is not known."""
    if sharding.is_fully_replicated:
        return sharding
    return (
        NamedSharding(sharding.mesh, PartitionSpec()) if type(sharding) is NamedSharding else None
    )
