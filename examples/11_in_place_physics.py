"""Plain NumPy code that fills buffers, differentiated unchanged: look at what `functionalize` makes of it."""

import numpy as onp

import functx
import functx.numpy as np
from functx import functionalize, grad, jit, make_ir


def forces(position, stiffness, out):
    """The forces on beads on a string, written to `out`."""
    stretch = stiffness * (position[1:] - position[:-1] - 1.0)
    out[:] = 0.0
    out[:-1] += stretch
    out[1:] -= stretch


def leapfrog(position, velocity, stiffness, steps=20, dt=0.05):
    """The energy of the string after some steps, which move `position` and `velocity` in place."""
    force = np.empty_like(position)
    forces(position, stiffness, force)
    for _ in range(steps):
        velocity += dt / 2 * force
        position += dt * velocity
        forces(position, stiffness, force)
        velocity += dt / 2 * force
    stretch = position[1:] - position[:-1] - 1.0
    return (velocity**2).sum() / 2 + (stiffness * stretch**2).sum() / 2


def start():
    return onp.array([0.0, 1.3, 2.0, 3.4]), onp.zeros(4), onp.array([1.0, 2.0, 1.5])


# Called plainly, it is NumPy; under jit it changes its arguments just the same.
plain, compiled = start(), start()
energy = leapfrog(*plain)
assert np.allclose(jit(leapfrog)(*compiled), energy, atol=1e-5)
assert all(np.allclose(a, b, atol=1e-5) for a, b in zip(plain, compiled, strict=True))
print("energy:", energy, " positions afterwards:", plain[0])

# The derivative is taken at the values before the call.
slope = grad(leapfrog, argnums=2)(*start())
print("slope of the energy along each stiffness:", slope)
for i in range(3):
    moved = start()
    moved[2][i] += 1e-3
    assert abs((leapfrog(*moved) - energy) / 1e-3 - slope[i]) < 1e-2

pure = make_ir(functionalize(lambda *args: leapfrog(*args, steps=1)))(*start())
print(pure)
assert not pure.writes
assert functx.Program.parse(str(pure)) == pure
