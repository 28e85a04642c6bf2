"""The module `numpy.lib`: `stride_tricks`."""

from functx.numpy.lib import stride_tricks as stride_tricks
