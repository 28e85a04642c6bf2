"""A primitive is one class: what it states there is verified, translated and documented."""

import jax
import numpy as np
import pytest
from jax.extend.core import Primitive as JaxPrimitive
from jax.extend.mlir.dialects import stablehlo

import functx
from functx.core.errors import VerificationError
from functx.core.primitive import Primitive
from functx.ops import Unary
from functx.testing import check_rules, f32, interpret_in_numpy, sample, verify
from functx.testing.random_functions import eligible_primitives
from functx.tools.reference import primitives_page

X = np.array([0.5, -1.0, 2.0], "float32")


@pytest.fixture
def swish_class():
    class ScaledSwish(Unary):
        """x / (1 + exp(-x)) times `factor`."""

        __module__ = "functx.ops.scaled_swish"
        factor: float
        accepts = "f"
        jax_primitive = "scaled_swish"
        samples = (sample(f32[3, 4], factor=2.0),)

        @classmethod
        def from_jax_params(cls, scale):
            return cls(float(scale)) if scale else None

        def numpy(self, x):
            return self.factor * x / (1 + np.exp(-x))

        def derivative(self, out, x):
            gate = out / x
            return gate + out / self.factor * (self.factor - gate)

        def lower(self, ctx, x):
            factor = ctx.constant(self.factor, ctx.avals_in[0])
            return stablehlo.multiply(factor, stablehlo.multiply(x, stablehlo.logistic(x)))

    yield ScaledSwish
    del Primitive.registry[ScaledSwish.name], Primitive.by_jax_primitive["scaled_swish"]


def test_its_rules_are_checked_also_against_numpy(swish_class, monkeypatch):
    check_rules(swish_class)
    monkeypatch.setattr(swish_class, "numpy", lambda self, x: self.factor * x)
    with pytest.raises(AssertionError, match="`lower` must agree with the definition `numpy`"):
        check_rules(swish_class)


def test_programs_with_it_are_verified_and_interpreted(swish_class, monkeypatch):
    def fun(x):
        return swish_class(3.0)(x) + 1

    expected = 3 * X.astype(float) / (1 + np.exp(-X.astype(float))) + 1
    np.testing.assert_allclose(verify(fun)(X), expected, 1e-6)
    program = functx.make_ir(fun)(X)
    monkeypatch.setattr(swish_class, "lower", lambda self, ctx, x: stablehlo.negate(x))
    np.testing.assert_allclose(interpret_in_numpy(program, X)[0], expected, 1e-6)
    with pytest.raises(VerificationError):
        verify(lambda x: swish_class(3.0)(x) + 2)(X)


def test_from_jax_translates_its_jax_primitive(swish_class):
    scaled_swish = JaxPrimitive("scaled_swish")
    scaled_swish.def_abstract_eval(lambda x, scale: x)
    scaled_swish.def_impl(lambda x, scale: scale * x * jax.nn.sigmoid(x))

    def names(scale):
        program = functx.make_ir(functx.from_jax(lambda x: scaled_swish.bind(x, scale=scale)))(X)
        return [str(eqn.primitive).split("[")[0] for eqn in program]

    assert names(2.0) == ["scaled_swish"]
    assert names(0.0) == ["jax_call"]


def test_it_is_documented_and_drawn_by_random_programs(swish_class):
    assert "`scaled_swish`" in primitives_page()
    assert swish_class in eligible_primitives.__wrapped__()


def test_a_class_that_lowers_otherwise_does_not_inherit_the_definition():
    class Halved(functx.ops.Exp):
        def lower(self, ctx, x):
            return stablehlo.negate(x)

    class Renamed(functx.ops.Exp):
        pass

    assert (Halved.numpy, Renamed.numpy) == (None, np.exp)
    program = functx.make_ir(lambda x: Halved()(x))(X)
    np.testing.assert_allclose(interpret_in_numpy(program, X)[0], -X)
