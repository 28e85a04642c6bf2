"""`gradcheck` and `gradgradcheck`: whole Jacobians of a function compared with differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from functx.core import tree
from functx.core.errors import ArgumentError, GradcheckError, GradcheckModeError, ValueRangeError
from functx.core.source_info import warn_at_user_line
from functx.core.tracer import Tracer, aval_of
from functx.core.types import kind
from functx.core.typing import ArrayLike, Function, PyTree, Value, Values
from functx.ops.operands import as_float
from functx.testing import numerical_derivatives
from functx.testing.numerical_derivatives import Array, Differentiation, real_vector
from functx.transforms.argument_names import check_callable
from functx.transforms.jvp import vjp


@dataclass(frozen=True)
class GradcheckOptions:
    """The options of `gradcheck`."""

    eps: float = 1e-6
    atol: float = 1e-5
    rtol: float = 1e-3
    raise_exception: bool = True
    nondet_tol: float = 0.0
    check_undefined_grad: bool = True
    check_grad_dtypes: bool = False
    check_batched_grad: bool = False
    check_batched_forward_grad: bool = False
    check_forward_ad: bool = False
    check_backward_ad: bool = True
    fast_mode: bool = False


def gradcheck(
    func: Function,
    inputs: PyTree,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
    check_undefined_grad: bool = True,
    check_grad_dtypes: bool = False,
    check_batched_grad: bool = False,
    check_batched_forward_grad: bool = False,
    check_forward_ad: bool = False,
    check_backward_ad: bool = True,
    fast_mode: bool = False,
) -> bool:
    """Compare the Jacobians of `func` at `inputs` with central differences of step `eps`.

    `inputs` is an array or a tuple of pytrees, the arguments of `func`. Their inexact leaves vary
    and should be float64 or complex128. For each inexact output and input, the Jacobian by reverse
    mode must match, and with `check_forward_ad` that by forward mode. In addition,

    - a second run of reverse mode gives the same, within `nondet_tol`;
    - zero cotangents give zeros, and with `check_undefined_grad` missing ones (None) too;
    - with `check_grad_dtypes`, gradients have the dtype of the input;
    - with `check_batched_grad` and `check_batched_forward_grad`, derivatives under `vmap` match a
      loop;
    - outputs that are not inexact do not vary.

    With `fast_mode`, Jacobians are compared along one random direction on each side, and in full
    only to explain a failure. Runs in 64-bit mode.

    If inputs are Variables that require gradients, these vary, and this is `functx.autograd.gradcheck`.

    Returns True. On a mismatch raises GradcheckError, or returns False with
    `raise_exception=False`. Raises ArgumentError for inputs that it cannot check, GradcheckModeError
    for contradictory switches, and ValueRangeError for an `eps` that is not positive and finite.

    >>> import numpy
    >>> from functx.testing import gradcheck
    >>> gradcheck(lambda x: x * x, numpy.array([1.0, 2.0]))
    True
    """
    options = GradcheckOptions(
        eps, atol, rtol, raise_exception, nondet_tol, check_undefined_grad, check_grad_dtypes,
        check_batched_grad, check_batched_forward_grad, check_forward_ad, check_backward_ad, fast_mode,
    )  # fmt: skip
    check = imperative_check("gradcheck", inputs)
    if check is not None:
        return check(func, inputs, **vars(options))
    return run_gradcheck(func, inputs, options, Differentiation())


def run_gradcheck(
    func: Function, inputs: PyTree, options: GradcheckOptions, differentiation: Differentiation
) -> bool:
    """`gradcheck`, of derivatives as `differentiation` computes them."""
    eps, atol, rtol, nondet_tol = [
        as_float(f"gradcheck: {name}", getattr(options, name))
        for name in ("eps", "atol", "rtol", "nondet_tol")
    ]
    if not 0 < eps < float("inf"):
        raise ValueRangeError(f"gradcheck: eps must be positive and finite; got {eps}")
    options = replace(options, eps=eps, atol=atol, rtol=rtol, nondet_tol=nondet_tol)
    _check_modes(options)
    with jax.enable_x64():
        check = GradientCheck(func, inputs, options, differentiation)
        try:
            check.run()
        except GradcheckError:
            if options.raise_exception:
                raise
            return False
    return True


def gradgradcheck(
    func: Function, inputs: PyTree, grad_outputs: PyTree = None, **options: Any
) -> bool:
    """Compare the second derivatives of `func`, by reverse mode twice, with differences.

    This is `gradcheck` of the function from the inputs and the cotangents of the inexact outputs to
    the gradients. `grad_outputs` are these cotangents, by default random. Options, results and
    errors are those of `gradcheck`; ArgumentError, too, if no output is inexact.

    >>> import numpy
    >>> from functx.testing import gradgradcheck
    >>> gradgradcheck(lambda x: x * x * x, numpy.array([1.0, 2.0]))
    True
    """
    imperative = imperative_check("gradgradcheck", inputs)
    if imperative is not None:
        return imperative(func, inputs, grad_outputs, **options)
    with jax.enable_x64():
        check = GradientCheck(func, inputs, None, Differentiation())
        if not check.inexact_outputs:
            raise ArgumentError(
                f"gradgradcheck({check.name}): at least one output must be inexact; got none"
            )
        cts = [random_like(out, seed) for seed, out in enumerate(check.flat(*check.xs))]
        if grad_outputs is not None:
            cts = [np.asarray(x) for x in tree.leaves(grad_outputs)]
        count = len(check.xs)

        def gradients(*values: Value) -> Values:
            return vjp(check.flat, *values[:count])[1](list(values[count:]))

        gradients.__name__ = f"the gradient of {check.name}"
        return gradcheck(gradients, (*check.xs, *cts), **options)


def _check_modes(options: GradcheckOptions) -> None:
    """Raise GradcheckModeError for contradictory switches."""
    requirements = [("check_batched_grad", "check_backward_ad")]
    requirements.append(("check_batched_forward_grad", "check_forward_ad"))
    for batched, mode in requirements:
        if getattr(options, batched) and not getattr(options, mode):
            raise GradcheckModeError(
                f"gradcheck: {batched} must come with {mode}; got it off", fix=f"Pass {mode}=True."
            )
    if not (options.check_forward_ad or options.check_backward_ad):
        raise GradcheckModeError(
            "gradcheck: check_forward_ad or check_backward_ad must be on; got both off"
        )


def imperative_check(function: str, inputs: PyTree) -> Callable[..., bool] | None:
    """The check of this name for Variables, if some of `inputs` are Variables that require gradients."""
    for x in tree.leaves(inputs):
        if isinstance(x, Tracer) and type(x) is not Tracer and x.requires_grad:  # type: ignore[attr-defined]
            found: Callable[..., bool] = x.gradient_checks[function]  # type: ignore[attr-defined]
            return found
    return None


def is_numeric(x: object) -> bool:
    """Whether `x` is a number or an array of numbers."""
    try:
        return kind(aval_of(x).dtype) in "biufc"
    except ArgumentError:
        return False


def random_like(like: Value | Array, seed: int) -> Array:
    """A random array with the shape and the dtype of `like` and parts between -1 and 1."""
    like = np.asarray(like)
    draw = np.random.default_rng(seed).uniform
    x = draw(-1.0, 1.0, like.shape)
    if np.iscomplexobj(like):
        return np.asarray(x + 1j * draw(-1.0, 1.0, like.shape), like.dtype)
    return np.asarray(x, like.dtype)


class GradientCheck:
    """The checks of a function, taken as a function `flat` of its varying leaves."""

    def __init__(
        self, func: Function, inputs: PyTree, options: Any, differentiation: Differentiation
    ):
        check_callable(func, "gradcheck")
        self.name = getattr(func, "__name__", "the function")
        self.options: GradcheckOptions = options
        self.differentiation = differentiation
        leaves, in_tree = tree.flatten(
            tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)
        )
        self.varying = [i for i, x in enumerate(leaves) if differentiation.varies(x)]
        if not self.varying:
            raise ArgumentError(
                "gradcheck: at least one input must be an inexact array; got none",
                fix="Convert an input to float64.",
            )
        self.xs: list[Array] = []
        for i in self.varying:
            self.xs.append(self.check_input(i, leaves[i]))

        def all_outputs(*xs: ArrayLike) -> list[Value]:
            inputs = list(leaves)
            for i, x in zip(self.varying, xs, strict=True):
                inputs[i] = differentiation.argument(x)
            return tree.leaves(
                func(*tree.unflatten(in_tree, numerical_derivatives.copy_arrays(inputs)))
            )

        self.all_outputs = all_outputs
        mask = [differentiation.varies(out) for out in all_outputs(*self.xs)]
        self.inexact_outputs = [k for k, is_output in enumerate(mask) if is_output]

    def flat(self, *xs: ArrayLike) -> list[Value]:
        """The inexact outputs as a function of the varying leaves."""
        outs = self.all_outputs(*xs)
        return [outs[k] for k in self.inexact_outputs]

    def check_input(self, i: int, x: ArrayLike) -> Array:
        """The input as an array whose elements have separate memory."""
        x = np.asarray(x)
        if x.size and 0 in [s for s, n in zip(x.strides, x.shape, strict=True) if n > 1]:
            raise ArgumentError(
                f"gradcheck: each element of an input must have memory of its own; got input {i}, "
                "which repeats elements (a stride of 0)",
                fix="Pass a copy of it.",
            )
        if self.options is not None and x.dtype not in (np.float64, np.complex128):
            warn_at_user_line(
                f"gradcheck: input {i} is {x.dtype}; differences of it are too coarse to check "
                "with the usual tolerances, which are for float64",
                UserWarning,
            )
        return x

    def run(self) -> None:
        """Run the checks that the options select."""
        if not self.inexact_outputs:
            self.check_constant_outputs()
            return
        if self.options.check_backward_ad:
            if self.options.fast_mode:
                self.check_directional("reverse")
            else:
                self.check_jacobians("reverse")
            self.check_reentrant()
            self.check_zero_cotangents()
            if self.options.check_undefined_grad:
                self.check_missing_cotangents()
            if self.options.check_batched_grad:
                self.check_batched_gradients()
        if self.options.check_forward_ad:
            if self.options.fast_mode:
                self.check_directional("forward")
            else:
                self.check_jacobians("forward")
        if self.options.check_batched_forward_grad:
            self.check_jacobians("batched forward")

    def failure(self, problem: str, *details: str) -> GradcheckError:
        """The error for a mismatch."""
        return GradcheckError(f"gradcheck({self.name}): {problem}", *details)

    def is_close(self, got: Array, expected: Array) -> bool:
        """Whether two arrays agree within the tolerances; nans are equal."""
        return np.allclose(
            got, expected, rtol=self.options.rtol, atol=self.options.atol, equal_nan=True
        )

    def check_constant_outputs(self) -> None:
        """Check that outputs without a derivative do not vary."""
        numbers = [k for k, y in enumerate(self.all_outputs(*self.xs)) if is_numeric(y)]

        def outputs(*xs: ArrayLike) -> list[Value]:
            outs = self.all_outputs(*xs)
            return [outs[k] for k in numbers]

        for i in range(len(self.xs)):
            jacobians = numerical_derivatives.numerical_jacobian(
                outputs, self.xs, i, self.options.eps
            )
            for k, jacobian in zip(numbers, jacobians, strict=True):
                if jacobian.any():
                    raise self.failure(
                        f"output {k} has no derivative, so it must be constant; got "
                        f"a numerical Jacobian in input {self.varying[i]} of\n{jacobian}"
                    )

    def check_jacobians(self, mode: str) -> None:
        """Check each Jacobian by `mode` against differences."""
        reverse = (
            numerical_derivatives.reverse_jacobians(self.differentiation, self.flat, self.xs)
            if mode == "reverse"
            else None
        )
        for i in range(len(self.xs)):
            expected = numerical_derivatives.numerical_jacobian(
                self.flat, self.xs, i, self.options.eps
            )
            if reverse is not None:
                got = [jacobians[i] for jacobians in reverse]
            else:
                batched = mode == "batched forward"
                try:
                    got = numerical_derivatives.forward_jacobian(
                        self.differentiation, self.flat, self.xs, i, batched
                    )
                except Exception as error:
                    if not batched:
                        raise
                    raise self.failure(f"forward mode must work under vmap; got {error}") from error
            for k, (x, y) in enumerate(zip(got, expected, strict=True)):
                if not self.is_close(x, y):
                    raise self.failure(
                        f"the Jacobian of output {self.inexact_outputs[k]} in input {self.varying[i]} by "
                        f"{mode} mode must be that of differences",
                        f"by differences:\n{y}",
                        f"by {mode} mode:\n{x}",
                    )

    def check_directional(self, mode: str) -> None:
        """Check u J v for random u and v; on a mismatch, check whole Jacobians to explain it."""
        directions = [random_like(x, i) for i, x in enumerate(self.xs)]
        eps = self.options.eps
        forward, backward = [
            self.flat(*[x + step * v for x, v in zip(self.xs, directions, strict=True)])
            for step in (eps, -eps)
        ]
        weights = [random_like(out, 100 + k) for k, out in enumerate(forward)]
        differences = [
            (real_vector(a) - real_vector(b)) / (2 * eps)
            for a, b in zip(forward, backward, strict=True)
        ]
        expected = sum(real_vector(u) @ s for u, s in zip(weights, differences, strict=True))
        if mode == "forward":
            tangents = self.differentiation.jvp(self.flat, self.xs, directions)
            got = sum(
                real_vector(u) @ real_vector(t) for u, t in zip(weights, tangents, strict=True)
            )
        else:
            # Re(conj(u) y) is the sum of products of the parts of u and y.
            gradients = self.differentiation.vjp(self.flat, self.xs)[1](
                [np.conj(u) for u in weights]
            )
            got = sum(
                numerical_derivatives.gradient_row(g) @ real_vector(v)
                for g, v in zip(gradients, directions, strict=True)
            )
        # The errors of all elements add up.
        scale = max(1, *[x.size for x in self.xs]) * max([1, *[u.size for u in weights]])
        if not np.allclose(got, expected, rtol=self.options.rtol, atol=self.options.atol * scale):
            self.check_jacobians(mode)
            raise self.failure(
                f"u J v by {mode} mode must be that of differences, {expected}; got {got}"
            )

    def check_reentrant(self) -> None:
        """Check that a second run of reverse mode gives the same."""
        first, second = [
            numerical_derivatives.reverse_jacobians(self.differentiation, self.flat, self.xs)
            for _ in range(2)
        ]
        for k, (xs, ys) in enumerate(zip(first, second, strict=True)):
            for i, (x, y) in enumerate(zip(xs, ys, strict=True)):
                if np.max(np.abs(x - y), initial=0.0) > self.options.nondet_tol:
                    raise self.failure(
                        "reverse mode must be deterministic, within nondet_tol="
                        f"{self.options.nondet_tol} when it is run again; got two Jacobians of "
                        f"output {self.inexact_outputs[k]} in input {self.varying[i]}",
                        f"first:\n{x}",
                        f"then:\n{y}",
                    )

    def check_zero_cotangents(self) -> None:
        """Check that zero cotangents give zeros with the shape and the dtype of the input."""
        outs, pullback = self.differentiation.vjp(self.flat, self.xs)
        gradients = pullback([np.zeros(out.shape, out.dtype) for out in outs])
        for i, (x, g) in enumerate(zip(self.xs, gradients, strict=True)):
            subject = f"the gradient of input {self.varying[i]}"
            if g.shape != x.shape:
                raise self.failure(f"{subject} must have its shape {x.shape}; got {g.shape}")
            if self.options.check_grad_dtypes and g.dtype != x.dtype:
                raise self.failure(f"{subject} must have its dtype {x.dtype}; got {g.dtype}")
            if np.any(np.asarray(g)):
                raise self.failure(
                    f"{subject} must be 0 for cotangents of 0, since reverse mode is linear in them; "
                    f"got\n{np.asarray(g)}"
                )

    def check_missing_cotangents(self) -> None:
        """Check that None is a cotangent of zero, for all outputs at once and for each alone."""
        outs, pullback = self.differentiation.vjp(self.flat, self.xs)
        cts = [np.ones(out.shape, out.dtype) for out in outs]
        cases: list[Sequence[int]] = (
            [range(len(cts))]
            if len(cts) < 2
            else [range(len(cts)), *[[k] for k in range(len(cts))]]
        )
        for missing in cases:
            partial_cts = [None if k in missing else ct for k, ct in enumerate(cts)]
            zeros = [np.zeros_like(ct) if k in missing else ct for k, ct in enumerate(cts)]
            try:
                gradients = pullback(partial_cts)
            except Exception as error:
                raise self.failure(
                    "a derivative rule must take None, a cotangent of zero, for outputs "
                    f"{[self.inexact_outputs[k] for k in missing]}; got {type(error).__name__}: {error}"
                ) from error
            for i, (x, y) in enumerate(zip(gradients, pullback(zeros), strict=True)):
                if not self.is_close(np.asarray(x), np.asarray(y)):
                    raise self.failure(
                        f"the gradient of input {self.varying[i]} must be the same for None as for "
                        f"zeros, as cotangents of outputs {[self.inexact_outputs[k] for k in missing]}; got"
                        f"\n{np.asarray(x)}\nfor\n{np.asarray(y)}"
                    )

    def check_batched_gradients(self) -> None:
        """Check that two cotangents under `vmap` give the same gradients as one by one."""
        outs, pullback = self.differentiation.vjp(self.flat, self.xs)
        for k in range(len(outs)):
            cts = [
                np.stack(
                    [
                        random_like(out, seed) if j == k else np.zeros(out.shape, out.dtype)
                        for seed in (k, k + 100)
                    ]
                )
                for j, out in enumerate(outs)
            ]
            try:
                batched = self.differentiation.batched(pullback, cts)
            except Exception as error:
                raise self.failure(
                    f"reverse mode must work under vmap, for output {self.inexact_outputs[k]}; got "
                    f"{type(error).__name__}: {error}"
                ) from error
            looped = [pullback([ct[k] for ct in cts]) for k in range(2)]
            for i, x in enumerate(batched):
                y = np.stack([np.asarray(gs[i]) for gs in looped])
                if not self.is_close(np.asarray(x), y):
                    raise self.failure(
                        f"the gradient of input {self.varying[i]} for output {self.inexact_outputs[k]} "
                        "must be the same under vmap as in a loop",
                        f"under vmap:\n{np.asarray(x)}",
                        f"in a loop:\n{y}",
                    )
