"""Array creation: values and types against JAX, and the class of the results."""

import jax
import jax.numpy as jnp
import numpy
import pytest

import functx.numpy as np
from functx import grad, jit, make_ir
from functx.core.errors import ArgumentError, ConcretizationError, ShapeError, ValueRangeError
from functx.core.tracer import Tracer
from tests.numpy.tables import calls, check_at_once, check_types, check_values

VALUES = calls(
    """
    np.array(1)
    np.array(1.)
    np.array([1,2])
    np.array([1.,2])
    np.array([1,f[0,0]])
    np.array([1.,bf[0]])
    np.array([[f[0,0],0],[0,s]])
    np.array([f[0],g])
    np.array([f[0],[1,2,3]])
    np.array([],dtype='float32')
    np.array([])
    np.array([1,2],dtype='float32')
    np.array([g[0],g[1]],dtype='bfloat16')
    np.array(f,dtype=int)
    np.array(g,ndmin=3)
    np.array([True,False])
    np.array((1,2.5))
    np.asarray(1.)
    np.asarray([1.])
    np.asarray(f)
    np.asarray(2,dtype='uint8')
    np.asarray(2.7,dtype=int)
    np.asarray(s)
    np.asarray(1j)
    np.zeros(3)
    np.zeros((2,3),int)
    np.ones((2,3),dtype='bfloat16')
    np.full(2,1.)
    np.full((2,),1)
    np.full((2,3),g)
    np.full(2,True)
    np.full(2,1,'float32')
    np.full(2,1.7,int)
    np.full_like(i,1.5)
    np.full_like(f,2)
    np.full_like(f,g)
    np.full_like(f,2,dtype=int)
    np.ones_like(1.)
    np.zeros_like(1)
    np.zeros_like(f)
    np.zeros_like(f,shape=(2,))
    np.ones_like(i)
    np.empty_like(bf)
    np.ones_like(c)
    np.empty((2,2))
    """
)
RANGES = calls(
    """
    np.arange(3)
    np.arange(3.)
    np.arange(2,5)
    np.arange(0,1,.25)
    np.arange(0,1,.1)
    np.arange(5,0,-2)
    np.arange(3,dtype='float32')
    np.arange(1,3.5)
    np.arange(5,dtype='uint8')
    np.arange(5,dtype='bfloat16')
    np.arange(0)
    np.arange(5,2)
    np.arange(numpy.int8(3))
    np.linspace(0,1,3)
    np.linspace(0,1,1)
    np.linspace(0,1,0)
    np.linspace(0.1,1,7)
    np.linspace(0,3,4,dtype=int)
    np.linspace(0,1,5,endpoint=False)
    np.linspace(i[0,0],3,4)
    np.linspace(0,g,4)
    np.linspace(f[0],g,4,axis=1)
    np.linspace(f,g,3,axis=-1)
    np.linspace(0,1,3,retstep=True)
    np.linspace(0,g,3,retstep=True)
    np.linspace(0,1,1,retstep=True)
    np.linspace(s,1+2j,3)
    np.linspace(-2.5,3.5,5,dtype=int)
    np.logspace(0,2,3)
    np.logspace(0,g,3,base=2)
    np.geomspace(1,8,4)
    np.geomspace(1,g,4)
    np.geomspace(1,1000,4,endpoint=False)
    """
)
MATRICES = calls(
    """
    np.eye(2)
    np.eye(3,k=1)
    np.eye(2,3,-1,dtype=int)
    np.identity(3)
    np.tri(3)
    np.tri(3,4,1,dtype='int32')
    np.tril(f)
    np.triu(f,1)
    np.triu(f,-1)
    np.tril(t,-1)
    np.triu(b2)
    np.tril_indices(3)
    np.triu_indices(3,1,4)
    np.diag_indices(3)
    np.tril_indices_from(f)
    np.diag(g)
    np.diag(g,1)
    np.diag(g,-2)
    np.diag(f)
    np.diag(f,1)
    np.diag(f,-1)
    np.diag(i3)
    np.diagflat(f)
    np.diagonal(t)
    np.diagonal(t,1,1,2)
    np.diagonal(t,-1,0,2)
    np.vander(g)
    np.vander(g,2)
    np.vander(i3,4,increasing=True)
    np.vander(f[0])
    np.meshgrid(g,i3)
    np.meshgrid(g,i3,indexing='ij')
    np.meshgrid(g,i3[:2],sparse=True)
    np.meshgrid(g,i3[:2],f[0])
    np.meshgrid(g)
    np.indices((2,2))
    np.indices((2,3),sparse=True)
    np.indices((2,2),dtype='float32')
    np.fromfunction(lambda a,b: a+b,(2,3))
    np.fromfunction(lambda a,b: a*b,(2,3),dtype=int)
    np.mgrid[0:3,0:2]
    np.mgrid[0:3]
    np.mgrid[0:1:5j]
    np.mgrid[0:1:3j,0:2]
    np.ogrid[0:3,0:2]
    np.float32(1)
    np.bfloat16(f)
    np.int32(2.7)
    np.complex64(f)
    np.bool_(i)
    """
)


@pytest.mark.parametrize("table", [VALUES, RANGES, MATRICES])
def test_values_and_types_are_those_of_jax(table):
    check_values(table)


@pytest.mark.parametrize("table", [VALUES, RANGES, MATRICES])
def test_types_are_those_of_jax_with_64_bits(table, x64):
    # JAX's tri alone makes single precision with 64-bit types on.
    check_types([text for text in table if text != "np.tri(3)"])


def test_numpy_operands_give_numpy_results_outside_a_trace():
    check_at_once(
        calls(
            """
    np.array([1, f[0, 0]])
    np.asarray(2.7, dtype=int)
    np.full((2, 3), g)
    np.arange(0, 1, 0.1)
    np.linspace(0, g, 3, retstep=True)
    np.linspace(0, 1, 0)
    np.geomspace(1, 8, 4)
    np.eye(2, 3, -1, dtype=int)
    np.tri(3)
    np.tril(t, -1)
    np.diag(g, -2)
    np.vander(i3, 4)
    np.meshgrid(g, i3)
    np.mgrid[0:3, 0:2]
    np.complex64(f)
    """
        )
    )


def test_new_arrays_outside_a_trace_are_writable_numpy_arrays():
    for made in (
        np.zeros(3),
        np.ones((2, 2)),
        np.full(3, 2.5),
        np.empty(2),
        np.eye(2),
        np.array([1.0, 2]),
    ):
        assert isinstance(made, numpy.ndarray)
        made[0] = 7
        assert (made[0] == 7).all()
    x = numpy.ones(3, "float32")
    shares = numpy.shares_memory
    assert shares(np.asarray(x), x) and shares(np.array(x, copy=False), x)
    assert not shares(np.array(x), x) and np.asarray(made) is made


def test_new_arrays_in_a_trace_belong_to_it():
    def f(x):
        made = (
            np.zeros(3),
            np.arange(3),
            np.linspace(0, 1, 3),
            np.eye(2),
            np.asarray(numpy.ones(3)),
        )
        assert all(type(y) is Tracer for y in (*made, np.asarray(2.0), np.full(2, 1), np.tri(2)))
        return x

    jit(f)(1.0)


def test_arrays_like_a_jax_array_are_jax_arrays():
    x = jnp.ones(3)
    for made in (np.zeros_like(x), np.ones_like(x), np.full_like(x, 2), np.asarray(x), np.array(x)):
        assert isinstance(made, jax.Array)
    assert isinstance(np.zeros_like(numpy.ones(3)), numpy.ndarray)
    assert isinstance(np.array([x[0], 2.0]), jax.Array)


def test_lists_of_traced_values_become_arrays():
    def f(x):
        return np.array([[x[0], 2.0], [3, x[1] * x[0]]])

    x = numpy.array([2.0, 5.0], "float32")
    assert jit(f)(x).tolist() == [[2.0, 2.0], [3.0, 10.0]]
    assert grad(lambda x: (f(x) * np.arange(4.0).reshape(2, 2)).sum())(x).tolist() == [15.0, 6.0]
    assert len(make_ir(lambda x: np.array([x, x, 1.0]))(1.0)) == 4


def test_endpoints_are_exact():
    for stop in (1.1, 0.3, 7.7):
        assert jit(lambda s: np.linspace(0.1, s, 10))(numpy.float32(stop))[-1] == numpy.float32(
            stop
        )
        assert jit(lambda s: np.geomspace(0.1, s, 10))(numpy.float32(stop))[-1] == numpy.float32(
            stop
        )
    whole = jit(lambda n: np.linspace(0, n, 101))(numpy.float32(100))
    assert whole.tolist() == list(range(101))


def test_ranges_have_the_derivatives_of_their_ends():
    weights = numpy.array([1.0, 10.0, 100.0], "float32")
    found = grad(lambda a, b: (np.linspace(a, b, 3) * weights).sum(), (0, 1))(0.0, 1.0)
    assert [float(x) for x in found] == [6.0, 105.0]
    found = grad(lambda a, b: np.geomspace(a, b, 3).sum(), (0, 1))(1.0, 4.0)
    assert [float(x) for x in found] == pytest.approx([2.0, 1.25])


def test_derivatives_of_triangles_and_diagonals_go_to_the_selected_elements():
    x = numpy.arange(1.0, 10.0, dtype="float32").reshape(3, 3)
    assert (
        grad(lambda x: np.tril(x, -1).sum())(x).tolist()
        == numpy.tril(numpy.ones((3, 3)), -1).tolist()
    )
    assert grad(lambda x: np.diagonal(x, 1).sum())(x).tolist() == numpy.eye(3, k=1).tolist()
    assert grad(lambda v: (np.diag(v, 1) * np.ones((4, 4))).sum())(x[0]).tolist() == [1.0] * 3
    bad = x.copy()
    bad[0, 1] = numpy.inf
    assert grad(lambda x: (np.tril(x) ** 2).sum())(bad)[0, 1] == 0.0
    assert grad(lambda v: np.vander(v, 3).sum())(numpy.zeros(2, "float32")).tolist() == [1.0, 1.0]


def test_programs_are_short():
    def length(f, *args):
        return len(make_ir(f)(*args))

    x = numpy.ones((3, 3), "float32")
    assert length(lambda x: np.zeros(3), 1.0) == 1
    assert length(lambda x: np.arange(3) + x, 1.0) == 3
    assert length(np.tril, x) == 4
    assert length(np.diag, x) == 1
    assert length(np.diag, x[0]) == 2
    assert length(lambda x: np.asarray(2.0) * x, 1.0) == 1


def test_wrong_arguments_are_named():
    with pytest.raises(ArgumentError, match="must be arrays or numbers; got str 'a'"):
        np.array("a")
    with pytest.raises(
        ShapeError, match=r"the items of a list must have one shape; got \(2,\) and \(1,\)"
    ):
        np.array([[1, 2], [3]])
    with pytest.raises(ArgumentError, match="shape must not be negative"):
        np.zeros(-1)
    with pytest.raises(ArgumentError, match="shape must be made of integers"):
        np.zeros(2.5)
    with pytest.raises(
        ValueRangeError, match="linspace: the number of samples must not be negative"
    ):
        np.linspace(0, 1, -3)
    with pytest.raises(
        ArgumentError, match=r"number of samples must be an integer, known while tracing; got 2.5"
    ):
        np.linspace(0, 1, 2.5)
    with pytest.raises(ValueRangeError, match="arange: the step must not be 0"):
        make_ir(lambda x: np.arange(0, 5, 0) + x)(1.0)
    with pytest.raises(ConcretizationError, match="arange needs the value of an array"):
        jit(lambda n: np.arange(n))(3)
    with pytest.raises(ValueRangeError, match="meshgrid: indexing must be"):
        np.meshgrid(numpy.ones(2), indexing="yx")
    with pytest.raises(ShapeError, match="tril: the array must have at least two dimensions"):
        np.tril(numpy.ones(3))
    with pytest.raises(ShapeError, match="diag: the array must have one or two dimensions"):
        np.diag(numpy.ones((2, 2, 2)))


def test_ranges_of_known_values_need_no_number():
    def f(x, n):
        return x * np.arange(n).sum()

    assert float(grad(f)(2.0, 4)) == 6.0


def test_new_arrays_while_jax_traces():
    found = jax.jit(lambda x: np.linspace(0, 1, 3) + np.zeros(3) + x)(jnp.ones(3))
    assert found.tolist() == [1.0, 1.5, 2.0]


def test_integers_between_integers_are_rounded_down_exactly():
    for start, stop, num in ((-3, 3, 7), (-1000, 1000, 25), (1, 7, 35)):
        exact = [start + (stop - start) * k // (num - 1) for k in range(num)]
        assert np.linspace(start, stop, num, dtype=int).tolist() == exact
        traced = jit(lambda x, stop=stop, num=num: np.linspace(x, stop, num, dtype=int))
        assert traced(float(start)).tolist() == exact


def test_a_complex_geometric_sequence_of_real_ends_goes_through_negative_ratios():
    found = np.geomspace(-1, 1, 3, dtype="complex64")
    assert found.dtype == numpy.complex64
    numpy.testing.assert_allclose(found, [-1, 1j, 1], atol=1e-6)
    assert np.geomspace(1, 8, 4, dtype="int32").dtype == numpy.int32
