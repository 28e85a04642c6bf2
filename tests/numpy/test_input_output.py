"""Arrays in files, bytes and texts, and of other libraries."""

import io

import jax
import ml_dtypes
import numpy as np
import pytest

import functx
import functx.numpy as fnp
from functx.core.errors import ArgumentError, ForeignCodeError


@pytest.mark.parametrize("dtype", ["float32", "int8", "bool", "complex64", "uint64", "bfloat16"])
def test_arrays_are_read_from_files_as_they_were_written(dtype, tmp_path):
    dtype = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    x = fnp.astype(fnp.arange(6).reshape(2, 3), dtype)
    for write in (fnp.save, np.save):
        write(tmp_path / "x.npy", x)
        found = fnp.load(tmp_path / "x.npy")
        assert type(found) is type(fnp.zeros(1)) and found.dtype == x.dtype
        assert found.tolist() == x.tolist()


def test_files_of_several_arrays_hold_those_of_jax_and_variables(tmp_path):
    leaf = functx.autograd.Variable(fnp.ones(2), requires_grad=True)
    arrays = {"a": fnp.arange(3), "b": jax.numpy.ones(2), "c": leaf}
    for write in (fnp.savez, np.savez, np.savez_compressed):
        write(tmp_path / "x.npz", fnp.zeros(1), **arrays)
        with fnp.load(tmp_path / "x.npz") as found:
            assert sorted(found) == ["a", "arr_0", "b", "c"]
            assert found["c"].tolist() == [1, 1]
    np.save(tmp_path / "x.npy", leaf)
    assert fnp.load(tmp_path / "x.npy").tolist() == [1, 1]
    stream = io.StringIO()
    np.savetxt(stream, fnp.arange(2), fmt="%d")
    assert stream.getvalue() == "0\n1\n"


def test_nothing_is_executed_when_a_file_is_read(tmp_path):
    np.save(tmp_path / "x.npy", np.array([print], object), allow_pickle=True)
    with pytest.raises(ValueError, match="allow_pickle"):
        fnp.load(tmp_path / "x.npy")


def test_bytes_and_texts_are_arrays():
    assert fnp.frombuffer(b"abcd", "uint8", 2, 1).tolist() == [98, 99]
    assert fnp.fromstring("1 2.5", sep=" ").dtype == np.float32
    assert fnp.fromiter((i * i for i in range(4)), int, 3).tolist() == [0, 1, 4]
    assert fnp.fromiter([1.0], float).dtype == np.float32
    with pytest.raises(ForeignCodeError, match="frombuffer: it needs the value"):
        functx.jit(fnp.frombuffer)(np.ones(2))


def test_texts_of_arrays_are_those_of_numpy():
    x = fnp.array([1.0, 2.5])
    assert fnp.array_str(x) == np.array_str(x) == "[1.  2.5]"
    assert fnp.array_repr(x) == "array([1. , 2.5], dtype=float32)"
    with fnp.printoptions(precision=1):
        assert str(fnp.array([1.26])) == np.array2string(fnp.array([1.26])) == "[1.3]"
    assert fnp.get_printoptions()["precision"] == 8
    texts = []
    functx.jit(lambda x: texts.append(np.array_repr(x)) or x)(x)
    assert "f32[2]" in texts[0]


def test_iterables_are_what_can_be_iterated_over():
    assert fnp.iterable([1]) and fnp.iterable(fnp.ones(2))
    assert not fnp.iterable(fnp.ones(())) and not fnp.iterable(3)
    assert functx.jit(lambda x: x if fnp.iterable(x) and not fnp.iterable(x[0]) else 0)(np.ones(2))[
        0
    ]


class TestDLPack:
    def test_arrays_of_numpy_are_taken_without_a_copy(self):
        x = np.arange(3.0, dtype=np.float32)
        found = fnp.from_dlpack(x)
        assert isinstance(found, fnp.ndarray) and np.shares_memory(found, x)
        assert not np.shares_memory(fnp.from_dlpack(x, copy=True), x)

    def test_arrays_of_jax_and_traced_ones_stay_what_they_are(self):
        x = jax.numpy.ones(2)
        assert fnp.from_dlpack(x) is x
        assert functx.grad(lambda x: fnp.from_dlpack(x * 2).sum())(fnp.ones(2)).tolist() == [2, 2]

    def test_arrays_of_dtypes_that_numpy_lacks_are_taken_and_given(self):
        x = fnp.ones(3, fnp.bfloat16)
        found = fnp.from_dlpack(jax.numpy.asarray(x))
        assert found.dtype == x.dtype and found.tolist() == [1, 1, 1]
        assert jax.dlpack.from_dlpack(x).dtype == x.dtype

    def test_what_is_no_array_is_refused(self):
        with pytest.raises(ArgumentError, match="must have a method __dlpack__; got list"):
            fnp.from_dlpack([1.0])

    def test_tensors_of_pytorch_are_taken_and_given(self):
        torch = pytest.importorskip("torch")
        tensor = torch.arange(4, dtype=torch.float32)
        found = fnp.from_dlpack(tensor)
        tensor[0] = 7
        assert found[0] == 7
        given = torch.from_dlpack(fnp.arange(3))
        assert given.tolist() == [0, 1, 2]
        half = torch.ones(2, dtype=torch.bfloat16)
        assert fnp.from_dlpack(half).dtype == fnp.bfloat16
        assert torch.from_dlpack(fnp.ones(2, fnp.bfloat16)).dtype == torch.bfloat16
