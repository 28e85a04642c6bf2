"""A table of functions, methods and indices, each a view or a copy as with NumPy.

Each is asked by writing to its result and looking at the source, and by writing to the source
and looking at the result: plainly, and under each transform. The answers of NumPy are found by
running it.
"""

import re
import warnings

import jax
import numpy as np
import pytest

import functx
import functx.numpy
from functx import grad, jit, lax, nn, tree, vmap
from functx.core.errors import FunctxError, ImmutableArrayError
from tests.by_reference import by_reference

MATRIX = np.arange(12.0).reshape(3, 4) + 1.3
SOURCES = {
    "matrix": lambda: MATRIX.copy(),
    "columns": lambda: np.asfortranarray(MATRIX),
    "thinned": lambda: (np.arange(24.0).reshape(3, 8) + 1.3)[:, ::2],
    "backwards": lambda: MATRIX.copy()[::-1],
    "vector": lambda: np.arange(5.0) + 1.3,
    "square": lambda: np.arange(9.0).reshape(3, 3) + 1.3,
    "complex": lambda: MATRIX + 1j * MATRIX,
    "whole": lambda: np.arange(1, 13).reshape(3, 4),
    "deep": lambda: MATRIX.copy().reshape(1, 3, 1, 4),
    "stack": lambda: np.arange(8.0).reshape(2, 2, 2) + 1.3,
    "flags": lambda: np.arange(12).reshape(3, 4) % 2 == 0,
    "scalar": lambda: np.array(2.5),
    "one": lambda: np.array([3.3]),
    "one by one": lambda: np.array([[3.3]]),
    "nothing": lambda: np.zeros((0, 3)),
    "locked": lambda: np.broadcast_to(np.arange(3.0) + 1.3, (2, 3)),
}
FUNCTIONS = sorted(
    name
    for name in dir(functx.numpy)
    if callable(getattr(functx.numpy, name))
    and callable(getattr(np, name, None))
    and not isinstance(getattr(np, name), type)
    and not name.startswith("_")
    and name
    not in {"save", "savez", "load", "frombuffer", "frompyfunc", "vectorize", "put", "einsum_path"}
)
FORMS = """
x.T | x.mT | x.real | x.imag | x.conj() | x.conjugate() | x.copy() | x.view() | x.view(x.dtype)
x.view("int64") | x.view("int32") | x.ravel() | x.T.ravel() | x.flatten() | x.flatten("F")
x.squeeze() | x.diagonal() | x.reshape(-1) | x.T.reshape(-1) | x.reshape(x.shape)
x.reshape(x.shape[::-1]) | x.reshape(-1, order="F") | x.astype(x.dtype) | x.round() | x.round(2)
x.astype(x.dtype, copy=False) | x.astype("float64", copy=False) | x.repeat(1) | x.repeat(1, axis=0)
x.swapaxes(0, -1) | x.swapaxes(0, 0) | x.transpose() | x.flat[:] | x.flat[0] | x.flat[[0]]
x.flat.copy() | x.take(0) | x.take(0, axis=0) | x.take([0], axis=0) | x.clip(0) | x.sum(axis=())
x.max(axis=()) | x.mean(axis=()) | x.all(axis=()) | x.cumsum(0) | x.compress([True] * len(x), axis=0)
x[...] | x[()] | x[:] | x[None] | x[:, None] | x[0] | x[0, ...] | x[0, 1] | x[..., 0, 1] | x[0][0]
x[1:, ::2] | x[::-1] | x[-1:] | x[0:0] | x[(slice(None),)] | x.T[0] | x[[0, 1]] | x[0:2, [0]] | x[[0]]
x[0, [0]] | x[[]] | x[numpy.arange(len(x)) > 0] | x[numpy.ones(x.shape, bool)] | x[True]
x[None, True] | x[numpy.array(0)] | x[numpy.array(0), ...] | x[..., numpy.array(0)]
x[numpy.array(0), 1:] | x[numpy.array([0])] | x[numpy.int64(0)] | x[numpy.int64(0), ...]
next(iter(x)) | [row for row in x][-1] | next(reversed(x)) | +x | x + 0 | x * 1 | x**1 | x @ numpy.eye(x.shape[-1])
np.add(x, 0) | np.multiply(x, 1) | np.power(x, 1) | np.maximum(x, x) | np.round(x, 3)
np.reshape(x, (-1, 1)) | np.reshape(x.T, (-1, 1)) | np.reshape(x, -1, order="F") | np.reshape(x, -1, order="A")
np.reshape(x, -1, copy=True) | np.ravel(x, order="F") | np.ravel(x, order="A")
np.asarray(x, copy=False) | np.asarray(x, copy=True) | np.array(x, copy=False) | np.array(x, ndmin=3)
np.asarray(x, x.dtype) | np.asarray(x, "float64") | np.ascontiguousarray(x.T) | np.asarray([x])
np.array([x]) | np.broadcast_to(x, (2, *x.shape)) | np.broadcast_to(x, (2, *x.shape)).reshape(-1)
np.lib.stride_tricks.sliding_window_view(x, 2, axis=-1) | np.lib.stride_tricks.sliding_window_view(x, (2, 2))
np.swapaxes(x, 0, 1) | np.moveaxis(x, 0, -1) | np.moveaxis(x, 0, 0) | np.rollaxis(x, -1)
np.permute_dims(x, (1, 0)) | np.transpose(x, tuple(range(x.ndim))) | np.expand_dims(x, 0)
np.expand_dims(x, (0, 2)) | np.squeeze(x, 0) | np.diag(x, 1) | np.tril(x, 100) | np.triu(x, -100)
np.split(x, len(x)) | np.split(x, 1) | np.split(x, [1]) | np.split(x, [0]) | np.array_split(x, 2)
np.array_split(x, 10) | np.hsplit(x, 2) | np.vsplit(x, 3) | np.dsplit(x, 2) | np.unstack(x, axis=-1)
np.concatenate([x]) | np.concatenate([x], axis=None) | np.stack([x]) | np.hstack([x]) | np.vstack([x])
np.dstack([x]) | np.column_stack([x]) | np.block([[x]]) | np.append(x, []) | np.meshgrid(x, x)
np.append(x, numpy.zeros((0, *x.shape[1:])), axis=0) | np.meshgrid(x) | np.ix_(x)
np.where(True, x, x) | np.where(numpy.array(True), x, 0) | np.select([np.ones(x.shape, bool)], [x])
np.choose(numpy.zeros(x.shape, int), [x]) | np.choose(0, [x, x]) | np.extract(numpy.ones(x.shape, bool), x)
np.take(x, 0) | np.take(x, 0, axis=0) | np.take(x, 0, axis=-1) | np.take(x, numpy.array(0), axis=0)
np.take(x, [0, 1], axis=0) | np.take(x, numpy.arange(len(x)), axis=0) | np.take(x, 0, axis=0, mode="clip")
np.take(x, 0, axis=0, mode="wrap") | np.compress([True] * len(x), x, axis=0) | np.compress([True] * x.size, x)
np.take_along_axis(x, numpy.zeros(x.shape, int) + numpy.arange(x.shape[-1]), -1)
np.delete(x, [], axis=0) | np.delete(x, -1) | np.delete(x, 0, axis=0) | np.delete(x, slice(1, None), axis=0)
np.delete(x, slice(0, 0), axis=0) | np.delete(x, [0], axis=0) | np.delete(x, [False] * len(x), axis=0)
np.insert(x, [], 1.0) | np.insert(x, 0, numpy.zeros((0, *x.shape[1:])), axis=0)
np.sum(x, axis=()) | np.max(x, axis=()) | np.mean(x, axis=()) | np.prod(x, axis=()) | np.any(x, axis=())
np.nansum(x, axis=()) | np.nanmax(x, axis=()) | np.sum(x, axis=0, keepdims=True) | np.max(x, axis=0)
np.add.reduce(x, axis=()) | np.add.accumulate(x) | np.multiply.outer(1, x) | np.cumsum(x, axis=0)
np.sort(x, axis=None) | np.partition(x, 0) | np.diff(x, n=0) | np.gradient(x, axis=0)
np.tile(x, 1) | np.tile(x, (1, 1, 1)) | np.repeat(x, 1, axis=0) | np.repeat(x, [1] * len(x), axis=0)
np.repeat(x, numpy.int64(1)) | np.repeat(x, [1]) | np.pad(x, 0) | np.pad(x, 0, mode="edge") | np.roll(x, 0) | np.roll(x, 0, axis=0)
np.rot90(x, 0) | np.rot90(x, 2) | np.rot90(x) | np.flip(x, ()) | np.flip(x, 0) | np.resize(x, x.shape)
np.clip(x, -1e9, 1e9) | np.clip(x, None, None) | np.nan_to_num(x, copy=False) | np.trim_zeros(x)
np.full((2, *x.shape), x) | np.full_like(x, x) | np.piecewise(x, [x > 0], [lambda y: y]) | np.kron(1, x)
np.einsum("ij->ij", x) | np.einsum("ij->ji", x) | np.einsum("ii->i", x) | np.einsum("...ij->...ji", x)
np.einsum("ij->i", x) | np.dot(x, 1) | np.matrix_transpose(x) | np.linalg.matrix_power(x, 1)
np.linalg.multi_dot([x, numpy.eye(x.shape[-1])]) | np.fft.fftshift(x, axes=()) | np.fft.fftshift(x)
np.cross(np.resize(x, 3), np.resize(x, 3)) | np.fft.ifftshift(x, axes=0) | np.interp(x, x, x) | np.astype(x, x.dtype) | np.astype(x, x.dtype, copy=False)
"""
READ_ONLY = {
    "x.imag",
    "np.imag(x)",
    "np.imag([x])",
    "np.broadcast_to(x, (2, *x.shape))",
    "np.broadcast_to(x, (2, *x.shape)).reshape(-1)",
}
"""NumPy makes zeros of real numbers read-only, and what repeats nothing; here they are not."""
EXCEPT = {
    # NumPy only warns of writing to these,
    *["np.broadcast_arrays(x)", "np.broadcast_arrays(x, x)", "np.broadcast_arrays([x])"],
    *["np.broadcast_arrays(x, 1)", "np.broadcast_arrays(1, x)"],
    # and leaves what was there before in these.
    *["np.empty_like(x)", "np.empty_like(x, x)", "np.empty_like(x, 1)", "np.empty_like([x])"],
    "np.diag_indices(1, x)",
}
EXPRESSIONS = [form for line in FORMS.strip().splitlines() for form in line.split(" | ")]
EXPRESSIONS += [f"np.{name}(x)" for name in FUNCTIONS]
OF_TWO = [f"np.{name}({args})" for name in FUNCTIONS for args in ("x, x", "x, 1", "1, x", "[x]")]
CALLS = {
    text: eval(f"lambda np, x: {text}", {"numpy": np})
    for text in (*EXPRESSIONS, *OF_TWO)
    if text not in EXCEPT
}


def arrays_in(out):
    """The arrays of a result that may be several, NumPy's scalars among them."""
    if isinstance(out, (list, tuple)):
        return [x for one in out for x in arrays_in(one)]
    return [] if out is None or type(out) in (bool, int, float) else [out]


LOCKED = ()


def probe(np, call, x, views):
    """The source after the results are written to, these, and these after the source is.

    `views` says which of the results are arrays for NumPy; it writes to the names of the others.
    """
    outs = arrays_in(call(np, x))
    for i, is_array in enumerate(views):
        y = outs[i]
        new = ~y if y.dtype == bool else y + 100
        if is_array:
            y[...] = new
        elif y.dtype == bool:
            y ^= True
        else:
            y += 100
        outs[i] = y
    changed, written = x.copy(), [y.copy() for y in outs]
    if views is not LOCKED:
        x[...] = ~x if x.dtype == bool else 2 * x - 1
    return changed, written, [y.copy() for y in outs]


def answers(source, outcome):
    """Whether the source has changed with a result, and each result with the source."""
    changed, written, after = outcome
    return not np.array_equal(source, changed), [
        not np.array_equal(a, b, equal_nan=a.dtype.kind in "fc")
        for a, b in zip(map(np.asarray, written), map(np.asarray, after), strict=True)
    ]


READ_ONLY_ANSWER = "read-only"


def with_numpy(call, make):
    """Which results NumPy makes, its answers, and its outcome; None where it makes no arrays."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            outs = arrays_in(call(np, make()))
        except Exception:
            return None
        if not outs or any(getattr(y, "dtype", np.dtype(object)).kind not in "biufc" for y in outs):
            return None
        x = make()
        views = [isinstance(y, np.ndarray) for y in outs] if x.flags.writeable else LOCKED
        try:
            outcome = probe(np, call, x, views)
        except ValueError as error:
            return (views, READ_ONLY_ANSWER, None) if "read-only" in str(error) else None
    return views, answers(make(), outcome), outcome


def differs(transform, text, make, wanted):
    """How the answers under `transform` differ from NumPy's; None where they agree."""
    views, answer, _ = wanted
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = answers(
                make(), transform(lambda x: probe(functx.numpy, CALLS[text], x, views))(make())
            )
    except (FunctxError, TypeError, ValueError) as error:
        if not isinstance(error, ImmutableArrayError) and "read-only" not in str(error):
            # It takes less than NumPy does.
            assert isinstance(error, FunctxError) or "argument" in str(error), error
            return None
        found = READ_ONLY_ANSWER
    if text in READ_ONLY and answer == READ_ONLY_ANSWER:
        return None
    return None if found == answer else f"{text}: {found} for {answer}"


def one_lane(f):
    return lambda x: tree.map(lambda y: y[0], vmap(f)(x[None]))


def without_tracing(f):
    return f


TRANSFORMS = {"plainly": without_tracing, "functionalize": functx.functionalize, "vmap": one_lane}


@pytest.mark.parametrize("source", SOURCES)
def test_results_are_views_and_copies_as_with_numpy(source, x64):
    make, wrong = SOURCES[source], []
    texts = [*EXPRESSIONS, *(OF_TWO if source == "matrix" else [])]
    with by_reference():
        for text in texts:
            wanted = with_numpy(CALLS[text], make) if text in CALLS else None
            if wanted is None:
                continue
            copies = wanted[1] != READ_ONLY_ANSWER and not any([wanted[1][0], *wanted[1][1]])
            names = ["functionalize"]
            if source in ("matrix", "columns") and text not in OF_TWO:
                names.append("vmap")
            # A copy that is computed plainly is compiled for that.
            if not copies or (source == "matrix" and text not in OF_TWO):
                names.append("plainly")
            for name in names:
                found = differs(TRANSFORMS[name], text, make, wanted)
                wrong += [f"{name}: {found}"] if found else []
    assert not wrong, "\n".join(wrong)


NO_ARRAY_OF_ONE = """
allclose apply_along_axis apply_over_axes arange array_equal array_equiv array_repr array_str astype
bartlett bincount blackman broadcast_arrays broadcast_shapes can_cast copyto diag_indices empty
empty_like eye fill_diagonal fromfile fromfunction fromiter fromstring from_dlpack get_printoptions
hamming hanning identity indices iscomplexobj isdtype isrealobj isscalar issubdtype iterable kaiser
mask_indices ndim packbits place polyfit printoptions promote_types put_along_axis putmask
ravel_multi_index result_type set_printoptions shape size tri tril_indices triu_indices unpackbits
unravel_index zeros
"""
"""They write, answer questions, or make arrays of shapes and of integers."""


def test_the_table_has_every_function():
    """Each is called in a way that NumPy takes; the others make no arrays of one."""
    seen = set()
    for text, call in CALLS.items():
        if any(
            with_numpy(call, SOURCES[source]) for source in ("matrix", "vector", "whole", "stack")
        ):
            seen |= set(re.findall(r"np\.(\w+)\(", text))
    assert set(FUNCTIONS) - seen <= set(NO_ARRAY_OF_ONE.split()), set(FUNCTIONS) - seen


@pytest.mark.parametrize("source", ["matrix", "thinned"])
def test_compiled_results_are_views_and_copies_as_with_numpy(source, x64):
    make = SOURCES[source]
    wanted = {text: with_numpy(CALLS[text], make) for text in EXPRESSIONS if text in CALLS}
    chosen = [text for text, found in wanted.items() if found and found[2] is not None]

    def each(xs):
        outcomes = []
        for text, x in zip(chosen, xs, strict=True):
            try:
                outcomes.append(probe(functx.numpy, CALLS[text], x, wanted[text][0]))
            except (FunctxError, TypeError):
                outcomes.append(None)
        return outcomes

    sources = [make() for _ in chosen]
    outcomes = jit(each)(sources)
    wrong = [
        text
        for text, outcome in zip(chosen, outcomes, strict=True)
        if outcome is not None and answers(make(), outcome) != wanted[text][1]
    ]
    assert not wrong


def loss_of(outcome):
    """Weighted sums of what becomes of the source and of the results."""
    changed, _, after = outcome
    parts = [y for y in [changed, *after] if y.dtype.kind == "f"]
    weights = [np.cos(1.0 + k + np.arange(y.size)).reshape(y.shape) for k, y in enumerate(parts)]
    return sum([(y * w).sum() for y, w in zip(parts, weights, strict=True)], 0.0)


def moved(x, by):
    """`x` after a step, as it lies in memory."""
    x += by
    return x


@pytest.mark.parametrize("source", ["matrix", "columns", "vector"])
def test_derivatives_go_through_writes_to_views_and_stop_at_copies(source, x64):
    make, step, wrong = SOURCES[source], 1e-4, []
    along = np.sin(3.0 * np.arange(make().size)).reshape(make().shape)
    with by_reference(), np.errstate(all="ignore"), warnings.catch_warnings():
        # NumPy's, of functions that it deprecates.
        warnings.simplefilter("ignore", DeprecationWarning)
        for text in EXPRESSIONS:
            call = CALLS.get(text)
            wanted = with_numpy(call, make) if call else None
            # No derivative goes through the bits of a number.
            if not wanted or wanted[2] is None or text.startswith('x.view("int'):
                continue

            def loss(n, x, call=call, views=wanted[0]):
                return loss_of(probe(n, call, x, views))

            try:
                value, slope = functx.value_and_grad(lambda x, f=loss: f(functx.numpy, x))(make())
            except (FunctxError, TypeError):
                continue
            if not np.allclose(value, loss(np, make())):
                continue
            ends = [loss(np, moved(make(), h * along)) for h in (step, -step)]
            difference = (ends[0] - ends[1]) / (2 * step)
            if not np.allclose((slope * along).sum(), difference, rtol=1e-4, atol=1e-4):
                wrong.append(f"{text}: {(slope * along).sum()} for {difference}")
    assert not wrong, "\n".join(wrong)


def with_rules(wrapper, rules):
    """The identity as a function with a rule of its own."""
    f = wrapper(lambda x: x)
    rules(f)
    return f


LAX = """
dynamic_slice(x, (1, 1), (2, 2)) | dynamic_slice(x, (0, 0), x.shape)
dynamic_slice_in_dim(x, 1, 2) | dynamic_index_in_dim(x, 1)
dynamic_index_in_dim(x, 1, keepdims=False) | slice(x, (0, 0), x.shape) | slice_in_dim(x, 1, 2)
index_in_dim(x, 1) | reshape(x, (12,)) | reshape(x, x.shape) | transpose(x, (1, 0))
rev(x, (0,)) | rev(x, ()) | squeeze(x, ()) | expand_dims(x, (0,)) | broadcast(x, ())
broadcast(x, (2,)) | broadcast_in_dim(x, x.shape, (0, 1)) | broadcast_to_rank(x, 2)
broadcast_to_rank(x, 3) | collapse(x, 0) | convert_element_type(x, x.dtype)
bitcast_convert_type(x, x.dtype) | stop_gradient(x) | pad(x, 0.0, ((0, 0, 0),) * 2)
concatenate([x], 0) | split(x, (x.shape[0],))[0] | split(x, (1, x.shape[0] - 1))[1]
unstack(x)[0] | reduce_sum(x, ()) | reduce_max(x, ()) | integer_pow(x, 1) | sort(x) | cumsum(x)
select(x > 0, x, x) | select_n(x > 0, x, x) | clamp(-1e9, x, 1e9) | tile(x, (1, 1))
dynamic_update_slice(x, x[:0], (0, 0)) | dynamic_update_slice(x * 0, x, (0, 0)) | stack([x])
reduce_precision(x, 11, 52) | real(x + 0j) | conj(x + 0j)
"""
IDENTITIES = {
    "custom_jvp": with_rules(
        functx.custom_jvp, lambda f: f.defjvp(lambda primals, tangents: (primals[0], tangents[0]))
    ),
    "custom_vjp": with_rules(
        functx.custom_vjp, lambda f: f.defvjp(lambda x: (x, None), lambda _, ct: (ct,))
    ),
    "custom_vmap": with_rules(
        functx.custom_vmap, lambda f: f.def_vmap(lambda size, batched, x: (x, batched[0]))
    ),
    "checkpoint": functx.checkpoint(lambda x: x),
    "jit": jit(lambda x: x),
    "jit of a view": jit(lambda x: x[1:]),
    "functionalize": functx.functionalize(lambda x: x),
    "vmap": vmap(lambda x: x),
    "vjp": lambda x: functx.vjp(lambda x: x, x)[0],
    "pullback": lambda x: functx.vjp(lambda x: x, x * 1)[1](x)[0],
    "jvp": lambda x: functx.jvp(lambda x: x, (x,), (x,))[0],
    "pushed": lambda x: functx.linearize(lambda x: x, x * 1)[1](x),
    "aux": lambda x: grad(lambda x: (x.sum(), x), has_aux=True)(x)[1],
    "gradient": lambda x: grad(lambda y: (y * x).sum())(x * 1),
    "fori_loop": lambda x: lax.fori_loop(0, 2, lambda i, x: x, x),
    "fori_loop, beside another": lambda x: lax.fori_loop(
        0, 2, lambda i, c: (c[0], c[1] + 1), (x, 0.0)
    )[0],
    "fori_loop, no step": lambda x: lax.fori_loop(0, 0, lambda i, x: 2 * x, x),
    "fori_loop, unrolled": lambda x: lax.fori_loop(0, 2, lambda i, x: x, x, unroll=True),
    "fori_loop to a traced number": lambda x: lax.fori_loop(
        0, functx.numpy.argmin(x) + 1, lambda i, x: x, x
    ),
    "scan": lambda x: lax.scan(lambda x, _: (x, None), x, length=2)[0],
    "scan backwards": lambda x: lax.scan(lambda x, _: (x, None), x, length=2, reverse=True)[0],
    "scan, exchanged": lambda x: lax.scan(lambda c, _: (c[::-1], None), (x, x * 1), length=2)[0][0],
    "scan, rows": lambda x: lax.scan(lambda c, row: (c, row), 0.0, x)[1],
    "while_loop": lambda x: lax.while_loop(lambda c: c[1] < 2, lambda c: (c[0], c[1] + 1), (x, 0))[
        0
    ],
    "while_loop of few steps": lambda x: lax.while_loop(
        lambda c: c[1] < 2, lambda c: (c[0], c[1] + 1), (x, 0), max_steps=3
    )[0],
    "map": lambda x: lax.map(lambda row: row, x),
    "cond": lambda x: lax.cond(x[0, 0] > 0, lambda x: x, lambda x: x, x),
    "cond of what is around": lambda x: lax.cond(True, lambda: x, lambda: x[::-1]),
    "switch": lambda x: lax.switch(1, [lambda x: -x, lambda x: x], x),
    "associative_scan": lambda x: lax.associative_scan(lambda a, b: a + b, x[:1]),
    "dropout": lambda x: nn.dropout(x, 0.0),
    "dropout, deterministic": lambda x: nn.dropout(x, 0.5, deterministic=True),
    "identity": nn.identity,
    "at.get": lambda x: np_array(x).at[...].get(),
    "at.get of a part": lambda x: np_array(x).at[1:].get(),
    "at.set of nothing": lambda x: np_array(x).at[0:0].set(1.0),
    "at.set to it": lambda x: np_array(x * 1).at[...].set(x),
    "at.add of nothing": lambda x: np_array(x).at[0:0].add(1.0),
    "at.apply": lambda x: np_array(x).at[...].apply(lambda x: x),
    **{
        f"lax.{text}": eval(f"lambda x: lax.{text}", {"lax": lax})
        for text in LAX.strip().replace("\n", " | ").split(" | ")
    },
}


def np_array(x):
    """`x`, with the property `at` outside of a trace as well."""
    return x if hasattr(x, "at") else jax.numpy.array(x)


STOPS = "lax.stop_gradient", "lax.bitcast_convert_type"


def test_results_of_transforms_and_of_jax_share_no_memory(x64):
    make = SOURCES["matrix"]
    own = False, [False]

    def each(xs):
        return [
            probe(functx.numpy, lambda n, x, f=f: f(x), x, [True])
            for f, x in zip(IDENTITIES.values(), xs, strict=True)
        ]

    sources = [make() for _ in IDENTITIES]
    compiled = jit(each)
    lanes = one_lane(lambda x: each([x[i] for i in range(len(IDENTITIES))]))(np.stack(sources))
    for name, outcomes in {"jit": compiled(sources), "vmap": lanes}.items():
        for what, outcome in zip(IDENTITIES, outcomes, strict=True):
            assert answers(make(), outcome) == own, f"{what} in {name}"
    for what, f in IDENTITIES.items():
        x = make()
        if isinstance(f(x), np.ndarray):
            outcome = probe(functx.numpy, lambda n, x, f=f: f(x), x, [True])
            assert answers(make(), outcome) == own, f"{what} plainly"

    def loss(xs):
        pairs = zip(IDENTITIES, each(xs), strict=True)
        return sum([loss_of(found) for name, found in pairs if not name.startswith(STOPS)])

    along = np.sin(3.0 * np.arange(12.0)).reshape(3, 4)
    ends = [jit(loss)([x + step * along for x in sources]) for step in (0.5, -0.5)]
    slopes = grad(loss)([make() for _ in IDENTITIES])
    np.testing.assert_allclose(sum([(g * along).sum() for g in slopes]), ends[0] - ends[1])


TRACED = {
    "x[i]": lambda x, i: x[i],
    "x[i, ...]": lambda x, i: x[i, ...],
    "x[..., i]": lambda x, i: x[..., i],
    "x[i, 1:]": lambda x, i: x[i, 1:],
    "x[:, i]": lambda x, i: x[:, i],
    "x[None, i]": lambda x, i: x[None, i],
    "x[i, 1, ...]": lambda x, i: x[i, 1, ...],
}


@pytest.mark.parametrize("name", TRACED)
def test_a_traced_integer_selects_a_view_as_a_number_does(name, x64):
    """NumPy's `argmax` gives a number, by which indexing is basic."""
    form, make = TRACED[name], SOURCES["matrix"]

    def call(n, x):
        return form(x, n.argmax(x[0, :2]))

    wanted = with_numpy(call, make)
    with by_reference():
        for transform in (functx.functionalize, one_lane):
            x = make()
            assert (
                answers(make(), transform(lambda x: probe(functx.numpy, call, x, [True]))(x))
                == (wanted[1])
            )


@pytest.mark.parametrize("name", ["tile", "repeat"])
@pytest.mark.parametrize("axis", [0, 1])
def test_repeats_of_an_axis_of_length_1_are_row_major(name, axis):
    def f(module, x):
        counts = {"tile": [2 - axis, 1 + axis, 1], "repeat": 2}[name]
        once = x[:1] if axis == 0 else x[:, :1]
        out = getattr(module, name)(once, counts, **({"axis": axis} if name == "repeat" else {}))
        out.ravel()[:2] = 99
        return out

    x = np.arange(24.0, dtype="float32").reshape(2, 3, 4)
    np.testing.assert_array_equal(jit(lambda x: f(functx.numpy, x))(x), f(np, x))
