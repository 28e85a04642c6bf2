"""Optimizations of programs; importing them sets the hooks of `core/backend.py`."""

from functx import ops
from functx.core.program import Program
from functx.passes import rematerialization  # noqa: F401 - sets hooks
from functx.passes.formula_replacement import stabilize_formulas
from functx.transforms.forward_mode import ad_rewrites


def recognize_spectral_functions(program: Program) -> Program:
    """`program` with single operations in place of functions of matrices by `eigh` or `svd`.

    See `functx.passes.spectral_recognition`, which is loaded only for a program with these.
    """
    if not any(type(eqn.primitive) in (ops.Eigh, ops.Svd) for eqn in program):
        return program
    from functx.passes import spectral_recognition

    return spectral_recognition.recognize_spectral_functions(program)


# Before norms are recognized, which replaces roots.
ad_rewrites.insert(0, stabilize_formulas)
ad_rewrites.append(recognize_spectral_functions)
