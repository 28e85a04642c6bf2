"""Random programs by fixed seeds agree in every way, and planted faults are found by them."""

import warnings

import jax
import pytest

import functx
from functx.core.config import program_checks
from functx.core.errors import VerificationError
from functx.core.program import Literal
from functx.lowering import stablehlo_emitter
from functx.ops.arithmetic import Div, Sub
from functx.testing import random_functions
from functx.testing.random_functions import RandomFunction, eligible_primitives, random_arguments
from functx.testing.random_programs import verify_seed


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        # NumPy's, of variances of nothing and the like.
        warnings.simplefilter("ignore", RuntimeWarning)
        yield
    functx.clear_caches()


@pytest.mark.parametrize("first", range(0, 300, 20))
def test_random_programs_give_the_same_in_every_way(first):
    for seed in range(first, first + 20):
        verify_seed(seed, ways=1)


def test_random_programs_hold_every_primitive(monkeypatch):
    # Each traces a function of JAX for primitives that other steps give too.
    monkeypatch.setattr(random_functions, "jax_function_step", lambda run: run.inexact())
    monkeypatch.setattr(program_checks, "enabled", False)
    wanted = {cls.name for cls in eligible_primitives()}
    for seed in range(1, 4000, 2):
        with jax.enable_x64():
            program = functx.make_ir(RandomFunction(seed, steps=4))(*random_arguments(seed))
        wanted -= {eqn.primitive.name for each in program.walk() for eqn in each}
        if not wanted:
            return
    raise AssertionError(f"no program has {wanted}")


def test_a_seed_always_makes_the_same_program():
    f, args = RandomFunction(11), random_arguments(11)
    first = functx.make_ir(f)(*args)
    assert first == functx.make_ir(RandomFunction(11))(*args) and len(first) > 3


def first_found(seeds, ways=1):
    """The message for the first of the seeds that finds a fault."""
    for seed in seeds:
        try:
            verify_seed(seed, ways)
        except VerificationError as error:
            return str(error)
    raise AssertionError("no seed found the fault")


def test_operands_compared_by_identity_are_found_by_a_seed(monkeypatch):
    monkeypatch.setattr(
        stablehlo_emitter, "are_unambiguous", lambda xs, _: len({*map(id, xs)}) == len(xs)
    )
    assert "full strength, it gives" in first_found(range(189, 300))


def test_a_wrong_simplification_is_found_by_a_seed(monkeypatch):
    def simplify(self, context, x, y):
        return x if x.aval.shape and type(y) is Literal else None

    monkeypatch.setattr(Sub, "simplify", simplify)
    assert "full strength, it gives" in first_found(range(35, 300))


def test_a_derivative_that_leaves_an_operand_out_is_found_by_a_seed(monkeypatch):
    jvp = Div.jvp
    monkeypatch.setattr(
        Div, "jvp", lambda self, xs, ts: jvp(self, xs, ts if ts[0] is None else (ts[0], None))
    )
    assert " must be" in first_found(range(246, 400))
