"""`Variable`: an array that remembers how it was computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from copy import deepcopy
from operator import attrgetter
from threading import RLock
from typing import Any, ClassVar, NamedTuple
from weakref import ref

import jax
import numpy as np

from functx import numpy as fnp
from functx.autograd import value_hooks, views
from functx.autograd.conversions import ConvertibleArray
from functx.autograd.hooks import NodeHooks, dead_reference
from functx.autograd.modes import check_outside_transforms, current_modes
from functx.autograd.nodes import AccumulateGrad, Edge, Node
from functx.autograd.recorded import Recorded, capture_in_step, constant, step_traces
from functx.autograd.recording import Recording
from functx.autograd.views import VersionCounter, ViewOf
from functx.core.builder import Builder
from functx.core.errors import (
    ArgumentError,
    AutogradError,
    ConcretizationError,
    ForeignCodeError,
    GradAssignmentError,
    InferenceArrayError,
    LostDerivativeError,
    RequiresGradError,
    WrapperConversionError,
    short_repr,
    type_name,
)
from functx.core.primitive import Primitive
from functx.core.program import Atom, Literal, Program, Var
from functx.core.strides import row_major_strides
from functx.core.tracer import aval_of, context_builder, current_builder, variables
from functx.core.tracing import eval_context, refuse_in_transform
from functx.core.types import is_inexact
from functx.core.typing import ArrayOrList, DTypeLike, NumPyArray
from functx.core.wrappers import is_wrapper


class Dual(NamedTuple):
    """A tangent, and the level of `forward_ad` that it belongs to."""

    level: int
    tangent: Variable


open_level: ContextVar[int | None] = ContextVar("open_level", default=None)
"""The level of `forward_ad` that is open in this context."""


@contextmanager
def closed_level() -> Iterator[None]:
    """A context in which no level of `forward_ad` is open, so that tangents are left alone."""
    token = open_level.set(None)
    try:
        yield
    finally:
        open_level.reset(token)


class Variable(ConvertibleArray):
    """An array that records what is done with it, so that `backward` can differentiate it.

    It has NumPy's operators and methods, and all functions of functx take it. Operations are
    recorded, and run when a value is read. With `requires_grad` it is a leaf, whose `grad`
    collects gradients. Like a NumPy array it can be written to, and views share its memory.

    The value is copied as by `functx.numpy.array`: outside `jax.enable_x64()`, 64-bit numbers of
    arrays become 32-bit ones, also with a 64-bit `dtype`.

    Raises RequiresGradError for `requires_grad` of integers or booleans, and AutogradError for the
    traced values of a transform.

    >>> from functx.autograd import Variable
    >>> x = Variable([1.0, 2.0], requires_grad=True)
    >>> (x * x).sum().backward()
    >>> print(x.grad)
    [2. 4.]
    """

    _recorded: Recorded
    _edge: Edge | None
    _counter: VersionCounter | None = None
    _writes_read: int = 0
    _view: ViewOf | None = None
    _strides: tuple[int, ...] | None = None
    _leaf: Callable[[], Node | None] | None = None
    _lock: Any = None
    _hooks: NodeHooks | None = None
    _grad: Variable | None = None
    _retains_grad: bool = False
    _state_kind: Any = None

    gradient_checks: ClassVar[dict[str, Callable[..., bool]]] = {}
    """The functions that `gradcheck` and `gradgradcheck` of `functx.testing` call for Variables."""
    _dual: Dual | None = None

    def __init__(self, value: ArrayOrList, requires_grad: bool = False, dtype: DTypeLike = None):
        if isinstance(value, Variable):
            recorded = value.read()
        elif isinstance(value, jax.core.Tracer):
            error = AutogradError(
                f"Variable: the value must be known; got a traced one, {aval_of(value)!r}",
                fix="Inside a transform, use the traced array itself; functx.grad differentiates it.",
            )
            refuse_in_transform(error, getattr(value, "builder", None))
        elif is_wrapper(value):
            raise WrapperConversionError(
                f"Variable: an array made of arrays must not be converted; got {type_name(value)}",
                fix="Make an instance whose inner arrays are Variables.",
            )
        else:
            # A copy, since its owner may write to a NumPy array.
            with eval_context() if current_builder.get() is not None else nullcontext():
                recorded = constant(strong(fnp.array(value, dtype)))
        self._recorded, self._edge = recorded, None
        if current_modes().inference:
            self._counter = VersionCounter(True)
        if requires_grad is not False:
            self._require_grad(requires_grad)

    @property
    def version_counter(self) -> VersionCounter:
        """The count of writes to its memory, which is made when it is first needed."""
        counter = self._counter
        if counter is None:
            with _making:
                # Another thread may have made it meanwhile.
                counter = self._counter
                if counter is None:
                    counter = self._counter = VersionCounter(False)
        return counter

    @version_counter.setter
    def version_counter(self, counter: VersionCounter) -> None:
        self._counter = counter

    @property
    def atom(self) -> Atom:  # type: ignore[override]
        return Var(self._recorded.aval)

    @property
    def builder(self) -> Builder:  # type: ignore[override]
        return _no_builder

    @property
    def _line_info(self) -> Any:  # type: ignore[override]
        # JAX reads this for the message about a tracer that it cannot take.
        raise ForeignCodeError(
            f"functions of JAX do not take Variables; got {self.aval_!r}",
            fix="Use functx.numpy, functx.lax and functx.nn, or functx.from_jax(f), which names a "
            "function of JAX as one operation.",
        )

    # In C: each operation and each write reads several.
    aval_ = property(attrgetter("_recorded.aval"))
    shape = property(attrgetter("_recorded.aval.shape"))  # type: ignore[assignment]
    dtype = property(attrgetter("_recorded.aval.dtype"))  # type: ignore[assignment]
    ndim = property(attrgetter("_recorded.aval.ndim"))  # type: ignore[assignment]
    size = property(attrgetter("_recorded.aval.size"))  # type: ignore[assignment]
    weak_type = property(attrgetter("_recorded.aval.weak_type"))  # type: ignore[assignment]

    def read(self) -> Recorded:
        """The current value."""
        if step_traces.count:
            capture_in_step(self)
        if self._view is not None and not self.is_current:
            views.read_again(self)
        return self._recorded

    @property
    def edge(self) -> Edge | None:
        """Where the gradient of the current value goes; None if it has no gradient."""
        if step_traces.count:
            capture_in_step(self)
        if self._view is not None and not self.is_current:
            views.read_again(self)
        leaf = self._leaf
        return self._edge if leaf is None else (leaf() or self.leaf_node(), 0)

    def leaf_node(self) -> Node:
        """The node of this leaf, which is made when it is first needed."""
        with _making:
            # Another thread may have made it meanwhile.
            node: Node | None = self._leaf()  # type: ignore[misc]
            if node is None:
                node = AccumulateGrad(self)
                self._leaf = ref(node)
            return node

    @property
    def lock(self) -> Any:
        """The lock of its memory and its gradient, for walks in several threads."""
        x = self
        while x._view is not None:
            x = x._view.base
        if x._lock is None:
            with _making:
                if x._lock is None:
                    x._lock = RLock()
        return x._lock

    @property
    def owner(self) -> Variable:
        """The array that this one is a view of, at the end of the chain of views; or itself."""
        x = self
        while x._view is not None and x._view.primitive is not None:
            x = x._view.base
        return x

    def _replace(self, recorded: Recorded, edge: Edge | None, dual: Dual | None) -> None:
        """Sets the value, after a write."""
        before, self._recorded, self._edge, self._dual = self._edge, recorded, edge, dual
        if self._retains_grad:
            value_hooks.move_retained(self, before, edge)

    @property
    def is_current(self) -> bool:
        """Whether there was no write since the value was last read."""
        return self._view is None or self._writes_read == self.version_counter.writes

    def compute(self) -> Any:
        """The value as an array; runs what is recorded. ConcretizationError in a jitted function."""
        return self.readable().compute()

    def numpy(self) -> NumPyArray:
        """The value as a new NumPy array. ConcretizationError in a jitted function."""
        # While it is held here, no recording reuses the memory of the value.
        recorded = self.readable()
        return np.array(recorded.look())

    def readable(self) -> Recorded:
        """The current value, which the caller reads. ConcretizationError in a jitted function."""
        traced_by = (step_traces.of_thread() if step_traces.count else None) or jit_builder()
        if traced_by is not None:
            raise ConcretizationError(
                "the value of a Variable must not be read by a jitted function, which would keep that "
                f"of its first call; got {self.describe()} in {traced_by.owner}",
                fix="Read it before the call and pass it as an argument, a static one for a Python "
                "number; or choose with functx.numpy.where or functx.lax.cond.",
            )
        return self.read()

    record: Callable[[Primitive, Sequence[Any]], Any]
    """The output of an operation with this operand, or a list of them, as Variables."""
    record_program: Callable[[Program, Sequence[Any]], list[Variable]]
    """The outputs of a program with this operand, as Variables: one node."""

    @property
    def tangent(self) -> Variable | None:
        """The tangent at the open level of `forward_ad`; None without one."""
        if step_traces.count:
            capture_in_step(self)
        if not self.is_current:
            views.read_again(self)
        dual = self._dual
        return None if dual is None or dual.level != open_level.get() else dual.tangent

    @property
    def requires_grad(self) -> bool:
        """Whether `backward` computes a gradient of this value; set it on leaves."""
        if step_traces.count:
            capture_in_step(self)
        return self._leaf is not None or self.edge is not None

    @requires_grad.setter
    def requires_grad(self, requires_grad: bool) -> None:
        self.requires_grad_(requires_grad)

    @property
    def is_leaf(self) -> bool:
        """Whether it is not the result of a recorded operation with a gradient."""
        if step_traces.count:
            capture_in_step(self)
        return self._leaf is not None or self.edge is None

    @property
    def grad_fn(self) -> Node | None:
        """The node of the operation that computed it; None for a leaf."""
        edge = self.edge
        return None if edge is None or self._leaf is not None else edge[0]

    @property
    def output_nr(self) -> int:
        """The number of this output among those of `grad_fn`."""
        edge = self.edge
        return 0 if edge is None else edge[1]

    def requires_grad_(self, requires_grad: bool = True) -> Variable:
        """Lets a leaf require a gradient, or not; returns it.

        Raises RequiresGradError for integers and booleans, and for turning it off on a value that was
        computed; AutogradInTransformError inside a transform.
        """
        check_outside_transforms(
            "requires_grad",
            "Use functx.grad or functx.vjp of a function, or change it outside.",
            "changed",
        )
        return self._require_grad(requires_grad)

    def _require_grad(self, requires_grad: bool) -> Variable:
        if not isinstance(requires_grad, (bool, np.bool_)):
            raise ArgumentError(
                f"requires_grad: it must be a bool; got {short_repr(requires_grad)}",
                fix="Pass True or False.",
            )
        if requires_grad and not is_inexact(self.dtype):
            raise RequiresGradError(
                "requires_grad: only arrays of floating point or complex numbers can require "
                f"gradients; got {self.aval_!r}",
                fix="Convert it first (x.astype(float)).",
            )
        if requires_grad and not current_modes().inference:
            self._check_not_inference("requires_grad", "require a gradient outside")
        if not self.is_leaf:
            if not requires_grad:
                raise RequiresGradError(
                    "requires_grad: only that of a leaf can be turned off; got a result of "
                    f"{self.grad_fn!r}",
                    fix="Use x.detach(), which has no history.",
                )
            return self
        if not requires_grad:
            self._leaf = None
        elif self._leaf is None:
            if self.weak_type:
                self._recorded = constant(strong(self.compute()))
            self._leaf = dead_reference
        return self

    @property
    def grad(self) -> Variable | None:
        """The gradient that `backward` has added up for this leaf; None before."""
        if context_builder() is not None and (builder := jit_builder()) is not None:
            error = ConcretizationError(
                "x.grad must not be read by a jitted function, which would keep that of its first "
                f"call; got that of {self.describe()} in {builder.owner}",
                fix="Pass x.grad to the function as an argument.",
            )
            refuse_in_transform(error, builder)
        return self.read_grad() if step_traces.count else self._grad

    @grad.setter
    def grad(self, grad: Variable | None) -> None:
        if context_builder() is not None:
            check_outside_transforms("x.grad =", "Return the gradient, and set it outside.", "set")
        if grad is self:
            raise GradAssignmentError(
                "x.grad =: the gradient must be another array; got x itself",
                fix="Assign a copy (x.copy()).",
            )
        if grad is not None:
            if not isinstance(grad, Variable):
                grad = Variable(grad)
            if grad.shape != self.shape or grad.dtype != self.dtype:
                raise GradAssignmentError(
                    "x.grad =: the gradient must have the shape and dtype of the array; got "
                    f"{grad.aval_!r} for {self.aval_!r}",
                    fix="Reduce or convert the gradient first, or assign None.",
                )
        if step_traces.count and (trace := step_traces.of_thread()) is not None:
            capture_in_step(self)
            trace.mark_grad_set(self)
        self._grad = grad

    @grad.deleter
    def grad(self) -> None:
        self.grad = None

    def read_grad(self) -> Variable | None:
        """The gradient, also where that of a jitted function is computed."""
        if step_traces.count and (trace := step_traces.of_thread()) is not None:
            capture_in_step(self)
            trace.capture_grad(self)
        return self._grad

    @property
    def retains_grad(self) -> bool:
        """Whether walks keep the gradient of this value, which is no leaf, in `grad`."""
        return self._retains_grad and not self.is_leaf

    retain_grad, register_hook = value_hooks.retain_grad, value_hooks.register_hook
    register_post_accumulate_grad_hook = value_hooks.register_post_accumulate_grad_hook
    write, detach, check_writable = views.write, views.detach, views.check_writable

    def without_history(self) -> Variable:
        """An array with the value and the count of writes of this one."""
        x = make_variable(self.read(), None)
        x.version_counter, x._writes_read = self.version_counter, self.version_counter.writes
        x._strides = self._strides
        return x

    def with_value(self, recorded: Recorded) -> Variable:
        """An array with the history of this one, and memory of its own."""
        return make_variable(recorded, self.edge)

    @property
    def _version(self) -> int:
        """The number of writes to the memory of this array; an inference array has none."""
        if step_traces.count:
            capture_in_step(self)
        self._check_not_inference("x._version", "have a version")
        return self.version_counter.version

    def is_inference(self) -> bool:
        """Whether it, or the array that it is a view of, was made under `inference_mode`."""
        return self._counter is not None and self._counter.is_inference

    def _check_not_inference(self, operation: str, verb: str) -> None:
        if self._counter is not None and self._counter.is_inference:
            raise InferenceArrayError(
                f"{operation}: an array made under inference_mode must not {verb}; got "
                f"{self.aval_!r}",
                fix="Use a clone of it, made outside that mode (x.copy()).",
            )

    def check_gradient_kept(self, operation: str) -> None:
        """Raises LostDerivativeError if a write to an array without history would lose a derivative."""
        modes = current_modes()
        is_dual = self.tangent is not None and not modes.inference
        if is_dual or (modes.records_gradients and self.requires_grad):
            raise LostDerivativeError(
                f"{operation}: a value with a derivative must not be written to an array without "
                f"history, which would lose it; got {self.describe()}",
                fix="Make that array a Variable first (Variable(x)), or write y.detach() to it.",
            )

    @property
    def memory(self) -> object:
        """An object that arrays which share memory have in common."""
        return self if self._counter is None else self._counter

    @property
    def is_view(self) -> bool:
        """Whether it was made as a view of another array."""
        view = self._view
        return view is not None and (view.primitive is not None or view.function is not None)

    def strides_(self) -> tuple[int, ...]:
        """The distance in elements between neighbours along each dimension."""
        return row_major_strides(self.shape) if self._strides is None else self._strides

    def __eq__(self, other: object) -> Any:
        return False if other is None else super().__eq__(other)  # type: ignore[operator]

    def __ne__(self, other: object) -> Any:
        return True if other is None else super().__ne__(other)  # type: ignore[operator]

    __hash__ = object.__hash__  # type: ignore[assignment]

    def __contains__(self, item: object) -> bool:
        return bool(np.any(self == item))

    def __deepcopy__(self, memo: Any) -> Variable:
        if not self.is_leaf:
            raise AutogradError(
                "deepcopy: a Variable with a history cannot be copied with it; got a result of "
                f"{self.grad_fn!r}",
                fix="Copy x.detach(), its value.",
            )
        x = make_variable(self.read(), None)
        x._leaf = None if self._leaf is None else dead_reference
        x._grad = deepcopy(self.read_grad(), memo)
        x._state_kind = self._state_kind
        return x

    def backward(
        self,
        gradient: Any = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        inputs: Any = None,
    ) -> None:
        from functx.autograd.backward import backward

        backward(self, gradient, retain_graph, create_graph, inputs=inputs)

    def block_until_ready(self) -> Variable:
        """This array, once its value is computed."""
        recorded = self.readable()
        jax.block_until_ready(recorded.look())
        return self

    def __str__(self) -> str:
        recorded = self.read()
        if isinstance(recorded.recording, Recording) and recorded.recording.first_node:
            return self.describe()
        return str(np.array(recorded.look()))

    def __repr__(self) -> str:
        recorded = self.read()
        if isinstance(recorded.recording, Recording) and recorded.recording.first_node:
            return self.describe()
        text = np.array2string(np.array(recorded.look()), separator=", ", prefix="Variable(")
        grad_fn = self.grad_fn
        note = f", grad_fn=<{grad_fn.label}>" if grad_fn is not None else ""
        if self._leaf is not None:
            note = ", requires_grad=True"
        return f"Variable({text}{note})"

    def describe(self) -> str:
        """`Variable<f32[3]>`: the type, for messages, which compute nothing."""
        return f"Variable<{self.aval_!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        if not self.is_leaf:
            raise AutogradError(
                "pickle: a Variable with a history cannot be pickled; got a result of "
                f"{self.grad_fn!r}",
                fix="Pickle x.detach(), its value.",
            )
        return unpickle_variable, (self.numpy(), self.requires_grad, self._state_kind)


def unpickle_variable(value: NumPyArray, requires_grad: bool, state_kind: object) -> Variable:
    """The Variable of a pickle; `state_kind` is `nn.Parameter` or `nn.Buffer` if it is of a module."""
    x = Variable(value, requires_grad)
    x._state_kind = state_kind
    return x


def jit_builder() -> Builder | None:
    """The builder of the innermost jitted function that is traced now."""
    builder = current_builder.get()
    while builder is not None and builder.kind != "jit":
        builder = builder.parent
    return builder


def strong(x: Any) -> Any:
    """An array that is not weakly typed, so that all gradients have one type."""
    return x.astype(x.dtype) if aval_of(x).weak_type else x


_making = RLock()
"""The lock of what is made for a Variable when it is first needed."""


def variable(*_: object, **__: object) -> Variable:
    """Raises AutogradError: PyTorch's deprecated function of this name is `Variable`."""
    raise AutogradError(
        "variable: the function has no use any more; got a call of it",
        fix="Write functx.autograd.Variable(value, requires_grad=True).",
    )


def make_variable(recorded: Recorded, edge: Edge | None) -> Variable:
    """A Variable of a recorded value."""
    x: Variable = Variable.__new__(Variable)
    x._recorded, x._edge = recorded, edge
    if current_modes().inference:
        x._counter = VersionCounter(True)
    return x


_no_builder = Builder("recording", "autograd")
variables.type = Variable


def variable_of_literal(x: Literal) -> Variable:
    """A Variable of the value of a literal."""
    return Variable(x.value, dtype=x.aval.dtype)


def as_variable(x: Any) -> Variable:
    """`x`, or a Variable of its value, with memory of its own."""
    if isinstance(x, Variable):
        return x
    if type(x) is Literal:
        return variable_of_literal(x)
    return make_variable(constant(jax.numpy.array(x) if isinstance(x, np.ndarray) else x), None)
