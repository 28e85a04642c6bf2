"""Derivatives of `custom_vmap` functions, and the batching rules of these derivatives.

The derivatives recompute their residuals from the operands.
"""

from __future__ import annotations

from typing import Protocol

from functx import ops
from functx.core.masks import scatter_where, select_where
from functx.core.named_axes import AxisNames, batched_axis_names
from functx.core.program import Program
from functx.core.rewriting import Record, Rewrite, apply, cached_rewrite, field
from functx.core.tracer import aval_of
from functx.core.tracing import trace_closed
from functx.core.types import ShapedArray
from functx.core.typing import Avals, Dim, Flags, PyTree, Value, Values
from functx.transforms.batching import Batch, add_axis, remove_axis
from functx.transforms.dce import RemoveEffects, with_io
from functx.transforms.forward_mode import JVPRewrite, canonicalize_for_ad
from functx.transforms.linear_transpose import Transpose
from functx.transforms.reverse_mode import backward_sweep, forward_sweep


def effect_free_program(program: Program) -> Program:
    """`program` without its effects, for a second run."""
    return cached_rewrite(RemoveEffects(), program)


class RecomputingJVP(Rewrite[Program]):
    """The rewrite to the tangents of the inexact outputs.

    Takes the operands, then the tangents of those marked in `varying`.
    """

    varying: tuple[bool, ...]

    def __call__(self, program: Program) -> Program:
        jvp_program = JVPRewrite(self.varying)(effect_free_program(program))
        return with_io(jvp_program, jvp_program.inputs, jvp_program.outputs[len(program.outputs) :])


class RecomputingVJP(Rewrite[Program]):
    """The rewrite to the cotangents of the active operands.

    Takes the cotangents of the outputs marked in `has_cotangent`, then the operands.
    """

    active: tuple[bool, ...]
    has_cotangent: tuple[bool, ...]

    def __call__(self, program: Program) -> Program:
        program = canonicalize_for_ad(effect_free_program(program), "vjp", "jvp")

        def body(*xs: Value) -> list[Value]:
            count = sum(self.has_cotangent)
            _, tape = forward_sweep(program, xs[count:], self.active)
            return backward_sweep(
                program, tape, scatter_where(xs[:count], self.has_cotangent), self.active
            )

        avals = [*select_where(program.out_avals, self.has_cotangent), *program.in_avals]
        return trace_closed(body, avals, name=f"pullback_{program.name}")


class RecomputingTranspose(Rewrite[Program]):
    """The rewrite to the cotangents of the operands that the program is `linear` in.

    Takes the cotangents of the inexact outputs, then the other operands.
    """

    linear: tuple[bool, ...]

    def __call__(self, program: Program) -> Program:
        return Transpose(self.linear)(effect_free_program(program))


class VmapRule(Protocol):
    """A batching rule of a function, or of a derivative of one; compared by value."""

    def applies_to(self, flags: Flags) -> bool:
        """Whether the rule is used if the operands marked in `flags` are batched."""
        ...

    def __call__(self, size: int, flags: Flags, args: Values) -> tuple[list[Value], list[bool]]:
        """The outputs, and their flags, for operands batched along the first axis by `flags`.

        Runs inside a trace.
        """
        ...


def trace_vmap_rule(rule: VmapRule, size: int, flags: Flags, avals: Avals) -> Program:
    """The program of `rule` on operands of `avals`, batched by `flags`; all outputs are batched."""

    def body(*args: PyTree) -> list[Value]:
        outs, out_flags = rule(size, flags, args)
        return [
            x if on else broadcast_along_batch(x, size)
            for x, on in zip(outs, out_flags, strict=True)
        ]

    return trace_closed(body, avals, name="batched")


def broadcast_along_batch(x: Value, size: int) -> Value:
    """`x`, repeated `size` times along a new first axis."""
    return ops.broadcast_in_dim(x, (size, *x.shape), tuple(range(1, x.ndim + 1)))


def materialize_batch_dims(args: Values, flags: Flags, required: Flags, size: int) -> list[Value]:
    """`args`, batched by `flags`, with those that are `required` to be batched repeated."""
    return [
        broadcast_along_batch(x, size) if need and not on else x
        for x, on, need in zip(args, flags, required, strict=True)
    ]


def avals_of_tracers(args: Values) -> list[ShapedArray]:
    return [aval_of(x) for x in args]


class JVPVmapRule(Record):
    """The batching rule of `RecomputingJVP(varying)` of a function: the jvp of its rule `base`."""

    base: VmapRule
    varying: tuple[bool, ...]

    def applies_to(self, flags: Flags) -> bool:
        return self.base.applies_to(flags[: len(self.varying)])

    def __call__(self, size: int, flags: Flags, args: Values) -> tuple[list[Value], list[bool]]:
        n = len(self.varying)
        tangent_flags = scatter_where(flags[n:], self.varying)
        required = [on or bool(t) for on, t in zip(flags, tangent_flags, strict=False)]
        primals = materialize_batch_dims(args[:n], flags[:n], required, size)
        tangents = materialize_batch_dims(
            args[n:], flags[n:], select_where(required, self.varying), size
        )
        program = trace_vmap_rule(self.base, size, required, avals_of_tracers(primals))
        outs = apply(RecomputingJVP(self.varying), program, [*primals, *tangents])
        return outs, [True] * len(outs)


class VJPVmapRule(Record):
    """The batching rule of `RecomputingVJP(active, has_cotangent)`: the pullback of the rule `base`."""

    base: VmapRule
    active: tuple[bool, ...]
    has_cotangent: tuple[bool, ...]

    def applies_to(self, flags: Flags) -> bool:
        return self.base.applies_to(flags[sum(self.has_cotangent) :])

    def __call__(self, size: int, flags: Flags, args: Values) -> tuple[list[Value], list[bool]]:
        n = sum(self.has_cotangent)
        # The cotangent of an operand that is not batched is a batch, not its sum.
        required = [a or b for a, b in zip(flags[n:], self.active, strict=True)]
        operands = materialize_batch_dims(args[n:], flags[n:], required, size)
        cts = materialize_batch_dims(args[:n], flags[:n], [True] * n, size)
        program = trace_vmap_rule(self.base, size, required, avals_of_tracers(operands))
        outs = apply(RecomputingVJP(self.active, self.has_cotangent), program, [*cts, *operands])
        return outs, [True] * len(outs)


class TransposeVmapRule(Record):
    """The batching rule of `RecomputingTranspose(linear)`: the transpose of the rule `base`.

    `avals` are the types of the linear operands, which are not among its operands.
    """

    base: VmapRule
    linear: tuple[bool, ...]
    avals: tuple[ShapedArray, ...]

    def operand_flags(self, flags: Flags) -> list[bool]:
        """The flags of all operands of the function; the linear ones are batched."""
        known = iter(flags[len(flags) - (len(self.linear) - sum(self.linear)) :])
        return [on or next(known) for on in self.linear]

    def applies_to(self, flags: Flags) -> bool:
        pairs = zip(self.operand_flags(flags), self.linear, strict=True)
        return self.base.applies_to([on and not is_linear for on, is_linear in pairs])

    def __call__(self, size: int, flags: Flags, args: Values) -> tuple[list[Value], list[bool]]:
        n = len(args) - (len(self.linear) - sum(self.linear))
        own = iter([add_axis(a, 0, size) for a in self.avals])
        known = iter(avals_of_tracers(args[n:]))
        avals = [next(own if on else known) for on in self.linear]
        program = trace_vmap_rule(self.base, size, self.operand_flags(flags), avals)
        cts = materialize_batch_dims(args[:n], flags[:n], [True] * n, size)
        outs = apply(RecomputingTranspose(self.linear), program, [*cts, *args[n:]])
        return outs, [True] * len(outs)


class NestedVmapRule(Record):
    """The rule of a derivative with the rule `base`, already rewritten by `Batch(size, dims, (0, ...))`.

    The batched operands of that rewrite are those to which `base` does not apply.
    """

    base: VmapRule
    size: int
    dims: tuple[Dim, ...]
    names: AxisNames = field(default_factory=batched_axis_names, kw_only=True)

    def applies_to(self, flags: Flags) -> bool:
        return self.base.applies_to(flags)

    def __call__(self, size: int, flags: Flags, args: Values) -> tuple[list[Value], list[bool]]:
        dims = tuple(
            [None if d is None else d + on for d, on in zip(self.dims, flags, strict=True)]
        )
        avals = [remove_axis(aval_of(x), d) for x, d in zip(args, dims, strict=True)]
        program = trace_vmap_rule(self.base, size, flags, avals)
        out_dims = (1,) * len(program.outputs)
        batch = Batch(self.size, dims, out_dims, names=self.names)
        outs = apply(None, cached_rewrite(batch, program), args)
        return outs, [True] * len(outs)
