"""The process's garbage collector, which functx runs less often while it makes many objects."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

GARBAGE_COLLECTION_MODES = "tune", "leave"


class GarbageCollection:
    """Owner of every setting of the process's garbage collector that functx changes.

    Imports, traces and rewrites make objects by the thousand, most of which stay, and no cycles;
    each collection visits them. In the mode "tune", the collector runs less often while anything is
    traced, and not at all in imports and rewrites. In the mode "leave", nothing is changed.

    Scopes that are nested or run in several threads count as one: the first to begin saves the
    settings of the process, and the last to end restores them, also after an error.
    """

    YOUNG_THRESHOLD = 100_000

    def __init__(self) -> None:
        self.mode = os.environ.get("FUNCTX_GARBAGE_COLLECTION", GARBAGE_COLLECTION_MODES[0])
        self._lock = Lock()
        self._traces = self._pauses = 0
        self._thresholds_before: tuple[int, int, int] | None = None
        self._is_paused = False

    def begin_trace(self) -> None:
        """Raise the number of allocations before a collection; `end_trace` must follow."""
        with self._lock:
            self._traces += 1
            if self._traces == 1 and self.mode == "tune":
                young, *older = before = gc.get_threshold()
                # A threshold of 0 means no collection at all.
                if 0 < young < self.YOUNG_THRESHOLD:
                    self._thresholds_before = before
                    gc.set_threshold(self.YOUNG_THRESHOLD, *older)

    def end_trace(self) -> None:
        """Restore the thresholds when the last trace ends."""
        with self._lock:
            self._traces -= 1
            if not self._traces and self._thresholds_before is not None:
                # Other code may have set thresholds of its own in between.
                if gc.get_threshold()[0] == self.YOUNG_THRESHOLD:
                    gc.set_threshold(*self._thresholds_before)
                self._thresholds_before = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """A scope without collections."""
        with self._lock:
            self._pauses += 1
            if self._pauses == 1 and self.mode == "tune" and gc.isenabled():
                self._is_paused = True
                gc.disable()
        try:
            yield
        finally:
            with self._lock:
                self._pauses -= 1
                if not self._pauses and self._is_paused:
                    self._is_paused = False
                    gc.enable()

    @contextmanager
    def paused_for_import(self) -> Iterator[None]:
        """A scope without collections, whose objects the next young collections do not visit."""
        with self.paused():
            yield
            if self._is_paused and not gc.get_freeze_count():
                # All objects move to the oldest generation.
                gc.freeze()
                gc.unfreeze()


garbage_collection = GarbageCollection()
