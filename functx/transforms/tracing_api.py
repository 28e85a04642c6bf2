"""Traces a call of the user's function: the first step of every public transform."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from functx import ops
from functx.core import tree
from functx.core.backend import backend
from functx.core.captured_state import CapturedState
from functx.core.errors import (
    ArgumentError,
    ArgumentWriteError,
    CapturedWriteError,
    ForeignCodeError,
    FunctxError,
    ValueRangeError,
    type_name,
)
from functx.core.masks import indices_where
from functx.core.memory_layouts import depends_on_layouts
from functx.core.named_axes import Axis, tracked_mesh_axes
from functx.core.program import Program, pad_input_names
from functx.core.program_editing import replace_program_fields
from functx.core.rewriting import apply
from functx.core.source_info import (
    LIST_SEARCH_FIX,
    is_raise_instruction,
    line_text,
    source_line,
    traceback_source,
)
from functx.core.tracer import (
    Tracer,
    abstractify,
    as_known_array,
    aval_of,
    current_builder,
    variables,
)
from functx.core.tracing import trace
from functx.core.types import ShapedArray, is_shape_dtype_struct
from functx.core.typing import ArrayLike, Avals, Dim, Flags, Function, PyTree, Value, Values
from functx.ops.views import Write
from functx.transforms.aliasing import (
    ROW_MAJOR,
    MemoryLayout,
    copy_if_aliased,
    copy_transform_results,
    functionalize_trace,
    is_written_to,
    with_shared_buffers,
    write_back_arguments,
)
from functx.transforms.argument_names import argument_names, function_name


class TracedFunction(NamedTuple):
    """The pure program of one call, the values it captured, and the structure of its result.

    The captured values are the last inputs. The outputs are the leaves of the result, then the new
    values of the inputs at the indices `written`. A `layout_dependent` program is right only for
    arguments with the strides that it was traced for.
    """

    program: Program
    captured: list[Value]
    out_tree: tree.TreeDef
    written: tuple[int, ...] = ()
    layout_dependent: bool = False

    @property
    def out_avals(self) -> list[ShapedArray]:
        """The avals of the leaves of the result."""
        avals = self.program.out_avals
        return avals[: len(avals) - len(self.written)]

    @property
    def row_terms(self) -> Any:
        """The outputs that are second derivatives, which a loop or `vmap` may sum over its rows; or None.

        `transforms/laplacian_recognition.py` notes them.
        """
        return self.program.memo.get("row_terms")

    def tree_without_aux(self, has_aux: bool) -> tree.TreeDef:
        """The structure of the output, without the auxiliary data."""
        return self.out_tree.children()[0] if has_aux else self.out_tree

    def finish_call(self, args: Values, outs: Values, of_transform: bool = True) -> list[Value]:
        """Writes the new values in `outs` to the operands `args`, and returns the results.

        Inside a trace, a result that is an operand or a view of one is copied.
        """
        count = len(outs) - len(self.written)
        copy_results = copy_transform_results if of_transform else copy_if_aliased
        results = copy_results(outs[:count], args)
        if self.written:
            write_back_arguments(args, dict(zip(self.written, outs[count:], strict=True)))
        return results

    def refuse_state_writes(self, label: str) -> None:
        """Raise an error if the function draws from a generator, or writes to a `Ref` from around it."""
        own = len(self.program.inputs) - len(self.captured)
        captured = [self.captured[i - own] for i in self.written if i >= own]
        for x in captured:
            if isinstance(x, CapturedState):
                raise x.write_error(label)

    def refuse_writes(self, label: str) -> TracedFunction:
        """The call itself.

        Raises ArgumentWriteError if the function writes to an argument, and an error if it writes to a state.
        """
        self.refuse_state_writes(label)
        if self.written:
            names = pad_input_names(self.program.in_names(), len(self.program.inputs))
            raise ArgumentWriteError(
                f"{label}: the function must not write to its arguments; got one that writes to "
                + ", ".join([f"`{names[i]}`" for i in self.written]),
                fix="Write to a copy (x.copy()), and return it.",
            )
        return self

    def with_writes_as_carries(self) -> tuple[TracedFunction, list[Any]]:
        """The call of a loop body, and the captured arrays that it writes to.

        These come last among the captured values, and the body returns their new values first.
        Writes to its own arguments are dropped.
        """
        own = len(self.program.inputs) - len(self.captured)
        results = self.program.outputs[: len(self.out_avals)]
        new = dict(zip(self.written, self.program.outputs[len(results) :], strict=True))
        carried = [i for i in self.written if i >= own]
        constant = [i for i in range(own, len(self.program.inputs)) if i not in new]
        inputs = [self.program.inputs[i] for i in (*range(own), *constant, *carried)]
        captured = [self.captured[i - own] for i in (*constant, *carried)]
        program = replace_program_fields(
            self.program, inputs=inputs, outputs=[*[new[i] for i in carried], *results]
        )
        traced = self._replace(program=program, captured=captured, written=())
        return traced, captured[len(constant) :]


def trace_function(
    fun: Function,
    in_tree: tree.TreeDef,
    avals: Avals,
    kind: str,
    *,
    values: Sequence[ArrayLike] | None = None,
    active: Flags = (),
    has_aux: bool = False,
    memory: MemoryLayout = ROW_MAJOR,
    batched_from: tuple[Axis, Sequence[tuple[ArrayLike, Dim]]] | None = None,
    carries_writes: bool = False,
) -> TracedFunction:
    """Traces `fun(*args, **kwargs)`, where `(args, kwargs)` has the structure `in_tree`.

    `kind` is the transform that messages name. `values` are the concrete arguments if they are
    known, and `active` the mask of the leaves that a derivative is taken in. With
    `has_aux`, `fun` returns a pair `(output, aux)`, flattened one after the other; leaves of `aux`
    that are not traced stay in `out_tree`. `memory` is that of the arguments, as far as `values`
    do not show it. `batched_from` and `carries_writes` are as in `trace`.
    """
    trace_in = function_tracer(
        fun,
        in_tree,
        avals,
        kind,
        values=values,
        active=active,
        has_aux=has_aux,
        batched_from=batched_from,
        carries_writes=carries_writes,
    )
    traced, writes = trace_in(memory)
    if not writes or kind == "make_ir":
        return traced
    return functionalize_trace(traced, trace_in, memory, values)


def function_tracer(
    fun: Function,
    in_tree: tree.TreeDef,
    avals: Avals,
    kind: str,
    *,
    values: Sequence[ArrayLike] | None = None,
    active: Flags = (),
    has_aux: bool = False,
    batched_from: tuple[Axis, Sequence[tuple[ArrayLike, Dim]]] | None = None,
    carries_writes: bool = False,
    keeps_copies: bool = False,
) -> Callable[[MemoryLayout], tuple[TracedFunction, bool]]:
    """The function that traces a call for arguments in a memory layout, and says whether it writes.

    The program keeps its writes. The arguments are as in `trace_function` and `trace`.
    """
    call = FlatFunction(fun, in_tree, kind, has_aux)
    flat = with_derivative_boundaries(call, active) if any(active) else call

    def trace_in(memory: MemoryLayout) -> tuple[TracedFunction, bool]:
        program, captured = trace(
            with_shared_buffers(flat, memory.buffers, active) if memory.buffers else flat,
            avals,
            name=function_name(fun),
            kind=kind,
            values=values,
            active=active,
            in_names=argument_names(fun, in_tree, avals),
            capture_bases=memory.capture_bases,
            layouts=memory.strides,
            batched_from=batched_from,
            carries_writes=carries_writes,
            keeps_copies=keeps_copies,
            returns_writes=True,
        )
        depends = call.writes and call.layout_dependent
        return TracedFunction(program, captured, call.out_tree, (), depends), call.writes

    return trace_in


def call_as_program(fun: Function, args: Sequence[PyTree], kwargs: PyTree, kind: str) -> PyTree:
    """`fun(*args, **kwargs)` as one program, applied to the arrays among the arguments."""
    leaves, in_tree = tree.flatten_with_key_data((args, kwargs))
    leaves, in_tree, avals, _ = partition_static_arguments(leaves, in_tree, kind, fun, ())
    traced = trace_function(fun, in_tree, avals, kind)
    operands = [*leaves, *traced.captured]
    outs = apply(None, traced.program, operands)
    return tree.unflatten(traced.out_tree, traced.finish_call(operands, outs))


class FlatFunction:
    """`fun` as a function from the leaves of its arguments to the leaves of its result.

    A call in a trace sets `out_tree`, the structure of the result; `writes`, whether the program
    being built writes to arrays; and `layout_dependent`, whether it depends on their strides.
    """

    def __init__(self, fun: Function, in_tree: tree.TreeDef, kind: str, has_aux: bool):
        self.fun, self.in_tree, self.kind, self.has_aux = fun, in_tree, kind, has_aux
        self.out_tree: Any = None
        self.writes = self.layout_dependent = False

    def __call__(self, *leaves: Value) -> list[Value]:
        outs = self.flatten_result(self.call(leaves))
        builder = current_builder.require()
        self.writes, self.layout_dependent = builder.writes, depends_on_layouts(builder)
        return outs

    def call(self, leaves: Sequence[Value]) -> PyTree:
        """The result of the function; its errors say if other code did not take a traced value."""
        args, kwargs = self.in_tree.unflatten(leaves)
        builder = current_builder.innermost()
        try:
            if builder is not None and builder.explorer is not None:
                return builder.explorer.call(self.fun, args, kwargs)
            return self.fun(*args, **kwargs)
        except (IndexError, TypeError, ValueError) as error:
            if isinstance(error.__cause__, FunctxError) and not isinstance(error, FunctxError):
                # NumPy wraps the errors of a traced element in its own.
                raise error.__cause__ from None
            raise_foreign_code_error(error)
            add_source_note(error)
            raise

    def flatten_result(self, out: PyTree) -> list[Value]:
        """The traced leaves of a result; ArgumentError for a leaf that is no array."""
        if self.has_aux and not (isinstance(out, (tuple, list)) and len(out) == 2):
            raise ArgumentError(
                f"{self.kind}: with has_aux=True the function must return a pair (output, aux); "
                f"got {type_name(out)}"
            )
        outs: list[Any]
        outs, out_tree = tree.flatten_with_key_data(tuple(out) if self.has_aux else out)
        if self.has_aux:
            count = out_tree.children()[0].num_leaves
            static = {i: x for i, x in enumerate(outs) if i >= count and type(x) is not Tracer}
            outs = [x for i, x in enumerate(outs) if i not in static]
            out_tree = tree.treedef_with_static(out_tree, static)
        for i, x in enumerate(outs):
            if self.kind == "eval_shape" and is_shape_dtype_struct(x):
                aval = abstractify(x)
                zeros = ops.full(aval.shape, 0, aval.dtype)
                outs[i] = ops.convert_element_type(zeros, aval.dtype, aval.weak_type)
            elif type(x) is not Tracer:
                check_output(self.kind, self.fun, x, out)
        self.out_tree = out_tree
        return outs


def check_output(kind: str, fun: Function, x: PyTree, out: PyTree) -> None:
    """Raise ArgumentError unless the leaf `x` of the result `out` of `fun` is an array or a number."""
    if has_aval(x):
        return
    path = next(p for p, leaf in tree.leaves_with_path(out) if leaf is x)
    raise ArgumentError(
        f"{kind}({function_name(fun)}): the function must return arrays, numbers or "
        f"pytrees of them; got {type_name(x)} at output{tree.keystr(path)}",
        fix="Return arrays, and make what is none outside of the function; or register its class "
        "as a pytree (jax.tree_util.register_dataclass).",
    )


def with_derivative_boundaries(
    flat: Callable[..., list[Value]], active: Flags
) -> Callable[..., list[Value]]:
    """`flat` with a `DerivativeBoundary` around it where mesh axes track replication.

    The boundaries are at the arguments marked `active` and at all results.
    """

    def body(*tracers: Tracer) -> list[Value]:
        axes = tracked_mesh_axes()
        if not axes:
            return flat(*tracers)
        leaves = list(tracers)
        for i in indices_where(active):
            leaves[i] = ops.DerivativeBoundary("argument", axes)(leaves[i], leaves[i])
        outs = [ops.DerivativeBoundary("result", axes)(x, x) for x in flat(*leaves)]
        if current_builder.require().writes:
            for i in [i for i in indices_where(active) if is_written_to(leaves[i])]:
                Write()(tracers[i], leaves[i])
        return outs

    return body


def avals_of(
    leaves: list[Value], kind: str, fun: Function, in_tree: tree.TreeDef
) -> list[ShapedArray]:
    """The avals of argument leaves; ArgumentError names an argument that is no array.

    Typed keys among the leaves are replaced by their data, and arrays of other libraries by those of
    NumPy, in place.
    """
    recorded = variables.type
    try:
        # In place for Variables, of which there may be many in each call.
        return [x.aval_ if type(x) is recorded else aval_of(x) for x in leaves]  # type: ignore[attr-defined]
    except ArgumentError:
        leaves[:] = [as_known_array(backend.raw_key_data(x)) for x in leaves]
        for name, x in zip(argument_names(fun, in_tree, leaves)(), leaves, strict=True):
            try:
                aval_of(x)
            except ArgumentError as error:
                raise ArgumentError(
                    f"{kind}({function_name(fun)}): arguments must be arrays, numbers or pytrees of "
                    f"them; got {type_name(x)} for `{name}`",
                    fix=error.fix,
                ) from None
        return [aval_of(x) for x in leaves]


class TracedArguments(NamedTuple):
    """The leaves of a call's arguments that are traced, their avals and structure.

    The structure `in_tree` holds the static leaves. `required` are the positions of the leaves
    that must be traced.
    """

    leaves: list[Value]
    in_tree: tree.TreeDef
    avals: list[ShapedArray]
    required: Sequence[int]


def partition_static_arguments(
    leaves: list[Value], in_tree: tree.TreeDef, kind: str, fun: Function, required: Sequence[int]
) -> TracedArguments:
    """The traced leaves of a call; the leaves at the positions `required` must be arrays or numbers.

    Other leaves may be of any type. Those other than arrays are static: `fun` gets them unchanged.
    """
    try:
        return TracedArguments(leaves, in_tree, [aval_of(x) for x in leaves], required)
    except ArgumentError:
        leaves = [backend.raw_key_data(x) for x in leaves]
    must_trace = set(required)
    leaves = [as_known_array(x) if i in must_trace else x for i, x in enumerate(leaves)]
    static = {i: x for i, x in enumerate(leaves) if i not in must_trace and not has_aval(x)}
    remaining = [i for i in range(len(leaves)) if i not in static]
    traced, structure = [leaves[i] for i in remaining], tree.treedef_with_static(in_tree, static)
    avals = avals_of(traced, kind, fun, structure)
    new_position = {old: i for i, old in enumerate(remaining)}
    return TracedArguments(traced, structure, avals, [new_position[i] for i in required])


def has_aval(x: object) -> bool:
    """Whether `x` is an array or a number, which can be traced."""
    try:
        aval_of(x)
    except ArgumentError:
        return False
    return True


def raise_foreign_code_error(error: Exception) -> None:
    """Raise ForeignCodeError if code outside functx raised `error` about a traced array."""
    text = str(error)
    # The error of NumPy for `x.flat[i] = y` does not name the type of y.
    is_flat_write = type(error) is ValueError and text.startswith(
        "Error setting single item of array"
    )
    names_tracer = "Traced<" in text or _TRACER_CLASS_NAME in text
    if isinstance(error, FunctxError) or not (is_flat_write or names_tracer):
        return
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    if traceback is not None and is_raise_instruction(
        traceback.tb_frame.f_code, traceback.tb_lasti
    ):
        # A `raise` of the user's own code that shows a value.
        return
    line = traceback_source(error.__traceback__)
    if is_flat_write:
        raise CapturedWriteError(
            "x.flat[...] =: an array from outside the function must not be written to while it is "
            f"traced; got {line_text(line)!r}",
            fix="Pass the array as an argument, or make it inside with functx.numpy.",
            source=line,
        ) from error
    if text.endswith((" is not in list", "x not in tuple")):
        raise ValueRangeError(
            "bool() of each == of `index`: one must be true, on every path of functx.explore too; got a "
            "value that equals no element",
            fix=LIST_SEARCH_FIX,
            source=line,
        ) from error
    said = re.sub(r"<function (.*?) at 0x\w+>", r"`\1`", text.splitlines()[0])
    raise ForeignCodeError(
        f"code outside functx was given a traced array and refused it; got {said}",
        fix="Use functx.numpy or jax.numpy; to index an array with a traced value, "
        "functx.numpy.asarray(table)[i].",
        source=line,
    ) from error


_TRACER_CLASS_NAME = f"{Tracer.__module__}.{Tracer.__qualname__}"


def add_source_note(error: Exception) -> None:
    """Add the user's line to an error of JAX about a traced value."""
    if type(error).__module__ == "jax.errors" and not hasattr(error, "__notes__"):
        error.add_note(f"  at {source_line(traceback_source(error.__traceback__))}")
