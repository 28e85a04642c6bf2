"""Python loops of the kinds that users write: programs whose length does not depend on the steps."""

import jax
import numpy as np
import pytest

import functx
import functx.numpy as fnp
from functx.tools import outlined

random = np.random.RandomState(0)
MOST = 60


def normal(*shape):
    return (random.randn(*shape) * 0.3).astype("float32")


X, V, W = normal(4, 6), normal(6), normal(6, 6)
ROWS, NUMBERS = normal(MOST, 4, 6), normal(MOST + 1)
PROGRAMS = {}


def program(*args):
    def add(f):
        PROGRAMS[f.__name__] = f, args
        return f

    return add


@program(X, W)
def explicit_euler(steps, x, w):
    for _ in range(steps):
        x = x + 0.1 * fnp.tanh(x @ w)
    return x


@program(normal(20))
def heat_by_slices(steps, u):
    for _ in range(steps):
        middle = u[1:-1] + 0.1 * (u[2:] - 2 * u[1:-1] + u[:-2])
        u = fnp.concatenate([u[:1], middle, u[-1:]])
    return u


@program(normal(20))
def heat_in_place(steps, u):
    u = u.copy()
    for _ in range(steps):
        u[1:-1] += 0.1 * (u[2:] - 2 * u[1:-1] + u[:-2])
    return u


@program(np.float32(0.3), np.float32(0.2))
def pendulum(steps, q, p):
    for _ in range(steps):
        p = p - 0.01 * fnp.sin(q)
        q = q + 0.01 * p
    return q * p


@program(V, W)
def adam(steps, x, w):
    m, v = fnp.zeros_like(x), fnp.zeros_like(x)
    for t in range(1, steps + 1):
        g = functx.grad(lambda x: fnp.sum((x @ w - 1) ** 2))(x)
        m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
        x = x - 0.01 * (m / (1 - 0.9**t)) / (fnp.sqrt(v / (1 - 0.99**t)) + 1e-3)
    return x


@program(V[:4], W[:4, :4], ROWS[:, 0, :4])
def kalman(steps, mean, w, seen):
    cov, found = fnp.eye(4), []
    for t in range(steps):
        mean, cov = w @ mean, w @ cov @ w.T + 0.1 * fnp.eye(4)
        gain = fnp.linalg.solve(cov + fnp.eye(4), cov).T
        mean, cov = mean + gain @ (seen[t] - mean), cov - gain @ cov
        found.append(mean)
    return fnp.stack(found)


@program(X, ROWS, W, normal(6))
def recurrent(steps, h, xs, w, b):
    found = []
    for t in range(steps):
        h = fnp.tanh(xs[t] + h @ w + b)
        found.append(h)
    return fnp.stack(found, axis=1)


@program(X, ROWS, W)
def recurrent_over_rows(steps, h, xs, w):
    loss = 0.0
    for x in list(xs)[:steps]:
        h = fnp.tanh(x + h @ w)
        loss = loss + fnp.sum(h**2)
    return loss


@program(X, X, ROWS, normal(12, 24))
def long_short_term_memory(steps, h, c, xs, w):
    found = []
    for t in range(steps):
        i, f, g, o = fnp.split(fnp.concatenate([xs[t], h], axis=1) @ w, 4, axis=1)
        c = functx.nn.sigmoid(f) * c + functx.nn.sigmoid(i) * fnp.tanh(g)
        h = functx.nn.sigmoid(o) * fnp.tanh(c)
        found.append(h)
    return fnp.stack(found)


@program(V, W)
def langevin(steps, x, w):
    keys = functx.random.split(functx.random.key(0), MOST)
    for i in range(steps):
        x = x - 0.01 * (w @ x) + 0.1 * functx.random.normal(keys[i], x.shape)
    return x


@program(V, NUMBERS)
def uneven_times(steps, x, ts):
    found = [x]
    for i in range(steps):
        x = x + (ts[i + 1] - ts[i]) * fnp.sin(x * ts[i])
        found.append(x)
    return fnp.stack(found)


@program(V, ROWS[:, 0])
def control(steps, x, us):
    cost = 0.0
    for i in range(steps):
        cost = cost + fnp.sum(x**2) + 0.1 * fnp.sum(us[i] ** 2)
        x = fnp.sin(x) + 0.1 * us[i]
    return cost


@program(np.float32(0.3))
def horner(steps, x):
    total = 0.0 * x
    for k in range(steps):
        total = total * x + 1.0 / (k + 1)
    return total


@program(NUMBERS)
def running_mean(steps, x):
    found, mean = fnp.zeros(MOST), 0.0
    for i in range(steps):
        mean = mean * 0.9 + x[i]
        found[i] = mean
    return found


@program(normal(3), normal(3))
def kepler(steps, x, v):
    for _ in range(steps):
        v = v - 0.01 * x / (fnp.sum(x**2) + 0.1) ** 1.5
        x = x + 0.01 * v
    return x


@program(normal(6 * MOST))
def windows_side_by_side(steps, x):
    windows = [x[6 * i : 6 * i + 6] for i in range(steps)]
    return fnp.stack([fnp.max(window) * fnp.sum(window**2) for window in windows])


def gradient(name, steps):
    f, args = PROGRAMS[name]

    def loss(*args):
        return fnp.sum(fnp.sin(f(steps, *args)))

    return functx.grad(loss, tuple(range(len(args)))), args


@program(normal(5, 4))
def transport_by_logsumexp(steps, cost):
    f, g = fnp.zeros(5), fnp.zeros(4)
    for _ in range(steps):
        f = -functx.nn.logsumexp(g - cost / 0.3, 1)
        g = -functx.nn.logsumexp(f[:, None] - cost / 0.3, 0)
    return f


@pytest.fixture(autouse=True)
def switched_by_the_test_alone():
    with functx.config.set(outline="never", memory="off"):
        yield


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_gradient_of_a_loop_is_as_long_for_more_steps(name):
    def length(steps):
        f, args = gradient(name, steps)
        return len(outlined(functx.make_ir(functx.functionalize(f))(*args), "always"))

    assert length(40) == length(30)


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_gradient_of_a_rolled_loop_is_that_of_the_flat_program(name):
    f, args = gradient(name, 8)
    flat = functx.jit(f, outline="never")(*args)
    rolled = functx.jit(f, outline="always")(*args)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-4, atol=1e-6), rolled, flat)


def test_a_loop_of_operations_with_finite_derivatives_is_one_before_it_is_differentiated():
    f, args = gradient("transport_by_logsumexp", 12)
    with functx.config.set(outline="always"):
        program = functx.make_ir(f)(*args)
    loops = [eqn.primitive for eqn in program if eqn.primitive.name == "scan"]
    assert [loop.reverse for loop in loops] == [False, True], program
