"""Draws that a pullback repeats: they draw the numbers of the function, also where the pullback is mapped."""

from __future__ import annotations

from functx.core.program import Program
from functx.core.program_editing import map_primitive_programs, replace_program_fields
from functx.core.rewriting import Rewrite, cached_rewrite
from functx.core.tracer import current_builder, with_parents
from functx.ops.philox import Draw


def num_mapped_levels() -> int:
    """The number of `vmap`s around the current code."""
    builder = current_builder.innermost()
    return sum([b.kind == "vmap" and b.is_open for b in with_parents(builder)]) if builder else 0


def replay_draws(program: Program, levels: int) -> Program:
    """A program that repeats draws of one that was made with `levels` of `vmap` around it.

    The levels that were added since do not change the numbers.
    """
    if not program.draws:
        return program
    added = num_mapped_levels() - levels
    return cached_rewrite(MarkReplays(added), program) if added > 0 else program


def has_replays(program: Program) -> bool:
    """Whether a program repeats draws of another one outside of batches."""
    if not program.draws:
        return False
    return any(
        [getattr(e.primitive, "replays", 0) for each in program.walk() for e in each.equations]
    )


class MarkReplays(Rewrite[Program]):
    """The rewrite to a program whose draws repeat those of a program outside of `levels` batches."""

    levels: int

    def __call__(self, program: Program) -> Program:
        equations = []
        for eqn in program.equations:
            primitive = eqn.primitive
            if isinstance(primitive, Draw):
                primitive = primitive.replace(replays=primitive.replays + self.levels)
            elif primitive.draws:
                primitive = map_primitive_programs(primitive, self)
            equations.append(eqn.replace(primitive=primitive))
        return replace_program_fields(program, equations=equations)
