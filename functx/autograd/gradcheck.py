"""`gradcheck` and `gradgradcheck` on Variables: gradients compared with central differences.

The checks of `functx.testing` are imported when one runs, since few programs run one.
"""

from __future__ import annotations

import jax

from functx.autograd.variable import Variable
from functx.core.errors import GradcheckError, OnceDifferentiableError
from functx.core.typing import Function, PyTree


def gradcheck(func: Function, inputs: PyTree, **options: object) -> bool:
    """Compare the Jacobians that walks compute for `func` with central differences.

    This is `functx.testing.gradcheck`, with its options and checks, for a function that runs on
    Variables: those of `inputs` that require gradients vary, all others are passed as they are.
    Outputs that do not require gradients are not compared. Forward mode is that of dual numbers. With
    `check_undefined_grad`, a rule that raises for a gradient of None is a failure. The inputs should
    be float64 or complex128, made inside `jax.enable_x64()`.

    Returns True. On a mismatch raises GradcheckError, or returns False with
    `raise_exception=False`. Raises EmptyInputsError (a ValueError) if no input requires a gradient,
    AutogradError for one that repeats elements of its memory, and GradcheckModeError and ArgumentError
    as `functx.testing.gradcheck` does.

    >>> import jax
    >>> from functx.autograd import Variable, gradcheck
    >>> with jax.enable_x64():
    ...     gradcheck(lambda x: x * x, Variable([1.0, 2.0], requires_grad=True))
    True
    """
    from functx.autograd.walk_checks import Walks, check_inputs, options_of
    from functx.testing.gradcheck import run_gradcheck

    chosen = options_of("gradcheck", options)
    check_inputs("gradcheck", inputs)
    return run_gradcheck(func, inputs, chosen, Walks())


def gradgradcheck(
    func: Function,
    inputs: PyTree,
    grad_outputs: PyTree = None,
    gen_non_contig_grad_outputs: bool = False,
    check_rev_over_rev: bool = True,
    check_fwd_over_rev: bool = False,
    **options: object,
) -> bool:
    """Compare the second derivatives of `func` with central differences of its gradients.

    This is `gradcheck` of the function from the inputs and `grad_outputs` to the gradients.
    `grad_outputs` are the gradients of the outputs that require some, by default random.
    `gen_non_contig_grad_outputs` has no effect, since gradients in a walk are not views. Options,
    results and errors are those of `gradcheck`, where `check_rev_over_rev` and `check_fwd_over_rev`
    stand for `check_backward_ad` and `check_forward_ad`; a gradient that is marked
    `once_differentiable` is a failure, too. Raises GradientCountError for more or fewer `grad_outputs`
    than outputs that require a gradient.

    >>> import jax
    >>> from functx.autograd import Variable, gradgradcheck
    >>> with jax.enable_x64():
    ...     gradgradcheck(lambda x: x**3, Variable([1.0, 2.0], requires_grad=True))
    True
    """
    from functx.autograd.walk_checks import Walks, check_inputs, gradient_of, options_of
    from functx.testing.gradcheck import GradientCheck, run_gradcheck

    modes = {"check_backward_ad": check_rev_over_rev, "check_forward_ad": check_fwd_over_rev}
    chosen = options_of("gradgradcheck", modes | options)
    check_inputs("gradgradcheck", inputs)
    with jax.enable_x64():
        check = GradientCheck(func, inputs, None, Walks())
        gradient, arguments = gradient_of(check, grad_outputs)
        try:
            return run_gradcheck(gradient, arguments, chosen, Walks())
        except OnceDifferentiableError as error:
            if not chosen.raise_exception:
                return False
            raise GradcheckError(
                f"gradgradcheck({check.name}): the gradient must be differentiable; got {error}"
            ) from error


Variable.gradient_checks = {"gradcheck": gradcheck, "gradgradcheck": gradgradcheck}
