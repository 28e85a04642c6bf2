"""Random numbers without keys: generators, and functions that draw from one, under PyTorch's names.

A generator has a state, a seed and an offset, that each draw moves on. Without `generator=`, a
function draws from the default generator, of which each thread has its own. Inside a transformed
function the state is a hidden argument and result: a compiled function draws what the same calls
draw without `jit`, each call draws other numbers, and derivatives repeat those of the function.

Names that `jax.random` has too, such as `normal`, take keys in `functx.random`, and draw from
a generator in `functx.random.generator`.

>>> from functx import random
>>> generator = random.Generator(0)
>>> random.rand(3, generator=generator).shape
(3,)
"""

from functx.core.argument_errors import explain_errors as _explain_errors
from functx.random.generator.distributions import *
from functx.random.generator.in_place import *
from functx.random.generator.states import *

_explain_errors(__name__)
