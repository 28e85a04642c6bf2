"""An operator as an equation of programs: every rule of it looks up what the user registered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from functx.core.avals import ShapedArray
from functx.core.config import contextual_key
from functx.core.dtypes import x64_enabled
from functx.core.primitive import Primitive
from functx.core.rewriting import apply
from functx.core.tracing import aval_of, eval_context
from functx.custom.operators import abstract, batching, derivatives
from functx.custom.operators.choice import find_kernel
from functx.custom.operators.kernels import lower_kernel
from functx.custom.operators.results import OutputTypes
from functx.transforms.expand import builtin_decomposition

if TYPE_CHECKING:
    from functx.custom.operators.composites import TracedBody
    from functx.custom.operators.operator import Operator


class OperatorPrimitive(Primitive, abstract=True):
    """One operation of a program, called `namespace::name`.

    Its operands are the arrays among the arguments; its parameters say the rest. It gives the
    results, then the new values of the operands that it writes to.
    """

    operator: ClassVar[Operator]
    multiple_results = True
    checks_rule_results = True

    def __reduce__(self) -> Any:
        values = tuple([getattr(self, field) for field in self.fields])
        return _unpickle, (self.operator.qualname, values)

    def output_types(self, avals: tuple[ShapedArray, ...]) -> OutputTypes:
        """The types of the results for operands of `avals`, remembered."""
        raise NotImplementedError


class OperatorCall(OperatorPrimitive, abstract=True):
    """An operation whose rules are those that users registered for it."""

    def output_types(self, avals: tuple[ShapedArray, ...]) -> OutputTypes:
        key = self, avals
        found: OutputTypes | None = self.operator.output_type_cache.get(key)
        if found is None:
            found = self.operator.cache_types(key, abstract.infer_output_types(self, avals))
        return found  # type: ignore[return-value]

    def abstract_eval(self, *avals):
        written = [avals[i] for i in self.operator.arguments.written(self)]
        return [*self.output_types(avals).avals, *written]

    def jvp(self, primals, tangents):
        return derivatives.jvp_operator(self, primals, tangents)

    def forward(self, args, active):
        return derivatives.vjp_forward(self, args, active)

    def vjp(self, cts, saved, args, active):
        return derivatives.vjp_backward(self, cts, saved, args, active)

    def transpose(self, cts, *args):
        return derivatives.transpose_operator(self, cts, args)

    def batch(self, args, dims):
        return batching.batch_operator(self, args, dims)

    def lower(self, ctx, *values):
        return lower_kernel(self, ctx, values)


class CompositeCall(OperatorPrimitive, abstract=True):
    """An operation that is made of others, with the rules that they have.

    An implementation takes the place of the decomposition where it runs.
    """

    def body(self, avals: tuple[ShapedArray, ...]) -> TracedBody:
        """What the operation is made of on operands of `avals`, remembered."""
        operator, key = self.operator, contextual_key((self, avals, x64_enabled()))
        found: TracedBody | None = operator.output_type_cache.get(key)
        if found is None:
            assert operator.composite is not None
            with eval_context():
                found = operator.cache_types(key, operator.composite.body(self, avals))
        return found  # type: ignore[return-value]

    def output_types(self, avals: tuple[ShapedArray, ...]) -> OutputTypes:
        program, _, lengths = self.body(avals)
        count = len(program.outputs) - len(self.operator.arguments.written(self))
        return OutputTypes(tuple(program.out_avals[:count]), lengths)

    def abstract_eval(self, *avals):
        return self.body(avals).program.out_avals

    def decompose(self, *args):
        program, captured, _ = self.body(tuple([aval_of(x) for x in args]))
        return apply(None, program, [*args, *captured])

    def lower(self, ctx, *values):
        if all(find_kernel(self, platform) is None for platform in ctx.platforms):
            return ctx.call(builtin_decomposition(self, tuple(ctx.avals_in)), values)
        return lower_kernel(self, ctx, values)


def _unpickle(qualname: str, values: Sequence[Any]) -> Primitive:
    """The operation that was pickled."""
    from functx.custom.operators.registry import resolve_operator

    made: Primitive = resolve_operator(qualname).primitive(*values)
    return made
