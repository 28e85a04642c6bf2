"""Analysis of functions: inputs that are written to, and outputs that share memory."""

import numpy as onp
import pytest

import functx as fx
import functx.numpy as np
from functx import aot
from functx.aot import BaseKind, MutationKind, OutputKind
from functx.autograd import Variable, inference_mode, no_grad
from functx.core.errors import ArgumentError, TreeError

X = onp.linspace(0.5, 2.0, 4, dtype=onp.float32)
PLAIN, INPUT = OutputKind.PLAIN, OutputKind.ALIAS_OF_INPUT
SAME, VIEW = OutputKind.IS_INPUT, OutputKind.ALIAS_OF_INTERMEDIATE
NEW, SAVED, USER = BaseKind.NEW, BaseKind.SAVED, BaseKind.USER_OUTPUT


def writes_data(x):
    x *= 2.0


def writes_a_part(x):
    x[1:][0] = 3.0


def writes_under_no_grad(x):
    with no_grad():
        x *= 2.0


def writes_an_item_under_no_grad(x):
    with no_grad():
        x[0] = np.sum(x)


def writes_in_inference_mode(x):
    with inference_mode():
        x += 1.0


def writes_a_detached_alias(x):
    x.detach()[1:] += 1.0


def writes_twice(x):
    with no_grad():
        x *= 2.0
    x *= 2.0


def writes_in_a_loop(x):
    def step(i, c):
        x[...] = x * 2.0
        return c

    fx.lax.fori_loop(0, 3, step, 0.0)


def writes_nothing_new(x):
    x[...] = x
    x[1:] = x[1:]


def writes_there_and_back(x):
    before = x[...].copy()
    x *= 2.0
    x[...] = before


WRITES = {
    # The function: whether data changes, is hidden, is written under no_grad.
    writes_data: (True, False, False),
    writes_a_part: (True, False, False),
    writes_under_no_grad: (True, False, True),
    writes_an_item_under_no_grad: (True, False, True),
    writes_in_inference_mode: (True, False, True),
    writes_a_detached_alias: (True, True, False),
    writes_twice: (True, False, False),
    writes_in_a_loop: (True, False, False),
    writes_nothing_new: (False, False, False),
    writes_there_and_back: (False, False, False),
    np.sin: (False, False, False),
}


@pytest.mark.parametrize("f", WRITES, ids=lambda f: f.__name__)
def test_writes_to_inputs_are_found(f):
    data, hidden, no_grad_only = WRITES[f]
    for needs in (True, False):
        for keep in (True, False):
            (info,) = aot.analyze(f, keep, requires_grad=needs)(X).inputs
            assert (info.mutates_data, info.is_hidden, info.is_under_no_grad) == WRITES[f]
            assert not info.mutates_metadata
            in_graph = keep and (not needs or hidden or no_grad_only)
            expected = MutationKind.IN_GRAPH if in_graph else MutationKind.OUT_OF_GRAPH
            assert info.kind is (expected if data else MutationKind.NOT_MUTATED)
            assert info.gets_history is (needs and data)


def test_an_input_gets_the_history_of_what_is_written_to_it():
    def f(x, y):
        x *= y

    x, y = aot.analyze(f, True, requires_grad=(False, True))(X, X + 1).inputs
    assert not x.requires_grad and x.gets_history and x.kind is MutationKind.OUT_OF_GRAPH
    assert y.kind is MutationKind.NOT_MUTATED


def test_an_input_that_requires_a_gradient_still_does_after_a_write_of_a_constant():
    def f(x, y):
        x[...] = 3.0
        y[...] = 3.0
        return x[1:], y

    meta = aot.analyze(f, requires_grad=(True, False))(X, X + 1)
    assert [info.gets_history for info in meta.inputs] == [True, False]
    assert [out.requires_grad for out in meta.outputs] == [True, False]
    assert meta.mask == [True, False, False, False]

    def of_an_intermediate(x, y):
        z = x * y
        z[...] = 3.0
        return z, z * y

    for grad in (True, False):
        outs = aot.analyze(of_an_intermediate, requires_grad=(grad, False))(X, X + 1).outputs
        assert [out.requires_grad for out in outs] == [grad, grad]


def views_of_one(x):
    y = x * 2.0
    return y[1:], y[:2], y.reshape(2, 2)


def view_and_base(x):
    y = x * 2.0
    return y[1:], y


def one_view(x):
    return (x * 2.0)[1:]


def views_of_two(x):
    y, z = x * 2.0, x * 3.0
    return y[1:], z[1:], y[2:], z[2:]


OUTPUTS = {
    # The function: kind, base and kind of base of each output; the number of bases.
    (lambda x: x): ([(SAME, 0, None)], 0),
    (lambda x: x.copy()): ([(PLAIN, None, None)], 0),
    (lambda x: x[1:]): ([(INPUT, 0, None)], 0),
    (lambda x: (x.reshape(2, 2).T, x[:1])): ([(INPUT, 0, None)] * 2, 0),
    (lambda x: np.split(x, 2)): ([(PLAIN, None, None)] * 2, 0),
    (lambda x: (*np.split(x, 2), x)): ([(INPUT, 0, None)] * 2 + [(SAME, 0, None)], 0),
    (lambda x: np.split(x * 2.0, 2)): ([(PLAIN, None, None)] * 2, 0),
    views_of_one: ([(VIEW, 0, NEW), (VIEW, 0, SAVED), (VIEW, 0, SAVED)], 1),
    view_and_base: ([(VIEW, 1, USER), (PLAIN, None, None)], 0),
    one_view: ([(PLAIN, None, None)], 0),
    views_of_two: ([(VIEW, 0, NEW), (VIEW, 1, NEW), (VIEW, 0, SAVED), (VIEW, 1, SAVED)], 2),
    (lambda x: (3.0, np.zeros(2), np.argmax(x))): ([(PLAIN, None, None)] * 3, 0),
    (lambda x: x.detach()): ([(INPUT, 0, None)], 0),
    (lambda x: output_and_detached(x)): ([(PLAIN, None, None), (VIEW, 0, USER)], 0),
    # An alias of an array with a history of its own keeps that, and not the memory.
    (lambda x: writes_history(x)): ([(PLAIN, None, None)], 0),
}


def writes_history(x):
    y = x.detach()
    y *= np.sin(x)
    return y


def output_and_detached(x):
    y = x * 2.0
    return y, y.detach()


@pytest.mark.parametrize("number", range(len(OUTPUTS)))
def test_outputs_that_share_memory_are_found(number):
    f, (expected, bases) = list(OUTPUTS.items())[number]
    meta = aot.analyze(f)(X)
    assert [(o.kind, o.base, o.base_kind) for o in meta.outputs] == expected
    assert len(meta.bases) == bases
    assert len(meta.mask) == len(meta.mutated) + len(expected) + bases


@pytest.mark.parametrize("f", [views_of_one, views_of_two, view_and_base])
def test_a_base_that_needs_no_gradient_is_plain(f):
    meta = aot.analyze(f, requires_grad=False)(X)
    assert {o.kind for o in meta.outputs} == {PLAIN} and not meta.bases
    assert not any(meta.mask) and not meta.is_training


def test_storages_tell_which_outputs_share_memory():
    def f(x, y):
        z = x + y
        return z, z[1:], x[1:], y, np.sin(z), z.copy(), x.detach()

    meta = aot.analyze(f, requires_grad=False)(X, X + 1)
    z, view, of_x, of_y, *others, detached = [o.storage for o in meta.outputs]
    assert z == view and of_x == detached == 0 and of_y == 1
    assert len({z, 0, 1, *others}) == 3 + len(others)


def test_views_are_taken_again_from_their_base():
    def f(x):
        y = x * 2.0
        return x[1:].reshape(3, 1), y.reshape(2, 2)[:, ::-1], y, x.detach()[::2]

    meta = aot.analyze(f)(X)
    plain = f(Variable(X))
    x = Variable(X)
    bases = [x, plain[2], None, x]
    for info, base, out in zip(meta.outputs, bases, plain, strict=True):
        if base is not None:
            onp.testing.assert_array_equal(info.replay(base), out)
    view = meta.outputs[0].replay(x)
    view *= 10.0
    onp.testing.assert_array_equal(x, [0.5, 10.0, 15.0, 20.0])
    array = X.copy()
    assert onp.shares_memory(meta.outputs[0].replay(array), array)


def test_flags_of_variables_and_of_arguments_say_what_needs_a_gradient():
    x, y = Variable(X, requires_grad=True), Variable(X)

    def f(*args):
        return sum(args[1:], args[0])

    def needs(meta):
        return [info.requires_grad for info in meta.inputs]

    assert needs(aot.analyze(f)(X, X.astype(int))) == [True, False]
    assert needs(aot.analyze(f)(x, y, X)) == [True, False, False]
    assert needs(aot.analyze(f, requires_grad=True)(x, y, X, 3)) == [True, True, True, False]
    assert needs(aot.analyze(f, requires_grad=(False, True))(X, X)) == [False, True]
    captured = aot.analyze(lambda z: z * x * X)(X)
    assert needs(captured) == [True, True, False]
    nested = aot.analyze(lambda d, y: d["a"] * y, requires_grad=({"a": False, "b": True}, True))
    assert needs(nested({"a": X, "b": X}, X)) == [False, True, True]
    x2 = x * 2.0
    assert [i.is_leaf for i in aot.analyze(f)(x, x2).inputs] == [True, False]


def test_arguments_may_be_types_none_and_what_is_no_array():
    def f(x, mode, nothing, *, scale):
        assert mode == "twice" and nothing is None
        x *= scale

    meta = aot.analyze(f)(
        fx.core.types.ShapedArray((4,), onp.dtype("float32")), "twice", None, scale=2.0
    )
    assert [info.name for info in meta.inputs] == ["x", "scale"] and meta.mutated == [0]


def test_nothing_runs_and_the_function_is_traced_once():
    calls = []

    def f(x):
        calls.append(x)
        fx.debug.print("{}", x)
        x *= 2.0
        return x[1:]

    x = X.copy()
    meta = aot.analyze(f)(x)
    assert len(calls) == 1 and (x == X).all()
    assert {e.name for e in meta.effects} <= {"callback", "ordered"} and meta.effects


def test_effects_and_draws_are_noted():
    def f(x):
        fx.debug.print("{}", x, ordered=True)
        return x * fx.random.rand(4)

    meta = aot.analyze(f)(X)
    assert meta.draws and [kind.name for kind in meta.tokens] == ["ordered"]
    assert str(meta).startswith("f with ordered, random draws\n")
    # The state of the generator is a captured value that the function writes to.
    assert [info.mutates_data for info in meta.inputs] == [False, True]
    meta = aot.analyze(np.sin)(X)
    assert not meta.draws and not meta.tokens


def test_the_table_shows_writes_and_sharing():
    def f(x, y):
        x *= 2.0
        with no_grad():
            y += 1.0
        z = x + y
        return z[1:], z[2:], x, 1

    assert str(aot.analyze(f, True)(X, X + 1)).splitlines() == [
        "f",
        "             type    grad  memory",
        "  x          f32[4]  yes   written to out of graph",
        "  y          f32[4]  yes   written to in graph, under no_grad",
        "  -> 0       f32[3]  yes   view of base 0",
        "  -> 1       f32[2]  yes   view of base 0",
        "  -> 2       f32[4]  yes   is x",
        "  -> 3       ~i32[]  no    plain",
        "  -> base 0  f32[4]  yes   base of aliased outputs",
    ]


def test_flags_that_do_not_fit_are_refused():
    with pytest.raises(ArgumentError, match=r"the first argument must be a function; got int"):
        aot.analyze(3)
    with pytest.raises(TreeError, match=r"analyze: requires_grad must be a tree prefix"):
        aot.analyze(np.sin, requires_grad=(True, False))(X)
    with pytest.raises(ArgumentError, match=r"requires_grad must be a bool.*; got int in it"):
        aot.analyze(np.sin, requires_grad=(1,))(X)
    with pytest.raises(
        ArgumentError, match=r"keep_input_mutations must be a bool; got tuple[^$]*second"
    ):
        aot.analyze(np.multiply, (X, X))


def test_a_write_to_a_detached_alias_keeps_the_derivative_of_the_array():
    def f(x, w):
        x = x * 1.0
        y = x.detach()
        y *= w
        return np.sum(np.sin(x)) + np.sum(y)

    w = X + 1.0
    dx, dw = fx.grad(f, argnums=(0, 1))(X, w)
    onp.testing.assert_allclose(dx, onp.cos(X * w), rtol=1e-5)
    onp.testing.assert_allclose(dw, X, rtol=1e-5)
    x, v = Variable(X, requires_grad=True), Variable(w, requires_grad=True)
    f(x, v).backward()
    onp.testing.assert_allclose(x.grad, dx, rtol=1e-5)
    onp.testing.assert_allclose(v.grad, dw, rtol=1e-5)


def each_detached_alias(x, w):
    x = x * 1.0
    y = x.detach()
    y *= w
    z = x.detach()
    x += 1.0
    x.detach()[1:] *= 3.0
    return np.sum(np.sin(y)) + np.sum(z * 2.0) + np.sum(x * w)


def test_each_detached_alias_has_a_history_of_its_own():
    # After later writes it has their values, and the derivative of what was written to itself.
    w = X + 1.0
    x, v = Variable(X, requires_grad=True), Variable(w, requires_grad=True)
    each_detached_alias(x, v).backward()
    grads = fx.grad(each_detached_alias, argnums=(0, 1))(X, w)
    for grad, wanted in zip(grads, (x.grad, v.grad), strict=True):
        onp.testing.assert_allclose(grad, wanted, rtol=1e-5)
