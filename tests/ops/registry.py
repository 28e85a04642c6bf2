"""Every primitive of functx, whichever of its modules defines it."""

from importlib import import_module
from pkgutil import walk_packages

import functx
from functx.core.effects import Effect
from functx.core.primitive import Primitive

for _module in walk_packages(functx.__path__, "functx."):
    import_module(_module.name)

ALL = [cls for cls in Primitive.registry.values() if cls.__module__.startswith("functx.")]
# A write has no rules, since no transform ever meets one: `functionalize` comes first.
PRIMITIVES = [cls for cls in ALL if cls.effects != frozenset({Effect.WRITE})]
SAMPLES = [(cls, number) for cls in PRIMITIVES for number in range(len(cls.samples))]


def label(value):
    """`reduce_sum[axes=(0,)]-0`: a primitive with the parameters of one sample."""
    cls, number = value
    return f"{cls(**cls.samples[number].params)!r}-{number}"
