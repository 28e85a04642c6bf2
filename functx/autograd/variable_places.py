"""The places where a function reads Variables: names, attributes and items, found before it is traced."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from itertools import count, groupby, islice, repeat
from operator import attrgetter, is_, itemgetter
from types import CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any, NamedTuple, TypeAlias
from weakref import ref

from functx.autograd.variable import Variable
from functx.core.typing import Function
from functx.interop.jaxprs import IMMUTABLE_PACKAGES, global_names, package_of
from functx.nn.module import Module

Reader: TypeAlias = Callable[[Sequence[Any], Any], list[object]]
"""Reads parts of an object, items or attributes, by their keys."""

_SEARCH_LIMIT = 100_000
"""How many objects are looked at."""
CODE_LIMIT = 4096
"""How many are looked at for code alone, nearest ones first."""
_PART_LIMIT = 10_000
"""How many parts of one object are looked at: others are data."""
_DEPTH_LIMIT = 24
"""How many names, attributes and items lead to a Variable; to read one of a closure takes three."""
_KEY_TYPES = frozenset({str, int, bool, bytes, float, type(None)})
_OTHER_PACKAGES = (IMMUTABLE_PACKAGES | {"functx", "jaxlib"} | sys.stdlib_module_names) - {
    "__main__"
}
"""Packages whose classes and functions are not looked into."""
_WRAPPERS: dict[type, tuple[str, ...]] = {
    MethodType: ("__self__", "__func__"),
    partial: ("func", "args", "keywords"),
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    property: ("fget",),
}
"""The attributes of what is called as a function and is none."""
_CONTAINERS = FunctionType, list, tuple, dict, deque, SimpleNamespace, Module, *_WRAPPERS


class Hop(NamedTuple):
    """Reads parts, by their `keys`, of the object at the place number `parent`."""

    read: Reader
    parent: int
    keys: tuple[Any, ...]

    @property
    def read_keys(self) -> Callable[[Any], Sequence[object]]:
        """Reads all of them; in C where that is possible."""
        if len(self.keys) > 1 and self.read is read_items:
            return itemgetter(*self.keys)
        if len(self.keys) > 1 and self.read is read_attributes:
            return attrgetter(*self.keys)
        return partial(self.read, self.keys)


class VariablePlaces(NamedTuple):
    """The places of the Variables of a step.

    The function itself is place 0, and `hops`, pairs of a function and the place that it is called with, read the
    next ones. The Variables at the places `variables` have
    the numbers `numbers` in the step; `lengths` pairs places of lists and dictionaries with their lengths.
    """

    hops: list[tuple[Callable[[Any], Sequence[object]], int]]
    variables: list[int]
    numbers: list[int]
    lengths: list[tuple[int, int]]

    def hold(self, fun: Function, found: Sequence[Variable]) -> bool:
        """Whether `fun` still reads the Variables that were `found` at the same places."""
        objects: list[Any] = [fun]
        try:
            for read, parent in self.hops:
                objects += read(objects[parent])
            for place, length in self.lengths:
                if len(objects[place]) != length:
                    return False
        except Exception:
            # Attributes of a user's object may run code, and raise anything.
            return False
        variables = map(objects.__getitem__, self.variables)
        return all(map(is_, variables, map(found.__getitem__, self.numbers)))


class PlaceSearch:
    """All Variables that a function can read, with the hops to them; it keeps these objects alive.

    Not found are those that only a call gives, such as one of a property or a generator.
    """

    def __init__(self, fun: Function, limit: int = _SEARCH_LIMIT):
        self.objects: list[Any] = [fun]
        self.hops: list[Hop] = []
        self.variables: list[int] = []
        self.lengths: dict[int, int] = {}
        depths, seen, pending = [0], {id(fun)}, deque([0])
        while pending and len(self.objects) < limit:
            place = pending.popleft()
            if isinstance(self.objects[place], (list, dict)):
                self.lengths[place] = len(self.objects[place])
            # Attributes of a user's object may run code, and raise anything.
            with suppress(Exception):
                for read, key, x in islice(parts(self.objects[place]), _PART_LIMIT):
                    is_variable = isinstance(x, Variable)
                    if is_variable or (id(x) not in seen and not is_atom(x)):
                        seen.add(id(x))
                        number = len(self.objects)
                        self.objects.append(x)
                        self.hops.append(Hop(read, place, (key,)))
                        depths.append(depths[place] + 1)
                        if is_variable:
                            self.variables.append(number)
                        elif depths[number] < _DEPTH_LIMIT:
                            pending.append(number)

    def names_backward(self) -> bool:
        """Whether the user's code that was found names `backward`."""
        functions = [x for x in self.objects if isinstance(x, FunctionType) and is_of_user(x)]
        return any(["backward" in attribute_names(x.__code__) for x in functions])

    def places_of(self, variables: Sequence[Variable]) -> VariablePlaces:
        """The places of these Variables."""
        numbers = {id(x): i for i, x in enumerate(variables)}
        ends = [p for p in self.variables if id(self.objects[p]) in numbers]
        used = {0}
        for place in ends:
            while place not in used:
                used.add(place)
                place = self.hops[place - 1].parent
        renumbered = {place: i for i, place in enumerate(sorted(used))}
        hops = [self.hops[place - 1] for place in renumbered if place]
        # All parts that one object leads to follow each other.
        groups = groupby(hops, lambda hop: (hop.read, renumbered[hop.parent]))
        joined = [Hop(*key, tuple([k for hop in group for k in hop.keys])) for key, group in groups]
        return VariablePlaces(
            hops=[(hop.read_keys, hop.parent) for hop in joined],
            variables=[renumbered[p] for p in ends],
            numbers=[numbers[id(self.objects[p])] for p in ends],
            lengths=[(renumbered[p], self.lengths[p]) for p in sorted(used & {*self.lengths})],
        )


def is_atom(x: object) -> bool:
    """Whether an object cannot lead to a Variable that functions change."""
    if type(x) in _KEY_TYPES:
        return True
    return not isinstance(x, _CONTAINERS) and is_of_package(x if isinstance(x, type) else type(x))


def is_of_package(value: object) -> bool:
    """Whether a class, function or module is one of those that are not looked into."""
    return package_of(value) in _OTHER_PACKAGES


def is_of_user(fun: FunctionType) -> bool:
    """Whether a function was defined in a module that is looked into."""
    return str(fun.__globals__.get("__name__")).split(".")[0] not in _OTHER_PACKAGES


def parts(x: object) -> Iterator[tuple[Reader, Any, object]]:
    """The objects that `x` refers to, each with the function and the key that read it from `x`."""
    if isinstance(x, (list, tuple, deque)):
        yield from zip(repeat(read_items), count(), x, strict=False)
    elif isinstance(x, dict):
        for k, part in x.items():
            if type(k) in _KEY_TYPES:
                yield read_items_of_dict, k, part
            elif isinstance(k, (Variable, type)):
                yield read_items_by_reference, ref(k), part
    elif isinstance(x, FunctionType):
        yield from parts_of_function(x)
    elif type(x) in _WRAPPERS:
        yield from attributes_of(x, *_WRAPPERS[type(x)])
    else:
        yield from parts_of_object(x)


def parts_of_function(fun: FunctionType) -> Iterator[tuple[Reader, Any, object]]:
    """The values that a function reads; for a wrapper of this package, those of the wrapped function."""
    yield from [(read_own_attributes, name, x) for name, x in vars(fun).items()]
    if not is_of_user(fun):
        return
    yield from attributes_of(fun, "__defaults__", "__kwdefaults__")
    for i, cell in enumerate(fun.__closure__ or ()):
        try:
            yield read_closure, i, cell.cell_contents
        except ValueError:
            continue
    for name in global_names(fun.__code__):
        x = fun.__globals__.get(name)
        if not isinstance(x, ModuleType):
            yield read_globals, name, x
        elif not is_of_package(x):
            found = vars(x)
            names = attribute_names(fun.__code__)
            yield from [(read_modules, (name, n), found[n]) for n in names if n in found]


def parts_of_object(x: object) -> Iterator[tuple[Reader, Any, object]]:
    """The attributes of an object of a user's class, and its class; of a class, those and its bases."""
    own = getattr(x, "__dict__", {})
    if isinstance(x, type):
        yield from [(read_own_attributes, name, part) for name, part in own.items()]
        yield from attributes_of(x, "__bases__")
        return
    for name, part in own.items():
        is_plain = not hasattr(getattr(type(x), name, None), "__set__")
        yield read_attributes if is_plain else read_own_attributes, name, part
    for cls in type(x).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        yield from attributes_of(x, *([slots] if isinstance(slots, str) else slots))
        # The object may get attributes of these names.
        names = [name for name, part in vars(cls).items() if not hasattr(part, "__get__")]
        yield from attributes_of(x, *[name for name in names if name not in own])
    yield from attributes_of(x, "__class__")


def attributes_of(x: object, *names: str) -> Iterator[tuple[Reader, Any, object]]:
    """These attributes of an object, of those that it has."""
    yield from [(read_attributes, name, getattr(x, name)) for name in names if hasattr(x, name)]


def read_items(keys: Sequence[Any], x: Any) -> list[object]:
    """Items of a list, tuple or deque."""
    return [x[k] for k in keys]


def read_items_of_dict(keys: Sequence[Any], x: dict[Any, Any]) -> list[object]:
    """Items of a dictionary, None where there is none; `x[key]` would make one in a defaultdict."""
    return [x.get(k) for k in keys]


def read_items_by_reference(keys: Sequence[ref[Any]], x: dict[Any, Any]) -> list[object]:
    """As `read_items_of_dict`, for keys that are not kept alive."""
    return [x.get(k()) for k in keys]


def read_attributes(names: Sequence[str], x: object) -> list[object]:
    """Attributes of an object."""
    return [getattr(x, name) for name in names]


def read_own_attributes(names: Sequence[str], x: object) -> list[object]:
    """Attributes that an object has itself, not through its class."""
    found = x.__dict__
    return [found[name] for name in names]


def read_closure(numbers: Sequence[int], fun: FunctionType) -> list[object]:
    """The values of variables of an enclosing function."""
    closure = fun.__closure__ or ()
    return [closure[i].cell_contents for i in numbers]


def read_globals(names: Sequence[str], fun: FunctionType) -> list[object]:
    """The values of global variables."""
    found = fun.__globals__
    return [found[name] for name in names]


def read_modules(names: Sequence[tuple[str, str]], fun: FunctionType) -> list[object]:
    """The values of variables of modules, by the global names of these and their own."""
    return [getattr(fun.__globals__[module], name) for module, name in names]


@lru_cache(maxsize=4096)
def attribute_names(code: CodeType) -> tuple[str, ...]:
    """The names of the attributes, among others, that the code and its inner functions read."""
    inner = [attribute_names(x) for x in code.co_consts if isinstance(x, CodeType)]
    return tuple(dict.fromkeys([*code.co_names, *[n for names in inner for n in names]]))
