"""`Builder`: the inputs and equations of a program that is being traced."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from sys import _getframe
from typing import TYPE_CHECKING, Any, Protocol

import jax.core
import numpy as np

from functx.core.backend import InnerJaxTrace, backend
from functx.core.captured_elements import CapturedElements
from functx.core.captured_state import CapturedState, state_inputs
from functx.core.config import program_checks
from functx.core.dead_code import dce_equations
from functx.core.errors import FunctxError
from functx.core.memory_layouts import elide_copies, mark_layout_owners, view_base
from functx.core.primitive import Primitive
from functx.core.program import Atom, Equation, InNames, Literal, Part, Program, Var
from functx.core.source_info import (
    FUNCTX_OR_JAX,
    USER_CODE,
    Source,
    file_owner,
    frame_source,
    named_scopes,
    scoped_source,
)
from functx.core.strides import MemoryOrder
from functx.core.tracer import (
    Tracer,
    aval_of,
    check_not_escaped,
    is_variable,
    literal_of,
    with_parents,
)
from functx.core.types import ShapedArray
from functx.core.typing import ArrayLike, Dim, Value
from functx.core.wrappers import WrapperOperand, is_wrapper

if TYPE_CHECKING:
    from functx.core.functionalization import IncrementalFunctionalizer
    from functx.core.masks import RuleMasks
    from functx.ops.gradient_stop import GradientStop


class Recognizer(Protocol):
    """Finds sums of second derivatives in a trace; see `transforms/laplacian_recognition.py`."""

    def follow(self, primitive: Primitive, inputs: Sequence[Atom], out: Tracer) -> None:
        """Called with each operation that is appended."""

    def replace_sums(
        self, equations: list[Equation], outputs: list[Atom]
    ) -> tuple[list[Equation], list[Atom]]:
        """The equations and outputs to finish the program with."""

    def emit_jets(self) -> None:
        """Called when the last equation is appended; may add others."""

    def note_rows(self, program: Program, outputs: Sequence[Atom]) -> None:
        """Called with the finished program, and its outputs before `replace_sums`."""


def _identity(x: object) -> Hashable:
    """The key of `x` among captured values; views of the same elements of a NumPy array are one value."""
    if type(x) is np.ndarray and x.base is not None:
        return x.__array_interface__["data"][0], x.shape, x.strides, x.dtype
    return id(x)


class Builder:
    """The inputs and equations of a program that is being traced.

    `kind` names the transform that traces the function `name`. `values` holds the known values of
    inputs, so that Python can branch on them. `batched_inputs` holds, for an input that is one element
    of a batch along `axis`, the whole batch and its dimension. `printed_values` is the memo of texts
    that `print` has shown. `explorer` is the exploration around this trace, and `explored_path` the run
    of it that this trace is, if any (`functx.transforms.explore`).
    """

    is_linear = False
    """Whether the program takes only equations on tangents, since it will be transposed."""
    recognizer: Recognizer | None = None
    """Optional: sees each appended operation of one output, and may change the finished program."""
    inputs_are_variables = False
    """Whether the inputs stand for Variables.

    Then those without dimensions are arrays, not numbers, and results of transforms can be written to.
    """

    def __init__(self, name: str = "f", kind: str = "trace", parent: Builder | None = None):
        self.name = name
        self.kind = kind
        self.parent = parent
        self.inputs: list[Var] = []
        self.equations: list[Equation] = []
        self.captures: dict[Any, tuple[Var, Any]] = {}
        self.elements: dict[Atom, CapturedElements] = {}
        self.imported_views: dict[Any, Atom] | None = None
        self.layouts: dict[Any, tuple[int, ...] | None] = {}
        self.memory: dict[Any, Any] = {}
        self.made_by_jax: set[Atom] = set()
        self.layout_reads: list[Tracer] = []
        self._row_major_until: int | None = 0
        self._has_repeats = False
        self.values: dict[Var, Any] = {}
        self.batched_inputs: dict[Var, tuple[ArrayLike, Dim]] = {}
        self.axis: Any = None
        self.printed_values: dict[Atom, Any] = {}
        self.differentiated: frozenset[Var] = frozenset()
        self.in_names: InNames = None
        self.part: Part | None = None
        self.source: Source | None = None if parent is None else parent.source
        self.is_open = True
        self.writes = self.carries_writes = self.returns_writes = False
        self.has_copies = self.keeps_copies = False
        self.functionalizer: IncrementalFunctionalizer | None = None
        self.rule_masks: RuleMasks | None = None
        self.gradient_stop: GradientStop | None = None
        self.restore_modes: Callable[[], None] | None = None
        self.explored_path: Any = None
        self.explorer: Any = None if parent is None else parent.explorer
        self._producers: dict[Atom, int] = {}
        self._indexed = 0
        self._followed = 0

    def with_same_inputs(self) -> Builder:
        """An empty builder that shares the inputs, captured values and known values of this one."""
        copy = Builder(self.name, self.kind, self.parent)
        copy.inputs, copy.captures, copy.values = self.inputs, self.captures, self.values
        copy.elements = self.elements
        copy.differentiated, copy.in_names = self.differentiated, self.in_names
        copy.batched_inputs, copy.axis = self.batched_inputs, self.axis
        copy.carries_writes = self.carries_writes
        copy._row_major_until = None if self._row_major_until is None else 0
        return copy

    def producer(self, var: Atom) -> int | None:
        """The position of the equation that defines `var`; None for an input."""
        for i in range(self._indexed, len(self.equations)):
            for v in self.equations[i].outputs:
                self._producers[v] = i
        self._indexed = len(self.equations)
        return self._producers.get(var)

    def defining_equation(self, var: Atom) -> Equation | None:
        """The equation that defines `var`; None for an input or a literal."""
        position = self.producer(var)
        return None if position is None else self.equations[position]

    def has_row_major_results(self) -> bool:
        """Whether all arrays computed here surely lie in row-major order: views, their bases may not."""
        if self._row_major_until is None:
            return False
        if not self._row_major_until and any(self.layouts.values()):
            self._row_major_until = None
            return False
        for eqn in self.equations[self._row_major_until :]:
            order = eqn.primitive.memory_order
            copies_repeats = self._has_repeats and order is MemoryOrder.COPIED
            if order is MemoryOrder.REARRANGED or copies_repeats:
                self._row_major_until = None
                return False
            self._has_repeats |= order is MemoryOrder.REPEATED
        self._row_major_until = len(self.equations)
        return self.parent is None or self.parent.has_row_major_results()

    def replace_equations(self, start: int, equations: Sequence[Equation]) -> None:
        """Replace the equations from `start` by others, which define the same variables and more."""
        self.equations[start:] = equations
        self._indexed = min(self._indexed, start)
        self._followed = min(self._followed, start)
        if self._row_major_until:
            self._row_major_until = min(self._row_major_until, start)
        self.functionalizer = None

    def mark_made_by_jax(self, atom: Atom) -> None:
        """Mark `atom` as an array made by JAX, which must not be written to."""
        if type(atom) is Var:
            self.made_by_jax.add(atom)

    def depends_on_jax(self, atom: Atom) -> bool:
        """Whether `atom` was made by JAX, or computed from a value that was."""
        made = self.made_by_jax
        if not made:
            return False
        for i in range(self._followed, len(self.equations)):
            if not made.isdisjoint(self.equations[i].inputs):
                made.update(self.equations[i].outputs)
        self._followed = len(self.equations)
        return atom in made

    def inputs_of(
        self, atom: Atom, follows: Callable[[Primitive], bool] = lambda primitive: True
    ) -> Iterator[Var]:
        """The inputs and captured values that `atom` is computed from, by operations that `follows` accepts."""
        seen: set[Atom] = set()
        pending = [atom]
        while pending:
            each = pending.pop()
            if type(each) is not Var or each in seen:
                continue
            seen.add(each)
            position = self.producer(each)
            if position is None:
                yield each
            elif follows(self.equations[position].primitive):
                pending += self.equations[position].inputs

    def depends_on_input(self, atom: Atom) -> bool:
        """Whether `atom` is an input or a captured Variable, or computed from one."""
        for var in self.inputs_of(atom):
            source = self.captured_value(var)
            if type(source) is Tracer:
                if source.builder.depends_on_input(source.atom):
                    return True
            elif source is None or is_variable(source):
                return True
        return False

    @property
    def owner(self) -> str:
        """`grad(loss)`: the transform and its function, for messages."""
        return f"{self.kind}({self.name})"

    def add_input(self, aval: ShapedArray) -> Tracer:
        var = Var(aval)
        self.inputs.append(var)
        return Tracer(var, self)

    def atom(self, x: object) -> Atom:
        """The atom of `x` in this program; a value from outside is captured as an input."""
        if type(x) is Tracer:
            if x.builder is self:
                return x.atom
            if type(x.atom) is Literal:
                return x.atom
            check_not_escaped(x, self)
            if self.imported_views is not None:
                return self.import_view(x)
            return self.capture(x.atom, x, x.atom.aval)
        literal = literal_of(x)
        if literal is not None:
            return literal
        if isinstance(x, jax.core.Tracer) and backend.inside_jax_trace():
            raise InnerJaxTrace
        if is_wrapper(x):
            raise WrapperOperand
        if isinstance(x, CapturedState) and (inputs := state_inputs.get()) is not None:
            parts = [b.part for b in with_parents(self) if b.part is not None]
            in_backward = bool(parts) and parts[0] in (Part.BACKWARD, Part.STAYS_BACKWARD)
            words = inputs.input_of(x, in_backward)
            if words is not None:
                return self.atom(words)
        return self.capture(_identity(x), x, aval_of(x))

    def tracer(self, x: object) -> Tracer:
        """`x` as a traced value of this program."""
        return Tracer(self.atom(x), self)

    def import_view(self, x: Tracer) -> Atom:
        """The atom of `x`, a view from outside: its base is captured, and the view is taken again here."""
        views = self.imported_views
        assert views is not None
        if x.atom not in views:
            position = x.builder.producer(x.atom)
            if position is None:
                outer = x.builder.captured_value(x.atom)
                if type(outer) is Tracer:
                    return self.import_view(outer)
                return self.capture(x.atom, x, x.atom.aval)
            eqn = x.builder.equations[position]
            base = view_base(x.builder, eqn)
            if base is None:
                return self.capture(x.atom, x, x.atom.aval)
            args = [Tracer(base, x.builder), *[Tracer(a, x.builder) for a in eqn.inputs[1:]]]
            views.update(
                zip(eqn.outputs, [y.atom for y in self.copy_equation(eqn, args)], strict=True)
            )
        return views[x.atom]

    def captured_value(self, atom: Atom) -> Value | None:
        """The captured value that the input `atom` stands for; None for any other input."""
        return next((x for var, x in self.captures.values() if var is atom), None)

    def capture(self, key: Hashable, value: object, aval: ShapedArray) -> Var:
        found = self.captures.get(key)
        if found is not None and found[0] in self.elements:
            var, array = found
            as_captured = self.elements[var].as_captured()
            if as_captured is not array:
                del self.elements[var]
                self.captures[object()] = var, as_captured
                found = None
        if found is None:
            found = self.captures[key] = Var(aval), value
            if isinstance(value, np.ndarray):
                if value.flags.writeable:
                    self.elements[found[0]] = CapturedElements(value)
                if not value.flags.c_contiguous:
                    self._row_major_until = None
        return found[0]

    def append(self, primitive: Primitive, args: Sequence[ArrayLike]) -> Any:
        """Append the equation `primitive(*args)`; its output as a tracer, or a list of them."""
        # A loop, since a comprehension costs a call.
        inputs: list[Atom] = []
        types = []
        for x in args:
            atom = x.atom if type(x) is Tracer and x.builder is self else self.atom(x)
            inputs.append(atom)
            types.append(atom.aval)
        avals = tuple(types)
        outs = primitive.out_avals_memo.get(avals) or infer_out_avals(primitive, avals)
        source = self.source
        if source is None:
            frame = _getframe(2)
            while (owner := file_owner[frame.f_code.co_filename]) is FUNCTX_OR_JAX and frame.f_back:
                frame = frame.f_back
            source = (frame.f_code, frame.f_lasti) if owner is USER_CODE else frame_source(frame)
            if scope := named_scopes.get():
                source = scoped_source(source, scope)
        if primitive.multiple_results:
            variables = [Var(aval) for aval in outs]
            self.equations.append(Equation(primitive, inputs, variables, source))
            return [Tracer(v, self) for v in variables]
        var = Var(outs[0])
        self.equations.append(Equation(primitive, inputs, [var], source))
        out = Tracer(var, self)
        if self.recognizer is not None:
            self.recognizer.follow(primitive, inputs, out)
        return out

    def copy_equation(self, eqn: Equation, args: Sequence[ArrayLike]) -> list[Tracer]:
        """Append `eqn` on other operands of the same types, without calling `abstract_eval`."""
        inputs: list[Atom] = [
            x.atom if type(x) is Tracer and x.builder is self else self.atom(x) for x in args
        ]
        source = self.source or eqn.source
        if len(eqn.outputs) == 1:
            # Without a comprehension, which costs a call.
            var = Var(eqn.outputs[0].aval)
            self.equations.append(Equation(eqn.primitive, inputs, [var], source, eqn.part))
            return [Tracer(var, self)]
        outputs = [Var(v.aval) for v in eqn.outputs]
        self.equations.append(Equation(eqn.primitive, inputs, outputs, source, eqn.part))
        return [Tracer(v, self) for v in outputs]

    def inline(self, program: Program, args: Sequence[ArrayLike]) -> list[Tracer]:
        """Append the equations of `program` on `args`; returns its outputs."""
        if program.has_captures:
            program, args = hoist_captures_into_args(program, args)
        env: dict[Atom, Atom] = {v: self.atom(x) for v, x in zip(program.inputs, args, strict=True)}
        equations = self.equations
        source = self.source
        self.writes = self.writes or program.writes
        for eqn in program.equations:
            outputs = []
            for v in eqn.outputs:
                env[v] = new = Var(v.aval)
                outputs.append(new)
            inputs = [env[a] if type(a) is Var else a for a in eqn.inputs]
            equations.append(
                Equation(eqn.primitive, inputs, outputs, source or eqn.source, eqn.part)
            )
        return [Tracer(env[a] if type(a) is Var else a, self) for a in program.outputs]

    def finish(self, outputs: Sequence[ArrayLike], **names: Any) -> tuple[Program, list[Any]]:
        """The program with these outputs, and the captured values, which its last inputs stand for."""
        traced_outputs = atoms = [self.atom(x) for x in outputs]
        if self.recognizer is not None:
            self.recognizer.emit_jets()
        if self.gradient_stop is not None:
            self.gradient_stop.apply()
        if self.writes and self.layout_reads and self.parent is not None:
            # The programs around lose the writes, but depend on the layouts that these saw.
            mark_layout_owners(*self.layout_reads)
        captured = [
            (var, self.elements[var].as_captured() if var in self.elements else x)
            for var, x in self.captures.values()
        ]
        inputs = [*self.inputs, *(var for var, _ in captured)]
        equations = self.equations
        if self.has_copies and not self.writes and not self.keeps_copies:
            equations, atoms = elide_copies(equations, atoms)
        if self.recognizer is not None:
            equations, atoms = self.recognizer.replace_sums(equations, atoms)
        program = Program(self.name, inputs, dce_equations(equations, atoms), atoms, **names)
        program.in_names = self.in_names
        if self.recognizer is not None:
            self.recognizer.note_rows(program, traced_outputs)
        self.is_open = False
        if program_checks.enabled:
            from functx.core.checking import check_program

            check_program(program)
        return program, [value for _, value in captured]


class LinearBuilder(Builder):
    """A builder of equations on its own variables; it appends all other equations to its parent."""

    is_linear = True

    def append(self, primitive: Primitive, args: Sequence[ArrayLike]) -> Any:
        if self.owns_any(args):
            return super().append(primitive, args)
        with self.in_parent() as builder:
            return builder.append(primitive, args)

    def copy_equation(self, eqn: Equation, args: Sequence[ArrayLike]) -> list[Tracer]:
        if self.owns_any(args):
            return super().copy_equation(eqn, args)
        with self.in_parent() as builder:
            return builder.copy_equation(eqn, args)

    def inline(self, program: Program, args: Sequence[ArrayLike]) -> list[Tracer]:
        if program.has_captures:
            program, args = hoist_captures_into_args(program, args)
        env: dict[Any, Any] = dict(zip(program.inputs, args, strict=True))

        def read(a: Atom) -> Tracer:
            return env[a] if type(a) is Var else Tracer(a, self)

        for eqn in program.equations:
            outs = self.copy_equation(eqn, [read(a) for a in eqn.inputs])
            env.update(zip(eqn.outputs, outs, strict=True))
        return [read(a) for a in program.outputs]

    def owns_any(self, args: Sequence[ArrayLike]) -> bool:
        for x in args:
            if type(x) is Tracer and x.builder is self and type(x.atom) is Var:
                return True
        return False

    @contextmanager
    def in_parent(self) -> Iterator[Builder]:
        """The parent, which gives equations the source that this builder gives them."""
        parent = self.parent
        assert parent is not None
        outer_source = parent.source
        parent.source = self.source
        try:
            yield parent
        finally:
            parent.source = outer_source


def infer_out_avals(
    primitive: Primitive, avals: tuple[ShapedArray, ...]
) -> tuple[ShapedArray, ...]:
    """The output types of `primitive`; errors of its rule also name the primitive and operands."""
    try:
        return primitive.infer_out_avals(avals)
    except FunctxError as error:
        if not error.details:
            error.add(f"in {primitive!r} on {', '.join(map(repr, avals))}")
        raise


def hoist_captures_into_args(
    program: Program, args: Sequence[ArrayLike]
) -> tuple[Program, list[Any]]:
    """`program` with its captured values as last inputs, and `args` followed by those values."""
    from functx.core.captures import hoist_captures

    program, captured = hoist_captures(program)
    return program, [*args, *captured]
