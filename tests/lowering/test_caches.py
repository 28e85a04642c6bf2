"""What is compiled once, what is held, and for how long."""

import gc
import sys
import weakref
from time import sleep

import jax
import numpy as np
import pytest

import functx
import functx.numpy as fnp
from functx import grad, hessian, jit, jvp, vjp, vmap
from functx.core.caches import Cache
from functx.core.program import Literal
from functx.core.rewriting import cached_rewrite
from functx.lowering import captured_arrays, execution
from functx.ops.arithmetic import Add
from functx.transforms.batching import BatchWithInferredOutDims
from functx.transforms.call_primitive import Call
from functx.transforms.literal_lifting import collect_literals, lift_literals
from tests.lowering.compiling import compilations

X = np.array([0.5, -1.5, 2.0], "float32")


def total(f):
    return lambda x: f(x).sum()


TRANSFORMS = {
    "grad": lambda f: grad(total(f)),
    "vmap": lambda f: vmap(f),
    "jvp": lambda f: lambda x: jvp(f, (x,), (x,))[1],
    "hessian": lambda f: hessian(total(f)),
    "grad of vmap of grad": lambda f: grad(lambda x: vmap(grad(total(f)))(x * 2.0).sum()),
    "jvp of vjp": lambda f: lambda x: jvp(lambda y: vjp(f, y)[1](y)[0], (x,), (x,))[1],
    "grad of jit": lambda f: grad(total(jit(f))),
    "grad of checkpoint": lambda f: grad(total(functx.checkpoint(f))),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_new_function_with_an_equal_program_compiles_nothing(name):
    def call():
        return TRANSFORMS[name](lambda x: fnp.sin(x) * x + 1.25)(X)

    first = call()
    with compilations() as count:
        for _ in range(3):
            np.testing.assert_array_equal(call(), first)
    assert count.n == 0


def loop(body):
    return lambda v: lambda x: functx.lax.fori_loop(0, 2, lambda i, c: body(c, v), x)


BODIES = {
    "a factor": lambda v: lambda x: fnp.sin(x) * v,
    "bounds": lambda v: lambda x: fnp.clip(x, -v, v) * x,
    # Not 5/2, whose power has a program of its own: roots and products.
    "an exponent": lambda v: lambda x: (x * x + 1.0) ** (v + 2.125),
    "a choice": lambda v: lambda x: fnp.where(x > v, x * x, v * x),
    "an array of it": lambda v: lambda x: fnp.full((3,), v) * x,
    "bounds of random numbers": lambda v: (
        lambda x: x * functx.random.uniform(functx.random.key(0), (), minval=0.0, maxval=v)
    ),
    "a loop body": loop(lambda c, v: fnp.sin(c) * v),
    "a loop condition": lambda v: (
        lambda x: functx.lax.while_loop(lambda c: fnp.sum(c * c) < v, lambda c: c * (v + 1.0), x)
    ),
    "a branch": lambda v: (
        lambda x: functx.lax.cond(x.sum() > v, lambda x: x * 3.0, lambda x: x * x * v, x)
    ),
    "a branch in a loop": loop(
        lambda c, v: functx.lax.cond(c.sum() > v, lambda c: c * v, lambda c: c + v, c)
    ),
    "a jitted function": lambda v: lambda x: jit(lambda y: y * y * v)(x),
    "the output": lambda v: lambda x: (x * x) * 0.0 + v,
}


@pytest.mark.parametrize(
    ("transform", "body"),
    [("grad", b) for b in BODIES if b != "a loop condition"]
    + [("vmap", b) for b in ("a loop condition", "bounds", "a branch in a loop")]
    + [("jvp", b) for b in ("a loop condition", "a branch")]
    + [("hessian", "a loop body"), ("grad of checkpoint", "a factor"), ("jvp", "a loop body")],
)
def test_a_number_that_changes_compiles_twice_at_most(transform, body):
    values = [0.25, 0.75, 1.5, 1.75]
    functions = [TRANSFORMS[transform](BODIES[body](v)) for v in values]
    with compilations() as count:
        found = [f(X) for f in functions]
    assert count.n <= 2
    np.testing.assert_allclose(found[-1], jit(functions[-1])(X), rtol=1e-6)
    np.testing.assert_allclose(found[-2], jit(functions[-2])(X), rtol=1e-6)


@pytest.mark.parametrize(
    "kind",
    [float, int, complex, np.float32, np.float16, np.int8, fnp.array, np.array, jax.numpy.asarray],
)
def test_numbers_of_every_kind_compile_twice_at_most(kind):
    numbers = [kind(i + 2) for i in range(4)]
    call = vmap if kind is complex else TRANSFORMS["grad"]
    call(lambda x: x * 2)(X)
    with compilations() as count:
        found = [call(lambda x, v=v: fnp.tan(x) * v)(X) for v in numbers]
    assert count.n <= 2
    np.testing.assert_allclose(found[3] / found[0], 2.5 * np.ones(3), rtol=1e-3)


def test_bools_compile_twice_at_most():
    with compilations() as count:
        found = [
            grad(lambda x, v=v: fnp.where(fnp.logical_and(x > 0.0, v), x, -x).sum())(X)
            for v in (True, False, True, False)
        ]
    assert count.n <= 2
    np.testing.assert_array_equal(found[2], [1, -1, 1])
    np.testing.assert_array_equal(found[3], [-1, -1, -1])


def test_a_number_in_an_unrolled_loop_compiles_twice_at_most():
    def slope(rate):
        def run(x):
            for i in range(12):
                x = x + rate * fnp.sin(x) * X[i % 3]
            return x.sum()

        return grad(run)

    with functx.config.set(outline="always"), compilations() as count:
        found = [slope(rate)(X) for rate in (0.1, 0.2, 0.3, 0.4)]
    assert count.n <= 2
    np.testing.assert_allclose(found[3], jit(slope(0.4))(X), rtol=1e-5)


def test_numbers_that_stay_are_no_inputs():
    functx.clear_caches()
    for v in (2.0, 3.0, 4.0):
        grad(lambda x, v=v: (x * v + 7.0 * x).sum())(X)
    (alike,) = execution.specialization_cache.young_entries.values()
    (variant,) = alike.specializations
    assert [None if a is None else a.value for a in variant.fixed_literals] == [None, 7.0]
    # Another one differs: once more.
    for v in (2.0, 3.0, 4.0):
        grad(lambda x, v=v: (x * v + v * x).sum())(X)
    assert len(alike.specializations) == 2


def test_one_operation_outside_of_transforms_compiles_twice_at_most():
    def run(v):
        return functx.lax.scan(lambda c, _: (c * v, None), X, None, length=2)[0]

    run(3.0)
    with compilations() as count:
        found = [run(v) for v in (4.0, 5.0, 6.0)]
    assert count.n <= 2
    np.testing.assert_allclose(found[2], X * 36.0)


@pytest.mark.parametrize("values", [(2.0, 3.0, 0.0, -1.0, 4.0), (0.0, 2.0, 0.0, 3.0)])
def test_what_a_derivative_asks_of_a_number_holds_for_each(values):
    # The norm, and no other root, has the derivative 0 at 0.
    def slope(v, root):
        return grad(lambda x: root(fnp.sum(x * x), v))(np.zeros(2, "float32"))

    for root in (lambda s, v: fnp.sqrt(v * s), lambda s, v: fnp.sqrt(s + v)):
        found = [slope(v, root) for v in values]
        for v, each in zip(values, found, strict=True):
            functx.clear_caches()
            np.testing.assert_array_equal(each, slope(v, root))


def test_a_rewrite_that_needs_a_number_keeps_it():
    program = functx.make_ir(lambda x: x * 2.5)(X)
    assert [a.value for a in collect_literals(program)] == [2.5]

    def needs(program):
        assert float(collect_literals(program)[0].value)

    assert lift_literals(needs, program, [0]) is None
    found = lift_literals(lambda p: p, program, [0])
    assert [v.aval.shape for v in found.program.inputs] == [(3,), (1,)]
    assert not any(type(a) is Literal for eqn in found.program for a in eqn.inputs)


BIG = 1_000_000


def captured(name, array):
    def f(x):
        return (x * array).sum()

    return {
        "jit": lambda: jit(f),
        "jit in jit": lambda: jit(lambda x: jit(f)(x) * 2.0),
        "jit of grad": lambda: jit(grad(f)),
        "scan": lambda: jit(
            lambda x: functx.lax.scan(lambda c, _: (c + f(c), None), x, None, length=2)[0]
        ),
        "grad": lambda: grad(f),
        "vmap": lambda: lambda x: vmap(f)(fnp.stack([x, x])),
        "custom_jvp": lambda: grad(with_rule(f)),
    }[name]()


def with_rule(f):
    g = functx.custom_jvp(f)
    g.defjvp(lambda primals, tangents: (f(*primals), 2.0 * f(*tangents)))
    return g


CAPTURING = ["jit", "jit in jit", "jit of grad", "scan", "grad", "vmap", "custom_jvp"]


@pytest.mark.parametrize("name", CAPTURING)
@pytest.mark.parametrize("kind", [np.asarray, jax.numpy.asarray])
def test_a_captured_array_goes_with_the_function(name, kind):
    array = kind(np.ones(BIG, "float32"))
    f = captured(name, array)
    f(fnp.array(2.0))
    f(fnp.array(3.0))
    gone = weakref.ref(array)
    del f, array
    # A computation that is still running holds its arguments.
    for _ in range(100):
        gc.collect()
        if gone() is None:
            break
        sleep(0.02)
    assert gone() is None


@pytest.mark.parametrize("name", CAPTURING[:4])
def test_a_captured_array_is_no_constant(name):
    f = captured(name, jax.numpy.ones(BIG, "float32"))
    assert len(f.lower(2.0).as_text()) < 10_000


def test_a_captured_array_of_jax_is_passed_as_it_is():
    array = jax.numpy.ones(2000)
    f = jit(lambda x: x * array)
    f(1.0)
    array.delete()
    with pytest.raises(functx.errors.DonationError, match=r"jit\(lambda\).* f32\[2000\] for `c0`"):
        f(1.0)


def test_captured_arrays_are_found_under_jax_without_jit():
    array = jax.numpy.ones(4)
    with jax.disable_jit():
        assert jit(lambda x: (x * array).sum())(2.0) == 8.0
        assert jax.grad(jit(lambda x: (x * array).sum()))(2.0) == 4.0


def test_a_captured_numpy_array_is_copied_at_the_trace():
    array = np.ones(2)
    f = jit(lambda x: (x * array).sum())
    assert f(1.0) == 2.0
    array[:] = 3.0
    assert f(1.0) == 2.0
    # Outside of jit every call reads it.
    assert grad(lambda x: (x * array).sum())(1.0) == 6.0


@pytest.mark.parametrize("owner", [np.array, fnp.array])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_a_captured_array_that_changes_is_taken_as_it_is_at_each_trace(owner, dtype):
    array, more = owner(np.ones(2, dtype)), owner(np.ones(2, dtype))
    f = jit(lambda x: x + array + (more if x.ndim == 2 else 0))
    inside = jax.jit(lambda x: x + np.asarray(array))
    shapes = [(2,), (1, 2), (3, 2)]
    found = []
    for value, shape in zip([1, 5, 7], shapes, strict=True):
        array[:] = value
        # JAX's own constants of this array do not matter.
        inside(np.zeros(shape, "float32"))
        f(np.zeros(shape, dtype))
        # A program is traced again to be passed more, with what it had.
        found.append([float(np.ravel(f(np.zeros(s, dtype)))[0]) for s in shapes[: len(found) + 1]])
    assert found == [[1.0], [1.0, 6.0], [1.0, 6.0, 8.0]]
    f.clear_cache()
    assert np.ravel(f(np.zeros(2, dtype)))[0] == 7.0


def test_a_captured_array_is_taken_in_the_dtype_of_the_64_bit_switch():
    array = np.array([2**40, 1.5e300])
    f = jit(lambda x: x * array)
    for wide in (False, True, False):
        with jax.enable_x64(wide):
            assert np.isinf(f(np.ones(2, "float32"))[1]) != wide


def test_arrays_that_a_function_makes_do_not_make_it_compile_again():
    table = np.arange(10.0, dtype="float32")
    f = jit(lambda x: (x * table[2:3]).sum() + table.sum() + np.float32(x.shape[0]))
    with compilations() as count:
        for _ in range(3):
            assert [f(np.ones(n, "float32")) for n in (3, 4)] == [54.0, 57.0]
    assert count.n <= 2 + 1


@pytest.fixture(params=["reference counts", "second trace"])
def locality(request, monkeypatch):
    """How `jit` tells arrays that a function makes from those that it captures."""
    if request.param == "second trace":
        monkeypatch.setattr(captured_arrays, "COUNT_OF_LOCAL", 0)
    return request.param


def test_arrays_from_outside_are_arguments_and_those_made_inside_are_constants(locality):
    # Smaller arrays from outside are constants too.
    outside, traces = np.full(2048, 2.0**-11, "float32"), []

    def f(x):
        traces.append(x.shape)
        inside = np.full(2048, 2.0**-10, "float32")
        total = x.sum()
        return (total * inside + total * outside).sum() + fnp.array([1.0, 2.0]).sum()

    g = jit(f)
    for _ in range(3):
        assert g(np.ones(4, "float32")) == 15.0
        assert g(np.ones((2, 4), "float32")) == 27.0
    # Those made inside are not among the arguments of later calls.
    lowered = g.lower(np.ones(4, "float32"))
    assert len(lowered._call.captured) == 1
    assert len(traces) == {"reference counts": 3, "second trace": 6}[locality]


def test_a_captured_array_that_changes_is_new_to_the_next_trace(locality):
    outside = np.ones(3, "float32")
    g = jit(lambda x: x + outside + np.zeros(3, "float32"))
    assert g(np.zeros(3, "float32"))[0] == 1.0
    outside[:] = 5.0
    assert g(np.zeros((1, 3), "float32"))[0, 0] == 5.0
    assert g(np.zeros(3, "float32"))[0] == 1.0


def test_the_count_of_an_object_that_only_a_list_holds_is_known():
    shared = np.ones(3)
    assert captured_arrays.local_mask([np.ones(3), shared, np.ones(3)]) == [True, False, True]
    assert captured_arrays.local_mask([]) == []


@pytest.mark.parametrize("interpreter", ["pypy", "free-threaded"])
def test_reference_counts_are_not_used_where_they_mean_something_else(interpreter, monkeypatch):
    if interpreter == "pypy":
        monkeypatch.setattr(sys.implementation, "name", "pypy")
    else:
        monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    assert captured_arrays._count_of_local() == 0


def test_a_cache_keeps_what_is_asked_for():
    cache = Cache("test", 8)
    cache.put("kept", 1)
    for i in range(100):
        cache.put(i, i)
        assert cache.get("kept") == 1
        assert cache.info().size <= 8
    assert cache.get(0) is None
    assert cache.info()[:2] == (100, 1)


def test_programs_without_end_take_no_memory_without_end(monkeypatch):
    monkeypatch.setattr(execution.program_cache, "limit", 8)
    monkeypatch.setattr(execution.specialization_cache, "limit", 8)
    functions = []
    for n in range(1, 25):
        grad(lambda x: (x * x).sum())(np.ones(n, "float32"))
        functions += [weakref.ref(f) for f in execution.program_cache.young_entries.values()]
    gc.collect()
    assert functx.cache_info()["programs"].size <= 8
    assert len({f for f in functions if f() is not None}) <= 8


def test_types_and_rewrites_that_are_remembered_are_few():
    for n in range(2000):
        Add().infer_out_avals((functx.ShapedArray((n,), np.dtype("float32")),) * 2)
    assert len(Add().out_avals_memo) <= 1024
    program = functx.make_ir(lambda x: x + 1.0)(X)
    for n in range(600):
        cached_rewrite(BatchWithInferredOutDims(n, (0,)), program)
    assert len(program.memo) <= 512


def test_a_primitive_that_its_program_remembers_goes_with_it():
    program = functx.make_ir(lambda x: x * x)(X)
    call = Call(program)
    assert Call(program) is call
    program.memo["test"] = call
    gone = weakref.ref(program), weakref.ref(call)
    del program, call
    gc.collect()
    assert [x() for x in gone] == [None, None]


def test_equal_primitives_are_one_even_if_their_hashes_collide():
    first, second = (functx.ops.powers.IntegerPow(n) for n in (-1, -2))
    assert hash(-1) == hash(-2)
    assert first is not second
    assert first is functx.ops.powers.IntegerPow(-1)
    assert {first, second} <= set(type(first)._instances.values())


def test_cache_info_shows_a_table_and_clear_caches_empties_it():
    f = jit(lambda x: x * 3.25)
    f(X)
    grad(lambda x: x * 3.5)(1.0)
    info = functx.cache_info()
    assert {"programs", "numbers", "operations", "jit", "primitives", "details"} <= info.keys()
    assert repr(info).splitlines()[0].split() == ["hits", "misses", "size", "limit"]
    assert all(row.size <= row.limit for name, row in info.items() if name == "programs")
    described = " ".join(functx.cache_info.__doc__.split())
    assert [name for name in info if f'"{name}"' not in described] == []
    functx.clear_caches()
    assert functx.cache_info()["programs"][:3] == (0, 0, 0)
    with compilations() as count:
        f(X)
    assert count.n == 1


def test_a_switch_set_to_what_it_was_forgets_nothing():
    f = functx.jit(lambda x: x * 3.0)
    f(1.0)
    before = functx.cache_info()
    with functx.config.set(outline=functx.config.outline, simplify=functx.config.simplify):
        assert functx.cache_info() == before


def test_a_jitted_function_inside_a_trace_follows_the_64_bit_switch():
    inner = jit(lambda x: (fnp.zeros(2) + 1.0, fnp.arange(2), fnp.sum(x > 0)))
    for wide, dtypes in (
        (False, ["f32", "i32", "i32"]),
        (True, ["f64", "i64", "i64"]),
        (False, None),
    ):
        dtypes = dtypes or ["f32", "i32", "i32"]
        with jax.enable_x64(wide):
            for outs in (functx.make_ir(inner)(X).out_avals, jit(inner)(X), inner(X)):
                found = [np.dtype(y.dtype) for y in outs]
                assert [f"{d.kind}{8 * d.itemsize}" for d in found] == dtypes
