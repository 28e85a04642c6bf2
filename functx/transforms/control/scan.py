"""`scan` and `map`: a program run a known number of times, over the rows of arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any, NamedTuple

from functx.core import tree
from functx.core.dtypes import is_inexact
from functx.core.errors import ArgumentError, AxisSizeError, ValueRangeError, type_name
from functx.core.primitive import LinearInput, Primitive
from functx.core.program import Atom, Literal, Program
from functx.core.samples import f64, i32, sample
from functx.core.tracing import apply, aval_of, rewritten, trace
from functx.ops.arithmetic import add, mul
from functx.ops.shaping import batch_at, concatenate, reshape, zeros_like
from functx.ops.slicing import slice_in_dim
from functx.ops.trigonometric import sin
from functx.transforms.batching import Batch, NaturalBatch
from functx.transforms.call import TransposeIn
from functx.transforms.calls import TracedCall, avals_of, named_after, trace_call
from functx.transforms.control.tracing import (
    as_type,
    body_name,
    captures_first,
    carried_dependence,
    check_functions,
    check_operands,
    chosen,
    leaf_paths,
    linearizing,
    rewired,
    settle,
    spread,
    with_output_types,
)
from functx.transforms.expand import expand
from functx.transforms.forward_mode import Linearize, PushForward
from functx.transforms.reverse_mode import SplitVJP
from functx.transforms.vmap import vmap


def _example() -> Program:
    def step(w: Any, n: Any, c: Any, x: Any) -> list[Any]:
        h = sin(add(mul(c, w), x))
        return [add(n, 1), h, mul(h, c)]

    return trace(step, [f64[2], i32[()], f64[2], f64[2]], name="step")[0]


def _linear_example() -> Program:
    def step(n: Any, c: Any, x: Any) -> list[Any]:
        return [add(n, 1.0), add(mul(c, n), x), c]

    return trace(step, [f64[()], f64[2], f64[2]], name="step")[0]


class Scan(Primitive):
    """`program` run `length` times: each time on the carries that it returned the time before.

    Operands, of the program too: `consts` that stay, `carries`, then arrays of which each
    step gets a row, from the last on if `reverse`. The program returns the next carries,
    then rows, which are stacked at the places of the rows that the step was given.
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
            program=_example(), consts=1, carries=2, length=3, dtypes=("f64",),
        ),
        sample(
            f64[()], f64[2], f64[5, 2],
            program=_linear_example(), consts=0, carries=2, length=5, reverse=True, unroll=2,
            dtypes=("f64",),
        ),
        sample(
            f64[2], i32[()], f64[2], f64[0, 2],
            program=_example(), consts=1, carries=2, length=0, dtypes=("f64",),
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

    def groups(self, items: Sequence[Any]) -> tuple[Any, Any, Any]:
        """`items`, one an operand, for the consts, the carries and the rows."""
        n = self.consts + self.carries
        return items[: self.consts], items[self.consts : n], items[n:]

    def varying(self, flags: Sequence[bool]) -> tuple[tuple[bool, ...], list[bool]]:
        """The operands that vary in the loop when those of `flags` do at first; the outputs."""
        return carried_dependence(self.program, self.consts, self.carries, flags)

    def again(self, program: Program, consts: int, carries: int, flipped: bool = False) -> Scan:
        """A scan of as many steps with another body."""
        return Scan(program, consts, carries, self.length, self.reverse ^ flipped, self.unroll)

    def jvp(self, primals, tangents):
        flags, out_flags = self.varying([t is not None for t in tangents])
        given = [
            zeros_like(x) if t is None else t
            for x, t, on in zip(primals, tangents, flags, strict=True)
            if on
        ]
        dconsts, dcarries, dxs = self.groups(spread(given, flags))
        moving = [[t for t in group if t is not None] for group in (dconsts, dcarries, dxs)]
        if linearizing():
            split = self.split(Linearize(flags))
            outs, (invariant, rows) = self.run_values(split, primals)
            inexact = [is_inexact(a.dtype) for a in self.program.out_avals]
            kept = tuple(chosen(out_flags, inexact))
            step = rewritten(
                LinearStep(sum(flags), len(moving[0]), len(invariant), kept), split.rest
            )
            found = self.again(step, len(moving[0]) + len(invariant), len(moving[1]))(
                *moving[0], *invariant, *moving[1], *moving[2], *rows
            )
            return outs, spread(found, out_flags)
        pushed = rewritten(
            PushedStep(self.consts, self.carries, flags, tuple(out_flags)), self.program
        )
        consts, carries, xs = self.groups(primals)
        both = self.again(pushed, len(consts) + len(moving[0]), len(carries) + len(moving[1]))
        found = both(*consts, *moving[0], *carries, *moving[1], *xs, *moving[2])
        outs = [*found[: len(carries)], *found[both.carries :][: len(out_flags) - len(carries)]]
        moved = [*found[len(carries) : both.carries], *found[len(outs) + len(moving[1]) :]]
        return outs, spread(moved, out_flags)

    def split(self, rewrite: Any) -> LoopSplit:
        """The body split in two by `rewrite`, what the second half needs sorted by its kind."""
        split: LoopSplit = rewritten(SplitLoop(rewrite, self.consts, self.carries), self.program)
        return split

    def run_values(
        self, split: LoopSplit, args: Sequence[Any]
    ) -> tuple[list[Any], tuple[Any, Any]]:
        """The outputs, and what the second half of the split needs: consts, and rows."""
        consts, _, xs = self.groups(args)
        found = self.again(split.values, self.consts, self.carries)(*args)
        count = len(self.program.outputs)
        invariant = apply(None, split.invariant, consts)
        return found[:count], (invariant, [*[xs[i] for i in split.passed], *found[count:]])

    def forward(self, args, active):
        flags, _ = self.varying(active)
        return self.run_values(self.split(SplitVJP(flags)), args)

    def vjp(self, cts, known, args, active):
        flags, _ = self.varying(active)
        split = self.split(SplitVJP(flags))
        invariant, rows = known
        return self.pull_back(split.rest, split.kinds, flags, cts, invariant, rows)

    def transpose(self, cts, *args):
        linear = [type(x) is LinearInput for x in args]
        flags, _ = self.varying(linear)
        fixed = [not on for on in flags]
        consts, carries, xs = self.groups(
            [x if on else None for x, on in zip(args, fixed, strict=True)]
        )
        consts, carries, xs = (
            [x for x in group if x is not None] for group in (consts, carries, xs)
        )
        known = rewritten(KnownCarries(self.consts, self.carries, flags), self.program)
        found = (
            self.again(known, len(consts), len(carries))(*consts, *carries, *xs) if carries else []
        )
        kinds = [
            kind
            for kind, group in zip("cxx", self.groups(fixed), strict=True)
            for on in group
            if on
        ]
        pull = rewritten(TransposeIn(flags), expand(self.program, "transpose"))
        rows = [*found[len(carries) :], *xs]
        pulled = self.pull_back(pull, kinds, flags, cts, consts, rows)
        return [ct if on else None for ct, on in zip(pulled, linear, strict=True)]

    def pull_back(
        self,
        pull: Program,
        kinds: Sequence[str],
        flags: Sequence[bool],
        cts: Sequence[Any],
        invariant: Sequence[Any],
        rows: Sequence[Any],
    ) -> list[Any]:
        """The cotangents of the operands marked in `flags`, by a loop over `pull` backwards.

        `pull` takes the cotangents of the inexact outputs of the body, then what it needs:
        by `kinds`, `c` for one of `invariant`, `x` for a row of one of `rows`.
        """
        avals = self.program.out_avals
        consts_on, carries_on, _ = self.groups(flags)
        sources = "".join(
            ("c" if carries_on[i] else "0") if i < self.carries else ("0" if ct is None else "x")
            for i, (aval, ct) in enumerate(zip(avals, cts, strict=True))
            if is_inexact(aval.dtype)
        )
        step = rewritten(PullStep(sources, "".join(kinds), sum(consts_on)), pull)
        sums = [zeros_like(a) for a in pull.out_avals[: sum(consts_on)]]
        carried = [
            zeros_like(avals[i]) if cts[i] is None else cts[i]
            for i in range(self.carries)
            if carries_on[i]
        ]
        given = [
            ct
            for aval, ct in zip(avals[self.carries :], cts[self.carries :], strict=True)
            if ct is not None and is_inexact(aval.dtype)
        ]
        loop = self.again(step, len(invariant), len(sums) + len(carried), flipped=True)
        return spread(loop(*invariant, *sums, *carried, *given, *rows), flags)

    def batch(self, args, dims):
        size = next(x.shape[d] for x, d in zip(args, dims, strict=True) if d is not None)
        flags = [d is not None for d in dims]
        n = self.consts + self.carries
        while True:
            in_dims = tuple([0 if on else None for on in flags])
            _, natural = rewritten(NaturalBatch(size, in_dims), self.program)
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
        body = rewritten(Batch(size, in_dims, out_dims), self.program)
        # The batch lies first in what a step is given, so behind the rows in whole arrays.
        operands = [
            x if not on else batch_at(x, d, 1 if i >= n else 0, size)
            for i, (x, d, on) in enumerate(zip(args, dims, flags, strict=True))
        ]
        outs = self.again(body, self.consts, self.carries)(*operands)
        return outs, [None if d is None else int(i >= self.carries) for i, d in enumerate(out_dims)]

    def lower(self, ctx, *values):
        return ctx.scan(self, values)


@dataclass(frozen=True)
class PushedStep:
    """The rewrite of a body to one of values and tangents, each tangent behind its group."""

    consts: int
    carries: int
    flags: tuple[bool, ...]
    out_flags: tuple[bool, ...]

    def __call__(self, program: Program) -> Program:
        pushed = rewritten(PushForward(self.flags), program)
        count, n = len(program.inputs), self.consts + self.carries
        values = pushed.inputs[:count]
        tangents = spread(pushed.inputs[count:], self.flags)
        inputs = [
            v
            for start, end in ((0, self.consts), (self.consts, n), (n, count))
            for v in [*values[start:end], *[t for t in tangents[start:end] if t is not None]]
        ]
        outs = pushed.outputs[: len(program.outputs)]
        found = _with_flags(program, pushed.outputs[len(outs) :], self.out_flags)
        k = self.carries
        moved = [[t for t in group if t is not None] for group in (found[:k], found[k:])]
        return rewired(pushed, inputs, [*outs[:k], *moved[0], *outs[k:], *moved[1]])


def _with_flags(program: Program, tangents: Sequence[Atom], flags: Sequence[bool]) -> list[Any]:
    """The tangents of the inexact outputs, None for those whose flag is not set."""
    found = spread(tangents, [is_inexact(a.dtype) for a in program.out_avals])
    return [t if on else None for t, on in zip(found, flags, strict=True)]


class LoopSplit(NamedTuple):
    """A body split in two: its values, and the rest, which needs something of the values.

    `kinds` says of what it needs, in order, whether it is the same in every step (`c`) or
    not (`x`). The former `invariant` computes from the consts. The latter are rows of the
    arrays at the positions `passed`, and what `values` returns behind its outputs.
    """

    values: Program
    rest: Program
    kinds: str
    invariant: Program
    passed: tuple[int, ...]


@dataclass(frozen=True)
class SplitLoop:
    """The rewrite to the halves into which `rewrite` splits a body.

    The second half takes what it needs in the order: consts, passed rows, saved rows.
    """

    rewrite: Any
    consts: int
    carries: int

    def __call__(self, program: Program) -> LoopSplit:
        values, rest = rewritten(self.rewrite, program)
        count = len(program.outputs)
        consts, xs = values.inputs[: self.consts], values.inputs[self.consts + self.carries :]
        same = set(consts)
        for eqn in values.equations:
            if (
                all(type(a) is Literal or a in same for a in eqn.inputs)
                and not eqn.primitive.effects
            ):
                same.update(eqn.outputs)
        saved = values.outputs[count:]
        needs = rest.inputs[len(rest.inputs) - len(saved) :]
        pairs = list(zip(saved, needs, strict=True))
        invariant = [(a, v) for a, v in pairs if a in same]
        passed = [(a, v) for a, v in pairs if a in xs]
        stacked = [(a, v) for a, v in pairs if a not in same and a not in xs]
        lead = rest.inputs[: len(rest.inputs) - len(saved)]
        needs = [v for _, v in [*invariant, *passed, *stacked]]
        return LoopSplit(
            rewired(values, values.inputs, [*values.outputs[:count], *[a for a, _ in stacked]]),
            Program(rest.name, [*lead, *needs], rest.equations, rest.outputs),
            "c" * len(invariant) + "x" * (len(passed) + len(stacked)),
            rewired(values, consts, [a for a, _ in invariant]),
            tuple([xs.index(a) for a, _ in passed]),
        )


@dataclass(frozen=True)
class LinearStep:
    """The rewrite of the tangents of a body, and what they need, to the body of a scan.

    The first `tangents` inputs are tangents, of them `consts` of consts. Of what follows,
    the first `invariant` are consts. `kept` says which outputs stay.
    """

    tangents: int
    consts: int
    invariant: int
    kept: tuple[bool, ...]

    def __call__(self, rest: Program) -> Program:
        tangents, needs = rest.inputs[: self.tangents], rest.inputs[self.tangents :]
        inputs = [
            *tangents[: self.consts],
            *needs[: self.invariant],
            *tangents[self.consts :],
            *needs[self.invariant :],
        ]
        return rewired(rest, inputs, chosen(rest.outputs, self.kept))


@dataclass(frozen=True)
class PullStep:
    """The rewrite of the backward program of a body to the body of a scan backwards.

    `sources` says where each cotangent comes from: `c` the step before, `x` a row, `0` it is
    zero; `kinds` whether each thing needed is a const (`c`) or a row (`x`). The first `sums`
    results are added up over the steps.
    """

    sources: str
    kinds: str
    sums: int

    def __call__(self, pull: Program) -> Program:
        cts, needs = pull.inputs[: len(self.sources)], pull.inputs[len(self.sources) :]
        invariant = [v.aval for v, k in zip(needs, self.kinds, strict=True) if k == "c"]
        sums = [a.update(weak_type=False) for a in pull.out_avals[: self.sums]]
        carried = [v.aval for v, k in zip(cts, self.sources, strict=True) if k == "c"]
        given = [v.aval for v, k in zip(cts, self.sources, strict=True) if k == "x"]
        rows = [v.aval for v, k in zip(needs, self.kinds, strict=True) if k == "x"]

        def body(*args: Any) -> list[Any]:
            rest = iter(args)
            constants, so_far, before, now, saved = (
                iter([next(rest) for _ in group])
                for group in (invariant, sums, carried, given, rows)
            )
            found = apply(
                None,
                pull,
                [
                    zeros_like(v.aval) if k == "0" else next(before if k == "c" else now)
                    for v, k in zip(cts, self.sources, strict=True)
                ]
                + [next(constants if k == "c" else saved) for k in self.kinds],
            )
            added = [add(x, ct) for x, ct in zip(so_far, found, strict=False)]
            return [*added, *found[self.sums :]]

        avals = [*invariant, *sums, *carried, *given, *rows]
        return trace(body, avals, name=pull.name)[0]


@dataclass(frozen=True)
class KnownCarries:
    """The rewrite of a body to that of the carries not marked in `flags`, each also a row."""

    consts: int
    carries: int
    flags: tuple[bool, ...]

    def __call__(self, program: Program) -> Program:
        fixed = [not on for on in self.flags]
        n = self.consts + self.carries
        now = chosen(program.inputs[self.consts : n], fixed[self.consts : n])
        after = chosen(program.outputs[: self.carries], fixed[self.consts : n])
        return rewired(program, chosen(program.inputs, fixed), [*after, *now])


def scan(
    f: Callable[[Any, Any], Any],
    init: Any,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
) -> tuple[Any, Any]:
    """`(carry, ys)`: the last carry of a loop over the rows of `xs`, and its stacked results.

    `f(carry, x)` returns `(carry, y)`. It is traced once, may use values around it, and must
    return a carry of the types it takes, where weak types give way. `xs` is a pytree of
    arrays with one first dimension, or None with a `length`. With `reverse` the loop begins
    at the last row. `unroll` steps make one round of the compiled loop, or all if True.

    Raises CarryTypeError for a carry that changes its type, AxisSizeError for first
    dimensions that differ.

    >>> import functx, numpy
    >>> total, sums = functx.lax.scan(lambda c, x: (c + x, c + x), 0.0, numpy.arange(1.0, 4.0))
    >>> float(total), sums.tolist()
    (6.0, [1.0, 3.0, 6.0])
    """
    check_functions("scan", f=f)
    what = body_name("scan", f)
    carry_leaves, carry_tree = tree.flatten(init)
    x_leaves, x_tree = tree.flatten(xs)
    in_tree = tree.structure(((init, xs), {}))
    avals = avals_of([*carry_leaves, *x_leaves], "scan", f, in_tree)
    count = len(carry_leaves)
    length = _length(what, avals[count:], x_tree, length)
    rows = [a.update(shape=a.shape[1:]) for a in avals[count:]]

    def step(carry: Any, x: Any) -> Any:
        out = f(carry, x)
        if not isinstance(out, (tuple, list)) or len(out) != 2:
            raise ArgumentError(
                f"{what}: the body must return a pair (carry, y); got {type_name(out)}"
            )
        return tuple(out)

    named_after(step, f, "scan").__name__ = getattr(f, "__name__", "body")

    def trace_with(carry: Any) -> TracedCall:
        return trace_call(step, in_tree, [*carry, *rows], "scan")

    traced, carry = settle(trace_with, avals[:count], carry_tree, lambda t: t.children()[0], what)
    body = with_output_types(captures_first(traced), carry)
    start = [as_type(x, a) for x, a in zip(carry_leaves, carry, strict=True)]
    rounds = rounds_of(what, unroll, length)
    loop = Scan(body, len(traced.captured), count, length, bool(reverse), rounds)
    outs = loop(*traced.captured, *start, *x_leaves)
    y_tree = traced.out_tree.children()[1]
    return tree.unflatten(carry_tree, outs[:count]), tree.unflatten(y_tree, outs[count:])


def _length(what: str, avals: Sequence[Any], x_tree: Any, length: Any) -> int:
    """The one first dimension of `xs`, which `length` must be if given."""
    paths = leaf_paths(x_tree)
    for path, aval in zip(paths, avals, strict=True):
        if not aval.ndim:
            raise AxisSizeError(f"{what}: xs must have rows; got the scalar xs{path}: {aval!r}")
    sizes = {aval.shape[0] for aval in avals}
    if length is not None:
        try:
            sizes.add(index(length))
        except TypeError:
            raise ArgumentError(
                f"{what}: the length must be an integer known while tracing; got {length!r}",
                fix="Use while_loop for a number of steps that is not known.",
            ) from None
    if not sizes:
        raise AxisSizeError(
            f"{what}: there must be xs or a length; got neither", fix="Pass length=n."
        )
    if len(sizes) > 1:
        rows = [f"xs{path}: {aval!r}" for path, aval in zip(paths, avals, strict=True)]
        raise AxisSizeError(
            f"{what}: xs and length must agree on the number of steps; "
            f"got {' and '.join([str(n) for n in sorted(sizes)])}",
            *rows,
            *([] if length is None else [f"length={length}"]),
        )
    size: int = sizes.pop()
    if size < 0:
        raise AxisSizeError(f"{what}: the length must not be negative; got {size}")
    return size


def rounds_of(what: str, unroll: Any, length: int) -> int:
    """How many of `length` steps make one round of the loop."""
    if isinstance(unroll, bool):
        return max(length, 1) if unroll else 1
    try:
        steps = index(unroll)
    except TypeError:
        raise ArgumentError(f"{what}: unroll must be an integer; got {unroll!r}") from None
    if steps < 0:
        raise ValueRangeError(f"{what}: unroll must not be negative; got {unroll}")
    return max(steps, 1)


def map(f: Callable[[Any], Any], xs: Any, *, batch_size: int | None = None) -> Any:
    """The stacked results of `f` on each row of `xs`, one after the other.

    As `vmap`, with the memory of one call at a time, or of `batch_size` calls.

    >>> import functx, numpy
    >>> functx.lax.map(lambda x: x * x, numpy.arange(4.0)).tolist()
    [0.0, 1.0, 4.0, 9.0]
    """
    check_functions("map", f=f)
    if batch_size is None:
        return scan(named_after(lambda _, x: ((), f(x)), f, "map"), (), xs)[1]
    leaves, x_tree = tree.flatten(xs)
    length = _length(body_name("map", f), [aval_of(x) for x in leaves], x_tree, None)
    whole = length - length % batch_size if batch_size > 0 else 0
    parts = []
    if whole or not length:
        batches = [
            reshape(
                slice_in_dim(x, 0, whole), (whole // batch_size, batch_size, *aval_of(x).shape[1:])
            )
            for x in leaves
        ]
        stacked = map(vmap(f), tree.unflatten(x_tree, batches))
        parts.append(tree.map(lambda y: reshape(y, (whole, *aval_of(y).shape[2:])), stacked))
    if whole < length:
        rest = [slice_in_dim(x, whole, length) for x in leaves]
        parts.append(vmap(f)(tree.unflatten(x_tree, rest)))
    return parts[0] if len(parts) == 1 else tree.map(lambda *ys: concatenate(ys), *parts)
