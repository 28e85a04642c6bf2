"""Calls of a namespace of functx, compared to the same calls of one of JAX's."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
from functx.lowering.jit import jit
from functx.transforms.jvp import jvp
from functx.transforms.vjp import vjp

TOLERANCE = {"float16": 2e-3, "bfloat16": 2e-2, "float64": 1e-12, "complex128": 1e-12}


def draw(*types, seed=0):
    """Operands for types such as `"f32[2,3]"` (`~` before a weak one); other values are kept."""
    random = np.random.RandomState(seed)
    return [array(random, t) if isinstance(t, str) else t for t in types]


NAMES = {"f": "float", "bf": "bfloat", "i": "int", "u": "uint", "c": "complex"}


def array(random, text):
    weak = text.startswith("~")
    name, _, dims = text.lstrip("~").rstrip("]").partition("[")
    shape = tuple(int(n) for n in dims.split(",") if n)
    letters = name.rstrip("0123456789")
    dtype = jnp.dtype(name if name == "bool" else NAMES[letters] + name[len(letters) :])
    if dtype == bool:
        return random.rand(*shape) > 0.5
    if dtype.kind in "iu":
        x = random.randint(0 if dtype.kind == "u" else -9, 10, shape)
    else:
        x = random.uniform(-2, 2, shape)
    if dtype.kind == "c":
        x = x + 1j * random.uniform(-2, 2, shape)
    x = np.asarray(x).astype(dtype)
    return jax.lax.full_like(x, x.flat[0], shape=shape) * 1 if weak and not shape else (
        jnp.broadcast_to(x.flat[0].item(), shape) if weak else x
    )


def agree(ours, theirs, call, *types, seed=0):
    """`call(ours, *operands)` is `call(theirs, *operands)`, traced and at once."""
    operands = draw(*types, seed=seed)
    expected = call(theirs, *[jnp.asarray(x) if isinstance(x, np.ndarray) else x for x in operands])
    same(call(ours, *operands), expected, weak=False)
    same(jit(lambda *args: call(ours, *args))(*operands), expected)


def agree_in_derivatives(ours, theirs, call, *types, seed=0):
    """The pullback and the pushforward of the call are JAX's."""
    primals = [x for x in draw(*types, seed=seed)]
    tangents = [x for x in draw(*types, seed=seed + 1)]
    out, back = jax.vjp(lambda *args: call(theirs, *args), *primals)
    cts = jax.tree.map(lambda x: np.asarray(cotangent(x)), out)
    same(vjp(lambda *args: call(ours, *args), *primals)[1](cts), back(cts), weak=False)
    pushed = jax.jvp(lambda *args: call(theirs, *args), primals, tangents)[1]
    found = jvp(lambda *args: call(ours, *args), tuple(primals), tuple(tangents))[1]
    leaves = [x for x in jax.tree.leaves(pushed) if x.dtype != jax.dtypes.float0]
    inexact = [x for x in jax.tree.leaves(found) if x.dtype.kind not in "iub" and x.dtype != jax.dtypes.float0]
    same(inexact, leaves, weak=False)


def cotangent(x):
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        return np.zeros(x.shape, jax.dtypes.float0)
    return np.cos(np.arange(x.size)).reshape(x.shape).astype(x.dtype)


def same(found, expected, weak=True):
    found, expected = jax.tree.leaves(found), jax.tree.leaves(expected)
    assert len(found) == len(expected), f"{len(found)} results for {len(expected)}"
    for ours, theirs in zip(found, expected, strict=True):
        theirs_array = np.asarray(theirs)
        assert np.shape(ours) == theirs_array.shape, f"{np.shape(ours)} for {theirs_array.shape}"
        assert ours.dtype == theirs_array.dtype, f"{ours.dtype} for {theirs_array.dtype}"
        if weak:
            found_weak, wanted_weak = (getattr(x, "weak_type", False) for x in (ours, theirs))
            assert found_weak == wanted_weak, f"weak: {found_weak} for {wanted_weak}"
        tolerance = TOLERANCE.get(str(ours.dtype), 2e-5)
        wide = np.complex128 if theirs_array.dtype.kind == "c" else None
        if wide is None and theirs_array.dtype.kind not in "iub":
            wide = np.float64
        if wide is None:
            np.testing.assert_array_equal(np.asarray(ours), theirs_array)
        else:
            np.testing.assert_allclose(
                np.asarray(ours).astype(wide), theirs_array.astype(wide), tolerance, tolerance
            )


def cases(*groups):
    """Parameters `(call, *types)` with their source as the id."""
    import pytest

    return [pytest.param(*[group], id=label(group)) for group in groups]


def label(group):
    call, *types = group
    lines = inspect.getsource(call).strip()
    start = lines.find("lambda")
    return lines[start : start + 60].split(":", 1)[-1].strip() + " " + " ".join(map(str, types))[:40]
