"""A whole step under `jit`: it does to Variables what the step does without, and what it refuses."""

import gc
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from weakref import ref

import jax
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
    functional,
    grad,
    inference_mode,
    no_grad,
    saved_tensors_hooks,
)
from functx.autograd.graph import register_multi_grad_hook
from functx.autograd.recorded import step_traces
from functx.core import tree
from functx.core.errors import (
    AutogradError,
    AutogradInTransformError,
    CallbackWriteError,
    ConcretizationError,
    EscapedTracerError,
    LostDerivativeError,
    RecompilationWarning,
)
from functx.lowering.jax_bridge import _thread_state
from functx.lowering.jitted_function import JittedFunction

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
    assert traces is None or count == traces


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


def step_with_hooks_of_several_values():
    w, summed = leaf(1.0, 2.0, 3.0), buffer(0.0, 0.0, 0.0)

    def add(gradients):
        summed[...] = summed + gradients[0] + gradients[1]

    def step(x):
        a, b = w * x, w * 3
        handle = register_multi_grad_hook([a, b], add)
        (a * b).sum().backward(inputs=[w])
        handle.remove()
        (g,) = grad(
            (w**3).sum(), w, onp.eye(3, dtype="float32")[:2].sum(0).sum(), create_graph=True
        )
        y = w**3
        (rows,) = grad(y, w, onp.eye(3, dtype="float32"), is_grads_batched=True)
        descend(w, rate=0.01)
        return g, rows, functional.hessian(lambda w: (w**3).sum(), w)

    return step, w, summed


class Cube(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * x * x * g + 1


class Twice(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        x *= 2
        return x

    @staticmethod
    def backward(ctx, g):
        return g * 2


def step_with_functions_that_take_a_context():
    w, m = leaf(0.1, 0.2, 0.3), buffer(1.0, 2.0, 3.0)

    def step(x):
        loss = (Twice.apply(w * x) * Cube.apply(w)).sum()
        loss.backward()
        Twice.apply(m)
        descend(w)
        return loss

    return step, w, m


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
        step_with_hooks_of_several_values,
        step_with_functions_that_take_a_context,
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


def test_a_step_is_traced_again_where_what_it_finds_has_changed():
    w, unrelated = leaf(1.0, 2.0, 3.0), leaf(1.0)
    traces = []

    @functx.jit
    def step(x, sign=1):
        traces.append(len(traces))
        loss = (w * x).sum() * sign
        if w.requires_grad:
            loss.backward()
        with no_grad():
            w[...] = w - 1
        return loss

    def traces_of(*args, **kwargs):
        before = len(traces)
        step(*args, **kwargs)
        return len(traces) - before

    assert traces_of(X) == 1
    assert (traces_of(X), traces_of(X), w._version) == (1, 0, 3)
    onp.testing.assert_allclose(w.grad.numpy(), 3 * X)
    w.grad = None
    assert traces_of(X) == 0
    handle = w.register_hook(lambda g: 2 * g)
    assert (traces_of(X), traces_of(X)) == (1, 0)
    onp.testing.assert_allclose(w.grad.numpy(), 5 * X)
    handle.remove()
    assert traces_of(X) == 0
    w.requires_grad_(False)
    assert (traces_of(X), traces_of(X)) == (1, 0)
    onp.testing.assert_allclose(w.grad.numpy(), 6 * X)
    w.requires_grad_(True)
    assert traces_of(X) == 0
    assert (traces_of(X[:1]), traces_of(onp.stack([X, X])), traces_of(X, sign=2)) == (1, 1, 1)
    unrelated.requires_grad_(False)
    with no_grad():
        w.requires_grad_(False)
        assert (traces_of(X), traces_of(X)) == (1, 0)
    assert traces_of(X) == 0
    functx.clear_caches()
    assert traces_of(X) == 1


def test_a_gradient_is_found_through_its_variable_unless_it_has_another_name():
    w, log = leaf(1.0, 2.0), []

    @functx.jit
    def step():
        log.append("traced")
        before = w.grad
        w.grad = None
        (w * w).sum().backward()
        with no_grad():
            w.grad += 0.5 * before

    w.grad = buffer(0.0, 0.0)
    for _ in range(3):
        step()
    assert w.grad.tolist() == [3.5, 7.0] and len(log) == 1
    # The first object is alive: the function may know it by another name.
    kept = w.grad
    step()
    other = buffer(1.0, 1.0)
    w.grad = other
    step()
    assert w.grad.tolist() == [2.5, 4.5] and kept.tolist() == [3.5, 7.0]

    v = leaf(1.0, 2.0)
    v.grad = named = buffer(0.0, 0.0)

    @functx.jit
    def read_both():
        (v * v).sum().backward()
        with no_grad():
            v.grad *= 2
        return named + v.grad

    assert read_both().tolist() == [8.0, 16.0]
    v.grad = buffer(1.0, 1.0)
    assert read_both().tolist() == [10.0, 18.0]
    assert (named.tolist(), v.grad.tolist()) == ([4.0, 8.0], [6.0, 10.0])


def snapshot(*variables):
    return [
        (x.numpy().tolist(), x.grad, x._version, x.requires_grad, x._hooks and len(x._hooks.values))
        for x in variables
    ]


def test_a_step_that_raises_leaves_all_variables_as_they_were():
    w, v, u, m = leaf(1.0, 2.0), leaf(1.0), leaf(1.0), buffer(0.0, 0.0)
    v.grad = buffer(5.0)
    part, fails, seen = w[:1], True, []

    @functx.jit
    def step():
        v.register_hook(lambda g: seen.append(g))
        w.register_post_accumulate_grad_hook(lambda p: None)
        loss = (w * v * u.detach()).sum() * part.sum()
        loss.backward()
        w.retain_grad()
        u.requires_grad_(False)
        with no_grad():
            w[...] = w - w.grad
            m[...] = m + 1
            v.grad = None
            part[...] = 3.0
        if fails:
            raise KeyError("a mistake")

    before = snapshot(w, v, u, m, part)
    for _ in range(2):
        with pytest.raises(KeyError):
            step()
        assert snapshot(w, v, u, m, part) == before
    (w.sum() * v).sum().backward()
    assert len(seen) == 2
    assert (w.grad.tolist(), v.grad.tolist()) == ([1.0, 1.0], [8.0])


def test_a_value_is_not_read_in_a_step_nor_in_its_hooks():
    w, m = leaf(1.0, 2.0), buffer(1.0)

    def step_with(hook):
        def step():
            y = w * w
            y.register_hook(hook)
            y.sum().backward()
            descend(w)

        return functx.jit(step)

    def look(gradient):
        if gradient[0] > 1:
            return gradient
        return None

    for hook in (look, lambda g: g.numpy(), lambda g: float(g[0]), lambda g: m.item()):
        with pytest.raises(
            ConcretizationError, match=r"(?s)Variable<.*in jit\(step\).*at test_step"
        ):
            step_with(hook)()
    shown = []
    step_with(lambda g: shown.append(f"{g!r} {g!s}"))()
    assert shown == ["Variable<f32[2]> Variable<f32[2]>"]
    assert w._version == 1


def test_backward_stays_refused_inside_other_transforms_within_and_around():
    w = leaf(1.0, 2.0)

    def step(x):
        (w * x).sum().backward()
        return x

    def around(transform):
        return lambda: transform(functx.jit(step))

    def within(transform):
        return lambda: functx.jit(lambda: transform(step))()

    x = onp.ones(2, "float32")
    transforms = {
        "grad": lambda f: functx.grad(lambda x: f(x).sum())(x),
        "vjp": lambda f: functx.vjp(f, x),
        "jvp": lambda f: functx.jvp(f, (x,), (x,)),
        "vmap": lambda f: functx.vmap(f)(x),
        "make_ir": lambda f: functx.make_ir(f)(x),
    }
    for transform in transforms.values():
        for call in (around(transform), within(transform)):
            with pytest.raises(AutogradInTransformError, match="inside a transform"):
                call()
    with pytest.raises(AutogradInTransformError, match="inside a transform"):
        jax.jit(functx.jit(step))(x)
    with pytest.raises(AutogradInTransformError, match="inside a transform"):
        functx.jit(step).lower(x)
    jitted = functx.jit(step)
    jitted(x)
    for transform in transforms.values():
        with pytest.raises(AutogradInTransformError, match="inside a transform"):
            transform(jitted)
    with pytest.raises(AutogradInTransformError, match="inside a transform"):
        jax.jit(jitted)(x)
    assert w.grad.tolist() == [1.0, 1.0]
    with pytest.raises(AutogradInTransformError, match="read the Variables from around"):
        functx.jit(lambda w: (w * w).sum().backward())(w)


def step_with_state_that_is_made_when_needed():
    w, state = leaf(1.0, 2.0, 3.0), {}

    def step(x):
        loss = (w * w * x).sum()
        loss.backward()
        if not state:
            state["first"], state["m"] = w.grad.copy(), Variable(onp.zeros(3, "float32"))
            state["old"] = w.detach()
            state["part"] = w[:1]
        with no_grad():
            state["m"][...] = 0.9 * state["m"] + w.grad.detach()
            w[...] = w - 0.1 * state["m"] - state["first"]
        w.grad = None
        return loss, state

    return step, w


def test_what_a_step_stores_has_its_value_and_is_found_by_the_next_trace():
    check_equal(step_with_state_that_is_made_when_needed, traces=2)
    for run in (lambda f: f, functx.jit):
        w, kept = leaf(1.0, 2.0), []

        def step(w=w, kept=kept):
            y = w * w
            y.sum().backward(retain_graph=True)
            kept.extend([y * 3, w.grad])
            w.grad = None

        step = run(step)
        step()
        step()
        assert [x.tolist() for x in kept] == [[3.0, 12.0], [2.0, 4.0]] * 2
        kept[0].sum().backward()
        assert w.grad.tolist() == [6.0, 12.0]


def test_what_a_step_that_raises_has_stored_is_used_inside_it_alone():
    w, kept = leaf(1.0, 2.0), []

    @functx.jit
    def step():
        y = w * w
        y.sum().backward()
        kept.extend([y, w.grad, Variable(1.0), w.detach()])
        raise KeyError

    with pytest.raises(KeyError):
        step()
    for x in kept:
        for use in (lambda x: x + 1, lambda x: x.numpy(), lambda x: (x * w).sum().backward()):
            with pytest.raises(
                EscapedTracerError, match=r"must be used inside it; got one of jit\(step\)"
            ):
                use(x)
        assert "Variable<f32" in repr(x)
    with pytest.raises(EscapedTracerError):
        functx.jit(lambda: kept[0] + w)()
    assert w.tolist() == [1.0, 2.0] and w.grad is None


def test_a_step_keeps_no_variable_alive():
    class Model:
        def __init__(self):
            self.w = leaf(1.0, 2.0)
            self.w.grad = buffer(0.0, 0.0)

    models = [Model()]

    @functx.jit
    def step():
        (models[0].w ** 2).sum().backward()
        descend(models[0].w)

    def add_hook(w):
        w.register_hook(lambda g: g + 0 * w)

    step()
    add_hook(models[0].w)
    step()
    dead = [ref(models[0].w), ref(models[0].w.grad)]
    models[0] = Model()
    gc.collect()
    assert [r() for r in dead] == [None, None]
    step()
    onp.testing.assert_allclose(models[0].w.numpy(), [0.8, 1.6])


def test_a_jitted_step_is_freed_after_its_last_use():
    w = leaf(1.0, 2.0)

    @functx.jit
    def step():
        (w * w).sum().backward()

    step()
    (function,) = [f for f in JittedFunction.instances if f.fun is step.__wrapped__]
    dead = ref(function)
    gc.collect()
    gc.disable()
    try:
        del step, function
        assert dead() is None
    finally:
        gc.enable()


def test_mistakes_of_steps_are_named():
    w, y = leaf(1.0, 2.0), leaf(1.0, 2.0) * 3
    total, flat = buffer(0.0, 0.0), buffer(0.0, 0.0, 0.0)
    table = Variable(onp.ones((3, 2), "float32"))

    def add_to_total():
        total[...] = total + w

    def leave_a_hook():
        w.register_hook(lambda g: g)

    def take_a_view_as_gradient():
        # The index is a value of the step.
        w.grad = table[total.sum().astype("int32")]

    cases = [
        (lambda: (w * y).sum().backward(), LostDerivativeError, "`mul`, which is computed from an"),
        (lambda: y.sum().backward(), LostDerivativeError, "`mul`, which is computed from an"),
        (
            lambda: y.register_hook(lambda g: g),
            LostDerivativeError,
            "`mul`, which is computed from",
        ),
        (add_to_total, AutogradError, r"jit\(.*must not get a history from it; got a write to Var"),
        (leave_a_hook, AutogradError, "a hook that the function registers on a Variable from"),
        (
            take_a_view_as_gradient,
            AutogradError,
            "a view of a Variable from around the function, at an",
        ),
        (lambda: w.__setitem__(0, 1.0), AutogradError, "a leaf that requires a gradient must not"),
    ]
    before = snapshot(w, total, flat)
    for f, error, message in cases:
        with pytest.raises(error, match=message) as caught:
            functx.jit(f)()
        assert "at test_step_under_jit.py" in str(caught.value)
        assert caught.value.__suppress_context__ or caught.value.__context__ is None
        assert snapshot(w, total, flat) == before


def step_that_sets_constants():
    w, a, b = leaf(1.0, 2.0, 3.0), buffer(1.0, 2.0, 3.0), buffer(4.0, 5.0, 6.0)
    ones = onp.ones(3, "float32")

    def step(x):
        w.grad = Variable(ones)
        with no_grad():
            a[...], b[...] = b.copy(), a.copy()
            w[...] = x
        b.grad = Variable(x)
        a.grad = b.grad
        return ones, a, x, 2.0, None

    return step, w, a, b


def step_with_arguments_of_all_kinds():
    w = leaf(1.0, 2.0, 3.0)
    key = jax.random.key(0)

    def step(x, arrays, typed_key, *, scale):
        noise = functx.random.normal(typed_key, (3,)) + functx.random.normal(key, (3,))
        loss = (w * (x + arrays["a"][0] * scale) + noise).sum() + arrays["n"]
        loss.backward()
        descend(w)
        arrays["a"][0] += 1
        return {"loss": loss, "a": arrays["a"]}

    return lambda *args: step(*args, scale=2), w


def step_inside_a_step():
    w = leaf(1.0, 2.0, 3.0)

    def inner(x):
        (w * w * x).sum().backward()
        with no_grad():
            w[...] = w - 0.1 * w.grad
        return w * 2

    def step(x):
        w.grad = None
        run = functx.jit(inner) if step_traces.count else inner
        return run(run(x))

    return step, w


def step_in_modes(mode):
    def build():
        w, a = leaf(1.0, 2.0, 3.0), buffer(1.0, 2.0, 3.0)

        def step(x):
            with mode():
                a[...] = w * x + a
                return w * a

        return step, w, a

    return build


@pytest.mark.parametrize(
    "build",
    [
        step_that_sets_constants,
        step_inside_a_step,
        step_in_modes(no_grad),
        step_in_modes(inference_mode),
    ],
)
def test_steps_of_steps_constants_and_modes_are_as_without_jit(build):
    check_equal(build)


def test_arguments_of_a_step_may_be_trees_keys_and_arrays_that_it_writes_to():
    def calls():
        return [
            (X, {"a": [onp.full(3, i, "float32")], "n": i}, jax.random.key(i)) for i in range(3)
        ]

    plain, jitted = calls(), calls()
    results = [
        run_of(step_with_arguments_of_all_kinds, run, given)
        for run, given in ((lambda step: step, plain), (functx.jit, jitted))
    ]
    tree.map(lambda a, b: onp.testing.assert_allclose(a, b, rtol=1e-5), *results)
    assert [c[1]["a"][0][0] for c in jitted] == [1.0, 2.0, 3.0]


def test_an_argument_that_shares_memory_with_what_a_step_writes_sees_the_writes():
    def build(run):
        w, m = leaf(1.0, 2.0), buffer(1.0, 2.0)

        def step(x):
            with no_grad():
                w[...] = w + 1
                m[...] = x * w
            return x * 1

        def write(a, b):
            a[:] = b + np.asarray(w[0])
            (w * 1).sum().backward()

        return w, m, run(step), run(write)

    for run in (lambda f: f, functx.jit):
        w, m, step, write = build(run)
        assert step(w).tolist() == [2.0, 3.0]
        assert step(m[:]).tolist() == [12.0, 36.0]
        assert step(m.detach()).tolist() == [48.0, 180.0]
        x = onp.ones(3, "float32")
        write(x[1:], x[:2])
        assert x.tolist() == [1.0, 5.0, 5.0]


def test_a_value_that_the_user_holds_is_not_overwritten_and_others_are():
    w, m = leaf(*range(1000)), buffer(*range(1000))

    @functx.jit
    def step():
        (w * w).sum().backward()
        with no_grad():
            m[...] = 0.5 * m + w.grad
            w[...] = w - 0.1 * m
        w.grad = None

    def addresses():
        return {x.read().look().unsafe_buffer_pointer() for x in (w, m)}

    for _ in range(3):
        step()
    before = addresses()
    step()
    assert addresses() == before
    held, sum_before = w.compute(), m.sum()
    copy = onp.array(held)
    step()
    onp.testing.assert_array_equal(held, copy)
    assert sum_before.item() != m.sum().item()
    shared = Variable(m)
    kept = shared.numpy()
    step()
    onp.testing.assert_array_equal(shared.numpy(), kept)


def test_a_function_that_changes_nothing_keeps_its_history():
    w = leaf(1.0, 2.0)

    @functx.jit
    def loss(x):
        with saved_tensors_hooks(lambda y: y, lambda y: y):
            return (w * w * x).sum()

    def train_or_not(x, train):
        out = (w * x).sum()
        if train:
            out.backward()
        return out

    x = onp.ones(2, "float32")
    v = leaf(1.0, 1.0)
    for _ in range(2):
        assert grad(loss(x), w)[0].tolist() == [2.0, 4.0]
        assert grad(loss(v), v)[0].tolist() == [1.0, 4.0]
    assert grad(functx.jit(lambda v: Variable(v) * w * w)(v).sum(), w)[0].tolist() == [2.0, 4.0]
    train_or_not = functx.jit(train_or_not, static_argnames="train")
    train_or_not(x, train=True)
    for _ in range(2):
        assert grad(train_or_not(x, train=False), w)[0].tolist() == [1.0, 1.0]
        with no_grad():
            assert not train_or_not(x, train=False).requires_grad
    w.grad = None
    train_or_not(x, train=True)
    assert not train_or_not(x, train=True).requires_grad
    assert functx.jit(lambda: w.grad * 2)().tolist() == [4.0, 4.0]


@pytest.mark.parametrize("own_thread", [True, False])
def test_a_callback_must_not_write_to_a_variable_that_its_step_changes(own_thread):
    w, factor = leaf(1.0, 1.0), Variable(1.0)
    w.grad = buffer(0.0, 0.0)

    def assign(x):
        x[...] = x + 1

    acts = [lambda: (w * 2).sum().backward(), lambda: assign(factor)]

    def call(x, act):
        with ThreadPoolExecutor(1) as pool:
            acts[act]() if own_thread else pool.submit(with_depth, acts[act]).result()
        return x

    def with_depth(act):
        _thread_state.depth = 1  # as XLA calls from a thread of its own
        act()

    @functx.jit
    def step(x, act):
        x = functx.pure_callback(call, x, x, act)
        factor[...] = factor * 2
        (w * x).sum().backward()

    for act, given in enumerate(["adds to a gradient of the step", "changes too"]):
        with pytest.raises(CallbackWriteError, match=given):
            step(onp.ones(2, "float32"), act)
    assert w.grad.tolist() == [0.0, 0.0]


def test_threads_share_a_step():
    params = [leaf(1.0, 2.0) for _ in range(4)]
    shared = buffer(0.0)
    lock = Lock()

    @functx.jit
    def count_up():
        shared[...] = shared + 1

    def work(w):
        @functx.jit
        def step(x):
            (w * x).sum().backward()
            descend(w)
            w.grad = None

        for _ in range(5):
            step(onp.ones(2, "float32"))
            with lock:
                count_up()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, params))
    for w in params:
        onp.testing.assert_allclose(w.numpy(), [0.5, 1.5], rtol=1e-5)
    assert shared.item() == 20


def test_effects_of_a_step_happen_in_each_call(capfd):
    w = leaf(1.0)

    @functx.jit
    def step():
        functx.debug.print("w {}", w)
        w.sum().backward()
        descend(w, rate=1.0)

    for _ in range(3):
        step()
    functx.effects_barrier()
    assert capfd.readouterr().out.split() == ["w", "[1.]", "w", "[0.]", "w", "[-2.]"]


def test_a_step_of_64_bit_values_keeps_them():
    with jax.enable_x64(True):
        w = Variable(onp.array([1.0, 2.0]), requires_grad=True)

    @functx.jit
    def step():
        (w / 3).sum().backward()
        descend(w)

    step()
    with jax.enable_x64(True):
        step()
        onp.testing.assert_allclose(w.numpy(), [0.9, 1.9], rtol=1e-12)
        assert w.dtype == w.grad.dtype == "float64"


class Model:
    def __init__(self, *params):
        self.params = list(params)
        self.first = params[0]

    def loss(self, x):
        return sum([(p * x).sum() * 3**i for i, p in enumerate([self.first, *self.params])])


class SlottedModel:
    __slots__ = ("first",)

    def __init__(self, first):
        self.first = first


module_state = {"w": None}


def step_on_a_list(params, model, slotted):
    def step(x):
        (params[0] * x + 10 * params[1] * x).sum().backward()

    def change():
        params[0], params[1] = params[1], params[0]

    return step, change


def step_on_attributes(params, model, slotted):
    def change():
        model.first = leaf(5.0, 5.0)

    return lambda x: model.loss(x).backward(), change


def step_on_a_list_that_grows(params, model, slotted):
    return lambda x: model.loss(x).backward(), lambda: model.params.append(leaf(1.0, 1.0))


def step_on_slots(params, model, slotted):
    def change():
        slotted.first = params[1]

    return lambda x: (slotted.first * x).sum().backward(), change


def step_on_a_global(params, model, slotted):
    module_state["w"] = params[0]

    def helper(x):
        return module_state["w"] * x

    return lambda x: helper(x).sum().backward(), lambda: module_state.update(w=params[1])


def step_on_a_variable_of_an_enclosing_function(params, model, slotted):
    w = params[0]

    def change():
        nonlocal w
        w = params[1]

    def step(x, scale=params[1]):
        (w * x * scale).sum().backward()

    return step, change


def step_on_state_by_variable(params, model, slotted):
    state = {params[0]: params[1]}

    def change():
        state[params[0]] = model.params[1]

    return lambda x: (state[params[0]] * x).sum().backward(), change


def step_on_an_attribute_of_a_class(params, model, slotted):
    class Shared:
        w = params[0]

    shared = Shared()

    def change():
        shared.w = params[1]

    return lambda x: (shared.w * x).sum().backward(), change


class BoundStep(Model):
    def step(self, x):
        self.loss(x).backward()


def step_that_is_a_bound_method(params, model, slotted):
    bound = BoundStep(*params)

    def change():
        bound.first = params[1]

    return no_grad()(enable_grad()(bound.step)), change


@pytest.mark.parametrize(
    "build",
    [
        step_on_a_list,
        step_on_attributes,
        step_on_a_list_that_grows,
        step_on_slots,
        step_on_a_global,
        step_on_a_variable_of_an_enclosing_function,
        step_on_state_by_variable,
        step_on_an_attribute_of_a_class,
        step_that_is_a_bound_method,
    ],
)
def test_a_step_uses_the_variables_that_are_where_it_reads_them_now(build):
    def run_with(transform):
        params, others = [leaf(1.0, 2.0), leaf(3.0, 4.0)], [leaf(5.0, 6.0), leaf(7.0, 8.0)]
        known = [*params, *others]
        model, slotted = Model(*others), SlottedModel(params[0])
        step, change = build(params, model, slotted)
        step = transform(step)
        found = []
        for i in range(5):
            if i in (2, 4):
                change()
            step(X[:2] * (i + 1))
            known = {id(x): x for x in (*known, *params, *model.params, model.first)}.values()
            found.append([x.grad.numpy().tolist() if x.grad is not None else None for x in known])
        return found

    assert run_with(functx.jit) == run_with(lambda step: step)


def test_a_step_may_read_objects_whose_attributes_raise_and_large_data():
    class Raising:
        __slots__ = ("__dict__", "broken")

        def __getattribute__(self, name):
            if name == "broken":
                raise RuntimeError("a mistake")
            return object.__getattribute__(self, name)

    owner, data, w = Raising(), list(range(100_000)), leaf(1.0, 2.0)
    owner.w = w

    @functx.jit
    def step(x):
        (owner.w * x * data[1]).sum().backward()

    for _ in range(2):
        step(X[:2])
    assert w.grad.tolist() == [2.0, -4.0]


def test_a_step_is_traced_once_while_its_variables_stay_where_they_are():
    models = {"one": [Model(leaf(1.0, 2.0), leaf(3.0, 4.0))]}
    traces = []

    @functx.jit
    def step(x):
        traces.append(1)
        (model,) = models["one"]
        model.loss(x).backward()
        descend(*model.params)
        for p in model.params:
            p.grad = None

    for _ in range(5):
        step(X[:2])
        models["one"][0].calls = len(traces)
    assert len(traces) == 1


def through_a_method(w, log):
    class Trainer:
        def __init__(self):
            self.w = w

        def step(self, x):
            log.append(0)
            self.walk((self.w * x).sum())

        def walk(self, loss):
            loss.backward()

    return Trainer().step


def through_grad(w, log):
    def step(x):
        log.append(0)
        (g,) = grad((w * x).sum(), [w])
        w.grad = g

    return step


def through_an_argument(w, log):
    """Its first act is a method of an argument, before it reads a Variable from around it."""

    def step(x):
        log.append(0)
        x.requires_grad_()
        (w * x).sum().backward()
        return x.grad

    return lambda x: step(Variable(x))


def without_a_walk(w, log):
    def step(x):
        log.append(0)
        with no_grad():
            w[...] = w + x
        w.grad = Variable(x) * 1

    return step


@pytest.mark.parametrize(
    ("build", "traces"),
    [
        (through_a_method, 1),
        (through_an_argument, 1),
        # The first attempt finds that it is a step.
        (through_grad, 2),
        (without_a_walk, 2),
    ],
)
def test_code_before_the_first_act_runs_once_where_the_function_names_backward(build, traces):
    found = []
    for run in (lambda f: f, functx.jit):
        w, log = leaf(1.0, 2.0), []
        step = run(build(w, log))
        for _ in range(3):
            w.grad = None
            step(X[:2])
        found.append((w.tolist(), w.grad.tolist()))
    assert found[0] == found[1] and len(log) == traces


def slope_of(w, walks):
    """A derivative that has a history itself, unless the function walks."""
    y = (w**3).sum()
    if walks:
        y.backward()
    return grad(y, w)[0]


def test_a_function_that_only_names_backward_is_as_before():
    w, log, walks = leaf(1.0, 2.0), [], False

    @functx.jit
    def loss(x):
        log.append(0)
        y = (w * x).sum()
        if walks:
            y.backward()
        if x.ndim > 1:
            raise KeyError("mine")
        return y

    for _ in range(3):
        loss(X[:2]).backward()
    assert w.grad.tolist() == [3.0, -6.0]
    # The second attempt is the trace of one operation, whose result has a history.
    assert len(log) == 2
    with pytest.raises(KeyError, match="mine"):
        loss(X[None, :2])
    (slopes,) = grad(functx.jit(lambda: slope_of(w, walks))().sum(), w)
    assert slopes.tolist() == [6.0, 12.0]
    v = leaf(1.0, 2.0)
    functx.jit(lambda v: v.backward() if walks else (v * v).sum())(v).backward()
    assert v.grad.tolist() == [2.0, 4.0]
    # A step would refuse functions of JAX.
    mixed = functx.jit(lambda x: w.sum() + jax.numpy.sum(x) if not walks else w.backward())
    assert [float(mixed(X)) for _ in range(2)] == [2.5, 2.5]


def step_that_rebinds_state():
    w, state = leaf(1.0, 2.0, 3.0), Model(buffer(0.0, 0.0, 0.0))
    moments = {"m": None}

    def step(x):
        ((w * x) ** 2).sum().backward()
        with no_grad():
            m = moments["m"]
            moments["m"] = w.grad * 1 if m is None else 0.9 * m + w.grad
            w[...] = w - 0.01 * moments["m"]
            state.first = 0.9 * state.first + 0.1 * w
        w.grad = None
        return state.first * 1, moments["m"] * 1

    return step, w


def step_that_exchanges_its_variables():
    w, v = leaf(1.0, 2.0, 3.0), leaf(4.0, 5.0, 6.0)
    params = [w, v]

    def step(x):
        (params[0] * x).sum().backward()
        params[0], params[1] = params[1], params[0]

    return step, w, v


def step_that_accumulates_into_a_variable_from_around():
    w, g = leaf(1.0, 2.0, 3.0), buffer(5.0, 6.0, 7.0)

    def step(x):
        w.grad = g
        (w * x).sum().backward()
        return w.grad * 1

    return step, w, g


@pytest.mark.parametrize(
    "build",
    [
        step_that_rebinds_state,
        step_that_exchanges_its_variables,
        step_that_accumulates_into_a_variable_from_around,
    ],
)
def test_a_step_that_puts_others_in_place_of_what_it_reads_is_as_without_jit(build):
    check_equal(build, calls=[(X * i,) for i in range(1, 6)])


def test_a_step_may_begin_with_a_step():
    def run_with(transform):
        w = leaf(1.0, 2.0, 3.0)

        @transform
        def inner(x):
            (w * x).sum().backward()

        @transform
        def middle(x):
            inner(x)

        @transform
        def outer(x):
            middle(x)
            inner(2 * x)
            return w * 1

        return [outer(X * i).tolist() for i in range(3)], w.grad.tolist()

    assert run_with(functx.jit) == run_with(lambda step: step)


def test_what_is_stored_before_the_first_act_of_a_step_is_named():
    w, state = leaf(1.0, 2.0), {"m": buffer(0.0, 0.0)}

    @functx.jit
    def step(x):
        with no_grad():
            state["m"] = state["m"] * 0.9 + x
        w.grad = None

    with pytest.raises(EscapedTracerError, match="store it after that act, or write it to a Var"):
        step(X[:2])


def test_a_step_that_is_compiled_again_and_again_is_warned_of():
    w = leaf(1.0, 2.0)

    @functx.jit
    def step(x):
        (w * x).sum().backward()

    with pytest.warns(RecompilationWarning, match=r"step: one call.*\n.*argument `x`: f32\[6,2\]"):
        for i in range(7):
            step(onp.ones((i + 1, 2), "float32"))


def test_a_step_that_is_traced_in_each_call_is_warned_of_once():
    kept, variables, traces = [None], [Variable([1.0, 2.0]), Variable([3.0, 4.0])], 0

    @functx.jit
    def storing(x):
        nonlocal traces
        traces += 1
        variables[0][...] = x * 2.0
        kept[0] = x

    @functx.jit
    def replacing(x):
        nonlocal traces
        traces += 1
        variables[1][...] = x
        variables[0], variables[1] = variables[1], variables[0]

    for step, reason in (
        (storing, "a value that the function stores"),
        (replacing, "the Variables"),
    ):
        traces = 0
        with pytest.warns(
            RecompilationWarning, match=rf"jit\({step.__name__}\): a step .*\n.*{reason}"
        ) as found:
            for _ in range(8):
                step(X[:2])
        assert len(found) == 1
        assert traces >= 8


def whole(w, buffer):
    w.grad = w.grad[...]


def detached(w, buffer):
    w.grad = w.grad.detach()


def reshaped(w, buffer):
    w.grad = w.grad.reshape(2)


def reversed_of_reversed(w, buffer):
    w.grad = w.grad[::-1][::-1]


def part_of_a_buffer(w, buffer):
    buffer[1:3] += w.grad
    w.grad = buffer[1:3]


def part_of_a_detached_buffer(w, buffer):
    buffer[1:3] += w.grad
    w.grad = buffer.detach()[1:3]


def memory_of_the_leaf(w, buffer):
    w.grad = w.detach()


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize(
    ("change", "traces"),
    [
        (whole, 2),
        (detached, 2),
        (reshaped, 2),
        (reversed_of_reversed, None),
        (part_of_a_buffer, 2),
        # The detached array is another one in each call.
        (part_of_a_detached_buffer, None),
        (memory_of_the_leaf, 2),
    ],
)
def test_a_view_that_a_step_makes_becomes_a_gradient(change, traces, before):
    """It shares memory with what it is a view of, also after the step."""
    found, count = [], 0
    for run in (lambda f: f, functx.jit):
        w, memory = leaf(1.0, 2.0), buffer(0.0, 0.0, 0.0, 0.0)
        w.grad = buffer(1.0, 1.0) if before else None
        log, count = [], 0

        def step(x, w=w, memory=memory):
            nonlocal count
            count += 1
            (w * x).sum().backward()
            change(w, memory)

        step = run(step)
        for i in range(6 if traces else 3):
            step(X[:2])
            if i % 2:
                w.grad[0] = 7.0
            state = w.tolist(), w.grad.tolist(), memory.tolist(), w._version, w.grad._version
            log.append((*state, w.grad.is_leaf, w.grad.requires_grad))
        found.append(log)
    assert found[0] == found[1]
    assert traces is None or count <= traces + (not before)


def test_a_gradient_that_is_another_view_is_noticed():
    buffers = [Variable(onp.zeros(4, "float32")) for _ in range(2)]
    leaves = [leaf(1.0, 2.0) for _ in range(2)]
    results = []
    for buffer, w in zip(buffers, leaves, strict=True):

        def step(x, w=w):
            (w * x).sum().backward()

        run = step if buffer is buffers[0] else functx.jit(step)
        for i in (0, 2, 0, 2):
            w.grad = buffer[i : i + 2]
            run(onp.ones(2, "float32"))
        results.append(buffer.tolist())
    assert results == [[2.0, 2.0, 2.0, 2.0]] * 2


def test_a_detached_gradient_is_noticed_anew():
    results, kept = [], []
    for jitted in (False, True):
        w = leaf(1.0, 2.0)

        def step(x, w=w):
            (w * x).sum().backward()
            return w.grad * 1

        run = functx.jit(step) if jitted else step
        found = []
        for i in range(4):
            g = Variable(onp.full(2, i, "float32"))
            kept.append(g)
            w.grad = g.detach()
            found.append(run(onp.ones(2, "float32")).tolist())
        results.append(found)
    assert results[0] == results[1] == [[i + 1.0] * 2 for i in range(4)]


def test_a_target_may_be_detached_before_the_first_act():
    w = leaf(1.0, 2.0)

    def step(x):
        target = (w * x).detach()
        ((w * x) * target).sum().backward()

    found = []
    for run in (step, functx.jit(step)):
        for _ in range(3):
            w.grad = None
            run(onp.array([3.0, 4.0], "float32"))
            found.append(w.grad.tolist())
    assert found == [[9.0, 32.0]] * 6


def test_an_argument_that_would_get_no_gradient_is_refused():
    w, v = leaf(1.0, 2.0), leaf(3.0, 4.0)
    step = functx.jit(lambda v, x: (w * v * x).sum().backward())
    with pytest.raises(
        AutogradError, match=r"must not require a gradient.*argument number 0"
    ) as info:
        step(v, onp.ones(2, "float32"))
    assert "x.detach()" in str(info.value) and w.grad is None
    step(v.detach(), onp.ones(2, "float32"))
    assert w.grad.tolist() == [3.0, 4.0]


@pytest.mark.parametrize("jitted", [False, True])
def test_a_callback_that_raises_leaves_the_parameters(jitted):
    w, calls = leaf(1.0, 2.0), []

    def check(x):
        calls.append(0)
        if len(calls) > 3:
            raise ValueError("mine")
        return x

    def step():
        w.grad = None
        y = functx.pure_callback(check, jax.ShapeDtypeStruct((2,), "float32"), w.detach())
        (w * y).sum().backward()
        with no_grad():
            w[...] = w - 0.1 * w.grad

    run = functx.jit(step) if jitted else step
    with pytest.raises(ValueError, match="mine"):
        for _ in range(6):
            run()
            before = w.tolist()
    if jitted:
        assert w.tolist() == before
    else:
        # Read as an error, which the values that were computed from it give again.
        with pytest.raises(ValueError, match="mine"):
            w.tolist()


def test_variables_that_a_step_detaches_keep_their_values():
    def steps():
        ws = [leaf(1.0, 2.0), leaf(3.0, 4.0), leaf(5.0, 6.0)]

        def step(x):
            loss = (ws[0] * ws[1] * ws[2] * x).sum()
            loss.backward()
            target = ws[0].detach() + ws[1].detach()
            with no_grad():
                for w in ws:
                    w -= 0.1 * w.grad + 0.01 * target
                    w.grad = None
            return target * 1

        return ws, step

    found = []
    for jitted in (False, True):
        ws, step = steps()
        run = functx.jit(step) if jitted else step
        results = [run(onp.ones(2, "float32")).tolist() for _ in range(4)]
        found.append((results, [w.tolist() for w in ws], [w._version for w in ws]))
    (results, values, versions), (jitted_results, jitted_values, jitted_versions) = found
    onp.testing.assert_allclose(jitted_results, results, rtol=1e-5)
    onp.testing.assert_allclose(jitted_values, values, rtol=1e-5)
    assert versions == jitted_versions


def test_a_gradient_that_a_step_sets_without_reading_it_is_set_in_each_call():
    w, other = leaf(1.0, 2.0), Variable(onp.zeros(2, "float32"))

    @functx.jit
    def clears(x):
        w.grad = None
        return (w * x).sum()

    @functx.jit
    def replaces(x):
        w.grad = other
        return (w * x).sum()

    for _ in range(3):
        clears(onp.ones(2, "float32"))
        assert w.grad is None
        (w * 3.0).sum().backward()
        replaces(onp.ones(2, "float32"))
        assert w.grad is other
        w.grad = None
        clears(onp.ones(2, "float32"))
        assert w.grad is None
        w.grad = Variable(onp.ones(2, "float32"))
