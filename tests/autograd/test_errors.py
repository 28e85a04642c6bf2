"""The errors of walks, flags, writes and hooks: class, built-in bases, what they name, and the cure."""

import functools
import inspect
import re

import numpy as onp
import pytest

import functx
import functx.numpy as np
from functx import autograd, errors
from functx.autograd import (
    Function,
    Variable,
    backward,
    checkpoint,
    forward_ad,
    functional,
    grad,
    inference_mode,
    no_grad,
    register_multi_grad_hook,
)


def leaf(value=(1.0, 2.0)):
    return Variable(onp.asarray(value, "float32"), requires_grad=True)


X, Y = leaf(), leaf(3.0)
ONES = onp.ones(2, "float32")


class Doubles(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        CONTEXTS.append(ctx)
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


class SavesAName(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x, "name")


CONTEXTS = []


def walk_twice():
    y = (X * X).sum()
    grad(y, X)
    grad(y, X)


def read_freed_values():
    grad(Doubles.apply(X).sum(), X)
    return CONTEXTS.pop().saved_tensors


def write_to_a_saved_value():
    y = X * 2
    z = (y * y).sum()
    y += 1
    z.backward()


def write_to_a_part_of_a_split():
    first, _ = np.split(X * 2, 2)
    first += 1


def write_to_a_view_made_under_no_grad():
    y = X * 2
    with no_grad():
        view = y[1:]
    view *= 2


def inference_array():
    with inference_mode():
        return Variable(ONES)


def walk_with(register, hook):
    y = X * 3
    handle = register(y)(hook)
    try:
        grad(y.sum(), X)
    finally:
        handle.remove()


hook = functools.partial(walk_with, lambda y: y.register_hook)
prehook = functools.partial(walk_with, lambda y: y.grad_fn.register_prehook)
posthook = functools.partial(walk_with, lambda y: y.grad_fn.register_hook)


def post_accumulate_hook(hook):
    x = leaf()
    x.register_post_accumulate_grad_hook(hook)
    x.sum().backward()


def close_a_level_twice():
    level = forward_ad.enter_dual_level()
    forward_ad.exit_dual_level(level=level)
    forward_ad.exit_dual_level(level=level)


def nest_levels():
    with forward_ad.dual_level():
        forward_ad.enter_dual_level()


def dual(primal, tangent):
    with forward_ad.dual_level():
        forward_ad.make_dual(primal, tangent)


def checkpoint_that_changes():
    calls = []

    def fun(x):
        calls.append(x)
        return x * x if len(calls) == 1 else x

    checkpoint(fun, X, use_reentrant=False).sum().backward()


def integers():
    return Variable([1, 2])


def set_grad(gradient):
    x = leaf()
    x.grad = x if gradient is None else gradient


def traced(use):
    return functx.grad(use)(1.0)


# The call; the class; its built-in bases; what the message says.
MISTAKES = {
    "a root without history": (
        lambda: backward([Y * 2, Variable(1.0)]),
        "NoHistoryError(RuntimeError)",
        r"number 1, ~?f32\[\].*requires_grad=True",
    ),
    "an input without history": (
        lambda: grad(Y * 2, [Y, Variable(ONES)]),
        "NoHistoryError(RuntimeError)",
        r"number 1, f32\[2\].*requires_grad=True",
    ),
    "no inputs of backward": (
        lambda: backward(Y * 2, inputs=[]),
        "EmptyInputsError(RuntimeError, ValueError)",
        "backward: inputs must not be empty",
    ),
    "no inputs of grad": (
        lambda: grad(Y * 2, []),
        "EmptyInputsError(RuntimeError, ValueError)",
        "grad: inputs must not be empty",
    ),
    "no outputs": (lambda: grad([], Y), "EmptyOutputsError(RuntimeError)", "outputs must not be"),
    "an unused input": (
        lambda: grad(Y * 2, [Y, X]),
        "UnusedInputError(RuntimeError)",
        "number 1.*allow_unused=True",
    ),
    "an unused edge that zeros must stand for": (
        lambda: grad(Y * 2, [autograd.get_gradient_edge(X)], materialize_grads=True),
        "UnusedInputError(RuntimeError)",
        "an edge as input number 0.*allow_unused=True",
    ),
    "allow_unused=False with materialize_grads": (
        lambda: grad(Y * 2, Y, allow_unused=False, materialize_grads=True),
        "ContradictingOptionsError(RuntimeError, ValueError)",
        "allow_unused=False.*got both",
    ),
    "two names for the gradients": (
        lambda: backward(Y * 2, ONES[0], grad_variables=ONES[0]),
        "ContradictingOptionsError(RuntimeError, ValueError)",
        "grad_tensors alone",
    ),
    "no gradient for two elements": (
        lambda: backward([Y * 2, X * 2]),
        "ImplicitGradientError(RuntimeError)",
        r"number 1, f32\[2\].*y\.sum\(\)",
    ),
    "no gradient for a complex number": (
        lambda: (Y * 2j).backward(),
        "ImplicitGradientError(RuntimeError)",
        r"real element; got number 0, c64\[\]",
    ),
    "a gradient of another shape": (
        lambda: grad([Y * 2, X * 2], X, [None, onp.ones(3, "float32")]),
        "GradientMismatchError(RuntimeError)",
        r"f32\[3\] as number 1 for output number 1, f32\[2\]",
    ),
    "a gradient of one element for a number": (
        lambda: grad(Y * 2, Y, ONES[:1]),
        "GradientMismatchError(RuntimeError)",
        r"f32\[1\] as number 0 for output number 0, f32\[\]",
    ),
    "a complex gradient": (
        lambda: grad(X * 2, X, ONES * 1j),
        "GradientMismatchError(RuntimeError)",
        "complex64 as number 0 for output number 0, of float32",
    ),
    "a batch of gradients without a batch axis": (
        lambda: grad(X * 2, X, ONES, is_grads_batched=True),
        "GradientMismatchError(RuntimeError)",
        r"first axis, the batch that vmap maps over; got f32\[2\]",
    ),
    "no batch at all": (
        lambda: grad(Y * 2, Y, is_grads_batched=True),
        "GradientCountError(RuntimeError)",
        "None for all of 1 outputs",
    ),
    "fewer gradients than outputs": (
        lambda: grad([Y * 2, Y * 3], Y, [None]),
        "GradientCountError(RuntimeError)",
        "got 1 for 2",
    ),
    "more gradients than outputs": (
        lambda: grad(Y * 2, Y, [None, None]),
        "GradientCountError(RuntimeError)",
        "got 2 for 1",
    ),
    "a gradient that is no array": (
        lambda: grad(Y * 2, Y, "one"),
        "GradientTypeError(RuntimeError, TypeError)",
        "number 0.*got str",
    ),
    "a saved value that is no array": (
        lambda: SavesAName.apply(X),
        "GradientTypeError(RuntimeError, TypeError)",
        r"save_for_backward takes arrays.*str as number 1.*ctx\.name = value",
    ),
    "a second walk": (
        walk_twice,
        "FreedValueError(RuntimeError)",
        r"`mul`.*freed.*retain_graph=True",
    ),
    "freed values that are read": (
        read_freed_values,
        "FreedValueError(RuntimeError)",
        "freed.*retain_graph=True",
    ),
    "a saved value that is written to": (
        write_to_a_saved_value,
        "SavedValueError(RuntimeError)",
        r"`mul` needs.*f32\[2\] at version 1, expected version 0.*copy",
    ),
    "a write to a leaf": (
        lambda: X.__setitem__(0, 1.0),
        "LeafWriteError(RuntimeError)",
        r"a leaf that requires.*f32\[2\].*no_grad",
    ),
    "a write to a view of a leaf": (
        lambda: X[1:].__iadd__(1.0),
        "LeafWriteError(RuntimeError)",
        r"a view of a leaf.*f32\[1\].*no_grad",
    ),
    "a write to a view that repeats elements": (
        lambda: np.broadcast_to(X * 2, (2, 2)).__setitem__(0, 1.0),
        "OverlappingViewError(RuntimeError, TypeError, ValueError)",
        r"repeats elements.*f32\[2,2\].*copy",
    ),
    "a write to a part of a split": (
        write_to_a_part_of_a_split,
        "ViewWriteError(RuntimeError)",
        r"results of `split`.*f32\[1\], a view of f32\[2\].*index",
    ),
    "a write to a view made under no_grad": (
        write_to_a_view_made_under_no_grad,
        "ViewWriteError(RuntimeError)",
        r"made under no_grad.*f32\[1\], a view of f32\[2\].*copy",
    ),
    "x.grad of another shape": (
        lambda: set_grad(onp.ones(3, "float32")),
        "GradAssignmentError(RuntimeError)",
        r"f32\[3\] for f32\[2\]",
    ),
    "x.grad of another dtype": (
        lambda: set_grad(onp.ones(2, "float16")),
        "GradAssignmentError(RuntimeError)",
        r"f16\[2\] for f32\[2\]",
    ),
    "x.grad = x": (lambda: set_grad(None), "GradAssignmentError(RuntimeError)", "x itself"),
    "integers that require gradients": (
        lambda: integers().requires_grad_(),
        "RequiresGradError(RuntimeError)",
        r"floating point or complex.*i32\[2\].*astype",
    ),
    "a result that must not require a gradient": (
        lambda: (X * 2).requires_grad_(False),
        "RequiresGradError(RuntimeError)",
        r"result of <mul node.*detach\(\)",
    ),
    "a hook of a constant": (
        lambda: Variable(ONES).register_hook(print),
        "HookTargetError(RuntimeError)",
        r"register_hook.*f32\[2\].*requires_grad=True",
    ),
    "retain_grad of a constant": (
        lambda: Variable(ONES).retain_grad(),
        "HookTargetError(RuntimeError)",
        r"retain_grad.*f32\[2\].*requires_grad=True",
    ),
    "a post-accumulate hook of a result": (
        lambda: (X * 2).register_post_accumulate_grad_hook(print),
        "HookTargetError(RuntimeError)",
        r"only a leaf.*`mul`, f32\[2\].*register_hook",
    ),
    "a post-accumulate hook with a result": (
        lambda: post_accumulate_hook(lambda x: 1),
        "HookResultError(RuntimeError)",
        "must return None; got int",
    ),
    "a hook that changes the shape": (
        lambda: hook(lambda g: g[:1]),
        "HookResultError(RuntimeError)",
        r"hook `<lambda>`.*f32\[1\] for f32\[2\]",
    ),
    "a hook that changes the dtype": (
        lambda: hook(lambda g: g.astype("float16")),
        "HookResultError(RuntimeError)",
        r"hook `<lambda>`.*f16\[2\] for f32\[2\]",
    ),
    "a hook that returns a list": (
        lambda: hook(lambda g: [g]),
        "GradientTypeError(RuntimeError, TypeError)",
        "hook `<lambda>`.*got list",
    ),
    "a prehook that returns no tuple": (
        lambda: prehook(lambda gs: gs[0]),
        "GradientTypeError(RuntimeError, TypeError)",
        r"prehook `<lambda>`.*tuple.*f32\[2\]",
    ),
    "a prehook with two gradients for one": (
        lambda: prehook(lambda gs: gs * 2),
        "HookResultError(RuntimeError)",
        "prehook `<lambda>`.*each of 1; got 2",
    ),
    "a posthook with one gradient for two": (
        lambda: posthook(lambda inputs, outputs: inputs[:1]),
        "HookResultError(RuntimeError)",
        "posthook `<lambda>`.*each of 2; got 1",
    ),
    "an unknown mode of a hook": (
        lambda: register_multi_grad_hook([X], print, mode="one"),
        "HookModeError(RuntimeError, ValueError)",
        '"all" or "any"; got \'one\'',
    ),
    "a callback outside a walk": (
        lambda: autograd.queue_callback(print),
        "CallbackError(RuntimeError)",
        "no walk that runs",
    ),
    "an inference array that is saved": (
        lambda: X * inference_array(),
        "InferenceArrayError(RuntimeError)",
        r"be saved.*f32\[2\].*copy\(\)",
    ),
    "an inference array that is written to": (
        lambda: inference_array().__setitem__(0, 1.0),
        "InferenceArrayError(RuntimeError)",
        r"be written to.*f32\[2\].*copy\(\)",
    ),
    "the version of an inference array": (
        lambda: inference_array()._version,
        "InferenceArrayError(RuntimeError)",
        r"have a version.*f32\[2\].*copy\(\)",
    ),
    "nested levels": (nest_levels, "DualLevelError(RuntimeError)", r"jvp"),
    "a level closed twice": (close_a_level_twice, "DualLevelError(RuntimeError)", "level"),
    "no level": (lambda: forward_ad.make_dual(X, X), "DualLevelError(RuntimeError)", "dual_level"),
    "a tangent of another size": (
        lambda: dual(Variable(ONES), Variable(onp.ones(3, "float32"))),
        "DualValueError(RuntimeError, ValueError)",
        r"f32\[3\].*f32\[2\]",
    ),
    "a dual number of integers": (
        lambda: dual(integers(), integers()),
        "DualValueError(RuntimeError, ValueError)",
        r"i32\[2\]",
    ),
    "a checkpoint that computes something else": (
        checkpoint_that_changes,
        "CheckpointError(RuntimeError)",
        "got 0, expected [12].*no counters",
    ),
    "a strict derivative that is zero": (
        lambda: functional.jacobian(lambda x: Variable(ONES), X, strict=True),
        "IndependenceError(RuntimeError)",
        "got output 0, which depends on no input",
    ),
    "backward of a traced value": (
        lambda: traced(lambda x: (x * x).backward()),
        "AutogradInTransformError(AttributeError, RuntimeError)",
        r"Traced<.*f32\[\]> in grad\(lambda\).*functx\.grad\(f\)\(x\)",
    ),
    "backward inside a transform": (
        lambda: traced(lambda x: backward(Y * 2) or x),
        "AutogradInTransformError(AttributeError, RuntimeError)",
        r"grad\(lambda\).*functx\.grad or functx\.vjp",
    ),
    "requires_grad_ of a traced value": (
        lambda: traced(lambda x: x.requires_grad_()),
        "AutogradInTransformError(AttributeError, RuntimeError)",
        r"functx\.grad\(f\)\(x\)",
    ),
    "requires_grad = of a traced value": (
        lambda: traced(lambda x: setattr(x, "requires_grad", True)),
        "AutogradInTransformError(AttributeError, RuntimeError)",
        r"functx\.grad\(f, argnums\)",
    ),
    "grad = of a traced value": (
        lambda: traced(lambda x: setattr(x, "grad", None)),
        "AutogradInTransformError(AttributeError, RuntimeError)",
        r"functx\.grad\(f\)\(x\)",
    ),
    "a hook of a traced value": (
        lambda: traced(lambda x: x.register_hook(print)),
        "AutogradInTransformError(AttributeError, RuntimeError)",
        r"functx\.hook_grad\(x, fn\)",
    ),
    "retain_grad of a traced value": (
        lambda: traced(lambda x: x.retain_grad()),
        "AutogradInTransformError(AttributeError, RuntimeError)",
        r"functx\.hook_grad\(x, fn\)",
    ),
    "requires_grad_ inside a transform": (
        lambda: traced(lambda x: Y.requires_grad_() and x),
        "AutogradInTransformError(AttributeError, RuntimeError)",
        r"requires_grad.*grad\(lambda\).*functx\.vjp",
    ),
    "a hook for saved values inside a transform": (
        lambda: traced(lambda x: autograd.save_on_cpu().__enter__()),
        "AutogradInTransformError(AttributeError, RuntimeError)",
        r"grad\(lambda\).*functx\.checkpoint",
    ),
}


def shown(cls):
    """`Name(Builtin, ...)`: the class and the built-in errors that it is."""
    builtins = [base.__name__ for base in cls.__mro__ if base.__module__ == "builtins"]
    return f"{cls.__name__}({', '.join(sorted({*builtins} - {'Exception', 'BaseException', 'object'}))})"


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_has_a_class_of_its_own_that_names_the_cure(name):
    call, kind, message = MISTAKES[name]
    with pytest.raises(errors.FunctxError) as raised:
        call()
    text = " ".join(str(raised.value).split())
    assert shown(raised.type) == kind
    assert re.search(message, text), text
    assert re.search(r" at test_errors\.py:\d+ in ", text), text
    assert raised.value.fix and "Cure:" in inspect.getdoc(raised.type)
    assert text.endswith(f"python -m functx.errors {raised.type.__name__}")
