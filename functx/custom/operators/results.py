"""What an operator gives: the types that its abstract rule states, and pytrees of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from functx.core.avals import ShapedArray
from functx.core.dtypes import SHORT_NAMES, canonical_dtype
from functx.core.errors import OperatorRuleError, type_name
from functx.custom.operators.schema import Return, Schema
from functx.custom.results import describe_type

if TYPE_CHECKING:
    from functx.custom.operators.registry import Registration


class OutputTypes(NamedTuple):
    """The types of the results, flat, and for each result the length of its list, or None.

    `padded` has, for each type, the axes along which a result may be shorter.
    """

    avals: tuple[ShapedArray, ...]
    lengths: tuple[int | None, ...]
    padded: tuple[tuple[int, ...], ...] = ()

    def unflatten(
        self, schema: Schema, leaves: Sequence[Any], aliased: dict[str, Any] | None = None
    ) -> Any:
        """The result of a call, made of `leaves` and, by their aliases, of arguments."""
        made = iter(self.group_lists(leaves))
        values = [aliased[r.alias] if aliased and r.alias else next(made) for r in schema.returns]
        if schema.returns_single:
            return values[0]
        return tuple(values) if values else None

    def group_lists(self, leaves: Sequence[Any]) -> list[Any]:
        """One value a result: a leaf, or a list of leaves."""
        rest: Iterator[Any] = iter(leaves)
        return [
            next(rest) if length is None else [next(rest) for _ in range(length)]
            for length in self.lengths
        ]

    def per_leaf(self, per_result: Sequence[bool]) -> list[bool]:
        """A mark for each leaf, given one for each result."""
        return [
            on
            for on, length in zip(per_result, self.lengths, strict=True)
            for _ in range(1 if length is None else length)
        ]


def pair_with_returns(
    qualname: str, rule: Registration, schema: Schema, out: Any
) -> list[tuple[Return, Any]]:
    """Each result that `rule` returned, with what the schema says of it.

    Raises OperatorRuleError unless there are as many as there must be.
    """
    if schema.returns_single:
        return [(schema.returns[0], out)]
    if not schema.returns:
        if out is not None:
            raise operator_rule_error(qualname, rule, f"return None; got {describe_type(out)}")
        return []
    if not isinstance(out, (tuple, list)) or len(out) != len(schema.returns):
        raise operator_rule_error(
            qualname, rule, f"return a tuple of {len(schema.returns)}; got {describe_type(out)}"
        )
    return list(zip(schema.returns, out, strict=True))


def flatten_outputs(
    qualname: str,
    rule: Registration,
    schema: Schema,
    out: Any,
    leaf: Callable[[Return, Any, str], Any],
) -> tuple[list[Any], tuple[int | None, ...]]:
    """`leaf(result, value, place)` of each value that `rule` returned, and the lengths of lists.

    Raises OperatorRuleError where a list is expected, or an array.
    """
    leaves: list[Any] = []
    lengths: list[int | None] = []
    for i, (result, value) in enumerate(pair_with_returns(qualname, rule, schema, out)):
        place = "the result" if schema.returns_single else f"result {i}"
        if result.alias:
            leaf(result, value, place)
        elif not result.type.is_list:
            leaves.append(leaf(result, value, place))
            lengths.append(None)
        elif not isinstance(value, (list, tuple)):
            raise operator_rule_error(
                qualname, rule, f"give a list for {place}; got {type_name(value)}"
            )
        else:
            leaves += [leaf(result, x, f"{place}[{k}]") for k, x in enumerate(value)]
            lengths.append(len(value))
    return leaves, tuple(lengths)


def operator_rule_error(
    qualname: str, rule: Registration, problem: str, fix: str = ""
) -> OperatorRuleError:
    """The error that a rule of an operator must do something else."""
    return OperatorRuleError(
        f"{qualname}: its {rule.kind}, registered at {rule.location}, must {problem}",
        fix=fix,
        source=rule.error_source,
    )


def aval_of_struct(qualname: str, rule: Registration, result: Return, x: Any, place: str) -> Any:
    """The type that an abstract rule states by `x`: a struct, or a number for one of its kind."""
    if result.alias:
        return None
    if isinstance(x, (bool, int, float, complex)) and not result.type.is_array:
        return ShapedArray((), canonical_dtype(type(x)))
    dtype = canonical_dtype(x.dtype) if hasattr(x, "shape") and hasattr(x, "dtype") else None
    if dtype not in SHORT_NAMES:
        raise operator_rule_error(
            qualname,
            rule,
            f"give something with a shape and a dtype for {place}; got {type_name(x)}",
            fix="Return jax.ShapeDtypeStruct(shape, dtype).",
        )
    shape = tuple(x.shape)
    if not all(isinstance(n, (int, np.integer)) and n >= 0 for n in shape):
        raise operator_rule_error(
            qualname, rule, f"give a shape of lengths for {place}; got {shape}"
        )
    return ShapedArray(tuple(map(int, shape)), dtype)
