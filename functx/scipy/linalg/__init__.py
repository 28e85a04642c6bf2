"""Linear algebra with the names and signatures of `jax.scipy.linalg`, and `logm`."""

from functx.core.argument_errors import explain_errors as _explain_errors
from functx.core.missing_names import suggest_alternatives as _suggest_alternatives
from functx.scipy.linalg.decompositions import *
from functx.scipy.linalg.linear_systems import *
from functx.scipy.linalg.matrix_functions import *
from functx.scipy.linalg.special_matrices import *

_suggest_alternatives("jax.scipy.linalg", __name__)
_explain_errors(__name__)
