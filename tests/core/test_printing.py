import re

import numpy as np
import pytest

import functx
from functx.core.printing import equation_text, primitive_text
from functx.core.program import Program, scalar_literal
from functx.core.samples import f32, f64, i32
from functx.core.types import DTYPES_BY_SHORT_NAME, ShapedArray
from functx.ops.arithmetic import add, mul, neg
from functx.ops.conversion import ConvertElementType
from functx.ops.reductions import ReduceSum, reduce_sum
from functx.ops.transcendental import Tanh, cos, sin, tanh
from functx.transforms.batching import Batch
from functx.transforms.call_primitive import Call
from functx.transforms.forward_mode import JVPRewrite, Linearize
from functx.transforms.reverse_mode import SplitVJP, ValueAndGrad

from .programs import (
    Announce,
    Halves,
    Mode,
    Probe,
    Window,
    block_program,
    loss_program,
    network_program,
    program_of,
)


def lines(program):
    return str(program).splitlines()


def without_comments(text):
    return re.sub(r" +#.*", "", text)


def names(program):
    return [line.split(":")[0].strip() for line in lines(program)[1:-1]]


def test_a_program_prints_as_its_golden_text(golden):
    golden("loss", str(loss_program()))


def test_the_gradient_of_a_program_prints_as_its_golden_text(golden):
    golden("grad_loss", str(ValueAndGrad((False, True), True)(loss_program())))


def test_a_batched_program_prints_as_its_golden_text(golden):
    golden("vmap_loss", str(Batch(8, (0, None), (0,))(loss_program())))


def test_programs_within_equations_print_as_their_golden_text(golden):
    golden("network", str(network_program()))


def test_a_program_used_several_times_is_shown_once():
    text = str(network_program())
    assert text.count("program block(") == 1
    assert text.count("program=block]") == 4


def test_different_programs_of_one_name_get_different_names():
    other = program_of(lambda x, w: [cos(neg(w))], f32[3, 3], f32[3, 3], name="block")

    def both(x, w):
        (x,) = Call(block_program())(x, w)
        return Call(other)(x, w)

    text = str(program_of(both, f32[3, 3], f32[3, 3]))
    assert "program block(" in text
    assert "program block_1(" in text


def test_inputs_are_named_after_the_arguments():
    assert lines(loss_program())[0] == "program loss(x: f32[4,3], params_w_0: f32[3,5]):"


def test_tangents_and_cotangents_are_named_after_what_they_belong_to():
    program = loss_program()
    header = lines(JVPRewrite((True, True))(program))[0]
    assert header.endswith(
        "(x: f32[4,3], params_w_0: f32[3,5], dx: f32[4,3], dparams_w_0: f32[3,5]):"
    )
    _, pullback = SplitVJP((True, True))(program)
    assert lines(pullback)[0].startswith("program pullback_loss(ct: f32[]")
    _, linear = Linearize((True, False))(program)
    assert lines(linear)[0].startswith("program linear_loss(dx: f32[4,3]")


def test_captured_inputs_are_numbered():
    program = program_of(lambda x, y, z: [add(add(x, y), z)], *[f32[3]] * 3, names=["x"])
    program.captured = [np.ones(3), np.ones(3)]
    assert "(x: f32[3], c0: f32[3], c1: f32[3])" in str(program)


def test_variables_are_named_as_the_code_names_them():
    def f(x):
        first = sin(x)
        first = cos(first)
        return [last := tanh(first), last]

    assert names(program_of(f, f32[3])) == ["first", "first_1", "last"]


def test_a_variable_without_a_name_gets_the_next_free_letter():
    def f(x):
        b = sin(cos(x))
        return [tanh(neg(b))]

    assert names(program_of(f, f32[3])) == ["c", "b", "d", "e"]


def test_letters_go_on_behind_z():
    def f(x):
        for _ in range(30):
            x = sin(cos(x))
        return [neg(x)]

    letters = [name for name in names(program_of(f, f32[3])) if name[0] != "x"]
    assert letters[:2] == ["b", "c"]
    assert letters[21:27] == ["w", "y", "z", "aa", "ab", "ac"]


def test_a_name_that_means_something_else_is_not_given():
    def f(x):
        inf = sin(x)
        f32 = cos(inf)
        return [neg(f32)]

    assert names(program_of(f, f32[3])) == ["inf_1", "f32_1", "b"]


def test_names_that_end_alike_stay_apart():
    def f(x):
        y_1 = sin(x)
        y = cos(y_1)
        y = tanh(y)
        return [neg(y)]

    assert names(program_of(f, f32[3])) == ["y_1", "y", "y_2", "b"]


def test_all_outputs_of_an_equation_get_their_names():
    def f(x):
        left, right = Halves()(x)
        return [add(left, right)]

    assert lines(program_of(f, f32[3]))[1].startswith("  left: f32[3], right: f32[3] = halves a ")


def test_an_unused_output_is_a_blank():
    def f(x):
        left, _ = Halves()(x)
        return [left]

    assert lines(program_of(f, f32[3]))[1].startswith("  left: f32[3], _: f32[3] = halves a ")


def test_an_equation_without_outputs_has_empty_parentheses():
    def f(x):
        Announce("here")(x)
        return []

    assert without_comments(str(program_of(f, f32[3]))) == (
        "program f(a: f32[3]) with callback:\n  () = announce[label='here'] a\n  return"
    )


@pytest.mark.parametrize(
    "transform",
    [JVPRewrite((True,)), ValueAndGrad((True,), True), Batch(5, (0,), (0,))],
    ids=["jvp", "grad", "vmap"],
)
def test_a_rewritten_program_names_what_the_user_named_and_nothing_else(transform):
    def f(x):
        for _ in range(2):
            s = sin(x)
            x = mul(s, x)
        return [reduce_sum(x)]

    found = names(transform(program_of(f, f32[3])))
    named = [name for name in found if len(name) > 2 or name in "sx"]
    assert named == ["s", "x", "s_1", "x_1"]


def test_the_line_is_shown_once_for_a_run_of_equations():
    def f(x):
        y = sin(cos(x))
        return [neg(y)]

    comments = [line.partition("#")[2].strip() for line in lines(program_of(f, f32[3]))[1:-1]]
    first = f.__code__.co_firstlineno + 1
    where = "test_the_line_is_shown_once_for_a_run_of_equations.f"
    assert comments == [
        f"test_printing.py:{first} in {where}",
        "",
        f"test_printing.py:{first + 1} in {where}",
    ]


def test_columns_are_aligned():
    shown = lines(loss_program())[1:-1]
    assert len({line.index(" = ") for line in shown}) == 1
    assert len({line.index("#") for line in shown if "#" in line}) == 1


def test_many_inputs_stand_one_a_line():
    program = program_of(lambda *xs: [add(xs[0], xs[-1])], *[f32[100, 100]] * 12)
    text = str(program)
    assert "\n    a: f32[100,100],\n    b: f32[100,100],\n" in text
    assert "\n):\n" in text
    assert Program.parse(text) == program


def test_outputs_may_be_inputs_and_literals():
    program = program_of(lambda x: [x, np.float32(2.0), True], f32[3], name="<lambda>")
    assert str(program) == "program lambda(a: f32[3]):\n  return a, 2.0:f32, True:bool"


@pytest.mark.parametrize(
    ("value", "dtype", "weak", "text"),
    [
        (2.0, "f32", False, "2.0:f32"),
        (2.0, "f32", True, "2.0:~f32"),
        (0.1, "f32", False, "0.1:f32"),
        (0.1, "bf16", False, "0.1:bf16"),
        (0.1, "f16", False, "0.1:f16"),
        (1 / 3, "f64", False, "0.3333333333333333:f64"),
        (float("nan"), "f32", False, "nan:f32"),
        (float("-inf"), "f32", False, "-inf:f32"),
        (-0.0, "f32", False, "-0.0:f32"),
        (1e20, "f32", False, "1e+20:f32"),
        (-3, "i32", True, "-3:~i32"),
        (7, "u4", False, "7:u4"),
        (True, "bool", False, "True:bool"),
        (1 + 2j, "c64", False, "(1+2j):c64"),
        (-2j, "c128", False, "(-0-2j):c128"),
    ],
)
def test_a_literal_shows_its_value_and_dtype(value, dtype, weak, text):
    literal = scalar_literal(value, DTYPES_BY_SHORT_NAME[dtype], weak, repr(value))
    program = Program("f", [], [], [literal])
    assert lines(program)[1] == f"  return {text}"
    assert Program.parse(str(program)) == program


def relu_rule(x):
    return x


VALUES = [
    (None, "None"),
    (True, "True"),
    (-3, "-3"),
    (1.5, "1.5"),
    (float("nan"), "nan"),
    (float("-inf"), "-inf"),
    (1e-05, "1e-05"),
    (0.0, "0.0"),
    (1 - 2j, "(1-2j)"),
    (complex(0.0, float("nan")), "(nanj)"),
    ("it's", '"it\'s"'),
    ("# [a]\n", "'# [a]\\n'"),
    (b"\x00", "b'\\x00'"),
    ((), "()"),
    ((1,), "(1,)"),
    ((1, ("b", 0.5, -0.0)), "(1, ('b', 0.5, -0.0))"),
    (np.dtype("float32"), "f32"),
    (DTYPES_BY_SHORT_NAME["bf16"], "bf16"),
    (f32[2, 3], "f32[2,3]"),
    (ShapedArray((), np.dtype("int32"), True), "~i32[]"),
    (np.float32(0.5), "f32(0.5)"),
    (np.int64(3), "i64(3)"),
    (np.bool_(True), "bool(True)"),
    (Mode.CLIP, "Mode.CLIP"),
    (Window(1, (2, 3)), "Window(start=1, sizes=(2, 3))"),
    (frozenset({2, 1}), "{1, 2}"),
    (range(0, 5, 2), "range(0, 5, 2)"),
    (..., "..."),
    (Tanh(), "@tanh"),
    (ReduceSum((0,)), "@reduce_sum[axes=(0,)]"),
    (relu_rule, "<relu_rule>"),
]


@pytest.mark.parametrize(("value", "text"), VALUES, ids=[text for _, text in VALUES])
def test_a_parameter_shows_its_value_and_is_read_again(value, text):
    program = program_of(lambda x: [Probe(value)(x)], f32[3])
    assert f"= probe[value={text}] a" in str(program)
    assert Program.parse(str(program)) == program


def test_a_parameter_may_be_a_tuple_of_programs():
    program = program_of(lambda x: [Probe((block_program(), None))(x)], f32[3])
    assert "probe[value=(block, None)] a" in str(program)
    assert Program.parse(str(program)) == program


def test_a_default_is_left_out_unless_it_only_seems_equal():
    assert primitive_text(Probe(1)) == "probe[value=1]"
    assert primitive_text(Probe(1, other=-0.0)) == "probe[value=1]"
    assert primitive_text(Probe(1, other=0.0)) == "probe[value=1, other=0.0]"
    assert primitive_text(Probe(1, other=0)) == "probe[value=1, other=0]"


def test_a_value_without_a_text_is_told_from_others_of_its_name():
    one, other = (lambda x: x), (lambda x: x)
    first, second = primitive_text(Probe(one)), primitive_text(Probe(other))
    assert first != second
    assert primitive_text(Probe(one)) == first


def test_a_primitive_shows_in_messages_as_in_programs():
    assert repr(ConvertElementType(np.dtype("float32"))) == "convert_element_type[dtype=f32]"
    assert repr(Call(block_program())) == "call[program=block]"


def test_one_equation_of_a_program_can_be_shown():
    program = loss_program()
    assert equation_text(program, program.equations[1]) == "h: f32[4,5] = tanh a"


def test_printing_takes_time_in_proportion_to_the_length():
    def f(x):
        for _ in range(20_000):
            x = sin(x)
        return [x]

    assert len(lines(program_of(f, f32[3]))) == 20_002


def test_calls_and_backward_programs_have_the_names_of_the_called_function():
    def helper(x):
        hidden = functx.numpy.tanh(x)
        return hidden * 2.0, hidden

    def step(total, x):
        total = total + functx.numpy.sin(x)
        scaled = total * x
        return total, scaled

    text = str(functx.make_ir(lambda x: functx.jit(helper)(x))(1.0))
    assert "  a: ~f32[], hidden: ~f32[] = call[program=helper] x" in text
    text = str(functx.make_ir(functx.grad(lambda x: functx.jit(helper)(x)[0]))(1.0))
    assert "program pullback_helper(ct: ~f32[], hidden: ~f32[]):" in text
    text = str(functx.make_ir(lambda xs: functx.lax.scan(step, 0.0, xs))(np.ones(3, np.float32)))
    assert "  total: f32[], scaled: f32[3] = scan[program=step" in text


def test_types_show_dtype_shape_and_weakness():
    weak = ShapedArray((), np.dtype("float32"), True)
    program = program_of(lambda x, y, z: [z], f64[()], i32[2, 0], weak, name="f")
    assert lines(program)[0] == "program f(a: f64[], b: i32[2,0], c: ~f32[]):"
