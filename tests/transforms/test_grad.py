"""`grad` and `value_and_grad`: what comes back, and what is refused."""

from collections import Counter, namedtuple
from dataclasses import dataclass

import jax
import numpy as np
import pytest

import functx
import functx.numpy as xp
from functx import grad, value_and_grad
from functx.core.errors import ArgnumsError, ArgumentError, GradientError

x32 = np.array([1.0, 2.0, 3.0], "float32")


def test_the_gradient_has_the_structure_of_its_argument():
    Layer = namedtuple("Layer", "weights bias")
    tree = {"a": Layer(np.ones((2, 3), "f"), None), "b": [np.float32(2.0), ()]}
    g = grad(lambda t: (t["a"].weights ** 2).sum() * t["b"][0])(tree)
    assert jax.tree_util.tree_structure(g) == jax.tree_util.tree_structure(tree)
    np.testing.assert_allclose(g["a"].weights, 4 * np.ones((2, 3)))
    np.testing.assert_allclose(g["b"][0], 6.0)


def test_registered_dataclasses_are_pytrees():
    @jax.tree_util.register_dataclass
    @dataclass
    class Point:
        x: float
        y: float

    g = grad(lambda p: p.x * p.y)(Point(2.0, 5.0))
    assert (float(g.x), float(g.y)) == (5.0, 2.0)


def test_an_argument_without_influence_has_a_zero_gradient():
    np.testing.assert_array_equal(grad(lambda x, y: y.sum())(x32, x32), np.zeros(3))


def test_a_function_that_returns_a_captured_array_has_a_zero_gradient():
    np.testing.assert_array_equal(grad(lambda x: np.float32(3.0))(x32), np.zeros(3))


def test_argnums_may_be_negative_or_several_and_keep_their_order():
    f = lambda a, b, c: a * a * b + c * 0.0  # noqa: E731
    assert float(grad(f, argnums=-2)(2.0, 3.0, 1.0)) == 4.0
    b, a = grad(f, argnums=(1, 0))(2.0, 3.0, 1.0)
    assert (float(a), float(b)) == (12.0, 4.0)
    assert isinstance(grad(f, argnums=(0,))(2.0, 3.0, 1.0), tuple)


def test_keyword_arguments_are_passed_on_and_not_differentiated():
    assert float(grad(lambda x, scale: x * scale)(2.0, scale=5.0)) == 5.0


def test_aux_values_come_back_beside_the_gradient():
    f = lambda x: ((x**2).sum(), {"twice": 2 * x})  # noqa: E731
    g, aux = grad(f, has_aux=True)(x32)
    np.testing.assert_allclose(g, 2 * x32)
    np.testing.assert_allclose(aux["twice"], 2 * x32)
    (value, aux), g = value_and_grad(f, has_aux=True)(x32)
    assert float(value) == 14.0
    np.testing.assert_allclose(aux["twice"], g)


def test_grad_is_a_decorator_with_and_without_arguments():
    @grad
    def f(x):
        return x**2

    @grad(argnums=1)
    def g(x, y):
        return x * y

    assert (float(f(3.0)), float(g(3.0, 4.0))) == (6.0, 3.0)


def test_methods_partials_and_callable_objects_are_functions():
    import functools

    class Model:
        k = 3.0

        def loss(self, x):
            return self.k * x * x

        def __call__(self, x):
            return x**3

    assert float(grad(functools.partial(lambda k, x: k * x, 4.0))(1.0)) == 4.0
    assert float(grad(Model().loss)(2.0)) == 12.0
    assert float(grad(Model())(2.0)) == 12.0


def test_the_dtype_of_the_gradient_is_that_of_the_argument():
    for dtype in ("float16", "bfloat16", "float32"):
        x = jax.numpy.ones(3, dtype)
        assert grad(lambda x: (x * 2.0).sum())(x).dtype == x.dtype


def test_a_python_int_counts_as_a_float():
    np.testing.assert_allclose(grad(xp.tanh)(2), 1 - np.tanh(2.0) ** 2, rtol=1e-6)


def test_holomorphic_functions_have_their_complex_derivative():
    got = grad(lambda z: z**3, holomorphic=True)(np.complex64(1 + 1j))
    np.testing.assert_allclose(got, 6j, atol=1e-6)


def test_complex_arguments_of_real_functions_follow_jax():
    z = np.complex64(1 + 1j)
    np.testing.assert_allclose(grad(lambda z: xp.abs(z) ** 2)(z), 2 - 2j, rtol=1e-6)


def test_nested_derivatives_do_not_confuse_their_perturbations():
    assert float(grad(lambda x: x * grad(lambda y: x * y * y)(1.0))(4.0)) == 16.0


def test_a_fresh_lambda_finds_the_compiled_program():
    functx.clear_caches()
    for _ in range(5):
        grad(lambda x: (x**2).sum())(x32)
    assert functx.cache_info()["programs"].misses == 1


def test_a_changing_literal_compiles_twice_at_most():
    functx.clear_caches()
    values = [float(grad(lambda x, s=s: x * x * s)(3.0)) for s in (1.0, 2.0, 3.0, 4.0, 5.5)]
    assert values == [6.0, 12.0, 18.0, 24.0, 33.0]
    info = functx.cache_info()
    assert info["programs"].size + info["numbers"].size <= 2


def refused(error, call, *says):
    with pytest.raises(error) as caught:
        call()
    for words in says:
        assert words in str(caught.value)
    assert "test_grad.py" in str(caught.value)
    assert f"python -m functx.errors {type(caught.value).__name__}" in str(caught.value)


def test_an_output_that_is_no_scalar_is_refused_with_its_shape():
    refused(
        GradientError,
        lambda: grad(lambda x: xp.sin(x))(np.ones((2, 3), "f")),
        "f32[2,3]",
        ".sum()",
        "jacrev",
    )
    refused(GradientError, lambda: grad(lambda x: x[:1])(x32), "f32[1]", "scalar")
    assert issubclass(GradientError, TypeError)


def test_an_output_that_is_no_array_is_refused_with_its_type():
    refused(ArgumentError, lambda: grad(lambda x: "loss")(x32), "str")
    refused(GradientError, lambda: grad(lambda x: (x.sum(), x))(x32), "has_aux")
    refused(GradientError, lambda: grad(lambda x: None)(x32), "single scalar")


def test_integer_outputs_and_complex_outputs_are_refused():
    refused(GradientError, lambda: grad(lambda x: (x > 1).sum())(x32), "i32[]")
    refused(GradientError, lambda: grad(lambda x: (x + 1j).sum())(x32), "c64[]", "holomorphic")


def test_integer_arguments_are_refused_by_path():
    tree = {"w": np.arange(3)}
    refused(GradientError, lambda: grad(lambda t: t["w"].sum())(tree), "t['w']", "i32[3]", "astype")
    assert grad(lambda x: (x * 1.0).sum(), allow_int=True)(np.arange(3)) is None


def test_bad_argnums_are_refused():
    f = lambda x, y: x * y  # noqa: E731
    refused(ArgnumsError, lambda: grad(f, argnums=2)(1.0, 2.0), "2", "2 positional")
    refused(ArgnumsError, lambda: grad(f, argnums=(0, -2))(1.0, 2.0), "distinct")
    for argnums in ([0.5], True, (), [], 1.0, "x"):
        refused(ArgnumsError, lambda argnums=argnums: grad(f, argnums=argnums), "argnums")


def test_aux_must_be_a_pair():
    refused(ArgumentError, lambda: grad(lambda x: x.sum(), has_aux=True)(x32), "pair", "has_aux")


def test_arguments_that_are_no_arrays_are_refused_by_name():
    refused(ArgumentError, lambda: grad(lambda name: 1.0)("n"), "`name`", "str")


def test_what_is_no_function_is_refused():
    refused(ArgumentError, lambda: grad(3.0), "function", "float")


def test_a_chain_of_a_hundred_thousand_equations_is_traced_differentiated_lowered_and_freed():
    from functx.lowering.functx_call import jit_program
    from functx.transforms.reverse_mode import ValueAndGrad

    def chain(x):
        for _ in range(100_000):
            x = x * 1.0001
        return x

    program = functx.make_ir(chain)(1.0)
    assert len(program) == 100_000
    gradient = ValueAndGrad((True,), False)(program)
    assert len(gradient) >= 100_000
    jit_program(gradient).lower(jax.ShapeDtypeStruct((), "float32"))
    del program, gradient


def test_cotangents_of_parts_are_added_in_place_and_not_as_whole_arrays():
    x = np.ones(1000, "float32")

    def whole(fun, *args):
        program = functx.make_ir(grad(fun))(x, *args)
        found = [e.primitive.name for e in program if e.outputs[0].aval.shape == x.shape]
        return {name: found.count(name) for name in found}

    def disjoint(x):
        return sum(xp.sum(xp.sin(x[10 * i : 10 * i + 10]) * i) for i in range(20))

    def overlapping(x):
        return sum(xp.sum(xp.sin(x[10 * i : 10 * i + 15]) * i) for i in range(20))

    def at(x, i):
        return sum(xp.sin(x[i + k]) for k in range(20))

    assert whole(disjoint) == {"concatenate": 1}
    assert whole(overlapping) == {"concatenate": 2, "add": 1}
    assert whole(at, 3) == {"full": 1, "dynamic_update_slice": 20}


def test_cotangents_of_slices_are_put_together_and_not_each_padded_and_added():
    def f(x):
        return sum(xp.sin(x[i : i + 2]).sum() for i in range(6))

    names = Counter(eqn.primitive.name for eqn in functx.make_ir(functx.grad(f))(np.zeros(8)))
    assert names["pad"] == 0 and names["add"] <= 1 and names["concatenate"] <= 2


def test_grad_and_value_has_the_order_of_pytorch():
    def f(x, scale):
        y = scale * x
        return (y * y).sum(), {"y": y}

    x = np.arange(3.0, dtype="f")
    slopes, value = functx.grad_and_value(lambda *args: f(*args)[0], argnums=(0, 1))(x, 2.0)
    np.testing.assert_allclose(slopes[0], 8 * x)
    assert (float(slopes[1]), float(value)) == (20.0, 20.0)
    slope, (value, aux) = functx.vmap(
        functx.jit(functx.grad_and_value(f, has_aux=True)), in_dims=(0, None)
    )(x, 2.0)
    np.testing.assert_allclose(slope, 8 * x)
    np.testing.assert_allclose(value, (2 * x) ** 2)
    np.testing.assert_allclose(aux["y"], 2 * x)
    with pytest.raises(functx.errors.GradientError, match="grad_and_value"):
        functx.grad_and_value(lambda x: x)(x)


def test_mistakes_of_derivatives_are_runtime_errors_too_as_in_pytorch():
    x = np.ones(3, "f")
    pull = functx.vjp(lambda x: (x, x), x)[1]
    wrong = [
        lambda: grad(lambda x: x)(x),
        lambda: grad(lambda x: x.sum(), argnums=())(x),
        lambda: grad(lambda x: x.sum(), argnums=3)(x),
        lambda: grad(lambda x: x.sum())(np.ones(3, "i4")),
        lambda: pull(x),
        lambda: pull((x, x[:1])),
        lambda: functx.jvp(lambda x: x, (x,), (x, x)),
        lambda: functx.jacfwd(lambda x: x)(1j * x),
    ]
    for call in wrong:
        with pytest.raises(RuntimeError):
            call()
