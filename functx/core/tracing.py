"""How a program is made: `trace` runs a function on tracers, `bind` appends an equation."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from importlib import import_module
from sys import _getframe
from threading import Lock
from typing import TYPE_CHECKING, Any

import jax.core
import numpy as np

from functx.core.errors import ArgumentError, EscapedTracerError, FunctxError, short_repr, type_name
from functx.core.ndarray import HOST_ARRAY_TYPES, WeakNdarray
from functx.core.program import Atom, Equation, Literal, Program, Var, dce_equations, scalar_literal
from functx.core.source_info import (
    FUNCTX_OR_JAX,
    USER_CODE,
    Source,
    describe_source,
    file_owner,
    frame_source,
)
from functx.core.types import (
    SHORT_NAMES,
    DType,
    Shape,
    ShapedArray,
    canonical_dtype,
    narrow_dtype,
    x64_enabled,
)

if TYPE_CHECKING:
    from functx.core.primitive import Primitive


class Tracer(jax.core.Tracer):  # type: ignore[type-arg]
    """A traced array: a variable (or a literal) and the builder that owns it.

    It is a tracer of JAX's as well, so that JAX code takes it. `aval` is its type in JAX's
    terms; in functx's own it is that of `atom`.
    """

    __slots__ = ("atom", "builder")

    def __init__(self, atom: Atom, builder: Builder):
        self.atom = atom
        self.builder = builder

    @property
    def aval(self) -> Any:  # type: ignore[override]
        return backend.jax_aval(self.atom.aval)

    @property
    def _trace(self) -> Any:  # type: ignore[override]
        if not self.builder.is_open:
            check_not_escaped(self, None)
        return backend.jax_trace

    @property
    def _line_info(self) -> Any:  # type: ignore[override]
        # JAX asks for this where it says that a value has escaped.
        check_not_escaped(self, current_builder.innermost())

    @property
    def shape(self) -> Shape:
        return self.atom.aval.shape

    @property
    def dtype(self) -> DType:
        return self.atom.aval.dtype

    @property
    def ndim(self) -> int:
        return self.atom.aval.ndim

    @property
    def size(self) -> int:
        return self.atom.aval.size

    @property
    def weak_type(self) -> bool:
        return self.atom.aval.weak_type

    def describe(self) -> str:
        """`Traced<f32[3]> in grad(loss)`: the type, and the transform that traces it."""
        ended = "" if self.builder.is_open else ", which has ended"
        return f"Traced<{self.atom.aval!r}> in {self.builder.owner}{ended}"

    __repr__ = describe

    __hash__ = None  # type: ignore[assignment]

    def __copy__(self) -> Tracer:
        return self

    def __deepcopy__(self, memo: Any) -> Tracer:
        return self


class PRNGKeyTracer(jax.core.Tracer):  # type: ignore[type-arg]
    """JAX's typed keys inside a trace: to JAX of the type `aval`, in the program their `words`."""

    __slots__ = ("key_data",)

    def __init__(self, words: Tracer, aval: Any):
        self.key_data = words
        self.aval = aval

    @property
    def _trace(self) -> Any:  # type: ignore[override]
        return self.key_data._trace


def is_jax_tracer(x: Any) -> bool:
    """Whether `x` belongs to a trace of JAX's own."""
    return isinstance(x, jax.core.Tracer) and type(x) is not Tracer and type(x) is not PRNGKeyTracer


class Builder:
    """A program in the making.

    `kind` is the transform or function it is made for. `values` holds the concrete values
    of inputs, where there are any, so that Python control flow can be decided. `mapped` holds
    the whole arrays, and the dimensions, of which inputs are one place along `axis`; `shown`
    remembers what was printed.
    """

    is_linear = False
    """Whether equations on tangents must be apart from those on values, since they are transposed."""

    def __init__(self, name: str = "f", kind: str = "trace", parent: Builder | None = None):
        self.name = name
        self.kind = kind
        self.parent = parent
        self.inputs: list[Var] = []
        self.equations: list[Equation] = []
        self.captures: dict[Any, tuple[Var, Any]] = {}
        self.imported_views: dict[Any, Atom] | None = None
        self.layouts: dict[Any, tuple[int, ...] | None] = {}
        self.memory: dict[Any, Any] = {}
        self.made_by_jax: set[Atom] = set()
        self.layout_dependent = False
        self.values: dict[Var, Any] = {}
        self.batched_inputs: dict[Var, tuple[Any, int | None]] = {}
        self.axis: Any = None
        self.printed_values: dict[Any, Any] = {}
        self.differentiated: frozenset[Var] = frozenset()
        self.in_names: Any = None
        self.source: Source | None = None if parent is None else parent.source
        self.is_open = True
        self.writes = False
        self.has_copies = False
        self.functionalizer: Any = None
        self._producers: dict[Var, int] = {}
        self._indexed = 0
        self._followed = 0

    def producer(self, var: Any) -> int | None:
        """The position of the equation that defines `var`; None for an input."""
        for i in range(self._indexed, len(self.equations)):
            for v in self.equations[i].outputs:
                self._producers[v] = i
        self._indexed = len(self.equations)
        return self._producers.get(var)

    def mark_made_by_jax(self, atom: Atom) -> None:
        """Remember that JAX made `atom`, so that nothing is written to it."""
        if type(atom) is Var:
            self.made_by_jax.add(atom)

    def depends_on_jax(self, atom: Atom) -> bool:
        """Whether JAX made `atom`, or something that it was computed from."""
        made = self.made_by_jax
        if not made:
            return False
        for i in range(self._followed, len(self.equations)):
            if not made.isdisjoint(self.equations[i].inputs):
                made.update(self.equations[i].outputs)
        self._followed = len(self.equations)
        return atom in made

    @property
    def owner(self) -> str:
        """`grad(loss)`: what the values of this builder belong to, as messages say it."""
        return f"{self.kind}({self.name})"

    def add_input(self, aval: ShapedArray) -> Tracer:
        var = Var(aval)
        self.inputs.append(var)
        return Tracer(var, self)

    def atom(self, x: Any) -> Atom:
        """The atom of this program that stands for `x`, captured as an input if need be."""
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
        if type(x) is PRNGKeyTracer:
            return self.atom(x.key_data)
        if isinstance(x, jax.core.Tracer) and backend.inside_jax_trace():
            raise InnerJaxTrace
        return self.capture(id(x), x, aval_of(x))

    def tracer(self, x: Any) -> Tracer:
        """`x` as a value of this program."""
        return Tracer(self.atom(x), self)

    def import_view(self, x: Tracer) -> Atom:
        """The atom that stands for `x` from outside: what it is a view of is captured, and viewed here."""
        from functx.core.functionalization import view_base

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

    def captured_value(self, atom: Atom) -> Any:
        """The value from outside that the input `atom` stands for; None for another input."""
        return next((x for var, x in self.captures.values() if var is atom), None)

    def capture(self, key: Any, value: Any, aval: ShapedArray) -> Var:
        found = self.captures.get(key)
        if found is None:
            found = self.captures[key] = Var(aval), value
        return found[0]

    def append(self, primitive: Primitive, args: Sequence[Any]) -> Any:
        """Append the equation `primitive(*args)`; its output as a tracer, or a list of them."""
        # Loops, since a comprehension is a call.
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
        if primitive.multiple_results:
            variables = [Var(aval) for aval in outs]
            self.equations.append(Equation(primitive, inputs, variables, source))
            return [Tracer(v, self) for v in variables]
        var = Var(outs[0])
        self.equations.append(Equation(primitive, inputs, [var], source))
        return Tracer(var, self)

    def copy_equation(self, eqn: Equation, args: Sequence[Any]) -> list[Tracer]:
        """Append `eqn` on `args` of the types that it already has; no rule is asked."""
        inputs: list[Atom] = [
            x.atom if type(x) is Tracer and x.builder is self else self.atom(x) for x in args
        ]
        outputs = [Var(v.aval) for v in eqn.outputs]
        self.equations.append(Equation(eqn.primitive, inputs, outputs, self.source or eqn.source))
        return [Tracer(v, self) for v in outputs]

    def inline(self, program: Program, args: Sequence[Any]) -> list[Tracer]:
        """Append a copy of `program` applied to `args`; its outputs."""
        if program.has_captures:
            program, args = hoist_captures_into_args(program, args)
        env: dict[Any, Atom] = {v: self.atom(x) for v, x in zip(program.inputs, args, strict=True)}
        equations = self.equations
        source = self.source
        self.writes = self.writes or program.writes
        for eqn in program.equations:
            outputs = []
            for v in eqn.outputs:
                env[v] = new = Var(v.aval)
                outputs.append(new)
            inputs = [env[a] if type(a) is Var else a for a in eqn.inputs]
            equations.append(Equation(eqn.primitive, inputs, outputs, source or eqn.source))
        return [Tracer(env[a] if type(a) is Var else a, self) for a in program.outputs]

    def finish(self, outputs: Sequence[Any], **names: Any) -> tuple[Program, list[Any]]:
        """The finished program, and the values it captured, which follow its own inputs."""
        atoms = [self.atom(x) for x in outputs]
        captured = list(self.captures.values())
        inputs = [*self.inputs, *(var for var, _ in captured)]
        equations = self.equations
        if self.has_copies and not self.writes:
            equations, atoms = elide_copies(equations, atoms)
        program = Program(self.name, inputs, dce_equations(equations, atoms), atoms, **names)
        program.in_names = self.in_names
        self.is_open = False
        if program_checks.enabled:
            from functx.core.checking import check_program

            check_program(program)
        return program, [value for _, value in captured]


def elide_copies(
    equations: Sequence[Equation], outputs: Sequence[Atom]
) -> tuple[list[Equation], list[Atom]]:
    """Equations and outputs of a program in which nothing is written, so nothing needs a copy."""
    same: dict[Atom, Atom] = {}
    kept = []
    for eqn in equations:
        if eqn.primitive.is_copy:
            same[eqn.outputs[0]] = same.get(eqn.inputs[0], eqn.inputs[0])
        elif any(a in same for a in eqn.inputs):
            kept.append(eqn.replace(inputs=[same.get(a, a) for a in eqn.inputs]))
        else:
            kept.append(eqn)
    return kept, [same.get(a, a) for a in outputs]


def hoist_captures_into_args(program: Program, args: Sequence[Any]) -> tuple[Program, list[Any]]:
    """`program` with its captured values as inputs after `args`, and the values of all inputs."""
    from functx.core.program_editing import hoist_captures

    program, captured = hoist_captures(program)
    return program, [*args, *captured]


class program_checks:  # noqa: N801 - a switch, set through `functx.config`
    """Whether every program made is checked for scope and types."""

    enabled = False


class LinearBuilder(Builder):
    """A builder that takes only equations on its own variables; others go to its parent."""

    is_linear = True

    def append(self, primitive: Primitive, args: Sequence[Any]) -> Any:
        if self.owns_any(args):
            return super().append(primitive, args)
        with self.in_parent() as builder:
            return builder.append(primitive, args)

    def copy_equation(self, eqn: Equation, args: Sequence[Any]) -> list[Tracer]:
        if self.owns_any(args):
            return super().copy_equation(eqn, args)
        with self.in_parent() as builder:
            return builder.copy_equation(eqn, args)

    def inline(self, program: Program, args: Sequence[Any]) -> list[Tracer]:
        if program.has_captures:
            program, args = hoist_captures_into_args(program, args)
        env: dict[Any, Any] = dict(zip(program.inputs, args, strict=True))

        def read(a: Any) -> Any:
            return env[a] if type(a) is Var else Tracer(a, self)

        for eqn in program.equations:
            outs = self.copy_equation(eqn, [read(a) for a in eqn.inputs])
            env.update(zip(eqn.outputs, outs, strict=True))
        return [read(a) for a in program.outputs]

    def owns_any(self, args: Sequence[Any]) -> bool:
        for x in args:
            if type(x) is Tracer and x.builder is self and type(x.atom) is Var:
                return True
        return False

    @contextmanager
    def in_parent(self) -> Iterator[Builder]:
        """The parent, at work on what this builder is at work on."""
        parent = self.parent
        assert parent is not None
        before = parent.source
        parent.source = self.source
        try:
            yield parent
        finally:
            parent.source = before


_current_builder: ContextVar[Builder | None] = ContextVar("current_builder", default=None)
_get_current_builder = _current_builder.get


class _CurrentBuilder:
    """The builder at work in this context, if any; one that has ended counts no more.

    A task that was started inside a trace keeps its context when the trace has ended.
    """

    set, reset = _current_builder.set, _current_builder.reset

    def innermost(self) -> Builder | None:
        """The innermost builder that is open, whatever JAX traces inside of its trace."""
        builder = _get_current_builder()
        while builder is not None and not builder.is_open:
            builder = builder.parent
        return builder

    def get(self) -> Builder | None:
        """The innermost active builder; None inside a trace of JAX's own."""
        builder = self.innermost()
        return None if builder is None or backend.inside_jax_trace() else builder

    def require(self) -> Builder:
        """The innermost builder that is open, where something is being traced."""
        builder = self.innermost()
        assert builder is not None, "programs are rewritten inside a trace"
        return builder


current_builder = _CurrentBuilder()


class InnerJaxTrace(Exception):
    """An operation belongs to a trace of JAX that has begun inside of the builder's."""


def bind(primitive: Primitive, args: Sequence[Any]) -> Any:
    """Append `primitive(*args)` to the program being built; compute it when there is none.

    Inside a trace of JAX that has begun inside, JAX gets each operation on other values than
    those of the program: it may keep the result beyond this trace.
    """
    builder = _get_current_builder()
    if builder is None or not builder.is_open:
        builder = current_builder.innermost()
        if builder is None:
            check_no_escaped_tracers(args)
            return backend.evaluate(primitive, args)
    beside = not args or type(args[0]) is not Tracer or type(args[-1]) is not Tracer
    if (beside or primitive.is_context_dependent) and backend.inside_jax_trace():
        return backend.evaluate(primitive, args)
    try:
        return builder.append(primitive, args)
    except InnerJaxTrace:
        return backend.evaluate(primitive, args)


def _call_function(fun: Callable[..., Any], args: Sequence[Any]) -> Any:
    return fun(*args)


def _verify_before_compile(program: Program, args: Sequence[Any]) -> None:
    # Loaded when it is first needed: the checks need SciPy.
    import_module("functx.testing.verification").verify_before_compile(program, args)


class Backend:
    """How programs run, supplied by `functx.lowering` and `functx.interop`."""

    evaluate: Callable[[Primitive, Sequence[Any]], Any]
    """Compute one operation on concrete operands."""
    evaluate_eagerly: Callable[[Primitive, Sequence[Any]], Any]
    """As `evaluate`, whatever JAX may be tracing at the time."""
    run: Callable[[Any, Program, Sequence[Any]], list[Any]]
    """Run `rewrite(program)` on concrete operands, compiled once per structure."""
    outline_repeats: Callable[[Program], Program]
    """The program that transforms rewrite in place of a given one: its repeats as calls."""
    jax_aval: Callable[[ShapedArray], Any]
    """JAX's aval of the same type."""
    jax_trace: Any
    """The trace of JAX that traced values belong to."""
    call_traced: Callable[[Callable[..., Any], Sequence[Any]], Any] = staticmethod(_call_function)
    """A function called where operations of JAX become equations of the program being built."""
    outer_jax_trace: Callable[[], AbstractContextManager[None]]
    """A context in which the trace of JAX is the one that was current before functx traced."""
    inside_jax_trace: Callable[[], bool] = staticmethod(bool)
    """Whether JAX's own trace is active inside the innermost trace of functx."""
    aval_of_jax_array: Callable[[Any], ShapedArray | None]
    """The aval of an array of a type that the core does not know."""
    verify: Callable[[Program, Sequence[Any]], None] = staticmethod(_verify_before_compile)
    """Check a new program on its first arguments, where `functx.config.verify` asks for that."""
    concrete_or_none: Callable[[Any], Any]
    """A value as one that is known now; None for one that JAX is tracing."""
    jax_option: Callable[[str], Any]
    """The value of a switch of `functx.config` that is JAX's own."""
    set_jax_option: Callable[[str, Any], None]
    """Set a switch of `functx.config` that is JAX's own."""
    raw_key_data: Callable[[Any], Any]
    """The words of JAX's typed keys; anything else as it is."""
    axis_size: Callable[[Any], int | None]
    """The length of the axis of a name that JAX binds around this; None where it does not."""
    axis_names: Callable[[], Sequence[Any]]
    """The names of the axes that JAX maps over devices around this."""


backend = Backend()


@contextmanager
def eval_context() -> Iterator[None]:
    """No program is being made, by functx or by JAX on its behalf, whatever was before."""
    token = current_builder.set(None)
    try:
        with backend.outer_jax_trace():
            yield
    finally:
        current_builder.reset(token)


def infer_out_avals(
    primitive: Primitive, avals: tuple[ShapedArray, ...]
) -> tuple[ShapedArray, ...]:
    try:
        return primitive.infer_out_avals(avals)
    except FunctxError as error:
        if not error.details:
            error.add(f"in {primitive!r} on {', '.join(map(repr, avals))}")
        raise


def check_no_escaped_tracers(args: Sequence[Any]) -> None:
    """Raise for traced values whose traces are not on."""
    for x in args:
        if type(x) is Tracer:
            check_not_escaped(x, current_builder.innermost())


def check_not_escaped(x: Tracer, user: Builder | None) -> None:
    """Raise unless `x` belongs to a program that is being built around `user`."""
    owner, builder = x.builder, user
    while builder is not None and builder is not owner:
        builder = builder.parent
    if builder is owner and owner.is_open:
        return
    made = next((e.source for e in owner.equations if x.atom in e.outputs), None)
    where = f"made at {describe_source(made)}" if made else "an argument of the function"
    raise EscapedTracerError(
        f"a traced value must be used inside the function that made it; got {x.atom.aval!r} of "
        f"{owner.owner}, {'which has ended' if not owner.is_open else 'in another thread or trace'}",
        f"the value: {where}",
        fix="Return the value from the function (with has_aux=True beside a loss), "
        "instead of storing it outside.",
    )


_PYTHON_SCALARS: dict[type, str] = {
    bool: "bool",
    int: "int64",
    float: "float64",
    complex: "complex128",
}


def literal_of(x: Any) -> Literal | None:
    """The literal for a Python or NumPy scalar; None for anything else."""
    kind = type(x)
    if kind is Literal:
        return x  # type: ignore[no-any-return]
    name = _PYTHON_SCALARS.get(kind)
    if name is not None:
        return scalar_literal(x, canonical_dtype(name), kind is not bool, repr(x))
    if isinstance(x, np.generic):
        dtype = canonical_dtype(x.dtype)
        if dtype in SHORT_NAMES:
            value = x.item()
            return scalar_literal(value, dtype, False, repr(value))
    return None


def aval_of(x: Any) -> ShapedArray:
    """The abstract value of anything that can stand in a program.

    Raises ArgumentError for what is neither an array nor a number.
    """
    kind = type(x)
    if kind is Tracer:
        return x.atom.aval
    if kind is Literal or kind is Var:
        return x.aval
    if kind in HOST_ARRAY_TYPES:
        dtype = x.dtype
        if dtype.itemsize >= 8 and not x64_enabled():
            dtype = narrow_dtype(dtype)
        if dtype in SHORT_NAMES:
            return ShapedArray(x.shape, dtype, kind is WeakNdarray)
    else:
        aval = backend.aval_of_jax_array(x)
        if aval is not None:
            return aval
        literal = literal_of(x)
        if literal is not None:
            return literal.aval
        if isinstance(x, np.ndarray) and not isinstance(x, np.ma.MaskedArray):
            return aval_of(np.asarray(x))
    if kind is PRNGKeyTracer:
        return x.key_data.atom.aval
    raise ArgumentError(
        f"arguments must be arrays or numbers; got {type_name(x)} {short_repr(x)[:60]}",
        fix=_argument_fix(x),
    )


def _argument_fix(x: Any) -> str:
    """The cure for an argument that is neither an array nor a number."""
    if x is None:
        return "Give it a value, or leave it out: None stands for no array."
    if isinstance(x, np.ma.MaskedArray):
        return "Pass x.filled(value), or x.data and x.mask as two arrays."
    if hasattr(x, "dtype"):
        return "Convert it to an array of a dtype that functx has, in the machine's byte order."
    if isinstance(x, (list, tuple, dict, set, Iterator)):
        return "Make one array of it, as functx.numpy.array does of a list of numbers."
    return (
        "Compute with arrays and numbers only. An argument of a transform that is neither is made static "
        "(static_argnums of jit, functools.partial, a closure); a class that holds arrays is "
        "registered as a pytree (jax.tree_util.register_dataclass)."
    )


def trace(
    fun: Callable[..., Sequence[Any]],
    avals: Sequence[ShapedArray],
    *,
    name: str = "f",
    kind: str = "trace",
    values: Sequence[Any] | None = None,
    differentiated: Sequence[int] = (),
    in_names: Any = None,
    source: Source | None = None,
    from_roots: bool = False,
    layouts: Sequence[tuple[int, ...] | None] = (),
    mapped: tuple[Any, Sequence[tuple[Any, int | None]]] | None = None,
) -> tuple[Program, list[Any]]:
    """The program of `fun`, which takes and returns flat sequences, and what it captured.

    The captured values are the program's last inputs. `values` are concrete inputs, known
    to Python control flow; `differentiated` the positions that a derivative is taken in.
    Of a view from outside, `from_roots` captures what owns its memory. `layouts` are the
    strides of inputs that do not lie in row-major order. `mapped` is a named axis, with the
    array and the dimension of it that each input is one place of, None for one that all share,
    which is known too.
    """
    builder = Builder(name, kind, current_builder.innermost())
    builder.source = source or builder.source
    builder.in_names = in_names
    builder.imported_views = {} if from_roots else None
    tracers = [builder.add_input(aval) for aval in avals]
    builder.layouts.update(zip(builder.inputs, layouts, strict=False))
    if values is not None:
        builder.values.update(zip(builder.inputs, values, strict=True))
    if mapped is not None:
        builder.axis = mapped[0]
        pairs = [*zip(builder.inputs, mapped[1], strict=True)]
        builder.batched_inputs.update(pairs)
        builder.values.update([(v, x) for v, (x, dim) in pairs if dim is None])
    builder.differentiated = frozenset(builder.inputs[i] for i in differentiated)
    return run_and_finish(builder, fun, tracers)


def trace_closed(
    fun: Callable[..., Sequence[Any]], avals: Sequence[ShapedArray], **options: Any
) -> Program:
    """The program of `fun`, as `trace` makes it, but without inputs for captured values.

    An equation `captured` stands for each of the values (`functx.core.program_editing`).
    """
    program, captured = trace(fun, avals, **options)
    if not captured:
        return program
    from functx.core.program_editing import close_over

    return close_over(program, captured)


def run_and_finish(
    builder: Builder, fun: Callable[..., Sequence[Any]], tracers: Sequence[Tracer]
) -> tuple[Program, list[Any]]:
    """Run `fun` on `tracers` of `builder`, and finish its program."""
    token = current_builder.set(builder)
    _gc_throttle.begin()
    try:
        # A result may be of a trace of JAX around this one, which is captured while this one is current.
        return backend.call_traced(lambda *given: builder.finish(fun(*given)), tracers)
    finally:
        _gc_throttle.end()
        builder.is_open = False
        current_builder.reset(token)


class _GcThrottle:
    """Fewer searches for cyclic garbage while anything is traced.

    A trace makes objects by the thousand that stay, and no cycles; each search goes through them.
    """

    YOUNG = 100_000

    def __init__(self) -> None:
        self.traces, self.before, self.lock = 0, (0, 0, 0), Lock()

    def begin(self) -> None:
        with self.lock:
            if not self.traces:
                self.before = young, *older = gc.get_threshold()
                # At 0 there are no searches, and so it stays.
                if 0 < young < self.YOUNG:
                    gc.set_threshold(self.YOUNG, *older)
            self.traces += 1

    def end(self) -> None:
        with self.lock:
            self.traces -= 1
            if not self.traces:
                gc.set_threshold(*self.before)


_gc_throttle = _GcThrottle()
