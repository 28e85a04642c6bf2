"""The NumPy meaning of each primitive, by class name.

`MEANING[name](*operands, **parameters)` gives the output, or a list of them. `apply` calls
it with operands as wide as they come: float64 and complex128, so that what is lowered is
measured by something more precise. Meanings that depend on the dtype itself, or on random
bits, get the operands as they are: those are `EXACT`.
"""

# ruff: noqa: N802 - functions are named as the classes whose meaning they are
import jax
import numpy as np
import scipy.special

MEANING = {}
EXACT = set()


def meaning(function):
    """Register a function named as the class."""
    MEANING[function.__name__] = function
    return function


def exact(function):
    """Register a function that needs the operands in their own dtype."""
    EXACT.add(function.__name__)
    return meaning(function)


def apply(primitive, args):
    """What NumPy makes of `primitive(*args)`: always a list."""
    name = type(primitive).__name__
    params = {field: getattr(primitive, field) for field in primitive.fields}
    args = [np.asarray(x) for x in args]
    with np.errstate(all="ignore"):
        out = MEANING[name](*(args if name in EXACT else map(widened, args)), **params)
    return [np.asarray(x) for x in out] if primitive.multiple_results else [np.asarray(out)]


def widened(x):
    if np.iscomplexobj(x):
        return x.astype(np.complex128)
    return x if x.dtype.kind in "biu" else x.astype(np.float64)


def evaluate(program, args):
    """The outputs of a program, each equation by its meaning."""
    env = dict(zip(program.inputs, args, strict=True))

    def read(atom):
        return env[atom] if atom in env else np.asarray(atom.value, atom.aval.dtype)

    for eqn in program:
        outs = apply(eqn.primitive, [read(atom) for atom in eqn.inputs])
        outs = [x.astype(v.aval.dtype) for x, v in zip(outs, eqn.outputs, strict=True)]
        env.update(zip(eqn.outputs, outs, strict=True))
    return [read(atom) for atom in program.outputs]


@meaning
def Fft(x, ndim, inverse):
    return (np.fft.ifftn if inverse else np.fft.fftn)(x, axes=range(-ndim, 0))


# Linear algebra


def adjoint(x):
    return np.conj(np.swapaxes(x, -1, -2))


@meaning
def TriangularSolve(a, b, lower_triangle, transposed, conjugated, unit):
    a = np.tril(a) if lower_triangle else np.triu(a)
    if unit:
        a = np.where(np.eye(a.shape[-1], dtype=bool), 1, a)
    a = np.swapaxes(a, -1, -2) if transposed else a
    return np.linalg.solve(np.conj(a) if conjugated else a, b)


@meaning
def Solve(a, b, transposed):
    return np.linalg.solve(np.swapaxes(a, -1, -2) if transposed else a, b)


@meaning
def Cofactors(x):
    rows = range(x.shape[-1])
    minors = [[np.delete(np.delete(x, i, -2), j, -1) for j in rows] for i in rows]
    found = [[(-1) ** (i + j) * np.linalg.det(minors[i][j]) for j in rows] for i in rows]
    return np.moveaxis(np.array(found), (0, 1), (-2, -1))


MEANING |= {
    "Cholesky": lambda x: np.linalg.cholesky((x + adjoint(x)) / 2),
    "Det": np.linalg.det,
    "Eigh": lambda x: np.linalg.eigh((x + adjoint(x)) / 2),
    "Slogdet": np.linalg.slogdet,
    "Svd": lambda x: np.linalg.svd(x, full_matrices=False),
}


# Elementwise

MEANING |= {
    "Abs": np.abs,
    "Acos": np.arccos,
    "Acosh": np.arccosh,
    "Add": np.add,
    "And": np.bitwise_and,
    "Asin": np.arcsin,
    "Asinh": np.arcsinh,
    "Atan": np.arctan,
    "Atan2": np.arctan2,
    "Atanh": np.arctanh,
    "Cbrt": np.cbrt,
    "Ceil": np.ceil,
    "Conj": np.conj,
    "Cos": np.cos,
    "Cosh": np.cosh,
    "BesselI0e": scipy.special.i0e,
    "BesselI1e": scipy.special.i1e,
    "Eq": np.equal,
    "Erf": scipy.special.erf,
    "ErfInv": scipy.special.erfinv,
    "Erfc": scipy.special.erfc,
    "Exp": np.exp,
    "Exp2": np.exp2,
    "Expm1": np.expm1,
    "Floor": np.floor,
    "Ge": np.greater_equal,
    "GreatestCommonDivisor": np.gcd,
    "Gt": np.greater,
    "Hypot": np.hypot,
    "Imag": np.imag,
    "IsFinite": np.isfinite,
    "Le": np.less_equal,
    "Log": np.log,
    "Log1p": np.log1p,
    "Lt": np.less,
    "Max": np.maximum,
    "Min": np.minimum,
    "Mul": np.multiply,
    "Ndtri": scipy.special.ndtri,
    "Ne": np.not_equal,
    "Neg": np.negative,
    "Not": np.invert,
    "Or": np.bitwise_or,
    "PopulationCount": np.bitwise_count,
    "Real": np.real,
    "Rem": np.fmod,
    "RootOfSquares": np.sqrt,
    "Rsqrt": lambda x: 1 / np.sqrt(x),
    "Sign": np.sign,
    "Sin": np.sin,
    "Sinh": np.sinh,
    "Sqrt": np.sqrt,
    "Square": np.square,
    "StopGradient": np.copy,
    "Sub": np.subtract,
    "Tan": np.tan,
    "Tanh": np.tanh,
    "Xlog1py": scipy.special.xlog1py,
    "Xlogy": scipy.special.xlogy,
    "Xor": np.bitwise_xor,
}


@meaning
def Div(x, y):
    if x.dtype.kind == "f" or x.dtype.kind == "c":
        return x / y
    quotient = x // y
    return quotient + ((x % y != 0) & ((x < 0) != (y < 0)))


@meaning
def Pow(x, y):
    if x.dtype.kind in "fc":
        return x**y
    # Integer powers wrap; a negative exponent gives the reciprocal, rounded towards zero.
    powers = x ** np.maximum(y, 0)
    reciprocal = np.where(x == 1, 1, np.where((x == -1) if x.dtype.kind == "i" else False, 1, 0))
    sign = np.where((y % 2 == 1) & (x != 1), -1, 1)
    return np.where(y >= 0, powers, reciprocal * sign).astype(x.dtype)


@meaning
def IntegerPow(x, exponent):
    return x**exponent if exponent >= 0 else 1 / x**-exponent


@meaning
def Logistic(x):
    return 1 / (1 + np.exp(-x)) if np.iscomplexobj(x) else scipy.special.expit(x)


@meaning
def Complex(real, imag):
    # Not real + 1j * imag, which is nan where imag is infinite.
    out = np.empty(np.broadcast_shapes(real.shape, imag.shape), np.complex128)
    out.real, out.imag = real, imag
    return out


@meaning
def Softplus(x):
    return np.logaddexp(x, 0)


@meaning
def Silu(x):
    return x * scipy.special.expit(x)


@meaning
def LogSigmoid(x):
    return -np.logaddexp(0.0, -x)


@meaning
def Mish(x):
    return x * np.tanh(np.logaddexp(0.0, x))


@meaning
def Gelu(x, approximate):
    if approximate:
        return x * 0.5 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return x * scipy.special.ndtr(x)


@meaning
def Logaddexp(x, y):
    return np.log(np.exp(x) + np.exp(y)) if np.iscomplexobj(x) else np.logaddexp(x, y)


@meaning
def Lgamma(x):
    return np.where(x == -np.inf, np.inf, scipy.special.gammaln(x))


@meaning
def Digamma(x):
    # At 0 too, as at the other poles.
    return np.where(x == 0, np.nan, scipy.special.digamma(x))


@meaning
def Sinc(x, order):
    # sinc(x) is the integral of cos(pi x t) over t in [0, 1]; by quadrature.
    nodes, weights = np.polynomial.legendre.leggauss(48)
    t, weights = (nodes + 1) / 2, weights / 2
    wave = np.cos(np.pi * x[..., np.newaxis] * t + order * np.pi / 2)
    return (wave * (np.pi * t) ** order) @ weights


@meaning
def Polygamma(m, x):
    return np.where(m == 0, scipy.special.digamma(x), scipy.special.polygamma(m, x))


@meaning
def Clamp(low, x, high):
    return np.minimum(np.maximum(x, low), high)


@meaning
def Select(which, on_false, on_true):
    return np.where(which, on_true, on_false)


@meaning
def Round(x, to_even):
    return np.round(x) if to_even else np.trunc(x + np.copysign(np.nextafter(0.5, 0.0), x))


def bits_of(x):
    return x.dtype.itemsize * 8


@meaning
def ShiftLeft(x, y):
    inside = (y >= 0) & (y < bits_of(x))
    return np.where(inside, np.left_shift(x, np.where(inside, y, 0)), 0).astype(x.dtype)


@meaning
def ShiftRightLogical(x, y):
    unsigned = np.dtype(f"u{x.dtype.itemsize}")
    inside = (y >= 0) & (y < bits_of(x))
    shifted = np.right_shift(x.astype(unsigned), np.where(inside, y, 0).astype(unsigned))
    return np.where(inside, shifted, 0).astype(x.dtype)


@meaning
def ShiftRightArithmetic(x, y):
    signed = np.dtype(f"i{x.dtype.itemsize}")
    steps = np.where((y >= 0) & (y < bits_of(x)), y, bits_of(x) - 1)
    return np.right_shift(x.astype(signed), steps.astype(signed)).astype(x.dtype)


@meaning
def CountLeadingZeros(x):
    unsigned = x.astype(f"u{x.dtype.itemsize}")
    count = np.vectorize(lambda n: bits_of(x) - int(n).bit_length(), otypes=[x.dtype])
    return count(unsigned)


@exact
def NextAfter(x, y):
    return np.nextafter(x, y)


# Dtypes


@meaning
def ConvertElementType(x, dtype, weak):
    dtype = np.dtype(dtype)
    if np.iscomplexobj(x) and dtype.kind not in "cb":
        x = x.real
    return (x != 0) if dtype.kind == "b" else x.astype(dtype)


@exact
def BitcastConvertType(x, dtype):
    dtype = np.dtype(dtype)
    old, new = x.dtype.itemsize, dtype.itemsize
    if old == new:
        return x.view(dtype)
    if old > new:
        return x[..., np.newaxis].view(dtype)
    return x.view(dtype)[..., 0]


@exact
def ReducePrecision(x, exponent_bits, mantissa_bits):
    return jax.lax.reduce_precision(x, exponent_bits, mantissa_bits)


# Shapes


@meaning
def BroadcastInDim(x, shape, dims):
    unit = [1] * len(shape)
    for n, d in zip(x.shape, dims, strict=True):
        unit[d] = n
    return np.broadcast_to(x.reshape(unit), shape)


@meaning
def Full(x, shape):
    return np.full(shape, x)


@meaning
def Reshape(x, shape):
    return x.reshape(shape)


@meaning
def PermuteDims(x, axes):
    return x.transpose(axes)


@meaning
def Concatenate(*parts, axis):
    return np.concatenate(parts, axis)


@meaning
def Split(x, sizes, axis):
    return np.split(x, np.cumsum(sizes)[:-1], axis)


@meaning
def Pad(x, fill, config):
    dilated = [n + max(0, n - 1) * inner for n, (_, _, inner) in zip(x.shape, config, strict=True)]
    spread = np.full(dilated, fill)
    spread[tuple([slice(None, None, inner + 1) for _, _, inner in config])] = x
    wide = np.pad(
        spread,
        [(max(low, 0), max(high, 0)) for low, high, _ in config],
        constant_values=fill,
    )
    cut = [
        slice(-min(low, 0), n + min(high, 0))
        for n, (low, high, _) in zip(wide.shape, config, strict=True)
    ]
    return wide[tuple(cut)]


@meaning
def Rev(x, axes):
    return np.flip(x, axes)


@meaning
def Iota(dtype, shape, dimension):
    return np.indices(shape, np.int64)[dimension].astype(dtype)


# Reductions


def reduction(function):
    return lambda x, axes: function(x, axis=tuple(axes))


def typed_reduction(function):
    return lambda x, axes: function(x, axis=tuple(axes), dtype=x.dtype)


@meaning
def Copy(x):
    return x


@meaning
def ReadBeforeWrite(x):
    return x, np.zeros_like(x)


@meaning
def Strided(x, shape, start, steps, writable):
    places = [np.full(shape, n) for n in start]
    for i, n in zip(np.indices(shape), steps, strict=True):
        places = [place + i * step for place, step in zip(places, n, strict=True)]
    return x[tuple(places)]


MEANING |= {
    "ReduceSum": typed_reduction(np.sum),
    "LogSumExp": lambda x, axes: scipy.special.logsumexp(x, axes),
    "Softmax": lambda x, axes: scipy.special.softmax(x, axes) if x.size else x,
    "LogSoftmax": lambda x, axes: scipy.special.log_softmax(x, axes) if x.size else x,
    "ReduceProd": typed_reduction(np.prod),
    "ReduceAnd": reduction(np.bitwise_and.reduce),
    "ReduceOr": reduction(np.bitwise_or.reduce),
    "ReduceXor": reduction(np.bitwise_xor.reduce),
}


def lowest(dtype):
    if dtype.kind in "fc":
        return -highest(dtype)
    return False if dtype.kind == "b" else np.iinfo(dtype).min


def highest(dtype):
    if dtype.kind in "fc":
        return complex(np.inf, np.inf) if dtype.kind == "c" else np.inf
    return True if dtype.kind == "b" else np.iinfo(dtype).max


@meaning
def ReduceMax(x, axes):
    return np.max(x, axis=tuple(axes), initial=lowest(x.dtype))


@meaning
def ReduceMin(x, axes):
    return np.min(x, axis=tuple(axes), initial=highest(x.dtype))


@meaning
def ArgMax(x, axis, index_dtype):
    return np.argmax(x, axis).astype(index_dtype)


@meaning
def ArgMin(x, axis, index_dtype):
    return np.argmin(x, axis).astype(index_dtype)


def cumulative(function):
    def along(x, axis, reverse):
        x = np.flip(x, axis) if reverse else x
        out = function(x, axis)
        return np.flip(out, axis) if reverse else out

    return along


MEANING |= {
    "CumSum": cumulative(lambda x, axis: np.cumsum(x, axis, dtype=x.dtype)),
    "CumProd": cumulative(lambda x, axis: np.cumprod(x, axis, dtype=x.dtype)),
    "CumMax": cumulative(np.maximum.accumulate),
    "CumMin": cumulative(np.minimum.accumulate),
    "CumLogSumExp": cumulative(np.logaddexp.accumulate),
}


@meaning
def LinearRecurrence(factor, x, axis, reverse):
    factor, x = [np.moveaxis(a, axis, 0)[:: -1 if reverse else 1] for a in (factor, x)]
    out = np.array(x)
    for i in range(1, len(x)):
        out[i] += factor[i] * out[i - 1]
    return np.moveaxis(out[:: -1 if reverse else 1], 0, axis)


# Contractions


@meaning
def DotGeneral(x, y, contract, batched, precision, preferred_element_type):
    if preferred_element_type is not None and x.dtype.kind in "iu":
        x, y = x.astype(preferred_element_type), y.astype(preferred_element_type)
    letters = iter("abcdefghijklmnop")
    left, right = [None] * x.ndim, [None] * y.ndim
    for i, j in (*zip(*batched, strict=True), *zip(*contract, strict=True)):
        left[i] = right[j] = next(letters)
    lead = "".join([left[i] for i in batched[0]])
    free = ["", ""]
    for k, labels in enumerate((left, right)):
        for i, label in enumerate(labels):
            if label is None:
                labels[i] = next(letters)
                free[k] += labels[i]
    return np.einsum(f"{''.join(left)},{''.join(right)}->{lead}{free[0]}{free[1]}", x, y)


# Slices and indices


@meaning
def Slice(x, start, limit, strides):
    strides = strides or (1,) * x.ndim
    return x[tuple(map(slice, start, limit, strides))]


def part_of(x, sizes, indices):
    starts = [
        min(max(int(i), 0), n - size) for i, n, size in zip(indices, x.shape, sizes, strict=True)
    ]
    return tuple([slice(i, i + size) for i, size in zip(starts, sizes, strict=True)])


@meaning
def DynamicSlice(x, *indices, sizes):
    return x[part_of(x, sizes, indices)]


@meaning
def DynamicUpdateSlice(x, update, *indices):
    out = x.copy()
    out[part_of(x, update.shape, indices)] = update
    return out


def windows(x, indices, sizes, params):
    """For each index vector: its place, where its window lies in `x`, and whether inside.

    A window that does not lie inside is moved there.
    """
    for place in np.ndindex(indices.shape[:-1]):
        starts = [0] * x.ndim
        for i, d in zip(indices[place], params["start_index_map"], strict=True):
            starts[d] = int(i)
        pairs = params["operand_batching_dims"], params["start_indices_batching_dims"]
        for d, k in zip(*pairs, strict=True):
            starts[d] = place[k]
        clipped = [min(max(i, 0), n - m) for i, n, m in zip(starts, x.shape, sizes, strict=True)]
        where = tuple([slice(i, i + m) for i, m in zip(clipped, sizes, strict=True)])
        yield place, where, clipped == starts


def window_place(place, offset_dims, rank):
    """The window of an index vector at `place` among all windows."""
    lead = iter(place)
    return tuple([slice(None) if d in offset_dims else next(lead) for d in range(rank)])


@meaning
def Gather(x, indices, slice_sizes, fill_value, mode, **params):
    offset = params["offset_dims"]
    absent = params["collapsed_slice_dims"] + params["operand_batching_dims"]
    rank = indices.ndim - 1 + len(offset)
    lead = iter(indices.shape)
    kept = iter([n for d, n in enumerate(slice_sizes) if d not in absent])
    out = np.zeros([next(kept) if d in offset else next(lead) for d in range(rank)], x.dtype)
    fill = default_fill(x.dtype) if fill_value is None else fill_value
    for place, where, inside in windows(x, indices, slice_sizes, params):
        window = x[where].squeeze(absent) if inside or mode != "fill" else fill
        out[window_place(place, offset, rank)] = window
    return out


def default_fill(dtype):
    if dtype.kind in "fc":
        return np.nan
    return True if dtype.kind == "b" else lowest(dtype) if dtype.kind == "i" else highest(dtype)


def scatter(combine):
    def scattered(x, indices, updates, mode, **params):
        offset = params["offset_dims"]
        absent = params["collapsed_slice_dims"] + params["operand_batching_dims"]
        kept = iter([updates.shape[d] for d in offset])
        sizes = [1 if d in absent else next(kept) for d in range(x.ndim)]
        out = x.copy()
        for place, where, inside in windows(x, indices, sizes, params):
            if inside or mode == "clip":
                update = updates[window_place(place, offset, updates.ndim)]
                out[where] = combine(out[where], np.expand_dims(update, absent))
        return out

    return scattered


MEANING |= {
    "ScatterAdd": scatter(np.add),
    "ScatterMul": scatter(np.multiply),
    "ScatterMin": scatter(np.minimum),
    "ScatterMax": scatter(np.maximum),
    "ScatterSet": scatter(lambda old, new: new),
}


# Sorting


@meaning
def Sort(*operands, axis, num_keys, stable, permutation):
    keys = [_orderable(x) for x in operands[:num_keys]]
    order = np.lexsort(keys[::-1], axis=axis)
    outs = [np.take_along_axis(x, order, axis) for x in operands]
    return [*outs, order] if permutation else outs


def _orderable(x):
    """Numbers in the order of `x`, which need not have one in NumPy."""
    return x.astype(np.int8) if x.dtype == bool else x


@meaning
def TopK(x, k):
    order = np.argsort(-x.astype(np.float64), axis=-1, kind="stable")[..., :k]
    return [np.take_along_axis(x, order, -1), order]


@meaning
def SearchSorted(x, values, side, method, batched):
    rows = x.reshape(-1, x.shape[-1]) if batched else x[np.newaxis]
    sought = values.reshape(len(rows), -1)
    found = [np.searchsorted(row, v, side) for row, v in zip(rows, sought, strict=True)]
    return np.stack(found).reshape(values.shape)


# Random numbers: what JAX draws with the same keys.


def drawn(function):
    """`function(key, *operands, **params)`, for each key of a batch."""

    def for_each_key(key, *operands, **params):
        rows = [
            np.asarray(function(jax.random.wrap_key_data(row), *operands, **params))
            for row in key.reshape(-1, 2)
        ]
        return np.stack(rows).reshape(*key.shape[:-1], *rows[0].shape)

    return for_each_key


@exact
def RandomSeed(seed):
    with jax.enable_x64(seed.dtype.itemsize == 8):
        rows = [np.asarray(jax.random.key_data(jax.random.key(s))) for s in seed.ravel()]
    return np.stack(rows).reshape(*seed.shape, 2)


@exact
def RandomFoldIn(key, data):
    # `data` has the dimensions of the keys first.
    keys = np.broadcast_to(
        np.expand_dims(key, tuple(range(key.ndim - 1, data.ndim))), (*data.shape, 2)
    )
    rows = [
        np.asarray(jax.random.key_data(jax.random.fold_in(jax.random.wrap_key_data(k), d)))
        for k, d in zip(keys.reshape(-1, 2), data.ravel(), strict=True)
    ]
    return np.stack(rows).reshape(keys.shape)


DRAWS = {
    "RandomSplit": lambda key, shape: jax.random.key_data(jax.random.split(key, shape)),
    "RandomBits": jax.random.bits,
    "RandomUniform": jax.random.uniform,
    "RandomUniformBetween": lambda key, low, high, shape: jax.random.uniform(
        key, shape, low.dtype, low, high
    ),
    "RandomNormal": jax.random.normal,
    "RandomTruncatedNormal": lambda key, low, high, shape: jax.random.truncated_normal(
        key, low, high, shape, low.dtype
    ),
    "RandomExponential": jax.random.exponential,
    "RandomLaplace": jax.random.laplace,
    "RandomLogistic": jax.random.logistic,
    "RandomCauchy": jax.random.cauchy,
    "RandomGumbel": lambda key, shape, dtype, fine: jax.random.gumbel(
        key, shape, dtype, mode="high" if fine else "low"
    ),
    "RandomBernoulli": lambda key, p, shape, fine: jax.random.bernoulli(
        key, p, shape, mode="high" if fine else "low"
    ),
    "RandomIntegers": lambda key, low, count, shape: jax.random.randint(
        key, shape, low, low + count, low.dtype
    ),
    "RandomShuffle": lambda key, x, axis: jax.random.permutation(key, x, axis, independent=True),
}
MEANING |= {name: drawn(function) for name, function in DRAWS.items()}
EXACT |= DRAWS.keys()


# Calls


@exact
def Checkpoint(*args, program, apart, again, policy):
    return evaluate(program, args)


@exact
def CustomVmap(*args, program, rule):
    return evaluate(program, args)


@exact
def Name(x, label):
    return x


@exact
def Dense(aval, data):
    return np.frombuffer(data, aval.dtype).reshape(aval.shape)


@exact
def CustomJVP(*args, primal, rule, captured):
    return evaluate(primal, args)


@exact
def CustomVJP(*args, primal, rule, captured):
    return evaluate(primal, args)


@exact
def Call(*args, program, apart):
    return evaluate(program, args)


@exact
def Rerun(*args, program, apart):
    return evaluate(program, args)


@exact
def StandIn(live, x, *, along):
    return x


@exact
def AnyLane(live):
    return live


@exact
def Cond(index, *args, branches):
    return evaluate(branches[int(index)], args)


@exact
def Scan(*args, program, consts, carries, length, reverse, unroll):
    constants, carry, xs = args[:consts], args[consts : consts + carries], args[consts + carries :]
    rows = []
    for i in reversed(range(length)) if reverse else range(length):
        outs = evaluate(program, [*constants, *carry, *[x[i] for x in xs]])
        carry = outs[:carries]
        rows.append(outs[carries:])
    rows = rows[::-1] if reverse else rows
    types = [atom.aval for atom in program.outputs[carries:]]
    stacks = [
        np.array([row[k] for row in rows], a.dtype).reshape(length, *a.shape)
        for k, a in enumerate(types)
    ]
    return [*carry, *stacks]


@exact
def While(*args, condition, body, condition_consts, body_consts, checkpoints, max_steps):
    m, n = condition_consts, condition_consts + body_consts
    carry = args[n:]
    while evaluate(condition, [*args[:m], *carry])[0]:
        carry = evaluate(body, [*args[m:n], *carry])
    return carry


def sliding(x, sizes, strides, padding, base_dilation, window_dilation, fill):
    """The elements in each window, on one last axis."""
    ndim = len(sizes)
    spread = [
        (n - 1) * hole + 1 if n else 0 for n, hole in zip(x.shape, base_dilation, strict=True)
    ]
    wide = np.full(spread, fill, x.dtype)
    wide[tuple(slice(None, None, hole) for hole in base_dilation)] = x
    cut = [
        slice(max(-low, 0), n - max(-high, 0))
        for n, (low, high) in zip(spread, padding, strict=True)
    ]
    wide = np.pad(
        wide[tuple(cut)],
        [(max(low, 0), max(high, 0)) for low, high in padding],
        constant_values=fill,
    )
    reach = [(k - 1) * step + 1 for k, step in zip(sizes, window_dilation, strict=True)]
    if any(n < k for n, k in zip(wide.shape, reach, strict=True)):
        counts = [
            max((n - k) // s + 1, 0) for n, k, s in zip(wide.shape, reach, strides, strict=True)
        ]
        return np.zeros((*counts, int(np.prod(sizes))), x.dtype)
    found = np.lib.stride_tricks.sliding_window_view(wide, reach)
    found = found[tuple(slice(None, None, s) for s in strides)]
    found = found[(Ellipsis, *[slice(None, None, step) for step in window_dilation])]
    return found.reshape(*found.shape[:ndim], -1)


@meaning
def ReduceWindowSum(x, **window):
    return sliding(x, **window, fill=0).sum(-1, dtype=x.dtype)


@meaning
def ReduceWindowMax(x, **window):
    return sliding(x, **window, fill=lowest(x.dtype)).max(-1)


@meaning
def ReduceWindowMin(x, **window):
    return sliding(x, **window, fill=highest(x.dtype)).min(-1)


def window_places(x, lanes, choose, worst, **window):
    count = int(np.prod(x.shape[lanes:]))
    places = np.broadcast_to(np.arange(count).reshape(x.shape[lanes:]), x.shape)
    found = sliding(x, **window, fill=worst)
    places = sliding(places, **window, fill=count)
    best = choose(np.where(places == count, worst, found), -1)[..., None]
    return np.where(found == best, places, count).min(-1)


@meaning
def ReduceWindowArgmax(x, lanes, **window):
    return window_places(x, lanes, np.max, lowest(x.dtype), **window)


@meaning
def ReduceWindowArgmin(x, lanes, **window):
    return window_places(x, lanes, np.min, highest(x.dtype), **window)


@meaning
def SoftmaxBackward(ct, out, axes, dtype):
    return out * (ct - (out * ct).sum(axes, keepdims=True))


@meaning
def LogSoftmaxBackward(ct, out, axes, dtype):
    return ct - np.exp(out) * ct.sum(axes, keepdims=True)


def reduced(terms, reduction, lanes):
    rows = terms.reshape((*terms.shape[:lanes], -1))
    if reduction == "batchmean":
        return rows.sum(-1) / terms.shape[lanes]
    return {"none": terms, "sum": rows.sum(-1), "mean": rows.mean(-1)}[reduction]


def shared(ct, x, reduction, lanes):
    count = {"mean": x[(0,) * lanes].size, "batchmean": x.shape[min(lanes, x.ndim - 1)]}
    rest = x.shape[ct.ndim :] if reduction != "none" else ()
    return (ct / count.get(reduction, 1)).reshape(ct.shape + (1,) * len(rest))


def softplus(x):
    return np.logaddexp(0.0, x)


def clipped_log(x):
    return np.maximum(np.log(x), -100.0)


def product(weight, x):
    return np.where(weight == 0, 0.0, weight * x)


TERMS = {
    "L1Loss": lambda x, y: abs(x - y),
    "MseLoss": lambda x, y: (x - y) ** 2,
    "SmoothL1Loss": lambda x, y, beta: (
        scipy.special.huber(beta, x - y) / beta if beta else abs(x - y)
    ),
    "HuberLoss": lambda x, y, delta: scipy.special.huber(delta, x - y),
    "BinaryCrossEntropy": lambda x, y, w=1.0: (
        -w * (y * clipped_log(x) + (1 - y) * clipped_log(1 - x))
    ),
    "BinaryCrossEntropyWithLogits": lambda x, y, w=1.0, p=1.0: (
        w * (p * product(y, softplus(-x)) + product(1 - y, softplus(x)))
    ),
    "KlDiv": lambda x, y, log_target: (
        np.exp(y) * (y - x)
        if log_target
        else scipy.special.xlogy(y, y) - product(y, np.nan_to_num(x))
    ),
}
SLOPES = {
    "L1Loss": lambda x, y: np.sign(x - y),
    "MseLoss": lambda x, y: 2 * (x - y),
    "SmoothL1Loss": lambda x, y, beta: np.clip((x - y) / beta, -1, 1),
    "HuberLoss": lambda x, y, delta: np.clip(x - y, -delta, delta),
    "BinaryCrossEntropy": lambda x, y, w=1.0: w * ((1 - y) / (1 - x) - y / x),
    "BinaryCrossEntropyWithLogits": lambda x, y, w=1.0, p=1.0: (
        w * ((1 - y) * scipy.special.expit(x) - p * y * scipy.special.expit(-x))
    ),
    "KlDiv": lambda x, y, log_target: -np.exp(y) if log_target else -y,
}
for _name, _terms in TERMS.items():
    MEANING[_name] = lambda *args, reduction, lanes, terms=_terms, **params: reduced(
        terms(*args, **params), reduction, lanes
    )
    MEANING[f"{_name}Backward"] = (
        lambda ct, *args, reduction, lanes, slope=SLOPES[_name], **params: (
            shared(ct, args[0], reduction, lanes) * slope(*args, **params)
        )
    )


def class_rows(target, weights, classes, axis, lanes, ignore_index):
    """Along the last axis, 1 at the class of each row; and what each row weighs."""
    counts = target != ignore_index
    there = np.where(counts, target, 0)[..., None] == np.arange(classes)
    weight = np.ones(classes) if not weights else weights[0]
    weight = weight.reshape(weight.shape[:-1] + (1,) * (target.ndim - weight.ndim + 1) + (classes,))
    return there, weight, np.where(counts, (there * weight).sum(-1), 0.0)


def mean_by_weights(total, weight, lanes, of_nothing):
    weight = weight.reshape((*weight.shape[:lanes], -1)).sum(-1)
    return np.where(weight == 0, of_nothing, total / np.where(weight == 0, 1, weight))


def reduced_by_weights(terms, weight, reduction, lanes):
    if reduction != "mean":
        return reduced(terms, reduction, lanes)
    return mean_by_weights(reduced(terms, "sum", lanes), weight, lanes, np.nan)


def shared_by_weights(ct, weight, reduction, lanes):
    ct = mean_by_weights(ct, weight, lanes, 0.0) if reduction == "mean" else ct
    return ct.reshape(ct.shape + (1,) * (weight.ndim - ct.ndim)) * weight


@meaning
def NllLoss(x, target, *weights, reduction, lanes, axis, ignore_index):
    there, _, weight = class_rows(target, weights, x.shape[axis], axis, lanes, ignore_index)
    terms = -weight * np.where(there, np.moveaxis(x, axis, -1), 0).sum(-1)
    return reduced_by_weights(terms, weight, reduction, lanes)


@meaning
def NllLossBackward(ct, target, *weights, reduction, lanes, axis, ignore_index, classes):
    there, _, weight = class_rows(target, weights, classes, axis, lanes, ignore_index)
    found = there * -shared_by_weights(ct, weight, reduction, lanes)[..., None]
    return np.moveaxis(found, -1, axis)


def class_distribution(target, weights, x, axis, lanes, ignore_index, label_smoothing):
    """Along the last axis, what each class of a row counts; and what the row weighs."""
    classes = x.shape[axis]
    there, each, weight = class_rows(target, weights, classes, axis, lanes, ignore_index)
    counts = (target != ignore_index)[..., None]
    smooth = label_smoothing / classes * each
    return counts * ((1 - label_smoothing) * there * weight[..., None] + smooth), weight


def of_distribution(x, shares, axis):
    found = np.moveaxis(scipy.special.softmax(x, axis), axis, -1) * shares.sum(-1, keepdims=True)
    return found - shares


@meaning
def CrossEntropy(x, target, *weights, reduction, lanes, axis, ignore_index, label_smoothing):
    shares, weight = class_distribution(
        target, weights, x, axis, lanes, ignore_index, label_smoothing
    )
    terms = -(shares * np.moveaxis(scipy.special.log_softmax(x, axis), axis, -1)).sum(-1)
    return reduced_by_weights(terms, weight, reduction, lanes)


@meaning
def CrossEntropyBackward(ct, x, target, *weights, reduction, lanes, axis, **others):
    shares, weight = class_distribution(target, weights, x, axis, lanes, **others)
    ct = mean_by_weights(ct, weight, lanes, 0.0) if reduction == "mean" else ct
    ct = ct.reshape(ct.shape + (1,) * (x.ndim - ct.ndim))
    return np.moveaxis(ct * of_distribution(x, shares, axis), -1, axis)


def mixed(target, weights, axis, label_smoothing):
    """The probabilities of classes, smoothed and weighed, along the last axis."""
    weight = weights[0] if weights else np.ones(())
    target = np.moveaxis(target, axis, -1)
    weight = weight.reshape(
        weight.shape[:-1] + (1,) * (target.ndim - weight.ndim) + weight.shape[-1:]
    )
    return weight * (target * (1 - label_smoothing) + label_smoothing / target.shape[-1])


@meaning
def SoftCrossEntropy(x, target, *weights, reduction, lanes, axis, label_smoothing):
    shares = mixed(target, weights, axis, label_smoothing)
    logs = np.moveaxis(scipy.special.log_softmax(x, axis), axis, -1)
    return reduced(-(shares * logs).sum(-1), reduction, lanes)


@meaning
def SoftCrossEntropyBackward(ct, x, target, *weights, reduction, lanes, axis, label_smoothing):
    found = of_distribution(x, mixed(target, weights, axis, label_smoothing), axis)
    ct = shared(ct, found[..., 0], reduction, lanes)[..., None]
    return np.moveaxis(ct * found, -1, axis)


@meaning
def Embedding(indices, weight, padding):
    return weight[indices]


@meaning
def EmbeddingBackward(ct, indices, rows, padding):
    out = np.zeros((rows, ct.shape[-1]), ct.dtype)
    np.add.at(out, indices, ct * (indices != padding)[..., None])
    return out


@exact
def Dropout(x, key, rate):
    wide = np.float64 if jax.config.jax_enable_x64 else np.float32
    kept = jax.random.bernoulli(key, np.asarray(1 - rate, wide), x.shape)
    return np.where(kept, x / max(1 - rate, 0.1), 0)


@meaning
def Reduce(*args, program, axes):
    n = len(program.outputs)
    xs, starts, consts = args[:n], args[n : 2 * n], args[2 * n :]
    kept = [d for d in range(xs[0].ndim) if d not in axes]
    rows = [np.transpose(x, (*kept, *sorted(axes))) for x in xs]
    shape = rows[0].shape[: len(kept)]
    outs = [np.empty(shape, x.dtype) for x in xs]
    for place in np.ndindex(shape):
        total = starts
        for elements in zip(*[x[place].ravel() for x in rows], strict=True):
            total = evaluate(program, [*total, *elements, *consts])
        for out, x in zip(outs, total, strict=True):
            out[place] = x
    return outs


@meaning
def ReduceWindow(*args, program, **window):
    n = len(program.outputs)
    xs, starts = args[:n], args[n : 2 * n]
    rows = [sliding(x, **window, fill=start) for x, start in zip(xs, starts, strict=True)]
    return Reduce(*rows, *args[n:], program=program, axes=(rows[0].ndim - 1,))


@meaning
def CustomLinearSolve(*args, solve, **others):
    return evaluate(solve, args)


@meaning
def CustomRoot(*args, solve, **others):
    return evaluate(solve, args)


@meaning
def PureCallback(*args, callback, results, **others):
    return callback(args, results)


@meaning
def IoCallback(*args, callback, results, ordered):
    return callback(args, results)


@meaning
def DebugCallback(*args, callback, results, ordered):
    return callback(args, results)


@meaning
def ShowProgress(*args, label, total, done):
    return []


@meaning
def JaxCall(*args, function):
    return function(*args)


@meaning
def Convolution(x, k, window, layouts, groups, precision, preferred_element_type):
    x, k = np.transpose(x, layouts.array), np.transpose(k, layouts.kernel)
    (n, c), (o, i), space = x.shape[:2], k.shape[:2], x.shape[2:]
    widths = [
        (low, max((size - 1) * hole + 1, 0), high)
        for size, hole, (low, high) in zip(space, window.base_dilation, window.padding, strict=True)
    ]
    around = [max(low, 0) + size + max(high, 0) for low, size, high in widths]
    wide = np.zeros((n, c, *around), x.dtype)
    places = [
        np.s_[max(low, 0) : max(low, 0) + size : hole]
        for (low, size, _), hole in zip(widths, window.base_dilation, strict=True)
    ]
    wide[(..., *places)] = x
    cut = [
        np.s_[max(-low, 0) : end - max(-high, 0)]
        for (low, _, high), end in zip(widths, around, strict=True)
    ]
    wide = wide[(..., *cut)]
    out = np.zeros((n // groups.batch, o, *window.result_shape(space)), x.dtype)
    for at in np.ndindex(*out.shape):
        b, channel, *place = at
        group = channel // (o // (groups.channels * groups.batch))
        lane = b + (group * out.shape[0] if groups.batch > 1 else 0)
        first = group * i if groups.channels > 1 else 0
        rows = [
            np.s_[p * stride : p * stride + (size - 1) * apart + 1 : apart]
            for p, stride, size, apart in zip(
                place, window.strides, window.sizes, window.window_dilation, strict=True
            )
        ]
        out[at] = (wide[(lane, np.s_[first : first + i], *rows)] * k[channel]).sum()
    return np.transpose(out, np.argsort(layouts.out))


def attention_weights(q, k, bias, mask, scale, causal, window):
    """The powers of attention's scores, (B, K, T, G, S), and the logarithms of their sums."""
    s = np.einsum("btkgh,bskh->bktgs", q, k) * scale + (0 if bias is None else bias)
    rows, columns = np.arange(q.shape[1])[:, None, None], np.arange(k.shape[1])
    left, right = window or (len(columns) + len(rows),) * 2
    seen = (columns >= rows - left) & (columns <= (rows if causal else rows + right))
    powers = np.where(seen & (True if mask is None else mask), np.exp(s), 0)
    with np.errstate(divide="ignore"):
        return powers, np.log(powers.sum(-1))


def attention_operands(args, biased, masked):
    q, k, v, *rest = args
    bias = rest.pop(0) if biased else None
    mask = rest.pop(0) if masked else None
    return q, k, v, bias, mask, rest


@meaning
def DotProductAttention(*args, scale, causal, window, biased, masked, block):
    q, k, v, bias, mask, _ = attention_operands(args, biased, masked)
    powers, logs = attention_weights(q, k, bias, mask, scale, causal, window)
    weights = powers / np.where(powers.sum(-1) == 0, 1, powers.sum(-1))[..., None]
    return np.einsum("bktgs,bskv->btkgv", weights, v), logs


@meaning
def DotProductAttentionBackward(*args, scale, causal, window, biased, masked, block):
    q, k, v, bias, mask, (logs, products, ct) = attention_operands(args, biased, masked)
    powers, _ = attention_weights(q, k, bias, mask, scale, causal, window)
    p = powers / np.exp(logs)[..., None]
    ds = p * (np.einsum("btkgv,bskv->bktgs", ct, v) - products[..., None])
    found = [
        np.einsum("bktgs,bskh->btkgh", ds, k) * scale,
        np.einsum("bktgs,btkgh->bskh", ds, q) * scale,
        np.einsum("bktgs,btkgv->bskv", p, ct),
    ]
    if biased:
        axes = tuple(i for i, n in enumerate(bias.shape) if n == 1)
        found.append(ds.sum(axes, keepdims=True))
    return found


def normalized(x, shape, axes, eps, centered=True, rstd=None):
    """x in `shape`, standardized over `axes`, and 1 over the deviation."""
    x = x.reshape(shape)
    count = max(int(np.prod([shape[d] for d in axes])), 1)
    mean = x.sum(axes, keepdims=True) / count if centered else 0.0
    variance = ((x - mean) ** 2).sum(axes, keepdims=True) / count
    rstd = 1 / np.sqrt(variance + eps) if rstd is None else rstd.reshape(variance.shape)
    return (x - mean) * rstd, rstd


def normalization(layout, centered=True):
    def norm(x, *affine, eps, weighted=False, biased=False, **params):
        shape, axes, kept = layout(x, **params)
        out = normalized(x, shape, axes, eps, centered)[0].reshape(x.shape)
        affine = [a.reshape(kept) for a in affine]
        out = out * affine[0] if weighted else out
        return out + affine[-1] if biased else out

    return norm


def normalization_backward(layout, centered=True):
    def pull(ct, x, *rest, eps, weighted=False, wanted=(True, True, True), **params):
        shape, axes, kept = layout(x, **params)
        out, rstd = normalized(x, shape, axes, eps, centered, None if eps is not None else rest[0])
        weight = rest[-1] if weighted else np.ones([n for n in kept if n != 1] or 1, x.dtype)
        g = (ct * weight.reshape(kept)).reshape(shape)
        count = max(int(np.prod([shape[d] for d in axes])), 1)
        mean = g.sum(axes, keepdims=True) / count if centered else 0.0
        of_x = rstd * (g - mean - out * (g * out).sum(axes, keepdims=True) / count)
        summed = tuple(d for d, n in enumerate(kept) if n == 1)
        sizes = [n for d, n in enumerate(x.shape) if d not in summed]
        sums = [t.sum(summed).reshape(sizes) for t in (ct * out.reshape(x.shape), ct)]
        found = of_x.reshape(x.shape), *sums
        return [one for one, on in zip(found, wanted, strict=True) if on]

    return pull


def of_layers(x, rank, lead=0):
    kept = [n if d < lead or d >= x.ndim - rank else 1 for d, n in enumerate(x.shape)]
    return x.shape, tuple(range(x.ndim - rank, x.ndim)), kept


def of_groups(x, groups, axis=1, lead=0):
    channels, rest = x.shape[axis], x.shape[axis + 1 :]
    shape = (*x.shape[:axis], groups, channels // groups, *rest)
    kept = [n if d < lead or d == axis else 1 for d, n in enumerate(x.shape)]
    return shape, tuple(range(axis + 1, len(shape))), kept


def of_batches(x, axes):
    return x.shape, axes, [1 if d in axes else n for d, n in enumerate(x.shape)]


MEANING |= {
    "LayerNorm": normalization(of_layers),
    "LayerNormBackward": normalization_backward(of_layers),
    "RMSNorm": normalization(of_layers, centered=False),
    "RMSNormBackward": normalization_backward(of_layers, centered=False),
    "GroupNorm": normalization(of_groups),
    "GroupNormBackward": normalization_backward(of_groups),
    "BatchNormBackward": normalization_backward(of_batches),
}


@meaning
def BatchNorm(x, *rest, axes, momentum=0.1, tracked=False, **params):
    affine = rest[: len(rest) - 2 * tracked]
    out = normalization(of_batches)(x, *affine, axes=axes, **params)
    if not tracked:
        return [out]
    if not x.size:
        return [out, *rest[-2:]]
    found = x.mean(axes), x.var(axes, ddof=1)
    moved = [
        (1 - momentum) * old + momentum * new for old, new in zip(rest[-2:], found, strict=True)
    ]
    return [out, *moved]


@meaning
def BatchNormInference(x, mean, variance, *affine, eps, axes, weighted=False, biased=False):
    kept = of_batches(x, axes)[2]
    out = (x - mean.reshape(kept)) / np.sqrt(variance.reshape(kept) + eps)
    out = out * affine[0].reshape(kept) if weighted else out
    return out + affine[-1].reshape(kept) if biased else out


@meaning
def BatchNormInferenceBackward(ct, x, mean, variance, *weight, eps, axes, wanted=(True,) * 5, **_):
    kept = of_batches(x, axes)[2]
    rstd = 1 / np.sqrt(variance + eps)
    scale = rstd * weight[0] if weight else rstd
    total, along = ct.sum(axes), (ct * (x - mean.reshape(kept))).sum(axes)
    found = (
        ct * scale.reshape(kept),
        -scale * total,
        -0.5 * along * scale * rstd**2,
        along * rstd,
        total,
    )
    return [one for one, on in zip(found, wanted, strict=True) if on]


@meaning
def Variance(x, axes, ddof=0.0):
    return np.var(x, axes, ddof=ddof)


@meaning
def StandardDeviation(x, axes, ddof=0.0):
    return np.std(x, axes, ddof=ddof)


@meaning
def VectorNorm(x, axes, ord):
    size = np.abs(x)
    if np.isinf(ord):
        return (np.max if ord > 0 else np.min)(size, axes)
    return (size**ord).sum(axes) ** (1 / ord)


# Collectives: the operands of all places come as the first dimension.


@meaning
def Across(*xs, primitive, axes):
    count = len(axes)
    xs = [x.reshape(-1, *x.shape[count:]) for x in xs] or [np.zeros(axes[0][1])]
    params = {field: getattr(primitive, field) for field in primitive.fields}
    out = MEANING[type(primitive).__name__](*xs, **params)
    return out.reshape(*[n for _, n in axes], *out.shape[1:])


def in_groups(function):
    """`function` of the operands in a group of places, for every group."""

    def apply(x, axes, groups=None, **params):
        groups = groups or (tuple(range(len(x))),)
        found = {}
        for group in groups:
            rows = function(x[list(group)], **params)
            found.update(zip(group, rows, strict=True))
        return np.stack([found[place] for place in range(len(x))])

    apply.__name__ = function.__name__
    return meaning(apply)


@in_groups
def Psum(x):
    return [x.sum(0)] * len(x)


@in_groups
def Pmax(x):
    return [x.max(0)] * len(x)


@in_groups
def Pmin(x):
    return [x.min(0)] * len(x)


@in_groups
def AllGather(x, axis, sizes, invariant):
    return [np.concatenate(list(x), axis)] * len(x)


@in_groups
def PsumScatter(x, axis, sizes):
    return np.split(x.sum(0), len(x), axis)


@in_groups
def AllToAll(x, split, concat, sizes):
    parts = [np.split(row, len(x), split) for row in x]
    return [np.concatenate([row[place] for row in parts], concat) for place in range(len(x))]


@in_groups
def Ppermute(x, perm):
    out = np.zeros_like(x)
    for source, destination in perm:
        out[destination] = x[source]
    return out


@in_groups
def Vary(x):
    return x


@meaning
def AxisIndex(x, axis, size):
    return np.arange(size)


@meaning
def Boundary(x, like, kind, axes):
    return x


@meaning
def ShardingConstraint(x, sharding):
    return x


@meaning
def ShardMap(*xs, program, mesh, in_specs, out_specs, axes):
    (x, y) = xs
    return [np.sin(x) * y, y]
