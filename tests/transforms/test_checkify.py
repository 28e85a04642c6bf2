"""`functx.checkify`: checks fail with their message and line, through every transform."""

import numpy
import pytest

import functx
import functx.numpy as np
from functx import checkify as module
from functx import errors, grad, jit, lax, vjp, vmap
from functx.checkify import check, check_error, checkify

X = numpy.array([1.0, -2.0, 3.0, -4.0], "float32")


def log(x):
    check(x > 0, "{} is not positive", x)
    return np.log(x)


def in_scan(x):
    return lax.scan(lambda c, y: (c + log(y), y), 0.0, np.stack([x * x + 1, x, x - 9]))[0]


def in_loop_body(x):
    return lax.while_loop(
        lambda s: s[0] < 2, lambda s: (s[0] + 1, np.maximum(log(s[1]), s[1])), (0, x)
    )[1]


def in_loop_condition(x):
    def goes_on(y):
        log(y)
        return y < 3.0

    return lax.while_loop(goes_on, lambda y: y + 2.0, x)


def in_branch(x):
    return lax.cond(x < 0, log, lambda y: y, x)


def in_place(x):
    buffer = np.zeros(2)
    buffer[0] = x
    log(buffer[0])
    buffer += 1
    return buffer[0]


@functx.custom_jvp
def with_jvp_rule(x):
    return log(x)


with_jvp_rule.defjvp(lambda primals, tangents: (np.log(primals[0]), 7.0 * tangents[0]))


@functx.custom_vjp
def with_vjp_rule(x):
    return log(x)


with_vjp_rule.defvjp(lambda x: (np.log(x), x), lambda x, ct: (7.0 * ct,))


@functx.custom_vmap
def with_vmap_rule(x):
    return log(x)


with_vmap_rule.def_vmap(lambda size, batched, x: (np.log(np.abs(x)), batched[0]))

FUNCTIONS = [
    log,
    jit(log),
    in_scan,
    in_loop_body,
    in_loop_condition,
    in_branch,
    in_place,
    with_jvp_rule,
    with_vjp_rule,
    with_vmap_rule,
    functx.checkpoint(log),
    functx.explore(lambda x: log(x) if x < 1 else x),
]
by_name = pytest.mark.parametrize("f", FUNCTIONS, ids=lambda f: f.__name__)


def message(error):
    """The first line of the message, whose second line must be that of the check."""
    text = error.get()
    if text is None:
        return None
    first, line, *_ = text.splitlines()
    assert "in log: check(x > 0" in line
    return first


@by_name
def test_the_first_failure_is_returned_with_its_message_and_line(f):
    checked = jit(checkify(f))
    error, out = checked(-2.0)
    assert message(error) == "-2.0 is not positive (`check` failed)"
    with pytest.raises(errors.CheckError, match=r"-2\.0 is not positive .*\n  at .*in log"):
        error.throw()
    if f is not in_scan:
        assert checked(1.0)[0].get() is None


@pytest.mark.parametrize("f", [log, in_loop_body, in_branch, with_vmap_rule])
def test_a_mapped_error_names_the_indices(f):
    found = [line for line in vmap(checkify(f))(X)[0].get().splitlines() if "mapped" in line]
    assert [line.split(" is not")[0] for line in found] == [
        "at mapped index 1: -2.0",
        "at mapped index 3: -4.0",
    ]


@pytest.mark.parametrize("f", [log, in_branch, in_loop_condition, with_jvp_rule])
def test_a_check_of_any_lane_fails(f):
    text = checkify(vmap(f))(X)[0].get()
    assert "at mapped index 1: -2.0" in text and "at mapped index 3: -4.0" in text
    assert checkify(vmap(f))(numpy.abs(X))[0].get() is None


def test_axes_mapped_inside_and_outside_make_one_index():
    xs = numpy.array([[1.0, -2.0], [3.0, 4.0], [-5.0, 6.0]], "float32")
    text = vmap(checkify(vmap(log)))(xs)[0].get()
    assert "at mapped index 0, 1: -2.0" in text and "at mapped index 2, 0: -5.0" in text
    text = checkify(vmap(log, chunk_size=2))(numpy.append(numpy.ones(4), X))[0].get()
    assert "at mapped index 5: -2.0" in text and "at mapped index 7: -4.0" in text
    many = checkify(vmap(log))(-numpy.ones(20, "float32"))[0].get()
    assert many.count("mapped") == 8 and many.endswith("and at 12 more")


@pytest.mark.parametrize(("f", "slope"), [(log, -0.5), (in_place, 1.0), (with_jvp_rule, 7.0)])
def test_a_derivative_of_a_checked_function_is_that_of_the_function(f, slope):
    def with_error(x):
        error, out = checkify(f)(x)
        return out, error

    value, error = grad(with_error, has_aux=True)(-2.0)
    assert value == slope and message(error).startswith("-2.0")
    assert vjp(lambda x: checkify(f)(x)[1], -2.0)[1](1.0) == (slope,)


def test_a_checked_derivative_checks_the_function_and_the_rule():
    error, slope = jit(checkify(grad(log)))(-2.0)
    assert slope == -0.5 and message(error).startswith("-2.0")
    error, _ = checkify(grad(lambda x: with_vjp_rule(x)))(-2.0)
    assert error.get() is None
    error, _ = checkify(grad(np.sqrt), module.all_checks)(0.0)
    assert error.get() is not None


def test_known_values_are_checked_at_once():
    for call, x in ((log, -2.0), (grad(log), -2.0), (vmap(log), X), (in_scan, -2.0)):
        with pytest.raises(errors.CheckError, match=r"-(2|11)\.0 is not positive"):
            call(x)
    assert grad(log)(2.0) == 0.5


def test_a_nan_behind_a_check_or_a_print_is_explained():
    def f(x):
        functx.debug.print("{}", x)
        module.debug_check(x > 0, "negative")
        return np.log(x)

    assert functx.tools.explain_nan(f)(-1.0).summary == "the result of f is nan"


def test_a_compiled_check_asks_for_checkify():
    with pytest.raises(errors.UnhandledCheckError, match=r"functx\.checkify\.checkify") as caught:
        jit(log)(1.0)
    assert "in log: check(x > 0" in str(caught.value)


def test_an_error_is_checked_again():
    def twice(x):
        error, out = jit(checkify(log))(x)
        check_error(error)
        return out

    with pytest.raises(errors.CheckError, match=r"-2\.0 is not positive"):
        twice(-2.0)
    assert message(jit(checkify(twice))(-2.0)[0]).startswith("-2.0")

    def scanned(xs):
        _, error = lax.scan(lambda c, x: (c, checkify(log)(x)[0]), 0.0, xs)
        error.throw()

    assert "at mapped index 3: -4.0" in checkify(scanned)(X)[0].get()

    def inverse(x):
        error, out = checkify(lambda y: 1.0 / y, module.div_checks)(x)
        assert not error.has_data and repr(error) == "Error(1 checks)"
        error.throw()
        return out

    assert checkify(inverse)(0.0)[0].get().startswith("division by zero")
    with pytest.raises(errors.CheckError, match="division by zero"):
        grad(inverse)(0.0)


AUTOMATIC = {
    "nan generated by primitive: log.": (lambda x, i: np.log(x), "nan_checks"),
    "nan generated by primitive: rem.": (lambda x, i: x % 0.0, "float_checks"),
    "division by zero": (
        lambda x, i: lax.scan(lambda c, y: (c / y, y), 1.0, x * 0)[0],
        "div_checks",
    ),
    " division by zero": (lambda x, i: vmap(lambda y: i // y)(np.arange(3)), "div_checks"),
    "index 5 is out of bounds for axis 0 with size 4.": (lambda x, i: x[i], "index_checks"),
    "index 5 is out of bounds for axis 1 with size 2.": (
        lambda x, i: x.reshape(2, 2).at[0, i].set(1.0),
        "index_checks",
    ),
    "index 5 is out of bounds for axis 0 with size 4. ": (
        lambda x, i: lax.dynamic_update_slice(x, x[:2], (i,)),
        "automatic_checks",
    ),
}


@pytest.mark.parametrize("text", AUTOMATIC)
def test_automatic_checks_find(text):
    f, kinds = AUTOMATIC[text]
    found, line, *_ = jit(checkify(f, getattr(module, kinds)))(X, 5)[0].get().splitlines()
    assert found.endswith(text.strip()) and "lambda x, i" in line
    assert checkify(f, module.user_checks)(X, 5)[0].get() is None


def test_integers_that_replace_a_divisor_of_zero_are_no_failure():
    f = checkify(lambda x, y: x // np.where(y == 0, 1, y), module.div_checks)
    assert f(6, 0)[0].get() is None and f(6, 0)[1] == 6


def test_indices_of_a_short_dtype_may_lie_in_a_long_array():
    numbers = lax.GatherDimensionNumbers((), (0,), (0,))

    def f(x, i):
        return lax.gather(x, i, numbers, (1,))

    for size, fails in ((300, False), (100, True)):
        error, _ = checkify(f, module.index_checks)(numpy.ones(size), numpy.array([[200]], "uint8"))
        assert ("index 200" in str(error.get())) == fails


def test_only_the_chosen_checks_are_made():
    assert checkify(log, module.nan_checks)(-1.0)[0].get().startswith("nan generated")
    error, out = checkify(log, frozenset())(-1.0)
    assert error.get() is None and error.has_data and numpy.isnan(out)
    assert functx.make_ir(checkify(log, frozenset()))(-1.0).effects == frozenset()


def test_a_debug_check_is_made_under_checkify_alone():
    def f(x):
        module.debug_check(x > 0, "negative")
        return x

    assert f(-1.0) == jit(f)(-1.0) == grad(f)(-1.0) * -1 == -1.0
    assert checkify(f)(-1.0)[0].get().startswith("negative")


MISTAKES = {
    "must be a boolean scalar": lambda: check(X > 0, "x"),
    "must be a format string": lambda: check(True, 3),
    "every field must have a value": lambda: check(True, "{y}", x=1),
    "must be a set of checks": lambda: checkify(log, "nan"),
    "must be an Error": lambda: check_error("failed"),
    "must stand where its failure can be returned": lambda: checkify(
        lambda b: lax.custom_linear_solve(lambda x: x, b, lambda _, b: (log(b[0]), b)[1])
    )(X),
}


@pytest.mark.parametrize("text", MISTAKES)
def test_a_mistake_is_named(text):
    with pytest.raises(errors.FunctxError, match=text):
        MISTAKES[text]()
