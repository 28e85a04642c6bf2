"""`functional_call`: other parameters in every transform, without a trace of them afterwards."""

import threading
from collections import OrderedDict
from functools import partial
from types import MappingProxyType

import jax
import numpy as onp
import pytest

import functx
from functx import functional_call, lax, nn
from functx import numpy as np
from functx.autograd import Variable, checkpoint
from functx.core.errors import (
    DuplicateKeysError,
    FunctionalCallCountError,
    GradientError,
    ModuleAttributeError,
    ModuleTypeError,
    OutputTupleError,
    ReplacedStateError,
    StackingError,
    StateItemsError,
    StateKeysError,
    TiedValuesError,
)


def f32(*values):
    return onp.array(values, "float32")


X, W = f32(1, 1), f32(5, 5)
GIVEN = {"w": W}


class Affine(nn.Module):
    """x * a + b, where b is a by default, and a count of its calls."""

    def __init__(self, b=None):
        self.a = nn.Parameter(2.0)
        self.b = self.a if b is None else nn.Parameter(b)
        self.n = nn.Buffer(0)

    def forward(self, x):
        self.n += 1
        return x * self.a + self.b


class Scale(nn.Module):
    """x * w, by a function that `use` makes of another."""

    def __init__(self, use=lambda f: f):
        self.w = nn.Parameter(f32(2, 2))
        self.block = use(lambda x: x * self.w)

    def forward(self, x):
        return self.block(x)


class Layers(nn.Module):
    def __init__(self, *sizes, seed=0):
        random = onp.random.RandomState(seed)
        self.layers = nn.ModuleList([nn.Module() for _ in sizes[1:]])
        for layer, rows, columns in zip(self.layers, sizes, sizes[1:], strict=False):
            layer.weight = nn.Parameter(random.randn(columns, rows).astype("float32"))
            layer.bias = nn.Parameter(onp.zeros(columns, "float32"))

    def forward(self, x):
        for layer in self.layers:
            x = np.tanh(x @ layer.weight.T + layer.bias)
        return x


def test_tied_values_follow_and_a_buffer_that_is_written_lands_in_the_state():
    module, state = Affine(), {"a": f32(3)[0], "n": 5}
    assert float(functional_call(module, state, 2.0)) == 9 and int(state["n"]) == 6
    assert int(module.n) == 0 and float(module.a) == 2 and module.b is module.a
    assert float(functional_call(Affine(1.0), {"a": 3.0}, 2.0)) == 7
    assert float(functional_call(module, {"b": 3.0}, 2.0)) == 9
    assert float(functional_call(module, {"b": 3.0}, 2.0, tie_weights=False)) == 7
    assert float(functional_call(module, {"a": 3.0, "b": 4.0}, 2.0, tie_weights=False)) == 10
    assert float(functional_call(module, {"a": 3.0, "b": 3.0}, 2.0)) == 9
    with pytest.raises(TiedValuesError, match=r"several for 'a', 'b'[^$]*tie_weights=False"):
        functional_call(module, {"a": 3.0, "b": 4.0}, 2.0)


@pytest.mark.parametrize(
    "state",
    [
        OrderedDict(a=3.0, b=1.0),
        ({"a": 3.0}, {"b": 1.0}),
        [{"a": 3.0}, {}, {"b": 1.0}],
        [("a", 3.0), ["b", 1.0]],
        iter({"a": 3.0, "b": 1.0}.items()),
        {"a": 3.0, "b": 1.0, "foo": 7.0},
        MappingProxyType({"a": 3.0, "b": 1.0}),
    ],
)
def test_a_state_is_a_dictionary_or_several_or_pairs(state):
    assert float(functional_call(Affine(0.5), state, 2.0)) == 7


def test_several_dictionaries_each_get_their_buffers_back():
    first, second = {"a": 3.0}, {"n": 5}
    functional_call(Affine(), (first, second), 2.0)
    assert first == {"a": 3.0} and int(second["n"]) == 6
    own = Affine()
    functional_call(own, [("a", 3.0)], 2.0)
    assert int(own.n) == 1
    frozen = MappingProxyType({"n": 5})
    functional_call(own, frozen, 2.0)
    assert frozen["n"] == 5 and int(own.n) == 1


def test_arguments_are_those_of_the_module():
    module = nn.Sequential()
    module.forward = lambda *args, **kwargs: (args, kwargs)
    assert functional_call(module, {}, 1) == ((1,), {})
    assert functional_call(module, {}, [1]) == (([1],), {})
    assert functional_call(module, {}, (1, 2), {"c": 3}) == ((1, 2), {"c": 3})
    assert functional_call(module, {}) == functional_call(module, {}, None) == ((), {})


ITEMS = {
    "a number": (3, "got int"),
    "a name": ("weight", "got str"),
    "an array": (W, "got ndarray"),
    "mixed items": ([{"a": 1.0}, ("b", 2.0)], "list with dict, tuple"),
    "long pairs": ([("a", 1.0, 2.0)], "list with tuple"),
    "keys that are numbers": ({0: 1.0}, "got int 0"),
    "None": (None, "got None"),
    "a value that is a text": ({"a": "one"}, "got str for 'a'"),
    "a value that is a list": (({"b": 1.0}, {"a": [1.0]}), "got list for 'a'"),
}


@pytest.mark.parametrize("name", ITEMS)
def test_a_state_of_other_items_is_refused(name):
    state, message = ITEMS[name]
    with pytest.raises(StateItemsError, match=message):
        functional_call(Affine(), state, 2.0)


def test_a_name_is_given_once():
    for state in [
        ({"a": 1.0, "n": 0}, {"n": 0, "a": 1.0}),
        [("a", 1.0), ("n", 0), ("a", 1.0), ("n", 0)],
    ]:
        with pytest.raises(DuplicateKeysError, match=r"several values for '(n', 'a|a', 'n)'"):
            functional_call(Affine(), state, 2.0)


def test_strict_names_are_those_of_the_module():
    module = Affine(1.0)
    with pytest.raises(StateKeysError, match=r"unexpected 'foo' and missing 'b', 'n'"):
        functional_call(module, {"a": 1.0, "foo": 2.0}, 2.0, strict=True)
    functional_call(Affine(), {"a": 1.0, "n": 0}, 2.0, strict=True)
    with pytest.raises(StateKeysError, match=r"got missing 'b'\n"):
        functional_call(Affine(), {"a": 1.0, "n": 0}, 2.0, strict=True, tie_weights=False)


@pytest.mark.parametrize("thing", [3, None, lambda x: x, Affine, functx.jit(lambda x: x), [1.0]])
def test_what_is_no_module_is_refused(thing):
    with pytest.raises(ModuleTypeError, match=r"must be an nn\.Module.*; got "):
        functional_call(thing, {}, 2.0)


def test_none_is_a_value():
    module = nn.Module()
    module.bias = nn.Parameter(1.0)
    module.forward = lambda x: x if module.bias is None else x + module.bias
    assert functional_call(module, {"bias": None}, 2.0) == 2.0 and float(module(2.0)) == 3.0


def test_what_a_call_does_to_attributes_by_name_is_done_to_the_state():
    module, state = Affine(1.0), {"n": 5, "a": 3.0}
    module.forward = lambda x: module.register_buffer("n", module.n + 1)
    functional_call(module, state, 1.0)
    assert int(state["n"]) == 6 and int(module.n) == 0
    module.forward = lambda x: setattr(module, "a", module.a * 2)
    functional_call(module, state, 1.0)
    assert float(state["a"]) == 6 and float(module.a) == 2
    module.forward = lambda x: delattr(module, "a")
    with pytest.raises(ModuleAttributeError, match=r"must not be deleted.*; got `a`"):
        functional_call(module, state, 1.0)
    module.forward = lambda x: setattr(module, "more", nn.Parameter(1.0))
    functional_call(module, state, 1.0)
    assert float(functional_call(module, {"more": 4.0}, 1.0) or module.more) == 1.0
    assert "more" in dict(module.named_parameters())


def test_all_is_put_back_after_an_error_and_written_buffers_land():
    module, state = Affine(), {"a": 3.0, "n": 5}
    with pytest.raises(TypeError):
        functional_call(module, state, ([], 1))
    with pytest.raises(TypeError):
        functional_call(module, state, object())
    assert int(state["n"]) == 6 and float(module(2.0)) == 6 and int(module.n) == 1


def test_a_call_inside_a_call_sees_the_innermost_value_and_writes_where_the_buffer_was_given():
    module = Affine(0.0)
    outer, inner = {"a": 3.0, "n": 10}, {"a": 100.0}
    chain = nn.Sequential(lambda x: functional_call(module, inner, x), module)
    assert float(functional_call(module, outer, 1.0)) == 3
    state = {"1.a": 3.0, "1.n": 20}
    assert float(functional_call(chain, state, 1.0)) == 300 and int(state["1.n"]) == 22
    assert int(outer["n"]) == 11 and int(module.n) == 0 and inner == {"a": 100.0}


def reference(w):
    return {"out": X * w, "x": w, "w": X}


TRANSFORMED = {
    "as it is": lambda f: f,
    "jit": functx.jit,
    "checkpoint": functx.checkpoint,
    "scan": lambda f: lambda x: lax.scan(lambda c, _: (f(c), None), x, None, length=1)[0],
    "cond": lambda f: lambda x: lax.cond(x.sum() > -9, f, lambda x: x, x),
    "while": lambda f: (
        lambda x: lax.while_loop(lambda c: c[0] < 1, lambda c: (c[0] + 1, f(c[1])), (0, x))[1]
    ),
    "vmap": functx.vmap,
    "jit of vmap": lambda f: functx.jit(functx.vmap(f, axis_size=2)),
}


@pytest.mark.parametrize("use", TRANSFORMED)
def test_what_the_module_transforms_sees_the_given_values(use):
    module = Scale(TRANSFORMED[use])
    if "vmap" in use:
        module = Scale()
        module.block = TRANSFORMED[use](lambda x: x * module.w.sum() / 2)
    for given in (W, 2 * W, None, W):
        w = f32(2, 2) if given is None else given
        state = {} if given is None else {"w": given}
        assert np.allclose(functional_call(module, state, X), w)
        assert np.allclose(functx.jit(lambda s, x: functional_call(module, s, x))(state, X), w)
        slopes = functx.grad(lambda s, x: functional_call(module, s, x).sum(), (0, 1))
        by_state, by_x = slopes(state, X)
        assert np.allclose(by_x, w)
        assert all(np.allclose(g, X) for g in by_state.values())
    assert np.allclose(module(X), f32(2, 2))


def test_every_order_of_three_transforms_is_that_of_the_formula():
    module = Scale(functx.jit)

    def loss(s, x):
        return (functional_call(module, s, x) ** 3).sum()

    def plain(s, x):
        return ((x * s["w"]) ** 3).sum()

    per_row = {"w": f32([1, 2], [3, 4])}
    programs = [
        lambda f: functx.vmap(functx.grad(functx.jit(f)), (0, None))(per_row, X)["w"],
        lambda f: functx.jit(functx.vmap(functx.grad(f), (0, None)))(per_row, X)["w"],
        lambda f: functx.grad(lambda s: functx.vmap(functx.jit(f), (0, None))(s, X).sum())(per_row)[
            "w"
        ],
        lambda f: functx.jit(functx.hessian(f, 1))(GIVEN, X),
        lambda f: functx.grad(lambda x: functx.jvp(lambda x: f(GIVEN, x), (x,), (X,))[1])(X),
        lambda f: functx.jvp(functx.jit(functx.grad(lambda x: f(GIVEN, x))), (X,), (X,))[1],
        lambda f: functx.vjp(lambda s: functx.checkpoint(f)(s, X), GIVEN)[1](f32(1)[0])[0]["w"],
    ]
    for program in programs:
        assert np.allclose(program(loss), program(plain), rtol=1e-5)


def test_rules_that_are_traced_later_see_the_values_of_the_call():
    def use(f):
        cube = functx.custom_vjp(lambda x: f(x) ** 3)
        # The rule calls its own function, so that it is traced when it is needed.
        cube.defvjp(lambda x: (cube(x), x), lambda x, ct: (3 * cube(x) / x * ct,))
        return cube

    module = Scale(use)
    slope = functx.grad(lambda x: functional_call(module, GIVEN, x).sum())
    assert np.allclose(slope(X), 375)
    assert np.allclose(functx.grad(lambda x: slope(x).sum())(X), 750)
    assert np.allclose(functx.jit(functx.grad(lambda x: (slope(x) * x).sum()))(X), 1125)
    with pytest.raises(GradientError, match="closes over"):
        functx.grad(lambda s: functional_call(module, s, X).sum())(GIVEN)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_checkpoint_of_variables_recomputes_with_the_values_of_the_call(use_reentrant):
    module = Scale(
        lambda f: lambda x: checkpoint(lambda x: np.sin(f(x)), x, use_reentrant=use_reentrant)
    )
    x, w = Variable(X, requires_grad=True), Variable(W, requires_grad=True)
    functional_call(module, {"w": w}, x).sum().backward()
    assert np.allclose(x.grad, onp.cos(5) * 5, atol=1e-5) and module.w.grad is None
    assert use_reentrant or np.allclose(w.grad, onp.cos(5), atol=1e-5)


def test_gradients_reach_the_variables_that_are_given_and_those_that_are_not():
    module, a = Affine(1.0), Variable(3.0, requires_grad=True)
    functional_call(module, {"a": a}, 2.0).backward()
    assert float(a.grad) == 2 and float(module.b.grad) == 1 and module.a.grad is None
    own = functx.grad(lambda s: functional_call(module, (s, {"n": 0}), 2.0))(
        dict(module.named_parameters())
    )
    assert {k: float(v) for k, v in own.items()} == {"a": 2.0, "b": 1.0}


def test_functions_that_are_compiled_ahead_of_time_see_the_values_of_the_call():
    programs = []
    module = Scale(lambda f: functx.aot.aot_function(f, lambda p: (programs.append(p), p)[1]))
    for _ in range(2):
        assert np.allclose(module(X), 2) and np.allclose(functional_call(module, GIVEN, X), 5)
        w = Variable(W, requires_grad=True)
        functional_call(module, {"w": w}, X).sum().backward()
        assert w.grad.tolist() == X.tolist() and module.w.grad is None
    assert [len(p.inputs) for p in programs if "forward" in p.name] == [2, 2]
    whole = functx.aot.aot_module(Affine(0.0))
    state = {"module.a": 3.0, "module.n": 5}
    assert float(functional_call(whole, state, 2.0)) == 6 and state["module.n"] == 6
    assert float(whole(2.0)) == 4 and int(whole.module.n) == 1


class Statistics(nn.Module):
    """Writes to its buffers by each kind of write, in a jitted function or not."""

    def __init__(self, use):
        self.count, self.total = nn.Buffer(0), nn.Buffer(f32(0, 0))
        self.last = nn.Buffer(f32(0, 0))
        self.block = use(self.note)

    def note(self, x):
        self.count += 1
        self.total[0] += x[0]
        self.last = x * 2
        return x + self.total

    def forward(self, x):
        return self.block(x)


@pytest.mark.parametrize("use", [lambda f: f, functx.jit], ids=["plain", "jit"])
@pytest.mark.parametrize("kind", [onp.array, jax.numpy.array, Variable])
def test_each_kind_of_write_lands_in_each_kind_of_array(use, kind):
    module = Statistics(use)
    state = {"count": kind(onp.int32(0)), "total": kind(f32(0, 0)), "last": kind(f32(0, 0))}
    if kind is jax.numpy.array and not hasattr(module.block, "lower"):
        state["total"] = f32(0, 0)  # JAX's arrays are not written to
    first = state["total"]
    for call in range(3):
        out = functional_call(module, state, f32(1, 7))
        assert out.tolist() == [2.0 + call, 7.0]
    assert int(state["count"]) == 3 and state["total"].tolist() == [3.0, 0.0]
    assert state["last"].tolist() == [2.0, 14.0]
    assert isinstance(first, jax.Array) or first is state["total"]
    whole = functx.jit(lambda s, x: (functional_call(module, s, x), s))
    _, new = whole(dict(state), f32(1, 7))
    assert int(new["count"]) == 4 and new["total"].tolist() == [4.0, 0.0]
    assert new["last"].tolist() == [2.0, 14.0]
    assert int(module.count) == 0 and module.total.tolist() == module.last.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("kind", [onp.array, jax.numpy.array, Variable])
def test_a_write_to_one_of_two_tied_buffers_is_read_through_the_other_in_a_jitted_function(kind):
    module = nn.Module()
    module.a = nn.Buffer(f32(0, 0))
    module.b = module.a

    @functx.jit
    def block(x):
        module.a[0] += x[0]
        return x + module.b

    module.forward = block
    state = {"b": kind(f32(1, 1))}
    for call in range(2):
        assert functional_call(module, state, X).tolist() == [3.0 + call, 2.0]
        assert state["b"].tolist() == [2.0 + call, 1.0]
    assert module(X).tolist() == [2.0, 1.0] and module.b.tolist() == [1.0, 0.0]


def test_parameters_are_counted_by_what_the_module_ties_also_in_a_call():
    module = Affine(1.0)
    module.forward = lambda x: [name for name, _ in module.named_parameters()]
    x = f32(3)[0]
    assert functional_call(module, {"a": x, "b": x}, 1.0) == ["a", "b"]
    tied = Affine()
    tied.forward = lambda x: [name for name, _ in tied.named_parameters()]
    assert functional_call(tied, {"a": 3.0}, 1.0) == ["a"]
    assert functional_call(tied, {"a": 3.0}, 1.0, tie_weights=False) == ["a", "b"]


def test_buffers_are_written_for_each_lane_of_a_batch():
    module = Statistics(functx.jit)
    lanes = {
        "count": onp.zeros(2, "int32"),
        "total": f32([0, 0], [5, 5]),
        "last": f32([0, 0], [0, 0]),
    }

    def call(state, x):
        return functional_call(module, state, x), state

    out, new = functx.vmap(call)(lanes, f32([1, 7], [2, 8]))
    assert out.tolist() == [[2, 7], [9, 13]] and new["count"].tolist() == [1, 1]
    assert new["total"].tolist() == [[1, 0], [7, 5]] and new["last"].tolist() == [[2, 14], [4, 16]]


def test_a_jitted_function_of_a_module_takes_the_values_that_it_reads_and_is_traced_once():
    traces = []

    def use(f):
        return functx.jit(lambda x: (traces.append(1), f(x))[1])

    module = Scale(use)
    module.other = nn.Parameter(1.0)
    state = {"w": W, "other": 3.0}
    program = functx.make_ir(lambda s, x: functional_call(module, s, x))(state, X)
    (call,) = program.equations
    # The first trace ended where it read a value.
    assert len(call.inputs) == 2 and len(traces) == 2
    for scale in (1, 2, 3):
        assert np.allclose(functional_call(module, {"w": scale * W, "other": 1.0}, X), 5 * scale)
    assert len(traces) == 3
    with pytest.raises(ReplacedStateError, match="got a call inside one"):
        functional_call(Scale(lambda f: functx.jit(f).lower), {"w": W}, X)


def test_jitted_functions_that_call_each_other_know_which_of_them_reads_a_module():
    traces = []
    read = Scale()
    inner = functx.jit(lambda x: x * read.w)
    outer = functx.jit(lambda x: (traces.append(1), inner(x) + 1)[1])
    read.block = outer
    chain = nn.Sequential(read)
    for _ in range(2):
        assert outer(X).tolist() == [3.0, 3.0]
        assert functional_call(chain, {"0.w": W}, X).tolist() == [6.0, 6.0]
        assert functional_call(chain, {"0.w": 2 * W}, X).tolist() == [11.0, 11.0]
        assert functional_call(Affine(0.0), {"a": 3.0}, outer(X)).tolist() == [9.0, 9.0]
    assert len(traces) == 3


def test_a_jitted_function_that_reads_no_module_is_traced_once_for_all_of_them():
    traces = []

    @functx.jit
    def block(x):
        traces.append(1)
        return np.tanh(x)

    for number in range(3):
        module = Scale(lambda f: lambda x: f(block(x)))
        call = partial(functional_call, module, args=X)
        assert np.allclose(call({"w": f32(number, number)}), number * onp.tanh(1))
        assert np.allclose(functx.vmap(call)({"w": f32([0, 1])}), [0, onp.tanh(1)])
    assert len(traces) == 2  # for calls outside of a trace, and in one


class Moded(nn.Module):
    def forward(self, x):
        return x * 2 if self.training else x


@pytest.mark.parametrize("compiled", [functx.jit, functx.aot.aot_function], ids=["jit", "aot"])
def test_compiled_functions_follow_the_modes_that_they_read(compiled):
    module, other = nn.Sequential(Moded(), Scale(), Moded()), nn.Module()
    traces = []
    inner = compiled(lambda x: (traces.append(1), module(x))[1])
    chain = nn.Sequential(inner, Scale())
    calls = {
        "itself": inner,
        "in another": compiled(lambda x: inner(x) + 0),
        "in a batch": lambda x: functx.vmap(inner)(x[None])[0],
        "in a functional call": lambda x: functional_call(chain, {"1.w": f32(1, 1)}, x),
        "with given values": lambda x: functional_call(
            module, {"1.w": f32(2, 2)}, inner(x) / module(x) * x
        ),
        "of Variables": lambda x: inner(Variable(x, requires_grad=True)),
    }
    for _ in range(2):
        for modes, factor in [((True, True), 8), ((False, True), 4), ((False, False), 2)]:
            module[0].train(modes[0]), module[2].train(modes[1])
            for name, call in calls.items():
                assert np.allclose(call(X), factor), (name, modes)
    count = len(traces)
    for mode in (True, False, True):
        module.train(mode)
        other.train(mode)
        # In a batch, a function compiled ahead of time is the function itself.
        [call(X) for name, call in calls.items() if name != "in a batch"]
    assert len(traces) == count
    if compiled is functx.jit:
        module.eval()
        low = inner.lower(X).compile()
        assert np.allclose(low(X), 2)


def test_a_function_that_makes_its_module_is_compiled_once():
    traces = []

    @functx.jit
    def run(x):
        traces.append(1)
        return Moded()(x)

    assert [run(X).tolist() for _ in range(3)] == [[2.0, 2.0]] * 3 and len(traces) == 1


def test_options_of_jit_hold_inside_a_functional_call():
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])

    def use(f):
        scaled = functx.jit(lambda x, k: f(x) * k, static_argnums=1, donate_argnums=0)
        named = functx.jit(lambda x, *, k: f(x) * k, static_argnames="k", out_shardings=sharding)
        sharded = functx.jit(f, in_shardings=(sharding,), out_shardings=sharding)
        return lambda x: scaled(jax.numpy.array(x), 3) + named(x, k=2) + sharded(x)

    module = Scale(use)
    for given in (W, 2 * W):
        assert np.allclose(functional_call(module, {"w": given}, X), 6 * given)
        assert np.allclose(module(X), 12)


def test_calls_in_threads_do_not_see_the_values_of_each_other():
    module = Scale()
    barrier, found = threading.Barrier(4, timeout=30), {}

    def wait(x):
        barrier.wait()
        return x

    chain = nn.Sequential(wait, module, wait)

    def run(number):
        for _ in range(5):
            out = functional_call(chain, {"1.w": f32(number, number)}, X)
            found.setdefault(number, []).append(out.tolist())

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: [[number, number]] * 5 for number in range(4)}
    assert module(X).tolist() == [2.0, 2.0]


def test_the_names_follow_changes_of_the_structure():
    module = Layers(2, 2)
    state = {"layers.0.bias": f32(1, 1), "layers.1.bias": f32(9, 9)}
    assert np.allclose(functional_call(module, state, 0 * X), onp.tanh(1))
    module.layers.append(module.layers[0])
    with pytest.raises(TiedValuesError, match=r"'layers\.0\.bias', 'layers\.1\.bias'"):
        functional_call(module, state, X)
    module.layers[0].bias = module.layers[0].bias
    del module.layers[0].bias
    module.layers[0].bias = np.float32(0)
    assert functional_call(module, state, 0 * X).tolist() == [0, 0]


class ByProtocol:
    """A module of another library, without its base class."""

    def __init__(self, scale, count=0):
        self.scale, self.count = scale, count

    def __call__(self, x):
        self.count = self.count + 1
        return x * self.scale

    def __functx_state__(self):
        return {"scale": self.scale, "count": self.count}, lambda new: ByProtocol(**new)


def test_a_module_of_another_library_is_one_by_its_state():
    module, state = ByProtocol(f32(2)[0]), {"scale": 3.0, "count": 5}
    assert float(functional_call(module, state, 2.0)) == 6 and state["count"] == 6
    assert module.count == 0 and float(module(2.0)) == 4
    assert (
        float(
            functx.jit(functx.grad(lambda s: functional_call(module, s, 2.0)))({"scale": 3.0})[
                "scale"
            ]
        )
        == 2
    )
    with pytest.raises(StateKeysError, match="unexpected 'foo' and missing 'scale'"):
        functional_call(module, {"foo": 1, "count": 0}, 2.0, strict=True)
    scales = functx.stack_module_state([ByProtocol(f32(i)[0]) for i in range(3)])[0]["scale"]
    assert functx.vmap(lambda s: functional_call(module, {"scale": s}, 2.0))(scales).tolist() == [
        0,
        2,
        4,
    ]


def test_a_module_of_equinox_is_a_pytree_that_is_called():
    eqx = pytest.importorskip("equinox")
    mlp = eqx.nn.MLP(3, 2, 4, 1, activation=jax.nn.tanh, key=jax.random.key(0))
    x = f32(1, 2, 3)
    bias = jax.numpy.array([1.0, 2.0])
    moved = functional_call(mlp, {"layers.1.bias": bias}, x)
    assert np.allclose(moved, mlp(x) - mlp.layers[1].bias + bias, atol=1e-6)
    slope = functx.grad(lambda s: functional_call(mlp, s, x).sum())({"layers.1.bias": bias})
    assert slope["layers.1.bias"].tolist() == [1.0, 1.0]


def test_flat_parameters_come_first_and_the_result_is_a_tuple():
    module = Affine(1.0)
    module.forward = lambda x, y=0.0: (x * module.a + module.b + y,)
    flat, spec = functx.tree.flatten({"a": 3.0, "b": 1.0})
    call = functx.create_functional_call(module, spec, 2, store_original=True)
    assert [float(x) for x in call(*flat, 2.0, y=10.0)] == [17.0]
    assert call.original_module is module and not hasattr(
        functx.create_functional_call(module, spec, 2), "original_module"
    )
    slopes = functx.grad(lambda *args: call(*args)[0], (0, 1, 2))(3.0, 1.0, 2.0)
    assert [float(x) for x in slopes] == [2.0, 1.0, 3.0]
    with pytest.raises(OutputTupleError, match="a tuple or a list; got "):
        functx.create_functional_call(Affine(1.0), spec, 2)(*flat, 2.0)
    with pytest.raises(FunctionalCallCountError, match="2 leaves and n = 3"):
        functx.create_functional_call(module, spec, 3)
    with pytest.raises(FunctionalCallCountError, match="begin with 2 parameters; got 1 arg"):
        call(3.0)


def test_states_are_stacked_by_name_into_new_leaves_and_run_as_one():
    models = [Layers(2, 3, seed=i) for i in range(4)]
    parameters, buffers = functx.stack_module_state(models)
    shapes = {name: x.shape for name, x in parameters.items()}
    assert shapes == {"layers.0.weight": (4, 3, 2), "layers.0.bias": (4, 3)} and buffers == {}
    leaf = parameters["layers.0.weight"]
    assert type(leaf) is Variable and leaf.is_leaf and leaf.requires_grad
    assert leaf[2].tolist() == models[2].layers[0].weight.tolist()
    ensemble = functx.vmap(lambda p, x: functional_call(models[0], p, x), (0, None))
    out = ensemble(parameters, X)
    assert np.allclose(out, np.stack([m(X) for m in models]), atol=1e-6)
    out.sum().backward()
    assert leaf.grad.shape == (4, 3, 2) and models[0].layers[0].weight.grad is None


def frozen(model):
    return model.requires_grad_(False)


UNLIKE = {
    "nothing": ([], "got none"),
    "two classes": ([Affine(), Scale()], "got Affine, Scale"),
    "two modes": ([Scale(), Scale().eval()], "got training, evaluation"),
    "two flags": ([Scale(), frozen(Scale())], "`w` must require .*; got True, False"),
    "two shapes": (
        [Layers(2, 3), Layers(2, 4)],
        r"`layers.0.weight` must .* f32\[3,2\], f32\[4,2\]",
    ),
    "two structures": (
        [Layers(2, 2), Layers(2, 2, 2)],
        r"got 'layers.1.bias', 'layers.1.weight' in",
    ),
}


@pytest.mark.parametrize("name", UNLIKE)
def test_modules_that_are_unlike_are_not_stacked(name):
    models, message = UNLIKE[name]
    with pytest.raises(StackingError, match=message):
        functx.stack_module_state(models)


def test_frozen_modules_and_buffers_stack_to_arrays_without_gradients():
    parameters, buffers = functx.stack_module_state([frozen(Affine(1.0)) for _ in range(2)])
    assert not parameters["a"].requires_grad and buffers["n"].shape == (2,)
    assert buffers["n"].dtype == "int32" and not buffers["n"].requires_grad
