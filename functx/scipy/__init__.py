"""SciPy's functions, with the names and signatures of `jax.scipy`."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from functx.core.missing_names import load_on_first_use as _load_on_first_use
from functx.core.missing_names import suggest_alternatives as _suggest_alternatives

if _TYPE_CHECKING:
    from functx.scipy import (
        cluster,
        fft,
        integrate,
        interpolate,
        linalg,
        ndimage,
        optimize,
        signal,
        sparse,
        spatial,
        special,
        stats,
    )

__all__ = [
    "cluster",
    "fft",
    "integrate",
    "interpolate",
    "linalg",
    "ndimage",
    "optimize",
    "signal",
    "sparse",
    "spatial",
    "special",
    "stats",
]

_suggest_alternatives("jax.scipy", __name__)
_load_on_first_use(__name__, modules=__all__, names={}, others="functx.scipy.special")
