import re
from random import Random

import pytest

import functx
from functx.core.errors import ParseError
from functx.core.program import Program
from functx.core.samples import f32
from functx.ops.arithmetic import add
from functx.ops.transcendental import sin, tanh
from functx.testing.rule_cases import primitive_under_test
from functx.transforms.batching import Batch
from functx.transforms.forward_mode import JVPRewrite
from functx.transforms.reverse_mode import SplitVJP, ValueAndGrad
from tests.ops.registry import SAMPLES, label

from .programs import Announce, Halves, Probe, loss_program, network_program, program_of

GRAD = ValueAndGrad((True, True), True)


def without_comments(text):
    return [re.sub(r" +#.*", "", line) for line in text.splitlines()]


def check_round_trip(program):
    text = str(program)
    again = Program.parse(text)
    assert again == program
    assert without_comments(str(again)) == without_comments(text)


@pytest.mark.parametrize(("cls", "number"), SAMPLES, ids=map(label, SAMPLES))
def test_every_primitive_is_read_as_printed(cls, number):
    sample = cls.samples[number]

    def f(*args):
        outs = primitive_under_test(cls, sample)(*args)
        return outs if cls.multiple_results else [outs]

    check_round_trip(program_of(f, *sample.avals))


@pytest.mark.parametrize(
    "program",
    [
        loss_program(),
        network_program(),
        GRAD(loss_program()),
        JVPRewrite((True, False))(loss_program()),
        Batch(4, (0, None), (0,))(loss_program()),
        Batch(4, (0, None), (0, 0, 0))(GRAD(loss_program())),
        *SplitVJP((True, True))(network_program()),
    ],
    ids=lambda program: program.name,
)
def test_programs_are_read_as_printed(program):
    check_round_trip(program)


def test_effects_and_blanks_are_read_as_printed():
    def f(x):
        Announce("a, b = c # d")(x)
        left, _ = Halves()(x)
        return [left]

    check_round_trip(program_of(f, f32[3]))


def test_a_text_may_leave_out_what_follows_from_the_rest():
    text = """

    program f(x: f32[3],):   # a comment

    y = sin x
        z, w = halves y

      return z, 2.0:f32
    """
    program = Program.parse(text)
    assert str(program) == (
        "program f(x: f32[3]):\n"
        "  y: f32[3]            = sin x\n"
        "  z: f32[3], _: f32[3] = halves y\n"
        "  return z, 2.0:f32"
    )


def test_an_edited_text_is_the_edited_program():
    def f(x):
        return [tanh(sin(x))]

    def edited(x):
        return [tanh(tanh(x))]

    text = str(program_of(f, f32[3])).replace("sin", "tanh")
    assert Program.parse(text) == program_of(edited, f32[3])


def test_names_in_the_text_are_kept():
    text = "program f(left: f32[3]):\n  right: f32[3] = sin left\n  return right"
    program = Program.parse(text)
    assert str(program) == text
    assert program.in_names() == ["left"]


def test_a_program_is_read_once_for_all_its_uses():
    program = Program.parse(str(network_program()))
    blocks = {
        id(eqn.primitive.program) for eqn in program.equations if "block" in repr(eqn.primitive)
    }
    assert len(blocks) == 1


def test_literals_are_rounded_to_their_dtype():
    program = Program.parse("program f():\n  return 0.1:f32, 0.1:~f32, 2:f32")
    values = [atom.value for atom in program.outputs]
    assert repr(values) == "[0.10000000149011612, 0.1, 2.0]"


def test_a_value_without_a_text_is_read_while_it_is_alive():
    program = program_of(lambda x: [Probe(lambda y: y)(x)], f32[3])
    assert Program.parse(str(program)) == program


def test_a_value_that_is_gone_is_refused():
    with pytest.raises(ParseError, match="must have a value that can be read; got `<gone>`"):
        Program.parse("program f(a: f32[3]):\n  b: f32[3] = probe[value=<gone>] a\n  return b")


def bad(line, *, last="return b"):
    return f"program f(a: f32[3], n: i32[]):\n  {line}\n  {last}"


@pytest.mark.parametrize(
    ("text", "line", "message", "fix"),
    [
        ("hello", 1, "must have `program` and a name", ""),
        ("", 1, "must have `program` .* got the end of the text", ""),
        ("program f(x: f32[3])\n  return x", 1, "must have `:` after the inputs", ""),
        ("program f(x: f32[3]):\n  y: f32[3] = sin x", 2, "must have `return`", ""),
        ("program f(x):\n  return x", 1, "must have `:` and the type of `x`; got `\\)`", ""),
        ("program f(x: f33[3]):\n  return x", 1, "a dtype, such as f32; got `f33`", "`f32`"),
        ("program f(x: f32):\n  return x", 1, "must have `\\[` and a shape", ""),
        ("program f(x: f32[-]):\n  return x", 1, "must have a length; got `-`", ""),
        ("program f(x: f32[3], x: f32[3]):\n  return x", 1, "a new variable; got `x`", ""),
        ("program f(x: f32[3]):\n  return x\n  return x", 3, "the end of the text", ""),
        (bad("b: f32[3] = tan2h a"), 2, "the name of a primitive .* got `tan2h`", "`tanh`"),
        (bad("b: f32[3] = "), 2, "the name of a primitive .* got the end of the line", ""),
        (bad("b: f32[3] = sin q"), 2, "must have a variable defined above; got `q`", ""),
        (bad("first = sin fist", last="return a"), 2, "a variable defined above", ""),
        (bad("b: f32[3] = sin a", last="return c"), 3, "a variable defined above; got `c`", ""),
        (bad("b: f32[3] sin a"), 2, "must have `=` after the outputs; got `sin`", ""),
        (bad("a: f32[3] = sin a"), 2, "a new variable; got `a`, which line 1 defines", ""),
        (bad("b: f32[4] = sin a"), 2, "must state the type f32\\[3\\] for `b`", ""),
        (bad("b: ~f32[3] = sin a"), 2, "must state the type f32\\[3\\] for `b`", ""),
        (bad("b: f32[3] = sin a a"), 2, "must have 1 operand of sin; got", ""),
        (bad("b: f32[3] = add a"), 2, "must have 2 operands of add", ""),
        (bad("b: f32[3] = add a n"), 2, "does not fit: add: operands must have one dtype", ""),
        (bad("b, c = sin a"), 2, "must have 1 output of sin; got 2", ""),
        (bad("b: f32[] = reduce_sum a"), 2, "the parameters axes; got none for `axes`", ""),
        (bad("b: f32[] = reduce_sum[axis=(0,)] a"), 2, "takes axes; got `axis`", "`axes`"),
        (bad("b: f32[] = reduce_sum[axes=(0,), axes=(0,)] a"), 2, "each parameter .* once", ""),
        (
            bad("b: f32[] = reduce_sum[axes=(3,)] a"),
            2,
            "does not fit: reduce_sum: each axis must be in",
            "",
        ),
        (bad("b: f32[] = reduce_sum[axes=(0,] a"), 2, "a bracket that closes `\\(`; got `\\]`", ""),
        (bad("b: f32[] = reduce_sum[axes=(0,)"), 2, "must close the bracket `\\[`", ""),
        (bad("b: f32[3] = sin a)"), 2, "must have an open bracket; got `\\)`", ""),
        (bad("b: f32[3] = sin[x=1] a"), 2, "takes no parameters; got `x`", ""),
        (bad("b: f32[3] = probe[value=nothing] a"), 2, "must have a value: .* got `nothing`", ""),
        (bad("b: f32[3] = probe[value=Mode.CLAP] a"), 2, "a member of Mode; got `CLAP`", "CLIP"),
        (bad("b: f32[3] = probe[value=Window(2)(3)] a"), 2, "must have `\\]` or `,`", ""),
        (bad("b: f32[3] = probe[value=Window(x=2)] a"), 2, "does not fit: ", ""),
        (bad("b: f32[3] = call[program=block] a"), 2, "must have a value: .* got `block`", ""),
        (bad("b: f32[3] = mul a 2.0"), 2, "a number with a dtype as in 2.0:f32; got `2.0`", ""),
        (bad("b: f32[3] = mul a 2.0:i32"), 2, "a literal that fits its type; got 2.0", ""),
        (bad("b: f32[3] = mul a 300:u8"), 2, "a literal that fits its type; got 300", ""),
        (bad("b: f32[3] = mul a 1e9:i32"), 2, "a literal that fits its type; got 1", ""),
        (bad("b: f32[3] = sin a ?"), 2, "must have a variable, .* got `\\?`", ""),
    ],
)
def test_other_text_is_refused(text, line, message, fix):
    with pytest.raises(ParseError) as caught:
        Program.parse(text)
    shown = str(caught.value)
    assert shown.startswith(f"Program.parse: line {line} ")
    assert re.search(message, shown), shown
    if fix:
        assert re.search(f"Did you mean .*{fix}", shown), shown


def test_an_error_shows_the_line_and_points_at_the_word():
    with pytest.raises(ParseError) as caught:
        Program.parse("program f(a: f32[3]):\n  b: f32[3] = sinn a\n  return b")
    lines = str(caught.value).splitlines()
    assert (
        lines[0] == "Program.parse: line 2 must have the name of a primitive after `=`; got `sinn`"
    )
    assert lines[1:3] == ["    b: f32[3] = sinn a", "                ^"]
    assert "  Did you mean `sin`" in lines[-2]


def test_a_program_inside_must_be_complete():
    text = str(network_program()).replace("      return b\n", "", 1)
    with pytest.raises(ParseError, match="line 7 must have a variable defined above; got `x_1`"):
        Program.parse(text)


def test_two_programs_inside_must_not_share_a_name():
    text = (
        str(network_program()).replace("program twice", "program block").replace("=twice", "=block")
    )
    with pytest.raises(ParseError, match="must have a name that no other program has; got `block`"):
        Program.parse(text)


def test_long_texts_are_read():
    def f(x):
        for _ in range(5000):
            x = add(sin(x), x)
        return [x]

    program = program_of(f, f32[3])
    assert Program.parse(str(program)) == program


def test_damaged_texts_are_read_or_refused():
    random = Random(0)
    words = re.findall(r"\w+|\s+|.", str(network_program()))
    for _ in range(500):
        damaged = list(words)
        for _ in range(random.randint(1, 3)):
            place = random.randrange(len(damaged))
            damaged[place] = random.choice(["", random.choice(words)])
        try:
            program = Program.parse("".join(damaged))
        except ParseError:
            continue
        assert Program.parse(str(program)) == program


def test_a_program_that_is_used_inside_another_one_first_is_shown_there():
    @functx.custom_jvp
    def ruled(x):
        return sin(x)

    ruled.defjvp(lambda primals, tangents: (ruled(*primals), tangents[0]))

    def f(x):
        total, _ = functx.lax.scan(lambda c, _: (ruled(c), None), x, length=3)
        return ruled(total + ruled(x * 2.0))

    program = functx.make_ir(f)(1.0)
    assert Program.parse(str(program)) == program


def test_a_parsed_program_returns_what_its_text_returns():
    """The last line of the text, and the result, for a function that returns the containers below."""
    x = functx.numpy.arange(3.0)
    for returned, last, parsed in [
        (lambda y: y, "return a", lambda y: y),
        (lambda y: [y], "return a,", lambda y: (y,)),
        (lambda y: {"value": y}, "return a,", lambda y: (y,)),
        (lambda y: (y, {"again": y}), "return a, a", lambda y: (y, y)),
        (lambda y: None, "return", lambda y: ()),
    ]:
        program = functx.make_ir(lambda x, make=returned: make(x + x))(x)
        again = Program.parse(str(program))
        assert str(program).splitlines()[-1].strip() == last
        assert again == program and str(again).splitlines() == without_comments(str(program))
        assert functx.tree.map(list, again(x)) == functx.tree.map(list, parsed(x + x))
    with pytest.raises(ParseError, match=r"the text must be a string; got Program\n"):
        Program.parse(program)
