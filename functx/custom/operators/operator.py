"""Operators: their calls, and the methods that register their rules."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from contextlib import AbstractContextManager
from functools import partial
from types import FunctionType
from typing import Any, TypeVar

from functx.core.caches import invalidate_caches
from functx.core.effects import NO_EFFECTS, Effect
from functx.core.errors import ArgumentError, RegistrationError
from functx.core.source_info import user_source
from functx.core.tracer import current_builder
from functx.core.typing import Flags, Function, PyTree, Values
from functx.core.wrappers import wrapper_types
from functx.custom.custom_function import has_jax_tracers
from functx.custom.operators import dispatch, registry
from functx.custom.operators.arguments import ArgumentBinder, OperatorPrimitive
from functx.custom.operators.kernels import TracedBody, run_body_eagerly, run_kernel_eagerly
from functx.custom.operators.outputs import OutputTypes
from functx.custom.operators.primitives import CompositeCall, OperatorCall
from functx.custom.operators.registry import (
    ABSTRACT_RULE,
    AUTOGRAD_RULE,
    BACKWARD_RULE,
    JVP_RULE,
    KERNEL_RULE,
    SAVE_RULE,
    VMAP_RULE,
    check_device_argument,
    check_differentiability,
    register_rule,
)
from functx.custom.operators.schema import Schema
from functx.numpy.mutation import assign_array
from functx.transforms.argument_names import check_callable, copy_function_metadata

KERNEL_LANGUAGES = ("jax", "numpy")
_CONSTRUCTION_TOKEN = object()
Cached = TypeVar("Cached", OutputTypes, TracedBody)


class Operator(registry.RegisteredOperator):
    """A user-defined operation, called like a function and one equation of a program.

    Made by `functx.custom_op` or `functx.library.define`. A rule holds for all calls after its
    registration, also in functions that were compiled before.
    """

    def __init__(
        self,
        qualname: str,
        schema: Schema,
        fun: Function,
        prototype: bool = False,
        token: object = None,
    ):
        if token is not _CONSTRUCTION_TOKEN:
            raise RegistrationError(
                "Operator: operators must be made by functx.custom_op or functx.library.define; "
                "got a call of the class"
            )
        copy_function_metadata(self, fun, "custom_op")
        self.__name__ = qualname.split("::")[1]
        self.qualname, self.schema, self.is_declaration = qualname, schema, prototype
        self.source = user_source()
        self.arguments = ArgumentBinder(qualname, schema)
        self.composite: registry.Registration | None = None
        self.disabled_platforms: frozenset[str] = frozenset()
        self.rule_cache: dict[str, dict[str, registry.Registration]] = {}
        self.output_type_cache: dict[Hashable, Any] = {}
        self.has_warned = self.has_cached_types = False
        self.primitive: Any = None
        self.default_primitive: Any = None
        self.decorate: Callable[[Function], Operator] | None = None

        self.returns_only_arrays = (
            bool(schema.returns)
            and not schema.mutated
            and not any(r.type.is_list or r.alias for r in schema.returns)
        )

    def __repr__(self) -> str:
        return f"<operator {self.qualname}{self.schema}>"

    def __reduce__(self) -> tuple[Callable[[str], Operator], tuple[str]]:
        return registry.get, (self.qualname,)

    def __call__(self, *args: PyTree, **kwargs: PyTree) -> PyTree:
        if self.decorate is not None and len(args) == 1 and isinstance(args[0], FunctionType):
            return self.decorate(args[0])
        self.check_registered()
        result = dispatch.dispatch_call(self, args, kwargs)
        if result is not NotImplemented:
            return result
        operands, parameters = self.arguments.bind(args, kwargs)
        primitive = self.primitive(**parameters) if parameters else self.default_primitive
        computed = current_builder.get() is None and not has_jax_tracers(operands)
        if computed and not any([type(x) in wrapper_types for x in operands]):
            return self.compute(primitive, operands)
        if self.is_declaration:
            primitive.check_operands_not_differentiated(operands)
        outs = primitive(*operands)
        if self.returns_only_arrays:
            return outs[0] if self.schema.returns_single else tuple(outs)
        types = primitive.output_types_of(operands)
        count = len(types.avals)
        for i, new in zip(primitive.mutated_operands(), outs[count:], strict=True):
            name = primitive.operand_names()[i]
            assign_array(operands[i], new, f"{self.qualname}({name})")
        aliased = primitive.aliased_arguments(operands)
        return types.unflatten(self.schema, outs[:count], aliased)

    def compute(self, primitive: OperatorPrimitive, operands: Values) -> PyTree:
        """The result of a call on concrete operands."""
        rule = dispatch.select_kernel(primitive, operands)
        if rule is not None:
            return run_kernel_eagerly(primitive, rule, operands)
        if self.composite is not None:
            return run_body_eagerly(primitive, self.composite, operands)
        dispatch.raise_missing_kernel(primitive, operands)

    def impl(
        self,
        device_types: str | Iterable[str] | None = None,
        fun: Function | None = None,
        *,
        kernel: str = "jax",
        allow_override: bool = False,
    ) -> Function:
        """Register an implementation for some platforms, and return it; or a decorator.

        `device_types` are among `cpu`, `gpu`, `tpu` and `default`, which serves the others. With
        kernel="jax" it is code that JAX can trace: of JAX, Pallas, `jax.ffi`, or functx. With
        kernel="numpy" it is NumPy code, which runs on the host. It may write in place to the
        arguments of `mutates_args` (`x[...] = v`, `x += v`); JAX code reads them as `x[...]`.

        Raises ValueRangeError for another platform, RegistrationError if there is one already.
        """
        platforms = dispatch.check_platforms(f"{self.qualname}.impl", device_types)
        check_kernel(self.qualname, kernel)
        if fun is None:
            return partial(self.impl, platforms, kernel=kernel, allow_override=allow_override)
        check_callable(fun, f"{self.qualname}.impl")
        check_device_argument(self.qualname, self.schema, platforms)
        kinds = [f"{KERNEL_RULE} {p}" for p in platforms]
        if not allow_override:
            for kind in kinds:
                registry.check_not_registered(self, kind)
        for kind in kinds:
            register_rule(self, kind, fun, kernel, allow_override=allow_override)
        return fun

    def def_abstract(
        self, fun: Function | None = None, *, allow_override: bool = False
    ) -> Function:
        """Register the rule for the types of results, and return it; or a decorator.

        `fun` gets the arguments with a `jax.ShapeDtypeStruct` for each array, and returns one for
        each array of the result (a number for each number); an operator that returns nothing
        needs no rule. In it, `functx.library.get_ctx().new_dynamic_size(max=n)` stands for a
        length that depends on values.

        Raises RegistrationError for a second rule, and for an operator with a decomposition.
        """
        if fun is None:
            return partial(self.def_abstract, allow_override=allow_override)
        return register_rule(self, ABSTRACT_RULE, fun, allow_override=allow_override)

    def save_for_backward(self, fun: Function) -> Function:
        """Register the rule that saves values for `backward`, and return it.

        `fun(inputs, output)` gets a named tuple of all arguments and the result, and returns any
        pytree. It runs once in the forward pass of a derivative.
        """
        return register_rule(self, SAVE_RULE, fun)

    def backward(
        self, fun: Function | None = None, *, output_differentiability: Flags | None = None
    ) -> Function:
        """Register the pullback of cotangents, and return it; or a decorator.

        `fun(ctx, saved, *grads)` gets the result of `save_for_backward` and a gradient for each
        result, zeros if it has none. It returns a dictionary with a gradient, or None, for
        each argument that is an array or a list of arrays. `output_differentiability` has a bool
        for each result; False means that the result has no derivative.

        Raises RegistrationError if the schema allows no derivative.
        """
        differentiable = check_differentiability(self, output_differentiability)
        if fun is None:
            return partial(self.backward, output_differentiability=output_differentiability)
        return register_rule(self, BACKWARD_RULE, fun, differentiable)

    def register_autograd(
        self, backward: Function, /, *, setup_context: Function | None = None
    ) -> None:
        """Register the pullback of cotangents, in place of one registered before.

        `setup_context(ctx, inputs, output)` saves values on `ctx`: by
        `ctx.save_for_backward(*arrays)`, or as attributes. It gets keyword-only arguments as
        `keyword_only_inputs`, if there are any. `backward(ctx, *grads)` returns a gradient for
        each positional argument, or None.

        Raises RegistrationError if the schema allows no derivative, KeywordOnlyArrayError for
        an operator with keyword-only arrays.
        """
        if setup_context is not None:
            check_callable(setup_context, f"{self.qualname}.register_autograd(setup_context=...)")
        register_rule(self, AUTOGRAD_RULE, backward, setup_context, allow_override=True)

    def def_jvp(self, fun: Function) -> Function:
        """Register the rule for forward mode, in place of one registered before, and return it.

        `fun(primals, tangents)` gets two named tuples of all arguments, the second with a tangent
        for each array of an inexact dtype and None for all others. It returns `(output, tangent)`,
        linear in the tangents. Without a backward rule, reverse mode transposes it.
        """
        return register_rule(self, JVP_RULE, fun, allow_override=True)

    def def_vmap(self, fun: Function) -> Function:
        """Register the rule for batches, in place of one registered before, and return it.

        `fun(info, in_dims, *args)` gets `info.batch_size`, the batch dimension of each argument
        (None without one) and the arguments, without those that have their default value. It
        returns `(output, out_dims)`.
        """
        return register_rule(self, VMAP_RULE, fun, allow_override=True)

    def def_dispatch(self, cls: type, fun: Function | None = None) -> Function:
        """Register the rule for calls with a `cls` among their arguments, and return it.

        `fun` gets the arguments unchanged. For a subclass of `functx.library.Mode` it is called
        while such a mode is active, with the mode first. Without `fun`, a decorator.
        """
        kind = dispatch.dispatch_rule_of_class(cls)
        if fun is None:
            return partial(self.def_dispatch, cls)
        return register_rule(self, kind, fun, cls, allow_override=True)

    def set_kernel_enabled(self, device_type: str, enabled: bool) -> AbstractContextManager[None]:
        """A `with` block in which the implementation for a platform is enabled or disabled.

        If it is disabled, the default implementation is used.
        """
        return dispatch.set_kernel_enabled(self, device_type, enabled)

    def set_platform_enabled(self, platform: str, enabled: bool) -> None:
        """Enable or disable the implementation for a platform."""
        disabled = self.disabled_platforms
        self.disabled_platforms = disabled - {platform} if enabled else disabled | {platform}
        self.rules_changed()

    def check_registered(self) -> None:
        """Raise RegistrationError if the operator was destroyed or replaced."""
        if registry.operators.get(self.qualname) is not self:
            raise RegistrationError(
                f"{self.qualname}: the operator must not be used after it was destroyed; got a use "
                "of what is left of it",
                fix="Use functx.library.get of its name, if there is a new one.",
            )

    def rules_changed(self) -> None:
        """Clear the caches that depend on the operator's rules."""
        self.rule_cache.clear()
        if self.has_cached_types:
            invalidate_caches()

    def cache_types(self, key: Hashable, value: Cached) -> Cached:
        """Cache `value`, the types or the body of a call, until the rules change; returns it."""
        self.has_cached_types = True
        if len(self.output_type_cache) >= 1024:
            self.output_type_cache.clear()
        self.output_type_cache[key] = value
        return value

    def clear_caches(self) -> None:
        """Clear the cached rules and types."""
        self.rule_cache.clear()
        self.output_type_cache.clear()
        for instance in list(self.primitive._instances.values()):
            instance.out_avals_memo.clear()


def check_kernel(qualname: str, kernel: object) -> None:
    """Raise ArgumentError unless `kernel` is one of `KERNEL_LANGUAGES`."""
    if kernel not in KERNEL_LANGUAGES:
        raise ArgumentError(
            f"{qualname}: kernel must be one of {', '.join(map(repr, KERNEL_LANGUAGES))}; got {kernel!r}",
            fix='"jax" is code that JAX can trace, "numpy" code of NumPy on the host.',
        )


def make_operator(
    qualname: str,
    schema: Schema,
    fun: Function,
    *,
    decomposition: Function | None = None,
    prototype: bool = False,
    allow_override: bool = False,
) -> Operator:
    """A new operator, added to the registry; with a `decomposition` it is a composite."""
    operator = Operator(qualname, schema, fun, prototype, _CONSTRUCTION_TOKEN)
    base: Any = OperatorCall
    if decomposition is not None:
        base = CompositeCall
        operator.composite = registry.Registration(
            qualname, "decomposition", decomposition, user_source()
        )
    fields = [field for field in operator.arguments.fields if field is not None]
    # Primitives whose parameters cannot be floats have a quicker comparison.
    inexact = any(a.type.base in ("float", "Number") for a in schema.arguments)
    # An operator without results is called for its effect, and must not be eliminated.
    is_effect_only = not schema.returns and not schema.mutated
    members = {
        "__module__": qualname.split("::")[0],
        "__doc__": operator.__doc__,
        "__annotations__": dict.fromkeys(fields, "complex" if inexact else "int"),
        "name": qualname,
        "operator": operator,
        "effects": frozenset({Effect.CALLBACK}) if is_effect_only else NO_EFFECTS,
        **operator.arguments.parameter_defaults,
    }
    operator.primitive = type(base)(operator.__name__, (base,), members, abstract=True)
    if not fields:
        operator.default_primitive = operator.primitive()
    registry.add_operator(operator, allow_override)
    return operator
