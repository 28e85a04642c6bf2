"""Partitions of joint programs: saved and recomputed values, and equal results."""

import time
from itertools import pairwise

import numpy as onp
import pytest

import functx as fx
import functx.numpy as np
from functx.aot import (
    JointProgram,
    MinCutConfig,
    analyze,
    default_partition,
    joint_program,
    min_cut_rematerialization_partition,
)
from functx.autograd import Variable
from functx.core.errors import ArgumentError, GradientError, ProgramError, ValueRangeError
from functx.passes.max_flow import INFINITE_CAPACITY, FlowNetwork
from functx.passes.partition import partition_at
from functx.transforms.reverse_mode import SplitVJP

X = onp.linspace(0.2, 0.9, 3, dtype=onp.float32)
W = onp.linspace(-0.5, 0.5, 16, dtype=onp.float32).reshape(4, 4)
ROWS = onp.linspace(-1, 1, 12, dtype=onp.float32).reshape(3, 4)

PARTITIONS = {
    "default": default_partition,
    "min_cut": min_cut_rematerialization_partition,
    "aggressive": lambda joint: min_cut_rematerialization_partition(
        joint, config=MinCutConfig(aggressive=True)
    ),
    "priced": lambda joint: min_cut_rematerialization_partition(
        joint, config=MinCutConfig(aggressive=True, price=0.0)
    ),
}


def overwritten_first(x, y):
    x[:] = y
    return np.arange(3.0) * 1.0


def counts(parts):
    """Inputs and outputs of the forward program, then of the backward one."""
    return tuple((len(p.inputs), len(p.outputs)) for p in parts)


def cut(f, *args, **config):
    joint = joint_program(f)(*args)
    return min_cut_rematerialization_partition(joint, config=MinCutConfig(**config))


def names(program):
    return [eqn.primitive.name for eqn in program]


def cosines(x):
    return np.cos(np.cos(np.cos(x)))


def cosine_of_a_sum(a, b, c, d):
    return np.cos(np.cos(a + b + c + d))


def cube(x):
    return x * x * x


def test_a_chain_of_cosines_saves_one_value():
    assert counts(cut(cosines, X)) == ((1, 2), (2, 1))


def test_cosines_of_a_sum_save_only_the_sum():
    forward, backward = cut(cosine_of_a_sum, X, X, X, X)
    assert counts((forward, backward)) == ((4, 2), (2, 4))
    assert names(forward).index("cos") == 3
    assert forward.outputs[1] is forward.equations[2].outputs[0]


def test_recomputable_operations_are_configurable():
    assert counts(cut(cube, X, recomputable_ops={"add"})) == ((1, 3), (3, 1))
    assert counts(cut(cube, X, recomputable_ops=["mul"])) == ((1, 2), (2, 1))


def test_the_default_partition_saves_all_values_of_the_forward_program():
    forward, backward = default_partition(joint_program(cosines)(X))
    assert counts((forward, backward)) == ((1, 4), (4, 1))
    assert "cos" not in names(backward)


def test_an_array_needed_only_for_its_size_is_not_saved():
    def f(x, y):
        return np.sum(x @ y) + np.zeros(x.shape).sum() + np.sum(np.ones(y.shape[0]) * x.shape[0])

    for parts in (default_partition(joint_program(f)(ROWS, W)), cut(f, ROWS, W)):
        assert counts(parts) == ((2, 3), (3, 2))

    forward, _ = default_partition(joint_program(lambda x: np.sum(np.sin(x) + 1.0))(ROWS))
    assert [a.aval.shape for a in forward.outputs] == [(), (3, 4)]


def overwrites_a_slice(x, w):
    y = np.exp(x) * w
    y[:5] = w[:5]
    return y


def cumulated_constant(x):
    return x * np.exp(x) * np.cumsum(np.ones(8))


def sum_of_a_cumulated_constant(x):
    return x * np.exp(np.sum(np.cumsum(np.ones(8))) * 0.1)


@pytest.mark.parametrize(
    "f, saved, args",
    [
        (overwrites_a_slice, {"default": 16, "min_cut": 16}, (onp.ones(8, "f"),) * 2),
        (lambda x: x * (np.arange(8) * 0.5), {"default": 0, "min_cut": 0}, (onp.ones(8, "f"),)),
        # An expensive constant that the forward program needs is not computed twice.
        (cumulated_constant, {"default": 24, "min_cut": 16}, (onp.ones(8, "f"),)),
        (sum_of_a_cumulated_constant, {"default": 1, "min_cut": 1}, (onp.ones(8, "f"),)),
    ],
    ids=["mask of a write", "pointwise", "expensive", "sum of an expensive one"],
)
def test_values_that_depend_on_no_input_are_not_saved(f, saved, args):
    joint = joint_program(f)(*args)
    tangents = [onp.full(v.aval.shape, 0.5, v.aval.dtype) for v in joint.tangents]
    expected = joint.program(*args, *tangents)
    for how, size in saved.items():
        forward, backward = parts = PARTITIONS[how](joint)
        assert sum(a.aval.size for a in parts.saved) == size
        assert not any(a.aval.dtype == bool for a in parts.saved)
        found = forward(*args)
        grads = backward(*found[joint.num_outputs :], *tangents)
        for a, b in zip([*found[: joint.num_outputs], *grads], expected, strict=True):
            onp.testing.assert_allclose(a, b, rtol=1e-6)


def test_results_of_one_operation_are_saved_one_by_one():
    def f(x):
        a, b = np.split(np.exp(x), 2)
        return np.sum(np.exp(a)) + np.sum(b)

    forward, backward = default_partition(joint_program(f)(onp.ones(4, "float32")))
    assert all(a.aval.shape in ((), (2,), (4,)) for a in forward.outputs)
    assert len(forward.outputs) == 3 and len(backward.inputs) == 3


def test_layer_norm_keeps_its_operands():
    def f(x, w, b):
        return fx.nn.layer_norm(x, 4, w, b)

    ones = onp.ones(4, "float32")
    # The statistics are made again inside the one backward operation.
    assert counts(default_partition(joint_program(f)(ROWS, ones, ones))) == ((3, 3), (3, 3))


def test_saved_values_come_in_the_order_of_the_program_and_are_the_same_each_time():
    def f(x, w):
        for _ in range(4):
            x = np.tanh(x @ w) * np.sin(x)
        return x

    first = cut(f, ROWS, W)
    assert first == cut(f, ROWS, W)
    forward, _ = first
    place = {v: i for i, v in enumerate(forward.inputs)}
    place |= {v: len(place) + i for i, e in enumerate(forward) for v in e.outputs}
    saved = [place[v] for v in forward.outputs[1:]]
    assert saved == sorted(saved) and len(saved) > 4


@pytest.mark.parametrize("how", PARTITIONS)
@pytest.mark.parametrize(
    "f, args",
    [
        (cosines, (X,)),
        (cosine_of_a_sum, (X, X, X, X)),
        (lambda x, w: [np.tanh(x @ w), np.sum(np.exp(x)) * 2.0], (ROWS, W)),
        (lambda x, w: fx.nn.softmax(x @ w) @ w, (ROWS, W)),
        (lambda x, i: x[i] * np.sin(x[i]), (X, onp.array([0, 2, 2]))),
        (lambda x: (np.cumsum(x), np.argmax(x)), (X,)),
        (lambda x: x * 2.0, (onp.zeros((0, 3), "float32"),)),
        (lambda x: np.where(x > 0.5, np.log(x), x**2), (X,)),
        (lambda x, w: fx.checkpoint(lambda x: np.sin(np.tanh(x @ w)))(x), (ROWS, W)),
        (lambda x: fx.lax.scan(lambda c, r: (np.sin(c * r), c), x[0], x), (X,)),
    ],
    ids=lambda x: x.__name__ if callable(x) else "",
)
def test_the_partition_computes_the_values_of_the_joint_program(how, f, args):
    joint = joint_program(f)(*args)
    tangents = [onp.full(v.aval.shape, 0.5, v.aval.dtype) for v in joint.tangents]
    expected = joint.program(*args, *tangents)
    forward, backward = PARTITIONS[how](joint)
    found = forward(*args)
    grads = backward(*found[joint.num_outputs :], *tangents)
    for got, wanted in zip([*found[: joint.num_outputs], *grads], expected, strict=True):
        onp.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def squares_in_place(x):
    y = np.zeros(3, "float32")
    for i in range(3):
        y[i] = x[i] ** 2
    return y


def through_a_view(x):
    y = x.copy()
    y[1:] *= 2.0
    y[0] = y[2]
    return y


def into_the_argument(x):
    x[0] = x[1] * 3.0
    return np.sum(x)


def test_writes_are_removed_from_joint_programs():
    ones = onp.ones(3, "float32")
    for f, grad in ((squares_in_place, 2 * X), (through_a_view, [0, 2, 4])):
        joint = joint_program(f)(X)
        for partition_of in PARTITIONS.values():
            forward, backward = partition_of(joint)
            saved = forward(X)[joint.num_outputs :]
            onp.testing.assert_allclose(backward(*saved, ones)[0], grad, rtol=1e-6)
    joint = joint_program(into_the_argument)(X)
    assert joint.num_mutated == 1
    new, out, grad = joint.program(X, onp.array([1, 0, 0], "float32"), onp.float32(1))
    onp.testing.assert_allclose(new, [X[1] * 3, X[1], X[2]])
    onp.testing.assert_allclose(out, onp.sum(new))
    onp.testing.assert_allclose(grad, [0, 4 + 3, 1])


def test_the_forward_program_supplies_captured_values_which_have_no_gradient():
    scale = onp.arange(3, dtype="float32")
    weight = Variable(onp.ones(3, "float32"), requires_grad=True)

    def f(x):
        return np.sum(x * scale)

    for meta in (None, analyze(f)(X)):
        joint = joint_program(f, meta)(X)
        assert joint == joint_program(f, meta)(X) and hash(joint) == hash(joint_program(f, meta)(X))
        assert len(joint.captured) == 1 and joint != joint._replace(num_mutated=1)
        for partition_of in PARTITIONS.values():
            parts = partition_of(joint)
            scale[1] = onp.nan  # A later write does not change the programs.
            out, *saved = parts.forward(X)
            onp.testing.assert_allclose(out, X[1] + 2 * X[2], rtol=1e-6)
            assert parts.gradients == (0, None)
            onp.testing.assert_allclose(parts.backward(*saved, onp.float32(1))[0], [0, 1, 2])
            scale[1] = 1.0
        out, grad = joint.program(X, *joint.captured, onp.float32(2))
        onp.testing.assert_allclose(grad, [0, 2, 4])
    with pytest.raises(ArgumentError, match=r"must be 3; got 2[^$]*Pass `x`, `c0`, `ct`\."):
        joint.program(X, onp.float32(1))
    with pytest.raises(ArgumentError, match=r"must be 1; got 2[^$]*supplies `c0`\."):
        parts.forward(X, scale)
    learned = joint_program(lambda x: np.sum(x * weight * scale))(X)
    assert learned.gradients == (0, 1, None) and learned.captured[0] is weight


def test_the_forward_program_advances_the_captured_state_of_a_generator():
    def f(x):
        return np.sum(x * fx.random.rand(3))

    forward, _ = default_partition(joint_program(f, analyze(f, True)(X))(X))
    fx.random.manual_seed(7)
    expected = [f(X), f(X)]
    fx.random.manual_seed(7)
    found = [forward(X), forward(X)]
    onp.testing.assert_allclose([out for out, *_ in found], expected, rtol=1e-6)


def test_slow_operations_are_not_computed_again():
    def f(x, w):
        return np.sin(np.cumsum(np.sort(x @ w), 0))

    _, backward = cut(f, ROWS, W, aggressive=True)
    assert "sort" not in names(backward) and names(backward).count("dot_general") == 2
    _, backward = cut(f, ROWS, W, aggressive=True, price=0.0)
    assert "sort" in names(backward) and names(backward).count("dot_general") == 3


def test_random_numbers_are_not_drawn_again_unless_marked():
    key = fx.random.PRNGKey(3)

    def f(x):
        return np.sin(x * fx.random.normal(key, (1000,)))

    def forward_and_backward(f):
        joint = joint_program(f)(onp.ones(1000, "float32"))
        return [
            sum(n.startswith("random") for n in names(p))
            for p in min_cut_rematerialization_partition(
                joint, config=MinCutConfig(aggressive=True)
            )
        ]

    assert forward_and_backward(f) == [1, 0]
    # Keys are operands, so that a region draws the same numbers again from its key.
    assert forward_and_backward(fx.checkpoint(f)) == [1, 1]


def test_large_reductions_are_saved_and_small_ones_recomputed():
    def f(x):
        return np.sin(np.sum(np.sin(x), 0))

    ones = onp.ones((64, 3), "float32")
    assert [a.aval.shape for a in cut(f, ones)[0].outputs] == [(3,), (64, 3), (3,)]
    small = onp.ones((2, 3), "float32")
    assert [a.aval.shape for a in cut(f, small)[0].outputs] == [(3,), (2, 3)]


def test_values_that_the_backward_program_materializes_are_saved_by_default():
    def f(x, w):
        return np.sin(x) @ w

    assert "sin" not in names(cut(f, ROWS, W)[1])
    assert "sin" in names(cut(f, ROWS, W, materialized=False)[1])


def test_long_chains_are_cut():
    def f(x):
        for _ in range(300):
            x = np.sin(x)
        return x

    assert 3 <= len(cut(f, X)[0].outputs) <= 6
    assert len(cut(f, X, long_chains=False, far_apart=False)[0].outputs) == 2
    assert len(cut(f, X, distance=1, long_chains=False)[0].outputs) > 100


def test_values_used_after_a_product_are_saved():
    def f(x, w):
        h = np.exp(x)
        return np.sin(np.sin(h @ w) + np.sin(np.cos(h)))

    (near, _), (far, _) = [
        cut(f, ROWS, W, far_apart=on, materialized=False) for on in (False, True)
    ]
    again = next(eqn.outputs[0] for eqn in far if eqn.primitive.name == "cos")
    assert again in far.outputs and len(far.outputs) == len(near.outputs) + 1 == 5


def test_checkpoints_mark_recomputed_values_and_their_boundary_is_saved():
    def region(x, w):
        return np.sin(np.tanh(x @ w))

    def f(x, w, v):
        again = fx.checkpoint(region)
        return again(again(x, w), v)

    joint = joint_program(f)(ROWS, W, W)
    assert {a.aval.shape for a in joint.recompute} == {(3, 4)} and len(joint.recompute) == 4
    for parts in (default_partition(joint), min_cut_rematerialization_partition(joint)):
        forward, backward = parts
        assert counts(parts) == ((3, 5), (5, 3))
        assert forward.outputs[1:4] == forward.inputs
        assert forward.equations[2].outputs == [forward.outputs[4]]
        # The second region is computed again, and done with, before the first.
        assert names(backward).index("tanh") < 3 < names(backward)[3:].index("tanh") + 3


def test_a_value_between_two_checkpoints_is_saved_although_both_use_it():
    def f(x, w, v):
        again = fx.checkpoint(lambda x, w: np.tanh(x @ w))
        return again(again(x, w), v)

    joint = joint_program(f)(ROWS, W, W)
    between = next(e.outputs[0] for e in joint.program if e.primitive.name == "tanh")
    assert joint.recompute and between not in joint.recompute
    for forward, backward in (default_partition(joint), cut(f, ROWS, W, W)):
        assert between.aval in forward.out_avals[1:] and names(backward).count("tanh") == 1


def test_the_backward_program_does_again_just_before_it_uses():
    def f(x, w):
        for _ in range(3):
            x = np.tanh(x @ w) * 2.0
        return x

    _, backward = cut(f, ROWS, W, aggressive=True)
    places = [i for i, name in enumerate(names(backward)) if name == "tanh"]
    assert len(places) == 3 and min(b - a for a, b in pairwise(places)) > 3


def test_effects_stay_where_they_are_and_happen_once():
    def f(x):
        y = np.sin(fx.io_callback(lambda x: x * 2, fx.eval_shape(np.sin, X), x))
        fx.debug.callback(lambda x: None, x)
        return x * np.sin(y)

    forward, backward = cut(f, X, aggressive=True, price=0.0)
    assert len([e for e in forward if e.primitive.effects]) == 2
    assert not backward.effects


@pytest.mark.parametrize("checkpointed", [False, True])
def test_equal_effects_are_not_merged(checkpointed):
    def shown(x):
        fx.debug.print("x")
        fx.debug.print("x")
        return np.sin(x)

    joint = joint_program(fx.checkpoint(shown) if checkpointed else shown)(1.0)
    assert names(joint.program).count("debug_callback") == 2
    forward, backward = default_partition(joint)
    assert names(forward).count("debug_callback") == 2 and not backward.effects


def test_without_gradients_there_is_nothing_to_save():
    joint = joint_program(lambda x, i: (i + 1) * 1.0)(X, 3)
    for part in PARTITIONS.values():
        assert len(part(joint).forward.outputs) == 1
    plain = fx.make_ir(np.sin)(X)
    parts = min_cut_rematerialization_partition(JointProgram(plain, 1, 1))
    assert counts(parts) == ((1, 1), (0, 0))


def test_five_thousand_equations_take_well_under_two_seconds():
    def f(x, *weights):
        for w in weights:
            x = x + np.tanh(x @ w) * np.sin(x)
        return np.sum(x)

    joint = joint_program(f)(ROWS, *[W] * 330)
    assert len(joint.program) > 5000
    start = time.process_time()
    min_cut_rematerialization_partition(joint)
    assert time.process_time() - start < 2


def test_the_cheapest_cut_next_to_the_sink_is_found():
    network = FlowNetwork(6)
    for edge in ((0, 2, 9), (2, 3, 3), (0, 4, 2), (3, 5, 3), (4, 5, 4), (5, 1, 8), (4, 3, 2)):
        network.add_edge(*edge)
    # 0 -> 2 -> 3 -> 5 and 0 -> 4 -> 5 carry 3 and 2; the first is cut as late as it can be.
    assert network.sink_side(0, 1) == [False, True, False, False, True, True]
    chain = FlowNetwork(4)
    for edge in ((0, 2, INFINITE_CAPACITY), (2, 3, 5), (3, 1, INFINITE_CAPACITY)):
        chain.add_edge(*edge)
    assert chain.sink_side(0, 1) == [False, True, False, True]


def test_a_cut_that_saves_too_little_names_the_missing_value():
    joint = joint_program(lambda x: np.sin(np.exp(x)))(X)
    with pytest.raises(
        ProgramError, match=r"`x`: f32\[3\], made by an input, which is neither"
    ) as e:
        partition_at(joint, [])
    assert "saved: nothing" in str(e.value)


@pytest.mark.parametrize(
    "call, error, text",
    [
        (lambda: default_partition(fx.make_ir(np.sin)(X)), ArgumentError, "marked; got Program"),
        (lambda: default_partition(joint_program(np.sin)(X), 1.5), ArgumentError, "got float"),
        (
            lambda: default_partition(JointProgram(fx.make_ir(overwritten_first)(X, X), 2, 1)),
            ArgumentError,
            "no writes but those to its inputs at its end",
        ),
        (lambda: default_partition(joint_program(np.sin)(X), 3), ValueRangeError, "3 of 2 outputs"),
        (
            lambda: min_cut_rematerialization_partition(joint_program(np.sin)(X), config="all"),
            ArgumentError,
            "must be a functx.aot.MinCutConfig; got str",
        ),
        (
            lambda: MinCutConfig(recomputable_ops="sin"),
            ArgumentError,
            "names of primitives; got str",
        ),
        (lambda: MinCutConfig(recomputable_ops=[np.sin]), ArgumentError, "got function among them"),
        (lambda: MinCutConfig(recomputable_ops={"sine"}), ValueRangeError, "no primitive 'sine'"),
        (lambda: joint_program(lambda x: 1)(X), GradientError, "must be inexact"),
        (
            lambda: joint_program(np.sin, X),
            ArgumentError,
            "meta must be a functx.aot.Meta; got ndar",
        ),
        (
            lambda: default_partition(JointProgram(fx.make_ir(squares_in_place)(X), 1, 1)),
            ArgumentError,
            "must have no writes",
        ),
        (
            lambda: SplitVJP((True,))(fx.make_ir(squares_in_place)(X)),
            ProgramError,
            "must have no writes when it is differentiated",
        ),
    ],
)
def test_mistakes_are_named(call, error, text):
    with pytest.raises(error, match=text):
        call()
