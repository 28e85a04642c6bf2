"""Roots of sums of squares at 0, however the sum is written: their derivative is 0."""

import numpy as onp
import pytest

import functx as fx
import functx.numpy as np
from functx.transforms.forward_mode import recognize_norms

ZEROS = onp.zeros(3, "float32")

NORMS = {
    "sum of products": lambda x: np.sqrt((x * x).sum()),
    "sum of powers": lambda x: np.sqrt(np.sum(x**2)),
    "fourth powers": lambda x: np.sqrt(np.sum(x**4)),
    "inner product": lambda x: (x @ x) ** 0.5,
    "einsum": lambda x: np.sqrt(np.einsum("i,i->", x, x)),
    "one by one": lambda x: np.sqrt(x[0] ** 2 + x[1] ** 2),
    "power": lambda x: np.power(np.sum(np.square(x)), 0.5),
    "deviation by hand": lambda x: np.sqrt(np.mean((x - x.mean()) ** 2)),
    "deviation": np.std,
    "hypot": lambda x: np.hypot(x[0], x[1]),
    "norm": np.linalg.norm,
    "scaled": lambda x: np.sqrt(2.0 * (x * x).sum() / 3.0),
    "masked": lambda x: np.sqrt(np.where(x < 1.0, x * x, 0.0).sum()),
    "distances": lambda x: np.sqrt(np.sum(np.square(x[None] - x[:, None]), -1)).sum(),
    "kept dimensions": lambda x: np.sqrt((x**2).sum(keepdims=True))[0],
    "two of a kind": lambda x: np.sqrt(np.sum(x[:, None] * x[:, None])),
    "called": lambda x: np.sqrt(fx.jit(lambda x: (x * x).sum())(x)),
    "joined": lambda x: np.sqrt(np.concatenate([x * x, np.zeros(2, "float32")]).sum()),
}


DERIVATIVES = (
    fx.grad,
    fx.jacfwd,
    lambda f: fx.grad(fx.jit(f)),
    lambda f: lambda x: fx.vmap(fx.grad(f))(x[None])[0],
)


@pytest.mark.parametrize("norm", NORMS.values(), ids=NORMS)
def test_the_derivative_of_a_norm_at_zero_is_zero_in_both_modes(norm):
    for derivative in DERIVATIVES:
        onp.testing.assert_array_equal(derivative(norm)(ZEROS), ZEROS)


@pytest.mark.parametrize("norm", NORMS.values(), ids=NORMS)
def test_elsewhere_it_is_what_it_was(norm):
    x = onp.array([0.3, -0.5, 0.2])
    fx.testing.check_grads(norm, (x,), order=1)


def test_functions_of_norms_are_as_smooth_as_they_are():
    norm = NORMS["sum of products"]
    onp.testing.assert_array_equal(fx.grad(lambda x: 3.0 * norm(x) ** 2)(ZEROS), ZEROS)
    assert np.isfinite(fx.hessian(lambda x: np.exp(-(norm(x) ** 2)))(ZEROS)).all()


def test_a_program_shows_which_roots_are_norms():
    text = str(fx.make_ir(fx.grad(NORMS["sum of products"]))(ZEROS))
    assert "safe_sqrt" in text and " sqrt" not in text
    assert "safe_sqrt" not in str(fx.make_ir(NORMS["sum of products"])(ZEROS))


@pytest.mark.parametrize(
    "root",
    [
        lambda x: np.sqrt(x).sum(),
        lambda x: np.sqrt((x * x).sum() + x[0]),
        lambda x: np.sqrt((x * x * x).sum()),
        lambda x: np.sqrt((x * x).sum() * x[0] + x[1]),
    ],
)
def test_other_roots_stay_as_steep_as_they_are(root):
    text = str(fx.make_ir(fx.grad(root))(ZEROS))
    assert "safe_sqrt" not in text
    assert not onp.isfinite(fx.grad(root)(ZEROS)).all()


def test_programs_without_roots_are_not_rewritten():
    program = fx.make_ir(lambda x: (x * x).sum())(ZEROS)
    assert recognize_norms(program) is program


def test_deep_sums_do_not_exhaust_the_stack():
    def f(x):
        total = x[0] ** 2
        for _ in range(3000):
            total = total + x[1] ** 2
        return np.sqrt(total)

    assert recognize_norms(fx.make_ir(f)(ZEROS)).equations[-1].primitive.name == "safe_sqrt"
