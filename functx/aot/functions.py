"""`aot_function`: a function whose forward and backward programs are traced ahead of time and compiled."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from threading import RLock
from types import FunctionType, MethodType
from typing import Any, ClassVar, NamedTuple
from weakref import WeakSet

import jax
import numpy as np

from functx.aot.array_results import NUMBER_TYPES
from functx.aot.call_arguments import first_occurrences, sharing_key, variable_strides
from functx.aot.calls import CompiledCall
from functx.aot.compilation import Compilation, FunctionOptions, PartitionFunction
from functx.aot.compilers import Compiler, check_function_option
from functx.aot.partitions import default_partition
from functx.autograd.modes import current_modes
from functx.autograd.recorded import step_traces
from functx.autograd.variable import Variable, open_level
from functx.core import tree
from functx.core.caches import Cache, clear_on_rule_change
from functx.core.config import trace_options
from functx.core.errors import (
    StaticArgumentError,
    StrictCallError,
    type_name,
)
from functx.core.named_axes import bound_axes
from functx.core.replaced_state import ModulesRead, StateRead, StateWatch, state_of_call
from functx.core.strides import Strides
from functx.core.tracer import aval_of, current_builder, is_jax_tracer, ndarray
from functx.core.types import ShapedArray, jax_settings
from functx.core.typing import Function, PyTree
from functx.lowering.jax_bridge import avals_of_arrays
from functx.lowering.jit import jit
from functx.lowering.state_arguments import KEYWORD, StateArguments, taking_state
from functx.transforms.argument_names import (
    OWN_ATTRIBUTES,
    argument_names,
    check_callable,
    function_name,
    wrap_transform,
)
from functx.transforms.decompose import decompose
from functx.transforms.tracing_api import has_aval


def aot_function(
    fun: Function,
    fw_compiler: Compiler | None = None,
    bw_compiler: Compiler | None = None,
    partition_fn: PartitionFunction | None = None,
    decompositions: Mapping[Any, Any] | None = None,
    inference_compiler: Compiler | None = None,
    keep_inference_input_mutations: bool = False,
    dynamic: bool = False,
    *,
    strict: bool = False,
    backward_at_once: bool = False,
) -> Function:
    """`fun`, whose forward and backward programs are traced together, split, and given to compilers.

    A compiler is a function of a `Program`. It returns a function that takes the inputs of the program
    in one list, which it empties, and returns the outputs; or another program, which is run. The
    programs of compilation number k are called `k_forward` and `k_backward`; for a call in which
    nothing needs a gradient there is one, `k_inference`. `bw_compiler` and `inference_compiler` are
    by default `fw_compiler`, and that is `default_compiler`, which runs programs by XLA. The forward
    program is compiled at the first call, the backward program in the first walk, or at the call
    with `backward_at_once`.

    Arguments and results are pytrees; what is no array is passed on. A Python number is passed on
    too, and compiled for each value; with `dynamic` it is an input of the program. On Variables of
    `functx.autograd` a call is one node: results have the gradients, flags and shared memory of the
    plain call, and inputs that `fun` writes to are written to. Without Variables results are JAX
    arrays, and NumPy arguments are written to. Inside another transform it is `fun` itself.

    `partition_fn` splits the joint program: `default_partition`, by default, or
    `min_cut_rematerialization_partition`. The `decompositions` that `functx.decomp.get_decompositions`
    returns are applied to all programs. With `keep_inference_input_mutations`, writes that no
    derivative sees end the program itself. The list of inputs then holds the caller's own arrays,
    NumPy arrays or Variables, to which a compiled function must write.

    Programs are compiled for the types and structure of the arguments, for those that need a gradient,
    and for those that are the same array. Another such pattern compiles again; with `strict` it raises
    StrictCallError. A gradient can be differentiated: then `fun` is differentiated anew.

    Raises CompilerFunctionError for a compiler or partition that is no function, or returns none;
    CompiledResultError where a compiled function returns other values than the program.

    >>> import functx, functx.numpy as np
    >>> from functx.autograd import Variable
    >>> def show(program):
    ...     print(program.name, len(program.inputs), "->", len(program.outputs))
    ...     return program
    >>> f = functx.aot.aot_function(lambda x: np.sin(np.cos(x)), show)
    >>> x = Variable([1.0, 2.0], requires_grad=True)
    >>> y = f(x).sum()
    0_forward 1 -> 3
    >>> y.backward()
    0_backward 3 -> 1
    """
    check_callable(fun, "aot_function")
    check_function_option(fw_compiler, "fw_compiler")
    check_function_option(bw_compiler, "bw_compiler")
    check_function_option(inference_compiler, "inference_compiler")
    check_function_option(partition_fn, "partition_fn")
    options = FunctionOptions(
        fw_compiler,
        bw_compiler or fw_compiler,
        inference_compiler or fw_compiler,
        partition_fn or default_partition,
        decompositions,
        bool(keep_inference_input_mutations),
        bool(backward_at_once),
    )
    compiled = AotFunction(fun, options, bool(dynamic), bool(strict))
    wrapper = wrap_transform(compiled.call, fun, "aot_function")
    wrapper.clear_cache = compiled.clear  # type: ignore[attr-defined]
    vars(wrapper)[OWN_ATTRIBUTES] = ("clear_cache",)
    return wrapper


class CallKey(NamedTuple):
    """The key of a compiled call: the structure, types and static values of the arguments, and the context.

    `modes` are those of the modules whose mode a program reads. `flags` says which arrays need a gradient, empty if there is no Variable, None if no gradient is
    recorded; `same` gives for each array the first that is the same object.
    """

    in_tree: tree.TreeDef
    avals: tuple[ShapedArray, ...]
    static: tuple[Hashable, ...]
    context: tuple[Hashable, ...]
    modes: tuple[bool | None, ...]
    flags: tuple[bool, ...] | None
    same: tuple[int, ...] | None
    sharing: Hashable
    strides: tuple[Strides | None, ...]

    @property
    def without_pattern(self) -> Hashable:
        """The part of the key without the pattern: equal arrays, and those that need a gradient."""
        records = self.flags is not None
        return (
            self.in_tree,
            self.avals,
            self.static,
            self.context,
            self.modes,
            self.strides,
            records,
        )


class AotFunction:
    """An `aot_function`: its options, and the calls that it has compiled, by their types."""

    instances: ClassVar[WeakSet[AotFunction]] = WeakSet()

    def __init__(self, fun: Function, options: FunctionOptions, dynamic: bool, strict: bool):
        self.fun, self.options = fun, options
        self.dynamic, self.strict = dynamic, strict
        self.label = f"aot_function({function_name(fun)})"
        table = options.decompositions
        self.plain = fun if table is None else decompose(fun, table=table)
        self.jitted: Function | None = None
        # Whether a program reads parameters or buffers of modules; and the function that takes them, for
        # calls inside a functional call.
        self.reads_modules, self.watch_owner, self.modules = False, object(), ModulesRead()
        self.with_state: AotFunction | None = None
        self.calls = Cache("aot functions", 256)
        self.first_calls: dict[Hashable, tuple[CallKey, CompiledCall]] = {}
        self.num_compilations = 0
        self._lock = RLock()
        AotFunction.instances.add(self)

    def clear(self) -> None:
        """Forgets all compiled calls."""
        self.calls.clear()
        self.first_calls.clear()
        if self.with_state is not None:
            self.with_state.clear()

    def call(self, *args: PyTree, **kwargs: PyTree) -> PyTree:
        """The result of a call."""
        if is_part_of_trace():
            return self.plain(*args, **kwargs)
        if self.reads_modules:
            state = StateArguments.current()
            if state is not None:
                return self.call_in_state(state, args, kwargs)
        leaves, in_tree = tree.flatten((args, kwargs))
        static: dict[int, Any] = {}
        arrays, kinds = leaves, {*map(type, leaves)}
        if not kinds <= _array_types:
            leaves, in_tree = tree.keys_to_key_data(leaves, in_tree)
            if any(map(is_jax_tracer, leaves)):
                return self.in_jax(*args, **kwargs)
            static = {i: x for i, x in enumerate(leaves) if self.is_static(x)}
            arrays = [x for i, x in enumerate(leaves) if i not in static] if static else leaves
            kinds = {*map(type, arrays)}
            _array_types.update([type(x) for x in arrays if is_concrete(x)])
        has_variables = any([issubclass(kind, Variable) for kind in kinds])
        are_plain = not has_variables and kinds <= _array_types
        same = None
        if len({*map(id, arrays)}) < len(arrays):
            same = first_occurrences([x if is_array(x) else object() for x in arrays])
        types = CallKey(
            in_tree,
            avals_of_arrays(arrays) if are_plain else tuple(map(aval_of, arrays)),
            tuple([(i, static_key(x, self.label)) for i, x in static.items()]) if static else (),
            (jax_settings(), trace_options.get().key, bound_axes()),
            self.modules.key(),
            gradient_flags(arrays, has_variables),
            same,
            sharing_key(arrays) if has_variables else None,
            variable_strides(arrays) if has_variables else (),
        )
        try:
            call = self.find(types, arrays, static)
        except StateRead as read:
            if read.watch.owner is not self.watch_owner:
                raise
            return self.call(*args, **kwargs)
        if has_variables or call.on_variables:
            return call.run_on_variables(arrays)
        return call.run_on_arrays(arrays)

    def call_in_state(self, state: StateArguments, args: PyTree, kwargs: PyTree) -> PyTree:
        """A call inside a functional call, whose values are inputs of other programs."""
        if self.with_state is None:
            self.with_state = AotFunction(
                taking_state(self.fun), self.options, self.dynamic, self.strict
            )
        with state_of_call(None):
            result = self.with_state.call(*args, **kwargs, **{KEYWORD: state.argument})
        return state.take(result)

    def is_static(self, x: object) -> bool:
        """Whether an argument is passed on as it is: what is no array, and numbers unless they are dynamic."""
        kind = type(x)
        if kind in NUMBER_TYPES:
            return not self.dynamic
        # To find out from the error of `aval_of` takes longer than a call.
        if kind in _static_types:
            return True
        return not (hasattr(x, "shape") and hasattr(x, "dtype")) and not has_aval(x)

    def in_jax(self, *args: PyTree, **kwargs: PyTree) -> PyTree:
        """The result on values that JAX traces: one operation, as of a jitted function."""
        if self.jitted is None:
            self.jitted = jit(self.plain)
        return self.jitted(*args, **kwargs)

    def find(self, types: CallKey, arrays: Sequence[Any], static: dict[int, Any]) -> CompiledCall:
        """The compiled call for arguments of these types, which is compiled if there is none."""
        call = self.find_compiled(types, arrays)
        if call is not None:
            return call
        with self._lock:
            # Another thread may have compiled it meanwhile.
            call = self.find_compiled(types, arrays)
            if call is not None:
                return call
            structure = tree.treedef_with_static(types.in_tree, static)
            known = self.first_calls.get(types.without_pattern) if self.strict else None
            if known is not None:
                self.check_pattern(
                    *known, types, argument_names(self.fun, structure, types.avals)()
                )
                if known[1].holds(arrays, types.flags is not None):
                    return known[1]
            compilation = Compilation(
                self.fun, self.options, structure, self.num_compilations, self.label
            )
            watch = StateWatch(self.watch_owner)
            try:
                with watch:
                    call = compilation.compile(arrays, types.flags, types.same)
            finally:
                self.reads_modules |= watch.was_read
                if watch.modes:
                    self.modules = self.modules.joined(watch)
                    types = types._replace(modes=self.modules.key())
            self.num_compilations += 1
            before: Sequence[CompiledCall] = self.calls.get(types) or ()
            self.calls.put(types, [call, *before][:CALLS_OF_A_KEY])
            if self.strict:
                self.first_calls.setdefault(types.without_pattern, (types, call))
            return call

    def find_compiled(self, types: CallKey, arrays: Sequence[Any]) -> CompiledCall | None:
        """The compiled call for arguments of these types; None if there is none."""
        for call in self.calls.get(types) or ():
            if call.holds(arrays, types.flags is not None):
                return call  # type: ignore[no-any-return]
        return None

    def check_pattern(
        self, before: CallKey, call: CompiledCall, types: CallKey, names: Sequence[str]
    ) -> None:
        """Raises StrictCallError if other arrays are the same, or more need a gradient, than were compiled for."""
        count = len(types.avals)
        old, new = (t.same or tuple(range(count)) for t in (before, types))
        start = f"{self.label}: with strict=True, "
        for i in range(count):
            if old[i] != new[i]:
                j, is_same = (old[i], False) if new[i] == i or old[i] != i else (new[i], True)
                raise StrictCallError(
                    f"{start}the same inputs must be the same array in each call; got "
                    f"{'the same array' if is_same else 'different arrays'} as inputs {j} and {i} "
                    f"(`{names[j]}` and `{names[i]}`), program {call.number} was compiled for "
                    f"{'different ones' if is_same else 'one array'}",
                    fix="Pass arrays in the same pattern, or leave strict out, which compiles again.",
                )
        none = (False,) * count
        flags = zip(before.flags or none, types.flags or none, strict=True)
        for i, (was, now) in enumerate(flags):
            if now and not was:
                raise StrictCallError(
                    f"{start}an input must not need a gradient that needed none when the program was "
                    f"compiled; got one that does as input {i} (`{names[i]}`) of program {call.number}",
                    fix="Pass x.detach(), or leave strict out, which compiles again.",
                )
        if before.sharing != types.sharing:
            raise StrictCallError(
                f"{start}inputs must share memory as when the program was compiled; got others that do "
                f"for program {call.number}",
                fix="Pass copies, or leave strict out, which compiles again.",
            )


_static_types = frozenset({str, bytes, type, FunctionType, MethodType, np.dtype})
_array_types: set[type] = {np.ndarray, ndarray, Variable}
"""The types of arrays that were met so far, which no other argument has."""
CALLS_OF_A_KEY = 8
"""How many compiled calls are kept that differ only in the memory of arguments and in captured values."""


def is_part_of_trace() -> bool:
    """Whether a call belongs to a function that is traced, or has tangents at an open dual level."""
    return (
        current_builder.get() is not None
        or open_level.get() is not None
        or (step_traces.count > 0 and step_traces.of_thread() is not None)
    )


def is_array(x: object) -> bool:
    """Whether an argument is an array, of which the same object may be passed twice."""
    return isinstance(x, (Variable, np.ndarray, jax.Array))


def is_concrete(x: object) -> bool:
    """Whether an argument is an array of JAX with a value, or a Variable."""
    return isinstance(x, Variable) or (
        isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer)
    )


def gradient_flags(arrays: Sequence[Any], has_variables: bool) -> tuple[bool, ...] | None:
    """Whether each array requires a gradient; None in a mode without gradients, empty without Variables."""
    if not current_modes().records_gradients:
        return None
    if not has_variables:
        return ()
    return tuple([isinstance(x, Variable) and x.requires_grad for x in arrays])


def static_key(x: object, label: str) -> Hashable:
    """The key of an argument that is no array; StaticArgumentError if it cannot be hashed."""
    kind = type(x)
    if kind is float or kind is complex:
        # Numbers compare equal that differ in their sign, and nan equals nothing.
        return kind, repr(x)
    try:
        hash(x)
    except TypeError:
        raise StaticArgumentError(
            f"{label}: an argument that is no array must be hashable; got {type_name(x)}",
            fix="Register its class as a pytree, or let it define __hash__ and __eq__.",
        ) from None
    return kind, x


@clear_on_rule_change
def _clear_aot_functions() -> None:
    for function in list(AotFunction.instances):
        function.clear()
