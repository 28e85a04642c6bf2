"""Pytrees of the user's own through every transform: rebuilt from arrays, named in messages."""

from collections import namedtuple

import jax
import numpy as onp
import pytest

import functx as fx
from functx import lax
from functx.core.errors import FunctxError
from functx.core.tracer import Tracer


def strict(register):
    """A pytree class that can be made of arrays and numbers only."""

    class Pair:
        def __init__(self, *parts):
            for x in parts:
                good = isinstance(
                    x, (onp.ndarray, onp.generic, jax.Array, Tracer, float, int, Pair)
                )
                assert good and not isinstance(x, bool), f"made of {x!r}"
            self.parts = parts

    register(Pair)
    return Pair


Plain = strict(
    lambda c: jax.tree_util.register_pytree_node(c, lambda s: (s.parts, None), lambda _, x: c(*x))
)
Named = strict(
    lambda c: jax.tree_util.register_pytree_with_keys(
        c,
        lambda s: (list(zip(map(jax.tree_util.GetAttrKey, "ab"), s.parts, strict=True)), None),
        lambda _, x: c(*x),
    )
)
NOTHING = onp.zeros(2, fx.float0)


def floats(*values):
    return onp.array(values, "f4")


def total(s):
    return sum([(x * x).sum() for x in s.parts])


def product(s):
    return s.parts[0] * s.parts[1]


def ruled(kind, out, *rules):
    f = kind(out)
    (f.defvjp if kind is fx.custom_vjp else f.defjvp)(*rules)
    return f


@pytest.mark.parametrize("kind", [Plain, Named])
def test_a_class_of_the_users_is_rebuilt_from_arrays_only(kind):
    x, mixed = kind(floats(1, 2), floats(3, 4)), kind(floats(1, 2), onp.array([1, 2], "i4"))
    t, scalars = kind(floats(1, 1), NOTHING), kind(floats(1)[0], floats(2)[0])

    def both(s):
        return kind(s.parts[0] * 2.0, product(s))

    def with_int(s):
        return kind(product(s), s.parts[1])

    def add(c, v):
        return kind(c.parts[0] + v.parts[0], c.parts[1]), v

    pulled = ruled(
        fx.custom_vjp,
        with_int,
        lambda s: (with_int(s), s),
        lambda s, ct: (kind(ct.parts[0] * s.parts[1], NOTHING),),
    )
    zero = ruled(fx.custom_vjp, product, lambda s: (product(s), s), lambda s, ct: (None,))
    pushed = ruled(
        fx.custom_jvp,
        with_int,
        lambda p, ts: (with_int(*p), kind(ts[0].parts[0] * p[0].parts[1], NOTHING)),
    )
    halves = lambda _, b: kind(b.parts[0] / 2, b.parts[1] / 4)  # noqa: E731
    calls = [
        lambda: fx.grad(total)(x),
        lambda: fx.grad(lambda s: product(s).sum(), allow_int=True)(mixed),
        lambda: fx.grad(lambda y, s: (y * product(s)).sum(), (0,))(floats(1, 2), mixed),
        lambda: fx.grad(lambda a, b: total(a) + total(b), (1, 0))(x, x),
        lambda: fx.value_and_grad(lambda s: (total(s), s), has_aux=True)(x),
        lambda: fx.grad(lambda s: total(fx.grad(total)(s)))(x),
        lambda: fx.vjp(with_int, mixed)[1](t),
        lambda: fx.jvp(with_int, (mixed,), (t,)),
        lambda: fx.jvp(lambda s: (both(s), mixed), (x,), (x,), has_aux=True),
        lambda: fx.linearize(with_int, mixed)[1](t),
        lambda: fx.linear_transpose(lambda s: kind(s.parts[0] + s.parts[1], s.parts[1]), x)(x),
        lambda: fx.jacrev(product, allow_int=True)(mixed),
        lambda: fx.jacfwd(both)(x),
        lambda: fx.hessian(total)(x),
        lambda: fx.vmap(both, in_axes=(kind(0, 0),), out_axes=kind(0, 0))(x),
        lambda: fx.vmap(lambda y, s: both(s), in_axes=(0, None))(floats(1, 2), mixed),
        lambda: fx.vmap(both, chunk_size=1)(x),
        lambda: fx.jit(lambda n, s: both(s), static_argnums=0)(3, x),
        lambda: fx.jit(both, donate_argnums=0)(jax.tree.map(jax.numpy.asarray, x)),
        lambda: fx.functionalize(both).program(x),
        lambda: str(fx.make_ir(both)(x)),
        lambda: lax.scan(add, scalars, x),
        lambda: fx.jit(lambda p, s: lax.cond(p, both, lambda s: s, s))(True, x),
        lambda: lax.while_loop(lambda s: s.parts[0].sum() < 10, both, x),
        lambda: lax.map(both, x, batch_size=1),
        lambda: lax.associative_scan(lambda a, b: kind(a.parts[0] + b.parts[0], b.parts[1]), x),
        lambda: fx.grad(lambda s: pulled(s).parts[0].sum(), allow_int=True)(mixed),
        lambda: fx.grad(lambda s: zero(s).sum())(x),
        lambda: fx.jvp(pushed, (mixed,), (t,)),
        lambda: fx.grad(fx.checkpoint(total))(x),
        lambda: lax.custom_linear_solve(
            lambda s: kind(2 * s.parts[0], 4 * s.parts[1]), x, halves, halves
        ),
    ]
    for call in calls:
        call()
    by_float, by_int = fx.grad(lambda s: product(s).sum(), allow_int=True)(mixed).parts
    assert by_float.tolist() == [1, 2] and by_int.dtype == fx.float0 and by_int.shape == (2,)


def test_messages_name_the_parts_of_a_class_that_has_names():
    x, bad = Named(floats(1, 2), floats(3, 4)), Named(floats(1, 2), floats(3, 4, 5))
    for call, named in [
        (lambda: fx.grad(total)(Named(floats(1), onp.array([1]))), "for `s.b`"),
        (lambda: fx.jvp(total, (x,), (bad,)), "got f32[3] for `s.b`"),
        (lambda: fx.vjp(lambda s: s, x)[1](bad), "for output.b"),
        (lambda: fx.vmap(total)(bad), "s.b: f32[3] mapped on axis 0 (3)"),
        (lambda: lax.while_loop(lambda s: True, lambda s: bad, x), "carry.b: f32[3] for f32[2]"),
        (lambda: fx.jit(lambda s: float(s.parts[1][0]))(x), "argument `s.b`"),
    ]:
        with pytest.raises(FunctxError) as caught:
            call()
        assert named in str(caught.value)


def test_a_structure_that_differs_in_one_leaf_of_twenty_is_named_by_that_leaf():
    good = {f"w{i}": [floats(1), (floats(2), {"b": floats(3)})] for i in range(20)}
    bad = {**good, "w7": [floats(1), (floats(2), {"b": (floats(3), floats(4))})]}
    same = lambda d: d  # noqa: E731
    wrong_bwd = ruled(fx.custom_vjp, same, lambda d: (d, None), lambda _, ct: (bad,))
    wrong_fwd = ruled(fx.custom_vjp, same, lambda d: (bad, None), lambda _, ct: (ct,))
    wrong_jvp = ruled(fx.custom_jvp, same, lambda p, t: (p[0], bad))
    of = {**good, "w7": [floats(1), (floats(2), floats(3))]}
    for call in [
        lambda: lax.scan(lambda c, _: (bad, None), good, None, length=2),
        lambda: lax.while_loop(lambda c: True, lambda c: bad, good),
        lambda: fx.jit(lambda p: lax.cond(p, lambda: good, lambda: bad))(True),
        lambda: fx.jvp(same, (good,), (of,)),
        lambda: fx.vjp(same, good)[1](of),
        lambda: fx.linearize(same, good)[1](of),
        lambda: fx.jit(lambda d: fx.vjp(wrong_bwd, d)[1](d))(good),
        lambda: fx.jit(wrong_fwd)(good),
        lambda: fx.jvp(wrong_jvp, (good,), (good,)),
        lambda: fx.vmap(same, in_axes=(jax.tree.map(lambda _: 0, bad),))(good),
    ]:
        with pytest.raises(FunctxError) as caught:
            call()
        text = str(caught.value)
        assert "['w7'][1][1]" in text, text
        assert "w13" not in text or "in_axes" in text
        assert ("a leaf" in text) and ("tuple of 2" in text or "dict with the keys 'b'" in text)


@pytest.mark.parametrize("nothing", [None, (), [], {"a": None}])
def test_functions_that_return_nothing_are_functions_too(nothing):
    f, x = lambda *_: nothing, floats(1, 2)
    assert fx.jvp(f, (x,), (x,)) == (nothing, nothing) == fx.jvp(f, (x,), (None,))
    out, pull = fx.vjp(f, x)
    assert out == nothing and pull(nothing)[0].tolist() == [0, 0]
    out, push = fx.linearize(f, x)
    assert (out, push(x)) == (nothing, nothing)
    for transform in (fx.vmap, fx.jit, fx.jacfwd, fx.jacrev, fx.hessian, fx.checkpoint):
        assert transform(f)(x) == nothing
    assert fx.linear_transpose(f, x)(nothing)[0].tolist() == [0, 0]


def test_what_is_no_array_passes_where_nothing_is_differentiated_or_mapped():
    x, square = floats(1, 2), lambda v: v * v
    found = fx.grad(lambda x, f, d: f(x).sum() + len(d["s"]))(x, square, {"s": "abc", "y": x})
    assert found.tolist() == [2, 4]
    found = fx.vmap(lambda f, x, n: f(x) + fx.numpy.zeros(n), (None, 0, None))(square, x, 3)
    assert found.tolist() == [[1] * 3, [4] * 3]
    assert fx.jacrev(lambda x, *, f: f(x))(x, f=square).tolist() == [[2, 0], [0, 4]]


def test_argnums_may_be_any_integers_in_any_sequence():
    f, x, y = lambda x, y: (x * y).sum(), floats(1, 2), floats(3, 4)
    for argnums in ([0, 1], (onp.int64(0), -1), [onp.array(0), 1]):
        assert [g.tolist() for g in fx.grad(f, argnums)(x, y)] == [[3, 4], [1, 2]]
    assert fx.jacrev(f, onp.int32(1))(x, y).tolist() == [1, 2]
    assert isinstance(fx.jacfwd(f, [0])(x, y), tuple)


def test_aux_that_is_not_traced_comes_back_as_it_is():
    table = onp.arange(3)
    given = {"s": "text", "n": 3, "f": 2.5, "t": table, "none": None, "sq": abs}
    x = floats(1, 2)

    def f(x):
        return (x * x).sum(), {**given, "x": x * 2}

    for aux in (
        fx.grad(f, has_aux=True)(x)[1],
        fx.value_and_grad(f, has_aux=True)(x)[0][1],
        fx.vjp(f, x, has_aux=True)[2],
        fx.jvp(f, (x,), (x,), has_aux=True)[2],
        fx.linearize(f, x, has_aux=True)[2],
        fx.jacrev(f, has_aux=True)(x)[1],
        fx.hessian(f, has_aux=True)(x)[1],
    ):
        assert isinstance(aux["x"], jax.Array) and aux["x"].tolist() == [2, 4]
        assert all(aux[key] is value for key, value in given.items())


def test_integers_stay_integers_where_they_are_not_differentiated():
    x, zero = floats(1, 2, 3), onp.zeros((), fx.float0)
    pick = lambda x, i: x[i] * (i + 1)  # noqa: E731
    assert fx.vjp(pick, x, 1)[1](1.0)[0].tolist() == [0, 2, 0]
    assert fx.grad(pick, (0, 1), allow_int=True)(x, 1)[0].tolist() == [0, 2, 0]
    assert float(fx.linearize(pick, x, 1)[1](x, zero)) == 4
    value, tangent = fx.jvp(pick, (x, 1), (x, zero))
    assert (float(value), float(tangent)) == (4, 4)
    value, tangent = fx.jvp(lambda n: n + 1, (2,), (zero,))
    assert int(value) == 3 and value.dtype == onp.int32 and tangent is None
    out, pull = fx.vjp(lambda x: (x > 1, x * 2), x)
    assert out[0].dtype == bool and pull((onp.zeros(3, fx.float0), x))[0].tolist() == [2, 4, 6]
    assert fx.vjp(lambda x: x > 1, x)[1](None)[0].tolist() == [0, 0, 0]


def test_residuals_that_are_no_arrays_reach_the_backward_rule_as_they_are():
    def fwd(x):
        return (x * x).sum(), (x.shape, "two", None, 2.0, fx.numpy.cos, {"x": x}, range(3))

    def bwd(saved, ct):
        shape, word, none, two, fun, kept, steps = saved
        assert (word, none, list(steps), type(two)) == ("two", None, [0, 1, 2], float)
        return (fx.numpy.full(shape, ct) * two * kept["x"] + 0 * fun(kept["x"]),)

    f = ruled(fx.custom_vjp, lambda x: (x * x).sum(), fwd, bwd)
    x = floats(1, 2)
    rows = onp.stack([x, 2 * x])
    assert fx.grad(f)(x).tolist() == fx.jit(fx.grad(f))(x).tolist() == [2, 4]
    assert fx.grad(fx.jit(f))(x).tolist() == [2, 4]
    assert fx.vmap(fx.grad(f))(rows).tolist() == (2 * rows).tolist()
    assert fx.grad(fx.checkpoint(f))(x).tolist() == [2, 4]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "complex64"])
def test_a_cotangent_of_another_width_is_converted_to_the_dtype_of_its_primal(dtype):
    f = ruled(
        fx.custom_vjp,
        lambda x: x * 1,
        lambda x: (x, None),
        lambda _, ct: (
            ct.real.astype("float32") if dtype == "complex64" else ct.astype("float32"),
        ),
    )
    x = jax.numpy.ones(2, dtype)
    found = fx.grad(lambda x: f(x).real.astype("float32").sum(), holomorphic=False)(x)
    assert found.dtype == x.dtype and found.real.astype("float32").tolist() == [1, 1]


Plain = namedtuple("Plain", "a b")
Swapped = namedtuple("Swapped", "a b")
OneChild = namedtuple("OneChild", "a b")


def test_named_tuples_of_registered_classes_have_the_children_of_the_class():
    register = fx.tree_util.register_pytree_node
    register(Swapped, lambda x: (x[::-1], None), lambda _, children: Swapped(*children[::-1]))
    register(OneChild, lambda x: ((x.a,), x.b), lambda b, children: OneChild(*children, b))
    x = Plain(Swapped(1.0, 2.0), (OneChild(3.0, "static"), 4.0))
    program = fx.make_ir(lambda x: fx.tree_util.tree_map(lambda x: x * 2, x))(x)
    indices = "x.a[<flat index 0>]", "x.a[<flat index 1>]", "x.b[0][<flat index 0>]", "x.b[1]"
    assert program.in_names() == list(indices)
    assert fx.grad(lambda x: x.a.b + x.b[0].a)(x) == Plain(
        Swapped(0.0, 1.0), (OneChild(1.0, "static"), 0.0)
    )
