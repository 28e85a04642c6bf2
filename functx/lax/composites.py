"""Functions that StableHLO holds as named operations, which a compiler may know."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any

import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo
from jax.interpreters import mlir

from functx.core import tree
from functx.core.errors import ArgumentError, type_name
from functx.core.program import Program
from functx.core.samples import LazySamples, f64, sample
from functx.core.tracer import Tracer
from functx.core.typing import Flags, IRValue, PyTree
from functx.transforms.call_primitive import Call, example_program
from functx.transforms.tracing_api import avals_of, trace_function

if TYPE_CHECKING:
    from functx.core.primitive import Primitive
    from functx.lowering.stablehlo_emitter import LoweringContext


class NamedComposite(Call):
    """The outputs of `program`, as the StableHLO composite `label` with these attributes.

    Its derivatives and batched forms are plain calls of other programs.
    """

    label: str = "example.composite"
    version: int = 0
    attributes: tuple[tuple[str, Hashable], ...] = ()
    samples = LazySamples(
        lambda: (sample(f64[3], f64[3], program=example_program(), attributes=(("axis", 1),)),)
    )

    def with_program(self, program: Program) -> Call:  # type: ignore[override]
        return Call(program, self.noinline)

    def dce(self, used: Flags) -> tuple[Primitive, Sequence[int], Sequence[int]] | None:
        return None

    def lower(self, ctx: LoweringContext, *values: IRValue) -> Sequence[IRValue]:
        function = ctx.module.emit_function(self.program, self.label)
        attributes = {
            name: mlir.ir_attribute(_value(x)) for name, x in self.attributes if x is not None
        }
        operation = stablehlo.CompositeOp(
            ctx.out_types,
            list(values),
            name=self.label,
            decomposition=ir.FlatSymbolRefAttr.get(
                ir.StringAttr(function.attributes["sym_name"]).value
            ),
            composite_attributes=ir.DictAttr.get(attributes),
            version=self.version,
            num_composite_regions=0,
        )
        return list(operation.results)


def composite(decomposition: Callable[..., Any], name: str, version: int = 0) -> Callable[..., Any]:
    """`decomposition` as a function that StableHLO holds as one operation called `name`.

    A compiler that knows the name, the version and the keyword arguments may replace it; others run the
    decomposition. Keyword arguments become attributes of the operation: numbers, strings, dtypes or arrays;
    None is left out.
    Derivatives are those of the decomposition. Effects and captured values are arguments to pass.

    >>> from functools import partial
    >>> from functx import lax
    >>> @partial(lax.composite, name="my.scale")
    ... def scale(x, /, *, by):
    ...     return x * by
    >>> float(scale(3.0, by=2))
    6.0
    """

    @wraps(decomposition)
    def call(*args: PyTree, **kwargs: PyTree) -> PyTree:
        for key, value in kwargs.items():
            if any(isinstance(x, Tracer) for x in tree.leaves(value)):
                raise ArgumentError(
                    f"composite({name}): keyword arguments are attributes, known before the program "
                    f"runs; got {type_name(value)} for `{key}`",
                    fix="Pass arrays by position.",
                )

        @wraps(decomposition)
        def fun(*xs: PyTree) -> PyTree:
            return decomposition(*xs, **kwargs)

        leaves, in_tree = tree.flatten((args, {}))
        traced = trace_function(
            fun, in_tree, avals_of(leaves, "composite", fun, in_tree), "composite"
        )
        traced.refuse_writes(f"composite({name})")
        attributes = tuple([(key, _hashable(value)) for key, value in kwargs.items()])
        operation = NamedComposite(traced.program, False, name, version, attributes)
        return tree.unflatten(traced.out_tree, operation(*leaves, *traced.captured))

    return call


class ArrayAttribute(tuple[bytes, str, tuple[int, ...]]):
    """An array as an attribute: its bytes, dtype and shape, which compare by value."""


def _hashable(value: object) -> Hashable:
    if isinstance(value, (list, tuple)):
        return tuple([_hashable(x) for x in value])
    if isinstance(value, (np.ndarray, np.generic)) or hasattr(value, "__jax_array__"):
        array = np.asarray(value)
        return ArrayAttribute((array.tobytes(), array.dtype.str, array.shape))
    return value  # type: ignore[no-any-return]


def _value(attribute: Hashable) -> Any:
    if isinstance(attribute, ArrayAttribute):
        data, dtype, shape = attribute
        return np.frombuffer(data, dtype).reshape(shape)
    return list(attribute) if isinstance(attribute, tuple) else attribute
