"""Variables among other arrays: NumPy's functions, writes to NumPy arrays, copies, Python's protocols."""

import copy
import pickle
import sys

import jax
import numpy as onp
import pytest

import functx.numpy as np
from functx.autograd import Variable, forward_ad, grad, no_grad
from functx.core.errors import (
    AutogradError,
    SavedValueError,
    ShapeError,
)


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
    "x.real = y": lambda x, y: np.asarray(x).__class__.real.__set__(np.asarray(x), y),
    "x.fill(y[0])": lambda x, y: np.asarray(x).fill(y[0]),
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


def test_an_array_like_a_variable_is_one_that_can_be_written_to():
    w = Variable([1.0, 2.0], requires_grad=True)
    for like, value in (
        (np.zeros_like(w), 0),
        (np.full_like(w, 3), 3),
        (np.full_like(w, [4, 4]), 4),
    ):
        assert not like.requires_grad and like.dtype == w.dtype
        like += w
        assert like.requires_grad and like.tolist() == [1.0 + value, 2.0 + value]
    assert type(np.zeros_like(onp.ones(2))) is not Variable


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


COPIES = {
    "array": np.array,
    "asarray(copy=True)": lambda x: np.asarray(x, copy=True),
    "copy": lambda x: x.copy(),
    "copy of a view": lambda x: np.copy(x[:]),
    "flatten": lambda x: x.flatten(),
    "flatten of a view": lambda x: x[:].flatten(),
    "concatenate": lambda x: np.concatenate([x.ravel()]),
    "list": lambda x: np.array([x])[0],
    "broadcast": lambda x: np.ascontiguousarray(np.broadcast_to(x, (2, 3)))[0],
    "reshape(copy=True)": lambda x: np.reshape(x, (3,), copy=True),
    "astype": lambda x: x.astype(x.dtype),
    "nan_to_num": np.nan_to_num,
    "sum over no axis": lambda x: x.sum(axis=()),
    "arithmetic": lambda x: +x,
    "repeat": lambda x: np.repeat(x, 1),
    "tile": lambda x: np.tile(x, 1),
    "roll": lambda x: np.roll(x, 0),
    "take": lambda x: x[onp.array([0, 1, 2])],
    "mask": lambda x: x[onp.array([True, True, True])],
    "sort": np.sort,
    "real of a copy": lambda x: np.real(np.array(x)),
    "pad": lambda x: np.pad(x, 0),
    "where": lambda x: np.where(True, x, x),
    "delete": lambda x: np.delete(x, []),
}


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
def test_a_copy_of_a_variable_has_memory_of_its_own(copied):
    u = leaf(1.0, 2.0, 3.0)
    x = u * 1
    y = copied(x)
    x[0] = 7.0
    assert y.tolist() == [1.0, 2.0, 3.0]
    y[1] = 8.0
    assert x.tolist() == [7.0, 2.0, 3.0]
    assert grad((x * 10 + y).sum(), u)[0].tolist() == [1.0, 10.0, 11.0]


def test_functions_that_write_take_variables():
    u = leaf(1.0, 2.0, 3.0)
    table = (u * 1).reshape(1, 3)
    np.put_along_axis(table, onp.array([[0]]), 5.0, axis=1)
    np.copyto(table, np.array([[9.0, 9.0, 9.0]]), where=onp.array([[False, False, True]]))
    np.add.at(table, (0, [1, 1]), u[1])
    assert table.tolist() == [[5.0, 6.0, 9.0]]
    assert grad(table.sum(), u)[0].tolist() == [0.0, 3.0, 0.0]
    x = u * 1
    np.put(x, [0], 4.0)
    np.place(x, x > 3.5, [6.0])
    np.putmask(x, x == 3.0, 0.0)
    assert x.tolist() == [6.0, 2.0, 0.0]
    assert grad(x.sum(), u)[0].tolist() == [0.0, 1.0, 0.0]
    square = Variable([[1.0, 2.0], [3.0, float("nan")]])
    np.fill_diagonal(square.T, 5.0)
    assert square.tolist() == [[5.0, 2.0], [3.0, 5.0]]
    odd = Variable([float("nan"), 1.0])
    assert np.nan_to_num(odd, copy=False) is odd
    assert odd.tolist() == [0.0, 1.0]
    with pytest.raises(ShapeError, match="with copy=False the layout"):
        np.reshape(square.T, (4,), copy=False)
    assert np.reshape(square, (4,), copy=False).shape == (4,)


def test_an_operation_whose_result_is_written_to_its_operand_keeps_what_its_gradient_needs():
    def gradients(write):
        x, y = leaf(1.0, 2.0, 3.0), leaf(4.0, 5.0, 6.0)
        a = x * 1
        write(a, y * 1)
        return [g.tolist() for g in grad(a.sum(), [x, y])]

    assert gradients(lambda a, b: a.__imul__(b)) == [[4.0, 5.0, 6.0], [1.0, 2.0, 3.0]]
    assert gradients(lambda a, b: a[1:].__imul__(b[1:])) == [[1.0, 5.0, 6.0], [0.0, 2.0, 3.0]]
    x = leaf(1.0, 2.0)
    a = x * 1
    a **= 3
    assert grad(a.sum(), x)[0].tolist() == [3.0, 12.0]
    b = x * 1
    c = b * b
    b *= 3
    with pytest.raises(SavedValueError, match="version 1, expected version 0"):
        grad(c.sum(), x)
    x, y = leaf(3.0, 8.0), leaf(1.0, 2.0)
    a = x / y
    a *= 3
    assert [g.tolist() for g in grad(a.sum(), [x, y])] == [[3.0, 1.5], [-9.0, -6.0]]


def test_a_value_in_the_memory_that_it_is_written_to_is_read_before():
    u = leaf(1.0, 2.0, 3.0)
    x = u * 1
    x[3:] **= 2
    assert x.tolist() == [1.0, 2.0, 3.0]
    np.copyto(x, x[::-1])
    assert x.tolist() == [3.0, 2.0, 1.0]
    x[...] = x
    np.copyto(x, x)
    x[:2] = x[1:]
    assert x.tolist() == [2.0, 1.0, 1.0]
    assert grad((x * onp.array([1.0, 10.0, 100.0])).sum(), u)[0].tolist() == [110.0, 1.0, 0.0]
    matrix, result = Variable([[1.0, 2.0], [3.0, 4.0]], requires_grad=True), u * 1
    with no_grad():
        matrix[...] = matrix.T
        assert matrix.tolist() == [[1.0, 3.0], [2.0, 4.0]]
        np.copyto(matrix, matrix.T)
        u[:] = u[::-1]
        result[:] = result[::-1]
    assert matrix.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert u.tolist() == result.tolist() == [3.0, 2.0, 1.0]
    assert grad((result * u).sum(), u)[0].tolist() == [6.0, 4.0, 2.0]


def test_views_may_be_nested_deeper_than_python_calls():
    u = leaf(1.0, 2.0, 3.0)
    x = u * 1
    views = [x]
    for _ in range(sys.getrecursionlimit()):
        views.append(views[-1][:])
    last, detached = views[-1], views[-1].detach()
    x[0] = 4.0
    last[1] = 5.0
    assert x.tolist() == last.tolist() == [4.0, 5.0, 3.0]
    # Another recording than that of `last`, which would be compiled when it is met again.
    assert (2 * detached).tolist() == [8.0, 10.0, 6.0]
    assert grad(last.sum(), u)[0].tolist() == [0.0, 0.0, 1.0]
    detached[2] = 6.0
    assert x.tolist() == last.tolist() == [4.0, 5.0, 6.0]


def test_64_bit_variables_stay_so_where_64_bit_mode_is_off_by_then():
    with jax.enable_x64():
        x, n = leaf(0.1, 0.2), Variable([1, 2])
        y = x * x
    assert y.tolist() == [0.1 * 0.1, 0.2 * 0.2]
    z = y * 2.0
    assert z.dtype == "float64"
    assert z.tolist() == [2.0 * (0.1 * 0.1), 2.0 * (0.2 * 0.2)]
    assert grad(z.sum(), x)[0].tolist() == [0.4, 0.8]
    assert (n * 3).tolist() == [3, 6]
    narrow = leaf(1.0, 2.0)
    with jax.enable_x64():
        assert (narrow * narrow).dtype == "float32"
        assert (narrow * x).tolist() == [0.1, 0.4]


def test_a_numpy_array_that_was_written_to_a_variable_is_not_shared_with_it():
    for given in (np.ones(3), onp.ones(3, "float32"), np.ones(6)[::2]):
        x, y, z = Variable([5.0, 6.0, 7.0]), Variable([5.0, 6.0, 7.0]), Variable(given)
        x[...] = given
        np.copyto(y, given)
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(given, given)
            given[0] = 9.0
            assert dual.tolist() == [1.0, 1.0, 1.0]
            assert forward_ad.unpack_dual(dual).tangent.tolist() == [1.0, 1.0, 1.0]
        assert x.tolist() == y.tolist() == z.tolist() == [1.0, 1.0, 1.0]


def test_numpy_gets_copies_alone():
    x = Variable([1.0, 2.0])
    for made in (onp.asarray(x), onp.array(x), onp.from_dlpack(x), onp.from_dlpack(x, copy=True)):
        made += 1
        assert x.tolist() == [1.0, 2.0]
    for function, error in ((onp.asarray, ValueError), (onp.from_dlpack, BufferError)):
        with pytest.raises(error, match="Variable: its memory must not be shared"):
            function(x, copy=False)


def test_a_view_gets_its_base_by_an_array_of_indices():
    x = Variable(onp.arange(4.0).reshape(2, 2))
    np.flip(x)[onp.array([0, 1])] = x
    assert x.tolist() == [[3, 2], [1, 0]]


def test_a_write_to_the_whole_of_a_detached_array_gives_it_a_history():
    x = Variable([1.0, 2.0], requires_grad=True)
    y = Variable([3.0, 4.0]) * 1.0
    detached = y.detach()
    y[...] += x
    assert y.requires_grad and not detached.requires_grad
    y.sum().backward()
    assert x.grad.numpy().tolist() == [1.0, 1.0] and detached.numpy().tolist() == [4.0, 6.0]


def test_objects_that_refuse_numpys_ufuncs_compare_themselves():
    x = Variable(np.array([1.0, 2.0]))
    assert x == pytest.approx([1.0, 2.0])
    assert x != pytest.approx([1.0, 3.0])
    assert x[0] == pytest.approx(1.0)
    with pytest.raises(TypeError, match="arguments must be arrays or numbers"):
        x == object()  # noqa: B015


def test_results_lie_in_the_memory_order_of_numpy_so_that_writes_reach_the_same_arrays():
    a = onp.arange(6.0, dtype="float32").reshape(2, 3)
    b = onp.arange(6.0, dtype="float32").reshape(3, 2) + 1
    functions = [
        lambda m, x, y: x.T + 1.0,
        lambda m, x, y: 1.0 - x.T,
        lambda m, x, y: x.T * y,
        lambda m, x, y: m.tanh(x.T * 2.0) + (y.T * 2.0).T,
        lambda m, x, y: m.where(x.T > 1, x.T, y),
        lambda m, x, y: m.copy(x.T),
        lambda m, x, y: x.T.copy(),
        lambda m, x, y: x.T.astype("float32") + 0,
        lambda m, x, y: x[:, 1:] * 2.0,
    ]
    for function in functions:
        for flat in (lambda r: r.ravel(), lambda r: r.T.reshape(-1)):
            found = []
            for module, make in ((onp, onp.array), (np, Variable)):
                result = function(module, make(a), make(b))
                flat(result)[1] = 50.0
                found.append(onp.asarray(result).tolist())
            assert found[0] == found[1]
