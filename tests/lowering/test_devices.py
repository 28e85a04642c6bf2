"""Several devices: eight simulated ones, in one process of their own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lowering.on_eight_devices import CHECKS

ROOT = Path(__file__).parents[2]
EIGHT = f"--xla_force_host_platform_device_count=8 {os.environ['XLA_FLAGS']}"


@pytest.fixture(scope="session")
def said():
    """What each check said: nothing if it holds."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.lowering.on_eight_devices"],
        env={**os.environ, "XLA_FLAGS": EIGHT},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", CHECKS)
def test_on_eight_devices(name, said):
    text, _ = said[name]
    assert not text, text
