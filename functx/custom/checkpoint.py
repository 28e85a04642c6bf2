"""`checkpoint`: a function that is computed again when its derivative is needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from jax.extend.mlir.dialects import stablehlo

from functx.core import tree
from functx.core.dtypes import is_inexact
from functx.core.errors import ArgnumsError, ArgumentError
from functx.core.primitive import LinearInput, Primitive
from functx.core.program import Program, remove_dead
from functx.core.samples import f32, sample
from functx.core.tracing import current_builder, rewritten, trace
from functx.custom.function import in_jax_trace
from functx.ops.arithmetic import mul
from functx.ops.shaping import zeros_like
from functx.ops.trigonometric import sin
from functx.transforms.batching import NaturalBatch
from functx.transforms.call import TransposeIn
from functx.transforms.calls import avals_of, check_callable, name_of, named_after, trace_call
from functx.transforms.expand import expand
from functx.transforms.forward_mode import PushForward
from functx.transforms.reverse_mode import backward_sweep, forward_sweep


def checkpoint(
    fun: Callable[..., Any] | None = None,
    *,
    prevent_cse: bool = True,
    policy: Any = None,
    static_argnums: int | Sequence[int] = (),
) -> Any:
    """`fun`, of which a derivative keeps the arguments alone and computes the rest again.

    It costs one more evaluation in the backward sweep and spares the memory of what is
    between the arguments and the result. With `prevent_cse`, the compiler is kept from
    merging the two evaluations. Arguments at `static_argnums` may be of any type.

    Raises ArgumentError for a `policy` other than None.

    >>> import functx
    >>> block = functx.checkpoint(lambda x: functx.numpy.sin(functx.numpy.sin(x)))
    >>> float(functx.grad(block)(0.0))
    1.0
    """
    if policy is not None:
        raise ArgumentError(f"checkpoint: policy must be None, to keep nothing; got {policy!r}")
    if fun is None:
        return partial(checkpoint, prevent_cse=prevent_cse, static_argnums=static_argnums)
    check_callable(fun, "checkpoint")
    numbers = (static_argnums,) if isinstance(static_argnums, int) else tuple(static_argnums)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if current_builder.get() is None and not in_jax_trace((args, kwargs)):
            return fun(*args, **kwargs)
        if any(not -len(args) <= n < len(args) for n in numbers):
            raise ArgnumsError(
                f"checkpoint({name_of(fun)}): static_argnums must name positional arguments; "
                f"got {numbers} for {len(args)} of them"
            )
        fixed = {n % len(args): args[n % len(args)] for n in numbers}
        count = len(args)

        def of_dynamic(*dynamic: Any, **keywords: Any) -> Any:
            rest = iter(dynamic)
            return fun(*[fixed[i] if i in fixed else next(rest) for i in range(count)], **keywords)

        of_dynamic.__name__ = name_of(fun)
        dynamic = tuple([x for i, x in enumerate(args) if i not in fixed])
        plain = of_dynamic if fixed else fun
        leaves, in_tree = tree.flatten((dynamic, kwargs))
        avals = avals_of(leaves, "checkpoint", plain, in_tree)
        traced = trace_call(plain, in_tree, avals, "checkpoint", values=leaves)
        outs = Checkpoint(traced.program, prevent_cse)(*leaves, *traced.captured)
        return tree.unflatten(traced.out_tree, outs)

    named_after(wrapper, fun, "checkpoint").__name__ = name_of(fun)
    return wrapper


remat = checkpoint


def _example() -> Program:
    def body(x: Any, y: Any) -> list[Any]:
        return [sin(mul(sin(x), y))]

    return trace(body, [f32[3], f32[3]], name="example")[0]


class Checkpoint(Primitive):
    """The outputs of `program`, of which its derivatives keep the operands alone.

    `again` marks a computation that repeats an earlier one, which `apart` keeps from being
    merged with that.
    """

    program: Program
    apart: bool = True
    again: bool = False
    multiple_results = True
    samples = (
        sample(f32[3], f32[3], dtypes=("f32",), program=_example()),
        sample(f32[3], f32[3], dtypes=("f32",), program=_example(), again=True),
    )

    def abstract_eval(self, *avals):
        return self.program.out_avals

    def repeated(self, program: Program) -> Checkpoint:
        return Checkpoint(program, self.apart, True)

    def jvp(self, primals, tangents):
        outs = self(*primals)
        varying = tuple([t is not None for t in tangents])
        program = rewritten(TangentsOnly(varying), self.program)
        given = [t for t in tangents if t is not None]
        found = iter(self.repeated(program)(*primals, *given))
        return outs, [next(found) if is_inexact(x.dtype) else None for x in outs]

    def forward(self, args, active):
        return self(*args), ()

    def vjp(self, cts, saved, args, active):
        marks = tuple([ct is not None for ct in cts])
        program = rewritten(PullAgain(tuple(active), marks), self.program)
        found = iter(self.repeated(program)(*[ct for ct in cts if ct is not None], *args))
        return [next(found) if on else None for on in active]

    def transpose(self, cts, *args):
        linear = tuple([type(x) is LinearInput for x in args])
        program = rewritten(TransposeIn(linear), expand(self.program, "transpose"))
        given = [
            zeros_like(aval) if ct is None else ct
            for ct, aval in zip(cts, self.program.out_avals, strict=True)
            if is_inexact(aval.dtype)
        ]
        known = [x for x, on in zip(args, linear, strict=True) if not on]
        found = iter(self.repeated(program)(*given, *known))
        return [next(found) if on else None for on in linear]

    def batch(self, args, dims):
        size = next(x.shape[d] for x, d in zip(args, dims, strict=True) if d is not None)
        program, out_dims = rewritten(NaturalBatch(size, tuple(dims)), self.program)
        return Checkpoint(program, self.apart, self.again)(*args), out_dims

    def lower(self, ctx, *values):
        if self.again and self.apart and values:
            values = (*stablehlo.OptimizationBarrierOp(list(values)).results,)
        return ctx.call(self.program, list(values))


@dataclass(frozen=True)
class TangentsOnly:
    """The rewrite to the tangents of the inexact outputs, from operands and their tangents."""

    varying: tuple[bool, ...]

    def __call__(self, program: Program) -> Program:
        pushed = PushForward(self.varying)(program)
        count = len(program.outputs)
        return Program(
            pushed.name,
            pushed.inputs,
            remove_dead(pushed.equations, pushed.outputs[count:]),
            pushed.outputs[count:],
            in_names=pushed.in_names,
        )


@dataclass(frozen=True)
class PullAgain:
    """The rewrite to the cotangents of the active operands, from nothing but the operands.

    Takes the cotangents of the outputs that are marked `given`, then the operands.
    """

    active: tuple[bool, ...]
    given: tuple[bool, ...]

    def __call__(self, program: Program) -> Program:
        program = expand(program, "vjp", "jvp", "transpose")

        def body(*xs: Any) -> list[Any]:
            count = sum(self.given)
            rest = iter(xs[:count])
            cts = [next(rest) if on else None for on in self.given]
            _, tape = forward_sweep(program, xs[count:], self.active)
            return backward_sweep(program, tape, cts, self.active)

        ct_avals = [a for a, on in zip(program.out_avals, self.given, strict=True) if on]
        avals = [*ct_avals, *program.in_avals]
        return trace(body, avals, name=f"pullback_{program.name}")[0]
