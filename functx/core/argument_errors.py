"""Errors of Python within functions of functx, as errors of functx that name the argument."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cache, partial, wraps
from inspect import Parameter, Signature, signature
from operator import index
from types import FrameType, FunctionType, MethodType, ModuleType, TracebackType
from typing import Any, NamedTuple, ParamSpec, TypeVar

import numpy as np

from functx.core.backend import backend
from functx.core.errors import (
    ArgumentError,
    AxisError,
    FunctxError,
    IndexingError,
    IntegerRangeError,
    TypedKeyError,
    ValueRangeError,
    short_repr,
    type_name,
)
from functx.core.pytorch_names import check_argument_names
from functx.core.source_info import FUNCTX_OR_JAX, file_owner, is_raise_instruction, source_line
from functx.core.tracebacks import filter_traceback
from functx.core.tracer import aval_of, ndarray
from functx.core.types import SHORT_NAMES, canonical_dtype
from functx.core.typing import Function

P = ParamSpec("P")
R = TypeVar("R")

_NAMED_ERRORS: dict[type[Exception], type[FunctxError]] = {
    np.exceptions.AxisError: AxisError,
    AttributeError: ArgumentError,
    TypeError: ArgumentError,
    IndexError: IndexingError,
    OverflowError: IntegerRangeError,
    KeyError: ValueRangeError,
    ZeroDivisionError: ValueRangeError,
    ValueError: ValueRangeError,
}
"""For errors of Python and NumPy the error of functx, which is one of their kind as well."""
_LIBRARIES = {
    "functx",
    "jax",
    "jaxlib",
    "numpy",
    "ml_dtypes",
    "opt_einsum",
    *sys.stdlib_module_names,
}


def explain_errors(module: str) -> list[str]:
    """Let the public functions and classes of `module` raise errors of functx for arguments that Python refuses.

    Returns the public names: those in `__all__`, or without one all names but those of its own modules.

    Functions of arrays alone stay as they are, since their operands are checked where they are bound, and
    those with an attribute `explains_errors`, which call `explain`.
    """
    namespace = vars(sys.modules[module])
    public = [
        name
        for name, value in namespace.items()
        if not name.startswith("_")
        and name in namespace.get("__all__", namespace)
        and getattr(value, "__name__", None) != f"{module}.{name}"
    ]
    for name in public:
        value = namespace[name]
        if isinstance(value, type) and value.__module__.startswith("functx."):
            for constructor in ("__init__", "__new__"):
                made = _constructor(value, constructor)
                if made is not None:
                    setattr(value, constructor, with_explained_errors(made))
        else:
            namespace[name] = explained(value, module)
    return public


def _constructor(cls: type, name: str) -> Function | None:
    """The method `__init__` or `__new__` that a class of functx defines itself, if it does."""
    made = vars(cls).get(name)
    made = made.__func__ if isinstance(made, staticmethod) else made
    is_own = type(made) is FunctionType and made.__module__.startswith("functx.")
    return made if is_own and not hasattr(made, "explains_errors") else None


def explained(value: object, module: str) -> Any:
    """A function of `module` with its errors explained; other values and functions of arrays alone unchanged."""
    if (
        type(value) is not FunctionType
        or hasattr(value, "explains_errors")
        or _takes_arrays_only(value)
    ):
        return value
    function = with_explained_errors(value)
    function.__module__ = module  # where pickle finds it
    return function


@cache
def with_explained_errors(function: Callable[P, R]) -> Callable[P, R]:
    """`function`, of which `explain` explains the errors."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return body(*args, **kwargs)
        except Exception as error:
            if may_take_keys and is_call_with_keys(error):
                return backend.call_with_keys(call, args, kwargs)  # type: ignore[no-any-return]
            if filters_traceback:
                explain_call(error)
            explain(error, function, args, kwargs)
            if filters_traceback:
                filter_traceback(error)
            raise

    filters_traceback = hasattr(function, "filters_traceback")
    # `explain` reads frames that the boundary of `function` would remove.
    body = getattr(function, "unfiltered", function)
    if getattr(function, "__wrapped__", None) is not body:
        body = function
    # Transforms and constructors have no counterpart in JAX that takes keys.
    may_take_keys = not filters_traceback and not function.__name__.startswith("__")
    call.explains_errors = True  # type: ignore[attr-defined]
    return call


def is_call_with_keys(error: Exception) -> bool:
    """Whether a function of functx raised `error` because its own arguments are typed keys."""
    return isinstance(error, TypedKeyError) and _is_within_libraries(error.__traceback__)


def explain(
    error: Exception, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    """Raise an error of functx in place of an `error` of Python that a call of `function` raised.

    The message names the argument that is not of the annotated type. Returns without raising for errors
    of functx, for those of user code that `function` calls, and if functx itself called `function`. A
    missing key that is in no argument, and a name that a module lacks, are faults of functx itself, whose
    errors stay as they are.
    """
    kind = _named_error(error)
    if kind is None or not _arose_in_libraries(error.__traceback__):
        return
    declared, name = signature(function), function.__name__
    if name == "__init__":
        # An array that is not made yet has no attributes.
        name = type(args[0]).__name__
    elif name in ("__new__", "__call__"):
        name = getattr(args[0], "__name__", type(args[0]).__name__)
    check_argument_names(function, name, kwargs)
    if file_owner[sys._getframe(2).f_code.co_filename] is FUNCTX_OR_JAX:
        return
    try:
        bound = declared.bind(*args, **kwargs)
    except TypeError as mismatch:
        raise mismatch_error(declared, name, mismatch, args, kwargs) from error
    given = {key: value for key, value in bound.arguments.items() if key not in _BOUND}
    # Python's message begins with the name of the function that it could not call.
    culprits = {
        key: value
        for key, value in given.items()
        if callable(value) and str(error).startswith(f"{getattr(value, '__qualname__', '')}() ")
    }
    if culprits:
        raise ArgumentError(
            f"{name}: {' and '.join([f'`{key}`' for key in culprits])} must take the arguments that "
            f"{name} calls it with; got a function for which {error}",
            *[line for value in culprits.values() for line in _definition_of(value)],
        ) from error
    refused = list(_refused_arguments(declared, given))
    if refused:
        raise kind(f"{name}: {refused[0]}", *refused[1:]) from error
    if _is_of_functx(error, given.values()):
        return
    shown = ", ".join([f"{key}={_describe(value)}" for key, value in given.items()])
    reason = f"KeyError: {error}" if isinstance(error, KeyError) else str(error)
    raise kind(
        f"{name}: the arguments must fit the function and each other; got {shown}",
        f"because: {reason.splitlines()[0] if reason else type(error).__name__}",
        fix=f"Its parameters: {_parameters(declared)}.",
    ) from error


def explain_call(error: Exception) -> None:
    """Raise ArgumentError for the TypeError of a call of a user's function that does not fit its parameters.

    Returns for all other errors, and for calls in user code.
    """
    if type(error) is not TypeError or error.__traceback__ is None:
        return
    trail = error.__traceback__
    while trail.tb_next is not None:
        trail = trail.tb_next
    if file_owner[trail.tb_frame.f_code.co_filename] is not FUNCTX_OR_JAX:
        return
    for fun in _functions_of(trail.tb_frame):
        if str(error).startswith(f"{fun.__qualname__}() "):
            name = fun.__qualname__.rpartition("<locals>.")[2].strip("<>")
            raise ArgumentError(
                f"{name}: a function must take the arguments that it is called with; got a call for which {error}",
                *_definition_of(fun),
                # A decorated function is called with the parameters of its wrapper.
                fix=f"Its parameters: {_parameters(signature(fun, follow_wrapped=False))}.",
            ) from None


def _functions_of(frame: FrameType) -> Iterator[FunctionType | MethodType]:
    """The user's functions among the local variables of a frame, and the attributes of `self`.

    For a partial it is the function that this calls, and for another object its method `__call__`.
    """
    values = [*frame.f_locals.values()]
    values += getattr(frame.f_locals.get("self"), "__dict__", {}).values()
    for value in values:
        function = value.func if isinstance(value, partial) else value
        if callable(value) and isinstance(type(value).__call__, FunctionType):
            function = MethodType(type(value).__call__, value)
        if isinstance(function, (FunctionType, MethodType)):
            code = getattr(function, "__code__", None)
            if code is not None and file_owner[code.co_filename] is not FUNCTX_OR_JAX:
                yield function


def mismatch_error(
    declared: Signature,
    name: str,
    mismatch: TypeError,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> ArgumentError:
    """The error for arguments that do not fit the signature."""
    first = next(iter(declared.parameters), "")
    transforms = first in ("fun", "loss") and "too many" in str(mismatch)
    given = [*map(_describe, args[first in _BOUND :])]
    given += [f"{key}={_describe(value)}" for key, value in kwargs.items()]
    return ArgumentError(
        f"{name}: the arguments must fit its parameters; got {name}({', '.join(given)}): {mismatch}",
        fix=_similar_parameters(declared, kwargs)
        + f"Its parameters: {_parameters(declared)}."
        + f" Arguments of `{first}` belong to its result: {name}({first})(*args)." * transforms,
    )


_BOUND = "self", "cls"
"""The first parameter of methods, which a call does not pass."""


def _parameters(declared: Signature) -> str:
    """The parameters of a signature without their types; `none` if there are none."""
    parameters = declared.parameters.values()
    bare = [p.replace(annotation=Parameter.empty) for p in parameters if p.name not in _BOUND]
    return str(Signature(bare))[1:-1] or "none"


def _similar_parameters(declared: Signature, given: Iterable[str]) -> str:
    """`Did you mean ...?` for the first keyword that resembles a parameter; else empty."""
    for name in given:
        near = get_close_matches(name, declared.parameters, 1)
        if near and name not in declared.parameters:
            return f"Did you mean `{near[0]}`? "
    return ""


def _definition_of(fun: Callable[..., Any]) -> list[str]:
    """Where a function of the user is defined, as a line of a message; empty for other callables."""
    code = getattr(fun, "__code__", None)
    return [] if code is None else [f"it is defined at {source_line((code, 0))}"]


def _named_error(error: Exception) -> type[FunctxError] | None:
    """The error of functx for one of Python or NumPy; None for all other errors."""
    module = type(error).__module__.partition(".")[0]
    if module not in ("builtins", "numpy") or isinstance(error, NotImplementedError):
        return None
    return next((named for kind, named in _NAMED_ERRORS.items() if isinstance(error, kind)), None)


def _is_of_functx(error: Exception, given: Iterable[object]) -> bool:
    """Whether an error names a key that is in no argument, or a module without the attribute."""
    if isinstance(error, KeyError) and error.args:
        return not any([_contains(value, error.args[0]) for value in given])
    return isinstance(error, AttributeError) and isinstance(error.obj, ModuleType)


def _contains(value: object, key: object) -> bool:
    """Whether `key` is `value`, or an element or key in it."""
    if isinstance(value, (list, tuple, set, dict)):
        return any([_contains(item, key) for item in value]) or (
            isinstance(value, dict) and _contains([*value.values()], key)
        )
    return value is key or (
        type(value) is type(key) and not isinstance(key, ndarray) and value == key
    )


def _arose_in_libraries(trail: TracebackType | None) -> bool:
    """Whether functx or its libraries caused an error: all frames of its traceback are theirs.

    False for an error that a `raise` statement of functx raised: it was stored before, such as that of a
    callback. The error for an array that cannot be hashed is no stored one.
    """
    if trail is None:
        return True
    if not _is_within_libraries(trail):
        return False
    while trail.tb_next is not None:
        trail = trail.tb_next
    frame = trail.tb_frame
    if _frame_owner(frame) != "functx" or frame.f_code.co_name == "__hash__":
        return True
    return not is_raise_instruction(frame.f_code, trail.tb_lasti)


def _is_within_libraries(trail: TracebackType | None) -> bool:
    """Whether all frames of `trail` are those of functx and its libraries."""
    while trail is not None:
        if _frame_owner(trail.tb_frame) not in _LIBRARIES:
            return False
        trail = trail.tb_next
    return True


def _frame_owner(frame: FrameType) -> str:
    return frame.f_globals.get("__name__", "").partition(".")[0]  # type: ignore[no-any-return]


def _takes_arrays_only(function: Callable[..., Any]) -> bool:
    """Whether all parameters of a function are arrays of numbers, as those of ufuncs are."""
    kinds = {p.annotation for p in signature(function).parameters.values()}
    return kinds <= {"ArrayLike", "ArrayOrList", "Value", "Out", Parameter.empty}


def _refused_arguments(declared: Signature, given: Mapping[str, Any]) -> Iterable[str]:
    """The requirement and the value of each argument that is not of its annotated type."""
    for name, value in given.items():
        parameter = declared.parameters[name]
        several = parameter.kind is Parameter.VAR_POSITIONAL
        for item in value if several else (value,):
            if item is not parameter.default and not _fits(parameter.annotation, item):
                words = " or ".join([_words(part) for part in _split(parameter.annotation)])
                yield f"{name} must be {words}; got {_describe(item)}"


def _describe(value: object) -> str:
    """An argument for messages: arrays by type."""
    try:
        if isinstance(value, FunctionType):
            return f"the function {value.__name__}".replace("<lambda>", "lambda")
        return type_name(value) if isinstance(value, ndarray) else short_repr(value)[:80]
    except Exception:
        return type(value).__name__


@cache
def _split(annotation: str, separator: str = "|") -> tuple[str, ...]:
    """The parts of an annotation at the separators outside of brackets."""
    parts, depth = [""], 0
    for letter in annotation if isinstance(annotation, str) else "":
        depth += (letter == "[") - (letter == "]")
        if letter == separator and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return tuple([part.strip() for part in parts])


def _fits(annotation: str, value: object) -> bool:
    """Whether `value` is of the annotated type; True if that cannot be told."""
    return any([_fits_part(part, value) for part in _split(annotation)])


def _fits_part(part: str, value: object) -> bool:
    generic, _, parameters = part.removesuffix("]").partition("[")
    if generic in ("Sequence", "Iterable", "list"):
        return _is_sequence(value) and all([_fits(parameters, x) for x in value])  # type: ignore[attr-defined]
    if generic == "tuple":
        items = [p for p in _split(parameters, ",") if p != "..."]
        if not _is_sequence(value) or (items[1:] and len(value) != len(items)):  # type: ignore[arg-type]
            return False
        return all([_fits(items[i % len(items)], x) for i, x in enumerate(value)])  # type: ignore[arg-type, var-annotated]
    if generic not in _TYPES:
        return True
    try:
        return bool(_TYPES[generic].accepts(value))
    except Exception:
        return False


def _words(part: str, *, plural: bool = False) -> str:
    """An annotated type in words."""
    generic, _, parameters = part.removesuffix("]").partition("[")
    if generic in _TYPES:
        words = _TYPES[generic]
        return words.several if plural else words.one
    if generic not in ("Sequence", "Iterable", "list", "tuple"):
        return part
    items = [item for item in _split(parameters, ",") if item != "..."]
    if items == ["Any"]:
        return "sequences" if plural else "a sequence"
    count = f"{len(items)} " if len(items) > 1 else ""
    elements = " or ".join([_words(item, plural=True) for item in _split(items[0])])
    return f"{'sequences' if plural else 'a sequence'} of {count}{elements}"


def _is_sequence(value: object) -> bool:
    if isinstance(value, (str, bytes, Mapping, set)):
        return False
    return getattr(value, "ndim", 1) > 0 and hasattr(type(value), "__iter__")


def _is_integer(value: Any) -> bool:
    return index(value) is not None


def _is_array(value: Any) -> bool:
    return aval_of(value) is not None


def _is_array_or_list(value: object) -> bool:
    if isinstance(value, (list, tuple)):
        return all([_is_array_or_list(x) for x in value])
    return _is_array(value)


def _is_dtype(value: Any) -> bool:
    return value is None or canonical_dtype(value) in SHORT_NAMES


def _are_integers(value: Any) -> bool:
    return all([_is_integer(x) for x in value]) if _is_sequence(value) else _is_integer(value)


class _ArgumentType(NamedTuple):
    """A type in annotations: one and several of its values in words, and whether a value is one.

    `accepts` may raise for a value that is none.
    """

    one: str
    several: str
    accepts: Callable[[Any], bool]


_TYPES = {
    "None": _ArgumentType("None", "None", lambda x: x is None),
    "int": _ArgumentType("an integer", "integers", _is_integer),
    "SupportsIndex": _ArgumentType("an integer", "integers", _is_integer),
    "bool": _ArgumentType(
        "a boolean",
        "booleans",
        lambda x: isinstance(x, (bool, int, np.bool_)) or x.ndim == 0,
    ),
    "float": _ArgumentType(
        "a number", "numbers", lambda x: not isinstance(x, str) and float(x) is not None
    ),
    "complex": _ArgumentType(
        "a number", "numbers", lambda x: not isinstance(x, str) and complex(x) is not None
    ),
    "str": _ArgumentType("a string", "strings", lambda x: isinstance(x, str)),
    "Axes": _ArgumentType(
        "an integer, several or None", "axes", lambda x: x is None or _are_integers(x)
    ),
    "Lengths": _ArgumentType(
        "integers or None", "lengths", lambda x: x is None or all(map(_is_integer, x))
    ),
    "ShapeLike": _ArgumentType("an integer or a sequence of integers", "shapes", _are_integers),
    "DTypeLike": _ArgumentType("a dtype", "dtypes", _is_dtype),
    "ArrayLike": _ArgumentType("an array or a number", "arrays or numbers", _is_array),
    "ArrayOrList": _ArgumentType(
        "an array, a number or a list of numbers", "arrays", _is_array_or_list
    ),
    "Value": _ArgumentType("an array", "arrays", _is_array),
    "Keys": _ArgumentType("typed keys", "typed keys", lambda x: backend.raw_key_data(x) is not x),
    "Number": _ArgumentType("a number", "numbers", _is_array),
    "Callable": _ArgumentType("a function", "functions", callable),
    "Function": _ArgumentType("a function", "functions", callable),
    "Mapping": _ArgumentType("a dictionary", "dictionaries", lambda x: isinstance(x, Mapping)),
}
"""The types in annotations of public functions that are checked, by name."""
