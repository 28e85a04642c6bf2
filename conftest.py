"""Examples in docstrings run once each."""

import pytest


def pytest_collection_modifyitems(config, items):
    """Leave out the examples that a package gives again with its functions' errors explained."""
    seen, again = set(), set()
    for item in items:
        if isinstance(item, pytest.DoctestItem) and item.dtest.docstring is not None:
            example = item.dtest.name.rpartition(".")[2], item.dtest.docstring
            if example in seen:
                again.add(item)
            seen.add(example)
    config.hook.pytest_deselected(items=again)
    items[:] = [item for item in items if item not in again]
