"""Implementations of operators: kernels of JAX or NumPy code, and bodies of functx operations.

A kernel runs eagerly on concrete arrays, or as part of a program: inlined if it is JAX code,
called on the host if it is NumPy code.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import jax
import numpy as np
from jax.experimental import io_callback

from functx import ops
from functx.core.config import config
from functx.core.effects import Effects, is_ordered
from functx.core.errors import ForeignCodeError, ImmutableArrayError, type_name
from functx.core.functionalization import Functionalize, FunctionalizedProgram
from functx.core.memory_layouts import noncontiguous_strides, storage_base
from functx.core.program import Program
from functx.core.program_editing import replace_program_fields
from functx.core.rewriting import cached_rewrite
from functx.core.tracer import Tracer, aval_of
from functx.core.tracing import eval_context, trace
from functx.core.types import ShapedArray, narrow_dtype, x64_enabled
from functx.core.typing import ArrayLike, Avals, Dim, Function, NumPyArray, PyTree, Value, Values
from functx.custom.operators.arguments import OperatorPrimitive
from functx.custom.operators.dispatch import kernels_by_platform
from functx.custom.operators.outputs import OutputTypes, flatten_outputs
from functx.custom.operators.registry import Registration
from functx.custom.operators.schema import Return
from functx.lowering.jax_bridge import DeviceCallback, wait_for_earlier_effects

if TYPE_CHECKING:
    from functx.core.typing import IRValue
    from functx.lowering.stablehlo_emitter import LoweringContext


NUMBERS = (bool, int, float, complex, np.generic)


Concrete = TypeVar("Concrete", Value, NumPyArray)


class KernelOutputs(NamedTuple):
    """The leaves of a kernel's results, the lengths of lists, and the new values of mutated operands."""

    leaves: list[ArrayLike]
    lengths: tuple[Dim, ...]
    written: list[ArrayLike]


def run_kernel(
    call: OperatorPrimitive, rule: Registration, arrays: Sequence[ArrayLike]
) -> KernelOutputs:
    """The outputs of the kernel `rule` on arrays of NumPy, if it is NumPy code, or of JAX.

    Raises OperatorRuleError unless it returns new arrays, as the schema says.
    """
    qualname = call.operator.qualname
    on_host = rule.option == "numpy"
    mutated = call.mutated_operands()
    operands: list[ArrayLike | ArrayRef] = list(arrays)
    for i in mutated:
        operands[i] = arrays[i] if on_host else ArrayRef(arrays[i])
    args, kwargs = call.call_arguments(operands)
    try:
        with eval_context(), declared_writes(call, rule):
            out = rule(*args, **kwargs)
    except jax.errors.JAXTypeError as error:
        raise ForeignCodeError(
            f"{qualname}: its {rule.kind}, registered at {rule.location}, must be code that "
            f"JAX can trace; it asked for a value: {str(error).splitlines()[0]}",
            fix='Register code of NumPy with kernel="numpy", which runs on the host.',
            source=rule.error_source,
        ) from error
    except (ValueError, TypeError) as error:
        if mutated and ("__jax_array__" in str(error) or ArrayRef.__name__ in str(error)):
            raise rule.error(
                "read a mutated argument as x[...]; it passed the reference itself to a function",
                fix="Write jax.numpy.sin(x[...]), and x[...] = value or x += value to write.",
            ) from error
        raise
    may_alias = config.operator_aliases != "error"
    leaves, lengths = check_new_outputs(call, rule, operands, out, may_alias)
    written = [_read_ref(operands[i]) for i in mutated]
    return KernelOutputs(leaves, lengths, written)


def check_new_outputs(
    call: OperatorPrimitive,
    rule: Registration,
    operands: Sequence[ArrayLike | ArrayRef],
    out: PyTree,
    may_alias: bool = False,
) -> tuple[list[PyTree], tuple[int | None, ...]]:
    """The leaves of the result `out` of `rule` on `operands`, and the lengths of lists.

    Raises OperatorRuleError unless they are new arrays or numbers, or arguments where the schema
    says so. With `may_alias`, arrays of JAX may be operands.
    """
    schema, aliased = call.operator.schema, call.aliased_arguments(operands)

    def check(result: Return, x: Value, label: str) -> PyTree:
        if result.alias:
            if x is not aliased[result.alias]:
                name = next(a.name for a in schema.arguments if a.alias == result.alias)
                raise rule.error(f"return its argument `{name}` for {label}; got another array")
            return x
        refused = not may_alias or not isinstance(x, jax.Array)
        if refused and any(_is_alias(x, y) for y in operands):
            raise rule.error(
                f"return arrays of its own; {label} is an argument, or a view of one",
                fix="Return a copy: x.copy().",
            )
        if not isinstance(x, (np.ndarray, jax.Array, *NUMBERS)):
            raise rule.error(f"give an array for {label}; got {type_name(x)}")
        if not result.type.is_array and np.shape(x):
            raise rule.error(f"give a number for {label}; got {type_name(x)}")
        return x

    return flatten_outputs(rule, schema, out, check)


def _is_alias(x: object, y: object) -> bool:
    """Whether a result is an operand, or a view of it."""
    if type(x) is Tracer and type(y) is Tracer:
        return storage_base(x).atom is storage_base(y).atom
    if isinstance(x, np.ndarray) and isinstance(y, np.ndarray):
        return bool(np.may_share_memory(x, y))
    return (x is y or x is _read_ref(y)) and not isinstance(x, NUMBERS)


@contextmanager
def declared_writes(call: OperatorPrimitive, rule: Registration) -> Iterator[None]:
    """A `with` block that runs `rule` on read-only arrays, to which it must not write."""
    try:
        yield
    except ValueError as error:
        if "read-only" in str(error):
            raise undeclared_write_error(call, rule) from error
        raise


def undeclared_write_error(
    call: OperatorPrimitive, rule: Registration, name: str = "another argument"
) -> ImmutableArrayError:
    """The error that `rule` writes to the argument `name`, which `mutates_args` does not name."""
    mutated = ", ".join([f"`{a.name}`" for a in call.operator.schema.mutated]) or "nothing"
    return ImmutableArrayError(
        f"{rule.qualname}: its {rule.kind}, registered at {rule.location}, must write only "
        f"to the arguments in mutates_args, {mutated}; it writes to {name}",
        fix="Name the argument in mutates_args, or write to a copy.",
        source=rule.error_source,
    )


def run_kernel_eagerly(
    call: OperatorPrimitive, rule: Registration, operands: Sequence[ArrayLike]
) -> PyTree:
    """The result of a call on concrete operands, computed by the kernel `rule`.

    NumPy arrays if all operands are NumPy arrays or numbers, else JAX arrays.
    """
    schema = call.operator.schema
    avals = [aval_of(x) for x in operands]
    mutated = call.mutated_operands()
    check_writable(call, operands)
    if rule.option == "numpy":
        arrays: list[ArrayLike] = [
            np.array(x, a.dtype) if i in mutated else read_only(np.asarray(x, a.dtype))
            for i, (x, a) in enumerate(zip(operands, avals, strict=True))
        ]
    else:
        arrays = [
            x if isinstance(x, jax.Array) else jax.numpy.asarray(x, a.dtype)
            for x, a in zip(operands, avals, strict=True)
        ]
    wait_for_earlier_effects(call.effects)
    out = run_kernel(call, rule, arrays)
    # The writes come last, so that a kernel that fails has changed nothing.
    for i, new in zip(mutated, out.written, strict=True):
        target: Any = operands[i]
        target[...] = np.asarray(new)
    as_jax = any(isinstance(x, jax.Array) for x in operands) or call.device_argument() is not None
    types = OutputTypes((), out.lengths)
    is_array = types.per_leaf([r.type.is_array for r in schema.new_returns])
    leaves = [
        _as_output(x, as_jax) if on else _as_python_scalar(x)
        for x, on in zip(out.leaves, is_array, strict=True)
    ]
    return types.unflatten(schema, leaves, call.aliased_arguments(operands))


def check_writable(call: OperatorPrimitive, operands: Sequence[ArrayLike]) -> None:
    """Raise ImmutableArrayError unless all mutated operands are writable NumPy arrays."""
    for i in call.mutated_operands():
        x = operands[i]
        if isinstance(x, np.ndarray) and x.flags.writeable:
            continue
        name = call.operand_names()[i]
        actual = "a read-only array" if isinstance(x, np.ndarray) else type_name(x)
        raise ImmutableArrayError(
            f"{call.operator.qualname}: `{name}`, which the operator writes to, must be an array of "
            f"NumPy that is writable, or a traced one; got {actual}",
            fix="Pass numpy.array(x), and take the new value from there.",
        )


def read_only(x: NumPyArray) -> NumPyArray:
    """A read-only view of the NumPy array `x`."""
    view = x.view()
    view.flags.writeable = False
    return view


def _as_output(x: ArrayLike, as_jax: bool) -> ArrayLike:
    """A result of a kernel, in 32 bits if the 64-bit switch is off.

    A copy if it is a NumPy array: a kernel may keep its result, or return it twice.
    """
    if as_jax:
        return x if isinstance(x, jax.Array) else jax.numpy.array(x)
    # A tracer of JAX cannot become a NumPy array.
    if isinstance(x, jax.core.Tracer):
        return x
    array = np.array(x)
    return array if x64_enabled() else array.astype(narrow_dtype(array.dtype), copy=False)


def _as_python_scalar(x: Any) -> ArrayLike:
    traced = isinstance(x, jax.core.Tracer)
    return x if traced or isinstance(x, (bool, int, float, complex)) else x.item()


class HostKernel(ops.HostPrimitive, abstract=True):
    """The execution of a NumPy kernel by the device, for results of the types `output_types`."""

    call: OperatorPrimitive
    rule: Registration
    output_types: tuple[ShapedArray, ...]
    padded: tuple[tuple[int, ...], ...]
    canonicalize: bool

    @property
    def effects(self) -> Effects:  # type: ignore[override]
        return self.call.effects

    @property
    def display_name(self) -> str:
        return self.call.name

    def run(self, *arrays: NumPyArray) -> list[NumPyArray]:
        mutated = self.call.mutated_operands()
        operands = [np.array(x) if i in mutated else read_only(x) for i, x in enumerate(arrays)]
        out = run_kernel(self.call, self.rule, operands)
        values = [np.asarray(x) for x in (*out.leaves, *out.written)]
        padded = self.padded or ((),) * len(values)
        values = [
            _pad_to_aval(x, a, axes)
            for x, a, axes in zip(values, self.output_types, padded, strict=False)
        ]
        return check_kernel_outputs(
            self.rule, values, self.output_types, self.canonicalize, out.leaves
        )


def _pad_to_aval(x: NumPyArray, aval: ShapedArray, axes: Sequence[int]) -> NumPyArray:
    """`x` padded with zeros along `axes`, to the shape of `aval`."""
    if not axes or x.ndim != aval.ndim or any(x.shape[i] > aval.shape[i] for i in axes):
        return x
    return np.pad(x, [(0, aval.shape[i] - n if i in axes else 0) for i, n in enumerate(x.shape)])


def check_kernel_outputs(
    rule: Registration,
    values: Sequence[Concrete],
    avals: Avals,
    narrow: bool,
    leaves: Sequence[PyTree],
) -> list[Concrete]:
    """`values` as arrays of `avals`; OperatorRuleError unless they have those shapes and dtypes.

    `leaves` are the results before they became arrays: a Python number may have another dtype.
    With `narrow`, 64-bit values become 32-bit values.
    """
    if len(values) != len(avals):
        raise rule.error(f"give {len(avals)} arrays, as its abstract rule says; got {len(values)}")
    outs = []
    for i, (x, aval) in enumerate(zip(values, avals, strict=True)):
        dtype = narrow_dtype(x.dtype) if narrow else x.dtype
        is_number = i < len(leaves) and isinstance(leaves[i], (bool, int, float, complex))
        if x.shape != aval.shape or (dtype != aval.dtype and not is_number):
            raise rule.error(
                "give results of the types that its abstract rule states; "
                f"got {ShapedArray(x.shape, x.dtype)!r} "
                f"for number {i}: {aval!r}",
                fix="Convert the result, or state its type with def_abstract.",
            )
        outs.append(x.astype(aval.dtype) if x.dtype != aval.dtype else x)
    return outs


def lower_kernel(
    call: OperatorPrimitive, ctx: LoweringContext, values: Sequence[IRValue]
) -> Sequence[IRValue]:
    """The lowering of an operator: the kernel for each platform of the program."""
    kernels = kernels_by_platform(call, ctx.platforms)
    avals = tuple(ctx.avals_out)
    padded = call.output_types(tuple(ctx.avals_in)).padded
    ordered = is_ordered(call.effects)

    def on_host(rule: Registration) -> HostKernel:
        return HostKernel(call, rule, avals, padded, not x64_enabled())

    def branch(rule: Registration) -> Function:
        if rule.option != "numpy":
            return kernel_as_jax_function(call, rule, avals)
        device_call = DeviceCallback(on_host(rule), ctx.source)
        shapes = tuple([jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals])

        def through_callback(*xs: Value) -> PyTree:
            if call.effects:
                outs = io_callback(device_call, shapes, *xs, ordered=ordered)
            else:
                outs = jax.pure_callback(device_call, shapes, *xs)
            return outs[0] if len(shapes) == 1 else outs

        return through_callback

    if len(kernels) > 1:
        branches = {platform: branch(rule) for platform, rule in kernels.items()}

        def function(*xs: Value) -> PyTree:
            return jax.lax.platform_dependent(*xs, **branches)

        outs = ctx.via_jax(function, *values, ordered=ordered)
    else:
        (rule,) = kernels.values()
        if rule.option == "numpy":
            return ctx.callback(on_host(rule), values)
        outs = ctx.via_jax(branch(rule), *values, ordered=ordered)
    return outs if isinstance(outs, (list, tuple)) else [outs]


def kernel_as_jax_function(call: OperatorPrimitive, rule: Registration, avals: Avals) -> Function:
    """A JAX kernel as a function of the flat operands."""

    def function(*xs: Value) -> PyTree:
        out = run_kernel(call, rule, xs)
        values = [jax.numpy.asarray(x) for x in (*out.leaves, *out.written)]
        outs = check_kernel_outputs(rule, values, avals, not x64_enabled(), out.leaves)
        return outs[0] if len(outs) == 1 else tuple(outs)

    function.__name__ = call.operator.__name__
    return function


class ArrayRef:
    """A mutable reference to a JAX array: operators read it, `x[...] = v` and `x += v` write to it.

    `x[...]` is the current value, for functions of JAX. Its parts are not views.
    """

    __slots__ = ("value",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, value: Any):
        self.value = value

    def __jax_array__(self) -> Value:
        return self.value

    def __array__(self, dtype: np.dtype[Any] | None = None, copy: bool | None = None) -> NumPyArray:
        return self.value.__array__(dtype)

    def __getitem__(self, idx: object) -> Value:
        return self.value[_read_ref(idx)]

    def __setitem__(self, idx: object, new: ArrayLike) -> None:
        self.value = self.value.at[_read_ref(idx)].set(_read_ref(new))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.value, name)

    def __len__(self) -> int:
        return len(self.value)

    def __repr__(self) -> str:
        return f"ArrayRef({self.value!r})"


def _read_ref(x: object) -> Any:
    return x.value if isinstance(x, ArrayRef) else x


def _read_method(function: Function, swapped: bool = False) -> Function:
    def method(self: ArrayRef, *operands: ArrayLike) -> Value:
        values = [self.value, *map(_read_ref, operands)]
        return function(*(values[::-1] if swapped else values))

    return method


def _in_place_method(function: Function) -> Function:
    def method(self: ArrayRef, other: ArrayLike) -> ArrayRef:
        new = function(self.value, _read_ref(other))
        self.value = jax.numpy.broadcast_to(new, self.value.shape).astype(self.value.dtype)
        return self

    return method


for _name in (
    "add",
    "sub",
    "mul",
    "truediv",
    "floordiv",
    "mod",
    "pow",
    "matmul",
    "and",
    "or",
    "xor",
):
    _function = getattr(operator, f"__{_name}__")
    setattr(ArrayRef, f"__{_name}__", _read_method(_function))
    setattr(ArrayRef, f"__r{_name}__", _read_method(_function, swapped=True))
    setattr(ArrayRef, f"__i{_name}__", _in_place_method(_function))
for _name in ("eq", "ne", "lt", "le", "gt", "ge", "neg", "pos", "abs", "invert"):
    setattr(ArrayRef, f"__{_name}__", _read_method(getattr(operator, f"__{_name}__")))
for _name, _convert in (("bool", bool), ("int", int), ("float", float), ("complex", complex)):
    setattr(ArrayRef, f"__{_name}__", _read_method(_convert))


def run_body_eagerly(
    call: OperatorPrimitive, body: Registration, operands: Sequence[ArrayLike]
) -> PyTree:
    """The result of a call on concrete operands by the decomposition, which may write to them."""
    check_writable(call, operands)
    mutated = call.mutated_operands()
    arrays = [
        read_only(x) if isinstance(x, np.ndarray) and i not in mutated else x
        for i, x in enumerate(operands)
    ]
    with declared_writes(call, body):
        leaves, lengths = run_body(call, body, arrays)
    # The body may return an array twice, or one that it did not make.
    leaves = [x.copy() if isinstance(x, np.ndarray) else x for x in leaves]
    aliased = call.aliased_arguments(operands)
    return OutputTypes((), lengths).unflatten(call.operator.schema, leaves, aliased)


def run_body(
    call: OperatorPrimitive, body: Registration, operands: Sequence[ArrayLike]
) -> tuple[list[PyTree], tuple[int | None, ...]]:
    """The leaves of the result of a decomposition, and the lengths of lists."""
    args, kwargs = call.call_arguments(operands)
    return check_new_outputs(call, body, operands, body(*args, **kwargs))


class TracedBody(NamedTuple):
    """The program of a decomposition, the values that it captured, and the lengths of lists."""

    program: Program
    captured: Values
    lengths: tuple[Dim, ...]


def trace_body(call: OperatorPrimitive, body: Registration, avals: Avals) -> TracedBody:
    """The pure program of a decomposition on operands of `avals`.

    It gives the results, then the new values of the mutated operands. Raises ImmutableArrayError
    if the body writes to another operand.
    """
    lengths: tuple[Dim, ...] = ()

    def results(*xs: Value) -> list[Value]:
        nonlocal lengths
        leaves, lengths = run_body(call, body, xs)
        return leaves

    program, captured = trace(results, avals, name=call.operator.__name__, kind="custom_op")
    layouts = *[None] * len(avals), *[noncontiguous_strides(x) for x in captured]
    pure = (
        cached_rewrite(Functionalize(layouts), program)
        if program.writes
        else FunctionalizedProgram(program, (), False)
    )
    mutated, names = call.mutated_operands(), call.operand_names()
    for i in pure.written:
        if i not in mutated:
            name = f"`{names[i]}`" if i < len(names) else "another argument"
            raise undeclared_write_error(call, body, name)
    count = len(program.outputs)
    new = dict(zip(pure.written, pure.program.outputs[count:], strict=True))
    inputs = pure.program.inputs
    outputs = [*pure.program.outputs[:count], *[new.get(i, inputs[i]) for i in mutated]]
    return TracedBody(replace_program_fields(pure.program, outputs=outputs), captured, lengths)
