"""`functx.scipy.stats` against SciPy's functions, and derivatives against differences of those."""

import importlib
import inspect
import math

import jax
import jax.scipy.stats as theirs
import numpy as np
import pytest
import scipy.stats as reference

import functx as fx
from functx.scipy import stats as ours
from functx.scipy.stats.distribution import DISTRIBUTIONS
from functx.testing.reference import interpret_in_numpy

random = np.random.RandomState(0)
SIZE = 6
RANGES = {
    "a": (0.3, 5.0),
    "b": (0.3, 5.0),
    "beta": (0.6, 4.0),
    "c": (0.05, 0.95),
    "df": (0.5, 9.0),
    "kappa": (0.1, 6.0),
    "loc": (-1.0, 1.0),
    "mu": (0.2, 9.0),
    "p": (0.05, 0.95),
    "q": (0.05, 0.95),
    "scale": (0.4, 2.0),
    ("truncnorm", "a"): (-4.0, 0.5),
    ("truncnorm", "b"): (1.0, 4.0),
}
"""The ranges of arguments."""
STANDARD = {
    **dict.fromkeys(("beta", "uniform"), (0.05, 0.95)),
    **dict.fromkeys(("chi2", "expon", "gamma"), (0.1, 4.0)),
    **dict.fromkeys(("pareto",), (1.1, 4.0)),
    **dict.fromkeys(("truncnorm",), (0.5, 1.0)),
    **dict.fromkeys(("wrapcauchy",), (0.1, 6.0)),
}
"""The ranges of (x - loc) / scale inside of the supports."""


def functions():
    return [(name, function) for name, x in DISTRIBUTIONS.items() for function in x.functions]


def arguments(name, function):
    """Arguments at which the function is smooth, as a dictionary."""
    drawn = {}
    variable, *rest = DISTRIBUTIONS[name].arguments(function)
    for argument in rest:
        low, high = RANGES.get((name, argument), RANGES.get(argument, (0, 0)))
        drawn[argument] = random.uniform(low, high, SIZE)
    if "n" in drawn:
        drawn["n"] = random.randint(3, 9, SIZE).astype(float)
    if variable == "k":
        drawn["loc"] = np.ones(SIZE)
        k = random.randint(1, 4, SIZE) if name != "bernoulli" else random.randint(0, 2, SIZE)
        x = k + (function != "cdf") * 1.0
        drawn = drawn if (name, function) != ("bernoulli", "cdf") else {"p": drawn["p"]}
    elif variable == "x" and function not in ("ppf", "isf"):
        z = random.uniform(*STANDARD.get(name, (-3.0, 3.0)), SIZE)
        x = z * drawn.get("scale", 1.0) + drawn.get("loc", 0.0)
    else:
        x = random.uniform(*RANGES.get(variable, RANGES["q"]), SIZE)
        x = random.uniform(*RANGES["q"], SIZE) if function in ("ppf", "isf") else x
    return {variable: x, **drawn}


CALLS = {call: list(arguments(*call).values()) for call in functions()}


LOOPS = ("beta", "chi2", "gamma", "gennorm", "poisson", "t")


def call(namespace, name, function, args):
    return getattr(getattr(namespace, name), function)(*args)


def test_values_in_single_precision_are_those_of_scipy():
    # Each incomplete function is a loop, which takes long to compile.
    compiled = [("gamma", "logsf"), ("gamma", "ppf")]
    calls = {
        c: xs for c, xs in CALLS.items() if c[0] not in LOOPS or c[1] == "logpdf" or c in compiled
    }
    args = {c: [x.astype("float32") for x in xs] for c, xs in calls.items()}
    found = fx.jit(lambda args: {c: call(ours, *c, xs) for c, xs in args.items()})(args)
    for c, xs in args.items():
        assert found[c].dtype == "float32"
        expected = call(reference, *c, [x.astype("float64") for x in xs])
        np.testing.assert_allclose(found[c], expected, 1e-4, 1e-5, err_msg=str(c))


def differences(name, function, args, i, step=1e-5):
    """The central difference of SciPy's function in argument `i`."""
    below, above = ([x - s * (j == i) for j, x in enumerate(args)] for s in (step, -step))
    return (call(reference, name, function, above) - call(reference, name, function, below)) / (
        2 * step
    )


def test_values_are_those_of_scipy_and_derivatives_those_of_differences():
    calls = {c: CALLS[c] for c in sorted(CALLS)}

    def values_and_gradients(calls):
        def total(xs, c):
            out = call(ours, *c, xs)
            return out.sum(), out

        return [fx.grad(lambda xs, c=c: total(xs, c), has_aux=True)(xs) for c, xs in calls.items()]

    with jax.enable_x64(True):
        program = fx.make_ir(values_and_gradients)(calls)
        found = iter(interpret_in_numpy(program, *jax.tree.leaves(calls)))
    for c, xs in calls.items():
        derivatives = [next(found) for _ in xs]
        expected = call(reference, *c, xs)
        np.testing.assert_allclose(next(found), expected, 1e-9, 1e-10, err_msg=str(c))
        for i, argument in enumerate(DISTRIBUTIONS[c[0]].arguments(c[1])):
            if argument in ("k", "n") or (
                argument == "loc" and DISTRIBUTIONS[c[0]].variable == "k"
            ):
                continue
            expected = differences(*c, xs, i)
            message = f"{c} {argument}"
            np.testing.assert_allclose(derivatives[i], expected, 1e-5, 1e-7, err_msg=message)


def test_signatures_are_those_of_jax():
    for name, module in inspect.getmembers(theirs, inspect.ismodule):
        for function, value in inspect.getmembers(module, callable):
            if function.startswith("_") or name in (
                "dirichlet",
                "multinomial",
                "multivariate_normal",
            ):
                continue
            if not hasattr(getattr(ours, name), function):
                continue
            found = inspect.signature(getattr(getattr(ours, name), function))
            assert [(p.name, p.default) for p in found.parameters.values()] == [
                (p.name, p.default) for p in inspect.signature(value).parameters.values()
            ], (name, function)


def test_a_distribution_is_a_module():
    module = importlib.import_module("functx.scipy.stats.norm")
    assert module is ours.norm
    assert module.logpdf.__module__ == "functx.scipy.stats.norm"
    assert inspect.ismodule(module)
    assert float(module.logpdf(x=0.5, scale=2.0)) == pytest.approx(reference.norm.logpdf(0.5, 0, 2))
    with pytest.raises(TypeError, match="missing a required argument: 'x'"):
        module.logpdf(loc=1.0)
    with pytest.raises(fx.errors.DTypeError, match="arrays must be real"):
        module.logpdf(1j)


def test_a_program_holds_one_operation_for_a_call():
    program = fx.make_ir(ours.gamma.logpdf)(np.ones(3, "float32"), 2.0)
    assert str(program).count("distribution_function[function='gamma.logpdf'] ") == 1


def test_derivatives_hold_where_a_distribution_has_its_median_or_end():
    with jax.enable_x64(True):
        points = {
            ours.t.cdf: (0.0, 1.7),
            ours.gennorm.cdf: (0.0, 0.7),
            ours.laplace.logpdf: (0.5, 0.5),
            ours.gamma.logpdf: (0.0, 1.0),
            ours.expon.logcdf: (2.0, 0.5),
            ours.beta.logpdf: (1.0, 2.0, 1.0),
            ours.norm.logcdf: (math.inf,),
            ours.cauchy.ppf: (0.5,),
            ours.gumbel_r.cdf: (-800.0,),
            ours.gumbel_l.logcdf: (800.0,),
        }
        found = {f: fx.grad(f)(*args) for f, args in points.items()}
    expected = [
        reference.t.pdf(0, 1.7),
        reference.gennorm.pdf(0, 0.7),
        0.0,
        -1.0,
        reference.expon.pdf(1.5) / reference.expon.cdf(1.5),
        1.0,
        0.0,
        math.pi,
        0.0,
        0.0,
    ]
    np.testing.assert_allclose(list(found.values()), expected, 1e-6)


def test_the_beta_distribution_of_shapes_1_has_derivatives_in_its_shapes():
    slopes = fx.grad(ours.beta.logpdf, (1, 2))(np.float32(0.5), 1.0, 1.0)
    np.testing.assert_allclose(slopes, [1 - math.log(2)] * 2, 1e-5)


def test_quantiles_near_the_end_of_the_support_are_those_of_scipy():
    with jax.enable_x64(True):
        found = ours.beta.isf(1e-300, 0.3, 100.0)
    np.testing.assert_allclose(found, reference.beta.isf(1e-300, 0.3, 100.0), 1e-12)


def test_logarithms_of_probabilities_hold_far_in_the_tails():
    x = np.float32(-60.0)
    found = [
        ours.norm.logcdf(x),
        ours.norm.logsf(np.float32(4.9)),
        ours.norm.logcdf(np.float32(4.9)),
        ours.logistic.logsf(np.float32(120.0)),
        ours.gumbel_r.logsf(np.float32(130.0)),
        ours.gumbel_l.logcdf(np.float32(-130.0)),
        ours.laplace.logcdf(np.float32(-130.0)),
        ours.cauchy.logcdf(np.float32(-1e30)),
        ours.truncnorm.logsf(np.float32(25.0), np.float32(-1.0), np.float32(26.0)),
    ]
    wide = [
        reference.norm.logcdf(-60.0),
        reference.norm.logsf(4.9),
        reference.norm.logcdf(4.9),
        -120.0,
        -130.0,
        -130.0,
        -130.0 - math.log(2),
        -math.log(math.pi) - 30 * math.log(10),
        reference.truncnorm.logsf(25.0, -1.0, 26.0),
    ]
    np.testing.assert_allclose(found, wide, 2e-5)
    slope = fx.grad(ours.norm.logcdf)(x)
    np.testing.assert_allclose(slope, 60.0 + 1 / 60.0, 1e-4)
    assert np.isfinite(fx.grad(fx.grad(ours.norm.logcdf))(x))


def test_large_parameters_keep_the_digits():
    found = [
        ours.poisson.logpmf(np.float32(1e6), np.float32(1e6)),
        ours.gamma.logpdf(np.float32(1e5), np.float32(1e5)),
        ours.binom.logpmf(np.float32(5e5), np.float32(1e6), np.float32(0.5)),
        ours.beta.logpdf(np.float32(0.5), np.float32(1e5), np.float32(1e5)),
        ours.vonmises.logpdf(np.float32(1e-3), np.float32(1e6)),
    ]
    expected = [
        reference.poisson.logpmf(1e6, 1e6),
        reference.gamma.logpdf(1e5, 1e5),
        reference.binom.logpmf(5e5, 1e6, 0.5),
        reference.beta.logpdf(0.5, 1e5, 1e5),
        reference.vonmises.logpdf(1e-3, 1e6),
    ]
    np.testing.assert_allclose(found, expected, 1e-4)


def test_parameters_out_of_range_give_nan():
    values = [
        ours.norm.cdf(0.0, 0.0, -1.0),
        ours.gamma.logpdf(1.0, -1.0),
        ours.beta.pdf(0.5, 0.0, 1.0),
        ours.truncnorm.pdf(0.5, 1.0, 0.0),
        ours.norm.ppf(1.5),
        ours.wrapcauchy.pdf(1.0, 1.5),
    ]
    assert np.all(np.isnan(values))


def test_probabilities_at_the_ends_are_those_of_scipy():
    k, n, p = np.meshgrid(
        [-1, 0, 1, 2, 39, 40, 1000], [-1, 0, 1, 2, 40, 1000], [-0.1, 0, 1e-3, 0.3, 0.999, 1, 1.1]
    )
    q, size = np.where(p == 0, 1e-3, p), n + 0.5
    cases = [("binom", k, n, p), ("nbinom", k, size, q), ("betabinom", k, n, p + 0.1, 2 - p)]
    cases += [("bernoulli", k, p), ("geom", k, q), ("poisson", k, p)]
    calls = {
        (name, function): [x.astype("f") for x in xs]
        for name, *xs in cases
        for function in ("pmf", "logpmf")
    }
    found = fx.jit(lambda calls: {c: call(ours, *c, xs) for c, xs in calls.items()})(calls)
    for c, xs in calls.items():
        expected = call(reference, *c, [x.astype(float) for x in xs])
        tolerance = 1e-5 if c[0] == "betabinom" else 1e-12
        np.testing.assert_allclose(found[c], expected, 1e-4, tolerance, err_msg=str(c))


def test_quantiles_at_the_ends_are_those_of_the_support():
    q = np.array([0.0, 1.0, 1.5], "float32")
    np.testing.assert_array_equal(ours.t.ppf(q, 3.0), [-math.inf, math.inf, math.nan])


def test_densities_have_their_derivatives_where_they_are_zero():
    # Each with the argument that is differentiated, and the first and the second derivative.
    cases = [
        (ours.gamma.pdf, 0, (0.0, 2.0), 1.0, -2.0),
        (ours.gamma.pdf, 0, (0.0, 40.0), 0.0, 0.0),
        (ours.gamma.pdf, 0, (0.0, 0.5), -np.inf, np.inf),
        (ours.chi2.pdf, 0, (0.0, 4.0), 0.25, -0.25),
        (ours.beta.pdf, 0, (0.0, 2.0, 3.0), 12.0, -48.0),
        (ours.beta.pdf, 0, (1.0, 1.0, 2.0), -2.0, 0.0),
        (ours.binom.pmf, 2, (1.0, 10.0, 0.0), 10.0, -180.0),
        (ours.binom.pmf, 2, (9.0, 10.0, 1.0), -10.0, -180.0),
        (ours.binom.logpmf, 1, (0.0, 0.0, 0.5), -np.log(2), 0.0),
        (ours.poisson.pmf, 1, (1.0, 0.0), 1.0, -2.0),
        (ours.poisson.pmf, 1, (30.0, 0.0), 0.0, 0.0),
        (ours.bernoulli.pmf, 1, (0.0, 1.0), -1.0, 0.0),
        (ours.geom.pmf, 1, (3.0, 1.0), 0.0, 2.0),
        (ours.nbinom.pmf, 2, (1.0, 3.0, 1.0), -3.0, -18.0),
        (fx.scipy.special.boxcox, 1, (0.0, 0.5), 4.0, -16.0),
        (fx.scipy.special.boxcox, 0, (0.0, 2.0), 0.0, 1.0),
        (fx.scipy.special.boxcox1p, 0, (-1.0, 1.0), 1.0, 0.0),
        (
            lambda p: ours.multinomial.pmf(np.array([1, 1]), 2, fx.numpy.stack([p, 1 - p])),
            0,
            (0.0,),
            2.0,
            -4.0,
        ),
    ]

    def derivatives(*arguments):
        out = []
        for (function, i, _, *_), values in zip(cases, arguments, strict=True):
            slope = fx.grad(function, i)
            out += [slope(*values), fx.grad(slope, i)(*values)]
        return out

    calls = [values for _, _, values, *_ in cases]
    with jax.enable_x64(True):
        found = interpret_in_numpy(fx.make_ir(derivatives)(*calls), *jax.tree.leaves(calls))
    expected = [x for *_, first, second in cases for x in (first, second)]
    np.testing.assert_allclose(np.stack(found), expected, rtol=1e-9, atol=1e-9)


def test_the_logarithm_of_nearly_the_whole_of_a_truncated_normal_keeps_its_digits():
    z = np.array([12.0, 10.1, 15.0], "float32")
    found = ours.truncnorm.logcdf(z, 10.0, 20.0)
    np.testing.assert_allclose(
        found, reference.truncnorm.logcdf(z.astype(float), 10, 20), rtol=1e-3
    )


def test_the_logarithm_of_a_density_is_nan_exactly_where_the_scale_is_not_positive():
    names = "norm", "cauchy", "laplace", "uniform", "expon"
    x, scale = np.meshgrid(
        [-math.inf, -1, 0.5, math.inf], [-math.inf, -1, 0, 2, math.inf, math.nan]
    )
    found = fx.jit(lambda *args: [getattr(ours, n).logpdf(*args) for n in names])(x, 0.5, scale)
    with np.errstate(all="ignore"):
        expected = [getattr(reference, n).logpdf(x, 0.5, scale) for n in names]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    derivatives = fx.grad(ours.norm.logpdf, (0, 1, 2))(math.inf, 0.5, 2.0)
    np.testing.assert_array_equal(derivatives, [-math.inf, math.inf, math.inf])
