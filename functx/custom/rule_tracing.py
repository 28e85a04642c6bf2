"""How rules become programs: traced with the call they belong to, or later when they are needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from functx.core import tree
from functx.core.config import contextual_key
from functx.core.errors import RuleError, type_name
from functx.core.functionalization import Functionalize, build_functionalized
from functx.core.named_axes import Axis, batched_axis, bind_named_axes, bound_axes, set_batched_axis
from functx.core.program import Program, Var
from functx.core.rewriting import cached_rewrite, user_rule_runs
from functx.core.tracing import Builder, Tracer, aval_of, current_builder, run_and_finish
from functx.core.types import ShapedArray
from functx.transforms.tracing_api import function_name

if TYPE_CHECKING:
    from functx.custom.custom_function import CallInfo, CustomFunction


_MAX_EAGER_DEPTH = 3
"""How deep rules are traced within rules; deeper ones wait until they are needed."""


class TracedRule(NamedTuple):
    """A program, and the values of its last inputs, which it captured."""

    program: Program
    captured: list[Any]


class Activity(NamedTuple):
    """Through which leaves a derivative flows; a rule with symbolic zeros is told.

    `varying` marks the inexact arguments that are perturbed; `given` the inexact outputs
    that have a cotangent.
    """

    varying: tuple[bool, ...]
    has_cotangent: tuple[bool, ...]


class RuleBuilder(Builder):
    """The builder of the program of a rule of `custom`.

    `forced` says that the rule was deferred, and is traced apart from what needs it.
    """

    custom_function: CustomFunction
    is_deferred: bool


class RuleTrace:
    """How the rules of one call are traced: here and now, or later as if in `home`."""

    def __init__(self, custom: CustomFunction, home: Builder | None = None, forced: bool = False):
        self.custom_function, self.is_deferred = custom, forced
        self.definition_builder = home if forced else current_builder.get()
        self.builders: list[RuleBuilder] = []

    def __call__(
        self,
        rule: Callable[..., Any],
        body: Callable[..., Sequence[Any]],
        avals: Sequence[ShapedArray],
        values: Sequence[Any] = (),
    ) -> TracedRule:
        """The program of `body`, which calls `rule`; `values` are known ones, or None."""
        builder = RuleBuilder(
            function_name(rule), self.custom_function.kind, self.definition_builder
        )
        builder.custom_function, builder.is_deferred = self.custom_function, self.is_deferred
        builder.is_linear = self.custom_function.kind == "custom_jvp"
        self.builders.append(builder)
        tracers = [builder.add_input(aval) for aval in avals]
        pairs = zip(builder.inputs, values, strict=False)
        builder.values.update((v, x) for v, x in pairs if x is not None)
        return TracedRule(*build_functionalized(builder, body, tracers))


def rule_tracing_level(custom: CustomFunction) -> int:
    """How a call is traced: 0 with its rules, 1 with rules deferred, 2 without any.

    A rule may call its own function, and a rule of that may again, without end; so within a
    rule a function's rules wait until they are needed, and are looked at for captures only.
    """
    own = total = 0
    builder = current_builder.get()
    while builder is not None:
        if type(builder) is RuleBuilder:
            own += builder.custom_function is custom
            total += 1
            if builder.is_deferred:
                break
        builder = builder.parent
    return max(own, total - _MAX_EAGER_DEPTH)


class LazyRules:
    """The rules of one call that are not traced yet; `programs` traces them.

    Two are equal when they stand for the same functions, called alike with the same
    values captured.
    """

    def __init__(self, custom: CustomFunction, call: CallInfo, captures: Captures):
        self.custom_function, self.call, self.captures = custom, call, captures
        # Values captured from traces are looked up as if the call had not returned.
        self.definition_builder = current_builder.get()
        self.axes = bound_axes()
        self.traced_programs: dict[Any, tuple[Program, ...]] = {}
        self.key = (
            custom,
            custom.rule_functions(),
            tuple([_value_key(x) for x in call.nondiff]),
            call.in_tree,
            tuple(call.avals),
            tuple([identity_key(x) for x in captures.values]),
            self.axes,
        )

    def programs(self, flow: Activity) -> tuple[Program, ...]:
        """The programs of the rules, for the derivative that `flow` describes."""
        told = flow if self.custom_function.symbolic_zeros else None
        key = contextual_key(told)
        if key not in self.traced_programs:
            with reopened_builders(self.definition_builder), bind_named_axes(self.axes):
                trace = RuleTrace(self.custom_function, self.definition_builder, forced=True)
                traced = self.custom_function.trace_rules(self.call, trace, (), told)
            self.traced_programs[key] = self.custom_function.assemble_rules(traced, self.captures)
        return self.traced_programs[key]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LazyRules) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return f"rule of {function_name(self.custom_function.fun)}"


class TransformedRules(NamedTuple):
    """Deferred rules, to be changed once they are traced."""

    rule: Any
    transform: Callable[[tuple[Program, ...]], tuple[Program, ...]]
    axis: Axis | None = None

    def programs(self, flow: Activity) -> tuple[Program, ...]:
        """The programs of the changed rules."""
        programs = self.rule.programs(flow)
        with set_batched_axis(self.axis):
            return self.transform(programs)

    def __repr__(self) -> str:
        return repr(self.rule)


def rule_programs(rule: Any, flow: Activity) -> tuple[Program, ...]:
    """The programs of a rule, traced now if they were deferred."""
    return rule.programs(flow) if isinstance(rule, (LazyRules, TransformedRules)) else rule


def transform_rules(rule: Any, change: Callable[[tuple[Program, ...]], tuple[Program, ...]]) -> Any:
    """The rule with its programs changed, later if they are deferred."""
    if isinstance(rule, (LazyRules, TransformedRules)):
        return TransformedRules(rule, change, batched_axis())
    return change(rule)


@contextmanager
def reopened_builders(home: Builder | None) -> Iterator[None]:
    """Let values of the builders around `home` be captured again, though they have ended."""
    closed = []
    builder = home
    while builder is not None:
        if not builder.is_open:
            closed.append(builder)
        builder = builder.parent
    for builder in closed:
        builder.is_open = True
    try:
        yield
    finally:
        for builder in closed:
            builder.is_open = False


class _IdentityKey(NamedTuple):
    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _IdentityKey) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def _value_key(x: Any) -> Any:
    try:
        hash(x)
    except TypeError:
        return _IdentityKey(x)
    return type(x), x


class Captures:
    """Values that the programs of one call captured, each once."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self.indices: dict[Any, int] = {}

    def add(self, values: Sequence[Any]) -> None:
        for x in values:
            if self.indices.setdefault(identity_key(x), len(self.values)) == len(self.values):
                self.values.append(x)

    def index_or_none(self, x: Any) -> int | None:
        """Where `x` is among the values: itself, or an array that equals it."""
        found = self.indices.get(identity_key(x))
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
        return None

    def index(self, x: Any) -> int:
        """As `find`; RuleError for a value that is not among them."""
        found = self.index_or_none(x)
        if found is None:
            raise RuleError(
                "a custom rule must use the same values whenever it is traced; "
                f"got {type_name(x)}, which it did not use before",
                fix="Make the rule a function of its arguments and of values that stay.",
            )
        return found

    def with_capture_inputs(self, program: Program, captured: Sequence[Any]) -> Program:
        """`program`, which captured some of the values, with an input for every one."""
        own = program.inputs[: len(program.inputs) - len(captured)]
        given = zip(captured, program.inputs[len(own) :], strict=True)
        masked_operand = {self.index(x): v for x, v in given}
        inputs = [
            masked_operand[i] if i in masked_operand else Var(aval_of(x))
            for i, x in enumerate(self.values)
        ]
        # Two captured arrays may be found equal to one value.
        same = {
            v: inputs[self.index(x)]
            for x, v in zip(captured, program.inputs[len(own) :], strict=True)
        }
        equations = program.equations
        if any(v is not w for v, w in same.items()):
            equations = [e.replace(inputs=[same.get(a, a) for a in e.inputs]) for e in equations]  # type: ignore[arg-type]
        outputs = [same.get(a, a) if type(a) is Var else a for a in program.outputs]
        return Program(program.name, [*own, *inputs], equations, outputs, in_names=program.in_names)


def identity_key(x: Any) -> Any:
    """What two values share exactly when they are one."""
    return x.atom if type(x) is Tracer else id(x)


class RuleOutputs(NamedTuple):
    """The arrays that a rule gave, and the new values of the operands that it wrote to."""

    outs: list[Any]
    written: dict[int, Any]


def inline_rule(
    name: str, body: Callable[..., Sequence[Any]], operands: Sequence[Any]
) -> RuleOutputs:
    """The arrays that `body(*operands)` returns, in the trace that is on.

    `body` may write to its operands and to arrays of its own, as NumPy code does.
    """
    outer = current_builder.get()
    assert outer is not None
    user_rule_runs.record()
    builder = Builder(name, "custom_op", outer)
    program, captured = run_and_finish(
        builder, body, [builder.add_input(aval_of(x)) for x in operands]
    )
    count = len(program.outputs)
    written: tuple[int, ...] = ()
    if builder.writes:
        program, written, _ = cached_rewrite(Functionalize(), program)
    outs = outer.inline(program, [*operands, *captured])
    return RuleOutputs(outs[:count], dict(zip(written, outs[count:], strict=True)))


class Residuals(NamedTuple):
    """A pytree of which the arrays are kept apart from the rest, which is as it was given."""

    structure: Any
    arrays: Sequence[Any]

    @staticmethod
    def flatten(value: Any) -> Residuals:
        """The parts of `value`."""
        leaves, structure = tree.flatten_with_key_data(value)
        static = {i: x for i, x in enumerate(leaves) if not is_array(x)}
        return Residuals(
            tree.treedef_with_static(structure, static), [x for x in leaves if is_array(x)]
        )

    def unflatten(self, arrays: Sequence[Any]) -> Any:
        """The pytree with `arrays` in the place of its own."""
        return tree.unflatten(self.structure, arrays)


def is_array(x: Any) -> bool:
    """Whether `x` is an array, and no number of Python's."""
    return isinstance(x, (Tracer, np.ndarray, np.generic, jax.Array))
