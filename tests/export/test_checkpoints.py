"""Files of pytrees: `functx.tree.save` and `functx.tree.load`."""

import io
from collections import OrderedDict, namedtuple

import jax
import numpy as np
import pytest

import functx
import functx.numpy as fnp
from functx.core.errors import (
    ArgumentError,
    DTypeError,
    ExportFileError,
    ForeignCodeError,
    ShapeError,
    TreeError,
)

State = namedtuple("State", "mean count")
PARAMETERS = {
    "layers": [(fnp.ones((2, 3)), fnp.arange(3)), None],
    "half": fnp.ones(2, fnp.bfloat16),
    "narrow": fnp.zeros(2, fnp.float8_e4m3fn),
    "mask": np.array([True, False]),
    "wide": np.arange(3.0),
    "rate": 0.1,
    "limit": float("inf"),
    "step": 7,
    "on": True,
    "phase": 1 - 2j,
    "empty": np.zeros((0, 2), np.float32),
    "ordered": OrderedDict(b=fnp.ones(()), a=fnp.zeros(1)),
}


def saved(pytree):
    file = io.BytesIO()
    functx.tree.save(file, pytree)
    file.seek(0)
    return file


def same(found, expected):
    assert functx.tree.structure(found) == functx.tree.structure(expected)
    for ours, theirs in zip(*map(functx.tree.leaves, (found, expected)), strict=True):
        if isinstance(theirs, (bool, int, float, complex)):
            assert type(ours) is type(theirs) and ours == theirs
        else:
            assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
            assert ours.tolist() == theirs.tolist()


def test_a_pytree_is_read_as_it_was_written(tmp_path):
    functx.tree.save(tmp_path / "x.npz", PARAMETERS)
    same(functx.tree.load(tmp_path / "x.npz"), PARAMETERS)
    same(functx.tree.load(saved(PARAMETERS)), PARAMETERS)
    assert [p.name for p in tmp_path.iterdir()] == ["x.npz"]
    with np.load(tmp_path / "x.npz") as arrays:
        assert arrays["arrays/0"].shape == (0, 2)


def test_arrays_of_jax_variables_and_keys_are_saved():
    leaf = functx.autograd.Variable(fnp.ones(2), requires_grad=True)
    key = jax.random.key(3)
    found = functx.tree.load(saved({"j": jax.numpy.ones(2), "v": leaf, "k": key}))
    assert found["j"].tolist() == found["v"].tolist() == [1, 1]
    assert jax.random.key_data(found["k"]).tolist() == jax.random.key_data(key).tolist()
    like = functx.tree.load(saved({"j": jax.numpy.ones(2)}), like={"j": jax.numpy.zeros(2)})
    assert type(like["j"]) is type(jax.numpy.ones(2))


def test_classes_that_are_not_registered_are_read_with_a_pytree_like_them():
    state = State(fnp.ones(2), 3)
    with pytest.raises(ExportFileError, match=r"State(.|\n)*Pass like="):
        functx.tree.load(saved(state))
    found = functx.tree.load(saved(state), like=State(fnp.zeros(2), 0))
    assert type(found) is State and found.count == 3 and found.mean.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("like", "error", "message"),
    [
        ({"a": np.zeros(2, "f")}, TreeError, r"it has besides tree\['b'\]"),
        ({"a": np.zeros(2, "f"), "b": 0, "c": 0}, TreeError, r"the file lacks tree\['c'\]"),
        ({"a": np.zeros(3, "f"), "b": 0}, ShapeError, r"tree\['a'\](.*) shape \(3,\); got one of"),
        ({"a": np.zeros(2, "i"), "b": 0}, DTypeError, r"tree\['a'\](.*) int32; got one of float32"),
        ({"a": np.zeros(2, "f"), "b": np.ones(2, "f")}, ShapeError, r"tree\['b'\]"),
    ],
)
def test_a_file_of_another_pytree_is_refused(like, error, message):
    file = saved({"a": np.ones(2, np.float32), "b": 1})
    with pytest.raises(error, match=message):
        functx.tree.load(file, like=like)


def test_leaves_must_be_arrays_or_numbers():
    with pytest.raises(ArgumentError, match=r"got str 'x' at tree\['a'\]\[0\]|got str at tree"):
        functx.tree.save(io.BytesIO(), {"a": ["x"]})
    with pytest.raises(ForeignCodeError, match=r"tree\.save: it needs the value"):
        functx.jit(lambda x: functx.tree.save(io.BytesIO(), [x]))(1.0)


def test_altered_and_other_files_are_refused(tmp_path):
    data = bytearray(saved(PARAMETERS).getvalue())
    data[len(data) // 2] ^= 1
    with pytest.raises(ExportFileError, match="a saved pytree must have the checksum"):
        functx.tree.load(io.BytesIO(bytes(data)))
    with pytest.raises(ExportFileError, match="its end is missing"):
        functx.tree.load(io.BytesIO(bytes(data[:-9])))
    np.savez(tmp_path / "other.npz", np.ones(2))
    with pytest.raises(ExportFileError, match="one that a pytree was saved to"):
        functx.tree.load(tmp_path / "other.npz")
    functx.export.export(lambda x: x + 1)(1.0).save(tmp_path / "program")
    with pytest.raises(ExportFileError, match="must describe a pytree"):
        functx.tree.load(tmp_path / "program")
    functx.tree.save(tmp_path / "tree.npz", [1.0])
    with pytest.raises(ExportFileError):
        functx.export.load(tmp_path / "tree.npz")


def test_nothing_is_executed_when_a_file_is_read(monkeypatch):
    file = saved(PARAMETERS)
    monkeypatch.setattr("pickle.loads", lambda *_: pytest.fail("a pickle is read"))
    monkeypatch.setattr("pickle.load", lambda *_: pytest.fail("a pickle is read"))
    same(functx.tree.load(file), PARAMETERS)


def test_training_goes_on_from_a_file(tmp_path):
    def step(state):
        slope = functx.grad(lambda w: ((w - 2.0) ** 2).sum())(state["w"])
        return {"w": state["w"] - 0.1 * slope, "step": state["step"] + 1}

    state = {"w": fnp.zeros(3), "step": 0}
    for _ in range(3):
        state = step(state)
    functx.tree.save(tmp_path / "state.npz", state)
    again = functx.tree.load(tmp_path / "state.npz", like=state)
    assert again["step"] == 3 and step(again)["w"].tolist() == step(state)["w"].tolist()
