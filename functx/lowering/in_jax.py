"""JAX's own transforms of `functx_call`: our rewrites of the program that it carries.

JAX's rules get and give JAX's values; what they bind are calls of rewritten programs again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
from jax.interpreters import ad, batching, partial_eval

from functx.core.axes import AxisNames
from functx.core.dtypes import is_inexact
from functx.core.errors import ArgumentError, LinearityError
from functx.core.program import Program
from functx.core.records import Rewrite
from functx.core.rewriting import collection_paused, rewritten
from functx.core.tracing import execution
from functx.lowering.call import Carried, call_in_jax, functx_call
from functx.lowering.debugging import run_watched, watched
from functx.lowering.meshes import as_varied, shares, sums
from functx.transforms.batching import NaturalBatch
from functx.transforms.call import TransposeIn
from functx.transforms.expand import expand
from functx.transforms.forward_mode import Linearize
from functx.transforms.marks import chosen, places_of
from functx.transforms.parts import part_of, reached_from


@functx_call.def_impl
def _run(*args: Any, program: Carried) -> Sequence[Any]:
    # JAX asks for this where it runs without jit; a program runs compiled all the same, except
    # when it gave a nan that JAX is set to find.
    if kinds := watched():
        return run_watched(program.program, args, kinds)
    with jax.disable_jit(False):
        return execution.run(None, program.program, args)


class Linearized(NamedTuple):
    """A program of values, and a linear one of tangents, which JAX can take apart.

    The linear program takes the tangents numbered `tangents` among the varying ones, then
    `residuals`: inputs of the first by their number, outputs by theirs behind all inputs. It
    gives the tangents of the outputs numbered `moving`; those of the others are zero.
    """

    values: Program
    linear: Program
    tangents: Sequence[int]
    residuals: Sequence[int]
    moving: Sequence[int]


class LinearizeInJax(Rewrite[Linearized]):
    """The rewrite to the two programs of a derivative along the inputs marked `varying`."""

    varying: tuple[bool, ...]

    def __call__(self, program: Program) -> Linearized:
        values, tangents = rewritten(Linearize(self.varying), program)
        own = sum(self.varying)
        reached = reached_from(tangents.inputs[:own], tangents.equations)
        inexact = [i for i, aval in enumerate(program.out_avals) if is_inexact(aval.dtype)]
        places = [k for k, atom in enumerate(tangents.outputs) if atom in reached]
        linear, kept = part_of(tangents, tuple(places))

        # What is an input or an output already is no further output.
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
        return Linearized(values, linear, [k for k in kept if k < own], residuals, moving)


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, program: Carried) -> Any:
    avals = program.program.in_avals
    varying = tuple(
        [
            type(t) is not ad.Zero and is_inexact(aval.dtype)
            for t, aval in zip(tangents, avals, strict=True)
        ]
    )
    with collection_paused():
        split: Linearized = rewritten(LinearizeInJax(varying), program.program)
    count = len(program.program.outputs)
    outs = call_in_jax(split.values, primals)
    known = [*primals, *outs]
    out_tangents = [ad.Zero(jax.typeof(x).to_tangent_aval()) for x in outs[:count]]
    if split.moving:
        given = chosen(tangents, varying)
        operands = [given[k] for k in split.tangents] + [known[k] for k in split.residuals]
        found = call_in_jax(split.linear, operands)
        for i, t in zip(split.moving, found, strict=True):
            out_tangents[i] = as_varied(t, outs[i])
    return outs[:count], out_tangents


class Transposed(NamedTuple):
    """A program of cotangents and of the inputs numbered `known`: cotangents of `linear`."""

    program: Program
    known: Sequence[int]
    linear: Sequence[int]


class TransposeInJax(Rewrite[Transposed]):
    """The rewrite to the transpose in the inputs marked `linear`.

    It takes cotangents of the outputs numbered `given`; those of the others are zero.
    """

    linear: tuple[bool, ...]
    given: tuple[int, ...]

    def __call__(self, program: Program) -> Transposed:
        part, kept = part_of(program, self.given)
        marks = tuple([self.linear[i] for i in kept])
        try:
            transposed = TransposeIn(marks)(expand(part, "transpose"))
        except (ArgumentError, AttributeError) as error:
            # A rule that computed with an operand which it may only be linear in.
            raise LinearityError(
                f"{program.name}: what JAX transposes must be linear; got a program that is not",
                fix="Transpose a linear function, or take the derivative with jax.vjp.",
            ) from error
        known = [i for i in kept if not self.linear[i]]
        return Transposed(transposed, known, [i for i in kept if self.linear[i]])


def _transpose(cts: Sequence[Any], *args: Any, program: Carried) -> Any:
    linear = tuple([ad.is_undefined_primal(x) for x in args])
    given = tuple(
        [
            i
            for i, aval in enumerate(program.program.out_avals)
            if is_inexact(aval.dtype) and type(cts[i]) is not ad.Zero
        ]
    )
    with collection_paused():
        back: Transposed = rewritten(TransposeInJax(linear, given), program.program)
    known, likes = [args[i] for i in back.known], [args[i].aval for i in back.linear]
    own = [cts[i] for i in given]
    operands = [*shares(program, own, [*known, *likes]), *known]
    found = call_in_jax(back.program, operands) if back.linear else []
    found = sums(program, found, likes, [*own, *known, *likes])
    out: list[Any] = [None] * len(args)
    for i, ct in zip(back.linear, found, strict=True):
        out[i] = ct
    return out


def _batch(axis: Any, args: Sequence[Any], dims: Sequence[int | None], *, program: Carried) -> Any:
    if all(dim is None for dim in dims) and axis.name not in program.program.named_axes:
        outs = call_in_jax(program.program, args)
        return outs, [None] * len(outs)
    with collection_paused():
        names = AxisNames(axis.name, tuple(axis.spmd_name or ()))
        batch = NaturalBatch(axis.size, tuple(dims), names=names)
        batched, out_dims = rewritten(batch, program.program)
    return call_in_jax(batched, args), out_dims


def _without_unused(used: Sequence[bool], eqn: Any) -> tuple[list[bool], Any]:
    if not any(used) and not eqn.effects:
        return [False] * len(eqn.invars), None
    whole = eqn.params["program"].program
    outputs = None if all(used) else places_of(used)
    program, kept = part_of(whole, outputs)
    if program is whole:
        return [True] * len(eqn.invars), eqn
    places = set(kept)
    used_inputs = [i in places for i in range(len(eqn.invars))]
    carried = Carried(program, eqn.params["program"].outline)
    carried.checked = eqn.params["program"].checked
    part = eqn.replace(
        invars=[eqn.invars[i] for i in kept],
        outvars=chosen(eqn.outvars, used),
        params={"program": carried},
    )
    return used_inputs, part


ad.primitive_jvps[functx_call] = _jvp
ad.primitive_transposes[functx_call] = _transpose
batching.fancy_primitive_batchers[functx_call] = _batch
partial_eval.dce_rules[functx_call] = _without_unused
