"""The walk through each primitive gives the cotangents of `functx.vjp`, twice differentiable."""

import jax
import numpy as onp
import pytest

import functx
from functx.autograd import Variable, grad
from functx.core.samples import draw_operands
from functx.core.types import is_complex, is_inexact
from tests.ops.registry import PRIMITIVES

CASES = [
    cls
    for cls in PRIMITIVES
    if cls.samples
    and cls.differentiable
    and not cls.is_constant_in_reverse_mode
    and not cls.samples[0].across
    and any(is_inexact(aval.dtype) for aval in cls.samples[0].avals)
]


@pytest.fixture
def double_precision():
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize("cls", CASES, ids=lambda cls: cls.name)
def test_the_walk_gives_the_cotangents_of_vjp(cls, double_precision):
    sample = cls.samples[0]
    primitive, operands = cls(**sample.params), draw_operands(sample, 1)

    def fun(*args):
        out = primitive(*args)
        return [x for x in (out if primitive.multiple_results else [out]) if is_inexact(x.dtype)]

    def cotangents(args, cts):
        return functx.vjp(fun, *args)[1](cts)

    rng = onp.random.default_rng(0)
    types = functx.eval_shape(fun, *operands)
    cts = [onp.asarray(rng.standard_normal(x.shape), x.dtype) for x in types]
    expected = functx.jit(cotangents)(operands, cts)
    args = [Variable(x, requires_grad=bool(is_inexact(onp.asarray(x).dtype))) for x in operands]
    outs = fun(*args)
    leaves = [x for x in args if x.requires_grad]
    roots = [(x, ct) for x, ct in zip(outs, cts, strict=True) if x.requires_grad]
    found = grad([x for x, _ in roots], leaves, [ct for _, ct in roots], allow_unused=True)
    wanted = [ct for ct, x in zip(expected, args, strict=True) if x.requires_grad]
    # XLA fuses the operations of one program and of several in different ways.
    tolerance = 1e-11 if all(x.dtype in ("f8", "c16") for x in leaves) else 1e-4
    for x, gradient, ct in zip(leaves, found, wanted, strict=True):
        gradient = onp.zeros(x.shape, x.dtype) if gradient is None else onp.asarray(gradient)
        ct = onp.asarray(ct)
        onp.testing.assert_allclose(
            gradient, ct.conj() if is_complex(x.dtype) else ct, rtol=tolerance, atol=tolerance
        )
