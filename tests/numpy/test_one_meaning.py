"""Expressions have one value and type outside transforms, under `jit`, and under `vmap`."""

import copy
import itertools
import operator
import pickle
import random
import warnings

import jax
import jax.numpy as jnp
import numpy
import pytest

import functx
import functx.numpy as np
from functx.core.errors import (
    CapturedWriteError,
    DTypeError,
    ForeignCodeError,
    FunctxError,
    IndexingError,
    ShapeError,
)
from functx.core.host_kernels import evaluate_on_host
from functx.core.primitive import Primitive
from functx.core.primitive_families import HasHostKernel
from functx.core.tracer import as_ndarray, aval_of
from functx.ops.conversion import ConvertElementType
from functx.ops.reductions import ReduceAnd, ReduceOr
from functx.ops.views import Copy


def templates(text):
    return [each.strip() for each in text.split(";")]


VARIABLES = {
    "a": (numpy.arange(6).reshape(2, 3) / 4 - 0.5).astype("float32"),
    "b": numpy.array([0.5, -2.0, 1.0], "float32"),
    "h": numpy.array([[1.5, -0.25, 2.0], [0.0, 4.0, -1.0]], "float16"),
    "i": numpy.array([[3, -1, 2], [0, 5, -4]], "int32"),
    "j": numpy.array([2, 0, 1], "int32"),
    "u": numpy.array([7, 200, 3], "uint8"),
    "m": numpy.array([[True, False, True], [False, False, True]]),
    "s": numpy.array(1.5, "float32"),
    "n": numpy.array(2, "int32"),
}

# Of X, Y any expressions, of E, F those without rounding, of B, C booleans, of I, J integers,
# of K integers up to 2, of V, W arrays with a dimension, of M those with two.
EXACT = templates(
    """
    E + F; E - F; E * F; -E; abs(E); +E; E == F; E != F; E < F; E <= F; E > F; E >= F; I & J; I | J; I ^ J;
    B & C; B | C; B ^ C; ~B; ~I; I // 3; I % 3; I << 1; I >> 1; I * 2; 3 - E; E * 0.5; 2 * E; E + True;
    E ** 2; E // 2; E % 2; divmod(I, 4)[1]; 5 % (abs(I) + 1); E.sum(); E.sum(-1); V.sum(0, keepdims=True);
    E.min(); E.max(); E.prod(); E.any(); E.all(); V.argmax(); V.argmin(-1); V.cumsum(-1); E.clip(-1, 1);
    E.round(); E.astype("float16"); E.astype("float32"); E.astype("int32"); B.astype("uint8"); E.copy();
    V.reshape(-1); V.reshape((-1, 1)); V.ravel(); V.flatten(); V.T; V.transpose(); M.swapaxes(0, 1);
    V.squeeze(); V.repeat(2); V.take(1); V.take([0, 1]); M.diagonal(); M.trace(); E.real; E.conj();
    V[0]; V[-1]; V[1:]; V[::-1]; V[..., 0]; V[None]; V[..., None]; V[[0, 0]]; M[:, ::2]; M[0, 1]; M[:, [0, 0]];
    M[np.array([0, 1]), 0]; V[np.array(0)]; V[np.argmax(V) % 1]; V[n - 2]; V[K % 1]; b[K]; np.array([4, 5, 6])[K];
    V.at[0].set(3); V.at[0].add(1.0); V.at[[0, 0]].add(2); V.at[..., 0].multiply(2); V.at[0].max(1);
    V.at[0].get(); len(V); E.ndim; E.size; E.max() > 0; n; s; a; b; h; i; j; u; m;
    np.add(E, F); np.subtract(E, F); np.multiply(E, F); np.negative(E); np.abs(E); np.square(E); np.maximum(E, F);
    np.minimum(E, F); np.floor(E); np.ceil(E); np.sign(E); np.where(B, E, F); np.where(B, 1.0, 0.0);
    np.where(E > 0, E, 0); np.where(B, 1, 2); np.concatenate([V, W]); np.stack([E, F]); np.expand_dims(E, 0);
    np.reshape(E, -1); np.ravel(E); np.transpose(E); np.squeeze(E); np.broadcast_to(E, (2, *E.shape));
    np.flip(E); np.roll(E, 1); np.moveaxis(M, 0, 1); np.atleast_2d(E); np.atleast_1d(E); np.zeros_like(E);
    np.ones_like(E); np.full_like(E, 2); np.full((2,), 2.0); np.zeros(3, "float16"); np.ones((2, 1)); np.eye(2);
    np.arange(3); np.arange(0, 1, 0.25); np.asarray(E); np.array(E); np.array([1, 2.5]); np.float32(E);
    np.tile(V, 2); np.split(V, [1])[0]; np.array_split(V, 2)[1]; np.diff(V); np.outer(V, W); np.cumsum(E);
    np.sort(V); np.argsort(V); np.count_nonzero(E); np.isnan(E); np.isfinite(E); np.logical_not(E);
    np.logical_and(E, F); np.logical_or(E, F); np.bitwise_and(I, J); np.sum(E); np.max(E); np.argmax(V);
    np.any(E); np.tril(M); np.triu(M); np.diag(V); np.pad(V, 1); np.swapaxes(M, 0, -1); np.copy(E);
    np.take(V, K, mode="clip"); np.array_equal(E, F); np.heaviside(E, 0.5); np.trunc(E); np.fix(E); np.float_power(E, 2);
    np.clip(E, None, 2); np.ptp(V); np.nan_to_num(E); np.ndim(E); np.shape(E); np.result_type(E, F);
    np.append(V, 1); np.rot90(M); np.kron(V, W); np.vdot(V, W); np.inner(V, W); np.dot(V, 2); np.tensordot(V, 2, 0);
    E.sum(dtype="float32"); E.at[...].set(1); abs(E) ** 3; round(s); E.mT if E.ndim > 1 else E; E.imag
"""
)
ROUNDED = templates(
    """
    X / Y; X / 2; 1 / (abs(X) + 1); X.mean(); X.mean(-1); X.std(); X.var(); np.sin(X); np.exp(np.sin(X)); np.sqrt(abs(X));
    np.tanh(X); X ** 0.5; X * 1.1; X @ b; M @ M.T; X.dot(b); np.log1p(abs(X)); np.arctan2(X, Y); np.hypot(X, Y);
    np.mean(X); np.var(X); np.linalg.norm(X); np.cos(1.0) * X; np.sin(2) + X; np.exp2(X); np.linspace(0, 1, 4);
    np.cumprod(np.sin(X)); np.logaddexp(X, Y); np.einsum("...i->...", V); X + Y; X * Y; X - Y; X[..., 0]; X.sum(0);
    np.average(X); np.median(X); np.interp(X, [0, 1], [2, 3]); functx.nn.relu(X); functx.nn.softmax(V); functx.lax.add(X, X);
    functx.lax.exp(np.float32(X)); functx.scipy.special.erf(np.float32(X)); np.sinc(X); np.cbrt(X); np.true_divide(X, Y)
"""
)


class Pool:
    """Expressions of given variables, with their plain values: each is made of earlier ones."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.found = [(name, value(name, variables()), True) for name in VARIABLES]
        self.raised = []

    def grow(self, count):
        """That many expressions more."""
        while count:
            rounded = self.random.random() < 0.25
            source, exact = self.filled(self.random.choice(ROUNDED if rounded else EXACT))
            if source is None:
                continue
            try:
                made = value(source, variables())
            except (FunctxError, ZeroDivisionError):
                self.raised.append(source)
                continue
            if numpy.size(made) <= 48 and len(source) < 160:
                exact = exact and not rounded and getattr(made, "dtype", None) != numpy.float16
                self.found.append((source, made, exact))
                count -= 1

    def filled(self, template):
        chosen = {word: self.operand(word) for word in set(template) & set("XYEFBCIJKVWM")}
        if None in chosen.values():
            return None, False
        source = "".join([f"({chosen[c][0]})" if c in chosen else c for c in template])
        return source, all([exact for _, _, exact in chosen.values()])

    def operand(self, word):
        fits = [each for each in self.random.choices(self.found, k=12) if suits(word, *each)]
        return fits[0] if fits else None


def suits(word, source, found, exact):
    if not isinstance(found, np.ndarray) or len(source) > 60:
        return False
    kind, large = found.dtype.kind, found.size and abs(found.astype(float)).max() > 100
    return {
        "X": True,
        "Y": True,
        "E": exact and not large,
        "F": exact and not large,
        "B": kind == "b" and exact,
        "C": kind == "b" and exact,
        "I": kind in "iu" and exact,
        "J": kind in "iu" and exact,
        "K": kind in "iu" and exact and found.size and 0 <= found.min() <= found.max() <= 2,
        "V": exact and found.ndim and 0 not in found.shape,
        "W": exact and found.ndim and 0 not in found.shape,
        "M": exact and found.ndim == 2 and 0 not in found.shape,
    }[word]


def variables():
    return {name: np.array(x) for name, x in VARIABLES.items()}


def value(source, given):
    return eval(source, {"np": np, "functx": functx}, given)


def meaning(sources):
    """What each of the expressions gives, its type, and how many numbers a write to it changes."""

    def f(given):
        seen, types = [], []
        for source in sources:
            own = {name: x.copy() for name, x in given.items()}
            found = value(source, own)
            kept = np.copy(found) if isinstance(found, np.ndarray) else 0
            refused = ""
            if isinstance(found, np.ndarray) and found.ndim:
                try:
                    found[...] = 77
                except (FunctxError, ValueError):
                    refused = "read-only"
            changed = [(x != given[name]).sum() for name, x in own.items() if name in source]
            seen.append((kept, sum(changed)))
            whole = getattr(found, "dtype", None) or repr(found)
            types.append((whole, numpy.shape(kept), refused))
        f.types = types
        return seen

    return f


def check(seed, count, batch):
    """Compare the meanings of `count` random expressions; those that differ."""
    pool = Pool(seed)
    pool.grow(count)
    sources = [source for source, _, _ in pool.found[len(VARIABLES) :]]
    wrong = []
    for start in range(0, count, batch):
        some = sources[start : start + batch]
        f = meaning(some)
        plainly, types = f(variables()), f.types
        compiled, compiled_types = functx.jit(f)(variables()), f.types
        lanes = {name: x[None] for name, x in variables().items()}
        mapped, mapped_types = functx.jit(functx.vmap(f))(lanes), f.types
        for k, source in enumerate(some):
            others = [(compiled[k], compiled_types[k]), *[(mapped[k], mapped_types[k])] * 1]
            for how, (found, kind) in zip(("jit", "vmap"), others, strict=True):
                if how == "vmap":
                    found = functx.tree.map(lambda x: x[0] if numpy.ndim(x) else x, found)
                difference = differs(plainly[k], types[k], found, kind)
                if difference:
                    wrong.append(f"{source}  plainly and under {how}: {difference}")
    return wrong


def differs(plainly, kind, other, other_kind):
    if kind != other_kind:
        return f"{kind} {other_kind}"
    if plainly[1] != other[1]:
        return f"a write changes {plainly[1]} and {other[1]} elements"
    x, y = (numpy.asarray(each[0]) for each in (plainly, other))
    if x.dtype.kind not in "fc":
        return "" if numpy.array_equal(x, y) else f"{x} {y}"
    if x.shape != y.shape:
        return f"{x.shape} {y.shape}"
    rounding = 2e-2 if x.dtype == numpy.float16 else 2e-5
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        size = max(1.0, numpy.nanmax(numpy.abs(x[numpy.isfinite(x)]), initial=0))
        same = numpy.allclose(x.astype(float), y.astype(float), rounding, rounding * size, True)
    return "" if same else f"{x} {y}"


def test_random_expressions_mean_the_same_plainly_and_under_jit_and_vmap():
    assert not check(seed=0, count=120, batch=120)


SPECIAL = {
    "f": [0.0, -0.0, 1.0, -1.5, 0.1, 3.0, 1e4, -6e4, numpy.inf, -numpy.inf, numpy.nan, 1e-3],
    "i": [0, 1, -1, 2, 7, -128, 127, 100, -100],
    "u": [0, 1, 2, 7, 255, 128, 200],
    "b": [False, True],
}
KINDS = {
    "f": ["float16", "float32"],
    "i": ["int8", "int16", "int32"],
    "u": ["uint8", "uint32"],
    "b": ["bool"],
}


def operands(dtype, kind, count):
    """Arrays that pair each special value with every other."""
    values = numpy.array(SPECIAL[kind]).astype(dtype)
    if kind == "i":
        values = numpy.append(values, [numpy.iinfo(dtype).min, numpy.iinfo(dtype).max]).astype(
            dtype
        )
    return [as_ndarray(x.ravel().copy()) for x in numpy.meshgrid(*[values] * count)]


def test_results_computed_by_numpy_have_the_bits_of_a_compiled_program():
    cases = []
    for primitive in Primitive.registry.values():
        if (
            not issubclass(primitive, HasHostKernel)
            or primitive.fields
            or issubclass(primitive, Copy)
        ):
            continue
        for kind in set(primitive.host_kernel_kinds) & set(primitive.accepts):
            for dtype in KINDS[kind]:
                count = getattr(primitive.host_kernel, "nin", 1)
                cases.append((primitive(), operands(dtype, kind, count)))
    for kind, dtype in [(k, d) for k, dtypes in KINDS.items() for d in dtypes]:
        (x,) = operands(dtype, kind, 1)
        cases += [(ConvertElementType(to), [x]) for k in KINDS for to in KINDS[k]]
        cases += [(reduction((0,)), [x]) for reduction in (ReduceAnd, ReduceOr) if kind in "biu"]
        cases.append((Copy(), [x]))
    args = [args for _, args in cases]
    compiled = functx.jit(lambda args: [p(*xs) for (p, _), xs in zip(cases, args, strict=True)])(
        args
    )
    assert len(cases) > 150
    for (primitive, xs), found in zip(cases, compiled, strict=True):
        at_once = evaluate_on_host(primitive, xs, tuple(map(aval_of, xs)))
        if at_once is None:
            assert isinstance(primitive, ConvertElementType)
            continue
        assert at_once.dtype == found.dtype and at_once.shape == found.shape, primitive
        same_bits(at_once, found, f"{primitive} of {xs[0].dtype}")


def same_bits(x, y, what):
    x, y = numpy.asarray(x), numpy.asarray(y)
    nan = numpy.isnan(x) & numpy.isnan(y) if x.dtype.kind == "f" else numpy.zeros(x.shape, bool)
    bits = f"V{x.dtype.itemsize}"
    assert (nan | (x.view(bits) == y.view(bits))).all(), what


def test_numbers_and_arrays_outside_a_trace_promote_as_in_a_compiled_program():
    signs = [operator.add, operator.sub, operator.mul, operator.truediv, operator.lt, operator.eq]
    numbers = [2, -3, 0, 0.5, -0.0, True, 1e5, numpy.float32(0.1), numpy.int8(3), 1j]
    arrays = [np.array([1.5, 2.0, 0.0], d) for d in ("float16", "float32", "int32", "uint8")]

    def every(arrays):
        found = []
        for sign, number, x in itertools.product(signs, numbers, arrays):
            for args in ((x, number), (number, x)):
                try:
                    found.append(sign(*args))
                except (FunctxError, OverflowError) as error:
                    found.append(type(error).__name__)
        return [x for x in found if isinstance(x, str)], [
            x for x in found if not isinstance(x, str)
        ]

    refused, found = every(arrays)
    errors = []
    compiled = functx.jit(lambda arrays: [errors.append(every(arrays)), errors[-1][1]][1])(arrays)
    assert errors[0][0] == refused and len(compiled) == len(found) > 300
    for x, y in zip(found, compiled, strict=True):
        assert isinstance(x, np.ndarray) and x.dtype == y.dtype
        numpy.testing.assert_allclose(numpy.asarray(x), numpy.asarray(y), 2e-3)


def test_an_array_is_numpys_to_everybody_else():
    x = np.arange(6).reshape(2, 3) / 2
    assert type(x) is np.ndarray and isinstance(x, numpy.ndarray) and x.flags.writeable
    for again in (pickle.loads(pickle.dumps(x)), copy.copy(x), copy.deepcopy(x), x.copy(), +x):
        assert type(again) is np.ndarray and again.tolist() == x.tolist()
        assert not numpy.shares_memory(again, x)
    assert repr(x[0]) == "array([0. , 0.5, 1. ], dtype=float32)" and str(x[1, 2]) == "2.5"
    assert type(numpy.asarray(x)) is type(x.view(numpy.ndarray)) is numpy.ndarray
    assert memoryview(x).shape == (2, 3) and x.tobytes() == numpy.asarray(x).tobytes()
    assert (
        jnp.sin(x).shape
        == jax.jit(jnp.sin)(x).shape
        == jax.jit(jax.grad(lambda y: (y * y).sum()))(x).shape
    )
    assert jax.tree.leaves({"a": x})[0] is x and isinstance(x, functx.Array | numpy.ndarray)
    assert {x[0, 1]: 1}[np.float32(0.5)] == 1 and len(set(np.array([1, 2, 1]))) == 2
    assert [7, 8, 9][np.array(1)] == 8 and f"{x.sum():.1f} {x[0, 1]:5.2f}" == "7.5  0.50"
    assert (x == None) is False and 0.5 in x and [float(y) for y in x[0]] == [0.0, 0.5, 1.0]  # noqa: E711
    with pytest.raises(TypeError, match="unhashable"):
        hash(x)
    numpy.testing.assert_allclose(x, numpy.asarray(x))
    assert x.astype("U3").dtype.kind == "U" and x.astype(float, order="F").dtype == "float32"


def test_operands_of_several_classes_give_the_documented_class():
    ours, plain, theirs = np.arange(3), numpy.arange(3.0), jnp.arange(3)
    for made, kind, dtype in [
        (ours + plain, np.ndarray, "float32"),
        (plain + ours, np.ndarray, "float32"),
        (2.5 * ours, np.ndarray, "float32"),
        (numpy.float64(2) * ours, np.ndarray, "float32"),
        (ours + theirs, jax.Array, "int32"),
        (theirs + ours, jax.Array, "int32"),
        ([1, 2, 3] - ours, np.ndarray, "int32"),
        (numpy.sin(ours), np.ndarray, "float32"),
        (numpy.mean(ours), np.ndarray, "float32"),
        (numpy.add(ours, 1, out=np.zeros(3)), np.ndarray, "float32"),
        (numpy.add.reduce(ours), np.ndarray, "int32"),
        (numpy.concatenate([plain, ours]), np.ndarray, "float32"),
        (numpy.linalg.norm(ours), np.ndarray, "float32"),
        (ours[theirs], jax.Array, "int32"),
        (np.where(plain > 1, 1.0, 0.0) * np.ones(3, "float16"), np.ndarray, "float16"),
        (np.sqrt(2) * np.ones(3, "float16"), np.ndarray, "float16"),
        (np.reshape(plain, (3, 1)), np.ndarray, "float64"),
        (np.reshape(plain, (3, 1)) + 1, np.ndarray, "float32"),
        (np.asarray(plain), np.ndarray, "float32"),
        (functx.lax.convert_element_type(plain, "float32"), np.ndarray, "float32"),
    ]:
        assert isinstance(made, kind) and made.dtype == dtype
        assert isinstance(made, jax.Array) == (kind is jax.Array)
    assert type(numpy.shares_memory(ours, ours)) is bool
    masked = numpy.ma.masked_array([1.0, 2.0, 3.0], [True, False, False]) + ours
    assert isinstance(masked, numpy.ma.MaskedArray) and masked.tolist() == [None, 3.0, 5.0]


def test_copies_of_arrays_of_jax_outlive_them():
    x = jax.numpy.arange(3.0)
    copies = [np.copy(x), np.array(x), np.asarray(x, copy=True), x.copy()]
    assert np.asarray(x) is x
    x.delete()
    assert [y.tolist() for y in copies] == [[0, 1, 2]] * 4


def test_views_of_64_bit_arrays_keep_their_memory():
    wide = numpy.arange(6.0)
    looks = [
        lambda x: np.reshape(x, (2, 3)),
        lambda x: np.ravel(np.transpose(np.reshape(x, (1, 6)))),
        lambda x: np.flip(x),
        lambda x: np.split(x, 2)[1],
        lambda x: np.real(numpy.ndarray((3,), "complex128", x.data)),
        lambda x: np.expand_dims(x, 0),
        lambda x: np.moveaxis(np.atleast_2d(x), 0, 1)[1:, 0],
    ]
    for look in looks:
        seen = look(wide)
        assert numpy.shares_memory(seen, wide) and seen.dtype == "float64"
        seen[...] = 7
        assert (wide == 7).sum() == seen.size
        wide[:] = range(6)
    whole = np.reshape(wide, (2, 3))
    for made in (
        whole.copy(),
        whole.T.flatten(),
        np.copy(whole),
        functx.lax.slice(wide, (1,), (4,)),
    ):
        assert made.dtype == "float32" and not numpy.shares_memory(made, wide)


@pytest.mark.parametrize(
    "old, new, expected",
    [
        ("bool", "int8", [1, 0, 1, 1]),
        ("int8", "bool", [True, False, True, True]),
        ("bool", "uint32", [0x01010001]),
        ("int4", "int8", [1, 0x12]),
        ("int8", "uint4", [1, 0, 0, 0, 2, 0, 1, 0]),
    ],
)
def test_views_of_booleans_and_packed_integers_are_those_of_traces(old, new, expected):
    x = np.array([1, 0, 2, 1], old)
    for view in (lambda x: x.view(new), functx.jit(lambda x: x.view(new))):
        seen = view(x)
        assert seen.dtype == new and seen.tolist() == expected


@pytest.mark.parametrize(
    "old, new", [("uint8", "int4"), ("uint8", "bool"), ("float16", "uint4"), ("int4", "uint8")]
)
def test_bits_are_the_same_in_and_outside_of_jit(old, new):
    x = np.array([[2, 0, 1, 3], [7, 5, 0, 6]], old)
    x = x.reshape(4, 2) if old == "int4" else x
    seen = functx.lax.bitcast_convert_type(x, new)
    expected = functx.jit(functx.lax.bitcast_convert_type, static_argnums=1)(x, new)
    assert seen.dtype == new and seen.tolist() == expected.tolist()


@pytest.mark.parametrize("view", [lambda x: x.view(bool), lambda x: x.astype("int16").view(bool)])
def test_bytes_other_than_0_and_1_seen_as_booleans_count_once(view):
    x = np.array([2, 0, 1, 127], "int8")
    seen, expected = view(x), functx.jit(view)(x)
    for f in (lambda v: v.sum(), lambda v: v * 3, lambda v: v == True, lambda v: np.where(v, 1, 0)):  # noqa: E712
        assert f(seen).tolist() == functx.jit(f)(seen).tolist() == f(expected).tolist()
    assert numpy.asarray(seen).view("uint8").max() == 1


def test_bytes_0_and_1_seen_as_booleans_are_written_to_through_the_view():
    x = np.array([1, 0], "uint8")
    x.view(bool)[1] = True
    assert x.tolist() == [1, 1]


def test_an_array_from_around_a_function_is_traced_where_it_is_used():
    table = np.array([1.0, 2.0, 4.0, 8.0])
    places = np.array([3, 0, 2])
    for f in (
        lambda i: table[i],
        lambda i: table[i] + table[0] + table[-1],
        lambda i: (table * 2)[i] / 2,
        lambda i: table.reshape(2, 2)[i // 2, i % 2],
        lambda i: table.copy().at[i].add(0.0)[i],
        lambda i: table.take(i),
        lambda i: table[::-1].T.ravel()[3 - i],
    ):
        expected = [float(f(int(i))) for i in places]
        assert functx.vmap(f)(places).tolist() == expected
        assert functx.jit(functx.vmap(f))(places).tolist() == expected
        _, seen = functx.lax.scan(lambda c, i, f=f: (c, f(i)), 0, places)
        assert seen.tolist() == expected
    weights = np.array([2.0, 3.0])
    slope = functx.grad(lambda x: sum(w * x**k for k, w in enumerate(weights) if w > 1))
    assert slope(4.0) == 3.0 and int(functx.jit(lambda x: x + weights.shape[0])(1)) == 3

    def write(i):
        table[i] = 0.0

    def add(i):
        nonlocal table
        table += i.sum()

    for fun in (write, add, lambda i: table.sort(), lambda i: table[1:].fill(i.sum())):
        for transform in (functx.jit, functx.vmap):
            with pytest.raises(CapturedWriteError, match=r"must not (be written|write) to"):
                transform(fun)(places)
    assert table.tolist() == [1.0, 2.0, 4.0, 8.0]


def test_an_element_is_a_number_and_a_row_is_a_view():
    def f(x):
        element, row, last = x[0, 0], x[1], x[np.argmax(x[:, 0])]
        element += 100.0
        row += 10.0
        last *= 2.0
        whole = x[0, 1, ...]
        whole += 1.0
        total = alias = x.sum()
        total += 1.0
        return element, alias, x

    start = [[1.0, 2.0], [3.0, 4.0]]
    plainly, compiled = f(np.array(start)), functx.jit(f)(np.array(start))
    for x, y in zip(plainly, compiled, strict=True):
        assert x.tolist() == y.tolist()


def test_results_of_transforms_are_never_written_to_by_an_augmented_assignment():
    def halved(y):
        old = y
        row = y[:1]
        row += 1.0
        y *= 0.5
        return old, row, y

    def f(x):
        def square(x):
            return x * x

        results = [
            functx.grad(lambda x: square(x).sum())(x),
            functx.vmap(square)(x),
            functx.jit(square)(x),
            functx.jit(lambda x: x)(x),
            *functx.jvp(square, (x,), (x,)),
            *functx.vjp(square, x)[1](x),
            functx.linearize(square, x)[1](x),
            functx.jacrev(square)(x),
            functx.lax.scan(lambda c, _: (c * x, None), x, None, length=1)[0],
            functx.checkpoint(square)(x),
        ]
        return [halved(y) for y in results], x

    plain, compiled = f(np.array([1.0, 2.0])), functx.jit(f)(np.array([1.0, 2.0]))
    for x, y in zip(functx.tree.leaves(plain), functx.tree.leaves(compiled), strict=True):
        assert x.tolist() == y.tolist()


def test_arrays_around_a_function_are_used_in_every_body_and_by_functions_of_numpy():
    a, b = np.ones(3), np.arange(3.0)
    lax = functx.lax

    def f(x):
        chosen = lax.cond(x > 0, lambda: a + b, lambda: a[1:].sum() - b)
        switched = lax.switch(1, [lambda: a * x, lambda: b[::-1] * x + a])
        _, looped = lax.while_loop(
            lambda c: c[0] < 2, lambda c: (c[0] + 1, c[1] + a * b * x), (0, a)
        )
        three = numpy.apply_along_axis(numpy.sum, 0, b)
        return ((chosen + switched + looped) * three).sum()

    plain = f(2.0)
    assert plain == functx.jit(f)(2.0) == functx.vmap(f)(np.array([2.0]))[0] == 90.0
    assert functx.grad(f)(2.0) == functx.jit(functx.grad(f))(2.0) == 27.0
    with pytest.raises(
        ForeignCodeError, match=r"numpy.busday_count cannot be traced; got f32\[3\]"
    ):
        functx.jit(lambda x: numpy.busday_count(b, x))(a)


def test_mistakes_have_the_errors_of_a_traced_array():
    x = np.zeros((2, 3))
    for mistake, error in [
        (lambda x: x[5], IndexingError),
        (lambda x: x[0.5], IndexingError),
        (lambda x: x & x, DTypeError),
        (lambda x: ~x, DTypeError),
        (lambda x: (x > 0) - (x > 0), DTypeError),
        (lambda x: -(x > 0), DTypeError),
        (lambda x: functx.lax.add(x, x[0]), ShapeError),
        (lambda x: x.reshape(4), ShapeError),
        (lambda x: x + np.ones(2), ShapeError),
        (lambda x: x[0].mT, ShapeError),
        (lambda x: x.__setitem__(7, 1), IndexingError),
        (lambda x: x.__setitem__(0, 1j), DTypeError),
        (lambda x: x.astype(int).at[0].set(numpy.nan), DTypeError),
        (lambda x: x.__iadd__(1j), DTypeError),
        (lambda x: x.__setitem__(0, np.ones(2)), ShapeError),
        (lambda x: x.squeeze(0), ShapeError),
    ]:
        for call in (mistake, functx.jit(mistake)):
            with pytest.raises(error):
                call(x)
    assert not x.any()
