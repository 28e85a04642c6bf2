"""What is wrong with the arguments of a call that JAX refused, in functx's words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from functx.core import tree
from functx.core.dtypes import canonical_dtype
from functx.core.errors import DonationError, ValueRangeError
from functx.core.tracing import aval_of
from functx.ops.sharding import check_partition_spec


def check_usable(what: str, names: Sequence[str] | None, values: Sequence[Any]) -> None:
    """Raise for a value that has no buffer any more, or for an int that no array can hold.

    `names` are those of the first values, if there are any.
    """
    named = [f"`{name}`" for name in names or ()]
    named += [f"argument number {i}" for i in range(len(named), len(values))]
    for name, x in zip(named, values, strict=False):
        if isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer) and x.is_deleted():
            raise DonationError(
                f"{what}: an array must still have its buffer; got {aval_of(x)!r} for {name}, "
                "which was deleted or donated",
                fix="Donate only what is not used again, or keep a copy of it.",
            )
        if type(x) is int:
            dtype = canonical_dtype(np.int64)
            limits = np.iinfo(dtype)
            if not limits.min <= x <= limits.max:
                raise ValueRangeError(
                    f"{what}: an int must fit {dtype}; got {x} for {name}",
                    fix="Pass a float, make it static, or turn 64-bit types on: "
                    'jax.config.update("jax_enable_x64", True).',
                )


def check_divisible(what: str, names: Sequence[str], args: tuple[Any, ...], shardings: Any) -> None:
    """Raise ShapeError for an argument that its sharding does not divide into equal parts."""
    if shardings is None:
        return
    flat = tree.broadcast_prefix(shardings, tree.structure(args), f"{what}: in_shardings")
    for name, x, sharding in zip(names, tree.leaves(args), flat, strict=False):
        if isinstance(sharding, NamedSharding):
            check_partition_spec(f"{what}: `{name}`", aval_of(x), sharding.spec, sharding.mesh)


def check_donated_once(
    what: str, names: Sequence[str], values: Sequence[Any], donated: Iterable[int]
) -> None:
    """Raise for an array that is donated, and passed a second time in the same call."""
    for i in donated:
        for j, x in enumerate(values):
            if j != i and x is values[i] and isinstance(x, jax.Array):
                raise DonationError(
                    f"{what}: a donated array must be passed once; "
                    f"got one array for `{names[i]}`, which is donated, and for `{names[j]}`",
                    fix="Pass a copy of it, or do not donate it.",
                )
