"""Reductions and statistics: values and types against JAX, and special points."""

import jax
import jax.numpy as jnp
import numpy
import pytest

import functx.numpy as np
from functx import grad, jit, jvp, lax, make_ir, vmap
from functx.core.errors import (
    ArgumentError,
    AxisError,
    ConcretizationError,
    DTypeError,
    ShapeError,
    ValueRangeError,
)
from tests.numpy.tables import calls, check_at_once, check_types, check_values

SUMS = calls(
    """
    np.sum(f)
    np.sum(f,axis=0)
    np.sum(f,axis=-1,keepdims=True)
    np.sum(t,axis=(0,-1))
    np.sum(t,axis=())
    np.sum(b)
    np.sum(u8)
    np.sum(i8)
    np.sum(i,axis=1)
    np.sum(bf)
    np.sum(h,dtype='float32')
    np.sum(1.)
    np.sum(1)
    np.sum(c)
    np.sum(i,dtype='float32')
    np.sum(f,where=b2)
    np.sum(f,where=b)
    np.sum(f,initial=2)
    np.sum(i,initial=2)
    np.sum(f,axis=1,initial=2,keepdims=True)
    np.sum(none)
    np.sum(none,axis=0)
    np.sum(f,dtype=int)
    np.prod(f)
    np.prod(b)
    np.prod(i,axis=0)
    np.prod(u8)
    np.prod(f,where=b2,axis=1)
    np.prod(bf,axis=-1)
    np.prod(f,initial=3)
    np.prod(none)
    np.max(f)
    np.max(f,axis=0)
    np.max(t,axis=(0,2),keepdims=True)
    np.max(b)
    np.max(1.)
    np.max(odd)
    np.max(i)
    np.max(c)
    np.min(c)
    np.min(f,axis=1)
    np.min(u8)
    np.min(odd)
    np.amax(f)
    np.max(f,initial=2,where=b2)
    np.max(f,initial=.5)
    np.min(c,initial=0,where=b)
    np.max(none,axis=1)
    np.max(none,initial=1)
    np.any(i)
    np.any(i,axis=0)
    np.all(i,axis=1,keepdims=True)
    np.all(f)
    np.any(b2,axis=1)
    np.all(b2,where=b)
    np.any(none)
    np.all(none,axis=0)
    np.argmax(f)
    np.argmax(f,axis=1)
    np.argmin(f,axis=0,keepdims=True)
    np.argmin(f,keepdims=True)
    np.argmax(odd)
    np.argmax(i,axis=-1)
    np.argmax(b)
    np.ptp(f)
    np.ptp(i,axis=1)
    np.ptp(f,axis=0,keepdims=True)
    np.count_nonzero(i)
    np.count_nonzero(i,axis=1)
    np.count_nonzero(b2,axis=0,keepdims=True)
    """
)
AVERAGES = calls(
    """
    np.mean(f)
    np.mean(f,axis=0)
    np.mean(t,axis=(0,-1),keepdims=True)
    np.mean(i)
    np.mean(1)
    np.mean(1.)
    np.mean(bf)
    np.mean(b)
    np.mean(c,axis=0)
    np.mean(f,dtype=int)
    np.mean(f,dtype='bfloat16')
    np.mean(f,where=b2)
    np.mean(f,where=b,axis=0)
    np.mean(f,axis=1,where=b)
    np.mean(none)
    np.mean(none,axis=1)
    np.mean(h)
    np.mean(u8)
    np.var(f)
    np.var(f,axis=0)
    np.var(t,axis=(0,-1),keepdims=True)
    np.var(i)
    np.var(1.)
    np.var(c)
    np.var(bf)
    np.var(f,ddof=1)
    np.var(f,axis=1,ddof=1)
    np.var(f,correction=1)
    np.var(f,where=b2)
    np.var(f,where=b,axis=1,ddof=1)
    np.var(f,dtype='float32')
    np.std(f)
    np.std(c,axis=0)
    np.std(f,axis=1,keepdims=True,ddof=1)
    np.std(i,axis=0)
    np.std(bf)
    np.var(f,mean=np.mean(f))
    np.var(f,axis=1,mean=np.mean(f,axis=1,keepdims=True))
    np.average(f)
    np.average(f,axis=1)
    np.average(f,weights=f)
    np.average(f,axis=1,weights=g)
    np.average(f,axis=1,weights=g,returned=True)
    np.average(i,returned=True)
    np.average(i,weights=i*i)
    np.average(f,axis=0,keepdims=True)
    """
)
WITHOUT_NAN = calls(
    """
    np.nansum(odd2)
    np.nansum(i)
    np.nansum(gaps,axis=0)
    np.nanprod(gaps)
    np.nanmean(gaps)
    np.nanmean(i)
    np.nanmean(np.array([numpy.nan,numpy.nan]))
    np.nanvar(gaps)
    np.nanstd(gaps,ddof=1)
    np.nanmax(odd2)
    np.nanmin(odd2)
    np.nanmax(i)
    np.nanmax(np.array([numpy.nan,numpy.nan]))
    np.nanmin(gaps,keepdims=True)
    np.nanargmax(odd2)
    np.nanargmin(odd2)
    np.nanargmax(i,axis=1)
    np.nanargmax(np.array([[numpy.nan,numpy.nan],[1,2]]),axis=1)
    np.nancumsum(gaps)
    np.nancumprod(gaps)
    """
)
NEIGHBOURS = calls(
    """
    np.cumsum(f)
    np.cumsum(f,axis=0)
    np.cumsum(b)
    np.cumsum(u8)
    np.cumsum(i,axis=1)
    np.cumsum(f,axis=-1,dtype='float32')
    np.cumprod(f,axis=1)
    np.cumprod(i3)
    np.cumsum(bf)
    np.cumulative_sum(g)
    np.cumulative_sum(f,axis=1,include_initial=True)
    np.cumulative_sum(u8)
    np.cumulative_prod(g,include_initial=True)
    np.diff(f)
    np.diff(f,axis=0)
    np.diff(i,n=2)
    np.diff(b)
    np.diff(f,prepend=0)
    np.diff(f,append=f)
    np.diff(f,prepend=1,append=2,axis=0)
    np.diff(g,n=3)
    np.diff(g,n=0)
    np.diff(g,n=5)
    np.ediff1d(f)
    np.trapezoid(f)
    np.trapezoid(f,axis=0)
    np.trapezoid(f,dx=.5)
    np.trapezoid(f,g)
    np.trapezoid(f,f*2,axis=0)
    np.trapezoid(i)
    np.gradient(g)
    np.gradient(f)
    np.gradient(f,axis=1)
    np.gradient(f,2.)
    np.gradient(f,2.,3.)
    np.gradient(i3)
    """
)
STATISTICS = calls(
    """
    np.median(f)
    np.median(f,axis=0)
    np.median(f,axis=1,keepdims=True)
    np.median(i)
    np.median(i,axis=1)
    np.median(bf)
    np.median(odd)
    np.median(t,axis=(0,1))
    np.quantile(f,.3)
    np.quantile(f,.5,axis=1)
    np.quantile(f,numpy.array([.25,.75]),axis=1)
    np.quantile(f,.3,method='lower')
    np.quantile(f,.3,method='higher')
    np.quantile(f,.3,method='midpoint')
    np.quantile(f,.33,method='nearest')
    np.quantile(f,g/3)
    np.quantile(f,g/3,axis=0,method='nearest')
    np.quantile(f,g[0]/3,axis=1,method='higher')
    np.quantile(bf,.3)
    np.quantile(i,.3)
    np.quantile(f,1.)
    np.quantile(f,0.)
    np.percentile(f,30)
    np.percentile(f,numpy.array([10.,90]),axis=0)
    np.nanmedian(gaps)
    np.nanmedian(f,axis=1)
    np.nanquantile(gaps,.3)
    np.nanquantile(gaps,numpy.array([.3,.6]))
    np.nanpercentile(gaps,30,keepdims=True)
    np.nanquantile(np.array([[numpy.nan,numpy.nan],[1,2]]),.5,axis=1)
    np.quantile(np.array([[numpy.nan,2.],[1,2]]),.25,axis=1)
    np.bincount(i3,length=5)
    np.bincount(u,weights=g,length=10)
    np.bincount(i3,length=2)
    np.histogram(f,3)
    np.histogram(g,numpy.array([0.,1.,1.5,3]))
    np.histogram(f,4,range=(-1,1))
    np.histogram(f,4,density=True)
    np.histogram(g,3,weights=f[0])
    np.histogram_bin_edges(f,5)
    np.cov(f)
    np.cov(f,rowvar=False)
    np.cov(f[:1],rowvar=False,ddof=0)
    np.cov(f.T,f[:1],rowvar=False)
    np.cov(g)
    np.cov(g,f[0])
    np.cov(f,bias=True)
    np.cov(f,ddof=0)
    np.cov(c,c*2)
    np.cov(i)
    np.cov(f,fweights=i3)
    np.cov(f,aweights=g)
    np.cov(f,fweights=i3,aweights=g)
    np.corrcoef(f)
    np.corrcoef(g,f[0])
    np.corrcoef(c,c+1j*g)
    np.corrcoef(f,rowvar=False)
    """
)


@pytest.mark.parametrize("table", [SUMS, AVERAGES, WITHOUT_NAN, NEIGHBOURS, STATISTICS])
def test_values_and_types_are_those_of_jax(table):
    check_values(table)


@pytest.mark.parametrize("table", [SUMS, AVERAGES, WITHOUT_NAN, NEIGHBOURS, STATISTICS])
def test_types_are_those_of_jax_with_64_bits(table, x64):
    check_types(table)


def test_numpy_operands_give_numpy_results_outside_a_trace():
    check_at_once(
        calls(
            """
    np.sum(f)
    np.sum(u8)
    np.sum(1.0)
    np.mean(bf)
    np.var(f, where=b, axis=1, ddof=1)
    np.std(c, axis=0)
    np.max(c)
    np.argmax(f, axis=1)
    np.nanmax(odd2)
    np.nanmedian(gaps)
    np.quantile(f, g / 3, axis=0)
    np.percentile(f, 30)
    np.cumulative_sum(f, axis=1, include_initial=True)
    np.gradient(f, 2.0, 3.0)
    np.trapezoid(f, f * 2, axis=0)
    np.average(f, axis=1, weights=g, returned=True)
    np.bincount(u, weights=g, length=10)
    np.histogram(f, 4, density=True)
    np.cov(c, c * 2)
    np.corrcoef(f)
    """
        )
    )


def gradients(*cases):
    """The gradients of functions at vectors, compiled together."""
    points = [numpy.array(x, "float32") for _, x in cases]
    found = jit(lambda: [grad(f)(x) for (f, _), x in zip(cases, points, strict=True)])()
    return [x.tolist() for x in found]


nan, inf = numpy.nan, numpy.inf


def test_variances_of_equal_elements_have_zero_derivatives():
    same = [2.0, 2.0, 2.0]
    assert (
        gradients(
            (np.std, same),
            (np.var, same),
            (lambda x: np.std(x, ddof=1), same),
            (lambda x: np.std(x.reshape(3, 1), axis=1).sum(), [1.0, 2.0, 3.0]),
            (lambda x: np.nanstd(x), [2.0, nan, 2.0]),
        )
        == [[0.0] * 3] * 5
    )
    (found,) = gradients((np.std, [1.0, 2.0, 6.0]))
    # d std / dx_i = (x_i - mean) / (n std)
    numpy.testing.assert_allclose(found, (numpy.array([-2, -1, 3])) / (3 * (14 / 3) ** 0.5), 1e-5)
    assert float(jvp(np.std, (numpy.ones(3),), (numpy.arange(3.0),))[1]) == 0.0


def test_extrema_share_the_derivative_among_ties():
    assert gradients(
        (np.max, [1.0, 3.0, 3.0]),
        (np.min, [1.0, 1.0, 3.0]),
        (lambda x: np.max(x, initial=3.0), [1.0, 3.0, 2.0]),
        (lambda x: np.ptp(x), [1.0, 3.0, 3.0]),
        (np.nanmax, [nan, 3.0, 3.0]),
        (lambda x: np.max(x, where=x < 4, initial=-inf), [5.0, 3.0, 2.0]),
    ) == [[0, 0.5, 0.5], [0.5, 0.5, 0], [0, 0.5, 0], [-1, 0.5, 0.5], [0, 0.5, 0.5], [0, 1, 0]]


def test_masked_elements_do_not_affect_results_or_derivatives():
    x = [nan, 1.0, 3.0]
    assert gradients(
        (np.nansum, x),
        (np.nanmean, x),
        (np.nanprod, x),
        (np.nanvar, x),
        (np.nanmedian, x),
        (lambda x: np.nanquantile(x, 0.25), x),
        (lambda x: np.sum(x, where=x > 1), x),
        (lambda x: np.mean(np.log(x), where=x > 0), [0.0, -1.0, 2.0]),
        (lambda x: np.nancumsum(x).sum(), x),
    ) == [
        [0, 1, 1],
        [0, 0.5, 0.5],
        [0, 3, 1],
        [0, -1, 1],
        [0, 0.5, 0.5],
        [0, 0.75, 0.25],
        [0, 0, 1],
        [0, 0, 0.5],
        [0, 2, 1],
    ]


def test_reductions_of_nothing():
    none = numpy.zeros((0, 3), "float32")
    assert float(np.sum(none)) == 0 and float(np.prod(none)) == 1
    assert np.isnan(np.mean(none)) and np.max(none, axis=1).shape == (0,)
    assert not np.any(none) and np.all(none)
    assert gradients((lambda x: np.sum(x) + np.prod(x), none)) == [none.tolist()]
    nothing = numpy.array([nan, nan], "float32")
    for f in (np.nanmax, np.nanmin, np.nanmean, np.nanmedian):
        assert np.isnan(f(nothing))
    assert np.nanargmax(nothing) == -1 and float(np.nansum(nothing)) == 0
    assert gradients((np.nansum, nothing), (np.nanmax, nothing)) == [[0, 0], [0, 0]]


def test_products_and_cumulative_products_with_zeros():
    assert gradients(
        (np.prod, [2.0, 0.0, 3.0]),
        (np.prod, [0.0, 0.0, 3.0]),
        (lambda x: np.cumprod(x).sum(), [2.0, 0.0, 3.0]),
        (lambda x: np.cumsum(x)[-1], [2.0, 0.0, 3.0]),
    ) == [[0, 6, 0], [0, 0, 0], [1, 8, 0], [1, 1, 1]]


def test_order_statistics_have_the_derivatives_of_the_elements_they_take():
    x = [3.0, 1.0, 2.0, 10.0]
    assert gradients(
        (np.median, x),
        (lambda x: np.quantile(x, 0.25), x),
        (lambda x: np.quantile(x, 0.3, method="lower"), x),
        (lambda x: np.median(x.reshape(2, 2), axis=1).sum(), x),
    ) == [[0.5, 0, 0.5, 0], [0, 0.25, 0.75, 0], [0, 1, 0, 0], [0.5] * 4]
    # Between 2 and 3, where three gaps make the whole: 3 * (3 - 2)
    share = grad(lambda q: np.quantile(numpy.array(x, "float32"), q))(0.5)
    assert float(share) == pytest.approx(3.0)


def test_quantiles_between_infinities_are_not_nan():
    assert float(np.quantile(numpy.array([-inf, 1.0, inf]), 0.25)) == -inf
    assert float(np.quantile(numpy.array([-inf, 1.0, inf]), 0.5)) == 1.0
    assert float(np.median(numpy.array([1.0, inf, inf]))) == inf


def test_differences_and_slopes_agree_with_numpy():
    x, places = numpy.array([1.0, 4.0, 2.0, 8.0, 5.0]), numpy.array([0.0, 1.0, 3.0, 3.5, 5.0])
    with jax.enable_x64():
        numpy.testing.assert_allclose(np.gradient(x, places), numpy.gradient(x, places))
        falling = numpy.array([200, 100, 90, 80, 0], numpy.uint8)
        for coordinates in (falling, (falling - 100).view(numpy.int8), falling.astype("uint32")):
            numpy.testing.assert_allclose(
                np.gradient(x, coordinates), numpy.gradient(x, coordinates)
            )
        wide = numpy.array([0, 3e9, 1e9, 4e9, 2e9])
        for coordinates in (wide.astype("uint32"), (wide - 2e9).astype("int32")):
            numpy.testing.assert_allclose(
                np.gradient(x, coordinates), numpy.gradient(x, coordinates.astype("f8"))
            )
        rows = numpy.stack([x, x * x])
        for found, expected in zip(
            np.gradient(rows, 0.5, places), numpy.gradient(rows, 0.5, places), strict=True
        ):
            numpy.testing.assert_allclose(found, expected)
        assert np.ediff1d(x, to_end=9, to_begin=[1, 2]).tolist() == [1, 2, 3, -2, 6, -3, 9]
    assert gradients((lambda x: (np.diff(x) ** 2).sum(), [0.0, 1.0, 3.0])) == [[-2, -2, 4]]


def test_variances_with_too_few_elements():
    x = numpy.array([1.0, 2.0], "float32")
    assert np.isnan(np.var(x[:1], ddof=1)) and float(np.var(x, ddof=2)) == inf


def test_counts_without_a_length_need_the_values():
    x = numpy.array([1, 3, 3], "int32")
    assert np.bincount(x).tolist() == [0, 1, 0, 2]
    assert np.bincount(x, minlength=6).tolist() == [0, 1, 0, 2, 0, 0]
    assert np.bincount(numpy.array([-1, 5, 1]), length=3).tolist() == [1, 1, 0]
    with pytest.raises(ConcretizationError, match="bincount without length= needs the value"):
        jit(np.bincount)(x)
    counts, edges = np.histogram(numpy.array([0.0, 0.5, 1.0, 2.0, 2.0]), 2)
    assert counts.tolist() == [2, 3] and edges.tolist() == [0, 1, 2]


def test_half_precision_adds_up_in_single():
    x = numpy.full(4096, 1.0, jnp.bfloat16)
    assert float(np.sum(x)) == 4096 and float(np.mean(x)) == 1
    assert float(np.var(x)) == 0 and np.sum(x).dtype == jnp.bfloat16


def test_programs_are_short():
    def length(f):
        return len(make_ir(f)(numpy.ones((3, 4), "float32")))

    counts = [
        (lambda x: x.sum(), 1),
        (lambda x: np.sum(x, axis=(0, 1)), 1),
        (lambda x: x.sum(-1, keepdims=True), 2),
        (lambda x: x.mean(), 2),
        (lambda x: x.mean(axis=0), 2),
        (lambda x: x.max(), 1),
        (lambda x: x.var(), 1),
        (lambda x: x.var(axis=0), 1),
        (lambda x: x.std(), 1),
        (lambda x: np.any(x > 0), 2),
        (lambda x: np.cumsum(x, axis=0), 1),
        (lambda x: np.median(x, axis=0), 8),
    ]
    assert [length(f) for f, _ in counts] == [count for _, count in counts]


def test_wrong_arguments_are_named():
    x = numpy.ones((2, 3), "float32")
    with pytest.raises(ShapeError, match=r"sum\(out=...\): the array must have the shape"):
        np.sum(x, out=x)
    with pytest.raises(AxisError, match=r"axis must be in \[-2, 2\).*got 2"):
        np.sum(x, axis=2)
    with pytest.raises(AxisError, match=r"axis must name each axis once; got \(0, -2\)"):
        np.sum(x, axis=(0, -2))
    with pytest.raises(ValueRangeError, match="max: there must be an element to choose"):
        np.max(x[:0])
    with pytest.raises(ArgumentError, match="max: with where=, initial= must be given"):
        np.max(x, where=x > 0)
    with pytest.raises(ArgumentError, match="must be arrays or numbers; got str 'a'"):
        np.mean("a")
    with pytest.raises(ValueRangeError, match="quantile: q must be between 0 and 1"):
        np.quantile(x, 1.5)
    with pytest.raises(ValueRangeError, match="quantile: method must be one of"):
        np.quantile(x, 0.5, method="linaer")
    with pytest.raises(DTypeError, match="bincount: the array must be a vector of integers"):
        np.bincount(x)
    with pytest.raises(ShapeError, match="gradient: an axis must have two elements"):
        np.gradient(x[:1, 0])
    with pytest.raises(ShapeError, match="average: weights must have the shape"):
        np.average(x, axis=0, weights=numpy.ones(3))
    with pytest.raises(ShapeError, match="argmax: the axis must not be empty"):
        np.argmax(x[:0])


def test_sums_of_float16_are_added_up_in_wider_numbers():
    x = numpy.ones(5000, "float16")
    for total in (np.sum, jit(np.sum), lambda x: vmap(np.sum)(x[None])[0], np.cumsum):
        found = numpy.asarray(total(x))
        assert found.dtype == "float16" and found.ravel()[-1] == 5000
    assert grad(lambda s: np.sum(s * x))(numpy.float16(1)) == 5000
    assert jit(np.mean)(x) == 1 and jit(lambda x: x @ x)(x) == 5000


@pytest.mark.parametrize("name", ["nanmax", "nanmin", "nanargmax", "nanargmin"])
def test_out_of_a_nan_reduction_holds_its_result_where_all_are_nan(name):
    x = numpy.array([[1.0, numpy.nan], [numpy.nan, numpy.nan]], "float32")
    want = getattr(np, name)(x, 1)
    out = numpy.zeros(2, want.dtype)
    assert getattr(np, name)(x, 1, out=out) is out
    assert numpy.array_equal(out, want, equal_nan=True)


@pytest.mark.parametrize("name", ["max", "min"])
def test_extrema_of_complex_numbers_with_infinite_real_parts_are_among_them(name):
    x = numpy.array([complex(-numpy.inf, -3), complex(-numpy.inf, -1)], "complex64")
    x = x if name == "max" else -x
    function = getattr(np, name)
    wanted = getattr(numpy, name)(x)
    for found in (function(x), jit(function)(x), vmap(function)(x[None])[0]):
        numpy.testing.assert_array_equal(found, wanted)
    running = getattr(lax, f"cum{name}")
    numpy.testing.assert_array_equal(jit(running)(x), [x[0], wanted])
    numpy.testing.assert_array_equal(running(x, reverse=True), [wanted, x[1]])


def test_the_median_of_no_elements_is_nan_where_nans_are_left_out():
    empty = numpy.zeros((3, 0), "float32")
    assert numpy.isnan(np.nanmedian(empty, 1)).tolist() == [True] * 3
    assert np.nanmedian(empty, 0).shape == (0,)
    assert np.nanpercentile(empty, numpy.array([20.0, 40.0]), 1).shape == (2, 3)
