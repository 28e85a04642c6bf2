"""MkDocs hooks: pages made from docstrings and examples, and links to files outside of `docs/`."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

from functx.tools.reference import api_pages

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"\[([^\]]*)\]\(((?:\.\./)+)([^)#]*)(#[^)]*)?\)")


def on_config(config: Any) -> Any:
    """Fill the sections of the navigation whose pages are made, or found in a folder."""
    decisions = sorted(path.name for path in (ROOT / "docs" / "decisions").glob("[0-9]*.md"))
    sections = {
        "Examples": sorted(example_pages()),
        "API": sorted(f"api/{name}" for name in api_pages()),
        "Decisions": ["decisions/README.md", *(f"decisions/{name}" for name in decisions)],
    }
    for tab in config.nav:
        for entry in next(iter(tab.values())):
            if isinstance(entry, dict):
                entry.update((title, sections[title]) for title in entry)
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are made of docstrings and of examples."""
    from mkdocs.structure.files import File

    made = {f"api/{name}": page for name, page in api_pages().items()} | example_pages()
    for path, page in made.items():
        files.append(File.generated(config, path, content=page))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Lead links to examples to their pages, and show other files outside of `docs/` by name."""

    def replacement(match: re.Match[str]) -> str:
        text, up, target, _ = match.groups()
        depth = page.file.src_uri.count("/")
        if up.count("../") <= depth:
            return match[0]
        if target.startswith("examples/"):
            name = Path(target).stem if target.endswith(".py") else "index"
            return f"[{text}]({'../' * depth}examples/{name}.md)"
        return text if "`" in text else f"`{text}`"

    return LINK.sub(replacement, markdown)


def example_pages() -> dict[str, str]:
    """A page for each example, with its docstring as the text, and one that lists them."""
    pages, entries = {}, []
    for path in sorted((ROOT / "examples").glob("*.py")):
        source = path.read_text()
        module = ast.parse(source)
        text = ast.get_docstring(module) or path.stem
        code = "\n".join(source.splitlines()[module.body[0].end_lineno :]).strip()
        title = path.stem.lstrip("0123456789_").replace("_", " ").capitalize()
        pages[f"examples/{path.stem}.md"] = f"# {title}\n\n{text}\n\n```python\n{code}\n```\n"
        entries.append(f"- [{title}]({path.stem}.md): {text.splitlines()[0]}")
    pages["examples/index.md"] = "# Examples\n\n" + "\n".join(entries) + "\n"
    return pages
