"""`Primitive`, the base class of all operations: parameters are fields, rules are methods."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from enum import Enum
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Self, dataclass_transform
from weakref import ref

import numpy as np

from functx.core.binding import bind
from functx.core.effects import NO_EFFECTS, Effects
from functx.core.errors import ArgumentError, FunctxError, MissingRuleError, RuleError
from functx.core.program import Program, programs_in_parameter
from functx.core.rewriting import annotated_fields
from functx.core.strides import MemoryOrder, Strides, strides_in_order
from functx.core.tracer import aval_of
from functx.core.types import HasAval, ShapedArray
from functx.core.typing import Cotangent, IRValue, IRValues, Mask, Tangent, Value

if TYPE_CHECKING:
    from _collections_abc import dict_items, dict_keys, dict_values

    from typing_extensions import TypeIs

    from functx.core.samples import Rounding
    from functx.lowering.stablehlo_emitter import LoweringContext


class _PrimitiveType(type):
    """The metaclass that makes equal instances one object, so that comparing and hashing them is free."""

    def __call__(cls, *args: object, **kwargs: object) -> Any:
        try:
            return cls._interned(*args, **kwargs)  # type: ignore[attr-defined]
        except TypeError as error:
            if isinstance(error, FunctxError) or "unhashable" not in str(error):
                raise
            raise ArgumentError(
                f"{cls.__name__}: parameters must be hashable; got {args} {kwargs}"
            ) from None


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


_MAY_BE_INEXACT = ("float", "complex", "Any", "object", "Hashable")


def _is_plain(value: object) -> bool:
    """Whether `value` equals no other parameter, and holds no program or array."""
    if isinstance(value, tuple):
        return all([_is_plain(part) for part in value])
    return value is None or isinstance(value, (int, str, np.integer, np.dtype, Enum, type))


def _param_key(value: object) -> tuple[type, Hashable]:
    """A parameter as part of a key; floats, also in tuples, are replaced by their repr."""
    if isinstance(value, (float, complex)):
        return type(value), repr(value)
    if isinstance(value, tuple):
        return type(value), tuple([_param_key(part) for part in value])
    return type(value), value


class _InstanceTable:
    """The live instances of one primitive, by the hashes of their parameters.

    It holds weak references to instances and no parameters, since the memo of a program among the
    parameters may hold the primitive. No cache can depend on the rules of a class whose table was never
    used.
    """

    def __init__(self) -> None:
        self.buckets: dict[int, list[ref[Primitive]]] = {}
        self.was_used = False

    def find(self, key: Hashable) -> Primitive | None:
        for reference in tuple(self.buckets.get(hash(key), ())):
            instance = reference()
            if instance is not None and instance._key == key:
                return instance
        return None

    def values(self) -> list[Primitive]:
        """All live instances."""
        instances = [reference() for bucket in list(self.buckets.values()) for reference in bucket]
        return [instance for instance in instances if instance is not None]

    def add(self, instance: Primitive) -> None:
        self.was_used = True
        key_hash = hash(instance._key)

        def remove(reference: ref[Primitive]) -> None:
            bucket = self.buckets[key_hash]
            bucket.remove(reference)
            if not bucket:
                del self.buckets[key_hash]

        self.buckets.setdefault(key_hash, []).append(ref(instance, remove))


def _field_types(cls: type[Primitive]) -> list[str]:
    return [
        str(base.__dict__["__annotations__"][field])
        for base in cls.__mro__
        for field in cls.fields
        if field in base.__dict__.get("__annotations__", {})
    ]


class _Registry(dict[str, "type[Primitive]"]):
    """The primitives by name. Those of modules that load on first use are found as well."""

    unloaded: ClassVar[list[str]] = [
        *("functx.testing", "functx.random", "functx.nn", "functx.transforms.spectral_functions"),
        *(
            "functx.scipy.stats",
            "functx.scipy.special",
            "functx.scipy.linalg",
            "functx.lax",
            "functx.lax.schur",
        ),
        *("functx.custom_derivatives", "functx.api"),
    ]
    """The modules that define primitives and may not have been imported; the last is imported first."""

    def _load_all(self) -> None:
        while self.unloaded:
            import_module(self.unloaded.pop())

    def loaded(self) -> list[type[Primitive]]:
        """The primitives of the modules that are loaded."""
        return list(super().values())

    def __missing__(self, name: str) -> type[Primitive]:
        if name not in self:
            raise KeyError(name)
        return self[name]

    def __contains__(self, name: object) -> bool:
        while not super().__contains__(name):
            if not self.unloaded:
                return False
            import_module(self.unloaded.pop())
        return True

    def get(self, name: str, default: Any = None) -> Any:
        if name not in self:
            return default
        return super().get(name)

    def __iter__(self) -> Iterator[str]:
        self._load_all()
        return super().__iter__()

    def keys(self) -> dict_keys[str, type[Primitive]]:
        self._load_all()
        return super().keys()

    def values(self) -> dict_values[str, type[Primitive]]:
        self._load_all()
        return super().values()

    def items(self) -> dict_items[str, type[Primitive]]:
        self._load_all()
        return super().items()


@dataclass_transform(frozen_default=True)
class Primitive(metaclass=_PrimitiveType):
    """The base class of operations.

    A subclass annotates its static parameters as fields and defines rules. Calling an instance
    binds it: inside a trace it appends an equation, outside it computes. Equal instances are
    identical, and print in snake_case, without fields at their defaults: `ReduceSum((0,))` is
    `reduce_sum[axes=(0,)]`. Defining a class registers it; `functx.testing` checks each
    registered primitive on its `samples`.

    Rules get traced values (`Tracer`) with shapes, dtypes and operators, and call ops on them. The
    rules of a primitive with `multiple_results` take and return a sequence of outputs instead of one.
    Each primitive must define `abstract_eval` and either `lower` or `decompose`.
    """

    registry: ClassVar[_Registry] = _Registry()
    fields: ClassVar[tuple[str, ...]] = ()
    defaults: ClassVar[dict[str, Any]] = {}
    name: ClassVar[str] = "primitive"
    samples: ClassVar[Sequence[Any]] = ()

    multiple_results: ClassVar[bool] = False
    differentiable: ClassVar[bool] = True
    """False: all derivatives are zero."""
    has_finite_derivative: ClassVar[bool] = False
    """Whether derivatives are finite wherever the operands are, unless a number overflows.

    `passes/loop_rerolling.py` reads it: a loop of such operations gets no masks. If it is True by
    mistake, gradients are nan where a later selection drops a result.
    """
    effects: ClassVar[Effects] = NO_EFFECTS
    """The side effects of an equation; an equation with effects stays when its outputs are unused.

    The effects of sub-programs are included, except those of parameters in `not_executed`.
    """
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
    host_kernel: ClassVar[Callable[..., Any] | None] = None
    """Optional: a NumPy function, or a method, that computes exactly the output of the compiled operation.

    Used outside traces for arrays in host memory of a dtype kind in `host_kernel_kinds`, at a tenth of
    the cost of a compiled call. Only subnormal numbers may differ, which XLA may flush to zero. A
    method returns None for operands that it does not support.
    """
    host_kernel_kinds: ClassVar[str] = "biuf"
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

    An operation of functx with the name of a JAX primitive need not state it.
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
        # In tuples, the cache does not tell numbers of different types apart.
        may_be_inexact = any(name in kind for kind in _field_types(cls) for name in _MAY_BE_INEXACT)
        cls._interned = (  # type: ignore[attr-defined]
            cls._make
            if may_be_inexact
            else lru_cache(maxsize=4096, typed=True)(cls._make_while_plain)
        )
        cls._instances = _InstanceTable()  # type: ignore[attr-defined]
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

    @classmethod
    def from_jax_params(cls, *_: Any, **params: Any) -> Primitive | None:
        """The instance for the parameters of an equation of JAX's primitive; None leaves it to JAX.

        Without fields it is the only instance. Parameters of JAX's elementwise primitives state an
        accuracy or another dtype; only None asks for nothing.
        """
        return None if cls.fields or any(p is not None for p in params.values()) else cls()

    @classmethod
    def _make_while_plain(cls, *args: object, **kwargs: object) -> Primitive:
        """The instance with these parameters; a cache by parameters calls it while all are plain.

        From then on the class has no such cache: it does not tell 0.0 from -0.0, and would keep programs and
        their memos alive.
        """
        self = cls._make(*args, **kwargs)
        if not _is_plain(tuple([getattr(self, field) for field in cls.fields])):
            cls._interned = cls._make  # type: ignore[attr-defined]
        return self

    @classmethod
    def _make(cls, *args: object, **kwargs: object) -> Primitive:
        fields = cls.fields
        if kwargs or len(args) != len(fields):
            args = cls._with_defaults(args, kwargs)
        key = tuple([_param_key(v) for v in args])
        self: Primitive | None = cls._instances.find(key)  # type: ignore[attr-defined]
        if self is None:
            self = object.__new__(cls)
            attributes = self.__dict__
            attributes.update(zip(fields, args, strict=True), out_avals_memo={}, _key=key)
            for field, value in zip(fields, args, strict=True):
                for program in programs_in_parameter(value):
                    if program.has_captures:
                        attributes["has_captures"] = True
                    if program.draws and field not in cls.not_executed:
                        attributes["draws"] = True
                    if program.named_axes:
                        attributes["named_axes"] = self.named_axes | program.named_axes
            self.update_effects()
            cls._instances.add(self)  # type: ignore[attr-defined]
        return self

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

    @classmethod
    def _with_defaults(cls, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """The values of all fields, from positional and keyword arguments and defaults."""
        fields = cls.fields
        if len(args) > len(fields) or not kwargs.keys() <= set(fields):
            given = [*map(repr, args), *[f"{name}={value!r}" for name, value in kwargs.items()]]
            raise ArgumentError(
                f"{cls.__name__}: the parameters must be {', '.join(fields) or 'none'}; got "
                f"{', '.join(given)}",
                fix=f"Operands follow in a second call: {cls.__name__}({', '.join(fields)})(x).",
            )
        values = {**cls.defaults, **dict(zip(fields, args, strict=False)), **kwargs}
        if missing := [field for field in fields if field not in values]:
            raise ArgumentError(
                f"{cls.__name__}: the parameters must be {', '.join(fields)}; got no value for "
                f"{', '.join(missing)}",
                fix=f"Give it, or a default in the class: {missing[0]}: int = 0.",
            )
        return tuple([values[field] for field in fields])

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
        """The outputs as a list; `out` is what a rule or a call returned: one, or several."""
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

    jet: ClassVar[Callable[..., Any] | None] = None
    """Optional `jet(self, evaluator, *args)`: the `Series` of the output, from those of the operands.

    None for operands that it does not support. `evaluator`, a `SeriesEvaluator`, has the products and
    quotients of series. Without this rule, Taylor coefficients follow from `jvp`.
    """

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

    is_constant_in_reverse_mode: ClassVar[bool] = False
    """Whether cotangents never reach the operands, though forward mode may have a tangent."""
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

    dce: ClassVar[Callable[..., Any] | None] = None
    """Optional `dce(self, used)`: the primitive without the outputs that are not `used`.

    Returns the primitive, and the positions of the operands and of the outputs that it keeps; None if
    it keeps all. Called whenever a program with such an equation is finished.
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

    no_cse: ClassVar[bool] = False
    """True: equal equations are not merged, and not moved."""

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

    def new_strides(
        self, avals: Sequence[ShapedArray], strides: Sequence[Strides], shape: tuple[int, ...]
    ) -> Strides:
        """The strides of results of `shape` in new memory, for operands of types `avals` with `strides`.

        Called if `memory_order` is not ROW_MAJOR, and unless it is REARRANGED, only if an operand is
        not in row-major order.
        """
        return strides_in_order(
            shape, [each for each in strides if each], self.memory_order is MemoryOrder.COPIED
        )

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
        return getattr(cls, rule, None) is not getattr(Primitive, rule)


class CopiesOperand(Primitive, abstract=True):
    """An operation whose output is a copy of its operand in new memory."""

    memory_order = MemoryOrder.COPIED


class View(Primitive, abstract=True):
    """An operation whose outputs are views of the first operand, as in NumPy."""

    has_own_history: ClassVar[bool] = False
    """Whether the output has the derivative of what is written to it, which the operand never gets."""

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
        from functx.core.program_editing import bind_with_captures

        return bind_with_captures(self, args)


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
