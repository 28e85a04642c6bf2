"""`grad`, `value_and_grad` and `grad_and_value`: the derivatives of scalar functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import index
from typing import Any, NamedTuple

from functx.core import tree
from functx.core.backend import backend
from functx.core.errors import ArgnumsError, GradientError
from functx.core.masks import scatter_where
from functx.core.rewriting import apply
from functx.core.types import DType, Shape, is_complex, is_inexact
from functx.core.typing import Function, PyTree, Value, Values
from functx.core.wrapper_axes import integers_beside_inexact, wrapper_spans
from functx.transforms.aliasing import copy_transform_results
from functx.transforms.argument_names import (
    argument_names,
    as_decorator,
    check_callable,
    function_name,
    wrap_transform,
)
from functx.transforms.tangents import unflatten_tangents
from functx.transforms.tracing_api import TracedFunction, partition_static_arguments, trace_function

Argnums = int | Sequence[int]


def grad(
    fun: Function | None = None,
    argnums: Argnums = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Function:
    """The function that computes the gradient of `fun`, which returns a real scalar.

    The gradient has the structure, shapes and dtypes of the argument at `argnums`; for a tuple of
    `argnums`, it is a tuple of such gradients. With `has_aux`, `fun` returns `(value, aux)`, and
    the result is `(gradient, aux)`. `holomorphic` declares that `fun` is complex-differentiable in
    complex arguments. With `allow_int`, integer arguments are accepted, with a gradient of None.
    Integers beside floats in an `ArrayWrapper` are always accepted; its gradient holds zeros for them.
    Keyword arguments are passed on and not differentiated. A Python int counts as a float.

    Raises GradientError if the output is no scalar or an argument is not inexact, and ArgnumsError
    if `argnums` names no argument.

    >>> import functx
    >>> float(functx.grad(lambda x: x ** 3)(2.0))
    12.0
    """
    if fun is None:
        return as_decorator(grad, locals())
    check_callable(fun, "grad")
    return make_gradient_function(fun, argnums, has_aux, holomorphic, allow_int)


def value_and_grad(
    fun: Function | None = None,
    argnums: Argnums = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Function:
    """The function that computes `(fun(...), gradient)`; see `grad` for the arguments.

    With `has_aux`, the result is `((value, aux), gradient)`.

    >>> import functx
    >>> value, slope = functx.value_and_grad(lambda x: x ** 3)(2.0)
    >>> float(value), float(slope)
    (8.0, 12.0)
    """
    if fun is None:
        return as_decorator(value_and_grad, locals())
    check_callable(fun, "value_and_grad")
    return make_gradient_function(
        fun, argnums, has_aux, holomorphic, allow_int, kind="value_and_grad"
    )


def grad_and_value(
    fun: Function | None = None,
    argnums: Argnums = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Function:
    """The function that computes `(gradient, fun(...))`, in PyTorch's order; see `grad` for the arguments.

    With `has_aux`, the result is `(gradient, (value, aux))`.

    >>> import functx
    >>> slope, value = functx.grad_and_value(lambda x: x ** 3)(2.0)
    >>> float(slope), float(value)
    (12.0, 8.0)
    """
    if fun is None:
        return as_decorator(grad_and_value, locals())
    check_callable(fun, "grad_and_value")
    return make_gradient_function(
        fun, argnums, has_aux, holomorphic, allow_int, kind="grad_and_value"
    )


def make_gradient_function(
    fun: Function,
    argnums: Argnums,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    kind: str = "grad",
) -> Function:
    """The result of the transform `kind` of `fun`, by default `grad`; messages name it."""
    differentiated = DifferentiatedFunction(
        fun,
        fun,
        kind,
        canonical_argnums(argnums, kind),
        is_complex if holomorphic else is_inexact,
        "complex (holomorphic=True)" if holomorphic else "of a floating point dtype",
        "Convert it (`functx.numpy.asarray({name}, float)`), choose other argnums, or pass "
        "allow_int=True.",
        has_aux,
        allow_int,
    )
    with_value = kind in ("value_and_grad", "grad_and_value")

    def wrapper(*args: PyTree, **kwargs: PyTree) -> PyTree:
        call = differentiated.trace(args, kwargs)
        traced, operands = call.traced, call.operands
        _check_scalar(traced, kind, fun, has_aux, holomorphic)
        rewrite = backend.gradient_rewrite(call.active, with_value)
        outs = apply(rewrite, traced.program, operands)
        count = len(outs) - sum(call.active)
        # Copied before the arguments are written to: a gradient may be one of them.
        grads = call.unflatten(copy_transform_results(outs[count:], operands))
        results = traced.finish_call(operands, outs[:count])
        if not with_value:
            # The value, the first leaf, was not computed.
            return (
                (grads, tree.unflatten(traced.out_tree, [None, *results])[1]) if has_aux else grads
            )
        primal = tree.unflatten(traced.out_tree, results)
        return (primal, grads) if kind == "value_and_grad" else (grads, primal)

    return wrap_transform(wrapper, fun, kind)


class DifferentiatedCall(NamedTuple):
    """A traced call of a function, to be differentiated in some arguments.

    `active` is the mask of the inputs of the program to differentiate in. `arg_leaves` are the
    positions of the leaves of these arguments, which may also be integers, among the inputs, and
    `structure` is the structure of the derivatives.
    """

    traced: TracedFunction
    operands: list[Value]
    active: tuple[bool, ...]
    arg_leaves: Sequence[int]
    structure: tree.TreeDef

    def unflatten(self, derivatives: Values, out_shape: Shape = ()) -> PyTree:
        """The derivatives of an output in the active inputs as a pytree, with None for integers."""
        by_input = scatter_where(derivatives, self.active)
        in_avals = [self.traced.program.inputs[i].aval for i in self.arg_leaves]
        avals = [a.update(shape=out_shape + a.shape) for a in in_avals] if out_shape else in_avals
        return unflatten_tangents(self.structure, avals, [by_input[i] for i in self.arg_leaves])


class DifferentiatedFunction(NamedTuple):
    """A function to differentiate in the arguments at `argnums`; messages name `shown` instead.

    The dtypes of these must satisfy `accepts`, which the error for another describes as `wanted`;
    in its cure, `fix`, "{name}" stands for the name of the leaf. With `allow_int`, integers are
    accepted too; without it, Python ints count as floats.
    """

    fun: Function
    shown: Function
    kind: str
    argnums: int | tuple[int, ...]
    accepts: Callable[[DType], bool]
    wanted: str
    fix: str
    has_aux: bool
    allow_int: bool

    def trace(self, args: Values, kwargs: dict[str, Any]) -> DifferentiatedCall:
        """The traced call for these arguments."""
        fun, shown, kind = self.fun, self.shown, self.kind
        leaves, in_tree = tree.flatten_with_key_data((args, kwargs))
        arg_leaves, structure = argnums_leaves(args, self.argnums, kind, shown)
        if not self.allow_int:
            convert_ints_to_floats(leaves, arg_leaves)
        leaves, in_tree, avals, arg_leaves = partition_static_arguments(
            leaves, in_tree, kind, shown, arg_leaves
        )
        active = [False] * len(leaves)
        for i in arg_leaves:
            dtype = avals[i].dtype
            active[i] = is_inexact(dtype)
            if not (self.accepts(dtype) or (self.allow_int and not active[i])):
                if integers_beside_inexact(in_tree, avals)[i]:
                    # Such as the integers of a quantised array, beside their scale.
                    continue
                name = argument_names(fun, in_tree, avals)()[i]
                raise GradientError(
                    f"{kind}({function_name(shown)}): differentiated arguments must be {self.wanted}; "
                    f"got {avals[i]!r} for `{name}`",
                    fix=self.fix.format(name=name),
                )
        traced = trace_function(
            fun, in_tree, avals, kind, values=leaves, active=active, has_aux=self.has_aux
        )
        operands = [*leaves, *traced.captured]
        mask = (*active, *[False] * len(traced.captured))
        return DifferentiatedCall(traced, operands, mask, arg_leaves, structure)


def _is_position(n: Any) -> bool:
    """Whether `n` is an integer, also one of NumPy; arrays have the method of integers too."""
    if isinstance(n, (bool, type)):
        return False
    try:
        return index(n) is not None
    except TypeError:
        return False


def canonical_argnums(argnums: Argnums, kind: str) -> int | tuple[int, ...]:
    """`argnums`, an integer or a sequence of integers, as an int or a tuple of ints.

    Raises ArgnumsError for other values.
    """
    several = isinstance(argnums, (tuple, list))
    numbers: Sequence[Any] = argnums if isinstance(argnums, (tuple, list)) else (argnums,)
    if not numbers or not all(map(_is_position, numbers)):
        raise ArgnumsError(
            f"{kind}: argnums must be an int or a non-empty tuple of ints; got {argnums!r}",
            fix=f"To call the result with arguments, write {kind}(f)(x)."
            if hasattr(argnums, "dtype") or isinstance(argnums, (float, dict))
            else "Give the position of the argument, which counts from 0.",
        )
    positions = tuple([index(n) for n in numbers])
    return positions if several else positions[0]


def argnums_leaves(
    args: Values, argnums: Argnums, kind: str, fun: Function
) -> tuple[Sequence[int], tree.TreeDef]:
    """The positions of the leaves of the arguments at `argnums`, and the structure of these.

    Raises ArgnumsError if `argnums` names no positional argument, or one twice.
    """
    numbers = argnums if isinstance(argnums, tuple) else (argnums,)
    count = len(args)
    if any([not -count <= n < count for n in numbers]):
        raise ArgnumsError(
            f"{kind}({function_name(fun)}): argnums must name positional arguments of the call; "
            f"got {argnums} for {count} positional arguments",
            fix="Pass the argument by position; positions count from 0.",
        )
    numbers = tuple([n % count for n in numbers])
    if len(set(numbers)) != len(numbers):
        raise ArgnumsError(f"{kind}({function_name(fun)}): argnums must be distinct; got {argnums}")
    trees = [tree.structure(x) for x in args[: max(numbers) + 1]]
    starts = [0, *accumulate([each.num_leaves for each in trees])]
    arg_leaves = [i for n in numbers for i in range(starts[n], starts[n + 1])]
    if isinstance(argnums, tuple):
        return arg_leaves, tree.treedef_tuple([trees[n] for n in numbers])
    return arg_leaves, trees[numbers[0]]


def convert_ints_to_floats(leaves: list[Any], positions: Sequence[int]) -> list[Any]:
    """`leaves`, with Python ints at `positions` converted to floats, in place."""
    for i in positions:
        if type(leaves[i]) is int:
            leaves[i] = float(leaves[i])
    return leaves


def _check_scalar(
    traced: TracedFunction, kind: str, fun: Function, has_aux: bool, holomorphic: bool
) -> None:
    out_tree = traced.tree_without_aux(has_aux)
    if (spans := wrapper_spans(out_tree)) and spans[0].node == out_tree:
        raise GradientError(
            f"{kind}({function_name(fun)}): the function must return a scalar array; got "
            f"{spans[0].name}, an array made of {out_tree.num_leaves} arrays",
            fix="Return the sum of its inner arrays, or what it stands for; or call the pullback of vjp "
            f"with a {spans[0].name}.",
        )
    label = f"{kind}({function_name(fun)}): the function must return a"
    if out_tree.num_leaves != 1 or out_tree.num_nodes != 1:
        returns_none = tree.root_node_type(out_tree) is type(None)
        raise GradientError(
            f"{label} single scalar; got {'None' if returns_none else f'a pytree {out_tree}'}",
            fix="End it with `return loss`."
            if returns_none
            else "Return the loss alone, or (loss, aux) with has_aux=True.",
        )
    aval = traced.program.outputs[0].aval
    if aval.shape != ():
        raise GradientError(
            f"{label} scalar; got {aval!r}, of {aval.ndim} dimensions",
            fix="Reduce it (`.sum()`, `.mean()`), or use jacrev, jacfwd or vjp.",
        )
    if not is_inexact(aval.dtype) or is_complex(aval.dtype) != holomorphic:
        requirement = (
            "complex scalar (holomorphic=True)" if holomorphic else "real floating point scalar"
        )
        raise GradientError(
            f"{label} {requirement}; got {aval!r}",
            fix="Return a real part or a modulus, or pass holomorphic=True for complex functions."
            if is_complex(aval.dtype)
            else "Return a float: integers and booleans (argmax, comparisons) have no derivative.",
        )
