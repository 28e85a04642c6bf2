"""Structures of pytrees and static values as JSON, and the pytree classes that are registered for it."""

from __future__ import annotations

import json
import math
from base64 import b64decode, b64encode
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from jax import tree_util

from functx.core import tree
from functx.core.caches import scoped_table
from functx.core.errors import (
    ArgumentError,
    ExportError,
    UnregisteredNameError,
    type_name,
)
from functx.core.tree import PRNGKeyNode, TreeDef
from functx.core.types import DTYPES_BY_SHORT_NAME, SHORT_NAMES
from functx.core.wrappers import WrapperStructure, wrapper_types
from functx.core.wrappers import register as register_wrapper_type
from functx.lowering.jax_bridge import prng_key_type

JSON = Any
"""A value that JSON can hold: None, a bool, a number, a string, a list or a dictionary of them."""
T = TypeVar("T")


class NodeSerialization(NamedTuple):
    """The serialization of a pytree class: its name, and functions from its static data to bytes and back."""

    serialized_name: str
    serialize_auxdata: Callable[[Any], bytes]
    deserialize_auxdata: Callable[[bytes], Any]


_by_class: dict[type, NodeSerialization] = scoped_table()
_by_name: dict[str, type] = scoped_table()


def register_pytree_node_serialization(
    nodetype: type[T],
    *,
    serialized_name: str,
    serialize_auxdata: Callable[[Any], bytes],
    deserialize_auxdata: Callable[[bytes], Any],
) -> type[T]:
    """Registers a pytree class, so that programs with arguments or results of it can be saved and loaded.

    In files the class is called `serialized_name`, under which it must be registered before a file
    is loaded. `serialize_auxdata` makes bytes of the static data that the class is flattened to
    (`jax.tree_util.register_pytree_node`), and `deserialize_auxdata` reads them.

    A class that is defined again, as in a notebook, takes the place of the former one under its name.

    Raises ExportError if the class is registered under another name, or the name for another class.

    >>> import functx, jax
    >>> class Pair:
    ...     def __init__(self, x, y):
    ...         self.x, self.y = x, y
    >>> jax.tree_util.register_pytree_node(
    ...     Pair, lambda pair: ((pair.x, pair.y), None), lambda _, children: Pair(*children))
    >>> functx.export.register_pytree_node_serialization(
    ...     Pair, serialized_name="example.Pair", serialize_auxdata=lambda _: b"",
    ...     deserialize_auxdata=lambda _: None).__name__
    'Pair'
    """
    function = "register_pytree_node_serialization"
    if not isinstance(nodetype, type):
        raise ArgumentError(f"{function}: nodetype must be a class; got {type_name(nodetype)}")
    if not isinstance(serialized_name, str):
        raise ArgumentError(
            f"{function}: serialized_name must be a string; got {type_name(serialized_name)}"
        )
    for name, given in (
        ("serialize_auxdata", serialize_auxdata),
        ("deserialize_auxdata", deserialize_auxdata),
    ):
        if not callable(given):
            raise ArgumentError(f"{function}: {name} must be a function; got {type_name(given)}")
    known, registered = _by_name.get(serialized_name), _by_class.get(nodetype)
    if registered is not None and registered.serialized_name != serialized_name:
        raise ExportError(
            f"{function}: a class must be registered under one name; got {serialized_name!r} for "
            f"{nodetype.__qualname__}, which is registered as {registered.serialized_name!r}"
        )
    if known is not None and _full_name(known) != _full_name(nodetype):
        raise ExportError(
            f"{function}: a name must stand for one class; got {serialized_name!r} for "
            f"{nodetype.__qualname__} and for {known.__qualname__}"
        )
    _by_class[nodetype] = NodeSerialization(serialized_name, serialize_auxdata, deserialize_auxdata)
    _by_name[serialized_name] = nodetype
    return nodetype


def register_namedtuple_serialization(nodetype: type[T], *, serialized_name: str) -> type[T]:
    """Registers a named tuple, so that programs with arguments or results of it can be saved and loaded.

    In files the class is called `serialized_name`, under which a class with the same fields must be
    registered before a file is loaded.

    Raises ArgumentError for a class that is not a named tuple, ExportError if the class is registered under
    another name, or the name for another class.

    >>> import functx
    >>> from typing import Any, NamedTuple
    >>> class Point(NamedTuple):
    ...     x: Any
    ...     y: Any
    >>> functx.export.register_namedtuple_serialization(Point, serialized_name="example.Point").__name__
    'Point'
    """
    if not _is_namedtuple(nodetype):
        raise ArgumentError(
            "register_namedtuple_serialization: nodetype must be a named tuple; got "
            + getattr(nodetype, "__qualname__", type_name(nodetype)),
            fix="Use register_pytree_node_serialization.",
        )
    fields = ",".join(nodetype._fields)  # type: ignore[attr-defined]

    def check_fields(saved: bytes) -> type[T]:
        if saved.decode() != fields:
            raise UnregisteredNameError(
                f"load: {serialized_name!r} must be a named tuple with the fields {saved.decode()}; "
                f"got {nodetype.__qualname__} with {fields}"
            )
        return nodetype

    return register_pytree_node_serialization(
        nodetype,
        serialized_name=serialized_name,
        serialize_auxdata=lambda _: fields.encode(),
        deserialize_auxdata=check_fields,
    )


def register_wrapper_serialization(wrapper_type: type[T], *, serialized_name: str) -> type[T]:
    """Registers a wrapper type, so that programs with arguments or results of it can be saved and loaded.

    In files the class is called `serialized_name`, under which it must be registered before a file is
    loaded. The metadata of instances must be numbers, strings, bytes, dtypes, None or tuples of them.

    Raises WrapperProtocolError for a class without the methods of a wrapper type, and ExportError if the
    class is registered under another name, or the name for another class.

    >>> import functx, numpy
    >>> from functx.testing import TwoArray
    >>> functx.export.register_wrapper_serialization(TwoArray, serialized_name="TwoArray").__name__
    'TwoArray'
    >>> pair = TwoArray(numpy.float32(1.0), numpy.float32(2.0))
    >>> data = functx.export.export(lambda x: x * 2.0)(pair).serialize()
    >>> functx.export.deserialize(data)(pair)
    TwoArray(a=Array(2., dtype=float32), b=Array(4., dtype=float32))
    """
    if wrapper_type not in wrapper_types:
        register_wrapper_type(wrapper_type)
    name = wrapper_type.__qualname__

    def serialize(structure: WrapperStructure) -> bytes:
        return json.dumps(static_to_json(tuple(structure), name)).encode()

    def deserialize(data: bytes) -> WrapperStructure:
        return WrapperStructure(*static_from_json(json.loads(data)))

    return register_pytree_node_serialization(
        wrapper_type,
        serialized_name=serialized_name,
        serialize_auxdata=serialize,
        deserialize_auxdata=deserialize,
    )


def _full_name(cls: type) -> tuple[str, str]:
    return cls.__module__, cls.__qualname__


def _is_namedtuple(cls: object) -> bool:
    return isinstance(cls, type) and issubclass(cls, tuple) and hasattr(cls, "_fields")


def _is_library_namedtuple(cls: object) -> bool:
    """Whether `cls` is a named tuple of functx, such as the result of `numpy.linalg.svd`."""
    return _is_namedtuple(cls) and cls.__module__.startswith("functx.")


_FACTORIES = {cls.__name__: cls for cls in (list, dict, tuple, set, int, float, complex, bool, str)}


def structure_to_json(structure: TreeDef, owner: str) -> JSON:
    """The JSON of a structure of arguments or results; `owner` names the function in messages.

    Raises ExportError for a class that is not registered, and for static data that JSON cannot hold.
    """
    node = structure.node_data()
    if node is None:
        return "*"
    kind, data = node
    found: dict[str, JSON] = {
        "children": [structure_to_json(c, owner) for c in structure.children()]
    }
    if kind in (tuple, list, type(None)):
        return found | {"node": kind.__name__}
    if kind in (dict, OrderedDict):
        return found | {"node": kind.__name__, "keys": [static_to_json(k, owner) for k in data]}
    if kind is defaultdict and (data[0] is None or data[0] in _FACTORIES.values()):
        keys = [static_to_json(k, owner) for k in data[1]]
        factory = None if data[0] is None else data[0].__name__
        return found | {"node": "defaultdict", "keys": keys, "factory": factory}
    if kind is PRNGKeyNode:
        generator = prng_key_type(data)
        assert generator is not None
        return found | {"node": "key", "generator": str(generator.generator)}
    return found | _registered_node_to_json(kind, data, owner)


def _registered_node_to_json(kind: type, data: object, owner: str) -> dict[str, JSON]:
    if _is_library_namedtuple(kind):
        return {"node": "library", "module": kind.__module__, "name": kind.__qualname__}
    registered = _by_class.get(kind)
    if registered is None:
        register: Callable[..., Any] = register_pytree_node_serialization
        if kind in wrapper_types:
            register = register_wrapper_serialization
        elif _is_namedtuple(kind):
            register = register_namedtuple_serialization
        raise ExportError(
            f"{owner}: pytrees that are saved must consist of tuples, lists, dictionaries, None and "
            f"registered classes; got {kind.__module__}.{kind.__qualname__}",
            fix=f"Register it with functx.export.{register.__name__}, here and where the file is "
            "loaded.",
        )
    saved = registered.serialize_auxdata(data)
    if not isinstance(saved, bytes):
        raise ExportError(
            f"{owner}: serialize_auxdata of {kind.__qualname__} must return bytes; got "
            f"{type_name(saved)}"
        )
    text = b64encode(saved).decode()
    return {"node": "registered", "name": registered.serialized_name, "auxdata": text}


def structure_from_json(value: JSON) -> TreeDef:
    """The structure of its JSON; UnregisteredNameError for a class that is not registered."""
    if value == "*":
        return tree.structure(0)
    children = [structure_from_json(child) for child in value["children"]]
    return tree_util.PyTreeDef.from_node_data_and_children(
        tree_util.default_registry, _node_data(value), children
    )


def _node_data(value: dict[str, JSON]) -> tuple[type, Any]:
    """The class of a node, and its static data."""
    name = value["node"]
    if name in ("tuple", "list"):
        return (tuple if name == "tuple" else list), None
    if name == "NoneType":
        return type(None), None
    if name in ("dict", "OrderedDict", "defaultdict"):
        keys = [static_from_json(key) for key in value["keys"]]
        if len(set(keys)) != len(value["children"]):
            raise ValueError("a dictionary must have a key for each child")
        if name == "defaultdict":
            factory = value["factory"]
            return defaultdict, (None if factory is None else _FACTORIES[factory], tuple(keys))
        return (dict, keys) if name == "dict" else (OrderedDict, tuple(keys))
    if name == "key":
        return PRNGKeyNode, jax.random.key(0, impl=value["generator"]).dtype
    if name == "library" and value["module"].startswith("functx."):
        found = getattr(import_module(value["module"]), value["name"], None)
        if found is not None and _is_library_namedtuple(found):
            return found, None
    if name != "registered":
        raise ValueError(f"unknown node {name!r}")
    cls = _by_name.get(value["name"])
    if cls is None:
        raise UnregisteredNameError(
            f"load: the pytree classes of a saved program must be registered; got no class for "
            f"{value['name']!r}",
            fix="Import the module that registers it with functx.export, then load the file.",
        )
    return cls, _by_class[cls].deserialize_auxdata(b64decode(value["auxdata"], validate=True))


def static_to_json(value: object, owner: str) -> JSON:
    """The JSON of a static value: a number, a string, bytes, a dtype, None, or a tuple of them."""
    kind = type(value)
    if value is None or kind in (bool, int, str) or (kind is float and math.isfinite(value)):  # type: ignore[arg-type]
        return value
    if kind is float:
        return {"float": repr(value)}
    if kind is complex:
        return {"complex": repr(value)}
    if kind is bytes:
        return {"bytes": b64encode(value).decode()}  # type: ignore[arg-type]
    if isinstance(value, np.dtype) and value in SHORT_NAMES:
        return {"dtype": SHORT_NAMES[value]}
    if kind in (tuple, list):
        return {kind.__name__: [static_to_json(x, owner) for x in value]}  # type: ignore[attr-defined]
    raise ExportError(
        f"{owner}: keys of dictionaries and metadata must be numbers, strings, bytes, "
        f"dtypes, None or tuples of them to be saved; got {type_name(value)}",
        fix="Return arrays alone, or register the class with functions that make bytes of its data.",
    )


def static_from_json(value: JSON) -> Any:
    """The static value of its JSON."""
    if not isinstance(value, dict):
        if isinstance(value, list):
            raise ValueError("a list must be marked")
        return value
    ((kind, data),) = value.items()
    if kind in ("float", "complex"):
        return {"float": float, "complex": complex}[kind](data)
    if kind == "bytes":
        return b64decode(data, validate=True)
    if kind == "dtype":
        return DTYPES_BY_SHORT_NAME[data]
    return {"tuple": tuple, "list": list}[kind]([static_from_json(x) for x in data])
