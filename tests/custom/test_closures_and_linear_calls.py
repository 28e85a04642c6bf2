"""`closure_convert`, `custom_gradient` and `linear_call`."""

from functools import partial

import jax
import numpy as np
import pytest

import functx
import functx.numpy as fnp
from functx import errors
from functx.custom_derivatives import closure_convert, custom_gradient, linear_call


class TestClosureConvert:
    def test_captured_values_become_arguments(self):
        def f(s):
            g, captured = closure_convert(
                lambda x, d: fnp.sin(s["a"] * x) + d["k"] * 2, 1.0, {"k": 2.0}
            )
            assert len(captured) == 1
            return g(3.0, {"k": s["b"]}, *captured)

        s = {"a": 1.0, "b": 2.0}
        slopes = functx.grad(f)(s)
        np.testing.assert_allclose([slopes["a"], slopes["b"]], [3 * np.cos(3.0), 2], rtol=1e-6)
        curve = functx.jit(functx.hessian(f))(s)["a"]["a"]
        np.testing.assert_allclose(curve, -9 * np.sin(3.0), rtol=1e-5)

    def test_only_values_that_may_have_a_derivative_are_given(self):
        counts = []

        def f(x, i):
            table = np.ones(3)
            captured = closure_convert(lambda y: x * y + table[0] + i, 1.0)[1]
            counts.append(len(captured))
            return x

        functx.jit(f)(1.0, 2)
        assert counts == [1]
        assert closure_convert(lambda y: y * 2.0, 1.0)[1] == []

    def test_a_rule_gives_derivatives_in_what_a_function_captures(self):
        @partial(functx.custom_vjp, nondiff_argnums=(0,))
        def cosine_of(f, x, *captured):
            return fnp.cos(f(x, *captured))

        def backward(f, residuals, ct):
            x, captured = residuals
            return 17.0 * x, *[42.0 * c for c in captured]

        cosine_of.defvjp(lambda f, x, *c: (cosine_of(f, x, *c), (x, c)), backward)

        def solve(c, x):
            f, captured = closure_convert(lambda x: ((x - c) ** 2).sum(), x)
            return cosine_of(f, x, *captured)

        c, x = np.full(2, 2.0, "f"), np.ones(2, "f")
        np.testing.assert_allclose(solve(c, x), np.cos(2.0), rtol=1e-6)
        gradients = functx.grad(solve, (0, 1)), jax.grad(solve, (0, 1))
        for gradient in (*gradients, functx.jit(gradients[0])):
            slopes = gradient(c, x)
            np.testing.assert_allclose(slopes, [42 * c, 17 * x])

    def test_arguments_of_another_structure_are_refused(self):
        g, _ = closure_convert(lambda d: d["a"], {"a": 1.0})
        with pytest.raises(errors.TreeError, match="the arguments must have the structure"):
            g({"b": 1.0})
        with pytest.raises(errors.ArgumentError, match="1 arguments and 0 captured values; got 2"):
            g({"a": 1.0}, [])


class TestCustomGradient:
    @staticmethod
    @custom_gradient
    def square(x):
        return x * x, lambda ct: 3.0 * x * ct

    def test_the_pullback_takes_the_place_of_the_derivative(self):
        f = self.square
        assert (f(2.0), functx.grad(f)(2.0), functx.grad(functx.grad(f))(2.0)) == (4, 6, 3)
        assert f.__name__ == "square"
        xs = np.arange(3, dtype="float32")
        np.testing.assert_allclose(functx.jit(functx.vmap(functx.grad(f)))(xs), 3 * xs)
        assert functx.jvp(f, (2.0,), (1.0,))[1] == 6

    def test_pytrees_and_keywords(self):
        def f(x, y):
            def pullback(ct):
                return ct["o"] * y["q"], {"q": 10 * ct["o"] * fnp.cos(x)}

            return {"o": fnp.sin(x) * y["q"]}, pullback

        ours = functx.grad(lambda x, y: custom_gradient(f)(x, y=y)["o"], (0, 1))
        theirs = jax.grad(lambda x, y: jax.custom_gradient(f)(x, y)["o"], (0, 1))
        pairs = zip(*(jax.tree.leaves(g(1.0, {"q": 2.0})) for g in (ours, theirs)), strict=True)
        for x, y in pairs:
            np.testing.assert_allclose(x, y, rtol=1e-6)

    def test_a_function_without_a_pullback_is_refused(self):
        with pytest.raises(errors.RuleError, match=r"must return a pair \(output, pullback\)"):
            custom_gradient(lambda x: x)(1.0)


class TestLinearCall:
    @staticmethod
    def scaled(r, x):
        """`r x`, with a transpose that is a hundred times the true one."""
        return linear_call(
            lambda r, x: {"o": x["v"] * r},
            lambda r, ct: {"v": ct["o"] * r * 100},
            r,
            {"v": x},
        )["o"]

    def test_the_given_transpose_is_used(self):
        assert functx.grad(self.scaled, 1)(2.0, 3.0) == 200
        assert functx.jvp(lambda x: self.scaled(2.0, x), (3.0,), (1.0,))[1] == 2
        pulled = functx.linear_transpose(lambda x: self.scaled(2.0, x), 1.0)
        assert pulled(1.0)[0] == 200
        assert functx.linear_transpose(lambda ct: pulled(ct)[0], 1.0)(1.0)[0] == 2

    def test_the_derivative_in_residuals_is_that_of_the_function(self):
        assert functx.grad(self.scaled, 0)(2.0, 3.0) == 3
        assert functx.grad(functx.grad(lambda x: self.scaled(x, x)))(2.0) == 101

    def test_it_is_mapped(self):
        r, x = np.arange(3, dtype="float32"), np.ones(3, "float32")
        for axes in ((0, 0), (0, None), (None, 0)):
            args = [v if axis == 0 else v[1] for v, axis in zip((r, x), axes, strict=True)]
            mapped = functx.jit(functx.vmap(functx.grad(self.scaled, 1), axes))(*args)
            np.testing.assert_allclose(mapped, np.broadcast_to(100 * args[0], 3))

    def test_functions_may_capture_values(self):
        def f(s):
            return linear_call(lambda r, x: x * s * r, lambda r, ct: ct * s * r, 2.0, s)

        assert functx.jit(functx.grad(f))(3.0) == 12

    def test_mistakes(self):
        with pytest.raises(errors.TreeError, match="what fun_transpose returns"):
            linear_call(lambda r, x: x, lambda r, ct: (ct,), 1.0, 1.0)
        with pytest.raises(errors.ShapeError, match="operands must be"):
            linear_call(lambda r, x: x, lambda r, ct: fnp.ones(3), 1.0, 1.0)
