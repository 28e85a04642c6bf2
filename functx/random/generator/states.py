"""`Generator`, its states, and the default generator of each thread."""

from __future__ import annotations

from operator import index
from typing import Any

import jax
import numpy as np

from functx.core.backend import backend
from functx.core.captured_state import state_table
from functx.core.errors import (
    GeneratorError,
    SeedTypeError,
    ValueRangeError,
    type_name,
)
from functx.core.generator_state import (
    DEFAULT_STATE,
    STATE_AVAL,
    GeneratorState,
    StateWords,
    fresh_seed,
    pack_state,
    unpack_state,
)
from functx.core.tracer import Tracer, current_builder, is_variable
from functx.core.typing import ArrayLike, Function, NumPyArray, PyTree, Value
from functx.ops.philox import Draw
from functx.ops.views import Copy
from functx.transforms.aliasing import write_state

__all__ = [
    "Generator",
    "default_generator",
    "get_state",
    "initial_seed",
    "manual_seed",
    "run_and_save_rng_state",
    "run_with_rng_state",
    "seed",
    "set_state",
]


class Generator:
    """A source of random numbers: a seed of 64 bits, and the number of words that were drawn from it.

    Draws take whole blocks of four words from the offset on. Without a seed, the operating system
    gives one. A generator belongs to one thread at a time. One that is made inside a transformed
    function begins anew in each call.

    Raises SeedTypeError for a seed that is no int, ValueRangeError for a negative one or one of more
    than 64 bits.

    >>> from functx import random
    >>> generator = random.Generator(7)
    >>> before = generator.get_state()
    >>> first = random.rand(2, generator=generator)
    >>> generator.set_state(before)
    >>> bool((random.rand(2, generator=generator) == first).all())
    True
    """

    __slots__ = ("_state",)

    def __init__(self, seed: int | None = None):
        seed = fresh_seed() if seed is None else check_seed("Generator", seed)
        builder = current_builder.get()
        if builder is None:
            self._state: GeneratorState | Tracer = GeneratorState(seed)
        else:
            self._state = Copy()(builder.tracer(pack_state(seed, 0)))

    def __repr__(self) -> str:
        is_traced = isinstance(self._state, Tracer) or state_table.get() is not None
        if is_traced or current_builder.get() is not None or backend.jax_is_tracing():
            return "Generator(traced)"
        seed, offset = unpack_state(self._state.read()).tolist()
        return f"Generator(seed={seed}, offset={offset})"

    def manual_seed(self, seed: int) -> Generator:
        """Start from `seed`, at offset 0; returns the generator."""
        self._write(pack_state(check_seed("manual_seed", seed), 0))
        return self

    def seed(self) -> int:
        """Start from a seed of the operating system, which is returned."""
        seed = fresh_seed()
        self._write(pack_state(seed, 0))
        return seed

    def initial_seed(self) -> int:
        """The seed that the generator started from."""
        if isinstance(self._state, Tracer) or current_builder.get() is not None:
            raise GeneratorError(
                "initial_seed: the seed must be read outside of a transformed function, in which it has "
                "no value; got a call inside one",
                fix="Use get_state(), or read the seed before.",
            )
        return int(unpack_state(self._state.read())[0])

    def get_state(self) -> NumPyArray | Value:
        """The seed and the offset, as two uint64; inside a transformed function the four words of both."""
        builder = current_builder.get()
        if builder is not None:
            return Copy()(builder.tracer(self._state))  # type: ignore[no-any-return]
        words = self._read()
        return words if is_variable(words) else unpack_state(words)

    def set_state(self, state: ArrayLike) -> None:
        """Continue from a state that `get_state` returned, inside a transformed function or outside.

        Raises GeneratorError for an array that is no state.
        """
        self._write(as_words(state))

    def _read(self) -> StateWords:
        if isinstance(self._state, Tracer):
            raise GeneratorError(
                "Generator: one that is made inside a transformed function must be used in it; got a use "
                "after the function has ended",
                fix="Make the generator outside of the function, which may capture it.",
            )
        return self._state.read()

    def _write(self, words: Any) -> None:
        if current_builder.get() is None:
            self._read()
        write_state(self._state, words)

    def draw(self, primitive: Draw, *parameters: ArrayLike) -> Value:
        """The numbers that `primitive` draws with these parameters; the state moves on."""
        builder = current_builder.get()
        if builder is None:
            state = self._read()
            if isinstance(state, jax.Array) and not is_variable(state):
                # On the host, so that draws outside of transforms are arrays that can be written to.
                state = np.asarray(state)
            out, words = primitive(state, *parameters)
        else:
            out, words = primitive(builder.tracer(self._state), *parameters)
        write_state(self._state, words)
        return out  # type: ignore[no-any-return]


def check_seed(caller: str, seed: object) -> int:
    """`seed` as an int; SeedTypeError unless it is an integer, ValueRangeError unless it has 64 bits."""
    if isinstance(seed, (bool, np.bool_)) or not hasattr(type(seed), "__index__"):
        raise SeedTypeError(f"{caller}: a seed must be an int; got {type_name(seed)} {seed!r:.40}")
    number = index(seed)  # type: ignore[arg-type]
    if not 0 <= number < 2**64:
        raise ValueRangeError(
            f"{caller}: a seed must not be negative and have at most 64 bits; got {number}"
        )
    return int(number)


def as_words(state: ArrayLike) -> StateWords:
    """The four words of a state as users have it; GeneratorError for an array that is none."""
    try:
        shape, dtype = np.shape(state), np.dtype(getattr(state, "dtype", type(state)))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        shape, dtype = (), np.dtype(object)
    if shape == (2,) and dtype == np.uint64 and not isinstance(state, Tracer):
        seed, offset = np.asarray(state).tolist()
        return pack_state(seed, offset)
    if shape == STATE_AVAL.shape and dtype == STATE_AVAL.dtype:
        return state if isinstance(state, Tracer) else np.array(state)
    raise GeneratorError(
        "set_state: a state must be what get_state returns, the seed and the offset as two uint64, or "
        f"the four words of both as uint32; got {type_name(state)}"
    )


default_generator = Generator.__new__(Generator)
"""The default generator, of which each thread has its own state."""
default_generator._state = DEFAULT_STATE


def check_generator(caller: str, generator: Generator | None) -> Generator:
    """`generator`, or the default one; GeneratorError for anything else."""
    if generator is None:
        return default_generator
    if not isinstance(generator, Generator):
        raise GeneratorError(
            f"{caller}: generator must be a functx.random.Generator or None; got {type_name(generator)}",
            fix="Make one with functx.random.Generator(seed); a key is the first argument of the function "
            "of the same name in functx.random.",
        )
    return generator


def manual_seed(seed: int) -> Generator:
    """Start the default generator of this thread from `seed`; returns the generator.

    >>> from functx import random
    >>> first = random.manual_seed(0) and random.rand(2)
    >>> again = random.manual_seed(0) and random.rand(2)
    >>> bool((first == again).all())
    True
    """
    return default_generator.manual_seed(seed)


def seed(seed: int | None = None) -> int:
    """Start the default generator of this thread from `seed`, which is returned.

    Without one, the operating system gives a seed.

    >>> from functx import random
    >>> random.seed(3)
    3
    """
    if seed is None:
        return default_generator.seed()
    default_generator.manual_seed(seed)
    return index(seed)


def initial_seed() -> int:
    """The seed that the default generator of this thread started from.

    >>> from functx import random
    >>> random.seed(5) == random.initial_seed()
    True
    """
    return default_generator.initial_seed()


def get_state(generator: Generator | None = None) -> NumPyArray | Value:
    """The state of a generator, by default that of this thread: the seed and the offset, as two uint64.

    Inside a transformed function it is the four words of both, `uint32`.

    >>> from functx import random
    >>> _ = random.seed(1), random.rand(5)
    >>> random.get_state().tolist()
    [1, 8]
    """
    return check_generator("get_state", generator).get_state()


def set_state(state: ArrayLike, generator: Generator | None = None) -> None:
    """Continue a generator, by default that of this thread, from a state of `get_state`.

    Raises GeneratorError for an array that is no state.

    >>> from functx import random
    >>> state = random.get_state()
    >>> first = random.rand(2)
    >>> random.set_state(state)
    >>> bool((first == random.rand(2)).all())
    True
    """
    check_generator("set_state", generator).set_state(state)


def run_and_save_rng_state(
    fun: Function, *args: PyTree, generator: Generator | None = None, **kwargs: PyTree
) -> tuple[NumPyArray | Value, PyTree]:
    """`(state, fun(*args, **kwargs))`, where `state` is that of the generator before the call.

    >>> from functx import random
    >>> state, first = random.run_and_save_rng_state(random.rand, 2)
    >>> bool((random.run_with_rng_state(state, random.rand, 2) == first).all())
    True
    """
    return check_generator("run_and_save_rng_state", generator).get_state(), fun(*args, **kwargs)


def run_with_rng_state(
    state: ArrayLike,
    fun: Function,
    *args: PyTree,
    generator: Generator | None = None,
    **kwargs: PyTree,
) -> PyTree:
    """`fun(*args, **kwargs)` with the generator at `state`; afterwards it is where it was before.

    Raises GeneratorError for an array that is no state.

    >>> from functx import random
    >>> before = random.get_state().tolist()
    >>> _ = random.run_with_rng_state(random.get_state(), random.randn, 3)
    >>> random.get_state().tolist() == before
    True
    """
    generator = check_generator("run_with_rng_state", generator)
    before = generator.get_state()
    generator.set_state(state)
    try:
        return fun(*args, **kwargs)
    finally:
        generator.set_state(before)
