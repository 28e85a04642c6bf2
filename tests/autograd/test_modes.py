"""Modes: what they switch off, as contexts and decorators, and inference arrays."""

import asyncio
import inspect
import warnings

import numpy as onp
import pytest

import functx
import functx.numpy as np
from functx.autograd import (
    Function,
    Variable,
    enable_grad,
    forward_ad,
    grad,
    inference_mode,
    is_grad_enabled,
    is_inference_mode_enabled,
    no_grad,
    set_grad_enabled,
)
from functx.core.errors import (
    ArgumentError,
    InferenceArrayError,
    ShapeError,
    TypePromotionError,
    ViewWriteError,
)


def leaf(value=2.0):
    return Variable(value, requires_grad=True)


def test_results_under_no_grad_have_no_node_but_leaves_made_there_keep_their_flag():
    x = leaf()
    with no_grad():
        y, z = x * x, leaf(3.0)
        assert not is_grad_enabled()
        with enable_grad():
            w = x * x
    assert is_grad_enabled()
    assert not y.requires_grad and y.grad_fn is None and y.is_leaf
    assert z.requires_grad and w.requires_grad
    with pytest.raises(ZeroDivisionError), no_grad():
        raise ZeroDivisionError
    assert is_grad_enabled()


@pytest.mark.parametrize(
    "call",
    [
        lambda: no_grad(3),
        lambda: enable_grad("x"),
        lambda: inference_mode("a"),
        lambda: inference_mode(None),
    ],
)
def test_a_mode_refuses_what_is_neither_a_function_nor_a_flag(call):
    with pytest.raises(ArgumentError, match=r"_(grad|mode): the argument must be .*; got"):
        call()
    assert is_grad_enabled()


@pytest.mark.parametrize(
    ("setting", "operands"),
    [
        (functx.numpy_dtype_promotion("strict"), (onp.ones(3, "float32"), onp.ones(3, "int32"))),
        (functx.numpy_rank_promotion("raise"), (onp.ones((2, 3)), onp.ones(3))),
    ],
)
def test_a_recorded_call_is_not_repeated_under_another_promotion_mode(setting, operands):
    x, y = map(Variable, operands)
    expected = (x + y).compute()
    with setting, pytest.raises((TypePromotionError, ShapeError)):
        x + y
    assert onp.array_equal((x + y).compute(), expected)


def test_dual_numbers_ignore_no_grad_but_not_inference_mode():
    x = leaf()
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, Variable(1.0))
        with no_grad():
            y = dual * dual
        with inference_mode():
            z = dual * dual
        assert float(forward_ad.unpack_dual(y).tangent) == 4.0 and not y.requires_grad
        assert forward_ad.unpack_dual(z).tangent is None


def test_a_decorated_function_generator_or_coroutine_runs_in_the_mode_and_its_caller_does_not():
    @no_grad
    def plain():
        return is_grad_enabled()

    @no_grad()
    def values():
        got = yield is_grad_enabled()
        try:
            yield is_grad_enabled(), got
        except KeyError:
            yield is_grad_enabled()
        finally:
            ends.append(is_grad_enabled())
        return "end"

    class Pause:
        def __await__(self):
            got = yield is_grad_enabled()
            return got

    @inference_mode
    async def waits():
        got = await Pause()
        return got, is_inference_mode_enabled()

    ends = []
    assert plain() is False and is_grad_enabled()
    steps = values()
    assert next(steps) is False and is_grad_enabled()
    assert steps.send(7) == (False, 7) and is_grad_enabled()
    assert steps.throw(KeyError) is False and is_grad_enabled()
    with pytest.raises(StopIteration) as stop:
        next(steps)
    assert stop.value.value == "end"
    early = values()
    next(early), next(early)
    early.close()
    assert ends == [False, False]

    waiting = waits()
    assert waiting.send(None) is False and is_grad_enabled() and not is_inference_mode_enabled()
    with pytest.raises(StopIteration) as stop:
        waiting.send(5)
    assert stop.value.value == (5, True)


def test_a_decorated_asynchronous_generator_runs_in_the_mode_and_its_caller_does_not():
    ends = []

    @no_grad()
    async def values():
        try:
            got = yield is_grad_enabled()
            await asyncio.sleep(0)
            yield is_grad_enabled(), got
        except KeyError:
            yield is_grad_enabled()
        finally:
            await asyncio.sleep(0)
            ends.append(is_grad_enabled())

    async def use():
        found = [await anext(steps := values()), is_grad_enabled()]
        found += [await steps.asend(7), is_grad_enabled(), await steps.athrow(KeyError)]
        with pytest.raises(StopAsyncIteration):
            await anext(steps)
        early = values()
        await anext(early)
        await early.aclose()
        return found, [x async for x in values()], is_grad_enabled()

    found, every, outside = asyncio.run(use())
    assert found == [False, True, (False, 7), True, False] and every == [False, (False, None)]
    assert outside and ends == [False] * 3 and inspect.isasyncgenfunction(values)


@pytest.mark.parametrize("decorate", [no_grad, no_grad(), enable_grad, inference_mode])
def test_decorating_a_class_warns_at_the_line_of_the_user(decorate):
    with pytest.warns(FutureWarning, match="decorate its methods") as record:

        @decorate
        class Model:
            pass

    assert record[0].filename == __file__


def test_set_grad_enabled_acts_when_made_and_restores_the_mode_before_that():
    mode = set_grad_enabled(0)
    assert not is_grad_enabled() and repr(mode) == "set_grad_enabled(mode=False)"
    for _ in range(2):
        with mode:
            assert not is_grad_enabled()
        assert is_grad_enabled()

    @set_grad_enabled([])
    def enabled():
        return is_grad_enabled()

    assert is_grad_enabled() and not enabled() and is_grad_enabled()


def test_inference_mode_switches_gradients_off_and_its_opposite_on_again():
    x = leaf()
    with inference_mode():
        assert is_inference_mode_enabled() and not is_grad_enabled()
        with enable_grad():
            y = x * x
            assert y.is_inference() and not y.requires_grad
        with inference_mode(False):
            z = x * x
            assert not z.is_inference() and z.requires_grad and is_grad_enabled()
        with inference_mode(mode=0):
            assert not is_inference_mode_enabled()
        assert is_inference_mode_enabled()
    assert not is_inference_mode_enabled() and is_grad_enabled() and not x.is_inference()


def test_an_inference_array_cannot_be_saved_written_to_or_made_to_require_a_gradient_outside():
    x = leaf([1.0, 2.0])
    with inference_mode():
        y = np.ones(2) * x.detach()
        y = Variable([3.0, 4.0]) + 0 * y
        y[0] = 5.0
        y.requires_grad_(False)
        inside = Variable([1.0, 1.0], requires_grad=True)
    view = y[1:]
    assert y.is_inference() and view.is_inference() and inside.is_inference()
    assert not y.copy().is_inference() and not (y + 1).is_inference()
    (y * y).sum()
    (x + y).sum().backward()
    onp.testing.assert_array_equal(x.grad, [1.0, 1.0])
    message = r"array made under inference_mode must not .*got f32\[[12]\]"
    for use, verb in [
        (lambda: x * y, "be saved"),
        (lambda: y._version, "have a version"),
        (lambda: y.requires_grad_(), "require a gradient"),
        (lambda: y.__setitem__(0, 1.0), "be written to"),
        (lambda: y.__iadd__(1.0), "be written to"),
    ]:
        with pytest.raises(InferenceArrayError, match=message) as error:
            use()
        assert verb in str(error.value) and "copy()" in str(error.value)
        assert isinstance(error.value, RuntimeError)
    with pytest.raises(InferenceArrayError, match="written to"):
        view[...] = 0.0
    (x * y.copy()).sum().backward()
    onp.testing.assert_array_equal(x.grad, [6.0, 5.0])


def test_a_function_with_rules_records_no_node_in_inference_mode_and_saves_no_array_of_it():
    class Product(Function):
        @staticmethod
        def forward(ctx, x, y):
            ctx.save_for_backward(x, y)
            return x * y

        @staticmethod
        def backward(ctx, gradient):
            x, y = ctx.saved_tensors
            return gradient * y, gradient * x

    x = leaf()
    with inference_mode():
        y = Product.apply(x, x)
        with enable_grad():
            assert not Product.apply(x, x).requires_grad
    assert y.is_inference() and not y.requires_grad
    with pytest.raises(InferenceArrayError, match=r"save_for_backward: .* must not be saved"):
        Product.apply(x, y)


def test_normal_arrays_in_inference_mode_can_be_written_to_and_their_views_are_normal():
    base = Variable([1.0, 2.0])
    with inference_mode():
        view = base[1:]
        view *= 10
        base += 1
    assert not view.is_inference() and base._version == 2
    onp.testing.assert_array_equal(base, [2.0, 21.0])


def test_transforms_work_inside_inference_mode_and_around_it():
    def cube(x):
        return x**3

    def inner(x):
        with inference_mode():
            assert is_inference_mode_enabled()
            return functx.grad(cube)(x)

    with inference_mode():
        slope = functx.grad(cube)(Variable(2.0))
        assert functx.vmap(functx.grad(cube))(onp.array([1.0, 2.0], "float32")).shape == (2,)
        assert slope.is_inference()
        assert functx.jvp(cube, (2.0,), (1.0,))[1] == 12.0
        assert functx.jacrev(cube)(2.0) == 12.0
    assert float(slope) == 12.0
    assert inner(2.0) == 12.0 and not is_inference_mode_enabled()


def test_a_write_under_no_grad_or_in_inference_mode_leaves_the_history_as_in_pytorch():
    x, y = leaf([1.0, 2.0]), leaf(3.0)
    a = x * 2
    view = a[:1]
    with no_grad():
        a[1] = y
    with inference_mode():
        a += y
    onp.testing.assert_array_equal(a, [5.0, 6.0])
    assert a.requires_grad and view.requires_grad and not a.is_inference()
    along_x, along_y = grad(a.sum() + view.sum(), (x, y), allow_unused=True)
    assert along_x.tolist() == [4.0, 2.0] and along_y is None


def test_a_view_made_under_no_grad_has_no_history_after_a_write_either():
    x = leaf([1.0, 2.0])
    a = x * 1
    rows = a[:]
    with no_grad():
        of_leaf, of_result = x[::-1], rows[::-1]
        x *= 2
        a *= 3
        of_result[0] = 9.0
    assert of_leaf.tolist() == [4.0, 2.0] and of_result.tolist() == [9.0, 3.0]
    assert not of_leaf.requires_grad and not of_result.requires_grad
    assert rows.requires_grad and of_leaf.grad_fn is None
    a *= 2
    with pytest.raises(ViewWriteError, match=r"(?s)made under no_grad.*got f32\[2\].*copy"):
        of_result.sum()
    assert grad(a.sum(), x)[0].tolist() == [2.0, 2.0]


def test_a_view_first_read_under_no_grad_after_a_write_keeps_the_derivative():
    x, buffer = leaf([1.0, 2.0]), Variable([3.0, 4.0])
    view = buffer[:1]
    with no_grad():
        hidden = buffer[1:]
    buffer *= x
    with no_grad():
        assert view.requires_grad and view.item() == 3.0
    assert grad(view.sum() + hidden.sum(), x)[0].tolist() == [3.0, 4.0]


def test_modes_give_no_warning_and_leave_no_state_behind():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with no_grad(), enable_grad(), inference_mode(), set_grad_enabled(True):
            pass
    assert is_grad_enabled() and not is_inference_mode_enabled()


def test_a_gradient_made_in_inference_mode_is_an_inference_array_and_is_added_to_there_alone():
    x = leaf(2.0)
    y = x * x
    with inference_mode():
        y.backward(retain_graph=True)
        y.backward(retain_graph=True)
        (slope,) = grad(y, x, retain_graph=True)
    assert x.grad.is_inference() and slope.is_inference() and x.grad.item() == 8.0
    for add in (y.backward, lambda: x.grad.__iadd__(1)):
        with pytest.raises(InferenceArrayError):
            add()
    assert x.grad.item() == 8.0
    x.grad = x.grad.copy()
    y = x * x
    with inference_mode():
        y.backward()
    assert not x.grad.is_inference() and x.grad.item() == 12.0
