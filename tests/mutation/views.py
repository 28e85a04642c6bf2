"""Generators of expressions with one array that are views or copies."""

from __future__ import annotations

from typing import Any

from tests.mutation.programs import Draft, _factors

Made = tuple[str, str] | None
"""An expression, and the name of the array that it is a view of."""


def deep_enough(draft: Draft, fits: Any = lambda x: True) -> str | None:
    """The name of an array that may have one more view."""
    shallow = {k for k in draft.arrays if draft.depths.get(k, 0) < 4}
    same = [k for k in shallow if fits(draft.scope[k])]
    return draft.rng.choice(sorted(same)) if same else None


def of_rank(low: int) -> Any:
    return lambda x: x.ndim >= low


def sliced(draft: Draft) -> Made:
    x = deep_enough(draft, of_rank(1))
    return x and (f"{x}[{draft.index(draft.scope[x].shape)}]", x)


def scalar_view(draft: Draft) -> Made:
    x = deep_enough(draft, lambda x: x.ndim and x.size)
    if x is None:
        return None
    at = [str(draft.whole(-n, n)) for n in draft.scope[x].shape]
    at.insert(draft.rng.choice([0, len(at)]), "...")
    return f"{x}[{', '.join(at)}]", x


def transposed(draft: Draft) -> Made:
    x = deep_enough(draft, of_rank(2))
    if x is None:
        return None
    n = draft.scope[x].ndim
    axes = draft.rng.sample(range(n), n)
    forms = [f"{x}.T", f"np.transpose({x})", f"{x}.transpose({axes})", f"{x}.mT"]
    forms += [f"np.transpose({x}, {axes})", f"np.permute_dims({x}, {axes})"]
    return draft.rng.choice(forms), x


def axes_moved(draft: Draft) -> Made:
    x = deep_enough(draft, of_rank(2))
    if x is None:
        return None
    n = draft.scope[x].ndim
    i, j = draft.whole(-n, n), draft.whole(-n, n)
    forms = [f"np.swapaxes({x}, {i}, {j})", f"{x}.swapaxes({i}, {j})"]
    forms += [f"np.moveaxis({x}, {i}, {j})", f"np.rollaxis({x}, {i})"]
    return draft.rng.choice(forms), x


def reshaped(draft: Draft) -> Made:
    x = deep_enough(draft, lambda x: x.size)
    if x is None:
        return None
    shape = draft.rng.choice(_factors(draft.scope[x].size))
    forms = [f"{x}.reshape({shape})", f"np.reshape({x}, {shape})", f"{x}.reshape(-1)"]
    forms += [f"{x}.T.reshape({shape})", f'{x}.reshape({shape}, order="F")']
    return draft.rng.choice(forms), x


def raveled(draft: Draft) -> Made:
    x = deep_enough(draft)
    forms = [f"{x}.ravel()", f"np.ravel({x})", f'{x}.ravel(order="F")', f"{x}.T.ravel()"]
    return x and (draft.rng.choice(forms), x)


def squeezed(draft: Draft) -> Made:
    x = deep_enough(draft, lambda x: 1 in x.shape)
    if x is None:
        return None
    axis = draft.scope[x].shape.index(1)
    forms = [f"np.squeeze({x})", f"{x}.squeeze()", f"np.squeeze({x}, {axis})"]
    return draft.rng.choice(forms), x


def expanded(draft: Draft) -> Made:
    x = deep_enough(draft, lambda x: x.ndim < 4)
    if x is None:
        return None
    axis = draft.whole(-1, draft.scope[x].ndim + 1)
    forms = [f"np.expand_dims({x}, {axis})", f"{x}[None]", f"{x}[..., None]"]
    forms += [f"np.atleast_2d({x})", f"np.atleast_3d({x})", f"np.atleast_1d({x})"]
    return draft.rng.choice(forms), x


def piece(draft: Draft) -> Made:
    x = deep_enough(draft, lambda x: x.ndim and x.size)
    if x is None:
        return None
    shape = draft.scope[x].shape
    axis = draft.whole(0, len(shape))
    n = shape[axis]
    forms = [f"np.array_split({x}, {min(n, 2)}, axis={axis})[0]"]
    forms += [f"np.split({x}, {n}, axis={axis})[-1]", f"np.split({x}, [1], {axis})[0]"]
    if n > 1:
        forms += [f"np.split({x}, [1, {n - 1}], {axis})[2]", f"np.unstack({x}, axis={axis})[1]"]
    if len(shape) > 1:
        forms += [f"np.hsplit({x}, {shape[1]})[0]", f"np.vsplit({x}, {shape[0]})[-1]"]
    return draft.rng.choice(forms), x


def part(draft: Draft) -> Made:
    x = deep_enough(draft, lambda x: x.dtype.kind == "c")
    return x and (draft.rng.choice([f"{x}.real", f"{x}.imag", f"np.real({x})", f"np.imag({x})"]), x)


def flipped(draft: Draft) -> Made:
    x = deep_enough(draft, of_rank(1))
    if x is None:
        return None
    n = draft.scope[x].ndim
    forms = [f"np.flip({x})", f"np.flip({x}, {draft.whole(0, n)})", f"np.flipud({x})"]
    if n > 1:
        forms += [f"np.fliplr({x})", f"np.rot90({x}, {draft.whole(-1, 4)})"]
    return draft.rng.choice(forms), x


def repeated(draft: Draft) -> Made:
    x = deep_enough(draft, lambda x: x.ndim < 3)
    if x is None:
        return None
    shape = draft.scope[x].shape
    forms = [f"np.broadcast_to({x}, {(2, *shape)})"]
    if shape and shape[-1] > 1:
        forms.append(f"np.lib.stride_tricks.sliding_window_view({x}, 2, axis=-1)")
    return draft.rng.choice(forms), x


def diagonal(draft: Draft) -> Made:
    x = deep_enough(draft, lambda x: x.ndim == 2 and x.size)
    forms = [f"np.diagonal({x})", f"np.diag({x})", f"{x}.diagonal()", f"np.diagonal({x}, 1)"]
    return x and (draft.rng.choice(forms), x)


def row(draft: Draft) -> Made:
    x = deep_enough(draft, lambda x: x.ndim > 1 and len(x))
    forms = [f"[*{x}][{draft.whole(0, 10)} % len({x})]", f"next(iter({x}))"]
    forms.append(f"[y for y in {x}.T if True][0]")
    return x and (draft.rng.choice(forms), x)


def counted_row(draft: Draft) -> Made:
    """A row at an index that is not known while tracing."""
    counts = draft.pick(lambda x: x.dtype.kind == "i" and x.shape == (2,))
    x = deep_enough(draft, lambda x: x.ndim > 1 and len(x) > 1)
    if counts not in dict(draft.arguments) or x is None:
        return None
    n = len(draft.scope[x])
    return draft.rng.choice([f"{x}[{counts}[0] % {n}]", f"{x}[{counts}[1] % {n}, ::-1]"]), x


def reinterpreted(draft: Draft) -> Made:
    x = deep_enough(
        draft, lambda x: x.dtype.kind in "iu" or (not draft.smooth and x.dtype.kind == "f")
    )
    if x is None:
        return None
    kind = draft.scope[x].dtype.kind
    others = {"i": ["uint64", "int32"], "u": ["int64"], "f": ["int64", "uint64", "float32"]}
    if draft.smooth:
        others["i"] = ["uint64"]
    dtype = draft.rng.choice(others.get(kind, ["float64"]))
    return f'{x}.view("{dtype}")', x


def itself(draft: Draft) -> Made:
    x = deep_enough(draft)
    forms = [f"{x}[...]", f"{x}[:]", f"np.asarray({x})", f"{x}.view()", f"np.asanyarray({x})"]
    forms += [f"{x}.astype({x}.dtype, copy=False)", f"np.asarray({x}, {x}.dtype)", f"{x}[()]"]
    forms.append(f"np.ascontiguousarray({x})")
    return x and (draft.rng.choice(forms), x)


VIEWS = [
    sliced, sliced, sliced, scalar_view, transposed, axes_moved, reshaped, reshaped, raveled,
    squeezed, expanded, piece, part, flipped, repeated, diagonal, row, counted_row, reinterpreted,
    itself,
]  # fmt: skip


def copied(draft: Draft) -> str | None:
    x = draft.pick(lambda x: x.dtype.kind != "b")
    forms = [f"{x}.copy()", f"np.copy({x})", f"{x} + 0", f"{x} * 1", f"np.array({x})", f"+{x}"]
    forms += [f"{x}.flatten()", f"{x}.astype({x}.dtype)", f"np.tile({x}, 1)", f"np.roll({x}, 0)"]
    forms += [f"np.concatenate([{x}.ravel()])", f"np.repeat({x}, 1)", f"np.where(True, {x}, {x})"]
    return x and draft.rng.choice(forms)


def gathered(draft: Draft) -> str | None:
    x = draft.pick(lambda x: x.ndim and len(x) > 1)
    forms = [f"{x}[[1, 0, 1]]", f"{x}[np.array([0, -1])]", f"np.take({x}, [1, 0], axis=0)"]
    return x and draft.rng.choice(forms)


def computed(draft: Draft) -> str | None:
    x = draft.pick(lambda x: x.dtype.kind in "fc" and x.size)
    if x is None:
        return None
    shape = draft.scope[x].shape
    other = draft.value(shape, draft.scope[x].dtype.kind)
    forms = [f"np.sin({x})", f"0.5 * {x}", f"{x} - {other}", f"np.tanh({x}) * {other}"]
    forms += [f"np.cumsum({x}, axis=-1) * 0.3" if shape else f"-{x}", f"{x} + 0.5j * {x}"]
    return draft.rng.choice(forms)


def made(draft: Draft) -> str | None:
    shape = draft.rng.choice([(3, 4), (4,), (2, 3)])
    forms = [f"np.zeros({shape})", f"np.ones({shape})", f"np.full({shape}, {draft.number()})"]
    x = draft.pick(lambda x: x.ndim > 0)
    forms += [f"np.zeros_like({x})", f"np.zeros({x}.shape[-1:])", "np.arange(6).reshape(2, 3)"]
    forms += [f"np.full((2, {draft.scope[x].shape[-1]}), {x}[(0,) * {draft.scope[x].ndim - 1}])"]
    forms += [f"np.broadcast_to({x}, (2, *{x}.shape)).reshape(-1)", f"np.eye({shape[-1]})"]
    return draft.rng.choice(forms) if x is not None and draft.scope[x].size else None


COPIES = [copied, gathered, computed, made]
