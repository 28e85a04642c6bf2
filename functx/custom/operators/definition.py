"""How operators come to be: `custom_op`, and `define` for one that is declared first."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dis import get_instructions
from functools import partial
from types import FunctionType
from typing import Any

from functx.core.errors import ArgumentError, OperatorNameError, SchemaError, type_name
from functx.core.typing import Function
from functx.custom.operators import dispatch
from functx.custom.operators.operator import Operator, check_kernel, make_operator
from functx.custom.operators.registry import check_device_argument, check_no_keyword_arrays, destroy
from functx.custom.operators.schema import Schema, is_functional_schema
from functx.custom.operators.schema_inference import (
    check_given_schema,
    check_signature,
    infer_schema,
)
from functx.transforms.argument_names import check_callable, function_name

TAGS = ("inplace", "out")


def custom_op(
    qualname: str,
    fun: Function | None = None,
    /,
    *,
    mutates_args: str | Iterable[str] = (),
    device_types: str | Iterable[str] | None = None,
    schema: str | Schema | None = None,
    decomposition: Function | bool | None = None,
    kernel: str = "jax",
    tags: Iterable[str] = (),
    allow_override: bool = False,
) -> Any:
    """An operator called `namespace::name`, made of the function `fun`; or a decorator.

    An operator is one equation of a program. The annotations of `fun`, or `schema`, give the types
    of its arguments and results. The function implements it on the platforms `device_types`, or
    on all: in code that JAX can trace, or with kernel="numpy" in NumPy code. `mutates_args` names
    the arrays that it writes to, or is "unknown".

    With `decomposition=True` the function is not an implementation but a body of functx
    operations, from which all rules follow. `decomposition=body` gives the body as another
    function; as a decorator it then takes an implementation. Otherwise rules are registered, see
    `Operator`. A function without a body (`...`) implements nothing.

    With the tag "inplace" the operator returns its first argument, to which it writes; with "out"
    the keyword-only arrays to which it writes.

    Raises OperatorNameError for a name that is not valid, SchemaError for unsupported types,
    RegistrationError for a name that is in use unless `allow_override`.

    >>> import functx, jax
    >>> @functx.custom_op("doc::scaled", mutates_args=())
    ... def scaled(x: functx.Array, factor: float = 2.0) -> functx.Array:
    ...     return x * factor
    >>> @scaled.def_abstract
    ... def scaled_type(x, factor):
    ...     return x
    >>> float(functx.jit(scaled)(3.0))
    6.0
    >>> functx.library.destroy("doc::scaled")
    """
    check_name(qualname)
    platforms = dispatch.check_platforms(f"custom_op({qualname})", device_types)
    check_kernel(qualname, kernel)
    if fun is None:
        options = dict(locals())
        for name in ("qualname", "fun", "platforms"):
            del options[name]
        decorator = partial(custom_op, qualname, **options)
        return _decorator_of_composite(decorator) if callable(decomposition) else decorator
    label = _check_function(qualname, fun)
    if schema is None:
        schema = infer_schema(fun, mutates_args=mutates_args, op_name=qualname)
    else:
        schema = check_given_schema(label, schema, mutates_args or None)
        check_signature(label, schema, fun)
    schema = _apply_tags(label, schema, tags)
    if "out" not in tags:
        check_no_keyword_arrays(
            f"{label}: arrays must be given by position",
            schema,
            fix='Take it by position, or write to it and use tags=["out"].',
        )
    check_device_argument(label, schema, platforms if decomposition is None else ())
    body = fun if decomposition is True else decomposition or None
    if body is not None:
        check_callable(body, f"{label}: decomposition")
        check_signature(label, schema, body)
    operator = make_operator(
        qualname, schema, fun, decomposition=body, allow_override=allow_override
    )
    if decomposition is not True and not (schema.returns and _has_empty_body(fun)):
        operator.impl(platforms, fun, kernel=kernel)
    return operator


def _decorator_of_composite(decorator: partial[Operator]) -> Any:
    """The operator of a decomposition, which as a decorator still takes an implementation.

    `decorator` itself if the decomposition has no annotations.
    """
    options = dict(decorator.keywords)
    body = options.pop("decomposition")
    (qualname,) = decorator.args
    if options["schema"] is None:
        try:
            infer_schema(body)
        except SchemaError:
            return decorator
    operator: Operator = custom_op(qualname, body, decomposition=True, **options)

    def decorate(fun: Function) -> Operator:
        destroy(operator)
        made: Operator = decorator(fun)
        return made

    operator.decorate = decorate
    return operator


def _has_empty_body(fun: Function) -> bool:
    """Whether a function has no body (`...`): it only returns None."""
    if not isinstance(fun, FunctionType):
        return False
    code = [i for i in get_instructions(fun) if i.opname not in ("RESUME", "NOP")]
    return all(i.opname in _EMPTY_BODY_OPCODES and i.argval is None for i in code)


_EMPTY_BODY_OPCODES = ("LOAD_CONST", "RETURN_CONST", "RETURN_VALUE")


def define(
    qualname: str, schema: str | Schema | None = None, *, allow_override: bool = False
) -> Callable[[Function], Operator]:
    """A decorator that declares an operator by a function of the same name, whose body never runs.

    With `schema`, the function has neither annotations nor defaults. Implementations are
    registered with `impl`. The operator must be functional: it writes to no argument and returns
    a new value. A call with a differentiated argument is an error without a derivative rule.

    Raises OperatorNameError for another name, SchemaError for an operator that is not functional.

    >>> import functx
    >>> @functx.library.define("doc::halved", "(Array x) -> Array")
    ... def halved(x): ...
    >>> @halved.impl(["cpu", "gpu"])
    ... def halved_anywhere(x):
    ...     return x / 2
    >>> float(halved(3.0))
    1.5
    >>> functx.library.destroy("doc::halved")
    """
    check_name(qualname, "define")

    def declared(fun: Function) -> Operator:
        label = _check_function(qualname, fun)
        name = qualname.split("::")[1]
        if function_name(fun) != name:
            raise OperatorNameError(
                f"{label}: the operator and its function must have one name; got {name!r} and "
                f"{function_name(fun)!r}",
                fix=f"Call the function {name}, or the operator {function_name(fun)}.",
            )
        if schema is None:
            checked = infer_schema(fun, op_name=qualname)
        else:
            checked = check_given_schema(label, schema)
            check_signature(label, checked, fun, declaration=True)
        if any(a.name == "self" for a in checked.arguments):
            raise SchemaError(
                f"{label}: no argument must be called `self`; got one", fix="Rename it."
            )
        if not is_functional_schema(checked):
            raise SchemaError(
                f"{label}: only functional operators can be declared, which write to no argument, "
                "return no views, and return something",
                f"schema {checked}",
            )
        return make_operator(qualname, checked, fun, prototype=True, allow_override=allow_override)

    return declared


def _check_function(qualname: str, fun: Function) -> str:
    """The label of the definition in messages; SchemaError unless `fun` is a function."""
    label = f"custom_op({qualname})"
    if not callable(fun) or isinstance(fun, type):
        raise SchemaError(f"{label}: an operator must be made of a function; got {type_name(fun)}")
    return label


def _apply_tags(label: str, schema: Schema, tags: Iterable[str]) -> Schema:
    """The schema with the aliases of the results that are mutated arguments, by the tag."""
    tags = (tags,) if isinstance(tags, str) else tuple(tags)
    if unknown := [tag for tag in tags if tag not in TAGS]:
        raise ArgumentError(
            f"{label}: tags must be among {', '.join(map(repr, TAGS))}; got {unknown[0]!r}"
        )
    if not tags:
        return schema
    if len(set(tags)) > 1:
        raise SchemaError(f"{label}: an operator must be tagged inplace or out; got both")
    mutated = schema.mutated
    if tags[0] == "inplace":
        first = next((a for a in schema.positional if a.type.is_array), None)
        problem = (
            "write to its first array, and to nothing else"
            if first is None or mutated != (first,)
            else "return one array, the one that it writes to"
            if len(schema.returns) != 1
            or not schema.returns_single
            or str(schema.returns[0].type) != "Array"
            else ""
        )
    else:
        problem = (
            "write to keyword-only arrays alone"
            if not mutated or not all(a.keyword_only and not a.type.is_list for a in mutated)
            else "write to all of its keyword-only arrays"
            if any(a.keyword_only and not a.mutated for a in schema.arrays)
            else "return an array for each one that it writes to, in order"
            if [str(r.type) for r in schema.returns] != ["Array"] * len(mutated)
            else ""
        )
    if problem:
        raise SchemaError(
            f"{label}: an operator tagged {tags[0]!r} must {problem}", f"schema {schema}"
        )
    returns = [r.replace(alias=a.alias) for r, a in zip(schema.returns, mutated, strict=True)]
    return schema.replace(returns=tuple(returns))


RESERVED_NAMESPACES = frozenset({"functx", "prim", "jax", "lax", "core"})


def check_name(qualname: object, label: str = "custom_op") -> str:
    """`qualname`; OperatorNameError unless it is `namespace::name` with a namespace that is not reserved."""
    if not isinstance(qualname, str):
        raise OperatorNameError(
            f"{label}: the name must be a string namespace::name; got {type_name(qualname)}"
        )
    namespace, *names = qualname.split("::")
    if not names:
        raise OperatorNameError(
            f"{label}: the name must have a namespace; got {qualname!r}",
            fix=f'Name it "your_project::{qualname}".',
        )
    if len(names) > 1:
        raise OperatorNameError(
            f"{label}: the name must have one `::`, between namespace and name; got {qualname!r}"
        )
    if namespace in RESERVED_NAMESPACES:
        raise OperatorNameError(
            f"{label}: the namespace must be your own; got {namespace!r}, which is reserved",
            fix=f"Reserved are {', '.join(sorted(RESERVED_NAMESPACES))}.",
        )
    for part, kind in ((namespace, "namespace"), (names[0], "name")):
        if not part.isidentifier():
            reason = ", with a dot, which overloads would have" if "." in part else ""
            raise OperatorNameError(
                f"{label}: the {kind} must be an identifier; got {part!r} in {qualname!r}{reason}",
                fix="Use letters, digits and underscores: namespace::name.",
            )
    return qualname
