"""Programs written for JAX, with functx in its place: `import functx as jax`."""

import array
import enum
import importlib

import jax as jax_itself
import jax.numpy as original
import numpy as onp
import pytest

import functx as jax
import functx.numpy as jnp
from functx import errors
from functx.flatten_util import ravel_pytree

MODULES = [
    "sharding",
    "profiler",
    "stages",
    "dtypes",
    "dlpack",
    "monitoring",
    "distributed",
    "typing",
]


@pytest.mark.parametrize("name", MODULES)
def test_modules_of_devices_and_settings_are_jax_s(name):
    ours, theirs = (importlib.import_module(f"{package}.{name}") for package in ("functx", "jax"))
    assert ours is theirs is getattr(jax, name)


def test_traced_values_of_both_are_instances_of_the_tracer_of_core():
    assert jax.core.ShapedArray is jax.ShapedArray and jax.__version_info__ >= (0, 5)
    assert jax.__version__ == importlib.import_module("jax").__version__
    seen = []
    for library in (jax, importlib.import_module("jax")):
        library.make_jaxpr(lambda x: seen.append(isinstance(x, jax.core.Tracer)) or x)(1.0)
    assert seen == [True, True]
    with pytest.raises(AttributeError, match="in its place write"):
        jax.core.eval_jaxpr  # noqa: B018


def test_a_function_is_jitted_for_a_device():
    device = jax.devices()[0]
    with pytest.warns(DeprecationWarning, match="device argument"):
        f = jax.jit(lambda x: x + 1, device=device)
    assert f(2.0).devices() == {device} and jax.jit(f, backend=None, device=None)(2.0) == 3.0


class Step(enum.IntEnum):
    LAST = 2


class Meters(float):
    """A number of a class of the user."""


def test_numbers_of_subclasses_are_numbers():
    ones = jnp.ones(2, int)
    onp.testing.assert_array_equal(jnp.array([Step.LAST, 1]), [2, 1])
    onp.testing.assert_array_equal(ones * Step.LAST == Step.LAST, [True, True])
    assert jnp.result_type(Step.LAST, jnp.int8) == "int8" and jnp.sin(Meters(0)) == 0
    clipped = [jax.make_ir(lambda x, n=n: jnp.where(x > n, n, x))(ones) for n in (2, Step.LAST)]
    assert repr(clipped[0]) == repr(clipped[1])
    slopes = [jax.make_ir(jax.grad(lambda x, n=n: x * n))(n) for n in (3.0, Meters(3.0))]
    assert repr(slopes[0]) == repr(slopes[1])


def test_devices_and_values_are_handled_by_jax():
    x = jax.device_put(jnp.arange(3.0), jax.devices()[0])
    tree = jax.block_until_ready({"x": x, "y": jnp.ones(2)})
    assert isinstance(jax.device_get(tree)["x"], onp.ndarray)
    assert jax.eval_shape(jnp.sin, jax.ShapeDtypeStruct((3,), "float32")).shape == (3,)
    assert jax.typeof(x).shape == (3,)


def test_a_device_put_in_a_transformed_function_stays():
    def f(x):
        return (jax.device_put(x, jax.devices()[0]) ** 2).sum()

    onp.testing.assert_allclose(jax.jit(jax.grad(f))(jnp.arange(3.0)), [0, 2, 4])
    onp.testing.assert_allclose(jax.vmap(f)(jnp.ones((2, 3))), [3, 3])


@pytest.mark.parametrize(
    ("name", "f"),
    [
        ("ConcretizationTypeError", lambda x: float(x[0])),
        ("TracerBoolConversionError", lambda x: 1 if x[0] > 0 else 2),
        ("TracerIntegerConversionError", lambda x: "abc"[x[0].astype(int)]),
        ("TracerArrayConversionError", onp.asarray),
        ("NonConcreteBooleanIndexError", lambda x: x[x > 0]),
        ("JAXTypeError", onp.asarray),
    ],
)
def test_an_error_is_caught_by_the_name_that_jax_gives_it(name, f):
    with pytest.raises(getattr(errors, name)) as caught:
        jax.jit(f)(jnp.ones(3))
    # Libraries catch JAX's own classes.
    if name not in ("NonConcreteBooleanIndexError", "JAXTypeError"):
        assert isinstance(caught.value, getattr(jax_itself.errors, name))


@jax.tree_util.register_pytree_node_class
class Pair:
    def __init__(self, first, second):
        self.first, self.second = first, second

    def tree_flatten(self):
        return (self.first, self.second), None

    @classmethod
    def tree_unflatten(cls, data, children):
        return cls(*children)


def test_a_registered_class_is_a_node_of_both_namespaces():
    doubled = jax.tree_util.tree_map(lambda x: 2 * x, Pair(1, [2]))
    assert jax.tree.leaves(doubled) == jax.tree_util.tree_leaves(doubled) == [2, 4]
    grads = jax.grad(lambda p: p.first * p.second[0])(Pair(1.0, [3.0]))
    assert (float(grads.first), float(grads.second[0])) == (3, 1)


class TestRavelPytree:
    mixed = (onp.ones(2, "f4"), {"n": onp.ones((2, 2), "i4"), "z": onp.ones((0, 3), "c8")}, 1.0)

    def test_leaves_come_back_in_their_shapes_and_dtypes(self):
        vector, unravel = ravel_pytree(self.mixed)
        assert (vector.shape, vector.dtype) == ((7,), onp.complex64)
        back = jax.tree.leaves(unravel(vector))
        assert [x.dtype.char for x in back] == ["f", "i", "F", "f"]
        assert [x.shape for x in back] == [(2,), (2, 2), (0, 3), ()]

    def test_one_dtype_may_come_back_in_another(self):
        _, unravel = ravel_pytree([jnp.ones(2), jnp.ones(())])
        assert unravel(jnp.ones(3, "float16"))[0].dtype == onp.float16

    def test_functions_of_one_structure_are_equal(self):
        unravel, other = ravel_pytree(self.mixed)[1], ravel_pytree(self.mixed)[1]
        assert unravel == other
        assert hash(unravel) == hash(other)

    def test_under_transforms(self):
        def f(x):
            vector, unravel = ravel_pytree({"a": x, "b": 2 * x})
            return unravel(vector**2)["b"].sum()

        x = jnp.arange(6.0).reshape(2, 3)
        onp.testing.assert_allclose(jax.jit(jax.vmap(jax.grad(f)))(x), 8 * x)
        onp.testing.assert_allclose(jax.hessian(f)(x[0]), 8 * onp.eye(3))

    def test_other_vectors_are_refused(self):
        _, unravel = ravel_pytree(self.mixed)
        with pytest.raises(errors.ShapeError, match="must have the 7 elements"):
            unravel(jnp.ones(6, complex))
        with pytest.raises(errors.DTypeError, match="must have the dtype"):
            unravel(jnp.ones(7))

    def test_no_leaves(self):
        vector, unravel = ravel_pytree({})
        assert (vector.shape, vector.dtype, unravel(vector)) == ((0,), onp.float32, {})


def test_options_of_jax_are_set_by_their_names():
    assert jax.config.jax_enable_x64 is False is jax.config.x64_enabled
    with pytest.raises(AttributeError, match="config has no option 'x64_disabled'"):
        _ = jax.config.x64_disabled
    jax.config.update("jax_enable_x64", True)
    try:
        assert jnp.ones(1).dtype == onp.float64
    finally:
        jax.config.jax_enable_x64 = False
    with pytest.raises(AttributeError, match="no option 'nonsense'"):
        _ = jax.config.nonsense


def test_make_jaxpr_gives_a_program():
    program, shape = jax.make_jaxpr(lambda x, n: x * n, static_argnums=1, return_shape=True)(2.0, 3)
    assert (len(program.inputs), shape.shape, program(2.0)) == (1, (), 6)
    summed = jax.make_jaxpr(lambda x: jax.lax.psum(x, "i"), axis_env=[("i", 4)])(1.0)
    assert "psum" in str(summed)


def test_a_function_is_split_into_its_forward_and_backward_computation():
    forward, backward = jax.fwd_and_bwd(lambda x, y: jnp.sin(x["a"]) @ y, 1)
    x, y = {"a": onp.eye(3, dtype="f")}, onp.ones(3, "f")
    out, residuals = forward(x, y)
    onp.testing.assert_allclose(out, onp.full(3, onp.sin(1.0)), rtol=1e-6)
    onp.testing.assert_allclose(backward(residuals, y), onp.full(3, onp.sin(1.0)), rtol=1e-6)
    slopes = jax.grad(lambda a: backward(forward({"a": a}, y)[1], y).sum())(x["a"])
    onp.testing.assert_allclose(slopes, onp.cos(x["a"]), rtol=1e-6)
    forward, backward = jax.fwd_and_bwd(
        lambda x, n, y: (x * y, n), (0, 2), has_aux=True, jitted=False
    )
    out, residuals, aux = forward(2.0, "n", 3.0)
    assert (out, aux, backward(residuals, 1.0)) == (6, "n", (3, 2))
    with pytest.raises(errors.ArgnumsError, match="got 3 for 1 of them"):
        jax.fwd_and_bwd(jnp.sin, 3)[0](1.0)


def test_pmap_goes_with_transforms():
    x = jnp.full((1,), 3.0)
    assert jax.grad(lambda x: jax.pmap(lambda y: y * y)(x).sum())(x)[0] == 6
    assert jax.pmap(jax.grad(lambda y: y * y))(x)[0] == 6
    assert jax.pmap(lambda y: jax.lax.psum(y, "i") * 2, axis_name="i")(x)[0] == 6


def test_switches_for_debugging_hold():
    with jax.disable_jit():
        assert jax.jit(lambda x: 1 if x > 0 else 2)(1.0) == 1
    with jax.debug_nans(True), pytest.raises(FloatingPointError, match="log"):
        jax.jit(jnp.log)(-1.0)


def test_saved_residuals_are_printed(capsys):
    def f(x, w):
        with jax.named_scope("layer"):
            y = jnp.sin(x @ w["a"])
        return (y * y).sum()

    jax.ad_checkpoint.print_saved_residuals(f, onp.eye(2), {"a": onp.eye(2)})
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("f32[2,2]  sin, layer: ") for line in lines)
    assert {"f32[2,2]  argument x", "f32[2,2]  argument w['a']"} <= {*lines}


def test_values_are_logged_when_the_program_runs(caplog):
    with caplog.at_level("INFO", "functx.debug"):
        jax.jit(lambda x: jax.debug.log("x = {}", x))(3.0)
        jax.effects_barrier()
    assert caplog.messages == ["x = 3.0"]


class TestRef:
    def test_reads_are_copies(self):
        ref = jax.new_ref(jnp.arange(3.0))
        before = ref[...]
        ref[0] = 5.0
        assert (before[0], ref[0], ref.swap(9.0, 2), ref.shape, ref.size) == (0, 5, 2, (3,), 3)
        assert jax.ref.get(ref).tolist() == [5, 1, 9]

    def test_writes_of_a_jitted_function_are_seen(self):
        @jax.jit
        def f(matrix, number):
            matrix[1] = number[...] * 2
            number.addupdate(1.0)
            return matrix[0]

        matrix, number = jax.new_ref(jnp.arange(2.0)), jax.new_ref(3.0)
        for expected in ([0, 6], [0, 8]):
            f(matrix, number)
            assert matrix[...].tolist() == expected
        assert (number[...], number.shape) == (5, ())

    def test_a_reference_to_an_array_of_jax_is_written_to(self):
        values = original.arange(2.0)
        ref = jax.new_ref(values)
        ref[0] = 5.0
        jax.jit(lambda x: x.set(7.0, 1)).lower(ref).compile()(ref)
        assert (ref[...].tolist(), values.tolist()) == ([5, 7], [0, 1])

    @pytest.mark.parametrize("rule", ["forward", "backward", "jvp"])
    def test_a_rule_does_not_write_to_a_reference_that_it_gets(self, rule):
        def f(ref, x):
            return x * 2

        def written(ref, out):
            ref[...] = 1.0
            return out

        if rule == "jvp":
            f = jax.custom_jvp(f)
            f.defjvp(lambda primals, ts: (written(primals[0], f(*primals)), ts[1]))
        else:
            f = jax.custom_vjp(f)
            forward = (lambda ref, x: (written(ref, x), ref)) if rule == "forward" else None
            f.defvjp(forward or (lambda ref, x: (x, ref)), lambda ref, g: written(ref, (None, g)))
        ref = jax.new_ref(0.0)
        with pytest.raises(errors.ArgumentWriteError, match="must not write to a `Ref`"):
            jax.jvp(f, (ref, 1.0), (ref, 1.0)) if rule == "jvp" else jax.grad(f, 1)(ref, 1.0)

    def test_derivatives_of_loops_that_write(self):
        def total(x):
            found = jax.new_ref(0.0)
            jax.lax.fori_loop(0, 3, lambda i, _: found.addupdate(jnp.sin(x[i])), None)
            return jax.freeze(found)

        x = onp.arange(6.0, dtype="f").reshape(2, 3)
        onp.testing.assert_allclose(jax.jit(jax.vmap(jax.grad(total)))(x), onp.cos(x), rtol=1e-6)

    def test_functions_read_and_write_a_reference_from_around_them(self):
        total, count = jax.new_ref(jnp.zeros(2)), jax.new_ref(0)

        def add(x):
            count[...] += 1
            total[0] += x
            return x * total[0]

        def add_rows(xs):
            return jax.lax.scan(lambda carry, x: (carry + add(x), None), 0.0, xs)[0]

        assert [float(jax.jit(add)(2.0)) for _ in range(2)] == [4, 8]
        total[0] = 1.0
        assert float(jax.jit(add_rows)(jnp.ones(3))) == 2 + 3 + 4
        assert float(jax.lax.cond(True, add, lambda x: x, 1.0)) == 5
        assert float(jax.grad(add)(2.0)) == 7 + 2
        assert jax.jit(jax.value_and_grad(jax.jit(add)))(1.0) == (8, 9)
        assert (total[...].tolist(), int(count[...])) == ([8, 0], 8)

    def test_a_reference_around_mapped_calls_is_read_and_not_written_to(self):
        ref = jax.new_ref(2.0)
        scale = jax.jit(jax.vmap(lambda x: x * ref[...]))
        assert scale(jnp.ones(2)).tolist() == [2, 2]
        ref[...] = 3.0
        assert scale(jnp.ones(2)).tolist() == [3, 3]
        for f in (ref.addupdate, jax.jit(ref.addupdate)):
            with pytest.raises(
                errors.CapturedWriteError, match="must not write to a `Ref` from around"
            ):
                jax.vmap(f)(jnp.ones(2))
        with pytest.raises(errors.ArgumentError, match="JAX traces must not use a `Ref`"):
            jax_itself.jit(lambda: jnp.sin(ref[...]))()
        with pytest.raises(errors.ExportError, match="must not capture a `Ref`"):
            jax.export.export(jax.jit(lambda: ref[...]))()
        assert float(ref[...]) == 3

    @pytest.mark.parametrize("transform", [jax.jit, jax.functionalize, jax.value_and_grad])
    def test_a_reference_is_not_passed_to_a_function_that_captures_it_and_writes(self, transform):
        ref = jax.new_ref(jnp.zeros(2))

        def f(x, same):
            same[0] = 1.0
            ref[1] = x
            return x

        with pytest.raises(errors.ArgumentError):
            transform(f)(2.0, ref)
        assert ref[...].tolist() == [0, 0]

    def test_a_branch_does_not_write_to_an_operand_that_it_captures(self):
        x = jnp.zeros(2)

        def branch(y):
            y[0] = 1.0
            return x[0]

        with pytest.raises(errors.ArgumentError, match="shares memory"):
            jax.lax.cond(True, branch, branch, x)

    def test_a_frozen_reference_is_not_used(self):
        ref = jax.empty_ref(jax.ShapeDtypeStruct((2,), "float32"))
        jax.ref.set(ref, None, 1.0)
        jax.ref.addupdate(ref, 0, 2.0)
        assert jax.ref.swap(ref, 0, 0.0) == 3
        assert jax.freeze(ref).tolist() == [0, 1]
        with pytest.raises(errors.ArgumentError, match="must not be used after freeze"):
            ref[0]


def test_the_stages_of_a_jitted_function():
    table = onp.arange(3.0)
    jitted = jax.jit(lambda x, n: {"y": x * n + table}, static_argnums=1)
    lowered = jitted.lower(jnp.ones(3), 2)
    compiled = lowered.compile()
    assert compiled(jnp.ones(3))["y"].tolist() == [2, 3, 4]
    for stage in (lowered, compiled):
        (info,), keywords = stage.args_info
        assert (info.shape, keywords) == ((3,), {})
        assert stage.out_info["y"].shape == (3,)
        assert stage.in_tree == jax.tree.structure(((0,), {}))
        assert stage.out_tree == jax.tree.structure({"y": 0})
    assert len(compiled.input_shardings[0]) == 1
    assert compiled.output_shardings["y"].is_fully_replicated
    assert compiled.runtime_executable() is not None


def test_the_default_precision_of_products_is_jax_s():
    product = jax.jit(lambda x: jax.lax.dot(x, x) + jax.lax.dot(x, x, precision="default"))
    for name, count in (("highest", 2), ("default", 0), ("float32", 2)):
        with jax.default_matmul_precision(name):
            assert product.lower(onp.eye(2)).as_text().count("HIGHEST") == count


def test_arrays_have_the_attributes_that_programs_of_jax_read():
    x = jnp.arange(3.0)
    made = original.arange(3.0)
    for name in ("sharding", "is_fully_addressable", "is_fully_replicated", "committed", "aval"):
        assert getattr(x, name) == getattr(made, name)
    assert x.devices() == made.devices() and x.is_ready() and not x.is_deleted()
    assert x.block_until_ready() is x and x.copy_to_host_async() is None
    [shard] = x.addressable_shards
    onp.testing.assert_array_equal(shard.data, x)
    assert jnp.asarray(2.0).aval.weak_type and not jnp.asarray(2.0, "float32").aval.weak_type

    def traced(x):
        assert isinstance(x, jax.Array) and x.aval.shape == (3,)
        return x

    jax.make_ir(traced)(x)
    assert isinstance(x, jax.Array) and isinstance(made, jax.Array)
    assert not isinstance(onp.ones(3), jax.Array) and not isinstance(1.0, jax.Array)


def test_programs_are_read_by_the_names_of_jaxprs():
    captured = jnp.arange(3.0)
    program = jax.make_jaxpr(lambda x: jnp.sum(jnp.sin(x) * captured, axis=0))(captured)
    jaxpr = program.jaxpr
    assert [eqn.primitive.name for eqn in jaxpr.eqns] == ["sin", "mul", "reduce_sum"]
    assert jaxpr.eqns[2].params == {"axes": (0,)}
    # An interpreter of jaxprs, as one writes it for JAX.
    env = dict(zip(jaxpr.invars, [captured + 1], strict=True))
    env |= zip(jaxpr.constvars, program.consts, strict=True)
    for eqn in jaxpr.eqns:
        [out] = eqn.outvars
        env[out] = eqn.primitive(*[env.get(v, getattr(v, "val", None)) for v in eqn.invars])
    onp.testing.assert_allclose(env[jaxpr.outvars[0]], onp.sin([1, 2, 3]) @ [0, 1, 2], rtol=1e-5)


def test_objects_with_jax_array_and_buffers_are_arrays():
    class Parameter:
        def __jax_array__(self):
            return original.array([3.0])

    p, x = Parameter(), jnp.ones(1)
    results = [
        x + p,
        p * x,
        jnp.add(p, p),
        jnp.asarray(p),
        jnp.concatenate([p, p]),
        jnp.reshape(p, 1),
    ]
    assert [jnp.sum(r).item() for r in results] == [4, 3, 6, 3, 6, 3]
    assert jax.grad(lambda x: jnp.sum(x * p))(x).item() == 3
    for buffer in (bytearray(b"abc"), memoryview(b"abc"), array.array("B", b"abc")):
        assert jnp.array(buffer).tolist() == [97, 98, 99] and jnp.asarray(buffer).dtype == "uint8"


def test_jit_keeps_the_weak_dtypes_of_arrays():
    x, weak = jnp.ones(3, "bfloat16"), jnp.where(onp.arange(3) > 0, 1.0, 0.0)
    product = jax.jit(lambda tree, x: tree["a"] * x)
    assert product({"a": weak}, x).dtype == (weak * x).dtype == "bfloat16"
    assert product({"a": jnp.asarray(2.0)}, x).dtype == "bfloat16"
    assert product({"a": jnp.asarray(2.0, "float32")}, x).dtype == "float32"

    @jax.jit
    def write(y, x):
        y[0] = 5
        return y * x

    assert write(weak, x).dtype == "bfloat16" and weak.tolist() == [5, 1, 1]


def test_wrong_calls_raise_the_builtin_errors_that_jax_and_numpy_raise():
    x = jnp.ones((2, 3))
    for call, builtin in (
        (lambda: jax.lax.add(x, x[0]), TypeError),
        (lambda: jnp.reshape(x, 7), TypeError),
        (lambda: jnp.clip(1j * x, max=x), ValueError),
        (lambda: jnp.pad(x, 1, "constant", end_values=2), ValueError),
        (lambda: jnp.tensordot(x, x[0], axes=2), TypeError),
        (lambda: jnp.array([1.0, None]), ValueError),
        (lambda: jnp.array(2**31), OverflowError),
        (lambda: jax.make_ir(lambda x: x[1.5])(x), TypeError),
        (lambda: jnp.arange(3 + 0j), ValueError),
        (lambda: jax.make_ir(lambda: jnp.arange(0, 5, 1j))(), ValueError),
        (lambda: jnp.cov(x, dtype=int), ValueError),
        (lambda: jax.lax.broadcast_in_dim(x[:, :2], (2, 2), (1, 0)), TypeError),
        (lambda: jax.lax.broadcast_in_dim(x[:, :2], (2, 2), (0, 0)), TypeError),
        (lambda: jax.lax.pad(x[0], x[0], [(0, 0, 0)]), ValueError),
        (lambda: jax.lax.pad(x[0], 0.0, []), ValueError),
    ):
        with pytest.raises(jax.errors.FunctxError) as caught:
            call()
        assert isinstance(caught.value, builtin), caught.value


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
def test_functions_take_the_arguments_that_those_of_jax_and_numpy_take():
    struct = jax.ShapeDtypeStruct((2,), "int32")
    assert jnp.ones_like(struct).tolist() == [1, 1] and jnp.full_like(struct, 3).dtype == "int32"
    assert jax.lax.full_like(struct, 2).tolist() == [2, 2]
    x = onp.arange(6.0).reshape(2, 3)
    index = onp.array([[1], [2]])
    expected = jnp.take_along_axis(x, index, 1)
    assert (jnp.take_along_axis(x, index, 1, mode="one_hot") == expected).all()

    def fill(vector, widths, axis, options):
        vector[: widths[0]] = options["value"] + axis
        vector[len(vector) - widths[1] :] = -1
        return vector

    onp.testing.assert_array_equal(
        jnp.pad(x, ((1, 2), (0, 1)), fill, value=7), onp.pad(x, ((1, 2), (0, 1)), fill, value=7)
    )
    for join in ("r_", "c_"):
        for key in ("r", "c", "-1", "0,2", "0,2,0", "0,4,-1"):
            for parts in (([1, 2], [3, 4]), (x, x + 1)):
                onp.testing.assert_array_equal(
                    getattr(jnp, join)[(key, *parts)], getattr(onp, join)[(key, *parts)]
                )


def test_custom_gradients_of_functions_with_integer_results():
    @jax.custom_gradient
    def halved(x):
        def pullback(ct):
            assert ct[1] is None
            return 2 * ct[0]

        return (x / 2, jnp.round(x).astype(int)), pullback

    def loss(x):
        value, whole = halved(x)
        return jnp.sum(value * whole)

    assert jax.grad(loss)(jnp.array([3.0, 4.0])).tolist() == [6, 8]
    assert jax.vmap(jax.grad(loss))(jnp.array([3.0, 4.0])).tolist() == [6, 8]


def test_settings_of_promotion_hold():
    vector, matrix, whole = jnp.ones(2), jnp.ones((1, 2)), jnp.arange(2)
    add = jax.make_ir(jnp.add)
    with jax.numpy_rank_promotion("raise"):
        assert (vector + 3).shape == (2,)
        for call in (lambda: vector + matrix, lambda: add(vector, matrix)):
            with pytest.raises(errors.ShapeError, match="numpy_rank_promotion is 'raise'"):
                call()
    with jax.numpy_rank_promotion("warn"), pytest.warns(UserWarning, match="one rank"):
        assert add(vector, matrix).out_avals[0].shape == (1, 2)
    with jax.numpy_dtype_promotion("strict"):
        assert (whole + 1).dtype == "int32" and (vector + 1).dtype == (vector * 1.5).dtype
        assert jnp.sin(whole).dtype == "float32" and (jnp.asarray(1.5) + 1).weak_type
        for call in (
            lambda: vector + whole,
            lambda: add(vector, whole),
            lambda: whole + 0.5,
            lambda: whole + True,
            lambda: jnp.concatenate([vector, whole]),
        ):
            with pytest.raises(errors.DTypeError, match="strict"):
                call()
    assert (vector + whole).dtype == "float32" and (vector + matrix).shape == (1, 2)


def test_settings_of_promotion_are_about_arguments_of_the_user():
    vector, whole = jnp.arange(4.0), jnp.arange(4)
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        for call in (
            lambda: jnp.where(vector > 1, vector, whole),
            lambda: jnp.hypot(vector, whole),
            lambda: vector @ whole,
            lambda: vector % whole,
            lambda: jnp.divmod(vector, whole + 1),
            lambda: onp.add(vector, whole),
        ):
            with pytest.raises(errors.DTypeError, match="strict"):
                call()
        for fun in (
            lambda: jnp.mgrid[1:3:4j, 2:4],
            lambda: jnp.polyfit(vector, vector, 2),
            lambda: jnp.place(whole, whole > 2, whole, inplace=False),
            lambda: jnp.unpackbits(jnp.ones(2, "uint8")),
            lambda: jnp.cov(vector[None] * vector[:, None]),
            lambda: jax.nn.softmax(vector[None] * vector[:, None]),
            lambda: jnp.histogram2d(whole, whole, 2),
            lambda: jax.scipy.signal.welch(vector, nperseg=2),
            lambda: jnp.where(vector > 1, vector[None] * vector[:, None], 0.0),
            lambda: jax.scipy.sparse.linalg.cg(lambda x: x, {"a": 1.0, "b": 2.0}),
            lambda: jax.experimental.ode.odeint(lambda y, t: -y, vector[1], vector),
        ):
            jax.make_ir(fun)()


def test_what_is_lowered_says_the_types_of_its_arguments():
    fun = jax.jit(lambda x, n, y: (x * n, {"a": y}), static_argnums=1, donate_argnums=2)
    lowered = fun.lower(1.0, 3, onp.ones(2, "float32"))
    assert str(lowered.in_avals) == "((f32[], f32[2]), {})" and lowered.donate_argnums == (1,)


def test_dtypes_of_jax_alone_are_compared_and_made():
    key = original.zeros((), jax_itself.random.key(0).dtype)
    for dtype, expected in ((key.dtype, True), (jax.random.key(0).dtype, False)):
        assert jnp.issubdtype(dtype, jax_itself.dtypes.prng_key) is expected
        assert not jnp.issubdtype(dtype, onp.floating)
    assert jnp.zeros(2, jax.dtypes.float0).dtype == jax.dtypes.float0


def test_functions_of_numpy_pass_their_default_casting_on():
    def rows(x):
        return onp.vstack([x, x], casting="same_kind")

    assert jax.make_ir(rows)(onp.ones(2, "float32")).out_avals[0].shape == (2, 2)


def test_functions_with_rules_of_two_kinds_take_both():
    square = jax.custom_batching.custom_vmap(jax.custom_jvp(lambda x: x * x))
    square.defjvp(lambda primals, tangents: (square.fun(*primals), 5.0 * tangents[0]))
    square.def_vmap(lambda size, batched, x: (x * x, batched[0]))
    assert float(jax.grad(square)(3.0)) == 5.0
    with pytest.raises(AttributeError, match="no attribute 'defjvq'"):
        _ = square.defjvq


def test_a_function_without_arguments_is_mapped_over_an_axis_of_given_size():
    index = jax.vmap(lambda: jax.lax.axis_index("i"), axis_name="i", axis_size=3)
    assert jax.make_ir(index)().out_avals[0].shape == (3,)
    assert float(jax.vmap(lambda: 3.0, axis_size=2, out_axes=None)()) == 3.0
