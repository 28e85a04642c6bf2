"""Hooks of saved values, and versions of arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, cast
from weakref import ref

import jax
import numpy as np

from functx.autograd.modes import ModeContext, check_outside_transforms, grad_mode, set_var
from functx.autograd.nodes import (
    Node,
    OperationNode,
    SavedValue,
    freed_error,
    saving_hooks,
)
from functx.autograd.recorded import Recorded
from functx.autograd.variable import (
    Variable,
    make_variable,
    variable_of_literal,
)
from functx.autograd.views import VersionCounter
from functx.core.errors import (
    ArgumentError,
    SavedValueHooksError,
    UnpackedTypeError,
    type_name,
)
from functx.core.program import Literal
from functx.core.tracing import eval_context
from functx.core.types import ShapedArray
from functx.core.typing import ArrayLike
from functx.transforms.argument_names import check_callable

CURE_IN_TRANSFORMS = "Write functx.checkpoint(f, policy=...), whose policies choose what is saved."
_allowing: ContextVar[allow_mutation_on_saved_tensors | None] = ContextVar(
    "allow_mutation_on_saved_tensors", default=None
)
_disabled: ContextVar[str | None] = ContextVar("saved_tensors_hooks_disabled", default=None)


class SavedTensorHooks(ModeContext):
    """A context whose `pack` stores the values that nodes save, and whose `unpack` loads them."""

    @property
    def label(self) -> str:
        """The name of the context for messages."""
        return type(self).__name__

    def pack(self, x: Variable) -> Any:
        """The object to store for a saved value."""
        raise NotImplementedError

    def unpack(self, packed: Any) -> Any:
        """The saved value, from the result of `pack`."""
        raise NotImplementedError

    def enter(self) -> Callable[[], None]:
        message = _disabled.get()
        if message is not None:
            raise SavedValueHooksError(message)
        check_outside_transforms(self.label, CURE_IN_TRANSFORMS, "entered")
        return set_var(saving_hooks, self)

    def pack_node(self, node: OperationNode) -> None:
        """Packs the values that a new node saved, except constants."""
        saved, packed = node.saved or [], {}
        for k, (x, i) in enumerate(zip(saved, node.split.operand_residuals, strict=True)):
            if i is None or type(x) is SavedValue:
                saved[k] = packed[x] = self.pack_value(x)
        if node.operands is not None:
            node.operands = [
                packed.get(x) or self.pack_value(x) if type(x) is SavedValue else x
                for x in node.operands
            ]

    def pack_value(self, x: SavedValue | Recorded) -> PackedValue:
        """A saved value, packed."""
        if isinstance(x, Recorded):
            x = SavedValue(x, None, VersionCounter(False), 0)
        recorded = x.recorded
        # The user's hook gets another Variable, so that later writes to the value do not reach it.
        operand = make_variable(recorded, None)
        with grad_mode(False), no_saved_tensor_hooks():
            packed = self.pack(operand)
        if operand.version_counter.writes:
            raise SavedValueHooksError(
                f"{self.label}: pack must not write to its operand; got a write to "
                f"{operand.aval_!r}",
                fix="Write to a copy (x = x * 2 in place of x *= 2).",
            )
        return PackedValue(self, packed, operand.aval_, x)


def pack_saved(x: SavedValue) -> SavedValue | PackedValue:
    """A saved value, packed if saved-tensor hooks are active."""
    hooks = saving_hooks.get()
    return x if hooks is None else hooks.pack_value(x)


def load_variable(values: list[Any], k: int, node: Node | None, label: str) -> Variable:
    """Saved value number `k` of `node`, with its history.

    For an operand that is unchanged this is the operand itself. Raises SavedValueError if it was
    written to since.
    """
    saved: SavedValue | PackedValue = values[k]
    recorded, edge = saved.load(label), saved.edge
    if saved.output is not None and node is not None:
        edge = node, saved.output
    original = None if saved.variable is None else saved.variable()
    x = make_variable(recorded, edge)
    x._dual = saved.dual if original is None else original._dual
    if type(saved) is SavedValue:
        if original is not None and (original.read(), original.edge) == (recorded, edge):
            return original
        values[k] = saved._replace(variable=ref(x))
    return x


class no_saved_tensor_hooks(ModeContext):  # noqa: N801 - a context, named like a function
    """A context without saved-tensor hooks."""

    def enter(self) -> Callable[[], None]:
        return set_var(saving_hooks, None)


class PackedValue:
    """The saved value `x` as hooks packed it, with its other fields."""

    __slots__ = ("aval", "dual", "edge", "hooks", "output", "packed", "variable")

    def __init__(self, hooks: SavedTensorHooks, packed: object, aval: ShapedArray, x: SavedValue):
        self.hooks, self.packed, self.aval = hooks, packed, aval
        self.edge, self.output, self.dual, self.variable = x.edge, x.output, x.dual, x.variable

    def load(self, label: str) -> Recorded:
        """The value; UnpackedTypeError if `unpack` does not return an array."""
        # A walk for a batch of gradients is traced, but the saved values are not.
        with grad_mode(False), no_saved_tensor_hooks(), eval_context():
            x = self.hooks.unpack(self.packed)
            if isinstance(x, (np.ndarray, np.generic, jax.Array)):
                x = Variable(x)
        if not isinstance(x, Variable):
            raise UnpackedTypeError(
                f"{self.hooks.label}: unpack must return an array; got {type_name(x)} for a value that "
                f"`{label}` saved, {self.aval!r}"
            )
        recorded = x.read()
        if (recorded.aval.shape, recorded.aval.dtype) != (self.aval.shape, self.aval.dtype):
            raise SavedValueHooksError(
                f"{self.hooks.label}: unpack must return an array of the shape and dtype of "
                f"the saved value; got {recorded.aval!r} for {self.aval!r}"
            )
        return recorded


class saved_tensors_hooks(SavedTensorHooks):  # noqa: N801 - PyTorch's name
    """A context, and a decorator, in which nodes store `pack(x)` in place of a saved value `x`.

    A walk that reads the value calls `unpack` with the result of `pack`, and gets an array of the
    shape and dtype of `x`. Of nested contexts the innermost one is used. `pack` is called once for each
    value that a node saves, when the operation is recorded; constants that are not Variables, as in
    `x / 3`, are not packed. `unpack` is called once for each value that a pullback reads. Both run
    without hooks and gradients. A call of a transformed function on Variables (`jit`, `grad`, `vmap`) is
    one node; on arrays alone there is no node, and nothing is packed.

    For `y = x**3`, `y` packs one value. A walk with `create_graph` unpacks it and packs the values
    that the pullback saves: 3 packs and 1 unpack in all. A walk from the derivative then unpacks 2.

    Raises SavedValueHooksError on entry while `disable_saved_tensors_hooks` is active, and where `pack`
    writes to its operand; UnpackedTypeError where `unpack` does not return an array.

    >>> from functx.autograd import Variable, saved_tensors_hooks
    >>> x = Variable(2.0, requires_grad=True)
    >>> with saved_tensors_hooks(lambda x: x.numpy(), lambda packed: packed):
    ...     y = x**3
    >>> y.backward()
    >>> print(x.grad)
    12.0
    """

    def __init__(self, pack_hook: Callable[[Variable], Any], unpack_hook: Callable[[Any], Any]):
        check_callable(pack_hook, "saved_tensors_hooks")
        check_callable(unpack_hook, "saved_tensors_hooks")
        self.pack_hook, self.unpack_hook = pack_hook, unpack_hook

    def pack(self, x: Variable) -> Any:
        return self.pack_hook(x)

    def unpack(self, packed: Any) -> Any:
        return self.unpack_hook(packed)

    def fresh(self) -> ModeContext:
        return saved_tensors_hooks(self.pack_hook, self.unpack_hook)


class save_on_cpu(SavedTensorHooks):  # noqa: N801 - PyTorch's name
    """A context, and a decorator, in which nodes keep saved values in host memory.

    They are computed when they are saved, and go back to their device for the pullback. With
    `pin_memory` they are in memory that the device copies from directly.
    """

    def __init__(self, pin_memory: bool = False):
        self.pin_memory = pin_memory

    def fresh(self) -> ModeContext:
        return save_on_cpu(self.pin_memory)

    def pack(self, x: Variable) -> tuple[Any, Any]:
        value = x.compute()
        if not isinstance(value, jax.Array):
            return None, value
        if self.pin_memory:
            pinned = value.sharding.with_memory_kind("pinned_host")
            return value.sharding, jax.device_put(value, pinned)
        return value.sharding, np.asarray(value)

    def unpack(self, packed: tuple[Any, Any]) -> ArrayLike:
        sharding, value = packed
        return cast(ArrayLike, value if sharding is None else jax.device_put(value, sharding))


class allow_mutation_on_saved_tensors(SavedTensorHooks):  # noqa: N801 - PyTorch's name
    """A context, and a decorator, in which values that nodes saved may be written to.

    Pullbacks read the values before the writes. `backward` of a graph that is recorded in the context
    must be called in it.

    Raises SavedValueHooksError for a context inside another one, and for a walk outside.
    """

    def enter(self) -> Callable[[], None]:
        if _allowing.get() is not None:
            raise SavedValueHooksError(
                "allow_mutation_on_saved_tensors: the context must not be inside another one; got two"
            )
        leave, forbid = super().enter(), set_var(_allowing, self)

        def restore() -> None:
            forbid()
            leave()

        return restore

    def pack(self, x: Variable) -> Variable:
        return x

    def unpack(self, packed: Variable) -> Variable:
        if _allowing.get() is not self:
            raise SavedValueHooksError(
                "allow_mutation_on_saved_tensors: backward of a graph that is recorded in the context "
                "must be called in it; got a walk outside",
                fix="Call backward() inside the with block.",
            )
        return packed


class disable_saved_tensors_hooks(ModeContext):  # noqa: N801 - PyTorch's name
    """A context, and a decorator, in which saved-tensor hooks are refused with `error_message`.

    Raises SavedValueHooksError at once if hooks are active.
    """

    def __init__(self, error_message: str):
        if not isinstance(error_message, str):
            raise ArgumentError(
                "disable_saved_tensors_hooks: error_message must be a string; got "
                f"{type_name(error_message)}"
            )
        self.message = error_message

    def enter(self) -> Callable[[], None]:
        if saving_hooks.get() is not None:
            raise SavedValueHooksError(self.message)
        return set_var(_disabled, self.message)

    def fresh(self) -> ModeContext:
        return disable_saved_tensors_hooks(self.message)


class SavedTensor:
    """A value that a node saved."""

    def __init__(self, node: OperationNode, index: int):
        self._node, self._index = node, index

    @property
    def _saved(self) -> Any:
        if self._node.saved is None:
            raise freed_error(self._node.label)
        return self._node.saved[self._index]

    @property
    def value(self) -> Variable:
        """The value as the pullback reads it; for an operand, the operand itself.

        Raises FreedValueError if it was freed, SavedValueError if it was written to.
        """
        saved = self._saved
        if type(saved) is Literal:
            return variable_of_literal(saved)
        if type(saved) is Recorded:
            return make_variable(saved, None)
        assert self._node.saved is not None
        return load_variable(self._node.saved, self._index, self._node, self._node.label)

    def register_hooks(
        self, pack_hook: Callable[[Variable], Any], unpack_hook: Callable[[Any], Any]
    ) -> None:
        """Store `pack_hook(value)` from now on, as under `saved_tensors_hooks`.

        Raises SavedValueHooksError if the value is packed already.
        """
        saved = self._saved
        if type(saved) is PackedValue:
            raise SavedValueHooksError(
                "register_hooks: a saved value takes one pair of hooks; got a second pair for "
                f"{saved.aval!r}"
            )
        saved = saved_tensors_hooks(pack_hook, unpack_hook).pack_value(saved)
        assert self._node.saved is not None
        self._node.saved[self._index] = saved


def increment_version(tensor: Variable | Sequence[Variable]) -> None:
    """Raise the version of each array, as if it had been written to.

    A walk that needs a value that was saved before then raises SavedValueError.
    """
    check_outside_transforms("increment_version", "Call it outside.")
    for counter in version_counters(tensor):
        counter.add(writes=0)


class unsafe_preserve_version_counter(ModeContext):  # noqa: N801 - PyTorch's name
    """A context, and a decorator, whose writes to the arrays do not count.

    Afterwards the arrays have the versions from before, also after an error. Pullbacks read the values
    from before the writes.
    """

    def __init__(self, tensors: Variable | Sequence[Variable]):
        self.tensors = tensors

    def enter(self) -> Callable[[], None]:
        before = [(counter, counter.version) for counter in version_counters(self.tensors)]

        def restore() -> None:
            for counter, version in before:
                counter.version = version

        return restore

    def fresh(self) -> ModeContext:
        return unsafe_preserve_version_counter(self.tensors)


def version_counters(tensors: Variable | Sequence[Variable]) -> list[VersionCounter]:
    """The version counters of arrays."""
    arrays: list[Any] = [*tensors] if isinstance(tensors, (list, tuple)) else [tensors]
    for x in arrays:
        if not isinstance(x, Variable):
            raise ArgumentError(
                f"only Variables have versions; got {type_name(x)}",
                fix="Make one with functx.autograd.Variable(x).",
            )
        # Raises for arrays without a version.
        _ = x._version
    return [x.version_counter for x in arrays]
