"""Higher-order operations: operations of users that take functions, with a rule for each transform."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple

from functx import ops
from functx.core import tree
from functx.core.caches import clear_on_rule_change, invalidate_caches, scoped_table
from functx.core.config import contextual_key
from functx.core.errors import (
    ArgumentWriteError,
    MissingHigherOrderRuleError,
    OperatorNameError,
    RegistrationError,
    StaticArgumentError,
    ValueRangeError,
    type_name,
)
from functx.core.masks import inexact_mask, linear_mask, scatter_where, select_where
from functx.core.primitive import HasPrograms, Primitive
from functx.core.program import Program
from functx.core.rewriting import apply, user_rule_runs
from functx.core.source_info import describe_source, user_source
from functx.core.tracebacks import api_boundary
from functx.core.tracer import aval_of, current_builder
from functx.core.tracing import eval_context, trace
from functx.core.types import ShapedArray, x64_enabled
from functx.core.typing import (
    Avals,
    Cotangent,
    Cotangents,
    Dims,
    Flags,
    Function,
    PyTree,
    Tangents,
    Value,
    Values,
)
from functx.custom.custom_function import has_jax_tracers
from functx.custom.custom_vjp import transpose_backward_rule
from functx.custom.function_operands import (
    FunctionCotangent,
    FunctionOperand,
    FunctionTangent,
    StatefulFunction,
)
from functx.custom.operators.primitives import VmapInfo, check_batched_outputs, check_out_dims
from functx.custom.operators.registry import Registration
from functx.custom.rule_results import RuleResult, describe_type
from functx.custom.rule_tracing import inline_rule
from functx.ops.operands import batch_size
from functx.transforms.aliasing import capture_key, trace_with_shared_captures, write_back_arguments
from functx.transforms.argument_names import check_callable
from functx.transforms.reverse_mode import apply_vjp_rule, linearize_jvp_rule
from functx.transforms.tracing_api import TracedFunction, avals_of, trace_function
from functx.transforms.vmap import remove_axis

RULES = ("lowering", "vmap", "jvp", "vjp", "functionalize")
"""The transforms that a higher-order operation can have rules for."""

higher_order_operations: dict[str, HigherOrderOp] = {}
"""All higher-order operations, by name."""
_rules: dict[tuple[HigherOrderOp, str], Registration] = scoped_table()


class HigherOrderOp:
    """An operation of the user's that takes functions, and is one equation of a program.

    It is called as `op(*args, **options)`. Arguments are functions, programs and pytrees of arrays; the
    options are static. A function is traced for the arguments that are no functions; where the
    operation calls it with others, pass a program (`functx.make_ir(f)(*args)`). It has no meaning of its
    own: `def_rule` gives it one for each transform, and a transform without a rule is an error. In rules,
    functions are called like functions. `name` is an identifier, or `namespace::name`.

    >>> import functx
    >>> twice = functx.custom.HigherOrderOp("doc_twice")
    >>> @twice.def_rule("lowering")
    ... def twice_lowering(f, x):
    ...     return f(f(x))
    >>> @twice.def_rule("vjp")
    ... def twice_vjp(f, x):
    ...     y, first = f.vjp(x)
    ...     z, second = f.vjp(y)
    ...     def pullback(ct):
    ...         df, dy = second(ct)
    ...         df_of_first, dx = first(dy)
    ...         return df + df_of_first, dx
    ...     return z, pullback
    >>> slope = functx.grad(lambda a, x: twice(lambda y: a * y, x), argnums=(0, 1))(3.0, 2.0)
    >>> [float(ct) for ct in slope]
    [12.0, 9.0]
    """

    def __init__(self, name: str):
        _check_name(name)
        self.name, self.__name__ = name, name.split("::")[-1]
        self.source = user_source()
        self.bodies: dict[Hashable, TracedLowering] = {}
        members = {
            "__module__": name.split("::")[0],
            "__doc__": self.__doc__,
            "name": name,
            "operation": self,
        }
        base: Any = HigherOrderCall
        self.primitive = type(base)(self.__name__, (base,), members, abstract=True)
        higher_order_operations[name] = self
        Primitive.registry[name] = self.primitive

    def __repr__(self) -> str:
        return f"<higher-order operation {self.name}>"

    def __reduce__(self) -> tuple[Callable[[str], HigherOrderOp], tuple[str]]:
        return _find_operation, (self.name,)

    def def_rule(
        self,
        transform: str | Function,
        fun: Function | None = None,
        *,
        allow_override: bool = False,
    ) -> Function:
        """Register the rule for a transform, and return it; or a decorator.

        `transform` is one of these names, or the function of functx of that name:

        - "lowering": `rule(*args, **options)` returns the result, computed by operations of functx.
        - "vmap": `rule(info, in_dims, *args, **options)` returns `(output, out_dims)`. `info.batch_size`
          is the size of the batch. It is the first axis of the arrays for which `in_dims`, a tuple with
          an entry for each argument, has 0; None marks what all elements share.
          `f.vmap(in_dims, out_dims)(*args)` maps a function.
        - "jvp": `rule(primals, tangents, **options)` returns `(output, output tangent)`. Both are tuples
          of all arguments. The tangent of a function is called as `df(primals, tangents)` and returns
          the output and its tangent; that of an array of integers is None.
        - "vjp": `rule(*args, **options)` returns `(output, pullback)`, where `pullback(ct)` returns a
          cotangent for each argument, or None for zero. `f.vjp(*args)` returns the output and a pullback
          that gives the cotangent of the function, then those of `args`. Of "jvp" and "vjp" one is
          enough: the other is its transpose.
        - "functionalize": for functions that write to arrays around them. `rule(state, *args, **options)`
          returns `(output, state)`. Functions are called as `f(state, *args)` and return
          `(output, state)`, where `state` is the tuple of the arrays that they write to.

        Raises ValueRangeError for another transform, and RegistrationError for a second rule, unless
        `allow_override`.
        """
        name = (
            transform if isinstance(transform, str) else getattr(transform, "__name__", transform)
        )
        if name not in RULES:
            fix = "The rule for reverse mode is that of vjp." if name == "grad" else ""
            raise ValueRangeError(
                f"{self.name}: a rule must be for one of {', '.join(map(repr, RULES))}; got {name!r}",
                fix=fix,
            )
        if fun is None:
            return partial(self.def_rule, name, allow_override=allow_override)
        check_callable(fun, f"{self.name}: rule for {name}")
        before = _rules.get((self, name))
        if before is not None and not allow_override:
            raise RegistrationError(
                f"{self.name}: its rule for {name} must be registered once; got another one",
                f"the first was registered at {before.location}",
                fix="Pass allow_override=True to replace it.",
            )
        _rules[self, name] = Registration(self.name, f"rule for {name}", fun, user_source())
        self.bodies.clear()
        if self.primitive._instances.was_used:
            invalidate_caches()
        return fun

    def rule(self, transform: str) -> Registration:
        """The rule for a transform; MissingHigherOrderRuleError if there is none."""
        found = _rules.get((self, transform))
        if found is None:
            have = [name for name in RULES if (self, name) in _rules]
            raise MissingHigherOrderRuleError(
                f"{self.name}: a higher-order operation must have a rule for {transform} here; got "
                f"rules for {', '.join(have) or 'nothing'}",
                fix=f'Give it one: @{self.__name__}.def_rule("{transform}").',
            )
        return found

    def has_rule(self, transform: str) -> bool:
        """Whether there is a rule for a transform."""
        return (self, transform) in _rules

    @api_boundary
    def __call__(self, *args: PyTree, **options: Hashable) -> PyTree:
        arrays = [x for x in args if not _is_function(x)]
        if current_builder.get() is None and not has_jax_tracers(arrays):
            return self.rule("lowering")(*args, **options)
        return self.bind(args, options)

    def bind(self, args: tuple[PyTree, ...], options: dict[str, Hashable]) -> PyTree:
        """The result of a call within a trace."""
        for name, value in options.items():
            try:
                hash(value)
            except TypeError:
                raise StaticArgumentError(
                    f"{self.name}: the option `{name}` must be hashable, since it is static; got "
                    f"{type_name(value)}",
                    fix="Pass arrays by position.",
                ) from None
        arrays = tuple([x for x in args if not _is_function(x)])
        leaves, array_tree = tree.flatten_with_key_data((arrays, {}))
        avals = avals_of(leaves, self.name, self, array_tree)
        traced = trace_with_shared_captures(
            lambda memory: [
                _as_traced(f)
                or trace_function(
                    f, array_tree, avals, self.name, memory=memory, carries_writes=True
                )
                for f in args
                if _is_function(f)
            ]
        )
        in_trees = [f.trees[0] if _has_trees(f) else array_tree for f in args if _is_function(f)]
        functions, stateful, state = self.carry_writes(traced, in_trees, len(leaves))
        if state:
            remaining: Any = iter(stateful)
            whole = [next(remaining) if _is_function(x) else x for x in args]
            rule = self.rule("functionalize")
            pair = rule(tuple(state), *whole, **options)
            if not isinstance(pair, tuple) or len(pair) != 2:
                raise rule.error(f"return a pair (output, state); got {describe_type(pair)}")
            out, new = pair
            if not isinstance(new, (tuple, list)) or len(new) != len(state):
                raise rule.error(f"return a state of {len(state)} arrays; got {describe_type(new)}")
            write_back_arguments(state, dict(enumerate(new)))
            return out
        structure = CallStructure.of(args, functions, array_tree)
        call = self.primitive(
            tuple([f.program for f in functions]),
            tuple([len(f.captured) for f in functions]),
            tuple(sorted(options.items())),
            structure,
        )
        operands = [*leaves, *[x for f in functions for x in f.captured]]
        outs = call(*operands)
        out_tree = call.lowering(tuple([aval_of(x) for x in operands])).out_tree
        return tree.unflatten(out_tree, outs)

    def carry_writes(
        self, traced: Sequence[TracedFunction], in_trees: Sequence[tree.TreeDef], num_leaves: int
    ) -> tuple[list[FunctionOperand], list[StatefulFunction], list[Value]]:
        """The functions as operands, the same as functions of the state, and the state.

        The state are the arrays from outside that the functions write to.
        """
        functions, counts = [], []
        written: dict[Hashable, Value] = {}
        for each, in_tree in zip(traced, in_trees, strict=True):
            own = len(each.program.inputs) - len(each.captured)
            if any([i < own for i in each.written]):
                raise ArgumentWriteError(
                    f"{self.name}: a function must not write to its arguments; got "
                    f"`{each.program.name}`, which does",
                    fix="Write to a copy (x.copy()), and return it.",
                )
            carried, targets = each.with_writes_as_carries()
            written.update((capture_key(x), x) for x in targets)
            functions.append(
                FunctionOperand(carried.program, carried.captured, in_tree, each.out_tree)
            )
            counts.append(len(targets))
        place = {key: i for i, key in enumerate(written)}
        stateful = [
            StatefulFunction(f, [place.get(capture_key(x)) for x in f.captured], count)
            for f, count in zip(functions, counts, strict=True)
        ]
        return functions, stateful, list(written.values())


class CallStructure(NamedTuple):
    """The structure of a call: how its arguments are made of functions and arrays.

    `arguments` is the structure of the arguments with a leaf for each function, `functions` the
    positions of the functions among its leaves, and `trees` the structures of the arguments and of the
    result of each.
    """

    arguments: tree.TreeDef
    functions: tuple[int, ...]
    trees: tuple[tuple[tree.TreeDef, tree.TreeDef], ...]

    @staticmethod
    def of(
        args: Sequence[PyTree], functions: Sequence[FunctionOperand], array_tree: tree.TreeDef
    ) -> CallStructure | None:
        """The structure of `args`; None for functions of flat arrays, then flat arrays."""
        trees = tuple([(f.in_tree, f.out_tree) for f in functions])
        count = len(functions)
        flat = tree.call_treedef(*[_LEAF] * (len(args) - count))
        if (
            array_tree == flat
            and all([_is_function(x) for x in args[:count]])
            and all([pair == (flat, _LEAF) for pair in trees])
        ):
            return None
        places = [_FunctionPlace() if _is_function(x) else x for x in args]
        leaves, arguments = tree.flatten(tuple(places))
        positions = tuple([i for i, x in enumerate(leaves) if type(x) is _FunctionPlace])
        return CallStructure(arguments, positions, trees)

    def __repr__(self) -> str:
        return f"<structure {self.arguments}>"


class _FunctionPlace:
    """A leaf in place of a function."""


_LEAF = tree.structure(0)


def _is_function(x: object) -> bool:
    """Whether an argument is a function or a program."""
    return callable(x) and not hasattr(x, "dtype") and tree.structure(x) == _LEAF


def _has_trees(f: object) -> bool:
    return isinstance(f, Program) and f.trees is not None


def _as_traced(f: object) -> TracedFunction | None:
    """The program `f` as a traced function; None if it is another function."""
    if not isinstance(f, Program) or f.writes or f.trees is None:
        return None
    return TracedFunction(f, list(f.captured), f.trees[1])  # type: ignore[arg-type]


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
    multiple_results = True

    def __init_subclass__(cls, abstract: bool = False):
        super().__init_subclass__(abstract)
        # It checks the results of the rules that users register, and defines its own.
        cls.is_user_defined = False

    def __reduce__(self) -> tuple[Callable[..., Primitive], tuple[str, list[Hashable]]]:
        return _unpickle, (self.operation.name, [getattr(self, f) for f in self.fields])

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
        info: VmapInfo | None = None,
    ) -> list[FunctionOperand]:
        """The functions of a call, with these captured values."""
        found = []
        for i, (program, values) in enumerate(zip(self.programs, captured, strict=True)):
            in_tree, out_tree = (
                (tree.call_treedef(*[_LEAF] * (len(program.inputs) - len(values))), _LEAF)
                if self.structure is None
                else self.structure.trees[i]
            )
            flags = batched[i] if batched else ()
            found.append(FunctionOperand(program, values, in_tree, out_tree, flags, info))
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
            out_tree = _LEAF

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
        info = VmapInfo.of(size)
        rows = [
            x if d is None else ops.batch_dim_at(x, d, 0, size)
            for x, d in zip(args, dims, strict=True)
        ]
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
            functions = self.function_operands(captured, flags, info)
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


def _check_name(name: object) -> None:
    """Raise OperatorNameError unless `name` is `name` or `namespace::name` and not taken."""
    parts = name.split("::") if isinstance(name, str) else []
    if not 1 <= len(parts) <= 2 or not all([part.isidentifier() for part in parts]):
        raise OperatorNameError(
            f"HigherOrderOp: the name must be an identifier, or namespace::name; got {name!r}"
        )
    taken = Primitive.registry.get(str(name))
    if taken is not None:
        existing = higher_order_operations.get(str(name))
        where = "a primitive" if existing is None else describe_source(existing.source)
        raise RegistrationError(
            f"HigherOrderOp: an operation must have a name of its own; got {name!r} again",
            f"it was defined at {where}" if existing else f"{name} is a primitive of functx",
            fix="Choose another name.",
        )


def _find_operation(name: str) -> HigherOrderOp:
    """The higher-order operation of that name."""
    return higher_order_operations[name]


def _unpickle(name: str, values: Sequence[Hashable]) -> Primitive:
    """The call of the operation of that name, with these parameters."""
    call: Primitive = _find_operation(name).primitive(*values)
    return call


@clear_on_rule_change
def _clear_bodies() -> None:
    """Forgets the traced lowering rules, and the types that follow from them."""
    for operation in higher_order_operations.values():
        operation.bodies.clear()
        for instance in list(operation.primitive._instances.values()):
            instance.out_avals_memo.clear()
