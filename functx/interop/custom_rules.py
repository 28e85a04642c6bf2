"""Calls of JAX functions with rules of users: `jax.custom_jvp`, `jax.custom_vjp`, `jax.custom_vmap`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from types import FunctionType
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jax.extend.linear_util import WrappedFun
from jax.interpreters.ad import Zero

from functx import ops
from functx.core.masks import inexact_mask, scatter_where, select_where, split_list
from functx.core.program import Program, Var
from functx.core.rewriting import Record
from functx.core.source_info import closure_values
from functx.core.tracer import Tracer, aval_of
from functx.core.tracing import eval_context, trace, trace_closed
from functx.core.tree import TreeDef
from functx.core.types import ShapedArray, is_inexact
from functx.core.typing import (
    ArrayLike,
    Cotangent,
    Cotangents,
    Flags,
    Function,
    PyTree,
    Tangent,
    Tangents,
    Value,
    Values,
)
from functx.custom.custom_function import CustomDerivativeCall, CustomFunction
from functx.custom.custom_jvp import CustomJVP, CustomJVPFunction
from functx.custom.custom_vjp import CustomVJP, CustomVJPFunction
from functx.custom.custom_vmap import CustomVmap, CustomVmapFunction, captured_tracers
from functx.custom.rule_tracing import Activity, LazyRules
from functx.interop.jaxpr_functions import JaxprFunction
from functx.interop.jaxprs import FunctionKeys, JaxprEqn, jaxpr_key, package_of
from functx.interop.translation import (
    DIFFERENTIABLE_FORMS,
    LinearizedJaxpr,
    Translated,
    register_translation,
    translate_function,
    translate_jaxpr,
    translated_batch,
    translated_linearization,
)
from functx.transforms.argument_names import function_name
from functx.transforms.dce import with_io


class JaxJVPFunction(CustomJVPFunction):
    """A `jax.custom_jvp` function of arrays, traced with the values that its Python code reads."""

    def __init__(self, fun: WrappedFun, jvp: WrappedFun):
        super().__init__(primal_function(fun))
        self.user_functions = fun.f, jvp.f

        def rule(primals: Values, tangents: Tangents) -> tuple[PyTree, PyTree]:
            reset_stores(jvp)
            pairs = zip(primals, tangents, strict=True)
            given = [to_jax_tangent(t, np.shape(x)) for x, t in pairs]
            found = jvp.call_wrapped(*made_by_jax(primals), *given)
            count = len(found) // 2
            return list(found[:count]), [from_jax_tangent(t) for t in found[count:]]

        rule.__name__ = function_name(jvp.f)
        self.defjvp(rule)

    def is_function_of(self, other: CustomFunction) -> bool:
        return isinstance(other, JaxJVPFunction) and self.user_functions == other.user_functions


class JaxVJPFunction(CustomVJPFunction):
    """A `jax.custom_vjp` function of arrays, traced with the values that its Python code reads.

    Once the forward rule ran, `out_trees` gives the structures of the output and the residuals, and
    for each residual that is an argument the position of that argument, else None.
    """

    def __init__(
        self,
        fun: WrappedFun,
        fwd: WrappedFun,
        bwd: WrappedFun,
        out_trees: Callable[[], tuple[TreeDef, TreeDef, list[int | None]]],
    ):
        super().__init__(primal_function(fun))
        self.user_functions = fun.f, fwd.f, bwd.f
        shapes: list[tuple[int, ...]] = []

        def forward(*args: Value) -> tuple[PyTree, PyTree]:
            reset_stores(fwd)
            primals = made_by_jax(args)
            # The flags say that the derivative in each argument is needed.
            found = fwd.call_wrapped(*[part for x in primals for part in (x, True)])
            forwarded = out_trees()[2]
            count = forwarded.count(None)
            computed, outs = iter(found[:count]), list(found[count:])
            shapes[:] = [np.shape(x) for x in outs]
            return outs, [next(computed) if i is None else primals[i] for i in forwarded]

        def backward(residuals: Values, cts: Cotangents) -> tuple[Cotangent, ...]:
            pairs = zip(cts, shapes, strict=True)
            given = [to_jax_tangent(ct, shape) for ct, shape in pairs]
            found = bwd.call_wrapped(*made_by_jax(residuals), *given)
            return tuple([from_jax_tangent(ct) for ct in found])

        forward.__name__, backward.__name__ = function_name(fwd.f), function_name(bwd.f)
        self.defvjp(forward, backward)

    def is_function_of(self, other: CustomFunction) -> bool:
        return isinstance(other, JaxVJPFunction) and self.user_functions == other.user_functions


def primal_function(fun: WrappedFun) -> Function:
    """`fun` as a function of arrays that follow the rules of JAX."""

    def primal(*args: Value) -> list[Value]:
        reset_stores(fun)
        return list(fun.call_wrapped(*made_by_jax(args)))

    primal.__name__ = function_name(fun.f)
    return primal


def reset_stores(fun: WrappedFun) -> None:
    """Forget the structures that JAX stored when `fun` ran, so that it can run again."""
    for store in fun.stores:
        if store:
            store.reset()


def made_by_jax(args: Values) -> list[Value]:
    """The arguments of a JAX function, as values that JAX made."""
    for x in args:
        if type(x) is Tracer:
            x.builder.mark_made_by_jax(x.atom)
    return list(args)


def to_jax_tangent(t: Tangent, shape: tuple[int, ...]) -> ArrayLike:
    """A tangent or cotangent for a rule of JAX; None stands for that of an integer."""
    return np.zeros(shape, jax.dtypes.float0) if t is None else t


def from_jax_tangent(t: Tangent | Zero | SymbolicZero) -> Tangent:
    """A tangent or cotangent that a rule of JAX gave, with None for a zero."""
    return None if isinstance(t, (Zero, SymbolicZero)) else t


class JaxDerivativeRule(LazyRules):
    """The rule of one call of a JAX function, traced when it is first needed.

    Two are equal if their primal programs are equal and the user's functions that define the rules
    have equal keys (`FunctionKeys`). Neither rule is traced for the comparison.
    """

    def __init__(self, eqn: JaxprEqn, captured: Values):
        params = eqn.params
        self.function = function = JaxprFunction.of_equation(eqn)
        # JAX puts captured values first, functx last.
        count = params["num_consts"]
        self.consts, self.argument_avals = function.in_avals[:count], function.in_avals[count:]
        self.captured = [*self.consts, *[aval_of(x) for x in captured]]
        self.symbolic_zeros = bool(params["symbolic_zeros"])
        self.programs_by_activity: dict[Activity, tuple[Program, ...]] = {}
        primal, held = params["call_jaxpr"], ParameterKeys()
        self.primal_name = primal.jaxpr.debug_info.func_name
        self.key: Any = (
            type(self),
            jaxpr_key(primal.jaxpr),
            tuple([id(c) for c in primal.consts]),
            count,
            tuple([part for name in sorted(params) for part in held.keys_in(params[name])]),
            tuple(function.in_avals),
        )
        self.extra_captures = self.trace_eagerly() if held.function_keys.tracers else []

    @property
    def unwrapped_key(self) -> Hashable:
        """The key of the rule and of the rule that its own derivative has, which JAX wraps once more."""
        *primal, functions, avals = self.key
        return (*primal, frozenset(functions), avals)

    def rule_parts(self, activity: Activity) -> list[RulePart]:
        """The parts of the rule as functions to trace."""
        raise NotImplementedError

    def trace_eagerly(self) -> list[Tracer]:
        """Traces a rule that captures tracers, while their trace runs; returns them as further operands."""
        first, *others = [
            trace(part.fun, part.avals, name=part.name) for part in self.rule_parts(self.all_active)
        ]
        extra = {x.atom: x for _, captured in (first, *others) for x in captured}
        program, captured = first
        count = len(program.inputs) - len(captured)
        own = {x.atom: v for x, v in zip(captured, program.inputs[count:], strict=True)}
        given = {atom: own.get(atom) or Var(atom.aval) for atom in extra}
        residuals = [given[x.atom] for _, captured in others for x in captured]
        inputs = [*program.inputs[:count], *given.values()]
        program = with_io(program, inputs, [*program.outputs, *residuals])
        self.programs_by_activity[self.all_active] = program, *[other for other, _ in others]
        return list(extra.values())

    @property
    def all_active(self) -> Activity:
        """The activity of the derivative of every output in every argument."""
        given = self.function.differentiable_outputs(self.function.out_avals)
        return Activity((True,) * sum(inexact_mask(self.argument_avals)), (True,) * len(given))

    def varying(self, activity: Activity) -> tuple[bool, ...]:
        """The mask of the differentiated arguments of the function, in JAX's order."""
        moving = iter(activity.varying)
        own = [on and next(moving) for on in inexact_mask(self.argument_avals)]
        return (False,) * len(self.consts) + tuple(own)

    def programs(self, activity: Activity) -> tuple[Program, ...]:
        # A rule without symbolic zeros is the same for every activity.
        activity = activity if self.symbolic_zeros and not self.extra_captures else self.all_active
        if activity not in self.programs_by_activity:
            with eval_context():
                parts = self.rule_parts(activity)
                self.programs_by_activity[activity] = tuple(
                    [trace_closed(part.fun, part.avals, name=part.name) for part in parts]
                )
        return self.programs_by_activity[activity]

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, JaxDerivativeRule) and self.key == other.key)

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return f"rule of {self.primal_name}"


class RulePart(NamedTuple):
    """A part of a rule: a function of values of `avals`, and the name of its program."""

    fun: Callable[..., list[Value]]
    avals: list[ShapedArray]
    name: str


class ParameterKeys:
    """Cache keys of the user's functions inside the parameters of an equation.

    The wrappers that JAX puts around them are new in each trace, so their contents are compared.
    """

    def __init__(self) -> None:
        self.function_keys = FunctionKeys()

    def keys_in(self, value: Any) -> list[Hashable]:
        """The keys of the values in a parameter."""
        found: list[Hashable] = []
        seen: set[int] = set()
        pending = [value]
        while pending:
            each = pending.pop()
            if id(each) in seen:
                continue
            seen.add(id(each))
            if isinstance(each, WrappedFun):
                pending.append(each.f)
                pending += [part for _, params in each.transforms for part in params]
            elif type(each) is FunctionType and package_of(each) == "jax":
                found.append(each.__code__)
                pending += closure_values(each)
            elif type(each).__name__ == "Unhashable" and package_of(type(each)) == "jax":
                found.append(self.function_keys.key_of(each.val))
            elif type(each) is tuple:
                pending += each
            elif callable(each) and package_of(type(each)) in ("jax", "jaxlib"):
                pending.append(getattr(each, "__wrapped__", None))
            elif callable(each):
                found.append(self.function_keys.key_of(each))
        return found


class JaxJVPRule(JaxDerivativeRule):
    """The rule of a `jax.custom_jvp` function: outputs and tangents from operands and tangents."""

    def rule_parts(self, activity: Activity) -> list[RulePart]:
        function, own, consts = self.function, len(self.argument_avals), len(self.consts)
        values, push, _ = translated_linearization(function, self.varying(activity))
        moving = [a for a in self.argument_avals if is_inexact(a.dtype)]
        end, count = own + len(moving), len(function.out_avals)

        def rule(*xs: Value) -> list[Value]:
            outs = values.call_with_constants([*xs[end : end + consts], *xs[:own]])
            tangents = select_where(xs[own:end], activity.varying)
            return [*outs[:count], *push.call_with_constants([*outs[count:], *tangents])]

        avals = [*self.argument_avals, *moving, *self.captured]
        return [RulePart(rule, avals, f"{self.primal_name}_jvp")]


class JaxVJPRule(JaxDerivativeRule):
    """The rule of a `jax.custom_vjp` function: a forward program and a backward one."""

    def rule_parts(self, activity: Activity) -> list[RulePart]:
        function, own, consts = self.function, len(self.argument_avals), len(self.consts)
        count, varying = len(function.out_avals), self.varying(activity)
        moving = select_where(function.in_avals, varying)
        structs = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in moving]
        linearized = LinearizedJaxpr(function, varying)
        name = f"{self.primal_name}_fwd"
        first = translate_function(linearized.values, function.in_avals, name)
        residuals = first.program.out_avals[count:]
        outputs = function.differentiable_outputs(function.out_avals)

        def cotangents(*xs: Value) -> list[Value]:
            residuals = xs[len(outputs) :]

            # JAX takes the cotangents of the outputs left out as zero.
            def reached(*tangents: Value) -> list[Value]:
                return select_where(linearized.push(residuals, tangents), activity.has_cotangent)

            pull = jax.linear_transpose(reached, *structs)
            return list(pull(select_where(xs[: len(outputs)], activity.has_cotangent)))

        second = translate_function(cotangents, [*outputs, *residuals], f"{self.primal_name}_bwd")

        def forward(*xs: Value) -> list[Value]:
            return first.call_with_constants([*xs[own : own + consts], *xs[:own]])

        def backward(*xs: Value) -> list[Value]:
            found = scatter_where(second.call_with_constants(xs), activity.varying)
            return ops.instantiate_zeros(
                found, select_where(self.argument_avals, inexact_mask(self.argument_avals))
            )

        return [
            RulePart(forward, [*self.argument_avals, *self.captured], first.program.name),
            RulePart(backward, [*outputs, *residuals], second.program.name),
        ]


@register_translation("custom_jvp_call", keys=True)
def translate_custom_jvp_call(eqn: JaxprEqn, *args: Value) -> Translated:
    return bind_custom_call(CustomJVP, JaxJVPRule, eqn, args)


@register_translation("custom_vjp_call", keys=True)
def translate_custom_vjp_call(eqn: JaxprEqn, *args: Value) -> Translated:
    return bind_custom_call(CustomVJP, JaxVJPRule, eqn, args)


@register_translation("custom_vmap_call")
def translate_custom_vmap_call(eqn: JaxprEqn, *args: Value) -> Translated:
    """The call of a function whose rule closes over traced values, which may be mapped as well.

    Others stay calls of JAX, with the derivatives of `custom_vmap_of_jax`.
    """
    user_rule: Any = getattr(eqn.params["rule"], "rule", None)
    if not captured_tracers(user_rule):
        return NotImplemented
    consts_tree, argument_tree = eqn.params["in_tree"].children()
    consts, leaves = split_list(args, [consts_tree.num_leaves])
    body = translate_jaxpr(eqn.params["call"], [aval_of(x) for x in args])
    custom = CustomVmapFunction(lambda *xs: body([*consts, *xs]))

    def rule(size: int, batched: Sequence[bool], *xs: Value) -> tuple[Values, Flags]:
        flags = list(argument_tree.unflatten(batched))
        out, out_batched = user_rule(size, flags, *argument_tree.unflatten(xs))
        return jax.tree.leaves(out), jax.tree.leaves(out_batched)

    rule.__name__ = function_name(user_rule)
    custom.def_vmap(rule)
    return custom(*leaves)


def custom_vmap_of_jax(function: JaxprFunction) -> CustomVmap:
    """The call of a `jax.custom_vmap` function as one of functx, since JAX has no derivatives of it."""
    (eqn,) = function.jaxpr.eqns
    translated = translate_jaxpr(eqn.params["call"], function.in_avals)
    program = trace_closed(
        lambda *args: translated.call_with_constants(args),
        function.in_avals,
        name=translated.program.name,
    )
    return CustomVmap(program, JaxVmapRule(function))


DIFFERENTIABLE_FORMS["custom_vmap_call"] = custom_vmap_of_jax


class JaxVmapRule(Record):
    """The batching rule of `function`, a call of a `jax.custom_vmap` function."""

    function: JaxprFunction

    def applies_to(self, flags: Flags) -> bool:
        return any(flags)

    def __call__(self, size: int, flags: Flags, args: Values) -> tuple[list[Value], list[bool]]:
        dims = tuple([0 if on else None for on in flags])
        mapped, out_dims = translated_batch(self.function, size, dims)
        return mapped(args), [d is not None for d in out_dims]


def bind_custom_call(
    primitive: type[CustomDerivativeCall],
    rule: type[JaxDerivativeRule],
    eqn: JaxprEqn,
    args: Values,
) -> list[Value]:
    """The outputs of a call of a function with a custom rule."""
    program, captured = translate_jaxpr(eqn.params["call_jaxpr"], [aval_of(x) for x in args])
    count, end = eqn.params["num_consts"], len(args)
    inputs = program.inputs
    if count:
        inputs = [*inputs[count:end], *inputs[:count], *inputs[end:]]
        program = with_io(program, inputs, program.outputs)
    made = rule(eqn, captured)
    if made.extra_captures:
        inputs = [*inputs, *[Var(x.atom.aval) for x in made.extra_captures]]
        program = with_io(program, inputs, program.outputs)
    operands = [*args[count:], *args[:count], *captured, *made.extra_captures]
    return primitive(program, made, len(operands) - len(made.argument_avals))(*operands)
