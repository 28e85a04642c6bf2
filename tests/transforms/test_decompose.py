"""Decompositions under transforms, and `decompose`, which opens composites up."""

import jax
import jax.numpy as jnp
import numpy as onp
import pytest

import functx
import functx.numpy as np
from functx import Primitive, decomp, grad, jacfwd, jit, jvp, lax, make_ir, vjp, vmap
from functx.core.errors import (
    ArgumentError,
    ConcretizationError,
    DecompositionError,
    EscapedTracerError,
    MissingRuleError,
    RegistrationError,
)
from functx.core.samples import draw_operands
from functx.core.tracer import aval_of
from functx.core.tracing import trace
from functx.nn import silu, softmax
from functx.ops.activations import Silu
from functx.ops.softmaxes import Softmax
from functx.ops.transcendental import exp
from functx.testing import check_rules
from functx.testing.reference import interpret_in_numpy
from functx.transforms.decompose import DecomposeMissingRules, DecomposeSelected
from tests.ops.registry import PRIMITIVES

X = onp.array([0.5, -1.0, 2.0], "float32")
AT = onp.float32(0.7)


@pytest.fixture(autouse=True)
def undone():
    with decomp.scoped():
        yield


def names(fun, *args):
    """The primitives of the program of `fun`, those of programs in it included."""
    program = make_ir(fun)(*args)
    return {eqn.primitive.name for each in program.walk() for eqn in each}


class Cubed(Primitive):
    """x * x * x, with a lowering and no other rule."""

    def abstract_eval(self, x):
        return x

    def lower(self, ctx, x):
        return ctx.via_jax(lambda x: x**3, x)


# A user's decomposition replaces ours

WAYS = {
    "a call": lambda f: f.f,
    "jit": lambda f: f.jit(f.f),
    "grad": lambda f: f.grad(f.f),
    "jit of grad": lambda f: f.jit(f.grad(f.f)),
    "jvp": lambda f: lambda x: f.jvp(f.f, (x,), (onp.float32(1.0),))[1],
    "vmap": lambda f: lambda x: f.vmap(f.f)(f.np.stack([x, x + 1])).sum(),
    "grad of grad": lambda f: f.grad(f.grad(f.f)),
    "jacfwd of grad": lambda f: f.jacfwd(f.grad(f.f)),
    "vmap of grad": lambda f: lambda x: f.vmap(f.grad(f.f))(f.np.stack([x, x + 1])).sum(),
    "jit in grad": lambda f: f.grad(f.jit(f.f)),
    "scan": lambda f: lambda x: f.lax.scan(lambda c, _: (f.f(c), None), x, None, length=2)[0],
    "cond": lambda f: f.jit(lambda x: f.lax.cond(x > 0, f.f, lambda x: x, x)),
}
for _name in ("scan", "cond"):
    WAYS[f"grad of {_name}"] = lambda f, way=WAYS[_name]: f.grad(way(f))
WAYS["vmap of grad of cond"] = lambda f: (
    lambda x: f.vmap(f.grad(lambda x: f.lax.cond(x > 1, f.f, lambda x: x, x)))(
        f.np.stack([x, x + 1])
    ).sum()
)


class Verbs:
    """The verbs of one library, and a function to apply them to."""

    def __init__(self, library, numpy, f):
        self.np, self.lax, self.f = numpy, library.lax, f
        for verb in ("jit", "grad", "jvp", "vmap", "jacfwd"):
            setattr(self, verb, getattr(library, verb))


@pytest.mark.parametrize("way", WAYS)
def test_a_decomposition_replaces_ours_after_first_use_and_its_removal_brings_ours_back(way):
    used = WAYS[way](Verbs(functx, np, lambda x: silu(x)))
    ours = WAYS[way](Verbs(jax, jnp, jax.nn.silu))(AT)
    theirs = WAYS[way](Verbs(jax, jnp, lambda x: x * x * x))(AT)
    assert onp.allclose(used(AT), ours, rtol=1e-5)
    decomp.register("silu")(lambda x: x * x * x)
    assert onp.allclose(used(AT), theirs, rtol=1e-5)
    decomp.remove("silu")
    assert onp.allclose(used(AT), ours, rtol=1e-5)


def test_the_rules_of_a_composite_are_those_of_the_new_decomposition():
    @decomp.register("softmax")
    def squares(x, axes):
        powers = x * x
        return powers / powers.sum(axes, keepdims=True)

    def expected(x):
        return x * x / (x * x).sum()

    ct = onp.array([1.0, 2.0, 3.0], "float32")
    assert onp.allclose(softmax(X), expected(X))
    pushed = jvp(softmax, (X,), (ct,))[1]
    assert onp.allclose(pushed, jax.jvp(expected, (X,), (ct,))[1], atol=1e-6)
    pulled = vjp(softmax, X)[1](ct)[0]
    assert onp.allclose(pulled, jax.vjp(expected, X)[1](ct)[0], atol=1e-6)
    rows = onp.stack([X, 2.0 * X + 1.0])
    assert onp.allclose(vmap(softmax)(rows), jax.jit(jax.vmap(expected))(rows))
    assert "softmax" not in names(grad(lambda x: softmax(x)[0]), X)
    assert "softmax" in names(softmax, X)


def test_functions_inside_a_transform_of_jax_use_it_when_jax_traces_them():
    decomp.register("silu")(lambda x: 3.0 * x)
    assert float(jax.jit(jax.grad(lambda x: silu(x)))(AT)) == 3.0


def test_weak_types_and_numbers_are_taken_as_the_primitive_states_them():
    decomp.register("silu")(lambda x: 2.0)
    assert silu(AT).dtype == onp.float32 and float(silu(AT)) == 2.0
    with pytest.raises(DecompositionError, match=r"must return f32\[3\]"):
        silu(X)


# C4: when it fires


def test_an_operation_with_a_forward_rule_keeps_it():
    decomp.register("exp")(lambda x: 1.0 + x)
    assert "exp" in names(lambda x: jvp(exp, (x,), (x,)), X)
    assert onp.allclose(exp(X), onp.exp(X))
    assert names(functx.decompose(exp), X) == {"add"}
    assert functx.decompose(exp)(X).tolist() == (1.0 + X).tolist()


def test_a_tangent_that_reaches_an_operation_without_a_forward_rule_goes_through_it():
    decomp.register(Cubed)(lambda x: x * x * x)
    assert "cubed" in names(Cubed(), X)
    out, tangent = jvp(Cubed(), (AT,), (onp.float32(1.0),))
    assert onp.allclose([out, tangent], [AT**3, 3 * AT**2])
    # The reverse is recorded of what it decomposes into, and right to any order.
    assert onp.allclose(grad(Cubed())(AT), 3 * AT**2)
    assert onp.allclose(jacfwd(grad(Cubed()))(AT), 6 * AT)
    assert onp.allclose(grad(grad(grad(Cubed())))(AT), 6.0)
    assert onp.allclose(vmap(grad(Cubed()))(X), 3 * X**2)


def test_what_never_varies_gets_no_tangent_and_stays():
    class Floored(Primitive):
        differentiable = False

        def abstract_eval(self, x):
            return x

    decomp.register(Floored)(lambda x: np.floor(x))
    assert float(grad(lambda x: Floored()(x) * x)(AT)) == 0.0
    assert "floored" in names(grad(lambda x: Floored()(x) * x), AT)


def test_without_a_rule_and_a_decomposition_the_transform_says_how_to_register_one():
    for transform in (
        lambda x: jvp(Cubed(), (x,), (x,)),
        lambda x: grad(lambda x: Cubed()(x).sum())(x),
        lambda x: vmap(Cubed())(x),
    ):
        with pytest.raises(NotImplementedError, match="cubed: the primitive must have a") as caught:
            make_ir(transform)(X)
        assert isinstance(caught.value, MissingRuleError)
        assert "functx.decomp.register('cubed')" in str(caught.value)


def test_forward_mode_prefers_its_own_table():
    decomp.register("silu")(lambda x: 2.0 * x)
    decomp.register("silu", table="jvp")(lambda x: 5.0 * x)
    assert float(jvp(silu, (AT,), (onp.float32(1.0),))[1]) == 5.0
    assert float(jacfwd(silu)(AT)) == 5.0
    assert float(grad(silu)(AT)) == 2.0
    assert float(silu(AT)) == float(2.0 * AT)


def test_batching_prefers_its_own_table():
    decomp.register("silu", table="vmap")(lambda x: 5.0 * x)
    assert vmap(silu)(X).tolist() == (5.0 * X).tolist()
    assert onp.allclose(silu(X), jax.nn.silu(X))
    assert onp.allclose(grad(silu)(AT), jax.jit(jax.grad(jax.nn.silu))(AT))


# C7: functional, and coming to an end


def test_a_decomposition_that_writes_to_its_operand_is_refused():
    @decomp.register("silu")
    def doubled(x):
        x *= 2.0
        return x

    wanted = "silu: a decomposition must compute its results from its operands, and do nothing else"
    x = X.copy()
    for use in (silu, jit(silu), grad(lambda x: silu(x).sum()), functx.decompose(silu)):
        with pytest.raises(DecompositionError, match=wanted) as caught:
            use(x)
        assert "got one that writes to one" in str(caught.value)
        assert "test_decompose.py:" in str(caught.value)
    assert x.tolist() == X.tolist()


def test_a_decomposition_may_write_to_arrays_of_its_own_and_is_pure_all_the_same():
    @decomp.register("silu")
    def with_a_write(x):
        y = x.copy()
        y[...] *= 2.0
        y += 1.0
        return y

    opened = make_ir(functx.decompose(silu))(X)
    assert not opened.writes
    assert silu(X).tolist() == (2.0 * X + 1.0).tolist()
    assert grad(lambda x: silu(x).sum())(X).tolist() == [2.0] * 3


def test_a_decomposition_with_effects_is_refused():
    @decomp.register("silu")
    def told(x):
        functx.debug.print("{}", x)
        return x

    with pytest.raises(DecompositionError, match="got one that has effects"):
        silu(X)


def test_arrays_from_outside_become_constants():
    table = onp.array([1.0, 2.0, 3.0], "float32")
    decomp.register("silu")(lambda x: x * table + np.array([0.5, 0.0, 0.0], "float32"))
    expected = X * table + onp.array([0.5, 0.0, 0.0], "float32")
    assert onp.allclose(silu(X), expected) and onp.allclose(jit(silu)(X), expected)
    assert grad(lambda x: silu(x).sum())(X).tolist() == table.tolist()
    doubled = lax.scan(lambda c, _: (silu(c), None), X, None, length=1)[0]
    assert onp.allclose(doubled, expected)


def test_values_of_another_trace_are_refused():
    def inside(y):
        decomp.register("silu")(lambda x: x * y)
        return grad(silu)(y)

    with pytest.raises(EscapedTracerError, match=r"in the decomposition: test_decompose.py:\d+"):
        jit(inside)(AT)
    decomp.remove("silu")
    with pytest.raises(DecompositionError, match="uses an array that JAX is tracing"):
        jax.jit(inside)(AT)


def test_decompositions_within_decompositions_are_opened_up():
    decomp.register("silu")(lambda x: functx.nn.softplus(x) * 2.0)
    decomp.register("softplus")(lambda x: functx.nn.gelu(x) + 1.0)
    decomp.register("gelu")(lambda x, approximate: x * x)
    assert names(functx.decompose(silu), X) == {"mul", "add"}
    assert onp.allclose(silu(X), (X * X + 1.0) * 2.0)
    assert onp.allclose(grad(silu)(AT), 4.0 * AT)


@pytest.mark.parametrize(
    "use",
    [silu, jit(silu), grad(silu), vmap(silu), functx.decompose(silu)],
    ids=["call", "jit", "grad", "vmap", "decompose"],
)
def test_a_decomposition_that_contains_itself_is_named(use):
    decomp.register("silu")(lambda x: silu(x) * 1.0)
    x = AT if use is not vmap else X
    with pytest.raises(DecompositionError, match=r"must come to an end.*got silu in silu"):
        use(onp.stack([x, x]) if use.__name__.startswith("vmap") else x)


def test_a_circle_of_decompositions_is_named():
    decomp.register("silu")(lambda x: softmax(x))
    decomp.register("softmax")(lambda x, axes: silu(x))
    with pytest.raises(RuntimeError, match="got silu in softmax in silu"):
        silu(X)


def test_decompositions_that_never_repeat_come_to_an_end_too():
    class Deeper(Primitive):
        level: int

        def abstract_eval(self, x):
            return x

    decomp.register(Deeper)(lambda x, level: Deeper(level + 1)(x))
    with pytest.raises(DecompositionError, match="got deeper in deeper in deeper in deeper"):
        Deeper(0)(X)


def test_a_decomposition_may_contain_the_same_on_smaller_operands():
    class Total(Primitive):
        def abstract_eval(self, x):
            return x.update(shape=())

    @decomp.register(Total)
    def halves(x):
        n = x.shape[0]
        return x[0] if n == 1 else Total()(x[: n // 2]) + Total()(x[n // 2 :])

    assert float(Total()(onp.arange(7.0, dtype="float32"))) == 21.0
    assert grad(Total())(X).tolist() == [1.0] * 3


@pytest.mark.parametrize(
    ("function", "got"),
    [
        (lambda x: x.sum(), r"f32\[\]"),
        (lambda x: x.astype("int32"), r"i32\[3\]"),
        (lambda x: (x, x), r"f32\[3\], f32\[3\]"),
        (lambda x: None, "nothing"),
        (lambda x: "x", "str"),
    ],
    ids=["shape", "dtype", "count", "none", "no array"],
)
def test_results_of_other_types_than_the_primitive_states_are_refused(function, got):
    decomp.register("silu")(function)
    for use in (silu, jit(silu), functx.decompose(silu)):
        with pytest.raises(DecompositionError) as caught:
            use(X)
        assert caught.match(rf"silu: a decomposition must return f32\[3\], .*; got {got}\n")
        assert caught.match(r"the decomposition: test_decompose.py:\d+ in test_results")


def test_a_class_whose_decomposition_has_another_type_is_told_where_that_is():
    class Halved(Primitive):
        def abstract_eval(self, x):
            return x

        def decompose(self, x):
            return x[:1]

    with pytest.raises(TypeError, match=r"got f32\[1\]\n(.|\n)*test_decompose.py:\d+ in .*Halved"):
        Halved()(X)


def test_a_function_that_takes_other_operands_is_refused_where_it_is_used():
    decomp.register("silu")(lambda x, y: x)
    wanted = r"silu: the decomposition must take 1 operand, and no parameters; got the signature"
    with pytest.raises(DecompositionError, match=wanted):
        silu(X)


def test_an_error_in_a_decomposition_says_where_it_is():
    decomp.register("silu")(lambda x: x if x.sum() > 0 else -x)
    with pytest.raises(ConcretizationError, match=r"in the decomposition: test_decompose.py:\d+"):
        silu(X)


# `decompose`


def both(x):
    return silu(x) + softmax(x)


def test_decompose_opens_up_every_composite_and_gives_the_same_results():
    opened = functx.decompose(both)
    assert names(both, X) == {"silu", "softmax", "add"}
    assert not names(opened, X) & {"silu", "softmax"}
    assert onp.allclose(opened(X), both(X))
    assert onp.allclose(jit(opened)(X), both(X))
    assert opened.__name__ == "decompose_both"


@pytest.mark.parametrize(
    "which",
    [Silu, "silu", silu, [Silu], ("silu",), {silu}],
    ids=["class", "name", "function", "list", "tuple", "set"],
)
def test_decompose_opens_up_only_what_is_named_or_keeps_it(which):
    assert names(functx.decompose(both, only=which), X) & {"silu", "softmax"} == {"softmax"}
    assert names(functx.decompose(both, keep=which), X) & {"silu", "softmax"} == {"silu"}


def test_decompose_takes_options_first_as_a_decorator():
    @functx.decompose(keep="softmax")
    def kept(x):
        return both(x)

    assert names(kept, X) & {"silu", "softmax"} == {"softmax"}


def test_decompose_reaches_into_loops_branches_and_calls():
    def loops(x):
        x = lax.cond(x.sum() > 0, silu, softmax, x)
        x = lax.scan(lambda c, _: (jit(softmax)(c), None), x, None, length=2)[0]
        return lax.while_loop(lambda c: c.sum() < 2, lambda c: silu(c) + 2.0, x)

    opened = functx.decompose(loops)
    assert names(loops, X) >= {"silu", "softmax", "scan", "while", "cond"}
    assert names(opened, X) >= {"scan", "while", "cond"}
    assert not names(opened, X) & {"silu", "softmax"}
    assert onp.allclose(opened(X), loops(X))


def test_decompose_composes_with_the_other_transforms():
    total = functx.decompose(lambda x: both(x).sum())
    expected = grad(lambda x: both(x).sum())(X)
    assert onp.allclose(grad(total)(X), expected, atol=1e-6)
    assert onp.allclose(functx.decompose(grad(lambda x: both(x).sum()))(X), expected, atol=1e-6)
    rows = onp.stack([X, 2.0 * X])
    assert onp.allclose(vmap(functx.decompose(both))(rows), [both(x) for x in rows], atol=1e-6)
    assert "silu" not in names(grad(total), X)


def test_decompose_looks_into_the_table_that_is_asked_for():
    decomp.register("silu", table="vmap")(lambda x: 5.0 * x)
    assert onp.allclose(functx.decompose(silu, table="vmap")(X), 5.0 * X)
    assert onp.allclose(functx.decompose(silu)(X), silu(X))


def test_decompose_takes_a_dictionary_of_decompositions():
    table = decomp.get_decompositions([Silu, Softmax])
    assert not names(functx.decompose(both, table=table), X) & {"silu", "softmax"}
    decomp.remove_decompositions(table, "silu")
    assert "silu" in names(functx.decompose(both, table=table), X)
    table = {"exp": lambda x: 1.0 + x, Silu: lambda x: exp(x)}
    assert functx.decompose(silu, table=table)(X).tolist() == (1.0 + X).tolist()


def test_a_program_is_made_with_decompositions_for_what_is_in_it():
    table = decomp.get_decompositions([Silu])
    program = make_ir(both, decompositions=table)(X)
    assert {eqn.primitive.name for eqn in program} >= {"softmax", "logistic"}
    assert onp.allclose(program(X), both(X))
    assert make_ir(decompositions=table)(both)(X) == program
    assert make_ir(both, decompositions={})(X) == make_ir(both)(X)


def test_decompose_writes_to_arguments_as_the_function_does():
    def activate(x):
        x[...] = silu(x)
        return x.sum()

    x = X.copy()
    assert onp.allclose(functx.decompose(activate)(x), silu(X).sum())
    assert onp.allclose(x, silu(X))


def test_decompose_refuses_what_it_cannot_do():
    with pytest.raises(ArgumentError, match="it takes `only`, what to open up, or `keep`"):
        functx.decompose(both, only="silu", keep="softmax")
    with pytest.raises(MissingRuleError, match="decompose: sin must have a decomposition"):
        functx.decompose(np.sin, only="sin")
    with pytest.raises(RegistrationError, match="a name must be that of a primitive; got 'silo'"):
        functx.decompose(both, only="silo")
    with pytest.raises(RegistrationError, match="the table must be one of"):
        functx.decompose(both, table="backward")
    with pytest.raises(ArgumentError, match="got the function sin"):
        functx.decompose(both, keep=np.sin)
    with pytest.raises(ArgumentError, match="the first argument must be a function"):
        functx.decompose(3)


# Every composite against what it decomposes into

COMPOSITES = [cls for cls in PRIMITIVES if cls.decompose is not None and not cls.effects]


def alone(primitive, avals):
    """The program of one equation."""

    def body(*args):
        out = primitive(*args)
        return out if primitive.multiple_results else [out]

    return trace(body, avals, name=primitive.name)[0]


def test_every_composite_and_its_decomposition_give_the_same_outputs():
    cases = [(cls, one, draw_operands(one)) for cls in COMPOSITES for one in cls.samples[:1]]
    # `tests/ops/test_rules.py` compares what the lowering makes of a composite with its definition.
    with jax.enable_x64():
        for cls, one, args in cases:
            program = alone(cls(**one.params), [aval_of(x) for x in args])
            opened = DecomposeSelected("general", None, frozenset())(program)
            assert cls.name not in {eqn.primitive.name for eqn in opened}, cls
            assert opened.in_avals == program.in_avals and opened.out_avals == program.out_avals
            assert not opened.writes
            before = [onp.copy(x) for x in args]
            ours, parts = [interpret_in_numpy(p, *args) for p in (program, opened)]
            for x, y in zip(ours, parts, strict=True):
                assert x.dtype == y.dtype and x.shape == y.shape
                assert onp.allclose(x, y, rtol=1e-5, atol=1e-6, equal_nan=True), program
            assert all(
                onp.array_equal(x, y, equal_nan=True) for x, y in zip(before, args, strict=True)
            )


@pytest.mark.parametrize("cls", COMPOSITES, ids=lambda cls: cls.name)
def test_what_the_lowering_opens_up_consists_of_what_it_emits(cls):
    one = cls.samples[0]

    with jax.enable_x64():
        opened = DecomposeMissingRules(("lower",))(alone(cls(**one.params), one.avals))
    table = decomp.lowering_decompositions()
    assert (cls in table) is (not cls.has_rule("lower"))
    for eqn in opened:
        assert type(eqn.primitive) not in table
        assert eqn.primitive.has_rule("lower")


def test_trace_is_make_ir_under_pytorchs_order_of_arguments():
    def f(x):
        return silu(x) * w

    w = onp.full(3, 2, "float32")
    table = decomp.get_decompositions(["silu"])
    program = functx.trace(f, table)(w)
    assert [eqn.primitive.name for eqn in program] == ["logistic", "mul", "mul"]
    assert functx.trace(f)(w) == functx.make_ir(f)(w)
    program.lint()
    # It runs on new values, holds what was captured, and is transformed like a function.
    onp.testing.assert_allclose(program(w - 2), onp.zeros(3))
    slopes = functx.trace(decompositions=table)(functx.vmap(functx.grad(program_of_one(program))))
    assert slopes(onp.zeros((2, 3), "float32")).out_avals[0].shape == (2, 3)
    with pytest.raises(ConcretizationError, match=r"`if`(.|\n)*test_decompose.py"):
        functx.trace(lambda x: x if x.sum() > 0 else -x)(w)
    with pytest.raises(ArgumentError, match="trace: the first argument must be a function"):
        functx.trace(3)


def program_of_one(program):
    return lambda x: program(x).sum()


# The checks of `functx.testing`


def test_check_rules_holds_what_is_registered_against_the_primitive():
    @decomp.register("silu")
    def as_a_quotient(x):
        return x / (1.0 + np.exp(-x))

    check_rules(Silu, 0)
    decomp.remove("silu")
    decomp.register("silu", table="vmap")(lambda x: 1.01 * as_a_quotient(x))
    wanted = r"the decomposition at test_decompose.py:\d+ in .* must agree with the primitive"
    with pytest.raises(AssertionError, match=wanted):
        check_rules(Silu, 0)
