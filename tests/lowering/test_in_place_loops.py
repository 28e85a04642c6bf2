"""Python loops that fill tables in place: their gradients are loops too, with the right values."""

import numpy as np
import pytest

import functx
import functx.numpy as fnp
from functx.testing.reference.interpreter import interpret_in_numpy
from functx.transforms.control.scan import Scan

random = np.random.RandomState(0)
X, Y, WEIGHTS = random.rand(8), random.rand(8), random.randn(3, 3) * 0.5
ORDER = np.array([3, 1, 3, 0, 7, 1, 2, 2])
PROGRAMS = {}


def program(*args):
    def add(f):
        PROGRAMS[f.__name__] = f, args
        return f

    return add


@program(random.rand(8, 4))
def alignment_scores(np, logits):
    labels = [0, 1, 0, 2, 0, 2, 0]
    alpha = np.full((8, 7), -30.0, "float64")
    alpha[0, 0], alpha[0, 1] = logits[0, 0], logits[0, 1]
    for t in range(1, 8):
        for s in range(7):
            total = alpha[t - 1, s]
            if s > 0:
                total = np.logaddexp(total, alpha[t - 1, s - 1])
            if s > 1 and labels[s] not in (0, labels[s - 2]):
                total = np.logaddexp(total, alpha[t - 1, s - 2])
            alpha[t, s] = total + logits[t, labels[s]]
    return np.logaddexp(alpha[7, 6], alpha[7, 5])


@program(X, Y)
def warped_distance(np, x, y):
    table = np.full((9, 9), 30.0, "float64")
    table[0, 0] = 0.0
    for i in range(8):
        for j in range(8):
            above = np.logaddexp(-table[i, j], -table[i, j + 1])
            table[i + 1, j + 1] = (x[i] - y[j]) ** 2 - np.logaddexp(above, -table[i + 1, j])
    return table[8, 8]


@program(X, Y)
def best_local_alignment(np, x, y):
    table = np.zeros((9, 9))
    for i in range(1, 9):
        for j in range(1, 9):
            match = table[i - 1, j - 1] + x[i - 1] * y[j - 1] - 0.2
            gap = np.maximum(table[i - 1, j], table[i, j - 1]) - 0.1
            table[i, j] = np.maximum(np.maximum(match, gap), 0.0)
    return np.sum(table)


@program(random.rand(6), random.rand(12))
def distance_with_peeled_borders(np, x, y):
    table = np.zeros((6, 12))
    for i in range(6):
        for j in range(12):
            cost = (x[i] - y[j]) ** 2
            if i and j:
                cost = cost + np.minimum(table[i, j - 1], table[i - 1, j] * table[i - 1, j - 1])
            elif i or j:
                cost = cost + table[max(i - 1, 0), max(j - 1, 0)]
            table[i, j] = cost
    return np.sqrt(table[5, 11])


@program(X)
def triangle(np, x):
    table = np.zeros((8, 8))
    for i in range(8):
        for j in range(i + 1):
            below = table[i - 1, j] if i else 1.0
            table[i, j] = np.sin(below + x[i] * x[j]) + table[i, j - 1] * 0.5
    return np.sum(table * table)


@program(X)
def relaxation_in_place(np, x):
    u = x.copy()
    for _ in range(3):
        for i in range(1, 7):
            u[i] = 0.5 * u[i] + 0.25 * (u[i - 1] + u[i + 1] ** 2)
        u[0] = u[7]
    return np.sum(u * x)


@program(X, WEIGHTS)
def rows_through_views(np, x, w):
    table = np.zeros((9, 3))
    table[0] = x[:3]
    for t in range(8):
        row = table[t + 1]
        row += np.tanh(table[t] @ w) * x[t]
        row[1] *= 2.0
    return np.sum(table**2)


@program(X)
def overlapping_windows(np, x):
    y = np.zeros(12)
    for t in range(8):
        y[t : t + 4] += x[t] * np.sin(y[t + 1 : t + 5 if t < 7 else 11][:1]) + x[t]
    return np.sum(y**2)


@program(X)
def equal_places_in_some_steps(np, x):
    ring = x[:3] * 1.0
    for t in range(8):
        ring[t % 3] = ring[(2 * t) % 3] * x[t] + 0.1
        ring[(t + 1) % 3] = np.sin(ring[(2 * t) % 3]) + ring[t % 3]
    return np.sum(ring**2)


@program(X)
def filtered(np, x):
    noise = [0.1 * (1 + t) ** 1.5 for t in range(8)]
    means, variance = np.zeros(9), x[0] + 1.0
    for t in range(8):
        gain = variance / (variance + noise[t])
        means[t + 1] = means[t] + gain * (x[t] - means[t])
        variance = (1.0 - gain) * variance + 0.05
    return np.sum(means**2)


@program(random.rand(12, 3), WEIGHTS)
def log_probabilities(np, seen, w):
    table = np.zeros((12, 3))
    for t in range(12):
        before = table[t - 1] if t else np.zeros(3)
        table[t] = seen[t] + np.log(np.exp(before) @ np.exp(w))
    return np.log(np.sum(np.exp(table[11])))


@program(random.rand(8, 4))
def alignment_scores_by_rows(np, logits):
    labels = ORDER[:7] % 4
    is_skipped = ORDER % 2 == 1
    alpha = np.full((8, 7), -30.0, "float64")
    alpha[0, :2] = logits[0, labels[:2]]
    for t in range(1, 8):
        alpha[t] = alpha[t - 1]
        alpha[t, 1:] = np.logaddexp(alpha[t, 1:], alpha[t - 1, :-1])
        skipped = np.logaddexp(alpha[t, 2:], alpha[t - 1, :-2])
        alpha[t, 2:] = np.where(is_skipped[3:], skipped, alpha[t, 2:])
        alpha[t] += logits[t, labels]
    return np.logaddexp(alpha[7, 6], alpha[7, 5])


@program(X)
def places_that_are_given(np, x, order=ORDER):
    totals = np.zeros(8)
    for t in range(8):
        totals[order[t]] = totals[order[t]] * 0.5 + x[t] * np.cos(totals[order[(t + 1) % 8]])
    return np.sum(totals**2)


@pytest.fixture(autouse=True)
def switched_by_the_test_alone():
    with functx.config.set(outline="always", memory="off"), functx.enable_x64():
        yield


def gradient(name):
    f, args = PROGRAMS[name]
    return functx.grad(lambda *args: f(fnp, *args), tuple(range(len(args))))


def test_gradients_of_tables_filled_in_place_are_those_of_numpy_programs():
    @functx.jit
    def gradients(args, order):
        found = {name: gradient(name)(*args[name]) for name in PROGRAMS}
        traced_places = functx.grad(lambda x: places_that_are_given(fnp, x, order))
        return found, traced_places(*args["places_that_are_given"])

    args_of = {name: args for name, (_, args) in PROGRAMS.items()}
    found, by_traced_places = gradients(args_of, ORDER)
    np.testing.assert_allclose(by_traced_places, *found["places_that_are_given"])
    for name, grads in found.items():
        f, args = PROGRAMS[name]
        for i, grad in enumerate(grads):
            direction = random.randn(*args[i].shape)

            def along(step, f=f, args=args, i=i, direction=direction):
                return f(np, *args[:i], args[i] + step * direction, *args[i + 1 :])

            expected = (along(1e-5) - along(-1e-5)) / 2e-5
            np.testing.assert_allclose(np.sum(grad * direction), expected, 1e-6, 1e-8, err_msg=name)


def roots_of_products(x):
    table = fnp.zeros(12)
    table[0] = x[0]
    for t in range(11):
        table[t + 1] = fnp.sqrt(table[t] * x[t + 1])
    return table[5]


def first_of_repeated_roots(x):
    for _ in range(12):
        x = fnp.sqrt(x)
    return x[0]


@pytest.mark.parametrize("f", [roots_of_products, first_of_repeated_roots])
def test_elements_without_influence_have_no_influence_on_gradients_of_loops(f):
    x = np.array([1.0] * 6 + [0.0] * 6)
    assert np.isfinite(functx.grad(f)(x)).all()


def reciprocals(x):
    table = fnp.zeros(300)
    for t in range(300):
        table[t] = 1.0 / x[t]
    return table


def smallest(x):
    return fnp.sum(fnp.minimum(reciprocals(x), 10.0))


def largest(x):
    return fnp.max(-reciprocals(x))


def overwritten(x):
    table = reciprocals(x)
    table[150:] = 0.0
    return fnp.sum(table)


def products_with_negative_powers(x):
    table = fnp.ones(301)
    for t in range(300):
        table[t + 1] = table[t] * x[t] ** -2
    return table[100]


@pytest.mark.parametrize("f", [smallest, largest, overwritten, products_with_negative_powers])
def test_divisions_by_zero_without_influence_leave_gradients_of_long_loops_finite(f):
    x = np.array([1.0] * 150 + [0.0] * 150)
    with functx.config.set(outline="auto"), np.errstate(divide="ignore", invalid="ignore"):
        (grad,) = interpret_in_numpy(functx.make_ir(functx.grad(f))(x), x)
    assert np.isfinite(grad).all()
    assert grad[0] < 0 or f is largest


def divided_by_numbers(x):
    table = fnp.zeros(300)
    for t in range(300):
        table[t] = x[t] ** 3 / (t + 1.0)
    return fnp.sum(fnp.minimum(table, 10.0))


@pytest.mark.parametrize("f", [divided_by_numbers, lambda x: fnp.sum(reciprocals(x))])
def test_divisions_by_numbers_and_divisions_all_of_which_have_influence_become_loops(f):
    with functx.config.set(outline="auto"):
        assert len(functx.make_ir(functx.grad(f))(np.ones(300)).equations) < 40


def one_place_with_roots_elsewhere(x):
    table = fnp.stack([x, 2 * x, x - 1], 1) * 1.0
    for t in 2, 3:
        table[8, t % 3] += fnp.tanh(fnp.cbrt(x[-t - 1]))
        table[t, 0] = fnp.tanh(x[t])
    return table[2, 1]


def test_calls_keep_the_masks_of_reads_at_different_places():
    x = np.array([1.0] * 5 + [0.0] * 4)
    (grad,) = interpret_in_numpy(functx.make_ir(functx.grad(one_place_with_roots_elsewhere))(x), x)
    assert grad.tolist() == [0, 0, 2, 0, 0, 0, 0, 0, 0]


def long_steps_of_two_writes(x):
    table = fnp.ones((9, 3)) + x[0]
    for t in range(6):
        y = x[-t - 1]
        for j in range(12):
            y = fnp.sin(y * 1.1 + j) + fnp.cos(y) * fnp.tanh(y - j)
        table[8 - t, t % 3] += y
        table[t // 2, 0] = fnp.tanh(x[t])
    return fnp.sum(table[1:])


def test_steps_that_read_a_table_are_calls_between_the_reads():
    x = np.linspace(0.1, 1.0, 9)
    found = []
    for outline in ("auto", "never"):
        with functx.config.set(outline=outline):
            program = functx.make_ir(functx.grad(long_steps_of_two_writes))(x)
        found += interpret_in_numpy(program, x)
        assert (len(program.equations) < 120) == (outline == "auto")
    np.testing.assert_allclose(*found, rtol=1e-12)


@pytest.mark.parametrize(
    "name",
    [
        "alignment_scores",
        "alignment_scores_by_rows",
        "warped_distance",
        "best_local_alignment",
        "filtered",
        "log_probabilities",
    ],
)
def test_the_gradient_of_a_filled_table_is_one_loop_forward_and_one_backward(name):
    program = functx.make_ir(gradient(name))(*PROGRAMS[name][1])
    loops = [eqn.primitive for eqn in program if type(eqn.primitive) is Scan]
    assert [loop.reverse for loop in loops] == [False, True], program
