"""Effects as part of a program: typed, printed and read back, kept, not repeated."""

import jax
import numpy as np
import pytest

import functx
from functx import Program, debug, lax
from functx.core.effects import NO_EFFECTS, Effect
from functx.core.errors import EffectError, ParseError
from functx.core.rewriting import cached_rewrite
from functx.transforms.dce import RemoveEffects, keep_effects_depending_on

CALLBACK, ORDERED, PROGRESS = (
    frozenset([effect]) for effect in (Effect.CALLBACK, Effect.ORDERED, Effect.PROGRESS)
)


def log(x):
    return None


def nothing(x):
    return x


def twice(x):
    return np.asarray(2 * x)


def shows(x, ordered=False):
    debug.callback(log, x, ordered=ordered)
    return x * x


def asks(x):
    return functx.io_callback(twice, x, x) + x


def looped(x):
    return lax.scan(lambda c, _: (shows(c), None), x, None, 3)[0]


@pytest.mark.parametrize(
    ("fun", "effects"),
    [
        (nothing, NO_EFFECTS),
        (lambda x: functx.pure_callback(twice, x, x), NO_EFFECTS),
        (shows, CALLBACK),
        (lambda x: shows(x, ordered=True), ORDERED),
        (lambda x: shows(shows(x, ordered=True)), CALLBACK | ORDERED),
        (asks, CALLBACK),
        (looped, CALLBACK),
        (functx.jit(shows), CALLBACK),
        (lambda x: lax.cond(x > 0, shows, nothing, x), CALLBACK),
        (lambda x: lax.while_loop(lambda c: shows(c) < 9, lambda c: c + 1, x), CALLBACK),
        (lambda x: lax.scan(lambda c, _: (c, None), x, None, 3, progress="it")[0], PROGRESS),
    ],
)
def test_a_program_has_the_effects_of_what_it_runs(fun, effects):
    assert functx.make_ir(fun)(np.float32(2)).effects == effects


@pytest.mark.parametrize(
    "transform",
    [functx.grad, functx.jacfwd, functx.jacrev, functx.jit, functx.checkpoint, functx.hessian],
)
def test_a_transform_keeps_the_effect_once(transform):
    program = functx.make_ir(transform(looped))(np.float32(2))
    found = [
        eqn for each in program.walk() for eqn in each if eqn.primitive.name == "debug_callback"
    ]
    assert len(found) == 1
    assert program.effects == CALLBACK


def test_the_head_of_a_program_shows_its_effects_and_the_callback_by_name():
    program = functx.make_ir(lambda x: shows(shows(x), ordered=True))(np.float32(2))
    lines = [" ".join(line.split("#")[0].split()) for line in str(program).splitlines()]
    assert lines == [
        "program lambda(x: f32[]) with callback, ordered:",
        "() = debug_callback[callback=<log>] x",
        "a: f32[] = mul x x",
        "() = debug_callback[callback=<log>, ordered=True] a",
        "b: f32[] = mul a a",
        "return b",
    ]


def test_a_format_string_is_the_name_of_what_prints_it():
    program = functx.make_ir(lambda x: debug.print("loss: {:.2f}", x) or x)(np.float32(2))
    assert "debug_callback[callback=<print 'loss: {:.2f}'>] x" in str(program)


@pytest.mark.parametrize(
    "fun",
    [
        shows,
        asks,
        looped,
        functx.vmap(asks),
        functx.vmap(lambda x: functx.pure_callback(twice, x, x, vmap_method="sequential")),
        lambda x: lax.scan(lambda c, _: (c, None), x, None, 3, progress="it")[0],
    ],
)
def test_programs_with_effects_print_and_parse_back(fun):
    program = functx.make_ir(fun)(np.ones(2, np.float32))
    assert Program.parse(str(program)) == program


def test_a_head_that_states_other_effects_is_no_program():
    text = str(functx.make_ir(shows)(np.float32(2)))
    with pytest.raises(
        ParseError,
        match=r"line 1 must state `with callback`, which the equations have; got `with ordered`",
    ):
        Program.parse(text.replace("with callback", "with ordered"))
    with pytest.raises(ParseError, match=r"must have an effect; got `calback`(.|\n)*`callback`"):
        Program.parse(text.replace("with callback", "with calback"))
    assert Program.parse(text.replace(" with callback", "")).effects == CALLBACK


def test_what_nobody_uses_is_dropped_unless_it_has_effects():
    def f(x):
        asks(x)
        functx.pure_callback(twice, x, x)
        return x

    assert [eqn.primitive.name for eqn in functx.make_ir(f)(np.float32(2))] == ["io_callback"]


def test_a_second_run_goes_without_effects():
    program = functx.make_ir(looped)(np.float32(2))
    quiet = cached_rewrite(RemoveEffects(), program)
    assert quiet.effects == NO_EFFECTS
    assert quiet.out_avals == program.out_avals
    assert cached_rewrite(RemoveEffects(), quiet) is quiet


def test_a_second_run_of_an_effect_with_results_is_refused():
    program = functx.make_ir(asks)(np.float32(2))
    with pytest.raises(
        EffectError, match="io_callback: an effect with results must not be in"
    ) as e:
        RemoveEffects()(program)
    assert "in asks: return functx.io_callback(twice, x, x) + x" in str(e.value)
    assert "pure_callback" in e.value.fix


def test_only_effects_on_what_is_known_remain_where_the_rest_is_linear():
    def f(x, y):
        debug.callback(log, x)
        debug.callback(log, x * y)
        return x * y

    program = functx.make_ir(f)(np.float32(2), np.float32(3))
    known = keep_effects_depending_on(program, program.inputs[:1])
    assert [eqn.primitive.name for eqn in known] == ["debug_callback", "mul", "mul"]


def test_equal_callbacks_make_equal_programs():
    def make():
        return lambda x: debug.callback(lambda v: None, x) or x

    programs = [functx.make_ir(make())(np.float32(2)) for _ in range(2)]
    assert programs[0] == programs[1]


def test_callbacks_that_write_into_different_places_differ():
    def make(place):
        return lambda x: debug.callback(lambda v: place.append(v), x) or x

    programs = [functx.make_ir(make([]))(np.float32(2)) for _ in range(2)]
    assert programs[0] != programs[1]


def test_the_value_of_an_io_callback_is_not_to_be_had_while_tracing():
    with pytest.raises(EffectError, match="must not be needed while a function is traced") as e:
        functx.grad(lambda x: x if asks(x) > 0 else -x)(2.0)
    assert "lax.cond" in e.value.fix


def test_what_decides_python_control_flow_shows_its_values_once():
    seen = []

    def square(x):
        debug.callback(lambda v: seen.append(float(v)), x)
        return x * x

    out = functx.grad(lambda x: x**3 if functx.jit(square)(x) > 0 else -x)(2.0)
    functx.effects_barrier()
    assert (float(out), seen) == (12.0, [2.0])


def test_jax_knows_the_effects_of_a_program():
    for ordered in (False, True):
        jaxpr = jax.make_jaxpr(functx.jit(lambda x, o=ordered: shows(x, o)))(1.0)
        assert len(jaxpr.effects) == 1
    assert not jax.make_jaxpr(functx.jit(nothing))(1.0).effects


def test_an_effect_whose_results_nothing_reads_is_no_part_of_a_second_run():
    seen = []

    def note(x):
        seen.append(float(x.sum()))
        return x

    def step(state):
        i, x = state
        functx.io_callback(note, x, functx.stop_gradient(x), ordered=True)
        return i + 1, x * x

    def loss(x):
        return lax.while_loop(lambda state: state[0] < 2, step, (0, x))[1].sum()

    x = np.asarray([1.0, 2.0], np.float32)
    curvature = functx.jacfwd(functx.grad(loss))(x)
    functx.effects_barrier()
    assert np.allclose(curvature, np.diag(12 * x**2)) and seen == [3.0, 5.0]
