"""What `custom_root` and `custom_linear_solve` share: traced functions, derivatives in consts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from functx.core import tree
from functx.core.avals import ShapedArray
from functx.core.dtypes import is_inexact
from functx.core.editing import apply_program
from functx.core.errors import DTypeError, ShapeError, TreeError
from functx.core.primitive import Primitive
from functx.core.program import Program
from functx.core.records import Rewrite
from functx.core.rewriting import apply, cached_rewrite
from functx.core.tracing import trace_closed
from functx.ops.arithmetic import neg
from functx.ops.operands import batch_size
from functx.ops.shaping import batch_dim_at
from functx.transforms.batching import Batch
from functx.transforms.calls import TracedFunction, avals_of, trace_function
from functx.transforms.control.tracing import (
    cast_outputs,
    cast_to,
    cast_to_strong,
    common_aval,
)
from functx.transforms.forward_mode import Linearize
from functx.transforms.grad import convert_ints_to_floats
from functx.transforms.marks import instantiate_zeros, scatter_where
from functx.transforms.parts import active_outputs
from functx.transforms.reverse_mode import SplitVJP


class SolutionTree:
    """The leaves of what is solved for: their structure, and the types that they settle on.

    `what` begins the messages, `name` is what they call the pytree, `role` and `fun` the
    function that maps such pytrees to such pytrees.
    """

    def __init__(self, what: str, kind: str, name: str, given: Any, role: str, fun: Any):
        self.label, self.kind, self.name = what, kind, name
        leaves, self.structure = tree.flatten(given)
        self.in_tree = tree.structure(((given,), {}))
        self.paths = [tree.keystr(path) for path, _ in tree.leaves_with_path(given)]
        leaves = convert_ints_to_floats(leaves, range(len(leaves)))
        self.avals = avals_of(leaves, kind, fun, self.in_tree)
        if not leaves:
            raise TreeError(f"{what}: {name} must hold an array; got {given!r}")
        for path, aval in zip(self.paths, self.avals, strict=True):
            if not is_inexact(aval.dtype):
                raise DTypeError(
                    f"{what}: {name} must be float or complex; got {aval!r} at {name}{path}",
                    fix="Convert it with astype.",
                )
        while True:
            self.function = trace_function(fun, self.in_tree, self.avals, kind)
            self.function.refuse_writes(kind)
            outs = self.check_result(role, self.function)
            if outs == self.avals:
                break
            self.avals = outs
        self.leaves = [cast_to_strong(x, a) for x, a in zip(leaves, self.avals, strict=True)]

    def check_result(
        self, role: str, traced: TracedFunction, aux: bool = False
    ) -> list[ShapedArray]:
        """The types that what the function `role` returns and these take on, none of them weak.

        Raises TreeError, ShapeError or DTypeError unless it returns something like these.
        """
        out_tree = traced.out_tree.children()[0] if aux else traced.out_tree
        tree.check_same_structure(
            self.structure, out_tree, f"{self.label}: what {role} returns", self.name
        )
        found = []
        for path, aval, out in zip(self.paths, self.avals, traced.program.out_avals, strict=False):
            common = common_aval((aval, out), aval)
            if common is None:
                raise (DTypeError if out.shape == aval.shape else ShapeError)(
                    f"{self.label}: {role} must return arrays of the shapes and dtypes of "
                    f"{self.name}; got {out!r} for {self.name}{path}: {aval!r}"
                )
            found.append(common.update(weak_type=False))
        return found

    def trace_solver(
        self, role: str, solve: Callable[..., Any], has_aux: bool = False
    ) -> TracedFunction:
        """`solve` of such a pytree traced, the result checked to be like it, and aux behind."""
        solve.__name__ = role
        traced = trace_function(solve, self.in_tree, self.avals, self.kind, has_aux=has_aux)
        traced.refuse_writes(self.kind)
        self.check_result(role, traced, has_aux)
        return traced._replace(program=cast_outputs(traced.program, self.avals))

    def apply(self, role: str, program: Program, given: Any, rest: Sequence[Any]) -> Any:
        """`program` on a pytree like these, which `role` was given, and on `rest`."""
        leaves, structure = tree.flatten(given)
        tree.check_same_structure(
            self.structure, structure, f"{self.label}: the argument of {role}", self.name
        )
        avals = avals_of(leaves, self.kind, lambda x: x, tree.structure(((given,), {})))
        for path, aval, wanted in zip(self.paths, avals, self.avals, strict=True):
            if common_aval((wanted, aval), wanted) is not wanted:
                raise (DTypeError if aval.shape == wanted.shape else ShapeError)(
                    f"{self.label}: the argument of {role} must have the shapes and dtypes of "
                    f"{self.name}; got {aval!r} for {self.name}{path}: {wanted!r}"
                )
        leaves = [cast_to(x, a) for x, a in zip(leaves, self.avals, strict=True)]
        return tree.unflatten(self.structure, apply_program(program, [*leaves, *rest]))


def consts_jvp(
    program: Program, xs: Sequence[Any], consts: Sequence[Any], tangents: Sequence[Any]
) -> list[Any] | None:
    """The tangents of what `program` gives on `xs` and `consts` when the consts alone vary.

    None where nothing varies with those that have tangents.
    """
    varying = (*[False] * len(xs), *[t is not None for t in tangents])
    if not any(active_outputs(program, varying)):
        return None
    values, linear = cached_rewrite(Linearize(varying), program)
    outs = apply_program(values, [*xs, *consts])
    given = [t for t in tangents if t is not None]
    return apply_program(linear, [*given, *outs[len(program.outputs) :]])


def negated_consts_vjp(
    program: Program,
    xs: Sequence[Any],
    consts: Sequence[Any],
    active: Sequence[bool],
    cts: Sequence[Any],
) -> list[Any]:
    """The cotangents of the consts marked in `active`, negated, for `cts` of what comes out."""
    varying = (*[False] * len(xs), *active)
    if not any(active_outputs(program, varying)):
        return [None] * len(consts)
    values, backward = cached_rewrite(SplitVJP(varying), program)
    outs = apply_program(values, [*xs, *consts])
    found = apply_program(backward, [*cts, *outs[len(program.outputs) :]])
    return scatter_where([neg(ct) for ct in found], active)


def instantiate_cotangents(cts: Sequence[Any], like: Sequence[Any]) -> list[Any] | None:
    """The cotangents of the outputs `like`, zeros for None; None when all are."""
    if all(ct is None for ct in cts):
        return None
    return instantiate_zeros(cts, like)


class PartialDerivative(Rewrite[Program]):
    """The rewrite to the derivative in the first `count` inputs.

    The result takes tangents of those, then all inputs, and gives the tangents of the outputs.
    """

    count: int

    def __call__(self, program: Program) -> Program:
        varying = [i < self.count for i in range(len(program.inputs))]
        values, linear = cached_rewrite(Linearize(tuple(varying)), program)

        def body(*args: Any) -> list[Any]:
            outs = apply(None, values, args[self.count :])
            return apply(None, linear, [*args[: self.count], *outs[len(program.outputs) :]])

        avals = [*program.in_avals[: self.count], *program.in_avals]
        return trace_closed(body, avals, name=f"derivative_{program.name}")


def batch_solver(
    primitive: Primitive, args: Sequence[Any], dims: Sequence[int | None], unknowns: int
) -> tuple[list[Any], list[int]]:
    """`primitive`, whose parameters are programs of the same inputs, on batches.

    The first `unknowns` operands, and all outputs, are batched whether they must or not.
    """
    size = batch_size(args, dims)
    moved = [
        batch_dim_at(x, d, 0, size) if i < unknowns or d is not None else x
        for i, (x, d) in enumerate(zip(args, dims, strict=True))
    ]
    rest = [None if d is None else 0 for d in dims[unknowns:]]

    def on_batches(program: Program | None) -> Program | None:
        if program is None:
            return None
        # Between the unknowns and the consts, a program may take further values like unknowns.
        lead = (0,) * (len(program.inputs) - len(rest))
        batch = Batch(size, (*lead, *rest), (0,) * len(program.outputs))
        return cached_rewrite(batch, program)  # type: ignore[no-any-return]

    programs = [on_batches(getattr(primitive, field)) for field in primitive.fields]
    outs = type(primitive)(*programs)(*moved)
    return outs, [0] * len(outs)
