"""Partitions of joint programs: the values to save are a minimum cut."""

from __future__ import annotations

from math import inf

from functx.core.program import Atom, Var
from functx.passes.costs import bytes_of
from functx.passes.max_flow import INFINITE_CAPACITY, FlowNetwork
from functx.passes.memory_planning import JointDataflow, JointProgram
from functx.passes.partition import Partition, default_partition, partition_at
from functx.passes.recompute_heuristics import MinCutConfig, RecomputeHeuristics

_SOURCE, _SINK = 0, 1
_DISTANCE_FACTOR, _MAX_DISTANCE = 1.1, 100
# Capacities are integers; the scale keeps small differences of cost.
_CAPACITY_SCALE = 1024


def values_to_save(joint: JointProgram, config: MinCutConfig) -> list[Var]:
    """The variables to save for the backward computation, in the order of their equations.

    In the network, each variable is an edge from the node that computes it to the node where it is
    available, with the cost of saving it as capacity. Edges lead on to the equations that use it,
    and to the sink if these depend on tangents.
    """
    flow = JointDataflow(joint)
    distances = distances_to_backward(flow)
    bans = RecomputeHeuristics(flow, config, distances)
    network = FlowNetwork(2)
    producer_node: dict[Atom, int] = {}
    available_node: dict[Var, int] = {}

    def add_value(v: Var, producer: int) -> None:
        producer_node[v] = producer
        available_node[v] = network.add_node()
        network.add_edge(producer, available_node[v], save_cost(v, flow, config, distances))

    for v in joint.program.inputs[: joint.num_primals]:
        if v in distances:
            add_value(v, _SOURCE)
    for eqn in flow.recompute_candidates:
        price = bans.recompute_cost(eqn)
        producer = _SOURCE if price == inf else network.add_node()
        if producer != _SOURCE:
            if price:
                network.add_edge(_SOURCE, producer, int(price * _CAPACITY_SCALE) + 1)
            for atom in dict.fromkeys(eqn.inputs):
                if type(atom) is Var:
                    network.add_edge(available_node[atom], producer, INFINITE_CAPACITY)
        for v in eqn.outputs:
            add_value(v, producer)
    for v in flow.backward_inputs:
        network.add_edge(available_node[v], _SINK, INFINITE_CAPACITY)
    sink_side = network.sink_side(_SOURCE, _SINK)
    return [
        v
        for v in available_node
        if sink_side[available_node[v]] and not sink_side[producer_node[v]]
    ]


def distances_to_backward(flow: JointDataflow) -> dict[Var, int]:
    """The distance of each variable to the backward computation, in equations."""
    distances = dict.fromkeys(flow.backward_inputs, 1)
    for eqn in reversed(flow.recompute_candidates):
        away = min([distances[v] for v in eqn.outputs if v in distances]) + 1
        for atom in eqn.inputs:
            if type(atom) is Var:
                distances[atom] = min(away, distances.get(atom, away))
    return distances


def save_cost(v: Var, flow: JointDataflow, config: MinCutConfig, distances: dict[Var, int]) -> int:
    """The cost of saving `v`: its bytes, weighted by the distance to the backward computation.

    It is doubled for a value that would otherwise never be in memory, since all users are fused.
    """
    if v in flow.recomputed_constants:
        return INFINITE_CAPACITY
    if v in flow.joint.free_to_save:
        return 0
    if v in flow.joint.recompute:
        return INFINITE_CAPACITY
    weight = _DISTANCE_FACTOR ** min(distances.get(v, _MAX_DISTANCE), _MAX_DISTANCE)
    producer = flow.producers.get(v)
    in_memory = producer is None or not (
        config.is_fusible(producer.primitive)
        and v not in flow.outputs
        and all([config.is_fusible(user.primitive) for user in flow.users.get(v, ())])
    )
    return int(bytes_of(v.aval) * weight * (_CAPACITY_SCALE if in_memory else 2 * _CAPACITY_SCALE))


def min_cut_partition(joint: JointProgram, config: MinCutConfig) -> Partition:
    """The partition that saves the cheapest values, and recomputes others from them.

    Without gradients it is the default partition.
    """
    flow = JointDataflow(joint)
    if not flow.gradients or not flow.backward:
        return default_partition(joint)
    return partition_at(joint, values_to_save(joint, config))
