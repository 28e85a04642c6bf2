import copy
import pickle
import threading
from itertools import product

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from functx.core.errors import ArgumentError
from functx.core.samples import f32
from functx.core.tracer import aval_of, literal_of
from functx.core.types import (
    SHORT_NAMES,
    ShapedArray,
    canonical_dtype,
    complex_dtype,
    inexact_dtype,
    is_complex,
    is_floating,
    is_inexact,
    is_integer,
    kind,
    promote_types,
    real_dtype,
    x64_enabled,
)

F32 = np.dtype("float32")


class TestAvals:
    def test_equal_avals_are_one_object(self):
        assert ShapedArray((2, 3), F32) is ShapedArray((2, 3), F32, False)
        assert ShapedArray((2, 3), F32) is ShapedArray((np.int64(2), 3), F32)

    def test_avals_that_differ_are_two(self):
        others = [
            ShapedArray((3, 2), F32),
            ShapedArray((2, 3), np.dtype("float64")),
            ShapedArray((2, 3), F32, True),
            ShapedArray((6,), F32),
        ]
        assert all(ShapedArray((2, 3), F32) != other for other in others)

    def test_lengths_are_plain_ints(self):
        aval = ShapedArray((np.int64(7), np.uint8(5), True), np.dtype("int8"))
        assert [type(n) for n in aval.shape] == [int, int, int]

    def test_an_aval_knows_its_rank_and_size(self):
        aval = ShapedArray((2, 3), F32)
        assert (aval.ndim, aval.size) == (2, 6)
        assert (f32[()].ndim, f32[()].size) == (0, 1)
        assert f32[3, 0].size == 0

    def test_an_aval_shows_dtype_shape_and_weakness(self):
        assert repr(ShapedArray((2, 3), F32)) == "f32[2,3]"
        assert repr(ShapedArray((), np.dtype("int32"), True)) == "~i32[]"
        assert repr(ShapedArray((0,), np.dtype(ml_dtypes.bfloat16))) == "bf16[0]"

    def test_an_aval_with_changes_is_another(self):
        aval = f32[2, 3]
        assert aval.update(shape=(4,)) is f32[4]
        assert aval.update(dtype=np.dtype("int32")) is ShapedArray((2, 3), np.dtype("int32"))
        assert aval.update(weak_type=True).weak_type
        assert aval.update() is aval

    def test_copies_are_the_same_object(self):
        aval = ShapedArray((2, 3), F32, True)
        assert pickle.loads(pickle.dumps(aval)) is aval
        assert copy.copy(aval) is copy.deepcopy(aval) is aval

    def test_threads_share_avals(self):
        found = []
        barrier = threading.Barrier(8)

        def work():
            barrier.wait()
            found.append([ShapedArray((n, 12345), F32) for n in range(200)])

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for others in found[1:]:
            assert all(a is b for a, b in zip(found[0], others, strict=True))


class TestAvalOf:
    @pytest.mark.parametrize(
        ("value", "shown"),
        [
            (np.ones((2, 3), "float32"), "f32[2,3]"),
            (np.ones(3, bool), "bool[3]"),
            (np.ones(0, ml_dtypes.bfloat16), "bf16[0]"),
            (np.ones(2, ml_dtypes.int4), "i4[2]"),
            (np.float32(1), "f32[]"),
            (ml_dtypes.bfloat16(1), "bf16[]"),
            (np.uint8(1), "u8[]"),
            (np.bool_(True), "bool[]"),
            (True, "bool[]"),
            (np.ones(3, "float32").view(np.recarray), "f32[3]"),
        ],
        ids=lambda value: type(value).__name__ + str(getattr(value, "dtype", "")),
    )
    def test_the_type_of_arrays_and_numbers(self, value, shown):
        assert repr(aval_of(value)) == shown

    def test_python_numbers_are_weak_and_as_wide_as_the_switch_allows(self, x64):
        assert repr([aval_of(x) for x in (1, 1.0, 1j)]) == "[~i64[], ~f64[], ~c128[]]"
        with jax.enable_x64(False):
            assert repr([aval_of(x) for x in (1, 1.0, 1j)]) == "[~i32[], ~f32[], ~c64[]]"

    def test_64_bits_are_narrowed_where_the_switch_is_off(self, x64):
        values = np.ones(3), np.ones(3, int), np.ones(3, complex), np.float64(1), np.uint64(1)
        assert [str(aval_of(x).dtype) for x in values] == [str(x.dtype) for x in values]
        with jax.enable_x64(False):
            narrow = ["float32", "int32", "complex64", "float32", "uint32"]
            assert [str(aval_of(x).dtype) for x in values] == narrow

    def test_arrays_of_jax_have_their_own_weakness(self):
        assert repr(aval_of(jnp.ones((2, 3), "float32"))) == "f32[2,3]"
        weak = jnp.asarray(2.0)
        assert aval_of(weak).weak_type == weak.weak_type
        seen = []
        jax.jit(lambda x: seen.append(aval_of(x)))(jnp.ones(3, "int8"))
        assert repr(seen) == "[i8[3]]"

    @pytest.mark.parametrize(
        "value",
        [
            None,
            "text",
            [1.0],
            object(),
            np.array(["text"]),
            np.array([None]),
            np.array([(1, 2)], dtype=[("a", int), ("b", int)]),
            np.array(["2020"], "datetime64[D]"),
            np.str_("text"),
            np.datetime64("2020"),
            np.longdouble(1),
            np.ones(3, np.longdouble),
            np.ones(3, ">f4"),
            np.ma.masked_array([1.0, 2.0], [True, False]),
            jax.random.key(0),
        ],
        ids=lambda value: type(value).__name__ + str(getattr(value, "dtype", "")),
    )
    def test_anything_else_is_refused(self, value):
        with pytest.raises(ArgumentError, match="arguments must be arrays or numbers; got"):
            aval_of(value)


class TestLiterals:
    @pytest.mark.parametrize(
        ("value", "shown"),
        [
            (True, "True:bool[]"),
            (np.float32(0.5), "0.5:f32[]"),
            (np.int8(-3), "-3:i8[]"),
            (ml_dtypes.bfloat16(2), "2.0:bf16[]"),
            (np.complex64(1j), "1j:c64[]"),
        ],
        ids=repr,
    )
    def test_numbers_become_literals(self, value, shown):
        assert repr(literal_of(value)) == shown

    @pytest.mark.parametrize("value", [np.ones(()), jnp.ones(()), "2", None, [1]], ids=repr)
    def test_arrays_and_others_do_not(self, value):
        assert literal_of(value) is None


WIDE = [np.dtype(name) for name in ("int64", "uint64", "float64", "complex128")]
STRONG = [(dtype, False) for dtype in SHORT_NAMES]
WEAK = [
    (np.dtype(name), True)
    for name in ("int32", "int64", "float32", "float64", "complex64", "complex128", "int8", "uint8")
]


def jax_promotions(pairs):
    """For each pair of types the dtype and weakness of a sum in JAX; None where JAX refuses."""
    found = []

    def note_sums(operands):
        for x, y in operands:
            try:
                out = x + y
            except (TypeError, ValueError):
                found.append(None)
            else:
                found.append((out.dtype, out.weak_type))

    # One trace for all: most of the time goes to its beginning.
    jax.eval_shape(
        note_sums,
        [[jax.ShapeDtypeStruct((), dtype, weak_type=weak) for dtype, weak in p] for p in pairs],
    )
    return found


def available(types):
    return types if x64_enabled() else [t for t in types if t[0] not in WIDE]


@pytest.mark.parametrize("on", [False, True], ids=["32 bits", "64 bits"])
class TestPromotion:
    def test_all_pairs_promote_as_in_jax(self, on):
        with jax.enable_x64(on):
            types = available(STRONG + WEAK)
            pairs = list(product(types, types))
            differ = {
                pair: (promote_types(pair), expected)
                for pair, expected in zip(pairs, jax_promotions(pairs), strict=True)
                if promote_types(pair) != expected
            }
        assert not differ

    def test_strong_pairs_promote_as_promote_types(self, on):
        with jax.enable_x64(on):
            for one, other in product(available(STRONG), repeat=2):
                try:
                    expected = jnp.promote_types(one[0], other[0])
                except (TypeError, ValueError):
                    expected = None
                found = promote_types((one, other))
                assert (found and found[0]) == expected, (one, other)

    def test_three_promote_together(self, on):
        with jax.enable_x64(on):
            types = [(np.dtype(t), False) for t in ("bool", "uint8", "int8", "float16", "float32")]
            types += [(np.dtype(ml_dtypes.bfloat16), False)]
            types += [(canonical_dtype(t), True) for t in (int, float, complex)]
            for triple in product(types, repeat=3):
                found = promote_types(triple)
                dtype = jnp.result_type(*[_value(*t) for t in triple])
                assert found is not None
                assert found[0] == dtype, triple


def _value(dtype, weak):
    return {"i": 1, "f": 1.0, "c": 1j}[dtype.kind] if weak else jnp.ones((), dtype)


def test_one_type_promotes_to_itself():
    for dtype, weak in STRONG + WEAK:
        assert promote_types(((dtype, weak),)) == (dtype, weak)


class TestCanonical:
    def test_64_bits_are_narrowed_where_the_switch_is_off(self, x64):
        assert x64_enabled()
        assert [canonical_dtype(dtype) for dtype in WIDE] == WIDE
        with jax.enable_x64(False):
            assert not x64_enabled()
            narrow = ["int32", "uint32", "float32", "complex64"]
            assert [str(canonical_dtype(dtype)) for dtype in WIDE] == narrow

    @pytest.mark.parametrize(
        "given", [float, "float64", np.float64, np.dtype("float64"), jnp.float64]
    )
    def test_dtypes_may_be_given_in_any_form(self, given, x64):
        assert canonical_dtype(given) == np.dtype("float64")

    def test_python_types_stand_for_their_widest_dtypes(self, x64):
        found = [canonical_dtype(t) for t in (bool, int, float, complex)]
        assert [str(dtype) for dtype in found] == ["bool", "int64", "float64", "complex128"]

    def test_short_names_are_told_apart(self):
        assert len(set(SHORT_NAMES.values())) == len(SHORT_NAMES)


class TestKinds:
    @pytest.mark.parametrize(
        ("names", "expected"),
        [
            (["bool"], "b"),
            (["uint8", "uint16", "uint32", "uint64", "uint4"], "u"),
            (["int8", "int16", "int32", "int64", "int4"], "i"),
            (["float16", "float32", "float64", "bfloat16", "float8_e4m3fn", "float8_e5m2"], "f"),
            (["complex64", "complex128"], "c"),
        ],
    )
    def test_every_dtype_has_a_kind(self, names, expected):
        for name in names:
            dtype = np.dtype(getattr(ml_dtypes, name, name))
            assert kind(dtype) == expected
            assert is_inexact(dtype) == (expected in "fc")
            assert is_floating(dtype) == (expected == "f")
            assert is_complex(dtype) == (expected == "c")
            assert is_integer(dtype) == (expected in "ui")

    def test_real_and_complex_dtypes_go_together(self):
        for real, whole in (("float32", "complex64"), ("float64", "complex128")):
            assert complex_dtype(np.dtype(real)) == complex_dtype(np.dtype(whole)) == whole
            assert real_dtype(np.dtype(whole)) == real_dtype(np.dtype(real)) == real
        assert complex_dtype(np.dtype("float16")) == "complex64"
        assert real_dtype(np.dtype("int32")) == "int32"

    def test_exact_dtypes_have_an_inexact_one(self):
        assert inexact_dtype(np.dtype("int32")) == "float32"
        assert inexact_dtype(np.dtype("float16")) == "float16"
        assert inexact_dtype(np.dtype("complex64")) == "complex64"
