"""Random functions that write to arrays in place, as NumPy's users do.

`generate(seed)` makes one statement by statement, and runs each on NumPy arrays as it goes, so
that the next can fit what is there. What it computes is smooth in the float arguments: values
that are compared or sorted lie well apart.
"""

from __future__ import annotations

import random
import textwrap
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

Kind = Callable[["Draft"], "str | None"]

APART = 1e-3
"""The least distance between values whose order matters."""


@dataclass(frozen=True)
class Program:
    """The source of a function: its arguments, as NumPy expressions, its statements and its results."""

    arguments: tuple[tuple[str, str], ...]
    statements: tuple[str, ...]
    results: tuple[str, ...]
    smooth: bool = True

    @property
    def text(self) -> str:
        names = ", ".join(["np", "flow", *[name for name, _ in self.arguments]])
        body = "\n".join([*self.statements, f"return [{', '.join(self.results)}]"])
        return f"def program({names}):\n{textwrap.indent(body, '    ')}\n"

    def function(self) -> Callable[..., Any]:
        """The function `program(np, flow, *arguments)`, which returns a list of arrays."""
        scope: dict[str, Any] = {}
        exec(compile(self.text, "<program>", "exec"), scope)
        return scope["program"]

    def inputs(self, lane: int = 0) -> list[Any]:
        """New arguments; those of other batch elements have the same shapes and other values."""
        scope: dict[str, Any] = {"numbers": Numbers(lane), "np": np}
        for name, made in self.arguments:
            scope[name] = eval(made, scope)
        return [scope[name] for name, _ in self.arguments]

    def __str__(self) -> str:
        made = "".join([f"{name} = {text}\n" for name, text in self.arguments])
        return f"{made}{self.text}"


class Numbers:
    """`numbers(shape)`: distinct floats between -2 and 2, well separated, in random order."""

    def __init__(self, lane: int = 0):
        self.lane = lane

    def __call__(self, *shape: int, seed: int = 0) -> Any:
        rng = np.random.default_rng([self.lane, seed, *shape])
        count = int(np.prod(shape))
        steps = (np.arange(count) + 0.6 * rng.random(count) + 0.2) / max(count, 1)
        return rng.permutation(4.0 * steps - 2.0).reshape(shape)

    def whole(self, *shape: int, seed: int = 0, below: int = 8) -> Any:
        """Integers from 0 to `below`, exclusive."""
        return np.random.default_rng([self.lane, seed, *shape]).integers(0, below, shape)


class Flow:
    """Python's control flow, for runs with NumPy."""

    @staticmethod
    def loop(start: int, stop: int, step: Callable[[Any], None]) -> None:
        for i in range(start, stop):
            step(i)

    @staticmethod
    def either(holds: Any, then: Callable[[], None], otherwise: Callable[[], None]) -> None:
        (then if holds else otherwise)()


class Unfit(Exception):
    """Raised when values of a program become too large, or nan."""


_OF_LOOPS = ("c", "i", "r", "s", "w", "y", "step", "then", "otherwise")
"""The local names of statements."""


class Draft:
    """A program under construction: its statements, and the arrays after them."""

    def __init__(self, seed: Any):
        self.rng = random.Random(seed)
        self.arguments: list[tuple[str, str]] = []
        self.statements: list[str] = []
        self.scope: dict[str, Any] = {"np": np, "flow": Flow}
        self.depths: dict[str, int] = {}
        self.smooth = True
        self.count = 0

    def add_argument(self, text: str) -> None:
        name = "abcdefg"[len(self.arguments)]
        self.arguments.append((name, text))
        scope = {"numbers": Numbers(), "np": np, **self.scope}
        self.scope[name] = eval(text, scope)
        self.depths[name] = 0

    @property
    def arrays(self) -> dict[str, Any]:
        return {k: x for k, x in self.scope.items() if isinstance(x, np.ndarray)}

    def say(self, statement: str) -> bool:
        """Run a statement, and add it unless NumPy refuses it."""
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            try:
                exec(statement, self.scope)
            except (ValueError, TypeError, IndexError) as error:
                if "\n" in statement:
                    raise Unfit from error
                return False
        for k in [k for k in self.scope if k in _OF_LOOPS and k not in self.depths]:
            del self.scope[k]
        self.statements.append(statement)
        for k, x in self.arrays.items():
            # What functx computes lies in row-major order, where NumPy may keep another.
            if x.base is None and k not in self.depths and not x.flags.c_contiguous:
                raise Unfit
        for x in self.arrays.values():
            if x.dtype.kind in "fc" and x.size and not np.abs(x).max() < 200:
                raise Unfit
            whole = x.dtype.kind in "iu" and x.size and self.smooth
            if whole and not np.abs(x.astype(float)).max() < 1e6:
                raise Unfit
        return True

    def name(self, text: str, parent: str | None = None) -> str | None:
        """Bind a new name to the expression `text`, a view of `parent` if that is given."""
        self.count += 1
        name = f"v{self.count}"
        if not self.say(f"{name} = {text}"):
            return None
        self.depths[name] = 0 if parent is None else self.depths.get(parent, 0) + 1
        return name

    # Choices.

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def pick(self, fits: Callable[[Any], bool] = lambda x: True) -> str | None:
        """The name of an array that fits, preferably a recent one."""
        names = [k for k, x in self.arrays.items() if fits(x)]
        if not names:
            return None
        return self.rng.choice(names if self.chance(0.5) else names[-4:])

    def target(self, fits: Callable[[Any], bool] = lambda x: True) -> str | None:
        """The name of a writable array that fits, preferably a view."""
        writable = lambda x: x.flags.writeable and fits(x)  # noqa: E731
        if self.chance(0.5):
            deep = self.pick(lambda x: writable(x) and x.base is not None)
            if deep is not None:
                return deep
        return self.pick(writable)

    def number(self) -> str:
        return str(self.rng.choice([0.5, -0.7, 1.3, 0.9, -1.1, 0.25, 1.7]))

    def whole(self, low: int, high: int) -> int:
        """An integer from `low` to `high`, exclusive."""
        return self.rng.randrange(low, high)

    def index(self, shape: tuple[int, ...], integers: bool = True, new: bool = True) -> str:
        """A basic index into an array of `shape` with a non-empty result."""
        items = [self.item(n, integers) for n in shape]
        while items and items[-1] == ":" and self.chance(0.6):
            items.pop()
        if items and self.chance(0.2):
            at = self.whole(0, len(items) + 1)
            if at < len(items) and items[at] == ":":
                items[at] = "..."
            elif len(items) == len(shape) or at == len(items):
                items.insert(at, "...")
        if new and self.chance(0.15):
            items.insert(self.whole(0, len(items) + 1), "None")
        return ", ".join(items) or "..."

    def item(self, n: int, integers: bool = True) -> str:
        if integers and n and self.chance(0.25):
            return str(self.whole(-n, n))
        low = self.whole(0, max(n, 1))
        high = self.whole(low + 1, n + 1) if low < n else n
        forms = [":", ":", "::-1", f"{low}:", f"{low}:{high}", "::2", f"{high - n - 1}::-1"]
        forms += ["1::2", f"{-n + low}:", f":{high}", "::-2", f"{high - 1}:{low}:-1"]
        if n < 2:
            forms = [":", "::-1", "...:"[:0] or ":"]
        return self.rng.choice(forms)

    def value(self, shape: tuple[int, ...], kind: str, kept: bool = False) -> str:
        """An expression that broadcasts to `shape`, with a dtype that can be cast to `kind`.

        It may be an array that shares memory with others, unless it has to be `kept` apart.
        """
        if kind == "b":
            return self.rng.choice(["True", "False", *self.masks(shape)])
        if kind in "iu":
            whole = [str(self.whole(0, 6))]
            if shape and shape[-1]:
                whole.append(f"np.arange({shape[-1]})")
            if name := self.broadcastable(shape, kind):
                whole += [f"({name} & 3)", f"({name} & 3)"]
            return self.rng.choice(whole)
        forms = [self.number()]
        if shape and shape[-1]:
            forms.append(f"np.linspace({self.number()}, {self.number()}, {shape[-1]})")
        for _ in range(3):
            name = self.broadcastable(shape, "f" if kind == "f" else "fc")
            if name is not None:
                forms += [f"np.sin({name})", f"{self.number()} * np.cos({name})"]
                forms += [] if kept else [name, name]
        name = self.pick(lambda x: x.dtype.kind == "f" and 0 < x.size < 30)
        if name is not None:
            forms += [f"np.sin({name}.sum())", f"np.cos({name}).mean()"]
            if shape and self.scope[name].shape[-1:] in [(1,), shape[-1:]]:
                axes = tuple(range(self.scope[name].ndim - 1))
                forms.append(f"np.sin({name}).sum(axis={axes})")
        text = self.rng.choice(forms)
        return f"(1j * {text})" if kind == "c" and self.chance(0.3) else text

    def masks(self, shape: tuple[int, ...]) -> list[str]:
        """Comparisons whose results broadcast to `shape`."""
        name = self.broadcastable(shape, "f")
        return [] if name is None else [f"({name} > {self.between(self.scope[name])})"]

    def between(self, x: Any) -> str:
        """A number well separated from all elements of `x`, if possible between two of them."""
        at = np.unique(np.asarray(x, float))
        gaps = [(a + b) / 2 for a, b in pairwise(at) if b - a > 4 * APART]
        return f"{self.rng.choice(gaps) if gaps else (at[-1] if at.size else 0.0) + 1.0:.6g}"

    def broadcastable(self, shape: tuple[int, ...], kinds: str) -> str | None:
        def fits(x: Any) -> bool:
            return x.dtype.kind in kinds and broadcasts(x.shape, shape)

        return self.pick(fits)

    def spread(self, x: Any) -> bool:
        """Whether no two elements of `x` are nearly equal."""
        return x.size < 2 or bool(np.diff(np.sort(x, axis=None)).min() > APART)


def broadcasts(own: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    try:
        return np.broadcast_shapes(own, shape) == shape
    except ValueError:
        return False


SHAPES = [(3, 4), (4,), (2, 3), (2, 2, 3), (3, 3), (1, 4), (6,), (2, 1, 3), (4, 2)]


def generate(seed: int, length: int = 10, **choices: Any) -> Program:
    """The program of a seed: about `length` statements, of which about half write."""
    attempt = 0
    while True:
        try:
            return _generated(f"{seed}.{attempt}", length, **choices)
        except Unfit:
            attempt += 1


def _generated(
    seed: Any, length: int, overlapping: bool = False, control: bool = False, smooth: bool = True
) -> Program:
    from tests.mutation.views import COPIES, VIEWS
    from tests.mutation.writes import CONTROL, WRITES

    draft = Draft(seed)
    draft.smooth = smooth
    draw = draft.rng.choice
    if overlapping:
        draft.add_argument("numbers(12)")
        for _ in range(draw([1, 2])):
            of = draw([name for name, _ in draft.arguments])
            x = draft.scope[of]
            where = draft.index(x.shape, integers=x.ndim > 1, new=False)
            draft.add_argument(draw([f"{of}[{where}]", f"{of}.reshape({draw(_factors(x.size))})"]))
    else:
        shape = draw(SHAPES)
        forms = [f"numbers{shape}"] * 8 + [f"np.asfortranarray(numbers{shape})"]
        forms += [f"numbers{shape[::-1]}.T", f"numbers{(*shape[:-1], shape[-1] * 2)}[..., ::2]"]
        draft.add_argument(draw(forms))
        second = draw([*["numbers{}"] * 4, "numbers.whole{}", "numbers{} + 1j * numbers{}", ""])
        if second:
            text = ", ".join([*map(str, draw(SHAPES)), "seed=1"])
            draft.add_argument(second.replace("{}", f"({text})"))
    if draft.chance(0.2):
        draft.add_argument("numbers.whole(2, below=2)")
    kinds = [*VIEWS] * 2 + [*COPIES]
    writes = [*WRITES] + [*CONTROL] * (3 if control else 0)
    while len(draft.statements) < length:
        kind = draw(kinds if draft.chance(0.5) else writes)
        made = kind(draft)
        if made is None:
            continue
        if kind in writes:
            draft.say(made)
        elif isinstance(made, tuple):
            draft.name(*made)
        else:
            draft.name(made)
    results = tuple([k for k in draft.arrays if draft.scope[k].dtype.kind in "fciub"])
    return Program(tuple(draft.arguments), tuple(draft.statements), results, draft.smooth)


def _factors(size: int) -> list[tuple[int, ...]]:
    """The shapes with a number of elements."""
    pairs = [(n, size // n) for n in range(1, size + 1) if size % n == 0]
    return [*pairs, (size,), (1, size, 1)]


def shrunk(program: Program, fails: Callable[[Program], bool]) -> Program:
    """The smallest program found that still fails: fewest statements, results and arguments."""

    def smaller(program: Program) -> Any:
        for field in ("results", "statements"):
            parts = getattr(program, field)
            for i in reversed(range(len(parts))):
                rest = (*parts[:i], *parts[i + 1 :])
                if rest or field == "statements":
                    yield replace(program, **{field: rest})
        for i, (name, _) in enumerate(program.arguments[1:], 1):
            if name not in program.results:
                rest = (*program.arguments[:i], *program.arguments[i + 1 :])
                yield replace(program, arguments=rest)

    while True:
        for candidate in smaller(program):
            if runs(candidate) and fails(candidate):
                program = candidate
                break
        else:
            return program


def runs(program: Program) -> bool:
    """Whether NumPy runs the program without an error."""
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program.function()(np, Flow, *program.inputs())
    except Exception:
        return False
    return True
