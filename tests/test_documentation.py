"""Every Python block of the documentation runs, page by page."""

import inspect
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import functx
import functx.numpy as np
from functx import compiled_autograd
from functx.errors import error_classes, main
from functx.tools.reference import api_pages

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    *sorted(p for p in (ROOT / "docs").rglob("*.md") if p.parent.name != "reference"),
]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
PROGRAM = re.compile(r"^```\n(program .*?)^```", re.DOTALL | re.MULTILINE)


@pytest.mark.usefixtures("all_kept")
@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_the_code_of_a_page_runs_and_prints_its_programs(page, tmp_path, capsys):
    text = page.read_text()
    scope = {"__name__": "documentation"}
    # Pages and examples before may have met the same walks.
    compiled_autograd.reset()
    for match in BLOCK.finditer(text):
        line = text[: match.start()].count("\n") + 1
        # On disk and at its own line, so that programs and errors show where the code stands.
        path = tmp_path / page.name
        path.write_text("\n" * line + match.group(1))
        exec(compile(path.read_text(), str(path), "exec"), scope)
    printed = without_comments(capsys.readouterr().out)
    for match in PROGRAM.finditer(text):
        assert without_comments(match.group(1)) in printed


def without_comments(text):
    return re.sub(r" *#.*", "", text).strip()


def without_code(text):
    return re.sub(r"^ *```.*?^ *```|`[^`\n]*`", "", text, flags=re.DOTALL | re.MULTILINE)


def anchors(page):
    """The fragments to which both MkDocs and GitHub lead: ids, and names made of headings."""
    text = page.read_text()
    found = set(re.findall(r'<a id="([^"]*)">', text))
    for heading in re.findall(r"^#+ (.*)$", re.sub(r"(?ms)^```.*?^```", "", text), re.MULTILINE):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        words = re.sub(r"[^\w\s-]", "", plain).strip().lower()
        mkdocs, github = re.sub(r"[-\s]+", "-", words), words.replace(" ", "-")
        if mkdocs == github and words.isascii():
            found.add(mkdocs)
    return found


def test_links_and_pictures_lead_to_files_and_to_headings_that_exist():
    """One broken link of a page to a heading that was renamed would otherwise be found by a reader."""
    pages = {*PAGES, *(ROOT / "docs" / "reference").glob("*.md")}
    known, dead = {page: anchors(page) for page in pages}, []
    for page in sorted(pages):
        links = re.findall(r"\]\(([^)\s]*)\)", without_code(page.read_text()))
        for path, _, anchor in (link.partition("#") for link in links if "://" not in link):
            target = (page.parent / path).resolve() if path else page
            if not target.exists() or (anchor and anchor not in known.get(target, ())):
                dead.append(f"{page.relative_to(ROOT)}: {path}#{anchor}")
    assert not dead


def test_the_navigation_of_the_site_has_each_page_once():
    listed = re.findall(r"^ +- (\S+\.md)$", (ROOT / ".ci" / "mkdocs.yml").read_text(), re.MULTILINE)
    docs = ROOT / "docs"
    pages = [str(p.relative_to(docs)) for p in docs.rglob("*.md") if p.parent.name != "decisions"]
    assert sorted(listed) == sorted(pages)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_page_names_files_that_exist_and_quotes_lines_that_it_has(page):
    text = page.read_text()
    for name in re.findall(r"`((?:\w+/)+\w+\.py)`", text):
        assert (ROOT / name).exists() or (ROOT / "functx" / name).exists(), name
    lines = text.splitlines()
    for number, code in re.findall(rf"{re.escape(page.name)}:(\d+) in \w+: (\S.*)", text):
        assert code.strip() == lines[int(number) - 1].strip(), number


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_lines_of_text_have_at_most_120_characters(page):
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    long = [line for line in text.splitlines() if len(line) > 120 and not line.startswith("|")]
    assert not long


def test_the_reference_has_lines_of_120_characters_and_no_line_numbers():
    for path in (ROOT / "docs" / "reference").glob("*.md"):
        text = path.read_text()
        assert not re.search(r"\.py(:|#L)\d", text), path
        assert not [ln for ln in text.splitlines() if len(ln) > 120 and not ln.startswith("|")]


def test_every_decision_has_context_decision_and_consequences_and_is_listed():
    listed = (ROOT / "docs" / "decisions" / "README.md").read_text()
    for path in (ROOT / "docs" / "decisions").glob("[0-9]*.md"):
        headings = re.findall(r"^## (.*)$", path.read_text(), re.MULTILINE)
        assert headings == ["Context", "Decision", "Consequences"], path
        assert f"({path.name})" in listed


def test_the_command_that_a_message_ends_with_prints_the_page_of_the_error(capsys):
    with pytest.raises(functx.errors.ShapeError) as caught:
        np.ones(3) + np.ones(4)
    command = str(caught.value).splitlines()[-1].strip()
    assert command == "More: python -m functx.errors ShapeError"
    run = subprocess.run(
        [sys.executable, *command.split()[2:]], capture_output=True, text=True, check=True
    )
    assert run.stdout.startswith("ShapeError (ValueError, TypeError)\n\nShapes do not fit")
    assert "Smallest failing code:" in run.stdout and "Cure:" in run.stdout and not run.stderr

    assert main(["ShapeErorr"]) == 2
    assert "got ShapeErorr, similar: ShapeError" in capsys.readouterr().out
    assert main([]) == 0
    assert capsys.readouterr().out.count("\n") == len(error_classes()) > 40


def test_the_site_has_a_page_for_each_namespace_and_example():
    pages = api_pages()
    assert "functx.numpy.sin(x, /, *, out=None, where=True)" in pages["functx.numpy.md"]
    assert inspect.getdoc(functx.lax.psum).splitlines()[0] in pages["functx.lax.md"]
    examples = runpy.run_path(str(ROOT / "docs" / "mkdocs_hooks.py"))["example_pages"]()
    assert len(examples) == 1 + len(list((ROOT / "examples").glob("*.py")))
    for name in examples:
        assert (
            name == "examples/index.md" or f"({Path(name).name})" in examples["examples/index.md"]
        )
