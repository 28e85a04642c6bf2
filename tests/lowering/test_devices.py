"""Several devices: eight simulated ones, in one process of their own."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
EIGHT = f"--xla_force_host_platform_device_count=8 {os.environ['XLA_FLAGS']}"


def test_each_check_holds_on_eight_devices():
    # One test for all: each worker that ran one of several would start the process again.
    done = subprocess.run(
        [sys.executable, "-m", "tests.lowering.on_eight_devices"],
        env={**os.environ, "XLA_FLAGS": EIGHT},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads(done.stdout.splitlines()[-1])
    faults = [f"{name}: {text}" for name, (text, _) in said.items() if text]
    assert len(said) > 30 and not faults, "\n".join(faults)
