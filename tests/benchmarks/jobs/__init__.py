"""Whole jobs as users write them, one text for functx and JAX: to compile, to run, and the same values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np

from tests.benchmarks.frameworks import FUNCTX, JAX
from tests.benchmarks.jobs import control, inference, learning, physics, sequences
from tests.benchmarks.measures import Compiled, Options, Row

Build = Callable[[Any], tuple[Callable[..., Any], tuple[Any, ...]]]


@dataclass(frozen=True)
class Job:
    """A job: `build` gives the function for a framework, and its arguments."""

    build: Build

    @cached_property
    def args(self) -> Any:
        """The arguments, as arrays of JAX."""
        return jax.tree.map(jax.numpy.asarray, self.build(JAX)[1])

    def of(self, fx: Any) -> Callable[..., Any]:
        """The function for a framework."""
        return self.build(fx)[0]

    def rows(self, name: str, options: Options) -> Iterator[Row]:
        """Two rows: seconds to compile, and of a call. Raises AssertionError if results differ."""
        self.check()
        yield from Compiled(self.of, self.args, (0.95, 1.0)).rows(name, options)

    def check(self) -> None:
        """Compare the results of the two frameworks, each leaf by the sum of its absolute values."""
        ours, theirs = [
            [float(np.abs(np.asarray(x, "float64")).sum()) for x in jax.tree.leaves(result)]
            for result in (fx.jit(self.of(fx))(*self.args) for fx in (FUNCTX, JAX))
        ]
        np.testing.assert_allclose(ours, theirs, rtol=2e-3, atol=1e-5)


JOBS = {
    build.__name__: Job(build)
    for module in (learning, sequences, inference, physics, control)
    for build in module.JOBS
}
