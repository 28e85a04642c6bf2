"""Sums of second derivatives of every primitive, by collapsed jets and by nested forward mode.

The reference interpreter computes both, so that nothing compiles.
"""

import numpy as np
import pytest

from functx.core.masks import inexact_mask
from functx.core.rewriting import apply
from functx.core.tracing import trace_closed
from functx.core.types import is_complex
from functx.testing.reference import interpret_in_numpy
from functx.testing.rule_cases import make_rule_cases
from functx.testing.rule_evaluation import checked_tracing
from functx.transforms.coefficients import Curves
from functx.transforms.collapsed_jet import CollapsedJet
from functx.transforms.dce import with_io
from functx.transforms.forward_mode import JVPRewrite
from functx.transforms.series import one_equation_program
from tests.ops.registry import PRIMITIVES

# The reference interpreter takes seconds to run the loops that compute their derivatives.
LONG_LOOPS = {
    *("frechet_derivative", "hyp1_f1", "hyp2_f1", "incomplete_beta", "incomplete_gamma"),
    *("inverse_incomplete_beta", "inverse_incomplete_gamma", "logm", "random_gamma_grad"),
    *("random_shuffle", "random_truncated_normal", "random_uniform_between", "shard_map"),
    *("student_cdf", "student_quantile", "zeta", "expm"),
}
CLASSES = [cls for cls in PRIMITIVES if cls.differentiable and cls.name not in LONG_LOOPS]


def second_derivative(program, active):
    """The program of the second derivatives of the inexact outputs along tangents of `active` inputs."""
    once = JVPRewrite(active)(program)
    first = once.outputs[len(program.outputs) :]
    twice = JVPRewrite((*active, *[False] * sum(active)))(with_io(once, once.inputs, first))
    second = with_io(twice, twice.inputs, twice.outputs[len(first) :])
    count, number = len(program.inputs), sum(active)

    def body(*args):
        return apply(None, second, [*args, *args[count:]])

    assert len(second.inputs) == count + 2 * number
    return trace_closed(body, second.in_avals[: count + number])


def differentiable_case(cls):
    """The first sample with a derivative: its case, the program of the operation, and the active operands."""
    for sample in cls.samples:
        case = make_rule_cases(cls, sample)[0]
        program = one_equation_program(case.primitive, tuple(case.avals))
        active = tuple(inexact_mask(case.avals))
        if case.primitive.differentiable and any(active) and any(inexact_mask(program.out_avals)):
            return case, program, active
    return None


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.name)
def test_the_sum_of_second_derivatives_is_that_of_nested_derivatives(cls):
    with checked_tracing():
        if (found := differentiable_case(cls)) is None:
            return
        case, program, active = found
        # The third line counts -1.
        collapsed = CollapsedJet(active, Curves(2, 3, 1), 2)(program)
        nested = second_derivative(program, active)
    random = np.random.RandomState(0)

    def directions(aval):
        parts = random.uniform(-0.3, 0.3, (2, 3, *aval.shape))
        return (parts[0] + 1j * parts[1] if is_complex(aval.dtype) else parts[0]).astype(aval.dtype)

    lines = [directions(a) for a, on in zip(case.avals, active, strict=True) if on]
    totals = interpret_in_numpy(collapsed, *case.args, *lines)[len(program.outputs) :]
    each = [interpret_in_numpy(nested, *case.args, *[x[r] for x in lines]) for r in range(3)]
    precision = 1e-9 if case.dtype.itemsize >= 8 else 1e-4
    for total, first, second, third in zip(totals, *each, strict=True):
        expected = np.asarray(first + second - third)
        scale = max(1.0, np.max(np.abs(expected), initial=0.0))
        np.testing.assert_allclose(2 * total, expected, rtol=precision, atol=precision * scale)
