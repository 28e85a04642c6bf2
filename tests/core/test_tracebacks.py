"""What tracebacks show: the frames of the user's code, without those of functx and JAX."""

import os
import subprocess
import sys
import traceback
from pathlib import Path

import jax
import numpy as np
import pytest

import functx
import functx.numpy as xp
from functx.core.errors import ShapeError, ValueRangeError
from functx.core.tracebacks import TRACEBACK_FILTERING_MODES, UnfilteredTraceback
from functx.lax import cond, fori_loop, map, scan, while_loop


def raised(run, mode="auto"):
    """The exception of `run()` under `traceback_filtering=mode`."""
    with functx.config.set(traceback_filtering=mode), pytest.raises(Exception) as caught:
        run()
    return caught.value


def functions(error):
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]


def loss(x):
    return step(x)


def step(x):
    if x.shape == (3,):
        return xp.reshape(x, 5)
    try:
        return {}["weights"]
    except KeyError as error:
        raise RuntimeError("no weights") from error


WAYS = {
    "grad": lambda x: functx.grad(loss)(x),
    "value_and_grad": lambda x: functx.value_and_grad(loss)(x),
    "hessian": lambda x: functx.hessian(loss)(x),
    "hvp": lambda x: functx.hvp(loss, (x,), (x,)),
    "vjp": lambda x: functx.vjp(loss, x),
    "jvp": lambda x: functx.jvp(loss, (x,), (x,)),
    "linearize": lambda x: functx.linearize(loss, x),
    "linear_transpose": lambda x: functx.linear_transpose(loss, x),
    "vmap": lambda x: functx.vmap(loss)(np.stack([x, x])),
    "jit": lambda x: functx.jit(loss)(x),
    "lower": lambda x: functx.jit(loss).lower(x),
    "jit(vmap(grad))": lambda x: functx.jit(functx.vmap(functx.grad(loss)))(np.stack([x, x])),
    "jax.jit(grad)": lambda x: jax.jit(functx.grad(loss))(x),
    "make_ir": lambda x: functx.make_ir(loss)(x),
    "eval_shape": lambda x: functx.eval_shape(loss, x),
    "functionalize": lambda x: functx.functionalize(loss)(x),
    "checkpoint": lambda x: functx.grad(functx.checkpoint(loss))(x),
    "scan": lambda x: scan(lambda c, _: (loss(c), ()), x, length=2),
    "map": lambda x: map(loss, np.stack([x, x])),
    "while_loop": lambda x: while_loop(lambda c: c.sum() < 0, loss, x),
    "fori_loop": lambda x: fori_loop(0, 2, lambda _, c: loss(c), x),
    "cond": lambda x: cond(True, loss, loss, x),
}


@pytest.mark.parametrize("way", WAYS)
def test_errors_of_functx_and_of_the_user_show_the_users_frames_alone(way):
    error = raised(lambda: WAYS[way](np.ones(3)))
    assert isinstance(error, ShapeError)
    shown = functions(error)
    assert shown[-2:] == ["loss", "step"] and {*shown[:-2]} <= {"raised", "<lambda>"}
    error = raised(lambda: WAYS[way](np.ones(4)))
    assert type(error) is RuntimeError and error.args == ("no weights",)
    shown = functions(error)
    assert shown[-2:] == ["loss", "step"] and {*shown[:-2]} <= {"raised", "<lambda>"}
    assert functions(error.__cause__) == ["step"]
    assert "JAX" not in str(getattr(error, "__notes__", "")) or way.startswith("jax.")


def test_errors_of_the_call_itself_end_at_the_call():
    error = raised(lambda: functx.jit(functx.grad(lambda x: x))(np.ones(3)))
    assert functions(error) == ["raised", "<lambda>"]
    pull = functx.vjp(xp.sin, 1.0)[1]
    assert functions(raised(lambda: pull(np.ones(3)))) == ["raised", "<lambda>"]


def test_the_mode_says_what_becomes_of_the_frames():
    def run():
        functx.grad(loss)(np.ones(4))

    whole = raised(run, "off")
    assert len(functions(whole)) > len(functions(raised(run, "quiet_remove_frames"))) == 4
    with_cause = raised(run, "remove_frames")
    assert functions(with_cause) == functions(raised(run))
    assert type(with_cause.__cause__) is UnfilteredTraceback
    assert functions(with_cause.__cause__) == functions(whole)[2:]
    assert type(with_cause.__cause__.__cause__) is KeyError
    hidden = raised(run, "tracebackhide")
    assert functions(hidden) == functions(whole)
    shown = [
        frame.f_code.co_name
        for frame, _ in traceback.walk_tb(hidden.__traceback__)
        if not frame.f_locals.get("__tracebackhide__")
    ]
    assert shown == ["raised", "run", "loss", "step"]
    assert functx.config.traceback_filtering in TRACEBACK_FILTERING_MODES
    with pytest.raises(ValueRangeError, match="traceback_filtering"):
        functx.config.traceback_filtering = "none"


def test_an_error_inside_jax_says_how_to_see_its_frames():
    error = raised(lambda: functx.grad(lambda x: jax.numpy.reshape(np.ones(3), 5) * x)(1.0))
    assert functions(error) == ["raised", "<lambda>", "<lambda>"]
    assert "traceback_filtering" in error.__notes__[-1]


def test_a_terminal_and_a_debugger_show_the_users_lines(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import functx, functx.numpy as np\n"
        "def loss(x):\n"
        "    return np.reshape(x, 5).sum()\n"
        "def eager():\n"
        "    np.reshape(np.ones(3), 5)\n"
        "import sys\n"
        "{'grad': lambda: functx.grad(loss)(np.ones(3)), 'eager': eager}[sys.argv[1]]()\n"
    )

    def run(*args, commands=""):
        path = {"PYTHONPATH": str(Path(functx.__file__).parents[1])}
        done = subprocess.run(
            [sys.executable, *args],
            input=commands,
            capture_output=True,
            text=True,
            timeout=120,
            env=os.environ | path,
        )
        return done.stdout + done.stderr

    for way, function in (("grad", "loss"), ("eager", "eager")):
        lines = [line for line in run(str(script), way).splitlines() if line.startswith("  File")]
        assert all("train.py" in line for line in lines) and lines[-1].endswith(f"in {function}")
    told = run("-m", "pdb", "-c", "continue", str(script), "grad", commands="p x.shape\nq\nq\n")
    assert "(3,)" in told


@pytest.mark.parametrize("mode", ["auto", "off"])
def test_an_error_of_a_rule_is_no_mistake_in_the_arguments_of_the_transform(mode):
    doubled = functx.custom_vjp(lambda x: 2 * x)
    doubled.defvjp(lambda x: (2 * x, None), lambda _, ct: int("two"))
    error = raised(lambda: functx.jvp(doubled, (1.0,), (1.0,)), mode)
    assert type(error) is ValueError
