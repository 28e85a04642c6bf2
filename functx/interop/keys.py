"""Translations of JAX's random bits: typed keys are the arrays of their words here."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from functx.interop.translation import translates
from functx.lowering.keys import key_type
from functx.ops.random_bits import RandomBits, RandomFoldIn, RandomSeed, RandomSplit


def threefry(variable: Any) -> bool:
    """Whether a key variable is of the generator that functx has, in its usual form."""
    kind = key_type(variable.aval.dtype)
    return (
        kind is not None
        and kind.words == (2,)
        and str(kind.generator) == "threefry2x32"
        and bool(jax.config.jax_threefry_partitionable)  # type: ignore[attr-defined]
    )


@translates("random_wrap", "random_unwrap", keys=True)
def words(eqn: Any, x: Any) -> Any:
    return x


@translates("random_seed", keys=True)
def random_seed(eqn: Any, seed: Any) -> Any:
    return RandomSeed()(seed) if threefry(eqn.outvars[0]) else NotImplemented


@translates("random_split", keys=True)
def random_split(eqn: Any, key: Any) -> Any:
    if not threefry(eqn.invars[0]):
        return NotImplemented
    return RandomSplit(tuple(eqn.params["shape"]))(key)


@translates("random_fold_in", keys=True)
def random_fold_in(eqn: Any, key: Any, data: Any) -> Any:
    return RandomFoldIn()(key, data) if threefry(eqn.invars[0]) else NotImplemented


@translates("random_bits", keys=True)
def random_bits(eqn: Any, key: Any) -> Any:
    if not threefry(eqn.invars[0]):
        return NotImplemented
    return RandomBits(tuple(eqn.params["shape"]), np.dtype(f"uint{eqn.params['bit_width']}"))(key)
