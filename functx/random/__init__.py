"""Random numbers from explicit keys: the names, arguments and numbers of `jax.random`.

A key is a uint32 array of shape (2,); typed keys of JAX are accepted, too.

>>> from functx import random
>>> first, second = random.split(random.key(0))
>>> random.randint(first, (3,), 0, 10).shape
(3,)
"""

from functx.core.missing_names import suggest_alternatives as _suggest_alternatives
from functx.random.keys import *
from functx.random.samplers import *

_suggest_alternatives("jax.random", __name__)
