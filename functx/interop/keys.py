"""Translations of JAX's random bits: typed keys are the arrays of their words here."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from functx.interop.translation import register_translation
from functx.lowering.keys import prng_key_type
from functx.ops.random_bits import RandomBits, RandomFoldIn, RandomSeed, RandomSplit


def is_threefry(variable: Any) -> bool:
    """Whether a key variable is of the generator that functx has, in its usual form."""
    kind = prng_key_type(variable.aval.dtype)
    return (
        kind is not None
        and kind.key_shape == (2,)
        and str(kind.generator) == "threefry2x32"
        and bool(jax.config.jax_threefry_partitionable)  # type: ignore[attr-defined]
    )


@register_translation("random_wrap", "random_unwrap", keys=True)
def translate_key_words(eqn: Any, x: Any) -> Any:
    return x


@register_translation("random_seed", keys=True)
def translate_random_seed(eqn: Any, seed: Any) -> Any:
    return RandomSeed()(seed) if is_threefry(eqn.outvars[0]) else NotImplemented


@register_translation("random_split", keys=True)
def translate_random_split(eqn: Any, key: Any) -> Any:
    if not is_threefry(eqn.invars[0]):
        return NotImplemented
    return RandomSplit(tuple(eqn.params["shape"]))(key)


@register_translation("random_fold_in", keys=True)
def translate_random_fold_in(eqn: Any, key: Any, data: Any) -> Any:
    return RandomFoldIn()(key, data) if is_threefry(eqn.invars[0]) else NotImplemented


@register_translation("random_bits", keys=True)
def translate_random_bits(eqn: Any, key: Any) -> Any:
    if not is_threefry(eqn.invars[0]):
        return NotImplemented
    return RandomBits(tuple(eqn.params["shape"]), np.dtype(f"uint{eqn.params['bit_width']}"))(key)
