"""`jit`: compiling, static arguments, captured arrays, donation, lowering."""

import gc
from functools import partial

import jax
import numpy as np
import pytest

import functx
import functx.numpy as xp
from functx import grad, jit, make_ir, vmap
from functx.core.errors import (
    ArgumentError,
    ConcretizationError,
    DonationError,
    EscapedTracerError,
    ImmutableArrayError,
    StaticArgumentError,
)

x32 = np.array([1.0, 2.0, 3.0], "float32")


def refused(error, call, *says):
    with pytest.raises(error) as caught:
        call()
    for words in says:
        assert words in str(caught.value), str(caught.value)


def test_results_are_jax_arrays_in_the_structure_returned():
    out = jit(lambda t: {"a": t[0] + 1, "b": (None, t[1])})((x32, 2.0))
    assert isinstance(out["a"], jax.Array) and out["b"][0] is None


def test_a_function_is_traced_once_for_each_set_of_types():
    traces = []

    @jit
    def f(x):
        traces.append(x.shape)
        return x * 2.0

    for _ in range(3):
        f(x32), f(x32[:2])
    assert traces == [(3,), (2,)]


def test_static_arguments_are_python_values():
    @jit(static_argnums=1, static_argnames="mode")
    def f(x, n, mode="sum"):
        return getattr(x, mode)() * n if isinstance(n, int) else 0

    assert float(f(x32, 2)) == 12.0
    assert float(f(x32, 3, mode="max")) == 9.0
    assert float(jit(lambda n, x: x * len(n), static_argnums=-2)(("a", "b"), 3.0)) == 6.0


def test_inside_a_trace_each_static_value_and_weak_type_has_a_program_of_its_own():
    power = jit(lambda x, n: x**n, static_argnames="n")
    assert float(grad(lambda x: power(x, n=2) + power(x, n=3) + power(x, 4))(2.0)) == 48.0
    half = np.ones((), "float16")
    add = jit(lambda x: x + half)
    out = make_ir(lambda x: (add(x), add(1.0), add(x)))(np.ones((), "float32")).out_avals
    assert [a.dtype for a in out] == [np.float32, np.float16, np.float32]


def test_a_static_object_that_changes_is_seen():
    class Config:
        def __init__(self, k):
            self.k = k

    config = Config(2.0)
    f = jit(lambda c, x: c.k * x, static_argnums=0)
    first = float(f(config, 3.0))
    config.k = 5.0
    assert (first, float(f(config, 3.0))) == (6.0, 15.0)


def test_static_arguments_that_cannot_be_hashed_are_refused():
    f = jit(lambda n, x: x, static_argnums=0)
    refused(StaticArgumentError, lambda: f([1, 2], 1.0), "hashable", "list", "number 0", "tuple")
    refused(StaticArgumentError, lambda: f(jax.numpy.ones(3), 1.0), "number 0")
    refused(ArgumentError, lambda: jit(lambda x: x, static_argnums=3), "static_argnums", "(3,)")
    refused(
        ArgumentError, lambda: jit(lambda x: x, static_argnames="y"), "static_argnames", "['y']"
    )


def test_captured_arrays_are_passed_and_not_baked_in():
    big = jax.numpy.arange(100_000.0)
    f = jit(lambda x: (big * x).sum())
    np.testing.assert_allclose(f(2.0), 2 * big.sum(), rtol=1e-6)
    assert len(f.lower(1.0).as_text()) < 5_000
    table = np.arange(3.0, dtype="float32")
    g = jit(lambda x: x + table)
    before = np.asarray(g(x32))
    table[:] = 100.0
    np.testing.assert_array_equal(g(x32), before)


def test_captured_values_of_an_outer_trace_are_inputs_of_the_inner_function():
    def f(x):
        inner = jit(lambda y: x * y)
        return inner(2.0) + inner(3.0)

    assert float(grad(f)(1.0)) == 5.0
    np.testing.assert_allclose(vmap(f)(x32), 5 * x32)
    assert float(jit(grad(f))(1.0)) == 5.0


def test_inside_a_trace_a_jitted_function_is_one_call():
    inner = jit(lambda x: xp.sin(x) * x)
    names = [e.primitive.name for e in make_ir(lambda x: inner(inner(x)))(1.0)]
    assert names == ["call", "call"]
    inlined = jit(lambda x: xp.sin(x) * x, inline=True)
    assert [e.primitive.name for e in make_ir(inlined)(1.0)] == ["sin", "mul"]


def test_a_block_called_often_is_emitted_once():
    block = jit(lambda x: xp.tanh(x) * 2.0)

    def f(x):
        for _ in range(20):
            x = block(x)
        return x

    text = jit(f, outline="never").lower(1.0).as_text()
    assert text.count("stablehlo.tanh") == 1 and text.count("call @") == 20


def test_lowered_functions_compile_and_tell_their_cost():
    f = jit(lambda x, y: x @ y)
    lowered = f.lower(np.ones((8, 8), "f"), np.ones((8, 8), "f"))
    assert "stablehlo.dot_general" in lowered.as_text()
    compiled = lowered.compile()
    np.testing.assert_allclose(
        compiled(np.ones((8, 8), "f"), np.ones((8, 8), "f")), 8 * np.ones((8, 8))
    )
    assert compiled.cost_analysis()["flops"] > 500
    assert "HloModule" in compiled.as_text()
    assert lowered.cost_analysis()["flops"] > 500


def test_lower_takes_shapes_without_values():
    lowered = jit(lambda x: x * 2).lower(jax.ShapeDtypeStruct((3,), "float32"))
    np.testing.assert_allclose(lowered.compile()(x32), 2 * x32)


def test_a_trace_has_the_program_and_is_lowered_and_compiled():
    traced = jit(lambda x, n, *, k: {"a": x * n, "b": (x**k).sum()}, static_argnums=1).trace(
        x32, 2, k=jax.ShapeDtypeStruct((), "float32")
    )
    assert [eqn.primitive.name for eqn in traced.jaxpr] == ["mul", "pow", "reduce_sum"]
    assert traced.fun_name == "lambda" and traced.out_avals["a"].shape == x32.shape
    assert traced.out_info["b"].shape == () and not traced.args_info[1]["k"].donated
    assert float(traced(x32, k=np.float32(2.0))["b"]) == (x32**2).sum()
    compiled = traced.lower().compile()
    assert float(compiled(x32, k=np.float32(1.0))["b"]) == x32.sum()
    assert compiled.call(x32, k=np.float32(1.0))["a"].tolist() == (2 * x32).tolist()
    assert compiled.input_formats[0][0].sharding == compiled.input_shardings[0][0]
    assert compiled.output_formats["b"].sharding == compiled.output_shardings["b"]


class Parabola:
    """A callable object with an attribute."""

    def __init__(self, factor):
        self.factor = factor

    def __call__(self, x):
        return self.factor * x * x


def test_transformed_functions_have_the_attributes_of_the_function():
    parabola = Parabola(3.0)
    for transform in (
        *(jit, grad, functx.value_and_grad, vmap, functx.jacfwd, functx.jacrev, functx.hessian),
        *(functx.checkpoint, functx.custom_jvp, functx.custom_vjp, functx.custom_vmap),
    ):
        assert transform(parabola).factor == 3.0, transform
    assert float(grad(jit(parabola))(2.0)) == 12.0 and grad(jit(parabola)).factor == 3.0


def test_the_methods_of_a_jitted_function_are_not_those_of_its_transforms():
    jitted = jit(Parabola(3.0))
    assert jit(jitted).lower(2.0).compile()(2.0) == 12.0
    for method in ("trace", "lower", "eval_shape", "clear_cache"):
        assert hasattr(jit(jitted), method) and not hasattr(grad(jitted), method)


def test_a_custom_rule_is_not_that_of_a_function_around_it():
    rule = functx.custom_vjp(lambda x: x * x)
    rule.defvjp(lambda x: (x * x, x), lambda x, ct: (x * ct,))
    with pytest.raises(functx.errors.MissingRuleError, match="derivative rule"):
        functx.custom_vjp(rule)(2.0)


def test_eval_shape_computes_nothing():
    out = jit(lambda x: {"a": x @ x.T}).eval_shape(np.ones((3, 2), "f"))
    assert out == {"a": jax.ShapeDtypeStruct((3, 3), "float32")}
    assert functx.eval_shape(lambda x: x, 2.0).weak_type


def test_donated_buffers_are_given_up():
    x = jax.numpy.ones(1000)
    jit(lambda x: x + 1, donate_argnums=0)(x)
    assert x.is_deleted()


def test_a_captured_array_is_not_donated():
    w = jax.numpy.ones(2000)
    f = jit(lambda x: x + w, donate_argnums=0)
    f(jax.numpy.ones(2000))
    with pytest.raises(DonationError, match="for `x`, which is donated, and for `c0`, which the"):
        f(w)


def test_small_captured_arrays_are_constants():
    small, large = np.arange(3.0, dtype="float32"), np.ones(2000, "float32")
    text = jit(lambda x: (x + small, large * x[0])).lower(small).as_text()
    assert "%arg1: tensor<3xf32>" in text and "%arg0: tensor<2000xf32>" in text
    assert "%arg2" not in text


def test_shardings_are_those_of_jax():
    device = jax.devices()[0]
    sharding = jax.sharding.SingleDeviceSharding(device)
    f = jit(lambda x, y: x + y, in_shardings=(sharding, sharding), out_shardings=sharding)
    assert f(x32, x32).sharding == sharding


def test_unused_arguments_may_be_kept():
    f = jit(lambda x, y: x, keep_unused=True)
    assert "%arg1" in f.lower(x32, x32).as_text()
    assert "%arg1" not in jit(lambda x, y: x).lower(x32, x32).as_text()


def test_jit_inside_jax_jit_is_a_citizen_of_it():
    f = jit(lambda x: xp.sin(x).sum())
    np.testing.assert_allclose(jax.jit(lambda x: f(x) * 2)(x32), 2 * np.sin(x32).sum(), rtol=1e-6)


def test_clear_caches_makes_the_next_call_compile_again():
    grad(lambda x: x * x)(1.0)
    functx.clear_caches()
    assert functx.cache_info()["programs"].size == 0
    assert float(grad(lambda x: x * x)(1.0)) == 2.0


def test_python_control_flow_on_traced_values_is_refused_under_jit():
    f = jit(lambda x: x if x > 0 else -x)
    refused(ConcretizationError, lambda: f(1.0), "`x`", "jit(lambda)", "lax.cond", "static_argnums")
    refused(ConcretizationError, lambda: jit(grad(lambda x: x * 2 if x > 0 else x))(1.0), "jit")
    refused(ConcretizationError, lambda: jit(lambda x, n: sum(x for _ in range(n)))(1.0, 3), "`n`")
    refused(
        functx.errors.ForeignCodeError,
        lambda: jit(lambda x: np.linalg.qr(np.asarray(x)))(np.eye(2)),
        "functx.numpy",
    )


def test_values_that_depend_on_no_argument_are_concrete_under_jit():
    def f(x):
        return x * 2.0 if (xp.ones(3) * 2.0).sum() > 5 else x

    assert float(jit(f)(1.0)) == 2.0


def test_a_value_used_after_its_trace_is_refused_with_both_lines():
    saved = []

    def f(x):
        saved.append(x * 2)
        return x

    jit(f)(1.0)
    refused(EscapedTracerError, lambda: saved[0] + 1, "jit(f)", "test_jit.py", "has_aux")
    assert issubclass(EscapedTracerError, RuntimeError)


def test_assignment_to_repeated_elements_is_refused_with_the_cure():
    def f(x):
        rows = xp.broadcast_to(x, (2, 3))
        rows[0] = 1.0
        return rows

    def add(x):
        rows = xp.broadcast_to(x, (2, 3))
        rows += 1.0
        return rows

    def fill(x):
        xp.broadcast_to(x, (2, 3)).fill(0.0)

    x = xp.asarray(x32)
    for call in (jit(f), f, jit(fill), fill):
        refused(ImmutableArrayError, partial(call, x), "Copy it first (.copy())", "f32[2,3]")
    for call in (jit(add), add):
        refused(ImmutableArrayError, partial(call, x), "Write x = x + y,", "f32[2,3]")
    assert issubclass(ImmutableArrayError, ValueError)


def test_arrays_of_jax_take_a_traced_index_and_those_of_numpy_are_refused_with_the_cure():
    table, jtable = np.arange(3.0), jax.numpy.arange(3.0)
    cure = "functx.numpy.asarray(table)[i]"
    refused(functx.errors.ForeignCodeError, lambda: jit(lambda i: table[i])(1), cure)
    assert float(jit(lambda i: jtable[i])(1)) == 1.0
    np.testing.assert_allclose(jit(lambda x: jax.numpy.sin(x))(1.0), np.sin(1.0), rtol=1e-6)
    assert float(jit(lambda i: xp.asarray(table)[i])(1)) == 1.0


def test_operators_between_concrete_and_traced_arrays_are_traced():
    jtable = jax.numpy.arange(3.0)
    f = lambda x: (x32 * x + jtable - x) @ np.ones(3, "float32") + (jtable > x).sum()  # noqa: E731
    np.testing.assert_allclose(jit(f)(x32), f(jax.numpy.asarray(x32)), rtol=1e-6)
    np.testing.assert_allclose(
        jit(lambda x: np.sin(x) + np.sum(x))(x32), np.sin(x32) + 6, rtol=1e-6
    )


def test_the_traces_of_a_function_that_is_gone_are_gone_with_it():
    from functx.core.caches import Cache

    gc.collect()
    before = len(Cache.instances)
    for _ in range(20):
        jit(lambda x: x + 1.0)
    gc.collect()
    assert len(Cache.instances) <= before
