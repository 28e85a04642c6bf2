"""`functx.tools.passes`: each pass with the size of the program after it, and the list in the docs."""

from pathlib import Path
from pkgutil import resolve_name

import numpy as onp
import pytest

import functx as fx
import functx.numpy as np
from functx.core.errors import ArgumentError
from functx.passes.pipeline import PASSES, Stage, diagram
from functx.tools import passes

DOCS = Path(__file__).parents[2] / "docs"


def steps(x):
    x[0] = 1.0
    for _ in range(80):
        x = np.sin(x * 1.0) * 0.5 + x / 3.0
    return x


def test_the_code_that_runs_a_pass_in_place_of_the_list_exists():
    places = [each.runs_in for each in PASSES if each.runs_in is not None]
    assert len(places) == 3 and all(callable(resolve_name(place)) for place in places)


def test_the_table_has_a_row_for_each_pass_with_the_equations_after_it():
    with fx.config.set(simplify="always", outline="auto"):
        table = passes(steps)(onp.ones(8, "float32"))
    names = [each.name for each in PASSES if each.stage is not Stage.EMISSION]
    assert [row.name for row in table.rows] == ["trace", *names, "emit"]
    sizes = {row.name: row.equations for row in table.rows}
    assert table["trace"].program.writes and not table["functionalize"].program.writes
    assert sizes["simplify"] == sizes["fix_overlapping_updates"] - 80
    assert sizes["outline"] < 10 <= sizes["emit"]
    skipped = {row.name for row in table.rows if row.seconds is None}
    assert skipped == {"lift_literals", "outline_before_transforms"}
    lines = str(table).splitlines()
    assert lines[0].split() == ["passes", "of", "steps", "equations", "time"]
    assert lines[1].split()[:2] == ["trace", str(sizes["trace"])]
    assert lines[4].split() == ["lift_literals", str(sizes["lift_literals"]), "-"]


def test_passes_also_run_on_the_programs_of_loops():
    def swaps(x):
        def step(i, c):
            y = c[i]
            return c.at[i].set(c[0]).at[0].set(y)

        return fx.lax.fori_loop(1, 99, step, x)

    table = passes(swaps)(onp.ones(128, "float32"))
    before, after = table["dedup_call_arguments"], table["order_reads_before_writes"]
    assert after.equations > before.equations
    inner = [eqn.primitive.name for each in after.program.walk() for eqn in each]
    assert "read_before_write" in inner


def test_what_is_no_function_is_refused():
    with pytest.raises(ArgumentError, match="passes: the first argument must be a function; got"):
        passes(3.0)


def test_the_picture_in_the_documentation_is_that_of_the_list():
    assert diagram() in (DOCS / "architecture.md").read_text()
