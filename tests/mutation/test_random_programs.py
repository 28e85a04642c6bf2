"""Random programs that write in place have one result with NumPy and under every transform.

The first ones are the same in every run; `--in-place-programs N` adds N others to each test.
A program that differs is shrunk to a few lines and printed.
"""

from functools import partial

import pytest

import functx
from tests.by_reference import by_reference
from tests.mutation.agreement import check_grad, check_jit, check_values, check_vmap
from tests.mutation.programs import generate, shrunk

MODES = {
    "derivatives": (600, {}, check_grad),
    "derivatives of a call": (150, {}, partial(check_grad, wrap=functx.jit)),
    "derivatives of loops and branches": (150, {"control": True}, check_grad),
    "lanes": (500, {}, check_vmap),
    "lanes along the last axis": (200, {}, partial(check_vmap, axis=-1)),
    "lanes of loops and branches": (200, {"control": True}, check_vmap),
    "arguments that overlap": (150, {"overlapping": True}, check_values),
    "bits": (100, {"smooth": False}, check_values),
}
COMPILED = {
    "plain": (80, {}),
    "loops and branches": (32, {"control": True}),
    "arguments that overlap": (8, {"overlapping": True}),
}
TOGETHER = 8
"""So many programs are compiled as one."""


@pytest.fixture
def programs(request, x64):
    """`programs(count, **choices)`: the numbered programs of a test."""
    name = request.node.name
    more = request.config.getoption("--in-place-programs")
    return lambda count, **choices: {
        f"{name} {i}": generate(f"{name} {i}", **choices) for i in range(count + more)
    }


def differing(check, program):
    """What `check` raises, as a text; None if nothing."""
    try:
        check(program)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def require_agreement(check, program, seed):
    """Fail, with the shortest program that still differs in the same way, if `program` does."""
    problem = differing(check, program)
    if problem is None:
        return
    kind = problem.split(":")[0]
    small = shrunk(program, lambda p: (differing(check, p) or "").split(":")[0] == kind)
    pytest.fail(f"program {seed!r}\n\n{small}\n{differing(check, small)}", pytrace=False)


@pytest.mark.parametrize("mode", MODES)
def test_programs_agree_with_numpy(mode, programs):
    count, choices, check = MODES[mode]
    with by_reference():
        for seed, program in programs(count, **choices).items():
            require_agreement(check, program, seed)


@pytest.mark.parametrize("mode", COMPILED)
def test_compiled_programs_agree_with_numpy(mode, programs):
    count, choices = COMPILED[mode]
    made = list(programs(count, **choices).items())
    for start in range(0, len(made), TOGETHER):
        batch = made[start : start + TOGETHER]
        if differing(check_jit, [program for _, program in batch]) is not None:
            for seed, program in batch:
                require_agreement(lambda p: check_jit([p]), program, seed)
            pytest.fail(f"the programs from {batch[0][0]!r} on differ only when compiled together")
