"""`verify` agrees with what is right, and finds, reduces and names what is not."""

import jax
import numpy as np
import pytest
import scipy.linalg

import functx
import functx.numpy as fnp
from functx.core.errors import ArgumentError, VerificationError
from functx.core.primitive import Primitive
from functx.core.samples import EXACT
from functx.lowering import stablehlo_emitter
from functx.ops.arithmetic import Add, Mul
from functx.ops.logic import Clamp
from functx.testing import verify
from functx.testing.reference.elementwise import DistributionFunction
from functx.testing.reference.interpreter import interpret_in_numpy, rounding_of
from functx.testing.reference.linear_algebra import divided_differences
from functx.testing.shrinking import ProgramCase, shorten_dimensions
from functx.transforms.control.predication import MaskedOperand

X = np.linspace(-1.0, 1.0, 6, dtype=np.float32).reshape(2, 3)


def in_place(x):
    y = x.copy()
    y[0] += 3 * y[1]
    rows = y.T
    rows[1] = 7
    x[1] *= 2
    return y, rows


def control(x):
    x, ys = functx.lax.scan(lambda c, i: (fnp.cos(c) * x, c[0]), x, fnp.arange(3))
    x = functx.lax.cond(x.sum() > 0, fnp.sin, lambda x: x * 2, x)
    return functx.lax.while_loop(lambda c: c[1] < 3, lambda c: (c[0] * 1.5, c[1] + 1), (x, 0)), ys


def test_typed_keys_are_verified_as_their_words():
    keys = verify(functx.random.fold_in)(jax.random.key(1), 2)
    assert keys == jax.random.fold_in(jax.random.key(1), 2)


@pytest.mark.parametrize("shape", [(), (0,)])
def test_draws_of_no_dimension_and_for_no_keys_are_verified(shape):
    keys = jax.random.split(jax.random.key(1), shape)
    draw = functx.random.uniform
    drawn = verify(functx.vmap(draw) if shape else draw)(keys)
    assert drawn.shape == shape


@pytest.mark.parametrize(
    "f",
    [
        in_place,
        control,
        functx.grad(lambda x: functx.nn.softmax(x @ x.T).var()),
        functx.vmap(lambda x: functx.lax.psum(x, "i") / x, axis_name="i"),
        functx.make_ir(lambda x: (x > 0, fnp.argmax(x, axis=1)))(X),
        functx.make_ir(lambda x: x * X[0])(X),
        lambda x: fnp.sin(x) * X,
    ],
    ids=["in_place", "control", "grad", "vmap", "program", "captured in a program", "captured"],
)
def test_what_is_right_is_returned(f):
    got, wanted = verify(f)(X.copy()), f(X.copy())
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, 1e-5)


def test_a_template_that_compares_operands_by_identity_is_found_and_reduced(monkeypatch):
    same = jax.custom_batching.custom_vmap(lambda x: x)
    same.def_vmap(lambda n, batched, x: (x, batched[0]))
    same = functx.from_jax(same)
    f = verify(lambda x, y, z: (fnp.sin(x), (same(x) + x, fnp.cos(y) + z) * 2))
    monkeypatch.setattr(
        stablehlo_emitter, "are_unambiguous", lambda xs, _: len({*map(id, xs)}) == len(xs)
    )
    with pytest.raises(VerificationError, match="`reuse_operations` alone") as found:
        f(1.0, 2.0, 3.0)
    assert str(found.value).count("= add") == 2
    assert "sin" not in str(found.value).split("at test_verify")[0].replace("test", "")


def wrong_lower(self, ctx, x, y):
    return Mul.lower(self, ctx, x, y)


def test_a_rule_that_lowers_to_another_operation_is_found(monkeypatch):
    monkeypatch.setattr(Add, "lower", wrong_lower)
    with pytest.raises(VerificationError, match="without any pass") as found:
        verify(lambda x: fnp.sin(x).sum(axis=0) + 2.0)(X)
    message = str(found.value)
    assert message.count(" = ") == 1 and "add" in message and "f32[1]" in message


def test_a_derivative_that_is_not_that_of_the_values_is_found(monkeypatch):
    monkeypatch.setattr(Mul, "jvp", lambda self, xs, ts: (self(*xs), self(xs[0], ts[0])))
    with pytest.raises(VerificationError, match="derivatives must agree"):
        verify(lambda x: x * fnp.cos(x))(X)


def test_derivatives_of_clamp_are_measured_but_where_operands_tie(monkeypatch):
    f = verify(lambda x: (functx.lax.clamp(-1.0, x, x[::-1]) * fnp.cos(x), fnp.sin(x)))
    f(np.array([-1.0, 0.25, 0.5, 0.25, 3.0]))
    monkeypatch.setattr(Clamp, "nonzero_derivative_mask", lambda self, i, low, x, high: x < high)
    f(np.array([-1.0, 3.0, -1.0]))
    with pytest.raises(VerificationError, match="derivatives must agree"):
        f(np.array([-1.0, -3.0, 0.5, 0.25]))


def test_a_point_with_a_slope_along_every_line_and_no_derivative_is_no_difference():
    f = verify(lambda x, y, z: x * y / fnp.where(z == 0, fnp.inf, z))
    assert f(0.0, 0.0, 0.0) == 0.0


def test_a_step_that_is_lost_in_the_digits_of_an_argument_is_no_difference():
    verify(lambda x: fnp.sin(x) * 2)(np.array([0.5, 1e30]))


def test_values_of_inactive_elements_that_stay_residuals_are_no_difference():
    def residuals(x):
        inactive = MaskedOperand(False)(False, x)
        return x * 2, inactive, fnp.where(inactive > 0, inactive, 1.0).prod()

    verify(residuals)(np.ones(3))


def test_a_loop_that_does_not_end_a_small_step_away_is_no_difference():
    def count(x):
        return functx.lax.while_loop(lambda c: c < 4.0, lambda c: c + x, 0.0)

    f = verify(lambda x: functx.lax.cond(x >= 0, lambda x: x * 2, count, x))
    np.testing.assert_array_equal(f(0.0), 0.0)


def test_an_operator_without_a_derivative_rule_is_verified_without_derivatives():
    operator = functx.custom_op("verified::twice", mutates_args=())(twice)
    operator.def_abstract(lambda x: x)
    np.testing.assert_array_equal(verify(lambda x: operator(x) + 1)(X), 2 * X + 1)


def twice(x: functx.Array) -> functx.Array:
    return x * 2


def test_sums_may_be_off_by_what_their_terms_explain_and_no_more(monkeypatch):
    terms = np.array([1e8, 1.0, -1e8, 0.5], np.float32)
    verify(lambda x: x.sum())(terms)
    small = np.array([1e-3, 1e-9], np.float32)
    lower = Add.lower
    monkeypatch.setattr(
        Add, "lower", lambda self, ctx, x, y: lower(self, ctx, lower(self, ctx, x, y), y)
    )
    with pytest.raises(VerificationError, match="gives"):
        verify(lambda x: x + 1e-9)(small)


def test_the_switch_checks_every_new_program_of_jit_and_of_transforms(monkeypatch):
    with functx.config.set(verify=True):
        f = functx.jit(lambda x, n=2: (fnp.sin(x) * n).sum(), static_argnames="n")
        np.testing.assert_allclose(f(X, n=3), 3 * np.sin(X).sum(), 1e-4)
        y = X.copy()
        np.testing.assert_allclose(functx.jit(in_place)(y)[0], in_place(X.copy())[0], 1e-6)
        assert y[1, 0] == 2 * X[1, 0] and "sine" in f.lower(X).as_text()
        monkeypatch.setattr(Add, "lower", wrong_lower)
        for broken in (functx.jit(lambda x: x + 3.0), functx.vmap(lambda x: x + 4.0)):
            for _ in range(2):
                with pytest.raises(VerificationError, match="without any pass"):
                    broken(X)
        monkeypatch.undo()
    np.testing.assert_allclose(functx.jit(lambda x: x + 3.0)(X), X + 3.0)


def test_the_switch_checks_a_function_that_makes_a_new_callback_in_each_trace_once():
    seen = []

    @functx.jit
    def f(x):
        functx.debug.callback(lambda x: seen.append(float(x)), x[0, 0])
        return x * 2

    with functx.config.set(verify=True):
        np.testing.assert_array_equal(f(X), 2 * X)
    jax.effects_barrier()
    assert seen == [X[0, 0]]


def test_the_reference_knows_functions_of_the_zero_matrix():
    program = functx.Program.parse(
        """program f(a: f32[2,2], b: f32[2,2]):
  c: f32[2,2] = spectral_function[program=exponential, order=1] a b
    program exponential(w: f32[2]):
      d: f32[2] = exp w
      return d
  return c"""
    )
    along = np.array([[1, 2], [2, 3]], "float32")
    np.testing.assert_allclose(verify(program)(0 * along, along), along)


EXPONENTIAL = """program f(a: f64[4,4]{directions}):
  c: f64[4,4] = spectral_function[program=exponential, order={order}] a{operands}
    program exponential(w: f64[4]):
      d: f64[4] = exp w
      return d
  return c"""


@pytest.mark.parametrize("gap", [0.0, 1e-15, 1e-9, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1.0])
def test_the_reference_differentiates_functions_of_matrices_whose_eigenvalues_nearly_agree(gap):
    first = functx.Program.parse(
        EXPONENTIAL.format(directions=", e: f64[4,4]", order=1, operands=" e")
    )
    second = functx.Program.parse(
        EXPONENTIAL.format(directions=", e: f64[4,4], g: f64[4,4]", order=2, operands=" e g")
    )
    random = np.random.RandomState(0)
    q = np.linalg.qr(random.randn(4, 4))[0]
    e, g = [x + x.T for x in random.randn(2, 4, 4)]
    for values in ([1, 2, 2 + gap, 5], [1, 2, 2 + gap, 2 - gap]):
        a = (q * values) @ q.T
        wanted = scipy.linalg.expm_frechet(a, e, compute_expm=False)
        np.testing.assert_allclose(
            interpret_in_numpy(first, a, e)[0], wanted, rtol=0, atol=1e-13 * abs(wanted).max()
        )
        zero = np.zeros_like(a)
        blocks = np.block([[a, e, zero], [zero, a, g], [zero, zero, a]])
        wanted = scipy.linalg.expm(blocks)[:4, 8:]
        np.testing.assert_allclose(
            interpret_in_numpy(second, a, e, g)[0], wanted, rtol=0, atol=1e-11 * abs(wanted).max()
        )


def test_matrices_keep_the_size_that_the_program_of_their_eigenvalues_takes():
    program = functx.Program.parse(EXPONENTIAL.format(directions="", order=0, operands=""))
    assert not list(shorten_dimensions(ProgramCase(program, [np.eye(4)])))


def test_the_reference_has_no_derivative_where_equal_eigenvalues_have_unequal_values():
    values, flat = np.array([0.0, 1.0, 1.0]), np.zeros(3)
    with np.errstate(all="ignore"):
        first, second = divided_differences(np.array([2.0, 2.0, 3.0]), values, flat, flat)
    np.testing.assert_array_equal(first, [[0, np.nan, 1], [np.nan, 0, 0], [1, 0, 0]])
    assert np.isnan(second[0, :, 1]).all() and np.isnan(second[0, 1, 2]) and second[2, 2, 2] == 0


def test_the_reference_perturbs_no_control_flow_and_no_exact_draws():
    exact = ["scan", "while", "cond", "call", "random_bits", "reduce_precision", "gather", "neg"]
    rounded = ["add", "random_uniform_between", "dot_general"]
    assert {rounding_of(Primitive.registry[name]) for name in exact} == {EXACT}
    assert EXACT not in {rounding_of(Primitive.registry[name]) for name in rounded}


def test_arguments_beside_the_function_are_refused():
    with pytest.raises(
        ArgumentError, match=r"the only argument; got 1 more\n[^`]*verify\(f\)\(\*args\)"
    ):
        verify(fnp.sin, 1.0)


def test_masses_between_integers_have_a_definition():
    # Those of SciPy are 0 there, those of functx and JAX are not.
    k = np.array([-0.7, 0.3, 1.5, 4.4, 5.5])
    wanted = {
        "bernoulli": ((0.3,), [0, 0.542881, 0, 0, 0]),
        "binom": ((4.0, 0.3), [0, 0.322689, 0.365954, 0.0020856, 0]),
        "nbinom": ((3.0, 0.4), [0, 0.0820855, 0.130132, 0.116838, 0.0939629]),
        "geom": ((0.3,), [0, 0.385081, 0.250998, 0.0892118, 0.0602684]),
        "betabinom": ((4.0, 1.2, 0.8), [0, 0.12768, 0.16128, 0.29568, 0]),
    }
    for name, (shapes, masses) in wanted.items():
        found = DistributionFunction(k, *shapes, 0.0, function=f"{name}.pmf")
        np.testing.assert_allclose(found, masses, 1e-4)
