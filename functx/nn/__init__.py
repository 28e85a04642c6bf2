"""Functions of neural networks: those of `jax.nn`, losses and norms by PyTorch's names; and `Module`.

>>> import numpy
>>> from functx import nn
>>> nn.relu(numpy.array([-1.0, 0.0, 2.0])).tolist()
[0.0, 0.0, 2.0]
"""

from functx.core.argument_errors import explain_errors as _explain_errors
from functx.core.missing_names import suggest_alternatives as _suggest_alternatives
from functx.nn import initializers as initializers
from functx.nn.activations import *
from functx.nn.attention import *
from functx.nn.containers import *
from functx.nn.layers import *
from functx.nn.losses import *
from functx.nn.module import *
from functx.nn.normalization import *
from functx.nn.parameters import *
from functx.nn.scaled_products import *

_suggest_alternatives("jax.nn", __name__)
_explain_errors(__name__)
