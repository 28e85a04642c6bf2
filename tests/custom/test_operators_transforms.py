"""Custom operators under every transform and every pair of transforms."""

import jax
import numpy
import pytest

import functx
from functx import Array, custom_op, grad, jit, jvp, library, make_ir, vjp, vmap
from functx import numpy as np
from functx.testing import check_grads, check_rules, f32, sample
from tests.custom.operators import scope  # noqa: F401

x = numpy.linspace(0.2, 1.0, 4, dtype="float32")


def tanh_product(kernel="jax", rules="autograd"):
    """`tanh(x) * y * factor`, implemented and differentiated in a few ways."""

    @custom_op("test::tanh_product", kernel=kernel)
    def tanh_product(x: Array, y: Array, factor: float = 1.0) -> Array:
        module = numpy if kernel == "numpy" else np
        return (module.tanh(x) * y * factor).astype(x.dtype)

    def pullback(x, y, factor, g):
        t = np.tanh(x)
        return g * y * factor * (1 - t * t), g * t * factor

    tanh_product.def_abstract(lambda x, y, factor: x)
    if rules == "autograd":

        def setup(ctx, inputs, output):
            ctx.save_for_backward(*inputs[:2])
            ctx.factor = inputs[2]

        tanh_product.register_autograd(
            lambda ctx, g: (*pullback(*ctx.saved_tensors, ctx.factor, g), None), setup_context=setup
        )
    elif rules == "names":
        tanh_product.save_for_backward(lambda inputs, output: inputs)
        tanh_product.backward(lambda ctx, s, g: dict(zip("xy", pullback(*s, g), strict=True)))
    else:

        @tanh_product.def_jvp
        def push(primals, tangents):
            x, y, factor = primals
            dx, dy = pullback(x, y, factor, 1.0)
            return tanh_product(*primals), dx * tangents.x + dy * tangents.y

    @tanh_product.def_vmap
    def rule(info, in_dims, x, y, factor=1.0):
        lanes = [
            np.moveaxis(v, d, -1) if d is not None else v[..., None]
            for v, d in zip((x, y), in_dims, strict=False)
        ]
        wide = np.broadcast_arrays(*lanes)
        return tanh_product(*wide, factor), wide[0].ndim - 1

    return tanh_product


variants = pytest.mark.parametrize(
    ("kernel", "rules"), [("jax", "autograd"), ("numpy", "names"), ("jax", "jvp")]
)


@variants
def test_every_rule_agrees_with_the_others(kernel, rules):
    op = tanh_product(kernel, rules)
    check_rules(op.primitive, sample(f32[3], f32[3], factor=2.0, dtypes=("f32",)))


def nested(f, *names):
    verbs = {
        "jit": jit,
        "grad": lambda f: grad(lambda x: np.sum(f(x))),
        "jvp": lambda f: lambda x: jvp(f, (x,), (x,))[1],
        "vjp": lambda f: lambda x: vjp(f, x)[1](f(x))[0],
        "vmap": lambda f: lambda x: vmap(f)(np.stack([x, 2 * x]))[1],
        "checkpoint": functx.checkpoint,
        "scan": lambda f: lambda x: functx.lax.scan(lambda c, _: (f(c), None), x, None, 2)[0],
        "while": lambda f: (
            lambda x: functx.lax.while_loop(
                lambda s: s[0] < 2, lambda s: (s[0] + 1, f(s[1])), (0, x)
            )[1]
        ),
        "cond": lambda f: lambda x: functx.lax.cond(x.sum() > 0, f, lambda x: x, x),
        "functionalize": functx.functionalize,
        "jax.jit": jax.jit,
        "jax.vmap": lambda f: lambda x: jax.vmap(f)(jax.numpy.stack([x, 2 * x]))[1],
        "jax.grad": lambda f: jax.grad(lambda x: f(x).sum()),
    }
    for name in names:
        f = verbs[name](f)
    return f


@pytest.mark.parametrize(
    "names",
    [
        ("jit", "grad", "vmap"),
        ("grad", "vmap", "grad"),
        ("grad", "jvp", "vmap"),
        ("vjp", "vjp"),
        ("vmap", "vmap", "vjp"),
        ("scan", "grad"),
        ("checkpoint", "grad", "grad"),
        ("while", "jvp"),
        ("cond", "grad", "vmap"),
        ("functionalize", "jit"),
        ("vmap", "jax.grad", "jax.jit"),
    ],
    ids="-".join,
)  # fmt: skip
def test_transforms_within_each_other_agree_with_plain_code(names):
    op = tanh_product()
    found = nested(lambda x: op(x, x + 1.0, 2.0), *names)(x)
    expected = nested(lambda x: np.tanh(x) * (x + 1.0) * 2.0, *names)(x)
    assert np.allclose(found, expected, rtol=1e-4, atol=1e-5)


@variants
def test_derivatives_of_third_order(kernel, rules):
    op = tanh_product(kernel, rules)
    third = grad(grad(grad(lambda x: op(x, x, 3.0))))(0.4)
    assert third == pytest.approx(
        float(grad(grad(grad(lambda x: np.tanh(x) * x * 3.0)))(0.4)), rel=1e-3
    )


def test_both_widths_of_numbers_work(x64):
    op = tanh_product()
    wide = numpy.linspace(0.2, 1.0, 4)
    assert op(wide, wide).dtype == jit(op)(wide, wide).dtype == numpy.float64
    check_grads(lambda x, y: op(x, y, 2.0), (wide, wide), order=2)
    host = custom_op("test::host", kernel="numpy", schema="(Array x) -> (Array, int, float)")(
        lambda x: (x * 2, 3, 0.5)
    )
    host.def_abstract(lambda x: (x, 0, 0.0))
    assert [v.dtype.name for v in jit(host)(wide)] == ["float64", "int64", "float64"]
    with jax.enable_x64(False):
        assert [v.dtype.name for v in jit(host)(wide)] == ["float32", "int32", "float32"]
        assert host(wide)[0].dtype == numpy.float32


def test_arrays_without_elements_and_of_other_dtypes():
    op = tanh_product()
    empty = numpy.zeros((0, 3), "float32")
    assert op(empty, empty).shape == jit(op)(empty, empty).shape == (0, 3)
    assert grad(lambda x: op(x, x).sum())(empty).shape == (0, 3)
    for dtype in ("bfloat16", "float16", "complex64"):
        values = np.asarray(x).astype(dtype)
        assert jit(op)(values, values).dtype == values.dtype
        _, pullback = vjp(lambda x: op(x, x, 2.0), values)
        assert pullback(values)[0].dtype == values.dtype


def test_the_same_call_is_compiled_once():
    seen = []

    @custom_op("test::counted")
    def counted(x: Array, factor: float) -> Array:
        seen.append(factor)
        return x * factor

    counted.def_abstract(lambda x, factor: x)
    for _ in range(3):
        grad(lambda x: counted(functx.stop_gradient(x), 2.0).sum() * x.sum())(x)
    assert len(seen) == 1
    program = make_ir(lambda x: counted(x, 2.0))(x)
    assert program == make_ir(lambda x: counted(x, factor=2.0))(x)
    assert program != make_ir(lambda x: counted(x, 3.0))(x)
    assert make_ir(lambda x: counted(x, 0.0))(x) != make_ir(lambda x: counted(x, -0.0))(x)


def test_the_line_of_a_call_is_that_of_its_equation():
    op = tanh_product()

    def f(x):
        product = op(x, x)
        return product + 1

    text = str(make_ir(f)(x))
    assert "product: f32[4] = test::tanh_product x x   # test_operators_transforms.py:" in text
    functx.core.checking.check_program(make_ir(grad(lambda x: f(x).sum()))(x))


def test_rules_that_are_registered_between_calls_hold_in_jax_too():
    op = tanh_product()
    compiled = jax.jit(lambda x: jax.grad(lambda x: op(x, x).sum())(x))
    first = compiled(x)
    op.register_autograd(lambda ctx, g: (g * 0, g * 0))
    assert jax.jit(lambda x: jax.grad(lambda x: op(x, x).sum())(x))(x).tolist() == [0.0] * 4
    assert first.tolist() != [0.0] * 4
    with library.scoped():
        op.register_autograd(lambda ctx, g: (g, g))
        assert grad(lambda x: op(x, x).sum())(x).tolist() == [2.0] * 4
    assert grad(lambda x: op(x, x).sum())(x).tolist() == [0.0] * 4


def test_operators_are_thread_safe_to_call_while_tracing_elsewhere():
    from concurrent.futures import ThreadPoolExecutor

    op = tanh_product()
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda k: float(grad(lambda x: op(x, x, float(k)))(0.5)), range(4)))
    assert found == pytest.approx([found[1] * k for k in range(4)], rel=1e-5)
