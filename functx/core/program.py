"""The IR: programs of equations between variables and literals."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import cached_property, lru_cache, partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias, final

import numpy as np

from functx.core.caches import rule_version
from functx.core.effects import NO_EFFECTS, Effect, Effects
from functx.core.types import ShapedArray, is_inexact
from functx.core.typing import PyTree

if TYPE_CHECKING:
    from functx.core.primitive import Primitive
    from functx.core.source_info import Source
    from functx.core.tree import TreeDef, TreeDefWithStatic
    from functx.core.types import DType


@final
class Var:
    """A variable of one program, equal only to itself.

    `name` is set only for variables of parsed programs; `print` generates all other names.
    """

    __slots__ = ("aval", "name")
    name: str

    def __init__(self, aval: ShapedArray):
        self.aval = aval


@final
class Literal:
    """A scalar constant of a program, equal to others of the same value and aval."""

    __slots__ = ("aval", "key", "value")

    def __init__(self, value: Any, aval: ShapedArray):
        self.value = value
        self.aval = aval
        # By text, since nan is unequal to itself and -0.0 equals 0.0.
        self.key = (repr(value), aval)

    @property
    def val(self) -> Any:
        """The value, by the name that a literal of a jaxpr gives it."""
        return self.value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Literal) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return f"{self.value!r}:{self.aval!r}"


Atom = Var | Literal


class Part(Enum):
    """The part of a joint program that an equation was made in; equality of programs ignores it.

    A partition may move pure equations to the other part, but not those that must stay.
    """

    FORWARD = "forward"
    BACKWARD = "backward"
    STAYS_FORWARD = "must_stay_forward"
    STAYS_BACKWARD = "must_stay_backward"

    def __repr__(self) -> str:
        return self.value


class Equation:
    """`outputs = primitive(inputs)`, with `source`, the user's instruction that it comes from.

    In a joint program, `part` says whether it belongs to the forward or the backward computation.
    """

    __slots__ = ("inputs", "outputs", "part", "primitive", "source")

    def __init__(
        self,
        primitive: Primitive,
        inputs: list[Atom],
        outputs: list[Var],
        source: Source | None,
        part: Part | None = None,
    ):
        self.primitive = primitive
        self.inputs = inputs
        self.outputs = outputs
        self.source = source
        self.part = part

    @staticmethod
    def of(primitive: Primitive, inputs: Iterable[Any], source: Source | None = None) -> Equation:
        """The equation `primitive(inputs)`, with new variables for its outputs.

        `inputs` are variables, literals or Python numbers.
        """
        from functx.core.program_editing import new_equation

        return new_equation(primitive, inputs, source)

    def __repr__(self) -> str:
        """The line of the equation in a program that is made of it alone, and its source."""
        from functx.core.printing import program_text

        inputs = dict.fromkeys([a for a in self.inputs if type(a) is Var])
        own = Program("equation", list(inputs), [self], list(self.outputs))
        return program_text(own).split("\n")[1].strip()

    @property
    def invars(self) -> list[Atom]:
        """The inputs, by the name that an equation of a jaxpr gives them."""
        return self.inputs

    @property
    def outvars(self) -> list[Var]:
        """The outputs, by the name that an equation of a jaxpr gives them."""
        return self.outputs

    @property
    def params(self) -> dict[str, Any]:
        """The parameters of the primitive by name."""
        return {name: getattr(self.primitive, name) for name in self.primitive.fields}

    def replace(self, **changes: object) -> Equation:
        """This equation with some of its fields replaced."""
        fields = {name: getattr(self, name) for name in Equation.__slots__} | changes
        return Equation(**fields)

    def with_substitutes(self, substitutes: Mapping[Atom, Atom]) -> Equation:
        """This equation with the operands replaced that are keys of `substitutes`; itself if none is."""
        if not substitutes or substitutes.keys().isdisjoint(self.inputs):
            return self
        return self.replace(inputs=[substitutes.get(a, a) for a in self.inputs])


class DefUse:
    """The definition and the uses of each variable in a sequence of equations."""

    def __init__(self, equations: Sequence[Equation]):
        self.equations = equations

    @cached_property
    def producers(self) -> dict[Atom, Equation]:
        """The equation that defines each variable; an input has none."""
        return {v: eqn for eqn in self.equations for v in eqn.outputs}

    @cached_property
    def users(self) -> dict[Atom, list[Equation]]:
        """The equations that read each variable, each once and in their order."""
        users: dict[Atom, list[Equation]] = {}
        for eqn in self.equations:
            for atom in dict.fromkeys(eqn.inputs):
                if type(atom) is Var:
                    users.setdefault(atom, []).append(eqn)
        return users


InNames: TypeAlias = Callable[[], list[str]] | None
"""Gives the names of the first inputs of a program, which are found when they are asked for."""
Trees: TypeAlias = "tuple[TreeDef, TreeDef | TreeDefWithStatic] | None"
"""The structures of the arguments and of the result of a program; None if both are flat lists."""


class Program:
    """The program of one function: `outputs` computed from `inputs` by `equations`.

    Programs are values: two are equal if they have the same equations up to the names of
    variables, and a program can be a dictionary key. A program can be called with arrays or traced
    values, so every transform accepts it as a function. `print` shows its text, which
    `Program.parse` reads.

    `in_names()` returns names of the first inputs. `trees` holds the tree structures of
    `(args, kwargs)` and of the result if calls take and return pytrees. `captured` holds the values
    of the last inputs, which calls do not pass.
    """

    __slots__ = (
        "__weakref__",
        "_key",
        "captured",
        "equations",
        "in_names",
        "inputs",
        "memo",
        "name",
        "outputs",
        "rule_version",
        "trees",
    )

    def __init__(
        self,
        name: str,
        inputs: Sequence[Var],
        equations: Sequence[Equation],
        outputs: Sequence[Atom],
        *,
        in_names: InNames = None,
        trees: Trees = None,
        captured: Sequence[Any] = (),
    ):
        self.name = name
        self.inputs = list(inputs)
        self.equations = list(equations)
        self.outputs = list(outputs)
        self.in_names: Any = in_names
        self.trees = trees
        self.captured = list(captured)
        self.memo: dict[Hashable, Any] = {}
        self.rule_version = rule_version.count
        self._key: ProgramKey | None = None

    @property
    def in_avals(self) -> list[ShapedArray]:
        """The avals of the inputs; those of captured values are last."""
        return [v.aval for v in self.inputs]

    @property
    def out_avals(self) -> list[ShapedArray]:
        """The avals of the outputs."""
        return [atom.aval for atom in self.outputs]

    @property
    def jaxpr(self) -> Program:
        """The program itself, so that readers of a `ClosedJaxpr` can read it."""
        return self

    @property
    def eqns(self) -> list[Equation]:
        """The equations, by the name that a jaxpr gives them."""
        return self.equations

    @property
    def invars(self) -> list[Var]:
        """The inputs that calls pass, by the name that a jaxpr gives them."""
        return self.inputs[: len(self.inputs) - len(self.captured)]

    @property
    def constvars(self) -> list[Var]:
        """The inputs that stand for captured values, by the name that a jaxpr gives them."""
        return self.inputs[len(self.inputs) - len(self.captured) :]

    @property
    def consts(self) -> list[Any]:
        """The captured values, by the name that a jaxpr gives them."""
        return self.captured

    @property
    def outvars(self) -> list[Atom]:
        """The outputs, by the name that a jaxpr gives them."""
        return self.outputs

    def input_names(self) -> list[str] | None:
        """The names of the inputs: those of `in_names()`, then `c0`, `c1`, ...; None without `in_names`."""
        return None if self.in_names is None else pad_input_names(self.in_names(), len(self.inputs))

    @property
    def def_use(self) -> DefUse:
        """The definition and the uses of each variable."""
        found: DefUse | None = self.memo.get(DefUse)
        if found is None:
            found = self.memo[DefUse] = DefUse(self.equations)
        return found

    def drop_outdated_memo(self) -> None:
        """Clears `memo` if rules have changed since its entries were made."""
        if self.rule_version != rule_version.count:
            self.rule_version, self.memo = rule_version.count, {}

    @property
    def effects(self) -> Effects:
        """The effects of all equations."""
        # Users may have registered another effect of an operation since.
        self.drop_outdated_memo()
        found: Effects | None = self.memo.get(Effects)
        if found is None:
            found = NO_EFFECTS.union(*[eqn.primitive.effects for eqn in self.equations])
            self.memo[Effects] = found
        return found

    @property
    def named_axes(self) -> frozenset[Hashable]:
        """The named axes that the equations communicate over."""
        found: frozenset[Any] | None = self.memo.get("named axes")
        if found is None:
            found = frozenset().union(*[eqn.primitive.named_axes for eqn in self.equations])
            self.memo["named axes"] = found
        return found

    @property
    def draws(self) -> bool:
        """Whether an equation draws random numbers from the state of a generator."""
        found: bool | None = self.memo.get("draws")
        if found is None:
            found = self.memo["draws"] = any([eqn.primitive.draws for eqn in self.equations])
        return found

    @property
    def has_captures(self) -> bool:
        """Whether the program has `captured` equations, at any depth (`functx.core.program_editing`)."""
        found: bool | None = self.memo.get("captures")
        if found is None:
            found = any([eqn.primitive.has_captures for eqn in self.equations])
            self.memo["captures"] = found
        return found

    @property
    def writes(self) -> bool:
        """Whether the program has in-place writes; all rewrites but functionalization need one without."""
        return Effect.WRITE in self.effects

    @property
    def key(self) -> ProgramKey:
        """The canonical form; equal programs have equal keys."""
        if self._key is None:
            self._key = ProgramKey(canonical_form(self))
        return self._key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Program) and (self is other or self.key == other.key)

    def __hash__(self) -> int:
        return self.key.hash

    def __reduce__(self) -> tuple[object, ...]:
        # Sources are left out, since code objects cannot be pickled.
        equations = [(eqn.primitive, eqn.inputs, eqn.outputs, eqn.part) for eqn in self.equations]
        names = None if self.in_names is None else list(self.in_names())
        parts = self.name, self.inputs, equations, self.outputs
        return _unpickle_program, (*parts, names, self.trees, self.captured)

    def __iter__(self) -> Iterator[Equation]:
        return iter(self.equations)

    def __len__(self) -> int:
        return len(self.equations)

    def __str__(self) -> str:
        from functx.core.printing import program_text

        return program_text(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        # Imported at its first use, since it belongs to a higher layer.
        shown: str = import_module("functx.tools.program_html").program_fragment(self)
        return shown

    @property
    def __name__(self) -> str:
        return self.name

    def __call__(self, *args: PyTree, **kwargs: PyTree) -> PyTree:
        """The outputs for these arguments: inlined inside a trace, computed outside one.

        With `trees`, arguments and result are pytrees; otherwise each argument is an array, and the
        result is a list of arrays.
        """
        from functx.core.program_calls import call_program

        return call_program(self, args, kwargs)

    @staticmethod
    def parse(text: str) -> Program:
        """The program whose printed form is `text`; raises ParseError for any other text.

        It takes one argument for each input, and returns the outputs of the text: a value, or a tuple of
        several. The text has neither the containers of arguments and results nor captured values.
        """
        from functx.core.parsing import parse_function

        return parse_function(text)

    def replace(self, old: Equation, *new: Equation) -> Program:
        """A program with the equations `new` in place of `old`.

        The new equations must define the variables of `old` that are still used.
        """
        from functx.core.program_editing import replace_equation

        return replace_equation(self, old, new)

    def rewrite(self, rule: Callable[..., Any]) -> Program:
        """A program in which the result of `rule(eqn, *args)` replaces each equation.

        The rule gets traced operands and computes with them. It returns the new output (a tuple if the
        primitive has several), or `NotImplemented` to keep the equation; then the rule is applied
        inside the sub-programs of the equation.

        Raises ProgramError if an output has another shape or dtype than before.
        """
        from functx.core.program_editing import rewrite

        return rewrite(self, rule)

    def lint(self) -> None:
        """Raises ProgramError, which names the equation, unless the program is well-formed and tidy.

        Each variable is defined once, before its use; types are those that the operations infer. Writes
        come last and go to inputs, and no equation is dead. The same holds for sub-programs.
        """
        from functx.core.checking import lint_program

        lint_program(self)

    def walk(self) -> Iterator[Program]:
        """This program and the programs in its equations, at any depth, each once."""
        seen = {self}
        pending = [self]
        while pending:
            each = pending.pop()
            yield each
            nested = [sub for eqn in each.equations for sub in subprograms(eqn.primitive)]
            fresh = [sub for sub in dict.fromkeys(nested) if sub not in seen]
            seen.update(fresh)
            pending += reversed(fresh)

    def map_subprograms(self, change: Callable[[Program], Program]) -> Program:
        """A program with `change(sub)` in place of each sub-program of its equations.

        Raises ProgramError if an equation then has outputs of other types.
        """
        from functx.core.program_editing import map_subprograms

        return map_subprograms(self, change)

    def inline(self, *names: str) -> Program:
        """A program with the body of the called program in place of each `call`, at any depth.

        `names` names other primitives with a parameter `program` to inline instead.
        """
        from functx.core.program_editing import inline

        return inline(self, names or ("call",))


def _unpickle_program(
    name: str,
    inputs: list[Var],
    equations: list[Any],
    outputs: list[Atom],
    names: list[str] | None,
    trees: Trees,
    captured: list[Any],
) -> Program:
    """The program of a pickle."""
    return Program(
        name,
        inputs,
        [Equation(primitive, args, outs, None, part) for primitive, args, outs, part in equations],
        outputs,
        in_names=None if names is None else partial(list, names),
        trees=trees,
        captured=captured,
    )


def subprograms(primitive: Primitive) -> list[Program]:
    """The programs among the parameters of `primitive`."""
    return [
        p for field in primitive.fields for p in programs_in_parameter(getattr(primitive, field))
    ]


def programs_in_parameter(parameter: object) -> list[Program]:
    """The programs in a parameter: itself, or in tuples at any depth."""
    found: list[Program] = []
    pending = [parameter]
    while pending:
        value = pending.pop(0)
        if type(value) is Program:
            found.append(value)
        elif isinstance(value, tuple):
            pending = [*value, *pending]
    return found


def pad_input_names(names: Sequence[str], count: int) -> list[str]:
    """`count` names: `names`, then `c0`, `c1`, ... for captured values."""
    return [*names, *[f"c{i}" for i in range(count - len(names))]]


class ProgramKey:
    """A canonical form with its hash computed once."""

    __slots__ = ("form", "hash")

    def __init__(self, form: tuple[object, ...]):
        self.form = form
        self.hash = hash(form)

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, ProgramKey) and self.hash == other.hash and self.form == other.form
        )


def canonical_form(
    program: Program,
    literal: Callable[[Any], Hashable] | None = None,
    primitive: Callable[[Primitive], Hashable] | None = None,
) -> tuple[object, ...]:
    """The program as a flat tuple in which variables are numbers in order of definition.

    `literal(x)` stands for each literal `x`, and `primitive(p)` for each primitive `p`; by default
    these themselves.
    """
    number = {v: i for i, v in enumerate(program.inputs)}
    count = len(number)
    form: list[object] = [count, *program.in_avals]
    append = form.append
    for eqn in program.equations:
        append(eqn.primitive if primitive is None else primitive(eqn.primitive))
        for atom in eqn.inputs:
            if type(atom) is Var:
                append(number[atom])
            else:
                append(atom if literal is None else literal(atom))
        for v in eqn.outputs:
            number[v] = count
            count += 1
    append(None)
    for atom in program.outputs:
        if type(atom) is Var:
            append(number[atom])
        else:
            append(atom if literal is None else literal(atom))
    return tuple(form)


@lru_cache(maxsize=4096)
def scalar_literal(
    value: bool | int | float | complex, dtype: DType, weak: bool, _text: str
) -> Literal:
    """The literal `value`, rounded to `dtype` unless weak; its repr `_text` tells -0.0 from 0.0 in the cache."""
    if not weak and is_inexact(dtype):
        with np.errstate(over="ignore"):
            value = dtype.type(value).item()
    return Literal(value, ShapedArray((), dtype, weak))
