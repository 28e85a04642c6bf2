"""Programs as texts that any process can read: rules by number, and no values of this process."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any, NamedTuple

from functx.autograd.function_rules import FunctionCall
from functx.core.errors import (
    ExportError,
    ExportFileError,
    FunctxError,
    ParseError,
    UnregisteredNameError,
)
from functx.core.masks import inexact_mask
from functx.core.parsing import parse_program, tokenize_text
from functx.core.primitive import Primitive
from functx.core.printing import primitive_text
from functx.core.program import Equation, Program
from functx.core.program_editing import replace_program_fields
from functx.core.source_info import Source
from functx.custom.custom_function import CustomDerivativeCall
from functx.custom.custom_vjp import CustomVJP
from functx.custom.higher_order_call import HigherOrderCall
from functx.custom.operators.arguments import OperatorPrimitive
from functx.custom.rule_tracing import (
    DEFERRED_RULES,
    Activity,
    Programs,
    RuleTable,
    SavedRules,
    TransformedRules,
    use_rule_table,
)
from functx.interop.custom_rules import JaxDerivativeRule
from functx.interop.jaxpr_functions import JaxOperation
from functx.interop.translation import JaxCall
from functx.ops.autodiff import Refused
from functx.ops.callbacks import HostPrimitive

MAX_RULES = 64
"""The number of deferred rules of one program from which on they are taken to have no end."""


class ProgramTexts(NamedTuple):
    """A program as text, the texts of the programs of its rules, and the names it needs registered.

    `registered` are the names of the operators and primitives of users.
    """

    program: str
    rules: tuple[tuple[str, ...], ...]
    registered: tuple[str, ...]


def program_to_texts(program: Program) -> ProgramTexts:
    """The texts of `program`, from which `program_of_texts` makes an equal one.

    Rules of derivatives that are traced when they are needed are traced now. Raises ExportError for an
    equation that holds a Python object, such as a callback, and names it.
    """
    rules = _RuleCollector()
    detached = rules.detach(program)
    for each in (detached, *rules.all_programs()):
        for sub in each.walk():
            for eqn in sub:
                _check_has_text(program.name, eqn)
    texts = str(detached), tuple([tuple([str(p) for p in found]) for found in rules.found])
    again, again_rules = _parse_texts(*texts, RuleTable("", texts[1]))
    if again != detached or again_rules != rules.found:
        raise ExportError(
            f"{program.name}: a program must be read as it is printed to be saved; got another one"
        )
    names = {
        eqn.primitive.name
        for each in (detached, *rules.all_programs())
        for sub in each.walk()
        for eqn in sub
        if is_user_operation(eqn.primitive)
    }
    return ProgramTexts(*texts, tuple(sorted(names)))


def is_user_operation(primitive: Primitive) -> bool:
    """Whether the user defines the operation: by an operator, a higher-order one, or a primitive class."""
    kinds = OperatorPrimitive, HigherOrderCall
    return isinstance(primitive, kinds) or primitive.is_user_defined


def check_registered(texts: ProgramTexts) -> None:
    """Raises UnregisteredNameError for an operation of a user that is not registered in this process."""
    missing = [name for name in texts.registered if name not in Primitive.registry]
    if missing:
        raise UnregisteredNameError(
            "load: the operators and primitives of a saved program must be registered; got none called "
            + ", ".join(map(repr, missing)),
            fix="Import the module that defines them, then load the file.",
        )


def program_of_texts(texts: ProgramTexts) -> Program:
    """The program of its texts; ExportFileError for texts of no program."""
    table = RuleTable.of_texts(texts.rules)
    try:
        program, rules = _parse_texts(texts.program, texts.rules, table)
    except RecursionError:
        raise ExportFileError(
            "load: the text of a saved program must not be nested without end; got more brackets than "
            "can be read"
        ) from None
    except ParseError as error:
        raise ExportFileError(
            "load: the text of a saved program must be a program of this version of functx; got one of "
            "which " + error.problem.removeprefix("Program.parse: "),
            *error.details,
            fix="Register what it uses first, such as the effects of operators, or save it again.",
        ) from None
    numbers = {
        eqn.primitive.rule.number
        for each in (program, *[p for programs in rules for p in programs])
        for sub in each.walk()
        for eqn in sub
        if isinstance(eqn.primitive, CustomDerivativeCall)
        and isinstance(eqn.primitive.rule, SavedRules)
    }
    if unknown := numbers - {*range(len(rules))}:
        raise ExportFileError(
            f"load: a saved program must have the rules that it names; got no rule {min(unknown)}"
        )
    table.found.update(enumerate(rules))
    return program


def _parse_texts(
    program: str, rules: Sequence[Sequence[str]], table: RuleTable
) -> tuple[Program, list[Programs]]:
    """The program of a text, and those of its rules, which texts name by their numbers in `table`."""
    with use_rule_table(table):
        return _parse(program), [tuple([_parse(text) for text in found]) for found in rules]


def _parse(text: str) -> Program:
    for token in tokenize_text(text):
        # Such a text could name an object of this process.
        if token.kind == "opaque":
            raise ExportFileError(
                f"load: a saved program must hold no Python objects; got {token.text} in line "
                f"{token.line}"
            )
    return parse_program(text)


def _check_has_text(owner: str, eqn: Equation) -> None:
    """Raises ExportError for an equation whose primitive cannot be read in another process."""
    primitive = eqn.primitive
    if isinstance(primitive, Refused):
        raise _refused_error(owner, primitive.error, eqn.source)
    if Primitive.registry.get(primitive.name) is not type(primitive):
        function = getattr(getattr(primitive, "primal", None), "name", "the user")
        what = f"{primitive.name} of {function}, whose rules are code of Python"
        raise _not_saved(owner, what, eqn.source)
    text = primitive_text(primitive)
    if "<" not in text:
        return
    opaque = [token.text for token in tokenize_text(text) if token.kind == "opaque"]
    if opaque:
        if isinstance(primitive, HostPrimitive):
            what = f"{primitive.name}, which calls the Python function {primitive.display_name}"
        else:
            what = f"{primitive.name} with the Python object {opaque[0]}"
        raise _not_saved(owner, what, eqn.source)


def _refused_error(owner: str, error: Exception, source: Source | None = None) -> ExportError:
    return ExportError(
        f"{owner}: a program that is saved must have the derivatives of its functions with rules; got a "
        f"rule that raises {type(error).__name__}: {error}",
        fix="Save the function without the rule, whose derivatives follow from its operations, or let the "
        "rule return nan.",
        source=source,
    )


def _not_saved(owner: str, what: str, source: Source | None) -> ExportError:
    return ExportError(
        f"{owner}: a program that is saved must consist of operations that a file can hold; got {what}",
        fix="Leave it out of the function, or make a functx.custom_op of it, which is found by its name "
        "when the file is loaded.",
        source=source,
    )


class _RuleCollector:
    """Puts numbers in place of the deferred rules of programs, and collects their programs."""

    def __init__(self) -> None:
        self.numbers: dict[Hashable, int] = {}
        self.first: list[tuple[Any, Activity]] = []
        """The first rule of each number."""
        self.others: dict[int, tuple[Any, Activity]] = {}
        """Another rule with a number, for which the same program is expected."""
        self.found: list[Programs] = []
        self.detached: dict[Program, Program] = {}
        self.table = RuleTable("", ())
        self.owner = ""

    def all_programs(self) -> Iterator[Program]:
        """The programs of all rules."""
        for programs in self.found:
            yield from programs

    def detach(self, program: Program) -> Program:
        """`program` without deferred rules, whose programs are collected."""
        self.owner = program.name
        with use_rule_table(self.table):
            result = self.without_deferred(program)
            while len(self.found) < len(self.first):
                if len(self.first) > MAX_RULES:
                    raise self.endless_error(program)
                self.found.append(self.programs_of(*self.first[len(self.found)]))
            for number, other in self.others.items():
                if self.programs_of(*other) != self.found[number]:
                    raise self.endless_error(program)
        return result

    def programs_of(self, rule: Any, activity: Activity) -> Programs:
        """The programs of a rule, traced now, without deferred rules."""
        try:
            programs = rule.programs(activity)
        except FunctxError:
            raise
        except Exception as error:
            raise _refused_error(self.owner, error) from error
        return tuple([self.without_deferred(p) for p in programs])

    def endless_error(self, program: Program) -> ExportError:
        return ExportError(
            f"{program.name}: the rules of derivatives must be finitely many to be saved; got one whose "
            f"derivatives have ever new rules, {self.first[-1][0]!r}",
            fix="Make its functions of custom_jvp and custom_vjp once, outside of the rule.",
        )

    def without_deferred(self, program: Program) -> Program:
        """`program` with numbers in place of deferred rules, at any depth."""
        found = self.detached.get(program)
        if found is None:
            found = program.map_subprograms(self.without_deferred)
            equations = [self.equation_without_deferred(eqn) for eqn in found.equations]
            if any(a is not b for a, b in zip(equations, found.equations, strict=True)):
                found = replace_program_fields(found, equations=equations)
            self.detached[program] = found
        return found

    def equation_without_deferred(self, eqn: Equation) -> Equation:
        primitive = eqn.primitive
        if isinstance(primitive, JaxCall):
            operation = JaxOperation.of_function(primitive.function)
            return eqn if operation is None else eqn.replace(primitive=JaxCall(operation))
        if not isinstance(primitive, CustomDerivativeCall):
            return eqn
        rule = primitive.rule
        if isinstance(primitive, FunctionCall) and not primitive.is_mapped_by_user:
            primitive = CustomVJP(primitive.primal, rule, primitive.num_consts)
            eqn = eqn.replace(primitive=primitive)
        if not isinstance(rule, DEFERRED_RULES):
            return eqn
        number = self.numbers.setdefault(_rule_identity(rule), len(self.first))
        entry = rule, _full_activity(primitive)
        if number == len(self.first):
            self.first.append(entry)
        elif rule != self.first[number][0]:
            self.others.setdefault(number, entry)
        return eqn.replace(primitive=primitive.replace(rule=SavedRules(number)))


def _rule_identity(rule: object) -> Hashable:
    """A key that is equal for a rule of JAX and for the rules of its derivatives, each wrapped by JAX."""
    if isinstance(rule, TransformedRules):
        return _rule_identity(rule.rule), rule.transform, rule.axis
    return rule.unwrapped_key if isinstance(rule, JaxDerivativeRule) else rule


def _full_activity(primitive: CustomDerivativeCall) -> Activity:
    """The activity of the derivative of all outputs in all arguments."""
    avals = primitive.explicit_operands(primitive.primal.in_avals)
    outs = primitive.primal.out_avals
    return Activity((True,) * sum(inexact_mask(avals)), (True,) * sum(inexact_mask(outs)))
