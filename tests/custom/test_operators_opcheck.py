"""`opcheck`: each check finds its kind of wrong operator."""

import jax
import jax.numpy as jnp
import numpy
import pytest

import functx
from functx import Array, custom_op, library
from functx import numpy as np
from functx.core.errors import ArgumentError, OpCheckError
from functx.testing import opcheck
from tests.custom.operators import opaque, scaled_sum, scope  # noqa: F401

x = numpy.arange(1.0, 4.0, dtype="float32")
ALL = ["test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_static",
       "test_aot_dispatch_dynamic"]  # fmt: skip


def of(fun, schema="(Array x) -> Array", abstract=lambda x: x, **options):
    op = custom_op("test::f", schema=schema, **options)(fun)
    if abstract is not None:
        op.def_abstract(abstract)
    return op


def failures(op, *args, **options):
    found = opcheck(op, args, raise_exception=False, **options)
    assert list(found) == ALL
    return {name: error for name, error in found.items() if error != "SUCCESS"}


def test_an_operator_that_is_right_passes_every_check():
    op = scaled_sum()
    op.register_autograd(
        lambda ctx, g: (g * ctx.factor, g if ctx.bias else None, [g], None),
        setup_context=lambda ctx, inputs, output: vars(ctx).update(
            factor=inputs[3], bias=inputs[1] is not None
        ),
    )
    assert opcheck(op, (x, None, [x], 3.0)) == dict.fromkeys(ALL, "SUCCESS")
    assert opcheck("test::scaled_sum", (x, jnp.asarray(x), [x]), {"factor": 1.0})
    assert opcheck(op, (x, None, [x]), test_utils="test_schema") == {"test_schema": "SUCCESS"}
    assert not failures(opaque(), 1.0) and not failures(library.get("test::sine"), jnp.asarray(x))


@pytest.mark.parametrize(
    ("schema", "fun", "abstract", "args"),
    [
        ("(Array x) -> ()", lambda x: None, lambda x: None, (x,)),
        ("(Array x) -> Array", lambda x: jnp.argmax(x), lambda x: jax.ShapeDtypeStruct((), "int32"), (x,)),
        ("(Array x) -> (Array, int)", lambda x: (x + 1, 3), lambda x: (x, 0), (x,)),
        ("(int n) -> Array", lambda n: jnp.ones(n), lambda n: jax.ShapeDtypeStruct((n,), "float32"), (3,)),
        ("(Array(a!) x) -> ()", lambda x: x.__setitem__(0, 5.0), lambda x: None, (x,)),
    ],
)  # fmt: skip
def test_degenerate_operators_pass(schema, fun, abstract, args):
    assert not failures(of(fun, schema, abstract), *args)


def test_an_operator_of_which_shapes_depend_on_values_passes():
    op = of(lambda x: x[x > 1], kernel="numpy", abstract=lambda x: jax.ShapeDtypeStruct(
        (library.get_ctx().new_dynamic_size(),), x.dtype))  # fmt: skip
    assert not failures(op, x)
    op.def_abstract(
        lambda x: jax.ShapeDtypeStruct((library.get_ctx().new_dynamic_size(max=x.size),), x.dtype),
        allow_override=True,
    )
    assert not failures(op, x)


def test_a_write_that_is_not_declared_is_found():
    def f(x):
        x += 1
        return x * 2

    op = of(f, kernel="numpy")
    given = x.copy()
    found = failures(op, given)
    assert given.tolist() == x.tolist()
    error = found["test_schema"]
    assert isinstance(error, OpCheckError) and isinstance(error, AssertionError)
    assert "opcheck(test::f): test_schema failed" in str(error)
    assert "`x` is not, and has changed" in str(error)
    with pytest.raises(OpCheckError, match=r"test_schema failed") as caught:
        opcheck(op, (x,))
    assert isinstance(caught.value.__cause__, OpCheckError)


def test_a_result_that_is_an_argument_is_found():
    assert "an argument, or a view of one" in str(failures(of(lambda x: x), x)["test_schema"])
    found = failures(of(lambda x: x[1:], kernel="numpy", allow_override=True), x)
    assert "an argument, or a view of one" in str(found["test_schema"])


def test_an_abstract_rule_that_is_wrong_or_missing_is_found():
    wrong = of(lambda x: x[1:] * 2)
    found = failures(wrong, x)
    assert set(found) == {
        "test_faketensor",
        "test_aot_dispatch_static",
        "test_aot_dispatch_dynamic",
    }
    assert "it states f32[3] for result 0, which is f32[2]" in str(found["test_faketensor"])
    dtype = of(lambda x: (x > 1) * 1, allow_override=True)
    assert "which is i32[3]" in str(failures(dtype, x)["test_faketensor"])
    fewer = of(lambda x: [x + 1, x + 2], "(Array x) -> Array[]", lambda x: [x], allow_override=True)
    assert "it states 1" in str(failures(fewer, x)["test_faketensor"])

    missing = of(lambda x: x + 1, abstract=None, allow_override=True)
    found = failures(missing, x)
    assert "MissingKernelError" in str(found["test_faketensor"])
    assert "def_abstract" in str(found["test_faketensor"].__cause__)


def test_a_derivative_rule_hidden_in_an_implementation_is_found():
    @jax.custom_vjp
    def rounded(x):
        return jnp.round(x)

    rounded.defvjp(lambda x: (jnp.round(x), None), lambda _, g: (g,))
    op = of(rounded)
    error = failures(op, x)["test_autograd_registration"]
    assert "has one of its own, which no transform sees" in str(error)
    assert "test_operators_opcheck.py:" in str(error)
    inside = of(lambda x: rounded(x) + 1, allow_override=True)
    assert set(failures(inside, x)) == {"test_autograd_registration"}
    inside.register_autograd(lambda ctx, g: g)
    assert not failures(inside, x)

    own = functx.custom_jvp(lambda x: np.round(x))
    own.defjvp(lambda primals, tangents: (own(*primals), tangents[0]))
    assert set(failures(of(own, allow_override=True), x)) == {"test_autograd_registration"}


def test_half_a_derivative_rule_is_found():
    op = opaque()
    op.backward(lambda ctx, saved, g: {"x": g})
    assert "RegistrationError" in str(failures(op, x)["test_autograd_registration"])


def test_an_implementation_that_depends_on_something_else_is_found():
    count = iter(range(1000))
    op = of(lambda x: x * (1 + next(count)))
    found = failures(op, x)
    assert set(found) == {"test_aot_dispatch_static", "test_aot_dispatch_dynamic"}
    assert "a program must give the results of a call; leaf 0 differs by 3" in str(
        found["test_aot_dispatch_static"]
    )
    assert not failures(op, x, atol=1e6)


def test_writes_that_depend_on_something_else_are_found():
    count = iter(range(1000))
    op = of(lambda x: x.__setitem__(0, 1.0 + next(count)), "(Array(a!) x) -> ()", lambda x: None)
    found = failures(op, x)
    assert set(found) == {"test_aot_dispatch_static", "test_aot_dispatch_dynamic"}
    assert "a program must write what a call writes" in str(found["test_aot_dispatch_static"])


def test_gradients_that_depend_on_something_else_are_found():
    count = iter(range(1000))
    op = of(lambda x: x + 1)
    op.register_autograd(lambda ctx, g: g * float(next(count)))
    found = failures(op, x)
    assert "a program must give the gradients of a call" in str(found["test_aot_dispatch_static"])


def test_an_operator_that_is_right_for_one_size_alone_is_found():
    op = of(lambda x: jnp.cumsum(x)[:3], abstract=lambda x: x)
    assert set(failures(op, x)) == {"test_aot_dispatch_dynamic"}
    fixed = of(lambda x: jnp.eye(3) @ x, allow_override=True)
    assert not failures(fixed, x)


def test_checks_are_chosen_by_their_names():
    with pytest.raises(ValueError, match=r"a check must be one of test_schema, .*; got 'test_all'"):
        opcheck(opaque(), (x,), test_utils=["test_all"])


def test_an_operator_without_an_implementation_here_is_found():
    op = of(lambda x: x + 1, device_types="tpu")
    assert "the platform cpu" in str(failures(op, x)["test_schema"])


def test_an_operator_with_a_list_is_checked_by_its_elements():
    @custom_op("test::joined")
    def joined(xs: list[Array]) -> Array:
        return jnp.concatenate(xs)

    joined.def_abstract(lambda xs: jax.eval_shape(jnp.concatenate, xs))
    joined.register_autograd(
        lambda ctx, g: ([g[: ctx.cut], g[ctx.cut :]],),
        setup_context=lambda ctx, inputs, output: vars(ctx).update(cut=inputs[0][0].shape[0]),
    )
    assert not failures(joined, [x, x])


def test_arguments_that_are_no_tuple_are_refused():
    with pytest.raises(ArgumentError, match="opcheck: args must be a tuple of arguments; got int"):
        opcheck(custom_op("opcheck::same", lambda x: x + 1, schema="(Array x) -> Array"), 3)
