"""Tools around programs and the package itself."""

from functx.tools.explain_nan import explain_nan

__all__ = ["explain_nan"]
