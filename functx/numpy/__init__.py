"""NumPy's functions on traced and concrete arrays, with JAX's promotion of dtypes."""

from functx.core.argument_errors import explain_errors as _explain_errors
from functx.core.missing_names import suggest_alternatives as _suggest_alternatives
from functx.numpy import array_api, fft, lib, linalg
from functx.numpy import tracer_methods as _methods  # isort: split

from functx.numpy import array_protocols as _protocols
from functx.numpy import tracer_conversions as _conversions
from functx.numpy import wrapper_methods as _wrapper_methods
from functx.numpy.array_creation import *
from functx.numpy.bits import *
from functx.numpy.cumulative import *
from functx.numpy.einstein_summation import *
from functx.numpy.floating_point import *
from functx.numpy.histograms import *
from functx.numpy.index_tricks import *
from functx.numpy.indexing import choose, take, take_along_axis
from functx.numpy.input_output import *
from functx.numpy.inspection import *
from functx.numpy.joining import *
from functx.numpy.matrices import *
from functx.numpy.mutating_functions import *
from functx.numpy.nan_reductions import *
from functx.numpy.ndarray_methods import ndarray
from functx.numpy.operators import *
from functx.numpy.polynomials import *
from functx.numpy.rearranging import *
from functx.numpy.reductions import *
from functx.numpy.scalar_types import *
from functx.numpy.scalar_types import bool_ as bool
from functx.numpy.setops import *
from functx.numpy.shapes import *
from functx.numpy.sorting_and_searching import *
from functx.numpy.statistics import *
from functx.numpy.tensor_contractions import *
from functx.numpy.ufunc_methods import *
from functx.numpy.ufuncs import *
from functx.numpy.vectorization import *
from functx.numpy.windows import *

del _conversions, _methods, _protocols, _wrapper_methods

_suggest_alternatives("jax.numpy", __name__)
_explain_errors(__name__)

__array_api_version__ = array_api.__array_api_version__
__array_namespace_info__ = array_api.ArrayNamespaceInfo
array_api.load_special_functions(__name__)
