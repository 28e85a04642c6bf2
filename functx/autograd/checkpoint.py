"""`checkpoint`: calls whose saved values are recomputed in the walk."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, ref

import numpy as np

from functx.autograd.backward import backward
from functx.autograd.engine import Walk, is_checkpoint_valid, running_walk
from functx.autograd.gradients import Gradient
from functx.autograd.modes import check_outside_transforms, current_modes, grad_mode
from functx.autograd.nodes import (
    Edge,
    Node,
    SavedValue,
    freed_error,
    operand_watch,
)
from functx.autograd.recorded import Recorded
from functx.autograd.recording import current_recording
from functx.autograd.saved import CURE_IN_TRANSFORMS, PackedValue, SavedTensorHooks, pack_saved
from functx.autograd.variable import Dual, Variable, make_variable
from functx.autograd.views import VersionCounter
from functx.core import tree
from functx.core.backend import backend
from functx.core.context import ContextValue
from functx.core.errors import ArgumentError, CheckpointError, SavedValueError
from functx.core.generator_state import DEFAULT_STATE, StateWords
from functx.core.program import Program, Var
from functx.core.replaced_state import replaced_state, state_of_call
from functx.core.source_info import warn_at_user_line
from functx.core.types import ShapedArray, is_inexact
from functx.core.typing import Function, PyTree
from functx.custom.checkpoint import Checkpoint
from functx.transforms.argument_names import check_callable


def checkpoint(
    function: Function,
    *args: PyTree,
    use_reentrant: bool = False,
    preserve_rng_state: bool = True,
    **kwargs: PyTree,
) -> PyTree:
    """`function(*args, **kwargs)`, whose intermediate values are recomputed during the walk.

    In place of the values that its nodes save, the call keeps its arguments as they are now. A walk
    that needs one of the values calls `function` once more, up to the last value that was saved. With
    `preserve_rng_state` the recomputation repeats the draws of the global generators of Python, NumPy and
    functx, and leaves them where they were; draws with keys depend on their keys alone. What `function` writes to Variables that it
    captures is written once, since the recomputation finds the values that they had in the call. Calls may
    be nested.

    With `use_reentrant` the walk calls `function` and `backward` inside the walk, which also adds
    gradients to the leaves that `function` captures. Then there are no keywords, no `autograd.grad`,
    no `inputs` of `backward` and no second derivatives.

    Raises CheckpointError in a walk where the recomputation saves fewer values, or values of other
    types, and for a walk that the re-entrant form does not support; SavedValueError where a Variable
    that `function` captures, and does not write to, was written to since.

    >>> from functx import numpy as np
    >>> from functx.autograd import Variable, checkpoint
    >>> x = Variable(0.0, requires_grad=True)
    >>> checkpoint(lambda x: np.sin(np.sin(x)), x).backward()
    >>> print(x.grad)
    1.0
    """
    check_callable(function, "checkpoint")
    check_outside_transforms("checkpoint", CURE_IN_TRANSFORMS)
    state = random_state() if preserve_rng_state else None
    if use_reentrant:
        if kwargs:
            raise ArgumentError(
                f"checkpoint: the re-entrant form takes no keywords; got {', '.join(kwargs)}",
                fix="Pass use_reentrant=False.",
            )
        return call_reentrant(function, args, state)
    with CheckpointedCall(function, args, kwargs, state) as call, call.captures.noted():
        return function(*args, **kwargs)


class Arguments:
    """The arguments of a call, saved for its recomputation."""

    def __init__(self, args: PyTree):
        leaves, self.structure = tree.flatten(args)
        self.leaves = [self.saved(x) for x in leaves]

    @staticmethod
    def saved(x: object) -> Any:
        """An argument with its present value, packed if saved-tensor hooks are active."""
        if isinstance(x, np.ndarray):
            return np.array(x)
        if not isinstance(x, Variable):
            return x
        counter = x.version_counter
        return pack_saved(SavedValue(x.read(), x.edge, counter, counter.version, None, x._dual))

    @property
    def edges(self) -> list[Edge | None]:
        """The edges of the arguments."""
        return [getattr(x, "edge", None) for x in self.leaves]

    def load(self, make: Callable[[Recorded, Edge | None], Variable]) -> PyTree:
        """The arguments, whose Variables come from `make`."""
        variables = [x for x in self.leaves if isinstance(x, (SavedValue, PackedValue))]
        values = [x.recorded if type(x) is SavedValue else x.load("checkpoint") for x in variables]
        edges = [x.edge for x in variables]
        loaded = [make(x, edge) for x, edge in zip(behind_barrier(values), edges, strict=True)]
        for argument, x in zip(loaded, variables, strict=True):
            argument._dual = x.dual
        remaining = iter(loaded)
        return tree.unflatten(
            self.structure,
            [
                next(remaining) if isinstance(x, (SavedValue, PackedValue)) else x
                for x in self.leaves
            ],
        )


def behind_barrier(values: Sequence[Recorded]) -> list[Recorded]:
    """The values; the compiler does not merge the recomputation from them with the first call."""
    if not values:
        return []
    inputs = [Var(x.aval) for x in values]
    program = Program("arguments", inputs, [], inputs)
    barrier = Checkpoint(program, prevent_cse=True, differentiated=True)
    return current_recording().record(barrier, values)


class CheckpointedCall(SavedTensorHooks):
    """The hooks of a call whose saved values are recomputed: they keep its arguments and types."""

    @property
    def label(self) -> str:
        return "checkpoint"

    def __init__(
        self, function: Function, args: PyTree, kwargs: PyTree, state: GlobalRandomState | None
    ):
        self.function, self.state, self.replaced = function, state, replaced_state()
        self.arguments = Arguments((args, kwargs))
        self.avals: list[ShapedArray] = []
        self.captures = CapturedVariables()
        self.recomputed: WeakKeyDictionary[Walk, list[Recorded | None]] = WeakKeyDictionary()

    def __enter__(self) -> CheckpointedCall:  # type: ignore[override]
        super().__enter__()
        return self

    def pack(self, x: Variable) -> int:
        self.avals.append(x.aval_)
        return len(self.avals) - 1

    def unpack(self, packed: int) -> Variable:
        walk = running_walk.get()
        values = None if walk is None else self.recomputed.get(walk)
        if values is None or values[packed] is None:
            values = self.recompute()
            if walk is not None:
                self.recomputed[walk] = values
        value, values[packed] = values[packed], None
        assert value is not None
        return make_variable(value, None)

    def recompute(self) -> list[Recorded | None]:
        """The saved values, by another call of the function."""
        args, kwargs = self.arguments.load(make_variable)
        recomputation = Recomputation(self.avals)
        with (
            state_of_call(self.replaced),
            random_state_of(self.state),
            grad_mode(True),
            self.captures.repeated(),
            recomputation,
        ):
            try:
                self.function(*args, **kwargs)
            except StopRecomputation:
                pass
            else:
                raise CheckpointError(
                    "checkpoint: the recomputation must save as many values as the first call; "
                    f"got {len(recomputation.values)}, expected {len(self.avals)}",
                    fix="The function must compute the same each time: no global state, no counters.",
                )
        return recomputation.values


class Recomputation(SavedTensorHooks):
    """The hooks that collect the values of a recomputation, and stop it once it has all."""

    @property
    def label(self) -> str:
        return "checkpoint"

    def __init__(self, avals: Sequence[ShapedArray]):
        self.avals = avals
        self.values: list[Recorded | None] = []

    def pack(self, x: Variable) -> Variable:
        position = len(self.values)
        if position == len(self.avals):
            # The function computes while its recomputation ends.
            raise StopRecomputation
        first = self.avals[position]
        if (x.shape, x.dtype) != (first.shape, first.dtype):
            raise CheckpointError(
                "checkpoint: the recomputation must save values of the types of the first call; "
                f"got {x.aval_!r} at position {position}, expected {first!r}",
                fix="The function must compute the same each time: no global state, no counters.",
            )
        self.values.append(x.read())
        if len(self.values) == len(self.avals):
            raise StopRecomputation
        return x

    def unpack(self, packed: Variable) -> Variable:
        return packed


class StopRecomputation(BaseException):
    """Stops a recomputation; functions of the user do not catch it as an Exception."""


class FirstUse(NamedTuple):
    """How a function found a Variable that it captures when it first used it.

    `value`, with history and tangent, is kept if the function writes to the Variable and it is no view.
    """

    variable: ref[Variable]
    value: tuple[Recorded, Edge | None, Dual | None] | None
    version: int
    writes: int
    is_written: bool = True


class CapturedVariables:
    """The captured Variables of a function.

    During the recomputation, the Variables that it writes to have the values of the first call again; all
    others must keep their values until then.
    """

    def __init__(self) -> None:
        self._uses: dict[int, FirstUse] = {}

    @contextmanager
    def noted(self) -> Iterator[None]:
        """The context of the first call, which notes its operands."""
        recording = current_recording()
        first_result = recording.count

        def is_made_in_call(x: Variable) -> bool:
            # Not known once the recording has run.
            value = x._recorded
            return value.recording is recording and value.number >= first_result

        def note(operands: Sequence[Variable]) -> None:
            for x in operands:
                while self._find(x) is None and (x._view is not None or not is_made_in_call(x)):
                    x = self._note(x)

        with watching(note):
            yield
        for i, use in [*self._uses.items()]:
            x = use.variable()
            if x is None:
                # A captured Variable outlives the call.
                del self._uses[i]
            elif x.version_counter.writes == use.writes:
                self._uses[i] = use._replace(value=None, is_written=False)

    @contextmanager
    def repeated(self) -> Iterator[None]:
        """The context of the recomputation; SavedValueError for an operand that changed since the call."""
        used = [(x, use) for use in self._uses.values() if (x := use.variable()) is not None]
        written = [(x, owner_of(x), use) for x, use in used if use.value is not None]
        counters = {x.version_counter: new_counter(x, use) for x, _, use in written}
        variables = [x for x, _ in used] + [owner for _, owner, _ in written]
        states = {
            id(x): (x, x._recorded, x._edge, x._dual, x._writes_read, x._counter)
            for x in variables
            if x._counter in counters
        }
        for x, *_ in states.values():
            # For a view, the number of writes changes, so that it is taken again.
            x._counter = counters[x.version_counter]
        for x, owner, use in written:
            owner._recorded, x._edge, x._dual = use.value  # type: ignore[misc]
            owner._writes_read = use.writes
        try:
            with watching(self._check):
                yield
        finally:
            for x, recorded, edge, dual, writes_read, counter in states.values():
                x._recorded, x._edge, x._dual = recorded, edge, dual
                x._writes_read, x._counter = writes_read, counter

    def _find(self, x: Variable) -> FirstUse | None:
        use = self._uses.get(id(x))
        return use if use is not None and use.variable() is x else None

    def _note(self, x: Variable) -> Variable:
        """Notes an operand; returns the array that it is a view of, or itself."""
        counter, view = x.version_counter, x._view
        value = (x._recorded, x._edge, x._dual) if view is None else None
        self._uses[id(x)] = FirstUse(ref(x), value, counter.version, counter.writes)
        return x if view is None else view.base

    def _check(self, operands: Sequence[Variable]) -> None:
        for x in operands:
            use = self._find(x)
            if use is not None and not use.is_written and x.version_counter.writes != use.writes:
                raise SavedValueError(
                    "checkpoint: a Variable that the function captures must keep its value until the "
                    f"walk, which recomputes the function; got a write to {x.aval_!r}",
                    fix="Pass it as an argument, or write to it after backward().",
                )


def owner_of(x: Variable) -> Variable:
    """The array that owns the memory of `x`, which is `x` unless it was detached."""
    return x if x._view is None else x._view.base


def new_counter(x: Variable, use: FirstUse) -> VersionCounter:
    """A counter for a recomputation, whose writes do not count for what was saved before."""
    counter = VersionCounter(x.is_inference())
    counter.version, counter.writes = use.version, use.writes
    return counter


def watching(
    watch: Callable[[Sequence[Variable]], None],
) -> ContextValue[Callable[[Sequence[Any]], None] | None]:
    """A context in which `watch` gets the Variables among the operands of each operation."""
    return ContextValue(
        operand_watch, lambda args: watch([x for x in args if isinstance(x, Variable)])
    )


class GlobalRandomState(NamedTuple):
    """The states of the global generators: of Python, of NumPy, and the default one of functx.

    The last is None where it must not be read: JAX may trace a function that does not draw.
    """

    python: tuple[Any, ...]
    numpy: Any
    words: StateWords | None


def random_state() -> GlobalRandomState:
    """The states of the global generators of Python and NumPy, and of the default one of functx."""
    words = None if backend.jax_is_tracing() else DEFAULT_STATE.read()
    return GlobalRandomState(random.getstate(), np.random.get_state(), words)


def set_random_state(state: GlobalRandomState) -> None:
    """Sets the states of the global generators of Python and NumPy, and of the default one of functx."""
    random.setstate(state.python)
    np.random.set_state(state.numpy)
    if state.words is not None:
        DEFAULT_STATE.store(state.words)


@contextmanager
def random_state_of(state: GlobalRandomState | None) -> Iterator[None]:
    """A context in which the generators continue from `state`, if it is known."""
    if state is None:
        yield
        return
    before = random_state()
    set_random_state(state)
    try:
        yield
    finally:
        set_random_state(before)


def call_reentrant(function: Function, args: PyTree, state: GlobalRandomState | None) -> PyTree:
    """The result of a call as one node, whose pullback recomputes the call."""
    arguments = Arguments((args, {}))
    if not any(arguments.edges):
        warn_at_user_line(
            "checkpoint: no argument requires a gradient, so the re-entrant form gives none; pass "
            "use_reentrant=False",
            UserWarning,
        )
    captures = CapturedVariables()
    with grad_mode(False), captures.noted():
        leaves, structure = tree.flatten(function(*args))
    outs = [x for x in leaves if isinstance(x, Variable)]
    node = ReentrantNode(function, arguments, captures, state, [x.aval_ for x in outs])
    results = iter([node.result(i, x) for i, x in enumerate(outs)])
    return tree.unflatten(
        structure, [next(results) if isinstance(x, Variable) else x for x in leaves]
    )


class ReentrantNode(Node):
    """The node of a re-entrant checkpoint: its pullback recomputes the call inside the walk."""

    __slots__ = ("arguments", "captures", "function", "replaced", "state")

    def __init__(
        self,
        function: Function,
        arguments: Arguments,
        captures: CapturedVariables,
        state: GlobalRandomState | None,
        outs: Sequence[ShapedArray],
    ):
        super().__init__("checkpoint", arguments.edges, outs)
        self.function, self.captures, self.state = function, captures, state
        self.replaced = replaced_state()
        self.arguments: Arguments | None = arguments

    def result(self, i: int, x: Variable) -> Variable:
        """Output number `i`, with the history of this node."""
        differentiable = (
            any(self.edges) and current_modes().records_gradients and is_inexact(x.dtype)
        )
        return make_variable(x.read(), (self, i) if differentiable else None)

    def pull_back(self, walk: Walk, gradients: Sequence[Gradient | None]) -> list[Gradient | None]:
        """The gradients of the arguments, by a nested walk."""
        if not is_checkpoint_valid() or walk.create_graph:
            raise CheckpointError(
                "checkpoint: the re-entrant form works with backward() alone; got a walk for chosen "
                "inputs (autograd.grad, or inputs=), or one with create_graph",
                fix="Pass use_reentrant=False.",
            )
        if self.arguments is None:
            raise freed_error(self.label)
        leaves: list[Variable] = []
        args, _ = self.arguments.load(lambda x, edge: leaf_of(x, edge, leaves))
        if not walk.retain_graph:
            self.arguments = None
        with (
            state_of_call(self.replaced),
            random_state_of(self.state),
            grad_mode(True),
            self.captures.repeated(),
        ):
            results = [x for x in tree.leaves(self.function(*args)) if isinstance(x, Variable)]
        pairs = [
            (x, walk.variable_of(gradient))
            for x, gradient in zip(results, gradients, strict=True)
            if gradient is not None and x.requires_grad
        ]
        if pairs:
            roots, values = zip(*pairs, strict=True)
            backward(roots, values)
        of_leaves = iter([None if x.grad is None else walk.gradient_of(x.grad) for x in leaves])
        return [None if edge is None else next(of_leaves) for edge in self.edges]


def leaf_of(x: Recorded, edge: Edge | None, leaves: list[Variable]) -> Variable:
    """An argument of the recomputation; if it has a gradient, a leaf, which `leaves` collects."""
    argument = make_variable(x, None)
    if edge is not None:
        leaves.append(argument.requires_grad_())
    return argument
