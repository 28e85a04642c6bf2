from itertools import product

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from functx.core.types import (
    SHORT_NAMES,
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

WIDE = [np.dtype(name) for name in ("int64", "uint64", "float64", "complex128")]
STRONG = [(dtype, False) for dtype in SHORT_NAMES]
WEAK = [
    (np.dtype(name), True)
    for name in ("int32", "int64", "float32", "float64", "complex64", "complex128", "int8", "uint8")
]


def jax_promotion(*types):
    """The dtype and weakness of a sum in JAX; None where JAX refuses."""
    operands = [jax.ShapeDtypeStruct((), dtype, weak_type=weak) for dtype, weak in types]
    try:
        out = jax.eval_shape(lambda *xs: sum(xs[1:], start=xs[0]), *operands)
    except (TypeError, ValueError):
        return None
    return out.dtype, out.weak_type


def available(types):
    return types if x64_enabled() else [t for t in types if t[0] not in WIDE]


@pytest.mark.parametrize("on", [False, True], ids=["32 bits", "64 bits"])
class TestPromotion:
    def test_all_pairs_promote_as_in_jax(self, on):
        with jax.enable_x64(on):
            types = available(STRONG + WEAK)
            differ = {
                pair: (promote_types(pair), jax_promotion(*pair))
                for pair in product(types, types)
                if promote_types(pair) != jax_promotion(*pair)
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
