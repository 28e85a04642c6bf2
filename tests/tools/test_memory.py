"""`functx.tools.memory`: the saved arrays, the arrays at the peak, and the picture."""

import re
from xml.dom import minidom

import numpy as onp
import pytest

import functx as fx
import functx.numpy as np
from functx.core.errors import ArgumentError
from functx.tools import memory

X, W = onp.ones((64, 32), "float32"), onp.ones((32, 32), "float32")
WIDE = 64 * 32 * 4


@pytest.fixture(autouse=True)
def nothing_planned():
    with fx.config.set(memory="off"):
        yield


def loss(x, w):
    h = np.tanh(x @ w)
    return np.sum(np.sin(h @ w))


def test_a_gradient_saves_the_values_of_its_backward_computation():
    use = memory(fx.grad(loss, argnums=1))(X, W)
    made = [(v.operation, v.bytes, re.sub(r":\d+", "", v.place)) for v in use.saved]
    assert made == [
        ("tanh", WIDE, "test_memory.py in loss"),
        ("dot_general", WIDE, "test_memory.py in loss"),
    ]
    assert use.saved_bytes == 2 * WIDE
    assert use.argument_bytes == WIDE + W.nbytes and use.result_bytes == W.nbytes
    assert use.peak_bytes >= use.saved_bytes and use.temporary_bytes >= use.saved_bytes
    line = onp.sum([1 for m in use.timeline if m.bytes == use.peak_bytes])
    assert line >= 1 and len(use.timeline) == len(use.program)
    assert sum(v.bytes for v in use.live_at_peak) == use.peak_bytes


def test_the_operands_of_a_value_computed_where_it_is_used_stay_in_memory_until_then():
    def f(x, w):
        late = np.sin(x @ w)
        other = np.sort(np.sort(x, 0), 1) @ w
        return np.sum(late * other)

    use = memory(f)(X, W)
    live = {v.operation: v.bytes for v in use.live_at_peak}
    assert use.peak_bytes == 3 * WIDE and live["dot_general"] == WIDE and live["sort"] == WIDE


def test_each_result_of_a_branch_shows_the_operation_that_computes_it():
    def f(x, w):
        both = fx.lax.cond(x[0, 0] > 0, lambda: (np.sort(x, 0), x @ w), lambda: (x, x))
        return fx.checkpoint(lambda a, b: np.sum(a @ w) + np.sum(b @ w))(*both)

    made = [v.operation for v in memory(f)(X, W).live_at_peak]
    assert {"sort", "dot_general"} <= {*made}


def test_it_prints_as_a_table():
    text = str(memory(fx.grad(loss))(X, W))
    assert text.startswith("memory of grad_loss: at most about ")
    assert "arguments 12.0 KiB, results 8.0 KiB, saved for the backward computation" in text
    assert re.search(r"8\.0 KiB  f32\[64,32\] +tanh +test_memory\.py:\d+ in loss", text)
    assert "in memory at the peak:" in text
    assert max(map(len, text.splitlines())) < 120


def test_values_alike_share_a_line_and_long_tables_end():
    def f(x, ws):
        for i in range(30):
            x = np.tanh(x @ ws)
            x = np.sort(x, 0)[: 60 - i] if i % 2 else x
        return np.sum(x)

    text = str(memory(fx.grad(f, argnums=1))(X, W))
    assert re.search(r"2 x +8\.0 KiB", text) and re.search(r"in \d+ others", text)


def test_a_plan_saves_less_and_shows_it():
    def f(x, w):
        for _ in range(3):
            x = np.tanh(np.sin(x @ w) * 2.0)
        return np.sum(x)

    g = fx.grad(f)
    plain = memory(fx.jit(g, memory="off"))(X, W)
    planned = memory(fx.jit(g, memory="min_cut"))(X, W)
    assert planned.saved_bytes == 3 * WIDE < plain.saved_bytes
    assert planned.temporary_bytes < plain.temporary_bytes
    assert planned.timeline[-1].operation != "rematerialized_call pullback_f"


def test_calls_and_loops_show_the_operations_inside():
    def f(x, w):
        block = fx.jit(lambda x: np.exp(np.tanh(x @ w)))
        x = block(x)
        _, rows = fx.lax.scan(lambda c, r: (np.sin(c * r), np.exp(c)), x[0], x)
        return np.sum(rows**2)

    use = memory(fx.jit(fx.grad(f)))(X, W)
    assert {"exp", "tanh"} <= {v.operation for v in use.saved}
    assert any(m.operation.startswith("scan") for m in use.timeline)
    assert all(v.bytes == WIDE or v.bytes <= 64 * 32 * 4 for v in use.saved)


def test_a_function_without_derivatives_saves_nothing():
    use = memory(loss)(X, W)
    assert use.saved == [] and use.saved_bytes == 0
    # What is computed element by element is never in memory on its own.
    assert use.peak_bytes == 2 * WIDE
    same = memory(lambda x: x)(X)
    assert same.peak_bytes == 0 and same.live_at_peak == [] and "nothing" in str(same)
    minidom.parseString(same.svg())


def test_shapes_are_enough():
    assert memory(fx.grad(loss))(fx.ShapedArray((64, 32), X.dtype), W).saved_bytes == 2 * WIDE


def test_the_picture_is_tidy(tmp_path):
    use = memory(fx.jit(fx.grad(loss), memory="min_cut"))(X, W)
    use.save(tmp_path / "memory.svg")
    picture = minidom.parse(str(tmp_path / "memory.svg")).documentElement
    assert picture.tagName == "svg"
    titles = [t.firstChild.data for t in picture.getElementsByTagName("title")]
    assert any(
        re.match(r"8\.0 KiB f32\[64,32\] tanh test_memory\.py:\d+ in loss", t) for t in titles
    )
    texts = [t.firstChild.data for t in picture.getElementsByTagName("text")]
    assert any(t.startswith("peak: ") for t in texts) and "0 B" in texts
    width, height = [float(picture.getAttribute(n)) for n in ("width", "height")]
    for area in picture.getElementsByTagName("polygon"):
        points = [tuple(map(float, p.split(","))) for p in area.getAttribute("points").split()]
        assert all(0 <= x <= width and 0 <= y <= height for x, y in points)
        assert area.getAttribute("fill").startswith("#")
    assert use._repr_svg_() == use.svg()


def test_what_is_no_function_is_refused():
    with pytest.raises(ArgumentError, match="must be a function; got float"):
        memory(3.0)
