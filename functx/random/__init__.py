"""Random numbers."""

from functx.random.draws import bernoulli, normal, randint, uniform
from functx.random.keys import bits, fold_in, key, split
