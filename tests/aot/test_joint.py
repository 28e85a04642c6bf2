"""Joint functions, functions prepared by their analysis, and programs that write to their inputs at the end."""

import jax
import numpy as onp
import pytest

import functx as fx
import functx.numpy as np
from functx import aot
from functx.aot import Part, program_part
from functx.autograd import Variable, no_grad
from functx.core.effects import Effect
from functx.core.errors import (
    ArgumentError,
    BackwardWriteError,
    DTypeError,
    LossOutputError,
    OutputCountError,
    OutputMaskError,
    ShapeError,
    TangentCountError,
)
from tests.by_reference import by_reference
from tests.mutation.agreement import TracedFlow, with_numpy
from tests.mutation.programs import generate

X = onp.linspace(0.5, 2.0, 4, dtype=onp.float32)
Y = onp.linspace(-1.0, 1.0, 4, dtype=onp.float32)


def close(got, wanted):
    onp.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def scales(x, y):
    x *= y
    return x[1:], x * y, np.sum(y)


def shares_an_intermediate(x, y):
    z = x * 2.0 + y
    y += 1.0
    return z[1:], z.reshape(2, 2), y


def writes_through_views(x, y):
    x[1:][::2] += y[:2]
    y[0] = np.sum(x)
    return x.reshape(2, 2) * y[0]


def writes_under_no_grad(x, y):
    with no_grad():
        x *= 2.0
        y[1:] = x[1:]
    return np.sin(x) * y, x


def writes_a_detached_alias(x, y):
    x.detach()[...] = y * 3.0
    z = y.detach()
    z += 1.0
    return np.sin(x), y * x, z


def overwrites_with_a_number(x, y):
    x[...] = 3.0
    return x * y, x[1:]


def overwrites_an_intermediate(x, y):
    z = x * 2.0
    z[...] = y.detach()
    x[::-1][...] = np.cos(y)
    return np.sin(z), z, x


def returns_what_it_takes(x, y):
    return x, y * 1.0, x


FUNCTIONS = [
    scales,
    shares_an_intermediate,
    writes_through_views,
    writes_under_no_grad,
    writes_a_detached_alias,
    overwrites_with_a_number,
    overwrites_an_intermediate,
    returns_what_it_takes,
]


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("f", FUNCTIONS)
def test_joint_functions_agree_with_plain_calls_on_variables(f, keep):
    meta = aot.analyze(f, keep)(X, Y)
    joint = aot.create_joint(aot.fn_prepped_for_autograd(f, meta))
    x, y = X.copy(), Y.copy()
    values, grads = joint([x, y], [onp.ones(a.shape, a.dtype) for a in tangent_avals(meta)])
    first, end = len(meta.mutated), len(meta.mutated) + len(meta.outputs)
    wanted, wanted_grads, afterwards = plain_walk(f, meta)
    for got, out in zip(values[first:end], wanted, strict=True):
        close(got, out)
    for grad, expected in zip(grads, wanted_grads, strict=True):
        close(onp.zeros(4, "float32") if grad is None else grad, expected)
    for i, new in zip(meta.mutated, values[:first], strict=False):
        close(new, afterwards[i])
    for i, (array, before) in enumerate(((x, X), (y, Y))):
        close(array, afterwards[i] if i in meta.in_graph else before)


def tangent_avals(meta):
    avals = [meta.inputs[i].aval for i in meta.mutated]
    avals += [out.aval for out in meta.outputs]
    return [a for a, on in zip([*avals, *meta.bases], meta.mask, strict=True) if on]


def plain_walk(f, meta):
    """Outputs, gradients and inputs afterwards of a call on Variables, walked from what takes a tangent."""
    leaves = [Variable(x, requires_grad=True) for x in (X, Y)]
    args = [x * 1.0 for x in leaves]
    outs = f(*args)
    roots = [args[i] for i in meta.mutated] + list(outs if isinstance(outs, tuple) else [outs])
    total = sum([np.sum(x) for x, on in zip(roots, meta.mask, strict=False) if on], Variable(0.0))
    if meta.bases:
        # The base has all elements of its views.
        (base,) = {id(out.owner): out.owner for out in outs if out.owner is not out}.values()
        total = total + np.sum(base)
    total.backward()
    zeros = onp.zeros(4, "float32")
    grads = [zeros if x.grad is None else x.grad for x in leaves]
    return roots[len(meta.mutated) :], grads, args


def test_gradients_lie_along_all_primals():
    def f(x, i, d, unused):
        return [np.sum(x * d["a"]) * i, np.argmax(x)], [True, False]

    joint = aot.create_joint(f)
    args = X, onp.int32(3), {"a": Y, "b": X}, X
    outs, (dx, di, dd, du) = joint(args, [onp.float32(2.0)])
    close(outs[0], 3 * onp.sum(X * Y))
    close(dx, 6 * Y)
    close(dd["a"], 6 * X)
    assert di is None and dd["b"] is None and du is None
    outs, grads = aot.create_joint(f, zeros=True)(list(args), [onp.float32(2.0)])
    assert type(grads) is list and grads[1] is None
    close(grads[2]["b"], onp.zeros(4))
    close(grads[3], onp.zeros(4))
    _, grads = aot.create_joint(f, (False, False, {"a": True, "b": True}, False))(args, [1.0])
    assert grads[0] is None and grads[2]["a"] is not None


def test_nothing_is_differentiated_where_no_primal_needs_it():
    def f(x):
        return [np.exp(np.sin(x))], [True]

    program = fx.make_ir(aot.create_joint(f, requires_grad=False))([X], [X])
    assert [e.primitive.name for e in program] == ["sin", "exp"]
    assert aot.create_joint(f, False)([X], [X])[1] == [None]
    x = Variable(X)
    assert aot.create_joint(f)([x], [x])[1] == [None]


def test_a_joint_function_of_variables_takes_their_flags():
    def f(x, y):
        return [x * y], [True]

    x, y = Variable(X, requires_grad=True), Variable(Y)
    outs, (dx, dy) = aot.create_joint(f)((x, y), (onp.ones(4, "float32"),))
    assert dy is None
    close(dx, Y)
    # A gradient has a history, since it is computed from Variables.
    (dx,) = aot.create_joint(lambda x: ([x * x], [True]))((x,), (onp.ones(4, "float32"),))[1]
    np.sum(dx).backward()
    close(x.grad, 2 * onp.ones(4))


def test_a_tangent_of_another_shape_reshapes_the_output():
    def f(x):
        return [x.reshape(2, 2) * X.reshape(2, 2)], [True]

    _, (grad,) = aot.create_joint(f)([Y], [Y])
    close(grad, X * Y)
    _, (grad,) = aot.create_joint(f)([Y], [None])
    assert grad is None


def test_a_loss_alone_takes_no_tangent():
    def f(x):
        return [np.sum(np.sin(x)), x], [True, False]

    outs, (grad,) = aot.create_joint(f, loss_only=True)([X])
    close(grad, onp.cos(X))
    program = fx.make_ir(aot.create_joint(f, loss_only=True))([X])
    assert len(program.inputs) == 1


def test_joint_functions_are_transformed():
    def f(x, y):
        return [np.sin(x) * y], [True]

    joint = aot.create_joint(f)
    rows = onp.stack([X, Y])
    ones = onp.ones(4, "float32")
    _, (dx, _) = fx.vmap(lambda x, y: joint([x, y], [ones]))(rows, rows)
    close(dx, onp.cos(rows) * rows)
    second = fx.grad(lambda x: np.sum(joint([x, Y], [ones])[1][0]))(X)
    close(second, -onp.sin(X) * Y)
    close(fx.jit(lambda x: joint([x, Y], [ones])[1][1])(X), onp.sin(X))


def test_equations_have_the_part_that_they_are_made_in():
    def f(x):
        return [np.sin(x) * x], [True]

    program = fx.make_ir(aot.create_joint(f))([X], [X])
    parts = [(e.primitive.name, e.part) for e in program]
    assert parts[:2] == [("sin", Part.FORWARD), ("mul", Part.FORWARD)]
    assert {part for _, part in parts[2:]} == {Part.BACKWARD}
    again = fx.Program.parse(str(program))
    assert [e.part for e in again] == [part for _, part in parts] and again == program
    assert str(again) == str(fx.Program.parse(str(again)))
    with pytest.raises(fx.errors.ParseError, match="must have one of forward, backward"):
        fx.Program.parse(str(program).replace("@backward", "@back"))
    # Equality is that of what is computed.
    assert fx.Program.parse(str(program).replace("@backward", "@forward")) == program


def test_parts_nest_and_are_restored():
    def f(x):
        x = np.sin(x)
        with program_part(Part.BACKWARD):
            x = np.cos(x)
            with program_part(Part.STAYS_FORWARD):
                x = np.tan(x)
            with no_grad():
                x = np.exp(x)
            x = np.log(x)
        return np.tanh(x)

    parts = {e.primitive.name: e.part for e in fx.make_ir(f)(X)}
    assert parts["sin"] is parts["tanh"] is None
    assert parts["cos"] is parts["exp"] is parts["detach"] is parts["log"] is Part.BACKWARD
    assert parts["tan"] is Part.STAYS_FORWARD
    with program_part(Part.BACKWARD):
        close(np.sin(X), onp.sin(X))


def counts_calls(x, n):
    n += 1
    m = n[:1]
    m *= 2
    return x * n, n, m, n.copy()


def test_inputs_in_the_graph_are_written_at_the_end():
    n = onp.array([3, 4], "int32")
    x = onp.ones(2, "float32")
    meta = aot.analyze(counts_calls, keep_input_mutations=True)(x, n)
    assert meta.in_graph == [1] and not meta.mutated
    pure = aot.fn_input_mutations_to_outputs(counts_calls, meta)
    functionalized = aot.create_functionalized_fn(pure, meta)
    program = fx.make_ir(functionalized)(x, n)
    assert [e.primitive.name for e in program if e.primitive.effects] == ["write"]
    last = program.equations[-1]
    assert last.inputs[0] is program.inputs[1] and last.part is Part.STAYS_FORWARD
    # The output that is the input is returned as it.
    assert program.outputs[1] is program.inputs[1] and program.outputs[3] is not program.inputs[1]
    m = n.copy()
    outs = functionalized(x, m)
    assert outs[1] is m
    close(m, [8, 5])
    for out, wanted in zip(outs, ([8.0, 5.0], [8, 5], [8], [8, 5]), strict=True):
        close(out, wanted)
    m = n.copy()
    for out, wanted in zip(program(x, m), ([8.0, 5.0], [8, 5], [8], [8, 5]), strict=True):
        close(out, wanted)
    close(m, [8, 5])


def test_an_array_of_jax_stays_as_it_is_and_its_new_value_is_returned():
    def f(x):
        x[0] = 7.0
        return x

    x = jax.numpy.ones(2)
    meta = aot.analyze(f, True, requires_grad=False)(x)
    for g in (f, aot.fn_input_mutations_to_outputs(f, meta)):
        close(onp.ravel(aot.create_functionalized_fn(g, meta)(x)), [7.0, 1.0])
    close(x, [1.0, 1.0])


def test_a_write_that_changes_nothing_leaves_no_copy():
    def f(x, n):
        n[...] = n
        before = n.copy()
        n += 1
        n[...] = before
        return x * n

    n = onp.array([3, 4], "int32")
    meta = aot.analyze(f, keep_input_mutations=True)(X[:2], n)
    assert not meta.in_graph
    prepared = aot.fn_input_mutations_to_outputs(f, meta)
    program = fx.make_ir(aot.create_functionalized_fn(prepared, meta))(X[:2], n)
    assert not program.writes


def test_values_from_before_are_copied_where_inputs_are_overwritten():
    def f(a, b, x):
        before = a.copy()
        a[...] = b
        b[...] = before
        return before, a, x * before

    a, b = onp.array([1.0, 2.0]), onp.array([3.0, 4.0])
    meta = aot.analyze(f, True, requires_grad=(False, False, True))(a, b, X[:2])
    assert meta.in_graph == [0, 1]
    _, pure = aot_program(f, meta, a, b, X[:2])
    for program, tangents in (
        (aot.prepared.with_trailing_writes(pure, meta, None), []),
        (aot.prepared.analyzed_joint_program(meta, pure).program, [X[:2]]),
    ):
        fx.core.checking.check_program(program)
        x, y = a.copy(), b.copy()
        outs = program(x, y, X[:2], *tangents)
        close(x, b)
        close(y, a)
        for out, wanted in zip(outs, (a, b, X[:2] * a), strict=False):
            close(out, wanted)
        assert len(outs) == 3 + len(tangents)


def aot_program(f, meta, *args):
    from functx.aot.analysis import analyze_call

    analysis = analyze_call(f, args, {}, "test", meta.keep_input_mutations, meta_flags(meta))
    assert analysis.meta == meta
    return analysis.meta, analysis.program


def meta_flags(meta):
    return tuple([info.requires_grad for info in meta.inputs])


def uses_a_counter(x, n):
    n += 1.0
    y = np.sin(x * n)
    n *= 2.0
    return np.exp(y) * n


@pytest.mark.parametrize(
    "partition_of", [aot.default_partition, aot.min_cut_rematerialization_partition]
)
def test_partitions_write_to_inputs_in_the_forward_program(partition_of):
    n = onp.array([1.0, 2.0, 3.0, 4.0], "float32")
    meta = aot.analyze(uses_a_counter, True, requires_grad=(True, False))(X, n)
    assert meta.in_graph == [1]
    _, pure = aot_program(uses_a_counter, meta, X, n)
    joint = aot.prepared.analyzed_joint_program(meta, pure)
    parts = partition_of(joint)
    assert parts.forward.writes and not parts.backward.writes
    assert parts.gradients == (0, None) and not parts.mutated and len(parts.outputs) == 1
    m = n.copy()
    out, *saved = parts.forward(X, m)
    close(m, (n + 1) * 2)
    close(out, onp.exp(onp.sin(X * (n + 1))) * m)
    m[...] = onp.nan
    grads = parts.gradients_of_primals(parts.backward(*saved, onp.ones(4, "float32")))
    close(grads[0], onp.exp(onp.sin(X * (n + 1))) * onp.cos(X * (n + 1)) * (n + 1) * 2 * (n + 1))
    assert grads[1] is None


def test_the_groups_of_a_partition_have_names():
    def f(x, y):
        x *= 2.0
        z = np.sin(x) * y
        return z[1:], z[:1], y.copy(), np.sum(z)

    meta = aot.analyze(f)(X, Y)
    _, pure = aot_program(f, meta, X, Y)
    parts = aot.default_partition(aot.prepared.analyzed_joint_program(meta, pure))
    sizes = [len(g) for g in (parts.mutated, parts.outputs, parts.bases)]
    assert sizes == [1, 4, 1]
    assert [*parts.mutated, *parts.outputs, *parts.bases, *parts.saved] == parts.forward.outputs
    assert [*parts.saved_inputs, *parts.tangents] == parts.backward.inputs
    assert len(parts.tangents) == sum(meta.mask) and len(parts.saved) == len(parts.saved_inputs)
    forward, backward = parts
    assert (parts[0], parts[1], len(parts)) == (forward, backward, 2)


def test_what_must_stay_in_a_part_stays_there():
    def f(primals, tangents):
        (x,), (ct,) = primals, tangents
        y = np.sin(x)
        with program_part(Part.STAYS_FORWARD):
            kept = np.exp(y)
        with program_part(Part.STAYS_BACKWARD):
            late = np.tan(y)
        with program_part(Part.BACKWARD):
            fx.debug.print("back")
            grad = ct * kept * late * np.cos(x)
        return [y], [grad]

    program = fx.make_ir(f)([X], [Y])
    joint = aot.JointProgram(program, 1, 1)
    for partition_of in (aot.default_partition, aot.min_cut_rematerialization_partition):
        forward, backward = partition_of(joint)
        first, second = [[e.primitive.name for e in p] for p in (forward, backward)]
        assert "exp" in first and "exp" not in second
        assert "tan" in second and "tan" not in first
        assert not forward.effects and backward.effects
        y, *saved = forward(X)
        close(backward(*saved, Y)[0], Y * onp.exp(onp.sin(X)) * onp.tan(onp.sin(X)) * onp.cos(X))


def writes_in_both(primals, tangents):
    (x, n), (ct,) = primals, tangents
    n += 1.0
    y = x * n
    with program_part(Part.BACKWARD):
        grad = ct * n
        n *= 10.0
    return [y], [grad, None]


def test_a_write_in_the_backward_part_is_a_copy_of_its_own():
    n = onp.array([1.0, 2.0, 3.0, 4.0], "float32")
    meta = aot.analyze(lambda x, n: x * n, True, requires_grad=(True, False))(X, n)
    functionalized = aot.create_functionalized_fn(writes_in_both, meta, joint=True)
    program = fx.make_ir(functionalized)([X, n], [Y])
    writes = [e for e in program if e.primitive.effects]
    assert [e.part for e in writes] == [Part.STAYS_FORWARD, Part.STAYS_BACKWARD]
    assert {e.inputs[0] for e in writes} == {program.inputs[1]}
    again = fx.Program.parse(str(program))
    assert [e.part for e in again] == [e.part for e in program]
    for partition_of in (aot.default_partition, aot.min_cut_rematerialization_partition):
        parts = partition_of(aot.JointProgram(program, 2, 1, gradients=(0, None)))
        m = n.copy()
        y, *saved = parts.forward(X, m)
        close(m, n + 1)
        close(y, X * (n + 1))
        saved = [m if onp.shape(s) == (4,) and v in targets(parts.backward) else s
                 for s, v in zip(saved, parts.saved_inputs, strict=True)]  # fmt: skip
        (grad,) = parts.backward(*saved, Y)
        close(grad, Y * (n + 1))
        close(m, (n + 1) * 10)
    m = n.copy()
    functionalized([X, m], [Y])
    close(m, (n + 1) * 10)


def targets(program):
    return [e.inputs[0] for e in program if Effect.WRITE in e.primitive.effects]


def test_writes_of_the_backward_part_to_what_it_must_not_change_are_refused():
    meta = aot.analyze(lambda x: x * 1.0)(X)

    def to_a_tangent(primals, tangents):
        with program_part(Part.BACKWARD):
            tangents[0][...] *= 2.0
        return [primals[0] * 1.0], [tangents[0]]

    def to_an_input(primals, tangents):
        with program_part(Part.BACKWARD):
            primals[0][...] *= 2.0
        return [primals[0] * 1.0], [tangents[0]]

    with pytest.raises(BackwardWriteError, match=r"must not write to a tangent; got .* number 0"):
        aot.create_functionalized_fn(to_a_tangent, meta, joint=True)([X.copy()], [X.copy()])
    functionalized = aot.create_functionalized_fn(to_an_input, meta, joint=True, create_graph=True)
    with pytest.raises(BackwardWriteError, match=r"requires a gradient .*; got a write to `x`"):
        functionalized([X.copy()], [X.copy()])
    x = X.copy()
    aot.create_functionalized_fn(to_an_input, meta, joint=True)([x], [X.copy()])
    close(x, 2 * X)


@pytest.mark.parametrize("keep", [False, True])
def test_random_programs_with_writes_are_functionalized(keep, x64):
    with by_reference():
        for seed in range(60):
            program = generate(f"functionalized {seed}")
            wanted = with_numpy(program, program.inputs())
            args = program.inputs()

            def f(*args, program=program):
                return program.function()(np, TracedFlow, *args)

            meta = aot.analyze(f, keep, requires_grad=not keep)(*args)
            assert not (meta.mutated if keep else meta.in_graph)
            pure = aot.fn_input_mutations_to_outputs(f, meta)
            outs = aot.create_functionalized_fn(pure, meta)(*args)
            count = len(meta.mutated)
            for out, result in zip(outs[count:], wanted.results, strict=True):
                onp.testing.assert_allclose(out, result, rtol=1e-8, atol=1e-8, err_msg=str(program))
            after = list(args)
            for i, new in zip(meta.mutated, outs[:count], strict=True):
                after[i] = new
            for got, argument in zip(after, wanted.arguments, strict=True):
                onp.testing.assert_allclose(got, argument, rtol=1e-8, err_msg=str(program))


def test_gradients_of_random_programs_are_those_at_the_inputs_before(x64):
    with by_reference():
        for seed in range(40):
            program = generate(f"joint {seed}")
            args = program.inputs()

            def f(*args, program=program):
                return program.function()(np, TracedFlow, *args)

            meta = aot.analyze(f)(*args)
            joint = aot.create_joint(aot.fn_prepped_for_autograd(f, meta), zeros=True)

            def masked(*args, f=f, meta=meta):
                outs, mask = aot.fn_prepped_for_autograd(f, meta)(*args)
                return [out for out, on in zip(outs, mask, strict=True) if on]

            outs, pull = fx.vjp(masked, *args)
            if not outs:
                continue
            cts = [
                onp.cos(onp.arange(out.size)).reshape(out.shape).astype(out.dtype) for out in outs
            ]
            grads = joint(args, cts)[1]
            for grad, wanted in zip(grads, pull(cts), strict=True):
                if grad is not None:
                    onp.testing.assert_allclose(grad, wanted, rtol=1e-8, atol=1e-8)


MISTAKES = {
    "outputs": (
        lambda: aot.fn_prepped_for_autograd(lambda x: (x, x), aot.analyze(np.sin)(X))(X),
        OutputCountError,
        r"as many outputs as were analysed, 1; got 2",
    ),
    "inputs": (
        lambda: aot.fn_input_mutations_to_outputs(np.add, aot.analyze(np.sin)(X))(X, X),
        OutputCountError,
        r"as many inputs as were analysed, 1; got 2",
    ),
    "writes": (
        lambda: aot.fn_input_mutations_to_outputs(scales, aot.analyze(returns_what_it_takes)(X, Y))(
            X, Y
        ),
        OutputCountError,
        r"must write to the inputs that it wrote to",
    ),
    "meta": (
        lambda: aot.fn_prepped_for_autograd(np.sin, 3),
        ArgumentError,
        r"meta must be a functx.aot.Meta; got int",
    ),
    "no mask": (
        lambda: aot.create_joint(np.sin)([X], [X]),
        OutputMaskError,
        r"must return \(outputs, mask\)",
    ),
    "mask": (
        lambda: aot.create_joint(lambda x: ([x, x], [True]))([X], [X]),
        OutputMaskError,
        r"a bool for each output; got 1 for 2 outputs",
    ),
    "mask of an integer": (
        lambda: aot.create_joint(lambda x: ([np.argmax(x)], [True]))([X], [X[0]]),
        OutputMaskError,
        r"takes a tangent must be inexact; got i32",
    ),
    "tangents": (
        lambda: aot.create_joint(lambda x: ([x, x], [True, False]))([X], [X, X]),
        TangentCountError,
        r"must be 1 tangents, .*; got 2",
    ),
    "tangents of a loss": (
        lambda: aot.create_joint(lambda x: ([x[0]], [True]), loss_only=True)([X], [X]),
        TangentCountError,
        r"must be 0 tangents, .*; got 1",
    ),
    "loss": (
        lambda: aot.create_joint(lambda x: ([x], [True]), loss_only=True)([X]),
        LossOutputError,
        r"of one element; got \[f32\[4\]\]",
    ),
    "losses": (
        lambda: aot.create_joint(lambda x: ([x[0], x[1]], [True] * 2), loss_only=True)([X]),
        LossOutputError,
        r"exactly one output",
    ),
    "shape": (
        lambda: aot.create_joint(lambda x: ([x * 1.0], [True]))([X], [X[1:]]),
        ShapeError,
        r"as many elements as its output; got f32\[3\] for f32\[4\]",
    ),
    "dtype": (
        lambda: aot.create_joint(lambda x: ([x * 1.0], [True]))([X], [X.astype("float16")]),
        DTypeError,
        r"the dtype of its output; got f16\[4\] for f32\[4\]",
    ),
    "writes inside": (
        lambda: aot.default_partition(aot.JointProgram(fx.make_ir(writes_first)(X), 1, 1)),
        ArgumentError,
        r"no writes but those to its inputs at its end",
    ),
}


def writes_first(x):
    x *= 2.0
    return np.sin(x)


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_named(name):
    call, error, text = MISTAKES[name]
    with pytest.raises(error, match=text):
        call()
