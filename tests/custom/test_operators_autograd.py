"""`register_autograd`: a backward rule with a context."""

import jax
import numpy
import pytest

import functx
from functx import Array, custom_op, grad, jit, jvp, library, stop_gradient
from functx import numpy as np
from functx.core.errors import (
    ArgumentError,
    KeywordOnlyArrayError,
    NoAutogradFormulaError,
    OperatorRuleError,
)
from functx.testing import check_grads
from tests.custom.operators import opaque, scope  # noqa: F401

x = numpy.arange(1.0, 4.0, dtype="float32")


def affine(name="test::affine"):
    """`x * a + b * c` for arrays x and c, and numbers a and b."""

    @custom_op(name)
    def affine(x: Array, a: float = 2.0, b: float = 0.0, c: Array | None = None) -> Array:
        return x * a if c is None else x * a + b * c

    affine.def_abstract(lambda x, a, b, c: x)
    return affine


def test_a_context_keeps_arrays_and_attributes_for_the_backward_rule():
    op = affine()
    seen = []

    def setup(ctx, inputs, output):
        seen.append((inputs[1:3], ctx.needs_input_grad))
        ctx.save_for_backward(inputs[0], output)
        ctx.factor, ctx.shape, ctx.saved = inputs[1], output.shape, {"twice": inputs[0] * 2}

    def backward(ctx, g):
        x, output = ctx.saved_tensors
        assert ctx.shape == x.shape == output.shape and ctx.saved["twice"].shape == x.shape
        return g * ctx.factor, None, None, None

    op.register_autograd(backward, setup_context=setup)
    assert grad(lambda x: op(x).sum())(x).tolist() == [2.0] * 3
    assert grad(lambda x: op(x, 5.0).sum())(x).tolist() == [5.0] * 3
    assert seen == [((2.0, 0.0), (True,)), ((5.0, 0.0), (True, False))]
    check_grads(lambda x: op(x, 3.0), (x,), order=2)


def test_the_names_of_internals_are_free_for_attributes():
    op = opaque()

    def setup(ctx, inputs, output):
        ctx.saved, ctx.noted, ctx.again, ctx.needs = inputs[0], 1, 2, 3

    op.register_autograd(lambda ctx, g: g * ctx.saved * (ctx.noted + ctx.again + ctx.needs),
                         setup_context=setup)  # fmt: skip
    assert grad(op)(2.0) == 12.0


def test_nothing_is_set_up_where_no_derivative_is_taken():
    op = opaque()
    seen = []
    op.register_autograd(lambda ctx, g: g, setup_context=lambda ctx, inputs, output: seen.append(1))
    op(1.0), jit(op)(1.0), grad(lambda x: op(stop_gradient(x)) * x)(1.0)
    assert not seen
    grad(op)(1.0)
    assert seen == [1]


def test_a_rule_without_a_context_and_by_the_name_of_the_operator():
    opaque()
    library.register_autograd("test::sine", lambda ctx, g: 3.0 * g)
    assert grad(library.get("test::sine"))(1.0) == 3.0
    library.register_autograd(library.get("test::sine"), lambda ctx, g: 4.0 * g)
    assert jvp(library.get("test::sine"), (1.0,), (1.0,))[1] == 4.0


@pytest.mark.parametrize("args", [(), (2.0, 0.0, x)])
def test_there_are_as_many_gradients_as_arguments_passed_or_as_arguments(args):
    op = affine()
    counts = (1, 4) if not args else (4,)
    for count in range(6):
        op.register_autograd(lambda ctx, g: (g, None, None, None, None)[:count])  # noqa: B023
        if count in counts:
            assert grad(lambda x: op(x, *args).sum())(x).tolist() == [1.0] * 3
            continue
        wanted = " or ".join(map(str, counts))
        with pytest.raises(RuntimeError) as caught:
            grad(lambda x: op(x, *args).sum())(x)
        assert isinstance(caught.value, OperatorRuleError)
        text = str(caught.value)
        assert f"return {wanted} gradients, one for each argument; got {count}" in text
        assert (
            "test::affine: its autograd formula, registered at test_operators_autograd.py:" in text
        )


def test_one_gradient_is_no_tuple():
    op = affine()
    op.register_autograd(lambda ctx, g: [g, None])
    with pytest.raises(
        RuntimeError, match=r"return 1 or 4 gradients, one for each argument; got 2"
    ):
        grad(lambda x: op(x).sum())(x)


@pytest.mark.parametrize(
    ("gradients", "message"),
    [
        (lambda g: (g, 1.0, None, None), "give None for `a`, which is no array; got float"),
        (lambda g: (g.sum(), None, None, g), r"of `x`, f32\[3\]; got f32\[\]"),
        (lambda g: ("g", None, None, g), "an array or None for `x`; got str"),
    ],
)
def test_gradients_by_position_are_checked(gradients, message):
    op = affine()
    op.register_autograd(lambda ctx, g: gradients(g))
    with pytest.raises(RuntimeError, match=message):
        grad(lambda x: op(x, 1.0, 1.0, x).sum())(x)


def test_a_list_has_gradients_of_its_structure():
    @custom_op("test::total")
    def total(xs: list[Array], ys: list[Array | None], scale: float = 1.0) -> Array:
        return sum(xs) * scale

    total.def_abstract(lambda xs, ys, scale: xs[0])
    seen = []

    def setup(ctx, inputs, output):
        seen.append(ctx.needs_input_grad)
        ctx.scale = inputs[2]

    total.register_autograd(lambda ctx, g: ([g * ctx.scale] * 2, [None, None]), setup_context=setup)
    loss = lambda x: total([x, x * 2], [None, stop_gradient(x)]).sum()  # noqa: E731
    assert grad(loss)(x).tolist() == [3.0] * 3
    assert seen == [([True, True], [False, False])]
    for given, shown in (("g", r"PyTreeDef\(\*\)"), ("[g]", r"PyTreeDef\(\[\*\]\)")):
        total.register_autograd(lambda ctx, g: (eval(given, {"g": g}), None))  # noqa: B023
        message = rf"of the structure of `xs`, PyTreeDef\(\[\*, \*\]\); got {shown}"
        with pytest.raises(RuntimeError, match=message):
            grad(loss)(x)
    total.register_autograd(lambda ctx, g: (None, None))
    assert grad(loss)(x).tolist() == [0.0] * 3


def test_keyword_only_arguments_are_passed_separately_with_their_defaults():
    @custom_op("test::f")
    def f(x: Array, *, a: float, b: float = 3.0) -> Array:
        return x * a * b

    f.def_abstract(lambda x, *, a, b: x)
    seen = []

    def setup(ctx, inputs, output, keyword_only_inputs):
        seen.append((len(inputs), keyword_only_inputs))
        ctx.factor = keyword_only_inputs["a"] * keyword_only_inputs["b"]

    f.register_autograd(lambda ctx, g: g * ctx.factor, setup_context=setup)
    assert grad(lambda x: f(x, a=2.0))(1.0) == 6.0
    assert seen == [(1, {"a": 2.0, "b": 3.0})]
    assert "test::f[a=2.0] x" in str(functx.make_ir(lambda x: f(x, a=2.0))(1.0))


def test_keyword_only_arrays_have_no_rules():
    @library.define("test::f", "(Array x, *, Array y) -> Array")
    def f(x, *, y): ...

    f.impl("cpu")(lambda x, *, y: x + y)
    for register in (f.register_autograd, f.def_vmap, f.save_for_backward):
        with pytest.raises(NotImplementedError, match=r"keyword-only array `y`") as caught:
            register(lambda *args: None)
        assert isinstance(caught.value, KeywordOnlyArrayError)
    f.def_abstract(lambda x, *, y: x)
    assert f(1.0, y=2.0) == jit(lambda x: f(x, y=x))(1.5) == 3.0


def test_rules_must_be_functions():
    op = opaque()
    with pytest.raises(ArgumentError, match=r"test::sine: autograd formula: .* function; got int"):
        op.register_autograd(3)
    with pytest.raises(ArgumentError, match=r"register_autograd\(setup_context=...\)"):
        op.register_autograd(lambda ctx, g: g, setup_context=3)


def test_derivatives_of_a_rule_are_those_of_its_operations():
    op = opaque()

    def setup(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    op.register_autograd(lambda ctx, g: g * np.cos(ctx.saved_tensors[0]), setup_context=setup)
    op.def_vmap(lambda info, dims, x: (np.sin(x), dims[0]))
    derivatives = [op]
    for _ in range(4):
        derivatives.append(grad(derivatives[-1]))
    values = [float(d(0.3)) for d in derivatives]
    sine, cosine = numpy.sin(0.3), numpy.cos(0.3)
    assert values == pytest.approx([sine, cosine, -sine, -cosine, sine], rel=1e-5)
    assert functx.hessian(lambda x: op(x).sum())(x).diagonal().tolist() == pytest.approx(
        (-numpy.sin(x)).tolist()
    )


@pytest.mark.parametrize(
    "fun",
    [
        lambda op, x: (op(x), x)[1],
        lambda op, x: stop_gradient(op(x)) * x,
        lambda op, x: functx.checkpoint(lambda x: (op(x), x)[1])(x),
    ],
)
def test_a_declared_operator_without_a_rule_is_refused_where_it_is_called_used_or_not(fun):
    @library.define("test::declared")
    def declared(x: Array) -> Array: ...

    op = declared
    op.impl("default")(jax.numpy.sin)
    op.def_abstract(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype))
    ran = []

    def loss(x):
        found = fun(op, x)
        ran.append(x)
        return found

    for call in (grad(loss), jit(grad(loss)), lambda x: jvp(loss, (x,), (x,))):
        with pytest.raises(NoAutogradFormulaError, match="test::declared: an operator must have"):
            call(1.0)
    assert not ran
    assert grad(lambda x: op(stop_gradient(x)) * x)(1.0) == pytest.approx(numpy.sin(1.0))
    library.register_autograd("test::declared", lambda ctx, g: 2.0 * g)
    assert grad(op)(1.0) == 2.0
