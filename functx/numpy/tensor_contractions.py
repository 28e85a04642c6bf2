"""Contractions: `matmul`, `dot`, `tensordot`, `einsum` and the other products of tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from operator import index
from typing import Any, NamedTuple, SupportsIndex, TypeAlias

import numpy as np

from functx import ops
from functx.core.errors import ArgumentError, AxisError, ShapeError, ValueRangeError
from functx.core.tracer import Tracer, aval_of
from functx.core.types import DType, Shape, ShapedArray, canonical_dtype, is_complex
from functx.core.typing import ArrayOrList, Axes, DTypeLike, Out, Value
from functx.numpy.mutation import accept_out
from functx.numpy.promotion import operand, promote
from functx.ops.contraction import PrecisionLike
from functx.ops.operands import canonical_axes, canonical_axis
from functx.ops.parallel import OutSharding, place_result
from functx.ops.views import AsStrided

__all__ = [
    "dot",
    "einsum",
    "einsum_path",
    "inner",
    "matmul",
    "matvec",
    "tensordot",
    "vdot",
    "vecdot",
    "vecmat",
]


Precisions: TypeAlias = tuple[str, str] | None
"""The precision of each operand, as `DotGeneral` takes it."""
Labels = tuple[Any, ...]
PairwiseContraction = Callable[[Value, Value], Value]


def pairwise_contraction(
    x: dict[str, int],
    y: dict[str, int],
    out: Labels,
    precision: Precisions = None,
    preferred: DType | None = None,
) -> PairwiseContraction:
    """The function that multiplies two arrays and sums over the labels that are not in `out`.

    `x` and `y` map the label of each dimension, in order, to its size. Labels of only one of
    them must be in `out`. The function uses one `dot_general`, and at most one permutation.
    """
    # A dimension of length 1 that broadcasts to a longer one is dropped.
    left = {label: n for label, n in x.items() if n != 1 or y.get(label, 1) == 1}
    right = {label: n for label, n in y.items() if n != 1 or x.get(label, 1) == 1}
    shapes = tuple(left.values()), tuple(right.values())
    unchanged = shapes == (tuple(x.values()), tuple(y.values()))
    if not left or not right or left.keys() == right.keys() == set(out):
        orders = _output_order(left, out), _output_order(right, out)

        def elementwise(x: Value, y: Value) -> Value:
            args = [
                ops.permute_dims(
                    ops.reshape(
                        a if preferred is None else ops.convert_element_type(a, preferred), s
                    ),
                    o,
                )
                for a, s, o in zip((x, y), shapes, orders, strict=True)
            ]
            return ops.mul(*args)

        return elementwise
    batched = tuple([label for label in out if label in left and label in right])
    contracted = tuple([label for label in left if label in right and label not in out])
    x_free = tuple([label for label in left if label not in right])
    y_free = tuple([label for label in right if label not in left])
    swapped = out == batched + y_free + x_free != batched + x_free + y_free
    if swapped:
        left, right, x_free, y_free = right, left, y_free, x_free
    dot = ops.DotGeneral(
        (label_positions(left, contracted), label_positions(right, contracted)),
        (label_positions(left, batched), label_positions(right, batched)),
        precision[::-1] if swapped and precision else precision,
        preferred,
    )
    axes = label_positions(batched + x_free + y_free, out)
    if unchanged and not swapped and axes == tuple(range(len(axes))):
        return dot

    def contraction(x: Value, y: Value) -> Value:
        x, y = ops.reshape(x, shapes[0]), ops.reshape(y, shapes[1])
        return ops.permute_dims(dot(y, x) if swapped else dot(x, y), axes)

    return contraction


def label_positions(labels: Iterable[Any], selected: Labels) -> tuple[int, ...]:
    labels = list(labels)
    return tuple([labels.index(label) for label in selected])


def _output_order(labels: dict[str, int], out: Labels) -> tuple[int, ...]:
    return label_positions(labels, tuple([label for label in out if label in labels]))


def canonical_preferred_dtype(dtype: DTypeLike) -> DType | None:
    return None if dtype is None else canonical_dtype(dtype)


def to_preferred_dtype(out: Value, dtype: DTypeLike) -> Value:
    """`out` in `dtype`, or unchanged if it is None."""
    return out if dtype is None else ops.convert_element_type(out, dtype)


@accept_out
def matmul(
    a: ArrayOrList,
    b: ArrayOrList,
    *,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike = None,
    out_sharding: OutSharding = None,
    out: Out = None,
) -> Value:
    """The matrix product of the last two dimensions; the other dimensions broadcast.

    A one-dimensional operand is a row on the left or a column on the right, and this dimension
    is removed from the result. Operands without dimensions raise ShapeError. `out_sharding` is the
    sharding of the result.
    """
    if precision is None is preferred_element_type and type(a) is Tracer and type(b) is Tracer:
        x, y = a.atom.aval, b.atom.aval
        if x.dtype == y.dtype:
            return place_result(_matmul(x, y, None, None)(a, b), out_sharding)
    a, b = promote(a, b)
    dtype = canonical_preferred_dtype(preferred_element_type)
    product = _matmul(aval_of(a), aval_of(b), ops.canonical_precision(precision), dtype)
    return place_result(to_preferred_dtype(product(a, b), dtype), out_sharding)


@lru_cache(maxsize=4096)
def _matmul(
    x: ShapedArray, y: ShapedArray, precision: Precisions, preferred: DType | None
) -> PairwiseContraction:
    if not x.ndim or not y.ndim:
        raise ShapeError(
            f"matmul: operands must have at least one dimension; got {x!r} and {y!r}",
            fix="Multiply by a scalar with `*`.",
        )
    rows, columns = ("m",)[: x.ndim - 1], ("n",)[: y.ndim - 1]
    return _batched_contraction("matmul", x, y, (*rows, "k"), ("k", *columns), precision, preferred)


def _batched_contraction(
    name: str,
    x: ShapedArray,
    y: ShapedArray,
    left: Labels,
    right: Labels,
    precision: Precisions = None,
    preferred: DType | None = None,
) -> PairwiseContraction:
    """The contraction over `k`; the dimensions before those in `left` and `right` broadcast."""
    for aval, labels in ((x, left), (y, right)):
        if aval.ndim < len(labels):
            raise ShapeError(
                f"{name}: operands must have at least {len(left)} and {len(right)} dimensions; "
                f"got {x!r} and {y!r}"
            )
    leading = [range(len(labels) - aval.ndim, 0) for aval, labels in ((x, left), (y, right))]
    sizes = dict(zip((*leading[0], *left), x.shape, strict=True))
    other_sizes = dict(zip((*leading[1], *right), y.shape, strict=True))
    if sizes["k"] != other_sizes["k"]:
        dimensions = " and ".join(
            f"dimension {labels.index('k') - len(labels)} ({n['k']})"
            for labels, n in ((left, sizes), (right, other_sizes))
        )
        raise ShapeError(
            f"{name}: {dimensions} must have one size; got {x!r} and {y!r}",
            fix="Transpose an operand (x.T), or reshape it; `*` multiplies element by element.",
        )
    if any(1 != sizes.get(d, 1) != other_sizes.get(d, 1) != 1 for d in leading[0]):
        raise ShapeError(f"{name}: the leading dimensions must broadcast; got {x!r} and {y!r}")
    batched = max(leading, key=len)
    out = (*batched, *[label for label in (*left, *right) if label != "k"])
    return pairwise_contraction(sizes, other_sizes, out, precision, preferred)


@accept_out
def matvec(x1: ArrayOrList, x2: ArrayOrList, /, *, out: Out = None) -> Value:
    """The product of matrices and vectors: `x1[..., m, k]` with `x2[..., k]`."""
    x1, x2 = promote(x1, x2)
    return _batched_contraction("matvec", aval_of(x1), aval_of(x2), ("m", "k"), ("k",))(x1, x2)


@accept_out
def vecmat(x1: ArrayOrList, x2: ArrayOrList, /, *, out: Out = None) -> Value:
    """The product of conjugated vectors and matrices: `x1[..., k]` with `x2[..., k, n]`."""
    x1, x2 = promote(x1, x2)
    product = _batched_contraction("vecmat", aval_of(x1), aval_of(x2), ("k",), ("k", "n"))
    return product(_conjugate(x1), x2)


@accept_out
def vecdot(
    x1: ArrayOrList,
    x2: ArrayOrList,
    /,
    *,
    axis: int = -1,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike = None,
    out: Out = None,
) -> Value:
    """The sum of `conj(x1) * x2` along `axis`; the other dimensions broadcast."""
    x1, x2 = promote(x1, x2)
    ndims = aval_of(x1).ndim, aval_of(x2).ndim
    left, right = (
        ops.moveaxis(x, canonical_axis(axis, n, "vecdot: axis"), n - 1)
        for x, n in zip((x1, x2), ndims, strict=True)
    )
    dtype = canonical_preferred_dtype(preferred_element_type)
    product = _batched_contraction(
        "vecdot",
        aval_of(left),
        aval_of(right),
        ("k",),
        ("k",),
        ops.canonical_precision(precision),
        dtype,
    )
    return to_preferred_dtype(product(_conjugate(left), right), dtype)


def _conjugate(x: Value) -> Value:
    return ops.conj(x) if is_complex(aval_of(x).dtype) else x


def _tensordot(
    name: str,
    a: Value,
    b: Value,
    axes: tuple[Any, Any],
    precision: PrecisionLike,
    preferred_element_type: DTypeLike,
) -> Value:
    """The contraction over `axes`; the remaining dimensions of `a` come before those of `b`."""
    x, y = aval_of(a), aval_of(b)
    sizes = [[aval.shape[i] for i in group] for aval, group in zip((x, y), axes, strict=True)]
    if sizes[0] != sizes[1]:
        raise ShapeError(
            f"{name}: contracted dimensions must have one size; got {x!r} along {axes[0]} "
            f"({sizes[0]}) and {y!r} along {axes[1]} ({sizes[1]})"
        )
    dtype = canonical_preferred_dtype(preferred_element_type)
    return to_preferred_dtype(
        ops.DotGeneral(axes, ((), ()), ops.canonical_precision(precision), dtype)(a, b), dtype
    )


@accept_out
def dot(
    a: ArrayOrList,
    b: ArrayOrList,
    out: Out = None,
    *,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike = None,
    out_sharding: OutSharding = None,
) -> Value:
    """The sum of products over the last dimension of `a` and the second to last of `b`.

    If `b` has one dimension, over that one; a scalar operand scales the other. `out_sharding` is the
    sharding of the result.
    """
    product = _sum_of_last("dot", a, b, 2, precision, preferred_element_type)
    return place_result(product, out_sharding)


def inner(
    a: ArrayOrList,
    b: ArrayOrList,
    *,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike = None,
) -> Value:
    """The sum of products over the last dimensions; a scalar operand scales the other."""
    return _sum_of_last("inner", a, b, 1, precision, preferred_element_type)


def _sum_of_last(
    name: str,
    a: ArrayOrList,
    b: ArrayOrList,
    from_end: int,
    precision: PrecisionLike,
    preferred_element_type: DTypeLike,
) -> Value:
    """The sum of products over the last dimension of `a` and one of `b`, counted from its end."""
    a, b = promote(a, b)
    n, m = aval_of(a).ndim, aval_of(b).ndim
    if not n or not m:
        dtype = canonical_preferred_dtype(preferred_element_type)
        return ops.mul(to_preferred_dtype(a, dtype), to_preferred_dtype(b, dtype))
    axes = (n - 1,), (max(m - from_end, 0),)
    return _tensordot(name, a, b, axes, precision, preferred_element_type)


def vdot(
    a: ArrayOrList,
    b: ArrayOrList,
    *,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike = None,
) -> Value:
    """The sum of `conj(a) * b` over all elements of the flattened operands."""
    a, b = promote(a, b)
    if aval_of(a).size != aval_of(b).size:
        raise ShapeError(
            f"vdot: the arrays must have as many elements; got {aval_of(a)!r} and {aval_of(b)!r}"
        )
    left, right = [ops.reshape(x, (aval_of(x).size,)) for x in (a, b)]
    return _tensordot(
        "vdot", _conjugate(left), right, ((0,), (0,)), precision, preferred_element_type
    )


Optimize: TypeAlias = bool | str | Sequence[Any]
"""How the order of the contractions of `einsum` is found, or that order itself."""


def tensordot(
    a: ArrayOrList,
    b: ArrayOrList,
    axes: SupportsIndex | tuple[Axes, Axes] | list[Axes] = 2,
    *,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike = None,
    out_sharding: OutSharding = None,
) -> Value:
    """The sum of products over `axes`, a pair of axes or lists of axes, one for each operand.

    A number n means the last n axes of `a` and the first n axes of `b`. `out_sharding` is the
    sharding of the result.
    """
    a, b = promote(a, b)
    n, m = aval_of(a).ndim, aval_of(b).ndim
    if isinstance(axes, (tuple, list)):
        if len(axes) != 2:
            raise AxisError(f"tensordot: axes must be a number or a pair; got {axes}")
        groups = [
            canonical_axes(group, ndim, "tensordot: axes")
            for group, ndim in zip(axes, (n, m), strict=True)
        ]
    else:
        count = index(axes)
        if not 0 <= count <= min(n, m):
            raise AxisError(
                f"tensordot: axes must be at most the number of dimensions; got {axes} for "
                f"{aval_of(a)!r} and {aval_of(b)!r}"
            )
        groups = [tuple(range(n - count, n)), tuple(range(count))]
    sums = _tensordot("tensordot", a, b, (groups[0], groups[1]), precision, preferred_element_type)
    return place_result(sums, out_sharding)


def static_diagonal(x: Value, offset: int, axis1: int, axis2: int) -> Value:
    """The diagonal of two dimensions as a new last dimension, read by a strided slice."""
    shape = aval_of(x).shape
    batch = [d for d in range(len(shape)) if d not in (axis1, axis2)]
    sizes = tuple([shape[d] for d in batch])
    n, m = shape[axis1], shape[axis2]
    count = max(0, min(n + min(offset, 0), m - max(offset, 0)))
    first = offset if offset >= 0 else -offset * m
    x = ops.reshape(ops.permute_dims(x, (*batch, axis1, axis2)), (*sizes, n * m))
    if not count:
        first = 0
    stop = first + (count - 1) * (m + 1) + 1 if count else 0
    strides = (*(1 for _ in sizes), m + 1)
    return ops.slice(x, (*(0 for _ in sizes), first), (*sizes, stop), strides)


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
