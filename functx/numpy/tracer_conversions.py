"""Conversions of traced arrays to values of Python and NumPy, which need the value of the array."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from functx.core.concretization import check_not_differentiated, concretize
from functx.core.errors import (
    ArgumentError,
    CapturedWriteError,
    ConcretizationError,
    ForeignCodeError,
    ShapeError,
)
from functx.core.tracer import Tracer
from functx.core.typing import DTypeLike
from functx.numpy import indexing
from functx.transforms.tracer_values import format_tracer, tracer_repr

_INDEX_FIX = (
    "Loop with functx.lax.fori_loop; index functx.numpy.stack(a_list), or choose with "
    "functx.lax.switch; for an argument that decides shapes, use static_argnums."
)
_BOOL_FIX = (
    "Choose between values with functx.numpy.where or functx.lax.cond, loop with functx.lax.while_loop, "
    "and combine conditions with &, | and ~ in place of `and`, `or`, `not` and `0 < x < 1`; for an "
    "argument that is not an array, use static_argnums."
)
_FLOAT_FIX = (
    "Keep the array, which computes like a number, with functx.numpy in place of math; for an "
    "argument that is not an array, use static_argnums."
)


def _concrete_scalar(self: Tracer, requested_by: str, fix: str = "") -> Any:
    if self.size != 1:
        raise ShapeError(
            f"{requested_by}: the array must have one element; got {self.atom.aval!r}",
            fix="For truth, reduce it with .any() or .all().",
        )
    try:
        return concretize(self, requested_by).reshape(())[()]
    except ConcretizationError as error:
        error.fix = fix or error.fix
        raise


def _bool(self: Tracer) -> bool:
    return bool(_concrete_scalar(self, _requesting_keyword("bool()"), _BOOL_FIX))


def _int(self: Tracer) -> int:
    return int(_concrete_scalar(self, "int()"))


def _index(self: Tracer) -> int:
    if self.dtype.kind not in "iu":
        raise ArgumentError(f"an index must be an integer; got {self.atom.aval!r}")
    return operator.index(_concrete_scalar(self, "an index or a count", _INDEX_FIX))


def _check_not_assigned(self: Tracer) -> None:
    """Raise if the value is needed for an assignment to an element of a NumPy array."""
    from functx.core.source_info import assigned_container, user_source

    source = user_source(3)
    name = assigned_container(source)
    if name is not None:
        array = f"`{name}`" if name else "the array"
        target = f"the NumPy array {array}" if name else "an array of NumPy's"
        raise CapturedWriteError(
            f"{name or 'x'}[...] =: an array from outside the function must not be written to with "
            f"a traced value; got {self.atom.aval!r} of {self.builder.owner} for {target}",
            fix=f"Pass {array} as an argument, make it inside the function, or write to a "
            f"copy, functx.numpy.array({name or 'x'}).",
            source=source,
        )


def _float(self: Tracer) -> float:
    _check_not_assigned(self)
    check_not_differentiated(self, "float()")
    return float(_concrete_scalar(self, "float()", _FLOAT_FIX))


def _complex(self: Tracer) -> complex:
    _check_not_assigned(self)
    check_not_differentiated(self, "complex()")
    return complex(_concrete_scalar(self, "complex()"))


def _format(self: Tracer, spec: str) -> str:
    return format_tracer(self, spec) if spec else repr(self)


def _item(self: Tracer, *args: Any) -> complex:
    """The one element as a Python number."""
    check_not_differentiated(self, ".item()")
    element = self if not args else indexing.getitem(self, args[0] if len(args) == 1 else args)
    return _concrete_scalar(element, ".item()", _FLOAT_FIX).item()


def _tolist(self: Tracer) -> Any:
    """The elements as nested lists of Python numbers."""
    check_not_differentiated(self, ".tolist()")
    return concretize(self, ".tolist()").tolist()


def _array(self: Tracer, dtype: DTypeLike = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
    _check_not_assigned(self)
    check_not_differentiated(self, "numpy.asarray()")
    try:
        return np.array(concretize(self, "numpy.asarray()"), dtype)
    except ConcretizationError as error:
        raise ForeignCodeError(
            f"NumPy needs the value of an array; got {self.atom.aval!r}, traced by {self.builder.owner}",
            *error.details,
            fix="Use functx.numpy in place of NumPy, and functx.random in place of numpy.random; to index "
            "a NumPy table with a traced value, functx.numpy.asarray(table)[i].",
        ) from None


def _requesting_keyword(default: str) -> str:
    """The keyword of the user's code that needs a truth value: `if`, `while`, `and`, ..."""
    from functx.core.source_info import line_text, user_source

    words = line_text(user_source(3)).split()
    if words and words[0] in ("if", "elif", "while", "assert"):
        return f"`{words[0]}`"
    keywords = [word for word in ("and", "or", "not", "if") if word in words]
    return f"`{keywords[0]}`" if len(keywords) == 1 else default


def _hash(self: Tracer) -> int:
    """Raises ConcretizationError: a traced array has no value to hash."""
    raise ConcretizationError(
        f"hash() needs the value of an array, and arrays are not hashable; got {self.atom.aval!r} of "
        f"{self.builder.owner}",
        fix="Index functx.numpy.stack of the values, choose with functx.lax.switch, or look it up by an "
        "argument that is static (static_argnums).",
    )


for _name, _fun in {
    "__bool__": _bool,
    "__int__": _int,
    "__index__": _index,
    "__float__": _float,
    "__complex__": _complex,
    "__format__": _format,
    "__hash__": _hash,
    "__array__": _array,
    "item": _item,
    "tolist": _tolist,
    "__repr__": tracer_repr,
}.items():
    setattr(Tracer, _name, _fun)
