"""Captured programs: what they print, their groups, and functions that compile them."""

import re
import weakref
from collections import Counter

import numpy as onp
import pytest

import functx
import functx.numpy as np
from functx import compiled_autograd
from functx.autograd import Function, Variable, grad, queue_callback
from functx.compiled_autograd import CapturedProgram, compile_stages, enable
from functx.core.errors import CapturedWalkError, WalkResultError
from functx.core.program import Program
from functx.core.rewriting import apply

X = onp.array([0.5, -1.0, 2.0], "float32")


pytestmark = pytest.mark.usefixtures("nothing_captured")


def leaf(value=X):
    return Variable(value, requires_grad=True)


class Compiler:
    """A compiler function that keeps the programs and the lists of each call."""

    def __init__(self):
        self.programs, self.lengths, self.after, self.lists = [], [], [], []

    def __call__(self, program):
        self.programs.append(program)
        run = compile_stages(program)

        def call(*lists):
            self.lengths.append([*map(len, lists)])
            self.lists.append([list(x) for x in lists[1:]])
            found = run(*lists)
            self.after.append(len(lists[0]))
            return found

        return call

    @property
    def program(self):
        (program,) = self.programs
        return program


def captured(walk, **options):
    """The program of the only walk that is captured."""
    compiler = Compiler()
    with enable(compiler, **options):
        walk()
    return compiler.program


def names_of(program):
    return [eqn.primitive.name for eqn in program.equations]


def small_net(hook=lambda g: g * 2):
    w1, w2 = leaf(onp.ones((3, 4), "float32")), leaf(onp.ones(4, "float32"))
    h = np.tanh(X @ w1)
    h.register_hook(hook)
    (h @ w2).backward()
    return w1, w2


def test_the_program_of_a_small_net_prints_as_before(golden):
    golden("captured_walk", re.sub(r"\.py:\d+", ".py", str(captured(small_net))))


def test_equations_have_the_rule_and_the_call_that_they_come_from():
    program = captured(small_net)
    origins = [str(program.origin(eqn)) for eqn in program.equations if eqn.outputs]
    assert [*dict.fromkeys(origins)] == ["dot_general (1)", "tanh (3)", "dot_general (4)"]
    assert "# AccumulateGrad (2)" in str(program)
    assert program.origin(program.equations[-1]) is None


def test_groups_say_what_the_lists_hold():
    compiler = Compiler()
    with enable(compiler):
        small_net()
        w1, w2 = small_net(lambda g: g * 3)
    onp.testing.assert_allclose(
        w1.grad, onp.outer(X, [3 * (1 - onp.tanh(1.5) ** 2)] * 4), rtol=1e-5
    )
    groups = compiler.program.groups
    assert all(name.startswith(("saved", "root")) for name in groups.inputs)
    assert groups.sizes == () and groups.packed == ()
    assert groups.hooks[-1] == "callbacks"
    assert [x for x in groups.hooks if "hooks" in x] == ["value hooks of tanh (3)"]
    lengths = [len(x) for x in groups]
    assert compiler.lengths == [lengths, lengths] and compiler.after == [0, 0]
    assert list(compiler.program.in_names()) == [*groups.inputs, *groups.scalars]


def test_one_array_is_one_input():
    def walk():
        x = leaf()
        (x * x * x).sum().backward()

    program = captured(walk)
    assert len(program.groups.inputs) == 2


def test_numbers_are_scalars_and_dynamic_sizes_are_listed():
    def walk(size, factor):
        x = leaf(onp.ones(size, "float32"))
        (x * factor).sum().backward()

    compiler = Compiler()
    with enable(compiler):
        walk(3, 2.0)
        walk(3, 5.0)
        walk(4, 7.0)
    static, dynamic = compiler.programs
    assert static.groups.sizes == () and static.groups.scalars == ("scalar0", "scalar1")
    assert set(dynamic.groups.sizes) == {4}
    assert [lists[1] for lists in compiler.lists] == [[1.0, 2.0], [1.0, 5.0], [1.0, 7.0]]
    assert captured(lambda: walk(6, 1.0), dynamic=True).groups.sizes.count(6) > 0


def test_a_value_that_is_used_three_times_has_two_sums():
    def walk():
        y = np.sin(leaf())
        (y * 2 + y * 3 + np.exp(y)).sum().backward()

    assert names_of(captured(walk)).count("add") == 2


def test_gradients_of_the_right_type_are_not_converted():
    class Square(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, g):
            return 2 * g * ctx.saved_tensors[0]

    for dtype in ("float32", "float16"):
        x = leaf(X.astype(dtype))
        program = captured(lambda x=x: Square.apply(x).backward(x))
        assert "convert_element_type" not in names_of(program)


def test_accumulations_come_after_the_gradient_that_they_add_and_before_the_callbacks():
    def walk():
        xs = [leaf(X * k) for k in range(1, 4)]
        xs[1].grad = Variable(X)
        (np.sin(xs[0]) * np.sin(xs[1]) * np.sin(xs[2])).sum().backward()

    program = captured(walk)
    equations = program.equations
    adds = [i for i, name in enumerate(names_of(program)) if name == "accumulate_grad"]
    made = {v: i for i, eqn in enumerate(equations) for v in eqn.outputs}
    assert len(adds) == 3
    for i in adds:
        assert made[equations[i].inputs[-1]] < i
    assert sorted(len(equations[i].inputs) for i in adds) == [1, 1, 2]
    assert names_of(program)[-1] == "run_callbacks"


def test_wanted_gradients_are_outputs_and_nothing_is_added():
    def walk():
        x, y = leaf(), leaf()
        grad((np.sin(x) * np.exp(y)).sum(), [y, x])

    program = captured(walk)
    assert len(program.outputs) == 2 and "accumulate_grad" not in names_of(program)


def test_values_of_calls_of_jitted_functions_have_their_name_and_a_number():
    @functx.jit
    def layer(w, x):
        return np.tanh(w * x)

    @functx.jit
    def scale(x):
        return x * x

    def walk():
        w = leaf()
        scale(layer(w, layer(w, X))).sum().backward()

    program = captured(walk)
    names = re.findall(r"(\w+): f32\[3\] +=|, (\w+): f32\[3\] =", str(program))
    assert {"scale0", "layer1", "layer2"} <= {name.split("_")[0] for pair in names for name in pair}


def test_callbacks_run_after_the_walk_also_for_a_compiler_that_returns_the_program():
    log = []
    with enable(lambda program: program):
        for _ in range(2):
            leaves = small_net(lambda g: queue_callback(lambda: log.append("called")))
            assert all(x.grad is not None for x in leaves)
    assert log == ["called"] * 2


def test_the_program_is_called_as_its_compiled_form_is():
    with enable(lambda program: program):
        for _ in range(2):
            x = leaf()
            (found,) = grad(np.sin(x).sum(), [x])
            onp.testing.assert_allclose(found, onp.cos(X), rtol=1e-6)


def test_saved_values_are_freed_before_the_walk_ends():
    log = []

    def walk():
        ws = [leaf(onp.eye(3, dtype="float32")) for _ in range(4)]
        h, made = Variable(X), []
        for w in ws:
            h = np.tanh(h @ w)
            made.append(weakref.ref(h._recorded))
        out = h.sum()
        del h
        out.numpy()

        def look(g):
            float(g[0, 0])
            log.append([reference() is None for reference in made])

        for w in (ws[1], ws[0]):
            w.register_hook(look)
        out.backward()

    for context in (compiled_autograd.disable, enable, enable, lambda: enable(compile_stages)):
        with context():
            walk()
        assert log == [[False, True, True, True], [True] * 4]
        log.clear()


def test_arrays_that_others_hold_and_that_are_passed_twice_keep_their_values():
    x = leaf()
    for _ in range(4):
        with enable():
            y = np.exp(x)
            z = y * y
            x.grad = None
            z.backward(y)
            onp.testing.assert_allclose(y, onp.exp(X), rtol=1e-6)
            onp.testing.assert_allclose(x.grad, 2 * onp.exp(X) ** 3, rtol=1e-5)
            onp.testing.assert_array_equal(x, X)


def test_gradients_can_be_changed_by_a_rewrite_of_accumulations():
    def clipped(program):
        def step(eqn, *operands):
            if eqn.primitive.name == "accumulate_grad":
                operands = (*operands[:-1], np.clip(operands[-1], -1, 1))
            return eqn.primitive(*operands)

        return compile_stages(program.rewrite(step))

    with enable(clipped):
        for _ in range(2):
            x = leaf()
            (x * x).sum().backward()
            assert x.grad.tolist() == [1, -1, 1]
        x.grad = Variable(X)
        (x * x).sum().backward()
        assert x.grad.tolist() == [1.5, -2, 3]


def test_equations_can_be_counted_by_rule():
    counts = Counter()

    def counting(program):
        counts.update([o.name for eqn in program.equations if (o := program.origin(eqn))])
        return compile_stages(program)

    with enable(counting):
        small_net()
    assert counts["dot_general"] >= 2 and counts["tanh"] >= 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda outs: outs[:1], "a list of 2 gradients; got 1"),
        (lambda outs: None, "a list of 2 gradients; got"),
        (lambda outs: [outs[0], outs[1][:2]], r"got f32\[2\] as number 1, expected f32\[3\]"),
        (lambda outs: [outs[0].astype("int32"), outs[1]], r"got i32\[3\] as number 0"),
    ],
    ids=["number", "none", "shape", "dtype"],
)
def test_results_of_other_number_shape_or_dtype_are_named(change, message):
    def compiler(program):
        run = compile_stages(program)
        return lambda *lists: change(run(*lists))

    with enable(compiler):
        x, y = leaf(), leaf()
        with pytest.raises(WalkResultError, match=message):
            grad((np.sin(x) * y).sum(), [x, y])
        assert not compiled_autograd.in_compiled_autograd_region()


@pytest.mark.parametrize(
    "change",
    [
        lambda inputs, *others: (inputs[:-1], *others),
        lambda inputs, sizes, scalars, *others: (inputs, sizes, [*scalars, 1.0], *others),
    ],
    ids=["arrays", "numbers"],
)
def test_lists_of_other_lengths_are_refused(change):
    def compiler(program):
        assert isinstance(program, CapturedProgram)
        return lambda *lists: program(*change(*lists))

    with enable(compiler), pytest.raises(CapturedWalkError, match=r"as in program\.groups"):
        small_net()


def test_a_program_with_calls_of_python_is_not_compiled_as_a_whole():
    def compiler(program):
        return lambda inputs, sizes, scalars, *others: apply(None, program, [*inputs, *scalars])

    x = leaf()
    with enable(compiler), pytest.raises(CapturedWalkError, match="must be compiled in stages"):
        (x * x).backward(x)
    assert not compiled_autograd.in_compiled_autograd_region()


def test_a_hook_that_gives_none_now_and_then_is_refused_with_a_compiler_function():
    with enable(compile_stages):
        for drops in (False, True):
            x = leaf()
            y = x * 2
            y.grad_fn.register_prehook(lambda gs, drops=drops: (None,) if drops else None)
            if drops:
                with pytest.raises(CapturedWalkError, match=r"prehooks of mul \(2\)"):
                    y.sum().backward()
            else:
                y.sum().backward()
                assert x.grad.tolist() == [2] * 3


def test_a_compiler_function_may_drop_calls_and_names():
    def without_callbacks(program):
        equations = [eqn for eqn in program.equations if eqn.primitive.name != "run_callbacks"]
        return compile_stages(Program("changed", program.inputs, equations, program.outputs))

    with enable(without_callbacks):
        for _ in range(2):
            x = leaf()
            (np.sin(x) * 2.0).sum().backward()
            onp.testing.assert_allclose(x.grad, 2 * onp.cos(X), rtol=1e-6)


def test_entries_of_the_list_of_hooks_return_as_many_arrays_as_they_should():
    def dropping(program):
        run = compile_stages(program)

        def call(inputs, sizes, scalars, hooks, packed):
            return run(inputs, sizes, scalars, [lambda *arrays: [] for _ in hooks], packed)

        return call

    x = leaf()
    y = x * 2
    y.register_hook(lambda g: g)
    with enable(dropping), pytest.raises(CapturedWalkError, match="got 0 of number 0, expected 1"):
        y.sum().backward()
