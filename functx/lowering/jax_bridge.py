"""The bridge to JAX: avals, typed keys, options, effects, and Python functions that programs call."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from inspect import BoundArguments, signature
from operator import attrgetter, itemgetter
from threading import local
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

import jax
import numpy as np
from jax.core import ShapedArray as JaxShapedArray
from jax.experimental import io_callback
from jax.experimental.compilation_cache.compilation_cache import reset_cache
from jax.extend.core import find_top_trace
from jax.extend.mlir.dialects import stablehlo
from jax.interpreters import mlir

from functx import ops
from functx.core import tree
from functx.core.backend import backend
from functx.core.captured_state import CapturedState
from functx.core.effects import NO_EFFECTS, Effects, is_ordered, is_per_element
from functx.core.errors import (
    ArgumentError,
    DTypeError,
    FunctxError,
    IntegerRangeError,
    ShapeError,
    TypedKeyError,
    ValueRangeError,
    type_name,
)
from functx.core.generator_state import GeneratorState, ThreadState
from functx.core.program import Equation, Program, subprograms
from functx.core.source_info import Source, source_line
from functx.core.tracer import PRNGKeyTracer, Tracer, aval_of
from functx.core.types import SHORT_NAMES, ShapedArray
from functx.core.typing import ArrayLike, Function, IRValue, IRValues, NumPyArray, PyTree, Value
from functx.transforms.vmap import vmap

if TYPE_CHECKING:
    from functx.lowering.stablehlo_emitter import LoweringContext


JaxAval: TypeAlias = Any
"""A type of JAX; of an array it has a shape and a dtype."""


@lru_cache(maxsize=16384)
def jax_aval(aval: ShapedArray) -> JaxAval:
    """JAX's aval of the same type."""
    return JaxShapedArray(aval.shape, aval.dtype, weak_type=aval.weak_type)


# Avals of JAX with those of functx. The key is the identity, which is quick to look up; the entry
# keeps the object alive, so that no other gets its identity.
_avals_by_type_and_id: dict[tuple[type, int], tuple[Any, ShapedArray]] = {}


def aval_of_jax_array(x: object) -> ShapedArray | None:
    """The aval of an array, tracer or number of JAX; None for anything else.

    Raises ShapeError for a shape with symbolic dimensions.
    """
    aval = getattr(x, "aval", None)
    if aval is None:
        return None
    key = type(x), id(aval)
    found = _avals_by_type_and_id.get(key)
    if found is None:
        # JAX passes numbers with an aval to the rules of its users.
        if not isinstance(x, (jax.Array, int, float, complex)) or aval.dtype not in SHORT_NAMES:
            return None
        if any(type(d) is not int for d in aval.shape):
            raise ShapeError(
                f"the dimensions of an array must be numbers; got the shape {aval.shape} of {aval}",
                fix="Export the function for each shape that it is to take.",
            )
        if len(_avals_by_type_and_id) > 8192:
            _avals_by_type_and_id.clear()
        ours = ShapedArray(tuple(aval.shape), aval.dtype, bool(aval.weak_type))
        found = _avals_by_type_and_id[key] = aval, ours
    return found[1]


# The same for arrays with values, by the identity alone.
_avals_by_id: dict[int, tuple[Any, ShapedArray]] = {}
_get_aval, _get_second = attrgetter("aval"), itemgetter(1)


def avals_of_arrays(arrays: Sequence[Any]) -> tuple[ShapedArray, ...]:
    """The avals of arrays with values, of JAX or NumPy."""
    try:
        entries = map(_avals_by_id.__getitem__, map(id, map(_get_aval, arrays)))
        return tuple(map(_get_second, entries))
    except (AttributeError, KeyError):
        avals = tuple(map(aval_of, arrays))
    if len(_avals_by_id) > 8192:
        _avals_by_id.clear()
    for x, aval in zip(arrays, avals, strict=True):
        if isinstance(x, jax.Array):
            _avals_by_id[id(x.aval)] = x.aval, aval
    return avals


backend.aval_of_jax_array = aval_of_jax_array
backend.jax_aval = jax_aval


DEFAULT_PRNG = "threefry2x32"
KEY_DATA_DTYPE = np.dtype("uint32")


class PRNGKeyType(NamedTuple):
    """The type of typed keys: their generator, and the shape of the words of one key.

    In a program a key is the array of its words.
    """

    generator: Any
    key_shape: tuple[int, ...]

    def wrap(self, words: Any) -> Value:
        """The typed keys that hold `words`."""
        return jax.random.wrap_key_data(words, impl=self.generator)


@lru_cache(maxsize=64)
def prng_key_type(dtype: Any) -> PRNGKeyType | None:
    """The key type of a dtype of JAX; None for the dtypes of numbers."""
    try:
        if isinstance(dtype, np.dtype) or not jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key):  # type: ignore[attr-defined]
            return None
    except TypeError:
        # A dtype of another library.
        return None
    generators: list[Any] = []

    def words(key: Value) -> Value:
        generators.append(jax.random.key_impl(key))
        return jax.random.key_data(key)

    shape = jax.eval_shape(words, jax.ShapeDtypeStruct((), dtype)).shape
    return PRNGKeyType(generators[0], shape)


def raw_key_data(key: Any) -> Any:
    """The words of typed keys, of an array or of its type; any other value as it is."""
    if type(key) is PRNGKeyTracer:
        return key.key_data
    dtype = getattr(key, "dtype", None)
    # `numpy.float32` has the attribute, too: that of its instances.
    if dtype is None or isinstance(key, type) or prng_key_type(dtype) is None:
        return key
    if not isinstance(key, jax.Array):
        return jax.eval_shape(raw_key_data, jax.ShapeDtypeStruct(key.shape, dtype))
    return jax.random.key_data(key)


def threefry_key_data(key: object) -> Value:
    """As `raw_key_data`, but raises DTypeError for keys of another generator than Threefry."""
    kind = prng_key_type(key.dtype) if isinstance(key, jax.Array) else None
    if kind is not None and str(kind.generator) != DEFAULT_PRNG:
        raise DTypeError(
            f"a key must be of JAX's default generator, {DEFAULT_PRNG}; got one of {kind.generator}",
            fix="Make keys with functx.random.key, or draw with jax.random.",
        )
    return raw_key_data(key)


def typed_key_array(words: object, dtype: object) -> Any:
    """The typed keys of `dtype` that hold `words`, an array or its type; any other value as it is."""
    kind = prng_key_type(dtype)
    assert kind is not None
    if isinstance(words, Tracer):
        return PRNGKeyTracer(
            words, jax.core.ShapedArray(words.shape[: -len(kind.key_shape)], dtype)
        )
    if isinstance(words, (ShapedArray, jax.ShapeDtypeStruct)):
        return jax.ShapeDtypeStruct(words.shape[: -len(kind.key_shape)], dtype)
    if not isinstance(words, (jax.Array, np.ndarray)) or words.dtype != KEY_DATA_DTYPE:
        return words
    return kind.wrap(words)


def call_with_keys(ours: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The result of the function of JAX with the name of `ours`, for arguments with typed keys.

    Raises TypedKeyError if JAX has no such function, or none that takes keys.
    """
    name = ours.__name__
    declared = signature(ours)
    if any([p.annotation == "PyTreeOrKeys" for p in declared.parameters.values()]):
        return _map_leaves(ours, declared.bind(*args, **kwargs))
    package = ".".join(["jax", *ours.__module__.split(".")[1:2]])
    function = getattr(sys.modules.get(package), name, None)
    try:
        if function is not None:
            return function(*args, **kwargs)
        refusal = "typed keys"
    except FunctxError:
        raise
    except (TypeError, ValueError, NotImplementedError) as error:
        refusal = f"typed keys, which JAX refuses: {str(error).partition(chr(10))[0]}"
    raise TypedKeyError(
        f"{name}: arguments must be arrays or numbers; got {refusal}",
        fix="Pass functx.random.key_data(keys), their words.",
    )


def _map_leaves(ours: Function, call: BoundArguments) -> PyTree:
    """The result of a function that does the same to each leaf of its first argument."""
    first = next(iter(call.arguments))
    leaves, structure = tree.flatten_with_key_data(call.arguments[first])

    def of_leaf(x: Value) -> Value:
        call.arguments[first] = x
        return ours(*call.args, **call.kwargs)  # type: ignore[no-any-return]

    # The dimension of the words is batched, since axes count those of the keys alone.
    of_words = vmap(of_leaf, -1, -1)
    pairs = zip(leaves, tree.key_leaves(structure), strict=True)
    return tree.unflatten(structure, [(of_words if is_key else of_leaf)(x) for x, is_key in pairs])


backend.raw_key_data = raw_key_data
backend.call_with_keys = call_with_keys
backend.typed_key_array = typed_key_array


_CACHE_DIRECTORY = "jax_compilation_cache_dir"
_MIN_COMPILE_SECONDS = "jax_persistent_cache_min_compile_time_secs"
_MIN_ENTRY_BYTES = "jax_persistent_cache_min_entry_size_bytes"
_JAX_OPTION_NAMES = {
    "compilation_cache": _CACHE_DIRECTORY,
    "compilation_cache_min_seconds": _MIN_COMPILE_SECONDS,
    "compilation_cache_min_bytes": _MIN_ENTRY_BYTES,
}


def jax_option(name: str) -> object:
    """The value of an option of `functx.config` that is one of JAX, or of JAX by its own name."""
    return getattr(jax.config, _JAX_OPTION_NAMES.get(name, name))


def set_jax_option(name: str, value: Any) -> None:
    """Sets an option of `functx.config` that is one of JAX, or one of JAX by its own name."""
    if name not in _JAX_OPTION_NAMES:
        jax.config.update(name, value)
        return
    if name == "compilation_cache":
        _set_cache_directory(value)
        return
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not value >= 0:
        raise ValueRangeError(
            f"config: {name} must be a number that is not negative; got {value!r}"
        )
    jax.config.update(
        _JAX_OPTION_NAMES[name],
        float(value) if _JAX_OPTION_NAMES[name] == _MIN_COMPILE_SECONDS else int(value),
    )


def _set_cache_directory(path: object) -> None:
    if path is not None and not isinstance(path, (str, os.PathLike)):
        raise ArgumentError(
            f"config: compilation_cache must be the path of a directory, or None; "
            f"got {type_name(path)}"
        )
    if path is not None and os.path.exists(path) and not os.path.isdir(path):
        raise ValueRangeError(
            f"config: compilation_cache must be the path of a directory, or None; "
            f"got the file {os.fspath(path)!r}"
        )
    before = jax_option("compilation_cache")
    jax.config.update(_CACHE_DIRECTORY, None if path is None else os.fspath(path))
    if before is None and path is not None:
        # By default JAX stores only programs that took a second to compile.
        jax.config.update(_MIN_COMPILE_SECONDS, 0.0)
    # JAX looks the directory up at its first compilation only.
    reset_cache()


backend.jax_option = jax_option
backend.set_jax_option = set_jax_option


@cache
def _jax_effects(effects: Effects, with_results: bool) -> frozenset[Any]:
    found: set[Any] = set()
    if is_ordered(effects):
        found.add(ordered_effect())
    if not all([effect.is_ordered for effect in effects]):
        found |= jax.make_jaxpr(lambda: jax.debug.callback(_no_op))().effects
    # JAX never runs callbacks with results twice.
    if with_results:
        found |= jax.make_jaxpr(lambda: io_callback(_no_op, None))().effects
    return frozenset(found)


@cache
def ordered_effect() -> jax.core.Effect:
    """JAX's effect for ordered callbacks, whose token is passed from one to the next."""
    (effect,) = jax.make_jaxpr(lambda: jax.debug.callback(_no_op, ordered=True))().effects
    return effect


@cache
def _ordered_io_effect() -> jax.core.Effect:
    (effect,) = jax.make_jaxpr(lambda: io_callback(_no_op, None, ordered=True))().effects
    return effect


def _no_op() -> None:
    """A callback that does nothing, from which JAX's effects are read."""


def jax_effects(program: Program) -> frozenset[Any]:
    """JAX's effects for those of `program`."""
    if not program.effects:
        return NO_EFFECTS
    with_results: bool | None = program.memo.get(jax_effects)
    if with_results is None:
        with_results = program.memo[jax_effects] = any(
            has_effect_with_results(eqn) for each in program.walk() for eqn in each
        )
    return _jax_effects(program.effects, with_results)


def has_effect_with_results(eqn: Equation) -> bool:
    """Whether an equation, which runs no sub-programs, has an effect and results."""
    primitive = eqn.primitive
    return bool(eqn.outputs) and is_per_element(primitive.effects) and not subprograms(primitive)


def emit_callback(
    ctx: LoweringContext, primitive: ops.HostPrimitive, values: IRValues
) -> list[IRValue]:
    """The outputs of a call of the host, which takes and returns the module's token if it is ordered."""
    module = ctx.module
    ordered = is_ordered(primitive.effects)
    call = DeviceCallback(primitive, ctx.source)
    avals_in = [jax_aval(a) for a in ctx.avals_in]
    avals_out = [jax_aval(a) for a in ctx.avals_out]
    context = module.jax_context.replace(avals_in=avals_in, avals_out=avals_out)
    if getattr(module.module_context.axis_context, "num_devices", 0) != 1:
        return _emit_on_one_device(context, module, call, ordered, values)
    results, token, _ = mlir.emit_python_callback(
        context,
        call,
        module.token if ordered else None,
        list(values),
        avals_in,
        avals_out,
        has_side_effect=bool(primitive.effects),
        returns_token=ordered,
    )
    if ordered:
        module.token = token
    return cast("list[IRValue]", list(results))


def jax_tokens(token: IRValue) -> mlir.TokenSet:
    """The tokens for a JAX function whose ordered effects, of every kind of JAX, come after `token`."""
    return mlir.TokenSet(dict.fromkeys((ordered_effect(), _ordered_io_effect()), token))


def joined_token(tokens: mlir.TokenSet | None, before: IRValue) -> IRValue:
    """The token after those of `tokens`, which all come after `before`."""
    after = [] if tokens is None else [token for _, token in tokens.items() if token != before]
    if not after:
        return before
    return after[0] if len(after) == 1 else stablehlo.AfterAllOp(after).result


def _emit_on_one_device(
    context: Any, module: Any, call: DeviceCallback, ordered: bool, values: IRValues
) -> list[IRValue]:
    """The outputs of a call of the host in a module for several devices, where one of them calls."""
    avals = context.avals_out
    if call.primitive.effects:

        def through_jax(*xs: IRValue) -> PyTree:
            return io_callback(call, avals, *xs, ordered=ordered)

    else:

        def through_jax(*xs: IRValue) -> PyTree:
            return jax.pure_callback(call, avals, *xs)

    effect = _ordered_io_effect()
    tokens = {effect: module.token} if ordered else {}
    context = context.replace(tokens_in=mlir.TokenSet(tokens), tokens_out=None)
    outs = mlir.lower_fun(through_jax, multiple_results=True)(context, *values)
    if ordered:
        module.token = context.tokens_out.get(effect)
    return [out[0] if isinstance(out, (list, tuple)) else out for out in outs]


class DeviceCallback:
    """A host function called by the device, which keeps its errors for `reraise_callback_error`."""

    def __init__(self, primitive: ops.HostPrimitive, source: Source | None):
        self.primitive, self.source = primitive, source

    def __call__(self, *arrays: ArrayLike) -> tuple[Any, ...]:
        _thread_state.depth = getattr(_thread_state, "depth", 0) + 1
        try:
            return tuple(self.primitive.run(*map(np.asarray, arrays)))
        except BaseException as error:
            name = self.primitive.display_name
            if isinstance(error, FunctxError):
                error.source = self.source
            elif self.source is not None:
                error.add_note(f"in the callback {name}, called at {source_line(self.source)}")
            _callback_errors.append(error)
            raise
        finally:
            _thread_state.depth -= 1


_thread_state = local()
_callback_errors: deque[BaseException] = deque(maxlen=16)


def reraise_callback_error(error: BaseException) -> None:
    """Raises the error of a callback, if JAX raised `error` because of it."""
    text = str(error)
    while _callback_errors:
        failure = _callback_errors.popleft()
        if type(failure).__name__ in text:
            raise failure.with_traceback(_traceback_from_callback(failure.__traceback__)) from None


def _traceback_from_callback(trail: TracebackType | None) -> TracebackType | None:
    """The part of a traceback that starts at the callback."""
    while trail is not None and trail.tb_frame.f_code.co_filename == __file__:
        trail = trail.tb_next
    return trail


def call_reraising_callback_errors(run: Function, *args: PyTree) -> PyTree:
    """`run(*args)`; an error in a callback is raised as the callback raised it."""
    try:
        return run(*args)
    except jax.errors.JaxRuntimeError as error:
        reraise_callback_error(error)
        raise
    except OverflowError:
        large = [x for x in jax.tree.leaves(args) if type(x) is int and abs(x) >= 2**31]
        raise IntegerRangeError(
            f"a Python int must fit the dtype that it gets; got {large[0] if large else 'one that does not'}",
            fix="Convert the number with functx.numpy.asarray(x, dtype), or enable 64-bit types.",
        ) from None


def effects_barrier() -> None:
    """Waits until all callbacks of started programs have run.

    Raises the error of a callback that failed.

    >>> import functx
    >>> seen = []
    >>> functx.jit(lambda x: functx.debug.callback(seen.append, x))(3.0)
    >>> functx.effects_barrier()
    >>> [float(x) for x in seen]
    [3.0]
    """
    call_reraising_callback_errors(jax.effects_barrier)


def run_callback(primitive: ops.HostPrimitive, args: Sequence[NumPyArray]) -> list[NumPyArray]:
    """The outputs of a call of the host outside of any program, as NumPy arrays."""
    wait_for_earlier_effects(primitive.effects)
    return primitive.run(*args)


def is_in_callback() -> bool:
    """Whether this thread runs a callback of a compiled program."""
    return getattr(_thread_state, "depth", 0) > 0


def wait_for_earlier_effects(effects: Effects) -> None:
    """Waits until callbacks of started programs have run, if `effects`, which come next, are ordered.

    Not within a callback, which the barrier would wait for.
    """
    if effects and is_ordered(effects) and not is_in_callback():
        effects_barrier()


def jax_is_tracing() -> bool:
    """Whether operations of JAX become part of a jaxpr now."""
    return type(find_top_trace(())).__name__ != "EvalTrace"


backend.jax_is_tracing = jax_is_tracing


def register_state(cls: type[CapturedState]) -> None:
    """Lets compiled programs take states of a class among their arguments: JAX reads one when it runs one."""
    jax.tree_util.register_pytree_node(
        cls, lambda state: ((state.read(),), None), lambda _, values: values[0]
    )


register_state(GeneratorState)
register_state(ThreadState)
