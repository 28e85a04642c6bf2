"""Sampling with gradients: look at how chains, steps and proposals are one `vmap` of a `scan` of a loop."""

import functx.numpy as np
from functx import grad, jit, random, vmap
from functx.lax import fori_loop, scan

MEAN = np.array([1.0, -2.0])
PRECISION = np.array([[2.0, 0.8], [0.8, 1.0]])


def log_density(x):
    """That of a Gaussian, up to a constant."""
    return -0.5 * (x - MEAN) @ PRECISION @ (x - MEAN)


def leapfrog(x, momentum, size, steps):
    """The end of `steps` steps along Hamilton's equations (Neal 2011, section 2.3)."""

    def step(_, state):
        x, momentum = state
        momentum = momentum + size / 2 * grad(log_density)(x)
        x = x + size * momentum
        return x, momentum + size / 2 * grad(log_density)(x)

    return fori_loop(0, steps, step, (x, momentum))


def transition(x, key):
    """The next sample after `x`, and whether the proposal was accepted."""
    for_momentum, for_choice = random.split(key)
    momentum = random.normal(for_momentum, x.shape)
    proposal, end = leapfrog(x, momentum, 0.3, 8)
    gain = log_density(proposal) - log_density(x)
    gain = gain + (momentum @ momentum - end @ end) / 2
    accepted = np.log(random.uniform(for_choice)) < gain
    x = np.where(accepted, proposal, x)
    return x, (x, accepted)


@jit
@vmap
def chain(key, start):
    return scan(transition, start, random.split(key, 1000))[1]


keys = random.split(random.key(0), 16)
samples, accepted = chain(keys, np.zeros((16, 2)))
samples = samples[:, 200:].reshape(-1, 2)
mean, covariance = samples.mean(axis=0), np.cov(samples.T)
print("accepted:", accepted.mean())
print("mean:", mean, "wanted:", MEAN)
print(f"covariance:\n{covariance}\nwanted:\n{np.linalg.inv(PRECISION)}")

assert np.allclose(mean, MEAN, atol=0.1)
assert np.allclose(covariance, np.linalg.inv(PRECISION), atol=0.15)
assert accepted.mean() > 0.8
