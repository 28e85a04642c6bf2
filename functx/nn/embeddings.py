"""Embeddings and dropout: rows of a table by their numbers, elements left out by a key."""

from __future__ import annotations

from typing import Any

from functx.core.errors import ArgumentError, ValueRangeError
from functx.core.tracing import aval_of
from functx.numpy.promotion import copy_array, operand, promote_inexact
from functx.ops.dropout import Dropout
from functx.ops.embedding import Embedding
from functx.ops.known import check_index_range
from functx.ops.parameters import as_bool, as_float, as_int
from functx.random.keys import check_single_key


def embedding(indices: Any, weight: Any, padding_idx: int | None = None) -> Any:
    """The row of the matrix `weight` for each of `indices`, whatever shape these have.

    No derivative goes to the row `padding_idx`, counted from the end if negative. Raises
    IndexingError for a row that there is not where `indices` are known, and gives nan where
    they are traced.

    >>> from functx import nn
    >>> import numpy
    >>> nn.embedding(numpy.array([2, 0]), numpy.arange(6.0).reshape(3, 2)).tolist()
    [[4.0, 5.0], [0.0, 1.0]]
    """
    indices, weight = operand(indices), operand(weight)
    padding = None if padding_idx is None else as_int("embedding: padding_idx", padding_idx)
    shape = aval_of(weight).shape
    if padding is not None and len(shape) == 2:
        if not -shape[0] <= padding < shape[0]:
            raise ValueRangeError(
                f"embedding: padding_idx must be the number of a row of {aval_of(weight)!r}; got "
                f"{padding}"
            )
        padding %= shape[0]
    out = Embedding(padding)(indices, weight)
    check_index_range("embedding", "indices", indices, shape[0])
    return out


def dropout(x: Any, rate: float = 0.5, key: Any = None, *, deterministic: bool = False) -> Any:
    """`x / (1 - rate)` with each element left out, made 0, with probability `rate`.

    Which ones, `key` decides, and it alone: the same key leaves out the same. A copy of `x` if
    `deterministic`, or with a rate of 0; then no key is needed.

    >>> from functx import nn, random
    >>> import numpy
    >>> out = nn.dropout(numpy.ones(1000), 0.2, random.key(0))
    >>> sorted(set(out.tolist())), round(float(out.mean()), 1)
    ([0.0, 1.25], 1.0)
    """
    rate = as_float("dropout: rate", rate)
    if not 0 <= rate <= 1:
        raise ValueRangeError(f"dropout: rate must be a probability, from 0 to 1; got {rate}")
    (x,) = promote_inexact(x)
    if as_bool("dropout: deterministic", deterministic) or rate == 0:
        return copy_array(x)
    if key is None:
        raise ArgumentError(
            "dropout: a key must be given, unless deterministic; got None",
            fix="Make one with functx.random.key(seed), and split it for each use.",
        )
    return Dropout(rate)(x, check_single_key("dropout", key))
