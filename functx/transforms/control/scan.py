"""`scan` and `map`: loops of a known number of steps over the leading axis of arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import index
from typing import Any

import numpy as np

from functx import ops
from functx.core import tree
from functx.core.errors import ArgumentError, AxisSizeError, ValueRangeError, short_repr, type_name
from functx.core.primitive import Primitive
from functx.core.program import Program
from functx.core.program_editing import apply_program
from functx.core.records import Uncompared
from functx.core.rewriting import cached_rewrite
from functx.core.samples import f64, i32, sample
from functx.core.tracebacks import api_boundary
from functx.core.tracing import aval_of, current_builder, trace_closed
from functx.core.types import is_inexact
from functx.ops.operands import batch_size
from functx.ops.views import Copy
from functx.transforms.argument_names import copy_function_metadata, key_path_strings
from functx.transforms.call_primitive import TransposeLinearInputs
from functx.transforms.control.backward_scan import BuildBackwardScan
from functx.transforms.control.body_tracing import (
    WithProgress,
    body_name,
    carry_dependence,
    cast_outputs,
    cast_to,
    check_callables,
    check_operands,
    check_progress,
    is_linearizing,
    show_completion,
    trace_until_carry_types_settle,
    with_captures_first,
    write_back_captures,
)
from functx.transforms.control.scan_partial_eval import (
    DCEScanBody,
    JVPScanBody,
    KnownScanBody,
    LinearizedScanBody,
    PartialEvalScan,
    ScanSplit,
)
from functx.transforms.dce import RemoveEffects, active_outputs, with_io
from functx.transforms.decompose import decompose_missing_rules
from functx.transforms.forward_mode import Linearize
from functx.transforms.operand_masks import (
    inexact_mask,
    instantiate_zeros,
    linear_mask,
    scatter_where,
    select_where,
)
from functx.transforms.partial_evaluation_policy import policy
from functx.transforms.reverse_mode import SplitVJP
from functx.transforms.tracing_api import TracedFunction, avals_of, trace_function
from functx.transforms.vmap import Batch, BatchWithInferredOutDims, vmap


def _sample_step() -> Program:
    def step(w: Any, n: Any, c: Any, x: Any) -> list[Any]:
        h = ops.sin(ops.add(ops.mul(c, w), x))
        return [ops.add(n, 1), h, ops.mul(h, c)]

    return trace_closed(step, [f64[2], i32[()], f64[2], f64[2]], name="step")


def _linear_sample_step() -> Program:
    def step(n: Any, c: Any, x: Any) -> list[Any]:
        return [ops.add(n, 1.0), ops.add(ops.mul(c, n), x), c]

    return trace_closed(step, [f64[()], f64[2], f64[2]], name="step")


class Scan(Primitive):
    """A loop of `length` steps, each of which runs `program` on the carry of the step before.

    Operands, in the order in which `program` takes them: `consts` loop-invariant values,
    `carries` initial carries, and the arrays `xs`, of which a step gets one row. With `reverse`
    the loop begins at the last row. `program` returns the next carry, then the rows of `ys`.
    The results are the final carry and the stacked `ys`.
    """

    program: Program
    consts: int
    carries: int
    length: int
    reverse: bool = False
    unroll: int = 1
    multiple_results = True
    samples = (
        sample(
            f64[2], i32[()], f64[2], f64[3, 2],
            program=_sample_step(), consts=1, carries=2, length=3, dtypes=("f64",),
        ),
        sample(
            f64[()], f64[2], f64[5, 2],
            program=_linear_sample_step(), consts=0, carries=2, length=5, reverse=True, unroll=2,
            dtypes=("f64",),
        ),
        sample(
            f64[2], i32[()], f64[2], f64[0, 2],
            program=_sample_step(), consts=1, carries=2, length=0, dtypes=("f64",),
        ),
    )  # fmt: skip

    def abstract_eval(self, *avals):
        n, length = self.consts + self.carries, self.length
        in_avals, outs = self.program.in_avals, self.program.out_avals
        stacked = [a.update(shape=(length, *a.shape)) for a in in_avals[n:]]
        check_operands(self, avals, [*in_avals[:n], *stacked])
        check_operands(self, outs[: self.carries], in_avals[self.consts : n])
        rows = outs[self.carries :]
        return [
            *in_avals[self.consts : n],
            *[a.update(shape=(length, *a.shape)) for a in rows],
        ]

    def split_operands(self, items: Sequence[Any]) -> tuple[Any, Any, Any]:
        """Split `items`, one for each operand, into those of the consts, the carry and `xs`."""
        n = self.consts + self.carries
        return items[: self.consts], items[self.consts : n], items[n:]

    def varying(self, flags: Sequence[bool]) -> tuple[tuple[bool, ...], list[bool]]:
        """The operands that vary in the loop if those of `mask` do before it; the outputs."""
        return carry_dependence(self.program, self.consts, self.carries, flags)

    def varying_outputs(self, avals, active):
        return self.varying(active)[1]

    def with_program(
        self, program: Program, consts: int, carries: int, flipped: bool = False
    ) -> Scan:
        """A scan of the same length with another body; `flipped` reverses its direction."""
        return Scan(program, consts, carries, self.length, self.reverse ^ flipped, self.unroll)

    def hoist_constants(self, programs, extras, operands):
        again = self.with_program(programs[0], self.consts + len(extras[0]), self.carries)
        return again, [*extras[0], *operands]

    def dce(self, used):
        found = cached_rewrite(DCEScanBody(self.consts, self.carries, tuple(used)), self.program)
        if found is None:
            return None
        program, inputs, outputs = found
        consts = sum([i < self.consts for i in inputs])
        carries = sum([i < self.carries for i in outputs])
        return self.with_program(program, consts, carries), inputs, outputs

    def jvp(self, primals, tangents):
        flags, out_flags = self.varying([t is not None for t in tangents])
        given = instantiate_zeros(select_where(tangents, flags), select_where(primals, flags))
        dconsts, dcarries, dxs = self.split_operands(scatter_where(given, flags))
        moving = [[t for t in group if t is not None] for group in (dconsts, dcarries, dxs)]
        if is_linearizing():
            split = self.partial_eval(Linearize(flags))
            outs, (invariant, rows) = self.run_known(split, primals)
            kept = tuple(select_where(out_flags, inexact_mask(self.program.out_avals)))
            step = cached_rewrite(
                LinearizedScanBody(sum(flags), len(moving[0]), split.residual_kinds, kept),
                split.unknown,
            )
            found = self.with_program(step, len(moving[0]) + len(invariant), len(moving[1]))(
                *moving[0], *invariant, *moving[1], *moving[2], *rows
            )
            return outs, scatter_where(found, out_flags)
        pushed = cached_rewrite(
            JVPScanBody(self.consts, self.carries, flags, tuple(out_flags)), self.program
        )
        consts, carries, xs = self.split_operands(primals)
        both = self.with_program(
            pushed, len(consts) + len(moving[0]), len(carries) + len(moving[1])
        )
        found = both(*consts, *moving[0], *carries, *moving[1], *xs, *moving[2])
        outs = [*found[: len(carries)], *found[both.carries :][: len(out_flags) - len(carries)]]
        moved = [*found[len(carries) : both.carries], *found[len(outs) + len(moving[1]) :]]
        return outs, scatter_where(moved, out_flags)

    def partial_eval(self, rewrite: Any) -> ScanSplit:
        """The body split in two by `rewrite`, what the second half needs sorted by its kind."""
        split: ScanSplit = cached_rewrite(
            PartialEvalScan(rewrite, self.consts, self.carries), self.program
        )
        return split

    def run_known(self, split: ScanSplit, args: Sequence[Any]) -> tuple[list[Any], tuple[Any, Any]]:
        """The outputs, and what the second half of the split needs: consts, and rows."""
        _, carries, xs = self.split_operands(args)
        found = self.with_program(split.known, self.consts, self.carries)(*args)
        invariant = apply_program(split.invariant, args[: self.consts + self.carries])
        rows = split.stacked_residuals(carries, xs, found[self.carries :], self.reverse)
        return found[: len(self.program.outputs)], (invariant, rows)

    def vjp_partial_eval(self, active: Sequence[bool]) -> tuple[ScanSplit, tuple[bool, ...]]:
        """The split for the derivative, and which operands vary; consts and rows are kept anyway."""
        flags, _ = self.varying(active)
        first, end = self.consts, self.consts + self.carries
        free = (*range(first), *range(end, len(flags)))
        return self.partial_eval(policy.limit_residuals(SplitVJP(flags), free, self.consts)), flags

    def forward(self, args, active):
        split, _ = self.vjp_partial_eval(active)
        return self.run_known(split, args)

    def vjp(self, cts, known, args, active):
        split, flags = self.vjp_partial_eval(active)
        invariant, rows = known
        return self.run_backward(
            split.unknown, split.residual_kinds, flags, cts, invariant, rows, split.names
        )

    def transpose(self, cts, *args):
        linear = linear_mask(args)
        flags, _ = self.varying(linear)
        fixed = [not on for on in flags]
        consts, carries, xs = self.split_operands(
            [x if on else None for x, on in zip(args, fixed, strict=True)]
        )
        consts, carries, xs = (
            [x for x in group if x is not None] for group in (consts, carries, xs)
        )
        known = cached_rewrite(KnownScanBody(self.consts, self.carries, flags), self.program)
        found = []
        if carries or known.effects:
            found = self.with_program(known, len(consts), len(carries))(*consts, *carries, *xs)
        groups = zip("cxx", self.split_operands(fixed), strict=True)
        kinds = "".join([kind * sum(group) for kind, group in groups])
        program = decompose_missing_rules(
            cached_rewrite(RemoveEffects(), self.program), "transpose"
        )
        pull = cached_rewrite(TransposeLinearInputs(flags), program)
        rows = [*found[len(carries) :], *xs]
        pulled = self.run_backward(pull, kinds, flags, cts, consts, rows)
        return [ct if on else None for ct, on in zip(pulled, linear, strict=True)]

    def run_backward(
        self,
        pull: Program,
        kinds: str,
        flags: Sequence[bool],
        cts: Sequence[Any],
        invariant: Sequence[Any],
        rows: Sequence[Any],
        names: Any = None,
    ) -> list[Any]:
        """The cotangents of the operands marked in `flags`, by a loop over `pull` backwards.

        `pull` takes the cotangents of the inexact outputs of the body, then what it needs:
        by `kinds`, `c` for one of `invariant`, `x` for a row of one of `rows`.
        """
        avals = self.program.out_avals
        consts_on, carries_on, _ = self.split_operands(flags)
        inexact = [i for i, aval in enumerate(avals) if is_inexact(aval.dtype)]
        carried, reached = self.cotangent_carries(pull, flags, [ct is not None for ct in cts])
        sources = "".join(
            ("c" if carried[i] else "0") if i < self.carries else ("0" if cts[i] is None else "x")
            for i in inexact
        )
        loop = cached_rewrite(
            BuildBackwardScan(sources, kinds, sum(consts_on), reached, Uncompared(names)), pull
        )
        start = [
            ops.zeros_like(avals[i]) if cts[i] is None else cts[i]
            for i in range(self.carries)
            if carried[i]
        ]
        given = [cts[i] for i in inexact if i >= self.carries and cts[i] is not None]
        sums = [ops.zeros_like(aval) for aval in loop.sums]
        backwards = self.with_program(
            loop.body, len(invariant), len(sums) + len(start), flipped=True
        )
        found = run_scan(backwards, [*invariant, *sums, *start, *given, *rows])
        others = sum(reached) - sum(reached[: sum(consts_on)])
        passed = [[*given, *rows][i] for i in loop.stacked_inputs]
        totals = loop.finish(*invariant, *found[: len(sums)], *found[len(sums) + others :], *passed)
        return scatter_where(
            scatter_where([*totals, *found[len(sums) : len(sums) + others]], reached), flags
        )

    def cotangent_carries(
        self, pull: Program, flags: Sequence[bool], given: Sequence[bool]
    ) -> tuple[list[bool], tuple[bool, ...]]:
        """The carries with a cotangent in the backward loop, and the nonzero results."""
        consts_on, carries_on, _ = self.split_operands(flags)
        inexact = inexact_mask(self.program.out_avals)
        carried = [on and ct for on, ct in zip(carries_on, given, strict=False)]
        n = sum(consts_on)
        while True:
            live = select_where([*carried, *given[self.carries :]], inexact)
            needed = [False] * (len(pull.inputs) - len(live))
            reached = active_outputs(pull, [*live, *needed])
            found = scatter_where(reached[n : n + sum(carries_on)], carries_on)
            grown = [on or bool(ct) for on, ct in zip(carried, found, strict=True)]
            if grown == carried:
                reached[n : n + sum(carries_on)] = select_where(carried, carries_on)
                return carried, tuple(reached)
            carried = grown

    def batch(self, args, dims):
        size = batch_size(args, dims)
        flags = [d is not None for d in dims]
        n = self.consts + self.carries
        while True:
            in_dims = tuple([0 if on else None for on in flags])
            _, natural = cached_rewrite(BatchWithInferredOutDims(size, in_dims), self.program)
            grown = [
                on or d is not None for on, d in zip(flags[self.consts : n], natural, strict=False)
            ]
            if grown == flags[self.consts : n]:
                break
            flags[self.consts : n] = grown
        out_dims = tuple(
            [
                0 if (grown[i] if i < self.carries else d is not None) else None
                for i, d in enumerate(natural)
            ]
        )
        body = cached_rewrite(Batch(size, in_dims, out_dims), self.program)
        # The batch lies first in what a step is given, so behind the rows in whole arrays.
        operands = [
            x if not on else ops.batch_dim_at(x, d, 1 if i >= n else 0, size)
            for i, (x, d, on) in enumerate(zip(args, dims, flags, strict=True))
        ]
        outs = self.with_program(body, self.consts, self.carries)(*operands)
        return outs, [None if d is None else int(i >= self.carries) for i, d in enumerate(out_dims)]

    def lower(self, ctx, *values):
        return ctx.scan(self, values)


@api_boundary
def scan(
    f: Callable[[Any, Any], Any],
    init: Any,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    *,
    progress: str | None = None,
) -> tuple[Any, Any]:
    """Loop over the rows of `xs`; return `(carry, ys)`, the final carry and stacked outputs.

    `f(carry, x)` returns `(carry, y)`. It is traced once, may close over values, and must
    return a carry of the structure, shapes and dtypes that it takes; weak types are promoted.
    `xs` is a pytree of arrays with a common leading axis, or None if `length` is given. With
    `reverse` the loop begins at the last row. `unroll` is the number of steps per iteration of
    the compiled loop, or True to unroll it completely. `progress` names a progress line on
    standard error.

    Raises CarryTypeError for a carry that changes its type, AxisSizeError if the lengths of the
    leading axes differ.

    >>> import functx, numpy
    >>> total, sums = functx.lax.scan(lambda c, x: (c + x, c + x), 0.0, numpy.arange(1.0, 4.0))
    >>> float(total), sums.tolist()
    (6.0, [1.0, 3.0, 6.0])
    """
    check_callables("scan", f=f)
    what = body_name("scan", f)
    check_progress(what, progress)
    carry_leaves, carry_tree = tree.flatten_with_key_data(init)
    x_leaves, x_tree = tree.flatten_with_key_data(xs)
    in_tree = tree.call_treedef(carry_tree, x_tree)
    leaves, count = [*carry_leaves, *x_leaves], len(carry_leaves)
    avals = avals_of(leaves, "scan", f, in_tree)
    carry_leaves, x_leaves = leaves[:count], leaves[count:]
    length = _scan_length(what, avals[count:], x_tree, length)
    rows = [a.update(shape=a.shape[1:]) for a in avals[count:]]

    def step(carry: Any, x: Any) -> Any:
        out = f(carry, x)
        if not isinstance(out, (tuple, list)) or len(out) != 2:
            raise ArgumentError(
                f"{what}: the body must return a pair (carry, y); got {type_name(out)}",
                fix="Return (carry, None) where each step has no output.",
            )
        return tuple(out)

    copy_function_metadata(step, f, "scan").__name__ = getattr(f, "__name__", "body")

    def trace_with(carry: Any) -> TracedFunction:
        return trace_function(step, in_tree, [*carry, *rows], "scan")

    traced, carry = trace_until_carry_types_settle(
        trace_with, avals[:count], carry_tree, lambda t: t.children()[0], what, f
    )
    traced, around = traced.with_writes_as_carries()
    moved = len(around)
    body = cast_outputs(with_captures_first(traced, f), [*[aval_of(x) for x in around], *carry])
    start = [cast_to(x, a) for x, a in zip(carry_leaves, carry, strict=True)]
    rounds = unroll_factor(what, unroll, length)
    consts = len(traced.captured) - moved
    loop = Scan(body, consts, moved + count, length, bool(reverse), rounds)
    outs = run_scan(loop, [*traced.captured, *start, *x_leaves], progress)
    outs = write_back_captures(around, outs)
    y_tree = traced.out_tree.children()[1]
    return tree.unflatten(carry_tree, outs[:count]), tree.unflatten(y_tree, outs[count:])


def run_scan(loop: Scan, args: Sequence[Any], progress: str | None = None) -> list[Any]:
    """The outputs of `loop`; while tracing, carries that no step changes become consts.

    `progress` names the progress line, if one is shown.
    """
    if progress is not None:
        n, carries = loop.consts + loop.carries, loop.carries
        shown = cached_rewrite(
            WithProgress(progress, loop.length, loop.consts, carries), loop.program
        )
        counted = loop.with_program(shown, loop.consts, carries + 1)
        found = run_scan(counted, [*args[:n], np.int32(0), *args[n:]])
        rest = found[carries + 1 :]
        show_completion(progress, loop.length, found[carries], found[:carries] or rest)
        return [*found[:carries], *rest]
    builder = current_builder.get()
    program, first = loop.program, loop.consts
    start, out = program.inputs[first : first + loop.carries], program.outputs
    fixed = [v is atom for v, atom in zip(start, out, strict=False)]
    if builder is None or not any(fixed):
        outs: list[Any] = loop(*args)
        return outs
    consts, carries, xs = loop.split_operands(program.inputs)
    moving = [not on for on in fixed]
    inputs = [*consts, *select_where(carries, fixed), *select_where(carries, moving), *xs]
    body = with_io(
        program, inputs, [*select_where(out[: loop.carries], moving), *out[loop.carries :]]
    )
    given = dict(zip(program.inputs, args, strict=True))
    count = sum(moving)
    found = loop.with_program(body, first + sum(fixed), count)(*[given[v] for v in inputs])
    kept = scatter_where(found[:count], moving)
    return [
        *[Copy()(given[v]) if y is None else y for v, y in zip(start, kept, strict=True)],
        *found[count:],
    ]


def _scan_length(what: str, avals: Sequence[Any], x_tree: Any, length: Any) -> int:
    """The common length of the leading axes of `xs`, which must equal `length` if that is given."""
    for i, aval in enumerate(avals):
        if not aval.ndim:
            path = key_path_strings(x_tree, avals)[i]
            raise AxisSizeError(f"{what}: xs must have rows; got the scalar xs{path}: {aval!r}")
    sizes = {aval.shape[0] for aval in avals}
    if length is not None:
        try:
            sizes.add(index(length))
        except TypeError:
            raise ArgumentError(
                f"{what}: the length must be an integer known while tracing; got {short_repr(length)}",
                fix="Use while_loop for a number of steps that is not known.",
            ) from None
    if not sizes:
        raise AxisSizeError(
            f"{what}: there must be xs or a length; got neither", fix="Pass length=n."
        )
    if len(sizes) > 1:
        paths = key_path_strings(x_tree, avals)
        rows = [f"xs{path}: {aval!r}" for path, aval in zip(paths, avals, strict=True)]
        raise AxisSizeError(
            f"{what}: xs and length must agree on the number of steps; "
            f"got {' and '.join([str(n) for n in sorted(sizes)])}",
            *rows,
            *([] if length is None else [f"length={length}"]),
            fix="Let all arrays of xs have one length, and close over what every step shares.",
        )
    size: int = sizes.pop()
    if size < 0:
        raise AxisSizeError(f"{what}: the length must not be negative; got {size}")
    return size


def unroll_factor(what: str, unroll: Any, length: int) -> int:
    """The number of the `length` steps that one iteration of the compiled loop runs."""
    if isinstance(unroll, bool):
        return max(length, 1) if unroll else 1
    return max(_non_negative_integer(what, "unroll", unroll), 1)


def _non_negative_integer(what: str, name: str, given: Any) -> int:
    """The argument `name` as an integer; raises if it is negative or no integer."""
    try:
        count = index(given)
    except TypeError:
        raise ArgumentError(f"{what}: {name} must be an integer; got {short_repr(given)}") from None
    if count < 0:
        raise ValueRangeError(f"{what}: {name} must not be negative; got {count}")
    return count


@api_boundary
def map(f: Callable[[Any], Any], xs: Any, *, batch_size: int | None = None) -> Any:
    """Apply `f` to each row of `xs`, one after the other, and stack the results.

    Like `vmap`, but holds the intermediate values of one call at a time, or of `batch_size`
    calls; with `batch_size=0`, of all calls. `xs` is a pytree of arrays with a common leading
    axis, which the results have too.

    Raises AxisSizeError if the lengths of the leading axes differ.

    >>> import functx, numpy
    >>> functx.lax.map(lambda x: x * x, numpy.arange(4.0)).tolist()
    [0.0, 1.0, 4.0, 9.0]
    """
    check_callables("map", f=f)
    if batch_size is None:
        return scan(copy_function_metadata(lambda _, x: ((), f(x)), f, "map"), (), xs)[1]
    leaves, x_tree = tree.flatten_with_key_data(xs)
    what = body_name("map", f)
    length = _scan_length(what, [aval_of(x) for x in leaves], x_tree, None)
    batch_size = _non_negative_integer(what, "batch_size", batch_size)
    # With no row at a time there is only the rest.
    if not batch_size:
        return vmap(f)(xs)
    whole = length - length % batch_size
    parts = []
    if whole or not length:
        batches = [
            ops.reshape(
                ops.slice_in_dim(x, 0, whole),
                (whole // batch_size, batch_size, *aval_of(x).shape[1:]),
            )
            for x in leaves
        ]
        stacked = map(vmap(f), tree.unflatten(x_tree, batches))
        parts.append(
            _map_key_words(lambda y: ops.reshape(y, (whole, *aval_of(y).shape[2:])), stacked)
        )
    if whole < length:
        rest = [ops.slice_in_dim(x, whole, length) for x in leaves]
        parts.append(vmap(f)(tree.unflatten(x_tree, rest)))
    return (
        parts[0] if len(parts) == 1 else _map_key_words(lambda *ys: ops.concatenate(ys, 0), *parts)
    )


def _map_key_words(f: Callable[..., Any], *trees: Any) -> Any:
    """Apply `f` to the leaves of pytrees of one structure; to the words of typed keys."""
    (_, structure), *_ = flat = [tree.flatten_with_key_data(x) for x in trees]
    return tree.unflatten(structure, [f(*xs) for xs in zip(*[xs for xs, _ in flat], strict=True)])
