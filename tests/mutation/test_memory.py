"""Memory layouts: views of scalars, layouts of arguments, views in loops, windows, 64-bit views."""

import numpy
import pytest

import functx
import functx.numpy as np
from functx import functionalize, grad, jit, lax, make_ir, vmap
from functx.core.errors import (
    ArgumentError,
    ConcretizationError,
    DTypeError,
    ImmutableArrayError,
    IndexingError,
    ShapeError,
)
from functx.core.memory_layouts import strides_of
from functx.ops.dynamic_slicing import ReadBeforeWrite
from tests.mutation.programs import Program, generate, shrunk


def ramp(*shape):
    return numpy.arange(numpy.prod(shape), dtype="float32").reshape(shape)


def agree(f, make, transform=jit):
    """Require that `f` does the same to two arrays, with NumPy and transformed."""
    x, y = make(), make()
    wanted, got = f(numpy, x), transform(lambda x: f(np, x))(y)
    numpy.testing.assert_allclose(got, wanted, 1e-6)
    numpy.testing.assert_allclose(y, x, 1e-6)


def test_an_element_with_an_ellipsis_is_a_view_and_one_without_is_a_scalar():
    def f(n, x):
        view, scalar = x[0, 1, ...], x[0, 1]
        view += 10
        scalar += 100
        x[0, 1] *= 2
        view[...] += 1
        return n.stack([view, scalar])

    agree(f, lambda: ramp(2, 3))
    agree(f, lambda: ramp(2, 3), lambda f: lambda x: vmap(f)(x[None])[0])


def test_a_scalar_argument_is_not_written_to():
    def f(rate):
        before = rate
        rate *= 2.0
        return before, rate

    rate = numpy.array(3.0, "float32")
    assert [float(x) for x in jit(f)(rate)] == [3.0, 6.0]
    assert float(rate) == 3.0


LAYOUTS = {
    "rows": lambda: ramp(3, 4),
    "columns": lambda: numpy.asfortranarray(ramp(3, 4)),
    "a part": lambda: ramp(3, 6)[:, 1:5],
    "backwards": lambda: ramp(3, 4)[::-1],
    "every other": lambda: ramp(3, 8)[:, ::2],
}
TRANSFORMS = {
    "jit": jit,
    "functionalize": functionalize,
    "grad": lambda f: lambda x: grad(lambda x: (x.sum(), f(x)), has_aux=True)(x)[1],
    "vmap": lambda f: lambda x: vmap(f)(x[None])[0],
    "jit in jit": lambda f: jit(jit(f)),
    "checkpoint": lambda f: jit(functx.checkpoint(f)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_an_argument_is_reshaped_by_its_memory_layout(layout, transform):
    def f(n, x):
        a, b, c = x.reshape(-1), x.T.reshape(-1), x.ravel()
        a[0], b[1] = 50.0, 60.0
        c[2] += 7.0
        return n.concatenate([a, b, c])

    agree(f, LAYOUTS[layout], TRANSFORMS[transform])


def test_one_compiled_function_takes_arguments_of_each_layout():
    def f(x):
        x.reshape(-1)[0] = 9.0
        return x + 0

    compiled = jit(f)
    for make in [*LAYOUTS.values()] * 2:
        x, y = make(), make()
        numpy.testing.assert_array_equal(compiled(x), f(y))
        numpy.testing.assert_array_equal(x, y)


def test_batch_elements_keep_the_layout_of_the_batch():
    def f(x):
        x.reshape(-1)[0] = 9.0
        return x + 0

    x, y = ramp(2, 3, 4), ramp(2, 3, 4)
    out = vmap(f, in_axes=1)(x)
    for lane in range(3):
        numpy.testing.assert_array_equal(out[lane], f(y[:, lane]))
    numpy.testing.assert_array_equal(x, y)


def loop_over(f):
    def body(i, carry):
        f(i)
        return carry

    lax.fori_loop(0, 2, body, 0)


def test_views_from_outside_a_loop_see_its_writes():
    def f(n, x):
        tail, back = x[1:], x[::-1]
        each = loop_over if n is np else lambda g: [g(0), g(1)]

        def step(i):
            tail[i] += x[i]
            back[i] *= 2

        each(step)
        return x + 0

    agree(f, lambda: ramp(5) + 1)


def test_a_loop_condition_reads_the_writes_of_the_body():
    def f(x):
        tail = x[1:]

        def step(carry):
            x[1] += 1.5
            return carry

        lax.while_loop(lambda carry: (tail[0] < 5) & (x[1] < 6), step, 0)
        return tail

    assert jit(f)(ramp(3)).tolist() == [5.5, 2.0]


def test_branches_that_write_to_views_of_one_array_keep_each_others_writes():
    def f(x):
        tail = x[1:]

        def then():
            tail[...] = 7.0

        def otherwise():
            x[0] = 8.0

        lax.cond(x[0] > 0, then, otherwise)
        return x

    assert jit(f)(ramp(3)).tolist() == [8.0, 1.0, 2.0]
    assert jit(f)(ramp(3) + 1).tolist() == [1.0, 7.0, 7.0]


def test_a_write_to_a_view_of_a_captured_array_is_refused():
    def f(x):
        def inner(y):
            y[0] = 1.0
            return x.sum()

        return grad(inner)(x[1:])

    with pytest.raises(ArgumentError, match="must not write to an argument that shares memory"):
        jit(f)(ramp(3))


SHIFTS = [
    lambda n, x: x[..., None].__setitem__(slice(1, None), x[:-1, None]),
    lambda n, x: n.cumsum(x.__setitem__(slice(1, None), x[1:] + x[:-1]) or x, out=x),
    lambda n, x: x.reshape(2, 3)[0, 1:].__setitem__(..., n.sin(x[0])),
    lambda n, x: x[None][:, 2:].__isub__(x[None][:, :-2]),
    lambda n, x: n.cumsum(
        x[:, None].__setitem__(slice(1, None), (x[1:] + x[:-1])[:, None]) or x, out=x
    ),
]


@pytest.mark.parametrize("shift", range(len(SHIFTS)))
@pytest.mark.parametrize("wrap", [lambda f: f, jit], ids=["plain", "in a call"])
def test_a_value_computed_from_its_target_is_not_overwritten_early(shift, wrap, optimised):
    def f(n, x):
        SHIFTS[shift](n, x)
        return x.reshape(3, 2) + 0

    agree(f, lambda: ramp(6) + 1, lambda f: jit(wrap(f)))


def test_reads_and_writes_of_single_rows_in_a_loop_stay_as_they_are():
    def f(x):
        loop_over(lambda i: x.__setitem__(i + 1, np.sin(x[i])))
        return x

    assert ReadBeforeWrite not in [type(e.primitive) for e in make_ir(functionalize(f))(ramp(4))]
    assert "@in_order" not in jit(f).lower(ramp(4)).as_text()


def test_windows_are_a_read_only_view():
    windows = np.lib.stride_tricks.sliding_window_view
    theirs = numpy.lib.stride_tricks.sliding_window_view
    x = ramp(4, 5)
    for shape, axis in [((2, 3), None), (2, 0), ((2, 2), (0, 0)), (5, -1), ((1, 1), None)]:
        numpy.testing.assert_array_equal(windows(x, shape, axis), theirs(x, shape, axis))
    wide = ramp(60)
    numpy.testing.assert_array_equal(jit(lambda x: windows(x, 30))(wide), theirs(wide, 30))

    def later(x):
        seen = windows(x, 2)
        x[1] = 9.0
        return seen

    assert jit(later)(ramp(3)).tolist() == [[0.0, 9.0], [9.0, 2.0]]
    slope = grad(lambda x: (windows(x, 2).sum(1) ** 2).sum())(ramp(3))
    assert slope.tolist() == [2.0, 8.0, 6.0]
    with pytest.raises(ImmutableArrayError, match="read-only"):
        jit(lambda x: windows(x, 2).__setitem__(0, 1.0))(ramp(3))
    for bad, message in [
        (lambda: windows(x, 2), "there must be a length of the window for each axis"),
        (lambda: windows(x, 6, 0), "windows must fit"),
        (lambda: windows(x, (1, 1), writeable=True), "the view must be read-only"),
    ]:
        with pytest.raises(ShapeError, match=message):
            bad()


def test_ascontiguousarray_copies_other_layouts():
    def f(n, x):
        same, other = n.ascontiguousarray(x), n.ascontiguousarray(x.T)
        same[0, 0], other[1, 1] = 7.0, 8.0
        return n.concatenate([same.ravel(), other.ravel()])

    agree(f, lambda: ramp(2, 3))
    assert np.ascontiguousarray(2.0).shape == (1,)


def test_trim_zeros_agrees_with_numpy():
    table = numpy.pad(ramp(2, 3) + 1, ((1, 2), (2, 0)))
    for x in (numpy.array([0, 0, 1, 2, 0, 3, 0]), numpy.zeros(3), table):
        for trim in ("fb", "f", "b", "F"):
            numpy.testing.assert_array_equal(np.trim_zeros(x, trim), numpy.trim_zeros(x, trim))
    numpy.testing.assert_array_equal(np.trim_zeros(table, axis=1), numpy.trim_zeros(table, axis=1))
    with pytest.raises(ConcretizationError, match="trim_zeros"):
        jit(np.trim_zeros)(table)


def test_bits_are_views_of_other_sizes():
    def f(n, x):
        x.view("int32")[0, 0] ^= 1 << 30
        x.view("uint16")[1, ::2] = 0
        return x.view("int16").view("float32") + 0

    agree(f, lambda: ramp(2, 2) + 1)
    with pytest.raises(ShapeError, match="must be contiguous and hold"):
        jit(lambda x: x.T.view("int16"))(ramp(2, 3))


def test_elements_behind_a_mask_that_is_not_known_are_updated():
    def f(n, x):
        y = n.zeros(4, x.dtype)
        x[x > 1] *= 2
        x[x < 3] -= x[0]
        above = x > 3
        y[above] = x[above] ** 2 - 1
        y[~above] += 0.5
        return y

    agree(f, lambda: ramp(4) + 0.5)
    slope = jit(grad(lambda x: x.__setitem__(x > 1, x[x > 1] ** 0.5) or x.sum()))(ramp(4))
    numpy.testing.assert_allclose(slope, [1, 1, 0.5 / 2**0.5, 0.5 / 3**0.5], 1e-6)


@pytest.mark.parametrize(
    "use",
    [
        lambda x: x[x > 0],
        lambda x: x[x > 0].sum(),
        lambda x: x[x > 0] + np.ones(2),
        lambda x: np.sin(x[x > 0]),
        lambda x: numpy.sin(x[x > 0]),
        lambda x: len(x[x > 0]),
        lambda x: x.__setitem__(x > 1, x[x > 0]),
    ],
)
def test_elements_behind_a_mask_that_is_not_known_have_no_other_use(use):
    with pytest.raises(IndexingError, match="the mask must have a known value"):
        jit(use)(ramp(3))


def test_an_update_behind_a_mask_keeps_the_kind_of_the_array():
    with pytest.raises(DTypeError, match="must be of the kind of the array"):
        jit(lambda x: x.__setitem__(x > 0, x[x > 0].__iadd__(0.5)))(numpy.arange(3))


def test_functions_of_elements_reduce_accumulate_and_pair():
    x = ramp(2, 3) + 1
    for f in (
        lambda n, x: n.add.reduce(x),
        lambda n, x: n.multiply.reduce(x, axis=1, keepdims=True, initial=2.0),
        lambda n, x: n.maximum.reduce(x, axis=None),
        lambda n, x: n.logical_and.reduce(x > 1, axis=(0, 1)),
        lambda n, x: n.add.accumulate(x, axis=1),
        lambda n, x: n.minimum.accumulate(x[:, ::-1], 1),
        lambda n, x: n.subtract.outer(x[0], x[1]),
        lambda n, x: numpy.add.reduce(x, axis=1),
    ):
        numpy.testing.assert_allclose(jit(lambda x, f=f: f(np, x))(x), f(numpy, x), 1e-6)


def test_results_are_written_to_arrays_of_their_very_shape():
    def f(n, x):
        row, square = n.zeros(3, x.dtype), n.zeros((2, 2), x.dtype)
        n.sum(x, axis=0, out=row)
        n.matmul(x, x.T, out=square)
        n.add(row[:2], 1.0, square)
        n.concatenate([x[0, :1], x[1, :2]], out=row)
        return n.concatenate([row, square.ravel()])

    agree(f, lambda: ramp(2, 3))
    with pytest.raises(
        ShapeError, match=r"sum\(out=...\): the array must have the shape of the re"
    ):
        jit(lambda x: np.sum(x, axis=0, out=x))(ramp(2, 3))


def test_fewer_values_than_elements_are_repeated():
    agree(
        lambda n, x: x.flat.__setitem__(slice(None, None, 2), [7.0, 8.0]) or x, lambda: ramp(2, 3)
    )


def test_a_failing_program_is_shrunk_to_a_minimal_one():
    program = generate("shrink me", length=12)
    extra = Program(
        program.arguments, (*program.statements, "z = np.zeros(2)", "z[0] = 5.0"), ("a", "z")
    )
    small = shrunk(extra, lambda p: "z[0] = 5.0" in p.text and "z" in p.results)
    assert small.statements == ("z = np.zeros(2)", "z[0] = 5.0")
    assert (small.results, len(small.arguments)) == (("z",), 1)


VIEWS = {
    "reshape": lambda n, x: n.reshape(x, (2, 8)),
    "ravel": lambda n, x: n.ravel(x),
    "transpose": lambda n, x: n.transpose(x),
    "expand_dims": lambda n, x: n.expand_dims(x, 1),
    "flip": lambda n, x: n.flip(x, 0),
    "split": lambda n, x: n.split(x, 2)[0],
    "broadcast_to": lambda n, x: n.broadcast_to(x, (2, 4, 4)),
    "real": lambda n, x: n.real(x),
    "diagonal": lambda n, x: n.diagonal(x, 1),
    "diag": lambda n, x: n.diag(x),
    "einsum": lambda n, x: n.einsum("ii->i", x),
    "sliding_window_view": lambda n, x: n.lib.stride_tricks.sliding_window_view(x, 2, 0),
    "meshgrid": lambda n, x: n.meshgrid(x[0], x[1], copy=False)[1],
}


@pytest.mark.parametrize("dtype", ["float64", "int64", "complex128"])
@pytest.mark.parametrize("name", VIEWS)
def test_views_of_64_bit_arrays_share_their_memory_in_32_bit_mode(name, dtype):
    def f(n, x):
        view = VIEWS[name](n, x)
        x += 1
        return n.array(view)

    x, y, z = (numpy.arange(16).reshape(4, 4).astype(dtype) for _ in range(3))
    wanted = f(numpy, x)
    numpy.testing.assert_array_equal(f(np, y), wanted)
    numpy.testing.assert_array_equal(jit(lambda x: f(np, x))(z), wanted)
    numpy.testing.assert_array_equal(y, x)
    numpy.testing.assert_array_equal(z, x)


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e5m2", "float8_e4m3fn", "int4"])
def test_views_of_arrays_with_dtypes_that_numpy_lacks_share_their_memory(dtype):
    x = np.zeros((2, 3), dtype)
    assert np.broadcast_to(x, (2, 2, 3)).dtype == dtype
    np.flip(x)[0, 0] = 1
    np.ravel(x)[1] = 2
    assert x.astype("float32").tolist() == [[0.0, 2.0, 0.0], [0.0, 0.0, 1.0]]


def test_a_write_to_a_view_of_a_64_bit_array_reaches_the_array_in_32_bit_mode():
    def f(x):
        view = np.reshape(x, (2, 3))
        view[0, 0] = 7.0
        return x[0] + 0

    for transform in (lambda f: f, jit, functionalize):
        x = numpy.arange(6.0)
        assert transform(f)(x) == 7.0 and x[0] == 7.0


def test_an_argument_that_repeats_elements_of_another_is_not_written_to():
    def f(x, rows):
        rows[0] = x + 1.0
        return rows

    x = ramp(3)
    rows = numpy.lib.stride_tricks.as_strided(x, (2, 3), (0, x.itemsize))
    with pytest.raises(ImmutableArrayError, match="repeats elements"):
        jit(f)(x, rows)
    assert x.tolist() == [0.0, 1.0, 2.0]


def test_branches_see_writes_to_operands_that_share_memory():
    def f(flag, x):
        def overwrite(u, v):
            u[0] = 7.0
            return v.sum()

        return functx.lax.cond(flag, overwrite, lambda u, v: u.sum(), x[1:], x[:-1])

    assert float(functx.jit(f)(True, np.arange(4.0, dtype="float32"))) == 0.0 + 7.0 + 2.0


ORDERED = {
    "elementwise": lambda n, x: [x + 1, x * x[0], n.sin(x) > 0, n.where(x > 2, x, 0), x % 2],
    "reductions": lambda n, x: [x.sum(0), n.max(x, 1), x.argmax(0), n.cumsum(x, 0), n.mean(x, -1)],
    "copies": lambda n, x: [n.copy(x), x.copy(), n.array(x), x.astype(int), n.copy(x, "F")],
    "orders": lambda n, x: [
        n.asarray(x, order="C"),
        n.ascontiguousarray(x),
        n.zeros((2, 3), order="F"),
        n.ones_like(x),
        n.full_like(x, x[0]),
        n.zeros_like(x, order="C"),
    ],
    "joined": lambda n, x: [n.concatenate([x, x], 1), n.stack([x, x], 1), n.stack([x, x], -1)],
    "indexed": lambda n, x: [
        x[:, numpy.array([0, 1])],
        x[numpy.array([[0, 1]])],
        x[..., numpy.array([1])] * 2,
        x[numpy.array([0, 1]), :, numpy.array([0, 1])],
        n.take(x, numpy.array([0, 1]), 1),
    ],
    "ordered": lambda n, x: [n.sort(x, 0), n.argsort(x, 1), n.quantile(x, [0.2, 0.4], 1)],
    "in rows": lambda n, x: [n.select([x > 2], [x]), n.isin(x, [1.0]), x.flatten(), x @ x.mT],
}
ARRANGED = {
    "rows": lambda x: x,
    "columns": lambda x: x.T,
    "planes": lambda x: x.transpose(1, 2, 0),
    "thinned": lambda x: x.swapaxes(0, 1)[:, ::2],
    "backwards": lambda x: x.T[::-1, 1:],
}


def in_steps(x):
    """The strides of the dimensions of `x` longer than 1, in elements."""
    traced = isinstance(x, functx.core.tracer.Tracer)
    strides = strides_of(x.builder, x.atom) if traced else [n // x.itemsize for n in x.strides]
    return [int(step) for step, n in zip(strides, x.shape, strict=True) if n > 1]


@pytest.mark.parametrize("kind", ORDERED)
def test_results_have_the_memory_order_of_numpy(kind):
    x, f = ramp(4, 5, 6), ORDERED[kind]

    def strides(n, x):
        return {name: [in_steps(y) for y in f(n, view(x))] for name, view in ARRANGED.items()}

    traced = []
    make_ir(lambda x: traced.append(strides(np, x)))(x)
    assert traced[0] == strides(numpy, x) == strides(np, np.array(x))


def test_a_field_of_packed_records_is_permuted_as_a_copy():
    records = numpy.zeros((2, 3), [("tag", "u1"), ("x", "f4")])
    records["x"] = ramp(2, 3)
    assert np.transpose(records["x"]).tolist() == ramp(2, 3).T.tolist()


def test_writes_through_results_in_column_order_reach_what_they_reach_in_numpy():
    def f(n, x):
        out = []
        for y in (x.T + 1, n.copy(x.T), x[:, numpy.array([0, 1])], n.zeros_like(x.T), x.sum(0)):
            rows, columns = y.ravel(), y.reshape(-1, order="F")
            rows[1:3] += 10
            columns[2:4] *= 3
            out += [y, rows, columns]
        return out

    for make in (lambda: ramp(2, 3, 4), lambda: numpy.asfortranarray(ramp(2, 3, 4))):
        wanted = f(numpy, make())
        for got in (functionalize(lambda x: f(np, x))(make()), f(np, np.asarray(make()))):
            for a, b in zip(got, wanted, strict=True):
                numpy.testing.assert_array_equal(a, b)


def test_grids_and_sums_of_empty_arrays_lie_in_rows():
    def f(n, x):
        first, second = n.meshgrid(x[0], x[1])
        area = n.trapezoid(x[None, None].T, axis=3)
        for y in (first, second, area):
            y.ravel()[1] = -9
        return [first, second, area]

    wanted = f(numpy, ramp(2, 3))
    for got in (f(np, np.asarray(ramp(2, 3))), functionalize(lambda x: f(np, x))(ramp(2, 3))):
        for a, b in zip(got, wanted, strict=True):
            numpy.testing.assert_array_equal(a, b)


def written(n, x):
    y, z = n.zeros_like(x), n.copy(x) * 2
    y.ravel()[1], z.T.ravel()[1], z.ravel()[2] = 9, 8, 7
    return y + z


INSIDE = {
    "scan": lambda f: lax.scan(lambda c, _: (c, f(1.0)), 0.0, None, length=1)[1][0],
    "while_loop": lambda f: lax.while_loop(lambda c: c[0] < 1, lambda c: (1, f(1.0)), (0, f(1.0)))[
        1
    ],
    "cond": lambda f: lax.cond(numpy.True_, f, lambda s: 0 * f(s), 1.0),
    "vmap": lambda f: vmap(f)(np.ones(1))[0],
    "checkpoint": lambda f: functx.checkpoint(f)(1.0),
    "jit": lambda f: jit(f)(1.0),
    "jit of scan": lambda f: jit(
        lambda s: lax.scan(lambda c, _: (c, f(s)), 0.0, None, length=1)[1][0]
    )(1.0),
}
ORDERS = {
    "rows": lambda: ramp(2, 3),
    "columns": lambda: numpy.asfortranarray(ramp(2, 3)),
    "repeated": lambda: numpy.broadcast_to(ramp(1, 3), (2, 3)),
}


@pytest.mark.parametrize("order", ORDERS)
def test_bodies_see_the_memory_order_of_captured_arrays(order):
    make = ORDERS[order]

    def inside(run):
        # A traced array, a result in its memory order, and an array of NumPy are captured.
        return lambda x: [run(lambda s, y=y: written(np, y) * s) for y in (x, x.T * 1, make())]

    wanted = [written(numpy, x) for x in (make(), make().T * 1, make())]
    for run in INSIDE.values():
        for a, b in zip(functionalize(inside(run))(make()), wanted, strict=True):
            numpy.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("order", ORDERS)
def test_results_computed_from_a_captured_array_of_numpy_have_its_memory_order(order):
    def f(n, s):
        y = ORDERS[order]() * s
        return written(n, y) + written(n, x * s)

    x = ORDERS[order]()
    wanted = f(numpy, numpy.float32(2))
    numpy.testing.assert_array_equal(jit(lambda s: f(np, s))(2.0), wanted)
    numpy.testing.assert_array_equal(make_ir(lambda s: f(np, s))(2.0)(2.0), wanted)
