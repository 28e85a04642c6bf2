"""`vmap`: a function mapped over an axis of its arguments."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from operator import index
from typing import Any

from functx import ops
from functx.core import tree
from functx.core.checking import pluralize
from functx.core.errors import (
    ArgumentError,
    AxisError,
    AxisSizeError,
    FunctxError,
    InAxesError,
    OutAxesError,
    RandomnessError,
    TreeError,
    WrapperShapeError,
    type_name,
)
from functx.core.generator_state import GeneratorState
from functx.core.memory_layouts import noncontiguous_strides, record_layout_dependence
from functx.core.named_axes import (
    RANDOMNESS_MODES,
    AxisNames,
    bind_named_axes,
    bound_axes,
    canonical_axis_names,
    check_axis_name,
)
from functx.core.program import pad_input_names
from functx.core.rewriting import apply
from functx.core.strides import is_row_major, row_major_strides
from functx.core.tracer import as_known_array, aval_of
from functx.core.typing import Avals, Function, PyTree, Value, Values
from functx.core.wrapper_axes import AxisChange, change_axes, change_sparse_shapes, wrapper_spans
from functx.transforms.aliasing import ArgumentStrides, MemoryLayout, written_shared_buffers
from functx.transforms.argument_names import (
    argument_names,
    as_decorator,
    check_callable,
    function_name,
    key_path_strings,
    wrap_transform,
)
from functx.transforms.batching import Batch, BatchedOutputError, remove_axis
from functx.transforms.tracing_api import (
    TracedFunction,
    has_aval,
    partition_static_arguments,
    trace_function,
)


class _DefaultAxis(int):
    """Axis 0 as the default of an argument, which is not the same object as a 0 that is passed."""


_DEFAULT_AXIS = _DefaultAxis(0)


def vmap(
    fun: Function | None = None,
    in_axes: PyTree = _DEFAULT_AXIS,
    out_axes: PyTree = _DEFAULT_AXIS,
    axis_name: Hashable = None,
    axis_size: int | None = None,
    spmd_axis_name: Hashable = None,
    *,
    chunk_size: int | None = None,
    randomness: str = "error",
    in_dims: PyTree = _DEFAULT_AXIS,
    out_dims: PyTree = _DEFAULT_AXIS,
    explore: bool = False,
) -> Function:
    """Map `fun` over an axis of its arguments, as a loop would but in one program.

    `in_axes` gives the mapped axis of each positional argument, or None for one that every call
    shares: an int for all arguments, or a tuple with an int, None, or a tree prefix of ints and
    None for each. The axis of an `ArrayWrapper` is one of the whole. Keyword arguments are mapped over
    their first axis. `out_axes` gives in the same way the position of the mapped axis in the results.
    PyTorch's names `in_dims` and `out_dims` stand for them as well. All mapped axes must have one length;
    `axis_size` gives it if no argument is mapped. Collectives such as `lax.psum` over `axis_name`
    work across the mapped axis. `spmd_axis_name` names the axes of a device mesh that the mapped
    axis is sharded over, for `lax.with_sharding_constraint` inside `fun`. With `chunk_size`, a loop
    maps over that many elements at a time, which limits the memory, unless a collective needs all
    of them; a size of 1 makes it a plain loop.

    `randomness` says what draws from a generator of `functx.random` do: "error" refuses them, "same"
    draws once for all elements, and "different" draws for each element, as one draw for the whole
    batch would. Chunks do not change the numbers; a function with draws that differ is not chunked.

    With `explore`, the Python control flow of `fun` may depend on mapped values (`functx.explore`): each
    element gets the results of its own branches, and its own number of iterations.

    Raises InAxesError, OutAxesError, AxisError and AxisSizeError, which name the argument,
    ValueRangeError for a chunk size that is no positive int, and RandomnessError for a draw that
    `randomness` refuses.

    >>> import functx, numpy
    >>> functx.vmap(lambda x, y: x * y, in_axes=(0, None))(numpy.arange(3.0), 2.0).tolist()
    [0.0, 2.0, 4.0]
    """
    if fun is None:
        return as_decorator(vmap, locals())
    check_callable(fun, "vmap")
    if explore:
        from functx.transforms.explore import explore as explore_function

        fun = explore_function(fun)
    label = f"vmap({function_name(fun)})"
    in_axes = _either_axes(label, in_axes, in_dims, "in", InAxesError)
    out_axes = _either_axes(label, out_axes, out_dims, "out", OutAxesError)
    if axis_size is not None and (type(axis_size) is not int or axis_size < 0):
        raise AxisSizeError(f"{label}: axis_size must be a non-negative int; got {axis_size!r}")
    names = _axis_names(label, axis_name, spmd_axis_name, randomness)
    if isinstance(in_axes, list):
        in_axes = tuple(in_axes)
    if not isinstance(in_axes, (int, tuple, type(None))) or isinstance(in_axes, bool):
        raise InAxesError(
            f"{label}: in_axes must be an int, None or a tuple with an entry for "
            f"each argument; got {type_name(in_axes)} {in_axes!r}",
            fix="To call the result with arguments, write vmap(f)(x)."
            if hasattr(in_axes, "dtype")
            else "Write in_axes=(0, None) to map the first of two arguments, and share the second.",
        )
    _check_axis_leaves(label, in_axes, "in_axes", InAxesError)
    _check_axis_leaves(label, out_axes, "out_axes", OutAxesError)
    mapped = MappedFunction(fun, label, in_axes, out_axes, names, axis_size, chunk_size)

    def wrapper(*args: PyTree, **kwargs: PyTree) -> PyTree:
        return mapped.call(args, kwargs)

    return wrap_transform(wrapper, fun, "vmap")


def _axis_names(
    label: str, axis_name: Hashable, spmd_axis_name: Hashable, randomness: str
) -> AxisNames:
    """The names of the mapped axis, checked, and the mode of draws along it."""
    if axis_name is not None:
        check_axis_name(axis_name, f"{label}: axis_name")
    mesh_axes = () if spmd_axis_name is None else canonical_axis_names(spmd_axis_name)
    for name in mesh_axes:
        check_axis_name(name, f"{label}: spmd_axis_name")
    if randomness not in tuple(RANDOMNESS_MODES):
        choices = ", ".join([f"{name!r} ({does})" for name, does in RANDOMNESS_MODES.items()])
        raise RandomnessError(f"{label}: randomness must be one of {choices}; got {randomness!r}")
    return AxisNames(axis_name, mesh_axes, randomness)


class MappedFunction:
    """A function and how `vmap` maps it: along which axes, under which names, in chunks of which size.

    Messages begin with `label`.
    """

    def __init__(
        self,
        fun: Function,
        label: str,
        in_axes: PyTree,
        out_axes: PyTree,
        names: AxisNames,
        axis_size: int | None,
        chunk_size: int | None,
    ):
        # Chunks use `scan`, and `lax.map`, defined beside it, uses vmap.
        from functx.transforms.chunked_batching import check_chunk_size

        self.fun, self.label = fun, label
        self.in_axes, self.out_axes, self.names = in_axes, out_axes, names
        self.axis_size, self.chunk_size = axis_size, chunk_size
        check_chunk_size(label, chunk_size)

    def call(self, args: tuple[PyTree, ...], kwargs: dict[str, PyTree]) -> PyTree:
        """The results for all elements."""
        leaves, in_tree = tree.flatten_with_key_data((args, kwargs))
        if not args and not kwargs and self.axis_size is None:
            raise AxisSizeError(
                f"{self.label}: there must be an argument to map over; got a call without any",
                fix="Pass axis_size.",
            )
        axes = self.in_axes_of_leaves(args, kwargs)
        if wrapper_spans(in_tree):
            leaves, in_tree, axes = self.map_wrappers(leaves, in_tree, axes)
        found = self.canonical_dims(leaves, axes, in_tree)
        in_tree = change_sparse_shapes(in_tree, found)
        on_axes = {i: dim for i, dim in enumerate(found) if dim is not None}
        leaves, in_tree, avals, places = partition_static_arguments(
            leaves, in_tree, "vmap", self.fun, list(on_axes)
        )
        by_place = dict(zip(places, on_axes.values(), strict=True))
        dims = tuple([by_place.get(i) for i in range(len(leaves))])
        size = self.common_size(avals, dims, in_tree)
        element_avals = [remove_axis(aval, dim) for aval, dim in zip(avals, dims, strict=True)]
        traced = self.trace(leaves, in_tree, element_avals, dims, size)
        return self.run(traced, [*leaves, *traced.captured], dims, size)

    def trace(
        self,
        leaves: Values,
        in_tree: tree.TreeDef,
        avals: Avals,
        dims: tuple[int | None, ...],
        size: int,
    ) -> TracedFunction:
        """The program of the function for one element, of types `avals`."""
        axis = self.names.with_size(size)
        named = () if self.names.name is None else (axis,)
        mapped = axis, [*zip(leaves, dims, strict=True)]
        with bind_named_axes((*bound_axes(), *named)):
            traced = trace_function(self.fun, in_tree, avals, "vmap", batched_from=mapped)
            if traced.layout_dependent and any(strides := _element_strides(leaves, dims)):
                memory = MemoryLayout(strides=tuple(strides))
                traced = trace_function(
                    self.fun, in_tree, avals, "vmap", memory=memory, batched_from=mapped
                )
        return traced

    def run(
        self, traced: TracedFunction, operands: Values, dims: tuple[int | None, ...], size: int
    ) -> PyTree:
        """The results of the batched program, whose writes to operands are made."""
        from functx.transforms.chunked_batching import ChunkedBatch, needs_chunking

        if traced.written and written_shared_buffers(operands, traced.written):
            raise ArgumentError(
                f"{self.label}: an argument that is written to must not share memory with "
                "another; got arrays that overlap",
                fix="Pass a copy of one of them.",
            )
        out_tree, out_dims, shared = self.out_dims_of_leaves(traced, size)
        in_dims = dims + (None,) * len(traced.captured)
        out_dims += tuple([in_dims[i] for i in traced.written])
        batch = Batch(size, in_dims, out_dims, names=self.names)
        if needs_chunking(self.chunk_size, size):
            batch = ChunkedBatch(size, in_dims, out_dims, self.chunk_size, names=self.names)
        try:
            outs = apply(batch, traced.program, operands)
            if terms := traced.row_terms:
                terms.note(operands, in_dims, outs)
            outs = traced.finish_call(operands, outs)
        except BatchedOutputError as error:
            raise self.batched_output_error(error.args[0], traced, shared) from None
        return tree.unflatten(out_tree, outs)

    def in_axes_of_leaves(self, args: tuple[PyTree, ...], kwargs: dict[str, PyTree]) -> list[Value]:
        """The mapped axis of each leaf of the arguments, as the user gives it."""
        in_axes = self.in_axes
        if isinstance(in_axes, tuple) and len(in_axes) != len(args):
            entries = "entry" if len(in_axes) == 1 else "entries"
            raise InAxesError(
                f"{self.label}: in_axes must have an entry for each positional argument; "
                f"got {len(in_axes)} {entries} {in_axes!r} for {pluralize(len(args), 'argument')}",
                fix=f"Keyword arguments ({', '.join(kwargs)}) are mapped over axis 0 and have no entry: pass "
                "them by position."
                if kwargs and len(in_axes) == len(args) + len(kwargs)
                else "Give an entry for each, None for one that every call shares, or one int for all.",
            )
        if not isinstance(in_axes, tuple):
            axes = [in_axes] * tree.structure(args).num_leaves
        else:
            try:
                axes = tree.broadcast_prefix(
                    in_axes, tree.structure(args), f"{self.label}: in_axes"
                )
            except TreeError as error:
                raise InAxesError(
                    error.problem,
                    *error.details,
                    fix="Give an int for a whole argument, or the structure of the argument with an int or "
                    "None for each leaf.",
                ) from None
        return axes + [0] * tree.structure(kwargs).num_leaves

    def map_wrappers(
        self, leaves: list[Value], in_tree: tree.TreeDef, axes: Sequence[Any]
    ) -> tuple[list[Value], tree.TreeDef, list[Any]]:
        """The leaves, structure and axes of the arguments, of which some are arrays made of arrays."""
        shapes = [aval_of(x).shape if has_aval(x) else () for x in leaves]
        mapped = change_axes(AxisChange(self.label, "mapped"), in_tree, shapes, axes)
        for i, axis in mapped.squeezed.items():
            leaves[i] = ops.squeeze(leaves[i], (axis,))
        return leaves, mapped.structure, mapped.axes

    def canonical_dims(
        self, leaves: list[Value], axes: Sequence[Any], in_tree: tree.TreeDef
    ) -> tuple[int | None, ...]:
        """The mapped axis of each leaf, counted from 0.

        Mapped leaves that are arrays of other libraries are replaced by those of NumPy, in place.
        """
        dims: list[int | None] = []
        leaf_axes = zip(leaves, axes, tree.key_leaves(in_tree), strict=True)
        num_positional = in_tree.children()[0].num_leaves
        for i, (x, axis, is_key) in enumerate(leaf_axes):
            if axis is None:
                dims.append(None)
                continue
            name = f"{self.label}: `{{}}`"
            leaves[i] = x = as_known_array(x)
            try:
                rank = aval_of(x).ndim - is_key
            except ArgumentError:
                name = name.format(argument_names(self.fun, in_tree, leaves)()[i])
                raise InAxesError(
                    f"{name} must be an array to be mapped on axis {axis}; got {type_name(x)}",
                    fix="Pass None in in_axes for it." if i < num_positional else _BIND_KEYWORD,
                ) from None
            if not -rank <= index(axis) < rank:
                name = name.format(argument_names(self.fun, in_tree, leaves)()[i])
                legal = f"an axis in [{-rank}, {rank})" if rank else "at least one dimension"
                raise AxisError(
                    f"{name} must have {legal} to be mapped on axis {axis}; got {aval_of(x)!r}",
                    fix="Pass None in in_axes for an argument that every call shares."
                    if i < num_positional
                    else _BIND_KEYWORD,
                )
            dims.append(axis % rank)
        return tuple(dims)

    def common_size(self, avals: Avals, dims: Sequence[int | None], in_tree: tree.TreeDef) -> int:
        """The length of all mapped axes."""
        axis_size = self.axis_size
        sizes: set[int] = {
            aval.shape[dim] for aval, dim in zip(avals, dims, strict=True) if dim is not None
        }
        if axis_size is not None:
            sizes.add(axis_size)
        if len(sizes) == 1:
            return sizes.pop()
        if not sizes:
            raise AxisSizeError(
                f"{self.label}: at least one argument must be mapped; got in_axes of None only",
                fix="Give an argument an axis, or pass axis_size.",
            )
        names = argument_names(self.fun, in_tree, avals)()
        rows = [
            f"{name}: {aval!r} mapped on axis {dim} ({aval.shape[dim]})"
            for name, aval, dim in zip(names, avals, dims, strict=True)
            if dim is not None
        ]
        if axis_size is not None:
            rows.append(f"axis_size={axis_size}")
        got = " and ".join(map(str, sorted(sizes)))
        raise AxisSizeError(
            f"{self.label}: mapped axes must have one length; got {got}",
            *rows,
            fix="To share an argument between calls, give None for it in in_axes.",
        )

    def out_dims_of_leaves(
        self, traced: TracedFunction, size: int
    ) -> tuple[tree.TreeDef, tuple[int | None, ...], dict[int, str]]:
        """The structure of the results, the mapped axis of each leaf, and leaves that must be shared.

        The last are inner arrays without dimensions, with the names of the classes that hold them.
        """
        out_axes, out_tree = self.out_axes, traced.out_tree
        shared: dict[int, str] = {}
        if out_tree.num_nodes == 1 and isinstance(out_axes, (tuple, list)) and len(out_axes) == 1:
            out_axes = out_axes[0]
        outermost = tree.root_node_type(out_tree)
        if isinstance(out_axes, (tuple, list)) and outermost in (tuple, list):
            out_axes = outermost(out_axes)
        try:
            axes = tree.broadcast_prefix(out_axes, out_tree, f"{self.label}: out_axes")
        except TreeError as error:
            raise OutAxesError(error.problem, *error.details) from None
        if wrapper_spans(out_tree):
            shapes = [aval.shape for aval in traced.out_avals]
            change = AxisChange(self.label, "stacked", size)
            out_tree, axes, _, shared = change_axes(change, out_tree, shapes, axes)
        dims: list[int | None] = []
        for axis, aval, is_key in zip(
            axes, traced.out_avals, tree.key_leaves(out_tree), strict=True
        ):
            rank = aval.ndim + 1 - is_key
            if axis is not None and not -rank <= axis < rank:
                raise AxisError(
                    f"{self.label}: out_axes must be in [{-rank}, {rank}) for a result "
                    f"{aval!r} of each call; got {axis}",
                    fix="The result has one dimension more than that of a call.",
                )
            dims.append(None if axis is None else axis % rank)
        return change_sparse_shapes(out_tree, dims, size), tuple(dims), shared

    def batched_output_error(
        self, i: int, traced: TracedFunction, shared: dict[int, str]
    ) -> OutAxesError | WrapperShapeError:
        """The error for output `i`, which depends on the batch but must not."""
        count = len(traced.out_avals)
        if i in shared:
            path = key_path_strings(traced.out_tree, traced.out_avals)[i]
            return WrapperShapeError(
                f"{self.label}: an inner array that depends on mapped arguments must have the "
                f"dimensions of the whole, with length 1 where its values are shared; got output{path} of "
                f"shape () in {shared[i]}",
                fix="Keep the dimensions that a reduction removes (keepdims=True) in the inner array.",
            )
        operands = [None] * (len(traced.program.inputs) - len(traced.captured)) + traced.captured
        if i >= count and isinstance(operands[traced.written[i - count]], GeneratorState):
            return OutAxesError(
                f"{self.label}: the state of a generator from around the function must be the "
                "same for all elements of the batch afterwards; got one that depends on mapped arguments",
                fix="Set the state outside, or draw from a Generator that the function makes.",
            )
        if i >= count:
            name = pad_input_names(traced.program.in_names(), len(traced.program.inputs))[
                traced.written[i - count]
            ]
            return OutAxesError(
                f"{self.label}: an argument with in_axes None must not depend on mapped "
                f"arguments; got `{name}`, to which such values are written",
                fix="Give it an axis in in_axes, or write to a copy of it.",
            )
        path = key_path_strings(traced.out_tree, traced.out_avals)[i]
        return OutAxesError(
            f"{self.label}: a result with out_axes None must not depend on mapped arguments; "
            f"got output{path}: {traced.program.out_avals[i]!r}, which does",
            fix="Give it an axis in out_axes.",
        )


def _either_axes(
    label: str, axes: PyTree, dims: PyTree, prefix: str, error: type[FunctxError]
) -> PyTree:
    """The axes under the name that was passed, of `in_axes` and `in_dims`, or 0."""
    if dims is _DEFAULT_AXIS:
        return axes
    if axes is not _DEFAULT_AXIS:
        raise error(
            f"{label}: {prefix}_axes or {prefix}_dims must be passed, which mean "
            f"the same; got both, {axes!r} and {dims!r}",
            fix=f"Leave {prefix}_dims out.",
        )
    return dims


def _element_strides(leaves: Values, dims: Sequence[int | None]) -> ArgumentStrides:
    """The strides of one element of each mapped argument; None for row-major order."""
    element_strides: list[Any] = []
    for x, dim in zip(leaves, dims, strict=True):
        record_layout_dependence(x, writes=True)
        shape, strides = aval_of(x).shape, noncontiguous_strides(x)
        if dim is not None:
            whole = strides or row_major_strides(shape)
            shape, strides = (
                shape[:dim] + shape[dim + 1 :],
                whole[:dim] + whole[dim + 1 :],
            )
        element_strides.append(None if strides is None or is_row_major(shape, strides) else strides)
    return element_strides


def _check_axis_leaves(label: str, axes: PyTree, name: str, error: type[FunctxError]) -> None:
    """Raise `error` unless the leaves of `axes` are ints."""
    for axis in tree.leaves(axes):
        if isinstance(axis, bool) or not isinstance(axis, int):
            raise error(
                f"{label}: the leaves of {name} must be ints or None; "
                f"got {type_name(axis)} {axis!r} in {axes!r}"
            )


_BIND_KEYWORD = (
    "Bind a keyword argument that every call shares: vmap(functools.partial(f, name=x))."
)
