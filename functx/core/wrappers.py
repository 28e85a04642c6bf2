"""Wrapper types: classes of the user that are arrays made of arrays, and their pytree nodes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, NamedTuple
from weakref import ref

import numpy as np
from jax import tree_util

from functx.core.errors import WrapperProtocolError, WrapperShapeError, type_name
from functx.core.types import Shape, ShapedArray, canonical_dtype

PROTOCOL = ("__functx_flatten__", "__functx_unflatten__", "__functx_dispatch__")
"""The methods that make a class a wrapper type."""

wrapper_types: set[type] = set()
"""The wrapper types that functx has met; each is a pytree node."""


class _FromFirstInner:
    """An attribute that is that of the first inner array, unless the class or the instance has its own."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, x: Any, owner: type) -> Any:
        if x is None:
            raise AttributeError(self.name)
        names, _ = x.__functx_flatten__()
        if not names:
            raise AttributeError(f"{owner.__name__} has no inner arrays, and no {self.name}")
        inner = getattr(x, names[0])
        return getattr(np.asarray(inner) if type(inner) in _NUMBERS else inner, self.name)


_NUMBERS = frozenset([bool, int, float, complex])


class ArrayWrapper:
    """The base class of arrays made of arrays, which say themselves what an operation does to them.

    A subclass defines three methods:

    * `__functx_flatten__(self)` returns the names of the attributes that hold the inner arrays, and
      metadata, a hashable value;
    * `__functx_unflatten__(inner, meta, shape)`, a static method, returns the instance with the inner
      arrays of the dict `inner`, whose shape is `shape`;
    * `__functx_dispatch__(self, op, types, args, params)` returns the result of `op(*args, **params)`,
      or NotImplemented. `op` is the operation, with the `name` that it has in printed programs and its
      class `primitive`. `args` are arrays, some of them of wrapper types; `types` are these types.

    It may define `shape` and `dtype`, which are otherwise those of the first inner array. `vmap` takes
    an axis of the whole to be that of each inner array, of the same length or 1, and inner arrays
    without dimensions to be shared. Where their dimensions are others, the static method
    `__functx_axes__(axis, ndim, meta)` says where `axis` of an instance of `ndim` dimensions lies in each
    inner array: a list with an axis or None, for one that lacks it, or NotImplemented.

    The operators, methods and indexing of arrays are inherited. Functions of functx take an instance
    where they take an array. Each operation on one calls the handler `__functx_dispatch__`; of several
    wrapper types, subclasses are asked before their base classes, and others in the order of the
    operands. Where all return NotImplemented, an operation that has a decomposition is decomposed.

    Transforms see the inner arrays: an instance is a pytree node, whose children they are. A gradient
    of an instance is one too.

    A class that has the three methods need not inherit from this one. It is given the operators,
    methods and attributes that it lacks when functx first meets an instance.

    Raises WrapperProtocolError, a TypeError, for a class that lacks one of the methods; `abstract=True`
    declares a base class that need not have them.

    >>> import functx
    >>> import functx.numpy as np
    >>> class Scaled(functx.ArrayWrapper):
    ...     def __init__(self, values, scale):
    ...         self.values, self.scale = values, scale
    ...     def __functx_flatten__(self):
    ...         return ("values", "scale"), None
    ...     @staticmethod
    ...     def __functx_unflatten__(inner, meta, shape):
    ...         return Scaled(inner["values"], inner["scale"])
    ...     def __functx_dispatch__(self, op, types, args, params):
    ...         full = [x.values * x.scale if isinstance(x, Scaled) else x for x in args]
    ...         return op(*full, **params)
    >>> x = Scaled(np.ones(3), np.asarray(2.0))
    >>> functx.jit(lambda x: np.sum(x + 1.0))(x).tolist()
    9.0
    >>> functx.grad(np.sum)(x).scale.tolist()
    3.0
    """

    __hash__ = None  # type: ignore[assignment]
    shape: Any = _FromFirstInner()
    dtype: Any = _FromFirstInner()
    weak_type = False

    def __init_subclass__(cls, abstract: bool = False, **options: object) -> None:
        super().__init_subclass__(**options)
        if not abstract:
            register(cls)

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))


def register(cls: type) -> None:
    """Makes a class with the three methods a wrapper type: a pytree node with the methods of arrays.

    Raises WrapperProtocolError for a class that lacks one of the three.
    """
    missing = [name for name in PROTOCOL if not callable(getattr(cls, name, None))]
    if missing:
        raise WrapperProtocolError(
            f"{cls.__name__}: a wrapper type must have the methods {', '.join(PROTOCOL)}; it lacks "
            + ", ".join(missing),
            fix=f"Define {missing[0]} (see functx.ArrayWrapper).",
        )
    if not issubclass(cls, ArrayWrapper):
        _add_array_methods(cls)
    node = WrapperNode(cls)
    # The user may have registered it as a pytree before.
    with suppress(ValueError):
        tree_util.register_pytree_with_keys(
            cls, node.flatten_with_keys, node.unflatten, node.flatten
        )
    wrapper_types.add(cls)


def _add_array_methods(cls: type) -> None:
    """Adds the methods of ArrayWrapper that neither the class nor a base class defines."""
    import_module("functx.numpy")
    own = {name for base in cls.__mro__[:-1] for name in vars(base)}
    for name, value in vars(ArrayWrapper).items():
        if name not in own and name not in _NOT_ADDED:
            setattr(cls, name, value)


_NOT_ADDED = frozenset(vars(type("Empty", (), {"__slots__": ()}))) | {
    *("__annotations__", "__dict__", "__hash__", "__init_subclass__", "__weakref__")
}
"""The attributes of ArrayWrapper that are those of any class, or its own."""


plain_types: set[type] = {bool, int, float, complex, str, type(None), np.ndarray}
"""Types that have been found not to be wrapper types; none of the user's, which it would keep alive."""
_LIBRARIES = ("numpy", "jaxlib", "jax", "functx", "builtins")


def is_wrapper(x: object) -> bool:
    """Whether `x` is of a wrapper type; a class that is met for the first time is registered.

    Raises WrapperProtocolError for a class with some of the three methods.
    """
    kind = type(x)
    if kind in plain_types:
        return False
    return kind in wrapper_types or _is_new_wrapper_type(kind)


def _is_new_wrapper_type(kind: type) -> bool:
    if any([hasattr(kind, name) for name in PROTOCOL]):
        register(kind)
        return True
    if kind.__module__.split(".")[0] in _LIBRARIES:
        plain_types.add(kind)
    return False


def has_new_wrappers(leaves: Sequence[object]) -> bool:
    """Whether a leaf is of a wrapper type: its class was not registered before, and now is."""
    return any([*map(is_wrapper, leaves)])


def wrapper_aval(x: Any) -> ShapedArray:
    """The type that an instance of a wrapper type shows: its shape and dtype."""
    try:
        shape, dtype = tuple(x.shape), x.dtype
        if not isinstance(dtype, np.dtype) or dtype.itemsize >= 8:
            dtype = canonical_dtype(dtype)
    except (AttributeError, TypeError) as error:
        raise WrapperProtocolError(
            f"{type(x).__name__}: an array made of arrays must have a shape and a dtype; got one "
            f"without: {error}",
            fix="Define them, or name an array first in __functx_flatten__.",
        ) from None
    return ShapedArray(shape, dtype, bool(getattr(x, "weak_type", False)))


class Metadata:
    """The metadata of an instance as a part of a key: 1, 1.0 and True differ, as 0.0 and -0.0 do."""

    __slots__ = ("key", "value")

    def __init__(self, value: Any):
        self.value, self.key = value, _typed_key(value)

    def __eq__(self, other: object) -> bool:
        return type(other) is Metadata and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return repr(self.value)


def _typed_key(value: Any) -> Hashable:
    kind = type(value)
    if kind is tuple:
        return (kind, *map(_typed_key, value))
    return kind, repr(value) if kind is float or kind is complex else value


def static_value(meta: object) -> Any:
    """The metadata that the class gave."""
    return meta.value if type(meta) is Metadata else meta


class WrapperStructure(NamedTuple):
    """The static part of an instance: names of the inner arrays, metadata, and its shape.

    `like` is the position of the first inner array with the shape of the instance, which has that
    shape also where a transform maps or stacks. Without one, `shapes` holds the shape of the instance
    and those of the inner arrays.
    """

    names: tuple[str, ...]
    meta: Hashable
    like: int | None
    shapes: tuple[Shape, tuple[Shape, ...]] | None = None

    def __repr__(self) -> str:
        """The text in that of a structure: `TwoArray[a, b]`."""
        return ", ".join(self.names) + ("" if self.meta is None else f"; {self.meta!r}")


class WrapperNode:
    """The functions that flatten and unflatten a wrapper type as a pytree node."""

    def __init__(self, cls: type):
        self.cls = cls

    def flatten(self, x: Any) -> tuple[list[Any], WrapperStructure]:
        """The inner arrays of an instance, and the rest of it."""
        try:
            names, meta = x.__functx_flatten__()
            inner = [getattr(x, name) for name in names]
            if meta is not None and type(meta) is not str:
                meta = Metadata(meta)
                hash(meta)
        except Exception as error:
            placeholder = _placeholder_parts(x)
            if placeholder is not None:
                return placeholder
            raise self.flatten_error(x, error) from error
        shape = getattr(x, "shape", None)
        for i, part in enumerate(inner):
            if getattr(part, "shape", None) == shape:
                return inner, WrapperStructure(tuple(names), meta, i)
        if shape is None:
            return inner, WrapperStructure(tuple(names), meta, 0)
        shapes = tuple(shape), tuple([tuple(getattr(part, "shape", ())) for part in inner])
        return inner, WrapperStructure(tuple(names), meta, None, shapes)

    def flatten_with_keys(self, x: object) -> tuple[list[tuple[Any, Any]], WrapperStructure]:
        """As `flatten`, with a key for each inner array."""
        inner, structure = self.flatten(x)
        keys = [tree_util.GetAttrKey(name) for name in structure.names]
        return [*zip(keys, inner, strict=True)], structure

    def unflatten(self, structure: WrapperStructure, inner: Any) -> Any:
        """The instance with these inner arrays, which may be of other shapes.

        For children that are no arrays, as in a tree of axes, it is a placeholder.
        """
        names, meta, like, _ = structure
        meta = static_value(meta)
        parts = dict(zip(names, inner, strict=True))
        if like is not None and like < len(inner):
            shape = getattr(inner[like], "shape", None)
        else:
            shape = self.shape_of(structure, inner)
        if shape is None:
            return self.placeholder(structure, parts)
        x = self.cls.__functx_unflatten__(parts, meta, shape)  # type: ignore[attr-defined]
        if type(x) is not self.cls:
            raise WrapperProtocolError(
                f"{self.cls.__name__}.__functx_unflatten__: it must return an instance of its class; "
                f"got {type_name(x)}",
                fix=f"Return {self.cls.__name__}(...), made of the arrays of the dict `inner`.",
            )
        return x

    def shape_of(self, structure: WrapperStructure, inner: Sequence[Any]) -> Shape | None:
        """The shape of an instance that no inner array has; None for children that are no arrays."""
        assert structure.shapes is not None
        shape, shapes = structure.shapes
        pairs = [(x, b) for x, b in zip(inner, shapes, strict=True) if x is not None]
        if not all([hasattr(x, "shape") for x, _ in pairs]):
            return None
        after, before = [tuple(x.shape) for x, _ in pairs], [b for _, b in pairs]
        if after == before:
            return shape
        # Transforms add leading axes, take elements and slices along them, and split them.
        for count in range(len(shape) + 1):
            rest = [b[count:] for b in before]
            leading = {a[: len(a) - len(b)] for a, b in zip(after, rest, strict=True)}
            if len(leading) == 1 and all([b[:count] == shape[:count] for b in before]):
                (new,) = leading
                if after == [(*new, *b) for b in rest]:
                    return (*new, *shape[count:])
        raise WrapperShapeError(
            f"{self.cls.__name__}: the shape must follow from those of the inner arrays where these "
            f"change; got {after} for {before} of an array of shape {shape}",
            fix="Let one inner array have the shape of the whole, or compute on the inner arrays "
            "themselves.",
        )

    def placeholder(self, structure: WrapperStructure, parts: dict[str, Any]) -> Any:
        """An instance whose children are no arrays, made without the user's code if that refuses."""
        try:
            x = self.cls.__functx_unflatten__(parts, static_value(structure.meta), None)  # type: ignore[attr-defined]
            if type(x) is self.cls:
                return x
        except Exception:
            # It may compute with its arrays.
            pass
        x = object.__new__(self.cls)
        key = id(x)
        try:
            reference: Callable[[], Any] = ref(x, lambda _: _placeholders.pop(key, None))
        except TypeError:
            # A class with `__slots__` need not allow weak references.
            def reference() -> Any:
                return x

        _placeholders[key] = reference, [*parts.values()], structure
        return x

    def flatten_error(self, x: Any, error: Exception) -> Exception:
        """The error for a `__functx_flatten__` that does not fit the instance."""
        label = f"{self.cls.__name__}.__functx_flatten__"
        must = "it must return the names of attributes that hold arrays, and hashable metadata"
        try:
            result = x.__functx_flatten__()
        except Exception:
            return error
        try:
            names, meta = result
            absent = [name for name in names if not hasattr(x, name)]
        except (TypeError, ValueError):
            return WrapperProtocolError(f"{label}: {must}; got {result!r}")
        if absent:
            return WrapperProtocolError(
                f"{label}: {must}; got {absent[0]!r}, which the instance lacks",
                fix="Name the attributes that __init__ sets.",
            )
        return WrapperProtocolError(
            f"{label}: {must}; got {type_name(meta)} as metadata",
            fix="Make it a tuple, a frozen dataclass or another hashable value; arrays are inner "
            "arrays.",
        )


_placeholders: dict[int, tuple[Callable[[], Any], list[Any], WrapperStructure]] = {}
"""The living placeholders by identity: references to them, their children and their structures."""


def _placeholder_parts(x: object) -> tuple[list[Any], WrapperStructure] | None:
    """The children and the structure of a placeholder; None for other instances."""
    found = _placeholders.get(id(x))
    return None if found is None or found[0]() is not x else found[1:]


class WrapperOperand(Exception):
    """Raised by a builder for an operand of a wrapper type, whose handler then gets the operation."""


def inner_arrays(x: Any) -> list[Any]:
    """The arrays inside an instance, also inside nested ones; `x` itself if it is of no wrapper type."""
    if not is_wrapper(x):
        return [x]
    names, _ = x.__functx_flatten__()
    return [leaf for name in names for leaf in inner_arrays(getattr(x, name))]
