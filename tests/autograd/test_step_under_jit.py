"""A whole step under `jit`: it does to Variables what the step does without, and what it refuses."""

import numpy as onp
import pytest

import functx
from functx import lax
from functx import numpy as np
from functx.autograd import (
    Function,
    Variable,
    checkpoint,
    enable_grad,
    forward_ad,
    grad,
    inference_mode,
    no_grad,
    saved_tensors_hooks,
)
from functx.core import tree

X = onp.array([1.0, -2.0, 0.5], "float32")


def leaf(*values):
    return Variable(onp.array(values, "float32"), requires_grad=True)


def buffer(*values):
    return Variable(onp.array(values, "float32"))


def descend(*params, rate=0.1):
    with no_grad():
        for p in params:
            p -= rate * p.grad


def state_of(x):
    grad = x.grad
    found = [x.numpy(), x._version, x.requires_grad, x.is_leaf]
    return found if grad is None else [*found, grad.numpy(), grad._version]


def run_of(build, run, calls):
    """What `calls` calls of a step return, and how each leaves the Variables and their gradients."""
    step, *variables = build()
    step = run(step)
    history = []
    for call in calls:
        before = [x.grad for x in variables]
        out = tree.map(onp.asarray, step(*call))
        kept = [x.grad is g for x, g in zip(variables, before, strict=True)]
        history.append((out, kept, [state_of(x) for x in variables]))
    return history


def check_equal(build, calls=((X,), (2 * X,), (X,)), traces=None):
    """A step is the same with and without `jit`; `traces` is how often it is traced, if that matters."""
    count = 0

    def counted(step):
        def call(*args):
            nonlocal count
            count += 1
            return step(*args)

        return functx.jit(call)

    plain, jitted = run_of(build, lambda step: step, calls), run_of(build, counted, calls)
    for one, other in zip(plain, jitted, strict=True):
        assert tree.structure(one) == tree.structure(other)
        tree.map(lambda a, b: onp.testing.assert_allclose(a, b, rtol=2e-6, atol=2e-6), one, other)
    # The first attempt finds that it is a step.
    assert traces is None or count == traces + 1


def plain_step():
    w, b = leaf(1.0, 2.0, 3.0), leaf(0.5)

    def step(x):
        loss = ((w * x + b) ** 2).sum()
        loss.backward()
        descend(w, b)
        w.grad = None
        b.grad = None
        return loss

    return step, w, b


def accumulating_step():
    w = leaf(1.0, 2.0, 3.0)

    def step(x):
        (w * x).sum().backward()
        descend(w)
        return w.grad.sum()

    return step, w


def zeroing_step():
    w = leaf(1.0, 2.0, 3.0)
    w.grad = buffer(1.0, 1.0, 1.0)

    def step(x):
        w.grad[...] = 0
        (w * w * x).sum().backward()
        with no_grad():
            w.grad *= 0.5
        descend(w)

    return step, w


def step_with_momentum():
    w, m, count = leaf(1.0, 2.0, 3.0), buffer(0.0, 0.0, 0.0), Variable(0)

    def step(x):
        (g,) = grad(((w * x) ** 2).sum(), w)
        with no_grad():
            m[...] = 0.9 * m + g
            w[...] = w - 0.1 * m
            count[...] = count + 1
        return w, {"size": (m * m).sum(), "rate": 0.1}

    return step, w, m, count


def step_on_views():
    flat = leaf(1.0, 2.0, 3.0, 4.0)
    a, b = flat[:3], flat[3:]

    def step(x):
        loss = (a * x).sum() * b.sum()
        (g,) = grad(loss, flat)
        with no_grad():
            flat[...] -= 0.1 * g
        return loss

    return step, flat


def step_on_a_flat_buffer():
    flat, grads = buffer(1.0, 2.0, 3.0, 4.0), buffer(0.0, 0.0, 0.0, 0.0)
    a, b = flat[:3].detach().requires_grad_(), flat[3:].detach().requires_grad_()
    a.grad, b.grad = grads[:3], grads[3:]

    def step(x):
        grads[...] = 0
        loss = ((a * x).sum() * b.sum()) ** 2
        loss.backward()
        with no_grad():
            flat[...] -= 0.01 * grads
        return loss, a, b

    return step, flat, grads, a, b


def step_with_tied_parameters():
    w = leaf(1.0, 2.0, 3.0)
    params = [w, w, w.detach().requires_grad_()]

    def step(x):
        loss = (params[0] * x).sum() * (params[1] * params[2]).sum()
        loss.backward()
        descend(params[0], rate=0.01)
        descend(params[2], rate=0.01)
        return loss

    return step, w, params[2]


def step_with_hooks():
    w = leaf(1.0, 2.0, 3.0)
    w.register_hook(lambda g: g.clip(-1, 1))

    def update(p):
        with no_grad():
            p -= p.grad
        p.grad = None

    w.register_post_accumulate_grad_hook(update)

    def step(x):
        y = w * w
        y.retain_grad()
        y.grad_fn.register_prehook(lambda g: (g[0] * 3,))
        y.grad_fn.register_hook(lambda ins, outs: (ins[0] + outs[0], *ins[1:]))
        handle = w.register_hook(lambda g: g * 0.5)
        loss = (y * x).sum()
        loss.register_hook(lambda g: g * 2)
        loss.backward()
        handle.remove()
        return y.grad

    return step, w


class Cube(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * x * x * g + 1


def step_with_functions_and_recomputation():
    w, v = leaf(0.1, 0.2, 0.3), leaf(1.0, 1.0, 1.0)

    def step(x):
        y = checkpoint(lambda w: np.sin(Cube.apply(w) * v), w, use_reentrant=False)
        z = checkpoint(lambda y: np.exp(y * y), y, use_reentrant=True)
        with saved_tensors_hooks(lambda y: y * 2, lambda y: y / 2):
            loss = (z * x * w).sum()
        loss.backward()
        descend(w, v)
        return loss

    return step, w, v


def step_with_a_gradient_penalty():
    w = leaf(1.0, 2.0, 3.0)

    def step(x):
        data = Variable(x, requires_grad=True)
        (g,) = grad((np.sin(w * data)).sum(), data, create_graph=True)
        ((g * g).sum() - 1).backward()
        descend(w)
        w.grad = None
        return data + 1

    return step, w


def step_with_duals():
    w, t = leaf(1.0, 2.0, 3.0), buffer(1.0, 0.0, 1.0)

    def step(x):
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(w, t)
            slope = forward_ad.unpack_dual(np.sin(dual) * x).tangent
        slope.sum().backward()
        with no_grad():
            t[...] = slope
        descend(w)
        return slope

    return step, w, t


def step_with_modes():
    w, a = leaf(1.0, 2.0, 3.0), buffer(1.0, 2.0, 3.0)

    @no_grad()
    def step(x):
        y = w * x
        with enable_grad():
            (y * w).sum().backward()
        with inference_mode():
            z = w + y
            w[...] = z
        a[...] = a * z
        return z

    return step, w, a


def step_with_control_flow():
    w, total = leaf(1.0, 2.0, 3.0), buffer(0.0, 0.0, 0.0)

    def step(x):
        row = np.asarray(x)
        y = functx.jit(lambda a, b: np.tanh(a * b) * w)(w, x)
        z = lax.fori_loop(0, 3, lambda i, y: y * 0.5 + w, y)
        loss = lax.cond(z.sum() > 2, lambda: z.sum(), lambda: (z * z).sum())
        loss.backward()
        with no_grad():
            lax.fori_loop(0, 2, lambda i, c: (total.__setitem__(i, total[i] + row[i]), c)[1], 0)
        descend(w)
        return functx.vmap(lambda row: row * w)(np.stack([x, x]))

    return step, w, total


def step_that_switches():
    w = leaf(1.0, 2.0, 3.0)

    def step(x):
        v = w.detach()
        v.requires_grad_()
        (v * v * x).sum().backward()
        w.grad = v.grad
        descend(w)
        w.requires_grad_(False)

    return step, w


@pytest.mark.parametrize(
    "build",
    [
        plain_step,
        accumulating_step,
        zeroing_step,
        step_with_momentum,
        step_on_views,
        step_on_a_flat_buffer,
        step_with_tied_parameters,
        step_with_hooks,
        step_with_functions_and_recomputation,
        step_with_a_gradient_penalty,
        step_with_duals,
        step_with_modes,
        step_with_control_flow,
        step_that_switches,
    ],
)
def test_a_step_changes_variables_as_without_jit(build):
    check_equal(build)
