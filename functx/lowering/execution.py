"""How operations and programs run outside a trace: compiled once per structure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from functx import ops
from functx.core.backend import backend
from functx.core.caches import Cache
from functx.core.concretization import Guard
from functx.core.config import config, contextual_key, outline_mode
from functx.core.errors import EffectError
from functx.core.ndarray import (
    HOST_ARRAY_TYPES,
    as_ndarray,
    copy_as_ndarray,
    evaluate_on_host,
    evaluate_unary_on_host,
)
from functx.core.primitive import Primitive
from functx.core.program import Equation, Literal, Program, Var
from functx.core.program_editing import hoist_captures
from functx.core.rewriting import cached_rewrite, user_rule_runs
from functx.core.tracer import aval_of, is_jax_tracer
from functx.core.types import real_dtype, x64_enabled
from functx.lowering.arguments import check_usable
from functx.lowering.callbacks import call_reraising_callback_errors, jax_is_tracing, run_callback
from functx.lowering.functx_call import jit_program
from functx.lowering.recompilation import code_of_program, record_compilation
from functx.passes.outlining import MIN_EQUATIONS
from functx.passes.pipeline import Stage, Target, run_passes
from functx.transforms.dce import RemoveEffects
from functx.transforms.decompose import apply_user_decompositions
from functx.transforms.literal_lifting import (
    collect_literals,
    lift_literals,
    literal_free_key,
    pack_literals,
)

# On a CPU an executable takes 1.6 MB, even that of a single operation.
program_cache = Cache("programs", 512)
specialization_cache = Cache("numbers", 1024)
operation_cache = Cache("operations", 512)


Executable = Callable[..., list[Any]]


def run(rewrite: Any, program: Program, args: Sequence[Any]) -> list[Any]:
    """The outputs of `rewrite(program)` on concrete `args`, as JAX arrays.

    Raises DonationError and ValueRangeError for arguments that no program can take.
    """
    try:
        compiled, literals = find_executable(rewrite, program, args)
        return call_reraising_callback_errors(compiled, *args, *literals)  # type: ignore[no-any-return]
    except (OverflowError, ValueError, RuntimeError):
        check_usable(program.name, program.input_names(), args)
        raise


def find_executable(
    rewrite: Any, program: Program, args: Sequence[Any]
) -> tuple[Executable, Sequence[Any]]:
    """The executable of `rewrite(program)`, and its further arguments: captured values, numbers.

    Found by the structure of `program`. A program that differs from an earlier one in its
    literals alone is compiled once more, with those that differ as inputs, and then never again;
    but once for each way in which numbers answer what the rewrite asks of them. Where a rule
    of a user's runs, the program is rewritten anew and found by the structure of the result.
    """
    key = contextual_key((rewrite, program.key))
    compiled: Executable | None = program_cache.get(key)
    if compiled is not None:
        return compiled, ()
    form = contextual_key((rewrite, literal_free_key(program)))
    alike: ParametrizedExecutable | None = specialization_cache.get(form)
    if alike is None:
        specialization_cache.put(form, ParametrizedExecutable(collect_literals(program)))
    else:
        found = alike.find_executable(rewrite, program, args)
        if found is not None:
            return found
    count = user_rule_runs.count
    made = _rewrite_to_compile(rewrite, program)
    if made.has_captures or user_rule_runs.count != count:
        return _find_executable_with_captures(made, args)
    if config.verify:
        backend.verify(made, args)
    compiled = jit_program(made)
    program_cache.put(key, compiled)
    record_compilation(
        code_of_program(program), program.name, program, kind=type(rewrite), avals=made.in_avals
    )
    return compiled, ()


def _find_executable_with_captures(
    program: Program, args: Sequence[Any]
) -> tuple[Executable, Sequence[Any]]:
    """The executable of a program with captured values, and its further arguments."""
    program, captured = hoist_captures(program)
    if program.has_captures:
        return jit_program(program), captured
    compiled, literals = find_executable(None, program, [*args, *captured])
    return compiled, [*captured, *literals]


MAX_SPECIALIZATIONS = 8


class ParametrizedExecutable:
    """Programs that differ in their literals alone, of which the first had those `first`."""

    def __init__(self, first: Sequence[Literal]):
        self.first_literals = first
        self.varying_positions: set[int] = set()
        self.specializations: list[Specialization] = []

    def find_executable(
        self, rewrite: Any, program: Program, args: Sequence[Any]
    ) -> tuple[Executable, Sequence[Any]] | None:
        """What runs one of them, and its numbers; None where it has to be compiled as it is."""
        literals = collect_literals(program)
        for variant in self.specializations:
            chosen = variant.match(literals)
            if chosen is not None:
                return variant.compiled, pack_literals(chosen)
        pairs = enumerate(zip(self.first_literals, literals, strict=True))
        self.varying_positions |= {i for i, (a, b) in pairs if a != b}
        if not self.varying_positions or len(self.specializations) == MAX_SPECIALIZATIONS:
            return None
        places = sorted(self.varying_positions)
        count = user_rule_runs.count
        found = lift_literals(partial(_rewrite_to_compile, rewrite), program, places)
        if found is None or found.program.has_captures or user_rule_runs.count != count:
            return None
        if config.verify:
            backend.verify(_rewrite_to_compile(rewrite, program), args)
        kept = [None if i in self.varying_positions else a for i, a in enumerate(literals)]
        self.specializations.append(Specialization(kept, found.guards, jit_program(found.program)))
        return self.specializations[-1].compiled, pack_literals([literals[i] for i in places])


class Specialization(NamedTuple):
    """What runs programs with the literals `kept`, and others as inputs that answer as those did."""

    fixed_literals: Sequence[Literal | None]
    guards: Sequence[Guard]
    compiled: Executable

    def match(self, literals: Sequence[Literal]) -> list[Literal] | None:
        """Those of `literals` that it takes; None if it is not for these."""
        chosen = []
        for kept, literal in zip(self.fixed_literals, literals, strict=True):
            if kept is None:
                chosen.append(literal)
            elif kept is not literal and kept != literal:
                return None
        values = [a.value for a in chosen]
        return chosen if all([answer.holds(values) for answer in self.guards]) else None


def _rewrite_to_compile(rewrite: Any, program: Program) -> Program:
    made = cached_rewrite(rewrite, program if rewrite is None else outline_repeats(program))
    return run_passes(Stage.LOOKUP, current_target(), made)


def current_target() -> Target:
    """The target of programs that are looked up here."""
    return Target((jax.default_backend(),), outline_mode())


def outline_repeats(program: Program) -> Program:
    """`program` with its repeats as calls, so that a transform rewrites each once."""
    if len(program.equations) < MIN_EQUATIONS:
        return program
    return run_passes(Stage.TRANSFORM, current_target()._replace(is_transformed=True), program)


def evaluate(primitive: Primitive, args: Sequence[Any]) -> Any:
    """`primitive(*args)` at once: an `ndarray` from NumPy arrays and numbers, else JAX arrays."""
    if primitive.view and len(args) == 1 and type(args[0]) in HOST_ARRAY_TYPES:
        shown = numpy_view(primitive, args[0])
        if shown is not None:
            return shown if primitive.multiple_results else shown[0]
    if primitive.host_kernel is not None and len(args) == 1:
        out = evaluate_unary_on_host(primitive, args[0])
        if out is not None:
            return out
    avals = tuple([aval_of(x) for x in args])
    if primitive.host_kernel is not None:
        out = evaluate_on_host(primitive, args, avals)
        if out is not None:
            return out
    key = contextual_key((primitive, avals))
    compiled = operation_cache.get(key)
    if compiled is None and (
        primitive.hoist_constants is not None
        or apply_user_decompositions.find_decomposition(primitive)
    ):
        program = _single_equation_program(primitive, avals)

        def compiled(*values: Any) -> list[Any]:
            return run(None, program, values)

    elif compiled is None:
        host = isinstance(primitive, ops.HostPrimitive)
        if host and not jax_is_tracing():
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
        # While JAX traces, even what depends on nothing has no value yet.
        outs = [
            out if isinstance(out, jax.core.Tracer) else copy_as_ndarray(out, out.weak_type)
            for out in outs
        ]
    return outs if primitive.multiple_results else outs[0]


def numpy_view(primitive: Primitive, x: np.ndarray[Any, Any]) -> list[Any] | None:
    """The result of `primitive` as a view of a NumPy array; None where it has to be a copy.

    A 64-bit array keeps its dtype, also without 64-bit mode.
    """
    aval = aval_of(x)
    if any(n % x.itemsize for n in x.strides):
        return None
    outs = primitive.out_avals_memo.get((aval,)) or primitive.infer_out_avals((aval,))
    strides = tuple([n // x.itemsize for n in x.strides])
    lies = primitive.view_strides(aval, strides)
    starts = [primitive.view_offset(aval, strides, i) for i in range(len(outs))]
    if lies is None or None in starts:
        return None
    memory = x.__array_interface__
    begin, fixed = memory["data"]
    fixed = fixed or primitive.is_read_only_view(aval)
    shown = []
    for out, start in zip(outs, starts, strict=True):
        dtype = (
            out.dtype if aval.dtype == x.dtype else numpy_view_dtype(aval.dtype, x.dtype, out.dtype)
        )
        if dtype is None:
            return None
        size = dtype.itemsize
        at = {
            "version": 3,
            "shape": out.shape,
            "typestr": dtype.str,
            "data": (begin + start * size, fixed),  # type: ignore[operator]
            "strides": tuple([n * size for n in lies]),
        }
        part = np.asarray(_ArrayInterface(at, x))
        part = part if part.dtype == dtype else part.view(dtype)
        shown.append(as_ndarray(part, out.weak_type))
    return shown


def numpy_view_dtype(narrow: Any, wide: Any, out: Any) -> Any:
    """The dtype of a view that has the dtype `out` of an array of `narrow`, of one of `wide`.

    None for a view that reads bits as another dtype.
    """
    if out == narrow:
        return wide
    return real_dtype(wide) if out == real_dtype(narrow) else None


class _ArrayInterface:
    """A part of the memory of an array, as NumPy takes it, which keeps the array."""

    __slots__ = ("__array_interface__", "array")

    def __init__(self, interface: dict[str, Any], array: np.ndarray[Any, Any]):
        self.__array_interface__ = interface
        self.array = array


def _call_host_function(primitive: Any, args: Sequence[Any], avals: Sequence[Any]) -> list[Any]:
    """Call the host function; the results are JAX arrays if an operand is one.

    As in a program, it cannot write to its operands, and its results have memory of their own.
    """
    values = [x.value if type(x) is Literal else x for x in args]
    arrays = [np.asarray(x, a.dtype).view() for x, a in zip(values, avals, strict=True)]
    for array in arrays:
        array.flags.writeable = False
    outs = run_callback(primitive, arrays)
    if any(isinstance(x, jax.Array) for x in args):
        return [jax.numpy.array(out) for out in outs]
    return [as_ndarray(np.array(out)) for out in outs]


def _operand_value(x: Any) -> Any:
    if type(x) is Literal:
        return x.value if x.aval.weak_type else np.asarray(x.value, x.aval.dtype)[()]
    return x


def _single_equation_program(primitive: Primitive, avals: tuple[Any, ...]) -> Program:
    inputs = [Var(aval) for aval in avals]
    outputs = [
        Var(aval)
        for aval in primitive.out_avals_memo.get(avals) or primitive.infer_out_avals(avals)
    ]
    return Program(
        primitive.name, inputs, [Equation(primitive, list(inputs), outputs, None)], outputs
    )


def evaluate_eagerly(primitive: Primitive, args: Sequence[Any]) -> Any:
    """As `evaluate`, also while JAX is tracing: what depends on concrete operands is concrete."""
    if primitive.effects:
        primitive = _without_effects(primitive)
    out = evaluate(primitive, args)
    if not _any_jax_tracer(out if type(out) is list else [out]) or _any_jax_tracer(args):
        return out
    wide = x64_enabled()

    def aside() -> Any:
        with jax.enable_x64(wide):
            return evaluate(primitive, args)

    # What JAX is tracing belongs to this thread; another one traces nothing.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(aside).result()


def _without_effects(primitive: Primitive) -> Primitive:
    """The operation for its value alone, since it will run again with the program it is in."""
    try:
        (eqn,) = RemoveEffects().without_effects(Equation(primitive, [], [Var(aval_of(0))], None))
    except EffectError:
        raise EffectError(
            f"{primitive.name}: the result of an io_callback must not be needed while a function "
            "is traced, or it would be called twice; got Python control flow on one",
            fix="Choose with functx.lax.cond or functx.numpy.where, or call it before the "
            "function that is traced.",
        ) from None
    return eqn.primitive


def _any_jax_tracer(values: Sequence[Any]) -> bool:
    return any(is_jax_tracer(x) for x in values)


def concrete_or_none(x: Any) -> Any:
    """`x`, or the value of it that JAX's derivative goes through; None if it has none yet."""
    return x.to_concrete_value() if is_jax_tracer(x) else x


backend.run = run
backend.outline_repeats = outline_repeats
backend.concrete_or_none = concrete_or_none
backend.evaluate = evaluate
backend.evaluate_eagerly = evaluate_eagerly
