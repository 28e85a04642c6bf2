"""`checkpoint`: functions whose derivatives recompute values instead of saving them.

`Checkpoint` holds the program; `RematPartialEval` decides, by a policy, which residuals its
derivatives save and which they recompute.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jax.extend.mlir.dialects import stablehlo

from functx import ops
from functx.core import tree
from functx.core.checking import check_operands
from functx.core.dead_code import dce_equations
from functx.core.errors import ArgnumsError, ArgumentError, EffectError, type_name
from functx.core.masks import inexact_mask, mask_of, scatter_where, select_where
from functx.core.program import Atom, Equation, Program, Var, subprograms
from functx.core.program_editing import inline, replace_program_fields
from functx.core.rewriting import Rewrite, cached_rewrite
from functx.core.samples import LazySamples, f32, sample
from functx.core.tracer import current_builder
from functx.core.tracing import trace_closed
from functx.core.types import ShapedArray
from functx.core.typing import Avals, Cotangents, Flags, Function, PyTree, Tangents, Value, Values
from functx.custom import checkpoint_policies  # noqa: F401 - the texts of calls name it
from functx.custom.checkpoint_policies import MinCut, Policy, everything_saveable
from functx.custom.custom_function import bind_arguments, has_jax_tracers
from functx.passes.rematerialization import MIN_CUT_PLAN, MinCutSplit, use_memory_plan
from functx.transforms.aliasing import call_outside_trace
from functx.transforms.argument_names import (
    as_decorator,
    check_callable,
    function_name,
    wrap_transform,
)
from functx.transforms.call_primitive import (
    Call,
    ProgramCall,
    SelectMaskedVJP,
    broadcast_masks,
    unpack_cotangents,
)
from functx.transforms.control.body_tracing import is_linearizing
from functx.transforms.control.scan import Scan
from functx.transforms.dce import RemoveEffects
from functx.transforms.forward_mode import JVPRewrite, Linearize
from functx.transforms.linear_transpose import transpose_call
from functx.transforms.symbolic_zeros import DropZeroInputs, nonzero_output_mask
from functx.transforms.tracing_api import avals_of, trace_function

if TYPE_CHECKING:
    from functx.core.typing import IRValue
    from functx.lowering.stablehlo_emitter import LoweringContext


def checkpoint(
    fun: Function | None = None,
    *,
    prevent_cse: PyTree = True,
    policy: Callable[..., bool] | None = None,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    concrete: bool = False,
) -> Function:
    """`fun`, whose derivatives save only the arguments and recompute all other residuals.

    The backward sweep evaluates `fun` once more; in return no intermediate value is kept in
    memory. A `policy` says which values are saved in addition to the arguments: one of
    `functx.checkpoint_policies`, or a function `policy(primitive, *avals, **params) -> bool`.
    Operations with effects are never repeated: their results are saved. With `prevent_cse` the
    compiler may not merge the two evaluations; a tree prefix of the arguments counts as True if
    any of its leaves is True. Arguments at `static_argnums`, or of the names in
    `static_argnames`, may be of any type.

    Raises ArgumentError for a policy that is not a function or does not return a bool, and for
    `concrete`, which is not supported.

    >>> import functx
    >>> block = functx.checkpoint(lambda x: functx.numpy.sin(functx.numpy.sin(x)))
    >>> float(functx.grad(block)(0.0))
    1.0
    """
    if policy is not None and not callable(policy):
        raise ArgumentError(
            f"checkpoint: policy must be a function or None; got {type_name(policy)}",
            fix="Use one of functx.checkpoint_policies.",
        )
    if concrete:
        raise ArgumentError(
            "checkpoint: concrete must be False; got True",
            fix="Make what Python decides on static: static_argnums.",
        )
    if fun is None:
        return as_decorator(checkpoint, locals())
    check_callable(fun, "checkpoint")
    numbers = (static_argnums,) if isinstance(static_argnums, int) else tuple(static_argnums)
    names = (static_argnames,) if isinstance(static_argnames, str) else tuple(static_argnames)

    def wrapper(*args: PyTree, **kwargs: PyTree) -> PyTree:
        if current_builder.get() is None and not has_jax_tracers((args, kwargs)):
            return call_outside_trace(fun, *args, **kwargs)
        if any(not -len(args) <= n < len(args) for n in numbers):
            raise ArgnumsError(
                f"checkpoint({function_name(fun)}): static_argnums must name positional arguments; "
                f"got {numbers} for {len(args)} of them"
            )
        static = {n % len(args): args[n % len(args)] for n in numbers}
        static_keywords = {name: kwargs.pop(name) for name in names if name in kwargs}
        dynamic = tuple([x for i, x in enumerate(args) if i not in static])
        function = bind_arguments(fun, static, len(args), static_keywords)
        leaves, in_tree = tree.flatten_with_key_data((dynamic, kwargs))
        avals = avals_of(leaves, "checkpoint", function, in_tree)
        barrier = _any_flag(f"checkpoint({function_name(fun)}): prevent_cse", prevent_cse, args)
        traced = trace_function(
            function, in_tree, avals, "checkpoint", values=leaves, carries_writes=True
        )
        operands = [*leaves, *traced.captured]
        outs = Checkpoint(traced.program, barrier, False, policy)(*operands)
        return tree.unflatten(
            traced.out_tree, traced.finish_call(operands, outs, of_transform=False)
        )

    checkpointed = wrap_transform(wrapper, fun, "checkpoint")
    checkpointed.__name__ = function_name(fun)
    return checkpointed


remat = checkpoint


def _any_flag(label: str, flags: PyTree, args: tuple[PyTree, ...]) -> bool:
    if isinstance(flags, bool):
        return flags
    leaves = tree.broadcast_prefix(flags, tree.structure(args), label)
    if wrong := [flag for flag in leaves if not isinstance(flag, bool)]:
        raise ArgumentError(f"{label} must be made of True and False; got {wrong[0]!r}")
    return any(leaves)


def _example() -> Program:
    def body(x: Value, y: Value) -> list[Value]:
        return [ops.sin(ops.mul(ops.sin(x), y))]

    return trace_closed(body, [f32[3], f32[3]], name="example")


class Checkpoint(ProgramCall):
    """The outputs of `program`, whose derivatives save the operands and the values of `policy`.

    `differentiated` marks a computation that repeats an earlier one. With `prevent_cse` it is
    lowered behind an optimization barrier, so that the compiler does not merge the two.
    """

    prevent_cse: bool = True
    differentiated: bool = False
    policy: Policy | MinCut | None = None
    no_cse = True
    samples = LazySamples(
        lambda: (
            sample(f32[3], f32[3], dtypes=("f32",), program=_example()),
            sample(f32[3], f32[3], dtypes=("f32",), program=_example(), differentiated=True),
            sample(f32[3], f32[3], dtypes=("f32",), program=_example(), policy=everything_saveable),
        )
    )

    def abstract_eval(self, *avals: ShapedArray) -> Avals:
        check_operands(self, avals, self.program.in_avals)
        return self.program.out_avals

    def with_program(self, program: Program, differentiated: bool = False) -> Checkpoint:
        """A checkpoint of another program, with the parameters of this one."""
        return self.replace(program=program, differentiated=self.differentiated or differentiated)

    def partial_eval(self, split: Linearize | SelectMaskedVJP) -> RematSplit:
        """The two programs of a derivative by `split`; the second recomputes residuals."""
        return cached_rewrite(RematPartialEval(split, self.policy), self.program)

    def jvp(self, primals: Values, tangents: Tangents) -> tuple[Values, Tangents]:
        varying = tuple([t is not None for t in tangents])
        nonzero = select_where(tangents, varying)
        count = len(self.program.outputs)
        if is_linearizing():
            split = self.partial_eval(Linearize(varying))
            outs = self.with_program(split.known)(*primals)
            tangent_program = self.with_program(split.unknown, differentiated=True)
            out_tangents = tangent_program(*nonzero, *outs[count:], *primals)
        else:
            jvp_program = cached_rewrite(JVPRewrite(varying), self.program)
            outs = self.with_program(jvp_program)(*primals, *nonzero)
            out_tangents = outs[count:]
        outs = outs[:count]
        return outs, scatter_where(out_tangents, inexact_mask(outs))

    def forward(self, args: Values, active: Flags) -> tuple[Values, Values]:
        split = self.partial_eval(SelectMaskedVJP(tuple(active), False))
        outs = self.with_program(split.known)(*args)
        count = len(self.program.outputs)
        return outs[:count], outs[count:]

    def vjp(self, cts: Cotangents, saved: Values, args: Values, active: Flags) -> Cotangents:
        masks = [mask_of(ct) for ct in cts]
        masked = any([mask is not None for mask in masks])
        backward = self.partial_eval(SelectMaskedVJP(tuple(active), masked)).unknown
        inexact = inexact_mask(self.program.out_avals)
        if masked:
            out_cts = ops.inexact_cotangents(cts, self.program.out_avals)
            out_cts = [*out_cts, *broadcast_masks(select_where(masks, inexact), out_cts)]
        else:
            nonzero = tuple([ct is not None for ct in select_where(cts, inexact)])
            backward = cached_rewrite(DropZeroInputs(nonzero), backward)
            out_cts = [ct for ct in select_where(cts, inexact) if ct is not None]
        outs = self.with_program(backward, differentiated=True)(*out_cts, *saved, *args)
        nonzero_outs = nonzero_output_mask(backward)
        in_cts = [x if on else None for x, on in zip(outs, nonzero_outs, strict=True)]
        return unpack_cotangents(active, backward, in_cts)

    def transpose(self, cts: Cotangents, *args: Value) -> Cotangents:
        def run(pullback: Program, operands: Values) -> Values:
            return self.with_program(pullback, differentiated=True)(*operands)

        return transpose_call(self.program, cts, args, run)

    def lower(self, ctx: LoweringContext, *values: IRValue) -> Sequence[IRValue]:
        if self.differentiated and self.prevent_cse and values:
            values = (*stablehlo.OptimizationBarrierOp(list(values)).results,)
        return ctx.call(self.program, list(values))


class RematSplit(NamedTuple):
    """The two programs of a derivative of a checkpoint.

    `known` gives the outputs, then the saved values. `unknown` takes the tangents or cotangents,
    then the saved values, then the inputs of the program.
    """

    known: Program
    unknown: Program


class RematPlan(NamedTuple):
    """The values of a program that are saved, and the equations that recompute the others.

    `aliases` maps variables to saved ones of the same value (by `checkpoint_name`);
    `replaced_equations` maps equations to those that also give saved values.
    """

    saved: list[Var]
    recomputed: list[Equation]
    aliases: dict[Atom, Var]
    replaced_equations: dict[Equation, Equation]

    def known_program(self, program: Program, outputs: Sequence[Atom]) -> Program:
        """`program` with other `outputs`, which may be saved values."""
        equations = [self.replaced_equations.get(eqn, eqn) for eqn in program.equations]
        return Program(program.name, program.inputs, dce_equations(equations, outputs), outputs)


class RematPartialEval(Rewrite[RematSplit]):
    """The rewrite to the two programs of `partial_eval`, with the residuals that `policy` saves.

    The second program recomputes all other residuals. The policy None saves nothing.
    """

    partial_eval: Linearize | SelectMaskedVJP
    policy: Policy | MinCut | None

    def __call__(self, program: Program) -> RematSplit:
        if isinstance(self.policy, MinCut):
            return self.min_cut_partial_eval(program)
        # The memory plan of the configuration must not choose residuals before the policy does.
        with use_memory_plan("off"):
            known, unknown = cached_rewrite(self.partial_eval, program)
        known = inline_call_equations(known)
        count = len(program.outputs)
        outs, residuals = known.outputs[:count], known.outputs[count:]
        num_explicit = len(unknown.inputs) - len(residuals)
        explicit, residual_inputs = unknown.inputs[:num_explicit], unknown.inputs[num_explicit:]
        residual_of: dict[Atom, Atom] = dict(zip(residual_inputs, residuals, strict=True))
        plan = self.plan(known, residuals)

        def read(atom: Atom) -> Atom:
            atom = residual_of.get(atom, atom)
            return plan.aliases.get(atom, atom)

        outputs = [read(a) for a in unknown.outputs]
        equations = [
            e.replace(inputs=[read(a) for a in e.inputs]) for e in [*plan.recomputed, *unknown]
        ]
        inputs = [*explicit, *plan.saved, *known.inputs]
        return RematSplit(
            plan.known_program(known, [*outs, *plan.saved]),
            Program(unknown.name, inputs, dce_equations(equations, outputs), outputs),
        )

    def min_cut_partial_eval(self, program: Program) -> RematSplit:
        """The two programs with the cheapest saved values by a minimum cut; inputs cost nothing to save."""
        rule = self.partial_eval
        free_to_save = tuple(range(len(program.inputs)))
        split = MinCutSplit(
            rule.split if isinstance(rule, SelectMaskedVJP) else rule, MIN_CUT_PLAN, free_to_save
        )
        with use_memory_plan(MIN_CUT_PLAN):
            programs = cached_rewrite(split, program).programs
        known, unknown = rule.select(*programs) if isinstance(rule, SelectMaskedVJP) else programs
        inputs = [*unknown.inputs, *[Var(aval) for aval in program.in_avals]]
        return RematSplit(known, replace_program_fields(unknown, inputs=inputs))

    def plan(self, known: Program, residuals: Sequence[Atom]) -> RematPlan:
        """The values of `known` to save, and the equations to recompute, for the `residuals`."""
        needed: set[Atom] = set(residuals)
        defined = {v for eqn in known.equations for v in eqn.outputs}
        saved: list[Var] = []
        recomputed: list[Equation] = []
        aliases: dict[Atom, Var] = {}
        replaced: dict[Equation, Equation] = {}
        for eqn in reversed(known.equations):
            needed_outs = [v for v in eqn.outputs if v in needed]
            if type(eqn.primitive) is ops.CheckpointName and (
                needed_outs or eqn.inputs[0] in needed & defined
            ):
                (out,) = eqn.outputs
                if self.is_saved(eqn, out):
                    saved.append(out)
                    if eqn.inputs[0] in defined:
                        aliases[eqn.inputs[0]] = out
                        needed.discard(eqn.inputs[0])
                    continue
            saved_outs = [v for v in needed_outs if self.is_saved(eqn, v)]
            missing = [v for v in needed_outs if v not in saved_outs]
            saved += saved_outs
            if not missing:
                continue
            loop_plan = (
                self.plan_scan(eqn, eqn.primitive, missing) if type(eqn.primitive) is Scan else None
            )
            repeated = _effect_free_equation(eqn)
            if loop_plan is not None:
                replaced[eqn], repeated, rows = loop_plan
                saved += [v for v in rows if v not in saved]
                missing = [v for v in missing if v not in rows]
                if not missing:
                    continue
            if repeated is None:
                saved += missing
                continue
            outputs = [v if v in missing else Var(v.aval) for v in repeated.outputs]
            recomputed.append(repeated.replace(outputs=outputs))
            inputs = recomputed[-1].inputs
            needed.update([a for a in inputs if a not in aliases and a not in saved])
        return RematPlan(saved[::-1], recomputed[::-1], aliases, replaced)

    def plan_scan(
        self, eqn: Equation, loop: Scan, missing: Sequence[Var]
    ) -> tuple[Equation, Equation, list[Var]] | None:
        """A loop that also stacks saved values, one that takes them to recompute, and the stacks.

        The second gives the outputs that are `missing`. None if no value of the body is saved.
        """
        body, carries = inline_call_equations(loop.program), loop.carries
        rows = [i for i, v in enumerate(eqn.outputs) if i >= carries and v in missing]
        plan = self.plan(body, [*body.outputs[:carries], *[body.outputs[i] for i in rows]])
        if not plan.saved:
            return None
        # A value that the loop stacks already is not stacked a second time.
        stacks = dict(zip(body.outputs[carries:], eqn.outputs[carries:], strict=True))
        new_rows = [a for a in plan.saved if a not in stacks]
        stacks |= {a: Var(a.aval.update(shape=(loop.length, *a.aval.shape))) for a in new_rows}
        known = plan.known_program(body, [*body.outputs, *new_rows])
        saved = [stacks[a] for a in plan.saved]
        rows = [i for i in rows if body.outputs[i] not in plan.saved]
        read = plan.aliases.get
        outputs = [read(a, a) for a in [*body.outputs[:carries], *[body.outputs[i] for i in rows]]]
        equations = [e.replace(inputs=[read(a, a) for a in e.inputs]) for e in plan.recomputed]
        recompute = Program(body.name, [*body.inputs, *plan.saved], equations, outputs)
        return (
            eqn.replace(
                primitive=loop.with_program(known, loop.consts, carries),
                outputs=[*eqn.outputs, *[stacks[a] for a in new_rows]],
            ),
            eqn.replace(
                primitive=loop.with_program(recompute, loop.consts, carries),
                inputs=[*eqn.inputs, *saved],
                outputs=[*eqn.outputs[:carries], *[eqn.outputs[i] for i in rows]],
            ),
            saved,
        )

    def is_saved(self, eqn: Equation, out: Atom) -> bool:
        """Whether to save the output `out`; of a sub-program, by the equation there that defines it."""
        primitive = eqn.primitive
        # An operation with effects may give another value the next time.
        if (primitive.effects and not subprograms(primitive)) or self.policy_saves(eqn):
            return True
        index = eqn.outputs.index(out)  # type: ignore[arg-type]
        nested = [p for p in subprograms(primitive) if len(p.outputs) == len(eqn.outputs)]
        defining = [p.def_use.producers.get(p.outputs[index]) for p in nested]
        return bool(defining) and all(
            inner is not None and self.is_saved(inner, p.outputs[index])
            for p, inner in zip(nested, defining, strict=True)
        )

    def policy_saves(self, eqn: Equation) -> bool:
        """The verdict of the policy on an equation."""
        if self.policy is None:
            return False
        primitive = eqn.primitive
        params: dict[str, Any] = {f: getattr(primitive, f) for f in primitive.fields}
        if isinstance(primitive, ops.CheckpointName):
            params = {"name": primitive.label}
        verdict = self.policy(primitive, *[a.aval for a in eqn.inputs], **params)
        if not isinstance(verdict, (bool, np.bool_)):
            raise ArgumentError(
                f"checkpoint: the policy `{function_name(self.policy)}` must return True or False; "
                f"got {type_name(verdict)} for {primitive.name}"
            )
        return bool(verdict)


def inline_call_equations(program: Program) -> Program:
    """`program` with its calls inlined, so that a policy sees their equations."""
    if all(type(eqn.primitive) is not Call for eqn in program):
        return program
    return inline(program, (Call.name,))


def _effect_free_equation(eqn: Equation) -> Equation | None:
    """The equation without effects, for a second run; None if it must not run again."""
    try:
        return RemoveEffects().without_effects(eqn)[0]
    except EffectError:
        return None
