"""Abstract values, and dtypes: their short names, the 64-bit switch and JAX's promotion lattice."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from difflib import get_close_matches
from functools import cache, lru_cache, partial
from math import prod
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeGuard
from weakref import WeakValueDictionary

import jax
import ml_dtypes
import numpy as np

from functx.core.errors import DTypeError, type_name
from functx.core.typing import DTypeLike

float0 = jax.dtypes.float0
"""The dtype of the tangents of integers and booleans, which have no values."""

DType = np.dtype[Any]

SHORT_NAMES: dict[DType, str] = {
    np.dtype(name): short
    for name, short in {
        "bool": "bool",
        **{f"{sign}int{n}": f"{sign[:1] or 'i'}{n}" for sign in ("", "u") for n in (8, 16, 32, 64)},
        **{f"float{n}": f"f{n}" for n in (16, 32, 64)},
        **{f"complex{n}": f"c{n}" for n in (64, 128)},
    }.items()
} | {
    np.dtype(ml_dtypes.bfloat16): "bf16",
    **{
        np.dtype(getattr(ml_dtypes, f"float{name}")): f"f{name}"
        for name in (
            *(
                "8_e3m4",
                "8_e4m3",
                "8_e4m3fn",
                "8_e4m3b11fnuz",
                "8_e4m3fnuz",
                "8_e5m2",
                "8_e5m2fnuz",
            ),
            *("8_e8m0fnu", "6_e2m3fn", "6_e3m2fn", "4_e2m1fn"),
        )
    },
    **{
        np.dtype(getattr(ml_dtypes, f"{name}{n}")): f"{short}{n}"
        for name, short in (("int", "i"), ("uint", "u"))
        for n in (1, 2, 4)
    },
}
DTYPES_BY_SHORT_NAME = {short: dtype for dtype, short in SHORT_NAMES.items()}

_NARROWED_TO_32_BITS = {
    np.dtype("int64"): np.dtype("int32"),
    np.dtype("uint64"): np.dtype("uint32"),
    np.dtype("float64"): np.dtype("float32"),
    np.dtype("complex128"): np.dtype("complex64"),
}
_EXTENDED_KINDS = {
    dtype: short[0].replace("b", "f")
    for dtype, short in SHORT_NAMES.items()
    if dtype.type.__module__ == "ml_dtypes"
}
"""The kinds of dtypes of which NumPy does not know the kind."""


# Without a frame of its own, since every operation on Variables reads it.
x64_enabled: Callable[[], bool] = partial(attrgetter("jax_enable_x64"), jax.config)
"""Returns whether 64-bit types are kept; JAX's own switch, so both libraries agree."""


def threefry_partitionable() -> bool:
    """Whether each random word is the hash of its own position; JAX's own switch."""
    return draw_settings()[0]


def words_layout(primitive: object) -> AbstractContextManager[None]:
    """The scope in which an operation is decomposed: draws have the layout that its field states."""
    partitionable = getattr(primitive, "partitionable", None)
    if partitionable in (None, threefry_partitionable()):
        return nullcontext()
    scope: AbstractContextManager[None] = jax.threefry_partitionable(partitionable)  # type: ignore[no-untyped-call]
    return scope


def random_seed_offset() -> int:
    """The number that is added to the seed of each key; JAX's own setting."""
    return draw_settings()[1]


_draw_settings = attrgetter("jax_threefry_partitionable", "jax_random_seed_offset")
# Without Python frames, since every operation on Variables reads it.
draw_settings: Callable[[], tuple[bool, int]] = partial(_draw_settings, jax.config)
"""Returns `threefry_partitionable()` and `random_seed_offset()`."""


_jax_settings = attrgetter("jax_enable_x64", "jax_threefry_partitionable", "jax_random_seed_offset")
# Without Python frames, since each call of a jitted function on Variables reads it.
jax_settings: Callable[[], tuple[bool | int, ...]] = partial(_jax_settings, jax.config)
"""Returns the settings of JAX that the traced program of a function depends on, as a part of its key."""


def checks_ranks() -> bool:
    """Whether `numpy_rank_promotion` warns of, or refuses, operands of several ranks."""
    return jax.config.jax_numpy_rank_promotion != "allow"  # type: ignore[attr-defined, no-any-return]


def canonical_dtype(dtype: DTypeLike) -> DType:
    """The NumPy dtype of `dtype`, narrowed to 32 bits if the 64-bit switch is off."""
    if isinstance(dtype, type) and dtype in PYTHON_SCALAR_DTYPES:
        dtype = PYTHON_SCALAR_DTYPES[dtype]
    try:
        wide: DType = np.dtype(dtype)
        # The dtype of an array of texts, say, is passed on to where the array is refused.
        if wide not in SHORT_NAMES and wide is not dtype:
            raise TypeError("not one of functx")
    except (TypeError, ValueError):
        shown = type_name(dtype) if isinstance(dtype, np.ndarray) else repr(dtype)
        raise DTypeError(
            f"a dtype must be one that functx has, or its name; got {shown}", fix=_dtype_cure(dtype)
        ) from None
    return wide if x64_enabled() else narrow_dtype(wide)


def _dtype_cure(given: object) -> str:
    """The cure of a value in the place of a dtype."""
    if isinstance(given, int):
        return "Give the lengths of a shape as one tuple, as in zeros((3, 4)) or x.reshape(3, 4)."
    if hasattr(given, "dtype"):
        return "Give several arrays as one list, as in hstack([x, y])."
    near = (
        get_close_matches(given, [dtype.name for dtype in SHORT_NAMES], 1)
        if isinstance(given, str)
        else ()
    )
    return (
        f"Did you mean {near[0]!r}?"
        if near
        else "Write 'float32', 'int32', 'bool' or another name."
    )


def narrow_dtype(dtype: DType) -> DType:
    """`dtype` narrowed to 32 bits, independent of the 64-bit switch."""
    return _NARROWED_TO_32_BITS.get(dtype, dtype)


PYTHON_SCALAR_DTYPES: dict[type, str] = {
    bool: "bool",
    int: "int64",
    float: "float64",
    complex: "complex128",
}


@cache
def kind(dtype: DType) -> str:
    """One of `b` (bool), `u`, `i`, `f`, `c`: the extended float types count as `f`."""
    return _EXTENDED_KINDS.get(dtype, dtype.kind)


@cache
def is_inexact(dtype: DType) -> bool:
    return kind(dtype) in "fc"


def is_floating(dtype: DType) -> bool:
    return kind(dtype) == "f"


@cache
def is_complex(dtype: DType) -> bool:
    return kind(dtype) == "c"


def is_integer(dtype: DType) -> bool:
    return kind(dtype) in "iu"


def accumulation_dtype(dtype: DType) -> DType:
    """The dtype in which sums are accumulated: float32 for half floats, else `dtype`.

    In half precision, a large partial sum no longer changes when a small term is added.
    """
    return _SINGLE if dtype.itemsize < 4 and is_floating(dtype) else dtype


_SINGLE = np.dtype("float32")


def real_dtype(dtype: DType) -> DType:
    """The dtype of the real part of values of `dtype`."""
    return np.dtype(f"float{dtype.itemsize * 4}") if is_complex(dtype) else dtype


def complex_dtype(dtype: DType) -> DType:
    """The complex dtype whose parts hold values of `dtype`."""
    if is_complex(dtype):
        return dtype
    return np.dtype("complex128" if dtype == np.float64 else "complex64")


def inexact_dtype(dtype: DType) -> DType:
    """`dtype` itself if inexact, else float64 for 64-bit integers and float32 for all others."""
    if is_inexact(dtype):
        return dtype
    return np.dtype("float64" if dtype.itemsize == 8 else "float32")


_NARROW_INTEGERS = "u1", "u2", "u4", "i1", "i2", "i4"
_NARROW_FLOATS = tuple([short for short in DTYPES_BY_SHORT_NAME if re.match("f[468]_", short)])
# JAX's lattice (JEP 9407): each type and the types directly above it. A star marks a weak type.
_PROMOTION_LATTICE: dict[str, tuple[str, ...]] = {
    "bool": ("i*",),
    "i*": ("u8", "i8", *_NARROW_INTEGERS),
    "u8": ("i16", "u16"),
    "i8": ("i16",),
    "u16": ("i32", "u32"),
    "i16": ("i32",),
    "u32": ("i64", "u64"),
    "i32": ("i64",),
    "u64": ("f*",),
    "i64": ("f*",),
    "f*": ("c*", "bf16", "f16", *_NARROW_FLOATS),
    "bf16": ("f32",),
    "f16": ("f32",),
    "f32": ("f64", "c64"),
    "f64": ("c128",),
    "c*": ("c64",),
    "c64": ("c128",),
    "c128": (),
    **dict.fromkeys((*_NARROW_INTEGERS, *_NARROW_FLOATS), ()),
}
_WEAK_DTYPES = {"i*": np.dtype("int64"), "f*": np.dtype("float64"), "c*": np.dtype("complex128")}


@cache
def _upper_bounds(node: str) -> frozenset[str]:
    above = _PROMOTION_LATTICE[node]
    return frozenset({node}).union(*(_upper_bounds(up) for up in above))


@cache
def _least_upper_bound(nodes: frozenset[str]) -> str | None:
    common = frozenset.intersection(*(_upper_bounds(node) for node in nodes))
    least = [node for node in common if _upper_bounds(node) == common]
    return least[0] if least else None


def _lattice_node(dtype: DType, weak: bool) -> str:
    if not weak or dtype == np.bool_:
        return SHORT_NAMES[dtype]
    return {"i": "i*", "u": "i*", "f": "f*", "c": "c*"}[kind(dtype)]


@lru_cache(maxsize=4096)
def _promote(types: tuple[tuple[DType, bool], ...], x64: bool) -> tuple[DType, bool] | None:
    distinct = {dtype for dtype, _ in types}
    all_weak = all(weak for _, weak in types)
    if len(distinct) == 1:
        return types[0][0], all_weak
    node = _least_upper_bound(
        frozenset(_lattice_node(dtype, weak and not all_weak) for dtype, weak in types)
    )
    if node is None:
        return None
    dtype = _WEAK_DTYPES.get(node) or DTYPES_BY_SHORT_NAME[node]
    return (
        dtype if x64 else _NARROWED_TO_32_BITS.get(dtype, dtype)
    ), all_weak or node in _WEAK_DTYPES


def promote_types(types: tuple[tuple[DType, bool], ...]) -> tuple[DType, bool] | None:
    """The least upper bound `(dtype, weak)` of `types` in the lattice; None if there is none."""
    return _promote(types, x64_enabled())


Shape = tuple[int, ...]


class _InternedAvalType(type):
    """The metaclass that makes equal avals one object, so that comparing and hashing them is free."""

    def __call__(cls, shape: Shape, dtype: DType, weak_type: bool = False) -> ShapedArray:
        return _interned_aval(shape, dtype, weak_type)


class ShapedArray(metaclass=_InternedAvalType):
    """The abstract value of an array: its shape, its dtype, and whether its dtype is weak.

    Python scalars have weak dtypes: in promotion, any other dtype of the same kind wins.
    Equal avals are identical, so `is` compares them.
    """

    __slots__ = ("__weakref__", "dtype", "ndim", "shape", "size", "weak_type")
    shape: Shape
    dtype: DType
    weak_type: bool
    ndim: int
    size: int

    if TYPE_CHECKING:

        def __init__(self, shape: Shape, dtype: DType, weak_type: bool = False): ...

    def update(
        self, shape: Shape | None = None, dtype: DType | None = None, weak_type: bool | None = None
    ) -> ShapedArray:
        """This aval with some of `shape`, `dtype` and `weak_type` replaced."""
        return ShapedArray(
            self.shape if shape is None else shape,
            self.dtype if dtype is None else dtype,
            self.weak_type if weak_type is None else weak_type,
        )

    def __repr__(self) -> str:
        dims = ",".join(map(str, self.shape))
        return f"{'~' if self.weak_type else ''}{SHORT_NAMES[self.dtype]}[{dims}]"

    def __reduce__(self) -> tuple[object, ...]:
        return ShapedArray, (self.shape, self.dtype, self.weak_type)


def shape_dtype_struct(aval: ShapedArray) -> jax.ShapeDtypeStruct:
    """`aval` as a `jax.ShapeDtypeStruct`, for which JAX and its libraries check."""
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)


def is_shape_dtype_struct(x: object) -> TypeGuard[jax.ShapeDtypeStruct]:
    """Whether `x` is a `jax.ShapeDtypeStruct`, which describes an array and has no value."""
    return isinstance(x, jax.ShapeDtypeStruct)


class HasAval:
    """A mixin for values with an abstract value `aval`: their shape and dtype."""

    __slots__ = ()
    aval: ShapedArray

    @property
    def shape(self) -> Shape:
        return self.aval.shape

    @property
    def dtype(self) -> DType:
        return self.aval.dtype

    @property
    def ndim(self) -> int:
        return self.aval.ndim

    @property
    def size(self) -> int:
        return self.aval.size


_avals: WeakValueDictionary[Any, ShapedArray] = WeakValueDictionary()


@lru_cache(maxsize=16384)
def _interned_aval(shape: Shape, dtype: DType, weak_type: bool) -> ShapedArray:
    key = (shape, dtype, weak_type)
    aval = _avals.get(key)
    if aval is None:
        aval = object.__new__(ShapedArray)
        # Of two equal dtypes, JAX knows `uint64` and not `ulonglong`.
        dtype = DTYPES_BY_SHORT_NAME.get(SHORT_NAMES.get(dtype, ""), dtype)
        aval.shape, aval.dtype, aval.weak_type = tuple(map(int, shape)), dtype, weak_type
        aval.ndim, aval.size = len(shape), prod(aval.shape)
        aval = _avals.setdefault(key, aval)
    return aval
