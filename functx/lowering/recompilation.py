"""Warnings about a call in the user's code that compiles again and again, with what differed."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from types import CodeType
from typing import Any, NamedTuple, Protocol, Self

import jax

from functx.core.caches import clear_on_rule_change
from functx.core.config import config
from functx.core.errors import RecompilationWarning
from functx.core.primitive import Primitive
from functx.core.program import Program, pad_input_names
from functx.core.source_info import (
    FUNCTX_OR_JAX,
    Source,
    file_owner,
    line_number,
    source_line,
    unwrap_function,
    user_line,
    user_source,
)
from functx.core.tree import TreeDef
from functx.core.types import ShapedArray, threefry_partitionable, x64_enabled
from functx.core.typing import Avals, Function
from functx.transforms.argument_names import InputNames

COMPILATIONS_BEFORE_WARNING = 5
"""The number of compilations of one function by one call before the warning."""

_MAX_RECORDED_OPERATIONS = 200
"""The number of operations that a record keeps, to find one that differs."""


class RepeatRecord(Protocol):
    """One compilation or capture, as far as it is compared with the next."""

    def may_be_same_function(self, before: Self) -> bool:
        """Whether the two may be of one function, and not of two with the same code."""

    def difference(self, before: Self) -> tuple[str, str]:
        """The first difference from the compilation `before`, and advice on it."""


class CompilationRecord(NamedTuple):
    """One compilation, as far as it is compared with the next."""

    label: str
    jit_id: int | None
    structure: str
    static: dict[str, str]
    settings: dict[str, object]
    num_arguments: int
    names: Sequence[str]
    avals: Avals
    primitive_types: frozenset[type]
    length: int
    operations: Sequence[tuple[str, Source | None]]

    @staticmethod
    def of(
        label: str,
        program: Program,
        jit_id: int | None = None,
        structure: TreeDef = None,
        static: dict[str, str] | None = None,
        avals: Avals | None = None,
    ) -> CompilationRecord:
        """The record of a compilation of `program`, which messages call `label`.

        `jit_id` is the number of the jitted function. `avals` are the types of the arguments, where the
        inputs of the program have others.
        """
        equations = program.equations
        return CompilationRecord(
            label,
            jit_id,
            # As text, since the static data of a tree may be large.
            str(structure)[:1000],
            static or {},
            {
                "jax_enable_x64": x64_enabled(),
                "jax_threefry_partitionable": threefry_partitionable(),
                "jax_default_matmul_precision": jax.config.jax_default_matmul_precision,  # type: ignore[attr-defined]
                "config.outline": config.outline,
            },
            len(program.in_names()),
            pad_input_names(program.in_names(), len(program.inputs)),
            program.in_avals if avals is None else avals,
            frozenset([type(eqn.primitive) for eqn in equations]),
            len(equations),
            [
                (_operation_text(eqn.primitive), eqn.source)
                for eqn in equations[:_MAX_RECORDED_OPERATIONS]
            ],
        )

    def may_be_same_function(self, before: CompilationRecord) -> bool:
        is_same = self.jit_id is not None and self.jit_id == before.jit_id
        return is_same or self.primitive_types == before.primitive_types

    def difference(self, before: CompilationRecord) -> tuple[str, str]:
        for name, was, now in _changed_values(before.settings, self.settings):
            return f"{name}: {was} before, {now} now", "Set it once, before anything is compiled."
        for name, was, now in _changed_values(before.static, self.static):
            return (
                f"static argument `{name}`: {was} before, {now} now",
                "Let it be an argument that is not static, unless it decides a shape.",
            )
        if self.structure != before.structure:
            return (
                f"the structure of the arguments: {before.structure} before, {self.structure} now",
                "Pass containers of the same keys, lengths and types each time.",
            )
        pairs = zip(self.names, before.avals, self.avals, strict=False)
        for i, (name, was, now) in enumerate(pairs):
            if was is not now and i >= self.num_arguments:
                return (
                    f"an array that the function captures: {was!r} before, {now!r} now",
                    "Pass it as an argument, of one of a few shapes and of one dtype.",
                )
            if was is not now:
                return f"argument `{name}`: {was!r} before, {now!r} now", _argument_advice(
                    name, was, now
                )
        if self.jit_id != before.jit_id:
            return (
                "the function: it is a new object each time",
                "Call jit once, outside of what is called again, and pass what changes as arguments.",
            )
        return self.operation_difference(before)

    def operation_difference(self, before: CompilationRecord) -> tuple[str, str]:
        """The first difference of two programs with equal arguments, and advice on it."""
        if self.length != before.length:
            return (
                f"the program: {before.length} operations before, {self.length} now",
                "A Python int that decides its length compiles for each value: use "
                "functx.lax.fori_loop or scan, or few lengths.",
            )
        for (was, _), (now, source) in zip_longest(
            before.operations, self.operations, fillvalue=("", None)
        ):
            if was != now:
                return (
                    f"an operation: {was} before, {now} now, at {source_line(source)}",
                    "A Python int that decides a shape, an index or an exponent compiles for each "
                    "value: use few values, or an array.",
                )
        return (
            "what it captured, or where the arguments lie",
            "Pass as arguments what the function captures, placed alike each time.",
        )


def _operation_text(primitive: Primitive) -> str:
    """`primitive` with its parameters that are numbers, strings or tuples of these."""
    values = [(field, getattr(primitive, field)) for field in primitive.fields]
    text = ", ".join([f"{field}={value!r}" for field, value in values if _is_plain(value)])
    return f"{primitive.name}[{text}]"


def _is_plain(value: object) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return isinstance(value, (int, float, complex, str))


def _argument_advice(name: str, was: ShapedArray, now: ShapedArray) -> str:
    if was.shape != now.shape:
        return f"Pad `{name}` to one of a few shapes: every shape compiles."
    if was.dtype != now.dtype:
        return f"Convert `{name}` to one dtype."
    return f"Only the weak type (~) of a Python number differs: convert `{name}` to an array."


def _changed_values(
    before: Mapping[str, object], now: Mapping[str, object]
) -> list[tuple[str, object, object]]:
    return [(name, before.get(name), x) for name, x in now.items() if before.get(name) != x]


class _CallSite:
    """A call in the user's code, and its last compilation for one function."""

    def __init__(self, *codes: CodeType):
        # The key of the call holds the identities of these, which are kept alive here.
        self.codes = codes
        self.count = 0
        self.last: Any = None


_call_sites: dict[Any, _CallSite] = {}
clear_on_rule_change(_call_sites.clear)


def record_compilation(
    code: CodeType | None, *parts: Any, kind: object = None, **more: Any
) -> None:
    """Counts a compilation for a function with the code object `code`; warns when there are too many.

    `kind` distinguishes programs that one call compiles for one function. The other arguments are
    those of `CompilationRecord.of`.
    """
    source = user_source(2)
    if code is None or source is None or file_owner[code.co_filename] is FUNCTX_OR_JAX:
        return
    warn_of_repeats(
        source,
        code,
        kind,
        lambda: CompilationRecord.of(*parts, **more),
        f"{parts[0]}: one call should compile a few times at most, since that takes far longer than "
        "to run",
    )


def warn_of_repeats(
    source: Source,
    code: CodeType,
    kind: object,
    record: Callable[[], RepeatRecord],
    requirement: str,
) -> None:
    """Counts a compilation or capture of `code` by the call at `source`; warns when there are too many."""
    key = id(source[0]), source[1], id(code), kind
    call = _call_sites.get(key)
    if call is None:
        if len(_call_sites) >= 1024:
            _call_sites.clear()
        call = _call_sites[key] = _CallSite(source[0], code)
    if call.count > COMPILATIONS_BEFORE_WARNING:
        return
    last, call.last = call.last, record()
    if last is not None and not call.last.may_be_same_function(last):
        return
    call.count += 1
    if call.count <= COMPILATIONS_BEFORE_WARNING or last is None:
        return
    difference, advice = call.last.difference(last)
    call.last = None
    warning = RecompilationWarning(
        f"{requirement}; got {call.count} times",
        f"differing: {difference}",
        fix=advice,
        source=source,
    )
    line = user_line(source)
    where = line[0].co_filename, line_number(line)
    warnings.warn_explicit(warning, RecompilationWarning, *where)


def code_of_program(program: Program) -> CodeType | None:
    """The code object of the function that `program` was traced from, None if it is unknown."""
    return program.in_names.code if type(program.in_names) is InputNames else None


def code_of_function(fun: Function) -> CodeType | None:
    """The code object of the function that `fun` wraps or calls, None if it has none."""
    fun = unwrap_function(fun, "func")
    code = getattr(getattr(fun, "__func__", fun), "__code__", None)
    if not isinstance(code, CodeType):
        code = getattr(getattr(type(fun), "__call__", None), "__code__", None)  # noqa: B004
    return code
