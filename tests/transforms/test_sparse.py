"""Patterns of Jacobians and Hessians, colorings, and the derivatives computed by them."""

import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

import functx
import functx.numpy as xp
from functx import grad, jacfwd, jit, lax, nn, sparse, vmap
from functx.core.errors import (
    ArgumentError,
    ConcretizationError,
    GradientError,
    PatternSizeError,
    ValueRangeError,
)
from functx.core.index_sets import IndexSets
from functx.testing.reference import interpret_in_numpy
from functx.transforms import sparsity
from functx.transforms.forward_mode import JVPRewrite
from functx.transforms.sparse_derivatives import Products
from functx.transforms.sparsity_pattern import SparsityPattern, count_colors

X = np.random.RandomState(0).rand(12) + 0.5
INDEX = np.array([3, 1, 2, 3])
IMAGE = np.ones((2, 2, 3), "float32")


def dense_pattern(fun, x):
    """The places where a tangent of a single element reaches, by the reference interpreter."""
    program = functx.make_ir(fun)(x)
    tangents = JVPRewrite((True, *[False] * len(program.captured)))(program)
    columns = []
    for unit in np.eye(x.size, dtype=x.dtype).reshape(x.size, *x.shape):
        values = [x, *program.captured, unit]
        outs = interpret_in_numpy(tangents, *values)[len(program.outputs) :]
        columns.append(np.concatenate([np.ravel(out) != 0 for out in outs]))
    return np.stack(columns, axis=1)


def chain_loop(x):
    return lax.fori_loop(1, 8, lambda i, c: c.at[i].add(c[i - 1] * x[i]), x)


def segment_loop(x):
    return lax.scan(lambda c, v: (c + v[0] * v[1] ** 2, v[0] * v[1]), 0.0, x.reshape(6, 2))


EXACT = {
    "elementwise, with scalars": lambda x: xp.sin(x) * x[3],
    "roll and reverse": lambda x: xp.roll(x, 1) * x - x[::-1],
    "differences": lambda x: (x[1:] - x[:-1]) ** 2,
    "captured indices": lambda x: (x[INDEX], x.at[INDEX[:3]].set(x[:3] * x[4:7])[1:], x[-2]),
    "scatter-add to one place": lambda x: xp.zeros(12).at[np.array([0, 0, 5, 0])].add(x[:4]),
    "indices from shapes": lambda x: x[xp.arange(12)[::-2]] * x[xp.arange(12) % 3 * 2][:6],
    "captured mask": lambda x: xp.where(np.arange(12) % 2 == 0, x, xp.roll(x, 2)),
    "pad, concatenate, stack": lambda x: xp.concatenate([xp.pad(x[:3], (1, 2)), xp.stack([x[4:6]])[0]]),
    "sums along an axis": lambda x: x.reshape(3, 4).sum(1) * x.reshape(3, 4)[:, 0],
    "product of matrices": lambda x: x.reshape(3, 4) @ np.ones((4, 2)),
    "batched product": lambda x: xp.einsum("bi,bij->bj", x[:6].reshape(3, 2), x.reshape(3, 2, 2)),
    "convolution": lambda x: xp.convolve(x, np.ones(3), mode="same"),
    "cumulative sum": lambda x: (xp.cumsum(x), lax.cumsum(x.reshape(3, 4), 1, reverse=True)),
    "vmap": lambda x: vmap(lambda row: row.sum() * row[0])(x.reshape(3, 4)),
    "map": lambda x: lax.map(lambda row: row.sum() * row, x.reshape(3, 4)),
    "loop with a counter": chain_loop,
    "scan": segment_loop,
    "windows": lambda x: lax.reduce_window(x, 0.0, lax.add, (3,), (2,), "VALID"),
    "gradient of a chain": grad(lambda x: ((x[1:] - x[:-1]) ** 2).sum() + 3 * x.sum()),
    "gradient of products": grad(lambda x: (x[1:] * x[:-1]).sum() + x.sum()),
    "gradient of a scan": grad(lambda x: segment_loop(x)[0]),
    "rows of softmax": lambda x: nn.softmax(x.reshape(3, 4)),
    "a linear gradient": grad(lambda x: (x * np.arange(12)).sum()),
}  # fmt: skip
LARGER = {
    "unknown indices": lambda x: x[(x * 3).astype(int) % 12],
    "unknown rows": lambda x: xp.take(x.reshape(3, 4), (x[:1] > 0).astype(int), axis=0),
    "unknown start": lambda x: lax.dynamic_slice(x, ((x[0] > 0).astype(int),), (3,)),
    "unknown update": lambda x: lax.dynamic_update_slice(x, x[:2] * 2, ((x[0] > 0).astype(int),)),
    "unknown scatter": lambda x: x.at[(x[:2] > 0.9).astype(int)].add(x[4:6]),
    "cond": lambda x: lax.cond(x[0] > 0, lambda x: x * 2, lambda x: xp.roll(x, 1), x),
    "while": lambda x: lax.while_loop(
        lambda c: c[0].sum() < 100, lambda c: (c[0] * 1.5, xp.roll(c[1], 1)), (x, x)
    ),
    "sort": lambda x: xp.sort(x.reshape(3, 4), axis=1),
    "linear solve": lambda x: xp.linalg.solve(np.eye(3) * 4 + np.ones((3, 3)), x.reshape(3, 4)),
    "transform": lambda x: xp.fft.fft(x.reshape(3, 4)).real,
}
"""Functions whose pattern depends on values, with fewer places than all elements."""


def test_patterns_are_exact_where_the_structure_says_so():
    for name, fun in EXACT.items():
        found, expected = sparse.jacobian_pattern(fun)(X).to_dense(), dense_pattern(fun, X)
        assert np.array_equal(found, expected), (name, found.astype(int), expected.astype(int))


def test_patterns_that_depend_on_values_contain_all_that_can_be_nonzero():
    sizes = {}
    for name, fun in LARGER.items():
        pattern, reached = sparse.jacobian_pattern(fun)(X), dense_pattern(fun, X)
        assert not (reached & ~pattern.to_dense()).any(), name
        sizes[name] = pattern.nnz
    assert sizes == {
        "unknown indices": 144, "unknown rows": 12, "unknown start": 36, "unknown update": 34,
        "unknown scatter": 34, "cond": 24, "while": 156, "sort": 48, "linear solve": 36,
        "transform": 48,
    }  # fmt: skip


def test_long_loops_have_a_fixed_point(monkeypatch):
    functions = [
        chain_loop,
        segment_loop,
        lambda x: lax.fori_loop(0, 50, lambda i, c: xp.roll(c, 1), x),
    ]
    followed = [sparse.jacobian_pattern(f)(X).to_dense() for f in functions]
    monkeypatch.setattr(sparsity, "LOOP_EQUATIONS", 0)
    for fun, exact in zip(functions, followed, strict=True):
        program = functx.make_ir(fun)(X)
        pattern = sparsity.JacobianPattern((True,), len(program.outputs), (None,))(program)
        assert not (exact & ~pattern.to_dense()).any()
    # The rows of a scan stay apart, also where the carry does not.
    program = functx.make_ir(segment_loop)(X)
    rows = sparsity.JacobianPattern((True,), 2, (None,))(program).to_dense()[1:]
    assert np.array_equal(rows, np.kron(np.eye(6), np.ones((1, 2))) == 1)


def test_captured_integers_are_part_of_the_pattern_and_arguments_are_not():
    def gathering(index):
        return lambda x: x[index] * 2

    for index in ([0, 1], [2, 5], [7, 7]):
        captured = sparse.jacobian(gathering(np.array(index)))(X)
        assert np.array_equal(np.asarray(captured.indices)[:, 1], index)
    assert sparse.jacobian_pattern(lambda x, i: x[i])(X, np.array([2, 5])).nnz == 24
    jitted = jit(lambda x, i: sparse.jacobian(lambda y: y[i], format="dense")(x))
    assert np.array_equal(jitted(X, np.array([2, 5])), np.eye(12)[[2, 5]])


def pattern_of(dense):
    dense = np.asarray(dense, bool)
    starts = np.concatenate([[0], np.cumsum(dense.sum(1))])
    return SparsityPattern(dense.shape, starts, np.nonzero(dense)[1].astype("int32"))


def test_integers_may_follow_from_long_chains():
    start = xp.arange(3)

    def f(x):
        i = start
        for _ in range(300):
            i = i * 4 % 5
        i, _ = lax.scan(lambda i, _: (i * 4 % 5, None), i, length=301)
        return x[i]

    expected = np.eye(5)[[0, 4, 3]]
    assert np.array_equal(sparse.jacobian_pattern(f)(np.ones(5)).to_dense(), expected)


def test_colorings_let_every_element_be_read():
    random = np.random.RandomState(0)
    for _ in range(60):
        m, n = random.randint(1, 25, 2)
        dense = random.rand(m, n) < random.rand() * 0.4
        pattern = pattern_of(dense)
        for products in (Products(pattern, "forward"), Products(pattern, "reverse")):
            assert len(np.unique(products.places(), axis=0)) == pattern.nnz
        square = np.zeros((max(m, n),) * 2)
        square[:m, :n] += dense
        matrix = random.rand(*square.shape) * np.logical_or(square, square.T)
        matrix = matrix + matrix.T
        products = Products(pattern_of(matrix != 0), "symmetric")
        seeds = np.arange(max(products.count, 1))[:, None] == products.colors
        number, position = products.places().T
        read = (seeds @ matrix)[number, position]
        np.testing.assert_allclose(read, matrix[matrix != 0])


def test_colorings_are_small_on_known_matrices():
    band = np.tri(40, k=2) * np.tri(40, k=2).T
    grid = np.kron(np.eye(6), np.tri(6, k=1) * np.tri(6, k=1).T) + np.kron(
        np.tri(6, k=1) * np.tri(6, k=1).T, np.eye(6)
    )
    arrow = np.eye(30)
    arrow[0] = arrow[:, 0] = 1
    counts = {}
    for name, dense in (
        ("band", band),
        ("grid", grid),
        ("arrow", arrow),
        ("full", np.ones((9, 9))),
    ):
        pattern = pattern_of(dense)
        counts[name] = count_colors(pattern.column_colors), count_colors(pattern.symmetric_colors)
    assert counts["band"] == (5, 5) and counts["arrow"] == (30, 2) and counts["full"] == (9, 9)
    assert counts["grid"][0] <= 9 and counts["grid"][1] <= 7


def tree_function(a, b):
    return {"u": a[1:] * a[:-1], "v": (b * 2, b.sum(0) * a[:3]), "s": a[0] * b[0, 0]}


def scalar_function(a, b):
    chain = (a[1:] ** 2 * a[:-1]).sum() + (b[1:] * xp.sin(b[:-1])).sum()
    return chain + (a[0] * a[2:] ** 2).sum() + a[0] * b[0, 0]


def test_sparse_derivatives_are_the_dense_ones_in_every_composition():
    a, b = np.linspace(0.5, 2.0, 7, dtype="float32"), np.arange(6, dtype="float32").reshape(2, 3)
    numbers = (0, 1)

    def loss(x):
        return (sparse.jacobian(lambda z: z[1:] * z[:-1] ** 2)(x).todense() ** 2).sum()

    def loss_by_dense(x):
        return (jacfwd(lambda z: z[1:] * z[:-1] ** 2)(x) ** 2).sum()

    def results(a, b):
        batch = xp.stack([a, 2 * a])
        found = [
            *[
                sparse.jacobian(tree_function, numbers, mode=m)(a, b)
                for m in ("forward", "reverse")
            ],
            sparse.jacobian(tree_function, numbers, chunk_size=2, format="dense")(a, b),
            functx.jacobian(tree_function, numbers, mode="sparse", memory_budget=500)(a, b),
            sparse.hessian(scalar_function, numbers)(a, b),
            sparse.hessian(scalar_function, numbers, symmetric=False, format="dense")(a, b),
            functx.hessian(scalar_function, numbers, mode="sparse")(a, b),
            vmap(grad(loss))(batch),
            sparse.hessian(loss)(a),
            vmap(sparse.jacobian(lambda z: z[1:] * z[:-1]))(batch),
            vmap(lambda m, z: m @ z)(vmap(sparse.jacobian(lambda z: z[1:] * z[:-1]))(batch), batch),
        ]
        jacobian = jacfwd(tree_function, numbers)(a, b)
        hessian = functx.hessian(scalar_function, numbers)(a, b)
        expected = [
            *[jacobian] * 4, *[hessian] * 3, vmap(grad(loss_by_dense))(batch),
            functx.hessian(loss_by_dense)(a), vmap(jacfwd(lambda z: z[1:] * z[:-1]))(batch),
            2 * batch[:, 1:] * batch[:, :-1],
        ]  # fmt: skip
        return found, expected

    program = functx.make_ir(results)(a, b)
    outs = [
        x.astype(v.aval.dtype)
        for x, v in zip(interpret_in_numpy(program, a, b), program.outputs, strict=True)
    ]
    found, expected = functx.tree.unflatten(program.trees[1], outs)
    assert found[0]["u"][0].nse == 12 and found[4][0][0].shape == (7, 7)
    is_sparse = lambda x: hasattr(x, "todense")  # noqa: E731
    found = functx.tree.map(lambda x: x.todense() if is_sparse(x) else x, found, is_leaf=is_sparse)
    assert functx.tree.structure(found) == functx.tree.structure(expected)
    for x, y in zip(functx.tree.leaves(found), functx.tree.leaves(expected), strict=True):
        assert x.shape == y.shape
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4)


def test_csr_scalars_empty_arrays_aux_and_complex_numbers():
    z = np.array([1.0 + 2.0j, 3.0 - 1.0j])
    matrix = sparse.jacobian(lambda x: x.reshape(3, 4)[1:] * 2.0, format="csr")(X)
    assert matrix.shape == (8, 12) and np.array_equal(matrix.toarray(), 2 * np.eye(12)[4:])
    assert sparse.hessian(lambda x: x**3)(2.0).todense() == 12.0
    assert sparse.jacobian(lambda x: x * 2)(np.zeros(0)).todense().shape == (0, 0)
    assert functx.jacobian(lambda x: xp.ones(2), mode="sparse")(X).tolist() == [[0.0] * 12] * 2
    matrix, aux = sparse.hessian(lambda x: ((x[1:] * x[:-1]).sum(), {"n": 3}), has_aux=True)(X[:2])
    assert matrix.todense().tolist() == [[0.0, 1.0], [1.0, 0.0]] and aux == {"n": 3}
    squares = sparse.jacobian(lambda z: z * z, holomorphic=True)(z)
    np.testing.assert_allclose(squares.data, 2 * z)
    np.testing.assert_allclose(sparse.jacobian(lambda x: x * 1j)(X[:2]).data, [1j, 1j])
    total = functx.jacobian(lambda x: (x * 1j).sum(keepdims=True), mode="sparse")(X[:2])
    np.testing.assert_allclose(total, [[1j, 1j]])
    halves = sparse.jacobian(lambda x: (x.astype("bfloat16"), 2 * x.astype("float16")))(X[:2])
    assert [x.dtype.name for x in halves] == ["bfloat16", "float16"] and halves[
        1
    ].data.tolist() == [2, 2]
    with pytest.raises(GradientError, match="outputs must be real in reverse mode"):
        sparse.jacobian(lambda x: x * 1j, mode="reverse")(X)
    with pytest.raises(GradientError, match="arguments or outputs must be real"):
        sparse.jacobian(lambda z: z * z)(z)


def test_plans_choose_by_size_and_say_why():
    plan = sparse.jacobian_plan(lambda x: (x**2).sum())(X)
    assert plan.mode == "reverse" and "sparse: not tried" in str(plan)
    assert sparse.jacobian_plan(lambda x: x[0] * np.ones(40))(X).mode == "forward"
    plan = sparse.jacobian_plan(lambda x: x[1:] * x[:-1], memory_budget=10**5)(np.ones(100))
    assert (plan.mode, plan.chosen.products, plan.chunk) == ("sparse", 2, None)
    full = sparse.hessian_plan(lambda x: x.sum() ** 2, memory_budget=50_000)(np.ones(100))
    assert full.mode == "forward" and 1 <= full.chunk < 100
    assert f"{full.chunk} products at a time" in str(full)


def test_patterns_print_and_draw():
    pattern = sparse.jacobian_pattern(lambda x: x[1:] * x[:-1])(np.ones(1000))
    lines = str(pattern).splitlines()
    assert lines[0].startswith("999 x 1000, 1998 nonzero, 0.20% of the elements; products: 2")
    assert len(lines) == 25 and lines[1].startswith("|..")
    assert ElementTree.fromstring(pattern.svg()).tag.endswith("svg")
    assert str(sparse.jacobian_pattern(lambda x: x)(np.zeros(0))).startswith("0 x 0, 0 nonzero")
    ElementTree.fromstring(sparse.jacobian_pattern(lambda x: x)(np.zeros(0)).svg())
    assert pattern == sparse.jacobian_pattern(lambda x: x[:-1] * x[1:])(np.ones(1000))


def test_patterns_with_too_many_places_are_refused(monkeypatch):
    monkeypatch.setattr(sparsity, "MOST_PLACES", 1000)

    def sums(x):
        return xp.cumsum(x) * 2.5

    with pytest.raises(PatternSizeError, match="must have at most 1000 places; got 2080 of 4096"):
        sparse.jacobian(sums)(np.ones(64))
    plan = sparse.jacobian_plan(lambda x: xp.cumsum(x) * 3.5)(np.ones(64))
    assert plan.mode == "forward" and "sparse: " in str(plan)


def test_sets_that_would_be_too_large_become_one():
    sets = IndexSets(400, limit=2000, work=20_000)
    prefixes = sets.union_before(np.arange(1, 401, dtype="int32"), 0)
    for i, number in enumerate(prefixes):
        assert {*range(i + 1)} <= {*sets.members_of(np.array([number])).tolist()}
    assert len(sets.members_of(prefixes[-1:])) == 400 and sets.starts[-1] < 60_000


def test_mistakes_name_the_argument():
    for call, error, text in (
        (lambda: sparse.jacobian(xp.sin, mode="x"), ValueRangeError, "mode must be one of"),
        (lambda: sparse.jacobian(xp.sin, format="x"), ValueRangeError, "format must be one of"),
        (lambda: sparse.hessian(xp.sum, chunk_size=0), ValueRangeError, "chunk_size"),
        (lambda: functx.jacobian(xp.sin, mode="x"), ValueRangeError, "mode must be one of"),
        (lambda: functx.hessian(xp.sum, mode="reverse"), ValueRangeError, "mode must be one of"),
        (lambda: functx.jacobian(xp.sin, mode="auto", memory_budget=0), ValueRangeError, "memory"),
        (lambda: functx.jacobian(xp.sin, memory_budget=0), ValueRangeError, "memory"),
        (lambda: sparse.jacobian(3), ArgumentError, "must be a function"),
        (lambda: sparse.hessian(xp.sin)(X), GradientError, "must return a scalar"),
        (lambda: jit(sparse.jacobian(xp.sin, format="csr"))(X), ConcretizationError, "'csr'"),
    ):
        with pytest.raises(error, match=text):
            call()
