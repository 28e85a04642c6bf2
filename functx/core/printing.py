"""The text of programs, as `print` shows it and `Program.parse` reads it.

program loss(x: f32[4,3], w: f32[3,5]):
  a: f32[4,5] = dot_general[contract=((1,), (0,))] x w   # train.py:12 in loss
  h: f32[4,5] = tanh a
  b: f32[]    = reduce_sum[axes=(0, 1)] h                # train.py:13 in loss
  return b
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from itertools import count
from string import ascii_lowercase
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np

from functx.core import tree
from functx.core.effects import Effects
from functx.core.primitive import Primitive
from functx.core.program import Equation, Literal, Program, Var
from functx.core.rewriting import Record
from functx.core.source_info import DerivedSource, assigned_names, describe_source, scope_of
from functx.core.types import DTYPES_BY_SHORT_NAME, SHORT_NAMES, ShapedArray

if TYPE_CHECKING:
    from functx.core.program import Atom

RESERVED_WORDS = frozenset(
    {"program", "return", "None", "True", "False", "nan", "inf", *DTYPES_BY_SHORT_NAME}
)
"""The words that cannot be names in a text."""

# Longer parts do not widen the columns of the other lines.
_WIDEST_LEFT = 36
_WIDEST_LINE = 84
_WIDEST_HEADER = 100


def program_text(program: Program, note: Callable[[Equation], str] | None = None) -> str:
    """The text of `program`, which `parse_program` parses; comments begin with `note(eqn)`."""
    printer = _Printer(note)
    printer.show(program, printer.programs.unique(program.name), "")
    column = max([len(line) for line, _ in printer.lines if len(line) <= _WIDEST_LINE], default=0)
    return "\n".join(
        f"{line:{column}}   # {comment}" if comment else line for line, comment in printer.lines
    )


def equation_text(program: Program, eqn: Equation) -> str:
    """The line of `eqn` in the text of `program`, which need not be well-formed."""
    return " = ".join(_equation_sides(eqn, variable_names(program), _program_name))


def primitive_text(
    primitive: Primitive, program_name: Callable[[Program], str] | None = None
) -> str:
    """`reduce_sum[axes=(0,)]`: the primitive with the parameters that are not defaults.

    `program_name` returns the name of a sub-program.
    """
    name_of = program_name or _program_name
    params = []
    for field in primitive.fields:
        text = value_text(getattr(primitive, field), primitive, name_of)
        default = primitive.defaults.get(field, _NO_DEFAULT)
        if default is _NO_DEFAULT or text != value_text(default, primitive, name_of):
            params.append(f"{field}={text}")
    return f"{primitive.name}[{', '.join(params)}]" if params else primitive.name


_NO_DEFAULT = object()


def _program_name(program: Program) -> str:
    return identifier(program.name)


class _Printer:
    """The lines of one text, and the names of the programs in it."""

    def __init__(self, note: Callable[[Equation], str] | None = None) -> None:
        self.note = note
        self.lines: list[tuple[str, str]] = []
        self.programs = UniqueNames()
        self.known: dict[Program, str] = {}
        self.pending: list[tuple[Program, str]] = []
        self.comment = ""

    def program_name(self, program: Program) -> str:
        """The name of a sub-program, whose text follows its first use."""
        name = self.known.get(program)
        if name is None:
            name = self.known[program] = self.programs.unique(program.name)
            self.pending.append((program, name))
        return name

    def show(self, program: Program, name: str, indent: str) -> None:
        names = variable_names(program)
        calls = _outlined_calls(program)
        self.header(program, name, names, indent)
        lengths = [len(_outputs_text(eqn, names)) for eqn in program.equations]
        width = max([n for n in lengths if n <= _WIDEST_LEFT], default=0)
        for eqn in program.equations:
            # In the order of the text, since sub-programs are named and shown at their first use.
            left, right = _equation_sides(eqn, names, self.program_name)
            programs, self.pending = self.pending, []
            comment = self.comment_of(eqn)
            self.lines.append(
                (f"{indent}  {left:{width}} = {right}", comment if comment != self.comment else "")
            )
            self.comment = comment
            for subprogram, subprogram_name in programs:
                header = len(self.lines)
                self.show(subprogram, subprogram_name, indent + "    ")
                if (times := calls[subprogram]) > 1:
                    self.lines[header] = self.lines[header][0], f"{subprogram_name} x {times}"
        outs = ", ".join([atom_text(atom, names) for atom in program.outputs])
        outs += "," * (not indent and _returns_container_of_one(program))
        self.lines.append((f"{indent}  return {outs}".rstrip(), ""))

    def comment_of(self, eqn: Equation) -> str:
        """The note on an equation, its named scope and user line; without these, the comment before it."""
        line = describe_source(eqn.source) if eqn.source is not None else ""
        line = ": ".join([part for part in (scope_of(eqn.source), line) if part])
        if self.note is None:
            return line or self.comment
        return ", ".join([part for part in (self.note(eqn), line) if part])

    def header(self, program: Program, name: str, names: dict[Var, str], indent: str) -> None:
        inputs = [f"{names[v]}: {v.aval!r}" for v in program.inputs]
        effects = effects_text(program.effects)
        end = f") with {effects}:" if effects else "):"
        line = f"{indent}program {name}({', '.join(inputs)}{end}"
        if len(line) <= _WIDEST_HEADER:
            self.lines.append((line, ""))
            return
        self.lines.append((f"{indent}program {name}(", ""))
        self.lines += [(f"{indent}    {each},", "") for each in inputs]
        self.lines.append((f"{indent}{end}", ""))


def _returns_container_of_one(program: Program) -> bool:
    """Whether calls return one value within a container; the text has the comma of a tuple then."""
    return (
        program.trees is not None
        and len(program.outputs) == 1
        and tree.root_node_type(program.trees[1]) not in (None, tree.PRNGKeyNode)
    )


def _outlined_calls(program: Program) -> Counter[Program]:
    """The number of calls of each outlined program."""
    primitives = Counter([e.primitive for e in program if getattr(e.primitive, "noinline", False)])
    return Counter({p.program: times for p, times in primitives.items()})  # type: ignore[attr-defined]


def effects_text(effects: Effects) -> str:
    """`callback, ordered`: effects as the header of a program shows them."""
    return ", ".join(sorted([effect.name for effect in effects])) if effects else ""


def _equation_sides(
    eqn: Equation, names: dict[Var, str], program_name: Callable[[Program], str]
) -> tuple[str, str]:
    """The two sides of an equation's line."""
    operands = [atom_text(atom, names) for atom in eqn.inputs]
    if eqn.part is not None:
        operands.append(f"@{eqn.part.value}")
    return _outputs_text(eqn, names), " ".join(
        [primitive_text(eqn.primitive, program_name), *operands]
    )


def _outputs_text(eqn: Equation, names: dict[Var, str]) -> str:
    return ", ".join([f"{names.get(v, '?')}: {v.aval!r}" for v in eqn.outputs]) or "()"


def atom_text(atom: Atom, names: dict[Var, str]) -> str:
    """A variable by name, a literal as `2.0:f32`, or `2.0:~f32` where it is weak."""
    if type(atom) is not Literal:
        return names.get(atom, "?")
    weak = "~" if atom.aval.weak_type else ""
    return f"{number_text(atom)}:{weak}{SHORT_NAMES[atom.aval.dtype]}"


def number_text(literal: Literal) -> str:
    """The number of a literal, with the fewest digits that determine it in its dtype."""
    value, aval = literal.value, literal.aval
    if type(value) is complex:
        return _complex_text(value)
    if type(value) is not float or aval.weak_type or aval.dtype == np.float64:
        return repr(value)
    # The fewest digits that determine the value in its dtype.
    with np.errstate(over="ignore"):
        for digits in range(1, 18):
            short = float(f"{value:.{digits}g}")
            if repr(aval.dtype.type(short).item()) == repr(value):
                return repr(short)
    return repr(value)


def _complex_text(value: complex) -> str:
    text = repr(value)
    return text if text.startswith("(") else f"({text})"


class UniqueNames:
    """Generates unique names."""

    def __init__(self) -> None:
        self.taken: dict[str, int] = dict.fromkeys(RESERVED_WORDS, 1)

    def unique(self, text: str) -> str:
        """`text` as an identifier, with a number appended if it is taken."""
        name = base = identifier(text)
        if name in self.taken:
            number = self.taken[base]
            while (name := f"{base}_{number}") in self.taken:
                number += 1
            self.taken[base] = number + 1
        self.taken[name] = 1
        return name

    def letters(self) -> Iterator[str]:
        """The names `a`, `b`, ..., `z`, `aa`, ... that are not taken."""
        for number in count():
            name = ""
            while number >= 0:
                number, letter = divmod(number, 26)
                name = ascii_lowercase[letter] + name
                number -= 1
            if name not in self.taken:
                yield name


def identifier(text: str) -> str:
    """`params['w'][0]` as `params_w_0`."""
    name = re.sub(r"\W+", "_", text).strip("_")
    return name if name and not name[0].isdigit() else f"f{name}"


def variable_names(program: Program) -> dict[Var, str]:
    """A name for each variable: the one that the user's code assigns it to, else a letter.

    If several equations come from one instruction, the last one gets the name. Results of a call that
    the caller does not name have the names that the called function gives them. Variables of derived
    equations get letters.
    """
    names = UniqueNames()
    found: dict[Var, str] = {}
    for v, name in zip(program.inputs, program.input_names() or [], strict=False):
        found[v] = names.unique(name)
    used = program.def_use.users.keys() | {*program.outputs}
    for v, name in _assigned_names(program).items():
        if v not in used:
            found[v] = "_"
        elif name.strip("_"):
            found[v] = names.unique(name)
    letters = names.letters()
    for v in [*program.inputs, *(v for eqn in program.equations for v in eqn.outputs)]:
        if v not in found:
            found[v] = next(letters)
    return found


def _assigned_names(program: Program) -> dict[Var, str]:
    """For each result of an equation the name that the user's code, or a parsed text, gives it, or ""."""
    found: dict[Var, str] = {}
    by_source = _names_by_source(program.equations)
    for eqn in program.equations:
        names = by_source.get(id(eqn)) or _names_in_called_program(eqn)
        found.update(
            {
                v: getattr(v, "name", None) or name
                for v, name in zip(eqn.outputs, names, strict=True)
            }
        )
    return found


def _names_in_called_program(eqn: Equation) -> Sequence[str]:
    """The names of the results of an equation in the program that it calls, "" without one."""
    called = getattr(eqn.primitive, "program", None)
    if not isinstance(called, Program) or len(called.outputs) != len(eqn.outputs):
        return [""] * len(eqn.outputs)
    names = called.memo.get("assigned names")
    if names is None:
        names = called.memo["assigned names"] = _assigned_names(called)
    return [names.get(atom, "") for atom in called.outputs]  # type: ignore[arg-type]


def _names_by_source(equations: list[Equation]) -> dict[int, tuple[str, ...]]:
    """The names that the user's code gives the outputs of equations, by the identity of the equation."""
    plain = [
        e for e in equations if e.source is not None and not isinstance(e.source, DerivedSource)
    ]
    found = {}
    for eqn, following in zip(plain, [*plain[1:], None], strict=False):
        if following is None or following.source != eqn.source:
            assigned = assigned_names(eqn.source)  # type: ignore[arg-type]
            if len(assigned) == len(eqn.outputs):
                found[id(eqn)] = assigned
    return found


def value_text(value: Any, primitive: Primitive, program_name: Callable[[Program], str]) -> str:
    """The text of a parameter of `primitive`, or of an item in one."""

    def show(part: object) -> str:
        return value_text(part, primitive, program_name)

    kind = type(value)
    if kind in _SELF_DESCRIBING_TYPES:
        return repr(value)
    if kind is tuple:
        return f"({', '.join(map(show, value))}{',' if len(value) == 1 else ''})"
    if kind is Program:
        return program_name(value)
    if isinstance(value, np.dtype) and value in SHORT_NAMES:
        return SHORT_NAMES[value]
    if kind is ShapedArray:
        return repr(value)
    if kind is complex:
        return _complex_text(value)
    if kind is frozenset:
        return f"{{{', '.join(sorted(map(show, value)))}}}"
    if isinstance(value, np.generic) and value.dtype in SHORT_NAMES:
        return f"{SHORT_NAMES[value.dtype]}({show(value.item())})"
    if kind is slice:
        return f"slice({show(value.start)}, {show(value.stop)}, {show(value.step)})"
    if kind is range:
        return repr(value)
    if value is ...:
        return "..."
    if isinstance(value, Primitive):
        return f"@{primitive_text(value, program_name)}"
    if isinstance(value, FunctionType):
        return _name_of(value, type(primitive)) or _opaque_text(value)
    if isinstance(value, Enum) or is_record(kind):
        name = _name_of(kind, type(primitive))
        if name is not None and is_record(kind):
            parts = ", ".join(f"{n}={show(part)}" for n, part in _record_parts(value).items())
            return f"{name}({parts})"
        if name is not None and value.name in kind.__members__:
            return f"{name}.{value.name}"
    return _opaque_text(value)


_SELF_DESCRIBING_TYPES = frozenset({type(None), bool, int, float, str, bytes})


def is_record(cls: object) -> bool:
    """Whether `cls` is a record class, a named tuple or a dataclass."""
    if not isinstance(cls, type):
        return False
    return issubclass(cls, Record) or is_dataclass(cls) or hasattr(cls, "_fields")


def _record_parts(value: Any) -> dict[str, Any]:
    """The constructor arguments of a record, named tuple or dataclass."""
    if isinstance(value, Record):
        return {name: getattr(value, name) for name in value.fields}
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value) if field.init}
    return dict(zip(value._fields, value, strict=True))


def resolve_name(cls: type[Primitive], name: str) -> Any:
    """The object `name` in the module of a primitive or of one of its base classes."""
    for base in cls.__mro__:
        module = sys.modules.get(base.__module__)
        if module is not None and hasattr(module, name):
            return getattr(module, name)
    return None


def resolve_in_module(cls: type[Primitive], module: str, name: str) -> FunctionType | type | None:
    """The class or function `name` of a module of functx that the module of a primitive calls `module`."""
    found = resolve_name(cls, module)
    if not isinstance(found, ModuleType) or not found.__name__.startswith("functx."):
        return None
    value = getattr(found, name, None)
    is_own = isinstance(value, (FunctionType, type)) and value.__module__ == found.__name__
    return value if is_own else None


def _name_of(value: FunctionType | type, cls: type[Primitive]) -> str | None:
    """The name of a class, or of a function of functx, in parameters of `cls`; None without any."""
    name, module = value.__name__, value.__module__.rpartition(".")[2]
    if isinstance(value, type) and resolve_name(cls, name) is value:
        return name
    return f"{module}.{name}" if resolve_in_module(cls, module, name) is value else None


# Values without a text of their own, such as functions of the user, by the text that stands for
# them. The text can be parsed while the value is alive.
_weak_opaque_values: WeakValueDictionary[str, Any] = WeakValueDictionary()
_strong_opaque_values: dict[str, Any] = {}


def _opaque_text(value: object) -> str:
    shown = repr(value)
    if shown.startswith("<"):
        shown = getattr(value, "__name__", type(value).__name__)
    base = " ".join(re.sub(r"[<>#]", "", shown).split())
    for number in count(1):
        text = f"<{base}>" if number == 1 else f"<{base} {number}>"
        held = find_opaque_value(text)
        if held is None or (type(held) is type(value) and held == value):
            break
    try:
        _weak_opaque_values[text] = value
    except TypeError:
        if len(_strong_opaque_values) >= 4096:
            _strong_opaque_values.clear()
        _strong_opaque_values[text] = value
    return text


def find_opaque_value(text: str) -> object:
    """The value that `text` stands for in a printed program; None if it is no longer alive."""
    return _weak_opaque_values.get(text, _strong_opaque_values.get(text))
