"""The registry of decompositions, which users extend, and the fallbacks for missing rules."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, TypeAlias

from functx.core import tree
from functx.core.caches import invalidate_caches, scoped_table
from functx.core.errors import (
    ArgumentError,
    DecompositionError,
    MissingRuleError,
    RegistrationError,
    type_name,
)
from functx.core.primitive import Primitive
from functx.core.source_info import describe_source, user_source
from functx.core.types import words_layout
from functx.core.typing import Function, Value, Values

PrimitiveClass = type[Primitive]
Primitives: TypeAlias = PrimitiveClass | str | Function | Iterable[Any]
"""A primitive's class or name, a base class, a function of functx, or a pytree of those."""

_TABLES: dict[str, dict[PrimitiveClass, Decomposition]] = {
    name: scoped_table() for name in ("general", "jvp", "vmap", "rng")
}

# The tables in which a fallback is looked up, by the first of the rules that a transform accepts.
_TABLES_BY_RULE = {
    "jvp": ("jvp", "rng", "general"),
    "vjp": ("rng", "general"),
    "transpose": ("rng", "general"),
    "batch": ("vmap", "rng", "general"),
    "lower": ("rng", "general"),
}


class Decomposition:
    """A decomposition of a primitive: `function(*operands, **params)`, its table and its location."""

    __slots__ = ("cls", "function", "is_user_defined", "location", "signature", "table")

    def __init__(self, cls: PrimitiveClass, function: Function, table: str, location: str):
        self.cls, self.function, self.table, self.location = cls, function, table, location
        self.signature = _signature(function)
        self.is_user_defined = True
        self.check_parameters()

    def __call__(self, primitive: Primitive, args: Sequence[Value]) -> Value | Values:
        """The result of the function for these operands and the parameters of `primitive`."""
        params = {name: getattr(primitive, name) for name in primitive.fields}
        if self.signature is None:
            return self.function(*args, **params)
        parameters = self.signature.parameters.values()
        if any(p.name == "out" and p.default is p.empty for p in parameters):
            params.setdefault("out", None)
        kinds, positional = {p.kind for p in parameters}, args
        if kinds.isdisjoint((inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL)):
            # Operands are passed by name, since parameters may come before them in the signature.
            names = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
            names = [name for name in names if name != "out" and name not in params]
            params.update(zip(names, args, strict=False))
            positional = args[len(names) :]
        try:
            bound = self.signature.bind(*positional, **params)
        except TypeError as error:
            many = f"{len(args)} operand" + "s" * (len(args) != 1)
            raise DecompositionError(
                f"{primitive.name}: the decomposition must take {many}, "
                f"{_keywords_text(primitive.fields)}; got the signature {self.signature}: {error}"
            ) from None
        return self.function(*bound.args, **bound.kwargs)

    def check_parameters(self) -> None:
        """Raise RegistrationError unless the function takes exactly the primitive's parameters by name."""
        if self.signature is None:
            return
        fields, parameters = self.cls.fields, self.signature.parameters.values()
        named = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters)
        needed = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
        if not (open_ended or named.issuperset(fields)) or not {*fields, "out"}.issuperset(needed):
            raise RegistrationError(
                f"decomp.register: the decomposition of {self.cls.name} must take the operands, "
                f"{_keywords_text(fields)}; got the signature {self.signature}"
            )


class ClassDecomposition(Decomposition):
    """The decomposition that the class of a primitive defines."""

    __slots__ = ()

    def __init__(self, cls: PrimitiveClass):
        self.cls, self.table, self.function = cls, "general", _as_function(cls)
        self.location, self.signature = function_location(cls.decompose), None
        self.is_user_defined = cls.is_user_defined

    def __call__(self, primitive: Primitive, args: Sequence[Value]) -> Value | Values:
        with words_layout(primitive):
            return primitive.decompose(*args)  # type: ignore[misc]


def _as_function(cls: PrimitiveClass) -> Function:
    def decompose(*operands: Value, **params: object) -> Value | Values:
        return cls(**params).decompose(*operands)  # type: ignore[misc]

    decompose.__name__ = decompose.__qualname__ = f"decompose_{cls.name}"
    decompose.__doc__ = cls.__doc__
    return decompose


def _keywords_text(fields: Sequence[str]) -> str:
    return f"then by name {', '.join(fields)}" if fields else "and no parameters"


def function_location(function: Any) -> str:
    """`file.py:31 in name`: the location of a function."""
    code = getattr(function, "__code__", None)
    if code is None:
        return repr(function)
    return f"{os.path.basename(code.co_filename)}:{code.co_firstlineno} in {function.__qualname__}"


def _signature(function: Function) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (ValueError, TypeError):
        return None


def register(
    op: Primitives, *, table: str = "general", exist_ok: bool = False
) -> Callable[[Function], Function]:
    """A decorator that registers a function as the decomposition of a primitive; returns the function.

    The function is called as `function(*operands, **params)` with traced operands, and computes the
    outputs from these alone; a parameter `out` is ignored. `op` is the class of a primitive, its name,
    a base class (all primitives that derive from it), or a pytree of those.

    A decomposition in the table "general" replaces the one of a composite in all transforms and in
    the lowering, together with all rules that functx has for the composite. A primitive that is not a
    composite keeps its rules. Decompositions in "jvp" are used in forward mode, those in "vmap" for
    batching, both before those in "general". So are those in "rng", which also replace the rules of
    primitives.

    Raises RegistrationError if a primitive has a decomposition in that table already, unless
    `exist_ok` (then the first one stays); for an unknown primitive or table; and for a function that
    does not take the parameters of the primitive.

    >>> import functx
    >>> import functx.numpy as np
    >>> with functx.decomp.scoped():
    ...     @functx.decomp.register("silu")
    ...     def silu(x):
    ...         return x / (1.0 + np.exp(-x))
    ...     float(functx.nn.silu(0.0))
    0.0
    """
    entries = decomposition_table(table, "decomp.register")
    classes = resolve_primitives(op, "decomp.register")

    def decorator(function: Function) -> Function:
        if not callable(function):
            raise ArgumentError(
                f"decomp.register: a decomposition must be a function; got {type_name(function)}"
            )
        location = describe_source(user_source(2))
        taken = [cls for cls in classes if cls in entries]
        if taken and not exist_ok:
            raise RegistrationError(
                f"decomp.register: a primitive must have one decomposition in the table {table!r}; "
                f"got another for {', '.join(cls.name for cls in taken)}",
                *[f"the first: {entries[cls].location}" for cls in taken],
                fix="Remove the first (functx.decomp.remove), keep it (exist_ok=True), or register "
                "within functx.decomp.scoped().",
            )
        new = {c: Decomposition(c, function, table, location) for c in classes if c not in entries}
        _update_table(entries, new)
        return function

    return decorator


def remove(op: Primitives, *, table: str = "general") -> None:
    """Remove the decompositions registered for `op`, as in `register`, from a table.

    The definitions of functx are used again. Nothing happens if nothing was registered.
    """
    entries = decomposition_table(table, "decomp.remove")
    removed = {cls: None for cls in resolve_primitives(op, "decomp.remove") if cls in entries}
    _update_table(entries, removed)


def _update_table(
    entries: dict[PrimitiveClass, Decomposition], new: Mapping[PrimitiveClass, Any]
) -> None:
    """Set the entries `new`, and remove those that are None; clears the caches."""
    for cls, entry in new.items():
        if entry is None:
            del entries[cls]
        else:
            entries[cls] = entry
    # No cache depends on primitives that were never instantiated.
    if any(cls._instances.was_used for cls in new):
        invalidate_caches()


def lookup(op: PrimitiveClass | str | Function, table: str = "general") -> Function:
    """The decomposition of `op` in a table, called as `function(*operands, **params)`.

    Falls back to the table "general", then to the decomposition of functx. Raises MissingRuleError
    if there is none.
    """
    classes = resolve_primitives([op], "decomp.lookup", families=False)
    if len(classes) != 1:
        raise ArgumentError(f"decomp.lookup: op must be one primitive; got {type_name(op)}")
    (cls,) = classes
    entry = find_decomposition(cls, table)
    if entry is None:
        raise missing_decomposition_error(cls, "decomp.lookup", table)
    return entry.function


def get_jvp_decomposition(op: PrimitiveClass | str | Function) -> Function:
    """The decomposition of `op` for forward mode: from the table "jvp", else from "general".

    Raises MissingRuleError if there is none.
    """
    return lookup(op, "jvp")


def get_decompositions(ops: Primitives, table: str = "general") -> dict[PrimitiveClass, Function]:
    """The decompositions of `ops`, a pytree as in `register`, in a table; missing ones are left out.

    "general" includes the decompositions of functx.
    """
    entries = decomposition_table(table, "decomp.get_decompositions")
    classes = resolve_primitives(ops, "decomp.get_decompositions")
    found = {
        cls: entries.get(cls) or (class_decomposition(cls) if table == "general" else None)
        for cls in classes
    }
    return {cls: entry.function for cls, entry in found.items() if entry is not None}


def remove_decompositions(decompositions: dict[PrimitiveClass, Function], ops: Primitives) -> None:
    """Remove `ops` from a dictionary that `get_decompositions` returned; missing ones are ignored."""
    for cls in resolve_primitives(ops, "decomp.remove_decompositions"):
        decompositions.pop(cls, None)


def lowering_decompositions() -> dict[PrimitiveClass, Function]:
    """The decompositions that the lowering to XLA uses for primitives without a `lower` rule."""
    entries = {cls: fallback_decomposition(cls, ("lower",)) for cls in Primitive.registry.values()}
    return {cls: entry.function for cls, entry in entries.items() if entry is not None}


def fallback_decomposition(cls: PrimitiveClass, rules: Sequence[str]) -> Decomposition | None:
    """The decomposition by which a transform that needs one of `rules` replaces `cls`.

    None if the class has one of the rules, or if there is no decomposition; then the use of the rule
    raises an error.
    """
    entry = None
    for name in _TABLES_BY_RULE[rules[0]]:
        if (entry := _TABLES[name].get(cls)) is not None:
            break
    if entry is not None and (cls.decompose is not None or entry.table == "rng"):
        return entry
    if any(cls.has_rule(rule) for rule in rules):
        return None
    # Without any other fallback, the transpose of the forward-mode decomposition serves reverse mode.
    last = _TABLES["jvp"].get(cls) if "jvp" in rules else None
    return entry or class_decomposition(cls) or last


def find_decomposition(cls: PrimitiveClass, table: str) -> Decomposition | None:
    """The decomposition in a table, else in "general", else that of the class."""
    entries = decomposition_table(table, "decomp.lookup")
    return entries.get(cls) or _TABLES["general"].get(cls) or class_decomposition(cls)


def registered_decompositions(cls: PrimitiveClass) -> list[Decomposition]:
    """The decompositions that were registered for `cls`, in all tables."""
    return [entries[cls] for entries in _TABLES.values() if cls in entries]


def class_decomposition(cls: PrimitiveClass) -> Decomposition | None:
    """The decomposition that the class defines, if any."""
    return None if cls.decompose is None else _class_decomposition(cls)


_class_decomposition = lru_cache(maxsize=4096)(ClassDecomposition)


def missing_decomposition_error(cls: PrimitiveClass, what: str, table: str) -> MissingRuleError:
    """The error for a primitive without a decomposition."""
    return MissingRuleError(
        f"{what}: {cls.name} must have a decomposition in the table {table!r}"
        + (" or in 'general'" if table != "general" else "")
        + "; got none",
        fix=f"Register one with functx.decomp.register({cls.name!r}, table={table!r}), or define "
        f"`decompose` on {cls.__name__} ({cls.__module__}).",
    )


def decomposition_table(name: object, what: str) -> dict[PrimitiveClass, Decomposition]:
    """The table of that name; raises RegistrationError if there is none."""
    entries = _TABLES.get(name) if isinstance(name, str) else None
    if entries is None:
        choices = ", ".join(map(repr, _TABLES))
        raise RegistrationError(f"{what}: the table must be one of {choices}; got {name!r}")
    return entries


def resolve_primitives(ops: Primitives, what: str, families: bool = True) -> list[PrimitiveClass]:
    """The primitive classes in a pytree of classes, names, base classes and functions of functx."""
    leaves = list(ops) if isinstance(ops, (set, frozenset)) else tree.leaves(ops)
    return list(
        dict.fromkeys(cls for op in leaves for cls in _resolve_primitive(op, what, families))
    )


def _resolve_primitive(op: object, what: str, families: bool) -> Iterable[PrimitiveClass]:
    named = op
    if inspect.isfunction(op) and op.__module__.startswith("functx."):
        # NumPy's names have no underscores: `logsumexp` is the primitive `log_sum_exp`.
        plain = {n.replace("_", ""): n for n, c in Primitive.registry.items() if c.decompose}
        named = plain.get(op.__name__.replace("_", ""), op)
    if isinstance(named, str):
        if named not in Primitive.registry:
            near = get_close_matches(named, Primitive.registry, 1)
            raise RegistrationError(
                f"{what}: a name must be that of a primitive; got {named!r}",
                fix=f"There is {near[0]!r}." if near else "functx.Primitive.registry lists them.",
            )
        return [Primitive.registry[named]]
    if not (inspect.isclass(named) and issubclass(named, Primitive)):
        raise ArgumentError(
            f"{what}: op must be a primitive's class or name, or a pytree of those; got "
            + (f"the function {op.__name__}" if inspect.isfunction(op) else type_name(op)),
            fix='As a decorator it is written @functx.decomp.register("softmax").'
            if what == "decomp.register"
            else "Of functions it takes those of functx that are one composite, as nn.softmax.",
        )
    if named.name in Primitive.registry:
        return [named]
    members = [cls for cls in Primitive.registry.values() if issubclass(cls, named)]
    if not members or not families:
        raise RegistrationError(
            f"{what}: op must be a primitive; got the family {named.__name__} "
            f"of {len(members)} primitives"
        )
    return members
