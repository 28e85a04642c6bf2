"""Conversions of Variables to Python numbers, lists and NumPy arrays."""

from __future__ import annotations

from typing import Any

from functx.core.tracer import Tracer
from functx.core.typing import DTypeLike, NumPyArray


class ConvertibleArray(Tracer):
    """An array whose value can be read, which computes it."""

    def numpy(self) -> NumPyArray:
        """The value as a new NumPy array."""
        raise NotImplementedError

    def __array__(  # type: ignore[override]
        self, dtype: DTypeLike = None, copy: bool | None = None
    ) -> NumPyArray:
        if copy is False:
            raise ValueError("Variable: its memory must not be shared with NumPy; got copy=False")
        value = self.numpy()
        return value if dtype is None else value.astype(dtype, copy=False)

    def __dlpack__(self, *, copy: bool | None = None, **options: Any) -> object:
        """A capsule of a copy, which the consumer may write to."""
        if copy is False:
            raise BufferError("Variable: its memory must not be shared by DLPack; got copy=False")
        return self.numpy().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        # The CPU, by the numbers of DLPack.
        return 1, 0

    def __float__(self) -> float:
        return float(self.numpy().item())

    def __int__(self) -> int:
        return int(self.numpy().item())

    def __complex__(self) -> complex:
        return complex(self.numpy().item())

    def __bool__(self) -> bool:
        return bool(self.numpy())

    def __index__(self) -> int:
        return self.numpy().__index__()

    def __format__(self, spec: str) -> str:
        value = self.numpy()
        return format(value.item() if not value.ndim else value, spec)

    def item(self, *args: Any) -> Any:
        """The one element, or the one at an index, as a Python number."""
        return self.numpy().item(*args)

    def tolist(self) -> Any:
        """The elements as nested lists of Python numbers."""
        return self.numpy().tolist()
