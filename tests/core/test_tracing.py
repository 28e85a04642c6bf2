import asyncio
import contextvars
import threading
from unittest.mock import Mock

import numpy as np
import pytest

import functx
from functx.core.config import memory_plan
from functx.core.errors import ArgumentError, EscapedTracerError, MissingRuleError
from functx.core.named_axes import (
    Axis,
    batched_axis,
    bind_named_axes,
    bound_axes,
    set_batched_axis,
)
from functx.core.program import Program
from functx.core.rewriting import apply, interpret
from functx.core.samples import f32
from functx.core.tracer import Tracer, aval_of, current_builder
from functx.core.tracing import trace
from functx.ops.arithmetic import add, mul, neg
from functx.ops.families import Unary
from functx.ops.reductions import reduce_sum
from functx.ops.shapes import full
from functx.ops.transcendental import cos, sin
from functx.passes.rematerialization import MIN_CUT_PLAN, use_memory_plan

from .programs import Halves, program_of

X = np.linspace(-1.0, 1.0, 3).astype("float32")
Y = np.linspace(0.5, 2.0, 3).astype("float32")


def names(program):
    return [eqn.primitive.name for eqn in program]


class TestTracing:
    def test_a_function_becomes_its_program(self):
        program, captured = trace(lambda x, y: [mul(sin(x), y)], [f32[3], f32[3]], name="f")
        assert isinstance(program, Program)
        assert (program.name, names(program), captured) == ("f", ["sin", "mul"], [])

    def test_outputs_may_be_inputs_numbers_and_arrays(self):
        program, captured = trace(lambda x: [x, 2.0, X], [f32[3]])
        assert len(program.outputs) == 3
        assert captured == [X] or captured[0] is X

    def test_outside_a_trace_operations_compute(self):
        np.testing.assert_allclose(sin(X), np.sin(X), rtol=1e-6)

    def test_no_trace_is_left_behind_by_an_error(self):
        def f(x):
            raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"):
            trace(f, [f32[3]])
        assert current_builder.get() is None

    def test_a_tracer_knows_its_type(self):
        def f(x):
            assert (x.shape, x.dtype, x.ndim, x.size, x.weak_type) == ((3,), "float32", 1, 3, False)
            assert aval_of(x) is f32[3]
            return [x]

        trace(f, [f32[3]])

    def test_traces_nest(self):
        def outer(x):
            inner, captured = trace(lambda y: [mul(y, y)], [f32[3]])
            assert captured == []
            return apply(None, inner, [sin(x)])

        assert names(program_of(outer, f32[3])) == ["sin", "mul"]

    def test_several_outputs(self):
        program = program_of(lambda x: Halves()(x), f32[3])
        assert len(program.outputs) == len(program.equations[0].outputs) == 2


class TestCaptures:
    def test_arrays_become_inputs_once_each(self):
        def f(x):
            return [add(mul(x, X), mul(X, Y))]

        program, captured = trace(f, [f32[3]])
        assert [id(x) for x in captured] == [id(X), id(Y)]
        assert program.in_avals == [f32[3]] * 3
        np.testing.assert_allclose(apply(None, program, [Y, *captured])[0], Y * X + X * Y)

    def test_numbers_become_literals(self):
        program, captured = trace(lambda x: [mul(x, 2.0), np.float32(3.0)], [f32[3]])
        assert captured == []
        assert repr(program.equations[0].inputs[1]) == "2.0:f32[]"
        assert repr(program.outputs[1]) == "3.0:f32[]"

    def test_values_of_an_outer_trace_become_inputs_of_the_inner(self):
        def outer(x):
            y = sin(x)
            inner, captured = trace(lambda z: [mul(z, y), y, x], [f32[3]])
            assert [type(c) for c in captured] == [Tracer, Tracer]
            assert captured[0] is y
            return apply(None, inner, [x, *captured])

        program = program_of(outer, f32[3])
        out, _, _ = apply(None, program, [X])
        np.testing.assert_allclose(out, np.sin(X) * X, rtol=1e-6)

    def test_what_does_not_depend_on_inputs_is_traced_too(self):
        assert names(program_of(lambda x: [add(x, full((3,), np.float32(1)))], f32[3])) == [
            "full",
            "add",
        ]

    def test_what_is_no_array_is_refused(self):
        with pytest.raises(ArgumentError, match="arguments must be arrays or numbers; got str"):
            program_of(lambda x: [sin("text")], f32[3])


class TestEscape:
    def test_a_value_used_after_its_trace_is_refused(self):
        saved = []

        def f(x):
            y = sin(x)
            saved.append(y)
            return [y]

        program_of(f, f32[3])
        with pytest.raises(EscapedTracerError) as caught:
            cos(saved[0])
        message = str(caught.value)
        line = f.__code__.co_firstlineno + 1
        assert "got f32[3] of trace(f), which has ended" in message
        assert (
            f"the value: made at test_tracing.py:{line} in {f.__qualname__.replace('.<locals>', '')}"
            in message
        )
        assert "cos(saved[0])" in message
        assert "Return the value from the function" in message

    def test_an_argument_used_after_its_trace_is_refused(self):
        saved = []
        program_of(lambda x: [saved.append(x) or x], f32[3])
        with pytest.raises(EscapedTracerError, match="which has ended") as caught:
            cos(saved[0])
        assert "the value: an argument of the function" in str(caught.value)

    def test_a_value_of_another_trace_is_refused(self):
        saved = []
        program_of(lambda x: [saved.append(sin(x)) or x], f32[3])
        with pytest.raises(EscapedTracerError, match="which has ended"):
            program_of(lambda x: [mul(x, saved[0])], f32[3])
        with pytest.raises(EscapedTracerError):
            program_of(lambda x: [saved[0]], f32[3])

    def test_a_value_of_an_inner_trace_is_refused_outside_it(self):
        def outer(x):
            saved = []
            trace(lambda y: [saved.append(sin(y)) or y], [f32[3]])
            return [add(x, saved[0])]

        with pytest.raises(EscapedTracerError, match="which has ended"):
            program_of(outer, f32[3])

    def test_a_value_in_another_thread_is_refused(self):
        def f(x):
            errors = []

            def work():
                try:
                    sin(x)
                except EscapedTracerError as error:
                    errors.append(str(error))

            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
            assert "in another thread or trace" in errors[0]
            return [x]

        program_of(f, f32[3])

    def test_a_value_after_an_error_in_its_trace_is_refused(self):
        saved = []

        def f(x):
            saved.append(sin(x))
            raise KeyError

        with pytest.raises(KeyError):
            program_of(f, f32[3])
        with pytest.raises(EscapedTracerError):
            cos(saved[0])


def chain(length):
    def f(x):
        for i in range(length):
            x = sin(x) if i % 3 else cos(x)
        return [x]

    return f


class TestConcurrency:
    def test_threads_do_not_mix_their_programs(self):
        lengths = [50 + n for n in range(8)]
        alone = [program_of(chain(n), f32[3]) for n in lengths]
        barrier = threading.Barrier(len(lengths))
        found = [None] * len(lengths)

        def work(i):
            barrier.wait()
            for _ in range(10):
                found[i] = program_of(chain(lengths[i]), f32[3])
                assert found[i] == alone[i]

        threads = [threading.Thread(target=work, args=(i,)) for i in range(len(lengths))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == alone

    def test_threads_do_not_mix_their_axes_and_options(self):
        barrier = threading.Barrier(2, timeout=30)
        found = {}

        def seen():
            return batched_axis(), bound_axes(), memory_plan()

        def work(name, plan):
            axis = Axis(name, 3)
            with set_batched_axis(axis), bind_named_axes([axis]), use_memory_plan(plan):
                barrier.wait()
                found[name] = seen() == (axis, (axis,), plan)
                barrier.wait()
            found[name] &= seen() == before

        before = seen()
        pairs = [("i", "off"), ("j", MIN_CUT_PLAN)]
        threads = [threading.Thread(target=work, args=pair) for pair in pairs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == {"i": True, "j": True} and seen() == before

    def test_a_thread_computes_while_another_traces(self):
        computed = []

        def f(x):
            thread = threading.Thread(target=lambda: computed.append(sin(X)))
            thread.start()
            thread.join()
            return [neg(x)]

        assert names(program_of(f, f32[3])) == ["neg"]
        np.testing.assert_allclose(computed[0], np.sin(X), rtol=1e-6)

    def test_tasks_do_not_mix_their_programs(self):
        async def work(length):
            found = []
            for _ in range(5):
                found.append(program_of(chain(length), f32[3]))
                await asyncio.sleep(0)
            return found

        async def main():
            return await asyncio.gather(*[work(10 + n) for n in range(5)])

        for n, found in enumerate(asyncio.run(main())):
            assert found == [program_of(chain(10 + n), f32[3])] * 5

    def test_what_goes_on_in_the_context_of_a_trace_that_ended_computes(self):
        contexts = []

        def f(x):
            contexts.append(contextvars.copy_context())
            return [sin(x)]

        program_of(f, f32[3])
        (context,) = contexts
        np.testing.assert_allclose(context.run(sin, X), np.sin(X), rtol=1e-6)
        total = program_of(lambda x: [reduce_sum(x)], f32[3])
        assert float(context.run(lambda: total(X)[0])) == pytest.approx(X.sum(), abs=1e-6)
        assert names(context.run(program_of, lambda x: [neg(x)], f32[3])) == ["neg"]


def test_a_program_is_interpreted_inside_a_trace_only():
    program = functx.make_ir(lambda x: x * 2.0)(1.0)
    with pytest.raises(ArgumentError, match=r"inside a trace.*`lambda` outside of one"):
        interpret(program, [1.0], lambda eqn, *args: [eqn.primitive(*args)], lambda c: c)


def test_wrappers_without_end_are_taken_as_they_are():
    class Everything:
        def __call__(self, x):
            return x * 2.0

        def __getattr__(self, name):
            if name in ("__wrapped__", "func", "__func__"):
                return Everything()
            raise AttributeError(name)

    for fun in (Everything(), Mock(side_effect=lambda x: x * 2.0)):
        for transform in (functx.jit, functx.grad, functx.checkpoint):
            assert float(transform(fun)(1.0)) == 2
        assert functx.vmap(fun)(np.ones(1)).tolist() == [2]


def test_a_unary_operation_without_a_derivative_is_named():
    class Underived(Unary):
        def lower(self, ctx, x):
            return x

    for call in (
        lambda: functx.grad(Underived())(1.0),
        lambda: functx.jvp(Underived(), (1.0,), (1.0,)),
    ):
        with pytest.raises(MissingRuleError, match=r"underived: .*must have a `derivative` rule"):
            call()


def test_views_of_the_same_elements_are_captured_once():
    table = np.arange(6.0)
    program = functx.make_ir(lambda x: x * table[2:] + table[2:] - table[:4])(np.ones(4))
    assert len(program.inputs) == 3, program
