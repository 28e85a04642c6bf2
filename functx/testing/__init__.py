"""Checks of rules, derivatives, operators and programs, for functx's primitives and users' own."""

from functx.core.argument_errors import explain_errors as _explain_errors
from functx.core.samples import bf16 as bf16
from functx.core.samples import bool_ as bool_
from functx.core.samples import c64 as c64
from functx.core.samples import c128 as c128
from functx.core.samples import f16 as f16
from functx.core.samples import f32 as f32
from functx.core.samples import f64 as f64
from functx.core.samples import i8 as i8
from functx.core.samples import i16 as i16
from functx.core.samples import i32 as i32
from functx.core.samples import i64 as i64
from functx.core.samples import sample as sample
from functx.core.samples import u8 as u8
from functx.core.samples import u16 as u16
from functx.core.samples import u32 as u32
from functx.core.samples import u64 as u64
from functx.testing.gradcheck import gradcheck as gradcheck
from functx.testing.gradcheck import gradgradcheck as gradgradcheck
from functx.testing.numerical_derivatives import check_grads as check_grads
from functx.testing.opcheck import opcheck as opcheck
from functx.testing.reference import interpret_in_numpy as interpret_in_numpy
from functx.testing.rules import check_rules as check_rules
from functx.testing.two_array import TwoArray as TwoArray
from functx.testing.verification import verify as verify

__all__ = _explain_errors(__name__)
