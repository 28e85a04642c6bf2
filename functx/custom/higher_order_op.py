"""Higher-order operations: operations of users that take functions, with a rule for each transform."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

from functx.core import tree
from functx.core.caches import clear_on_rule_change, invalidate_caches, scoped_table
from functx.core.errors import (
    ArgumentWriteError,
    MissingHigherOrderRuleError,
    OperatorNameError,
    RegistrationError,
    StaticArgumentError,
    ValueRangeError,
    type_name,
)
from functx.core.primitive import Primitive
from functx.core.program import Program
from functx.core.source_info import describe_source, user_source
from functx.core.tracebacks import api_boundary
from functx.core.tracer import aval_of, current_builder
from functx.core.typing import Function, PyTree, Value, Values
from functx.custom.custom_function import has_jax_tracers
from functx.custom.function_operands import FunctionOperand, StatefulFunction
from functx.custom.higher_order_call import (
    CallStructure,
    HigherOrderCall,
    TracedLowering,
    is_function,
)
from functx.custom.operators.registry import Registration
from functx.custom.rule_results import describe_type
from functx.transforms.aliasing import capture_key, trace_with_shared_captures, write_back_arguments
from functx.transforms.argument_names import check_callable
from functx.transforms.tracing_api import TracedFunction, avals_of, trace_function

RULES = ("lowering", "vmap", "jvp", "vjp", "functionalize")
"""The transforms that a higher-order operation can have rules for."""

higher_order_operations: dict[str, HigherOrderOp] = {}
"""All higher-order operations, by name."""
_rules: dict[tuple[HigherOrderOp, str], Registration] = scoped_table()


class HigherOrderOp:
    """An operation of the user's that takes functions, and is one equation of a program.

    It is called as `op(*args, **options)`. Arguments are functions, programs and pytrees of arrays; the
    options are static. A function is traced for the arguments that are no functions; where the
    operation calls it with others, pass a program (`functx.make_ir(f)(*args)`). It has no meaning of its
    own: `def_rule` gives it one for each transform, and a transform without a rule is an error. In rules,
    functions are called like functions. `name` is an identifier, or `namespace::name`.

    >>> import functx
    >>> twice = functx.custom.HigherOrderOp("doc_twice")
    >>> @twice.def_rule("lowering")
    ... def twice_lowering(f, x):
    ...     return f(f(x))
    >>> @twice.def_rule("vjp")
    ... def twice_vjp(f, x):
    ...     y, first = f.vjp(x)
    ...     z, second = f.vjp(y)
    ...     def pullback(ct):
    ...         df, dy = second(ct)
    ...         df_of_first, dx = first(dy)
    ...         return df + df_of_first, dx
    ...     return z, pullback
    >>> slope = functx.grad(lambda a, x: twice(lambda y: a * y, x), argnums=(0, 1))(3.0, 2.0)
    >>> [float(ct) for ct in slope]
    [12.0, 9.0]
    """

    def __init__(self, name: str):
        _check_name(name)
        self.name, self.__name__ = name, name.split("::")[-1]
        self.source = user_source()
        self.bodies: dict[Hashable, TracedLowering] = {}
        members = {
            "__module__": name.split("::")[0],
            "__doc__": self.__doc__,
            "name": name,
            "operation": self,
        }
        base: Any = HigherOrderCall
        self.primitive = type(base)(self.__name__, (base,), members, abstract=True)
        higher_order_operations[name] = self
        Primitive.registry[name] = self.primitive

    def __repr__(self) -> str:
        return f"<higher-order operation {self.name}>"

    def __reduce__(self) -> tuple[Callable[[str], HigherOrderOp], tuple[str]]:
        return _find_operation, (self.name,)

    def def_rule(
        self,
        transform: str | Function,
        fun: Function | None = None,
        *,
        allow_override: bool = False,
    ) -> Function:
        """Register the rule for a transform, and return it; or a decorator.

        `transform` is one of these names, or the function of functx of that name:

        - "lowering": `rule(*args, **options)` returns the result, computed by operations of functx.
        - "vmap": `rule(info, in_dims, *args, **options)` returns `(output, out_dims)`. `info.batch_size`
          is the size of the batch. It is the first axis of the arrays for which `in_dims`, a tuple with
          an entry for each argument, has 0; None marks what all elements share.
          `f.vmap(in_dims, out_dims)(*args)` maps a function.
        - "jvp": `rule(primals, tangents, **options)` returns `(output, output tangent)`. Both are tuples
          of all arguments. The tangent of a function is called as `df(primals, tangents)` and returns
          the output and its tangent; that of an array of integers is None.
        - "vjp": `rule(*args, **options)` returns `(output, pullback)`, where `pullback(ct)` returns a
          cotangent for each argument, or None for zero. `f.vjp(*args)` returns the output and a pullback
          that gives the cotangent of the function, then those of `args`. Of "jvp" and "vjp" one is
          enough: the other is its transpose.
        - "functionalize": for functions that write to arrays around them. `rule(state, *args, **options)`
          returns `(output, state)`. Functions are called as `f(state, *args)` and return
          `(output, state)`, where `state` is the tuple of the arrays that they write to.

        Raises ValueRangeError for another transform, and RegistrationError for a second rule, unless
        `allow_override`.
        """
        name = (
            transform if isinstance(transform, str) else getattr(transform, "__name__", transform)
        )
        if name not in RULES:
            fix = "The rule for reverse mode is that of vjp." if name == "grad" else ""
            raise ValueRangeError(
                f"{self.name}: a rule must be for one of {', '.join(map(repr, RULES))}; got {name!r}",
                fix=fix,
            )
        if fun is None:
            return partial(self.def_rule, name, allow_override=allow_override)
        check_callable(fun, f"{self.name}: rule for {name}")
        before = _rules.get((self, name))
        if before is not None and not allow_override:
            raise RegistrationError(
                f"{self.name}: its rule for {name} must be registered once; got another one",
                f"the first was registered at {before.location}",
                fix="Pass allow_override=True to replace it.",
            )
        _rules[self, name] = Registration(self.name, f"rule for {name}", fun, user_source())
        self.bodies.clear()
        if self.primitive._instances.was_used:
            invalidate_caches()
        return fun

    def rule(self, transform: str) -> Registration:
        """The rule for a transform; MissingHigherOrderRuleError if there is none."""
        found = _rules.get((self, transform))
        if found is None:
            have = [name for name in RULES if (self, name) in _rules]
            raise MissingHigherOrderRuleError(
                f"{self.name}: a higher-order operation must have a rule for {transform} here; got "
                f"rules for {', '.join(have) or 'nothing'}",
                fix=f'Give it one: @{self.__name__}.def_rule("{transform}").',
            )
        return found

    def has_rule(self, transform: str) -> bool:
        """Whether there is a rule for a transform."""
        return (self, transform) in _rules

    @api_boundary
    def __call__(self, *args: PyTree, **options: Hashable) -> PyTree:
        arrays = [x for x in args if not is_function(x)]
        if current_builder.get() is None and not has_jax_tracers(arrays):
            return self.rule("lowering")(*args, **options)
        return self.bind(args, options)

    def bind(self, args: tuple[PyTree, ...], options: dict[str, Hashable]) -> PyTree:
        """The result of a call within a trace."""
        self.check_options(options)
        arrays = tuple([x for x in args if not is_function(x)])
        leaves, array_tree = tree.flatten_with_key_data((arrays, {}))
        functions, stateful, state = self.trace_functions(
            [x for x in args if is_function(x)], leaves, array_tree
        )
        if state:
            remaining = iter(stateful)
            arguments = [next(remaining) if is_function(x) else x for x in args]
            return self.call_with_state(state, arguments, options)
        call = self.primitive(
            tuple([f.program for f in functions]),
            tuple([len(f.captured) for f in functions]),
            tuple(sorted(options.items())),
            CallStructure.of(args, functions, array_tree),
        )
        operands = [*leaves, *[x for f in functions for x in f.captured]]
        outs = call(*operands)
        return tree.unflatten(call.lowering(tuple(map(aval_of, operands))).out_tree, outs)

    def check_options(self, options: dict[str, Hashable]) -> None:
        """Raise StaticArgumentError unless all options are hashable."""
        for name, value in options.items():
            try:
                hash(value)
            except TypeError:
                raise StaticArgumentError(
                    f"{self.name}: the option `{name}` must be hashable, since it is static; got "
                    f"{type_name(value)}",
                    fix="Pass arrays by position.",
                ) from None

    def trace_functions(
        self, functions: Sequence[Function], leaves: list[Value], array_tree: tree.TreeDef
    ) -> tuple[list[FunctionOperand], list[StatefulFunction], list[Value]]:
        """The functions as operands, the same as functions of a state, and this state.

        The state are the arrays around the functions that these write to.
        """
        avals = avals_of(leaves, self.name, self, array_tree)
        traced = trace_with_shared_captures(
            lambda memory: [
                _as_traced(f)
                or trace_function(
                    f, array_tree, avals, self.name, memory=memory, carries_writes=True
                )
                for f in functions
            ]
        )
        operands, counts = [], []
        written: dict[Hashable, Value] = {}
        for f, each in zip(functions, traced, strict=True):
            own = len(each.program.inputs) - len(each.captured)
            if any([i < own for i in each.written]):
                raise ArgumentWriteError(
                    f"{self.name}: a function must not write to its arguments; got "
                    f"`{each.program.name}`, which does",
                    fix="Write to a copy (x.copy()), and return it.",
                )
            carried, targets = each.with_writes_as_carries()
            written.update((capture_key(x), x) for x in targets)
            counts.append(len(targets))
            in_tree = f.trees[0] if isinstance(f, Program) and f.trees is not None else array_tree
            operands.append(
                FunctionOperand(carried.program, carried.captured, in_tree, each.out_tree)
            )
        place = {key: i for i, key in enumerate(written)}
        stateful = [
            StatefulFunction(f, [place.get(capture_key(x)) for x in f.captured], count)
            for f, count in zip(operands, counts, strict=True)
        ]
        return operands, stateful, list(written.values())

    def call_with_state(
        self, state: Values, args: Sequence[PyTree], options: dict[str, Hashable]
    ) -> PyTree:
        """The result of a call whose functions write to the arrays `state`, by the rule."""
        rule = self.rule("functionalize")
        pair = rule(tuple(state), *args, **options)
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise rule.error(f"return a pair (output, state); got {describe_type(pair)}")
        out, new = pair
        if not isinstance(new, (tuple, list)) or len(new) != len(state):
            raise rule.error(f"return a state of {len(state)} arrays; got {describe_type(new)}")
        write_back_arguments(state, dict(enumerate(new)))
        return out


def _as_traced(f: object) -> TracedFunction | None:
    """The program `f` of pytrees, without writes, as a traced function; None for other functions."""
    if not isinstance(f, Program) or f.writes or f.trees is None:
        return None
    return TracedFunction(f, list(f.captured), f.trees[1])  # type: ignore[arg-type]


def _check_name(name: object) -> None:
    """Raise OperatorNameError unless `name` is `name` or `namespace::name` and not taken."""
    parts = name.split("::") if isinstance(name, str) else []
    if not 1 <= len(parts) <= 2 or not all([part.isidentifier() for part in parts]):
        raise OperatorNameError(
            f"HigherOrderOp: the name must be an identifier, or namespace::name; got {name!r}"
        )
    taken = Primitive.registry.get(str(name))
    if taken is not None:
        existing = higher_order_operations.get(str(name))
        where = "a primitive" if existing is None else describe_source(existing.source)
        raise RegistrationError(
            f"HigherOrderOp: an operation must have a name of its own; got {name!r} again",
            f"it was defined at {where}" if existing else f"{name} is a primitive of functx",
            fix="Choose another name.",
        )


def _find_operation(name: str) -> HigherOrderOp:
    """The higher-order operation of that name."""
    return higher_order_operations[name]


@clear_on_rule_change
def _clear_bodies() -> None:
    """Forgets the traced lowering rules, and the types that follow from them."""
    for operation in higher_order_operations.values():
        operation.bodies.clear()
        for instance in list(operation.primitive._instances.values()):
            instance.out_avals_memo.clear()
