"""`Function` under transforms: a function with the rules of `custom_vjp`, and a batching rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from jax import tree_util

from functx import ops
from functx.autograd.function_context import FunctionContext, is_among, state_of
from functx.autograd.function_methods import (
    FunctionMethods,
    backward_rule,
    check_gradients,
    defines,
    memoize,
    missing_method,
    once_error,
    output_tangents,
)
from functx.core import tree
from functx.core.errors import FunctionContextError, FunctionError, FunctionMethodError
from functx.core.primitive import Primitive
from functx.core.program import Program
from functx.core.tracer import Tracer, aval_of
from functx.core.types import ShapedArray, is_inexact
from functx.core.typing import Dim, Dims, Tangent, Tangents, Value, Values
from functx.custom.custom_function import CallInfo
from functx.custom.custom_jvp import custom_jvp
from functx.custom.custom_vjp import CustomVJP, CustomVJPFunction, CustomVJPTangent
from functx.custom.operators.primitives import VmapInfo, check_batched_outputs, check_out_dims
from functx.custom.rule_results import CustomVJPPrimal, SymbolicZero, describe_type, rule_source
from functx.custom.rule_tracing import LazyRules, Rules, TransformedRules, inline_rule, is_array
from functx.ops.autodiff import refused
from functx.ops.operands import batch_size


@dataclass(frozen=True, eq=False)
class OutputLayout:
    """The structure of the output of `forward`: its length, static parts, and inputs returned.

    `length` is that of the tuple, None for a single output. `static` has the outputs that are not
    arrays, by position. `inputs` has, for each array, the position of the input that it is, or None.
    """

    length: int | None
    static: dict[int, Any]
    inputs: tuple[int | None, ...]

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, OutputLayout)
            and self.length == other.length
            and self.static.keys() == other.static.keys()
        )

    def __hash__(self) -> int:
        return hash((self.length, *self.static))

    def merge(self, arrays: Sequence[Any], static: dict[int, Any] | None = None) -> list[Any]:
        """An item for each output: `arrays` in order, and the items of `static`, or None."""
        remaining = iter(arrays)
        return [
            (static[i] if static else None) if i in self.static else next(remaining)
            for i in range(1 if self.length is None else self.length)
        ]


class FunctionOutput:
    """The output of a `Function`: a pytree whose leaves are the arrays."""

    def __init__(self, arrays: Sequence[Any], layout: OutputLayout):
        self.arrays, self.layout = arrays, layout

    @staticmethod
    def of(output: object, inputs: Sequence[Any]) -> FunctionOutput:
        """The arrays and the layout of the output of `forward`."""
        outputs = output if isinstance(output, tuple) else (output,)
        arrays = [x for x in outputs if is_array(x)]
        positions = [next((i for i, y in enumerate(inputs) if x is y), None) for x in arrays]
        static = {i: x for i, x in enumerate(outputs) if not is_array(x)}
        length = len(output) if isinstance(output, tuple) else None
        return FunctionOutput(arrays, OutputLayout(length, static, tuple(positions)))

    def value(self, static: dict[int, Any] | None = None) -> Any:
        """The output as the user sees it, with None for objects that are not arrays or `static`."""
        values = self.layout.merge(self.arrays, static)
        return values[0] if self.layout.length is None else tuple(values)


tree_util.register_pytree_node(
    FunctionOutput,
    lambda out: (tuple(out.arrays), out.layout),
    lambda layout, arrays: FunctionOutput(list(arrays), layout),
)


class CallTypes(NamedTuple):
    """The types of the inputs of a call, None for one that is not an array, and of its outputs.

    `differentiable` marks the arrays among the outputs that have a gradient.
    """

    in_avals: tuple[ShapedArray | None, ...]
    out_avals: tuple[ShapedArray, ...]
    layout: OutputLayout
    differentiable: tuple[bool, ...]


class FunctionRules(CustomVJPFunction):
    """The rules of a `Function`; `static` are the numbers of arguments that are not arrays.

    Argument 0 holds the keyword-only arguments.
    """

    symbolic_zeros = jvp_symbolic_zeros = True

    def __init__(self, function: type[FunctionMethods], static: tuple[int, ...]):
        def forward(keywords: tuple[tuple[str, Any], ...], *inputs: object) -> FunctionOutput:
            output = FunctionOutput.of(function.forward(*inputs, **dict(keywords)), inputs)
            for x in output.layout.static.values():
                if any([isinstance(leaf, Tracer) for leaf in tree.leaves(x)]):
                    raise FunctionError(
                        f"{function.__name__}: under a transform forward must return an array or a tuple "
                        f"of arrays; got arrays in {describe_type(x)}",
                        fix="Return a tuple, or use NestedIOFunction, whose outputs are pytrees.",
                        source=rule_source(function.forward),
                    )
            return output

        forward.__name__ = function.__name__
        super().__init__(forward, static)
        self.function = function
        self.fwd, self.bwd = self.forward_rule, self.backward_rule
        if defines(function, "jvp"):
            self.jvp = self.jvp_rule

    def __repr__(self) -> str:
        return self.function.__name__

    def is_function_of(self, other: object) -> bool:
        return isinstance(other, FunctionRules) and self.function is other.function

    def forward_rule(
        self, keywords: object, *args: object
    ) -> tuple[FunctionOutput, dict[str, Any]]:
        """The output, and the attributes of the context."""
        perturbed = tuple([isinstance(x, CustomVJPPrimal) and x.perturbed for x in args])
        inputs = tuple([x.value if isinstance(x, CustomVJPPrimal) else x for x in args])
        output, context, types = self.call(keywords, inputs, perturbed)
        return output, {"context": dict(context.__dict__), "types": types}

    def call(
        self, keywords: object, inputs: tuple[Any, ...], needs_input_grad: tuple[bool, ...]
    ) -> tuple[FunctionOutput, FunctionContext, CallTypes]:
        """A call whose context is set up.

        The outputs are those of a call of the function itself, so that a further derivative of them
        is by its rule.
        """
        output = self(keywords, *inputs)
        context = FunctionContext(self.function.__name__, needs_input_grad)
        self.function.setup_context(context, inputs, output.value(output.layout.static))
        state = state_of(context)
        state.check_dirty(inputs, [*output.arrays, *self.returned_inputs(inputs, output)])
        self.check_saved_inputs(context, inputs, output)
        types = CallTypes(
            tuple([aval_of(x) if is_array(x) else None for x in inputs]),
            tuple([aval_of(x) for x in output.arrays]),
            output.layout,
            tuple(
                [
                    is_inexact(x.dtype) and not is_among(x, state.non_differentiable)
                    for x in output.arrays
                ]
            ),
        )
        # The marks of a context do not depend on the values.
        state.dirty = state.non_differentiable = ()
        return output, context, types

    def returned_inputs(self, inputs: Sequence[Any], output: FunctionOutput) -> list[Any]:
        """The inputs that are returned as they are."""
        return [inputs[i] for i in output.layout.inputs if i is not None]

    def check_saved_inputs(
        self, context: FunctionContext, inputs: Sequence[Any], output: FunctionOutput
    ) -> None:
        """Raise FunctionContextError for an input that is saved and returned, but not dirty."""
        saved, dirty = context.saved_tensors, state_of(context).dirty
        for x in self.returned_inputs(inputs, output):
            if is_among(x, saved) and not is_among(x, dirty):
                raise FunctionContextError(
                    f"{self!r}: under a transform an input that is saved must not be returned as it "
                    f"is; got {aval_of(x)!r}",
                    fix="Return a copy of it (x + 0), or mark it dirty.",
                )

    def backward_rule(self, *args: Any) -> tuple[Any, ...]:
        """The cotangents of the inputs that are arrays."""
        residuals, cotangents = args[-2:]
        types: CallTypes = residuals["types"]
        context = restored_context(residuals["context"])
        rule, name = backward_rule(self.function), self.function.__name__
        is_input = [aval is not None for aval in types.in_avals]
        if rule is None:
            operands = [x for x in cotangents.arrays if not isinstance(x, SymbolicZero)]
            avals = [aval for aval in types.in_avals if aval is not None]
            error = missing_method("backward", name)
            return tuple(refused(error, operands, avals, [True] * len(avals)))
        gradients = [
            self.output_gradient(context, x, aval, on)
            for x, aval, on in zip(
                cotangents.arrays, types.out_avals, types.differentiable, strict=True
            )
        ]
        results = rule(context, *types.layout.merge(gradients))
        checked = check_gradients(name, rule, results, types.in_avals)
        return tuple(
            [
                None if x is None else ops.conj_if_complex(x)
                for x, on in zip(checked, is_input, strict=True)
                if on
            ]
        )

    def output_gradient(
        self, context: FunctionContext, ct: Any, aval: ShapedArray, is_differentiable: bool
    ) -> Value | None:
        """The gradient of an output of type `aval` as the user's rule gets it."""
        if not is_differentiable or ct is None or isinstance(ct, SymbolicZero):
            return ops.zeros_like(aval) if state_of(context).materialize else None
        return ops.conj_if_complex(ct)

    def jvp_rule(self, *args: Any) -> tuple[FunctionOutput, FunctionOutput]:
        """The output and its tangents."""
        (keywords, *static), (primals, tangents) = args[:-2], args[-2:]
        inputs = self.all_inputs(static, primals)
        in_tangents = self.all_inputs(
            [None] * len(static), [None if isinstance(t, SymbolicZero) else t for t in tangents]
        )
        active = tuple([t is not None for t in in_tangents])
        output, context, types = self.call(keywords, inputs, active)
        materialize = state_of(context).materialize
        filled = [
            ops.zeros_like(aval)
            if t is None and materialize and aval is not None and is_inexact(aval.dtype)
            else t
            for t, aval in zip(in_tangents, types.in_avals, strict=True)
        ]
        pairs = zip(types.out_avals, types.differentiable, strict=True)
        avals = types.layout.merge([aval if on else None for aval, on in pairs])
        checked = output_tangents(self.function, context, filled, avals)
        out_tangents = [x for i, x in enumerate(checked) if i not in types.layout.static]
        return output, FunctionOutput(out_tangents, output.layout)

    def all_inputs(self, static: Sequence[Any], dynamic: Sequence[Any]) -> tuple[Any, ...]:
        """All arguments after the first, from the `static` and the `dynamic` ones."""
        known = dict(zip(self.nondiff_argnums[1:], static, strict=True))
        remaining = iter(dynamic)
        count = len(static) + len(dynamic)
        return tuple([known[i] if i in known else next(remaining) for i in range(1, count + 1)])

    def make_primitive(self, primal: Program, rule: Rules, num_consts: int) -> Primitive:
        return FunctionCall(primal, rule, num_consts)


def restored_context(attributes: dict[str, Any]) -> FunctionContext:
    """The context with these attributes."""
    context = FunctionContext.__new__(FunctionContext)
    context.__dict__.update(attributes)
    return context


def apply_traced(
    function: type[FunctionMethods], inputs: tuple[Any, ...], keywords: dict[str, Any]
) -> Any:
    """The output of a call under a transform, which has the rules of the class.

    Raises FunctionError for a class without `setup_context`.
    """
    if not defines(function, "setup_context"):
        raise FunctionError(
            f"{function.__name__}: under a transform a Function must have a static method "
            "setup_context, and a forward without ctx; got a forward that takes ctx",
            fix="Split it: forward(*args), and setup_context(ctx, inputs, output).",
        )
    static = (0, *[i for i, x in enumerate(inputs, 1) if not is_array(x)])
    rules = memoize(function, static, lambda: FunctionRules(function, static))
    output = rules(tuple(sorted(keywords.items())), *inputs)
    return output.value(output.layout.static)


class FunctionCall(CustomVJP, abstract=True):
    """A call of a `Function`, which its static method `vmap` batches, if it has one."""

    name = "autograd_function"

    @property
    def is_mapped_by_user(self) -> bool:
        """Whether the class has a static method `vmap`."""
        return defines(self.function_rules()[0].function, "vmap")

    def function_rules(self) -> tuple[FunctionRules, CallInfo]:
        """The rules of the class, and the call that they are for."""
        rule = self.rule
        while isinstance(rule, TransformedRules):
            rule = rule.rule
        assert isinstance(rule, LazyRules) and isinstance(rule.custom_function, FunctionRules)
        return rule.custom_function, rule.call

    def tangent_call(self, backward: Program) -> CustomVJPTangent:
        return FunctionCallTangent(backward, self.primal.name)

    def batch(self, args: Values, dims: Dims) -> tuple[Values, Dims]:
        rules, call = self.function_rules()
        function, name = rules.function, rules.function.__name__
        has_rule = defines(function, "vmap")
        if has_rule == function.generate_vmap_rule:
            raise FunctionMethodError(
                f"{name}: to be mapped, a Function must have either a static method vmap or "
                f"generate_vmap_rule = True; got {'both' if has_rule else 'neither'}",
                fix="With generate_vmap_rule the other methods are mapped.",
            )
        if not has_rule:
            return super().batch(args, dims)
        explicit = self.explicit_operands(args)
        if any([d is not None for d in dims[len(explicit) :]]):
            raise FunctionError(
                f"{name}: its vmap rule maps arrays that are arguments; got a batch of a value that "
                "forward captures, or that lies in an argument which is not an array",
                fix="Pass the array as an argument.",
            )
        out_dims: list[Dim] = []
        body = partial(
            call_vmap, rules, call, batch_size(args, dims), dims[: len(explicit)], out_dims
        )
        outs, _ = inline_rule(f"{name}_vmap", body, explicit)
        return outs, out_dims


def call_vmap(
    rules: FunctionRules, call: CallInfo, size: int, dims: Dims, out_dims: list[Dim], *xs: Value
) -> list[Value]:
    """The outputs of the static method `vmap` for operands batched along `dims`; sets `out_dims`."""
    function = rules.function

    def error(problem: str) -> FunctionError:
        return FunctionError(
            f"{function.__name__}: its static method vmap must {problem}",
            source=rule_source(function.vmap),
        )

    layout: OutputLayout = call.out_tree.node_data()[1]
    structure = tree.structure(FunctionOutput([0] * len(call.out_avals), layout).value())
    dynamic, _ = tree.unflatten(call.in_tree, xs)
    inputs = rules.all_inputs(call.nondiff[1:], dynamic)
    in_dims = rules.all_inputs([None] * (len(call.nondiff) - 1), dims)
    pair = function.vmap(VmapInfo.of(size), in_dims, *inputs)
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise error(f"return a pair (output, out_dims); got {describe_type(pair)}")
    output = FunctionOutput.of(pair[0], ())
    if output.layout != layout:
        raise error(f"return outputs like forward; got {describe_type(pair[0])}")
    out_dims[:] = check_out_dims(error, structure, call.out_avals, pair[1])
    flat = tree.structure(output.arrays)
    return check_batched_outputs(error, flat, call.out_avals, output.arrays, out_dims, size)


class FunctionCallTangent(CustomVJPTangent, abstract=True):
    """The tangents of a Function without `jvp`, whose transpose is its `backward`."""

    name = "autograd_function_tangent"

    def tangent_program(self, operands: Values) -> Program:
        raise missing_method("jvp", self.function)


def mark_differentiated_once(
    name: str, values: Sequence[Any], dependencies: Sequence[Value]
) -> list[Any]:
    """The gradients `values` of a rule; their derivative in `dependencies` is refused."""
    return [_differentiable_once(name, x, *dependencies) if is_array(x) else x for x in values]


@partial(custom_jvp, nondiff_argnums=(0,))
def _differentiable_once(name: str, x: Value, *dependencies: Value) -> Value:
    return x


@_differentiable_once.defjvp  # type: ignore[untyped-decorator]
def _refuse_tangent(name: str, primals: Values, tangents: Tangents) -> tuple[Value, Tangent]:
    operands = [t for t in tangents if t is not None]
    (tangent,) = refused(once_error(name), operands, [aval_of(primals[0])], [True])
    return primals[0], tangent
