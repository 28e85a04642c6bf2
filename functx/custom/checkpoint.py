"""`checkpoint`: a function that is computed again when its derivative is needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jax.extend.mlir.dialects import stablehlo

from functx import ops
from functx.core import tree
from functx.core.errors import ArgnumsError, ArgumentError, EffectError, type_name
from functx.core.primitive import Primitive
from functx.core.program import Atom, Equation, Program, Var, dce_equations, subprograms
from functx.core.program_editing import inline
from functx.core.records import Rewrite
from functx.core.rewriting import cached_rewrite
from functx.core.samples import f32, sample
from functx.core.tracing import current_builder, trace_closed
from functx.custom.checkpoint_policies import MinCut, everything_saveable
from functx.custom.custom_function import has_jax_tracers
from functx.ops.operands import batch_size
from functx.passes.rematerialization import MIN_CUT_PLAN, MinCutSplit, use_memory_plan
from functx.transforms.call_primitive import (
    Call,
    SelectMaskedVJP,
    TransposeLinearInputs,
    broadcast_masks,
    unpack_masked_cotangents,
)
from functx.transforms.control.body_tracing import is_linearizing
from functx.transforms.control.scan import Scan
from functx.transforms.dce import RemoveEffects, active_outputs
from functx.transforms.decompose import decompose_missing_rules
from functx.transforms.forward_mode import JVPRewrite, Linearize
from functx.transforms.operand_masks import (
    inexact_cotangents,
    inexact_mask,
    linear_mask,
    scatter_where,
    select_where,
    select_where_not,
)
from functx.transforms.symbolic_zeros import (
    DropZeroInputs,
    nonzero_output_mask,
    programs_run,
    with_programs,
)
from functx.transforms.tracing_api import (
    as_decorator,
    avals_of,
    call_outside_trace,
    check_callable,
    function_name,
    trace_function,
    wrap_transform,
)
from functx.transforms.vmap import BatchWithInferredOutDims


def checkpoint(
    fun: Callable[..., Any] | None = None,
    *,
    prevent_cse: Any = True,
    policy: Callable[..., bool] | None = None,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    concrete: bool = False,
) -> Any:
    """`fun`, of which a derivative keeps the arguments alone and computes the rest again.

    It costs one more evaluation in the backward sweep and spares the memory of what is
    between the arguments and the result. A `policy` says what is kept besides the arguments:
    one of `functx.checkpoint_policies`, or a function
    `policy(primitive, *avals, **params) -> bool`. What has effects is never done again: its
    results are kept. With `prevent_cse`, the compiler is kept from merging the two
    evaluations; where it is a tree prefix of the arguments, it is as soon as one is marked, for
    what depends on the others is computed together with the rest. Arguments at `static_argnums`, or of the names in `static_argnames`, may be
    of any type.

    Raises ArgumentError for a policy that is no function or returns something else than a
    bool, and for `concrete`, which has no meaning here.

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

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if current_builder.get() is None and not has_jax_tracers((args, kwargs)):
            return call_outside_trace(fun, *args, **kwargs)
        if any(not -len(args) <= n < len(args) for n in numbers):
            raise ArgnumsError(
                f"checkpoint({function_name(fun)}): static_argnums must name positional arguments; "
                f"got {numbers} for {len(args)} of them"
            )
        fixed = {n % len(args): args[n % len(args)] for n in numbers}
        fixed_by_name = {name: kwargs.pop(name) for name in names if name in kwargs}
        count = len(args)

        def of_dynamic(*dynamic: Any, **keywords: Any) -> Any:
            rest = iter(dynamic)
            given = [fixed[i] if i in fixed else next(rest) for i in range(count)]
            return fun(*given, **keywords, **fixed_by_name)

        of_dynamic.__name__ = function_name(fun)
        dynamic = tuple([x for i, x in enumerate(args) if i not in fixed])
        plain = of_dynamic if fixed or fixed_by_name else fun
        leaves, in_tree = tree.flatten_with_key_data((dynamic, kwargs))
        avals = avals_of(leaves, "checkpoint", plain, in_tree)
        apart = prevent_cse
        if not isinstance(prevent_cse, bool):
            what = f"checkpoint({function_name(fun)}): prevent_cse"
            marks = tree.broadcast_prefix(prevent_cse, tree.structure(args), what)
            if bad := [mark for mark in marks if not isinstance(mark, bool)]:
                raise ArgumentError(f"{what} must be made of True and False; got {bad[0]!r}")
            apart = any(marks)
        traced = trace_function(plain, in_tree, avals, "checkpoint", values=leaves)
        operands = [*leaves, *traced.captured]
        outs = Checkpoint(traced.program, apart, False, policy)(*operands)
        return tree.unflatten(
            traced.out_tree, traced.finish_call(operands, outs, of_transform=False)
        )

    made = wrap_transform(wrapper, fun, "checkpoint")
    made.__name__ = function_name(fun)
    return made


remat = checkpoint


def _example() -> Program:
    def body(x: Any, y: Any) -> list[Any]:
        return [ops.sin(ops.mul(ops.sin(x), y))]

    return trace_closed(body, [f32[3], f32[3]], name="example")


class Checkpoint(Primitive):
    """The outputs of `program`, of which its derivatives keep the operands alone.

    They keep what `policy` says, too. `again` marks a computation that repeats an earlier one,
    which `apart` keeps from being merged with that.
    """

    program: Program
    prevent_cse: bool = True
    differentiated: bool = False
    policy: Any = None
    multiple_results = True
    no_cse = True
    samples = (
        sample(f32[3], f32[3], dtypes=("f32",), program=_example()),
        sample(f32[3], f32[3], dtypes=("f32",), program=_example(), differentiated=True),
        sample(f32[3], f32[3], dtypes=("f32",), program=_example(), policy=everything_saveable),
    )

    def abstract_eval(self, *avals):
        return self.program.out_avals

    def with_program(self, program: Program, differentiated: bool = False) -> Checkpoint:
        """A checkpoint of another program, computed `again` or with this one."""
        return Checkpoint(
            program, self.prevent_cse, self.differentiated or differentiated, self.policy
        )

    def varying_outputs(self, avals, active):
        return active_outputs(self.program, active)

    def hoist_constants(self, programs, extras, operands):
        return self.with_program(programs[0]), [*extras[0], *operands]

    def partial_eval(self, split: Any) -> RematSplit:
        """The two halves of a derivative, of which the second computes again."""
        return cached_rewrite(RematPartialEval(split, self.policy), self.program)  # type: ignore[no-any-return]

    def jvp(self, primals, tangents):
        varying = tuple([t is not None for t in tangents])
        given = [t for t in tangents if t is not None]
        count = len(self.program.outputs)
        if is_linearizing():
            halves = self.partial_eval(Linearize(varying))
            outs = self.with_program(halves.known)(*primals)
            found = self.with_program(halves.unknown, differentiated=True)(
                *given, *outs[count:], *primals
            )
        else:
            outs = self.with_program(cached_rewrite(JVPRewrite(varying), self.program))(
                *primals, *given
            )
            found = outs[count:]
        outs = outs[:count]
        return outs, scatter_where(found, inexact_mask(outs))

    def forward(self, args, active):
        halves = self.partial_eval(SelectMaskedVJP(tuple(active), False))
        outs = self.with_program(halves.known)(*args)
        count = len(self.program.outputs)
        return outs[:count], outs[count:]

    def vjp(self, cts, saved, args, active):
        return self.vjp_masked(cts, [None] * len(cts), saved, args, active)[0]

    def vjp_masked(self, cts, lives, saved, args, active):
        masked = any([live is not None for live in lives])
        rest = self.partial_eval(SelectMaskedVJP(tuple(active), masked)).unknown
        if masked:
            given = inexact_cotangents(cts, self.program.out_avals)
            lives = select_where(lives, inexact_mask(self.program.out_avals))
            given = [*given, *broadcast_masks(lives, given)]
        else:
            given = select_where(cts, inexact_mask(self.program.out_avals))
            marks = tuple([ct is not None for ct in given])
            rest, given = cached_rewrite(DropZeroInputs(marks), rest), select_where(given, marks)
        outs = self.with_program(rest, differentiated=True)(*given, *saved, *args)
        nonzero = nonzero_output_mask(rest)
        found = [x if on else None for x, on in zip(outs, nonzero, strict=True)]
        return unpack_masked_cotangents(active, rest, found)

    def transpose(self, cts, *args):
        linear = linear_mask(args)
        program = cached_rewrite(
            TransposeLinearInputs(linear), decompose_missing_rules(self.program, "transpose")
        )
        given = inexact_cotangents(cts, self.program.out_avals)
        return scatter_where(
            self.with_program(program, differentiated=True)(
                *given, *select_where_not(args, linear)
            ),
            linear,
        )

    def batch(self, args, dims):
        size = batch_size(args, dims)
        program, out_dims = cached_rewrite(
            BatchWithInferredOutDims(size, tuple(dims)), self.program
        )
        return self.with_program(program)(*args), out_dims

    def lower(self, ctx, *values):
        if self.differentiated and self.prevent_cse and values:
            values = (*stablehlo.OptimizationBarrierOp(list(values)).results,)
        return ctx.call(self.program, list(values))


@programs_run.register
def _program_of_checkpoint(primitive: Checkpoint) -> Sequence[Program]:
    return (primitive.program,)


@with_programs.register
def _checkpoint_of_program(primitive: Checkpoint, programs: Sequence[Program]) -> Checkpoint:
    return primitive.with_program(programs[0])


class RematSplit(NamedTuple):
    """A program split in two.

    `values` gives the outputs, then what is saved. `rest` takes what the second half of the
    split takes, then what is saved, then the inputs of the program.
    """

    known: Program
    unknown: Program


class RematPlan(NamedTuple):
    """What of a program is saved, and the equations that compute the rest again.

    `same` holds variables that saved ones, which have a name, stand for; `changed` equations
    that must be others to give what is saved.
    """

    saved: list[Var]
    again: list[Equation]
    aliases: dict[Any, Var]
    replaced_equations: dict[Equation, Equation]

    def known_program(self, program: Program, outputs: Sequence[Atom]) -> Program:
        """`program` with other outputs, saved ones among them."""
        equations = [self.replaced_equations.get(eqn, eqn) for eqn in program.equations]
        return Program(program.name, program.inputs, dce_equations(equations, outputs), outputs)


class RematPartialEval(Rewrite[RematSplit]):
    """The rewrite to the halves that `split` makes of a program, for a `policy` of saving.

    Of what the second half needs of the first, it computes again what the policy, by default
    one that saves nothing, does not save.
    """

    partial_eval: Any
    policy: Any

    def __call__(self, program: Program) -> RematSplit:
        if isinstance(self.policy, MinCut):
            return self.min_cut_partial_eval(program)
        # What the policy decides, nothing else has decided before.
        with use_memory_plan("off"):
            values, rest = cached_rewrite(self.partial_eval, program)
        values = inline_call_equations(values)
        count = len(program.outputs)
        outs, residuals = values.outputs[:count], values.outputs[count:]
        lead = rest.inputs[: len(rest.inputs) - len(residuals)]
        needs: dict[Any, Atom] = dict(zip(rest.inputs[len(lead) :], residuals, strict=True))
        parts = self.plan(values, residuals)

        def read(atom: Any) -> Any:
            atom = needs.get(atom, atom)
            return parts.aliases.get(atom, atom)

        results = [read(a) for a in rest.outputs]
        equations = [e.replace(inputs=[read(a) for a in e.inputs]) for e in [*parts.again, *rest]]
        inputs = [*lead, *parts.saved, *values.inputs]
        return RematSplit(
            parts.known_program(values, [*outs, *parts.saved]),
            Program(rest.name, inputs, dce_equations(equations, results), results),
        )

    def min_cut_partial_eval(self, program: Program) -> RematSplit:
        """The halves between which the cheapest values are saved, where the inputs cost nothing."""
        masked = isinstance(self.partial_eval, SelectMaskedVJP)
        free = tuple(range(len(program.inputs)))
        divide = MinCutSplit(
            self.partial_eval.split if masked else self.partial_eval, MIN_CUT_PLAN, free
        )
        with use_memory_plan(MIN_CUT_PLAN):
            halves = cached_rewrite(divide, program).programs
        values, rest = self.partial_eval.select(halves) if masked else halves
        inputs = [*rest.inputs, *[Var(aval) for aval in program.in_avals]]
        return RematSplit(values, Program(rest.name, inputs, rest.equations, rest.outputs))

    def plan(self, values: Program, residuals: Sequence[Atom]) -> RematPlan:
        """What of `values` to save and what to compute again, to have the `residuals`."""
        wanted: set[Any] = set(residuals)
        made = {v for eqn in values.equations for v in eqn.outputs}
        saved: list[Var] = []
        again: list[Equation] = []
        same: dict[Any, Var] = {}
        changed: dict[Equation, Equation] = {}
        for eqn in reversed(values.equations):
            needed = [v for v in eqn.outputs if v in wanted]
            if type(eqn.primitive) is ops.CheckpointName and (
                needed or eqn.inputs[0] in wanted & made
            ):
                (out,) = eqn.outputs
                if self.is_saved(eqn, out):
                    saved.append(out)
                    if eqn.inputs[0] in made:
                        same[eqn.inputs[0]] = out
                        wanted.discard(eqn.inputs[0])
                    continue
            if not needed:
                continue
            kept = [v for v in needed if self.is_saved(eqn, v)]
            missing = [v for v in needed if v not in kept]
            saved += kept
            if not missing:
                continue
            loop = self.plan_scan(eqn, missing) if type(eqn.primitive) is Scan else None
            repeated = _effect_free_equation(eqn)
            if loop is not None:
                changed[eqn], repeated, rows = loop
                saved += [v for v in rows if v not in saved]
                missing = [v for v in missing if v not in rows]
                if not missing:
                    continue
            elif repeated is None:
                saved += missing
                continue
            outputs = [v if v in missing else Var(v.aval) for v in repeated.outputs]  # type: ignore[union-attr]
            again.append(repeated.replace(outputs=outputs))  # type: ignore[union-attr]
            wanted.update([a for a in again[-1].inputs if a not in same and a not in saved])
        return RematPlan(saved[::-1], again[::-1], same, changed)

    def plan_scan(
        self, eqn: Equation, missing: Sequence[Var]
    ) -> tuple[Equation, Equation, list[Var]] | None:
        """A loop that also gives the rows to save, one that is given them, and the rows.

        The second gives the outputs that are `missing`. None where there are none to save.
        """
        loop: Any = eqn.primitive
        body, carries = inline_call_equations(loop.program), loop.carries
        rows = [i for i, v in enumerate(eqn.outputs) if i >= carries and v in missing]
        parts = self.plan(body, [*body.outputs[:carries], *[body.outputs[i] for i in rows]])
        if not parts.saved:
            return None
        # What the loop gives already is not stacked a second time.
        given = dict(zip(body.outputs[carries:], eqn.outputs[carries:], strict=True))
        fresh = [a for a in parts.saved if a not in given]
        given |= {a: Var(a.aval.update(shape=(loop.length, *a.aval.shape))) for a in fresh}
        first = parts.known_program(body, [*body.outputs, *fresh])
        stacked = [given[a] for a in parts.saved]
        rows = [i for i in rows if body.outputs[i] not in parts.saved]
        read = parts.aliases.get
        outputs = [read(a, a) for a in [*body.outputs[:carries], *[body.outputs[i] for i in rows]]]
        equations = [e.replace(inputs=[read(a, a) for a in e.inputs]) for e in parts.again]
        second = Program(body.name, [*body.inputs, *parts.saved], equations, outputs)
        return (
            eqn.replace(
                primitive=loop.with_program(first, loop.consts, carries),
                outputs=[*eqn.outputs, *[given[a] for a in fresh]],
            ),
            eqn.replace(
                primitive=loop.with_program(second, loop.consts, carries),
                inputs=[*eqn.inputs, *stacked],
                outputs=[*eqn.outputs[:carries], *[eqn.outputs[i] for i in rows]],
            ),
            stacked,
        )

    def is_saved(self, eqn: Equation, out: Atom) -> bool:
        """Whether to save the output `out`; where a program gives it, by what does so there."""
        primitive = eqn.primitive
        # What an effect gives may be something else the next time.
        if (primitive.effects and not subprograms(primitive)) or self.policy_saves(eqn):
            return True
        place = eqn.outputs.index(out)  # type: ignore[arg-type]
        held = [p for p in subprograms(primitive) if len(p.outputs) == len(eqn.outputs)]
        makers = [_defining_equation(p, p.outputs[place]) for p in held]
        return bool(makers) and all(
            maker is not None and self.is_saved(maker, p.outputs[place])
            for p, maker in zip(held, makers, strict=True)
        )

    def policy_saves(self, eqn: Equation) -> bool:
        """What the policy says of an equation."""
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
    """`program` with the calls in it opened up, so that a policy sees what they do."""
    if all(type(eqn.primitive) is not Call for eqn in program):
        return program
    return inline(program, (Call.name,))


def _effect_free_equation(eqn: Equation) -> Equation | None:
    """The equation for a second time, without effects; None if it must not run again."""
    try:
        return RemoveEffects().without_effects(eqn)[0]
    except EffectError:
        return None


def _defining_equation(program: Program, atom: Atom) -> Equation | None:
    return next((eqn for eqn in program.equations if atom in eqn.outputs), None)
