"""Variables among other arrays: NumPy's functions, writes to NumPy arrays, copies, Python's protocols."""

import copy
import pickle

import jax
import numpy as onp
import pytest

import functx.numpy as np
from functx.autograd import Variable, forward_ad, grad, no_grad
from functx.core.errors import AutogradError


def leaf(*values):
    return Variable(list(values), requires_grad=True)


WRITES = {
    "x += y": lambda x, y: x.__iadd__(y),
    "x[:] = y": lambda x, y: x.__setitem__(slice(None), y),
    "x[0] = y[0]": lambda x, y: x.__setitem__(0, y[0]),
    "x[:] = [y[0], y[1]]": lambda x, y: x.__setitem__(slice(None), [y[0], y[1]]),
    "out of functx": lambda x, y: np.exp(y, out=x),
    "out of NumPy": lambda x, y: onp.exp(y, out=x),
    "copyto": lambda x, y: onp.copyto(x, y),
    "ufunc.at": lambda x, y: onp.add.at(x, [0], y[0]),
    "put": lambda x, y: np.put(x, [0], y[:1]),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_write_to_an_array_without_history_does_not_drop_a_derivative(write):
    # In `x[:] = y`, a `numpy.ndarray` reads the value unnoticed.
    for make in (np.array, *([] if "__setitem__" in write.__code__.co_names else [onp.array])):
        x, y = make([1.0, 2.0], "float32"), leaf(3.0, 4.0)
        before = x.tolist()
        with pytest.raises(
            AutogradError, match="a value with a derivative must not be written to an"
        ):
            write(x, y)
        assert x.tolist() == before
        with no_grad():
            write(x, y)
        assert x.tolist() != before
        write(make([1.0, 2.0], "float32"), y.detach())
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(Variable([3.0, 4.0]), Variable([1.0, 1.0]))
            with pytest.raises(
                AutogradError, match="a value with a derivative must not be written"
            ):
                write(make([1.0, 2.0], "float32"), dual)


def test_functions_of_numpy_give_gradients_like_those_of_functx():
    v = leaf(1.0, 2.0)
    cases = {
        "sin": (onp.sin(v).sum(), onp.cos([1.0, 2.0])),
        "sum": (onp.sum(v), [1, 1]),
        "concatenate": (onp.concatenate([v, v * v]).sum(), [3, 5]),
        "where": (onp.where(onp.array([True, False]), v, 0).sum(), [1, 0]),
        "reduce": (onp.multiply.reduce(v), [2, 1]),
        "outer": (onp.multiply.outer(v, v).sum(), [6, 6]),
        "array + v": ((onp.array([3.0, 4.0]) * v).sum(), [3, 4]),
        "jax array @ v": (jax.numpy.array([3.0, 4.0]) @ v, [3, 4]),
        "norm": (onp.linalg.norm(v), onp.array([1, 2]) / onp.sqrt(5)),
    }
    for name, (y, gradient) in cases.items():
        onp.testing.assert_allclose(grad(y, v)[0], gradient, rtol=1e-6, err_msg=name)


def test_a_deep_copy_of_a_leaf_has_memory_and_a_gradient_of_its_own():
    v = leaf(1.0, 2.0)
    (v * v).sum().backward()
    first, second = copy.deepcopy([v, v])
    assert first is second
    assert first is not v
    assert first.requires_grad
    with no_grad():
        first += 1
        first.grad *= 2
    assert (v.tolist(), v.grad.tolist()) == ([1.0, 2.0], [2.0, 4.0])
    assert (first.tolist(), first.grad.tolist()) == ([2.0, 3.0], [4.0, 8.0])
    plain = copy.deepcopy(Variable([1, 2]))
    assert not plain.requires_grad
    assert copy.deepcopy((v * 1).detach()).tolist() == [1.0, 2.0]
    for function in (copy.deepcopy, pickle.dumps):
        with pytest.raises(AutogradError, match=r"(?s)a Variable with a history cannot be.*detach"):
            function(v * v)
    read = pickle.loads(pickle.dumps(v))
    assert (read.tolist(), read.requires_grad) == ([1.0, 2.0], True)


def test_python_asks_a_variable_for_its_elements():
    v = leaf(1.0, 2.0)
    assert 2.0 in v
    assert 3.0 not in v
    assert None not in v
    assert v in [None, v]
    assert [x.item() for x in v] == [1.0, 2.0]
    assert [10, 20, 30][Variable(1)] == 20
    assert list(range(Variable(3))) == [0, 1, 2]
    assert v[Variable(0) : Variable(1)].tolist() == [1.0]
    assert sorted([v[1], v[0]])[0].item() == 1.0
    first, second = v
    assert grad(first * second, v)[0].tolist() == [2.0, 1.0]
    assert grad(sum(v), v)[0].tolist() == [1.0, 1.0]


class Parameter(Variable):
    """A subclass, as users make it for the arrays of a model."""


def test_a_subclass_is_differentiated_like_a_variable():
    p, w = Parameter([1.0, 2.0], requires_grad=True), leaf(3.0, 4.0)
    for y, gradient in (
        ((p * w).sum(), [3, 4]),
        ((2 * p).sum() + p[0] + p.T @ w, [6, 6]),
        (np.where(p > 1, p * p, 0).sum(), [0, 4]),
    ):
        assert grad(y, p)[0].tolist() == gradient
    (p**2).sum().backward()
    with no_grad():
        p -= 0.5 * p.grad
    assert type(p) is Parameter
    assert p.tolist() == [0.0, 0.0]
