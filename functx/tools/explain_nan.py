"""`explain_nan`: the equation of a program that makes the first nan or infinity.

The program is evaluated equation by equation, with its control flow unrolled; then its reverse
mode is. A value that is not finite is followed back to the equation whose operands are finite.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from functx import ops
from functx.core import tree
from functx.core.backend import backend
from functx.core.primitive import Primitive
from functx.core.printing import equation_text, variable_names
from functx.core.program import Atom, Equation, Program, Var, pad_input_names
from functx.core.rewriting import bind_equation, interpret
from functx.core.source_info import source_line
from functx.core.tracer import Tracer, current_builder
from functx.core.tracing import eval_context, trace_closed
from functx.core.types import is_inexact
from functx.core.typing import (
    ArrayLike,
    Cotangent,
    Flags,
    Function,
    Mask,
    NumPyArray,
    PyTree,
    Value,
    Values,
)
from functx.ops.families import Elementwise
from functx.tools.evaluation import run_control_flow, trace_call
from functx.tools.markup import HtmlResult, Markup, element, join
from functx.transforms.argument_names import check_callable, function_name, wrap_transform
from functx.transforms.forward_mode import canonicalize_for_ad
from functx.transforms.grad import argnums_leaves, canonical_argnums
from functx.transforms.jvp import jvp
from functx.transforms.reverse_mode import CotangentSums, TapeEntry, backward_sweep, forward_sweep

Index = tuple[int, ...]


@dataclass(frozen=True)
class NonFiniteOrigin:
    """The equation that made a nan from operands that are not nan, or an infinity from finite ones.

    `values` are its operands and outputs by name, at `index` if they have the shape of the
    output. For the derivative of an equation, `local_derivatives` are the derivatives in its
    operands, by name, and `cotangent` is the cotangent of its output. An argument has no equation.
    """

    line: str
    equation: str = ""
    index: Index = ()
    values: dict[str, ArrayLike] = field(default_factory=dict)
    derivative: bool = False
    local_derivatives: dict[str, ArrayLike] = field(default_factory=dict)
    cotangent: NumPyArray | None = None

    def __str__(self) -> str:
        location = f", at {list(self.index)}" if self.index else ""
        lines = [self.line]
        if self.equation:
            prefix = "the derivative of " if self.derivative else ""
            lines.append(f"  {prefix}{self.equation}{location}")
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
        self.producers = program.def_use.producers

    def origin_variables(self, var: Var) -> list[Var]:
        """The variable that makes the nan or infinity in `var`, then the infinities it is made from."""
        origins = []
        while True:
            eqn, value = self.producers.get(var), self.values[var]
            index = first_nonfinite_index(value) or ()
            nonfinite = [] if eqn is None else self.nonfinite_operands(eqn, index, value)
            nans = [v for v in nonfinite if np.isnan(self.values[v]).any()]
            # A nan may come from an infinity; then the equation that makes it is an origin too.
            propagated = nans if np.isnan(value[index]) else nonfinite
            if not propagated:
                origins.append(var)
            if not nonfinite:
                return origins
            var = (propagated or nonfinite)[0]

    def nonfinite_operands(self, eqn: Equation, index: Index, value: NumPyArray) -> list[Var]:
        """The operands that are not finite, first those that are not finite at `index`."""
        nonfinite = [
            a
            for a in eqn.inputs
            if type(a) is Var and first_nonfinite_index(self.values[a]) is not None
        ]

        def is_finite_at_index(v: Var) -> bool:
            x = self.values[v]
            return x.shape == value.shape and bool(np.isfinite(x[index]))

        return sorted(dict.fromkeys(nonfinite), key=is_finite_at_index)

    def origin_at(self, var: Var) -> NonFiniteOrigin:
        """The origin for `var`, a variable of `origin_variables`."""
        eqn, value = self.producers.get(var), self.values[var]
        index = first_nonfinite_index(value) or ()
        if eqn is None:
            return NonFiniteOrigin(
                f"the argument {self.names[var]}", "", index, {self.names[var]: value[index]}
            )
        values = self.values_at([*eqn.inputs, var], index, value.shape)
        return NonFiniteOrigin(
            source_line(eqn.source), equation_text(self.program, eqn), index, values
        )

    def values_at(
        self, atoms: Sequence[Atom], index: Index, shape: tuple[int, ...]
    ) -> dict[str, ArrayLike]:
        """The values of `atoms` by name, at `index` if they have `shape`."""
        values: dict[str, ArrayLike] = {}
        for a in atoms:
            if type(a) is Var:
                x = self.values[a]
                values[self.names[a]] = x[index] if x.shape == shape else x
        return values


def first_nonfinite_index(x: NumPyArray) -> Index | None:
    """The first index where `x` is nan, else where it is infinite; None if it is finite."""
    if not is_inexact(x.dtype):
        return None
    for mask in (np.isnan(x), ~np.isfinite(x)):
        if mask.any():
            return tuple([int(i) for i in np.unravel_index(int(np.argmax(mask)), x.shape)])
    return None


def format_value(x: object) -> str:
    """The text of a number or a small array, or the type and the range of an array."""
    x = np.asarray(x)
    if x.ndim == 0:
        return f"{x[()]}"
    if x.size <= 6:
        return np.array2string(x, separator=", ").replace("\n", "")
    return f"{x.dtype}{list(x.shape)}, between {x.min()} and {x.max()}"


def unroll_control_flow(program: Program, args: Values) -> Program:
    """`program` as evaluated on `args`: the branches that are taken, each step of the loops.

    A function with a user-defined derivative stays one equation.
    """

    def body(*tracers: Tracer) -> list[Tracer]:
        return inline_control_flow(program, tracers)

    avals, names = program.in_avals, program.in_names
    return trace_closed(body, avals, name=program.name, values=args, in_names=names)


def evaluate_variables(program: Program, args: Values) -> dict[Var, NumPyArray]:
    """The values of all variables of `program` on `args`, evaluated equation by equation."""
    env: dict[Var, Any] = dict(zip(program.inputs, map(np.asarray, args), strict=True))
    with eval_context():
        # Checks and prints have no values.
        for eqn in [eqn for eqn in program.equations if eqn.outputs]:
            operands = [env[a] if type(a) is Var else a for a in eqn.inputs]
            outs = backend.evaluate_eagerly(eqn.primitive, operands)
            outs = map(np.asarray, eqn.primitive.as_list(outs))
            env.update(zip(eqn.outputs, outs, strict=True))
    return env


def inline_control_flow(program: Program, args: Sequence[Tracer]) -> list[Tracer]:
    """The outputs of `program`, with control flow unrolled for the values of `args`."""

    def step(eqn: Equation, *operands: Tracer) -> Sequence[Tracer]:
        outs = run_control_flow(eqn.primitive, inline_control_flow, operands)
        return bind_equation(eqn, *operands) if outs is None else outs

    return interpret(program, args, step)


@dataclass(frozen=True)
class Explanation(HtmlResult):
    """The result of `explain_nan`: false if all values are finite.

    `summary` names the result or the derivative that is not finite. The first of `origins` made
    it; the next ones made the infinities from which it was computed.
    """

    summary: str
    origins: tuple[NonFiniteOrigin, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.origins)

    def __str__(self) -> str:
        if not self.origins:
            return self.summary
        lines = [f"{label} at {origin}" for label, origin in self._labelled()]
        return "\n".join([self.summary, *lines])

    def _labelled(self) -> list[tuple[str, NonFiniteOrigin]]:
        labels = ["first made", *["computed from one made"] * len(self.origins)]
        return list(zip(labels, self.origins, strict=False))

    def title(self) -> str:
        return self.summary

    def content(self) -> Markup:
        """The origins, each with the user's line, the equation, and its values."""
        shown = []
        for label, origin in self._labelled():
            lines = f"{label} at {origin}".splitlines()
            rows = [element("div", text, class_="row") for text in lines]
            shown.append(element("div", rows, class_="code"))
        return join([element("p", self.summary), shown])


def explain_nan(
    fun: Function, argnums: int | Sequence[int] | None = None
) -> Callable[..., Explanation]:
    """The function that explains where a nan or an infinity of `fun(*args)` comes from.

    `fun` is run equation by equation, also inside `jit`, the branches that are taken and the
    steps of loops. If its results are finite, so is the derivative of their sum in the arguments
    at `argnums`, by default in all that have one. The function returns an `Explanation`, which
    is false if all values are finite. Printed, it shows the user's line, the equation and its
    values, and for a derivative the local derivative and the cotangent.

    >>> import functx, functx.numpy as np, numpy
    >>> def roots(x):
    ...     return np.sqrt(x).sum()
    >>> explanation = functx.tools.explain_nan(roots)(numpy.array([4.0, 0.0]))
    >>> explanation.summary
    'the derivative of roots in x is infinite in 1 of 2 elements'
    >>> float(explanation.origins[0].local_derivatives["x"])
    inf
    """
    check_callable(fun, "explain_nan")
    if argnums is not None:
        argnums = canonical_argnums(argnums, "explain_nan")
    name = function_name(fun)

    def explained(*args: PyTree, **kwargs: PyTree) -> Explanation:
        traced, operands = trace_call(fun, args, kwargs, "explain_nan")
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

    return wrap_transform(explained, fun, "explain_nan")


def _differentiated_leaves(
    fun: Function, args: Sequence[PyTree], kwargs: PyTree, argnums: int | tuple[int, ...] | None
) -> list[bool]:
    """The mask of the leaves of the arguments at `argnums`."""
    count = len(tree.leaves((args, kwargs)))
    if argnums is None:
        return [True] * count
    numbers = argnums if isinstance(argnums, tuple) else (argnums,)
    # Numbers after the positional arguments stand for the keyword arguments.
    named = [n for n in numbers if len(args) <= n < len(args) + len(kwargs)]
    numbers = tuple([n for n in numbers if n not in named])
    positions = argnums_leaves(args, numbers, "explain_nan", fun)[0] if numbers else []
    start = len(tree.leaves(args))
    return [i in positions or (bool(named) and i >= start) for i in range(count)]


def explain_values(name: str, run: EvaluatedProgram, outputs: Sequence[Any]) -> Explanation | None:
    """The explanation of the first result that is not finite; None if all are finite."""
    for i, v in enumerate(outputs):
        if type(v) is Var and first_nonfinite_index(run.values[v]) is not None:
            label = f"result {i} of {name}" if len(outputs) > 1 else f"the result of {name}"
            origins = [run.origin_at(origin) for origin in run.origin_variables(v)]
            return Explanation(f"{label} is {_describe_nonfinite(run.values[v])}", tuple(origins))
    return None


def _describe_nonfinite(x: NumPyArray) -> str:
    """`nan in 2 of 3 elements`."""
    nans = int(np.isnan(x).sum())
    kind, count = ("nan", nans) if nans else ("infinite", int((~np.isfinite(x)).sum()))
    return f"{kind} in {count} of {x.size} elements" if x.ndim else kind


def explain_derivative(
    name: str, program: Program, args: Values, outputs: Sequence[Any], differentiated: Flags
) -> Explanation | None:
    """The explanation of the derivative of the sum of `outputs`; None if it is finite.

    It is taken in the inputs marked in `differentiated`; captured values follow these.
    """
    program = canonicalize_for_ad(program, "vjp", "jvp")
    marked = [*differentiated, *[False] * (len(program.inputs) - len(differentiated))]
    active = [on and is_inexact(v.aval.dtype) for on, v in zip(marked, program.inputs, strict=True)]
    recorder = RecordingCotangents()

    def body(*tracers: Tracer) -> list[Value]:
        outs, recorder.tape = forward_sweep(program, tracers, active)
        seeds = [ops.full_like(x, 1) if is_inexact(x.dtype) else None for x in outs[: len(outputs)]]
        seeds += [None] * (len(outs) - len(outputs))
        return backward_sweep(program, recorder.tape, seeds, active, recorder)

    joint = trace_closed(body, program.in_avals, name=program.name, in_names=program.in_names)
    run = EvaluatedProgram(joint, evaluate_variables(joint, args))
    names = pad_input_names(program.input_names() or [], len(program.inputs))
    inputs = [names[i] for i, on in enumerate(active) if on]
    for argument, ct in zip(inputs, joint.outputs, strict=True):
        if type(ct) is Var and first_nonfinite_index(run.values[ct]) is not None:
            description = _describe_nonfinite(run.values[ct])
            origins = [recorder.origin_at(program, run, v) for v in run.origin_variables(ct)]
            summary = f"the derivative of {name} in {argument} is {description}"
            return Explanation(summary, tuple(origins))
    return None


class RecordingCotangents(CotangentSums):
    """Cotangents that record, for each equation of the backward sweep, the step it belongs to."""

    def __init__(self) -> None:
        super().__init__()
        self.tape: list[TapeEntry] = []
        self.received: list[list[Any]] = []
        self.step_of_variable: dict[Var, int] = {}
        self.num_recorded = 0

    def pop_outputs(self, variables: Sequence[Var]) -> tuple[list[Cotangent], list[Mask]]:
        """The cotangents of an equation's outputs; a new step begins."""
        self.record_equations(len(self.received) - 1)
        cts, masks = super().pop_outputs(variables)
        self.record_equations(None)
        self.received.append(cts)
        return cts, masks

    def pop(self, var: Var) -> Cotangent:
        """The cotangent of an input of the program, when the sweep is over."""
        self.record_equations(len(self.received) - 1)
        return super().pop(var)

    def record_equations(self, step: int | None) -> None:
        """Record the equations since the last call as those of `step`; None for no step."""
        builder = current_builder.require()
        if step is not None and step >= 0:
            for eqn in builder.equations[self.num_recorded :]:
                self.step_of_variable.update(dict.fromkeys(eqn.outputs, step))
        self.num_recorded = len(builder.equations)

    def origin_at(self, program: Program, run: EvaluatedProgram, var: Var) -> NonFiniteOrigin:
        """The origin for the variable `var` of the sweep, with the names of `program`."""
        if var not in self.step_of_variable:
            return run.origin_at(var)
        step = self.step_of_variable[var]
        eqn, args, saved, active = self.tape[len(self.tape) - 1 - step]
        value = run.values[var]
        index = first_nonfinite_index(value) or ()

        def value_at_index(x: Any) -> NumPyArray:
            array = run.values[x.atom] if type(x.atom) is Var else np.asarray(x.atom.value)
            return array[index] if array.shape == value.shape else array

        names = variable_names(program)
        operands = [value_at_index(x) for x in args]
        outs = map(value_at_index, saved) if eqn.primitive.forward is None else []
        values = zip([*eqn.inputs, *eqn.outputs], [*operands, *outs], strict=False)
        derivatives = local_derivatives(eqn.primitive, operands, active)
        pairs = zip(eqn.inputs, derivatives, strict=False)
        return NonFiniteOrigin(
            source_line(eqn.source),
            equation_text(program, eqn),
            index,
            {names[a]: x for a, x in values if type(a) is Var},
            derivative=True,
            local_derivatives={names[a]: x for a, x in pairs if type(a) is Var and x is not None},
            cotangent=next(value_at_index(ct) for ct in self.received[step] if ct is not None),
        )


def local_derivatives(
    primitive: Primitive, operands: Sequence[Any], active: Flags
) -> list[Value | None]:
    """The derivative at one element in each active operand, None for the others.

    Empty for an operation that is not elementwise.
    """
    if not isinstance(primitive, Elementwise) or any(np.ndim(x) for x in operands):
        return []
    zeros = [np.zeros_like(x) for x in operands]
    units = [[*zeros[:i], np.ones_like(x), *zeros[i + 1 :]] for i, x in enumerate(operands)]
    return [
        jvp(primitive, operands, unit)[1] if on else None
        for unit, on in zip(units, active, strict=True)
    ]
