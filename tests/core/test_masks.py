"""Masks ride beside the values of one rule, and are seen by no other."""

from functx.core.masks import mask_of, run_rule, set_result_masks
from functx.core.samples import bool_, f32
from functx.core.tracing import trace


def test_a_rule_reads_the_masks_of_its_values_and_a_rule_inside_it_reads_its_own():
    def body(x, y, mask):
        def inner():
            assert mask_of(y) is mask and mask_of(x) is None
            set_result_masks([None])

        def outer():
            assert mask_of(x) is mask and mask_of(y) is mask_of(None) is None
            set_result_masks([mask])
            assert run_rule([y], [mask], inner) == (None, [None])
            assert mask_of(x) is mask
            return y

        assert run_rule([x, None], [mask, None], outer) == (y, [mask])
        assert mask_of(x) is None
        return [x]

    trace(body, [f32[3], f32[3], bool_[3]])


def test_a_function_that_a_rule_traces_sees_no_masks_of_its_own_values():
    def body(x, mask):
        def inner(x):
            assert mask_of(x) is None
            set_result_masks([mask])
            return [x]

        _, stated = run_rule([x], [mask], trace, inner, [f32[3]])
        assert stated is None
        return [x]

    trace(body, [f32[3], bool_[3]])


def test_masks_end_when_a_rule_fails():
    def body(x, mask):
        try:
            run_rule([x], [mask], lambda: 1 / 0)
        except ZeroDivisionError:
            assert mask_of(x) is None
        return [x]

    trace(body, [f32[3], bool_[3]])


def test_there_are_no_masks_outside_of_traces():
    set_result_masks([None])
    assert mask_of(1.0) is None
