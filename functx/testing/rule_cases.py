"""Rule cases: a primitive on one sample in one dtype, the inputs of its rules, and tolerances."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import cached_property
from itertools import combinations, product
from typing import Any

import jax
import numpy as np

from functx import ops
from functx.core.errors import DTypeError, ShapeError
from functx.core.masks import indices_where, inexact_mask
from functx.core.named_axes import AxisNames
from functx.core.primitive import Primitive, is_linear_input
from functx.core.program import Program
from functx.core.rewriting import apply, cached_rewrite
from functx.core.samples import Sample, avals_with_dtype, draw_operands, f32, sample
from functx.core.tracer import aval_of
from functx.core.tracing import trace
from functx.core.types import (
    DTYPES_BY_SHORT_NAME,
    SHORT_NAMES,
    ShapedArray,
    is_complex,
    is_inexact,
    kind,
)
from functx.core.typing import (
    Avals,
    Cotangents,
    Dim,
    Flags,
    Function,
    Tangent,
    Tangents,
    Value,
    Values,
)
from functx.testing.numerical_derivatives import Array, central_difference, widen
from functx.testing.reference import interpret_in_numpy
from functx.testing.rule_evaluation import (
    BATCH_SIZES,
    CheckedOperation,
    Dims,
    EvaluationName,
    EvaluationResults,
    InterpretedRules,
    checked_tracing,
    lower_side_by_side,
    pullback_program,
)
from functx.transforms.batching import Batch, BatchWithInferredOutDims
from functx.transforms.forward_mode import JVPRewrite
from functx.transforms.linear_transpose import Transpose
from functx.transforms.reverse_mode import SplitVJP

TOLERANCES = {
    "f64": 1e-9,
    "c128": 1e-9,
    "f32": 1e-5,
    "c64": 1e-5,
    "f16": 1e-2,
    "bf16": 5e-2,
}
"""By dtype, the tolerance between two computations of one value, relative to the largest element."""

DIFFERENCE_STEPS = {"f64": (2e-4, 1e-7), "f32": (3e-2, 1e-2), "f16": (0.1, 0.2), "bf16": (0.2, 0.5)}
"""By dtype, the step of a central difference, and the tolerance of a derivative against it."""

CANDIDATE_DTYPES = {
    "f": ("f64", "f32", "bf16", "f16", "c128", "c64", "i32", "i8", "u32", "bool"),
    "c": ("c128", "c64"),
    "i": ("i32", "i8", "i64", "u8", "u32", "bool"),
    "u": ("u32", "u8", "u64"),
    "b": ("bool",),
}
"""By kind of the main dtype of a sample, the dtypes to try; rules are checked in the first."""


def make_rule_cases(
    primitive_class: type[Primitive], sample: Sample, complex_too: bool = False
) -> list[RuleCase]:
    """The cases of a sample: in float64 or the widest accepted dtype, and with `complex_too` in complex128."""
    with checked_tracing():
        primitive = primitive_under_test(primitive_class, sample)
        names = accepted_dtypes(primitive, sample)
        if not names:
            raise AssertionError(
                f"{primitive!r}: `abstract_eval` must accept a sample's operands; got a "
                f"DTypeError for {', '.join(map(repr, sample.avals))}"
            )
        case_names = names[:1]
        if complex_too and "c128" in names[1:]:
            case_names.append("c128")
        return [RuleCase(primitive, sample, name, names) for name in case_names]


def accepted_dtypes(primitive: Primitive, sample: Sample) -> list[str]:
    """The names of the dtypes that `primitive` accepts instead of the main dtype of the sample."""
    if not sample.avals:
        return ["f32"]
    main = next((a.dtype for a in sample.avals if is_inexact(a.dtype)), sample.avals[0].dtype)

    def accepts(name: str) -> bool:
        try:
            primitive.infer_out_avals(avals_with_dtype(sample, DTYPES_BY_SHORT_NAME[name]))
        except DTypeError:
            return False
        return True

    return [name for name in sample.dtypes or CANDIDATE_DTYPES[kind(main)] if accepts(name)]


class RuleCase:
    """A primitive on one sample in one dtype: the inputs and the results of its rules.

    `results` holds the arrays of each evaluation by name. `evaluate`, `batched_by_loop` and
    `differences` run the primitive itself, for comparison.
    """

    def __init__(self, primitive: Primitive, sample: Sample, name: str, names: Sequence[str]):
        self.primitive, self.sample, self.dtype_names = primitive, sample, names
        self.has_widest_dtype = name == names[0]
        self.dtype = DTYPES_BY_SHORT_NAME[name]
        self.avals = avals_with_dtype(sample, self.dtype)
        self.args = self._draw(0)
        self.has_stated_gradients = sample.gradients is not None
        self.rewrites: dict[tuple[Any, Program], Any] = {}
        self.program = self.trace_primitive(self.avals)
        self.out_avals = self.program.out_avals
        self.inexact_mask = tuple(inexact_mask(self.avals))
        self.inexact = indices_where(self.inexact_mask)
        self.inexact_outs = indices_where(inexact_mask(self.out_avals))
        dtype_name, tolerance = _least_precise([*self.avals, *self.out_avals])
        factor = sample.tolerance[0] if sample.tolerance else 1.0
        self.difference_step, difference = DIFFERENCE_STEPS[dtype_name]
        self.tolerance, self.difference_tolerance = factor * tolerance, factor * difference
        random = np.random.RandomState(7)
        in_avals = [self.avals[i] for i in self.inexact]
        ct_avals = [self.out_avals[i] for i in self.inexact_outs]
        # Tangents and cotangents of the first and the second order.
        self.tangents = [_direction(random, a) for a in in_avals]
        self.cts = [_direction(random, a) for a in ct_avals]
        self.ct_tangents = [_direction(random, a) for a in ct_avals]
        self.second_cts = [_direction(random, a) for a in in_avals]

    def __repr__(self) -> str:
        return f"{self.primitive!r} on {', '.join(map(repr, self.avals))}"

    def _draw(self, seed: int) -> list[Array]:
        return draw_operands(self.sample, seed, self.dtype if self.avals else None)

    def trace_primitive(self, avals: Avals) -> Program:
        """The program of one equation, the primitive on operands of `avals`."""
        return trace(lambda *xs: self.bind(*xs), avals, name=self.primitive.name)[0]

    @cached_property
    def programs(self) -> dict[str, Program]:
        """By name of the dtype, the program of one equation."""
        return {
            name: self.trace_primitive(avals_with_dtype(self.sample, DTYPES_BY_SHORT_NAME[name]))
            for name in self.dtype_names
        }

    @cached_property
    def operations(self) -> list[CheckedOperation]:
        """The operations whose lowering is compared with their definition.

        They are the primitive in every dtype of the sample, and each operation of its rules.
        """
        operations = [*self.interpreted.operations.values()]
        if self.has_widest_dtype:
            for name, program in self.programs.items():
                dtype = DTYPES_BY_SHORT_NAME[name] if self.avals else None
                draws = [draw_operands(self.sample, seed, dtype) for seed in (1, 0, 11, 12)]
                operations.append(CheckedOperation(self.primitive, program, draws))
        return operations

    @cached_property
    def lowered_operations(self) -> jax.stages.Lowered:
        """All `operations` lowered in one module."""
        return lower_side_by_side([operation.program for operation in self.operations])

    def bind(self, *args: Value) -> list[Value]:
        """The outputs of the primitive on traced operands, as a list."""
        return self.primitive.as_list(self.primitive(*args))

    def rewritten(self, rewrite: Function, program: Program) -> Any:
        """The result of a rewrite, recorded in `rewrites` for the check that it is reproducible."""
        result = cached_rewrite(rewrite, program)
        self.rewrites[rewrite, program] = result
        return result

    @cached_property
    def pullback(self) -> Program:
        """The program from operands and output cotangents to the cotangents of all operands."""
        return pullback_program(self)

    @property
    def varying_subsets(self) -> list[tuple[int, ...]]:
        """The sets of varying operands to check: all non-empty ones for up to three operands."""
        n = len(self.inexact)
        sizes = range(1, n + 1) if n <= 3 else (1, 2, n)
        return [s for size in sizes for s in combinations(self.inexact, size)]

    @cached_property
    def batchings(self) -> list[Dims]:
        """Choices of batch dimensions: for each operand None, the first or the last dimension."""
        choices: list[Dims] = [(None, 0, a.ndim) if a.ndim else (None, 0) for a in self.avals]
        if len(choices) <= 3:
            return [dims for dims in product(*choices) if set(dims) - {None}]
        first, last = tuple([0] * len(choices)), tuple([c[-1] for c in choices])
        single = [
            tuple([dims[i] if i == j else None for i in range(len(choices))])
            for j in range(len(choices))
            for dims in (first, last)
        ]
        return [first, last, *single]

    @cached_property
    def nested_batchings(self) -> list[tuple[Dims, Dims]]:
        """About eight pairs of an inner and an outer choice of batch dimensions."""
        choices = self.batchings
        pairs = []
        for k, inner in enumerate(choices[:: 1 + len(choices) // 8]):
            outer = choices[(3 * k + 1) % len(choices)]
            # The inner batch dimension moves the last dimension by one.
            dims = tuple([d and d + (e is not None) for d, e in zip(outer, inner, strict=True)])
            pairs.append((inner, dims))
        return pairs

    @cached_property
    def linear_sets(self) -> list[tuple[tuple[int, ...], bool]]:
        """The sets of operands that the primitive is linear in, with whether the others must be zero.

        A set is linear if f(a u + b v) = a f(u) + b f(v) for random u and v.
        """
        if not self.primitive.has_rule("transpose") or not self.inexact_outs:
            return []
        positions = set(getattr(self.primitive, "linear", self.inexact))
        return [
            (varying, zero)
            for varying in self.varying_subsets
            if positions.issuperset(varying)
            for zero in (False, True)
            if self._is_linear(varying, zero) and not (zero and self._is_linear(varying, False))
        ]

    def _is_linear(self, varying: Sequence[int], zero: bool) -> bool:
        u, v = self._draw(11), self._draw(12)
        fixed = self.args_with_zeros(varying, zero)

        def at(args: Sequence[Array]) -> list[Array]:
            return self.evaluate([args[i] if i in varying else x for i, x in enumerate(fixed)])

        with np.errstate(all="ignore"):
            combined = [np.asarray(-0.75 * x + 0.5 * y, x.dtype) for x, y in zip(u, v, strict=True)]
            try:
                right = [-0.75 * x + 0.5 * y for x, y in zip(at(u), at(v), strict=True)]
                left = at(combined)
            except np.linalg.LinAlgError:
                return False  # Of a matrix of zeros.
            # Zero or empty outputs prove nothing about several operands.
            is_conclusive = any(np.any(x) for x in left) or (not zero and len(varying) == 1)
            return is_conclusive and all(
                map(is_within_tolerance, left, right, [self.tolerance] * len(left))
            )

    def args_with_zeros(self, varying: Sequence[int], zero: bool) -> list[Array]:
        """The operands; with `zero`, inexact operands outside `varying` are zeros."""
        return [
            np.zeros_like(x) if zero and i not in varying and self.inexact_mask[i] else x
            for i, x in enumerate(self.args)
        ]

    @cached_property
    def interpreted(self) -> InterpretedRules:
        """All evaluations, as programs that run by NumPy definitions."""
        with checked_tracing():
            return InterpretedRules(self)

    @property
    def results(self) -> EvaluationResults:
        """By name, the arrays of each evaluation on the drawn operands, or the exception that it raised."""
        return self.interpreted.results

    def result(self, name: EvaluationName) -> list[Array]:
        """The arrays of an evaluation. Raises AssertionError if it raised an exception."""
        result = self.results[name]
        if isinstance(result, BaseException):
            label = name if isinstance(name, str) else " ".join(map(str, name))
            raise AssertionError(
                f"{self!r}: {label} raised {type(result).__name__}: {result}"
            ) from result
        return result

    def evaluate(self, args: Sequence[Array]) -> list[Array]:
        """The outputs of the primitive on `args`, by its definition."""
        with checked_tracing():
            return interpret_in_numpy(self.program, *args)

    def batched_by_loop(self, inner: Dims, outer: Dims | None = None) -> list[Array]:
        """The batched outputs, computed by Python loops over the batch elements."""
        rows = [
            [self._at(inner, m, outer, n) for m in range(BATCH_SIZES[0])]
            for n in range(BATCH_SIZES[1] if outer else 1)
        ]
        stacked = [
            np.stack([np.stack([outs[k] for outs in row]) for row in rows])
            for k in range(len(self.out_avals))
        ]
        return stacked if outer else [x[0] for x in stacked]

    def _at(self, inner: Dims, m: int, outer: Dims | None, n: int) -> list[Array]:
        """The outputs at one index of both batches, memoised by the index of each operand."""
        indices = [
            (m if d is not None else 0, n if e is not None else 0)
            for d, e in zip(inner, outer or [None] * len(inner), strict=True)
        ]
        key = tuple(indices)
        if key not in self._memo:
            self._memo[key] = self.evaluate(
                [self.batch_element(*index)[i] for i, index in enumerate(indices)]
            )
        return self._memo[key]

    @cached_property
    def _memo(self) -> dict[tuple[tuple[int, int], ...], list[Array]]:
        return {}

    def batch_element(self, m: int, n: int) -> list[Array]:
        """The operands at one index of the inner and of the outer batch."""
        return self._batch_elements[m + BATCH_SIZES[0] * n]

    def batched_operand(self, i: int, inner: Dim, outer: Dim) -> Array:
        """An operand stacked along the inner and the outer batch dimension, each unless None.

        One array for all choices of the other operands' dimensions, so that it is one input.
        """
        if (i, inner, outer) not in self._batched_operands:
            rows = [
                [self.batch_element(m, n)[i] for m in range(BATCH_SIZES[0])]
                for n in range(BATCH_SIZES[1])
            ]
            row = [xs[0] if inner is None else np.stack(xs, inner) for xs in rows]
            stacked = row[0] if outer is None else np.stack(row, outer)
            self._batched_operands[i, inner, outer] = np.asarray(stacked)
        return self._batched_operands[i, inner, outer]

    @cached_property
    def _batched_operands(self) -> dict[tuple[int, Dim, Dim], Array]:
        return {}

    @cached_property
    def _batch_elements(self) -> list[list[Array]]:
        return [self._draw(20 + k) for k in range(BATCH_SIZES[0] * BATCH_SIZES[1])]

    @cached_property
    def differences(self) -> dict[int, list[Array]]:
        """By operand, the central differences of the inexact outputs along its tangent."""

        def difference(i: int) -> list[Array]:
            def at(step: float) -> list[Array]:
                outs = self.evaluate(self.perturbed_args((i,), step))
                return [outs[k] for k in self.inexact_outs]

            return central_difference(at, self.difference_step)

        return {i: difference(i) for i in self.inexact}

    def perturbed_args(self, varying: Sequence[int], step: float) -> list[Array]:
        """The operands, with the varying ones moved by `step` along their tangents."""
        directions = dict(zip(self.inexact, self.tangents, strict=True))
        return [
            perturb_array(x, directions[i], step) if i in varying else x
            for i, x in enumerate(self.args)
        ]


def is_within_tolerance(x: Array, y: Array, tolerance: float) -> bool:
    """Whether `x` equals `y`; if inexact, up to `tolerance` times the largest finite element of `y`."""
    if not is_inexact(x.dtype):
        return np.array_equal(x, y)
    x, y = widen(x), widen(y)
    scale = max(1.0, float(np.max(np.abs(y), initial=0.0, where=np.isfinite(y))))
    return np.allclose(x, y, rtol=tolerance, atol=tolerance * scale, equal_nan=True)


def perturb_array(x: Array, direction: Array, step: float) -> Array:
    """`x + step * direction`, in the dtype of `x`."""
    return np.asarray(widen(x) + step * widen(direction)).astype(x.dtype)


def _least_precise(avals: Avals) -> tuple[str, float]:
    """The name of the least precise real dtype of `avals`, and its tolerance."""
    real = {"c128": "f64", "c64": "f32"}
    names = [SHORT_NAMES[a.dtype] for a in avals if SHORT_NAMES[a.dtype] in TOLERANCES]
    name = max(names, key=TOLERANCES.__getitem__, default="f64")
    return real.get(name, name), TOLERANCES[name]


def _direction(random: np.random.RandomState, aval: ShapedArray) -> Array:
    x = random.uniform(0.3, 1.0, aval.shape) * np.where(random.rand(*aval.shape) < 0.5, -1, 1)
    if is_complex(aval.dtype):
        x = x + 1j * random.uniform(-1.0, 1.0, aval.shape)
    return np.asarray(x).astype(aval.dtype)


class NamedAxisMap(Primitive):
    """`primitive` mapped over named axes, which are the first dimensions of all operands.

    Each rule maps the result of the same rule of the primitive.
    """

    primitive: Primitive
    axes: tuple[tuple[Hashable, int], ...]
    samples = (sample(f32[4, 3], primitive=ops.Psum(("i",)), axes=(("i", 4),)),)

    @property
    def linear(self) -> tuple[int, ...]:
        """The operands that the operation may be linear in: none if it has no `transpose` rule."""
        return (0,) if self.primitive.has_rule("transpose") else ()

    def program(self, *avals: ShapedArray) -> Program:
        """The program at one index of the named axes."""
        n = len(self.axes)
        unmapped = [a.update(shape=a.shape[n:]) for a in avals]
        return trace(lambda *xs: [self.primitive(*xs)], unmapped, name=self.primitive.name)[0]

    def run_batched(self, program: Program, args: Values) -> list[Value]:
        """The outputs of `program`, which is for one index, at all indices of the named axes."""
        for name, size in reversed(self.axes):
            dims = (0,) * len(program.inputs), (0,) * len(program.outputs)
            program = Batch(size, *dims, names=AxisNames(name))(program)
        return apply(None, program, args)

    def abstract_eval(self, *avals: ShapedArray) -> ShapedArray:
        sizes = tuple([n for _, n in self.axes])
        if any(a.shape[: len(sizes)] != sizes for a in avals):
            raise ShapeError(
                f"named_axis_map: operands must begin with the sizes of {self.axes}; got "
                + ", ".join(map(repr, avals))
            )
        (out,) = self.program(*avals).out_avals
        return out.update(shape=(*sizes, *out.shape))

    def jvp(self, primals: Values, tangents: Tangents) -> tuple[Value, Tangent]:
        rewrite = JVPRewrite(tuple([t is not None for t in tangents]))
        program = cached_rewrite(rewrite, self.program(*[aval_of(x) for x in primals]))
        operands = [*primals, *[t for t in tangents if t is not None]]
        outs = self.run_batched(program, operands)
        return outs[0], outs[1] if len(outs) > 1 else None

    def vjp(self, ct: Value, out: Value, args: Values, active: Flags) -> Cotangents:
        forward, backward = cached_rewrite(
            SplitVJP(tuple(active)), self.program(*[aval_of(x) for x in args])
        )
        residuals = self.run_batched(forward, args)[1:]
        cotangents = iter(self.run_batched(backward, [ct, *residuals]))
        return [next(cotangents) if is_active else None for is_active in active]

    def transpose(self, ct: Value, *args: Value) -> Cotangents:
        linear = tuple([is_linear_input(x) for x in args])
        program = cached_rewrite(
            Transpose(linear),
            self.program(
                *[
                    x.aval if is_linear else aval_of(x)
                    for x, is_linear in zip(args, linear, strict=True)
                ]
            ),
        )
        return self.run_batched(program, [ct, *[x for x in args if not is_linear_input(x)]])

    def batch(self, args: Values, dims: Sequence[Dim]) -> tuple[Value, Dim]:
        unbatched = [
            aval_of(x) if d is None else aval_of(x).update(shape=(*x.shape[:d], *x.shape[d + 1 :]))
            for x, d in zip(args, dims, strict=True)
        ]
        size = next(x.shape[d] for x, d in zip(args, dims, strict=True) if d is not None)
        batch = BatchWithInferredOutDims(size, (0,) * len(args), names=AxisNames())
        program, (dim,) = cached_rewrite(batch, self.program(*unbatched))
        assert dim is not None
        # The batch dimension comes first at each index, after the named axes.
        n = len(self.axes)
        operands = [ops.batch_dim_at(x, d, n, size) for x, d in zip(args, dims, strict=True)]
        (out,) = self.run_batched(program, operands)
        return out, dim + n

    def decompose(self, *args: Value) -> Value:
        return self.run_batched(self.program(*[aval_of(x) for x in args]), args)[0]


def primitive_under_test(cls: type[Primitive], sample: Sample) -> Primitive:
    """The primitive to check on a sample, mapped over the named axes of the sample if it has any."""
    primitive = cls(**sample.params)
    return NamedAxisMap(primitive, sample.across) if sample.across else primitive
