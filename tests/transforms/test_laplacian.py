"""`laplacian` and other differential operators."""

import jax
import numpy as np
import pytest

import functx
import functx.numpy as fnp
from functx import lax, make_ir
from functx.errors import ArgumentError, GradientError
from functx.testing.reference import interpret_in_numpy

X = np.array([0.3, 0.7, 1.1])


def values(f, *args):
    """The outputs of `f`, traced with 64-bit numbers, by the reference interpreter."""
    with functx.enable_x64(True):
        return interpret_in_numpy(make_ir(f)(*args), *args)


def trace_of_hessian(f):
    def total(x):
        hessian = functx.hessian(f)(x)
        shape = hessian.shape[: hessian.ndim - 2 * x.ndim]
        return fnp.trace(hessian.reshape(*shape, x.size, x.size), axis1=-2, axis2=-1)

    return total


def test_the_laplacian_is_the_trace_of_the_hessian():
    weights = np.cos(np.arange(12.0)).reshape(3, 4)

    def loop(x):
        return lax.scan(lambda c, w: (fnp.tanh(c * w), c.sum() * x), x, weights.T)[1]

    @functx.custom_jvp
    def cube(x):
        return x**3

    @cube.defjvp
    def cube_jvp(primals, tangents):
        # In such a loop of the rule, derivatives cannot be summed as they are computed.
        (x,), (t,) = primals, tangents
        return cube(x), lax.fori_loop(0, 2, lambda i, s: s * x, 3 * t)

    functions = [
        lambda x: fnp.tanh(x @ weights).sum(),
        lambda x: fnp.sin(x @ weights) * x.prod(),
        lambda x: fnp.linalg.norm(x) ** 3 / x[0],
        lambda x: functx.nn.softmax(fnp.outer(x, x)) @ x,
        lambda x: fnp.linalg.solve(fnp.outer(x, x) + fnp.eye(3), x),
        lambda x: fnp.where(x > 0.5, x**3, fnp.exp(x))[1:],
        lambda x: fnp.maximum(x, 0.5).sum() ** 2 + fnp.logaddexp(x[0], x[1]),
        loop,
        lambda x: lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * x), (0, x))[1],
        functx.jit(lambda x: fnp.exp(x) * x[::-1]),
        lambda x: lax.cond(x[0] > 0, lambda x: (x**4).sum(), fnp.sum, x),
        cube,
        lambda x: fnp.zeros(2) + 1.0,
        lambda x: 2 * x,
    ]
    found = values(lambda x: [functx.laplacian(f)(x) for f in functions], X)
    expected = values(lambda x: [trace_of_hessian(f)(x) for f in functions], X)
    for own, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-10, atol=1e-12)


def test_value_and_gradient_come_with_the_laplacian():
    def f(x, y):
        return {"a": x["u"] * y["v"].sum() ** 2, "b": y["v"] * x["u"][0] ** 3}

    args = {"u": X[:2].reshape(2, 1)}, {"v": X}
    with functx.enable_x64(True):
        program = make_ir(functx.value_grad_and_laplacian(f, argnums=(0, 1)))(*args)
        gradients = make_ir(functx.jacfwd(f, argnums=(0, 1)))(*args)
    u, v = args[0]["u"], args[1]["v"]
    a, b, *rest = interpret_in_numpy(program, u, v)
    np.testing.assert_allclose(a, u * v.sum() ** 2)
    np.testing.assert_allclose(b, v * u[0] ** 3)
    expected = interpret_in_numpy(gradients, u, v)
    for own, other in zip(rest[:4], expected, strict=True):
        np.testing.assert_allclose(own, other)
    np.testing.assert_allclose(rest[4], 6 * u)
    np.testing.assert_allclose(rest[5], 6 * v * u[0])


def test_operators_of_any_order_are_sums_of_partial_derivatives():
    def f(x):
        return fnp.exp(x[0] * x[1]) * fnp.sin(x[2]) + x[0] ** 3 * x[2] ** 2

    def partial(f, *coordinates):
        for i in coordinates:
            f = _component(f, i)
        return f

    def _component(f, i):
        return lambda x: functx.jvp(f, (x,), (fnp.eye(3)[i],))[1]

    terms = {(0, 1): 2.0, (0, 0, 2): -1.5, (): 0.5, (2,): -1.0, (0, 0, 1, 1): 1.0, (0, 1, 2): 0.7}
    (found,) = values(functx.differential_operator(f, terms), X)
    expected = values(lambda x: [partial(f, *by)(x) for by in terms], X)
    np.testing.assert_allclose(found, np.dot(expected, list(terms.values())), rtol=1e-10)
    (found,) = values(functx.biharmonic(f), X)
    (expected,) = values(functx.laplacian(functx.laplacian(f)), X)
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_parameters_of_a_network_are_trained_on_its_laplacian():
    def network(w, x):
        return fnp.tanh(x @ w).sum() ** 2

    def loss(w, xs, laplacian):
        return functx.vmap(lambda x: laplacian(lambda x: network(w, x))(x))(xs).sum()

    w, xs = np.cos(np.arange(6.0)).reshape(3, 2), np.sin(np.arange(12.0)).reshape(4, 3)
    both = functx.jit(
        lambda w, xs: [functx.grad(loss)(w, xs, op) for op in (functx.laplacian, trace_of_hessian)]
    )
    found, expected = both(w.astype("f"), xs.astype("f"))
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-4)
    (nested,) = values(functx.laplacian(functx.laplacian(lambda x: (x**4).sum())), X)
    np.testing.assert_allclose(nested, 72.0)


def test_empty_and_scalar_arguments_have_laplacians():
    program = make_ir(functx.laplacian(lambda x: x.sum() + 1.0))(np.zeros((0,), "f"))
    assert interpret_in_numpy(program, np.zeros((0,), "f"))[0] == 0
    assert values(functx.laplacian(lambda x: x**3), 2.0)[0] == 12.0


def test_wrong_arguments_are_refused():
    with pytest.raises(GradientError, match="real floating point"):
        functx.laplacian(fnp.sum)(np.zeros(3, complex))
    with pytest.raises(GradientError, match="outputs must be inexact"):
        functx.laplacian(fnp.argmax)(np.zeros(3, "f"))
    with pytest.raises(ArgumentError, match="coefficients must be a dict"):
        functx.differential_operator(fnp.sum, [(0, 0)])
    with pytest.raises(ArgumentError, match="coefficients must map tuples of ints"):
        functx.differential_operator(fnp.sum, {((0, 1),): 2.0})
    with pytest.raises(ArgumentError, match="coordinates must be"):
        functx.differential_operator(fnp.sum, {(3,): 1.0})(np.zeros(3, "f"))


def test_sums_of_second_derivatives_are_recognized_unless_the_hessian_is_needed():
    weights = np.cos(np.arange(12.0, dtype="f")).reshape(3, 4)
    rows = np.sin(np.arange(15.0, dtype="f")).reshape(5, 3)

    def f(x):
        return fnp.tanh(x @ weights).sum() ** 2

    def sum_of_products(directions, form):
        return lambda x: functx.vmap(lambda v: form(v, functx.hvp(f, (x,), (v,))[0]))(
            directions
        ).sum()

    def written(x):
        y = x + 0.0
        hessian = functx.hessian(f)(y)
        y[0] = 5.0
        return fnp.trace(hessian)

    def without_recognition(function):
        with functx.config.set(recognize_laplacians=False):
            return make_ir(function)(x)

    x = X.astype("f")
    recognized = {
        "trace": lambda x: fnp.trace(functx.hessian(f)(x)),
        "diagonal": lambda x: fnp.diagonal(functx.hessian(f)(x)).sum(),
        "einsum": lambda x: fnp.einsum("ii->", functx.hessian(f)(x)),
        "array": lambda x: fnp.trace(
            functx.hessian(lambda x: fnp.tanh(x @ weights) ** 2)(x), axis1=1, axis2=2
        ),
        "vdot": sum_of_products(fnp.eye(3, dtype="f"), fnp.vdot),
        "sum": sum_of_products(rows, lambda v, h: (h * v).sum()),
    }
    others = {
        "off the diagonal": lambda x: fnp.trace(functx.hessian(f)(x), offset=1),
        "used twice": lambda x: (lambda h: fnp.trace(h) * h[0, 1])(functx.hessian(f)(x)),
        "scaled": lambda x: fnp.trace(2 * functx.hessian(f)(x)),
        "another vector": sum_of_products(rows, lambda v, h: (2 * v) @ h),
        "product used twice": sum_of_products(rows, lambda v, h: (v @ h) * h[0]),
        "written": written,
    }
    for name, function in {**recognized, **others}.items():
        program, plain = make_ir(function)(x), without_recognition(function)
        assert (program == plain) == (name in others), name
        found, expected = (interpret_in_numpy(p, x) for p in (program, plain))
        np.testing.assert_allclose(found[0], expected[0], rtol=1e-4)


def test_loops_that_sum_elements_of_products_are_laplacians():
    weights = np.cos(np.arange(12.0, dtype="f")).reshape(3, 4)
    x, constant = X.astype("f"), np.eye(3, dtype="f")

    def product(x, v):
        return functx.hvp(lambda x: fnp.tanh(x @ weights).sum() ** 2, (x,), (v,))[0]

    def element(x, i, j=None):
        return product(x, functx.nn.one_hot(i, 3))[i if j is None else j]

    def loop(step, start=0.0, count=3):
        return lambda x: lax.fori_loop(0, count, lambda i, s: step(x, i, s), start)

    def form(x, v):
        return fnp.vdot(v, product(x, v))

    def written(x):
        y = x + 0.0
        total = sum(element(y, i) for i in range(3))
        y[0] = 5.0
        return total

    recognized = {
        "python": lambda x: sum(element(x, i) for i in range(3)),
        "rows": lambda x: sum(product(x, v)[i] for i, v in enumerate(constant)),
        "forms": lambda x: 2 * sum(form(x, v) for v in (x, constant[0])),
        "fori_loop": loop(lambda x, i, s: s + element(x, i), 1.5),
        "some": loop(lambda x, i, s: element(x, i) + s, count=2),
        "reversed": loop(lambda x, i, s: element(x, 2 - i) + s),
        "beside": loop(lambda x, i, s: (s[0] + element(x, i), 2 * s[1]), (0.0, 1.0)),
        "scan": lambda x: lax.scan(lambda s, v: (s + form(x, v), None), 0.0, constant)[0],
        "map": lambda x: lax.map(lambda v: form(x, v), constant).sum(),
        "vmap": lambda x: functx.vmap(lambda i: element(x, i))(fnp.arange(3)).sum(),
    }
    others = {
        "another element": loop(lambda x, i, s: s + element(x, i, 0)),
        "beyond the last": loop(lambda x, i, s: s + product(x, fnp.eye(3)[i])[i], count=4),
        "another point": loop(lambda x, i, s: s + element(i * x, i)),
        "multiplied": loop(lambda x, i, s: s * element(x, i), 1.0),
        "scaled direction": loop(lambda x, i, s: s + product(x, x[i] * fnp.eye(3)[i])[i]),
        "written": written,
    }
    for name, function in {**recognized, **others}.items():
        program = make_ir(function)(x)
        with functx.config.set(recognize_laplacians=False):
            plain = make_ir(function)(x)
        assert (program == plain) == (name in others), name
        assert name == "beside" or name in others or "scan" not in str(program), name
        found, expected = (interpret_in_numpy(p, x) for p in (program, plain))
        np.testing.assert_allclose(found[0], expected[0], rtol=1e-4, err_msg=name)
    total = recognized["fori_loop"]
    (slope,) = interpret_in_numpy(make_ir(functx.grad(total))(x), x)
    with functx.config.set(recognize_laplacians=False):
        (expected,) = interpret_in_numpy(make_ir(functx.grad(lambda x: total(x)))(x), x)
    np.testing.assert_allclose(slope, expected, rtol=1e-3, atol=1e-5)


def test_directions_that_a_derivative_is_taken_in_are_no_constants():
    def total(c, x):
        directions = [c * fnp.eye(3)[i] for i in range(3)]
        cube = lambda x: (x**3).sum()  # noqa: E731
        return sum(functx.hvp(cube, (x,), (v,))[0][i] for i, v in enumerate(directions))

    slope = jax.grad(lambda c: functx.grad(lambda x: total(c, x))(X.astype("f")).sum())(1.0)
    np.testing.assert_allclose(slope, 18.0, rtol=1e-5)


def test_the_first_layer_of_a_network_takes_no_product_with_the_basis():
    weights = np.cos(np.arange(12.0, dtype="f")).reshape(3, 4)
    for layer in (lambda x: x @ weights, lambda x: weights.T @ x):
        program = make_ir(functx.laplacian(lambda x, layer=layer: fnp.tanh(layer(x)).sum()))(
            X.astype("f")
        )
        assert sum(e.primitive.name == "dot_general" for e in program.equations) == 1
        hidden = np.tanh(X @ weights)
        expected = (-2 * hidden * (1 - hidden**2) * (weights**2).sum(0)).sum()
        np.testing.assert_allclose(interpret_in_numpy(program, X)[0], expected, rtol=1e-5)


def test_loops_of_second_derivatives_begin_at_any_number_and_take_empty_arrays():
    def total(x, start):
        def step(s, v):
            return s + v @ functx.hvp(lambda x: (x**3).sum(), (x,), (v,))[0], None

        return lax.scan(step, start, np.eye(x.size, dtype=x.dtype))[0]

    (found,) = values(lambda x: total(x, 0), X)
    np.testing.assert_allclose(found, 6 * X.sum())
    make_ir(lambda x: x @ functx.hvp(lambda x: x.sum(), (x,), (x,))[0])(np.zeros(0))
