"""`module`: the program of a module, with its parameters and buffers as inputs, and its gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import index
from typing import Any, NamedTuple

import jax

from functx import ops
from functx.aot.analysis import Analysis, analyze_call
from functx.aot.joint import join_gradients
from functx.aot.meta import Meta
from functx.core import tree
from functx.core.errors import ArgumentError, ExportError, type_name
from functx.core.masks import indices_where
from functx.core.program import Equation, Part, Program
from functx.core.program_editing import replace_program_fields
from functx.core.tracer import abstractify, aval_of, is_variable
from functx.core.tree import TreeDefWithStatic
from functx.core.types import is_complex, is_floating, is_inexact
from functx.core.typing import Flags, PyTree
from functx.core.wrappers import is_wrapper
from functx.export.archives import Contents
from functx.export.exported import Exported
from functx.export.functions import (
    check_platforms,
    check_sizes_fixed,
    constant_values,
    copied_value,
    input_names,
    interface_of,
)
from functx.export.signature import BackwardSignature, Signature, output_names
from functx.module_calls import call_and_write_back, foreign_state
from functx.nn.module import Module
from functx.transforms.aliasing import shared_buffers
from functx.transforms.argument_names import argument_names
from functx.transforms.dce import with_io
from functx.transforms.tracing_api import has_aval


def module(
    module: object,
    args: Sequence[PyTree],
    trace_joint: bool = False,
    output_loss_index: int | None = None,
    *,
    kwargs: Mapping[str, PyTree] | None = None,
    platforms: Sequence[str] | None = None,
) -> Exported:
    """The `Exported` of a module for these arguments, with its parameters and buffers as inputs.

    The inputs of the program are the parameters, the buffers, then the leaves of `args` and `kwargs`;
    its outputs are the new values of the parameters, buffers and arguments that are written to, then
    the leaves of the result. A call takes and returns arrays in this order, and writes to none of them.
    `signature` names them, and `state_dict` has the values of the parameters and buffers, in the order of
    the inputs. A parameter that has two names is one input, under the first.

    With `trace_joint`, the gradients of the output number `output_loss_index` follow, in the
    parameters and arguments that require one (Variables); they are zeros where it does not depend on
    them. They are those that `backward` gives, for complex values the conjugates of those of
    `functx.grad`. No other output may require a gradient. `platforms` are as for `export`.

    Raises ExportError, with the reason, for symbolic sizes, and for a module that has no such program: one that writes to
    something that requires a gradient, or shares memory with another argument, or gives a buffer
    another shape; and for a loss that is no array of one number.

    >>> import functx
    >>> from functx import nn
    >>> class Scale(nn.Module):
    ...     def __init__(self):
    ...         self.factor = nn.Parameter(2.0)
    ...         self.calls = nn.Buffer(0)
    ...     def forward(self, x):
    ...         self.calls += 1
    ...         return (x * self.factor).sum()
    >>> exported = functx.export.module(
    ...     Scale(), (functx.numpy.ones(3),), trace_joint=True, output_loss_index=0)
    >>> print(exported.signature)
    parameters            factor
    buffers               calls
    user_inputs           x
    user_outputs          output_1
    inputs_to_parameters  factor: factor
    inputs_to_buffers     calls: calls
    buffers_to_mutate     output_0: calls
    backward_signature
      gradients_to_parameters  output_2: factor
      loss_output              output_1
    >>> calls, loss, gradient = exported(*exported.state_dict.values(), functx.numpy.ones(3))
    >>> int(calls), float(loss), float(gradient)
    (1, 6.0, 3.0)
    """
    label = f"export.module({type(module).__name__})"
    chosen = check_platforms(label, platforms)
    if trace_joint and output_loss_index is None:
        raise ExportError(
            f"{label}: with trace_joint=True one output must be the loss; got output_loss_index=None",
            fix="Pass the number of the output that is the loss.",
        )
    if isinstance(args, (str, Mapping)) or not isinstance(args, Sequence):
        raise ArgumentError(f"{label}: args must be a tuple of arguments; got {type_name(args)}")
    check_sizes_fixed(label, (args, kwargs))
    call = ModuleCall.of(module, tuple(args), dict(kwargs or {}), label)
    analysis = call.analyze()
    meta, program = analysis.meta, analysis.program
    constants = constant_values(label, analysis.captured)
    num_new, count = len(meta.mutated), len(meta.mutated) + len(meta.outputs)
    program = with_io(program, program.inputs, program.outputs[:count])
    names, values = call.leaves_of_arrays(analysis)
    check_writes(meta, names, values, trace_joint, label)
    active = [trace_joint and on for on in meta.needs_grad]
    loss = None
    if trace_joint:
        loss = num_new + check_loss(meta, output_loss_index, label)
        mask = [i == loss for i in range(count)]
        joint = join_gradients(program, active, mask, zeros=True, is_loss=True).program
        program = conjugate_outputs(joint, count)
    program = replace_program_fields(program, name=type(module).__name__, in_names=names.copy)
    state = {name: copied_value(x) for name, x in call.state.items()}
    return Exported(
        Contents(
            interface_of(program),
            module_signature(program, call, meta, len(names), active, loss),
            chosen,
            constants,
            state,
            lambda: program,
        )
    )


class ModuleCall(NamedTuple):
    """A call of a module, with its parameters and buffers by dotted name."""

    module: Any
    parameters: Mapping[str, Any]
    buffers: Mapping[str, Any]
    requires_grad: tuple[bool, ...]
    """For each parameter, whether it requires a gradient."""
    args: tuple[PyTree, ...]
    kwargs: dict[str, PyTree]
    label: str

    @staticmethod
    def of(
        module: object, args: tuple[PyTree, ...], kwargs: dict[str, PyTree], label: str
    ) -> ModuleCall:
        """The call of an `nn.Module`, or of a module of another library, whose inexact arrays are parameters."""
        if isinstance(module, Module):
            parameters, buffers = dict(module.named_parameters()), dict(module.named_buffers())
            flags = tuple([bool(x.requires_grad) for x in parameters.values()])
            check_dense(parameters | buffers, label)
            return ModuleCall(module, parameters, buffers, flags, args, kwargs, label)
        arrays, _ = foreign_state(module, label)
        inexact = {name: is_inexact(aval_of(x).dtype) for name, x in arrays.items()}
        parameters = {name: x for name, x in arrays.items() if inexact[name]}
        buffers = {name: x for name, x in arrays.items() if not inexact[name]}
        flags = (True,) * len(parameters)
        return ModuleCall(module, parameters, buffers, flags, args, kwargs, label)

    @property
    def state(self) -> dict[str, Any]:
        """The parameters, then the buffers."""
        return {**self.parameters, **self.buffers}

    def forward(self, state: Sequence[Any], args: tuple[PyTree, ...], kwargs: PyTree) -> PyTree:
        """The result for other values of the state, to which replaced values are written."""
        given = dict(zip(self.state, state, strict=True))
        out, others = call_and_write_back(self.module, given, args, kwargs)
        for name, new in others.items():
            raise ExportError(
                f"{self.label}: parameters and buffers must keep their shapes and dtypes; got "
                f"{aval_of(new)!r} in place of {aval_of(given[name])!r} for `{name}`",
                fix="Write a value of the same type to it, or return the new one.",
            )
        return out

    def analyze(self) -> Analysis:
        """The analysis of the call, for arguments that share no memory."""
        given = [*self.state.values()], self.args, self.kwargs
        flags = (
            [*self.requires_grad, *[False] * len(self.buffers)],
            *[tree.map(_requires_grad, each) for each in given[1:]],
        )
        avals = [tree.map(_aval_if_array, each) for each in given]
        return analyze_call(self.forward, avals, {}, self.label, requires_grad=flags)

    def leaves_of_arrays(self, analysis: Analysis) -> tuple[list[str], list[Any]]:
        """The names and the values of the inputs: parameters, buffers, and arrays among the arguments."""
        leaves, in_tree = tree.flatten_with_key_data((self.args, self.kwargs))
        function = self.module.forward if isinstance(self.module, Module) else self.module
        names = [*self.state, *argument_names(function, in_tree, leaves)()]
        values = [*self.state.values(), *leaves]
        if isinstance(analysis.in_tree, TreeDefWithStatic):
            names = [*analysis.in_tree.without_static(names)]
            values = [*analysis.in_tree.without_static(values)]
        return names, values


def check_dense(state: Mapping[str, Any], label: str) -> None:
    """Raises ExportError for a parameter or buffer that is made of arrays."""
    for name, x in state.items():
        if is_wrapper(x):
            raise ExportError(
                f"{label}: parameters and buffers must be arrays; got {type_name(x)}, which is made of "
                f"arrays, for `{name}`",
                fix="Make parameters of its arrays, and the wrapper in forward.",
            )


def _requires_grad(x: Any) -> bool:
    return is_variable(x) and bool(x.requires_grad)


def _aval_if_array(x: object) -> object:
    return abstractify(x) if has_aval(x) else x


def check_writes(
    meta: Meta, names: Sequence[str], values: Sequence[Any], trace_joint: bool, label: str
) -> None:
    """Raises ExportError for writes that the outputs of a program cannot stand for."""
    sharing = indices_that_share_memory(values)
    for i in meta.mutated:
        info = meta.inputs[i]
        if i >= len(names):
            raise ExportError(
                f"{label}: a module must write only to its state and its arguments; got a write to an "
                f"array from outside, {info.aval!r}",
                fix="Make it a buffer (nn.Buffer), or pass it as an argument.",
            )
        if trace_joint and info.requires_grad:
            raise ExportError(
                f"{label}: with trace_joint=True nothing that requires a gradient may be written to; got "
                f"a write to `{names[i]}`",
                fix="Write to a copy (x.copy()), or export without gradients.",
            )
        if trace_joint and info.gets_history:
            raise ExportError(
                f"{label}: with trace_joint=True what is written must not depend on what requires a "
                f"gradient; got such a value for `{names[i]}`",
                fix="Write the value without its history: value.detach().",
            )
        if i in sharing:
            other = next(j for j in sharing[i] if j != i)
            how = "is the same array as" if values[other] is values[i] else "shares memory with"
            raise ExportError(
                f"{label}: an input that is written to must share its memory with no other; got "
                f"`{names[i]}`, which {how} `{names[other]}`",
                fix="Pass a copy of one of them.",
            )


def indices_that_share_memory(values: Sequence[Any]) -> dict[int, list[int]]:
    """For each value that shares memory with another one, the numbers of all that do."""
    groups = [[i for i, _ in buffer.members] for buffer in shared_buffers(values)]
    by_identity: dict[int, list[int]] = {}
    for i, x in enumerate(values):
        if is_variable(x) or isinstance(x, jax.Array):
            by_identity.setdefault(id(x.memory if is_variable(x) else x), []).append(i)
    groups += [group for group in by_identity.values() if len(group) > 1]
    return {i: group for group in groups for i in group}


def check_loss(meta: Meta, number: object, label: str) -> int:
    """The number of the output that is the loss; ExportError unless it is one, and no other needs a gradient."""
    try:
        loss = index(number)  # type: ignore[arg-type]
    except TypeError:
        raise ArgumentError(
            f"{label}: output_loss_index must be an int; got {type_name(number)}"
        ) from None
    outputs = meta.outputs
    if not 0 <= loss < len(outputs):
        raise ExportError(
            f"{label}: output_loss_index must be the number of an output, of {len(outputs)}; got {loss}",
            fix="Count the leaves of the result from 0.",
        )
    others = [i for i, out in enumerate(outputs) if out.requires_grad and i != loss]
    if others:
        raise ExportError(
            f"{label}: no output but the loss, number {loss}, may require a gradient; got output "
            f"{others[0]}, {outputs[others[0]].aval!r}, which does",
            fix="Return it without its history: out.detach().",
        )
    aval = outputs[loss].aval
    if aval.shape != ():
        raise ExportError(
            f"{label}: the loss must be an array of shape (), one number; got shape {aval.shape} at "
            f"output {loss}",
            fix="Return its sum or mean.",
        )
    if not outputs[loss].requires_grad or not is_floating(aval.dtype):
        got = f"{aval!r}" if outputs[loss].requires_grad else "one that does not"
        raise ExportError(
            f"{label}: the loss must be a real number that requires a gradient; got {got} at output {loss}",
            fix="Compute it from parameters, or from arguments that are Variables.",
        )
    return loss


def conjugate_outputs(program: Program, start: int) -> Program:
    """`program` with the conjugates of its complex outputs from number `start` on."""
    equations = {
        atom: Equation.of(ops.Conj(), [atom]).replace(part=Part.BACKWARD)
        for atom in program.outputs[start:]
        if is_complex(atom.aval.dtype)
    }
    outputs = [equations[a].outputs[0] if a in equations else a for a in program.outputs[start:]]
    return replace_program_fields(
        program,
        equations=[*program.equations, *equations.values()],
        outputs=[*program.outputs[:start], *outputs],
    )


def module_signature(
    program: Program, call: ModuleCall, meta: Meta, given: int, active: Flags, loss: int | None
) -> Signature:
    """The signature of the program of a module, of whose inputs `given` are no constants.

    Its gradients are in the inputs marked `active`, of the output number `loss`.
    """
    names, state = input_names(program), [*call.state]
    num_parameters, num_state, num_new = len(call.parameters), len(state), len(meta.mutated)
    written = dict(zip(meta.mutated, output_names(0, num_new), strict=True))
    num_results = num_new + len(meta.outputs)
    differentiated = indices_where(active)
    gradients = dict(
        zip(differentiated, output_names(num_results, len(differentiated)), strict=True)
    )

    def by_output(outputs: Mapping[int, str], start: int, end: int) -> dict[str, str]:
        """The inputs from `start` to `end` by the output that `outputs` gives each."""
        return {
            output: (state[i] if i < num_state else names[i])
            for i, output in outputs.items()
            if start <= i < end
        }

    return Signature(
        parameters=tuple(state[:num_parameters]),
        buffers=tuple(state[num_parameters:]),
        user_inputs=names[num_state:given],
        user_outputs=output_names(num_new, len(meta.outputs)),
        inputs_to_parameters=dict(zip(names[:num_parameters], state, strict=False)),
        inputs_to_buffers=dict(
            zip(names[num_parameters:num_state], state[num_parameters:], strict=True)
        ),
        parameters_to_mutate=by_output(written, 0, num_parameters),
        buffers_to_mutate=by_output(written, num_parameters, num_state),
        user_inputs_to_mutate=by_output(written, num_state, given),
        constants=names[given:],
        backward_signature=None
        if loss is None
        else BackwardSignature(
            by_output(gradients, 0, num_parameters),
            by_output(gradients, num_state, given),
            f"output_{loss}",
        ),
    )
