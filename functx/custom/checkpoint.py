"""`checkpoint`: a function that is computed again when its derivative is needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jax.extend.mlir.dialects import stablehlo

from functx.core import tree
from functx.core.errors import ArgnumsError, ArgumentError, type_name
from functx.core.primitive import Primitive
from functx.core.program import Program
from functx.core.rewriting import cached_rewrite
from functx.core.samples import f32, sample
from functx.core.tracing import current_builder, trace_closed
from functx.custom.checkpoint_policies import everything_saveable
from functx.custom.function import has_jax_tracers
from functx.custom.recomputation import RematPartialEval, RematSplit
from functx.ops.arithmetic import mul
from functx.ops.operands import batch_size
from functx.ops.trigonometric import sin
from functx.transforms.batching import BatchWithInferredOutDims
from functx.transforms.call import TransposeLinearInputs
from functx.transforms.calls import (
    as_decorator,
    avals_of,
    call_outside_trace,
    check_callable,
    function_name,
    trace_function,
    wrap_transform,
)
from functx.transforms.control.tracing import is_linearizing
from functx.transforms.expand import decompose_missing_rules
from functx.transforms.forward_mode import JVPRewrite, Linearize
from functx.transforms.marks import (
    inexact_cotangents,
    inexact_mask,
    linear_mask,
    scatter_where,
    select_where,
    select_where_not,
)
from functx.transforms.masked_split import (
    SelectMaskedVJP,
    broadcast_masks,
    unpack_masked_cotangents,
)
from functx.transforms.parts import active_outputs
from functx.transforms.zeros import DropZeroInputs, nonzero_output_mask, programs_run, with_programs


def checkpoint(
    fun: Callable[..., Any] | None = None,
    *,
    prevent_cse: Any = True,
    policy: Callable[..., bool] | None = None,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    concrete: bool = False,
) -> Any:
    """`fun`, of which a derivative keeps the arguments alone and computes the rest again.

    It costs one more evaluation in the backward sweep and spares the memory of what is
    between the arguments and the result. A `policy` says what is kept besides the arguments:
    one of `functx.checkpoint_policies`, or a function
    `policy(primitive, *avals, **params) -> bool`. What has effects is never done again: its
    results are kept. With `prevent_cse`, the compiler is kept from merging the two
    evaluations; where it is a tree prefix of the arguments, it is as soon as one is marked, for
    what depends on the others is computed together with the rest. Arguments at `static_argnums`, or of the names in `static_argnames`, may be
    of any type.

    Raises ArgumentError for a policy that is no function or returns something else than a
    bool, and for `concrete`, which has no meaning here.

    >>> import functx
    >>> block = functx.checkpoint(lambda x: functx.numpy.sin(functx.numpy.sin(x)))
    >>> float(functx.grad(block)(0.0))
    1.0
    """
    if policy is not None and not callable(policy):
        raise ArgumentError(
            f"checkpoint: policy must be a function or None; got {type_name(policy)}",
            fix="Use one of functx.checkpoint_policies.",
        )
    if concrete:
        raise ArgumentError(
            "checkpoint: concrete must be False; got True",
            fix="Make what Python decides on static: static_argnums.",
        )
    if fun is None:
        return as_decorator(checkpoint, locals())
    check_callable(fun, "checkpoint")
    numbers = (static_argnums,) if isinstance(static_argnums, int) else tuple(static_argnums)
    names = (static_argnames,) if isinstance(static_argnames, str) else tuple(static_argnames)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if current_builder.get() is None and not has_jax_tracers((args, kwargs)):
            return call_outside_trace(fun, *args, **kwargs)
        if any(not -len(args) <= n < len(args) for n in numbers):
            raise ArgnumsError(
                f"checkpoint({function_name(fun)}): static_argnums must name positional arguments; "
                f"got {numbers} for {len(args)} of them"
            )
        fixed = {n % len(args): args[n % len(args)] for n in numbers}
        fixed_by_name = {name: kwargs.pop(name) for name in names if name in kwargs}
        count = len(args)

        def of_dynamic(*dynamic: Any, **keywords: Any) -> Any:
            rest = iter(dynamic)
            given = [fixed[i] if i in fixed else next(rest) for i in range(count)]
            return fun(*given, **keywords, **fixed_by_name)

        of_dynamic.__name__ = function_name(fun)
        dynamic = tuple([x for i, x in enumerate(args) if i not in fixed])
        plain = of_dynamic if fixed or fixed_by_name else fun
        leaves, in_tree = tree.flatten_with_key_data((dynamic, kwargs))
        avals = avals_of(leaves, "checkpoint", plain, in_tree)
        apart = prevent_cse
        if not isinstance(prevent_cse, bool):
            what = f"checkpoint({function_name(fun)}): prevent_cse"
            marks = tree.broadcast_prefix(prevent_cse, tree.structure(args), what)
            if bad := [mark for mark in marks if not isinstance(mark, bool)]:
                raise ArgumentError(f"{what} must be made of True and False; got {bad[0]!r}")
            apart = any(marks)
        traced = trace_function(plain, in_tree, avals, "checkpoint", values=leaves)
        operands = [*leaves, *traced.captured]
        outs = Checkpoint(traced.program, apart, False, policy)(*operands)
        return tree.unflatten(
            traced.out_tree, traced.finish_call(operands, outs, of_transform=False)
        )

    made = wrap_transform(wrapper, fun, "checkpoint")
    made.__name__ = function_name(fun)
    return made


remat = checkpoint


def _example() -> Program:
    def body(x: Any, y: Any) -> list[Any]:
        return [sin(mul(sin(x), y))]

    return trace_closed(body, [f32[3], f32[3]], name="example")


class Checkpoint(Primitive):
    """The outputs of `program`, of which its derivatives keep the operands alone.

    They keep what `policy` says, too. `again` marks a computation that repeats an earlier one,
    which `apart` keeps from being merged with that.
    """

    program: Program
    prevent_cse: bool = True
    differentiated: bool = False
    policy: Any = None
    multiple_results = True
    no_cse = True
    samples = (
        sample(f32[3], f32[3], dtypes=("f32",), program=_example()),
        sample(f32[3], f32[3], dtypes=("f32",), program=_example(), differentiated=True),
        sample(f32[3], f32[3], dtypes=("f32",), program=_example(), policy=everything_saveable),
    )

    def abstract_eval(self, *avals):
        return self.program.out_avals

    def with_program(self, program: Program, differentiated: bool = False) -> Checkpoint:
        """A checkpoint of another program, computed `again` or with this one."""
        return Checkpoint(
            program, self.prevent_cse, self.differentiated or differentiated, self.policy
        )

    def varying_outputs(self, avals, active):
        return active_outputs(self.program, active)

    def hoist_constants(self, programs, extras, operands):
        return self.with_program(programs[0]), [*extras[0], *operands]

    def partial_eval(self, split: Any) -> RematSplit:
        """The two halves of a derivative, of which the second computes again."""
        return cached_rewrite(RematPartialEval(split, self.policy), self.program)  # type: ignore[no-any-return]

    def jvp(self, primals, tangents):
        varying = tuple([t is not None for t in tangents])
        given = [t for t in tangents if t is not None]
        count = len(self.program.outputs)
        if is_linearizing():
            halves = self.partial_eval(Linearize(varying))
            outs = self.with_program(halves.known)(*primals)
            found = self.with_program(halves.unknown, differentiated=True)(
                *given, *outs[count:], *primals
            )
        else:
            outs = self.with_program(cached_rewrite(JVPRewrite(varying), self.program))(
                *primals, *given
            )
            found = outs[count:]
        outs = outs[:count]
        return outs, scatter_where(found, inexact_mask(outs))

    def forward(self, args, active):
        halves = self.partial_eval(SelectMaskedVJP(tuple(active), False))
        outs = self.with_program(halves.known)(*args)
        count = len(self.program.outputs)
        return outs[:count], outs[count:]

    def vjp(self, cts, saved, args, active):
        return self.vjp_masked(cts, [None] * len(cts), saved, args, active)[0]

    def vjp_masked(self, cts, lives, saved, args, active):
        masked = any([live is not None for live in lives])
        rest = self.partial_eval(SelectMaskedVJP(tuple(active), masked)).unknown
        if masked:
            given = inexact_cotangents(cts, self.program.out_avals)
            lives = select_where(lives, inexact_mask(self.program.out_avals))
            given = [*given, *broadcast_masks(lives, given)]
        else:
            given = select_where(cts, inexact_mask(self.program.out_avals))
            marks = tuple([ct is not None for ct in given])
            rest, given = cached_rewrite(DropZeroInputs(marks), rest), select_where(given, marks)
        outs = self.with_program(rest, differentiated=True)(*given, *saved, *args)
        nonzero = nonzero_output_mask(rest)
        found = [x if on else None for x, on in zip(outs, nonzero, strict=True)]
        return unpack_masked_cotangents(active, rest, found)

    def transpose(self, cts, *args):
        linear = linear_mask(args)
        program = cached_rewrite(
            TransposeLinearInputs(linear), decompose_missing_rules(self.program, "transpose")
        )
        given = inexact_cotangents(cts, self.program.out_avals)
        return scatter_where(
            self.with_program(program, differentiated=True)(
                *given, *select_where_not(args, linear)
            ),
            linear,
        )

    def batch(self, args, dims):
        size = batch_size(args, dims)
        program, out_dims = cached_rewrite(
            BatchWithInferredOutDims(size, tuple(dims)), self.program
        )
        return self.with_program(program)(*args), out_dims

    def lower(self, ctx, *values):
        if self.differentiated and self.prevent_cse and values:
            values = (*stablehlo.OptimizationBarrierOp(list(values)).results,)
        return ctx.call(self.program, list(values))


@programs_run.register
def _program_of_checkpoint(primitive: Checkpoint) -> Sequence[Program]:
    return (primitive.program,)


@with_programs.register
def _checkpoint_of_program(primitive: Checkpoint, programs: Sequence[Program]) -> Checkpoint:
    return primitive.with_program(programs[0])
