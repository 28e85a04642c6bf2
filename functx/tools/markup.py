"""HTML and SVG made of elements: escaped by construction, with one style sheet for light and dark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha1
from html import escape
from os import PathLike
from pathlib import Path

from functx.core.errors import ArgumentError


class Markup(str):
    """Text that is markup already; any other text is escaped where it becomes part of an element."""

    __slots__ = ()


Content = object
"""A child of an element: markup, None, an iterable of children, or a value whose text is escaped."""

_VOID = frozenset({"br", "hr", "line", "meta", "path", "rect"})


def element(tag: str, *children: Content, **attributes: object) -> Markup:
    """`<tag name="value">children</tag>`.

    In names of attributes a trailing underscore is dropped, and others become hyphens. An
    attribute that is None or False is left out, True stands for one without a value.
    """
    parts = [tag]
    for name, value in attributes.items():
        if value is not None and value is not False:
            name = name.rstrip("_").replace("_", "-")
            parts.append(name if value is True else f'{name}="{escape(str(value))}"')
    start = " ".join(parts)
    if tag in _VOID and not children:
        return Markup(f"<{start}/>")
    return Markup(f"<{start}>{join(children)}</{tag}>")


def join(children: Iterable[Content]) -> Markup:
    """Children in their order, as one text."""
    return Markup("".join([_child(child) for child in children]))


def _child(child: Content) -> str:
    if child is None:
        return ""
    if isinstance(child, Markup):
        return child
    if isinstance(child, (list, tuple, Iterator)):
        return join(child)
    return escape(str(child))


STYLE = Markup("""
.functx.functx { --ink: #1c2430; --faint: #66707d; --paper: #ffffff; --raised: #f5f7fa; --rule: #dde3ea;
  --link: #0b62b8; --mark: #fff1c2; --name: #7a3e9d; --type: #1c7a4d; --old: #fde4e4; --new: #ddf5e3;
  color: var(--ink); background: var(--paper); line-height: 1.5;
  font: 14px/1.5 system-ui, sans-serif; color-scheme: light; }
@media (prefers-color-scheme: dark) { .functx.functx { --ink: #dfe5ec; --faint: #919dab; --paper: #14181f;
  --raised: #1c222b; --rule: #303946; --link: #79b8ff; --mark: #4a3f16; --name: #cfa5ea;
  --type: #7fd4a6; --old: #4b2327; --new: #1d4229; color-scheme: dark; } }
.functx.functx h1 { font-size: 20px; margin: 0 0 4px; } .functx.functx h2 { font-size: 16px; margin: 24px 0 8px; }
.functx.functx p { margin: 4px 0 12px; color: var(--faint); }
.functx.functx code, .functx.functx .code { font: 12.5px/1.6 ui-monospace, Menlo, Consolas, monospace; }
.functx.functx .code { background: var(--raised); border: 1px solid var(--rule); border-radius: 6px;
  padding: 8px 0; overflow-x: auto; }
.functx.functx .columns { display: grid; gap: 12px; align-items: start;
  grid-template-columns: minmax(0, 2fr) minmax(0, 3fr); }
@media (max-width: 900px) { .functx.functx .columns { grid-template-columns: minmax(0, 1fr); } }
.functx.functx .columns > .code { max-height: 85vh; overflow: auto; }
.functx.functx .row { display: block; white-space: pre; padding: 0 12px; min-width: max-content;
  color: inherit; text-decoration: none; }
.functx.functx a.row, .functx.functx a.row:hover { color: inherit; text-decoration: none; }
.functx.functx a.row:hover, .functx.functx .row.link:hover, .functx.functx .row:target { background: var(--mark); }
.functx.functx .number, .functx.functx .note { color: var(--faint); } .functx.functx .number { user-select: none; }
.functx.functx .name { color: var(--name); } .functx.functx .type { color: var(--type); }
.functx.functx .tip { display: none; position: fixed; right: 12px; bottom: 12px; z-index: 9;
  white-space: pre-wrap; max-width: min(640px, 90vw); padding: 8px 12px; border-radius: 6px;
  background: var(--paper); color: var(--ink); border: 1px solid var(--rule);
  box-shadow: 0 4px 16px rgb(0 0 0 / 0.25); pointer-events: none; }
.functx.functx .row:hover > .tip, .functx.functx .row:focus > .tip { display: block; }
.functx.functx details > summary { cursor: pointer; } .functx.functx details > summary.row { display: list-item;
  list-style-position: inside; }
.functx.functx .inner { margin-left: 24px; border-left: 2px solid var(--rule); }
.functx.functx table { border-collapse: collapse; font-size: 13px; margin: 0; width: auto; }
.functx.functx th, .functx.functx td { padding: 2px 12px 2px 0; text-align: left; vertical-align: top;
  border: 0; background: none; white-space: nowrap; }
.functx.functx table, .functx.functx tr { background: none !important; color: inherit; } .functx.functx td code { background: none; padding: 0; }
.functx.functx th { color: var(--faint); font-weight: 500; border-bottom: 1px solid var(--rule); }
.functx.functx .table { overflow-x: auto; }
.functx.functx td.right, .functx.functx th.right { text-align: right; font-variant-numeric: tabular-nums; }
.functx.functx .sides { display: grid; grid-template-columns: minmax(0, 1fr) minmax(0, 1fr); }
.functx.functx .sides > .row { min-width: 0; overflow-x: auto; min-height: 1.6em; }
.functx.functx .old { background: var(--old); } .functx.functx .new { background: var(--new); }
.functx.functx svg { max-width: 100%; height: auto; }
""")
"""The style sheet of all results of `functx.tools`; its rules hold inside elements of class `functx`.

The class is doubled in the selectors, so that they win over those of notebooks.
"""


def fragment(*children: Content, style: str = "") -> Markup:
    """Children with the style sheet, for a notebook."""
    return element("div", element("style", Markup(STYLE + style)), children, class_="functx")


def page(title: str, *children: Content, style: str = "") -> str:
    """A whole HTML document, which loads nothing and runs no script."""
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", title),
        element("style", Markup("html, body { margin: 0; } body.functx { padding: 16px 24px; "
                                "min-height: calc(100vh - 32px); }" + STYLE + style)),
    )  # fmt: skip
    body = element("body", children, class_="functx")
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


SVG_STYLE = Markup("""
.picture { font: 12px system-ui, sans-serif; } .picture .code { font: 11px ui-monospace, monospace; }
.picture .paper { fill: #ffffff; } .picture text { fill: #1c2430; } .picture .faint { fill: #66707d; }
.picture .rule { stroke: #dde3ea; fill: none; } .picture .edge { stroke: #8b97a5; fill: none; }
.picture .box { fill: #f5f7fa; stroke: #a5b0bd; } .picture .mark { stroke: #1c2430; }
@media (prefers-color-scheme: dark) { .picture .paper { fill: #14181f; } .picture text { fill: #dfe5ec; }
  .picture .faint { fill: #919dab; } .picture .rule { stroke: #303946; }
  .picture .edge { stroke: #6b7887; } .picture .box { fill: #1c222b; stroke: #55606d; }
  .picture .mark { stroke: #dfe5ec; } }
""")
"""The style sheet of all pictures, which are also files of their own."""


def svg(width: float, height: float, *children: Content) -> Markup:
    """An SVG picture of `width` by `height` pixels, for light and dark surroundings."""
    return element(
        "svg",
        element("style", SVG_STYLE),
        element("rect", class_="paper", width="100%", height="100%"),
        children,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width:.0f} {height:.0f}",
        width=f"{width:.0f}",
        height=f"{height:.0f}",
        class_="picture",
    )


def table(heads: Sequence[str], rows: Iterable[Sequence[Content]], right: str = "") -> Markup:
    """A table; `right` has an `r` for each column that is aligned to the right.

    The cell of a row that has only one is as wide as the table.
    """
    sides = ["right" if side == "r" else None for side in right.ljust(len(heads))]

    def row(tag: str, cells: Sequence[Content]) -> Markup:
        if len(cells) == 1 < len(heads):
            return element("tr", element(tag, cells[0], colspan=len(heads)))
        return element("tr", [element(tag, c, class_=s) for c, s in zip(cells, sides, strict=True)])

    made = element("table", row("th", heads), [row("td", cells) for cells in rows])
    return element("div", made, class_="table")


def folded(summary: Content, *children: Content, is_open: bool = False) -> Markup:
    """Children under a summary that opens and closes them."""
    return element("details", element("summary", summary), children, open_=is_open)


def identifier_of(text: str) -> str:
    """A short identifier, the same for equal texts, for the ids of elements."""
    return "f" + sha1(text.encode(), usedforsecurity=False).hexdigest()[:8]


def check_ending(operation: str, path: str | PathLike[str], endings: tuple[str, ...]) -> str:
    """The ending of a path; raises ArgumentError unless it is one of `endings`."""
    if not isinstance(path, (str, PathLike)):
        raise ArgumentError(f"{operation}: path must be a path of a file; got {path!r:.80}")
    ending = Path(path).suffix.lower()
    if ending not in endings:
        raise ArgumentError(
            f"{operation}: the path must end in {' or '.join(endings)}; got {str(path)!r}"
        )
    return ending


class HtmlResult:
    """The base class of results that a notebook, or a page of their own, shows as HTML."""

    def content(self) -> Markup:
        """The markup of the result, without the style sheet."""
        raise NotImplementedError

    def title(self) -> str:
        """The title of the page."""
        return type(self).__name__

    def _repr_html_(self) -> str:
        return fragment(self.content())

    def html(self) -> str:
        """The result as a whole HTML document, which loads nothing and runs no script."""
        return page(self.title(), element("h1", self.title()), self.content())

    def save(self, path: str | PathLike[str]) -> None:
        """Write the document to a file whose name ends in `.html`; raises ArgumentError for another."""
        check_ending("save", path, (".html", ".htm"))
        Path(path).write_text(self.html(), encoding="utf-8")


class PictureResult(HtmlResult):
    """The base class of results that are, or have, an SVG picture."""

    def svg(self) -> str:
        """The picture as a document of SVG."""
        raise NotImplementedError

    def _repr_svg_(self) -> str:
        return self.svg()

    def content(self) -> Markup:
        return Markup(self.svg())

    def save(self, path: str | PathLike[str]) -> None:
        """Write the page to a file whose name ends in `.html`, or the picture to one in `.svg`.

        Raises ArgumentError for another ending.
        """
        ending = check_ending("save", path, (".svg", ".html", ".htm"))
        text = self.svg() if ending == ".svg" else self.html()
        Path(path).write_text(text, encoding="utf-8")
