"""Recognizes functions of matrices that a program computes from eigenvalues and eigenvectors."""

from functx import ops
from functx.core.program import Program
from functx.transforms.ad_canonicalization import ad_rewrites


def recognize_spectral_functions(program: Program) -> Program:
    """`program` with single operations in place of functions of matrices by `eigh` or `svd`.

    See `functx.passes.spectral.recognition`, which is loaded only for a program with these.
    """
    if not any(type(eqn.primitive) in (ops.Eigh, ops.Svd) for eqn in program):
        return program
    from functx.passes.spectral import recognition

    return recognition.recognize_spectral_functions(program)


ad_rewrites.append(recognize_spectral_functions)
