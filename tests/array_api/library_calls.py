"""Functions of SciPy, scikit-learn and einops on traced arrays, against themselves on NumPy arrays.

Run as a program with the name of a library and SCIPY_ARRAY_API=1, which SciPy reads on import.
"""

import sys

import numpy


def scipy_calls():
    import scipy
    from scipy import fft, integrate, signal, special, stats

    calls = {
        "expit": special.expit,
        "gammaln": special.gammaln,
        "betainc": lambda x: special.betainc(2.0, 3.0, x / 3),
        "ndtri": lambda x: special.ndtri(x / 3),
        "logsumexp": special.logsumexp,
        "log_softmax": special.log_softmax,
        "rel_entr": lambda x: special.rel_entr(x, 1 / x),
        "zscore": stats.zscore,
        "skew": stats.skew,
        "kurtosis": stats.kurtosis,
        "entropy": stats.entropy,
        "gmean": stats.gmean,
        "circmean": stats.circmean,
        "pearsonr": lambda x: stats.pearsonr(x, x**4)[0],
        "pearsonr_p": lambda x: stats.pearsonr(x, x**4).pvalue,
        "ttest_1samp": lambda x: stats.ttest_1samp(x, 1.2).pvalue,
        "bartlett": lambda x: stats.bartlett(x, x**2).pvalue,
        "fftconvolve": lambda x: signal.fftconvolve(x, x[:3]),
        "hilbert": lambda x: abs(signal.hilbert(x)),
        "freqz": lambda x: abs(signal.freqz(x, worN=5)[1]),
        "rfft": lambda x: abs(fft.rfft(x)),
        "trapezoid": integrate.trapezoid,
    }
    if numpy.lib.NumpyVersion(scipy.__version__) >= "1.18.0":
        # They ask for the values of all arrays but JAX's, to find nan in them.
        for name in ["skew", "kurtosis", "entropy", "gmean", "circmean", "ttest_1samp", "bartlett"]:
            del calls[name]
    return calls


def sklearn_calls():
    import sklearn
    from sklearn.metrics import pairwise

    # Tests for nan would need values.
    sklearn.set_config(array_api_dispatch=True, assume_finite=True)
    names = "cosine_similarity euclidean_distances rbf_kernel polynomial_kernel sigmoid_kernel "
    names += "paired_euclidean_distances paired_cosine_distances"

    def on_two_matrices(metric):
        def call(x):
            xp = x.__array_namespace__()
            rows = xp.reshape(x, (3, 2))
            return metric(rows, xp.flip(rows, axis=1) ** 2)

        return call

    return {name: on_two_matrices(getattr(pairwise, name)) for name in names.split()}


def einops_calls():
    import einops

    def on_a_matrix(call):
        return lambda x: call(x.reshape(2, 3) ** 2)

    return {
        "rearrange": on_a_matrix(lambda x: einops.rearrange(x, "a (b c) -> c (b a)", c=3)),
        "reduce": on_a_matrix(lambda x: einops.reduce(x, "(a b) c -> a", "mean", b=1)),
        "repeat": on_a_matrix(lambda x: einops.repeat(x, "a b -> (a c) b", c=2)),
        "einsum": on_a_matrix(lambda x: einops.einsum(x, x, "a b, c b -> a c")),
        "pack": on_a_matrix(lambda x: einops.pack([x, x[0]], "* b")[0]),
    }


def check(calls):
    """Values and gradients of `calls` under `jit` of `vmap`, against NumPy's and their differences."""
    import functx
    import functx.numpy as np

    direction, step = numpy.cos(numpy.arange(6.0)), 1e-5
    rows = numpy.array([[0.3, 1.7, 0.8, 2.1, 1.4, 0.5], [1.9, 0.4, 1.1, 0.7, 2.3, 1.5]])

    def values_and_slopes(x):
        slopes = [functx.grad(lambda x, f=f: np.sum(f(x)))(x) @ direction for f in calls.values()]
        return [f(x) for f in calls.values()], slopes

    values, slopes = functx.jit(functx.vmap(values_and_slopes))(rows)
    for name, value, slope in zip(calls, values, slopes, strict=True):
        f = calls[name]
        for i, row in enumerate(rows):
            numpy.testing.assert_allclose(value[i], f(row), rtol=1e-9, atol=1e-12, err_msg=name)
            above, below = [numpy.sum(f(row + sign * step * direction)) for sign in (1, -1)]
            difference = (above - below) / (2 * step)
            numpy.testing.assert_allclose(slope[i], difference, rtol=1e-5, atol=1e-8, err_msg=name)


if __name__ == "__main__":
    import jax

    jax.config.update("jax_enable_x64", True)
    for library in sys.argv[1:]:
        found = globals()[f"{library}_calls"]()
        check(found)
        print(library, len(found))
