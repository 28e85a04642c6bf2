"""Functions applied along axes of arrays, or to all elements: `vectorize`, `apply_along_axis`."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from functools import wraps
from typing import Any, NamedTuple

from functx.core import tree
from functx.core.errors import ArgumentError, ShapeError, ValueRangeError
from functx.core.tracer import aval_of
from functx.core.types import Shape
from functx.core.typing import ArrayOrList, PyTree, Value
from functx.numpy.array_creation import asarray
from functx.numpy.promotion import broadcast_shapes
from functx.numpy.shapes import expand_dims, reshape
from functx.ops.operands import canonical_axis
from functx.transforms.vmap import vmap

__all__ = ["apply_along_axis", "apply_over_axes", "vectorize"]


class CoreDims(NamedTuple):
    """The names of the core dimensions of each argument and of each result of a vectorized function."""

    inputs: tuple[tuple[str, ...], ...]
    outputs: tuple[tuple[str, ...], ...]


_ARGUMENT = r"\((?:\w+(?:,\w+)*)?\)"
_SIGNATURE = re.compile(rf"({_ARGUMENT}(?:,{_ARGUMENT})*)?->({_ARGUMENT}(?:,{_ARGUMENT})*)")


def _parse_signature(signature: str) -> CoreDims:
    """The core dimensions that a text such as `(n,k),(k)->(n)` names."""
    match = _SIGNATURE.fullmatch(re.sub(r"\s", "", signature))
    if match is None:
        raise ValueRangeError(
            f'vectorize: signature must be a text such as "(n,k),(k)->(n)"; got {signature!r}'
        )
    sides = [re.findall(_ARGUMENT, side or "") for side in match.groups()]
    return CoreDims(*[tuple([tuple(re.findall(r"\w+", x)) for x in side]) for side in sides])


def vectorize(
    pyfunc: Callable[..., Any],
    *,
    excluded: Collection[int | str] = frozenset(),
    signature: str | None = None,
) -> Callable[..., Any]:
    """`pyfunc`, a function of numbers, as one of arrays that broadcast together.

    With a `signature` such as `(n,k),(k)->(n)`, it is a function of arrays with these dimensions, which are
    the last ones of each argument and result. Arguments in `excluded`, by position or name, are passed as
    they are, and so is None.

    >>> import functx.numpy as np
    >>> product = np.vectorize(np.dot, signature="(n,k),(k)->(n)")
    >>> product(np.ones((5, 2, 3)), np.ones(3)).shape
    (5, 2)
    """
    for item in excluded:
        if not isinstance(item, (int, str)) or (isinstance(item, int) and item < 0):
            raise ArgumentError(
                "vectorize: excluded must hold names, and positions that are not negative; got "
                f"{excluded!r}"
            )
    core_dims = None if signature is None else _parse_signature(signature)

    @wraps(pyfunc)
    def call(*args: Any, **kwargs: Any) -> PyTree:
        mapped = [i for i, x in enumerate(args) if i not in excluded and x is not None]
        names = [name for name, x in kwargs.items() if name not in excluded and x is not None]

        def fun(*values: object) -> PyTree:
            positional = list(args)
            for i, x in zip(mapped, values, strict=False):
                positional[i] = x
            named = dict(zip(names, values[len(mapped) :], strict=True))
            return pyfunc(*positional, **{**kwargs, **named})

        values = [
            asarray(x) for x in (*[args[i] for i in mapped], *[kwargs[name] for name in names])
        ]
        return _call_mapped(fun, values, core_dims)

    return call


def _call_mapped(
    fun: Callable[..., Any], args: Sequence[Value], core_dims: CoreDims | None
) -> PyTree:
    """`fun` mapped over all dimensions of `args` but their core dimensions."""
    if core_dims is None:
        checked, ranks = fun, [0] * len(args)
    else:
        if len(args) != len(core_dims.inputs):
            raise ArgumentError(
                f"vectorize: there must be an argument for each of {len(core_dims.inputs)} in the "
                f"signature; got {len(args)}"
            )
        lengths = _core_lengths(args, core_dims.inputs)
        checked = _with_checked_results(fun, core_dims.outputs, lengths)
        ranks = [len(names) for names in core_dims.inputs]
    batches = [x.shape[: x.ndim - rank] for x, rank in zip(args, ranks, strict=True)]
    batch: Shape = broadcast_shapes(*batches) if batches else ()
    # Dimensions along which an argument is not mapped are left out of it.
    axes: list[list[int | None]] = [[None] * len(args) for _ in batch]
    operands = []
    for i, (x, shape) in enumerate(zip(args, batches, strict=True)):
        kept = []
        for d, n in enumerate(shape, len(batch) - len(shape)):
            if n == batch[d]:
                axes[d][i] = 0
                kept.append(n)
        operands.append(reshape(x, (*kept, *x.shape[len(shape) :])))
    for in_axes in reversed(axes):
        checked = vmap(checked, in_axes=tuple(in_axes))
    return checked(*operands)


def _core_lengths(args: Sequence[Value], names: Sequence[tuple[str, ...]]) -> dict[str, int]:
    """The length of each core dimension of the arguments."""
    lengths: dict[str, int] = {}
    for x, dims in zip(args, names, strict=True):
        if x.ndim < len(dims):
            raise ShapeError(
                f"vectorize: an argument must have the core dimensions ({','.join(dims)}); got "
                f"{aval_of(x)!r}"
            )
        _match_lengths("argument", x.shape[x.ndim - len(dims) :], dims, lengths)
    return lengths


def _match_lengths(kind: str, shape: Shape, dims: Sequence[str], lengths: dict[str, int]) -> None:
    """Add the `lengths` of core dimensions; raises ShapeError for one with two lengths."""
    for name, n in zip(dims, shape, strict=True):
        expected = lengths.setdefault(name, int(name) if name.isdigit() else n)
        if expected != n:
            raise ShapeError(
                f"vectorize: the core dimension {name!r} must have one length; got {expected} and {n}, "
                f"in an {kind} whose core dimensions ({','.join(dims)}) are {shape}"
            )


def _with_checked_results(
    fun: Callable[..., Any], names: Sequence[tuple[str, ...]], lengths: dict[str, int]
) -> Callable[..., Any]:
    """`fun`, whose results must have the core dimensions that the signature gives them."""

    def call(*args: Value) -> PyTree:
        out = fun(*args)
        results = list(out) if isinstance(out, (tuple, list)) else [out]
        if len(results) != len(names):
            raise ArgumentError(
                f"vectorize: the function must return the {len(names)} results of the signature; got "
                f"{len(results)}"
            )
        found = dict(lengths)
        for x, dims in zip(results, names, strict=True):
            shape = aval_of(x).shape
            if len(shape) != len(dims):
                raise ShapeError(
                    f"vectorize: a result must have the core dimensions ({','.join(dims)}); got "
                    f"{aval_of(x)!r}"
                )
            _match_lengths("output", shape, dims, found)
        return out

    return call


def apply_along_axis(
    func1d: Callable[..., Any], axis: int, arr: ArrayOrList, *args: object, **kwargs: object
) -> PyTree:
    """`func1d(vector, *args, **kwargs)` of each vector of `arr` along `axis`.

    The dimensions of its results are in the place of `axis`.

    >>> import functx.numpy as np
    >>> np.apply_along_axis(np.diff, 1, np.arange(6).reshape(2, 3)).tolist()
    [[1, 1], [1, 1]]
    """
    x = asarray(arr)
    axis = canonical_axis(axis, x.ndim, "apply_along_axis: axis")

    def fun(vector: Value) -> PyTree:
        return tree.map(asarray, func1d(vector, *args, **kwargs))

    for _ in range(axis + 1, x.ndim):
        fun = vmap(fun, in_axes=-1, out_axes=-1)
    for _ in range(axis):
        fun = vmap(fun)
    return fun(x)


def apply_over_axes(
    func: Callable[[Value, int], Value], a: ArrayOrList, axes: int | Sequence[int]
) -> Value:
    """`func(a, axis)` for each of the `axes` in turn, whose results keep or lose the axis."""
    x = asarray(a)
    ndim = x.ndim
    for axis in axes if isinstance(axes, (tuple, list)) else (axes,):
        axis = canonical_axis(axis, ndim, "apply_over_axes: axis")  # type: ignore[arg-type]
        result = func(x, axis)
        x = expand_dims(result, axis) if aval_of(result).ndim == ndim - 1 else result
        if aval_of(x).ndim != ndim:
            raise ShapeError(
                "apply_over_axes: results must have as many dimensions as the array, or one less; got "
                f"{aval_of(result)!r} for {ndim} dimensions"
            )
    return x
