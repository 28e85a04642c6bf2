"""`custom_vjp`: a function whose pullback of cotangents the user gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from functx.core import tree
from functx.core.dtypes import is_inexact
from functx.core.errors import ArgumentError, FunctxError, GradientError, RuleError, type_name
from functx.core.primitive import LinearInput, Primitive
from functx.core.program import Program, remove_dead
from functx.core.samples import f32, sample
from functx.core.tracing import Tracer, aval_of, rewritten, trace
from functx.custom.custom_jvp import transposed_primal
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
from functx.ops.arithmetic import mul
from functx.ops.reductions import reduce_sum
from functx.ops.shaping import zeros_like
from functx.ops.trigonometric import cos, sin
from functx.transforms.batching import Batch, NaturalBatch
from functx.transforms.calls import check_callable, name_of
from functx.transforms.expand import expand
from functx.transforms.reverse_mode import Transpose


def custom_vjp(
    fun: Callable[..., Any] | None = None, nondiff_argnums: int | Sequence[int] = ()
) -> Any:
    """`fun`, with a derivative that the user gives by `defvjp`, as a pullback.

    Every transform keeps to that derivative: reverse mode runs the rule, forward mode
    transposes it (which needs it to be linear in the cotangents), `vmap` maps it. Arguments
    at `nondiff_argnums` are not differentiated and may be of any type. Outside transforms
    it is `fun`.

    >>> import functx
    >>> @functx.custom_vjp
    ... def square(x):
    ...     return x * x
    >>> square.defvjp(lambda x: (x * x, x), lambda x, ct: (2.0 * x * ct,))
    >>> float(functx.grad(square)(3.0))
    6.0
    """
    if fun is None:
        return partial(custom_vjp, nondiff_argnums=nondiff_argnums)
    return CustomVJPFunction(fun, nondiff_argnums)


class CustomVJPFunction(CustomFunction):
    """What `custom_vjp` makes of a function."""

    kind = "custom_vjp"
    fwd: Callable[..., Any] | None = None
    bwd: Callable[..., Any] | None = None

    def defvjp(
        self,
        fwd: Callable[..., Any],
        bwd: Callable[..., Any],
        symbolic_zeros: bool = False,
        optimize_remat: bool = False,
    ) -> None:
        """Set the rule.

        `fwd(*args)` returns `(output, residuals)`, where the residuals are a pytree of
        arrays. `bwd(*nondiff, residuals, ct)` returns a tuple of cotangents, one for each
        differentiable argument; None, for an argument or a part of one, stands for zero.
        Integer outputs have the cotangent None; what is given for integer arguments is
        ignored. `optimize_remat` changes nothing.
        """
        check_callable(fwd, f"{self!r}.defvjp")
        check_callable(bwd, f"{self!r}.defvjp")
        if symbolic_zeros:
            raise ArgumentError(f"{self!r}.defvjp: symbolic_zeros must be False; got True")
        self.fwd, self.bwd = fwd, bwd

    def rules(self) -> tuple[Callable[..., Any], ...]:
        return () if self.fwd is None or self.bwd is None else (self.fwd, self.bwd)

    def traced_rules(
        self, call: CustomCall, trace: RuleTrace, values: Sequence[Any]
    ) -> list[Traced]:
        fwd, bwd = self.fwd, self.bwd
        assert fwd is not None and bwd is not None
        plain = self.of_dynamic(fwd, call.nondiff, call.count)
        residual_tree: Any = None
        residuals: list[Any] = []

        def forward(*xs: Any) -> list[Any]:
            nonlocal residual_tree, residuals
            what = f"{self!r}: the output of its rule `{name_of(fwd)}`"
            args, _ = tree.unflatten(call.in_tree, xs)
            result = plain(*args)
            if not isinstance(result, (tuple, list)) or len(result) != 2:
                raise RuleError(
                    f"{what} must be a pair (output, residuals); got {type_name(result)}"
                )
            outs = flattened(result[0], call, what)
            residuals, residual_tree = tree.flatten(result[1])
            for x in residuals:
                try:
                    aval_of(x)
                except ArgumentError:
                    raise RuleError(
                        f"{self!r}: the residuals that its rule `{name_of(fwd)}` returns must be "
                        f"arrays; got {type_name(x)}",
                        fix="Compute it again in the backward rule, or use nondiff_argnums.",
                    ) from None
            return [*outs, *residuals]

        first = trace(fwd, forward, call.avals, values)
        ct_avals = [a for a in call.out_avals if is_inexact(a.dtype)]

        def backward(*xs: Any) -> list[Any]:
            what = f"{self!r}: what its rule `{name_of(bwd)}` returns"
            rest = iter(xs)
            leaves = [next(rest) if is_inexact(a.dtype) else None for a in call.out_avals]
            ct = tree.unflatten(call.out_tree, leaves)
            found = bwd(*call.nondiff, tree.unflatten(residual_tree, list(rest)), ct)
            structure = call.in_tree.children()[0]
            count = structure.num_nodes and len(structure.children())
            if not isinstance(found, (tuple, list)) or len(found) != count:
                got = type_name(found)
                if isinstance(found, (tuple, list)):
                    got += f" of {len(found)}"
                raise RuleError(
                    f"{what} must be a tuple with a cotangent for each of {count} arguments; "
                    f"got {got}"
                )
            return flattened_tangents(tuple(found), structure, call.avals, what, "the arguments")

        # Python may ask for the value of a residual, which the forward rule can find.
        known = [None] * len(ct_avals) + [x if type(x) is Tracer else None for x in residuals]
        second = trace(
            bwd, backward, [*ct_avals, *[aval_of(x) for x in residuals]], known if values else ()
        )
        return [first, second]

    def arranged(self, traced: Sequence[Traced], captures: Captures) -> tuple[Program, ...]:
        (first, first_captured), (second, second_captured) = traced
        forward = captures.extend(first, first_captured)
        # What the backward rule captured is for it one more residual.
        given = forward.inputs[len(forward.inputs) - len(captures.values) :]
        handed = [given[captures.place(x)] for x in second_captured]
        outputs = [*forward.outputs, *handed]
        return (
            Program(
                forward.name, forward.inputs, forward.equations, outputs, in_names=forward.in_names
            ),
            second,
        )

    def primitive(self, primal: Program, rule: Any, captured: int) -> Primitive:
        return CustomVJP(primal, rule, captured)


def _examples() -> tuple[Program, tuple[Program, Program]]:
    def primal(x: Any, y: Any) -> list[Any]:
        return [mul(sin(x), y)]

    def forward(x: Any, y: Any) -> list[Any]:
        return [mul(sin(x), y), x, y]

    def backward(ct: Any, x: Any, y: Any) -> list[Any]:
        return [mul(ct, mul(cos(x), y)), mul(ct, sin(x))]

    avals = [f32[3], f32[3]]
    return (
        trace(primal, avals, name="example")[0],
        (
            trace(forward, avals, name="example_fwd")[0],
            trace(backward, [f32[3], *avals], name="example_bwd")[0],
        ),
    )


class CustomVJP(Primitive):
    """The outputs of `primal`, whose pullback is what the programs in `rule` say.

    The first takes the operands and gives the outputs and residuals. The second takes the
    cotangents of the inexact outputs and the residuals, and gives those of the inexact
    operands, except the last `captured`, which are not differentiated.
    """

    primal: Program
    rule: Any
    captured: int = 0
    name = "custom_vjp"
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

    def forward(self, args, active):
        refuse_captured(self, active)
        first, _ = programs_of(self.rule)
        outs = applied(first, args)
        count = len(self.primal.outputs)
        return outs[:count], outs[count:]

    def vjp(self, cts, residuals, args, active):
        second = self.backward(args, active)
        given = [
            zeros_like(aval) if ct is None else ct
            for ct, aval in zip(cts, self.primal.out_avals, strict=True)
            if is_inexact(aval.dtype)
        ]
        found = iter(applied(second, [*given, *residuals]))
        return [next(found) if on else None for on in active]

    def backward(self, args: Sequence[Any], active: Sequence[bool]) -> Program:
        """The backward program for the active operands alone."""
        _, second = programs_of(self.rule)
        own = args[: len(args) - self.captured]
        chosen = tuple([on for x, on in zip(own, active, strict=False) if is_inexact(x.dtype)])
        return rewritten(Choose(chosen), second)

    def jvp(self, primals, tangents):
        active = [t is not None for t in tangents]
        count = len(self.primal.outputs)
        outs, residuals = self.forward(primals, active)
        cts = sum([is_inexact(aval.dtype) for aval in self.primal.out_avals])
        second = expand(self.backward(primals, active), "transpose")
        try:
            # The backward program is linear, and its transpose takes tangents forward.
            push = rewritten(Transpose(cts), second)
        except (FunctxError, AttributeError, TypeError) as error:
            raise GradientError(
                f"custom_vjp({self.primal.name}): in forward mode the backward rule must be "
                "linear in the cotangents, since it is transposed; got one that is not",
                fix="Use reverse mode, or custom_jvp.",
            ) from error
        given = [t for t in tangents if t is not None]
        found = iter(applied(push, [*given, *residuals]))
        return outs, [next(found) if is_inexact(x.dtype) else None for x in outs[:count]]

    def transpose(self, cts, *args):
        linear = [type(x) is LinearInput for x in args]
        first, _ = programs_of(self.rule)
        linear_vars = {v for v, on in zip(first.inputs, linear, strict=True) if on}
        for eqn in first.equations:
            if any(a in linear_vars for a in eqn.inputs):
                linear_vars.update(eqn.outputs)
        second = self.backward(args, linear)
        count = len(self.primal.outputs)
        given_cts = len(second.inputs) - len(first.outputs) + count
        used = {a for eqn in second.equations for a in eqn.inputs} | set(second.outputs)
        wanted = second.inputs[given_cts:]
        if any(
            a in linear_vars and v in used
            for a, v in zip(first.outputs[count:], wanted, strict=True)
        ):
            return transposed_primal(self.primal, cts, args)
        known = [i for i, on in enumerate(linear) if not on]
        values = Program(
            first.name,
            [first.inputs[i] for i in known],
            [e for e in first.equations if not any(v in linear_vars for v in e.outputs)],
            [a for a in first.outputs[count:] if a not in linear_vars],
        )
        rest = iter(applied(values, [args[i] for i in known]))
        residuals = [
            zeros_like(a.aval) if a in linear_vars else next(rest) for a in first.outputs[count:]
        ]
        return self.vjp(cts, residuals, args, linear)

    def batch(self, args, dims):
        size = next(x.shape[d] for x, d in zip(args, dims, strict=True) if d is not None)
        zeros = (0,) * len(self.primal.outputs)
        primal = rewritten(Batch(size, tuple(dims), zeros), self.primal)
        inexact = tuple([is_inexact(x.dtype) for x in args[: len(args) - self.captured]])
        rule = changed(self.rule, BatchVJP(size, tuple(dims), inexact, len(zeros)))
        return CustomVJP(primal, rule, self.captured)(*args), list(zeros)

    def lower(self, ctx, *values):
        return ctx.call(self.primal, values)


@dataclass(frozen=True)
class Choose:
    """The rewrite to the outputs that are `chosen`."""

    chosen: tuple[bool, ...]

    def __call__(self, program: Program) -> Program:
        if all(self.chosen):
            return program
        outputs = [a for a, on in zip(program.outputs, self.chosen, strict=True) if on]
        equations = remove_dead(program.equations, outputs)
        return Program(program.name, program.inputs, equations, outputs, in_names=program.in_names)


@dataclass(frozen=True)
class BatchVJP:
    """The change of a rule to one for batches of `size` along `dims`."""

    size: int
    dims: tuple[int | None, ...]
    inexact: tuple[bool, ...]
    outputs: int

    def __call__(self, programs: tuple[Program, ...]) -> tuple[Program, ...]:
        first, second = programs
        _, found = rewritten(NaturalBatch(self.size, self.dims), first)
        out_dims = (0,) * self.outputs + tuple(found[self.outputs :])
        batched = rewritten(Batch(self.size, self.dims, out_dims), first)
        residual_dims = out_dims[self.outputs :]
        cts = len(second.inputs) - len(residual_dims)
        wanted = tuple([d for d, on in zip(self.dims, self.inexact, strict=False) if on])
        in_dims = (*[0] * cts, *residual_dims)
        return batched, rewritten(BatchBackward(self.size, in_dims, wanted), second)


@dataclass(frozen=True)
class BatchBackward:
    """The rewrite of a backward program to one for batches.

    The cotangent of an operand that all shared, with None in `wanted`, is summed.
    """

    size: int
    in_dims: tuple[int | None, ...]
    wanted: tuple[int | None, ...]

    def __call__(self, program: Program) -> Program:
        out_dims = tuple([0 if d is None else d for d in self.wanted])
        batched = Batch(self.size, self.in_dims, out_dims)(program)

        def body(*xs: Any) -> list[Any]:
            outs = applied(batched, xs)
            return [
                reduce_sum(x, (0,)) if d is None else x
                for x, d in zip(outs, self.wanted, strict=True)
            ]

        return trace(body, batched.in_avals, name=batched.name)[0]
