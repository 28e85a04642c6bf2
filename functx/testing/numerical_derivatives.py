"""`check_grads`, and the Jacobians of functions by differences, forward and reverse mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from functx.core import tree
from functx.core.errors import ValueRangeError
from functx.core.tracer import Tracer, aval_of
from functx.core.types import ShapedArray, complex_dtype, is_complex, is_inexact
from functx.core.typing import ArrayLike, Function, Value, Values
from functx.numpy.promotion import copy_array
from functx.ops.operands import as_int
from functx.transforms.jvp import jvp, vjp
from functx.transforms.vmap import vmap

Array = np.ndarray[Any, Any]


def check_grads(
    f: Function,
    args: Sequence[Any],
    order: int,
    modes: Sequence[str] = ("fwd", "rev"),
    atol: float | None = None,
    rtol: float | None = None,
    eps: float | None = None,
) -> None:
    """Check the derivatives of `f` at `args` up to `order` against central differences in float64.

    `modes` selects forward (`"fwd"`) and reverse mode (`"rev"`); for higher orders every sequence
    of them is checked. `args` are pytrees; all inexact leaves vary, in a random direction. `eps`
    is the step of the differences, by default 1e-4; `atol` and `rtol` are 1e-6 by default.

    Returns None. Raises AssertionError with both values of the first derivative that differs, and
    ValueRangeError for an `order` below 1 or unknown modes.

    >>> from functx.testing import check_grads
    >>> check_grads(lambda x: x * x * x, (2.0,), order=2)
    """
    order = as_int("check_grads: order", order)
    if order < 1 or not set(modes) <= {"fwd", "rev"}:
        raise ValueRangeError(
            f"check_grads: order must be at least 1, and modes among 'fwd' and 'rev'; got {order} "
            f"and {modes}"
        )
    with jax.enable_x64():
        leaves, in_tree = tree.flatten(tuple(args))
        wide = [_widen_leaf(x) for x in leaves]
        varying = [i for i, x in enumerate(wide) if is_inexact(x.dtype)]
        checker = _GradientChecker(
            tuple(modes),
            1e-6 if atol is None else atol,
            1e-6 if rtol is None else rtol,
            1e-4 if eps is None else eps,
        )

        def flat(*xs: Value) -> list[Value]:
            operands: list[ArrayLike] = [*wide]
            for i, x in zip(varying, xs, strict=True):
                operands[i] = x
            outs = tree.leaves(f(*tree.unflatten(in_tree, copy_arrays(operands))))
            return [out for out in outs if is_inexact(aval_of(out).dtype)]

        checker.check(flat, [wide[i] for i in varying], order, getattr(f, "__name__", "f"))


class _GradientChecker:
    """The modes, tolerances and step of one call of `check_grads`."""

    def __init__(self, modes: Sequence[str], atol: float, rtol: float, eps: float):
        self.modes, self.atol, self.rtol, self.eps = modes, atol, rtol, eps
        self.random = np.random.RandomState(0)

    def check(self, flat: ArrayFunction, leaves: list[Array], order: int, name: str) -> None:
        """Check the first derivative of `flat`, then the derivatives of its derivative."""
        directions = [random_direction(self.random, x) for x in leaves]

        def at(step: float) -> list[Array]:
            xs = [np.asarray(x + step * d) for x, d in zip(leaves, directions, strict=True)]
            return [np.asarray(x) for x in flat(*xs)]

        differences = central_difference(at, self.eps)
        if "fwd" in self.modes:
            _, tangents = jvp(flat, leaves, directions)
            for k, (got, expected) in enumerate(zip(tangents, differences, strict=True)):
                self.compare(f"jvp of {name}, output {k}", np.asarray(got), expected)
        outs, pullback = vjp(flat, *leaves)
        cts = [random_direction(self.random, np.asarray(out)) for out in outs]
        if "rev" in self.modes:
            gradients = [np.asarray(x) for x in pullback(cts)]
            got = real_inner_product(gradients, directions)
            self.compare(
                f"vjp of {name}, along a direction", got, real_inner_product(cts, differences)
            )
        if order == 1:
            return
        n = len(leaves)
        if "fwd" in self.modes:
            self.check(
                lambda *xs: list(jvp(flat, xs[:n], xs[n:])[1]),
                [*leaves, *directions],
                order - 1,
                f"jvp of {name}",
            )
        if "rev" in self.modes:
            self.check(
                lambda *xs: list(vjp(flat, *xs[:n])[1](list(xs[n:]))),
                [*leaves, *cts],
                order - 1,
                f"vjp of {name}",
            )

    def compare(self, subject: str, got: Array | float, expected: Array | float) -> None:
        """Raise AssertionError unless a derivative agrees with its difference."""
        scale = max(1.0, float(np.max(np.abs(expected), initial=0.0)))
        if not np.allclose(got, expected, rtol=self.rtol, atol=self.atol * scale):
            raise AssertionError(
                f"check_grads: {subject} must match a central difference; got\n{got}\nfor\n{expected}"
            )


def random_direction(random: np.random.RandomState, like: Array | ShapedArray) -> Array:
    """A random array with the shape and the dtype of `like` and parts between -1 and 1."""
    x: Array = random.uniform(-1.0, 1.0, like.shape)
    if is_complex(like.dtype):
        x = x + 1j * random.uniform(-1.0, 1.0, like.shape)
    return np.asarray(x, like.dtype)


def central_difference(at: Callable[[float], Sequence[Array]], step: float) -> list[Array]:
    """The derivative of the arrays `at(s)` at s = 0, with an error of order `step**4`."""

    def difference(h: float) -> list[Array]:
        pairs = [(widen(x), widen(y)) for x, y in zip(at(h), at(-h), strict=True)]
        # Avoids inf - inf where a value stays infinite.
        return [np.subtract(x, y, out=np.zeros_like(x), where=x != y) / (2 * h) for x, y in pairs]

    single, double = difference(step), difference(2 * step)
    return [(4 * x - y) / 3 for x, y in zip(single, double, strict=True)]


def real_inner_product(xs: Sequence[Array], ys: Sequence[Array]) -> float:
    """The real part of the sum of products without conjugation, which a transpose preserves."""
    return float(sum(np.sum((widen(x) * widen(y)).real) for x, y in zip(xs, ys, strict=True)))


def widen(x: Array) -> Array:
    """`x` in float64, or complex128 if it is complex."""
    return np.asarray(x, np.complex128 if np.iscomplexobj(x) else np.float64)


def _widen_leaf(x: ArrayLike) -> Array:
    x = np.asarray(x)
    if not is_inexact(x.dtype):
        return x
    return x.astype(complex_dtype(np.dtype(np.float64)) if is_complex(x.dtype) else np.float64)


ArrayFunction = Callable[..., list[Value]]
"""A function of arrays that returns a list of arrays."""


def real_vector(x: ArrayLike) -> Array:
    """The elements of `x` as a real vector; each complex element gives its real and imaginary part."""
    x = np.asarray(x).ravel()
    wide = x.astype(np.complex128 if is_complex(x.dtype) else np.float64)
    return wide.view(np.float64)


def basis_directions(x: Array) -> list[Array]:
    """A unit direction with the shape of `x` for each element of its `real_vector`."""
    directions = []
    for k in range(x.size):
        for unit in (1.0, 1.0j) if is_complex(x.dtype) else (1.0,):
            direction = np.zeros(x.shape, x.dtype)
            direction.flat[k] = unit
            directions.append(direction)
    return directions


def copy_arrays(values: Sequence[ArrayLike]) -> list[ArrayLike]:
    """`values` with arrays copied, so that a function may write to them."""
    return [copy_array(x) if isinstance(x, Tracer) else _copy_if_ndarray(x) for x in values]


def _copy_if_ndarray(x: ArrayLike) -> ArrayLike:
    return x.copy() if isinstance(x, np.ndarray) else x


class Differentiation:
    """The way in which a check differentiates functions: here by the transforms of functx."""

    def varies(self, x: ArrayLike) -> bool:
        """Whether an input, or an output, has a derivative."""
        return is_inexact(aval_of(x).dtype)

    def argument(self, x: ArrayLike) -> ArrayLike:
        """The argument for a varying array, which the function is called with."""
        return x

    def vjp(self, flat: ArrayFunction, xs: Sequence[ArrayLike]) -> tuple[list[Value], Any]:
        """The outputs, and the function from a list of cotangents to the gradients."""
        outs, pullback = vjp(flat, *xs)
        return outs, pullback

    def batched(self, pullback: Function, cts: Sequence[Array]) -> Sequence[Value]:
        """The gradients for cotangents with a leading axis."""
        gradients: Sequence[Value] = vmap(lambda *cts: pullback(list(cts)))(*cts)
        return gradients

    def jvp(
        self, flat: ArrayFunction, xs: Sequence[ArrayLike], tangents: Sequence[Any]
    ) -> Sequence[Value]:
        """The tangents of the outputs; a tangent of None is zero."""
        out_tangents: Sequence[Value] = jvp(flat, xs, tangents)[1]
        return out_tangents


def numerical_jacobian(flat: ArrayFunction, xs: Sequence[Array], i: int, eps: float) -> list[Array]:
    """The Jacobian of each output in `xs[i]` by differences, with real vectors as rows and columns."""
    columns = []
    for unit in basis_directions(xs[i]):
        forward, backward = [
            flat(*[x + step * unit if j == i else x for j, x in enumerate(xs)])
            for step in (np.asarray(eps, unit.real.dtype), np.asarray(-eps, unit.real.dtype))
        ]
        columns.append(
            [
                (real_vector(a) - real_vector(b)) / (2 * eps)
                for a, b in zip(forward, backward, strict=True)
            ]
        )
    return matrices_from_columns(columns, [real_vector(out).size for out in flat(*xs)])


def forward_jacobian(
    differentiation: Differentiation,
    flat: ArrayFunction,
    xs: Sequence[Array],
    i: int,
    batched: bool = False,
) -> list[Array]:
    """The Jacobians of `numerical_jacobian` by forward mode; with `batched`, those of `vmap`."""

    def tangents_along(unit: ArrayLike) -> Values:
        tangents = [unit if j == i else None for j in range(len(xs))]
        return jvp(flat, xs, tangents)[1] if batched else differentiation.jvp(flat, xs, tangents)

    outs, directions = flat(*xs), basis_directions(xs[i])
    if batched and directions:
        batched_tangents = vmap(tangents_along)(np.stack(directions))
        tangents = [[np.asarray(t)[k] for t in batched_tangents] for k in range(len(directions))]
    else:
        tangents = [[*tangents_along(unit)] for unit in directions]
    columns = [[real_vector(t) for t in ts] for ts in tangents]
    return matrices_from_columns(columns, [real_vector(out).size for out in outs])


def reverse_jacobians(
    differentiation: Differentiation, flat: ArrayFunction, xs: Sequence[Array]
) -> list[list[Array]]:
    """For each output, its Jacobian in each of `xs` as in `numerical_jacobian`, by reverse mode."""
    outs, pullback = differentiation.vjp(flat, xs)
    jacobians = []
    for k, out in enumerate(outs):
        rows = []
        for unit in basis_directions(np.asarray(out)):
            # The real part of the product with the cotangent 1 is the real part, with -i the imaginary part.
            ct = np.conj(unit)
            cts = [ct if j == k else np.zeros(o.shape, o.dtype) for j, o in enumerate(outs)]
            rows.append([gradient_row(g) for g in pullback(cts)])
        sizes = [real_vector(x).size for x in xs]
        jacobians.append(
            [
                np.array([row[i] for row in rows]).reshape(len(rows), size)
                for i, size in enumerate(sizes)
            ]
        )
    return jacobians


def gradient_row(gradient: ArrayLike) -> Array:
    """The derivatives in the parts of an input: those of Re(g z) are Re g and -Im g."""
    return real_vector(np.conj(np.asarray(gradient)))


def matrices_from_columns(columns: Sequence[Sequence[Array]], sizes: Sequence[int]) -> list[Array]:
    """Matrices from columns, each of which holds one vector for each matrix."""
    return [
        np.array([column[k] for column in columns]).reshape(len(columns), size).T
        for k, size in enumerate(sizes)
    ]
