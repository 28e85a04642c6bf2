"""Backward rules of Functions in compiled walks: traced into the program, or called in each walk."""

import sys
import types

import numpy as onp
import pytest
from numpy.random import normal

from functx import compiled_autograd
from functx import numpy as np
from functx.autograd import Function, Variable, once_differentiable, saved_tensors_hooks
from functx.compiled_autograd import compile_stages, counters, enable
from functx.core.errors import FunctionGradientError

SCALE = 2.0
CALLS: list[float] = []


pytestmark = pytest.mark.usefixtures("nothing_captured")


@pytest.fixture(autouse=True)
def nothing_called():
    CALLS.clear()


class Square(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 2 * x * gradient


class WithAttributes(Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(x, None, x)
        ctx.length, ctx.factor, ctx.double = x.shape[0], factor, x * 2
        return factor * x * x

    @staticmethod
    def backward(ctx, gradient):
        _, _, x = ctx.saved_tensors
        return ctx.factor * (x + ctx.double / 2) * gradient + np.zeros(ctx.length), None


class Once(Square):
    backward = staticmethod(once_differentiable(Square.backward))


def note(x):
    CALLS.append(x)


class Notes(Square):
    @staticmethod
    def backward(ctx, gradient):
        note(1.0)
        return Square.backward(ctx, gradient)


class Prints(Square):
    @staticmethod
    def backward(ctx, gradient):
        show()
        (x,) = ctx.saved_tensors
        return 2 * x * gradient


def show():
    print("backward")


class ReadsValues(Square):
    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 2 * x * gradient if float(x[0]) > 0 else 0 * x


class Opaque(Square):
    is_opaque = True

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 2 * x * gradient


class ReadsGlobal(Square):
    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return SCALE * x * gradient


class Imports(Square):
    @staticmethod
    def backward(ctx, gradient):
        import functx_test_settings

        (x,) = ctx.saved_tensors
        return functx_test_settings.scale * x * gradient


def numbers(n, first=1.0):
    return Variable(onp.arange(n, dtype="float32") + onp.float32(first), requires_grad=True)


def program_of(call):
    """The program of a walk from `call(x).sum()`."""
    programs = []

    def compiler(program):
        programs.append(program)
        return program

    with enable(compiler):
        x = numbers(3)
        call(x).sum().backward()
        onp.testing.assert_allclose(x.grad, 2 * x.numpy())
    return programs[0]


CALLABLES = {
    "saved": Square.apply,
    "attributes": lambda x: WithAttributes.apply(x, 1.0),
    "once": Once.apply,
    "notes": Notes.apply,
    "values": ReadsValues.apply,
    "opaque": Opaque.apply,
}


@pytest.mark.parametrize("name", CALLABLES)
def test_two_captures_serve_all_sizes(name):
    with enable():
        for n in (10, 100, 10, 15, 20, 25):
            x = numbers(n)
            CALLABLES[name](x).sum().backward()
            onp.testing.assert_allclose(x.grad, 2 * x.numpy(), rtol=1e-6)
    assert counters.captures == 2
    assert len(CALLS) == (6 if name == "notes" else 0)


@pytest.mark.parametrize("name", ["saved", "attributes", "once"])
def test_a_rule_without_side_effects_is_part_of_the_program(name):
    assert not any(eqn.primitive.name == "call_backward" for eqn in program_of(CALLABLES[name]))


@pytest.mark.parametrize("name", ["notes", "values", "opaque"])
def test_other_rules_are_called_in_each_walk(name):
    assert any(eqn.primitive.name == "call_backward" for eqn in program_of(CALLABLES[name]))


def test_what_a_rule_does_besides_happens_once_in_each_walk(capsys):
    with enable():
        for i in range(4):
            Notes.apply(numbers(2)).sum().backward()
            Prints.apply(numbers(2)).sum().backward()
            assert len(CALLS) == i + 1
            assert capsys.readouterr().out == "backward\n"


def test_a_rule_sees_attributes_globals_and_modules_as_they_are(monkeypatch):
    settings = types.ModuleType("functx_test_settings")
    monkeypatch.setitem(sys.modules, "functx_test_settings", settings)
    with enable():
        for i in range(1, 6):
            x, y, z = numbers(2), numbers(2), numbers(2)
            monkeypatch.setattr(sys.modules[__name__], "SCALE", float(i))
            settings.scale = float(i)
            WithAttributes.apply(x, float(i)).sum().backward()
            ReadsGlobal.apply(y).sum().backward()
            Imports.apply(z).sum().backward()
            onp.testing.assert_allclose(x.grad, 2 * i * x.numpy())
            onp.testing.assert_allclose(y.grad, i * y.numpy())
            onp.testing.assert_allclose(z.grad, i * z.numpy())


def test_each_class_has_captures_of_its_own():
    def square(scale):
        class Scaled(Square):
            @staticmethod
            def backward(ctx, gradient):
                (x,) = ctx.saved_tensors
                return scale * x * gradient

        return Scaled

    with enable():
        for scale in (2.0, 3.0, 4.0):
            x = numbers(2)
            square(scale).apply(x).sum().backward()
            onp.testing.assert_allclose(x.grad, scale * x.numpy())
        assert counters.captures == 3
        first, second = square(2.0), square(2.0)
        counters.clear()
        for _ in range(3):
            for each in (first, second):
                each.apply(numbers(2)).sum().backward()
    assert counters.captures == 2


def test_saved_values_of_a_traced_rule_are_freed_and_checked():
    with enable():
        for _ in range(3):
            x = numbers(2)
            y = Square.apply(x)
            y.sum().backward()
            with pytest.raises(RuntimeError, match="freed"):
                y.sum().backward()
            a = numbers(2) * 1
            b = Square.apply(a)
            a += 1
            with pytest.raises(RuntimeError, match="written to"):
                b.sum().backward()


def test_an_error_of_a_rule_arrives_unchanged_and_the_next_walk_works():
    class Fails(Square):
        @staticmethod
        def backward(ctx, gradient):
            raise KeyError("mine")

    with enable():
        for _ in range(3):
            with pytest.raises(KeyError, match="mine"):
                Fails.apply(numbers(2)).sum().backward()
            x = numbers(2)
            Square.apply(x).sum().backward()
            onp.testing.assert_allclose(x.grad, 2 * x.numpy())


class SavesByFlag(Function):
    """Saves what a flag says, which its rule does not read; `wide` is the type of what it saves."""

    narrow = False

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x[:2] if SavesByFlag.narrow else x)
        return x.sum()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * x.sum() * np.ones(3)


class Pair(Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.pair = (Variable(scale), 2.0)
        return x * scale

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.pair[0], None


class WritesToAttribute(Function):
    @staticmethod
    def forward(ctx, x, buffer):
        ctx.buffer = buffer
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        ctx.buffer[...] = ctx.buffer + gradient
        return gradient, None


class Config:
    factor = 1.0


class ClassAttribute(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.config = Config
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.config.factor


class AsksForFlags(Square):
    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * (1.0 if x.requires_grad else 2.0)


class SavesTwice(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x, x)
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        x, y = ctx.saved_tensors
        return gradient * (1.0 if x is y else 2.0)


def gradients(call, count=4):
    """The gradients of `call(i, x)` in several walks, plain and compiled."""
    found = []
    for context in (compiled_autograd.disable, enable):
        with context():
            walks = []
            for i in range(count):
                x = numbers(3)
                call(i, x).sum().backward()
                walks.append(x.grad.tolist())
            found.append(walks)
    return found


def test_a_traced_rule_is_for_the_types_of_what_it_saved():
    def call(i, x):
        SavesByFlag.narrow = i % 2 == 1
        return SavesByFlag.apply(x)

    plain, compiled = gradients(call)
    assert compiled == plain


def test_parts_of_a_context_that_are_arrays_or_may_change_are_read_in_each_walk():
    plain, compiled = gradients(lambda i, x: Pair.apply(x, i + 1.0))
    assert compiled == plain

    def call(i, x):
        Config.factor = i + 1.0
        return ClassAttribute.apply(x)

    plain, compiled = gradients(call)
    assert compiled == plain


def test_a_rule_that_writes_does_so_in_each_walk():
    buffers = [Variable(onp.zeros(3, "float32")) for _ in range(2)]
    for context, buffer in zip((compiled_autograd.disable, enable), buffers, strict=True):
        with context():
            for _ in range(4):
                WritesToAttribute.apply(numbers(3), buffer).sum().backward()
    assert buffers[1].tolist() == buffers[0].tolist() == [4.0, 4.0, 4.0]


@pytest.mark.parametrize("function", [AsksForFlags, SavesTwice])
def test_a_rule_sees_flags_and_identity_of_what_it_saved(function):
    plain, compiled = gradients(lambda i, x: function.apply(x))
    assert compiled == plain


def test_saved_value_hooks_pack_what_a_function_saves_in_each_walk():
    packed = []

    def pack(x):
        packed.append(x)
        return x

    with enable():
        for i in range(1, 5):
            x = numbers(2)
            with saved_tensors_hooks(pack, lambda x: x):
                y = Square.apply(x)
            y.sum().backward()
            assert len(packed) == i
            onp.testing.assert_allclose(x.grad, 2 * x.numpy())


def test_a_rule_knows_that_it_runs_in_a_compiled_walk():
    class Asks(Square):
        @staticmethod
        def backward(ctx, gradient):
            return gradient * (3.0 if compiled_autograd.in_compiled_autograd_region() else 1.0)

    with enable():
        for _ in range(4):
            x = numbers(2)
            Asks.apply(x).sum().backward()
            assert x.grad.tolist() == [3.0, 3.0]


def test_numbers_that_a_rule_draws_are_new_in_each_walk():
    class Draws(Square):
        @staticmethod
        def backward(ctx, gradient):
            return gradient * float(normal())

    with enable():
        found = set()
        for _ in range(4):
            x = numbers(1)
            Draws.apply(x).sum().backward()
            found.add(float(x.grad[0]))
    assert len(found) == 4


@pytest.mark.parametrize("running", [enable, lambda: enable(compile_stages)])
def test_a_hook_may_walk_through_nodes_that_the_walk_has_still_to_visit(running):
    def walk():
        x = numbers(2)
        y = x * x
        z, inner = np.sin(y), y.sum()
        z.register_hook(lambda _: inner.backward(retain_graph=True))
        z.sum().backward()
        with pytest.raises(RuntimeError, match="freed"):
            y.sum().backward()
        return x.grad.tolist()

    with compiled_autograd.disable():
        plain = walk()
    with running():
        for _ in range(4):
            onp.testing.assert_allclose(walk(), plain, rtol=1e-6)


def test_what_an_opaque_rule_saved_is_an_operand_and_inputs_with_gradients_have_types():
    class Scale(Square):
        is_opaque = True

        @staticmethod
        def forward(ctx, x, k, y, n):
            ctx.save_for_backward(x, None, y, x)
            return x * k * y.sum()

        @staticmethod
        def backward(ctx, gradient):
            x, none, y, same = ctx.saved_tensors
            assert same.tolist() == x.tolist() and none is None
            CALLS.append(float(y.sum()))
            return gradient * y.sum(), None, np.full(2, (gradient * x).sum()), None

    programs = []

    def rounding(program):
        """Rounds what rules read."""

        def step(eqn, *operands):
            if eqn.primitive.name == "call_backward":
                gradient, *saved = operands
                operands = gradient, *map(np.round, saved)
            return eqn.primitive(*operands)

        programs.append(program)
        return compile_stages(program.rewrite(step))

    def walk(retain_graph=False):
        x = Variable(onp.full(3, 1.25, "float32"), requires_grad=True)
        y, n = Variable(onp.full(2, 2.25, "float32"), requires_grad=True), Variable([1, 2])
        z = Scale.apply(x, 1, y, n).sum()
        z.backward(retain_graph=retain_graph)
        return z, [x.grad.tolist(), y.grad.tolist()]

    _, plain = walk()
    with enable():
        assert [walk()[1] for _ in range(3)] == [plain] * 3
    assert plain == [[4.5] * 3, [3.75] * 2]
    with enable(rounding):
        z, found = walk(retain_graph=True)
        assert found == [[4.0] * 3, [3.0] * 2]
    z.backward()
    assert CALLS == [4.5] * 4 + [4.0, 4.5]
    (call,) = [eqn for eqn in programs[0] if eqn.primitive.name == "call_backward"]
    assert [str(v.aval) for v in call.inputs] == ["f32[3]", "f32[3]", "f32[2]", "f32[3]"]
    assert [str(aval) for aval in call.primitive.types] == ["f32[3]", "f32[2]"]


@pytest.mark.parametrize("compiler", [None, compile_stages])
@pytest.mark.parametrize(
    ("result", "message"),
    [
        (lambda g: (g, None, g[:2]), r"got f32\[2\] for input 2, expected f32\[3\]"),
        (lambda g: (g, None, g.sum()), r"got f32\[\] for input 2, expected f32\[3\]"),
        (lambda g: (g, None, g * 1j), r"got c64\[3\] for input 2, expected f32\[3\]"),
        (lambda g: (g, g, g), "got a gradient at position 2"),
        (lambda g: (g, None), "got 2, expected 3"),
    ],
)
def test_results_of_an_opaque_rule_that_differ_from_its_inputs_are_refused(
    result, message, compiler
):
    class Wrong(Function):
        is_opaque = True

        @staticmethod
        def forward(ctx, x, k, y):
            return x * y

        @staticmethod
        def backward(ctx, gradient):
            return result(gradient)

    with enable(compiler):
        for _ in range(3):
            x, y = numbers(3), numbers(3)
            with pytest.raises(FunctionGradientError, match="^Wrong: .*" + message):
                Wrong.apply(x, 2, y).sum().backward()
            assert x.grad is None and y.grad is None
    assert (counters.captures, counters.hits) == (1, 2)
