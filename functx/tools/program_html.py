"""Programs as HTML: equations beside the user's lines that they come from, sub-programs folded."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from functx.core.config import format_bytes
from functx.core.printing import (
    atom_text,
    effects_text,
    identifier,
    primitive_text,
    variable_names,
)
from functx.core.program import Equation, Program, Var, subprograms
from functx.passes.costs import bytes_of, equation_work
from functx.tools.cost import format_count, line_label
from functx.tools.markup import Markup, element, fragment, identifier_of, join
from functx.tools.user_lines import (
    UNKNOWN,
    SourceFunction,
    all_equations,
    line_of,
    source_functions,
)

_WIDEST_HEADER = 80
MAX_EQUATIONS = 400
"""The number of equations of each program that a notebook shows."""


class ProgramPage:
    """The HTML of one program: its equations, and the user's source beside them.

    Equations and lines that belong together are highlighted together, by the style sheet alone.
    """

    def __init__(self, program: Program, max_equations: int = MAX_EQUATIONS):
        self.program, self.max_equations = program, max_equations
        self.id = identifier_of(str(program))
        equations = all_equations(program)
        anchors = [line_of(eqn.source).anchor for eqn in equations]
        self.lines = {
            anchor: i for i, anchor in enumerate(dict.fromkeys(anchors)) if anchor != UNKNOWN.anchor
        }
        self.functions = source_functions(equations)
        self.shown: dict[Program, str] = {}
        self.numbers = count()
        self.targets: set[str] = set()

    def content(self) -> Markup:
        """The program, with the source beside it if there is any."""
        program = element("div", self.program_rows(self.program), class_="code")
        if not self.functions:
            return element("div", program, class_=self.id)
        source = element("div", [self.function_rows(f) for f in self.functions], class_="code")
        columns = element("div", source, program, class_="columns")
        return element("div", columns, class_=self.id)

    def style(self) -> str:
        """The rules that highlight the equations of a line, or the fold around them, and the line of one."""
        names = [f".{self.id}l{i}" for i in self.lines.values()]
        rules = [
            f".{self.id}:has({name}:hover) :is({name}, "
            f"details:not([open]):has({name}) > summary) {{ background: var(--mark) }}"
            for name in names
        ]
        return "\n".join(rules)

    def function_rows(self, function: SourceFunction) -> Iterator[Markup]:
        """The lines of a function of the user; those with equations lead to the first one."""
        yield element("div", element("span", function.place, class_="note"), class_="row")
        for number, text in enumerate(function.lines, function.first):
            label = element("span", f"{number:4}  ", class_="number")
            index = self.lines.get((function.file, number))
            if index is None:
                yield element("div", label, text, class_="row")
            else:
                name = f"{self.id}l{index}"
                row = {"id": f"{name}s", "class_": f"row link {name}", "href": f"#{name}e"}
                yield element("a", label, text, **row)

    def program_rows(self, program: Program) -> Iterator[Markup]:
        """The header, the equations and the outputs of a program."""
        names = variable_names(program)
        name = element("b", self.shown.setdefault(program, identifier(program.name)))
        effects = f" with {effects_text(program.effects)}" if program.effects else ""
        inputs = [_variable(v, names) for v in program.inputs]
        if sum([len(names[v]) + len(repr(v.aval)) + 4 for v in program.inputs]) <= _WIDEST_HEADER:
            together = [[", " if i else "", x] for i, x in enumerate(inputs)]
            yield element("div", "program ", name, "(", together, ")", effects, ":", class_="row")
        else:
            yield element("div", "program ", name, "(", class_="row")
            yield join([element("div", "    ", x, ",", class_="row") for x in inputs])
            yield element("div", ")", effects, ":", class_="row")
        for eqn in program.equations[: self.max_equations]:
            yield self.equation(eqn, names)
        if (more := len(program) - self.max_equations) > 0:
            note = element("span", f"... {more} more equations", class_="note")
            yield element("div", "  ", note, class_="row")
        outputs = ", ".join([atom_text(a, names) for a in program.outputs])
        yield element("div", f"  return {outputs}", class_="row")

    def equation(self, eqn: Equation, names: dict[Var, str]) -> Markup:
        """The row of an equation; a sub-program at its first use is folded below it."""
        fresh = [p for p in subprograms(eqn.primitive) if p not in self.shown]
        for program in dict.fromkeys(fresh):
            taken = self.shown.values()
            name = base = identifier(program.name)
            while name in taken:
                name = f"{base}_{next(self.numbers)}"
            self.shown[program] = name
        cells = self.equation_cells(eqn, names)
        attributes = self.link(eqn)
        if not fresh:
            tag = "a" if "href" in attributes else "div"
            return element(tag, cells, **attributes)
        attributes.pop("href", None)
        inner = [element("div", self.program_rows(p), class_="inner") for p in dict.fromkeys(fresh)]
        return element("details", element("summary", cells, **attributes), inner)

    def link(self, eqn: Equation) -> dict[str, object]:
        """The class of the line of an equation, its place in the page, and the target of its link."""
        index = self.lines.get(line_of(eqn.source).anchor)
        if index is None:
            return {"class_": "row link"}
        name = f"{self.id}l{index}"
        found: dict[str, object] = {"class_": f"row link {name}", "href": f"#{name}s"}
        if name not in self.targets:
            self.targets.add(name)
            found["id"] = f"{name}e"
        return found

    def equation_cells(self, eqn: Equation, names: dict[Var, str]) -> list[object]:
        """The two sides of an equation, and what is shown while the pointer is on it."""
        outputs: list[object] = []
        for v in eqn.outputs:
            outputs += [", " if outputs else "", _variable(v, names)]
        operation = primitive_text(eqn.primitive, lambda p: self.shown.get(p, p.name))
        operands = "".join([f" {atom_text(a, names)}" for a in eqn.inputs])
        tip = element("span", equation_note(eqn), class_="tip")
        return ["  ", outputs or "()", " = ", operation, operands, tip]


def _variable(v: Var, names: dict[Var, str]) -> list[object]:
    name = element("span", names.get(v, "?"), class_="name")
    return [name, ": ", element("span", repr(v.aval), class_="type")]


def equation_note(eqn: Equation) -> str:
    """The types of the outputs, the user's line, and the bytes and the work of an equation."""
    work = equation_work(eqn)
    bound = "at least " if work.is_lower_bound else ""
    size = format_bytes(sum([bytes_of(v.aval) for v in eqn.outputs]))
    lines = [
        f"{eqn.primitive.name} -> {', '.join([repr(v.aval) for v in eqn.outputs])}",
        line_label(line_of(eqn.source)),
        f"{size}, {bound}{format_count(work.flops)} flops, "
        f"{format_count(work.transcendentals)} special functions",
    ]
    return "\n".join(lines)


def program_fragment(program: Program) -> str:
    """A program as a notebook shows it."""
    shown = ProgramPage(program)
    return fragment(shown.content(), style=shown.style())
