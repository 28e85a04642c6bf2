"""`aot_function` of each program of a table, and of random programs, gives what the plain call gives."""

import random
from functools import partial

import jax
import numpy
import pytest

import functx
import functx.numpy as np
from functx import tree
from functx.aot import aot_function, default_partition, min_cut_rematerialization_partition
from functx.autograd import Variable, allow_mutation_on_saved_tensors, enable_grad, grad, no_grad
from functx.autograd.recorded_operations import program_of_operation
from functx.core.backend import backend
from functx.core.errors import (
    ArgumentError,
    LostDerivativeError,
    SavedValueError,
    ViewWriteError,
)
from functx.core.program import Literal
from functx.core.rewriting import cached_rewrite
from functx.core.tracer import aval_of
from functx.testing import reference
from tests.aot.program_table import TABLE
from tests.mutation.agreement import (
    Outcome,
    TracedFlow,
    compare,
    loss_of,
    traced,
    with_numpy,
)
from tests.mutation.programs import Flow, generate

WRITES_IN_GRAPH = [
    "write_through_a_detached_alias",
    "write_under_no_grad",
    "running_mean",
    "buffer_with_a_view_of_it",
    "nothing_needs_a_gradient",
]
WITHOUT_GRADIENTS = [
    *WRITES_IN_GRAPH,
    "output_is_a_view_of_an_input",
    "two_views_of_an_intermediate",
    "an_intermediate_and_its_view",
    "base_and_view_where_the_view_is_written",
    "parts_of_a_split",
]


def interpret(program, args):
    """The outputs of a program by the NumPy interpreter."""
    values = [x.value if isinstance(x, Literal) else x for x in args]
    outs = reference.interpret_in_numpy(program, *values)
    return [jax.numpy.asarray(x, a.dtype) for x, a in zip(outs, program.out_avals, strict=True)]


@pytest.fixture(autouse=True)
def interpreted(monkeypatch):
    """Operations on Variables are run by the NumPy interpreter, in place of compiling them."""
    evaluate_array = backend.evaluate

    def run(rewrite, program, args, *_, **__):
        return interpret(cached_rewrite(rewrite, program), args)

    def evaluate(primitive, args):
        if any(isinstance(x, numpy.ndarray) for x in args):
            return evaluate_array(primitive, args)
        outs = interpret(program_of_operation(primitive, tuple(map(aval_of, args))), args)
        return outs if primitive.multiple_results else outs[0]

    monkeypatch.setattr(backend, "run", run)
    monkeypatch.setattr(backend, "evaluate", evaluate)
    with numpy.errstate(all="ignore"):
        yield


def described(x):
    """The value, type and flags of a Variable; anything else as it is."""
    return (x.numpy(), x.aval_, x.requires_grad, x.is_leaf) if isinstance(x, Variable) else x


def gradients(arrays, leaves):
    """The gradients of a sum of all arrays at the leaves; the class of the error where a saved value was written to."""
    with enable_grad():
        roots = [np.real(x).sum() + np.imag(x).sum() * 2 for x in arrays if x.requires_grad]
    if not roots:
        return None
    try:
        return list(map(described, grad(roots, leaves, retain_graph=True, allow_unused=True)))
    except SavedValueError:
        return SavedValueError


def observed(fun, inputs):
    """All that can be seen of a call, and again after its results were written to."""
    args, leaves = inputs()
    leaves_of_args, outs = tree.leaves(args), tree.flatten(fun(*args))
    arrays = [x for x in (*leaves_of_args, *outs[0]) if isinstance(x, Variable)]
    seen = {
        "structure of the results": outs[1],
        "results": list(map(described, outs[0])),
        "inputs afterwards": list(map(described, leaves_of_args)),
        "arrays that are one object": [[x is y for y in arrays] for x in arrays],
        "arrays that share memory": [[x.memory is y.memory for y in arrays] for x in arrays],
        "gradients": gradients(arrays, leaves),
    }
    refused = []
    for x in outs[0]:
        if isinstance(x, Variable) and x.dtype.kind in "fc":
            try:
                x *= 2
                x += 1
            except functx.errors.FunctxError as error:
                refused.append(type(error))
    seen["refused writes"] = refused
    seen["values after writes to results"] = list(map(described, arrays))
    seen["gradients after writes to results"] = gradients(arrays, leaves)
    return seen


def is_equal(x, y):
    if isinstance(x, numpy.ndarray):
        same = isinstance(y, numpy.ndarray) and (x.shape, x.dtype) == (y.shape, y.dtype)
        return same and numpy.allclose(x, y, rtol=1e-4, atol=1e-5, equal_nan=True)
    if isinstance(x, (list, tuple)) and type(x) is type(y):
        return len(x) == len(y) and all(map(is_equal, x, y))
    return x == y


def require_equal(found, wanted):
    for what, x in wanted.items():
        if x is SavedValueError and found[what] is not None:
            # A compiled function may have saved less.
            continue
        assert is_equal(found[what], x), f"{what}:\n{found[what]}\nfor\n{x}"


@pytest.mark.parametrize("name", TABLE)
def test_a_compiled_program_does_what_the_plain_call_does(name):
    fun, inputs = TABLE[name]
    wanted = observed(fun, inputs)
    require_equal(observed(aot_function(fun), inputs), wanted)
    if name in WRITES_IN_GRAPH:
        kept = aot_function(fun, keep_inference_input_mutations=True)
        require_equal(observed(kept, inputs), wanted)


@pytest.mark.parametrize("name", WITHOUT_GRADIENTS)
def test_a_compiled_program_does_what_the_plain_call_does_where_no_gradient_is_recorded(name):
    fun, inputs = TABLE[name]
    with no_grad():
        wanted = observed(fun, inputs)
        for keeps in (False, True) if name in WRITES_IN_GRAPH else (False,):
            compiled = aot_function(fun, keep_inference_input_mutations=keeps)
            require_equal(observed(compiled, inputs), wanted)


def by_interpreter(program):
    """A compiler whose functions interpret the program."""

    def run(values):
        args = [*values]
        values.clear()
        return interpret(program, args)

    return run


@pytest.mark.parametrize("flow", [Flow, TracedFlow], ids=["plain", "loops and branches"])
def test_random_programs_with_writes_do_what_the_plain_call_does(flow, x64, request):
    compared = 0
    for i in range(12 + request.config.getoption("--in-place-programs")):
        program = generate(f"compiled {i}", control=flow is TracedFlow)
        function = partial(program.function(), np, flow)
        try:
            wanted = outcome(function, program, i)
        except (ViewWriteError, LostDerivativeError, ArgumentError, TypeError, AttributeError):
            # Variables refuse it, or the results of the interpreter, which are arrays of JAX.
            continue
        split = min_cut_rematerialization_partition if i % 2 else default_partition
        found = outcome(aot_function(function, by_interpreter, partition_fn=split), program, i)
        for x, y in zip(found, wanted, strict=True):
            numpy.testing.assert_allclose(x, y, rtol=1e-7, atol=1e-8, err_msg=f"{i}\n{program}")
        compared += 1
    assert compared >= 6


def outcome(function, program, seed):
    """The results of a program on Variables, the arguments afterwards, and the gradients.

    In two of three programs some arguments require no gradient, and some are the same array, or share
    memory.
    """
    chance = random.Random(seed)
    made = [numpy.array(x, order="C") for x in program.inputs()]
    leaves = [
        Variable(x, requires_grad=x.dtype.kind == "f" and (seed % 3 == 0 or chance.random() < 0.6))
        for x in made
    ]
    with allow_mutation_on_saved_tensors():
        args = [x.copy() for x in leaves]
        if seed % 3:
            share_memory(args, chance)
        results = function(*args)
        loss = loss_of(np, results)
        chosen = [x for x in leaves if x.requires_grad]
        slopes = []
        if chosen and getattr(loss, "requires_grad", False):
            slopes = grad(loss, chosen, allow_unused=True)
    arrays = [x.numpy() if isinstance(x, Variable) else x for x in (*results, *args)]
    return [*arrays, *[numpy.zeros(()) if x is None else x.numpy() for x in slopes]]


def share_memory(args, chance):
    """Replaces some arguments by ones before them, or by views of these, of the same type."""
    for j, x in enumerate(args):
        for before in args[:j]:
            fits = before.ndim == x.ndim and before.dtype == x.dtype and x.size
            if fits and all(n <= m for n, m in zip(x.shape, before.shape, strict=True)):
                start = [m - n for n, m in zip(x.shape, before.shape, strict=True)]
                args[j] = chance.choice([x, before[tuple([slice(n, None) for n in start])]])
                if before.shape == x.shape:
                    args[j] = chance.choice([x, before, before[::-1] if x.ndim else before])
                break


def test_random_programs_write_to_numpy_arguments_that_overlap_as_numpy_does(x64):
    for i in range(6):
        program = generate(f"overlapping {i}", overlapping=True)
        args = program.inputs()
        results = aot_function(traced(program), by_interpreter)(*args)
        compare(
            program, Outcome(results, args), with_numpy(program, program.inputs()), f"program {i}"
        )
