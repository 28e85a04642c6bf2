"""StableHLO: the equations of a program as operations, one `lower` rule an equation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import func, stablehlo
from jax.interpreters import mlir

from functx.core.avals import ShapedArray
from functx.core.dtypes import is_complex, kind
from functx.core.primitive import Primitive
from functx.core.program import Literal, Program, Var
from functx.transforms.expand import expand


class LoweringContext:
    """What a `lower` rule may ask for: the types of its equation, and how to build common things."""

    def __init__(self, module: ModuleEmitter):
        self.module = module
        self.avals_in: list[ShapedArray] = []
        self.avals_out: list[ShapedArray] = []

    @property
    def platforms(self) -> Sequence[str]:
        return self.module.platforms

    @property
    def out_types(self) -> list[Any]:
        """The MLIR types of the outputs."""
        return [self.type(aval) for aval in self.avals_out]

    def type(self, aval: ShapedArray) -> Any:
        """The MLIR type of arrays of `aval`."""
        return self.module.type(aval)

    def i64s(self, values: Sequence[int]) -> Any:
        """An attribute of integers."""
        return ir.DenseI64ArrayAttr.get(list(values))

    def constant(self, value: Any, aval: ShapedArray) -> Any:
        """An array of `aval` with the number `value` everywhere."""
        return self.module.constant(value, aval)

    def convert(self, x: Any, source: ShapedArray, target: ShapedArray) -> Any:
        """The array `x` of `source` in the dtype of `target`."""
        if kind(target.dtype) == "b" and kind(source.dtype) != "b":
            zero = self.constant(0, source)
            return self.compare(x, zero, "NE", source)
        if is_complex(source.dtype) and not is_complex(target.dtype):
            x = stablehlo.real(x)
        return stablehlo.convert(self.type(target), x)

    def compare(self, x: Any, y: Any, direction: str, aval: ShapedArray) -> Any:
        """`x direction y` for arrays of `aval`, with EQ, NE, LT, LE, GT or GE."""
        kinds = {"b": "UNSIGNED", "u": "UNSIGNED", "i": "SIGNED"}
        return stablehlo.compare(
            x,
            y,
            stablehlo.ComparisonDirectionAttr.get(direction),
            compare_type=stablehlo.ComparisonTypeAttr.get(kinds.get(kind(aval.dtype), "FLOAT")),
        )

    def reduce(self, operation: Any, x: Any, axes: Sequence[int], start: Any) -> Any:
        """`x` reduced over `axes` by a binary operation class, beginning at the number `start`."""
        scalar = ShapedArray((), self.avals_in[0].dtype)
        op = stablehlo.ReduceOp(
            self.out_types, [x], [self.constant(start, scalar)], self.i64s(axes)
        )
        element = self.type(scalar)
        block = op.regions[0].blocks.append(element, element)
        with ir.InsertionPoint(block):
            result = operation(*block.arguments)
            stablehlo.return_([result.result])
        return op.results[0]

    def precision(self, precision: tuple[str, str] | None) -> Any:
        """The attribute for a pair of `DEFAULT`, `HIGH` or `HIGHEST`."""
        names = precision or ("DEFAULT", "DEFAULT")
        return ir.ArrayAttr.get([stablehlo.PrecisionAttr.get(name) for name in names])

    def via_jax(self, fun: Callable[..., Any], *values: Any) -> Any:
        """What JAX's own lowering of the JAX function `fun` makes of `values`.

        `fun` takes arrays of `avals_in` and returns those of `avals_out`, one or a tuple.
        """
        from functx.lowering.arrays import jax_aval

        several = len(self.avals_out) != 1
        ctx = self.module.jax_context.replace(
            avals_in=[jax_aval(a) for a in self.avals_in],
            avals_out=[jax_aval(a) for a in self.avals_out],
        )
        outs = mlir.lower_fun(fun, multiple_results=several)(ctx, *values)
        return [_single(out) for out in outs] if several else _single(outs[0])

    def call(self, program: Program, values: Sequence[Any]) -> list[Any]:
        """A call of `program`, emitted as a function of its own, once a module."""
        return self.module.call(program, values)


def _single(value: Any) -> Any:
    return value[0] if isinstance(value, (list, tuple)) else value


class ModuleEmitter:
    """The emission of programs into the module that one of JAX's lowering rules is building."""

    def __init__(self, jax_context: Any):
        self.jax_context = jax_context
        module_context = jax_context.module_context
        self.module_context = module_context
        self.platforms = tuple(module_context.platforms)
        self.functions: dict[Program, Any] = {}
        self.types: dict[ShapedArray, Any] = {}

    def type(self, aval: ShapedArray) -> Any:
        found = self.types.get(aval)
        if found is None:
            from functx.lowering.arrays import jax_aval

            found = self.types[aval] = mlir.aval_to_ir_type(self.module_context, jax_aval(aval))
        return found

    def constant(self, value: Any, aval: ShapedArray) -> Any:
        array = np.asarray(value, aval.dtype)
        if kind(aval.dtype) == "b":
            element = ir.IntegerAttr.get(ir.IntegerType.get_signless(1), int(array))
        else:
            element = None
        tensor = self.type(aval)
        attribute = (
            ir.DenseElementsAttr.get_splat(tensor, element)
            if element is not None
            else ir.DenseElementsAttr.get(
                np.broadcast_to(array, aval.shape), type=tensor.element_type, shape=aval.shape
            )
            if aval.size == 0
            else ir.DenseElementsAttr.get(
                array, type=tensor.element_type, shape=list(aval.shape)
            )
        )
        return stablehlo.constant(attribute)

    def emit(self, program: Program, values: Sequence[Any]) -> list[Any]:
        """The values of the outputs of `program` applied to `values`, built in place."""
        program = expand(program, "lower")
        env: dict[Var, Any] = dict(zip(program.inputs, values, strict=True))
        literals: dict[Literal, Any] = {}
        ctx = LoweringContext(self)

        def read(atom: Any) -> Any:
            if type(atom) is Var:
                return env[atom]
            if atom not in literals:
                literals[atom] = self.constant(atom.value, atom.aval)
            return literals[atom]

        for eqn in program.equations:
            primitive: Primitive = eqn.primitive
            operands = [read(atom) for atom in eqn.inputs]
            ctx.avals_in = [atom.aval for atom in eqn.inputs]
            ctx.avals_out = [v.aval for v in eqn.outputs]
            if primitive.scalars_broadcast and ctx.avals_out[0].ndim:
                self.broadcast_scalars(ctx, operands)
            result = primitive.lower(ctx, *operands)
            if primitive.multiple_results:
                env.update(zip(eqn.outputs, result, strict=True))
            else:
                env[eqn.outputs[0]] = result
        return [read(atom) for atom in program.outputs]

    def broadcast_scalars(self, ctx: LoweringContext, operands: list[Any]) -> None:
        """Give rank-0 operands the shape of the output, in place."""
        shape = ctx.avals_out[0].shape
        for i, aval in enumerate(ctx.avals_in):
            if not aval.shape:
                ctx.avals_in[i] = wide = ShapedArray(shape, aval.dtype)
                operands[i] = stablehlo.broadcast_in_dim(
                    self.type(wide), operands[i], ctx.i64s(())
                )

    def call(self, program: Program, values: Sequence[Any]) -> list[Any]:
        function = self.functions.get(program)
        if function is None:
            function = self.functions[program] = self.function(program)
        return list(func.CallOp(function, list(values)).results)

    def function(self, program: Program) -> Any:
        """A private function of the module for `program`."""
        signature = ir.FunctionType.get(
            [self.type(a) for a in program.in_avals], [self.type(a) for a in program.out_avals]
        )
        body = self.module_context.module.body
        with ir.InsertionPoint(body):
            function = func.FuncOp(program.name or "call", signature, visibility="private")
        self.module_context.symbol_table.insert(function)
        block = function.add_entry_block()
        with ir.InsertionPoint(block):
            func.ReturnOp(self.emit(program, list(block.arguments)))
        return function
