"""What to save for a backward computation: the cheapest cut between it and the primals."""

from __future__ import annotations

from math import inf
from typing import Any

from functx.core.program import Var
from functx.transforms.planning.bans import MinCutConfig, RecomputeHeuristics
from functx.transforms.planning.costs import bytes_of
from functx.transforms.planning.joint import JointDataflow, JointProgram
from functx.transforms.planning.max_flow import INFINITE_CAPACITY, FlowNetwork

_SOURCE, _SINK = 0, 1
_DISTANCE_FACTOR, _MAX_DISTANCE = 1.1, 100
# Capacities are whole numbers, and small arrays are to differ too.
_CAPACITY_SCALE = 1024


def values_to_save(joint: JointProgram, config: MinCutConfig) -> list[Var]:
    """The variables to keep of what is computed before the backward computation, in order.

    Each has an edge with the capacity of its cost from where it can be computed to where it is
    at hand. What uses it leads on from there, to the sink if that needs tangents.
    """
    flow = JointDataflow(joint)
    distances = distances_to_backward(flow)
    bans = RecomputeHeuristics(flow, config, distances)
    network = FlowNetwork(2)
    made: dict[Any, int] = {}
    at_hand: dict[Any, int] = {}

    def add_value(v: Var, maker: int) -> None:
        made[v] = maker
        at_hand[v] = network.add_node()
        network.add_edge(maker, at_hand[v], save_cost(v, flow, config, distances))

    for v in joint.program.inputs[: joint.primals]:
        if v in distances:
            add_value(v, _SOURCE)
    for eqn in flow.recompute_candidates:
        price = bans.recompute_cost(eqn)
        maker = _SOURCE if price == inf else network.add_node()
        if maker != _SOURCE:
            if price:
                network.add_edge(_SOURCE, maker, int(price * _CAPACITY_SCALE) + 1)
            for atom in dict.fromkeys(eqn.inputs):
                if type(atom) is Var:
                    network.add_edge(at_hand[atom], maker, INFINITE_CAPACITY)
        for v in eqn.outputs:
            add_value(v, maker)
    for v in flow.backward_inputs:
        network.add_edge(at_hand[v], _SINK, INFINITE_CAPACITY)
    behind = network.sink_side(_SOURCE, _SINK)
    return [v for v in at_hand if behind[at_hand[v]] and not behind[made[v]]]


def distances_to_backward(flow: JointDataflow) -> dict[Any, int]:
    """For each variable that the backward computation needs, by how many equations it is away."""
    distances = dict.fromkeys(flow.backward_inputs, 1)
    for eqn in reversed(flow.recompute_candidates):
        away = min([distances[v] for v in eqn.outputs if v in distances]) + 1
        for atom in eqn.inputs:
            if type(atom) is Var:
                distances[atom] = min(away, distances.get(atom, away))
    return distances


def save_cost(v: Var, flow: JointDataflow, config: MinCutConfig, distances: dict[Any, int]) -> int:
    """What it costs to save `v`: its bytes, more the farther away the backward computation is.

    Twice that for what would otherwise never be in memory, since all that uses it is fused.
    """
    if v in flow.joint.free_to_save:
        return 0
    if v in flow.joint.recompute:
        return INFINITE_CAPACITY
    weight = _DISTANCE_FACTOR ** min(distances.get(v, _MAX_DISTANCE), _MAX_DISTANCE)
    maker = flow.producers.get(v)
    in_memory = maker is None or not (
        config.is_fusible(maker.primitive)
        and v not in flow.outputs
        and all([config.is_fusible(user.primitive) for user in flow.users.get(v, ())])
    )
    return int(bytes_of(v.aval) * weight * (_CAPACITY_SCALE if in_memory else 2 * _CAPACITY_SCALE))
