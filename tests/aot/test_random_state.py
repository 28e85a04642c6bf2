"""Functions that take the seed and the offset of the default generator, and return the new offset."""

import numpy as np
import pytest

import functx
import functx.numpy as fnp
from functx import aot, lax, random
from functx.core.errors import ArgumentError, GeneratorError
from functx.core.program import Part

X = np.arange(1.0, 4.0, dtype=np.float32)
SEED, ZERO = np.array([7, 0], np.uint32), np.zeros(2, np.uint32)


def draws(seed, count):
    return random.rand(count, generator=random.Generator(seed))


def test_the_program_takes_seed_and_offset_last_and_returns_the_new_offset_last():
    noisy = aot.with_random_state(lambda x: x * random.rand(3))
    program = functx.make_ir(functx.functionalize(noisy))(X, SEED, ZERO)
    assert [str(a) for a in program.in_avals] == ["f32[3]", "u32[2]", "u32[2]"]
    assert [str(a) for a in program.out_avals] == ["f32[3]", "u32[2]"]
    assert not program.captured


def test_numbers_are_those_of_a_generator_and_the_default_one_stays():
    random.seed(1)
    noisy = aot.with_random_state(lambda x: (x * random.rand(3), x + random.rand(1)))
    first, second, offset = noisy(X, 7, 0)
    numbers = draws(7, 8)
    np.testing.assert_allclose(first, X * numbers[:3], rtol=1e-6)
    np.testing.assert_allclose(second, X + numbers[4], rtol=1e-6)
    assert isinstance(offset, np.uint64)
    assert offset == 8
    again, _, words = functx.jit(noisy)(X, SEED, np.array([4, 0], np.uint32))
    np.testing.assert_allclose(again, X * numbers[4:7], rtol=1e-6)
    assert words.tolist() == [12, 0]
    assert random.get_state().tolist() == [1, 0]


def test_without_a_draw_the_offset_comes_back_and_with_one_it_is_rounded_up():
    assert aot.with_random_state(lambda x: x)(X, 7, 5)[1] == 5
    assert aot.with_random_state(lambda x: x + random.rand(1))(X, 7, 2**33 + 1)[1] == 2**33 + 8
    reset = aot.with_random_state(lambda x: random.manual_seed(9) and x * random.rand(3))
    out, offset = reset(X, 7, 40)
    np.testing.assert_allclose(out, X * draws(9, 3), rtol=1e-6)
    assert offset == 4


def test_jitted_functions_and_loops_inside_draw_from_the_arguments():
    inner = functx.jit(lambda v: v * random.rand(3))
    inner(X)

    def f(x):
        x = inner(x) + inner(x)
        return lax.scan(lambda c, _: (c + random.rand(3), None), x, None, 2)[0]

    numbers = draws(7, 16).reshape(4, 4)[:, :3]
    out, offset = aot.with_random_state(f)(X, 7, 0)
    np.testing.assert_allclose(
        out, X * (numbers[0] + numbers[1]) + numbers[2] + numbers[3], rtol=1e-6
    )
    assert offset == 16


def test_a_joint_function_has_a_state_for_each_part():
    def joint(primals, tangents):
        (x,), (ct,) = primals, tangents
        factors = random.rand(3)
        with aot.program_part(Part.BACKWARD):
            gradient = ct * factors * random.rand(5)[:3]
        return (x * factors,), (gradient,)

    outs, grads = aot.with_random_state(joint, joint=True)((X,), (X,), 7, 0, 9, 4)
    forward, backward = draws(7, 3), draws(9, 8)[4:7]
    np.testing.assert_allclose(outs[0], X * forward, rtol=1e-6)
    np.testing.assert_allclose(grads[0], X * forward * backward, rtol=1e-6)
    assert (outs[1], grads[1]) == (4, 12)
    made = aot.create_joint(lambda x: ([fnp.sin(x * random.rand(3))], [True]))
    outs, grads = aot.with_random_state(made, joint=True)((X,), (X,), 7, 0, 9, 5)
    np.testing.assert_allclose(grads[0], np.cos(X * forward) * forward * X, rtol=1e-5)
    assert (outs[1], grads[1]) == (4, 5)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda f: f(X, -1, 0), GeneratorError, "ints from 0 to .* got int -1"),
        (lambda f: f(X, 1.5, 0), GeneratorError, "got float"),
        (lambda f: f(X, np.zeros(3), ZERO), GeneratorError, r"got ndarray float64\[3\]"),
        (lambda f: functx.make_ir(f)(X, 3, 0), GeneratorError, r"array\(\[n % 2\*\*32, n >> 32\]"),
        (lambda f: f(7), ArgumentError, r"must be \(\*primals, seed, offset\); got 1"),
        (lambda f: aot.with_random_state(3), ArgumentError, "with_random_state"),
        (
            lambda f: aot.with_random_state(lambda p, t: 3, joint=True)((X,), (X,), 1, 0, 1, 0),
            ArgumentError,
            r"must return \(outputs, gradients\); got int",
        ),
    ],
)
def test_wrong_arguments_are_told(call, error, text):
    with pytest.raises(error, match=text):
        call(aot.with_random_state(lambda x: x))
