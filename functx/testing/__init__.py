"""Checks of rules, derivatives, operators and programs, for functx's primitives and users' own."""

from functx.core.argument_errors import explain_errors as _explain_errors
from functx.core.samples import (
    bf16,
    bool_,
    c64,
    c128,
    f16,
    f32,
    f64,
    i8,
    i16,
    i32,
    i64,
    sample,
    u8,
    u16,
    u32,
    u64,
)
from functx.testing.gradcheck import gradcheck, gradgradcheck
from functx.testing.numerical_derivatives import check_grads
from functx.testing.opcheck import opcheck
from functx.testing.reference import interpret_in_numpy
from functx.testing.rules import check_rules
from functx.testing.two_array import TwoArray
from functx.testing.verification import verify

__all__ = [
    "TwoArray",
    "bf16",
    "bool_",
    "c64",
    "c128",
    "check_grads",
    "check_rules",
    "f16",
    "f32",
    "f64",
    "gradcheck",
    "gradgradcheck",
    "i8",
    "i16",
    "i32",
    "i64",
    "interpret_in_numpy",
    "opcheck",
    "sample",
    "u8",
    "u16",
    "u32",
    "u64",
    "verify",
]

_explain_errors(__name__)
