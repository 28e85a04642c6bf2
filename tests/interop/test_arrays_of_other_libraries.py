"""Arrays of other libraries as arguments: of a class with `__array__`, of pandas, xarray and PyTorch."""

import numpy as np
import pytest

import functx
import functx.numpy as fnp
from functx.core.errors import ArgumentError, FunctxError


class Column:
    """An array of a library that functx does not know."""

    def __init__(self, values):
        self.values = np.asarray(values)

    @property
    def shape(self):
        return self.values.shape

    def __array__(self, dtype=None, copy=None):
        return self.values

    def __mul__(self, other):
        raise AssertionError("the function gets an array")


def square(x):
    return (x * x).sum()


CALLS = {
    "jit": lambda x: functx.jit(square)(x),
    "grad": lambda x: functx.grad(square)(x).sum() + 2,
    "vmap": lambda x: functx.vmap(square)(x).sum(),
    "jvp": lambda x: functx.jvp(square, (x,), (x,))[1] - 14,
    "vjp": lambda x: functx.vjp(square, x)[1](1.0)[0].sum() + 2,
    "linearize": lambda x: functx.linearize(square, x)[1](x) - 14,
    "make_ir": lambda x: functx.make_ir(square)(x)(np.asarray(x, np.float32)),
    "jit inside jit": lambda x: functx.jit(lambda one: functx.jit(square)(x) * one)(1.0),
    "asarray": lambda x: square(fnp.asarray(x)),
    "in a pytree": lambda x: functx.jit(lambda tree: square(tree["x"][0]))({"x": (x,)}),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_function_gets_an_array_of_functx(name):
    assert CALLS[name](Column([1.0, 2.0, 3.0])) == 14


@pytest.mark.parametrize("values", [[None, "a"], ["a"], np.array(["2020-01-01"], "datetime64[s]")])
@pytest.mark.parametrize("name", CALLS)
def test_elements_that_are_no_numbers_are_refused(name, values):
    with pytest.raises((ArgumentError, ValueError)) as caught:
        CALLS[name](Column(values))
    assert isinstance(caught.value, FunctxError)
    assert "got Column" in str(caught.value)
    if name != "vmap":
        assert "Its elements must be numbers" in str(caught.value)


def test_an_argument_that_no_derivative_is_taken_in_stays_what_it_is():
    kinds = []
    functx.grad(lambda y, x: kinds.append(type(x)) or y * fnp.asarray(x).sum())(1.0, Column([1.0]))
    assert kinds == [Column]


def test_tables_of_pandas_are_arrays():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": [1.0, 2.0, 3.0], "b": [0, 0, 0]})
    for x in (frame, frame["a"], frame["a"].values, pandas.Index([1.0, 2.0, 3.0])):
        assert all(call(x) == 14 for name, call in CALLS.items() if name != "grad")
    with pytest.raises(ArgumentError, match="select_dtypes"):
        functx.jit(square)(pandas.DataFrame({"a": ["x"]}))


def test_labelled_arrays_of_xarray_are_arrays():
    xarray = pytest.importorskip("xarray")
    x = xarray.DataArray([1.0, 2.0, 3.0], dims="t")
    assert all(call(x) == 14 for call in CALLS.values())


def test_tensors_of_pytorch_are_arrays():
    torch = pytest.importorskip("torch")
    x = torch.tensor([1.0, 2.0, 3.0])
    assert all(call(x) == 14 for call in CALLS.values())
    with pytest.raises(ArgumentError, match="from_dlpack"):
        functx.jit(square)(x.requires_grad_())
