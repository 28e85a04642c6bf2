"""`aot_function`: what compilers get and when, keys of programs, derivatives, saved values, mistakes."""

import gc
import threading
import weakref

import jax
import numpy
import pytest

import functx
import functx.numpy as np
from functx import aot
from functx.autograd import Variable, backward, grad, inference_mode, no_grad
from functx.autograd import forward_ad as fwad
from functx.core.errors import (
    ArgumentError,
    CompiledResultError,
    CompilerFunctionError,
    LeafWriteError,
    LostDerivativeError,
    StaticArgumentError,
    StrictCallError,
)
from functx.testing import reference

ROW = numpy.array([0.5, -1.25, 2.0], "float32")


class Compiler:
    """A compiler that keeps the programs, and whose functions interpret them."""

    def __init__(self):
        self.programs, self.emptied = [], []

    @property
    def names(self):
        return [program.name for program in self.programs]

    def __call__(self, program):
        self.programs.append(program)

        def run(values):
            args = [*values]
            values.clear()
            self.emptied.append(program.name)
            outs = reference.interpret_in_numpy(program, *args)
            return [
                jax.numpy.asarray(x, a.dtype) for x, a in zip(outs, program.out_avals, strict=True)
            ]

        return run


def leaf(value=ROW):
    return Variable(value, requires_grad=True)


def product(x, y):
    return np.sin(x) * y


def equal(x, y):
    numpy.testing.assert_allclose(
        x.numpy() if isinstance(x, Variable) else x, y, rtol=1e-5, atol=1e-6
    )


# What compilers get, and when.


def test_the_forward_program_is_compiled_at_the_first_call_and_the_backward_program_in_the_first_walk():
    compiler = Compiler()
    f = aot.aot_function(product, compiler)
    x, y = leaf(), leaf(ROW + 1)
    out = f(x, y)
    assert compiler.names == ["0_forward"]
    out.sum().backward()
    assert compiler.names == ["0_forward", "0_backward"]
    equal(x.grad, numpy.cos(ROW) * (ROW + 1))
    equal(y.grad, numpy.sin(ROW))
    f(x, y).sum().backward()
    assert compiler.names == ["0_forward", "0_backward"]
    assert compiler.emptied == ["0_forward", "0_backward"] * 2


def test_the_backward_program_can_be_compiled_at_once():
    compiler = Compiler()
    aot.aot_function(product, compiler, backward_at_once=True)(leaf(), leaf())
    assert sorted(compiler.names) == ["0_backward", "0_forward"]


def test_each_program_goes_to_its_compiler():
    compilers = Compiler(), Compiler(), Compiler()
    f = aot.aot_function(product, *compilers[:2], inference_compiler=compilers[2])
    f(leaf(), ROW).sum().backward()
    f(ROW, ROW)
    assert [c.names for c in compilers] == [["0_forward"], ["0_backward"], ["1_inference"]]


@pytest.mark.parametrize(
    "call",
    [
        lambda f: f(ROW, ROW),
        lambda f: f(Variable(ROW), ROW),
        lambda f: no_grad()(f)(leaf(), ROW),
        lambda f: inference_mode()(f)(leaf(), ROW),
    ],
    ids=["arrays", "no gradient needed", "no_grad", "inference_mode"],
)
def test_a_call_without_gradients_has_an_inference_program(call):
    compiler = Compiler()
    out = call(aot.aot_function(product, compiler))
    assert compiler.names == ["0_inference"]
    assert not getattr(out, "requires_grad", False)
    equal(out, numpy.sin(ROW) * ROW)


def test_a_function_whose_outputs_are_all_under_no_grad_has_an_inference_program():
    compiler = Compiler()
    f = aot.aot_function(no_grad()(product), compiler)
    assert not f(leaf(), leaf()).requires_grad
    assert compiler.names == ["0_inference"]


def test_a_partition_function_chooses_what_is_saved():
    def cosines(x):
        return np.cos(np.cos(np.cos(x)))

    counts = {}
    for partition in (aot.default_partition, aot.min_cut_rematerialization_partition):
        compiler = Compiler()
        x = leaf()
        aot.aot_function(cosines, compiler, partition_fn=partition)(x).sum().backward()
        counts[partition] = [(len(p.inputs), len(p.outputs)) for p in compiler.programs]
    assert counts[aot.default_partition] == [(1, 4), (4, 1)]
    assert counts[aot.min_cut_rematerialization_partition] == [(1, 2), (2, 1)]


def test_the_forward_program_returns_written_inputs_then_outputs_then_bases_then_saved_values():
    def f(x, y):
        x *= y
        z = x + 1
        return z[1:], z[:2], x * 3

    compiler = Compiler()
    x, y = leaf() * 1, leaf()
    aot.aot_function(f, compiler)(x, y)
    avals = list(map(str, compiler.programs[0].out_avals))
    assert avals[:5] == ["f32[3]", "f32[2]", "f32[2]", "f32[3]", "f32[3]"]


def test_decompositions_are_applied_to_all_programs():
    table = functx.decomp.get_decompositions([functx.nn.softmax])
    compiler = Compiler()
    x = leaf()
    out = aot.aot_function(functx.nn.softmax, compiler, decompositions=table)(x)
    backward(out, numpy.array([1.0, 0.0, 0.0], "float32"))
    operations = {eqn.primitive.name for p in compiler.programs for eqn in p}
    assert "softmax" not in operations and "softmax_backward" not in operations
    plain = functx.grad(lambda x: functx.nn.softmax(x)[0])(ROW)
    equal(x.grad, plain)


def test_a_program_is_run_that_a_compiler_returns():
    x = leaf()
    out = aot.aot_function(product, lambda program: program)(x, ROW)
    equal(out, numpy.sin(ROW) * ROW)


def test_copies_into_inputs_end_the_program_where_no_derivative_sees_them():
    def f(x, state):
        state *= 0.5
        return x * state

    for keeps, outputs in ((True, 2), (False, 3)):
        compiler = []
        compile_and_keep = lambda p, c=compiler: c.append(p) or p  # noqa: E731
        state = Variable(ROW)
        g = aot.aot_function(f, compile_and_keep, keep_inference_input_mutations=keeps)
        g(leaf(), state)
        equal(state, ROW * 0.5)
        (program,) = compiler
        assert (program.equations[-1].primitive.name == "write") is keeps
        assert len(program.outputs) == outputs
    array = numpy.array(ROW)
    aot.aot_function(f, keep_inference_input_mutations=True)(ROW, array)
    equal(array, ROW * 0.5)


def test_an_input_that_the_program_writes_to_and_returns_has_its_new_value():
    def f(x, state):
        state += 1
        return state, x * state

    array = numpy.array(ROW)
    out, _ = aot.aot_function(f, keep_inference_input_mutations=True)(ROW, array)
    equal(out, ROW + 1)
    equal(array, ROW + 1)
    x, state = leaf(), Variable(ROW)
    out, product = aot.aot_function(f, keep_inference_input_mutations=True)(x, state)
    assert out is state
    equal(grad(product.sum(), x)[0], ROW + 1)


def test_arrays_of_jax_have_the_program_of_their_types():
    compiler = Compiler()
    f = aot.aot_function(lambda x, y: x + y, compiler)
    row, number = jax.numpy.ones(3), jax.numpy.asarray(2.0)
    pairs = [(row, row + 1), (row.astype(int), row), (row, number), (ROW, row)]
    for x, y in pairs * 2:
        out = f(x, y)
        equal(out, numpy.add(x, y))
        assert out.dtype == (x + y).dtype
    types = {tuple(map(functx.core.tracer.aval_of, pair)) for pair in pairs}
    assert len(compiler.programs) == len(types) == 3


def test_results_of_transforms_of_variables_can_be_written_to_as_in_the_plain_call():
    def f(x):
        doubled = functx.jit(lambda x: x * 2)(x)
        part = doubled[1:]
        part *= 10
        gradient = functx.grad(lambda x: (x * x).sum())(x)
        same = gradient
        same += 1
        total = x.sum()
        same = total
        same *= 3
        return doubled, gradient, total

    for out, expected in zip(aot.aot_function(f)(leaf()), f(leaf()), strict=True):
        equal(out, expected)
    for out, expected in zip(aot.aot_function(f)(ROW), f(ROW), strict=True):
        equal(out, expected)


LAYOUTS = {
    "halves": lambda m: (m[0][:2], m[0][2:]),
    "even and odd": lambda m: (m[0][::2], m[0][1::2]),
    "columns": lambda m: (m[:, :2], m[:, 2:]),
    "every other row": lambda m: (m[::2], m[1::2]),
    "transposed halves": lambda m: (m.T[:2], m.T[2:]),
    "reversed": lambda m: (m[0][1::-1], m[0][:1:-1]),
}
OVERLAPS = {
    "shifted": lambda m: (m[0][:3], m[0][1:]),
    "a row and a column": lambda m: (m[0], m[:, 0]),
    "all and reversed": lambda m: (m, m[::-1]),
}


@pytest.mark.parametrize("layout", [*LAYOUTS, *OVERLAPS])
def test_arguments_are_merged_where_their_memory_overlaps_and_one_is_written_to(layout):
    def f(x, y):
        x *= 2
        y += 1
        return x.sum() * 3 + (y * y).sum()

    views = {**LAYOUTS, **OVERLAPS}[layout]
    results = []
    compiler = Compiler()
    for g in (f, aot.aot_function(f, compiler)):
        start = leaf(numpy.arange(16, dtype="float32").reshape(4, 4))
        m = start * 1
        out = g(*views(m))
        (slope,) = grad(out + (m * m).sum(), start)
        results.append((out.numpy(), m.numpy(), slope.numpy()))
    for x, y in zip(*results, strict=True):
        numpy.testing.assert_allclose(x, y, rtol=1e-5)
    assert len(compiler.programs[0].inputs) == (2 if layout in LAYOUTS else 1)


# Keys.


def test_another_pattern_of_same_arrays_or_gradients_compiles_again():
    compiler = Compiler()
    f = aot.aot_function(lambda x, y: x * y + x, compiler)
    x, y = leaf(), leaf(ROW + 1)
    for args, wanted in (
        ((x, x), (2 * ROW + 1, None)),
        ((x, y), (ROW + 2, ROW)),
        ((x.detach(), y), (None, ROW)),
        ((x, y.detach()), (ROW + 2, None)),
    ):
        found = grad(f(*args).sum(), [x, y], allow_unused=True)
        for g, want in zip(found, wanted, strict=True):
            assert (g is None) is (want is None)
            if want is not None:
                equal(g, want)
    assert [n for n in compiler.names if n.endswith("forward")] == [
        f"{k}_forward" for k in range(4)
    ]
    assert len(compiler.programs[0].inputs) == 1


def test_strict_functions_name_the_program_and_the_inputs_of_another_pattern():
    x, y = leaf(), leaf(ROW + 1)
    f = aot.aot_function(product, strict=True)
    f(x, x)
    with pytest.raises(
        StrictCallError, match=r"different arrays as inputs 0 and 1 \(`x` and `y`\), program 0"
    ):
        f(x, y)
    f = aot.aot_function(product, strict=True)
    f(x, y)
    with pytest.raises(StrictCallError, match="the same array as inputs 0 and 1"):
        f(x, x)
    g = aot.aot_function(product, strict=True)
    g(x, ROW)
    g(x, y.detach())
    with pytest.raises(StrictCallError, match=r"as input 1 \(`y`\) of program"):
        g(x, y)
    # The converse is right with the same program.
    h = aot.aot_function(product, strict=True)
    h(x, y)
    out = h(x, y.detach())
    equal(grad(out.sum(), x)[0], numpy.cos(ROW) * (ROW + 1))
    assert not h(x.detach(), y.detach()).requires_grad


def test_types_structures_and_static_values_compile_again():
    compiler = Compiler()

    def f(xs, power=2, name="a"):
        total = xs["a"] ** power
        return total + 1 if name == "a" else total

    g = aot.aot_function(f, compiler)
    g({"a": ROW})
    g({"a": ROW})
    g({"a": ROW}, 3)
    g({"a": ROW}, 2, name="b")
    g({"a": ROW[:2]})
    g({"a": ROW, "b": None})
    with jax.enable_x64(True):
        g({"a": ROW.astype("float64")})
    assert compiler.names == [f"{k}_inference" for k in range(6)]
    equal(g({"a": ROW}, 3), ROW**3 + 1)


def test_variables_that_lie_in_memory_otherwise_compile_again():
    def f(x):
        y = x.reshape(-1)
        y += 1
        return y

    compiled = aot.aot_function(f)
    for transposed in (False, True, False):
        m = Variable(numpy.zeros((2, 2), "float32"))
        x = m.T if transposed else m
        out = compiled(x)
        # The reshaped array is a copy of a transposed one.
        assert (out.memory is x.memory) is not transposed
        equal(m, numpy.full((2, 2), 0 if transposed else 1))


def test_numbers_are_inputs_with_dynamic_and_static_without():
    for dynamic, count in ((True, 1), (False, 2)):
        compiler = Compiler()
        f = aot.aot_function(lambda x, a: x * a, compiler, dynamic=dynamic)
        equal(f(ROW, 2.0), ROW * 2)
        equal(f(ROW, -0.0), ROW * 0)
        assert len(compiler.names) == count
    f = aot.aot_function(lambda x, a: 1 / (x * a))
    assert numpy.isposinf(f(numpy.float32(1), 0.0)) and numpy.isneginf(f(numpy.float32(1), -0.0))


def test_captured_variables_have_gradients_and_their_current_values():
    w = leaf(ROW + 1)
    compiler = Compiler()
    f = aot.aot_function(lambda x: x * w, compiler)
    for _ in range(2):
        equal(grad(f(ROW).sum(), w)[0], ROW)
    with no_grad():
        w[...] = 3.0
    equal(f(ROW), ROW * 3)
    w.requires_grad = False
    assert not f(ROW).requires_grad
    assert compiler.names == ["0_forward", "0_backward", "1_inference"]


def test_registered_rules_are_seen_at_once():
    f = aot.aot_function(lambda x: functx.nn.silu(x))
    before = f(ROW)
    with functx.decomp.scoped():
        functx.decomp.register("silu")(lambda x: x * 100)
        equal(f(ROW), ROW * 100)
    equal(f(ROW), before)


# Derivatives.


def test_a_gradient_can_be_differentiated():
    f = aot.aot_function(lambda x, y: np.sin(x) * y * x)
    x, y = leaf(), leaf(ROW + 1)
    plain = lambda x, y: np.sin(x) * y * x  # noqa: E731
    found = []
    for g in (f, plain):
        first = grad(g(x, y).sum(), [x, y], create_graph=True)
        second = grad((first[0] * first[1]).sum(), [x, y], create_graph=True)
        found.append([*first, *second, *grad(second[0].sum(), [x, y])])
    for a, b in zip(*found, strict=True):
        equal(a, b.numpy())


def test_effects_happen_once_also_where_the_gradient_is_differentiated(capsys):
    def f(x):
        functx.debug.print("called")
        return x**3

    x = leaf()
    (first,) = grad(aot.aot_function(f)(x).sum(), x, create_graph=True)
    equal(grad(first.sum(), x)[0], 6 * ROW)
    assert capsys.readouterr().out == "called\n"


def test_inside_other_transforms_it_is_the_function_itself():
    f = aot.aot_function(lambda x: (np.sin(x) * x).sum())
    plain = lambda x: (np.sin(x) * x).sum()  # noqa: E731
    rows = numpy.stack([ROW, ROW + 1])
    for transform in (
        lambda g: functx.vmap(functx.grad(g))(rows),
        lambda g: functx.jit(functx.hessian(g))(ROW),
        lambda g: functx.jvp(g, (ROW,), (ROW,))[1],
        lambda g: jax.jit(jax.grad(g))(ROW),
        lambda g: functx.vjp(g, ROW)[1](numpy.float32(2.0))[0],
    ):
        equal(transform(f), numpy.asarray(transform(plain)))


def test_duals_and_batched_walks_go_through_it():
    f = aot.aot_function(lambda x: np.sin(x) * x)
    with fwad.dual_level():
        out = f(fwad.make_dual(Variable(ROW), Variable(numpy.ones_like(ROW))))
        equal(fwad.unpack_dual(out).tangent, numpy.cos(ROW) * ROW + numpy.sin(ROW))
    x = leaf()
    (rows,) = grad(f(x), x, numpy.eye(3, dtype="float32"), is_grads_batched=True)
    equal(rows, numpy.diag(numpy.cos(ROW) * ROW + numpy.sin(ROW)))


def test_masks_of_values_that_were_not_selected_pass_it():
    x = leaf(numpy.array([-1.0, 0.0, 2.0], "float32"))
    for f in (np.log, aot.aot_function(np.log)):
        (g,) = grad(np.where(x > 0, f(x), 0.0).sum(), x)
        equal(g, [0.0, 0.0, 0.5])
    compiler = Compiler()
    masked = np.maximum(aot.aot_function(lambda v: v * x, compiler)(x), 0)
    equal(grad(masked.sum(), x)[0], [-2.0, 0.0, 4.0])
    assert compiler.emptied == ["0_forward", "0_backward"]
    for f in (np.sin, aot.aot_function(np.sin)):
        (g,) = grad(np.where(x > 0, f(np.log(x)), 0.0).sum(), x)
        equal(g, [0.0, 0.0, numpy.cos(numpy.log(2)) / 2])
    for f in (
        lambda v: np.where(v > 0, v, 0.0),
        aot.aot_function(lambda v: np.where(v > 0, v, 0.0)),
    ):
        (g,) = grad(f(np.sqrt(x * (x > 0))).sum(), x)
        equal(g, [0.0, 0.0, 0.5 / numpy.sqrt(2)])


def test_gradients_that_do_not_depend_on_the_given_ones_are_none():
    f = aot.aot_function(lambda x, y: (x * 2, y * 3))
    x, y = leaf(), leaf()
    a, b = f(x, y)
    first = grad(a.sum(), [x, y], allow_unused=True, retain_graph=True)
    assert first[1] is None
    equal(first[0], [2, 2, 2])
    equal(grad(b.sum(), y)[0], [3, 3, 3])


def test_walks_free_saved_values_and_hooks_see_the_node():
    f = aot.aot_function(lambda x: np.exp(x) * x)
    x = leaf()
    out = f(x)
    assert out.grad_fn.name() == "lambdaBackward"
    seen = []
    out.grad_fn.register_hook(lambda inputs, outputs: seen.append(len(inputs)))
    out.sum().backward(retain_graph=True)
    out.sum().backward()
    assert seen == [1, 1]
    with pytest.raises(functx.errors.FreedValueError):
        out.sum().backward()


def test_saved_values_keep_neither_history_nor_cycles():
    f = aot.aot_function(lambda x: (np.exp(x), x[1:] * 2))
    gc.collect()
    gc.disable()
    try:
        x = leaf()
        outs = f(x)
        kept = [weakref.ref(o) for o in outs] + [weakref.ref(outs[0].grad_fn), weakref.ref(x)]
        (outs[0].sum() + outs[1].sum()).backward()
        del outs, x
        assert all(r() is None for r in kept)
    finally:
        gc.enable()


def test_a_saved_input_must_not_be_written_to_before_the_walk():
    f = aot.aot_function(lambda x: np.exp(x) * x)
    x = leaf() * 1
    out = f(x)
    x *= 2
    with pytest.raises(functx.errors.SavedValueError):
        out.sum().backward()


def test_saved_tensor_hooks_pack_what_is_saved():
    f = aot.aot_function(lambda x: np.sin(np.cos(x)))
    packed = []

    def pack(x):
        packed.append(x.shape)
        return x.numpy()

    x = leaf()
    with functx.autograd.saved_tensors_hooks(pack, lambda p: p * 1):
        out = f(x)
    assert packed
    out.sum().backward()
    equal(x.grad, -numpy.cos(numpy.cos(ROW)) * numpy.sin(ROW))


def test_compiled_walks_call_it():
    f = aot.aot_function(lambda x: np.sin(x) * x)
    with functx.compiled_autograd.enable():
        for _ in range(3):
            x = leaf()
            (f(x) * 2).sum().backward()
            equal(x.grad, 2 * (numpy.cos(ROW) * ROW + numpy.sin(ROW)))


def test_threads_compile_once_and_get_right_results():
    compiler = Compiler()
    f = aot.aot_function(product, compiler)
    results = []

    def work(k):
        x = leaf(ROW + k)
        f(x, ROW).sum().backward()
        results.append((k, x.grad.numpy()))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert len(results) == 6
    for k, g in results:
        equal(g, numpy.cos(ROW + k) * ROW)
    assert sorted(compiler.names) == ["0_backward", "0_forward"]


def test_variables_of_64_bits_keep_their_type_where_the_switch_is_off():
    with jax.enable_x64(True):
        x = Variable(numpy.array([1.0, 2.0]), requires_grad=True)
    f = aot.aot_function(lambda x: np.sin(x) * x)
    out = f(x)
    assert out.dtype == numpy.float64
    out.sum().backward()
    assert x.grad.dtype == numpy.float64
    numpy.testing.assert_allclose(
        x.grad.numpy(), numpy.cos([1, 2]) * [1, 2] + numpy.sin([1, 2]), rtol=1e-14
    )


# Mistakes.


@pytest.mark.parametrize(
    "option", ["fw_compiler", "bw_compiler", "inference_compiler", "partition_fn"]
)
def test_a_compiler_must_be_a_function(option):
    with pytest.raises(
        CompilerFunctionError, match=f"{option} must be a function of a program; got int"
    ):
        aot.aot_function(product, **{option: 3})


def test_the_cure_for_a_wrong_partition_function_names_partitions():
    with pytest.raises(CompilerFunctionError, match="default_partition") as error:
        aot.aot_function(product, partition_fn=3)
    assert "default_compiler" not in str(error.value)


def test_compilers_and_partitions_must_return_what_can_be_run():
    with pytest.raises(CompilerFunctionError, match="must return a function of the list of inputs"):
        aot.aot_function(product, lambda program: 3)(ROW, ROW)
    with pytest.raises(
        CompilerFunctionError, match=r"must return a functx\.aot\.Partition; got int"
    ):
        aot.aot_function(product, partition_fn=lambda joint: 3)(leaf(), ROW)
    with pytest.raises(CompiledResultError, match="a list of 1 values; got 0"):
        aot.aot_function(product, lambda program: lambda values: [])(ROW, ROW)
    state = Variable(ROW)
    with pytest.raises(CompiledResultError, match=r"got no write to Variable<f32\[3\]>"):
        aot.aot_function(
            lambda x: x.__imul__(2) + 1, Compiler(), keep_inference_input_mutations=True
        )(state)
    with pytest.raises(CompiledResultError, match=r"got f32\[2\] as number 0, expected f32\[3\]"):
        aot.aot_function(product, lambda program: lambda values: [ROW[:2]])(ROW, ROW)


def test_wrong_arguments_are_named():
    with pytest.raises(ArgumentError, match="aot_function: the first argument must be a function"):
        aot.aot_function(3)
    with pytest.raises(
        StaticArgumentError, match="an argument that is no array must be hashable; got set"
    ):
        aot.aot_function(product)(ROW, {1})


@pytest.mark.parametrize("dtype", [numpy.float16, np.float16, jax.numpy.float16, "float16"])
def test_dtypes_are_static_arguments(dtype):
    assert aot.aot_function(lambda x, dtype: x.astype(dtype))(ROW, dtype).dtype == "float16"


def test_arrays_of_other_kinds_are_no_static_arguments():
    with pytest.raises(ArgumentError, match="arguments must be arrays or numbers; got MaskedArray"):
        aot.aot_function(product)(ROW, numpy.ma.masked_array(ROW, [0, 1, 0]))


def test_leaves_and_constants_refuse_writes_that_would_lose_a_derivative_and_stay_as_they_were():
    def write(x, y):
        x *= y
        return x

    f = aot.aot_function(write)
    x = leaf()
    with pytest.raises(LeafWriteError, match="a write to `x`"):
        f(x, ROW)
    equal(x, ROW)
    array = numpy.array(ROW)
    with pytest.raises(LostDerivativeError):
        f(array, x)
    equal(array, ROW)
    with no_grad():
        f(x, ROW)
    equal(x, ROW * ROW)
