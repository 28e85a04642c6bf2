"""Which programs have derivatives that stay finite without masks of what was not selected."""

from __future__ import annotations

from collections.abc import Iterable

from functx.core.dtypes import is_inexact
from functx.core.program import Equation, Var, subprograms
from functx.core.rewriting import rewritten
from functx.ops.contraction import DotGeneral
from functx.ops.families import Constant, Elementwise, Linear
from functx.ops.slicing import DynamicSlice
from functx.transforms.call import Call

_PRODUCTS_AND_MOVES = Linear, Constant, DotGeneral, DynamicSlice


def stay_finite(equations: Iterable[Equation]) -> bool:
    """Whether zero tangents and cotangents stay zero through all `equations`, of finite numbers."""
    return all(map(_stays_finite, equations))


def _stays_finite(eqn: Equation) -> bool:
    primitive = eqn.primitive
    if not primitive.differentiable or isinstance(primitive, _PRODUCTS_AND_MOVES):
        return True
    if type(primitive) is Call:
        return all([rewritten(stay_finite, nested) for nested in subprograms(primitive)])
    if not isinstance(primitive, Elementwise):
        return False
    return primitive.finite_slopes or all(
        [
            primitive.bounded(i, *eqn.inputs)
            for i, atom in enumerate(eqn.inputs)
            if type(atom) is Var and is_inexact(atom.aval.dtype)
        ]
    )
