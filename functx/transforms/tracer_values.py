"""The values of traced arrays as text, for `print` and `repr`, with all elements of a `vmap`."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from functx import ops
from functx.core.backend import backend
from functx.core.builder import Builder
from functx.core.functionalization import functionalized_atom
from functx.core.named_axes import AxisNames
from functx.core.program import Atom, Equation, Literal, Program, Var, subprograms
from functx.core.rewriting import cached_rewrite
from functx.core.tracer import Tracer, current_builder
from functx.transforms.call_primitive import Call
from functx.transforms.vmap import Batch


class TracerValue(NamedTuple):
    """A value with a leading axis for each of `batch_builders`, the traces of enclosing `vmap`s.

    The outermost comes first.
    """

    value: Any
    batch_builders: tuple[Builder, ...] = ()


def tracer_value(tracer: Tracer) -> TracerValue | None:
    """The value of a traced array for all elements of a batch; None if it is not known.

    It is computed without appending to a program, and without running effects or callbacks.
    """
    # A print must not fail: the program raises the same error when it runs.
    try:
        return _evaluate_atom(tracer.builder, tracer.atom) if tracer.builder.is_open else None
    except Exception:
        return None


def tracer_repr(tracer: Tracer) -> str:
    """The text of `print` and `repr`: `Traced<f32[3]> in grad(loss) with value [1. 2. 3.]`."""
    plain = tracer.describe()
    found = tracer_value(tracer)
    if found is None:
        return plain
    text = str(found.value)
    sizes = " x ".join([str(b.axis.size) for b in found.batch_builders])
    label = f"{sizes} lanes" if sizes else "value"
    return f"{plain} with {label}{chr(10) if chr(10) in text else ' '}{text}"


def format_tracer(tracer: Tracer, spec: str) -> str:
    """The text in an f-string: `Traced<1.500>`, or the type if the value is not known."""
    found = tracer_value(tracer)
    if found is None:
        return f"Traced<{tracer.atom.aval!r}>"
    value = np.asarray(found.value)

    def element(x: Any) -> str:
        return format(x.item(), spec)

    text = np.array2string(value, formatter={"all": element}) if value.ndim else element(value)
    return f"Traced<{text}>"


def _evaluate_atom(builder: Builder, atom: Atom) -> TracerValue | None:
    builder, atom = functionalized_atom(builder, atom)
    memo = builder.printed_values
    needed: set[Var] = set()
    positions: set[int] = set()
    pending = [atom]
    while pending:
        a = pending.pop()
        if type(a) is Literal or a in memo or a in needed:
            continue
        needed.add(a)  # type: ignore[arg-type]
        position = builder.producer(a)
        if position is not None:
            if not _is_pure(eqn := builder.equations[position]):
                return None
            positions.add(position)
            pending += eqn.inputs
            continue
        found = _input_value(builder, a)
        if found is None:
            return None
        memo[a] = found
    for position in sorted(positions):
        eqn = builder.equations[position]
        memo.update(zip(eqn.outputs, _output_values(builder, eqn), strict=True))
    return _read_value(memo, atom)


def _read_value(memo: dict[Atom, TracerValue], atom: Atom) -> TracerValue:
    if type(atom) is Literal:
        return TracerValue(np.asarray(atom.value, atom.aval.dtype)[()])
    return memo[atom]


def _is_pure(eqn: Equation) -> bool:
    """Whether an equation may be computed again: it has no effects and calls no Python code."""
    if eqn.primitive.effects or isinstance(eqn.primitive, ops.HostPrimitive):
        return False
    return all(_is_pure(each) for sub in subprograms(eqn.primitive) for each in sub.equations)


def _input_value(builder: Builder, var: Any) -> TracerValue | None:
    """The value of an input or captured value; None if it is not known."""
    source, dim = builder.batched_inputs.get(var, (None, None))
    if source is None:
        source = builder.values.get(var)
    if source is None:
        source = builder.captured_value(var)
    if type(source) is Tracer:
        found = _evaluate_atom(source.builder, source.atom)
    else:
        source = backend.concrete_or_none(source)
        found = None if source is None else TracerValue(np.asarray(source))
    if found is None:
        return None
    value, batches = found
    # Python numbers, and 64-bit values in 32-bit mode, take the dtype of the trace.
    value = np.asarray(value, var.aval.dtype)
    if dim is None:
        return TracerValue(value, batches)
    return TracerValue(np.moveaxis(value, len(batches) + dim, len(batches)), (*batches, builder))


def _output_values(builder: Builder, eqn: Equation) -> list[TracerValue]:
    """The outputs of an equation for all elements of the batches of its operands."""
    primitive = eqn.primitive
    operands = {a: _read_value(builder.printed_values, a) for a in eqn.inputs}
    batching = {b for x in operands.values() for b in x.batch_builders}
    batches: tuple[Builder, ...] = ()
    around: Builder | None = builder
    while around is not None:
        if around in batching or (
            around.batched_inputs and around.axis.name in primitive.named_axes
        ):
            batches = around, *batches
        around = around.parent
    if batches:
        inputs = [a for a in operands if type(a) is Var]
        args = [operands[a].value for a in inputs]
        program = Program(primitive.name, inputs, [eqn.replace(source=None)], eqn.outputs)
        for each in reversed(batches):
            in_dims = tuple([0 if each in operands[a].batch_builders else None for a in inputs])
            names = AxisNames(each.axis.name, each.axis.mesh_axes)
            batch = Batch(each.axis.size, in_dims, (0,) * len(eqn.outputs), names=names)
            program = cached_rewrite(batch, program)
        primitive = Call(program)
    else:
        args = [operands[a].value for a in eqn.inputs]
    token = current_builder.set(None)
    try:
        outs = backend.evaluate_eagerly(primitive, args)
    finally:
        current_builder.reset(token)
    if not primitive.multiple_results:
        outs = [outs]
    return [TracerValue(np.asarray(out), batches) for out in outs]
