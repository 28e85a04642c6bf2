"""Implementations of operators: what one takes and gives, run now or as part of a program."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from functx import ops
from functx.core.config import config
from functx.core.errors import ForeignCodeError, ImmutableArrayError, type_name
from functx.core.functionalization import Functionalize, FunctionalizedProgram, storage_base
from functx.core.program import Effects, Program
from functx.core.program_editing import replace_program_fields
from functx.core.rewriting import cached_rewrite
from functx.core.tracing import Tracer, aval_of, eval_context, trace
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
    """What an implementation gave: results, the lengths of lists, what it wrote to arguments."""

    leaves: list[Any]
    lengths: tuple[int | None, ...]
    written: list[Any]


def run_kernel(call: OperatorPrimitive, rule: Registration, arrays: Sequence[Any]) -> KernelOutputs:
    """What an implementation makes of arrays: NumPy's if it is code of NumPy, else JAX's.

    Raises OperatorRuleError where it does not return what the schema says, or an argument.
    """
    operator = call.operator
    on_host = rule.option == "numpy"
    places = operator.arguments.written(call)
    given = list(arrays)
    for i in places:
        given[i] = given[i] if on_host else ArrayRef(given[i])
    args, kwargs = operator.arguments.call_arguments(call, given)
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
            raise _undeclared_write_error(call, rule) from error
        if places and ("__jax_array__" in str(error) or ArrayRef.__name__ in str(error)):
            raise operator_rule_error(
                operator.qualname,
                rule,
                "take the value of what it writes to as x[...]; it gave the place for a value",
                fix="Write jax.numpy.sin(x[...]), and x[...] = value or x += value to write.",
            ) from error
        raise
    check = _KernelOutputChecker(call, rule, given)
    leaves, lengths = flatten_outputs(
        operator.qualname, rule, operator.schema, out, check.check_leaf
    )
    return KernelOutputs(leaves, lengths, [given[i] if on_host else given[i].value for i in places])


class _KernelOutputChecker:
    """The check that results are new arrays, except those that the schema says are arguments."""

    def __init__(self, call: OperatorPrimitive, rule: Registration, given: Sequence[Any]):
        self.call, self.rule, self.given = call, rule, given

    def check_leaf(self, result: Return, x: Any, place: str) -> Any:
        """The value `x` of a result; OperatorRuleError if it is no array or number, or an argument."""
        qualname = self.call.operator.qualname
        if result.alias:
            self.check_returned_argument(result, x, place)
            return x
        refused = config.operator_aliases == "error" or not isinstance(x, jax.Array)
        if refused and (isinstance(x, ArrayRef) or self.is_alias(x)):
            raise operator_rule_error(
                qualname,
                self.rule,
                f"return arrays of its own; {place} is an argument, or a view of one",
                fix="Return a copy: x.copy(), or jax.numpy.array(x).",
            )
        if not isinstance(x, (np.ndarray, jax.Array, *NUMBERS)):
            raise operator_rule_error(
                qualname, self.rule, f"give an array for {place}; got {type_name(x)}"
            )
        if not result.type.is_array and np.shape(x):
            raise operator_rule_error(
                qualname, self.rule, f"give a number for {place}; got {type_name(x)}"
            )
        return x

    def is_alias(self, x: Any) -> bool:
        if isinstance(x, np.ndarray):
            return any(isinstance(y, np.ndarray) and np.may_share_memory(x, y) for y in self.given)
        return any(x is (y.value if isinstance(y, ArrayRef) else y) for y in self.given)

    def check_returned_argument(self, result: Return, x: Any, place: str) -> None:
        operator = self.call.operator
        arranged = operator.arguments.unflatten(self.call, self.given)
        for argument, value in zip(operator.schema.arguments, arranged, strict=True):
            if argument.alias == result.alias and x is not value:
                raise operator_rule_error(
                    operator.qualname,
                    self.rule,
                    f"return its argument `{argument.name}` for {place}; got another array",
                )


def _undeclared_write_error(call: OperatorPrimitive, rule: Registration) -> ImmutableArrayError:
    operator = call.operator
    named = ", ".join([f"`{a.name}`" for a in operator.schema.mutated]) or "nothing"
    return ImmutableArrayError(
        f"{operator.qualname}: its {rule.kind}, registered at {rule.location}, must write to what "
        f"mutates_args names alone, {named}; it writes to another argument",
        fix="Name the argument in mutates_args, or write to a copy.",
        source=rule.error_source,
    )


def run_kernel_eagerly(call: OperatorPrimitive, rule: Registration, operands: Sequence[Any]) -> Any:
    """The result of a call on concrete operands, computed by the implementation `rule`.

    NumPy arrays from NumPy arrays and numbers, else JAX arrays.
    """
    operator = call.operator
    avals = [aval_of(x) for x in operands]
    written = set(operator.arguments.written(call))
    check_writable(call, operands)
    if rule.option == "numpy":
        arrays = [
            np.array(x, a.dtype) if i in written else read_only(np.asarray(x, a.dtype))
            for i, (x, a) in enumerate(zip(operands, avals, strict=True))
        ]
    else:
        arrays = [
            x if isinstance(x, jax.Array) else jax.numpy.asarray(x, a.dtype)
            for x, a in zip(operands, avals, strict=True)
        ]
    out = run_kernel(call, rule, arrays)
    # Only now, so that an implementation that fails has changed nothing.
    for i, new in zip(sorted(written), out.written, strict=True):
        operands[i][...] = np.asarray(new)
    as_jax = (
        any(isinstance(x, jax.Array) for x in operands)
        or operator.device_argument(call) is not None
    )
    marks = OutputTypes((), out.lengths).per_leaf(
        [r.type.is_array for r in operator.schema.new_returns]
    )
    leaves = [
        _as_output(x, as_jax) if on else _as_python_scalar(x)
        for x, on in zip(out.leaves, marks, strict=True)
    ]
    return OutputTypes((), out.lengths).unflatten(
        operator.schema, leaves, operator.aliased_arguments(call, operands)
    )


def check_writable(call: OperatorPrimitive, operands: Sequence[Any]) -> None:
    """Raise ImmutableArrayError unless all that the operator writes to can be written to."""
    operator = call.operator
    for i in operator.arguments.written(call):
        x = operands[i]
        if isinstance(x, np.ndarray) and x.flags.writeable:
            continue
        name = operator.arguments.operand_names(call)[i]
        what = "a read-only array" if isinstance(x, np.ndarray) else type_name(x)
        raise ImmutableArrayError(
            f"{operator.qualname}: `{name}`, which the operator writes to, must be an array of "
            f"NumPy that is writable, or a traced one; got {what}",
            fix="Pass numpy.array(x), and take the new value from there.",
        )


def read_only(x: Any) -> Any:
    """The array `x`, which cannot be written to under this name."""
    view = x.view()
    view.flags.writeable = False
    return view


def _as_output(x: Any, as_jax: bool) -> Any:
    """A result as functx gives it, with no type that the 64-bit switch turns off.

    In memory of its own: an implementation may keep what it returns, or return it twice.
    """
    if as_jax:
        return x if isinstance(x, jax.Array) else jax.numpy.array(x)
    # What JAX is tracing stays with JAX.
    if isinstance(x, jax.core.Tracer):
        return x
    array = np.array(x)
    return array if x64_enabled() else array.astype(narrow_dtype(array.dtype), copy=False)


def _as_python_scalar(x: Any) -> Any:
    traced = isinstance(x, jax.core.Tracer)
    return x if traced or isinstance(x, (bool, int, float, complex)) else x.item()


class HostKernel(ops.HostPrimitive, abstract=True):
    """The call of an implementation by the device, for results of the types `results`."""

    call: Any
    rule: Any
    output_types: tuple[ShapedArray, ...]
    padded: tuple[tuple[int, ...], ...]
    canonicalize: bool

    @property
    def effects(self) -> Effects:  # type: ignore[override]
        return self.call.effects  # type: ignore[no-any-return]

    @property
    def display_name(self) -> str:
        return str(self.call.name)

    def run(self, *arrays: Any) -> list[Any]:
        written = set(self.call.operator.arguments.written(self.call))
        given = [np.array(x) if i in written else read_only(x) for i, x in enumerate(arrays)]
        out = run_kernel(self.call, self.rule, given)
        values = [np.asarray(x) for x in (*out.leaves, *out.written)]
        padded = self.padded or ((),) * len(values)
        values = [
            _pad_to_aval(x, a, axes)
            for x, a, axes in zip(values, self.output_types, padded, strict=False)
        ]
        return check_kernel_outputs(
            self.call, self.rule, values, self.output_types, self.canonicalize, out.leaves
        )


def _pad_to_aval(x: Any, aval: ShapedArray, axes: Sequence[int]) -> Any:
    """`x` with zeros behind it along `axes`, up to the shape of `aval`."""
    if not axes or x.ndim != aval.ndim or any(x.shape[i] > aval.shape[i] for i in axes):
        return x
    return np.pad(x, [(0, aval.shape[i] - n if i in axes else 0) for i, n in enumerate(x.shape)])


def check_kernel_outputs(
    call: OperatorPrimitive,
    rule: Registration,
    values: Sequence[Any],
    avals: Sequence[ShapedArray],
    narrow: bool,
    given: Sequence[Any] = (),
) -> list[Any]:
    """`values` as arrays of `avals`; OperatorRuleError unless they have those shapes and dtypes."""
    qualname = call.operator.qualname
    if len(values) != len(avals):
        raise operator_rule_error(
            qualname,
            rule,
            f"give {len(avals)} arrays, as its abstract rule says; got {len(values)}",
        )
    found = []
    for i, (x, aval) in enumerate(zip(values, avals, strict=True)):
        dtype = narrow_dtype(x.dtype) if narrow else x.dtype
        number = i < len(given) and isinstance(given[i], (bool, int, float, complex))
        if x.shape != aval.shape or (dtype != aval.dtype and not number):
            raise operator_rule_error(
                qualname,
                rule,
                "give results of the types that its abstract rule states; "
                f"got {ShapedArray(x.shape, x.dtype)!r} "
                f"for number {i}: {aval!r}",
                fix="Convert the result, or state its type with def_abstract.",
            )
        found.append(x.astype(aval.dtype) if x.dtype != aval.dtype else x)
    return found


def lower_kernel(call: OperatorPrimitive, ctx: Any, values: Sequence[Any]) -> Sequence[Any]:
    """The results of `call` as part of a program, by the implementation for its platform."""
    chosen = kernels_by_platform(call, ctx.platforms)
    avals = tuple(ctx.avals_out)
    padded = call.output_types(tuple(ctx.avals_in)).padded

    def on_host(rule: Registration) -> HostKernel:
        return HostKernel(call, rule, avals, padded, not x64_enabled())

    if len(chosen) == 1:
        (rule,) = chosen.values()
        if rule.option == "numpy":
            return ctx.callback(on_host(rule), values)  # type: ignore[no-any-return]
        outs = ctx.via_jax(kernel_as_jax_function(call, rule, avals), *values)
    else:
        outs = ctx.via_jax(
            _platform_dependent_kernel(call, chosen, avals, ctx.source, on_host), *values
        )
    return outs if isinstance(outs, (list, tuple)) else [outs]


def kernel_as_jax_function(
    call: OperatorPrimitive, rule: Registration, avals: Sequence[ShapedArray]
) -> Any:
    """An implementation in code of JAX as a function of the operands, flat."""

    def function(*xs: Any) -> Any:
        out = run_kernel(call, rule, xs)
        values = [jax.numpy.asarray(x) for x in (*out.leaves, *out.written)]
        found = check_kernel_outputs(call, rule, values, avals, not x64_enabled(), out.leaves)
        return found[0] if len(found) == 1 else tuple(found)

    function.__name__ = call.operator.__name__
    return function


def _platform_dependent_kernel(
    call: OperatorPrimitive,
    chosen: dict[str, Registration],
    avals: Sequence[ShapedArray],
    source: Any,
    on_host: Callable[[Registration], HostKernel],
) -> Any:
    """The function that has a branch for each platform of a program for several."""
    shapes = tuple([jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals])

    def branch(rule: Registration) -> Any:
        if rule.option != "numpy":
            return kernel_as_jax_function(call, rule, avals)
        device_call = DeviceCallback(on_host(rule), source)

        def through_callback(*xs: Any) -> Any:
            outs = jax.pure_callback(device_call, shapes, *xs)
            return outs[0] if len(shapes) == 1 else outs

        return through_callback

    branches = {platform: branch(rule) for platform, rule in chosen.items()}

    def function(*xs: Any) -> Any:
        return jax.lax.platform_dependent(*xs, **branches)

    return function


class ArrayRef:
    """A place for an array: reads as the array, and takes another value by `x[...] = v` or `x += v`.

    `x[...]` is the value now, which functions of JAX take. Unlike NumPy's, parts are no views.
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
    def method(self: ArrayRef, *others: Any) -> Any:
        values = [self.value, *map(_read_ref, others)]
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
    """The body of an operator, in functx's own operations."""

    def __init__(self, operator: Operator, rule: Registration):
        self.operator, self.rule = operator, rule

    def run_eagerly(self, call: OperatorPrimitive, operands: Sequence[Any]) -> Any:
        """The result of a call on concrete operands, to which the body writes itself."""
        operator = self.operator
        check_writable(call, operands)
        written = operator.arguments.written(call)
        given = [
            read_only(x) if isinstance(x, np.ndarray) and i not in written else x
            for i, x in enumerate(operands)
        ]
        try:
            leaves, lengths = self.leaves(call, given)
        except ValueError as error:
            if "read-only" in str(error):
                raise self.undeclared_write_error() from error
            raise
        # Each is copied: the body may return one array twice, or one from outside.
        leaves = [x.copy() if isinstance(x, np.ndarray) else x for x in leaves]
        aliased = operator.aliased_arguments(call, operands)
        return OutputTypes((), lengths).unflatten(operator.schema, leaves, aliased)

    def leaves(
        self, call: OperatorPrimitive, given: Sequence[Any]
    ) -> tuple[list[Any], tuple[int | None, ...]]:
        """What the body gives for operands, flat, and the lengths of lists."""
        args, kwargs = self.operator.arguments.call_arguments(call, given)
        out = self.rule(*args, **kwargs)

        def leaf(result: Return, x: Any, place: str) -> Any:
            if result.alias:
                own = (self.operator.aliased_arguments(call, given) or {})[result.alias]
                if x is not own:
                    raise self.rule_error(
                        f"return what it writes to for {place}; got another array"
                    )
                return x
            if not isinstance(x, (Tracer, np.ndarray, jax.Array, *NUMBERS)):
                raise self.rule_error(f"give an array for {place}; got {type_name(x)}")
            if any(_is_alias(x, y) for y in given):
                raise self.rule_error(
                    f"return arrays of its own; {place} is an argument, or a view of one",
                    "Return a copy: x.copy().",
                )
            return x

        return flatten_outputs(self.operator.qualname, self.rule, self.operator.schema, out, leaf)

    def rule_error(self, problem: str, fix: str = "") -> Exception:
        return operator_rule_error(self.operator.qualname, self.rule, problem, fix)

    def undeclared_write_error(self, name: str = "") -> ImmutableArrayError:
        """The error that the body writes to what `mutates_args` does not name."""
        return ImmutableArrayError(
            f"{self.operator.qualname}: its decomposition, given at {self.rule.location}, must write to "
            f"what mutates_args names alone; it writes to {name or 'another argument'}",
            fix="Name the argument in mutates_args, or write to a copy.",
            source=self.rule.error_source,
        )

    def body(self, call: OperatorPrimitive, avals: Sequence[ShapedArray]) -> TracedBody:
        """The program of the body on operands of `avals`, without its writes.

        Raises ImmutableArrayError if it writes to an operand that is not named.
        """
        lengths: tuple[int | None, ...] = ()

        def results(*xs: Any) -> list[Any]:
            nonlocal lengths
            leaves, lengths = self.leaves(call, xs)
            return leaves

        name = self.operator.__name__
        program, captured = trace(results, avals, name=name, kind="custom_op")
        pure = (
            cached_rewrite(Functionalize(), program)
            if program.writes
            else FunctionalizedProgram(program, (), False)
        )
        places = self.operator.arguments.written(call)
        names = self.operator.arguments.operand_names(call)
        for i in pure.written:
            if i not in places:
                raise self.undeclared_write_error(f"`{names[i]}`" if i < len(names) else "")
        count = len(program.outputs)
        new = dict(zip(pure.written, pure.program.outputs[count:], strict=True))
        inputs = pure.program.inputs
        outputs = [*pure.program.outputs[:count], *[new.get(i, inputs[i]) for i in places]]
        return TracedBody(replace_program_fields(pure.program, outputs=outputs), captured, lengths)


class TracedBody(NamedTuple):
    """What an operation is made of: a program, what it captured, and the lengths of lists."""

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
