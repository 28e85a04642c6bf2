"""Names of operators: `namespace::name`."""

from __future__ import annotations

from functx.core.errors import OperatorNameError, type_name

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
