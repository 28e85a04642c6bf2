"""`vjp`, `jvp` and `linearize`: what comes back, and what is refused."""

import jax
import numpy as np
import pytest

import functx
import functx.numpy as xp
from functx import jvp, linearize, vjp
from functx.core.errors import ArgumentError, GradientError, TangentError, TreeError

x32 = np.array([1.0, 2.0, 3.0], "float32")


def refused(error, call, *says):
    with pytest.raises(error) as caught:
        call()
    for words in says:
        assert words in str(caught.value), str(caught.value)


def test_the_pullback_returns_a_tuple_over_the_primals_and_is_called_many_times():
    out, pullback = vjp(lambda x, y: {"p": x * y, "s": [x + y]}, 2.0, 3.0)
    assert float(out["p"]) == 6.0
    for scale in (1.0, 2.0):
        a, b = pullback({"p": scale, "s": [0.0]})
        assert (float(a), float(b)) == (3.0 * scale, 2.0 * scale)


def test_none_stands_for_a_zero_cotangent():
    _, pullback = vjp(lambda x: (x, x * 2.0), 1.0)
    assert float(pullback((None, 1.0))[0]) == 2.0


def test_integer_primals_have_no_cotangent():
    _, pullback = vjp(lambda x, n: x * n, 2.0, np.arange(3))
    ct = pullback(np.ones(3, "float32"))
    assert float(ct[0]) == 3.0
    assert ct[1] is None


def test_the_pullback_is_a_pytree_and_crosses_jit():
    out, pullback = functx.jit(lambda x: vjp(xp.sin, x))(x32)
    np.testing.assert_allclose(pullback(np.ones(3, "float32"))[0], np.cos(x32), rtol=1e-6)


def test_aux_comes_last():
    out, pullback, aux = vjp(lambda x: (x * 2.0, x + 1.0), 3.0, has_aux=True)
    assert (float(out), float(pullback(1.0)[0]), float(aux)) == (6.0, 2.0, 4.0)
    out, tangent, aux = jvp(lambda x: (x * 2.0, x + 1.0), (3.0,), (1.0,), has_aux=True)
    assert (float(out), float(tangent), float(aux)) == (6.0, 2.0, 4.0)
    out, push, aux = linearize(lambda x: (x * 2.0, x + 1.0), 3.0, has_aux=True)
    assert (float(out), float(push(1.0)), float(aux)) == (6.0, 2.0, 4.0)


def test_a_cotangent_unlike_the_output_is_refused():
    _, pullback = vjp(lambda x: (x, {"a": x * 2.0}), x32)
    refused(TreeError, lambda: pullback((x32, x32)), "expected", "got")
    refused(TangentError, lambda: pullback((x32, {"a": x32[:1]})), "['a']", "f32[1]", "f32[3]")
    refused(TangentError, lambda: pullback((x32, {"a": x32.astype("float16")})), "f16[3]")
    refused(ArgumentError, lambda: pullback(x32, x32), "one cotangent")


def test_an_output_that_is_no_array_is_refused():
    refused(ArgumentError, lambda: vjp(lambda x: {"a": "text"}, x32), "str", "['a']")


def test_an_output_without_dependence_has_a_zero_tangent_unless_strict():
    f = lambda x: (x * 2.0, np.float32(3.0))  # noqa: E731
    _, tangent = jvp(f, (1.0,), (1.0,))
    assert (float(tangent[0]), float(tangent[1])) == (2.0, 0.0)
    refused(GradientError, lambda: jvp(f, (1.0,), (1.0,), strict=True), "number 1")


def test_integer_outputs_have_no_tangent():
    out, tangent = jvp(lambda x: (x, (x > 1).astype("int32")), (x32,), (x32,))
    assert tangent[1] is None


def test_tangents_unlike_their_primals_are_refused():
    f = lambda x, y: x * y  # noqa: E731
    refused(ArgumentError, lambda: jvp(f, x32, (x32,)), "primals", "tuple")
    refused(TreeError, lambda: jvp(f, (x32, x32), (x32,)), "structure")
    refused(TreeError, lambda: jvp(f, (x32, [x32]), (x32, (x32,))), "structure")
    refused(TangentError, lambda: jvp(f, (x32, x32), (x32, x32[:2])), "`y`", "f32[2]")
    refused(TangentError, lambda: jvp(f, (x32, x32), (x32, np.ones(3, "int32"))), "i32[3]")


def test_linearize_computes_the_primals_once_and_checks_its_tangents():
    out, push = linearize(lambda x, y: xp.sin(x) * y, x32, x32)
    np.testing.assert_allclose(out, np.sin(x32) * x32, rtol=1e-6)
    np.testing.assert_allclose(push(x32, None), np.cos(x32) * x32 * x32, rtol=1e-6)
    refused(TangentError, lambda: push(x32, x32[:1]), "`y`")
    refused(TreeError, lambda: push(x32), "structure")


def test_the_linear_part_holds_no_nonlinear_equation():
    program = functx.make_ir(lambda x, t: linearize(lambda y: xp.exp(xp.sin(y)), x)[1](t))(x32, x32)
    names = [eqn.primitive.name for eqn in program]
    assert names.count("sin") == 1
    assert names.count("mul") == 2


def test_higher_derivatives_alternate_modes():
    f = lambda x: xp.sin(x) * x  # noqa: E731
    third = jvp(functx.grad(lambda x: jvp(f, (x,), (1.0,))[1]), (0.7,), (1.0,))[1]
    want = jax.jit(jax.grad(jax.grad(jax.grad(lambda x: jax.numpy.sin(x) * x))))(0.7)
    np.testing.assert_allclose(third, want, rtol=1e-5)
