"""`functx.implicit`: derivatives of solutions, over solvers of every kind."""

from importlib import import_module
from importlib.util import find_spec

import jax
import numpy as np
import pytest
import scipy.optimize

import functx
from functx import implicit
from functx import numpy as fnp
from functx.core.errors import (
    ArgumentError,
    CallbackResultError,
    ConcretizationError,
    DTypeError,
    ShapeError,
    TreeError,
    ValueRangeError,
)
from functx.scipy.optimize import minimize
from functx.testing.reference.interpreter import interpret_in_numpy


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


def cost(x, a):
    """Its least x is that with x + x**3 + coupling x = a."""
    return (x**2 / 2 + x**4 / 4 - a * x).sum() + x[0] * x[1] / 2


def slope(x, a):
    return x + x**3 - a + fnp.stack([x[1], x[0]]) / 2


def contraction(x, a):
    return (a - fnp.stack([x[1], x[0]]) / 2 + 2 * x**3) / (1 + 3 * x**2)


def newton(x, a):
    def step(_, x):
        return x - fnp.linalg.solve(functx.jacfwd(slope)(x, a), slope(x, a))

    return functx.lax.fori_loop(0, 12, step, x)


def in_jax(x, a):
    return jax.lax.fori_loop(0, 60, lambda _, x: contraction(x, a), x)


def by_optimistix(x, a):
    optimistix = import_module("optimistix")
    newton = optimistix.Newton(rtol=1e-12, atol=1e-12)
    return optimistix.root_find(slope, newton, x, a).value


def by_scipy(x, a):
    return scipy.optimize.root(lambda x: np.asarray(slope(x, a)), x, tol=1e-13).x


def by_minimize(x, a):
    return minimize(cost, x, (a,), method="trust-exact", tol=1e-12).x


SOLUTIONS = {
    "root by a loop": implicit.root(slope, newton),
    "root by optimistix": implicit.root(slope, by_optimistix),
    "root by SciPy": implicit.root(slope, implicit.on_host(by_scipy)),
    "fixed point in JAX": implicit.fixed_point(contraction, in_jax),
    "minimum by functx": implicit.argmin(cost, by_minimize),
    "fixed point by gmres": implicit.fixed_point(contraction, in_jax, linear_solver="gmres"),
    "root by the user": implicit.root(
        slope, newton, linear_solver=lambda g, y: fnp.linalg.solve(functx.jacfwd(g)(y), y)
    ),
}
if find_spec("optimistix") is None:  # of the extra `interop`
    del SOLUTIONS["root by optimistix"]
A = np.array([1.0, -0.5])
START = np.array([0.3, -0.2])


def test_derivatives_do_not_depend_on_the_solver():
    def derivatives(solution):
        # The gradient by reverse mode, and its tangent by forward mode.
        gradient = functx.grad(lambda a: (solution(START, a) ** 3).sum())
        return lambda a: functx.jvp(gradient, (a,), (A,))

    expected = interpret_in_numpy(functx.make_ir(derivatives(newton))(A), A)
    for name, solution in SOLUTIONS.items():
        found = interpret_in_numpy(functx.make_ir(derivatives(solution))(A), A)
        np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-8, err_msg=name)
    compiled = functx.jit(derivatives(SOLUTIONS["root by SciPy"]))(A)
    np.testing.assert_allclose(compiled, expected, rtol=1e-7)


def count(program, name):
    return sum(eqn.primitive.name == name for sub in program.walk() for eqn in sub)


def test_derivatives_of_every_order_share_one_factorisation():
    solution = implicit.root(slope, in_jax)

    def loss(a):
        return (solution(START, a) ** 2).sum()

    transforms = [
        functx.grad,
        functx.value_and_grad,
        functx.hessian,
        lambda f: functx.jacfwd(functx.jacfwd(f)),
        lambda f: functx.jacrev(functx.jacrev(f)),
        lambda f: functx.jacfwd(functx.jacrev(functx.jacfwd(f))),
        lambda f: functx.jit(functx.vmap(functx.hessian(f), axis_size=3, in_axes=None)),
    ]
    for transform in transforms:
        program = functx.make_ir(transform(loss))(A)
        assert count(program, "lu") == count(program, "custom_root") == 1
        assert "returns_factors=True" in str(program)
    # The value alone needs no factors, nor does a derivative that is not taken.
    assert "returns_factors" not in str(functx.make_ir(loss)(A))
    assert "getrf" not in functx.jit(loss).lower(A).as_text()
    gradient = functx.make_ir(functx.grad(loss))(A)
    assert functx.Program.parse(str(gradient)) == gradient


def square_root(a, start=1.0, **options):
    @implicit.root(lambda x, a: x * x - a, **options)
    def babylonian(x, a):
        return functx.lax.fori_loop(0, 9, lambda _, x: (x + a / x) / 2, x)

    return babylonian(start, a)


def test_third_derivatives_in_a_scan_of_a_vmap():
    third = functx.grad(functx.grad(functx.grad(square_root)))

    def step(total, a):
        values = functx.vmap(third)(a)
        return total + values.sum(), values

    a = np.array([[1.0, 2.0], [3.0, 4.0]])
    total, values = functx.jit(lambda a: functx.lax.scan(step, 0.0, a))(a)
    np.testing.assert_allclose(values, 0.375 * a**-2.5)
    np.testing.assert_allclose(total, (0.375 * a**-2.5).sum())


def test_pytrees_keywords_closures_and_aux():
    def loss(p):
        @implicit.root(lambda x, b, *, s: {"u": x["u"] * p["k"] - b, "v": x["v"] - x["u"] * s},
                       has_aux=True)  # fmt: skip
        def solve(x, b, *, s):
            return {"u": b / p["k"], "v": b / p["k"] * s}, {"steps": 3, "b": b}

        x, aux = solve({"u": np.ones(2), "v": np.ones(2)}, p["b"], s=p["s"])
        return (x["u"] * x["v"]).sum(), aux

    p = {"k": 2.0, "b": np.array([1.0, 2.0]), "s": 3.0}
    (value, aux), gradient = functx.value_and_grad(loss, has_aux=True)(p)
    assert float(value) == 3.75 and aux["steps"] == 3 and np.array_equal(aux["b"], p["b"])
    np.testing.assert_allclose(gradient["b"], [1.5, 3.0])
    np.testing.assert_allclose([gradient["k"], gradient["s"]], [-3.75, 1.25])


def test_complex_unknowns_of_functions_that_are_not_holomorphic():
    def solve(z, a):
        return (a - 0.5 * fnp.conj(a)) / 0.75

    solution = implicit.root(lambda z, a: z + 0.5 * fnp.conj(z) - a, solve)
    lowest = implicit.argmin(
        lambda z, a: fnp.abs(z - a) ** 2 + fnp.real(z) ** 2,
        lambda z, a: fnp.real(a) / 2 + 1j * fnp.imag(a),
    )
    a = np.asarray(1 + 2j)
    for function, image in ((solution, 2 / 3 + 2j), (lowest, 0.5 + 1j)):
        tangent = functx.jvp(lambda a, f=function: f(a * 0, a), (a,), (1 + 1j,))[1]
        np.testing.assert_allclose(tangent, image)
    found = functx.grad(lambda a: fnp.abs(solution(a * 0, a)) ** 2)(a)
    np.testing.assert_allclose(found, functx.grad(lambda a: fnp.abs(solve(a, a)) ** 2)(a))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_small_dtypes_and_guesses_of_integers(dtype):
    a = fnp.asarray(4.0, dtype)
    slope = functx.grad(square_root)(a, 2)
    assert slope.dtype == a.dtype and float(slope) == 0.25


def test_no_unknowns_are_a_solution():
    empty = np.zeros(0)
    solution = implicit.root(lambda x, a: x * a - 1, lambda x, a: x)
    assert functx.jacrev(solution, 1)(empty, empty).shape == (0, 0)


def test_derivatives_are_nan_where_there_are_none():
    def dependent(x, a):
        return fnp.stack([x[0] + 2 * x[1] - a, 3 * x[0] + 6 * x[1] - 2 * a]) * 0.1

    keep = lambda x, a: x  # noqa: E731
    for linear_solver in ("lu", "bicgstab"):
        singular = implicit.root(dependent, keep, linear_solver=linear_solver)
        assert np.isnan(functx.jacfwd(singular, 1)(np.ones(2), 3.0)).all()
    assert np.isnan(functx.jacrev(singular, 1)(np.ones(2), 3.0)).all()
    # Small rows and columns alone make no matrix singular.
    scaled = implicit.root(lambda x, a: np.array([1.0, 1e-30]) * (x * [1e-25, 1.0] - a), keep)
    np.testing.assert_allclose(
        functx.jacfwd(scaled, 1)(np.ones(2), np.ones(2)), np.diag([1e25, 1.0])
    )

    wrong = implicit.root(lambda x, a: x * x - a, keep, residual_tol=1e-3)
    guesses = np.array([1.0, 2.0])
    assert functx.vmap(wrong, (0, None))(guesses, 4.0).tolist() == [1.0, 2.0]
    slopes = functx.vmap(functx.grad(wrong, 1), (0, None))(guesses, 4.0)
    assert np.isnan(slopes[0]) and slopes[1] == 0.25


def test_many_unknowns_are_solved_for_without_a_matrix():
    scale = np.linspace(1.0, 2.0, 600)
    for name, solution in {
        "cg": implicit.argmin(lambda x, a: (x**2 * scale).sum() - a * x.sum(), lambda x, a: x),
        "gmres": implicit.root(lambda x, a: x * scale - a, lambda x, a: x),
    }.items():
        program = functx.make_ir(functx.grad(lambda a: solution(scale, a).sum()))(1.0)  # noqa: B023
        assert "600,600" not in str(program) and count(program, "lu") == 0, name
        assert "while" in str(program)


@pytest.mark.parametrize(
    ("call", "error", "problem"),
    [
        (lambda: implicit.root(3), ArgumentError, "root: the first argument must be a function"),
        (lambda: implicit.argmin(cost, 3), ArgumentError, "argmin: the first argument"),
        (lambda: implicit.on_host(None), ArgumentError, "on_host: the first argument"),
        (
            lambda: implicit.root(slope, newton, linear_solver="qr"),
            ValueRangeError,
            "root: linear_solver must be a function or one of auto, lu, cg, gmres, bicgstab; got",
        ),
        (
            lambda: implicit.root(lambda x: (x, x), lambda x: x)(1.0),
            TreeError,
            "root(lambda): what f returns must have the structure of initial_guess",
        ),
        (
            lambda: implicit.fixed_point(lambda x: (x, x), lambda x: x)(1.0),
            TreeError,
            "fixed_point: what f returns must have the structure of x",
        ),
        (
            lambda: implicit.root(slope, lambda x, a: x[0])(START, A),
            ShapeError,
            "root(slope): solve must return arrays of the shapes and dtypes of initial_guess",
        ),
        (
            lambda: implicit.root(lambda x: x > 0, lambda x: x)(1.0),
            DTypeError,
            "root(lambda): f must return arrays of the shapes and dtypes of initial_guess",
        ),
        (
            lambda: implicit.fixed_point(lambda x: fnp.stack([x, x]), lambda x: x)(1.0),
            ShapeError,
            "fixed_point(lambda): f must return the shape of x; got ~f64[2] for x of ~f64[]",
        ),
        (
            lambda: minimize(lambda x: 2 * x, np.ones(3), method="BFGS"),
            ShapeError,
            "minimize: fun must return a scalar; got f64[3]",
        ),
        (
            lambda: minimize(lambda x: x["a"], {"a": 1.0}, method="BFGS"),
            ArgumentError,
            "minimize: x0 must be a vector; got dict",
        ),
    ],
)
def test_bad_calls_are_refused_by_name(call, error, problem):
    with pytest.raises(error) as info:
        call()
    assert problem in info.value.problem


def test_a_solver_that_decides_in_python_is_told_of_explore():
    @implicit.root(lambda x, a: x * x - a)
    def bisect(x, a):
        while x * x > a:
            x = x / 2
        return x

    with pytest.raises(ConcretizationError, match="decorate it with functx"):
        bisect(4.0, 1.0)


@pytest.mark.parametrize("found", [np.complex64(1j), np.datetime64("2020-01-01"), "one"])
def test_results_on_the_host_that_would_lose_a_part_are_refused(found):
    with pytest.raises(CallbackResultError, match="the callback must return"):
        implicit.on_host(lambda x: found)(np.float32(1.0))
