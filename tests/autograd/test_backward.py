"""`backward` and `grad` of Variables: values, history, writes and views, calls of transformed functions."""

import gc
import pickle
import weakref

import numpy as onp
import pytest

import functx
import functx.numpy as np
from functx import lax
from functx.autograd import GradientEdge, Variable, grad, no_grad
from functx.autograd.nodes import Node
from functx.core.errors import (
    AutogradError,
    DTypeError,
    EmptyInputsError,
    ForeignCodeError,
    FunctxError,
    SavedValueError,
    ViewWriteError,
)

POINT = onp.array([1.0, 2.0, 0.5], "float32")


def leaf(value=POINT):
    return Variable(value, requires_grad=True)


def scaled(y, factor):
    return y * factor


@functx.custom_vjp
def hundredfold(x):
    return x * 2


hundredfold.defvjp(lambda x: (x * 2, x), lambda x, ct: (ct * 100 * x,))


@functx.custom_jvp
def sevenfold(x):
    return x * 2


sevenfold.defjvp(lambda primals, tangents: (primals[0] * 2, tangents[0] * 7 * primals[0]))


def write_to_views(x):
    y = x * 2
    y[1:] *= 3
    y[0] = y[1] * x[2]
    return y


def write_out(x):
    out = x * 0
    np.add(x, x * x, out=out)
    return out


FUNCTIONS = {
    "arithmetic": lambda x: np.sin(x) * np.exp(x) / x + x**3 - 2,
    "values that where does not choose": lambda x: np.where(x > 0.7, np.log(x - 0.7), x),
    "a matrix product": lambda x: np.outer(x, x) @ x,
    "an inverse": lambda x: np.linalg.inv(np.outer(x, x) + np.eye(3, dtype="float32")),
    "a loop over elements": lambda x: sum(y * y for y in x),
    "a stack": lambda x: np.stack([x, x * x]),
    "a list of elements": lambda x: np.array([x[0], x[1] * x[2]]),
    "a gather": lambda x: x[onp.array([0, 0, 2])] * x,
    "a sort": lambda x: np.sort(x) * np.arange(3),
    "writes to views": write_to_views,
    "out=": write_out,
    "softmax": functx.nn.softmax,
    "scan": lambda x: lax.scan(lambda c, y: (c * y, c + y), x[0], x)[1],
    "cond": lambda x: lax.cond(x[0] > 0, lambda y: y * y, lambda y: y, x),
    "fori_loop": lambda x: lax.fori_loop(0, 3, lambda i, y: y * y, x),
    "vmap": lambda x: functx.vmap(lambda y: np.sin(y) * y)(x),
    "vmap that captures": lambda x: functx.vmap(lambda y: (np.sin(y) * x).sum())(POINT),
    "grad": functx.grad(lambda x: (np.sin(x) * x).sum()),
    "jvp": lambda x: functx.jvp(np.sin, (x,), (x,))[1],
    "jit": functx.jit(lambda x: np.sin(x) * x),
    "jit that captures": lambda x: functx.jit(lambda y: y * x)(POINT),
    "checkpoint": functx.checkpoint(lambda x: np.sin(np.sin(x))),
    "custom_vjp": hundredfold,
    "custom_jvp": sevenfold,
    "a function of NumPy": onp.sin,
    "an array of NumPy on the left": lambda x: POINT * x,
    "a reduction and a comparison": lambda x: (x > 1) * x.max(),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_walk_gives_the_gradient_that_grad_gives(name):
    fun, x = FUNCTIONS[name], leaf()

    def loss(x):
        return (fun(x) * 1.5).sum()

    value = loss(x)
    value.backward()
    expected, slope = functx.value_and_grad(loss)(POINT)
    onp.testing.assert_allclose(onp.asarray(value), expected, rtol=2e-5)
    onp.testing.assert_allclose(onp.asarray(x.grad), slope, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["arithmetic", "values that where does not choose", "jit", "scan"])
def test_a_differentiable_walk_gives_derivatives_of_every_order(name):
    fun, x = FUNCTIONS[name], leaf()
    found, reference = (fun(x) * x).sum(), lambda x: (fun(x) * x).sum()
    for _ in range(3):
        (found,) = grad(found.sum(), x, create_graph=True)
        reference = functx.grad(lambda x, f=reference: f(x).sum())
        onp.testing.assert_allclose(onp.asarray(found), reference(POINT), rtol=1e-3, atol=1e-4)


def test_gradients_are_added_to_the_same_object():
    x = leaf()
    (x * x).sum().backward()
    first = x.grad
    (x * x).sum().backward()
    assert x.grad is first
    onp.testing.assert_allclose(onp.asarray(first), 4 * POINT)


def test_gradients_of_chosen_inputs_leave_the_others_alone():
    x, w = leaf(2.0), leaf(3.0)
    y = x * w
    (y * y).backward(inputs=[y, w])
    assert x.grad is None
    assert float(w.grad) == 24 and float(y.grad) == 12


def test_grad_of_an_unused_input_is_refused_or_none_or_zero():
    x, w = leaf(), leaf()
    with pytest.raises(AutogradError, match="input number 1"):
        grad((x * x).sum(), [x, w])
    assert grad((x * x).sum(), [w], allow_unused=True) == (None,)
    (zero,) = grad((x * x).sum(), [w], materialize_grads=True)
    assert zero.requires_grad and not onp.asarray(zero).any()


def test_a_variable_that_is_made_inside_a_transform_has_a_known_value():
    assert float(functx.jit(lambda x: Variable(3.0, requires_grad=True) * x)(2.0)) == 6
    with pytest.raises(AutogradError, match="the value must be known; got a traced one"):
        functx.grad(lambda x: Variable(x) * 2)(1.0)
    with pytest.raises(FunctxError):
        functx.jit(lambda x: Variable([x, 1.0]))(1.0)


def test_mistakes_of_a_walk_are_named():
    x = leaf()
    with pytest.raises(AutogradError, match="one real element"):
        (x * x).backward()
    with pytest.raises(AutogradError, match="without history"):
        Variable(1.0).backward()
    with pytest.raises(EmptyInputsError):
        grad((x * x).sum(), [])
    with pytest.raises(AutogradError, match="shape of its output"):
        (x * x).backward(onp.ones(2))
    with pytest.raises(ForeignCodeError, match="do not take Variables"):
        __import__("jax").numpy.sin(x)


def test_a_second_walk_needs_the_values_that_the_first_one_freed():
    x = leaf()
    y = (x * x).sum()
    y.backward()
    with pytest.raises(SavedValueError, match="retain_graph"):
        y.backward()
    z = (x + 1).sum()
    z.backward()
    z.backward()


def test_a_saved_value_must_not_be_written_to():
    x = leaf()
    y = x * 2
    z = y * y
    y *= 3
    with pytest.raises(SavedValueError, match="version 1, expected version 0"):
        z.sum().backward()
    z = np.exp(y)
    z += 1
    with pytest.raises(SavedValueError, match="`exp`"):
        z.sum().backward()
    z = np.sin(y)
    z += 1
    z.sum().backward()
    onp.testing.assert_allclose(onp.asarray(x.grad), 6 * onp.cos(6 * POINT), rtol=1e-5)


def test_a_leaf_is_written_to_only_without_gradients():
    x = leaf()
    with pytest.raises(AutogradError, match="a leaf that requires"):
        x[0] = 3
    with pytest.raises(AutogradError, match="a view of a leaf"):
        x[1:] += 1
    with no_grad():
        x -= 1
        assert not (x * x).requires_grad
    assert x.requires_grad and x.is_leaf
    onp.testing.assert_array_equal(onp.asarray(x), POINT - 1)


def test_a_view_of_all_elements_is_an_array_of_its_own_with_the_memory_of_its_base():
    x, seen = leaf(), []
    methods = x[:], x[...], x.reshape(3), x.squeeze(), x.transpose(), x.T
    functions = np.reshape(x, 3), np.broadcast_to(array=x, shape=3), np.flip(x, ())
    functions += np.reshape(a=x, shape=3), np.flip(m=x, axis=()), np.expand_dims(x, ())
    parts = *np.split(x, 1), *np.hsplit(x, 1), *np.broadcast_arrays(x, x)
    for view in (*methods, *functions, *parts):
        assert view is not x and not view.is_leaf
        view.register_hook(lambda g: seen.append(g.tolist()))
        view.retain_grad()
        (view * 2 + x).sum().backward()
        assert view.grad.tolist() == seen.pop() == [2, 2, 2]
    y = x * 1
    y[...] += 1
    view = y[:]
    view *= 2
    assert y.tolist() == view.tolist() == (2 * (POINT + 1)).tolist()
    assert grad(y.sum(), x)[0].tolist() == [2, 2, 2]


def test_an_array_that_a_constant_replaces_keeps_its_history_with_a_gradient_of_zero():
    x, w = leaf(), leaf()
    y, z = x * onp.inf, w * 2
    y[...] = 7
    z[:] = onp.array([4.0, 5.0, 6.0], "float32")
    assert y.tolist() == [7, 7, 7] and z.tolist() == [4, 5, 6]
    (y + z).sum().backward()
    assert x.grad.tolist() == w.grad.tolist() == [0, 0, 0]


def test_an_overwritten_value_gets_a_zero_gradient():
    x, w = leaf(), leaf()
    y = x * onp.inf
    y[:] = w * 3
    along_x, along_w = grad(y.sum(), (x, w))
    assert along_x.tolist() == [0, 0, 0] and along_w.tolist() == [3, 3, 3]
    column = x[:, None] * onp.inf
    column[:, 0] = w * 3
    along_x, along_w = grad(column.sum(), (x, w))
    assert along_x.tolist() == [0, 0, 0] and along_w.tolist() == [3, 3, 3]


def test_in_place_operations_differentiate_by_the_value_before():
    x, w = leaf(), leaf()
    y = x * 2
    y *= w
    y **= 2
    y[:1] /= w[:1]
    y += 1
    along_x, along_w = grad(y.sum(), (x, w), create_graph=True)
    # The loss is 4 x x w for the first element, and 4 x x w w for the others.
    onp.testing.assert_allclose(along_x, [8, 64, 1], rtol=1e-6)
    onp.testing.assert_allclose(along_w, [4, 64, 1], rtol=1e-6)
    assert onp.isfinite(onp.asarray(grad(along_x.sum(), w)[0])).all()
    constant = Variable(POINT)
    constant *= w
    assert grad(constant.sum(), w)[0].tolist() == POINT.tolist()
    y = x * 2
    y *= y
    with pytest.raises(SavedValueError, match="version 1, expected version 0"):
        y.sum().backward()


def test_a_write_to_a_detached_array_has_a_history_that_the_array_that_shares_memory_has_not():
    x, constant, w = leaf(), Variable(POINT), leaf()
    detached, other = x.detach(), constant.detach()
    detached *= w
    part = other[1:]
    part *= w[1:]
    assert x.is_leaf and not constant.requires_grad and other.requires_grad
    onp.testing.assert_array_equal(x, detached)
    constant += 1
    (detached.sum() + (other + part.sum()).sum()).backward()
    assert w.grad.tolist() == [1, 2 + 4 * 2, 0.5 + 4 * 0.5] and x.grad is None


def test_a_detached_array_keeps_the_memory_but_not_the_graph():
    x = leaf(onp.ones((2, 3), "float32"))
    y = x * 2
    row, node = y[0], weakref.ref(y.grad_fn)
    detached, part, again = y.detach(), row.detach(), y.detach().detach()
    part += 1
    again[1] = 5
    y *= 10
    expected = [[30, 30, 30], [50, 50, 50]]
    assert y.tolist() == detached.tolist() == again.tolist() == expected
    assert row.tolist() == part.tolist() == expected[0] and y._version == again._version == 3
    assert grad(y.sum(), x)[0].tolist() == [[20] * 3] * 2
    gc.disable()
    try:
        del y, row
        assert node() is None
    finally:
        gc.enable()
    detached += 1
    assert part.tolist() == again[0].tolist() == [31, 31, 31]
    for _ in range(2_000):
        detached = detached.detach()
    detached += 1
    assert part.tolist() == [32, 32, 32]


def test_a_part_of_a_split_is_written_to_only_without_gradients():
    x = leaf(onp.ones((2, 2), "float32"))
    y = x * 1
    for part in (np.split(y, 2)[0], np.unstack(y)[1]):
        with pytest.raises(ViewWriteError, match="results of `split`"):
            part += 1
        with no_grad():
            part += 1
    assert y.tolist() == [[2, 2], [2, 2]]
    constant = Variable([1.0, 2.0])
    first, _ = np.split(constant, 2)
    first += 1
    assert constant.tolist() == [2, 2]


def test_all_views_see_a_write():
    x = Variable(onp.zeros((2, 3)))
    row, column, flat = x[0], x[:, 1], x.reshape(6)
    row += 1
    flat[4] = 5
    onp.testing.assert_array_equal(onp.asarray(x), [[1, 1, 1], [0, 5, 0]])
    onp.testing.assert_array_equal(onp.asarray(column), [1, 5])
    detached = x.detach()
    detached[1] = 7
    onp.testing.assert_array_equal(onp.asarray(flat), [1, 1, 1, 7, 7, 7])
    assert x._version == row._version == 3


def test_functions_that_write_take_variables():
    def write(xnp, x):
        row = x[0]
        xnp.copyto(row, 1.0)
        xnp.put(x, [4, 5], 7.0)
        xnp.putmask(x, x > 5, [2.0, 3.0])
        xnp.place(x, x == 0, [8.0])
        xnp.fill_diagonal(x[:, 1:], 4.0)
        xnp.put_along_axis(x, onp.array([[0], [0]]), 6.0, 1)
        return x

    y = Variable(onp.zeros((2, 3)))
    assert write(np, y).tolist() == write(onp, onp.zeros((2, 3))).tolist()
    x = leaf()
    y = x * 1
    np.put(y, [0], 9.0)
    y.sum().backward()
    assert x.grad.tolist() == [0, 1, 1]


def test_an_array_of_numpy_is_read_when_it_is_used():
    factor = onp.ones(3, "float32")
    y = Variable(POINT) * factor
    factor[:] = 7
    onp.testing.assert_array_equal(onp.asarray(y), POINT)


def test_only_live_results_are_computed():
    x = Variable(POINT)
    y = np.sin(x)
    np.cos(y)
    z = y + 1
    assert [eqn.primitive.name for eqn in functx.autograd.recorded()][-3:] == ["sin", "cos", "add"]
    del y
    float(z.sum())
    assert not functx.autograd.recorded().equations


def test_deep_graphs_are_walked_and_freed_without_recursion():
    x = leaf(1.0)
    y = x
    for _ in range(100_000):
        y = y + 1
    y.backward()
    assert float(x.grad) == 1
    del y
    node = Node("first", [], [])
    for _ in range(100_000):
        edge = GradientEdge(node, 0)
        node = Node("next", [edge, None, edge], [])
    gone = weakref.ref(edge.node)
    del node, edge
    assert gone() is None


@pytest.mark.parametrize(
    "norm",
    [
        np.linalg.norm,
        lambda x: np.sqrt((x * x).sum()),
        lambda x: np.sqrt(x[0] ** 2 + x[1] ** 2 + np.dot(x[2:], x[2:])),
    ],
)
def test_the_gradient_of_a_norm_at_zero_is_that_of_grad(norm):
    zero, x = onp.zeros(3, "float32"), leaf(onp.zeros(3))
    norm(x).backward()
    onp.testing.assert_array_equal(x.grad, functx.grad(norm)(zero))
    assert onp.isfinite(x.grad).all()


def test_a_root_that_is_differentiated_with_its_power_is_freed():
    x = leaf()
    root = np.abs(x)
    (slope,) = grad((root**2).sum(), x, create_graph=True, retain_graph=False)
    assert slope.tolist() == (2 * POINT).tolist() and root.grad_fn.saved is None


def test_a_root_of_anything_else_has_an_infinite_slope_at_zero():
    x = leaf(0.0)
    np.sqrt(x * 2).backward()
    assert float(x.grad) == onp.inf


def test_a_variable_is_pickled_by_its_value():
    x = pickle.loads(pickle.dumps(leaf()))
    assert x.requires_grad
    onp.testing.assert_array_equal(x, POINT)
    with pytest.raises(AutogradError, match="history"):
        pickle.dumps(x * 2)


def test_functions_that_only_numpy_has_take_variables_without_gradients(tmp_path):
    onp.save(tmp_path / "x.npy", leaf().detach())
    onp.testing.assert_array_equal(onp.load(tmp_path / "x.npy"), POINT)
    with pytest.raises(ForeignCodeError, match="no gradient"):
        onp.isnat(leaf())


def test_a_missing_attribute_runs_nothing():
    y = Variable(POINT) * 2
    with pytest.raises(AttributeError, match=r"a Variable has no attribute 'clone'.*x\.copy\(\)"):
        y.clone()
    assert functx.autograd.recorded().equations


def test_no_variable_equals_none():
    x = leaf()
    assert (x == None) is False and (x != None) is True  # noqa: E711 - users write it


def test_another_shape_is_no_dtype():
    with pytest.raises(DTypeError, match=r"x\.reshape"):
        leaf().view(-1)


def test_even_powers_of_roots_have_second_derivatives_where_the_root_has_none():
    def second_derivative(f, x):
        (slope,) = grad(f(x).sum(), x, create_graph=True)
        return grad(slope.sum(), x)[0].tolist()

    def without_hook(x):
        x.register_hook(print).remove()
        return x

    powers = {
        "abs": (lambda x: abs(x) ** 2, 2.0),
        "abs of abs": (lambda x: np.square(abs(abs(x))), 2.0),
        "hypot": (lambda x: np.hypot(x, 2 * x) ** 2, 10.0),
        "norm": (lambda x: (lambda n: n * n)(np.linalg.norm(x)), 2.0),
        "a removed hook": (lambda x: without_hook(np.linalg.norm(x)) ** 2, 2.0),
    }
    for name, (power, expected) in powers.items():
        assert second_derivative(power, leaf([0.0, 0.0])) == [expected] * 2, name

    x = leaf([3.0, -4.0])
    n = np.linalg.norm(x)
    slopes = grad(n**2 + n, [n, x], create_graph=True)
    assert [y.tolist() for y in slopes] == [11.0, pytest.approx([6.6, -8.8])]
    seen = []
    n.register_hook(lambda ct: seen.append(float(ct)))
    grad(n**2, x, create_graph=True)
    assert seen == [10.0]
