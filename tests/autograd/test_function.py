"""`Function` on Variables: the context, gradients, key_offsets, and mistakes."""

import gc
import weakref

import numpy as onp
import pytest

import functx.numpy as np
from functx.autograd import (
    Function,
    NestedIOFunction,
    Variable,
    grad,
    no_grad,
    once_differentiable,
)
from functx.core.errors import (
    AutogradError,
    FunctionContextError,
    FunctionError,
    FunctionGradientError,
    FunctionMethodError,
    GradientTypeError,
    KeywordOnlyArrayError,
    OnceDifferentiableError,
    SavedValueError,
)

POINT = onp.array([1.0, 2.0], "float32")


def leaf(value=POINT):
    return Variable(value, requires_grad=True)


def function(forward, backward, **members):
    """A Function of combined form."""
    members = {k: staticmethod(f) if callable(f) else f for k, f in members.items()}
    methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type("Custom", (Function,), methods | members)


def returning(gradient):
    """A Function of one input whose gradient is a constant."""
    return function(lambda ctx, x: x * 1, lambda ctx, g: gradient)


class Scale(Function):
    """x * factor + 0 * y, with a gradient ten times too large."""

    @staticmethod
    def forward(x, factor=2, y=None):
        return x * factor, "a label", x.shape

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, factor, _ = inputs
        ctx.save_for_backward(inputs[0], None, output[0])
        ctx.factor = factor

    @classmethod
    def backward(cls, ctx, gradient, label, shape):
        assert label is None and shape is None
        x, nothing, out = ctx.saved_tensors
        assert nothing is None and out.shape == x.shape
        return 10 * gradient * ctx.factor, None, None, None, None


def test_a_call_has_one_node_with_the_gradient_of_backward():
    x = leaf()
    y, label, shape = Scale.apply(x)
    assert (label, shape) == ("a label", (2,))
    assert y.grad_fn.name() == "ScaleBackward"
    (y * y).sum().backward()
    onp.testing.assert_allclose(onp.asarray(x.grad), 2 * 10 * 4 * POINT)
    onp.testing.assert_allclose(grad(Scale.apply(x, factor=3)[0].sum(), x)[0], 30)
    with no_grad():
        assert not Scale.apply(x)[0].requires_grad
    assert not isinstance(Scale.apply(POINT)[0], Variable)


def test_gradients_are_summed_and_converted_to_the_type_of_their_input():
    for gradient in (onp.ones((3, 2), "float32"), onp.full((1, 2), 3, "float16")):
        x = leaf()
        returning(gradient).apply(x).sum().backward()
        assert x.grad.dtype == "float32"
        onp.testing.assert_allclose(onp.asarray(x.grad), [3, 3])
    for shape in [(5,), ()]:
        with pytest.raises(FunctionGradientError, match=r"got f32\[.*input 0, expected f32\[2\]"):
            returning(onp.ones(shape, "float32")).apply(leaf()).sum().backward()
    with pytest.raises(FunctionGradientError, match="be real where it is"):
        returning(onp.ones(2, "complex64")).apply(leaf()).sum().backward()


def test_wrong_gradients_are_named():
    def walk(backward):
        function(lambda ctx, x, n: x * n, backward).apply(leaf(), 2).sum().backward()

    with pytest.raises(FunctionGradientError, match="got 1, expected 2"):
        walk(lambda ctx, g: g)
    with pytest.raises(FunctionGradientError, match="got 3, expected 2"):
        walk(lambda ctx, g: (g, None, g))
    with pytest.raises(FunctionGradientError, match="gradient at position 2"):
        walk(lambda ctx, g: (g, g))
    with pytest.raises(GradientTypeError, match="got str for input 0"):
        walk(lambda ctx, g: ("one", None))

    def fail(ctx, g):
        raise ZeroDivisionError("the user's text")

    with pytest.raises(ZeroDivisionError, match=r"^the user's text$"):
        walk(fail)


def test_a_class_is_called_by_apply_and_needs_its_methods():
    with pytest.warns(DeprecationWarning, match="not instantiated"):
        instance = Scale()
    with pytest.raises(FunctionError, match=r"Scale\.apply"):
        instance(POINT)
    with pytest.raises(FunctionMethodError, match="forward"):
        Function.apply(POINT)
    assert issubclass(FunctionMethodError, NotImplementedError)
    lacking = type("Lacking", (Function,), {"forward": staticmethod(lambda ctx, x: x * 1)})
    with pytest.raises(FunctionMethodError, match=r"Lacking.*backward"):
        lacking.apply(leaf()).sum().backward()
    both = function(lambda ctx, x: x * 1, lambda ctx, g: g, vjp=lambda ctx, g: g)
    with pytest.raises(FunctionError, match="got both"):
        both.apply(leaf()).sum().backward()
    named = type(
        "Named",
        (Function,),
        {"forward": staticmethod(lambda ctx, x: x * 1), "vjp": staticmethod(lambda ctx, g: 7 * g)},
    )
    onp.testing.assert_allclose(grad(named.apply(x := leaf()).sum(), x)[0], 7)


def test_arrays_are_taken_by_position():
    class Keyword(Function):
        @staticmethod
        def forward(ctx, x, *, power=1, y=None):
            ctx.power = power
            return x**power

        @staticmethod
        def backward(ctx, gradient):
            return ctx.power * gradient

    x = leaf()
    Keyword.apply(x, power=3).sum().backward()
    onp.testing.assert_allclose(onp.asarray(x.grad), 3)
    with pytest.raises(KeywordOnlyArrayError, match="`y`"):
        Keyword.apply(x, y=x)
    assert issubclass(KeywordOnlyArrayError, NotImplementedError)


class Reader(Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        Reader.context = ctx
        return x * y

    @staticmethod
    def backward(ctx, gradient):
        x, y = ctx.saved_tensors
        return gradient * y, gradient * x


def test_saved_values_keep_their_identity_are_checked_and_freed():
    x, y = leaf(), leaf()
    for other in (y * 2, Variable(POINT)):
        z = Reader.apply(x, other)
        assert Reader.context.saved_tensors[0] is x and Reader.context.saved_tensors[1] is other
    z = Reader.apply(x, y * 2)
    assert Reader.context.saved_tensors[1] is Reader.context.saved_tensors[1]
    assert z.grad_fn.saved_tensors[0] is x
    z.sum().backward()
    with pytest.raises(SavedValueError, match="freed by the walk"):
        Reader.context.saved_tensors  # noqa: B018
    with pytest.raises(SavedValueError, match="retain_graph"):
        z.sum().backward()
    y = y * 2
    z = Reader.apply(x, y)
    y += 1
    with pytest.raises(
        SavedValueError, match=r"`Reader`.*f32\[2\] at version 1, expected version 0"
    ):
        z.sum().backward()
    wrong = function(lambda ctx, x: ctx.save_for_backward(x, 3), lambda ctx, g: g)
    with pytest.raises(GradientTypeError, match="int as number 1"):
        wrong.apply(x)
    unsaved = function(lambda ctx, x: x * 1, lambda ctx, g: g).apply(x).sum()
    unsaved.backward()
    unsaved.backward()


def test_needs_input_grad_and_missing_gradients():
    seen = []

    def forward(ctx, x, y, n, materialize):
        ctx.set_materialize_grads(materialize)
        return x * y, y * n

    def backward(ctx, g, h):
        seen.append((ctx.needs_input_grad, h if h is None else float(h.sum())))
        return None, g, None, None

    both = function(forward, backward)
    x, y = leaf(), leaf()
    for materialize in (True, False):
        out, _ = both.apply(POINT, y, 3, materialize)
        out.sum().backward()
    assert seen == [((False, True, False, False), 0.0), ((False, True, False, False), None)]
    out, _ = both.apply(x, y, 3, True)
    # None that backward returns is no gradient, not zeros, also for the node before.
    assert grad(out.sum(), x, allow_unused=True) == (None,)
    for materialize in (True, False):
        seen.clear()
        first, _ = both.apply(POINT, y, 3, materialize)
        out, _ = both.apply(first, x, 3, True)
        (slope,) = grad(out.sum(), y, allow_unused=True)
        assert seen[1][0] == (False, True, False, False)
        assert slope.tolist() == [0, 0] if materialize else slope is None
    # An operation without a gradient needs no saved values.
    z = np.sin(x)
    z.sum().backward()
    assert grad(both.apply(z, y, 3, True)[0].sum(), x, allow_unused=True) == (None,)


def test_marked_outputs_have_no_gradient():
    seen = []

    def forward(ctx, x):
        positive, index = x * 1, np.argsort(x)
        ctx.mark_non_differentiable(positive)
        ctx.save_for_backward(positive)
        return positive, x * 2, index

    def backward(ctx, g, h, index):
        assert not ctx.saved_tensors[0].requires_grad
        seen.append((float(np.abs(g).sum()), index.dtype.kind))
        return h * 2

    x = leaf()
    positive, double, index = function(forward, backward).apply(x)
    assert not positive.requires_grad and not index.requires_grad and double.requires_grad
    (positive * double).sum().backward()
    assert seen == [(0.0, "i")]
    onp.testing.assert_allclose(onp.asarray(x.grad), 2 * POINT)


def test_one_array_returned_twice_is_one_object():
    def forward(ctx, x):
        y = x * 2
        return y, y

    x = leaf()
    y, z = function(forward, lambda ctx, g, h: 2 * (g + h)).apply(x)
    assert y is z
    (y + 3 * z).sum().backward()
    onp.testing.assert_allclose(onp.asarray(x.grad), 8)


def double_in_place(ctx, x, *_):
    x *= 2
    ctx.mark_dirty(x)
    return x


def test_a_dirty_input_is_the_output():
    in_place = function(double_in_place, lambda ctx, g: g * 20)
    x = leaf()
    base = x * 1
    y = base[1:]
    out = in_place.apply(y)
    assert out is y and y._version == 1
    onp.testing.assert_allclose(onp.asarray(base), [1, 4])
    base.sum().backward()
    onp.testing.assert_allclose(onp.asarray(x.grad), [1, 20])
    y = x * 1
    with no_grad():
        assert in_place.apply(y) is y and y._version == 1
    (y * y).sum().backward(inputs=[x])
    onp.testing.assert_allclose(onp.asarray(x.grad), [1 + 4, 20 + 8])
    assert in_place.apply(y) is y and y._version == 2
    assert y.grad_fn.name() == "CustomBackward"
    with pytest.raises(AutogradError, match="a leaf that requires a gradient"):
        in_place.apply(leaf())
    for output, mark in ((lambda x: x * 1, lambda x: x), (lambda x: x, lambda x: x * 1)):
        wrong = function(lambda ctx, x, o=output, m=mark: (ctx.mark_dirty(m(x)), o(x))[1], None)
        with pytest.raises(
            FunctionContextError, match="marked dirty must be an input and an output"
        ):
            wrong.apply(x * 1)


def padded(ctx, gradient):
    return np.concatenate([np.zeros(1, "float32"), 5 * gradient])


same = function(lambda ctx, x: x, lambda ctx, g: g * 5)
end = function(lambda ctx, x: x[1:], padded)


@pytest.mark.parametrize(("custom", "slope"), [(same, [5, 5]), (end, [0, 5])])
def test_an_input_that_is_returned_or_its_view_shares_the_memory_but_not_the_history(custom, slope):
    seen = []
    x = leaf()
    y = x * 1
    y.register_hook(lambda gradient: seen.append(gradient.tolist()))
    out = custom.apply(y)
    assert out is not y and out.grad_fn.name() == "CustomBackward"
    out.register_hook(lambda gradient: seen.append(gradient.tolist()))
    for view in (out, out[-1:]):
        with pytest.raises(AutogradError, match="a view that the Function Custom returned"):
            view *= 2
    out.sum().backward()
    assert seen == [[1] * out.size, slope] and x.grad.tolist() == slope
    out = custom.apply(y)
    with no_grad():
        out *= 3
    assert y.tolist()[1] == 6 and out._version == 1
    y += 1
    assert out.tolist() == y.tolist()[-out.size :]
    with pytest.raises(AutogradError, match="a view that Custom returned must not be written to"):
        out.sum().backward()


def test_an_input_without_a_gradient_that_is_returned_is_a_view_with_the_gradients_of_writes():
    x, y = leaf(), Variable(POINT)
    out = same.apply(y)
    assert out is not y
    out += x
    y.sum().backward()
    assert x.grad.tolist() == [1, 1]
    with no_grad():
        assert not same.apply(x).requires_grad


def test_an_input_that_is_returned_twice_is_two_views():
    twice = function(lambda ctx, x: (x, x), lambda ctx, g, h: 2 * g + 3 * h)
    x = leaf()
    a, b = twice.apply(x)
    assert a is not b
    (a + 10 * b).sum().backward()
    assert x.grad.tolist() == [32, 32]


class KeptExponential(Function):
    """exp, whose derivative is the output: saved, or kept as an attribute."""

    @staticmethod
    def forward(ctx, x, saved):
        out = np.exp(x)
        if saved:
            ctx.save_for_backward(out)
        else:
            ctx.out = out
        return out

    @staticmethod
    def backward(ctx, gradient):
        out = ctx.out if "out" in ctx.__dict__ else ctx.saved_tensors[0]
        return gradient * out, None


@pytest.mark.parametrize("saved", [True, False])
def test_derivatives_of_derivatives_go_through_kept_outputs_without_cycles(saved):
    x = leaf()
    found = KeptExponential.apply(x, saved)
    for _ in range(3):
        (found,) = grad(found.sum(), x, create_graph=True)
    onp.testing.assert_allclose(onp.asarray(found), onp.exp(POINT), rtol=1e-5)
    y = KeptExponential.apply(x, saved)
    gone = weakref.ref(y.grad_fn)
    gc.disable()
    try:
        grad(y.sum(), x, create_graph=True, retain_graph=True)
        del y
        assert gone() is None
    finally:
        gc.enable()


class Tanh(Function):
    """tanh, whose derivative `setup_context` computes from the output."""

    @staticmethod
    def forward(x):
        return np.tanh(x), x * 1

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(1 - output[0] ** 2, output[1] * inputs[0])

    @staticmethod
    def backward(ctx, gradient, other):
        slope, square = ctx.saved_tensors
        return gradient * slope + 0 * square


def test_values_computed_in_setup_context_have_a_history():
    x = leaf()
    (found,) = grad(Tanh.apply(x)[0].sum(), x, create_graph=True)
    (found,) = grad(found.sum(), x)
    slope = 1 - onp.tanh(POINT) ** 2
    onp.testing.assert_allclose(onp.asarray(found), -2 * onp.tanh(POINT) * slope, rtol=1e-5)
    y = Tanh.apply(x)[0]
    gone = weakref.ref(y.grad_fn)
    gc.disable()
    try:
        grad(y.sum(), x, retain_graph=True)
        y.sum().backward()
        with pytest.raises(SavedValueError, match="freed"):
            grad(y.sum(), x, create_graph=True)
        del y
        assert gone() is None
    finally:
        gc.enable()
    outer = leaf() * 1
    both = function(lambda ctx, x: (x * 1, outer), lambda ctx, g, h: g)
    grad(both.apply(x)[0].sum(), x, create_graph=True)
    assert outer.requires_grad


def test_once_differentiable_gradients_look_differentiable():
    @once_differentiable
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * 2 * x

    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    x = leaf()
    once = function(forward, backward)
    (found,) = grad(once.apply(x).sum(), x)
    assert not found.requires_grad
    (found,) = grad(once.apply(x).sum(), x, create_graph=True)
    onp.testing.assert_allclose(onp.asarray(found), 2 * POINT)
    assert found.requires_grad
    with pytest.raises(OnceDifferentiableError, match="once_differentiable"):
        grad(found.sum(), x)
    with pytest.raises(OnceDifferentiableError):
        grad((found * x).sum(), x)


def test_variables_in_containers_are_passed_on_and_get_no_gradient():
    x, w = leaf(), leaf()
    scale = function(lambda ctx, x, d: x * d["w"], lambda ctx, g, *_: (g * 5, None))
    scale.apply(x, {"w": w}).sum().backward()
    assert x.grad.tolist() == [5.0] * len(POINT) and w.grad is None
    first = function(lambda ctx, xs: xs[0] * 2, lambda ctx, g: None)
    assert not first.apply([x]).requires_grad


def test_nested_arguments_and_outputs_are_flattened():
    class Mixed(NestedIOFunction):
        @staticmethod
        def forward(ctx, pair, options):
            ctx.save_for_backward(*pair)
            return {"product": pair[0] * pair[1], "sums": [pair[0] + options["shift"], None]}

        @staticmethod
        def backward(ctx, gradients):
            x, y = ctx.saved_tensors
            g, (h, nothing) = gradients["product"], gradients["sums"]
            assert nothing is None
            return [g * y + h, g * x], None

    x, y = leaf(), leaf(onp.array([3.0, 5.0], "float32"))
    out = Mixed.apply([x, y], {"shift": 1})
    (out["product"] + out["sums"][0]).sum().backward()
    onp.testing.assert_allclose(onp.asarray(x.grad), [4, 6])
    onp.testing.assert_allclose(onp.asarray(y.grad), POINT)
    wrong = type("Wrong", (Mixed,), {"backward": staticmethod(lambda ctx, g: ([None], None))})
    with pytest.raises(FunctionGradientError, match="list of 1 for list of 2"):
        wrong.apply([x, y], {"shift": 1})["product"].sum().backward()
