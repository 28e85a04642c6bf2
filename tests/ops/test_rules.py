"""Every rule of every primitive on every sample, by `functx.testing`."""

from functools import lru_cache
from importlib import import_module

import numpy as np
import pytest

from functx.core.samples import draw_operands
from functx.testing import rules
from functx.testing.reference.interpreter import MODULES, definition_by_class
from functx.testing.rule_cases import make_rule_cases
from tests.ops.registry import PRIMITIVES, SAMPLES, label

# By module, so that the checks of one sample follow each other and share what they compile.
each_sample = pytest.mark.parametrize("case", SAMPLES, ids=label, scope="module")


@lru_cache(maxsize=2)
def trials_of(case):
    cls, number = case
    return make_rule_cases(cls, cls.samples[number], complex_too=number == 0)


def run(check, case):
    for trial in trials_of(case):
        check(trial)


# Of several right results of `Eigh` and `Svd` the lowering chooses one. The reference interpreter runs
# a program once, not once for each device with collectives between.
WITHOUT_DEFINITION = {"Eigh", "Svd", "ShardMap"}


@pytest.mark.parametrize("cls", PRIMITIVES, ids=lambda cls: cls.name)
def test_every_primitive_has_samples_and_a_numpy_definition(cls):
    assert cls.samples, f"{cls.__name__} ({cls.__module__}) needs `samples`"
    assert (definition_by_class(cls) is None) == (cls.__name__ in WITHOUT_DEFINITION), (
        f"{cls.__name__} needs `numpy`, or functx/testing/reference a function {cls.__name__}"
    )


def test_every_function_among_the_definitions_is_of_a_primitive_without_one_on_its_class():
    modules = [import_module(f"functx.testing.reference.{name}") for name in MODULES]
    names = {
        name
        for module in modules
        for name, value in vars(module).items()
        if name[0].isupper()
        and not isinstance(value, type)
        and getattr(value, "__module__", "").startswith("functx.testing.reference")
    }
    assert len(names) > 100
    assert names <= {cls.__name__ for cls in PRIMITIVES if cls.numpy is None}


@pytest.mark.parametrize("cls", [cls for cls in PRIMITIVES if cls.numpy], ids=lambda cls: cls.name)
def test_the_definition_on_a_class_calls_no_functx(cls, monkeypatch):
    def refuse(primitive, args):
        raise AssertionError(f"`numpy` of {cls.__name__} calls {primitive}")

    one = cls.samples[0]
    primitive, operands = cls(**one.params), draw_operands(one, 1)
    monkeypatch.setattr("functx.core.primitive.bind", refuse)
    out = primitive.numpy(*operands)
    outs = out if primitive.multiple_results else [out]
    assert all(isinstance(x, (np.ndarray, np.generic)) for x in outs)


@each_sample
def test_abstract_eval_states_the_types_that_lower_produces(case):
    run(rules.abstract_eval_states_the_types_that_lower_produces, case)


@each_sample
def test_lower_gives_what_numpy_gives_in_every_dtype(case):
    run(rules.lower_matches_numpy, case)


@each_sample
def test_types_stay_narrow_where_the_64_bit_switch_is_off(case):
    run(rules.types_stay_narrow_where_the_64_bit_switch_is_off, case)


@each_sample
def test_jvp_matches_differences(case):
    run(rules.jvp_matches_differences, case)


@each_sample
def test_gradients_at_kinks_are_those_stated(case):
    run(rules.gradients_at_kinks_are_those_stated, case)


@each_sample
def test_vjp_is_the_transpose_of_jvp(case):
    run(rules.vjp_is_the_transpose_of_jvp, case)


@each_sample
def test_cotangents_vanish_where_nothing_lives(case):
    run(rules.cotangents_are_zero_outside_their_masks, case)


@each_sample
def test_tangents_vanish_outside_their_masks(case):
    run(rules.the_tangent_is_zero_outside_its_mask, case)


@each_sample
def test_transpose_receives_and_returns_what_is_linear(case):
    run(rules.transpose_matches_the_linear_map, case)


@each_sample
def test_batch_matches_a_loop(case):
    run(rules.batch_matches_a_loop, case)


@each_sample
def test_overridden_rules_agree_with_the_derived(case):
    run(rules.overridden_rules_match_derived_rules, case)


@each_sample
def test_second_derivatives_match_differences(case):
    run(rules.second_derivatives_match_differences, case)


@each_sample
def test_dtypes_survive_each_transform(case):
    run(rules.dtypes_survive_each_transform, case)


@each_sample
def test_programs_are_well_formed_and_print_and_hash_stably(case):
    run(rules.programs_are_well_formed_and_print_and_hash_stably, case)
