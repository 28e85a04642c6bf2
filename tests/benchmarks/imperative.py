"""Times functx.autograd beside PyTorch eager: `python -m tests.benchmarks.imperative [TASK ...]`.

A time is processor time of the process, the least of many short repetitions of each library in
turns, for a machine that is busy with other work. PyTorch's column is empty where it is not
installed. Both compute in one thread: `torch.set_num_threads(1)`; XLA makes a thread for each CPU
that the process has when it starts, which is then one.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import operator
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import numpy as np

import functx
import functx.numpy as fnp
from functx.autograd import Variable, no_grad, recorded
from tests.benchmarks.measures import expect_recompilations, machine, shown

Namespace = SimpleNamespace
Step = Callable[[], Any]
RATE = 0.01


def _same(x: Any) -> Any:
    return x


def functx_names() -> Namespace:
    """The names that tasks are written in, for functx.autograd."""
    one = Variable(1.0)
    return Namespace(
        np=fnp,
        array=Variable,
        parameter=partial(Variable, requires_grad=True),
        no_grad=no_grad,
        jit=functx.jit,
        run_recorded=lambda: float(one + 1),
    )


def torch_names() -> list[Namespace]:
    """The names for PyTorch, where it is installed."""
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        return []
    torch.set_num_threads(1)
    names = Namespace(
        version=torch.__version__,
        np=torch,
        array=torch.tensor,
        parameter=partial(torch.tensor, requires_grad=True),
        no_grad=torch.no_grad,
        jit=_same,
        run_recorded=lambda: None,
        saved_tensors_hooks=torch.autograd.graph.saved_tensors_hooks,
    )
    return [names]


class Row(NamedTuple):
    """What was `found` of functx, and of PyTorch if it is installed.

    Wanted is at `most` a number, or a `part` of what PyTorch takes.
    """

    task: str
    found: Sequence[float]
    most: float | None = None
    part: float | None = None
    unit: str | None = "s"

    def __str__(self) -> str:
        ours, theirs, *_ = map(self.show, [*self.found, None])
        ratio = f"{self.found[0] / self.found[1]:.2f}" if theirs else ""
        wanted = self.show(self.most) if self.part is None else f"{self.part:.2f}"
        return f"| {f'`{self.task}`':24} | {ours:>10} | {theirs:>13} | {ratio:>6} | {wanted:>8} |"

    def show(self, value: float | None) -> str:
        """A number in the unit; nothing for None."""
        return shown(value, self.unit) if self.unit else "" if value is None else f"{value:g}"


HEADER = (
    f"| {'task':24} | {'functx':>10} | {'PyTorch eager':>13} | {'ratio':>6} | {'wanted':>8} |\n"
    f"|{'-' * 26}|{'-' * 12}|{'-' * 15}|{'-' * 8}|{'-' * 10}|"
)


# Times


class Timed(NamedTuple):
    """A repetition: `run` is timed, and does what a figure is of `repeats` times; the others are not."""

    run: Step
    repeats: int = 1
    before: Step = lambda: None
    after: Step = lambda: None

    def seconds(self) -> float:
        """The processor time of one of the repeats."""
        self.before()
        start = time.process_time()
        self.run()
        spent = time.process_time() - start
        self.after()
        return spent / self.repeats


def least_times(runs: Sequence[Timed], seconds: float) -> list[float]:
    """The least time of each, in turns for so many seconds in all, after a warm-up."""
    for run in runs:
        for _ in range(3):
            run.seconds()
    rounds: list[list[float]] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(rounds) < 5:
        rounds.append([run.seconds() for run in runs])
    return list(map(min, zip(*rounds, strict=True)))


TaskRows = Callable[[Sequence[Namespace], float], Iterable[Row]]
"""The rows of a task, from the names of the libraries and the seconds to time it."""


Build = Callable[[Namespace], Timed]
VALUES = np.array([0.5, 1.0, 1.5], "float32")
COUNT = 1000


def operation(run: Callable[[Any, Any], Any], gradient: bool) -> Build:
    """One operation that is recorded, on Variables with or without gradients."""

    def build(fx: Namespace) -> Timed:
        x, y = [(fx.parameter if gradient else fx.array)(VALUES) for _ in range(2)]

        def repeat() -> None:
            for _ in range(COUNT):
                run(x, y)

        return Timed(repeat, COUNT, after=fx.run_recorded)

    return build


def chain(fx: Namespace, x: Any, factor: Any, count: int) -> Any:
    """`x` after `count` operations."""
    for _ in range(count // 2):
        x = fx.np.sin(x) * factor
    return x


def walk(fx: Namespace) -> Timed:
    """A node of a backward walk, which is recorded and not run."""
    x, factor = fx.parameter(VALUES), fx.array(VALUES)
    roots: list[Any] = []

    def before() -> None:
        roots.append(chain(fx, x, factor, COUNT).sum())

    def after() -> None:
        x.grad = None
        fx.run_recorded()

    return Timed(lambda: roots.pop().backward(), COUNT + 1, before, after)


def run_met(fx: Namespace) -> Timed:
    """An equation of a recording that was met before, which is run and was recorded already."""
    x, factor = fx.array(np.float32(0.5)), fx.array(np.float32(0.9))
    ends: list[Any] = []
    count = 300

    def before() -> None:
        ends.append(chain(fx, x, factor, count))

    return Timed(lambda: ends.pop().item(), count, before)


def operation_and_value(multiply: Callable[[Any, Any], Any], x: Any) -> Timed:
    """An operation whose value is read at once."""

    def repeat() -> None:
        for _ in range(COUNT):
            np.asarray(multiply(x, x))

    return Timed(repeat, COUNT)


# Training steps

random = np.random.RandomState(0)


def normal(*shape: int, scale: float = 1.0) -> Any:
    return (random.randn(*shape) * scale).astype("float32")


def layers(*sizes: int) -> list[Any]:
    """Weights and biases, one after the other."""
    return [x for a, b in pairwise(sizes) for x in (normal(a, b, scale=0.1), normal(b, scale=0.1))]


def network_loss(fx: Namespace, params: Sequence[Any], x: Any, y: Any) -> Any:
    """The squared error of a network with tanh between its layers."""
    *pairs, (weights, bias) = zip(params[::2], params[1::2], strict=True)
    for w, b in pairs:
        x = fx.np.tanh(x @ w + b)
    return ((x @ weights + bias - y) ** 2).mean()


def chain_loss(fx: Namespace, params: Sequence[Any]) -> Any:
    """Thirty operations on each element."""
    (x,) = params
    for _ in range(10):
        x = fx.np.tanh(x) * 0.9 + 0.1
    return (x * x).sum()


class Network(NamedTuple):
    """A loss of parameters and data."""

    loss: Callable[..., Any]
    params: list[Any]
    data: tuple[Any, ...] = ()


NETWORKS = {
    "digits": Network(network_loss, layers(784, 512, 512, 10), (normal(256, 784), normal(256, 10))),
    "elementwise": Network(chain_loss, [normal(1_000_000)]),
    "deep": Network(network_loss, layers(*[64] * 13), (normal(8, 64), normal(8, 64))),
    "small": Network(network_loss, layers(16, 32, 32, 1), (normal(8, 16), normal(8, 1))),
}


def start(fx: Namespace, net: Network) -> tuple[list[Any], list[Any]]:
    """The parameters and the data."""
    return [fx.parameter(x) for x in net.params], [fx.array(x) for x in net.data]


def loop_step(fx: Namespace, net: Network) -> Step:
    """A step of gradient descent, written as a loop; the loss that it returns was not read."""
    params, data = start(fx, net)

    def step() -> Any:
        loss = net.loss(fx, params, *data)
        loss.backward()
        update_in_place(fx, params)
        return loss

    return step


def update_in_place(fx: Namespace, params: Sequence[Any]) -> None:
    with fx.no_grad():
        for p in params:
            p -= RATE * p.grad
            p.grad = None


def descend(params: Sequence[Any], grads: Sequence[Any]) -> None:
    """Writes the parameters after a step to them."""
    for p, g in zip(params, grads, strict=True):
        p -= RATE * g


def jitted_step(fx: Namespace, net: Network) -> Step:
    """Such a step with the loss and the update as one operation each."""
    params, data = start(fx, net)
    of_loss, update = fx.jit(partial(net.loss, fx)), fx.jit(descend)

    def step() -> Any:
        loss = of_loss(params, *data)
        loss.backward()
        with fx.no_grad():
            update(params, [p.grad for p in params])
        for p in params:
            p.grad = None
        return loss

    return step


def whole_jitted_step(fx: Namespace, net: Network) -> Step:
    """Such a step as one program, which writes to the parameters."""
    step: Step = fx.jit(loop_step(fx, net))
    return step


def pure_step(_: Namespace, net: Network) -> Step:
    """Such a step in JAX: a function of the parameters, whose memory it takes for the new ones."""
    names = Namespace(np=jax.numpy)
    params, data = [[jax.numpy.array(x) for x in xs] for xs in (net.params, net.data)]

    @partial(jax.jit, donate_argnums=0)
    def pure(params: list[Any], *data: Any) -> Any:
        loss, grads = jax.value_and_grad(partial(net.loss, names))(params, *data)
        return [p - RATE * g for p, g in zip(params, grads, strict=True)], loss

    def step() -> Any:
        nonlocal params
        params, loss = pure(params, *data)
        return loss

    return step


def training(make: Callable[[Namespace, Network], Step], net: Network) -> Build:
    """A training step, with the loss read."""

    def build(fx: Namespace) -> Timed:
        step = make(fx, net)
        timed = Timed(lambda: step().item())
        # A few compile; the least of those after them tells how many make a repetition of 20 ms.
        once = min([timed.seconds() for _ in range(10)])
        count = max(1, int(0.02 / once))

        def repeat() -> None:
            for _ in range(count):
                step().item()

        return Timed(repeat, count)

    return build


def recurrent_loss(fx: Namespace, params: Sequence[Any], xs: Sequence[Any], y: Any) -> Any:
    """The squared error of a recurrent network after its last step."""
    into, across, bias, out = params
    h = fx.np.zeros((8, 32))
    for x in xs:
        h = fx.np.tanh(x @ into + h @ across + bias)
    return ((h @ out - y) ** 2).mean()


def lengths_met_first(fx: Namespace) -> tuple[float, int]:
    """The time of a step of length 32, the least of 32 lengths met for the first time; compilations."""
    params = [normal(16, 32, scale=0.1), normal(32, 32, scale=0.1), normal(32), normal(32, 1)]
    weights, xs = [fx.parameter(x) for x in params], [fx.array(normal(8, 16)) for _ in range(48)]
    y = fx.array(normal(8, 1))

    def step(length: int) -> None:
        loss = recurrent_loss(fx, weights, xs[:length], y)
        loss.backward()
        update_in_place(fx, weights)
        loss.item()

    for length in (1, 2, 3):
        step(length)
    with compilations() as events:
        times = [Timed(partial(step, n), repeats=n).seconds() for n in range(17, 49)]
        return 32 * min(times), len(events)


@contextmanager
def compilations() -> Iterator[list[str]]:
    """The compilations inside the block."""
    events: list[str] = []

    def listen(event: str, duration_secs: float, **_: str | int) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            events.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield events
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


# Memory


def temporary_bytes(fx: Namespace) -> int:
    """What the recorded step of the elementwise network needs besides arguments and results."""
    loss = loop_step(fx, NETWORKS["elementwise"])()
    program = recorded()
    args = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in program.in_avals]
    compiled = functx.jit(program).lower(*args).compile()
    del loss
    return int(compiled.memory_analysis().temp_size_in_bytes)


def saved_bytes(torch: Namespace) -> int:
    """What PyTorch saves for the gradient of that step."""
    sizes: dict[int, int] = {}

    def pack(x: Any) -> Any:
        sizes[x.data_ptr()] = x.numel() * x.element_size()
        return x

    with torch.saved_tensors_hooks(pack, _same):
        loss = loop_step(torch, NETWORKS["elementwise"])()
    del loss
    return sum(sizes.values())


def updated_in_place(fx: Namespace) -> float:
    """The part of the parameters and momenta of a network that a step puts into memory they had before."""
    net = NETWORKS["digits"]
    params, data = start(fx, net)
    momenta = [fx.array(np.zeros_like(x)) for x in net.params]

    def step() -> None:
        loss = net.loss(fx, params, *data)
        loss.backward()
        with fx.no_grad():
            for p, m in zip(params, momenta, strict=True):
                m *= 0.9
                m += p.grad
                p -= RATE * m
                p.grad = None
        loss.item()

    def addresses() -> set[int]:
        return {x.read().look().unsafe_buffer_pointer() for x in (*params, *momenta)}

    for _ in range(3):
        step()
    before = addresses()
    step()
    return len(before & addresses()) / len(before)


def kept_objects(fx: Namespace, steps: int = 10_000) -> int:
    """How many more objects there are after many steps without the cycle collector."""
    step = loop_step(fx, NETWORKS["small"])
    for _ in range(100):
        step().item()
    gc.collect()
    gc.disable()
    try:
        before = len(gc.get_objects())
        for _ in range(steps):
            step().item()
        return len(gc.get_objects()) - before
    finally:
        gc.enable()


# Tasks


class Timing(NamedTuple):
    """A task with a time, and what is wanted of it as in a Row."""

    build: Build
    most: float | None = None
    part: float | None = None


OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "multiply": operator.mul,
    "number": lambda x, _: x * 2.0,
    "sum": lambda x, _: x.sum(),
    "mean": lambda x, _: x.mean(),
}
TIMES = {
    **{f"record_{k}": Timing(operation(run, False), most=2e-6) for k, run in OPERATIONS.items()},
    **{
        f"record_{k}_grad": Timing(operation(run, True), most=4e-6) for k, run in OPERATIONS.items()
    },
    "walk_node": Timing(walk, most=5e-6),
    "digits": Timing(training(loop_step, NETWORKS["digits"]), part=0.6),
    "elementwise": Timing(training(loop_step, NETWORKS["elementwise"]), part=0.6),
    "deep": Timing(training(loop_step, NETWORKS["deep"]), part=1.4),
    "small": Timing(training(loop_step, NETWORKS["small"]), part=2.2),
    "deep_jit": Timing(training(jitted_step, NETWORKS["deep"]), part=0.75),
    "small_jit": Timing(training(jitted_step, NETWORKS["small"]), part=1.2),
}


def time_rows(task: str, libraries: Sequence[Namespace], seconds: float) -> Iterator[Row]:
    build, most, part = TIMES[task]
    yield Row(task, least_times([build(fx) for fx in libraries], seconds), most, part)


def whole_step_rows(name: str, libraries: Sequence[Namespace], seconds: float) -> Iterator[Row]:
    ours, net = libraries[0], NETWORKS[name]
    runs = [training(make, net)(ours) for make in (whole_jitted_step, pure_step)]
    found, pure = least_times(runs, seconds)
    yield Row(f"{name}_step_jit", [found], pure + 30e-6)


def run_met_rows(libraries: Sequence[Namespace], seconds: float) -> Iterator[Row]:
    yield Row("run_met", least_times([run_met(libraries[0])], seconds), most=1e-6)


def operation_and_value_rows(libraries: Sequence[Namespace], seconds: float) -> Iterator[Row]:
    plain = operation_and_value(fnp.multiply, jax.numpy.asarray(VALUES))
    runs = [operation_and_value(operator.mul, fx.array(VALUES)) for fx in libraries]
    most, *found = least_times([plain, *runs], seconds)
    yield Row("operation_and_value", found, most)


def length_rows(libraries: Sequence[Namespace], _: float) -> Iterator[Row]:
    found = [lengths_met_first(fx) for fx in libraries]
    yield Row("lengths", [time for time, _ in found], most=10e-3)
    yield Row("lengths_compiled", [found[0][1]], most=0, unit=None)


def memory_rows(libraries: Sequence[Namespace], _: float) -> Iterator[Row]:
    ours, *theirs = libraries
    found = [temporary_bytes(ours), *map(saved_bytes, theirs)]
    yield Row("chain_bytes", found, part=1.0, unit="bytes")
    yield Row("updated_in_place", [updated_in_place(ours)], most=1, unit=None)
    yield Row("kept_objects", [kept_objects(ours)], most=10, unit=None)


TASKS: dict[str, TaskRows] = {
    **{name: partial(time_rows, name) for name in TIMES},
    **{f"{k}_step_jit": partial(whole_step_rows, k) for k in ("small", "deep", "digits")},
    "run_met": run_met_rows,
    "operation_and_value": operation_and_value_rows,
    "lengths": length_rows,
    "memory": memory_rows,
}


def start_xla_in_one_thread() -> None:
    """Let XLA start with one CPU, for which it makes one thread."""
    jax.config.update("jax_platforms", "cpu")
    if hasattr(os, "sched_setaffinity"):
        every = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {min(every)})
        jax.devices()
        os.sched_setaffinity(0, every)


def run_tasks(program: str, description: str | None, tasks: dict[str, TaskRows]) -> None:
    """Prints the rows of the tasks that the command line names, or of all."""
    parser = argparse.ArgumentParser(prog=program, description=description)
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=", ".join(tasks))
    parser.add_argument("--seconds", type=float, default=4.0, help="how long to time a task")
    given = parser.parse_args()
    if unknown := {*given.tasks} - {*tasks}:
        parser.error(f"no task is called {unknown.pop()}")
    start_xla_in_one_thread()
    expect_recompilations()
    libraries = [functx_names(), *torch_names()]
    others = "".join([f", PyTorch {fx.version}" for fx in libraries[1:]])
    print(f"{machine()}{others}\n\n{HEADER}")
    for task in given.tasks or tasks:
        for row in tasks[task](libraries, given.seconds):
            print(row, flush=True)


if __name__ == "__main__":
    run_tasks("tests.benchmarks.imperative", __doc__, TASKS)
