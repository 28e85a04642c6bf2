"""Random numbers from explicit keys: the names, arguments and numbers of `jax.random`.

A key is a uint32 array of shape (2,); typed keys of JAX are accepted, too. For equal keys the numbers
are those of JAX, to the last digits, with three exceptions, where those of JAX are less exact: `wald`,
whose large means cancel there; `rayleigh`, which is infinite there for a uniform number 0; and rare
counts of `binomial`, whose rejection omits a term of Stirling's series there. The functions that draw
from a generator are in `functx.random.generator`; those whose names `jax.random` does not have are
here as well.

>>> from functx import random
>>> first, second = random.split(random.key(0))
>>> random.randint(first, (3,), 0, 10).shape
(3,)
"""

from functx.core.argument_errors import explain_errors as _explain_errors
from functx.core.missing_names import suggest_alternatives as _suggest_alternatives
from functx.random import generator as generator
from functx.random.continuous import *
from functx.random.counts import *
from functx.random.gamma import *
from functx.random.generator import (
    Generator,
    bernoulli_,
    cauchy_,
    default_generator,
    exponential_,
    geometric_,
    get_state,
    initial_seed,
    log_normal,
    log_normal_,
    manual_seed,
    normal_,
    rand,
    rand_like,
    randint_like,
    randn,
    randn_like,
    random_,
    randperm,
    rrelu,
    run_and_save_rng_state,
    run_with_rng_state,
    seed,
    set_state,
    uniform_,
)
from functx.random.keys import *
from functx.random.samplers import *

_suggest_alternatives("jax.random", __name__)
_explain_errors(__name__)
