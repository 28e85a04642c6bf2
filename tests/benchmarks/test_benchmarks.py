"""The benchmarks themselves: every kind of task runs, and means the same to both libraries."""

import sys

import jax
import numpy as np
import pytest

from tests.benchmarks import compiled_walks, imperative, repeats, saved_programs, tasks
from tests.benchmarks.frameworks import FUNCTX, JAX
from tests.benchmarks.limits import lines_of
from tests.benchmarks.measures import Calls, Options, Row, growth, shown

PROGRAMS = {
    "residual": repeats.residual(2, 0.1),
    "rnn": repeats.unrolled_rnn(3, None, width=4),
    "transformer": repeats.deep_transformer(1, 0.1, size=(2, 8)),
    "solver": repeats.solver(repeats.diffusion, 3, gradient=True, size=20),
}


def close(ours, theirs):
    for a, b in zip(*map(jax.tree_util.tree_leaves, (ours, theirs)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_have_the_values_of_those_in_jax(name):
    program = PROGRAMS[name]
    close(*[fx.jit(program.of(fx))(*program.args) for fx in (FUNCTX, JAX)])


@pytest.mark.parametrize(
    "task",
    [
        tasks.eager_grad,
        tasks.fresh_lambda,
        tasks.hessian,
        tasks.gaussian_process,
        tasks.grouped_gradients,
    ],
)
def test_tasks_have_the_values_of_those_in_jax(task):
    close(task(FUNCTX)(), task(JAX)())


def test_a_task_gives_a_row():
    measure = Calls(tasks.eager_grad, 0.5)
    (row,) = measure.rows("eager_grad", Options(least=True, seconds=0.01))
    assert row.ours > 0
    assert row.theirs > 0
    assert str(row).startswith("| `eager_grad`")


def test_numbers_have_units_of_their_size_and_recorded_ones_say_so():
    numbers = [shown(x) for x in (36.0, 0.0123, 4.5e-6)]
    assert numbers == ["36.0 s", "12.3 ms", "4.50 us"]
    assert shown(2.5e6, "bytes") == "2.50 MB"
    row = Row("residual48_compile", 1.2, 36.0, 0.04, recorded=True)
    assert "36.0 s (recorded)" in str(row)
    assert growth([Row("a", 1.0, None), Row("b", 1.2, None)], "a", "b", 1.3) == (
        "from `a` to `b`: functx 1.2 times (wanted 1.3)"
    )


def test_a_task_that_takes_too_long_or_fails_leaves_the_others():
    code = (
        "import sys, time, json\n"
        "for name in sys.argv[1:]:\n"
        "    time.sleep(60 if name == 'slow' else 0)\n"
        "    assert name != 'wrong', 'it is wrong'\n"
        "    print(json.dumps({'task': name}))\n"
        "    print(json.dumps({'done': name}), flush=True)\n"
    )
    command = [sys.executable, "-c", code]
    found = dict(lines_of(command, ["quick", "slow", "wrong", "last"], limit=1.6))
    assert found["quick"] == [{"task": "quick"}]
    assert found["slow"] == "over 2 s"
    assert found["wrong"] == "ended with 1: AssertionError: it is wrong"
    assert found["last"] == [{"task": "last"}]


def test_training_steps_on_variables_follow_the_gradient_in_both_forms():
    fx = imperative.functx_names()
    net = imperative.NETWORKS["small"]
    losses = [
        [step().item() for _ in range(3)]
        for step in (imperative.loop_step(fx, net), imperative.jitted_step(fx, net))
    ]

    def loss(params):
        return net.loss(FUNCTX, params, *net.data)

    params = net.params
    for found, again in zip(*losses, strict=True):
        np.testing.assert_allclose([found, again], loss(params), rtol=1e-4)
        grads = FUNCTX.grad(loss)(params)
        params = [p - imperative.RATE * g for p, g in zip(params, grads, strict=True)]


def test_imperative_tasks_give_rows_with_and_without_another_library():
    ours = imperative.functx_names()
    (row,) = imperative.TASKS["record_number_grad"]([ours, ours], 0.01)
    assert all(0 < x < 0.1 for x in row.found)
    assert str(row).startswith("| `record_number_grad`")
    assert str(row).endswith("|  4.00 us |")
    (alone,) = imperative.TASKS["operation_and_value"]([ours], 0.01)
    assert len(alone.found) == 1


def test_tasks_of_compiled_walks_give_rows():
    ours = imperative.functx_names()
    rows = [
        row for task in ("walk_hit", "hook") for row in compiled_walks.TASKS[task]([ours], 0.01)
    ]
    assert [row.task for row in rows] == ["walk", "walk_hit", "walk_hit_node", "hook_of_hit"]
    assert all(len(row.found) == 1 for row in rows)


def test_saved_programs_are_timed(monkeypatch):
    monkeypatch.setattr(saved_programs, "LAYERS", 1)
    found = saved_programs.rows(turns=1, calls=2)
    assert [name for name, *_ in found] == ["first_run", "call1", "call100"]
    assert all(ours > 0 and theirs > 0 for _, ours, theirs, _ in found)
