"""Which functions return views and which return copies, and which views are read-only, as in NumPy."""

import warnings

import numpy as np
import pytest

import functx
import functx.numpy
from functx.core.errors import FunctxError, ImmutableArrayError
from tests.mutation.agreement import by_reference

X = np.arange(12.0).reshape(3, 4) + 1
ARRAYS = {
    "matrix": X,
    "vector": np.arange(5.0) + 1,
    "square": np.arange(9.0).reshape(3, 3) + 1,
    "complex": X + 1j * X,
    "whole": np.arange(1, 13).reshape(3, 4),
    "deep": X.reshape(1, 3, 1, 4),
    "stack": np.arange(8.0).reshape(2, 2, 2) + 1,
    "flags": np.arange(12).reshape(3, 4) % 2 == 0,
    "scalar": np.array(2.5),
}
FUNCTIONS = sorted(
    name
    for name in dir(functx.numpy)
    if callable(getattr(functx.numpy, name))
    and callable(getattr(np, name, None))
    and not isinstance(getattr(np, name), type)
    and not name.startswith("_")
    and name not in {"save", "savez", "frompyfunc", "vectorize", "put", "einsum_path"}
)
FORMS = {
    "x.T": lambda n, x: x.T,
    "x.mT": lambda n, x: x.mT,
    "x.real": lambda n, x: x.real,
    "x.imag": lambda n, x: x.imag,
    "x.conj()": lambda n, x: x.conj(),
    "x.copy()": lambda n, x: x.copy(),
    "x.view()": lambda n, x: x.view(),
    "x.view(other)": lambda n, x: x.view("int64"),
    "x.view(half)": lambda n, x: x.view("int32"),
    "x.ravel()": lambda n, x: x.ravel(),
    "x.T.ravel()": lambda n, x: x.T.ravel(),
    "x.flatten()": lambda n, x: x.flatten(),
    "x.squeeze()": lambda n, x: x.squeeze(),
    "x.diagonal()": lambda n, x: x.diagonal(),
    "x.reshape(-1)": lambda n, x: x.reshape(-1),
    "x.T.reshape(-1)": lambda n, x: x.T.reshape(-1),
    "x.reshape(same)": lambda n, x: x.reshape(x.shape),
    "x.reshape(F)": lambda n, x: x.reshape(-1, order="F"),
    "x.astype(same)": lambda n, x: x.astype(x.dtype),
    "x.astype(same, copy=False)": lambda n, x: x.astype(x.dtype, copy=False),
    "x.round()": lambda n, x: x.round(),
    "x.repeat(1)": lambda n, x: x.repeat(1),
    "x.swapaxes": lambda n, x: x.swapaxes(0, -1),
    "x.flat[:]": lambda n, x: x.flat[:],
    "x.flat.copy()": lambda n, x: x.flat.copy(),
    "x[...]": lambda n, x: x[...],
    "x[()]": lambda n, x: x[()],
    "x[:]": lambda n, x: x[:],
    "x[None]": lambda n, x: x[None],
    "x[0]": lambda n, x: x[0],
    "x[0, ...]": lambda n, x: x[0, ...],
    "x[0, 1]": lambda n, x: x[0, 1],
    "x[..., 0, 1]": lambda n, x: x[..., 0, 1],
    "x[1:, ::2]": lambda n, x: x[1:, ::2],
    "x[::-1]": lambda n, x: x[::-1],
    "x[[0, 1]]": lambda n, x: x[[0, 1]],
    "x[0:2, [0]]": lambda n, x: x[0:2, [0]],
    "x[mask]": lambda n, x: x[np.arange(len(x)) > 0],
    "next(iter(x))": lambda n, x: next(iter(x)),
    "reversed(x)": lambda n, x: next(reversed(x)),
    "+x": lambda n, x: +x,
    "x + 0": lambda n, x: x + 0,
    "x * 1": lambda n, x: x * 1,
    "x**1": lambda n, x: x**1,
    "reshape": lambda n, x: n.reshape(x, (-1, 1)),
    "reshape of T": lambda n, x: n.reshape(x.T, (-1, 1)),
    "array(copy=False)": lambda n, x: n.asarray(x, copy=False),
    "array(ndmin)": lambda n, x: n.array(x, ndmin=3),
    "asarray(dtype)": lambda n, x: n.asarray(x, x.dtype),
    "ascontiguousarray of T": lambda n, x: n.ascontiguousarray(x.T),
    "broadcast_to": lambda n, x: n.broadcast_to(x, (2, *x.shape)),
    "broadcast_to same": lambda n, x: n.broadcast_to(x, x.shape),
    "broadcast_to, copied": lambda n, x: n.broadcast_to(x, (2, *x.shape)).reshape(-1),
    "broadcast_arrays": lambda n, x: n.broadcast_arrays(x, n.ones((2, *x.shape)))[0],
    "windows": lambda n, x: n.lib.stride_tricks.sliding_window_view(x, 2, axis=-1),
    "windows in two axes": lambda n, x: n.lib.stride_tricks.sliding_window_view(x, (2, 2)),
    "swapaxes": lambda n, x: n.swapaxes(x, 0, 1),
    "moveaxis": lambda n, x: n.moveaxis(x, 0, -1),
    "rollaxis": lambda n, x: n.rollaxis(x, -1),
    "permute_dims": lambda n, x: n.permute_dims(x, (1, 0)),
    "expand_dims": lambda n, x: n.expand_dims(x, 0),
    "expand_dims of two": lambda n, x: n.expand_dims(x, (0, 2)),
    "split": lambda n, x: n.split(x, len(x)),
    "split in one": lambda n, x: n.split(x, 1),
    "array_split": lambda n, x: n.array_split(x, 2),
    "hsplit": lambda n, x: n.hsplit(x, 2),
    "vsplit": lambda n, x: n.vsplit(x, 3),
    "dsplit": lambda n, x: n.dsplit(x, 2),
    "concatenate of one": lambda n, x: n.concatenate([x]),
    "stack of one": lambda n, x: n.stack([x]),
    "hstack of one": lambda n, x: n.hstack([x]),
    "block of one": lambda n, x: n.block([[x]]),
    "where(True)": lambda n, x: n.where(True, x, x),
    "select": lambda n, x: n.select([n.ones(x.shape, bool)], [x]),
    "take": lambda n, x: n.take(x, [0, 1], axis=0),
    "take a slice": lambda n, x: n.take(x, np.arange(len(x)), axis=0),
    "compress": lambda n, x: n.compress([True] * len(x), x, axis=0),
    "sum over nothing": lambda n, x: n.sum(x, axis=()),
    "max over nothing": lambda n, x: n.max(x, axis=()),
    "mean over nothing": lambda n, x: n.mean(x, axis=()),
    "tile once": lambda n, x: n.tile(x, 1),
    "repeat once": lambda n, x: n.repeat(x, 1, axis=0),
    "repeat counts": lambda n, x: n.repeat(x, [1] * len(x), axis=0),
    "pad nothing": lambda n, x: n.pad(x, 0),
    "roll nothing": lambda n, x: n.roll(x, 0),
    "roll nothing along an axis": lambda n, x: n.roll(x, 0, axis=0),
    "rot90 by 0": lambda n, x: n.rot90(x, 0),
    "rot90 by 2": lambda n, x: n.rot90(x, 2),
    "flip nothing": lambda n, x: n.flip(x, ()),
    "delete nothing": lambda n, x: n.delete(x, [], axis=0),
    "append nothing": lambda n, x: n.append(x, []),
    "clip without bounds": lambda n, x: n.clip(x, -1e9, 1e9),
    "einsum ij->ij": lambda n, x: n.einsum("ij->ij", x),
    "einsum ij->ji": lambda n, x: n.einsum("ij->ji", x),
    "resize": lambda n, x: n.resize(x, x.shape),
    "full of it": lambda n, x: n.full((2, *x.shape), x),
    "full_like of it": lambda n, x: n.full_like(x, x),
    "meshgrid": lambda n, x: n.meshgrid(x, x),
    "meshgrid of views": lambda n, x: n.meshgrid(x, x, copy=False),
    "trim_zeros": lambda n, x: n.trim_zeros(x),
    "diff of nothing": lambda n, x: n.diff(x, n=0),
    "interp": lambda n, x: n.nan_to_num(x, copy=False),
    "squeeze": lambda n, x: n.squeeze(x, 0),
    "unstack": lambda n, x: n.unstack(x, axis=-1),
    "matrix_transpose": lambda n, x: n.matrix_transpose(x),
    "linalg.matrix_power": lambda n, x: n.linalg.matrix_power(x, 1),
}
WRITABLE = {"broadcast_arrays", "broadcast_to same", "meshgrid of views"}
"""NumPy warns of writing to those that share elements, and forbids it even to those that do not."""
IMAGINARY = {"imag", "x.imag"}
"""NumPy makes zeros that are read-only."""
CASES = {name: lambda n, x, name=name: getattr(n, name)(x) for name in FUNCTIONS} | FORMS


def of_one(out):
    """The first array of a result that may be several."""
    while isinstance(out, (list, tuple)):
        out = out[0]
    return out


def with_numpy(form, x):
    """What NumPy makes of it; None if that is no array."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            out = of_one(form(np, x))
        except Exception:
            return None
    return out if isinstance(out, np.ndarray) and out.dtype.kind in "biufc" else None


def shares(form, x):
    """Whether functx lets the result follow a write to the argument."""

    def probe(x):
        before = of_one(form(functx.numpy, x))
        kept = before.copy()
        x[...] = ~x if x.dtype == bool else -x - 1
        return kept, before

    kept, after = functx.functionalize(probe)(x.copy())
    return not np.array_equal(kept, after, equal_nan=True)


def writable(form, x):
    """Whether functx lets the result be written to."""

    def probe(x):
        of_one(form(functx.numpy, x))[...] = 1

    try:
        functx.functionalize(probe)(x.copy())
    except ImmutableArrayError:
        return False
    return True


@pytest.mark.parametrize("name", CASES)
def test_results_share_memory_where_those_of_numpy_do(name, x64):
    with by_reference():
        for kind, x in ARRAYS.items():
            form, wanted = CASES[name], with_numpy(CASES[name], x)
            if wanted is None or not wanted.size:
                continue
            try:
                found = shares(form, x), writable(form, x)
            except FunctxError:
                # It takes less than NumPy does.
                continue
            assert found[0] == np.shares_memory(wanted, x), f"shares memory, of a {kind}"
            if name not in WRITABLE and not (name in IMAGINARY and kind != "complex"):
                assert found[1] == wanted.flags.writeable, f"can be written to, of a {kind}"


@pytest.mark.parametrize("kind", ["matrix", "complex", "deep"])
def test_views_share_memory_outside_of_a_trace_as_well(kind, x64):
    x = ARRAYS[kind]
    for name, form in CASES.items():
        wanted = None if name.startswith(("x.", "x[")) else with_numpy(form, x)
        if wanted is None or not wanted.size or not np.shares_memory(wanted, x):
            continue
        try:
            found = of_one(form(functx.numpy, x))
        except FunctxError:
            continue
        assert np.shares_memory(found, x), name
        if name not in WRITABLE and not (name in IMAGINARY and kind != "complex"):
            assert found.flags.writeable == wanted.flags.writeable, name
    for copy in (functx.numpy.ravel, functx.numpy.ascontiguousarray):
        assert not np.shares_memory(copy(x[..., ::2]), x)
