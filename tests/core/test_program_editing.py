import numpy as np
import pytest

from functx.core.checking import check_program
from functx.core.errors import ArgumentError, ProgramError, TreeError, ValueRangeError
from functx.core.program import Equation, Program
from functx.core.samples import f32, i32
from functx.core.types import ShapedArray
from functx.ops.arithmetic import Add, Mul, add, mul, neg
from functx.ops.conversion import convert_element_type
from functx.ops.reductions import reduce_sum
from functx.ops.transcendental import Cos, Sin, Tanh, cos, sin, tanh
from functx.transforms.call_primitive import Call
from functx.transforms.grad import grad
from functx.transforms.make_ir import make_ir
from functx.transforms.vmap import vmap

from .programs import Announce, Halves, Probe, block_program, network_program, program_of

X = np.linspace(-1.0, 1.0, 3).astype("float32")
M = np.linspace(-1.0, 1.0, 9).reshape(3, 3).astype("float32")


def sines(x):
    y = sin(x)
    return [mul(y, cos(y))]


def sines_program():
    return program_of(sines, f32[3], names=["x"])


def primitives(program):
    return [eqn.primitive for eqn in program]


class TestCalling:
    def test_a_program_computes(self):
        (out,) = sines_program()(X)
        np.testing.assert_allclose(out, np.sin(X) * np.cos(np.sin(X)), rtol=1e-6)

    def test_inside_a_trace_a_program_is_inlined(self):
        inner = sines_program()
        outer = program_of(lambda x: inner(neg(x)), f32[3])
        assert [p.name for p in primitives(outer)] == ["neg", "sin", "cos", "mul"]

    def test_a_program_of_a_function_takes_and_gives_its_pytrees(self):
        def f(params, *, scale):
            return {"out": mul(params["w"], scale), "both": (params["b"], None)}

        program = make_ir(f)({"w": X, "b": M}, scale=np.float32(2.0))
        result = program({"w": 2 * X, "b": M}, scale=3.0)
        np.testing.assert_allclose(result["out"], 6 * X)
        np.testing.assert_allclose(result["both"][0], M)
        assert result["both"][1] is None

    def test_captured_arrays_are_passed_by_the_program(self):
        program = make_ir(lambda x: mul(x, X))(X)
        assert len(program.inputs) == 2
        np.testing.assert_allclose(program(2 * X), 2 * X * X)
        batched = vmap(program)(np.stack([X, X]))
        np.testing.assert_allclose(batched, np.stack([X * X] * 2))

    def test_transforms_take_programs(self):
        program = make_ir(lambda x: reduce_sum(mul(sin(x), X)))(X)
        np.testing.assert_allclose(grad(program)(X), np.cos(X) * X, rtol=1e-6)
        curvature = grad(grad(lambda s: program(mul(s, X))))(np.float32(1.0))
        np.testing.assert_allclose(curvature, -(np.sin(X) * X**3).sum(), rtol=1e-5, atol=1e-7)

    def test_a_program_has_the_name_of_its_function(self):
        assert sines_program().__name__ == "sines"

    def test_the_structure_of_the_arguments_must_be_that_of_the_program(self):
        program = make_ir(lambda x: neg(x["a"]))({"a": X})
        with pytest.raises(TreeError, match="arguments must have the structure"):
            program(X)

    def test_the_number_of_arguments_must_be_that_of_the_inputs(self):
        with pytest.raises(ArgumentError, match="sines: arguments must be 1; got 2"):
            sines_program()(X, X)

    def test_keywords_need_a_program_of_a_function(self):
        with pytest.raises(ArgumentError, match="takes positional arguments; got `x`"):
            sines_program()(x=X)

    @pytest.mark.parametrize(
        "wrong", [M, X.astype("int32"), 1.0, X[:2]], ids=["rank", "dtype", "number", "length"]
    )
    def test_arguments_must_have_the_types_of_the_inputs(self, wrong):
        with pytest.raises(ArgumentError, match="sines: argument `x` must be f32\\[3\\]; got"):
            sines_program()(wrong)

    def test_what_is_no_array_is_refused(self):
        with pytest.raises(ArgumentError, match="arguments must be arrays or numbers"):
            sines_program()("text")

    @pytest.mark.parametrize("number", [2, 2.0, True, np.float32(2.0)], ids=repr)
    def test_a_python_number_takes_the_dtype_of_the_input(self, number):
        program = program_of(lambda x: [mul(x, x)], f32[()])
        (out,) = program(number)
        assert out.dtype == np.float32
        assert out == number * number
        traced = program_of(lambda y: [add(y, program(number)[0])], f32[3])
        check_program(traced)

    def test_a_number_of_a_richer_kind_is_refused(self):
        program = program_of(lambda x: [mul(x, x)], i32[()])
        for number in (2.0, 1j):
            with pytest.raises(ArgumentError, match="argument 0 must be i32\\[\\]"):
                program(number)
        with pytest.raises(
            ValueRangeError, match="must fit the dtype of i32\\[\\]; got 1099511627776"
        ):
            program(2**40)

    def test_an_argument_may_be_weak_where_the_input_is_not_and_the_other_way_round(self):
        weak = ShapedArray((), np.dtype("float32"), True)
        strong = program_of(lambda x: [mul(sin(x), x)], f32[()])
        loose = program_of(lambda x: [mul(sin(x), x)], weak)
        assert program_of(strong, weak).out_avals == [weak]
        assert program_of(loose, f32[()]).out_avals == [f32[()]]
        check_program(program_of(strong, weak))


class TestReplacing:
    def test_an_equation_is_replaced_by_another(self):
        program = sines_program()
        old = program.equations[0]
        new = Equation.of(Tanh(), old.inputs)
        assert program.replace(old, new) == program_of(
            lambda x: [mul(y := tanh(x), cos(y))], f32[3]
        )
        assert primitives(program) == [Sin(), Cos(), Mul()]

    def test_an_equation_is_replaced_by_several(self):
        program = sines_program()
        old = program.equations[0]
        first = Equation.of(Mul(), [*old.inputs, np.float32(2.0)])
        second = Equation.of(Sin(), first.outputs)
        assert program.replace(old, first, second) == program_of(
            lambda x: [mul(y := sin(mul(x, 2.0)), cos(y))], f32[3]
        )

    def test_new_equations_may_define_the_old_variables(self):
        program = sines_program()
        old = program.equations[0]
        edited = program.replace(old, old.replace(primitive=Tanh()))
        assert edited.equations[0].outputs == old.outputs

    def test_an_equation_can_be_inserted_before_another(self):
        program = sines_program()
        old = program.equations[2]
        extra = Equation.of(Announce("now"), old.inputs[:1])
        assert primitives(program.replace(old, extra, old)) == [
            Sin(),
            Cos(),
            Announce("now"),
            Mul(),
        ]

    def test_a_replaced_output_of_the_program_is_the_new_one(self):
        program = sines_program()
        old = program.equations[2]
        edited = program.replace(old, Equation.of(Add(), old.inputs))
        assert edited.outputs == edited.equations[2].outputs

    def test_an_equation_that_nothing_needs_can_go(self):
        program = sines_program()
        extra = Equation.of(Sin(), program.inputs)
        last = program.equations[-1]
        longer = program.replace(last, extra, last)
        assert len(longer) == 4
        assert longer.replace(extra) == program

    def test_an_equation_that_something_needs_cannot_go(self):
        program = sines_program()
        with pytest.raises(ProgramError, match="must be defined before its use"):
            program.replace(program.equations[0])

    def test_the_new_outputs_must_have_the_old_types(self):
        program = sines_program()
        old = program.equations[0]
        new = Equation.of(Probe(1), [Equation.of(Sin(), old.inputs).outputs[0]])
        with pytest.raises(ProgramError, match="operand 0 of probe must be defined before its use"):
            program.replace(old, new)

    def test_the_equation_must_be_one_of_the_program(self):
        with pytest.raises(ProgramError, match="must be one of the program's own; got one of sin"):
            sines_program().replace(sines_program().equations[0])

    def test_the_pytrees_and_captured_values_stay(self):
        program = make_ir(lambda x: {"y": mul(sin(x), X)})(X)
        old = program.equations[0]
        edited = program.replace(old, Equation.of(Cos(), old.inputs))
        np.testing.assert_allclose(edited(X)["y"], np.cos(X) * X, rtol=1e-6)

    def test_operands_of_a_new_equation_must_be_variables_or_numbers(self):
        with pytest.raises(
            ArgumentError, match="must be variables, literals or numbers; got ndarray"
        ):
            Equation.of(Sin(), [X])

    def test_a_new_equation_has_the_outputs_that_its_primitive_gives(self):
        x = sines_program().inputs[0]
        assert [v.aval for v in Equation.of(Halves(), [x]).outputs] == [f32[3], f32[3]]


class TestRewriting:
    def test_a_rule_has_its_say_on_every_equation(self):
        def rule(eqn, *args):
            return tanh(*args) if eqn.primitive is Sin() else NotImplemented

        expected = program_of(lambda x: [mul(y := tanh(x), cos(y))], f32[3])
        assert sines_program().rewrite(rule) == expected

    def test_a_rule_that_says_nothing_changes_nothing(self):
        program = network_program()
        assert program.rewrite(lambda eqn, *args: NotImplemented) == program

    def test_a_rule_may_give_an_operand(self):
        edited = sines_program().rewrite(
            lambda eqn, *args: args[0] if eqn.primitive.name == "cos" else NotImplemented
        )
        assert primitives(edited) == [Sin(), Mul()]

    def test_a_rule_gives_one_value_an_output(self):
        def f(x):
            left, right = Halves()(x)
            return [add(left, right)]

        def rule(eqn, *args):
            return (sin(*args), cos(*args)) if eqn.primitive is Halves() else NotImplemented

        program = program_of(f, f32[3])
        assert primitives(program.rewrite(rule)) == [Sin(), Cos(), Add()]
        with pytest.raises(ProgramError, match="must return 2 outputs for halves; got 1"):
            program.rewrite(lambda eqn, *args: args)

    def test_a_rule_may_give_a_number_for_a_scalar(self):
        program = program_of(lambda x: [mul(sin(x), x)], f32[()])
        edited = program.rewrite(lambda eqn, *args: 2 if eqn.primitive is Sin() else NotImplemented)
        assert str(edited).splitlines()[1].split("   ")[0] == "  b: f32[] = mul 2.0:f32 a"

    @pytest.mark.parametrize(
        "wrong",
        [lambda x: reduce_sum(x), lambda x: convert_element_type(x, "bfloat16"), lambda x: 2.0],
    )
    def test_a_rule_must_keep_shape_and_dtype(self, wrong):
        with pytest.raises(
            ProgramError, match="the rule must return f32\\[3\\] for sin; got"
        ) as caught:
            sines_program().rewrite(
                lambda eqn, *args: wrong(*args) if eqn.primitive is Sin() else NotImplemented
            )
        assert "test_program_editing.py" in str(caught.value)
        assert "y = sin(x)" in str(caught.value)

    def test_arrays_that_a_rule_brings_are_captured(self):
        program = make_ir(lambda x: mul(sin(x), X))(X)
        edited = program.rewrite(
            lambda eqn, *args: add(sin(*args), M[0]) if eqn.primitive is Sin() else NotImplemented
        )
        assert len(edited.captured) == 2
        np.testing.assert_allclose(edited(X), (np.sin(X) + M[0]) * X, rtol=1e-6)

    def test_a_rule_reaches_into_programs_within_equations(self):
        def rule(eqn, *args):
            return sin(*args) if eqn.primitive is Tanh() else NotImplemented

        edited = network_program().rewrite(rule)
        assert "tanh" not in str(edited)
        assert str(edited).count("program block(") == 1
        (out,) = edited(M, M)

        def block(x):
            return np.sin(x @ M) + x

        np.testing.assert_allclose(out, block(block(block(block(M)))), rtol=1e-4)

    def test_arrays_cannot_be_brought_into_programs_within_equations(self):
        with pytest.raises(ProgramError, match="must not bring arrays into a program") as caught:
            network_program().rewrite(
                lambda eqn, *args: add(*args[:1], M) if eqn.primitive is Tanh() else NotImplemented
            )
        assert caught.value.fix

    def test_rewritten_equations_keep_their_lines_and_names(self):
        edited = sines_program().rewrite(
            lambda eqn, *args: sin(cos(*args)) if eqn.primitive is Sin() else NotImplemented
        )
        assert [line.split(":")[0].strip() for line in str(edited).splitlines()[1:4]] == [
            "a",
            "y",
            "b",
        ]
        assert {eqn.source for eqn in edited.equations[:2]} == {sines_program().equations[0].source}


class TestSubprograms:
    def test_a_program_walks_through_the_programs_within(self):
        assert [each.name for each in network_program().walk()] == ["network", "block", "twice"]

    def test_each_program_within_is_mapped_once(self):
        seen = []

        def change(program):
            seen.append(program.name)
            return program_of(lambda x, w: [mul(x, w)], *program.in_avals)

        edited = network_program().map_subprograms(change)
        assert seen == ["block", "twice"]
        (out,) = edited(M, M)
        np.testing.assert_allclose(out, M**4, rtol=1e-5)

    def test_programs_in_tuples_are_mapped(self):
        program = program_of(lambda x: [Probe((block_program(), 1))(x)], f32[3])
        edited = program.map_subprograms(lambda _: sines_program())
        assert edited.equations[0].primitive == Probe((sines_program(), 1))

    def test_a_mapped_program_must_keep_the_types_of_its_outputs(self):
        with pytest.raises(
            ProgramError, match="output 0 of call must be f32\\[\\]; got f32\\[3,3\\]"
        ):
            network_program().map_subprograms(
                lambda program: program_of(lambda x, w: [reduce_sum(x)], *program.in_avals)
            )

    def test_calls_are_opened_up(self):
        opened = network_program().inline()
        assert {p.name for p in primitives(opened)} == {"dot_general", "tanh", "add"}
        assert len(opened) == 12
        np.testing.assert_allclose(opened(M, M)[0], network_program()(M, M)[0], rtol=1e-6)

    def test_opened_up_equations_keep_their_lines_and_names(self):
        text = str(network_program().inline())
        assert "y_3: f32[3,3] = tanh" in text
        assert "in block" in text

    def test_other_primitives_with_a_program_are_opened_up_by_name(self):
        class Wrapped(Call):
            pass

        program = program_of(
            lambda x: Call(program_of(lambda y: Wrapped(sines_program())(y), f32[3]))(x), f32[3]
        )
        assert primitives(program.inline("wrapped"))[0].name == "call"
        assert "wrapped" not in str(program.inline("wrapped"))
        assert [p.name for p in primitives(program.inline())] == ["wrapped"]


def test_a_program_is_iterated_over_by_equation():
    program = sines_program()
    assert list(program) == program.equations
    assert len(program) == 3
    assert isinstance(program, Program)
