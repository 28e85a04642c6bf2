"""`check_rules` finds what is wrong: one primitive with one mistake for each of its checks."""

from itertools import count

import numpy as np
import pytest
from jax.extend.mlir.dialects import stablehlo

from functx.core.primitive import Primitive
from functx.ops.arithmetic import add, mul, neg
from functx.ops.autodiff import stop_gradient
from functx.ops.conversion import conj, convert_element_type
from functx.ops.families import Linear, Unary, check_same_dtype
from functx.ops.logic import ne
from functx.ops.reductions import reduce_sum
from functx.ops.shapes import broadcast_in_dim, rev
from functx.ops.transcendental import cos, exp, sin
from functx.testing import bf16, bool_, c64, check_rules, f32, i32, sample, u32

MISTAKES = {}


def mistake(problem):
    """Note what `check_rules` must say of a class."""

    def note(cls):
        MISTAKES[cls] = problem
        return cls

    return note


class Sine(Unary):
    accepts = "f"
    samples = (sample(f32[3]),)

    def derivative(self, out, x):
        return cos(x)

    def lower(self, ctx, x):
        return stablehlo.sine(x)


class Total(Linear):
    """The sum of a vector."""

    accepts = "iufc"
    samples = (sample(f32[3]),)

    def abstract_eval(self, x):
        check_same_dtype(self, (x,))
        return x.update(shape=())

    def transpose(self, ct, x):
        return (broadcast_in_dim(ct, x.shape, ()),)

    def batch(self, args, dims):
        (x,), (dim,) = args, dims
        return reduce_sum(x, 1 - dim), 0

    def lower(self, ctx, x):
        return ctx.reduce(stablehlo.AddOp, x, (0,), 0)


@pytest.mark.parametrize("cls", [Sine, Total])
def test_right_rules_pass(cls):
    check_rules(cls)
    check_rules(cls, 0)
    check_rules(cls, sample(f32[2]))


@mistake("`lower` must produce")
class StatesAnotherShape(Total):
    def abstract_eval(self, x):
        return x.update(shape=(1,))


@mistake("`lower` must produce bool")
class StatesAnotherDtype(Sine):
    def out_dtype(self, dtype):
        return bool_.dtype


@mistake("`lower` must agree with the definition `numpy` in f64")
class DefinedAsAnother(Sine):
    numpy = np.cos


@mistake("`lower` must agree with the definition `numpy` in bf16; got")
class IsShiftedInOneDtype(Sine):
    def numpy(self, x):
        return np.sin(x)

    def lower(self, ctx, x):
        (aval,) = ctx.avals_in
        once = stablehlo.sine(x)
        return stablehlo.add(once, ctx.constant(0.1, aval)) if aval.dtype == bf16.dtype else once


@mistake("`jvp` must match differences")
class DerivativeOfAnother(Sine):
    def derivative(self, out, x):
        return neg(cos(x))


@mistake(
    "`jvp` must match differences when operands (0, 1) vary, or each sample must state `gradients`"
)
class ForgetsOneOfTwo(Unary):
    samples = (sample(f32[3], f32[3]),)

    def jvp(self, primals, tangents):
        (x, y), (dx, dy) = primals, tangents
        return self(x, y), mul(dx, y) if dx is not None else mul(x, dy)

    def lower(self, ctx, x, y):
        return stablehlo.multiply(x, y)


@mistake("the outputs of `jvp` must be the primitive's")
class JvpOfAnotherValue(Sine):
    def jvp(self, primals, tangents):
        return sin(add(primals[0], 1.0)), mul(tangents[0], cos(primals[0]))


@mistake("must give the gradient stated for operand 0")
class AnotherGradientAtAKink(Sine):
    samples = (sample(f32[2], values={0: [0.0, 1.0]}, gradients={0: [0.0, 0.5403023]}),)


@mistake("`vjp` must be the transpose of `jvp`")
class PullsAnotherWay(Sine):
    def vjp(self, ct, out, args, active):
        return [mul(ct, out)]


@mistake("`vjp` must agree with the transpose of `jvp`")
class PullsBySign(Sine):
    def vjp(self, ct, out, args, active):
        return [mul(ct, neg(cos(args[0])))]


@mistake("the tangent must be zero outside its mask from `tangent_mask`")
class PushesNowhere(Sine):
    def tangent_mask(self, masks, args):
        return ne(args[0], args[0])


@mistake("the cotangent of operand 0 must be zero outside its mask from `cotangent_masks`")
class LivesNowhere(Sine):
    def cotangent_masks(self, live, args):
        return [ne(args[0], args[0])]


@mistake("`transpose` must be that of the primitive in operands (0,)")
class TransposesToTwice(Total):
    def transpose(self, ct, x):
        return (broadcast_in_dim(mul(ct, 2.0), x.shape, ()),)


@mistake("`transpose` must be that of the primitive in operands (0,)")
class TransposesToNan(Total):
    def transpose(self, ct, x):
        return (broadcast_in_dim(mul(ct, np.nan), x.shape, ()),)


@mistake("`vjp` must be the transpose of `jvp` when operands (0,) vary")
class PullsNan(Sine):
    def vjp(self, ct, out, args, active):
        return [mul(ct, np.nan)]


@mistake("the results of `transpose` for operands (0,) must be f64[3]")
class TransposesToAScalar(Total):
    def transpose(self, ct, x):
        return (ct,)


@mistake("`transpose` must return one entry for each operand; got 0 for 1")
class TransposesToNothing(Total):
    def transpose(self, ct, x):
        return ()


@mistake("`batch` must give")
class BatchesTheFirst(Total):
    def batch(self, args, dims):
        return reduce_sum(args[0], 1), 0


@mistake("`batch` must match a loop for dims (1,)")
class StatesAnotherDim(Sine):
    samples = (sample(f32[2]),)

    def batch(self, args, dims):
        return self(*args), 0


@mistake("`decompose` must agree with `lower`")
class DecomposesToAnother(Sine):
    def decompose(self, x):
        return cos(x)


@mistake("`jvp` of `vjp` must match differences of `vjp`")
class StopsAtTheFirstOrder(Sine):
    def derivative(self, out, x):
        return stop_gradient(cos(x))


@mistake("`jvp` must give the tangent the shape and dtype of the output")
class WidensTangents(Sine):
    def partial(self, i, t, out, x):
        t = mul(t, cos(x))
        return convert_element_type(t, f32.dtype) if t.dtype == bf16.dtype else t


@mistake("a program made twice must be equal")
class CountsItsUses(Sine):
    uses = count()

    def derivative(self, out, x):
        return add(mul(float(next(self.uses)), 0.0), cos(x))


@mistake("raised MissingRuleError")
class HasNoBatchRule(Primitive):
    samples = (sample(i32[3]),)

    def abstract_eval(self, x):
        return x

    def lower(self, ctx, x):
        return x


@mistake("raised ZeroDivisionError")
class RaisesInARule(Sine):
    def derivative(self, out, x):
        return 1 / 0


@mistake("a primitive must have `samples`")
class HasNoSamples(Sine):
    samples = ()


@mistake("must accept a sample's operands")
class RefusesItsSample(Sine):
    samples = (sample(u32[3]),)


@mistake("`vjp` must be the transpose of `jvp` when operands (0,) vary")
class ConjugatesCotangents(Unary):
    """exp, with the conjugate derivative: right for real numbers."""

    accepts = "fc"
    samples = (sample(c64[3]),)

    def jvp(self, primals, tangents):
        out = exp(primals[0])
        return out, mul(tangents[0], out)

    def vjp(self, ct, out, args, active):
        return [mul(ct, conj(out))]

    def lower(self, ctx, x):
        return stablehlo.exponential(x)


@mistake("`index_sets` must contain every element")
class MirroredTotal(Linear):
    """The sum of a vector and its mirror image, whose index sets leave out the mirror image."""

    accepts = "iufc"
    samples = (sample(f32[4]),)

    def abstract_eval(self, x):
        return x

    def index_sets(self, sets, *operands):
        return operands[0].sets

    def transpose(self, ct, x):
        return (MirroredTotal()(ct),)

    def batch(self, args, dims):
        (x,), (dim,) = args, dims
        return add(x, rev(x, (1 - dim,))), dim

    def lower(self, ctx, x):
        return ctx.via_jax(lambda x: x + x[::-1], x)


for made in (Sine, Total, *MISTAKES):
    del Primitive.registry[made.name]


@pytest.fixture(autouse=True)
def registered(request, monkeypatch):
    """The class of a test in the registry, where parsing finds it, for that test alone."""
    cls = request.node.callspec.params["cls"]
    monkeypatch.setitem(Primitive.registry, cls.name, cls)


@pytest.mark.parametrize("cls", MISTAKES, ids=lambda cls: cls.name)
def test_a_mistake_is_named(cls):
    with pytest.raises(AssertionError) as raised:
        check_rules(cls)
    assert MISTAKES[cls] in str(raised.value)
