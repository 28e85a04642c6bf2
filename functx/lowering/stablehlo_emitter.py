"""Emission of StableHLO: each equation by the `lower` rule of its primitive, or as a copy of an equal one."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextvars import ContextVar
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

import jax
import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import func, stablehlo
from jax.interpreters import mlir

from functx import ops
from functx.core.config import program_checks
from functx.core.effects import is_ordered
from functx.core.errors import RuleError
from functx.core.primitive import Primitive
from functx.core.program import Atom, Equation, Literal, Program, Var
from functx.core.rewriting import cached_rewrite
from functx.core.source_info import Source, scope_of
from functx.core.types import DType, ShapedArray, is_complex, kind
from functx.core.typing import Function, IRValue, IRValues, NumPyArray
from functx.lowering import control_flow, jax_bridge, meshes
from functx.ops.families import Elementwise
from functx.passes.pipeline import Stage, lowering_target, rewrites_for, selected_passes
from functx.transforms.decompose import lowering_decomposition

if TYPE_CHECKING:
    from functx.transforms.control.scan import Scan
    from functx.transforms.control.while_loop import While


func_ops: ModuleType = func
"""The module `func`, whose stubs lack what the bindings have."""


Constants = dict[tuple[str, ShapedArray], IRValue]
"""The constants of a function, by the text of the number and the type."""


class LoweringContext:
    """The context of a `lower` rule: the types of its equation, and common StableHLO operations."""

    def __init__(self, module: ModuleEmitter, scope: FunctionEmitter):
        self.module = module
        self.scope = scope
        self.avals_in: list[ShapedArray] = []
        self.avals_out: list[ShapedArray] = []
        self.source: Source | None = None
        self.constants: list[IRValue] = []
        """The constants that the current rule used."""

    @property
    def platforms(self) -> Sequence[str]:
        return self.module.platforms

    @property
    def out_types(self) -> list[ir.RankedTensorType]:
        """The MLIR types of the outputs."""
        return [self.type(aval) for aval in self.avals_out]

    def type(self, aval: ShapedArray) -> ir.RankedTensorType:
        """The MLIR type of arrays of `aval`."""
        return self.module.type(aval)

    def i64_array(self, values: Sequence[int]) -> ir.DenseI64ArrayAttr:
        """An attribute with an array of 64-bit integers."""
        return ir.DenseI64ArrayAttr.get(list(values))

    def constant(self, value: complex, aval: ShapedArray) -> IRValue:
        """An array of `aval` filled with the number `value`."""
        constant = self.scope.constant(value, aval)
        self.constants.append(constant)
        return constant

    def dense(self, array: NumPyArray) -> IRValue:
        """A constant with the elements of `array`."""
        return mlir.ir_constant(array)

    def convert(self, x: IRValue, source: ShapedArray, target: ShapedArray) -> IRValue:
        """The array `x` of `source`, converted to the dtype of `target`."""
        if kind(target.dtype) == "b" and kind(source.dtype) != "b":
            zero = self.constant(0, source)
            return self.compare(x, zero, "NE", source)
        if is_complex(source.dtype) and not is_complex(target.dtype):
            x = stablehlo.real(x)
        return stablehlo.convert(self.type(target), x)

    def compare(self, x: IRValue, y: IRValue, direction: str, aval: ShapedArray) -> IRValue:
        """The elementwise comparison of arrays of `aval`; `direction` is EQ, NE, LT, LE, GT or GE."""
        kinds = {"b": "UNSIGNED", "u": "UNSIGNED", "i": "SIGNED"}
        return stablehlo.compare(
            x,
            y,
            stablehlo.ComparisonDirectionAttr.get(direction),
            compare_type=stablehlo.ComparisonTypeAttr.get(kinds.get(kind(aval.dtype), "FLOAT")),
        )

    def reduce(
        self,
        operation: Callable[..., Any],
        x: IRValue,
        axes: Sequence[int],
        start: complex,
        dtype: DType | None = None,
    ) -> IRValue:
        """`x` reduced over `axes` by a binary operation class, with the number `start` as identity.

        It is computed in `dtype`, by default that of `x`.
        """
        (aval,), (out,) = self.avals_in, self.avals_out
        dtype = aval.dtype if dtype is None else dtype
        given, scalar = dtype != aval.dtype, ShapedArray((), dtype)
        if given:
            x = self.convert(x, aval, aval.update(dtype=dtype))
        out_types = [self.type(out.update(dtype=dtype))] if given else self.out_types
        op = stablehlo.ReduceOp(
            out_types, [x], [self.constant(start, scalar)], self.i64_array(axes)
        )
        element = self.type(scalar)
        block = op.regions[0].blocks.append(element, element)
        with ir.InsertionPoint(block):
            result = operation(*block.arguments)
            stablehlo.return_([result.result])
        found = op.results[0]
        return self.convert(found, out.update(dtype=dtype), out) if given else found

    def pin_order(self, x: IRValue, y: IRValue, aval: ShapedArray) -> list[IRValue]:
        """The arrays `x` and `y` of `aval` as results of one operation that XLA never fuses."""
        return self.module.pin_order(x, y, aval)

    def call_unfused(
        self, primitive: Primitive, rule: Callable[..., IRValue], values: IRValues
    ) -> IRValue:
        """The output `rule(ctx, *values)` of `primitive`, which XLA fuses with no reader on one CPU.

        There it is a call that XLA does not inline, of a function for all operands of these types.
        """
        module, avals_in, avals_out = self.module, self.avals_in, self.avals_out
        if not module.target.allows_noinline:
            return rule(self, *values)

        def body(*operands: IRValue) -> IRValues:
            ctx = FunctionEmitter(module).ctx
            ctx.avals_in, ctx.avals_out = avals_in, avals_out
            return [rule(ctx, *operands)]

        key = (primitive, *avals_in)
        (out,) = module.call_apart(key, primitive.name, values, self.out_types, body)
        return out

    def precision(self, precision: tuple[str, str] | None) -> ir.ArrayAttr:
        """The attribute for a pair of DEFAULT, HIGH or HIGHEST; None is that of `jax.default_matmul_precision`."""
        names = precision or ops.canonical_precision(jax.config.jax_default_matmul_precision)  # type: ignore[attr-defined]
        names = names or ("DEFAULT", "DEFAULT")
        return ir.ArrayAttr.get([stablehlo.PrecisionAttr.get(name) for name in names])

    def via_jax(self, fun: Function, *values: IRValue, ordered: bool = False) -> Any:
        """The outputs of the JAX function `fun`, emitted by JAX's own lowering.

        `fun` takes arrays of `avals_in` and returns those of `avals_out`, one or a tuple. If `ordered`,
        its ordered effects keep their place among those of the module.
        """
        from functx.lowering.jax_bridge import jax_aval

        several = len(self.avals_out) != 1
        ctx = self.module.jax_context.replace(
            avals_in=[jax_aval(a) for a in self.avals_in],
            avals_out=[jax_aval(a) for a in self.avals_out],
        )
        if ordered:
            ctx = ctx.replace(tokens_in=jax_bridge.jax_tokens(self.module.token), tokens_out=None)
        outs = mlir.lower_fun(fun, multiple_results=several)(ctx, *values)
        if ordered:
            self.module.token = jax_bridge.joined_token(ctx.tokens_out, self.module.token)
        return [_unwrap_single(out) for out in outs] if several else _unwrap_single(outs[0])

    def barrier(self, values: IRValues) -> list[IRValue]:
        """`values` behind an optimization barrier: available all at once, and merged with nothing."""
        return [*stablehlo.OptimizationBarrierOp(list(values)).results] if values else []

    def collective(self, axes: Sequence[Hashable], fun: Function, *values: IRValue) -> Any:
        """The outputs of `fun`, a collective of JAX over the named `axes`, emitted by JAX's lowering."""
        sizes = meshes.manual_axes(self.module.module_context)
        for name in axes:
            if name not in sizes:
                raise meshes.unbound_axis_error(name, sizes, self.source)
        # JAX looks up the axes of a collective while it traces, and does not retrace a jitted call.
        traced = jax.make_jaxpr(jax.jit(fun), axis_env=list(sizes.items()))
        (eqn,) = traced(*[jax.ShapeDtypeStruct(a.shape, a.dtype) for a in self.avals_in]).eqns
        return self.via_jax(lambda *xs: eqn.primitive.bind(*xs, **eqn.params)[0], *values)

    def call(self, program: Program, values: IRValues, apart: bool = False) -> list[IRValue]:
        """A call of `program`, emitted as a function once per module.

        With `apart`, XLA does not inline it.
        """
        return self.module.call(program, values, apart)

    def case(self, index: IRValue, branches: Sequence[Program], values: IRValues) -> list[IRValue]:
        """The outputs of `branches[index]` on `values`; only that branch runs."""
        return control_flow.case(self, index, branches, values)

    def scan(self, loop: Scan, values: IRValues) -> list[IRValue]:
        """The outputs of the primitive `Scan` on `values`."""
        return control_flow.scan(self, loop, values)

    def while_loop(self, loop: While, values: IRValues) -> list[IRValue]:
        """The outputs of the primitive `While` on `values`."""
        return control_flow.while_loop(self, loop, values)

    def callback(self, primitive: ops.HostPrimitive, values: IRValues) -> list[IRValue]:
        """The outputs of a `HostPrimitive`, computed by a call from the device to Python."""
        return jax_bridge.emit_callback(self, primitive, values)


def _unwrap_single(value: complex) -> object:
    return value[0] if isinstance(value, (list, tuple)) else value


class ModuleEmitter:
    """The emission of programs into the module that a JAX lowering rule builds."""

    def __init__(self, jax_context: mlir.LoweringRuleContext, outline: str = "never"):
        self.jax_context = jax_context
        module_context = jax_context.module_context
        self.module_context = module_context
        self.platforms = tuple(module_context.platforms)
        devices = getattr(module_context.axis_context, "num_devices", None)
        self.target = target = lowering_target(self.platforms, devices, outline)
        names = selected_passes.get().names
        self.rewrites = rewrites_for(Stage.LOWERING, target, names)
        self.function_rewrites = rewrites_for(
            Stage.LOWERING, target._replace(is_function=True), names
        )
        self.reuses_templates = "reuse_operations" in names
        self.functions: dict[Program, Any] = {}
        self.functions_apart: dict[Hashable, func.FuncOp] = {}
        self.types: dict[ShapedArray, ir.RankedTensorType] = {}
        # The token of the last ordered callback, in a program that has any.
        self.token: Any = None

    def type(self, aval: ShapedArray) -> ir.RankedTensorType:
        found = self.types.get(aval)
        if found is None:
            from functx.lowering.jax_bridge import jax_aval

            made = mlir.aval_to_ir_type(self.module_context, jax_aval(aval))
            found = self.types[aval] = cast(ir.RankedTensorType, made)
        return found

    def constant(self, value: complex, aval: ShapedArray) -> IRValue:
        """An array of `aval` filled with the number `value`."""
        scalar = mlir.ir_constant(np.asarray(value, aval.dtype))
        if not aval.shape:
            return scalar
        if is_complex(aval.dtype):
            # The bindings cannot read a complex splat.
            return stablehlo.broadcast_in_dim(self.type(aval), scalar, ir.DenseI64ArrayAttr.get([]))
        number = cast(ir.OpView, scalar.owner).attributes["value"]
        element = ir.DenseElementsAttr(number).get_splat_value()
        return stablehlo.constant(ir.DenseElementsAttr.get_splat(self.type(aval), element))

    def emit(self, program: Program, values: IRValues, is_function: bool = False) -> list[IRValue]:
        """The outputs of `program` on `values`, emitted at the insertion point."""
        rewrites = self.function_rewrites if is_function else self.rewrites
        return FunctionEmitter(self).emit_program(program, values, rewrites)

    def call(self, program: Program, values: IRValues, apart: bool = False) -> list[IRValue]:
        function = self.functions.get(program)
        if function is None:
            function = self.functions[program] = self.emit_function(program)
        ordered = is_ordered(program.effects)
        call = func_ops.CallOp(function, [*values, self.token] if ordered else list(values))
        if apart and self.target.allows_noinline:
            mark_noinline(call)
        outs: list[IRValue] = list(call.results)
        if ordered:
            self.token = outs.pop()
        return outs

    def pin_order(self, x: IRValue, y: IRValue, aval: ShapedArray) -> list[IRValue]:
        """The results of a function of two arrays of `aval` that returns them.

        XLA does not look into a call that it may not inline, and so keeps operations on their side of it.
        It costs nothing to run.
        """
        return self.call_apart(aval, "in_order", [x, y], [self.type(aval)] * 2, lambda *pair: pair)

    def call_apart(
        self,
        key: Hashable,
        name: str,
        values: IRValues,
        out_types: Sequence[ir.Type],
        body: Callable[..., IRValues],
    ) -> list[IRValue]:
        """The results of a call, not to be inlined, of the function of the module with this key.

        The first call makes the function: `body` emits its results on its arguments.
        """
        function = self.functions_apart.get(key)
        if function is None:
            signature = ir.FunctionType.get([x.type for x in values], list(out_types))
            with ir.InsertionPoint(self.module_context.module.body):
                function = func_ops.FuncOp(name, signature, visibility="private")
            self.module_context.symbol_table.insert(function)
            with ir.InsertionPoint(function.add_entry_block()):
                func_ops.ReturnOp(list(body(*function.arguments)))
            self.functions_apart[key] = function
        call = func_ops.CallOp(function, list(values))
        mark_noinline(call)
        return list(call.results)

    def emit_function(self, program: Program, name: str = "") -> func.FuncOp:
        """Emits `program` as a private function of the module, called `name` or by its own name.

        With ordered effects it takes and returns a token after the arrays.
        """
        ordered = is_ordered(program.effects)
        token = [mlir.token_type()] if ordered else []
        signature = ir.FunctionType.get(
            [*[self.type(a) for a in program.in_avals], *token],
            [*[self.type(a) for a in program.out_avals], *token],
        )
        body = self.module_context.module.body
        with ir.InsertionPoint(body):
            function = func_ops.FuncOp(
                name or program.name or "call", signature, visibility="private"
            )
        self.module_context.symbol_table.insert(function)
        block = function.add_entry_block()
        before = self.token
        with ir.InsertionPoint(block):
            args = list(block.arguments)
            if ordered:
                self.token = args.pop()
            outs = self.emit(program, args, is_function=True)
            func_ops.ReturnOp([*outs, self.token] if ordered else outs)
        self.token = before
        return function


def mark_noinline(call: func.CallOp) -> None:
    """Forbids XLA to inline a call."""
    kept = ir.DictAttr.get({"inlineable": ir.StringAttr.get("false")})
    call.operation.attributes["mhlo.frontend_attributes"] = kept


location_name: ContextVar[Callable[[Source | None], str]] = ContextVar(
    "location_name",
    default=scope_of,
)
"""Gives the name of the location of a source in a module, "" for none; by default its named scope."""


class FunctionEmitter:
    """The emission of equations into one function body."""

    def __init__(self, module: ModuleEmitter):
        self.env: dict[Atom, IRValue] = {}
        self.constants: Constants = {}
        self.templates: dict[Any, Template | None] = {}
        self.ctx = LoweringContext(module, self)

    def emit_program(
        self, program: Program, values: IRValues, rewrites: Sequence[Any]
    ) -> list[IRValue]:
        """Emits `program` on `values`, after `rewrites`; its outputs."""
        for rewrite in rewrites:
            program = cached_rewrite(rewrite, program)
        outer, self.env = self.env, dict(zip(program.inputs, values, strict=True))
        name_of = location_name.get()
        for eqn in program.equations:
            if (scope := name_of(eqn.source)) != "":
                with ir.Location.name(f"{scope}/{eqn.primitive.name}"):
                    self.emit_equation(eqn, scope)
            else:
                self.emit_equation(eqn)
        outs = [self.read(atom) for atom in program.outputs]
        self.env = outer
        return outs

    def read(self, atom: Atom) -> IRValue:
        return self.env[atom] if type(atom) is Var else self.literal(atom, atom.aval)

    def literal(self, atom: Literal, aval: ShapedArray) -> IRValue:
        """An array of `aval` filled with the number of a literal."""
        return self.constants.get((atom.key[0], aval)) or self.constant(atom.value, aval)

    def constant(self, value: complex, aval: ShapedArray) -> IRValue:
        key = repr(value), aval
        found = self.constants.get(key)
        if found is None:
            found = self.constants[key] = self.ctx.module.constant(value, aval)
        return found

    def emit_equation(self, eqn: Equation, scope: str = "") -> None:
        """Emits one equation: as a copy of an equal one on the same types and in the same named scope,
        else by its rule.
        """
        primitive, env = eqn.primitive, self.env
        avals = [atom.aval for atom in eqn.inputs]
        operands = [env[a] if type(a) is Var else self.literal(a, a.aval) for a in eqn.inputs]
        if isinstance(primitive, Elementwise) and (shape := eqn.outputs[0].aval.shape):
            self.broadcast_scalars(eqn, avals, operands, shape)
        key = scope, primitive, *avals
        template = self.templates.get(key)
        if template is not None:
            results = template.instantiate(operands)
            if len(eqn.outputs) == 1:
                env[eqn.outputs[0]] = results[0]
                return
        elif (opened := lowering_decomposition(primitive, tuple(avals))) is not None:
            results = self.emit_program(opened, operands, self.ctx.module.rewrites)
        else:
            ctx = self.ctx
            ctx.avals_in, ctx.avals_out = avals, [v.aval for v in eqn.outputs]
            ctx.source, ctx.constants = eqn.source, []
            results = primitive.lower(ctx, *operands)
            if not primitive.multiple_results:
                results = [results]
            if primitive.is_user_defined or program_checks.enabled:
                self.check_types(eqn, results)
            once = primitive.effects or isinstance(primitive, ops.HostPrimitive)
            new = ctx.module.reuses_templates and not once and key not in self.templates
            if new and are_unambiguous(operands, ctx.constants):
                self.templates[key] = Template.of(results, operands, self.constants)
        env.update(zip(eqn.outputs, results, strict=True))

    def check_types(self, eqn: Equation, results: IRValues) -> None:
        """Raises RuleError unless `results`, of a `lower` rule, have the types of `abstract_eval`."""
        stated = [self.ctx.type(v.aval) for v in eqn.outputs]
        given = results if isinstance(results, (list, tuple)) else [results]
        types = [getattr(x, "type", type(x).__name__) for x in given]
        if types != stated:
            wanted, got = (", ".join(map(str, each)) or "nothing" for each in (stated, types))
            raise RuleError(
                f"{eqn.primitive.name}: `lower` must give values of the types that `abstract_eval` "
                f"states, {wanted}; got {got}",
                fix="Let `lower` return one MLIR value, or a list of them with multiple_results.",
                source=eqn.source,
            )

    def broadcast_scalars(
        self,
        eqn: Equation,
        avals: list[ShapedArray],
        operands: list[IRValue],
        shape: tuple[int, ...],
    ) -> None:
        """Broadcasts rank-0 operands to the shape of the output, in place."""
        for i, aval in enumerate(avals):
            if not aval.shape:
                avals[i] = wide = ShapedArray(shape, aval.dtype)
                atom = eqn.inputs[i]
                if type(atom) is Var:
                    operands[i] = stablehlo.broadcast_in_dim(
                        self.ctx.type(wide), operands[i], self.ctx.i64_array(())
                    )
                else:
                    operands[i] = self.literal(atom, wide)


def are_unambiguous(operands: IRValues, constants: IRValues) -> bool:
    """Whether each operand of an operation corresponds to one operand of the equation.

    It does unless two operands of the equation are one value, or one is also a constant of the rule.
    Several Python objects may hold one MLIR value, so values are compared, not objects.
    """
    values = set(operands)
    return len(values) == len(operands) and values.isdisjoint(constants)


class Template:
    """An emitted operation, of which equal equations on the same types become copies."""

    __slots__ = ("is_plain", "name", "operation", "positions", "types")

    def __init__(self, operation: ir.Operation, positions: list[tuple[int, int]]):
        self.operation = operation
        self.positions = positions
        self.name = operation.name
        self.types = [result.type for result in operation.results]
        # It is quicker to create a plain operation than to copy it.
        in_order = [j for _, j in positions] == list(range(len(operation.operands)))
        plain = len(operation.attributes) == 0 and len(operation.regions) == 0
        self.is_plain = in_order and plain

    @staticmethod
    def of(results: IRValues, operands: IRValues, constants: Constants) -> Template | None:
        """The template of the results of a rule, if they are all those of one operation, in order.

        Its operands must be those of the equation, or constants of the same function.
        """
        owner = getattr(results[0].owner, "operation", None)
        passed_on = any(result in operands for result in results)
        if owner is None or passed_on or list(owner.results) != list(results):
            return None
        # Another operand may be used inside the regions of the operation.
        if any(x not in list(owner.operands) for x in operands):
            return None
        positions = []
        for i, used in enumerate(owner.operands):
            if used in operands:
                positions.append((i, operands.index(used)))
            elif not any(used == c for c in constants.values()):
                return None
        return Template(owner, positions)

    def instantiate(self, operands: IRValues) -> IRValues:
        if self.is_plain:
            made = ir.Operation.create(self.name, results=self.types, operands=operands)
            return made.results
        operation = self.operation.clone()
        target = operation.operands
        for i, j in self.positions:
            target[i] = operands[j]
        return operation.results
