"""Traced values and `functx.numpy.ndarray`, the current builder, and the avals of all values."""

from __future__ import annotations

from array import array as buffer_array
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeGuard

import jax.core
import numpy as np

from functx.core.backend import backend
from functx.core.captured_state import CapturedState
from functx.core.errors import (
    ArgumentError,
    EscapedTracerError,
    TypedKeyError,
    short_repr,
    type_name,
)
from functx.core.program import Atom, Literal, Var, scalar_literal
from functx.core.source_info import describe_source
from functx.core.types import (
    PYTHON_SCALAR_DTYPES,
    SHORT_NAMES,
    DType,
    Shape,
    ShapedArray,
    canonical_dtype,
    is_shape_dtype_struct,
    narrow_dtype,
    x64_enabled,
)
from functx.core.typing import ArrayLike, NumPyArray
from functx.core.wrappers import is_wrapper, plain_types, wrapper_aval, wrapper_types

if TYPE_CHECKING:
    from functx.core.builder import Builder


_view, _copy = np.ndarray.view, np.ndarray.copy


class _ArrayType(type):
    def __instancecheck__(cls, x: object) -> bool:
        if isinstance(x, (Tracer, np.ndarray)) or backend.aval_of_jax_array(x) is not None:
            return True
        return is_wrapper(x)


class ndarray(np.ndarray[Any, Any], metaclass=_ArrayType):  # noqa: N801 - NumPy's name
    """A NumPy array whose operators, methods and indexing follow the rules of functx.

    Expressions have the same dtypes and values as under `jit`. An `ndarray` is writable, its views
    share its memory, and it can be passed wherever a `numpy.ndarray` can.

    Outside a transform, functions, methods and operators of functx return

    * a `jax.Array` if an argument is one,
    * else an `ndarray`, also for NumPy arrays, Python numbers and lists.

    Functions that return views (`reshape`, `transpose`, `ravel`, `broadcast_to`, basic indexing,
    ...) keep the memory and the dtype of the argument: the view of a float64 `numpy.ndarray` is
    float64, also without 64-bit mode. All other functions, and `asarray`, use functx's dtypes. An
    element (`x[0]`) is an `ndarray` without dimensions, not a view.

    Inside a transform, a captured `ndarray` is a constant of the traced function. It can be indexed
    with a traced value, and must not be written to.

    `isinstance(x, ndarray)` is True for all arrays: traced ones, NumPy's and JAX's.

    >>> import functx
    >>> import functx.numpy as np
    >>> table = np.arange(4) / 2
    >>> table
    array([0. , 0.5, 1. , 1.5], dtype=float32)
    >>> functx.vmap(lambda i: table[i])(np.array([3, 0]))
    Array([1.5, 0. ], dtype=float32)
    """

    __module__ = "functx.numpy"
    __slots__ = ()

    weak_type = False
    """Whether the dtype is weak in promotion, like that of a Python number."""

    def __repr__(self) -> str:
        return repr(as_numpy_array(self))

    def __str__(self) -> str:
        return str(as_numpy_array(self))

    def __hash__(self) -> int:  # type: ignore[override]
        if self.ndim:
            raise TypeError(f"unhashable type: an array of shape {self.shape}")
        return hash(self.item())


class _DeviceArrayType(type):
    def __instancecheck__(cls, x: object) -> bool:
        return isinstance(x, jax.Array) or type(x) in FUNCTX_ARRAY_TYPES or is_wrapper(x)


class Array(metaclass=_DeviceArrayType):
    """The type of arrays for annotations and `isinstance`: `jax.Array`s, traced arrays, and `ndarray`s of functx.

    A plain NumPy array is none, as in JAX.

    >>> import functx
    >>> x = functx.numpy.ones(3)
    >>> isinstance(x, functx.Array), isinstance(functx.jit(functx.numpy.sin)(x), functx.Array)
    (True, True)
    """

    __module__ = "functx"


class WeakNdarray(ndarray):
    """An array of a weak dtype, as functions of Python numbers return."""

    __module__ = "functx.numpy"
    __slots__ = ()
    weak_type = True
    exist = False
    """Whether the program has made one; only then do jitted functions look for them."""

    def __array_finalize__(self, source: object) -> None:
        WeakNdarray.exist = True

    def __reduce__(self) -> tuple[object, ...]:
        return as_ndarray(self).__reduce__()


WeakNdarray.__name__ = WeakNdarray.__qualname__ = "ndarray"


FUNCTX_ARRAY_TYPES: frozenset[type] = frozenset([ndarray, WeakNdarray])
"""The types of arrays whose operators, methods and indexing are functx's."""
HOST_ARRAY_TYPES: frozenset[type] = FUNCTX_ARRAY_TYPES | {np.ndarray}
"""The types of arrays in host memory, without other subclasses of `numpy.ndarray`."""


def as_ndarray(x: object, weak_type: bool = False) -> Any:
    """A NumPy array as an `ndarray` on the same memory; anything else unchanged."""
    return _view(x, WeakNdarray if weak_type else ndarray) if isinstance(x, np.ndarray) else x


def as_numpy_array(x: Any) -> Any:
    """An `ndarray` as a `numpy.ndarray` on the same memory; anything else unchanged."""
    return _view(x, np.ndarray) if type(x) in FUNCTX_ARRAY_TYPES else x


def copy_as_ndarray(value: ArrayLike, weak_type: bool = False) -> Any:
    """A copy of an array, in its memory order, as an `ndarray`."""
    return _copy(_view(np.asarray(value), WeakNdarray if weak_type else ndarray), "K")


def filled_ndarray(
    value: ArrayLike, shape: tuple[int, ...], dtype: DType, weak_type: bool = False
) -> Any:
    """A new `ndarray` filled with the number `value`."""
    array = np.ndarray.__new__(WeakNdarray if weak_type else ndarray, shape, dtype)
    np.ndarray.fill(array, value)
    return array


def memory_owner(x: NumPyArray) -> NumPyArray:
    """The array that owns the memory of `x`: itself, or the base of the view."""
    while isinstance(x.base, np.ndarray):
        x = x.base
    return x


class Tracer(jax.core.Tracer):  # type: ignore[type-arg]
    """A traced array: a variable (or a literal) and the builder that owns it.

    It is also a tracer of JAX, so that JAX functions accept it. `aval` is JAX's aval;
    `atom.aval` is functx's. Its operators (`__iadd__`, `__setitem__`) and NumPy's methods and
    attributes are set by `numpy/tracer_methods.py`.
    """

    __slots__ = ("atom", "builder")

    def __init__(self, atom: Atom, builder: Builder):
        self.atom = atom
        self.builder = builder

    @property
    def aval(self) -> object:  # type: ignore[override]
        return backend.jax_aval(self.atom.aval)

    @property
    def _trace(self) -> object:  # type: ignore[override]
        if not self.builder.is_open:
            check_not_escaped(self, None)
        return backend.jax_trace

    @property
    def _line_info(self) -> None:  # type: ignore[override]
        # JAX reads this for the message that a value has escaped.
        check_not_escaped(self, current_builder.innermost())

    @property
    def shape(self) -> Shape:
        return self.atom.aval.shape

    @property
    def dtype(self) -> DType:
        return self.atom.aval.dtype

    @property
    def ndim(self) -> int:
        return self.atom.aval.ndim

    @property
    def size(self) -> int:
        return self.atom.aval.size

    @property
    def weak_type(self) -> bool:
        return self.atom.aval.weak_type

    def describe(self) -> str:
        """`Traced<f32[3]> in grad(loss)`: the aval, and the transform that traces it."""
        ended = "" if self.builder.is_open else ", which has ended"
        return f"Traced<{self.atom.aval!r}> in {self.builder.owner}{ended}"

    __repr__ = describe

    __hash__ = None  # type: ignore[assignment]

    def __copy__(self) -> Tracer:
        return self

    def __deepcopy__(self, memo: object) -> Tracer:
        return self


class PRNGKeyTracer(jax.core.Tracer):  # type: ignore[type-arg]
    """Traced typed PRNG keys: a JAX tracer of the aval `aval`, with `key_data` as the traced value."""

    __slots__ = ("key_data",)

    def __init__(self, key_data: Tracer, aval: jax.core.AbstractValue):
        self.key_data = key_data
        self.aval = aval

    @property
    def _trace(self) -> object:  # type: ignore[override]
        return self.key_data._trace


def is_jax_tracer(x: object) -> bool:
    """Whether `x` is a tracer of JAX, and none of functx."""
    return isinstance(x, jax.core.Tracer) and not isinstance(x, (Tracer, PRNGKeyTracer))


_current_builder: ContextVar[Builder | None] = ContextVar("current_builder", default=None)
context_builder = _current_builder.get
"""Returns the builder of this context; it may have ended, since a task keeps the context it started in."""


class _CurrentBuilder:
    """The builder of this context that operations append to; builders that have ended do not count."""

    set, reset = _current_builder.set, _current_builder.reset

    def innermost(self) -> Builder | None:
        """The innermost open builder, also inside a trace of JAX that began later."""
        builder = context_builder()
        while builder is not None and not builder.is_open:
            builder = builder.parent
        return builder

    def get(self) -> Builder | None:
        """The innermost open builder; None inside a trace of JAX that began later."""
        if context_builder() is None:
            return None
        builder = self.innermost()
        return None if builder is None or backend.inside_jax_trace() else builder

    def require(self) -> Builder:
        """The innermost open builder, for code that runs only inside a trace."""
        builder = self.innermost()
        assert builder is not None, "programs are rewritten inside a trace"
        return builder


current_builder = _CurrentBuilder()


def with_parents(builder: Builder) -> Iterator[Builder]:
    """A builder and those around it."""
    current: Builder | None = builder
    while current is not None:
        yield current
        current = current.parent


def check_no_escaped_tracers(args: Sequence[ArrayLike]) -> None:
    """Raise EscapedTracerError for a traced value whose trace is not active."""
    for x in args:
        if type(x) is Tracer:
            check_not_escaped(x, current_builder.innermost())


class variables:  # noqa: N801 - a switch
    """The class Variable, once imported, and whether the program has made one.

    Only then do jitted functions look for them. `jitted_steps` is the class of the steps of a jitted
    function that changes Variables.
    """

    type: type | None = None
    jitted_steps: Any = None
    exist = False


def recording_operand(args: Sequence[ArrayLike]) -> Any:
    """The object that records an operation on these operands; None if it is to be evaluated.

    The handlers of wrapper types if there are such operands, else the first Variable of
    `functx.autograd`. Raises EscapedTracerError for a traced value whose trace is not active.
    """
    found = kind_found = None
    for x in args:
        kind = type(x)
        if kind is kind_found or kind in _evaluated_types:
            continue
        if isinstance(x, Tracer):
            if kind is Tracer:
                check_not_escaped(x, current_builder.innermost())
            elif found is None:
                found, kind_found = x, kind
        elif is_wrapper(x):
            from functx.core.wrapper_dispatch import wrapper_recorder

            return wrapper_recorder
        elif kind in plain_types:
            _evaluated_types.add(kind)
    return found


_evaluated_types: set[type] = set()
"""Types of arrays and numbers, operations on which are evaluated."""


def is_device_array(x: object) -> TypeGuard[jax.Array]:
    """Whether `x` is an array of JAX with known elements, which cannot be written to."""
    return isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer)


def is_variable(x: object) -> bool:
    """Whether `x` is a Variable of `functx.autograd`."""
    return isinstance(x, Tracer) and type(x) is not Tracer


def check_gradient_kept(x: object, operation: str) -> None:
    """Raise LostDerivativeError for a Variable with a derivative, which a NumPy array would lose."""
    if is_variable(x):
        x.check_gradient_kept(operation)  # type: ignore[attr-defined]


def check_not_escaped(x: Tracer, inner: Builder | None) -> None:
    """Raise EscapedTracerError unless the builder of `x` is `inner` or one of its parents, and open."""
    owner, builder = x.builder, inner
    while builder is not None and builder is not owner:
        builder = builder.parent
    if builder is owner and owner.is_open:
        return
    made = next((e.source for e in owner.equations if x.atom in e.outputs), None)
    where = f"made at {describe_source(made)}" if made else "an argument of the function"
    raise EscapedTracerError(
        f"a traced value must be used inside the function that made it; got {x.atom.aval!r} of "
        f"{owner.owner}, {'which has ended' if not owner.is_open else 'in another thread or trace'}",
        f"the value: {where}",
        fix="Return the value from the function (with has_aux=True beside a loss), "
        "instead of storing it outside.",
    )


def literal_of(x: Any) -> Literal | None:
    """The literal for a Python or NumPy scalar; None for anything else."""
    kind = type(x)
    if kind is Literal:
        return x  # type: ignore[no-any-return]
    name = PYTHON_SCALAR_DTYPES.get(kind)
    if name is not None:
        return scalar_literal(x, canonical_dtype(name), kind is not bool, repr(x))
    if isinstance(x, np.generic):
        dtype = canonical_dtype(x.dtype)
        if dtype in SHORT_NAMES:
            value = x.item()
            return scalar_literal(value, dtype, False, repr(value))
    elif isinstance(x, (int, float, complex)):
        return literal_of(plain_number(x))
    return None


def plain_number(x: object) -> Any:
    """The Python number that `x`, of a subclass such as an IntEnum, stands for; anything else unchanged."""
    if type(x) in PYTHON_SCALAR_DTYPES or isinstance(x, np.generic):
        return np.uint64(x) if type(x) is np.ulonglong else x
    if isinstance(x, int):
        return int(x)
    if isinstance(x, float):
        return float(x)
    return complex(x) if isinstance(x, complex) else x


def aval_of(x: Any) -> ShapedArray:
    """The abstract value of an array, traced value, number, literal or variable.

    Raises ArgumentError for any other value.
    """
    kind = type(x)
    if kind is Tracer:
        return x.atom.aval
    if kind is Literal or kind is Var:
        return x.aval
    if kind in HOST_ARRAY_TYPES:
        dtype = x.dtype
        if dtype.itemsize >= 8 and not x64_enabled():
            dtype = narrow_dtype(dtype)
        if dtype in SHORT_NAMES:
            return ShapedArray(x.shape, dtype, kind is WeakNdarray)
    elif kind is variables.type:
        return x.aval_  # type: ignore[no-any-return]
    else:
        aval = backend.aval_of_jax_array(x)
        if aval is not None:
            return aval
        if kind in wrapper_types:
            return wrapper_aval(x)
        literal = literal_of(x)
        if literal is not None:
            return literal.aval
        if isinstance(x, np.ndarray) and not isinstance(x, np.ma.MaskedArray):
            return aval_of(np.asarray(x))
    if isinstance(x, CapturedState):
        return x.aval
    if is_wrapper(x):
        return wrapper_aval(x)
    if kind is PRNGKeyTracer or backend.raw_key_data(x) is not x:
        raise TypedKeyError(
            f"arguments must be arrays or numbers; got typed keys, {x.dtype}{list(x.shape)}",
            fix="Pass functx.random.key_data(keys), their words.",
        )
    raise ArgumentError(
        f"arguments must be arrays or numbers; got {type_name(x)} {short_repr(x)[:60]}",
        fix=_argument_fix(x),
    )


def from_jax_protocol(x: Any) -> Any:
    """The array of an object that has the method `__jax_array__`; anything else unchanged."""
    if not hasattr(type(x), "__jax_array__") or isinstance(x, jax.core.Tracer) or is_wrapper(x):
        return x
    return x.__jax_array__()


def as_known_array(x: object) -> Any:
    """An array of another library, such as a column of pandas, as a NumPy array; anything else unchanged.

    So is one whose elements are no numbers. An object with `__jax_array__` gives the result of that, and a
    number of a subclass the number of Python.
    """
    kind = type(x)
    if not isinstance(x, (bytearray, memoryview, buffer_array)):
        is_array = isinstance(x, (Tracer, np.ndarray, np.generic)) or is_wrapper(x)
        if kind in plain_types or is_array:
            return x
        if hasattr(kind, "__jax_array__"):
            return from_jax_protocol(x)
        if not hasattr(kind, "__array__") or hasattr(x, "aval"):
            return plain_number(x)
    try:
        known = np.asarray(x)
    except (RuntimeError, TypeError, ValueError):
        return x
    return known if known.dtype in SHORT_NAMES else x


def abstractify(x: object) -> ShapedArray:
    """The aval of an array, a number, or anything with a shape and a dtype."""
    if type(x) is ShapedArray:
        return x
    try:
        return aval_of(x)
    except ArgumentError:
        x = as_known_array(backend.raw_key_data(x))
        if isinstance(x, np.ndarray):
            return aval_of(x)
        if hasattr(x, "shape") and hasattr(x, "dtype") and not hasattr(type(x), "__array__"):
            weak = bool(getattr(x, "weak_type", False))
            return ShapedArray(tuple(x.shape), canonical_dtype(x.dtype), weak)
        raise


def type_of(x: object) -> ShapedArray:
    """The aval of an array or number, or of the array that a `jax.ShapeDtypeStruct` describes."""
    return abstractify(x) if is_shape_dtype_struct(x) else aval_of(x)


def _argument_fix(x: object) -> str:
    """The cure in the message for an argument that is neither an array nor a number."""
    if x is None:
        return "Give it a value, or leave it out: None stands for no array."
    if isinstance(x, np.ma.MaskedArray):
        return "Pass x.filled(value), or x.data and x.mask as two arrays."
    if hasattr(x, "__functx_state__") or hasattr(x, "named_parameters"):
        return (
            "Pass the state of a module (dict(module.named_parameters())), and call it in the function with "
            "functx.functional_call(module, state, x)."
        )
    if hasattr(x, "__dlpack__") and getattr(getattr(x, "dtype", None), "kind", "") != "O":
        return "Convert it with functx.numpy.from_dlpack."
    if hasattr(type(x), "__array__") and not isinstance(x, np.ndarray) and not hasattr(x, "aval"):
        return (
            "Its elements must be numbers: pass the columns of numbers (frame.select_dtypes('number')), codes "
            "in place of texts, and seconds in place of dates."
        )
    if hasattr(x, "dtype"):
        return "Convert it to an array of a dtype that functx has, in the machine's byte order."
    if isinstance(x, (list, tuple, dict, set, Iterator)):
        return "Make one array of it, as functx.numpy.array does of a list of numbers."
    return (
        "Compute with arrays and numbers only. An argument of a transform that is neither is made static "
        "(static_argnums of jit, functools.partial, a closure); a class that holds arrays is "
        "registered as a pytree (jax.tree_util.register_dataclass)."
    )
