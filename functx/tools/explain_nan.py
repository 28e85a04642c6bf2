"""Where numbers that are not finite are born in a run of a program, equation by equation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import singledispatch
from typing import Any

import numpy as np

from functx import ops
from functx.core import tree
from functx.core.backend import backend
from functx.core.concretization import concretize
from functx.core.primitive import Primitive
from functx.core.printing import equation_text, variable_names
from functx.core.program import Equation, Program, Var, pad_input_names
from functx.core.rewriting import bind_equation, interpret
from functx.core.source_info import source_line
from functx.core.tracer import Tracer, aval_of, current_builder
from functx.core.tracing import eval_context, trace_closed
from functx.core.types import is_inexact
from functx.custom.checkpoint import Checkpoint
from functx.custom.custom_vmap import CustomVmap
from functx.ops.families import Elementwise
from functx.transforms.ad_canonicalization import canonicalize_for_ad
from functx.transforms.argument_names import check_callable, function_name
from functx.transforms.call_primitive import Call
from functx.transforms.control.cond import Cond
from functx.transforms.control.scan import Scan
from functx.transforms.control.while_loop import While
from functx.transforms.grad import argnums_leaves, canonical_argnums
from functx.transforms.jvp import jvp
from functx.transforms.reverse_mode import Cotangents, TapeEntry, backward_sweep, forward_sweep
from functx.transforms.tracing_api import avals_of, trace_function

Index = tuple[int, ...]


@dataclass(frozen=True)
class NonFiniteOrigin:
    """The equation that made a nan of numbers that were none, or an infinity of finite ones.

    `values` are those of its operands and outputs by name, at `index` where they have the shape
    of the output. In the derivative of an equation, `local` are its derivatives there in its
    operands, by name, and `cotangent` is what it was handed. An argument has no equation.
    """

    line: str
    equation: str = ""
    index: Index = ()
    values: dict[str, Any] = field(default_factory=dict)
    derivative: bool = False
    local_derivatives: dict[str, Any] = field(default_factory=dict)
    cotangent: Any = None

    def __str__(self) -> str:
        place = f", at {list(self.index)}" if self.index else ""
        lines = [self.line]
        if self.equation:
            part = "the derivative of " if self.derivative else ""
            lines.append(f"  {part}{self.equation}{place}")
        lines += [f"    {name} = {format_value(x)}" for name, x in self.values.items()]
        lines += [
            f"    local derivative in {name} = {format_value(x)}"
            for name, x in self.local_derivatives.items()
        ]
        if self.derivative:
            lines.append(f"    cotangent = {format_value(self.cotangent)}")
        return "\n".join(lines)


class EvaluatedProgram:
    """A program without control flow, and the values of its variables."""

    def __init__(self, program: Program, values: dict[Var, Any]):
        self.program, self.values = program, values
        self.names = variable_names(program)
        self.producers = {v: eqn for eqn in program for v in eqn.outputs}

    def origin_variables(self, var: Var) -> list[Var]:
        """The variable in which what is not finite in `var` was born, and those that it was made of."""
        found = []
        while True:
            eqn, value = self.producers.get(var), self.values[var]
            index = first_nonfinite_index(value)
            bad = [] if eqn is None else self.nonfinite_operands(eqn, index, value)
            worst = [v for v in bad if np.isnan(self.values[v]).any()]
            handed_on = worst if np.isnan(value[index]) else bad
            if not handed_on:
                found.append(var)
            if not bad:
                return found
            var = (handed_on or bad)[0]

    def nonfinite_operands(self, eqn: Equation, index: Index, value: Any) -> list[Var]:
        """The operands that are not finite, first those that are not at `index`."""
        bad = [
            a
            for a in eqn.inputs
            if type(a) is Var and first_nonfinite_index(self.values[a]) is not None
        ]

        def elsewhere(v: Var) -> bool:
            x = self.values[v]
            return x.shape == value.shape and bool(np.isfinite(x[index]))

        return sorted(dict.fromkeys(bad), key=elsewhere)

    def origin_at(self, var: Var) -> NonFiniteOrigin:
        """What there is to tell of `var`, where something was born."""
        eqn, value = self.producers.get(var), self.values[var]
        index = first_nonfinite_index(value)
        if eqn is None:
            return NonFiniteOrigin(
                f"the argument {self.names[var]}", "", index, {self.names[var]: value[index]}
            )
        shown = self.values_at([*eqn.inputs, var], index, value.shape)
        return NonFiniteOrigin(
            source_line(eqn.source), equation_text(self.program, eqn), index, shown
        )

    def values_at(self, atoms: Sequence[Any], index: Index, shape: Any) -> dict[str, Any]:
        """The values of `atoms` by name, at `index` if they have `shape`."""
        found = {}
        for a in atoms:
            if type(a) is Var:
                x = self.values[a]
                found[self.names[a]] = x[index] if x.shape == shape else x
        return found


def first_nonfinite_index(x: Any) -> Any:
    """The first place where `x` is nan, or else infinite; None if it is finite."""
    if not is_inexact(x.dtype):
        return None
    for bad in (np.isnan(x), ~np.isfinite(x)):
        if bad.any():
            return tuple([int(i) for i in np.unravel_index(int(np.argmax(bad)), x.shape)])
    return None


def format_value(x: Any) -> str:
    """A number, or the type and the range of an array."""
    x = np.asarray(x)
    if x.ndim == 0:
        return f"{x[()]}"
    if x.size <= 6:
        return np.array2string(x, separator=", ").replace("\n", "")
    return f"{x.dtype}{list(x.shape)}, between {x.min()} and {x.max()}"


def unroll_control_flow(program: Program, args: Sequence[Any]) -> Program:
    """What `program` does on `args`: the branches that it takes, each step of its loops.

    A function with a rule of its own stays one equation, since its derivative is the rule's.
    """

    def body(*tracers: Tracer) -> list[Any]:
        return inline_control_flow(program, tracers)

    avals, names = program.in_avals, program.in_names
    return trace_closed(body, avals, name=program.name, values=args, in_names=names)


def evaluate_variables(program: Program, args: Sequence[Any]) -> dict[Var, np.ndarray[Any, Any]]:
    """The values of all variables of `program` on `args`, found equation by equation."""
    env: dict[Any, Any] = dict(zip(program.inputs, map(np.asarray, args), strict=True))
    with eval_context():
        for eqn in program.equations:
            operands = [env[a] if type(a) is Var else a for a in eqn.inputs]
            outs = backend.evaluate_eagerly(eqn.primitive, operands)
            outs = outs if eqn.primitive.multiple_results else [outs]
            env.update(zip(eqn.outputs, map(np.asarray, outs), strict=True))
    return env


def inline_control_flow(program: Program, args: Sequence[Tracer]) -> list[Tracer]:
    """The outputs of `program`, its control flow followed as the values of `args` have it."""

    def step(eqn: Equation, *operands: Tracer) -> Sequence[Tracer]:
        outs = unroll_equation(eqn.primitive, *operands)
        return bind_equation(eqn, *operands) if outs is None else outs

    return interpret(program, args, step, constant=lambda c: c)


@singledispatch
def unroll_equation(primitive: Primitive, *args: Tracer) -> list[Tracer] | None:
    """What an equation that holds programs does, in the open; None for all others."""
    return None


@unroll_equation.register(Call)
@unroll_equation.register(Checkpoint)
@unroll_equation.register(CustomVmap)
def _(primitive: Any, *args: Tracer) -> list[Tracer]:
    return inline_control_flow(primitive.program, args)


@unroll_equation.register
def _(primitive: Cond, index: Tracer, *args: Tracer) -> list[Tracer]:
    return inline_control_flow(primitive.branches[int(concretize(index, "a choice"))], args)


@unroll_equation.register
def _(primitive: While, *args: Tracer) -> list[Tracer]:
    shared, consts, carry = primitive.split_operands(args)
    while concretize(
        inline_control_flow(primitive.condition, [*shared, *carry])[0], "a condition"
    ).all():
        carry = inline_control_flow(primitive.body, [*consts, *carry])
    return list(carry)


@unroll_equation.register
def _(primitive: Scan, *args: Tracer) -> list[Tracer]:
    consts, carry, columns = primitive.split_operands(args)
    count, found = primitive.carries, []
    steps = range(primitive.length)
    for i in reversed(steps) if primitive.reverse else steps:
        rows = [ops.squeeze(ops.slice_in_dim(x, i, i + 1), (0,)) for x in columns]
        outs = inline_control_flow(primitive.program, [*consts, *carry, *rows])
        carry = outs[:count]
        found.append(outs[count:])
    if primitive.reverse:
        found.reverse()
    avals = primitive.infer_out_avals(tuple([aval_of(x) for x in args]))[count:]
    return [*carry, *[_stack_rows([rows[i] for rows in found], a) for i, a in enumerate(avals)]]


def _stack_rows(rows: Sequence[Tracer], aval: Any) -> Any:
    return (
        ops.concatenate([ops.expand_dims(x, 0) for x in rows], 0) if rows else ops.zeros_like(aval)
    )


@dataclass(frozen=True)
class Explanation:
    """What `explain_nan` found: false if all is finite, else the births of what is not.

    `summary` names the result or the derivative that is not finite. The first of `origins` made
    it; those after it, the infinities that it was made of.
    """

    summary: str
    origins: tuple[NonFiniteOrigin, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.origins)

    def __str__(self) -> str:
        if not self.origins:
            return self.summary
        words = ["born at ", *["made of what was born at "] * (len(self.origins) - 1)]
        told = [word + str(birth) for word, birth in zip(words, self.origins, strict=True)]
        return "\n".join([self.summary, *told])


def explain_nan(
    fun: Callable[..., Any], argnums: int | Sequence[int] | None = None
) -> Callable[..., Explanation]:
    """A function of the arguments of `fun` that tells where a nan or an infinity comes from.

    `fun` is run equation by equation, through `jit`, branches and loops as they are taken;
    then, if its results are finite, the derivative of their sum in the arguments at `argnums`,
    by default in all that have one. The `Explanation` that comes back is false if all of that
    is finite. Printed, it shows the user's line, the equation and the values there, and of a
    derivative the local one and the cotangent that came to it.

    >>> import functx, functx.numpy as np, numpy
    >>> def roots(x):
    ...     return np.sqrt(x).sum()
    >>> found = functx.tools.explain_nan(roots)(numpy.array([4.0, 0.0]))
    >>> found.what
    'the derivative of roots in x is infinite in 1 of 2 elements'
    >>> float(found.births[0].local["x"])
    inf
    """
    check_callable(fun, "explain_nan")
    if argnums is not None:
        argnums = canonical_argnums(argnums, "explain_nan")
    name = function_name(fun)

    def explained(*args: Any, **kwargs: Any) -> Explanation:
        leaves, in_tree = tree.flatten((args, kwargs))
        avals = avals_of(leaves, "explain_nan", fun, in_tree)
        traced = trace_function(fun, in_tree, avals, "explain_nan", values=leaves)
        operands = [*leaves, *traced.captured]
        program = unroll_control_flow(traced.program, operands)
        outputs = program.outputs[: len(traced.out_avals)]
        return (
            explain_values(
                name, EvaluatedProgram(program, evaluate_variables(program, operands)), outputs
            )
            or explain_derivative(
                name, program, operands, outputs, _differentiated_leaves(fun, args, kwargs, argnums)
            )
            or Explanation(f"the results and the derivative of {name} are finite")
        )

    explained.__name__ = explained.__qualname__ = f"explain_nan_{name}"
    return explained


def _differentiated_leaves(fun: Any, args: Any, kwargs: Any, argnums: Any) -> list[bool]:
    """For each leaf of the arguments, whether it is one that a derivative is asked for."""
    count = len(tree.leaves((args, kwargs)))
    if argnums is None:
        return [True] * count
    numbers = argnums if isinstance(argnums, tuple) else (argnums,)
    # Beyond the positional arguments are those that were given by name.
    named = [n for n in numbers if len(args) <= n < len(args) + len(kwargs)]
    numbers = tuple([n for n in numbers if n not in named])
    positions = argnums_leaves(args, numbers, "explain_nan", fun)[0] if numbers else []
    start = len(tree.leaves(args))
    return [i in positions or (bool(named) and i >= start) for i in range(count)]


def explain_values(name: str, run: EvaluatedProgram, outputs: Sequence[Any]) -> Explanation | None:
    """What there is to explain about the results; None if they are finite."""
    for i, v in enumerate(outputs):
        if type(v) is Var and first_nonfinite_index(run.values[v]) is not None:
            which = f"result {i} of {name}" if len(outputs) > 1 else f"the result of {name}"
            births = [run.origin_at(origin) for origin in run.origin_variables(v)]
            return Explanation(f"{which} is {_describe_nonfinite(run.values[v])}", tuple(births))
    return None


def _describe_nonfinite(x: Any) -> str:
    """`nan in 2 of 3 elements`."""
    nans = int(np.isnan(x).sum())
    kind, count = ("nan", nans) if nans else ("infinite", int((~np.isfinite(x)).sum()))
    return f"{kind} in {count} of {x.size} elements" if x.ndim else kind


def explain_derivative(
    name: str, program: Program, args: Sequence[Any], outputs: Sequence[Any], asked: Sequence[bool]
) -> Explanation | None:
    """What there is to explain about the derivative of the sum of `outputs`; None if it is finite."""
    program = canonicalize_for_ad(program, "vjp", "jvp", "transpose")
    given = [*asked, *[False] * (len(program.inputs) - len(asked))]
    active = [on and is_inexact(v.aval.dtype) for on, v in zip(given, program.inputs, strict=True)]
    watched = RecordingCotangents()

    def body(*tracers: Tracer) -> list[Tracer]:
        outs, watched.tape = forward_sweep(program, tracers, active)
        seeds = [
            ops.constant_like(x, 1) if is_inexact(x.dtype) else None for x in outs[: len(outputs)]
        ]
        seeds += [None] * (len(outs) - len(outputs))
        return backward_sweep(program, watched.tape, seeds, active, watched)

    joint = trace_closed(body, program.in_avals, name=program.name, in_names=program.in_names)
    run = EvaluatedProgram(joint, evaluate_variables(joint, args))
    names = pad_input_names(program.input_names() or [], len(program.inputs))
    inputs = [names[i] for i, on in enumerate(active) if on]
    for wanted, ct in zip(inputs, joint.outputs, strict=True):
        if type(ct) is Var and first_nonfinite_index(run.values[ct]) is not None:
            births = [
                watched.origin_at(program, run, origin) for origin in run.origin_variables(ct)
            ]
            what = f"the derivative of {name} in {wanted} is {_describe_nonfinite(run.values[ct])}"
            return Explanation(what, tuple(births))
    return None


class RecordingCotangents(Cotangents):
    """Cotangents that note which equation's derivative each equation of the sweep belongs to."""

    def __init__(self) -> None:
        super().__init__()
        self.tape: list[TapeEntry] = []
        self.received: list[list[Any]] = []
        self.step_of_variable: dict[Var, int] = {}
        self.num_recorded = 0

    def pop_outputs(self, variables: Sequence[Var]) -> tuple[list[Any], Any]:
        """As that of `Cotangents`, when the sweep comes to the equation of `variables`."""
        self.record_equations(len(self.received) - 1)
        found = super().pop_outputs(variables)
        self.record_equations(None)
        self.received.append(found[0])
        return found

    def pop(self, var: Var) -> Any:
        """As that of `Cotangents`; also what comes last, when the sweep is over."""
        self.record_equations(len(self.received) - 1)
        return super().pop(var)

    def record_equations(self, step: int | None) -> None:
        """Let the equations since the last call be those of the step numbered so."""
        builder = current_builder.require()
        if step is not None and step >= 0:
            for eqn in builder.equations[self.num_recorded :]:
                self.step_of_variable.update(dict.fromkeys(eqn.outputs, step))
        self.num_recorded = len(builder.equations)

    def origin_at(self, program: Program, run: EvaluatedProgram, var: Var) -> NonFiniteOrigin:
        """What there is to tell of `var` of the sweep, in the words of `program`."""
        if var not in self.step_of_variable:
            return run.origin_at(var)
        number = self.step_of_variable[var]
        eqn, args, saved, active = self.tape[len(self.tape) - 1 - number]
        value = run.values[var]
        index = first_nonfinite_index(value)

        def at(x: Any) -> Any:
            found = run.values[x.atom] if type(x.atom) is Var else np.asarray(x.atom.value)
            return found[index] if found.shape == value.shape else found

        names = variable_names(program)
        operands = [at(x) for x in args]
        outs = map(at, saved) if eqn.primitive.forward is None else []
        known = zip([*eqn.inputs, *eqn.outputs], [*operands, *outs], strict=False)
        slopes = zip(eqn.inputs, local_derivatives(eqn.primitive, operands, active), strict=False)
        return NonFiniteOrigin(
            source_line(eqn.source),
            equation_text(program, eqn),
            index,
            {names[a]: x for a, x in known if type(a) is Var},
            derivative=True,
            local_derivatives={names[a]: x for a, x in slopes if type(a) is Var and x is not None},
            cotangent=next(at(ct) for ct in self.received[number] if ct is not None),
        )


def local_derivatives(
    primitive: Primitive, operands: Sequence[Any], active: Sequence[bool]
) -> list[Any]:
    """The derivative of one element in each operand that is active, None for the others.

    There are none of an operation that is not done element by element.
    """
    if not isinstance(primitive, Elementwise) or any(np.ndim(x) for x in operands):
        return []
    zeros = [np.zeros_like(x) for x in operands]
    units = [[*zeros[:i], np.ones_like(x), *zeros[i + 1 :]] for i, x in enumerate(operands)]
    return [
        jvp(primitive, operands, unit)[1] if on else None
        for unit, on in zip(units, active, strict=True)
    ]
