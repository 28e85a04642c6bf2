"""Checks for rules and derivatives, the same for functx's own primitives and for yours."""

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
from functx.testing.derivatives import check_grads
from functx.testing.gradcheck import gradcheck, gradgradcheck
from functx.testing.opcheck import opcheck
from functx.testing.reference import interpret
from functx.testing.rules import check_rules
from functx.testing.verification import verify

__all__ = [
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
    "interpret",
    "opcheck",
    "sample",
    "u8",
    "u16",
    "u32",
    "u64",
    "verify",
]
