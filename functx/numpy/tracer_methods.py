"""NumPy's operators, methods and attributes of traced arrays."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from types import CodeType, FrameType
from typing import Any, NoReturn

import jax
import numpy as np

from functx import ops
from functx.core.argument_errors import explain
from functx.core.backend import backend
from functx.core.binding import bind
from functx.core.errors import (
    ArgumentError,
    AutogradInTransformError,
    DTypeError,
    ImmutableArrayError,
    ShapeError,
)
from functx.core.memory_layouts import is_contiguous, strides_of
from functx.core.primitive import Primitive
from functx.core.pytorch_names import METHODS
from functx.core.strides import is_row_major, row_major_strides
from functx.core.tracer import Tracer, aval_of, ndarray, variables
from functx.core.tracing import refuse_of_traced
from functx.core.types import canonical_dtype, is_complex, real_dtype
from functx.core.typing import ArrayOrList, DTypeLike, NumPyArray, Out, Value
from functx.core.wrappers import is_wrapper
from functx.numpy import (
    cumulative,
    floating_point,
    indexing,
    matrices,
    mutation,
    operators,
    rearranging,
    reductions,
    shapes,
    sorting_and_searching,
    tensor_contractions,
    ufuncs,
)
from functx.numpy.boolean_masks import OPERATOR_SYMBOLS
from functx.ops.autodiff import Detach
from functx.ops.operands import PYTHON_SCALARS
from functx.ops.views import Copy, ViewAsComplex, ViewAsReal

OPERATORS: dict[str, Callable[..., Any]] = {}
"""The function of each operator that has a reflection, by its name."""


def make_operator_pair(
    fun: Callable[..., Any], reflected: str
) -> tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]:
    """The methods for `x op y` and `y op x` that compute `fun`.

    For an operand that `fun` does not accept and that has the method `reflected`, the first
    returns NotImplemented, as for a list or tuple whose class defines that method.
    """
    methods_of_sequences = [getattr(cls, reflected, None) for cls in (object, list, tuple)]

    def method(self: object, other: object) -> object:
        if (
            isinstance(other, (list, tuple))
            and getattr(type(other), reflected, None) not in methods_of_sequences
        ):
            return NotImplemented
        try:
            return fun(self, other)
        except ArgumentError:
            if hasattr(type(other), reflected):
                return NotImplemented
            raise

    def reflection(self: object, other: object) -> object:
        out = fun(other, self)
        if type(other) not in PYTHON_SCALARS and isinstance(other, jax.Array):
            # Like a result of JAX's own operator, it is immutable.
            for x in out if type(out) is tuple else (out,):
                if type(x) is Tracer:
                    x.builder.mark_made_by_jax(x.atom)
        return out

    return method, reflection


def _define_tracer_operator(
    name: str, fun: Callable[..., Any], primitive: Primitive | None = None
) -> None:
    """Define the operator `__name__` of Tracer and its reflection, with a shortcut for equal types."""
    reflected = f"__r{name}__"
    OPERATORS[name] = fun
    general, reflection = make_operator_pair(fun, reflected)

    def method(self: Tracer, other: object) -> object:
        if type(other) is Tracer and other.atom.aval is self.atom.aval:
            return bind(primitive, (self, other))  # type: ignore[arg-type]
        return general(self, other)

    setattr(Tracer, f"__{name}__", general if primitive is None else method)
    setattr(Tracer, reflected, reflection)


def _power(x: ArrayOrList, y: ArrayOrList) -> Value:
    # The most frequent exponent is a small int.
    if type(y) is int:
        if type(x) is Tracer and x.atom.aval.dtype.kind == "f":
            return bind(ops.IntegerPow(y), (x,))
        if is_wrapper(x) and aval_of(x).dtype.kind == "f":
            return bind(ops.IntegerPow(y), (x,))
    return operators.power(x, y)


_define_tracer_operator("add", operators.add, ops.Add())
_define_tracer_operator("sub", operators.subtract, ops.Sub())
_define_tracer_operator("mul", operators.multiply, ops.Mul())
_define_tracer_operator("pow", _power)
_fun: Any
for _name, _fun in {
    "truediv": operators.true_divide,
    "floordiv": floating_point.floor_divide,
    "mod": floating_point.remainder,
    "divmod": floating_point.divmod,
    "matmul": tensor_contractions.matmul,
    "and": operators.bitwise_and,
    "or": operators.bitwise_or,
    "xor": operators.bitwise_xor,
    "lshift": operators.left_shift,
    "rshift": operators.right_shift,
}.items():
    _define_tracer_operator(_name, _fun)

for _name, _symbol in OPERATOR_SYMBOLS.items():
    _fun = mutation.in_place_operator(_symbol, getattr(operator, f"__{_name}__"))
    setattr(Tracer, f"__i{_name}__", _fun)


def define_method(cls: type, name: str, fun: Callable[..., Any]) -> None:
    """Define the method `name` of a class of arrays, which calls the function `fun`."""

    def method(self: object, *args: object, **kwargs: object) -> object:
        try:
            return fun(self, *args, **kwargs)
        except Exception as error:
            explain(error, fun, (self, *args), kwargs)
            raise

    method.__name__ = name
    method.__doc__ = fun.__doc__
    setattr(cls, name, method)


def _comparison(fun: Callable[..., Any]) -> Callable[..., Any]:
    """The method that compares by `fun`, and leaves an object whose `__array_ufunc__` is None to that object."""

    def method(self: Tracer, other: object) -> object:
        try:
            return fun(self, other)
        except ArgumentError:
            if getattr(type(other), "__array_ufunc__", fun) is None:
                return NotImplemented
            raise

    return method


OTHER_OPERATORS: dict[str, Callable[..., Any]] = {
    "__eq__": operators.equal,
    "__ne__": operators.not_equal,
    "__lt__": operators.less,
    "__le__": operators.less_equal,
    "__gt__": operators.greater,
    "__ge__": operators.greater_equal,
    "__neg__": operators.negative,
    "__pos__": operators.positive,
    "__abs__": operators.absolute,
    "__invert__": operators.invert,
    "__round__": floating_point.round,
    "__getitem__": indexing.getitem,
}
"""The functions of operators without a reflection, by the names of their methods."""
for _name, _fun in OTHER_OPERATORS.items():
    setattr(Tracer, _name, _fun)
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(Tracer, f"__{_name}__", _comparison(OTHER_OPERATORS[f"__{_name}__"]))

FUNCTIONS_AS_METHODS: dict[str, Callable[..., Any]] = {}
"""The functions of `functx.numpy` that are methods of arrays as well."""
for _module, _names in {
    reductions: "sum prod max min any all argmax argmin ptp mean var std",
    cumulative: "cumsum cumprod",
    shapes: "astype ravel flatten squeeze swapaxes",
    rearranging: "repeat",
    ufuncs: "clip",
    floating_point: "round",
    sorting_and_searching: "argsort searchsorted argpartition nonzero",
    tensor_contractions: "dot",
    matrices: "trace diagonal",
    indexing: "take choose",
}.items():
    for _name in _names.split():
        FUNCTIONS_AS_METHODS[_name] = getattr(_module, _name)
for _name, _fun in FUNCTIONS_AS_METHODS.items():
    define_method(Tracer, _name, _fun)


def _reshape(self: Tracer, *shape: Any, order: str = "C") -> Value:
    """The elements in another shape, one tuple or several ints."""
    return shapes.reshape(self, shape[0] if len(shape) == 1 else shape, order=order)


def _transpose(self: Tracer, *axes: Any) -> Value:
    """The array with its axes permuted, in reverse order without arguments."""
    return shapes.transpose(self, (axes[0] if len(axes) == 1 else axes) or None)


def _jax_array(self: Tracer) -> Callable[[], None] | None:
    """Declines an operator of `jax.Array`, which then returns NotImplemented; None elsewhere.

    JAX's operators convert an operand that has `__jax_array__`. Without an array they leave
    `w @ x` to the reflected operator of `x`, at a fifth of the cost of the operation in JAX.
    """
    declined = _is_jax_operator(sys._getframe(1)) and (
        type(self) is not Tracer or not backend.inside_jax_trace()
    )
    return _no_array if declined else None


def _no_array() -> None:
    return None


_jax_operators: dict[int, CodeType] = {}
"""The code of the operators of `jax.Array` recognised so far, by `id`."""


def _is_jax_operator(frame: FrameType) -> bool:
    """Whether a frame runs an operator of `jax.Array` that has a reflected form."""
    code = frame.f_code
    if id(code) in _jax_operators:
        return True
    operand = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
    if not isinstance(operand, jax.Array):
        return False
    methods = [getattr(type(operand), f"__{name}__", None) for name in OPERATORS]
    if not any([getattr(method, "__code__", None) is code for method in methods]):
        return False
    _jax_operators[id(code)] = code
    return True


def _view(self: Tracer, dtype: DTypeLike = None, *lengths: int) -> Value:
    """The memory of the array as another dtype, with the last dimension scaled to its size.

    Raises ShapeError if the last dimension is not contiguous, or does not hold a whole number
    of elements of `dtype`.
    """
    if lengths or isinstance(dtype, (int, tuple)):
        got = (dtype, *lengths) if lengths else dtype
        raise DTypeError(
            f"x.view(): it takes a dtype, whose elements the memory is to hold; got {got!r}",
            fix="For another shape, x.reshape(shape).",
        )
    if dtype is None or canonical_dtype(dtype) == self.dtype:
        return self
    target = canonical_dtype(dtype)
    if is_complex(self.dtype) and self.shape:
        return shapes.reshape(ViewAsReal()(self), (*self.shape[:-1], 2 * self.shape[-1])).view(
            target
        )
    if is_complex(target) and self.shape:
        parts = _view(self, real_dtype(target))
        return ViewAsComplex()(shapes.reshape(parts, (*parts.shape[:-1], _complex_count(parts), 2)))
    old, new = ops.bit_width(self.dtype), ops.bit_width(target)
    if old == new:
        return ops.bitcast_convert_type(self, dtype)
    is_contiguous(self)
    whole = (
        row_major_strides(self.shape) if is_wrapper(self) else strides_of(self.builder, self.atom)
    )
    strides, times = whole, max(new // old, 1)
    if (
        not is_row_major(self.shape[-1:], strides[-1:])
        or not self.shape
        or any(n % times for n in (self.shape[-1], *strides[:-1]))
    ):
        raise ShapeError(
            "x.view(): the last dimension must be contiguous and hold a whole number of elements of "
            f"the new dtype, to change their size; got {aval_of(self)!r} for {np.dtype(dtype)}",
            fix="Copy it first (.copy()).",
        )
    if old > new:
        parts = ops.bitcast_convert_type(self, dtype)
        return shapes.reshape(parts, (*self.shape[:-1], self.shape[-1] * (old // new)))
    parts = shapes.reshape(self, (*self.shape[:-1], self.shape[-1] // times, times))
    return ops.bitcast_convert_type(parts, dtype)


def _complex_count(parts: Value) -> int:
    """The number of complex numbers in real and imaginary parts along the last dimension."""
    if parts.shape[-1] % 2:
        raise ShapeError(
            f"x.view(): the last dimension must hold whole complex numbers; got {aval_of(parts)!r}",
        )
    return parts.shape[-1] // 2  # type: ignore[no-any-return]


def _host_value(name: str, x: Tracer) -> NumPyArray:
    from functx.numpy.input_output import host_array

    return host_array(name, x)


def _compress(
    self: Tracer, condition: ArrayOrList, axis: int | None = None, out: Out = None
) -> Value:
    """The slices along `axis` where the vector `condition` is True."""
    return mutation.write_out_exact(
        "x.compress", sorting_and_searching.compress(condition, self, axis), out
    )


def _conj(self: Tracer) -> Value:
    """The complex conjugate; of a real array, the array itself."""
    return floating_point.conjugate(self) if self.dtype.kind == "c" else self


def _part_setter(part: Callable[[Any], Any]) -> Callable[[Tracer, Any], None]:
    """The setter of `x.real` or `x.imag`, which writes to the view that `part` returns."""

    def write(self: Tracer, value: ArrayOrList) -> None:
        if part is floating_point.imag and self.dtype.kind != "c":
            raise DTypeError(f"x.imag =: the array must be complex; got {self.atom.aval!r}")
        mutation.set_item(part(self), Ellipsis, value)

    return write


def _len(self: Tracer) -> int:
    if not self.shape:
        raise ShapeError(f"len: the array must have a dimension; got {aval_of(self)!r}")
    return self.shape[0]


def _iter(self: Tracer) -> Iterator[Value]:
    if not self.shape:
        raise ShapeError(
            f"iteration: the array must have a dimension; got {aval_of(self)!r}",
            fix="A number stands for one value: use it as it is.",
        )
    return (indexing.getitem(self, i) for i in range(_len(self)))


_jax_getattr = Tracer.__getattr__
_AUTOGRAD_ATTRIBUTES = {
    "backward": "functx.grad(f)(x); or, under functx.jit alone, read the Variables from around the "
    "function",
    "grad": "functx.grad(f)(x), which returns it",
    "grad_fn": "functx.make_ir(f)(x), whose equations are the graph",
    "is_leaf": "functx.grad(f, argnums), whose arguments are the leaves",
    "requires_grad": "functx.grad(f, argnums), which chooses by argument",
    "requires_grad_": "functx.grad(f)(x)",
    "register_hook": "functx.hook_grad(x, fn)",
    "register_post_accumulate_grad_hook": "functx.hook_grad(x, fn)",
    "retain_grad": "functx.grad(f, has_aux=True), or functx.hook_grad(x, fn)",
    "retains_grad": "functx.hook_grad(x, fn)",
}


def _getattr(self: Tracer, name: str) -> object:
    if name.startswith("__array_"):
        # NumPy asks for its protocols, which are methods of the class; the message would be slow.
        raise AttributeError(name)
    try:
        return _jax_getattr(self, name)
    except AttributeError:
        if name.startswith("_"):
            raise
    if name in _AUTOGRAD_ATTRIBUTES:
        refuse_of_traced(in_transform_error(self, name), self)
    # A variable that held the error would be part of a cycle.
    if type(self) is Tracer and hasattr(variables.type, name):
        refuse_of_traced(missing_attribute(self, name), self)
    raise missing_attribute(self, name) from None


def missing_attribute(x: Tracer, name: str) -> AttributeError:
    """The error for an attribute that a traced array or a Variable does not have."""
    kind = "a traced array" if type(x) is Tracer else "a Variable"
    message = f"{kind} has no attribute {name!r}; got {x.describe()}"
    return AttributeError(message + suggestion_for_attribute(name), name=name, obj=x)


def suggestion_for_attribute(name: str) -> str:
    """`; write x.ndim`: the end of a message, for an attribute that PyTorch's tensors have; else empty."""
    suggestion = METHODS.get(name)
    for module in ("numpy", "nn", "lax"):
        if suggestion is None and callable(vars(import_module(f"functx.{module}")).get(name)):
            suggestion = f"functx.{module}.{name}(x)"
    return f"; write {suggestion}" if suggestion else ""


def missing_attribute_of_array(x: ndarray, name: str) -> NoReturn:
    """Raise the error for an attribute that an `ndarray` outside a trace does not have."""
    message = f"an array has no attribute {name!r}"
    if not name.startswith("_"):
        cure = _AUTOGRAD_ATTRIBUTES.get(name)
        if cure is None and name == "detach":
            cure = "functx.lax.stop_gradient(x)"
        message += f"; write {cure}" if cure else suggestion_for_attribute(name)
    raise AttributeError(message, name=name, obj=x)


def in_transform_error(x: Tracer, name: str) -> AutogradInTransformError:
    """The error for an attribute that Variables have, and traced arrays have not."""
    return AutogradInTransformError(
        f"x.{name}: it must not be used inside a transform, whose values are traced; got "
        f"{x.describe()}",
        fix=f"Write {_AUTOGRAD_ATTRIBUTES[name]}.",
    )


def _refuse_attribute_of_variables(name: str) -> property:
    """A property of traced arrays that can be neither read nor set; `__getattr__` says why."""

    def refuse(self: Tracer, value: object) -> None:
        refuse_of_traced(in_transform_error(self, name), self)

    return property(None, refuse)


Tracer.grad = _refuse_attribute_of_variables("grad")  # type: ignore[attr-defined]
Tracer.requires_grad = _refuse_attribute_of_variables("requires_grad")  # type: ignore[attr-defined]


def _delete(self: Tracer, idx: object) -> None:
    raise ImmutableArrayError(
        f"del x[...]: an array keeps its elements; got {self.atom.aval!r}",
        fix="Use functx.numpy.delete, which returns a new array.",
    )


def _immutable_attribute_setter(name: str, cure: str) -> Callable[[Tracer, Any], None]:
    """The setter of an immutable attribute, which raises ImmutableArrayError."""

    def refuse(self: Tracer, value: object) -> None:
        raise ImmutableArrayError(
            f"x.{name} =: an array keeps its {name}; got {self.atom.aval!r} for {value!r}",
            fix=f"Write {cure}.",
        )

    return refuse


Tracer.shape = Tracer.shape.setter(_immutable_attribute_setter("shape", "x = x.reshape(shape)"))  # type: ignore
Tracer.dtype = Tracer.dtype.setter(_immutable_attribute_setter("dtype", "x = x.view(dtype)"))  # type: ignore
Tracer.data = property(  # type: ignore[attr-defined]
    None,
    _immutable_attribute_setter(
        "data",
        "x[...] = value, under functx.autograd.no_grad() for a leaf that requires a gradient",
    ),
)
for _name, _fun in {
    "__len__": _len,
    "__iter__": _iter,
    "__getattr__": _getattr,
    "__setitem__": mutation.set_item,
    "__delitem__": _delete,
    "compress": _compress,
    "reshape": _reshape,
    "transpose": _transpose,
    "view": _view,
    "copy": lambda self, order="C": Copy()(self) if order == "C" else shapes.copy(self, order),
    "tobytes": lambda self, order="C": _host_value("x.tobytes()", self).tobytes(order),
    "tofile": lambda self, *args: _host_value("x.tofile()", self).tofile(*args),
    "dump": lambda self, file: _host_value("x.dump()", self).dump(file),
    "dumps": lambda self: _host_value("x.dumps()", self).dumps(),
    "detach": lambda self: Detach(shares_memory=True, writable=True)(self),
    "__jax_array__": property(_jax_array),
    "T": property(shapes.transpose),
    "mT": property(shapes.matrix_transpose),
    "conj": _conj,
    "conjugate": _conj,
    "real": property(floating_point.real, _part_setter(floating_point.real)),
    "imag": property(floating_point.imag, _part_setter(floating_point.imag)),
    "at": property(indexing.At),
    "itemsize": property(lambda self: self.dtype.itemsize),
    "nbytes": property(lambda self: self.size * self.dtype.itemsize),
}.items():
    setattr(Tracer, _name, _fun)
