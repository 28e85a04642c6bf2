"""Elements of captured NumPy arrays, to which NumPy may write before the trace ends."""

from __future__ import annotations

import numpy as np

from functx.core.errors import CapturedWriteError
from functx.core.typing import NumPyArray

_LARGEST_COPY = 1 << 14
"""The most bytes of an array that is copied when it is captured."""
_SAMPLES = 64
"""About so many elements of a larger array are copied, at equal distances."""


class CapturedElements:
    """The elements of an array when a trace captured it; of a large array some of them."""

    __slots__ = ("_array", "_elements", "_is_whole")

    def __init__(self, array: NumPyArray):
        self._array, self._is_whole = array, array.nbytes <= _LARGEST_COPY
        self._elements = self._read()

    def _read(self) -> NumPyArray:
        x = self._array
        return np.ndarray.copy(x) if self._is_whole else x.flat[:: x.size // _SAMPLES]

    def as_captured(self) -> NumPyArray:
        """The array if NumPy has not written to it since, else a copy of the captured elements.

        Raises CapturedWriteError for a large array, of which there is no copy.
        """
        if self._read().tobytes() == self._elements.tobytes():
            return self._array
        if self._is_whole:
            return self._elements
        x = self._array
        raise CapturedWriteError(
            "a NumPy array that a traced function has used must not be written to by NumPy before the "
            f"trace ends; got a write to one of {x.nbytes:,} bytes, of shape {x.shape}",
            fix="Use a copy, functx.numpy.array(x), or make the array by functx.numpy.",
        )
