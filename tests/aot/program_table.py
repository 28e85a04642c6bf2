"""Programs with writes, views, aliases, duplicates, buffers and parts without gradients, as users write them.

Each takes Variables that `inputs()` makes: `(arguments, leaves)`, where gradients are compared at `leaves`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy

import functx
import functx.numpy as np
from functx import lax
from functx.autograd import Variable, no_grad

ROW = [0.5, -1.25, 2.0, 0.75]
MATRIX = [[0.5, -1.25, 2.0, 0.75], [1.5, 0.25, -0.5, 3.0], [-2.0, 1.0, 0.125, -0.75]]

Inputs = tuple[tuple[Any, ...], list[Variable]]
TABLE: dict[str, tuple[Callable[..., Any], Callable[[], Inputs]]] = {}


def leaf(value=ROW, dtype="float32"):
    return Variable(numpy.array(value, dtype), requires_grad=True)


def buffer(value=ROW, dtype="float32"):
    return Variable(numpy.array(value, dtype))


def rows(count=2, needs=None):
    """Inputs of so many rows, of which those in `needs` require a gradient and were computed."""

    def make() -> Inputs:
        leaves = [leaf(numpy.array(ROW) * (k + 1)) for k in range(count)]
        needed = range(count) if needs is None else needs
        return tuple(
            [x * 1 if k in needed else x.detach().copy() for k, x in enumerate(leaves)]
        ), leaves

    return make


def program(inputs):
    """Adds a function, with a function that makes its inputs, to the table."""

    def add(fun):
        TABLE[fun.__name__] = fun, inputs
        return fun

    return add


@program(rows(2))
def one_output(x, y):
    return np.sin(x) * y


@program(rows(2))
def a_list_of_outputs(x, y):
    return [x * y, x + y]


@program(rows(2))
def a_dictionary_of_outputs(x, y):
    return {"product": x * y, "pair": (np.exp(x), None), "name": "mul"}


@program(lambda: (({"w": (w := leaf()), "rest": [b := leaf(), None]},), [w, b]))
def nested_inputs(tree):
    return tree["w"] * tree["rest"][0]


@program(lambda: (((x := leaf()), None, 2, "sum", 0.5), [x]))
def what_is_no_array(x, nothing, power, kind, factor):
    out = x**power * factor
    return (out.sum() if kind == "sum" else out), power, nothing


@program(rows(2))
def write_to_an_input(x, y):
    x += y
    return x * y


@program(rows(2))
def written_input_is_an_output(x, y):
    x *= 2
    return x, x + y


@program(rows(3))
def two_written_inputs(x, y, z):
    x += z
    z *= y
    return x * z


@program(rows(2))
def written_before_and_after_use(x, y):
    before = np.sin(x)
    x[1:3] = y[:2]
    return before * x


@program(rows(2))
def write_of_a_number(x, y):
    x[...] = 3.0
    return x * y


@program(rows(2))
def write_and_a_view_of_the_input(x, y):
    x[0] = y[1]
    return x[:2], y * 2


@program(rows(2, needs=[1]))
def write_gives_a_history(x, y):
    x *= y
    return x + 1


@program(rows(2))
def write_through_a_detached_alias(x, y):
    x.detach()[1] = 5.0
    return x * y


@program(rows(2))
def write_under_no_grad(x, y):
    with no_grad():
        x *= 2
    return x * y


@program(rows(2))
def write_under_no_grad_and_outside(x, y):
    with no_grad():
        x[0] = 7.0
    x[1:] *= y[1:]
    return x * y


@program(lambda: (((m := leaf(MATRIX)) * 1, (v := leaf())), [m, v]))
def write_to_a_column(m, v):
    m[:, 1] *= 2
    m.T[2] += v[:3]
    return m.sum(axis=0) * v


def strided() -> Inputs:
    m = leaf(MATRIX)
    computed = m * 1
    return (computed.T[1:3], computed), [m]


@program(strided)
def write_to_a_strided_view_and_its_base(x, base):
    x *= 3
    return base.sum(axis=0) * 2, x + 1


@program(lambda: ((((m := leaf(MATRIX)) * 1).T,), [m]))
def reshape_of_a_transposed_input(x):
    flat = x.reshape(-1)
    return flat * 2, x.T


@program(rows(1))
def output_is_an_input(x):
    return x, x * 2


@program(rows(1))
def output_is_a_view_of_an_input(x):
    return x[1:], x.reshape(2, 2), x * 3


@program(rows(1))
def same_input_twice_in_the_output(x):
    return x, x


@program(rows(1))
def same_intermediate_twice_in_the_output(x):
    y = x * 2
    return y, {"again": y, "view": y[1:]}


@program(rows(1))
def output_is_a_view_of_an_intermediate(x):
    y = x * 2
    return y[1:]


@program(rows(1))
def two_views_of_an_intermediate(x):
    y = x * 2
    return y[1:], y[:2]


@program(rows(1))
def an_intermediate_and_its_view(x):
    y = x * 2
    return y, y[:2], y.reshape(2, 2).T


@program(rows(1))
def written_intermediate(x):
    y = x * 2
    part = y[1:]
    part *= x[:3]
    return y, part


@program(lambda: ((x := leaf(),), [x]))
def write_to_a_copy_of_a_leaf(x):
    y = x.copy()
    y[::2] = 0.0
    return y * x


@program(lambda: ((y := (x := leaf()) * 1, y), [x]))
def the_same_array_twice(x, y):
    return x * y + x


@program(lambda: ((y := (x := leaf()) * 1, y), [x]))
def the_same_array_twice_and_written(x, y):
    x += 1
    return x * y, y


@program(lambda: ((y := (x := leaf()) * 1, y[:2]), [x]))
def base_and_view_where_the_base_is_written(x, part):
    x *= 2
    return part * 3, x


@program(lambda: ((y := (x := leaf()) * 1, y[:2]), [x]))
def base_and_view_where_the_view_is_written(x, part):
    part += 1
    return x * 2, part


@program(lambda: (((y := (x := leaf()) * 1)[:3], y[1:]), [x]))
def overlapping_views_both_written(x, y):
    x *= 2
    y += 1
    return x + y


@program(lambda: (((y := (x := leaf()) * 1)[:2], y[2:]), [x]))
def views_that_do_not_overlap(x, y):
    x *= y
    y += 1
    return x + y


@program(lambda: ((y := (x := leaf()) * 1, y.detach()), [x]))
def base_and_detached_alias_that_is_written(x, alias):
    alias *= 2
    return x * 3


@program(lambda: ((y := (x := leaf()) * 1, y[:2]), [x]))
def shared_memory_that_is_only_read(x, part):
    return x[:2] * part


@program(lambda: ((x := leaf(), buffer(), Variable(numpy.int32(3))), [x]))
def running_mean(x, mean, count):
    count += 1
    mean[...] = mean * 0.9 + x.detach() * 0.1
    return (x - mean) * 2


@program(lambda: ((x := leaf(), buffer()), [x]))
def buffer_with_a_view_of_it(x, state):
    state[0] += 1
    return x * state, state[1:]


@program(rows(2))
def output_under_no_grad(x, y):
    with no_grad():
        z = x * y
    return z, z + x


@program(rows(2))
def all_outputs_under_no_grad(x, y):
    with no_grad():
        return x * y, x + 1


@program(rows(2, needs=[]))
def nothing_needs_a_gradient(x, y):
    x += 1
    z = x * y
    return z, z[1:], x[:2]


@program(rows(2, needs=[0]))
def outputs_with_and_without_gradient(x, y):
    z = y * 2
    return x * y, z, z[:2], np.argsort(x), x > 0


@program(rows(2))
def detached_output(x, y):
    z = x * y
    return z.detach(), z + 1


@program(rows(2))
def unused_input(x, y):
    return y * 2


@program(rows(1))
def zero_derivative(x):
    return np.floor(x) + np.sign(x), x * 2


@program(rows(2))
def transforms_inside(x, y):
    slope = functx.grad(lambda v: (v**3).sum())(x)
    return functx.vmap(lambda a, b: np.sin(a) * b)(slope, y)


@program(rows(2))
def control_flow(x, y):
    total = lax.fori_loop(0, 3, lambda i, c: c * y + i, x)
    return lax.cond(total.sum() > 0, lambda v: v * 2, lambda v: v - 1, total)


@program(lambda: ((m := leaf(MATRIX), v := leaf()), [m, v]))
def parts_of_a_split(m, v):
    a, b = np.split(m * 1, 2, axis=1)
    return a * v[:2], b + v[2:]


@program(lambda: ((z := leaf([1 + 2j, -0.5j], "complex64"),), [z]))
def complex_numbers(z):
    return np.abs(z * z), z.real * 2


@program(lambda: ((x := leaf(numpy.ones((0, 3))), y := leaf([2.0])), [x, y]))
def empty_arrays(x, y):
    z = x * y
    return z, z.sum(axis=0), y[:0]


@program(lambda: ((x := leaf(2.0),), [x]))
def numbers_without_dimensions(x):
    y = x * 3
    y += x
    return y, y * x
