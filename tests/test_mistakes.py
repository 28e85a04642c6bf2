"""Mistakes that users make: each message says what must hold, and the cure that it names works."""

import ast
import functools
import importlib
import math
import re
from pathlib import Path

import jax
import numpy
import pytest

import functx
import functx.numpy as np
from functx import errors, grad, jit, jvp, lax, random, stop_gradient, vjp, vmap

X = numpy.ones(3, "float32")
A = numpy.ones((3, 4), "float32")


class Settings:
    rate = 2.0


def choose(x):
    if x > 0:
        return x
    return -x


def spoil(x, store):
    store.append(x * 2)
    return x


def write_out(v):
    buffer = numpy.zeros(3)

    def f(v):
        buffer[0] = v
        return v

    return jit(f)(v)


def write_in(v):
    def f(v, buffer):
        buffer[0] = v
        return v

    return jit(f)(v, numpy.zeros(3))


def without_first(x):
    del x[0]
    return x


square = functx.custom_vjp(lambda x: x * x)
cured_square = functx.custom_vjp(lambda x: x * x)
cured_square.defvjp(lambda x: (x * x, x), lambda x, ct: (2 * x * ct,))


def leak(use):
    store = []
    grad(lambda x: spoil(x, store))(1.0)
    return use(store[0])


# A mistake, the error, what its message must say, and the cure that it names, done.
MISTAKES = {
    "shapes": (
        lambda: jit(lambda x, y: x + y)(X, numpy.ones(4)),
        "ShapeError",
        ["(3,) and (4,)", "x[:, None]"],
        lambda: jit(lambda x, y: x[:, None] + y)(X, numpy.ones(4)),
    ),
    "a product": (
        lambda: jit(lambda x: x @ x)(A),
        "ShapeError",
        ["dimension -1 (4) and dimension -2 (3)", "x.T"],
        lambda: jit(lambda x: x @ x.T)(A),
    ),
    "a string": (
        lambda: jit(lambda mode, x: x)("fast", 1.0),
        "ArgumentError",
        ["got str for `mode`", "static_argnums", "functools.partial"],
        lambda: (
            jit(lambda mode, x: x, static_argnums=0)("fast", 1.0),
            jit(functools.partial(lambda mode, x: x, "fast"))(1.0),
        ),
    ),
    "typed keys as numbers": (
        lambda: jit(np.sin)(jax.random.key(0)),
        "TypedKeyError",
        ["got typed keys, key<fry>[]", "key_data"],
        lambda: jit(np.sin)(functx.random.key_data(jax.random.key(0))),
    ),
    "an object": (
        lambda: jit(lambda s, x: x * s.rate)(Settings(), 1.0),
        "ArgumentError",
        ["got Settings for `s`", "static_argnums", "register_dataclass"],
        lambda: jit(lambda s, x: x * s.rate, static_argnums=0)(Settings(), 1.0),
    ),
    "None among numbers": (
        lambda: jit(lambda d: d["a"] + d["b"])({"a": 1.0, "b": None}),
        "ArgumentError",
        ["got NoneType", "leave it out"],
        lambda: jit(lambda d: d["a"])({"a": 1.0, "b": None}),
    ),
    "a branch": (
        lambda: jit(choose)(1.0),
        "ConcretizationError",
        ["`if` needs", "argument `x`", "numpy.where", "lax.cond", "static_argnums"],
        lambda: (
            jit(lambda x: np.where(x > 0, x, -x))(1.0),
            jit(lambda x: lax.cond(x > 0, lambda: x, lambda: -x))(1.0),
            jit(choose, static_argnums=0)(1.0),
        ),
    ),
    "and": (
        lambda: jit(lambda x: x > 0 and x < 2)(1.0),
        "ConcretizationError",
        ["`and` needs", "&, | and ~"],
        lambda: jit(lambda x: (x > 0) & ~(x >= 2))(1.0),
    ),
    "truth of an array": (
        lambda: grad(lambda x: choose(x).sum())(X),
        "ShapeError",
        ["one element", "bool[3]", ".any()"],
        lambda: grad(lambda x: x.sum() if (x > 0).all() else -x.sum())(X),
    ),
    "a loop": (
        lambda: jit(lambda n: [0.0 for _ in range(n)])(3),
        "ConcretizationError",
        ["argument `n`", "fori_loop", "static_argnums"],
        lambda: (
            jit(lambda n: lax.fori_loop(0, n, lambda i, c: c + i, 0))(3),
            jit(lambda n: [0.0 for _ in range(n)], static_argnums=0)(3),
        ),
    ),
    "a list and an index": (
        lambda: jit(lambda i: [1.0, 2.0][i])(1),
        "ConcretizationError",
        ["functx.numpy.stack", "lax.switch"],
        lambda: (
            jit(lambda i: np.stack([1.0, 2.0])[i])(1),
            jit(lambda i: lax.switch(i, [lambda: 1.0, lambda: 2.0]))(1),
        ),
    ),
    "a key of a dictionary": (
        lambda: jit(lambda i: {1: 2.0}[i])(1),
        "ConcretizationError",
        ["hash() needs", "functx.numpy.stack", "lax.switch", "static_argnums"],
        lambda: jit(lambda i: {1: 2.0}[i], static_argnums=0)(1),
    ),
    "a shape": (
        lambda: jit(lambda n: np.zeros(n))(3),
        "ArgumentError",
        ["known while tracing", "argument `n`", "static"],
        lambda: jit(lambda n: np.zeros(n), static_argnums=0)(3),
    ),
    "a new shape": (
        lambda: jit(lambda x, n: x.reshape(n, -1))(X, 3),
        "ArgumentError",
        ["reshape", "known while tracing", "argument `n`", "static"],
        lambda: jit(lambda x, n: x.reshape(n, -1), static_argnums=1)(X, 3),
    ),
    "a traced value that escaped": (
        lambda: leak(lambda x: x + 1),
        "EscapedTracerError",
        ["has ended", "made at test_mistakes.py", "has_aux=True"],
        lambda: grad(lambda x: (x, x * 2), has_aux=True)(1.0)[1] + 1,
    ),
    "a number from one that escaped": (
        lambda: leak(float),
        "EscapedTracerError",
        ["has ended"],
        lambda: float(grad(lambda x: (x, x * 2), has_aux=True)(1.0)[1]),
    ),
    "an entry of in_axes": (
        lambda: vmap(lambda x, y: x + y, in_axes=(0,))(X, 1.0),
        "InAxesError",
        ["1 entry (0,) for 2 arguments", "None"],
        lambda: vmap(lambda x, y: x + y, in_axes=(0, None))(X, 1.0),
    ),
    "a tree of in_axes": (
        lambda: vmap(lambda d: d["a"], in_axes=({"b": 0},))({"a": X}),
        "InAxesError",
        ["tree prefix", "an int for a whole argument"],
        lambda: vmap(lambda d: d["a"], in_axes=({"a": 0},))({"a": X}),
    ),
    "sizes": (
        lambda: vmap(lambda x, y: x.sum() + y.sum())(X, numpy.ones(4)),
        "AxisSizeError",
        ["x: f32[3]", "y: f32[4]", "give None for it in in_axes"],
        lambda: vmap(lambda x, y: x.sum() + y.sum(), in_axes=(0, None))(X, numpy.ones(4)),
    ),
    "an axis of a result": (
        lambda: vmap(lambda x: x, out_axes=None)(X),
        "OutAxesError",
        ["must not depend on mapped", "Give it an axis in out_axes"],
        lambda: vmap(lambda x: x, out_axes=0)(X),
    ),
    "a tangent": (
        lambda: jvp(lambda x: x, (X,), (1.0,)),
        "TangentError",
        ["~f32[] for `x`: f32[3]", "ones_like", "None"],
        lambda: (
            jvp(lambda x: x, (X,), (np.ones_like(X),)),
            jvp(lambda x: x, (X,), (None,)),
        ),
    ),
    "primals in no tuple": (
        lambda: jvp(lambda x: x, 1.0, 1.0),
        "ArgumentError",
        ["must be a tuple", "functx.jvp(f, (x,), (t,))"],
        lambda: jvp(lambda x: x, (1.0,), (1.0,)),
    ),
    "a cotangent": (
        lambda: vjp(lambda x: (x, x), 1.0)[1](1.0),
        "TreeError",
        ["structure of the output"],
        lambda: vjp(lambda x: (x, x), 1.0)[1]((1.0, None)),
    ),
    "argnums": (
        lambda: grad(lambda x, y: x * y, argnums=1)(1.0, y=2.0),
        "ArgnumsError",
        ["got 1 for 1 positional", "by position"],
        lambda: grad(lambda x, y: x * y, argnums=1)(1.0, 2.0),
    ),
    "a vector loss": (
        lambda: grad(lambda x: x * 2)(X),
        "GradientError",
        ["must return a scalar", "f32[3]", ".sum()", "jacrev"],
        lambda: (grad(lambda x: (x * 2).sum())(X), functx.jacrev(lambda x: x * 2)(X)),
    ),
    "an integer loss": (
        lambda: grad(lambda x: np.argmax(x))(X),
        "GradientError",
        ["got i32[]", "Return a float"],
        lambda: grad(lambda x: np.argmax(x) * x.sum())(X),
    ),
    "an integer argument": (
        lambda: grad(lambda d: d["w"] * 2.0)({"w": 1.0, "step": numpy.array(3)}),
        "GradientError",
        ["i32[] for `d['step']`", "asarray(d['step'], float)", "allow_int=True"],
        lambda: (
            grad(lambda d: d["w"] * 2.0)({"w": 1.0, "step": np.asarray(numpy.array(3), float)}),
            grad(lambda d: d["w"] * 2.0, allow_int=True)({"w": 1.0, "step": numpy.array(3)}),
        ),
    ),
    "a loss and more": (
        lambda: grad(lambda x: (x, 1))(1.0),
        "GradientError",
        ["single scalar", "has_aux=True"],
        lambda: grad(lambda x: (x, 1), has_aux=True)(1.0),
    ),
    "a static list": (
        lambda: jit(lambda x, s: x, static_argnums=1)(1.0, [1, 2]),
        "StaticArgumentError",
        ["hashable", "got list", "tuple"],
        lambda: jit(lambda x, s: x, static_argnums=1)(1.0, (1, 2)),
    ),
    "keys of two types": (
        lambda: jit(lambda d: d)({1: 1.0, "a": 2.0}),
        "TreeError",
        ["sortable", "keys of one type"],
        lambda: jit(lambda d: d)({"1": 1.0, "a": 2.0}),
    ),
    "float()": (
        lambda: grad(lambda x: float(x) ** 2)(1.0),
        "DifferentiatedValueError",
        ["derivative would be lost", "stop_gradient(x)"],
        lambda: (grad(lambda x: x**2)(1.0), grad(lambda x: x * float(stop_gradient(x)))(1.0)),
    ),
    "math": (
        lambda: jit(lambda x: math.sin(x))(1.0),
        "ConcretizationError",
        ["functx.numpy in place of math"],
        lambda: jit(lambda x: np.sin(x))(1.0),
    ),
    "a value in a list": (
        lambda: jit(lambda x, y: x in [y, 2.0])(1.0, 1.0),
        "ConcretizationError",
        ["bool() of each == of `in` needs", "(xs == x).any()"],
        lambda: jit(lambda x, y: (np.stack([y, 2.0]) == x).any())(1.0, 1.0),
    ),
    "an array in a list": (
        lambda: jit(lambda x: [x * 2, x].count(x))(X),
        "ShapeError",
        ["bool() of each == of `count`", "one element; got bool[3]", "functx.numpy.stack"],
        lambda: jit(lambda x: (np.stack([x * 2, x]) == x).all(1).sum())(X),
    ),
    "the index of a value": (
        lambda: jit(lambda x, y: np.asarray([y, 2.0].index(x)), explore=True)(1.0, 1.0),
        "ValueRangeError",
        ["bool() of each == of `index`", "equals no element", "argmax(xs == x)"],
        lambda: jit(lambda x, y: np.argmax(np.stack([y, 2.0]) == x))(1.0, 1.0),
    ),
    ".item()": (
        lambda: jit(lambda x: x.item() * 2)(1.0),
        "ConcretizationError",
        [".item() needs", "Keep the array"],
        lambda: jit(lambda x: x * 2)(1.0),
    ),
    "numpy.asarray": (
        lambda: jit(lambda x: numpy.array([x, x]))(1.0),
        "ForeignCodeError",
        ["functx.numpy in place of NumPy", "functx.random"],
        lambda: jit(lambda x: np.array([x, x]))(1.0),
    ),
    "a function of NumPy's alone": (
        lambda: jit(lambda x: numpy.isnat(x))(A),
        "ForeignCodeError",
        ["numpy.isnat cannot be traced; got f32[3,4]", "functions of functx.numpy"],
        lambda: jit(lambda x: np.isnan(x))(A),
    ),
    "a NumPy table": (
        lambda: jit(lambda i: numpy.arange(5)[i])(1),
        "ForeignCodeError",
        ["functx.numpy.asarray(table)[i]"],
        lambda: jit(lambda i: np.asarray(numpy.arange(5))[i])(1),
    ),
    "a write outside": (
        lambda: write_out(1.0),
        "CapturedWriteError",
        ["for the NumPy array `buffer`", "Pass the array as an argument"],
        lambda: write_in(1.0),
    ),
    "a draw in a batch": (
        lambda: vmap(lambda x: x + random.rand(()))(X),
        "RandomnessError",
        ["got rand under randomness='error'", "randomness='same'", "'different'"],
        lambda: vmap(lambda x: x + random.rand(()), randomness="different")(X),
    ),
    "a draw under a transform of JAX": (
        lambda: jax.jit(lambda x: x + random.rand(3))(X),
        "ImplicitDrawError",
        ["got a draw under a transform of JAX", "Use functx.jit", "draw with a key"],
        lambda: jit(lambda x: x + random.rand(3))(X),
    ),
    "a generator that is none": (
        lambda: random.rand(3, generator=random.key(0)),
        "GeneratorError",
        ["uint32[2]", "random.Generator(seed)"],
        lambda: random.rand(3, generator=random.Generator(0)),
    ),
    "a seed that is none": (
        lambda: random.Generator(0.5),
        "SeedTypeError",
        ["a seed must be an int", "got float 0.5"],
        lambda: random.Generator(5),
    ),
    "a mask": (
        lambda: jit(lambda x: x[x > 0].sum())(X),
        "IndexingError",
        ["known value", "where(mask, x, 0)", "nonzero(mask, size=...)", "x.at[mask].set(value)"],
        lambda: jit(
            lambda x: (
                np.where(x > 0, x, 0).sum(),
                np.nonzero(x > 0, size=3),
                x.at[x > 0].set(0.0),
            )
        )(X),
    ),
    **{
        name: (
            lambda f=f: jit(lambda x: f(x))(X),
            "ConcretizationError",
            [f"{name} without `size`", f"Give {name} the number of results, `size`", "fill_value"],
            lambda f=f: jit(lambda x: f(x, size=3, fill_value=0))(X),
        )
        for name, f in {
            "nonzero": np.nonzero,
            "argwhere": np.argwhere,
            "flatnonzero": np.flatnonzero,
            "unique": np.unique,
            "setdiff1d": lambda x, **given: np.setdiff1d(x, x, **given),
            "where": lambda x, **given: np.where(x > 0, **given),
        }.items()
    },
    "counts": (
        lambda: jit(lambda x, n: np.repeat(x, n))(X, numpy.array([1, 2, 0])),
        "ConcretizationError",
        ["repeat needs", "total_repeat_length"],
        lambda: jit(lambda x, n: np.repeat(x, n, total_repeat_length=3))(X, numpy.array([1, 2, 0])),
    ),
    "a part from a traced place on": (
        lambda: jit(lambda x, i: x[i : i + 2])(X, 1),
        "SliceBoundError",
        ["dynamic_slice_in_dim", "x[start + functx.numpy.arange(length)]"],
        lambda: jit(lambda x, i: (lax.dynamic_slice_in_dim(x, i, 2), x[i + np.arange(2)]))(X, 1),
    ),
    "an index out of bounds": (
        lambda: jit(lambda x: x[5])(X),
        "IndexingError",
        ["[-3, 3)", "got 5", 'mode="fill"'],
        lambda: jit(lambda x: x.at[5].get(mode="fill"))(X),
    ),
    "an element deleted": (
        lambda: jit(without_first)(X),
        "ImmutableArrayError",
        ["functx.numpy.delete"],
        lambda: jit(lambda x: np.delete(x, 0))(X),
    ),
    "a growing carry": (
        lambda: lax.scan(lambda c, x: (np.append(c, x), c), np.zeros(1), X),
        "CarryTypeError",
        ["f32[2] for f32[1]", "carry made at test_mistakes.py"],
        lambda: lax.scan(lambda c, x: (c.at[0].set(x), c), np.zeros(1), X),
    ),
    "a carry of another structure": (
        lambda: lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1,), (0, 1.0)),
        "CarryTypeError",
        ["missing: carry[1]", "Begin with a carry"],
        lambda: lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1,), (0,)),
    ),
    "a step without a pair": (
        lambda: lax.scan(lambda c, x: c + x, 0.0, X),
        "ArgumentError",
        ["pair (carry, y)", "(carry, None)"],
        lambda: lax.scan(lambda c, x: (c + x, None), 0.0, X),
    ),
    "steps": (
        lambda: lax.scan(lambda c, x: (c, c), 0.0, (X, numpy.ones(4))),
        "AxisSizeError",
        ["3 and 4", "one length"],
        lambda: lax.scan(lambda c, x: (c, c), 0.0, (X, X)),
    ),
    "no steps": (
        lambda: lax.scan(lambda c, _: (c, c), 0.0, None),
        "AxisSizeError",
        ["length=n"],
        lambda: lax.scan(lambda c, _: (c, c), 0.0, None, length=3),
    ),
    "a condition": (
        lambda: lax.while_loop(lambda c: c > 0, lambda c: c - 1.0, X),
        "DTypeError",
        ["boolean scalar", "bool[3]", ".any()"],
        lambda: lax.while_loop(lambda c: (c > 0).any(), lambda c: c - 1.0, X),
    ),
    "branches": (
        lambda: jit(lambda p: lax.cond(p, lambda: np.ones(3), lambda: np.ones(1)))(True),
        "BranchTypeError",
        ["f32[3] of true_fun and f32[1] of false_fun", "broadcast"],
        lambda: jit(
            lambda p: lax.cond(p, lambda: np.ones(3), lambda: np.broadcast_to(np.ones(1), 3))
        )(True),
    ),
    "a vector predicate": (
        lambda: lax.cond(X > 0, lambda: 1, lambda: 2),
        "ShapeError",
        ["scalar", "bool[3]", ".any()", "vmap", "functx.numpy.where"],
        lambda: (
            lax.cond((X > 0).any(), lambda: 1, lambda: 2),
            vmap(lambda p: lax.cond(p, lambda: 1, lambda: 2))(X > 0),
            np.where(X > 0, 1, 2),
        ),
    ),
    "no key": (
        lambda: random.normal((3,)),
        "DTypeError",
        ["functx.random.key(seed)", "split"],
        lambda: random.normal(random.split(random.key(0))[0], (3,)),
    ),
    "arrays in no list": (
        lambda: np.concatenate(X, X),
        "ShapeError",
        ["concatenate([x, y])"],
        lambda: np.concatenate([X, X]),
    ),
    "a switch of JAX's": (
        lambda: functx.config.update("enable_x64", False),
        "ArgumentError",
        ["got 'enable_x64'", "names that begin with jax_"],
        lambda: functx.config.update("jax_enable_x64", False),
    ),
    "no rule": (
        lambda: square(1.0),
        "MissingRuleError",
        ["defvjp"],
        lambda: grad(cured_square)(1.0),
    ),
    "an f-string": (
        lambda: jit(lambda x: functx.debug.print(f"x = {x:.2f}"))(1.0),
        "FormatError",
        ["when the program runs", 'debug.print("x = {}", x)'],
        lambda: jit(lambda x: functx.debug.print("x = {}", x))(1.0),
    ),
    "a named axis": (
        lambda: vmap(lambda x: lax.psum(x, "i"))(X),
        "UnboundAxisError",
        ["'i'", "axis_name='i'"],
        lambda: vmap(lambda x: lax.psum(x, "i"), axis_name="i")(X),
    ),
    "a power": (
        lambda: np.power(numpy.arange(1, 3), -1),
        "ValueRangeError",
        ["negative powers", "astype(float)"],
        lambda: np.power(np.arange(1, 3).astype(float), -1),
    ),
    "dtypes that promote to none": (
        lambda: jit(np.add)(numpy.ones(2, "float16"), jax.numpy.ones(2, "float8_e4m3fn")),
        "TypePromotionError",
        ["promote to one", "f16[2] and f8_e4m3fn[2]", "astype"],
        lambda: np.add(numpy.ones(2, "float16"), jax.numpy.ones(2, "float8_e4m3fn").astype("f2")),
    ),
    "one rule of two": (
        lambda: functx.custom_vjp(lambda x: x).defvjp(lambda x: (x, None)),
        "ArgumentError",
        ["defvjp", "missing", "'bwd'"],
        lambda: functx.custom_vjp(lambda x: x).defvjp(lambda x: (x, None), lambda _, ct: (ct,)),
    ),
    "a requirement that is no boolean": (
        lambda: functx.autograd.Variable(1.0).requires_grad_("x"),
        "ArgumentError",
        ["requires_grad", "bool", "'x'"],
        lambda: functx.autograd.Variable(1.0).requires_grad_(True),
    ),
    "an accuracy that is none": (
        lambda: lax.exp(1.0, accuracy=3),
        "ArgumentError",
        ["exp: accuracy", "AccuracyMode", "got 3"],
        lambda: lax.exp(1.0, accuracy=jax.lax.AccuracyMode.HIGHEST),
    ),
    "a wider result in place": (
        lambda: jit(lambda n: n.__iadd__(0.5))(numpy.arange(3)),
        "DTypeError",
        ["astype", "x = x + y"],
        lambda: jit(lambda n: n + 0.5)(numpy.arange(3)),
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_told_with_the_line_and_a_cure_that_works(name):
    mistake, kind, words, cure = MISTAKES[name]
    with pytest.raises(getattr(errors, kind)) as caught:
        mistake()
    text = str(caught.value)
    assert [word for word in words if word not in text] == []
    assert "at test_mistakes.py:" in text
    cure()


def test_an_attribute_of_other_libraries_names_the_function():
    cures = {
        "detach_": ("x = x.detach()", lambda x: x.detach()),
        "unsqueeze": ("functx.numpy.expand_dims(x, axis)", lambda x: np.expand_dims(x, 0)),
        "permute": ("x.transpose(axes)", lambda x: x.transpose((0,))),
        "to": ("x.astype(dtype)", lambda x: x.astype("int32")),
        "exp": ("functx.numpy.exp(x)", lambda x: np.exp(x)),
        "relu": ("functx.nn.relu(x)", lambda x: functx.nn.relu(x)),
    }
    for name, (words, cure) in cures.items():
        with pytest.raises(AttributeError) as caught:
            jit(lambda x, name=name: getattr(x, name))(X)
        expected = f"no attribute {name!r}; got Traced<f32[3]> in jit(lambda); write {words}"
        assert expected in str(caught.value)
        jit(cure)(X)
        if name != "detach_":
            with pytest.raises(AttributeError, match=re.escape(f"{name!r}; write {words}")):
                getattr(np.ones(3), name)
    for name, words in {"backward": "functx.grad(f)(x)", "detach": "functx.lax.stop_grad"}.items():
        with pytest.raises(AttributeError, match=re.escape(f"{name!r}; write {words}")):
            getattr(np.ones(3), name)
    with pytest.raises(AttributeError, match=r"no attribute 'nothing'; got Traced<f32\[3\]>"):
        grad(lambda x: x.nothing)(X)


def test_what_a_library_says_of_a_traced_value_stays_as_it_is():
    with pytest.raises(ValueError, match="pytree structure error") as caught:
        jit(lambda x: jax.tree.map(lambda a, b: a, {"a": x}, [x]))(X)
    assert not isinstance(caught.value, errors.FunctxError)


PACKAGE = Path(functx.__file__).parent
NAME = re.compile(r"(?<![\w.@/])functx((?:\.[A-Za-z_]\w*)+)")


def test_every_name_of_functx_in_a_message_or_docstring_is_there():
    absent = {}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                for found in NAME.finditer(node.value):
                    if not resolves(found[1][1:].split(".")):
                        absent.setdefault(found[0], []).append(f"{path.name}:{node.lineno}")
    assert absent == {}


def resolves(parts):
    found = functx
    for part in parts:
        try:
            found = getattr(found, part)
        except AttributeError:
            try:
                importlib.import_module(f"functx.{'.'.join(parts)}")
            except ImportError:
                return False
            return True
    return True
