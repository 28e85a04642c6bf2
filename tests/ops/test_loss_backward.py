"""Derivatives of softmax and losses to any order: at extremes, nested, by low-level rules."""

import itertools

import jax
import numpy as np
import pytest

import functx
from functx import aten, nn
from functx import numpy as fnp
from functx.core.errors import ArgumentError, DTypeError, IndexingError, ShapeError
from functx.core.primitive import Primitive
from functx.core.rewriting import cached_rewrite
from functx.core.samples import draw_operands
from functx.testing import reference
from functx.transforms.reverse_mode import SplitVJP

INF = np.inf
WEIGHT = np.array([0.5, 2.0])


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64():
        yield


def evaluate(f, *args):
    """The results of `f(*args)`, each equation by its NumPy meaning, which compiles nothing."""
    program = functx.make_ir(f)(*args)
    return reference.interpret_in_numpy(program, *args)


def drawn(shape, seed=0):
    return np.random.RandomState(seed).normal(size=shape)


def close(x, y, tolerance=1e-12):
    np.testing.assert_allclose(x, y, tolerance, tolerance)


# Forward over reverse against reverse over reverse, at extremes


def both_ways(f, x):
    """The Jacobian of the pullback of `f`, in its point and its cotangent, in either mode."""
    shape = functx.eval_shape(f, x).shape
    ct = np.asarray(drawn(shape, 5))

    def pulled(x, ct):
        return functx.vjp(f, x)[1](ct)[0]

    forward = functx.jacfwd(pulled, (0, 1))
    reverse = functx.jacrev(pulled, (0, 1))
    found = evaluate(lambda x, ct: (*forward(x, ct), *reverse(x, ct)), x, ct)
    return found[:2], found[2:]


def agree(f, x, finite=True):
    for one, other in zip(*both_ways(f, x), strict=True):
        np.testing.assert_allclose(one, other, 1e-12, 1e-12)
        assert np.isfinite(one).all() or not finite


def test_compiled_derivatives_at_extremes_are_the_same_in_either_mode():
    x = np.array([[0.0, 1000.0, -1000.0], [-INF, 2.0, 1.0]], "float32")
    target, ct = np.array([2, 1]), drawn((2, 3)).astype("float32")

    def total(x):
        return nn.cross_entropy(x, target) + (nn.softmax(x) * ct).sum() + nn.logsumexp(x)

    hessian = functx.jit(lambda x: [functx.jacfwd(functx.grad(total))(x), functx.hessian(total)(x)])
    forward, other = hessian(x)
    close(forward, other, 1e-6)
    assert np.isfinite(forward).all()
    reverse = functx.jit(functx.jacrev(functx.grad(total)))(x)
    close(forward, reverse, 1e-6)


def extremes(shape):
    """Arrays of one number, and some with numbers far apart."""
    apart = np.resize([0.0, 1000.0, -1000.0, 1.0, 0.5], shape)
    return [*[np.full(shape, v) for v in (-1000.0, 0.0, 1000.0)], apart]


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "logsumexp"])
@pytest.mark.parametrize("shape", [(2, 3), (1, 2, 2), (1, 2, 1, 2), (1, 1), (0, 2)], ids=str)
def test_softmax_at_extremes_in_either_mode(name, shape):
    f = getattr(nn, name)
    for x in extremes(shape):
        for axis in (-1, 1, 0) if x.ndim < 3 else (1,):
            agree(lambda x, axis=axis: f(x, axis), x)
    if shape == (2, 3):
        masked = np.array([[0.0, -INF, 1000.0], [-INF, 2.0, 1.0]])
        agree(
            lambda x: fnp.where(np.isinf(masked), 0.0, f(x)) if name != "logsumexp" else f(x),
            masked,
        )


CLASSES = [
    (shape, weight, ignored, reduction)
    for shape in ((2, 2), (1, 2, 2), (1, 2, 1, 2), (2, 2, 1, 1, 1), (2,))
    for weight in (None, WEIGHT)
    for ignored in (-100, 1)
    for reduction in ("none", "mean", "sum")
]


@pytest.mark.parametrize("loss", ["nll_loss", "cross_entropy"])
@pytest.mark.parametrize("shape", sorted({c[0] for c in CLASSES}), ids=str)
def test_losses_of_classes_at_extremes_in_either_mode(loss, shape):
    f = getattr(nn, loss)
    rows = shape[:1] + shape[2:] if len(shape) > 1 else ()
    target = np.resize([0, 1, 1], rows)
    for _, weight, ignored, reduction in [c for c in CLASSES if c[0] == shape]:
        for x in extremes(shape)[1 if loss == "nll_loss" else 0 :: 2]:
            agree(lambda x, w=weight, i=ignored, r=reduction: f(x, target, w, i, r), x)
    if loss == "cross_entropy":
        soft = np.resize([0.3, 0.7, 0.0, 1.0], shape)
        for x in extremes(shape):
            agree(lambda x: f(x, target, label_smoothing=0.1), x)
            agree(lambda x: f(x, soft, WEIGHT), x)


POINTWISE = {
    "mse_loss": {},
    "l1_loss": {},
    "huber_loss": {"delta": 0.5},
    "smooth_l1_loss": {"beta": 0.5},
    "kl_div": {},
    "binary_cross_entropy": {"weight": np.array([1000.0, 0.0, 1.0])},
    "binary_cross_entropy_with_logits": {"pos_weight": np.array([1000.0, 0.0, 1.0])},
}


@pytest.mark.parametrize("name", POINTWISE)
def test_losses_of_two_arrays_at_extremes_in_either_mode(name):
    f, kwargs = getattr(nn, name), POINTWISE[name]
    target = np.array([[0.0, 1.0, 0.5]])
    points = extremes((1, 3))
    if name == "binary_cross_entropy":
        points = [np.full((1, 3), v) for v in (0.0, 1.0, 1e-6, 0.5)]
    for x, reduction in itertools.product(points, ("none", "mean")):
        agree(lambda x, r=reduction: f(x, target, reduction=r, **kwargs), x)
    if name != "binary_cross_entropy":
        agree(lambda y: f(points[1], y, **kwargs), np.array([[0.25, 0.5, 0.75]]))
    agree(lambda x: f(x, x * 0.0 + 1.0).sum(), np.ones((1, 1)) * 0.5)
    agree(lambda x: f(x, x[:, :0], reduction="sum"), np.ones((2, 0)))


# Nests of transforms, against the same nests of the plain formulas

VERBS = {
    "jvp": lambda f: lambda x: functx.jvp(f, (x,), (fnp.cos(x + 1.0),))[1],
    "vjp": lambda f: lambda x: pulled_by_cosines(f, x),
    "vmap": lambda f: lambda x: functx.vmap(f)(fnp.stack([x, x * x + 0.1])).sum(0),
}


def pulled_by_cosines(f, x):
    out, pullback = functx.vjp(f, x)
    return pullback(fnp.cos(out) + 0.5)[0]


POINT = np.array([[0.3, 0.6, 0.2], [0.5, 0.4, 0.7]])
ROWS = np.array([0, 1])
TARGET = np.array([2, 0])
SOFT = np.array([[0.2, 0.3, 0.5], [0.6, 0.1, 0.3]])
CLASS_WEIGHT = np.array([0.5, 2.0, 1.0])


def plain_logs(x):
    return x - fnp.log(fnp.exp(x).sum(1, keepdims=True))


def plain_cross_entropy(x):
    weights = CLASS_WEIGHT[TARGET]
    return -(plain_logs(x)[ROWS, TARGET] * weights).sum() / weights.sum()


def plain_smoothed(x):
    logs = plain_logs(x)
    return -(0.8 * logs[ROWS, TARGET] + 0.2 * logs.mean(1))


NESTED = {
    "softmax": (nn.softmax, lambda x: fnp.exp(plain_logs(x))),
    "log_softmax": (nn.log_softmax, plain_logs),
    "nll_loss": (
        lambda x: nn.nll_loss(x * x, np.array([2, -100])),
        lambda x: -(x * x)[0, 2],
    ),
    "cross_entropy": (lambda x: nn.cross_entropy(x, TARGET, CLASS_WEIGHT), plain_cross_entropy),
    "smoothed": (
        lambda x: nn.cross_entropy(x, TARGET, reduction="none", label_smoothing=0.2),
        plain_smoothed,
    ),
    "soft": (
        lambda x: nn.cross_entropy(x, SOFT + 0.1 * x, reduction="sum"),
        lambda x: -((SOFT + 0.1 * x) * plain_logs(x)).sum(),
    ),
    "weights": (
        lambda x: nn.cross_entropy(x, TARGET, x[0] + 1.0, label_smoothing=0.2),
        lambda x: (
            -(
                0.8 * (plain_logs(x)[ROWS, TARGET] * (x[0] + 1.0)[TARGET]).sum()
                + 0.2 / 3 * (plain_logs(x) * (x[0] + 1.0)).sum()
            )
            / (x[0] + 1.0)[TARGET].sum()
        ),
    ),
    "mse_loss": (lambda x: nn.mse_loss(x, x * x), lambda x: ((x - x * x) ** 2).mean()),
    "huber_loss": (
        lambda x: nn.huber_loss(x * 3, SOFT, "sum", delta=0.9),
        lambda x: fnp.where(
            abs(x * 3 - SOFT) < 0.9, (x * 3 - SOFT) ** 2 / 2, 0.9 * (abs(x * 3 - SOFT) - 0.45)
        ).sum(),
    ),
    "binary_cross_entropy": (
        lambda x: nn.binary_cross_entropy(x, SOFT * x, reduction="none"),
        lambda x: -(SOFT * x * fnp.log(x) + (1 - SOFT * x) * fnp.log1p(-x)),
    ),
    "with_logits": (
        lambda x: nn.binary_cross_entropy_with_logits(x, SOFT, x, pos_weight=CLASS_WEIGHT),
        lambda x: (
            x * (CLASS_WEIGHT * SOFT * fnp.log1p(fnp.exp(-x)) + (1 - SOFT) * fnp.log1p(fnp.exp(x)))
        ).mean(),
    ),
    "kl_div": (
        lambda x: nn.kl_div(fnp.log(x), x * SOFT, "batchmean"),
        lambda x: (x * SOFT * fnp.log(SOFT)).sum() / 2,
    ),
}


@pytest.mark.parametrize("name", NESTED)
def test_nests_of_three_transforms_agree_with_those_of_the_formula(name):
    for depth in (1, 2, 3):
        for verbs in itertools.product(VERBS, repeat=depth):
            f, plain = NESTED[name]
            for verb in reversed(verbs):
                f, plain = VERBS[verb](f), VERBS[verb](plain)
            np.testing.assert_allclose(
                evaluate(f, POINT)[0], evaluate(plain, POINT)[0], 1e-9, 1e-9, err_msg=str(verbs)
            )


@pytest.mark.parametrize(
    "name", [n for n, c in Primitive.registry.items() if "loss" in n or "cross_entropy" in n]
)
def test_a_loss_has_the_derivatives_of_its_decomposition(name):
    cls = Primitive.registry[name]
    one = cls.samples[0]
    primitive = cls(**one.params)
    args = draw_operands(one, 0, np.float64)
    varying = tuple([i for i, x in enumerate(args) if x.dtype.kind == "f"])

    def derivatives(f):
        def total(*xs):
            return (fnp.sin(f(*xs)) * 2.0).sum()

        def found(*xs):
            gradient = functx.grad(total, varying)
            tangents = [fnp.ones_like(x) if i in varying else None for i, x in enumerate(xs)]

            def pushed(*moving):
                rest = iter(moving)
                return gradient(*[next(rest) if i in varying else x for i, x in enumerate(xs)])

            moving = tuple([xs[i] for i in varying])
            ts = tuple([t for t in tangents if t is not None])
            return functx.jvp(pushed, moving, ts)

        return evaluate(found, *args)

    for one, other in zip(derivatives(primitive), derivatives(primitive.decompose), strict=True):
        close(one, other, 1e-10)


# The low-level rules, to the letter


def nll_by_numpy(ct, x, target, weight, reduction, ignored, total):
    """The cotangent of the scores, row by row."""
    axis = min(x.ndim - 1, 1)
    found = np.zeros_like(np.moveaxis(x, axis, -1))
    for place in np.ndindex(target.shape):
        c = target[place]
        if c != ignored:
            scale = ct[place] if reduction == "none" else ct / (total if reduction == "mean" else 1)
            found[(*place, c)] = -scale * (1.0 if weight is None else weight[c])
    return np.moveaxis(found, -1, axis)


@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 4, 1, 3)], ids=str)
def test_nll_loss_backward_is_the_cotangent_row_by_row(shape):
    rule = aten.nll_loss2d_backward if len(shape) == 4 else aten.nll_loss_backward
    rows = shape[:1] + shape[2:] if len(shape) > 1 else ()
    x, target = drawn(shape), np.resize([1, 3, 0], rows)
    for weight, ignored, (number, reduction) in itertools.product(
        (None, np.array([0.5, 1.0, 2.0, 3.0])), (-100, 3), enumerate(("none", "mean", "sum"))
    ):
        ct = drawn(rows, 1) if reduction == "none" else np.float64(1.7)
        total = np.float64(2.5)
        wanted = nll_by_numpy(ct, x, target, weight, reduction, ignored, total)
        for r in (reduction, number):
            found = evaluate(
                lambda ct, x, total, r=r, w=weight, i=ignored: rule(ct, x, target, w, r, i, total),
                ct,
                x,
                total,
            )
            close(found[0], wanted)


def test_nll_loss_backward_of_nothing_that_counts_is_0_to_any_order():
    x, target = drawn((2, 3)), np.array([7, 7])

    def f(ct, total):
        return aten.nll_loss_backward(ct, x, target, None, "mean", 7, total)

    assert not np.any(evaluate(f, np.float64(1.0), np.float64(0.0))[0])
    for jacobian in (functx.jacfwd, functx.jacrev):
        found = evaluate(jacobian(f, (0, 1)), np.float64(1.0), np.float64(0.0))
        assert not np.any(found[0]) and not np.any(found[1])


def test_half_cotangents_are_computed_with_in_single_precision():
    # Halves stop to count at 2048, so that a sum of ones in halves would be half of what it is.
    out, ct = np.full((1, 4096), -np.log(4096), "float16"), np.ones((1, 4096), "float16")
    assert abs(np.asarray(aten.log_softmax_backward(ct, out, 1), "float64")).max() < 4e-3
    wide = drawn((2, 3)).astype("float32")
    for rule in (aten.softmax_backward, aten.log_softmax_backward):
        narrow = rule(wide, nn.log_softmax(wide), -1, "float16")
        assert narrow.dtype == np.float16
        close(narrow.astype("float32"), rule(wide, nn.log_softmax(wide), 1), 2e-3)
    total = aten.nll_loss_backward(
        np.float16(1.0), ct, np.array([3]), None, "mean", -100, np.float32(70000.0)
    )
    assert total.dtype == np.float16 and total[0, 3] < 0


def test_low_level_rules_of_differences_take_the_cotangent_of_the_loss():
    x, y = drawn((2, 3)), drawn((2, 3), 1)
    for name, extra in (
        ("mse_loss", {}),
        ("l1_loss", {}),
        ("smooth_l1_loss", {"beta": 0.5}),
        ("huber_loss", {"delta": 0.5}),
    ):
        loss, rule = getattr(nn, name), getattr(aten, f"{name}_backward")
        for number, reduction in enumerate(("none", "mean", "sum")):
            ct = drawn((2, 3), 2) if reduction == "none" else np.array([1.5])
            found = evaluate(
                lambda ct, x, rule=rule, r=number, e=extra: rule(ct, x, y, r, *e.values()), ct, x
            )
            wanted = evaluate(
                lambda x, ct=ct, f=loss, r=reduction, e=extra: functx.vjp(
                    lambda x: f(x, y, r, **e), x
                )[1](ct if r == "none" else ct[0])[0],
                x,
            )
            close(found[0], wanted[0])
    p = np.array([0.2, 0.7])
    pulled = aten.binary_cross_entropy_backward(
        np.float64(1.0), p, p * 0.5, np.array([1.0, 3.0]), 2
    )
    close(pulled, np.array([1.0, 3.0]) * (0.5 * p) / (p * (1 - p)))


X, ONE = drawn((3, 4)), np.float64(1.0)
T = np.array([0, 1, 2])


def nll(ct=ONE, x=X, target=T, weight=None, reduction="mean", total=ONE):
    return lambda: aten.nll_loss_backward(ct, x, target, weight, reduction, -100, total)


def nll_images(x, target):
    return lambda: aten.nll_loss2d_backward(ONE, x, target, None, "mean", -100, ONE)


MISTAKES = {
    "rank of input": (
        nll(x=np.ones((1, 2, 3))),
        ShapeError,
        r"input must have 1 or 2 dimensions; got f64\[1,2,3\]",
    ),
    "rank of target": (
        nll(target=np.ones((1, 2), int)),
        ShapeError,
        r"target must have at most 1 dimension; got i64\[1,2\]",
    ),
    "batches": (
        nll(target=T[:2]),
        ShapeError,
        r"target must have the shape of input .*; got i64\[2\] for f64\[3,4\]",
    ),
    "total": (
        nll(total=np.ones(2)),
        ShapeError,
        r"total_weight must be one number; got f64\[2\]",
    ),
    "weight": (
        nll(weight=np.ones(3)),
        ShapeError,
        r"one number for each of the 4 classes; got f64\[3\]",
    ),
    "cotangent of a mean": (
        nll(ct=np.ones(3)),
        ShapeError,
        r"must be one number with the reduction 'mean'; got f64\[3\]",
    ),
    "cotangent of rows": (
        nll(ct=np.ones(4), reduction="none"),
        ShapeError,
        r"the shape of target, \(3,\), with the reduction 'none'; got f64\[4\]",
    ),
    "class": (
        nll(target=np.array([0, 4, 1])),
        IndexingError,
        r"nll_loss_backward: classes must be in \[0, 4\) .* got 4 at \(1,\)",
    ),
    "class of floats": (nll(target=np.ones(3)), DTypeError, r"integers; got f64\[3\]"),
    "reduction": (nll(reduction=3), ArgumentError, "or 0, 1 or 2; got 3"),
    "rank of images": (
        nll_images(X, T),
        ShapeError,
        r"input must have 4 dimensions; got f64\[3,4\]",
    ),
    "rank of classes of images": (
        nll_images(np.ones((1, 2, 3, 3)), T),
        ShapeError,
        r"target must have 3 dimensions; got i64\[3\]",
    ),
    "images": (
        nll_images(np.ones((1, 2, 3, 3)), np.ones((1, 3, 2), int)),
        ShapeError,
        r"without axis 1, \(1, 3, 3\); got i64\[1,3,2\] for f64\[1,2,3,3\]",
    ),
    "axis": (
        lambda: aten.softmax_backward(X, X, 2),
        functx.core.errors.AxisError,
        r"axis must be in \[-2, 2\)",
    ),
    "outcome": (
        lambda: aten.log_softmax_backward(X, X[:2]),
        ShapeError,
        r"shape of the output; got f64\[3,4\] for f64\[2,4\]",
    ),
    "rows of a table": (
        lambda: aten.embedding_backward(X, np.array([0, 1, 9]), 5),
        IndexingError,
        r"indices must be in \[0, 5\); got 9",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_a_low_level_rule_is_named(mistake):
    call, error, message = MISTAKES[mistake]
    with pytest.raises(error, match=message):
        call()


def test_the_forward_pass_of_logsumexp_saves_nothing_of_the_size_of_its_operand():
    program = functx.make_ir(lambda x: nn.logsumexp(x, axis=1))(np.ones((2, 3)))
    forward, _ = cached_rewrite(SplitVJP((True,)), program)
    saved = [x for x in forward.outputs[1:] if x not in forward.inputs]
    assert saved and {x.aval.shape for x in saved} == {(2,)}
