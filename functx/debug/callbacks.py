"""`debug.callback`: a Python function called with the values of a program that runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from functx.ops.callbacks import DebugCallback, check_callback, flat_callback


def callback(
    callback: Callable[..., Any] | None = None, *args: Any, ordered: bool = False, **kwargs: Any
) -> Any:
    """Call `callback(*args, **kwargs)` when the program runs, and drop what it returns.

    Arrays in the pytrees of the arguments arrive as NumPy arrays, other leaves as they are.
    It is called once wherever the program comes by: in each step of a loop, in the branch
    that is taken, for each lane of a `vmap` in turn. A derivative calls it once, with the
    values of the function. With `ordered`, it is called after every earlier ordered callback
    has returned; else the order is not promised. `effects_barrier` waits for all.
    Without a function, `callback(ordered=True)` gives one that takes it and its arguments.

    Raises ArgumentError for a `callback` that cannot be called.

    >>> import functx
    >>> seen = []
    >>> def f(x):
    ...     functx.debug.callback(seen.append, x * 2)
    ...     return x * x
    >>> float(functx.grad(f)(3.0)), [float(x) for x in seen]
    (6.0, [6.0])
    """
    if callback is None and not args and not kwargs:
        return partial(_bind_callback, ordered)
    _bind_callback(ordered, callback, *args, **kwargs)
    return None


def _bind_callback(ordered: bool, callback: Any, /, *args: Any, **kwargs: Any) -> None:
    check_callback("debug.callback", callback)
    host, leaves = flat_callback("debug.callback", callback, args, kwargs, static_too=True)
    DebugCallback(host, (), bool(ordered))(*leaves)
