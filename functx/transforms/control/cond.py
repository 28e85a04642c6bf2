"""`cond` and `switch`: one of several programs, chosen when the program runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from functx.core import tree
from functx.core.dtypes import is_inexact, is_integer
from functx.core.errors import ArgumentError, BranchTypeError, DTypeError, ShapeError, type_name
from functx.core.primitive import LinearInput, Primitive
from functx.core.program import Literal, Program, Var
from functx.core.samples import f64, i32, sample
from functx.core.tracing import Tracer, apply, aval_of, rewritten, trace
from functx.ops.arithmetic import mul
from functx.ops.comparison import ne
from functx.ops.conversion import convert_element_type
from functx.ops.selection import clamp, select, select_n
from functx.ops.shaping import batch_at, broadcast_in_dim, moveaxis, zeros_like
from functx.ops.trigonometric import sin
from functx.transforms.batching import Batch, NaturalBatch
from functx.transforms.call import TransposeIn
from functx.transforms.calls import TracedCall, avals_of, trace_call
from functx.transforms.control.tracing import (
    body_name,
    check_functions,
    check_operands,
    chosen,
    common_type,
    depends,
    inexact_cotangents,
    leaf_paths,
    linearizing,
    owner_of,
    rewired,
    spread,
    with_output_types,
)
from functx.transforms.expand import expand
from functx.transforms.forward_mode import Linearize, PushForward
from functx.transforms.reverse_mode import SplitVJP


def _examples() -> tuple[Program, ...]:
    def product(x: Any, y: Any, n: Any) -> list[Any]:
        return [sin(mul(x, y)), n]

    def first(x: Any, y: Any, n: Any) -> list[Any]:
        return [mul(x, 2.0), mul(n, 3)]

    avals = [f64[3], f64[3], i32[()]]
    return tuple(trace(f, avals, name=f.__name__)[0] for f in (product, first))


class Cond(Primitive):
    """The outputs of `branches[index]` on the operands that follow the int32 scalar `index`.

    The index must be that of a branch.
    """

    branches: tuple[Program, ...]
    multiple_results = True
    samples = (
        sample(
            i32[()], f64[3], f64[3], i32[()],
            branches=_examples(), values={0: 0}, dtypes=("f64",),
        ),
        sample(
            i32[()], f64[3], f64[3], i32[()],
            branches=_examples()[::-1] * 2, values={0: 3}, dtypes=("f64",),
        ),
    )  # fmt: skip

    def abstract_eval(self, index, *avals):
        if index.shape != () or index.dtype != np.int32:
            raise ShapeError(f"cond: the index must be an int32 scalar; got {index!r}")
        for branch in self.branches:
            check_operands(self, avals, branch.in_avals)
        return [
            outs[0].update(weak_type=all(a.weak_type for a in outs))
            for outs in zip(*[branch.out_avals for branch in self.branches], strict=True)
        ]

    def jvp(self, primals, tangents):
        index, *operands = primals
        varying = tuple([t is not None for t in tangents[1:]])
        given = [t for t in tangents if t is not None]
        avals = self.branches[0].out_avals
        count = len(avals)
        if linearizing():
            split = self.split(Linearize(varying))
            found = Cond(split.values)(index, *operands)
            outs, known = found[:count], split.known(operands, found[count:])
            out_tangents = Cond(split.rest)(index, *given, *known)
        else:
            pushed = tuple([rewritten(PushForward(varying), b) for b in self.branches])
            found = Cond(pushed)(index, *operands, *given)
            outs, out_tangents = found[:count], found[count:]
        reached = zip(*[depends(b, varying) for b in self.branches], strict=True)
        spread_tangents = spread(out_tangents, [is_inexact(a.dtype) for a in avals])
        return outs, [
            t if any(on) else None for t, on in zip(spread_tangents, reached, strict=True)
        ]

    def split(self, rewrite: Any) -> BranchSplit:
        """Each branch split in two by `rewrite`, the halves made to fit each other."""
        split: BranchSplit = rewritten(JoinSplits(rewrite, self.branches), self.branches[0])
        return split

    def forward(self, args, active):
        split = self.split(SplitVJP(tuple(active[1:])))
        found = Cond(split.values)(*args)
        count = len(self.branches[0].outputs)
        return found[:count], split.known(args[1:], found[count:])

    def vjp(self, cts, known, args, active):
        split = self.split(SplitVJP(tuple(active[1:])))
        given = inexact_cotangents(cts, self.branches[0].out_avals)
        return spread(Cond(split.rest)(args[0], *given, *known), active)

    def transpose(self, cts, *args):
        linear = tuple([type(x) is LinearInput for x in args])
        branches = [expand(b, "transpose") for b in self.branches]
        transposed = tuple([rewritten(TransposeIn(linear[1:]), b) for b in branches])
        given = inexact_cotangents(cts, self.branches[0].out_avals)
        known = chosen(args[1:], [not on for on in linear[1:]])
        return spread(Cond(transposed)(args[0], *given, *known), linear)

    def batch(self, args, dims):
        size = next(x.shape[d] for x, d in zip(args, dims, strict=True) if d is not None)
        (index, *operands), (dim, *in_dims) = args, dims
        natural = [rewritten(NaturalBatch(size, tuple(in_dims)), b)[1] for b in self.branches]
        batched = [any(d is not None for d in found) for found in zip(*natural, strict=True)]
        out_dims = tuple([0 if on else None for on in batched])
        branches = tuple(
            [rewritten(Batch(size, tuple(in_dims), out_dims), b) for b in self.branches]
        )
        if dim is None:
            return Cond(branches)(index, *operands), out_dims
        index = moveaxis(index, dim, 0)
        outs = [apply(None, branch, operands) for branch in branches]
        taken = [
            _choose(index, [batch_at(x, d, 0, size) for x in cases])
            for cases, d in zip(zip(*outs, strict=True), out_dims, strict=True)
        ]
        return taken, [0] * len(taken)

    def lower(self, ctx, index, *operands):
        return ctx.case(index, self.branches, operands)


def _choose(index: Any, cases: Sequence[Any]) -> Any:
    """`cases[index[i]]` at each index i of the first dimension."""
    if len(cases) == 2:
        which = broadcast_in_dim(ne(index, 0), cases[0].shape, (0,))
        return select(which, cases[1], cases[0])
    return select_n(broadcast_in_dim(index, cases[0].shape, (0,)), *cases)


class BranchSplit(NamedTuple):
    """Branches split in two: their values, and the rest, which needs something of the values.

    What it needs are the operands at the positions `passed`, and what `values` returns
    behind its outputs.
    """

    values: tuple[Program, ...]
    rest: tuple[Program, ...]
    passed: tuple[int, ...]

    def known(self, operands: Sequence[Any], saved: Sequence[Any]) -> list[Any]:
        """The last operands of `rest`."""
        return [*[operands[i] for i in self.passed], *saved]


@dataclass(frozen=True)
class JoinSplits:
    """The rewrite of all of `branches`, each split by `rewrite`, to halves of common types.

    Of what the branches save, values of one type share an output: only one branch runs.
    The others fill it with zeros.
    """

    rewrite: Any
    branches: tuple[Program, ...]

    def __call__(self, _: Program) -> BranchSplit:
        halves = [rewritten(self.rewrite, branch) for branch in self.branches]
        count = len(self.branches[0].outputs)
        passed: list[int] = []
        slots: list[Any] = []
        # For each branch: where each value that it saves comes from.
        sources: list[list[tuple[bool, int]]] = []
        for values, _rest in halves:
            places: list[tuple[bool, int]] = []
            taken: set[int] = set()
            for atom in values.outputs[count:]:
                if atom in values.inputs:
                    position = values.inputs.index(atom)
                    if position not in passed:
                        passed.append(position)
                    places.append((True, passed.index(position)))
                    continue
                aval = atom.aval.update(weak_type=False)
                free = [i for i, a in enumerate(slots) if a is aval and i not in taken]
                if not free:
                    slots.append(aval)
                    free = [len(slots) - 1]
                taken.add(free[0])
                places.append((False, free[0]))
            sources.append(places)
        operands = self.branches[0].in_avals
        known = [*[operands[i] for i in passed], *slots]
        values_of, rest_of = [], []
        for (values, rest), places in zip(halves, sources, strict=True):
            values_of.append(_saving(values, count, places, slots))
            at = [i if is_passed else len(passed) + i for is_passed, i in places]
            inputs = [Var(aval) for aval in known]
            lead = len(rest.inputs) - len(at)
            for i, v in zip(at, rest.inputs[lead:], strict=True):
                inputs[i] = v
            rest_of.append(rewired(rest, [*rest.inputs[:lead], *inputs], rest.outputs))
        return BranchSplit(tuple(values_of), tuple(rest_of), tuple(passed))


def _saving(
    values: Program, count: int, places: Sequence[tuple[bool, int]], slots: Sequence[Any]
) -> Program:
    """`values` with what it returns behind its first `count` outputs put into `slots`."""

    def body(*args: Any) -> list[Any]:
        outs = apply(None, values, args)
        saved = {
            i: x for (is_passed, i), x in zip(places, outs[count:], strict=True) if not is_passed
        }
        filled = [saved[i] if i in saved else zeros_like(aval) for i, aval in enumerate(slots)]
        return [*outs[:count], *filled]

    return trace(body, values.in_avals, name=values.name)[0]


def cond(
    pred: Any, true_fun: Callable[..., Any], false_fun: Callable[..., Any], *operands: Any
) -> Any:
    """`true_fun(*operands)` where the scalar `pred` holds, else `false_fun(*operands)`.

    Only the function that is chosen runs, when the program does, unless `vmap` maps over
    `pred`: then both run, and each lane takes its own. A number counts as true unless it is
    zero. Both functions are traced, may use values around them, and must return pytrees of
    one structure with leaves of one type each.

    Raises ShapeError unless `pred` is a scalar, BranchTypeError where the results differ.

    >>> import functx
    >>> float(functx.lax.cond(True, lambda x: x + 1.0, lambda x: x * 10.0, 3.0))
    4.0
    """
    check_functions("cond", true_fun=true_fun, false_fun=false_fun)
    aval = _scalar(pred, "cond", "predicate")
    (on_true, on_false), captured, out_tree = _traced([true_fun, false_fun], operands, "cond")
    args = [*tree.leaves(operands), *captured]
    fixed = _fixed(pred)
    if fixed is not None:
        outs = apply(None, on_true if fixed else on_false, args)
    else:
        which = pred if aval.dtype == np.bool_ else ne(pred, 0)
        outs = Cond((on_false, on_true))(convert_element_type(which, np.int32), *args)
    return tree.unflatten(out_tree, outs)


def switch(index: Any, branches: Sequence[Callable[..., Any]], *operands: Any) -> Any:
    """`branches[index](*operands)`, the integer `index` moved into range.

    As `cond`, for any number of functions.

    >>> import functx
    >>> float(functx.lax.switch(2, [lambda x: x, lambda x: x * x, lambda x: -x], 3.0))
    -3.0
    """
    branches = list(branches)
    if not branches:
        raise ArgumentError("switch: there must be at least one branch; got none")
    check_functions("switch", **{f"branches[{i}]": f for i, f in enumerate(branches)})
    aval = _scalar(index, "switch", "index")
    if not is_integer(aval.dtype):
        raise DTypeError(
            f"switch: the index must be an integer; got {aval!r}",
            fix="Convert it with astype, or use cond for a condition.",
        )
    programs, captured, out_tree = _traced(branches, operands, "switch")
    args = [*tree.leaves(operands), *captured]
    fixed = _fixed(index)
    if len(programs) == 1:
        fixed = 0
    if fixed is not None:
        outs = apply(None, programs[min(max(int(fixed), 0), len(programs) - 1)], args)
    else:
        place = clamp(0, index, len(programs) - 1)
        outs = Cond(programs)(convert_element_type(place, np.int32), *args)
    return tree.unflatten(out_tree, outs)


def _scalar(x: Any, what: str, role: str) -> Any:
    try:
        aval = aval_of(x)
    except ArgumentError:
        raise ArgumentError(f"{what}: the {role} must be a scalar; got {type_name(x)}") from None
    if aval.shape:
        raise ShapeError(
            f"{what}: the {role} must be a scalar; got {aval!r}",
            fix="Reduce it with .any() or .all(), map with vmap, or choose by element with "
            "functx.numpy.where.",
        )
    return aval


def _fixed(x: Any) -> Any:
    """The value of a scalar that a program holds as a literal; None for another."""
    if type(x) is Tracer:
        return x.atom.value if type(x.atom) is Literal else None
    return x if isinstance(x, (bool, int, float, complex, np.generic)) else None


def _traced(
    branches: Sequence[Callable[..., Any]], operands: Any, what: str
) -> tuple[tuple[Program, ...], list[Any], Any]:
    """The programs of functions, made to take and to give values of one type.

    They take the operands, then the values returned here that one or another captured.
    """
    leaves, in_tree = tree.flatten((operands, {}))
    traced = [trace_call(f, in_tree, avals_of(leaves, what, f, in_tree), what) for f in branches]
    out_tree = traced[0].out_tree
    for f, each in zip(branches[1:], traced[1:], strict=True):
        if each.out_tree != out_tree:
            raise BranchTypeError(
                f"{what}: all branches must return one structure; got another one",
                f"{body_name('branch', branches[0])} returns {out_tree}",
                f"{body_name('branch', f)} returns {each.out_tree}",
            )
    by_output = list(zip(*[each.program.out_avals for each in traced], strict=True))
    common: list[Any] = [common_type(avals) for avals in by_output]
    if None in common:
        raise BranchTypeError(
            f"{what}: all branches must return values of one type; got "
            + "; ".join(
                f"output{path}: {' and '.join(map(repr, avals))}"
                for path, avals, found in zip(leaf_paths(out_tree), by_output, common, strict=True)
                if found is None
            ),
            fix="Convert the result of one branch with astype, or broadcast it.",
        )
    programs, captured = _with_common_captures(traced, len(leaves))
    return tuple([with_output_types(p, common) for p in programs]), captured, out_tree


def _with_common_captures(
    traced: Sequence[TracedCall], own: int
) -> tuple[list[Program], list[Any]]:
    """The programs with one list of captured values behind their `own` inputs, and that list."""
    values = {owner_of(x): x for each in traced for x in each.captured}
    programs = []
    for each in traced:
        mine = {
            owner_of(x): v for x, v in zip(each.captured, each.program.inputs[own:], strict=True)
        }
        inputs = [mine[key] if key in mine else Var(aval_of(x)) for key, x in values.items()]
        program = each.program
        programs.append(rewired(program, [*program.inputs[:own], *inputs], program.outputs))
    return programs, list(values.values())
