"""The registry of operators and of their rules, and the checks of new rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from functx.core.caches import clear_on_rule_change, invalidate_caches, scoped_table
from functx.core.effect_registry import remove_registrations
from functx.core.errors import (
    ArgumentError,
    FunctxError,
    KeywordOnlyArrayError,
    OperatorNameError,
    OperatorRuleError,
    RegistrationError,
    SchemaError,
    type_name,
)
from functx.core.primitive import Primitive
from functx.core.source_info import Source, describe_source, user_source
from functx.core.typing import Flags, Function, PyTree
from functx.custom.operators.schema import Schema, is_functional_schema
from functx.custom.rule_results import rule_source
from functx.transforms.argument_names import check_callable
from functx.transforms.tracing_api import raise_foreign_code_error

if TYPE_CHECKING:
    from functx.custom.operators.operator import Operator


Rule = TypeVar("Rule", bound=Function)

ABSTRACT_RULE = "abstract rule"
SAVE_RULE = "save_for_backward"
BACKWARD_RULE = "backward"
AUTOGRAD_RULE = "autograd formula"
JVP_RULE = "jvp rule"
VMAP_RULE = "vmap rule"
KERNEL_RULE = "implementation for"
DISPATCH_RULE = "dispatch rule for"

operators: dict[str, Operator] = scoped_table()
_rules: dict[tuple[Operator, str], Registration] = scoped_table()


class RegisteredOperator:
    """The base class of `Operator`, which this module cannot import."""


@dataclass(frozen=True, eq=False)
class Registration:
    """A rule of an operator: its kind, the user's function, and the line that registered it.

    `option` depends on the kind: the language of a kernel, `output_differentiability` of a
    backward rule, `setup_context` of an autograd formula, the class of a dispatch rule.
    """

    qualname: str
    kind: str
    fun: Function
    source: Source | None
    option: Any = None

    def __call__(self, *args: PyTree, **kwargs: PyTree) -> PyTree:
        """The result of the user's function; an error of it names the rule."""
        return self.run(self.fun, args, kwargs)

    def run(self, fun: Function, args: PyTree, kwargs: PyTree) -> PyTree:
        """The result of `fun`, a function of this rule; an error of it names the rule."""
        try:
            return fun(*args, **kwargs)
        except FunctxError as error:
            error.add(f"in the {self.kind} of {self.qualname}, registered at {self.location}")
            raise
        except Exception as error:
            raise_foreign_code_error(error)
            error.add_note(f"in the {self.kind} of {self.qualname}, registered at {self.location}")
            raise

    @property
    def location(self) -> str:
        """`rules.py:31 in main`: where it was registered."""
        return describe_source(self.source)

    @property
    def error_source(self) -> Source | None:
        """The line on which the function returns, or the line that registered it."""
        return rule_source(self.fun) or self.source

    def error(self, problem: str, fix: str = "") -> OperatorRuleError:
        """The error that the rule must fulfil the requirement `problem`."""
        return OperatorRuleError(
            f"{self.qualname}: its {self.kind}, registered at {self.location}, must {problem}",
            fix=fix,
            source=self.error_source,
        )


def register_rule(
    operator: Operator, kind: str, fun: Rule, option: object = None, *, allow_override: bool = False
) -> Rule:
    """Register `fun` as the rule of `operator` of this kind, and return it.

    Raises ArgumentError if `fun` is not a function, RegistrationError if the operator must not
    have such a rule, or has one already.
    """
    if kind in _RULE_CHECKS:
        _RULE_CHECKS[kind](operator, kind)
    check_callable(fun, f"{operator.qualname}: {kind}")
    operator.check_registered()
    if not allow_override:
        check_not_registered(operator, kind)
    _rules[operator, kind] = Registration(operator.qualname, kind, fun, user_source(2), option)
    operator.rules_changed()
    return fun


def check_not_registered(operator: Operator, kind: str) -> None:
    """Raise RegistrationError if `operator` has a rule of this kind."""
    rule = _rules.get((operator, kind))
    if rule is not None:
        raise RegistrationError(
            f"{operator.qualname}: its {kind} must be registered once; got another one",
            f"the first was registered at {rule.location}",
            fix="Pass allow_override=True to replace it.",
        )


def get_rule(operator: Operator, kind: str) -> Registration | None:
    """The rule of `operator` of this kind; None if there is none."""
    operator.check_registered()
    return _rules.get((operator, kind))


def get_rules(operator: Operator, kind: str) -> dict[str, Registration]:
    """The rules of `operator` of the kinds `"<kind> <word>"`, by word (a platform or a class)."""
    operator.check_registered()
    rules = operator.rule_cache.get(kind)
    if rules is None:
        prefix = f"{kind} "
        rules = operator.rule_cache[kind] = {
            key.removeprefix(prefix): rule
            for (owner, key), rule in _rules.items()
            if owner is operator and key.startswith(prefix)
        }
    return rules


def add_operator(operator: Operator, allow_override: bool) -> None:
    """Add `operator` to the registry; RegistrationError if its name is in use."""
    existing = operators.get(operator.qualname)
    if existing is not None:
        if not allow_override:
            raise RegistrationError(
                f"custom_op: an operator must be defined once; {operator.qualname!r} would be "
                "defined more than once",
                f"it was defined at {describe_source(existing.source)}",
                fix="Call functx.library.destroy of its name first, or pass allow_override=True.",
            )
        destroy(operator.qualname)
    operators[operator.qualname] = operator
    _sync_primitive_registry()


def destroy(name: str | Operator) -> None:
    """Remove an operator, so that its name is free; the removed operator cannot be called.

    Raises OperatorNameError for a name that no operator has.
    """
    operator = resolve_operator(name)
    for key in [key for key in _rules if key[0] is operator]:
        del _rules[key]
    remove_registrations(operator.primitive)
    del operators[operator.qualname]
    invalidate_caches()


def get(name: str) -> Operator:
    """The operator called `name`; OperatorNameError if there is none."""
    return resolve_operator(name)


def resolve_operator(op: Operator | Primitive | str, label: str = "library") -> Operator:
    """The operator `op`, or the one with the name or the primitive `op`."""
    if isinstance(op, str):
        operator = operators.get(op)
        if operator is None:
            _check_not_primitive(op, label)
            known = ", ".join(sorted(operators)) or "none yet"
            raise OperatorNameError(
                f"{label}: there must be an operator of that name; got {op!r}",
                fix=f"There are: {known}.",
            )
        return operator
    if isinstance(op, RegisteredOperator):
        return op
    if isinstance(op, Primitive) or (isinstance(op, type) and issubclass(op, Primitive)):
        operator = getattr(op, "operator", None)
        if operator is not None:
            return operator
        _check_not_primitive(f"functx::{op.name}", label)
    raise ArgumentError(f"{label}: pass an operator or its name; got {type_name(op)}")


def _check_not_primitive(qualname: str, label: str) -> None:
    """Raise RegistrationError for the name of a primitive, whose rules are its methods."""
    namespace, _, name = qualname.partition("::")
    cls = Primitive.registry.get(name)
    if namespace == "functx" and cls is not None:
        raise RegistrationError(
            f"{label}: {name} is a primitive, with pre-existing rules of its own; got a rule for it",
            f"its rules are methods of {cls.__name__} ({cls.__module__})",
            fix="Define an operator that calls it, and give that the rule.",
        )


_published_names: set[str] = set()


@clear_on_rule_change
def _sync_primitive_registry() -> None:
    """Registers the primitives of all operators, for the parser, and clears the operators' caches."""
    for name in _published_names - operators.keys():
        Primitive.registry.pop(name, None)
    _published_names.intersection_update(operators)
    for name, operator in operators.items():
        _published_names.add(name)
        Primitive.registry[name] = operator.primitive
        operator.clear_caches()


def impl(
    op: Operator | Primitive | str,
    device_types: str | Iterable[str] | None = None,
    fun: Function | None = None,
    **options: Any,
) -> Function:
    """Register an implementation of `op`, an operator or its name, like its method `impl`."""
    return resolve_operator(op, "impl").impl(device_types, fun, **options)


def def_abstract(
    op: Operator | Primitive | str, fun: Function | None = None, **options: bool
) -> Function:
    """Register the types of results of `op`, an operator or its name, like its method."""
    return resolve_operator(op, "def_abstract").def_abstract(fun, **options)


def register_autograd(
    op: Operator | Primitive | str, backward: Function, /, *, setup_context: Function | None = None
) -> None:
    """Register the derivative of `op`, an operator or its name, like its method."""
    resolve_operator(op, "register_autograd").register_autograd(
        backward, setup_context=setup_context
    )


def def_vmap(op: Operator | Primitive | str, fun: Function | None = None) -> Function:
    """Register the batching rule of `op`, an operator or its name, like its method."""
    operator = resolve_operator(op, "def_vmap")
    return operator.def_vmap if fun is None else operator.def_vmap(fun)


def def_jvp(op: Operator | Primitive | str, fun: Function | None = None) -> Function:
    """Register the rule for forward mode of `op`, an operator or its name, like its method."""
    operator = resolve_operator(op, "def_jvp")
    return operator.def_jvp if fun is None else operator.def_jvp(fun)


def check_not_composite(operator: Operator, kind: str) -> None:
    """Raise RegistrationError for an operator with a decomposition."""
    if operator.composite is not None:
        raise RegistrationError(
            f"{operator.qualname}: an operator with a decomposition must not have a {kind}, since "
            "it decomposes instead: its rules are those of what it is made of",
            f"the decomposition was given at {operator.composite.location}",
            fix="Leave the rule out, or define the operator without a decomposition.",
        )


def check_derivative_rule(operator: Operator, kind: str) -> None:
    """Raise an error unless the operator may have a derivative rule."""
    check_rule_arguments(operator, kind)
    schema = operator.schema
    problem = ""
    if any(r.alias and not r.alias.endswith("!") for r in schema.returns):
        problem = "return no views of its arguments"
    elif not is_functional_schema(schema) and schema.returns:
        problem = "be functional, and write to no argument"
    elif not schema.returns:
        problem = "return something; it has no returns"
    else:
        for r in schema.returns:
            if r.type.base == "Number":
                problem = f"return arrays, list[Array], ints, floats or bools; one is a {r.type}"
    if problem:
        raise RegistrationError(
            f"{operator.qualname}: an operator with a {kind} must {problem}",
            f"schema {schema}",
        )


def check_backward_pair(operator: Operator, kind: str) -> None:
    """Raise an error unless `save_for_backward` or `backward` may be registered."""
    check_derivative_rule(operator, kind)
    autograd = get_rule(operator, AUTOGRAD_RULE)
    if autograd is not None:
        raise RegistrationError(
            f"{operator.qualname}: an operator must have one derivative rule; got a {kind} beside "
            f"its {AUTOGRAD_RULE}, registered at {autograd.location}"
        )


def check_rule_arguments(operator: Operator, kind: str) -> None:
    """Raise an error for an operator with a decomposition or with keyword-only arrays."""
    check_not_composite(operator, kind)
    requirement = f"{operator.qualname}: a {kind} takes arrays by position"
    check_no_keyword_arrays(requirement, operator.schema)


def check_no_keyword_arrays(requirement: str, schema: Schema, fix: str = "") -> None:
    """Raise KeywordOnlyArrayError if an array of the schema is keyword-only."""
    for a in schema.arrays:
        if a.keyword_only:
            raise KeywordOnlyArrayError(
                f"{requirement}; got the keyword-only array `{a.name}`, which is not supported",
                f"schema {schema}",
                fix=fix,
            )


def check_vmap_rule(operator: Operator, kind: str) -> None:
    """Raise an error unless the operator may have a batching rule."""
    check_rule_arguments(operator, kind)
    if operator.schema.mutated:
        raise RegistrationError(
            f"{operator.qualname}: an operator with a {kind} must write to no argument",
            f"schema {operator.schema}",
            fix="Without the rule it is called for each element in turn.",
        )


_RULE_CHECKS: dict[str, Callable[[Operator, str], None]] = {
    ABSTRACT_RULE: check_not_composite,
    SAVE_RULE: check_backward_pair,
    BACKWARD_RULE: check_backward_pair,
    AUTOGRAD_RULE: check_derivative_rule,
    JVP_RULE: check_derivative_rule,
    VMAP_RULE: check_vmap_rule,
}


def check_device_argument(label: str, schema: Schema, platforms: Sequence[str]) -> None:
    """Raise SchemaError for implementations by platform, if no argument determines the platform."""
    if schema.arrays or any(a.type.base == "device" for a in schema.arguments):
        return
    if any(p != "default" for p in platforms):
        raise SchemaError(
            f"{label}: an operator without arrays among its arguments is required to have a `device` "
            f"parameter, to be implemented for {', '.join(platforms)}",
            f"schema {schema}",
            fix="Add `device: jax.Device`, or implement it for all platforms.",
        )


def check_differentiability(operator: Operator, flags: Flags | None) -> tuple[bool, ...] | None:
    """`output_differentiability` as a tuple; RegistrationError unless it is one bool per result."""
    if flags is None:
        return None
    count = len(operator.schema.returns)
    problem = ""
    if not isinstance(flags, (list, tuple)):
        problem = f"got {type_name(flags)} {flags!r}"
    elif any(not isinstance(on, bool) for on in flags):
        problem = f"got {flags!r}"
    elif len(flags) != count:
        problem = f"got {len(flags)} for {count} outputs: {flags!r}"
    if problem:
        raise RegistrationError(
            f"{operator.qualname}: output_differentiability must be a list with a bool for each "
            f"output; {problem}"
        )
    return tuple(flags)
