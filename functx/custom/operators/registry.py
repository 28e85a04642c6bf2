"""The operators by name, and their rules: who registered what, and where."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from functx.core.caches import clear_on_rule_change, invalidate_caches, scoped_table
from functx.core.errors import (
    ArgumentError,
    FunctxError,
    KeywordOnlyArrayError,
    OperatorNameError,
    RegistrationError,
    SchemaError,
    type_name,
)
from functx.core.primitive import Primitive
from functx.core.source_info import Source, describe_source, user_source
from functx.custom.operators.schema import Schema, is_functional_schema
from functx.custom.rule_results import rule_source
from functx.transforms.argument_names import check_callable
from functx.transforms.tracing_api import raise_foreign_code_error

if TYPE_CHECKING:
    from functx.custom.operators.operator import Operator


operators: dict[str, Operator] = scoped_table()
_rules: dict[tuple[Operator, str], Registration] = scoped_table()


class RegisteredOperator:
    """What stands in the table of operators."""


@dataclass(frozen=True, eq=False)
class Registration:
    """A rule of an operator: its kind, the user's function, and the line that registered it."""

    qualname: str
    kind: str
    fun: Callable[..., Any]
    source: Source | None
    option: Any = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the user's function returns; what it raises says which rule it was."""
        return self.run(self.fun, args, kwargs)

    def run(self, fun: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """As a call, for another function that came with this one."""
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
        """The line on which the function returns, or that which registered it."""
        return rule_source(self.fun) or self.source


def register_rule(
    operator: Operator,
    kind: str,
    fun: Callable[..., Any],
    details: Any = None,
    *,
    once: bool = True,
    allow_override: bool = False,
) -> Registration:
    """Make `fun` the rule of `operator` of this kind; with `once` it must be the first.

    Raises ArgumentError for what is no function, RegistrationError for a second one.
    """
    check_callable(fun, f"{operator.qualname}: {kind}")
    operator.check_registered()
    if once and not allow_override:
        check_not_registered(operator, kind)
    made = Registration(operator.qualname, kind, fun, user_source(2), details)
    _rules[operator, kind] = made
    operator.rules_changed()
    return made


def check_not_registered(operator: Operator, kind: str) -> None:
    """Raise RegistrationError if `operator` has a rule of this kind."""
    found = _rules.get((operator, kind))
    if found is not None:
        raise RegistrationError(
            f"{operator.qualname}: its {kind} must be registered once; got another one",
            f"the first was registered at {found.location}",
            fix="Pass allow_override=True to replace it.",
        )


def get_rule(operator: Operator, kind: str) -> Registration | None:
    """The rule of `operator` of this kind; None if there is none."""
    operator.check_registered()
    return _rules.get((operator, kind))


def get_rules(operator: Operator, kind: str) -> dict[str, Registration]:
    """The rules of `operator` whose kinds are `kind` with a word behind it, by that word."""
    operator.check_registered()
    found = operator.rule_cache.get(kind)
    if found is None:
        start = f"{kind} "
        found = operator.rule_cache[kind] = {
            key.removeprefix(start): rule
            for (owner, key), rule in _rules.items()
            if owner is operator and key.startswith(start)
        }
    return found


def add_operator(operator: Operator, allow_override: bool) -> None:
    """Make `operator` the one of its name; RegistrationError if there is one already."""
    found = operators.get(operator.qualname)
    if found is not None:
        if not allow_override:
            raise RegistrationError(
                f"custom_op: an operator must be defined once; {operator.qualname!r} would be "
                "defined more than once",
                f"it was defined at {describe_source(found.source)}",
                fix="Call functx.library.destroy of its name first, or pass allow_override=True.",
            )
        destroy(operator.qualname)
    operators[operator.qualname] = operator
    _sync_primitive_registry()


def destroy(name: str | Operator) -> None:
    """Remove an operator, so that its name is free; what is left of it cannot be called.

    Raises OperatorNameError for a name that no operator has.
    """
    operator = resolve_operator(name)
    for key in [key for key in _rules if key[0] is operator]:
        del _rules[key]
    del operators[operator.qualname]
    invalidate_caches()


def get(name: str) -> Operator:
    """The operator called `name`; OperatorNameError if there is none."""
    return resolve_operator(name)


def resolve_operator(name: Any, what: str = "library") -> Operator:
    """The operator that `name` is or names, for which a rule may be registered."""
    if isinstance(name, str):
        found = operators.get(name)
        if found is None:
            _check_not_primitive(name, what)
            known = ", ".join(sorted(operators)) or "none yet"
            raise OperatorNameError(
                f"{what}: there must be an operator of that name; got {name!r}",
                fix=f"There are: {known}.",
            )
        return found
    if isinstance(name, RegisteredOperator):
        return name  # type: ignore[return-value]
    if isinstance(name, Primitive) or (isinstance(name, type) and issubclass(name, Primitive)):
        operator = getattr(name, "operator", None)
        if operator is not None:
            return operator  # type: ignore[no-any-return]
        _check_not_primitive(f"functx::{name.name}", what)
    raise ArgumentError(f"{what}: pass an operator or its name; got {type_name(name)}")


def _check_not_primitive(name: str, what: str) -> None:
    """Raise RegistrationError for a primitive, whose rules are its methods."""
    namespace, _, own = name.partition("::")
    cls = Primitive.registry.get(own)
    if namespace == "functx" and cls is not None:
        raise RegistrationError(
            f"{what}: {own} is a primitive, with pre-existing rules of its own; got a rule for it",
            f"its rules are methods of {cls.__name__} ({cls.__module__})",
            fix="Define an operator that calls it, and give that the rule.",
        )


_published_names: set[str] = set()


@clear_on_rule_change
def _sync_primitive_registry() -> None:
    """Let programs be read with the operators that there are, and types be found out anew."""
    for name in _published_names - operators.keys():
        Primitive.registry.pop(name, None)
    _published_names.intersection_update(operators)
    for name, operator in operators.items():
        _published_names.add(name)
        Primitive.registry[name] = operator.primitive
        operator.clear_caches()


def impl(
    op: Any,
    device_types: str | Iterable[str] | None = None,
    fun: Callable[..., Any] | None = None,
    **options: Any,
) -> Any:
    """Register what computes `op`, an operator or its name, as its method `impl` does."""
    return resolve_operator(op, "impl").impl(device_types, fun, **options)


def def_abstract(op: Any, fun: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Register the types of results of `op`, an operator or its name, as its method does."""
    return resolve_operator(op, "def_abstract").def_abstract(fun, **options)


def register_autograd(
    op: Any,
    backward: Callable[..., Any],
    /,
    *,
    setup_context: Callable[..., Any] | None = None,
) -> None:
    """Register the derivative of `op`, an operator or its name, as its method does."""
    resolve_operator(op, "register_autograd").register_autograd(
        backward, setup_context=setup_context
    )


def def_vmap(op: Any, fun: Callable[..., Any] | None = None) -> Any:
    """Register the batching rule of `op`, an operator or its name, as its method does."""
    found = resolve_operator(op, "def_vmap")
    return partial(def_vmap, found) if fun is None else found.def_vmap(fun)


def def_jvp(op: Any, fun: Callable[..., Any] | None = None) -> Any:
    """Register the forward rule of `op`, an operator or its name, as its method does."""
    found = resolve_operator(op, "def_jvp")
    return partial(def_jvp, found) if fun is None else found.def_jvp(fun)


def check_not_composite(operator: Operator, kind: str) -> None:
    """Raise RegistrationError for an operator that is made of others."""
    if operator.composite is not None:
        raise RegistrationError(
            f"{operator.qualname}: an operator with a decomposition must not have a {kind}, since "
            "it decomposes instead: its rules are those of what it is made of",
            f"the decomposition was given at {operator.composite.rule.location}",
            fix="Leave the rule out, or define the operator without a decomposition.",
        )


def check_derivative_rule(operator: Operator, kind: str) -> None:
    """Raise unless the derivative of the operator may be given by a rule."""
    check_not_composite(operator, kind)
    check_no_keyword_arrays(operator, kind)
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


def check_backward_pair(operator: Operator, kind: str, formula: str) -> None:
    """Raise unless one of `save_for_backward` and `backward` may be registered."""
    check_derivative_rule(operator, kind)
    found = get_rule(operator, formula)
    if found is not None:
        raise RegistrationError(
            f"{operator.qualname}: an operator must have one derivative rule; got a {kind} beside "
            f"its {formula}, registered at {found.location}"
        )


def check_no_keyword_arrays(operator: Operator, kind: str) -> None:
    """Raise KeywordOnlyArrayError if an array is given by keyword only."""
    for a in operator.schema.arrays:
        if a.keyword_only:
            raise KeywordOnlyArrayError(
                f"{operator.qualname}: a {kind} takes arrays by position; got the keyword-only "
                f"array `{a.name}`, which is not supported",
                f"schema {operator.schema}",
            )


def check_vmap_rule(operator: Operator, kind: str) -> None:
    """Raise unless the operator may have a batching rule."""
    check_not_composite(operator, kind)
    check_no_keyword_arrays(operator, kind)
    if operator.schema.mutated:
        raise RegistrationError(
            f"{operator.qualname}: an operator with a {kind} must write to no argument",
            f"schema {operator.schema}",
            fix="Without the rule it is called for each element in turn.",
        )


def check_device_argument(what: str, schema: Schema, platforms: Sequence[str]) -> None:
    """Raise SchemaError for an operator that makes arrays on a platform that nothing names."""
    if schema.arrays or any(a.type.base == "device" for a in schema.arguments):
        return
    if any(p != "default" for p in platforms):
        raise SchemaError(
            f"{what}: an operator without arrays among its arguments is required to have a `device` "
            f"parameter, to be implemented for {', '.join(platforms)}",
            f"schema {schema}",
            fix="Add `device: jax.Device`, or implement it for all platforms.",
        )


def check_differentiability(operator: Operator, given: Any) -> tuple[bool, ...] | None:
    """`output_differentiability` as a tuple; RegistrationError unless it is a bool a result."""
    if given is None:
        return None
    count = len(operator.schema.returns)
    problem = ""
    if not isinstance(given, (list, tuple)):
        problem = f"got {type_name(given)} {given!r}"
    elif any(not isinstance(on, bool) for on in given):
        problem = f"got {given!r}"
    elif len(given) != count:
        problem = f"got {len(given)} for {count} outputs: {given!r}"
    if problem:
        raise RegistrationError(
            f"{operator.qualname}: output_differentiability must be a list with a bool for each "
            f"output; {problem}"
        )
    return tuple(given)
