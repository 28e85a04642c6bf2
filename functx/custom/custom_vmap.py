"""`custom_vmap`: a function whose meaning for whole batches the user gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from functx.core import tree
from functx.core.avals import ShapedArray
from functx.core.errors import ArgumentError, MissingRuleError, TreeError, type_name
from functx.core.primitive import LinearInput, Primitive
from functx.core.program import Program
from functx.core.samples import f32, sample
from functx.core.tracing import Tracer, apply, aval_of, build, current_builder, rewritten, trace
from functx.custom.captures import Captures, identity
from functx.custom.deferral import RuleBuilder, reopened
from functx.custom.function import CustomFunction, in_jax_trace
from functx.custom.repeating import Pull, PullLinear, Push, inexact_marks
from functx.custom.results import Result
from functx.custom.vmap_rules import InnerBatchRule, PullLinearRule, PullRule, PushRule
from functx.ops.arithmetic import mul
from functx.ops.constants import dense
from functx.ops.shaping import batch_at, expand_dims, reshape
from functx.ops.trigonometric import sin
from functx.transforms.batching import Batch, add_axis
from functx.transforms.calls import avals_of, check_callable, name_of, trace_call
from functx.transforms.control.scan import map as map_rows
from functx.transforms.control.tracing import inexact_cotangents, spread


def custom_vmap(fun: Callable[..., Any]) -> CustomVmapFunction:
    """`fun`, with a rule that the user gives by `def_vmap` for what `vmap` makes of it.

    Derivatives are those of `fun`, and batches of derivatives those of the rule. Where maps
    are nested, the innermost calls the rule, and the others map what the rule does. Outside
    of maps it is `fun`.

    >>> import functx, numpy
    >>> @functx.custom_vmap
    ... def double(x):
    ...     return x + x
    >>> @double.def_vmap
    ... def double_rows(axis_size, in_batched, x):
    ...     return 2.0 * x, in_batched[0]
    >>> functx.vmap(double)(numpy.arange(3.0)).tolist()
    [0.0, 2.0, 4.0]
    """
    return CustomVmapFunction(fun)


def sequential_vmap(fun: Callable[..., Any]) -> CustomVmapFunction:
    """`fun`, which `vmap` calls one row after the other, by `functx.lax.map`.

    >>> import functx, numpy
    >>> double = functx.custom_batching.sequential_vmap(lambda x: x + x)
    >>> functx.vmap(double)(numpy.arange(3.0)).tolist()
    [0.0, 2.0, 4.0]
    """
    custom = CustomVmapFunction(fun)

    def one_by_one(axis_size: int, in_batched: Sequence[Any], *args: Any) -> Any:
        leaves, structure = tree.flatten(args)
        flags = tree.flatten_prefix(tuple(in_batched), args, "in_batched")
        rows = [x for x, on in zip(leaves, flags, strict=True) if on]

        def of_row(row: Sequence[Any]) -> Any:
            rest = iter(row)
            own = [next(rest) if on else x for x, on in zip(leaves, flags, strict=True)]
            return custom(*tree.unflatten(structure, own))

        out = map_rows(of_row, rows)
        return out, tree.map(lambda _: True, out)

    custom.def_vmap(one_by_one)
    return custom


class CustomVmapFunction(CustomFunction):
    """What `custom_vmap` makes of a function."""

    kind = "custom_vmap"
    vmap_rule: Callable[..., Any] | None = None

    def __init__(self, fun: Callable[..., Any]):
        super().__init__(fun)

    def def_vmap(self, vmap_rule: Callable[..., Any]) -> Callable[..., Any]:
        """Set the rule, and return it.

        `vmap_rule(axis_size, in_batched, *args)` gets the arguments with the batch along the
        first axis of each array that `in_batched`, a list with a pytree for each argument,
        marks with True. It returns `(output, out_batched)`, where the second, a pytree like
        the output or a prefix of one, says in the same way what of the output is batched.
        """
        check_callable(vmap_rule, f"{self!r}.def_vmap")
        self.vmap_rule = vmap_rule
        return vmap_rule

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        rule = self.vmap_rule
        if rule is None:
            raise MissingRuleError(
                f"{self!r}: the function must have a batching rule before it is called; got none",
                fix="Give it one with def_vmap.",
            )
        args = self.positional(args, kwargs)
        if current_builder.get() is None and not in_jax_trace(args):
            return self.fun(*args)
        leaves, in_tree = tree.flatten((args, {}))
        avals = avals_of(leaves, self.kind, self.fun, in_tree)
        traced = trace_call(self.fun, in_tree, avals, self.kind, values=leaves)
        captures = Captures()
        captures.add(traced.captured)
        captures.add(_closed_over(rule))
        program = captures.extend(traced.program, traced.captured)
        users = UserRule(
            self, rule, in_tree, traced.out_tree, tuple(traced.program.out_avals), captures
        )
        outs = CustomVmap(program, users)(*leaves, *captures.values)
        return tree.unflatten(traced.out_tree, outs)


def _closed_over(rule: Any) -> list[Tracer]:
    """The traced values among the variables of `rule`, and of functions in these."""
    found: list[Tracer] = []
    pending, seen = [rule], set()
    while pending:
        each = pending.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        for part in tree.leaves(each):
            if type(part) is Tracer:
                found.append(part)
            elif isinstance(part, partial):
                pending += [part.func, part.args, part.keywords]
            elif isinstance(part, CustomFunction):
                pending.append(part.fun)
            else:
                cells = getattr(part, "__closure__", None) or ()
                pending += [cell.cell_contents for cell in cells if _is_full(cell)]
                pending.append(getattr(part, "__defaults__", None))
    return found


def _is_full(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


class UserRule:
    """The user's batching rule of one call.

    Two are equal when they stand for the same function, called alike with the same values
    captured.
    """

    def __init__(
        self,
        custom: CustomVmapFunction,
        rule: Callable[..., Any],
        in_tree: Any,
        out_tree: Any,
        out_avals: tuple[ShapedArray, ...],
        captures: Captures,
    ):
        self.custom, self.rule, self.captures = custom, rule, captures
        self.in_tree, self.out_tree, self.out_avals = in_tree, out_tree, out_avals
        self.home = current_builder.get()
        self.made: dict[Any, tuple[Program, list[bool]]] = {}
        held = tuple([identity(x) for x in captures.values])
        self.key = custom, rule, in_tree, out_tree, out_avals, held

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UserRule) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    @property
    def __name__(self) -> str:
        return name_of(self.rule)

    def decides(self, flags: Sequence[bool]) -> bool:
        return any(flags)

    def __call__(
        self, size: int, flags: Sequence[bool], args: Sequence[Any]
    ) -> tuple[list[Any], list[bool]]:
        own = len(args) - len(self.captures.values)
        if any(flags[own:]):
            return self.one_by_one(size, flags, args), [True] * len(self.out_avals)
        avals = tuple([x.aval for x in args[:own]])
        key = size, tuple(flags[:own]), avals
        if key not in self.made:
            self.made[key] = self.traced(size, flags[:own], avals)
        program, out_flags = self.made[key]
        return apply(None, program, args), out_flags

    def one_by_one(self, size: int, flags: Sequence[bool], args: Sequence[Any]) -> list[Any]:
        """The outputs where captured values are batched: the rule of a batch of one, mapped.

        The rule is a function of the arguments, and another one for each captured value.
        """
        own = len(args) - len(self.captures.values)
        marks = [i < own for i in range(len(args))]

        def of_one(*xs: Any) -> list[Any]:
            rows = [expand_dims(x, (0,)) if one else x for x, one in zip(xs, marks, strict=True)]
            outs, out_flags = self(1, marks, rows)
            return [
                reshape(x, x.shape[1:]) if on else x for x, on in zip(outs, out_flags, strict=True)
            ]

        dims = tuple([0 if on else None for on in flags])
        avals = [
            x.aval.update(shape=x.shape[1:]) if on else x.aval
            for x, on in zip(args, flags, strict=True)
        ]
        program, _ = trace(of_one, avals, name=name_of(self.rule))
        return apply(None, Batch(size, dims, (0,) * len(self.out_avals))(program), args)

    def traced(
        self, size: int, flags: Sequence[bool], avals: Sequence[ShapedArray]
    ) -> tuple[Program, list[bool]]:
        """The program of the rule, which takes captured values last; which outputs are batched."""
        out_flags: list[bool] = []
        result = Result(repr(self.custom), self.rule)

        def body(*xs: Any) -> list[Any]:
            args, _ = tree.unflatten(self.in_tree, xs)
            marks, _ = tree.unflatten(self.in_tree, flags)
            out, batched = result.pair(self.rule(size, list(marks), *args), "(output, out_batched)")
            out_flags[:] = self.out_flags(result, batched)
            expected = [
                add_axis(a, 0 if on else None, size)
                for a, on in zip(self.out_avals, out_flags, strict=True)
            ]
            return result.leaves(out, self.out_tree, expected)

        builder = RuleBuilder(name_of(self.rule), self.custom.kind, self.home)
        builder.custom, builder.forced = self.custom, True
        with reopened(self.home):
            program, captured = build(builder, body, [builder.add_input(a) for a in avals])
        return self.closed(program, captured), out_flags

    def out_flags(self, result: Result, batched: Any) -> list[bool]:
        """One flag for each output."""
        example = tree.unflatten(self.out_tree, range(self.out_tree.num_leaves))
        if isinstance(batched, list) and isinstance(example, tuple):
            batched = tuple(batched)
        try:
            flags = tree.flatten_prefix(batched, example, "out_batched")
        except TreeError as error:
            raise result.of("out_batched").error(
                "must be a pytree like the output, or a prefix of one; got another structure",
                *error.details,
            ) from None
        for flag in flags:
            if not isinstance(flag, bool):
                raise result.of("out_batched").error(
                    f"must be made of True and False; got {type_name(flag)}"
                )
        return flags

    def closed(self, program: Program, captured: Sequence[Any]) -> Program:
        """`program` with inputs for the captured values of the call, and for no others.

        Other arrays become part of the program.
        """
        found = [self.captures.find(x) for x in captured]
        for x, place in zip(captured, found, strict=True):
            if place is None and type(x) is Tracer:
                raise ArgumentError(
                    f"{self.custom!r}: its rule `{name_of(self.rule)}` must use traced values that "
                    f"are arguments, or variables around the rule; got {x!r}",
                    fix="Pass the value as an argument of the function.",
                )

        def body(*xs: Any) -> list[Any]:
            own = len(xs) - len(self.captures.values)
            held = xs[own:]
            others = [
                dense(x) if place is None else held[place]
                for x, place in zip(captured, found, strict=True)
            ]
            return apply(None, program, [*xs[:own], *others])

        own_avals = program.in_avals[: len(program.inputs) - len(captured)]
        avals = [*own_avals, *[aval_of(x) for x in self.captures.values]]
        return trace(body, avals, name=program.name)[0]


class _ExampleRule:
    """The rule that does what mapping the example does."""

    def decides(self, flags: Sequence[bool]) -> bool:
        return any(flags)

    def __call__(
        self, size: int, flags: Sequence[bool], args: Sequence[Any]
    ) -> tuple[list[Any], list[bool]]:
        dims = tuple([0 if on else None for on in flags])
        return apply(Batch(size, dims, (0,)), _EXAMPLE, args), [True]


def _example() -> Program:
    def body(x: Any, y: Any) -> list[Any]:
        return [mul(sin(x), y)]

    return trace(body, [f32[3], f32[3]], name="example")[0]


_EXAMPLE = _example()


class CustomVmap(Primitive):
    """The outputs of `program`, for batches of which `rule`, a `VmapRule`, speaks.

    Derivatives compute what they need again, from the operands, since what the rule would
    save of a batch is not what the program saves; one compiled program merges the two.
    """

    program: Program
    rule: Any
    multiple_results = True
    samples = (sample(f32[3], f32[3], dtypes=("f32",), program=_EXAMPLE, rule=_ExampleRule()),)

    def abstract_eval(self, *avals):
        return self.program.out_avals

    def jvp(self, primals, tangents):
        varying = tuple([t is not None for t in tangents])
        pushed = rewritten(Push(varying), self.program)
        given = [t for t in tangents if t is not None]
        found = CustomVmap(pushed, PushRule(self.rule, varying))(*primals, *given)
        return self(*primals), spread(found, inexact_marks(self.program.out_avals))

    def forward(self, args, active):
        return self(*args), ()

    def vjp(self, cts, saved, args, active):
        active, given = tuple(active), tuple([ct is not None for ct in cts])
        pulled = rewritten(Pull(active, given), self.program)
        rule = PullRule(self.rule, active, given)
        return spread(
            CustomVmap(pulled, rule)(*[ct for ct in cts if ct is not None], *args), active
        )

    def transpose(self, cts, *args):
        linear = tuple([type(x) is LinearInput for x in args])
        pulled = rewritten(PullLinear(linear), self.program)
        rule = PullLinearRule(
            self.rule, linear, tuple([x.aval for x in args if type(x) is LinearInput])
        )
        given = inexact_cotangents(cts, self.program.out_avals)
        known = [x for x in args if type(x) is not LinearInput]
        return spread(CustomVmap(pulled, rule)(*given, *known), linear)

    def batch(self, args, dims):
        size = next(x.shape[d] for x, d in zip(args, dims, strict=True) if d is not None)
        flags = [d is not None for d in dims]
        if not self.rule.decides(flags):
            zeros = (0,) * len(self.program.outputs)
            program = rewritten(Batch(size, tuple(dims), zeros), self.program)
            rule = InnerBatchRule(self.rule, size, tuple(dims))
            return CustomVmap(program, rule)(*args), list(zeros)
        rows = [
            x if d is None else batch_at(x, d, 0, size) for x, d in zip(args, dims, strict=True)
        ]
        outs, out_flags = self.rule(size, flags, rows)
        return outs, [0 if on else None for on in out_flags]

    def lower(self, ctx, *values):
        return ctx.call(self.program, list(values))
