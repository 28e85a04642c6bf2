"""What NumPy keeps in `numpy.lib`."""

from functx.numpy.lib import stride_tricks as stride_tricks
