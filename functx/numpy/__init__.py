"""NumPy's functions on traced and concrete arrays, with JAX's promotion of dtypes."""

from functx.numpy import fft, lib, linalg
from functx.numpy import methods as _methods  # isort: split

from functx.numpy import ufunc_methods as _ufunc_methods
from functx.numpy.arrays import ndarray
from functx.numpy.averages import *
from functx.numpy.choices import *
from functx.numpy.conditions import *
from functx.numpy.constants import *
from functx.numpy.constants import bool_ as bool
from functx.numpy.contraction import *
from functx.numpy.convolution import *
from functx.numpy.creation import *
from functx.numpy.derived_products import *
from functx.numpy.differences import *
from functx.numpy.elementary import *
from functx.numpy.grids import *
from functx.numpy.indexing import choose, take, take_along_axis
from functx.numpy.joining import *
from functx.numpy.matrices import *
from functx.numpy.nan_reductions import *
from functx.numpy.number_parts import *
from functx.numpy.operators import *
from functx.numpy.padding import *
from functx.numpy.quantiles import *
from functx.numpy.ranges import *
from functx.numpy.rearranging import *
from functx.numpy.reductions import *
from functx.numpy.running import *
from functx.numpy.sets import *
from functx.numpy.shapes import *
from functx.numpy.sorting import *
from functx.numpy.statistics import *
from functx.numpy.subscripts import *
from functx.numpy.whole_numbers import *
from functx.numpy.writing import *

del _methods, _ufunc_methods
