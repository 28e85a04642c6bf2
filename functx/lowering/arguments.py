"""Arguments of `jit`: static ones, checks of arrays, and functions compiled ahead for their types."""

from __future__ import annotations

import inspect
from collections.abc import Hashable, Iterable, Sequence
from functools import partial
from operator import index
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import NamedSharding

from functx import ops
from functx.core import tree
from functx.core.errors import (
    ArgumentError,
    DonationError,
    StaticArgumentError,
    ValueRangeError,
    type_name,
)
from functx.core.tracer import Tracer, abstractify, aval_of
from functx.core.types import canonical_dtype
from functx.core.typing import ArrayLike, Function, PyTree, Values
from functx.lowering.captured_arrays import read_hidden_states, write_back_call
from functx.lowering.jax_bridge import call_reraising_callback_errors
from functx.lowering.recompilation import code_of_function
from functx.transforms.argument_names import InputNames, copy_function_metadata, function_name

ArgNames = str | Sequence[str] | None
ArgNums = int | Sequence[int] | None


class StaticByValue:
    """A static argument that hashes by identity, compared by its attributes as well.

    Without this, a changed attribute would find the program compiled before the change.
    """

    __slots__ = ("snapshot", "value")

    def __init__(self, value: object):
        self.value = value
        self.snapshot = tuple((k, _fingerprint(v)) for k, v in sorted(vars(value).items()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StaticByValue) and (
            self.value is other.value and self.snapshot == other.snapshot
        )

    def __hash__(self) -> int:
        return hash((id(self.value), self.snapshot))


def _fingerprint(value: object) -> Hashable:
    try:
        hash(value)
    except TypeError:
        return type(value), id(value)
    return type(value), value


def hashable_static(x: object, which: str, fun: Function) -> Hashable:
    """The static argument `x` of `fun`, as a value that compares by value.

    Raises StaticArgumentError for an argument that cannot be hashed, or is an array.
    """
    try:
        hash(x)
    except TypeError:
        raise StaticArgumentError(
            f"jit({function_name(fun)}): static arguments must be hashable; "
            f"got {type_name(x)} for argument {which}",
            fix="Pass a tuple, a frozen dataclass or another hashable value.",
        ) from None
    if isinstance(x, (Tracer, jax.Array)):
        raise StaticArgumentError(
            f"jit({function_name(fun)}): static arguments must be Python values; "
            f"got {type_name(x)} for argument {which}",
        )
    by_identity = getattr(type(x), "__hash__", None) is object.__hash__ and hasattr(x, "__dict__")
    return StaticByValue(x) if by_identity and not isinstance(x, _IDENTITY_HASHED_TYPES) else x


_IDENTITY_HASHED_TYPES = (type, FunctionType, BuiltinFunctionType, MethodType, ModuleType, partial)


def static_value(x: object) -> object:
    """The static argument from which `hashable_static` made `x`."""
    return x.value if type(x) is StaticByValue else x


def infer_argnums_and_argnames(
    fun: Function, numbers: ArgNums, names: ArgNames, what: str
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The positions and the names of the same arguments, if one of the two is given."""
    if numbers is None and names is None:
        return (), ()
    nums = (
        () if numbers is None else tuple(numbers) if isinstance(numbers, Sequence) else (numbers,)
    )
    words = () if names is None else (names,) if isinstance(names, str) else tuple(names)
    for n in nums:
        if isinstance(n, bool) or not isinstance(n, int):
            raise ArgumentError(f"jit: {what}_argnums must be ints; got {n!r}")
    try:
        parameters = inspect.signature(fun).parameters
    except (ValueError, TypeError):
        return tuple(map(index, nums)), words
    positional = [
        p.name
        for p in parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    open_ended = any(p.kind is p.VAR_POSITIONAL for p in parameters.values())
    if not open_ended and any(not -len(positional) <= n < len(positional) for n in nums):
        raise ArgumentError(
            f"jit({function_name(fun)}): {what}_argnums must name parameters; "
            f"got {nums} for {len(positional)} of them"
        )
    keywords = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    if not keywords and (unknown := [w for w in words if w not in parameters]):
        raise ArgumentError(
            f"jit({function_name(fun)}): {what}_argnames must name parameters; got {unknown}"
        )
    nums = tuple(n % len(positional) if n < 0 else n for n in nums)
    if names is None:
        words = tuple(positional[n] for n in nums if n < len(positional))
    if numbers is None:
        nums = tuple(positional.index(w) for w in words if w in positional)
    return nums, words


class StaticArguments:
    """The static arguments of a jitted function, by position and by name."""

    def __init__(self, fun: Function, nums: tuple[int, ...], names: tuple[str, ...]):
        self.fun, self.nums, self.names = fun, nums, names
        self.is_empty = not nums and not names

    def as_hashable(
        self, args: tuple[PyTree, ...], kwargs: dict[str, PyTree]
    ) -> tuple[PyTree, PyTree]:
        """The arguments of a call, with static ones that compare by value."""
        if self.is_empty:
            return args, kwargs
        args = tuple(
            hashable_static(x, f"number {i}", self.fun) if i in self.nums else x
            for i, x in enumerate(args)
        )
        return args, {
            k: hashable_static(v, f"`{k}`", self.fun) if k in self.names else v
            for k, v in kwargs.items()
        }

    def bind(self, args: PyTree, kwargs: PyTree) -> tuple[Function, PyTree, PyTree]:
        """The function of the other arguments, and these, with None at positions of static ones."""
        if self.is_empty:
            return self.fun, args, kwargs
        by_position = {n: static_value(args[n]) for n in self.nums if n < len(args)}
        by_name = {k: static_value(v) for k, v in kwargs.items() if k in self.names}

        def fun(*dynamic: PyTree, **keywords: PyTree) -> PyTree:
            merged = [by_position.get(i, x) for i, x in enumerate(dynamic)]
            return self.fun(*merged, **keywords, **by_name)

        copy_function_metadata(fun, self.fun, "jit").__name__ = function_name(self.fun)
        # None has no leaves, and the others keep their positions, and with them their names.
        dynamic = tuple([None if i in by_position else x for i, x in enumerate(args)])
        return fun, dynamic, {k: v for k, v in kwargs.items() if k not in by_name}

    def key(self, args: PyTree, kwargs: PyTree) -> tuple[Hashable, ...]:
        """The static arguments of a call as a part of a cache key."""
        if self.is_empty:
            return ()
        return (
            tuple([args[n] for n in self.nums if n < len(args)]),
            tuple([(k, kwargs[k]) for k in sorted(self.names) if k in kwargs]),
        )

    def texts(self, args: tuple[PyTree, ...], kwargs: dict[str, PyTree]) -> dict[str, str]:
        """The static arguments of a call, by name, as messages show them."""
        if self.is_empty:
            return {}
        code = code_of_function(self.fun)
        parameters = () if code is None else code.co_varnames
        values = {
            parameters[n] if n < len(parameters) else f"{n}": args[n]
            for n in self.nums
            if n < len(args)
        }
        values |= {k: x for k, x in kwargs.items() if k in self.names}
        return {k: repr(static_value(x))[:80] for k, x in values.items()}


def check_usable(what: str, names: Sequence[str] | None, values: Sequence[ArrayLike]) -> None:
    """Raises DonationError for an array without a buffer, ValueRangeError for an int too large.

    `names` are those of the first values.
    """
    named = [f"`{name}`" for name in names or ()]
    named += [f"argument number {i}" for i in range(len(named), len(values))]
    for name, x in zip(named, values, strict=False):
        if isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer) and x.is_deleted():
            raise DonationError(
                f"{what}: an array must still have its buffer; got {aval_of(x)!r} for {name}, "
                "which was deleted or donated",
                fix="Donate only what is not used again, or keep a copy of it.",
            )
        if type(x) is int:
            dtype = canonical_dtype(np.int64)
            limits = np.iinfo(dtype)
            if not limits.min <= x <= limits.max:
                raise ValueRangeError(
                    f"{what}: an int must fit {dtype}; got {x} for {name}",
                    fix="Pass a float, make it static, or turn 64-bit types on: "
                    'jax.config.update("jax_enable_x64", True).',
                )


def check_divisible(
    what: str, names: Sequence[str], args: tuple[PyTree, ...], shardings: PyTree
) -> None:
    """Raises ShapeError for an argument that its sharding does not divide into equal parts."""
    if shardings is None:
        return
    flat = tree.broadcast_prefix(shardings, tree.structure(args), f"{what}: in_shardings")
    for name, x, sharding in zip(names, tree.leaves(args), flat, strict=False):
        if isinstance(sharding, NamedSharding):
            ops.check_partition_spec(f"{what}: `{name}`", aval_of(x), sharding.spec, sharding.mesh)


def check_donated_once(
    what: str, names: Sequence[str], values: Values, donated: Iterable[int]
) -> None:
    """Raises DonationError for a donated array that is passed a second time in the same call."""
    for i in donated:
        for j, x in enumerate(values):
            if j != i and x is values[i] and isinstance(x, jax.Array):
                raise DonationError(
                    f"{what}: a donated array must be passed once; "
                    f"got one array for `{names[i]}`, which is donated, and for `{names[j]}`",
                    fix="Pass a copy of it, or do not donate it.",
                )


class Lowered:
    """A function lowered to StableHLO for one set of argument types, not yet compiled."""

    def __init__(self, call: CallingConvention, lowered: jax.stages.Lowered):
        self._call, self._lowered = call, lowered

    def compile(self, compiler_options: jax.stages.CompilerOptions | None = None) -> Compiled:
        """The executable."""
        return Compiled(self._call, self._lowered.compile(compiler_options))

    def as_text(self, dialect: str | None = None, **options: Any) -> str:
        """The module as text, StableHLO by default, or in another `dialect` that JAX knows."""
        return str(self._lowered.as_text(dialect, **options))

    def compiler_ir(self, dialect: str | None = None) -> Any:
        """The module itself, StableHLO by default, or in another `dialect` that JAX knows."""
        return self._lowered.compiler_ir(dialect)

    def cost_analysis(self) -> Any:
        """XLA's estimate of what the module costs to run: flops, bytes accessed, and more."""
        return self._lowered.cost_analysis()

    @property
    def args_info(self) -> PyTree:
        """The shapes and dtypes of the arguments, and whether they are donated."""
        return without_first_argument(self._lowered.args_info)

    @property
    def in_tree(self) -> tree.TreeDef:
        """The structure of the arguments: positional ones, and those by name."""
        return tree.structure(self.args_info)

    @property
    def out_tree(self) -> tree.TreeDef:
        """The structure of the result."""
        return tree.structure(self.out_info)

    @property
    def out_info(self) -> PyTree:
        """The shapes and dtypes of the results."""
        info = self._lowered.out_info
        return info[0] if self._call.writes else info


class Compiled:
    """A function compiled for one set of argument types; call it with such arguments.

    Static arguments are part of the executable, and left out of the call.
    """

    def __init__(self, call: CallingConvention, compiled: jax.stages.Compiled):
        self._call, self._compiled = call, compiled

    def __call__(self, *args: PyTree, **kwargs: PyTree) -> PyTree:
        try:
            out = call_reraising_callback_errors(
                self._compiled, read_hidden_states(self._call.captured), *args, **kwargs
            )
        except (TypeError, ValueError, OverflowError, RuntimeError):
            self._call.check(args, kwargs)
            raise
        if not self._call.writes:
            return out
        hidden, _ = self._call.captured
        write_back_call(tree.leaves((args, kwargs)), hidden, out[1])
        return out[0]

    def as_text(self) -> str:
        """The optimised module as text."""
        return str(self._compiled.as_text())

    def cost_analysis(self) -> Any:
        """XLA's estimate of what a run costs: flops, bytes accessed, and more."""
        return self._compiled.cost_analysis()

    def memory_analysis(self) -> Any:
        """The bytes that arguments, results, temporaries and code take."""
        return self._compiled.memory_analysis()

    @property
    def args_info(self) -> PyTree:
        """The shapes and dtypes of the arguments, and whether they are donated."""
        return without_first_argument(self._call.args_info)

    @property
    def out_info(self) -> PyTree:
        """The shapes and dtypes of the results."""
        info = self._compiled.out_info
        return info[0] if self._call.writes else info

    @property
    def in_tree(self) -> tree.TreeDef:
        """The structure of the arguments: positional ones, and those by name."""
        return tree.structure(self.args_info)

    @property
    def out_tree(self) -> tree.TreeDef:
        """The structure of the result."""
        return tree.structure(self.out_info)

    @property
    def input_shardings(self) -> PyTree:
        """The shardings of the arguments."""
        return without_first_argument(self._compiled.input_shardings)

    @property
    def output_shardings(self) -> PyTree:
        """The shardings of the results."""
        shardings = self._compiled.output_shardings
        return shardings[0] if self._call.writes else shardings

    def runtime_executable(self) -> Any:
        """XLA's executable."""
        return self._compiled.runtime_executable()


def without_first_argument(info: PyTree) -> PyTree:
    """`(args, kwargs)`, facts about arguments, without those of the captured arrays, which come first."""
    args, kwargs = info
    return tuple(args[1:]), kwargs


class CallingConvention(NamedTuple):
    """The hidden and the visible arguments of a compiled function.

    `captured` are the hidden arguments; `in_names` gives the names of the leaves of the visible ones;
    `args_info` is JAX's description of both, captured first.
    """

    name: str
    in_names: InputNames
    captured: tuple[Any, ...]
    args_info: PyTree
    writes: bool = False

    def check(self, args: PyTree, kwargs: PyTree) -> None:
        """Raises ArgumentError for arguments of other types than the function was compiled for."""
        what = f"compiled {self.name}"
        expected, in_tree = tree.flatten((tuple(self.args_info[0][1:]), self.args_info[1]))
        leaves, given_tree = tree.flatten((args, kwargs))
        tree.check_same_structure(
            in_tree, given_tree, f"{what}: the arguments", "those it was compiled for"
        )
        names = self.in_names()
        for name, x, wanted in zip(names, leaves, expected, strict=True):
            given = _type_text(x)
            if isinstance(x, jax.core.Tracer):
                raise ArgumentError(
                    f"{what}: arguments must be arrays, since no trace can look into what is "
                    f"compiled; got a traced {given} for `{name}`",
                    fix="Call the function itself in place of the compiled one.",
                )
            if given != _type_text(wanted):
                raise ArgumentError(
                    f"{what}: arguments must have the types that it was compiled for; "
                    f"got {given} for `{name}`: {_type_text(wanted)}",
                    fix="Lower and compile the function for these types too.",
                )
        check_usable(what, names, leaves)


def _type_text(x: object) -> str:
    """`f32[3]` for an array or its aval, else the name of the class."""
    try:
        return repr(abstractify(x).update(weak_type=False))
    except ArgumentError:
        return type_name(x)
