"""`explore`: Python control flow on traced values, against plain Python runs of the same functions."""

import contextlib
import inspect
import sys
import threading
import types

import jax
import numpy
import pytest

import functx
import functx.numpy as np
from functx import explore, grad, jit, jvp, make_ir, vmap
from functx.errors import IdentityTestError
from functx.testing.reference.interpreter import interpret_in_numpy
from functx.transforms.explore import identity


def absolute(x):
    return x if x >= 0 else -x


def relu_chain(x):
    if x > 1:
        y = x * 2
    elif x > 0:
        y = x + 1
    else:
        y = 0.0
    return y


def sign(x):
    if x > 0:
        return 1.0
    if x < 0:
        return -1.0
    return 0.0


def clamp(x):
    return min(max(x, -1.0), 1.0)


def middle(x):
    a, b, c = x, x * x, 1.0 - x
    return sorted([a, b, c])[1]


def both(x):
    return 1.0 if x > 0 and x < 1 else 2.0


def either(x):
    return x if x < -1 or x > 1 else x * x


def between(x):
    return 3.0 if -1 < x < 1 else x


def negated(x):
    return x * 2 if not x > 0 else x


def newton(x):
    y = abs(x) + 1.0
    dx = 1.0
    while abs(dx) > 1e-3:
        dx = (y * y - 2.0) / (2.0 * y)
        y = y - dx
    return y


def countdown(x):
    n = 0
    while x > 0:
        x = x - 1.0
        n += 1
    return x, n


def collatz(x):
    n = x * 0 + 6 if x < 0 else x * 0 + 7
    steps = 0
    while n != 1:
        n = n / 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return steps


def gcd(x):
    a, b = abs(x) * 0 + 12, abs(x) * 0 + 18
    while b > 0:
        a, b = b, a % b
    return a


def bisect(x):
    lo, hi, n = 0.0, 2.0 + abs(x), 0
    while hi - lo > 0.01 and n < 30:
        mid = (lo + hi) / 2
        if mid * mid > 2.0:
            hi = mid
        else:
            lo = mid
        n += 1
    return (lo + hi) / 2, n


def backtrack(x):
    t = 1.0
    while (x - 3 * t * x) ** 2 > x * x * (1 - 0.1 * t):
        t *= 0.5
    return x - 3 * t * x


def adaptive(x):
    t, h, y, rejected = 0.0, 0.5, x, 0
    while t < 1.0:
        if t + h > 1.0:
            h = 1.0 - t
        full = y - h * y
        half = y - h / 2 * y
        half = half - h / 2 * half
        if abs(full - half) < 0.02:
            t, y = t + h, half
            h = h * 1.5
        else:
            h = h / 2
            rejected += 1
    return y, rejected


def triangle(x):
    total, i = 0.0, 0
    while i < abs(x) * 3:
        j = 0
        while j < i:
            if (i + j) % 3 == 0:
                total += j
            elif (i * j) % 2 == 1:
                j += 1
                continue
            j += 1
        i += 1
    return total


def first_above(x):
    y = x
    for k in range(6):  # noqa: B007 - the last one is returned
        y = y * y + 0.1
        if y > 1.5:
            break
    else:
        y = y - 10.0
    return y, k


def count_positive(x):
    n = 0
    for v in [x, x - 1, x + 1, -x]:
        if v > 0:
            n += 1
    return n


def ten_ifs(x):
    for i in range(10):
        if x > i * 0.3:
            x *= 0.9
        else:
            x += 0.25
    return x


def any_all(x):
    vs = [x - 0.5, x + 0.5, x * x]
    return (1.0 if any(v > 1 for v in vs) else 0.0) + (10.0 if all(v > 0 for v in vs) else 0.0)


def helper(x):
    def root(a):
        y = a
        while abs(y * y - a) > 1e-2:
            y = (y + a / y) / 2
        return y

    return 2.0 * root(x * x + 1.0) + (root(4.0 + x * 0) if x > 0 else x)


def do_while(x):
    while True:
        x = x * 0.5
        if abs(x) < 0.1:
            break
    return x


def two_exits(x):
    n = 0
    while True:
        x = x * 1.5 - 0.2
        n += 1
        if x > 10:
            return x
        if x < -10:
            return -x * 2
        if n > 20:
            break
    return x * 0 + n


def continues(x):
    s, i = 0.0, 0
    while i < 8:
        i += 1
        if x + i < 5:
            continue
        s = s + x * i
    return s


def temporary(x):
    if x > 0:
        t = x * 2
        y = t + 1
    else:
        y = x
    if y > 1:
        u = y * y
        y = u - 1
    return y


def correlated(x):
    if x > 0:
        y = x * 3
    if x > 0:
        return y
    return x


def weights(x):
    a = 2.0 if x > 0 else 0.5
    b = 3 if x > 1 else 1
    c = 1.0 if x < -1 else 7.0
    return a * x + b * x * x + c


def expression(x):
    return (x if x > 0 else 1.0) * (2.0 if x > 1 else x) + (3.0 if x < -1 else 4.0)


def fibonacci(x):
    a, b = 0, 1
    while b < abs(x) * 10:
        a, b = b, a + b
    return a


def power(x):
    result, base, n = 1.0, x, 10
    while n > 0:
        if n % 2 == 1:
            result = result * base
        base = base * base
        n //= 2
    return result


def ternary_loop(x):
    n = 0
    while (x if n % 2 == 0 else -x) < 2 and n < 9:
        x = x + 0.7
        n += 1
    return x


def container(x):
    state = {"x": x, "n": 0}
    while state["x"] < 3:
        state["x"] = state["x"] * 1.5 + 0.5 + abs(state["x"])
        state["n"] += 1
    return state


class Counter:
    def __init__(self, x):
        self.x, self.n = x, 0

    def step(self):
        self.x = self.x - 1 if self.x > 0 else self.x + 0.5
        self.n += 1


def attributes(x):
    c = Counter(x)
    while abs(c.x) > 0.5:
        c.step()
    return c.x, c.n


def hidden_iterator(x):
    for _ in range(3):
        for _ in range(2):
            if x > 0:
                x = x - 0.75
    return x


def hidden_list(x):
    for _ in [None] * 4:
        if x < 0:
            break
        x = x - 0.8
    return x


def alias(x):
    old = x
    new = x * 0.5 + 1
    while abs(new - old) > 0.01:
        old, new = new, new * 0.5 + 1
    return new, old


def flag(x):
    done, n = False, 0
    while not done:
        x = x * 0.7
        n += 1
        if abs(x) < 0.2:
            done = True
    return x, n


def early(x):
    if x > 1:
        return x
    y = x * 2
    while y < 1:
        if y < -3:
            return y * 100
        y = y + 0.5
    return y - 1


def for_variable_used_otherwise(x):
    for v in range(3):
        n = 0
        while n < 3 and v > 0.5:
            n += 1
            v, x = x, v * 0.75
    return x, v


def while_in_for(x):
    y = 1.0
    for i in range(2):
        if y * y < 1.5:
            n = 0
            while n < 5 and i < i:
                n += 1
        else:
            y = i * 1.0
        y = abs(y * x)
    return x, y


def for_variable_shares_its_value(x):
    y = x * 0.5 if x > 0 else x * x
    for t, w in zip((y, y), (-abs(y), x), strict=True):
        if t > w:
            y = w - t
    return y * 2 if y < x else y


def largest_by_key(x):
    y = x * x - 1
    return max((y, x, y), key=lambda u: abs(u + 1.2))


def decides_in_finally(x):
    before, n = x, 0
    try:
        while x < 2 and n < 3:
            n += 1
            x = x * 0.5 + 1
    except BaseException:  # no run that ends may go on here
        x = 100.0
    finally:
        if x > before:
            x = x - before
    return x


def decided_on_one_way(x):
    y = x * x - 1
    if y > 0 and x > 0:
        y = y + 1
    if y < 2:
        y = y * 2
    if x > 0:
        y = y - 3
    return y


PROGRAMS = [
    value
    for name, value in globals().copy().items()
    if callable(value) and getattr(value, "__module__", None) == __name__ and name != "Counter"
]
POINTS = [float(numpy.float32(x)) for x in (-2.3, -1.0, -0.4, 0.0, 0.35, 0.9, 1.0, 1.7, 2.6)]


def total(f):
    """The sum of the results of `f`."""
    return lambda x: sum(leaf * 1.0 for leaf in jax.tree_util.tree_leaves(f(x)))


@pytest.mark.parametrize("f", PROGRAMS, ids=lambda f: f.__name__)
def test_an_explored_function_has_the_values_of_a_plain_run(f):
    program = make_ir(explore(f))(1.0)
    for x in POINTS:
        expected = [float(leaf) for leaf in jax.tree_util.tree_leaves(f(x))]
        got = [float(y) for y in interpret_in_numpy(program, x)]
        assert numpy.allclose(got, expected, rtol=1e-4, atol=1e-4), x


# Programs that take long, of kinds that others have.
LONG = (middle, ten_ifs, hidden_iterator, any_all, triangle, adaptive, helper, fibonacci)
LONG += (for_variable_used_otherwise, for_variable_shares_its_value, while_in_for)
LONG += (decides_in_finally, largest_by_key)


@pytest.mark.parametrize("f", [f for f in PROGRAMS if f not in LONG], ids=lambda f: f.__name__)
def test_derivatives_and_batches_of_an_explored_function_are_those_of_plain_runs(f):
    points = [x for x in POINTS if x not in (0.0, 1.0, -1.0)]
    loss, step = total(f), 1e-6
    batched = make_ir(vmap(loss, explore=True))(numpy.array(points, "float32"))
    (values,) = interpret_in_numpy(batched, numpy.array(points))
    assert numpy.allclose(values, [loss(x) for x in points], rtol=1e-4, atol=1e-4)
    forward = make_ir(lambda x: jvp(explore(loss), (x,), (1.0,))[1])(1.0)
    backward = make_ir(grad(explore(loss)))(1.0)
    for x in points[::2]:
        slope = (loss(x + step) - loss(x - step)) / (2 * step)
        assert numpy.allclose(interpret_in_numpy(forward, x), slope, rtol=1e-3, atol=1e-3), x
        assert numpy.allclose(interpret_in_numpy(backward, x), slope, rtol=1e-3, atol=1e-3), x


def test_comparisons_by_identity_with_true_and_false_are_decided():
    def is_large(x):
        return x > 1

    def identities(x):
        flag = x > 0
        match flag:
            case None:
                y = 0.0
            case True:
                y = 1.0
            case False:
                y = 2.0
        match (x > 0.5, x > 2):
            case (True, False):
                y = y + 10
        if is_large(x) is not True:
            y = y + 100
        if (x < 0 or x > 1.5) is False:
            y = y + 1000
        return y + [0, 10_000][x > -1] + int(x > 2) * 100_000

    program = make_ir(explore(identities))(1.0)
    assert [interpret_in_numpy(program, x)[0] for x in POINTS] == [identities(x) for x in POINTS]


def choose(flag, if_true, if_false):
    return if_true if flag is True else if_false


def test_booleans_compared_by_identity_are_decided_wherever_they_come_from():
    def flags(x, train=True):
        true, holder = True, types.SimpleNamespace(flag=x > 0.5)
        positive = x > 0
        copy = positive
        value, packed = x, x > 1
        y = choose(copy is True, 1.0, 2.0)
        y += choose(packed, 10.0, 20.0)
        y += 100 if holder.flag is not False else 200
        y += 1000 if true is {"large": x > 2}["large"] else 2000
        with contextlib.nullcontext(x > -1) as inside:
            y += sum(1e4 if each is True else 2e4 for each in [inside])
        if (x > 0) is (x > 1):
            y += 1e6
        # This test of a flag of Python leaves the comparison an array.
        return y + (x > 0.7) * value if train is True else y

    program = make_ir(explore(flags))(1.0)
    got = [interpret_in_numpy(program, numpy.float64(x))[0] for x in POINTS]
    assert numpy.allclose(got, [flags(x) for x in POINTS], rtol=1e-6)
    assert sys.gettrace() is None


def test_a_while_may_test_a_flag_by_identity():
    def until_large(x):
        flag, n = x > 100, 0
        while flag is not True:
            x, n = abs(x) * 2 + 1, n + 1
            flag = x > 10
        return x * n

    program = make_ir(explore(until_large))(1.0)
    assert "while[" in str(program)
    assert [interpret_in_numpy(program, x)[0] for x in POINTS] == [until_large(x) for x in POINTS]


def test_a_python_whose_stack_is_unknown_compares_plain_flags_only(monkeypatch):
    monkeypatch.setattr(identity, "is_layout_known", lambda: False)
    plain = make_ir(explore(lambda x, train=True: choose(train, x, -x) if x > 0 else x))(1.0)
    assert interpret_in_numpy(plain, 2.0) == [2.0]

    def catches(x):
        with contextlib.suppress(IdentityTestError):
            choose(x > 0, x, -x)
        return choose(x > 0, x, -x)

    for f in (catches, lambda x: choose(x > 0, x, -x), lambda x: x if (x > 0) is True else -x):
        with pytest.raises(IdentityTestError, match="flag == True"):
            make_ir(explore(f))(1.0)


def test_a_run_may_assign_a_variable_that_the_path_it_follows_does_not():
    def sums(x, y):
        a, state = x * 0.5, [x, 1.0]
        for i in range(3):
            n = 0
            while n < 5 and x + 0.7 > i:
                n += 1
                a = state[1]
            if i * i < y:
                _j = i
                _b = a
        return x * 1.0, y * 1.0, state[0] + state[1] + a

    program = make_ir(explore(sums))(numpy.float32(1), numpy.float32(2))
    for point in ((0.3, -0.4), (-0.8, 2.1), (2.5, 0.5), (1.0, 5.0)):
        assert numpy.allclose(interpret_in_numpy(program, *point), sums(*point), rtol=1e-5)


def test_a_condition_known_for_one_value_of_a_variable_is_decided_anew_for_the_next():
    def steps(x, y):
        a = x * 0.5
        if abs(x) > 0.25:
            n = 0
            while n < 2:
                n += 1
                a = 1.0 if x > 0.25 else 2.0
                x = y
        return a

    program = make_ir(explore(steps))(numpy.bool_(True), numpy.bool_(True))
    for y in (True, False):
        assert interpret_in_numpy(program, numpy.bool_(True), numpy.bool_(y)) == [steps(True, y)]


def test_sequential_branches_become_as_many_conditionals_and_common_ends_are_not_repeated():
    text = str(make_ir(explore(ten_ifs))(1.0))
    assert text.count(" = cond[") == 10
    assert text.count("mul c0") == text.count("add c0") == 1

    def with_common_end(x):
        y = x * 2 if x > 0 else x - 1
        return np.sin(y) + np.cos(y)

    text = str(make_ir(explore(with_common_end))(1.0))
    assert text.count("sin") == text.count("cos") == 1


def test_many_sequential_branches_need_no_deep_recursion(tmp_path):
    lines = [f"    x = x + {i} if x > {i} else x * 2" for i in range(40)]
    code = compile("\n".join(["def f(x):", *lines, "    return x"]), tmp_path / "f.py", "exec")
    exec(code, namespace := {})
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack()) + 150)
    try:
        program = make_ir(explore(namespace["f"]))(1.5)
    finally:
        sys.setrecursionlimit(limit)
    assert interpret_in_numpy(program, 1.5) == [namespace["f"](1.5)]


def test_a_loop_becomes_one_while_whose_carries_are_what_changes():
    text = str(make_ir(explore(backtrack))(1.0))
    assert (
        text.count("while[") == 1
        and "program condition(values_0: bool[], values_1: ~f32[])" in text
    )
    text = str(make_ir(explore(triangle))(1.0))
    assert text.count("while[") == 2


def test_jit_and_vmap_explore_on_request_and_compiled_values_agree():
    points = numpy.array([0.2, 0.9, 1.7], "float32")
    assert numpy.allclose(
        jit(vmap(bisect, explore=True))(points)[0], [bisect(x)[0] for x in points]
    )
    assert jit(collatz, explore=True)(2.0) == 16


def test_writes_in_branches_and_loops_reach_the_arrays():
    def fill(x):
        view = x[1:]
        if x[0] > 0:
            view[0] = 7.0
        else:
            x[2] = -1.0
        i = 0
        while i < x[1]:
            x[0] += i
            i += 1
        return view.sum()

    program = jit(lambda x: (x := x.copy(), explore(fill)(x))[::-1])
    for start in ([1.0, 3.0, 2.0], [-1.0, 3.0, 2.0]):
        plain = numpy.array(start, "float32")
        expected = fill(plain)
        got, changed = program(numpy.array(start, "float32"))
        assert got == expected and changed.tolist() == plain.tolist()
    outside = numpy.array([1.0, 3.0, 2.0], "float32")
    explore(fill)(outside)
    assert outside.tolist() == [22.0, 7.0, 2.0]


def test_functions_traced_inside_are_explored_too():
    def loss(x):
        return x * x if x > 1 else -x

    def outer(x):
        slope = grad(loss)(x)
        return functx.lax.scan(lambda c, _: (c - 1 if c > 0 else c + slope, c), x, None, 3)[0]

    program = make_ir(explore(outer))(1.0)
    assert [float(interpret_in_numpy(program, x)[0]) for x in (0.5, 2.0)] == [-2.5, 4.0]


def test_paths_with_other_results_name_the_lines_of_both():
    def shapes(x):
        if x.sum() > 0:
            return x * 2
        return x.sum()

    with pytest.raises(functx.errors.BranchTypeError) as caught:
        jit(shapes, explore=True)(numpy.ones(3, "float32"))
    message = str(caught.value)
    assert "if True" in message and "return x * 2" in message
    assert "if False" in message and "return x.sum()" in message

    def structures(x):
        return (x, x) if x > 0 else x

    with pytest.raises(functx.errors.BranchTypeError, match="one structure and type"):
        explore(structures)(1.0)


def test_limits_and_numbers_of_python_are_told_with_a_cure():
    with pytest.raises(functx.errors.PathLimitError, match=r"any_all.*at most 5 paths"):
        explore(any_all, paths=5)(1.0)

    def grow(x):
        values = [x]
        while values[-1] > 0:
            values.append(values[-1] - 1)
        return values[-1]

    with pytest.raises(functx.errors.IterationLimitError, match=r"within 20 iterations.*`values`"):
        explore(grow, iterations=20)(1.0)

    def counts_out_of_sight(x):
        global unseen_count
        unseen_count = 0
        while x > 0:
            unseen_count += 1
            x = x - unseen_count if unseen_count < 30 else x * 0.5 - 1.0
        return x

    with pytest.raises(functx.errors.IterationLimitError, match=r"not merged"):
        explore(counts_out_of_sight)(1.0)
    with pytest.raises(functx.errors.ExploredNumberError, match="while i < n"):
        explore(lambda n: sum(range(int(n))))(3)
    with pytest.raises(functx.errors.ArgumentError, match="not those of numbers, shapes"):
        explore(lambda x: np.zeros(x.astype(int).item()))(3.0)
    with pytest.raises(functx.errors.ConcretizationError, match=r"functx\.explore"):
        jit(lambda x: x if x > 0 else -x)(1.0)
    with pytest.raises(functx.errors.ArgumentError, match="paths must be a positive int"):
        explore(abs, paths=0)

    def unrolled(x):
        for _ in range(80):
            if x > 5:
                break
            x = x + 1
        return x

    with pytest.raises(functx.errors.PathLimitError, match="Count with `while i < n`"):
        explore(unrolled)(1.0)


def test_a_loop_whose_iterator_no_variable_shows_ends_where_it_does_in_python():
    def twice(x):
        for _ in range(12):
            for _ in range(2):
                if x > 500:
                    return x
                x = x + 1
        return x

    program = make_ir(explore(twice))(1.0)
    assert [interpret_in_numpy(program, x)[0] for x in (0.0, 490.0)] == [24.0, 501.0]


def test_a_function_that_computes_otherwise_when_run_again_is_told():
    calls = []

    def changing(x):
        calls.append(x)
        return x * len(calls) if x > len(calls) else x

    with pytest.raises(functx.errors.ReplayError, match="compute the same whenever it runs"):
        explore(changing)(1.0)


def test_an_error_of_the_function_names_the_outcomes_that_lead_to_it():
    def refuses(x):
        if x < 0:
            raise ValueError("negative")
        return x

    with pytest.raises(ValueError, match="negative") as caught:
        jit(refuses, explore=True)(1.0)
    assert "True: test_explore.py" in "".join(caught.value.__notes__)


def test_writes_to_captured_arrays_in_a_loop_are_results_of_each_batch_element():
    def grow(x):
        steps = 0
        while x.sum() < 10:
            x[0] += 1
            x[1:] *= 1.5
            steps += 1
        return steps

    def call(x):
        x = x.copy()
        return explore(grow)(x), x

    rows = numpy.array([[1, 2], [3, 1]], "float32")
    program = make_ir(vmap(call))(rows)
    plain = [row.copy() for row in rows]
    expected = [grow(row) for row in plain]
    steps, grown = interpret_in_numpy(program, rows)
    assert steps.tolist() == expected and numpy.allclose(grown, plain)


def test_threads_explore_at_the_same_time():
    found = []

    def work():
        program = make_ir(explore(countdown))(1.0)
        found.append([float(y) for y in interpret_in_numpy(program, 2.5)])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert found == [[-0.5, 3.0]] * 4


def test_ifs_of_a_for_loops_that_accept_or_reject_and_recursion():
    def signs(x):
        total, rounds = x[0] * 0, 0
        for v in x:
            if v > 0:
                total = total + v
                if total > 2:
                    continue
            else:
                total = total - 2 * v
            rounds += 1
        return total, rounds

    def accepts(x):
        lam, n = 1.0, 0
        while n < 20:
            new = x - (x - 0.3) / (2 + lam)
            if ((new - 0.3) ** 2).sum() < ((x - 0.3) ** 2).sum() and lam > 0.01:
                x = new
                lam = lam * 0.5
            else:
                lam = lam * 3.0
            if abs(x[0] - 0.3) < 1e-3:
                break
            n += 1
        return x, lam, n

    rows = numpy.random.RandomState(0).randn(4, 12).astype("float32")
    for f in (signs, accepts):
        program = make_ir(explore(f, paths=60))(rows[0])
        for row in rows:
            expected = [*f(row)]
            got = interpret_in_numpy(program, row)
            assert all(numpy.allclose(a, b, 1e-4) for a, b in zip(got, expected, strict=True))

    def halves(x):
        return x if x < 1 else halves(x / 2) + 1

    with pytest.raises(functx.errors.IterationLimitError, match="recursion on a traced value"):
        explore(halves)(10.0)
    with pytest.raises(functx.errors.ArgumentError, match=r"explore.*got str at output"):
        explore(lambda x: "a" if x > 0 else "b")(1.0)
