"""The reference interpreter: it runs a program equation by equation by NumPy definitions.

A definition is on the class of a primitive, or in the modules beside this one. The interpreter
shares no code with the lowering. Real numbers are float64 and complex numbers complex128, whatever
the dtypes of the program, so its results are more precise than those compared with it.
`RoundingErrors` adds random errors of the size of a rounding to each operation: the spread of
several runs shows how far a correct computation may be from the reference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, lru_cache, partial
from importlib import import_module
from typing import Any, NamedTuple, TypeVar

import numpy as np
from ml_dtypes import finfo

from functx import ops
from functx.core.backend import backend
from functx.core.effects import Effect
from functx.core.errors import ArgumentError
from functx.core.memory_layouts import result_strides
from functx.core.primitive import Primitive
from functx.core.primitive_families import View
from functx.core.program import Atom, Equation, Program, Var
from functx.core.samples import EXACT, Rounding
from functx.core.strides import in_memory_order
from functx.core.types import DTYPES_BY_SHORT_NAME, ShapedArray, is_complex, is_inexact, real_dtype
from functx.core.typing import ArrayLike

MODULES = (
    "control",
    "draws",
    "elementwise",
    "linear_algebra",
    "nn",
    "reductions",
    "special_functions",
)
"""The modules of definitions that are too long for the class, or need SciPy or JAX.

Such a definition is a function with the name of the class: `DotGeneral(*operands, **parameters)`.
"""

Array = np.ndarray[Any, Any]
Definition = Callable[..., Any]
Run = Callable[[Program, Sequence[Array]], list[Array]]
DefinitionT = TypeVar("DefinitionT", bound=Definition)

EXACT_DTYPE_DEFINITIONS: set[Definition] = set()
"""Definitions that take operands in the dtypes of the program, not wide ones."""

SUBPROGRAM_DEFINITIONS: set[Definition] = set()
"""Definitions that take `run(program, args)` as the first argument."""

PRIMITIVE_DEFINITIONS: set[Definition] = set()
"""Definitions that take the primitive itself, before the operands, in place of its parameters."""


def exact_dtypes(definition: DefinitionT) -> DefinitionT:
    """`definition`, noted as one that takes operands in the dtypes of the program."""
    EXACT_DTYPE_DEFINITIONS.add(definition)
    return definition


def runs_subprograms(definition: DefinitionT) -> DefinitionT:
    """`definition`, noted as one that runs sub-programs."""
    SUBPROGRAM_DEFINITIONS.add(definition)
    return definition


def takes_primitive(definition: DefinitionT) -> DefinitionT:
    """`definition`, noted as one that takes the primitive in place of its parameters."""
    PRIMITIVE_DEFINITIONS.add(definition)
    return definition


@cache
def definition_by_name(class_name: str) -> Definition | None:
    """The function of the modules of definitions with the name of a primitive class of functx."""
    modules = [import_module(f"{__package__}.{name}") for name in MODULES]
    return next((vars(m)[class_name] for m in modules if class_name in vars(m)), None)


def definition_by_class(cls: type[Primitive]) -> Definition | None:
    """The definition of a primitive class: `numpy` of the class, or else a function with its name."""
    if cls.numpy is not None:
        return cls.numpy
    return definition_by_name(cls.__name__) if cls.__module__.startswith("functx.") else None


def numpy_definition(primitive: Primitive, *first: Definition) -> Definition | None:
    """The function of operands that defines `primitive`; None if it has no definition.

    `first` is the argument of definitions that run sub-programs.
    """
    if primitive.numpy is not None:
        return primitive.numpy
    definition = definition_by_class(type(primitive))
    if definition is None:
        return None
    first = first if definition in SUBPROGRAM_DEFINITIONS else ()
    if definition in PRIMITIVE_DEFINITIONS:
        return partial(definition, *first, primitive)
    return partial(definition, *first, **{f: getattr(primitive, f) for f in primitive.fields})


Compute = Callable[[Sequence[Array]], list[Array]]


def rounding_of(cls: type[Primitive]) -> Rounding:
    """The rounding error of a primitive: none where the definition rounds by itself."""
    if cls.rounding is not None:
        return cls.rounding
    definition = definition_by_class(cls)
    rounds_itself = definition in EXACT_DTYPE_DEFINITIONS or definition in SUBPROGRAM_DEFINITIONS
    return EXACT if rounds_itself else Rounding()


class RoundingErrors:
    """Random errors of the size of a rounding, determined by a seed; without a seed, no errors.

    With `clips`, values beyond the largest number of their dtype overflow to infinity and values
    below the least normal number flush to zero. A compiler may do both or neither. With `narrow`,
    each operation is computed in the dtypes of the program.
    """

    def __init__(self, seed: int | None = None, clips: bool = True, narrow: bool = False):
        self.random = None if seed is None else np.random.RandomState(seed)
        self.clips, self.narrow = clips, narrow

    def outputs(self, eqn: Equation, args: Sequence[Array], compute: Compute) -> list[Array]:
        """The outputs of an equation with random errors; `compute(args)` are the outputs without."""
        primitive = eqn.primitive
        rounding = rounding_of(type(primitive))
        if type(primitive) is ops.BitcastConvertType and self.random is not None:
            return compute([self.perturb_last_bits(args[0], eqn.inputs[0].aval.dtype)])
        if rounding == EXACT:
            return compute(args)
        out_dtypes = [v.aval.dtype for v in eqn.outputs]
        if self.random is None:
            outs = compute(args)
        else:
            dtypes = [atom.aval.dtype for atom in eqn.inputs]
            if self.clips:
                args = [flush_subnormals(x, d) for x, d in zip(args, dtypes, strict=True)]
            outs = compute([self.perturb(x, d, 1.0) for x, d in zip(args, dtypes, strict=True)])
            if self.narrow:
                outs = recompute_narrow(outs, args, dtypes, compute)
            if type(primitive) is ops.Div and not self.clips:
                # XLA divides within the branches of a selection, and simplifies 0 / x to 0 there.
                outs = [np.where((args[0] == 0) & (args[1] == 0), 0, outs[0])]
            outs = [
                self.add_rounding(x, d, rounding) for x, d in zip(outs, out_dtypes, strict=True)
            ]
            if type(primitive) is ops.ConvertElementType and not is_inexact(out_dtypes[0]):
                outs = [self.randomize_overflow(args[0], outs[0])]
            if rounding.is_exact_if_representable and is_inexact(out_dtypes[0]):
                (exact,), (out,) = compute(args), outs
                mask = is_surely_representable(exact, out_dtypes[0])
                for x, dtype in zip(args, dtypes, strict=True):
                    mask = mask & is_surely_representable(x, dtype)
                outs = [np.where(mask, exact, out)]
        if not self.clips:
            return outs
        outs = [overflow_to_infinity(x, d) for x, d in zip(outs, out_dtypes, strict=True)]
        return (
            outs
            if self.random is None
            else [flush_subnormals(x, d) for x, d in zip(outs, out_dtypes, strict=True)]
        )

    def add_rounding(self, x: Array, dtype: np.dtype[Any], rounding: Rounding) -> Array:
        """The result `x` with a random error of the size that `rounding` states."""
        x = self.perturb(x, dtype, rounding.ulps, not rounding.is_componentwise)
        if is_inexact(dtype) and (rounding.is_absolute or rounding.is_normwise):
            size = np.max(np.abs(x), initial=0.0) if rounding.is_normwise else 1.0
            x = x + rounding.ulps * limits(dtype).eps * size * self.random_factors(x.shape)
        return x

    def perturb_last_bits(self, x: Array, dtype: np.dtype[Any]) -> Array:
        """`x`, perturbed by some units in the last place where it may have been rounded."""
        perturbed = self.perturb(x, dtype, self.random.randint(0, 5))  # type: ignore[union-attr]
        return (
            np.where(is_representable(x, np.dtype(np.float16)), x, perturbed)
            if is_inexact(dtype)
            else x
        )

    def randomize_overflow(self, x: Array, out: Array) -> Array:
        """`out`, the integers of `x`, random where `x` is out of range, which XLA leaves undefined."""
        if not is_inexact(x.dtype) or out.dtype == bool:
            return out
        info = np.iinfo(out.dtype)
        inside = (x.real > float(info.min) - 1) & (x.real < float(info.max) + 1)
        return np.where(inside, out, self.random.randint(0, 2, out.shape)).astype(out.dtype)  # type: ignore[union-attr]

    def perturb(self, x: Array, dtype: np.dtype[Any], units: float, modulus: bool = False) -> Array:
        """`x` with an error of about `units` in the last place, plus the least normal number.

        With `modulus`, the error of each component of a complex number is relative to its modulus.
        """
        if self.random is None or not is_inexact(dtype):
            return x
        eps, least, _ = limits(dtype)
        errors = self.random_factors(x.shape)
        if modulus and is_complex(dtype):
            errors = errors + 1j * self.random_factors(x.shape)
        error = errors * (units * eps * (np.abs(x) if modulus else x) + least)
        return x + np.where(np.isfinite(x) & (x != 0), error, 0.0)

    def random_factors(self, shape: tuple[int, ...]) -> Array:
        """Random factors between 0.25 and 1.25 of both signs; equal factors could hide a periodic function."""
        uniform = 2.0 * self.random.random_sample(shape) - 1.0  # type: ignore[union-attr]
        return 0.5 * uniform + np.copysign(0.75, uniform)


class Limits(NamedTuple):
    """The machine epsilon of a dtype, its least normal number and its largest number."""

    eps: float
    least: float
    largest: float


@lru_cache(maxsize=64)
def limits(dtype: np.dtype[Any]) -> Limits:
    """The limits of an inexact dtype."""
    info = finfo(dtype)
    return Limits(float(info.eps), float(info.tiny), float(info.max))


def is_representable(x: Array, dtype: np.dtype[Any]) -> Array:
    """The mask of elements of the wide array `x` that `dtype` represents exactly."""
    return (not is_inexact(dtype)) | (x.astype(dtype).astype(x.dtype) == x)


def is_surely_representable(x: Array, dtype: np.dtype[Any]) -> Array:
    """`is_representable`, but in 32 bits for a 64-bit dtype, to which `x` may already be rounded."""
    narrower = {np.dtype(np.float64): np.float32, np.dtype(np.complex128): np.complex64}
    return is_representable(x, np.dtype(narrower.get(dtype, dtype)))


def recompute_narrow(
    outs: Sequence[Array], args: Sequence[Array], dtypes: Sequence[np.dtype[Any]], compute: Compute
) -> list[Array]:
    """`outs`, replaced by a computation in the dtypes of the operands where that overflows.

    For 32-bit dtypes all elements are replaced, which also shows the effect of cancellation.
    """
    bf16, single = DTYPES_BY_SHORT_NAME["bf16"], np.dtype(np.float32)
    dtypes = [single if d == bf16 else d for d in dtypes]
    narrow = [x.astype(d) for x, d in zip(args, dtypes, strict=True)]
    try:
        narrow_outs = compute(narrow)
    except TypeError:
        # NumPy has no matrix functions of half floats.
        return list(outs)
    if single in dtypes or np.dtype(np.complex64) in dtypes:
        return narrow_outs
    pairs = zip(narrow_outs, outs, strict=True)
    return [np.where(np.isfinite(low) & (low != 0), wide, low) for low, wide in pairs]


def flush_subnormals(x: Array, dtype: np.dtype[Any]) -> Array:
    """`x` with zeros for elements below the least normal number of `dtype`."""
    if not is_inexact(dtype):
        return x
    if is_complex(dtype):
        part = real_dtype(dtype)
        return complex_from_parts(flush_subnormals(x.real, part), flush_subnormals(x.imag, part))
    small = np.abs(x) < limits(dtype).least
    return np.where(small, np.copysign(0.0, x), x) if small.any() else x


def complex_from_parts(real: Array, imag: Array) -> Array:
    """The complex128 array with these parts."""
    out = np.empty(real.shape, np.complex128)
    out.real, out.imag = real, imag
    return out


def overflow_to_infinity(x: Array, dtype: np.dtype[Any]) -> Array:
    """`x` with infinities for elements beyond the largest number of `dtype`."""
    if not is_inexact(dtype):
        return x
    if is_complex(dtype):
        part = real_dtype(dtype)
        return complex_from_parts(
            overflow_to_infinity(x.real, part), overflow_to_infinity(x.imag, part)
        )
    eps, _, largest = limits(dtype)
    overflows = np.abs(x) > largest + largest * eps / 4
    return np.where(overflows, x * np.inf, x) if overflows.any() else x


def interpret_in_numpy(program: Program, *args: ArrayLike) -> list[Array]:
    """The outputs of `program` on arrays, computed by NumPy definitions, in the program's dtypes.

    All values are float64 or complex128 if inexact, and rounded to the dtypes of the program at
    the end. Writes happen in copies of the arguments. A primitive without a NumPy definition (a
    user's, or one with several right results such as `eigh`) is lowered and run alone. Raises
    ArgumentError for a wrong number of arguments.
    """
    values = [*args, *program.captured]
    if len(values) != len(program.inputs):
        count = len(program.inputs) - len(program.captured)
        raise ArgumentError(f"interpret: arguments must be {count}; got {len(args)}")
    outs = NumpyInterpreter().run(program, copy_arguments(program, values))
    return [narrow_array(x, aval.dtype) for x, aval in zip(outs, program.out_avals, strict=True)]


def copy_arguments(program: Program, args: Sequence[ArrayLike]) -> list[Array]:
    """Copies of `args` in wide dtypes, as operands of the interpreter."""
    pairs = zip(args, program.in_avals, strict=True)
    return [widen_array(np.array(x, aval.dtype, order="C")) for x, aval in pairs]


def apply_primitive(primitive: Primitive, args: Sequence[ArrayLike]) -> list[Array]:
    """The outputs of `primitive(*args)` by its NumPy definition, in wide dtypes."""
    arrays = [np.asarray(x) for x in args]
    avals = tuple([ShapedArray(x.shape, x.dtype) for x in arrays])
    with np.errstate(all="ignore"):
        return NumpyInterpreter().apply(primitive, avals, [widen_array(x) for x in arrays])


def widen_array(x: Array) -> Array:
    """`x` in float64 or complex128 if it is inexact, else `x`."""
    if not is_inexact(x.dtype):
        return x
    return x.astype(np.complex128 if np.iscomplexobj(x) else np.float64, copy=False)


def narrow_array(x: Array, dtype: np.dtype[Any]) -> Array:
    """`x` in `dtype`."""
    with np.errstate(all="ignore"):
        return np.asarray(x).astype(dtype, copy=False)


class StepLimitExceeded(Exception):
    """A run exceeds its limit of equations."""


class NumpyInterpreter:
    """Runs programs on wide arrays; with `rounding`, with errors of the program's dtypes.

    Raises StepLimitExceeded after more than `limit` equations.
    """

    def __init__(self, rounding: RoundingErrors | None = None, limit: float = math.inf):
        self.rounding, self.limit, self.steps = rounding, limit, 0

    @property
    def limit_of_similar_runs(self) -> int:
        """A limit for runs on slightly different values, for which a loop may not end."""
        return 1000 + 4 * self.steps

    def run(self, program: Program, args: Sequence[Array]) -> list[Array]:
        """The outputs of `program`; its writes change the arrays in `args`."""
        env = self.values(program, args)
        return [read_atom(env, atom) for atom in program.outputs]

    @np.errstate(all="ignore")
    def values(self, program: Program, args: Sequence[Array]) -> dict[Var, Array]:
        """The value of every variable of `program`."""
        env: dict[Var, Array] = dict(zip(program.inputs, args, strict=True))
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
            if program.writes and not isinstance(primitive, View):
                outs = [_new_memory(primitive, avals, operands, x) for x in outs]
            env.update(zip(eqn.outputs, outs, strict=True))
        return env

    def apply(
        self, primitive: Primitive, avals: tuple[ShapedArray, ...], args: Sequence[Array]
    ) -> list[Array]:
        """The outputs of a primitive on wide operands of types `avals`."""
        definition = numpy_definition(primitive, self.run)
        if definition is None or definition_by_class(type(primitive)) in EXACT_DTYPE_DEFINITIONS:
            args = [narrow_array(x, a.dtype) for x, a in zip(args, avals, strict=True)]
        out_avals = primitive.out_avals(avals)
        try:
            out = backend.evaluate(primitive, args) if definition is None else definition(*args)
        except (ValueError, np.linalg.LinAlgError):
            if all([np.isfinite(x).all() for x in args if x.dtype.kind in "fc"]):
                raise
            # NumPy and SciPy refuse matrices that are not finite; the results of XLA are nan.
            nans = [np.full(aval.shape, np.nan).astype(aval.dtype) for aval in out_avals]
            out = nans if primitive.multiple_results else nans[0]
        outs = zip(primitive.as_list(out), out_avals, strict=True)
        return [as_wide_dtype(x, aval) for x, aval in outs]


def _new_memory(
    primitive: Primitive, avals: tuple[ShapedArray, ...], operands: Sequence[Array], out: Array
) -> Array:
    """A copy of `out`, a result for `operands`, with the memory order that NumPy gives it."""
    copy = np.array(out, order="C")
    strides = [tuple([n // x.itemsize for n in x.strides]) for x in operands]
    return in_memory_order(copy, result_strides(primitive, avals, strides, copy.shape))


def read_atom(env: dict[Var, Array], atom: Atom) -> Array:
    """The value of a variable in `env`, or of a literal."""
    if type(atom) is Var:
        return env[atom]
    return widen_array(np.asarray(atom.value).astype(atom.aval.dtype))


def as_wide_dtype(x: ArrayLike, aval: ShapedArray) -> Array:
    """`x` in the wide dtype for an inexact `aval`, else in the dtype of `aval`."""
    if not is_inexact(aval.dtype):
        return narrow_array(np.asarray(x), aval.dtype)
    return widen_array(np.asarray(x))
