"""`custom_jvp`: a function whose derivative along a direction the user gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from functx.core import tree
from functx.core.dtypes import is_inexact
from functx.core.errors import ArgumentError, RuleError, type_name
from functx.core.primitive import LinearInput, Primitive
from functx.core.program import Equation, Literal, Program, Var, remove_dead
from functx.core.samples import f32, sample
from functx.core.tracing import rewritten, trace
from functx.custom.rules import (
    Captures,
    CustomCall,
    CustomFunction,
    RuleTrace,
    Traced,
    applied,
    changed,
    flattened,
    flattened_tangents,
    programs_of,
    refuse_captured,
)
from functx.ops.arithmetic import Add, Sub, add, mul
from functx.ops.operands import literal
from functx.ops.shaping import Full, zeros_like
from functx.ops.trigonometric import cos, sin
from functx.transforms.batching import Batch
from functx.transforms.call import TransposeIn
from functx.transforms.calls import check_callable, name_of
from functx.transforms.expand import expand
from functx.transforms.reverse_mode import Transpose


def custom_jvp(
    fun: Callable[..., Any] | None = None, nondiff_argnums: int | Sequence[int] = ()
) -> Any:
    """`fun`, with a derivative that the user gives by `defjvp` or `defjvps`.

    Every transform keeps to that derivative: forward mode runs the rule, reverse mode
    transposes it, `vmap` maps it. Arguments at `nondiff_argnums` are not differentiated and
    may be of any type. Outside transforms it is `fun`.

    >>> import functx
    >>> @functx.custom_jvp
    ... def square(x):
    ...     return x * x
    >>> @square.defjvp
    ... def square_jvp(primals, tangents):
    ...     (x,), (t,) = primals, tangents
    ...     return square(x), 2.0 * x * t
    >>> float(functx.grad(square)(3.0))
    6.0
    """
    if fun is None:
        return partial(custom_jvp, nondiff_argnums=nondiff_argnums)
    return CustomJVPFunction(fun, nondiff_argnums)


class CustomJVPFunction(CustomFunction):
    """What `custom_jvp` makes of a function."""

    kind = "custom_jvp"
    jvp: Callable[..., Any] | None = None

    def defjvp(self, jvp: Callable[..., Any], symbolic_zeros: bool = False) -> Callable[..., Any]:
        """Set the rule, and return it.

        `jvp(*nondiff, primals, tangents)` returns `(output, output tangent)`, linear in the
        tangents. Integers have the tangent None, and may be given it; None stands for zero.
        """
        check_callable(jvp, f"{self!r}.defjvp")
        if symbolic_zeros:
            raise ArgumentError(f"{self!r}.defjvp: symbolic_zeros must be False; got True")
        self.jvp = jvp
        return jvp

    def defjvps(self, *jvps: Callable[..., Any] | None) -> None:
        """Set a rule for each argument; the output tangent is the sum of what they give.

        `jvps[i](t, output, *primals)` returns the output tangent for the tangent `t` of
        argument i. None in its place says that the output does not vary with the argument.
        """
        if self.nondiff_argnums:
            raise ArgumentError(
                f"{self!r}.defjvps: nondiff_argnums must be empty; got {self.nondiff_argnums}",
                fix="Use defjvp.",
            )
        for rule in jvps:
            if rule is not None:
                check_callable(rule, f"{self!r}.defjvps")

        def jvp(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
            if len(jvps) != len(primals):
                raise RuleError(
                    f"{self!r}: defjvps must be given a rule for each argument; "
                    f"got {len(jvps)} for {len(primals)} arguments"
                )
            out = self(*primals)
            total = None
            for rule, t in zip(jvps, tangents, strict=True):
                if rule is not None and tree.leaves(t):
                    term = rule(t, out, *primals)
                    total = term if total is None else tree.map(add, total, term)
            return out, total

        jvp.__name__ = f"{name_of(self.fun)}_jvps"
        self.jvp = jvp

    def rules(self) -> tuple[Callable[..., Any], ...]:
        return () if self.jvp is None else (self.jvp,)

    def traced_rules(
        self, call: CustomCall, trace: RuleTrace, values: Sequence[Any]
    ) -> list[Traced]:
        rule = self.jvp
        assert rule is not None
        what = f"{self!r}: the output of its rule `{name_of(rule)}`"
        tangent_avals = [a for a in call.avals if is_inexact(a.dtype)]

        def body(*xs: Any) -> list[Any]:
            count = len(call.avals)
            rest = iter(xs[count:])
            leaves = [next(rest) if is_inexact(a.dtype) else None for a in call.avals]
            primals, _ = tree.unflatten(call.in_tree, xs[:count])
            tangents, _ = tree.unflatten(call.in_tree, leaves)
            result = rule(*call.nondiff, primals, tangents)
            if not isinstance(result, (tuple, list)) or len(result) != 2:
                raise RuleError(
                    f"{what} must be a pair (output, output tangent); got {type_name(result)}"
                )
            outs = flattened(result[0], call, what)
            what_tangent = what.replace("the output of", "the output tangent of")
            return outs + flattened_tangents(
                result[1], call.out_tree, call.out_avals, what_tangent, "the function's output"
            )

        return [trace(rule, body, [*call.avals, *tangent_avals], values)]

    def arranged(self, traced: Sequence[Traced], captures: Captures) -> tuple[Program, ...]:
        return tuple([captures.extend(*each) for each in traced])

    def primitive(self, primal: Program, rule: Any, captured: int) -> Primitive:
        return CustomJVP(primal, rule, captured)


def _examples() -> tuple[Program, tuple[Program]]:
    def primal(x: Any, y: Any) -> list[Any]:
        return [mul(sin(x), y)]

    def rule(x: Any, y: Any, dx: Any, dy: Any) -> list[Any]:
        return [mul(sin(x), y), add(mul(mul(cos(x), y), dx), mul(sin(x), dy))]

    avals = [f32[3], f32[3]]
    return (
        trace(primal, avals, name="example")[0],
        (trace(rule, [*avals, *avals], name="example_jvp")[0],),
    )


class CustomJVP(Primitive):
    """The outputs of `primal`, whose derivative is what the program in `rule` says.

    That program takes the operands of `primal`, the tangents of the inexact ones, and the
    last `captured` operands, which are not differentiated. It gives the outputs of
    `primal`, then the tangents of the inexact ones.
    """

    primal: Program
    rule: Any
    captured: int = 0
    name = "custom_jvp"
    idle = ("rule",)
    multiple_results = True
    samples = (
        sample(
            f32[3],
            f32[3],
            dtypes=("f32",),
            primal=_examples()[0],
            rule=_examples()[1],
        ),
    )

    def abstract_eval(self, *avals):
        return self.primal.out_avals

    def split(self, args: Sequence[Any], active: Sequence[bool]) -> tuple[Program, Program, Any]:
        """The rule, for operands that vary where `active` says, as values and tangents."""
        refuse_captured(self, active)
        (rule,) = programs_of(self.rule)
        count = len(args) - self.captured
        varying = tuple(
            [on for x, on in zip(args[:count], active, strict=False) if is_inexact(x.dtype)]
        )
        return rewritten(  # type: ignore[return-value]
            SplitRule(count, varying, len(self.primal.outputs)), expand(rule, "transpose")
        )

    def jvp(self, primals, tangents):
        active = [t is not None for t in tangents]
        values, tangent_program, nonzero = self.split(primals, active)
        outs = applied(values, primals)
        count = len(self.primal.outputs)
        given = [t for t in tangents if t is not None]
        found = iter(applied(tangent_program, [*given, *outs[count:]]))
        return outs[:count], [next(found) if on else None for on in nonzero]

    def forward(self, args, active):
        values, _, _ = self.split(args, active)
        outs = applied(values, args)
        count = len(self.primal.outputs)
        return outs[:count], outs[count:]

    def vjp(self, cts, residuals, args, active):
        _, tangent_program, nonzero = self.split(args, active)
        given = [
            zeros_like(aval) if ct is None else ct
            for ct, aval, on in zip(cts, self.primal.out_avals, nonzero, strict=True)
            if on
        ]
        pull_back = rewritten(Transpose(sum(active)), tangent_program)
        found = iter(applied(pull_back, [*given, *residuals]))
        return [next(found) if on else None for on in active]

    def transpose(self, cts, *args):
        return transposed_primal(self.primal, cts, args)

    def batch(self, args, dims):
        size = next(x.shape[d] for x, d in zip(args, dims, strict=True) if d is not None)
        zeros = (0,) * len(self.primal.outputs)
        primal = rewritten(Batch(size, tuple(dims), zeros), self.primal)
        inexact = tuple([is_inexact(x.dtype) for x in args[: len(args) - self.captured]])
        rule = changed(self.rule, BatchJVP(size, tuple(dims), inexact))
        return CustomJVP(primal, rule, self.captured)(*args), list(zeros)

    def lower(self, ctx, *values):
        return ctx.call(self.primal, values)


def transposed_primal(program: Program, cts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
    """The cotangents of the linear operands of `program`, which is linear in them."""
    linear = tuple([type(x) is LinearInput for x in args])
    pull_back = rewritten(TransposeIn(linear), expand(program, "transpose"))
    given = [
        zeros_like(aval) if ct is None else ct
        for ct, aval in zip(cts, program.out_avals, strict=True)
        if is_inexact(aval.dtype)
    ]
    known = [x for x, on in zip(args, linear, strict=True) if not on]
    found = iter(applied(pull_back, [*given, *known]))
    return [next(found) if on else None for on in linear]


@dataclass(frozen=True)
class BatchJVP:
    """The change of a rule to one for batches of `size` along `dims`."""

    size: int
    dims: tuple[int | None, ...]
    inexact: tuple[bool, ...]

    def __call__(self, programs: tuple[Program, ...]) -> tuple[Program, ...]:
        (rule,) = programs
        count = len(self.inexact)
        own = self.dims[:count]
        tangents = tuple([d for d, on in zip(own, self.inexact, strict=True) if on])
        in_dims = (*own, *tangents, *self.dims[count:])
        return (rewritten(Batch(self.size, in_dims, (0,) * len(rule.outputs)), rule),)


@dataclass(frozen=True)
class SplitRule:
    """The split of a rule program into its values and its tangents.

    The rule has `count` operands, whose tangents follow, given where `varying` holds and
    zero elsewhere, and `outputs` outputs besides their tangents. The first program takes
    all operands and gives the outputs and residuals; the second takes the tangents given
    and the residuals, and gives the output tangents that can be other than zero, which
    are marked, one mark an output, in the third part.
    """

    count: int
    varying: tuple[bool, ...]
    outputs: int

    def __call__(self, program: Program) -> tuple[Program, Program, tuple[bool, ...]]:
        end = self.count + len(self.varying)
        tangents = program.inputs[self.count : end]
        known = [*program.inputs[: self.count], *program.inputs[end:]]
        linear_vars = set(tangents)
        values: list[Equation] = []
        linear: list[Equation] = []
        for eqn in program.equations:
            if linear_vars.isdisjoint(a for a in eqn.inputs if type(a) is Var):
                values.append(eqn)
            else:
                linear.append(eqn)
                linear_vars.update(eqn.outputs)
        outs = program.outputs[: self.outputs]
        if any(type(a) is Var and a in linear_vars for a in outs):
            raise RuleError(
                f"the output of the custom rule `{program.name}` must not depend on the tangents; "
                "got one that does"
            )
        given = [v for v, on in zip(tangents, self.varying, strict=True) if on]
        zeros = {v for v, on in zip(tangents, self.varying, strict=True) if not on}
        linear, zeros, same = without_zeros(linear, linear_vars, zeros)
        out_tangents = [same.get(a, a) for a in program.outputs[self.outputs :]]
        rest = iter(out_tangents)
        marks: list[Any] = [next(rest) if is_inexact(a.aval.dtype) else None for a in outs]
        zeros.update(v for e in values if _is_zero(e) for v in e.outputs)
        nonzero = tuple([not (a is None or a in zeros or _is_number_zero(a)) for a in marks])
        kept = [a for a, on in zip(marks, nonzero, strict=True) if on]
        linear = remove_dead(linear, kept)
        made = {v for e in linear for v in e.outputs} | set(given)
        used: dict[Any, None] = dict.fromkeys(
            a for atoms in [*[e.inputs for e in linear], kept] for a in atoms
        )
        residuals = [a for a in used if type(a) is Var and a not in made]
        results = [*outs, *residuals]
        return (
            Program(program.name, known, remove_dead(values, results), results),
            Program(f"{program.name}_tangent", [*given, *residuals], linear, kept),
            nonzero,
        )


def without_zeros(
    equations: Sequence[Equation], linear: set[Var], zeros: set[Any]
) -> tuple[list[Equation], set[Any], dict[Any, Any]]:
    """Linear equations without those that give zero because the variables `zeros` are.

    `linear` holds all variables that the equations are linear in. Also what is zero then, and
    which variables have become others.
    """
    zeros = set(zeros)
    kept: list[Equation] = []
    same: dict[Any, Any] = {}
    for eqn in equations:
        inputs = [same.get(a, a) for a in eqn.inputs]
        on = [i for i, a in enumerate(inputs) if a in linear and a not in zeros]
        if not on and not eqn.primitive.multiple_results:
            zeros.update(eqn.outputs)
        elif (
            isinstance(eqn.primitive, (Add, Sub))
            and on == [0]
            and inputs[1] in zeros
            and inputs[0].aval is eqn.outputs[0].aval
        ) or (
            isinstance(eqn.primitive, Add)
            and on == [1]
            and inputs[0] in zeros
            and inputs[1].aval is eqn.outputs[0].aval
        ):
            same[eqn.outputs[0]] = inputs[on[0]]
        else:
            for i, a in enumerate(inputs):
                if a in zeros:
                    zero = Equation.of(Full(a.aval.shape), [literal(0, a.aval.dtype)], eqn.source)
                    kept.append(zero)
                    inputs[i] = zero.outputs[0]
            kept.append(eqn.replace(inputs=inputs))
    return kept, zeros, same


def _is_zero(eqn: Equation) -> bool:
    return isinstance(eqn.primitive, Full) and _is_number_zero(eqn.inputs[0])


def _is_number_zero(atom: Any) -> bool:
    return type(atom) is Literal and atom.value == 0
