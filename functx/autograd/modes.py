"""Modes, per thread and context: whether operations get nodes, and inference arrays."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from contextvars import ContextVar, Token
from functools import wraps
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])

_grad_enabled: ContextVar[bool] = ContextVar("grad_enabled", default=True)
_inference: ContextVar[bool] = ContextVar("inference", default=False)
is_grad_enabled = _grad_enabled.get
"""`is_grad_enabled()`: whether operations on Variables that require gradients get nodes."""
is_inference_mode_enabled = _inference.get
"""`is_inference_mode_enabled()`: whether results are inference arrays."""


class Mode:
    """A context, and a decorator, in which a mode holds.

    A decorated function, generator or coroutine runs in the mode; between the values of a generator the
    mode of its caller holds.
    """

    def __init__(self) -> None:
        self._entered: list[Callable[[], None]] = []

    def enter(self) -> Callable[[], None]:
        """Switches the mode on; returns the function that restores what was before."""
        raise NotImplementedError

    def fresh(self) -> Mode:
        """A mode of the same kind, for one call of a decorated function."""
        return type(self)()

    def __enter__(self) -> None:
        self._entered.append(self.enter())

    def __exit__(self, *_: object) -> None:
        self._entered.pop()()

    def __call__(self, fun: F) -> F:
        return cast(F, decorate(fun, self.fresh))


def decorate(fun: Callable[..., Any], make: Callable[[], Mode]) -> Callable[..., Any]:
    """`fun`, whose body runs in the mode that `make()` gives for each call."""
    if inspect.isclass(fun):
        warnings.warn(
            f"{fun.__name__}: decorating a class with a mode holds for making instances alone; "
            "decorate its methods",
            FutureWarning,
            stacklevel=3,
        )
    if inspect.isgeneratorfunction(fun):

        @wraps(fun)
        def generator(*args: Any, **kwargs: Any) -> Any:
            inner = fun(*args, **kwargs)
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

        return generator
    if inspect.iscoroutinefunction(fun):

        @wraps(fun)
        async def coroutine(*args: Any, **kwargs: Any) -> Any:
            with make():
                return await fun(*args, **kwargs)

        return coroutine

    @wraps(fun)
    def call(*args: Any, **kwargs: Any) -> Any:
        with make():
            return fun(*args, **kwargs)

    return call


def _set(grad: bool, inference: bool | None = None) -> Callable[[], None]:
    """Sets the modes; returns the function that restores them."""
    token: Token[bool] = _grad_enabled.set(grad)
    other = None if inference is None else _inference.set(inference)

    def restore() -> None:
        _grad_enabled.reset(token)
        if other is not None:
            _inference.reset(other)

    return restore


class grad_mode(Mode):  # noqa: N801 - a context, named like a function
    """A context in which operations get nodes, or not."""

    def __init__(self, enabled: bool):
        super().__init__()
        self.enabled = enabled

    def enter(self) -> Callable[[], None]:
        return _set(self.enabled)

    def fresh(self) -> Mode:
        return grad_mode(self.enabled)


class _FunctionOrContext(Mode):
    """A mode whose class decorates a function directly, without parentheses."""

    def __new__(cls, fun: Callable[..., Any] | None = None) -> Any:
        return super().__new__(cls) if fun is None else decorate(fun, cls)

    def __init__(self, fun: Callable[..., Any] | None = None):
        super().__init__()


class no_grad(_FunctionOrContext):  # noqa: N801 - PyTorch's name
    """A context, and a decorator, in which results do not require gradients.

    >>> from functx.autograd import Variable, no_grad
    >>> x = Variable(2.0, requires_grad=True)
    >>> with no_grad():
    ...     y = x * x
    >>> y.requires_grad
    False
    """

    def enter(self) -> Callable[[], None]:
        return _set(False)


class enable_grad(_FunctionOrContext):  # noqa: N801 - PyTorch's name
    """A context, and a decorator, in which results require gradients where an operand does."""

    def enter(self) -> Callable[[], None]:
        return _set(True)


class set_grad_enabled(Mode):  # noqa: N801 - PyTorch's name
    """Sets at once whether results require gradients; as a context, until its end.

    As a decorator it takes back what making it did, and holds during each call.
    """

    def __init__(self, mode: bool):
        super().__init__()
        self.mode = bool(mode)
        self._before = is_grad_enabled()
        _grad_enabled.set(self.mode)

    def enter(self) -> Callable[[], None]:
        before = self._before
        _grad_enabled.set(self.mode)
        return lambda: cast(None, _grad_enabled.set(before))

    def __call__(self, fun: F) -> F:
        _grad_enabled.set(self._before)
        return super().__call__(fun)

    def fresh(self) -> Mode:
        return grad_mode(self.mode)

    def __repr__(self) -> str:
        return f"set_grad_enabled(mode={self.mode})"


class inference_mode(Mode):  # noqa: N801 - PyTorch's name
    """A context, and a decorator, without derivatives, whose results are inference arrays.

    These have no version, and can neither be saved for a derivative nor be written to outside. With
    `mode=False`, normal mode holds again.
    """

    def __new__(cls, mode: bool | Callable[..., Any] = True) -> Any:
        return decorate(mode, cls) if callable(mode) else super().__new__(cls)

    def __init__(self, mode: bool = True):
        super().__init__()
        self.mode = bool(mode)

    def enter(self) -> Callable[[], None]:
        return _set(False if self.mode else is_grad_enabled(), self.mode)

    def fresh(self) -> Mode:
        return inference_mode(self.mode)


_flags: dict[str, ContextVar[bool]] = {
    "multithreading": ContextVar("multithreading", default=True),
    "view replay": ContextVar("view replay", default=False),
}
is_multithreading_enabled = _flags["multithreading"].get
"""`is_multithreading_enabled()`: the flag alone; walks run in one thread."""
is_view_replay_enabled = _flags["view replay"].get
"""`is_view_replay_enabled()`: the flag alone; views are always taken again from their base."""


class _Flag(Mode):
    """A flag that is set at once, until the end of the context."""

    flag: ContextVar[bool]

    def __init__(self, mode: bool):
        super().__init__()
        self.mode = bool(mode)
        self._before = self.flag.get()
        self.flag.set(self.mode)

    def enter(self) -> Callable[[], None]:
        before = self._before
        self.flag.set(self.mode)
        return lambda: cast(None, self.flag.set(before))

    def fresh(self) -> Mode:
        return type(self)(self.mode)


class set_multithreading_enabled(_Flag):  # noqa: N801 - PyTorch's name
    """Sets the flag `is_multithreading_enabled`, which changes nothing else."""

    flag = _flags["multithreading"]


class force_original_view_tracking(_Flag):  # noqa: N801 - PyTorch's name
    """Sets the flag `is_view_replay_enabled`, which changes nothing else."""

    flag = _flags["view replay"]
