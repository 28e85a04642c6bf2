"""`functx_call`: the JAX primitive with a whole program as its parameter, and its rules."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend.core import Primitive as JaxPrimitive
from jax.interpreters import ad, batching, mlir, partial_eval

from functx.core.backend import backend
from functx.core.builder import hoist_captures_into_args
from functx.core.caches import garbage_collection
from functx.core.config import outline_mode
from functx.core.effects import is_ordered
from functx.core.errors import ArgumentError, LinearityError, NonFiniteError
from functx.core.masks import indices_where, inexact_mask, select_where
from functx.core.named_axes import AxisNames
from functx.core.program import Atom, Equation, Program, Var
from functx.core.rewriting import Rewrite, cached_rewrite
from functx.core.types import is_inexact
from functx.core.typing import (
    ArrayLike,
    Cotangent,
    Dims,
    Flags,
    IRValue,
    NumPyArray,
    PyTree,
    Tangent,
    Value,
    Values,
)
from functx.lowering.jax_bridge import JaxAval, jax_aval, jax_effects, ordered_effect
from functx.lowering.meshes import (
    bind_on_mesh,
    constrain_to_devices,
    divide_replicated_cotangents,
    meshes_in,
    out_jax_avals,
    pcast_like,
    psum_replicated_cotangents,
)
from functx.lowering.stablehlo_emitter import ModuleEmitter
from functx.transforms.batching import BatchWithInferredOutDims
from functx.transforms.dce import dce_program, dependents_of
from functx.transforms.forward_mode import Linearize
from functx.transforms.linear_transpose import Transpose

functx_call = JaxPrimitive("functx_call")
functx_call.multiple_results = True


class ProgramParam:
    """A program as a parameter of a JAX primitive, equal to itself only.

    `outline` is the outlining mode, None for that of `functx.config`. `tracks_varying` says whether
    JAX tracks which values vary over the manual axes of a mesh.

    JAX hashes the parameters of each equation as it traces, so the hash is that of an object.
    functx's own caches compare the structure of programs.
    """

    __slots__ = ("__weakref__", "outline", "program", "tracks_varying")

    def __init__(self, program: Program, outline: str | None = None):
        self.program = program
        self.outline = outline
        self.tracks_varying = False

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, ProgramParam)
            and self.program is other.program
            and self.outline == other.outline
        )

    def __hash__(self) -> int:
        return id(self.program)

    def __repr__(self) -> str:
        return str(self.program)


def _abstract_eval_functx_call(
    *avals: JaxAval, program: ProgramParam
) -> tuple[list[JaxAval], frozenset[Hashable]]:
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        outs = [jax_aval(aval) for aval in program.program.out_avals]
    else:
        outs = out_jax_avals(program, mesh, avals)
    return outs, jax_effects(program.program)


functx_call.def_effectful_abstract_eval(_abstract_eval_functx_call)


def _lower_functx_call(
    ctx: mlir.LoweringRuleContext, *values: IRValue, program: ProgramParam
) -> list[IRValue]:
    emitter = ModuleEmitter(ctx, program.outline or outline_mode())
    ordered = is_ordered(program.program.effects)
    if ordered:
        emitter.token = ctx.tokens_in.get(ordered_effect())
    with garbage_collection.paused():
        outs = emitter.emit(program.program, values, is_function=True)
    if ordered:
        after = mlir.TokenSet({ordered_effect(): emitter.token})
        ctx.set_tokens_out(ctx.tokens_in.update_tokens(after))
    return outs


mlir.register_lowering(functx_call, _lower_functx_call, cacheable=False)


def bind_functx_call(program: Program, args: Values, outline: str | None = None) -> list[Value]:
    """The outputs of `program` on JAX values, as one equation of JAX; unused inputs are left out."""
    if program.has_captures:
        program, args = hoist_captures_into_args(program, args)
    program, kept = dce_program(program)
    operands = [args[i] for i in kept]
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        if operands and meshes_in(program):
            operands = constrain_to_devices(program, operands)
        outs: list[Any] = functx_call.bind(*operands, program=ProgramParam(program, outline))
        return outs if operands or not outs else constrain_to_devices(program, outs)
    return bind_on_mesh(functx_call, mesh, operands, ProgramParam(program, outline))


def jit_program(program: Program, **options: Any) -> jax.stages.Wrapped:
    """`program` as a jitted JAX function of its inputs, which returns a list of outputs."""

    def call(*args: Value) -> list[Value]:
        return bind_functx_call(program, args)

    call.__name__ = call.__qualname__ = program.name
    return jax.jit(call, **options)


def nonfinite_checks() -> tuple[str, ...]:
    """The kinds of values, among `nan` and `inf`, for which JAX is set to raise errors."""
    switches = {"nan": jax.config.jax_debug_nans, "inf": jax.config.jax_debug_infs}  # type: ignore[attr-defined]
    return tuple([kind for kind, on in switches.items() if on])


def run_checking_finite(program: Program, args: Values, kinds: Sequence[str]) -> list[Value]:
    """The outputs of `program`; NonFiniteError for the first equation with a value of one of `kinds`."""
    program = program.inline()
    env: dict[Atom, ArrayLike] = dict(zip(program.inputs, args, strict=True))
    with jax.debug_nans(False), jax.debug_infs(False), jax.disable_jit(False):
        for eqn in program.equations:
            # Not the cached executable of the operation, which may be the one that is called here.
            inputs = [v for v in dict.fromkeys(eqn.inputs) if type(v) is Var]
            step = jit_program(Program(eqn.primitive.name, inputs, [eqn], eqn.outputs))
            outs = step(*[env[v] for v in inputs])
            for out in outs:
                check_finite(eqn, np.asarray(out), kinds)
            env.update(zip(eqn.outputs, outs, strict=True))
        return [jax.numpy.asarray(_read_atom(env, a)) for a in program.outputs]


def _read_atom(env: dict[Atom, ArrayLike], atom: Atom) -> ArrayLike:
    return env[atom] if type(atom) is Var else np.asarray(atom.value, atom.aval.dtype)


def check_finite(eqn: Equation, out: NumPyArray, kinds: Sequence[str]) -> None:
    if not is_inexact(out.dtype):
        return
    for kind in kinds:
        if np.any(np.isnan(out) if kind == "nan" else np.isinf(out)):
            raise NonFiniteError(
                f"{eqn.primitive!r}: no value may be {kind} while jax.debug_{kind}s is on; "
                f"got {kind} in {eqn.outputs[0].aval!r}",
                source=eqn.source,
            )


def _evaluate_functx_call(*args: Value, program: ProgramParam) -> Sequence[Any]:
    # JAX calls this without jit; the program still runs compiled, unless JAX is to find the
    # equation that makes a nan.
    if kinds := nonfinite_checks():
        return run_checking_finite(program.program, args, kinds)
    with jax.disable_jit(False):
        return backend.run(None, program.program, args)


functx_call.def_impl(_evaluate_functx_call)


class JaxLinearization(NamedTuple):
    """A program of values and a linear program of tangents, which JAX can separate.

    The linear program takes the tangents at `tangents` among the varying ones, then the values at
    `residuals` among the inputs and outputs of the first program, inputs first. It returns the
    tangents of the outputs at `varying_outputs`; those of the others are zero.
    """

    values: Program
    linear: Program
    tangents: Sequence[int]
    residuals: Sequence[int]
    varying_outputs: Sequence[int]


class LinearizeForJax(Rewrite[JaxLinearization]):
    """Rewrites a program into the two programs of its linearization in the inputs marked `varying`."""

    varying: tuple[bool, ...]

    def __call__(self, program: Program) -> JaxLinearization:
        values, tangents = cached_rewrite(Linearize(self.varying), program)
        own = sum(self.varying)
        reached = dependents_of(tangents.inputs[:own], tangents.equations)
        inexact = indices_where(inexact_mask(program.out_avals))
        places = [k for k, atom in enumerate(tangents.outputs) if atom in reached]
        linear, kept = dce_program(tangents, tuple(places))

        # A residual that is an input or an output already is no further output.
        outputs = values.outputs[: len(program.outputs)]
        place = {atom: len(values.inputs) + j for j, atom in enumerate(outputs)}
        place |= {v: i for i, v in enumerate(values.inputs)}
        residuals = []
        for k in kept:
            if k >= own:
                atom = values.outputs[len(program.outputs) + k - own]
                if atom not in place:
                    place[atom] = len(values.inputs) + len(outputs)
                    outputs.append(atom)
                residuals.append(place[atom])
        values = Program(values.name, values.inputs, values.equations, outputs)
        moving = [inexact[k] for k in places]
        return JaxLinearization(values, linear, [k for k in kept if k < own], residuals, moving)


def _jvp_functx_call(
    primals: Values, tangents: Sequence[Tangent | ad.Zero], *, program: ProgramParam
) -> tuple[Values, Sequence[Tangent | ad.Zero]]:
    avals = program.program.in_avals
    varying = tuple(
        [
            type(t) is not ad.Zero and is_inexact(aval.dtype)
            for t, aval in zip(tangents, avals, strict=True)
        ]
    )
    with garbage_collection.paused():
        split: JaxLinearization = cached_rewrite(LinearizeForJax(varying), program.program)
    count = len(program.program.outputs)
    outs = bind_functx_call(split.values, primals)
    known = [*primals, *outs]
    out_tangents: list[Value | ad.Zero] = [
        ad.Zero(jax.typeof(x).to_tangent_aval()) for x in outs[:count]
    ]
    if split.varying_outputs:
        given = select_where(tangents, varying)
        operands: list[Any] = [given[k] for k in split.tangents]
        operands += [known[k] for k in split.residuals]
        found = bind_functx_call(split.linear, operands)
        for i, t in zip(split.varying_outputs, found, strict=True):
            out_tangents[i] = pcast_like(t, outs[i])
    return outs[:count], out_tangents


class JaxTransposition(NamedTuple):
    """A program from cotangents and the inputs at `known_inputs` to cotangents of those at `linear`."""

    program: Program
    known_inputs: Sequence[int]
    linear: Sequence[int]


class TransposeForJax(Rewrite[JaxTransposition]):
    """Rewrites a program into its transpose in the inputs marked `linear`.

    It takes the cotangents of the outputs at `with_cotangent`; those of the others are zero.
    """

    linear: tuple[bool, ...]
    with_cotangent: tuple[int, ...]

    def __call__(self, program: Program) -> JaxTransposition:
        part, kept = dce_program(program, self.with_cotangent)
        marks = tuple([self.linear[i] for i in kept])
        try:
            transposed = Transpose(marks)(part)
        except (ArgumentError, AttributeError) as error:
            # A rule that used an operand nonlinearly.
            raise LinearityError(
                f"{program.name}: what JAX transposes must be linear; got a program that is not",
                fix="Transpose a linear function, or take the derivative with jax.vjp.",
            ) from error
        known = [i for i in kept if not self.linear[i]]
        return JaxTransposition(transposed, known, [i for i in kept if self.linear[i]])


def _transpose_functx_call(
    cts: Sequence[Any], *args: PyTree, program: ProgramParam
) -> list[Cotangent]:
    linear = tuple([ad.is_undefined_primal(x) for x in args])
    with_cotangent = tuple(
        [
            i
            for i, aval in enumerate(program.program.out_avals)
            if is_inexact(aval.dtype) and type(cts[i]) is not ad.Zero
        ]
    )
    with garbage_collection.paused():
        back: JaxTransposition = cached_rewrite(
            TransposeForJax(linear, with_cotangent), program.program
        )
    known = [args[i] for i in back.known_inputs]
    linear_avals = [args[i].aval for i in back.linear]
    out_cts = [cts[i] for i in with_cotangent]
    operands = [
        *divide_replicated_cotangents(program, out_cts, [*known, *linear_avals]),
        *known,
    ]
    in_cts: Values = bind_functx_call(back.program, operands) if back.linear else []
    in_cts = psum_replicated_cotangents(
        program, in_cts, linear_avals, [*out_cts, *known, *linear_avals]
    )
    results: list[Any] = [None] * len(args)
    for i, ct in zip(back.linear, in_cts, strict=True):
        results[i] = ct
    return results


def _batch_functx_call(
    axis: Any, args: Values, dims: Dims, *, program: ProgramParam
) -> tuple[Values, Dims]:
    if all(dim is None for dim in dims) and axis.name not in program.program.named_axes:
        outs = bind_functx_call(program.program, args)
        return outs, [None] * len(outs)
    with garbage_collection.paused():
        names = AxisNames(axis.name, tuple(axis.spmd_name or ()))
        batch = BatchWithInferredOutDims(axis.size, tuple(dims), names=names)
        batched, out_dims = cached_rewrite(batch, program.program)
    return bind_functx_call(batched, args), out_dims


def _dce_functx_call(used: Flags, eqn: Any) -> tuple[list[bool], Any]:
    if not any(used) and not eqn.effects:
        return [False] * len(eqn.invars), None
    whole = eqn.params["program"].program
    outputs = None if all(used) else indices_where(used)
    program, kept = dce_program(whole, outputs)
    if program is whole:
        return [True] * len(eqn.invars), eqn
    places = set(kept)
    used_inputs = [i in places for i in range(len(eqn.invars))]
    carried = ProgramParam(program, eqn.params["program"].outline)
    carried.tracks_varying = eqn.params["program"].tracks_varying
    part = eqn.replace(
        invars=[eqn.invars[i] for i in kept],
        outvars=select_where(eqn.outvars, used),
        params={"program": carried},
    )
    return used_inputs, part


ad.primitive_jvps[functx_call] = _jvp_functx_call
ad.primitive_transposes[functx_call] = _transpose_functx_call
batching.fancy_primitive_batchers[functx_call] = _batch_functx_call
partial_eval.dce_rules[functx_call] = _dce_functx_call
