"""functx.nn's normalizations against their definitions, under every composition of transforms."""

from itertools import permutations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import functx
from functx import nn
from functx.core.errors import (
    ArgumentError,
    DTypeError,
    FunctxError,
    ShapeError,
    ValueRangeError,
)
from functx.core.rewriting import cached_rewrite
from functx.transforms.decompose import DecomposeMissingRules

EPS = 1e-3


def rows(*shape, seed=0, scale=1.0):
    return np.random.RandomState(seed).normal(size=shape) * scale


def standard(x, axes, eps=EPS):
    return (x - x.mean(axes, keepdims=True)) / (x.var(axes, keepdims=True) + eps) ** 0.5


def channels(w, x):
    return w.reshape(-1, *[1] * (x.ndim - 2))


def layer(x, w, b):
    return standard(x, (x.ndim - 1,)) * w + b


def rms(x, w, b):
    return x / ((x**2).mean(-1, keepdims=True) + EPS) ** 0.5 * w


def group(x, w, b):
    parts = x.reshape(x.shape[0], 2, -1)
    return standard(parts, 2).reshape(x.shape) * channels(w, x) + channels(b, x)


def instance(x, w, b):
    return standard(x, tuple(range(2, x.ndim))) * channels(w, x) + channels(b, x)


def batch(x, w, b):
    out = standard(x, (0, *range(2, x.ndim))) * channels(w, x) + channels(b, x)
    axes = (0, *range(2, x.ndim))
    n = x.size // x.shape[1]
    mean, var = x.mean(axes), x.var(axes) * n / (n - 1)
    return out, 0.9 * b + 0.1 * mean, 0.9 * w + 0.1 * var


def evaluation(x, w, b):
    # The running statistics vary here too.
    scale = channels(w / (w * w + 1 + EPS) ** 0.5, x)
    return (x - channels(b, x)) * scale + channels(b, x)


# By name: ours, the definition, and the shapes of x and of the weight.
NORMS = {
    "layer": (lambda x, w, b: nn.layer_norm(x, w.shape, w, b, EPS), layer, (2, 3), (3,)),
    "rms": (lambda x, w, b: nn.rms_norm(x, w.shape, w, EPS), rms, (2, 3), (3,)),
    "group": (lambda x, w, b: nn.group_norm(x, 2, w, b, EPS), group, (2, 4, 2), (4,)),
    "instance": (
        lambda x, w, b: nn.instance_norm(x, weight=w, bias=b, eps=EPS)[0],
        instance,
        (2, 2, 3),
        (2,),
    ),
    "batch": (
        lambda x, w, b: nn.batch_norm(x, b, w, w, b, training=True, eps=EPS),
        batch,
        (3, 2),
        (2,),
    ),
    "evaluation": (
        lambda x, w, b: nn.batch_norm(x, b, w * w + 1.0, w, b, eps=EPS)[0],
        evaluation,
        (3, 2),
        (2,),
    ),
}


def operands(name, dtype="float64", scale=1.0):
    shape, kept = NORMS[name][2:]
    x, w, b = rows(*shape, scale=scale), rows(*kept, seed=1), rows(*kept, seed=2)
    return tuple([a.astype(dtype) for a in (x, w, b)])


def close(found, wanted, tolerance=1e-10):
    found, wanted = functx.tree.leaves(found), functx.tree.leaves(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert one.shape == other.shape and one.dtype == other.dtype
        np.testing.assert_allclose(one, other, tolerance, tolerance)


# Compositions.


def pushed(m, f):
    def push(*args):
        tangents = tuple([m.numpy.cos(a) for a in args])
        return m.jvp(f, args, tangents)[1]

    return push


def pulled(m, f):
    def pull(*args):
        out, pull_back = m.vjp(f, *args)
        return pull_back(m_map(lambda o: m.numpy.sin(o) + 0.5, out))

    return pull


def mapped(m, f):
    def map_over(x, w, b):
        # What lies in the batch differs: x and the weight, or x and the bias.
        lanes = m.numpy.stack([x, x * 2.0 + 0.1])
        weights = m.numpy.stack([w, w - 0.3])
        return m.vmap(f, (0, 0, None))(lanes, weights, b)

    return map_over


def mapped_inside(m, f):
    return lambda x, w, b: m.vmap(f, (2, None, None))(m.numpy.stack([x, x * x], 2), w, b)


def m_map(f, out):
    return tuple([f(o) for o in out]) if isinstance(out, tuple) else f(out)


CYCLES = [(pushed, pulled, mapped), (pulled, mapped, pushed), (mapped, pushed, pulled)]
SHORT = [(mapped_inside,), (pulled, mapped_inside), (pushed, mapped_inside)]
ORDERS = list(permutations(CYCLES[0]))
# The most for what all others resemble.
CHOSEN = {
    "layer": [*SHORT, *ORDERS, (pushed,) * 3, (pulled,) * 3, (pushed, pulled, pushed)],
    "batch": [*SHORT, *ORDERS],
}


def composed(m, f, steps):
    for step in steps:
        f = step(m, f)
    return f


@pytest.mark.parametrize("name", [name for name in NORMS if name != "instance"])
def test_compositions_of_three_transforms(name, x64):
    ours, theirs, *_ = NORMS[name]
    every = CHOSEN.get(name, CYCLES)
    args = operands(name)
    found = functx.jit(lambda *args: [composed(functx, ours, steps)(*args) for steps in every])
    wanted = jax.jit(lambda *args: [composed(jax, theirs, steps)(*args) for steps in every])
    for steps, one, other in zip(every, found(*args), wanted(*args), strict=True):
        try:
            close(one, other, 1e-8)
        except AssertionError as error:
            raise AssertionError([step.__name__ for step in steps]) from error


@pytest.mark.parametrize("name", NORMS)
def test_a_norm_and_its_backward_agree_with_their_decompositions(name, x64):
    ours, theirs, *_ = NORMS[name]
    args = operands(name)
    close(ours(*args), theirs(*args))

    def backward(*args):
        return functx.vjp(lambda *args: functx.tree.leaves(ours(*args))[0], *args)[1](args[0])

    for f in (ours, backward):
        program = functx.make_ir(f)(*args)
        opened = cached_rewrite(DecomposeMissingRules(("lower",)), program)
        kept = {eqn.primitive.name for eqn in opened}
        assert not any("norm" in primitive for primitive in kept)
        assert any("norm" in eqn.primitive.name for each in program.walk() for eqn in each)
        whole = functx.jit(f)(*args)
        close(program(*args), functx.tree.leaves(whole))
        close(opened(*args), functx.tree.leaves(whole))


# Extremes.


@pytest.mark.parametrize("name", NORMS)
def test_both_jacobians_of_a_backward_agree_at_extremes(name, x64):
    ours = NORMS[name][0]
    ct = rows(*NORMS[name][2], seed=4)

    def backward(*args):
        return functx.vjp(lambda *args: functx.tree.leaves(ours(*args))[0], *args)[1](ct)

    jacobians = functx.jit(
        lambda *args: (
            functx.jacfwd(backward, (0, 1, 2))(*args),
            functx.jacrev(backward, (0, 1, 2))(*args),
        )
    )
    # x, the weight and the bias in turn.
    for i in range(3):
        args = list(operands(name))
        far = np.resize([-1000.0, 0.0, 1000.0, 1000.0], args[i].size)
        args[i] = far.reshape(args[i].shape)
        forward, reverse = jacobians(*args)
        pairs = zip(functx.tree.leaves(forward), functx.tree.leaves(reverse), strict=True)
        for one, other in pairs:
            assert np.isfinite(one).all()
            scale = max(1.0, np.abs(one).max())
            np.testing.assert_allclose(one, other, 1e-9, 1e-9 * scale)


@pytest.mark.parametrize("name", NORMS)
def test_equal_elements_have_finite_derivatives(name):
    ours = NORMS[name][0]

    def loss(x, w, b):
        return (functx.tree.leaves(ours(x, w, b))[0] ** 2).sum()

    derivatives = functx.jit(
        lambda *args: (
            functx.grad(loss, (0, 1, 2))(*args),
            functx.hvp(lambda x: loss(x, *args[1:]), (args[0],), (args[0] + 1.0,)),
        )
    )
    x, w, b = operands(name, "float32")
    for value in (0.0, 1000.0):
        found = derivatives(np.full_like(x, value), w, b)
        for part in functx.tree.leaves(found):
            assert np.isfinite(part).all()
        if name in ("instance", "batch"):
            # Rounding, times 1 / sqrt(eps).
            np.testing.assert_allclose(found[0][0], 0 * x, atol=1e-4)


def both(m, f):
    """The first output of `f`, and what its pullback makes of a cotangent."""

    def values(ct, *args):
        out, pull = m.vjp(lambda *args: functx.tree.leaves(f(*args))[0], *args)
        return [out, *pull(ct)]

    return values


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", NORMS)
def test_halves_round_once(name, dtype):
    ours, theirs, *_ = NORMS[name]
    args = [jnp.asarray(a, dtype) for a in operands(name, scale=8.0)]
    with jax.enable_x64():
        wide = [np.asarray(a, "float64") for a in args]
        ct = jnp.asarray(rows(*NORMS[name][2], seed=4), dtype)
        truth = jax.jit(both(jax, theirs))(np.asarray(ct, "float64"), *wide)
    found = functx.jit(both(functx, ours))(ct, *args)
    digits = float(jnp.finfo(dtype).eps)
    for one, other in zip(found, truth, strict=True):
        assert str(one.dtype) == dtype
        error = np.abs(np.asarray(one, "float64") - np.asarray(other))
        # The weight of `evaluation` is also squared, and the cotangents added, in halves.
        room = 8 if name == "evaluation" else 1
        assert (error <= room * digits * np.maximum(np.abs(other), 0.1)).all()


def test_a_large_half_does_not_overflow():
    x = jnp.asarray([[6e4, -6e4, 3e4, 0.0]], "float16")
    out = nn.layer_norm(x, 4)
    np.testing.assert_allclose(out, layer(np.asarray(x, "float64"), 1.0, 0.0), atol=1e-3)
    assert np.isfinite(functx.grad(lambda x: nn.layer_norm(x, 4)[0, 0])(x)).all()
    assert np.isfinite(nn.rms_norm(x, 4)).all()


def test_one_element_is_the_bias_and_does_not_vary():
    x, w, b = np.full((3, 1), 5.0, "float32"), np.full(1, 2.0, "float32"), np.ones(1, "float32")
    assert nn.layer_norm(x, 1, w, b).tolist() == [[1.0]] * 3
    of_x, of_w, of_b = functx.grad(lambda *a: nn.layer_norm(a[0], 1, *a[1:]).sum(), (0, 1, 2))(
        x, w, b
    )
    assert (of_x.tolist(), of_w.tolist(), of_b.tolist()) == ([[0.0]] * 3, [0.0], [3.0])


@pytest.mark.parametrize("name", ["layer", "rms", "group", "instance", "evaluation"])
def test_an_example_that_is_masked_out_has_no_influence(name, x64):
    ours = NORMS[name][0]
    x, w, b = operands(name)
    kept = np.arange(len(x)) > 0

    def gradients(x):
        def loss(x, w, b):
            # The logarithm is steep where x is 0.
            out = ours(functx.numpy.log(x * x), w, b)
            return functx.numpy.where(kept.reshape(-1, *[1] * (x.ndim - 1)), out, 0.0).sum()

        return functx.jit(functx.grad(loss, (0, 1, 2)))(x, w, b)

    wanted = gradients(x)
    for value in (0.0, np.inf, np.nan):
        x[0, 0] = value
        found = gradients(x)
        close(found[0][1:], wanted[0][1:])
        close(found[1:], wanted[1:])
        assert not np.any(found[0][0])


@pytest.mark.parametrize("shape", [(0, 4), (2, 0)])
def test_of_nothing_nothing_comes(shape):
    x, w = np.zeros(shape, "float32"), np.ones(shape[1], "float32")
    calls = [
        lambda x: nn.layer_norm(x, shape[1:], w, w),
        lambda x: nn.rms_norm(x, shape[1:], w),
        lambda x: nn.batch_norm(x, w, w, w, w, training=True)[0],
        lambda x: nn.batch_norm(x, w, w, w, w)[0],
    ]
    if shape[1]:
        calls.append(lambda x: nn.group_norm(x, 2, w, w))
    for f in calls:
        assert f(x).shape == shape
        assert functx.grad(lambda x, f=f: f(x).sum())(x).shape == shape
        lanes = functx.vmap(f)(np.zeros((3, *shape), "float32"))
        assert lanes.shape == (3, *shape)


# Options.


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_the_weight_and_the_bias_are_each_optional(weighted, biased, x64):
    x, w, b = rows(2, 4), rows(4, seed=1), rows(4, seed=2)
    given = {"weight": w if weighted else None, "bias": b if biased else None}
    w, b = w if weighted else 1.0, b if biased else 0.0
    close(nn.layer_norm(x, 4, **given, eps=EPS), layer(x, w, b))
    close(
        nn.group_norm(x, 2, **given, eps=EPS), standard(x.reshape(2, 2, 2), 2).reshape(2, 4) * w + b
    )
    close(nn.batch_norm(x, None, None, **given, training=True, eps=EPS)[0], standard(x, 0) * w + b)
    mean, var = np.zeros(4), np.ones(4)
    wanted = x / np.sqrt(1 + EPS) * w + b
    close(nn.batch_norm(x, mean, var, **given, eps=EPS), (wanted, mean, var))


def test_several_dimensions_are_normalized_together(x64):
    x, w = rows(2, 3, 4), rows(3, 4, seed=1)
    close(nn.layer_norm(x, (3, 4), w, eps=EPS), standard(x, (1, 2)) * w)
    close(nn.rms_norm(x, (3, 4), w, EPS), x / np.sqrt((x**2).mean((1, 2), keepdims=True) + EPS) * w)


def test_rms_norm_adds_the_smallest_step_of_its_dtype_by_default():
    for dtype in ("float32", "float16", "bfloat16"):
        program = functx.make_ir(lambda x: nn.rms_norm(x, 3))(jnp.ones(3, dtype))
        (eqn,) = program
        assert eqn.primitive.eps == float(jnp.finfo(dtype).eps)


def test_running_statistics_move_in_training_and_stay_in_evaluation(x64):
    x, mean, var = rows(5, 3, 2), rows(3, seed=1), rows(3, seed=2) ** 2 + 0.5
    kept = mean.copy(), var.copy()
    out, moved_mean, moved_var = nn.batch_norm(x, mean, var, training=True, momentum=0.3)
    close(moved_mean, 0.7 * mean + 0.3 * x.mean((0, 2)))
    close(moved_var, 0.7 * var + 0.3 * x.var((0, 2), ddof=1))
    close(nn.batch_norm(x, moved_mean, moved_var)[1:], (moved_mean, moved_var))
    close((mean, var), kept)
    assert nn.batch_norm(x, None, None, training=True)[1:] == (None, None)
    each = nn.instance_norm(x, mean, var, momentum=0.3)
    close(each[1], 0.7 * mean + 0.3 * x.mean(2).mean(0))
    close(each[2], 0.7 * var + 0.3 * x.var(2, ddof=1).mean(0))
    close(each[0], nn.instance_norm(x)[0])
    close(nn.instance_norm(x, mean, var, use_input_stats=False), nn.batch_norm(x, mean, var))


def test_unused_running_statistics_leave_the_program():
    x, c = np.ones((3, 2), "float32"), np.ones(2, "float32")
    program = functx.make_ir(lambda x: nn.batch_norm(x, c, c, c, c, training=True)[0])(x)
    (eqn,) = program
    assert not eqn.primitive.tracked and len(eqn.inputs) == 3


def test_variance_and_mean_of_one_pass(x64):
    x = rows(3, 4)
    close(nn.var_mean(x, 1, 0), (x.var(1), x.mean(1)))
    close(
        nn.var_mean(x, (0, 1), keepdims=True),
        (x.var((0, 1), ddof=1, keepdims=True), x.mean((0, 1), keepdims=True)),
    )


def test_integers_and_lists_become_floats():
    out = nn.layer_norm([[1, 3], [2, 8]], 2, [1, 2], eps=0.0)
    assert out.dtype == np.float32
    assert out.tolist() == [[-1.0, 2.0], [-1.0, 2.0]]


# Mistakes.

X, C = np.ones((3, 4), "float32"), np.ones(4, "float32")


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: nn.layer_norm(X, 3),
            ShapeError,
            "normalized_shape must be the last dimensions of x",
        ),
        (lambda: nn.layer_norm(X, ()), ShapeError, "at least one; got () for x: f32[3,4]"),
        (
            lambda: nn.layer_norm(X, 4, X),
            ShapeError,
            "layer_norm: the weight must have the shape (4,); got f32[3,4]",
        ),
        (
            lambda: nn.group_norm(X, 2, C, X),
            ShapeError,
            "group_norm: the bias must have the shape (4,); got f32[3,4]",
        ),
        (lambda: nn.group_norm(X, 3), ShapeError, "must be a multiple of 3 groups; got f32[3,4]"),
        (
            lambda: nn.group_norm(X, 0),
            ValueRangeError,
            "group_norm: num_groups must be a positive integer; got 0",
        ),
        (
            lambda: nn.layer_norm(X, 4, eps=-1.0),
            ValueRangeError,
            "eps must not be negative; got -1.0",
        ),
        (
            lambda: functx.jit(lambda e: nn.layer_norm(X, 4, eps=e))(1.0),
            ArgumentError,
            "layer_norm: eps must be a number, known while tracing; got",
        ),
        (lambda: nn.rms_norm(X * 1j, 4), DTypeError, "rms_norm: arrays must be real; got c64[3,4]"),
        (
            lambda: nn.batch_norm(X, None, None),
            ArgumentError,
            "running_mean and running_var must both be arrays; got None for mean and var",
        ),
        (
            lambda: nn.batch_norm(X, C, None, training=True),
            ArgumentError,
            "must both be arrays, or both None; got None for var",
        ),
        (
            lambda: nn.batch_norm(X[:1], C, C, training=True),
            ShapeError,
            "there must be more than one element to a channel",
        ),
        (
            lambda: nn.batch_norm(X, C[:3], C, training=True),
            ShapeError,
            "batch_norm: the running mean must have the shape (4,); got f32[3]",
        ),
        (
            lambda: nn.batch_norm(X, C, C[:3]),
            ShapeError,
            "batch_norm_inference: the variance must have the shape (4,); got f32[3]",
        ),
        (lambda: nn.batch_norm(C, C, C), ShapeError, "x must have axes for examples and channels"),
        (
            lambda: nn.batch_norm(X, C, C, training=True, momentum=None),
            ArgumentError,
            "batch_norm: momentum must be a number, known while tracing; got NoneType",
        ),
        (
            lambda: nn.instance_norm(X),
            ShapeError,
            "x must have axes for examples, channels and at least one more; got",
        ),
        (
            lambda: nn.instance_norm(X[..., None]),
            ShapeError,
            "instance_norm: there must be more than one element to a channel",
        ),
    ],
)
def test_mistakes_are_named(call, error, message):
    with pytest.raises(error) as found:
        call()
    assert isinstance(found.value, FunctxError)
    assert message in str(found.value)


# PyTorch, where it is there.


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_pytorch_gives_the_same(dtype, x64):
    torch = pytest.importorskip("torch")
    from torch.nn import functional

    x, w, b = (a.astype(dtype) for a in (rows(4, 6, 5), rows(6, seed=1), rows(6, seed=2)))
    mean, variance = rows(6, seed=5).astype(dtype), w**2 + 1
    ct = rows(4, 6, 5, seed=3).astype(dtype)
    last = rows(5, seed=4).astype(dtype)
    pairs = [
        (
            lambda x, w, b: functional.layer_norm(x, (5,), w, b),
            lambda x, w, b: nn.layer_norm(x, 5, w, b),
            (x, last, last + 1),
        ),
        (
            lambda x, w, b: functional.group_norm(x, 3, w, b),
            lambda x, w, b: nn.group_norm(x, 3, w, b),
            (x, w, b),
        ),
        (
            lambda x, w, b: functional.instance_norm(x, weight=w, bias=b),
            lambda x, w, b: nn.instance_norm(x, weight=w, bias=b)[0],
            (x, w, b),
        ),
        (
            lambda x, w, b: functional.batch_norm(x, None, None, w, b, True),
            lambda x, w, b: nn.batch_norm(x, None, None, w, b, True)[0],
            (x, w, b),
        ),
        (
            lambda x, w, b: functional.batch_norm(x, *map(torch.tensor, (mean, variance)), w, b),
            lambda x, w, b: nn.batch_norm(x, mean, variance, w, b)[0],
            (x, w, b),
        ),
    ]
    tolerance = 1e-10 if dtype == "float64" else 1e-4
    for theirs, ours, args in pairs:
        tensors = [torch.tensor(a, requires_grad=True) for a in args]
        out = theirs(*tensors)
        out.backward(torch.tensor(ct))
        found, pull = functx.vjp(ours, *args)
        np.testing.assert_allclose(found, out.detach().numpy(), tolerance, tolerance)
        for one, tensor in zip(pull(ct), tensors, strict=True):
            np.testing.assert_allclose(one, tensor.grad.numpy(), tolerance, tolerance)
