"""The primitive of higher-order operations, whose rules look up those that users defined."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from functx import ops
from functx.core import tree
from functx.core.config import contextual_key
from functx.core.errors import MissingHigherOrderRuleError, type_name
from functx.core.masks import inexact_mask, linear_mask, scatter_where, select_where
from functx.core.named_axes import Axis, batched_axis_names
from functx.core.primitive import Primitive
from functx.core.primitive_families import HasPrograms
from functx.core.program import Program
from functx.core.rewriting import apply, user_rule_runs
from functx.core.tracer import aval_of, current_builder
from functx.core.tracing import eval_context, trace
from functx.core.types import ShapedArray, x64_enabled
from functx.core.typing import (
    Avals,
    Cotangent,
    Cotangents,
    Dims,
    Flags,
    PyTree,
    Tangents,
    Value,
    Values,
)
from functx.custom.custom_vjp import transpose_backward_rule
from functx.custom.function_operands import FunctionCotangent, FunctionOperand, FunctionTangent
from functx.custom.operators.primitives import VmapInfo, check_batched_outputs, check_out_dims
from functx.custom.operators.registry import Registration
from functx.custom.rule_results import RuleResult, describe_type
from functx.custom.rule_tracing import inline_rule
from functx.ops.operands import batch_size
from functx.transforms.batching import remove_axis
from functx.transforms.reverse_mode import apply_vjp_rule, linearize_jvp_rule

if TYPE_CHECKING:
    from functx.custom.higher_order_op import HigherOrderOp


LEAF = tree.structure(0)
"""The structure of one array."""


def is_function(x: object) -> bool:
    """Whether an argument is a function or a program, and no pytree of arrays."""
    return callable(x) and not hasattr(x, "dtype") and tree.structure(x) == LEAF


class _FunctionPlace:
    """A leaf in place of a function."""


class CallStructure:
    """The structure of a call: how its arguments are made of functions and arrays.

    `arguments` is the structure of the arguments with a leaf for each function, `functions` the
    positions of the functions among its leaves, and `trees` the structures of the arguments and of the
    result of each.
    """

    __slots__ = ("arguments", "functions", "trees")

    def __init__(
        self,
        arguments: tree.TreeDef,
        functions: tuple[int, ...],
        trees: tuple[tuple[tree.TreeDef, tree.TreeDef], ...],
    ):
        self.arguments, self.functions, self.trees = arguments, functions, trees

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CallStructure) and self.fields == other.fields

    def __hash__(self) -> int:
        return hash(self.fields)

    def __reduce__(self) -> tuple[object, ...]:
        return CallStructure, self.fields

    @property
    def fields(self) -> tuple[Any, ...]:
        """The values that two equal structures share."""
        return self.arguments, self.functions, self.trees

    @staticmethod
    def of(
        args: Sequence[PyTree], functions: Sequence[FunctionOperand], array_tree: tree.TreeDef
    ) -> CallStructure | None:
        """The structure of `args`; None for functions of flat arrays, then flat arrays."""
        trees = tuple([(f.in_tree, f.out_tree) for f in functions])
        count = len(functions)
        flat = tree.call_treedef(*[LEAF] * (len(args) - count))
        if (
            array_tree == flat
            and all([is_function(x) for x in args[:count]])
            and all([pair == (flat, LEAF) for pair in trees])
        ):
            return None
        places = [_FunctionPlace() if is_function(x) else x for x in args]
        leaves, arguments = tree.flatten(tuple(places))
        positions = tuple([i for i, x in enumerate(leaves) if type(x) is _FunctionPlace])
        return CallStructure(arguments, positions, trees)

    def __repr__(self) -> str:
        return "<structure>"


class TracedLowering(NamedTuple):
    """The program of the lowering rule, the arrays that it captures, and the structure of its result."""

    program: Program
    captured: Values
    out_tree: tree.TreeDef


class HigherOrderCall(HasPrograms, abstract=True):
    """A call of a higher-order operation.

    Operands: the arrays among the arguments, then the captured values of each of `programs`, of which
    `captures` gives the numbers. `options` are the keyword arguments, by name.
    """

    operation: ClassVar[HigherOrderOp]
    programs: tuple[Program, ...] = ()
    captures: tuple[int, ...] = ()
    options: tuple[tuple[str, Hashable], ...] = ()
    structure: CallStructure | None = None

    def __init_subclass__(cls, abstract: bool = False):
        super().__init_subclass__(abstract)
        # It checks the results of the rules that users register, and defines its own.
        cls.is_user_defined = False

    def __reduce__(self) -> tuple[Callable[..., Primitive], tuple[HigherOrderOp, list[Hashable]]]:
        return _unpickle, (self.operation, [getattr(self, f) for f in self.fields])

    @property
    def num_captured(self) -> int:
        """The number of operands that are captured values."""
        return sum(self.captures)

    def arguments(self, leaves: Sequence[PyTree], functions: Sequence[PyTree]) -> list[PyTree]:
        """The arguments of the call, made of `leaves` of arrays and of `functions`."""
        structure = self.structure
        if structure is None:
            return [*functions, *leaves]
        remaining, left = iter(leaves), iter(functions)
        found = [
            next(left) if i in structure.functions else next(remaining)
            for i in range(structure.arguments.num_leaves)
        ]
        return list(tree.unflatten(structure.arguments, found))

    def split_captured(self, items: Sequence[Any]) -> tuple[list[Any], list[list[Any]]]:
        """`items`, one an operand: those of arrays, and those of the captured values of each program."""
        first = len(items) - self.num_captured
        groups, start = [], first
        for count in self.captures:
            groups.append(list(items[start : start + count]))
            start += count
        return list(items[:first]), groups

    def function_operands(
        self,
        captured: Sequence[Values],
        batched: Sequence[Flags] = (),
        axis: Axis | None = None,
    ) -> list[FunctionOperand]:
        """The functions of a call, with these captured values."""
        found = []
        for i, (program, values) in enumerate(zip(self.programs, captured, strict=True)):
            in_tree, out_tree = (
                (tree.call_treedef(*[LEAF] * (len(program.inputs) - len(values))), LEAF)
                if self.structure is None
                else self.structure.trees[i]
            )
            flags = batched[i] if batched else ()
            found.append(FunctionOperand(program, values, in_tree, out_tree, flags, axis))
        return found

    def call_arguments(self, operands: Values) -> list[PyTree]:
        """The arguments of a rule for these operands."""
        leaves, captured = self.split_captured(operands)
        return self.arguments(leaves, self.function_operands(captured))

    def keywords(self) -> dict[str, Any]:
        """The options of the call."""
        return dict(self.options)

    def result(self, rule: Registration) -> RuleResult:
        """The checks of what `rule` returns."""
        return RuleResult(self.operation.name, rule.fun)

    def lowering(self, avals: Avals) -> TracedLowering:
        """The lowering rule for operands of `avals` as a program, cached."""
        operation = self.operation
        key = contextual_key((self, tuple(avals), x64_enabled()))
        body = operation.bodies.get(key)
        if body is None:
            rule = operation.rule("lowering")
            out_tree = LEAF

            def results(*xs: Value) -> list[Value]:
                nonlocal out_tree
                out = rule(*self.call_arguments(xs), **self.keywords())
                leaves, out_tree = tree.flatten_with_key_data(out)
                return leaves

            results.__name__ = operation.__name__
            with eval_context():
                program, captured = trace(results, avals, name=operation.__name__, kind="lowering")
            if program.writes:
                raise rule.error("write to no array around it, and not to its arguments")
            if len(operation.bodies) >= 1024:
                operation.bodies.clear()
            body = operation.bodies[key] = TracedLowering(program, captured, out_tree)
        return body

    def abstract_eval(self, *avals: ShapedArray) -> Avals:
        return self.lowering(avals).program.out_avals

    def decompose(self, *args: Value) -> Values:
        body = self.lowering(tuple([aval_of(x) for x in args]))
        return apply(None, body.program, [*args, *body.captured])

    def hoist_constants(
        self, programs: Sequence[Program], extras: Sequence[Sequence[Any]], operands: Sequence[Any]
    ) -> tuple[Primitive, Sequence[Any]]:
        leaves, captured = self.split_captured(operands)
        hoisted, counts = [], []
        for program, constants, values in zip(programs, extras, captured, strict=True):
            first, inputs = program.inputs[: len(constants)], program.inputs[len(constants) :]
            hoisted.append(
                Program(program.name, [*inputs, *first], program.equations, program.outputs)
            )
            counts.append(len(values) + len(constants))
            leaves += [*values, *constants]
        return self.replace(programs=tuple(hoisted), captures=tuple(counts)), leaves

    def batch(self, args: Values, dims: Dims) -> tuple[Values, Dims]:
        rule = self.operation.rule("vmap")
        size = batch_size(args, dims)
        info, axis = VmapInfo.of(size), batched_axis_names().with_size(size)
        rows = ops.batch_dims_at(args, dims, add_missing=False)
        leaf_dims, captured_dims = self.split_captured([None if d is None else 0 for d in dims])
        in_dims = self.arguments(leaf_dims, [None] * len(self.programs))
        body = self.lowering(
            tuple([remove_axis(aval_of(x), d) for x, d in zip(args, dims, strict=True)])
        )
        avals = tuple(body.program.out_avals)
        out_dims: list[int | None] = []
        flags = [[d is not None for d in group] for group in captured_dims]

        def map_rows(*xs: Value) -> list[Value]:
            leaves, captured = self.split_captured(xs)
            functions = self.function_operands(captured, flags, axis)
            values = self.arguments(leaves, functions)
            pair = rule(info, tuple(in_dims), *values, **self.keywords())
            if not isinstance(pair, tuple) or len(pair) != 2:
                raise rule.error(f"return a pair (output, out_dims); got {describe_type(pair)}")
            out_dims[:] = check_out_dims(rule.error, body.out_tree, avals, pair[1])
            return check_batched_outputs(rule.error, body.out_tree, avals, pair[0], out_dims, size)

        outs, _ = inline_rule(f"{self.operation.__name__}_vmap", map_rows, rows)
        return outs, out_dims

    def jvp(self, primals: Values, tangents: Tangents) -> tuple[Values, Tangents]:
        operation = self.operation
        if not operation.has_rule("jvp") and operation.has_rule("vjp"):
            return self.jvp_by_transpose(primals, tangents)
        rule = operation.rule("jvp")
        body = self.lowering(tuple([aval_of(x) for x in primals]))
        count, num_leaves = len(primals), len(primals) - self.num_captured
        # The rule gets zeros for arrays that do not vary.
        dense = [
            ops.zeros_like(x) if t is None and on and i < num_leaves else t
            for i, (x, t, on) in enumerate(
                zip(primals, tangents, inexact_mask(primals), strict=True)
            )
        ]
        varying = [t is not None for t in dense]

        def push(*xs: Value) -> list[Value]:
            values, pushed = xs[:count], scatter_where(xs[count:], varying)
            leaves, captured = self.split_captured(values)
            leaf_tangents, captured_tangents = self.split_captured(pushed)
            functions = self.function_operands(captured)
            function_tangents = [
                FunctionTangent(f, ts) for f, ts in zip(functions, captured_tangents, strict=True)
            ]
            pair = rule(
                tuple(self.arguments(leaves, functions)),
                tuple(self.arguments(leaf_tangents, function_tangents)),
                **self.keywords(),
            )
            return self.result(rule).check_jvp(pair, body.out_tree, body.program.out_avals)

        operands: list[Any] = [*primals, *select_where(dense, varying)]
        outs, _ = inline_rule(f"{operation.__name__}_jvp", push, operands)
        avals = body.program.out_avals
        return outs[: len(avals)], scatter_where(outs[len(avals) :], inexact_mask(avals))

    def jvp_by_transpose(self, primals: Values, tangents: Tangents) -> tuple[Values, Tangents]:
        """The results and their tangents by the transpose of the pullback."""
        rule = self.operation.rule("vjp")
        active = [t is not None for t in tangents]
        outs, pullback = self.forward(primals, active)
        inexact = inexact_mask(outs)

        def body(*cts: Value) -> list[Value]:
            in_cts = self.vjp(scatter_where(cts, inexact), pullback, primals, active)
            return ops.instantiate_zeros(
                select_where(in_cts, active), select_where(primals, active)
            )

        avals = [aval_of(x) for x in select_where(outs, inexact)]
        program, captured = trace(body, avals, name=f"{self.operation.__name__}_pullback")
        tangent_program = transpose_backward_rule(
            program,
            captured,
            f"{self.operation.name}: in forward mode the pullback of its {rule.kind}, registered at "
            f"{rule.location}, must be linear in the cotangents, since it is transposed; got one that "
            "is not",
            f"Let every term have a cotangent as a factor, or give it a rule: "
            f'@{self.operation.__name__}.def_rule("jvp").',
        )
        out_tangents = apply(None, tangent_program, [*select_where(tangents, active), *captured])
        return outs, scatter_where(out_tangents, inexact)

    def forward(self, args: Values, active: Flags) -> tuple[Values, Any]:
        operation = self.operation
        if not operation.has_rule("vjp") and operation.has_rule("jvp"):
            linearized = linearize_jvp_rule(self, args, active, is_users_rule=True)
            return linearized.outs, linearized
        rule = operation.rule("vjp")
        body = self.lowering(tuple([aval_of(x) for x in args]))
        user_rule_runs.record()
        builder = current_builder.require()
        wrote = builder.writes
        pair = rule(*self.call_arguments(args), **self.keywords())
        if builder.writes and not wrote:
            raise rule.error("write to no array", fix="Compute a new array.")
        out, pullback = self.result(rule).check_pair(pair, "(output, pullback)")
        if not callable(pullback):
            raise rule.error(f"return a function as pullback; got {type_name(pullback)}")
        return self.result(rule).check_output(out, body.out_tree, body.program.out_avals), pullback

    def vjp(self, cts: Cotangents, saved: Any, args: Values, active: Flags) -> list[Cotangent]:
        rule = self.operation.rule("vjp")
        body = self.lowering(tuple([aval_of(x) for x in args]))
        dense = [
            None if not on else ops.zeros_like(a) if ct is None else ct
            for ct, a, on in zip(
                cts, body.program.out_avals, inexact_mask(body.program.out_avals), strict=True
            )
        ]
        in_cts = saved(tree.unflatten(body.out_tree, dense))
        return self.check_cotangents(rule, in_cts, args, active)

    def check_cotangents(
        self, rule: Registration, in_cts: PyTree, args: Values, active: Flags
    ) -> list[Cotangent]:
        """The cotangents of the operands, from those of the arguments that a pullback returned."""
        leaves, captured = self.split_captured(args)
        functions = self.function_operands(captured)
        arguments = self.arguments(leaves, functions)
        if not isinstance(in_cts, (tuple, list)) or len(in_cts) != len(arguments):
            raise rule.error(
                f"return a pullback that gives {len(arguments)} cotangents, one for each argument; got "
                f"{describe_type(in_cts)}"
            )
        result = self.result(rule).for_part("a cotangent")
        _, captured_active = self.split_captured(active)
        remaining = iter(captured_active)
        of_arrays: list[Cotangent] = []
        of_captured: list[Cotangent] = []
        for x, ct in zip(arguments, in_cts, strict=True):
            if type(x) is not FunctionOperand:
                flat, structure = tree.flatten_with_key_data(x)
                avals = [aval_of(leaf) for leaf in flat]
                checked = result.check_tangents(ct, structure, avals, "the argument", True)
                of_arrays += scatter_where(checked, inexact_mask(avals))
                continue
            flags = next(remaining)
            if type(ct) is FunctionCotangent and len(ct.cts) == len(flags):
                of_captured += ct.cts
            elif ct is None and not any(flags):
                of_captured += [None] * len(flags)
            else:
                got = "None" if ct is None else describe_type(ct)
                raise rule.error(
                    f"return a pullback that gives the cotangent of the function {x.__name__}, which "
                    f"closes over values that are differentiated; got {got}",
                    fix="Return the first result of the pullback of f.vjp(*args), or the sum of several.",
                )
        return [*of_arrays, *of_captured]

    def transpose(self, cts: Cotangents, *args: Value) -> Cotangents:
        # The derivative of a linear function is the same everywhere, so it is taken at zero.
        linear = linear_mask(args)
        if not self.operation.has_rule("vjp"):
            raise MissingHigherOrderRuleError(
                f"{self.operation.name}: a higher-order operation on tangents must have a rule for vjp, to "
                "be transposed in reverse mode; got none",
                fix=f'Give it one: @{self.operation.__name__}.def_rule("vjp").',
            )
        values = [ops.zeros_like(x) if on else x for x, on in zip(args, linear, strict=True)]
        _, saved = self.forward(values, linear)
        in_cts = apply_vjp_rule(self, list(cts), saved, values, linear)
        return [ct if on else None for ct, on in zip(in_cts, linear, strict=True)]


def _unpickle(operation: HigherOrderOp, values: Sequence[Hashable]) -> Primitive:
    """The call of an operation with these parameters."""
    call: Primitive = operation.primitive(*values)
    return call
