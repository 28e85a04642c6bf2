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
from functx.random.generator.distributions import (
    bernoulli,
    cauchy,
    dropout,
    exponential,
    geometric,
    log_normal,
    normal,
    rand,
    rand_like,
    randint,
    randint_like,
    randn,
    randn_like,
    randperm,
    rrelu,
    uniform,
)
from functx.random.generator.in_place import (
    bernoulli_,
    cauchy_,
    exponential_,
    geometric_,
    log_normal_,
    normal_,
    random_,
    uniform_,
)
from functx.random.generator.states import (
    Generator,
    default_generator,
    get_state,
    initial_seed,
    manual_seed,
    run_and_save_rng_state,
    run_with_rng_state,
    seed,
    set_state,
)

__all__ = [
    "Generator",
    "bernoulli",
    "bernoulli_",
    "cauchy",
    "cauchy_",
    "default_generator",
    "dropout",
    "exponential",
    "exponential_",
    "geometric",
    "geometric_",
    "get_state",
    "initial_seed",
    "log_normal",
    "log_normal_",
    "manual_seed",
    "normal",
    "normal_",
    "rand",
    "rand_like",
    "randint",
    "randint_like",
    "randn",
    "randn_like",
    "random_",
    "randperm",
    "rrelu",
    "run_and_save_rng_state",
    "run_with_rng_state",
    "seed",
    "set_state",
    "uniform",
    "uniform_",
]

_explain_errors(__name__)
