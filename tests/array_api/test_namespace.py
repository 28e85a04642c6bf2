"""`functx.numpy` as a namespace of the array API standard: versions, dtypes, devices."""

import inspect

import jax
import numpy
import pytest

import functx
import functx.numpy as np
from functx.core.errors import ArgumentError, DTypeError, ForeignCodeError, ValueRangeError

CPU = jax.devices("cpu")[0]


def inside_jit(look):
    """The result of `look` of a traced vector."""
    seen = []
    functx.jit(lambda x: seen.append(look(x)) or x)(np.ones(3))
    return seen[0]


def test_arrays_give_the_namespace_for_each_version_of_the_standard():
    for version in (None, "2021.12", np.__array_api_version__):
        assert np.ones(3).__array_namespace__(api_version=version) is np
        assert inside_jit(lambda x, v=version: x.__array_namespace__(api_version=v)) is np
        variable = functx.autograd.Variable(np.ones(3), requires_grad=True)
        assert variable.__array_namespace__(api_version=version) is np
    assert functx.testing.TwoArray(np.ones(3), np.ones(3)).__array_namespace__() is np
    with pytest.raises(ValueRangeError, match=r"must be one of .*; got '1999'"):
        np.ones(3).__array_namespace__(api_version="1999")


def test_the_inspection_functions_follow_the_64_bit_switch():
    info = np.__array_namespace_info__()
    assert info.default_device() in info.devices()
    assert {*jax.devices(), CPU, "cpu", None} == {*info.devices()}
    assert [*info.dtypes(kind=("bool", "complex floating"))] == ["bool", "complex64"]
    assert info.default_dtypes()["indexing"] == numpy.int32
    with jax.enable_x64():
        assert info.default_dtypes() == jax.numpy.__array_namespace_info__().default_dtypes()
        for kind in (None, "integral", "real floating", ("bool", "numeric")):
            assert info.dtypes(kind=kind) == jax.numpy.__array_namespace_info__().dtypes(kind=kind)
    with pytest.raises(DTypeError, match=r"must be one of 'bool', .*, or a dtype; got 'real'"):
        info.dtypes(kind="real")


def test_a_traced_array_has_no_device_and_makes_arrays_beside_it():
    assert np.ones(3).device == "cpu"
    assert inside_jit(lambda x: x.device) is None
    assert inside_jit(lambda x: x.to_device(None) is x)
    total = functx.grad(lambda x: np.sum(x * np.ones(3, device=x.device)))(np.arange(3.0))
    numpy.testing.assert_array_equal(total, numpy.ones(3))


def functions_with_a_device():
    """Each function of the namespace with the argument `device`, called with it."""
    x = np.ones(2)
    arguments = {
        "arange": (3,),
        "linspace": (0.0, 1.0, 3),
        "eye": (2,),
        "full": (2, 1.0),
        "full_like": (x, 2.0),
        "astype": (x, "int32"),
        "fftfreq": (4,),
        "rfftfreq": (4,),
    }
    shapes = dict.fromkeys(("zeros", "ones", "empty"), (2,))
    for module in (np, np.fft):
        for name, fun in sorted(vars(module).items()):
            if (
                name[0] != "_"
                and inspect.isfunction(fun)
                and "device" in inspect.signature(fun).parameters
            ):
                args = arguments.get(name) or shapes.get(name) or (x,)
                yield name, lambda device, fun=fun, args=args: fun(*args, device=device)


def test_every_function_with_the_argument_device_places_its_result():
    calls = dict(functions_with_a_device())
    assert {"asarray", "zeros", "arange", "linspace", "fftfreq"} <= calls.keys()
    for name, call in calls.items():
        assert type(call("cpu")) is type(call(None)), name
        placed = call(CPU)
        assert isinstance(placed, jax.Array) and placed.devices() == {CPU}, name
        assert placed.committed, name
    assert type(functx.numpy.asarray(placed, device="cpu")) is np.ndarray
    with pytest.raises(ValueRangeError, match='a name must be "cpu"'):
        np.zeros(3, device="abacus")
    with pytest.raises(ValueRangeError, match="stream must be None; got 1"):
        np.zeros(3).to_device(None, stream=1)
    variable = functx.autograd.Variable(np.ones(3))
    assert variable.device is None and variable.to_device("cpu") is variable
    with pytest.raises(ArgumentError, match="a Variable keeps its place"):
        variable.to_device(CPU)
    assert np.asarray(1.0, device=CPU).weak_type


def test_placing_is_traced_and_differentiated():
    sharding = jax.sharding.SingleDeviceSharding(CPU)

    def f(x):
        return np.sum(np.asarray(x, device=sharding) ** 2 * x.to_device(sharding))

    numpy.testing.assert_allclose(functx.jit(functx.grad(f))(np.arange(3.0)), [0.0, 3.0, 12.0])


def test_from_dlpack_places_its_result_and_shares_memory_where_it_must():
    table = numpy.zeros(3, "float32")
    np.from_dlpack(table, device="cpu")[0] = 1.0
    assert table[0] == 1.0
    assert np.from_dlpack(table, device=CPU).devices() == {CPU}
    assert type(np.from_dlpack(jax.numpy.ones(2), device="cpu")) is np.ndarray
    with pytest.raises(ValueRangeError, match="with copy=False the memory must be shared"):
        np.from_dlpack(table, device=CPU, copy=False)


def test_a_traced_value_that_is_known_goes_to_other_libraries():
    seen = []

    def f(x):
        known = np.arange(3) * 2
        seen.append(numpy.from_dlpack(known))
        with pytest.raises(ForeignCodeError):
            numpy.from_dlpack(x)
        return x

    functx.jit(f)(np.ones(2))
    assert seen[0].tolist() == [0, 2, 4]


def test_frequencies_take_a_dtype_and_a_traced_spacing():
    for fun, reference in (
        (np.fft.fftfreq, jax.numpy.fft.fftfreq),
        (np.fft.rfftfreq, jax.numpy.fft.rfftfreq),
    ):
        for dtype in (None, "float16", "float32"):
            got = fun(5, 0.25, dtype=dtype)
            want = reference(5, 0.25, dtype=dtype and numpy.dtype(dtype))
            numpy.testing.assert_allclose(got, want)
            assert got.dtype == want.dtype
        slope = functx.grad(lambda d, fun=fun: fun(5, d)[1])(0.5)
        numpy.testing.assert_allclose(slope, -0.8, rtol=1e-6)
        with pytest.raises(DTypeError, match="must be a floating-point dtype; got int32"):
            fun(5, dtype=int)


def test_functions_of_several_arrays_give_tuples():
    assert type(np.meshgrid(np.arange(2), np.arange(3))) is tuple
    assert type(np.broadcast_arrays(np.ones(3), 1.0)) is tuple
    assert np.broadcast_arrays() == np.meshgrid() == np.broadcast_shapes() == ()


def test_a_complex_number_is_written_to_a_complex_array_alone():
    x = np.array([1.0, 2j])
    x[0] = 3 + 1j
    assert x.tolist() == [3 + 1j, 2j]
    with pytest.raises(DTypeError, match="c64"):
        np.ones(2)[0] = 3 + 1j
