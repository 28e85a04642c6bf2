"""Arrays among the arguments of a compiled call: their checks, and those of weak dtypes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from functx import ops
from functx.core import tree
from functx.core.errors import DonationError, ValueRangeError
from functx.core.tracer import WeakNdarray, as_numpy_array, aval_of, ndarray
from functx.core.types import canonical_dtype
from functx.core.typing import ArrayLike, PyTree, Values
from functx.ops.conversion import convert_element_type


def check_usable(what: str, names: Sequence[str] | None, values: Sequence[ArrayLike]) -> None:
    """Raises DonationError for an array without a buffer, ValueRangeError for an int too large.

    `names` are those of the first values.
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


def check_divisible(
    what: str, names: Sequence[str], args: tuple[PyTree, ...], shardings: PyTree
) -> None:
    """Raises ShapeError for an argument that its sharding does not divide into equal parts."""
    if shardings is None:
        return
    flat = tree.broadcast_prefix(shardings, tree.structure(args), f"{what}: in_shardings")
    for name, x, sharding in zip(names, tree.leaves(args), flat, strict=False):
        if isinstance(sharding, NamedSharding):
            ops.check_partition_spec(f"{what}: `{name}`", aval_of(x), sharding.spec, sharding.mesh)


def check_donated_once(
    what: str, names: Sequence[str], values: Values, donated: Iterable[int]
) -> None:
    """Raises DonationError for a donated array that is passed a second time in the same call."""
    for i in donated:
        for j, x in enumerate(values):
            if j != i and x is values[i] and isinstance(x, jax.Array):
                raise DonationError(
                    f"{what}: a donated array must be passed once; "
                    f"got one array for `{names[i]}`, which is donated, and for `{names[j]}`",
                    fix="Pass a copy of it, or do not donate it.",
                )


def keep_weak(args: PyTree, kwargs: PyTree) -> tuple[Any, Any]:
    """The arguments with `jax.Array`s for arrays of weak dtypes, which JAX takes for strong ones."""
    if not kwargs and STRONG_TYPES.issuperset(map(type, args)):
        return args, kwargs
    # JAX's function is the fastest one, and leaves of wrappers are never weak.
    if WeakNdarray not in map(type, jax.tree.leaves((args, kwargs))):
        STRONG_TYPES.update([type(x) for x in args if isinstance(x, jax.Array)])
        return args, kwargs
    return tree.map(as_weak_jax_array, (args, kwargs))  # type: ignore[no-any-return]


STRONG_TYPES: set[type] = {np.ndarray, ndarray, bool, int, float, complex}
"""Types of arguments that hold no arrays of weak dtypes; those of `jax.Array`s are added when met."""


def as_weak_jax_array(x: object) -> object:
    """An array of a weak dtype as a `jax.Array`, or as a Python number; anything else unchanged."""
    if type(x) is not WeakNdarray:
        return x
    number = x.item() if not x.ndim else 0
    if not x.ndim and canonical_dtype(type(number)) == x.dtype:
        return number
    return convert_element_type(jax.device_put(as_numpy_array(x)), x.dtype, weak=True)
