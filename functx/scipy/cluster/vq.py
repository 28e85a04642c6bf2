"""Vector quantization: observations and the codes nearest to them."""

from __future__ import annotations

import functx.numpy as np
from functx.core.argument_errors import explain_errors as _explain_errors
from functx.core.errors import ShapeError
from functx.core.typing import ArrayLike, Value
from functx.numpy.indexing import take_along_axis
from functx.numpy.promotion import promote_real

__all__ = ["vq"]


def vq(obs: ArrayLike, code_book: ArrayLike, check_finite: bool = True) -> tuple[Value, Value]:
    """The index of the code nearest to each observation, and the distance to it, both of shape (m,).

    The observations are the rows of `obs` (m, n), and the codes those of `code_book` (k, n); both may
    be vectors of numbers instead. `check_finite` does nothing. The derivative of a distance 0 is 0.

    >>> import numpy
    >>> from functx.scipy.cluster.vq import vq
    >>> [x.tolist() for x in vq(numpy.array([0.5, 4.0]), numpy.array([0.0, 3.0]))]
    [[0, 1], [0.5, 1.0]]
    """
    obs, code_book = map(np.asarray, promote_real("vq", obs, code_book))
    if obs.ndim != code_book.ndim or obs.ndim not in (1, 2):
        raise ShapeError(
            "vq: obs and code_book must both have one or two dimensions; "
            f"got the shapes {obs.shape} and {code_book.shape}"
        )
    if obs.ndim == 1:
        obs, code_book = obs[:, None], code_book[:, None]
    distances = np.linalg.norm(obs[:, None] - code_book, axis=-1)
    code = np.argmin(distances, axis=-1)
    return code, take_along_axis(distances, code[:, None], axis=-1)[:, 0]


_explain_errors(__name__)
