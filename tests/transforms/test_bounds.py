"""`functx.bounds`: intervals, linear relaxations and Lipschitz constants against values at random points."""

import jax
import numpy as np
import pytest

import functx
from functx import lax, nn
from functx import numpy as fnp
from functx.bounds import Interval, crown, interval, lipschitz
from functx.core.errors import MissingRuleError, ShapeError, ValueRangeError
from functx.lax.polynomial import polynomial
from functx.testing.reference.interpreter import interpret_in_numpy

RANDOM = np.random.RandomState(0)
CENTERS = np.array([-1.6, -0.3, 0.2, 0.9, 2.1])
LOWER = CENTERS - np.array([0.3, 0.5, 0.1, 0.4, 1.5])
UPPER = CENTERS + np.array([0.2, 0.6, 0.3, 0.2, 1.5])
SAMPLES = LOWER + (UPPER - LOWER) * RANDOM.rand(100, 5)
SAMPLES[:32] = np.where(RANDOM.rand(32, 5) < 0.5, LOWER, UPPER)


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


def in_numpy(f, *args):
    """The leaves of `f(*args)` by the definitions in NumPy, which are not compiled."""
    program = functx.make_ir(f)(*args)
    with np.errstate(all="ignore"):
        return [np.asarray(x) for x in interpret_in_numpy(program, *functx.tree.leaves(args))]


def write_in_place(x):
    y = x.copy()
    y[1:3] *= 2
    return y


@functx.custom_jvp
def cube(x):
    return x**3


cube.defjvp(lambda primals, tangents: (cube(*primals), 3 * primals[0] ** 2 * tangents[0]))

ELEMENTWISE = {
    name: getattr(fnp, name)
    for name in [
        "exp",
        "exp2",
        "expm1",
        "log",
        "log1p",
        "sqrt",
        "cbrt",
        "abs",
        "square",
        "sin",
        "cos",
        "tan",
        "tanh",
        "arctan",
        "sinh",
        "cosh",
        "arcsinh",
        "sign",
        "floor",
        "ceil",
        "arcsin",
        "arccos",
        "sinc",
    ]
} | {
    name: getattr(nn, name)
    for name in [
        "relu",
        "silu",
        "gelu",
        "mish",
        "softplus",
        "log_sigmoid",
        "sigmoid",
        "elu",
        "selu",
        "celu",
        "relu6",
        "hard_tanh",
        "softmax",
        "log_softmax",
        "leaky_relu",
        "soft_sign",
        "squareplus",
    ]
}
FUNCTIONS = {
    "exact gelu": lambda x: nn.gelu(x, approximate=False),
    "quotient": lambda x: (1 / x, x / (x**2 + 1), x[2:] / x[2:4].sum()),
    "powers": lambda x: (x**3, x**4, x**-2, x**-3, abs(x) ** 2.5, 2.0**x, abs(x) ** x),
    "products": lambda x: (x * x[::-1], fnp.outer(x, x) @ x, (x * x).prod(), fnp.cumprod(x)),
    "reductions": lambda x: (x.sum(), x.max(), x.min(), x.mean(), x.std(), fnp.linalg.norm(x)),
    "scans": lambda x: (fnp.cumsum(x), lax.cummax(x), nn.logsumexp(x), fnp.sort(x)),
    "choices": lambda x: (fnp.where(x > 0.3, x, -x), fnp.clip(x, -0.5, 0.5), fnp.maximum(x, 0.1)),
    "comparisons": lambda x: (1.0 * (x > 0), 1.0 * (x == x[0]), 1.0 * (x != 0.5), ~(x <= 1) * 2.0),
    "positions": lambda x: (x[1], x[::2], x.at[0].set(3.0), x[np.array([0, 3])], fnp.roll(x, 2)),
    "convolution": lambda x: fnp.convolve(x, np.array([1.0, -2.0, 0.5])),
    "angles": lambda x: (fnp.arctan2(x, x[::-1]), fnp.hypot(x, 1.0)),
    "normalization": lambda x: nn.layer_norm(x, 5),
    "loop": lambda x: lax.fori_loop(0, 4, lambda i, c: c * 0.5 + fnp.sin(x[i]), x),
    "scan": lambda x: lax.scan(lambda c, y: (c + fnp.sin(y), c * y), 0.0, x),
    "branch": lambda x: lax.cond(x[0] > 0, lambda x: x * 2, lambda x: -x, x),
    "unknown branch": lambda x: lax.cond(x[2] > 0.25, lambda x: x * 2, lambda x: -x, x),
    "while": lambda x: lax.while_loop(lambda c: c[1] < 3, lambda c: (fnp.tanh(c[0]), c[1] + 1), (x, 0)),
    "unknown while": lambda x: lax.while_loop(lambda c: c.sum() < 3.0, lambda c: c + 1.0, x),
    "calls": lambda x: functx.jit(functx.vmap(lambda z: z * fnp.exp(-z)))(x),
    "checkpoint": functx.checkpoint(lambda x: fnp.sin(x) * x),
    "rule": cube,
    "batch of branches": functx.vmap(
        lambda z: lax.cond(z > 0.25, lambda z: z * 2, lambda z: z * z, z)
    ),
    "batch of loops": functx.vmap(
        lambda z: lax.while_loop(lambda c: (c[1] < 3) | (c[0] < -9), lambda c: (c[0] / 2, c[1] + 1), (z, 0))
    ),
    "remainders": lambda x: (x % 1.0, fnp.fmod(x, 0.7), fnp.fmod(x, x[0])),
    "ranks": lambda x: (fnp.argmax(x), lax.top_k(x, 2)),
    "gradient": functx.grad(lambda x: (fnp.tanh(x) ** 2).sum()),
    "polynomial": lambda x: polynomial(x, (0.5, -1.0, 0.25, 2.0)),
    "writes": write_in_place,
}  # fmt: skip


@pytest.mark.parametrize("transform", [interval, crown])
def test_every_value_lies_within_its_bounds(transform):
    functions = ELEMENTWISE | FUNCTIONS if transform is interval else FUNCTIONS
    for name, f in functions.items():
        bounds = in_numpy(transform(f), Interval(LOWER, UPPER))
        values = in_numpy(functx.vmap(f), SAMPLES)
        for lower, upper, found in zip(bounds[::2], bounds[1::2], values, strict=True):
            slack = 1e-9 * (1 + np.abs(found))
            assert not (found < lower - slack).any() and not (found > upper + slack).any(), name
            assert not np.isnan(lower).any() and not np.isnan(upper).any(), name


TIGHT = [
    "exp",
    "log",
    "sqrt",
    "abs",
    "square",
    "sin",
    "cos",
    "tanh",
    "cosh",
    "relu",
    "silu",
    "gelu",
    "mish",
    "softplus",
    "celu",
    "relu6",
]


def test_bounds_of_functions_of_one_number_are_met():
    points = np.linspace(LOWER, UPPER, 8001)
    for name in TIGHT:
        lower, upper = in_numpy(interval(ELEMENTWISE[name]), Interval(LOWER, UPPER))
        (values,) = in_numpy(ELEMENTWISE[name], points)
        least, greatest = values.min(0), values.max(0)
        known = np.isfinite(lower)
        np.testing.assert_allclose(lower[known], least[known], atol=1e-4, err_msg=name)
        np.testing.assert_allclose(upper[known], greatest[known], atol=1e-4, err_msg=name)


def bounds_of(f, low, high, transform=interval):
    return [x.tolist() for x in in_numpy(transform(f), Interval(np.asarray(low), np.asarray(high)))]


def test_what_has_no_bound_is_infinite():
    infinity = np.inf
    assert bounds_of(lambda x: 1 / x, -1.0, 2.0) == [-infinity, infinity]
    assert bounds_of(lambda x: 1 / x, 0.0, 2.0) == [0.5, infinity]
    assert bounds_of(lambda x: 1 / x, -2.0, 0.0) == [-infinity, infinity]
    assert bounds_of(fnp.log, -1.0, 1.0) == [-infinity, 0.0]
    assert bounds_of(fnp.tan, 1.0, 2.0) == [-infinity, infinity]
    assert bounds_of(lambda x: x * 0.0, -infinity, infinity) == [0.0, 0.0]
    assert bounds_of(lambda x: x - x, infinity, infinity) == [-infinity, infinity]
    for transform in (interval, crown):
        low, high = bounds_of(
            lambda x: fnp.tanh(x) + 1 / (x**2 + 1), -infinity, infinity, transform
        )
        assert -1.0 <= low <= -0.5 and 1.0 <= high <= 2.0


WEIGHTS = [RANDOM.randn(5, 8), RANDOM.randn(8, 8), RANDOM.randn(8, 2)]


def network(activation):
    def f(x, weights=WEIGHTS):
        for w in weights[:-1]:
            x = activation(x @ w)
        return x @ weights[-1]

    return f


ACTIVATIONS = [nn.relu, fnp.tanh, nn.sigmoid, nn.gelu, nn.softplus, nn.leaky_relu]


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_linear_relaxations_are_sound_and_tighter_than_intervals(activation):
    box = Interval(CENTERS - 0.05, CENTERS + 0.05)
    f = network(activation)
    points = CENTERS + 0.05 * (2 * RANDOM.rand(500, 5) - 1)
    (values,) = in_numpy(f, points)
    widths = []
    for transform in (
        lambda f: functx.jit(crown(f)) if activation is nn.relu else crown(f),
        lambda f: crown(f, intermediate="interval"),
        interval,
    ):
        lower, upper = in_numpy(transform(f), box)
        assert (values >= lower - 1e-9).all() and (values <= upper + 1e-9).all()
        widths.append((upper - lower).max())
    assert widths[0] <= widths[1] * (1 + 1e-9) and widths[1] <= widths[2] * (1 + 1e-9)
    assert widths[0] < 0.8 * widths[2]
    # The weights may vary too, and bounds have batches and gradients.
    wide = Interval(WEIGHTS[0] - 0.01, WEIGHTS[0] + 0.01)
    lower, upper = in_numpy(interval(f), box, [wide, *WEIGHTS[1:]])
    assert (lower <= values.min(0)).all() and (upper >= values.max(0)).all()


def test_programs_show_bounds_and_keep_relu():
    program = functx.make_ir(interval(nn.relu))(Interval(LOWER, UPPER))
    assert [eqn.primitive.name for eqn in program].count("relu") == 2
    assert [eqn.primitive.name for eqn in functx.make_ir(nn.relu)(LOWER)] == ["relu"]


def test_bounds_compose_with_other_transforms():
    def gap(center, radius):
        bounds = crown(network(fnp.tanh))(Interval(center - radius, center + radius))
        return (bounds.upper - bounds.lower).sum()

    centers = np.stack([CENTERS, CENTERS + 0.1])
    program = functx.make_ir(functx.jit(functx.vmap(functx.grad(gap, 1), (0, None))))(centers, 0.01)
    (slopes,) = interpret_in_numpy(program, centers, np.asarray(0.01))
    step = 1e-6
    ends = [in_numpy(gap, CENTERS, np.asarray(0.01 + d))[0] for d in (-step, step)]
    np.testing.assert_allclose(slopes[0], (ends[1] - ends[0]) / (2 * step), rtol=1e-5)


LIPSCHITZ = {
    **{activation.__name__: network(activation) for activation in (nn.relu, nn.gelu)},
    "products": lambda x: fnp.sin(x) * x + (x**2).sum() / (1 + x[0] ** 2),
    "moves": lambda x: fnp.cumsum(x) - fnp.concatenate([x[1:], x[:1]]),
    "convolution": lambda x: fnp.convolve(x, np.array([1.0, -2.0, 0.5])),
    "stops": lambda x: functx.stop_gradient(x) * 2 - abs(functx.stop_gradient(x)) / 2 + x + x,
    "extrema": lambda x: fnp.maximum(nn.softmax(x), 0.1) + abs(x).max(),
    "loop": lambda x: lax.fori_loop(0, 3, lambda _, c: fnp.tanh(c @ WEIGHTS[0][:, :5]), x),
}


def test_lipschitz_constants_are_at_least_the_norms_of_jacobians():
    box = Interval(CENTERS - 0.1, CENTERS + 0.1)
    points = CENTERS + 0.1 * (2 * RANDOM.rand(6, 5) - 1)
    for name, f in LIPSCHITZ.items():
        value = f if name != "stops" else lambda x: 4 * x - abs(x) / 2
        (jacobians,) = in_numpy(functx.vmap(functx.jacrev(value)), points)
        for order in (2, np.inf):
            least = max(np.linalg.norm(j, order) for j in jacobians)
            for method in ("product", "jacobian") if name != "extrema" else ("product",):
                (constant,) = in_numpy(lipschitz(f, order, method=method), box)
                assert least * (1 - 1e-9) <= constant < np.inf, (name, order, method)


@functx.custom_vjp
def triple(x):
    return 3 * x


triple.defvjp(lambda x: (triple(x), None), lambda _, ct: (0.1 * ct,))


@functx.custom_jvp
def sextuple(x):
    return 2 * triple(x)


sextuple.defjvp(lambda primals, tangents: (sextuple(*primals), 0.1 * tangents[0]))


def test_lipschitz_constants_do_not_follow_the_derivatives_that_users_state():
    box = Interval(CENTERS[:2] - 0.1, CENTERS[:2] + 0.1)
    for f, slope in (
        (sextuple, 6.0),
        (lambda x: 3 * functx.hook_grad(x, lambda ct: 0.01 * ct), 3.0),
        (lambda x: 3 * functx.stop_gradient(x), 3.0),
        (lambda x: lax.fori_loop(0, 2, lambda _, c: functx.jit(triple)(c), x), 9.0),
        (functx.checkpoint(lambda x: lax.cond(x[0] > 0, triple, lambda x: x, x)), 3.0),
    ):
        for order in (2, np.inf):
            for method in ("product", "jacobian"):
                (constant,) = in_numpy(lipschitz(f, order, method=method), box)
                assert slope * (1 - 1e-9) <= constant <= slope * 1.01, (order, method)
        ((low, high), (lowest, highest)) = [in_numpy(t(f), box) for t in (interval, crown)]
        least, greatest = [in_numpy(f, x)[0] for x in box]
        assert (low <= least).all() and (greatest <= high).all()
        assert (lowest <= least + 1e-9).all() and (greatest <= highest + 1e-9).all()


def test_lipschitz_constants_take_every_branch_that_the_box_may_choose():
    box = Interval(-1.0, 2.0)
    for f, slope in (
        (lambda x: lax.cond(x > 0, lambda x: 3 * x, lambda x: x, x), 3.0),
        (lambda x: x ** (2 + (x > 0)), 12.0),
    ):
        for method in ("product", "jacobian"):
            (constant,) = in_numpy(lipschitz(f, method=method), box)
            assert constant >= slope, method


def test_lipschitz_constants_count_a_number_as_often_as_it_is_broadcast():
    box = Interval(0.0, 1.0), Interval(np.zeros(4), np.ones(4))
    for f, greatest in (
        (lambda x, y: fnp.maximum(x, y), 2.0),
        (lambda x, y: x * y, 5**0.5),
        (lambda x, y: fnp.where(np.arange(4) < 4, x, y), 2.0),
        (lambda x, y: fnp.clip(y, x, 2.0), 2.0),
    ):
        (constant,) = in_numpy(lipschitz(f), *box)
        assert greatest <= constant < 2 * greatest


def test_nothing_that_varies_has_the_constant_zero():
    empty = Interval(np.zeros(0), np.zeros(0))
    for method in ("product", "jacobian"):
        assert in_numpy(lipschitz(lambda x: 3.0, method=method), Interval(1.0, 2.0)) == [0.0]
        assert in_numpy(lipschitz(fnp.sin, method=method), 2.0) == [0.0]
        assert in_numpy(lipschitz(fnp.sin, method=method), empty) == [0.0]


def test_values_of_several_dtypes_are_bounded_together():
    matrix = np.array([[1.0, 2.0], [3.0, 4.0]], "float16")

    def mixed(x):
        half = matrix @ x.astype("float16")
        return fnp.sin(half).astype("float32") * x + (x > 0) * (x < 1)

    box = Interval(np.array([-0.5, 0.2], "float32"), np.array([0.5, 0.9], "float32"))
    for transform in (interval, crown):
        lower, upper = in_numpy(transform(mixed), box)
        for x in np.random.RandomState(0).uniform(*box, (20, 2)).astype("float32"):
            (value,) = in_numpy(mixed, x)
            assert (lower <= value + 1e-2).all() and (value <= upper + 1e-2).all()
    for order in (2, np.inf):
        (constant,) = in_numpy(
            lipschitz(lambda x: fnp.sin(matrix @ x.astype("float16")), order), box
        )
        assert np.linalg.norm(matrix.astype(float), order) <= constant * 1.01


def test_lipschitz_constants_of_networks_everywhere_are_products_of_norms():
    everywhere = Interval(np.full(5, -np.inf), np.full(5, np.inf))
    for order in (2, np.inf):
        expected = np.prod([np.linalg.norm(w.T, order) for w in WEIGHTS])
        for activation, slope in ((nn.relu, 1), (fnp.tanh, 1), (nn.sigmoid, 1 / 16)):
            (constant,) = in_numpy(lipschitz(network(activation), order), everywhere)
            np.testing.assert_allclose(constant, expected * slope)


@pytest.mark.parametrize(
    ("call", "error", "problem"),
    [
        (
            lambda x: interval(fnp.fft.fft)(x),
            MissingRuleError,
            "interval: fft must have real operands; got an interval of arrays",
        ),
        (
            lambda x: interval(fnp.linalg.cholesky)(Interval(np.eye(2), np.eye(2))),
            MissingRuleError,
            "interval: cholesky must have a rule or a decomposition; got an interval of arrays",
        ),
        (
            lambda x: crown(lambda x: x[(x[0] > 0).astype(int)])(x),
            MissingRuleError,
            "must have positions that are known exactly",
        ),
        (
            lambda x: interval(fnp.sin)(Interval(np.ones(2), np.ones(3))),
            ShapeError,
            "interval: the bounds of an Interval must have one shape and dtype; got f64[2] and f64[3]",
        ),
        (
            lambda x: interval(fnp.sin)(Interval(x.upper, x.lower)),
            ValueRangeError,
            "interval: lower must not exceed upper in an Interval; got",
        ),
        (
            lambda x: crown(fnp.sin, intermediate="linear")(x),
            ValueRangeError,
            'crown: intermediate must be "crown" or "interval"; got',
        ),
        (
            lambda x: lipschitz(fnp.sin, 1)(x),
            ValueRangeError,
            'lipschitz: ord must be 2 or inf, and method "product" or "jacobian"; got 1 and',
        ),
    ],
)
def test_bad_calls_are_refused_by_name(call, error, problem):
    with pytest.raises(error) as info:
        call(Interval(LOWER, UPPER))
    assert problem in info.value.problem


def test_rules_can_be_registered():
    class Twice(functx.Primitive):
        def abstract_eval(self, x):
            return x

    twice = lambda x: Twice()(x)  # noqa: E731
    with pytest.raises(MissingRuleError, match="twice must have a rule or a decomposition"):
        functx.make_ir(interval(twice))(Interval(LOWER, UPPER))

    @functx.bounds.interval_rule.register
    def _(primitive: Twice, x):
        return [(2 * x[0], 2 * x[1])]

    lower, upper = in_numpy(interval(twice), Interval(LOWER, UPPER))
    np.testing.assert_array_equal([lower, upper], [2 * LOWER, 2 * UPPER])

    # A later rule replaces it at once, also inside a jitted function that keeps its program.
    inner = functx.jit(twice)
    bounds = lambda x: interval(inner)(x)  # noqa: E731
    before = in_numpy(bounds, Interval(LOWER, UPPER))
    functx.bounds.interval_rule.register(Twice, lambda primitive, x: [(3 * x[0], 3 * x[1])])
    after = in_numpy(bounds, Interval(LOWER, UPPER))
    np.testing.assert_allclose(np.divide(after, before), 1.5)
