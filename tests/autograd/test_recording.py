"""How recordings run: operation by operation at first, compiled when they are seen again."""

import sys
import threading
import traceback

import jax
import numpy as np
import pytest

import functx
import functx.numpy as fnp
from functx import compiled_autograd
from functx.autograd import Variable, grad, no_grad
from functx.autograd.recorded_operations import operation_of
from functx.autograd.recording import Recording, current_recording
from functx.core.captures import close_over
from functx.core.errors import AutogradError
from functx.core.tracing import trace
from functx.core.types import ShapedArray
from tests.lowering.compiling import compilations


def network(x, count, factor):
    w = Variable(0.5, requires_grad=True)
    for _ in range(count):
        x = fnp.tanh(x * w) * factor
    x.sum().backward()
    return w.grad


@compiled_autograd.disable()
def test_a_new_length_compiles_nothing_and_a_repeated_length_compiles_once():
    x = Variable([0.5, 1.0])
    for count in (1, 2):
        network(x, count, 0.9).item()
    with compilations() as count:
        lengths = {n: network(x, n, 0.9).item() for n in range(3, 8)}
    assert count.n == 0
    with compilations() as count:
        again = [network(x, 5, factor).item() for factor in (0.9, 0.9, 0.9)]
    assert count.n <= 1
    np.testing.assert_allclose(again, lengths[5], rtol=1e-5)


def test_numbers_that_change_have_their_own_results():
    x = Variable(1.0)
    signs = [np.signbit((x * zero).item()) for zero in (0.0, 0.0, 0.0, -0.0, -0.0, 0.0)]
    assert signs == [False, False, False, True, True, False]
    found = [network(Variable([0.5]), 2, n / 4).item() for n in range(1, 5)]
    exact = [
        functx.grad(lambda w, f: (fnp.tanh(fnp.tanh(0.5 * w) * f * w) * f).sum())(0.5, n / 4)
        for n in range(1, 5)
    ]
    np.testing.assert_allclose(found, exact, rtol=1e-5)


def refuse(x):
    raise ZeroDivisionError("refused")


def test_only_held_values_are_computed_and_an_error_belongs_to_those_that_depend_on_it():
    x = Variable([1.0, 2.0])
    for _ in range(3):
        y = x * 2
        lost = functx.pure_callback(refuse, y, y)
        del lost
        assert y.tolist() == [2.0, 4.0]
    for _ in range(3):
        y = x * 2
        wrong = functx.pure_callback(refuse, y, y)
        after, beside = wrong + 1, fnp.exp(y)
        for value in (after, wrong, after):
            for read in (Variable.tolist, repr):
                with pytest.raises(Exception, match="refused"):
                    read(value)
        np.testing.assert_allclose(beside.tolist(), np.exp([2.0, 4.0]), rtol=1e-6)


def test_effects_happen_once_and_in_order_although_no_result_is_held(capsys):
    x = Variable([3.0])
    for _ in range(3):
        functx.debug.print("first {}", x * 1, ordered=True)
        functx.debug.print("second {}", x * 2, ordered=True)
    functx.effects_barrier()
    lines = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert lines == ["first", "second"] * 3


def step_in_place(p, x):
    """A step of gradient descent that writes to the leaf `p`."""
    loss = (fnp.tanh(x @ p) ** 2).sum()
    loss.backward()
    with no_grad():
        p -= 0.1 * p.grad
        p.grad = None
    return loss.item()


def parameter_and_data():
    return Variable(np.ones((8, 8), "float32"), requires_grad=True), Variable(
        np.full((2, 8), 0.1, "float32")
    )


def test_a_parameter_is_updated_in_the_memory_that_it_had():
    p, x = parameter_and_data()
    losses = [step_in_place(p, x) for _ in range(3)]
    before = p.read().look().unsafe_buffer_pointer()
    losses.append(step_in_place(p, x))
    assert p.read().look().unsafe_buffer_pointer() == before
    assert losses == sorted(losses, reverse=True)


def test_referenced_values_are_not_donated():
    p, x = parameter_and_data()
    kept = []
    for _ in range(4):
        kept += [(p.compute(), p.numpy()), (p.detach().copy(), p.numpy())]
        with no_grad():
            pending = p * 2
        expected = 2 * p.numpy()
        step_in_place(p, x)
        np.testing.assert_array_equal(pending.numpy(), expected)
    for held, value in kept:
        np.testing.assert_array_equal(np.asarray(held), value)


@pytest.mark.parametrize("make", [jax.numpy.ones, fnp.ones, np.ones])
def test_the_array_that_a_variable_is_made_of_stays(make):
    given = make((8, 8), dtype="float32")
    p, other = Variable(given, requires_grad=True), Variable(given)
    taken = Variable(p.compute(), requires_grad=True)
    for _ in range(4):
        for leaf in (p, taken):
            step_in_place(leaf, parameter_and_data()[1])
    for x in (given, other, Variable(given)):
        np.testing.assert_array_equal(np.asarray(x), np.ones((8, 8)))


def test_a_value_stays_for_the_recording_of_another_thread():
    p, x = parameter_and_data()
    for _ in range(3):
        step_in_place(p, x)
    recorded, go_on = threading.Event(), threading.Event()
    found = []
    expected = 3 * p.numpy()

    def other():
        y = p.detach() * 3
        recorded.set()
        go_on.wait(60)
        found.append(y.numpy())

    thread = threading.Thread(target=other)
    thread.start()
    assert recorded.wait(60)
    step_in_place(p, x)
    go_on.set()
    thread.join(60)
    np.testing.assert_array_equal(found[0], expected)


def test_a_rule_that_reads_a_variable_of_the_user_is_asked_for_each_derivative():
    scale = {"s": 1.0}

    @functx.custom_op("recording::scaled", mutates_args=())
    def scaled(x: jax.Array) -> jax.Array:
        return x * 2

    scaled.def_abstract(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype))
    scaled.register_autograd(lambda ctx, g: g * scale["s"])
    x = Variable([1.0, 2.0], requires_grad=True)
    found = []
    for scale["s"] in (1.0, 2.0, np.array([3.0, 4.0], "float32")):
        (gradient,) = grad(scaled(x).sum(), x, create_graph=True)
        found.append(gradient.tolist())
    assert found == [[1, 1], [2, 2], [3, 4]]


def test_the_error_of_an_effect_is_raised_at_the_call_and_pure_results_stay():
    x = Variable([1.0, 2.0])
    for _ in range(3):
        y = x * 2
        with pytest.raises(ZeroDivisionError):
            functx.debug.callback(refuse, y)
        assert y.tolist() == [2.0, 4.0]


def test_a_callback_must_not_look_at_what_is_computed_together_with_it():
    x = Variable([1.0, 2.0])
    for _ in range(3):
        other = x * 3
        y = functx.pure_callback(lambda v, other=other: np.asarray(v) * other.numpy(), x, x * 2)
        with pytest.raises(AutogradError, match="together with the operation"):
            y.tolist()


def test_with_a_limit_of_one_operation_an_error_is_raised_where_it_happens():
    x = Variable([1.0])
    with functx.config.set(recording_operations=1), pytest.raises(ZeroDivisionError):
        functx.pure_callback(refuse, x, x)


def test_a_failed_value_raises_with_a_traceback_that_does_not_grow():
    y = functx.pure_callback(refuse, Variable([1.0]), Variable([1.0]))
    depths = []
    for _ in range(3):
        try:
            y.tolist()
        except ZeroDivisionError as error:
            depths.append(len(list(traceback.walk_tb(error.__traceback__))))
    assert depths[1] == depths[2]


def test_one_thread_reads_what_another_writes_in_place():
    p = Variable(np.ones((32, 32), "float32"))
    torn, interval = [], sys.getswitchinterval()

    def read():
        while thread.is_alive():
            value = p.numpy()
            if value.min() != value.max():
                torn.append(value)

    def write():
        for _ in range(200):
            with no_grad():
                p.__iadd__(1.0)
            p.read().look()

    thread = threading.Thread(target=write)
    sys.setswitchinterval(1e-6)
    try:
        thread.start()
        read()
        thread.join(60)
    finally:
        sys.setswitchinterval(interval)
    assert not torn
    assert p[0, 0].item() == 201


def test_rows_and_batches_that_start_elsewhere_compile_nothing():
    data = np.arange(24.0, dtype="float32").reshape(8, 3)
    x, w = Variable(data), Variable(np.ones(3, "float32"), requires_grad=True)

    def step(i):
        (x[i : i + 2] @ w).sum().backward()
        gradient, w.grad = w.grad, None
        return gradient.tolist(), int(x[i].argmin())

    first = [step(i) for i in range(3)]
    with compilations() as count:
        later = [step(i) for i in range(3, 7)]
    assert count.n == 0
    assert first + later == [([*data[i : i + 2].sum(0)], 0) for i in range(7)]


def test_a_step_leaves_alone_what_a_recording_holds_of_a_call_that_raised():
    w = Variable([1.0, 2.0])

    @functx.jit
    def step():
        w[...] = w * 2

    step()
    failed = functx.pure_callback(refuse, jax.ShapeDtypeStruct((2,), "float32"), Variable(1.0))
    with pytest.raises(ZeroDivisionError):
        failed.numpy()
    try:
        w + failed
    except ZeroDivisionError as error:
        error.__traceback__ = None  # It refers to the operands.
    y = w + 1
    step()
    assert (y.tolist(), w.tolist()) == ([3.0, 5.0], [4.0, 8.0])


def test_a_call_with_captured_arrays_moves_to_a_new_recording_if_another_thread_runs_the_first(
    monkeypatch,
):
    program, captured = trace(lambda x: [x * CAPTURED], [ShapedArray((2,), np.dtype("float32"))])
    operation = operation_of(close_over(program, captured))
    assert len(operation.captured) == 1
    first, capture = current_recording(), Recording.key_from_outside

    def capture_and_run(recording, *args):
        if recording is first:
            thread = threading.Thread(target=recording.run)
            thread.start()
            thread.join()
        return capture(recording, *args)

    monkeypatch.setattr(Recording, "key_from_outside", capture_and_run)
    (product,) = first.call(operation, [Variable([1.0, 2.0]).read()])
    assert product.recording is not first and product.compute().tolist() == [3.0, 8.0]


CAPTURED = fnp.array([3.0, 4.0])
