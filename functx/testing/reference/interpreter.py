"""The reference interpreter: a program run equation by equation, each by its NumPy meaning.

It shares nothing with the lowering, and follows the definition of each operation, not the
quickest way to it. Real numbers are float64 and complex numbers complex128, whatever dtype the
program states, so that its answers are more precise than those that they measure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from functx.core.avals import ShapedArray
from functx.core.dtypes import is_inexact
from functx.core.effects import Effect
from functx.core.errors import ArgumentError
from functx.core.primitive import Primitive
from functx.core.program import Program, Var
from functx.core.tracing import backend
from functx.testing.reference.meanings import EXACT_DTYPE_RULES, REFERENCE_RULES, SUBPROGRAM_RULES
from functx.testing.reference.rounding import RoundingErrors

Array = np.ndarray[Any, Any]

NON_UNIQUE_RESULTS = frozenset({"Eigh", "Svd"})
"""Operations with several right answers, of which the lowering chooses one."""


def interpret_in_numpy(program: Program, *args: Any) -> list[Array]:
    """The outputs of `program` on arrays, computed by NumPy, in the dtypes that it states.

    Values are rounded to these dtypes only at the end. A program with writes does them in NumPy's
    memory, in copies of the arguments. A primitive without a NumPy meaning (a user's, or one with
    several right answers such as `eigh`) is run as that one equation, lowered alone.
    """
    values = [*args, *program.captured]
    if len(values) != len(program.inputs):
        count = len(program.inputs) - len(program.captured)
        raise ArgumentError(f"interpret: arguments must be {count}; got {len(args)}")
    outs = NumpyInterpreter().run(program, copy_arguments(program, values))
    return [narrow_array(x, aval.dtype) for x, aval in zip(outs, program.out_avals, strict=True)]


def copy_arguments(program: Program, args: Sequence[Any]) -> list[Array]:
    """`args` as the interpreter takes them: wide, and in memory of their own."""
    pairs = zip(args, program.in_avals, strict=True)
    return [widen_array(np.array(x, aval.dtype, order="C")) for x, aval in pairs]


def apply_primitive(primitive: Primitive, args: Sequence[Any]) -> list[Array]:
    """The outputs of `primitive(*args)` by its meaning, as wide as that gives them."""
    arrays = [np.asarray(x) for x in args]
    avals = tuple([ShapedArray(x.shape, x.dtype) for x in arrays])
    with np.errstate(all="ignore"):
        return NumpyInterpreter().apply(primitive, avals, [widen_array(x) for x in arrays])


def widen_array(x: Array) -> Array:
    """`x` in float64 or complex128 if it is inexact, else as it is."""
    if not is_inexact(x.dtype):
        return x
    return x.astype(np.complex128 if np.iscomplexobj(x) else np.float64, copy=False)


def narrow_array(x: Array, dtype: Any) -> Array:
    """`x` in `dtype`."""
    with np.errstate(all="ignore"):
        return np.asarray(x).astype(dtype, copy=False)


class StepLimitExceeded(Exception):
    """A run takes more steps than it may."""


class NumpyInterpreter:
    """Runs programs on wide arrays; with `rounding`, as inexactly as their dtypes allow.

    Raises StepLimitExceeded after more than `limit` equations.
    """

    def __init__(self, rounding: RoundingErrors | None = None, limit: float = math.inf):
        self.rounding, self.limit, self.steps = rounding, limit, 0

    def run(self, program: Program, args: Sequence[Array]) -> list[Array]:
        """The outputs of `program`; arrays among `args` that it writes to change."""
        env = self.values(program, args)
        return [read_atom(env, atom) for atom in program.outputs]

    @np.errstate(all="ignore")
    def values(self, program: Program, args: Sequence[Array]) -> dict[Any, Array]:
        """The value of every variable of `program`."""
        env: dict[Any, Array] = dict(zip(program.inputs, args, strict=True))
        for eqn in program.equations:
            self.steps += 1
            if self.steps > self.limit:
                raise StepLimitExceeded
            primitive, operands = eqn.primitive, [read_atom(env, atom) for atom in eqn.inputs]
            if primitive.effects == {Effect.WRITE}:
                operands[0][...] = operands[1]
                continue
            avals = tuple([atom.aval for atom in eqn.inputs])
            compute = partial(self.apply, primitive, avals)
            if self.rounding is None:
                outs = compute(operands)
            else:
                outs = self.rounding.outputs(eqn, operands, compute)
            if program.writes and not primitive.view:
                outs = [np.array(x, order="C") for x in outs]
            env.update(zip(eqn.outputs, outs, strict=True))
        return env

    def apply(
        self, primitive: Primitive, avals: tuple[ShapedArray, ...], args: Sequence[Array]
    ) -> list[Array]:
        """The outputs of a primitive on wide operands, whose types are `avals`."""
        cls = type(primitive)
        name = cls.__name__ if cls.__module__.startswith("functx.") else ""
        meaning = None if name in NON_UNIQUE_RESULTS else REFERENCE_RULES.get(name)
        if meaning is None or name in EXACT_DTYPE_RULES:
            args = [narrow_array(x, a.dtype) for x, a in zip(args, avals, strict=True)]
        if meaning is None:
            out = backend.evaluate(primitive, args)
        else:
            params = {field: getattr(primitive, field) for field in primitive.fields}
            first = (self.run,) if name in SUBPROGRAM_RULES else ()
            out = meaning(*first, *args, **params)
        outs = list(out) if primitive.multiple_results else [out]
        stated = primitive.out_avals_memo.get(avals) or primitive.infer_out_avals(avals)
        return [as_wide_dtype(x, aval) for x, aval in zip(outs, stated, strict=True)]


def read_atom(env: dict[Any, Array], atom: Any) -> Array:
    """The value of a variable in `env`, or of a literal."""
    if type(atom) is Var:
        return env[atom]
    return widen_array(np.asarray(atom.value).astype(atom.aval.dtype))


def as_wide_dtype(x: Any, aval: ShapedArray) -> Array:
    """`x` in the wide dtype that stands for that of `aval`."""
    if not is_inexact(aval.dtype):
        return narrow_array(x, aval.dtype)
    return widen_array(np.asarray(x))
