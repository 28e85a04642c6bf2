"""`python_source`: a program as the text of a Python function that gives the program again."""

from __future__ import annotations

import builtins
import keyword
import linecache
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from functools import lru_cache
from itertools import count
from types import FunctionType
from typing import Any

import numpy

from functx import lax, nn
from functx import numpy as np
from functx.core import samples
from functx.core.checking import check_program_argument
from functx.core.primitive import Primitive
from functx.core.primitive_families import View
from functx.core.printing import identifier, number_text, variable_names
from functx.core.program import Atom, Equation, Literal, Program, Var, subprograms
from functx.core.rewriting import Record
from functx.core.tracing import trace_closed
from functx.core.types import SHORT_NAMES, ShapedArray
from functx.core.typing import Function
from functx.transforms.make_ir import make_ir

_IMPORTS = {
    "numpy": "import numpy\n",
    **{name: f"from functx import {name}\n" for name in ("lax", "make_ir", "nn")},
    "np": "from functx import numpy as np\n",
}
_NAMESPACE = {"numpy": numpy, "np": np, "lax": lax, "nn": nn, "make_ir": make_ir}
_RESERVED = frozenset([*keyword.kwlist, *keyword.softkwlist, *dir(builtins), *_NAMESPACE])

_OPERATORS = {
    **{"add": "+", "sub": "-", "mul": "*", "div": "/", "pow": "**", "rem": "%"},
    **{"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="},
    **{"and": "&", "or": "|", "xor": "^", "dot_general": "@"},
}
_REDUCTIONS = {
    **{"reduce_sum": "sum", "reduce_prod": "prod", "reduce_max": "max", "reduce_min": "min"},
    **{"reduce_and": "all", "reduce_or": "any"},
}


@dataclass(frozen=True)
class PythonSource:
    """The text of a Python function that computes a program.

    `values` holds what has no text, such as callbacks and rules of the user, by the names that stand
    for it in the text.
    """

    name: str
    text: str
    values: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__

    def function(self) -> Function:
        """The function of the text. Errors in it show its lines."""
        filename = f"<python_source {self.name} {next(_numbers)}>"
        linecache.cache[filename] = len(self.text), None, self.text.splitlines(True), filename
        namespace = dict(self.values)
        exec(compile(self.text, filename, "exec"), namespace)
        made: Function = namespace[self.name]
        return made


_numbers = count(1)


def python_source(program: Program) -> PythonSource:
    """The text of a Python function that computes `program`; traced, it gives an equal program.

    Each equation is a line. It is an operator, or a function of `functx.numpy`, `lax` or `nn`, if its
    trace is just this equation; else the primitive itself is called. Programs inside are functions
    above it. Captured arrays become arguments. `function()` gives the function.

    Raises ArgumentError for what is no program.

    >>> import functx, numpy
    >>> program = functx.make_ir(lambda x: functx.numpy.sin(x) * 2.0 + 1.0)(numpy.ones(3))
    >>> source = functx.tools.python_source(program)
    >>> print(source.text[source.text.index("def"):])
    def lambda_(x):
        a = np.sin(x)
        b = a * 2.0
        c = b + 1.0
        return c
    <BLANKLINE>
    >>> functx.make_ir(source.function())(numpy.ones(3)) == program
    True
    """
    check_program_argument("python_source", program)
    writer = SourceWriter(any([each.writes for each in program.walk()]))
    name = writer.function(program)
    imports = "".join([f"from {module} import {each}\n" for module, each in sorted(writer.imports)])
    body = "\n\n".join(writer.functions)
    used = {*re.findall(r"\w+", body)}
    header = "".join([line for name, line in _IMPORTS.items() if name in used]) + imports
    text = f"{header}\n\n{body}" if header else body
    return PythonSource(name, text, writer.values)


class SourceWriter:
    """The functions of a text, what it imports, and the values that have no text."""

    def __init__(self, has_writes: bool) -> None:
        self.has_writes = has_writes
        self.functions: list[str] = []
        self.imports: set[tuple[str, str]] = set()
        self.values: dict[str, Any] = {}
        self.names: dict[Program, str] = {}
        self.taken: set[str] = {*_RESERVED}

    def unique(self, text: str) -> str:
        """`text` as a name that nothing in the module of the text has."""
        name = base = identifier(text)
        if name in self.taken:
            names = (f"{base}_{i}" for i in count(1))
            name = base + "_" if base + "_" not in self.taken else next(names)
            while name in self.taken:
                name = next(names)
        self.taken.add(name)
        return name

    def function(self, program: Program) -> str:
        """The name of the function of a program, which is written at its first use."""
        if program not in self.names:
            for eqn in program:
                for inner in subprograms(eqn.primitive):
                    self.function(inner)
            self.names[program] = self.unique(program.name)
            self.functions.append(self.write(program))
        return self.names[program]

    def write(self, program: Program) -> str:
        """The text of the function of `program`; the functions of programs inside have names."""
        names = self.local_names(program)
        lines = [f"def {self.names[program]}({', '.join([names[v] for v in program.inputs])}):"]
        for eqn in program:
            outputs = ", ".join([names[v] for v in eqn.outputs])
            if eqn.primitive.multiple_results and len(eqn.outputs) == 1:
                outputs = f"({outputs},)"
            call = self.call(eqn, names)
            lines.append(f"    {outputs} = {call}" if outputs else f"    {call}")
        outs = [literal_text(a) if isinstance(a, Literal) else names[a] for a in program.outputs]
        result = outs[0] if len(outs) == 1 else f"({', '.join(outs)})"
        return "\n".join([*lines, f"    return {result}", ""])

    def local_names(self, program: Program) -> dict[Var, str]:
        """The names of the variables of `program`, unlike those of functions and modules."""
        found: dict[Var, str] = {}
        used: set[str] = set()
        for v, base in variable_names(program).items():
            name = base
            is_unused_output = name == "_" and v not in program.inputs
            while not is_unused_output and (name in used or name in self.taken):
                name += "_"
            used.add(name)
            found[v] = name
        return found

    def call(self, eqn: Equation, names: dict[Var, str]) -> str:
        """The expression of an equation."""
        operands = [names[a] if type(a) is Var else "" for a in eqn.inputs]
        template = None
        # Some functions copy a view if there are writes, which a trace of the function alone lacks.
        if not (self.has_writes and isinstance(eqn.primitive, View)):
            template = public_template(eqn.primitive, tuple([_pattern(a) for a in eqn.inputs]))
        if template is not None:
            return template.format(*operands)
        texts = [literal_text(a) if isinstance(a, Literal) else names[a] for a in eqn.inputs]
        return f"{self.primitive_call(eqn.primitive)}({', '.join(texts)})"

    def primitive_call(self, primitive: Primitive) -> str:
        """The expression of a primitive with its parameters."""
        params = [
            f"{name}={self.value(getattr(primitive, name))}"
            for name in primitive.fields
            if name not in primitive.defaults
            or repr(getattr(primitive, name)) != repr(primitive.defaults[name])
        ]
        return f"{self.importable(type(primitive))}({', '.join(params)})"

    def importable(self, value: object) -> str:
        """The name of a class or a function, which is imported, or bound if its module lacks it."""
        module, name = str(getattr(value, "__module__", "")), getattr(value, "__qualname__", "")
        found = getattr(sys.modules.get(module), name, None)
        if found is value and module.startswith("functx.") and self.claim(module, name):
            return name
        return self.bound(value)

    def claim(self, module: str, name: str) -> bool:
        """Whether the text imports `name` from `module`, now or before, under that name."""
        if (module, name) not in self.imports:
            if name in self.taken:
                return False
            self.taken.add(name)
            self.imports.add((module, name))
        return True

    def bound(self, value: object) -> str:
        """The name of a value that has no text."""
        for name, known in self.values.items():
            if known is value:
                return name
        name = self.unique(f"value_{len(self.values) + 1}")
        self.values[name] = value
        return name

    def value(self, value: Any) -> str:
        """The expression of a parameter."""
        kind = type(value)
        if value is None or value is ... or kind in (bool, int, str, bytes, range):
            return repr(value) if value is not ... else "..."
        if kind in (float, complex) or isinstance(value, numpy.generic):
            return scalar_text(value)
        if kind is tuple:
            items = ", ".join(map(self.value, value))
            return f"({items},)" if len(value) == 1 else f"({items})"
        if kind is Program:
            return self.program_value(value)
        if kind is ShapedArray:
            return self.type_text(value)
        if isinstance(value, numpy.dtype):
            return f'numpy.dtype("{value.name}")'
        if isinstance(value, Primitive):
            return self.primitive_call(value)
        if isinstance(value, Enum):
            return f"{self.importable(kind)}.{value.name}"
        if kind is slice:
            return f"slice({value.start!r}, {value.stop!r}, {value.step!r})"
        if kind is frozenset:
            return f"frozenset(({''.join([self.value(x) + ', ' for x in sorted(value)])}))"
        if isinstance(value, (FunctionType, type)):
            return self.importable(value)
        parts = record_parts(value)
        if parts is None:
            return self.bound(value)
        given = [f"{name}={self.value(part)}" for name, part in parts.items()]
        return f"{self.importable(kind)}({', '.join(given)})"

    def program_value(self, program: Program) -> str:
        """The expression of a program: the trace of its function."""
        types = ", ".join(map(self.type_text, program.in_avals))
        return f"make_ir({self.function(program)})({types})"

    def type_text(self, aval: ShapedArray) -> str:
        """The expression of a type, `f32[3, 4]` where it has a short name."""
        short = SHORT_NAMES.get(aval.dtype, "")
        dims = ", ".join(map(str, aval.shape)) or "()"
        if not aval.weak_type and hasattr(samples, short) and self.claim(samples.__name__, short):
            return f"{short}[{dims}]"
        self.claim(ShapedArray.__module__, "ShapedArray")
        weak = ", True" if aval.weak_type else ""
        return f"ShapedArray({aval.shape!r}, {self.value(aval.dtype)}{weak})"


def record_parts(value: Any) -> dict[str, Any] | None:
    """The arguments of the class of a record, a named tuple or a dataclass; None for other values."""
    if isinstance(value, Record):
        return {name: getattr(value, name) for name in value.fields}
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: getattr(value, each.name) for each in fields(value) if each.init}
    if hasattr(value, "_fields"):
        return dict(zip(value._fields, value, strict=True))
    return None


def scalar_text(value: object) -> str:
    """The expression of a Python or NumPy number, of its own type."""
    if isinstance(value, numpy.generic):
        return f'numpy.dtype("{value.dtype.name}").type({scalar_text(value.item())})'
    if isinstance(value, complex):
        return f"complex({scalar_text(value.real)}, {scalar_text(value.imag)})"
    return f'float("{value!r}")' if repr(value) in ("inf", "-inf", "nan") else repr(value)


def plain_text(literal: Literal) -> str:
    """The expression of a literal as a plain number, which has its value once it is promoted."""
    if isinstance(literal.value, float) and numpy.isfinite(literal.value):
        return number_text(literal)
    return scalar_text(literal.value)


def literal_text(literal: Literal) -> str:
    """The expression of a literal, which is of its type also without a promotion."""
    if literal.aval.weak_type or isinstance(literal.value, bool):
        return plain_text(literal)
    name = literal.aval.dtype.name
    scalar = f"numpy.{name}" if hasattr(numpy, name) else f'numpy.dtype("{name}").type'
    return f"{scalar}({plain_text(literal)})"


def _pattern(atom: Atom) -> ShapedArray | Literal:
    return atom.aval if type(atom) is Var else atom


@lru_cache(maxsize=4096)
def public_template(
    primitive: Primitive, operands: tuple[ShapedArray | Literal, ...]
) -> str | None:
    """A public way to write a primitive on operands of these types; None without any.

    The trace of it is the equation alone. `{0}` stands for the first operand; literals are written.
    """
    if any([subprograms(primitive), primitive.effects, primitive.draws, primitive.is_user_defined]):
        return None
    atoms: list[Atom] = [Var(x) if type(x) is ShapedArray else x for x in operands]  # type: ignore[misc]
    inputs = [a for a in atoms if type(a) is Var]
    eqn = Equation.of(primitive, atoms)
    expected = Program("equation", inputs, [eqn], eqn.outputs)
    for exact in (False, True):
        texts = [
            f"{{{i}}}" if type(a) is Var else literal_text(a) if exact else plain_text(a)
            for i, a in enumerate(atoms)
        ]
        for template in templates(primitive, texts, eqn.outputs[0].aval if eqn.outputs else None):
            if _traces_to(template, expected, atoms):
                return template
    return None


def templates(primitive: Primitive, texts: Sequence[str], out: ShapedArray | None) -> Iterator[str]:
    """The public ways that a primitive may be written in, the most readable first."""
    name, args = primitive.name, ", ".join(texts)
    params = {each: getattr(primitive, each) for each in primitive.fields}
    plain = all([_is_plain(value) for value in params.values()])
    if name in _OPERATORS and len(texts) == 2:
        yield f"{texts[0]} {_OPERATORS[name]} {texts[1]}"
    if name in ("neg", "not"):
        yield f"{'-' if name == 'neg' else '~'}{texts[0]}"
    if name == "integer_pow":
        yield f"{texts[0]} ** {params['exponent']}"
    if name == "select":
        yield f"np.where({texts[0]}, {texts[2]}, {texts[1]})"
    if name in _REDUCTIONS:
        axes = params["axes"]
        axis = axes[0] if len(axes) == 1 else axes
        yield f"np.{_REDUCTIONS[name]}({args}, axis={axis!r})"
    if name == "convert_element_type" and out is not None:
        yield f"{args}.astype({out.dtype.name!r})"
    if name == "concatenate":
        yield f"np.concatenate([{args}], axis={params['axis']})"
    if name == "full":
        yield f"np.full({params['shape']}, {args})"
    if name == "iota":
        yield f"lax.broadcasted_iota({str(params['dtype'])!r}, {params['shape']}, {params['dimension']})"
    if name == "slice":
        yield f"{args}[{_slices(params)}]"
    if name == "dot_general":
        yield f"lax.dot_general({args}, ({params['contracting_dims']}, {params['batch_dims']}))"
    if plain:
        positional = ", ".join([*texts, *[repr(value) for value in params.values()]])
        named = ", ".join([*texts, *[f"{k}={v!r}" for k, v in params.items()]])
        for module, space in ((np, "np"), (lax, "lax"), (nn, "nn")):
            if callable(getattr(module, name, None)):
                yield f"{space}.{name}({positional})"
                yield f"{space}.{name}({named})"


def _is_plain(value: object) -> bool:
    if type(value) is tuple:
        return all([_is_plain(part) for part in value])
    if type(value) is str:
        return value.isidentifier()
    finite = type(value) is float and numpy.isfinite(value)
    return value is None or bool(finite) or type(value) in (bool, int)


def _slices(params: dict[str, Any]) -> str:
    strides = params["strides"] or (1,) * len(params["start"])
    parts = zip(params["start"], params["limit"], strides, strict=True)
    return ", ".join([f"{a}:{b}" if s == 1 else f"{a}:{b}:{s}" for a, b, s in parts])


def _traces_to(template: str, expected: Program, atoms: Sequence[Atom]) -> bool:
    """Whether the trace of an expression is the program `expected`."""
    places = [i for i, a in enumerate(atoms) if type(a) is Var]
    names = {i: f"x{i}" for i in places}
    text = template.format(*[names.get(i, "") for i in range(len(atoms))])

    def body(*args: object) -> list[Any]:
        local = dict(zip(names.values(), args, strict=True))
        found = eval(text, {**_NAMESPACE, **local})
        return [*found] if isinstance(found, (tuple, list)) else [found]

    try:
        return trace_closed(body, expected.in_avals, name="equation") == expected
    except Exception:
        # The function does not take these operands or parameters.
        return False
