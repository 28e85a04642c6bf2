"""Wrong arguments of tools and of functions on top of programs: errors of functx that say the cure."""

import numpy as onp
import pytest

import functx as fx
import functx.numpy as np
from functx import bounds, implicit, tools
from functx.core.errors import FunctxError
from functx.scipy import special
from functx.scipy.linalg import lu_solve, solve_triangular
from functx.tools.markup import PictureResult

ARRAY = np.ones(2)
MATRIX = onp.eye(3, dtype="float32")


def double(x):
    return 2 * x


def fill(x):
    buffer = onp.zeros(3)
    buffer[0] = x
    return buffer


def add_to(x):
    buffer = onp.zeros(3)
    buffer += x
    return buffer


class Picture(PictureResult):
    def svg(self):
        return "<svg/>"


REFUSED = [
    (lambda: tools.profile(double, 3.0), r"profile\(fun\)\(\*args\)"),
    (lambda: tools.html(double, 3.0), r"html\(fun\)\(\*args\)"),
    (lambda: fx.export.export(double, 3.0), r"export\(fun\)\(\*args\)"),
    (lambda: fx.make_ir(double)(3.0).rewrite(lambda eqn, *args: None), "return NotImplemented"),
    (lambda: tools.save_stablehlo(double)(3.0, 1.0), "path"),
    (lambda: Picture().save("p.png"), r"\.svg or \.html.*'p.png'"),
    (lambda: Picture().save(3), "path of a file; got 3"),
    (lambda: fx.grad(double, argnums=onp.zeros(2)), "argnums"),
    (lambda: fx.grad(double, argnums=int), "argnums"),
    (lambda: bounds.crown(double, intermediate=ARRAY), "intermediate must be a string"),
    (lambda: implicit.root(double, linear_solver=ARRAY), "linear_solver must be a string"),
    (lambda: np.arange(3, device=ARRAY), "device"),
    (lambda: np.quantile(ARRAY, 0.5, method=ARRAY), "method must be a string"),
    (lambda: np.abs(ARRAY, out=onp.array(["a", "b"])), "must hold numbers"),
    (lambda: special.log_ndtr(ARRAY, 2**70), "from 0 to 30"),
    (lambda: np.vdot(ARRAY, MATRIX), r"f32\[2\] and f32\[3,3\]"),
    (lambda: np.linalg.solve(MATRIX, ARRAY), r"f32\[3,3\] and f32\[2\]"),
    (lambda: np.linalg.solve(MATRIX, 1.0), r"f32\[3,3\]"),
    (lambda: solve_triangular(MATRIX, ARRAY), r"f32\[3,3\] and f32\[2\]"),
    (lambda: lu_solve((MATRIX, onp.arange(3)), ARRAY), r"f32\[3,3\] and f32\[2\]"),
    (lambda: fx.lax.linalg.triangular_solve(MATRIX, ARRAY), r"f32\[3,3\] and f32\[2\]"),
    (lambda: fx.jit(fill)(1.0), r"`buffer` inside the function with functx\.numpy \(.*zeros"),
    (lambda: fx.jit(add_to)(1.0), r"`buffer` inside the function with functx\.numpy \(.*zeros"),
]


def test_wrong_arguments_are_refused_with_the_cure():
    for call, words in REFUSED:
        with pytest.raises(FunctxError, match=words):
            call()


def test_more_differences_than_elements_are_an_empty_array_at_once():
    assert np.diff(onp.ones(3), n=2**70).shape == onp.diff(onp.ones(3), n=3).shape
    assert np.diff(onp.ones(3), n=3, prepend=0.0).tolist() == [1.0]


def test_an_equation_is_printed_as_a_line_with_its_source():
    program = fx.make_ir(lambda x: np.sin(x) + fx.lax.fori_loop(0, 3, lambda i, y: y * x, x))(ARRAY)
    first, *_ = program.equations
    assert repr(first).startswith("b: f32[2] = sin a")
    assert "test_wrong_arguments.py" in repr(first)
    assert all([eqn.primitive.name in str(eqn) for each in program.walk() for eqn in each])
