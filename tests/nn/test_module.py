"""Modules: what they hold, how it is named, and what an assignment means; mostly without XLA."""

import copy
import pickle
from dataclasses import dataclass
from inspect import signature

import numpy as onp
import pytest

import functx
from functx import nn
from functx import numpy as np
from functx.autograd import Variable, no_grad
from functx.core.errors import (
    ArgumentError,
    MissingForwardError,
    ModuleAttributeError,
    RequiresGradError,
    StateKeysError,
    StateShapeError,
)

X = onp.array([[1.0, -2.0, 0.5]], "float32")


class Linear(nn.Module):
    def __init__(self, inputs, outputs, seed=0):
        values = onp.random.RandomState(seed).randn(outputs, inputs).astype("float32")
        self.weight = nn.Parameter(values)
        self.bias = nn.Parameter(onp.zeros(outputs, "float32"))

    def forward(self, x):
        return x @ self.weight.T + self.bias


class Net(nn.Module):
    """Two layers, a parameter that is tied to one of them, and two buffers."""

    def __init__(self):
        self.hidden = Linear(3, 4, 1)
        self.out = Linear(4, 2, 2)
        self.tied = self.hidden.weight
        self.calls = nn.Buffer(0)
        self.cache = nn.Buffer([0.0], persistent=False)
        self.rate = 0.5

    def forward(self, x):
        self.calls += 1
        return self.out(np.tanh(self.hidden(x)))


NAMES = ["tied", "hidden.bias", "out.weight", "out.bias"]
KEYS = ["tied", "calls", "hidden.weight", "hidden.bias", "out.weight", "out.bias"]


def names(pairs):
    return [name for name, _ in pairs]


def test_state_is_found_by_dotted_names_and_a_shared_value_once():
    net = Net()
    assert names(net.named_parameters()) == NAMES
    assert len([*net.parameters()]) == 4
    assert names(net.named_parameters(remove_duplicate=False)) == [
        *("tied", "hidden.weight", "hidden.bias", "out.weight", "out.bias")
    ]
    assert names(net.named_parameters("net", recurse=False)) == ["net.tied"]
    assert names(net.named_buffers()) == ["calls", "cache"] and len([*net.buffers()]) == 2
    assert names(net.named_modules()) == ["", "hidden", "out"] == ["", *names(net.named_children())]
    assert [*net.modules()] == [net, *net.children()]
    assert {"hidden", "tied", "calls", "rate"} <= {*dir(net)}
    assert isinstance(net.tied, nn.Parameter) and isinstance(net.calls, nn.Buffer)
    assert not isinstance(net.tied, nn.Buffer) and not isinstance(X, nn.Parameter)
    assert type(net.tied) is Variable and net.tied.requires_grad and not net.calls.requires_grad


def test_a_module_that_has_two_names_is_counted_once():
    shared = Linear(2, 2)
    both = nn.ModuleDict({"a": shared, "b": shared})
    assert names(both.named_children()) == ["a"]
    assert names(both.named_parameters()) == ["a.weight", "a.bias"]
    assert names(both.named_modules()) == ["", "a"]
    assert names(both.named_modules(remove_duplicate=False)) == ["", "a", "b"]
    assert [*both.state_dict()] == ["a.weight", "a.bias", "b.weight", "b.bias"]


def test_modules_that_contain_each_other_are_walked_once():
    one, two = nn.Module(), Linear(2, 2)
    one.two, two.one = two, one
    assert names(one.named_modules(remove_duplicate=False)) == ["", "two"]
    assert (
        repr(one)
        == "Module(\n  two: Linear(\n    weight: f32[2,2]\n    bias: f32[2]\n    one: ...\n  )\n)"
    )


def test_a_module_prints_as_a_tree():
    assert repr(Net()).splitlines() == [
        "Net(",
        "  tied: f32[4,3]",
        "  calls: buffer i32[]",
        "  cache: buffer f32[1]",
        "  hidden: Linear(weight: f32[4,3], bias: f32[4])",
        "  out: Linear(weight: f32[2,4], bias: f32[2])",
        ")",
    ]
    layers = nn.Sequential(Linear(1, 1), nn.relu)
    assert repr(layers) == "Sequential(\n  0: Linear(weight: f32[1,1], bias: f32[1])\n  1: relu\n)"
    assert repr(nn.Module()) == "Module()"


def test_a_module_trains_imperatively():
    net = Net()
    loss = (net(X) ** 2).sum()
    loss.backward()
    assert [x.grad.shape for x in net.parameters()] == [(4, 3), (4,), (2, 4), (2,)]
    with no_grad():
        for x in net.parameters():
            x -= 0.05 * x.grad
    assert float((net(X) ** 2).sum()) < float(loss) and int(net.calls) == 2
    assert net.tied is net.hidden.weight
    net.zero_grad()
    assert all(x.grad is None for x in net.parameters())
    net.requires_grad_(False)
    assert not net(X).requires_grad and names(net.named_parameters()) == NAMES


def test_a_jitted_function_reads_and_writes_the_present_state():
    net = Net()
    step = functx.jit(lambda x: net(x))
    first = step(X)
    with no_grad():
        net.out.bias += 1
    assert np.allclose(step(X), first + 1, atol=1e-6) and int(net.calls) == 2
    net.out.bias = nn.Parameter(onp.zeros(2, "float32"))
    assert np.allclose(step(X), first, atol=1e-6)


def test_a_function_of_a_module_is_lowered_with_its_present_values():
    net = Net().hidden
    function = functx.jit(lambda x: net(x) * (2 if net.training else 1))
    assert np.allclose(function.lower(X).compile()(X), 2 * net(X), atol=1e-5)
    assert np.allclose(function(X), 2 * net(X), atol=1e-5)
    net.eval()
    with no_grad():
        net.bias += 1
    assert np.allclose(function.lower(X).compile()(X), net(X), atol=1e-5)
    assert function(X).requires_grad


def test_a_jitted_step_notices_a_parameter_that_is_replaced():
    model = nn.Sequential(Linear(3, 1))

    @functx.jit
    def step(x):
        model(x).sum().backward()
        gradient = model[0].bias.grad
        model.zero_grad()
        return gradient, model[0].bias

    assert step(X)[1].tolist() == [0.0]
    model[0].bias = nn.Parameter(onp.array([5.0], "float32"))
    assert [x.tolist() for x in step(X)] == [[1.0], [5.0]]


def test_a_class_has_the_signature_of_its_initialization():
    assert [*signature(Linear).parameters] == ["inputs", "outputs", "seed"]
    assert [*signature(nn.Module).parameters] == []

    @dataclass
    class Scaled(nn.Module):
        weight: object
        factor: float = 2.0

        def forward(self, x):
            return x * self.weight * self.factor

    assert [*signature(Scaled).parameters] == ["weight", "factor"]
    module = Scaled(nn.Parameter([1.0]))
    assert names(module.named_parameters()) == ["weight"] and float(module(3.0)[0]) == 6
    assert [*signature(module).parameters] == ["args", "kwargs"]


def test_modes_reach_all_submodules():
    net = Net()
    assert net.training and net.hidden.training
    assert net.eval() is net and not net.training and not net.out.training
    assert net.train() is net and net.out.training


def test_states_are_copies_and_are_loaded_in_place():
    net = Net()
    state, weight = net.state_dict(), net.hidden.weight
    assert [*state] == KEYS and state["tied"].tolist() == state["hidden.weight"].tolist()
    assert not any(x.requires_grad for x in state.values())
    with no_grad():
        weight += 1
    other = {**state, "calls": 7, "out.bias": [1, 2], "more": 0}
    assert net.load_state_dict(other, strict=False) == ([], ["more"])
    assert net.hidden.weight is weight and weight.requires_grad and weight.is_leaf
    assert weight.tolist() == state["tied"].tolist()
    assert int(net.calls) == 7 and net.calls.dtype == "int32" and net.out.bias.tolist() == [1, 2]


def test_a_state_that_does_not_fit_is_refused_and_nothing_is_written():
    net = Net()
    state = net.state_dict()
    with pytest.raises(StateKeysError, match=r"unexpected 'more' and missing 'calls', 'out.bias'"):
        net.load_state_dict(
            {k: state[k] for k in KEYS if k not in ("calls", "out.bias")} | {"more": 1}
        )
    with pytest.raises(StateShapeError, match=r"got f32\[3\] for `out.bias`, f32\[2\]"):
        net.load_state_dict(
            {**state, "tied": state["tied"] + 1, "out.bias": onp.ones(3, "float32")}
        )
    assert net.tied.tolist() == state["tied"].tolist()
    with pytest.raises(ArgumentError, match=r"must be a dictionary .* got int"):
        net.load_state_dict(3)
    with pytest.raises(ArgumentError, match=r"got int[^$]*nn.Sequential\(\*modules\)"):
        nn.Sequential(3)


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, copy.copy, lambda net: pickle.loads(pickle.dumps(net))]
)
def test_copies_keep_what_is_tied_and_have_a_structure_of_their_own(copied):
    net = Net()
    found = copied(net)
    assert repr(found) == repr(net) and found.tied is found.hidden.weight
    assert isinstance(found.tied, nn.Parameter) and found.tied.requires_grad
    found.more = nn.Parameter(1.0)
    assert names(net.named_parameters()) == NAMES and len([*found.parameters()]) == 5
    assert found.state_names().places.keys() - net.state_names().places.keys() == {"more"}
    assert found.rate == 0.5 and found._not_persistent == {"cache"}


def test_what_is_copied_alone_stays_a_parameter():
    for make in (copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))):
        module = nn.Module()
        module.weight = make(nn.Parameter([1.0], requires_grad=False))
        assert names(module.named_parameters()) == ["weight"] and not module.weight.requires_grad


def test_an_attribute_takes_what_it_can_hold():
    net = Net()
    net.rate = nn.Parameter(2.0)
    assert "rate" not in vars(net) and names(net.named_parameters())[1] == "rate"
    net.rate = None
    assert net.rate is None and "rate" not in names(net.named_parameters())
    net.rate = nn.Parameter(2.0)
    del net.rate
    net.rate = nn.Buffer(1.0)
    assert names(net.named_buffers()) == ["calls", "cache", "rate"]
    net.calls = net.calls + 1
    assert int(net.calls) == 1 and names(net.named_buffers())[0] == "calls"
    net.calls = 3
    assert type(net.calls) is Variable
    del net.calls, net.out, net.rate
    assert not hasattr(net, "out") and not hasattr(net, "calls")
    with pytest.raises(AttributeError, match="'Net' object has no attribute 'weigth'"):
        net.weigth  # noqa: B018
    Net.broken = property(lambda net: net.absent)
    with pytest.raises(AttributeError, match="no attribute 'absent'"):
        net.broken  # noqa: B018
    del Net.broken
    plain = Variable([1.0], requires_grad=True)
    net.last = plain * 2
    assert net.last is vars(net)["last"]


def mistakes():
    net = Net()
    yield lambda: setattr(net.out, "weight", net.out.weight * 2), "`weight` must be .* got f32"
    yield lambda: setattr(net, "out", 3), "submodule `out` must be replaced by an nn.Module"
    yield lambda: net.register_module("more", 3), "got int for `more`"
    yield (
        lambda: setattr(net, "forward", nn.Parameter(1.0)),
        "attribute of the class; got 'forward'",
    )
    yield lambda: net.register_buffer("a.b", 0), "got 'a.b'"
    yield lambda: net.register_parameter("", 0.0), "got ''"
    yield lambda: net.register_buffer("out", 0), "must not be that of another .* got 'out'"


@pytest.mark.parametrize("number", range(7))
def test_an_assignment_that_would_lose_state_is_refused(number):
    mistake, message = [*mistakes()][number]
    with pytest.raises(ModuleAttributeError, match=message):
        mistake()


def test_a_module_without_forward_is_not_called_and_a_parameter_is_a_float():
    with pytest.raises(MissingForwardError, match=r"got none[^$]*Define forward\(self"):
        nn.Module()(X)
    with pytest.raises(TypeError):
        nn.Module(3)
    with pytest.raises(RequiresGradError):
        nn.Parameter([1, 2])


@pytest.mark.parametrize("transform", [functx.jit, functx.grad])
def test_a_module_is_no_array_and_the_error_names_functional_call(transform):
    with pytest.raises(ArgumentError, match=r"got Net for `m`[^$]*functx.functional_call\(module"):
        transform(lambda m, x: m(x).sum())(Net(), X)


def test_transforms_pass_a_module_on_as_it_is():
    net = Net().hidden
    rows = functx.vmap(lambda m, x: m(x), (None, 0))(net, onp.stack([X, 2 * X]))
    assert np.allclose(rows[1], net(2 * X), atol=1e-6)
    slope = functx.grad(lambda m, x: m(x).sum(), argnums=1)(net, X)
    assert np.allclose(slope, onp.asarray(net.weight.detach()).sum(0), atol=1e-6)


def test_a_module_that_is_made_in_a_transform_holds_traced_values():
    def shapes(scale):
        net = Linear(3, 2)
        net.weight = nn.Parameter(net.weight * scale)
        net.steps = nn.Buffer(scale)
        net.steps = net.steps + 1
        return net(X).sum(), dict(net.named_parameters()), dict(net.named_buffers())

    program = functx.make_ir(shapes)(onp.float32(2.0))
    assert [str(a.aval) for a in program.outputs] == ["f32[]", "f32[2]", "f32[2,3]", "f32[]"]
    slope = functx.grad(lambda s: shapes(s)[0])(onp.float32(2.0))
    assert np.allclose(slope, Linear(3, 2)(X).sum(), atol=1e-5)


class Tied(nn.Module):
    def __init__(self):
        self.w = nn.Parameter([1.0, 2.0])
        self.tied, self.rate = self.w, nn.Buffer(2.0, persistent=False)

    def forward(self, x):
        self.rate += 1.0
        return x * self.w * (2 * self.tied) * self.rate


@pytest.mark.parametrize("transform", [lambda f: f, functx.jit, functx.grad])
def test_a_module_that_is_made_in_a_transform_ties_the_same_parameters(transform):
    def out(w, x):
        net = Tied()
        assert [*dict(net.named_parameters(remove_duplicate=False))] == ["w", "tied"]
        y = functx.functional_call(net, {"w": w}, x)
        assert type(net.w) is not list and not net.state_dict().keys() & {"rate"}
        return y.sum()

    w, x = onp.array([3.0, 5.0], "float32"), onp.array([1.0, 2.0], "float32")
    expected = (2 * 2 * x * w * 3.0) if transform is functx.grad else (2 * x * w * w * 3.0).sum()
    assert np.allclose(transform(out)(w, x), expected)


def test_a_buffer_gets_no_traced_value_that_ends_with_the_transform():
    net = Net()

    def count(x):
        net.calls = net.calls + x
        return x

    with pytest.raises(ModuleAttributeError, match=r"`calls` must not be given a traced value"):
        functx.make_ir(count)(onp.int32(1))
    assert int(net.calls) == 0


def test_containers_hold_modules():
    layers = nn.ModuleList([Linear(3, 3), Linear(3, 3)]).append(Linear(3, 1))
    assert len(layers) == 3 and layers[-1] is [*layers][2] and len(layers[:2]) == 2
    layers[0] = Linear(3, 5)
    assert layers[0].bias.shape == (5,) and len([*layers.parameters()]) == 6
    with pytest.raises(ModuleAttributeError):
        layers.append(nn.relu)
    chain = nn.Sequential(Linear(3, 4), nn.relu, Linear(4, 2))
    assert chain(X).shape == (1, 2) and chain[:2](X).shape == (1, 4)
    assert names(chain.named_parameters()) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    table = nn.ModuleDict({"a": Linear(1, 1)})
    table["b"] = Linear(1, 2)
    assert table.keys() == [*table] == ["a", "b"] and "a" in table and len(table.items()) == 2
    del table["a"]
    assert [x.bias.shape for x in table.values()] == [(2,)]


def test_an_assignment_calls_the_registration_of_the_class():
    class Logged(nn.Module):
        def __init__(self):
            super().__init__()
            object.__setattr__(self, "log", [])
            self.weight = nn.Parameter(onp.ones(2))
            self.count = nn.Buffer(onp.ones(1))
            self.weight = nn.Parameter(onp.zeros(2))

        def register_parameter(self, name, value):
            self.log.append(name)
            super().register_parameter(name, value)

        def register_buffer(self, name, value, persistent=True):
            self.log.append(name)
            super().register_buffer(name, value, persistent)

    module = Logged()
    assert module.log == ["weight", "count", "weight"]
    assert not onp.any(module.weight) and list(module.state_dict()) == ["weight", "count"]
