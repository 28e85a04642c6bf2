"""Functions as branches: traced to programs that take and give values of the same types."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from functx.core import tree
from functx.core.errors import BranchTypeError
from functx.core.program import Program, Var
from functx.core.tracing import aval_of
from functx.transforms.calls import (
    TracedFunction,
    argument_strides,
    avals_of,
    capture_key,
    key_path_strings,
    trace_function,
    trace_with_shared_captures,
)
from functx.transforms.control.tracing import (
    cast_outputs,
    common_aval,
    describe_function,
)
from functx.transforms.parts import with_io
from functx.transforms.sharing import written_shared_buffers


def trace_branches(
    branches: dict[str, Callable[..., Any]], operands: Any, what: str
) -> tuple[tuple[Program, ...], list[Any], Any, list[int]]:
    """The programs of functions, made to take and to give values of one type.

    They take the operands, then the values returned here that one or another captured. Behind
    their results they give new values of those, at the places returned last, that one or
    another writes to.
    """
    leaves, in_tree = tree.flatten_with_key_data((operands, {}))
    functions = list(branches.values())

    def trace(from_roots: bool, **memory: Any) -> list[TracedFunction]:
        return [
            trace_function(
                f,
                in_tree,
                avals_of(leaves, what, f, in_tree),
                what,
                from_roots=from_roots,
                **memory,
            )
            for f in functions
        ]

    traced = trace_with_shared_captures(trace)
    own = {i for each in traced for i in each.written if i < len(leaves)}
    layouts = argument_strides(leaves) if any(each.layout_dependent for each in traced) else []
    blocks = written_shared_buffers(leaves, own) if own else ()
    if blocks or any(layouts):
        # Operands lie in memory otherwise than was thought, and a branch depends on that.
        memory = {"blocks": blocks, "layouts": layouts or None}
        traced = trace_with_shared_captures(lambda from_roots: trace(from_roots, **memory))
    out_tree = traced[0].out_tree
    first, *others = branches
    for name, each in zip(others, traced[1:], strict=True):
        if each.out_tree != out_tree:
            raise _structure_mismatch_error(
                what, (first, name), (out_tree, each.out_tree), branches
            )
    by_output = list(zip(*[each.out_avals for each in traced], strict=True))
    common: list[Any] = [common_aval(avals) for avals in by_output]
    if None in common:
        raise BranchTypeError(
            f"{what}: all branches must return values of one type; got "
            + "; ".join(
                f"output{path}: " + " and ".join(_describe_types(branches, avals))
                for path, avals, found in zip(
                    key_path_strings(out_tree, traced[0].out_avals), by_output, common, strict=True
                )
                if found is None
            ),
            *_describe_branches(branches),
            fix="Convert the result of one branch with astype, or broadcast it.",
        )
    programs, captured, written = _unify_captures(traced, len(leaves))
    return tuple([cast_outputs(p, common) for p in programs]), captured, out_tree, written


def _describe_types(branches: Iterable[str], avals: Sequence[Any]) -> list[str]:
    """`f32[] of true_fun`, for each type that branches return."""
    by_type: dict[Any, list[str]] = {}
    for name, aval in zip(branches, avals, strict=True):
        by_type.setdefault(aval, []).append(name)
    return [f"{aval!r} of {', '.join(names)}" for aval, names in by_type.items()]


def _structure_mismatch_error(
    what: str, names: Sequence[str], trees: Sequence[Any], branches: dict[str, Any]
) -> BranchTypeError:
    paths = [key_path_strings(each) for each in trees]
    alone = [
        f"only {name} returns " + ", ".join([f"output{path}" for path in own])
        for name, mine, theirs in zip(names, paths, paths[::-1], strict=True)
        if (own := [path for path in mine if path not in theirs])
    ]
    return BranchTypeError(
        f"{what}: all branches must return the structure that {names[0]} returns; "
        f"got {tree.describe_difference(*trees)} from {names[1]}",
        *tree.full_structures(*trees),
        *alone,
        *_describe_branches({name: branches[name] for name in names}),
        fix="Return the same containers with the same keys from every branch.",
    )


def _describe_branches(branches: dict[str, Any]) -> list[str]:
    """`true_fun is double (train.py:12)`, for each branch."""
    return [f"{name} is {describe_function(fun)}" for name, fun in branches.items()]


def _unify_captures(
    traced: Sequence[TracedFunction], own: int
) -> tuple[list[Program], list[Any], list[int]]:
    """The programs with one list of captured values behind their `own` inputs, and that list.

    Also with new values of the same inputs behind their results, and which those are.
    """
    values = {capture_key(x): x for each in traced for x in each.captured}
    places = {key: own + i for i, key in enumerate(values)}
    news = [
        {
            i if i < own else places[capture_key(each.captured[i - own])]: atom
            for i, atom in zip(
                each.written, each.program.outputs[len(each.out_avals) :], strict=True
            )
        }
        for each in traced
    ]
    written = sorted(set().union(*news))
    programs = []
    for each, new in zip(traced, news, strict=True):
        mine = {
            capture_key(x): v for x, v in zip(each.captured, each.program.inputs[own:], strict=True)
        }
        inputs = [mine[key] if key in mine else Var(aval_of(x)) for key, x in values.items()]
        program = each.program
        inputs = [*program.inputs[:own], *inputs]
        results = program.outputs[: len(each.out_avals)]
        programs.append(
            with_io(program, inputs, [*results, *[new.get(i, inputs[i]) for i in written]])
        )
    return programs, list(values.values()), written
