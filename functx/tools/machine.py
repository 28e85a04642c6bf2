"""`machine`: what the device can do at best, measured: operations and bytes a second."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from time import perf_counter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from functx.core.typing import Value
from functx.passes.costs import Cost
from functx.tools.cost import format_count


class Machine(NamedTuple):
    """The most flops and bytes a second that one device was seen to do, in float32."""

    platform: str
    flops_per_second: float
    bytes_per_second: float

    def least_seconds(self, cost: Cost) -> float:
        """The roofline: the time of the work, or that of the bytes, whichever is longer."""
        work = (cost.flops + cost.transcendentals) / self.flops_per_second
        return max(work, cost.bytes / self.bytes_per_second)

    def limit(self, cost: Cost) -> str:
        """Whether the roofline is that of the work or of the memory."""
        work = (cost.flops + cost.transcendentals) / self.flops_per_second
        return "compute" if work > cost.bytes / self.bytes_per_second else "memory"

    def __str__(self) -> str:
        work, moved = format_count(self.flops_per_second), format_count(self.bytes_per_second)
        return f"{self.platform}: {work}flop/s, {moved}B/s"


def machine() -> Machine:
    """The speed of the default device, measured once in a process, in about a second.

    A product of large matrices gives the flops, a sum of long vectors the bytes.

    >>> import functx
    >>> functx.tools.machine().bytes_per_second > 0
    True
    """
    return measure(jax.default_backend())


@lru_cache(maxsize=8)
def measure(platform: str) -> Machine:
    """The speed of the first device of a platform."""
    small = platform == "cpu"
    rows, length = (1024, 1 << 24) if small else (8192, 1 << 28)
    with jax.default_device(jax.devices(platform)[0]), jax.enable_x64(False):
        a = jnp.ones((rows, rows), jnp.float32)
        v = jnp.ones((length,), jnp.float32)
        product = jax.jit(lambda a: a @ a)
        # In place, so that no memory is allocated.
        add_one = jax.jit(lambda v: v + 1, donate_argnums=0)
        latest = [v]

        def step() -> Value:
            latest[0] = add_one(latest[0])
            return latest[0]

        flops = 2 * rows**3 / least_time(product, [a])
        moved = 2 * v.nbytes / least_time(step, [])
    return Machine(platform, flops, moved)


def least_time(fun: Callable[..., Any], args: list[Any], runs: int = 5) -> float:
    """The seconds of the fastest of `runs` calls, after one that may compile."""
    jax.block_until_ready(fun(*args))
    seconds = []
    for _ in range(runs):
        start = perf_counter()
        jax.block_until_ready(fun(*args))
        seconds.append(perf_counter() - start)
    return max(min(seconds), 1e-9)
