from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from functx.core.dead_code import dce_equations
from functx.core.primitive import Primitive
from functx.core.program import Equation, Program, Var, scalar_literal, subprograms
from functx.core.samples import f32, f64, i32
from functx.core.types import ShapedArray
from functx.ops.arithmetic import add, mul, neg, sub
from functx.ops.reductions import ReduceSum, reduce_sum
from functx.ops.transcendental import Sin, cos, sin
from functx.transforms.call_primitive import Call

from .programs import Announce, Halves, Probe, loss_program, program_of

Scale = int | float | Program
F32, I32 = np.dtype("float32"), np.dtype("int32")


def literal(value, dtype=F32, weak=False):
    return scalar_literal(value, dtype, weak, repr(value))


class TestEquality:
    def test_programs_that_compute_the_same_in_the_same_way_are_equal(self):
        def one(x, y):
            left = sin(x)
            return [mul(left, y)]

        def other(a, b):
            return [mul(sin(a), b)]

        first = program_of(one, f32[3], f32[3], names=["x", "y"])
        second = program_of(other, f32[3], f32[3], name="other name")
        assert first == second
        assert hash(first) == hash(second)
        assert first.key == second.key
        assert {first: 1}[second] == 1

    def test_values_and_structures_of_a_call_do_not_count(self):
        first, second = loss_program(), loss_program()
        second.captured = [1.0]
        second.trees = (None, None)
        assert first == second

    @pytest.mark.parametrize(
        "other",
        [
            program_of(lambda x, y: [mul(sin(y), x)], f32[3], f32[3]),
            program_of(lambda x, y: [mul(y, sin(x))], f32[3], f32[3]),
            program_of(lambda x, y: [mul(cos(x), y)], f32[3], f32[3]),
            program_of(lambda x, y: [mul(sin(x), y)], f32[4], f32[4]),
            program_of(lambda x, y: [mul(sin(x), y)], f64[3], f64[3]),
            program_of(lambda x, y, z: [mul(sin(x), y)], f32[3], f32[3], f32[3]),
            program_of(lambda x, y: [mul(sin(x), y)] * 2, f32[3], f32[3]),
            program_of(lambda x, y: [sin(x)], f32[3], f32[3]),
        ],
        ids=[
            "operands",
            "order",
            "primitive",
            "shape",
            "dtype",
            "unused input",
            "outputs",
            "shorter",
        ],
    )
    def test_programs_that_differ_are_unequal(self, other):
        assert program_of(lambda x, y: [mul(sin(x), y)], f32[3], f32[3]) != other

    def test_a_program_is_unequal_to_anything_else(self):
        assert loss_program() != "loss"

    def test_parameters_count(self):
        one = program_of(lambda x: [reduce_sum(x, (0,))], f32[3, 3])
        assert one != program_of(lambda x: [reduce_sum(x, (1,))], f32[3, 3])

    def test_weak_inputs_are_unequal_to_others(self):
        weak = ShapedArray((), F32, True)
        assert program_of(lambda x: [x], weak) != program_of(lambda x: [x], f32[()])

    def test_programs_within_equations_count(self):
        def nested(fun):
            return program_of(lambda x: Call(program_of(fun, f32[3]))(x), f32[3])

        one = nested(lambda x: [sin(neg(x))])
        assert one == nested(lambda y: [sin(neg(y))])
        assert one != nested(lambda x: [cos(neg(x))])


class TestLiterals:
    def test_literals_are_equal_by_value_and_type(self):
        assert literal(2.0) == literal(2.0)
        assert hash(literal(2.0)) == hash(literal(2.0))
        assert literal(2.0) != literal(3.0)
        assert literal(2.0) != literal(2.0, weak=True)
        assert literal(2.0) != literal(2.0, np.dtype("float64"))
        assert literal(1, I32) != literal(1.0)
        assert literal(2.0) != 2.0

    def test_nan_equals_nan(self):
        nan = float("nan")
        assert literal(nan) == literal(-nan)

        def f(x):
            return [mul(x, nan)]

        assert program_of(f, f32[3]) == program_of(f, f32[3])

    def test_minus_zero_is_not_zero(self):
        assert literal(-0.0) != literal(0.0)
        programs = [program_of(lambda x, z=z: [mul(x, z)], f32[3]) for z in (0.0, -0.0)]
        assert programs[0] != programs[1]

    def test_literals_are_rounded_to_a_dtype_that_is_not_weak(self):
        assert literal(0.1) == literal(float(np.float32(0.1)))
        assert literal(0.1).value == float(np.float32(0.1))
        assert literal(0.1, weak=True).value == 0.1
        assert literal(1e300).value == float("inf")
        assert literal(0.1 + 0.2j, np.dtype("complex64")).value == complex(np.complex64(0.1 + 0.2j))

    def test_a_literal_shows_its_value_and_type(self):
        assert repr(literal(2.0)) == "2.0:f32[]"


class Scaled(Primitive, abstract=True):
    factor: Scale


class TestPrimitives:
    def test_equal_primitives_are_one_object(self):
        assert ReduceSum((0,)) is ReduceSum(axes=(0,))
        assert ReduceSum((0,)) is not ReduceSum((1,))

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            (0.0, -0.0),
            ((0.0,), (-0.0,)),
            ((1, (0.0,)), (1, (-0.0,))),
            (0j, complex(0.0, -0.0)),
            (1, 1.0),
            (1, True),
            ((1,), (1.0,)),
        ],
        ids=repr,
    )
    def test_parameters_that_only_compare_equal_are_told_apart(self, one, other):
        assert one == other
        assert Probe(one) is not Probe(other)
        assert repr(Probe(one).value) == repr(one)
        assert repr(Probe(other).value) == repr(other)

    def test_zeros_of_both_signs_are_told_apart_whatever_the_annotation_says(self):
        assert repr(Scaled(0.0).factor) == "0.0"
        assert repr(Scaled(-0.0).factor) == "-0.0"
        assert Scaled(1) is not Scaled(1.0)

    def test_the_cache_of_instances_keeps_no_program_alive(self):
        program = loss_program()
        alive = weakref.ref(program)
        assert Scaled(program).factor is program
        assert Scaled((program,)).factor == (program,)
        del program
        gc.collect()
        assert alive() is None

    @pytest.mark.parametrize("value", [float("nan"), (float("nan"),), complex("nanj")], ids=repr)
    def test_a_nan_parameter_equals_itself(self, value):
        again = eval(repr(value), {"nan": float("nan"), "nanj": complex("nanj")})
        assert Probe(value) is Probe(again)


class TestEquations:
    def test_an_equation_with_changes_leaves_the_old_one_alone(self):
        eqn = loss_program().equations[1]
        changed = eqn.replace(primitive=Sin())
        assert (changed.primitive, changed.inputs, changed.source) == (
            Sin(),
            eqn.inputs,
            eqn.source,
        )
        assert eqn.primitive is not Sin()

    def test_dead_equations_are_removed_when_a_program_is_made(self):
        def f(x):
            cos(sin(x))
            left, _ = Halves()(x)
            return [neg(left)]

        assert [eqn.primitive.name for eqn in program_of(f, f32[3])] == ["halves", "neg"]

    def test_equations_with_effects_are_kept(self):
        def f(x):
            Announce("here")(sin(x))
            return [x]

        assert [eqn.primitive.name for eqn in program_of(f, f32[3])] == ["sin", "announce"]

    def test_removing_dead_equations_takes_time_in_proportion_to_the_length(self):
        x = Var(f32[3])
        equations, last = [], x
        for _ in range(20_000):
            equations.append(Equation.of(Sin(), [last]))
            last = equations[-1].outputs[0]
        assert dce_equations(equations, [last]) == equations
        assert dce_equations(equations, [x]) == []


def test_definitions_and_uses_of_variables_are_found_once():
    def f(x):
        y = mul(x, x)
        return [add(add(y, 1.0), y), y]

    program = program_of(f, f32[3])
    (x,), (square, first, second) = program.inputs, program.equations
    assert program.def_use is program.def_use
    assert program.def_use.producers == {eqn.outputs[0]: eqn for eqn in program}
    users = program.def_use.users
    assert users == {x: [square], square.outputs[0]: [first, second], first.outputs[0]: [second]}


def test_a_program_tells_the_types_of_its_inputs_and_outputs():
    program = program_of(lambda x, n: [reduce_sum(x), n, 2.0], f32[3], i32[2])
    assert program.in_avals == [f32[3], i32[2]]
    assert program.out_avals[:2] == [f32[()], i32[2]]
    assert program.out_avals[2].weak_type


def test_the_programs_of_a_primitive_are_found_in_tuples_too():
    program = loss_program()
    assert subprograms(Probe((1, (program, "x"), program))) == [program, program]
    assert subprograms(Sin()) == []


def test_programs_of_great_length_can_be_compared():
    def f(x):
        for _ in range(5_000):
            x = add(x, sub(x, 1.0))
        return [x]

    assert program_of(f, f32[3]) == program_of(f, f32[3])


def test_variables_are_equal_only_to_themselves():
    assert Var(f32[3]) != Var(f32[3])
