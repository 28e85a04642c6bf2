"""`cond` and `switch`: one of several programs, chosen when the program runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from functx.core import tree
from functx.core.axes import batched_names
from functx.core.dtypes import is_complex, is_integer
from functx.core.effects import OF_LANES
from functx.core.errors import ArgumentError, CollectiveError, DTypeError, ShapeError, type_name
from functx.core.primitive import Primitive
from functx.core.program import Literal, Program, Var
from functx.core.records import Rewrite
from functx.core.rewriting import apply, rewritten
from functx.core.samples import f64, i32, sample
from functx.core.tracebacks import boundary
from functx.core.tracing import Tracer, aval_of, current_builder, trace_closed
from functx.ops.arithmetic import mul
from functx.ops.comparison import eq, ne
from functx.ops.conversion import convert_element_type
from functx.ops.operands import batch_size
from functx.ops.selection import clamp, select
from functx.ops.shaping import zeros_like
from functx.ops.slicing import wide_enough
from functx.ops.trigonometric import sin
from functx.transforms.batching import Batch, NaturalBatch, on_batches
from functx.transforms.call import Call, TransposeIn
from functx.transforms.calls import fresh, named_after, write_all_back
from functx.transforms.control.branch_splits import BranchSplit, JoinSplits
from functx.transforms.control.branches import traced_branches
from functx.transforms.control.lanes import (
    AnyLane,
    Gated,
    holds_loop,
    must_go_along,
    one_by_one,
    own_way,
    root_of,
    update_if,
    updated,
)
from functx.transforms.control.tracing import (
    as_numpy,
    check_functions,
    check_operands,
    linearizing,
    run_as_given,
)
from functx.transforms.expand import expand
from functx.transforms.forward_mode import Linearize, PushForward
from functx.transforms.marks import (
    chosen,
    inexact_cotangents,
    inexact_marks,
    linear_marks,
    others,
    places_of,
    spread,
)
from functx.transforms.parts import Between, Needed, depends
from functx.transforms.planning.planned import planned
from functx.transforms.reverse_mode import SplitVJP
from functx.transforms.zeros import WithZeros, nonzero_outputs, programs_run, with_programs


def _examples() -> tuple[Program, ...]:
    def product(x: Any, y: Any, n: Any) -> list[Any]:
        return [sin(mul(x, y)), n]

    def first(x: Any, y: Any, n: Any) -> list[Any]:
        return [mul(x, 2.0), mul(n, 3)]

    avals = [f64[3], f64[3], i32[()]]
    return tuple(trace_closed(f, avals, name=f.__name__) for f in (product, first))


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

    def hoist(self, programs, extras, operands):
        # Every branch takes what any of them does.
        branches = []
        for program, own in zip(programs, extras, strict=True):
            places = iter(program.inputs)
            given = [
                [next(places) if each is own else Var(aval_of(a)) for a in each] for each in extras
            ]
            inputs = [*chain(*given), *places]
            branches.append(Program(program.name, inputs, program.equations, program.outputs))
        return Cond(tuple(branches)), [operands[0], *chain(*extras), *operands[1:]]

    def simplify(self, facts, index, *operands):
        if type(index) is not Literal:
            return None
        return Call(self.branches[index.value]), operands

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
        return outs, spread(out_tangents, inexact_marks(avals))

    def varying_outputs(self, avals, active):
        found = [depends(b, active[1:]) for b in self.branches]
        return [any(on) for on in zip(*found, strict=True)]

    def trim(self, used):
        if all(used):
            return None
        outputs = places_of(used)
        needed = {i for b in self.branches for i in rewritten(Needed(outputs), b)}
        inputs = tuple(sorted(needed))
        branches = tuple([rewritten(Between(inputs, outputs), b) for b in self.branches])
        return Cond(branches), [0, *[1 + i for i in inputs]], outputs

    def split(self, rewrite: Any) -> BranchSplit:
        """Each branch split in two by `rewrite`, the halves made to fit each other."""
        split: BranchSplit = rewritten(JoinSplits(rewrite, self.branches), self.branches[0])
        return split

    def forward(self, args, active):
        split = self.split(planned(SplitVJP(tuple(active[1:]))))
        found = Cond(split.values)(*args)
        count = len(self.branches[0].outputs)
        return found[:count], split.known(args[1:], found[count:])

    def vjp(self, cts, known, args, active):
        split = self.split(planned(SplitVJP(tuple(active[1:]))))
        given = chosen(cts, inexact_marks(self.branches[0].out_avals))
        marks = tuple([ct is not None for ct in given])
        rest = tuple([rewritten(WithZeros(marks), b) for b in split.rest])
        found = Cond(rest)(args[0], *chosen(given, marks), *known)
        nonzero = map(any, zip(*map(nonzero_outputs, rest), strict=True))
        return spread([x if on else None for x, on in zip(found, nonzero, strict=True)], active)

    def transpose(self, cts, *args):
        linear = linear_marks(args)
        branches = [expand(b, "transpose") for b in self.branches]
        transposed = tuple([rewritten(TransposeIn(linear[1:]), b) for b in branches])
        given = inexact_cotangents(cts, self.branches[0].out_avals)
        known = others(args[1:], linear[1:])
        return spread(Cond(transposed)(args[0], *given, *known), linear)

    def batch(self, args, dims):
        size = batch_size(args, dims)
        (index, *operands), (dim, *in_dims) = args, dims
        if dim is not None and self.effects & OF_LANES:
            return one_by_one(self, args, dims)
        if dim is not None and (name := batched_names().name) in self.named_axes:
            raise CollectiveError(
                "cond: a choice must be the same in all places of an axis that a branch works "
                f"across; got one that differs along {name!r}",
                fix="Take the collective out of the branches, or choose with functx.numpy.where.",
            )
        if dim is not None:
            along = [must_go_along(b, [d is None for d in in_dims]) for b in self.branches]
            program = rewritten(Chosen(self.branches, tuple(along)), self.branches[0])
            outs = on_batches(program, args, dims)
            return [x for x, _ in outs], [d for _, d in outs]
        natural = [rewritten(NaturalBatch(size, tuple(in_dims)), b)[1] for b in self.branches]
        batched = [any(d is not None for d in found) for found in zip(*natural, strict=True)]
        out_dims = tuple([0 if on else None for on in batched])
        branches = tuple(
            [rewritten(Batch(size, tuple(in_dims), out_dims), b) for b in self.branches]
        )
        return Cond(branches)(index, *operands), out_dims

    def lower(self, ctx, index, *operands):
        return ctx.case(index, self.branches, operands)


class Chosen(Rewrite[Program]):
    """The rewrite to a program that runs all of `branches` and chooses among what they give.

    It takes the index and the operands, and is made to be batched along the index. Lanes that
    do not take a branch leave it without influence; `along` says which branches they run as a
    lane that takes it. A branch with loops does not run unless a lane takes it.
    """

    branches: tuple[Program, ...]
    along: tuple[bool, ...]

    def __call__(self, first: Program) -> Program:
        roots = common_roots(self.branches)

        def body(index: Any, *operands: Any) -> list[Any]:
            # What every branch updates goes from one to the next: all but one leave it alone.
            state = list(operands)
            outs: list[Any] = []
            for i, (branch, along) in enumerate(zip(self.branches, self.along, strict=True)):
                live = eq(index, i)
                gated = rewritten(Gated(roots, along), branch)
                if holds_loop(branch):
                    choice = Cond((rewritten(Idle(roots), gated), gated))
                    found = choice(convert_element_type(AnyLane()(live), np.int32), live, *state)
                else:
                    found = apply(None, gated, [live, *state])
                for j, root in enumerate(roots):
                    if root is not None:
                        state[root] = found[j]
                    elif i:
                        found[j] = select(live, found[j], outs[j])
                outs = found
            return outs

        avals = [i32[()], *first.in_avals]
        return trace_closed(body, avals, name=f"chosen_{first.name}")


class Idle(Rewrite[Program]):
    """The rewrite of a gated branch to what it gives where it does not count: zeros, or `roots`."""

    roots: tuple[int | None, ...]

    def __call__(self, gated: Program) -> Program:
        def body(live: Any, *operands: Any) -> list[Any]:
            return [
                zeros_like(aval) if root is None else operands[root]
                for aval, root in zip(gated.out_avals, self.roots, strict=True)
            ]

        return trace_closed(body, gated.in_avals, name="idle")


def common_roots(branches: Sequence[Program]) -> tuple[int | None, ...]:
    """For each output, the operand that it is in all branches but for updates of parts of it.

    None where there is none, or where two outputs come of one operand.
    """
    found = [
        roots[0] if len(set(roots)) == 1 else None
        for roots in [
            [root_of(branch, j) for branch in branches] for j in range(len(branches[0].outputs))
        ]
    ]
    return tuple([root if found.count(root) == 1 else None for root in found])


@updated.register
def _updated_by_cond(primitive: Cond, output: int) -> int | None:
    root = common_roots(primitive.branches)[output]
    return None if root is None else 1 + root


@programs_run.register
def _branches_of_cond(primitive: Cond) -> Sequence[Program]:
    return primitive.branches


@with_programs.register
def _cond_of_branches(primitive: Cond, programs: Sequence[Program]) -> Cond:
    return Cond(tuple(programs))


@own_way.register
def _own_way_of_cond(primitive: Cond, operands: Sequence[Any]) -> Sequence[int]:
    return range(1, len(operands))


@update_if.register
def _update_cond_if(
    primitive: Cond, live: Any, changed: Sequence[bool], along: bool, args: Sequence[Any]
) -> list[Any]:
    roots = common_roots(primitive.branches)
    kept = tuple([root if on else None for root, on in zip(roots, changed, strict=True)])
    branches = tuple([rewritten(Gated(kept, along), branch) for branch in primitive.branches])
    return Cond(branches)(args[0], live, *args[1:])  # type: ignore[no-any-return]


class _Nothing:
    """What stands for an operand that is not given."""

    def __repr__(self) -> str:
        return "<none>"


_NOTHING: Any = _Nothing()


@boundary
def cond(
    pred: Any,
    true_fun: Callable[..., Any],
    false_fun: Callable[..., Any],
    *operands: Any,
    operand: Any = _NOTHING,
) -> Any:
    """`true_fun(*operands)` where the scalar `pred` holds, else `false_fun(*operands)`.

    Only the function that is chosen runs, when the program does, unless `vmap` maps over
    `pred`: then both run, each lane takes its own, and what it does not take has no influence
    on it; a loop or a callback in a function runs for the lanes that take it alone. A number
    counts as true unless it is zero. Both functions are traced, may use values around them,
    and must return pytrees of one structure with leaves of one type each.

    `operand=x` is the former way to give one operand.

    Raises ShapeError unless `pred` is a scalar, BranchTypeError where the results differ.

    >>> import functx
    >>> float(functx.lax.cond(True, lambda x: x + 1.0, lambda x: x * 10.0, 3.0))
    4.0
    """
    if len(operands) == 2 and callable(false_fun) and callable(operands[1]):
        # The order of the arguments was once: pred, operand, function, operand, function.
        x, y = true_fun, operands[0]
        true_fun, false_fun, operands = _of_first(false_fun), _of_second(operands[1]), (x, y)
    operands = _with_operand(operands, operand, "cond")
    check_functions("cond", true_fun=true_fun, false_fun=false_fun)
    aval = _scalar(pred, "cond", "predicate")
    if is_complex(aval.dtype):
        raise DTypeError(
            f"cond: the predicate must be a boolean or a real number; got {aval!r}",
            fix="Compare it with something, as in `x != 0`.",
        )
    branches = {"true_fun": true_fun, "false_fun": false_fun}
    (on_true, on_false), captured, out_tree, written = traced_branches(branches, operands, "cond")
    args = [*tree.leaves(operands), *captured]
    fixed = _fixed(pred)
    if fixed is not None:
        outs = run_as_given(on_true if fixed else on_false, args, pred)
    else:
        which = pred if aval.dtype == np.bool_ else ne(pred, 0)
        outs = Cond((on_false, on_true))(convert_element_type(which, np.int32), *args)
    return tree.unflatten(out_tree, _returned(outs, args, written))


@boundary
def switch(
    index: Any,
    branches: Sequence[Callable[..., Any]],
    *operands: Any,
    operand: Any = _NOTHING,
) -> Any:
    """`branches[index](*operands)`, the integer `index` moved into range.

    As `cond`, for any number of functions.

    >>> import functx
    >>> float(functx.lax.switch(2, [lambda x: x, lambda x: x * x, lambda x: -x], 3.0))
    -3.0
    """
    if isinstance(branches, Mapping) or not isinstance(branches, Iterable):
        raise ArgumentError(
            f"switch: the branches must be a sequence of functions; got {type_name(branches)}"
        )
    functions = {f"branches[{i}]": f for i, f in enumerate(branches)}
    if not functions:
        raise ArgumentError("switch: there must be at least one branch; got none")
    operands = _with_operand(operands, operand, "switch")
    check_functions("switch", **functions)
    aval = _scalar(index, "switch", "index")
    if not is_integer(aval.dtype):
        raise DTypeError(
            f"switch: the index must be an integer; got {aval!r}",
            fix="Convert it with astype, or use cond for a condition.",
        )
    programs, captured, out_tree, written = traced_branches(functions, operands, "switch")
    args = [*tree.leaves(operands), *captured]
    last = len(programs) - 1
    fixed = _fixed(index) if last else 0
    if fixed is not None:
        outs = run_as_given(programs[min(max(int(fixed), 0), last)], args, index)
    else:
        place = clamp(0, wide_enough(index, last), last)
        outs = Cond(programs)(convert_element_type(place, np.int32), *args)
    return tree.unflatten(out_tree, _returned(outs, args, written))


def _returned(outs: Sequence[Any], args: Sequence[Any], written: Sequence[int]) -> list[Any]:
    """The results among `outs`, those behind them written to the arguments at `written`."""
    own = len(outs) - len(written)
    # A branch that is known stands in the open, where its results may show what is written to.
    results = fresh(outs[:own], args)
    write_all_back(args, dict(zip(written, outs[own:], strict=True)))
    return results


def _of_first(fun: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    return named_after(lambda x, y: fun(x), fun, "cond")  # type: ignore[no-any-return]


def _of_second(fun: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    return named_after(lambda x, y: fun(y), fun, "cond")  # type: ignore[no-any-return]


def _with_operand(operands: tuple[Any, ...], operand: Any, what: str) -> tuple[Any, ...]:
    """The operands, where one may have been given by keyword instead."""
    if operand is _NOTHING:
        return operands
    if operands:
        raise ArgumentError(
            f"{what}: operands must be given by position or one as `operand`; got both",
            fix="Give all of them by position.",
        )
    return (operand,)


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
    """The value of a scalar that a trace holds as a literal, or any outside one; else None."""
    if type(x) is Tracer:
        return x.atom.value if type(x.atom) is Literal else None
    if isinstance(x, (bool, int, float, complex, np.generic)):
        return x
    if current_builder.get() is not None:
        return None
    value = as_numpy(x)
    return value[()] if isinstance(value, np.ndarray) else None
