"""Every rule of every primitive on every sample, by `functx.testing`."""

from importlib import import_module

import numpy as np
import pytest

from functx.core.samples import draw_operands
from functx.core.tracing import trace_closed
from functx.testing.reference.interpreter import MODULES, definition_by_class
from functx.testing.rule_cases import make_rule_cases
from functx.testing.rules import find_problems
from functx.transforms.batching import BatchWithInferredOutDims, remove_axis
from tests.ops.registry import PRIMITIVES, SAMPLES, label

# Of several right results of these decompositions the lowering chooses one. The reference interpreter runs
# a program once, not once for each device with collectives between.
WITHOUT_DEFINITION = {"Eig", "Eigh", "RngBitGenerator", "Schur", "Svd", "ShardMap"}


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


@pytest.mark.parametrize("case", SAMPLES, ids=label)
def test_the_rules_agree_with_each_other_with_differences_and_with_numpy(case):
    cls, number = case
    cases = make_rule_cases(cls, cls.samples[number], complex_too=number == 0)
    # One test for all checks, which share what they compile.
    problems = find_problems(cases)
    assert not problems, "\n".join(problems)


def test_a_batch_of_no_elements_has_results_of_the_types_of_one_of_three():
    for cls, number in SAMPLES:
        given = cls.samples[number]
        if given.across:
            continue
        primitive, count = cls(**given.params), len(given.avals)
        program = trace_closed(lambda *xs, p=primitive: p.as_list(p(*xs)), given.avals)
        masks = {(True,) * count, *[tuple([i == j for i in range(count)]) for j in range(count)]}
        for mask in masks - {(False,) * count}:
            dims = tuple([0 if on else None for on in mask])
            types = [
                [remove_axis(a, d) for a, d in zip(batched.out_avals, out_dims, strict=True)]
                + [d is None for d in out_dims]
                for batched, out_dims in (
                    BatchWithInferredOutDims(size, dims)(program) for size in (0, 3)
                )
            ]
            assert types[0] == types[1], label((cls, number))
