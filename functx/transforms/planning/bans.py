"""What is not computed again: rules of thumb about what is slow, large to read, or far away."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf
from typing import Any

from functx.core.errors import ArgumentError, ValueRangeError, type_name
from functx.core.primitive import Primitive
from functx.core.program import Equation, Var
from functx.ops.callbacks import HostPrimitive
from functx.transforms.planning.costs import (
    RANDOM_PRIMITIVES,
    VIEW_PRIMITIVES,
    bytes_of,
    compute_cost,
    is_cheap_to_recompute,
)
from functx.transforms.planning.joint import JointDataflow


@dataclass(frozen=True)
class MinCutConfig:
    """What `min_cut_rematerialization_partition` may compute again.

    `recomputable_ops`, names of primitives, replaces the list of those that are quick; random
    operations are not, by default. With `aggressive`, whatever is no product of matrices,
    convolution, attention or the like is done again, and none of the rules below count.
    `reductions` bans what reads four times what it gives; `materialized` what the backward
    computation has to write to memory at any rate; `far_apart` what is used again behind an
    operation that cannot be fused; `long_chains` a chain of more than `chain` fusible operations;
    `distance` is how far from the backward computation a value may be.

    `price` is what it costs to do the banned again, in bytes kept for the work of moving one.
    """

    recomputable_ops: frozenset[str] | None = None
    aggressive: bool = False
    reductions: bool = True
    materialized: bool = True
    far_apart: bool = True
    long_chains: bool = True
    chain: int = 100
    distance: int = 1000
    price: float = inf

    def __post_init__(self) -> None:
        ops = self.recomputable_ops
        if ops is None:
            return
        must = "Config: recomputable_ops must be names of primitives"
        if isinstance(ops, str) or not isinstance(ops, Collection):
            raise ArgumentError(f"{must}; got {type_name(ops)}")
        for name in ops:
            if not isinstance(name, str):
                raise ArgumentError(f"{must}; got {type_name(name)} among them")
            if name not in Primitive.registry:
                raise ValueRangeError(f"{must}; there is no primitive {name!r}")
        object.__setattr__(self, "recomputable_ops", frozenset(ops))

    def is_recomputable(self, primitive: Primitive) -> bool:
        """Whether `primitive` is on the list of those that are done again."""
        if self.recomputable_ops is not None:
            return primitive.name in self.recomputable_ops and not primitive.effects
        return is_cheap_to_recompute(primitive)

    def is_fusible(self, primitive: Primitive) -> bool:
        """Whether a compiler merges it with its neighbours."""
        return self.is_recomputable(primitive) or isinstance(primitive, RANDOM_PRIMITIVES)


REDUCTION_RATIO = 4
"""Reductions whose results are so many times smaller than what they read are kept."""


class RecomputeHeuristics:
    """The equations before the backward computation of `flow` that are not to be done again.

    `price(eqn)` is what doing one of them again costs at least: infinite for what never may.
    """

    def __init__(self, flow: JointDataflow, config: MinCutConfig, distances: dict[Any, int]):
        self.flow, self.config, self.distances = flow, config, distances
        self.position = {eqn: i for i, eqn in enumerate(flow.joint.program.equations)}
        self.banned = {eqn for eqn in flow.recompute_candidates if self.should_ban(eqn)}
        if not config.aggressive:
            if config.far_apart:
                self.ban_far_apart()
            if config.long_chains:
                self.ban_long_chains()

    def recompute_cost(self, eqn: Equation) -> float:
        """What it costs to do `eqn` again: nothing if it is not banned."""
        if eqn not in self.banned:
            return 0
        if eqn.primitive.effects or isinstance(eqn.primitive, HostPrimitive):
            return inf
        price = self.config.price
        return inf if price == inf else price * compute_cost(eqn)

    def should_ban(self, eqn: Equation) -> bool:
        """Whether what `eqn` does, or what it reads, is a reason to keep its outputs."""
        config, primitive = self.config, eqn.primitive
        if isinstance(primitive, VIEW_PRIMITIVES) or self.must_recompute(eqn):
            return False
        if not config.is_recomputable(primitive):
            return True
        if config.aggressive:
            return False
        if self.distances.get(eqn.outputs[0], 0) > config.distance:
            return True
        if config.materialized and any([self.is_materialized_in_backward(v) for v in eqn.outputs]):
            return True
        read = sum([bytes_of(a.aval) for a in eqn.inputs])
        return config.reductions and read >= REDUCTION_RATIO * sum(
            [bytes_of(v.aval) for v in eqn.outputs]
        )

    def must_recompute(self, eqn: Equation) -> bool:
        """Whether `eqn` is to be done again whatever it costs; what has effects never is."""
        again = self.flow.joint.recompute
        return not eqn.primitive.effects and not again.isdisjoint(eqn.outputs)

    def is_materialized_in_backward(self, v: Var) -> bool:
        """Whether the backward computation needs `v`, or a view of it, in memory."""
        flow, pending = self.flow, [v]
        if v not in flow.required_forward:
            return False
        while pending:
            for user in flow.users.get(pending.pop(), ()):
                if flow.required_forward.isdisjoint(user.outputs):
                    if not self.config.is_fusible(user.primitive):
                        return True
                    if isinstance(user.primitive, VIEW_PRIMITIVES):
                        pending += user.outputs
        return False

    def fusible_users(self, eqn: Equation) -> list[Equation]:
        """The equations of the forward computation that can be one operation with `eqn`."""
        if not self.config.is_fusible(eqn.primitive):
            return []
        return [e for e in self.forward_users(eqn) if self.config.is_fusible(e.primitive)]

    def forward_users(self, eqn: Equation) -> list[Equation]:
        users = [e for v in eqn.outputs for e in self.flow.users.get(v, ())]
        return [e for e in users if not self.flow.required_forward.isdisjoint(e.outputs)]

    def ban_far_apart(self) -> None:
        """Ban what uses a value again after an operation that ended the run of fusible ones."""
        for eqn in self.flow.recompute_candidates:
            users = self.forward_users(eqn)
            if len(users) < 2:
                continue
            latest = max([self.position[e] for e in users])
            ends = self.first_unfusible(users, latest)
            far = [e for e in self.fusible_users(eqn) if self.position[e] > ends]
            self.banned.update([e for e in far if not self.must_recompute(e)])

    def first_unfusible(self, starts: list[Equation], latest: int) -> int:
        """When, from `starts` on, the first operation comes that cannot be fused; else `latest`."""
        everything = self.flow.joint.program.equations
        pending = sorted([self.position[eqn] for eqn in starts])
        seen = {*pending}
        while pending:
            at = heappop(pending)
            if at >= latest:
                break
            fusible = self.config.is_fusible(everything[at].primitive)
            for user in self.forward_users(everything[at]):
                behind = self.position[user]
                if not (fusible and self.config.is_fusible(user.primitive)):
                    return behind
                if behind not in seen:
                    seen.add(behind)
                    heappush(pending, behind)
        return latest

    def ban_long_chains(self) -> None:
        """Ban an equation of each chain that is longer than what is worth doing again."""
        length: dict[Equation, int] = {}
        for eqn in self.flow.recompute_candidates:
            fusible = self.config.is_fusible(eqn.primitive)
            if eqn in self.banned or not fusible or self.must_recompute(eqn):
                continue
            makers = [self.flow.producers.get(a) for a in eqn.inputs if type(a) is Var]
            length[eqn] = 1 + max([length.get(e, 0) for e in makers if e is not None], default=0)
            if length[eqn] > self.config.chain and not isinstance(eqn.primitive, VIEW_PRIMITIVES):
                self.banned.add(eqn)
                length[eqn] = 0
