"""Every Python block of the documentation runs, page by page."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    *sorted(p for p in (ROOT / "docs").rglob("*.md") if p.parent.name != "reference"),
]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


@pytest.mark.usefixtures("all_kept")
@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_the_code_of_a_page_runs(page, tmp_path, capsys):
    text = page.read_text()
    scope = {"__name__": "documentation"}
    for match in BLOCK.finditer(text):
        line = text[: match.start()].count("\n") + 1
        # On disk and at its own line, so that programs and errors show where the code stands.
        path = tmp_path / page.name
        path.write_text("\n" * line + match.group(1))
        exec(compile(path.read_text(), str(path), "exec"), scope)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_the_links_of_a_page_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), target


@pytest.mark.usefixtures("all_kept")
def test_the_program_in_the_readme_is_what_its_code_prints(capsys):
    text = (ROOT / "README.md").read_text()
    code = BLOCK.search(text).group(1)
    exec(compile(code, "README.md", "exec"), {})
    printed = [line.split("#")[0].rstrip() for line in capsys.readouterr().out.strip().splitlines()]
    shown = re.search(r"^```\n(program.*?)^```", text, re.DOTALL | re.MULTILINE).group(1)
    assert [line.split("#")[0].rstrip() for line in shown.strip().splitlines()] == printed
