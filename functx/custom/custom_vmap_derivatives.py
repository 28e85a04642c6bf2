"""Derivatives that take nothing but the operands, and compute from them what they need again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from functx import ops
from functx.core.named_axes import AxisNames, batched_axis_names
from functx.core.program import Program
from functx.core.records import Record, Rewrite, field
from functx.core.rewriting import apply, cached_rewrite
from functx.core.tracing import Tracer, aval_of, trace_closed
from functx.core.types import ShapedArray
from functx.transforms.ad_canonicalization import canonicalize_for_ad
from functx.transforms.call_primitive import TransposeLinearInputs
from functx.transforms.dce import RemoveEffects, with_io
from functx.transforms.decompose import decompose_missing_rules
from functx.transforms.forward_mode import JVPRewrite
from functx.transforms.operand_masks import replace_where, scatter_where, select_where
from functx.transforms.reverse_mode import backward_sweep, forward_sweep
from functx.transforms.vmap import Batch, add_axis


def effect_free_program(program: Program) -> Program:
    """`program` for a second run of what it computes."""
    return cached_rewrite(RemoveEffects(), program)  # type: ignore[no-any-return]


class RecomputingJVP(Rewrite[Program]):
    """The rewrite to the tangents of the inexact outputs.

    Takes the operands, then tangents of those that are marked `varying`.
    """

    varying: tuple[bool, ...]

    def __call__(self, program: Program) -> Program:
        pushed = JVPRewrite(self.varying)(effect_free_program(program))
        return with_io(pushed, pushed.inputs, pushed.outputs[len(program.outputs) :])


class RecomputingVJP(Rewrite[Program]):
    """The rewrite to the cotangents of the active operands.

    Takes the cotangents of the outputs that are marked `given`, then the operands.
    """

    active: tuple[bool, ...]
    has_cotangent: tuple[bool, ...]

    def __call__(self, program: Program) -> Program:
        program = canonicalize_for_ad(effect_free_program(program), "vjp", "jvp", "transpose")

        def body(*xs: Any) -> list[Any]:
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
        return TransposeLinearInputs(self.linear)(
            decompose_missing_rules(effect_free_program(program), "transpose")
        )


class VmapRule(Protocol):
    """How a function, or a derivative of one, works on a batch; compared by value."""

    def applies_to(self, flags: Sequence[bool]) -> bool:
        """Whether the rule has a say when the operands marked in `flags` have a batch axis."""
        ...

    def __call__(
        self, size: int, flags: Sequence[bool], args: Sequence[Any]
    ) -> tuple[list[Any], list[bool]]:
        """The outputs on operands that are batched, along the first axis, where `flags` says so.

        Also which of the outputs are batched. Runs inside a trace.
        """
        ...


def trace_vmap_rule(
    rule: VmapRule, size: int, flags: Sequence[bool], avals: Sequence[ShapedArray]
) -> Program:
    """What `rule` does to operands of `avals`, batched where `flags` says; so are all outputs."""

    def body(*args: Any) -> list[Any]:
        outs, out_flags = rule(size, flags, args)
        return [
            x if on else broadcast_along_batch(x, size)
            for x, on in zip(outs, out_flags, strict=True)
        ]

    return trace_closed(body, avals, name="batched")


def broadcast_along_batch(x: Any, size: int) -> Any:
    """`x`, `size` times along a new first axis."""
    return ops.broadcast_in_dim(x, (size, *x.shape), tuple(range(1, x.ndim + 1)))


def materialize_batch_dims(
    args: Sequence[Any], flags: Sequence[bool], wanted: Sequence[bool], size: int
) -> Any:
    """`args`, repeated where a batch is `wanted` and there is none."""
    return [
        broadcast_along_batch(x, size) if want and not on else x
        for x, on, want in zip(args, flags, wanted, strict=True)
    ]


def avals_of_tracers(args: Sequence[Tracer]) -> list[ShapedArray]:
    return [aval_of(x) for x in args]


class JVPVmapRule(Record):
    """The rule of `Push(varying)` of a function with the rule `base`: the push of that rule."""

    base: Any
    varying: tuple[bool, ...]

    def applies_to(self, flags: Sequence[bool]) -> bool:
        return self.base.applies_to(flags[: len(self.varying)])  # type: ignore[no-any-return]

    def __call__(
        self, size: int, flags: Sequence[bool], args: Sequence[Any]
    ) -> tuple[list[Any], list[bool]]:
        n = len(self.varying)
        moving = scatter_where(flags[n:], self.varying)
        wanted = [on or bool(t) for on, t in zip(flags, moving, strict=False)]
        primals = materialize_batch_dims(args[:n], flags[:n], wanted, size)
        tangents = materialize_batch_dims(
            args[n:], flags[n:], select_where(wanted, self.varying), size
        )
        program = trace_vmap_rule(self.base, size, wanted, avals_of_tracers(primals))
        outs = apply(RecomputingJVP(self.varying), program, [*primals, *tangents])
        return outs, [True] * len(outs)


class VJPVmapRule(Record):
    """The rule of `Pull(active, given)` of a function with the rule `base`: the pull of that."""

    base: Any
    active: tuple[bool, ...]
    has_cotangent: tuple[bool, ...]

    def applies_to(self, flags: Sequence[bool]) -> bool:
        return self.base.applies_to(flags[sum(self.has_cotangent) :])  # type: ignore[no-any-return]

    def __call__(
        self, size: int, flags: Sequence[bool], args: Sequence[Any]
    ) -> tuple[list[Any], list[bool]]:
        n = sum(self.has_cotangent)
        # An operand that all share has a cotangent in each place of the batch, not their sum.
        wanted = [a or b for a, b in zip(flags[n:], self.active, strict=True)]
        operands = materialize_batch_dims(args[n:], flags[n:], wanted, size)
        cts = materialize_batch_dims(args[:n], flags[:n], [True] * n, size)
        program = trace_vmap_rule(self.base, size, wanted, avals_of_tracers(operands))
        outs = apply(RecomputingVJP(self.active, self.has_cotangent), program, [*cts, *operands])
        return outs, [True] * len(outs)


class TransposeVmapRule(Record):
    """The rule of `RecomputingTranspose(linear)` of a function with the rule `base`.

    `avals` are the types of the linear operands, which it does not get.
    """

    base: Any
    linear: tuple[bool, ...]
    avals: tuple[ShapedArray, ...]

    def flags(self, flags: Sequence[bool]) -> list[bool]:
        """The flags of the operands of the function, of which the linear ones are batched."""
        known = iter(flags[len(flags) - (len(self.linear) - sum(self.linear)) :])
        return [on or next(known) for on in self.linear]

    def applies_to(self, flags: Sequence[bool]) -> bool:
        known = [on and not lin for on, lin in zip(self.flags(flags), self.linear, strict=True)]
        return self.base.applies_to(known)  # type: ignore[no-any-return]

    def __call__(
        self, size: int, flags: Sequence[bool], args: Sequence[Any]
    ) -> tuple[list[Any], list[bool]]:
        n = len(args) - (len(self.linear) - sum(self.linear))
        known = scatter_where(avals_of_tracers(args[n:]), [not on for on in self.linear])
        avals = replace_where(known, self.linear, [add_axis(a, 0, size) for a in self.avals])
        program = trace_vmap_rule(self.base, size, self.flags(flags), avals)
        cts = materialize_batch_dims(args[:n], flags[:n], [True] * n, size)
        outs = apply(RecomputingTranspose(self.linear), program, [*cts, *args[n:]])
        return outs, [True] * len(outs)


class NestedVmapRule(Record):
    """The rule of a derivative that is batched already, in operands that do not decide.

    `Batch(size, dims, (0, ...))` was made of the derivative, whose rule is `base`.
    """

    base: Any
    size: int
    dims: tuple[int | None, ...]
    names: AxisNames = field(default_factory=batched_axis_names, kw_only=True)

    def applies_to(self, flags: Sequence[bool]) -> bool:
        return self.base.applies_to(flags)  # type: ignore[no-any-return]

    def __call__(
        self, size: int, flags: Sequence[bool], args: Sequence[Any]
    ) -> tuple[list[Any], list[bool]]:
        dims = tuple(
            [None if d is None else d + on for d, on in zip(self.dims, flags, strict=True)]
        )
        avals = [remove_axis(aval_of(x), d) for x, d in zip(args, dims, strict=True)]
        program = trace_vmap_rule(self.base, size, flags, avals)
        ones = (1,) * len(program.outputs)
        batch = Batch(self.size, dims, ones, names=self.names)
        outs = apply(None, cached_rewrite(batch, program), args)
        return outs, [True] * len(outs)


def remove_axis(aval: ShapedArray, dim: int | None) -> ShapedArray:
    if dim is None:
        return aval
    return aval.update(shape=(*aval.shape[:dim], *aval.shape[dim + 1 :]))
