"""Examples in docstrings of functx run once each."""

from inspect import unwrap

import pytest


def pytest_collection_modifyitems(config, items):
    """Leave out examples of JAX's functions, and those that a package gives again with errors explained."""
    seen, left_out = set(), set()
    for item in items:
        if isinstance(item, pytest.DoctestItem) and item.dtest.docstring is not None:
            name = item.dtest.name.rpartition(".")[2]
            owner = getattr(unwrap(item.dtest.globs.get(name)), "__module__", None) or ""
            if owner.startswith("jax") or (name, item.dtest.docstring) in seen:
                left_out.add(item)
            seen.add((name, item.dtest.docstring))
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]
