import numpy as np
import pytest

import functx
from functx.core.checking import check_program
from functx.core.config import program_checks
from functx.core.errors import FunctxError, ProgramError
from functx.core.primitive import Primitive
from functx.core.program import Equation, Literal, Program, Var, subprograms
from functx.core.samples import f32, i32
from functx.core.types import ShapedArray
from functx.ops.arithmetic import Add, Mul
from functx.ops.reductions import ReduceSum
from functx.ops.transcendental import Sin, sin
from functx.transforms.call_primitive import Call

from .programs import Halves, Probe, loss_program, network_program, program_of

WITH_PROGRAMS = [
    (name, index)
    for name, cls in sorted(Primitive.registry.items())
    for index, sample in enumerate(cls.samples)
    # The program of `funm` is of one number, for matrices of every size.
    if cls.__module__.startswith("functx.") and name != "funm"
    if subprograms(cls(**sample.params))
]


def equation(primitive, inputs, *avals, source=None):
    return Equation(primitive, inputs, [Var(aval) for aval in avals], source)


def program(inputs, equations, outputs):
    return Program("f", inputs, equations, outputs)


def refuse(made, message):
    with pytest.raises(ProgramError, match=message) as caught:
        check_program(made)
    return caught.value


def test_traced_programs_are_well_formed():
    check_program(loss_program())
    check_program(network_program())


def test_every_program_made_in_the_tests_is_checked():
    assert program_checks.enabled


def test_a_variable_must_be_defined_before_its_use():
    x = Var(f32[3])
    second = equation(Sin(), [x], f32[3])
    first = equation(Sin(), second.outputs, f32[3])
    error = refuse(
        program([x], [first, second], first.outputs),
        "f: operand 0 of sin must be defined before its use; got f32\\[3\\]",
    )
    assert error.details == ["in b: f32[3] = sin c"]


def test_a_variable_of_another_program_is_refused():
    refuse(
        program([], [equation(Sin(), [Var(f32[3])], f32[3])], []),
        "operand 0 of sin must be defined before its use",
    )


def test_a_variable_must_be_defined_once():
    x = Var(f32[3])
    eqn = equation(Sin(), [x], f32[3])
    refuse(program([x], [eqn, eqn], []), "output 0 of sin must be a new variable; got one in use")
    refuse(
        program([x], [eqn.replace(outputs=[x])], []),
        "output 0 of sin must be a new variable; got one in use",
    )
    y = Var(f32[3])
    refuse(
        program([x], [Equation(Halves(), [x], [y, y], None)], []),
        "output 1 of halves must be a new variable; got one in use",
    )


def test_inputs_must_be_distinct_variables():
    x = Var(f32[3])
    refuse(program([x, x], [], []), "every input must be a variable of its own; got input 1")
    refuse(program([Literal(1.0, f32[()])], [], []), "got input 0, 1.0:f32")


def test_outputs_must_be_defined():
    refuse(program([], [], [Var(f32[3])]), "f: output 0 must be defined before its use")


@pytest.mark.parametrize("stated", [f32[4], i32[3], ShapedArray((3,), np.dtype("float32"), True)])
def test_outputs_must_have_the_type_that_the_primitive_gives(stated):
    x = Var(f32[3])
    eqn = equation(Sin(), [x], stated)
    error = refuse(program([x], [eqn], []), "output 0 of sin must be f32\\[3\\]; got")
    assert repr(stated) in error.problem


def test_operands_must_fit_the_primitive():
    x, y = Var(f32[3]), Var(i32[3])
    eqn = equation(Add(), [x, y], f32[3])
    refuse(program([x, y], [eqn], []), "operands must fit; got add: operands must have one dtype")
    eqn = equation(ReduceSum((1,)), [x], f32[()])
    refuse(program([x], [eqn], []), "operands must fit; got reduce_sum: each axis must be in")


def test_the_number_of_operands_and_outputs_is_checked():
    x = Var(f32[3])
    refuse(program([x], [equation(Sin(), [x, x], f32[3])], []), "sin must have 1 operand; got 2")
    refuse(program([x], [equation(Mul(), [x], f32[3])], []), "mul must have 2 operands; got 1")
    refuse(program([x], [equation(Sin(), [x])], []), "sin must have 1 output; got 0")


@pytest.mark.parametrize(
    ("value", "aval"),
    [
        (1, f32[()]),
        (1.0, i32[()]),
        (2**31, i32[()]),
        (0.1, f32[()]),
        (True, i32[()]),
        (1.0, f32[1]),
        ("one", f32[()]),
    ],
    ids=repr,
)
def test_a_literal_must_be_a_number_of_its_type(value, aval):
    x = Var(f32[3])
    literal = Literal(value, aval)
    message = "must be a literal that fits its type; got"
    refuse(program([], [], [literal]), f"output 0 {message}")
    refuse(program([x], [equation(Mul(), [x, literal], f32[3])], []), f"operand 1 of mul {message}")


def test_what_is_neither_variable_nor_literal_is_refused():
    refuse(program([], [], [2.0]), "output 0 must be a variable or a literal; got 2.0")
    x = Var(f32[3])
    refuse(program([x], [equation("sin", [x], f32[3])], []), "must have a Primitive; got 'sin'")
    eqn = Equation(Sin(), [x], [Literal(1.0, f32[()])], None)
    refuse(program([x], [eqn], []), "output 0 of sin must be a variable; got 1.0:f32")


def test_programs_within_equations_are_checked():
    x = Var(f32[3])
    wrong = Program("wrong", [x], [equation(Sin(), [x], f32[4])], [])
    y = Var(f32[3])
    outer = program([y], [Equation(Call(wrong), [y], [], None)], [])
    refuse(outer, "wrong: output 0 of sin must be f32\\[3\\]")
    z = Var(f32[3])
    pair = program([z], [equation(Probe((None, wrong)), [z], f32[3])], [])
    refuse(pair, "wrong: output 0 of sin must be f32\\[3\\]")


def test_a_program_within_several_equations_is_checked_once(monkeypatch):
    block = program_of(lambda x: [sin(x)], f32[3])
    x = Var(f32[3])
    calls = []
    inputs = [x]
    for _ in range(3):
        calls.append(equation(Call(block), inputs, f32[3]))
        inputs = calls[-1].outputs
    outer = program([x], calls, inputs)
    # The call holds a program that equals the block, if there was one before.
    calls[0].primitive.program.memo.clear()
    looked = []
    monkeypatch.setattr(
        "functx.core.checking._equation_problem",
        lambda eqn, defined: looked.append(eqn) or defined.update(eqn.outputs) or "",
    )
    check_program(outer)
    assert len(looked) == 3 + 1


def test_an_error_names_the_equation_and_the_line():
    made = loss_program()
    eqn = made.equations[1]
    eqn.outputs[0].aval = f32[5, 4]
    error = refuse(made, "loss: output 0 of tanh must be f32\\[4,5\\]; got f32\\[5,4\\]")
    assert "in h: f32[5,4] = tanh a" in str(error)
    assert "at programs.py:26 in loss: h = tanh(matmul(x, w))" in str(error)


def test_checking_takes_time_in_proportion_to_the_length():
    def f(x):
        for _ in range(20_000):
            x = sin(x)
        return [x]

    check_program(program_of(f, f32[3]))


@pytest.mark.parametrize(("name", "index"), WITH_PROGRAMS)
def test_primitives_refuse_operands_that_their_programs_do_not_take(name, index):
    cls = Primitive.registry[name]
    sample = cls.samples[index]
    primitive = cls(**sample.params)
    primitive.infer_out_avals(sample.avals)
    for i, aval in enumerate(sample.avals):
        shape = tuple([n + 1 for n in aval.shape]) or (2,)
        operands = [*sample.avals[:i], aval.update(shape=shape), *sample.avals[i + 1 :]]
        with pytest.raises(FunctxError, match="operand"):
            primitive.infer_out_avals(tuple(operands))


def refuse_untidy(made, message):
    check_program(made)
    with pytest.raises(ProgramError, match=message) as caught:
        made.lint()
    return caught.value


def test_programs_that_transforms_make_are_tidy():
    def writes(x):
        x[0] = 2.0
        y = x.copy()
        y += 1.0
        return y.sum() * x

    for fun in (network_program(), functx.grad(lambda x: (writes(x) ** 2).sum()), writes):
        for made in (functx.make_ir(functx.functionalize(fun)), functx.make_ir(functx.jit(fun))):
            args = [np.ones(a.shape, a.dtype) for a in getattr(fun, "in_avals", [f32[3]])]
            made(*args).lint()


def test_a_dead_equation_is_untidy():
    x = Var(f32[3])
    dead, used = equation(Sin(), [x], f32[3]), equation(Mul(), [x, x], f32[3])
    error = refuse_untidy(program([x], [dead, used], used.outputs), "an output that is used")
    assert error.details == ["in _: f32[3] = sin a"]
    whole = program([x], [equation(Call(program([x], [dead], [x])), [x], f32[3])], [x])
    with pytest.raises(ProgramError, match="an output that is used"):
        whole.lint()


def test_writes_in_other_places_than_the_end_are_untidy():
    def scale(x):
        x *= 2.0
        y = x + 1.0
        return y

    refuse_untidy(functx.make_ir(scale)(np.ones(3, "f")), "writes must come last")

    def fill(x):
        y = x + 1.0
        y[0] = 2.0
        return y

    refuse_untidy(functx.make_ir(fill)(np.ones(3, "f")), "writes must (go to inputs|come last)")
    scaled = functx.make_ir(functx.functionalize(scale))(np.ones(3, "f"))
    scaled.lint()
