"""Exported functions: their calls, transforms and signatures, before and after they are saved."""

import pickle
from collections import OrderedDict, defaultdict
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import ml_dtypes
import numpy as np
import pytest

import functx
import functx.numpy as xp
from functx import autograd, export
from functx.core.caches import scoped
from functx.core.errors import (
    ArgumentError,
    CapturedWriteError,
    ExportError,
    ExportFileError,
    ImmutableArrayError,
    NonFiniteError,
    ParseError,
    TreeError,
    UnregisteredNameError,
    ValueRangeError,
)
from functx.core.program import Program
from functx.testing.random_functions import RandomFunction, random_arguments
from functx.testing.rule_cases import primitive_under_test
from tests.ops.registry import SAMPLES

x = np.array([0.5, -1.0, 2.0], "float32")
offset = np.arange(3, dtype="float32")

CALLBACKS = {
    "pure_callback",
    "io_callback",
    "check",
    "debug_callback",
    "custom_vmap",
    "jax_call",
    "with_effects",
}
ON_DEVICES = {"sharding_constraint", "shard_map"}


def saved(fun, *args, platforms=(), **kwargs):
    """The exported function after it was saved and loaded; without StableHLO it compiles its program."""
    return export.deserialize(export.export(fun, platforms=platforms)(*args, **kwargs).serialize())


@functx.custom_jvp
def sine(v):
    return xp.sin(v)


@sine.defjvp
def _sine_jvp(primals, tangents):
    return sine(*primals), 2.0 * xp.cos(primals[0]) * tangents[0]


@functx.custom_vjp
def cube(v):
    return v**3


cube.defvjp(lambda v: (cube(v), v), lambda v, ct: (10.0 * v * sine(v) * ct,))


def model(v, params, scale=1.0):
    policy = functx.checkpoint_policies.nothing_saveable
    h = functx.checkpoint(xp.tanh, policy=policy)(v * params["w"]) + jax.nn.relu(v) + offset
    last, _ = functx.lax.scan(lambda c, row: (c * row, c), 1.0, cube(sine(h)))
    return {"h": h * scale, "loss": (last, None)}


@pytest.fixture(scope="module")
def exported():
    return export.export(model)(x, {"w": 2.0}, scale=3.0)


@pytest.fixture(scope="module")
def loaded(exported):
    return export.deserialize(exported.serialize())


def loss_of(fun):
    return lambda v: fun(v, {"w": 2.0}, scale=3.0)["loss"][0]


def test_a_loaded_function_gives_the_results_of_the_function(exported, loaded):
    expected = model(x, {"w": 2.0}, scale=3.0)
    for each in (exported, loaded, loaded.call, loaded.program):
        found = each(x, {"w": 2.0}, scale=3.0)
        assert found["loss"][1] is None
        np.testing.assert_allclose(found["h"], expected["h"], rtol=1e-6)
        np.testing.assert_allclose(found["loss"][0], expected["loss"][0], rtol=1e-6)


@pytest.mark.parametrize(
    "transform",
    [
        functx.grad,
        functx.hessian,
        lambda f: functx.jit(functx.vmap(functx.grad(f), in_axes=None, axis_size=2)),
        lambda f: functx.jacfwd(functx.grad(lambda v: functx.jvp(f, (v,), (v,))[1])),
        lambda f: jax.jit(jax.vmap(jax.grad(f), in_axes=None, axis_size=2)),
    ],
    ids=["grad", "hessian", "jit of vmap of grad", "three derivatives", "in JAX"],
)
def test_a_loaded_function_has_every_derivative_of_the_rules_of_the_function(loaded, transform):
    found, expected = [transform(loss_of(f))(x) for f in (loaded, model)]
    np.testing.assert_allclose(found, expected, rtol=2e-5)


def test_a_loaded_function_takes_variables(loaded):
    v = autograd.Variable(x, requires_grad=True)
    loss_of(loaded)(v).backward()
    np.testing.assert_allclose(v.grad, functx.grad(loss_of(model))(x), rtol=2e-5)


def test_a_call_of_a_loaded_function_is_inlined_into_a_trace(loaded):
    def call(v, w, scale):
        return loaded(v, {"w": w}, scale=scale)

    program = functx.make_ir(call)(x, 2.0, 3.0)
    assert program.equations and not program.lint()
    assert [eqn.primitive for eqn in program] == [eqn.primitive for eqn in loaded.program]


def test_second_derivatives_at_equal_singular_values_are_those_of_the_function():
    def f(v):
        return xp.linalg.svd(xp.outer(v, v) + xp.eye(3))[1].sum()

    again = saved(f, x)
    np.testing.assert_allclose(functx.hessian(again)(x), functx.hessian(f)(x), atol=1e-5)


def test_the_signature_names_inputs_outputs_and_constants(exported, loaded):
    assert loaded.signature == exported.signature
    assert exported.signature == export.Signature(
        user_inputs=("v", "params_w", "scale"),
        user_outputs=("output_0", "output_1"),
        constants=("c0",),
    )
    assert str(loaded.signature).splitlines()[0] == "user_inputs   v, params_w, scale"
    assert loaded.fun_name == "model" and repr(loaded.in_avals) == "(f32[3], ~f32[], ~f32[])"
    assert loaded.in_tree == exported.in_tree and loaded.out_tree == exported.out_tree


def test_a_loaded_function_prints_the_program_that_was_saved(exported, loaded):
    assert "test_export.py" in str(loaded)
    assert str(loaded).splitlines()[0] == str(exported).splitlines()[0]
    assert "stablehlo.tanh" in loaded.mlir_module("cpu")


def test_saving_again_gives_the_same_bytes(exported, loaded):
    again = export.export(model)(x, {"w": 2.0}, scale=3.0)
    assert loaded.serialize() == again.serialize() == exported.serialize()


@pytest.mark.parametrize("enabled", [False, True], ids=["32 bits", "64 bits"])
def test_a_function_of_64_bit_types_keeps_them_whatever_the_switch_says(enabled):
    def f(v, n):
        return v / 3.0, xp.arange(2) + n, v.astype("complex128")

    def wide_inside(v):
        return (v.astype("float64") / 3.0).astype("float32")

    with jax.enable_x64(True):
        loaded = saved(f, np.ones(2), 1, platforms=None)
        inside = saved(wide_inside, x)
        expected = wide_inside(x)
    with jax.enable_x64(enabled):
        third, numbers, complexes = loaded(np.ones(2), 2**40)
        np.testing.assert_array_equal(inside(x), expected)
        with pytest.raises(ArgumentError, match="`v` must be f64"):
            loaded(np.ones(2, "float32"), 1)
    third, numbers, complexes = map(np.asarray, (third, numbers, complexes))
    assert third.dtype == "float64" and third[0] == 1.0 / 3.0
    assert numbers.dtype == "int64" and numbers[1] == 2**40 + 1
    assert complexes.dtype == "complex128"


def test_a_number_has_the_type_that_was_exported_in_64_bit_mode_too(loaded):
    with jax.enable_x64(True):
        assert loaded(x, {"w": 2.0}, scale=3.0)["h"].dtype == "float32"


CONSTANTS = [
    *[np.arange(4).astype(name) for name in ("bool", "int8", "uint32", "float16", "complex64")],
    *[np.arange(4).astype(t) for t in (ml_dtypes.bfloat16, ml_dtypes.int4)],
    *[np.arange(4).astype(t) for t in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)],
    *[np.zeros((2, 0, 1), ml_dtypes.bfloat16), np.array(2.5, "float32")],
    np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    np.array([np.nan, -0.0, np.inf], "float32"),
]


def test_constants_of_every_dtype_keep_their_bits():
    def f(v):
        return [v * 1, *[xp.asarray(c) for c in CONSTANTS]]

    exported = export.export(f)(1.0)
    again = export.deserialize(exported.serialize())
    assert len(again.signature.constants) == len(CONSTANTS)
    for found, expected in zip(again(1.0), functx.jit(f)(1.0), strict=True):
        assert found.dtype == expected.dtype and found.weak_type == expected.weak_type
        assert np.asarray(found).tobytes() == np.asarray(expected).tobytes()


def test_later_writes_to_a_captured_array_do_not_change_the_export():
    table = np.ones(2, "float32")
    exported = export.export(lambda v: v * table)(np.float32(2))
    table[:] = 7.0
    np.testing.assert_array_equal(exported(2.0), [2.0, 2.0])


def test_a_loaded_function_writes_to_its_arguments():
    def f(v, total):
        v[0] *= 2.0
        total += v[:2]
        return v.sum()

    again = saved(f, x, x[:2])
    assert dict(again.signature.user_inputs_to_mutate) == {"output_1": "v", "output_2": "total"}
    v, total = x.copy(), np.zeros(2, "float32")
    expected = [f(v, total), v, total]
    v, total = x.copy(), np.zeros(2, "float32")
    found = [again(v, total), v, total]
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)

    def outer(call):
        return lambda v, total: call(v, total) * total.sum() + v[0] ** 2

    for each in (f, again):
        found = functx.grad(outer(each), (0, 1))(x.copy(), x[:2].copy())
        expected = found if each is f else expected
        np.testing.assert_allclose(found[0], expected[0])
        np.testing.assert_allclose(found[1], expected[1])
    with pytest.raises(ExportError, match="must not share memory"):
        again(v, v[:2])
    v.flags.writeable = False
    with pytest.raises(ImmutableArrayError):
        again(v, total)


def test_writes_that_depend_on_the_memory_layout_need_the_one_that_was_traced():
    def f(v):
        flat = v.reshape(-1)
        flat[0] = 5.0

    again, rows = saved(f, np.ones((2, 2))), np.ones((2, 2))
    assert again(rows) is None and rows[0, 0] == 5.0
    with pytest.raises(ExportError, match="`v` in another order"):
        again(np.asfortranarray([[1.0, 2.0], [3.0, 4.0]]))


def test_pytrees_of_data_and_typed_keys_come_back():
    def f(pair, **options):
        rows = {(1, "a"): pair[1], (2, "b"): [()]}
        table = defaultdict(list, z=options["scale"][1])
        key = functx.random.split(options["key"])[0]
        return OrderedDict(b=pair[0], a=None), table, rows, key

    arguments = ((1.0, x),), {"scale": {0: 2.0, 1: 3.0}, "key": jax.random.key(3)}
    exported = export.export(f, platforms=())(*arguments[0], **arguments[1])
    again = export.deserialize(exported.serialize())
    found, expected = [each(*arguments[0], **arguments[1]) for each in (again, f)]
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    assert jax.random.key_data(found[3]).tolist() == jax.random.key_data(expected[3]).tolist()


class Point(NamedTuple):
    x: Any
    y: Any


class Other(NamedTuple):
    x: Any


@jax.tree_util.register_pytree_node_class
class Scaled:
    def __init__(self, value, unit):
        self.value, self.unit = value, unit

    def tree_flatten(self):
        return (self.value,), self.unit

    @classmethod
    def tree_unflatten(cls, unit, children):
        return cls(*children, unit)


def test_classes_of_pytrees_are_saved_by_their_registered_names():
    def f(point, scaled):
        return Scaled(point.x + scaled.value, scaled.unit), Point(point.y, point.x)

    exported = export.export(f, platforms=())(Point(x, x), Scaled(x, "cm"))
    with pytest.raises(ExportError, match=r"got tests.*\.Point\n(.|\n)*register_namedtuple"):
        exported.serialize()
    with scoped():
        export.register_namedtuple_serialization(Point, serialized_name="point")
        with pytest.raises(ExportError, match=r"Scaled\n(.|\n)*register_pytree_node_serial"):
            exported.serialize()
        export.register_pytree_node_serialization(
            Scaled,
            serialized_name="scaled",
            serialize_auxdata=str.encode,
            deserialize_auxdata=bytes.decode,
        )
        with pytest.raises(ExportError, match="one name; got 'another' for Point"):
            export.register_namedtuple_serialization(Point, serialized_name="another")
        with pytest.raises(ExportError, match="one class; got 'point'"):
            export.register_namedtuple_serialization(Other, serialized_name="point")
        data = export.export(f, platforms=())(Point(x, x), Scaled(x, "cm")).serialize()
        found, swapped = export.deserialize(data)(Point(x, 2 * x), Scaled(x, "cm"))
        assert found.unit == "cm" and type(swapped) is Point
        np.testing.assert_array_equal(found.value, 2 * x)
        with pytest.raises(TreeError):
            export.deserialize(data)(Point(x, x), Scaled(x, "mm"))
    with pytest.raises(UnregisteredNameError, match="'point'"):
        export.deserialize(data)
    with scoped():
        export.register_namedtuple_serialization(Other, serialized_name="point")
        with pytest.raises(UnregisteredNameError, match="with the fields x,y; got Other with x"):
            export.deserialize(data)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            ((x[:2], {"w": 1.0}), {"scale": 1.0}),
            ArgumentError,
            r"`v` must be f32\[3\]; got ndarray",
        ),
        (((x, {"w": x}), {"scale": 1.0}), ArgumentError, r"`params\['w'\]` must be ~f32\[\]"),
        (((x, {"w": 1j}), {"scale": 1.0}), ArgumentError, "got complex"),
        (((x, {"w": "a"}), {"scale": 1.0}), ArgumentError, r"`params\['w'\]`.*got str"),
        (((x, {"u": 1.0}), {"scale": 1.0}), TreeError, "keys 'u' for dict with the keys 'w'"),
        (((x, {"w": 1.0}, 1.0), {}), TreeError, "no `scale` and 3 arguments by position"),
    ],
)
def test_arguments_that_do_not_fit_are_named(loaded, arguments, error, message):
    args, kwargs = arguments
    with pytest.raises(error, match=message):
        loaded(*args, **kwargs)


def test_what_cannot_be_exported_is_named():
    def writes_outside(v):
        offset[0] = v[0]

    with pytest.raises(CapturedWriteError, match="`offset`"):
        export.export(writes_outside)(x)
    with pytest.raises(ValueRangeError, match="'gpu'"):
        export.export(xp.sin, platforms=("gpu",))
    with pytest.raises(ValueRangeError, match="each once"):
        export.export(xp.sin, platforms=("cpu", "cpu"))
    with pytest.raises(ArgumentError, match="sequence of names; got 'cpu'"):
        export.export(xp.sin, platforms="cpu")
    with pytest.raises(ArgumentError):
        export.export(3)
    variable = autograd.Variable(x, requires_grad=True)
    with pytest.raises(ExportError, match="a Variable that does"):
        export.export(lambda v: v * variable)(x)
    np.testing.assert_array_equal(export.export(lambda v: v * variable.detach())(x)(x), x * x)
    with pytest.raises(ExportError, match=r"traced value f32\[3\]"):
        functx.make_ir(lambda w: export.export(lambda v: v * w)(x)(x))(x)


@functx.custom_vmap
def mapped_by_rule(v):
    return v * 1.0


@mapped_by_rule.def_vmap
def _mapped_by_rule_vmap(size, batched, v):
    return v, batched[0]


@pytest.mark.parametrize(
    ("fun", "message"),
    [
        (lambda v: functx.pure_callback(np.sin, v, v), "pure_callback, which calls.*sin"),
        (lambda v: functx.debug.print("{}", v), "debug_callback"),
        (functx.checkpoint(xp.sin, policy=lambda *_, **__: True), "checkpoint with.*lambda"),
        (mapped_by_rule, "custom_vmap"),
    ],
)
def test_operations_that_call_python_cannot_be_saved(fun, message):
    exported = export.export(fun, platforms=())(x)
    with pytest.raises(ExportError, match=message):
        exported.serialize()


def test_a_rule_that_refuses_a_derivative_is_named_when_its_function_is_saved():
    @functx.custom_jvp
    def refusing_jvp(v):
        return v * 2

    @functx.custom_vjp
    def refusing_vjp(v):
        return v * 2

    def refuse(*_):
        raise ValueError("no derivative")

    refusing_jvp.defjvp(refuse)
    refusing_vjp.defvjp(lambda v: (v * 2, None), refuse)
    for fun in (refusing_jvp, refusing_vjp):
        with pytest.raises(ExportError, match="a rule that raises ValueError: no derivative"):
            export.export(fun, platforms=())(x).serialize()


def test_the_lines_of_operations_that_cannot_be_saved_are_shown():
    exported = export.export(lambda v: functx.pure_callback(np.sin, v, v))(x)
    with pytest.raises(ExportError, match=r"test_export\.py:\d+ in .*<lambda>: exported"):
        exported.serialize()


@pytest.mark.parametrize("cls", [*dict.fromkeys(cls for cls, _ in SAMPLES)], ids=lambda c: c.name)
def test_every_operation_is_saved_or_named(cls):
    sample = cls.samples[0]

    def f(*args):
        outs = primitive_under_test(cls, sample)(*args)
        return outs if cls.multiple_results else [outs]

    exported = export.export(f, platforms=())(*sample.avals)
    if cls.name in CALLBACKS | ON_DEVICES:
        with pytest.raises(ExportError, match=cls.name):
            exported.serialize()
        return
    again = export.deserialize(exported.serialize())
    with jax.enable_x64(True):
        assert again.program == exported.program
    assert again.in_avals == exported.in_avals and again.out_avals == exported.out_avals


def test_other_platforms_need_no_device():
    exported = export.export(lambda v: xp.linalg.eigh(v), platforms=("cuda", "tpu"))(np.eye(2))
    again = export.deserialize(exported.serialize())
    assert again.platforms == ("cuda", "tpu")
    assert "Eigh" in again.mlir_module("tpu") and "Eigh" not in again.mlir_module("cuda")
    with pytest.raises(ValueRangeError, match="got 'cpu'"):
        again.mlir_module("cpu")
    np.testing.assert_allclose(again(2 * np.eye(2))[0], [2.0, 2.0])


def test_a_custom_operator_is_found_by_its_name():
    with scoped():
        calls = []

        @functx.custom_op("exporting::double", mutates_args=(), kernel="numpy")
        def double(v: functx.Array) -> functx.Array:
            calls.append(1)
            return np.asarray(v) * 2

        @double.def_abstract
        def _(v):
            return jax.ShapeDtypeStruct(v.shape, v.dtype)

        data = export.export(lambda v: double(v) + 1.0)(x).serialize()
        again = export.deserialize(data)
        np.testing.assert_array_equal(again(x), 2 * x + 1)
        assert calls
    with pytest.raises(UnregisteredNameError, match="'exporting::double'"):
        export.deserialize(data)


class Tripled(autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(v):
        return xp.sin(v)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, ct):
        return 3.0 * ct * ctx.saved_tensors[0]


class MappedByUser(Tripled):
    generate_vmap_rule = False

    @staticmethod
    def vmap(info, in_dims, v):
        return v, in_dims[0]


def test_a_function_of_autograd_is_saved_with_its_rules():
    again = saved(lambda v: Tripled.apply(v).sum(), x)
    np.testing.assert_allclose(functx.grad(again)(x), 3.0 * x, rtol=1e-6)
    np.testing.assert_allclose(functx.vmap(functx.grad(again))(x[None])[0], 3.0 * x, rtol=1e-6)
    with pytest.raises(ExportError, match="autograd_function of MappedByUser"):
        saved(lambda v: MappedByUser.apply(v), x)


def test_rules_without_end_are_refused():
    def make(depth):
        @functx.custom_jvp
        def f(v):
            return xp.sin(v) * depth

        f.defjvp(lambda primals, tangents: (f(*primals), make(depth + 1)(*primals) * tangents[0]))
        return f

    with pytest.raises(ExportError, match="finitely many"):
        saved(make(1), x)


def test_a_function_is_called_in_several_threads(loaded):
    expected = model(x, {"w": 2.0}, scale=3.0)["h"]
    again = export.deserialize(loaded.serialize())
    with ThreadPoolExecutor(4) as threads:
        results = [
            *threads.map(lambda _: again(x, {"w": 2.0}, scale=3.0)["h"], range(8)),
            *threads.map(lambda _: functx.grad(loss_of(again))(x), range(8)),
        ]
    for found in results[:8]:
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_implicit_draws_are_refused():
    with pytest.raises(ExportError, match="must not draw random numbers from a generator"):
        export.export(lambda v: v + functx.random.rand(3))(x)


def test_policies_of_checkpoints_are_read_as_printed():
    policies = functx.checkpoint_policies
    chosen = [
        *(policies.dots_saveable, policies.nothing_saveable, policies.min_cut),
        policies.save_from_both_policies(
            policies.save_only_these_names("a"), policies.dots_with_no_batch_dims_saveable
        ),
    ]
    program = functx.make_ir(
        lambda v: [functx.checkpoint(xp.sin, policy=policy)(v) for policy in chosen]
    )(x)
    printed = [line.split("#")[0] for line in str(program).splitlines()]
    assert not any("<" in line for line in printed)
    assert functx.Program.parse(str(program)) == program


class Quantised(functx.ArrayWrapper):
    """An array of small integers with a scale, and a name as metadata."""

    def __init__(self, values, scale, name):
        self.values, self.scale, self.name = values, scale, name

    def __functx_flatten__(self):
        return ("values", "scale"), self.name

    @staticmethod
    def __functx_unflatten__(inner, meta, shape):
        return Quantised(inner["values"], inner["scale"], meta)

    def __functx_dispatch__(self, op, types, args, params):
        dense = [x.values * x.scale if isinstance(x, Quantised) else x for x in args]
        return op(*dense, **params)


def test_arrays_made_of_arrays_are_saved_by_their_registered_names():
    def f(q, v):
        return q * v, Quantised(q.values, q.scale * 2.0, q.name)

    q = Quantised(np.array([1, 2, 3], "int8"), np.float32(0.5), "weights")
    with pytest.raises(ExportError, match="register_wrapper_serialization"):
        saved(f, q, x)
    with scoped():
        export.register_wrapper_serialization(Quantised, serialized_name="quantised")
        again = saved(f, q, x)
        dense, doubled = again(q, x)
        np.testing.assert_allclose(dense, q.values * 0.5 * x)
        assert type(doubled) is Quantised and doubled.name == "weights" and doubled.scale == 1.0
        slope = functx.grad(lambda v: again(q, v)[0].sum())(x)
        np.testing.assert_allclose(slope, q.values * 0.5)
        with pytest.raises(TreeError):
            again(Quantised(q.values, q.scale, "other"), x)


@pytest.mark.parametrize("seed", range(12))
def test_random_functions_are_saved_or_refused_by_name(seed):
    f, args = RandomFunction(seed, steps=6, depth=seed % 2), random_arguments(seed)
    exported = export.export(f, platforms=())(*args)
    try:
        again = export.deserialize(exported.serialize())
    except ExportError as error:
        assert "jax_call" in str(error)
        return
    assert len(again.program) == len(exported.program)
    if seed in (0, 2, 3):
        copies = [[a.copy() for a in args] for _ in range(2)]
        outs = [functx.jit(f)(*copies[0]), again(*copies[1])]
        for found, expected in zip([*outs[1], *copies[1]], [*outs[0], *copies[0]], strict=True):
            assert found.dtype == expected.dtype
            np.testing.assert_allclose(
                *[np.asarray(a, "complex64") for a in (found, expected)], 1e-5
            )


def test_arguments_are_converted_in_every_call_and_mistakes_change_nothing():
    again = saved(lambda v, w: v * w, x, 2.0, platforms=None)
    with pytest.raises(ArgumentError):
        again(x[:2], 2.0)
    with pytest.raises(ValueRangeError):
        again(x, 10**400)
    for w in (2.0, 3, True, np.float32(4.0), np.float64(0.5), jax.numpy.float32(2.0)):
        np.testing.assert_allclose(again(x, w), x * np.float32(w))
    variable = autograd.Variable(x, requires_grad=True)
    again(variable, 3.0).sum().backward()
    np.testing.assert_allclose(variable.grad, np.full(3, 3.0))
    np.testing.assert_allclose(again(x, 2.0), 2 * x)
    assert float(jax.jit(lambda v: again(v, 2.0).sum())(x)) == 3.0
    assert float(jax.grad(lambda v: again(v, 2.0).sum())(x)[0]) == 2.0


def test_programs_of_loaded_functions_print_parse_and_are_pickled(loaded):
    program = functx.make_ir(loss_of(loaded))(x)
    parsed, copied = Program.parse(str(program)), pickle.loads(pickle.dumps(program))
    assert "table='" in str(program) and parsed == copied == program
    expected = functx.hessian(loss_of(model))(x)
    for f in (copied, lambda v: parsed(v, *program.captured)):
        np.testing.assert_allclose(functx.hessian(f)(x), expected, rtol=2e-5)
    with pytest.raises(ParseError, match="with the file that holds their programs"):
        Program.parse(str(loaded))


def test_exported_functions_are_exported_again(loaded):
    gradient = saved(functx.grad(loss_of(loaded)), x)
    np.testing.assert_allclose(gradient(x), functx.grad(loss_of(model))(x), rtol=2e-5)
    np.testing.assert_allclose(
        functx.jacfwd(gradient)(x), functx.hessian(loss_of(model))(x), rtol=2e-5
    )


def test_a_loaded_function_runs_without_jit_and_shows_the_origin_of_nans():
    again = saved(lambda v: xp.log(v) + 1.0, x, platforms=None)
    with jax.disable_jit():
        np.testing.assert_allclose(again(x * x), np.log(x * x) + 1.0, rtol=1e-6)
    with jax.debug_nans(True), pytest.raises(NonFiniteError, match="log"):
        again(-x * x)


def test_the_derivative_of_a_loaded_function_is_verified():
    again = saved(lambda v: sine(v).sum(), x)
    with functx.config.set(verify=True):
        np.testing.assert_allclose(functx.grad(again)(x), 2.0 * np.cos(x), rtol=1e-6)


@pytest.mark.parametrize(
    "fun",
    [
        lambda v: jax.numpy.convolve(v, v),
        lambda v: jax.lax.igamma(v + 2.0, v + 2.0),
        lambda v: jax.random.gamma(jax.random.key(0), v + 2.0),
    ],
    ids=["convolve", "igamma", "gamma"],
)
def test_operations_that_jax_alone_has_are_saved(fun):
    again = saved(fun, x)
    assert "jax_call[function=JaxOperation" in str(again)
    np.testing.assert_allclose(again(x), functx.jit(fun)(x), rtol=1e-6)
    found, expected = [functx.grad(lambda v, f=f: (f(v) ** 2).sum())(x) for f in (again, fun)]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_effects_and_higher_order_operations_are_found_by_name():
    seen = []
    with scoped():

        @functx.custom_op("exporting::note", mutates_args=(), kernel="numpy")
        def note(v: functx.Array) -> functx.Array:
            seen.append(float(v[0]))
            return v.copy()

        note.def_abstract(lambda v: jax.ShapeDtypeStruct(v.shape, v.dtype))
        handle = functx.effects.register(note, functx.effects.ORDERED)
        twice = functx.custom.HigherOrderOp("exporting::twice")
        twice.def_rule("lowering", lambda f, v: f(f(v)))

        def f(v):
            note(v)
            note(v + 1.0)
            return twice(lambda w: w * 2.0, v)

        data = export.export(f)(x).serialize()
        again = export.deserialize(data)
        np.testing.assert_array_equal(again(x), 4.0 * x)
        functx.effects_barrier()
        assert seen == [x[0], x[0] + 1.0]
        handle.remove()
        with pytest.raises(ExportFileError, match="must state no effects"):
            export.deserialize(data)(x)
    with pytest.raises(UnregisteredNameError, match="'exporting::note'"):
        export.deserialize(data)
