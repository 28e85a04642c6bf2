"""Calls of modules with given parameters and buffers, and the states of several modules as one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from functx.autograd import Variable
from functx.core import tree
from functx.core.errors import (
    DuplicateKeysError,
    FunctionalCallCountError,
    ModuleTypeError,
    OutputTupleError,
    StackingError,
    StateItemsError,
    TiedValuesError,
    short_repr,
    type_name,
)
from functx.core.replaced_state import ReplacedState, replaced_state
from functx.core.tracer import aval_of, is_variable
from functx.core.typing import PyTree, Value
from functx.core.wrappers import is_wrapper
from functx.nn.module import Module, check_keys, tied_names
from functx.numpy.joining import stack
from functx.transforms.tracing_api import has_aval

__all__ = ["create_functional_call", "functional_call", "stack_module_state"]


def functional_call(
    module: object,
    state: Mapping[str, Any] | Iterable[Any],
    args: object = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    tie_weights: bool = True,
    strict: bool = False,
) -> PyTree:
    """The result of `module(*args, **kwargs)` with other parameters and buffers.

    `state` has them by dotted name (`hidden.weight`): a dictionary, several dictionaries without a
    common key, or pairs of a name and a value. The module's own stand for what is missing. With
    `tie_weights`, a value that the module has under several names is replaced under all of them.
    With `strict`, the names must be those of the module; without, a name that the module lacks, such as
    a misspelled one, is ignored, as in PyTorch. `args` that are no tuple are the only argument.

    A buffer that the module replaces during the call is replaced in the dictionary that has it; pairs,
    and mappings that cannot change, keep theirs. The module itself stays as it is: the values hold in
    the context of the call (`contextvars`), so that calls in several threads do not see each other's. A
    thread that the module itself starts sees them if it runs in a copy of that context.

    `module` is an `nn.Module`; an object whose method `__functx_state__()` returns its arrays by name, and
    a function that makes the module from others; or a pytree that can be called, as a module of Equinox.

    Raises ModuleTypeError for anything else; StateItemsError for a `state` that is none of these;
    DuplicateKeysError for a key in two dictionaries; TiedValuesError for different values of what is
    tied; and StateKeysError for names that do not fit, with `strict`.

    >>> import functx
    >>> from functx import nn
    >>> class Scale(nn.Module):
    ...     def __init__(self):
    ...         self.factor = nn.Parameter(2.0)
    ...     def forward(self, x):
    ...         return x * self.factor
    >>> float(functx.functional_call(Scale(), {"factor": 5.0}, 3.0))
    15.0
    >>> loss = lambda state, x: functx.functional_call(Scale(), state, x)
    >>> print(functx.grad(loss)({"factor": 5.0}, 3.0)["factor"])
    3.0
    """
    given = GivenState.of(state)
    if args is None:
        args = ()
    elif not isinstance(args, tuple):
        args = (args,)
    kwargs = kwargs or {}
    label = f"functional_call({type(module).__name__})"
    if not isinstance(module, Module):
        return _call_foreign(module, given, args, kwargs, tie_weights, strict, label)
    names = module.state_names()
    values: Mapping[str, Any] = given.values
    groups: set[tuple[str, ...]] = set()
    if tie_weights and names.tied:
        values, groups = _with_tied(values, names.tied, label)
    if strict:
        _check_strict(values, names.places, label)
    replaced: dict[int, dict[str, Any]] = {}
    for name, value in values.items():
        place = names.places.get(name)
        if place is not None:
            serial, attribute = place
            if serial in replaced:
                replaced[serial][attribute] = value
            else:
                replaced[serial] = {attribute: value}
    tied = [[names.places[name] for name in group] for group in groups]
    with ReplacedState(replaced, replaced_state(), tied) as context:
        try:
            return module(*args, **kwargs)
        finally:
            for name, place in names.places.items() if context.written else ():
                if place in context.written:
                    given.put(name, replaced[place[0]][place[1]])


def call_and_write_back(
    module: object, state: Mapping[str, Any], args: tuple[PyTree, ...], kwargs: Mapping[str, Any]
) -> tuple[PyTree, dict[str, Any]]:
    """The result of a functional call, whose new values of buffers are written to the arrays of `state`.

    New values of another shape or dtype, or in place of a Python number, are returned by name.
    """
    after = dict(state)
    out = functional_call(module, after, args, kwargs)
    others = {}
    for name, before in state.items():
        new = after[name]
        if new is before:
            continue
        if not isinstance(before, (int, float, complex)) and has_type_of(new, before):
            before[...] = new
        else:
            others[name] = new
    return out, others


def has_type_of(new: object, before: object) -> bool:
    """Whether two arrays have one shape and one dtype."""
    aval, old = aval_of(new), aval_of(before)
    return (aval.shape, aval.dtype) == (old.shape, old.dtype)


class GivenState(NamedTuple):
    """The values of a state by name, and the dictionaries that gave them."""

    values: Mapping[str, Any]
    dictionaries: Sequence[Mapping[str, Any]]

    @staticmethod
    def of(state: object) -> GivenState:
        """The state that a user gave: a dictionary, several, or pairs of a name and a value."""
        given = GivenState(state, (state,)) if isinstance(state, Mapping) else _join_items(state)
        kinds = {*map(type, given.values)}, {*map(type, given.values.values())}
        if not (kinds[0] <= {str} and kinds[1] <= _array_types):
            _check_items(given.values)
        return given

    def put(self, name: str, value: object) -> None:
        """Puts a new value in the dictionary that gave the one before."""
        for dictionary in self.dictionaries:
            if name in dictionary and isinstance(dictionary, MutableMapping):
                dictionary[name] = value


_array_types: set[type] = {type(None)}
"""The types of values that were met so far, all arrays, numbers or None."""


def _check_items(values: Mapping[Any, Any]) -> None:
    """Raises StateItemsError for a key that is no name, and a value that is no array."""
    for name, x in values.items():
        if not isinstance(name, str):
            raise StateItemsError(
                "functional_call: the keys of a state must be names; got "
                f"{type_name(name)} {short_repr(name)}",
                fix="Give dotted names, as module.named_parameters() does.",
            )
        if not (x is None or isinstance(x, jax.Array) or is_wrapper(x) or has_aval(x)):
            raise StateItemsError(
                "functional_call: the values of a state must be arrays or numbers; got "
                f"{type_name(x)} for {name!r}",
                fix="Give an array, or leave the name out, so that the module's own value stands.",
            )
        _array_types.add(type(x))


def _join_items(state: object) -> GivenState:
    """The state of several dictionaries, or of pairs of a name and a value."""
    items = None if isinstance(state, (str, bytes)) or not isinstance(state, Iterable) else [*state]
    if items is not None and all([isinstance(x, Mapping) for x in items]):
        pairs = [pair for dictionary in items for pair in dictionary.items()]
        dictionaries = items
    elif items is not None and all([isinstance(x, (tuple, list)) and len(x) == 2 for x in items]):
        pairs, dictionaries = items, []
    else:
        got = type_name(state)
        if items is not None:
            got += f" with {', '.join(dict.fromkeys(map(type_name, items)))}"
        raise StateItemsError(
            "functional_call: the state must be a dictionary, dictionaries, or pairs of a name and a "
            f"value; got {got}",
            fix="Pass dict(module.named_parameters()), or (parameters, buffers).",
        )
    values = {}
    repeated = []
    for name, value in pairs:
        if name in values:
            repeated.append(name)
        values[name] = value
    if repeated:
        raise DuplicateKeysError(
            "functional_call: each name must be given once; got several values for "
            + ", ".join([repr(name) for name in dict.fromkeys(repeated)]),
            fix="Remove the name from all dictionaries but one.",
        )
    return GivenState(values, dictionaries)


def _with_tied(
    values: Mapping[str, Any], tied: Mapping[str, tuple[str, ...]], label: str
) -> tuple[Mapping[str, Any], set[tuple[str, ...]]]:
    """`values` with those of all names that the module ties to a given one, and the groups of these."""
    found = {tied[name] for name in values if name in tied}
    if not found:
        return values, found
    whole = {**values}
    for group in found:
        given = [name for name in group if name in values]
        first = values[given[0]]
        if not all([_is_same(values[name], first) for name in given]):
            raise TiedValuesError(
                f"{label}: parameters and buffers that the module ties must have one value; got several "
                f"for {', '.join([repr(name) for name in given])}",
                fix="Give one of them, or pass tie_weights=False.",
            )
        whole.update(dict.fromkeys(group, first))
    return whole, found


def _is_same(x: object, y: object) -> bool:
    return x is y or (isinstance(x, (int, float, complex)) and type(x) is type(y) and x == y)


def _check_strict(values: Mapping[str, Any], names: Mapping[str, Any], label: str) -> None:
    check_keys(label, [n for n in names if n not in values], [n for n in values if n not in names])


def _call_foreign(
    module: object,
    given: GivenState,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    tie_weights: bool,
    strict: bool,
    label: str,
) -> PyTree:
    """The call of a module of another library: one is made from the given values."""
    own, make = foreign_state(module, label)
    values = given.values
    if tie_weights:
        names_by_value: dict[int, list[str]] = {}
        for name, x in own.items():
            names_by_value.setdefault(id(x), []).append(name)
        values, _ = _with_tied(values, tied_names(names_by_value), label)
    if strict:
        _check_strict(values, own, label)
    whole = {name: values.get(name, x) for name, x in own.items()}
    made = make(whole)
    try:
        return made(*args, **kwargs)
    finally:
        if hasattr(made, "__functx_state__"):
            new, _ = made.__functx_state__()
            for name, x in new.items():
                if name in given.values and x is not whole[name]:
                    given.put(name, x)


def foreign_state(module: object, label: str) -> tuple[dict[str, Any], Callable[[Any], Any]]:
    """The arrays by name of a module of another library, and a function that makes one from others."""
    if hasattr(module, "__functx_state__") and not isinstance(module, type):
        state, make = module.__functx_state__()
        return state, make
    if callable(module):
        pairs, structure = tree.flatten_with_path(module)
        paths = [tree.keystr(path, simple=True, separator=".") for path, _ in pairs]
        leaves = [x for _, x in pairs]
        if any(paths):
            state = {name: x for name, x in zip(paths, leaves, strict=True) if _is_array(x)}

            def make_module(values: Mapping[str, Any]) -> Any:
                new = [values.get(name, x) for name, x in zip(paths, leaves, strict=True)]
                return tree.unflatten(structure, new)

            return state, make_module
    raise ModuleTypeError(
        f"{label}: the module must be an nn.Module, have __functx_state__, or be a pytree that can be "
        f"called; got {type_name(module)}",
        fix="Pass the module itself, and the arguments of its call as a tuple.",
    )


def _is_array(x: object) -> bool:
    return isinstance(x, (jax.Array, np.ndarray)) or is_variable(x)


def create_functional_call(
    module: object, spec: tree.TreeDef, n: int, store_original: bool = False
) -> Callable[..., tuple[Any, ...] | list[Any]]:
    """A function of flat parameters, then the arguments of `module`, that calls the module with them.

    `spec` is the structure of the dictionary that the first `n` arguments are the leaves of. The module
    must return a tuple or a list. With `store_original` the function has the module as its attribute
    `original_module`.

    Raises FunctionalCallCountError if `spec` has another number of leaves than `n`, or a call too few
    arguments, and OutputTupleError in a call whose result is neither a tuple nor a list.

    >>> import functx
    >>> from functx import nn
    >>> class Scale(nn.Module):
    ...     def __init__(self):
    ...         self.factor = nn.Parameter(2.0)
    ...     def forward(self, x):
    ...         return (x * self.factor,)
    >>> flat, spec = functx.tree.flatten({"factor": 5.0})
    >>> call = functx.create_functional_call(Scale(), spec, 1)
    >>> [float(x) for x in call(*flat, 3.0)]
    [15.0]
    """
    name = type(module).__name__
    if spec.num_leaves != n:
        raise FunctionalCallCountError(
            f"create_functional_call({name}): the structure of the parameters must have n leaves; got "
            f"{spec.num_leaves} leaves and n = {n}",
            fix="Pass flat, spec = functx.tree.flatten(parameters), and n = len(flat).",
        )

    def call(*args: PyTree, **kwargs: PyTree) -> tuple[Any, ...] | list[Any]:
        if len(args) < n:
            raise FunctionalCallCountError(
                f"{name}: the call must begin with {n} parameters; got {len(args)} arguments",
                fix="Pass the leaves of the parameters first (call(*flat, x)).",
            )
        out = functional_call(module, tree.unflatten(spec, args[:n]), args[n:], kwargs)
        if not isinstance(out, (tuple, list)):
            raise OutputTupleError(
                f"{name}: a module that is called with flat parameters must return a tuple or a list; got "
                f"{type_name(out)}",
                fix="Return (out,) from its forward, or use functx.functional_call.",
            )
        return out

    call.__name__ = call.__qualname__ = name
    if store_original:
        call.original_module = module  # type: ignore[attr-defined]
    return call


def stack_module_state(modules: Iterable[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The parameters and the buffers of several modules, each name with the values of all, stacked.

    The modules are of one class and in one mode. The parameters are new leaves, which require gradients
    where those of the modules do. `functx.vmap` of a function that calls `functx.functional_call` runs
    all modules as one.

    Raises StackingError for no module, and for modules that differ in class, mode, names, shapes or in
    whether a parameter requires a gradient.

    >>> import functx
    >>> from functx import nn
    >>> class Scale(nn.Module):
    ...     def __init__(self, factor):
    ...         self.factor = nn.Parameter(factor)
    ...     def forward(self, x):
    ...         return x * self.factor
    >>> models = [Scale(1.0), Scale(2.0), Scale(3.0)]
    >>> parameters, buffers = functx.stack_module_state(models)
    >>> call = lambda p, b, x: functx.functional_call(models[0], (p, b), x)
    >>> functx.vmap(call, (0, 0, None))(parameters, buffers, 10.0).tolist()
    [10.0, 20.0, 30.0]
    """
    modules = [*modules]
    kinds = [*dict.fromkeys(map(type, modules))]
    if len(kinds) != 1:
        got = ", ".join([kind.__name__ for kind in kinds]) or "none"
        raise StackingError(
            f"stack_module_state: there must be modules, all of one class; got {got}",
            fix="Stack the modules of each class by themselves.",
        )
    if len({bool(getattr(m, "training", True)) for m in modules}) > 1:
        raise StackingError(
            "stack_module_state: the modules must all be in training mode, or all in evaluation mode; got "
            + ", ".join(["training" if m.training else "evaluation" for m in modules]),
            fix="Call train() or eval() on each.",
        )
    if isinstance(modules[0], Module):
        parameters = [dict(m.named_parameters()) for m in modules]
        buffers = [dict(m.named_buffers()) for m in modules]
    else:
        parameters = [foreign_state(m, "stack_module_state")[0] for m in modules]
        buffers = [{} for _ in modules]
    return _stack_by_name(parameters), _stack_by_name(buffers)


def _stack_by_name(states: list[dict[str, Any]]) -> dict[str, Any]:
    """One dictionary with the stacked values of several."""
    names = [*states[0]]
    for state in states:
        if differing := sorted(state.keys() ^ states[0].keys()):
            raise StackingError(
                "stack_module_state: the modules must have the same names; got "
                f"{', '.join([repr(n) for n in differing])} in some of them",
                fix="Make the modules with the same sizes and options.",
            )
    return {name: _stack(name, [state[name] for state in states]) for name in names}


def _stack(name: str, values: list[Value]) -> PyTree:
    """The values as one new array, a leaf where they are Variables."""
    shapes = [aval_of(x) for x in values]
    if len({aval.shape for aval in shapes}) > 1:
        raise StackingError(
            f"stack_module_state: `{name}` must have one shape in all modules; got "
            + ", ".join(map(repr, shapes)),
            fix="Stack modules of the same sizes.",
        )
    if not any([is_variable(x) for x in values]):
        return stack(values)
    flags = [is_variable(x) and x.requires_grad for x in values]  # type: ignore[attr-defined]
    if len({*flags}) > 1:
        raise StackingError(
            f"stack_module_state: `{name}` must require a gradient in all modules, or in none; got "
            + ", ".join(map(str, flags)),
            fix=f"Call {name}.requires_grad_() on each.",
        )
    return Variable(stack([Variable(x) for x in values]), flags[0])  # type: ignore[arg-type]
