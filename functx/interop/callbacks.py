"""Translations of what JAX functions ask of the host: callbacks, and printing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from functx.core import tree
from functx.core.records import Record
from functx.interop.jaxprs import aval_from_jax
from functx.interop.translation import register_translation
from functx.lowering.callbacks import ordered_effect
from functx.ops.callbacks import VMAP_METHODS, DebugCallback, IoCallback, PureCallback
from functx.ops.host_functions import FlatCallback


def host_function_of_leaves(fun: Callable[..., Any], eqn: Any, results: int | None) -> FlatCallback:
    """A function of as many arrays as the equation has operands, which gives `results` of them."""
    in_tree = tree.structure(((0,) * len(eqn.invars), {}))
    out_tree = None if results is None else tree.structure([0] * results)
    return FlatCallback(fun, in_tree, (), out_tree)


def callback_result_avals(eqn: Any) -> tuple[Any, ...]:
    return tuple([aval_from_jax(a) for a in eqn.params["result_avals"]])


@register_translation("pure_callback")
def translate_pure_callback(eqn: Any, *args: Any) -> Any:
    results, method = callback_result_avals(eqn), eqn.params["vmap_method"]
    if method is not None and method not in VMAP_METHODS:
        return NotImplemented
    host = host_function_of_leaves(eqn.params["callback"], eqn, len(results))
    return PureCallback(host, results, method)(*args)


@register_translation("io_callback")
def translate_io_callback(eqn: Any, *args: Any) -> Any:
    results = callback_result_avals(eqn)
    host = host_function_of_leaves(eqn.params["callback"], eqn, len(results))
    return IoCallback(host, results, bool(eqn.params["ordered"]))(*args)


@register_translation("debug_callback")
def translate_debug_callback(eqn: Any, *args: Any) -> Any:
    host = host_function_of_leaves(eqn.params["callback"], eqn, None)
    return DebugCallback(host, (), ordered_effect() in eqn.effects)(*args)


class FormattedPrint(Record):
    """A function that prints its arguments in the format of `jax.debug.print`."""

    text: str
    has_placeholders: bool
    options: tuple[tuple[str, Any], ...]

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        with np.printoptions(**dict(self.options)):
            if self.has_placeholders:
                print(self.text.format(*args, **kwargs))
            else:
                print(self.text, *args)


@register_translation("debug_print")
def translate_debug_print(eqn: Any, *args: Any) -> Any:
    params = eqn.params
    if params.get("logging_record") is not None:
        return NotImplemented
    printed = FormattedPrint(
        params["fmt"], params["has_placeholders"], tuple(params["np_printoptions"])
    )
    host = FlatCallback(printed, params["in_tree"], params["static_args"], None)
    return DebugCallback(host, (), bool(params["ordered"]))(*args)
