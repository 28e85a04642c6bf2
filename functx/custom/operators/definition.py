"""How operators come to be: `custom_op`, and `define` for one that is declared first."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dis import get_instructions
from functools import partial
from types import FunctionType
from typing import Any

from functx.core.errors import (
    ArgumentError,
    KeywordOnlyArrayError,
    OperatorNameError,
    SchemaError,
    type_name,
)
from functx.custom.operators import dispatch
from functx.custom.operators.operator import Operator, check_kernel, make_operator
from functx.custom.operators.registry import check_device_argument, destroy
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
    fun: Callable[..., Any] | None = None,
    /,
    *,
    mutates_args: str | Iterable[str] = (),
    device_types: str | Iterable[str] | None = None,
    schema: str | Schema | None = None,
    decomposition: Callable[..., Any] | bool | None = None,
    kernel: str = "jax",
    tags: Iterable[str] = (),
    allow_override: bool = False,
) -> Any:
    """The function `fun` as one operation of programs, called `namespace::name`; or a decorator.

    Its annotations, or `schema`, say what it takes and gives. The function implements it on the
    platforms `device_types`, or on all: in code that JAX can trace, or with kernel="numpy" in
    code of NumPy. `mutates_args` names the arrays that it writes to, or is "unknown".

    With `decomposition=True` the function is no implementation but a body of functx's own
    operations, and all rules are those of the body. `decomposition=body` makes an operator of
    another function; as a decorator it takes one that implements it. Otherwise rules are
    registered for it, see `Operator`. A function without a body (`...`) implements nothing.

    With the tag "inplace" it returns its first argument, which it writes to; with "out" the
    keyword-only arrays that it writes to.

    Raises OperatorNameError for a name that is none, SchemaError for types that operators do not
    take, RegistrationError for a name that is taken unless `allow_override`.

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
    what = _check_function(qualname, fun)
    if schema is None:
        found = infer_schema(fun, mutates_args=mutates_args, op_name=qualname)
    else:
        found = check_given_schema(what, schema, mutates_args or None)
        check_signature(what, found, fun)
    found = _apply_tags(what, found, tags)
    if "out" not in tags:
        _check_no_keyword_arrays(what, found)
    check_device_argument(what, found, platforms if decomposition is None else ())
    body = fun if decomposition is True else decomposition or None
    if body is not None:
        check_callable(body, f"{what}: decomposition")
        check_signature(what, found, body)
    operator = make_operator(
        qualname, found, fun, decomposition=body, allow_override=allow_override
    )
    if decomposition is not True and not (found.returns and _has_empty_body(fun)):
        operator.impl(platforms, fun, kernel=kernel)
    return operator


def _decorator_of_composite(decorator: Any) -> Any:
    """The operator that a decomposition alone says, which still takes a function that implements it.

    The decorator itself where the decomposition does not say its types.
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

    def decorate(fun: Callable[..., Any]) -> Operator:
        destroy(operator)
        made: Operator = decorator(fun)
        return made

    operator.decorate = decorate
    return operator


def _has_empty_body(fun: Any) -> bool:
    """Whether a function has no body: it returns None at once."""
    if not isinstance(fun, FunctionType):
        return False
    code = [i for i in get_instructions(fun) if i.opname not in ("RESUME", "NOP")]
    return all(i.opname in _EMPTY_BODY_OPCODES and i.argval is None for i in code)


_EMPTY_BODY_OPCODES = ("LOAD_CONST", "RETURN_CONST", "RETURN_VALUE")


def define(
    qualname: str, schema: str | Schema | None = None, *, allow_override: bool = False
) -> Callable[[Callable[..., Any]], Operator]:
    """A decorator that declares an operator by a function of the same name, whose body never runs.

    With `schema`, the function has neither annotations nor defaults. What it does is registered
    with `impl`. It must be functional: write to no argument, and return something new. A
    derivative in its arguments that no rule gives is refused where it is called.

    Raises OperatorNameError for another name, SchemaError for what is not functional.

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

    def declared(fun: Callable[..., Any]) -> Operator:
        what = _check_function(qualname, fun)
        own = qualname.split("::")[1]
        if function_name(fun) != own:
            raise OperatorNameError(
                f"{what}: the operator and its function must have one name; got {own!r} and "
                f"{function_name(fun)!r}",
                fix=f"Call the function {own}, or the operator {function_name(fun)}.",
            )
        if schema is None:
            found = infer_schema(fun, op_name=qualname)
        else:
            found = check_given_schema(what, schema)
            check_signature(what, found, fun, declaration=True)
        if any(a.name == "self" for a in found.arguments):
            raise SchemaError(
                f"{what}: no argument must be called `self`; got one", fix="Rename it."
            )
        if not is_functional_schema(found):
            raise SchemaError(
                f"{what}: only functional operators can be declared, which write to no argument, "
                "return no views, and return something",
                f"schema {found}",
            )
        return make_operator(qualname, found, fun, prototype=True, allow_override=allow_override)

    return declared


def _check_function(qualname: str, fun: Any) -> str:
    """What messages call the definition; SchemaError for what is no function."""
    what = f"custom_op({qualname})"
    if not callable(fun) or isinstance(fun, type):
        raise SchemaError(f"{what}: an operator must be made of a function; got {type_name(fun)}")
    return what


def _check_no_keyword_arrays(what: str, schema: Schema) -> None:
    for a in schema.arrays:
        if a.keyword_only:
            raise KeywordOnlyArrayError(
                f"{what}: arrays must be given by position; got the keyword-only array `{a.name}`, "
                "which is not supported",
                f"schema {schema}",
                fix='Take it by position, or write to it and use tags=["out"].',
            )


def _apply_tags(what: str, schema: Schema, tags: Iterable[str]) -> Schema:
    """The schema of an operator that returns what it writes to, as its tag says."""
    tags = (tags,) if isinstance(tags, str) else tuple(tags)
    if unknown := [tag for tag in tags if tag not in TAGS]:
        raise ArgumentError(
            f"{what}: tags must be among {', '.join(map(repr, TAGS))}; got {unknown[0]!r}"
        )
    if not tags:
        return schema
    if len(set(tags)) > 1:
        raise SchemaError(f"{what}: an operator must be tagged inplace or out; got both")
    written = schema.mutated
    if tags[0] == "inplace":
        first = next((a for a in schema.positional if a.type.is_array), None)
        problem = (
            "write to its first array, and to nothing else"
            if written != ((first,) if first else ()) or first is None
            else "return one array, the one that it writes to"
            if len(schema.returns) != 1
            or not schema.returns_single
            or str(schema.returns[0].type) != "Array"
            else ""
        )
    else:
        problem = (
            "write to keyword-only arrays alone"
            if not written or not all(a.keyword_only and not a.type.is_list for a in written)
            else "write to all of its keyword-only arrays"
            if any(a.keyword_only and not a.mutated for a in schema.arrays)
            else "return an array for each one that it writes to, in order"
            if [str(r.type) for r in schema.returns] != ["Array"] * len(written)
            else ""
        )
    if problem:
        raise SchemaError(
            f"{what}: an operator tagged {tags[0]!r} must {problem}", f"schema {schema}"
        )
    returns = [r.replace(alias=a.alias) for r, a in zip(schema.returns, written, strict=True)]
    return schema.replace(returns=tuple(returns))


RESERVED_NAMESPACES = frozenset({"functx", "prim", "jax", "lax", "core"})


def check_name(qualname: object, what: str = "custom_op") -> str:
    """`qualname`; OperatorNameError unless it is a namespace and a name that users may take."""
    if not isinstance(qualname, str):
        raise OperatorNameError(
            f"{what}: the name must be a string namespace::name; got {type_name(qualname)}"
        )
    namespace, *names = qualname.split("::")
    if not names:
        raise OperatorNameError(
            f"{what}: the name must have a namespace; got {qualname!r}",
            fix=f'Name it "your_project::{qualname}".',
        )
    if len(names) > 1:
        raise OperatorNameError(
            f"{what}: the name must have one `::`, between namespace and name; got {qualname!r}"
        )
    if namespace in RESERVED_NAMESPACES:
        raise OperatorNameError(
            f"{what}: the namespace must be your own; got {namespace!r}, which is reserved",
            fix=f"Reserved are {', '.join(sorted(RESERVED_NAMESPACES))}.",
        )
    for part, word in ((namespace, "namespace"), (names[0], "name")):
        if not part.isidentifier():
            why = ", with a dot, which overloads would have" if "." in part else ""
            raise OperatorNameError(
                f"{what}: the {word} must be an identifier; got {part!r} in {qualname!r}{why}",
                fix="Use letters, digits and underscores: namespace::name.",
            )
    return qualname
