"""Rules that users give, traced apart and without their writes, in the middle of a rewrite."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from functx.core import tree
from functx.core.rewriting import cached_rewrite, user_rule_runs
from functx.core.storage import Functionalize
from functx.core.tracing import Builder, Tracer, aval_of, current_builder, run_and_finish


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
