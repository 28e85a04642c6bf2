"""`autograd.functional`: products with derivatives, Jacobians, Hessians, and their mistakes."""

import numpy as onp
import pytest

import functx
import functx.numpy as np
from functx.autograd import Variable, functional, grad, inference_mode, no_grad
from functx.autograd.functional import hessian, hvp, jacobian, jvp, vhp, vjp
from functx.core.errors import (
    ArgumentError,
    AutogradError,
    FunctionalArgumentError,
    FunctionalTypeError,
    IndependenceError,
    StrategyError,
    UnsupportedStrategyError,
)

X, Y = onp.array([1.0, 2.0], "float32"), onp.array([3.0, 4.0, 5.0], "float32")
V, W = onp.array([1.0, -2.0], "float32"), onp.array([0.5, 1.0, 2.0], "float32")
VECTORIZED = {"vectorize": True}
FORWARD = {"vectorize": True, "strategy": "forward-mode"}


def function(x, y):
    return x * np.sin(y).sum(), (x**2).sum()


def cubes(x):
    return (x**3).sum()


def coupled(x, y):
    return (x**2).sum() * np.sin(y).sum()


def assert_close(got, expected):
    if isinstance(expected, (tuple, list)):
        assert isinstance(got, tuple) and len(got) == len(expected)
        for g, e in zip(got, expected, strict=True):
            assert_close(g, e)
    else:
        onp.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_the_result_has_the_structure_of_inputs_and_outputs():
    outputs, products = vjp(function, (X, Y), (V, onp.float32(2.0)))
    expected, pullback = functx.vjp(function, X, Y)
    assert_close(outputs, expected)
    assert_close(products, pullback((V, onp.float32(2.0))))
    output, product = vjp(lambda x: x * x, X, V)
    assert isinstance(output, Variable) and isinstance(product, Variable)
    (output,), (product,) = vjp(lambda x: (x * x,), (X,), (V,))
    assert_close(product, 2 * X * V)


@pytest.mark.parametrize("strategy", ["reverse-mode", "forward-mode"])
def test_a_number_in_place_of_the_function_is_refused_by_each_strategy(strategy):
    with pytest.raises(ArgumentError, match="jvp: "):
        jvp(3, X, V, strategy=strategy)


@pytest.mark.parametrize("strategy", ["reverse-mode", "forward-mode"])
def test_products_with_the_jacobian_are_those_of_forward_mode(strategy):
    outputs, products = jvp(function, (X, Y), (V, W), strategy=strategy)
    expected = functx.jvp(function, (X, Y), (V, W))
    assert_close(outputs, expected[0])
    assert_close(products, expected[1])


@pytest.mark.parametrize("strategy", ["reverse-mode", "forward-mode"])
def test_values_that_where_does_not_choose_stay_without_influence(strategy):
    _, product = jvp(lambda x: np.where(x > 1, np.log(x - 1), 0 * x), X, V, strategy=strategy)
    assert_close(product, onp.array([0.0, -2.0]))


def test_a_vector_may_be_left_out_for_one_element():
    assert_close(vjp(cubes, X)[1], 3 * X**2)
    assert_close(jvp(lambda x: x * X, onp.float32(2.0))[1], X)
    assert_close(jvp(lambda x: x * X, onp.float32(2.0), strategy="forward-mode")[1], X)
    assert_close(vhp(lambda x: x**3, onp.float32(2.0))[1], 12.0)
    assert_close(hvp(lambda x: x**3, onp.float32(2.0))[1], 12.0)


@pytest.mark.parametrize("options", [{}, VECTORIZED, FORWARD, {"create_graph": True}])
def test_jacobians_have_the_shape_of_the_output_and_that_of_the_input(options):
    found = jacobian(function, (X, Y), **options)
    assert [[j.shape for j in row] for row in found] == [[(2, 2), (2, 3)], [(2,), (3,)]]
    assert_close(found, functx.jacrev(function, argnums=(0, 1))(X, Y))
    assert_close(jacobian(lambda x: x * x, X, **options), onp.diag(2 * X))
    assert_close(jacobian(lambda x: (x * x,), X, **options), (onp.diag(2 * X),))
    assert_close(jacobian(lambda x: x * x, (X,), **options), (onp.diag(2 * X),))


@pytest.mark.parametrize(
    "options",
    [{}, VECTORIZED, {"vectorize": True, "outer_jacobian_strategy": "forward-mode"}],
)
def test_hessians_have_the_shapes_of_two_inputs(options):
    found = hessian(coupled, (X, Y), **options)
    assert_close(found, functx.hessian(coupled, argnums=(0, 1))(X, Y))
    assert_close(hessian(lambda x: cubes(x).reshape(1, 1), X, **options), onp.diag(6 * X))


def test_products_with_the_hessian_from_both_sides():
    assert_close(vhp(cubes, X, onp.ones(2, "float32")), (9.0, onp.array([6.0, 12.0])))
    expected = functx.hvp(coupled, (X, Y), (V, W))
    for function in vhp, hvp:
        assert_close(function(coupled, (X, Y), (V, W))[1], expected)


def test_gradients_of_complex_values_are_those_of_pytorch():
    z, v = onp.array([1 + 1j, 2 - 1j], "complex64"), onp.array([1 + 2j, 1j], "complex64")

    def f(z):
        return z * z * np.conj(z)

    assert_close(jacobian(lambda z: (z * np.conj(z)).real.sum(), z), 2 * z)
    assert_close(jvp(f, z, v)[1], jvp(f, z, v, strategy="forward-mode")[1])
    assert_close(jvp(f, z, v)[1], 2 * z * z.conj() * v + z * z * v.conj())
    assert_close(vjp(f, z, v)[1], 2 * z * z.conj() * v + z * z * v.conj())
    assert_close(jacobian(lambda z: z**2, z), onp.diag(2 * z.conj()))
    assert_close(jacobian(lambda z: z**2, z, **FORWARD), onp.diag(2 * z))
    for options in {}, {"vectorize": True, "outer_jacobian_strategy": "forward-mode"}:
        found = hessian(lambda z: (z**3).real.sum(), z, **options)
        assert_close(found, onp.diag(6 * z.conj()))


def test_captured_copies_of_an_input_are_constants():
    x = Variable(X, requires_grad=True)
    assert_close(vjp(lambda y: (x * y).sum(), x, create_graph=True)[1], X)
    assert_close(jacobian(lambda y: x * y, x, **FORWARD), onp.diag(X))
    assert x.grad is None


def test_results_have_a_history_only_with_create_graph():
    x = Variable(X, requires_grad=True)
    for create_graph in False, True:
        output, product = vjp(cubes, x, create_graph=create_graph)
        results = [
            output,
            product,
            *jvp(np.sin, x, V, create_graph=create_graph),
            *jvp(np.sin, x, V, create_graph=create_graph, strategy="forward-mode"),
            jacobian(np.sin, x, create_graph=create_graph),
            hessian(cubes, x, create_graph=create_graph),
            *vhp(cubes, x, V, create_graph=create_graph),
            *hvp(cubes, x, V, create_graph=create_graph),
        ]
        assert {y.requires_grad for y in results} == {create_graph}
    (curvature,) = grad(product.sum(), x)
    assert_close(curvature, 6 * X)
    v = Variable(V, requires_grad=True)
    assert_close(grad(hvp(cubes, x, v, create_graph=True)[1].sum(), v)[0], 6 * X)


def test_modes_of_the_caller_do_not_matter():
    for mode in no_grad, inference_mode:
        with mode():
            assert_close(vjp(cubes, X)[1], 3 * X**2)
            assert_close(hessian(cubes, X), onp.diag(6 * X))


def test_integers_and_arrays_without_elements_have_zeros():
    n = onp.array([1, 2])
    for options in {}, VECTORIZED, FORWARD:
        found = jacobian(lambda x, n: (x * n, n + 1), (X, n), **options)
        assert_close(found, ((onp.diag([1.0, 2.0]), 0 * onp.eye(2)), (0 * onp.eye(2),) * 2))
        empty = onp.zeros(0, "float32")
        assert jacobian(lambda x: x * 2, empty, **options).shape == (0, 0)
        assert jacobian(lambda x: x.sum(), empty, **options).shape == (0,)


def test_strict_names_independent_inputs_and_outputs():
    x, options = Variable(X), {"strict": True}
    for call in (
        lambda f: vjp(f, (X, X), V, **options),
        lambda f: jvp(f, (X, X), (V, V), **options),
        lambda f: jacobian(f, (X, X), **options),
    ):
        with pytest.raises(IndependenceError, match="input 1"):
            call(lambda a, b: a * 2)
        with pytest.raises(IndependenceError, match="output 0"):
            call(lambda a, b: x)
        call(lambda a, b: a * b)
    with pytest.raises(IndependenceError, match="output 1 and input 0"):
        jacobian(lambda a, b: (a * b, b * b), (X, X), strict=True)
    for function in (
        lambda f: vhp(f, X, V, **options),
        lambda f: hvp(f, X, V, **options),
        lambda f: hessian(f, X, **options),
    ):
        function(cubes)
        with pytest.raises(IndependenceError):
            function(lambda a: (2 * a).sum())
        with pytest.raises(IndependenceError, match="output 0"):
            function(lambda a: x.sum())


def test_strict_with_create_graph_refuses_derivatives_without_history():
    for function in (
        lambda f: vjp(f, X, V, create_graph=True, strict=True),
        lambda f: jvp(f, X, V, create_graph=True, strict=True),
        lambda f: jacobian(f, X, create_graph=True, strict=True),
    ):
        function(lambda a: a * a)
        with pytest.raises(IndependenceError, match="depends on no input"):
            function(lambda a: 2 * a)
    for function in (
        lambda f: vhp(f, X, V, create_graph=True, strict=True),
        lambda f: hvp(f, X, V, create_graph=True, strict=True),
        lambda f: hessian(f, X, create_graph=True, strict=True),
    ):
        function(cubes)
        with pytest.raises(IndependenceError, match="depends on no input"):
            function(lambda a: (a * a).sum())


def test_without_strict_there_are_zeros():
    assert_close(vjp(lambda a, b: a * 2, (X, Y), V)[1], (2 * V, 0 * Y))
    assert_close(jvp(lambda a: Variable(Y), X, V)[1], 0 * Y)
    assert_close(hvp(lambda a: (2 * a).sum(), X, V)[1], 0 * X)
    assert_close(hessian(lambda a: (2 * a).sum(), X), onp.zeros((2, 2)))


def test_errors_name_argument_function_place_and_type():
    text = r"vjp: inputs must be .*got str at place 1"
    with pytest.raises(FunctionalTypeError, match=text) as error:
        vjp(cubes, (X, "one"))
    assert isinstance(error.value, TypeError) and isinstance(error.value, RuntimeError)
    with pytest.raises(TypeError, match=r"jvp: the result of func must be .*got int at place 1"):
        jvp(lambda x: (x, 3), X, V)
    with pytest.raises(TypeError, match=r"hvp: v must be .*got list"):
        hvp(cubes, X, [1.0, 2.0])
    with pytest.raises(TypeError, match=r"hessian: the result of func must be .*got float"):
        hessian(lambda x: 2.0, X)


def test_vectors_that_do_not_fit_are_refused():
    for call, kind in (
        (lambda v: vjp(lambda x: x, X, v), "output"),
        (lambda v: jvp(lambda x: x, X, v), "input"),
        (lambda v: vhp(cubes, X, v), "input"),
        (lambda v: hvp(cubes, X, v), "input"),
    ):
        with pytest.raises(FunctionalArgumentError, match=f"left out only for one {kind}"):
            call(None)
        with pytest.raises(RuntimeError, match=f"each {kind}, 1; got 2"):
            call((V, V))
        with pytest.raises(RuntimeError, match=r"entry 0 of v .*\(2,\).*got \(3,\)"):
            call(Y)


def test_second_derivatives_are_those_of_one_element():
    for call in (
        lambda f: hessian(f, X),
        lambda f: vhp(f, X, V),
        lambda f: hvp(f, X, V),
    ):
        with pytest.raises(FunctionalArgumentError, match="one array of one element"):
            call(lambda x: x)
        with pytest.raises(FunctionalArgumentError, match="a tuple of 1"):
            call(lambda x: (cubes(x),))


def test_strategies_that_do_not_exist_are_refused():
    with pytest.raises(StrategyError, match="backward") as error:
        jacobian(cubes, X, strategy="backward")
    assert isinstance(error.value, ValueError)
    for options in {}, {"vectorize": True, "create_graph": True}:
        with pytest.raises(UnsupportedStrategyError) as refused:
            jacobian(cubes, X, strategy="forward-mode", **options)
        assert isinstance(refused.value, NotImplementedError)
    for options in VECTORIZED, FORWARD:
        with pytest.raises(FunctionalArgumentError, match="strict"):
            jacobian(cubes, X, strict=True, **options)


def test_traced_values_are_refused_and_the_transform_is_named():
    with pytest.raises(AutogradError, match=r"functx\.vjp"):
        functx.jit(lambda x: functional.vjp(cubes, x)[1])(X)
