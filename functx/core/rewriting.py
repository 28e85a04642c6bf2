"""Rewrites as records, their application and caching, and the interpretation of programs."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Generic,
    NamedTuple,
    Self,
    TypeVar,
    dataclass_transform,
    overload,
)

from functx.core.backend import backend
from functx.core.caches import clear_on_rule_change, garbage_collection
from functx.core.captured_state import read_states, state_table
from functx.core.config import contextual_key
from functx.core.errors import ArgumentError
from functx.core.program import Equation, Program, Var, programs_in_parameter
from functx.core.source_info import derived_source
from functx.core.tracer import Tracer, current_builder, recording_operand
from functx.core.typing import ArrayLike, Value
from functx.core.wrapper_dispatch import wrapper_recorder
from functx.core.wrappers import wrapper_types

if TYPE_CHECKING:
    from functx.core.program import Atom
    from functx.core.source_info import Source


T = TypeVar("T")


class _Factory(NamedTuple):
    make: Callable[[], object]


def field(*, default_factory: Callable[[], T], kw_only: bool) -> T:
    """A keyword-only field whose default is `default_factory()`, as in `dataclasses.field`."""
    assert kw_only
    return _Factory(default_factory)  # type: ignore[return-value]


def annotated_fields(cls: type) -> list[str]:
    """The names that the body of `cls` annotates, without class variables."""
    annotations = cls.__dict__.get("__annotations__", {}).items()
    return [name for name, kind in annotations if "ClassVar" not in str(kind)]


class Uncompared(Generic[T]):
    """A field value that comparisons of records ignore: all instances are equal."""

    def __init__(self, value: T):
        self.value = value

    def __eq__(self, other: object) -> bool:
        return type(other) is Uncompared

    def __hash__(self) -> int:
        return hash(Uncompared)


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Record:
    """An immutable record. A subclass annotates its fields, as in a dataclass.

    Defining one takes a tenth of the time of a dataclass, since no code is compiled.
    """

    fields: ClassVar[tuple[str, ...]] = ()
    defaults: ClassVar[dict[str, Any]] = {}
    if TYPE_CHECKING:
        _values: tuple[object, ...]

    def __init_subclass__(cls, **kwargs: object):
        super().__init_subclass__(**kwargs)
        new_fields = [name for name in annotated_fields(cls) if name not in cls.fields]
        fields = (*cls.fields, *new_fields)
        new_defaults = {name: cls.__dict__[name] for name in fields if name in cls.__dict__}
        cls.defaults = {**cls.defaults, **new_defaults}
        keyword_only = [name for name in fields if type(cls.defaults.get(name)) is _Factory]
        cls.fields = (*[name for name in fields if name not in keyword_only], *keyword_only)

    def __init__(self, *args: object, **kwargs: object):
        fields = self.fields
        if kwargs or len(args) != len(fields):
            args = self._with_defaults(args, kwargs)
        attributes = self.__dict__
        attributes.update(zip(fields, args, strict=True))
        attributes["_values"] = args

    def _with_defaults(
        self, args: tuple[object, ...], kwargs: dict[str, Any]
    ) -> tuple[object, ...]:
        """The values of all fields, from positional and keyword arguments and defaults."""
        cls, fields = type(self).__name__, self.fields
        if len(args) > len(fields):
            raise TypeError(f"{cls} takes {len(fields)} fields, {fields}; got {len(args)}")
        values = dict(zip(fields, args, strict=False))
        if unknown := [name for name in kwargs if name not in fields or name in values]:
            raise TypeError(f"{cls} takes the fields {fields}, each once; got {unknown[0]}")
        values.update(kwargs)
        for name in fields[len(args) :]:
            if name not in values:
                if name not in self.defaults:
                    raise TypeError(f"{cls} needs the fields {fields}; got no {name}")
                default = self.defaults[name]
                values[name] = default.make() if type(default) is _Factory else default
        return tuple([values[name] for name in fields])

    def replace(self, **changes: object) -> Self:
        """The record with other values in some fields."""
        values = dict(zip(self.fields, self._values, strict=True))
        return type(self)(**(values | changes))

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return self._values == other._values  # type: ignore[attr-defined]

    def __hash__(self) -> int:
        return hash(self._values)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__}: a record does not change; use replace()")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__}: a record does not change")

    def __repr__(self) -> str:
        pairs = zip(self.fields, self._values, strict=True)
        return f"{type(self).__qualname__}({', '.join([f'{n}={v!r}' for n, v in pairs])})"

    def __reduce__(self) -> tuple[object, ...]:
        return _record, (type(self), self._values)


def _record(cls: type[Record], values: tuple[object, ...]) -> Record:
    return cls(*values)


class Rewrite(Record, Generic[T]):
    """A function of a program, as a record: `Batch(8, (0, None))(program)` is the batched program.

    The result is a program, several programs, or an analysis. Results are cached by the fields of the
    rewrite.
    """

    emit: ClassVar[Callable[..., list[Any]] | None] = None
    """Optional: `emit(program, *args)` appends the equations of the result directly to the current builder."""

    def __call__(self, program: Program) -> T:
        raise NotImplementedError(f"{type(self).__name__} must define __call__")


def interpret(
    program: Program,
    args: Iterable[Any],
    step: Callable[..., Sequence[Any]],
    constant: Callable[[Any], Any] = lambda c: c,
) -> list[Any]:
    """Interpret `program`: call `step(eqn, *operands)` for each equation; returns the outputs.

    `step` returns one value for each output of the equation. A value is a traced value, or a tuple
    that starts with one. The values of the inputs are `args`, that of a literal is
    `constant(literal)`. Must run inside a trace. Equations that `step` appends get the source of
    `eqn`, marked as derived unless they compute the values that `step` returns.
    """
    builder = current_builder.innermost()
    if builder is None:
        raise ArgumentError(
            f"interpret: a program must be interpreted inside a trace; got `{program.name}` outside of one",
            fix="Make it a rewrite, and call functx.core.rewriting.apply(rewrite, program, args).",
        )
    env: dict[Var, Any] = dict(zip(program.inputs, args, strict=True))

    def read(atom: Atom) -> Value:
        return env[atom] if type(atom) is Var else constant(Tracer(atom, builder))

    outer = builder.source
    equations: Sequence[Equation] = program.equations
    if program.has_captures:
        from functx.core.captures import split_captured

        captured, equations = split_captured(program)
        env.update((v, constant(builder.tracer(x))) for v, x in captured.items())
    try:
        for eqn in equations:
            builder.source = derived = derived_source(eqn.source)
            outs = step(eqn, *[read(atom) for atom in eqn.inputs])
            env.update(zip(eqn.outputs, outs, strict=True))
            if derived is not eqn.source:
                for out in outs:
                    restore_source(out if type(out) is Tracer else out[0], eqn.source, derived)
    finally:
        builder.source = outer
    return [read(atom) for atom in program.outputs]


def restore_source(x: Tracer, source: Source | None, derived: Source | None) -> None:
    """Set the source of the equation that computes `x`, if it is among the last with source `derived`."""
    for eqn in reversed(x.builder.equations):
        if eqn.source is not derived:
            return
        if x.atom in eqn.outputs:
            eqn.source = source
            return


def bind_equation(eqn: Equation, *args: ArrayLike) -> list[Tracer]:
    """Append `eqn` on other operands of the same types; its outputs."""
    return current_builder.require().copy_equation(eqn, args)


class user_rule_runs:  # noqa: N801 - a count, raised by `record`
    """The number of times that rules of users ran in rewrites.

    Such a rule may read Python values that change. So the result of a rewrite that runs one is not
    cached, and the rule runs again next time.
    """

    count = 0

    @staticmethod
    def record() -> None:
        user_rule_runs.count += 1


def apply(
    rewrite: Callable[[Program], Program] | None, program: Program, args: Sequence[Any]
) -> list[Any]:
    """Apply `rewrite(program)` to `args`: inlined inside a trace, run outside one; its outputs.

    `rewrite` is a `Rewrite` or a module-level function; None stands for the identity.
    """
    builder = current_builder.get()
    if builder is None:
        if state_table.get() is not None:
            args = read_states(args)
        variable = recording_operand(args)
        if variable is None:
            return backend.run(rewrite, program, args)
        if rewrite is not None:
            program = cached_rewrite(rewrite, backend.prepare_for_transform(program))
        return variable.record_program(program, args)  # type: ignore[no-any-return]
    with garbage_collection.paused():
        if wrapper_types and any([type(x) in wrapper_types for x in args]):
            return wrapper_recorder.record_program(cached_rewrite(rewrite, program), args)
        if rewrite is not None:
            program = backend.prepare_for_transform(program)
        if not isinstance(rewrite, Rewrite) or rewrite.emit is None:
            return builder.inline(cached_rewrite(rewrite, program), args)
        return rewrite.emit(program, *[Tracer(builder.atom(x), builder) for x in args])


@overload
def cached_rewrite(rewrite: None, program: Program) -> Program: ...
@overload
def cached_rewrite(rewrite: Callable[[Program], T], program: Program) -> T: ...
@overload
def cached_rewrite(rewrite: Callable[[Program], T] | None, program: Program) -> T | Program: ...
@overload
def cached_rewrite(rewrite: Callable[..., T], program: Program, *others: Program) -> T: ...
def cached_rewrite(rewrite: Callable[..., Any] | None, program: Program, *others: Program) -> Any:
    """`rewrite(program, *others)`, cached on `program` until rules change, unless rules of users ran."""
    if rewrite is None:
        return program
    program.drop_outdated_memo()
    memo = program.memo
    key = contextual_key((rewrite, *others) if others else rewrite)
    result = memo.get(key)
    if result is None:
        count = user_rule_runs.count
        result = rewrite(program, *others)
        if user_rule_runs.count != count or has_captured_values(result):
            return result
        if len(memo) >= 512:
            memo.clear()
        # A program whose memo holds itself would be freed only by the garbage collector.
        memo[key] = _UNCHANGED if result is program else result
    return program if result is _UNCHANGED else result


_UNCHANGED = object()


def has_captured_values(result: object) -> bool:
    """Whether programs in the result of a rewrite have captured values; then it is not cached.

    A rule that captures variables of enclosing scopes may capture other values next time.
    """
    return any([program.has_captures for program in programs_in_parameter(result)])


def rewrite_by_structure(rewrite: Callable[[Program], T], program: Program) -> T:
    """`rewrite(program)`, cached for all programs equal to this one."""
    key = contextual_key((rewrite, program.key))
    result: T | None = _rewrites_by_structure.get(key)
    if result is None:
        if len(_rewrites_by_structure) >= 1024:
            _rewrites_by_structure.clear()
        count = user_rule_runs.count
        with garbage_collection.paused():
            result = rewrite(program)
        if user_rule_runs.count == count and not has_captured_values(result):
            _rewrites_by_structure[key] = result
    return result


_rewrites_by_structure: dict[Hashable, Any] = {}
clear_on_rule_change(_rewrites_by_structure.clear)
