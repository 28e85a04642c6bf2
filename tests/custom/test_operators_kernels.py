"""Implementations of custom operators, their abstract rules, and the dispatch by platform."""

import logging

import jax
import jax.numpy as jnp
import numpy
import pytest

import functx
from functx import Array, custom_op, grad, jit, library, make_ir, vmap
from functx import numpy as np
from functx.core.errors import (
    ArgumentError,
    DynamicShapeError,
    ForeignCodeError,
    ImmutableArrayError,
    MissingKernelError,
    OperatorRuleError,
    RegistrationError,
    ValueRangeError,
)
from functx.ops.transcendental import Sin
from functx.testing import opcheck
from tests.custom.operators import opaque, scope  # noqa: F401

x = numpy.arange(3, dtype="float32")
sine_of_one = pytest.approx(0.8414710)


def declared(name="test::f", schema="(Array x) -> Array"):
    def f(x): ...

    op = library.define(name, schema)(f)
    op.def_abstract(lambda x: x)
    return op


def test_impl_returns_the_implementation_unchanged():
    op = declared()

    @op.impl(["cpu", "gpu", "cpu"])
    def own(x):
        return x + 1

    assert own(1) == 2
    assert op(x).tolist() == jit(op)(x).tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("platform", ["xpu", "cuda", 3])
def test_an_unknown_platform_is_refused_with_the_list_of_platforms(platform):
    for register in (opaque().impl, lambda p: custom_op("test::other", device_types=p)):
        with pytest.raises(ValueRangeError, match=r"one of cpu, gpu, tpu, default; got"):
            register(platform)


def test_a_second_implementation_for_a_platform_is_refused_with_the_line_of_the_first():
    op = declared()
    op.impl("cpu")(jnp.sin)
    with pytest.raises(RuntimeError) as caught:
        op.impl(["gpu", "cpu"])(jnp.cos)
    message = str(caught.value)
    assert isinstance(caught.value, RegistrationError)
    assert "test::f: its implementation for cpu must be registered once" in message
    assert "the first was registered at test_operators_kernels.py:" in message
    op.impl("gpu")(jnp.cos)
    op.impl("cpu", allow_override=True)(jnp.cos)
    assert op(x)[0] == 1.0


def test_the_function_of_an_operator_implements_it_on_all_platforms_or_on_those_named():
    with pytest.raises(
        RuntimeError, match=r"its implementation for default must be registered once"
    ):
        opaque().impl("default")(jnp.cos)
    op = custom_op("test::here", lambda x: -x, device_types="cpu", schema="(Array x) -> Array")
    assert op(x)[1] == -1.0
    op.impl("gpu")(jnp.positive)


def test_primitives_have_rules_already():
    for name in ("functx::sin", Sin):
        with pytest.raises(RuntimeError, match=r"sin is a primitive, with pre-existing rules"):
            library.impl(name, "cpu", jnp.sin)


def test_rules_may_be_given_to_operators_that_are_defined_elsewhere():
    declared()
    library.impl("test::f", "cpu")(jnp.sin)
    library.register_autograd("test::f", lambda ctx, g: 3.0 * g)
    library.def_vmap("test::f", lambda info, dims, x: (jnp.sin(x), dims[0]))
    assert grad(library.get("test::f"))(0.0) == 3.0
    with pytest.raises(ValueError, match=r"operator of that name; got 'test::g'"):
        library.def_abstract("test::g", lambda x: x)
    with pytest.raises(ArgumentError, match=r"pass an operator or its name; got int"):
        library.def_jvp(3, lambda x: x)


def test_the_implementation_for_the_platform_comes_before_that_for_all():
    op = opaque()
    assert op(x)[1] == sine_of_one
    op.impl("cpu")(lambda x: x * 10)
    assert op(x)[1] == jit(op)(x)[1] == 10.0
    other = opaque("test::other")
    other.impl("tpu")(lambda x: x * 10)
    assert other(x)[1] == sine_of_one


def test_three_different_messages_say_what_is_not_implemented():
    @custom_op("test::several", device_types="gpu")
    def several(xs: list[Array]) -> Array:
        return xs[0]

    with pytest.raises(NotImplementedError) as caught:
        several([x])
    assert isinstance(caught.value, MissingKernelError) and isinstance(caught.value, RuntimeError)
    assert "test::several: there must be an implementation for the platform cpu" in str(
        caught.value
    )
    assert "got gpu (test_operators_kernels.py:" in str(caught.value)
    assert '@several.impl("cpu")' in str(caught.value)

    with pytest.raises(NotImplementedError, match=r"no array inputs") as caught:
        several([])
    assert 'several.impl("default")' in str(caught.value)

    with pytest.raises(NotImplementedError, match=r"must have an abstract rule") as caught:
        jit(several)([x])
    assert "several.def_abstract(" in str(caught.value)

    several.def_abstract(lambda xs: xs[0])
    with pytest.raises(NotImplementedError, match=r"an implementation for the platform cpu"):
        jit(several)([x])


def test_operators_that_make_arrays_have_a_device_or_an_implementation_for_all():
    with pytest.raises(ValueError, match=r"required to have a `device` parameter"):
        custom_op("test::filled", device_types="cpu", schema="(int n) -> Array")(
            lambda n: jnp.ones(n)
        )

    @custom_op("test::filled")
    def filled(n: int) -> Array:
        return jnp.ones(n)

    with pytest.raises(ValueError, match=r"required to have a `device` parameter"):
        filled.impl("gpu")(jnp.ones)
    assert type(filled(3)) is numpy.ndarray and filled(3).tolist() == [1.0, 1.0, 1.0]
    filled.def_abstract(lambda n: jax.ShapeDtypeStruct((n,), "float32"))
    assert jit(lambda: filled(2) * 2)().tolist() == [2.0, 2.0]

    @custom_op("test::placed", device_types="cpu")
    def placed(n: int, device: jax.Device) -> Array:
        return jax.device_put(jnp.ones(n), device)

    assert isinstance(placed(2, jax.devices("cpu")[0]), jax.Array)
    with pytest.raises(RuntimeError, match=r"test::placed: .* implementation for the platform tpu"):
        placed(2, "tpu")


@pytest.mark.parametrize("kernel", ["jax", "numpy"])
def test_types_in_are_types_out(kernel):
    @custom_op("test::twice", kernel=kernel)
    def twice(x: Array) -> tuple[Array, float]:
        return x + x, 2.5

    for value, kind in ((x, numpy.ndarray), (jnp.asarray(x), jax.Array), (2.0, numpy.ndarray)):
        out, number = twice(value)
        assert isinstance(out, kind) and out.dtype == numpy.float32 and type(number) is float
    twice.def_abstract(lambda x: (x, 0.0))
    out, number = jit(twice)(x)
    assert out.tolist() == [0.0, 2.0, 4.0] and number == 2.5
    assert jax.jit(twice)(x)[0].tolist() == [0.0, 2.0, 4.0]


def test_code_of_numpy_runs_on_the_host_wherever_the_program_is():
    seen = []

    @custom_op("test::sorted", kernel="numpy")
    def sort(x: Array, axis: int = -1) -> tuple[Array, list[Array]]:
        seen.append(type(x))
        return numpy.sort(x, axis), [numpy.float32(x.max()), numpy.float32(x.min())]

    struct = jax.ShapeDtypeStruct
    sort.def_abstract(lambda x, axis: (x, [struct((), x.dtype), struct((), x.dtype)]))
    y = numpy.array([[3, 1, 2], [0, 5, 4]], "float32")

    def total(y):
        def body(carry, row):
            out, (most, _) = sort(row, 0)
            return carry + most, out

        return functx.lax.scan(body, 0.0, y)

    for run in (total, jit(total), jax.jit(total)):
        most, rows = run(y)
        assert most == 8.0 and rows.tolist() == [[1, 2, 3], [0, 4, 5]]
    with pytest.warns(UserWarning, match=r"test::sorted has no vmap rule"):
        assert vmap(sort)(y)[1][0].tolist() == [3.0, 5.0]
    assert set(seen) == {numpy.ndarray}


def test_code_of_numpy_is_not_traced_by_jax():
    @custom_op("test::norm")
    def norm(x: Array) -> Array:
        return numpy.linalg.norm(numpy.asarray(x))

    norm.def_abstract(lambda x: jax.ShapeDtypeStruct((), x.dtype))
    with pytest.raises(ForeignCodeError, match=r"code that JAX can trace") as caught:
        jit(norm)(x)
    message = str(caught.value)
    assert 'kernel="numpy"' in message and "test::norm" in message
    assert "registered at test_operators_kernels.py:" in message
    with pytest.raises(ArgumentError, match=r"kernel must be one of 'jax', 'numpy'; got 'torch'"):
        norm.impl("cpu", kernel="torch")


def test_the_result_of_an_implementation_must_have_the_types_of_the_abstract_rule():
    for kernel in ("jax", "numpy"):
        op = custom_op(f"test::cut_{kernel}", kernel=kernel, schema="(Array x) -> Array")(
            lambda x: x[:2] * 1
        )
        assert op(x).shape == (2,)
        op.def_abstract(lambda x: x)
        with pytest.raises(OperatorRuleError) as caught:
            jit(op)(x)
        assert "give results of the types that its abstract rule states" in str(caught.value)
        assert "got f32[2] for number 0: f32[3]" in str(caught.value)
        assert "test_operators_kernels.py:" in str(caught.value)


@pytest.mark.parametrize(
    ("schema", "fun", "message"),
    [
        ("(Array x) -> (Array, Array)", lambda x: x + 1, "return a tuple of 2; got "),
        ("(Array x) -> (Array, Array)", lambda x: (x + 1,), "return a tuple of 2; got tuple of 1"),
        ("(Array x) -> ()", lambda x: x + 1, "return None; got "),
        ("(Array x) -> Array[]", lambda x: x + 1, "give a list for the result; got "),
        ("(Array x) -> Array", lambda x: "one", "give an array for the result; got str"),
        ("(Array x) -> int", lambda x: x + 1, "give a number for the result; got "),
    ],
)
def test_results_must_fit_the_schema(schema, fun, message):
    for kernel in ("jax", "numpy"):
        op = custom_op(f"test::{kernel}", kernel=kernel, schema=schema)(fun)
        with pytest.raises(OperatorRuleError, match=message):
            op(x)


@pytest.mark.parametrize(
    ("out", "message"),
    [
        (lambda x: None, "give something with a shape and a dtype for the result; got NoneType"),
        (lambda x: (x, x), "a shape and a dtype for the result; got tuple"),
        (lambda x: jax.ShapeDtypeStruct((-1,), x.dtype), "a shape of lengths for the result"),
    ],
)
def test_an_abstract_rule_states_types(out, message):
    op = custom_op("test::f", schema="(Array x) -> Array")(lambda x: x + 1)
    op.def_abstract(out)
    with pytest.raises(OperatorRuleError, match=f"its abstract rule, registered at .*{message}"):
        jit(op)(x)


def test_an_operator_that_returns_nothing_needs_no_abstract_rule():
    @custom_op("test::double", mutates_args=("x",), kernel="numpy")
    def double(x: Array) -> None:
        x *= 2

    def doubled(x):
        double(x)
        return x.sum()

    a = numpy.ones(3, "float32")
    assert jit(doubled)(a) == 6.0 and a.tolist() == [2.0] * 3
    assert opcheck(double, (a,))["test_faketensor"] == "SUCCESS"


def test_an_abstract_rule_is_registered_once_and_one_that_fails_leaves_nothing():
    op = custom_op("test::f", schema="(Array x) -> Array")(lambda x: x + 1)
    with pytest.raises(ArgumentError):
        op.def_abstract(3)
    with pytest.raises(NotImplementedError, match=r"must have an abstract rule"):
        jit(op)(x)
    op.def_abstract(lambda x: x)
    with pytest.raises(RuntimeError, match=r"its abstract rule must be registered once") as caught:
        op.def_abstract(lambda x: x)
    assert "the first was registered at test_operators_kernels.py:" in str(caught.value)
    assert jit(op)(x).tolist() == [1.0, 2.0, 3.0]


def test_an_abstract_rule_may_be_overridden_within_a_scope():
    op = custom_op("test::f", schema="(Array x) -> Array")(lambda x: jnp.ones(x.shape))
    op.def_abstract(lambda x: x)
    half = numpy.ones(3, "float16")
    with library.scoped():
        op.def_abstract(lambda x: jax.ShapeDtypeStruct(x.shape, "float32"), allow_override=True)
        assert make_ir(op)(half).out_avals[0].dtype == numpy.float32
        assert jit(op)(half).dtype == numpy.float32
    assert make_ir(op)(half).out_avals[0].dtype == numpy.float16


def test_abstract_rules_may_use_eval_shape():
    op = custom_op("test::f", schema="(Array x) -> Array")(lambda x: functx.numpy.cumsum(x))
    op.def_abstract(lambda x: functx.eval_shape(functx.numpy.cumsum, x))
    assert jit(op)(x).tolist() == [0.0, 1.0, 3.0]
    op.def_abstract(lambda x: jax.eval_shape(jnp.cumsum, x), allow_override=True)
    assert grad(lambda x: op(functx.stop_gradient(x)).sum() + x.sum())(x).tolist() == [1.0] * 3


def test_a_size_that_depends_on_values_needs_a_maximum_in_a_program():
    @custom_op("test::positive", kernel="numpy")
    def positive(x: Array) -> tuple[Array, int]:
        return x[x > 0], int((x > 0).sum())

    y = numpy.array([1.0, -1.0, 2.0], "float32")
    assert positive(y)[0].tolist() == [1.0, 2.0]

    @positive.def_abstract
    def unbounded(x):
        return jax.ShapeDtypeStruct((library.get_ctx().new_dynamic_size(),), x.dtype), 0

    for transformed in (jit(positive), lambda y: functx.vjp(lambda x: positive(x)[0], y)):
        with pytest.raises(
            RuntimeError, match=r"test::positive: .* must not depend on values"
        ) as e:
            transformed(y)
        assert isinstance(e.value, DynamicShapeError)
        assert "test_operators_kernels.py:" in str(e.value)
    assert positive(y)[1] == 2

    @positive.def_abstract(allow_override=True)
    def bounded(x):
        size = library.get_ctx().new_dynamic_size(min=0, max=x.size)
        return jax.ShapeDtypeStruct((size,), x.dtype), 0

    found, count = jit(positive)(y)
    assert found.tolist() == [1.0, 2.0, 0.0] and count == 2


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ({"min": -1}, "`min` of a dynamic size must be at least 0; got -1"),
        ({"min": 3, "max": 2}, "`max` of a dynamic size must be at least `min`; got 2 and 3"),
        ({"max": "x"}, "`max` of a dynamic size must be an int that is known now; got str"),
    ],
)
def test_bounds_of_sizes_are_numbers_in_order(bounds, message):
    op = custom_op("test::f", schema="(Array x) -> Array")(lambda x: x[x > 0])
    op.def_abstract(
        lambda x: jax.ShapeDtypeStruct((library.get_ctx().new_dynamic_size(**bounds),), x.dtype)
    )
    with pytest.raises(ValueError, match=message):
        jit(op)(x)


def test_dynamic_sizes_are_made_only_in_abstract_rules():
    with pytest.raises(RuntimeError, match=r"dynamic sizes must be made in an abstract rule"):
        library.get_ctx()


def test_an_implementation_is_switched_off_for_a_while(caplog):
    op = opaque()
    op.impl("cpu")(lambda x: x * 10)
    compiled = jit(op)
    assert compiled(x)[1] == 10.0
    with op.set_kernel_enabled("cpu", False):
        assert op(x)[1] == sine_of_one and compiled(x)[1] == sine_of_one
        with op.set_kernel_enabled("cpu", True):
            assert op(x)[1] == compiled(x)[1] == 10.0
            assert not caplog.records
        with caplog.at_level(logging.WARNING), op.set_kernel_enabled("cpu", False):
            assert "test::sine: the implementation for cpu is off already" in caplog.text
        with caplog.at_level(logging.WARNING), op.set_kernel_enabled("xpu", False):
            assert "test::sine: there is no implementation for 'xpu' to switch" in caplog.text
    assert op(x)[1] == compiled(x)[1] == 10.0
    with (
        op.set_kernel_enabled("cpu", False),
        op.set_kernel_enabled("default", False),
        pytest.raises(NotImplementedError, match=r"of which default, cpu is switched off"),
    ):
        op(x)


def test_a_later_implementation_is_used_by_functions_compiled_before():
    op = opaque()
    compiled = jit(lambda x: op(x) + 1.0)
    assert compiled(0.0) == 1.0
    op.impl("cpu")(lambda x: x + 10.0)
    assert compiled(0.0) == 11.0
    program = make_ir(op)(0.0)
    assert program(0.0) == 10.0


def test_numpy_code_must_write_only_to_mutates_args():
    @custom_op("test::f", kernel="numpy", mutates_args=())
    def f(x: Array) -> Array:
        x += 1
        return x * 1

    f.def_abstract(lambda x: x)
    y = numpy.ones(3, "float32")
    for run in (f, jit(f)):
        with pytest.raises(
            ImmutableArrayError, match=r"must write only to the arguments in mutates_args"
        ):
            run(y)
    assert y.tolist() == [1.0] * 3


def test_a_kernel_of_pallas_or_a_foreign_function_is_code_of_jax():
    from jax.experimental import pallas

    def kernel(x_ref, out_ref):
        out_ref[...] = x_ref[...] * 2

    def doubled(x):
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return pallas.pallas_call(kernel, out_shape=shape, interpret=True)(x)

    op = custom_op("test::doubled", doubled, schema="(Array x) -> Array")
    op.def_abstract(lambda x: x)
    op.register_autograd(lambda ctx, g: op(g))
    assert op(x).tolist() == jit(op)(x).tolist() == [0.0, 2.0, 4.0]
    assert grad(lambda x: op(x).sum())(x).tolist() == [2.0] * 3
    assert grad(grad(lambda x: op(x * x).sum()))(1.0) == 4.0

    def factor(x):
        outs = jax.ffi.ffi_call(
            "lapack_spotrf_ffi", (x_struct(x), jax.ShapeDtypeStruct((), "int32"))
        )
        return outs(x, uplo=numpy.uint8(ord("L")))

    def x_struct(x):
        return jax.ShapeDtypeStruct(x.shape, x.dtype)

    cholesky = custom_op("test::potrf", factor, schema="(Array x) -> (Array, Array)")
    cholesky.def_abstract(lambda x: (x, jax.ShapeDtypeStruct((), "int32")))
    jnp.linalg.cholesky(jnp.eye(2))
    matrix = numpy.diag([4.0, 9.0]).astype("float32")
    assert jit(cholesky)(matrix)[0].tolist() == [[2.0, 0.0], [0.0, 3.0]]


def test_a_program_for_several_platforms_has_a_branch_for_each():
    op = custom_op("test::f", lambda x: x + 1, schema="(Array x) -> Array")
    op.impl("cpu", kernel="numpy")(lambda x: x * numpy.float32(10))
    op.impl("gpu")(lambda x: jnp.sin(x))
    op.def_abstract(lambda x: x)
    exported = jax.export.export(jax.jit(lambda x: op(x)), platforms=["tpu", "cuda"])(x)
    assert "sine" in exported.mlir_module()
    assert jit(op)(x)[2] == 20.0


def test_values_that_python_asks_for_are_computed():
    op = opaque()
    op.register_autograd(
        lambda ctx, g: g * functx.numpy.cos(ctx.saved_tensors[0]),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    )

    def loss(x):
        y = op(x)
        return y if y > 0 else -y

    assert grad(loss)(1.0) == numpy.cos(numpy.float32(1.0))
    assert grad(loss)(-1.0) == -numpy.cos(numpy.float32(1.0))


def test_an_operator_without_results_runs_in_a_program_all_the_same():
    seen = []

    @custom_op("test::note", kernel="numpy")
    def note(x: Array) -> None:
        seen.append(float(x))

    note.def_abstract(lambda x: None)
    assert note(1.0) is None

    @jit
    def f(x):
        note(x)
        return x * 2

    f(2.0)
    functx.effects_barrier()
    assert grad(f)(3.0) == 2.0
    functx.effects_barrier()
    assert seen == [1.0, 2.0, 3.0]


def test_results_have_memory_of_their_own_with_and_without_jit():
    kept = numpy.zeros(2, "float32")

    def twice(x: Array) -> tuple[Array, Array, list[Array]]:
        y = numpy.concatenate([x, x])
        return y[:2], y[1:3], [y[2:], kept]

    def body(x: Array) -> tuple[Array, Array, list[Array]]:
        y = np.concatenate([x, x])
        return y[:2], y[1:3], [y[2:], np.zeros(2, "float32")]

    struct = jax.ShapeDtypeStruct((2,), "float32")
    on_host = custom_op("test::twice", twice, kernel="numpy")
    on_host.def_abstract(lambda x: (struct, struct, [struct, struct]))

    def callback(x):
        return functx.pure_callback(
            lambda x: (kept, kept, (x, kept)), (struct, struct, (struct, struct)), x
        )

    for op in (on_host, custom_op("test::body", body, decomposition=True), callback):

        def written(x, op=op):
            first, second, (third, fourth) = op(x)
            unchanged = [second + 0, third + 0, fourth + 0]
            first += 10.0
            return [second - unchanged[0], third - unchanged[1], fourth - unchanged[2], x]

        given = numpy.ones(2, "float32")
        for call in (written, jit(written)):
            found = call(given)
            assert [numpy.asarray(y).tolist() for y in found] == [[0, 0]] * 3 + [[1, 1]]
            assert kept.tolist() == [0, 0]
