"""Checks of the results of users' rules: their number, types and linearity."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from functx import ops
from functx.core.errors import LinearityError, RuleError, type_name
from functx.core.primitive import Primitive, operand_aval
from functx.core.program import Atom, Equation, Literal, Program, Var
from functx.core.rewriting import user_rule_runs
from functx.core.source_info import BackwardSource, Source
from functx.core.tracer import Tracer, aval_of, current_builder
from functx.core.tracing import trace
from functx.core.types import is_inexact
from functx.core.typing import Avals, Cotangent, Cotangents, Function, Value, Values
from functx.ops.families import Linear
from functx.ops.operands import literal
from functx.transforms.dce import varied


def check_jvp_result(primitive: Primitive, avals: Avals, result: object) -> tuple[Any, Any]:
    """The `result` of a `jvp` rule; RuleError unless it fits outputs of `avals`."""
    if not isinstance(result, tuple) or len(result) != 2:
        raise rule_error(
            primitive, "jvp", f"return a pair (output, tangent); got {type_name(result)}"
        )
    outs, tangents = result
    if not primitive.multiple_results:
        outs, tangents = [outs], [tangents]
    check_types(primitive, "jvp", "output", outs, avals)
    check_types(primitive, "jvp", "tangent", tangents, avals, "output")
    return result


def check_types(
    primitive: Primitive, rule: str, label: str, values: object, avals: Avals, of: str = ""
) -> None:
    """Raise RuleError unless `values`, which `rule` returned, are of `avals`, or None for zero."""
    if not isinstance(values, (list, tuple)) or len(values) != len(avals):
        got = len(values) if isinstance(values, (list, tuple)) else type_name(values)
        each = f"one {label} an {of or 'output'}; got {got} for {len(avals)} {of or 'output'}s"
        raise rule_error(primitive, rule, f"return {each}")
    for i, (x, aval) in enumerate(zip(values, avals, strict=True)):
        if x is None or (of and not is_inexact(aval.dtype)):
            continue
        given = aval_of(x)
        if given.shape != aval.shape or given.dtype != aval.dtype:
            place = f"{label} {i}" if len(avals) > 1 else f"the {label}"
            like = f"the shape and dtype of the {of}, {aval!r}" if of else f"type {aval!r}"
            raise rule_error(primitive, rule, f"give {place} {like}; got {given!r}")


def check_batch_result(primitive: Primitive, size: int, avals: Avals, outs: Any, dims: Any) -> None:
    """Raise RuleError unless `outs` are outputs of `avals` in batches of `size` along `dims`."""
    if not primitive.multiple_results:
        outs, dims = [outs], [dims]
    if len(outs) != len(avals) or len(dims) != len(avals):
        raise rule_error(
            primitive,
            "batch",
            f"return {len(avals)} outputs and as many dimensions; got {len(outs)} and {len(dims)}",
        )
    for x, dim, aval in zip(outs, dims, avals, strict=True):
        shape = aval.shape if dim is None else (*aval.shape[:dim], size, *aval.shape[dim:])
        given = aval_of(x)
        if given.shape != shape or given.dtype != aval.dtype:
            raise rule_error(
                primitive,
                "batch",
                f"give {aval.update(shape=shape)!r} for a batch along {dim}; got {given!r}",
            )


def apply_linear_rule(
    primitive: Primitive, rule: str, body: Function, cts: Cotangents, args: Values
) -> list[Cotangent]:
    """The cotangents of `args` by `body(cts)`; RuleError unless they are linear in `cts`."""
    user_rule_runs.record()
    builder = current_builder.require()
    nonzero = [ct for ct in cts if ct is not None]
    avals = [operand_aval(x) for x in args]
    nonzero_outputs: list[int] = []

    def on_given(*xs: Value) -> list[Value]:
        remaining = iter(xs)
        results = body([None if ct is None else next(remaining) for ct in cts])
        check_types(primitive, rule, "cotangent", results, avals, "operand")
        nonzero_outputs.extend(i for i, x in enumerate(results) if x is not None)
        return [results[i] for i in nonzero_outputs]

    program, captured = trace(on_given, [aval_of(ct) for ct in nonzero], name=primitive.name)
    known = dict(zip(program.inputs[len(nonzero) :], captured, strict=True))
    linear = program.inputs[: len(nonzero)]
    check_rule_is_linear(
        primitive, rule, program.equations, linear, program.outputs, known, "cotangent"
    )
    outs = dict(zip(nonzero_outputs, builder.inline(program, [*nonzero, *captured]), strict=True))
    return [outs.get(i) for i in range(len(args))]


def check_rule_is_linear(
    primitive: Primitive,
    rule: str,
    equations: Sequence[Equation],
    linear: Iterable[Var],
    outputs: Iterable[Atom],
    known: Mapping[Any, Any],
    kind: str,
) -> None:
    """Raise RuleError if `outputs` have a constant term beside the variables `linear`."""
    found = find_nonlinear_term(equations, linear, outputs, known)
    if found is not None:
        error = rule_error(
            primitive,
            rule,
            f"be linear in the {kind}s; got {found.description}",
            f"Let every term have the {kind} as a factor.",
        )
        error.source = found.source or error.source
        raise error


def check_linear(
    program: Program,
    linear: Iterable[Var],
    outputs: Iterable[Atom],
    problem: str,
    fix: str = "",
    known: Mapping[Any, Any] | None = None,
) -> None:
    """Raise LinearityError with `problem` if `outputs` have a constant term beside `linear`."""
    found = find_nonlinear_term(program.equations, linear, outputs, known)
    if found is not None:
        raise LinearityError(f"{problem}: {found.description}", fix=fix, source=found.source)


class NonlinearTerm(NamedTuple):
    """Where a function that should be linear is not: an equation or an output, and its source."""

    place: Equation | Atom
    source: Source | BackwardSource | None

    @property
    def description(self) -> str:
        """The place, for messages about a constant term."""
        if isinstance(self.place, Equation):
            return f"{self.place.primitive!r}, which adds a constant"
        return f"an output {self.place.aval!r} that does not depend on them"


def find_nonlinear_term(
    equations: Sequence[Equation],
    linear: Iterable[Var],
    outputs: Iterable[Atom],
    known: Mapping[Any, Any] | None = None,
    strict: bool = False,
) -> NonlinearTerm | None:
    """The first nonzero constant that is added to a value linear in `linear`, or that is an output.

    `known` gives the values of captured variables. With `strict`, it may also be an operation
    without a derivative, or an output of integers.
    """
    varying: set[Atom] = set(linear)
    zeros: set[Atom] = set()
    producers: dict[Atom, Equation] = {}

    def is_zero(atom: Atom) -> bool:
        if type(atom) is Literal:
            return bool(atom.value == 0)
        value = (known or {}).get(atom)
        return atom in zeros or (type(value) is Tracer and is_known_zero(value))

    for eqn in equations:
        producers.update((v, eqn) for v in eqn.outputs)
        operands = [a for a in eqn.inputs if a in varying]
        if not operands:
            if outputs_are_zero(eqn, is_zero):
                zeros.update(eqn.outputs)
            continue
        if (strict and eqn.outputs and not eqn.primitive.differentiable) or any(
            a not in varying and not is_zero(a) for a in jointly_linear_operands(eqn)
        ):
            return NonlinearTerm(eqn, eqn.source)
        inexact = any(is_inexact(a.aval.dtype) for a in operands)
        varying.update(varied(eqn, varying) if inexact else eqn.outputs)
    for atom in outputs:
        if atom not in varying and (strict or is_inexact(atom.aval.dtype)) and not is_zero(atom):
            return NonlinearTerm(atom, producers[atom].source if atom in producers else None)
    return None


_REPEATS = (ops.BroadcastInDim, ops.Full, ops.Reshape)
_MAY_KEEP_ZEROS = (ops.Mul, ops.DotGeneral, ops.Select, Linear)


def is_known_zero(x: Tracer) -> bool:
    """Whether a traced value is known to be zero in all elements."""
    found: dict[Atom, bool] = {}
    pending = [x.atom]
    # A stack in place of recursion: programs may be deep, and equations share operands.
    while pending:
        atom = pending[-1]
        eqn = x.builder.defining_equation(atom)
        if eqn is None or not isinstance(eqn.primitive, _MAY_KEEP_ZEROS):
            found[atom] = type(atom) is Literal and bool(atom.value == 0)
        elif missing := [a for a in eqn.inputs if a not in found]:
            pending += missing
            continue
        else:
            found[atom] = outputs_are_zero(eqn, found.__getitem__)
        pending.pop()
    return found[x.atom]


def fill_of_zeros(x: Tracer) -> Literal | None:
    """The literal 0 that fills all elements of a traced array; None for another array, also of -0.0."""
    atom = x.atom
    while type(atom) is not Literal:
        eqn = x.builder.defining_equation(atom)
        if eqn is None or not isinstance(eqn.primitive, _REPEATS):
            return None
        (atom,) = eqn.inputs
    return atom if repr(atom.value) == repr(literal(0, atom.aval.dtype).value) else None


def outputs_are_zero(eqn: Equation, is_zero: Callable[[Any], bool]) -> bool:
    """Whether the outputs of `eqn` are zero in all elements, if `is_zero` holds of operands."""
    if isinstance(eqn.primitive, (ops.Mul, ops.DotGeneral)):
        return any(map(is_zero, eqn.inputs))
    if isinstance(eqn.primitive, ops.Select):
        return all(map(is_zero, eqn.inputs[1:]))
    return isinstance(eqn.primitive, Linear) and all(map(is_zero, eqn.inputs))


def jointly_linear_operands(eqn: Equation) -> Sequence[Atom]:
    """The operands that must all be linear or zero for the equation to be linear."""
    primitive: Primitive = eqn.primitive
    if isinstance(primitive, ops.Select):
        return eqn.inputs[1:]
    if isinstance(primitive, ops.DynamicUpdateSlice):
        return eqn.inputs[:2]
    if isinstance(primitive, ops.ScatterAdd):
        return [a for a in eqn.inputs if a.aval.dtype == eqn.outputs[0].aval.dtype]
    return eqn.inputs if isinstance(primitive, (ops.Add, ops.Sub, Linear)) else ()


def rule_error(primitive: Primitive, rule: str, problem: str, fix: str = "") -> RuleError:
    """The error that `rule` of `primitive` breaks a requirement."""
    return RuleError(f"{primitive.name}: `{rule}` must {problem}", fix=fix)
