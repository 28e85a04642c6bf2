"""Custom operators that write to their arguments, and the errors for aliased results."""

import jax
import jax.numpy as jnp
import numpy
import pytest

import functx
from functx import Array, custom_op, functionalize, grad, jit, library, make_ir
from functx import numpy as np
from functx.core.errors import (
    CapturedWriteError,
    ImmutableArrayError,
    NoAutogradFormulaError,
    OperatorRuleError,
    SchemaError,
)
from functx.custom.operators.kernels import ArrayRef
from tests.custom.operators import scope  # noqa: F401

x = numpy.arange(4, dtype="float32")


def add_to(kernel="jax", mutates_args=("x",), decomposition=None):
    @custom_op("test::add_to", mutates_args=mutates_args, kernel=kernel,
               decomposition=decomposition, allow_override=True)  # fmt: skip
    def add_to(x: Array, y: Array, z: Array | None = None) -> Array:
        x[...] = x + y
        x[0] = 10.0
        return x.sum()

    if decomposition is None:
        add_to.def_abstract(lambda x, y, z: jax.ShapeDtypeStruct((), x.dtype))
    return add_to


ways = pytest.mark.parametrize(
    "op", [lambda: add_to("jax"), lambda: add_to("numpy"), lambda: add_to(decomposition=True)],
    ids=["jax", "numpy", "decomposition"],
)  # fmt: skip


@ways
def test_only_mutates_args_are_written(op):
    op = op()
    for run in (op, jit(op), jax_like(op)):
        a, b = x.copy(), x.copy()
        assert run(a, b) == 22.0
        assert a.tolist() == [10.0, 2.0, 4.0, 6.0] and b.tolist() == x.tolist()


def jax_like(op):
    """The operator inside a function that is compiled twice over."""
    return jit(lambda a, b: jit(op)(a, b))


@ways
def test_writes_are_seen_through_views(op):
    op = op()

    def f(a):
        op(a[1:3], np.ones(2), None)
        first = a[0:2].sum()
        op(a.reshape(2, 2)[1], a[:2])
        return first, a * 1

    plain = f(np.array(x))
    assert [numpy.asarray(v).tolist() for v in plain] == [10.0, [0.0, 10.0, 10.0, 13.0]]
    for run in (jit(f), functionalize(f)):
        given = x.copy()
        first, rest = run(given)
        assert first == 10.0 and rest.tolist() == given.tolist() == [0.0, 10.0, 10.0, 13.0]


@ways
def test_a_program_is_pure_after_functionalize(op):
    op = op()
    program = make_ir(functionalize(lambda a: op(a, a)))(x)
    assert not program.writes and "test::add_to" in str(program)
    assert functx.Program.parse(str(program)) == program
    result, (new,) = program(x)
    assert result == 22.0 and new.tolist() == [10.0, 2.0, 4.0, 6.0]


def test_writes_in_loops_are_carried():
    op = add_to("numpy")

    @jit
    def f(total, y):
        functx.lax.fori_loop(0, 3, lambda i, _: (op(total, y), None)[1], None)

    total = x.copy()
    f(total, x)
    assert total.tolist() == [10.0, 4.0, 8.0, 12.0]


def test_all_arrays_may_be_written_where_it_is_not_known_which_are():
    @custom_op("test::unknown", mutates_args="unknown", kernel="numpy")
    def unknown(x: Array, ys: list[Array], n: int) -> None:
        ys[1] *= n

    assert str(unknown.schema) == "(Array(a!) x, Array(b!)[] ys, int n) -> ()"
    unknown.def_abstract(lambda x, ys, n: None)
    for run in (unknown, lambda *args: jit(lambda x, ys: unknown(x, ys, 3))(*args[:2])):
        a, b, c = x.copy(), x.copy(), x.copy()
        assert run(a, [b, c], 3) is None
        assert a.tolist() == b.tolist() == x.tolist() and c.tolist() == (3 * x).tolist()


def test_none_is_not_written():
    @custom_op("test::optional", mutates_args={"x", "y"}, kernel="numpy")
    def optional(x: Array, y: Array | None = None) -> None:
        x += 1
        if y is not None:
            y += 2

    optional.def_abstract(lambda x, y: None)
    a, b = x.copy(), x.copy()
    optional(a), jit(optional)(a), jit(optional)(a, b)
    assert a.tolist() == (x + 3).tolist() and b.tolist() == (x + 2).tolist()


@pytest.mark.parametrize("given", [jnp.ones(4), 1.0, (1.0,)])
def test_an_argument_that_is_not_writable_is_refused(given):
    op = add_to()
    with pytest.raises(
        (ImmutableArrayError, functx.errors.ArgumentError), match=r"test::add_to: `x`"
    ):
        op(given, x)
    read_only = x.copy()
    read_only.flags.writeable = False
    with pytest.raises(ImmutableArrayError, match=r"got a read-only array"):
        op(read_only, x)
    with pytest.raises(ImmutableArrayError):
        jit(op)(read_only, x)


def test_arrays_from_outside_of_a_trace_are_not_written():
    op = add_to()
    with pytest.raises(CapturedWriteError):
        jit(lambda y: op(x, y))(x)
    with pytest.raises(ImmutableArrayError):
        jit(lambda y: op(np.broadcast_to(y, (4,)), x))(1.0)


def test_an_array_of_another_dtype_keeps_it():
    given = numpy.arange(4)
    with jax.enable_x64(False):
        add_to("numpy")(given, numpy.ones(4, "int64"))
    assert given.dtype == numpy.int64 and given.tolist() == [10, 2, 3, 4]


def test_jax_code_reads_and_writes_references():
    @custom_op("test::places", mutates_args={"x"})
    def places(x: Array, y: Array) -> Array:
        z = jnp.sin(x[...]) + x * y + jnp.where(x > 0, x[...], y)
        x -= 1
        x[1:] *= 2
        x[0] = z[0]
        x[...] **= 2
        return z + x.mean() + x[1] + len(x) + x.shape[0] - abs(x).max() + 2.0 * x

    places.def_abstract(lambda x, y: x)
    y = numpy.ones(4, "float32")
    expected = x.copy()
    result = places.__wrapped__(expected, y)
    for run in (places, jit(places)):
        given = x.copy()
        assert np.allclose(run(given, y), result, rtol=1e-5)
        assert given.tolist() == pytest.approx(expected.tolist())
    assert repr(ArrayRef(1.0)) == "ArrayRef(1.0)"


def test_a_reference_is_a_value_for_functx_and_none_for_jax():
    @custom_op("test::place", mutates_args={"x"})
    def place(x: Array) -> None:
        x[...] = jnp.sin(x)

    @custom_op("test::sine", mutates_args={"x"})
    def sine(x: Array) -> None:
        x[...] = np.sin(x)

    with pytest.raises(OperatorRuleError, match=r"read a mutated argument as x\[...\]"):
        place(x.copy())
    written = x.copy()
    sine(written)
    numpy.testing.assert_allclose(written, numpy.sin(x), rtol=1e-6)


def test_an_implementation_that_fails_has_changed_nothing():
    @custom_op("test::fails", mutates_args={"x"}, kernel="numpy")
    def fails(x: Array, y: Array) -> Array:
        x += y
        return x

    given = x.copy()
    with pytest.raises(OperatorRuleError):
        fails(given, x)
    assert given.tolist() == x.tolist()


def test_arguments_that_share_memory_are_read_before_the_write():
    @custom_op("test::shift", mutates_args={"x"}, kernel="numpy")
    def shift(x: Array, y: Array) -> None:
        for i in range(3):
            x[i] += y[i]

    shift.def_abstract(lambda x, y: None)

    def f(a):
        shift(a[1:], a[:-1])

    for run in (f, jit(f)):
        a = x.copy()
        run(a)
        assert a.tolist() == [0.0, 1.0, 3.0, 5.0]


def test_there_is_no_derivative_through_a_mutated_argument():
    op = add_to()

    def f(x):
        y = x * 1.0
        op(y, x)
        return y.sum()

    with pytest.raises(NoAutogradFormulaError, match=r"test::add_to"):
        grad(f)(x)
    assert grad(lambda x: (f(functx.stop_gradient(x)) + x).sum())(x).tolist() == [1.0] * 4


def test_a_decomposition_that_writes_is_differentiated():
    op = add_to(decomposition=True)

    def f(x):
        y = x * 1.0
        return op(y, x) + (y * y).sum()

    def same(x):
        y = (2 * x).at[0].set(10.0)
        return y.sum() + (y * y).sum()

    assert grad(f)(x).tolist() == grad(same)(x).tolist()


@pytest.mark.parametrize(
    ("fun", "mutates_args"),
    [
        (lambda x: x, ()),
        (lambda x: x, ("x",)),
        (lambda x: (x.__setitem__(0, 1.0), x)[1], ("x",)),
    ],
)
@pytest.mark.parametrize("kernel", ["jax", "numpy", None])
def test_results_are_no_arguments(fun, mutates_args, kernel):
    options = {"decomposition": True} if kernel is None else {"kernel": kernel}
    schema = f"(Array{'(a!)' * bool(mutates_args)} x) -> Array"
    op = custom_op("test::same", schema=schema, **options)(fun)
    if kernel is not None:
        op.def_abstract(lambda x: x)
    for run in (op, jit(op)):
        with pytest.raises(RuntimeError, match=r"the result is an argument, or a view of one") as e:
            run(x.copy())
        assert isinstance(e.value, OperatorRuleError) and "Return a copy" in str(e.value)
        assert "test_operators_writes.py:" in str(e.value)


def test_results_are_no_views():
    views = custom_op("test::view", kernel="numpy", schema="(Array x, int n) -> Array[]")(
        lambda x, n: [x * 1, x[n:]]
    )
    with pytest.raises(RuntimeError, match=r"the result\[1\] is an argument, or a view of one"):
        views(x, 1)
    composite = custom_op("test::composite", decomposition=True, schema="(Array x) -> Array")(
        lambda x: x.reshape(2, 2).T
    )
    for run in (composite, jit(composite)):
        with pytest.raises(RuntimeError, match=r"an argument, or a view of one"):
            run(x.copy())


def test_arrays_of_jax_may_be_taken_as_copies():
    op = custom_op("test::same", schema="(Array x) -> Array")(lambda x: x)
    op.def_abstract(lambda x: x)
    with functx.config.set(operator_aliases="copy"):
        assert op(jnp.asarray(x)).tolist() == jit(op)(x).tolist() == x.tolist()
    with pytest.raises(RuntimeError):
        op(jnp.asarray(x))


def test_a_decomposition_writes_only_to_mutates_args():
    op = custom_op("test::f", decomposition=True, schema="(Array x) -> Array")(
        lambda x: (x.__setitem__(0, 1.0), x * 2)[1]
    )
    given = x.copy()
    for run in (op, jit(op)):
        with pytest.raises(
            ImmutableArrayError, match=r"must write only to the arguments in mutates_args"
        ):
            run(given)
    assert given.tolist() == x.tolist()


def test_an_inplace_operator_returns_its_mutated_argument():
    @custom_op("test::double", mutates_args={"x"}, tags=["inplace"], kernel="numpy")
    def double(x: Array, n: int = 2) -> Array:
        x *= n
        return x

    assert str(double.schema) == "(Array(a!) x, int n=2) -> Array(a!)"
    double.def_abstract(lambda x, n: x)
    a = x.copy()
    assert double(a) is a and a.tolist() == (2 * x).tolist()

    def f(a):
        b = double(a, 3)
        b += 1.0
        return a.sum()

    for run in (f, jit(f)):
        a = x.copy()
        assert run(a) == 22.0 and a.tolist() == (3 * x + 1).tolist()

    for kernel in ("jax", "numpy"):
        wrong = custom_op("test::wrong", mutates_args={"x"}, tags=["inplace"], kernel=kernel,
                          schema="(Array(a!) x) -> Array", allow_override=True)(lambda x: x * 2)  # fmt: skip
        wrong.def_abstract(lambda x: x)
        for run in (wrong, jit(wrong)):
            with pytest.raises(RuntimeError, match=r"return its argument `x` for the result"):
                run(x.copy())


def test_an_operator_with_out_returns_its_keyword_only_arrays():
    @custom_op("test::both", mutates_args={"first", "second"}, tags=["out"])
    def both(x: Array, *, first: Array, second: Array) -> tuple[Array, Array]:
        first[...] = x + 1
        second[...] = x + 2
        return first, second

    both.def_abstract(lambda x, *, first, second: (first, second))
    a, b = x.copy(), x.copy()
    assert both(x, first=a, second=b)[1] is b
    assert a.tolist() == (x + 1).tolist() and b.tolist() == (x + 2).tolist()
    jit(lambda x, a, b: both(x, first=a, second=b)[0].sum())(2 * x, a, b)
    assert b.tolist() == (2 * x + 2).tolist()
    with pytest.raises(NotImplementedError, match=r"keyword-only array"):
        both.register_autograd(lambda ctx, g: g)
    with pytest.raises(NoAutogradFormulaError):
        grad(lambda x: both(x, first=np.zeros(4), second=np.zeros(4))[0].sum())(x)


@pytest.mark.parametrize(
    ("schema", "tags", "message"),
    [
        ("(Array x, Array(a!) y) -> Array", ["inplace"], "write to its first array, and to nothing else"),
        ("(Array(a!) x, Array(b!) y) -> Array", ["inplace"], "write to its first array, and to nothing else"),
        ("(Array(a!) x) -> (Array, Array)", ["inplace"], "return one array, the one that it writes to"),
        ("(Array x, Array(a!) out) -> Array", ["out"], "write to keyword-only arrays alone"),
        ("(Array x, *, Array y, Array(a!) out) -> Array", ["out"], "all of its keyword-only arrays"),
        ("(Array x, *, Array(a!) out) -> (Array, Array)", ["out"], "an array for each one that it writes to"),
        ("(Array(a!) x) -> Array", ["inplace", "out"], "must be tagged inplace or out; got both"),
    ],
)  # fmt: skip
def test_tags_say_what_an_operator_must_do(schema, tags, message):
    arguments = library.Schema.parse(schema).arguments
    plain = ", ".join(a.name for a in arguments if not a.keyword_only)
    named = "".join(f", {a.name}" for a in arguments if a.keyword_only)
    fun = eval(f"lambda {plain}{', *' if named else ''}{named}: None")
    with pytest.raises(SchemaError, match=message):
        custom_op("test::f", schema=schema, tags=tags)(fun)


def test_an_unknown_tag_is_refused():
    with pytest.raises(TypeError, match=r"tags must be among 'inplace', 'out'; got 'pure'"):
        custom_op("test::f", schema="(Array x) -> Array", tags=["pure"])(lambda x: x)
