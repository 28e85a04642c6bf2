"""Regions of a graph: the nodes on all ways to some stops, the loops among them, and where ways meet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from functx.transforms.explore.graph import FlowNode


class Region:
    """The nodes on the ways from `starts` to the nodes `stops`, which are among them.

    `position` orders them: edges go to later nodes, or to one of the same loop. Nodes of one loop, a strongly
    connected component, have one position.
    """

    def __init__(self, starts: Sequence[FlowNode], stops: Sequence[FlowNode]):
        self.stops = frozenset(stops)
        self.position: dict[FlowNode, int] = {}
        self._loops: dict[int, list[FlowNode]] = {}
        components = [*self._components(starts)]
        for i, nodes in enumerate(reversed(components)):
            self.position.update(dict.fromkeys(nodes, i))
            if len(nodes) > 1 or nodes[0] in self.after(nodes[0]):
                self._loops[i] = nodes

    def after(self, node: FlowNode) -> list[FlowNode]:
        """The nodes that the edges of a node lead to; none after a stop."""
        return [] if node in self.stops else [edge.target for edge in node.edges.values()]

    def loop(self, node: FlowNode) -> list[FlowNode]:
        """The nodes of the loop that a node is in, in the order in which ways come to them; empty outside."""
        return self._loops.get(self.position[node], [])

    def join(self, starts: Sequence[FlowNode], stops: Sequence[FlowNode]) -> FlowNode | None:
        """The first node that all ways from `starts` to `stops` pass; None if there is none.

        Follows all ways at once, the node farthest behind first, until one is left.
        """
        waiting: dict[int, dict[FlowNode, None]] = {}
        ends = self.stops.union(stops)

        def arrive(nodes: Sequence[FlowNode]) -> None:
            for node in nodes:
                waiting.setdefault(self.position[node], {})[node] = None

        arrive(starts)
        while waiting:
            first = min(waiting)
            nodes = [*waiting[first]]
            if len(waiting) == len(nodes) == 1:
                return nodes[0]
            if not ends.isdisjoint(nodes):
                return None
            del waiting[first]
            for node in self._loops.get(first, nodes):
                arrive([n for n in self.after(node) if self.position[n] != first])
        return None

    def _components(self, starts: Sequence[FlowNode]) -> Iterator[list[FlowNode]]:
        """The strongly connected components, each after those that its edges lead to (Tarjan 1972)."""
        number: dict[FlowNode, int] = {}
        lowest: dict[FlowNode, int] = {}
        open_nodes: dict[FlowNode, None] = {}
        pending: list[tuple[FlowNode, Iterator[FlowNode]]] = []

        def enter(node: FlowNode) -> None:
            number[node] = lowest[node] = len(number)
            open_nodes[node] = None
            pending.append((node, iter(self.after(node))))

        for start in starts:
            if start not in number:
                enter(start)
            while pending:
                node, following = pending[-1]
                target = next(following, None)
                if target is None:
                    pending.pop()
                    if pending:
                        before = pending[-1][0]
                        lowest[before] = min(lowest[before], lowest[node])
                    if lowest[node] == number[node]:
                        nodes = [open_nodes.popitem()[0]]
                        while nodes[-1] is not node:
                            nodes.append(open_nodes.popitem()[0])
                        yield nodes[::-1]
                elif target not in number:
                    enter(target)
                elif target in open_nodes:
                    lowest[node] = min(lowest[node], number[target])
