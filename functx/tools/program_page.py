"""`html`: a function as a page with its program, its costs, its memory, and the passes it goes through."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from functx.core.config import format_bytes
from functx.core.program import Program
from functx.core.typing import Function, PyTree
from functx.tools.cost import CostTable, format_count
from functx.tools.markup import HtmlResult, Markup, element, folded, fragment, join, page
from functx.tools.memory import MemoryUse, memory
from functx.tools.passes import PassTable, passes
from functx.tools.program_html import ProgramPage
from functx.transforms.argument_names import check_callable, wrap_transform

MAX_EQUATIONS = 4000
"""The number of equations of each program that a page shows."""


@dataclass(frozen=True)
class FunctionPage(HtmlResult):
    """A page with the program, passes, costs and memory of a function; `save(path)` writes it."""

    program: Program
    passes: PassTable
    memory: MemoryUse

    @property
    def cost(self) -> CostTable:
        """The flops and bytes of the program."""
        return CostTable(self.program)

    def title(self) -> str:
        return self.program.name

    def __repr__(self) -> str:
        return f"<page of {self.title()}: {len(self.program)} equations>"

    def content(self) -> Markup:
        return self.sections(ProgramPage(self.program))

    def sections(self, shown: ProgramPage) -> Markup:
        """The program, then costs, memory and passes, which are folded."""
        total = self.cost.total
        bound = "at least " if total.is_lower_bound else ""
        summary = (
            f"{len(self.program)} equations, {bound}{format_count(total.flops)} flops, "
            f"{format_count(total.transcendentals)} special functions; "
            f"arguments {format_bytes(self.memory.argument_bytes)}, "
            f"at most about {format_bytes(self.memory.peak_bytes)} besides."
        )
        return join(
            [
                element("p", summary),
                shown.content(),
                element("h2", "By line"),
                folded("cost of each line", self.cost.content()),
                folded("memory at each equation", self.memory.content()),
                element("h2", "Passes"),
                self.passes.content(),
            ]
        )

    def _repr_html_(self) -> str:
        shown = ProgramPage(self.program)
        return fragment(self.sections(shown), style=shown.style())

    def html(self) -> str:
        shown = ProgramPage(self.program, MAX_EQUATIONS)
        heading = element("h1", self.title())
        return page(self.title(), heading, self.sections(shown), style=shown.style())


def html(fun: Function) -> Callable[..., FunctionPage]:
    """The function that shows all about `fun(*args)` on one page of HTML.

    The page has the program beside the source of the user: a line and the equations that it made
    are highlighted together, and the pointer on an equation shows its type, line, bytes and flops.
    Sub-programs are folded. Below are the costs by line, the memory, and each pass with the program
    before and after it. The page is one file, which loads nothing and runs no script. The function
    is traced, not run.

    Raises ArgumentError for what is no function, and whatever `fun` raises.

    >>> import functx, pathlib, tempfile
    >>> shown = functx.tools.html(lambda x: functx.numpy.sin(x) * 2.0)(1.0)
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "page.html"
    >>> shown.save(path)
    >>> path.read_text().startswith("<!DOCTYPE html>")
    True
    """
    check_callable(fun, "html")

    def wrapper(*args: PyTree, **kwargs: PyTree) -> FunctionPage:
        table = passes(fun)(*args, **kwargs)
        return FunctionPage(table["functionalize"].program, table, memory(fun)(*args, **kwargs))

    return wrap_transform(wrapper, fun, "html")
