"""Losses: values against plain formulas, one equation each, and mistakes by name."""

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

import functx
from functx import nn
from functx.core.errors import (
    ArgumentError,
    DTypeError,
    IndexingError,
    ShapeError,
    ValueRangeError,
)
from functx.core.rewriting import cached_rewrite
from functx.testing import reference
from functx.transforms.reverse_mode import SplitVJP

INF = np.inf
RANDOM = np.random.RandomState(0)
X, Y = RANDOM.normal(size=(2, 3, 4)) * 2
P, Q = scipy.special.expit(X), scipy.special.expit(Y)
W = RANDOM.uniform(0.5, 2.0, 4)


def huber(d, delta):
    return np.where(abs(d) < delta, d * d / 2, delta * (abs(d) - delta / 2))


def binary(p, t, pos=1.0):
    return -(pos * t * np.log(p) + (1 - t) * np.log(1 - p))


# By name: operands, keyword arguments, and the terms.
POINTWISE = {
    "mse_loss": ((X, Y), {}, (X - Y) ** 2),
    "l1_loss": ((X, Y), {}, abs(X - Y)),
    "huber_loss": ((X, Y), {"delta": 0.7}, huber(X - Y, 0.7)),
    "smooth_l1_loss": ((X, Y), {"beta": 0.7}, huber(X - Y, 0.7) / 0.7),
    "kl_div": ((X, Q), {}, Q * (np.log(Q) - X)),
    "binary_cross_entropy": ((P, Q), {"weight": W}, W * binary(P, Q)),
    "binary_cross_entropy_with_logits": (
        (X, Q),
        {"weight": W, "pos_weight": 1 + W},
        W * binary(P, Q, 1 + W),
    ),
}


def program_of(f, *args):
    """The names of the equations of `f`."""
    return [eqn.primitive.name for eqn in functx.make_ir(f)(*args)]


def evaluate(f, *args):
    """`f(*args)`, each equation by its NumPy meaning."""
    program = functx.make_ir(f)(*args)
    return reference.interpret_in_numpy(program, *args)[0]


def close(x, y, tolerance=1e-12):
    np.testing.assert_allclose(np.asarray(x, "float64"), y, tolerance, tolerance)


@pytest.mark.parametrize("name", POINTWISE)
def test_a_loss_of_two_arrays_is_its_formula_reduced(x64, name):
    loss = getattr(nn, name)
    args, kwargs, terms = POINTWISE[name]
    out = loss(*args, reduction="none", **kwargs)
    assert out.shape == X.shape
    close(out, terms)
    close(loss(*args, **kwargs), terms.mean())
    close(loss(*args, reduction="sum", **kwargs), terms.sum())
    assert np.isnan(loss(X[:0], Y[:0])) and loss(X[:0], Y[:0], reduction="sum") == 0


@pytest.mark.parametrize("name", POINTWISE)
def test_a_loss_of_two_arrays_is_one_equation_and_so_is_its_gradient(name):
    loss = getattr(nn, name)
    args, kwargs, _ = POINTWISE[name]
    kwargs = {k: v for k, v in kwargs.items() if "weight" not in k}
    x, y = [z.astype("float32") for z in args]
    assert program_of(lambda x, y: loss(x, y, **kwargs), x, y) == [name]
    gradient = functx.value_and_grad(lambda x, y: loss(x, y, **kwargs))
    assert program_of(gradient, x, y) == [name, f"{name}_backward"]
    # One a member of a batch is one equation too, and no term is lost to another member.
    each = functx.vmap(lambda x, y: loss(x, y, **kwargs))
    assert program_of(each, x, y) == [name]


def test_divergences_of_logarithms_and_of_batches(x64):
    logs = np.log(Q)
    close(nn.kl_div(X, logs, "sum", log_target=True), (Q * (logs - X)).sum())
    close(nn.kl_div(X, Q, "batchmean"), (Q * (logs - X)).sum() / 3)
    impossible = np.array([0.0, 1.0])
    assert nn.kl_div(np.array([-INF, 0.0]), impossible, "sum") == 0.0
    assert functx.grad(nn.kl_div)(np.array([-INF, 0.0]), impossible).tolist() == [0.0, -0.5]


def test_the_target_of_a_difference_may_be_a_number():
    x = X.astype("float32")
    close(nn.mse_loss(x, 0.5), ((x - 0.5) ** 2).mean(), 1e-6)
    close(nn.huber_loss(x.tolist(), 0, "sum"), huber(x, 1.0).sum(), 1e-6)


def test_logits_far_out_lose_no_digits():
    x = np.array([30.0, -30.0, 1000.0, -1000.0, INF, -INF], "float32")
    right = np.array([1.0, 0.0, 1.0, 0.0, 1.0, 0.0], "float32")
    small = np.exp(-30.0)
    loss = nn.binary_cross_entropy_with_logits
    close(loss(x, right, reduction="none"), [small, small, 0, 0, 0, 0], 1e-6)
    slopes = functx.grad(lambda x: loss(x, right, reduction="sum"))(x)
    np.testing.assert_allclose(slopes, [-small, small, 0, 0, 0, 0], 1e-5)
    assert loss(x[:4], 1 - right[:4], reduction="none").tolist() == [30.0, 30.0, 1000.0, 1000.0]


def test_probabilities_of_0_and_1_have_finite_losses_and_slopes():
    p, t = np.array([0.0, 1.0, 0.0, 1.0], "float32"), np.array([0.0, 1.0, 1.0, 0.0], "float32")
    loss = nn.binary_cross_entropy
    assert loss(p, t, reduction="none").tolist() == [0.0, 0.0, 100.0, 100.0]
    slopes = functx.grad(lambda p: loss(p, t, reduction="sum"))(p)
    np.testing.assert_allclose(slopes, [1.0, -1.0, -1e12, 1e12])


# Losses of classes

SHAPES = [(4,), (3, 4), (3, 4, 2), (2, 4, 1, 2, 2)]


def scores(shape, seed=0, ignored=-100):
    """Scores, and classes of which some are ignored."""
    random = np.random.RandomState(seed)
    rows = shape[:1] + shape[2:] if len(shape) > 1 else ()
    target = random.randint(0, 4, rows)
    if target.size > 2:
        target.reshape(-1)[1] = ignored
    return random.normal(size=shape) * 2, target


def nll_terms(logs, target, weight, ignored):
    """What each row adds, and what it weighs."""
    logs = np.moveaxis(logs, min(logs.ndim - 1, 1), -1)
    kept = target != ignored
    safe = np.where(kept, target, 0)
    weights = kept * (np.ones(4) if weight is None else weight)[safe]
    return -np.take_along_axis(logs, safe[..., None], -1)[..., 0] * weights, weights


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_losses_of_classes_are_their_formula_reduced(x64, shape):
    for weight, ignored in ((None, -100), (W, 2)):
        x, target = scores(shape, ignored=ignored)
        logs = scipy.special.log_softmax(x, min(x.ndim - 1, 1))
        terms, weights = nll_terms(logs, target, weight, ignored)
        wanted = {"none": terms, "sum": terms.sum(), "mean": terms.sum() / weights.sum()}

        def both(x, logs, weight=weight, ignored=ignored, target=target):
            return [
                f(y, target, weight, ignored, reduction)
                for reduction in ("none", "sum", "mean")
                for f, y in ((nn.cross_entropy, x), (nn.nll_loss, logs))
            ]

        found = functx.jit(both)(x, logs)
        for i, reduction in enumerate(("none", "sum", "mean")):
            close(found[2 * i], wanted[reduction])
            close(found[2 * i + 1], wanted[reduction])


@pytest.mark.parametrize("shape", [(4,), (3, 4), (3, 4, 2)], ids=str)
def test_targets_may_be_probabilities_and_smoothed(x64, shape):
    axis = min(len(shape) - 1, 1)
    x, target = scores(shape)
    logs = np.moveaxis(scipy.special.log_softmax(x, axis), axis, -1)
    soft = scipy.special.softmax(scores(shape, 1)[0], axis)
    mixed = W * (0.9 * np.moveaxis(soft, axis, -1) + 0.1 / 4)
    close(nn.cross_entropy(x, soft, W, label_smoothing=0.1), -(mixed * logs).sum(-1).mean())
    # The mean of a smoothed class is over the weights of the classes.
    kept = (target != -100)[..., None]
    right = (np.where(target == -100, 0, target)[..., None] == np.arange(4)) * kept
    shares = W * (0.9 * right + 0.1 / 4 * kept)
    wanted = -(shares * logs).sum() / (W * right).sum()
    close(nn.cross_entropy(x, target, W, label_smoothing=0.1), wanted)


def test_losses_of_classes_are_one_equation_and_so_are_their_gradients():
    x, target = scores((3, 4))
    x = x.astype("float32")
    soft = scipy.special.softmax(x, 1)
    for loss, t, name in (
        (nn.cross_entropy, target, "cross_entropy"),
        (nn.nll_loss, target, "nll_loss"),
        (nn.cross_entropy, soft, "soft_target_cross_entropy"),
    ):
        both = functx.value_and_grad(lambda x, loss=loss, t=t: loss(x, t))
        assert program_of(both, x) == [name, f"{name}_backward"]
        each = functx.grad(lambda x, loss=loss, t=t: functx.vmap(loss)(x, t).sum())
        assert program_of(each, x)[-1] == f"{name}_backward"
        assert "scatter_add" not in program_of(each, x)


def test_without_rows_that_count_the_mean_is_nan_and_its_derivatives_are_0():
    x, w = X.astype("float32"), W.astype("float32")
    target = np.full(3, -100)
    for loss in (nn.nll_loss, nn.cross_entropy):

        def mean(x, w, loss=loss):
            return loss(x, target, w)

        def everything(x, w, mean=mean):
            t = functx.numpy.ones_like(x)
            return (
                mean(x, w),
                functx.grad(mean, (0, 1))(x, w),
                functx.jvp(functx.grad(mean, (0, 1)), (x, w), (t, w))[1],
                functx.grad(lambda x, w: functx.grad(mean)(x, w).sum(), (0, 1))(x, w),
            )

        value, *derivatives = functx.jit(everything)(x, w)
        assert np.isnan(value)
        assert not np.any([np.any(d) for d in functx.tree.leaves(derivatives)])
        assert loss(x, target, w, reduction="sum") == 0
        assert not np.any(loss(x, target, w, reduction="none"))


def test_an_ignored_row_adds_nothing_even_of_infinities():
    x = np.array([[1.0, 2.0], [-INF, -INF], [-INF, 0.0]], "float32")
    target = np.array([0, -100, 1])
    value, slopes = functx.value_and_grad(nn.cross_entropy)(x, target)
    close(value, scipy.special.logsumexp([1, 2]) / 2 - 0.5, 1e-6)
    assert not np.any(slopes[1:]) and np.isfinite(slopes).all()
    soft = np.array([[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]], "float32")
    assert np.isfinite(nn.cross_entropy(x[[0, 2]], soft[[0, 2]]))
    assert np.isfinite(functx.grad(nn.cross_entropy, (0, 1))(x[[0, 2]], soft[[0, 2]])).all()


def test_classes_may_have_any_integer_dtype():
    x = RANDOM.normal(size=(2, 300)).astype("float32")
    targets = [np.array([200, 3]).astype(t) for t in ("int32", "uint8", "int16", "uint32")]
    both = functx.value_and_grad(nn.cross_entropy)
    (value, slope), *others = functx.jit(lambda x, *ts: [both(x, t) for t in ts])(x, *targets)
    for v, s in others:
        assert v == value
        close(s, slope)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_are_computed_with_in_single_precision(x64, dtype):
    x = (RANDOM.normal(size=(64, 40)) * 4).astype(dtype)
    target, even = RANDOM.randint(0, 40, 64), RANDOM.randint(0, 2, x.shape).astype(dtype)
    weight = RANDOM.uniform(0.5, 2.0, 40).astype(dtype)
    epsilon = float(jnp.finfo(dtype).eps)

    def losses(x, weight, target):
        y = x * 0.5
        return [
            nn.cross_entropy(x, target, weight),
            nn.mse_loss(x, y),
            nn.binary_cross_entropy_with_logits(x, even),
            nn.logsumexp(x),
            (nn.softmax(x) * y).sum(),
        ]

    def everything(x, weight):
        count = len(losses(x, weight, target))
        return losses(x, weight, target), [
            functx.grad(lambda x, i=i: losses(x, weight, target)[i])(x) for i in range(count)
        ]

    program = functx.jit(everything)
    found, exact = program(x, weight), program(x.astype("float64"), weight.astype("float64"))
    for ours, true in zip(functx.tree.leaves(found), functx.tree.leaves(exact), strict=True):
        assert ours.dtype == dtype
        error = np.abs(np.asarray(ours, "float64") - true).max()
        assert error <= 4 * epsilon * np.abs(true).max()


def residuals(f, *args):
    """The types of what the backward program of `f` needs, but for what is an operand of `f`."""
    program = functx.make_ir(f)(*args)
    forward, _ = cached_rewrite(SplitVJP((True,) + (False,) * (len(program.inputs) - 1)), program)
    kept = set(forward.outputs[len(program.outputs) :])
    return {v for v in kept if v in forward.inputs}, {v for v in kept if v not in forward.inputs}


def test_derivatives_save_no_more_than_pytorch():
    x = X.astype("float32")
    target = np.array([0, 1, 2])
    given, made = residuals(nn.softmax, x)
    assert (len(given), [v.aval.shape for v in made]) == (0, [x.shape])
    given, made = residuals(nn.log_softmax, x)
    assert (len(given), [v.aval.shape for v in made]) == (0, [x.shape])
    # PyTorch keeps log_softmax, the target and the total weight; here what is given is enough.
    given, made = residuals(lambda x: nn.cross_entropy(x, target), x)
    assert len(given) == 2 and not made
    given, made = residuals(lambda x: nn.nll_loss(x, target), x)
    assert len(given) == 1 and not made
    key = functx.random.key(0)
    given, made = residuals(lambda x: nn.dropout(x, 0.5, key), x)
    assert len(given) == 1 and not made


def test_elements_of_a_batch_have_separate_losses(x64):
    x, target = scores((3, 4, 2))
    xs, targets = np.stack([x, x + 1, x * 2]), np.stack([target, (target + 1) % 4, target])
    weights = np.stack([W, W * W, W + 1])
    for smoothing in (0.0, 0.1):

        def loss(x, t, w, smoothing=smoothing):
            return nn.cross_entropy(x, t, w, label_smoothing=smoothing)

        for in_axes in ((0, 0, 0), (0, None, None), (None, 0, None), (None, None, 0)):
            args = [
                full if axis == 0 else full[0]
                for full, axis in zip((xs, targets, weights), in_axes, strict=True)
            ]
            found = evaluate(functx.vmap(loss, in_axes), *args)
            looped = [
                loss(*[a[i] if axis == 0 else a for a, axis in zip(args, in_axes, strict=True)])
                for i in range(3)
            ]
            close(found, looped)


# Mistakes

CLASSES_OF_JAX = jnp.array([1, 7, 2])

MISTAKES = {
    "other shape": (
        lambda: nn.mse_loss(X, X[:, :1]),
        ShapeError,
        r"must have one shape; got f32\[3,4\] and f32\[3,1\]",
    ),
    "complex": (lambda: nn.l1_loss(X + 1j, Y), DTypeError, r"must be float; got c64\[3,4\]"),
    "reduction": (
        lambda: nn.huber_loss(X, Y, "average"),
        ValueRangeError,
        "reduction must be 'none', 'mean' or 'sum'; got 'average'",
    ),
    "batchmean": (
        lambda: nn.kl_div(X, Y, "total"),
        ValueRangeError,
        "reduction must be 'none', 'mean', 'sum' or 'batchmean'; got 'total'",
    ),
    "delta": (lambda: nn.huber_loss(X, Y, delta=-1), ValueRangeError, "must be positive; got -1.0"),
    "beta": (lambda: nn.smooth_l1_loss(X, Y, beta=-1), ValueRangeError, "be negative; got -1.0"),
    "weight": (
        lambda: nn.binary_cross_entropy(P, Q, W[:3]),
        ShapeError,
        r"weight must broadcast to the input; got f32\[3\] for f32\[3,4\]",
    ),
    "pos_weight": (
        lambda: nn.binary_cross_entropy_with_logits(X, Q, pos_weight=W[:3]),
        ShapeError,
        r"pos_weight must broadcast to the input; got f32\[3\] for f32\[3,4\]",
    ),
    "class out of range": (
        lambda: nn.nll_loss(X, np.array([1, 2, 4])),
        IndexingError,
        r"classes must be in \[0, 4\) or ignore_index, -100; got 4 at \(2,\) of i32\[3\]",
    ),
    "class in a derivative": (
        lambda: functx.grad(nn.cross_entropy)(X, np.array([1, -1, 2])),
        IndexingError,
        r"cross_entropy: classes must be in \[0, 4\) .* got -1 at \(1,\)",
    ),
    "classes of JAX under jit": (
        lambda: functx.jit(lambda x: nn.cross_entropy(x, CLASSES_OF_JAX))(X),
        IndexingError,
        r"got 7 at \(1,\)",
    ),
    "float classes": (
        lambda: nn.nll_loss(X, np.ones(3)),
        DTypeError,
        r"numbers of classes, integers; got f32\[3\]",
    ),
    "rows": (
        lambda: nn.cross_entropy(X, np.array([1, 2])),
        ShapeError,
        r"input without axis 1, that of the classes; got i32\[2\] for f32\[3,4\]",
    ),
    "probabilities": (
        lambda: nn.cross_entropy(X, P[:2]),
        ShapeError,
        r"must give each class a probability; got f32\[2,4\] for f32\[3,4\]",
    ),
    "weights": (
        lambda: nn.nll_loss(X, np.array([1, 2, 3]), W[:3]),
        ShapeError,
        r"one for each of the 4 classes; got f32\[3\]",
    ),
    "a number": (
        lambda: nn.cross_entropy(1.0, 0),
        ShapeError,
        r"the input must have an axis of classes; got",
    ),
    "no classes": (
        lambda: nn.cross_entropy(np.ones((3, 0)), np.array([0, 0, 0])),
        ShapeError,
        r"there must be at least one class; got f32\[3,0\]",
    ),
    "ignored probabilities": (
        lambda: nn.cross_entropy(X, P, ignore_index=1),
        ArgumentError,
        "ignore_index must be left out beside probabilities of classes; got 1",
    ),
    "smoothing": (
        lambda: nn.cross_entropy(X, np.array([1, 2, 3]), label_smoothing=2),
        ValueRangeError,
        "label_smoothing must be between 0 and 1; got 2.0",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named(mistake):
    call, error, message = MISTAKES[mistake]
    with pytest.raises(error, match=message) as info:
        call()
    assert "test_losses.py" in str(info.value)


def test_a_class_that_is_not_there_gives_nan_where_it_is_traced():
    value = functx.jit(nn.cross_entropy)(X, np.array([1, 2, 4]))
    assert np.isnan(value)


# PyTorch warns that its own mean of the divergence is no mean over examples.
@pytest.mark.filterwarnings("ignore:reduction.*batchmean:UserWarning")
def test_losses_are_those_of_pytorch(x64):
    torch = pytest.importorskip("torch")
    functional = torch.nn.functional
    for name, (args, kwargs, _) in POINTWISE.items():
        for reduction in ("none", "sum", "mean"):
            given = {k: torch.tensor(v) if k[-6:] == "weight" else v for k, v in kwargs.items()}
            theirs = getattr(functional, name)(
                *map(torch.tensor, args), reduction=reduction, **given
            )
            close(getattr(nn, name)(*args, reduction=reduction, **kwargs), theirs.numpy())
    for shape in SHAPES:
        x, target = scores(shape)
        for smoothing in (0.0, 0.1):
            theirs = torch.tensor(x, requires_grad=True)
            loss = functional.cross_entropy(
                theirs, torch.tensor(target), torch.tensor(W), label_smoothing=smoothing
            )
            loss.backward()
            value, slopes = functx.value_and_grad(nn.cross_entropy)(
                x, target, W, label_smoothing=smoothing
            )
            close(value, loss.detach().numpy())
            close(slopes, theirs.grad.numpy())
