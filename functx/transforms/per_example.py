"""`per_example_grad`, `per_example_norms` and `clipped_sum`: derivatives of each example of a batch."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

from functx import ops
from functx.core import tree
from functx.core.errors import GradientError, InAxesError, ValueRangeError
from functx.core.tracer import aval_of
from functx.core.types import is_complex
from functx.core.typing import ArrayLike, Function, PyTree, Value
from functx.ops.operands import cast_like, upcast_half
from functx.transforms.argument_names import (
    check_callable,
    copy_function_metadata,
    function_name,
    wrap_transform,
)
from functx.transforms.grad import Argnums, canonical_argnums, grad
from functx.transforms.vmap import vmap

Axes = tuple[PyTree, ...] | None


def per_example_grad(
    loss: Function,
    argnums: Argnums = 0,
    *,
    in_axes: Axes = None,
    has_aux: bool = False,
    as_batches: bool = False,
) -> Function:
    """The function that computes the gradient of `loss` for each example of a batch.

    The arguments that are not in `argnums` hold the examples along their first axis, or along
    `in_axes`, an entry for each argument as for `vmap`; those in `argnums` are shared. Keyword
    arguments hold examples as well. Each gradient has the axis of the examples first. `loss` takes
    one example; with `as_batches` it takes a batch of one, as layers that expect batches need. With
    `has_aux`, `loss` returns `(value, aux)`, and the result is `(gradients, aux)`.

    Raises InAxesError if `in_axes` has not an entry for each argument, and the errors of `grad` and
    `vmap`.

    >>> import functx, numpy
    >>> loss = lambda w, x: (w * x).sum() ** 2
    >>> functx.per_example_grad(loss)(numpy.ones(2), numpy.array([[1.0, 0.0], [1.0, 2.0]])).tolist()
    [[2.0, 0.0], [6.0, 12.0]]
    """
    check_callable(loss, "per_example_grad")
    gradients = _gradients(loss, "per_example_grad", argnums, in_axes, as_batches, has_aux)
    return wrap_transform(gradients, loss, "per_example_grad")


def per_example_norms(
    loss: Function, argnums: Argnums = 0, *, in_axes: Axes = None, as_batches: bool = False
) -> Function:
    """The function that computes the 2-norm of the gradient of `loss` for each example of a batch.

    The norm is that of all leaves of all arguments in `argnums` together, an array with an element
    for each example. Gradients are not formed where their norms cost less without them (Goodfellow
    2015; for sequences and convolutions Bu, Mao and Xu 2022); `functx.tools.products` shows the
    choice for each layer. See `per_example_grad` for the arguments.

    >>> import functx, numpy
    >>> loss = lambda w, x: (w * x).sum()
    >>> functx.per_example_norms(loss)(numpy.ones(2), numpy.array([[3.0, 4.0], [0.0, 2.0]])).tolist()
    [5.0, 2.0]
    """
    check_callable(loss, "per_example_norms")
    gradients = _gradients(loss, "per_example_norms", argnums, in_axes, as_batches)

    def norms(*args: PyTree, **kwargs: PyTree) -> Value:
        return _norms("per_example_norms", tree.leaves(gradients(*args, **kwargs)))

    return wrap_transform(norms, loss, "per_example_norms")


def clipped_sum(
    loss: Function,
    max_norm: ArrayLike,
    argnums: Argnums = 0,
    *,
    in_axes: Axes = None,
    as_batches: bool = False,
    with_norms: bool = False,
) -> Function:
    """The function that sums the gradients of `loss` over a batch, each clipped to a norm.

    The gradient of an example is multiplied by `min(1, max_norm / norm)`, where the norm is that of
    all its leaves (Abadi et al. 2016, section 3.1). The result has the structure of the arguments in
    `argnums`; with `with_norms` it is `(sum, norms)`, with the norms before clipping. As for
    `per_example_norms`, gradients are formed only where that costs less. A gradient with a nan makes
    the sum nan. See `per_example_grad` for the other arguments.

    Raises ValueRangeError for a `max_norm` that is a negative number.

    >>> import functx, numpy
    >>> loss = lambda w, x: (w * x).sum()
    >>> xs = numpy.array([[3.0, 4.0], [0.0, 2.0]])
    >>> functx.clipped_sum(loss, 2.5)(numpy.ones(2), xs).tolist()
    [1.5, 4.0]
    """
    check_callable(loss, "clipped_sum")
    if isinstance(max_norm, (int, float)) and not max_norm >= 0:
        raise ValueRangeError(
            f"clipped_sum({function_name(loss)}): max_norm must be no negative number; got {max_norm}"
        )
    gradients = _gradients(loss, "clipped_sum", argnums, in_axes, as_batches)

    def clipped(*args: PyTree, **kwargs: PyTree) -> PyTree:
        leaves, structure = tree.flatten(gradients(*args, **kwargs))
        norms = _norms("clipped_sum", leaves)
        limit = ops.convert_element_type(max_norm, norms.dtype)
        scales = ops.select(ops.le(norms, limit), 1.0, ops.div(limit, norms))
        total = tree.unflatten(structure, [_weighted_sum(scales, x) for x in leaves])
        return (total, norms) if with_norms else total

    return wrap_transform(clipped, loss, "clipped_sum")


def _gradients(
    loss: Function,
    caller: str,
    argnums: Argnums,
    in_axes: Axes,
    as_batches: bool,
    has_aux: bool = False,
) -> Callable[..., Any]:
    numbers = canonical_argnums(argnums, caller)
    shared = numbers if isinstance(numbers, tuple) else (numbers,)
    name = f"{caller}({function_name(loss)})"

    def gradients(*args: PyTree, **kwargs: PyTree) -> PyTree:
        count = len(args)
        axes = in_axes
        if axes is None:
            axes = tuple([None if {i, i - count} & {*shared} else 0 for i in range(count)])
        check_axes(name, axes, count, as_batches)

        def loss_of_batch(*examples: PyTree, **named: PyTree) -> PyTree:
            batches = map(_batch_of_one, examples, axes)
            return loss(*batches, **{k: _batch_of_one(x, 0) for k, x in named.items()})

        of_example = copy_function_metadata(loss_of_batch, loss, caller) if as_batches else loss
        return vmap(grad(of_example, argnums, has_aux), tuple(axes))(*args, **kwargs)

    return gradients


def check_axes(name: str, axes: Axes, count: int, only_ints: bool) -> None:
    """Raise InAxesError unless `axes` has an entry for each argument; an int or None if `only_ints`."""
    if not isinstance(axes, (tuple, list)) or len(axes) != count:
        raise InAxesError(
            f"{name}: in_axes must be a tuple with an entry for each argument; got {axes!r} for "
            f"{count} arguments"
        )
    if only_ints and not all(axis is None or isinstance(axis, int) for axis in axes):
        raise InAxesError(
            f"{name}: in_axes must consist of ints and None with as_batches=True; got {axes!r}"
        )


def _batch_of_one(examples: PyTree, axis: int | None) -> PyTree:
    """A pytree with a new axis of length 1 in place of the one that was mapped over."""
    if axis is None:
        return examples

    def with_axis(x: ArrayLike) -> Value:
        shape = aval_of(x).shape
        at = axis % (len(shape) + 1)
        return ops.reshape(x, (*shape[:at], 1, *shape[at:]))

    return tree.map(with_axis, examples)


def _norms(caller: str, gradients: list[Value]) -> Value:
    """The 2-norm of all leaves together at each index of their first axis, in the widest dtype."""
    squares = [_sums_of_squares(x) for x in gradients if x is not None]
    if not squares:
        raise GradientError(f"{caller}: the arguments at argnums must hold arrays; got none")
    dtype = max([x.dtype for x in squares], key=lambda d: d.itemsize)
    return ops.sqrt(reduce(ops.add, [ops.convert_element_type(x, dtype) for x in squares]))


def _sums_of_squares(x: Value) -> Value:
    if is_complex(x.dtype):
        x = ops.abs(x)
    axes = tuple(range(1, x.ndim))
    return ops.reduce_sum(ops.square(upcast_half(x)), axes)


def _weighted_sum(scales: Value, x: Value) -> Value:
    """The sum of the rows of `x`, each times its scale."""
    return ops.DotGeneral(((0,), (0,)), ((), ()))(cast_like(scales, x), x)
