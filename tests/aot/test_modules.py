"""`aot_module`: parameters and buffers are inputs, and buffers are written to as the module does."""

import copy
import pickle

import numpy
import pytest

import functx
import functx.numpy as np
from functx import aot, nn
from functx.autograd import Variable, no_grad
from functx.core.errors import ModuleTypeError

ROWS = numpy.linspace(-1, 2, 6, dtype="float32").reshape(2, 3)


class Norm(nn.Module):
    """Subtracts a mean: that of the rows in training mode, else a running one."""

    def __init__(self, size):
        self.scale = nn.Parameter(np.ones(size))
        self.mean = nn.Buffer(np.zeros(size))
        self.count = nn.Buffer(0)

    def forward(self, x):
        mean = self.mean
        if self.training:
            mean = x.mean(axis=0)
            self.mean = self.mean * 0.9 + mean.detach() * 0.1
            self.count += 1
        return (x - mean) * self.scale


class Net(nn.Module):
    """Two layers with one matrix."""

    def __init__(self):
        start = numpy.linspace(-1, 1, 12, dtype="float32").reshape(3, 4)
        self.weight = nn.Parameter(start)
        self.norm = Norm(4)
        self.tied = self.weight

    def forward(self, x):
        return np.tanh(self.norm(x @ self.weight)) @ self.tied.T


def equal(x, y):
    numpy.testing.assert_allclose(x.numpy(), y.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("keeps", [True, False])
def test_steps_of_training_and_evaluation_are_those_of_the_module(keeps):
    plain, programs = Net(), []

    def keep(program):
        programs.append(program)
        return program

    compiled = aot.aot_module(Net(), keep, keep_inference_input_mutations=keeps)
    for net, module in ((plain, plain), (compiled, compiled.module)):
        for _ in range(2):
            (net(ROWS) ** 2).sum().backward()
            with no_grad():
                for x in module.parameters():
                    x -= 0.01 * x.grad
                    x.grad = None
        net.eval()
    for name, x in plain.named_buffers():
        equal(dict(compiled.module.named_buffers())[name], x)
    for name, x in plain.named_parameters():
        equal(dict(compiled.module.named_parameters())[name], x)
    equal(compiled(ROWS), plain(ROWS))
    training, backward, evaluation = programs
    assert [p.name for p in programs] == ["0_forward", "0_backward", "1_forward"]
    assert len(training.inputs) == 5, "the tied matrix is one input"
    writes = [eqn.primitive.name for eqn in training].count("write")
    assert writes == (2 if keeps else 0)
    assert "write" not in [eqn.primitive.name for eqn in evaluation]
    assert len(backward.outputs) == 2


def test_a_buffer_of_another_type_is_replaced():
    class Collect(nn.Module):
        def __init__(self):
            self.seen = nn.Buffer(np.zeros((0, 3)))

        def forward(self, x):
            self.seen = np.concatenate([self.seen, x])
            return x * 2

    compiled = aot.aot_module(Collect())
    compiled(ROWS)
    compiled(ROWS + 1)
    assert isinstance(compiled.module.seen, Variable)
    numpy.testing.assert_allclose(
        compiled.module.seen.numpy(), numpy.concatenate([ROWS, ROWS + 1]), rtol=1e-6
    )


def test_inside_transforms_and_functional_calls_it_is_the_module():
    compiled, plain = aot.aot_module(Net().eval()), Net().eval()
    scale = numpy.arange(4, dtype="float32")
    state = {"module.norm.scale": scale}
    found = functx.grad(lambda s: functx.functional_call(compiled, s, ROWS).sum())(state)
    wanted = functx.grad(lambda s: functx.functional_call(plain, s, ROWS).sum())(
        {"norm.scale": scale}
    )
    equal(found["module.norm.scale"], wanted["norm.scale"])
    equal(
        functx.functional_call(compiled, state, ROWS),
        functx.functional_call(plain, {"norm.scale": scale}, ROWS),
    )


def test_it_is_a_module_that_is_copied_and_pickled():
    compiled = aot.aot_module(Net())
    first = compiled(ROWS)
    assert sorted(compiled.state_dict()) == [
        "module.norm.count",
        "module.norm.mean",
        "module.norm.scale",
        "module.tied",
        "module.weight",
    ]
    for other in (copy.deepcopy(compiled), pickle.loads(pickle.dumps(compiled))):
        assert "Net(" in repr(other)
        with no_grad():
            other.module.weight *= 2
        assert not numpy.allclose(other(ROWS).numpy(), first.numpy())
        assert int(other.module.norm.count) == 2
    assert int(compiled.module.norm.count) == 1
    compiled.module.norm = Norm(4)
    compiled(ROWS)
    assert int(compiled.module.norm.count) == 1


def test_what_is_no_module_is_refused():
    with pytest.raises(ModuleTypeError, match="aot_module: the first argument must be"):
        aot.aot_module(lambda x: x)
