"""The static methods of a `Function`: their defaults, and the checks of their results."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from functx import ops
from functx.core.errors import (
    FunctionError,
    FunctionGradientError,
    FunctionMethodError,
    GradientTypeError,
    OnceDifferentiableError,
    type_name,
)
from functx.core.tracer import aval_of
from functx.core.types import ShapedArray, is_complex, is_inexact
from functx.core.typing import Value
from functx.custom.rule_results import rule_source
from functx.custom.rule_tracing import is_array

if TYPE_CHECKING:
    from functx.autograd.function_context import FunctionContext
    from functx.custom.operators.primitives import VmapInfo


class FunctionMethods:
    """The methods that a subclass of `Function` defines; the defaults raise FunctionMethodError."""

    generate_vmap_rule = False
    is_opaque = False
    _memo: ClassVar[dict[Hashable, Any]] = {}

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        cls._memo = {}

    @staticmethod
    def forward(*args: Any, **kwargs: Any) -> Any:
        """The output; without `setup_context`, the context is the first argument."""
        raise missing_method("forward")

    @staticmethod
    def setup_context(ctx: FunctionContext, inputs: tuple[Any, ...], output: Any) -> None:
        """Save the inputs and outputs that the derivatives need in `ctx`."""
        raise missing_method("setup_context")

    @staticmethod
    def backward(ctx: FunctionContext, *gradients: Any) -> Any:
        """The gradient of each input, given that of each output."""
        raise missing_method("backward")

    vjp = backward

    @staticmethod
    def jvp(ctx: FunctionContext, *tangents: Any) -> Any:
        """The tangent of each output, given that of each input."""
        raise missing_method("jvp")

    @staticmethod
    def vmap(info: VmapInfo, in_dims: tuple[int | None, ...], *args: Any) -> Any:
        """The outputs for a batch and their batch dimensions, given those of the arguments."""
        raise missing_method("vmap")


def memoize(function: type[FunctionMethods], key: Hashable, make: Callable[[], Any]) -> Any:
    """`make()`, which is called once for each class and key."""
    memo = function._memo
    if key not in memo:
        memo[key] = make()
    return memo[key]


def missing_method(method: str, name: str = "Function") -> FunctionMethodError:
    """The error of a Function without a method that it needs."""
    return FunctionMethodError(
        f"{name}: the static method {method} must be defined for this; got none",
        fix=f"Define it in the subclass (@staticmethod, def {method}).",
    )


def once_error(name: str) -> OnceDifferentiableError:
    """The error of a second derivative of a rule that is marked `once_differentiable`."""
    return OnceDifferentiableError(
        f"{name}: its backward is marked once_differentiable; got a second derivative",
        fix="Take once_differentiable away, if all that backward does can be differentiated.",
    )


def defines(function: type[FunctionMethods], method: str) -> bool:
    """Whether a subclass of Function defines a method."""
    return getattr(function, method) is not getattr(FunctionMethods, method)


def backward_rule(function: type[FunctionMethods]) -> Callable[..., Any] | None:
    """The `backward` or `vjp` of a class, None without one; FunctionError for both."""
    named = [name for name in ("backward", "vjp") if defines(function, name)]
    if len(named) == 2:
        raise FunctionError(
            f"{function.__name__}: backward and vjp are two names of one method; got both",
            fix="Define one of them.",
        )
    return getattr(function, named[0]) if named else None


def check_gradients(
    name: str, rule: Callable[..., Any], results: Any, avals: Sequence[ShapedArray | None]
) -> list[Value | None]:
    """The gradients that `rule` returned for inputs of types `avals`, None if it is not an array.

    A gradient of a shape that the input broadcasts to is summed, and one of another floating-point
    dtype is converted. Further results must be None.
    """
    results = tuple(results) if isinstance(results, (tuple, list)) else (results,)
    while len(results) > len(avals) and results[-1] is None:
        results = results[:-1]
    if len(results) != len(avals):
        raise FunctionGradientError(
            f"{name}: backward must return a gradient or None for each input; got {len(results)}, "
            f"expected {len(avals)}",
            source=rule_source(rule),
        )
    return [
        check_gradient(name, rule, i, x, aval)
        for i, (x, aval) in enumerate(zip(results, avals, strict=True))
    ]


def check_gradient(
    name: str, rule: Callable[..., Any], i: int, x: Any, aval: ShapedArray | None
) -> Value | None:
    """The gradient of input `i`, of type `aval`."""
    if x is None:
        return None
    if not is_array(x):
        raise GradientTypeError(
            f"{name}: backward must return arrays and None; got {type_name(x)} for input {i}",
            source=rule_source(rule),
        )
    if aval is None:
        raise FunctionGradientError(
            f"{name}: backward must return None for an input that is not an array; got a gradient at "
            f"position {i + 1}",
            source=rule_source(rule),
        )
    if not is_inexact(aval.dtype):
        return None
    x_aval = aval_of(x)
    if not broadcasts_to(aval.shape, x_aval.shape) or (
        is_complex(x_aval.dtype) and not is_complex(aval.dtype)
    ):
        raise FunctionGradientError(
            f"{name}: a gradient must have the shape of its input, or one that the input broadcasts "
            f"to, and be real where it is; got {x_aval!r} for input {i}, expected {aval!r}",
            source=rule_source(rule),
        )
    if x_aval.shape != aval.shape:
        added = len(x_aval.shape) - len(aval.shape)
        axes = tuple(
            [i for i, n in enumerate(x_aval.shape) if i < added or aval.shape[i - added] != n]
        )
        x = ops.reshape(ops.reduce_sum(x, axes), aval.shape)
    if x_aval.dtype != aval.dtype:
        x = ops.convert_element_type(x, aval.dtype)
    return x


def output_tangents(
    function: type[FunctionMethods],
    context: FunctionContext,
    tangents: Sequence[Value | None],
    avals: Sequence[ShapedArray | None],
) -> list[Value | None]:
    """The tangents by `jvp` of outputs of types `avals`, None for zero.

    The type of an output that is not an array, or has no derivative, is None.
    """
    name, rule = function.__name__, function.jvp
    if (saved := context.__dict__["_functx_saved_forward"]) is not None:
        context.__dict__["_functx_saved"] = saved
    results = rule(context, *tangents)
    results = tuple(results) if isinstance(results, (tuple, list)) else (results,)
    if len(results) != len(avals):
        raise FunctionGradientError(
            f"{name}: jvp must return a tangent or None for each output; got {len(results)}, "
            f"expected {len(avals)}",
            source=rule_source(rule),
        )
    for i, (x, aval) in enumerate(zip(results, avals, strict=True)):
        if x is None:
            continue
        got = repr(aval_of(x)) if is_array(x) else type_name(x)
        if aval is None or not is_array(x) or (x.shape, x.dtype) != (aval.shape, aval.dtype):
            raise FunctionGradientError(
                f"{name}: jvp must return a tangent of the shape and dtype of each output, or None, as "
                f"for one without a derivative; got {got} for output {i}, expected {aval or None!r}",
                source=rule_source(rule),
            )
    return list(results)


def broadcasts_to(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    """Whether an array of `shape` broadcasts to `target`."""
    if len(shape) > len(target):
        return False
    return all([n in (1, m) for n, m in zip(reversed(shape), reversed(target), strict=False)])
