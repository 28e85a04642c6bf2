"""Conversions of traced arrays to values of Python and NumPy, and to the text that `print` shows."""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import numpy as np

from functx import ops
from functx.core.backend import backend
from functx.core.builder import Builder
from functx.core.concretization import (
    check_not_differentiated,
    concretize,
    explored_outcome,
    explores,
    is_concrete_literal,
)
from functx.core.context import ContextValue
from functx.core.errors import (
    ArgumentError,
    CapturedWriteError,
    ConcretizationError,
    ExploredNumberError,
    ForeignCodeError,
    ShapeError,
)
from functx.core.functionalization import functionalized_atom
from functx.core.named_axes import AxisNames
from functx.core.program import Atom, Equation, Literal, Program, Var, subprograms
from functx.core.rewriting import cached_rewrite
from functx.core.tracer import Tracer, current_builder
from functx.core.typing import DTypeLike, Index, NumPyArray
from functx.numpy import indexing
from functx.transforms.batching import Batch
from functx.transforms.call_primitive import Call

_INDEX_FIX = (
    "Loop with functx.lax.fori_loop; index functx.numpy.stack(a_list), or choose with "
    "functx.lax.switch; for an argument that decides shapes, use static_argnums."
)
_BOOL_FIX = (
    "Choose between values with functx.numpy.where or functx.lax.cond, loop with functx.lax.while_loop, "
    "and combine conditions with &, | and ~ in place of `and`, `or`, `not` and `0 < x < 1`; or let "
    "functx.explore (jit and vmap with explore=True) make these of the Python code; for an argument that "
    "is not an array, use static_argnums."
)
_FLOAT_FIX = (
    "Keep the array, which computes like a number, with functx.numpy in place of math; for an "
    "argument that is not an array, use static_argnums."
)


def _concrete_scalar(self: Tracer, requested_by: str, fix: str = "") -> NumPyArray:
    if self.size != 1:
        raise ShapeError(
            f"{requested_by}: the array must have one element; got {self.atom.aval!r}",
            fix="For truth, reduce it with .any() or .all()." if fix in ("", _BOOL_FIX) else fix,
        )
    try:
        return concretize(self, requested_by).reshape(())[()]
    except ConcretizationError as error:
        error.fix = fix or error.fix
        if explores(self):
            raise _explored_number_error(error) from None
        raise


def _explored_number_error(error: ConcretizationError) -> ExploredNumberError:
    """The error for a number of Python that has more outcomes than a boolean."""
    return ExploredNumberError(
        error.problem,
        "functx.explore follows the outcomes of booleans, not those of numbers, shapes and indices",
        fix="Compute with the array itself; count with `while i < n` in place of range(n), index "
        "functx.numpy.stack(a_list), and pass what decides shapes as a static argument.",
    )


def _bool(self: Tracer) -> bool:
    outcome = explored_outcome(self) if self.size == 1 else None
    if outcome is not None:
        return outcome
    from functx.core.source_info import LIST_SEARCH_FIX, list_search, user_source

    search = list_search(user_source(2))
    if search:
        fix = f"{LIST_SEARCH_FIX} For numbers, functx.explore follows the comparisons."
        return bool(_concrete_scalar(self, f"bool() of each == of `{search}`", fix))
    return bool(_concrete_scalar(self, _requesting_keyword(), _BOOL_FIX))


def _int(self: Tracer) -> int:
    if self.dtype == np.bool_:
        return int(_bool(self))
    return int(_concrete_scalar(self, "int()"))


def _index(self: Tracer) -> int:
    if self.dtype == np.bool_ and explores(self):
        return int(_bool(self))
    if self.dtype.kind not in "iu":
        raise ArgumentError(f"an index must be an integer; got {self.atom.aval!r}")
    return operator.index(_concrete_scalar(self, "an index or a count", _INDEX_FIX))


def _to_concrete_value(self: Tracer) -> Any:
    """The integer or boolean that the caller of a transform gave, for functions of JAX; None for other values."""
    if self.ndim or self.dtype.kind not in "iub" or explores(self):
        return None
    builder, atom = functionalized_atom(self.builder, self.atom)
    if type(atom) is Var:
        value = builder.values.get(atom)
    else:
        value = atom.value if is_concrete_literal(atom) else None
    return value.to_concrete_value() if type(value) is Tracer else backend.concrete_or_none(value)


def _check_not_assigned(self: Tracer) -> None:
    """Raise if the value is needed for an assignment to an element of a NumPy array."""
    from functx.core.source_info import assigned_container, user_source

    source = user_source(3)
    name = assigned_container(source)
    if name is not None:
        array = f"`{name}`" if name else "the array"
        target = f"the NumPy array {array}" if name else "an array of NumPy's"
        raise CapturedWriteError(
            f"{name or 'x'}[...] =: a NumPy array must not be written to with a traced value; got "
            f"{self.atom.aval!r} of {self.builder.owner} for {target}",
            fix=f"Make {array} inside the function with functx.numpy (functx.numpy.zeros in place of "
            f"numpy.zeros), pass it as an argument, or write to a copy, "
            f"functx.numpy.array({name or 'x'}).",
            source=source,
        )


def _float(self: Tracer) -> float:
    _check_not_assigned(self)
    check_not_differentiated(self, "float()")
    return float(_concrete_scalar(self, "float()", _FLOAT_FIX))


def _complex(self: Tracer) -> complex:
    _check_not_assigned(self)
    check_not_differentiated(self, "complex()")
    return complex(_concrete_scalar(self, "complex()"))


def _format(self: Tracer, spec: str) -> str:
    return format_tracer(self, spec) if spec else repr(self)


def _item(self: Tracer, *args: Index) -> Any:
    """The one element as a Python number; in an exploring trace as a traced number."""
    element = self if not args else indexing.getitem(self, args[0] if len(args) == 1 else args)
    if element.size == 1 and explores(element):
        number = element.reshape(())
        return number
    check_not_differentiated(self, ".item()")
    return _concrete_scalar(element, ".item()", _FLOAT_FIX).item()


def _tolist(self: Tracer) -> complex | list[Any]:
    """The elements as nested lists of Python numbers."""
    check_not_differentiated(self, ".tolist()")
    return concretize(self, ".tolist()").tolist()


def _array(self: Tracer, dtype: DTypeLike = None, copy: bool | None = None) -> NumPyArray:
    _check_not_assigned(self)
    check_not_differentiated(self, "numpy.asarray()")
    try:
        return np.array(concretize(self, "numpy.asarray()"), dtype)
    except ConcretizationError as error:
        raise ForeignCodeError(
            f"NumPy needs the value of an array; got {self.atom.aval!r}, traced by {self.builder.owner}",
            *error.details,
            fix="Use functx.numpy in place of NumPy, and functx.random in place of numpy.random; to index "
            "a NumPy table with a traced value, functx.numpy.asarray(table)[i].",
        ) from None


def _requesting_keyword() -> str:
    """The keyword of the user's code that needs a truth value: `if`, `and`, ...; or `bool()`."""
    from functx.core.source_info import line_text, user_source

    words = line_text(user_source(3)).split()
    if words and words[0] in ("if", "elif", "while", "assert"):
        return f"`{words[0]}`"
    keywords = [word for word in ("and", "or", "not", "if") if word in words]
    return f"`{keywords[0]}`" if len(keywords) == 1 else "bool()"


def _hash(self: Tracer) -> int:
    """Raises ConcretizationError: a traced array has no value to hash."""
    raise ConcretizationError(
        f"hash() needs the value of an array, and arrays are not hashable; got {self.atom.aval!r} of "
        f"{self.builder.owner}",
        fix="Index functx.numpy.stack of the values, choose with functx.lax.switch, or look it up by an "
        "argument that is static (static_argnums).",
    )


class TracerValue(NamedTuple):
    """A value with a leading axis for each of `batch_builders`, the traces of enclosing `vmap`s.

    The outermost comes first.
    """

    value: Any
    batch_builders: tuple[Builder, ...] = ()


def tracer_value(tracer: Tracer) -> TracerValue | None:
    """The value of a traced array for all elements of a batch; None if it is not known.

    It is computed without appending to a program, and without running effects or callbacks.
    """
    # A print must not fail: the program raises the same error when it runs.
    try:
        return _evaluate_atom(tracer.builder, tracer.atom) if tracer.builder.is_open else None
    except Exception:
        return None


def tracer_repr(tracer: Tracer) -> str:
    """The text of `print` and `repr`: `Traced<f32[3]> in grad(loss) with value [1. 2. 3.]`."""
    plain = tracer.describe()
    found = tracer_value(tracer)
    if found is None:
        return plain
    text = str(found.value)
    sizes = " x ".join([str(b.axis.size) for b in found.batch_builders])
    label = f"{sizes} lanes" if sizes else "value"
    return f"{plain} with {label}{chr(10) if chr(10) in text else ' '}{text}"


def format_tracer(tracer: Tracer, spec: str) -> str:
    """The text in an f-string: `Traced<1.500>`, or the type if the value is not known."""
    found = tracer_value(tracer)
    if found is None:
        return f"Traced<{tracer.atom.aval!r}>"
    value = np.asarray(found.value)

    def element(x: Any) -> str:
        return format(x.item(), spec)

    text = np.array2string(value, formatter={"all": element}) if value.ndim else element(value)
    return f"Traced<{text}>"


def _evaluate_atom(builder: Builder, atom: Atom) -> TracerValue | None:
    builder, atom = functionalized_atom(builder, atom)
    memo = builder.printed_values
    needed: set[Var] = set()
    positions: set[int] = set()
    pending = [atom]
    while pending:
        a = pending.pop()
        if type(a) is Literal or a in memo or a in needed:
            continue
        needed.add(a)  # type: ignore[arg-type]
        position = builder.producer(a)
        if position is not None:
            if not _is_pure(eqn := builder.equations[position]):
                return None
            positions.add(position)
            pending += eqn.inputs
            continue
        found = _input_value(builder, a)
        if found is None:
            return None
        memo[a] = found
    for position in sorted(positions):
        eqn = builder.equations[position]
        memo.update(zip(eqn.outputs, _output_values(builder, eqn), strict=True))
    return _read_value(memo, atom)


def _read_value(memo: dict[Atom, TracerValue], atom: Atom) -> TracerValue:
    if type(atom) is Literal:
        return TracerValue(np.asarray(atom.value, atom.aval.dtype)[()])
    return memo[atom]


def _is_pure(eqn: Equation) -> bool:
    """Whether an equation may be computed again: it has no effects and calls no Python code."""
    if eqn.primitive.effects or isinstance(eqn.primitive, ops.HostPrimitive):
        return False
    return all(_is_pure(each) for sub in subprograms(eqn.primitive) for each in sub.equations)


def _input_value(builder: Builder, var: Var) -> TracerValue | None:
    """The value of an input or captured value; None if it is not known."""
    source, dim = builder.batched_inputs.get(var, (None, None))
    if source is None:
        source = builder.values.get(var)
    if source is None:
        source = builder.captured_value(var)
    if type(source) is Tracer:
        found = _evaluate_atom(source.builder, source.atom)
    else:
        source = backend.concrete_or_none(source)
        found = None if source is None else TracerValue(np.asarray(source))
    if found is None:
        return None
    value, batches = found
    # Python numbers, and 64-bit values in 32-bit mode, take the dtype of the trace.
    value = np.asarray(value, var.aval.dtype)
    if dim is None:
        return TracerValue(value, batches)
    return TracerValue(np.moveaxis(value, len(batches) + dim, len(batches)), (*batches, builder))


def _output_values(builder: Builder, eqn: Equation) -> list[TracerValue]:
    """The outputs of an equation for all elements of the batches of its operands."""
    primitive = eqn.primitive
    operands = {a: _read_value(builder.printed_values, a) for a in eqn.inputs}
    batching = {b for x in operands.values() for b in x.batch_builders}
    batches: tuple[Builder, ...] = ()
    around: Builder | None = builder
    while around is not None:
        if around in batching or (
            around.batched_inputs and around.axis.name in primitive.named_axes
        ):
            batches = around, *batches
        around = around.parent
    if batches:
        inputs = [a for a in operands if type(a) is Var]
        args = [operands[a].value for a in inputs]
        program = Program(primitive.name, inputs, [eqn.replace(source=None)], eqn.outputs)
        for each in reversed(batches):
            in_dims = tuple([0 if each in operands[a].batch_builders else None for a in inputs])
            names = AxisNames(each.axis.name, each.axis.mesh_axes)
            batch = Batch(each.axis.size, in_dims, (0,) * len(eqn.outputs), names=names)
            program = cached_rewrite(batch, program)
        primitive = Call(program)
    else:
        args = [operands[a].value for a in eqn.inputs]
    with ContextValue(current_builder, None):
        outs = backend.evaluate_eagerly(primitive, args)
    if not primitive.multiple_results:
        outs = [outs]
    return [TracerValue(np.asarray(out), batches) for out in outs]


for _name, _fun in {
    "__bool__": _bool,
    "__int__": _int,
    "__index__": _index,
    "__float__": _float,
    "__complex__": _complex,
    "__format__": _format,
    "__hash__": _hash,
    "__array__": _array,
    "to_concrete_value": _to_concrete_value,
    "item": _item,
    "tolist": _tolist,
    "__repr__": tracer_repr,
}.items():
    setattr(Tracer, _name, _fun)
