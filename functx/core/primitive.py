"""`Primitive`, the base class of all operations: parameters are fields, rules are methods."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self, dataclass_transform

from functx.core.binding import bind
from functx.core.effects import NO_EFFECTS, Effects
from functx.core.errors import MissingRuleError, RuleError
from functx.core.primitive_instances import PrimitiveType
from functx.core.primitive_registry import Registry
from functx.core.program import programs_in_parameter
from functx.core.rewriting import annotated_fields
from functx.core.strides import MemoryOrder
from functx.core.tracer import aval_of
from functx.core.types import HasAval, ShapedArray
from functx.core.typing import Cotangent, IRValue, IRValues, Mask, Tangent, Value

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    from functx.core.samples import Rounding
    from functx.lowering.stablehlo_emitter import LoweringContext


_PURPOSES = {
    "abstract_eval": " to be called",
    "lower": " to be compiled",
    "batch": " to be mapped by vmap",
    "jvp": " to be differentiated",
    "transpose": " to be differentiated in reverse mode",
}
"""The purposes of rules, as ends of the messages that they are missing."""


def rule(method: Callable[..., Any]) -> Callable[..., Any]:
    """Declare a rule, which subclasses override with operands of their own."""
    return method


@dataclass_transform(frozen_default=True)
class Primitive(metaclass=PrimitiveType):
    """The base class of operations.

    A subclass annotates its static parameters as fields and defines rules. Calling an instance
    binds it: inside a trace it appends an equation, outside it computes. Equal instances are
    identical, and print in snake_case, without fields at their defaults: `ReduceSum((0,))` is
    `reduce_sum[axes=(0,)]`. Defining a class registers it; `functx.testing` checks each
    registered primitive on its `samples`.

    Rules get traced values (`Tracer`) with shapes, dtypes and operators, and call ops on them. The
    rules of a primitive with `multiple_results` take and return a sequence of outputs instead of one.
    Each primitive must define `abstract_eval` and either `lower` or `decompose`. The families in
    `core/primitive_families.py` add rules that few primitives have.
    """

    registry: ClassVar[Registry] = Registry()
    fields: ClassVar[tuple[str, ...]] = ()
    defaults: ClassVar[dict[str, Any]] = {}
    name: ClassVar[str] = "primitive"
    samples: ClassVar[Sequence[Any]] = ()

    multiple_results: ClassVar[bool] = False
    differentiable: ClassVar[bool] = True
    """False: all derivatives are zero."""
    is_constant_in_reverse_mode: ClassVar[bool] = False
    """Whether cotangents never reach the operands, though forward mode may have a tangent."""
    has_finite_derivative: ClassVar[bool] = False
    """Whether derivatives are finite wherever the operands are, unless a number overflows.

    `passes/loop_rerolling.py` reads it: a loop of such operations gets no masks. If it is True by
    mistake, gradients are nan where a later selection drops a result.
    """
    effects: ClassVar[Effects] = NO_EFFECTS
    """The side effects of an equation; an equation with effects stays when its outputs are unused.

    The effects of sub-programs are included, except those of parameters in `not_executed`.
    """
    no_cse: ClassVar[bool] = False
    """True: equal equations are not merged, and not moved."""
    not_executed: ClassVar[tuple[str, ...]] = ()
    """The names of parameters whose programs the operation does not run: derivative rules.

    A rewrite chooses whether to change them; `map_subprograms` does.
    """
    primal_field: ClassVar[str | None] = None
    """The parameter with the program that computes the outputs, where users define the rules; or None."""
    size_fields: ClassVar[tuple[str, ...]] = ()
    """The names of parameters that follow from the sizes of arrays: shapes, limits of slices.

    Captured walks that differ in these alone have one structure.
    """
    named_axes: ClassVar[frozenset[Hashable]] = frozenset()
    """The named axes that the operation or its sub-programs communicate over."""
    draws: ClassVar[bool] = False
    """Whether the operation or its sub-programs draw random numbers from the state of a generator."""
    memory_order: ClassVar[MemoryOrder] = MemoryOrder.ROW_MAJOR
    """The memory order that NumPy gives to the results."""
    may_share_outputs: ClassVar[bool] = False
    """Whether an output may have no batch dimension though operands have one."""
    has_captures: ClassVar[bool] = False
    """Whether the operation is `captured`, or its sub-programs have such equations."""
    is_user_defined: ClassVar[bool] = False
    """Whether the class is defined outside functx; then the results of its rules are checked."""
    numpy: ClassVar[Callable[..., Any] | None] = None
    """Optional: the definition of the output, a NumPy ufunc or a method `numpy(self, *args)` on NumPy arrays.

    The reference of `functx.testing`: it calls NumPy and no functx. Inexact operands are float64 or
    complex128. A class that defines `lower` or `decompose` does not inherit it. A definition that is
    long, or needs SciPy, is a function with the name of the class in `functx/testing/reference/`.
    """
    rounding: ClassVar[Rounding | None] = None
    """The rounding error that `verify` allows for; None for one of 2 units in the last place, or for that
    of the sub-programs or of a computation in the dtypes of the operands, if `numpy` is one.
    """
    jax_primitive: ClassVar[str | None] = None
    """Optional: the name of the JAX primitive that `from_jax` translates to this one.

    An operation of functx with the name of a JAX primitive need not state it. A class method
    `from_jax_params(cls, **params)` makes the instance from the parameters of JAX's equation, or returns
    None to leave that equation to JAX. A class without fields does not need it.
    """
    by_jax_primitive: ClassVar[dict[str, type[Primitive]]] = {}
    """The classes that state a `jax_primitive`, by that name."""

    def __init_subclass__(cls, abstract: bool = False, **kwargs: object):
        super().__init_subclass__(**kwargs)
        inherited = [
            field for base in reversed(cls.__bases__) for field in getattr(base, "fields", ())
        ]
        cls.fields = tuple(dict.fromkeys([*inherited, *annotated_fields(cls)]))
        cls.defaults = {f: getattr(cls, f) for f in cls.fields if hasattr(cls, f)}
        cls.intern_instances()
        if "numpy" not in cls.__dict__ and not cls.__dict__.keys().isdisjoint(
            ("lower", "decompose")
        ):
            cls.numpy = None
        cls.is_user_defined = not cls.__module__.startswith("functx.")
        if "name" not in cls.__dict__:
            cls.name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()
        if not abstract:
            Primitive.registry[cls.name] = cls
            if (jax_name := cls.__dict__.get("jax_primitive")) is not None:
                Primitive.by_jax_primitive[jax_name] = cls

    def read_subprograms(self) -> None:
        """Sets the flags that follow from the sub-programs."""
        attributes = self.__dict__
        for field in self.fields:
            for program in programs_in_parameter(attributes[field]):
                if program.has_captures:
                    attributes["has_captures"] = True
                if program.draws and field not in self.not_executed:
                    attributes["draws"] = True
                if program.named_axes:
                    attributes["named_axes"] = self.named_axes | program.named_axes
        self.update_effects()

    def update_effects(self) -> None:
        """Sets `effects` to those of the class and of the sub-programs that the operation runs."""
        attributes = self.__dict__
        attributes.pop("effects", None)
        for field in self.fields:
            if field not in self.not_executed:
                for program in programs_in_parameter(attributes[field]):
                    if program.effects:
                        attributes["effects"] = self.effects | program.effects
        attributes["is_context_dependent"] = bool(self.effects or self.named_axes)

    _key: tuple[Hashable, ...]
    is_context_dependent: bool
    """Whether the operation has effects or uses named axes."""
    out_avals_memo: dict[tuple[ShapedArray, ...], tuple[ShapedArray, ...]]
    """The memo of `infer_out_avals`, by operand types."""

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{self.name}: parameters are fixed; make another instance")

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), tuple(getattr(self, field) for field in self.fields)

    def replace(self, **fields: object) -> Self:
        """This primitive with some of its fields replaced."""
        values = {name: getattr(self, name) for name in self.fields} | fields
        if len(values) > len(self.fields):
            return type(self)(**values)
        return type(self)(*values.values())

    def __call__(self, *args: object) -> Any:
        """The output of the operation on `args`: traced inside a trace, computed outside one."""
        return bind(self, args)

    def as_list(self, out: Any) -> list[Any]:
        """The outputs as a list; `out` is the result of a rule or a call: one output, or several."""
        return [*out] if self.multiple_results else [out]

    def __repr__(self) -> str:
        from functx.core.printing import primitive_text

        return primitive_text(self)

    def out_avals(self, avals: tuple[ShapedArray, ...]) -> tuple[ShapedArray, ...]:
        """The output types for operands of the types `avals`."""
        return self.out_avals_memo.get(avals) or self.infer_out_avals(avals)

    def infer_out_avals(self, avals: tuple[ShapedArray, ...]) -> tuple[ShapedArray, ...]:
        """The output types of `abstract_eval` as a tuple, stored in `out_avals_memo`."""
        outs = self.abstract_eval(*avals)
        if not self.multiple_results or not isinstance(outs, Iterable):
            outs = (outs,)
        outs = tuple(outs)
        if not all(type(aval) is ShapedArray for aval in outs):
            several = "a sequence of types" if self.multiple_results else "the type"
            raise RuleError(
                f"{self.name}: `abstract_eval` must return {several} of the result; got "
                f"{outs if self.multiple_results else outs[0]!r}",
                fix="Return an operand x itself for its type, x.update(shape=..., dtype=...) for one like "
                "it, or functx.ShapedArray(shape, dtype).",
            )
        if len(self.out_avals_memo) >= 1024:
            self.out_avals_memo.clear()
        self.out_avals_memo[avals] = outs
        return outs

    @rule
    def abstract_eval(self, *avals: ShapedArray) -> ShapedArray | Sequence[ShapedArray]:
        """The type of the output (a sequence of them with `multiple_results`)."""
        raise self.missing_rule_error("abstract_eval")

    @rule
    def jvp(self, primals: Sequence[Value], tangents: Sequence[Tangent]) -> tuple[Any, Any]:
        """The output and its tangent, which must be linear in the tangents.

        A tangent is None if its operand does not vary; at least one is not None. The tangent of the
        output may be None. `core/masks.py` gives the masks of the tangents.
        """
        raise self.missing_rule_error("jvp")

    @rule
    def transpose(self, ct: Cotangent, *args: Value | LinearInput) -> Sequence[Cotangent]:
        """The cotangent of each linear operand, given the cotangent of the output.

        Called with a `LinearInput` (a type without a value) for each linear operand, and values for
        the others. Returns one entry for each operand, None for nonlinear ones. Needed only for
        primitives of linear programs.
        """
        raise self.missing_rule_error("transpose")

    vjp: ClassVar[Callable[..., Any] | None] = None
    """Optional `vjp(self, ct, out, args, active)`: the cotangent of each operand.

    One entry for each operand; entries without `active[i]` are ignored and may be None. Without this
    rule, the output of `jvp` is transposed. `core/masks.py` gives the masks of the cotangents.
    """

    @rule
    def cotangent_masks(self, mask: Mask, args: Sequence[Value]) -> Sequence[Mask]:
        """A boolean array for each operand, False where its cotangent is zero.

        `mask` is that of the cotangent of the output. A mask None means that no element is
        known to be zero, and is always valid.
        """
        return [None] * len(args)

    tangent_mask: ClassVar[Callable[..., Any] | None] = None
    """Optional `tangent_mask(self, masks, args)`: a boolean array, False where the output tangent is zero.

    `masks` holds the masks of the operand tangents: boolean arrays, None if no element is known to be
    zero, False for an operand that does not vary. The result is an array or None.
    """

    varying_outputs: ClassVar[Callable[..., Any] | None] = None
    """Optional `varying_outputs(self, avals, active)`: a bool for each output, False if its tangent is zero.

    `avals` are the types of the operands, of which those with `active[i]` vary. Without this rule, all
    inexact outputs vary.
    """

    forward: ClassVar[Callable[..., Any] | None] = None
    """Optional `forward(self, args, active)`: the outputs, and the residuals that `vjp` gets as `out`.

    For primitives whose `vjp` needs more of the forward computation than its outputs.
    """

    index_sets: ClassVar[Callable[..., Any] | None] = None
    """Optional `index_sets(self, sets, *operands)`: the elements of inputs that each output depends on.

    Sparsity patterns are read off linear programs by it. The operands are `DependentOperand`s, with a
    set for each element; `sets`, an `IndexSets`, unites them. Returns an array of sets of the shape of
    the output, or None if all are empty; with `multiple_results` a sequence. The sets may be too large,
    but must contain each element whose tangent can reach the output. Without this rule `decompose` is
    used, and without that each element of the outputs depends on all elements of the operands.
    """

    simplify: ClassVar[Callable[..., Any] | None] = None
    """Optional `simplify(self, context, *operands)`: a cheaper way to compute the same output.

    The operands are atoms of a program; `context`, a `RewriteContext`, gives their definitions.
    Returns an atom that equals the output (a number stands for an array filled with it), a primitive
    and its operands, or None. The output must have the same bits for all values, also nan and -0.0.
    """

    @rule
    def batch(self, args: Sequence[Value], dims: Sequence[int | None]) -> tuple[Any, Any]:
        """The output for a whole batch, and its batch dimension.

        `dims[i]` is the batch dimension of `args[i]`, None for an operand that is the same for the
        whole batch; at least one is not None. The dimension of an output may be None only if the
        output does not depend on the batch.
        """
        raise self.missing_rule_error("batch")

    @rule
    def lower(self, ctx: LoweringContext, *values: IRValue) -> IRValue | IRValues:
        """The StableHLO value of the output (a sequence with `multiple_results`) for operand values.

        `ctx` gives `avals_in`, `avals_out`, `out_types` and `platforms`.
        """
        raise self.missing_rule_error("lower")

    decompose: ClassVar[Callable[..., Any] | None] = None
    """Optional `decompose(self, *args)`: the output, computed by other primitives.

    Transforms use it in place of each rule that the class does not define.
    """

    def missing_rule_error(self, rule: str) -> MissingRuleError:
        """The error for a missing rule."""
        cls = type(self)
        article = "an" if rule[0] in "aeiou" else "a"
        return MissingRuleError(
            f"{self.name}: the primitive must have {article} `{rule}` rule{_PURPOSES.get(rule, '')}; "
            "got none",
            fix=f"Define `{rule}` on {cls.__name__} ({cls.__module__}), or `decompose`, or register "
            f"a decomposition with functx.decomp.register({self.name!r}).",
        )

    @classmethod
    def has_rule(cls, rule: str) -> bool:
        """Whether the class or one of its base classes defines `rule`."""
        return getattr(cls, rule, None) is not getattr(Primitive, rule, None)


class LinearInput(HasAval):
    """A placeholder for a linear operand in a transpose rule: a type without a value."""

    __slots__ = ("aval",)

    def __init__(self, aval: ShapedArray):
        self.aval = aval


def is_linear_input(x: object) -> TypeIs[LinearInput]:
    """Whether `x` stands for a linear operand in a transpose rule."""
    return type(x) is LinearInput


def operand_aval(x: object) -> ShapedArray:
    """The type of an operand of a `transpose` rule: of a value, or of a linear operand without one."""
    return x.aval if is_linear_input(x) else aval_of(x)
