"""Custom operators with decompositions, and rules for wrapper types and modes."""

import jax
import jax.numpy as jnp
import numpy
import pytest

import functx
from functx import Array, custom_op, grad, jit, jvp, library, make_ir, vmap
from functx import numpy as np
from functx.core.errors import ArgumentError, OperatorRuleError, RegistrationError
from functx.testing import check_rules, f32, sample
from tests.custom.operators import opaque, scope  # noqa: F401

x = numpy.arange(1.0, 4.0, dtype="float32")


def rms_norm(name="test::rms_norm", fun=None, **options):
    def rms_norm(x: Array, weight: Array | None = None, eps: float = 1e-6) -> Array:
        scaled = x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)
        return scaled if weight is None else scaled * weight

    return custom_op(name, fun or rms_norm, decomposition=True if fun is None else rms_norm,
                     **options)  # fmt: skip


def test_a_body_gives_all_rules():
    op = rms_norm()
    plain = op.__wrapped__
    assert np.allclose(op(x), plain(x)) and type(op(x)) is np.ndarray
    assert isinstance(op(jnp.asarray(x)), jax.Array)
    assert np.allclose(jit(op)(x, x), plain(x, x))
    rows = numpy.stack([x, 2 * x])
    assert np.allclose(vmap(op)(rows), plain(rows))
    assert np.allclose(grad(lambda x: op(x)[0])(x), jax.grad(lambda x: op(x)[0])(x))
    check_rules(op.primitive, sample(f32[2, 3], f32[3], eps=0.1, dtypes=("f32",)))


def test_a_composite_is_one_equation_until_a_transform_needs_its_body():
    op = rms_norm()
    program = make_ir(lambda x: op(x, eps=0.1) + 1.0)(x)
    assert [e.primitive.name for e in program] == ["test::rms_norm", "add"]
    assert "test::rms_norm[weight=False, eps=0.1] x" in str(program)
    assert functx.Program.parse(str(program)) == program
    assert "test::rms_norm" not in str(make_ir(grad(lambda x: op(x).sum()))(x))


@pytest.mark.parametrize("kind", ["def_abstract", "save_for_backward", "backward",
                                  "register_autograd", "def_jvp", "def_vmap"])  # fmt: skip
def test_a_composite_has_no_rules_of_its_own(kind):
    with pytest.raises(RuntimeError) as caught:
        getattr(rms_norm(), kind)(lambda *args: None)
    assert isinstance(caught.value, RegistrationError)
    assert "it decomposes instead" in str(caught.value)
    assert "the decomposition was given at test_operators_composites.py:" in str(caught.value)


def test_an_implementation_replaces_the_body_on_its_platform():
    op = rms_norm(fun=lambda x, weight, eps: x * 100, schema="(Array x, Array? weight=None, float eps=1e-6) -> Array")  # fmt: skip
    assert op(x)[0] == jit(op)(x)[0] == 100.0
    assert np.allclose(vmap(op)(x[None])[0], op.composite.fun(x))
    assert abs(grad(lambda x: op(x).sum())(x)[0]) < 1.0
    with op.set_kernel_enabled("default", False):
        assert jit(op)(x)[0] < 1.0 and op(x)[0] < 1.0
    other = rms_norm("test::other")
    compiled = jit(other)
    assert compiled(x)[0] < 1.0
    other.impl("cpu", kernel="numpy")(lambda x, weight, eps: x * 10)
    assert compiled(x)[0] == other(x)[0] == 10.0


def test_a_body_may_use_arrays_around_it_and_other_operators():
    inner = opaque()
    table = numpy.array([1.0, 2.0, 3.0], "float32")

    @custom_op("test::outer", decomposition=True)
    def outer(x: Array) -> tuple[Array, list[Array]]:
        return inner(x) * table, [x + 1, np.cumsum(x)]

    expected = numpy.sin(x) * table
    for run in (outer, jit(outer)):
        first, (second, third) = run(x)
        assert np.allclose(first, expected)
        assert second.tolist() == [2.0, 3.0, 4.0] and third.tolist() == [1.0, 3.0, 6.0]
    with pytest.raises(functx.errors.NoAutogradFormulaError, match=r"test::sine"):
        grad(lambda x: outer(x)[0].sum())(x)
    inner.register_autograd(lambda ctx, g: 2.0 * g)
    assert grad(lambda x: outer(x)[0].sum())(x).tolist() == [2.0, 4.0, 6.0]


def test_results_of_a_body_are_checked():
    op = custom_op("test::f", schema="(Array x) -> Array[]", decomposition=True)(lambda x: x * 2)
    for run in (op, jit(op)):
        with pytest.raises(
            OperatorRuleError, match=r"its decomposition.* give a list for the result"
        ):
            run(x)
    words = custom_op("test::g", schema="(Array x) -> Array", decomposition=True)(lambda x: "one")
    with pytest.raises(OperatorRuleError, match=r"give an array for the result; got str"):
        words(x)


def test_an_in_place_body_returns_its_mutated_argument():
    def double(x: Array) -> Array:
        x *= 2
        return x

    op = custom_op("test::double", double, mutates_args={"x"}, tags=["inplace"], decomposition=True)
    a = x.copy()
    assert op(a) is a and a.tolist() == [2.0, 4.0, 6.0]
    assert jit(lambda a: op(op(a)).sum())(a) == 48.0 and a.tolist() == [8.0, 16.0, 24.0]
    assert grad(lambda x: op(x * 1.0).sum())(x).tolist() == [2.0] * 3
    other = custom_op("test::other", lambda x: x * 2, mutates_args={"x"}, tags=["inplace"],
                      decomposition=True, schema="(Array(a!) x) -> Array")  # fmt: skip
    for run in (other, jit(other)):
        with pytest.raises(RuntimeError, match=r"return its argument `x` for the result"):
            run(x.copy())


def test_a_composite_has_a_body():
    with pytest.raises(TypeError, match=r"decomposition: the first argument must be a function"):
        custom_op("test::f", lambda x: x, schema="(Array x) -> Array", decomposition=3)


def test_an_operator_is_made_of_a_body_with_or_without_an_implementation():
    def body(x: Array, n: int = 2) -> Array:
        return x**n

    op = custom_op("test::alone", decomposition=body)
    assert op(3.0) == jit(op)(3.0) == 9.0 and grad(op)(3.0) == 6.0
    assert op.schema == library.infer_schema(body)

    @custom_op("test::beside", decomposition=body)
    def beside(x: Array, n: int = 2) -> Array:
        return x * 100

    assert beside(3.0) == 300.0 and grad(beside)(3.0) == 6.0

    @custom_op("test::declared", decomposition=lambda x, n: x**n)
    def declared(x: Array, n: int = 2) -> Array: ...

    assert declared(3.0) == jit(declared)(3.0) == 9.0
    with pytest.raises(ValueError, match=r"the signature must match the schema"):
        custom_op("test::other", decomposition=lambda x: x)(beside.__wrapped__)


def test_a_function_without_a_body_implements_nothing():
    @custom_op("test::declared")
    def declared(x: Array) -> Array:
        """Nothing yet."""

    with pytest.raises(
        NotImplementedError, match=r"an implementation for the platform cpu; got none"
    ):
        declared(x)
    declared.impl("default")(lambda x: x + 1)
    assert declared(x)[0] == 2.0

    @custom_op("test::nothing")
    def nothing(x: Array) -> None: ...

    assert nothing(x) is None


class Quantity:
    """A number with a unit."""

    def __init__(self, value, unit):
        self.value, self.unit = value, unit


class Special(Quantity):
    pass


def test_a_rule_for_a_type_takes_the_calls_with_it():
    op = custom_op("test::scaled", schema="(Array x, Array[] others, float by=2.0) -> Array")(
        lambda x, others, by: x * by
    )

    @op.def_dispatch(Quantity)
    def of_quantity(x, others=(), by=2.0):
        value = x.value if isinstance(x, Quantity) else x
        return Quantity(op(value, [], by), "m")

    assert op(3.0, []) == 6.0
    found = op(Quantity(3.0, "m"), [], by=3.0)
    assert isinstance(found, Quantity) and found.value == 9.0
    assert op(1.0, [Special(1.0, "s")]).unit == "m"
    op.def_dispatch(Special, lambda x, others: "special")
    assert op(Special(1.0, "s"), []) == "special"
    assert op(Quantity(2.0, "m"), []).value == 4.0
    assert grad(lambda x: op(Quantity(x, "m"), []).value)(1.0) == 2.0 if with_rule(op) else True
    other = opaque()
    with pytest.raises(ArgumentError, match=r"`x` must be an array; got Quantity"):
        other(Quantity(1.0, "m"))


def with_rule(op):
    op.def_abstract(lambda x, others, by: x)
    op.register_autograd(lambda ctx, g: (2.0 * g, [], None))
    return True


def test_a_rule_for_a_type_ends_with_its_scope():
    op = opaque()
    with library.scoped():
        op.def_dispatch(Quantity, lambda x: "here")
        assert op(Quantity(1.0, "m")) == "here"
    with pytest.raises(ArgumentError):
        op(Quantity(1.0, "m"))
    with pytest.raises(ArgumentError, match=r"the rule must be for a class; got int"):
        op.def_dispatch(3, lambda x: x)


def test_modes_come_first_and_are_off_in_their_rules():
    class Recording(library.Mode):
        def __init__(self):
            self.seen = []

    class Doubling(library.Mode):
        pass

    op = opaque()

    @op.def_dispatch(Recording)
    def record(mode, x):
        mode.seen.append(x)
        return op(x)

    op.def_dispatch(Doubling, lambda mode, x: 2 * op(x))
    with Recording() as outer:
        assert op(0.0) == 0.0
        with Recording() as inner, Doubling():
            assert op(1.0) == pytest.approx(2 * 0.8414710)
        with library.Mode():
            op(2.0)
    op(3.0)
    assert outer.seen == [0.0, 1.0, 2.0] and inner.seen == [1.0]
    with Recording() as mode:
        jvp(lambda x: op(functx.stop_gradient(x)) + x, (1.0,), (1.0,))
    assert len(mode.seen) == 1


def test_a_mode_holds_for_calls_in_its_block_and_for_no_other_under_every_cache():
    class Scaling(library.Mode):
        def __init__(self, factor):
            self.factor = factor

    class Zeroing(library.Mode):
        pass

    op = opaque()
    op.def_dispatch(Scaling, lambda mode, x: mode.factor * x)
    op.def_dispatch(Zeroing, lambda mode, x: 0.0 * x)
    op.register_autograd(lambda ctx, g: op(g))

    def fun(x):
        return op(x) + 0.0

    held = Scaling(2.0)
    x, plain = numpy.float32(1.0), numpy.sin(numpy.float32(1.0))
    jitted, program = functx.jit(fun), functx.make_ir(fun)(x)
    for call in (
        fun,
        functx.jit(fun),
        functx.jit(functx.jit(fun)),
        lambda x: functx.make_ir(jitted)(x)(x)[()],
        lambda x: functx.jit(jitted).lower(x).compile()(x),
        lambda x: functx.jvp(lambda c: jitted(x) + c, (0.0,), (0.0,))[0],
        # Here the mode acts on the call in the rule.
        lambda x: functx.vjp(program, x)[1](x)[0],
        functx.jit(lambda x: functx.vjp(program, x)[1](x)[0]),
    ):
        held.factor = 2.0
        with held:
            assert call(x) == 2.0
        assert call(x) == pytest.approx(plain)
        held.factor = 3.0
        with held, Zeroing():
            assert call(x) == 0.0
        with held:
            assert call(x) == 3.0
        with Scaling(4.0):
            assert call(x) == 4.0
        assert call(x) == pytest.approx(plain)
