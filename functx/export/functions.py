"""`export`: the program of a function, with a signature, for arguments of given types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax.export import default_export_platform, is_symbolic_dim

from functx.core import tree
from functx.core.captured_state import CapturedState
from functx.core.errors import ArgumentError, ExportError, ValueRangeError, type_name
from functx.core.generator_state import GeneratorState
from functx.core.printing import variable_names
from functx.core.program import Program
from functx.core.tracer import HOST_ARRAY_TYPES, Tracer, abstractify, is_variable
from functx.core.typing import Function, PyTree
from functx.export.archives import Contents, Interface
from functx.export.exported import Exported
from functx.export.signature import Signature, output_names
from functx.nn.module import Module
from functx.transforms.argument_names import check_callable, wrap_transform
from functx.transforms.make_ir import FunctionalizedFunction

PASS_AS_ARGUMENT = "Pass it as an argument."
PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
"""The platforms that programs can be lowered for."""


def export(fun: Function, *, platforms: Sequence[str] | None = None) -> Callable[..., Exported]:
    """The function that returns the `Exported` of `fun` for the given arguments.

    `fun` is traced once for their types; arguments may be arrays, or anything with `shape` and `dtype`.
    The result is called like `fun`, transformed like `fun`, and saved. `platforms` are those that it is
    lowered for when it is saved, by default the current one: "cpu", "cuda", "rocm" and "tpu"; none need
    be present. With none at all, `()`, a file holds only the program, which is lowered where it is run.

    Arrays that `fun` closes over are constants. If it writes to its arguments, so does the result.
    Raises ExportError for symbolic sizes, as of `jax.export.symbolic_shape`.

    >>> import functx, numpy
    >>> exported = functx.export.export(lambda x, w: functx.numpy.tanh(x @ w))(
    ...     numpy.ones((2, 3), "float32"), numpy.ones((3, 4), "float32"))
    >>> print(exported)
    program lambda(x: f32[2,3], w: f32[3,4]):
    ...
    >>> exported.signature.user_inputs
    ('x', 'w')
    """
    check_callable(fun, "export")
    chosen = check_platforms("export", platforms)

    def wrapper(*args: PyTree, **kwargs: PyTree) -> Exported:
        check_sizes_fixed("export", (args, kwargs))
        leaves, in_tree = tree.flatten_with_key_data((args, kwargs))
        pure = (
            fun
            if isinstance(fun, FunctionalizedFunction)
            else FunctionalizedFunction(fun, "mutations")
        )
        traced = pure.trace(None, [abstractify(x) for x in leaves], in_tree, "export")
        is_module = isinstance(fun, Module) or isinstance(getattr(fun, "__self__", None), Module)
        cure = (
            "Write functx.export.module(m, args), whose inputs are the parameters and buffers, too."
        )
        constants = constant_values(
            f"export({traced.program.name})",
            traced.captured,
            cure if is_module else PASS_AS_ARGUMENT,
        )
        names = input_names(traced.program)
        written = {
            f"output_{len(traced.out_avals) + k}": names[i] for k, i in enumerate(traced.written)
        }
        signature = Signature(
            user_inputs=names[: len(leaves)],
            user_outputs=output_names(0, len(traced.out_avals)),
            user_inputs_to_mutate=written,
            constants=names[len(leaves) :],
        )
        interface = interface_of(traced.program)._replace(
            in_tree=in_tree,
            out_tree=traced.out_tree,
            written=traced.written,
            layout_dependent=traced.layout_dependent,
        )
        return Exported(
            Contents(interface, signature, chosen, constants, {}, lambda: traced.program)
        )

    return wrap_transform(wrapper, fun, "export")


def check_platforms(label: str, platforms: Sequence[str] | None) -> tuple[str, ...]:
    """The platforms, by default the current one; ValueRangeError for a name of none."""
    if platforms is None:
        return (default_export_platform(),)
    if isinstance(platforms, str) or not all(isinstance(p, str) for p in platforms):
        raise ArgumentError(
            f"{label}: platforms must be a sequence of names; got {platforms!r}",
            fix=f"Pass platforms=({platforms!r},)." if isinstance(platforms, str) else "",
        )
    unknown = [p for p in platforms if p not in PLATFORMS]
    if unknown or len({*platforms}) != len(platforms):
        raise ValueRangeError(
            f"{label}: platforms must be of {', '.join(map(repr, PLATFORMS))}, each once; got "
            f"{tuple(platforms)}",
            fix='A GPU is "cuda" or "rocm".' if "gpu" in unknown else "",
        )
    return tuple(platforms)


def check_sizes_fixed(label: str, args: PyTree) -> None:
    """Raises ExportError for an argument with a symbolic size."""
    for x in tree.leaves(args):
        shape = getattr(x, "shape", ())
        if isinstance(shape, tuple) and any([is_symbolic_dim(size) for size in shape]):
            raise ExportError(
                f"{label}: the sizes of the arguments must be ints; got the shape {shape}",
                fix="Export once for each size.",
            )


def input_names(program: Program) -> tuple[str, ...]:
    """The names of the inputs in the printed program."""
    names = variable_names(program)
    return tuple([names[v] for v in program.inputs])


def interface_of(program: Program) -> Interface:
    """The interface of a program with flat arguments and results."""
    avals = [v.aval for each in program.walk() for v in each.inputs]
    avals += [v.aval for each in program.walk() for eqn in each for v in eqn.outputs]
    return Interface(
        program.name,
        tuple(program.input_names() or input_names(program)),
        tuple(program.in_avals),
        tuple(program.out_avals),
        uses_64_bits=any(
            [a.dtype.itemsize // (2 if a.dtype.kind == "c" else 1) == 8 for a in avals]
        ),
    )


def constant_values(name: str, captured: Sequence[Any], cure: str = PASS_AS_ARGUMENT) -> list[Any]:
    """The values of captured arrays, copied if they may change.

    Raises ExportError for a Variable that needs a gradient, for a traced value, for a `Ref`, and for the
    state of a generator, which an implicit draw of random numbers captures.
    """
    values = []
    for x in captured:
        if isinstance(x, CapturedState) and not isinstance(x, GeneratorState):
            raise ExportError(
                f"{name}: an exported function must not capture a `Ref`, whose value a file does not have; got "
                f"one of {x.aval!r}",
                fix="Take the `Ref` as an argument, or capture its array, ref[...].",
            )
        if isinstance(x, GeneratorState):
            raise ExportError(
                f"{name}: an exported function must not draw random numbers from a generator, whose state "
                "a file does not have; got a draw",
                fix="Take a key as an argument, and draw with functx.random.normal(key, shape) and its like.",
            )
        if type(x) is Tracer or getattr(x, "requires_grad", False):
            got = "a Variable that does" if is_variable(x) else f"the traced value {type_name(x)}"
            raise ExportError(
                f"{name}: arrays that an exported function closes over must have values and need no "
                f"gradients; got {got}",
                fix=cure,
            )
        values.append(copied_value(x))
    return values


def copied_value(x: Any) -> Any:
    """The value of an array that may be written to later, copied; any other array as it is."""
    if is_variable(x):
        return np.array(x.detach())
    return np.array(x) if type(x) in HOST_ARRAY_TYPES else x
