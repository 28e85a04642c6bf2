"""Wrong arguments of public functions: errors of functx, of the kind that NumPy and JAX raise."""

import pickle
from functools import partial, wraps
from operator import attrgetter

import numpy
import pytest

import functx
import functx.numpy as np
from functx import Primitive, errors, jit, lax, nn, random, scipy, tree, tree_util
from functx.core.argument_errors import explain, explained
from functx.core.errors import ArgumentError, FunctxError
from functx.tools.reference import NAMESPACES

X = numpy.ones(3, "float32")
A = numpy.eye(2, dtype="float32")


def square(x):
    return x * x


def pair(x, y):
    return x + y


class Scaled(Primitive, abstract=True):
    """A primitive whose author has returned a shape in place of a type."""

    rate: int

    def abstract_eval(self, x):
        return x.shape


program = functx.make_ir(pair)(X, X)
exported = functx.export.export(pair)(X, X)
short_rule = functx.custom_vjp(square)
short_rule.defvjp(lambda x: (x, x), lambda ct: (ct,))

WRONG_CALLS = [
    (lambda: np.fft.fft(X, n=1.5), TypeError, "fft: n must be an integer or None; got 1.5"),
    (lambda: np.fft.fft(X, axis="q"), TypeError, "fft: axis must be an integer; got 'q'"),
    (lambda: np.fft.fftn(X, s=3), TypeError, "fftn: s must be integers or None; got 3"),
    (lambda: np.diff(X, n="a"), TypeError, "n must be an integer"),
    (lambda: np.diag(X, k=1.5), TypeError, "k must be an integer"),
    (lambda: np.histogram(X, range=5), TypeError, "range must be a sequence of 2 arrays"),
    (lambda: np.linalg.multi_dot(None), TypeError, "arrays must be a sequence of arrays"),
    (lambda: np.select(None, None), TypeError, "select: "),
    (lambda: np.arange(None), TypeError, "arange: "),
    (lambda: np.promote_types("abc", X), TypeError, "dtype"),
    (lambda: np.bfloat16(object()), TypeError, "bfloat16: x must be an array"),
    (lambda: np.roll(X, 1, dim=0), TypeError, "the argument must be named axis; got dim"),
    (
        lambda: np.tile(X, 2, 3),
        TypeError,
        "tile: the arguments must fit its parameters; got tile(ndarray float32[3], 2, 3): too",
    ),
    (lambda: np.sum(X, axis=object()), TypeError, "axis must be an integer"),
    (lambda: np.abs(2**70), OverflowError, "a Python int must fit the dtype"),
    (lambda: np.fabs(1j), TypeError, "fabs: arrays must be real"),
    (lambda: np.ediff1d([True, False]), TypeError, "ediff1d: booleans have no differences"),
    (lambda: np.max(X, initial=X), ValueError, "initial must be a scalar"),
    (lambda: np.bincount([1, 2], minlength=1.5), TypeError, "minlength must be an integer"),
    (lambda: lax.top_k(X, "a"), TypeError, "k must be an integer"),
    (lambda: lax.collapse(X, "a"), TypeError, "an integer"),
    (lambda: lax.concatenate(X, 0), FunctxError, "concatenate: "),
    (lambda: lax.pad(X, 0.0, X), TypeError, "pad: padding_config must be a sequence of sequences"),
    (
        lambda: lax.gather(X, X, X, X),
        TypeError,
        "gather: slice_sizes must be a sequence of integers",
    ),
    (lambda: lax.approx_max_k(X, 2, recall_target=7.0), ValueError, "must be in (0, 1]; got 7.0"),
    (lambda: lax.iota("float32", -1), TypeError, "iota: size must not be negative"),
    (lambda: lax.reduce_precision(X, "a", 3), TypeError, "exponent_bits must be an integer"),
    (lambda: lax.empty(None), TypeError, "empty: "),
    (lambda: nn.initializers.variance_scaling(X, X, X), FunctxError, "variance_scaling: "),
    (lambda: nn.ModuleList(5), TypeError, "ModuleList: "),
    (lambda: nn.ModuleDict(5), TypeError, "ModuleDict: "),
    (lambda: random.permutation(random.key(0), -1), ValueError, "must not be negative; got -1"),
    (lambda: scipy.linalg.dft("a"), TypeError, "dft: n must be an integer; got 'a'"),
    (lambda: scipy.linalg.hadamard(None), TypeError, "hadamard: n must be an integer; got None"),
    (lambda: scipy.linalg.invpascal(-1), TypeError, "invpascal: n must not be negative"),
    (
        lambda: np.sin(numpy.array(["a"])),
        TypeError,
        "must be arrays or numbers; got ndarray <U1[1]",
    ),
    (lambda: np.add(np.ones(2), numpy.array([None])), TypeError, "got ndarray object[1]"),
    (lambda: np.fft.fftfreq(2**70), ValueError, "fftfreq: the arguments must fit"),
    (
        lambda: scipy.linalg.cho_solve("abc", X),
        ValueError,
        "cho_solve: c_and_lower must be a sequence",
    ),
    (lambda: scipy.linalg.lu_solve(None, X), TypeError, "lu_solve: lu_and_piv must be a sequence"),
    (lambda: scipy.stats.norm.pdf(X, 0, 1, 2), TypeError, "norm.pdf: the arguments must fit"),
    (lambda: tree.unflatten(None, [1]), TypeError, "unflatten: "),
    (lambda: np.asarray(X).repeat("a"), TypeError, "repeat"),
    (lambda: tree_util.tree_map(len, {}, is_leaf=True), TypeError, "is_leaf must be a function or"),
    (
        lambda: tree.map(max, {"a": 1}, {"b": 1}),
        ValueError,
        "the keys 'b' for dict with the keys 'a'",
    ),
    (
        lambda: nn.Parameter(X, requires_grad=X),
        ValueError,
        "requires_grad: it must be a bool",
    ),
    (
        lambda: nn.Parameter(data=X),
        TypeError,
        "Parameter: the argument must be named value; got data",
    ),
    (
        lambda: functx.grad(square, X),
        TypeError,
        "To call the result with arguments, write grad(f)(x)",
    ),
    (
        lambda: functx.vmap(square, X),
        TypeError,
        "To call the result with arguments, write vmap(f)(x)",
    ),
    (
        lambda: functx.grad(square, argnum=0),
        TypeError,
        "Did you mean `argnums`? Its parameters: fun",
    ),
    (lambda: functx.grad(1)(square), TypeError, "@grad(name=value)"),
    (lambda: functx.grad(lambda x: None)(1.0), TypeError, "single scalar; got None"),
    (lambda: jit(square, static_argnums=0)(X), ValueError, "got ndarray float32[3] for argument"),
    (lambda: functx.vmap(pair, (0, None))(X, y=X), ValueError, "Keyword arguments (y) are mapped"),
    (lambda: lax.cond(True, pair, pair, X), TypeError, "cond: `true_fun` must take the arguments"),
    (lambda: lax.scan(square, X), ValueError, "Write scan(f, init, xs), or pass length=n"),
    (lambda: lax.dynamic_slice(X, 0, (1,)), IndexError, "indices must be a sequence or a vector"),
    (lambda: np.zeros(3, 4), TypeError, "Give the lengths of a shape as one tuple"),
    (lambda: np.ones(3).view(3, 1), TypeError, "x.reshape(3, 4)"),
    (lambda: np.zeros(3, "flaot32"), TypeError, "Did you mean 'float32'?"),
    (
        lambda: np.zeros(3, object),
        TypeError,
        "a dtype must be one that functx has, or its name; got <class 'ob",
    ),
    (lambda: np.arange(3, dtype="m8"), TypeError, "a dtype must be one that functx has"),
    (lambda: np.zeros(3, numpy.longdouble), TypeError, "a dtype must be one that functx has"),
    (lambda: np.hstack(A, A), TypeError, "Give several arrays as one list, as in hstack([x, y])"),
    (lambda: np.stack(A, A), TypeError, "Give several arrays as one list, f([x, y])"),
    (
        lambda: program(),
        ValueError,
        "the arguments must be `x`, `y`, those that the program was made",
    ),
    (lambda: program(X, X, z=X), ValueError, "made for; got also `z`"),
    (lambda: program(X, y=X), ValueError, "made for; got `y` by name"),
    (lambda: exported(X), ValueError, "those that the function was exported for; got no `y`"),
    (lambda: exported.save(3), TypeError, "save: the file must be given by its path; got int"),
    (lambda: program.rewrite(3), TypeError, "the rule of rewrite must be a function; got int"),
    (lambda: program.replace(3), TypeError, "replace takes equations; got int"),
    (lambda: Scaled()(X), TypeError, "Scaled: the parameters must be rate; got no value for rate"),
    (
        lambda: Scaled(1)(X),
        TypeError,
        "`abstract_eval` must return the type of the result; got (3,)",
    ),
    (lambda: Scaled(1, 2), TypeError, "Operands follow in a second call: Scaled(rate)(x)"),
    (
        lambda: functx.export.export(lambda x: x if x else -x)(1.0),
        TypeError,
        "which has none while export(lambda) is traced",
    ),
    (lambda: functx.grad(short_rule)(1.0), TypeError, "must take residuals and a cotangent; got a"),
]


def test_wrong_arguments_are_told_by_name_in_errors_of_pythons_kind():
    for call, kind, words in WRONG_CALLS:
        with pytest.raises(kind) as caught:
            call()
        assert isinstance(caught.value, FunctxError), words
        text = str(caught.value)
        assert words in text, text
        assert "at test_argument_errors.py:" in text


def test_wrong_arguments_in_a_traced_function_are_told_by_name():
    with pytest.raises(
        errors.ArgumentError, match=r"fft: axis must be an integer; got 1\.5"
    ) as caught:
        jit(lambda x: np.fft.fft(x, axis=1.5))(X)
    assert isinstance(caught.value.__cause__, TypeError)


def test_a_call_whose_arguments_are_of_the_declared_types_shows_them_and_the_parameters():
    with pytest.raises(ValueError, match="fftfreq: the arguments must fit") as caught:
        np.fft.fftfreq(2**62)
    text = str(caught.value)
    assert f"got n={2**62}\n  because: " in text
    assert "Its parameters: n, d=1.0, *, dtype=None, device=None." in text


def test_a_call_that_does_not_fit_the_users_function_names_it_and_its_parameters():
    def scaled(x, factor):
        return x * factor

    calls = [
        lambda: functx.jit(scaled)(X),
        lambda: functx.make_ir(scaled)(X, 2.0, 3.0),
        lambda: functx.explore(scaled)(),
        lambda: functx.tools.picture(scaled)(x=X),
        lambda: functx.tools.explain_nan(scaled)(X),
        lambda: functx.implicit.root(scaled, lambda x, a, b: x)(1.0, 2.0, 3.0),
    ]
    for call in calls:
        with pytest.raises(ArgumentError) as raised:
            call()
        requirement, definition, line, parameters, _ = str(raised.value).splitlines()
        assert requirement.startswith("scaled: a function must take") and "; got a" in requirement
        assert definition.endswith("def scaled(x, factor):") and "lambda: functx." in line
        assert parameters == "  Its parameters: x, factor."

    @wraps(scaled)
    def wrapper(x):
        return scaled(x, 2.0)

    class Scaling:
        def __call__(self, x):
            return x

    for fun, name, parameters in (
        (wrapper, "scaled", "x"),
        (partial(scaled, X), "scaled", "x, factor"),
        (Scaling(), "Scaling.__call__", "x"),
        (lambda: X, "lambda", "none"),
    ):
        with pytest.raises(ArgumentError, match=rf"(?s)^{name}: .*Its parameters: {parameters}[.]"):
            functx.jit(fun)(X, 2.0)

    def calls_itself_wrongly(x):
        return scaled(x)

    with pytest.raises(TypeError) as raised:
        functx.jit(calls_itself_wrongly)(X)
    assert type(raised.value) is TypeError


def test_errors_of_the_users_functions_stay_as_they_are():
    def fail(x):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        np.apply_along_axis(fail, 0, X)
    with pytest.raises(KeyError, match="mine"):
        tree.map(fail, [1.0])
    error = NotImplementedError("later")
    assert explain(error, fail, (X,), {}) is None


def test_faults_of_functx_are_not_told_as_those_of_arguments():
    assert explain(KeyError("lost"), np.fft.fftfreq, (4,), {}) is None
    assert explain(AttributeError(obj=np, name="lost"), np.fft.fftfreq, (4,), {}) is None
    with pytest.raises(errors.ValueRangeError, match="because: KeyError: 4"):
        explain(KeyError(4), np.fft.fftfreq, (4,), {})


def test_explained_functions_keep_their_name_and_can_be_pickled():
    for function in (np.roll, np.fft.fft, lax.top_k, scipy.linalg.dft, np.sum, np.add):
        assert pickle.loads(pickle.dumps(function)) is function
    assert np.roll.__name__ == "roll"
    assert not hasattr(np.add, "explains_errors")


def test_digits_beyond_those_of_a_number_change_nothing_when_it_is_rounded():
    x = numpy.array([1.5, -3e-5, 2e30], "float32")
    for decimals in (40, 2**70):
        assert (np.round(x, decimals) == x).all()


def test_the_functions_of_all_public_namespaces_have_their_errors_explained():
    # Policies are called by functx, and functions of autograd are handed to overrides as they are.
    left_out = {"aten", "autograd", "checkpoint_policies"}
    for space in {*NAMESPACES} - left_out:
        module = attrgetter(space)(functx)
        for name in getattr(module, "__all__", ()):
            value = getattr(module, name)
            assert explained(value, module.__name__) is value, f"functx.{space}.{name}"
