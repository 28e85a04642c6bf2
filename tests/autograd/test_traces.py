"""Variables that a traced function captures, makes, reads and writes."""

import numpy as onp
import pytest

import functx
import functx.numpy as np
from functx import lax, nn
from functx.autograd import (
    Variable,
    backward,
    forward_ad,
    get_gradient_edge,
    grad,
    increment_version,
    no_grad,
    register_multi_grad_hook,
    saved_tensors_hooks,
)
from functx.core.errors import (
    ArgumentError,
    AutogradError,
    CapturedWriteError,
    ConcretizationError,
    LostDerivativeError,
)

X = onp.array([5.0, 6.0], "float32")
ROWS = onp.stack([X, X])
TRANSFORMS = {
    "jit": lambda f: functx.jit(f)(X),
    "vmap": lambda f: functx.vmap(f)(ROWS)[0],
    "grad": lambda f: functx.grad(lambda x: (x * f(X)).sum())(X),
    "jit of vmap": lambda f: functx.jit(functx.vmap(f))(ROWS)[1],
    "jvp": lambda f: functx.jvp(f, (X,), (X,))[0],
}


def leaf(*values):
    return Variable(list(values), requires_grad=True)


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_a_captured_variable_is_differentiated_inside_and_outside(transform):
    v = leaf(2.0, 3.0)
    run = TRANSFORMS[transform]
    inner = run(lambda x: grad((v * v * v * X).sum(), v)[0])
    assert inner.tolist() == [60.0, 162.0]
    assert grad(inner.sum(), v)[0].tolist() == [60.0, 108.0]
    assert run(lambda x: grad((v * v.detach() * X).sum(), v)[0]).tolist() == [10.0, 18.0]

    def made(x):
        w = leaf(2.0, 3.0)
        return grad((w * w * X).sum(), w)[0]

    assert run(made).tolist() == [20.0, 36.0]


def test_a_jitted_function_reads_the_value_of_a_captured_variable_in_each_call():
    v = leaf(2.0, 3.0)
    f = functx.jit(lambda x: x * v)
    assert f(X).tolist() == [10.0, 18.0]
    with no_grad():
        v += 1
    assert f(X).tolist() == [15.0, 24.0]
    assert grad(f(X).sum(), v)[0].tolist() == [5.0, 6.0]


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_no_part_of_a_gradient_is_lost_outside_a_transform(transform):
    v = leaf(2.0, 3.0)
    y = v * v
    root = y.sum()
    run = TRANSFORMS[transform]
    for f in (
        lambda x: grad((y * v * X).sum(), v)[0],
        lambda x: grad((y * X).sum(), v, allow_unused=True)[0],
        lambda x: grad(root, v)[0],
        lambda x: grad(y.sum(), v)[0],
    ):
        with pytest.raises(
            LostDerivativeError, match=r"computed from an input outside.*\n.*\n.*inside"
        ):
            run(f)
    assert run(lambda x: grad((y * X).sum(), y)[0]).tolist() == [5.0, 6.0]
    refused = (
        "must be used by the outputs" if transform == "jit" else "must be arrays; got GradientEdge"
    )
    with pytest.raises(AutogradError, match=refused):
        run(lambda x: grad(root * X[0], edge_outside)[0])


edge_outside = get_gradient_edge(leaf(1.0))


def test_no_part_of_a_gradient_is_lost_in_the_trace_around():
    def outer(w, written):
        y = w * w
        if written:
            y, part = np.zeros(2).copy(), y
            y[...] = part
        return functx.vmap(lambda x: grad((y * w * x).sum(), w)[0])(ROWS)

    jitted = functx.jit(outer, static_argnums=1)
    for run, written in ((outer, False), (jitted, False), (jitted, True)):
        with pytest.raises(LostDerivativeError, match="computed from an input outside vmap"):
            run(leaf(2.0, 3.0), written)
    nested = functx.jit(lambda w: functx.vmap(lambda x: grad((w * w * x).sum(), w)[0])(ROWS))
    assert nested(X).tolist() == [[50.0, 72.0]] * 2


def test_calls_that_would_act_only_while_tracing_are_refused_inside_transforms_but_jit():
    v = leaf(2.0, 3.0)
    (v * v).sum().backward()

    def set_grad(x):
        v.grad = None

    def delete_grad(x):
        del v.grad

    def enter_hooks(x):
        with saved_tensors_hooks(lambda x: x, lambda x: x):
            return x

    def enter_level(x):
        with forward_ad.dual_level():
            return x

    def dual_inside(x):
        return forward_ad.unpack_dual(forward_ad.make_dual(v, v))

    cases = {
        "backward: ": lambda x: backward((x * v).sum()),
        "requires_grad: ": lambda x: v.requires_grad_(False),
        "register_hook: ": lambda x: v.register_hook(lambda g: g),
        "retain_grad: ": lambda x: v.retain_grad(),
        "register_post_accumulate_grad_hook: ": lambda x: v.register_post_accumulate_grad_hook(
            lambda x: None
        ),
        "register_multi_grad_hook: ": lambda x: register_multi_grad_hook([v], lambda g: None),
        "x.grad =: ": set_grad,
        "x.grad =: it must not be set": delete_grad,
        "increment_version: ": lambda x: increment_version(v),
        "saved_tensors_hooks: ": enter_hooks,
        "enter_dual_level: ": enter_level,
    }
    for name, f in cases.items():
        for run in (functx.vmap(f), functx.jit(functx.vmap(f)), functx.vmap(functx.jit(f))):
            with pytest.raises(AutogradError, match=f"{name}.* inside a transform") as caught:
                run(ROWS)
            assert "lambda" in str(caught.value) or f.__name__ in str(caught.value)
    with forward_ad.dual_level(), pytest.raises(AutogradError, match=r"make_dual.*\n.*\n.*jvp"):
        functx.vmap(dual_inside)(X)
    assert v.grad.tolist() == [4.0, 6.0]


def test_a_jitted_function_must_not_keep_the_value_of_a_variable():
    v = leaf(2.0, 3.0)
    (v * v).sum().backward()
    reads = {
        "item": lambda x: x * v[0].item(),
        "float": lambda x: x * float(v[0]),
        "int": lambda x: x * int(v[0]),
        "bool": lambda x: x if v[0] > 0 else -x,
        "numpy": lambda x: x * v.numpy(),
        "asarray": lambda x: x * onp.asarray(v),
        "tolist": lambda x: x * v.tolist()[0],
        "index": lambda x: x[Variable(1).__index__()],
    }
    for name, f in reads.items():
        with pytest.raises(ConcretizationError, match=r"which would keep that of its first call"):
            functx.jit(f)(X)
        if name != "index":
            assert functx.vmap(f)(X).shape[0] == 2
    with pytest.raises(ConcretizationError, match=r"x.grad must not be read by a jitted function"):
        functx.vmap(functx.jit(lambda x: x * v.grad))(ROWS)
    assert functx.jit(lambda x: x * v.grad)(X).tolist() == [20.0, 36.0]
    assert functx.jit(lambda x: x if repr(v) else 0)(X).tolist() == [5.0, 6.0]


def test_loops_and_branches_write_to_captured_variables():
    u = leaf(1.0, 2.0, 3.0)
    w = u * 2

    def square(i, carry):
        w[i] = w[i] * w[i]
        return carry

    lax.fori_loop(0, 3, square, 0)
    assert w.tolist() == [4.0, 16.0, 36.0]
    assert w._version == 1
    assert grad(w.sum(), u, retain_graph=True)[0].tolist() == [8.0, 16.0, 24.0]

    v = u * 2

    def scale(i, carry):
        nonlocal v
        v *= 3.0
        return carry

    lax.fori_loop(0, 2, scale, 0)
    assert v.tolist() == [18.0, 36.0, 54.0]
    assert grad(v.sum(), u)[0].tolist() == [18.0, 18.0, 18.0]

    part = w[1:]

    def replace():
        part[0] = 5.0

    lax.cond(True, replace, lambda: None)
    assert (w.tolist(), part.tolist()) == ([4.0, 5.0, 36.0], [5.0, 36.0])
    assert grad((w * u).sum(), u)[0].tolist() == [12.0, 5.0, 108.0]

    def add(carry, x):
        w[0] = w[0] + x
        return carry, w.sum()

    _, sums = lax.scan(add, 0.0, onp.arange(3.0))
    assert sums.tolist() == [45.0, 46.0, 48.0]
    assert w[0].item() == 7.0

    def step(carry):
        w[0] -= 1
        return carry + 1

    lax.while_loop(lambda carry: carry < 3, step, 0)
    functx.checkpoint(lambda x: w.__setitem__(1, x))(2.0)
    assert w.tolist() == [4.0, 2.0, 36.0]

    def both(x):
        part[0] = x
        w[2] = 7.0

    with pytest.raises(ArgumentError, match="a Variable that shares memory with another one"):
        lax.cond(True, both, lambda x: None, 1.0)
    with pytest.raises(AutogradError, match="a leaf that requires a gradient must not be written"):
        lax.fori_loop(0, 2, lambda i, carry: (u.__setitem__(i, 0.0), carry)[1], 0)
    with pytest.raises(CapturedWriteError, match="a function under vmap must not write"):
        functx.vmap(lambda x: lax.fori_loop(0, 2, square, x))(X)
    with pytest.raises(AutogradError, match="must not get a history"):
        functx.jit(lambda x: lax.fori_loop(0, 2, square, x))(1)


def test_gradients_of_traced_values_in_several_inputs_are_right_where_the_loss_selects():
    def loss(a, b):
        c = a + b
        root = np.where(c > 0, np.sqrt(c), 0.0)
        return (nn.relu(c) + np.abs(c) + root + np.maximum(c, 1.0) + c.clip(-1, 3)).sum() + c.max()

    def slopes(a, b):
        return grad(loss(a, b), [a, b])

    a, b = onp.array([0.5, 2.0, -3.0], "float32"), onp.array([-0.5, 2.0, 1.0], "float32")
    expected = functx.grad(loss, (0, 1))(a, b)
    onp.testing.assert_allclose(expected[0], [1.0, 4.25, -1.0])
    onp.testing.assert_allclose(functx.jit(slopes)(a, b), expected)
    x, y = Variable(a, requires_grad=True), Variable(b, requires_grad=True)
    onp.testing.assert_allclose(functx.jit(slopes)(x, y), expected)
    mapped = functx.vmap(slopes)(a[None], b[None])
    onp.testing.assert_allclose(mapped, onp.stack(expected)[:, None])
    second = functx.grad(lambda a, b: (slopes(a, b)[0] * slopes(a, b)[1]).sum())(a, b)
    onp.testing.assert_allclose(second, [0.0, 2 * 4.25 * -0.25 * 4**-1.5, 0.0])


def test_functions_write_to_variables_among_their_arguments():
    def write(x):
        x[0] = 9.0
        return x.sum()

    for transform in (functx.jit, functx.grad, functx.checkpoint, functx.functionalize):
        w = Variable([1.0, 2.0])
        transform(write)(w)
        assert w.tolist() == [9.0, 2.0]
    u = leaf(1.0, 2.0)
    w = u * 3
    total = functx.jit(write)(w)
    assert (total.item(), w.tolist()) == (15.0, [9.0, 6.0])
    assert grad(total + 10 * w.sum(), u)[0].tolist() == [0.0, 33.0]
    with pytest.raises(AutogradError, match="a leaf that requires a gradient must not be written"):
        functx.jit(write)(u)

    def write_under_no_grad(x):
        with no_grad():
            x -= 1
        return x.sum()

    def in_loop(f):
        return lambda x: lax.fori_loop(0, 1, lambda i, carry: carry + f(x), 0.0)

    for transform in (functx.jit, functx.checkpoint, in_loop):
        v = leaf(1.0, 2.0)
        with pytest.raises(AutogradError, match=r"must not be written to.*") as error:
            transform(write_under_no_grad)(v)
        assert "no_grad() around the call" in str(error.value)
        with no_grad():
            total = transform(write_under_no_grad)(v)
        assert total.item() == 1.0
        assert v.tolist() == [0.0, 1.0]
        assert v.requires_grad

    def write_and_read(x, y):
        x[1] = 9.0
        return y * 1

    w = Variable([1.0, 2.0])
    assert functx.jit(write_and_read)(w, w[1:]).tolist() == [9.0]
    with pytest.raises(ArgumentError, match="a Variable that shares memory with another one"):
        lax.cond(True, write_and_read, lambda x, y: y * 1, w, w[1:])


def test_a_zero_cotangent_of_a_call_stays_zero_times_infinity():
    def by_call(x):
        return functx.jit(np.round)(np.log(x))

    def sign(x):
        return np.sign(np.sqrt(x))

    for f in (by_call, sign, lambda x: functx.checkpoint(by_call)(x)):
        assert functx.grad(f)(0.0) == 0.0
        x = Variable(0.0, requires_grad=True)
        assert grad(f(x), x)[0].item() == 0.0
        assert grad(functx.jit(f)(x), x)[0].item() == 0.0

    def quotient(x):
        return x / functx.jit(np.round)(x)

    x = Variable(0.25, requires_grad=True)
    (slope,) = grad(quotient(x), x, create_graph=True)
    assert grad(slope, x)[0].item() == functx.grad(functx.grad(quotient))(0.25) == 0.0
