"""`check_rules`: the rules of a primitive compared with each other and with finite differences."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence

import numpy as np

from functx.core.decompositions import registered_decompositions
from functx.core.primitive import Primitive
from functx.core.program import Program
from functx.core.rewriting import cached_rewrite
from functx.core.samples import Sample, avals_with_dtype
from functx.core.types import (
    DTYPES_BY_SHORT_NAME,
    SHORT_NAMES,
    ShapedArray,
    canonical_dtype,
    is_inexact,
)
from functx.core.typing import Avals
from functx.testing.numerical_derivatives import Array, central_difference, widen
from functx.testing.reference import (
    apply_primitive,
    interpret_in_numpy,
    narrow_array,
    numpy_definition,
)
from functx.testing.rule_cases import RuleCase, is_within_tolerance, make_rule_cases, perturb_array
from functx.testing.rule_evaluation import (
    COMPARED_OPERATIONS,
    checked_tracing,
    lower_side_by_side,
    run_side_by_side,
)
from functx.transforms.batching import Batch, add_axis
from functx.transforms.forward_mode import JVPRewrite
from functx.transforms.reverse_mode import SplitVJP
from functx.transforms.sparsity import JacobianPattern, known_arrays

DEFINITION_TOLERANCES = {
    "f64": 1e-12,
    "c128": 1e-12,
    "f32": 4e-6,
    "c64": 4e-6,
    "f16": 4e-3,
    "bf16": 3e-2,
}
"""By dtype, the tolerance of a value against its definition, relative to the largest element."""

PARSED_OPERATIONS: set[Hashable] = set()
"""The operations, with types of operands, whose printed form parsed back in this process."""


def check_rules(primitive_class: type[Primitive], sample: Sample | int | None = None) -> None:
    """Check every rule of a primitive on all its samples, or on one, given as a Sample or by number.

    Compares `abstract_eval`, `jvp`, `transpose`, `vjp`, `batch`, `lower` and `decompose` with each
    other, with finite differences and with the definition `numpy`; the functions in `CHECKS` define
    the comparisons. Returns None. Raises AssertionError with the list of all mismatches.
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
    for number, case_sample in enumerate(samples):
        problems += find_problems(
            make_rule_cases(primitive_class, case_sample, complex_too=number == 0)
        )
    if problems:
        raise AssertionError("\n".join(problems))


def find_problems(cases: Iterable[RuleCase]) -> list[str]:
    """The messages of those of `CHECKS` that fail, for each case."""
    problems = []
    for case in cases:
        for check in CHECKS:
            try:
                check(case)
            except AssertionError as error:
                problems.append(str(error))
            except Exception as error:
                problems.append(f"{case!r}: {type(error).__name__}: {error}")
    return problems


def abstract_eval_states_the_types_that_lower_produces(case: RuleCase) -> None:
    """1. `lower` produces the types that `abstract_eval` states.

    In every dtype of the sample, and for each operation that the rules consist of.
    """
    with checked_tracing():
        try:
            assert not case.operations or case.lowered_operations
        except Exception:
            # One by one, to name the operation that fails.
            for operation in case.operations:
                try:
                    lower_side_by_side([operation.program])
                except Exception as error:
                    raise AssertionError(
                        f"{operation!r}: `lower` must produce "
                        f"{_describe_types(operation.program.out_avals)}, as `abstract_eval` states; got "
                        f"{type(error).__name__}: {error}"
                    ) from error


def types_stay_narrow_where_the_64_bit_switch_is_off(case: RuleCase) -> None:
    """1, in 32-bit mode: operands of narrow types give results of narrow types, which lower."""
    avals = case.sample.avals
    if not case.has_widest_dtype:
        return  # Another case of the sample is checked.
    with checked_tracing(x64=False):
        if any(canonical_dtype(a.dtype) != a.dtype for a in avals):
            return
        program = case.trace_primitive(avals)
        wide = [a for a in program.out_avals if canonical_dtype(a.dtype) != a.dtype]
        assert not wide, (
            f"{case.primitive!r} on {_describe_types(avals)}: got {_describe_types(wide)} in 32-bit mode"
        )
        try:
            lower_side_by_side([program])
        except Exception as error:
            raise AssertionError(
                f"{case.primitive!r} on {_describe_types(avals)}: `lower` must produce "
                f"{_describe_types(program.out_avals)} in 32-bit mode; got {type(error).__name__}: {error}"
            ) from error


def lower_matches_numpy(case: RuleCase) -> None:
    """1, the values: `lower` matches the definition `numpy`.

    In every dtype of the sample, and for each operation that the rules consist of.
    """
    if not case.operations:
        return
    factor = case.sample.tolerance[0] if case.sample.tolerance else 1.0
    with checked_tracing():
        results = run_side_by_side(case.operations, case.lowered_operations)
        for operation, runs in zip(case.operations, results, strict=True):
            if numpy_definition(operation.primitive) is None:
                continue
            for args, outs in zip(operation.draws, runs, strict=True):
                for x, y in zip(outs, apply_primitive(operation.primitive, args), strict=True):
                    assert_close(
                        case,
                        f"`lower` must agree with the definition `numpy` in {operation.dtype_name}",
                        [x],
                        [narrow_array(y, x.dtype)],
                        factor * DEFINITION_TOLERANCES.get(SHORT_NAMES[x.dtype], 0.0),
                        repr(operation),
                    )
    COMPARED_OPERATIONS.update(case.interpreted.operations)


def jvp_matches_differences(case: RuleCase) -> None:
    """2. `jvp` matches central differences, for every set of varying operands.

    The differences along single operands are added, since the derivative is linear.
    """
    if not case.inexact or not case.inexact_outs:
        return
    values = case.evaluate(case.args)
    for varying in case.varying_subsets:
        results = case.result(("jvp", varying))
        assert_close(
            case, "the outputs of `jvp` must be the primitive's", results[: len(values)], values
        )
        if not case.has_stated_gradients:
            differences = zip(*[case.differences[i] for i in varying], strict=True)
            assert_close(
                case,
                f"`jvp` must match differences when operands {varying} vary, or each sample must "
                "state `gradients`",
                results[len(values) :],
                [np.asarray(sum(parts)) for parts in differences],
                case.difference_tolerance,
            )


def gradients_at_kinks_are_those_stated(case: RuleCase) -> None:
    """2, at kinks: `vjp` gives the gradients that the sample states, instead of differences."""
    if not case.has_stated_gradients or not case.inexact_outs:
        return
    name = "vjp", tuple(case.inexact)
    case.result(name)
    gradients = case.interpreted.at(name, case.args, [np.ones_like(ct) for ct in case.cts])
    for i, stated in (case.sample.gradients or {}).items():
        assert_close(
            case,
            f"`vjp` must give the gradient stated for operand {i}",
            [gradients[case.inexact.index(i)]],
            [np.broadcast_to(np.asarray(stated), case.avals[i].shape)],
        )


def vjp_is_the_transpose_of_jvp(case: RuleCase) -> None:
    """3. <ct, J t> = <J* ct, t>, for every set of varying operands."""
    if not case.inexact or not case.inexact_outs:
        return
    tangents = dict(zip(case.inexact, case.tangents, strict=True))
    for varying in case.varying_subsets:
        cotangents = case.result(("vjp", varying))
        _check_types(
            f"{case!r}: the cotangents of operands {varying}",
            map(_aval, cotangents),
            [case.avals[i] for i in varying],
        )
        assert_inner_products_close(
            case,
            f"`vjp` must be the transpose of `jvp` when operands {varying} vary",
            (case.cts, case.result(("jvp", varying))[len(case.out_avals) :]),
            (cotangents, [tangents[i] for i in varying]),
        )
    if len(case.inexact_outs) > 1:
        single = [case.result(("vjp of output", k)) for k in range(len(case.inexact_outs))]
        assert_close(
            case,
            "the cotangents of single outputs must add up to those of all outputs",
            [np.asarray(sum(parts)) for parts in zip(*single, strict=True)],
            case.result(("vjp", tuple(case.inexact))),
        )


def transpose_matches_the_linear_map(case: RuleCase) -> None:
    """4. <ct, f(t)> = <transpose(ct), t>, for every set of operands that the primitive is linear in.

    Not of operations that are constants in reverse mode alone.
    """
    if case.primitive.is_constant_in_reverse_mode:
        return
    tangents = dict(zip(case.inexact, case.tangents, strict=True))
    for varying, zero in case.linear_sets:
        cotangents = case.result(("transpose", varying))
        _check_types(
            f"{case!r}: the results of `transpose` for operands {varying}",
            map(_aval, cotangents),
            [case.avals[i] for i in varying],
        )
        args = case.args_with_zeros(varying, zero)
        images = case.evaluate([tangents[i] if i in varying else x for i, x in enumerate(args)])
        assert_inner_products_close(
            case,
            f"`transpose` must be that of the primitive in operands {varying}",
            (case.cts, [images[k] for k in case.inexact_outs]),
            (cotangents, [tangents[i] for i in varying]),
        )


def cotangents_are_zero_outside_their_masks(case: RuleCase) -> None:
    """3a. Cotangents are zero outside the masks of `cotangent_masks`."""
    for name in (("masks", "everywhere"), ("masks", "random")):
        if name not in case.results:
            continue
        results = case.result(name)
        for i, ct, mask in zip(case.inexact, results[::2], results[1::2], strict=True):
            # nan is 0 * inf, an infinite derivative at a kink, which masking removes.
            outside = ~np.broadcast_to(mask, ct.shape) & ~np.isnan(ct)
            assert not np.any(ct[outside]), (
                f"{case!r}: the cotangent of operand {i} must be zero outside its mask from "
                f"`cotangent_masks`; got\n{ct}\nwith mask\n{mask}"
            )


def the_tangent_is_zero_outside_its_mask(case: RuleCase) -> None:
    """3b. The tangent of the output is zero outside the mask of `tangent_mask`."""
    if ("masks", "tangent") not in case.results:
        return
    tangent, mask = case.result(("masks", "tangent"))
    outside = ~np.broadcast_to(mask, tangent.shape) & ~np.isnan(tangent)
    assert not np.any(tangent[outside]), (
        f"{case!r}: the tangent must be zero outside its mask from `tangent_mask`; "
        f"got\n{tangent}\nwith mask\n{mask}"
    )


def the_sparsity_pattern_contains_the_jacobian(case: RuleCase) -> None:
    """3c. Tangents of single elements reach no output outside the pattern that `index_sets` gives.

    The values of operands that are not inexact are unknown at first, then known.
    """
    if not case.has_widest_dtype or not case.inexact or not case.inexact_outs:
        return
    with checked_tracing():
        tangents = cached_rewrite(JVPRewrite(case.inexact_mask), case.program)
        known = known_arrays(case.args)
        patterns = [
            JacobianPattern(case.inexact_mask, len(case.inexact_outs), values)(case.program)
            for values in dict.fromkeys([(None,) * len(known), known])
        ]
        avals = [case.avals[i] for i in case.inexact]
        expected = np.logical_and.reduce([pattern.to_dense() for pattern in patterns])
        # A full column misses nothing.
        columns = np.flatnonzero(~expected.all(axis=0))
        for column in np.random.RandomState(3).permutation(columns)[:2]:
            basis = np.arange(expected.shape[1]) == column
            parts = np.split(basis, np.cumsum([a.size for a in avals])[:-1])
            units = [x.reshape(a.shape).astype(a.dtype) for x, a in zip(parts, avals, strict=True)]
            outs = interpret_in_numpy(tangents, *case.args, *units)[len(case.out_avals) :]
            reached = np.concatenate([np.nan_to_num(x).ravel() != 0 for x in outs])
            missing = np.flatnonzero(reached & ~expected[:, column])
            assert not missing.size, (
                f"{case!r}: `index_sets` must contain every element that a tangent reaches; got none "
                f"for element {column} of the operands in elements {missing} of the outputs"
            )


def batch_matches_a_loop(case: RuleCase) -> None:
    """5. `batch` matches a loop, for every choice of batch dimensions and for two nested batches."""
    for dims in case.batchings:
        assert_close(
            case,
            f"`batch` must match a loop for dims {dims}",
            case.result(("batch", dims)),
            case.batched_by_loop(dims),
        )
    for inner, outer in case.nested_batchings:
        assert_close(
            case,
            f"`batch` must match two loops for dims {inner} within {outer}",
            case.result(("batch", inner, outer)),
            case.batched_by_loop(inner, outer),
        )


def overridden_rules_match_derived_rules(case: RuleCase) -> None:
    """6. `decompose`, `lower` and registered decompositions agree, and `vjp` with the transpose of `jvp`."""
    registered = registered_decompositions(type(case.primitive))
    if registered or "decompose" in case.results:
        # A registered decomposition is what `evaluate` runs, so it is compared with `decompose`.
        has_method = "decompose" in case.results
        values = case.result("decompose") if has_method and registered else case.evaluate(case.args)
        for entry in registered:
            outs = case.result(("decompose", entry.table))
            assert_close(
                case,
                f"the decomposition at {entry.location} must agree with the primitive",
                outs,
                values,
            )
        if has_method and not registered:
            assert_close(
                case, "`decompose` must agree with `lower`", case.result("decompose"), values
            )
    if "vjp from jvp" in case.results:
        assert_close(
            case,
            "`vjp` must agree with the transpose of `jvp`",
            case.result(("vjp", tuple(case.inexact))),
            case.result("vjp from jvp"),
        )


def second_derivatives_match_differences(case: RuleCase) -> None:
    """7. `jvp` of `vjp` matches differences of `vjp`, and `vjp` of `vjp` is its transpose."""
    if "jvp of vjp" not in case.results:
        return
    name = "vjp", tuple(case.inexact)
    count = len(case.result(name))
    tangents = case.result("jvp of vjp")[count:]

    def at(step: float) -> Sequence[Array]:
        cts = [perturb_array(ct, d, step) for ct, d in zip(case.cts, case.ct_tangents, strict=True)]
        return case.interpreted.at(name, case.perturbed_args(case.inexact, step), cts)

    assert_close(
        case,
        "`jvp` of `vjp` must match differences of `vjp`",
        tangents,
        central_difference(at, case.difference_step),
        10 * case.difference_tolerance,
    )
    assert_inner_products_close(
        case,
        "`vjp` of `vjp` must be the transpose of its `jvp`",
        (case.second_cts, tangents),
        (case.result("vjp of vjp"), [*case.tangents, *case.ct_tangents]),
    )


def dtypes_survive_each_transform(case: RuleCase) -> None:
    """7, types alone: tangents, cotangents and batches have the right types in all dtypes."""
    for name in case.dtype_names:
        avals = avals_with_dtype(case.sample, DTYPES_BY_SHORT_NAME[name])
        mask = tuple([is_inexact(a.dtype) for a in avals])
        with checked_tracing():
            program = case.trace_primitive(avals)
            for dims in case.batchings[-1:]:
                batched = cached_rewrite(Batch(2, dims, (0,) * len(program.outputs)), program)
                batched_avals = [add_axis(a, 0, 2) for a in program.out_avals]
                _check_types(f"{case!r} in {name}: a batch", batched.out_avals, batched_avals)
            outs = [a for a in program.out_avals if is_inexact(a.dtype)]
            if not any(mask) or not outs:
                continue
            tangents = cached_rewrite(JVPRewrite(mask), program).out_avals[len(program.outputs) :]
            _check_types(f"{case!r} in {name}: the tangents", tangents, outs)
            cotangents = cached_rewrite(SplitVJP(mask), program)[1].out_avals
            inexact_avals = [a for a in avals if is_inexact(a.dtype)]
            _check_types(f"{case!r} in {name}: the cotangents", cotangents, inexact_avals)


def programs_are_well_formed_and_print_and_hash_stably(case: RuleCase) -> None:
    """8. A rewrite that runs again gives equal programs, which print and parse alike.

    `checked_tracing` checks that every program is well-formed when it is made.
    """
    for name in case.results:
        case.result(name)
    with checked_tracing():
        for (rewrite, source), result in case.rewrites.items():
            again = rewrite(source)
            if isinstance(result, tuple):
                for program, second in zip(result, again, strict=True):
                    _check_stable(case, program, second)
            else:
                _check_stable(case, result, again)


def _check_stable(case: RuleCase, program: Program, second: Program) -> None:
    assert program == second and hash(program) == hash(second), (
        f"{case!r}: a program made twice must be equal and hash alike; got\n{program}\nand\n{second}"
    )
    text = str(_without_sources(program))
    assert text == str(_without_sources(second)), (
        f"{case!r}: a program must print stably; got\n{text}\nand\n{second}"
    )
    operations = {(eqn.primitive, *[atom.aval for atom in eqn.inputs]) for eqn in program.equations}
    if not operations <= PARSED_OPERATIONS:
        assert Program.parse(text) == program, f"{case!r}: a program must parse back; got\n{text}"
        PARSED_OPERATIONS.update(operations)


def _without_sources(program: Program) -> Program:
    """`program` without source lines, which depend on the caller."""
    equations = [eqn.replace(source=None) for eqn in program.equations]
    return Program(program.name, program.inputs, equations, program.outputs)


CHECKS: tuple[Callable[[RuleCase], None], ...] = (
    abstract_eval_states_the_types_that_lower_produces,
    lower_matches_numpy,
    types_stay_narrow_where_the_64_bit_switch_is_off,
    jvp_matches_differences,
    gradients_at_kinks_are_those_stated,
    vjp_is_the_transpose_of_jvp,
    cotangents_are_zero_outside_their_masks,
    the_tangent_is_zero_outside_its_mask,
    the_sparsity_pattern_contains_the_jacobian,
    transpose_matches_the_linear_map,
    batch_matches_a_loop,
    overridden_rules_match_derived_rules,
    second_derivatives_match_differences,
    dtypes_survive_each_transform,
    programs_are_well_formed_and_print_and_hash_stably,
)


def assert_close(
    case: RuleCase,
    requirement: str,
    got: Sequence[Array],
    expected: Sequence[Array],
    tolerance: float | None = None,
    subject: str | None = None,
) -> None:
    """Raise AssertionError with `requirement` unless the arrays agree in number, shape and value.

    The requirement is one for `subject`, or else for the case.
    """
    subject = subject or repr(case)
    assert len(got) == len(expected), (
        f"{subject}: {requirement}; got {len(got)} for {len(expected)} values"
    )
    for x, y in zip(got, expected, strict=True):
        assert x.shape == y.shape, f"{subject}: {requirement}; got shape {x.shape} for {y.shape}"
        assert is_within_tolerance(x, y, case.tolerance if tolerance is None else tolerance), (
            f"{subject}: {requirement}; got\n{x}\nfor\n{y}"
        )


def assert_inner_products_close(
    case: RuleCase,
    requirement: str,
    left: tuple[Sequence[Array], Sequence[Array]],
    right: tuple[Sequence[Array], Sequence[Array]],
) -> None:
    """Raise AssertionError with `requirement` unless two real inner products agree.

    The products are taken without conjugation. At kinks, where derivatives may be infinite, a
    product that is not finite is not compared.
    """
    terms = [
        [(widen(x) * widen(y)).real.ravel() for x, y in zip(*pair, strict=True)]
        for pair in (left, right)
    ]
    (a, b), scale = (
        [float(sum(np.sum(t) for t in side)) for side in terms],
        max(1.0, *[float(sum(np.sum(np.abs(t)) for t in side)) for side in terms]),
    )
    if case.has_stated_gradients and not np.isfinite([a, b]).all():
        return
    assert abs(a - b) <= case.tolerance * scale, (
        f"{case!r}: {requirement}; got <ct, J t> = {a} and <J* ct, t> = {b}"
    )


def _aval(x: Array) -> ShapedArray:
    return ShapedArray(x.shape, x.dtype)


def _check_types(subject: str, got: Iterable[ShapedArray], expected: Avals) -> None:
    got = list(got)
    assert [(a.shape, a.dtype) for a in got] == [(a.shape, a.dtype) for a in expected], (
        f"{subject} must be {_describe_types(expected)}; got {_describe_types(got)}"
    )


def _describe_types(avals: Avals) -> str:
    return ", ".join([f"{SHORT_NAMES[a.dtype]}{list(a.shape)}" for a in avals])
