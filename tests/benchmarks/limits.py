"""Tasks in a process of their own, which is ended when one of them takes too long."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any


def lines_of(
    command: Sequence[str], names: Sequence[str], limit: float, until: float = float("inf")
) -> Iterator[tuple[str, list[Any] | str]]:
    """What `command *names` prints of each name: lines of JSON, of which the last says it is done.

    For a task that takes longer than `limit` seconds, or fails, that in words; those after it run
    in a new process. None begins after the time `until`.
    """
    left = list(names)
    while left:
        if time.monotonic() > until:
            yield from ((name, "no time left") for name in left)
            return
        process = subprocess.Popen(
            [*command, *left],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )
        lines: queue.Queue[str | None] = queue.Queue()
        errors: list[str] = []
        readers = [
            threading.Thread(target=_read, args=(process.stdout, lines.put)),
            threading.Thread(target=_read, args=(process.stderr, errors.append)),
        ]
        for reader in readers:
            reader.start()
        try:
            for name, found in _answers(lines, left, limit, until):
                if found is None:
                    readers[1].join()
                    last = next((e for e in reversed(errors) if e and e.strip()), "") or ""
                    found = f"ended with {process.wait()}: {last.strip()[:120]}"
                left = left[1:]
                yield name, found
        finally:
            process.kill()
            process.wait()
            for reader in readers:
                reader.join()


def _read(file: Any, put: Callable[[str | None], None]) -> None:
    with file:
        for line in file:
            put(line)
    put(None)


def _answers(
    lines: queue.Queue[str | None], names: Sequence[str], limit: float, until: float
) -> Iterator[tuple[str, list[Any] | str | None]]:
    """The answers of one process, up to the first that takes too long or is None: it ended."""
    for name in names:
        found: list[Any] = []
        # The first task waits for imports and for the device too.
        end = min(time.monotonic() + limit, until + limit / 4)
        while True:
            try:
                line = lines.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                yield name, f"over {limit:.0f} s"
                return
            if line is None:
                yield name, None
                return
            if line.startswith("{"):
                answer = json.loads(line)
                if "done" in answer:
                    break
                found.append(answer)
        yield name, found
