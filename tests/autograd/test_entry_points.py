"""The arguments of `backward` and `grad`, walks inside walks and inside transforms, modes and flags."""

import asyncio
import gc
import importlib
import threading
import weakref

import numpy as onp
import pytest

import functx
import functx.numpy as np
from functx import autograd
from functx.autograd import Variable, backward, enable_grad, grad, no_grad, set_grad_enabled
from functx.autograd.variable import make_variable
from functx.core.errors import (
    ArgumentError,
    AutogradError,
    EmptyInputsError,
    FreedValueError,
    GradientCountError,
    GradientTypeError,
    NoHistoryError,
    UnusedInputError,
)


def leaf(value):
    return Variable(onp.asarray(value, "float32"), requires_grad=True)


def test_roots_may_repeat_and_depend_on_each_other():
    x = leaf(2.0)
    y = x * x
    z = y * 3
    backward([y, y, z])
    assert float(x.grad) == 4 + 4 + 12


def test_no_roots_give_no_gradients():
    x = Variable(2.0, requires_grad=True)
    backward([], inputs=[x])
    assert x.grad is None


def test_given_gradients_are_cast_and_never_written_to():
    x = leaf([1.0, 2.0])
    given = onp.array([1, 2])
    (x * x).backward(given)
    onp.testing.assert_array_equal(x.grad, [2, 8])
    x.grad += 1
    onp.testing.assert_array_equal(given, [1, 2])


@pytest.mark.parametrize(
    "given, message",
    [
        (onp.ones(3), "shape of its output"),
        ([onp.ones(2), onp.ones(2)], "got 2 for 1"),
        ([], "got 0 for 1"),
        (onp.ones(2, "complex64"), "complex exactly if"),
    ],
)
def test_gradients_that_do_not_fit_are_refused(given, message):
    x = leaf([1.0, 2.0])
    with pytest.raises(AutogradError, match=message):
        grad(x * x, x, given)


def test_a_gradient_that_is_no_array_is_a_type_error():
    x = leaf([1.0])
    with pytest.raises(GradientTypeError, match="str"):
        backward(x * x, "one")


def test_batched_gradients_are_those_of_each_element_of_the_batch():
    x = leaf([0.0, 1.0, 2.0])
    (rows,) = grad(x * x, x, onp.eye(3, dtype="float32"), is_grads_batched=True)
    onp.testing.assert_array_equal(rows, onp.diag([0, 2, 4]))
    with pytest.raises(AutogradError, match="batch"):
        grad(x * x, x, onp.ones(3, "float32"), is_grads_batched=True)
    y = x * x
    (rows,) = grad(y, x, onp.eye(3, dtype="float32"), is_grads_batched=True, create_graph=True)
    (curvature,) = grad(rows.sum(), x)
    onp.testing.assert_array_equal(curvature, [2, 2, 2])


def test_contradicting_and_old_options_are_named():
    x = leaf(2.0)
    with pytest.raises(ValueError, match="allow_unused=False"):
        grad(x * x, x, allow_unused=False, materialize_grads=True)
    with pytest.raises(EmptyInputsError):
        backward(x * x, inputs=[])
    with pytest.raises(AutogradError, match="outputs must not be empty"):
        grad([], x)
    with pytest.warns(FutureWarning, match="only_inputs"):
        grad(x * x, x, only_inputs=False)
    with pytest.warns(FutureWarning, match="grad_tensors"):
        backward(x * x, grad_variables=onp.float32(2))
    assert float(x.grad) == 8
    with pytest.raises(AutogradError, match="Variable"):
        autograd.variable(1.0)


def test_a_derivative_that_is_zero_by_its_structure_is_none_or_zeros_that_require_gradients():
    x, a = leaf(0.5), leaf(1.0)
    (slope,) = grad(x * a, x, create_graph=True)
    assert float(slope) == 1
    assert grad(slope, x, create_graph=True, allow_unused=True) == (None,)
    with pytest.raises(UnusedInputError, match="input number 0"):
        grad(slope, x, create_graph=True)
    (curvature,) = grad(slope, x, create_graph=True, materialize_grads=True)
    (third,) = grad(curvature, x, materialize_grads=True)
    assert curvature.requires_grad and float(curvature) == float(third) == 0
    y = x * x * a
    for expected in (1, 2, 0, 0):
        (y,) = grad(y, x, create_graph=True, materialize_grads=True)
        assert float(y) == expected


def test_a_walk_that_keeps_the_graph_warns_once_at_the_line_of_the_user(monkeypatch):
    x = leaf(2.0)
    module = importlib.import_module("functx.autograd.backward")
    monkeypatch.setattr(module, "_has_warned_of_cycles", False)
    with pytest.warns(UserWarning, match="refer to each other") as record:
        (x * x).backward(create_graph=True)
        backward(x * x, create_graph=True)
    assert len(record) == 1 and record[0].filename == __file__


def test_a_gradient_can_be_deleted_and_a_leaf_switched_off():
    x = leaf(2.0)
    y, z, seen = x * 3, x * 5, []
    x.register_post_accumulate_grad_hook(lambda x: seen.append(float(x.grad)))
    y.backward()
    del x.grad
    assert x.grad is None
    x.requires_grad = False
    z.backward()
    assert x.grad is None and seen == [3]


def test_walks_go_on_from_values_that_an_earlier_walk_did_not_pass():
    x, w = leaf(2.0), leaf(3.0)
    y = x * x
    z = y * y
    assert float(grad(z + w * w, y)[0]) == 8
    assert float(grad(y, x)[0]) == 4
    with pytest.raises(FreedValueError):
        grad(z, y)
    (slope,) = grad((x**3).sum(), x, create_graph=True, retain_graph=False)
    assert float(grad(slope, x)[0]) == 12


def test_a_node_that_saved_numbers_of_the_program_alone_runs_again():
    x = leaf([1.0, 2.0, 3.0])
    y = (x[1:] * 3).sum()
    y.backward()
    y.backward()
    assert x.grad.tolist() == [0.0, 6.0, 6.0]


def test_edges_are_inputs_of_grad():
    x = leaf(3.0)
    y = x * x
    edge = autograd.GradientEdge(y.grad_fn, y.output_nr)
    z = y * y
    assert float(grad(z, edge)[0]) == 18
    other = leaf(1.0) * 2
    with pytest.raises(AutogradError, match="edge"):
        grad(y * y, [autograd.GradientEdge(other.grad_fn, 0)], materialize_grads=True)
    (y * y).backward(inputs=[autograd.get_gradient_edge(v) for v in (x, y)])
    assert float(x.grad) == 108 and y.grad is None
    with pytest.raises(AutogradError, match="backward: an input must require"):
        (y * y).backward(inputs=[Variable(1.0)])


def test_wrong_arguments_name_the_parameter_that_was_meant():
    x = leaf(1.0)
    with pytest.raises(ArgumentError, match="Did you mean `allow_unused`"):
        grad(x, x, allow_unsed=True)
    with pytest.raises(ArgumentError, match="Did you mean `requires_grad`"):
        Variable(1.0, require_grad=True)
    handle = autograd.register_multi_grad_hook(x, lambda gradients: gradients)
    x.register_hook(lambda g: autograd.queue_callback(3))
    with pytest.raises(ArgumentError, match="callback must be a function; got int"):
        x.backward()
    handle.remove()


def test_edges_are_outputs_of_walks_also_if_the_value_is_gone():
    x = leaf([1.0, 2.0])
    edge, of_leaf = autograd.get_gradient_edge(x * x), autograd.get_gradient_edge(x)
    (batched,) = grad(edge, x, np.eye(2), retain_graph=True, is_grads_batched=True)
    assert batched.tolist() == [[2.0, 0.0], [0.0, 4.0]]
    backward([edge, of_leaf, x * 3], [np.ones(2), np.array([5.0, 6.0]), np.ones(2)])
    assert x.grad.tolist() == [10.0, 13.0]
    with pytest.raises(AutogradError, match="left out only for an output of one real element"):
        backward(edge)
    with pytest.raises(AutogradError, match="outputs must be arrays; got GradientEdge as number 0"):
        functx.vmap(lambda z: grad(edge, x, z))(np.ones(2))


def test_an_override_takes_over_with_all_keywords():
    class Own:
        def __functx_function__(self, function, args, kwargs):
            return function, kwargs["create_graph"]

    assert grad(Own(), Own(), create_graph=True) == (grad, True)


def test_rules_that_lead_to_no_input_do_not_run():
    @functx.custom_vjp
    def refuse(x):
        return x

    def rule(_, ct):
        raise ZeroDivisionError

    refuse.defvjp(lambda x: (x, None), rule)
    x, w = leaf(1.0), leaf(2.0)
    assert float(grad(refuse(x * 1) + w * w, w)[0]) == 4
    with pytest.raises(ZeroDivisionError):
        refuse(x * 1).backward()


def test_complex_gradients_follow_the_convention_of_pytorch():
    z = Variable(onp.complex64(1 + 1j), requires_grad=True)
    (z * z.conj()).real.backward()
    assert complex(z.grad) == 2 + 2j
    slope = functx.grad(lambda z: (z * z.conj()).real)(onp.complex64(1 + 1j))
    assert complex(slope) == 2 - 2j
    traced = functx.jit(lambda z: grad((z * z.conj()).real, [z])[0])(onp.complex64(1 + 1j))
    assert complex(traced) == 2 + 2j


def test_grad_of_traced_values_differentiates_the_trace():
    def cube_slope(x):
        return grad(x**3, x)[0]

    assert float(functx.grad(cube_slope)(1.0)) == 6
    onp.testing.assert_allclose(functx.vmap(cube_slope)(onp.arange(3.0)), [0, 3, 12])
    assert float(functx.jit(cube_slope)(2.0)) == 12


def test_backward_inside_a_transform_names_the_functional_way():
    x = leaf(1.0)

    def f(y):
        x.backward()
        return y

    with pytest.raises(AutogradError, match=r"functx\.grad or functx\.vjp"):
        functx.grad(functx.jit(f))(1.0)
    with pytest.raises(AttributeError, match=r"functx\.grad\(f\)\(x\)"):
        functx.grad(lambda y: (x * y).backward())(1.0)
    with pytest.raises(AutogradError, match="read the Variables from around the function"):
        functx.jit(lambda x: (x * x).backward())(x)


def test_walks_inside_walks_are_as_deep_as_users_like():
    calls = []

    class Nested(autograd.nodes.Node):
        __slots__ = ("left",)

        def pull_back(self, walk, gradients):
            calls.append(self.left)
            if self.left:
                with enable_grad():
                    inner = nested(self.left - 1)
                backward(inner)
            return [gradients[0]]

    x = leaf(1.0)

    def nested(left):
        y = x * 1
        node = Nested("nested", [y.edge], [y.atom.aval])
        node.left = left
        return make_variable(y.read(), autograd.GradientEdge(node, 0))

    backward(nested(300))
    assert len(calls) == 301
    assert float(x.grad) == 301


def test_callbacks_run_at_the_end_of_the_walk_that_queued_them():
    x, w, log = leaf(2.0), leaf(3.0), []

    def queue(name, then=()):
        autograd.queue_callback(lambda: (log.append(name), [queue(n) for n in then]))

    def walk_inside(gradient):
        queue("outer", then=["queued by a callback"])
        inner = w * 2
        inner.register_hook(lambda g: queue("inner"))
        inner.backward()
        log.append("inner walk returned")

    y = x * 3
    y.register_hook(enable_grad()(walk_inside))
    x.register_hook(lambda g: log.append("leaf"))
    y.backward()
    assert log == ["inner", "inner walk returned", "leaf", "outer", "queued by a callback"]
    assert float(x.grad) == 3 and float(w.grad) == 2


def test_an_error_in_a_callback_or_deep_inside_leaves_the_engine_usable():
    x = leaf(2.0)

    def fail():
        raise KeyError("callback")

    def deep(left):
        y = x * 1
        y.register_hook(enable_grad()(lambda g: deep(left - 1).backward() if left else fail()))
        return y

    for walk in (deep(45), deep(0)):
        with pytest.raises(KeyError):
            walk.backward()
        assert not autograd.engine.running_walk.get()
    x.register_hook(lambda g: autograd.queue_callback(fail))
    with pytest.raises(KeyError):
        x.backward()
    w = leaf(3.0)
    (w * w).backward()
    assert float(w.grad) == 6 and float(x.grad) == 1


def test_a_walk_inside_one_for_chosen_inputs_is_no_place_for_a_checkpoint():
    x, found = leaf(2.0), []
    y = x * 3
    y.register_hook(lambda g: found.append(autograd._is_checkpoint_valid()))

    def walk(inner):
        z = x * 2
        z.register_hook(enable_grad()(lambda g: inner()))
        return z

    y.backward(retain_graph=True)
    grad(y, x, retain_graph=True)
    y.backward(inputs=[x], retain_graph=True)
    grad(walk(lambda: y.backward(retain_graph=True)), x)
    walk(lambda: y.backward(retain_graph=True)).backward()
    assert found == [True, False, False, False, True] and autograd._is_checkpoint_valid()


def test_modes_are_active_in_functions_generators_and_coroutines_while_they_run():
    @no_grad
    def f():
        return autograd.is_grad_enabled()

    @no_grad()
    def generate():
        for _ in range(2):
            yield autograd.is_grad_enabled()

    @no_grad()
    async def wait():
        await asyncio.sleep(0)
        return autograd.is_grad_enabled()

    assert f() is False
    for inside in generate():
        assert inside is False and autograd.is_grad_enabled()
    assert asyncio.run(wait()) is False
    with no_grad(), enable_grad():
        assert autograd.is_grad_enabled()
    assert autograd.is_grad_enabled()
    with pytest.warns(FutureWarning, match="class"):
        no_grad(type("Own", (), {}))


def test_set_grad_enabled_acts_when_it_is_made():
    mode = set_grad_enabled(False)
    assert not autograd.is_grad_enabled() and repr(mode) == "set_grad_enabled(mode=False)"
    set_grad_enabled(True)
    with set_grad_enabled(False):
        assert not autograd.is_grad_enabled()
    assert autograd.is_grad_enabled()

    @set_grad_enabled(False)
    def f():
        return autograd.is_grad_enabled()

    assert autograd.is_grad_enabled() and f() is False


def test_modes_belong_to_a_thread():
    found = []
    with no_grad():
        thread = threading.Thread(target=lambda: found.append(autograd.is_grad_enabled()))
        thread.start()
        thread.join()
    assert found == [True]


def test_flags_are_restored_after_errors():
    with pytest.raises(ZeroDivisionError), autograd.set_multithreading_enabled(False):
        assert not autograd.is_multithreading_enabled()
        raise ZeroDivisionError
    assert autograd.is_multithreading_enabled()
    with autograd.force_original_view_tracking(True):
        assert autograd.is_view_replay_enabled()
    assert not autograd.is_view_replay_enabled()
    for mode, flag in [
        (autograd.force_original_view_tracking(True), autograd.is_view_replay_enabled),
        (autograd.set_detect_anomaly(True), autograd.is_anomaly_enabled),
    ]:
        decorated = mode(flag)
        assert (flag(), decorated(), flag()) == (False, True, False)


def test_graphs_are_freed_by_reference_counts():
    gc.disable()
    try:
        x = leaf([1.0, 2.0])
        y = (np.exp(x) * x).sum()
        node = weakref.ref(y.grad_fn)
        y.backward()
        del y
        assert node() is None
    finally:
        gc.enable()


def test_grad_of_traced_values_takes_batches_of_gradients_and_refuses_what_has_none():
    def jacobian(x):
        return grad([x**3, x.sum()], x, [np.eye(2), None], is_grads_batched=True)[0]

    x = onp.array([1.0, 2.0], "float32")
    onp.testing.assert_array_equal(functx.jit(jacobian)(x), onp.diag(3 * x**2) + 1)
    onp.testing.assert_array_equal(functx.grad(lambda x: jacobian(x).sum())(x), 6 * x)
    onp.testing.assert_array_equal(functx.vmap(jacobian)(onp.stack([x, x]))[1], jacobian_of(x))
    n = onp.array([1, 2])
    for use, shown in [
        (lambda x: grad((x * n).sum(), [x, np.array(n) + (x > 0)]), r"number 1, i32\[2\]"),
        (lambda x: grad((x > 0).sum(), x), r"number 0, i32\[\]"),
    ]:
        with pytest.raises(NoHistoryError, match=shown):
            functx.jit(use)(x)
    with pytest.raises(GradientCountError, match="None for all of 1"):
        functx.jit(lambda x: grad(x.sum(), x, is_grads_batched=True))(x)


def jacobian_of(x):
    v = leaf(x)
    gradients = [Variable(onp.eye(2, dtype="float32")), None]
    return grad([v**3, v.sum()], v, gradients, is_grads_batched=True)[0]


def test_an_edge_as_input_of_backward_stands_for_a_value_that_retains_its_gradient():
    x = leaf(3.0)
    y = x * x
    y.retain_grad()
    backward(y * y, inputs=[autograd.get_gradient_edge(y)])
    assert float(y.grad) == 18 and x.grad is None
