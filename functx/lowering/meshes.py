"""Device meshes around a program: manual axes, the axes along which values vary, and shardings."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from functools import singledispatch
from math import prod
from typing import TYPE_CHECKING, Any

import jax
from jax.sharding import AxisType, ManualAxisType, Mesh, NamedSharding, PartitionSpec

from functx import ops
from functx.core.backend import backend
from functx.core.errors import CollectiveError, UnboundAxisError
from functx.core.primitive import Primitive
from functx.core.program import Atom, Equation, Literal, Program, Var, scalar_literal, subprograms
from functx.core.program_editing import map_primitive_programs, replace_program_fields
from functx.core.rewriting import Rewrite, cached_rewrite
from functx.core.source_info import Source
from functx.core.tracer import aval_of
from functx.core.types import is_complex, kind
from functx.core.typing import Value, Values
from functx.lowering.explicit_shardings import explicit_shardings
from functx.lowering.jax_bridge import JaxAval, jax_aval
from functx.transforms.control.cond import Cond
from functx.transforms.control.scan import Scan
from functx.transforms.control.while_loop import While
from functx.transforms.dce import fixed_point

if TYPE_CHECKING:
    from jax.interpreters import mlir

    from functx.lowering.functx_call import ProgramParam


AxisSet = frozenset[Any]
NO_AXES: AxisSet = frozenset()


class VaryingAxesAnalysis(Rewrite[tuple[AxisSet, ...]]):
    """The analysis that finds the axes along which each output varies.

    `input_axes` are those of the inputs. Along other axes, a value is replicated.
    """

    input_axes: tuple[AxisSet, ...]

    def __call__(self, program: Program) -> tuple[AxisSet, ...]:
        env: dict[Atom, AxisSet] = dict(zip(program.inputs, self.input_axes, strict=True))
        for eqn in program.equations:
            operand_axes = [env.get(a, NO_AXES) for a in eqn.inputs]
            found = output_axes(eqn.primitive, operand_axes, len(eqn.outputs))
            env.update(zip(eqn.outputs, found, strict=True))
        return tuple([env.get(a, NO_AXES) for a in program.outputs])


def varying_axes(program: Program, input_axes: Sequence[AxisSet]) -> tuple[AxisSet, ...]:
    """The axes along which each output of `program` varies, from those of the inputs."""
    return cached_rewrite(VaryingAxesAnalysis(tuple(input_axes)), program)


class ResolveBoundaries(Rewrite[Program]):
    """The rewrite of the `DerivativeBoundary` equations of a program that runs on each device.

    They sum or divide cotangents as the axes require along which the inputs vary.
    """

    input_axes: tuple[AxisSet, ...]

    def __call__(self, program: Program) -> Program:
        if not has_boundary(program):
            return program
        env: dict[Atom, AxisSet] = dict(zip(program.inputs, self.input_axes, strict=True))
        sizes = dict(
            [
                axis
                for e in program
                if type(e.primitive) is ops.DerivativeBoundary
                for axis in e.primitive.axes
            ]
        )
        aliases: dict[Atom, Any] = {}
        equations = []
        for eqn in program.equations:
            inputs = [aliases.get(a, a) for a in eqn.inputs]
            operand_axes = [env.get(a, NO_AXES) for a in inputs]
            replacements = replacements_for(
                eqn.primitive, inputs[0] if inputs else None, operand_axes, sizes
            )
            if not replacements:
                aliases[eqn.outputs[0]] = inputs[0]
            for i, (primitive, others) in enumerate(replacements):
                if any(has_boundary(sub) for sub in subprograms(primitive)):
                    primitive = resolve_subprogram_boundaries(primitive, operand_axes)
                last = i == len(replacements) - 1
                outputs = eqn.outputs if last else [Var(eqn.outputs[0].aval)]
                operands = inputs if others is None else [inputs[0], *others]
                operand_axes = [env.get(a, NO_AXES) for a in operands]
                env.update(
                    zip(outputs, output_axes(primitive, operand_axes, len(outputs)), strict=True)
                )
                equations.append(Equation(primitive, operands, outputs, eqn.source))
                inputs = outputs
        return replace_program_fields(
            program, equations=equations, outputs=[aliases.get(a, a) for a in program.outputs]
        )


def resolve_boundaries(program: Program, input_axes: Sequence[AxisSet]) -> Program:
    """`program` without `DerivativeBoundary`; `input_axes` are the axes its inputs vary along."""
    return cached_rewrite(ResolveBoundaries(tuple(input_axes)), program)


def has_boundary(program: Program) -> bool:
    """Whether `program` holds a `DerivativeBoundary`, at any depth."""
    found: bool | None = program.memo.get(has_boundary)
    if found is None:
        found = program.memo[has_boundary] = any(
            type(eqn.primitive) is ops.DerivativeBoundary
            for each in program.walk()
            for eqn in each.equations
        )
    return found


Replacement = tuple[Any, Sequence[Any] | None]
"""A primitive, and its operands behind the value so far; None for the operands of the equation."""


def replacements_for(
    primitive: Primitive, x: Any, input_axes: Sequence[AxisSet], sizes: dict[Hashable, int]
) -> Sequence[Replacement]:
    """The operations that replace an equation on `x`; none if its output is `x`."""
    if type(primitive) is ops.Psum and primitive.groups is None:
        return sum_over_axes(primitive.axes, x, input_axes[0], sizes)
    if type(primitive) is not ops.DerivativeBoundary:
        return [(primitive, None)]
    shared = [name for name, _ in primitive.axes if name not in input_axes[1]]
    if primitive.is_identity or not shared:
        return []
    if primitive.kind == "sum":
        return sum_over_axes(shared, x, input_axes[0], sizes)
    return [(ops.Mul(), [literal_like(x, 1 / prod([sizes[name] for name in shared]))])]


def sum_over_axes(
    names: Sequence[Hashable], x: Value, varying: AxisSet, sizes: dict[Hashable, int]
) -> Sequence[Replacement]:
    """The sum of `x` over named axes; along those where it is replicated, a product."""
    replicated = [name for name in names if name in sizes and name not in varying]
    summed = tuple([name for name in names if name not in replicated])
    replacements: list[Replacement] = [(ops.Psum(summed), [])] if summed else []
    if replicated:
        replacements.insert(
            0, (ops.Mul(), [literal_like(x, prod([sizes[name] for name in replicated]))])
        )
    return replacements


def literal_like(x: Value, value: Any) -> Literal:
    """The literal `value` of the type of `x`."""
    aval = aval_of(x)
    value = complex(value) if is_complex(aval.dtype) else value
    value = float(value) if kind(aval.dtype) == "f" else value
    return scalar_literal(value, aval.dtype, aval.weak_type, repr(value))


def resolve_subprogram_boundaries(primitive: Primitive, input_axes: Sequence[AxisSet]) -> Primitive:
    """`primitive` with the boundaries in its sub-programs resolved."""
    sets = subprogram_input_axes(primitive, input_axes)
    if sets is None:
        raise CollectiveError(
            f"{primitive.name}: a derivative inside must not be taken within a map over devices; "
            "got one",
            fix="Take it outside of the operation, or pass check_vma=False.",
        )
    rest = iter(sets)
    return map_primitive_programs(
        primitive, lambda program: resolve_boundaries(program, next(rest))
    )


@singledispatch
def subprogram_input_axes(
    primitive: Primitive, input_axes: Sequence[AxisSet]
) -> Sequence[Sequence[AxisSet]] | None:
    """The axes along which the inputs of each sub-program of an equation vary; None if not known."""
    programs = subprograms(primitive)
    one = len(programs) == 1 and len(programs[0].inputs) == len(input_axes)
    return [input_axes] if one else None


@singledispatch
def output_axes(
    primitive: Primitive, input_axes: Sequence[AxisSet], count: int
) -> Sequence[AxisSet]:
    """The axes along which each of the `count` outputs of an equation varies."""
    for field in ("program", "primal"):
        program = getattr(primitive, field, None)
        if type(program) is Program and (len(program.inputs), len(program.outputs)) == (
            len(input_axes),
            count,
        ):
            return varying_axes(program, input_axes)
    return [union_axes(input_axes) | primitive.named_axes] * count


@output_axes.register
def _(primitive: ops.DerivativeBoundary, given: Sequence[AxisSet], count: int) -> Sequence[AxisSet]:
    return [given[0] & given[1] if primitive.kind == "sum" else given[0]]


@output_axes.register
def _(primitive: ops.Collective, given: Sequence[AxisSet], count: int) -> Sequence[AxisSet]:
    return [primitive.varying_axes(given[0])]


@output_axes.register
def _(primitive: ops.AxisIndex, given: Sequence[AxisSet], count: int) -> Sequence[AxisSet]:
    return [primitive.named_axes]


@subprogram_input_axes.register
def _(primitive: Cond, given: Sequence[AxisSet]) -> Sequence[Sequence[AxisSet]]:
    return [given[1:] for _ in primitive.branches]


@output_axes.register
def _(primitive: Cond, given: Sequence[AxisSet], count: int) -> Sequence[AxisSet]:
    found = [varying_axes(branch, given[1:]) for branch in primitive.branches]
    return [union_axes([given[0], *outs]) for outs in zip(*found, strict=True)]


@subprogram_input_axes.register
def _(primitive: Scan, given: Sequence[AxisSet]) -> Sequence[Sequence[AxisSet]]:
    n, m = primitive.consts, primitive.carries
    consts, carry, rows = given[:n], list(given[n : n + m]), given[n + m :]

    def step(carry: list[AxisSet]) -> tuple[list[AxisSet], None]:
        outs = varying_axes(primitive.program, [*consts, *carry, *rows])
        return [a | b for a, b in zip(carry, outs, strict=False)], None

    carry, _ = fixed_point(carry, step)
    return [[*consts, *carry, *rows]]


@output_axes.register
def _(primitive: Scan, given: Sequence[AxisSet], count: int) -> Sequence[AxisSet]:
    (inside,) = subprogram_input_axes(primitive, given)  # type: ignore[misc]
    n, m = primitive.consts, primitive.carries
    return [*inside[n : n + m], *varying_axes(primitive.program, inside)[m:]]


@subprogram_input_axes.register
def _(primitive: While, given: Sequence[AxisSet]) -> Sequence[Sequence[AxisSet]]:
    m, n = primitive.condition_consts, primitive.condition_consts + primitive.body_consts

    def step(carry: list[AxisSet]) -> tuple[list[AxisSet], None]:
        (stops,) = varying_axes(primitive.condition, [*given[:m], *carry])
        outs = varying_axes(primitive.body, [*given[m:n], *carry])
        return [a | b | stops for a, b in zip(carry, outs, strict=True)], None

    carry, _ = fixed_point(list(given[n:]), step)
    return [[*given[:m], *carry], [*given[m:n], *carry]]


@output_axes.register
def _(primitive: While, given: Sequence[AxisSet], count: int) -> Sequence[AxisSet]:
    _, inside = subprogram_input_axes(primitive, given)  # type: ignore[misc]
    return inside[primitive.body_consts :]


def union_axes(sets: Sequence[AxisSet]) -> AxisSet:
    """The axes in any of `sets`."""
    return NO_AXES.union(*sets)


def axis_size(name: Hashable) -> int | None:
    """The size of the axis `name` that JAX binds here; None if it binds none."""
    try:
        return int(jax.lax.axis_size(name))
    except NameError:
        return None


def axis_names() -> Sequence[Hashable]:
    """The names of the axes that JAX maps over devices here."""
    return tuple(jax.sharding.get_abstract_mesh().manual_axes)


backend.axis_size = axis_size
backend.axis_names = axis_names


def manual_axes(module_context: mlir.ModuleContext) -> dict[Hashable, int]:
    """The manual axes of the module that is being lowered, with their sizes."""
    context = module_context.axis_context
    names = getattr(context, "manual_axes", ())
    mesh = getattr(context, "mesh", None)
    return {} if mesh is None else {n: size for n, size in mesh.shape.items() if n in names}


def unbound_axis_error(
    name: Hashable, sizes: dict[Hashable, int], source: Source | None
) -> UnboundAxisError:
    """The error for a collective over an axis that nothing binds."""
    given = ", ".join(map(repr, sizes)) or "none"
    return UnboundAxisError(
        f"a collective must run within a map over its axis; got {name!r}, where the bound names "
        f"are: {given}",
        fix=f"Run the program within functx.vmap(f, axis_name={name!r}) or functx.shard_map.",
        source=source,
    )


def meshes_in(program: Program) -> tuple[Any, ...]:
    """The meshes of devices in the parameters of `program`."""
    found: tuple[Any, ...] | None = program.memo.get(meshes_in)
    if found is None:
        meshes = [
            getattr(getattr(eqn.primitive, "sharding", eqn.primitive), "mesh", None)
            for each in program.walk()
            for eqn in each.equations
        ]
        found = tuple(dict.fromkeys([mesh for mesh in meshes if isinstance(mesh, Mesh)]))
        program.memo[meshes_in] = found
    return found


def constrain_to_devices(program: Program, values: Values) -> list[Value]:
    """`values` with the first constrained to the devices of the meshes in `program`.

    `values` are the operands or the outputs. JAX finds devices in its own equations only, not in
    programs that these hold.
    """
    values = list(values)
    for mesh in meshes_in(program):
        anywhere = PartitionSpec(*[PartitionSpec.UNCONSTRAINED] * jax.numpy.ndim(values[0]))
        sharding = NamedSharding(ops.with_auto_axes(mesh), anywhere)
        values[0] = jax.lax.with_sharding_constraint(values[0], sharding)
    return values


def varying_manual_axes(x: Value | JaxAval) -> frozenset[Hashable]:
    """The manual axes of a mesh that a JAX value, or its aval, varies over."""
    aval = x if hasattr(x, "manual_axis_type") else jax.typeof(x)
    return aval.manual_axis_type.varying


def tracks_varying(program: Program, operands: Values) -> bool:
    """Whether JAX tracks here which values vary over which manual axes."""
    if any(varying_manual_axes(x) for x in operands):
        return True
    here = [name for name in axis_names() if name in program.named_axes]
    return bool(here) and bool(varying_manual_axes(jax.lax.axis_index(here[0])))


def out_jax_avals(
    program: ProgramParam, mesh: Mesh | jax.sharding.AbstractMesh, operands: Values
) -> list[Value]:
    """The JAX avals of the outputs of a program on operands with these avals, within `mesh`.

    They vary over the manual axes that `varying_axes` finds, and are not sharded explicitly.
    """
    avals = [jax_aval(aval) for aval in program.program.out_avals]
    avals = [a.update(sharding=NamedSharding(mesh, PartitionSpec(*[None] * a.ndim))) for a in avals]
    if not program.tracks_varying:
        return avals
    found = varying_axes(program.program, [varying_manual_axes(a) for a in operands])
    manual = frozenset(axis_names())
    kinds = [ManualAxisType(varying=axes & manual) for axes in found]
    return [a.update(manual_axis_type=kind) for a, kind in zip(avals, kinds, strict=True)]


def bind_on_mesh(
    call: Any, mesh: Mesh | jax.sharding.AbstractMesh, operands: Values, program: ProgramParam
) -> list[Value]:
    """The outputs of `call`, bound to operands within `mesh`.

    With explicit axes, an output has the sharding that `explicit_shardings` finds, else that of the
    first sharded operand of its shape, else it is replicated.
    """

    def bind(*xs: Value) -> list[Value]:
        program.tracks_varying = tracks_varying(program.program, xs)
        if program.tracks_varying:
            program.program = resolve_boundaries(
                program.program, [varying_manual_axes(x) for x in xs]
            )
        outs: list[Any] = call.bind(*xs, program=program)
        return outs

    if AxisType.Explicit not in mesh.axis_types:
        return bind(*operands)
    types = zip(mesh.axis_names, mesh.axis_types, strict=True)
    axes = frozenset([name for name, kind in types if kind == AxisType.Explicit])
    given = [jax.typeof(x).sharding.spec for x in operands]
    for spec in given:
        ops.refuse_unreduced("a function on a mesh with explicit axes", spec)
    given = [spec if any(axis is not None for axis in spec) else None for spec in given]
    specs: dict[tuple[int, ...], PartitionSpec] = {}
    for x, spec in zip(operands, given, strict=True):
        if spec is not None:
            specs.setdefault(jax.numpy.shape(x), spec)
    found = explicit_shardings(program.program, given, axes)
    out_specs = [
        specs.get(aval.shape, PartitionSpec()) if spec is None else spec
        for aval, spec in zip(program.program.out_avals, found, strict=True)
    ]
    outs = jax.sharding.auto_axes(bind, out_sharding=out_specs)(*operands)
    return list(outs)


def divide_replicated_cotangents(
    program: ProgramParam, cts: Values, operands: Values
) -> list[Value]:
    """The cotangents, each divided by the number of devices that hold the same value.

    The transposed program maps them to the shares that `psum_replicated_cotangents` adds up.
    """
    if not program.tracks_varying:
        return list(cts)
    axes = used_manual_axes(program, [*cts, *operands])
    return [divide_by_axis_sizes(ct, axes - varying_manual_axes(ct)) for ct in cts]


def divide_by_axis_sizes(x: Value, axes: Iterable[Hashable]) -> Value:
    """`x` divided by the product of the sizes of the manual `axes`."""
    count = prod([axis_size(name) or 1 for name in axes])
    return x if count == 1 else x / count


def psum_replicated_cotangents(
    program: ProgramParam, cts: Values, linear_avals: Sequence[JaxAval], operands: Values
) -> Values:
    """The cotangents of linear operands with avals `linear_avals`, summed over the devices that share them."""
    if not program.tracks_varying:
        return cts
    axes = used_manual_axes(program, operands)
    found = []
    for ct, like in zip(cts, linear_avals, strict=True):
        shared = tuple(sorted(axes - varying_manual_axes(like), key=str))
        found.append(pcast_like(jax.lax.psum(ct, shared) if shared else ct, like))
    return found


def pcast_like(x: Value, like: Value | JaxAval) -> Value:
    """`x`, cast to vary over all manual axes that `like` varies over."""
    missing = tuple(sorted(varying_manual_axes(like) - varying_manual_axes(x), key=str))
    return jax.lax.pcast(x, missing, to="varying") if missing else x


def used_manual_axes(program: ProgramParam, values: Values) -> frozenset[Hashable]:
    """The manual axes that values vary over, or that the program has collectives over."""
    named = program.program.named_axes & frozenset(axis_names())
    return frozenset().union(named, *[varying_manual_axes(x) for x in values])
