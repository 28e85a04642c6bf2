"""Chunks of Jacobians, of `vmap` and of `lax.map`: the same results in less memory."""

import jax
import numpy as np
import pytest

import functx
from functx import lax
from functx import numpy as fnp
from functx.core.errors import (
    ArgumentError,
    AxisSizeError,
    GradientError,
    OutAxesError,
    ValueRangeError,
)

RANDOM = np.random.RandomState(0)
W = RANDOM.randn(4, 3).astype("float32")
POINT = {"u": RANDOM.randn(3).astype("float32"), "v": RANDOM.randn(2, 1).astype("float32")}
X = RANDOM.randn(2, 7).astype("float32")
Y = RANDOM.randn(2, 3).astype("float32")


def model(p):
    return {"a": fnp.tanh(W @ p["u"]) * p["v"].sum(), "b": (p["u"] ** 3).sum() * p["v"]}


def same(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert x.shape == y.shape and x.dtype == y.dtype
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)


@pytest.fixture
def opaque():
    """The operand, by a primitive that knows nothing of batches."""

    class Opaque(functx.Primitive):
        def abstract_eval(self, x):
            return x

        def jvp(self, primals, tangents):
            return self(*primals), self(*tangents)

        def transpose(self, ct, x):
            return (self(ct),)

        def lower(self, ctx, x):
            return x

    yield Opaque()
    functx.Primitive.registry.pop("opaque")


class TestJacobians:
    @pytest.mark.parametrize("jacobian", [functx.jacfwd, functx.jacrev])
    @pytest.mark.parametrize("chunk_size", [1, 2, 3, 4, 6, 100])
    def test_are_those_without_chunks(self, jacobian, chunk_size):
        same(jacobian(model, chunk_size=chunk_size)(POINT), jacobian(model)(POINT))

    def test_hessians_are_those_without_chunks(self):
        expected = functx.hessian(model)(POINT)
        for chunk_size in (1, 3):
            same(functx.jit(functx.hessian(model, chunk_size=chunk_size))(POINT), expected)

    def test_differentiate_and_map(self):
        def of(chunk_size):
            inner = functx.jacrev(model, chunk_size=chunk_size)
            points = jax.tree.map(lambda x: np.stack([x, x + 1]), POINT)
            outer = functx.jacrev(lambda p: inner(p)["a"]["u"].sum(), chunk_size=chunk_size)
            return functx.vmap(functx.jacfwd(model, chunk_size=chunk_size))(points), outer(POINT)

        same(of(2), of(None))

    def test_aux_argnums_complex_numbers_and_other_outputs_go(self):
        def f(n, z, w):
            return z * w, {"n": n, "loss": (z * z).real.sum()}

        z = np.array([1 + 1j, 2j, 3], "complex64")
        options = {"argnums": (2, 1), "has_aux": True, "holomorphic": True}
        for jacobian in (functx.jacfwd, functx.jacrev):
            found = jacobian(f, **options, chunk_size=2)(np.int32(3), z, z + 1)
            same(found, jacobian(f, **options)(np.int32(3), z, z + 1))

    def test_empty_arguments_go(self):
        empty = np.zeros((0,), "float32")
        for jacobian in (functx.jacfwd, functx.jacrev):
            assert jacobian(lambda x: x * 2, chunk_size=1)(empty).shape == (0, 0)

    @pytest.mark.parametrize("jacobian", [functx.jacfwd, functx.jacrev])
    def test_a_chunk_of_one_needs_no_batching_rules(self, jacobian, opaque):
        with pytest.raises(NotImplementedError, match="`batch` rule"):
            jacobian(opaque, chunk_size=2)(X[0])
        same(jacobian(opaque, chunk_size=1)(X[0]), np.eye(7, dtype="float32"))

    @pytest.mark.parametrize("jacobian", [functx.jacfwd, functx.jacrev])
    def test_take_memory_for_one_chunk(self, jacobian):
        matrix = RANDOM.randn(128, 128).astype("float32")

        def deep(x):
            for _ in range(3):
                x = fnp.sin(matrix @ x)
            return x

        def temporary(chunk_size):
            compiled = functx.jit(jacobian(deep, chunk_size=chunk_size)).lower(matrix[0]).compile()
            return compiled.memory_analysis().temp_size_in_bytes

        whole, chunked, single = [temporary(n) for n in (None, 8, 1)]
        assert single < chunked < whole / 2

    @pytest.mark.parametrize("transform", [functx.jacfwd, functx.jacrev, functx.hessian])
    @pytest.mark.parametrize("chunk_size", [0, -1, 2.0, True, "two"])
    def test_other_chunk_sizes_are_refused(self, transform, chunk_size):
        with pytest.raises(ValueRangeError) as info:
            transform(model, chunk_size=chunk_size)
        problem = "(model): chunk_size must be a positive int or None; got "
        assert transform.__name__ + problem + repr(chunk_size) in info.value.problem
        assert isinstance(info.value, ValueError)


class TestVmap:
    @staticmethod
    def pairs(x, y):
        return {"s": x @ y, "t": x.sum() + y.sum(1)}, y.sum(), x

    @pytest.mark.parametrize("chunk_size", [1, 2, 3, 7, 9])
    def test_maps_as_it_does_without_chunks(self, chunk_size):
        axes = {"in_axes": (1, None), "out_axes": ({"s": 1, "t": -1}, None, 0)}
        expected = functx.vmap(self.pairs, **axes)(X, Y)
        same(functx.vmap(self.pairs, **axes, chunk_size=chunk_size)(X, Y), expected)
        mapped = functx.jit(functx.vmap(self.pairs, **axes, chunk_size=chunk_size))
        same(mapped(X, Y), expected)

    @pytest.mark.parametrize("chunk_size", [1, 3])
    def test_differentiates_and_nests(self, chunk_size):
        def loss(x, y, chunk_size=None):
            each = functx.vmap(lambda a, b: fnp.sin(a * b).sum(), (1, None), chunk_size=chunk_size)
            return functx.vmap(each, (None, 1), chunk_size=chunk_size)(x, y).prod()

        small = RANDOM.rand(2, 4).astype("float32"), RANDOM.rand(2, 2).astype("float32")
        gradients = functx.grad(loss, (0, 1))
        same(functx.grad(lambda *p: loss(*p, chunk_size), (0, 1))(*small), gradients(*small))

    @pytest.mark.parametrize("chunk_size", [1, 2])
    def test_no_lanes_and_lanes_of_nothing_go(self, chunk_size):
        out = functx.vmap(lambda x: x * 2, chunk_size=chunk_size)(np.zeros((0, 3), "float32"))
        assert out.shape == (0, 3)
        found = functx.vmap(lambda x: x, in_axes=None, axis_size=5, chunk_size=chunk_size)(
            np.float32(2)
        )
        assert found.tolist() == [2] * 5

    def test_a_chunk_of_one_needs_no_batching_rules(self, opaque):
        with pytest.raises(NotImplementedError, match="`batch` rule"):
            functx.vmap(opaque, chunk_size=2)(X)
        same(functx.vmap(opaque, chunk_size=1)(X), X)

    def test_takes_memory_for_one_chunk(self):
        lanes = np.ones((32, 16, 16), "float32")

        def temporary(chunk_size):
            mapped = functx.vmap(lambda x: fnp.sin(x @ x @ x).sum(), chunk_size=chunk_size)
            return functx.jit(mapped).lower(lanes).compile().memory_analysis().temp_size_in_bytes

        whole, chunked, single = [temporary(n) for n in (None, 4, 1)]
        assert single < chunked < whole / 2

    @pytest.mark.parametrize("chunk_size", [1, 2])
    def test_an_output_that_is_mapped_needs_an_axis(self, chunk_size):
        with pytest.raises(OutAxesError, match="vmap"):
            functx.vmap(lambda x: x, out_axes=None, chunk_size=chunk_size)(X)

    @pytest.mark.parametrize("chunk_size", [0, -3, 1.0, False, "all"])
    def test_other_chunk_sizes_are_refused(self, chunk_size):
        with pytest.raises(ValueRangeError, match=r"vmap\(model\): chunk_size must be a positive"):
            functx.vmap(model, chunk_size=chunk_size)


ROWS = {"x": RANDOM.randn(7, 2).astype("float32"), "n": np.arange(7, dtype="int32")}


class TestMap:
    @staticmethod
    def step(row):
        return {"y": fnp.sin(row["x"]) * row["n"], "n": row["n"] + 1}

    @pytest.mark.parametrize("batch_size", [None, 0, 1, 2, 3, 7, 20])
    def test_any_batch_size_gives_the_same(self, batch_size):
        expected = functx.vmap(self.step)(ROWS)
        same(lax.map(self.step, ROWS, batch_size=batch_size), expected)

    @pytest.mark.parametrize("batch_size", [None, 0, 3])
    def test_no_rows_go(self, batch_size):
        rows = jax.tree.map(lambda x: x[:0], ROWS)
        found = lax.map(self.step, rows, batch_size=batch_size)
        assert found["y"].shape == (0, 2) and found["n"].shape == (0,)

    def test_it_differentiates_and_maps(self):
        rows = ROWS["x"]

        def loss(x, batch_size):
            return lax.map(lambda row: fnp.sin(row).prod(), x, batch_size=batch_size).sum()

        expected = functx.grad(lambda x: fnp.sin(x).prod(1).sum())(rows)
        same(functx.grad(loss)(rows, 3), expected)
        lanes = np.stack([rows, rows + 1])
        gradients = functx.vmap(functx.grad(lambda x: loss(x, 2)))(lanes)
        same(gradients[0], expected)

    @pytest.mark.parametrize("batch_size", [-2, -1])
    def test_a_batch_size_below_zero_is_refused(self, batch_size):
        with pytest.raises(ValueRangeError, match=r"map\(step\): batch_size must"):
            lax.map(self.step, ROWS, batch_size=batch_size)

    def test_other_mistakes_are_named(self):
        with pytest.raises(ArgumentError, match="batch_size must be an integer"):
            lax.map(self.step, ROWS, batch_size=2.5)
        with pytest.raises(AxisSizeError, match="must have rows"):
            lax.map(self.step, np.float32(1), batch_size=2)


Z = np.ones(2, "complex64")
R = np.ones(2, "float32")


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (
            lambda: functx.jacfwd(model)({"u": Z, "v": R}),
            "jacfwd(model): differentiated arguments must be real floating point; got c64[2] for "
            "`p['u']`",
        ),
        (
            lambda: functx.jacrev(lambda x: {"a": x, "b": [x * 1j]})(R),
            "jacrev(lambda): outputs must be real floating point; got c64[2], number 1, at "
            "output['b'][0]",
        ),
        (
            lambda: functx.hessian(model)({"u": Z, "v": R}),
            "hessian(model): differentiated arguments must be real floating point; got c64[2] for "
            "`p['u']`",
        ),
        (
            lambda: functx.hessian(lambda x: (x, x * 1j))(R),
            "hessian(lambda): outputs must be real floating point; got c64[2], number 1, at "
            "output[1]",
        ),
        (
            lambda: functx.hvp(lambda x, y: x.sum(), (R, R > 0), (R, R)),
            "hvp(lambda): differentiated arguments must be of a floating point dtype; got bool[2] "
            "for `y`",
        ),
        (
            lambda: functx.hvp(lambda x: (x * 1j).sum(), (R,), (R,)),
            "hvp(lambda): the function must return a real floating point scalar; got c64[]",
        ),
        (
            lambda: functx.jacfwd(lambda x: x.real, holomorphic=True)(Z),
            "jacfwd(lambda): outputs must be complex; got f32[2], number 0, at output",
        ),
        (
            lambda: functx.jacrev(lambda x: x, holomorphic=True)(R),
            "jacrev(lambda): differentiated arguments must be complex; got f32[2] for `x`",
        ),
    ],
)
def test_values_of_the_wrong_kind_are_refused_by_function_and_leaf(call, problem):
    with pytest.raises(GradientError) as info:
        call()
    assert problem in info.value.problem


def test_hvp_wants_a_tuple_of_primals():
    with pytest.raises(ArgumentError, match=r"hvp\(model\): primals must be a tuple"):
        functx.hvp(model, R, R)
