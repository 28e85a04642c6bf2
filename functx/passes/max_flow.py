"""`FlowNetwork`: minimum cuts of networks by Dinic's maximum flow."""

from __future__ import annotations

from collections import deque

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
