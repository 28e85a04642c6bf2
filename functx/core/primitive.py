"""What a primitive is: one class an operation, its parameters as fields, its rules as methods."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from importlib import import_module
from typing import Any, ClassVar, dataclass_transform
from weakref import ref

from functx.core.errors import ArgumentError, FunctxError, MissingRuleError, RuleError
from functx.core.program import NO_EFFECTS, Effects, programs_in_parameter
from functx.core.tracing import bind
from functx.core.types import HasAval, ShapedArray


class _PrimitiveType(type):
    """Equal instances of a primitive are one object, so that comparing and hashing are free."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        try:
            return cls._interned(*args, **kwargs)  # type: ignore[attr-defined]
        except TypeError as error:
            if isinstance(error, FunctxError) or "unhashable" not in str(error):
                raise
            raise ArgumentError(
                f"{cls.__name__}: parameters must be hashable; got {args} {kwargs}"
            ) from None


_UNCACHED_FIELD_TYPES = ("float", "complex", "Any", "object", "Program")


def _param_key(value: Any) -> Any:
    """A parameter as part of a key: floats by their text, at any depth of tuples."""
    if isinstance(value, (float, complex)):
        return type(value), repr(value)
    if isinstance(value, tuple):
        return type(value), tuple([_param_key(part) for part in value])
    return type(value), value


class _InstanceTable:
    """The instances of one primitive that are in use, by their parameters.

    It holds neither: a parameter may, by what it remembers, hold the primitive itself.
    """

    def __init__(self) -> None:
        self.found: dict[int, list[ref[Any]]] = {}

    def find(self, key: Any) -> Any:
        for each in tuple(self.found.get(hash(key), ())):
            instance = each()
            if instance is not None and instance._key == key:
                return instance
        return None

    def values(self) -> list[Any]:
        """The instances themselves."""
        held = [each() for bucket in list(self.found.values()) for each in bucket]
        return [instance for instance in held if instance is not None]

    def add(self, instance: Any) -> None:
        place = hash(instance._key)

        def forget(gone: ref[Any]) -> None:
            others = self.found[place]
            others.remove(gone)
            if not others:
                del self.found[place]

        self.found.setdefault(place, []).append(ref(instance, forget))


def _field_types(cls: type[Primitive]) -> list[Any]:
    return [
        base.__dict__["__annotations__"][field]
        for base in cls.__mro__
        for field in cls.fields
        if field in base.__dict__.get("__annotations__", {})
    ]


class _Registry(dict[str, "type[Primitive]"]):
    """The primitives by name. Those of modules that load on first use are found as well."""

    unloaded: ClassVar[list[str]] = ["functx.nn", "functx.random", "functx.testing"]

    def _load_all(self) -> None:
        while self.unloaded:
            import_module(self.unloaded.pop())

    def loaded(self) -> list[type[Primitive]]:
        """The primitives of the modules that are loaded."""
        return list(super().values())

    def __missing__(self, name: str) -> type[Primitive]:
        if not self.unloaded:
            raise KeyError(name)
        self._load_all()
        return self[name]

    def __contains__(self, name: object) -> bool:
        if super().__contains__(name):
            return True
        self._load_all()
        return super().__contains__(name)

    def get(self, name: str, default: Any = None) -> Any:
        if name not in self:
            return default
        return super().get(name)

    def __iter__(self) -> Iterator[str]:
        self._load_all()
        return super().__iter__()

    def keys(self) -> Any:
        self._load_all()
        return super().keys()

    def values(self) -> Any:
        self._load_all()
        return super().values()

    def items(self) -> Any:
        self._load_all()
        return super().items()


@dataclass_transform(frozen_default=True)
class Primitive(metaclass=_PrimitiveType):
    """An operation that programs are made of.

    Subclass it, annotate the static parameters as fields, and define the rules. Calling an
    instance binds it: inside a trace that appends an equation, outside it computes. Equal
    instances are identical, and print in snake_case: `ReduceSum((0,))` is
    `reduce_sum[axes=(0,)]`. Defining the class registers it, and `functx.testing` checks
    every registered primitive on its `samples`.

    The rules get traced values (`Tracer`) with shapes, dtypes and operators, and call ops
    on them. A primitive with `multiple_results` takes and gives sequences where others
    take and give one value. Needed are `abstract_eval` and either `lower` or `decompose`.
    """

    registry: ClassVar[_Registry] = _Registry()
    fields: ClassVar[tuple[str, ...]] = ()
    defaults: ClassVar[dict[str, Any]] = {}
    name: ClassVar[str]
    samples: ClassVar[Sequence[Any]] = ()

    multiple_results: ClassVar[bool] = False
    differentiable: ClassVar[bool] = True
    """False: outputs never vary with the inputs, so every derivative is zero."""
    scalars_broadcast: ClassVar[bool] = False
    """True: rank-0 operands stand for arrays of the output's shape."""
    effects: ClassVar[Effects] = NO_EFFECTS
    """What an equation does besides its outputs, which keeps it even when they are unused.

    Those of the programs among the parameters count too, except of the parameters in `idle`.
    """
    not_executed: ClassVar[tuple[str, ...]] = ()
    """The parameters whose programs do not run when the operation does."""
    named_axes: ClassVar[frozenset[Any]] = frozenset()
    """The named axes that the operation, or what a program among its parameters does, works across."""
    has_captures: ClassVar[bool] = False
    """Whether the operation, or one in its sub-programs, is a `captured` equation."""
    checks_rule_results: ClassVar[bool] = False
    """Whether the class itself checks what the rules that users gave return."""
    is_user_defined: ClassVar[bool] = False
    """Whether the class is the user's, so that the results of its rules are checked."""
    is_abstract: ClassVar[bool] = True
    """Whether the class is what primitives have in common, and none itself."""
    host_kernel: ClassVar[Callable[..., Any] | None] = None
    """Optional: a function of NumPy's, or a method, that computes the very bits of the output.

    Outside a trace it takes arrays in the memory of the host, of a dtype kind in `host_kernel_kinds`,
    at a tenth of the cost of a compiled call. Subnormal numbers, which XLA may take for zeros, are
    the one exception. A method may return None for what it does not compute so.
    """
    host_kernel_kinds: ClassVar[str] = "biuf"
    was_instantiated: ClassVar[bool] = False
    """Whether the operation ever occurred, so that something may remember its rules."""

    def __init_subclass__(cls, abstract: bool = False, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        own = [
            field
            for field, kind in cls.__dict__.get("__annotations__", {}).items()
            if "ClassVar" not in str(kind)
        ]
        cls.fields = (*cls.fields, *(field for field in own if field not in cls.fields))
        cls.defaults = {f: getattr(cls, f) for f in cls.fields if hasattr(cls, f)}
        # The cache takes 0.0 and -0.0 for one value, so classes with float fields go without, and
        # it would keep programs, with all that they remember.
        uncached = any(
            word in str(own) for own in _field_types(cls) for word in _UNCACHED_FIELD_TYPES
        )
        make = cls._make if uncached else lru_cache(maxsize=4096, typed=True)(cls._make)
        cls._interned = make  # type: ignore[attr-defined]
        cls._instances = _InstanceTable()  # type: ignore[attr-defined]
        cls.is_abstract, cls.was_instantiated = abstract, False
        cls.is_user_defined = not (cls.checks_rule_results or cls.__module__.startswith("functx."))
        if any("Program" in str(kind) for kind in _field_types(cls)):
            cls.__call__ = Primitive._call_with_programs  # type: ignore[method-assign]
        if "name" not in cls.__dict__:
            cls.name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()
        if not abstract:
            Primitive.registry[cls.name] = cls

    @classmethod
    def _make(cls, *args: Any, **kwargs: Any) -> Primitive:
        if len(args) > len(cls.fields) or not kwargs.keys() <= set(cls.fields):
            raise TypeError(
                f"{cls.__name__} takes the parameters {cls.fields}; got {args} {kwargs}"
            )
        values = {**cls.defaults, **dict(zip(cls.fields, args, strict=False)), **kwargs}
        if missing := [field for field in cls.fields if field not in values]:
            raise TypeError(f"{cls.__name__} needs the parameters {missing}")
        values = {field: values[field] for field in cls.fields}
        key = tuple([_param_key(v) for v in values.values()])
        self: Primitive | None = cls._instances.find(key)  # type: ignore[attr-defined]
        if self is None:
            self = object.__new__(cls)
            self.__dict__.update(values, out_avals_memo={}, _key=key)
            if not cls.was_instantiated:
                cls.was_instantiated = True
            held = [p for f in cls.fields for p in programs_in_parameter(values[f])]
            running = [
                p
                for f in cls.fields
                if f not in cls.not_executed
                for p in programs_in_parameter(values[f])
            ]
            if any([p.effects for p in running]):
                self.__dict__["effects"] = cls.effects.union(*[p.effects for p in running])
            if any([p.has_captures for p in held]):
                self.__dict__["has_captures"] = True
            if any(axes := [p.named_axes for p in held]):
                self.__dict__["named_axes"] = frozenset().union(*axes)
            self.__dict__["is_context_dependent"] = bool(self.effects or self.named_axes)
            cls._instances.add(self)  # type: ignore[attr-defined]
        return self

    is_context_dependent: bool
    """Whether the operation has effects or uses named axes, so that its result depends on its place."""
    out_avals_memo: dict[tuple[ShapedArray, ...], tuple[ShapedArray, ...]]
    """The output types found so far, by operand types."""

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{self.name}: parameters are fixed; make another instance")

    def __reduce__(self) -> Any:
        return type(self), tuple(getattr(self, field) for field in self.fields)

    def __call__(self, *args: Any) -> Any:
        """The output of the operation on `args`: traced inside a trace, computed outside."""
        return bind(self, args)

    def _call_with_programs(self, *args: Any) -> Any:
        """The same, with the values that the sub-programs captured as further operands."""
        if not self.has_captures:
            return bind(self, args)
        from functx.core.program_editing import bind_with_captures

        return bind_with_captures(self, args)

    def __repr__(self) -> str:
        from functx.core.printing import primitive_text

        return primitive_text(self)

    def infer_out_avals(self, avals: tuple[ShapedArray, ...]) -> tuple[ShapedArray, ...]:
        """What `abstract_eval` says of `avals`, as a tuple, remembered."""
        outs = self.abstract_eval(*avals)
        outs = tuple(outs) if self.multiple_results else (outs,)
        if not all(type(aval) is ShapedArray for aval in outs):
            raise RuleError(f"{self.name}: `abstract_eval` must return avals; got {outs}")
        if len(self.out_avals_memo) >= 1024:
            self.out_avals_memo.clear()
        self.out_avals_memo[avals] = outs
        return outs

    def abstract_eval(self, *avals: Any) -> Any:
        """The type of the output (a sequence of them with `multiple_results`)."""
        raise self.missing_rule_error("abstract_eval")

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        """The output and its tangent.

        A tangent is None where its operand does not vary; at least one is given. The
        output's tangent may be None too. Must be linear in the tangents.
        """
        raise self.missing_rule_error("jvp")

    def transpose(self, ct: Any, *args: Any) -> Sequence[Any]:
        """The cotangent of each linear operand, given the cotangent of the output.

        Called with a `LinearInput` (a type without a value) in place of each operand that
        the program is linear in, and values for the rest. Returns one entry an operand,
        None for those not linear. Only reached for primitives that occur in linear programs.
        """
        raise self.missing_rule_error("transpose")

    vjp: ClassVar[Callable[..., Any] | None] = None
    """Optional `vjp(self, ct, out, args, active)`: the cotangent of each operand.

    One entry an operand; only those with `active[i]` are used, the rest may be None.
    Without it, the cotangents come from transposing what `jvp` computes.
    """

    vjp_where: ClassVar[Callable[..., Any] | None] = None
    """Optional `vjp_where(self, live, ct, out, args, active)`: as `vjp`, safe where `ct` is zero.

    `live` is a boolean array, outside which `ct` is zero; there an operand that is infinite or
    nan must make neither in the cotangents.
    """

    add_to_cotangent: ClassVar[Callable[..., Any] | None] = None
    """Optional `accumulate(self, total, ct, args)`: `total` plus the cotangent of the first operand.

    For primitives that look at a part of that one and do not vary with the others, so that
    what is added goes to its place and the rest of the total is not touched.
    """

    accumulate_slices: ClassVar[Callable[..., Any] | None] = None
    """Optional static `together(parts, aval)`: the cotangent of an operand that several look at.

    `parts` holds of each of them the primitive, the cotangent of the output and the place in the
    user's code, `aval` is the operand's. For primitives with one operand, of which they look at a part.
    """

    def cotangent_masks(self, live: Any, args: Sequence[Any]) -> Sequence[Any]:
        """Where the cotangent of each operand can be other than zero, as a boolean array.

        `live` says so of the output's cotangent. None means anywhere, and is always right.
        """
        return [None] * len(args)

    jvp_masked: ClassVar[Callable[..., Any] | None] = None
    """Optional `jvp_masked(self, primals, tangents, lives)`: as `jvp`, and the outputs' masks.

    For operations with `multiple_results` through which masks pass; `lives` are as for
    `tangent_mask`, and the masks come back as a third sequence.
    """

    vjp_masked: ClassVar[Callable[..., Any] | None] = None
    """Optional `vjp_masked(self, cts, lives, saved, args, active)`: cotangents, and their masks.

    As `vjp` with `multiple_results`, but for operations through which masks pass: `lives` say
    where the cotangents of the outputs can be other than zero. Returns both, one an operand.
    """

    tangent_mask: ClassVar[Callable[..., Any] | None] = None
    """Optional `tangent_mask(self, lives, args)`: where the tangent of the output can be nonzero.

    `lives` says so of the operands' tangents: a boolean array, None for anywhere, False for
    an operand that does not vary. The answer is an array or None.
    """

    varying_outputs: ClassVar[Callable[..., Any] | None] = None
    """Optional `varying_outputs(self, avals, active)`: the outputs whose tangents can be nonzero.

    One mark an output, for operands of types `avals` of which those `active` vary. Without it
    all inexact outputs do.
    """

    forward: ClassVar[Callable[..., Any] | None] = None
    """Optional `forward(self, args, active)`: the outputs, and what `vjp` gets in their place.

    For primitives whose `vjp` needs more of the forward computation than its outputs.
    """

    dce: ClassVar[Callable[..., Any] | None] = None
    """Optional `trim(self, used)`: the primitive without what the outputs marked `used` do not need.

    Returns it with the positions of the operands and of the outputs that it keeps; None when
    it needs them all. Asked whenever a program that holds such an equation is finished.
    """

    simplify: ClassVar[Callable[..., Any] | None] = None
    """Optional `simplify(self, facts, *operands)`: what gives the very same output more simply.

    Operands are atoms of a program, `facts` says how they were made (`functx.ops.operands`).
    Returns an atom that the output equals (a number one that has it everywhere), or a primitive
    and its operands, or None. For each value, nan and -0.0 too, the same bits must come out.
    """

    def batch(self, args: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        """The output for a whole batch, and the dimension along which it lies.

        `dims[i]` is the dimension of `args[i]` that runs over the batch, or None for an
        operand that all share; at least one is not None. The dimension of an output may be
        None only when it does not depend on the batch.
        """
        raise self.missing_rule_error("batch")

    no_cse: ClassVar[bool] = False
    """True: two equal equations are meant to be two, and where they stand, so none is spared."""
    is_copy: ClassVar[bool] = False
    """True: the output is the operand, in memory of its own."""
    view: ClassVar[bool] = False
    """True: the outputs show elements of the first operand, as NumPy's views do."""

    layout_dependent: ClassVar[bool] = False
    """True: whether the outputs are views depends on how the first operand lies in memory."""

    hoist_constants: ClassVar[Callable[..., Any] | None] = None
    """Optional `hoist(self, programs, extras, operands)`: other programs, which take constants too.

    `programs` stand for those among the parameters, in their order; the first inputs of
    `programs[i]` are new, for the atoms `extras[i]`, and never change while the operation runs.
    Returns the primitive and its operands.
    """

    def scatter_into_base(self, part: Any, index: int, x: Any, *args: Any) -> Any:
        """`x` with `part` in place of what output `index`, a view of it, shows.

        Asked of views alone, that are not `is_read_only_view`.
        """
        raise self.missing_rule_error("scatter_into_base")

    def is_read_only_view(self, x: Any) -> bool:
        """Whether NumPy does not let the outputs, views of an array of type `x`, be written to."""
        return False

    def view_strides(self, x: Any, strides: tuple[int, ...]) -> tuple[int, ...] | None:
        """The strides of the outputs, views of an `x` with these; None where NumPy copies.

        Strides count elements, 0 for a dimension along which elements are repeated.
        """
        raise self.missing_rule_error("view_strides")

    def view_offset(self, x: Any, strides: tuple[int, ...], index: int) -> int | None:
        """By how many elements behind the first of `x` output `index`, a view of it, begins.

        None where an operand decides it.
        """
        return 0

    def lower(self, ctx: Any, *values: Any) -> Any:
        """The StableHLO value (a sequence with `multiple_results`) for operand values.

        `ctx` gives `avals_in`, `avals_out`, `infer_out_avals` and `platforms`.
        """
        raise self.missing_rule_error("lower")

    decompose: ClassVar[Callable[..., Any] | None] = None
    """Optional `decompose(self, *args)`: the same output, made of other primitives.

    It stands in for every rule that the class does not define.
    """

    def missing_rule_error(self, rule: str) -> MissingRuleError:
        """The error for a rule that is needed and not there."""
        cls = type(self)
        return MissingRuleError(
            f"{self.name}: the primitive must have a `{rule}` rule to be transformed so; got none",
            fix=f"Define `{rule}` on {cls.__name__} ({cls.__module__}), or `decompose`, or register "
            f"a decomposition with functx.decomp.register({self.name!r}).",
        )

    @classmethod
    def has_rule(cls, rule: str) -> bool:
        """Whether the class or one of its families defines `rule`."""
        return getattr(cls, rule, None) is not getattr(Primitive, rule)


class LinearInput(HasAval):
    """The place of an operand that a program is linear in: a type without a value."""

    __slots__ = ("aval",)

    def __init__(self, aval: ShapedArray):
        self.aval = aval
