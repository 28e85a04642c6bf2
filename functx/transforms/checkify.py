"""`checkify`: a function with checks as a function without, which returns the first failure as a value.

A check is an equation with an effect. The rewrite carries the failure through the program as a state: each
check writes to it unless an earlier one has, and calls, loops and branches take it and return it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from functx import ops
from functx.core import tree
from functx.core.backend import backend
from functx.core.effects import Effect
from functx.core.errors import ArgumentError, CheckError, UnhandledCheckError, type_name
from functx.core.primitive import Primitive
from functx.core.program import Equation, Program, subprograms
from functx.core.program_editing import map_primitive_programs, replace_program_fields
from functx.core.rewriting import Rewrite, apply, bind_equation, cached_rewrite, interpret
from functx.core.samples import EXACT
from functx.core.source_info import source_line
from functx.core.tracer import Tracer, aval_of
from functx.core.tracing import trace_closed
from functx.core.types import ShapedArray, is_inexact
from functx.core.typing import Dim, Dims, Function, PyTree, Value, Values
from functx.ops.checks import (
    Check,
    CheckKind,
    CheckSite,
    check_site,
    failed_check_error,
    failure_text,
    find_failures,
)
from functx.ops.indexing import GatherScatter
from functx.ops.operands import batch_size, is_literal_equal, literal
from functx.transforms.argument_names import check_callable, wrap_transform
from functx.transforms.batching import interpret_batched, remove_axis
from functx.transforms.control.state_threading import thread_state
from functx.transforms.control.while_loop import While
from functx.transforms.tracing_api import partition_static_arguments, trace_function

user_checks = frozenset({CheckKind.USER})
nan_checks = frozenset({CheckKind.NAN})
index_checks = frozenset({CheckKind.INDEX})
div_checks = frozenset({CheckKind.DIVISION})
float_checks = nan_checks | div_checks
automatic_checks = float_checks | index_checks
all_checks = automatic_checks | user_checks

Slot = tuple[ShapedArray, ...]
"""The types of the operands of checks, which share a part of the state: numbers, values of a message."""
INT32 = np.dtype("int32")
NUMBER, FLAG = ShapedArray((), INT32), ShapedArray((), np.dtype(bool))


@tree.register_node_class
class Error:
    """The first check that failed, if one did: a pytree of arrays, which traced functions may return.

    Each of `slots` holds the number of a check in `sites`, 0 for none, and the values of its message.
    Leading axes are those that checks were mapped over; then the first failure of each index is held.
    """

    __slots__ = ("sites", "slots")

    def __init__(self, sites: Sequence[CheckSite] = (), slots: Iterable[Sequence[Any]] = ()):
        self.sites, self.slots = tuple(sites), tuple([tuple(slot) for slot in slots])

    def tree_flatten(self) -> tuple[tuple[Any, ...], tuple[CheckSite, ...]]:
        """The arrays, and the checks they number."""
        return self.slots, self.sites

    @classmethod
    def tree_unflatten(cls, sites: tuple[CheckSite, ...], slots: Iterable[Any]) -> Error:
        """The error of these arrays."""
        return cls(sites, slots)

    @property
    def has_data(self) -> bool:
        """Whether the arrays are known, so that `get` can answer; not while they are traced."""
        return not any([is_traced(x) for slot in self.slots for x in slot])

    def get(self) -> str | None:
        """The message of the first failure and the user's line; one for each mapped index, None for none."""
        slots = [[np.asarray(x) for x in slot] for slot in self.slots]
        return failure_text(
            [each for slot in slots for each in find_failures(self.sites, slot[0], slot[1:])]
        )

    def get_exception(self) -> CheckError | None:
        """The error that `throw` raises; None if no check failed."""
        text = self.get()
        return None if text is None else failed_check_error(text)

    def throw(self) -> None:
        """Raises CheckError if a check failed; while the error is traced, it is checked as by `check`."""
        check_error(self)

    def __repr__(self) -> str:
        return f"Error({self.get()})" if self.has_data else f"Error({len(self.sites)} checks)"


def is_traced(x: object) -> bool:
    """Whether `x` is an array that functx or JAX traces."""
    return type(x) is Tracer or backend.concrete_or_none(x) is None


def check_error(error: Error) -> None:
    """Raise CheckError if `error` holds a failure: the inverse of `checkify`.

    In a traced function it is a check, as `check` is, which an outer `checkify` returns with the message
    and the line of the inner check.

    Raises ArgumentError for anything else than an `Error`.

    >>> import functx
    >>> from functx.checkify import check, check_error, checkify
    >>> def f(x):
    ...     check(x > 0, "{} is not positive", x)
    ...     return x
    >>> error, _ = functx.jit(checkify(f))(1.0)
    >>> check_error(error)
    """
    if not isinstance(error, Error):
        raise ArgumentError(f"check_error: the argument must be an Error; got {type_name(error)}")
    sites = tuple([site.replace(debug=False, rethrown=True) for site in error.sites])
    for slot in error.slots:
        Check(sites)(*slot)


def checkify(fun: Function, errors: Iterable[CheckKind] = user_checks) -> Function:
    """`fun` as a function that returns an `Error` and then its result, and has no checks itself.

    The error holds the first check that failed, in the order of the program. `errors` says which are
    made: `user_checks` are the calls of `check`; `nan_checks` look for nan in the result of each
    computation, `div_checks` for divisors of 0, `index_checks` for indices out of bounds; unions of these
    sets make several, and `float_checks`, `automatic_checks`, `all_checks` are such. Other checks are
    dropped. The result is computed as if no check had failed. Checks in functions with derivative rules
    are made, those in the rules are not, unless `fun` takes the derivative itself.

    Raises ArgumentError for other `errors`, UnhandledCheckError for a check where none can be returned.

    >>> import functx
    >>> from functx.checkify import check, checkify, float_checks, user_checks
    >>> def f(x):
    ...     check(x > 0, "{} is not positive", x)
    ...     return functx.numpy.log(x)
    >>> error, out = functx.jit(checkify(f))(-1.0)
    >>> error.get().splitlines()[0]
    '-1.0 is not positive (`check` failed)'
    >>> checkify(f, user_checks | float_checks)(1.0)[0].get() is None
    True
    """
    check_callable(fun, "checkify")
    kinds = frozenset(errors)
    if stray := [each for each in kinds if not isinstance(each, CheckKind)]:
        raise ArgumentError(
            f"checkify: errors must be a set of checks; got {type_name(stray[0])} {stray[0]!r} in it",
            fix="Pass functx.checkify.all_checks, or a union such as user_checks | nan_checks.",
        )

    def wrapper(*args: PyTree, **kwargs: PyTree) -> tuple[Error, PyTree]:
        leaves, in_tree = tree.flatten_with_key_data((args, kwargs))
        leaves, in_tree, avals, _ = partition_static_arguments(leaves, in_tree, "checkify", fun, ())
        traced = trace_function(fun, in_tree, avals, "checkify", values=leaves)
        operands = [*leaves, *traced.captured]
        checked = cached_rewrite(Checkify(kinds), traced.program)
        error, outs = checked.split(apply(None, checked.program, operands))
        return error, tree.unflatten(traced.out_tree, traced.finish_call(operands, outs))

    return wrap_transform(wrapper, fun, "checkify")


def run_checked(
    rewrite: Callable[[Program], Program] | None, program: Program, args: Values
) -> list[Value]:
    """The outputs of `rewrite(program)` on concrete `args`; raises CheckError if a check fails."""
    if rewrite is not None:
        program = cached_rewrite(rewrite, backend.prepare_for_transform(program))
    checked = cached_rewrite(Checkify(user_checks, False), program)
    error, outs = checked.split(backend.run(None, checked.program, args))
    error.throw()
    return outs


def batch_checked(primitive: Primitive, args: Values, dims: Dims) -> tuple[Values, list[Dim]]:
    """The batched outputs of an operation that makes checks for some elements; their dimensions.

    The batch returns the failures of all elements, which are checked then.
    """
    avals = [remove_axis(aval_of(x), d) for x, d in zip(args, dims, strict=True)]
    program = trace_closed(lambda *xs: primitive(*xs), avals, name=primitive.name)
    checked = cached_rewrite(Checkify(user_checks), program)
    outs = interpret_batched(checked.program, args, dims)
    size, count = batch_size(args, dims), sum(map(len, checked.slots))
    state = [ops.batch_dim_at(x, d, 0, size) for x, d in outs[:count]]
    return checked.check_again([*state, *[x for x, _ in outs[count:]]]), [
        d for _, d in outs[count:]
    ]


class CheckedProgram(NamedTuple):
    """A program that returns the state of the checks before its outputs."""

    program: Program
    sites: tuple[CheckSite, ...]
    slots: tuple[Slot, ...]

    def split(self, results: Sequence[Value]) -> tuple[Error, list[Value]]:
        """The error in the results, and the outputs."""
        rest = list(results)
        slots = [[rest.pop(0) for _ in slot] for slot in self.slots]
        return Error(self.sites, slots), rest

    def check_again(self, results: Sequence[Value]) -> list[Value]:
        """The outputs, after the checks of the failures in the results."""
        error, outs = self.split(results)
        for slot in error.slots:
            Check(self.sites)(*slot)
        return outs


class Checkify(Rewrite[CheckedProgram]):
    """The rewrite to a program that returns its first failure among checks of the given kinds."""

    kinds: frozenset[CheckKind]
    with_debug: bool = True

    def __call__(self, program: Program) -> CheckedProgram:
        threading = CheckThreading(self, program)
        checked = trace_closed(
            partial(threading.run, program),
            program.in_avals,
            name=f"checkify_{program.name}",
            in_names=program.in_names,
        )
        return CheckedProgram(checked, tuple(threading.numbers), threading.slots)

    def makes(self, site: CheckSite) -> bool:
        """Whether the check is made."""
        is_chosen = site.kind in self.kinds or (site.rethrown and CheckKind.USER in self.kinds)
        return is_chosen and (self.with_debug or not site.debug)

    def slots(self, eqn: Equation) -> list[Slot]:
        """The types of the checks that `eqn` is or gets."""
        primitive, kinds = eqn.primitive, self.kinds
        if isinstance(primitive, Check):
            is_made = any(map(self.makes, primitive.sites))
            return [tuple([a.aval.update(weak_type=False) for a in eqn.inputs])] * is_made
        slots: list[Slot] = []
        if CheckKind.NAN in kinds and _may_make_nan(eqn):
            slots.append((NUMBER,))
        if CheckKind.DIVISION in kinds and isinstance(primitive, ops.Div):
            slots.append((NUMBER,))
        if CheckKind.INDEX in kinds and isinstance(primitive, _INDEXING):
            slots.append((NUMBER,) * 4)
        return slots


_INDEXING = (GatherScatter, ops.DynamicSlice, ops.DynamicUpdateSlice)


def _may_make_nan(eqn: Equation) -> bool:
    """Whether an equation computes inexact values, rather than moving them."""
    computes = eqn.primitive.rounding is not EXACT or isinstance(eqn.primitive, ops.Rem)
    return computes and any([is_inexact(v.aval.dtype) for v in eqn.outputs])


class CheckThreading:
    """The state of the checks while a program is rewritten, and its sub-programs with that state.

    The state is whether a check failed, then the arrays of each of `slots`. `numbers` has the number of
    each check.
    """

    def __init__(self, rewrite: Checkify, program: Program):
        self.rewrite = rewrite
        self.numbers: dict[CheckSite, int] = {}
        found = [slot for each in program.walk() for eqn in each for slot in rewrite.slots(eqn)]
        self.slots: tuple[Slot, ...] = tuple(dict.fromkeys(found))
        self.avals = [FLAG, *[a for slot in self.slots for a in slot]]
        self.state: list[Value] = []
        # By identity, since equal programs may come from other lines; the keys must not be freed.
        self.threaded: dict[int, tuple[Program, Program]] = {}

    def run(self, program: Program, *args: Value) -> list[Value]:
        """The arrays of the slots, then the outputs."""
        self.state = [ops.constant_like(aval, 0) for aval in self.avals]
        outs = interpret(program, args, self.step)
        return [*self.state[1:], *outs]

    def thread(self, program: Program) -> Program:
        """`program` with the state before its inputs and before its outputs."""
        if id(program) not in self.threaded:
            outer, count = self.state, len(self.avals)

            def body(*args: Value) -> list[Value]:
                self.state = list(args[:count])
                outs = interpret(program, args[count:], self.step)
                return [*self.state, *outs]

            threaded = trace_closed(body, [*self.avals, *program.in_avals], name=program.name)
            self.threaded[id(program)] = program, threaded
            self.state = outer
        return self.threaded[id(program)][1]

    def inline(self, program: Program, args: Values) -> list[Value]:
        """The outputs of `program`, whose checks change the state."""
        outs = apply(None, self.thread(program), [*self.state, *args])
        count = len(self.avals)
        self.state = outs[:count]
        return outs[count:]

    def is_checked(self, program: Program) -> bool:
        """Whether `program` has checks that are made, at any depth."""
        return any([self.rewrite.slots(eqn) for each in program.walk() for eqn in each])

    def step(self, eqn: Equation, *operands: Value) -> Sequence[Value]:
        primitive = eqn.primitive
        if isinstance(primitive, Check):
            if self.rewrite.slots(eqn):
                self.record(primitive.sites, *operands)
            return []
        if any(map(self.is_checked, subprograms(primitive))):
            outs = self.run_subprograms(eqn, operands)
            if outs is not None:
                return outs
        if Effect.CHECK in primitive.effects:
            eqn = eqn.replace(primitive=map_primitive_programs(primitive, drop_checks))
        if CheckKind.DIVISION in self.rewrite.kinds and isinstance(primitive, ops.Div):
            is_zero = ops.reduce_or(zero_mask(operands[1]))
            self.record_automatic(eqn, CheckKind.DIVISION, "division by zero", is_zero)
        if CheckKind.INDEX in self.rewrite.kinds and isinstance(primitive, _INDEXING):
            self.check_indices(eqn, operands)
        outs = bind_equation(eqn, *operands)
        if CheckKind.NAN in self.rewrite.kinds and _may_make_nan(eqn):
            for x in outs:
                if is_inexact(x.dtype):
                    text = f"nan generated by primitive: {primitive.name}."
                    self.record_automatic(eqn, CheckKind.NAN, text, ops.reduce_or(ops.ne(x, x)))
        return outs

    def run_subprograms(self, eqn: Equation, operands: Values) -> Sequence[Value] | None:
        """The outputs of an operation with checks in its sub-programs; None if it cannot have any."""
        primitive, count = eqn.primitive, len(self.avals)
        if isinstance(primitive, While) and self.is_checked(primitive.condition):
            return self.run_loop(primitive, operands)
        threaded = thread_state(primitive, self.thread, count)
        if threaded is not None:
            loop, place = threaded
            outs = loop(*operands[:place], *self.state, *operands[place:])
            self.state = outs[:count]
            return outs[count:]  # type: ignore[no-any-return]
        field = primitive.primal_field
        if field is not None:
            # Rules know of no state: the checks are computed beside the operation, which has none.
            program = getattr(primitive, field)
            self.inline(program, [ops.stop_gradient(x) for x in operands])
            return bind_equation(
                eqn.replace(primitive=primitive.replace(**{field: drop_checks(program)})), *operands
            )
        if Effect.CHECK in primitive.effects:
            raise UnhandledCheckError(
                f"checkify: a check must stand where its failure can be returned; got one in a function "
                f"that {primitive.name} calls",
                fix="Check the operands before it, or the results after it.",
                source=eqn.source,
            )
        return None

    def run_loop(self, loop: While, operands: Values) -> list[Value]:
        """The results of a loop with checks in its condition: the end of each step computes it instead."""
        first, consts, carry = loop.split_operands(operands)
        m, n = len(first), len(first) + len(consts)

        def step(*args: Value) -> list[Value]:
            new = apply(None, loop.body, [*args[m:n], *args[n + 1 :]])
            return [*apply(None, loop.condition, [*args[:m], *new]), *new]

        body_avals = [*[aval_of(x) for x in first], *loop.body.in_avals]
        carry_avals = [FLAG, *body_avals[n:]]
        body = trace_closed(step, [*body_avals[:n], *carry_avals], name=loop.body.name)
        condition = trace_closed(lambda go, *_: [go], carry_avals, name=loop.condition.name)
        rotated = loop.with_program(condition, body, 0, n)
        start = self.inline(loop.condition, [*first, *carry])
        results = self.run_subprograms(
            Equation(rotated, [], [], None), [*first, *consts, *start, *carry]
        )
        assert results is not None
        return list(results[1:])

    def record_automatic(
        self, eqn: Equation, kind: CheckKind, text: str, failed: Value, *values: Value
    ) -> None:
        """Adds a check of `failed` to the state."""
        site = check_site(kind, text, source_line(eqn.source), len(values))
        self.record((site,), ops.convert_element_type(failed, INT32, False), *values)

    def record(self, sites: Sequence[CheckSite], numbers: Value, *values: Value) -> None:
        """Writes the operands of a check to the state, unless a check failed before."""
        numbers = self.renumber(sites, numbers)
        operands = [
            ops.stop_gradient(ops.convert_element_type(x, x.dtype, False))
            for x in (numbers, *values)
        ]
        failed, *arrays = self.state
        slot = tuple([aval_of(x) for x in operands])
        start = sum([len(each) for each in self.slots[: self.slots.index(slot)]])
        arrays[start : start + len(slot)] = [
            ops.select(failed, old, new) for old, new in zip(arrays[start:], operands, strict=False)
        ]
        self.state = [ops.bitwise_or(failed, ops.reduce_or(ops.ne(numbers, 0))), *arrays]

    def renumber(self, sites: Sequence[CheckSite], numbers: Value) -> Value:
        """The numbers among all checks for `numbers` of `sites`; 0 for checks that are not made."""
        result = ops.constant_like(numbers, 0)
        for i, site in enumerate(sites):
            if self.rewrite.makes(site):
                number = self.numbers.setdefault(site, len(self.numbers) + 1)
                result = ops.select(
                    ops.eq(numbers, i + 1), ops.constant_like(numbers, number), result
                )
        return result

    def check_indices(self, eqn: Equation, operands: Values) -> None:
        """Adds the check that the windows of a gather, scatter or dynamic slice lie in the operand."""
        primitive, x = eqn.primitive, operands[0]
        if isinstance(primitive, GatherScatter):
            indices, axes = operands[1], primitive.start_index_map
            sizes = (
                primitive.slice_sizes
                if isinstance(primitive, ops.Gather)
                else primitive.slice_sizes(x, operands[2])  # type: ignore[attr-defined]
            )
        else:
            updates = isinstance(primitive, ops.DynamicUpdateSlice)
            sizes = operands[1].shape if updates else primitive.sizes  # type: ignore[attr-defined]
            axes = tuple(range(x.ndim))
            starts = [ops.reshape(start, (1,)) for start in operands[1 + updates :]]
            if not starts:
                return
            indices = ops.concatenate(starts, 0)
        if not indices.size:
            return
        count, lead = len(axes), indices.size // len(axes)

        def column(x: Value, k: int) -> Value:
            return ops.reshape(ops.slice_in_dim(x, k, k + 1, axis=-1), (lead, 1))

        largest = np.iinfo(indices.dtype).max
        columns = [column(indices, k) for k in range(count)]
        outside = [
            ops.bitwise_or(ops.lt(i, 0), ops.gt(i, min(x.shape[d] - sizes[d], largest)))
            for i, d in zip(columns, axes, strict=True)
        ]
        outside_any, index_values = (
            ops.reshape(ops.concatenate(each, 1), (lead * count,)) for each in (outside, columns)
        )
        first = ops.argmax(outside_any, 0, INT32)
        is_first = ops.eq(ops.iota(INT32, lead * count), first)
        index = ops.reduce_sum(ops.select(is_first, index_values, literal(0, indices.dtype)))
        component = ops.rem(first, literal(count, INT32))
        axis, size = ops.constant_like(first, 0), ops.constant_like(first, 0)
        for k, d in enumerate(axes):
            is_axis = ops.eq(component, k)
            axis = ops.select(is_axis, ops.constant_like(first, d), axis)
            size = ops.select(is_axis, ops.constant_like(first, x.shape[d]), size)
        text = (
            f"out-of-bounds indexing for array of shape {x.shape}: index {{}} is out of bounds for "
            "axis {} with size {}."
        )
        index = ops.convert_element_type(index, INT32, False)
        failed = ops.reduce_or(outside_any)
        self.record_automatic(eqn, CheckKind.INDEX, text, failed, index, axis, size)


def zero_mask(divisor: Value) -> Value:
    """The mask of the zeros of a divisor; where `//` of integers divides by 1 instead, of those before."""
    if type(divisor) is Tracer and not is_inexact(divisor.dtype):
        builder = divisor.builder
        select = builder.defining_equation(divisor.atom)
        if select is not None and isinstance(select.primitive, ops.Select):
            mask, y, one = select.inputs
            test = builder.defining_equation(mask)
            if (
                is_literal_equal(one, 1)
                and test is not None
                and isinstance(test.primitive, ops.Eq)
                and test.inputs[0] is y
                and is_literal_equal(test.inputs[1], 0)
            ):
                return Tracer(mask, builder)
    return ops.eq(divisor, 0)


def drop_checks(program: Program) -> Program:
    """`program` without its checks, at any depth."""
    if Effect.CHECK not in program.effects:
        return program
    equations = [
        eqn.replace(primitive=map_primitive_programs(eqn.primitive, drop_checks))
        for eqn in program.equations
        if not isinstance(eqn.primitive, Check)
    ]
    return replace_program_fields(program, equations=equations)
