"""Callbacks: Python functions that a program calls with the values of its operands."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from jax.tree_util import PyTreeDef

from functx import ops
from functx.core import tree
from functx.core.caches import IdentityKey
from functx.core.effects import Effect, Effects
from functx.core.errors import (
    ArgumentError,
    CallbackResultError,
    DTypeError,
    MissingRuleError,
    ValueRangeError,
    short_repr,
    type_name,
)
from functx.core.primitive import Primitive
from functx.core.rewriting import Record
from functx.core.samples import f32, i32, sample
from functx.core.tracer import aval_of
from functx.core.types import (
    SHORT_NAMES,
    ShapedArray,
    canonical_dtype,
    is_inexact,
    kind,
    narrow_dtype,
    x64_enabled,
)
from functx.core.typing import (
    Cotangents,
    Dim,
    Function,
    IRValue,
    NumPyArray,
    PyTree,
    Tangent,
    Value,
    Values,
)
from functx.ops.operands import batch_size

if TYPE_CHECKING:
    from functx.lowering.stablehlo_emitter import LoweringContext

Array = np.ndarray[Any, Any]


class FlatCallback:
    """A Python function of pytrees, called with the flat list of their leaves that are arrays.

    `static` holds the other leaves with their positions. Equal instances make the same calls, so
    that a program compiled for one serves the other.
    """

    def __init__(
        self,
        fun: Callable[..., Any],
        in_tree: PyTreeDef,
        static: Sequence[tuple[int, Any]] = (),
        out_tree: PyTreeDef | None = None,
    ):
        self.fun, self.in_tree, self.static, self.out_tree = fun, in_tree, tuple(static), out_tree
        # Results are narrowed to 32 bits only while 64-bit types are off.
        self.narrow = not x64_enabled()
        self.__name__ = callback_name(fun)
        parts = tuple([(i, type(x), _hashable_key(x)) for i, x in self.static])
        self.key = _hashable_key(fun), in_tree, parts, out_tree, self.narrow

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, FlatCallback) and self.key == other.key)

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return f"<{self.__name__}>"

    def arguments(self, arrays: Sequence[Any]) -> tuple[Any, Any]:
        """The positional and keyword arguments of the call for the leaves that are arrays."""
        leaves = list(arrays)
        for i, x in self.static:
            leaves.insert(i, x)
        args, kwargs = tree.unflatten(self.in_tree, leaves)
        return args, kwargs

    def __call__(self, arrays: Sequence[Array], results: Sequence[ShapedArray]) -> list[Array]:
        """The leaves of the result, which must be of the types `results`."""
        args, kwargs = self.arguments(arrays)
        out = self.fun(*args, **kwargs)
        if self.out_tree is None:
            return []
        leaves, structure = tree.flatten(out)
        if structure != self.out_tree and _list_tuple_agnostic(structure) != _list_tuple_agnostic(
            self.out_tree
        ):
            raise CallbackResultError(
                f"{self.__name__}: the callback must return the structure of "
                f"result_shape_dtypes; got {tree.describe_difference(self.out_tree, structure)}",
                *tree.full_structures(self.out_tree, structure),
            )
        return [
            self.check_leaf(x, aval, out, i)
            for i, (x, aval) in enumerate(zip(leaves, results, strict=True))
        ]

    def check_leaf(self, x: object, aval: ShapedArray, out: object, position: int) -> Array:
        """The leaf `x` of the result `out` as an array of `aval`."""
        array = np.asarray(x)
        dtype = narrow_dtype(array.dtype) if self.narrow else array.dtype
        is_number = (
            type(x) in _KIND_OF_PYTHON_TYPE
            and _KIND_OF_PYTHON_TYPE[type(x)] in _ACCEPTED_KINDS[kind(aval.dtype)]
        )
        if array.shape != aval.shape or (dtype != aval.dtype and not is_number):
            paths = tree.leaves_with_path(out)
            raise CallbackResultError(
                f"{self.__name__}: the callback must return what result_shape_dtypes says; "
                f"got {type_name(x)} for result{tree.keystr(paths[position][0])}: {aval!r}",
                fix="Convert it in the callback (numpy.asarray(x, dtype)), or state its type.",
            )
        return np.asarray(array, aval.dtype)


_KIND_OF_PYTHON_TYPE = {bool: "b", int: "i", float: "f", complex: "c"}
_ACCEPTED_KINDS = {"b": "b", "u": "bi", "i": "bi", "f": "bif", "c": "bifc"}


class SequentialCallback(Record):
    """A callback called once for each of `size` batch elements, one after the other.

    `dims[i]` is the batch dimension of array i, None if it has none. The results are stacked.
    """

    callback: Function
    size: int
    dims: tuple[int | None, ...]

    @property
    def __name__(self) -> str:
        return str(self.callback.__name__)

    def __call__(self, arrays: Sequence[Array], results: Sequence[ShapedArray]) -> list[Array]:
        batched_arrays = [
            x if dim is None else np.moveaxis(x, dim, 0)
            for x, dim in zip(arrays, self.dims, strict=True)
        ]
        avals = [a.update(shape=a.shape[1:]) for a in results]
        outs = [np.empty(a.shape, a.dtype) for a in results]
        for i in range(self.size):
            args = [
                x if dim is None else np.asarray(x[i])
                for x, dim in zip(batched_arrays, self.dims, strict=True)
            ]
            for out, result in zip(outs, self.callback(args, avals), strict=True):
                out[i] = result
        return outs


def callback_name(fun: Function) -> str:
    """The name of a function, without the partial applications around it."""
    while isinstance(fun, partial):
        fun = fun.func
    name = getattr(fun, "__name__", None) or type(fun).__name__
    return "lambda" if name == "<lambda>" else str(name)


def _hashable_key(value: object) -> Hashable:
    """A hashable key of `value`; functions of equal code are equal if they share all they refer to."""
    if type(value) is FunctionType:
        defaults, named = value.__defaults__ or (), value.__kwdefaults__ or {}
        shared = (value.__globals__, *(value.__closure__ or ()), *defaults, *named.values())
        return value.__code__, len(defaults), tuple(named), *map(IdentityKey, shared)
    try:
        hash(value)
    except TypeError:
        return IdentityKey(value)
    return value


def _list_tuple_agnostic(structure: PyTreeDef) -> str:
    """The text of a structure, with lists and tuples written the same."""
    return str(structure).replace("[", "(").replace("]", ")").replace(",)", ")")


VMAP_METHODS = ("sequential", "sequential_unrolled", "expand_dims", "broadcast_all")


class HostPrimitive(Primitive, abstract=True):
    """An operation that Python computes while the program runs, by its method `run`."""

    multiple_results = True
    no_cse = True

    @property
    def display_name(self) -> str:
        """The name in messages."""
        raise NotImplementedError

    def run(self, *arrays: NumPyArray) -> list[Any]:
        """The outputs for operands that are NumPy arrays."""
        raise NotImplementedError


class HostCallback(HostPrimitive, abstract=True):
    """A call of `callback` with the operands, which returns arrays of the types `results`."""

    callback: FlatCallback | SequentialCallback
    results: tuple[ShapedArray, ...] = ()

    def abstract_eval(self, *avals: ShapedArray) -> Sequence[ShapedArray]:
        return self.results

    @property
    def display_name(self) -> str:
        return self.callback.__name__

    def run(self, *arrays: NumPyArray) -> list[Any]:
        return self.callback(arrays, self.results)

    def jvp(self, primals: Values, tangents: Sequence[Tangent]) -> tuple[Values, Sequence[Tangent]]:
        tangents_given = [t for t in tangents if t is not None]
        return self(*primals), [
            NoDerivative(self.name, self.callback, a)(*tangents_given)
            if is_inexact(a.dtype)
            else None
            for a in self.results
        ]

    def vjp(
        self, cts: Cotangents, saved: object, args: Values, active: Sequence[bool]
    ) -> Cotangents:
        tangents_given = [ct for ct in cts if ct is not None]
        return [
            NoDerivative(self.name, self.callback, aval_of(x))(*tangents_given) if on else None
            for x, on in zip(args, active, strict=True)
        ]

    def sequential_params(self, args: Values, dims: Sequence[int | None]) -> dict[str, Any]:
        """The parameters of one call that runs the callback for each element of a batch."""
        size = batch_size(args, dims)
        return {
            "callback": SequentialCallback(self.callback, size, tuple(dims)),
            "results": tuple([a.update(shape=(size, *a.shape)) for a in self.results]),
        }

    def lower(self, ctx: LoweringContext, *values: IRValue) -> Sequence[IRValue]:
        return ctx.callback(self, values)


def _returns_operand(x: Value) -> Value:
    return x


def _example(results: int) -> FlatCallback:
    in_tree, out_tree = tree.structure(((0,), {})), tree.structure((0,) * results)
    fun = _returns_operand if results == 1 else lambda x: ()
    return FlatCallback(fun, in_tree, (), tree.structure(0) if results == 1 else out_tree)


class PureCallback(HostCallback):
    """A call of a function without effects, which may happen any number of times."""

    vmap_method: str | None = None
    samples = (
        sample(
            i32[3], callback=_example(1), results=(i32[3],), vmap_method="sequential",
            dtypes=("i32",),
        ),
    )  # fmt: skip

    def batch(self, args: Values, dims: Sequence[Dim]) -> tuple[Values, Sequence[Dim]]:
        method = self.vmap_method
        if method is None:
            raise MissingRuleError(
                f"pure_callback({self.callback.__name__}): a vmap_method must be given to map over "
                "a callback; got None",
                fix="Pass vmap_method=" + ", ".join(map(repr, VMAP_METHODS[:-1]))
                + f" or {VMAP_METHODS[-1]!r}.",
            )  # fmt: skip
        if method.startswith("sequential"):
            params = self.sequential_params(args, dims)
        else:
            size = batch_size(args, dims)
            length = size if method == "broadcast_all" else 1
            args = [
                ops.broadcast_in_dim(x, (length, *x.shape), tuple(range(1, x.ndim + 1)))
                if d is None
                else ops.batch_dim_at(x, d, 0, size)
                for x, d in zip(args, dims, strict=True)
            ]
            results = tuple([a.update(shape=(size, *a.shape)) for a in self.results])
            params = {"callback": self.callback, "results": results}
        return PureCallback(vmap_method=method, **params)(*args), [0] * len(self.results)


class IoCallback(HostCallback):
    """A call of a function with effects, exactly once, in program order if `ordered`."""

    ordered: bool = False
    samples = (
        sample(i32[3], callback=_example(1), results=(i32[3],), dtypes=("i32",)),
        sample(i32[3], callback=_example(1), results=(i32[3],), ordered=True, dtypes=("i32",)),
    )

    @property
    def effects(self) -> Effects:  # type: ignore[override]
        return _ORDERED if self.ordered else _UNORDERED

    def batch(self, args: Values, dims: Sequence[Dim]) -> tuple[Values, Sequence[Dim]]:
        params = self.sequential_params(args, dims)
        return IoCallback(ordered=self.ordered, **params)(*args), [0] * len(self.results)


class DebugCallback(HostCallback):
    """A call of a function that only observes values: a derivative calls it with the primals alone."""

    ordered: bool = False
    differentiable = False
    samples = (
        sample(f32[3], callback=_example(0)),
        sample(f32[3], callback=_example(0), ordered=True),
    )

    @property
    def effects(self) -> Effects:  # type: ignore[override]
        return _ORDERED if self.ordered else _UNORDERED

    def batch(self, args: Values, dims: Sequence[Dim]) -> tuple[Values, Sequence[Dim]]:
        return DebugCallback(ordered=self.ordered, **self.sequential_params(args, dims))(*args), []


_UNORDERED, _ORDERED = frozenset([Effect.CALLBACK]), frozenset([Effect.ORDERED])


class NoDerivative(Primitive, abstract=True):
    """A placeholder for a tangent or cotangent that does not exist; lowering it is an error.

    It is linear in its operands, so that dead-code elimination removes it where no result needs it.
    """

    operation: str
    callback: FlatCallback | SequentialCallback
    result: ShapedArray
    name: ClassVar[str] = "no_derivative"

    def abstract_eval(self, *avals: ShapedArray) -> ShapedArray:
        return self.result

    def jvp(self, primals: Values, tangents: Sequence[Tangent]) -> tuple[Value, Tangent]:
        tangents_given = [t for t in tangents if t is not None]
        return self(*primals), self(*tangents_given)

    def transpose(self, ct: Value, *args: Value) -> Cotangents:
        raise no_derivative_error(self.operation, self.callback)

    def batch(self, args: Values, dims: Sequence[Dim]) -> tuple[Value, Dim]:
        size = batch_size(args, dims)
        result = self.result.update(shape=(size, *self.result.shape))
        return NoDerivative(self.operation, self.callback, result)(*args), 0

    def lower(self, ctx: LoweringContext, *values: IRValue) -> IRValue:
        error = no_derivative_error(self.operation, self.callback)
        error.source = ctx.source
        raise error


def no_derivative_error(operation: str, callback: Function) -> MissingRuleError:
    """The error for a derivative through a callback."""
    return MissingRuleError(
        f"{operation}({callback.__name__}): a callback must stand in a function with a derivative "
        "rule to be differentiated; got one whose result a derivative needs",
        fix="Wrap it in functx.custom_jvp or functx.custom_vjp with a rule, or use "
        "functx.stop_gradient of its result.",
    )


def pure_callback(
    callback: Callable[..., Any],
    result_shape_dtypes: PyTree,
    *args: PyTree,
    vmap_method: str | None = None,
    **kwargs: PyTree,
) -> Value:
    """The result of the Python function `callback`, called when the program runs.

    It gets NumPy arrays in the pytrees of `args` and `kwargs`, and must return a pytree like
    `result_shape_dtypes`, whose leaves have a shape and a dtype. It must have no effects: it
    may be called again, or not at all. Under `vmap`, the method "sequential" calls it for each
    batch element, "expand_dims" calls it once with a leading axis in every argument, of length 1 in
    arguments that are not batched, and "broadcast_all" once with that axis at its full length.

    Raises CallbackResultError for another result, MissingRuleError when differentiated
    outside of `custom_jvp` and `custom_vjp`, or mapped without a `vmap_method`.

    >>> import functx, jax, numpy
    >>> def cumulative(x):
    ...     return numpy.cumsum(x)
    >>> x = numpy.arange(3.0)
    >>> functx.jit(lambda x: functx.pure_callback(cumulative, x, x) + 1)(x).tolist()
    [1.0, 2.0, 4.0]
    """
    check_callback("pure_callback", callback)
    if vmap_method is not None and vmap_method not in VMAP_METHODS:
        raise ValueRangeError(
            f"pure_callback({callback_name(callback)}): vmap_method must be one of "
            f"{', '.join(map(repr, VMAP_METHODS))} or None; got {vmap_method!r}"
        )
    results, out_tree = _result_avals("pure_callback", callback, result_shape_dtypes)
    host, leaves = flat_callback("pure_callback", callback, args, kwargs, out_tree)
    return tree.unflatten(out_tree, PureCallback(host, results, vmap_method)(*leaves))


def io_callback(
    callback: Callable[..., Any],
    result_shape_dtypes: PyTree,
    *args: PyTree,
    ordered: bool = False,
    **kwargs: PyTree,
) -> Value:
    """`pure_callback` for a function with effects, which is called exactly once.

    With `ordered` it is called after every earlier ordered callback has returned, in the same
    program or in one that ran before. `vmap` calls it for each batch element in turn. A
    derivative does not call it again. `result_shape_dtypes` is None where it returns nothing.

    Raises CallbackResultError for another result, MissingRuleError when its result matters
    to a derivative.

    >>> import functx, numpy
    >>> state = iter(range(10))
    >>> count = lambda: numpy.int32(next(state))
    >>> [int(functx.io_callback(count, numpy.int32(0))) for _ in range(3)]
    [0, 1, 2]
    """
    check_callback("io_callback", callback)
    results, out_tree = _result_avals("io_callback", callback, result_shape_dtypes)
    host, leaves = flat_callback("io_callback", callback, args, kwargs, out_tree)
    return tree.unflatten(out_tree, IoCallback(host, results, bool(ordered))(*leaves))


def check_callback(operation: str, callback: Function) -> None:
    """Raise ArgumentError unless `callback` can be called."""
    if not callable(callback):
        raise ArgumentError(
            f"{operation}: the callback must be a function; got {type_name(callback)} "
            f"{short_repr(callback)[:60]}",
            fix="Pass the function itself, not the result of a call.",
        )


def flat_callback(
    operation: str,
    callback: Callable[..., Any],
    args: tuple[PyTree, ...],
    kwargs: dict[str, PyTree],
    out_tree: PyTreeDef | None = None,
    static_too: bool = False,
) -> tuple[FlatCallback, list[Any]]:
    """`callback` as a parameter, and the operands to call it with.

    With `static_too`, leaves that are no arrays are handed to it as they are.
    """
    leaves = tree.flatten_with_key_data((args, kwargs))[0]
    in_tree = tree.structure((args, kwargs))
    operands, static = [], []
    for i, x in enumerate(leaves):
        try:
            aval_of(x)
        except (ArgumentError, OverflowError):
            if not static_too:
                raise _not_an_array_error(operation, callback, (args, kwargs), i) from None
            static.append((i, x))
        else:
            operands.append(x)
    return FlatCallback(callback, in_tree, static, out_tree), operands


def _not_an_array_error(
    operation: str, callback: Function, call: object, position: int
) -> ArgumentError:
    (entry, first, *rest), x = tree.leaves_with_path(call)[position]
    base = first.key if entry.idx else f"args[{first.idx}]"
    return ArgumentError(
        f"{operation}({callback_name(callback)}): arguments must be arrays, numbers or pytrees of "
        f"them; got {type_name(x)} for `{base}{tree.keystr(tuple(rest))}`",
        fix="Put what is no array into the function (functools.partial, a closure).",
    )


def _result_avals(
    operation: str, callback: Function, result_shape_dtypes: PyTree
) -> tuple[tuple[ShapedArray, ...], Any]:
    """The types and the structure of a result, which `result_shape_dtypes` stands for."""
    leaves, out_tree = tree.flatten(result_shape_dtypes)
    types = [
        _result_aval(operation, callback, x, i, result_shape_dtypes) for i, x in enumerate(leaves)
    ]
    return tuple(types), out_tree


def _result_aval(
    operation: str, callback: Function, x: PyTree, i: int, types: object
) -> ShapedArray:
    def where() -> str:
        return f"result_shape_dtypes{tree.keystr(tree.leaves_with_path(types)[i][0])}"

    if type(x) is ShapedArray:
        shape, dtype = x.shape, x.dtype
    elif hasattr(x, "shape") and hasattr(x, "dtype"):
        shape, dtype = tuple(x.shape), x.dtype
    else:
        raise ArgumentError(
            f"{operation}({callback_name(callback)}): result_shape_dtypes must have leaves with a shape "
            f"and a dtype; got {type_name(x)} for `{where()}`",
            fix="Use jax.ShapeDtypeStruct(shape, dtype), or an array of that type.",
        )
    if dtype not in SHORT_NAMES or canonical_dtype(dtype) != dtype:
        raise DTypeError(
            f"{operation}({callback_name(callback)}): a result must have a dtype of functx; "
            f"got {dtype} for `{where()}`"
            + (" while 64-bit types are off" if dtype in SHORT_NAMES else ""),
            fix="Ask for one of 32 bits, or switch 64-bit types on (jax_enable_x64)."
            if dtype in SHORT_NAMES
            else "Ask for a dtype of numbers or booleans.",
        )
    return ShapedArray(shape, canonical_dtype(dtype))
