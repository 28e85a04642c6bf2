"""PyTorch's names of methods, functions and arguments: the message says what to write."""

import numpy
import pytest

import functx
import functx.numpy as np
from functx import nn
from functx.autograd import Variable, no_grad
from functx.core.pytorch_names import FUNCTIONS, METHODS
from functx.errors import ArgumentError, DTypeError, ImmutableArrayError

ROWS = numpy.arange(6, dtype="float32").reshape(2, 3)
KEY = functx.random.key(0)


def leaf():
    return Variable(ROWS, requires_grad=True)


METHOD_CURES = {
    "clamp": ("x.clip(min, max)", lambda x: x.clip(1, 2), ROWS.clip(1, 2)),
    "pow": ("x ** n", lambda x: x**2, ROWS**2),
    "matmul": ("x @ y", lambda x: x @ x.T, ROWS @ ROWS.T),
    "mm": ("x @ y", lambda x: x @ x.T, ROWS @ ROWS.T),
    "norm": ("functx.numpy.linalg.norm(x, ord, axis)", np.linalg.norm, numpy.linalg.norm(ROWS)),
    "expand": (
        "functx.numpy.broadcast_to(x, shape)",
        lambda x: np.broadcast_to(x, (2, 2, 3)),
        [ROWS, ROWS],
    ),
    "chunk": ("functx.numpy.split(x, chunks, axis)", lambda x: np.split(x, 2, 0)[1], ROWS[1:]),
    "where": (
        "functx.numpy.where(condition, x, y)",
        lambda x: np.where(x > 1, x, 0),
        numpy.where(ROWS > 1, ROWS, 0),
    ),
    "float": ("x.astype('float32')", lambda x: x.astype("float32"), ROWS),
    "double": ("x.astype('float64') inside jax.enable_x64()", lambda x: x, ROWS),
    "normal_": ("functx.random.normal_(x)", lambda x: x, ROWS),
    "erf": ("functx.lax.erf(x)", lambda x: functx.lax.erf(x * 0), 0 * ROWS),
}


@pytest.mark.parametrize("name", METHOD_CURES)
def test_a_missing_method_names_an_expression_that_works(name):
    words, cure, result = METHOD_CURES[name]
    x = leaf()
    for array in (
        lambda: getattr(x, name),
        lambda: functx.make_ir(lambda x: getattr(x, name))(ROWS),
    ):
        with pytest.raises(AttributeError) as error:
            array()
        assert str(error.value).endswith(f"; write {words}")
    numpy.testing.assert_allclose(numpy.asarray(cure(x)), result, rtol=1e-6)


def test_the_hints_name_functions_that_exist_and_methods_that_variables_lack():
    x = leaf()
    for text in [*METHODS.values(), *[t for names in FUNCTIONS.values() for t in names.values()]]:
        for path in [word.split("(")[0].strip(",") for word in text.split() if "functx." in word]:
            value = functx
            for part in path.split(".")[1:]:
                value = getattr(value, part)
    # size is a number, and not a method.
    assert not [name for name in METHODS.keys() - {"size"} if hasattr(x, name)]


ARGUMENTS = {
    "x.sum(dim=0)": "axis",
    "x.max(dim=0)": "axis",
    "x.mean(axis=0, keepdim=True)": "keepdims",
    "x.var(unbiased=True)": "correction",
    "x.cumsum(dim=0)": "axis",
    "np.sum(x, dim=0)": "axis",
    "np.concatenate([x, x], dim=0)": "axis",
    "np.sort(x, dim=0)": "axis",
    "np.roll(x, 1, dims=0)": "axis",
    "np.linalg.norm(x, p=1)": "ord",
    "nn.softmax(x, dim=0)": "axis",
    "nn.dropout(x, p=0.5, key=KEY)": "rate",
    "nn.dropout(x, 0.5, KEY, training=True)": "deterministic",
}


@pytest.mark.parametrize("code", ARGUMENTS)
def test_an_argument_by_its_name_in_pytorch_names_the_one_to_write(code):
    with pytest.raises(ArgumentError, match=rf"the argument must be named {ARGUMENTS[code]}; got"):
        eval(code, globals(), {"x": leaf()})
    with pytest.raises(TypeError, match="unexpected keyword argument 'other'"):
        leaf().sum(other=1)


NAMES = {
    (np, "cat"): "write functx.numpy.concatenate(arrays, axis)",
    (np, "topk"): "write functx.lax.top_k(x, k)",
    (np, "softmax"): "there is functx.nn.softmax",
    (nn, "init"): "write functx.random.normal_(w), or values of jax.nn.initializers",
    (nn.Module(), "apply"): "write for module in m.modules(): f(module)",
    (nn, "functional"): "its functions are those of functx.nn",
    (nn, "Linear"): "write a functx.nn.Module whose forward returns x @ self.weight.T + self.bias",
    (nn, "CrossEntropyLoss"): "in place of this module, write the function functx.nn.cross_entropy",
    (nn, "ReLU"): "in place of this module, write the function functx.nn.relu",
}


@pytest.mark.parametrize(("module", "name"), NAMES)
def test_a_function_or_module_by_its_name_in_pytorch_names_the_one_to_write(module, name):
    with pytest.raises(AttributeError) as error:
        getattr(module, name)
    assert str(error.value).endswith(f"'{name}'; {NAMES[module, name]}")


def test_data_is_not_assigned_and_a_shape_is_no_dtype():
    x = leaf()
    with pytest.raises(ImmutableArrayError, match=r"Write x\[\.\.\.\] = value, under"):
        x.data = ROWS
    with no_grad():
        x[...] = ROWS + 1
    assert x.tolist() == (ROWS + 1).tolist()
    with pytest.raises(DTypeError, match=r"got \(3, 2\)[^$]*x\.reshape\(shape\)"):
        x.view(3, 2)


@pytest.mark.parametrize(("shape", "target"), [((1, 3), [2.0]), ((3,), 2.0)])
def test_numbers_of_classes_that_are_floats_are_refused(shape, target):
    with pytest.raises(DTypeError, match=r"numbers of classes, integers[^$]*astype\(int\)"):
        nn.cross_entropy(numpy.ones(shape), numpy.array(target))
