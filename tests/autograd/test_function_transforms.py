"""`Function` under transforms: its rules are those of a custom rule."""

import gc
import weakref
from contextlib import nullcontext

import jax
import numpy as onp
import pytest

import functx
import functx.numpy as np
from functx.autograd import (
    Function,
    NestedIOFunction,
    Variable,
    forward_ad,
    grad,
    is_grad_enabled,
    once_differentiable,
    saved_tensors_hooks,
)
from functx.core.errors import (
    ArgumentWriteError,
    FunctionContextError,
    FunctionError,
    FunctionGradientError,
    FunctionMethodError,
    KeywordOnlyArrayError,
    OnceDifferentiableError,
)

POINT = onp.array([1.0, 2.0], "float32")


class Product(Function):
    """x * y * n, whose rules have factors of their own: 10 backwards, 100 forwards."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x, y, n=1):
        return x * y * n, "label", (x * 0).astype("int32")

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, y, ctx.n = inputs
        ctx.save_for_backward(x, y, None)
        ctx.save_for_forward(y, x)
        ctx.label = output[1]

    @staticmethod
    def backward(ctx, gradient, label, index):
        assert label is None and ctx.label == "label" and index.dtype.kind == "i"
        x, y, nothing = ctx.saved_tensors
        assert nothing is None
        return 10 * gradient * y * ctx.n, 10 * gradient * x * ctx.n, None, None

    @staticmethod
    def jvp(ctx, dx, dy, dn):
        y, x = ctx.saved_tensors
        assert dn is None
        return 100 * (dx * y + x * dy) * ctx.n, None, None


class Square(Function):
    """The square, also of complex numbers, by reverse mode and forward mode."""

    @staticmethod
    def forward(z):
        return z * z

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * np.conj(2 * ctx.saved_tensors[0])

    @staticmethod
    def jvp(ctx, tangent):
        return 2 * ctx.saved_tensors[0] * tangent


def product(x, y=2 * POINT):
    return Product.apply(x, y, 3)[0]


def total(x):
    return product(x).sum()


def test_transforms_use_the_rules():
    onp.testing.assert_allclose(functx.jit(product)(POINT), 6 * POINT**2)
    onp.testing.assert_allclose(functx.jit(functx.grad(total))(POINT), 60 * POINT)
    onp.testing.assert_allclose(functx.jvp(product, (POINT,), (POINT,))[1], 600 * POINT**2)
    onp.testing.assert_allclose(
        functx.vmap(lambda x, y: Product.apply(x, y)[0])(POINT, POINT), POINT**2
    )
    rows = onp.stack([POINT, 2 * POINT])
    onp.testing.assert_allclose(functx.vmap(functx.grad(total))(rows), [60 * POINT] * 2)
    onp.testing.assert_allclose(
        functx.grad(lambda x: functx.vmap(product)(x).sum())(rows), 60 * POINT + 0 * rows
    )
    assert functx.jit(lambda x: Product.apply(x, x)[1] == "label" and x)(POINT) is not None
    x = Variable(POINT, requires_grad=True)
    onp.testing.assert_allclose(onp.asarray(grad(functx.jit(total)(x), x)[0]), 60 * POINT)


def test_results_of_duals_have_the_tangents_of_jvp():
    x, t = (Variable(v, requires_grad=True) for v in (POINT, 2 * POINT))
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, t)
        out, _, index = Product.apply(dual, x, 3)
        tangent = forward_ad.unpack_dual(out).tangent
        assert forward_ad.unpack_dual(index).tangent is None
        with pytest.raises(NotImplementedError, match="Missing: the static method jvp"):
            Missing.apply(dual, x, True)
    onp.testing.assert_allclose(onp.asarray(tangent), 600 * POINT**2)
    for found, expected in zip(
        grad(tangent.sum(), [x, t]), (600 * POINT, 300 * POINT), strict=True
    ):
        onp.testing.assert_allclose(onp.asarray(found), expected)
    out.sum().backward()
    onp.testing.assert_allclose(onp.asarray(x.grad), 60 * POINT)


def test_gradients_of_duals_go_through_saved_inputs_and_outputs():
    class Exp(Function):
        @staticmethod
        def forward(x):
            return np.exp(x)

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(output)
            ctx.save_for_forward(output)

        @staticmethod
        def backward(ctx, gradient):
            return gradient * ctx.saved_tensors[0]

        jvp = backward

    class Computed(Exp):
        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(np.exp(inputs[0]) + 0)
            ctx.save_for_forward(output * 1)

    class Attribute(Exp):
        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.output = output

        @staticmethod
        def backward(ctx, gradient):
            return gradient * ctx.output

        jvp = backward

    exp = onp.exp(POINT)
    for custom, curvature in ((Square, 2), (Exp, exp), (Computed, exp), (Attribute, exp)):
        for packs in (False, True):
            gc.disable()
            with (
                forward_ad.dual_level(),
                saved_tensors_hooks(lambda x: x, lambda x: x) if packs else nullcontext(),
            ):
                x = forward_ad.make_dual(Variable(POINT, requires_grad=True), POINT)
                y = custom.apply(x * 1)
                gone = weakref.ref(y.grad_fn)
                (slope,) = grad(y.sum(), x, retain_graph=True)
                tangent = forward_ad.unpack_dual(slope).tangent
                (of_tangent,) = grad(forward_ad.unpack_dual(y).tangent.sum(), x)
                del y
            assert gone() is None
            gc.enable()
            for found in (tangent, of_tangent):
                onp.testing.assert_allclose(onp.asarray(found), curvature * POINT, rtol=1e-5)


def test_the_tangent_of_a_view_is_that_view_of_the_tangent():
    class End(Function):
        @staticmethod
        def forward(x, n):
            return x[n:] if n else x

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.n = inputs[1]

        @staticmethod
        def jvp(ctx, tangent, n):
            return tangent[ctx.n :] if ctx.n < 2 else tangent[ctx.n :] * 1

    with forward_ad.dual_level():
        t = Variable(POINT)
        x = forward_ad.make_dual(Variable(POINT), t)
        for n in (0, 1):
            tangent = forward_ad.unpack_dual(End.apply(x, n)).tangent
            t += 1
            assert tangent.tolist() == t.tolist()[n:]
        with pytest.raises(FunctionContextError, match="a tangent with memory of its own"):
            End.apply(x, 2)


def test_jvp_gets_none_for_a_missing_tangent_that_is_not_materialized():
    seen = []

    class Sum(Function):
        @staticmethod
        def forward(x, y, materialize):
            return x + y

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.set_materialize_grads(inputs[2])

        @staticmethod
        def jvp(ctx, dx, dy, dm):
            seen.append((ctx.needs_input_grad, dy is None))
            return dx

    for materialize in (True, False):
        expected = (True, False, False), not materialize
        with forward_ad.dual_level():
            Sum.apply(forward_ad.make_dual(POINT, POINT), Variable(POINT), materialize)
        assert seen[-1][1] == expected[1]
        functx.jvp(lambda x, m=materialize: Sum.apply(x, POINT, m), (POINT,), (POINT,))
        assert seen[-1] == expected


def test_the_rules_hold_in_loops_branches_and_checkpoints():
    class Tenfold(Square):
        @staticmethod
        def backward(ctx, gradient):
            return 10 * Square.backward(ctx, gradient)

    def loss(x):
        y, _ = functx.lax.scan(lambda c, _: (Tenfold.apply(c), None), x, None, length=2)
        y = functx.lax.cond(y.sum() > 0, Tenfold.apply, lambda y: y, y)
        return functx.checkpoint(Tenfold.apply)(y).sum()

    expected = 10**4 * 16 * POINT**15
    onp.testing.assert_allclose(functx.grad(loss)(POINT), expected)
    x = Variable(POINT, requires_grad=True)
    loss(x).backward()
    onp.testing.assert_allclose(onp.asarray(x.grad), expected)
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(loss(forward_ad.make_dual(POINT, POINT))).tangent
    onp.testing.assert_allclose(float(tangent), (16 * POINT**16).sum())


def test_none_that_backward_returns_ends_the_derivative():
    class Broken(Square):
        @staticmethod
        def backward(ctx, gradient):
            raise ZeroDivisionError

    class Second(Function):
        @staticmethod
        def forward(x, y):
            return x + y

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def backward(ctx, gradient):
            return None, gradient

    slope = functx.grad(lambda x: Second.apply(Broken.apply(x), 3 * x).sum())
    onp.testing.assert_allclose(slope(POINT), 3)


class Doubled(Function):
    """Doubles its operand in place, and its tangent too if `writes`."""

    @staticmethod
    def forward(ctx, x, writes):
        ctx.mark_dirty(x)
        ctx.writes = writes
        x *= 2
        return x

    @staticmethod
    def jvp(ctx, tangent, writes):
        if not ctx.writes:
            return tangent * 2
        tangent *= 2
        return tangent


def test_the_tangent_of_a_dirty_dual_is_written_to():
    with forward_ad.dual_level():
        t = Variable(onp.ones(2, "float32"))
        x = forward_ad.make_dual(Variable(POINT), t).copy()
        given = forward_ad.unpack_dual(x).tangent
        assert Doubled.apply(x, True) is x
        assert forward_ad.unpack_dual(x).tangent is given
        onp.testing.assert_allclose(onp.asarray(given), 2)
        with pytest.raises(FunctionContextError, match="got another tangent"):
            Doubled.apply(x, False)
        with pytest.raises(FunctionContextError, match="got a view"):
            Doubled.apply(forward_ad.make_dual(Variable(POINT), t)[:1], True)


def test_a_second_derivative_is_the_derivative_of_the_rule():
    def twice(x):
        return functx.grad(lambda x: Product.apply(x, x)[0].sum())(x).sum()

    onp.testing.assert_allclose(functx.grad(twice)(POINT), 20)
    onp.testing.assert_allclose(
        functx.grad(lambda x: functx.value_and_grad(lambda x: total(x))(x)[0])(POINT), 60 * POINT
    )


class Missing(Function):
    """Its gradients are numbers that say which inputs need one, and how many gradients are None."""

    @staticmethod
    def forward(x, y, materialize):
        return x * 2, y * 3, x * 5

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.set_materialize_grads(inputs[2])
        ctx.mark_non_differentiable(output[2])

    @staticmethod
    def backward(ctx, *gradients):
        needs_x, needs_y, _ = ctx.needs_input_grad
        number = needs_x + 2 * needs_y + 10 * sum(g is None for g in gradients)
        return np.full(2, number), np.full(2, number), None


@pytest.mark.parametrize(("materialize", "missing"), [(True, 0), (False, 2)])
def test_backward_knows_which_inputs_need_a_gradient_and_which_outputs_have_none(
    materialize, missing
):
    def loss(x, y):
        a, b, c = Missing.apply(x, y, materialize)
        return (a * c).sum()

    for argnums, needs in ((0, 1), (1, 2)):
        slope = functx.grad(loss, argnums)(POINT, POINT)
        onp.testing.assert_allclose(slope, needs + 10 * missing + (5 * 0) * POINT)
    slopes = functx.grad(loss, (0, 1))(POINT, POINT)
    onp.testing.assert_allclose(slopes, onp.full((2, 2), 3 + 10 * missing))


def test_without_jvp_forward_mode_raises():
    class Reverse(Function):
        @staticmethod
        def forward(x):
            return x * 2

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def backward(ctx, gradient):
            return 3 * gradient

    slope = jax.grad(lambda x: Reverse.apply(x).sum())
    onp.testing.assert_allclose(slope(POINT), [3, 3])
    with pytest.raises(NotImplementedError, match="Reverse: the static method jvp"):
        functx.jvp(Reverse.apply, (POINT,), (POINT,))
    with pytest.raises(
        FunctionMethodError, match="static method vmap or generate_vmap_rule = True; got neither"
    ):
        functx.vmap(Reverse.apply)(POINT)
    # Nothing is batched.
    onp.testing.assert_allclose(
        functx.vmap(lambda x: x + Reverse.apply(POINT))(POINT)[0], 1 + 2 * POINT
    )
    lacking = type(
        "Lacking",
        (Function,),
        {"forward": staticmethod(lambda x: x * 2), "setup_context": Reverse.setup_context},
    )
    onp.testing.assert_allclose(functx.jit(lacking.apply)(POINT), 2 * POINT)
    with pytest.raises(NotImplementedError, match="Lacking: the static method backward"):
        functx.grad(lambda x: lacking.apply(x).sum())(POINT)


def test_the_combined_form_is_refused_under_transforms():
    class Combined(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

    for transform in (functx.jit, functx.vmap, lambda f: lambda x: functx.jvp(f, (x,), (x,))):
        with pytest.raises(FunctionError, match=r"Combined: .*setup_context"):
            transform(Combined.apply)(POINT)


class Mapped(Function):
    """Twice x, with a rule for batches."""

    @staticmethod
    def forward(x, y, n):
        return x * 2, n, y

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient, n, h):
        return gradient * 2, h, None

    @staticmethod
    def vmap(info, in_dims, x, y, n):
        Mapped.seen = info.batch_size, info.randomness, in_dims, x.shape, n
        return Mapped.result(x, y, n, in_dims)


def test_a_batching_rule_gets_dimensions_and_returns_them():
    Mapped.result = lambda x, y, n, dims: ((x * 20, n, y * 3), (dims[0], None, None))
    matrix = onp.ones((4, 3), "float32")
    call = functx.vmap(lambda x: Mapped.apply(x, POINT, "n")[::2], in_axes=1, out_axes=(1, None))
    a, b = call(matrix)
    assert Mapped.seen == (3, "error", (1, None, None), (4, 3), "n")
    onp.testing.assert_allclose(a, 20 * matrix)
    onp.testing.assert_allclose(b, 3 * POINT)
    slope = functx.grad(lambda x: call(x)[0].sum())(matrix)
    onp.testing.assert_allclose(slope, 20 * matrix)


def test_wrong_batching_rules_are_named():
    def call(result):
        Mapped.result = result
        functx.vmap(lambda x: Mapped.apply(x, POINT, 1)[0])(POINT)

    with pytest.raises(FunctionError, match=r"pair \(output, out_dims\); got .*tuple of 3"):
        call(lambda x, y, n, dims: (x, n, y))
    with pytest.raises(FunctionError, match=r"\(\*, None, \*\).*got.*\(\*, \*\)"):
        call(lambda x, y, n, dims: ((x, n, y), (0, None)))
    with pytest.raises(FunctionError, match="outputs like forward"):
        call(lambda x, y, n, dims: (x, 0))
    both = type("Both", (Mapped,), {"generate_vmap_rule": True})
    with pytest.raises(FunctionError, match=r"Both: .*got both"):
        functx.vmap(lambda x: both.apply(x, POINT, 1)[0])(POINT)

    class Keyword(Mapped):
        @staticmethod
        def forward(x, *, y):
            return x * y

    with pytest.raises(KeywordOnlyArrayError, match="`y`"):
        functx.vmap(lambda x: Keyword.apply(x, y=x))(POINT)


def test_a_derivative_of_a_once_differentiable_gradient_is_refused():
    modes = []

    def backward(ctx, gradient):
        modes.append(is_grad_enabled())
        return Square.backward(ctx, gradient)

    once = type("Once", (Square,), {"backward": staticmethod(once_differentiable(backward))})
    slope = functx.grad(lambda x: once.apply(x).sum())
    onp.testing.assert_allclose(slope(POINT), 2 * POINT)
    assert set(modes) == {False}
    with pytest.raises(OnceDifferentiableError, match="Once: its backward"):
        functx.grad(lambda x: slope(x).sum())(POINT)
    with pytest.raises(OnceDifferentiableError):
        functx.jvp(slope, (POINT,), (POINT,))
    x = Variable(POINT, requires_grad=True)
    (rows,) = grad(once.apply(x), x, onp.eye(2), is_grads_batched=True)
    onp.testing.assert_allclose(rows, onp.diag(2 * POINT))
    assert is_grad_enabled() and not rows.requires_grad
    (rows,) = grad(once.apply(x), x, onp.eye(2), is_grads_batched=True, create_graph=True)
    with pytest.raises(OnceDifferentiableError):
        rows.sum().backward()


def test_a_saved_input_must_not_be_returned_and_wrong_gradients_are_named():
    class Same(Function):
        @staticmethod
        def forward(x):
            return x

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    with pytest.raises(FunctionContextError, match=r"Same: .*must not be returned as it is"):
        functx.grad(lambda x: Same.apply(x).sum())(POINT)
    wrong = type("Wrong", (Product,), {"backward": staticmethod(lambda ctx, *g: g)})
    with pytest.raises(FunctionGradientError, match=r"position 3|input 0"):
        functx.grad(lambda x: wrong.apply(x, x)[0].sum())(POINT)


def test_wrong_tangents_and_writes_to_arguments_are_named():
    def call(jvp):
        custom = type("Custom", (Product,), {"jvp": staticmethod(jvp)})
        functx.jvp(lambda x: custom.apply(x, x)[0], (POINT,), (POINT,))

    with pytest.raises(FunctionGradientError, match="got 1, expected 3"):
        call(lambda ctx, dx, dy, dn: dx)
    for change, given in (
        (lambda t: t.sum(), "[]"),
        (lambda t: t.astype("float16"), "f16[2]"),
        (lambda t: t.astype("complex64"), "c64[2]"),
    ):
        with pytest.raises(
            FunctionGradientError, match=r"for output 0, expected f32\[2\]"
        ) as error:
            call(lambda ctx, dx, dy, dn, change=change: (change(dx), None, None))
        assert given in str(error.value)
    with pytest.raises(FunctionGradientError, match="for output 1, expected None"):
        call(lambda ctx, dx, dy, dn: (dx, dx, None))
    listed = type("Listed", (Mapped,), {"forward": staticmethod(lambda x: [x * 2])})
    with pytest.raises(FunctionError, match=r"Listed: .*got arrays in list of 1"):
        functx.jit(listed.apply)(POINT)
    written = type("Written", (Mapped,), {"forward": staticmethod(write_to_operand)})
    with pytest.raises(ArgumentWriteError, match="Written: the function must not write"):
        functx.jit(lambda x: written.apply(x * 1))(POINT)


def write_to_operand(x):
    x *= 2
    return x


def test_gradients_of_complex_values_are_conjugates_under_transforms():
    z = onp.array([1 + 2j, 3 - 1j], "complex64")
    expected = functx.grad(lambda z: (z * z).real.sum())(z)
    onp.testing.assert_allclose(functx.grad(lambda z: Square.apply(z).real.sum())(z), expected)
    x = Variable(z, requires_grad=True)
    Square.apply(x).real.sum().backward()
    onp.testing.assert_allclose(onp.asarray(x.grad), onp.conj(expected))


def test_nested_functions_have_rules_under_transforms():
    class Nested(NestedIOFunction):
        generate_vmap_rule = True

        @staticmethod
        def forward(pair):
            return {"product": pair[0] * pair[1]}

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs[0])

        @staticmethod
        def backward(ctx, gradients):
            x, y = ctx.saved_tensors
            return [10 * gradients["product"] * y, 10 * gradients["product"] * x]

        @staticmethod
        def jvp(ctx, pair):
            x, y = ctx.saved_tensors
            return {"product": 100 * (pair[0] * y + pair[1] * x)}

    def call(x):
        return Nested.apply([x, 3 * x])["product"]

    onp.testing.assert_allclose(functx.vmap(functx.grad(call))(POINT), 60 * POINT)
    onp.testing.assert_allclose(functx.jvp(call, (POINT,), (POINT,))[1], 600 * POINT**2)
