"""The tables of kinks in the guide say what derivatives are, in both modes."""

import re
from pathlib import Path

import numpy as onp
import pytest

import functx as fx

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "finite_derivatives.md"
ROWS = re.findall(r"^\| `(.+?)` \| (.+?) \| (.+?) \| .+? \|$", GUIDE.read_text(), re.MULTILINE)
SCOPE = {"math": __import__("math"), "np": fx.numpy, "nn": fx.nn, "special": fx.scipy.special}
SCOPE |= {"lax": fx.lax}


def test_the_tables_are_read_whole():
    assert len(ROWS) == GUIDE.read_text().count("\n| `") > 40


@pytest.mark.parametrize(("function", "at", "derivative"), ROWS)
def test_the_derivative_at_a_kink_is_what_the_guide_says(function, at, derivative):
    f = eval(f"lambda x: {function}", dict(SCOPE))
    wanted = onp.asarray(eval(derivative, dict(SCOPE)), "float32")
    for dtype in ("float32", "float64"):
        x = onp.asarray(eval(at, dict(SCOPE)), dtype)
        for found in fx.jit(lambda x: (fx.grad(f)(x), fx.jacfwd(f)(x)))(x):
            onp.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-7)


def test_what_the_guide_prints_is_what_its_code_prints(tmp_path, capsys):
    text = GUIDE.read_text()
    path, scope = tmp_path / GUIDE.name, {}
    for block in re.finditer(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        path.write_text("\n" * (text[: block.start()].count("\n") + 1) + block.group(1))
        exec(compile(path.read_text(), str(path), "exec"), scope)
    printed = [line.split("  #")[0].rstrip() for line in capsys.readouterr().out.splitlines()]
    shown = re.findall(r"^```\n((?:program|the derivative).*?)^```", text, re.DOTALL | re.M)
    assert [line.replace(f"{tmp_path}/", "") for line in printed] == "".join(shown).splitlines()
