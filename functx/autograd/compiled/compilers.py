"""The compiler of walks: it finds captured walks by structure, and captures new ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any, ClassVar
from weakref import ref

from functx.autograd.compiled import logs
from functx.autograd.compiled.capture import Capture, CapturingWalk, NotCapturedError
from functx.autograd.compiled.counters import counters
from functx.autograd.compiled.graphs import WalkGraph, read_graph
from functx.autograd.compiled.run import WalkRun
from functx.autograd.compiled.splits import Structure, structure_of
from functx.autograd.compiled.stages import Stages, cut_into_stages
from functx.autograd.engine import Walk
from functx.autograd.nodes import GradientEdge
from functx.autograd.recording import Recording, current_recording
from functx.core.caches import Cache
from functx.core.config import contextual_key
from functx.core.errors import WalkCompilerError, type_name
from functx.core.tracer import current_builder
from functx.core.types import x64_enabled

Roots = Sequence[tuple[GradientEdge, Any]]
Compiled = Callable[..., Sequence[Any]]

in_region: ContextVar[bool] = ContextVar("in_compiled_autograd_region", default=False)
"""Whether a compiled walk runs in this context."""


class CompiledWalk:
    """A captured walk, and how it runs: in stages, or by what a compiler function returned.

    Stages are cut when the walk is met again.
    """

    def __init__(self, capture: Capture, function: Compiled | None):
        self.capture, self.function = capture, function
        self.stages: Stages | None = None


class KnownStructure:
    """A structure of walks that was met: the sizes of the last walk, and whether they are dynamic."""

    def __init__(self, structure: Structure, dynamic: bool):
        self.structure, self.dynamic = structure, dynamic


class WalkTables:
    """What a compiler has met: its compiled walks by the keys of their graphs, and structures by form."""

    def __init__(self) -> None:
        self.walks = Cache("captured walks", 512)
        self.forms = Cache("structures of walks", 64)

    def structures(self) -> list[Structure]:
        """The structures that were met."""
        tables = self.forms.young_entries, self.forms.old_entries
        found = [x for table in tables for x in table.values() if isinstance(x, KnownStructure)]
        return [x.structure for x in found]


_default_tables = WalkTables()
_tables: dict[tuple[int, object], tuple[Callable[[], object], WalkTables]] = {}
"""The tables of compiler functions, by identity; each goes with its function, or the object of its method."""
_NOT_CAPTURED = object()


def tables_of(compiler_fn: Any) -> WalkTables:
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
        tables.forms.clear()
    counters.clear()


class WalkCompiler:
    """Runs walks by captured programs, which `compiler_fn` compiles; the default cuts them into stages.

    With `dynamic`, sizes count as dynamic from the start.
    """

    runs_first_walk: ClassVar[bool] = False
    """Whether the default compiler also compiles a walk that was not met before; tests set it."""

    def __init__(self, compiler_fn: Callable[[Any], Any] | None = None, dynamic: bool = False):
        if compiler_fn is not None and not callable(compiler_fn):
            raise WalkCompilerError(
                "enable: compiler_fn must be a function of a captured program; got "
                f"{type_name(compiler_fn)}",
                fix="Pass a function, or nothing for the default compiler.",
            )
        self.compiler_fn, self.dynamic = compiler_fn, bool(dynamic)
        name = getattr(compiler_fn, "__name__", None) or type(compiler_fn).__name__
        self.name = "default" if compiler_fn is None else name
        self.levels, self.tables = logs.current_levels(), tables_of(compiler_fn)

    def __call__(self, walk: Walk, roots: Roots) -> None:
        """Runs a walk from its roots."""
        is_traced = current_builder.get() is not None or type(current_recording()) is not Recording
        graph = None if is_traced or walk.detects_anomalies else read_graph(walk, roots)
        if graph is None:
            walk.visit_from(roots)
            return
        key = contextual_key((walk.plain, walk.create_graph, x64_enabled(), graph.key))
        token = in_region.set(True)
        try:
            compiled: Any = self.tables.walks.get(key)
            is_new = compiled is None
            if is_new:
                try:
                    compiled = self.capture(walk, graph, [edge for edge, _ in roots])
                except NotCapturedError:
                    compiled = _NOT_CAPTURED
                    self.levels.log_not_captured(graph.nodes)
                self.tables.walks.put(key, compiled)
            if compiled is _NOT_CAPTURED:
                del graph
                walk.visit_from(roots)
                return
            counters.add(self.name, **({"misses": 1} if is_new else {"hits": 1}))
            if compiled.function is not None:
                WalkRun(walk, graph, compiled.capture).run_function(graph, compiled.function)
            elif not walk.plain or (is_new and not self.runs_first_walk):
                # Pullbacks that are differentiated are operations with nodes of their own.
                del graph  # It holds all that the nodes saved.
                walk.visit_from(roots)
            else:
                stages = compiled.stages or self.cut(compiled)
                WalkRun(walk, graph, compiled.capture).run_stages(graph, stages)
        finally:
            in_region.reset(token)

    def cut(self, compiled: CompiledWalk) -> Stages:
        """The stages of a captured walk."""
        capture = compiled.capture
        compiled.stages = cut_into_stages(capture.program, capture.calls)
        counters.add(self.name, compiles=1, stages=compiled.stages.compiled)
        return compiled.stages

    def capture(self, walk: Walk, graph: WalkGraph, edges: Sequence[GradientEdge]) -> CompiledWalk:
        """The compiled walk of a graph that was not met before."""
        structure = structure_of(graph.key, graph.marks, graph.firsts)
        form = contextual_key((walk.plain, walk.create_graph, x64_enabled(), structure.form))
        known: KnownStructure | None = self.tables.forms.get(form)
        is_captured = known is None or not known.dynamic or known.structure.sizes == structure.sizes
        dynamic = self.dynamic
        if known is not None:
            changed = structure.changes_from(known.structure)
            dynamic = known.dynamic or bool(changed)
            if changed and not known.dynamic:
                self.levels.log_sizes(graph.nodes, changed)
        else:
            self.levels.log_miss(graph.nodes, structure, self.tables.structures())
        capture = CapturingWalk(walk, graph).capture(edges, structure.sizes if dynamic else ())
        if is_captured:
            counters.add(self.name, captures=1)
            logs.warn_of_captures(self.name, graph.nodes, structure)
            self.levels.log_program(capture.program)
        compiled = CompiledWalk(capture, self.compile(capture))
        self.tables.forms.put(form, KnownStructure(structure, dynamic))
        return compiled

    def compile(self, capture: Capture) -> Compiled | None:
        """What the compiler function makes of a captured program."""
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
