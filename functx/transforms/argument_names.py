"""Names of functions and of their arguments, as programs and messages show them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import WRAPPER_ASSIGNMENTS, partial
from types import CodeType, FunctionType, MethodType
from typing import Any, NamedTuple

from functx.core import tree
from functx.core.errors import ArgumentError, type_name
from functx.core.source_info import unwrap_function
from functx.core.tracebacks import unnamed_api_boundary
from functx.core.tracer import Tracer
from functx.core.tracing import trace
from functx.core.types import ShapedArray
from functx.core.typing import Function, Value


def function_name(fun: Function) -> str:
    """The name that messages and programs use for `fun`."""
    name = getattr(fun, "__name__", None) or getattr(fun, "name", None) or type(fun).__name__
    return "lambda" if name == "<lambda>" else str(name)


def check_callable(fun: Function, transform: str) -> None:
    """Raise ArgumentError unless `fun` can be called."""
    if not callable(fun):
        raise ArgumentError(
            f"{transform}: the first argument must be a function; got {type_name(fun)}",
            fix=f"Options have names, also in a decorator: @{transform}(name=value)."
            if isinstance(fun, (int, tuple))
            else f"Pass the function itself, as in {transform}(f).",
        )


def as_decorator(transform: Function, options: dict[str, Any]) -> Function:
    """The decorator that applies `transform` with `options`.

    `options` are all arguments of the transform by name, the function first; it is left out.
    """
    _, *named = options
    return partial(transform, **{name: options[name] for name in named})


def wrap_transform(wrapper: Function, fun: Function, transform: str) -> Function:
    """`wrapper` as the public result of `transform(fun)`: named, and a boundary of tracebacks."""
    return copy_function_metadata(unnamed_api_boundary(wrapper), fun, transform)


def copy_function_metadata(wrapper: Any, fun: Function, transform: str) -> Any:
    """`wrapper` with the docstring, signature and attributes of `fun`, named after both.

    Attributes that the class of `wrapper` defines are not copied, nor those that a transform
    gave to `fun` itself and lists in `OWN_ATTRIBUTES`.
    """
    attributes = getattr(fun, "__dict__", None)
    if attributes:
        own = (OWN_ATTRIBUTES, *attributes.get(OWN_ATTRIBUTES, ()))
        copied = [k for k in attributes if k not in own and not hasattr(type(wrapper), k)]
        vars(wrapper).update({k: attributes[k] for k in copied})
    for attribute in WRAPPER_ASSIGNMENTS:
        with suppress(AttributeError, TypeError):
            setattr(wrapper, attribute, getattr(fun, attribute))
    wrapper.__name__ = f"{transform}_{function_name(fun)}"
    wrapper.__wrapped__ = fun
    return wrapper


OWN_ATTRIBUTES = "__functx_attributes__"
"""The attribute of a transformed function with the names of those that are not copied from it."""


class InputNames(NamedTuple):
    """The names of the leaves of a call's arguments; calling it computes them.

    `code` is the code object of the function, of which the first `skip` parameters are bound.
    """

    code: CodeType | None
    skip: int
    in_tree: tree.TreeDef
    leaves: Sequence[Any] | None = None

    def __call__(self) -> list[str]:
        code = self.code
        positional = () if code is None else code.co_varnames[self.skip : code.co_argcount]
        names = []
        for args_or_kwargs, argument, *path in key_paths(self.in_tree, self.leaves):
            if args_or_kwargs.idx:
                base = argument.key
            else:
                i = argument.idx
                base = positional[i] if i < len(positional) else f"args[{i}]"
            names.append(base + tree.keystr(tuple(path)))
        return names


def argument_names(
    fun: Function, in_tree: tree.TreeDef, leaves: Sequence[Any] | None = None
) -> InputNames:
    """The names of the leaves of a call of `fun` with arguments of structure `in_tree`.

    `leaves` are the leaves of the call, or their avals.
    """
    skip = 0
    fun = unwrap_function(fun)
    if type(fun) is MethodType:
        fun, skip = fun.__func__, 1
    elif type(fun) is not FunctionType:
        fun, skip = getattr(type(fun), "__call__", fun), 1  # noqa: B004
    return InputNames(getattr(fun, "__code__", None), skip, in_tree, leaves)


def key_path_strings(structure: tree.TreeDef, leaves: Sequence[Any] | None = None) -> list[str]:
    """The key paths of the leaves of a structure as text, such as `['w'][0]`; see `key_paths`."""
    return [tree.keystr(path) for path in key_paths(structure, leaves)]


def key_paths(
    structure: tree.TreeDef, leaves: Sequence[Any] | None = None
) -> list[tuple[Any, ...]]:
    """The key path of each leaf of a structure.

    The fields of a user's pytree class have names only in an instance. With `leaves` (values, or
    avals), an instance is made of them; without, or where that fails, such fields are numbered.
    """
    if leaves is None or not any(tree.leaves_in_user_nodes(structure)):
        return tree.paths(structure)
    found: list[Any] = []

    def unflatten(*tracers: Tracer) -> list[Value]:
        remaining = iter(tracers)
        values = [next(remaining) if type(x) is ShapedArray else x for x in leaves]
        instance = structure.unflatten(values)
        static = structure.static_leaves if isinstance(structure, tree.TreeDefWithStatic) else ()
        paths = [path for path, _ in tree.leaves_with_path(instance)]
        found.extend([path for i, path in enumerate(paths) if i not in static])
        return []

    # The user's code may raise anything; this runs while another error is being reported.
    with suppress(Exception):
        trace(unflatten, [x for x in leaves if type(x) is ShapedArray])
    return found if len(found) == len(leaves) else tree.paths(structure)
