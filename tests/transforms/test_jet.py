"""Taylor mode: `jet` and `taylor`."""

import numpy as np
import pytest

import functx
import functx.experimental
import functx.numpy as fnp
from functx import jet, lax, make_ir, taylor
from functx.core.checking import check_program
from functx.errors import ArgumentError, TangentError, ValueRangeError
from functx.testing.reference import interpret_in_numpy

X = np.array([0.3, 0.7, 1.1])
V = np.array([0.5, -0.2, 0.4])
ORDER = 5


def differences(f, x, v, order):
    """The Taylor coefficients of `f(x + t v)`, from the values on a circle in the complex plane."""
    count, radius = 32, 0.2
    ts = radius * np.exp(2j * np.pi * np.arange(count) / count)
    values = np.array([f(x + t * v) for t in ts])
    return (np.fft.fft(values, axis=0)[: order + 1] / count).real / radius ** np.arange(order + 1)[
        :, None
    ]


def coefficients(f, *args):
    """The outputs of `f`, traced with 64-bit numbers, by the reference interpreter."""
    with functx.enable_x64(True):
        return interpret_in_numpy(make_ir(f)(*args), *args)


def test_the_coefficients_of_functions_are_those_of_their_series():
    functions = [
        (fnp.exp, np.exp),
        (fnp.log, np.log),
        (fnp.sin, np.sin),
        (fnp.cos, np.cos),
        (fnp.tanh, np.tanh),
        (fnp.sqrt, np.sqrt),
        (fnp.arctan, np.arctan),
        (lambda x: x**2.5, lambda x: x**2.5),
        (lambda x: 2.0**x, lambda x: 2.0**x),
        (lambda x: x / (1 + x * x), lambda x: x / (1 + x * x)),
        (functx.nn.sigmoid, lambda x: 1 / (1 + np.exp(-x))),
        (fnp.reciprocal, lambda x: 1 / x),
    ]
    found = coefficients(
        lambda x, v: [c for f, _ in functions for c in taylor(f, ORDER)(x, v)], X, V
    )
    for n, (_, reference) in enumerate(functions):
        own = np.array(found[n * (ORDER + 1) : (n + 1) * (ORDER + 1)])
        np.testing.assert_allclose(own, differences(reference, X, V, ORDER), rtol=1e-8, atol=1e-10)


def test_loops_branches_and_functions_with_rules_have_all_orders():
    @functx.custom_jvp
    def cube(x):
        return x**3

    @cube.defjvp
    def cube_jvp(primals, tangents):
        # The loop of the rule runs on tangents, too.
        (x,), (t,) = primals, tangents
        return cube(x), lax.fori_loop(0, 2, lambda i, s: s * x, 3 * t)

    @functx.custom_vjp
    def square(x):
        return x * x

    square.defvjp(lambda x: (x * x, x), lambda x, ct: (2 * x * ct,))

    functions = [
        (
            lambda x: lax.scan(lambda c, y: (c * y + x, c), x, fnp.stack([x, x * x]))[0],
            lambda x: (x * x + x) * x * x + x,
        ),
        (
            lambda x: lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * x), (0, x))[1],
            lambda x: x**4,
        ),
        (lambda x: lax.cond(x[0] > 0, fnp.sin, fnp.cos, x), np.sin),
        (functx.jit(lambda x: fnp.exp(x) * x), lambda x: np.exp(x) * x),
        (functx.checkpoint(lambda x: fnp.exp(x) * x), lambda x: np.exp(x) * x),
        (cube, lambda x: x**3),
        (square, lambda x: x * x),
        (lambda x: functx.grad(lambda y: (y**4).sum())(x), lambda x: 4 * x**3),
    ]
    found = coefficients(lambda x, v: [c for f, _ in functions for c in taylor(f, 4)(x, v)], X, V)
    for n, (_, reference) in enumerate(functions):
        own = np.array(found[n * 5 : (n + 1) * 5])
        np.testing.assert_allclose(own, differences(reference, X, V, 4), rtol=1e-8, atol=1e-10)


def test_operations_that_choose_elements_choose_coefficients():
    def f(x):
        largest = fnp.maximum(x, x * x)
        kept = fnp.where(x > 0.5, fnp.log(x - 0.5), 0.0)
        return fnp.sort(-x), largest, kept, abs(x - 0.5), x[fnp.argsort(-x)], fnp.clip(x, 0.5, 1.0)

    value, terms = jet(f, (X.astype("f"),), ([V.astype("f"), None],))
    assert len(terms) == 6
    assert all(len(own) == 2 for own in terms)
    v = V.astype("f")
    expected = [-v[::-1], np.array([v[0], v[1], 2.2 * v[2]]), [0, -1.0, 0.4 / 0.6]]
    expected += [[-0.5, -0.2, 0.4], v[::-1], [0, v[1], 0]]
    for own, first in zip(terms, expected, strict=True):
        np.testing.assert_allclose(own[0], first, rtol=1e-4, atol=1e-6)
    assert all(np.isfinite(np.asarray(x)).all() for own in terms for x in own)


def test_the_recurrence_of_a_function_follows_from_its_derivative():
    # y' = y x', so 2 y2 = y1 x1: the exponential is computed once.
    text = str(make_ir(lambda x, v: taylor(fnp.exp, 2)(x, v))(X.astype("f"), V.astype("f")))
    assert [line.split("=", 1)[1].split("#")[0].strip() for line in text.splitlines()[1:-1]] == [
        "exp x",
        "mul v a",
        "mul v b",
        "mul c 0.5:f32",
    ]


def test_terms_are_derivatives_in_the_conventions_of_jax():
    f = functx.experimental.jet.jet
    assert f is jet
    x = np.float32(0.5)
    value, (first, second) = jet(fnp.sin, (x**3,), ((3 * x**2, 6 * x),))
    np.testing.assert_allclose([value, first, second], [0.12467473, 0.74414825, 2.9064636], 1e-5)
    _, (_, scaled) = functx.experimental.jet.jet2(fnp.sin, (x**3,), ((3 * x**2, 3 * x),))
    np.testing.assert_allclose(scaled, 2.9064636 / 2, 1e-5)
    value, terms = jet(lambda x, n: {"a": x["b"] * n}, ({"b": x}, 3), ([{"b": x}], [None]))
    assert float(value["a"]) == 1.5
    assert [float(t) for t in terms["a"]] == [1.5]
    assert jet(fnp.sin, (x,), ([],))[1] == []


def test_terms_of_weakly_typed_numbers_are_weakly_typed():
    functions = [fnp.sin, lambda x: fnp.arctan2(x, 2 * x * x), lambda x: fnp.abs(fnp.exp(1j * x))]
    for series in ([1.0, 0.0, 0.0], [np.float32(1.0), None, 2.0]):
        for f in functions:
            program = make_ir(lambda x, f=f, series=series: jet(f, (x,), (series,)))(0.7)
            check_program(program)
            assert [a.weak_type for a in program.out_avals[1:]] == [True] * 3


def test_jets_compose_with_other_transforms():
    def third(x):
        return jet(fnp.sin, (x,), ([fnp.ones_like(x), None, None],))[1][2]

    x = X.astype("f")
    both = functx.jit(
        lambda x: (
            functx.vmap(functx.grad(third))(x),
            functx.jacfwd(third)(x),
            taylor(functx.vmap(third), 1)(x, fnp.ones_like(x))[1],
        )
    )
    gradient, jacobian, nested = both(x)
    for found in (gradient, np.diag(jacobian), nested):
        np.testing.assert_allclose(found, np.sin(x), rtol=1e-5)


def test_wrong_series_are_refused():
    x = np.float32(1.0)
    with pytest.raises(ArgumentError, match="primals must be a tuple"):
        jet(fnp.sin, x, ([x],))
    with pytest.raises(TangentError, match="one length"):
        jet(fnp.multiply, (x, x), ([x], [x, x]))
    with pytest.raises(TangentError, match="entry for each"):
        jet(fnp.sin, (x,), ())
    with pytest.raises(TangentError, match="shape and dtype"):
        jet(fnp.sin, (x,), ([np.ones(3, "f")],))
    with pytest.raises(ValueRangeError, match="order must be"):
        taylor(fnp.sin, -1)


def test_effects_without_results_happen_once_in_taylor_mode():
    seen = []

    def double(carry, _):
        functx.debug.callback(seen.append, carry[0])
        return carry * 2, None

    def shown(x):
        functx.io_callback(lambda total: seen.append(total) or total, x.sum(), x.sum())
        return fnp.sin(lax.scan(double, x, length=2)[0]).sum()

    for transform in (lambda f: jet(f, (X,), ([V],)), lambda f: functx.laplacian(f)(X)):
        seen.clear()
        transform(shown)
        functx.effects_barrier()
        assert len(seen) == 3

    def checked(x):
        functx.checkify.check(x.sum() > 10, "the sum is small")
        return (x * x).sum()

    error, _ = functx.checkify.checkify(functx.laplacian(checked))(X)
    assert "the sum is small" in error.get()


def test_a_function_of_many_steps_needs_no_deep_recursion():
    def chain(x):
        for _ in range(400):
            x = fnp.sin(x) + x
        return x

    wrapped = functx.custom_jvp(chain)
    wrapped.defjvp(lambda primals, tangents: functx.jvp(chain, primals, tangents))
    program = make_ir(lambda x: taylor(wrapped, 2)(x, 1.0))(0.1)
    assert len(program.outputs) == 3
