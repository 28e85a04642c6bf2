"""Implementations of operators: kernels of JAX or NumPy code, and bodies of functx operations.

A kernel runs eagerly on concrete arrays, or as part of a program: inlined if it is JAX code,
called on the host if it is NumPy code.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from functx import ops
from functx.core.config import config
from functx.core.errors import (
    ForeignCodeError,
    ImmutableArrayError,
    OperatorRuleError,
    type_name,
)
from functx.core.functionalization import Functionalize, FunctionalizedProgram, storage_base
from functx.core.program import Effects, Program
from functx.core.program_editing import replace_program_fields
from functx.core.rewriting import cached_rewrite
from functx.core.tracer import Tracer, aval_of
from functx.core.tracing import eval_context, trace
from functx.core.types import ShapedArray, narrow_dtype, x64_enabled
from functx.custom.operators.dispatch import kernels_by_platform
from functx.custom.operators.outputs import OutputTypes, flatten_outputs, operator_rule_error
from functx.custom.operators.registry import Registration
from functx.custom.operators.schema import Return
from functx.lowering.callbacks import DeviceCallback

if TYPE_CHECKING:
    from functx.custom.operators.operator import Operator
    from functx.custom.operators.primitives import OperatorPrimitive


NUMBERS = (bool, int, float, complex, np.generic)


class KernelOutputs(NamedTuple):
    """The leaves of a kernel's results, the lengths of lists, and the new values of mutated operands."""

    leaves: list[Any]
    lengths: tuple[int | None, ...]
    written: list[Any]


def run_kernel(
    primitive: OperatorPrimitive, rule: Registration, arrays: Sequence[Any]
) -> KernelOutputs:
    """The outputs of the kernel `rule` on arrays of NumPy, if it is NumPy code, or of JAX.

    Raises OperatorRuleError unless it returns new arrays, as the schema says.
    """
    operator = primitive.operator
    on_host = rule.option == "numpy"
    mutated = operator.arguments.mutated_operands(primitive)
    operands = list(arrays)
    for i in mutated:
        operands[i] = operands[i] if on_host else ArrayRef(operands[i])
    args, kwargs = operator.arguments.call_arguments(primitive, operands)
    try:
        with eval_context():
            out = rule(*args, **kwargs)
    except jax.errors.JAXTypeError as error:
        raise ForeignCodeError(
            f"{operator.qualname}: its {rule.kind}, registered at {rule.location}, must be code that "
            f"JAX can trace; it asked for a value: {str(error).splitlines()[0]}",
            fix='Register code of NumPy with kernel="numpy", which runs on the host.',
            source=rule.error_source,
        ) from error
    except (ValueError, TypeError) as error:
        if on_host and "read-only" in str(error):
            raise _undeclared_write_error(primitive, rule) from error
        if mutated and ("__jax_array__" in str(error) or ArrayRef.__name__ in str(error)):
            raise operator_rule_error(
                operator.qualname,
                rule,
                "read a mutated argument as x[...]; it passed the reference itself to a function",
                fix="Write jax.numpy.sin(x[...]), and x[...] = value or x += value to write.",
            ) from error
        raise
    check = _KernelOutputChecker(primitive, rule, operands)
    leaves, lengths = flatten_outputs(
        operator.qualname, rule, operator.schema, out, check.check_leaf
    )
    written = [operands[i] if on_host else operands[i].value for i in mutated]
    return KernelOutputs(leaves, lengths, written)


class _KernelOutputChecker:
    """The check that results are new arrays, except those that are arguments by the schema."""

    def __init__(self, primitive: OperatorPrimitive, rule: Registration, operands: Sequence[Any]):
        self.primitive, self.rule, self.operands = primitive, rule, operands

    def error(self, problem: str, fix: str = "") -> OperatorRuleError:
        return operator_rule_error(self.primitive.operator.qualname, self.rule, problem, fix)

    def check_leaf(self, result: Return, x: Any, label: str) -> Any:
        """`x`, the value of a result; OperatorRuleError unless it is a new array or number."""
        if result.alias:
            self.check_returned_argument(result, x, label)
            return x
        refused = config.operator_aliases == "error" or not isinstance(x, jax.Array)
        if refused and (isinstance(x, ArrayRef) or self.is_alias(x)):
            raise self.error(
                f"return arrays of its own; {label} is an argument, or a view of one",
                fix="Return a copy: x.copy(), or jax.numpy.array(x).",
            )
        if not isinstance(x, (np.ndarray, jax.Array, *NUMBERS)):
            raise self.error(f"give an array for {label}; got {type_name(x)}")
        if not result.type.is_array and np.shape(x):
            raise self.error(f"give a number for {label}; got {type_name(x)}")
        return x

    def is_alias(self, x: Any) -> bool:
        if isinstance(x, np.ndarray):
            operands = [y for y in self.operands if isinstance(y, np.ndarray)]
            return any(np.may_share_memory(x, y) for y in operands)
        return any(x is _read_ref(y) for y in self.operands)

    def check_returned_argument(self, result: Return, x: Any, label: str) -> None:
        operator = self.primitive.operator
        values = operator.arguments.unflatten(self.primitive, self.operands)
        for argument, value in zip(operator.schema.arguments, values, strict=True):
            if argument.alias == result.alias and x is not value:
                raise self.error(
                    f"return its argument `{argument.name}` for {label}; got another array"
                )


def _undeclared_write_error(
    primitive: OperatorPrimitive, rule: Registration
) -> ImmutableArrayError:
    operator = primitive.operator
    mutated = ", ".join([f"`{a.name}`" for a in operator.schema.mutated]) or "nothing"
    return ImmutableArrayError(
        f"{operator.qualname}: its {rule.kind}, registered at {rule.location}, must write only "
        f"to the arguments in mutates_args, {mutated}; it writes to another argument",
        fix="Name the argument in mutates_args, or write to a copy.",
        source=rule.error_source,
    )


def run_kernel_eagerly(
    primitive: OperatorPrimitive, rule: Registration, operands: Sequence[Any]
) -> Any:
    """The result of a call on concrete operands, computed by the kernel `rule`.

    NumPy arrays if all operands are NumPy arrays or numbers, else JAX arrays.
    """
    operator = primitive.operator
    avals = [aval_of(x) for x in operands]
    mutated = operator.arguments.mutated_operands(primitive)
    check_writable(primitive, operands)
    if rule.option == "numpy":
        arrays = [
            np.array(x, a.dtype) if i in mutated else read_only(np.asarray(x, a.dtype))
            for i, (x, a) in enumerate(zip(operands, avals, strict=True))
        ]
    else:
        arrays = [
            x if isinstance(x, jax.Array) else jax.numpy.asarray(x, a.dtype)
            for x, a in zip(operands, avals, strict=True)
        ]
    out = run_kernel(primitive, rule, arrays)
    # The writes come last, so that a kernel that fails has changed nothing.
    for i, new in zip(mutated, out.written, strict=True):
        operands[i][...] = np.asarray(new)
    as_jax = (
        any(isinstance(x, jax.Array) for x in operands)
        or operator.device_argument(primitive) is not None
    )
    types = OutputTypes((), out.lengths)
    is_array = types.per_leaf([r.type.is_array for r in operator.schema.new_returns])
    leaves = [
        _as_output(x, as_jax) if on else _as_python_scalar(x)
        for x, on in zip(out.leaves, is_array, strict=True)
    ]
    return types.unflatten(operator.schema, leaves, operator.aliased_arguments(primitive, operands))


def check_writable(primitive: OperatorPrimitive, operands: Sequence[Any]) -> None:
    """Raise ImmutableArrayError unless all mutated operands are writable NumPy arrays."""
    operator = primitive.operator
    for i in operator.arguments.mutated_operands(primitive):
        x = operands[i]
        if isinstance(x, np.ndarray) and x.flags.writeable:
            continue
        name = operator.arguments.operand_names(primitive)[i]
        actual = "a read-only array" if isinstance(x, np.ndarray) else type_name(x)
        raise ImmutableArrayError(
            f"{operator.qualname}: `{name}`, which the operator writes to, must be an array of "
            f"NumPy that is writable, or a traced one; got {actual}",
            fix="Pass numpy.array(x), and take the new value from there.",
        )


def read_only(x: Any) -> Any:
    """A read-only view of the NumPy array `x`."""
    view = x.view()
    view.flags.writeable = False
    return view


def _as_output(x: Any, as_jax: bool) -> Any:
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


def _as_python_scalar(x: Any) -> Any:
    traced = isinstance(x, jax.core.Tracer)
    return x if traced or isinstance(x, (bool, int, float, complex)) else x.item()


class HostKernel(ops.HostPrimitive, abstract=True):
    """The call of a NumPy kernel by the device, for results of the types `output_types`."""

    primitive: Any
    rule: Any
    output_types: tuple[ShapedArray, ...]
    padded: tuple[tuple[int, ...], ...]
    canonicalize: bool

    @property
    def effects(self) -> Effects:  # type: ignore[override]
        return self.primitive.effects  # type: ignore[no-any-return]

    @property
    def display_name(self) -> str:
        return str(self.primitive.name)

    def run(self, *arrays: Any) -> list[Any]:
        mutated = self.primitive.operator.arguments.mutated_operands(self.primitive)
        operands = [np.array(x) if i in mutated else read_only(x) for i, x in enumerate(arrays)]
        out = run_kernel(self.primitive, self.rule, operands)
        values = [np.asarray(x) for x in (*out.leaves, *out.written)]
        padded = self.padded or ((),) * len(values)
        values = [
            _pad_to_aval(x, a, axes)
            for x, a, axes in zip(values, self.output_types, padded, strict=False)
        ]
        return check_kernel_outputs(
            self.primitive, self.rule, values, self.output_types, self.canonicalize, out.leaves
        )


def _pad_to_aval(x: Any, aval: ShapedArray, axes: Sequence[int]) -> Any:
    """`x` padded with zeros along `axes`, to the shape of `aval`."""
    if not axes or x.ndim != aval.ndim or any(x.shape[i] > aval.shape[i] for i in axes):
        return x
    return np.pad(x, [(0, aval.shape[i] - n if i in axes else 0) for i, n in enumerate(x.shape)])


def check_kernel_outputs(
    primitive: OperatorPrimitive,
    rule: Registration,
    values: Sequence[Any],
    avals: Sequence[ShapedArray],
    narrow: bool,
    leaves: Sequence[Any],
) -> list[Any]:
    """`values` as arrays of `avals`; OperatorRuleError unless they have those shapes and dtypes.

    `leaves` are the results before they became arrays: a Python number may have another dtype.
    With `narrow`, 64-bit values become 32-bit values.
    """
    qualname = primitive.operator.qualname
    if len(values) != len(avals):
        raise operator_rule_error(
            qualname,
            rule,
            f"give {len(avals)} arrays, as its abstract rule says; got {len(values)}",
        )
    outs = []
    for i, (x, aval) in enumerate(zip(values, avals, strict=True)):
        dtype = narrow_dtype(x.dtype) if narrow else x.dtype
        is_number = i < len(leaves) and isinstance(leaves[i], (bool, int, float, complex))
        if x.shape != aval.shape or (dtype != aval.dtype and not is_number):
            raise operator_rule_error(
                qualname,
                rule,
                "give results of the types that its abstract rule states; "
                f"got {ShapedArray(x.shape, x.dtype)!r} "
                f"for number {i}: {aval!r}",
                fix="Convert the result, or state its type with def_abstract.",
            )
        outs.append(x.astype(aval.dtype) if x.dtype != aval.dtype else x)
    return outs


def lower_kernel(primitive: OperatorPrimitive, ctx: Any, values: Sequence[Any]) -> Sequence[Any]:
    """The lowering of an operator: the kernel for each platform of the program."""
    kernels = kernels_by_platform(primitive, ctx.platforms)
    avals = tuple(ctx.avals_out)
    padded = primitive.output_types(tuple(ctx.avals_in)).padded

    def on_host(rule: Registration) -> HostKernel:
        return HostKernel(primitive, rule, avals, padded, not x64_enabled())

    if len(kernels) == 1:
        (rule,) = kernels.values()
        if rule.option == "numpy":
            return ctx.callback(on_host(rule), values)  # type: ignore[no-any-return]
        outs = ctx.via_jax(kernel_as_jax_function(primitive, rule, avals), *values)
    else:
        outs = ctx.via_jax(
            _platform_dependent_kernel(primitive, kernels, avals, ctx.source, on_host), *values
        )
    return outs if isinstance(outs, (list, tuple)) else [outs]


def kernel_as_jax_function(
    primitive: OperatorPrimitive, rule: Registration, avals: Sequence[ShapedArray]
) -> Any:
    """A JAX kernel as a function of the flat operands."""

    def function(*xs: Any) -> Any:
        out = run_kernel(primitive, rule, xs)
        values = [jax.numpy.asarray(x) for x in (*out.leaves, *out.written)]
        outs = check_kernel_outputs(primitive, rule, values, avals, not x64_enabled(), out.leaves)
        return outs[0] if len(outs) == 1 else tuple(outs)

    function.__name__ = primitive.operator.__name__
    return function


def _platform_dependent_kernel(
    primitive: OperatorPrimitive,
    kernels: dict[str, Registration],
    avals: Sequence[ShapedArray],
    source: Any,
    on_host: Callable[[Registration], HostKernel],
) -> Any:
    """The function with a branch for each platform, for a program of several platforms."""
    shapes = tuple([jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals])

    def branch(rule: Registration) -> Any:
        if rule.option != "numpy":
            return kernel_as_jax_function(primitive, rule, avals)
        device_call = DeviceCallback(on_host(rule), source)

        def through_callback(*xs: Any) -> Any:
            outs = jax.pure_callback(device_call, shapes, *xs)
            return outs[0] if len(shapes) == 1 else outs

        return through_callback

    branches = {platform: branch(rule) for platform, rule in kernels.items()}

    def function(*xs: Any) -> Any:
        return jax.lax.platform_dependent(*xs, **branches)

    return function


class ArrayRef:
    """A mutable reference to a JAX array: operators read it, `x[...] = v` and `x += v` write to it.

    `x[...]` is the current value, for functions of JAX. Its parts are not views.
    """

    __slots__ = ("value",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, value: Any):
        self.value = value

    def __jax_array__(self) -> Any:
        return self.value

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.value.__array__(dtype)

    def __getitem__(self, idx: Any) -> Any:
        return self.value[_read_ref(idx)]

    def __setitem__(self, idx: Any, new: Any) -> None:
        self.value = self.value.at[_read_ref(idx)].set(_read_ref(new))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.value, name)

    def __len__(self) -> int:
        return len(self.value)

    def __repr__(self) -> str:
        return f"ArrayRef({self.value!r})"


def _read_ref(x: Any) -> Any:
    return x.value if isinstance(x, ArrayRef) else x


def _read_method(function: Callable[..., Any], swapped: bool = False) -> Callable[..., Any]:
    def method(self: ArrayRef, *operands: Any) -> Any:
        values = [self.value, *map(_read_ref, operands)]
        return function(*(values[::-1] if swapped else values))

    return method


def _in_place_method(function: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: ArrayRef, other: Any) -> ArrayRef:
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


class CompositeBody:
    """The decomposition of an operator, a function of functx operations."""

    def __init__(self, operator: Operator, rule: Registration):
        self.operator, self.rule = operator, rule

    def run_eagerly(self, primitive: OperatorPrimitive, operands: Sequence[Any]) -> Any:
        """The result of a call on concrete operands, to which the body may write."""
        operator = self.operator
        check_writable(primitive, operands)
        mutated = operator.arguments.mutated_operands(primitive)
        arrays = [
            read_only(x) if isinstance(x, np.ndarray) and i not in mutated else x
            for i, x in enumerate(operands)
        ]
        try:
            leaves, lengths = self.check_outputs(primitive, arrays)
        except ValueError as error:
            if "read-only" in str(error):
                raise self.undeclared_write_error() from error
            raise
        # The body may return an array twice, or one that it did not make.
        leaves = [x.copy() if isinstance(x, np.ndarray) else x for x in leaves]
        aliased = operator.aliased_arguments(primitive, operands)
        return OutputTypes((), lengths).unflatten(operator.schema, leaves, aliased)

    def check_outputs(
        self, primitive: OperatorPrimitive, operands: Sequence[Any]
    ) -> tuple[list[Any], tuple[int | None, ...]]:
        """The leaves of the body's result, which must be new arrays, and the lengths of lists."""
        args, kwargs = self.operator.arguments.call_arguments(primitive, operands)
        out = self.rule(*args, **kwargs)

        def check_leaf(result: Return, x: Any, label: str) -> Any:
            if result.alias:
                aliased = self.operator.aliased_arguments(primitive, operands) or {}
                if x is not aliased[result.alias]:
                    raise self.error(f"return what it writes to for {label}; got another array")
                return x
            if not isinstance(x, (Tracer, np.ndarray, jax.Array, *NUMBERS)):
                raise self.error(f"give an array for {label}; got {type_name(x)}")
            if any(_is_alias(x, y) for y in operands):
                raise self.error(
                    f"return arrays of its own; {label} is an argument, or a view of one",
                    "Return a copy: x.copy().",
                )
            return x

        return flatten_outputs(
            self.operator.qualname, self.rule, self.operator.schema, out, check_leaf
        )

    def error(self, problem: str, fix: str = "") -> OperatorRuleError:
        return operator_rule_error(self.operator.qualname, self.rule, problem, fix)

    def undeclared_write_error(self, name: str = "") -> ImmutableArrayError:
        """The error that the body writes to an argument that `mutates_args` does not name."""
        return ImmutableArrayError(
            f"{self.operator.qualname}: its decomposition, given at {self.rule.location}, must write "
            f"only to the arguments in mutates_args; it writes to {name or 'another argument'}",
            fix="Name the argument in mutates_args, or write to a copy.",
            source=self.rule.error_source,
        )

    def trace_body(self, primitive: OperatorPrimitive, avals: Sequence[ShapedArray]) -> TracedBody:
        """The pure program of the body on operands of `avals`.

        It gives the results, then the new values of the mutated operands. Raises
        ImmutableArrayError if the body writes to another operand.
        """
        lengths: tuple[int | None, ...] = ()

        def results(*xs: Any) -> list[Any]:
            nonlocal lengths
            leaves, lengths = self.check_outputs(primitive, xs)
            return leaves

        name = self.operator.__name__
        program, captured = trace(results, avals, name=name, kind="custom_op")
        pure = (
            cached_rewrite(Functionalize(), program)
            if program.writes
            else FunctionalizedProgram(program, (), False)
        )
        mutated = self.operator.arguments.mutated_operands(primitive)
        names = self.operator.arguments.operand_names(primitive)
        for i in pure.written:
            if i not in mutated:
                raise self.undeclared_write_error(f"`{names[i]}`" if i < len(names) else "")
        count = len(program.outputs)
        new = dict(zip(pure.written, pure.program.outputs[count:], strict=True))
        inputs = pure.program.inputs
        outputs = [*pure.program.outputs[:count], *[new.get(i, inputs[i]) for i in mutated]]
        return TracedBody(replace_program_fields(pure.program, outputs=outputs), captured, lengths)


class TracedBody(NamedTuple):
    """The program of a decomposition, the values that it captured, and the lengths of lists."""

    program: Program
    captured: Sequence[Any]
    lengths: tuple[int | None, ...]


def _is_alias(x: Any, y: Any) -> bool:
    """Whether a result is an operand, or a view of it."""
    if type(x) is Tracer and type(y) is Tracer:
        return storage_base(x).atom is storage_base(y).atom
    if isinstance(x, np.ndarray) and isinstance(y, np.ndarray):
        return bool(np.may_share_memory(x, y))
    return x is y and not isinstance(x, NUMBERS)
