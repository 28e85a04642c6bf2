"""The comparison of functx with JAX's library, and the page made from it."""

import inspect

import pytest

import functx
from functx.core.missing_names import ABSENT
from functx.tools import coverage


@pytest.fixture(scope="module")
def absent():
    return {*coverage.absent_names()}


def test_every_name_of_jax_is_there_or_has_a_reason(absent):
    assert absent <= ABSENT.keys(), (
        "add them, or a reason to ABSENT in functx/core/missing_names.py"
    )


def test_no_name_that_is_there_is_called_absent(absent):
    assert ABSENT.keys() <= absent, "take them out of ABSENT in functx/core/missing_names.py"
    assert len(ABSENT) <= 25
    assert all(ABSENT.values())


def test_every_difference_of_signatures_has_a_reason():
    found = {(d.parameter, d.difference): d.function for d in coverage.differences_of_signatures()}
    unexplained = found.keys() - coverage.REASONS.keys()
    assert not unexplained, [found[key] for key in unexplained]


def theirs(x, /, y=1, z=None, *, w="a"):
    """A function with each kind of parameter."""


SIGNATURES = {
    "the same": (lambda x, /, y=1, z=None, *, w="a": 0, []),
    "more": (lambda q, y=1, z=3, v=0, *, w="a", u=0: 0, []),
    "by any name": (lambda x, *args, **kwargs: 0, []),
    "fewer": (lambda q, z=None: 0, [("y", "absent"), ("z", "in another place"), ("w", "absent")]),
    "by name": (
        lambda q, z=None, *, y=1, w="a": 0,
        [("y", "by name alone"), ("z", "in another place")],
    ),
    "required": (
        lambda q, y, z=None, *, w: 0,
        [("y", "required; 1 in JAX"), ("w", "required; 'a' in JAX")],
    ),
    "defaults": (
        lambda q, y=2, z=None, *, w="b": 0,
        [("y", "2; 1 in JAX"), ("w", "'b'; 'a' in JAX")],
    ),
}


@pytest.mark.parametrize("case", SIGNATURES)
def test_signatures_are_compared_by_the_calls_that_they_allow(case):
    ours, expected = SIGNATURES[case]
    assert list(coverage.compare_signatures(theirs, ours)) == expected


def test_the_page_lists_names_and_reasons():
    page = coverage.coverage_page()
    assert "`conv_general_dilated_patches`" in page
    assert all(f"- `jax.{path}`: " in page for path in ABSENT)
    assert "## functx.tree_util: " in page
    for path in ABSENT:
        where, name = path.rsplit(".", 1)
        with pytest.raises(AttributeError, match=f"write jax.{path}"):
            getattr(coverage.module_of("functx", where), name)
    assert inspect.ismodule(coverage.module_of("functx", "lax"))
    assert coverage.module_of("functx", "no_such_module") is None
    assert functx.lax is coverage.module_of("functx", "lax")
