"""The rule harness: every rule of a primitive against the others, and all against differences.

Each check takes a `Trial`: one primitive on operands of one dtype. What the checks need of a
trial is traced into one program and compiled once, since compiling is what takes the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, lru_cache
from importlib.util import find_spec
from itertools import combinations, product
from typing import Any

import jax
import numpy as np

from functx.core.avals import ShapedArray
from functx.core.dtypes import DTYPES_BY_SHORT_NAME, SHORT_NAMES, is_complex, is_inexact, kind
from functx.core.errors import DTypeError
from functx.core.primitive import LinearInput, Primitive
from functx.core.program import Program
from functx.core.samples import Sample, draw, retyped
from functx.core.tracing import checking, current_builder, execution, rewritten, trace
from functx.lowering.call import executable
from functx.ops.shaping import zeros_like
from functx.transforms.batching import Batch, add_axis
from functx.transforms.forward_mode import PushForward
from functx.transforms.reverse_mode import SplitVJP, transposed_jvp

Array = np.ndarray[Any, Any]

TOLERANCES = {
    "f64": 1e-9,
    "c128": 1e-9,
    "f32": 1e-5,
    "c64": 1e-5,
    "f16": 1e-2,
    "bf16": 5e-2,
}
"""How far two ways to compute the same thing may differ, relative to the largest value."""

STEPS = {"f64": (1e-3, 1e-7), "f32": (3e-2, 1e-2), "f16": (0.1, 0.2), "bf16": (0.2, 0.5)}
"""The step of a central difference, and how far a derivative may be from it."""

DERIVATIVE_DTYPES = ("f64", "f32", "bf16", "f16")
ACCEPTED_DTYPES = {
    "f": ("f32", "f64", "bf16", "f16", "c64", "c128", "i32", "i8", "u32", "bool"),
    "c": ("c64", "c128"),
    "i": ("i32", "i8", "i64", "u8", "u32", "bool"),
    "u": ("u8", "u32", "u64"),
    "b": ("bool",),
}
"""The dtypes to try, by the kind of a sample's main dtype."""

SIZES = 2, 3
"""The lengths of the inner and of the outer batch."""


def check_rules(primitive_class: type[Primitive], sample: Sample | int | None = None) -> None:
    """Check every rule of a primitive on its samples, or on the one given.

    `abstract_eval`, `jvp`, `transpose`, `vjp`, `batch`, `lower` and `decompose` are checked
    against each other and against differences, as the functions in `CHECKS` say one by one.
    Raises AssertionError with all that is wrong.
    """
    samples = list(primitive_class.samples)
    if not samples and sample is None:
        raise AssertionError(
            f"{primitive_class.name}: a primitive must have `samples`; got none. Give "
            f"{primitive_class.__name__} ({primitive_class.__module__}) at least one."
        )
    if sample is not None:
        samples = [samples[sample] if isinstance(sample, int) else sample]
    problems = []
    for number, one in enumerate(samples):
        for trial in trials(primitive_class, one, complex_too=number == 0):
            for check in CHECKS:
                try:
                    check(trial)
                except AssertionError as error:
                    problems.append(str(error))
    if problems:
        raise AssertionError("\n".join(problems))


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
        main = next((n for n in DERIVATIVE_DTYPES if n in names), names[0])
        chosen = [main]
        if complex_too and "c128" in names and main != "c128":
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

    return [name for name in one.dtypes or ACCEPTED_DTYPES[kind(main)] if takes(name)]


@contextmanager
def harness() -> Iterator[None]:
    """64-bit types on, and every program checked."""
    enabled, checking.enabled = checking.enabled, find_spec("functx.core.checking") is not None
    try:
        with jax.enable_x64():
            yield
    finally:
        checking.enabled = enabled


class Trial:
    """A primitive on one sample in one dtype: its operands, and all that its rules make of them."""

    def __init__(self, primitive: Primitive, one: Sample, name: str, names: Sequence[str]):
        self.primitive, self.sample, self.dtype_name, self.dtype_names = primitive, one, name, names
        self.dtype = DTYPES_BY_SHORT_NAME[name]
        self.avals = retyped(one, self.dtype)
        self.args = self.draw(0)
        self.kinked = one.gradients is not None
        self.made: list[tuple[Any, Program, Any]] = []
        self.program = self.trace_primitive(self.avals)
        self.out_avals = self.program.out_avals
        factor = one.tolerance[0] if one.tolerance else 1.0
        coarse, self.tolerance = _coarsest([*self.avals, *self.out_avals])
        self.tolerance *= factor
        self.step, slack = STEPS[coarse]
        self.difference_tolerance = factor * slack
        self.inexact = [i for i, a in enumerate(self.avals) if is_inexact(a.dtype)]
        self.inexact_outs = [i for i, a in enumerate(self.out_avals) if is_inexact(a.dtype)]
        self.mask = tuple([i in self.inexact for i in range(len(self.avals))])
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

    def draw(self, seed: int) -> list[Array]:
        return draw(self.sample, seed, self.dtype if self.avals else None)

    def trace_primitive(self, avals: Sequence[ShapedArray]) -> Program:
        return trace(lambda *xs: self.outputs(*xs), avals, name=self.primitive.name)[0]

    def outputs(self, *args: Any) -> list[Any]:
        return _listed(self.primitive, self.primitive(*args))

    def rewritten(self, rewrite: Any, program: Program) -> Any:
        """The rewrite of a program, kept for the check of every program made."""
        result = rewritten(rewrite, program)
        self.made.append((rewrite, program, result))
        return result

    def evaluate(self, args: Sequence[Array]) -> list[Array]:
        """The primitive itself: what all rules are measured by."""
        with harness():
            return [np.asarray(x) for x in execution.run(None, self.program, args)]

    @property
    def subsets(self) -> list[tuple[int, ...]]:
        """The non-empty sets of operands that vary: all of them, for few operands."""
        n = len(self.inexact)
        sizes = range(1, n + 1) if n <= 3 else (1, 2, n)
        return [s for size in sizes for s in combinations(self.inexact, size)]

    @property
    def batchings(self) -> list[tuple[int | None, ...]]:
        """Batch dimensions, one an operand: None, the first or the last in every choice."""
        if not self.avals:
            return []
        choices: list[list[int | None]] = [
            [None, 0, a.ndim] if a.ndim else [None, 0] for a in self.avals
        ]
        if len(choices) <= 3:
            every = list(product(*choices))
            return [dims for dims in every if any(d is not None for d in dims)]
        first, last = tuple([0] * len(choices)), tuple([c[-1] for c in choices])
        alone = [
            tuple([dims[i] if i == j else None for i in range(len(choices))])
            for j in range(len(choices))
            for dims in (first, last)
        ]
        return [first, last, *alone]

    @cached_property
    def linear_sets(self) -> list[tuple[tuple[int, ...], bool]]:
        """The sets of operands the primitive is linear in, and whether the others are zero then.

        Found by trying: f(a u + b v) = a f(u) + b f(v).
        """
        if not self.primitive.has_rule("transpose") or not self.inexact_outs:
            return []
        u, v = self.draw(11), self.draw(12)
        positions = getattr(self.primitive, "linear", self.inexact)
        found = []
        for chosen in self.subsets:
            if not set(chosen) <= set(positions):
                continue
            for others_zero in (False, True):
                fixed = self.others(chosen, others_zero)
                mixed = [
                    np.asarray(-0.75 * u[i] + 0.5 * v[i]).astype(x.dtype) if i in chosen else x
                    for i, x in enumerate(fixed)
                ]
                with np.errstate(all="ignore"):
                    left = self.evaluate(mixed)
                    right = [
                        -0.75 * x + 0.5 * y
                        for x, y in zip(
                            self.evaluate(_chosen(chosen, u, fixed)),
                            self.evaluate(_chosen(chosen, v, fixed)),
                            strict=True,
                        )
                    ]
                if all(_close(x, y, self.tolerance) for x, y in zip(left, right, strict=True)):
                    found.append((chosen, others_zero))
                    break
        return found

    def others(self, chosen: Sequence[int], zero: bool) -> list[Array]:
        """The operands, those not chosen replaced by zeros where `zero`."""
        return [
            np.zeros_like(x) if zero and i not in chosen and self.mask[i] else x
            for i, x in enumerate(self.args)
        ]

    def sections(self) -> dict[Any, Callable[..., Sequence[Any]]]:
        """What the checks need computed, by name: each from operands, tangents and so on."""
        found: dict[Any, Callable[..., Sequence[Any]]] = {}
        if self.primitive.decompose is not None and self.primitive.has_rule("lower"):
            found["decompose"] = lambda given: _listed(
                self.primitive,
                self.primitive.decompose(*given.args),  # type: ignore[misc]
            )
        for dims in self.batchings:
            found["batch", dims] = lambda _, dims=dims: self.batched(dims)
        for inner, outer in self.nested_batchings():
            found["batch", inner, outer] = lambda _, i=inner, o=outer: self.batched(i, o)
        if not self.inexact or not self.inexact_outs:
            return found
        for chosen in self.subsets:
            found["jvp", chosen] = lambda given, s=chosen: self.pushed(given, s)
            found["vjp", chosen] = lambda given, s=chosen: self.pulled(given, s)
        for chosen, zero in self.linear_sets:
            found["transpose", chosen] = lambda given, s=chosen, z=zero: self.transposed(
                given, s, z
            )
        if self.primitive.vjp is not None and self.primitive.has_rule("jvp"):
            found["derived vjp"] = self.derived_vjp
        if len(self.inexact_outs) > 1:
            for i in range(len(self.inexact_outs)):
                found["vjp of output", i] = lambda given, i=i: self.pulled_alone(given, i)
        if not self.kinked:
            found["jvp of vjp"] = self.pushed_pullback
            found["vjp of vjp"] = self.pulled_pullback
        return found

    def nested_batchings(self) -> list[tuple[tuple[int | None, ...], tuple[int | None, ...]]]:
        """Pairs of an inner and an outer choice of batch dimensions; each is inner once."""
        inner = self.batchings
        pairs = []
        for k, dims in enumerate(inner if len(inner) <= 8 else inner[:: len(inner) // 8]):
            other = inner[(3 * k + 1) % len(inner)]
            # The last dimension of a batched operand lies one further.
            outer = tuple(
                [d if not d else d + (e is not None) for d, e in zip(other, dims, strict=True)]
            )
            pairs.append((dims, outer))
        return pairs

    def lanes(self, inner: int, outer: int) -> list[Array]:
        """The operands at one index of the inner and of the outer batch."""
        return self._lanes[inner + SIZES[0] * outer]

    @cached_property
    def _lanes(self) -> list[list[Array]]:
        return [self.draw(20 + k) for k in range(SIZES[0] * SIZES[1])]

    def batched(self, inner: Any, outer: Any = None) -> Sequence[Any]:
        outs = (0,) * len(self.out_avals)
        program = self.rewritten(Batch(SIZES[0], inner, outs), self.program)
        if outer is not None:
            program = self.rewritten(Batch(SIZES[1], outer, outs), program)
        stacked = [
            _stack([[self.lanes(m, n)[i] for m in range(SIZES[0])] for n in range(SIZES[1])], d, e)
            for i, (d, e) in enumerate(zip(inner, outer or [None] * len(inner), strict=True))
        ]
        return _inline(program, stacked)

    def looped(self, inner: Any, outer: Any = None) -> list[Array]:
        """What `batched` must be, by Python loops."""
        rows = [
            [
                self._lane_outputs(
                    _indices(inner, m), _indices(outer or inner, n if outer else None)
                )
                for m in range(SIZES[0])
            ]
            for n in range(SIZES[1] if outer else 1)
        ]
        stacked = [
            np.stack([np.stack([lane[k] for lane in row]) for row in rows])
            for k in range(len(self.out_avals))
        ]
        return stacked if outer else [x[0] for x in stacked]

    def _lane_outputs(self, inner: Sequence[int], outer: Sequence[int]) -> list[Array]:
        key = *inner, *outer
        if key not in self._memo:
            args = [self.lanes(m, n)[i] for i, (m, n) in enumerate(zip(inner, outer, strict=True))]
            self._memo[key] = self.evaluate(args)
        return self._memo[key]

    @cached_property
    def _memo(self) -> dict[Any, list[Array]]:
        return {}

    def flags(self, chosen: Sequence[int]) -> tuple[bool, ...]:
        return tuple([i in chosen for i in range(len(self.avals))])

    def pushed(self, given: Given, chosen: Sequence[int]) -> Sequence[Any]:
        program = self.rewritten(PushForward(self.flags(chosen)), self.program)
        tangents = [t for i, t in zip(self.inexact, given.tangents, strict=True) if i in chosen]
        return _inline(program, [*given.args, *tangents])

    def pulled(self, given: Given, chosen: Sequence[int]) -> list[Any]:
        return self.pull(self.program, self.flags(chosen), given.args, given.cts)

    def pull(
        self, program: Program, flags: tuple[bool, ...], args: Sequence[Any], cts: Sequence[Any]
    ) -> list[Any]:
        forward, backward = self.rewritten(SplitVJP(flags), program)
        outs = _inline(forward, args)
        return _inline(backward, [*cts, *outs[len(program.outputs) :]])

    def pulled_alone(self, given: Given, output: int) -> list[Any]:
        """The pullback when the other outputs are unused."""
        k = self.inexact_outs[output]
        alone, _ = trace(lambda *xs: [self.outputs(*xs)[k]], self.avals)
        return self.pull(alone, self.mask, given.args, [given.cts[output]])

    def derived_vjp(self, given: Given) -> list[Any]:
        """The cotangents that `jvp` gives, in place of those of an overridden `vjp`."""
        primitive = self.primitive
        cts: list[Any] = [None] * len(self.out_avals)
        for k, ct in zip(self.inexact_outs, given.cts, strict=True):
            cts[k] = ct
        found = transposed_jvp(primitive, cts, given.args, self.mask)
        return [_or_zeros(found[i], self.avals[i]) for i in self.inexact]

    def transposed(self, given: Given, chosen: Sequence[int], zero: bool) -> list[Any]:
        args = [
            LinearInput(self.avals[i])
            if i in chosen
            else zeros_like(x)
            if zero and self.mask[i]
            else x
            for i, x in enumerate(given.args)
        ]
        cts = dict(zip(self.inexact_outs, given.cts, strict=True))
        given_cts = [cts.get(k) for k in range(len(self.out_avals))]
        several = self.primitive.multiple_results
        results = self.primitive.transpose(given_cts if several else given_cts[0], *args)
        assert len(results) == len(args), (
            f"`transpose` must return one entry an operand; got {len(results)} for {len(args)}"
        )
        for i, result in enumerate(results):
            if i not in chosen:
                assert result is None, (
                    f"`transpose` must return None for operand {i}, which is not linear"
                )
        return [_or_zeros(results[i], self.avals[i]) for i in chosen]

    @cached_property
    def pullback(self) -> Program:
        """The program of the cotangents of all operands, from the operands and cotangents."""
        n = len(self.avals)
        ct_avals = [self.out_avals[k] for k in self.inexact_outs]
        program, _ = trace(
            lambda *xs: self.pull(self.program, self.mask, xs[:n], xs[n:]),
            [*self.avals, *ct_avals],
            name=f"vjp_{self.primitive.name}",
        )
        return program

    @property
    def pullback_mask(self) -> tuple[bool, ...]:
        return *self.mask, *[True] * len(self.inexact_outs)

    def pushed_pullback(self, given: Given) -> Sequence[Any]:
        program = self.rewritten(PushForward(self.pullback_mask), self.pullback)
        tangents = [*given.tangents, *given.ct_tangents]
        return _inline(program, [*given.args, *given.cts, *tangents])

    def pulled_pullback(self, given: Given) -> list[Any]:
        args = [*given.args, *given.cts]
        return self.pull(self.pullback, self.pullback_mask, args, given.second_cts)

    @cached_property
    def compiled(self) -> Compiled:
        with harness():
            return Compiled(self)

    @cached_property
    def results(self) -> dict[Any, Any]:
        """The sections at the operands drawn: arrays, or the exception raised on the way."""
        return self.compiled(self.args, self.cts)

    def result(self, name: Any) -> list[Array]:
        found = self.results[name]
        if isinstance(found, BaseException):
            what = name if isinstance(name, str) else " ".join(map(str, name))
            raise AssertionError(
                f"{self!r}: {what} raised {type(found).__name__}: {found}"
            ) from found
        return found  # type: ignore[no-any-return]

    def has(self, name: Any) -> bool:
        return name in self.results

    def difference(self, at: Callable[[float], Sequence[Array]]) -> list[Array]:
        """The derivative of `at` at 0, by a central difference of the fourth order."""
        h = self.step
        near, far = (
            [
                (np.asarray(x, _wide(x)) - np.asarray(y, _wide(y))) / (2 * step)
                for x, y in zip(at(step), at(-step), strict=True)
            ]
            for step in (h, 2 * h)
        )
        return [(4 * x - y) / 3 for x, y in zip(near, far, strict=True)]

    def moved(self, chosen: Sequence[int], step: float) -> list[Array]:
        """The operands, those chosen moved along their tangents."""
        directions = dict(zip(self.inexact, self.tangents, strict=True))
        return [
            np.asarray(x + np.asarray(step * directions[i])).astype(x.dtype) if i in chosen else x
            for i, x in enumerate(self.args)
        ]

    @cached_property
    def differences(self) -> dict[int, list[Array]]:
        """By operand, the change of the inexact outputs when it moves along its tangent."""
        return {
            i: self.difference(
                lambda step, i=i: [  # type: ignore[misc]
                    self.evaluate(self.moved((i,), step))[k] for k in self.inexact_outs
                ]
            )
            for i in self.inexact
        }

    def agree(
        self,
        what: str,
        got: Sequence[Array],
        wanted: Sequence[Array],
        tolerance: float | None = None,
    ) -> None:
        """Raise AssertionError unless the arrays agree, in type too."""
        tolerance = tolerance or self.tolerance
        assert len(got) == len(wanted), f"{self!r}: {what}; got {len(got)} for {len(wanted)} values"
        for x, y in zip(got, wanted, strict=True):
            assert x.shape == y.shape, f"{self!r}: {what}; got shape {x.shape} for {y.shape}"
            if not _close(x, y, tolerance):
                raise AssertionError(f"{self!r}: {what}; got\n{x}\nfor\n{y}")


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
    """All sections of a trial in one compiled program; those that raise, apart."""

    def __init__(self, trial: Trial):
        self.trial = trial
        sections = trial.sections()
        self.parts = [self.compile(sections)]
        try:
            self.run(self.parts[0], trial.args, trial.cts)
        except Exception:
            # Something in it does not lower: section by section, to know what.
            self.parts = [self.compile({name: section}) for name, section in sections.items()]

    def compile(self, sections: dict[Any, Any]) -> Any:
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
        options = {"xla_backend_optimization_level": 0}
        return executable(program, compiler_options=options), captured, places

    def run(self, part: Any, args: Sequence[Array], cts: Sequence[Array]) -> dict[Any, Any]:
        trial = self.trial
        function, captured, places = part
        given = [*args, *trial.tangents, *cts, *trial.ct_tangents, *trial.second_cts]
        outs = [np.asarray(x) for x in function(*given, *captured)]
        return {
            name: outs[place] if isinstance(place, slice) else place
            for name, place in places.items()
        }

    def __call__(self, args: Sequence[Array], cts: Sequence[Array]) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        with harness():
            for part in self.parts:
                try:
                    found |= self.run(part, args, cts)
                except Exception as error:
                    found |= dict.fromkeys(part[2], error)
        return found


def abstract_eval_states_the_types_that_lower_produces(trial: Trial) -> None:
    """1. In every dtype that the sample can have."""
    if trial is not None and trial.dtype_name == "c128" and "f64" in trial.dtype_names:
        return
    with harness():
        programs = {
            name: trial.trace_primitive(retyped(trial.sample, DTYPES_BY_SHORT_NAME[name]))
            for name in trial.dtype_names
        }
        try:
            _lower_together(list(programs.values()))
        except Exception:
            for name, program in programs.items():
                try:
                    _lower_together([program])
                except Exception as error:
                    raise AssertionError(
                        f"{trial.primitive!r} on {', '.join(map(repr, program.in_avals))}: `lower` "
                        f"must produce {', '.join(map(repr, program.out_avals))}, as "
                        f"`abstract_eval` states; in {name} {type(error).__name__}: {error}"
                    ) from error
        for x, aval in zip(trial.evaluate(trial.args), trial.out_avals, strict=True):
            assert (x.shape, x.dtype) == (aval.shape, aval.dtype), (
                f"{trial!r}: `lower` must produce {aval!r}; got {x.dtype}{list(x.shape)}"
            )


def jvp_matches_differences(trial: Trial) -> None:
    """2. For every set of operands that vary. A difference is linear in what varies, so those
    along single operands add up to those along several."""
    if not trial.inexact or not trial.inexact_outs:
        return
    values = trial.evaluate(trial.args)
    for chosen in trial.subsets:
        results = trial.result(("jvp", chosen))
        outs, tangents = results[: len(values)], results[len(values) :]
        trial.agree("the outputs of `jvp` must be the primitive's", outs, values)
        if trial.kinked:
            continue
        wanted = [sum(d) for d in zip(*[trial.differences[i] for i in chosen], strict=True)]
        trial.agree(
            f"`jvp` must match differences when operands {chosen} vary",
            tangents,
            wanted,
            trial.difference_tolerance,
        )


def gradients_at_kinks_are_those_stated(trial: Trial) -> None:
    """2a. Where the sample states them, in place of differences."""
    if not trial.kinked or not trial.inexact_outs:
        return
    stated = trial.sample.gradients or {}
    ones = [np.ones_like(ct) for ct in trial.cts]
    pulled = trial.compiled(trial.args, ones)["vjp", tuple(trial.inexact)]
    if isinstance(pulled, BaseException):
        trial.result(("vjp", tuple(trial.inexact)))
    for i, wanted in stated.items():
        wanted = np.broadcast_to(np.asarray(wanted), trial.avals[i].shape)
        got = pulled[trial.inexact.index(i)]
        trial.agree(f"`vjp` must give the gradient stated of operand {i}", [got], [wanted])


def vjp_is_the_transpose_of_jvp(trial: Trial) -> None:
    """3. <ct, J t> = <J* ct, t>, and so for every set of operands that vary."""
    if not trial.inexact or not trial.inexact_outs:
        return
    tangents = dict(zip(trial.inexact, trial.tangents, strict=True))
    for chosen in trial.subsets:
        pushed = trial.result(("jvp", chosen))[len(trial.out_avals) :]
        pulled = trial.result(("vjp", chosen))
        for ct, i in zip(pulled, chosen, strict=True):
            aval = trial.avals[i]
            assert (ct.shape, ct.dtype) == (aval.shape, aval.dtype), (
                f"{trial!r}: the cotangent of operand {i} must be {aval!r}; got {ct.dtype}{ct.shape}"
            )
        _agree_inner(
            trial,
            f"`vjp` must be the transpose of `jvp` when operands {chosen} vary",
            _inner(trial.cts, pushed),
            _inner(pulled, [tangents[i] for i in chosen]),
        )
    if trial.has(("vjp of output", 0)):
        alone = [trial.result(("vjp of output", k)) for k in range(len(trial.inexact_outs))]
        total = [sum(parts) for parts in zip(*alone, strict=True)]
        whole = trial.result(("vjp", tuple(trial.inexact)))
        trial.agree("the cotangents of single outputs must add up to those of all", total, whole)


def transpose_receives_and_returns_what_is_linear(trial: Trial) -> None:
    """4. For every set of operands that the primitive is linear in."""
    for chosen, zero in trial.linear_sets:
        pulled = trial.result(("transpose", chosen))
        for ct, i in zip(pulled, chosen, strict=True):
            assert (ct.shape, ct.dtype) == (trial.avals[i].shape, trial.avals[i].dtype), (
                f"{trial!r}: `transpose` must return {trial.avals[i]!r} for operand {i}; "
                f"got {ct.dtype}{list(ct.shape)}"
            )
        tangents = dict(zip(trial.inexact, trial.tangents, strict=True))
        args = [
            tangents.get(i, x) if i in chosen else x
            for i, x in enumerate(trial.others(chosen, zero))
        ]
        pushed = [trial.evaluate(args)[k] for k in trial.inexact_outs]
        _agree_inner(
            trial,
            f"`transpose` must be that of the primitive in operands {chosen}",
            _inner(trial.cts, pushed),
            _inner(pulled, [tangents[i] for i in chosen]),
        )


def batch_matches_a_loop(trial: Trial) -> None:
    """5. For every choice of batch dimensions, and for two batches nested."""
    for dims in trial.batchings:
        trial.agree(
            f"`batch` must match a loop for dims {dims}",
            trial.result(("batch", dims)),
            trial.looped(dims),
        )
    for inner, outer in trial.nested_batchings():
        trial.agree(
            f"`batch` must match two loops for dims {inner} within {outer}",
            trial.result(("batch", inner, outer)),
            trial.looped(inner, outer),
        )


def overridden_rules_agree_with_the_derived(trial: Trial) -> None:
    """6. `decompose` with `lower`, and `vjp` with the transpose of `jvp`."""
    if trial.has("decompose"):
        trial.agree(
            "`decompose` must agree with `lower`",
            trial.result("decompose"),
            trial.evaluate(trial.args),
        )
    if trial.has("derived vjp"):
        trial.agree(
            "`vjp` must agree with what follows from `jvp`",
            trial.result(("vjp", tuple(trial.inexact))),
            trial.result("derived vjp"),
        )


def second_derivatives_match_differences(trial: Trial) -> None:
    """7. `jvp` of `vjp` against differences of `vjp`; `vjp` of `vjp` against its `jvp`."""
    if not trial.has("jvp of vjp"):
        return
    whole = "vjp", tuple(trial.inexact)
    base = trial.result(whole)

    def moved(step: float) -> Sequence[Array]:
        cts = [
            np.asarray(ct + np.asarray(step * d)).astype(ct.dtype)
            for ct, d in zip(trial.cts, trial.ct_tangents, strict=True)
        ]
        found = trial.compiled(trial.moved(trial.inexact, step), cts)[whole]
        assert not isinstance(found, BaseException)
        return found  # type: ignore[no-any-return]

    pushed = trial.result("jvp of vjp")
    trial.agree(
        "`jvp` of `vjp` must match differences of `vjp`",
        pushed[len(base) :],
        trial.difference(moved),
        10 * trial.difference_tolerance,
    )
    _agree_inner(
        trial,
        "`vjp` of `vjp` must be the transpose of its `jvp`",
        _inner(trial.second_cts, pushed[len(base) :]),
        _inner(trial.result("vjp of vjp"), [*trial.tangents, *trial.ct_tangents]),
    )


def dtypes_survive_each_transform(trial: Trial) -> None:
    """7a. In every inexact dtype: tangents, cotangents and batches have their value's dtype."""
    for name in trial.dtype_names:
        dtype = DTYPES_BY_SHORT_NAME[name]
        if not is_inexact(dtype):
            continue
        with harness():
            avals = retyped(trial.sample, dtype)
            program = trial.trace_primitive(avals)
            mask = tuple([is_inexact(a.dtype) for a in avals])
            varying = [a for a in avals if is_inexact(a.dtype)]
            outs = [a for a in program.out_avals if is_inexact(a.dtype)]
            for dims in trial.batchings[-1:]:
                batched = rewritten(Batch(2, dims, (0,) * len(program.outputs)), program)
                wanted = [add_axis(a, 0, 2) for a in program.out_avals]
                _same_types(trial, name, "a batch", batched.out_avals, wanted)
            if not any(mask) or not outs:
                continue
            pushed = rewritten(PushForward(mask), program).out_avals
            _same_types(trial, name, "the tangents", pushed[len(program.outputs) :], outs)
            pulled = rewritten(SplitVJP(mask), program)[1].out_avals
            _same_types(trial, name, "the cotangents", pulled, varying)


def programs_are_well_formed_and_print_and_hash_stably(trial: Trial) -> None:
    """8. Every program that a rule made, made again, is equal, and prints and parses back."""
    for name, found in trial.results.items():
        if isinstance(found, BaseException):
            trial.result(name)
    with harness():
        for rewrite, source, result in trial.made:
            several = result if isinstance(result, tuple) else (result,)
            again = rewrite(source)
            for one, other in zip(
                several, again if isinstance(again, tuple) else (again,), strict=True
            ):
                _check_program(trial, one, other)


CHECKS: tuple[Callable[[Trial], None], ...] = (
    abstract_eval_states_the_types_that_lower_produces,
    jvp_matches_differences,
    gradients_at_kinks_are_those_stated,
    vjp_is_the_transpose_of_jvp,
    transpose_receives_and_returns_what_is_linear,
    batch_matches_a_loop,
    overridden_rules_agree_with_the_derived,
    second_derivatives_match_differences,
    dtypes_survive_each_transform,
    programs_are_well_formed_and_print_and_hash_stably,
)


def _coarsest(avals: Sequence[ShapedArray]) -> tuple[str, float]:
    """The least precise real dtype among them, by name, and its tolerance."""
    real = {"c128": "f64", "c64": "f32"}
    names = [SHORT_NAMES[a.dtype] for a in avals if SHORT_NAMES[a.dtype] in TOLERANCES]
    name = max(names, key=TOLERANCES.__getitem__, default="f64")
    return real.get(name, name), TOLERANCES[name]


def _check_program(trial: Trial, one: Program, other: Program) -> None:
    assert one == other and hash(one) == hash(other), (
        f"{trial!r}: a program made twice must be equal and hash alike; got\n{one}\nand\n{other}"
    )
    if _has("functx.core.checking"):
        from functx.core.checking import check_program

        check_program(one)
    if _has("functx.core.printing"):
        text = str(one)
        assert text == str(other), (
            f"{trial!r}: a program must print stably; got\n{text}\nand\n{other}"
        )
        if _has("functx.core.parsing"):
            assert Program.parse(text) == one, (
                f"{trial!r}: a printed program must parse back; got\n{text}"
            )


@lru_cache(maxsize=None)
def _has(module: str) -> bool:
    return find_spec(module) is not None


def _same_types(
    trial: Trial, name: str, what: str, got: Sequence[ShapedArray], wanted: Sequence[ShapedArray]
) -> None:
    types = [(a.shape, a.dtype) for a in got]
    assert types == [(a.shape, a.dtype) for a in wanted], (
        f"{trial.primitive!r} in {name}: {what} must be {', '.join(map(repr, wanted))}; "
        f"got {', '.join(map(repr, got))}"
    )


def _lower_together(programs: Sequence[Program]) -> None:
    """Emit the programs in one module, which MLIR verifies."""
    avals = [a for p in programs for a in p.in_avals]

    def body(*xs: Any) -> list[Any]:
        rest = iter(xs)
        return [out for p in programs for out in _inline(p, [next(rest) for _ in p.inputs])]

    program, _ = trace(body, avals)
    executable(program).lower(*[np.zeros(a.shape, a.dtype) for a in avals])  # type: ignore[attr-defined]


def _inline(program: Program, args: Sequence[Any]) -> list[Any]:
    builder = current_builder.get()
    assert builder is not None
    return builder.inline(program, args)


def _listed(primitive: Primitive, out: Any) -> list[Any]:
    return list(out) if primitive.multiple_results else [out]


def _or_zeros(ct: Any, aval: ShapedArray) -> Any:
    return zeros_like(aval) if ct is None else ct


def _chosen(chosen: Sequence[int], args: Sequence[Array], others: Sequence[Array]) -> list[Array]:
    return [args[i] if i in chosen else x for i, x in enumerate(others)]


def _direction(random: Any, aval: ShapedArray) -> Array:
    x = random.uniform(0.3, 1.0, aval.shape) * np.where(random.rand(*aval.shape) < 0.5, -1, 1)
    if is_complex(aval.dtype):
        x = x + 1j * random.uniform(-1.0, 1.0, aval.shape)
    return np.asarray(x).astype(aval.dtype)


def _stack(rows: Sequence[Sequence[Array]], inner: int | None, outer: int | None) -> Array:
    """Lanes stacked along a dimension for each batch that is not None."""
    row = [lanes[0] if inner is None else np.stack(lanes, inner) for lanes in rows]
    return np.asarray(row[0] if outer is None else np.stack(row, outer))


def _indices(dims: Sequence[int | None], at: int | None) -> list[int]:
    """The index of each operand into a batch at `at`: 0 for an operand that all share."""
    return [0 if d is None or at is None else at for d in dims]


def _wide(x: Array) -> Any:
    return np.complex128 if np.iscomplexobj(x) else np.float64


def _close(x: Array, y: Array, tolerance: float) -> bool:
    """Whether `x` is `y`, up to `tolerance` of the largest finite element."""
    x, y = np.asarray(x, _wide(x)), np.asarray(y, _wide(y))
    scale = max(1.0, float(np.max(np.abs(y), initial=0.0, where=np.isfinite(y))))
    return np.allclose(x, y, rtol=tolerance, atol=tolerance * scale, equal_nan=True)


def _inner(xs: Sequence[Array], ys: Sequence[Array]) -> tuple[float, float]:
    """The real part of the sum of the products, which transposition is about; and its scale."""
    products = [
        (np.asarray(x, _wide(x)) * np.asarray(y, _wide(y))).real.ravel()
        for x, y in zip(xs, ys, strict=True)
    ]
    every = np.concatenate(products) if products else np.zeros(0)
    return float(np.sum(every)), float(np.sum(np.abs(every)))


def _agree_inner(
    trial: Trial, what: str, left: tuple[float, float], right: tuple[float, float]
) -> None:
    if not np.isfinite([left[0], right[0]]).all() and trial.kinked:
        return
    scale = max(1.0, left[1], right[1])
    assert abs(left[0] - right[0]) <= trial.tolerance * scale, (
        f"{trial!r}: {what}; got <ct, J t> = {left[0]} and <J* ct, t> = {right[0]}"
    )
