"""Masks ride beside the values of one rule, and are seen by no other."""

from functx import ops
from functx.core.masks import mask_of, run_rule, set_result_masks
from functx.core.samples import bool_, f32
from functx.core.tracing import trace
from functx.ops.families import MAX_MASK_TERMS, combine_masks, unite_masks


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


def test_masks_that_hold_everywhere_together_are_none_and_those_that_others_contain_are_left_out():
    def body(x, y, z):
        not_x, both = ops.bitwise_not(x), combine_masks(x, y)
        assert unite_masks(x, not_x) is unite_masks(not_x, x) is None
        assert unite_masks(both, combine_masks(y, not_x)).atom is y.atom
        assert unite_masks(x, both) is x and unite_masks(both, x) is x
        assert combine_masks(x, both) is both and combine_masks(both, x) is both
        assert combine_masks(x, x) is x
        # Neither says anything of the other here.
        for mask, other in [
            (both, z),
            (both, ops.bitwise_not(both)),
            (both, combine_masks(not_x, z)),
        ]:
            count = len(x.builder.equations)
            unite_masks(mask, other)
            combine_masks(mask, other)
            kinds = [type(eqn.primitive) for eqn in x.builder.equations[count:]]
            assert kinds == [ops.Or, ops.And]
        return [x]

    trace(body, [bool_[3]] * 3)


def test_long_conjunctions_of_masks_are_compared_as_far_as_they_are_followed():
    def body(*masks):
        long = masks[0]
        for mask in masks[1:]:
            long = combine_masks(long, mask)
        assert combine_masks(long, long) is long is unite_masks(long, long)
        assert unite_masks(long, masks[-1]) is masks[-1]
        return [masks[0]]

    trace(body, [bool_[3]] * (2 * MAX_MASK_TERMS))
