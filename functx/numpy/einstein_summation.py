"""`einsum`: the sums of products that a string of subscripts describes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import index
from typing import Any, NamedTuple, SupportsIndex, TypeAlias

import numpy as np

from functx import ops
from functx.core.errors import ArgumentError, ShapeError, ValueRangeError
from functx.core.tracer import aval_of
from functx.core.types import DType, Shape
from functx.core.typing import ArrayOrList, DTypeLike, Out, Value
from functx.numpy.mutation import accept_out
from functx.numpy.promotion import operand, promote
from functx.numpy.tensor_contractions import (
    PairwiseContraction,
    Precisions,
    canonical_preferred_dtype,
    label_positions,
    pairwise_contraction,
    static_diagonal,
    to_preferred_dtype,
)
from functx.ops.contraction import PrecisionLike
from functx.ops.parallel import OutSharding, place_result
from functx.ops.views import AsStrided

__all__ = ["einsum", "einsum_path"]

Optimize: TypeAlias = bool | str | Sequence[Any]
"""How the order of the contractions of `einsum` is found, or that order itself."""


class EinsumPlan(NamedTuple):
    """A compiled `einsum`: the preparation of each operand, then pairwise contractions in order.

    A step `(i, j, contraction)` names operands by position among the prepared operands and the
    results of earlier steps.
    """

    prepare: tuple[Callable[[Value], Value], ...]
    steps: tuple[tuple[int, int, PairwiseContraction], ...]

    def __call__(self, operands: Sequence[Value]) -> Value:
        terms = [f(x) for f, x in zip(self.prepare, operands, strict=True)]
        for i, j, multiply in self.steps:
            terms.append(multiply(terms[i], terms[j]))
        return terms[-1]


@accept_out
def einsum(
    subscripts: str | ArrayOrList,
    /,
    *operands: ArrayOrList,
    optimize: Optimize = "auto",
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike = None,
    out_sharding: OutSharding = None,
    out: Out = None,
) -> Value:
    """The sum of products that `subscripts` describes: `"ij,jk->ik"` is a matrix product.

    Each operand has one letter for each dimension, and `...` for dimensions that broadcast. A
    letter that occurs twice in one operand takes its diagonal; one that is not in the output is
    summed over. Without `->`, the output has the letters that occur once, in alphabetical order.
    `optimize` is the method of `opt_einsum` for the order of three or more operands; `out_sharding`
    is the sharding of the result.
    """
    if type(subscripts) is not str:
        subscripts, operands = _from_interleaved((subscripts, *operands))
    arrays = promote(*operands) if operands else ()
    shapes = tuple([aval_of(x).shape for x in arrays])
    if isinstance(optimize, list):
        optimize = tuple([step if isinstance(step, str) else tuple(step) for step in optimize])
    dtype = canonical_preferred_dtype(preferred_element_type)
    plan = _einsum_plan(subscripts, shapes, optimize, ops.canonical_precision(precision), dtype)
    return place_result(to_preferred_dtype(plan(arrays), dtype), out_sharding)


def einsum_path(
    subscripts: str | ArrayOrList, /, *operands: ArrayOrList, optimize: Optimize = "auto"
) -> tuple[Value, Value]:
    """The order of the contractions of `einsum`, and a printable report of its cost."""
    import opt_einsum

    if type(subscripts) is not str:
        subscripts, operands = _from_interleaved((subscripts, *operands))
    shapes = [aval_of(operand(x)).shape for x in operands]
    path, report = opt_einsum.contract_path(subscripts, *shapes, shapes=True, optimize=optimize)
    return path, report


def _from_interleaved(args: tuple[Any, ...]) -> tuple[str, tuple[Any, ...]]:
    """The string and the operands of `einsum(x, [0, 1], y, [1, 2], [0, 2])`."""
    operands, lists = args[: len(args) // 2 * 2 : 2], list(args[1::2])
    out = [args[-1]] if len(args) % 2 else []
    try:
        terms = [
            "".join("..." if label is Ellipsis else _label_letter(label) for label in labels)
            for labels in (*lists, *out)
        ]
    except TypeError:
        raise ArgumentError(
            "einsum: operands must follow a string, or alternate with lists of integers; got "
            f"{type(args[0]).__name__} first"
        ) from None
    inputs = ",".join(terms[: len(lists)])
    return (f"{inputs}->{terms[-1]}" if out else inputs), operands


def _label_letter(label: SupportsIndex) -> str:
    # The order of the characters is that of the numbers, which decides implicit outputs.
    number = index(label)
    return chr(ord("a") + number) if 0 <= number < 26 else chr(0x4E00 + number)


def _parse(subscripts: str, shapes: Sequence[Shape]) -> tuple[list[str], str]:
    """The labels of each operand and of the output, with labels for the dimensions of `...`."""
    text = "".join(subscripts.split())
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if len(terms) != len(shapes):
        raise ArgumentError(
            f"einsum: there must be one operand a term; got {len(shapes)} for {subscripts!r}"
        )
    inputs = []
    widest = 0
    for term, shape in zip(terms, shapes, strict=True):
        named, dots, rest = term.partition("...")
        extra = len(shape) - len(named) - len(rest)
        if extra < 0 or (extra and not dots):
            raise ShapeError(
                f"einsum: a term must have one letter a dimension; got `{term}` for an array of "
                f"shape {shape}, in {subscripts!r}"
            )
        widest = max(widest, extra)
        inputs.append(named + _ellipsis_labels(extra) + rest)
    every = "".join(inputs)
    broadcast = _ellipsis_labels(widest)
    if arrow:
        output = right.replace("...", broadcast)
    else:
        output = broadcast + "".join(
            sorted(c for c in set(every) if every.count(c) == 1 and c not in broadcast)
        )
    invalid = [c for c in every + output if c in ".->,"]
    absent = [c for c in output if c not in every]
    if invalid or absent or len(set(output)) != len(output):
        raise ValueRangeError(
            "einsum: subscripts must be letters, with those of the output in some operand and "
            f"there but once; got {subscripts!r}"
        )
    return inputs, output


def _ellipsis_labels(count: int) -> str:
    """Labels for the dimensions of `...`; the last one is always the same."""
    return "".join([chr(0x3400 + i) for i in reversed(range(count))])


@lru_cache(maxsize=1024)
def _einsum_plan(
    subscripts: str,
    shapes: tuple[Shape, ...],
    optimize: Optimize,
    precision: Precisions,
    preferred: DType | None,
) -> EinsumPlan:
    inputs, output = _parse(subscripts, shapes)
    sizes = _label_sizes(subscripts, inputs, shapes)
    # A dimension of length 1 that broadcasts to a longer one of its letter is dropped.
    reduced = [
        "".join([c for c, n in zip(term, shape, strict=True) if n == sizes[c]])
        for term, shape in zip(inputs, shapes, strict=True)
    ]
    prepare, terms = [], []
    for i, term in enumerate(reduced):
        others = output + "".join(reduced[:i] + reduced[i + 1 :])
        shape = tuple([sizes[c] for c in term])
        function, remaining = _prepare_operand(
            term, shape, others, output if len(reduced) == 1 else None
        )
        prepare.append(function)
        terms.append(remaining)
    steps: list[tuple[int, int, PairwiseContraction]] = []
    pending = list(range(len(terms)))
    for positions in (*_contraction_path(terms, output, sizes, optimize), range(len(terms))):
        selected = [pending[p] for p in sorted(positions) if p < len(pending)]
        if not selected:
            continue
        pending = [term for term in pending if term not in selected]
        i = selected[0]
        for count, j in enumerate(selected[1:], 2):
            later = [*pending, *selected[count:]]
            needed = set(output).union(*[terms[k] for k in later])
            labels = _dot_general_order(terms[i], terms[j], needed) if later else output
            x, y = ({c: sizes[c] for c in terms[k]} for k in (i, j))
            steps.append((i, j, pairwise_contraction(x, y, tuple(labels), precision, preferred)))
            terms.append(labels)
            i = len(terms) - 1
        pending.append(i)
    return EinsumPlan(tuple(prepare), tuple(steps))


def _label_sizes(subscripts: str, inputs: list[str], shapes: Sequence[Shape]) -> dict[str, int]:
    """The size of the dimensions of each letter."""
    sizes: dict[str, int] = {}
    for term, shape in zip(inputs, shapes, strict=True):
        term_sizes: dict[str, int] = {}
        for label, n in zip(term, shape, strict=True):
            if term_sizes.setdefault(label, n) != n:
                raise ShapeError(
                    f"einsum: a letter that stands twice in one term must have one size; got "
                    f"{term_sizes[label]} and {n} for `{label}` in {subscripts!r} with shapes {shapes}"
                )
            if 1 != sizes.setdefault(label, n) != n != 1:
                raise ShapeError(
                    f"einsum: the dimensions of one letter must have one size; got {sizes[label]} "
                    f"and {n} for `{label}` in {subscripts!r} with shapes {shapes}"
                )
            if n != 1:
                sizes[label] = n
    return sizes


def _dot_general_order(left: str, right: str, needed: set[str]) -> str:
    """The labels of a contraction in the order of the result of `dot_general`."""
    batched = [c for c in left if c in right and c in needed]
    return "".join(
        batched + [c for c in left if c not in right] + [c for c in right if c not in left]
    )


def _contraction_path(
    terms: list[str], output: str, sizes: dict[str, int], optimize: Optimize
) -> Sequence[tuple[int, ...]]:
    """The operands of each step of the contraction, as positions among the remaining ones."""
    if len(terms) < 3:
        return []
    if isinstance(optimize, tuple):
        return [step for step in optimize if not isinstance(step, str)]
    if optimize is False:
        return [(0, 1), *[(0, len(terms) - 1 - i) for i in range(1, len(terms) - 1)]]
    import opt_einsum

    path: Sequence[tuple[int, ...]]
    path, _ = opt_einsum.contract_path(
        f"{','.join(terms)}->{output}",
        *[tuple([sizes[c] for c in term]) for term in terms],
        shapes=True,
        optimize="optimal" if optimize is True else optimize,
    )
    return path


def _prepare_operand(
    term: str, shape: Shape, others: str, output: str | None
) -> tuple[Callable[[Value], Value], str]:
    """The preparation of an operand: diagonals of repeated labels, sums over labels of this operand only.

    Returns the function and the labels of its result, which are in the order of `output` if it
    is not None.
    """
    diagonals = []
    labels = term
    while repeated := next((c for c in labels if labels.count(c) > 1), ""):
        first = labels.index(repeated)
        second = labels.index(repeated, first + 1)
        diagonals.append((first, second))
        labels = labels[:first] + labels[first + 1 : second] + labels[second + 1 :] + repeated
    summed = tuple([d for d, c in enumerate(labels) if c not in others])
    remaining = "".join([c for c in labels if c in others])
    axes = label_positions(remaining, tuple(remaining if output is None else output))
    if diagonals and not summed and output is not None:
        # A writable view, as in NumPy.
        steps = tuple([tuple([int(c == label) for c in term]) for label in output])
        sizes = tuple([shape[term.index(label)] for label in output])
        view = AsStrided(sizes, (0,) * len(shape), steps)
        return lambda x: view(ops.reshape(x, shape)), remaining

    def prepare(x: Value) -> Value:
        x = ops.reshape(x, shape)
        for first, second in diagonals:
            x = static_diagonal(x, 0, first, second)
        if summed:
            x = (ops.reduce_or if aval_of(x).dtype == np.bool_ else ops.reduce_sum)(x, summed)
        return ops.permute_dims(x, axes)

    return prepare, remaining
