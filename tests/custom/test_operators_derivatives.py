"""Derivatives of custom operators: gradients by name, rules for forward mode, and no rule."""

import jax
import numpy
import pytest

import functx
from functx import Array, custom_op, grad, hessian, jit, jvp, library, stop_gradient, vjp, vmap
from functx import numpy as np
from functx.core.errors import NoAutogradFormulaError, OperatorRuleError, RegistrationError
from functx.testing import check_grads
from tests.custom.operators import opaque, scaled_sum, scope  # noqa: F401

x = numpy.arange(1.0, 4.0, dtype="float32")


def sine_with_rules(name="test::sine"):
    op = opaque(name)
    op.save_for_backward(lambda inputs, output: inputs.x)
    op.backward(lambda ctx, x, g: {"x": g * np.cos(x)})
    return op


def refused(call, *words):
    with pytest.raises(NoAutogradFormulaError) as caught:
        call()
    assert isinstance(caught.value, NotImplementedError)
    assert isinstance(caught.value, RuntimeError)
    for word in words:
        assert word in str(caught.value)


def test_a_derivative_without_a_rule_is_refused_and_never_zero():
    op = opaque()
    for call in (
        lambda: grad(op)(1.0),
        lambda: vjp(op, 1.0)[1](1.0),
        lambda: jvp(op, (1.0,), (1.0,)),
        lambda: functx.linearize(op, 1.0)[1](1.0),
        lambda: functx.jacfwd(op)(x),
        lambda: functx.jacrev(op)(x),
        lambda: hessian(lambda x: op(x).sum())(x),
        lambda: jit(grad(op))(1.0),
        lambda: vmap(grad(op))(x),
        lambda: jax.grad(op)(1.0),
        lambda: jax.jvp(op, (1.0,), (1.0,)),
        lambda: jax.jit(jax.grad(lambda x: op(x) * 2.0))(1.0),
        lambda: grad(lambda x: functx.lax.scan(lambda c, _: (op(c), None), x, None, 3)[0])(1.0),
        lambda: grad(functx.checkpoint(op))(1.0),
        lambda: grad(lambda x: functx.lax.cond(x > 0, op, lambda x: x, x))(1.0),
    ):
        if call.__code__.co_names[:1] == ("vmap",):
            op.def_vmap(lambda info, dims, x: (np.sin(x), dims[0]))
        refused(call, "test::sine", "register_autograd(backward", "test_operators_derivatives.py")


def test_an_operator_that_no_derivative_needs_runs_without_a_rule():
    op = opaque()
    assert grad(lambda x: (op(x), x * 3)[1])(1.0) == 3.0
    assert grad(lambda x: op(stop_gradient(x)) * x)(0.0) == 0.0
    assert grad(lambda x, y: op(x) * y, argnums=1)(0.0, 1.0) == 0.0
    value, pullback = vjp(op, 1.0)
    assert value == pytest.approx(0.8414710)
    refused(lambda: pullback(1.0), "test::sine")
    assert grad(lambda x: (x * 3, op(x)), has_aux=True)(0.0) == (3.0, 0.0)
    assert jvp(lambda x: op(stop_gradient(x)) + x, (0.0,), (2.0,)) == (0.0, 2.0)


def test_a_declared_operator_is_refused_where_it_is_called():
    @library.define("test::several")
    def several(xs: list[Array], y: Array, n: int = 1) -> Array: ...

    several.impl("cpu")(lambda xs, y, n: xs[0] + y)
    several.def_abstract(lambda xs, y, n: y)
    refused(lambda: grad(lambda y: (y, several([1.0], y)), has_aux=True)(1.0), "test::several")
    refused(lambda: grad(lambda x: (x, several([x], 1.0)), has_aux=True)(1.0), "test::several")
    refused(lambda: grad(lambda y: several([1.0], y))(1.0), "test::several")
    refused(lambda: vjp(lambda x: several([x], 1.0), 1.0), "test::several")
    refused(lambda: jvp(lambda x: several([x], 1.0), (1.0,), (1.0,)), "test::several")
    assert grad(lambda y: several([1.0], stop_gradient(y)) * y)(3.0) == 4.0
    assert several([1.0], 2.0) == 3.0


def test_half_of_a_rule_is_refused_with_the_name_of_the_other():
    half = opaque("test::half")
    half.backward(lambda ctx, saved, g: {"x": g})
    with pytest.raises(RuntimeError) as caught:
        grad(half)(1.0)
    message = str(caught.value)
    assert isinstance(caught.value, RegistrationError)
    assert "got backward alone, registered at test_operators_derivatives.py:" in message
    assert "and no save_for_backward" in message and "Register the other half" in message
    assert half(0.0) == 0.0 and jit(half)(0.0) == 0.0

    other = opaque("test::other")
    other.save_for_backward(lambda inputs, output: None)
    for derivative in (lambda: vjp(other, 1.0), lambda: jvp(other, (1.0,), (1.0,))):
        with pytest.raises(RuntimeError, match=r"got save_for_backward alone.* and no backward"):
            derivative()
    other.backward(lambda ctx, saved, g: {"x": 3.0 * g})
    assert grad(other)(1.0) == 3.0


def test_the_order_of_registration_does_not_matter_and_rules_may_come_late():
    op = opaque()
    derivative = jit(grad(lambda x: op(x) * 1.0))
    refused(lambda: derivative(0.0))
    op.backward(lambda ctx, x, g: {"x": g * np.cos(x)})
    op.save_for_backward(lambda inputs, output: inputs.x)
    assert derivative(0.0) == 1.0
    op.register_autograd(lambda ctx, g: g * 5.0)
    assert derivative(0.0) == 5.0 == grad(op)(0.0)
    op.register_autograd(lambda ctx, g: g * 7.0)
    assert derivative(0.0) == 7.0
    with library.scoped():
        op.register_autograd(lambda ctx, g: g * 9.0)
        assert derivative(0.0) == 9.0
    assert derivative(0.0) == 7.0


def test_each_half_is_registered_once():
    op = sine_with_rules()
    with pytest.raises(RuntimeError, match=r"its backward must be registered once"):
        op.backward(lambda ctx, x, g: {"x": g})
    with pytest.raises(RuntimeError, match=r"its save_for_backward must be registered once") as e:
        op.save_for_backward(lambda inputs, output: None)
    assert "the first was registered at test_operators_derivatives.py:" in str(e.value)


def test_inputs_are_named_and_saving_happens_once():
    op = scaled_sum()
    seen = []

    @op.save_for_backward
    def save(inputs, output):
        seen.append(inputs)
        assert inputs._fields == ("x", "bias", "parts", "factor")
        assert isinstance(inputs, tuple) and inputs.bias is None
        assert [p.shape for p in inputs.parts] == [(3,), (3,)] and output.shape == (3,)
        return {"factor": inputs.factor, "none": None, "word": "kept", "x": [inputs.x]}

    @op.backward
    def backward(ctx, saved, g):
        assert saved["word"] == "kept" and saved["none"] is None and type(saved["factor"]) is float
        assert saved["x"][0].shape == (3,)
        return {"x": g * saved["factor"], "bias": None, "parts": [g, None]}

    def loss(x, parts):
        return op(x, None, parts, 3.0).sum()

    by_x, (first, second) = grad(loss, (0, 1))(x, [x, x])
    assert by_x.tolist() == [3.0] * 3 and first.tolist() == [1.0] * 3
    assert second.tolist() == [0.0] * 3
    assert len(seen) == 1
    assert len({type(inputs) for inputs in seen}) == 1


def test_a_rule_holds_for_every_transform_at_every_order():
    op = sine_with_rules()
    op.def_vmap(lambda info, dims, x: (np.sin(x), dims[0]))
    assert grad(op)(0.0) == 1.0 and jvp(op, (0.0,), (2.0,)) == (0.0, 2.0)
    assert grad(grad(grad(op)))(0.0) == -1.0
    assert jvp(grad(op), (0.5,), (1.0,))[1] == pytest.approx(-numpy.sin(0.5), rel=1e-5)
    check_grads(op, (x,), order=2)
    check_grads(lambda x: functx.lax.scan(lambda c, _: (op(c), c), x, None, 3), (x,), order=2)
    assert functx.linearize(op, 0.0)[1](3.0) == 3.0
    assert vmap(grad(op))(x).tolist() == pytest.approx(numpy.cos(x).tolist())
    assert hessian(lambda x: op(x).sum())(x).shape == (3, 3)
    assert jax.hessian(op)(0.5) == pytest.approx(-numpy.sin(0.5))
    assert jax.jvp(jax.grad(op), (0.5,), (1.0,))[1] == pytest.approx(-numpy.sin(0.5))
    assert jit(grad(functx.checkpoint(lambda x: op(op(x)))))(0.0) == 1.0
    text = str(functx.make_ir(grad(op))(1.0))
    assert "cos" in text and "test::sine" not in text


def test_a_program_with_operators_reads_and_parses():
    op = scaled_sum()
    op.register_autograd(lambda ctx, g: (g, None, [g, g]))
    program = functx.make_ir(jit(lambda x: op(x, x, [x, x], 3.0)))(x)
    text = str(program)
    assert "test::scaled_sum[parts=2, factor=3.0] x x x x" in text
    assert functx.Program.parse(text) == program
    assert program(x).tolist() == (x * 6).tolist()


def test_an_operator_is_called_in_its_own_rule():
    @custom_op("test::power")
    def power(x: Array, n: int) -> Array:
        return x**n

    power.def_abstract(lambda x, n: x)
    power.save_for_backward(lambda inputs, output: (inputs.x, inputs.n))

    @power.backward
    def backward(ctx, saved, g):
        x, n = saved
        return {"x": g * n * power(x, n - 1)}

    assert [float(d(2.0)) for d in (
        grad(lambda x: power(x, 3)),
        grad(grad(lambda x: power(x, 3))),
        grad(grad(grad(lambda x: power(x, 3)))),
    )] == [12.0, 12.0, 6.0]  # fmt: skip


def test_rules_may_write_to_arrays_that_they_make():
    op = opaque()
    op.save_for_backward(lambda inputs, output: inputs.x)

    @op.backward
    def backward(ctx, x, g):
        result = np.zeros_like(x)
        result[...] = np.cos(x)
        result *= g
        return {"x": result}

    assert grad(lambda x: op(x).sum())(numpy.zeros(2)).tolist() == [1.0, 1.0]
    check_grads(lambda x: op(x).sum(), (x,), order=2)


def test_gradients_may_be_of_a_subclass_of_dict_and_in_tuples():
    class Gradients(dict):
        pass

    op = scaled_sum()
    op.save_for_backward(lambda inputs, output: None)
    op.backward(lambda ctx, saved, g: Gradients(x=g, bias=g, parts=(g, g)))
    assert grad(lambda p: op(x, x, p).sum())([x, x])[1].tolist() == [1.0] * 3


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (lambda g: g, "return a dictionary of gradients by name; got f32[3]"),
        (lambda g: {"x": g, "bias": None}, "the keys {'bias', 'parts', 'x'}; got {'bias', 'x'}"),
        (lambda g: {"x": g, "parts": [g, g]}, "the keys {'bias', 'parts', 'x'}; got {'parts', 'x'}"),
        (lambda g: {"x": g, "bias": None, "parts": [g, g], "y": g}, "got {'bias', 'parts', 'x', 'y'}"),
        (
            lambda g: {"x": g, "bias": None, "parts": [g, g], "factor": None},
            "and none for non-array types",
        ),
        (lambda g: {"x": (g,), "bias": None, "parts": [g, g]}, "for `x`; got tuple of 1"),
        (lambda g: {"x": 1.0, "bias": None, "parts": [g, g]}, "array or None for `x`; got float"),
        (lambda g: {"x": g, "bias": g, "parts": [g, g]}, "None for `bias`, which was None; got f32[3]"),
        (lambda g: {"x": g, "bias": None, "parts": None}, "list or tuple of gradients for `parts`; got NoneType"),
        (lambda g: {"x": g, "bias": None, "parts": g}, "list or tuple of gradients for `parts`; got f32[3]"),
        (lambda g: {"x": g, "bias": None, "parts": [g]}, "2 gradients for `parts`, one for each element; got 1"),
        (lambda g: {"x": g, "bias": None, "parts": [g] * 3}, "one for each element; got 3"),
        (lambda g: {"x": g, "bias": None, "parts": [g, (g,)]}, "for `parts[1]`; got tuple of 1"),
        (lambda g: {"x": g.sum(), "bias": None, "parts": [g, g]}, "of `x`, f32[3]; got f32[]"),
        (lambda g: {"x": g, "bias": None, "parts": [g, g.astype("float16")]},
         "of `parts[1]`, f32[3]; got f16[3]"),
    ],
)  # fmt: skip
def test_gradients_by_name_are_checked(result, message):
    op = scaled_sum()
    op.save_for_backward(lambda inputs, output: None)

    @op.backward
    def backward(ctx, saved, g):
        return result(g)

    with pytest.raises(OperatorRuleError) as caught:
        grad(lambda x: op(x, None, [x, x]).sum())(x)
    text = str(caught.value)
    assert isinstance(caught.value, RuntimeError)
    assert "test::scaled_sum: its backward, registered at test_operators_derivatives.py:" in text
    assert message in text
    assert "test_operators_derivatives.py:" in text.splitlines()[1] and "return result(g)" in text


def test_a_none_in_a_list_has_no_gradient():
    @custom_op("test::holes")
    def holes(xs: list[Array | None]) -> Array:
        return sum(x for x in xs if x is not None)

    holes.def_abstract(lambda xs: next(x for x in xs if x is not None))
    holes.save_for_backward(lambda inputs, output: [x is None for x in inputs.xs])
    holes.backward(lambda ctx, empty, g: {"xs": [None if e else g for e in empty]})
    assert grad(lambda x: holes([None, x, None, x]).sum())(x).tolist() == [2.0] * 3


def test_a_gradient_for_a_none_in_a_list_is_refused():
    @custom_op("test::holes")
    def holes(xs: list[Array | None]) -> Array:
        return sum(x for x in xs if x is not None)

    holes.def_abstract(lambda xs: next(x for x in xs if x is not None))
    holes.save_for_backward(lambda inputs, output: None)
    holes.backward(lambda ctx, saved, g: {"xs": [g, g]})
    with pytest.raises(RuntimeError, match=r"None for `xs\[0\]`, which was None; got f32\[3\]"):
        grad(lambda x: holes([None, x]).sum())(x)


def test_missing_gradients_are_zeros_and_those_of_a_list_a_list():
    @custom_op("test::split")
    def split(x: Array) -> tuple[Array, list[Array], int]:
        return x * 2, [x * 3, x * 5], 7

    split.def_abstract(lambda x: (x, [x, x], 0))
    seen = []
    split.save_for_backward(lambda inputs, output: len(output[1]))

    @split.backward
    def backward(ctx, count, first, rest, number):
        seen.append((first.shape, type(rest), [r.shape for r in rest], number))
        return {"x": 2 * first + 3 * rest[0] + 5 * rest[1]}

    assert grad(lambda x: split(x)[1][1].sum())(x).tolist() == [5.0] * 3
    assert grad(lambda x: split(x)[0].sum())(x).tolist() == [2.0] * 3
    assert seen[0] == ((3,), list, [(3,), (3,)], None)
    assert jvp(lambda x: split(x)[1], (x,), (x,))[1][0].tolist() == (3 * x).tolist()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (True, "got bool True"),
        ([True, 1], r"got \[True, 1\]"),
        ([True], r"got 1 for 2 outputs: \[True\]"),
    ],
)
def test_output_differentiability_has_a_bool_for_each_output(given, message):
    op = custom_op("test::pair", schema="(Array x) -> (Array, Array[])")(lambda x: (x, [x]))
    with pytest.raises(
        RuntimeError, match=f"test::pair: output_differentiability must be.*{message}"
    ):
        op.backward(output_differentiability=given)


def test_outputs_that_do_not_vary_have_no_derivative():
    op = custom_op("test::pair", schema="(Array x) -> (Array, Array[], int)")(
        lambda x: (x * 2, [x * 3, x * 5], 1)
    )
    op.def_abstract(lambda x: (x, [x, x], 0))
    op.save_for_backward(lambda inputs, output: None)
    seen = []

    @op.backward(output_differentiability=[True, False, False])
    def backward(ctx, saved, first, rest, number):
        seen.append(len(rest))
        return {"x": 2 * first + 3 * rest[0] + 5 * rest[1]}

    assert grad(lambda x: op(x)[0].sum() + op(x)[1][0].sum())(x).tolist() == [2.0] * 3
    assert jvp(lambda x: op(x)[:2], (x,), (x,))[1][1][0].tolist() == [0.0] * 3
    assert set(seen) == {2}


def test_an_autograd_formula_replaces_output_differentiability():
    op = opaque()
    op.save_for_backward(lambda inputs, output: None)
    op.backward(lambda ctx, saved, g: {"x": g}, output_differentiability=[False])
    assert grad(lambda x: op(x) + x)(1.0) == 1.0
    op.register_autograd(lambda ctx, g: 3.0 * g)
    assert grad(lambda x: op(x) + x)(1.0) == 4.0


def test_a_result_that_is_no_array_does_not_vary():
    op = custom_op("test::pair", schema="(Array x) -> (Array, int)")(lambda x: (x * 2, 1))
    op.def_abstract(lambda x: (x, 0))
    op.save_for_backward(lambda inputs, output: None)
    op.backward(lambda ctx, saved, g, n: {"x": g}, output_differentiability=[True, True])
    assert op(1.0)[1] == 1
    with pytest.raises(RuntimeError, match=r"got True for output 1, of type int"):
        grad(lambda x: op(x)[0])(1.0)


@pytest.mark.parametrize(
    ("schema", "options", "message"),
    [
        ("(Array(a) x) -> Array(a)", {}, "return no views of its arguments"),
        ("(Array(a!) x) -> Array", {}, "be functional, and write to no argument"),
        ("(Array x) -> ()", {}, "return something; it has no returns"),
        ("(Array x) -> Number", {}, "return arrays, .*; one is a Number"),
        (
            "(Array x) -> Array",
            {"decomposition": True},
            "its rules are those of what it is made of",
        ),
    ],
)
def test_operators_that_have_no_derivative_rule_say_why(schema, options, message):
    op = custom_op("test::f", schema=schema, **options)(lambda x: x)
    for register in (
        op.save_for_backward,
        op.backward,
        op.register_autograd,
        op.def_jvp,
        lambda f: library.register_autograd("test::f", f),
    ):
        with pytest.raises(RuntimeError, match=f"test::f: .*{message}") as caught:
            register(lambda *args: None)
        assert isinstance(caught.value, RegistrationError)


def test_an_operator_with_a_rule_gets_no_other_half():
    op = opaque()
    op.register_autograd(lambda ctx, g: g)
    with pytest.raises(RuntimeError, match=r"beside its autograd formula, registered at .*\.py:"):
        op.backward(lambda ctx, saved, g: {"x": g})


def test_lists_of_arguments_and_results_are_differentiated():
    @custom_op("test::swap")
    def swap(xs: list[Array]) -> list[Array]:
        return [2.0 * x for x in xs[::-1]]

    swap.def_abstract(lambda xs: xs[::-1])
    swap.save_for_backward(lambda inputs, output: None)
    swap.backward(lambda ctx, saved, grads: {"xs": [2.0 * g for g in grads[::-1]]})

    def loss(xs):
        first = swap(xs)
        again = swap([first[0], swap(xs)[1]])
        return first[0].sum() + 3.0 * again[0].sum()

    found = grad(loss)([x, numpy.ones(2, "float32")])
    assert found[0].tolist() == [12.0] * 3 and found[1].tolist() == [2.0] * 2
    check_grads(loss, ([x, numpy.ones(2, "float32")],), order=2)


def test_integers_among_the_arguments_have_no_gradient():
    @custom_op("test::take")
    def take(x: Array, i: Array) -> Array:
        return x[i]

    take.def_abstract(lambda x, i: jax.ShapeDtypeStruct(i.shape, x.dtype))
    take.save_for_backward(lambda inputs, output: (inputs.x, inputs.i))
    take.backward(lambda ctx, s, g: {"x": np.zeros_like(s[0]).at[s[1]].add(g), "i": None})
    i = numpy.array([0, 0, 2])
    assert grad(lambda x: take(x, i).sum())(x).tolist() == [2.0, 0.0, 1.0]
    check_grads(lambda x: take(x, i), (x,), order=2)


def test_a_rule_may_be_given_for_forward_mode():
    op = opaque()

    @op.def_jvp
    def sine_jvp(primals, tangents):
        assert primals._fields == tangents._fields == ("x",)
        return op(primals.x), np.cos(primals.x) * tangents.x

    op.def_vmap(lambda info, dims, x: (np.sin(x), dims[0]))
    assert jvp(op, (0.0,), (2.0,))[1] == 2.0 and grad(op)(0.0) == 1.0
    check_grads(op, (x,), order=2)
    assert jax.grad(op)(0.0) == 1.0 and vmap(grad(op))(x).shape == (3,)


def test_forward_mode_may_have_another_rule_than_reverse_mode():
    op = sine_with_rules()
    op.def_jvp(lambda primals, tangents: (op(primals.x), 10.0 * tangents.x))
    assert jvp(op, (0.0,), (1.0,))[1] == 10.0 and grad(op)(0.0) == 1.0
    other = scaled_sum()
    other.def_jvp(lambda p, t: (other(*p), t.x * p.factor + t.parts[0]))
    assert jvp(lambda x: other(x, None, [x]), (x,), (x,))[1].tolist() == (3 * x).tolist()
    assert grad(lambda x: other(x, None, [x]).sum())(x).tolist() == [3.0] * 3


def test_results_of_a_rule_for_forward_mode_are_checked():
    op = opaque()
    op.def_jvp(lambda primals, tangents: op(primals.x))
    with pytest.raises(
        functx.errors.RuleError, match=r"test::sine: the output of its rule `lambda`"
    ):
        jvp(op, (1.0,), (1.0,))
    op.def_jvp(lambda primals, tangents: (op(primals.x), tangents.x.sum()))
    with pytest.raises(functx.errors.RuleError, match=r"must have the shapes and dtypes"):
        jvp(op, (x,), (x,))


def test_a_backward_rule_that_is_not_linear_serves_only_reverse_mode():
    op = opaque()
    op.register_autograd(lambda ctx, g: np.clip(g, -1.0, 1.0))
    assert grad(lambda x: 5.0 * op(x))(1.0) == 1.0
    with pytest.raises(functx.errors.LinearityError, match=r"test::sine: .* must be linear"):
        jvp(op, (1.0,), (1.0,))


def test_a_linear_operator_is_transposed_by_its_backward_rule():
    @custom_op("test::flip")
    def flip(x: Array) -> Array:
        return 2.0 * x[::-1]

    flip.def_abstract(lambda x: x)
    flip.def_jvp(lambda primals, tangents: (flip(*primals), flip(*tangents)))
    assert jvp(flip, (x,), (x,))[1].tolist() == [6.0, 4.0, 2.0]
    refused(lambda: grad(lambda x: flip(x)[0])(x), "must have a backward rule too")
    flip.register_autograd(lambda ctx, g: flip(g))
    assert grad(lambda x: flip(x)[0])(x).tolist() == [0.0, 0.0, 2.0]
    transpose = functx.linear_transpose(flip, x)
    assert transpose(x)[0].tolist() == [6.0, 4.0, 2.0]
    check_grads(flip, (x,), order=2)
