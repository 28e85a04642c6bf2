"""What JAX's types say of a device mesh, for a call of a program on such values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from functx.core.errors import UnboundAxisError
from functx.core.tracing import execution


def axis_size(name: Any) -> int | None:
    """The length of the axis `name` that JAX binds around this; None where it binds none."""
    try:
        return int(jax.lax.axis_size(name))
    except NameError:
        return None


def axis_names() -> Sequence[Any]:
    """The names of the axes that JAX maps over devices around this."""
    return tuple(jax.sharding.get_abstract_mesh().manual_axes)


execution.axis_size = axis_size
execution.axis_names = axis_names


def manual_axes(module_context: Any) -> dict[Any, int]:
    """The axes, with their lengths, that what is being lowered runs at each place of."""
    context = module_context.axis_context
    names = getattr(context, "manual_axes", ())
    mesh = getattr(context, "mesh", None)
    return {} if mesh is None else {n: size for n, size in mesh.shape.items() if n in names}


def not_on_devices(name: Any, sizes: dict[Any, int], source: Any) -> UnboundAxisError:
    """The error that a collective is run where nothing binds its axis."""
    given = ", ".join(map(repr, sizes)) or "none"
    return UnboundAxisError(
        f"a collective must run within a map over its axis; got {name!r}, where the bound names "
        f"are: {given}",
        fix=f"Run the program within functx.vmap(f, axis_name={name!r}) or functx.shard_map.",
        source=source,
    )


def on_mesh(aval: Any, mesh: Any, operands: Sequence[Any]) -> Any:
    """The type `aval` of an output computed from `operands` within `mesh`.

    It varies over the manual axes that the operands vary over, and is not sharded explicitly.
    """
    manual = [a.manual_axis_type for a in operands if hasattr(a, "manual_axis_type")]
    sharding = NamedSharding(mesh, PartitionSpec(*[None] * aval.ndim))
    if not manual:
        return aval.update(sharding=sharding)
    varying = frozenset().union(*[m.varying for m in manual])
    return aval.update(sharding=sharding, manual_axis_type=type(manual[0])(varying=varying))


def call_on_mesh(call: Any, mesh: Any, operands: Sequence[Any], program: Any) -> list[Any]:
    """`call` bound to operands that all vary over the same manual axes of `mesh`.

    With explicit axes, an output has the sharding of the first operand of its shape that is
    sharded, else it is whole on every device.
    """

    def bind(*xs: Any) -> list[Any]:
        types = [jax.typeof(x).manual_axis_type.varying for x in xs]
        varying = frozenset().union(*types)
        xs = tuple(
            [
                jax.lax.pcast(x, tuple(varying - own), to="varying") if own != varying else x
                for x, own in zip(xs, types, strict=True)
            ]
        )
        outs: list[Any] = call.bind(*xs, program=program)
        return outs

    if AxisType.Explicit not in mesh.axis_types:
        return bind(*operands)
    specs: dict[tuple[int, ...], Any] = {}
    for x in operands:
        aval = jax.typeof(x)
        if any(axis is not None for axis in aval.sharding.spec):
            specs.setdefault(aval.shape, aval.sharding.spec)
    out_specs = [specs.get(a.shape, PartitionSpec()) for a in program.program.out_avals]
    outs = jax.sharding.auto_axes(bind, out_sharding=out_specs)(*operands)
    return list(outs)
