"""Libraries written for the array API standard, on traced arrays."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.array_api import library_calls

ROOT = Path(__file__).parents[2]


def test_functions_of_einops_are_traced_mapped_and_differentiated(x64):
    pytest.importorskip("einops")
    library_calls.check(library_calls.einops_calls())


def test_functions_of_scipy_and_sklearn_are_traced_mapped_and_differentiated():
    libraries = [name for name in ("scipy", "sklearn") if find_spec(name)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.array_api.library_calls", *libraries],
        cwd=ROOT,
        env=os.environ | {"SCIPY_ARRAY_API": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    counts = dict(line.split() for line in done.stdout.splitlines())
    assert int(counts["scipy"]) >= 10
    assert counts.keys() == {*libraries}
