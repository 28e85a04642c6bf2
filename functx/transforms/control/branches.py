"""Functions as branches: traced to programs that take and give values of the same types."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from functx.core import tree
from functx.core.errors import BranchTypeError
from functx.core.program import Program, Var
from functx.core.tracing import aval_of
from functx.transforms.calls import (
    TracedCall,
    avals_of,
    layouts_of,
    leaf_paths,
    owner_of,
    trace_call,
    traced_together,
)
from functx.transforms.control.tracing import (
    common_type,
    described,
    with_output_types,
)
from functx.transforms.parts import rewired
from functx.transforms.sharing import blocks_of


def traced_branches(
    branches: dict[str, Callable[..., Any]], operands: Any, what: str
) -> tuple[tuple[Program, ...], list[Any], Any, list[int]]:
    """The programs of functions, made to take and to give values of one type.

    They take the operands, then the values returned here that one or another captured. Behind
    their results they give new values of those, at the places returned last, that one or
    another writes to.
    """
    leaves, in_tree = tree.flatten_words((operands, {}))
    functions = list(branches.values())

    def trace(from_roots: bool, **memory: Any) -> list[TracedCall]:
        return [
            trace_call(
                f,
                in_tree,
                avals_of(leaves, what, f, in_tree),
                what,
                from_roots=from_roots,
                **memory,
            )
            for f in functions
        ]

    traced = traced_together(trace)
    own = {i for each in traced for i in each.written if i < len(leaves)}
    layouts = layouts_of(leaves) if any(each.by_layout for each in traced) else []
    blocks = blocks_of(leaves, own) if own else ()
    if blocks or any(layouts):
        # Operands lie in memory otherwise than was thought, and a branch depends on that.
        memory = {"blocks": blocks, "layouts": layouts or None}
        traced = traced_together(lambda from_roots: trace(from_roots, **memory))
    out_tree = traced[0].out_tree
    first, *others = branches
    for name, each in zip(others, traced[1:], strict=True):
        if each.out_tree != out_tree:
            raise _different_structures(what, (first, name), (out_tree, each.out_tree), branches)
    by_output = list(zip(*[each.out_avals for each in traced], strict=True))
    common: list[Any] = [common_type(avals) for avals in by_output]
    if None in common:
        raise BranchTypeError(
            f"{what}: all branches must return values of one type; got "
            + "; ".join(
                f"output{path}: " + " and ".join(_by_type(branches, avals))
                for path, avals, found in zip(
                    leaf_paths(out_tree, traced[0].out_avals), by_output, common, strict=True
                )
                if found is None
            ),
            *_places(branches),
            fix="Convert the result of one branch with astype, or broadcast it.",
        )
    programs, captured, written = _with_common_captures(traced, len(leaves))
    return tuple([with_output_types(p, common) for p in programs]), captured, out_tree, written


def _by_type(branches: Iterable[str], avals: Sequence[Any]) -> list[str]:
    """`f32[] of true_fun`, for each type that branches return."""
    by_type: dict[Any, list[str]] = {}
    for name, aval in zip(branches, avals, strict=True):
        by_type.setdefault(aval, []).append(name)
    return [f"{aval!r} of {', '.join(names)}" for aval, names in by_type.items()]


def _different_structures(
    what: str, names: Sequence[str], trees: Sequence[Any], branches: dict[str, Any]
) -> BranchTypeError:
    paths = [leaf_paths(each) for each in trees]
    alone = [
        f"only {name} returns " + ", ".join([f"output{path}" for path in own])
        for name, mine, theirs in zip(names, paths, paths[::-1], strict=True)
        if (own := [path for path in mine if path not in theirs])
    ]
    return BranchTypeError(
        f"{what}: all branches must return the structure that {names[0]} returns; "
        f"got {tree.differing(*trees)} from {names[1]}",
        *tree.in_full(*trees),
        *alone,
        *_places({name: branches[name] for name in names}),
        fix="Return the same containers with the same keys from every branch.",
    )


def _places(branches: dict[str, Any]) -> list[str]:
    """`true_fun is double (train.py:12)`, for each branch."""
    return [f"{name} is {described(fun)}" for name, fun in branches.items()]


def _with_common_captures(
    traced: Sequence[TracedCall], own: int
) -> tuple[list[Program], list[Any], list[int]]:
    """The programs with one list of captured values behind their `own` inputs, and that list.

    Also with new values of the same inputs behind their results, and which those are.
    """
    values = {owner_of(x): x for each in traced for x in each.captured}
    places = {key: own + i for i, key in enumerate(values)}
    news = [
        {
            i if i < own else places[owner_of(each.captured[i - own])]: atom
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
            owner_of(x): v for x, v in zip(each.captured, each.program.inputs[own:], strict=True)
        }
        inputs = [mine[key] if key in mine else Var(aval_of(x)) for key, x in values.items()]
        program = each.program
        inputs = [*program.inputs[:own], *inputs]
        results = program.outputs[: len(each.out_avals)]
        programs.append(
            rewired(program, inputs, [*results, *[new.get(i, inputs[i]) for i in written]])
        )
    return programs, list(values.values()), written
