"""The logs of captured walks: the programs, and why a walk was captured."""

import gc
import logging
import weakref

import numpy as onp
import pytest

import functx.numpy as np
from functx import compiled_autograd
from functx.autograd import Variable
from functx.autograd.compiled import compilers
from functx.compiled_autograd import compile_stages, counters, disable, enable
from functx.core.caches import Cache
from functx.core.errors import RecompilationWarning
from functx.lowering import recompilation

PROGRAMS, VERBOSE = "functx.compiled_autograd", "functx.compiled_autograd.verbose"


pytestmark = pytest.mark.usefixtures("nothing_captured")


@pytest.fixture(autouse=True)
def nothing_repeated():
    recompilation._call_sites.clear()


def leaf(*shape):
    return Variable(onp.ones(shape, "float32"), requires_grad=True)


def walk_net(size=2, grad=False, function=np.tanh, hook=False):
    w = leaf(4, 5)
    if grad:
        w.grad = leaf(4, 5).detach()
    h = function(onp.ones((size, 4), "float32") @ w)
    if hook:
        h.register_hook(lambda g: None)
    h.sum().backward()


@pytest.fixture
def lines(caplog):
    """Runs a function with a logger on, and returns its lines."""

    def run(function, name=VERBOSE):
        caplog.clear()
        with caplog.at_level(logging.DEBUG, name):
            function()
        return [record.getMessage() for record in caplog.records if record.name == name]

    return run


def test_each_miss_says_which_node_is_new_or_which_size_changed(lines):
    def walks():
        with enable():
            walk_net()
            walk_net()
            walk_net(size=3)
            walk_net(size=7)
            walk_net(grad=True)
            walk_net(function=np.sin)
            walk_net(hook=True)

    assert lines(walks) == [
        "captured: root (0) is new here; the key has 16 entries, sizes tried before: []",
        "captured: size 0 of node reduce_sum (1) changed from 2 to 3, and is dynamic now",
        "captured: size 0 of node tanh (2) changed from 2 to 3, and is dynamic now",
        "captured: size 2 of node tanh (2) changed from 2 to 3, and is dynamic now",
        "captured: size 0 of node dot_general (3) changed from 2 to 3, and is dynamic now",
        "captured: size 4 of node dot_general (3) changed from 2 to 3, and is dynamic now",
        "captured: node AccumulateGrad (4) is new here; the key has 16 entries, sizes tried "
        "before: []",
        "captured: node sin (2) is new here; the key has 16 entries, sizes tried before: []",
        "captured: node tanh (2) is new here; the key has 17 entries, sizes tried before: []",
    ]


def test_a_miss_names_the_node_whose_saved_values_coincide_or_the_root(lines):
    def walk(same=False, gradient=None):
        x, c, d = leaf(3), leaf(3).detach(), leaf(3).detach()
        (x * c * (c if same else d)).sum().backward(gradient)

    def walks():
        with enable():
            walk()
            walk(gradient=Variable(1.0))
            walk(same=True)

    _, root, same = lines(walks)
    assert "root (0) is new here" in root
    assert "node mul (3) is new here" in same


def walk_layers(count, hook=False):
    x = leaf(3)
    for _ in range(count):
        x = np.tanh(x)
        if hook:
            x.register_hook(lambda g: None)
    x.sum().backward()


@pytest.mark.filterwarnings("always::functx.core.errors.RecompilationWarning")
def test_a_line_that_captures_again_and_again_is_warned_of_once_with_what_differs():
    with enable(), pytest.warns(RecompilationWarning) as found:
        for count in range(1, 12):
            walk_layers(count)
    (warning,) = found
    text = str(warning.message)
    assert "one backward() should capture a few walks at most" in text and "got 6 times" in text
    assert "differing: node tanh (7), AccumulateGrad before" in text
    assert "x.sum().backward()" in text and "compiled_autograd.disable()" in text
    assert warning.filename == __file__


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        (
            lambda x, y, i: [y.register_hook(lambda g: None) for _ in range(i)],
            "node tanh (2), by its",
        ),
        (lambda x, y, i: compiled_autograd.reset(), "what was captured before is forgotten"),
        (lambda x, y, i: y.backward(np.ones(3), inputs=[x], retain_graph=True), None),
    ],
)
@pytest.mark.filterwarnings("always::functx.core.errors.RecompilationWarning")
def test_the_warning_says_what_differs(change, difference, recwarn):
    for i in range(9):
        x = leaf(3)
        y = np.tanh(x)
        change(x, y, i)
        with enable():
            y.sum().backward()
    messages = [str(warning.message) for warning in recwarn]
    assert not messages if difference is None else difference in messages[0]


@pytest.mark.filterwarnings("error::functx.core.errors.RecompilationWarning")
def test_few_captures_or_many_sizes_are_not_warned_of():
    def walks():
        for size in range(1, 12):
            walk_net(size)
        for size in range(1, 4):
            walk_layers(size, hook=True)

    with enable():
        walks()
    with disable():
        for count in range(1, 12):
            walk_layers(count)


def test_many_structures_in_turn_keep_few(monkeypatch):
    tables = compilers.WalkTables()
    tables.walks, tables.forms = Cache("", 8), Cache("", 8)
    monkeypatch.setattr(compilers, "_default_tables", tables)
    with enable():
        for _ in range(2):
            for count in range(1, 30):
                walk_layers(count)
    assert counters.captures == 58 and counters.hits == 0
    for cache in (tables.walks, tables.forms):
        assert len(cache.young_entries) + len(cache.old_entries) <= 16


def test_each_captured_program_is_logged_once(lines):
    programs = []

    def walks():
        with enable(lambda program: programs.append(program) or compile_stages(program)):
            for size in (2, 2, 3, 4):
                walk_net(size)

    assert lines(walks, PROGRAMS) == [str(program) for program in programs[:2]]


def test_levels_are_those_of_the_beginning_of_the_context(lines):
    context = enable()
    with context:
        assert lines(lambda: walk_net(function=np.exp)) == []
        assert lines(lambda: walk_net(function=np.cos), PROGRAMS) == []


def test_nothing_is_logged_that_was_not_asked_for(caplog):
    with enable():
        walk_net()
        walk_net(size=3)
    assert not caplog.records


def test_a_compiler_function_and_its_programs_go_together():
    class Compiler:
        __hash__ = None

        def __call__(self, program):
            return program

        def compile(self, program):
            return program

    alive = []
    for _ in range(3):
        compiler = Compiler()
        alive.append(weakref.ref(compiler))
        for function in (compiler, compiler.compile, compiler.compile):
            with enable(function):
                walk_net()
                walk_net()
        assert counters.captures == 2 and counters.hits == 4
        counters.clear()
    del compiler, function
    gc.collect()
    assert [reference() for reference in alive] == [None] * 3
