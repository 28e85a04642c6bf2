"""The walk through each primitive gives the cotangents of `functx.vjp`, twice differentiable."""

import jax
import numpy as onp
import pytest

import functx
from functx.autograd import Variable, grad, recorded
from functx.autograd.recording import current_recording
from functx.core.samples import draw_operands
from functx.core.types import is_complex, is_inexact
from functx.testing import interpret_in_numpy
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
    if not types:
        # Callbacks have no results.
        return
    cts = [onp.asarray(rng.standard_normal(x.shape), x.dtype) for x in types]
    program = functx.make_ir(cotangents)(operands, cts)
    expected = interpret_in_numpy(program, *operands, *cts)
    args = [Variable(x, requires_grad=bool(is_inexact(onp.asarray(x).dtype))) for x in operands]
    outs = fun(*args)
    leaves = [x for x in args if x.requires_grad]
    roots = [(x, ct) for x, ct in zip(outs, cts, strict=True) if x.requires_grad]
    found = grad([x for x, _ in roots], leaves, [ct for _, ct in roots], allow_unused=True)
    values = interpreted_values()
    tolerance = 1e-11 if all(x.dtype in ("f8", "c16") for x in leaves) else 1e-5
    for x, gradient, ct in zip(leaves, found, expected, strict=True):
        if gradient is None:
            value = onp.zeros(x.shape, x.dtype)
        else:
            value = values.get(gradient.read(), gradient)
        onp.testing.assert_allclose(
            value, ct.conj() if is_complex(x.dtype) else ct, rtol=tolerance, atol=tolerance
        )


def interpreted_values():
    """The values that are recorded, by NumPy definitions: XLA would compile each operation."""
    recording = current_recording()
    # Held, so that a garbage collection in between cannot drop results of the program.
    held = recording.held()
    program = recorded()
    found = interpret_in_numpy(program, *map(onp.asarray, recording.captured))
    return dict(zip(held, found, strict=True))
