"""Conversions of Variables to Python numbers, lists and NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from functx.core.tracer import Tracer
from functx.core.typing import DTypeLike, NumPyArray


class ConvertibleArray(Tracer):
    """An array whose value can be read, which computes it."""

    def look(self) -> Any:
        """The value as an array, which the caller does not keep."""
        raise NotImplementedError

    def __array__(  # type: ignore[override]
        self, dtype: DTypeLike = None, copy: bool | None = None
    ) -> NumPyArray:
        return np.array(self.look(), dtype)

    def __float__(self) -> float:
        return float(np.asarray(self.look()).item())

    def __int__(self) -> int:
        return int(np.asarray(self.look()).item())

    def __complex__(self) -> complex:
        return complex(np.asarray(self.look()).item())

    def __bool__(self) -> bool:
        return bool(np.asarray(self.look()))

    def __index__(self) -> int:
        return np.asarray(self.look()).__index__()

    def __format__(self, spec: str) -> str:
        value = np.asarray(self.look())
        return format(value.item() if not value.ndim else value, spec)

    def item(self, *args: Any) -> Any:
        """The one element, or the one at an index, as a Python number."""
        return np.asarray(self.look()).item(*args)

    def tolist(self) -> Any:
        """The elements as nested lists of Python numbers."""
        return np.asarray(self.look()).tolist()

    def numpy(self) -> NumPyArray:
        """The value as a new NumPy array."""
        return np.array(self.look())
