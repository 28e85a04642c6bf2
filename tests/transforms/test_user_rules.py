"""What the rules of a user's primitives and operators return is checked where it is used."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import functx
import functx.numpy as fnp
from functx.core.errors import LinearityError, RuleError
from functx.core.primitive import Primitive

X = np.array([1.0, 2.0], np.float32)


def primitive(lower=lambda x: 2 * x, out=lambda x: x, **rules):
    """`2 x`, or what `lower` says, with these rules."""

    class Given(Primitive, abstract=True):
        def abstract_eval(self, x):
            return out(x)

    Given.lower = lambda self, ctx, x: ctx.via_jax(lower, x)
    for name, rule in rules.items():
        setattr(Given, name, rule)
    return Given()


def several(**rules):
    class Several(Primitive, abstract=True):
        multiple_results = True

        def abstract_eval(self, x):
            return x, x

        def lower(self, ctx, x):
            return [x, x]

    for name, rule in rules.items():
        setattr(Several, name, rule)
    return Several()


def grad(fun):
    return functx.grad(lambda x: fnp.sum(fun(x)))(X)


def jvp(fun):
    return functx.jvp(fun, (X,), (X,))


LINEAR = {"jvp": lambda self, p, t: (self(*p), self(*t))}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: grad(primitive(**LINEAR, transpose=lambda self, ct, x: [2.0 * ct + 1.0])),
            r"given: `transpose` must be linear in the cotangents; got add, which adds a constant",
        ),
        (
            lambda: grad(primitive(vjp=lambda self, ct, out, args, active: [2 * ct - args[0]])),
            r"given: `vjp` must be linear in the cotangents; got sub, which adds a constant",
        ),
        (
            lambda: grad(primitive(jvp=lambda self, p, t: (self(*p), 2.0 * t[0] + p[0]))),
            r"given: `jvp` must be linear in the tangents; got add, which adds a constant",
        ),
        (
            lambda: grad(primitive(jvp=lambda self, p, t: (self(*p), p[0]))),
            r"given: `jvp` must be linear in the tangents; got an output f32\[2\] that does not depend",
        ),
        (
            lambda: grad(primitive(vjp=lambda self, ct, out, args, active: [out])),
            r"given: `vjp` must be linear in the cotangents; got an output f32\[2\] that does not depend",
        ),
        (
            lambda: jvp(primitive(jnp.sum, lambda x: x.update(shape=()),
                                  jvp=lambda self, p, t: (self(*p), t[0]))),
            r"given: `jvp` must give the tangent the shape and dtype of the output, f32\[\]; got f32\[2\]",
        ),
        (
            lambda: grad(primitive(jvp=lambda self, p, t: (self(*p), fnp.sum(t[0])))),
            r"the shape and dtype of the output, f32\[2\]; got f32\[\]",
        ),
        (
            lambda: jvp(primitive(jvp=lambda self, p, t: (self(*p), t[0].astype("float16")))),
            r"the shape and dtype of the output, f32\[2\]; got f16\[2\]",
        ),
        (
            lambda: jvp(primitive(jvp=lambda self, p, t: self(*p))),
            r"given: `jvp` must return a pair \(output, tangent\); got",
        ),
        (
            lambda: jvp(several(jvp=lambda self, p, t: (self(*p), [t[0]]))),
            r"several: `jvp` must return one tangent an output; got 1 for 2 outputs",
        ),
        (
            lambda: grad(primitive(vjp=lambda self, ct, out, args, active: [fnp.sum(ct)])),
            r"given: `vjp` must give the cotangent the shape and dtype of the operand, f32\[2\]; got f32\[\]",
        ),
        (
            lambda: grad(primitive(vjp=lambda self, ct, out, args, active: [ct, ct])),
            r"given: `vjp` must return one cotangent an operand; got 2 for 1 operands",
        ),
        (
            lambda: grad(primitive(**LINEAR, transpose=lambda self, ct, x: [fnp.sum(ct)])),
            r"given: `transpose` must give the cotangent the shape and dtype of the operand",
        ),
        (
            lambda: functx.vmap(primitive(batch=lambda self, args, dims: (args[0][0], 0)))(X[None]),
            r"given: `batch` must give f32\[1,2\] for a batch along 0; got f32\[2\]",
        ),
    ],
)  # fmt: skip
def test_a_rule_that_returns_something_else_than_it_must_is_named(call, message):
    with pytest.raises(RuleError, match=message) as e:
        call()
    assert "test_user_rules.py" in str(e.value)


def operator(name):
    op = functx.custom_op(f"checked::{name}", lambda x: 2 * x, schema="(Array x) -> Array")
    op.def_abstract(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype))
    return op


def test_a_constant_in_a_rule_that_has_to_be_transposed_is_never_lost():
    with functx.library.scoped():
        forward, backward = operator("forward"), operator("backward")
        forward.def_jvp(lambda primals, tangents: (forward(*primals), 2 * tangents.x + 1.0))
        backward.register_autograd(lambda ctx, g: 2 * g + ctx.needs_input_grad[0])
        with pytest.raises(RuleError, match=r"checked::forward: `jvp` must be linear"):
            grad(forward)
        with pytest.raises(
            LinearityError, match=r"checked::backward: .* add, which adds a constant"
        ):
            jvp(backward)
        assert grad(backward).tolist() == [3.0, 3.0]
    fun = functx.custom_jvp(lambda x: 2 * x)
    fun.defjvp(lambda primals, tangents: (fun(*primals), 2 * tangents[0] + 1.0))
    with pytest.raises(
        LinearityError, match=r"custom_jvp\(lambda\): .* add, which adds a constant"
    ):
        grad(fun)
    assert jvp(fun)[1].tolist() == [3.0, 5.0]
    fun.defjvp(lambda primals, tangents: (fun(*primals), primals[0]))
    with pytest.raises(
        LinearityError, match=r"got one that is not: an output f32\[2\] that does not"
    ):
        grad(fun)
    for backward, found in (
        (lambda x, ct: (2 * ct + 1.0,), "adds"),
        (lambda x, ct: (x,), "depend"),
    ):
        rule = functx.custom_vjp(lambda x: 2 * x)
        rule.defvjp(lambda x: (2 * x, x), backward)
        (by_jax,) = jax.vjp(rule, X)[1](jnp.ones(2, X.dtype))
        assert by_jax.tolist() == grad(rule).tolist()
        with pytest.raises(LinearityError, match=f"rule must be linear.* {found}"):
            jvp(rule)


@pytest.mark.parametrize(
    "tangent",
    [
        lambda x, t: fnp.concatenate([t[:1], fnp.zeros(1, "float32")]) + t,
        lambda x, t: fnp.where(x > 0, t, 0.0) - fnp.zeros_like(x) + t * 0.0,
        lambda x, t: fnp.pad(t, (1, 1))[1:-1] + fnp.broadcast_to(fnp.float32(0), (2,)),
        lambda x, t: fnp.zeros_like(x).at[0].set(t[0]) + x * t + 0.0 * x,
    ],
)
def test_zeros_in_a_rule_are_no_constants(tangent):
    op = primitive(jvp=lambda self, p, t: (self(*p), tangent(p[0], t[0])))
    along = functx.jit(tangent)
    jacobian = np.stack([along(X, e) for e in np.eye(2, dtype="float32")], -1)
    np.testing.assert_allclose(functx.jacrev(op)(X), jacobian)
    np.testing.assert_allclose(functx.jacfwd(op)(X), jacobian)


@pytest.mark.parametrize(
    ("lower", "got"),
    [
        (lambda self, ctx, x: ctx.via_jax(jnp.sum, x), r"tensor<f32>"),
        (lambda self, ctx, x: [x], "list"),
        (lambda self, ctx, x: None, "NoneType"),
    ],
)
def test_a_lowering_of_another_type_is_named_with_both(lower, got):
    op = primitive()
    type(op).lower = lower
    for call in (op, functx.jit(op)):
        with pytest.raises(RuleError, match=rf"`abstract_eval` states, tensor<2xf32>; got {got}"):
            call(X)


def test_a_jitted_function_keeps_the_attributes_of_the_function():
    def fun(x):
        return x

    fun.version = 3
    assert functx.jit(fun).version == 3 and functx.jit(functx.jit(fun)).version == 3


def test_transforms_over_more_than_three_axes_are_those_of_numpy():
    x = np.random.RandomState(0).randn(2, 3, 2, 2, 3).astype("float32")
    for axes in (None, (0, 1, 2, 4)):
        got = functx.jit(lambda x, axes=axes: fnp.fft.fftn(x, axes=axes))(x)
        np.testing.assert_allclose(got, np.fft.fftn(x, axes=axes), atol=1e-4)
        np.testing.assert_allclose(fnp.fft.ifftn(got, axes=axes).real, x, atol=1e-5)
    power = functx.grad(lambda x: fnp.sum(fnp.abs(fnp.fft.fftn(x)) ** 2))(x)
    np.testing.assert_allclose(power, 2 * x.size * x, rtol=1e-3, atol=1e-3)
