"""Trials: a primitive on a sample, and all that its rules make of it.

What the checks need of a trial is traced into one program, its sections, and compiled once,
since compiling is what takes the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import combinations, product
from typing import Any

import jax
import numpy as np

from functx.core.avals import ShapedArray
from functx.core.decompositions import registered
from functx.core.dtypes import (
    DTYPES_BY_SHORT_NAME,
    SHORT_NAMES,
    is_complex,
    is_inexact,
    kind,
    x64_enabled,
)
from functx.core.errors import DTypeError
from functx.core.primitive import LinearInput, Primitive
from functx.core.program import Program
from functx.core.samples import Sample, draw, retyped
from functx.core.tracing import checking, current_builder, execution, rewritten, trace
from functx.lowering.call import executable
from functx.ops.families import where_live
from functx.ops.shaping import zeros_like
from functx.testing.derivatives import Array, central_difference, widest
from functx.transforms.batching import Batch
from functx.transforms.expand import made
from functx.transforms.forward_mode import PushForward
from functx.transforms.reverse_mode import SplitVJP, transposed_jvp

Dims = tuple[int | None, ...]
Section = Callable[["Given"], Sequence[Any]]

TOLERANCES = {
    "f64": 1e-9,
    "c128": 1e-9,
    "f32": 1e-5,
    "c64": 1e-5,
    "f16": 1e-2,
    "bf16": 5e-2,
}
"""How far two ways to compute the same thing may differ, relative to the largest value."""

STEPS = {"f64": (2e-4, 1e-7), "f32": (3e-2, 1e-2), "f16": (0.1, 0.2), "bf16": (0.2, 0.5)}
"""The step of a central difference, and how far a derivative may be from it."""

ACCEPTED = {
    "f": ("f64", "f32", "bf16", "f16", "c128", "c64", "i32", "i8", "u32", "bool"),
    "c": ("c128", "c64"),
    "i": ("i32", "i8", "i64", "u8", "u32", "bool"),
    "u": ("u32", "u8", "u64"),
    "b": ("bool",),
}
"""The dtypes to try, by the kind of a sample's main dtype; rules are checked in the first."""

QUICKLY = {"xla_backend_optimization_level": 0}
"""The options to compile with: what runs once need not run fast."""

SIZES = 2, 3
"""The lengths of the inner and of the outer batch."""


def trials(primitive_class: type[Primitive], one: Sample, complex_too: bool = False) -> list[Trial]:
    """The sample in float64, or the widest dtype it can have; and in complex128 if asked."""
    with harness():
        primitive = primitive_class(**one.params)
        names = accepted(primitive, one)
        if not names:
            raise AssertionError(
                f"{primitive!r}: `abstract_eval` must accept a sample's operands; got a "
                f"DTypeError for {', '.join(map(repr, one.avals))}"
            )
        chosen = names[:1]
        if complex_too and "c128" in names[1:]:
            chosen.append("c128")
        return [Trial(primitive, one, name, names) for name in chosen]


def accepted(primitive: Primitive, one: Sample) -> list[str]:
    """The dtypes that `primitive` takes in place of the main one of the sample."""
    if not one.avals:
        return ["f32"]
    main = next((a.dtype for a in one.avals if is_inexact(a.dtype)), one.avals[0].dtype)

    def takes(name: str) -> bool:
        try:
            primitive.out_types(retyped(one, DTYPES_BY_SHORT_NAME[name]))
        except DTypeError:
            return False
        return True

    return [name for name in one.dtypes or ACCEPTED[kind(main)] if takes(name)]


@contextmanager
def harness(x64: bool = True) -> Iterator[None]:
    """64-bit types on, or off, and every program checked."""
    enabled, checking.enabled = checking.enabled, True
    try:
        with jax.enable_x64(x64):
            yield
    finally:
        checking.enabled = enabled


class Trial:
    """A primitive on one sample in one dtype: its operands, and what its rules make of them.

    `results` and `compiled` hold that by the name of a section; all else is prepared on the
    way there, or measures it: `evaluate`, `looped` and `differences` ask the primitive
    itself, for single operands.
    """

    def __init__(self, primitive: Primitive, one: Sample, name: str, names: Sequence[str]):
        self.primitive, self.sample, self.dtype_names = primitive, one, names
        self.dtype = DTYPES_BY_SHORT_NAME[name]
        self.avals = retyped(one, self.dtype)
        self.args = self._draw(0)
        self.kinked = one.gradients is not None
        self.made: list[tuple[Any, Program, Any]] = []
        self.program = self.trace_primitive(self.avals)
        self.out_avals = self.program.out_avals
        self.mask = tuple([is_inexact(a.dtype) for a in self.avals])
        self.inexact = [i for i, on in enumerate(self.mask) if on]
        self.inexact_outs = [i for i, a in enumerate(self.out_avals) if is_inexact(a.dtype)]
        coarse, tolerance = _coarsest([*self.avals, *self.out_avals])
        factor = one.tolerance[0] if one.tolerance else 1.0
        self.step, slack = STEPS[coarse]
        self.tolerance, self.difference_tolerance = factor * tolerance, factor * slack
        random = np.random.RandomState(7)
        in_avals = [self.avals[i] for i in self.inexact]
        ct_avals = [self.out_avals[i] for i in self.inexact_outs]
        # Directions to differentiate in, and cotangents, of the first and the second order.
        self.tangents = [_direction(random, a) for a in in_avals]
        self.cts = [_direction(random, a) for a in ct_avals]
        self.ct_tangents = [_direction(random, a) for a in ct_avals]
        self.second_cts = [_direction(random, a) for a in in_avals]

    def __repr__(self) -> str:
        return f"{self.primitive!r} on {', '.join(map(repr, self.avals))}"

    def _draw(self, seed: int) -> list[Array]:
        return draw(self.sample, seed, self.dtype if self.avals else None)

    def trace_primitive(self, avals: Sequence[ShapedArray]) -> Program:
        """The program of one equation: the primitive on operands of `avals`."""
        return trace(lambda *xs: self._bind(*xs), avals, name=self.primitive.name)[0]

    def _bind(self, *args: Any) -> list[Any]:
        return _listed(self.primitive, self.primitive(*args))

    def _rewritten(self, rewrite: Any, program: Program) -> Any:
        """The rewrite of a program, kept for the check of every program made."""
        result = rewritten(rewrite, program)
        self.made.append((rewrite, program, result))
        return result

    # What is measured: the sections, each computed from traced operands.

    def sections(self) -> dict[Any, Section]:
        """What the checks need computed, by name."""
        primitive = self.primitive
        found: dict[Any, Section] = {}
        others = registered(type(primitive))
        for entry in others:
            found["decompose", entry.table] = lambda given, entry=entry: inline(
                made(entry, primitive, tuple(self.avals), x64_enabled()), given.args
            )
        if primitive.decompose is not None and (primitive.has_rule("lower") or others):
            found["decompose"] = lambda given: _listed(primitive, primitive.decompose(*given.args))  # type: ignore[misc]
        for dims in self.batchings:
            found["batch", dims] = lambda _, dims=dims: self._batched(dims)
        for inner, outer in self.nested_batchings:
            found["batch", inner, outer] = lambda _, i=inner, o=outer: self._batched(i, o)
        if not self.inexact or not self.inexact_outs:
            return found
        for chosen in self.subsets:
            found["jvp", chosen] = lambda given, s=chosen: self._pushed(given, s)
            found["vjp", chosen] = lambda given, s=chosen: self._pulled(given, s)
        for chosen, zero in self.linear_sets:
            found["transpose", chosen] = lambda given, s=chosen, z=zero: self._transposed(
                given, s, z
            )
        if primitive.vjp is not None and primitive.has_rule("jvp") and primitive.differentiable:
            found["vjp from jvp"] = self._derived_vjp
        if len(self.inexact_outs) > 1:
            for i in range(len(self.inexact_outs)):
                found["vjp of output", i] = lambda given, i=i: self._pulled_alone(given, i)
        if primitive.has_rule("live_operands") and len(self.out_avals) == 1:
            found["live", "anywhere"] = lambda given: self._live(given, None)
            found["live", "somewhere"] = lambda given: self._live(given, self.mask_of_ct)
        if not self.kinked:
            found["jvp of vjp"] = self._pushed_pullback
            found["vjp of vjp"] = self._pulled_pullback
        return found

    def _batched(self, inner: Dims, outer: Dims | None = None) -> Sequence[Any]:
        outs = (0,) * len(self.out_avals)
        program = self._rewritten(Batch(SIZES[0], inner, outs), self.program)
        if outer is not None:
            program = self._rewritten(Batch(SIZES[1], outer, outs), program)
        stacked = []
        for i, (d, e) in enumerate(zip(inner, outer or [None] * len(inner), strict=True)):
            lanes = [[self._lane(m, n)[i] for m in range(SIZES[0])] for n in range(SIZES[1])]
            stacked.append(_stack(lanes, d, e))
        return inline(program, stacked)

    def _pushed(self, given: Given, chosen: Sequence[int]) -> Sequence[Any]:
        flags = tuple([i in chosen for i in range(len(self.avals))])
        program = self._rewritten(PushForward(flags), self.program)
        tangents = [t for i, t in zip(self.inexact, given.tangents, strict=True) if i in chosen]
        return inline(program, [*given.args, *tangents])

    def _pulled(self, given: Given, chosen: Sequence[int]) -> list[Any]:
        flags = tuple([i in chosen for i in range(len(self.avals))])
        return self._pull(self.program, flags, given.args, given.cts)

    def _pull(
        self, program: Program, flags: tuple[bool, ...], args: Sequence[Any], cts: Sequence[Any]
    ) -> list[Any]:
        forward, backward = self._rewritten(SplitVJP(flags), program)
        outs = inline(forward, args)
        return inline(backward, [*cts, *outs[len(program.outputs) :]])

    def _pulled_alone(self, given: Given, output: int) -> list[Any]:
        """The pullback when the other outputs are unused."""
        k = self.inexact_outs[output]
        alone, _ = trace(lambda *xs: [self._bind(*xs)[k]], self.avals)
        return self._pull(alone, self.mask, given.args, [given.cts[output]])

    def _derived_vjp(self, given: Given) -> list[Any]:
        """The cotangents that `jvp` gives, in place of those of an overridden `vjp`."""
        cts = dict(zip(self.inexact_outs, given.cts, strict=True))
        every = [cts.get(k) for k in range(len(self.out_avals))]
        found = transposed_jvp(self.primitive, every, given.args, self.mask)
        return [_or_zeros(found[i], self.avals[i]) for i in self.inexact]

    def _transposed(self, given: Given, chosen: Sequence[int], zero: bool) -> list[Any]:
        args = []
        for i, x in enumerate(given.args):
            if i in chosen:
                args.append(LinearInput(self.avals[i]))
            else:
                args.append(zeros_like(x) if zero and self.mask[i] else x)
        cts = dict(zip(self.inexact_outs, given.cts, strict=True))
        every = [cts.get(k) for k in range(len(self.out_avals))]
        results = self.primitive.transpose(
            every if self.primitive.multiple_results else every[0], *args
        )
        assert len(results) == len(args), (
            f"`transpose` must return one entry an operand; got {len(results)} for {len(args)}"
        )
        for i, result in enumerate(results):
            assert i in chosen or result is None, (
                f"`transpose` must return None for operand {i}, which has a value"
            )
        return [_or_zeros(results[i], self.avals[i]) for i in chosen]

    @cached_property
    def mask_of_ct(self) -> Array:
        """Places of the first output, at random."""
        return np.asarray(np.random.RandomState(3).rand(*self.out_avals[0].shape) < 0.5)

    def _live(self, given: Given, live: Any) -> list[Any]:
        """The cotangents when that of the output is zero but where `live`, and where they live."""
        (ct,) = given.cts
        args = given.args
        cts = self._pull(
            self.program, self.mask, args, [ct if live is None else where_live(live, ct)]
        )
        lives = self.primitive.live_operands(live, args)
        found = []
        for i, pulled in zip(self.inexact, cts, strict=True):
            there = np.array(True) if lives[i] is None else lives[i]
            assert there.shape in ((), pulled.shape), (
                f"`live_operands` must give operand {i} a mask of its shape; got {there.shape}"
            )
            found += [pulled, there]
        return found

    @cached_property
    def _pullback(self) -> Program:
        """The program of the cotangents of all operands, from the operands and cotangents."""
        n = len(self.avals)
        return trace(
            lambda *xs: self._pull(self.program, self.mask, xs[:n], xs[n:]),
            [*self.avals, *[self.out_avals[k] for k in self.inexact_outs]],
            name=f"vjp_{self.primitive.name}",
        )[0]

    def _pushed_pullback(self, given: Given) -> Sequence[Any]:
        flags = (*self.mask, *[True] * len(given.cts))
        program = self._rewritten(PushForward(flags), self._pullback)
        tangents = [*given.tangents, *given.ct_tangents]
        return inline(program, [*given.args, *given.cts, *tangents])

    def _pulled_pullback(self, given: Given) -> list[Any]:
        flags = (*self.mask, *[True] * len(given.cts))
        return self._pull(self._pullback, flags, [*given.args, *given.cts], given.second_cts)

    # The choices that are tried.

    @property
    def subsets(self) -> list[tuple[int, ...]]:
        """The non-empty sets of operands that vary: all of them, for few operands."""
        n = len(self.inexact)
        sizes = range(1, n + 1) if n <= 3 else (1, 2, n)
        return [s for size in sizes for s in combinations(self.inexact, size)]

    @cached_property
    def batchings(self) -> list[Dims]:
        """Batch dimensions, one an operand: None, the first or the last in every choice."""
        choices: list[Dims] = [(None, 0, a.ndim) if a.ndim else (None, 0) for a in self.avals]
        if len(choices) <= 3:
            return [dims for dims in product(*choices) if set(dims) - {None}]
        first, last = tuple([0] * len(choices)), tuple([c[-1] for c in choices])
        alone = [
            tuple([dims[i] if i == j else None for i in range(len(choices))])
            for j in range(len(choices))
            for dims in (first, last)
        ]
        return [first, last, *alone]

    @cached_property
    def nested_batchings(self) -> list[tuple[Dims, Dims]]:
        """Pairs of an inner and an outer choice of batch dimensions, at most about eight."""
        every = self.batchings
        pairs = []
        for k, inner in enumerate(every[:: 1 + len(every) // 8]):
            other = every[(3 * k + 1) % len(every)]
            # The last dimension of a batched operand lies one further.
            pairs.append(
                (
                    inner,
                    tuple([d and d + (e is not None) for d, e in zip(other, inner, strict=True)]),
                )
            )
        return pairs

    @cached_property
    def linear_sets(self) -> list[tuple[tuple[int, ...], bool]]:
        """The sets of operands the primitive is linear in, and whether the others are zero then.

        Found by trying whether f(a u + b v) = a f(u) + b f(v).
        """
        if not self.primitive.has_rule("transpose") or not self.inexact_outs:
            return []
        positions = set(getattr(self.primitive, "linear", self.inexact))
        return [
            (chosen, zero)
            for chosen in self.subsets
            if positions.issuperset(chosen)
            for zero in (False, True)
            if self._is_linear(chosen, zero) and not (zero and self._is_linear(chosen, False))
        ]

    def _is_linear(self, chosen: Sequence[int], zero: bool) -> bool:
        u, v = self._draw(11), self._draw(12)
        fixed = self.fixed(chosen, zero)

        def at(args: Sequence[Array]) -> list[Array]:
            return self.evaluate([args[i] if i in chosen else x for i, x in enumerate(fixed)])

        with np.errstate(all="ignore"):
            mixed = [np.asarray(-0.75 * x + 0.5 * y, x.dtype) for x, y in zip(u, v, strict=True)]
            right = [-0.75 * x + 0.5 * y for x, y in zip(at(u), at(v), strict=True)]
            left = at(mixed)
            # An output that is zero or empty shows nothing, at most for one operand alone.
            shows = any(np.any(x) for x in left) or (not zero and len(chosen) == 1)
            return shows and all(map(close, left, right, [self.tolerance] * len(left)))

    def fixed(self, chosen: Sequence[int], zero: bool) -> list[Array]:
        """The operands, those not chosen replaced by zeros where `zero`."""
        return [
            np.zeros_like(x) if zero and i not in chosen and self.mask[i] else x
            for i, x in enumerate(self.args)
        ]

    # The results, and what they are measured by.

    @cached_property
    def compiled(self) -> Compiled:
        """All sections, for any operands and cotangents."""
        with harness():
            return Compiled(self)

    @cached_property
    def results(self) -> dict[Any, Any]:
        """The sections at the operands drawn: arrays, or the exception raised on the way."""
        return self.compiled(self.args, self.cts)

    def result(self, name: Any) -> list[Array]:
        """The arrays of a section; AssertionError if it raised."""
        found = self.results[name]
        if isinstance(found, BaseException):
            what = name if isinstance(name, str) else " ".join(map(str, name))
            raise AssertionError(
                f"{self!r}: {what} raised {type(found).__name__}: {found}"
            ) from found
        return found  # type: ignore[no-any-return]

    def evaluate(self, args: Sequence[Array]) -> list[Array]:
        """The primitive itself, run."""
        with harness():
            return [np.asarray(x) for x in execution.run(None, self.program, args)]

    def looped(self, inner: Dims, outer: Dims | None = None) -> list[Array]:
        """What a batch must be, by Python loops."""
        rows = [
            [self._at(inner, m, outer, n) for m in range(SIZES[0])]
            for n in range(SIZES[1] if outer else 1)
        ]
        stacked = [
            np.stack([np.stack([lane[k] for lane in row]) for row in rows])
            for k in range(len(self.out_avals))
        ]
        return stacked if outer else [x[0] for x in stacked]

    def _at(self, inner: Dims, m: int, outer: Dims | None, n: int) -> list[Array]:
        """The outputs at one index of the batches, remembered by what each operand is there."""
        places = [
            (m if d is not None else 0, n if e is not None else 0)
            for d, e in zip(inner, outer or [None] * len(inner), strict=True)
        ]
        key = tuple(places)
        if key not in self._memo:
            self._memo[key] = self.evaluate(
                [self._lane(*place)[i] for i, place in enumerate(places)]
            )
        return self._memo[key]

    @cached_property
    def _memo(self) -> dict[Any, list[Array]]:
        return {}

    def _lane(self, m: int, n: int) -> list[Array]:
        """The operands at one index of the inner and of the outer batch."""
        return self._lanes[m + SIZES[0] * n]

    @cached_property
    def _lanes(self) -> list[list[Array]]:
        return [self._draw(20 + k) for k in range(SIZES[0] * SIZES[1])]

    @cached_property
    def differences(self) -> dict[int, list[Array]]:
        """By operand, the change of the inexact outputs when it moves along its tangent."""

        def along(i: int) -> list[Array]:
            def at(step: float) -> list[Array]:
                outs = self.evaluate(self.moved((i,), step))
                return [outs[k] for k in self.inexact_outs]

            return central_difference(at, self.step)

        return {i: along(i) for i in self.inexact}

    def moved(self, chosen: Sequence[int], step: float) -> list[Array]:
        """The operands, those chosen moved along their tangents."""
        directions = dict(zip(self.inexact, self.tangents, strict=True))
        return [
            moved(x, directions[i], step) if i in chosen else x for i, x in enumerate(self.args)
        ]


class Given:
    """What a section is computed from, traced."""

    def __init__(self, trial: Trial, values: Sequence[Any]):
        rest = iter(values)
        self.args = [next(rest) for _ in trial.args]
        self.tangents = [next(rest) for _ in trial.tangents]
        self.cts = [next(rest) for _ in trial.cts]
        self.ct_tangents = [next(rest) for _ in trial.ct_tangents]
        self.second_cts = [next(rest) for _ in trial.second_cts]


class Compiled:
    """All sections of a trial in one compiled program."""

    def __init__(self, trial: Trial):
        self.trial = trial
        sections = trial.sections()
        self.parts = [self._compile(sections)]
        try:
            self._run(self.parts[0], trial.args, trial.cts)
        except Exception:
            # Something in it does not lower: section by section, to know what.
            self.parts = [self._compile({name: section}) for name, section in sections.items()]

    def __call__(self, args: Sequence[Array], cts: Sequence[Array]) -> dict[Any, Any]:
        """The arrays of each section, or the exception that it raised."""
        found: dict[Any, Any] = {}
        with harness():
            for part in self.parts:
                try:
                    found |= self._run(part, args, cts)
                except Exception as error:
                    found |= dict.fromkeys(part[2], error)
        return found

    def _compile(self, sections: dict[Any, Section]) -> Any:
        trial = self.trial
        places: dict[Any, Any] = {}

        def body(*values: Any) -> list[Any]:
            given = Given(trial, values)
            outs: list[Any] = []
            for name, section in sections.items():
                try:
                    results = section(given)
                except Exception as error:
                    places[name] = error
                else:
                    places[name] = slice(len(outs), len(outs) + len(results))
                    outs += results
            return outs

        avals = [*trial.avals]
        for group in (trial.tangents, trial.cts, trial.ct_tangents, trial.second_cts):
            avals += [ShapedArray(x.shape, x.dtype) for x in group]
        program, captured = trace(body, avals, name=trial.primitive.name)
        return executable(program, compiler_options=QUICKLY), captured, places

    def _run(self, part: Any, args: Sequence[Array], cts: Sequence[Array]) -> dict[Any, Any]:
        trial = self.trial
        function, captured, places = part
        given = [*args, *trial.tangents, *cts, *trial.ct_tangents, *trial.second_cts]
        outs = [np.asarray(x) for x in function(*given, *captured)]
        return {
            name: outs[place] if isinstance(place, slice) else place
            for name, place in places.items()
        }


def inline(program: Program, args: Sequence[Any]) -> list[Any]:
    """The outputs of `program` on traced values, its equations copied into the trace."""
    builder = current_builder.get()
    assert builder is not None
    return builder.inline(program, args)


def close(x: Array, y: Array, tolerance: float) -> bool:
    """Whether `x` is `y`, up to `tolerance` of the largest finite element."""
    x, y = widest(x), widest(y)
    scale = max(1.0, float(np.max(np.abs(y), initial=0.0, where=np.isfinite(y))))
    return np.allclose(x, y, rtol=tolerance, atol=tolerance * scale, equal_nan=True)


def moved(x: Array, direction: Array, step: float) -> Array:
    """`x + step * direction`, in the dtype of `x`."""
    return np.asarray(widest(x) + step * widest(direction)).astype(x.dtype)


def _listed(primitive: Primitive, out: Any) -> list[Any]:
    return list(out) if primitive.multiple_results else [out]


def _or_zeros(ct: Any, aval: ShapedArray) -> Any:
    return zeros_like(aval) if ct is None else ct


def _coarsest(avals: Sequence[ShapedArray]) -> tuple[str, float]:
    """The least precise real dtype among them, by name, and its tolerance."""
    real = {"c128": "f64", "c64": "f32"}
    names = [SHORT_NAMES[a.dtype] for a in avals if SHORT_NAMES[a.dtype] in TOLERANCES]
    name = max(names, key=TOLERANCES.__getitem__, default="f64")
    return real.get(name, name), TOLERANCES[name]


def _direction(random: Any, aval: ShapedArray) -> Array:
    x = random.uniform(0.3, 1.0, aval.shape) * np.where(random.rand(*aval.shape) < 0.5, -1, 1)
    if is_complex(aval.dtype):
        x = x + 1j * random.uniform(-1.0, 1.0, aval.shape)
    return np.asarray(x).astype(aval.dtype)


def _stack(rows: Sequence[Sequence[Array]], inner: int | None, outer: int | None) -> Array:
    """Lanes stacked along a dimension for each batch that is not None."""
    row = [lanes[0] if inner is None else np.stack(lanes, inner) for lanes in rows]
    return np.asarray(row[0] if outer is None else np.stack(row, outer))
