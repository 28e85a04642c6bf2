"""Random programs of random steps: outlined, they mean what they meant, to NumPy too."""

import numpy as np
import pytest

import functx
import functx.numpy as fnp
from functx.core.checking import check_program
from functx.passes.outlining import Outline
from functx.testing.reference import interpret_in_numpy

OPERATIONS = (
    lambda a, b, i, rows, w, numbers: fnp.tanh(a + b),
    lambda a, b, i, rows, w, numbers: fnp.sin(a) * b,
    lambda a, b, i, rows, w, numbers: fnp.tanh(a) * (0.5 + 0.1 * i),
    lambda a, b, i, rows, w, numbers: fnp.tanh(a + rows[i]),
    lambda a, b, i, rows, w, numbers: fnp.tanh(a * w),
    lambda a, b, i, rows, w, numbers: a - b * numbers[i % 3],
    lambda a, b, i, rows, w, numbers: fnp.tanh(rows[max(i - 1, 0)]) + a,
    lambda a, b, i, rows, w, numbers: fnp.concatenate([a[1:], b[:1]]),
    lambda a, b, i, rows, w, numbers: fnp.where(a > b, a, fnp.cos(b)),
)


class Steps:
    """A function of random steps: on one array or more, with rows, weights and numbers of their own."""

    def __init__(self, random):
        self.random = random
        self.steps = random.randint(2, 10)
        self.body = self.operations(random.randint(1, 7))
        self.inner = self.operations(random.randint(1, 4)) if random.rand() < 0.3 else []
        self.kept = random.rand(self.steps) < random.choice([0.0, 0.3, 1.0])
        self.own_weights, self.between, self.reverse = random.rand(3) < (0.4, 0.2, 0.5)

    def operations(self, count):
        return [
            (self.random.randint(len(OPERATIONS)), self.random.rand(2), self.random.randint(4))
            for _ in range(count)
        ]

    def arguments(self):
        def normal(*shape):
            return self.random.randn(*shape).astype("float32")

        return normal(2, 3), normal(10, 2, 3), [normal(2, 3) for _ in range(10)], normal(3)

    def run(self, operations, i, values, rows, weights, numbers):
        for kind, (first, second), back in operations:
            a = values[-1 - int(first * min(len(values), 1 + back))]
            b = values[-1 - int(second * min(len(values), 4))]
            own = i if self.own_weights else 0
            values.append(OPERATIONS[kind](a, b, i, rows, weights[own], numbers))
        return values[-6:]

    def __call__(self, x, rows, weights, numbers):
        values, kept = [x, fnp.sin(x)], []
        for i in range(self.steps):
            values = self.run(self.body, i, values, rows, weights, numbers)
            for j in range(3 if self.inner else 0):
                values = self.run(self.inner, j, values, rows, weights, numbers)
            if self.between and i % 3 == 1:
                values.append(fnp.exp(-(values[-1] ** 2)))
            if self.kept[i]:
                kept += values[-2 if i % 2 else -1 :]
        out = values[-1]
        for value in kept[::-1] if self.reverse else kept:
            out = fnp.tanh(out * 0.5 + value) * fnp.cos(out)
        return out, kept, values[-2]


def total(f):
    return lambda *args: sum(fnp.sum(y) for y in functx.tree.leaves(f(*args)))


VERBS = {
    "as it is": lambda f: f,
    "grad": lambda f: functx.grad(total(f), argnums=(0, 1, 2, 3)),
    "jvp": lambda f: lambda *args: functx.jvp(f, args, args)[1],
    "vmap": lambda f: lambda x, *rest: functx.vmap(lambda x: f(x, *rest))(fnp.stack([x, -x])),
    "grad of grad": lambda f: functx.grad(
        total(lambda *args: [g**2 for g in functx.grad(total(f), argnums=(0, 1))(*args)])
    ),
}


@pytest.mark.parametrize("verb", VERBS)
def test_random_steps_mean_the_same_outlined_before_and_after(verb):
    for seed in range(25):
        f = Steps(np.random.RandomState(seed))
        args = f.arguments()
        found = []
        for mode in ("never", "always"):
            with functx.config.set(outline=mode):
                program = functx.make_ir(VERBS[verb](f))(*args)
            found += [program, Outline("always")(program)]
        leaves = functx.tree.leaves(args)
        flat, *others = [interpret_in_numpy(p, *leaves[: len(p.inputs)]) for p in found]
        for program, outs in zip(found[1:], others, strict=True):
            for nested in program.walk():
                check_program(nested)
            for a, b in zip(flat, outs, strict=True):
                scale = max(1.0, float(np.abs(a).max()))
                np.testing.assert_allclose(b, a, rtol=2e-3, atol=2e-3 * scale, err_msg=str(seed))
