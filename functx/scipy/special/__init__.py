"""Special functions, with the names and signatures of `jax.scipy.special`, and some of SciPy's."""

from functx.core.argument_errors import explain_errors as _explain_errors
from functx.core.missing_names import suggest_alternatives as _suggest_alternatives
from functx.nn.activations import logsumexp
from functx.nn.activations import sigmoid as expit
from functx.scipy.special import formulas as _formulas
from functx.scipy.special.bessel import *
from functx.scipy.special.combinatorics import *
from functx.scipy.special.elementary import *
from functx.scipy.special.error_functions import *
from functx.scipy.special.exponential_integrals import *
from functx.scipy.special.hypergeometric import *
from functx.scipy.special.incomplete import *

_suggest_alternatives("jax.scipy.special", __name__)
_explain_errors(__name__)
