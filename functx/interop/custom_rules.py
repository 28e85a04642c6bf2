"""Translations of functions with rules of their own: `jax.custom_jvp` and `jax.custom_vjp`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import numpy as np

from functx.core.dtypes import is_inexact
from functx.core.errors import ForeignCodeError
from functx.core.program import Program
from functx.core.tracing import aval_of, current_builder, trace
from functx.custom.custom_jvp import CustomJVP
from functx.custom.custom_vjp import CustomVJP
from functx.custom.deferral import Deferred, Flow
from functx.interop.jax_call import JaxFunction, linearized
from functx.interop.jaxprs import form_of
from functx.interop.translation import translate, translate_function, translates

_DEPTH = 2
"""How deep rules within rules are compared; deeper ones are told apart by what they compute
and where they are written."""


class JaxRule(Deferred):
    """The rule of one call of a JAX function, traced when it is first needed.

    Two are equal when they belong to functions that compute the same and their programs are
    equal.
    """

    depth: ClassVar[int] = 0
    """How many rules are being traced right now, one within the other."""

    def __init__(self, eqn: Any, captured: Sequence[Any]):
        params = eqn.params
        self.function = function = JaxFunction.of_equation(eqn)
        self.captured = [aval_of(x) for x in captured]
        self.found: tuple[Program, ...] | None = None
        self.making = False
        self.depth = JaxRule.depth  # type: ignore[misc]
        places = [place_of(value) for value in params.values()]
        primal = params["call_jaxpr"]
        self.primal_name = primal.jaxpr.debug_info.func_name
        self.key: Any = (
            type(self),
            form_of(primal.jaxpr),
            tuple([id(c) for c in primal.consts]),
            tuple([place for place in places if place]),
            tuple(function.in_avals),
        )

    def trace(self) -> tuple[Program, ...]:
        raise NotImplementedError

    def programs(self, flow: Flow | None = None) -> tuple[Program, ...]:
        if self.found is None:
            self.making = True
            JaxRule.depth += 1
            token = current_builder.set(None)
            try:
                self.found = self.trace()
            finally:
                current_builder.reset(token)
                JaxRule.depth -= 1
                self.making = False
        return self.found

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, JaxRule) or self.key != other.key:
            return False
        # A rule that calls its own function: the one within is the one without.
        if self.making or other.making or max(self.depth, other.depth) >= _DEPTH:
            return True
        return self.compared() == other.compared()

    def compared(self) -> tuple[Program, ...] | None:
        """The programs; None for a rule that cannot be traced, which nothing may ask for."""
        try:
            return self.programs()
        except ForeignCodeError:
            return None

    def __hash__(self) -> int:
        return hash(self.key)

    @property
    def __name__(self) -> str:
        return f"rule of {self.primal_name}"


def place_of(value: Any) -> str:
    """Where a function among the parameters of an equation was written."""
    return str(getattr(getattr(value, "debug_info", None), "func_src_info", "") or "")


class JVPRule(JaxRule):
    """The rule of a `jax.custom_jvp` function: outputs and tangents from operands and tangents."""

    def trace(self) -> tuple[Program, ...]:
        function = self.function
        varying = tuple([is_inexact(a.dtype) for a in function.in_avals])
        values, push = linearized(function, varying)
        own, count = len(varying), len(function.out_avals)

        def rule(*xs: Any) -> list[Any]:
            outs = values.without_captures(xs[:own])
            tangents = xs[own : own + sum(varying)]
            return [*outs[:count], *push.without_captures([*outs[count:], *tangents])]

        moving = [a for a in function.in_avals if is_inexact(a.dtype)]
        avals = [*function.in_avals, *moving, *self.captured]
        return (trace(rule, avals, name=f"{self.primal_name}_jvp")[0],)


class VJPRule(JaxRule):
    """The rule of a `jax.custom_vjp` function: a forward program and a backward one."""

    def trace(self) -> tuple[Program, ...]:
        function = self.function
        moving = [is_inexact(a.dtype) for a in function.in_avals]
        own, count = len(moving), len(function.out_avals)
        structure: Any = None

        def values(*args: Any) -> list[Any]:
            nonlocal structure

            def of_moving(*given: Any) -> list[Any]:
                rest = iter(given)
                return function(*[next(rest) if on else x for x, on in pairs])

            pairs = list(zip(args, moving, strict=True))
            outs, pull = jax.vjp(of_moving, *[x for x, on in pairs if on])
            residuals, structure = jax.tree_util.tree_flatten(pull)
            return [*outs, *residuals]

        def cotangents(*xs: Any) -> list[Any]:
            rest = iter(xs)
            cts = [
                next(rest) if is_inexact(a.dtype) else np.zeros(a.shape, jax.dtypes.float0)
                for a in function.out_avals
            ]
            return list(jax.tree_util.tree_unflatten(structure, list(rest))(cts))

        first = translate_function(values, function.in_avals, f"{self.primal_name}_fwd")
        residuals = first.program.out_avals[count:]
        given = function.differentiable_outputs(function.out_avals)
        second = translate_function(cotangents, [*given, *residuals], f"{self.primal_name}_bwd")

        def forward(*xs: Any) -> list[Any]:
            return first.without_captures(xs[:own])

        def backward(*xs: Any) -> list[Any]:
            return second.without_captures(xs)

        return (
            trace(forward, [*function.in_avals, *self.captured], name=first.program.name)[0],
            trace(backward, [*given, *residuals], name=second.program.name)[0],
        )


@translates("custom_jvp_call", keys=True)
def custom_jvp_call(eqn: Any, *args: Any) -> Any:
    primal = translate(eqn.params["call_jaxpr"], [aval_of(x) for x in args])
    rule = JVPRule(eqn, primal.captured)
    return CustomJVP(primal.program, rule, len(primal.captured))(*args, *primal.captured)


@translates("custom_vjp_call", keys=True)
def custom_vjp_call(eqn: Any, *args: Any) -> Any:
    primal = translate(eqn.params["call_jaxpr"], [aval_of(x) for x in args])
    rule = VJPRule(eqn, primal.captured)
    return CustomVJP(primal.program, rule, len(primal.captured))(*args, *primal.captured)
