"""Constants and scalar types. All names without an underscore are those of `functx.numpy`."""

import math as _math

import ml_dtypes as _ml_dtypes
import numpy as _np

from functx.core.argument_errors import with_explained_errors as _with_explained_errors
from functx.core.typing import ArrayOrList as _ArrayOrList
from functx.core.typing import DTypeLike as _DTypeLike
from functx.core.typing import Value as _Value

s_, index_exp = _np.s_, _np.index_exp
pi = _math.pi
e = _math.e
inf = _math.inf
nan = _math.nan
euler_gamma = 0.5772156649015329
newaxis = None

dtype = _np.dtype
generic, number = _np.generic, _np.number
character, flexible, object_ = _np.character, _np.flexible, _np.object_
ComplexWarning = _np.exceptions.ComplexWarning
integer, signedinteger, unsignedinteger = _np.integer, _np.signedinteger, _np.unsignedinteger
inexact, floating, complexfloating = _np.inexact, _np.floating, _np.complexfloating


class ScalarType:
    """A dtype that can be called, as `float32(x)`, and passed as a `dtype` argument."""

    __slots__ = ("__name__", "__qualname__", "dtype")
    __module__ = "functx.numpy"

    def __init__(self, dtype: _DTypeLike):
        self.dtype = _np.dtype(dtype)
        self.__name__ = self.__qualname__ = self.dtype.name

    @_with_explained_errors
    def __call__(self, x: _ArrayOrList = 0) -> _Value:
        """`x` as an array of this dtype."""
        from functx.numpy.array_creation import asarray

        return asarray(x, dtype=self.dtype)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, ScalarType):
            return bool(self.dtype == other.dtype)
        return isinstance(other, (str, type, _np.dtype)) and bool(self.dtype == other)

    def __hash__(self) -> int:
        return hash(self.dtype)

    def __repr__(self) -> str:
        return f"functx.numpy.{self.dtype.name}"


bool_ = ScalarType("bool")
int8, int16, int32, int64 = map(ScalarType, ("int8", "int16", "int32", "int64"))
uint8, uint16, uint32, uint64 = map(ScalarType, ("uint8", "uint16", "uint32", "uint64"))
float16, float32, float64 = map(ScalarType, ("float16", "float32", "float64"))
bfloat16 = ScalarType(_ml_dtypes.bfloat16)
float8_e3m4, float8_e4m3, float8_e4m3fn, float8_e4m3b11fnuz, float8_e4m3fnuz = [
    ScalarType(getattr(_ml_dtypes, f"float8_e{name}"))
    for name in ("3m4", "4m3", "4m3fn", "4m3b11fnuz", "4m3fnuz")
]
float8_e5m2, float8_e5m2fnuz, float8_e8m0fnu = [
    ScalarType(getattr(_ml_dtypes, f"float8_e{name}")) for name in ("5m2", "5m2fnuz", "8m0fnu")
]
float4_e2m1fn, float6_e2m3fn, float6_e3m2fn = [
    ScalarType(getattr(_ml_dtypes, f"float{name}")) for name in ("4_e2m1fn", "6_e2m3fn", "6_e3m2fn")
]
int1, int2, int4 = [ScalarType(getattr(_ml_dtypes, f"int{n}")) for n in (1, 2, 4)]
uint1, uint2, uint4 = [ScalarType(getattr(_ml_dtypes, f"uint{n}")) for n in (1, 2, 4)]
complex64, complex128 = ScalarType("complex64"), ScalarType("complex128")
# The widest dtypes that 64-bit mode allows.
int_, uint, float_, complex_ = int64, uint64, float64, complex128
half, single, double, csingle, cdouble = float16, float32, float64, complex64, complex128
