"""Random modules, with writes, ties and transforms inside, called with given state and with state of their own."""

import copy
import random

import jax
import numpy as onp
import pytest

import functx
from functx import functional_call, lax, nn
from functx import numpy as np
from functx.autograd import Variable

OPERATIONS = ["scale", "shift", "tanh", "count", "average", "read", "child"]
WRAPPERS = {
    "none": lambda f: f,
    "jit": functx.jit,
    "checkpoint": functx.checkpoint,
    "scan": lambda f: lambda x: lax.scan(lambda c, _: (f(c), None), x, None, length=1)[0],
    "cond": lambda f: lambda x: lax.cond(x.sum() > -1e9, f, lambda x: x, x),
}


class Cell(nn.Module):
    """Operations in random order, some of which write to buffers, inside of a transform."""

    def __init__(self, choose, depth=0):
        self.scale = nn.Parameter(values(choose))
        self.shift = self.scale if choose.random() < 0.3 else nn.Parameter(values(choose))
        self.calls = nn.Buffer(onp.float32(0))
        self.mean = nn.Buffer(onp.zeros(3, "float32"))
        self.operations = ["scale", *choose.choices(OPERATIONS, k=4)]
        if "child" in self.operations and depth < 2:
            self.child = Cell(choose, depth + 1)
            if choose.random() < 0.3:
                self.child.scale = self.scale
        writes = {"count", "average", "child"} & {*self.operations}
        self.wrapper = choose.choice(["none", "jit"] if writes else [*WRAPPERS])
        self.use(self.wrapper)

    def use(self, wrapper):
        self.body = WRAPPERS[wrapper](self.run)

    def run(self, x):
        for operation in self.operations:
            if operation == "scale":
                x = x * self.scale
            elif operation == "shift":
                x = x + self.shift
            elif operation == "tanh":
                x = np.tanh(x)
            elif operation == "count":
                self.calls += 1
            elif operation == "average":
                self.mean = 0.5 * self.mean + functx.stop_gradient(x)
            elif operation == "read":
                x = x + 0.1 * self.mean + self.calls
            elif hasattr(self, "child"):
                x = self.child(x)
        return x

    def forward(self, x):
        return self.body(x)


def values(choose):
    return onp.array([choose.uniform(-1, 1) for _ in range(3)], "float32")


def loss(module, state, x):
    parameters, buffers = state
    return (functional_call(module, (parameters, buffers), x) ** 2).sum(), buffers


def check(found, expected):
    for name, value in expected.items():
        onp.testing.assert_allclose(onp.asarray(found[name]), value, 1e-4, 1e-5, err_msg=name)


@pytest.mark.parametrize("seed", range(12))
def test_a_call_with_given_state_equals_one_of_a_module_that_has_it(seed):
    choose = random.Random(seed)
    module, x = Cell(choose), values(choose)
    parameters = {name: values(choose) for name, _ in module.named_parameters()}
    buffers = {name: onp.asarray(b.numpy()) + 1 for name, b in module.named_buffers()}
    before = {name: value.numpy() for name, value in module.state_dict().items()}

    own = copy.deepcopy(module)
    for cell in own.modules():
        cell.use("none")
    tied = own.state_names().tied
    whole = {n: v for name, v in parameters.items() for n in tied.get(name, [name])}
    own.load_state_dict({**whole, **buffers})
    expected = (own(x) ** 2).sum()
    expected.backward()
    slopes = {k: 0 if p.grad is None else p.grad.numpy() for k, p in own.named_parameters()}
    new = {name: b.numpy() for name, b in own.named_buffers()}

    kind = choose.choice([onp.array, jax.numpy.array, Variable])
    state = lambda: functx.tree.map(kind, (parameters, buffers))  # noqa: E731
    differentiate = functx.value_and_grad(
        lambda p, b, x: loss(module, (p, b), x), argnums=0, has_aux=True
    )
    for call in (differentiate, functx.jit(differentiate), functx.jit(differentiate)):
        (value, written), found = call(*state(), x)
        check({"loss": value} | found | written, {"loss": expected.numpy()} | slopes | new)
    given = state()
    value, written = loss(module, given, x)
    check({"loss": value} | written, {"loss": expected.numpy()} | new)

    lanes = functx.tree.map(lambda v: onp.stack([v, v]), (parameters, buffers))
    value, written = functx.vmap(lambda s: loss(module, s, x))(lanes)
    check(
        {"loss": value[1]} | {k: b[1] for k, b in written.items()}, {"loss": expected.numpy()} | new
    )

    leaves = {name: Variable(value, requires_grad=True) for name, value in parameters.items()}
    loss(module, (leaves, functx.tree.map(Variable, buffers)), x)[0].backward()
    check({k: 0 if v.grad is None else v.grad.detach() for k, v in leaves.items()}, slopes)
    check({name: value.numpy() for name, value in module.state_dict().items()}, before)
