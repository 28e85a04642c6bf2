"""A call of the user's function, flattened and traced: where every public transform begins."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import WRAPPER_ASSIGNMENTS, partial
from types import FunctionType, MethodType
from typing import Any, NamedTuple

import numpy as np

from functx import ops
from functx.core import tree
from functx.core.errors import (
    ArgumentError,
    ArgumentWriteError,
    CapturedWriteError,
    ForeignCodeError,
    FunctxError,
    TangentError,
    type_name,
)
from functx.core.functionalization import (
    Functionalize,
    FunctionalizedProgram,
    Strides,
    is_computed,
    noncontiguous_strides,
    record_layout_dependence,
    storage_base,
    write_to_numpy_arrays,
)
from functx.core.named_axes import tracked_mesh_axes
from functx.core.program import Program, pad_input_names
from functx.core.program_editing import replace_program_fields
from functx.core.rewriting import cached_rewrite
from functx.core.source_info import (
    is_raise_instruction,
    line_text,
    source_line,
    traceback_source,
    unwrap_function,
)
from functx.core.tracebacks import unnamed_api_boundary
from functx.core.tracing import Tracer, aval_of, backend, current_builder, trace
from functx.core.types import ShapedArray, canonical_dtype, is_complex
from functx.ops.views import Copy, Write
from functx.transforms.aliasing import (
    SharedBuffer,
    check_captures_not_aliased,
    find_aliased_pair,
    written_shared_buffers,
)

ArgumentStrides = Sequence[Strides | None]


class TracedFunction(NamedTuple):
    """The pure program of one call, what it captured, and the structure of its result.

    Behind the leaves of the result it returns new values for the inputs at `written`. If it is
    `layout_dependent`, it is right only for arguments with the strides that it was traced for.
    """

    program: Program
    captured: list[Any]
    out_tree: Any
    written: tuple[int, ...] = ()
    layout_dependent: bool = False

    def refuse_writes(self, what: str) -> TracedFunction:
        """The call itself; ArgumentWriteError if the function writes to an argument."""
        if self.written:
            names = pad_input_names(self.program.in_names(), len(self.program.inputs))
            raise ArgumentWriteError(
                f"{what}: the function must not write to its arguments; got one that writes to "
                + ", ".join([f"`{names[i]}`" for i in self.written]),
                fix="Write to a copy (x.copy()), and return it.",
            )
        return self

    def with_writes_as_carries(self) -> tuple[TracedFunction, list[Any]]:
        """The call of a body that is run again and again, and the arrays around it that it writes to.

        They come last among what it captured, and the body returns their new values first.
        What it writes to its own arguments is nothing to those who call it.
        """
        own = len(self.program.inputs) - len(self.captured)
        results = self.program.outputs[: len(self.out_avals)]
        new = dict(zip(self.written, self.program.outputs[len(results) :], strict=True))
        moved = [i for i in self.written if i >= own]
        kept = [i for i in range(own, len(self.program.inputs)) if i not in new]
        inputs = [self.program.inputs[i] for i in (*range(own), *kept, *moved)]
        captured = [self.captured[i - own] for i in (*kept, *moved)]
        program = replace_program_fields(
            self.program, inputs=inputs, outputs=[*[new[i] for i in moved], *results]
        )
        return self._replace(program=program, captured=captured, written=()), captured[len(kept) :]

    def tree_without_aux(self, has_aux: bool) -> Any:
        """The structure of the output, without aux."""
        return self.out_tree.children()[0] if has_aux else self.out_tree

    @property
    def out_avals(self) -> list[ShapedArray]:
        """The types of the leaves of the result."""
        avals = self.program.out_avals
        return avals[: len(avals) - len(self.written)]

    def finish_call(
        self, args: Sequence[Any], outs: Sequence[Any], of_transform: bool = True
    ) -> list[Any]:
        """The results among `outs`; those behind them are written to `args`, operands of all inputs.

        Inside a trace, a result that is one of the operands, or shows one, gets memory of its own.
        """
        own = len(outs) - len(self.written)
        results = (copy_transform_results if of_transform else copy_if_aliased)(outs[:own], args)
        if self.written:
            write_back_arguments(args, dict(zip(self.written, outs[own:], strict=True)))
        return results


def copy_if_aliased(values: Sequence[Any], args: Sequence[Any]) -> list[Any]:
    """`values`, copied where they are operands among `args` or views, so that writes keep them apart."""
    given = {x.atom for x in args if type(x) is Tracer}
    if not given:
        return list(values)
    return [
        Copy()(x) if type(x) is Tracer and (x.atom in given or not is_computed(x)) else x
        for x in values
    ]


def copy_transform_results(values: Sequence[Any], args: Sequence[Any]) -> list[Any]:
    """`values`, fresh, as a transform of operands `args` returns them.

    Outside a trace they are arrays of JAX. So inside one, `x += y` gives the name a new value too.
    """
    found = copy_if_aliased(values, args)
    for x in found:
        if type(x) is Tracer:
            x.builder.mark_made_by_jax(x.atom)
    return found


def call_outside_trace(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """`fun(*args, **kwargs)` outside a trace; results that alias a NumPy argument are copied."""
    given = [x for x in tree.leaves((args, kwargs)) if isinstance(x, np.ndarray)]

    def apart(x: Any) -> Any:
        shared = isinstance(x, np.ndarray) and any([np.may_share_memory(x, y) for y in given])
        return x.copy() if shared else x

    return tree.map(apart, fun(*args, **kwargs)) if given else fun(*args, **kwargs)


def write_back_arguments(args: Sequence[Any], new: dict[int, Any]) -> None:
    """Let the arguments at the keys of `new` take the values that a call wrote to them.

    Raises ImmutableArrayError, before any is changed, if one is a read-only NumPy array.
    """
    write_to_numpy_arrays(args, new)
    traced = [i for i in new if type(args[i]) is Tracer]
    values = [new[i] for i in traced]
    if len(traced) > 1:
        # One may show what another is about to overwrite.
        values = copy_if_aliased(values, [args[i] for i in traced])
    for i, value in zip(traced, values, strict=True):
        Write()(args[i], value)


class InputNames(NamedTuple):
    """The names of the leaves of a call's arguments, worked out only when they are shown."""

    code: Any
    skip: int
    in_tree: Any
    leaves: Any = None

    def __call__(self) -> list[str]:
        positional = (
            self.code.co_varnames[self.skip : self.code.co_argcount]
            if self.code is not None
            else ()
        )
        names = []
        for kind, argument, *rest in key_paths(self.in_tree, self.leaves):
            if kind.idx:
                base = argument.key
            else:
                i = argument.idx
                base = positional[i] if i < len(positional) else f"args[{i}]"
            names.append(base + tree.keystr(rest))
        return names


def key_paths(structure: Any, leaves: Sequence[Any] | None = None) -> list[tuple[Any, ...]]:
    """The path of each leaf of a structure.

    Only an instance knows the names of the parts of a class of the user's; it is made of
    `leaves`, traced values in place of avals, if these are given. Else such parts are numbered.
    """
    if leaves is None or not any(tree.leaves_in_user_nodes(structure)):
        return tree.paths(structure)
    found: list[Any] = []

    def rebuilt(*tracers: Tracer) -> list[Any]:
        rest = iter(tracers)
        given = [next(rest) if type(x) is ShapedArray else x for x in leaves]
        made = structure.unflatten(given)
        static = structure.static_leaves if isinstance(structure, tree.TreeDefWithStatic) else ()
        paths = [path for path, _ in tree.leaves_with_path(made)]
        found.extend([path for i, path in enumerate(paths) if i not in static])
        return []

    # Code of the user's may refuse anything; a message is being made of another mistake.
    with suppress(Exception):
        trace(rebuilt, [x for x in leaves if type(x) is ShapedArray])
    return found if len(found) == len(leaves) else tree.paths(structure)


def key_path_strings(structure: Any, leaves: Sequence[Any] | None = None) -> list[str]:
    """The paths of the leaves of a structure, as messages show them; see `key_paths`."""
    return [tree.keystr(path) for path in key_paths(structure, leaves)]


def argument_names(
    fun: Callable[..., Any], in_tree: Any, leaves: Sequence[Any] | None = None
) -> InputNames:
    """The names of the leaves of a call of `fun` with arguments of structure `in_tree`.

    `leaves` are those of the call, or their avals.
    """
    skip = 0
    fun = unwrap_function(fun)
    if type(fun) is MethodType:
        fun, skip = fun.__func__, 1
    elif type(fun) is not FunctionType:
        fun, skip = getattr(type(fun), "__call__", fun), 1  # noqa: B004
    return InputNames(getattr(fun, "__code__", None), skip, in_tree, leaves)


def function_name(fun: Callable[..., Any]) -> str:
    """The name that messages and programs use for `fun`."""
    name = getattr(fun, "__name__", None) or getattr(fun, "name", None) or type(fun).__name__
    return "lambda" if name == "<lambda>" else str(name)


def check_callable(fun: Any, transform: str) -> None:
    """Raise ArgumentError unless `fun` can be called."""
    if not callable(fun):
        raise ArgumentError(
            f"{transform}: the first argument must be a function; got {type_name(fun)}"
        )


def as_decorator(transform: Callable[..., Any], options: dict[str, Any]) -> Any:
    """`transform` for a function that is yet to come: a decorator.

    `options` are its arguments, of which the function is the first.
    """
    _, *named = options
    return partial(transform, **{name: options[name] for name in named})


def copy_function_metadata(wrapper: Any, fun: Callable[..., Any], transform: str) -> Any:
    """`wrapper` with the docstring, name and signature of `fun`."""
    for attribute in WRAPPER_ASSIGNMENTS:
        with suppress(AttributeError, TypeError):
            setattr(wrapper, attribute, getattr(fun, attribute))
    wrapper.__name__ = f"{transform}_{function_name(fun)}"
    wrapper.__wrapped__ = fun
    return wrapper


def wrap_transform(wrapper: Any, fun: Callable[..., Any], transform: str) -> Any:
    """`wrapper`, the result of `transform` of `fun`, with its name; a boundary of tracebacks."""
    return copy_function_metadata(unnamed_api_boundary(wrapper), fun, transform)


def trace_function(
    fun: Callable[..., Any],
    in_tree: Any,
    avals: Sequence[ShapedArray],
    kind: str,
    *,
    values: Sequence[Any] | None = None,
    differentiated: Sequence[int] = (),
    has_aux: bool = False,
    blocks: Sequence[SharedBuffer] = (),
    from_roots: bool = False,
    layouts: ArgumentStrides | None = None,
    mapped: Any = None,
) -> TracedFunction:
    """Trace `fun(*args, **kwargs)`, where `(args, kwargs)` has the structure `in_tree`.

    With `has_aux`, `fun` returns a pair, whose parts are flattened one after the other. What is
    not traced in the second is static: the structure of the result holds it as it is.
    `blocks` says which arguments share memory; by default that is found out from `values`.
    Of a view from outside, `from_roots` captures what owns its memory. `layouts` are the strides
    of arguments that do not lie in row-major order; by default they are found out likewise.
    `mapped` is as `trace` has it.
    """
    out_tree: Any = None
    wrote = asked = False

    def flat(*tracers: Tracer) -> list[Any]:
        nonlocal out_tree, wrote, asked
        builder = current_builder.require()
        leaves: list[Any] = list(tracers)
        for block in blocks:
            leaves = block.rebase_members(leaves, differentiated)
        on_devices = tracked_mesh_axes() if differentiated else ()
        marked = {i: leaves[i] for i in differentiated if on_devices}
        for i, x in marked.items():
            leaves[i] = ops.DerivativeBoundary("argument", on_devices)(x, x)
        args, kwargs = in_tree.unflatten(leaves)
        try:
            out = fun(*args, **kwargs)
        except (IndexError, TypeError, ValueError) as error:
            if isinstance(error.__cause__, FunctxError) and not isinstance(error, FunctxError):
                # NumPy wraps what its element asked of a traced value in an error of its own.
                raise error.__cause__ from None
            raise_foreign_code_error(error)
            add_source_note(error)
            raise
        if has_aux and not (isinstance(out, (tuple, list)) and len(out) == 2):
            raise ArgumentError(
                f"{kind}: with has_aux=True the function must return a pair (output, aux); "
                f"got {type_name(out)}"
            )
        outs: list[Any]
        outs, out_tree = tree.flatten_with_key_data(tuple(out) if has_aux else out)
        if has_aux:
            own = out_tree.children()[0].num_leaves
            static = {i: x for i, x in enumerate(outs) if i >= own and type(x) is not Tracer}
            outs = [x for i, x in enumerate(outs) if i not in static]
            out_tree = tree.treedef_with_static(out_tree, static)
        for x in outs:
            if type(x) is not Tracer:
                check_output(x, out, kind, fun)
        if on_devices:
            outs = [ops.DerivativeBoundary("result", on_devices)(x, x) for x in outs]
        wrote, asked = builder.writes, builder.layout_dependent
        for i in [i for i in marked if wrote and is_written_to(leaves[i])]:
            Write()(marked[i], leaves[i])
        for i in [i for block in blocks if wrote for i, _ in block.members]:
            Write()(tracers[i], leaves[i])
        return outs

    program, captured = trace(
        flat,
        avals,
        name=function_name(fun),
        kind=kind,
        values=values,
        differentiated=differentiated,
        in_names=argument_names(fun, in_tree, avals),
        from_roots=from_roots,
        layouts=layouts or (),
        mapped=mapped,
    )
    if not wrote or kind == "make_ir":
        return TracedFunction(program, captured, out_tree)
    around = [noncontiguous_strides(x) for x in captured]
    own: ArgumentStrides = [None] * len(avals) if layouts is None else layouts
    pure: FunctionalizedProgram = cached_rewrite(Functionalize((*own, *around)), program)
    by_layout = asked or pure.layout_dependent
    # What was found out only now may change what the function does.
    found = blocks if blocks or values is None else written_shared_buffers(values, pure.written)
    roots = from_roots or _captures_alias(captured, [i - len(avals) for i in pure.written])
    if by_layout:
        argument_strides(captured)
        if layouts is None and values is not None:
            layouts = argument_strides(values)
    if found != blocks or roots != from_roots or (layouts is not None and [*layouts] != [*own]):
        return trace_function(
            fun,
            in_tree,
            avals,
            kind,
            values=values,
            differentiated=differentiated,
            has_aux=has_aux,
            blocks=found,
            from_roots=roots,
            layouts=layouts,
            mapped=mapped,
        )
    if values is not None:
        check_captures_not_aliased(values, captured, pure.written)
    return TracedFunction(pure.program, captured, out_tree, pure.written, by_layout)


def is_written_to(x: Tracer) -> bool:
    """Whether something is written to `x`, or to what shows it, in the program being traced."""
    builder = x.builder
    return any(
        type(eqn.primitive) is Write and storage_base(Tracer(eqn.inputs[0], builder)).atom is x.atom
        for eqn in builder.equations
    )


def argument_strides(values: Sequence[Any]) -> ArgumentStrides:
    """The strides of arguments, on which a function depends; None for those in row-major order."""
    for x in values:
        record_layout_dependence(x, writes=True)
    return [noncontiguous_strides(x) for x in values]


def trace_with_shared_captures(
    trace: Callable[[bool], list[TracedFunction]],
) -> list[TracedFunction]:
    """The calls that `trace(from_roots)` gives, of functions that see what each other write."""
    calls = trace(False)
    captured = {capture_key(x): x for call in calls for x in call.captured}
    places = {key: i for i, key in enumerate(captured)}
    written = set()
    for call in calls:
        own = len(call.program.inputs) - len(call.captured)
        written |= {places[capture_key(call.captured[i - own])] for i in call.written if i >= own}
    return trace(True) if _captures_alias(list(captured.values()), written) else calls


def capture_key(x: Any) -> Any:
    """What two captured values share exactly when they are one."""
    return x.atom if type(x) is Tracer else id(x)


def _captures_alias(captured: Sequence[Any], written: Collection[int]) -> bool:
    """Whether a write to a captured array is seen by others around: it, or another, is a view."""
    check_captures_not_aliased([], [None if type(x) is Tracer else x for x in captured], written)
    views = [
        x
        for x in [captured[i] for i in written if i >= 0]
        if type(x) is Tracer and storage_base(x).atom is not x.atom
    ]
    return bool(views) or find_aliased_pair(captured, written) is not None


def raise_foreign_code_error(error: Exception) -> None:
    """Raise ForeignCodeError if `error` comes from other code that was given a traced array."""
    text = str(error)
    # What NumPy says of `x.flat[i] = y` does not say what y is.
    flat = type(error) is ValueError and text.startswith("Error setting single item of array")
    if isinstance(error, FunctxError) or not (
        flat or "Traced<" in text or _TRACER_CLASS_NAME in text
    ):
        return
    trail = error.__traceback__
    while trail is not None and trail.tb_next is not None:
        trail = trail.tb_next
    if trail is not None and is_raise_instruction(trail.tb_frame.f_code, trail.tb_lasti):
        # An exception that the user's code raises about a value, not an error of functx.
        return
    line = traceback_source(error.__traceback__)
    if flat:
        raise CapturedWriteError(
            "x.flat[...] =: an array from outside the function must not be written to while it is "
            f"traced; got {line_text(line)!r}",
            fix="Pass the array as an argument, or make it inside with functx.numpy.",
            source=line,
        ) from error
    said = re.sub(r"<function (.*?) at 0x\w+>", r"`\1`", text.splitlines()[0])
    raise ForeignCodeError(
        f"code outside functx was given a traced array and refused it; got {said}",
        fix="Use functx.numpy or jax.numpy; to index an array with a traced value, "
        "functx.numpy.asarray(table)[i].",
        source=line,
    ) from error


def add_source_note(error: Exception) -> None:
    """Say of an error in which JAX misses a value at which line of the user's that was."""
    if type(error).__module__ == "jax.errors" and not hasattr(error, "__notes__"):
        error.add_note(f"  at {source_line(traceback_source(error.__traceback__))}")


_TRACER_CLASS_NAME = f"{Tracer.__module__}.{Tracer.__qualname__}"


def check_tangent(x: Any, aval: ShapedArray, problem: Callable[[], tuple[str, str]]) -> Any:
    """`x` as a tangent or cotangent of `aval`; TangentError if it has another shape or dtype.

    `problem` says what must hold and names the value; a weak dtype, that of a Python number, fits any other.
    """
    if type(x) is int:
        x = float(x)
    try:
        given = aval_of(x)
    except ArgumentError:
        what, whose = problem()
        raise TangentError(f"{what}; got {type_name(x)} for {whose}: {aval!r}") from None
    fits = given.weak_type and is_complex(given.dtype) <= is_complex(aval.dtype)
    if given.shape != aval.shape or (given.dtype != aval.dtype and not fits):
        what, whose = problem()
        raise TangentError(
            f"{what}; got {given!r} for {whose}: {aval!r}",
            fix="Pass an array like it, as functx.numpy.ones_like gives one, or None for zero.",
        )
    if given is aval or (given.dtype == aval.dtype and current_builder.get() is None):
        return x
    return ops.convert_element_type(x, aval.dtype, aval.weak_type)


def check_output(x: Any, out: Any, kind: str, fun: Callable[..., Any]) -> None:
    try:
        aval_of(x)
    except ArgumentError:
        path = next(p for p, leaf in tree.leaves_with_path(out) if leaf is x)
        raise ArgumentError(
            f"{kind}({function_name(fun)}): the function must return arrays, numbers or pytrees of "
            f"them; got {type_name(x)} at output{tree.keystr(path)}",
            fix="Return arrays, and make what is none outside of the function; or register its class "
            "as a pytree (jax.tree_util.register_dataclass).",
        ) from None


def avals_of(
    leaves: list[Any], kind: str, fun: Callable[..., Any], in_tree: Any
) -> list[ShapedArray]:
    """The avals of argument leaves; ArgumentError names the argument that is no array.

    Typed keys among the leaves are replaced by their words.
    """
    try:
        return [aval_of(x) for x in leaves]
    except ArgumentError:
        leaves[:] = [backend.raw_key_data(x) for x in leaves]
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
    """The leaves of a call's arguments that are traced, and the structure that holds the others.

    `places` are those leaves about which more was said, by their new positions.
    """

    leaves: list[Any]
    in_tree: Any
    avals: list[ShapedArray]
    indices: Sequence[Any]


def partition_static_arguments(
    leaves: list[Any],
    in_tree: Any,
    kind: str,
    fun: Callable[..., Any],
    used: Sequence[int],
) -> TracedArguments:
    """The arguments of a call that is traced for the leaves at `used`; others may be of any type.

    What is no array among the others is static: `fun` gets it as it is.
    """
    with suppress(ArgumentError):
        return TracedArguments(leaves, in_tree, [aval_of(x) for x in leaves], used)
    leaves = [backend.raw_key_data(x) for x in leaves]
    wanted = set(used)
    static = {i: x for i, x in enumerate(leaves) if i not in wanted and not has_aval(x)}
    places = [i for i in range(len(leaves)) if i not in static]
    traced, structure = [leaves[i] for i in places], tree.treedef_with_static(in_tree, static)
    avals = avals_of(traced, kind, fun, structure)
    new = {old: i for i, old in enumerate(places)}
    return TracedArguments(traced, structure, avals, [new[i] for i in used])


def has_aval(x: Any) -> bool:
    """Whether `x` is an array or a number, which can be traced."""
    try:
        aval_of(x)
    except ArgumentError:
        return False
    return True


def abstractify(x: Any) -> ShapedArray:
    """The aval of an array, a number, or anything with a shape and a dtype."""
    if type(x) is ShapedArray:
        return x
    try:
        return aval_of(x)
    except ArgumentError:
        x = backend.raw_key_data(x)
        if hasattr(x, "shape") and hasattr(x, "dtype"):
            weak = bool(getattr(x, "weak_type", False))
            return ShapedArray(tuple(x.shape), canonical_dtype(x.dtype), weak)
        raise
