"""Programs split in two for the derivative of a call, through which masks of cotangents pass."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from functx.core.avals import ShapedArray
from functx.core.editing import replace_program_fields
from functx.core.program import Literal, Program, Var
from functx.core.records import Rewrite
from functx.core.rewriting import cached_rewrite
from functx.core.tracing import aval_of, current_builder, trace, trace_closed
from functx.ops.arithmetic import BOOL
from functx.ops.shaping import full_like, instantiate_mask
from functx.transforms.marks import inexact_mask, select_where
from functx.transforms.marks import scatter_where as spread_to
from functx.transforms.norms import canonicalize_for_ad
from functx.transforms.planning.planned import with_rematerialization
from functx.transforms.reverse_mode import Cotangents, backward_sweep, forward_sweep
from functx.transforms.zeros import DropZeroInputs


class MaskedVJPPrograms(NamedTuple):
    """A program of the outputs and of what is kept for the derivative, and two that pull back.

    `plain` takes the cotangents of the inexact outputs, then what is kept; `masked` takes
    behind the cotangents where each of them can be other than zero. Both give the cotangents
    of the active inputs, then where those can be other than zero: a literal for anywhere, and
    nothing where all are that.
    """

    values: Program
    unmasked: Program
    masked: Program


class SplitMaskedVJP(Rewrite[MaskedVJPPrograms]):
    """The split of `program` for the derivative in the inputs marked `active`, as `MaskedVJPPrograms`."""

    active: tuple[bool, ...]

    def __call__(self, program: Program) -> MaskedVJPPrograms:
        program = canonicalize_for_ad(program, "vjp", "jvp", "transpose")
        pulled: list[Program] = []

        def body(*args: Any) -> list[Any]:
            outs, tape = forward_sweep(program, args, self.active)
            avals = [aval_of(out) for out in select_where(outs, inexact_mask(outs))]
            masks = [aval.update(dtype=BOOL, weak_type=False) for aval in avals]
            pull_back = partial(self.backward, program, tape, len(avals))
            name = f"pullback_{program.name}"
            names = ["ct"] if len(avals) == 1 else [f"ct_{i}" for i in range(len(avals))]
            plain, kept = trace(pull_back, avals, name=name, in_names=lambda: names)
            masked, more = trace(pull_back, [*avals, *masks], name=name, in_names=lambda: names)
            builder = current_builder.require()
            kept, more = [builder.tracer(x) for x in kept], [builder.tracer(x) for x in more]
            known = {x.atom for x in kept}
            both = [*kept, *[x for x in more if x.atom not in known]]
            pulled.append(align_residual_inputs(plain, len(avals), kept, both))
            pulled.append(align_residual_inputs(masked, 2 * len(avals), more, both))
            return [*outs, *both]

        values = trace_closed(body, program.in_avals, name=program.name, in_names=program.in_names)
        return MaskedVJPPrograms(values, *pulled)

    def backward(self, program: Program, tape: Any, count: int, *given: Any) -> list[Any]:
        cts = Cotangents()
        lives = given[count:] or [None] * count
        inexact = inexact_mask([atom.aval for atom in program.outputs])
        ends = select_where(program.outputs, inexact)
        for atom, ct, live in zip(ends, given[:count], lives, strict=True):
            cts.add(atom, ct, live)
        grads = backward_sweep(program, tape, [None] * len(inexact), self.active, cts)
        masks = [cts.masks.get(v) for v in select_where(program.inputs, self.active)]
        if all([mask is None for mask in masks]):
            return grads
        anywhere = full_like(ShapedArray((), BOOL), True)
        shown = zip(masks, grads, strict=True)
        return [
            *grads,
            *[anywhere if m is None else instantiate_mask(m, g.shape) for m, g in shown],
        ]


class SelectMaskedVJP(Rewrite[tuple[Program, Program]]):
    """The first of the `MaskedVJPPrograms` of a program and one of those that pull back, `masked` or plain."""

    active: tuple[bool, ...]
    masked: bool

    def __call__(self, program: Program) -> tuple[Program, Program]:
        return self.select(cached_rewrite(self.split, program))

    @property
    def split(self) -> SplitMaskedVJP:
        """The split whose halves these are."""
        return SplitMaskedVJP(self.active)

    def select(self, halves: MaskedVJPPrograms) -> tuple[Program, Program]:
        """Those of `halves` that are wanted."""
        return halves.values, halves.masked if self.masked else halves.unmasked


def align_residual_inputs(
    program: Program, lead: int, kept: Sequence[Any], wanted: Sequence[Any]
) -> Program:
    """`program`, which takes `kept` behind its first `lead` inputs, made to take `wanted` there."""
    own = {x.atom: v for x, v in zip(kept, program.inputs[lead:], strict=True)}
    rest = [own[x.atom] if x.atom in own else Var(aval_of(x)) for x in wanted]
    return replace_program_fields(program, inputs=[*program.inputs[:lead], *rest])


def select_pullback(
    active: Sequence[bool], program: Program, cts: Sequence[Any], lives: Sequence[Any]
) -> tuple[Program, list[Any]]:
    """The program that pulls `cts` back, zero where `lives` do not hold, and its first operands."""
    halves = cached_rewrite(with_rematerialization(SplitMaskedVJP(tuple(active))), program)
    inexact = inexact_mask(program.out_avals)
    cts, lives = select_where(cts, inexact), select_where(lives, inexact)
    if any([live is not None for live in lives]):
        avals = select_where(program.out_avals, inexact)
        full = [full_like(a, 0) if ct is None else ct for ct, a in zip(cts, avals, strict=True)]
        return halves.masked, [*full, *broadcast_masks(lives, full)]
    marks = tuple([ct is not None for ct in cts])
    plain = cached_rewrite(DropZeroInputs(marks), halves.unmasked)
    return plain, [ct for ct in cts if ct is not None]


def broadcast_masks(lives: Sequence[Any], cts: Sequence[Any]) -> list[Any]:
    """`lives` as arrays of the shapes of the cotangents."""
    return [instantiate_mask(live, ct.shape) for live, ct in zip(lives, cts, strict=True)]


def unpack_masked_cotangents(
    active: Sequence[bool], program: Program, outs: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """The cotangents and their masks among `outs`, what such a `program` gives, one an operand."""
    count = sum(active)
    ends: list[Any] = [*program.outputs[count:]] or [None] * count
    masks = [
        None if end is None or type(end) is Literal else outs[count + i]
        for i, end in enumerate(ends)
    ]
    return spread_to(outs[:count], active), spread_to(masks, active)
