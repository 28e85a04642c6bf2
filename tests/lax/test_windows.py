"""`reduce`, `reduce_window` and `select_n` against JAX's, with their derivatives and errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import functx
from functx import lax
from functx import numpy as fnp
from functx.core.errors import (
    ArgumentError,
    AxisError,
    DTypeError,
    EffectError,
    FunctxError,
    ShapeError,
    TreeError,
    ValueRangeError,
)
from functx.testing import check_grads
from functx.transforms.control.reduce import Reduce, ReduceWindow
from tests.by_reference import by_reference

RANDOM = np.random.RandomState(0)
X = RANDOM.randn(3, 5, 4).astype("float32")
INTS = RANDOM.randint(0, 9, (3, 5)).astype("int32")


def logaddexp(x, y):
    return fnp.logaddexp(x, y)


def better(p, q):
    """The pair with the larger value, the first of equals."""
    take = q[0] > p[0]
    return fnp.where(take, q[0], p[0]), fnp.where(take, q[1], p[1])


def equations(fun, *args):
    return [eqn.primitive.name for eqn in functx.make_ir(fun)(*args)]


class TestReduce:
    @pytest.mark.parametrize(
        ("operation", "start", "name", "x"),
        [
            ("add", 0.0, "reduce_sum", X),
            ("mul", 1.0, "reduce_prod", X),
            ("max", -np.inf, "reduce_max", X),
            ("min", np.inf, "reduce_min", X),
            ("add", 0j, "reduce_sum", X * 1j),
            ("max", np.iinfo("int32").min, "reduce_max", INTS),
            ("bitwise_and", -1, "reduce_and", INTS),
            ("bitwise_or", 0, "reduce_or", INTS),
            ("bitwise_xor", 0, "reduce_xor", INTS),
            ("bitwise_and", True, "reduce_and", X > 0),
        ],
    )
    def test_one_known_operation_is_the_reduction_of_its_name(self, operation, start, name, x):
        def reduced(x):
            return lax.reduce(x, start, getattr(lax, operation), (1,))

        assert equations(reduced, x) == [name]
        expected = jax.lax.reduce(x, np.asarray(start, x.dtype), getattr(jax.lax, operation), (1,))
        np.testing.assert_allclose(reduced(x), expected, rtol=1e-5)

    def test_a_lambda_of_one_known_operation_is_known_too(self):
        assert equations(lambda x: lax.reduce(x, 0.0, lambda x, y: y + x, (0,)), X) == [
            "reduce_sum"
        ]
        names = equations(lambda x: lax.reduce(x, 0.0, lambda x, y: x + x, (0,)), X)
        assert names == ["reduce"]

    def test_a_start_that_is_not_neutral_counts_once(self):
        found = lax.reduce(X, 2.0, lax.add, (0, 2))
        np.testing.assert_allclose(found, X.sum((0, 2)) + 2, rtol=1e-5)
        np.testing.assert_array_equal(lax.reduce(X, 0.0, lax.max, (0,)), X.max(0, initial=0))
        start = functx.grad(lambda s: lax.reduce(X, s, lax.add, (0, 1)).sum())(1.0)
        assert float(start) == 4

    def test_any_computation_goes(self):
        found = lax.reduce(X, -np.inf, logaddexp, (1, -1))
        np.testing.assert_allclose(found, np.log(np.exp(X).sum((1, 2))), rtol=1e-5)
        np.testing.assert_allclose(lax.reduce(X, -np.inf, logaddexp, ()), X, rtol=1e-5)

    def test_several_operands_are_reduced_together(self):
        places = np.broadcast_to(np.arange(5, dtype="int32")[:, None], X.shape)
        value, place = lax.reduce((X, places), (-np.inf, -1), better, (1,))
        np.testing.assert_array_equal(value, X.max(1))
        np.testing.assert_array_equal(place, X.argmax(1))

    def test_nothing_gives_the_start(self):
        empty = np.zeros((2, 0), "float32")
        assert lax.reduce(empty, -1.0, logaddexp, (1,)).tolist() == [-1, -1]
        assert lax.reduce(empty, -1.0, logaddexp, (0,)).shape == (0,)

    @pytest.mark.parametrize("length", [1, 2, 5])
    def test_its_derivatives_are_right_to_the_second_order(self, length):
        x = RANDOM.randn(2, length)
        with by_reference():
            check_grads(lambda x: lax.reduce(x, -9.0, logaddexp, (1,)), (x,), order=2)

    def test_a_computation_differentiates_and_maps_in_what_it_closes_over(self, x64):
        def smooth(x, w):
            return lax.reduce(x, -9.0, lambda x, y: fnp.logaddexp(x * w, y * w) / w, (0,)).sum()

        def plain(x, w):
            rows = jnp.concatenate([jnp.full((1, 2), -9.0), x])
            return (jax.nn.logsumexp(rows * w, axis=0) / w).sum()

        x = RANDOM.randn(3, 2)
        for found, expected in zip(
            functx.grad(smooth, (0, 1))(x, 1.5),
            jax.jit(jax.grad(plain, (0, 1)))(x, 1.5),
            strict=True,
        ):
            np.testing.assert_allclose(found, expected, rtol=1e-9)
        w = np.array([1.0, 2.0])
        lanes = [smooth(x, each) for each in w]
        np.testing.assert_allclose(functx.vmap(smooth, (None, 0))(x, w), lanes, rtol=1e-9)

    def test_maps_over_the_start_and_over_what_it_combines(self):
        def reduced(x, start):
            return lax.reduce(x, start, logaddexp, (0,))

        starts = np.array([-1.0, 0.5, 2.0], "float32")
        for axes, args in [((0, 0), (X, starts)), ((None, 0), (X[0], starts))]:
            rows = [reduced(X[i] if axes[0] == 0 else X[0], starts[i]) for i in range(3)]
            np.testing.assert_allclose(functx.vmap(reduced, axes)(*args), rows, rtol=1e-5)
        found = functx.vmap(lambda x: reduced(x, 0.0), 1)(X)
        np.testing.assert_allclose(found, [reduced(x, 0.0) for x in X.swapaxes(0, 1)], rtol=1e-5)


class TestReduceWindow:
    @pytest.mark.parametrize("padding", ["VALID", "SAME", "same_lower", ((1, 0), (0, 2), (2, -1))])
    @pytest.mark.parametrize(
        ("sizes", "strides", "holes", "apart"),
        [
            ((1, 3, 2), (1, 2, 1), None, None),
            ((2, 2, 1), (1, 3, 1), (1, 2, 1), None),
            ((1, 2, 2), (2, 1, 1), (2, 1, 1), (1, 2, 1)),
        ],
    )
    def test_sums_and_extrema_are_those_of_jax(self, padding, sizes, strides, holes, apart):
        operations = [("add", 0.0), ("max", -np.inf), ("min", np.inf)]

        def windows(x, of, array):
            return [
                of.reduce_window(
                    x, array(start), getattr(of, name), sizes, strides, padding, holes, apart
                )
                for name, start in operations
            ]

        names = equations(lambda x: windows(x, lax, float), X)
        assert names == ["reduce_window_sum", "reduce_window_max", "reduce_window_min"]
        found = functx.jit(lambda x: windows(x, lax, float))(X)
        for x, y in zip(found, jax.jit(lambda x: windows(x, jax.lax, jnp.float32))(X), strict=True):
            assert x.shape == y.shape
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize("name", ["max", "min"])
    def test_a_derivative_goes_through_the_first_of_equals_as_in_jax(self, name):
        ties = np.round(X)
        start = -np.inf if name == "max" else np.inf

        def loss(x, of):
            arguments = (1, 3, 2), (1, 1, 2), "SAME"
            return (of.reduce_window(x, start, getattr(of, name), *arguments) ** 2).sum()

        found = functx.grad(lambda x: loss(x, lax))(ties)
        np.testing.assert_array_equal(found, jax.jit(jax.grad(lambda x: loss(x, jax.lax)))(ties))
        tangent = RANDOM.randn(*X.shape).astype("float32")
        _, pushed = functx.jvp(lambda x: loss(x, lax), (ties,), (tangent,))
        np.testing.assert_allclose(pushed, (found * tangent).sum(), rtol=1e-4)

    @pytest.mark.parametrize("name", ["add", "max", "other"])
    def test_its_derivatives_are_right_to_the_second_order(self, name):
        computation = getattr(lax, name, logaddexp)
        start = -5.0 if name == "other" else -np.inf if name == "max" else 0.0
        arguments = (2,), (2,), ((1, 1),), (2,), (1,)
        x = RANDOM.randn(4)
        with by_reference():
            check_grads(
                lambda x: lax.reduce_window(x**3, start, computation, *arguments), (x,), order=2
            )

    def test_padding_consists_of_the_start(self):
        x = np.array([1.0, 2.0], "float32")
        for computation in (lax.add, lambda x, y: (x + y) * 1.0):
            found = lax.reduce_window(x, 1.0, computation, (2,), (1,), ((1, 1),))
            assert found.tolist() == [3, 4, 4]

    def test_any_computation_of_several_operands_goes(self):
        places = np.broadcast_to(np.arange(5, dtype="int32")[:, None], X.shape)
        value, place = lax.reduce_window(
            (X, places), (-np.inf, -1), better, (1, 2, 1), (1, 1, 1), "VALID"
        )
        np.testing.assert_array_equal(value, np.maximum(X[:, :-1], X[:, 1:]))
        np.testing.assert_array_equal(place - np.arange(4)[:, None], X[:, 1:] > X[:, :-1])

    def test_integers_and_complex_numbers_go(self):
        found = lax.reduce_window(INTS, 0, lax.add, (1, 2), (1, 1), "VALID")
        np.testing.assert_array_equal(found, INTS[:, 1:] + INTS[:, :-1])
        z = (X + 1j * X[::-1]).astype("complex64")
        found = lax.reduce_window(z, 0, lax.add, (1, 1, 2), (1, 1, 1), "VALID")
        np.testing.assert_allclose(found, z[..., 1:] + z[..., :-1], rtol=1e-5)
        found = lax.reduce_window(z, -np.inf, lax.max, (1, 1, 2), (1, 1, 1), "VALID")
        np.testing.assert_array_equal(found, np.maximum(z[..., 1:], z[..., :-1]))

    def test_windows_on_nothing_give_the_start(self):
        empty = np.zeros((0,), "float32")
        assert lax.reduce_window(empty, 0.0, lax.add, (2,), (1,), "VALID").shape == (0,)
        padded = lax.reduce_window(empty, -np.inf, lax.max, (2,), (1,), ((2, 1),))
        assert padded.tolist() == [-np.inf, -np.inf]
        found = functx.grad(
            lambda x: lax.reduce_window(x, 0.0, lax.max, (2,), (1,), ((2, 1),)).sum()
        )(empty)
        assert found.shape == (0,)

    def test_a_window_on_padding_alone_has_no_derivative(self):
        x = np.array([1.0, 2.0], "float32")

        def last(x):
            return lax.reduce_window(x, -np.inf, lax.max, (2,), (2,), ((0, 2),))[1]

        assert functx.grad(last)(x).tolist() == [0, 0]

    def test_maps_over_batches_of_batches(self):
        def pooled(x):
            return lax.reduce_window(x, -np.inf, lax.max, (2,), (1,), "VALID").sum()

        found = functx.vmap(functx.vmap(functx.grad(pooled), 1), 0)(X)
        np.testing.assert_array_equal(found[1, 2], functx.grad(pooled)(X[1, :, 2]))


@pytest.mark.parametrize("padding", [((-1, -1), (0, 0)), ((-1, 2), (2, -3)), ((-5, 5), (0, 0))])
@pytest.mark.parametrize("sizes", [(1, 1), (2, 1)])
@pytest.mark.parametrize(("name", "start"), [("add", 0.0), ("max", -np.inf), ("min", np.inf)])
def test_negative_padding_cuts_elements_off(name, start, sizes, padding):
    # JAX's own windows of one element abort the process in XLA.
    x, start = X[0], np.float32(start)

    def windows(lib, x, padding):
        return lib.reduce_window(x, start, getattr(lib, name), sizes, (1, 1), padding)

    cut = jax.lax.pad(x, start, [(*amounts, 0) for amounts in padding])
    got = windows(lax, x, padding)
    np.testing.assert_allclose(got, windows(jax.lax, cut, "VALID"), rtol=1e-6)


@pytest.mark.parametrize("sizes", [(2, 2), (3, 1)])
@pytest.mark.parametrize("operation", [lambda x, y: x * y, logaddexp])
def test_no_window_fits_an_array_without_rows(operation, sizes):
    x, start = np.zeros((0, 4), "float32"), np.float32(1)
    got = lax.reduce_window(x, start, operation, sizes, (2, 1), "SAME")
    assert got.shape == (0, 4)
    got = functx.grad(
        lambda x: lax.reduce_window(x, start, operation, sizes, (2, 1), "SAME").sum()
    )(x)
    assert got.shape == x.shape


def test_programs_print_and_parse_with_what_combines():
    program = functx.make_ir(lambda x: lax.reduce(x, -np.inf, logaddexp, (0,)))(X)
    (eqn,) = program.equations
    assert type(eqn.primitive) is Reduce
    assert functx.Program.parse(str(program)) == program
    windowed = functx.make_ir(
        lambda x: lax.reduce_window(x, -np.inf, logaddexp, (1, 1, 2), (1, 1, 1), "SAME")
    )(X)
    assert type(windowed.equations[0].primitive) is ReduceWindow
    assert functx.Program.parse(str(windowed)) == windowed


ONES = np.ones(3, "float32")


def window(*args, computation=lax.add):
    return lambda: lax.reduce_window(ONES, 0.0, computation, *args)


def printing(x, y):
    functx.debug.print("{}", x)
    return x + y


@pytest.mark.parametrize(
    ("call", "error", "problem"),
    [
        (lambda: lax.reduce(ONES, 0.0, None, (0,)), ArgumentError, "`computation` must be a func"),
        (lambda: lax.reduce((ONES,), 0.0, lax.add, (0,)), TreeError, "initial values must have"),
        (lambda: lax.reduce((), (), lax.add, (0,)), TreeError, r"at least one operand; got \(\)"),
        (lambda: lax.reduce("a", 0.0, lax.add, (0,)), ArgumentError, "each operand must be an"),
        (lambda: lax.reduce(ONES, ONES, lax.add, (0,)), ShapeError, r"scalars; got f32\[3\]"),
        (lambda: lax.reduce(ONES, 1j, lax.add, (0,)), DTypeError, "the dtype of its operand"),
        (
            lambda: lax.reduce((ONES, ONES[:2]), (0.0, 0.0), lambda x, y: x, (0,)),
            ShapeError,
            r"one shape; got operand\[0\]: f32\[3\] and operand\[1\]: f32\[2\]",
        ),
        (
            lambda: lax.reduce(ONES, 0.0, lambda x, y: (x, y), (0,)),
            TreeError,
            "what the computation returns must have the structure of the operands",
        ),
        (
            lambda: lax.reduce({"a": ONES}, {"a": 0.0}, lambda x, y: {"a": x["a"] > 0}, (0,)),
            DTypeError,
            r"of the types that it takes; got bool\[\] for operand\['a'\]",
        ),
        (lambda: lax.reduce(ONES, 0.0, lax.add, (1,)), AxisError, r"dimensions must be in \[-1, 1"),
        (lambda: lax.reduce(ONES, 0.0, lax.add, (0, 0)), AxisError, "each axis once"),
        (lambda: lax.reduce(ONES, 0.0, lax.add, 0), ArgumentError, "a sequence of integers; got 0"),
        (window((2, 2), (1,), "VALID"), ShapeError, r"window_dimensions must have an entry for ea"),
        (window((2,), (1, 1), "VALID"), ShapeError, r"window_strides must have an entry for each"),
        (window((2,), (-1,), "VALID"), ValueRangeError, r"window_strides must be positive; got \("),
        (window((0,), (1,), "VALID"), ValueRangeError, "window_dimensions must be positive"),
        (window((2,), (1,), "SAME", (0,)), ValueRangeError, "base_dilation must be positive"),
        (window((2,), (1,), "SAME", None, (-2,)), ValueRangeError, "window_dilation must be pos"),
        (window((2,), (1,), "FULL"), ValueRangeError, "\"VALID\" or pairs; got 'FULL'"),
        (window((2,), (1,), 3), ArgumentError, r"a pair \(low, high\) for each dimension; got 3"),
        (window((2,), (1,), ((0, 0),) * 2), ShapeError, "padding must have an entry for each of 1"),
        (window((2,), (1,), ((-2, -2),)), ShapeError, "must not make a length negative"),
        (window((2.5,), (1,), "SAME"), ArgumentError, r"must be integers, one a dimension; got"),
    ],
)
def test_bad_calls_are_refused_by_name(call, error, problem):
    with pytest.raises(error, match=problem) as info:
        call()
    assert isinstance(info.value, FunctxError) and "test_windows.py" in str(info.value)


def test_effects_are_refused_in_what_combines():
    with pytest.raises(EffectError, match=r"reduce\(printing\): the computation must have no"):
        lax.reduce(ONES, 0.0, printing, (0,))


class TestSelectN:
    def test_it_chooses_as_jax_does(self):
        cases = [np.full(3, i, "float32") for i in range(3)]
        which = np.array([2, 0, 1], "int32")
        np.testing.assert_array_equal(lax.select_n(which, *cases), which)
        assert lax.select_n(True, 1.0, 2.0) == jax.lax.select_n(True, 1.0, 2.0)
        assert lax.select_n(which, *cases[:1]) is cases[0]
        np.testing.assert_array_equal(lax.select_n(np.int32(7), *cases), cases[2])

    def test_select_takes_integers_as_jax_does(self):
        holds, x = np.array([1, 0, -1, 5], "int32"), np.ones(4, "float32")
        wanted = jax.lax.select(holds, x, -x)
        np.testing.assert_array_equal(lax.select(holds, x, -x), wanted)

    @pytest.mark.parametrize(
        ("args", "error", "problem"),
        [
            ((True,), ArgumentError, "there must be at least one case; got none"),
            (
                (True, 1.0, 2.0, 3.0),
                ArgumentError,
                "at most two cases for a boolean `which`; got 3",
            ),
            ((0.5, 1.0, 2.0), DTypeError, "`which` must be boolean or integer; got ~f32"),
            ((True, ONES, ONES[:2]), ShapeError, "operands must have one shape"),
            ((ONES[:2] > 0, ONES, ONES), ShapeError, "operands must have one shape"),
            ((True, ONES, ONES.astype("int32")), DTypeError, "must have one dtype"),
        ],
    )
    def test_bad_calls_are_refused_by_name(self, args, error, problem):
        with pytest.raises(error, match=problem):
            lax.select_n(*args)
