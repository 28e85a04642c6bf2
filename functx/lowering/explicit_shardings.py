"""The shardings of results on meshes with explicit axes, found from operands and constraints."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TypeAlias

from jax.sharding import NamedSharding, PartitionSpec

from functx import ops
from functx.core.program import Atom, Equation, Program, subprograms
from functx.core.rewriting import Rewrite, cached_rewrite

Spec: TypeAlias = PartitionSpec | None
"""The sharding of a value; None if nothing determines it."""


class ExplicitShardingAnalysis(Rewrite[tuple[Spec, ...]]):
    """The analysis that finds the sharding of each output over the explicit `axes` of a mesh.

    A constraint determines that of its result, else the first operand of the same shape does.
    """

    input_specs: tuple[Spec, ...]
    axes: frozenset[Hashable]

    def __call__(self, program: Program) -> tuple[Spec, ...]:
        env: dict[Atom, Spec] = dict(zip(program.inputs, self.input_specs, strict=True))
        for eqn in program.equations:
            operand_specs = [env.get(a) for a in eqn.inputs]
            env.update(zip(eqn.outputs, self.result_specs(eqn, operand_specs), strict=True))
        return tuple([env.get(a) for a in program.outputs])

    def result_specs(self, eqn: Equation, operand_specs: Sequence[Spec]) -> list[Spec]:
        primitive = eqn.primitive
        if isinstance(primitive, ops.ShardingConstraint):
            if isinstance(primitive.sharding, NamedSharding):
                return [explicit_part(primitive.sharding.spec, self.axes)]
            return [None]
        specs: dict[tuple[int, ...], Spec] = {}
        for atom, spec in zip(eqn.inputs, operand_specs, strict=True):
            if spec is not None:
                specs.setdefault(atom.aval.shape, spec)
        found = [specs.get(out.aval.shape) for out in eqn.outputs]
        for program in subprograms(primitive):
            inside = self.subprogram_specs(program, eqn, operand_specs)
            pairs = zip(inside, found, strict=True)
            found = [known if spec is None else spec for spec, known in pairs]
        return found

    def subprogram_specs(
        self, program: Program, eqn: Equation, operand_specs: Sequence[Spec]
    ) -> list[Spec]:
        """The shardings of the outputs of `eqn` that are those of its sub-program `program`; else None."""
        if len(program.outputs) != len(eqn.outputs):
            return [None] * len(eqn.outputs)
        # The last operands are those of a program inside: an index or a condition comes first.
        pairs = list(zip(program.inputs[::-1], eqn.inputs[::-1], operand_specs[::-1], strict=False))
        specs = [spec if v.aval.shape == a.aval.shape else None for v, a, spec in pairs]
        specs += [None] * (len(program.inputs) - len(specs))
        found = explicit_shardings(program, specs[::-1], self.axes)
        outs = zip(program.outputs, eqn.outputs, found, strict=True)
        return [spec if a.aval.shape == out.aval.shape else None for a, out, spec in outs]


def explicit_shardings(
    program: Program, input_specs: Sequence[Spec], axes: frozenset[Hashable]
) -> tuple[Spec, ...]:
    """The sharding over `axes` of each output of `program`, from those of the inputs."""
    return cached_rewrite(ExplicitShardingAnalysis(tuple(input_specs), axes), program)


def explicit_part(spec: PartitionSpec, axes: frozenset[Hashable]) -> PartitionSpec:
    """`spec` with its `axes` alone; other dimensions are replicated."""
    entries = [[n for n in ops.mesh_axes_of_entry(entry) if n in axes] for entry in spec]
    return PartitionSpec(*[tuple(names) if names else None for names in entries])
