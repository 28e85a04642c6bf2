"""Sums of products that subscripts describe: `einsum`, and the plan it follows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import index
from typing import Any, NamedTuple

import numpy as np

from functx.core.avals import Shape
from functx.core.errors import ArgumentError, ShapeError, ValueRangeError
from functx.core.tracing import aval_of
from functx.lax.precision import canonical_precision
from functx.numpy.contraction import (
    PairwiseContraction,
    canonical_preferred_dtype,
    label_positions,
    pairwise_contraction,
    promote_operands,
    to_preferred_dtype,
)
from functx.numpy.mutation import accept_out
from functx.numpy.promotion import operand
from functx.ops.reductions import reduce_or, reduce_sum
from functx.ops.shaping import permute_dims, reshape
from functx.ops.slicing import slice as slice_
from functx.ops.strided import AsStrided

__all__ = [
    "einsum",
    "einsum_path",
]


def static_diagonal(x: Any, offset: int, axis1: int, axis2: int) -> Any:
    """The elements on a diagonal of two dimensions, along a new last dimension in their place."""
    shape = aval_of(x).shape
    lead = [d for d in range(len(shape)) if d not in (axis1, axis2)]
    sizes = tuple([shape[d] for d in lead])
    n, m = shape[axis1], shape[axis2]
    count = max(0, min(n + min(offset, 0), m - max(offset, 0)))
    first = offset if offset >= 0 else -offset * m
    x = reshape(permute_dims(x, (*lead, axis1, axis2)), (*sizes, n * m))
    if not count:
        first = 0
    stop = first + (count - 1) * (m + 1) + 1 if count else 0
    strides = (*(1 for _ in sizes), m + 1)
    return slice_(x, (*(0 for _ in sizes), first), (*sizes, stop), strides)


class EinsumPlan(NamedTuple):
    """A compiled `einsum`: every operand prepared, then products of two, in order.

    `steps` names its operands by position among the prepared ones and the results so far.
    """

    prepare: tuple[Callable[[Any], Any], ...]
    steps: tuple[tuple[int, int, PairwiseContraction], ...]

    def __call__(self, operands: Sequence[Any]) -> Any:
        terms = [f(x) for f, x in zip(self.prepare, operands, strict=True)]
        for i, j, multiply in self.steps:
            terms.append(multiply(terms[i], terms[j]))
        return terms[-1]


@accept_out
def einsum(
    subscripts: Any,
    /,
    *operands: Any,
    optimize: Any = "auto",
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Any:
    """The sum of products that `subscripts` describes: `"ij,jk->ik"` is a matrix product.

    Each operand has one letter a dimension, `...` for those that broadcast. A letter that
    stands twice in one operand takes its diagonal; one that the output lacks is summed over.
    Without `->`, the output has the letters that occur once, in alphabetical order.
    `optimize` is how `opt_einsum` finds the order of the products of three or more operands.
    """
    if type(subscripts) is not str:
        subscripts, operands = _from_interleaved((subscripts, *operands))
    arrays = promote_operands(*operands) if operands else ()
    shapes = tuple([aval_of(x).shape for x in arrays])
    if isinstance(optimize, list):
        optimize = tuple([step if isinstance(step, str) else tuple(step) for step in optimize])
    dtype = canonical_preferred_dtype(preferred_element_type)
    plan = _einsum_plan(subscripts, shapes, optimize, canonical_precision(precision), dtype)
    return to_preferred_dtype(plan(arrays), dtype)


def einsum_path(subscripts: Any, /, *operands: Any, optimize: Any = "auto") -> tuple[Any, Any]:
    """The order in which `einsum` would multiply, and a report on its cost that prints."""
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


def _label_letter(label: Any) -> str:
    # Letters while there are some, in the order of the numbers, which decides implicit outputs.
    number = index(label)
    return chr(ord("a") + number) if 0 <= number < 26 else chr(0x4E00 + number)


def _parse(subscripts: str, shapes: Sequence[Shape]) -> tuple[list[str], str]:
    """The labels of each operand and of the output, with `...` written out."""
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
    odd = [c for c in every + output if c in ".->,"]
    absent = [c for c in output if c not in every]
    if odd or absent or len(set(output)) != len(output):
        raise ValueRangeError(
            "einsum: subscripts must be letters, with those of the output in some operand and "
            f"there but once; got {subscripts!r}"
        )
    return inputs, output


def _ellipsis_labels(count: int) -> str:
    """Labels for the dimensions that `...` covers, the last one always the same."""
    return "".join([chr(0x3400 + i) for i in reversed(range(count))])


@lru_cache(maxsize=1024)
def _einsum_plan(
    subscripts: str, shapes: tuple[Shape, ...], optimize: Any, precision: Any, preferred: Any
) -> EinsumPlan:
    inputs, output = _parse(subscripts, shapes)
    sizes = _label_sizes(subscripts, inputs, shapes)
    # A dimension of length 1 beside a longer one of its letter is left to the longer.
    kept = [
        "".join([c for c, n in zip(term, shape, strict=True) if n == sizes[c]])
        for term, shape in zip(inputs, shapes, strict=True)
    ]
    prepare, terms = [], []
    for i, term in enumerate(kept):
        others = output + "".join(kept[:i] + kept[i + 1 :])
        shape = tuple([sizes[c] for c in term])
        function, left = _prepare_operand(term, shape, others, output if len(kept) == 1 else None)
        prepare.append(function)
        terms.append(left)
    steps: list[tuple[int, int, PairwiseContraction]] = []
    live = list(range(len(terms)))
    for positions in (*_contraction_path(terms, output, sizes, optimize), range(len(terms))):
        chosen = [live[p] for p in sorted(positions) if p < len(live)]
        if not chosen:
            continue
        live = [term for term in live if term not in chosen]
        i = chosen[0]
        for count, j in enumerate(chosen[1:], 2):
            later = [*live, *chosen[count:]]
            needed = set(output).union(*[terms[k] for k in later])
            labels = _dot_general_order(terms[i], terms[j], needed) if later else output
            x, y = ({c: sizes[c] for c in terms[k]} for k in (i, j))
            steps.append((i, j, pairwise_contraction(x, y, tuple(labels), precision, preferred)))
            terms.append(labels)
            i = len(terms) - 1
        live.append(i)
    return EinsumPlan(tuple(prepare), tuple(steps))


def _label_sizes(subscripts: str, inputs: list[str], shapes: Sequence[Shape]) -> dict[str, int]:
    """The size of the dimension that each letter stands for."""
    sizes: dict[str, int] = {}
    for term, shape in zip(inputs, shapes, strict=True):
        own: dict[str, int] = {}
        for label, n in zip(term, shape, strict=True):
            if own.setdefault(label, n) != n:
                raise ShapeError(
                    f"einsum: a letter that stands twice in one term must have one size; got "
                    f"{own[label]} and {n} for `{label}` in {subscripts!r} with shapes {shapes}"
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
    """The labels of a product in the order in which `dot_general` gives them."""
    both = [c for c in left if c in right and c in needed]
    return "".join(both + [c for c in left if c not in right] + [c for c in right if c not in left])


def _contraction_path(
    terms: list[str], output: str, sizes: dict[str, int], optimize: Any
) -> Sequence[Any]:
    """Which operands to multiply, step by step, as positions among those that are left."""
    if len(terms) < 3:
        return []
    if isinstance(optimize, tuple):
        return [step for step in optimize if not isinstance(step, str)]
    if optimize is False:
        return [(0, 1), *[(0, len(terms) - 1 - i) for i in range(1, len(terms) - 1)]]
    import opt_einsum

    path: Sequence[Any]
    path, _ = opt_einsum.contract_path(
        f"{','.join(terms)}->{output}",
        *[tuple([sizes[c] for c in term]) for term in terms],
        shapes=True,
        optimize="optimal" if optimize is True else optimize,
    )
    return path


def _prepare_operand(
    term: str, shape: Shape, others: str, output: str | None
) -> tuple[Callable[[Any], Any], str]:
    """What takes an operand to the shape and diagonals of `term`, summed over what it alone has.

    The dimensions are then in the order of `output`, if that is given. Their labels follow.
    """
    diagonals = []
    labels = term
    while repeated := next((c for c in labels if labels.count(c) > 1), ""):
        first = labels.index(repeated)
        second = labels.index(repeated, first + 1)
        diagonals.append((first, second))
        labels = labels[:first] + labels[first + 1 : second] + labels[second + 1 :] + repeated
    summed = tuple([d for d, c in enumerate(labels) if c not in others])
    left = "".join([c for c in labels if c in others])
    axes = label_positions(left, tuple(left if output is None else output))
    if diagonals and not summed and output is not None:
        # A view that may be written to, as in NumPy.
        steps = tuple([tuple([int(c == label) for c in term]) for label in output])
        sizes = tuple([shape[term.index(label)] for label in output])
        view = AsStrided(sizes, (0,) * len(shape), steps)
        return lambda x: view(reshape(x, shape)), left

    def prepare(x: Any) -> Any:
        x = reshape(x, shape)
        for first, second in diagonals:
            x = static_diagonal(x, 0, first, second)
        if summed:
            x = (reduce_or if aval_of(x).dtype == np.bool_ else reduce_sum)(x, summed)
        return permute_dims(x, axes)

    return prepare, left
