"""The rule harness: every rule of a primitive against the others, and all against differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from functx.core.decompositions import registered_decompositions
from functx.core.primitive import Primitive
from functx.core.program import Program
from functx.core.rewriting import cached_rewrite
from functx.core.samples import Sample, avals_with_dtype
from functx.core.tracing import trace
from functx.core.types import (
    DTYPES_BY_SHORT_NAME,
    SHORT_NAMES,
    ShapedArray,
    canonical_dtype,
    is_inexact,
)
from functx.lowering.functx_call import jit_program
from functx.testing.numerical_derivatives import Array, central_difference, widen
from functx.testing.rule_cases import RuleCase, is_within_tolerance, make_rule_cases, perturb_array
from functx.testing.rule_evaluation import checked_tracing, inline
from functx.transforms.forward_mode import JVPRewrite
from functx.transforms.reverse_mode import SplitVJP
from functx.transforms.vmap import Batch, add_axis


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
        for trial in make_rule_cases(primitive_class, one, complex_too=number == 0):
            for check in CHECKS:
                try:
                    check(trial)
                except AssertionError as error:
                    problems.append(str(error))
                except Exception as error:
                    problems.append(f"{trial!r}: {type(error).__name__}: {error}")
    if problems:
        raise AssertionError("\n".join(problems))


def abstract_eval_states_the_types_that_lower_produces(trial: RuleCase) -> None:
    """1. In every dtype that the sample can have."""
    with checked_tracing():
        programs = {
            name: trial.trace_primitive(avals_with_dtype(trial.sample, DTYPES_BY_SHORT_NAME[name]))
            for name in trial.dtype_names
        }
        try:
            _lower(list(programs.values()))
        except Exception:
            # One by one, to know in which dtype.
            for program in programs.values():
                try:
                    _lower([program])
                except Exception as error:
                    raise AssertionError(
                        f"{trial.primitive!r} on {_describe_types(program.in_avals)}: `lower` must produce "
                        f"{_describe_types(program.out_avals)}, as `abstract_eval` states; it gives "
                        f"{type(error).__name__}: {error}"
                    ) from error


def types_stay_narrow_where_the_64_bit_switch_is_off(trial: RuleCase) -> None:
    """1, in JAX's default mode: a sample of narrow types gives narrow types, which lower."""
    avals = trial.sample.avals
    with checked_tracing(x64=False):
        if any(canonical_dtype(a.dtype) != a.dtype for a in avals):
            return
        program = trial.trace_primitive(avals)
        wide = [a for a in program.out_avals if canonical_dtype(a.dtype) != a.dtype]
        assert not wide, (
            f"{trial.primitive!r} on {_describe_types(avals)}: got {_describe_types(wide)} in 32-bit mode"
        )
        try:
            _lower([program])
        except Exception as error:
            raise AssertionError(
                f"{trial.primitive!r} on {_describe_types(avals)}: `lower` must produce "
                f"{_describe_types(program.out_avals)} in 32-bit mode; it gives {type(error).__name__}: {error}"
            ) from error


def _lower(programs: Sequence[Program]) -> None:
    """Emit the programs in one module, which MLIR verifies."""
    avals = [a for p in programs for a in p.in_avals]

    def body(*xs: Any) -> list[Any]:
        rest = iter(xs)
        return [out for p in programs for out in inline(p, [next(rest) for _ in p.inputs])]

    compiled: Any = jit_program(trace(body, avals)[0])
    compiled.lower(*[np.zeros(a.shape, a.dtype) for a in avals])


def jvp_matches_differences(trial: RuleCase) -> None:
    """2. For every set of operands that vary.

    A difference is linear in what varies, so those along single operands add up.
    """
    if not trial.inexact or not trial.inexact_outs:
        return
    values = trial.evaluate(trial.args)
    for chosen in trial.varying_subsets:
        results = trial.result(("jvp", chosen))
        assert_close(
            trial, "the outputs of `jvp` must be the primitive's", results[: len(values)], values
        )
        if not trial.has_stated_gradients:
            along = zip(*[trial.differences[i] for i in chosen], strict=True)
            assert_close(
                trial,
                f"`jvp` must match differences when operands {chosen} vary",
                results[len(values) :],
                [np.asarray(sum(parts)) for parts in along],
                trial.difference_tolerance,
            )


def gradients_at_kinks_are_those_stated(trial: RuleCase) -> None:
    """2, at kinks: where the sample states gradients, they take the place of differences."""
    if not trial.has_stated_gradients or not trial.inexact_outs:
        return
    everything = "vjp", tuple(trial.inexact)
    trial.result(everything)
    pulled = trial.compiled(trial.args, [np.ones_like(ct) for ct in trial.cts])[everything]
    for i, stated in (trial.sample.gradients or {}).items():
        assert_close(
            trial,
            f"`vjp` must give the gradient stated for operand {i}",
            [pulled[trial.inexact.index(i)]],
            [np.broadcast_to(np.asarray(stated), trial.avals[i].shape)],
        )


def vjp_is_the_transpose_of_jvp(trial: RuleCase) -> None:
    """3. <ct, J t> = <J* ct, t>, for every set of operands that vary."""
    if not trial.inexact or not trial.inexact_outs:
        return
    tangents = dict(zip(trial.inexact, trial.tangents, strict=True))
    for chosen in trial.varying_subsets:
        pulled = trial.result(("vjp", chosen))
        _same_types(
            f"{trial!r}: the cotangents of operands {chosen}",
            map(_aval, pulled),
            [trial.avals[i] for i in chosen],
        )
        assert_inner_products_close(
            trial,
            f"`vjp` must be the transpose of `jvp` when operands {chosen} vary",
            (trial.cts, trial.result(("jvp", chosen))[len(trial.out_avals) :]),
            (pulled, [tangents[i] for i in chosen]),
        )
    if len(trial.inexact_outs) > 1:
        alone = [trial.result(("vjp of output", k)) for k in range(len(trial.inexact_outs))]
        assert_close(
            trial,
            "the cotangents that single outputs give must add up to those of all",
            [np.asarray(sum(parts)) for parts in zip(*alone, strict=True)],
            trial.result(("vjp", tuple(trial.inexact))),
        )


def transpose_matches_the_linear_map(trial: RuleCase) -> None:
    """4. For every set of operands that the primitive is linear in."""
    tangents = dict(zip(trial.inexact, trial.tangents, strict=True))
    for chosen, zero in trial.linear_sets:
        pulled = trial.result(("transpose", chosen))
        _same_types(
            f"{trial!r}: what `transpose` gives operands {chosen}",
            map(_aval, pulled),
            [trial.avals[i] for i in chosen],
        )
        args = trial.args_with_zeros(chosen, zero)
        pushed = trial.evaluate([tangents[i] if i in chosen else x for i, x in enumerate(args)])
        assert_inner_products_close(
            trial,
            f"`transpose` must be that of the primitive in operands {chosen}",
            (trial.cts, [pushed[k] for k in trial.inexact_outs]),
            (pulled, [tangents[i] for i in chosen]),
        )


def cotangents_are_zero_outside_their_masks(trial: RuleCase) -> None:
    """3a. Where `cotangent_masks` says that a cotangent is zero, it is."""
    for name in (("live", "anywhere"), ("live", "somewhere")):
        if name not in trial.results:
            continue
        found = trial.result(name)
        for i, ct, there in zip(trial.inexact, found[::2], found[1::2], strict=True):
            # nan is 0 * inf, an infinite slope at a kink, which masking removes.
            dead = ~np.broadcast_to(there, ct.shape) & ~np.isnan(ct)
            assert not np.any(ct[dead]), (
                f"{trial!r}: the cotangent of operand {i} must be zero where `cotangent_masks` says "
                f"so; got\n{ct}\nliving at\n{there}"
            )


def batch_matches_a_loop(trial: RuleCase) -> None:
    """5. For every choice of batch dimensions, and for two batches nested."""
    for dims in trial.batchings:
        assert_close(
            trial,
            f"`batch` must match a loop for dims {dims}",
            trial.result(("batch", dims)),
            trial.batched_by_loop(dims),
        )
    for inner, outer in trial.nested_batchings:
        assert_close(
            trial,
            f"`batch` must match two loops for dims {inner} within {outer}",
            trial.result(("batch", inner, outer)),
            trial.batched_by_loop(inner, outer),
        )


def overridden_rules_match_derived_rules(trial: RuleCase) -> None:
    """6. `decompose` with `lower`, what is registered with both, `vjp` with the transpose of `jvp`."""
    others = registered_decompositions(type(trial.primitive))
    if others or "decompose" in trial.results:
        # Where one is registered that is what runs, and `decompose` is what it must agree with.
        own = "decompose" in trial.results
        values = trial.result("decompose") if own and others else trial.evaluate(trial.args)
        for entry in others:
            found = trial.result(("decompose", entry.table))
            assert_close(
                trial,
                f"the decomposition at {entry.location} must agree with the primitive",
                found,
                values,
            )
        if own and not others:
            assert_close(
                trial, "`decompose` must agree with `lower`", trial.result("decompose"), values
            )
    if "vjp from jvp" in trial.results:
        assert_close(
            trial,
            "`vjp` must agree with the transpose of `jvp`",
            trial.result(("vjp", tuple(trial.inexact))),
            trial.result("vjp from jvp"),
        )


def second_derivatives_match_differences(trial: RuleCase) -> None:
    """7. `jvp` of `vjp` against differences of `vjp`; `vjp` of `vjp` against that `jvp`."""
    if "jvp of vjp" not in trial.results:
        return
    everything = "vjp", tuple(trial.inexact)
    count = len(trial.result(everything))
    pushed = trial.result("jvp of vjp")[count:]

    def at(step: float) -> Sequence[Array]:
        cts = [
            perturb_array(ct, d, step) for ct, d in zip(trial.cts, trial.ct_tangents, strict=True)
        ]
        found: list[Array] = trial.compiled(trial.perturbed_args(trial.inexact, step), cts)[
            everything
        ]
        return found

    assert_close(
        trial,
        "`jvp` of `vjp` must match differences of `vjp`",
        pushed,
        central_difference(at, trial.difference_step),
        10 * trial.difference_tolerance,
    )
    assert_inner_products_close(
        trial,
        "`vjp` of `vjp` must be the transpose of its `jvp`",
        (trial.second_cts, pushed),
        (trial.result("vjp of vjp"), [*trial.tangents, *trial.ct_tangents]),
    )


def dtypes_survive_each_transform(trial: RuleCase) -> None:
    """7, without values: tangents, cotangents and batches have their dtype in all dtypes."""
    for name in trial.dtype_names:
        avals = avals_with_dtype(trial.sample, DTYPES_BY_SHORT_NAME[name])
        mask = tuple([is_inexact(a.dtype) for a in avals])
        with checked_tracing():
            program = trial.trace_primitive(avals)
            for dims in trial.batchings[-1:]:
                batched = cached_rewrite(Batch(2, dims, (0,) * len(program.outputs)), program)
                wanted = [add_axis(a, 0, 2) for a in program.out_avals]
                _same_types(f"{trial!r} in {name}: a batch", batched.out_avals, wanted)
            outs = [a for a in program.out_avals if is_inexact(a.dtype)]
            if not any(mask) or not outs:
                continue
            pushed = cached_rewrite(JVPRewrite(mask), program).out_avals[len(program.outputs) :]
            _same_types(f"{trial!r} in {name}: the tangents", pushed, outs)
            pulled = cached_rewrite(SplitVJP(mask), program)[1].out_avals  # type: ignore[index]
            varying = [a for a in avals if is_inexact(a.dtype)]
            _same_types(f"{trial!r} in {name}: the cotangents", pulled, varying)


def programs_are_well_formed_and_print_and_hash_stably(trial: RuleCase) -> None:
    """8. Every program made is checked where it is made; here, that made again it is equal."""
    for name in trial.results:
        trial.result(name)
    with checked_tracing():
        for rewrite, source, result in trial.rewrites:
            again = rewrite(source)
            if isinstance(result, tuple):
                for one, other in zip(result, again, strict=True):
                    _check_stable(trial, one, other)
            else:
                _check_stable(trial, result, again)


def _check_stable(trial: RuleCase, one: Program, other: Program) -> None:
    assert one == other and hash(one) == hash(other), (
        f"{trial!r}: a program made twice must be equal and hash alike; got\n{one}\nand\n{other}"
    )
    text, other_text = str(_without_sources(one)), str(_without_sources(other))
    assert text == other_text, f"{trial!r}: a program must print stably; got\n{text}\nand\n{other}"
    assert Program.parse(str(one)) == one, f"{trial!r}: a program must parse back; got\n{text}"


def _without_sources(program: Program) -> Program:
    """`program` without its source lines, which depend on who asked for it."""
    equations = [eqn.replace(source=None) for eqn in program.equations]
    return Program(program.name, program.inputs, equations, program.outputs)


CHECKS: tuple[Callable[[RuleCase], None], ...] = (
    abstract_eval_states_the_types_that_lower_produces,
    types_stay_narrow_where_the_64_bit_switch_is_off,
    jvp_matches_differences,
    gradients_at_kinks_are_those_stated,
    vjp_is_the_transpose_of_jvp,
    cotangents_are_zero_outside_their_masks,
    transpose_matches_the_linear_map,
    batch_matches_a_loop,
    overridden_rules_match_derived_rules,
    second_derivatives_match_differences,
    dtypes_survive_each_transform,
    programs_are_well_formed_and_print_and_hash_stably,
)


def assert_close(
    trial: RuleCase,
    what: str,
    got: Sequence[Array],
    wanted: Sequence[Array],
    tolerance: float | None = None,
) -> None:
    """Raise AssertionError, which says `what`, unless the arrays agree, in shape too."""
    assert len(got) == len(wanted), f"{trial!r}: {what}; got {len(got)} for {len(wanted)} values"
    for x, y in zip(got, wanted, strict=True):
        assert x.shape == y.shape, f"{trial!r}: {what}; got shape {x.shape} for {y.shape}"
        assert is_within_tolerance(x, y, tolerance or trial.tolerance), (
            f"{trial!r}: {what}; got\n{x}\nfor\n{y}"
        )


def assert_inner_products_close(
    trial: RuleCase,
    what: str,
    left: tuple[Sequence[Array], Sequence[Array]],
    right: tuple[Sequence[Array], Sequence[Array]],
) -> None:
    """Raise AssertionError unless the two real inner products agree.

    The product is without conjugation. At kinks, where derivatives may be infinite, one that
    is not finite says nothing.
    """
    terms = [
        [(widen(x) * widen(y)).real.ravel() for x, y in zip(*pair, strict=True)]
        for pair in (left, right)
    ]
    (a, b), scale = (
        [float(sum(np.sum(t) for t in side)) for side in terms],
        max(1.0, *[float(sum(np.sum(np.abs(t)) for t in side)) for side in terms]),
    )
    if trial.has_stated_gradients and not np.isfinite([a, b]).all():
        return
    assert abs(a - b) <= trial.tolerance * scale, (
        f"{trial!r}: {what}; got <ct, J t> = {a} and <J* ct, t> = {b}"
    )


def _aval(x: Array) -> ShapedArray:
    return ShapedArray(x.shape, x.dtype)


def _same_types(what: str, got: Any, wanted: Sequence[ShapedArray]) -> None:
    got = list(got)
    assert [(a.shape, a.dtype) for a in got] == [(a.shape, a.dtype) for a in wanted], (
        f"{what} must be {_describe_types(wanted)}; got {_describe_types(got)}"
    )


def _describe_types(avals: Sequence[ShapedArray]) -> str:
    return ", ".join([f"{SHORT_NAMES[a.dtype]}{list(a.shape)}" for a in avals])
