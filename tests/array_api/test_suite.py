"""The standard's own test suite, where ARRAY_API_TESTS_DIR says it lies, and the list of what fails."""

import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

import functx.numpy as np
from tests.array_api.transformed import TRANSFORMS

ROOT = Path(__file__).parents[2]
SUITE = os.environ.get("ARRAY_API_TESTS_DIR")
TEXT, LIST = (ROOT / "docs" / "reference" / "array_api.md").read_text().split("## Exceptions\n")
EXCEPTIONS = {
    test: when
    for when, rows in re.findall(r"^\| (fails.*) \|\n\|---\|\n((?:\| .*\n)+)", LIST, re.MULTILINE)
    for test in re.findall(r"`(.*)`", rows)
}
"""When each test fails, by its id."""


def test_each_exception_is_a_test_of_the_suite_listed_once_under_a_reason():
    assert len(EXCEPTIONS) == LIST.count("\n| `test_")
    for section in LIST.split("\n### ")[1:]:
        assert len(section.split("\n|")[0].split()) > 20, section
    for test in EXCEPTIONS:
        name = re.fullmatch(r"test_\w+\.py::(?:test_\w+\[)?(\w+).*", test)[1]
        name = name.removeprefix("test_").split("_with_")[0].removesuffix("_masking")
        known = name.strip("_") in ("floordiv", "ifloordiv", "setitem") or hasattr(np, name)
        assert known, test


def test_the_code_of_the_page_runs():
    for block in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL):
        exec(block, {})


def outcomes(transform, folder):
    """The ids of the tests of the suite that fail, and the number of those that pass."""
    report = folder / "report.xml"
    module = f"exec('from tests.array_api.transformed import namespace; xp = namespace(\"{transform}\")')"
    subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "array_api_tests"),
            *("--disable-deadline", "--derandomize", f"--junitxml={report}", "-W", "ignore"),
            *os.environ.get("ARRAY_API_TESTS_OPTIONS", "").split(),
        ],
        cwd=SUITE,
        env=os.environ
        | {
            "ARRAY_API_TESTS_MODULE": module if transform else "functx.numpy",
            "JAX_ENABLE_X64": "1",
            "PYTHONPATH": str(ROOT),
        },
        stdout=subprocess.DEVNULL,
    )
    failed, passed = set(), 0
    for case in ElementTree.parse(report).iter("testcase"):
        place = case.get("classname").split(".")[1:]
        if case.find("failure") is not None or case.find("error") is not None:
            failed.add("::".join([f"{place[0]}.py", *place[1:], case.get("name")]))
        else:
            passed += case.find("skipped") is None
    return failed, passed


@pytest.mark.skipif(SUITE is None, reason="ARRAY_API_TESTS_DIR names no clone of array-api-tests")
@pytest.mark.parametrize("transform", [None, *TRANSFORMS])
def test_the_suite_fails_where_the_list_says_and_nowhere_else(transform, tmp_path):
    failed, passed = outcomes(transform, tmp_path)
    print(f"{transform or 'plainly'}: {passed} passed, {len(failed)} failed")
    expected = {test for test, when in EXCEPTIONS.items() if when == "fails"}
    inside = transform is not None
    possible = {
        test
        for test, when in EXCEPTIONS.items()
        if when == "fails for some numbers" or (inside and when == "fails inside transforms")
    }
    assert failed - possible == expected
