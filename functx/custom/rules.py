"""What `custom_jvp` and `custom_vjp` share: their call, and how rules become programs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, NamedTuple

import jax
import numpy as np

from functx.core import tree
from functx.core.avals import ShapedArray
from functx.core.dtypes import is_inexact, kind
from functx.core.editing import Retype
from functx.core.errors import (
    ArgnumsError,
    ArgumentError,
    ConcretizationError,
    GradientError,
    MissingRuleError,
    RuleError,
    type_name,
)
from functx.core.program import Program, Var
from functx.core.tracing import (
    Builder,
    Tracer,
    apply,
    aval_of,
    build,
    current_builder,
    rewritten,
)
from functx.ops.conversion import ConvertElementType
from functx.ops.operands import PYTHON_SCALARS, literal
from functx.ops.shaping import zeros_like
from functx.transforms.calls import (
    avals_of,
    check_callable,
    name_of,
    named_after,
    trace_call,
)

_NESTED_EAGERLY = 3
"""How deep rules are traced within rules; deeper ones wait until they are needed."""


class CustomFunction:
    """A function with a rule that the user gives; what is common to all kinds of rules."""

    kind: str

    def __init__(self, fun: Callable[..., Any], nondiff_argnums: int | Sequence[int] = ()):
        check_callable(fun, self.kind)
        named_after(self, fun, self.kind)
        self.__name__ = name_of(fun)
        self.fun = fun
        numbers = (nondiff_argnums,) if isinstance(nondiff_argnums, int) else tuple(nondiff_argnums)
        if len(set(numbers)) != len(numbers) or not all(isinstance(n, int) for n in numbers):
            raise ArgnumsError(
                f"{self.kind}({name_of(fun)}): nondiff_argnums must be distinct ints; got {numbers}"
            )
        self.nondiff_argnums = numbers

    def __repr__(self) -> str:
        return f"{self.kind}({name_of(self.fun)})"

    def rules(self) -> tuple[Callable[..., Any], ...]:
        """The user's rule functions, none when they are not given yet."""
        raise NotImplementedError

    def traced_rules(
        self, call: CustomCall, trace: RuleTrace, values: Sequence[Any]
    ) -> list[Traced]:
        """The rules traced for one call: programs, each with what it captured."""
        raise NotImplementedError

    def arranged(self, traced: Sequence[Traced], captures: Captures) -> tuple[Program, ...]:
        """The programs of the rules as the primitive holds them."""
        raise NotImplementedError

    def primitive(self, primal: Program, rule: Any, captured: int) -> Any:
        """The primitive whose equation a call makes."""
        raise NotImplementedError

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self.rules():
            raise MissingRuleError(
                f"{self!r}: the function must have a derivative rule before it is called; got none",
                fix=f"Give it one with def{self.kind.removeprefix('custom_')}.",
            )
        args = self.positional(args, kwargs)
        level = _level(self)
        if level > 1 or (current_builder.get() is None and not in_jax_trace(args)):
            return self.fun(*args)
        nondiff, dynamic = self.divided(args)
        leaves, in_tree = tree.flatten((dynamic, {}))
        plain = self.of_dynamic(self.fun, nondiff, len(args))
        avals = avals_of(leaves, self.kind, plain, in_tree)
        primal = trace_call(plain, in_tree, avals, self.kind, values=leaves)
        call = CustomCall(
            nondiff, len(args), in_tree, avals, primal.program.out_avals, primal.out_tree
        )
        captures = Captures()
        captures.add(primal.captured)
        trace = RuleTrace(self)
        try:
            traced = self.traced_rules(call, trace, leaves)
        except ConcretizationError:
            level = 1
        captures.add([x for b in trace.builders for _, x in b.captures.values()])
        rule = Deferred(self, call, captures) if level else self.arranged(traced, captures)
        program = captures.extend(primal.program, primal.captured)
        outs = self.primitive(program, rule, len(captures.values))(*leaves, *captures.values)
        return tree.unflatten(primal.out_tree, outs)

    @cached_property
    def signature(self) -> inspect.Signature | None:
        try:
            return inspect.signature(self.fun)
        except (ValueError, TypeError):
            return None

    def positional(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """All arguments by position, those left to their defaults included."""
        if self.signature is None:
            if kwargs:
                raise ArgumentError(f"{self!r}: arguments must be positional; got {list(kwargs)}")
            return args
        if not kwargs and len(args) == len(self.signature.parameters):
            return args
        bound = self.signature.bind(*args, **kwargs)
        if bound.kwargs:
            raise ArgumentError(
                f"{self!r}: no argument may be keyword-only, since rules take them by position; "
                f"got {list(bound.kwargs)}"
            )
        bound.apply_defaults()
        return bound.args

    def divided(self, args: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """The arguments that are not differentiated, and the others."""
        if not self.nondiff_argnums:
            return (), args
        if any(not -len(args) <= n < len(args) for n in self.nondiff_argnums):
            raise ArgnumsError(
                f"{self!r}: nondiff_argnums must name positional arguments; "
                f"got {self.nondiff_argnums} for {len(args)} of them"
            )
        fixed = [n % len(args) for n in self.nondiff_argnums]
        return (
            tuple([args[n] for n in fixed]),
            tuple([x for i, x in enumerate(args) if i not in fixed]),
        )

    def of_dynamic(self, fun: Callable[..., Any], nondiff: Sequence[Any], count: int) -> Any:
        """`fun`, which takes all of `count` arguments, as a function of the dynamic ones."""
        if not nondiff:
            return fun
        fixed = dict(zip([n % count for n in self.nondiff_argnums], nondiff, strict=True))

        def of_dynamic(*dynamic: Any) -> Any:
            rest = iter(dynamic)
            return fun(*[fixed[i] if i in fixed else next(rest) for i in range(count)])

        of_dynamic.__name__ = name_of(fun)
        return of_dynamic


class CustomCall(NamedTuple):
    """What a rule has to know of the call that it is the rule of."""

    nondiff: tuple[Any, ...]
    count: int  # type: ignore[assignment]
    in_tree: Any
    avals: Sequence[ShapedArray]
    out_avals: Sequence[ShapedArray]
    out_tree: Any


class Traced(NamedTuple):
    """A program, and the values of its last inputs, which it captured."""

    program: Program
    captured: list[Any]


class RuleBuilder(Builder):
    """The builder of the program of a rule of `custom`.

    `forced` says that the rule was deferred, and is traced apart from what needs it.
    """

    custom: CustomFunction
    forced: bool


class RuleTrace:
    """How the rules of one call are traced: here and now, or later as if in `home`."""

    def __init__(self, custom: CustomFunction, home: Builder | None = None, forced: bool = False):
        self.custom, self.forced = custom, forced
        self.home = home if forced else current_builder.get()
        self.builders: list[RuleBuilder] = []

    def __call__(
        self,
        rule: Callable[..., Any],
        body: Callable[..., Sequence[Any]],
        avals: Sequence[ShapedArray],
        values: Sequence[Any] = (),
    ) -> Traced:
        """The program of `body`, which calls `rule`; `values` are known ones, or None."""
        builder = RuleBuilder(name_of(rule), self.custom.kind, self.home)
        builder.custom, builder.forced = self.custom, self.forced
        self.builders.append(builder)
        tracers = [builder.add_input(aval) for aval in avals]
        pairs = zip(builder.inputs, values, strict=False)
        builder.values.update((v, x) for v, x in pairs if x is not None)
        return Traced(*build(builder, body, tracers))


def _level(custom: CustomFunction) -> int:
    """How a call is traced: 0 with its rules, 1 with rules deferred, 2 without any.

    A rule may call its own function, and a rule of that may again, without end; so within a
    rule a function's rules wait until they are needed, and are looked at for captures only.
    """
    own = total = 0
    builder = current_builder.get()
    while builder is not None:
        if type(builder) is RuleBuilder:
            own += builder.custom is custom
            total += 1
            if builder.forced:
                break
        builder = builder.parent
    return max(own, total - _NESTED_EAGERLY)


def in_jax_trace(args: Any) -> bool:
    """Whether JAX traces what is called with `args`, so that rules must reach it."""
    return any(isinstance(x, jax.core.Tracer) for x in tree.leaves(args))


class Captures:
    """Values that the programs of one call captured, each once."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self.places: dict[Any, int] = {}

    def add(self, values: Sequence[Any]) -> None:
        for x in values:
            if self.places.setdefault(_identity(x), len(self.values)) == len(self.values):
                self.values.append(x)

    def place(self, x: Any) -> int:
        """Where `x` is among the values: itself, or an array that equals it."""
        found = self.places.get(_identity(x))
        if found is not None:
            return found
        for i, y in enumerate(self.values):
            if (
                type(x) is not Tracer
                and type(y) is not Tracer
                and aval_of(x) is aval_of(y)
                and np.array_equal(np.asarray(x), np.asarray(y))
            ):
                return i
        raise RuleError(
            "a custom rule must use the same values whenever it is traced; "
            f"got {type_name(x)}, which it did not use before",
            fix="Make the rule a function of its arguments and of values that stay.",
        )

    def extend(self, program: Program, captured: Sequence[Any]) -> Program:
        """`program`, which captured some of the values, with an input for every one."""
        own = program.inputs[: len(program.inputs) - len(captured)]
        given = zip(captured, program.inputs[len(own) :], strict=True)
        stand_in = {self.place(x): v for x, v in given}
        inputs = [
            stand_in[i] if i in stand_in else Var(aval_of(x)) for i, x in enumerate(self.values)
        ]
        # Two captured arrays may be found equal to one value.
        same = {
            v: inputs[self.place(x)]
            for x, v in zip(captured, program.inputs[len(own) :], strict=True)
        }
        equations = program.equations
        if any(v is not w for v, w in same.items()):
            equations = [e.replace(inputs=[same.get(a, a) for a in e.inputs]) for e in equations]  # type: ignore[arg-type]
        outputs = [same.get(a, a) if type(a) is Var else a for a in program.outputs]
        return Program(program.name, [*own, *inputs], equations, outputs, in_names=program.in_names)


def _identity(x: Any) -> Any:
    return x.atom if type(x) is Tracer else id(x)


class Deferred:
    """The rules of one call that are not traced yet; `programs` traces them.

    Two are equal when they stand for the same functions, called alike with the same
    values captured.
    """

    def __init__(self, custom: CustomFunction, call: CustomCall, captures: Captures):
        self.custom, self.call, self.captures = custom, call, captures
        # Values captured from traces are looked up as if the call had not returned.
        self.home = current_builder.get()
        self.made: tuple[Program, ...] | None = None
        self.key = (
            custom,
            custom.rules(),
            tuple([_by_value(x) for x in call.nondiff]),
            call.in_tree,
            tuple(call.avals),
            tuple([_identity(x) for x in captures.values]),
        )

    def programs(self) -> tuple[Program, ...]:
        """The programs of the rules."""
        if self.made is None:
            with _reopened(self.home):
                trace = RuleTrace(self.custom, self.home, forced=True)
                traced = self.custom.traced_rules(self.call, trace, ())
            self.made = self.custom.arranged(traced, self.captures)
        return self.made

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Deferred) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    @property
    def __name__(self) -> str:
        return f"rule of {name_of(self.custom.fun)}"


class Changed(NamedTuple):
    """Deferred rules, to be changed once they are traced."""

    rule: Any
    change: Callable[[tuple[Program, ...]], tuple[Program, ...]]

    def programs(self) -> tuple[Program, ...]:
        """The programs of the changed rules."""
        return self.change(self.rule.programs())


def programs_of(rule: Any) -> tuple[Program, ...]:
    """The programs of a rule, traced now if they were deferred."""
    return rule.programs() if isinstance(rule, (Deferred, Changed)) else rule


def changed(rule: Any, change: Callable[[tuple[Program, ...]], tuple[Program, ...]]) -> Any:
    """The rule with its programs changed, later if they are deferred."""
    return Changed(rule, change) if isinstance(rule, (Deferred, Changed)) else change(rule)


@contextmanager
def _reopened(home: Builder | None) -> Iterator[None]:
    """Let values of the builders around `home` be captured again, though they have ended."""
    closed = []
    builder = home
    while builder is not None:
        if not builder.open:
            closed.append(builder)
        builder = builder.parent
    for builder in closed:
        builder.open = True
    try:
        yield
    finally:
        for builder in closed:
            builder.open = False


class _ByIdentity(NamedTuple):
    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByIdentity) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def _by_value(x: Any) -> Any:
    try:
        hash(x)
    except TypeError:
        return _ByIdentity(x)
    return type(x), x


def applied(program: Program, args: Sequence[Any]) -> list[Any]:
    """The outputs of `program` inlined on `args`, whose weak types may differ from its own."""
    avals = tuple([aval_of(x) for x in args])
    if avals != tuple(program.in_avals):
        program = rewritten(Retype(avals), program)
    return apply(None, program, args)


def refuse_captured(primitive: Any, active: Sequence[bool]) -> None:
    """Raise GradientError if a captured value is differentiated, for which no rule speaks."""
    if primitive.captured and any(active[-primitive.captured :]):
        raise GradientError(
            f"{primitive.name}({primitive.primal.name}): the rule gives derivatives in the "
            "arguments alone; got a derivative in a value that the function closes over",
            fix="Pass the value as an argument, or close over stop_gradient of it.",
        )


def flattened(out: Any, call: CustomCall, what: str) -> list[Any]:
    """The leaves of an output that a rule gives, checked to be like the function's."""
    leaves, given = tree.flatten(out)
    if given != call.out_tree:
        raise RuleError(
            f"{what} must have the structure of the function's output; got another one",
            f"expected {call.out_tree}",
            f"got      {given}",
        )
    places = _places(call.out_tree)
    return [
        fitted(x, aval, what, place)
        for x, aval, place in zip(leaves, call.out_avals, places, strict=True)
    ]


def flattened_tangents(
    tangent: Any, structure: Any, avals: Sequence[ShapedArray], what: str, like: str
) -> list[Any]:
    """The leaves of a tangent or cotangent that a rule gives, at inexact leaves of `structure`.

    None, for a part or for all, stands for zero.
    """
    if tangent is None:
        leaves = [None] * structure.num_leaves
    else:
        try:
            leaves = _filled(structure, tangent)
        except ValueError:
            raise RuleError(
                f"{what} must have the structure of {like}; got another one",
                f"expected {structure}",
                f"got      {tree.structure(tangent)}",
            ) from None
    places = _places(structure)
    return [
        zeros_like(aval) if x is None or _is_float0(x) else fitted(x, aval, what, place)
        for x, aval, place in zip(leaves, avals, places, strict=True)
        if is_inexact(aval.dtype)
    ]


def _filled(structure: Any, tangent: Any) -> list[Any]:
    """The leaves of `tangent`, in which None may stand for any part of `structure`."""
    found: list[Any] = []

    def take(leaf: Any, part: Any) -> None:
        if leaf is not None and not isinstance(part, int):
            raise ValueError
        found.extend([leaf] * tree.structure(part).num_leaves)

    like = tree.unflatten(structure, range(structure.num_leaves))
    tree.map(take, tangent, like, is_leaf=lambda x: x is None)
    return found


def _is_float0(x: Any) -> bool:
    return getattr(x, "dtype", None) == jax.dtypes.float0


def _places(structure: Any) -> list[str]:
    """Where each leaf of a structure is, as messages say it."""
    paths = tree.leaves_with_path(tree.unflatten(structure, range(structure.num_leaves)))
    return [tree.path_text(path) for path, _ in paths]


_KINDS = "buifc"


def fitted(x: Any, aval: ShapedArray, what: str, place: str) -> Any:
    """`x`, which a rule gives, with exactly the type `aval`."""
    try:
        given = aval_of(x)
    except ArgumentError:
        raise RuleError(f"{what} must be made of arrays; got {type_name(x)} at {place}") from None
    if given is aval:
        return x
    # A number, given or stood for, takes the dtype of the other, if that is of no lesser kind.
    weak = given.weak_type or aval.weak_type
    fits = weak and _KINDS.index(kind(given.dtype)) <= _KINDS.index(kind(aval.dtype))
    if given.shape != aval.shape or (given.dtype != aval.dtype and not fits):
        raise RuleError(
            f"{what} must have the shapes and dtypes of what it stands for; "
            f"got {given!r} where {aval!r} is expected" + (f", at {place}" if place else "")
        )
    if type(x) in PYTHON_SCALARS and not aval.weak_type:
        return literal(x, aval.dtype)
    return ConvertElementType(aval.dtype, aval.weak_type)(x)
