"""Splits of programs in two halves, between which what passes is planned."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from functx.core.config import asked, memory_plan
from functx.core.editing import like
from functx.core.program import Atom, Program, Var
from functx.core.records import Record, Rewrite
from functx.core.rewriting import rewritten
from functx.transforms.control.loop_split import unchanging
from functx.transforms.parts import rewired
from functx.transforms.planning.bans import Config
from functx.transforms.planning.costs import bytes_of
from functx.transforms.planning.joint import joined
from functx.transforms.planning.partition import min_cut_partition

Places = tuple[int, ...]


class Plan(Record):
    """What derivatives keep: the values that are cheapest under `config`.

    What has no blocks of its own is cut into so many `sections`, of which each is computed again
    as a whole, if there are any.
    """

    config: Config
    sections: int = 0


MIN_CUT = Plan(Config(materialized=False, far_apart=False))


@contextmanager
def asking_for(plan: Any) -> Iterator[None]:
    """Let derivatives keep what `plan` says, for the length of a `with` block."""
    token = asked.set(asked.get()._replace(memory=plan))
    try:
        yield
    finally:
        asked.reset(token)


class Division(NamedTuple):
    """Halves of a program, and whether the later ones compute again what the first computes."""

    halves: Any
    again: bool


class Divide(Rewrite[Division]):
    """The rewrite to the halves that `split` makes of a program, with the cheapest between them.

    They have the form that `split` gives them: the first returns the outputs, then what is kept,
    which the others take last. Of the inputs those at `free` are kept anyway; the first `consts`
    are the same in all runs of the program, and what depends on them alone is kept once for all.
    """

    split: Any
    plan: Plan
    free: Places = ()
    consts: int = 0

    def __call__(self, program: Program) -> Division:
        halves = self.split(program)
        values, *rests = halves
        count = len(program.outputs)
        joint = joined(values, count, rests)
        inputs = joint.program.inputs
        fixed = unchanging(joint.program, {*inputs[: self.consts]}) if self.consts else set()
        kept_anyway = frozenset([*fixed, *[inputs[i] for i in self.free]])
        parts = min_cut_partition(joint._replace(free=kept_anyway), self.plan.config)
        saved = parts.forward.outputs[count:]
        if kept_bytes(saved, kept_anyway) >= kept_bytes(values.outputs[count:], kept_anyway):
            return Division(halves, False)
        lead = [len(rest.inputs) - (len(values.outputs) - count) for rest in rests]
        made = [parts.forward, *shared_out(parts.backward, rests, lead)]
        return Division(type(halves)(*made) if hasattr(halves, "_fields") else tuple(made), True)


def kept_bytes(saved: Sequence[Atom], free: Collection[Atom]) -> int:
    """What it takes to keep `saved`."""
    return sum([bytes_of(a.aval) for a in {*saved} if type(a) is Var and a not in free])


def shared_out(backward: Program, rests: Sequence[Program], lead: Sequence[int]) -> list[Program]:
    """`backward` as programs like `rests`, which have so many inputs before what is kept."""
    kept = backward.inputs[sum(lead) :]
    made, start, end = [], 0, 0
    for rest, count in zip(rests, lead, strict=True):
        inputs = [*backward.inputs[start : start + count], *kept]
        outputs = backward.outputs[end : end + len(rest.outputs)]
        part = rewired(backward, inputs, outputs)
        made.append(like(part, name=rest.name, in_names=rest.in_names))
        start, end = start + count, end + len(rest.outputs)
    return made


class Planned(Rewrite[Any]):
    """The rewrite to the halves of a division."""

    divide: Divide

    def __call__(self, program: Program) -> Any:
        return rewritten(self.divide, program).halves


def planned(split: Any, free: Places = (), consts: int = 0) -> Any:
    """`split`, planned as derivatives are now; `split` itself where they keep all that they need."""
    plan = memory_plan()
    if plan == "off":
        return split
    return Planned(Divide(split, plan if type(plan) is Plan else MIN_CUT, free, consts))


def computes_again(split: Any, program: Program) -> bool:
    """Whether the second half of `program` does, when `split`, of `planned`, splits it."""
    return type(split) is Planned and rewritten(split.divide, program).again
