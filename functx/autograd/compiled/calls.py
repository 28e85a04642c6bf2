"""The calls of Python in a captured walk: hooks, accumulations into `.grad` and rules that are not traced."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from operator import is_
from typing import TYPE_CHECKING, Any, NamedTuple

from functx.autograd.engine import Walk
from functx.autograd.gradients import Gradient, Total, add_to_grad
from functx.autograd.nodes import Node, SavedValue
from functx.autograd.recorded import Recorded
from functx.autograd.variable import Variable, as_variable, make_variable
from functx.core.typing import ArrayLike

if TYPE_CHECKING:
    from functx.autograd.compiled.run import WalkRun

Gradients = list[Gradient | None]
ArrayCounts = tuple[int, ...]
"""The number of arrays of each of several gradients: 0 for None, 1 for a value, 2 for a value and its mask."""


def array_counts(gradients: Sequence[Gradient | None]) -> ArrayCounts:
    """The number of arrays of each gradient."""
    return tuple([0 if g is None else 1 if g.mask is None else 2 for g in gradients])


def flatten_gradients(gradients: Sequence[Gradient | None]) -> list[Any]:
    """The values and masks of gradients, in order."""
    return [x for g in gradients if g is not None for x in g if x is not None]


def unflatten_gradients(counts: ArrayCounts, arrays: Iterator[Any]) -> Gradients:
    """The gradients that have so many of `arrays` each."""
    return [
        None if not n else Gradient(next(arrays), next(arrays) if n == 2 else None) for n in counts
    ]


class KnownGradients(NamedTuple):
    """The gradients that a walk knows at a call: those of nodes that it has still to visit, and wanted ones.

    `pending` are the positions of these nodes, and `wanted` the numbers of wanted edges, with the counts
    of their `arrays`, which follow each other.
    """

    pending: Sequence[tuple[int, ArrayCounts]]
    wanted: Sequence[tuple[int, ArrayCounts]]
    arrays: Sequence[Any]

    @classmethod
    def of(cls, walk: Walk, position: Callable[[Node], int]) -> KnownGradients:
        """The gradients that a walk knows now."""
        pending: list[tuple[int, Gradients]] = [
            (position(node), gradients) for node, gradients in walk.pending.items()
        ]
        wanted: list[tuple[int, Gradients]] = [
            (i, [g]) for i, g in enumerate(walk.wanted_gradients.values()) if g is not None
        ]
        return cls(
            [(i, array_counts(gradients)) for i, gradients in pending],
            [(i, array_counts(gradients)) for i, gradients in wanted],
            [x for _, gradients in (*pending, *wanted) for x in flatten_gradients(gradients)],
        )

    def replaced(self, replace: Callable[[Sequence[Any]], Sequence[Any]]) -> KnownGradients:
        """The same gradients, with others in place of the arrays."""
        return self._replace(arrays=replace(self.arrays))

    def hand_over(self, walk: Walk, nodes: Sequence[Node]) -> None:
        """Gives them to a walk that goes on node by node."""
        arrays, edges = iter(self.arrays), list(walk.wanted_gradients)
        for position, counts in self.pending:
            walk.pending[nodes[position]] = unflatten_gradients(counts, arrays)
        for i, counts in self.wanted:
            (walk.wanted_gradients[edges[i]],) = unflatten_gradients(counts, arrays)


class Fallback(Exception):
    """A call changed what the rest of the walk does, so that its program is not right any more.

    `visit_rest(walk)` finishes the visit of the node; `call` is the number of the call.
    """

    def __init__(self, visit_rest: Callable[[Walk], None]):
        super().__init__()
        self.visit_rest = visit_rest
        self.call = -1


class WalkCall:
    """A call of Python at node number `position` of a walk.

    `known` are the gradients that are known by then, if the call may end the program.
    """

    known: KnownGradients | None = None
    kind = ""
    calls_user = False
    is_after_rule = False

    def __init__(self, position: int):
        self.position = position

    def __call__(self, run: WalkRun, values: Sequence[Any]) -> Sequence[Any]:
        """The outputs, values of the walk."""
        raise NotImplementedError

    def describe(self, nodes: Sequence[Node]) -> str:
        """The kind of the call and the node, for readers."""
        return f"{self.kind} of {nodes[self.position].label} ({self.position + 1})"

    @property
    def first_unread(self) -> int:
        """The position of the first node whose saved values are read after the call."""
        return self.position + self.is_after_rule


class UserCall(WalkCall):
    """A call of hooks, or of a rule, on gradients with these counts of arrays, whose results have counts `results`.

    It ends the program if the gradients are None elsewhere, if there are other hooks by then, or if a
    value that is still to be read was written to.
    """

    calls_user = True

    def __init__(self, position: int, operands: Sequence[ArrayCounts], results: ArrayCounts):
        super().__init__(position)
        self.operands, self.results = operands, results

    def __call__(self, run: WalkRun, values: Sequence[Any]) -> Sequence[Any]:
        arrays = iter(values)
        operands = [unflatten_gradients(counts, arrays) for counts in self.operands]
        results, visit_rest = self.call_user(run, run.nodes[self.position], operands, [*arrays])
        if array_counts(results) != self.results or run.is_outdated(self):
            raise Fallback(visit_rest)
        return flatten_gradients(results)

    def call_user(
        self, run: WalkRun, node: object, operands: Sequence[Gradients], saved: Sequence[Any]
    ) -> tuple[Gradients, Callable[[Walk], None]]:
        """The new gradients, and the function that finishes the visit of the node."""
        raise NotImplementedError


class ValueHooksCall(UserCall):
    """Calls the hooks of the outputs of a node."""

    kind = "value hooks"

    def call_user(
        self, run: WalkRun, node: Any, operands: Sequence[Gradients], saved: Sequence[Any]
    ) -> tuple[Gradients, Callable[[Walk], None]]:
        new = run.walk.run_value_hooks(node, node.hooks, operands[0])
        return new, lambda walk: walk.visit_after_value_hooks(node, new)


class PrehooksCall(UserCall):
    """Calls the prehooks of a node."""

    kind = "prehooks"

    def call_user(
        self, run: WalkRun, node: Any, operands: Sequence[Gradients], saved: Sequence[Any]
    ) -> tuple[Gradients, Callable[[Walk], None]]:
        new = run.walk.run_prehooks(node, node.hooks, operands[0])
        return new, lambda walk: walk.run_rule(node, new)


class RuleCall(UserCall):
    """Calls the backward rule of a node that is not an operation.

    The operands are the gradients of its outputs, then the arrays that it saved.
    """

    kind = "rule"
    is_after_rule = True

    def call_user(
        self, run: WalkRun, node: Any, operands: Sequence[Gradients], saved: Sequence[Any]
    ) -> tuple[Gradients, Callable[[Walk], None]]:
        with saved_replaced(node, saved):
            new = run.walk.pull_back(node, operands[0])
        return new, lambda walk: walk.finish_visit(node, new, operands[0])


class PosthooksCall(UserCall):
    """Calls the posthooks of a node, on the gradients of its operands and of its outputs."""

    kind = "posthooks"
    is_after_rule = True

    def call_user(
        self, run: WalkRun, node: Any, operands: Sequence[Gradients], saved: Sequence[Any]
    ) -> tuple[Gradients, Callable[[Walk], None]]:
        new = run.walk.run_posthooks(node, node.hooks, *operands)
        return new, lambda walk: walk.send_results(node, new)


class PostAccumulateHooksCall(UserCall):
    """Calls the post-accumulate hooks of a leaf."""

    kind = "post-accumulate hooks"

    def call_user(
        self, run: WalkRun, node: Any, operands: Sequence[Gradients], saved: Sequence[Any]
    ) -> tuple[Gradients, Callable[[Walk], None]]:
        if node.variable.requires_grad:
            run.walk.run_post_accumulate_hooks(node, node.hooks)
        return [], lambda walk: walk.finish_visit(node, [], operands[0])


class AccumulationCall(WalkCall):
    """Adds a gradient to `.grad` of a leaf.

    The values are `.grad` before, the gradient and their sum; or the gradient alone.
    """

    kind = "accumulation"

    def __call__(self, run: WalkRun, values: Sequence[Any]) -> Sequence[Any]:
        x = run.nodes[self.position].variable  # type: ignore[attr-defined]
        gradient, total = values[0], None
        if len(values) == 3:
            before, gradient, value = values
            total = Total(before, value)
        # A hook may have switched the leaf off.
        if x._leaf is not None or x.requires_grad:
            add_to_grad(x, array_of(gradient), run.walk.create_graph, total)
        return ()


class UnpackCall(WalkCall):
    """Loads value number `number`, which saved-tensor hooks have packed."""

    kind = "unpack"
    calls_user = True

    def __init__(self, position: int, number: int):
        super().__init__(position)
        self.number = number

    def __call__(self, run: WalkRun, values: Sequence[Any]) -> Sequence[Any]:
        node: Any = run.nodes[self.position]
        value = run.walk.unpack(node, run.packed[self.number])
        if run.has_written(self.position):
            # The hook would run again in a plain walk.
            run.check_saved(self.position)
        return [value]


class CallbacksCall(WalkCall):
    """Calls what `queue_callback` has queued."""

    kind = "callbacks"

    def describe(self, nodes: Sequence[Node]) -> str:
        return self.kind

    def __call__(self, run: WalkRun, values: Sequence[Any]) -> Sequence[Any]:
        run.walk.run_callbacks()
        return ()


@contextmanager
def saved_replaced(node: Any, saved: Sequence[Any]) -> Iterator[None]:
    """A context in which a node has saved these values, which a compiler function may have computed anew."""
    before = node.saved if saved else None
    remaining = iter(saved)
    new = [replaced(x, next(remaining)) if type(x) is SavedValue else x for x in before or ()]
    if before is None or all(map(is_, before, new)):
        yield
        return
    node.saved = new
    try:
        yield
    finally:
        # A walk that does not keep the graph has freed them.
        if node.saved is new:
            node.saved = before


def replaced(x: SavedValue, value: Recorded | ArrayLike) -> SavedValue:
    """A saved value, or another with the array `value` in its place."""
    recorded = value if type(value) is Recorded else as_variable(value).read()
    return x if recorded is x.recorded else x._replace(recorded=recorded, variable=None)


def array_of(x: object) -> Variable:
    """A value of a walk as a Variable."""
    return make_variable(x, None) if type(x) is Recorded else as_variable(x)
