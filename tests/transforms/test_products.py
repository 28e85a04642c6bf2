"""Sums of products: made in the cheapest order, without the large products that are only summed."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

import functx
import functx.numpy as fnp
from functx.core.checking import check_program
from functx.passes.einsum import best_contraction_order
from functx.passes.einsum_factors import Label, regroup_labels, resolve_labels
from functx.passes.reassociation import ReassociateContractions
from functx.testing.reference import interpret_in_numpy

# What computes again is a call, and products are not looked for across it.
pytestmark = pytest.mark.usefixtures("all_kept", "scaling_is_free")


def numbers(*shape, seed=0, scale=1.0, dtype="float32"):
    random = np.random.RandomState(seed + sum(shape))
    return (random.randn(*shape) * scale).astype(dtype)


def largest(program):
    """The number of elements of the largest value that a program computes."""
    return max([v.aval.size for p in program.walk() for eqn in p for v in eqn.outputs], default=0)


def contracted(f, *args, mode="always"):
    """The program of `f` with its sums in the cheapest order, and its outputs against those of `f`."""
    program = functx.make_ir(f)(*args)
    simpler = ReassociateContractions(mode)(program)
    leaves = functx.tree.leaves(args)
    check_program(simpler)
    for a, b in zip(
        interpret_in_numpy(program, *leaves), interpret_in_numpy(simpler, *leaves), strict=True
    ):
        assert a.dtype == b.dtype
        a, b = np.asarray(a, "complex128"), np.asarray(b, "complex128")
        scale = max(1e-30, np.abs(a).max())
        tolerance = {2: 2e-2, 4: 2e-5, 8: 1e-5, 16: 1e-5}[program.out_avals[0].dtype.itemsize]
        np.testing.assert_allclose(b, a, rtol=tolerance, atol=tolerance * scale)
    return simpler


B, I, O = 6, 8, 10  # noqa: E741
X, Y = numbers(B, I), numbers(B, O)


def outer(x, y):
    return x[:, :, None] * y[:, None, :]


SUMS = {
    "squares": lambda g: fnp.sum(g**2, axis=(1, 2)),
    "squares by product": lambda g: fnp.sum(g * g, axis=(1, 2)),
    "squares flat": lambda g: fnp.sum(fnp.square(g.reshape(B, -1)), axis=1),
    "squares in einsum": lambda g: fnp.einsum("bio,bio->b", g, g),
    "scaled squares": lambda g: fnp.sum((-3.0 * g / (1.0 + X[:, :1, None] ** 2)) ** 2, axis=(1, 2)),
    "sum": lambda g: fnp.sum(g, axis=0),
    "weighted sum": lambda g: fnp.tensordot(X[:, 0], g, 1),
    "weighted by broadcast": lambda g: fnp.sum(X[:, 1][:, None, None] * g, axis=0),
    "divided": lambda g: fnp.sum(g / (1.0 + X[:, 1] ** 2)[:, None, None], axis=0),
    "mean": lambda g: fnp.mean(g, axis=0),
    "all": lambda g: fnp.sum(g),
    "transposed": lambda g: fnp.sum(fnp.transpose(g, (2, 0, 1)), axis=1),
    "flat sum": lambda g: fnp.sum(g.reshape(B, -1) * X[:, :1], axis=0).reshape(I, O),
    "repeated": lambda g: fnp.sum(fnp.broadcast_to(g[..., None], (B, I, O, 4)), axis=(1, 3)),
    "product of two": lambda g: fnp.sum(g * (2.0 * g[..., None][..., 0]), axis=(1, 2)),
    "with a vector": lambda g: fnp.einsum("bio,o->bi", g, Y[0]),
    "both": lambda g: (
        fnp.sum(g**2, axis=(1, 2)),
        fnp.sum(fnp.minimum(1.0, 1.0 / fnp.sqrt(fnp.sum(g**2, axis=(1, 2))))[:, None, None] * g, 0),
    ),
}


@pytest.mark.parametrize("name", SUMS)
def test_outer_products_that_are_only_summed_are_not_formed(name):
    simpler = contracted(lambda x, y: SUMS[name](outer(x, y)), X, Y)
    assert largest(simpler) < B * I * O, simpler


@pytest.mark.parametrize("name", SUMS)
def test_outer_products_of_batched_dots_are_not_formed_either(name):
    simpler = contracted(lambda x, y: SUMS[name](functx.vmap(fnp.outer)(x, y)), X, Y)
    assert largest(simpler) < B * I * O, simpler


@pytest.mark.parametrize("name", [*SUMS])
def test_sums_of_few_outer_products_are_not_formed(name):
    # With one row in two of 8 and 10 columns, what is large is the matrix.
    x, y = numbers(B, 2, 8), numbers(B, 2, 10)
    simpler = contracted(lambda x, y: SUMS[name](fnp.einsum("bti,bto->bio", x, y)), x, y)
    assert largest(simpler) < B * I * O or "squares" in name, simpler


def test_a_matrix_of_many_rows_is_formed():
    x, y = numbers(4, 64, 8), numbers(4, 64, 8)
    f = lambda x, y: fnp.sum(fnp.einsum("bti,bto->bio", x, y) ** 2, axis=(1, 2))  # noqa: E731
    program = functx.make_ir(f)(x, y)
    assert ReassociateContractions("always")(program) is program


def test_the_norm_of_a_matrix_of_few_rows_is_taken_from_products_of_rows():
    x, y = numbers(4, 3, 64), numbers(4, 3, 64)
    f = lambda x, y: fnp.sum(fnp.einsum("bti,bto->bio", x, y) ** 2, axis=(1, 2))  # noqa: E731
    simpler = contracted(f, x, y)
    assert largest(simpler) < 4 * 64 * 64


def test_a_norm_of_rows_that_cancel_is_not_negative():
    x = np.repeat(numbers(4, 1, 64), 2, axis=1)
    y = numbers(4, 1, 64)
    y = np.concatenate([y, -y], axis=1)
    f = lambda x, y: fnp.sqrt(fnp.sum(fnp.einsum("bti,bto->bio", x, y) ** 2, axis=(1, 2)))  # noqa: E731
    program = ReassociateContractions("always")(functx.make_ir(f)(x, y))
    assert largest(program) < 4 * 64 * 64
    (norm,) = functx.tree.leaves(program(x, y))
    assert np.isfinite(norm).all() and (np.asarray(norm) >= 0).all()
    # The square root of how four terms of about 64 * 64 round in single precision.
    assert float(norm.max()) < 5e-2


@pytest.mark.parametrize(
    "dtype", ["float16", "bfloat16", "float32", "float64", "complex64", "int32"]
)
def test_sums_in_every_dtype(dtype, x64):
    x, y = [(numbers(B, n) * (9 if "int" in dtype else 1)).astype(jnp.dtype(dtype)) for n in (I, O)]
    for name in ("squares", "sum", "weighted sum" if dtype != "int32" else "all"):
        if dtype == "int32":
            f = lambda x, y: fnp.sum(outer(x, y), axis=0, dtype="int32")  # noqa: E731
        elif "weighted" in name:
            f = lambda x, y: fnp.einsum("b,bio->io", x[:, 0], outer(x, y))  # noqa: E731
        else:
            f = lambda x, y, name=name: SUMS[name](outer(x, y))  # noqa: E731
        assert largest(contracted(f, x, y)) < B * I * O


@pytest.mark.parametrize("high, low", [(1e30, 1e-30), (1e-30, 1e30), (1e18, 1.0), (1e-25, 1e-3)])
def test_squares_of_large_and_small_numbers_neither_overflow_nor_vanish(high, low):
    x, y = X * np.float32(high), Y * np.float32(low)
    program = functx.make_ir(lambda x, y: SUMS["squares"](outer(x, y)))(x, y)
    (a,), (b,) = [
        functx.tree.leaves(p(x, y)) for p in (program, ReassociateContractions("always")(program))
    ]
    np.testing.assert_allclose(b, a, rtol=1e-5)


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_what_is_not_finite_does_not_become_finite(value):
    x = X.copy()
    x[2, 3] = value
    program = functx.make_ir(lambda x, y: SUMS["squares"](outer(x, y)))(x, Y)
    (a,), (b,) = [
        functx.tree.leaves(p(x, Y)) for p in (program, ReassociateContractions("always")(program))
    ]
    np.testing.assert_array_equal(np.isfinite(a), np.isfinite(b))


def test_zeros_have_the_norm_zero():
    program = ReassociateContractions("always")(
        functx.make_ir(lambda x, y: SUMS["squares"](outer(x, y)))(X * 0, Y)
    )
    assert (np.asarray(functx.tree.leaves(program(X * 0, Y))[0]) == 0).all()


def test_a_product_that_is_returned_is_formed_once():
    def f(x, y):
        g = functx.vmap(fnp.outer)(x, y)
        return g, fnp.sum(g**2, axis=(1, 2)), fnp.sum(g, axis=0)

    simpler = contracted(f, X, Y)
    assert (
        sum(eqn.primitive.name == "mul" and eqn.outputs[0].aval.ndim == 3 for eqn in simpler) == 1
    )
    assert all(eqn.outputs[0].aval.size < B * I * O for eqn in [*simpler][3:])


def test_a_product_with_a_precision_of_its_own_is_left_alone():
    f = lambda x, y: SUMS["squares"](  # noqa: E731
        functx.lax.dot_general(x, y, (((), ()), ((0,), (0,))), precision="highest")
    )
    program = functx.make_ir(f)(X, Y)
    assert ReassociateContractions("always")(program) is program


def test_programs_without_large_products_are_left_alone():
    f = lambda w, x: fnp.sum(fnp.tanh(x @ w) ** 2)  # noqa: E731
    for g in (f, functx.grad(f)):
        program = functx.make_ir(g)(numbers(16, 32), numbers(64, 16))
        assert ReassociateContractions()(program) is program


def test_small_products_are_not_worth_it_by_default():
    program = functx.make_ir(lambda x, y: SUMS["squares"](outer(x, y)))(X, Y)
    assert ReassociateContractions()(program) is program


def test_a_chain_of_products_starts_at_the_thin_end():
    a, b, x = numbers(64, 2), numbers(2, 64), numbers(5, 64)
    simpler = contracted(lambda a, b, x: x @ (a @ b), a, b, x)
    assert largest(simpler) < 64 * 64


def test_attention_without_softmax_is_linear_in_the_length():
    q, k, v = [numbers(2, 256, 4, seed=i) for i in range(3)]
    f = functx.vmap(lambda q, k, v: (q @ k.T) @ v)
    assert largest(contracted(f, q, k, v, mode="auto")) < 2 * 256 * 256


# Derivatives of each example, as they are used.


def network(params, x):
    for w, b in params[:-1]:
        x = fnp.tanh(x @ w + b)
    w, b = params[-1]
    return x @ w + b


def loss(params, x, y):
    return fnp.mean((network(params, x) - y) ** 2)


WIDTHS = 12, 16, 20, 3
PARAMS = [(numbers(m, n, scale=0.3), numbers(n)) for m, n in itertools.pairwise(WIDTHS)]
BATCH = numbers(32, WIDTHS[0]), numbers(32, WIDTHS[-1])
PER_EXAMPLE = functx.vmap(functx.grad(loss), (None, 0, 0))
FORMED = 32 * min(m * n for m, n in itertools.pairwise(WIDTHS[:3]))


def norms(gradients):
    leaves = functx.tree.leaves(gradients)
    return fnp.sqrt(sum(fnp.sum(g**2, axis=tuple(range(1, g.ndim))) for g in leaves))


def clipped_after(params, x, y):
    gradients = PER_EXAMPLE(params, x, y)
    scale = fnp.minimum(1.0, 0.5 / norms(gradients))
    return functx.tree.map(lambda g: fnp.tensordot(scale, g, 1), gradients)


def clipped_within(params, x, y):
    def one(x, y):
        gradients = functx.grad(loss)(params, x, y)
        norm = fnp.sqrt(sum(fnp.sum(g**2) for g in functx.tree.leaves(gradients)))
        return functx.tree.map(lambda g: g / fnp.maximum(1.0, norm / 0.5), gradients)

    return functx.tree.map(lambda g: g.sum(axis=0), functx.vmap(one)(x, y))


def clipped_by_einsum(params, x, y):
    gradients = PER_EXAMPLE(params, x, y)
    squares = [fnp.einsum("bn,bn->b", g, g) for g in map(_flat, functx.tree.leaves(gradients))]
    scale = fnp.minimum(1.0, 0.5 / fnp.sqrt(sum(squares)))
    return functx.tree.map(lambda g: fnp.einsum("b,b...->...", scale, g), gradients)


def clipped_by_norm(params, x, y):
    gradients = PER_EXAMPLE(params, x, y)
    found = [fnp.linalg.norm(_flat(g), axis=1) for g in functx.tree.leaves(gradients)]
    scale = fnp.minimum(1.0, 0.5 / fnp.linalg.norm(fnp.stack(found), axis=0))
    return functx.tree.map(lambda g: fnp.tensordot(scale, g, 1), gradients)


def clipped_in_jit(params, x, y):
    gradients = functx.jit(PER_EXAMPLE)(params, x, y)
    scale = fnp.minimum(1.0, 0.5 / functx.jit(norms)(gradients))
    return functx.tree.map(lambda g: fnp.tensordot(scale, g, 1), gradients)


def clipped_flat(params, x, y):
    leaves, structure = functx.tree.flatten(PER_EXAMPLE(params, x, y))
    rows = fnp.concatenate([_flat(g) for g in leaves], axis=1)
    scale = fnp.minimum(1.0, 0.5 / fnp.sqrt(fnp.sum(rows**2, axis=1)))
    return functx.tree.unflatten(structure, [fnp.tensordot(scale, g, 1) for g in leaves])


def _flat(g):
    return g.reshape(g.shape[0], -1)


WAYS = [
    clipped_after,
    clipped_within,
    clipped_by_einsum,
    clipped_by_norm,
    clipped_in_jit,
    clipped_flat,
]


def clipped_by_hand():
    rows = [
        [np.asarray(g) for g in functx.tree.leaves(functx.grad(loss)(PARAMS, x, y))]
        for x, y in zip(*BATCH, strict=True)
    ]
    total = None
    for row in rows:
        norm = np.sqrt(sum((g.astype("float64") ** 2).sum() for g in row))
        row = [g * min(1.0, 0.5 / norm) for g in row]
        total = row if total is None else [a + b for a, b in zip(total, row, strict=True)]
    return total


def temporary_bytes(f, *args):
    return functx.jit(f).lower(*args).compile().memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize("way", WAYS)
def test_clipped_gradients_never_form_those_of_each_example(way):
    found = functx.tree.leaves(functx.jit(way)(PARAMS, *BATCH))
    for a, b in zip(found, clipped_by_hand(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)
    program = functx.tools.simplified(functx.make_ir(way)(PARAMS, *BATCH))
    assert largest(program) < FORMED, program


def test_clipped_gradients_take_little_memory():
    params = [
        (numbers(m, n, scale=0.1), numbers(n)) for m, n in itertools.pairwise((64, 96, 96, 8))
    ]
    batch = numbers(64, 64), numbers(64, 8)
    batch_by_parameters = 4 * 64 * 64 * 96
    for way in (clipped_after, clipped_within):
        assert temporary_bytes(way, params, *batch) < batch_by_parameters / 4


def test_norms_take_little_memory():
    f = lambda *args: norms(PER_EXAMPLE(*args))  # noqa: E731
    params = [
        (numbers(m, n, scale=0.1), numbers(n)) for m, n in itertools.pairwise((64, 96, 96, 8))
    ]
    batch = numbers(64, 64), numbers(64, 8)
    assert temporary_bytes(f, params, *batch) < 4 * 64 * 64 * 96 / 4


def test_norms_of_derivatives_in_layers_along_a_sequence():
    def loss(params, x):
        (v, b), w = params
        return fnp.mean(fnp.tanh(x @ v + b) @ w)

    params = (numbers(48, 64, scale=0.1), numbers(64)), numbers(64, 48, scale=0.1)
    x = numbers(5, 4, 48)
    f = lambda params, x: norms(functx.vmap(functx.grad(loss), (None, 0))(params, x))  # noqa: E731
    assert largest(contracted(f, params, x)) < 5 * 48 * 64


def test_derivatives_go_through_sums_of_products():
    f = lambda *args: fnp.sum(norms(PER_EXAMPLE(*args)))  # noqa: E731
    contracted(functx.grad(f), PARAMS, *BATCH)


# Orders and labels.


def test_the_best_order_of_a_chain_of_matrices():
    i, j, k, m = [Label(n) for n in (2, 100, 100, 1)]
    order = best_contraction_order(
        [frozenset({i, j}), frozenset({j, k}), frozenset({k, m})], frozenset({i, m})
    )
    assert sorted(map(str, order.tree)) == ["(2, 1)", "0"]


def test_labels_are_taken_apart_as_reshapes_need():
    wide = Label(12)
    assert [g[0].size for g in regroup_labels((3, 4), [wide])] == [3, 4]
    assert [x.size for x in resolve_labels([wide])] == [3, 4]
    assert regroup_labels((4, 3), [wide]) is None
    assert regroup_labels((1, 12, 1), [*resolve_labels([wide])]) is not None


class Sums:
    """A function of random arrays: products, squares, sums and differences, and sums over axes."""

    def __init__(self, seed):
        random = np.random.RandomState(seed)
        self.seed = seed
        sizes = dict(zip("abcdef", random.randint(2, 7, 6), strict=True))
        count = random.randint(3, 6)
        self.terms = [
            "".join(random.permutation([*sizes])[: random.randint(1, 4)]) for _ in range(count)
        ]
        self.arrays = [random.randn(*[sizes[c] for c in term]) for term in self.terms]

    def __call__(self, *arrays):
        random = np.random.RandomState(self.seed)
        values = [*zip(arrays, self.terms, strict=True)]
        outs = []
        for _ in range(random.randint(2, 7)):
            (x, s), (y, t) = [values[i] for i in random.randint(len(values), size=2)]
            both = "".join(dict.fromkeys(s + t))
            kind = random.randint(6)
            if kind == 0:
                values.append((fnp.einsum(f"{s},{t}->{both}", x, y), both))
            elif kind == 1:
                kept = "".join(random.permutation([*both])[: max(1, len(both) - random.randint(3))])
                values.append((fnp.einsum(f"{s},{t}->{kept}", x, y), kept))
            elif kind == 2:
                values.append((x**2, s))
            elif kind == 3:
                values.append((fnp.einsum(f"{s}->{s[::-1]}", x) * -0.5, s[::-1]))
            elif kind == 4:
                values.append((x + y if s == t else x / (1.0 + fnp.abs(arrays[0]).sum()), s))
            else:
                outs.append(fnp.einsum(f"{s},{t}->{both[:1]}", x, y))
        x, _ = values[-1]
        return [*outs, fnp.sum(x**2), fnp.sum(x.reshape(x.shape[0], -1), axis=1)]


def test_random_sums_of_products_mean_the_same(x64):
    for seed in range(40):
        f = Sums(seed)
        contracted(f, *f.arrays)


def deep_loss(params, x):
    for w, b, v in params:
        h = x @ w + b
        x = x + fnp.tanh(fnp.sin(h) * fnp.cos(h)) @ v
    return fnp.sum(x**2)


def test_norms_of_derivatives_of_blocks_that_were_outlined():
    params = [(numbers(8, 8, seed=i), numbers(8), numbers(8, 8)) for i in range(8)]
    x = numbers(32, 8)
    with functx.config.set(outline="always"):
        gradients = functx.vmap(functx.grad(deep_loss), (None, 0))
        program = functx.make_ir(lambda *args: norms(gradients(*args)))(params, x)
    assert any(eqn.primitive.name == "call" and eqn.primitive.noinline for eqn in program)
    simpler = ReassociateContractions("always")(program)
    check_program(simpler)
    assert largest(program) >= 32 * 8 * 8 > largest(simpler)
    leaves = functx.tree.leaves((params, x))
    (a,), (b,) = [interpret_in_numpy(p, *leaves) for p in (program, simpler)]
    np.testing.assert_allclose(b, a, rtol=1e-4)


def test_norms_of_derivatives_that_are_computed_again():
    f = functx.checkpoint(lambda params, x: deep_loss(params, x))
    params = [(numbers(8, 8, seed=i), numbers(8), numbers(8, 8)) for i in range(2)]
    gradients = functx.vmap(functx.grad(f), (None, 0))
    simpler = contracted(lambda *args: norms(gradients(*args)), params, numbers(32, 8))
    assert any(
        eqn.primitive.name == "checkpoint" and eqn.primitive.differentiated for eqn in simpler
    )
    assert largest(simpler) < 32 * 8 * 8


LOOKUPS = {
    "index": lambda table, ids: table[ids],
    "take": lambda table, ids: fnp.take(table, ids, axis=0),
    "clip": lambda table, ids: fnp.take(table, ids, axis=0, mode="clip"),
    "embedding": lambda table, ids: functx.nn.embedding(ids, table),
    "one hot": lambda table, ids: functx.nn.one_hot(ids, table.shape[0]) @ table,
}


@pytest.mark.parametrize("name", LOOKUPS)
def test_derivatives_of_tables_are_not_formed_for_each_example(name):
    def loss(table, w, ids):
        return fnp.sum(fnp.tanh(LOOKUPS[name](table, ids) @ w) ** 2)

    table, w = numbers(50, 8), numbers(8, 4)
    ids = np.random.RandomState(0).randint(0, 6, (5, 4)).astype("int32")
    ids[0], ids[1] = 3, -1 if name == "index" else 49

    def norms_and_clipped(*args):
        gradients = functx.vmap(functx.grad(loss, (0, 1)), (None, None, 0))(*args)
        scale = fnp.minimum(1.0, 0.5 / norms(gradients))
        return scale, [fnp.tensordot(scale, g, 1) for g in gradients]

    simpler = contracted(norms_and_clipped, table, w, ids)
    assert largest(simpler) < 5 * 50 * 8, simpler
    if name != "one hot":
        assert largest(simpler) == 50 * 8
    if name != "index":
        return
    jitted = functx.jit(norms_and_clipped)(table, w, ids)
    with functx.config.set(simplify="never"):
        plain = functx.jit(norms_and_clipped)(table, w, ids)
    for a, b in zip(*map(functx.tree.leaves, (jitted, plain)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_rows_beyond_a_table_are_left_out_or_moved_inside():
    ids = np.array([[0, 60, 60], [-1, 2, 2]], "int32")
    updates = numbers(2, 3, 4)
    for mode in ("drop", "clip"):

        def f(ids, updates, mode=mode):
            numbers_ = functx.lax.ScatterDimensionNumbers((1,), (0,), (0,))

            def one(i, u):
                zeros = fnp.zeros((50, 4))
                return functx.lax.scatter_add(zeros, i[:, None], u, numbers_, mode=mode)

            g = functx.vmap(one)(ids, updates)
            return fnp.sum(g**2, axis=(1, 2)), fnp.sum(g, axis=0)

        assert largest(contracted(f, ids, updates)) == 50 * 4


def test_norms_of_derivatives_of_layers_in_a_scan():
    def loss(params, x):
        def layer(h, p):
            w, b = p
            return h + fnp.tanh(h @ w + b), None

        return fnp.sum(functx.lax.scan(layer, x, params)[0] ** 2)

    params = numbers(3, 12, 12, scale=0.3), numbers(3, 12)
    x = numbers(8, 12)

    def clipped(params, x):
        g = functx.vmap(functx.grad(loss), (None, 0))(params, x)
        scale = fnp.minimum(1.0, 0.5 / norms(g))
        return [fnp.tensordot(scale, a, 1) for a in g]

    simpler = contracted(clipped, params, x)
    assert largest(simpler) < 8 * 3 * 12 * 12, simpler
    with functx.config.set(simplify="never"):
        plain = functx.jit(clipped)(params, x)
    with functx.config.set(simplify="always"):
        found = functx.jit(clipped)(params, x)
    for a, b in zip(found, plain, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


SHARED = {
    "in two places": lambda w, x: fnp.tanh(fnp.tanh(x @ w) @ w),
    "difference": lambda w, x: fnp.tanh(x @ w) - fnp.sin(2.0 * x @ w),
    "unrolled": lambda w, x: fnp.tanh(fnp.tanh(fnp.tanh(x @ w) @ w + x) @ w + x),
    "along a sequence": lambda w, x: fnp.tanh(fnp.tanh(fnp.stack([x, -x]) @ w) @ w),
}


@pytest.mark.parametrize("name", SHARED)
def test_norms_of_derivatives_by_weights_that_are_used_several_times(name):
    loss = lambda w, x: fnp.sum(SHARED[name](w, x) ** 2)  # noqa: E731
    gradients = functx.vmap(functx.grad(loss), (None, 0))

    def clipped(w, x):
        g = gradients(w, x)
        scale = fnp.minimum(1.0, 0.5 / norms(g))
        return scale, fnp.tensordot(scale, g, 1), fnp.tensordot(scale, -g / 2.0, 1)

    simpler = contracted(clipped, numbers(24, 24, scale=0.2), numbers(7, 24))
    assert largest(simpler) < 7 * 24 * 24, simpler


@pytest.mark.parametrize("first", [False, True])
def test_norms_of_derivatives_by_a_table_that_is_used_for_output_too(first):
    def loss(table, ids):
        x = fnp.tanh(table[ids])
        scores = x @ table.T if first else fnp.sin(x) @ table.T
        return fnp.sum(functx.nn.logsumexp(scores, axis=-1))

    ids = np.random.RandomState(0).randint(0, 40, (6, 3)).astype("int32")

    def clipped(table, ids):
        g = functx.vmap(functx.grad(loss), (None, 0))(table, ids)
        scale = fnp.minimum(1.0, 0.5 / norms(g))
        return scale, fnp.tensordot(scale, g, 1)

    simpler = contracted(clipped, numbers(40, 16), ids)
    assert largest(simpler) < 6 * 40 * 16, simpler
