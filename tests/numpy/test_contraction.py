"""Contractions: values, types and derivatives against jax.numpy, and error messages."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import functx.numpy as fnp
from functx import lax
from functx.core.errors import AxisError, ShapeError, ValueRangeError
from functx.lowering.jit import jit
from functx.transforms.grad import grad
from functx.transforms.make_ir import make_ir
from tests.numpy.agreement import Agreement, agree_at_once, derivatives, label, values_of_a_batch

CALLS = [
    *[
        ("np.matmul(x, y)", *types)
        for types in [
            ("f32[3]", "f32[3]"),
            ("f32[2,3]", "f32[3]"),
            ("f32[3]", "f32[3,2]"),
            ("f32[2,3]", "f32[3,4]"),
            ("f32[5,2,3]", "f32[3,4]"),
            ("f32[5,2,3]", "f32[3]"),
            ("f32[3]", "f32[5,3,2]"),
            ("f32[2,3]", "f32[5,3,4]"),
            ("f32[5,2,3]", "f32[5,3,4]"),
            ("f32[6,5,2,3]", "f32[5,3,4]"),
            ("f32[5,2,3]", "f32[6,5,3,4]"),
            ("f32[6,1,2,3]", "f32[1,5,3,4]"),
            ("f32[6,1,2,3]", "f32[5,3,4]"),
            ("f32[1,2,3]", "f32[1,3,4]"),
            ("f32[1,2,3]", "f32[6,3,4]"),
            ("f32[0,3]", "f32[3,2]"),
            ("f32[2,0]", "f32[0,3]"),
            ("i32[2,3]", "i32[3,4]"),
            ("bool[2,3]", "bool[3,4]"),
            ("u8[2,3]", "i8[3,4]"),
            ("c64[2,3]", "c64[3,4]"),
            ("bf16[2,3]", "bf16[3,4]"),
            ("bf16[2,3]", "f32[3,4]"),
            ("f16[2,3]", "f16[3]"),
            ("i32[2,3]", "f32[3]"),
            ("~f32[2,3]", "~f32[3,2]"),
            ("~f32[2,3]", "bf16[3,2]"),
        ]
    ],
    ("np.matmul(x, y, precision='highest')", "f32[2,3]", "f32[3,4]"),
    ("np.matmul(x, y, preferred_element_type='int32')", "i8[2,3]", "i8[3,4]"),
    ("np.matmul(x, y, preferred_element_type='float32')", "bf16[2,3]", "bf16[3,4]"),
    ("np.matmul(x, y, preferred_element_type='float32')", "~f32[3]", "~f32[3]"),
    ("np.matvec(x, y)", "f32[4,2,3]", "f32[3]"),
    ("np.matvec(x, y)", "f32[2,3]", "f32[4,3]"),
    ("np.vecmat(x, y)", "c64[4,3]", "c64[3,2]"),
    ("np.vecmat(x, y)", "f32[3]", "f32[4,3,2]"),
    ("np.dot(x, y)", "f32[3]", "f32[3]"),
    ("np.dot(x, y)", "f32[2,3]", "f32[3]"),
    ("np.dot(x, y)", "f32[2,3]", "f32[5,3,4]"),
    ("np.dot(x, y)", "f32[]", "f32[5,3]"),
    ("np.dot(x, 2.0)", "f32[5,3]"),
    ("np.dot(2, 3.0)",),
    ("np.dot(x, y, precision=('high', 'highest'))", "f32[2,3]", "f32[3]"),
    ("np.dot(x, y, preferred_element_type='float32')", "bf16[2,3]", "bf16[]"),
    ("np.inner(x, y)", "f32[2,3]", "f32[4,3]"),
    ("np.inner(x, y)", "f32[3]", "f32[]"),
    ("np.inner(x, y)", "c64[2,3]", "f32[5,4,3]"),
    ("np.vdot(x, y)", "c64[2,3]", "c64[3,2]"),
    ("np.vdot(x, y)", "f32[]", "f32[1]"),
    ("np.vdot(x, y)", "i32[2,3]", "f32[6]"),
    ("np.vecdot(x, y)", "c64[2,3]", "c64[5,1,3]"),
    ("np.vecdot(x, y, axis=0)", "f32[3,2]", "f32[3,2]"),
    ("np.vecdot(x, y, axis=-2)", "f32[3,2]", "bf16[4,3,1]"),
    ("np.outer(x, y)", "f32[2,2]", "f32[3]"),
    ("np.outer(x, y)", "i32[2]", "f32[]"),
    ("np.outer(x, y)", "~f32[2]", "~f32[3]"),
    ("np.tensordot(x, y)", "f32[2,3,4]", "f32[3,4,5]"),
    ("np.tensordot(x, y, 0)", "f32[2,3]", "f32[4]"),
    ("np.tensordot(x, y, axes=1)", "f32[2,3]", "f32[3,4]"),
    ("np.tensordot(x, y, axes=([0, 2], [1, 0]))", "f32[2,3,4]", "f32[4,2,5]"),
    ("np.tensordot(x, y, axes=(0, -1))", "f32[2,3]", "f32[4,2]"),
    ("np.tensordot(x, y, axes=[[-1], [0]])", "f32[2,3]", "f32[3,4]"),
    ("np.kron(x, y)", "f32[2,3]", "f32[3,2]"),
    ("np.kron(x, y)", "f32[3]", "i32[2,2]"),
    ("np.kron(x, y)", "f32[]", "f32[2]"),
    ("np.cross(x, y)", "f32[3]", "f32[3]"),
    ("np.cross(x, y)", "f32[2,3]", "f32[4,1,3]"),
    ("np.cross(x, y)", "f32[3]", "f32[2]"),
    ("np.cross(x, y)", "f32[2]", "f32[3,2]"),
    ("np.cross(x, y, axis=0)", "f32[3,2]", "f32[3,2]"),
    ("np.cross(x, y, 0, 1, 0)", "f32[3,2]", "f32[2,3]"),
    ("np.cross(x, y, axisc=0)", "i32[2,3]", "f32[2,3]"),
    ("np.trace(x)", "f32[3,4]"),
    ("np.trace(x, 1)", "f32[3,4]"),
    ("np.trace(x, offset=-2)", "f32[3,4]"),
    ("np.trace(x, offset=7)", "f32[3,4]"),
    ("np.trace(x, 0, 1, 2)", "f32[2,3,4]"),
    ("np.trace(x, 1, axis1=-1, axis2=0)", "f32[2,3,4]"),
    ("np.trace(x)", "i8[3,4]"),
    ("np.trace(x)", "u8[3,4]"),
    ("np.trace(x)", "bool[3,4]"),
    ("np.trace(x)", "bf16[3,4]"),
    ("np.trace(x, dtype='float32')", "i32[3,4]"),
    ("np.trace(x)", "f32[0,4]"),
]

EINSUMS = [
    ("ij,jk->ik", "f32[2,3]", "f32[3,4]"),
    ("ij,jk", "f32[2,3]", "f32[3,4]"),
    ("ba,ac", "f32[2,3]", "f32[3,4]"),
    ("ij,kj->ki", "f32[2,3]", "f32[4,3]"),
    ("i,i", "f32[3]", "f32[3]"),
    ("i,i->", "f32[3]", "f32[3]"),
    ("i,j->ij", "f32[3]", "f32[4]"),
    ("i,j->ji", "f32[3]", "f32[4]"),
    ("ij,ij->ij", "f32[2,3]", "f32[2,3]"),
    ("ij,ji->ij", "f32[2,3]", "f32[3,2]"),
    ("ij,ji", "f32[2,3]", "f32[3,2]"),
    ("bij,bjk->bik", "f32[5,2,3]", "f32[5,3,4]"),
    ("bij,bjk->kbi", "f32[5,2,3]", "f32[5,3,4]"),
    ("bij,jk->bik", "f32[5,2,3]", "f32[3,4]"),
    ("bqhd,bkhd->bhqk", "f32[2,3,4,5]", "f32[2,6,4,5]"),
    ("bhqk,bkhd->bqhd", "f32[2,4,3,6]", "f32[2,6,4,5]"),
    ("bij,b->bij", "f32[2,3,4]", "f32[2]"),
    ("ij,->ij", "f32[2,3]", "f32[]"),
    (",", "f32[]", "f32[]"),
    ("ij->ji", "f32[2,3]"),
    ("ij", "f32[2,3]"),
    ("ba", "f32[2,3]"),
    ("ij->", "f32[2,3]"),
    ("ij->j", "f32[2,3]"),
    ("ii", "f32[3,3]"),
    ("ii->i", "f32[3,3]"),
    ("iij->ij", "f32[3,3,2]"),
    ("iji->ji", "f32[3,2,3]"),
    ("iii->i", "f32[3,3,3]"),
    ("iijj->ij", "f32[3,3,2,2]"),
    ("ii,ij->j", "f32[3,3]", "f32[3,2]"),
    ("ij,k->i", "f32[2,3]", "f32[4]"),
    ("ij,jk->", "f32[2,3]", "f32[3,4]"),
    ("...ij,...jk->...ik", "f32[5,2,3]", "f32[5,3,4]"),
    ("...ij,...jk->...ik", "f32[6,5,2,3]", "f32[5,3,4]"),
    ("...ij,...jk", "f32[2,3]", "f32[5,3,4]"),
    ("i...,i...->...", "f32[3,2,4]", "f32[3,2,4]"),
    ("i...,i...", "f32[3,2,4]", "f32[3,4]"),
    ("...", "f32[2,3]"),
    ("...i->...", "f32[2,3]"),
    ("i...->...i", "f32[2,3,4]"),
    ("b...,b...->b...", "f32[2,3]", "f32[2,1]"),
    ("ij,ij->i", "f32[2,3]", "f32[2,1]"),
    ("ij,jk,kl->il", "f32[2,3]", "f32[3,4]", "f32[4,5]"),
    ("ij,jk,ki->", "f32[2,3]", "f32[3,4]", "f32[4,2]"),
    ("i,i,i->i", "f32[3]", "f32[3]", "f32[3]"),
    ("ab,cd,bd->ac", "f32[2,3]", "f32[4,5]", "f32[3,5]"),
    ("a,ab,ab->b", "f32[3]", "f32[3,2]", "f32[3,2]"),
    (" i j , j k -> i k ", "f32[2,3]", "f32[3,4]"),
    ("ij,jk->ik", "i32[2,3]", "f32[3,4]"),
    ("ij,jk->ik", "c64[2,3]", "f32[3,4]"),
    ("ij,jk->ik", "bf16[2,3]", "bf16[3,4]"),
    ("ij->i", "bool[2,3]"),
    ("ij->i", "i8[2,3]"),
    ("ij,jk->ik", "~f32[2,3]", "~f32[3,4]"),
    ("i,i->i", "bool[3]", "bool[3]"),
    ("ij,jk->ik", "f32[0,3]", "f32[3,4]"),
    ("ij,jk->ik", "f32[2,0]", "f32[0,4]"),
    ("ii->i", "f32[0,0]"),
]
CALLS += [
    (f"np.einsum({spec!r}, {', '.join('xyz'[: len(types)])})", *types) for spec, *types in EINSUMS
]
CALLS += [
    ("np.einsum(x, [0, 1], y, [1, 2], [0, 2])", "f32[2,3]", "f32[3,4]"),
    ("np.einsum(x, [1, 0], y, [0, 30])", "f32[2,3]", "f32[3,4]"),
    ("np.einsum(x, [Ellipsis, 1], y, [1, 2], [Ellipsis, 2])", "f32[5,2,3]", "f32[3,4]"),
    ("np.einsum('ij,jk,kl->il', x, y, z, optimize=False)", "f32[2,3]", "f32[3,4]", "f32[4,5]"),
    ("np.einsum('ij,jk,kl->il', x, y, z, optimize=True)", "f32[2,3]", "f32[3,4]", "f32[4,5]"),
    (
        "np.einsum('ij,jk,kl->il', x, y, z, optimize=[(1, 2), (0, 1)])",
        "f32[2,3]",
        "f32[3,4]",
        "f32[4,5]",
    ),
    ("np.einsum('ij,jk', x, y, precision='high')", "f32[2,3]", "f32[3,4]"),
    ("np.einsum('ij,jk', x, y, preferred_element_type='int32')", "i8[2,3]", "i8[3,4]"),
    ("np.einsum('ij,ij->ij', x, y, preferred_element_type='int32')", "i8[2,3]", "i8[2,3]"),
]

LINALG = [
    ("np.matrix_power(x, 1)", "f32[2,2]"),
    ("np.matrix_power(x, 5)", "f32[4,2,2]"),
    ("np.multi_dot([x, y])", "f32[2,3]", "f32[3,4]"),
    ("np.multi_dot([x, y, z])", "f32[2,3]", "f32[3,4]", "f32[4,2]"),
    ("np.multi_dot([x, y, z])", "f32[3]", "f32[3,4]", "f32[4]"),
]


PRODUCTS = Agreement(fnp, jnp, CALLS)


@pytest.mark.parametrize("call", PRODUCTS.calls, ids=label)
def test_products_agree_with_jax(call):
    PRODUCTS.check(call)


@pytest.mark.parametrize("call", CALLS[::12], ids=label)
def test_products_agree_with_jax_step_by_step(call):
    agree_at_once(fnp, jnp, *call)


CHAINS = Agreement(fnp.linalg, jnp.linalg, LINALG)


@pytest.mark.parametrize("call", CHAINS.calls, ids=label)
def test_chains_and_powers_agree_with_jax(call):
    CHAINS.check(call)


BATCHES = Agreement(
    fnp, jnp, [call for call in CALLS if len(call) > 1][::10], values_of_a_batch, weak=False
)


@pytest.mark.parametrize("call", BATCHES.calls, ids=label)
def test_products_map_over_batches(call):
    BATCHES.check(call)


WIDE = Agreement(
    fnp,
    jnp,
    [
        tuple([part.replace("f32", "f64").replace("c64", "c128") for part in call])
        for call in CALLS[::11] + CALLS[-9:-7]
    ],
)


@pytest.mark.parametrize("call", WIDE.calls, ids=label)
def test_products_agree_with_jax_in_64_bits(call, x64):
    WIDE.check(call)


INEXACT = [c for c in CALLS if all(t[0] in "fc" and "0" not in t.split("[")[1] for t in c[1:])]


DERIVATIVES = Agreement(fnp, jnp, INEXACT[::3], derivatives, weak=False)


@pytest.mark.parametrize("call", DERIVATIVES.calls, ids=label)
def test_derivatives_of_products_agree_with_jax(call):
    DERIVATIVES.check(call)


def equations(call, *shapes):
    program = make_ir(call)(*[np.ones(shape, np.float32) for shape in shapes])
    return [eqn.primitive.name for eqn in program.equations]


@pytest.mark.parametrize(
    "spec, shapes, expected",
    [
        ("ij,jk->ik", [(2, 3), (3, 4)], ["dot_general"]),
        ("ij,jk->ki", [(2, 3), (3, 4)], ["dot_general"]),
        ("bij,bjk->bki", [(5, 2, 3), (5, 3, 4)], ["dot_general"]),
        ("bqhd,bkhd->bhqk", [(2, 3, 4, 5), (2, 6, 4, 5)], ["dot_general"]),
        ("bhqk,bkhd->bqhd", [(2, 4, 3, 6), (2, 6, 4, 5)], ["dot_general", "permute_dims"]),
        ("ij,ij->ij", [(2, 3), (2, 3)], ["mul"]),
        ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)], ["dot_general", "dot_general"]),
    ],
)
def test_einsum_takes_few_equations(spec, shapes, expected):
    assert equations(lambda *xs: fnp.einsum(spec, *xs), *shapes) == expected


@pytest.mark.parametrize(
    "shapes, expected",
    [
        ([(2, 3), (3, 4)], ["dot_general"]),
        ([(5, 2, 3), (3, 4)], ["dot_general"]),
        ([(5, 2, 3), (5, 3, 4)], ["dot_general"]),
        ([(3,), (5, 3, 4)], ["dot_general"]),
        ([(2, 3), (5, 3, 4)], ["dot_general", "permute_dims"]),
        ([(7, 1, 2, 3), (5, 3, 4)], ["reshape", "dot_general", "permute_dims"]),
    ],
)
def test_matmul_takes_few_equations(shapes, expected):
    assert equations(fnp.matmul, *shapes) == expected


ONES = {n: np.ones(n, np.float32) for n in [(), (2,), (3,), (2, 3), (4, 5), (2, 2, 3), (4, 3, 2)]}


@pytest.mark.parametrize(
    "call, error, message",
    [
        (
            lambda np: np.matmul(ONES[2, 3], ONES[4, 5]),
            ShapeError,
            r"matmul: .*\(3\) and .*\(4\) must have one size; got f32\[2,3\] and f32\[4,5\]",
        ),
        (
            lambda np: np.matmul(ONES[2, 2, 3], ONES[4, 3, 2]),
            ShapeError,
            r"matmul: the leading dimensions must broadcast; got f32\[2,2,3\] and f32\[4,3,2\]",
        ),
        (lambda np: np.matmul(ONES[2, 3], ONES[()]), ShapeError, r"matmul: .*one dimension"),
        (lambda np: np.matmul(ONES[3,], ONES[2,]), ShapeError, r"\(3\) and .*\(2\)"),
        (lambda np: np.dot(ONES[2, 3], ONES[4, 5]), ShapeError, r"dot: contracted .*f32\[4,5\]"),
        (lambda np: np.vdot(ONES[3,], ONES[2,]), ShapeError, r"vdot: contracted"),
        (
            lambda np: np.tensordot(ONES[2, 3], ONES[3,], 2),
            AxisError,
            r"tensordot: axes must be at",
        ),
        (lambda np: np.tensordot(ONES[2, 3], ONES[4, 5], 1), ShapeError, r"tensordot: contracted"),
        (lambda np: np.einsum("ij,jk", ONES[2, 3], ONES[4, 5]), ShapeError, r"3 and 4 for `j`"),
        (lambda np: np.einsum("ij", ONES[3,]), ShapeError, r"einsum: a term .*`ij` .*\(3,\)"),
        (lambda np: np.einsum("ij,jk", ONES[2, 3]), TypeError, r"einsum: .*one operand a term"),
        (lambda np: np.einsum("ij->k", ONES[2, 3]), ValueRangeError, r"einsum: subscripts"),
        (lambda np: np.einsum("ij->ii", ONES[2, 3]), ValueRangeError, r"einsum: subscripts"),
        (lambda np: np.einsum("i.j", ONES[2, 3]), ShapeError, r"einsum: a term"),
        (lambda np: np.einsum(ONES[2, 3], ONES[3,]), TypeError, r"einsum: operands must follow"),
        (
            lambda np: np.cross(ONES[4, 5], ONES[4, 5]),
            ShapeError,
            r"cross: vectors must have 2 or 3",
        ),
        (lambda np: np.trace(ONES[3,]), ShapeError, r"trace: .*two dimensions"),
        (lambda np: np.trace(ONES[2, 3], 0, 0, 2), AxisError, r"trace: axis1 and axis2"),
        (lambda np: np.linalg.matrix_power(ONES[2, 3], 2), ShapeError, r"matrix_power: .*square"),
        (lambda np: np.linalg.multi_dot([ONES[2, 3]]), ValueRangeError, r"multi_dot: .*two arrays"),
        (
            lambda np: np.matmul(ONES[2, 3], ONES[3,], precision="low"),
            ValueRangeError,
            r"precision",
        ),
    ],
)
def test_misfits_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call(fnp)


def test_a_diagonal_by_einsum_is_a_view_that_may_be_written_to():
    cube = np.arange(27.0, dtype="f").reshape(3, 3, 3)
    specs = ["iij->ji", "iji->ij", "jii->ij", "iii->i", "ii...->...i", "i...i->...i"]
    parts = [lambda x: x, lambda x: x.T, lambda x: x[::-1], lambda x: x[::2, ::2, ::2]]

    def written(numpy, x):
        # Each of the 24 writes goes to a copy of its own.
        for k, (spec, part) in enumerate(itertools.product(specs, parts)):
            diagonal = numpy.einsum(spec, part(x[k]))
            diagonal *= 2.0
            diagonal[0] = -1.0
        return x

    copies = np.stack([cube] * 24)
    wanted = written(np, copies.copy())
    assert np.array_equal(written(fnp, fnp.array(copies)), wanted)
    assert np.array_equal(jit(lambda x: written(fnp, fnp.array(x)))(copies), wanted)
    weights = np.cos(np.arange(copies.size)).reshape(copies.shape).astype("f")
    found = grad(lambda x: (written(fnp, fnp.array(x)) * weights).sum())(copies)
    # What was doubled has twice the weight, what was overwritten none.
    slope = written(np, np.ones_like(copies))
    np.testing.assert_allclose(found, weights * np.where(slope == -1, 0, slope), rtol=1e-6)


def test_operators_of_jax_arrays_leave_a_traced_operand_to_its_own():
    w = jnp.ones((2, 2))

    def f(x):
        assert type(w).__matmul__(w, x) is type(w).__add__(w, x) is NotImplemented
        return w @ x + w

    assert np.array_equal(jit(f)(fnp.ones((2, 2))), 3 * np.ones((2, 2)))


def test_precisions_are_those_of_jax():
    assert lax.Precision is jax.lax.Precision


def test_products_lie_where_out_sharding_says():
    mesh = jax.make_mesh((1,), ("x",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    x = np.ones((3, 3), "float32")
    for product in (
        fnp.matmul,
        fnp.dot,
        partial(fnp.tensordot, axes=1),
        partial(fnp.linalg.tensordot, axes=1),
        partial(fnp.einsum, "ij,jk"),
    ):
        program = make_ir(lambda x, f=product: f(x, x, out_sharding=sharding))(x)
        assert str(program).count("sharding_constraint[") == 1


class Scaled(tuple):
    """A tuple with an operator of its own."""

    def __rmul__(self, other):
        return type(self)(other * x for x in self)


def test_operators_leave_a_tuple_with_operators_of_its_own_to_them():
    x = fnp.ones(2)
    for out in (x * Scaled([x]), jit(lambda x: tuple(x * Scaled([x])))(x)):
        assert len(out) == 1 and out[0].shape == (2,)
    assert (x * (2.0, 3.0)).tolist() == [2.0, 3.0]
