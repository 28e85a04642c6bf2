"""Generators of statements that write to an existing array."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.mutation.programs import APART, Draft

OPERATORS = {
    "f": ["+=", "-=", "*=", "/=", "**="],
    "c": ["+=", "-=", "*=", "/="],
    "i": ["+=", "-=", "*=", "//=", "%=", "&=", "|=", "^=", "<<=", ">>="],
    "u": ["+=", "&=", "|=", "^="],
    "b": ["&=", "|=", "^="],
}


def inexact(x: Any) -> bool:
    return x.dtype.kind in "fc"


def real(x: Any) -> bool:
    return x.dtype.kind == "f"


def operation(draft: Draft, shape: tuple[int, ...], kind: str, kept: bool = False) -> str:
    """An operator with a suitable right-hand side."""
    operator = draft.rng.choice(OPERATORS[kind])
    if operator in ("/=", "//=", "%=", "<<=", ">>=", "**="):
        small = {"/=": ["1.5", "-2.0"], "<<=": ["1"], ">>=": ["1"], "**=": ["2"]}
        return f"{operator} {draft.rng.choice(small.get(operator, ['2', '3']))}"
    if operator == "*=" and kind == "i":
        return f"{operator} {draft.rng.choice(['2', '-1', '3'])}"
    return f"{operator} {draft.value(shape, kind, kept)}"


def shape_at(x: Any, index: str) -> tuple[int, ...]:
    return eval(f"x[{index}]", {"x": x, "np": np}).shape


def assigned(draft: Draft) -> str | None:
    x = draft.target(lambda x: x.ndim and x.size)
    if x is None:
        return None
    array = draft.scope[x]
    index = draft.index(array.shape)
    return f"{x}[{index}] = {draft.value(shape_at(array, index), array.dtype.kind)}"


def whole_assigned(draft: Draft) -> str | None:
    x = draft.target()
    if x is None:
        return None
    array = draft.scope[x]
    forms = [f"{x}[...] = ", f"{x}[()] = " if not array.ndim else f"{x}[:] = "]
    return draft.rng.choice(forms) + draft.value(array.shape, array.dtype.kind)


def updated(draft: Draft) -> str | None:
    x = draft.target()
    return x and f"{x} {operation(draft, draft.scope[x].shape, draft.scope[x].dtype.kind)}"


def part_updated(draft: Draft) -> str | None:
    x = draft.target(lambda x: x.ndim and x.size)
    if x is None:
        return None
    array = draft.scope[x]
    index = draft.index(array.shape)
    return f"{x}[{index}] {operation(draft, shape_at(array, index), array.dtype.kind)}"


def advanced_index(draft: Draft, array: Any, unique: bool = False) -> str:
    """An index with integer arrays or known masks into a non-empty array."""
    n = len(array)
    low = draft.whole(0, n)
    places = [low, (low + 1) % n] if n > 1 else [0]
    if not unique:
        places = draft.rng.choice([[low, low], [low, low - n, (low + 1) % n], places])
    mask = [draft.chance(0.5) for _ in range(n)]
    forms = [f"{places}", f"np.array({places})", f"np.array({mask})", f"{[places[0]]}, ..."]
    if array.ndim > 1 and array.shape[1]:
        m = array.shape[1]
        forms += [f"{places}, {draft.whole(0, m)}", f"{places}, {draft.item(m, False)}"]
        forms += [f"{draft.item(n, False)}, {[draft.whole(0, m)]}", f"[[0]], [[0, {m - 1}]]"]
        forms += [f"0, np.array({[draft.chance(0.5) for _ in range(m)]})", "..., [0], None"]
    return draft.rng.choice(forms)


def scattered(draft: Draft) -> str | None:
    x = draft.target(lambda x: x.ndim and x.size)
    if x is None:
        return None
    array = draft.scope[x]
    index = advanced_index(draft, array)
    return f"{x}[{index}] = {draft.value(shape_at(array, index), array.dtype.kind)}"


def scatter_updated(draft: Draft) -> str | None:
    x = draft.target(lambda x: x.ndim and x.size)
    if x is None:
        return None
    array = draft.scope[x]
    index = advanced_index(draft, array)
    return f"{x}[{index}] {operation(draft, shape_at(array, index), array.dtype.kind)}"


def masked(draft: Draft) -> str | None:
    x = draft.target(lambda x: real(x) and x.ndim)
    if x is None:
        return None
    mask = f"{x} > {draft.between(draft.scope[x])}"
    scalar = draft.rng.choice([draft.number(), f"np.sin({x}).sum()", f"{x}.ravel()[0]"])
    forms = [f"{x}[{mask}] = {scalar}", f"{x}[{mask}] *= 0.5", f"np.putmask({x}, {mask}, {scalar})"]
    forms += [f"{x}[{mask}] = 0.5 * {x}[{mask}]"]
    forms += [f"np.copyto({x}, {draft.value(draft.scope[x].shape, 'f')}, where={mask})"]
    forms += [f"np.place({x}, {mask}, [{scalar}, 0.25])", f"{x}[~({mask})] += 0.75"]
    forms += [f"np.putmask({x}, {mask}, np.cos({x}))", f"np.negative({x}, out={x}, where={mask})"]
    return draft.rng.choice(forms)


def with_out(draft: Draft) -> str | None:
    x = draft.target(inexact)
    if x is None:
        return None
    array = draft.scope[x]
    value = draft.value(array.shape, array.dtype.kind)
    forms = [f"np.add({value}, {draft.number()}, out={x})", f"np.sin({value}, out={x})"]
    forms += [f"np.multiply({x}, {value}, out={x})", f"np.subtract({value}, {x}, out=({x},))"]
    forms += [f"np.square({x}, out={x})", f"np.cos({x}, {x})", f"np.add({x}, {value}, {x})"]
    if real(array) and array.ndim:
        forms += [f"np.cumsum({x}, axis=-1, out={x})", f"np.round({x} * 0, out={x})"]
        forms += [f"np.clip({x}, -9.0, 9.0, out={x})", f"{x}.clip(-9.0, 9.0, out={x})"]
    return draft.rng.choice(forms)


def reduced_into(draft: Draft) -> str | None:
    y = draft.pick(lambda y: real(y) and y.ndim and y.size)
    if y is None:
        return None
    source = draft.scope[y]
    axis = draft.whole(0, source.ndim)
    left = (*source.shape[:axis], *source.shape[axis + 1 :])
    x = draft.target(lambda x: real(x) and x.shape == left)
    forms = [f"np.sum({y}, axis={axis}, out={x})", f"np.mean({y}, {axis}, out={x})"]
    forms += [f"{y}.sum({axis}, out={x})", f"np.add.reduce({y}, axis={axis}, out={x})"]
    if source.ndim == 2 and not axis:
        forms += [f"np.matmul({y}.T, {y}[:, 0] * 0.1, out={x})", f"np.stack([*{y}[0]], out={x})"]
        forms += [f'np.einsum("ij->j", {y}, out={x})', f"np.concatenate([{y}[0]], out={x})"]
    if draft.spread(source):
        forms.append(f"np.max({y}, axis={axis}, out={x})")
    return x and draft.rng.choice(forms)


def accumulated(draft: Draft) -> str | None:
    x = draft.target(lambda x: inexact(x) and x.ndim and x.size)
    if x is None:
        return None
    array = draft.scope[x]
    index = advanced_index(draft, array)
    value = draft.value(shape_at(array, index), array.dtype.kind)
    index = f"np.s_[{index}]"
    forms = [f"np.add.at({x}, {index}, {value})", f"np.subtract.at({x}, {index}, {value})"]
    forms += [f"np.multiply.at({x}, {index}, {draft.number()})"]
    return draft.rng.choice(forms)


def put(draft: Draft) -> str | None:
    x = draft.target(lambda x: inexact(x) and x.size > 1)
    if x is None:
        return None
    n = draft.scope[x].size
    value = draft.value((3,), draft.scope[x].dtype.kind, kept=True)
    places = [draft.whole(-n, n) for _ in range(3)]
    forms = [f"np.put({x}, {places}, {value})", f"{x}.put({places}, {value})"]
    forms += [f'np.put({x}, [0, {n + 1}, 1], {value}, mode="{draft.rng.choice(["wrap", "clip"])}")']
    forms += [f"np.put({x}, [{n - 1}, 0], [0.5, -0.5])", f"np.put({x}, {places}, {draft.number()})"]
    return draft.rng.choice(forms)


def copied_to(draft: Draft) -> str | None:
    x = draft.target()
    return x and f"np.copyto({x}, {draft.value(draft.scope[x].shape, draft.scope[x].dtype.kind)})"


def diagonal_filled(draft: Draft) -> str | None:
    x = draft.target(lambda x: inexact(x) and x.ndim == 2 and min(x.shape) > 0)
    forms = [f"np.fill_diagonal({x}, {draft.number()})", f"np.fill_diagonal({x}, [0.5, -0.5])"]
    forms.append(f"np.fill_diagonal({x}, {draft.number()}, wrap=True)")
    return x and draft.rng.choice(forms)


def put_along_axis(draft: Draft) -> str | None:
    x = draft.target(lambda x: inexact(x) and x.ndim == 2 and min(x.shape) > 0)
    if x is None:
        return None
    rows, columns = draft.scope[x].shape
    value = draft.value((rows, 1), draft.scope[x].dtype.kind, kept=True)
    places = [[draft.whole(0, columns)] for _ in range(rows)]
    return f"np.put_along_axis({x}, np.array({places}), {value}, axis=1)"


def by_method(draft: Draft) -> str | None:
    x = draft.target(lambda x: inexact(x) and x.size)
    if x is None:
        return None
    array = draft.scope[x]
    n = array.size
    forms = [f"{x}.fill({draft.number()})", f"{x}.flat[{draft.whole(-n, n)}] = {draft.number()}"]
    forms += [f"{x}.flat[{draft.item(n, False)}] = {draft.number()}", f"{x}.flat = 0.5"]
    forms += [f"{x}.flat[[0, {n - 1}]] = [0.25, {draft.number()}]", f"{x}.flat[::2] = [0.5, -1.5]"]
    if real(array) and array.ndim and draft.spread(array):
        forms += [f"{x}.sort()", f"{x}.sort(axis={draft.whole(0, array.ndim)})"] * 2
    return draft.rng.choice(forms)


def moved(draft: Draft) -> str | None:
    """A write to a slice that overlaps the slice that is read."""
    x = draft.target(lambda x: x.ndim and len(x) > 1)
    if x is None:
        return None
    forms = [f"{x}[1:] = {x}[:-1]", f"{x}[:-1] = {x}[1:]", f"{x}[...] = {x}[::-1]"]
    forms += [f"{x}[0], {x}[-1] = {x}[-1].copy(), {x}[0].copy()", f"{x}[[0, 1]] = {x}[[1, 0]]"]
    if inexact(draft.scope[x]):
        forms += [f"{x}[1:] += {x}[:-1]", f"{x} += {x}[::-1]", f"{x}[:-1] *= {x}[1:]"]
        forms += [f"np.add({x}[1:], {x}[:-1], out={x}[1:])"]
        if draft.scope[x].ndim == 2 and len(set(draft.scope[x].shape)) == 1:
            forms += [f"{x} += {x}.T", f"{x}[...] = {x}.T", f"{x} @= np.eye(len({x}))"]
    return draft.rng.choice(forms)


def view_written(draft: Draft) -> str | None:
    """A write to a view without a name."""
    x = draft.target(lambda x: inexact(x) and x.ndim and x.size)
    if x is None:
        return None
    value = draft.number()
    forms = [f"{x}.T[0] = {value}", f"{x}.T[...] *= {value}", f"{x}.reshape(-1)[0] = {value}"]
    forms += [f"{x}[::-1][0] += {value}", f"{x}[None][0, 0] -= {value}", f"{x}.ravel()[-1] = 0.5"]
    if draft.scope[x].dtype.kind == "c":
        forms += [f"{x}.real = {value}", f"{x}.imag[0] = {value}", f"{x}.real *= 0.5"]
        forms += [f"{x}.imag += {value}", f"{x}.real[...] = {x}.imag"]
    return draft.rng.choice(forms)


def looped(draft: Draft) -> str | None:
    x = draft.target(lambda x: inexact(x) and x.ndim and len(x) > 1)
    if x is None:
        return None
    array, n = draft.scope[x], len(draft.scope[x])
    forms = [f"for i in range(1, {n}):\n    {x}[i] += 0.5 * {x}[i - 1]"]
    forms.append(f"for i in range({n}):\n    {x}[i] = np.sin({x}[-i - 1])")
    if array.ndim > 1:
        forms.append(f"for r in {x}:\n    r *= 0.9\n    r[0] = r[-1]")
        forms.append(f"for i, r in enumerate({x}):\n    r -= {x}[i - 1]")
        forms.append(f"for r, s in zip({x}, {x}[::-1]):\n    r[...] = 0.5 * (r + s)")
        forms.append(f"for c in {x}.T:\n    c += c[0]")
    forms.append(f"for y in [{x}[::2], {x}[1:]]:\n    y *= 0.5")
    return draft.rng.choice(forms)


WRITES = [
    assigned, assigned, whole_assigned, updated, updated, part_updated, part_updated, scattered,
    scatter_updated, masked, with_out, reduced_into, accumulated, put, copied_to, diagonal_filled,
    put_along_axis, by_method, moved, view_written, looped,
]  # fmt: skip


def flow_loop(draft: Draft) -> str | None:
    """A loop with a number of steps that is not known while tracing."""
    x = draft.target(lambda x: real(x) and x.ndim and len(x) > 1)
    y = draft.pick(lambda y: real(y) and y.ndim and len(y) > 1)
    if x is None or y is None:
        return None
    n = min(len(draft.scope[x]), len(draft.scope[y]))
    forms = [f"{x}[i] += 0.5 * {x}[i - 1]", f"{x}[i] = np.sin({y}[i - 1]).sum()"]
    forms += [f"{x}[i - 1] *= 0.5\n    {x}[i] += {x}[0]", f"{x}[...] *= 0.9\n    {x}[i] = 0.5"]
    forms += [f"w = {x}[1:]\n    w[i - 1] -= np.cos({y}[i]).sum()", f"{x}.T[0] += {x}.T[-1]"]
    body = draft.rng.choice(forms)
    return f"def step(i):\n    {body}\nflow.loop(1, {n}, step)"


def flow_choice(draft: Draft) -> str | None:
    """A branch whose condition is not known while tracing."""
    x = draft.target(lambda x: real(x) and x.ndim and x.size)
    y = draft.pick(lambda y: real(y) and y.size and bool(abs(y.sum()) > 50 * APART))
    if x is None or y is None:
        return None
    index = draft.index(draft.scope[x].shape)
    return (
        f"def then():\n    {x}[{index}] += {draft.number()}\n"
        f"def otherwise():\n    {x}[...] = 0.5 * {draft.number()} * np.sin({x})\n"
        f"flow.either({y}.sum() > 0, then, otherwise)"
    )


CONTROL = [flow_loop, flow_choice]
