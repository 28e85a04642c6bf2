"""The words of a program's text, and errors that point at one."""

from __future__ import annotations

import re
from typing import NamedTuple

from functx.core.errors import ParseError

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
    """A word of the text and where it stands."""

    kind: str
    text: str
    start: int
    line: int


def tokenize_text(text: str) -> list[Token]:
    """The words of `text`; line ends count outside brackets, which must match."""
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
                wanted = f"a bracket that closes `{opening}`" if opening else "an open bracket"
                raise parse_error_at(text, token, f"must have {wanted}; got `{word}`")
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
    """The error that the line of `token` has `problem`, with the line and a pointer."""
    begin = text.rfind("\n", 0, token.start) + 1
    end = text.find("\n", token.start)
    line = text[begin : end if end >= 0 else len(text)].rstrip()
    pointer = " " * (token.start - begin) + "^"
    return ParseError(f"Program.parse: line {token.line} {problem}", line, pointer, fix=fix)
