"""The sections of a trial: what the rules of a primitive make of one sample.

All are traced into one program and compiled once, since compiling is what takes the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from functx import ops
from functx.core.builder import program_checks
from functx.core.decompositions import registered_decompositions
from functx.core.primitive import LinearInput, Primitive
from functx.core.program import Program
from functx.core.tracer import current_builder
from functx.core.tracing import trace
from functx.core.types import ShapedArray, x64_enabled
from functx.lowering.functx_call import jit_program
from functx.ops.families import apply_mask
from functx.testing.numerical_derivatives import Array
from functx.transforms.decompose import trace_decomposition
from functx.transforms.forward_mode import JVPRewrite
from functx.transforms.reverse_mode import SplitVJP, transpose_jvp_rule
from functx.transforms.vmap import Batch

if TYPE_CHECKING:
    from functx.testing.rule_cases import RuleCase

Dims = tuple[int | None, ...]
RuleEvaluation = Callable[["TracedInputs"], Sequence[Any]]

FAST_COMPILE_OPTIONS = {
    "xla_backend_optimization_level": 0,
    "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_parallel_codegen_split_count": 1,
}
"""Options for XLA where its own optimizations are not at issue: what runs once need not run fast."""

BATCH_SIZES = 2, 3
"""The lengths of the inner and of the outer batch."""


@contextmanager
def checked_tracing(x64: bool = True) -> Iterator[None]:
    """64-bit types on, or off, and every program checked."""
    enabled, program_checks.enabled = program_checks.enabled, True
    try:
        with jax.enable_x64(x64):
            yield
    finally:
        program_checks.enabled = enabled


class TracedInputs:
    """What a section is computed from, traced."""

    def __init__(self, trial: RuleCase, values: Sequence[Any]):
        rest = iter(values)
        self.args = [next(rest) for _ in trial.args]
        self.tangents = [next(rest) for _ in trial.tangents]
        self.cts = [next(rest) for _ in trial.cts]
        self.ct_tangents = [next(rest) for _ in trial.ct_tangents]
        self.second_cts = [next(rest) for _ in trial.second_cts]


class CompiledRules:
    """All sections of a trial in one compiled program."""

    def __init__(self, trial: RuleCase):
        self.trial = trial
        named = rule_evaluations(trial)
        self.parts = [self._compile(named)]
        try:
            self._run(self.parts[0], trial.args, trial.cts)
        except Exception:
            # Something in it does not lower: section by section, to know what.
            self.parts = [self._compile({name: section}) for name, section in named.items()]

    def __call__(self, args: Sequence[Array], cts: Sequence[Array]) -> dict[Any, Any]:
        """The arrays of each section, or the exception that it raised."""
        found: dict[Any, Any] = {}
        with checked_tracing():
            for part in self.parts:
                try:
                    found |= self._run(part, args, cts)
                except Exception as error:
                    found |= dict.fromkeys(part[2], error)
        return found

    def _compile(self, named: dict[Any, RuleEvaluation]) -> Any:
        trial = self.trial
        places: dict[Any, Any] = {}

        def body(*values: Any) -> list[Any]:
            given = TracedInputs(trial, values)
            outs: list[Any] = []
            for name, section in named.items():
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
        return jit_program(program, compiler_options=FAST_COMPILE_OPTIONS), captured, places

    def _run(self, part: Any, args: Sequence[Array], cts: Sequence[Array]) -> dict[Any, Any]:
        trial = self.trial
        function, captured, places = part
        given = [*args, *trial.tangents, *cts, *trial.ct_tangents, *trial.second_cts]
        outs = [np.asarray(x) for x in function(*given, *captured)]
        return {
            name: outs[place] if isinstance(place, slice) else place
            for name, place in places.items()
        }


def rule_evaluations(trial: RuleCase) -> dict[Any, RuleEvaluation]:
    """What the checks need computed, by name."""
    primitive = trial.primitive
    found: dict[Any, RuleEvaluation] = {}
    others = registered_decompositions(type(primitive))
    for entry in others:
        found["decompose", entry.table] = lambda given, entry=entry: inline(
            trace_decomposition(entry, primitive, tuple(trial.avals), x64_enabled()), given.args
        )
    if primitive.decompose is not None and (primitive.has_rule("lower") or others):
        found["decompose"] = lambda given: as_list(primitive, primitive.decompose(*given.args))  # type: ignore[misc]
    for dims in trial.batchings:
        found["batch", dims] = lambda _, dims=dims: _evaluate_batch(trial, dims)
    for inner, outer in trial.nested_batchings:
        found["batch", inner, outer] = lambda _, i=inner, o=outer: _evaluate_batch(trial, i, o)
    if not trial.inexact or not trial.inexact_outs:
        return found
    for chosen in trial.varying_subsets:
        found["jvp", chosen] = lambda given, s=chosen: _evaluate_jvp(trial, given, s)
        found["vjp", chosen] = lambda given, s=chosen: _evaluate_vjp(trial, given, s)
    for chosen, zero in trial.linear_sets:
        found["transpose", chosen] = lambda given, s=chosen, z=zero: _evaluate_transpose(
            trial, given, s, z
        )
    if primitive.vjp is not None and primitive.has_rule("jvp") and primitive.differentiable:
        found["vjp from jvp"] = lambda given: _derived_vjp(trial, given)
    if len(trial.inexact_outs) > 1:
        for i in range(len(trial.inexact_outs)):
            found["vjp of output", i] = lambda given, i=i: _vjp_of_one_output(trial, given, i)
    if primitive.has_rule("cotangent_masks") and len(trial.out_avals) == 1:
        found["live", "anywhere"] = lambda given: _masked_cotangents(trial, given, None)
        # Places of the output, at random.
        live = np.asarray(np.random.RandomState(3).rand(*trial.out_avals[0].shape) < 0.5)
        found["live", "somewhere"] = lambda given: _masked_cotangents(trial, given, live)
    if not trial.has_stated_gradients:
        found["jvp of vjp"] = lambda given: _jvp_of_vjp(trial, given)
        found["vjp of vjp"] = lambda given: _vjp_of_vjp(trial, given)
    return found


def _evaluate_batch(trial: RuleCase, inner: Dims, outer: Dims | None = None) -> Sequence[Any]:
    outs = (0,) * len(trial.out_avals)
    program = trial.rewritten(Batch(BATCH_SIZES[0], inner, outs), trial.program)
    if outer is not None:
        program = trial.rewritten(Batch(BATCH_SIZES[1], outer, outs), program)
    stacked = []
    for i, (d, e) in enumerate(zip(inner, outer or [None] * len(inner), strict=True)):
        lanes = [
            [trial.batch_element(m, n)[i] for m in range(BATCH_SIZES[0])]
            for n in range(BATCH_SIZES[1])
        ]
        stacked.append(_stack(lanes, d, e))
    return inline(program, stacked)


def _evaluate_jvp(trial: RuleCase, given: TracedInputs, chosen: Sequence[int]) -> Sequence[Any]:
    flags = tuple([i in chosen for i in range(len(trial.avals))])
    program = trial.rewritten(JVPRewrite(flags), trial.program)
    tangents = [t for i, t in zip(trial.inexact, given.tangents, strict=True) if i in chosen]
    return inline(program, [*given.args, *tangents])


def _evaluate_vjp(trial: RuleCase, given: TracedInputs, chosen: Sequence[int]) -> list[Any]:
    flags = tuple([i in chosen for i in range(len(trial.avals))])
    return _run_vjp(trial, trial.program, flags, given.args, given.cts)


def _run_vjp(
    trial: RuleCase,
    program: Program,
    flags: tuple[bool, ...],
    args: Sequence[Any],
    cts: Sequence[Any],
) -> list[Any]:
    forward, backward = trial.rewritten(SplitVJP(flags), program)
    outs = inline(forward, args)
    return inline(backward, [*cts, *outs[len(program.outputs) :]])


def _vjp_of_one_output(trial: RuleCase, given: TracedInputs, output: int) -> list[Any]:
    """The pullback when the other outputs are unused."""
    k = trial.inexact_outs[output]
    alone, _ = trace(lambda *xs: [trial.bind(*xs)[k]], trial.avals)
    return _run_vjp(trial, alone, trial.inexact_mask, given.args, [given.cts[output]])


def _derived_vjp(trial: RuleCase, given: TracedInputs) -> list[Any]:
    """The cotangents that `jvp` gives, in place of those of an overridden `vjp`."""
    cts = dict(zip(trial.inexact_outs, given.cts, strict=True))
    every = [cts.get(k) for k in range(len(trial.out_avals))]
    found = transpose_jvp_rule(trial.primitive, every, given.args, trial.inexact_mask)
    return [_or_zeros(found[i], trial.avals[i]) for i in trial.inexact]


def _evaluate_transpose(
    trial: RuleCase, given: TracedInputs, chosen: Sequence[int], zero: bool
) -> list[Any]:
    args = []
    for i, x in enumerate(given.args):
        if i in chosen:
            args.append(LinearInput(trial.avals[i]))
        else:
            args.append(ops.zeros_like(x) if zero and trial.inexact_mask[i] else x)
    cts = dict(zip(trial.inexact_outs, given.cts, strict=True))
    every = [cts.get(k) for k in range(len(trial.out_avals))]
    results = trial.primitive.transpose(
        every if trial.primitive.multiple_results else every[0], *args
    )
    assert len(results) == len(args), (
        f"`transpose` must return one entry an operand; got {len(results)} for {len(args)}"
    )
    for i, result in enumerate(results):
        assert i in chosen or result is None, (
            f"`transpose` must return None for operand {i}, which has a value"
        )
    return [_or_zeros(results[i], trial.avals[i]) for i in chosen]


def _masked_cotangents(trial: RuleCase, given: TracedInputs, live: Any) -> list[Any]:
    """The cotangents when that of the output is zero but where `live`, and where they live."""
    (ct,) = given.cts
    args = given.args
    cts = _run_vjp(
        trial,
        trial.program,
        trial.inexact_mask,
        args,
        [ct if live is None else apply_mask(live, ct)],
    )
    lives = trial.primitive.cotangent_masks(live, args)
    found = []
    for i, pulled in zip(trial.inexact, cts, strict=True):
        there = np.array(True) if lives[i] is None else lives[i]
        assert there.shape in ((), pulled.shape), (
            f"`cotangent_masks` must give operand {i} a mask of its shape; got {there.shape}"
        )
        found += [pulled, there]
    return found


def pullback_program(trial: RuleCase) -> Program:
    """The program of the cotangents of all operands, from the operands and cotangents."""
    n = len(trial.avals)
    return trace(
        lambda *xs: _run_vjp(trial, trial.program, trial.inexact_mask, xs[:n], xs[n:]),
        [*trial.avals, *[trial.out_avals[k] for k in trial.inexact_outs]],
        name=f"vjp_{trial.primitive.name}",
    )[0]


def _jvp_of_vjp(trial: RuleCase, given: TracedInputs) -> Sequence[Any]:
    flags = (*trial.inexact_mask, *[True] * len(given.cts))
    program = trial.rewritten(JVPRewrite(flags), trial.pullback)
    tangents = [*given.tangents, *given.ct_tangents]
    return inline(program, [*given.args, *given.cts, *tangents])


def _vjp_of_vjp(trial: RuleCase, given: TracedInputs) -> list[Any]:
    flags = (*trial.inexact_mask, *[True] * len(given.cts))
    return _run_vjp(trial, trial.pullback, flags, [*given.args, *given.cts], given.second_cts)


def inline(program: Program, args: Sequence[Any]) -> list[Any]:
    """The outputs of `program` on traced values, its equations copied into the trace."""
    builder = current_builder.get()
    assert builder is not None
    return builder.inline(program, args)


def as_list(primitive: Primitive, out: Any) -> list[Any]:
    return list(out) if primitive.multiple_results else [out]


def _or_zeros(ct: Any, aval: ShapedArray) -> Any:
    return ops.zeros_like(aval) if ct is None else ct


def _stack(rows: Sequence[Sequence[Array]], inner: int | None, outer: int | None) -> Array:
    """Lanes stacked along a dimension for each batch that is not None."""
    row = [lanes[0] if inner is None else np.stack(lanes, inner) for lanes in rows]
    return np.asarray(row[0] if outer is None else np.stack(row, outer))
