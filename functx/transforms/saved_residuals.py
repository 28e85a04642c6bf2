"""The values that a derivative saves from the forward computation, as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from functx.core import tree
from functx.core.backend import backend
from functx.core.masks import inexact_mask
from functx.core.program import Literal, Program, Var, pad_input_names
from functx.core.rewriting import rewrite_by_structure
from functx.core.source_info import describe_source, scope_of
from functx.core.tracebacks import api_boundary
from functx.core.typing import Function, PyTree
from functx.transforms.argument_names import argument_names, check_callable
from functx.transforms.tracing_api import avals_of, trace_function


@api_boundary
def print_saved_residuals(f: Function, *args: PyTree, **kwargs: PyTree) -> None:
    """Print the values that the reverse-mode derivative of `f(*args, **kwargs)` saves, and their origin.

    Each line has the type of a value, then the argument that it is, or the operation and the user's line
    that computed it.

    >>> import functx
    >>> from functx.ad_checkpoint import print_saved_residuals
    >>> def f(x):
    ...     return functx.numpy.sin(x) * x
    >>> print_saved_residuals(f, 2.0)  # doctest: +ELLIPSIS
    ~f32[]  argument x
    ~f32[]  sin, ... in f
    """
    check_callable(f, "print_saved_residuals")
    leaves, in_tree = tree.flatten_with_key_data((args, kwargs))
    avals = avals_of(leaves, "print_saved_residuals", f, in_tree)
    active = inexact_mask(avals)
    traced = trace_function(f, in_tree, avals, "vjp", values=leaves, active=active)
    split = backend.vjp_split((*active, *[False] * len(traced.captured)))
    forward, _ = rewrite_by_structure(split, traced.program)
    names = pad_input_names(argument_names(f, in_tree, avals)(), len(avals))
    for line in dict.fromkeys(_residual_lines(forward, len(traced.program.outputs), names)):
        print(line)


def _residual_lines(forward: Program, num_outputs: int, names: Sequence[str]) -> Iterator[str]:
    """The type and the origin of each output of `forward` after its first `num_outputs`."""
    makers = {v: eqn for eqn in forward.equations for v in eqn.outputs}
    arguments = dict(zip(forward.inputs, names, strict=False))
    for atom in forward.outputs[num_outputs:]:
        if type(atom) is Literal:
            continue
        assert type(atom) is Var
        if (eqn := makers.get(atom)) is not None:
            places = scope_of(eqn.source), describe_source(eqn.source)
            origin = f"{eqn.primitive.name}, " + ": ".join([place for place in places if place])
        elif atom in arguments:
            origin = f"argument {arguments[atom]}"
        else:
            origin = "a captured value"
        yield f"{atom.aval!r}  {origin}"
