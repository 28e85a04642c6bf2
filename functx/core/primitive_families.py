"""Families of primitives with rules that others do not have: views, in-place updates, sub-programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from functx.core.binding import bind
from functx.core.primitive import Primitive, rule
from functx.core.program import Program
from functx.core.strides import MemoryOrder, Strides
from functx.core.types import ShapedArray
from functx.core.typing import Value

if TYPE_CHECKING:
    from functx.transforms.series import SeriesEvaluator


class CopiesOperand(Primitive, abstract=True):
    """An operation whose output is a copy of its operand in new memory."""

    memory_order = MemoryOrder.COPIED


class View(Primitive, abstract=True):
    """An operation whose outputs are views of the first operand, as in NumPy."""

    has_own_history: ClassVar[bool] = False
    """Whether the derivative of a value written to the output stays with it, and never reaches the operand."""

    def with_history(self, before: Value, value: Value) -> Value:
        """The output with the value `value` and the derivative of `before`, if it `has_own_history`."""
        raise self.missing_rule_error("with_history")

    @rule
    def scatter_into_base(self, part: Value, index: int, x: Value, *args: Value) -> Value:
        """`x` with `part` in place of the elements that output `index`, a view of `x`, shows.

        Called only for views that can be written to.
        """
        raise self.missing_rule_error("scatter_into_base")

    def is_read_only_view(self, x: ShapedArray) -> bool:
        """Whether the outputs, views of an array of type `x`, are read-only in NumPy."""
        return False

    def view_strides(self, x: ShapedArray, strides: Strides) -> Strides | None:
        """The strides of the outputs, for an `x` with `strides`; None if NumPy copies.

        Strides count elements; they are 0 along dimensions that repeat elements.
        """
        raise self.missing_rule_error("view_strides")

    def view_offset(self, x: ShapedArray, strides: Strides, index: int) -> int | None:
        """The offset of output `index`, a view of `x`, in elements; None if an operand determines it."""
        return 0


class HasUserVJP(Primitive, abstract=True):
    """An operation whose `vjp` is a rule of users, which may return more than products with cotangents.

    It is also called with None for all cotangents, where another such rule ended the derivative.
    """


class ReadsPart(Primitive, abstract=True):
    """An operation whose output is a part of the first operand, the only one that it varies with.

    The cotangents of all parts of an array are added to one array, in place.
    """

    accumulate_slices: ClassVar[Callable[..., Any] | None] = None
    """Optional static `accumulate_slices(parts, aval)`: the cotangent of an operand with several readers.

    `parts` holds, for each of them, the primitive, the cotangent of its output and its source; `aval`
    is the type of the operand. For classes with one operand.
    """

    def is_added_in_place(self, ct: Value, x: Value) -> bool:
        """Whether the cotangent `ct` of the output is better added to others of `x` than by `vjp`."""
        return True

    def add_to_cotangent(self, total: Value, ct: Value, args: Sequence[Value]) -> Value:
        """`total` plus the cotangent of the first operand, which changes only the part that is read."""
        raise self.missing_rule_error("add_to_cotangent")


class UpdatesInPlace(Primitive, abstract=True):
    """An operation with outputs that are operands with some elements replaced, which XLA does in place.

    Inside a predicated program (`transforms/control/predication.py`) an update depends on a mask.
    """

    def in_place_operand(self, output: int) -> int | None:
        """The operand that is updated to get an output; None if there is none."""
        return 0

    def self_masked_operands(self, count: int) -> Sequence[int]:
        """The positions of those of `count` operands that `masked_update` takes without `MaskedOperand`."""
        return (0,)

    def masked_update(
        self, mask: Value, changed: Sequence[bool], borrow_active: bool, args: Sequence[Value]
    ) -> Sequence[Value]:
        """The outputs on `args`; those in `changed` are updated only if the scalar `mask` holds.

        `borrow_active` is as in `Predicated`.
        """
        raise self.missing_rule_error("masked_update")


class HasPrograms(Primitive, abstract=True):
    """An operation that runs sub-programs, and takes the values that these capture as operands."""

    multiple_results = True

    def hoist_constants(
        self, programs: Sequence[Program], extras: Sequence[Sequence[Any]], operands: Sequence[Any]
    ) -> tuple[Primitive, Sequence[Any]]:
        """The primitive with other sub-programs, and its operands.

        `programs` replace the sub-programs in their order. The first inputs of `programs[i]` are new:
        they stand for the atoms `extras[i]`, which are constant while the operation runs.
        """
        raise self.missing_rule_error("hoist_constants")

    def __call__(self, *args: object) -> Any:
        """As `Primitive.__call__`, with the captured values of sub-programs as further operands."""
        if not self.has_captures:
            return bind(self, args)
        from functx.core.captures import bind_with_captures

        return bind_with_captures(self, args)


class HasDCE(Primitive, abstract=True):
    """An operation with several outputs, whose unused ones dead-code elimination removes."""

    @rule
    def dce(self, used: Sequence[bool]) -> tuple[Primitive, Sequence[int], Sequence[int]] | None:
        """The primitive without the outputs that are not `used`; None if it keeps all.

        Returns it with the positions of the operands and of the outputs that it keeps. Called by
        dead-code elimination.
        """
        raise self.missing_rule_error("dce")


class HasJet(Primitive, abstract=True):
    """An operation with a shorter way to Taylor coefficients than by its `jvp`."""

    @rule
    def jet(self, evaluator: SeriesEvaluator, *args: Any) -> Any:
        """The `Series` of the output, from those of the operands; None for operands that it refuses.

        `evaluator` has the products and quotients of series.
        """
        raise self.missing_rule_error("jet")


class HasHostKernel(Primitive, abstract=True):
    """An operation that NumPy computes as the compiled operation does, at a tenth of the cost of its call.

    Used outside traces for arrays in host memory of a dtype kind in `host_kernel_kinds`.
    """

    host_kernel: ClassVar[Callable[..., Any]]
    """A NumPy function, or a method, that computes exactly the output of the compiled operation.

    Only subnormal numbers may differ, which XLA may flush to zero. A method returns None for operands
    that it does not support.
    """
    host_kernel_kinds: ClassVar[str] = "biuf"


class HasNewStrides(Primitive, abstract=True):
    """An operation whose results have strides that its `memory_order` and the operands do not determine."""

    @rule
    def new_strides(
        self, avals: Sequence[ShapedArray], strides: Sequence[Strides], shape: tuple[int, ...]
    ) -> Strides:
        """The strides of results of `shape` in new memory, for operands of types `avals` with `strides`.

        Called if `memory_order` is not ROW_MAJOR, and unless it is REARRANGED, only if an operand is
        not in row-major order.
        """
        raise self.missing_rule_error("new_strides")
