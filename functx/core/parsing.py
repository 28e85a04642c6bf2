"""The parser of printed programs, with errors that point at the token."""

from __future__ import annotations

import re
from ast import literal_eval
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from enum import Enum
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

from functx.core import tree
from functx.core.checking import arity_problem, literal_problem, pluralize
from functx.core.effects import Effect, Effects
from functx.core.errors import FunctxError, ParseError, type_name
from functx.core.primitive import Primitive
from functx.core.printing import (
    effects_text,
    find_opaque_value,
    is_record,
    resolve_in_module,
    resolve_name,
)
from functx.core.program import Atom, Equation, Part, Program, Var, scalar_literal
from functx.core.rewriting import T
from functx.core.types import DTYPES_BY_SHORT_NAME, DType, ShapedArray

_TOKEN = re.compile(
    r"""(?P<space>[ \t\r]+|\#[^\n]*)
    |(?P<newline>\n)
    |(?P<string>b?(?:'(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*"))
    |(?P<complex>\([^\s(),'"\[\]{}]*j\))
    |(?P<number>-?(?:\d+(?:\.\d*)?(?:e[-+]?\d+)?|\b(?:inf|nan)\b))
    |(?P<opaque><[^<>\n]*>)
    |(?P<name>[^\W\d]\w*)
    |(?P<mark>\.\.\.|[()\[\]{}:,=~@./-])
    |(?P<other>.)""",
    re.VERBOSE,
)
CLOSING = {")": "(", "]": "[", "}": "{"}
OPENING = frozenset(CLOSING.values())


class Token(NamedTuple):
    """A token of the text, its start and its line."""

    kind: str
    text: str
    start: int
    line: int


def tokenize_text(text: str) -> list[Token]:
    """The tokens of `text`; line ends are tokens outside brackets. Brackets must match."""
    found: list[Token] = []
    line = 1
    opened: list[Token] = []
    for match in _TOKEN.finditer(text):
        kind, word = match.lastgroup or "", match.group()
        if kind == "space":
            continue
        token = Token(kind, word, match.start(), line)
        if kind == "newline":
            line += 1
            if opened or not found or found[-1].kind == "newline":
                continue
        elif word in CLOSING:
            opening = opened.pop().text if opened else ""
            if CLOSING[word] != opening:
                expected = f"a bracket that closes `{opening}`" if opening else "an open bracket"
                raise parse_error_at(text, token, f"must have {expected}; got `{word}`")
        elif word in OPENING:
            opened.append(token)
        found.append(token)
    if opened:
        raise parse_error_at(text, opened[-1], f"must close the bracket `{opened[-1].text}`")
    if not found or found[-1].kind != "newline":
        found.append(Token("newline", "\n", len(text), line))
    found.append(Token("end", "", len(text), line))
    return found


def parse_error_at(text: str, token: Token, problem: str, fix: str = "") -> ParseError:
    """The error `problem` at `token`, with the line and a pointer to the token."""
    begin = text.rfind("\n", 0, token.start) + 1
    end = text.find("\n", token.start)
    line = text[begin : end if end >= 0 else len(text)].rstrip()
    pointer = " " * (token.start - begin) + "^"
    return ParseError(f"Program.parse: line {token.line} {problem}", line, pointer, fix=fix)


_NAME_TERMINATORS = frozenset("()[]{},=~")


def parse_program(text: str) -> Program:
    """The program whose printed form is `text`, which takes and returns flat lists.

    Raises ParseError, with the line and the expected token, for any other text.
    """
    return _parse(text)[0]


def parse_function(text: str) -> Program:
    """As `parse_program`, but the program returns one value, or a tuple, as the text of its `return` does."""
    program, returns_tuple = _parse(text)
    leaf = tree.structure(0)
    outputs = tree.treedef_tuple([leaf] * len(program.outputs)) if returns_tuple else leaf
    program.trees = tree.call_treedef(*[leaf] * len(program.inputs)), outputs
    return program


def _parse(text: str) -> tuple[Program, bool]:
    """The program of a text, and whether its `return` has a comma or no value."""
    if not isinstance(text, str):
        raise ParseError(
            f"Program.parse: the text must be a string; got {type_name(text)}",
            fix="str(program) is the text of a program.",
        )
    parser = _Parser(text)
    program = parser.program()
    if parser.token.kind != "end":
        raise parser.error("the end of the text after `return`")
    return program, parser.returns_tuple


class _Scope:
    """The variables of one program by name, and the lines that define them."""

    def __init__(self) -> None:
        self.variables: dict[str, Var] = {}
        self.lines: dict[str, int] = {}


class _Parser:
    """A recursive-descent parser: the tokens, the current position, and the programs parsed so far."""

    def __init__(self, text: str):
        self.text = text
        self.tokens = tokenize_text(text)
        self.position = 0
        self.programs: dict[str, Program] = {}
        self.returns_tuple = False

    @property
    def token(self) -> Token:
        return self.tokens[self.position]

    def next(self) -> Token:
        token = self.token
        self.position += 1
        return token

    def at(self, text: str) -> bool:
        return self.token.text == text and self.token.kind in ("mark", "name")

    def skip(self, text: str) -> bool:
        """Whether the current token is `text`; if so, moves past it."""
        matches = self.at(text)
        self.position += matches
        return matches

    def expect(self, text: str, where: str) -> Token:
        if not self.at(text):
            raise self.error(f"`{text}` {where}".rstrip())
        return self.next()

    def expect_kind(self, kind: str, expected: str) -> Token:
        if self.token.kind != kind:
            raise self.error(expected)
        return self.next()

    def error(self, expected: str, token: Token | None = None, fix: str = "") -> ParseError:
        """The error that `expected` must be at `token`, by default the current one."""
        token = token or self.token
        shown = {"newline": "the end of the line", "end": "the end of the text"}
        got = shown.get(token.kind) or f"`{token.text}`"
        return self.problem(f"must have {expected}; got {got}", token, fix)

    def problem(self, problem: str, token: Token, fix: str = "") -> ParseError:
        return parse_error_at(self.text, token, problem, fix)

    def separated(self, item: Callable[[], T], end: str) -> list[T]:
        """Items separated by commas, up to the mark `end`."""
        items: list[T] = []
        while not self.at(end):
            items.append(item())
            if not self.skip(","):
                break
        self.expect(end, "or `,`" if items else "")
        return items

    def program(self) -> Program:
        while self.token.kind == "newline":
            self.next()
        self.expect("program", "and a name, as in `program loss(x: f32[3]):`")
        name = self.expect_kind("name", "a name for the program")
        scope = _Scope()
        self.expect("(", "and the inputs")
        inputs = self.separated(lambda: self.input(scope), ")")
        effects_at = self.token
        effects = self.effects() if self.skip("with") else None
        self.expect(":", "after the inputs")
        self.expect_kind("newline", "the end of the line after `:`")
        equations: list[Equation] = []
        while not self.at("return"):
            if self.at("program"):
                self.nested()
            elif self.token.kind == "end":
                raise self.error(f"`return` at the end of the program `{name.text}`")
            else:
                equations.append(self.equation(scope))
        self.next()
        outputs: list[Atom] = []
        self.returns_tuple = self.token.kind == "newline"
        while self.token.kind != "newline":
            outputs.append(self.atom(scope))
            if not self.skip(","):
                break
            self.returns_tuple = True
        self.expect_kind("newline", "`,` or the end of the line")
        names = [getattr(v, "name", "_") for v in inputs]
        program = Program(name.text, inputs, equations, outputs, in_names=lambda: names)
        if effects is not None and effects != program.effects:
            actual = f"`with {effects_text(program.effects)}`" if program.effects else "no effects"
            raise self.problem(
                f"must state {actual}, which the equations have; got "
                f"`with {effects_text(effects)}`",
                effects_at,
            )
        return program

    def effects(self) -> Effects:
        """The effects that the header of a program states."""
        found = []
        known = Effect.by_name
        while True:
            token = self.expect_kind("name", "an effect")
            if token.text not in known:
                raise self.error("an effect", token, _did_you_mean(token, known))
            found.append(known[token.text])
            if not self.skip(","):
                return frozenset(found)

    def nested(self) -> None:
        token = self.tokens[self.position + 1]
        if token.text in self.programs:
            raise self.error("a name that no other program has", token)
        self.programs[token.text] = self.program()

    def input(self, scope: _Scope) -> Var:
        token = self.expect_kind("name", "the name of an input")
        self.expect(":", f"and the type of `{token.text}`")
        return self.define(scope, token, self.aval())

    def define(self, scope: _Scope, token: Token, aval: ShapedArray) -> Var:
        var = Var(aval)
        if token.text == "_":
            return var
        if token.text in scope.variables:
            raise self.problem(
                f"must define a new variable; got `{token.text}`, which line "
                f"{scope.lines[token.text]} defines",
                token,
            )
        scope.variables[token.text] = var
        scope.lines[token.text] = token.line
        var.name = token.text
        return var

    def aval(self) -> ShapedArray:
        weak = self.skip("~")
        dtype = self.dtype()
        self.expect("[", f"and a shape after `{self.tokens[self.position - 1].text}`")
        shape = self.separated(self.length, "]")
        return ShapedArray(tuple(shape), dtype, weak)

    def length(self) -> int:
        if not self.token.text.isdecimal():
            raise self.error("a length")
        return self.construct(self.token, int, self.next().text)

    def dtype(self) -> DType:
        token = self.token
        found = DTYPES_BY_SHORT_NAME.get(token.text)
        if found is None:
            raise self.error("a dtype, such as f32", fix=_did_you_mean(token, DTYPES_BY_SHORT_NAME))
        self.next()
        return found

    def equation(self, scope: _Scope) -> Equation:
        stated = self.outputs()
        self.expect("=", "after the outputs")
        cls, token = self.primitive_class()
        params_at = self.position
        self.skip_brackets()
        inputs: list[Atom] = []
        while self.token.kind != "newline" and not self.at("@"):
            inputs.append(self.atom(scope))
        part = self.part() if self.skip("@") else None
        self.expect_kind("newline", "the end of the line")
        # The programs that the parameters name follow the equation.
        while self.at("program"):
            self.nested()
        end, self.position = self.position, params_at
        primitive = self.primitive(cls, token)
        self.position = end
        avals = self.output_types(primitive, inputs, token, stated)
        outputs = [
            self.define(scope, name, aval) for (name, _), aval in zip(stated, avals, strict=True)
        ]
        return Equation(primitive, inputs, outputs, None, part)

    def part(self) -> Part:
        """The part of a joint program that an equation belongs to."""
        known = {part.value: part for part in Part}
        token = self.token
        if token.text not in known:
            raise self.error(f"one of {', '.join(known)}", fix=_did_you_mean(token, known))
        self.next()
        return known[token.text]

    def outputs(self) -> list[tuple[Token, ShapedArray | None]]:
        if self.skip("("):
            self.expect(")", "or the name of an output")
            return []
        found = []
        while True:
            name = self.expect_kind("name", "the name of an output, or `return`")
            found.append((name, self.aval() if self.skip(":") else None))
            if not self.skip(","):
                return found

    def output_types(
        self,
        primitive: Primitive,
        inputs: list[Atom],
        token: Token,
        stated: list[tuple[Token, ShapedArray | None]],
    ) -> list[ShapedArray]:
        """The types of the outputs; raises ParseError unless the line states the same."""
        avals = tuple([atom.aval for atom in inputs])
        shown = ", ".join(map(repr, avals))
        operands = arity_problem(primitive, len(avals))
        if operands is not None:
            raise self.problem(f"must have {operands} of {primitive.name}; got {shown}", token)
        outs = primitive.out_avals_memo.get(avals) or self.construct(
            token, primitive.infer_out_avals, avals
        )
        if len(outs) != len(stated):
            raise self.problem(
                f"must have {pluralize(len(outs), 'output')} of {primitive.name}; got {len(stated)}",
                token,
            )
        for (name, stated_aval), aval in zip(stated, outs, strict=True):
            if stated_aval is not None and stated_aval is not aval:
                raise self.problem(
                    f"must state the type {aval!r} for `{name.text}`, which is that of "
                    f"{primitive.name} on {shown}; got {stated_aval!r}",
                    name,
                )
        return list(outs)

    def primitive_class(self) -> tuple[type[Primitive], Token]:
        """The primitive named by the current tokens; marks may be part of the name."""
        first = self.token
        text = ""
        while (
            self.token.kind in ("name", "number", "mark")
            and self.token.text not in _NAME_TERMINATORS
            and self.token.start == first.start + len(text)
        ):
            text += self.next().text
        cls = Primitive.registry.get(text)
        token = first if not text else first._replace(text=text)
        if cls is None:
            raise self.error(
                "the name of a primitive after `=`", token, _did_you_mean(token, Primitive.registry)
            )
        return cls, token

    def skip_brackets(self) -> None:
        """Move past the brackets that open here, if any."""
        depth = 0
        while depth or self.at("["):
            text = self.next().text
            depth += (text in OPENING) - (text in CLOSING)

    def primitive(self, cls: type[Primitive], token: Token) -> Primitive:
        """The primitive of `cls` with the parameters in the brackets here, if any."""
        params = dict(self.parameters(cls, token))
        missing = [f for f in cls.fields if f not in params and f not in cls.defaults]
        if missing:
            raise self.problem(
                f"must give {cls.name} the parameters {', '.join(cls.fields)}; got none for "
                + ", ".join(f"`{field}`" for field in missing),
                token,
            )
        primitive: Primitive = self.construct(token, cls, **params)
        return primitive

    def construct(self, token: Token, make: Callable[..., T], *args: object, **kwargs: object) -> T:
        """`make(*args, **kwargs)`; raises ParseError at `token` if that raises."""
        try:
            return make(*args, **kwargs)
        except Exception as error:
            reason = error.problem if isinstance(error, FunctxError) else error
            raise self.problem(f"does not fit: {reason}", token) from error

    def parameters(self, cls: type[Primitive], token: Token) -> list[tuple[str, Any]]:
        if not self.skip("["):
            return []

        def parameter() -> tuple[str, Any]:
            name = self.expect_kind("name", f"a parameter of {cls.name}")
            if name.text not in cls.fields:
                takes = ", ".join(cls.fields) or "no parameters"
                raise self.error(
                    f"a parameter of {cls.name}, which takes {takes}",
                    name,
                    _did_you_mean(name, cls.fields),
                )
            self.expect("=", "and a value")
            return name.text, self.value(cls)

        found = self.separated(parameter, "]")
        if len(dict(found)) != len(found):
            raise self.problem(f"must give each parameter of {cls.name} once", token)
        return found

    def value(self, cls: type[Primitive]) -> object:
        """The value of a parameter of `cls`."""
        token = self.next()
        kind, text = token.kind, token.text
        if kind == "number":
            return self.construct(token, _number, text)
        if kind == "complex":
            return self.construct(token, complex, text)
        if kind == "string":
            return self.construct(token, literal_eval, text)
        if kind == "opaque":
            return self.opaque(token)
        if text == "(":
            return tuple(self.separated(lambda: self.value(cls), ")"))
        if text == "{":
            return frozenset(self.separated(lambda: self.value(cls), "}"))
        if text == "...":
            return ...
        if text == "~":
            self.position -= 1
            return self.aval()
        if text == "@":
            return self.primitive(*self.primitive_class())
        if kind == "name":
            return self.named_value(cls, token)
        raise self.error("a value", token)

    def opaque(self, token: Token) -> object:
        found = find_opaque_value(token.text)
        if found is None:
            raise self.error(
                "a value that can be read",
                token,
                "Values in <...> have no text of their own; they are read only in the process "
                "that printed them, while they are alive.",
            )
        return found

    def named_value(self, cls: type[Primitive], token: Token) -> object:
        """The value of a name: a constant, a dtype, an aval, a program, or an instance of a class."""
        name = token.text
        if name in _CONSTANTS:
            return _CONSTANTS[name]
        if name in DTYPES_BY_SHORT_NAME:
            if self.at("["):
                self.position -= 1
                return self.aval()
            dtype = DTYPES_BY_SHORT_NAME[name]
            return self.call(cls, dtype.type, token) if self.at("(") else dtype
        if name in self.programs and self.tokens[self.position].text != ".":
            return self.programs[name]
        if name in _BUILT_IN and self.at("("):
            return self.call(cls, _BUILT_IN[name], token)
        found = resolve_name(cls, name)
        if isinstance(found, ModuleType) and self.skip("."):
            member = self.next()
            found = resolve_in_module(cls, name, member.text)
            if found is None:
                raise self.error(f"a class or a function of {name}", member)
            if isinstance(found, FunctionType):
                return found
        if isinstance(found, type) and issubclass(found, Enum) and self.skip("."):
            member = self.next()
            if member.text not in found.__members__:
                raise self.error(
                    f"a member of {name}", member, _did_you_mean(member, found.__members__)
                )
            return found[member.text]
        if is_record(found) and self.at("("):
            return self.call(cls, found, token)
        raise self.error(
            "a value: a program below the equation, a dtype, a number, a string, a tuple",
            token,
            _did_you_mean(token, [*self.programs, *DTYPES_BY_SHORT_NAME, *_CONSTANTS]),
        )

    def call(self, cls: type[Primitive], make: Callable[..., T], token: Token) -> T:
        """`make` called with the arguments in the following parentheses."""
        self.expect("(", "and arguments")
        positional: list[object] = []
        keywords: dict[str, object] = {}

        def argument() -> None:
            following = self.tokens[self.position + 1]
            if self.token.kind == "name" and following.text == "=":
                name = self.next().text
                self.next()
                keywords[name] = self.value(cls)
            else:
                positional.append(self.value(cls))

        self.separated(argument, ")")
        return self.construct(token, make, *positional, **keywords)

    def atom(self, scope: _Scope) -> Atom:
        token = self.next()
        if self.at(":"):
            self.next()
            return self.literal(token)
        if token.kind != "name":
            raise self.error("a variable, or a number with a dtype as in 2.0:f32", token)
        found = scope.variables.get(token.text)
        if found is None:
            raise self.error(
                "a variable defined above", token, _did_you_mean(token, scope.variables)
            )
        return found

    def literal(self, token: Token) -> Atom:
        weak = self.skip("~")
        dtype = self.dtype()
        value = self.scalar(token)
        literal = scalar_literal(value, dtype, weak, repr(value))
        problem = literal_problem(literal)
        if problem:
            raise self.problem(problem, token)
        return literal

    def scalar(self, token: Token) -> complex:
        if token.kind == "number":
            return self.construct(token, _number, token.text)
        if token.kind == "complex":
            return self.construct(token, complex, token.text)
        if token.text in ("True", "False"):
            return token.text == "True"
        raise self.error("a number before `:`", token)


_CONSTANTS: dict[str, object] = {"None": None, "True": True, "False": False}
_BUILT_IN: dict[str, Callable[..., object]] = {"slice": slice, "range": range}


def _number(text: str) -> int | float:
    return int(text) if text.lstrip("-").isdigit() else float(text)


def _did_you_mean(token: Token, known: Iterable[str]) -> str:
    near = get_close_matches(token.text, list(known), 3)
    return f"Did you mean {' or '.join(f'`{name}`' for name in near)}?" if near else ""
