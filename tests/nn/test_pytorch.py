"""Values and derivatives against PyTorch's, where it is installed."""

import numpy as np
import pytest

import functx
import functx.numpy as fnp
from functx import lax, nn

torch = pytest.importorskip("torch")
functional = torch.nn.functional

random = np.random.RandomState(0)


def normal(*shape):
    return random.randn(*shape)


X, ROWS, OTHERS = normal(4, 6) * 2, normal(5, 7), normal(5, 7)
# Batches, lengths, heads and features, as functx takes them; PyTorch has heads before lengths.
HEADS = normal(2, 6, 3, 4), normal(2, 6, 3, 4), normal(2, 6, 3, 4)
SEEN = random.rand(2, 3, 6, 6) < 0.7
SEEN[..., 0] = True
BIAS = normal(2, 3, 6, 6)
IMAGES, KERNELS = normal(2, 4, 9, 8), normal(6, 2, 3, 3)
PLACES, TABLE = random.randint(0, 5, (3, 4)), normal(5, 6)


def in_heads(**options):
    def attend(q, k, v):
        found = functional.scaled_dot_product_attention(
            *[x.transpose(1, 2) for x in (q, k, v)], **options
        )
        return found.transpose(1, 2)

    return attend


def attend(**options):
    return lambda q, k, v: nn.dot_product_attention(q, k, v, **options)


def pooled(pool, window, strides, padding, **options):
    def of(x):
        last = fnp.transpose(x, (0, 2, 3, 1))
        return fnp.transpose(pool(last, window, strides, padding, **options), (0, 3, 1, 2))

    return of


# What PyTorch makes of the arguments, what functx does, and the arguments.
PAIRS = {
    "relu": (functional.relu, nn.relu, (X,)),
    "relu6": (functional.relu6, nn.relu6, (X * 3,)),
    "elu": (lambda x: functional.elu(x, 0.7), lambda x: nn.elu(x, 0.7), (X,)),
    "celu": (lambda x: functional.celu(x, 0.7), lambda x: nn.celu(x, 0.7), (X,)),
    "selu": (functional.selu, nn.selu, (X,)),
    "silu": (functional.silu, nn.silu, (X,)),
    "mish": (functional.mish, nn.mish, (X,)),
    "gelu": (functional.gelu, lambda x: nn.gelu(x, approximate=False), (X,)),
    "gelu by tanh": (lambda x: functional.gelu(x, approximate="tanh"), nn.gelu, (X,)),
    "leaky relu": (functional.leaky_relu, nn.leaky_relu, (X,)),
    "log sigmoid": (functional.logsigmoid, nn.log_sigmoid, (X * 20,)),
    "softplus": (lambda x: functional.softplus(x, threshold=1e9), nn.softplus, (X,)),
    "soft sign": (functional.softsign, nn.soft_sign, (X,)),
    "hard tanh": (functional.hardtanh, nn.hard_tanh, (X,)),
    "hard sigmoid": (functional.hardsigmoid, nn.hard_sigmoid, (X * 2,)),
    "hard swish": (functional.hardswish, nn.hard_swish, (X * 2,)),
    "glu": (functional.glu, nn.glu, (X,)),
    "softmax": (lambda x: functional.softmax(x, 0), lambda x: nn.softmax(x, 0), (X,)),
    "log softmax": (lambda x: functional.log_softmax(x, 1), nn.log_softmax, (X * 20,)),
    "logsumexp": (lambda x: torch.logsumexp(x, 1), lambda x: nn.logsumexp(x, 1), (X * 20,)),
    "rms norm": (
        lambda x, w: functional.rms_norm(x, (6,), w, 1e-5),
        lambda x, w: nn.rms_norm(x, 6, w, 1e-5),
        (X, normal(6)),
    ),
    "cosine similarity": (functional.cosine_similarity, nn.cosine_similarity, (ROWS, OTHERS)),
    "var and mean": (
        lambda x: torch.stack(torch.var_mean(x, 1, correction=1)),
        lambda x: fnp.stack(nn.var_mean(x, 1)),
        (ROWS,),
    ),
    "attention": (in_heads(), attend(), HEADS),
    "causal attention": (in_heads(is_causal=True), attend(is_causal=True), HEADS),
    "scaled attention": (in_heads(scale=0.3), attend(scale=0.3), HEADS),
    "masked attention": (in_heads(attn_mask=torch.tensor(SEEN)), attend(mask=SEEN), HEADS),
    "attention with a bias": (in_heads(attn_mask=torch.tensor(BIAS)), attend(bias=BIAS), HEADS),
    "attention in blocks": (in_heads(), attend(block_size=2), HEADS),
    "convolution": (
        lambda x, k: functional.conv2d(x, k, stride=2, padding=(1, 2), dilation=2, groups=2),
        lambda x, k: lax.conv_general_dilated(
            x, k, (2, 2), ((1, 1), (2, 2)), rhs_dilation=(2, 2), feature_group_count=2
        ),
        (IMAGES, KERNELS),
    ),
    "max pooling": (
        lambda x: functional.max_pool2d(x, (3, 2), (2, 1), (1, 0)),
        pooled(nn.max_pool, (3, 2), (2, 1), ((1, 1), (0, 0))),
        (IMAGES,),
    ),
    "mean pooling": (
        lambda x: functional.avg_pool2d(x, (3, 2), (2, 1), (1, 0), count_include_pad=False),
        pooled(nn.avg_pool, (3, 2), (2, 1), ((1, 1), (0, 0)), count_include_pad=False),
        (IMAGES,),
    ),
    "embedding": (
        lambda w: functional.embedding(torch.tensor(PLACES), w, padding_idx=2),
        lambda w: nn.embedding(PLACES, w, padding_idx=2),
        (TABLE,),
    ),
    "norms": (
        lambda x: torch.stack([torch.linalg.vector_norm(x, p) for p in (1, 2, 3, float("inf"))]),
        lambda x: fnp.stack([fnp.linalg.norm(x.ravel(), p) for p in (1, 2, 3, fnp.inf)]),
        (X,),
    ),
    "linear algebra": (
        lambda a, b: torch.linalg.solve(a, b) + torch.linalg.slogdet(a)[1] + torch.linalg.inv(a),
        lambda a, b: fnp.linalg.solve(a, b) + fnp.linalg.slogdet(a)[1] + fnp.linalg.inv(a),
        (normal(4, 4) + 4 * np.eye(4), normal(4, 4)),
    ),
}


# PyTorch rounds some constants to single floats.
def close(ours, theirs):
    np.testing.assert_allclose(ours, theirs.detach().numpy(), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("name", PAIRS)
def test_values_and_derivatives_are_those_of_pytorch(name, x64):
    theirs, ours, args = PAIRS[name]
    tensors = [torch.tensor(x, requires_grad=True) for x in args]
    expected = theirs(*tensors)
    found, pull = functx.vjp(ours, *args)
    close(found, expected)
    ct = np.random.RandomState(1).randn(*found.shape)
    first = torch.autograd.grad(expected, tensors, torch.tensor(ct), create_graph=True)
    cotangents = pull(ct)
    for a, b in zip(cotangents, first, strict=True):
        close(a, b)


SMOOTH = ("silu", "gelu", "softmax", "log softmax", "rms norm", "cosine similarity", "convolution")


@pytest.mark.parametrize("name", [*SMOOTH, "causal attention", "linear algebra"])
def test_second_derivatives_are_those_of_pytorch(name, x64):
    theirs, ours, args = PAIRS[name]
    # PyTorch differentiates attention a second time in plain formulas alone.
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        tensors = [torch.tensor(x, requires_grad=True) for x in args]
        first = torch.autograd.grad((theirs(*tensors) ** 3).sum(), tensors, create_graph=True)
        second = torch.autograd.grad(sum((g**2).sum() for g in first), tensors)

    def squares(*args):
        gradients = functx.grad(lambda *args: (ours(*args) ** 3).sum(), tuple(range(len(args))))
        return sum((g**2).sum() for g in gradients(*args))

    for a, b in zip(functx.grad(squares, tuple(range(len(args))))(*args), second, strict=True):
        np.testing.assert_allclose(a, b.numpy(), rtol=1e-7, atol=1e-7)
