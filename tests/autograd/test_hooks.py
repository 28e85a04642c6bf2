"""Hooks of values, nodes and leaves: order, values, registration, mistakes and memory."""

import gc
import weakref

import numpy as onp
import pytest

import functx
import functx.numpy as np
from functx.autograd import (
    Variable,
    backward,
    get_gradient_edge,
    grad,
    no_grad,
    register_multi_grad_hook,
)
from functx.core.errors import (
    AutogradError,
    GradientTypeError,
    HookModeError,
    HookResultError,
    HookTargetError,
)

POINT = onp.array([1.0, 2.0], "float32")


def leaf(value=2.0):
    return Variable(value, requires_grad=True)


def numbers(gradients):
    return [None if x is None else float(x) for x in gradients]


class HookCalls:
    """Hooks that note the gradients that they get, and change them."""

    def __init__(self):
        self.calls = []

    def value(self, name, change):
        def hook(gradient):
            self.calls.append((name, float(gradient)))
            return change(gradient)

        return hook

    def pre(self, name, change):
        def hook(grad_outputs):
            self.calls.append((name, float(grad_outputs[0])))
            return change(grad_outputs)

        return hook

    def post(self, name):
        def hook(grad_inputs, grad_outputs):
            self.calls.append((name, numbers(grad_inputs), float(grad_outputs[0])))

        return hook


def product_with_all_hooks():
    """A leaf, a value and their product with all kinds of hooks, and the log."""
    log, x = HookCalls(), leaf()
    y = x * 3
    y.retain_grad()
    y.register_hook(log.value("t1", lambda g: g * 2))
    y.register_hook(log.value("t2", lambda g: g + 1))
    y.grad_fn.register_prehook(log.pre("pre", lambda gs: (gs[0] * 10,)))
    y.grad_fn.register_hook(log.post("post"))
    x.register_hook(log.value("leaf", lambda g: g + 100))
    node = get_gradient_edge(x).node
    node.register_prehook(log.pre("acc pre", lambda gs: None))
    node.register_hook(log.post("acc post"))
    x.register_post_accumulate_grad_hook(lambda x: log.calls.append(("post acc", float(x.grad))))
    return x, y, log


def test_hooks_run_in_the_documented_order_with_the_documented_values():
    x, y, log = product_with_all_hooks()
    (y * y).backward()
    assert log.calls == [
        ("t1", 12),
        ("t2", 24),
        ("pre", 25),
        ("post", [750, None], 250),
        ("leaf", 750),
        ("acc pre", 850),
        ("post acc", 850),
        ("acc post", [], 850),
    ]
    assert float(y.grad) == 25 and float(x.grad) == 850


def test_grad_runs_the_hooks_of_a_captured_value_but_not_those_of_its_node():
    x, y, log = product_with_all_hooks()
    (found,) = grad(y * y, [y])
    assert float(found) == 25 and [name for name, *_ in log.calls] == ["t1", "t2"]
    assert float(y.grad) == 25
    log.calls.clear()
    (found,) = grad(y * y, [x])
    assert float(found) == 850
    assert [name for name, *_ in log.calls] == ["t1", "t2", "pre", "post", "leaf"]
    assert x.grad is None


def test_a_hook_that_doubles_acts_once_in_grad():
    x = leaf()
    y = x * 3
    y.register_hook(lambda g: g * 2)
    ran = []
    y.grad_fn.register_prehook(lambda gs: ran.append("pre") or (gs[0] * 10,))
    y.grad_fn.register_hook(lambda *_: ran.append("post"))
    assert numbers(grad(y * y, [y])) == [24] and ran == []
    assert numbers(grad(y * y, [x])) == [720] and ran == ["pre", "post"]


@pytest.mark.parametrize("create_graph", [False, True])
def test_a_hook_may_write_to_the_gradient_that_it_gets_and_no_other_changes(create_graph):
    def tenfold(gradient):
        gradient *= 10

    x, w, given = leaf(POINT), leaf(POINT), Variable(onp.ones(2, "float32"))
    y = x * 1
    y.register_hook(tenfold)
    total = y + w
    total.grad_fn.register_prehook(lambda gs: tenfold(gs[0]))
    y.grad_fn.register_hook(lambda inputs, outputs: tenfold(inputs[0]))
    found = grad(total, (x, w), given, create_graph=create_graph)
    assert [g.tolist() for g in found] == [[1000, 1000], [10, 10]]
    assert given.tolist() == [1, 1]


def test_a_prehook_that_takes_the_gradient_away_leaves_none_behind():
    x = leaf()
    y = x * 3
    y.grad_fn.register_prehook(lambda gs: (None,))
    y.backward()
    assert x.grad is None


def test_a_retained_gradient_with_a_history_is_not_written_to_by_a_later_walk():
    x = leaf()
    y = x * 3
    y.retain_grad()
    grad(y * y, x, create_graph=True)
    first = y.grad
    assert numbers(grad(first, x)) == [6]
    assert float(first) == 12 and float(y.grad) == 14


def test_hooks_without_a_name_are_fine_and_none_leaves_the_gradient():
    class Tripling:
        def __call__(self, gradient):
            return gradient * 3

    x = leaf()
    x.register_hook(Tripling())
    x.register_hook(lambda gradient: None)
    (x * x).backward()
    assert float(x.grad) == 12


def test_handles_remove_hooks_also_during_a_walk_and_in_a_context():
    x, calls = leaf(), []
    y = x * 3

    def first(gradient):
        calls.append("first")
        handle.remove()
        other.remove()
        later.remove()

    handle = y.register_hook(first)
    other = y.register_hook(lambda gradient: calls.append("same value"))
    later = x.register_hook(lambda gradient: calls.append("later node"))
    y.backward(retain_graph=True)
    assert calls == ["first"]
    handle.remove()
    with y.register_hook(lambda gradient: calls.append("context")):
        y.backward(retain_graph=True)
    y.backward()
    assert calls == ["first", "context"]


def test_prehooks_and_posthooks_see_what_those_before_left():
    x = leaf(onp.array([1.0, 2.0], "float32"))
    a, b = functx.jit(lambda x: (x[0] * 3, x[1] * 3))(x)
    seen = []
    a.grad_fn.register_prehook(lambda gs: seen.append(numbers(gs)) or (gs[0], gs[0] * 2))
    a.grad_fn.register_prehook(lambda gs: seen.append(numbers(gs)))
    a.grad_fn.register_hook(lambda inputs, outputs: seen.append(numbers(outputs)) or inputs[0] * 10)
    a.grad_fn.register_hook(lambda inputs, outputs: seen.append(inputs[0].tolist()))
    (a * 1).backward()
    assert seen == [[1, None], [1, 2], [1, 2], [30, 60]]
    assert x.grad.tolist() == [30, 60]


def test_hooks_of_a_value_that_is_written_to_belong_to_the_value_before():
    x, seen = leaf(), []
    y = x * 3
    y.register_hook(lambda g: seen.append(("before", float(g))))
    edge = get_gradient_edge(y)
    y *= 5
    y.register_hook(lambda g: seen.append(("after", float(g))))
    z = y * 1
    assert numbers(grad(z, [edge], retain_graph=True)) == [5]
    seen.clear()
    z.backward()
    assert seen == [("after", 1), ("before", 5)]
    assert float(x.grad) == 15


def test_retained_gradients_add_up_and_follow_writes_to_the_newest_value():
    x = leaf()
    y = x * 3
    y.retain_grad()
    y.retain_grad()
    assert y.retains_grad
    z = y * y
    z.backward(retain_graph=True)
    z.backward()
    assert float(y.grad) == 24
    y = x * 3
    y.retain_grad()
    y *= 5
    (y * 7).backward()
    assert float(y.grad) == 7
    x.retain_grad()
    assert not x.retains_grad


def test_retained_gradients_of_views_follow_writes():
    base = leaf(onp.ones(3, "float32")) * 1
    view, alias = base[1:], base[1:]
    for value in (base, view, alias):
        value.retain_grad()
    view *= 2
    (view + alias * 3).sum().backward()
    assert view.grad.tolist() == [1, 1] and alias.grad.tolist() == [3, 3]
    assert base.grad.tolist() == [0, 4, 4]
    base = leaf(onp.ones(2, "float32")) * 1
    view = base[:1]
    view.retain_grad()
    base.retain_grad()
    tripled = view * 3
    base *= 2
    (tripled + base).sum().backward()
    assert view.grad is None and base.grad.tolist() == [1, 1]


def test_a_value_that_is_written_has_a_gradient_apart_from_its_copy():
    x = leaf(onp.ones(2, "float32"))
    y, w = x * 0, x * 2
    y[...] = w
    for value in (y, w):
        value.retain_grad()
    (y * 3 + w * 5).sum().backward()
    assert y.grad.tolist() == [3, 3] and w.grad.tolist() == [8, 8]


def test_retained_gradients_come_after_all_hooks_of_the_value_and_before_the_prehooks():
    x = leaf()
    y = x * 3
    y.retain_grad()
    y.register_hook(lambda g: g * 2)
    y.grad_fn.register_prehook(lambda gs: (gs[0] * 100,))
    y.backward(inputs=[y, x])
    assert float(y.grad) == 2 and float(x.grad) == 600


def test_post_accumulate_hooks_may_update_the_leaf_and_its_gradient():
    def step(x):
        with no_grad():
            x -= 0.25 * x.grad
        x.grad = None

    hooked, plain = leaf(4.0), leaf(4.0)
    handle = hooked.register_post_accumulate_grad_hook(step)
    for _ in range(3):
        (hooked * hooked).backward()
        (plain * plain).backward()
        step(plain)
    assert float(hooked) == float(plain) == 0.5 and hooked.grad is None
    handle.remove()
    (hooked * hooked).backward()
    assert float(hooked.grad) == 1


def test_the_closure_of_a_hook_goes_with_its_leaf():
    class Target:
        pass

    gc.disable()
    try:
        x, target = leaf(), Target()
        handle = x.register_post_accumulate_grad_hook(lambda x, t=target: None)
        x.register_hook(lambda gradient, t=target: handle.remove())
        y = x * 3
        y.retain_grad()
        register_multi_grad_hook([x, y], lambda gradients, t=target: None)
        y.backward()
        gone = weakref.ref(target)
        del target, x, y
        assert gone() is None
    finally:
        gc.enable()


def test_nodes_of_operations_that_save_their_result_are_freed_at_once():
    gc.disable()
    try:
        x = leaf()
        gone = weakref.ref(np.exp(x).grad_fn)
        assert gone() is None
    finally:
        gc.enable()


def test_multi_grad_hooks_wait_for_the_values_of_the_walk_or_take_the_first():
    a, b, c = leaf(1.0), leaf(1.0), leaf(1.0)
    calls, first = [], []
    handle = register_multi_grad_hook([a, b, c], lambda gs: calls.append(numbers(gs)))
    register_multi_grad_hook([a, b, c], lambda g: first.append(float(g)), mode="any")
    (a * 2 + b * 3).backward()
    assert calls == [[2, 3, None]] and first in ([2], [3])
    (a * 2).backward()
    assert calls[1:] == [[2, None, None]]
    grad(a * 2 + b * 3 + c, [b])
    assert calls[2:] == [[None, 3, None]]
    handle.remove()
    (a * 2 + b * 3).backward()
    assert len(calls) == 3 and len(first) == 4


def test_multi_grad_hooks_do_not_wait_for_a_value_that_gets_no_gradient():
    calls = []
    a, b = functx.jit(lambda x: (x[0] * 3, x[1] * 3))(leaf(onp.ones(2, "float32")))
    register_multi_grad_hook([a, b], lambda gs: calls.append(numbers(gs)))
    (a * 2).backward()
    assert calls == [[2, None]]


def test_multi_grad_hooks_do_not_wait_for_a_leaf_that_was_switched_off():
    a, b, calls = leaf(), leaf(), []
    total = a * 2 + b * 3
    register_multi_grad_hook([a, b], lambda gs: calls.append(numbers(gs)))
    a.requires_grad = False
    total.backward()
    assert calls == [[None, 3]]


def test_a_multi_grad_hook_runs_once_in_each_of_nested_walks():
    x, w, calls = leaf(), leaf(3.0), []
    inner = w * 5
    register_multi_grad_hook([w, x], lambda gs: calls.append(numbers(gs)))
    x.register_hook(lambda gradient: backward(inner))
    (x * w).backward()
    assert calls == [[5, None], [2, 3]] and float(w.grad) == 7


def test_hooks_of_masked_gradients_keep_infinite_pullbacks_out():
    x = leaf(onp.array([0.0, 2.0], "float32"))
    y = np.log(x)
    y.register_hook(lambda g: g * 3)
    y.grad_fn.register_prehook(lambda gs: (gs[0] + 0,))
    np.where(x > 1, y, 0).sum().backward()
    assert x.grad.tolist() == [0, 1.5]


def test_hooks_of_differentiable_walks_are_differentiated():
    x = leaf(3.0)
    y = x * x
    y.register_hook(lambda g: g * x)
    (slope,) = grad(y, x, create_graph=True)
    (curvature,) = grad(slope, x)
    assert float(slope) == 18 and float(curvature) == 12


def test_nodes_have_names_notes_and_next_functions():
    x = leaf()
    y = x * 3
    node = y.grad_fn
    node.metadata["note"] = 1
    assert node.name() == "mul" and y.grad_fn.metadata == {"note": 1}
    (of_x, number), missing = node.next_functions
    assert of_x is get_gradient_edge(x).node and number == 0 and missing == (None, 0)


@pytest.mark.parametrize(
    "register, error, message",
    [
        (lambda x, y, c: c.register_hook(print), HookTargetError, "register_hook: the array must"),
        (lambda x, y, c: c.retain_grad(), HookTargetError, "retain_grad: the array must"),
        (lambda x, y, c: get_gradient_edge(c), HookTargetError, "get_gradient_edge: the array"),
        (
            lambda x, y, c: y.register_post_accumulate_grad_hook(print),
            HookTargetError,
            "only a leaf adds up gradients; got the result of `mul`",
        ),
        (
            lambda x, y, c: register_multi_grad_hook([x], print, mode="one"),
            HookModeError,
            '"all" or "any"; got \'one\'',
        ),
    ],
)
def test_mistakes_of_registration_are_named(register, error, message):
    x = leaf()
    with pytest.raises(error, match=message):
        register(x, x * 3, Variable(1.0))


def shortens(gradient):
    return gradient[:1]


def converts(gradient):
    return gradient.astype("float16")


@pytest.mark.parametrize(
    "register, error, message",
    [
        (lambda x, y: y.register_hook(shortens), HookResultError, r"hook `shortens`.*f32\[1\]"),
        (lambda x, y: x.register_hook(converts), HookResultError, r"hook `converts`.*f16\[2\]"),
        (lambda x, y: x.register_hook(lambda g: "one"), GradientTypeError, "got str"),
        (lambda x, y: y.grad_fn.register_prehook(lambda gs: gs[0]), GradientTypeError, "a tuple"),
        (
            lambda x, y: y.grad_fn.register_prehook(lambda gs: (*gs, None)),
            HookResultError,
            "each of 1; got 2",
        ),
        (
            lambda x, y: y.grad_fn.register_hook(lambda gs, _: gs[:1]),
            HookResultError,
            "each of 2; got 1",
        ),
        (
            lambda x, y: x.register_post_accumulate_grad_hook(lambda x: x),
            HookResultError,
            r"must return None; got f32\[2\]",
        ),
    ],
)
def test_mistakes_of_hooks_are_named_and_leave_the_engine_usable(register, error, message):
    x = leaf(onp.ones(2, "float32"))
    y = x * 3
    register(x, y)
    with pytest.raises(error, match=message):
        y.sum().backward()
    z = leaf()
    (z * z).backward()
    assert float(z.grad) == 4


def test_hooks_run_in_batched_walks_which_keep_no_gradients():
    x = leaf(POINT)
    y = x * 3
    y.register_hook(lambda g: g * 2)
    y.grad_fn.register_prehook(lambda gs: (gs[0] * 10,))
    batch = onp.eye(2, dtype="float32")
    (found,) = grad(y * y, x, batch, is_grads_batched=True)
    onp.testing.assert_array_equal(onp.asarray(found), onp.diag(360 * POINT))
    y = x * 3
    y.retain_grad()
    with pytest.raises(AutogradError, match="batch of gradients"):
        grad(y * y, x, batch, is_grads_batched=True)


def test_hooks_of_complex_values_get_the_gradient_of_the_convention():
    z, seen = leaf(onp.array([1 + 1j], "complex64")), []
    w = z * 1
    w.retain_grad()
    w.register_hook(lambda g: seen.append(g.tolist()))
    (np.abs(w) ** 2).sum().backward()
    onp.testing.assert_allclose(seen[0], [2 + 2j], rtol=1e-6)
    onp.testing.assert_allclose(onp.asarray(w.grad), [2 + 2j], rtol=1e-6)


@pytest.mark.parametrize(
    "register",
    [
        lambda x: x.register_hook(print),
        lambda x: x.retain_grad(),
        lambda x: get_gradient_edge(x),
        lambda x: register_multi_grad_hook([x], print),
    ],
)
def test_hooks_of_traced_values_are_refused_and_the_functional_way_is_named(register):
    with pytest.raises((AttributeError, HookTargetError), match=r"functx\.hook_grad"):
        functx.grad(register)(1.0)


def test_a_hook_may_register_hooks_on_other_outputs_of_its_node():
    x, seen = leaf(POINT), []
    first, second = np.split(x * 2, 2)

    def hook(gradient):
        second.register_hook(seen.append)
        second.retain_grad()

    first.register_hook(hook)
    (first.sum() + second.sum()).backward()
    assert seen == [] and x.grad.tolist() == [2.0, 2.0]
    assert second.grad.tolist() == [1.0]
