"""Transforms run by NumPy definitions: a test of derivatives, batches or writes need not compile them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from functx.core.backend import backend
from functx.core.rewriting import cached_rewrite
from functx.testing import reference


@contextmanager
def by_reference() -> Iterator[None]:
    """Run programs of transforms by the NumPy interpreter instead of compiling them, but not `jit`."""
    before = backend.run

    def run(rewrite: Any, program: Any, args: Sequence[Any]) -> list[Any]:
        outs = reference.interpret_in_numpy(cached_rewrite(rewrite, program), *args)
        return [np.array(x) for x in outs]

    backend.run = run
    try:
        yield
    finally:
        backend.run = before
