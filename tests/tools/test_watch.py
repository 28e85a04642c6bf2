"""`functx.tools.watch`: the values of equations, in loops, branches and calls too."""

from xml.dom import minidom

import numpy as onp
import pytest

import functx as fx
import functx.numpy as np
from functx.core.errors import ArgumentError, ConcretizationError
from functx.tools import watch

X = onp.array([0.0, 1.0, 4.0], "float32")


def test_values_have_their_range_mean_and_what_is_not_finite():
    def f(x):
        y = np.log(x)
        z = y * x
        return z

    table = watch(f)(X)
    y, z = table
    assert (y, z) == (table["y"], table["z"]) and len(table) == 2
    assert (y.infinities, y.nans, y.finite) == (1, 0, 2) and z.nans == 1
    assert (y.minimum, y.maximum) == (0.0, float(onp.log(onp.float32(4))))
    assert y.mean == pytest.approx(onp.log(4.0) / 2) and y.type == "f32[3]"
    assert onp.array_equal(y.last, onp.log(X, where=X > 0, out=onp.full(3, -onp.inf, "float32")))
    text = str(table)
    assert "2, of which 2 are not finite" in text and "y = np.log(x)" in text and "1 nan" in text
    minidom.parseString(table._repr_html_())
    with pytest.raises(ArgumentError, match="must be one of"):
        table["w"]


def test_the_values_of_all_steps_of_a_loop_are_counted_together():
    def steps(x):
        def step(c, row):
            c = c * 2.0 + row
            return c, c

        return fx.lax.scan(step, x[0] * 1.0, x, reverse=True)

    table = watch(steps)(X)
    last, rows = fx.lax.scan(lambda c, r: (c * 2.0 + r,) * 2, X[0], X, reverse=True)
    inner = [v for v in table.values if v.depth]
    assert all(v.runs == 3 for v in inner)
    assert inner[-1].maximum == float(rows.max()) and inner[-1].minimum == float(rows.min())
    outer = [v for v in table.values if v.operation == "scan"]
    assert onp.array_equal(outer[0].last, last) and onp.array_equal(outer[1].last, rows)


def test_depth_limits_the_programs_inside():
    def nested(x):
        def body(i, c):
            return fx.lax.cond(c[0] < 3, lambda v: v + 1.0, lambda v: v - 1.0, c)

        return fx.lax.while_loop(lambda c: c[1] < 2, lambda c: body(0, c), fx.jit(np.sin)(x) + 0.0)

    depths = {n: {v.depth for v in watch(nested, depth=n)(X).values} for n in range(4)}
    assert depths == {0: {0}, 1: {0, 1}, 2: {0, 1, 2}, 3: {0, 1, 2}}
    ends = [watch(nested, depth=n)(X).values[-1] for n in range(1)]
    assert ends[0].operation == "while"
    for wrong in (-1, 1.5, None):
        with pytest.raises(ArgumentError, match="depth must be"):
            watch(nested, depth=wrong)
    with pytest.raises(ArgumentError, match="must be a function"):
        watch(3)


def test_rules_of_users_writes_draws_and_all_dtypes_are_watched():
    @fx.custom_jvp
    def twice(x):
        return x * 2.0

    twice.defjvp(lambda xs, ts: (twice(*xs), ts[0] * 2.0))

    def f(x):
        y = twice(x)
        y[0] = 7.0
        return y, x > 1, x.astype(int), y * 1j, np.zeros((0, 2)), x.astype("bfloat16") * 2

    table = watch(f)(X)
    found = {v.operation: v for v in table.values}
    assert found["gt"].mean == pytest.approx(1 / 3) and found["mul"].type == "bf16[3]"
    assert any(v.maximum == 8.0 and v.depth for v in table.values)
    assert "empty" in str(watch(lambda: np.zeros((0, 2)) + np.zeros((0, 2)))())
    complexes = watch(lambda x: x * 1j)(onp.array([3 + 4j]))
    assert complexes.values[0].maximum == pytest.approx(5.0)


def test_python_control_flow_and_transforms_are_watched():
    cubes = watch(fx.vmap(fx.grad(lambda x: x**3)))(X)
    assert cubes.values[-1].line.text.startswith("cubes = watch")
    assert onp.allclose(cubes.values[-1].last, 3 * X**2)
    slope = watch(fx.grad(lambda x: np.sin(x) if x > 1e9 else x * x))(3.0)
    assert slope.values[-1].last == 6.0 and "sin" not in str([v.operation for v in slope.values])


def test_prints_happen_once_and_arguments_may_be_variables_or_traced(capsys):
    def prints(x):
        fx.debug.print("sum {s}", s=x.sum())
        return x * 2.0

    assert watch(prints)(X).values[-1].maximum == 8.0
    assert capsys.readouterr().out == "sum 5.0\n"
    weights = fx.autograd.Variable(X)
    assert watch(lambda x: x * weights)(weights).values[-1].maximum == 16.0
    seen = []

    def loss(x):
        seen.append(watch(np.sin)(x).values[0].minimum)
        return (x * x).sum()

    fx.grad(loss)(X)
    assert len(seen) == 1
    with pytest.raises(ConcretizationError, match="watch needs the value"):
        fx.jit(loss)(X)


def test_equal_programs_inside_each_other_have_their_own_variables():
    @fx.custom_jvp
    def sine(x):
        return np.sin(x)

    sine.defjvp(lambda p, t: (np.sin(p[0]), t[0] * np.cos(p[0])))

    @fx.custom_vjp
    def other(x):
        return np.sin(x)

    other.defvjp(lambda x: (np.sin(x), x), lambda x, ct: (ct * np.cos(x),))
    table = fx.tools.watch(lambda x: sine(x) + other(x))(onp.ones(3))
    assert str(table).count("sin ") == 2


def test_a_page_of_finite_values_and_a_source_without_operations_are_short():
    explanation = fx.tools.explain_nan(np.sin)(onp.ones(3))
    assert "finite" in explanation._repr_html_()
    assert fx.tools.python_source(fx.make_ir(lambda x: 2 * x)(1.0)).text.startswith("def ")
    text = fx.tools.python_source(fx.make_ir(np.sin)(1.0)).text
    assert text.startswith("from functx import numpy as np\n\n\ndef ")
