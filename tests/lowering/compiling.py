"""How often JAX compiles, counted."""

from contextlib import contextmanager

import jax


class Count:
    """So many compilations since it was made."""

    total = 0

    def __init__(self):
        self.start = Count.total

    @property
    def n(self):
        return Count.total - self.start


def _listen(event, duration, **_):
    if event == "/jax/core/compile/backend_compile_duration":
        Count.total += 1


jax.monitoring.register_event_duration_secs_listener(_listen)


@contextmanager
def compilations():
    """Counts what is compiled inside the block."""
    yield Count()
