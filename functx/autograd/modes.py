"""Modes: whether operations get nodes, and whether results are inference arrays."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextvars import ContextVar
from functools import wraps
from threading import get_ident
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from functx.core.errors import (
    ArgumentError,
    AutogradError,
    AutogradInTransformError,
    short_repr,
    type_name,
)
from functx.core.source_info import warn_at_user_line
from functx.core.tracer import current_builder
from functx.core.tracing import refuse_in_transform
from functx.lowering.jax_bridge import jax_is_tracing
from functx.ops.gradient_stop import set_gradient_stop

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


class Modes(NamedTuple):
    """The active modes; `records_gradients` says whether operations on Variables get nodes."""

    grad: bool
    inference: bool
    records_gradients: bool


_modes: ContextVar[Modes] = ContextVar("modes", default=Modes(True, False, True))  # noqa: B039
current_modes = _modes.get
"""`current_modes()`: the modes that are active in this context."""


def is_grad_enabled() -> bool:
    """Whether operations on Variables that require gradients get nodes.

    Inside a derivative, modes that were entered outside do not count.
    """
    if current_modes().grad:
        return True
    builder = current_builder.get()
    while builder is not None and builder.gradient_stop is None:
        if builder.differentiated:
            return True
        builder = builder.parent
    return False


def is_inference_mode_enabled() -> bool:
    """Whether results are inference arrays."""
    return current_modes().inference


def set_modes(
    grad: bool, inference: bool | None = None, stops_traced: bool = True
) -> Callable[[], None]:
    """Sets the modes; returns the function that restores the previous ones.

    With `stops_traced` they act on the values of the current trace too.
    """
    before = current_modes()
    inference = before.inference if inference is None else inference
    records = grad and not inference
    if not records and stops_traced and current_builder.innermost() is None and jax_is_tracing():
        raise AutogradError(
            "no_grad: it must not be entered where JAX alone traces, since JAX would differentiate "
            "the operations in it; got a function under a transform of JAX",
            fix="Use the transform of functx in place of JAX's, or functx.stop_gradient(x).",
        )
    _modes.set(Modes(grad, inference, records))
    builder = current_builder.get() if stops_traced else None
    if builder is None:
        return lambda: cast(None, _modes.set(before))
    is_first = builder.restore_modes is None
    if is_first:
        # A call of a compiled function would not switch again, so neither does its trace.
        builder.restore_modes = lambda: cast(None, _modes.set(before))
    stop = set_gradient_stop(builder, None if records else not inference)

    def restore() -> None:
        _modes.set(before)
        if builder.is_open:
            set_gradient_stop(builder, stop)
            if is_first:
                builder.restore_modes = None

    return restore


def check_outside_transforms(function: str, fix: str, verb: str = "called") -> None:
    """Raise AutogradInTransformError inside a transform, where `function` would act only once."""
    if (builder := current_builder.get()) is not None:
        error = AutogradInTransformError(
            f"{function}: it must not be {verb} inside a transform, whose values are traced; got it in "
            f"{builder.owner}",
            fix=fix,
        )
        refuse_in_transform(error, builder)


def set_var(var: ContextVar[T], value: T) -> Callable[[], None]:
    """Sets a context variable; returns the function that gives it the value from before."""
    before = var.get()
    var.set(value)
    return lambda: cast(None, var.set(before))


class ModeContext:
    """A context, and a decorator, in which a mode is active.

    A decorated function, generator or coroutine, also an asynchronous generator, runs in the mode;
    between the values of a generator the mode of its caller is active.
    Several threads and tasks may use one object at once.
    """

    def enter(self) -> Callable[[], None]:
        """Switches the mode on; returns the function that restores the previous mode."""
        raise NotImplementedError

    def fresh(self) -> ModeContext:
        """A mode of the same kind, for one call of a decorated function."""
        return type(self)()

    def __enter__(self) -> None:
        restore = self.enter()
        _entered.set((*_entered.get(), (self, restore)))

    def __exit__(self, *_: object) -> None:
        entered = _entered.get()
        for i in reversed(range(len(entered))):
            mode, restore = entered[i]
            if mode is self:
                _entered.set(entered[:i] + entered[i + 1 :])
                restore()
                return

    def __call__(self, fun: F) -> F:
        return cast(F, decorate(fun, self.fresh))


_entered: ContextVar[tuple[tuple[ModeContext, Callable[[], None]], ...]] = ContextVar(
    "entered", default=()
)
"""The modes that were entered in this context, in order, with the functions that restore those before."""


class ImmediateMode(ModeContext):
    """A mode that is active from its construction, as a context until its end.

    A decorator undoes the switch of its construction, and is active during each call.
    """

    def __init__(self) -> None:
        self._restore, self._thread = self.switch(), get_ident()

    def switch(self) -> Callable[[], None]:
        """Switches the mode on; returns the function that restores the previous mode."""
        raise NotImplementedError

    def enter(self) -> Callable[[], None]:
        restore = self.switch()
        return self._restore if self._thread == get_ident() else restore

    def __call__(self, fun: F) -> F:
        self._restore()
        return super().__call__(fun)


def decorate(fun: Callable[..., Any], make: Callable[[], ModeContext]) -> Callable[..., Any]:
    """`fun`, whose body runs in the mode that `make()` gives for each call."""
    if inspect.isclass(fun):
        warn_at_user_line(
            f"{fun.__name__}: a mode that decorates a class is active in its constructor alone; "
            "decorate its methods",
            FutureWarning,
        )
    if inspect.isgeneratorfunction(fun):

        @wraps(fun)
        def generator(*args: object, **kwargs: object) -> Any:
            return (yield from run_in_steps(fun(*args, **kwargs), make))

        return generator
    if inspect.isasyncgenfunction(fun):

        @wraps(fun)
        async def async_generator(*args: object, **kwargs: object) -> Any:
            inner = fun(*args, **kwargs)
            step, value = inner.asend, None
            while True:
                try:
                    item = await _Awaitable(run_in_steps(step(value), make))
                except StopAsyncIteration:
                    return
                try:
                    step, value = inner.asend, (yield item)
                except GeneratorExit:
                    await _Awaitable(run_in_steps(inner.aclose(), make))
                    raise
                except BaseException as error:
                    step, value = inner.athrow, error

        return async_generator
    if inspect.iscoroutinefunction(fun):

        @wraps(fun)
        async def coroutine(*args: object, **kwargs: object) -> Any:
            return await _Awaitable(run_in_steps(fun(*args, **kwargs), make))

        return coroutine

    @wraps(fun)
    def call(*args: object, **kwargs: object) -> Any:
        with make():
            return fun(*args, **kwargs)

    return call


def run_in_steps(inner: Any, make: Callable[[], ModeContext]) -> Any:
    """A generator that runs a generator or coroutine, each step in a mode of `make()`."""
    step, value = inner.send, None
    while True:
        try:
            with make():
                item = step(value)
        except StopIteration as stop:
            return stop.value
        try:
            step, value = inner.send, (yield item)
        except GeneratorExit:
            with make():
                inner.close()
            raise
        except BaseException as error:
            step, value = inner.throw, error


class _Awaitable(NamedTuple):
    steps: Any

    def __await__(self) -> Any:
        return self.steps


def mode_argument_error(mode: type, requirement: str, got: object) -> ArgumentError:
    """The error for an argument that says neither what to decorate nor whether the mode is on."""
    return ArgumentError(
        f"{mode.__name__}: the argument must be {requirement}; got {type_name(got)} {short_repr(got)[:60]}",
        fix="Decorate a function with it, or write `with functx.autograd.set_grad_enabled(flag):` for a flag.",
    )


class grad_mode(ModeContext):  # noqa: N801 - a context, named like a function
    """A context in which operations on Variables get nodes, or not.

    With `inference` None, inference mode stays as it is.
    """

    def __init__(self, enabled: bool, inference: bool | None = None):
        self.enabled, self.inference = enabled, inference

    def enter(self) -> Callable[[], None]:
        return set_modes(self.enabled, self.inference, stops_traced=False)

    def fresh(self) -> ModeContext:
        return grad_mode(self.enabled, self.inference)


class _FunctionOrContext(ModeContext):
    """A mode whose class decorates a function directly, without parentheses."""

    def __new__(cls, fun: Callable[..., Any] | None = None) -> Any:
        if fun is None:
            return super().__new__(cls)
        if not callable(fun):
            raise mode_argument_error(cls, "a function to decorate, or nothing", fun)
        return decorate(fun, cls)

    def __init__(self, fun: Callable[..., Any] | None = None):
        pass


class no_grad(_FunctionOrContext):  # noqa: N801 - PyTorch's name
    """A context, and a decorator, in which results do not require gradients.

    In a function that is traced, values computed in the context are constants for reverse mode, as by
    `functx.stop_gradient`; forward mode ignores it. A context outside a transform does not reach into it.

    >>> from functx.autograd import Variable, no_grad
    >>> x = Variable(2.0, requires_grad=True)
    >>> with no_grad():
    ...     y = x * x
    >>> y.requires_grad
    False
    """

    def enter(self) -> Callable[[], None]:
        return set_modes(False)


class enable_grad(_FunctionOrContext):  # noqa: N801 - PyTorch's name
    """A context, and a decorator, in which results require gradients where an operand does."""

    def enter(self) -> Callable[[], None]:
        return set_modes(True)


class set_grad_enabled(ImmediateMode):  # noqa: N801 - PyTorch's name
    """Sets at once whether results require gradients; as a context, until its end.

    A decorator undoes the switch of its construction, and is active during each call. In a function
    that is traced, the mode ends with the trace at the latest.
    """

    def __init__(self, mode: bool):
        self.mode = bool(mode)
        super().__init__()

    def switch(self) -> Callable[[], None]:
        return set_modes(self.mode)

    def fresh(self) -> ModeContext:
        return enable_grad() if self.mode else no_grad()

    def __repr__(self) -> str:
        return f"set_grad_enabled(mode={self.mode})"


class inference_mode(ModeContext):  # noqa: N801 - PyTorch's name
    """A context, and a decorator, without derivatives, whose results are inference arrays.

    They have no version. Outside the mode they can be operands, but they cannot be saved for a
    derivative, written to or made to require gradients; a copy (`x.copy()`) can. Forward mode is off.
    A `.grad` that `backward` makes in it is one too, as in PyTorch.
    With `mode=False`, normal mode is active again.

    >>> from functx.autograd import Variable, inference_mode
    >>> x = Variable(2.0, requires_grad=True)
    >>> with inference_mode():
    ...     y = x * x
    >>> y.is_inference(), y.requires_grad
    (True, False)
    """

    def __new__(cls, mode: bool | Callable[..., Any] = True) -> Any:
        return decorate(mode, cls) if callable(mode) else super().__new__(cls)

    def __init__(self, mode: bool = True):
        if not isinstance(mode, (bool, np.bool_, int)):
            raise mode_argument_error(type(self), "a function to decorate, or True or False", mode)
        self.mode = bool(mode)

    def enter(self) -> Callable[[], None]:
        return set_modes(not self.mode, self.mode)

    def fresh(self) -> ModeContext:
        return inference_mode(self.mode)


_flags: dict[str, ContextVar[bool]] = {
    "multithreading": ContextVar("multithreading", default=True),
    "view replay": ContextVar("view replay", default=False),
}
is_multithreading_enabled = _flags["multithreading"].get
"""`is_multithreading_enabled()`: the flag alone; walks run in one thread."""
is_view_replay_enabled = _flags["view replay"].get
"""`is_view_replay_enabled()`: the flag alone; views are always recomputed from their base."""


class _Flag(ImmediateMode):
    """A flag that is set at once, and as a context restored at its end."""

    flag: ContextVar[bool]

    def __init__(self, mode: bool):
        self.mode = bool(mode)
        super().__init__()

    def switch(self) -> Callable[[], None]:
        return set_var(self.flag, self.mode)

    def fresh(self) -> ModeContext:
        return type(self)(self.mode)


class set_multithreading_enabled(_Flag):  # noqa: N801 - PyTorch's name
    """Sets the flag `is_multithreading_enabled`, which changes nothing else."""

    flag = _flags["multithreading"]


class force_original_view_tracking(_Flag):  # noqa: N801 - PyTorch's name
    """Sets the flag `is_view_replay_enabled`, which changes nothing else."""

    flag = _flags["view replay"]
