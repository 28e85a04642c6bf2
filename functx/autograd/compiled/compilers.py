"""The compiler of walks: it finds captured walks by structure, and captures new ones."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any, ClassVar
from weakref import ref

from functx.autograd.compiled import logs
from functx.autograd.compiled.capture import Capture, CapturingWalk, NotCapturedError
from functx.autograd.compiled.counters import counters
from functx.autograd.compiled.devices import move_from_host
from functx.autograd.compiled.graphs import WalkGraph, read_graph
from functx.autograd.compiled.keys import Structure, structure_of
from functx.autograd.compiled.plans import CapturePlan
from functx.autograd.compiled.run import WalkRun
from functx.autograd.compiled.stages import Stages, cut_into_stages
from functx.autograd.engine import Walk
from functx.autograd.nodes import Edge
from functx.autograd.planned_walks import KnownWalks, known_walks_of, plan_key
from functx.autograd.recording import Recording, current_recording
from functx.core.caches import Cache
from functx.core.config import contextual_key
from functx.core.context import ContextValue
from functx.core.errors import WalkCompilerError, type_name
from functx.core.tracer import current_builder
from functx.core.types import x64_enabled

Roots = Sequence[tuple[Edge, Any]]
Compiled = Callable[..., Sequence[Any]]

in_region: ContextVar[bool] = ContextVar("in_compiled_autograd_region", default=False)
"""Whether a compiled walk runs in this context."""


class CompiledWalk:
    """A captured walk with its compiled form: `function`, or `stages` once the walk has come back."""

    def __init__(self, capture: Capture, function: Compiled | None):
        self.capture, self.function = capture, function
        self.stages: Stages | None = None


class KnownStructure:
    """The last walk of a structure, and whether its sizes are dynamic."""

    def __init__(self, structure: Structure, dynamic: bool):
        self.structure, self.dynamic = structure, dynamic


class WalkTables:
    """The tables of a compiler: compiled walks by the keys of their graphs, and structures by keys without sizes."""

    def __init__(self) -> None:
        self.walks = Cache("captured walks", 512)
        self.structures = Cache("structures of walks", 64)
        self.plans = Cache("plans of captured walks", 256)

    def known(self) -> list[Structure]:
        """The structures that were seen."""
        tables = self.structures.young_entries, self.structures.old_entries
        found = [x for table in tables for x in table.values() if isinstance(x, KnownStructure)]
        return [x.structure for x in found]


_default_tables = WalkTables()
_tables: dict[tuple[int, object], tuple[Callable[[], object], WalkTables]] = {}
"""The tables of compiler functions, by identity; each goes with its function, or the object of its method."""
_NOT_CAPTURED = object()


def tables_of(compiler_fn: object) -> WalkTables:
    """The tables of a compiler function, or of the default compiler."""
    if compiler_fn is None:
        return _default_tables
    owner = getattr(compiler_fn, "__self__", compiler_fn)
    key = id(owner), getattr(compiler_fn, "__func__", None)
    found = _tables.get(key)
    if found is not None and found[0]() is owner:
        return found[1]
    try:
        reference: Callable[[], object] = ref(owner, lambda _: _tables.pop(key, None))
    except TypeError:
        # It lives as long as the process, as builtin functions do.
        reference = partial(_same, owner)
    _tables[key] = reference, WalkTables()
    return _tables[key][1]


def _same(x: object) -> object:
    return x


def clear_walks() -> None:
    """Forgets all captured walks."""
    for tables in (_default_tables, *[tables for _, tables in list(_tables.values())]):
        tables.walks.clear()
        tables.structures.clear()
        tables.plans.clear()
    counters.clear()


def walk_key(walk: Walk, key: Hashable) -> Hashable:
    """A key of the graph of a walk, with the modes that its program depends on."""
    return contextual_key((walk.has_recorded_values, walk.create_graph, x64_enabled(), key))


def check_compiler(compiler_fn: object) -> None:
    """Raises WalkCompilerError for a compiler function that is no function."""
    if compiler_fn is not None and not callable(compiler_fn):
        raise WalkCompilerError(
            "enable: compiler_fn must be a function of a captured program; got "
            f"{type_name(compiler_fn)}",
            fix="Pass a function, or nothing for the default compiler.",
        )


class WalkCompiler:
    """Runs each walk by its captured program, which it finds by key or captures.

    `compiler_fn` compiles the programs; without it they are cut into stages when a walk comes back.

    With `dynamic`, sizes count as dynamic from the start.
    """

    runs_first_walk: ClassVar[bool] = False
    """Whether the default compiler also compiles a walk that was not met before; tests set it."""

    def __init__(self, compiler_fn: Callable[[Any], Any] | None = None, dynamic: bool = False):
        self.compiler_fn, self.dynamic = compiler_fn, dynamic
        self.name = "default"
        if compiler_fn is not None:
            self.name = getattr(compiler_fn, "__name__", None) or type(compiler_fn).__name__
        self.levels, self.tables = logs.current_levels(), tables_of(compiler_fn)

    def __call__(self, walk: Walk, roots: Roots) -> None:
        """Runs a walk from its roots."""
        known = self.known_walks(walk, roots)
        if known is not None and known.plan is not None and self.follow(known.plan, walk, roots):
            return
        walk.find_order()
        is_traced = current_builder.get() is not None or type(current_recording()) is not Recording
        graph = None if is_traced or walk.detects_anomalies else read_graph(walk, roots)
        if graph is None:
            walk.visit_from(roots)
            return
        with ContextValue(in_region, True):
            compiled, is_new = self.find(walk, graph, roots)
            if known is not None:
                if known.awaits_plan and compiled is not None:
                    known.make_plan(walk.order, partial(CapturePlan.of, compiled, graph))
                known.note(walk.order)
            if compiled is None or not self.run(compiled, is_new, walk, graph):
                del graph  # It holds all that the nodes saved.
                walk.visit_from(roots)

    def known_walks(self, walk: Walk, roots: Roots) -> KnownWalks | None:
        """The walks that may have the same plan; None for a walk that has none."""
        key = plan_key(walk, roots)
        return None if key is None else known_walks_of(self.tables.plans, walk_key(walk, key))

    def follow(self, plan: CapturePlan, walk: Walk, roots: Roots) -> bool:
        """Runs a walk by the program of a plan; False, with nothing done, if its graph is another one."""
        (root, _), gradient = roots[0]
        graph = plan.match(root, gradient)
        if graph is None:
            return False
        counters.add(self.name, hits=1)
        if plan.one_stage is not None and plan.one_stage.record(walk, graph.nodes, graph.values):
            return True
        walk.order, walk.nodes = graph.nodes, set(graph.nodes)
        with ContextValue(in_region, True):
            return self.run(plan.compiled, False, walk, graph)

    def run(self, compiled: CompiledWalk, is_new: bool, walk: Walk, graph: WalkGraph) -> bool:
        """Runs a captured walk; False if it is to run node by node."""
        capture, recorded = compiled.capture, walk.has_recorded_values
        moved = bool(
            recorded and capture.movable and move_from_host(graph, capture.inputs, capture.movable)
        )
        if compiled.function is not None:
            WalkRun(walk, graph, capture).run_function(graph, compiled.function)
        # A first walk is not worth a compilation, unless JAX would refuse its operations one by one;
        # pullbacks that are differentiated need nodes of their own.
        elif recorded and (moved or self.runs_first_walk or not is_new):
            WalkRun(walk, graph, capture).run_stages(graph, compiled.stages or self.cut(compiled))
        else:
            return False
        return True

    def find(self, walk: Walk, graph: WalkGraph, roots: Roots) -> tuple[CompiledWalk | None, bool]:
        """The compiled walk of a graph, None if it cannot be captured; and whether it is new."""
        key = walk_key(walk, graph.key)
        found = self.tables.walks.get(key)
        is_new = found is None
        if is_new:
            try:
                found = self.capture(walk, graph, [edge for edge, _ in roots])
            except NotCapturedError:
                found = _NOT_CAPTURED
                self.levels.log_not_captured(graph.nodes)
            self.tables.walks.put(key, found)
        if found is _NOT_CAPTURED:
            return None, is_new
        counters.add(self.name, **({"misses": 1} if is_new else {"hits": 1}))
        return found, is_new

    def cut(self, compiled: CompiledWalk) -> Stages:
        """The stages of a captured walk."""
        capture = compiled.capture
        compiled.stages = cut_into_stages(capture.program, capture.calls)
        counters.add(self.name, compiles=1, stages=compiled.stages.compiled)
        return compiled.stages

    def capture(self, walk: Walk, graph: WalkGraph, edges: Sequence[Edge]) -> CompiledWalk:
        """Captures a walk and compiles it."""
        structure = structure_of(graph.key, graph.key_offsets, graph.value_offsets)
        is_dynamic, counts_as_capture = self.update_structure(walk, graph, structure)
        capture = CapturingWalk(walk, graph).capture(edges, structure.sizes if is_dynamic else ())
        if counts_as_capture:
            counters.add(self.name, captures=1)
            logs.warn_of_captures(self.name, graph.nodes, structure)
            self.levels.log_program(capture.program)
        return CompiledWalk(capture, self.compile(capture))

    def update_structure(
        self, walk: Walk, graph: WalkGraph, structure: Structure
    ) -> tuple[bool, bool]:
        """Whether the sizes of a structure are dynamic, and whether it counts as a capture; logs why."""
        key = walk_key(walk, structure.sizeless)
        known: KnownStructure | None = self.tables.structures.get(key)
        if known is None:
            self.levels.log_miss(graph.nodes, structure, self.tables.known())
            is_dynamic, counts_as_capture = self.dynamic, True
        else:
            changes = structure.changes_from(known.structure)
            if changes and not known.dynamic:
                self.levels.log_sizes(graph.nodes, changes)
            is_dynamic = known.dynamic or bool(changes)
            # A walk of other dynamic sizes is captured too, but is another compilation alone.
            counts_as_capture = not known.dynamic or not changes
        self.tables.structures.put(key, KnownStructure(structure, is_dynamic))
        return is_dynamic, counts_as_capture

    def compile(self, capture: Capture) -> Compiled | None:
        """The function that the compiler function returns for a captured program; None for the default."""
        if self.compiler_fn is None:
            return None
        function = self.compiler_fn(capture.program)
        if not callable(function):
            raise WalkCompilerError(
                f"{self.name}: a compiler function must return a function of the lists (inputs, sizes, "
                f"scalars, hooks, packed); got {type_name(function)}",
                fix="Return functx.compiled_autograd.compile_stages(program) for the default.",
            )
        counters.add(self.name, compiles=1)
        return function  # type: ignore[no-any-return]
