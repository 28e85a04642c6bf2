"""Writing: the one operation that changes a value, and the one that keeps it from changing."""

from __future__ import annotations

from typing import Any

import numpy as np

from functx.core.effects import Effect
from functx.core.errors import CapturedWriteError, DTypeError, ProgramError
from functx.core.primitive import Primitive
from functx.core.samples import f32, sample
from functx.core.tracing import aval_of, current_builder
from functx.ops.families import Linear


class Write(Primitive):
    """`x` takes the value `new`, and so does what it is a view of; there is no output.

    `functionalize` is the one transform that has heard of it: all others get pure programs.
    """

    effects = frozenset({Effect.WRITE})
    multiple_results = True

    def __call__(self, *args: Any) -> Any:
        builder = current_builder.get()
        if builder is None:
            raise CapturedWriteError(
                "a function that JAX traces must not write to an array from outside it, which JAX "
                f"would not know of; got a write to {aval_of(args[0])!r}",
                fix="Return the new value from that function and write it outside, or use the "
                "transform of functx in place of JAX's.",
            )
        builder.writes = True
        return super().__call__(*args)

    def abstract_eval(self, x, new):
        if new.shape != x.shape or new.dtype != x.dtype:
            raise DTypeError(
                f"write: the value must have the type of the target; got {new!r} for {x!r}"
            )
        return ()

    def forward(self, args, active):
        raise impure_program_error()

    def jvp(self, primals, tangents):
        raise impure_program_error()

    def batch(self, args, dims):
        raise impure_program_error()


def impure_program_error() -> ProgramError:
    """The error for a rewrite of a program that still has writes."""
    return ProgramError(
        "write: a program must have no writes when it is differentiated or batched; got one with "
        "a write to a value that varies",
        fix="Remove the writes first: functx.make_ir(functx.functionalize(f))(*args).",
    )


class Copy(Linear):
    """The elements of `x` in a storage of their own."""

    is_copy = True
    is_element_mapping = True
    host_kernel = np.array
    host_kernel_kinds = "biufc"
    samples = (sample(f32[2, 3]),)

    def __call__(self, *args: Any) -> Any:
        builder = current_builder.get()
        if builder is not None:
            builder.has_copies = True
        return super().__call__(*args)

    def abstract_eval(self, x):
        return x

    def transpose(self, ct, x):
        return (ct,)

    def batch(self, args, dims):
        return args[0], dims[0]

    def lower(self, ctx, x):
        return x
