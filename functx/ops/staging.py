"""Operations for the compiler: barriers for optimizations, and the platform of a program."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import jax
import numpy as np
from jax import lax

from functx.core import tree
from functx.core.effects import Effect, Effects
from functx.core.errors import ArgumentError
from functx.core.masks import indices_where, scatter_where
from functx.core.primitive import Primitive
from functx.core.samples import f32, i32, sample
from functx.core.types import ShapedArray
from functx.core.typing import Avals, Cotangents, Dim, IRValue, NumPyArray, PyTree, Tangents, Values
from functx.ops.families import Constant, MovesElements, TransposedByVJP

if TYPE_CHECKING:
    from functx.lowering.stablehlo_emitter import LoweringContext


class OptimizationBarrier(TransposedByVJP, MovesElements):
    """The operands, which the compiler computes all before any use, and merges with nothing beyond."""

    multiple_results = True
    may_share_outputs = True
    samples = sample(f32[3], f32[2, 2]), sample(f32[3], i32[2])

    def abstract_eval(self, *avals: ShapedArray) -> Avals:
        return avals

    def jvp(self, primals: Values, tangents: Tangents) -> tuple[Values, Tangents]:
        return self(*primals), self._behind_barrier(tangents)

    def vjp(
        self, cts: Cotangents, outs: Values, args: Values, active: Sequence[bool]
    ) -> Cotangents:
        return self._behind_barrier(
            [ct if on else None for ct, on in zip(cts, active, strict=True)]
        )

    def _behind_barrier(self, values: Tangents) -> Tangents:
        """The tangents or cotangents that are not None, behind a barrier of their own."""
        given = [x is not None for x in values]
        return scatter_where(self(*[values[i] for i in indices_where(given)]), given)

    def batch(self, args: Values, dims: Sequence[Dim]) -> tuple[Values, Sequence[Dim]]:
        return self(*args), dims

    def numpy(self, *args: NumPyArray) -> Sequence[NumPyArray]:
        return args

    def lower(self, ctx: LoweringContext, *values: IRValue) -> Sequence[IRValue]:
        return ctx.barrier(values)


def optimization_barrier(operand: PyTree, /) -> PyTree:
    """The pytree `operand`, whose leaves the compiler computes all before any use of one.

    It merges no computation before the barrier with one after it.

    >>> from functx import lax
    >>> float(lax.optimization_barrier({"x": 2.0})["x"])
    2.0
    """
    leaves, structure = tree.flatten(operand)
    return tree.unflatten(structure, OptimizationBarrier()(*leaves) if leaves else [])


class PlatformIndex(Constant):
    """The position of the entry of `platforms` that names the platform the program runs on.

    It is that of the entry "default" for a platform that none names.
    """

    platforms: tuple[tuple[str, ...], ...]
    samples = (
        sample(platforms=(("cpu",), ("cuda", "rocm"), ("tpu",))),
        sample(platforms=(("default",),)),
    )

    def abstract_eval(self) -> ShapedArray:
        return ShapedArray((), np.dtype("int32"))

    def numpy(self) -> NumPyArray:
        return np.int32(0)  # type: ignore[return-value]

    def lower(self, ctx: LoweringContext) -> IRValue:
        if len(ctx.platforms) == 1:
            return ctx.dense(np.asarray(self.position(ctx.platforms[0]), np.int32))
        indices = {name: partial(np.int32, self.position(name)) for name in ctx.platforms}
        return ctx.via_jax(lambda: lax.platform_dependent(**indices))

    def position(self, platform: str) -> int:
        """The position for `platform`; raises ArgumentError if no entry stands for it."""
        for name in (platform, "default"):
            for i, names in enumerate(self.platforms):
                if name in names:
                    return i
        raise ArgumentError(
            "platform_dependent: there must be a function for each platform that the program is "
            f"compiled for; got none for {platform}, and no default",
            fix=f"Pass {platform}=f, or default=f.",
        )


class DceSink(Primitive):
    """Keeps the computation of `x` in programs, although nothing uses it.

    With `in_compiled`, the compiler keeps it too, by a custom call that the platform must have.
    """

    in_compiled: bool = False
    multiple_results = True
    differentiable = False
    effects: ClassVar[Effects] = frozenset([Effect.CALLBACK])
    samples = (sample(f32[3]),)

    def abstract_eval(self, x: ShapedArray) -> Avals:
        return ()

    def batch(self, args: Values, dims: Sequence[Dim]) -> tuple[Values, Sequence[Dim]]:
        return self(*args), ()

    def numpy(self, x: NumPyArray) -> Sequence[NumPyArray]:
        return ()

    def lower(self, ctx: LoweringContext, x: IRValue) -> Sequence[IRValue]:
        if not self.in_compiled:
            return []
        call = jax.ffi.ffi_lowering("dce_sink", has_side_effect=True)
        (aval,) = ctx.avals_in
        rule_ctx = ctx.module.jax_context.replace(
            avals_in=[jax.core.ShapedArray(aval.shape, aval.dtype)], avals_out=[]
        )
        return list(call(rule_ctx, x))  # type: ignore[arg-type]


def dce_sink(val: PyTree, *, prevent_mlir_dce: bool = False) -> None:
    """Keep the computation of the leaves of `val` in the programs of functx, although nothing uses them.

    With `prevent_mlir_dce`, compilers keep it too, where they have the custom call `dce_sink`.
    """
    for leaf in tree.leaves(val):
        DceSink(bool(prevent_mlir_dce))(leaf)
