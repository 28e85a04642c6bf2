"""Functions that inspect dtypes and shapes."""

from __future__ import annotations

import math
from typing import TypeGuard

import jax
import ml_dtypes
import numpy as np

from functx.core.errors import ArgumentError, DTypeError, TypePromotionError
from functx.core.tracer import aval_of, type_of
from functx.core.types import DType, canonical_dtype, is_floating, is_integer
from functx.core.types import kind as _kind
from functx.core.types import promote_types as _promote
from functx.core.typing import ArrayOrList, Axes, DTypeLike, Keys
from functx.numpy.promotion import operand
from functx.numpy.scalar_types import ScalarType
from functx.ops.operands import canonical_axes

__all__ = [
    "can_cast",
    "finfo",
    "iinfo",
    "iscomplexobj",
    "isdtype",
    "isrealobj",
    "isscalar",
    "issubdtype",
    "ndim",
    "promote_types",
    "result_type",
    "shape",
    "size",
]


def finfo(dtype: object) -> ml_dtypes.finfo:
    """The limits of a floating or complex dtype, or of the dtype of an array."""
    return ml_dtypes.finfo(_dtype_of(dtype))


def iinfo(dtype: object) -> ml_dtypes.iinfo:
    """The limits of an integer dtype, or of the dtype of an array."""
    return ml_dtypes.iinfo(_dtype_of(dtype))


def _is_of_jax_alone(dtype: object) -> bool:
    """Whether `dtype` is one that JAX adds to those of NumPy, as that of typed keys, or a type of such."""
    kind = getattr(dtype, "type", dtype)
    return isinstance(kind, type) and issubclass(kind, jax.dtypes.extended)


def issubdtype(arg1: object, arg2: object) -> bool:
    """Whether the dtype `arg1` is `arg2` or a subtype of it; `bfloat16` is floating.

    Dtypes of JAX alone, such as those of typed keys, are subtypes of `jax.dtypes.prng_key` and its like.
    """
    if _is_of_jax_alone(arg1) or _is_of_jax_alone(arg2):
        kind = getattr(arg1, "type", arg1)
        return arg1 == arg2 or (
            isinstance(kind, type) and isinstance(arg2, type) and issubclass(kind, arg2)
        )
    if not _is_abstract_scalar_type(arg2):
        return not _is_abstract_scalar_type(arg1) and _dtype_of(arg1) == _dtype_of(arg2)
    if not _is_abstract_scalar_type(arg1):
        dtype = _dtype_of(arg1)
        if is_floating(dtype):
            arg1 = np.floating
        elif is_integer(dtype):
            arg1 = np.signedinteger if _kind(dtype) == "i" else np.unsignedinteger
        else:
            arg1 = dtype.type
    return issubclass(arg1, arg2)  # type: ignore[arg-type]


_KINDS = {
    "bool": "b",
    "signed integer": "i",
    "unsigned integer": "u",
    "integral": "iu",
    "real floating": "f",
    "complex floating": "c",
    "numeric": "iufc",
}


def isdtype(dtype: object, kind: object) -> bool:
    """Whether `dtype` is of `kind`: a kind of the array API, a dtype, or a tuple of them.

    Raises DTypeError for a name that is neither a kind nor a dtype.
    """
    if isinstance(kind, tuple):
        return any([isdtype(dtype, item) for item in kind])
    if isinstance(kind, str) and kind in _KINDS:
        return _kind(_dtype_of(dtype)) in _KINDS[kind]
    try:
        return _dtype_of(dtype) == _dtype_of(kind)
    except TypeError:
        kinds = ", ".join(map(repr, _KINDS))
        raise DTypeError(
            f"isdtype: kind must be one of {kinds}, or a dtype; got {kind!r}"
        ) from None


def result_type(*arrays_and_dtypes: ArrayOrList | DTypeLike) -> DType:
    """The dtype to which arrays, numbers and dtypes promote."""
    if not arrays_and_dtypes:
        raise ArgumentError("result_type: at least one array or dtype must be given; got none")
    types = []
    for x in arrays_and_dtypes:
        if _is_dtype_like(x):
            types.append((canonical_dtype(x), any([x is t for t in (int, float, complex)])))
        else:
            aval = type_of(operand(x))  # type: ignore[arg-type]
            types.append((aval.dtype, aval.weak_type))
    promoted = _promote(tuple(types))
    if promoted is None:
        names = " and ".join(str(d) for d, _ in types)
        raise TypePromotionError(f"result_type: dtypes must promote to one; got {names}")
    return promoted[0]


def promote_types(a: DTypeLike, b: DTypeLike) -> DType:
    """The dtype to which two dtypes promote."""
    promoted = _promote(((np.dtype(a), False), (np.dtype(b), False)))
    if promoted is None:
        raise TypePromotionError(f"promote_types: dtypes must promote to one; got {a} and {b}")
    return promoted[0]


def can_cast(from_: object, to: DTypeLike, casting: str = "safe") -> bool:
    """Whether a dtype, or that of an array, may be cast to `to` by NumPy's rule `casting`."""
    return np.can_cast(_dtype_of(from_), _dtype_of(to), casting=casting)  # type: ignore[arg-type]


def shape(a: ArrayOrList | Keys) -> tuple[int, ...]:
    """The shape of an array, number or nested list."""
    return type_of(operand(a)).shape


def ndim(a: ArrayOrList | Keys) -> int:
    """The number of dimensions of an array, number or nested list."""
    return type_of(operand(a)).ndim


def size(a: ArrayOrList, axis: Axes = None) -> int:
    """The number of elements of an array, or along `axis`, an int or several."""
    dims = shape(a)
    return math.prod(dims[i] for i in canonical_axes(axis, len(dims)))


def iscomplexobj(x: ArrayOrList | DTypeLike | None) -> bool:
    """Whether `x` is complex, an array or a dtype; False for None."""
    if x is None:
        return False
    if _is_dtype_like(x) and not isinstance(x, str):
        return _kind(_dtype_of(x)) == "c"
    return _kind(type_of(operand(x)).dtype) == "c"  # type: ignore[arg-type]


def isrealobj(x: ArrayOrList | DTypeLike | None) -> bool:
    """Whether `x` is real, an array or a dtype; True for None."""
    return not iscomplexobj(x)


def isscalar(element: object) -> bool:
    """Whether `element` is a number, or an array without dimensions."""
    if isinstance(element, (list, tuple)) or element is None:
        return False
    try:
        return aval_of(element).ndim == 0
    except ArgumentError:
        return isinstance(element, str)


def _is_abstract_scalar_type(x: object) -> bool:
    return isinstance(x, type) and issubclass(x, np.generic) and x.__subclasses__() != []


def _is_dtype_like(x: object) -> TypeGuard[DTypeLike]:
    return isinstance(x, (str, type, np.dtype, ScalarType)) or (
        callable(x) and hasattr(x, "dtype") and not hasattr(x, "shape")
    )


def _dtype_of(x: object) -> DType:
    dtype: DType = np.dtype(
        x if _is_dtype_like(x) else x.dtype if hasattr(x, "dtype") else aval_of(x).dtype
    )
    return dtype
