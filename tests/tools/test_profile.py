"""`functx.tools.profile`: the time of lines, by XLA's profile and by running lines alone."""

from importlib import import_module
from xml.dom import minidom

import numpy as onp
import pytest

import functx as fx
import functx.numpy as np
from functx.core.errors import ArgumentError
from functx.passes.costs import Cost
from functx.tools import profile
from functx.tools.flame_graph import FlameGraphEntry, place_entries, render_flame_graph
from functx.tools.machine import Machine
from functx.tools.profile import Profile, format_seconds
from functx.tools.user_lines import UNKNOWN
from functx.tools.xla_profile import HloModule

MACHINE = Machine("cpu", 1e10, 1e9)
X = onp.ones((96, 96), "float32")


@pytest.fixture(autouse=True)
def known_machine(monkeypatch):
    monkeypatch.setattr(import_module("functx.tools.profile"), "machine", lambda: MACHINE)


def loss(x):
    def step(c, row):
        c = np.sin(c) + row
        return c, None

    h = x @ x
    with fx.named_scope("head"):
        c, _ = fx.lax.scan(step, h[0], h)
    return (c * c).sum()


def test_lines_have_their_time_and_their_cost():
    found = profile(fx.grad(loss), runs=3)(X)
    assert isinstance(found, Profile) and found.seconds > 0
    product = [each for each in found.lines if each.line.text == "h = x @ x"]
    assert {each.line.is_backward for each in product} == {False, True}
    assert all(each.seconds > 0 and each.cost.flops > 0 for each in product)
    assert product[0].bytes_in_memory > 0 and found.temporary_bytes is not None
    assert any("step" in stack.line.place and "head" in stack.path for stack in found.stacks)
    text = str(found)
    assert "XLA's profile" in text and "% compute" in text
    minidom.parseString(found._repr_html_())
    minidom.parseString(found.flame_graph())


def test_the_lines_of_a_jitted_function_are_its_own():
    inner = fx.jit(lambda x: np.tanh(x @ x))
    found = profile(fx.jit(lambda x: inner(x).sum()), runs=1)(X)
    slowest = found.lines[0]
    assert slowest.line.text.startswith("inner =") and slowest.cost.flops >= 2 * 96**3
    stack = next(each for each in found.stacks if each.line == slowest.line)
    assert sum(["inner(x).sum()" in entry for entry in stack.path]) == 2  # both calls around it


def test_lines_that_run_alone_compute_the_function():
    found = profile(lambda x: np.tanh(x @ x).sum() + 1.0, method="lines", runs=1)(X)
    assert found.method == "lines" and len(found.lines) == 1
    assert found.lines[0].cost.flops > 2 * 96**3 and "run alone" in str(found)


def test_functions_without_work_or_with_wrong_arguments():
    assert {each.line for each in profile(lambda x: x, runs=1)(1.0).lines} <= {UNKNOWN}
    for wrong in ({"method": "guess"}, {"runs": 0}):
        with pytest.raises((ArgumentError, ValueError)):
            profile(loss, **wrong)
    with pytest.raises(ArgumentError, match="must be a function"):
        profile(None)


MODULE = """HloModule f

%fused (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  %a = f32[8]{0} tanh(%p), metadata={op_name="one/tanh"}
  ROOT %b = f32[8]{0} add(%a, %p), metadata={op_name="two/add"}
}

%body (c: f32[8]) -> f32[8] {
  %c = f32[8]{0} parameter(0)
  ROOT %f = f32[8]{0} fusion(%c), kind=kLoop, calls=%fused, metadata={op_name="two/add"}
}

%condition (c: f32[8]) -> pred[] {
  %d = f32[8]{0} parameter(0)
  ROOT %t = pred[] constant(true)
}

ENTRY %main (x: f32[8]) -> f32[8] {
  %x = f32[8]{0} parameter(0)
  %k = f32[8]{0} copy(%x)
  ROOT %w = (f32[8]{0}) while(%k), condition=%condition, body=%body, metadata={op_name="loop/while"}
}
"""


def test_a_fused_operation_is_divided_among_its_lines_inside_their_loop():
    module = HloModule(MODULE)
    shares = {("loop/while", "one/tanh"): 10 / 11, ("loop/while", "two/add"): 1 / 11}
    assert module.scopes("f") == pytest.approx(shares)
    assert module.scopes("w") == pytest.approx(shares)
    assert module.scopes("k") == {(): 1.0}
    assert [*module.callers_of("a")] == ["f", "w"]


def test_the_roofline_is_the_longer_of_work_and_bytes():
    assert MACHINE.least_seconds(Cost(10**10, 0, 10)) == 1.0
    assert MACHINE.limit(Cost(10**10, 0, 10)) == "compute"
    assert MACHINE.least_seconds(Cost(10, 0, 2 * 10**9)) == 2.0
    assert MACHINE.limit(Cost(10, 0, 2 * 10**9)) == "memory"
    assert str(MACHINE) == "cpu: 10 Gflop/s, 1 GB/s"
    times = [format_seconds(t) for t in (2.0, 0.0123, 4.5e-5)]
    assert times == ["2 s", "12.3 ms", "45 us"]


def test_a_flame_graph_is_as_wide_as_its_times():
    root = FlameGraphEntry("f")
    root.add(["a", "<x>"], 3.0)
    root.add(["a"], 1.0)
    root.add(["b"], 4.0)
    placed = {p.entry.name: p for p in place_entries(root, 0, 0.0, 1 / root.seconds)}
    assert (placed["b"].left, placed["b"].right) in ((0.0, 0.5), (0.5, 1.0))
    assert placed["<x>"].row == 2 and placed["<x>"].right - placed["<x>"].left == 3 / 8
    picture = render_flame_graph(root, format_seconds)
    assert (
        "&lt;x&gt;" in picture and len(minidom.parseString(picture).getElementsByTagName("g")) == 4
    )
    minidom.parseString(render_flame_graph(FlameGraphEntry("nothing"), format_seconds))
