"""How much memory a derivative may take: what users may say, and what it means."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from decimal import Decimal
from typing import Any, NamedTuple

from functx.core.backend import backend
from functx.core.builder import program_checks
from functx.core.caches import invalidate_caches
from functx.core.errors import ArgumentError, ValueRangeError, type_name
from functx.core.garbage_collection import GARBAGE_COLLECTION_MODES, garbage_collection
from functx.core.records import Record
from functx.core.tracebacks import TRACEBACK_FILTERING_MODES, traceback_filter

MEMORY_MODES = "off", "min_cut"
_UNITS = {"b": 1} | {
    f"{letter}{suffix}": base**power
    for power, letter in enumerate("kmgt", 1)
    for suffix, base in (("b", 1000), ("ib", 1024))
}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?i?b)\s*", re.IGNORECASE)


class MemoryBudget(Record):
    """The temporaries that a derivative may take: `bytes`, or a `fraction` of what it takes plainly."""

    bytes: int = 0
    fraction: float | None = None

    def bytes_for(self, plain: int) -> int:
        """The bytes, where the plain derivative takes so many."""
        return self.bytes if self.fraction is None else int(self.fraction * plain)


def parse_memory_mode(what: str, given: Any) -> str | MemoryBudget | None:
    """`given` as a memory mode: a word of `MEMORY_MODES`, a budget, or None for None.

    Raises ArgumentError and ValueRangeError for anything else, in the name of `what`.
    """
    if given is None or isinstance(given, MemoryBudget):
        return given
    must = f"{what}: memory must be one of {MEMORY_MODES} or a budget"
    fix = 'Give a size as "2GiB" or "500MB", an int of bytes, or a float from 0 to 1.'
    if isinstance(given, str):
        if given in MEMORY_MODES:
            return given
        found = _SIZE.fullmatch(given)
        if found is None:
            raise ValueRangeError(f"{must}; got {given!r}", fix=fix)
        return MemoryBudget(int(Decimal(found[1]) * _UNITS[found[2].lower()]))
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise ArgumentError(f"{must}; got {type_name(given)}", fix=fix)
    if isinstance(given, int):
        if given < 0:
            raise ValueRangeError(f"{must} of no less than 0 bytes; got {given}", fix=fix)
        return MemoryBudget(given)
    if not 0 <= given <= 1:
        raise ValueRangeError(
            f"{must}, of which a float is a fraction from 0 to 1; got {given}", fix=fix
        )
    return MemoryBudget(fraction=given)


def format_bytes(count: float) -> str:
    """`1.5 MiB`: a number of bytes for reading."""
    power = 0
    while abs(count) >= 1024 and power < len(_BYTE_UNITS) - 1:
        count, power = count / 1024, power + 1
    return f"{count:.{int(power > 0)}f} {_BYTE_UNITS[power]}"


_BYTE_UNITS = "B", "KiB", "MiB", "GiB", "TiB"


def _enum_option(name: str, *words: str) -> Any:
    """A switch with a value among `words`, at first the first of them."""

    return _option(words[0], lambda word: check_choice(f"config: {name}", word, words))


def check_choice(what: str, word: Any, words: tuple[str, ...]) -> Any:
    """`word`; raises ValueRangeError, in the name of `what`, if it is none of `words`."""
    if not isinstance(word, str) or word not in words:
        raise ValueRangeError(f"{what} must be one of {words}; got {word!r}")
    return word


def _option(value: Any, check: Callable[[Any], Any]) -> Any:
    """A switch that is at first `value`, and then what `check` makes of what it is set to."""

    def given(_: Config) -> Any:
        return value

    def change(_: Config, new: Any) -> None:
        nonlocal value
        before, value = value, check(new)
        if value != before:
            invalidate_caches()

    return property(given, change)


def _jax_option(name: str) -> Any:
    """A switch that is one of JAX's by another name."""
    return property(
        lambda _: backend.jax_option(name),
        lambda _, value: backend.set_jax_option(name, value),
    )


OUTLINE_MODES = "auto", "always", "never"
SIMPLIFY_MODES = "auto", "always", "never"


class TraceOptions(NamedTuple):
    """Options of one function that override `config`, and the active modes (`functx.library.Mode`).

    An option is None where the function does not override it.
    """

    outline: str | None = None
    memory: Any = None
    modes: tuple[Any, ...] = ()

    @property
    def key(self) -> Any:
        """The options as part of the key of a trace: modes compare by their state."""
        if not self.modes:
            return self
        return self._replace(modes=tuple([mode.key() for mode in self.modes]))


trace_options: ContextVar[TraceOptions] = ContextVar("asked", default=TraceOptions())  # noqa: B039 - a tuple
"""The options of the function that is being traced."""


def contextual_key(key: Any) -> Any:
    """`key` with the context that a result computed from a program also depends on.

    Rules run in a rewrite. They keep what the memory plan says, and call operators, which do what
    modes say.
    """
    wishes = trace_options.get()
    if wishes.memory is None and not wishes.modes:
        return key
    return wishes._replace(outline=None).key, key


def outline_mode() -> str:
    """Whether repeats are outlined, by the function that is being traced or by `config`."""
    return trace_options.get().outline or config.outline


def memory_plan() -> Any:
    """The memory plan of derivatives, from the function that is being traced or from `config`.

    "off", "min_cut", a `Budget`, or, while one is being met, a plan that is tried.
    """
    return trace_options.get().memory or config.memory


class Config:
    """Switches that hold for the whole process.

    - `check_programs`: whether every program made is checked for scope and types.
    - `operator_vmap`: what `vmap` makes of a custom operator without a rule for it, one call
      after the other ("sequential") or an error ("error").
    - `operator_aliases`: whether an array of JAX that a custom operator returns as it was given is
      refused ("error") or counts as a copy ("copy").
    - `outline`: whether what a program repeats is compiled once and called: where it pays ("auto"),
      wherever it can be ("always"), or not ("never").
    - `simplify`: whether programs are made simpler before they are compiled: where it pays ("auto"),
      in every way ("always"), or not ("never").
    - `verify`: whether `functx.testing.verify` checks every new program that `jit` or a transform is
      about to compile, on its first arguments. It makes the first call of each slow; later ones are as ever.
    - `memory`: what derivatives keep of the forward computation, as `jit(memory=)` has it.
    - `compilation_cache`: the directory in which compiled programs are kept for later processes, or
      None. `compilation_cache_min_seconds` and `compilation_cache_min_bytes` say how long a program
      must take to compile, and how large it must be, to be kept; to give a directory sets the first to 0.

    - `traceback_filtering`: what tracebacks show of the frames of functx and JAX: nothing
      ("quiet_remove_frames", and so "auto"), nothing but for the whole traceback as the cause
      ("remove_frames"), all, marked for notebooks and pytest to skip ("tracebackhide"), or all ("off").

    - `garbage_collection`: whether Python's garbage collector runs less often while functx traces
      functions, and not at all while it rewrites programs and is imported ("tune"), or as the process
      has it ("leave"). The environment variable `FUNCTX_GARBAGE_COLLECTION` sets it before the import.

    Set one by assignment, by `update(name, value)`, or for the length of a block by
    `with functx.config.set(outline="never")`. All but `check_programs`, `traceback_filtering` and those
    of the compilation cache forget every compiled program when they change, and at the end of a block once more. The
    64-bit switch is JAX's own: `jax.config.update("jax_enable_x64", True)`.
    """

    @property
    def check_programs(self) -> bool:
        return program_checks.enabled

    @check_programs.setter
    def check_programs(self, on: bool) -> None:
        program_checks.enabled = bool(on)

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
        MEMORY_MODES[0], lambda given: parse_memory_mode("config", given) or MEMORY_MODES[0]
    )
    simplify = _enum_option("simplify", *SIMPLIFY_MODES)
    verify = _option(False, bool)

    compilation_cache = _jax_option("compilation_cache")
    compilation_cache_min_seconds = _jax_option("compilation_cache_min_seconds")
    compilation_cache_min_bytes = _jax_option("compilation_cache_min_bytes")

    def update(self, name: str, value: Any) -> None:
        """Set a switch by name; raises ArgumentError for a name that is none."""
        _check_option_name(name)
        object.__setattr__(self, name, value)

    __setattr__ = update

    @contextmanager
    def set(self, **switches: Any) -> Iterator[None]:
        """Switches for the length of a `with` block."""
        for name in switches:
            _check_option_name(name)
        before = {name: getattr(self, name) for name in switches}
        try:
            for name, value in switches.items():
                self.update(name, value)
            yield
        finally:
            for name, value in before.items():
                setattr(self, name, value)


def _check_option_name(name: Any) -> None:
    known = [n for n, value in vars(Config).items() if isinstance(value, property)]
    if name not in known:
        raise ArgumentError(
            f"config: a switch must be one of {', '.join(known)}; there is no switch {name!r}",
            fix="Switches of JAX are set by jax.config.update, and hold for functx too.",
        )


config = Config()
