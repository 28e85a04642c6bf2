"""What counts as one captured walk, contexts and threads of `enable`, and errors in compiled walks."""

import gc
import threading
import weakref
from contextlib import nullcontext

import numpy as onp
import pytest

import functx.numpy as np
from functx import compiled_autograd
from functx.autograd import (
    Function,
    Variable,
    backward,
    checkpoint,
    detect_anomaly,
    enable_grad,
    grad,
    queue_callback,
    saved_tensors_hooks,
    unsafe_preserve_version_counter,
)
from functx.autograd.compiled.compilers import WalkCompiler
from functx.autograd.views import VersionCounter
from functx.compiled_autograd import (
    compile_stages,
    counters,
    disable,
    enable,
    in_compiled_autograd_region,
)
from functx.core.errors import (
    AutogradError,
    CapturedWalkError,
    FunctionGradientError,
    HookResultError,
    SavedValueError,
    WalkCompilerError,
)

RANDOM = onp.random.default_rng(0)


pytestmark = pytest.mark.usefixtures("nothing_captured")


def array(*shape):
    return RANDOM.normal(size=shape).astype("float32")


def leaf(value):
    return Variable(value, requires_grad=True)


def new_net(layers=3):
    return [leaf(array(4, 4)) for _ in range(layers)]


def walk_net(ws, x):
    for w in ws:
        x = np.tanh(x @ w)
    x.sum().backward()
    return [onp.array(w.grad) for w in ws]


def captures(run):
    """How many walks are captured while `run` runs."""
    before = counters.captures
    with enable():
        run()
    return counters.captures - before


def square_class():
    class Square(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return 2 * g * x

    return Square


def check_square(square, size):
    x = leaf(array(size))
    square.apply(x).sum().backward()
    onp.testing.assert_allclose(x.grad, 2 * x.numpy(), rtol=1e-6)


def test_fresh_models_of_equal_structure_share_one_capture():
    x, weights = array(2, 4), [[w.numpy() for w in new_net()] for _ in range(3)]

    def run(found):
        found += [walk_net([*map(leaf, each)], x) for each in weights]

    plain, compiled = [], []
    run(plain)
    assert captures(lambda: run(compiled)) == 1
    assert (counters.misses, counters.hits, counters.compiles, counters.stages) == (1, 2, 1, 1)
    onp.testing.assert_allclose(compiled, plain, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize(
    "register",
    [
        lambda y, k: y.register_hook(lambda g: g * k),
        lambda y, k: y.grad_fn.register_prehook(lambda gs: (gs[0] * k,)),
        lambda y, k: y.grad_fn.register_hook(lambda ins, outs: (ins[0] * k,)),
    ],
    ids=["value hook", "node prehook", "node posthook"],
)
def test_closures_of_one_place_share_one_capture_and_each_is_called(register):
    def run():
        for k in range(1, 4):
            x = leaf(array(3))
            y = np.sin(x)
            register(y, k)
            (y * 2).sum().backward()
            onp.testing.assert_allclose(x.grad, 2 * k * onp.cos(x.numpy()), rtol=1e-5)

    assert captures(run) == 1


def test_gradients_that_are_not_cleared_are_captured_once_without_and_once_with_a_value():
    x = leaf(array(3))

    def run():
        for _ in range(10):
            (x * 3).sum().backward()

    assert captures(run) == 2
    assert x.grad.tolist() == [30] * 3


def test_a_gradient_that_was_set_keeps_its_object():
    x = leaf(array(3))
    kept = x.grad = Variable(onp.ones(3, "float32"))

    def run():
        for _ in range(4):
            (x * 3).sum().backward()

    assert captures(run) == 1
    assert x.grad is kept and kept.tolist() == [13] * 3


def test_other_wanted_leaves_are_another_capture():
    def run():
        a, b = leaf(2.0), leaf(3.0)
        backward([a * b], inputs=[a])
        assert float(a.grad) == 3 and b.grad is None
        backward([a * b], inputs=[b])
        assert float(a.grad) == 3 and float(b.grad) == 2

    assert captures(run) == 2
    assert captures(run) == 0


@pytest.mark.parametrize("dynamic", [False, True])
def test_sizes_are_captured_twice_at_most_and_compiled_apart(dynamic, monkeypatch):
    monkeypatch.setattr(WalkCompiler, "runs_first_walk", True)
    ws = new_net(1)
    with enable(dynamic=dynamic):
        for size in range(1, 10):
            ws[0].grad = None
            x = array(size, 4)
            (found,) = walk_net(ws, x)
            slope = 1 - onp.tanh(x @ ws[0].numpy()) ** 2
            onp.testing.assert_allclose(found, x.T @ slope, rtol=1e-4, atol=1e-5)
    assert (counters.captures, counters.compiles) == (1 if dynamic else 2, 9)
    assert (counters.hits, counters.misses) == (0, 9)


def test_sizes_that_are_equal_by_chance_may_differ_later():
    for dynamic in (False, True):
        with enable(dynamic=dynamic):
            for rows, columns in ((4, 4), (4, 4), (4, 5), (5, 4), (5, 4), (3, 3)):
                x, y = leaf(array(rows, columns)), leaf(array(columns, rows))
                (np.tanh(x @ y) * 2).sum().backward()
                slope = 2 * (1 - onp.tanh(x.numpy() @ y.numpy()) ** 2)
                onp.testing.assert_allclose(x.grad, slope @ y.numpy().T, rtol=1e-4, atol=1e-4)
                onp.testing.assert_allclose(y.grad, x.numpy().T @ slope, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(3,), ()])
def test_numbers_are_inputs_and_exponents_are_not(shape):
    def scale(k):
        x = leaf(array(*shape))
        (x * k).sum().backward()
        onp.testing.assert_allclose(x.grad, onp.full(shape, k), rtol=1e-6)

    def power(k):
        x = leaf(array(*shape))
        (x**k).sum().backward()
        onp.testing.assert_allclose(x.grad, k * x.numpy() ** (k - 1), rtol=1e-5)

    assert captures(lambda: [scale(k) for k in (2, 3, 4)]) == 1
    assert captures(lambda: [scale(k) for k in (2.5, 3.5)]) == 0
    assert captures(lambda: [power(k) for k in (2, 3, 2)]) == 2


@pytest.mark.parametrize(
    ("walks", "static", "dynamic"),
    [
        ("A3 B3 A3 B3", 2, 2),
        ("A3 B3 A5", 3, 2),
        ("A3 B3 A3 B3 A5 B5", 4, 2),
        ("A3 A3 A5", 2, 1),
        ("A3 A5 A3 A7", 2, 1),
        ("A3 B3 A5 B5 A7 B7", 4, 2),
        ("AB3 AB3 AB5", 2, 1),
        ("C3 C3 C3", 3, 3),
    ],
)
def test_functions_are_captured_by_class_as_often_as_in_pytorch(walks, static, dynamic):
    """PyTorch's counts, by `torch._dynamo.compiled_autograd._enable`, whose default is dynamic.

    A walk goes through the classes of the letters, in an array of the given size; C is made anew each time.
    """
    classes = {"A": square_class(), "B": square_class()}

    def run():
        for letters, size in [(walk[:-1], int(walk[-1])) for walk in walks.split()]:
            x = y = leaf(array(size))
            for letter in letters:
                y = (classes.get(letter) or square_class()).apply(y)
            y.sum().backward()
            power = 2 ** len(letters)
            onp.testing.assert_allclose(x.grad, power * x.numpy() ** (power - 1), rtol=1e-5)

    for count, is_dynamic in ((static, False), (dynamic, True)):
        compiled_autograd.reset()
        with enable(dynamic=is_dynamic):
            run()
        assert counters.captures == count


def test_functions_of_many_sizes_are_captured_twice():
    square = square_class()

    class Several(Function):
        @staticmethod
        def forward(ctx, x, y, name):
            ctx.save_for_backward(x, x, y)
            ctx.shape, ctx.name = x.shape, name
            return x * y, x + y

        @staticmethod
        def backward(ctx, g, h):
            x, same, y = ctx.saved_tensors
            assert ctx.shape == g.shape and ctx.name == "name"
            onp.testing.assert_array_equal(x, same)
            return g * y + h, g * x + h, None

    def of_several():
        for size in (10, 100, 10, 15, 20, 25):
            x, y = leaf(array(size)), leaf(array(size))
            product, total = Several.apply(x, y, "name")
            (product + total).sum().backward()
            onp.testing.assert_allclose(x.grad, y.numpy() + 1, rtol=1e-6)
            onp.testing.assert_allclose(y.grad, x.numpy() + 1, rtol=1e-6)

    assert captures(lambda: [check_square(square, n) for n in (10, 100, 10, 15, 20, 25)]) == 2
    assert captures(of_several) == 2


def test_a_second_derivative_is_two_captures():
    def run():
        for _ in range(3):
            x = leaf(array(3))
            (g,) = grad((x**3).sum(), [x], create_graph=True)
            (h,) = grad(g.sum(), [x])
            onp.testing.assert_allclose(h, 6 * x.numpy(), rtol=1e-5)

    assert captures(run) == 2


@pytest.mark.parametrize(
    "root",
    [np.linalg.norm, np.abs, lambda x: np.abs(np.linalg.norm(x))],
    ids=["norm", "abs", "both"],
)
def test_a_compiler_function_gets_even_powers_differentiated_with_their_roots(root):
    x = Variable([0.0, 0.0], requires_grad=True)
    with enable(lambda program: program):
        (slope,) = grad((root(x) ** 2).sum(), x, create_graph=True)
    assert grad(slope.sum(), x)[0].tolist() == [2.0, 2.0]


def test_a_wanted_value_without_a_gradient_keeps_what_its_operation_saved():
    class NoGradient(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return None

    x = leaf([1.0, 2.0])
    for _ in range(3):
        y = x * x
        with enable():
            assert grad(NoGradient.apply(y).sum(), y, allow_unused=True) == (None,)
        assert grad(y.sum(), x)[0].tolist() == [2.0, 4.0]


def test_hooks_of_leaves_run_behind_their_layer_in_each_step():
    weights, log = new_net(), []
    for i, w in enumerate(weights):
        w.register_post_accumulate_grad_hook(lambda _, i=i: log.append(f"leaf {i}"))

    def step():
        x = array(2, 4)
        for i, w in enumerate(weights):
            x = np.tanh(x @ w)
            x.register_hook(lambda g, i=i: log.append(f"layer {i}"))
            w.grad = None
        x.sum().backward()

    order = [f"{kind} {i}" for i in (2, 1, 0) for kind in ("layer", "leaf")]
    for context in (disable, disable, enable, enable, enable):
        with context():
            step()
        assert log == order
        log.clear()
    assert (counters.captures, counters.hits) == (1, 2)


def test_the_number_of_hooks_and_their_kind_are_part_of_the_structure():
    def run():
        for count, at_node in ((0, False), (1, False), (2, False), (1, True)):
            x = leaf(array(3))
            y = x * 2
            for _ in range(count):
                if at_node:
                    y.grad_fn.register_prehook(lambda gs: None)
                else:
                    y.register_hook(lambda g: None)
            y.sum().backward()

    assert captures(run) == 4


def test_values_that_coincide_are_another_capture():
    def run(same):
        x, y = leaf(array(3)), leaf(array(3))
        z = np.sin(x) * (np.sin(x) if same else np.sin(y))
        z.sum().backward()

    assert captures(lambda: (run(False), run(False), run(True))) == 2


def test_contexts_nest_and_end_with_their_block():
    names = []

    def compiler(name):
        def compile_named(program):
            names.append(name)
            return compile_stages(program)

        return compile_named

    def walk():
        x = leaf(array(3))
        y = x * 2
        inside = []
        y.register_hook(lambda g: inside.append(in_compiled_autograd_region()))
        y.sum().backward()
        return inside[0]

    with enable(compiler("outer")):
        assert walk()
        with disable():
            assert not walk()
            with enable(compiler("inner")):
                assert walk()
            assert not walk()
        assert walk()
        with pytest.raises(KeyError), enable(compiler("failing")):
            raise KeyError
        assert walk()
    assert not walk() and not in_compiled_autograd_region()
    assert names == ["outer", "inner"]


def test_contexts_are_decorators_and_may_be_entered_again():
    x = leaf(array(3))

    @enable()
    def compiled():
        (x * x).sum().backward()

    @disable()
    def plain():
        (x * x).sum().backward()

    plain()
    assert counters.misses == 0
    compiled()
    compiled()
    assert (counters.misses, counters.hits) == (1, 1)
    context = enable()
    with context, context, enable():
        plain()
        compiled()
    assert (counters.misses, counters.hits) == (1, 2)


def test_values_computed_outside_are_walked_inside():
    x = leaf(array(3))
    y = np.sin(x).sum()
    with enable():
        y.backward()
    assert counters.misses == 1
    onp.testing.assert_allclose(x.grad, onp.cos(x.numpy()), rtol=1e-5)


def test_threads_have_contexts_of_their_own_and_share_captures():
    x, results, problems = array(2, 4), {}, []
    weights = [w.numpy() for w in new_net()]

    def run(number, context):
        try:
            with context():
                results[number] = [walk_net([*map(leaf, weights)], x * number) for _ in range(5)]
        except Exception as e:
            problems.append(e)

    with enable():
        walk_net([*map(leaf, weights)], x)
        threads = [
            threading.Thread(target=run, args=(i, enable if i % 2 else disable)) for i in range(6)
        ]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        bare = threading.Thread(target=walk_net, args=([*map(leaf, weights)], x))
        bare.start()
        bare.join()
    assert not problems
    assert (counters.captures, counters.misses, counters.hits) == (1, 1, 15)
    for number in range(6):
        for found in results[number]:
            with disable():
                expected = walk_net([*map(leaf, weights)], x * number)
            onp.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_counts_are_kept_for_each_compiler():
    def count_only(program):
        return compile_stages(program)

    def walk():
        x = leaf(array(3))
        (x * x).sum().backward()

    with enable():
        walk(), walk(), walk()
    with enable(count_only):
        walk(), walk()
    assert [*counters] == ["default", "count_only"]
    assert counters["default"].as_dict() == {
        "captures": 1,
        "compiles": 1,
        "hits": 2,
        "misses": 1,
        "stages": 1,
    }
    assert str(counters["count_only"]) == "captures 1, compiles 1, hits 1, misses 1, stages 0"
    assert (counters.captures, counters.hits) == (2, 3)
    counters.clear()
    assert not counters.as_dict()["captures"] and len(counters) == 0
    with enable():
        walk()
    assert counters["default"].hits == 1


def test_reset_forgets_what_was_captured_and_the_compiler():
    def walk():
        x = leaf(array(3))
        (x * x).sum().backward()

    assert captures(walk) == 1 and captures(walk) == 0
    compiled_autograd.reset()
    compiled_autograd.reset()
    assert counters.misses == 0 and captures(walk) == 1
    with enable():
        compiled_autograd.reset()
        walk()
    assert counters.misses == 0


def test_reset_in_a_region_is_refused_and_the_region_ends_with_the_walk():
    for _ in range(3):
        x = leaf(array(3))
        y = x * 2
        y.register_hook(lambda g: compiled_autograd.reset())
        with enable(), pytest.raises(CapturedWalkError, match="must not be called while"):
            y.sum().backward()
        assert not in_compiled_autograd_region()
    assert counters.captures == 1


def test_rules_that_lead_to_nothing_wanted_are_not_run():
    class Refuses(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            raise AssertionError

    def run():
        for _ in range(3):
            x, y = leaf(array(3)), leaf(array(3))
            z = np.sin(x) + Refuses.apply(y)
            (found,) = grad(z.sum(), [x])
            onp.testing.assert_allclose(found, onp.cos(x.numpy()), rtol=1e-5)
            assert x.grad is None and y.grad is None
            z = np.sin(x) + Refuses.apply(y)
            assert z.sum().backward(inputs=[x]) is None
            onp.testing.assert_allclose(x.grad, onp.cos(x.numpy()), rtol=1e-5)

    assert captures(run) == 2


class Boom(Exception):
    """An error of a user."""


def fail_at(x):
    raise Boom


def failing_hook(y):
    y.register_hook(fail_at)
    return y


class FailingRule(Function):
    """The identity, whose rule raises."""

    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, g):
        raise Boom


def failing_pack(y):
    with saved_tensors_hooks(lambda x: x, fail_at):
        return np.sin(y) * y


@pytest.mark.parametrize("fail", [failing_hook, FailingRule.apply, failing_pack])
@pytest.mark.parametrize("compiler", [None, compile_stages])
def test_errors_arrive_unchanged_and_the_next_walk_works(fail, compiler):
    for _ in range(3):
        with enable(compiler):
            x, z = leaf(array(3)), leaf(array(3))
            y = fail(np.sin(x)) * z
            with pytest.raises(Boom):
                y.sum().backward()
            assert not in_compiled_autograd_region()
            assert x.grad is None
            u = leaf(array(3))
            np.exp(u).sum().backward()
            onp.testing.assert_allclose(u.grad, onp.exp(u.numpy()), rtol=1e-5)


def test_an_error_of_a_callback_comes_after_the_walk():
    def register(y):
        y.register_hook(lambda g: queue_callback(lambda: fail_at(None)))

    for _ in range(3):
        x = leaf(array(3))
        y = np.sin(x)
        register(y)
        with enable(), pytest.raises(Boom):
            y.sum().backward()
        onp.testing.assert_allclose(x.grad, onp.cos(x.numpy()), rtol=1e-5)
        assert not in_compiled_autograd_region()


def test_after_an_error_what_later_nodes_saved_is_there_for_another_walk():
    for _ in range(3):
        x = leaf(array(3))
        y = np.sin(x)
        z = y * y
        handle = y.register_hook(fail_at)
        with enable():
            with pytest.raises(Boom):
                z.sum().backward()
            handle.remove()
            y.sum().backward()
        onp.testing.assert_allclose(x.grad, onp.cos(x.numpy()), rtol=1e-5)


def test_an_error_of_the_compiler_function_leaves_the_graph_as_it_was():
    def fail(program):
        raise Boom

    x = leaf(array(3))
    y = np.sin(x).sum()
    with enable(fail):
        for _ in range(2):
            with pytest.raises(Boom):
                y.backward()
    assert x.grad is None and not in_compiled_autograd_region() and counters.compiles == 0
    with enable():
        y.backward()
    onp.testing.assert_allclose(x.grad, onp.cos(x.numpy()), rtol=1e-5)


def test_a_second_walk_over_freed_values_is_refused():
    for _ in range(3):
        with enable():
            x = leaf(array(3))
            y = np.sin(x).sum()
            y.backward()
            with pytest.raises(SavedValueError, match="freed"):
                y.backward()
            y = np.sin(x).sum()
            y.backward(retain_graph=True)
            y.backward()
            with pytest.raises(SavedValueError, match="freed"), disable():
                y.backward()


@pytest.mark.parametrize("compiler", [None, compile_stages])
@pytest.mark.parametrize(
    "register",
    [
        lambda w, z, hook: z.register_hook(hook),
        lambda w, z, hook: z.grad_fn.register_prehook(hook),
        lambda w, z, hook: z.grad_fn.register_hook(hook),
        lambda w, z, hook: w.register_post_accumulate_grad_hook(hook),
    ],
    ids=["value hook", "node prehook", "node posthook", "leaf hook"],
)
def test_a_hook_that_writes_to_a_value_which_is_still_to_be_read_is_refused(register, compiler):
    def run():
        for i in range(4):
            x, w = leaf(array(3)), leaf(array(3))
            y = np.sin(x * 2)
            z = y * y * w

            def write(*_, i=i, y=y):
                log.append(i)
                if i > 1:
                    y.detach()[...] = 0

            register(w, z, write)
            try:
                np.exp(z).sum().backward()
            except SavedValueError as error:
                log.append(error.problem)
            # A compiled form of one's own cannot be left, so the error comes at once there.
            log.append((x.grad is None, compiler is None and w.grad is None))

    log = []
    run()
    plain = log
    assert sum(["was written to" in str(line) for line in plain]) == 2
    log = []
    with enable(compiler):
        run()
    assert log == plain and (counters.captures, counters.hits) == (1, 3)


def test_writes_of_a_hook_count_in_a_walk_inside_it_and_not_where_the_version_is_kept():
    def run(keeps_version):
        found = []
        for _ in range(4):
            x, z = leaf(array(3)), leaf(array(3))
            y = np.sin(x)
            u = y * y

            def hook(g, y=y, z=z):
                with enable_grad():
                    (np.exp(z) * z).sum().backward()
                with unsafe_preserve_version_counter(y) if keeps_version else nullcontext():
                    y.detach()[...] = 1

            u.register_hook(hook)
            try:
                u.sum().backward()
                onp.testing.assert_allclose(x.grad, onp.sin(2 * x.numpy()), rtol=1e-4)
                found.append("done")
            except SavedValueError:
                found.append("refused")
            onp.testing.assert_allclose(z.grad, (1 + z.numpy()) * onp.exp(z.numpy()), rtol=1e-4)
        return found

    for context in (disable(), enable(), enable(compile_stages)):
        with context:
            assert (run(True), run(False)) == (["done"] * 4, ["refused"] * 4)
    assert not VersionCounter.logs


def test_hooks_may_write_to_values_that_were_read():
    """As optimizers do that update each leaf behind its gradient."""

    def train(steps):
        ws = [leaf(onp.full(3, 0.5 + i, "float32")) for i in range(3)]
        for w in ws:
            w.register_post_accumulate_grad_hook(update)
        for _ in range(steps):
            x = Variable(onp.ones(3, "float32"))
            for w in ws:
                x = np.sin(x * w)
            x.sum().backward()
        return [w.tolist() for w in ws]

    def update(w):
        w.detach()[...] -= 0.1 * w.grad
        w.grad = None

    plain = train(4)
    with enable():
        onp.testing.assert_allclose(train(4), plain, rtol=1e-5)
    assert (counters.captures, counters.hits) == (1, 3)


def test_a_write_between_forward_and_walk_is_refused():
    for _ in range(3):
        x = leaf(array(3))
        y = np.sin(x)
        z = (y * y).sum()
        with enable():
            y[0] = 1
            with pytest.raises(SavedValueError, match="written"):
                z.backward()
            assert x.grad is None


def test_wrong_results_of_hooks_and_rules_are_named():
    class Wrong(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, g):
            return g[:2]

    def clip_wrongly(g):
        return g[:1]

    with enable():
        for _ in range(3):
            y = leaf(array(3)) * 2
            y.register_hook(clip_wrongly)
            with pytest.raises(HookResultError, match="clip_wrongly"):
                y.sum().backward()
            with pytest.raises(FunctionGradientError, match="Wrong"):
                Wrong.apply(leaf(array(3))).sum().backward()


@pytest.mark.parametrize("compiler_fn", [3, "name"])
def test_a_compiler_function_must_be_callable(compiler_fn):
    with pytest.raises(
        WalkCompilerError, match="must be a function of a captured program"
    ) as found:
        enable(compiler_fn)
    assert isinstance(found.value, TypeError)


def test_a_compiler_function_must_return_a_function():
    x = leaf(array(3))
    with enable(lambda program: None):
        for _ in range(2):
            with pytest.raises(WalkCompilerError, match="must return a function of the lists"):
                (x * 2).sum().backward()
    assert x.grad is None


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_walks_that_look_for_anomalies_name_the_rule():
    x = leaf(onp.zeros(3, "float32"))
    with enable(), detect_anomaly(), pytest.raises(AutogradError, match="sqrt"):
        (np.sqrt(x) * 0).sum().backward()


def test_walks_with_ever_new_closures_leave_no_objects_behind():
    def walk(k):
        x = leaf(array(3))
        y = np.sin(x)
        y.register_hook(lambda g: g * k)
        y.grad_fn.register_prehook(lambda gs: (gs[0] + k,))
        y.sum().backward()
        float(x.grad[0])

    with enable():
        for _ in range(5):
            walk(array(3))
        gc.collect()
        before = len(gc.get_objects())
        for _ in range(300):
            walk(array(3))
        gc.collect()
    assert len(gc.get_objects()) - before < 100


def test_captured_walks_keep_neither_hooks_nor_values():
    def walk():
        x, y = leaf(array(3)), array(3)
        closure = Variable(y)
        z = np.sin(x)
        z.register_hook(lambda g: g * closure)
        checkpoint(np.exp, z, use_reentrant=False).sum().backward()
        return weakref.ref(closure), weakref.ref(z), weakref.ref(x)

    with enable():
        for _ in range(4):
            assert [reference() for reference in walk()] == [None] * 3
