"""The tracing of rules to programs, with the call that they belong to or when they are needed.

Rules may capture values around them; `Captures` makes these operands of the call.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple, TypeAlias
from weakref import WeakValueDictionary

import jax
import numpy as np

from functx.core import tree
from functx.core.builder import Builder
from functx.core.caches import IdentityKey
from functx.core.config import contextual_key
from functx.core.context import ContextValue
from functx.core.errors import ArgumentWriteError, RuleError, type_name
from functx.core.functionalization import Functionalize, build_functionalized, input_layouts
from functx.core.named_axes import Axis, batched_axis, bind_named_axes, bound_axes, set_batched_axis
from functx.core.program import Atom, Program, Var
from functx.core.program_editing import substitute_atoms
from functx.core.replaced_state import replaced_state, state_of_call
from functx.core.rewriting import Record, cached_rewrite, user_rule_runs
from functx.core.tracer import Tracer, aval_of, current_builder
from functx.core.tracing import run_and_finish
from functx.core.tree import TreeDef
from functx.core.typing import Avals, Function, PyTree, Value, Values
from functx.transforms.aliasing import capture_key
from functx.transforms.argument_names import function_name

if TYPE_CHECKING:
    from functx.custom.custom_function import CallInfo, CustomFunction


_MAX_EAGER_DEPTH = 3
"""The depth of rules within rules from which on tracing is deferred."""


class TracedRule(NamedTuple):
    """The program of a rule, and the captured values that its last inputs stand for."""

    program: Program
    captured: list[Value]


class Activity(NamedTuple):
    """The activity of a derivative, for which a rule with symbolic zeros is traced.

    `varying` marks the inexact arguments that are perturbed, `has_cotangent` the inexact outputs
    that have a cotangent.
    """

    varying: tuple[bool, ...]
    has_cotangent: tuple[bool, ...]


class RuleBuilder(Builder):
    """The builder of the program of a rule of `custom_function`.

    `is_deferred` says that the rule is traced after its call, in the scope of the call.
    """

    custom_function: CustomFunction
    is_deferred: bool


class RuleTrace:
    """The tracing of the rules of one call: at once, or later in the scope of `definition_builder`."""

    def __init__(
        self,
        custom: CustomFunction,
        definition_builder: Builder | None = None,
        is_deferred: bool = False,
    ):
        self.custom_function, self.is_deferred = custom, is_deferred
        self.definition_builder = definition_builder if is_deferred else current_builder.get()
        self.builders: list[RuleBuilder] = []

    def __call__(
        self,
        rule: Function,
        body: Callable[..., Values],
        avals: Avals,
        values: Sequence[Value | None] = (),
        references: Collection[int] = (),
    ) -> TracedRule:
        """The program of `body`, which calls `rule`; `values` are those known of its inputs, or None.

        `references`, which `body` may fill, are the positions of the inputs that the rule has in a `Ref`.
        Raises ArgumentWriteError if it writes to one of them.
        """
        builder = RuleBuilder(
            function_name(rule), self.custom_function.kind, self.definition_builder
        )
        builder.custom_function, builder.is_deferred = self.custom_function, self.is_deferred
        builder.is_linear = self.custom_function.kind == "custom_jvp"
        self.builders.append(builder)
        tracers = [builder.add_input(aval) for aval in avals]
        pairs = zip(builder.inputs, values, strict=False)
        builder.values.update((v, x) for v, x in pairs if x is not None)
        program, captured, written = build_functionalized(builder, body, tracers)
        if any([i in references for i in written]):
            raise ArgumentWriteError(
                f"{self.custom_function!r}: its rule `{function_name(rule)}` must not write to a `Ref` "
                "that it gets; got one that does",
                fix="Return what it would write, as a result of the function or as a cotangent.",
            )
        return TracedRule(program, captured)


class RuleTracing(Enum):
    """When the rules of a call are traced: with the call, when they are needed, or never."""

    EAGER = 0
    DEFERRED = 1
    NEVER = 2


def rule_tracing(custom: CustomFunction) -> RuleTracing:
    """When the rules of a call of `custom` in the current trace are traced.

    A rule may call its own function, whose rule calls it again, without end. So the rules of a
    function that is called in its own rule are deferred; they are traced only to find captures.
    """
    recursive = total = 0
    builder = current_builder.get()
    while builder is not None:
        if type(builder) is RuleBuilder:
            recursive += custom.original.is_function_of(builder.custom_function.original)
            total += 1
            if builder.is_deferred:
                break
        builder = builder.parent
    return RuleTracing(min(max(recursive, total - _MAX_EAGER_DEPTH, 0), 2))


Programs: TypeAlias = tuple[Program, ...]
"""The programs of the rules of a function."""


class LazyRules:
    """The rules of one call, which `programs` traces when they are needed.

    Two are equal if they have the same functions, types of arguments and captured values.
    """

    def __init__(self, custom: CustomFunction, call: CallInfo, captures: Captures):
        self.custom_function, self.call, self.captures = custom, call, captures
        # Tracers that the rules capture belong to this builder and those around it.
        self.definition_builder = current_builder.get()
        self.axes, self.state = bound_axes(), replaced_state()
        self.traced_programs: dict[Hashable, Programs] = {}
        self.key = (
            custom,
            custom.rule_functions(),
            tuple([_value_key(x) for x in call.nondiff]),
            call.in_tree,
            tuple(call.avals),
            tuple([capture_key(x) for x in captures.values]),
            self.axes,
        )

    def programs(self, activity: Activity) -> Programs:
        """The programs of the rules, for the derivative that `activity` describes."""
        specialized = activity if self.custom_function.symbolic_zeros else None
        key = contextual_key(specialized)
        if key not in self.traced_programs:
            with (
                reopened_builders(self.definition_builder),
                bind_named_axes(self.axes),
                state_of_call(self.state),
            ):
                trace = RuleTrace(self.custom_function, self.definition_builder, is_deferred=True)
                traced = self.custom_function.trace_rules(self.call, trace, (), specialized)
            self.traced_programs[key] = self.custom_function.assemble_rules(traced, self.captures)
        return self.traced_programs[key]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LazyRules) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return f"rule of {function_name(self.custom_function.fun)}"


class TransformedRules(NamedTuple):
    """Deferred rules whose programs `transform` rewrites once they are traced."""

    rule: LazyRules | TransformedRules | SavedRules
    transform: Callable[[Programs], Programs]
    axis: Axis | None = None

    def programs(self, activity: Activity) -> Programs:
        """The rewritten programs."""
        programs = self.rule.programs(activity)
        with set_batched_axis(self.axis):
            return self.transform(programs)

    def __repr__(self) -> str:
        return repr(self.rule)


class RuleTable:
    """The programs of the rules of a saved program, by number, and their texts.

    The name follows from the texts. Texts of programs in this process state it; those in a file do
    not, and belong to the table of the file.
    """

    def __init__(self, name: str, texts: tuple[tuple[str, ...], ...]):
        self.name, self.texts = name, texts
        self.found: dict[int, Programs] = {}

    @staticmethod
    def of_texts(texts: tuple[tuple[str, ...], ...]) -> RuleTable:
        """The table of rules with these texts, the one that is loaded if there is one."""
        name = sha256("\0".join([part for rule in texts for part in (*rule, "")]).encode())
        table = RuleTable(name.hexdigest()[:32], texts)
        return _tables.setdefault(table.name, table)

    def programs(self, number: int) -> Programs:
        """The programs of rule `number`, read at the first use; RuleError if there is no such rule."""
        if number not in self.found:
            from functx.core.parsing import parse_program

            if not 0 <= number < len(self.texts):
                raise RuleError(
                    "a saved program must have the rules that it names; got the number "
                    f"{number} of {len(self.texts)}"
                )
            with use_rule_table(self):
                self.found[number] = tuple([parse_program(text) for text in self.texts[number]])
        return self.found[number]

    def __reduce__(self) -> tuple[object, ...]:
        return RuleTable.of_texts, (self.texts,)


_tables: WeakValueDictionary[str, RuleTable] = WeakValueDictionary()
_current_table: ContextVar[RuleTable | None] = ContextVar("rule_table", default=None)


def use_rule_table(table: RuleTable) -> ContextValue[RuleTable | None]:
    """Makes `table` that of saved rules whose texts name none, as in the texts of its file."""
    return ContextValue(_current_table, table)


class SavedRules(Record):
    """The rules with a number in the table of a saved program, for derivatives of every activity.

    A rule whose program calls its own function, and so itself, has a finite text by its number.

    Raises RuleError for the name of a table that is not loaded.
    """

    number: int
    table: str = ""

    def __init__(self, number: int, table: str = ""):
        current = _current_table.get()
        found = _tables.get(table) if table else current
        if found is None or (table and current is not None):
            raise RuleError(
                "saved rules must be read with the file that holds their programs, which is loaded; got "
                f"the rules {number} of {table or 'no file'}",
                fix="Load the file with functx.export.load, and keep what it returns.",
            )
        super().__init__(number, found.name)
        self.__dict__["rules"] = found

    def programs(self, _activity: Activity) -> Programs:
        """The programs of the rules."""
        rules: RuleTable = self.__dict__["rules"]
        return rules.programs(self.number)

    def __reduce__(self) -> tuple[object, ...]:
        return _restore_saved_rules, (self.number, self.__dict__["rules"])


def _restore_saved_rules(number: int, table: RuleTable) -> SavedRules:
    """The rules of a pickle."""
    with use_rule_table(table):
        return SavedRules(number)


DEFERRED_RULES = (LazyRules, TransformedRules, SavedRules)

Rules: TypeAlias = Programs | LazyRules | TransformedRules | SavedRules
"""The rules of a call: their programs, or an object that gives them when they are needed."""


def rule_programs(rule: Rules, activity: Activity) -> Programs:
    """The programs of a rule, which are traced now if they were deferred."""
    return rule.programs(activity) if isinstance(rule, DEFERRED_RULES) else rule


def transform_rules(
    rule: Rules, transform: Callable[[Programs], Programs]
) -> Programs | TransformedRules:
    """The rule with its programs rewritten, later if they are deferred."""
    if isinstance(rule, DEFERRED_RULES):
        return TransformedRules(rule, transform, batched_axis())
    return transform(rule)


@contextmanager
def reopened_builders(builder: Builder | None) -> Iterator[None]:
    """Opens `builder` and those around it again, so that their values can be captured."""
    closed = []
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


def _value_key(x: object) -> Hashable:
    try:
        hash(x)
    except TypeError:
        return IdentityKey(x)
    return type(x), x


class Captures:
    """The values that the programs of one call captured, each once."""

    def __init__(self) -> None:
        self.values: list[Value] = []
        self.indices: dict[Hashable, int] = {}

    def add(self, values: Values) -> None:
        """Add those of `values` that are new."""
        for x in values:
            if self.indices.setdefault(capture_key(x), len(self.values)) == len(self.values):
                self.values.append(x)

    def index_or_none(self, x: Value) -> int | None:
        """The index of `x`, or of an array that equals it; None if there is neither."""
        index = self.indices.get(capture_key(x))
        if index is not None:
            return index
        for i, y in enumerate(self.values):
            if (
                type(x) is not Tracer
                and type(y) is not Tracer
                and aval_of(x) is aval_of(y)
                and np.array_equal(np.asarray(x), np.asarray(y))
            ):
                return i
        return None

    def index(self, x: Value) -> int:
        """The index of `x`, or of an array that equals it; RuleError if there is neither."""
        index = self.index_or_none(x)
        if index is None:
            raise RuleError(
                "a custom rule must use the same values whenever it is traced; "
                f"got {type_name(x)}, which it did not use before",
                fix="Make the rule a function of its arguments and of values that stay.",
            )
        return index

    def with_capture_inputs(self, program: Program, captured: Values) -> Program:
        """`program`, whose last inputs stand for `captured`, with an input for each value instead."""
        count = len(program.inputs) - len(captured)
        explicit, capture_inputs = program.inputs[:count], program.inputs[count:]
        indices = [self.index(x) for x in captured]
        by_index = dict(zip(indices, capture_inputs, strict=True))
        inputs = [by_index.get(i) or Var(aval_of(x)) for i, x in enumerate(self.values)]
        # Two captured arrays may be equal to one value.
        aliases: dict[Atom, Atom] = {
            v: inputs[i] for v, i in zip(capture_inputs, indices, strict=True)
        }
        if any(v is not w for v, w in aliases.items()):
            program = substitute_atoms(program, aliases)
        inputs = [*explicit, *inputs]
        return Program(
            program.name, inputs, program.equations, program.outputs, in_names=program.in_names
        )


def references_among(values: Values, arguments: PyTree) -> list[int]:
    """The positions in `values` of the arrays that a `Ref` in the pytree `arguments` holds."""
    from functx.ref import Ref

    leaves = tree.leaves(arguments, lambda x: isinstance(x, Ref))
    held = [x.elements for x in leaves if isinstance(x, Ref)]
    return [i for i, x in enumerate(values) if any([x is y for y in held])]


class RuleOutputs(NamedTuple):
    """The arrays that a rule returned, and the new values of the operands that it wrote to."""

    outs: Values
    written: dict[int, Value]


def inline_rule(name: str, body: Callable[..., Values], operands: Values) -> RuleOutputs:
    """The arrays that `body(*operands)` returns, computed in the current trace.

    `body` may write to its operands and to arrays that it makes.
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
        layouts = input_layouts(builder, program)
        program, written, _ = cached_rewrite(Functionalize(layouts), program)
    outs = outer.inline(program, [*operands, *captured])
    return RuleOutputs(outs[:count], dict(zip(written, outs[count:], strict=True)))


class Residuals(NamedTuple):
    """A pytree split into its arrays and a structure that holds all other leaves."""

    structure: TreeDef
    arrays: Values

    @staticmethod
    def flatten(value: PyTree) -> Residuals:
        """The residuals of the pytree `value`."""
        leaves, structure = tree.flatten_with_key_data(value)
        static = {i: x for i, x in enumerate(leaves) if not is_array(x)}
        return Residuals(
            tree.treedef_with_static(structure, static), [x for x in leaves if is_array(x)]
        )

    def unflatten(self, arrays: Values) -> PyTree:
        """The pytree with `arrays` in place of its own."""
        return tree.unflatten(self.structure, arrays)


def is_array(x: Value) -> bool:
    """Whether `x` is an array or a NumPy scalar, not a Python number."""
    return isinstance(x, (Tracer, np.ndarray, np.generic, jax.Array))
