"""Verification: programs run in several independent ways that must agree."""

from functx.testing.verification.verify import verify, verify_before_compile, verify_program

__all__ = ["verify", "verify_before_compile", "verify_program"]
