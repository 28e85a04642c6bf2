"""Random programs have one result and one gradient on Variables, under the transforms and with NumPy.

`--in-place-programs N` adds N others to the test of programs that write.
"""

from contextlib import contextmanager

import jax
import numpy as onp
import pytest

import functx
import functx.numpy as np
from functx.autograd import Variable, allow_mutation_on_saved_tensors, grad
from functx.autograd.recorded_operations import program_of_operation
from functx.core.backend import backend
from functx.core.errors import ArgumentError, FunctxError, LostDerivativeError, ViewWriteError
from functx.core.program import Literal
from functx.core.rewriting import cached_rewrite
from functx.core.tracer import Tracer, aval_of
from functx.core.types import is_inexact
from functx.testing import random_functions, reference
from functx.testing.random_functions import RandomFunction, random_arguments, random_array
from functx.transforms.make_ir import make_ir
from tests.mutation.agreement import (
    Outcome,
    TracedFlow,
    compare,
    loss_of,
    traced,
    with_numpy,
)
from tests.mutation.programs import Flow, generate, shrunk

WALKED = [1, 4, 5, 8, 10, 11, 19, 20]
TOO_LARGE = 1e6
"""Values from which rounding errors grow without bound."""


@pytest.fixture(autouse=True)
def interpreted(x64, monkeypatch):
    """Programs and operations are run by the NumPy interpreter, in place of compiling them."""

    def interpret(program, args):
        values = [x.value if isinstance(x, Literal) else x for x in args]
        outs = reference.interpret_in_numpy(program, *values)
        return [jax.numpy.asarray(x, a.dtype) for x, a in zip(outs, program.out_avals, strict=True)]

    def run(rewrite, program, args, *_, **__):
        return interpret(cached_rewrite(rewrite, program), args)

    evaluate_array = backend.evaluate

    def evaluate(primitive, args):
        if any(isinstance(x, onp.ndarray) for x in args):
            # Views of NumPy arrays share memory.
            return evaluate_array(primitive, args)
        outs = interpret(program_of_operation(primitive, tuple(map(aval_of, args))), args)
        return outs if primitive.multiple_results else outs[0]

    monkeypatch.setattr(backend, "run", run)
    monkeypatch.setattr(backend, "evaluate", evaluate)
    monkeypatch.setattr(random_functions, "DTYPES", ("f64",) * 10 + ("c128", "i32", "bool", "i64"))
    with onp.errstate(all="ignore"):
        yield


@contextmanager
def copies_are_variables(monkeypatch):
    """A context in which the arrays that programs write to are Variables: others refuse them."""
    copy = random_functions.Copy()
    with monkeypatch.context() as patched:
        patched.setattr(
            random_functions,
            "Copy",
            lambda: lambda x: copy(x) if isinstance(x, Tracer) else Variable(x),
        )
        yield


def inexact(xs):
    return [x for x in xs if is_inexact(aval_of(x).dtype)]


def value(x):
    return x.numpy() if isinstance(x, Variable) else onp.asarray(x)


def cotangents(function, args, cts):
    """Those of the inexact arguments, by `vjp`, and the values of the inexact outputs."""
    active = [i for i, x in enumerate(args) if is_inexact(aval_of(x).dtype)]

    def of_active(*xs):
        given = dict(zip(active, xs, strict=True))
        return inexact(function(*[given.get(i, x) for i, x in enumerate(args)]))

    outs, pullback = functx.vjp(of_active, *[args[i] for i in active])
    return outs, list(pullback(cts))


def require_equal(what, found, wanted):
    for x, y in zip(found, wanted, strict=True):
        y = onp.asarray(y)
        x = onp.zeros_like(y) if x is None else value(x)
        scale = abs(y[onp.isfinite(y)]).max(initial=1)
        if scale < TOO_LARGE:
            onp.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-8 * scale, err_msg=what)


@pytest.mark.parametrize("seed", WALKED)
def test_a_walk_gives_the_derivatives_of_vjp_for_random_programs(seed, monkeypatch):
    rng = onp.random.RandomState(seed)
    function = RandomFunction(seed, 3 + seed % 5, 0 if seed % 3 else 1)
    args = random_arguments(seed)
    outs = [a for a in make_ir(function)(*args).out_avals if is_inexact(a.dtype)]
    cts = [random_array(rng, a.dtype, a.shape) for a in outs]
    directions = [random_array(rng, x.dtype, x.shape) for x in inexact(args)]
    assert cts and directions, "the seeds are of programs with floating-point numbers"
    values, first = cotangents(function, args, cts)

    def slope(*xs):
        given = iter(xs)
        moved = [next(given) if is_inexact(aval_of(x).dtype) else x for x in args]
        products = zip(directions, cotangents(function, moved, cts)[1], strict=True)
        return sum([np.sum(np.real(t.conj() * g)) for t, g in products])

    second = functx.vjp(slope, *inexact(args))[1](onp.ones(()))
    for name, call in (("operations", function), ("one node", functx.jit(function))):
        xs = [Variable(x, requires_grad=is_inexact(x.dtype)) for x in args]
        leaves = [x for x in xs if x.requires_grad]
        with copies_are_variables(monkeypatch):
            found = inexact(call(*xs))
        require_equal(f"values by {name}", found, values)
        pairs = [
            (x, ct.conj())
            for x, ct in zip(found, cts, strict=True)
            if getattr(x, "requires_grad", 0)
        ]
        if not pairs:
            require_equal(f"zeros by {name}", [None] * len(leaves), first)
            continue
        roots, given = zip(*pairs, strict=True)
        for graph in (False, True):
            gradients = grad(
                roots, leaves, given, retain_graph=True, create_graph=graph, allow_unused=True
            )
            conjugates = [None if g is None else value(g).conj() for g in gradients]
            require_equal(f"gradients by {name}, create_graph={graph}", conjugates, first)
        slopes = [
            np.sum(np.real(t * g))
            for t, g in zip(directions, gradients, strict=True)
            if g is not None and g.requires_grad
        ]
        slopes = [x for x in slopes if x.requires_grad]
        gradients = grad(slopes, leaves, allow_unused=True) if slopes else [None] * len(leaves)
        conjugates = [None if g is None else value(g).conj() for g in gradients]
        require_equal(f"second derivatives by {name}", conjugates, second)


def check_writes(program, flow):
    """Raises unless a program that writes to Variables has NumPy's values and the gradients of `grad`."""
    # Variables lie in row-major order.
    inputs = lambda: [onp.array(x, order="C") for x in program.inputs()]  # noqa: E731
    leaves = [Variable(x, requires_grad=x.dtype.kind == "f") for x in inputs()]
    chosen = tuple([i for i, x in enumerate(leaves) if x.requires_grad])
    with allow_mutation_on_saved_tensors():
        args = [x.copy() for x in leaves]
        results = program.function()(np, flow, *args)
        got = Outcome(map(value, results), map(value, args))
        compare(program, got, with_numpy(program, inputs()), "Variables")
        loss = loss_of(np, results)
        wanted = functx.grad(lambda *xs: loss_of(np, traced(program)(*xs)), chosen)(*inputs())
        found = [None] * len(chosen)
        if getattr(loss, "requires_grad", False):
            found = grad(loss, [leaves[i] for i in chosen], allow_unused=True)
    for i, x, y in zip(chosen, found, wanted, strict=True):
        x = onp.zeros_like(y) if x is None else value(x)
        onp.testing.assert_allclose(x, y, rtol=1e-7, atol=1e-8, err_msg=f"gradient {i}")


def problem_of(program, flow):
    """What differs, as a text; None if nothing does, or if the program is refused by design."""
    try:
        check_writes(program, flow)
    except (ViewWriteError, LostDerivativeError):
        return None
    except ArgumentError as error:
        return None if "shares memory" in error.problem else f"{type(error).__name__}: {error}"
    except (AssertionError, FunctxError, TypeError, ValueError) as error:
        if "JAX arrays are immutable" in str(error) or "got ShapedArray" in str(error):
            # The results of the interpreter are arrays of JAX.
            return None
        return f"{type(error).__name__}: {error}"
    return None


def failure_of(name, program, flow):
    """The message for a program that differs, with the shortest one that differs in the same way."""
    problem = problem_of(program, flow)
    if problem is None:
        return None
    kind = problem.split(":")[0]
    small = shrunk(program, lambda p: (problem_of(p, flow) or "").split(":")[0] == kind)
    return f"program {name}\n\n{small}\n{problem_of(small, flow)}"


@pytest.mark.parametrize(
    ("flow", "count"), [(Flow, 12), (TracedFlow, 6)], ids=["Python", "loops and branches"]
)
def test_random_writes_to_variables_agree_with_numpy(flow, count, request):
    for i in range(count + request.config.getoption("--in-place-programs")):
        program = generate(f"variables {i}", control=flow is TracedFlow)
        failure = failure_of(i, program, flow)
        if failure is not None:
            pytest.fail(failure, pytrace=False)
