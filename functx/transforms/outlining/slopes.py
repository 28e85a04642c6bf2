"""Which programs have derivatives that stay finite without masks of what was not selected."""

from __future__ import annotations

from collections.abc import Iterable

from functx.core.dtypes import is_inexact
from functx.core.program import Equation, Var, subprograms
from functx.core.rewriting import cached_rewrite
from functx.ops.contraction import DotGeneral
from functx.ops.families import Constant, Elementwise, Linear
from functx.ops.slicing import DynamicSlice
from functx.transforms.call import Call

_LINEAR_OPS = Linear, Constant, DotGeneral, DynamicSlice


def has_finite_derivatives(equations: Iterable[Equation]) -> bool:
    """Whether zero tangents and cotangents stay zero through all `equations`, of finite numbers."""
    return all(map(_has_finite_derivative, equations))


def _has_finite_derivative(eqn: Equation) -> bool:
    primitive = eqn.primitive
    if not primitive.differentiable or isinstance(primitive, _LINEAR_OPS):
        return True
    if type(primitive) is Call:
        return all(
            [cached_rewrite(has_finite_derivatives, nested) for nested in subprograms(primitive)]
        )
    if not isinstance(primitive, Elementwise):
        return False
    return primitive.has_finite_derivative or all(
        [
            primitive.preserves_zero(i, *eqn.inputs)
            for i, atom in enumerate(eqn.inputs)
            if type(atom) is Var and is_inexact(atom.aval.dtype)
        ]
    )
