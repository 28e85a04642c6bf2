"""The values that a minimum cut may recompute, by the rules of `torch._functorch.partitioners`."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf

from functx import ops
from functx.core.errors import ArgumentError, ValueRangeError, type_name
from functx.core.primitive import Primitive
from functx.core.program import Equation, Var
from functx.passes.costs import bytes_of
from functx.passes.memory_planning import (
    RANDOM_PRIMITIVES,
    VIEW_PRIMITIVES,
    JointDataflow,
    compute_cost,
    is_cheap_to_recompute,
)
from functx.transforms.dce import MUST_STAY


@dataclass(frozen=True)
class MinCutConfig:
    """The values that `min_cut_rematerialization_partition` may recompute.

    `recomputable_ops`, names of primitives, replaces the built-in list of cheap ones, which has no
    random operations. With `aggressive`, everything but matrix products, convolutions, attention
    and the like is recomputed, and the following rules do not apply. `reductions` bans operations
    that read at least four times what they return; `materialized` those whose output the backward
    computation writes to memory in any case; `far_apart` those that are used again behind an
    operation that cannot be fused; `long_chains` chains of more than `chain` fusible operations.
    `distance` is the largest distance to the backward computation, in equations.

    `price` is the cost of recomputing a banned operation, in saved bytes for each byte of its work.
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
        """Whether `primitive` may be recomputed."""
        if self.recomputable_ops is not None:
            return primitive.name in self.recomputable_ops and not primitive.effects
        return is_cheap_to_recompute(primitive)

    def is_fusible(self, primitive: Primitive) -> bool:
        """Whether a compiler fuses `primitive` with its neighbours."""
        return self.is_recomputable(primitive) or isinstance(primitive, RANDOM_PRIMITIVES)


REDUCTION_RATIO = 4
"""Results of reductions that are this many times smaller than the operands are saved."""


class RecomputeHeuristics:
    """The `recompute_candidates` of `flow` that are banned, and the cost of recomputing each."""

    def __init__(self, flow: JointDataflow, config: MinCutConfig, distances: dict[Var, int]):
        self.flow, self.config, self.distances = flow, config, distances
        self.position = {eqn: i for i, eqn in enumerate(flow.joint.program.equations)}
        self.banned = {eqn for eqn in flow.recompute_candidates if self.should_ban(eqn)}
        if not config.aggressive:
            if config.far_apart:
                self.ban_far_apart()
            if config.long_chains:
                self.ban_long_chains()

    def recompute_cost(self, eqn: Equation) -> float:
        """The cost of recomputing `eqn`: 0 unless it is banned, infinite for effects."""
        if eqn not in self.banned:
            return 0
        if eqn.primitive.effects or eqn.part in MUST_STAY:
            return inf
        if isinstance(eqn.primitive, ops.HostPrimitive):
            return inf
        price = self.config.price
        return inf if price == inf else price * compute_cost(eqn)

    def should_ban(self, eqn: Equation) -> bool:
        """Whether `eqn` is banned by its primitive, its distance, or the bytes that it reads."""
        config, primitive = self.config, eqn.primitive
        if eqn.part in MUST_STAY:
            return True
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
        bytes_read = sum([bytes_of(a.aval) for a in eqn.inputs])
        return config.reductions and bytes_read >= REDUCTION_RATIO * sum(
            [bytes_of(v.aval) for v in eqn.outputs]
        )

    def must_recompute(self, eqn: Equation) -> bool:
        """Whether `eqn` is recomputed at any cost: a constant, or as `recompute` says.

        Effects never are.
        """
        if not self.flow.recomputed_constants.isdisjoint(eqn.outputs):
            return True
        moves = not eqn.primitive.effects and eqn.part not in MUST_STAY
        return moves and not self.flow.joint.recompute.isdisjoint(eqn.outputs)

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
        """The forward equations that can be fused with `eqn`."""
        if not self.config.is_fusible(eqn.primitive):
            return []
        return [e for e in self.forward_users(eqn) if self.config.is_fusible(e.primitive)]

    def forward_users(self, eqn: Equation) -> list[Equation]:
        users = [e for v in eqn.outputs for e in self.flow.users.get(v, ())]
        return [e for e in users if not self.flow.required_forward.isdisjoint(e.outputs)]

    def ban_far_apart(self) -> None:
        """Bans uses of a value behind an operation that ends a run of fusible ones."""
        for eqn in self.flow.recompute_candidates:
            users = self.forward_users(eqn)
            if len(users) < 2:
                continue
            latest = max([self.position[e] for e in users])
            ends = self.first_unfusible(users, latest)
            far = [e for e in self.fusible_users(eqn) if self.position[e] > ends]
            self.banned.update([e for e in far if not self.must_recompute(e)])

    def first_unfusible(self, starts: list[Equation], latest: int) -> int:
        """The position of the first unfusible operation behind `starts`, at most `latest`."""
        everything = self.flow.joint.program.equations
        pending = sorted([self.position[eqn] for eqn in starts])
        seen = {*pending}
        while pending:
            position = heappop(pending)
            if position >= latest:
                break
            fusible = self.config.is_fusible(everything[position].primitive)
            for user in self.forward_users(everything[position]):
                user_position = self.position[user]
                if not (fusible and self.config.is_fusible(user.primitive)):
                    return user_position
                if user_position not in seen:
                    seen.add(user_position)
                    heappush(pending, user_position)
        return latest

    def ban_long_chains(self) -> None:
        """Bans an equation of each chain that is too long to recompute."""
        length: dict[Equation, int] = {}
        for eqn in self.flow.recompute_candidates:
            fusible = self.config.is_fusible(eqn.primitive)
            if eqn in self.banned or not fusible or self.must_recompute(eqn):
                continue
            producers = [self.flow.producers.get(a) for a in eqn.inputs if type(a) is Var]
            length[eqn] = 1 + max([length.get(e, 0) for e in producers if e is not None], default=0)
            if length[eqn] > self.config.chain and not isinstance(eqn.primitive, VIEW_PRIMITIVES):
                self.banned.add(eqn)
                length[eqn] = 0
