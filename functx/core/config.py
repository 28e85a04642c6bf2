"""`functx.config`, the options of the process; options of single functions; and memory budgets."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from decimal import Decimal
from typing import Any, NamedTuple

from functx.core.backend import backend
from functx.core.caches import GARBAGE_COLLECTION_MODES, garbage_collection, invalidate_caches
from functx.core.errors import ArgumentError, ValueRangeError, type_name
from functx.core.tracebacks import TRACEBACK_FILTERING_MODES, traceback_filter
from functx.core.types import draw_settings

MEMORY_MODES = "off", "min_cut"
_UNITS = {"b": 1} | {
    f"{letter}{suffix}": base**power
    for power, letter in enumerate("kmgt", 1)
    for suffix, base in (("b", 1000), ("ib", 1024))
}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?i?b)\s*", re.IGNORECASE)


class program_checks:  # noqa: N801 - a switch, set through `functx.config`
    """Whether each new program is checked (`functx.core.checking`)."""

    enabled = False


class MemoryBudget(NamedTuple):
    """The largest memory for temporaries of a derivative: `bytes`, or a `fraction` of the unplanned memory."""

    bytes: int = 0
    fraction: float | None = None

    def bytes_for(self, unplanned: int) -> int:
        """The budget in bytes, for a derivative that takes `unplanned` bytes without a plan."""
        return self.bytes if self.fraction is None else int(self.fraction * unplanned)


def parse_memory_mode(label: str, memory: object) -> str | MemoryBudget | None:
    """The memory mode that a user gave: one of `MEMORY_MODES`, a budget, or None.

    Raises ArgumentError and ValueRangeError for any other value; `label` names the function.
    """
    if memory is None or isinstance(memory, MemoryBudget):
        return memory
    must = f"{label}: memory must be one of {MEMORY_MODES} or a budget"
    fix = 'Give a size as "2GiB" or "500MB", an int of bytes, or a float from 0 to 1.'
    if isinstance(memory, str):
        if memory in MEMORY_MODES:
            return memory
        size = parse_bytes(memory)
        if size is None:
            raise ValueRangeError(f"{must}; got {memory!r}", fix=fix)
        return MemoryBudget(size)
    if isinstance(memory, bool) or not isinstance(memory, int | float):
        raise ArgumentError(f"{must}; got {type_name(memory)}", fix=fix)
    if isinstance(memory, int):
        if memory < 0:
            raise ValueRangeError(f"{must} of no less than 0 bytes; got {memory}", fix=fix)
        return MemoryBudget(memory)
    if not 0 <= memory <= 1:
        raise ValueRangeError(
            f"{must}, of which a float is a fraction from 0 to 1; got {memory}", fix=fix
        )
    return MemoryBudget(fraction=memory)


def parse_bytes(text: str) -> int | None:
    """The number of bytes of a size such as "2GiB" or "500MB"; None for any other text."""
    size = _SIZE.fullmatch(text)
    return None if size is None else int(Decimal(size[1]) * _UNITS[size[2].lower()])


def format_bytes(count: float) -> str:
    """`1.5 MiB`: a number of bytes as messages show it."""
    power = 0
    while abs(count) >= 1024 and power < len(_BYTE_UNITS) - 1:
        count, power = count / 1024, power + 1
    return f"{count:.{int(power > 0)}f} {_BYTE_UNITS[power]}"


_BYTE_UNITS = "B", "KiB", "MiB", "GiB", "TiB"


def _enum_option(name: str, *choices: str) -> property:
    """An option whose value is one of `choices`, by default the first."""

    return _option(choices[0], lambda value: check_choice(f"config: {name}", value, choices))


def check_choice(label: str, value: object, choices: tuple[str, ...]) -> str:
    """`value`; raises ValueRangeError, which begins with `label`, if it is not one of `choices`."""
    if not isinstance(value, str) or value not in choices:
        raise ValueRangeError(f"{label} must be one of {choices}; got {value!r}")
    return value


def _option(value: object, check: Callable[[Any], Any]) -> property:
    """An option with the default `value`; setting it stores `check(new)` and clears caches."""

    def get(_: Config) -> object:
        return value

    def change(_: Config, new: object) -> None:
        nonlocal value
        before, value = value, check(new)
        if value != before:
            invalidate_caches()

    return property(get, change)


def _jax_option(name: str) -> property:
    """An option of JAX under another name."""
    return property(
        lambda _: backend.jax_option(name),
        lambda _, value: backend.set_jax_option(name, value),
    )


class _RecordingLimits:
    """The size at which the operations recorded on Variables run although no value was read."""

    operations = 20_000
    bytes = 4 * 2**30


recording_limits = _RecordingLimits()


def _check_limit(name: str, value: object) -> int:
    """A limit of recordings that a user gave; raises ArgumentError and ValueRangeError."""
    must, fix, number = f"config: recording_{name} must be a positive int", "", value
    if name == "bytes":
        must, fix = f"{must} or a size", 'Give a size as "2GiB" or "500MB", or an int of bytes.'
        number = (parse_bytes(value) or 0) if isinstance(value, str) else value
    if isinstance(number, bool) or not isinstance(number, int):
        raise ArgumentError(f"{must}; got {type_name(value)}", fix=fix)
    if number < 1:
        raise ValueRangeError(f"{must}; got {value!r}", fix=fix)
    return number


def _limit_option(name: str) -> property:
    """The option for the attribute `name` of `recording_limits`; it changes no program."""
    return property(
        lambda _: getattr(recording_limits, name),
        lambda _, value: setattr(recording_limits, name, _check_limit(name, value)),
    )


OUTLINE_MODES = "auto", "always", "never"
SIMPLIFY_MODES = "auto", "always", "never"


class TraceOptions(NamedTuple):
    """Options of one function that override `config`, and the active modes (`functx.library.Mode`).

    An option is None where the function does not override it.
    """

    outline: str | None = None
    memory: object = None
    modes: tuple[Any, ...] = ()

    @property
    def key(self) -> TraceOptions:
        """The options as part of the key of a trace: modes compare by their state."""
        if not self.modes:
            return self
        return self._replace(modes=tuple([mode.key() for mode in self.modes]))


NO_TRACE_OPTIONS = TraceOptions()
trace_options: ContextVar[TraceOptions] = ContextVar("trace_options", default=NO_TRACE_OPTIONS)
"""The options of the function that is being traced."""


def contextual_key(key: Hashable) -> Hashable:
    """`key` with the trace options and the settings of JAX that the result of a rewrite depends on."""
    settings = draw_settings()
    return option_key(key if settings == (True, 0) else (settings, key))


def option_key(key: Hashable) -> Hashable:
    """`key` with the trace options that the result of a rewrite without random draws depends on.

    Rules run in a rewrite: the memory plan decides which residuals they save, and modes decide
    what operators do.
    """
    options = trace_options.get()
    if options.memory is None and not options.modes:
        return key
    return options._replace(outline=None).key, key


def outline_mode() -> str:
    """The option `outline` of the function that is being traced, else of `config`."""
    return trace_options.get().outline or config.outline


def memory_plan() -> object:
    """The option `memory` of the function that is being traced, else of `config`.

    "off", "min_cut", a `MemoryBudget`, or a candidate plan while a planner searches for one that
    meets a budget.
    """
    return trace_options.get().memory or config.memory


class Config:
    """Options that hold for the whole process.

    - `check_programs`: whether each new program is checked for scope and types.
    - `operator_vmap`: how `vmap` maps a custom operator without a `vmap` rule: one call after the
      other ("sequential"), or as an error ("error").
    - `operator_aliases`: whether a custom operator that returns one of its JAX arrays unchanged is
      refused ("error") or returns a copy ("copy").
    - `outline`: whether repeated parts of a program are compiled once and called: where it pays
      ("auto"), wherever possible ("always"), or not ("never").
    - `simplify`: whether programs are simplified before they are compiled: where it pays ("auto"), in
      every way ("always"), or not ("never").
    - `recognize_laplacians`: whether the trace of what `hessian` returns, and sums of v · H v by loops, in
      a traced function, are computed as Laplacians, without the Hessian.
    - `stable_formulas`: whether formulas that overflow or cancel, such as `log(1 + exp(x))`, are computed
      and differentiated by stable ones.
    - `verify`: whether `functx.testing.verify` checks each new program on its first arguments, before
      `jit` or a transform compiles it. Only the first call of each program becomes slower.
    - `memory`: which values of the forward computation derivatives save, as in `jit(memory=)`.
    - `compilation_cache`: the directory that keeps compiled programs for later processes, or None.
      Only programs that take at least `compilation_cache_min_seconds` to compile and have at least
      `compilation_cache_min_bytes` are kept; setting a directory sets the first to 0.
    - `traceback_filtering`: whether tracebacks omit the frames of functx and JAX
      ("quiet_remove_frames", also "auto"), omit them and show the whole traceback as the cause
      ("remove_frames"), mark them for notebooks and pytest to skip ("tracebackhide"), or show them
      ("off").
    - `garbage_collection`: whether Python's garbage collector runs less often in traces, and not at all
      in rewrites and during the import ("tune"), or as the process has set it ("leave"). The
      environment variable `FUNCTX_GARBAGE_COLLECTION` sets it before the import.
    - `recording_operations`, `recording_bytes`: how many operations on Variables are recorded, and how
      many bytes their operands and results have in all, until they run although no value was looked
      at. A limit of 1 runs each operation at once. Bytes are an int or a size such as "2GiB".

    Set an option by assignment, by `update(name, value)`, or within a block by
    `with functx.config.set(outline="never")`. A change of `operator_vmap`, `operator_aliases`,
    `outline`, `simplify`, `recognize_laplacians`, `stable_formulas`, `verify` or `memory` clears all
    compiled programs; so does the end of a block that set one. The options of JAX are set by their
    names, which begin with `jax_`, and hold for both: `functx.config.update("jax_enable_x64", True)`.
    """

    @property
    def check_programs(self) -> bool:
        return program_checks.enabled

    @check_programs.setter
    def check_programs(self, enabled: bool) -> None:
        program_checks.enabled = bool(enabled)

    @property
    def traceback_filtering(self) -> str:
        return traceback_filter.mode

    @traceback_filtering.setter
    def traceback_filtering(self, mode: str) -> None:
        traceback_filter.mode = check_choice(
            "config: traceback_filtering", mode, TRACEBACK_FILTERING_MODES
        )

    @property
    def garbage_collection(self) -> str:
        return garbage_collection.mode

    @garbage_collection.setter
    def garbage_collection(self, mode: str) -> None:
        garbage_collection.mode = check_choice(
            "config: garbage_collection", mode, GARBAGE_COLLECTION_MODES
        )

    operator_vmap = _enum_option("operator_vmap", "sequential", "error")
    operator_aliases = _enum_option("operator_aliases", "error", "copy")
    outline = _enum_option("outline", *OUTLINE_MODES)
    memory = _option(
        MEMORY_MODES[0], lambda value: parse_memory_mode("config", value) or MEMORY_MODES[0]
    )
    simplify = _enum_option("simplify", *SIMPLIFY_MODES)
    recognize_laplacians = _option(True, bool)
    stable_formulas = _option(True, bool)
    verify = _option(False, bool)

    recording_operations = _limit_option("operations")
    recording_bytes = _limit_option("bytes")

    compilation_cache = _jax_option("compilation_cache")
    compilation_cache_min_seconds = _jax_option("compilation_cache_min_seconds")
    compilation_cache_min_bytes = _jax_option("compilation_cache_min_bytes")

    def update(self, name: str, value: object) -> None:
        """Set an option by name; raises ArgumentError for an unknown name. `jax_...` is an option of JAX."""
        if isinstance(name, str) and name.startswith("jax_"):
            backend.set_jax_option(name, value)
            return
        _check_option_name(name)
        object.__setattr__(self, name, value)

    __setattr__ = update

    def __getattr__(self, name: str) -> object:
        """The value of an option of JAX, `jax_...`, or what else JAX's config has by this name.

        Programs written for JAX ask for `x64_enabled`, and call `parse_flags_with_absl()`.
        """
        if isinstance(name, str) and not name.startswith("_"):
            try:
                return backend.jax_option(name)
            except AttributeError:
                if name.startswith("jax_"):
                    raise
        raise AttributeError(f"config has no option {name!r}", name=name, obj=self)

    @contextmanager
    def set(self, **options: object) -> Iterator[None]:
        """Set options within a `with` block."""
        for name in options:
            _check_option_name(name)
        before = {name: getattr(self, name) for name in options}
        try:
            for name, value in options.items():
                self.update(name, value)
            yield
        finally:
            for name, value in before.items():
                setattr(self, name, value)


def _check_option_name(name: object) -> None:
    known = [n for n, value in vars(Config).items() if isinstance(value, property)]
    if name not in known:
        raise ArgumentError(
            f"config: the name of an option must be one of {', '.join(known)}; got {name!r}",
            fix="Options of JAX have names that begin with jax_.",
        )


config = Config()
