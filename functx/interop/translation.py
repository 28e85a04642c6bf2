"""Translation of jaxprs into programs; an equation without a translation becomes a `jax_call`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import jax
import numpy as np
from jax.extend.core import Literal, Var, find_top_trace, primitives
from jax.extend.core import Primitive as JaxPrimitive

from functx import ops
from functx.core.caches import Cache, clear_on_rule_change
from functx.core.checking import check_operands
from functx.core.effects import Effects
from functx.core.errors import (
    DTypeError,
    ForeignCodeError,
    FunctxError,
    MissingRuleError,
    ShapeError,
    TypedKeyError,
)
from functx.core.masks import (
    inexact_mask,
    linear_mask,
    replace_where,
    scatter_where,
    select_where,
    select_where_not,
)
from functx.core.primitive import Primitive
from functx.core.program import Literal as FunctxLiteral
from functx.core.program import Program
from functx.core.program_calls import apply_program
from functx.core.samples import f32, sample
from functx.core.tracer import PRNGKeyTracer, Tracer, aval_of
from functx.core.tracing import trace
from functx.core.tree import TreeDef
from functx.core.types import ShapedArray, jax_settings
from functx.core.typing import (
    Avals,
    Cotangents,
    Dim,
    Dims,
    Flags,
    Function,
    IRValue,
    IRValues,
    PyTree,
    Tangents,
    Value,
    Values,
)
from functx.interop.jaxpr_functions import (
    JaxOperation,  # noqa: F401 - the texts of calls name it
    JaxprFunction,
)
from functx.interop.jaxprs import (
    JaxprAtom,
    JaxprEqn,
    JaxprLike,
    aval_from_jax,
    aval_from_jax_or_none,
    closed_jaxpr,
    constant_array,
    jaxpr_of,
    literal_value,
)
from functx.lowering.jax_bridge import JaxAval, prng_key_type
from functx.ops.autodiff import refused
from functx.ops.families import Elementwise
from functx.ops.operands import batch_size
from functx.transforms.batching import add_axis
from functx.transforms.call_primitive import Call
from functx.transforms.control.body_tracing import is_linearizing

if TYPE_CHECKING:
    from functx.lowering.stablehlo_emitter import LoweringContext


TranslationRule = Function
Translated: TypeAlias = Value | Values
"""The output of a translation, or a list of outputs; or `NotImplemented`."""

TRANSLATION_RULES: dict[str, TranslationRule] = {}
"""The translations by name of the JAX primitive: `rule(eqn, *args)` returns the output or a list.

It returns `NotImplemented` for an equation that is left to JAX.
"""
KEY_AWARE_PRIMITIVES: set[str] = set()
"""The names of primitives whose rules take the words of typed keys."""

DIFFERENTIABLE_FORMS: dict[str, Callable[[JaxprFunction], Primitive]] = {}
"""By name of a JAX primitive: the function that makes an operation with the same values, which has derivatives."""

_JAX_NAMES = {p.name for p in vars(primitives).values() if isinstance(p, JaxPrimitive)}


@cache
def _classes_by_jax_name() -> dict[str, type[Primitive]]:
    return {
        cls.name: cls
        for cls in Primitive.registry.loaded()
        if cls.name in _JAX_NAMES and not cls.is_user_defined
    }


def class_for_jax(name: str) -> type[Primitive] | None:
    """The functx primitive that computes the same as the JAX primitive with this name, if there is one."""
    return Primitive.by_jax_primitive.get(name) or _classes_by_jax_name().get(name)


def register_translation(
    *names: str, keys: bool = False
) -> Callable[[TranslationRule], TranslationRule]:
    """Registers a function as the translation of the JAX primitives with these names."""

    def register(rule: TranslationRule) -> TranslationRule:
        TRANSLATION_RULES.update(dict.fromkeys(names, rule))
        if keys:
            KEY_AWARE_PRIMITIVES.update(names)
        return rule

    return register


class TranslatedJaxpr(NamedTuple):
    """The program of a jaxpr, and the captured arrays, which are its last inputs."""

    program: Program
    captured: list[Value]

    def __call__(self, args: Values) -> list[Value]:
        """The outputs on `args`, inlined into the program being traced."""
        return apply_program(self.program, [*args, *self.captured])

    def call_with_constants(self, args: Values) -> list[Value]:
        """The outputs on `args`, with the captured arrays as constants of the program."""
        return apply_program(self.program, [*args, *[dense_constant(x) for x in self.captured]])

    def bind_call(self, args: Values) -> list[Value]:
        """The outputs on `args`, as one `call`."""
        return Call(self.program)(*args, *self.captured)


_programs = Cache("from_jax", 2048)


def translate_jaxpr(closed: JaxprLike, avals: Avals, name: str = "") -> TranslatedJaxpr:
    """The program of a closed jaxpr on operands of `avals`, cached by the jaxpr object."""
    key = closed, tuple(avals), name, jax_settings()
    found: TranslatedJaxpr | None = _programs.get(key)
    if found is None:
        jaxpr, consts = closed.jaxpr, closed.consts

        def body(*args: Value) -> list[Value]:
            return inline_jaxpr(jaxpr, [constant_array(c) for c in consts], args)

        name = name or jaxpr.debug_info.func_name or "jax"
        program, captured = trace(body, avals, name=name, kind="from_jax")
        found = TranslatedJaxpr(program, captured)
        # Tracers of JAX do not outlive their trace.
        if not any(isinstance(x, jax.core.Tracer) for x in captured):
            _programs.put(key, found)
    return found


def translate_function(fun: Function, avals: Avals, name: str) -> TranslatedJaxpr:
    """The program of a JAX function that takes arrays of `avals` and returns a list of arrays."""
    return translate_jaxpr(jaxpr_of(fun, avals), avals, name)


def inline_jaxpr(jaxpr: JaxprLike, consts: Values, args: Values) -> list[Value]:
    """The outputs of an open jaxpr, its equations appended to the program being traced."""
    if not has_functx_types(jaxpr):
        # JAX makes unused tangents of integers, whose type functx does not have.
        jaxpr = jaxpr.replace(eqns=live_equations(jaxpr))
        if not has_functx_types(jaxpr):
            return bind_jaxpr(jaxpr, [*consts, *args])
    env: dict[JaxprAtom, Value] = dict(zip(jaxpr.constvars, consts, strict=True))
    env.update(zip(jaxpr.invars, args, strict=True))

    def read(atom: JaxprAtom) -> Any:
        return literal_value(atom) if isinstance(atom, Literal) else env[atom]

    for eqn in jaxpr.eqns:
        outs = translate_equation(eqn, [read(a) for a in eqn.invars])
        env.update(zip(eqn.outvars, outs, strict=True))
    return [read(a) for a in jaxpr.outvars]


def has_functx_types(jaxpr: JaxprLike) -> bool:
    """Whether functx has the type of every value in a jaxpr; it has none for references."""
    return all(aval_from_jax_or_none(v.aval) is not None for eqn in jaxpr.eqns for v in eqn.outvars)


def live_equations(jaxpr: JaxprLike) -> list[JaxprEqn]:
    """The equations of a jaxpr that have effects or outputs that are used."""
    needed = {a for a in jaxpr.outvars if isinstance(a, Var)}
    kept = []
    for eqn in reversed(jaxpr.eqns):
        if eqn.effects or not needed.isdisjoint(eqn.outvars):
            kept.append(eqn)
            needed.update([a for a in eqn.invars if isinstance(a, Var)])
    return kept[::-1]


def translate_equation(eqn: JaxprEqn, args: Values) -> Values:
    """The outputs of one equation of a jaxpr, bound in the program being traced."""
    name = eqn.primitive.name
    atoms = [*eqn.invars, *eqn.outvars]
    if name in KEY_AWARE_PRIMITIVES or all(isinstance(a.aval.dtype, np.dtype) for a in atoms):
        out = _apply_rule(name, eqn, args)
        if out is not NotImplemented:
            outs = out if isinstance(out, (list, tuple)) else [out]
            if _matches_types(outs, eqn.outvars):
                return outs
    return bind_jax_equation(eqn, args)


def _apply_rule(name: str, eqn: JaxprEqn, args: Values) -> list[Value]:
    rule, cls = TRANSLATION_RULES.get(name), class_for_jax(name)
    try:
        if rule is not None:
            return rule(eqn, *args)
        primitive = None if cls is None else make_primitive(cls, eqn.params)
        if primitive is None:
            return NotImplemented
        is_elementwise = isinstance(primitive, Elementwise)
        return primitive(*(broadcast_unit_dims(eqn, args) if is_elementwise else args))
    except (DTypeError, ShapeError):
        # For example a dtype that JAX's primitive takes and functx's does not.
        return NotImplemented


def make_primitive(cls: type[Primitive], params: dict[str, Any]) -> Primitive | None:
    """The instance of `cls` for an equation of JAX with parameters `params`; None leaves it to JAX.

    A class without `from_jax_params` has no parameters itself. Those of JAX's elementwise primitives
    state an accuracy or another dtype; only None asks for nothing.
    """
    from_jax_params = getattr(cls, "from_jax_params", None)
    if from_jax_params is not None:
        return from_jax_params(**params)  # type: ignore[no-any-return]
    return None if cls.fields or any(p is not None for p in params.values()) else cls()


def broadcast_unit_dims(eqn: JaxprEqn, args: Values) -> Values:
    """The operands of an elementwise equation, with unit dimensions broadcast as JAX does."""
    shape = eqn.outvars[0].aval.shape
    if all(x.shape in ((), shape) for x in args):
        return args
    dims = tuple(range(len(shape)))
    return [ops.broadcast_in_dim(x, shape, dims) if x.shape else x for x in args]


def _matches_types(outs: Values, variables: Sequence[JaxprAtom]) -> bool:
    for x, v in zip(outs, variables, strict=True):
        aval, wanted = aval_of(x), aval_from_jax(v.aval)
        if aval.shape != wanted.shape or aval.dtype != wanted.dtype:
            return False
    return True


def with_jax_type(x: Any, jax_aval: JaxAval) -> Value:
    """`x` with the type that JAX gives it: typed keys, or a weak type."""
    if prng_key_type(jax_aval.dtype) is not None:
        return PRNGKeyTracer(x, jax_aval)
    weak = aval_from_jax(jax_aval).weak_type
    if x.weak_type == weak:
        return x
    if type(x.atom) is FunctxLiteral:
        aval = ShapedArray((), x.dtype, weak)
        return Tracer(FunctxLiteral(x.atom.value, aval), x.builder)
    return ops.ConvertElementType(x.dtype, weak)(x)


def bind_jax_equation(eqn: JaxprEqn, args: Values) -> list[Value]:
    """The outputs of an equation of a jaxpr on `args`, as a `jax_call`."""
    if eqn.primitive.name == "sort" and any(prng_key_type(x.aval.dtype) for x in eqn.invars):
        # JAX would refuse it where it lowers the program.
        raise TypedKeyError("sort: arguments must be arrays or numbers; got typed keys")
    return JaxCall(JaxprFunction.of_equation(eqn))(*args)


def bind_jaxpr(jaxpr: JaxprLike, args: Values) -> list[Value]:
    """The outputs of an open jaxpr on its constants and operands, as one `jax_call`."""
    # References are made and read inside.
    made = {v for eqn in jaxpr.eqns for v in eqn.outvars}
    inside = any(aval_from_jax_or_none(v.aval) is None for v in made)
    inputs = [*jaxpr.constvars, *jaxpr.invars]
    whole = closed_jaxpr(inputs, jaxpr.outvars, jaxpr.eqns, () if inside else jaxpr.effects)
    return JaxCall(JaxprFunction(whole))(*args)


def dense_constant(x: Value) -> Value:
    """The array `x` as a constant of the program, for rules that take no more operands; a tracer as it is."""
    if type(x) is Tracer:
        return x
    if isinstance(x, jax.core.Tracer):
        raise ForeignCodeError(
            "from_jax: the derivative rule of a JAX function must not use values that JAX was "
            f"tracing around it, as one with nondiff_argnums does; got {x.aval}",
            fix="Give that argument as a Python number, or close over a concrete array.",
        )
    return ops.embed_constant(x)


def fix_unmarked(
    function: JaxprFunction, args: Sequence[Value | None], marks: Flags
) -> Callable[..., list[Value]]:
    """`function` of the marked arguments, with `args` at the other positions."""
    return lambda *given: function(*replace_where(args, marks, given))


@lru_cache(maxsize=1024)
def translated_jvp(
    function: JaxprFunction, varying: tuple[bool, ...]
) -> tuple[TranslatedJaxpr, tuple[bool, ...]]:
    """The function from arguments and tangents of the `varying` ones to outputs and tangents.

    Also returns the mask of the outputs with tangents that can be nonzero.
    """
    moving = select_where(function.in_avals, varying)

    def push(*args: Value) -> list[Value]:
        primals, tangents = args[: len(varying)], args[len(varying) :]
        fun = fix_unmarked(function, primals, varying)
        outs, found = jax.jvp(fun, select_where(primals, varying), list(tangents))
        return [*outs, *function.differentiable_outputs(found)]

    avals = [*function.in_avals, *moving]
    closed = jaxpr_of(push, avals)
    marks = nonzero_tangent_mask(function, closed.jaxpr, len(varying))
    return translate_jaxpr(closed, avals, f"{function!r}_jvp"), marks


def nonzero_tangent_mask(function: JaxprFunction, jaxpr: JaxprLike, start: int) -> tuple[bool, ...]:
    """The outputs of `function` whose tangents, the last outputs of `jaxpr`, can be nonzero.

    The tangents are linear in the operands of `jaxpr` from `start` on. A value written to a
    reference may be read from it.
    """
    reached = set(jaxpr.invars[start:])
    for eqn in jaxpr.eqns:
        operands = [a for a in eqn.invars if isinstance(a, Var)]
        if not reached.isdisjoint(operands):
            reached.update(eqn.outvars)
            reached.update([v for v in operands if aval_from_jax_or_none(v.aval) is None])
    inexact = inexact_mask(function.out_avals)
    tangents = jaxpr.outvars[len(jaxpr.outvars) - sum(inexact) :]
    rest = iter([isinstance(a, Var) and a in reached for a in tangents])
    return tuple([on and next(rest) for on in inexact])


class LinearizedJaxpr:
    """The linearization of a function in its `varying` arguments by JAX, as two functions of arrays."""

    def __init__(self, function: JaxprFunction, varying: tuple[bool, ...]):
        self.function, self.varying = function, varying
        self.structure: TreeDef = None

    def values(self, *args: Value) -> list[Value]:
        """The outputs, then the residuals, whose structure is kept."""
        fun = fix_unmarked(self.function, args, self.varying)
        outs, push = jax.linearize(fun, *select_where(args, self.varying))
        residuals, self.structure = jax.tree_util.tree_flatten(push)
        return [*outs, *residuals]

    def push(self, residuals: Values, tangents: Values) -> list[Value]:
        """The tangents of the inexact outputs."""
        push = jax.tree_util.tree_unflatten(self.structure, residuals)
        return self.function.differentiable_outputs(push(*tangents))


@lru_cache(maxsize=1024)
def translated_linearization(
    function: JaxprFunction, varying: tuple[bool, ...]
) -> tuple[TranslatedJaxpr, TranslatedJaxpr, tuple[bool, ...]]:
    """The linearization of the function: a program of outputs and residuals, and one of tangents.

    The second takes the residuals, then the tangents of the `varying` arguments, and returns the
    tangents of the inexact outputs. The third result is `nonzero_tangent_mask`.
    """
    linearized = LinearizedJaxpr(function, varying)
    moving_avals = select_where(function.in_avals, varying)

    def tangents(*args: Value) -> list[Value]:
        count = len(args) - len(moving_avals)
        return linearized.push(args[:count], args[count:])

    first = translate_function(linearized.values, function.in_avals, repr(function))
    residuals = first.program.out_avals[len(function.out_avals) :]
    avals = [*residuals, *moving_avals]
    closed = jaxpr_of(tangents, avals)
    marks = nonzero_tangent_mask(function, closed.jaxpr, len(residuals))
    return first, translate_jaxpr(closed, avals, f"{function!r}_tangent"), marks


@lru_cache(maxsize=1024)
def translated_transpose(
    function: JaxprFunction, linear: tuple[bool, ...], cotangent_mask: tuple[bool, ...]
) -> TranslatedJaxpr:
    """The transpose of the function in the arguments marked `linear`.

    It takes the other arguments, then the cotangents of the outputs in `cotangent_mask`.
    """
    known, moving = (
        select_where_not(function.in_avals, linear),
        select_where(function.in_avals, linear),
    )
    structs = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in moving]

    def pull(*args: Value) -> PyTree:
        fixed, cts = (
            scatter_where(args[: len(known)], [not on for on in linear]),
            args[len(known) :],
        )
        fun = fix_unmarked(function, fixed, linear)

        def outputs(*values: Value) -> list[Value]:
            return select_where(fun(*values), cotangent_mask)

        return list(jax.linear_transpose(outputs, *structs)(list(cts)))

    cts = select_where(function.out_avals, cotangent_mask)
    return translate_function(pull, [*known, *cts], f"{function!r}_transpose")


@lru_cache(maxsize=1024)
def translated_batch(
    function: JaxprFunction, size: int, dims: tuple[Dim, ...]
) -> tuple[TranslatedJaxpr, tuple[int | None, ...]]:
    """The batched function along `dims`, and the batch dimensions of its outputs.

    These are None for an output that JAX's rules do not batch, and 0 for the others.
    """
    avals = [add_axis(a, d, size) for a, d in zip(function.in_avals, dims, strict=True)]
    out_dims: list[int | None] = []

    def noted(*args: Value) -> list[Value]:
        outs = function(*args)
        here = find_top_trace(())
        out_dims[:] = [0 if getattr(x, "_trace", None) is here else None for x in outs]
        return outs

    def mapped(fun: Function, out_axes: Dim | Dims) -> Function:
        return jax.vmap(fun, in_axes=dims, out_axes=out_axes, axis_size=size)

    jaxpr_of(mapped(noted, 0), avals)
    name = f"vmap_{function!r}"
    return translate_function(mapped(function, list(out_dims)), avals, name), tuple(out_dims)


@lru_cache(maxsize=1024)
def differentiable_form(function: JaxprFunction) -> Any:
    """The operation with the same values that has the derivatives; None if those are JAX's."""
    names = [eqn.primitive.name for eqn in function.jaxpr.eqns]
    if len(names) != 1 or names[0] not in DIFFERENTIABLE_FORMS:
        return None
    return DIFFERENTIABLE_FORMS[names[0]](function)


def _example() -> JaxprFunction:
    def body(x: Value, y: Value) -> list[Value]:
        return [jax.numpy.sin(x) * y]

    return JaxprFunction(jaxpr_of(body, [f32[3], f32[3]]))


class JaxCall(Primitive):
    """A JAX function without a counterpart in functx; its rules are JAX's.

    The results of the rules are translated: into functx equations, and further `jax_call`s.
    """

    function: JaxprFunction
    multiple_results = True
    samples = (sample(f32[3], f32[3], dtypes=("f32",), function=_example()),)

    @property
    def effects(self) -> Effects:  # type: ignore[override]
        return self.function.effects

    def abstract_eval(self, *avals: ShapedArray) -> Avals:
        check_operands(self, avals, self.function.in_avals)
        return self.function.out_avals

    def varying_outputs(self, avals: Avals, active: Flags) -> Flags:
        if (form := differentiable_form(self.function)) is not None:
            return form.varying_outputs(avals, active)
        translated = translated_linearization if is_linearizing() else translated_jvp
        with reraise_missing_rule(self):
            return translated(self.function, active)[-1]

    def jvp(self, primals: Values, tangents: Tangents) -> tuple[Values, Tangents]:
        if (form := differentiable_form(self.function)) is not None:
            return form.jvp(primals, tangents)
        function = self.function
        varying = tuple([t is not None for t in tangents])
        given = [t for t in tangents if t is not None]
        count = len(function.out_avals)
        if is_linearizing():
            with reraise_missing_rule(self):
                values, push, moving = translated_linearization(function, varying)
            outs = values(primals)
            found = push([*outs[count:], *given])
        else:
            with reraise_missing_rule(self):
                both, moving = translated_jvp(function, varying)
            outs = both([*primals, *given])
            found = outs[count:]
        pairs = zip(scatter_where(found, inexact_mask(function.out_avals)), moving, strict=True)
        return outs[:count], [t if on else None for t, on in pairs]

    def transpose(self, cts: Cotangents, *args: Value) -> Cotangents:
        if (form := differentiable_form(self.function)) is not None:
            return form.transpose(cts, *args)
        function = self.function
        linear = linear_mask(args)
        given = tuple([ct is not None for ct in cts])
        try:
            with reraise_missing_rule(self):
                pull = translated_transpose(function, linear, given)
        except Exception as error:
            # A library may raise one to say that the cotangents must be zero, as those of what a
            # branch leaves unused turn out to be.
            return refused(error, [ct for ct in cts if ct is not None], function.in_avals, linear)
        return scatter_where(
            pull([*select_where_not(args, linear), *[ct for ct in cts if ct is not None]]), linear
        )

    def batch(self, args: Values, dims: Dims) -> tuple[Values, Dims]:
        size = batch_size(args, dims)
        with reraise_missing_rule(self):
            mapped, out_dims = translated_batch(self.function, size, tuple(dims))
        return mapped(args), out_dims

    def lower(self, ctx: LoweringContext, *values: IRValue) -> IRValues:
        single = len(self.function.out_avals) == 1

        def fun(*args: Value) -> Value | Values:
            outs = self.function(*args)
            return outs[0] if single else outs

        outs = ctx.via_jax(fun, *values)
        return [outs] if single else outs


# A function of JAX may call one of functx.
for _made in (
    *(translated_jvp, translated_linearization, translated_transpose, translated_batch),
    differentiable_form,
):
    clear_on_rule_change(_made.cache_clear)


@contextmanager
def reraise_missing_rule(primitive: JaxCall) -> Iterator[None]:
    """Raises MissingRuleError where JAX has no rule for a primitive."""
    try:
        yield
    except NotImplementedError as error:
        if isinstance(error, FunctxError):
            raise
        raise MissingRuleError(
            f"from_jax: JAX must have a rule for `{primitive.function!r}` to transform it; "
            f"got {str(error).splitlines()[0] if str(error) else 'none'}",
            fix="Give the JAX function a derivative of its own with jax.custom_jvp or "
            "jax.custom_vjp.",
        ) from error
