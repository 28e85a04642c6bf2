"""Dispatch of operator calls: to rules for user classes and modes, and to kernels by platform."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import Token
from typing import TYPE_CHECKING, Any, NoReturn

import jax

from functx.core import tree
from functx.core.config import TraceOptions, trace_options
from functx.core.errors import ArgumentError, MissingKernelError, ValueRangeError, type_name
from functx.core.tracer import is_device_array
from functx.core.typing import ArrayLike, PyTree
from functx.custom.operators.arguments import OperatorPrimitive
from functx.custom.operators.registry import DISPATCH_RULE, KERNEL_RULE, Registration, get_rules
from functx.lowering.arguments import StaticByValue

if TYPE_CHECKING:
    from functx.custom.operators.operator import Operator


class Mode:
    """A context manager that is active in a `with` block; an operator may have a rule for its class.

    The rule gets the mode first, then the arguments; while it runs, the mode is not active.
    """

    def __enter__(self) -> Mode:
        _set_active_modes((*_active_modes(), self))
        return self

    def __exit__(self, *exception: object) -> None:
        _set_active_modes(_active_modes()[:-1])

    def key(self) -> StaticByValue | type[Mode]:
        """A cache key: the class of the mode, or the object if it has attributes."""
        return StaticByValue(self) if vars(self) else type(self)


def _active_modes() -> tuple[Mode, ...]:
    """The active modes, the innermost last."""
    return trace_options.get().modes


def _set_active_modes(modes: tuple[Mode, ...]) -> Token[TraceOptions]:
    return trace_options.set(trace_options.get()._replace(modes=modes))


def dispatch_rule_of_class(cls: object) -> str:
    """The kind of the rule for `cls`; ArgumentError unless `cls` is a class."""
    if not isinstance(cls, type):
        raise ArgumentError(f"def_dispatch: the rule must be for a class; got {type_name(cls)}")
    return f"{DISPATCH_RULE} {cls.__module__}.{cls.__qualname__}"


def dispatch_call(operator: Operator, args: Sequence[PyTree], kwargs: dict[str, PyTree]) -> PyTree:
    """The result of the rule for an active mode or an argument; NotImplemented without such a rule.

    Modes come before arguments, the innermost first.
    """
    registered = get_rules(operator, DISPATCH_RULE)
    if not registered:
        return NotImplemented
    rules: dict[type, Registration] = {rule.option: rule for rule in registered.values()}
    modes = _active_modes()
    for i in reversed(range(len(modes))):
        rule = rules.get(type(modes[i]))
        if rule is not None:
            with _only_modes(modes[:i]):
                return rule(modes[i], *args, **kwargs)
    classes = tuple([cls for cls in rules if not issubclass(cls, Mode)])
    if not classes:
        return NotImplemented
    leaves = tree.leaves((args, kwargs), is_leaf=lambda x: isinstance(x, classes))
    for x in leaves:
        for cls in type(x).__mro__:
            if cls in classes:
                return rules[cls](*args, **kwargs)
    return NotImplemented


@contextmanager
def _only_modes(modes: tuple[Mode, ...]) -> Iterator[None]:
    token = _set_active_modes(modes)
    try:
        yield
    finally:
        trace_options.reset(token)


PLATFORMS = ("cpu", "gpu", "tpu", "default")
_PLATFORM_PRIORITY = ("tpu", "gpu", "cpu")
_PLATFORM_ALIASES = {"cuda": "gpu", "rocm": "gpu"}

_log = logging.getLogger(__name__)


def check_platforms(label: str, device_types: str | Iterable[str] | None) -> list[str]:
    """The platforms that `device_types` names, each once; ValueRangeError for another name."""
    if device_types is None:
        return ["default"]
    platforms: list[Any] = [device_types]
    if isinstance(device_types, Iterable) and not isinstance(device_types, str):
        platforms = list(device_types)
    for platform in platforms:
        if platform not in PLATFORMS:
            raise ValueRangeError(
                f"{label}: a platform must be one of {', '.join(PLATFORMS)}; "
                f"got {platform if isinstance(platform, str) else type_name(platform)!r}"
            )
    return list(dict.fromkeys(platforms))


def find_kernel(primitive: OperatorPrimitive, platform: str | None) -> Registration | None:
    """The enabled implementation for `platform`, else the default one; None without either."""
    operator = primitive.operator
    rules = get_rules(operator, KERNEL_RULE)
    platform = _PLATFORM_ALIASES.get(platform or "", platform)
    for name in (platform, "default"):
        if name in rules and name not in operator.disabled_platforms:
            return rules[name]
    return None


def select_kernel(
    primitive: OperatorPrimitive, operands: Sequence[ArrayLike]
) -> Registration | None:
    """The implementation for the platform of the operands, accelerators before the CPU."""
    return find_kernel(primitive, _platform_of(primitive, operands))


def raise_missing_kernel(primitive: OperatorPrimitive, operands: Sequence[ArrayLike]) -> NoReturn:
    """Raise MissingKernelError for a call without an implementation."""
    operator = primitive.operator
    platform = _platform_of(primitive, operands)
    if platform is not None:
        raise missing_kernel_error(operator, platform)
    raise MissingKernelError(
        f"{operator.qualname}: the operator has no array inputs in this call, so that no "
        "platform chooses its implementation; got none for all platforms",
        fix=f'Register one that makes arrays itself: {operator.__name__}.impl("default"), '
        "or give it a `device` parameter.",
    )


def missing_kernel_error(operator: Operator, platform: str) -> MissingKernelError:
    """The error that there is no implementation for a platform."""
    rules = get_rules(operator, KERNEL_RULE)
    off = [name for name in rules if name in operator.disabled_platforms]
    registered = ", ".join([f"{name} ({rule.location})" for name, rule in rules.items()]) or "none"
    return MissingKernelError(
        f"{operator.qualname}: there must be an implementation for the platform {platform}; "
        f"got {registered}" + (f", of which {', '.join(off)} is switched off" if off else ""),
        fix=f'Register one: @{operator.__name__}.impl("{platform}"), or for all platforms '
        'with "default".',
    )


def _platform_of(primitive: OperatorPrimitive, operands: Sequence[ArrayLike]) -> str | None:
    """The platform of a call; None if it has neither an array nor a device."""
    device = primitive.device_argument()
    if device is not None:
        return device if isinstance(device, str) else str(device.platform)
    platforms = {d.platform for x in operands if is_device_array(x) for d in x.devices()}
    for platform in _PLATFORM_PRIORITY:
        if platform in platforms:
            return platform
    return jax.default_backend() if operands else None


def kernels_by_platform(
    primitive: OperatorPrimitive, platforms: Sequence[str]
) -> dict[str, Registration]:
    """The implementation for each platform of a program; a single entry if they are all the same."""
    kernels = {}
    for platform in platforms:
        rule = find_kernel(primitive, platform)
        if rule is None:
            raise missing_kernel_error(
                primitive.operator, _PLATFORM_ALIASES.get(platform, platform)
            )
        kernels[platform] = rule
    return kernels if len(set(kernels.values())) > 1 else dict(list(kernels.items())[:1])


@contextmanager
def set_kernel_enabled(operator: Operator, platform: str, enabled: bool) -> Iterator[None]:
    """A `with` block in which the implementation for `platform` is enabled or disabled."""
    if platform not in get_rules(operator, KERNEL_RULE):
        _log.warning("%s: there is no implementation for %r to switch", operator.qualname, platform)
        yield
        return
    before = platform not in operator.disabled_platforms
    if before is enabled:
        _log.warning(
            "%s: the implementation for %s is %s already",
            operator.qualname,
            platform,
            "on" if enabled else "off",
        )
    operator.set_platform_enabled(platform, enabled)
    try:
        yield
    finally:
        operator.set_platform_enabled(platform, before)
