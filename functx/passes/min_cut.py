"""Partitions of joint programs: the values to save are a minimum cut, by Dinic's maximum flow.

The heuristics are those of `torch._functorch.partitioners`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import Any

from functx import ops
from functx.core.dead_code import dce_equations
from functx.core.effects import Effect
from functx.core.errors import ArgumentError, ProgramError, ValueRangeError, type_name
from functx.core.masks import inexact_mask
from functx.core.primitive import Primitive
from functx.core.printing import variable_names
from functx.core.program import Atom, Equation, Program, Var
from functx.core.rewriting import T
from functx.ops.views import Copy
from functx.passes.costs import bytes_of
from functx.passes.memory_planning import (
    RANDOM_PRIMITIVES,
    VIEW_PRIMITIVES,
    JointDataflow,
    JointProgram,
    compute_cost,
    is_cheap_to_recompute,
    values_read,
    write_targets,
)
from functx.transforms.dce import MUST_STAY

INFINITE_CAPACITY = 1 << 80
"""The capacity of an edge that is never cut: more than any flow."""


class FlowNetwork:
    """A network of nodes `0, 1, ...` and edges with capacities, whose minimum cut is computed.

    Edges come in pairs, `e` and its reverse `e ^ 1`, so that flow can be taken back.
    """

    def __init__(self, nodes: int = 0):
        self.edges: list[list[int]] = [[] for _ in range(nodes)]
        self.targets: list[int] = []
        self.capacities: list[int] = []

    def add_node(self) -> int:
        """Adds a node; returns its number."""
        self.edges.append([])
        return len(self.edges) - 1

    def add_edge(self, start: int, end: int, capacity: int) -> None:
        """Adds an edge of that capacity from `start` to `end`."""
        for a, b, room in ((start, end, capacity), (end, start, 0)):
            self.edges[a].append(len(self.targets))
            self.targets.append(b)
            self.capacities.append(room)

    def sink_side(self, source: int, sink: int) -> list[bool]:
        """For each node, whether the minimum cut leaves it on the side of `sink`.

        Of several minimum cuts it is the one next to the sink. Uses the capacities up.
        """
        while True:
            left = self.distances(sink)
            if left[source] < 0:
                return [steps >= 0 for steps in left]
            self.augment_paths(source, sink, left)

    def distances(self, sink: int) -> list[int]:
        """The number of edges with capacity from each node to `sink`; -1 if there is no path."""
        left = [-1] * len(self.edges)
        left[sink] = 0
        pending = deque([sink])
        while pending:
            node = pending.popleft()
            for e in self.edges[node]:
                before = self.targets[e]
                if left[before] < 0 and self.capacities[e ^ 1]:
                    left[before] = left[node] + 1
                    pending.append(before)
        return left

    def augment_paths(self, source: int, sink: int, left: list[int]) -> None:
        """Saturates all shortest paths to `sink`; `left` gives the distances."""
        edges, targets, capacities = self.edges, self.targets, self.capacities
        tried = [0] * len(edges)
        path: list[int] = []
        node = source
        while True:
            if node == sink:
                room = min([capacities[e] for e in path])
                for e in path:
                    capacities[e] -= room
                    capacities[e ^ 1] += room
                full = next(i for i, e in enumerate(path) if not capacities[e])
                node = targets[path[full] ^ 1]
                del path[full:]
            elif tried[node] < len(edges[node]):
                e = edges[node][tried[node]]
                if capacities[e] and left[targets[e]] == left[node] - 1:
                    path.append(e)
                    node = targets[e]
                else:
                    tried[node] += 1
            elif path:
                # A dead end: do not try the edge that led here again.
                node = targets[path.pop() ^ 1]
                tried[node] += 1
            else:
                return


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


@dataclass(frozen=True)
class Partition:
    """A forward and a backward program, and the groups of their inputs and outputs.

    `forward` takes the primals, of which it supplies the captured values itself, and returns the new
    values of `num_mutated` inputs, the results of the function, `num_bases` extra results and the
    saved values. `backward` takes the saved values, then
    the tangents, and returns the gradients; `gradients` has an entry for each primal, the number of
    its gradient, or None. With effect tokens, those of `forward` are its first inputs and outputs,
    those of `backward` its last ones. As a sequence it is the pair of the programs.
    """

    forward: Program
    backward: Program
    num_mutated: int = 0
    num_bases: int = 0
    num_saved: int = 0
    gradients: tuple[int | None, ...] = ()
    num_forward_tokens: int = 0
    num_backward_tokens: int = 0

    def __iter__(self) -> Iterator[Program]:
        return iter((self.forward, self.backward))

    def __getitem__(self, index: int) -> Program:
        return (self.forward, self.backward)[index]

    def __len__(self) -> int:
        return 2

    def gradients_of_primals(self, gradients: Sequence[T]) -> list[T | None]:
        """The gradient in each primal, None without one, of the results of the backward program."""
        return [None if number is None else gradients[number] for number in self.gradients]

    @property
    def mutated(self) -> list[Atom]:
        """The new values of inputs that the forward program returns."""
        start = self.num_forward_tokens
        return self.forward.outputs[start : start + self.num_mutated]

    @property
    def outputs(self) -> list[Atom]:
        """The results of the function that the forward program returns."""
        end = len(self.forward.outputs) - self.num_saved - self.num_bases
        return self.forward.outputs[self.num_forward_tokens + self.num_mutated : end]

    @property
    def bases(self) -> list[Atom]:
        """The bases of aliased results that the forward program returns."""
        end = len(self.forward.outputs) - self.num_saved
        return self.forward.outputs[end - self.num_bases : end]

    @property
    def saved(self) -> list[Atom]:
        """The values that the forward program returns for the backward program."""
        return self.forward.outputs[len(self.forward.outputs) - self.num_saved :]

    @property
    def saved_inputs(self) -> list[Var]:
        """The inputs of the backward program for the saved values."""
        return self.backward.inputs[: self.num_saved]

    @property
    def tangents(self) -> list[Var]:
        """The inputs of the backward program for the cotangents of the results."""
        inputs = self.backward.inputs
        return inputs[self.num_saved : len(inputs) - self.num_backward_tokens]


def default_partition(joint: JointProgram) -> Partition:
    """The partition that recomputes only constants: it saves the forward values that the gradients use.

    Sizes are part of a program, and not saved.
    """
    flow = JointDataflow(joint)
    used: dict[Atom, None] = {}
    for eqn in required_backward_equations(flow):
        used.update(dict.fromkeys(eqn.inputs))
    used.update(dict.fromkeys(flow.gradients))
    saved = flow.required_forward - flow.recomputed_constants
    return partition_at(joint, [v for v in variables_in_order(joint) if v in used and v in saved])


def required_backward_equations(flow: JointDataflow) -> list[Equation]:
    """The equations that the forward program does not need."""
    pure = [eqn for eqn in flow.tangent_free if not eqn.primitive.effects]
    return [*[e for e in pure if flow.required_forward.isdisjoint(e.outputs)], *flow.backward]


def min_cut_partition(joint: JointProgram, config: MinCutConfig) -> Partition:
    """The partition that saves the cheapest values, and recomputes others from them.

    Without gradients it is the default partition.
    """
    flow = JointDataflow(joint)
    if not flow.gradients or not flow.backward:
        return default_partition(joint)
    return partition_at(joint, values_to_save(joint, config))


def variables_in_order(joint: JointProgram) -> Iterable[Var]:
    """The variables of a joint program in the order of their definitions."""
    yield from joint.program.inputs[: joint.num_primals]
    for eqn in joint.program.equations:
        yield from eqn.outputs


def partition_at(joint: JointProgram, saved: Sequence[Var]) -> Partition:
    """The partition that saves those of `saved` that the backward program uses.

    Raises ProgramError, which names the variable, if the gradients need a value that is neither
    saved nor can be computed from saved ones.
    """
    program, flow = joint.program, JointDataflow(joint)
    equations = BackwardExtraction(joint, saved).equations(flow.gradients)
    used = {*flow.gradients, *[a for eqn in equations for a in values_read(eqn)]}
    saved = [v for v in saved if v in used]
    backward_equations = {*flow.backward}
    forward_equations = [eqn for eqn in program.equations if eqn not in backward_equations]
    targets = write_targets(equations)
    # Of an input that is written to, the value from before is saved.
    written = {*targets, *write_targets(forward_equations)}
    copies = {v: Equation.of(Copy(), [v]) for v in saved if v in written}
    returned = [copies[v].outputs[0] if v in copies else v for v in saved]
    outputs = [*flow.outputs, *returned, *targets]
    forward = Program(
        program.name,
        program.inputs[: joint.num_primals],
        dce_equations([*copies.values(), *forward_equations], outputs),
        outputs,
        in_names=program.in_names,
        captured=joint.captured,
    )
    name = f"pullback_{program.name}"
    backward = build_backward_program(name, joint, saved, targets, equations)
    gradients = joint.gradients
    if gradients is None:
        gradients = all_inexact_gradients(joint)
    return Partition(
        forward, backward, joint.num_mutated, joint.num_bases, len(saved) + len(targets), gradients
    )


def all_inexact_gradients(joint: JointProgram) -> tuple[int | None, ...]:
    """The number of the gradient of each primal, if all inexact primals have one and no others."""
    primals = inexact_mask(joint.program.in_avals[: joint.num_primals])
    if sum(primals) != len(joint.program.outputs) - joint.num_outputs:
        return ()
    numbers = count()
    return tuple([next(numbers) if on else None for on in primals])


class BackwardExtraction:
    """The equations of a backward program, each recomputed just before its first use."""

    def __init__(self, joint: JointProgram, saved: Iterable[Var]):
        self.joint = joint
        self.saved: set[Atom] = {*saved}
        self.available = self.saved | {*joint.tangents}
        self.producers = joint.program.def_use.producers

    def equations(self, gradients: Iterable[Atom]) -> list[Equation]:
        """The equations that compute `gradients` from tangents and saved values."""
        flow = JointDataflow(self.joint)
        done: dict[Equation, None] = {}
        for eqn in live_backward_equations(flow, gradients):
            self.add(values_read(eqn), done)
            done[eqn] = None
        self.add(gradients, done)
        return list(done)

    def add(self, atoms: Iterable[Atom], done: dict[Equation, None]) -> None:
        """Adds to `done` the equations that compute `atoms` from available variables."""
        pending = [a for a in atoms if type(a) is Var and a not in self.available]
        while pending:
            v = pending[-1]
            eqn = self.producers.get(v)
            if eqn not in done:
                if eqn is None or eqn.primitive.effects or eqn.part in MUST_STAY:
                    raise self.error(v)
                missing = [
                    a
                    for a in eqn.inputs
                    if type(a) is Var
                    and a not in self.available
                    and self.producers.get(a) not in done
                ]
                if missing:
                    pending += missing
                    continue
                done[eqn] = None
            pending.pop()

    def error(self, v: Var) -> ProgramError:
        program = self.joint.program
        eqn = self.producers.get(v)
        producer = "an input" if eqn is None else eqn.primitive.name
        names = variable_names(program)
        return ProgramError(
            f"partition: the backward program must be computable from what is saved; got "
            f"`{names[v]}`: {v.aval!r}, made by {producer}, which is neither",
            f"saved: {', '.join([names[a] for a in names if a in self.saved]) or 'nothing'}",
            source=None if eqn is None else eqn.source,
        )


def live_backward_equations(flow: JointDataflow, gradients: Iterable[Atom]) -> list[Equation]:
    """The equations with tangents that `gradients` need, and those with effects."""
    return dce_equations(flow.backward, [a for a in gradients if type(a) is Var])


def build_backward_program(
    name: str,
    joint: JointProgram,
    saved: Sequence[Var],
    targets: Sequence[Var],
    equations: Sequence[Equation],
) -> Program:
    """The backward program of saved values, `targets` of its writes and tangents, with own variables."""
    copy_of: dict[Atom, Any] = {v: Var(v.aval) for v in (*saved, *joint.tangents)}
    target_of = {v: Var(v.aval) for v in targets}
    copies = []
    for eqn in equations:
        inputs = [copy_of.get(a, a) for a in eqn.inputs]
        if Effect.WRITE in eqn.primitive.effects:
            inputs[0] = target_of[eqn.inputs[0]]  # type: ignore[index]
        outputs = [copy_of.setdefault(v, Var(v.aval)) for v in eqn.outputs]
        copies.append(eqn.replace(inputs=inputs, outputs=outputs))
    outputs = [copy_of.get(a, a) for a in joint.program.outputs[joint.num_outputs :]]
    inputs = [
        *[copy_of[v] for v in saved],
        *target_of.values(),
        *[copy_of[v] for v in joint.tangents],
    ]
    originals = [*saved, *targets, *joint.tangents]

    def names() -> list[str]:
        known = variable_names(joint.program)
        return [known[v] for v in originals]

    return Program(name, inputs, dce_equations(copies, outputs), outputs, in_names=names)
