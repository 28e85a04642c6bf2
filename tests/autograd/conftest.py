"""Fixtures for tests of captured walks."""

import pytest

from functx import compiled_autograd


@pytest.fixture
def nothing_captured():
    """No walk is captured before the test, nor after it."""
    compiled_autograd.reset()
    yield
    compiled_autograd.reset()
