"""Execution outside of a trace: operations and programs are compiled once per structure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import jax
import numpy as np

from functx import ops
from functx.core.backend import backend
from functx.core.caches import Cache
from functx.core.captures import hoist_captures
from functx.core.concretization import Guard
from functx.core.config import config, contextual_key, outline_mode
from functx.core.effects import Effect
from functx.core.errors import EffectError
from functx.core.host_kernels import evaluate_on_host, evaluate_unary_on_host
from functx.core.memory_layouts import noncontiguous_strides, result_strides
from functx.core.primitive import Primitive
from functx.core.primitive_families import HasHostKernel, HasPrograms, View
from functx.core.program import Equation, Literal, Program, Var
from functx.core.rewriting import cached_rewrite, user_rule_runs
from functx.core.strides import MemoryOrder, in_memory_order, row_major_strides
from functx.core.tracer import HOST_ARRAY_TYPES, as_ndarray, aval_of, copy_as_ndarray, is_jax_tracer
from functx.core.types import ShapedArray, real_dtype, threefry_partitionable, x64_enabled
from functx.core.typing import ArrayLike, Avals, Function, NumPyArray, Value, Values
from functx.lowering.argument_checks import check_usable
from functx.lowering.functx_call import jit_program
from functx.lowering.jax_bridge import call_reraising_callback_errors, jax_is_tracing, run_callback
from functx.lowering.recompilation import code_of_program, record_compilation
from functx.passes.outlining import MIN_EQUATIONS
from functx.passes.pipeline import Stage, Target, run_passes
from functx.transforms.checkify import run_checked
from functx.transforms.dce import RemoveEffects
from functx.transforms.decompose import apply_user_decompositions
from functx.transforms.literal_lifting import (
    collect_literals,
    lift_literals,
    literal_free_key,
    pack_literals,
)

if TYPE_CHECKING:
    from functx.core.types import DType

# On a CPU an executable takes 1.6 MB, even that of a single operation.
program_cache = Cache("programs", 512)
specialization_cache = Cache("numbers", 1024)
operation_cache = Cache("operations", 512)


Executable = Callable[..., list[Value]]


def run(
    rewrite: Function | None, program: Program, args: Values, donated: tuple[int, ...] = ()
) -> list[Value]:
    """The outputs of `rewrite(program)` on concrete `args`, as JAX arrays.

    The memory of the arguments at the positions `donated` may be reused.

    Raises DonationError for a deleted array and ValueRangeError for an int that is too large.
    """
    if Effect.CHECK in program.effects:
        return run_checked(rewrite, program, args)
    try:
        compiled, literals = find_executable(rewrite, program, args, donated)
        return call_reraising_callback_errors(compiled, *args, *literals)
    except (OverflowError, ValueError, RuntimeError):
        check_usable(program.name, program.input_names(), args)
        raise


def find_executable(
    rewrite: Function | None, program: Program, args: Values, donated: tuple[int, ...] = ()
) -> tuple[Executable, Sequence[ArrayLike]]:
    """The executable of `rewrite(program)`, and its further arguments: captured values, literals.

    It is found by the structure of `program`. A program that differs from an earlier one in its
    literals alone is compiled a second time, with these literals as inputs, and then once for each
    new outcome of the guards on them. A program on which a user's rule runs is rewritten each time,
    and found by the structure of the result.
    """
    key = contextual_key((rewrite, program.key, donated))
    compiled: Executable | None = program_cache.get(key)
    if compiled is not None:
        return compiled, ()
    form = contextual_key((rewrite, literal_free_key(program), donated))
    parametrized: ParametrizedExecutable | None = specialization_cache.get(form)
    if parametrized is None:
        specialization_cache.put(form, ParametrizedExecutable(collect_literals(program), donated))
    else:
        found = parametrized.find_executable(rewrite, program, args)
        if found is not None:
            return found
    count = user_rule_runs.count
    rewritten = _rewrite_to_compile(rewrite, program)
    if rewritten.has_captures or user_rule_runs.count != count:
        return _find_executable_with_captures(rewritten, args)
    if config.verify:
        backend.verify(rewritten, args)
    compiled = jit_program(rewritten, donate_argnums=donated)
    program_cache.put(key, compiled)
    record_compilation(
        code_of_program(program),
        program.name,
        program,
        kind=type(rewrite),
        avals=rewritten.in_avals,
    )
    return compiled, ()


def _find_executable_with_captures(
    program: Program, args: Values
) -> tuple[Executable, Sequence[ArrayLike]]:
    """The executable of a program with captured values, and its further arguments."""
    program, captured = hoist_captures(program)
    if program.has_captures:
        return jit_program(program), captured
    compiled, literals = find_executable(None, program, [*args, *captured])
    return compiled, [*captured, *literals]


MAX_SPECIALIZATIONS = 8


class ParametrizedExecutable:
    """The executables of programs that differ in their literals alone."""

    def __init__(self, first: Sequence[Literal], donated: tuple[int, ...]):
        self.first_literals, self.donated = first, donated
        self.varying_positions: set[int] = set()
        self.specializations: list[Specialization] = []

    def find_executable(
        self, rewrite: Function | None, program: Program, args: Values
    ) -> tuple[Executable, Sequence[ArrayLike]] | None:
        """The executable of such a program, and its literals; None if it is to be compiled as it is."""
        literals = collect_literals(program)
        for specialization in self.specializations:
            inputs = specialization.match(literals)
            if inputs is not None:
                return specialization.compiled, pack_literals(inputs)
        pairs = enumerate(zip(self.first_literals, literals, strict=True))
        self.varying_positions |= {i for i, (a, b) in pairs if a != b}
        if not self.varying_positions or len(self.specializations) == MAX_SPECIALIZATIONS:
            return None
        positions = sorted(self.varying_positions)
        count = user_rule_runs.count
        lifted = lift_literals(partial(_rewrite_to_compile, rewrite), program, positions)
        if lifted is None or lifted.program.has_captures or user_rule_runs.count != count:
            return None
        if config.verify:
            backend.verify(_rewrite_to_compile(rewrite, program), args)
        fixed = [None if i in self.varying_positions else a for i, a in enumerate(literals)]
        compiled = jit_program(lifted.program, donate_argnums=self.donated)
        self.specializations.append(Specialization(fixed, lifted.guards, compiled))
        return compiled, pack_literals([literals[i] for i in positions])


class Specialization(NamedTuple):
    """An executable with the literals that are None in `fixed_literals` as inputs.

    It is right for programs with equal fixed literals, and inputs for which all guards hold.
    """

    fixed_literals: Sequence[Literal | None]
    guards: Sequence[Guard]
    compiled: Executable

    def match(self, literals: Sequence[Literal]) -> list[Literal] | None:
        """The inputs for a program with these literals; None if the executable is not for it."""
        inputs = []
        for fixed, literal in zip(self.fixed_literals, literals, strict=True):
            if fixed is None:
                inputs.append(literal)
            elif fixed is not literal and fixed != literal:
                return None
        values = [a.value for a in inputs]
        return inputs if all([guard.holds(values) for guard in self.guards]) else None


def _rewrite_to_compile(rewrite: Function | None, program: Program) -> Program:
    program = cached_rewrite(
        rewrite, program if rewrite is None else prepare_for_transform(program)
    )
    return prepare_for_lookup(program)


def prepare_for_lookup(program: Program) -> Program:
    """`program` after the passes before an executable is looked up."""
    target = current_target()
    return run_passes(Stage.LOOKUP, target, run_passes(Stage.REWRITE, target, program))


def current_target() -> Target:
    """The target of programs whose executables are looked up on the default backend."""
    return Target((jax.default_backend(),), outline_mode())


def prepare_for_transform(program: Program) -> Program:
    """`program` with stable formulas, and repeats as calls, each of which a transform rewrites once."""
    target = current_target()._replace(is_transformed=True)
    program = run_passes(Stage.REWRITE, target, program)
    if len(program.equations) < MIN_EQUATIONS:
        return program
    return run_passes(Stage.TRANSFORM, target, program)


def evaluate(primitive: Primitive, args: Values) -> ArrayLike | list[Any]:
    """`primitive(*args)` outside of a trace: an `ndarray` for NumPy arrays and numbers, else JAX arrays."""
    if len(args) == 1 and type(args[0]) in HOST_ARRAY_TYPES and isinstance(primitive, View):
        views = numpy_view(primitive, cast(NumPyArray, args[0]))
        if views is not None:
            return views if primitive.multiple_results else views[0]
    with_kernel = primitive if isinstance(primitive, HasHostKernel) else None
    if with_kernel is not None and len(args) == 1:
        out = evaluate_unary_on_host(with_kernel, args[0])
        if out is not None:
            return out
    avals = tuple([aval_of(x) for x in args])
    if with_kernel is not None:
        out = evaluate_on_host(with_kernel, args, avals)
        if out is not None:
            return out
    key = contextual_key((primitive, avals))
    compiled = operation_cache.get(key)
    if compiled is None and (
        isinstance(primitive, HasPrograms)
        or apply_user_decompositions.find_decomposition(primitive)
    ):
        program = _single_equation_program(primitive, avals)

        def compiled(*values: Value) -> list[Value]:
            return run(None, program, values)

    elif compiled is None:
        host = isinstance(primitive, ops.HostPrimitive)
        if isinstance(primitive, ops.HostPrimitive) and not jax_is_tracing():
            return _call_host_function(primitive, args, avals)
        compiled = jit_program(_single_equation_program(primitive, avals))
        if not host:
            operation_cache.put(key, compiled)
    try:
        outs = call_reraising_callback_errors(compiled, *[_operand_value(x) for x in args])
    except RuntimeError:
        check_usable(primitive.name, None, args)
        raise
    if not any(isinstance(x, jax.Array) for x in args):
        outs = _on_host(primitive, args, avals, outs)
    return outs if primitive.multiple_results else outs[0]


def _on_host(
    primitive: Primitive, args: Values, avals: tuple[ShapedArray, ...], outs: Sequence[Any]
) -> list[Any]:
    """The outputs of an operation on NumPy arrays, as `ndarray`s in the memory order that NumPy gives them."""
    # While JAX traces, an operation without operands gives a tracer too.
    outs = [
        out if isinstance(out, jax.core.Tracer) else copy_as_ndarray(out, out.weak_type)
        for out in outs
    ]
    order = primitive.memory_order
    if order is MemoryOrder.ROW_MAJOR:
        return outs
    layouts = [noncontiguous_strides(x) for x in args]
    if not any(layouts) and order is not MemoryOrder.REARRANGED:
        return outs
    strides = result_strides(
        primitive,
        avals,
        [s or row_major_strides(x.shape) for s, x in zip(layouts, avals, strict=True)],
        outs[0].shape,
    )
    return [in_memory_order(x, strides) if type(x) in HOST_ARRAY_TYPES else x for x in outs]


def numpy_view(primitive: View, x: NumPyArray) -> list[NumPyArray] | None:
    """The results of `primitive` as views of the memory of `x`; None if they have to be copies.

    A 64-bit array keeps its dtype, also without 64-bit mode.
    """
    aval = aval_of(x)
    if any(n % x.itemsize for n in x.strides):
        return None
    outs = primitive.out_avals_memo.get((aval,)) or primitive.infer_out_avals((aval,))
    strides = tuple([n // x.itemsize for n in x.strides])
    view_strides = primitive.view_strides(aval, strides)
    offsets = [primitive.view_offset(aval, strides, i) for i in range(len(outs))]
    if view_strides is None or None in offsets:
        return None
    address, is_read_only = x.__array_interface__["data"]
    is_read_only = is_read_only or primitive.is_read_only_view(aval)
    views = []
    for out, offset in zip(outs, offsets, strict=True):
        dtype = (
            out.dtype if aval.dtype == x.dtype else numpy_view_dtype(aval.dtype, x.dtype, out.dtype)
        )
        if dtype is None:
            return None
        size = dtype.itemsize
        interface = {
            "version": 3,
            "shape": out.shape,
            # NumPy does not read the text of every dtype that others define.
            "typestr": dtype.str if dtype.isbuiltin == 1 else f"|V{size}",
            "data": (address + offset * size, is_read_only),  # type: ignore[operator]
            "strides": tuple([n * size for n in view_strides]),
        }
        view = np.asarray(_ArrayInterface(interface, x))
        view = view if view.dtype == dtype else view.view(dtype)
        if dtype == ops.BOOL and x.dtype != dtype and has_other_bytes(view):
            return None
        views.append(as_ndarray(view, out.weak_type))
    return views


def has_other_bytes(booleans: NumPyArray) -> bool:
    """Whether memory that is read as booleans holds bytes other than 0 and 1, with which XLA computes."""
    return bool((np.asarray(booleans).view(np.uint8) > 1).any())


def numpy_view_dtype(dtype: DType, stored: DType, out: DType) -> DType | None:
    """The dtype of a view of an array of `stored` dtype, where functx has `dtype` and the result `out`.

    None for a view that reads the bits as another dtype.
    """
    if out == dtype:
        return stored
    return real_dtype(stored) if out == real_dtype(dtype) else None


class _ArrayInterface:
    """A part of the memory of an array in NumPy's array interface; it keeps the array alive."""

    __slots__ = ("__array_interface__", "array")

    def __init__(self, interface: dict[str, Any], array: NumPyArray):
        self.__array_interface__ = interface
        self.array = array


def _call_host_function(
    primitive: ops.HostPrimitive, args: Sequence[Value | Literal], avals: Avals
) -> list[ArrayLike]:
    """The results of the host function; they are JAX arrays if an operand is one.

    As in a program, it cannot write to its operands, and its results own their memory.
    """
    values = [x.value if type(x) is Literal else x for x in args]
    arrays = [np.asarray(x, a.dtype).view() for x, a in zip(values, avals, strict=True)]
    for array in arrays:
        array.flags.writeable = False
    outs = run_callback(primitive, arrays)
    if any(isinstance(x, jax.Array) for x in args):
        return [jax.numpy.array(out) for out in outs]
    return [as_ndarray(np.array(out)) for out in outs]


def _operand_value(x: Value | Literal) -> ArrayLike:
    if type(x) is Literal:
        return x.value if x.aval.weak_type else np.asarray(x.value, x.aval.dtype)[()]
    return x


def _single_equation_program(primitive: Primitive, avals: tuple[ShapedArray, ...]) -> Program:
    inputs = [Var(aval) for aval in avals]
    outputs = [
        Var(aval)
        for aval in primitive.out_avals_memo.get(avals) or primitive.infer_out_avals(avals)
    ]
    return Program(
        primitive.name, inputs, [Equation(primitive, list(inputs), outputs, None)], outputs
    )


def evaluate_eagerly(primitive: Primitive, args: Values) -> ArrayLike | list[Any]:
    """As `evaluate`, but concrete for concrete operands also while JAX is tracing."""
    if primitive.effects:
        primitive = _without_effects(primitive)
    out = evaluate(primitive, args)
    if not _any_jax_tracer(out if isinstance(out, list) else [out]) or _any_jax_tracer(args):
        return out
    wide, partitionable = x64_enabled(), threefry_partitionable()

    def in_other_thread() -> ArrayLike | list[Any]:
        with jax.enable_x64(wide), jax.threefry_partitionable(partitionable):
            return evaluate(primitive, args)

    # A trace of JAX belongs to its thread; another thread traces nothing.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(in_other_thread).result()


def _without_effects(primitive: Primitive) -> Primitive:
    """The operation without its effects, which happen when the program around it runs."""
    if not isinstance(primitive, ops.WithEffects):
        with suppress(EffectError):
            whole = Equation(primitive, [], [Var(aval_of(0))], None)
            (eqn,) = RemoveEffects().without_effects(whole)
            return eqn.primitive
    raise EffectError(
        f"{primitive.name}: the result of an operation with an effect must not be needed while a "
        "function is traced, or it would run twice; got Python control flow on one",
        fix="Choose with functx.lax.cond or functx.numpy.where, or call it before the "
        "function that is traced.",
    )


def _any_jax_tracer(values: Sequence[ArrayLike]) -> bool:
    return any(is_jax_tracer(x) for x in values)


def concrete_or_none(x: Any) -> Any:
    """`x`, or the concrete value of a JAX tracer of a derivative; None if it has none."""
    return x.to_concrete_value() if is_jax_tracer(x) else x


backend.run = run
backend.prepare_for_transform = prepare_for_transform
backend.concrete_or_none = concrete_or_none
backend.evaluate = evaluate
backend.evaluate_eagerly = evaluate_eagerly
