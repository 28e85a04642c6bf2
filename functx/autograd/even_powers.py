"""Even powers of roots in walks that are differentiated: the root alone has no second derivative at 0."""

from __future__ import annotations

from typing import Any

from functx import ops
from functx.autograd.nodes import Node, OperationNode, OperationSplit, split_program
from functx.core.program_calls import apply_program
from functx.core.tracing import trace_closed
from functx.core.typing import Value
from functx.passes.formula_replacement import stabilize_formulas, table


def join_power_with_root(node: OperationNode) -> OperationNode | None:
    """The node of an even power and of the root that it is a power of, in one, from the operands of the root.

    None for other nodes, if an operand of the root is not saved, and if one of both has hooks.
    """
    edge = node.edges[0]
    if edge is None or has_hooks(node) or any([e != edge for e in node.edges]):
        return None
    root = edge[0]
    if (
        not isinstance(root, OperationNode)
        or has_hooks(root)
        or root.saved is None
        or node.saved is None
    ):
        return None
    split = split_of_power_and_root(node.split, root.split)
    if split is None:
        return None
    operands: dict[int, Any] = {i: root.saved[k] for k, i in root.split.saved_operands}
    if len(operands) < len(split.active):
        return None
    whole = OperationNode(split, root.edges, [])
    whole.number, whole.operands = node.number, [operands[i] for i in range(len(operands))]
    return whole


def has_hooks(node: Node) -> bool:
    """Whether a hook is registered for a node or its outputs."""
    return node.hooks is not None and not node.hooks.is_empty()


def split_of_power_and_root(power: OperationSplit, root: OperationSplit) -> OperationSplit | None:
    """The split of a power of a root as one operation, which computes no root; None for others."""
    if root.name not in table.marking or type(_last(power)) not in (
        ops.IntegerPow,
        ops.Square,
        ops.Mul,
    ):
        return None
    key = root.program.key, root.active
    if key not in power.memo:

        def body(*args: Value) -> list[Value]:
            outs = apply_program(root.program, args)
            return apply_program(power.program, outs * len(power.active))

        plain = trace_closed(body, root.program.in_avals, name=power.name)
        whole = stabilize_formulas(plain)
        power.memo[key] = None if whole is plain else split_program(whole, root.active)
    return power.memo[key]  # type: ignore[no-any-return]


def _last(split: OperationSplit) -> object:
    """The primitive of a program of one operation; None for a longer one."""
    equations = split.program.equations
    return equations[0].primitive if len(equations) == 1 else None
