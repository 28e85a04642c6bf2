"""`functx.tools.html`, `diff` and the HTML of programs: well-formed, escaped, linked and alone."""

import re
from xml.dom import minidom

import numpy as onp
import pytest

import functx as fx
import functx.numpy as np
from functx.core.errors import ArgumentError
from functx.tools import diff, html, passes, simplified
from functx.tools.markup import Markup, element, fragment, join, page

X = onp.ones((3, 4), "float32")


def halves(x):
    def step(c, row):
        c = c * 0.5 + row
        return c, c.sum()

    return fx.lax.scan(step, x[0] * 1.0, x)


def parse(markup):
    """The document of a page or a fragment, all of whose elements are closed."""
    text = re.sub(r"<!DOCTYPE html>", "", str(markup))
    return minidom.parseString(text)


def test_elements_escape_all_that_is_no_markup():
    bad = "</style><script>alert('1')</script>&"
    made = element("p", bad, [bad, element("br")], (None, 3), title=bad, hidden=True, id=None)
    assert "<script" not in made and made.count("&lt;script&gt;") == 3
    assert element("meta", http_equiv="x", class_="y") == '<meta http-equiv="x" class="y"/>'
    assert join(iter(["<", Markup("<br/>")])) == "&lt;<br/>"
    parse(fragment(made.replace(" hidden", "")))
    assert "&lt;/style&gt;" in page(bad)


def test_names_and_lines_of_the_user_are_escaped(tmp_path):
    source = (
        'def f(x):\n    return {"<b>&": np.sin(x)}["<b>&"]  # </div><script>alert(1)</script>\n'
    )
    path = tmp_path / "<img src=x>.py"
    path.write_text(source)
    namespace = {"np": np}
    exec(compile(source, str(path), "exec"), namespace)
    namespace["f"].__name__ = "<script>f"
    shown = html(fx.jit(namespace["f"]))({"<i>": X}["<i>"])
    for text in (shown.html(), shown._repr_html_(), shown.program._repr_html_()):
        assert "<script" not in text and "<img" not in text and "<b>&" not in text
        assert "&lt;script&gt;alert(1)" in text
        parse(text.replace(" open>", ">"))


def test_a_page_links_lines_with_the_equations_that_they_made():
    text = html(halves)(X).html()
    document = parse(text)
    rows = [a for a in document.getElementsByTagName("a") if a.hasAttribute("id")]
    ids = {row.getAttribute("id") for row in rows}
    targets = {a.getAttribute("href")[1:] for a in document.getElementsByTagName("a")}
    assert rows and targets <= ids | {
        s.getAttribute("id") for s in document.getElementsByTagName("summary")
    }
    for name in {row.getAttribute("class").split()[-1] for row in rows}:
        assert f":has(.{name}:hover) :is(.{name}, details" in text
    assert re.search(r"c = c \* 0.5 \+ row", text)


def test_a_page_loads_nothing_and_runs_nothing():
    text = html(fx.grad(lambda x: halves(x)[1].sum()))(X).html()
    links = re.findall(r'(?:src|href|url)\s*[=(]\s*"?([^">)]*)', text)
    assert links and all(link.startswith("#") for link in links)
    assert "<script" not in text and "default-src &#x27;none&#x27;" in text
    assert "prefers-color-scheme: dark" in text


def test_sub_programs_are_folded_at_their_first_use():
    call = fx.jit(np.sin)
    program = fx.make_ir(lambda x: (call(x), call(x * 2.0), halves(x)))(X)
    document = parse(program._repr_html_())
    assert len(document.getElementsByTagName("details")) == 2
    assert "program=step" in program._repr_html_()


def test_long_programs_are_cut_in_a_notebook():
    def long(x):
        for _ in range(450):
            x = np.sin(x)
        return x

    program = fx.make_ir(long)(X)
    assert "50 more equations" in program._repr_html_()
    assert "50 more equations" not in html(long)(X).html()


def test_programs_without_equations_arguments_or_lines_have_a_page():
    assert "program lambda" in re.sub("<[^>]*>", "", html(lambda: 1.0)().html())
    parsed = fx.Program.parse("program f(x: f32[3]):\n  y: f32[3] = sin x\n  return y\n")
    text = parsed._repr_html_()
    assert "columns" not in text.split("</style>")[1] and "unknown line" in text


def test_a_difference_names_the_same_values_alike():
    old = fx.make_ir(lambda x: (np.sin(x * 1.0) + 2.0).sum())(X)
    new = simplified(old)
    difference = diff(old, new)
    assert [r for r in difference.rows if not r.is_equal] == [
        ("  a: f32[3,4] = mul x 1.0:f32", None, 0),
        ("  b: f32[3,4] = sin a", "  b: f32[3,4] = sin x", 0),
    ]
    assert difference and not diff(old, old)
    assert str(difference).splitlines()[1:4] == [
        *("-   a: f32[3,4] = mul x 1.0:f32", "-   b: f32[3,4] = sin a"),
        "+   b: f32[3,4] = sin x",
    ]
    parse(difference.html())


def test_programs_inside_are_compared():
    old, new = [
        fx.make_ir(lambda x, k=k: fx.lax.fori_loop(0, 3, lambda i, c: np.sin(c) * k, x))(X)
        for k in (2.0, 3.0)
    ]
    changed = [row for row in diff(old, new).rows if not row.is_equal]
    assert len(changed) == 1 and changed[0].depth == 1 and "3.0" in changed[0].new
    with pytest.raises(ArgumentError, match="program"):
        diff(old, 3)


def test_differences_of_random_programs_rebuild_both():
    from functx.testing.random_functions import RandomFunction, random_arguments

    for seed in range(8):
        args = random_arguments(seed)
        program = fx.make_ir(fx.functionalize(RandomFunction(seed)))(*args)
        short = simplified(program)
        rows = [row for row in diff(program, short).rows if not row.depth]
        for side, each in ((0, program), (1, short)):
            lines = [row[side] for row in rows if row[side] is not None]
            assert len(lines) == len(each) + 2
            if len([*each.walk()]) == 1:
                assert fx.Program.parse("\n".join(lines) + "\n") == each


def test_the_table_of_passes_shows_what_each_changed():
    table = passes(lambda x: np.sin(x * 1.0) + x * 1.0)(X)
    with fx.config.set(simplify="always"):
        table = passes(lambda x: np.sin(x * 1.0) + x * 1.0)(X)
    (row, difference), *_ = table.differences()
    assert row.name == "simplify" and difference.new == table["simplify"].program
    parse(fragment(table.content()))
    assert "pass" in table._repr_html_()
