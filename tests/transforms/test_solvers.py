"""`custom_root` and `custom_linear_solve` against the same solved and differentiated by JAX."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import functx
from functx import lax
from functx import numpy as fnp
from functx.core.errors import (
    ArgumentError,
    ConcretizationError,
    DTypeError,
    LinearityError,
    MissingRuleError,
    ShapeError,
    TreeError,
)
from tests.by_reference import by_reference

RANDOM = np.random.RandomState(0)
A = RANDOM.randn(3, 3) + 4 * np.eye(3)
B = RANDOM.randn(3)
BATCH = np.stack([A, A + 1]), np.stack([B, 2 * B])


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


def same(found, expected, tolerance=1e-8):
    found, expected = jax.tree.leaves(found), jax.tree.leaves(expected)
    assert len(found) == len(expected)
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance)


def conjugate_gradients(matvec, b):
    """The solution for a symmetric positive matvec, by as many steps as it takes."""

    def step(state):
        x, r, p, rr = state
        moved = matvec(p)
        length = rr / (p @ moved)
        x, r = x + length * p, r - length * moved
        return x, r, r + (r @ r) / rr * p, r @ r

    return lax.while_loop(lambda s: s[3] > 1e-26, step, (b * 0, b, b, b @ b))[0]


def newton(f, x):
    def step(state):
        x, _ = state
        moved = x - fnp.linalg.solve(functx.jacfwd(f)(x), f(x))
        return moved, fnp.abs(f(moved)).max()

    return lax.while_loop(lambda s: s[1] > 1e-12, step, (x, 1.0))[0]


def dense(g, y):
    return fnp.linalg.solve(functx.jacfwd(g)(y), y)


def solved(a, b):
    return lax.custom_linear_solve(
        lambda x: a @ x,
        b,
        lambda _, b: fnp.linalg.solve(a, b),
        lambda _, b: fnp.linalg.solve(a.T, b),
    )


def solved_by_steps(a, b):
    return lax.custom_linear_solve(lambda x: a @ (a.T @ x), b, conjugate_gradients, symmetric=True)


def root(a, b):
    return lax.custom_root(lambda x: x**3 + a @ x - b, b * 0, newton, dense)


def root_by_steps(a, b):
    return lax.custom_root(lambda x: x**3 + a @ (a.T @ x) - b, b * 0, newton, conjugate_gradients)


def jax_root(a, b):
    x = jnp.zeros_like(b)
    for _ in range(9):
        x = x - jnp.linalg.solve(jnp.diag(3 * x**2) + a, x**3 + a @ x - b)
    return x


PLAIN = {
    solved: jnp.linalg.solve,
    solved_by_steps: lambda a, b: jnp.linalg.solve(a @ a.T, b),
    root: jax_root,
    root_by_steps: lambda a, b: jax_root(a @ a.T, b),
}


def loss(solve):
    return lambda a, b: (solve(a, b) ** 2).sum()


@cache
def expected(solve):
    """The value, gradients, Hessian, and gradients of each of a batch, by JAX."""
    plain = loss(PLAIN[solve])
    gradients = jax.grad(plain, (0, 1))
    with jax.enable_x64(True):
        return jax.jit(
            lambda: (
                PLAIN[solve](A, B),
                jax.jacfwd(PLAIN[solve], (0, 1))(A, B),
                gradients(A, B),
                jax.jacfwd(gradients, (0, 1))(A, B),
                jax.vmap(gradients)(*BATCH),
            )
        )()


@pytest.mark.parametrize("solve", PLAIN, ids=lambda f: f.__name__)
class TestDerivatives:
    def test_are_those_of_the_solution_in_both_modes(self, solve):
        value, jacobian, gradients, _, _ = expected(solve)
        same(solve(A, B), value)
        with by_reference():
            same(functx.jacfwd(solve, (0, 1))(A, B), jacobian)
            same(functx.jacrev(solve, (0, 1))(A, B), jacobian)
            same(functx.grad(loss(solve), (0, 1))(A, B), gradients)

    def test_may_be_taken_again_in_any_order_of_modes(self, solve):
        gradients, hessian = functx.grad(loss(solve), (0, 1)), expected(solve)[3]
        with by_reference():
            same(functx.jacfwd(gradients, (0, 1))(A, B), hessian)
            same(functx.jacrev(gradients, (0, 1))(A, B), hessian)

    def test_map_over_batches(self, solve):
        gradients, of_each = functx.grad(loss(solve), (0, 1)), expected(solve)[4]
        same(functx.jit(functx.vmap(gradients))(*BATCH), of_each)
        a, b = BATCH
        shared = functx.vmap(gradients, (0, None))(a, B)
        same(jax.tree.map(lambda x: x[0], shared), expected(solve)[2])


def square_root(a):
    def solve(f, x):
        return lax.fori_loop(0, 8, lambda _, x: x - f(x) / (2 * x), x)

    return lax.custom_root(lambda x: x * x - a, 1.0, solve, lambda g, y: y / g(1.0))


def test_a_root_differentiates_to_the_third_order():
    slopes = [functx.grad(square_root)]
    slopes += [functx.grad(slopes[0]), functx.grad(functx.grad(slopes[0]))]
    wanted = [0.5 * 2**-0.5, -0.25 * 2**-1.5, 0.375 * 2**-2.5]
    same([slope(2.0) for slope in slopes], wanted)


def test_nothing_of_a_derivative_goes_through_the_steps():
    program = functx.make_ir(functx.grad(square_root))(2.0)
    names = [eqn.primitive.name for eqn in program]
    assert names.count("custom_root") == names.count("custom_linear_solve") == 1
    assert not {"scan", "while"} & set(names)
    assert functx.Program.parse(str(program)) == program


def test_the_guess_has_no_influence():
    def from_guess(guess):
        return lax.custom_root(lambda x: x * x - 4.0, guess, newton_scalar, lambda g, y: y / g(1.0))

    def newton_scalar(f, x):
        return lax.fori_loop(0, 9, lambda _, x: x - f(x) / (2 * x), x)

    same(functx.value_and_grad(from_guess)(1.5), (2.0, 0.0))
    same(functx.jvp(from_guess, (1.5,), (1.0,)), (2.0, 0.0))


def test_pytrees_and_aux_go():
    def both(scale):
        b = {"u": scale * 0 + 6.0, "v": np.ones(2)}
        return lax.custom_linear_solve(
            lambda x: {"u": scale * x["u"], "v": 2 * x["v"]},
            b,
            lambda _, b: ({"u": b["u"] / scale, "v": b["v"] / 2}, {"steps": 7, "size": scale}),
            symmetric=True,
            has_aux=True,
        )

    x, aux = both(3.0)
    same((x, aux), ({"u": 2.0, "v": np.full(2, 0.5)}, {"steps": 7, "size": 3.0}))
    same(functx.grad(lambda s: both(s)[0]["u"])(3.0), -6 / 9)
    assert float(functx.grad(lambda s: both(s)[1]["size"])(3.0)) == 0

    def roots(a):
        x, steps = lax.custom_root(
            lambda x: (x[0] ** 2 - a, x[1] - x[0]),
            (1.0, 1.0),
            lambda f, x: ((fnp.sqrt(a), fnp.sqrt(a)), 3),
            lambda g, y: (y[0] / g((1.0, 0.0))[0], y[1] + y[0] / g((1.0, 0.0))[0]),
            has_aux=True,
        )
        return x[0] * x[1], steps

    same(functx.value_and_grad(roots, has_aux=True)(4.0), ((4.0, 3), 1.0))
    same(functx.jvp(lambda a: roots(a)[0], (4.0,), (1.0,)), (4.0, 1.0))


def test_complex_systems_are_transposed_without_conjugation():
    d = np.array([1 + 2j, 3 - 1j])
    b = np.array([1.0 + 0j, 2j])

    def total(d, b):
        return lax.custom_linear_solve(lambda x: d * x, b, lambda _, b: b / d, symmetric=True).sum()

    found = functx.grad(total, (0, 1), holomorphic=True)(d, b)
    same(found, jax.jit(jax.grad(lambda d, b: (b / d).sum(), (0, 1), holomorphic=True))(d, b))


def test_a_guess_that_is_a_python_number_takes_the_dtype_of_the_function():
    a = fnp.asarray(4.0, "float32")
    found = lax.custom_root(
        lambda x: x * x - a, 1, lambda f, x: fnp.sqrt(a), lambda g, y: y / g(fnp.ones_like(y))
    )
    assert found.dtype == np.float32 and float(found) == 2


ONE = np.ones(3, "float32")


def solve_with(matvec, solve=lambda _, b: b, b=ONE, **options):
    return lambda: lax.custom_linear_solve(matvec, b, solve, **options)


def root_with(f, solve=lambda _, x: x, tangent_solve=lambda _, y: y, x=ONE):
    return lambda: lax.custom_root(f, x, solve, tangent_solve)


def keep(x):
    return x


def both_ways(matvec):
    return solve_with(matvec, transpose_solve=lambda vecmat, b: vecmat(b))


@pytest.mark.parametrize(
    ("call", "error", "problem"),
    [
        (solve_with(None), ArgumentError, "custom_linear_solve: `matvec` must be a function"),
        (solve_with(keep, None), ArgumentError, "`solve` must be a function; got NoneType"),
        (solve_with(keep, transpose_solve=3), ArgumentError, "`transpose_solve` must be a func"),
        (
            solve_with(lambda x: (x,)),
            TreeError,
            "what matvec returns must have the structure of b; got tuple of 1 for a leaf",
        ),
        (
            solve_with(lambda x: {"a": x["a"][:2]}, b={"a": ONE}),
            ShapeError,
            "matvec must return arrays of the shapes and dtypes of b; got f32[2] for "
            "b['a']: f32[3]",
        ),
        (
            solve_with(keep, lambda _, b: b > 0),
            DTypeError,
            "custom_linear_solve(keep): solve must return arrays of the shapes and dtypes of b; "
            "got bool[3] for b: f32[3]",
        ),
        (solve_with(keep, lambda _, b: [b]), TreeError, "what solve returns must have the struct"),
        (solve_with(keep, has_aux=True), ArgumentError, "must return a pair (output, aux)"),
        (solve_with(keep, b=np.ones(3, int)), DTypeError, "b must be float or complex; got i64[3]"),
        (solve_with(keep, b={}), TreeError, "b must hold an array; got {}"),
        (
            solve_with(keep, transpose_solve=lambda vecmat, b: vecmat(b[:1])),
            ShapeError,
            "the argument of the transpose of matvec must have the shapes and dtypes of b; got "
            "f32[1] for b: f32[3]",
        ),
        (
            both_ways(lambda x: x + 1),
            LinearityError,
            "custom_linear_solve(lambda): matvec: the function must be linear; got add",
        ),
        (
            solve_with(keep, lambda _, b: b if b[0] > 0 else -b),
            ConcretizationError,
            "needs the val",
        ),
        (root_with(None), ArgumentError, "custom_root: `f` must be a function"),
        (root_with(keep, tangent_solve=1), ArgumentError, "`tangent_solve` must be a function"),
        (
            root_with(lambda x: (x,)),
            TreeError,
            "what f returns must have the structure of initial_guess",
        ),
        (
            root_with(keep, lambda _, x: x[0]),
            ShapeError,
            "solve must return arrays of the shapes and dtypes of initial_guess; got f32[] for "
            "initial_guess: f32[3]",
        ),
        (
            root_with(keep, tangent_solve=lambda _, y: y[:1]),
            ShapeError,
            "tangent_solve must return arrays of the shapes and dtypes of initial_guess",
        ),
        (
            root_with(keep, tangent_solve=lambda g, y: g(y[:1])),
            ShapeError,
            "the argument of the function that tangent_solve is given must have the shapes",
        ),
        (root_with(keep, x="one"), ArgumentError, "got str for `x`"),
    ],
)
def test_bad_calls_are_refused_by_name(call, error, problem):
    with pytest.raises(error) as info:
        call()
    assert problem in info.value.problem
    assert "test_solvers.py" in str(info.value)


def test_reverse_mode_without_a_way_to_solve_the_transpose_is_refused():
    def one_way(d):
        return lax.custom_linear_solve(lambda x: d * x, ONE, lambda _, b: b / d).sum()

    with pytest.raises(MissingRuleError, match="got no transpose_solve") as info:
        functx.grad(one_way)(2.0)
    assert "Pass transpose_solve, or symmetric=True" in str(info.value)
    same(functx.jvp(one_way, (2.0,), (1.0,)), (1.5, -0.75))


def test_loops_of_no_known_length_are_no_obstacle_to_reverse_mode():
    def halve(y):
        return lax.while_loop(lambda y: y > 100.0, lambda y: y / 2, y)

    def found(a):
        return lax.custom_root(
            lambda x: halve(x) - a, 1.0, lambda f, x: x - f(x), lambda g, y: halve(y)
        )

    same(functx.jvp(found, (3.0,), (1.0,)), (3.0, 1.0))
    same(functx.value_and_grad(found)(3.0), (3.0, 1.0))
