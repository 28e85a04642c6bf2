"""Jacobians and Hessians as arrays, by a mode that the user or a plan chooses."""

from __future__ import annotations

from typing import NamedTuple

from functx.core.config import check_choice
from functx.core.errors import ValueRangeError
from functx.core.program import Program
from functx.core.rewriting import Rewrite, rewrite_by_structure
from functx.core.typing import Function
from functx.sparse.derivatives import analysis, known_inputs, possible_modes
from functx.sparse.plans import DEFAULT_MEMORY, JacobianPlan, PlanJacobian
from functx.transforms import jacobian as dense
from functx.transforms.argument_names import as_decorator, check_callable, function_name
from functx.transforms.chunked_batching import check_chunk_size
from functx.transforms.grad import Argnums, make_gradient_function
from functx.transforms.jacobian import JacobianFunction, TracedJacobian


def jacobian(
    fun: Function | None = None,
    argnums: Argnums = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    *,
    chunk_size: int | None = None,
    mode: str | None = None,
    memory_budget: int = DEFAULT_MEMORY,
) -> Function:
    """The function that computes the Jacobian of `fun`: `jacrev`, unless `mode` says otherwise.

    "forward" is `jacfwd`, "reverse" `jacrev`, and "sparse" computes a product for each color of the
    pattern that `functx.sparse.jacobian_pattern` finds. "auto" chooses the one of these that moves the
    fewest bytes, and a chunk size that keeps it within `memory_budget` bytes;
    `functx.sparse.jacobian_plan` prints the choice. The results are the same arrays.

    >>> import functx, numpy
    >>> functx.jacobian(lambda x: x * x, mode="auto")(numpy.array([1.0, 2.0])).tolist()
    [[2.0, 0.0], [0.0, 4.0]]
    """
    if fun is None:
        return as_decorator(jacobian, locals())
    Planner.checked("jacobian", "jacobian", "auto", holomorphic, memory_budget)
    if mode is None or mode == "reverse":
        return dense.jacrev(fun, argnums, has_aux, holomorphic, allow_int, chunk_size=chunk_size)
    if mode == "forward" and not allow_int:
        return dense.jacfwd(fun, argnums, has_aux, holomorphic, chunk_size=chunk_size)
    options = argnums, has_aux, holomorphic, allow_int, mode, chunk_size, memory_budget
    return _by_mode(fun, fun, "jacobian", *options)


def hessian(
    fun: Function | None = None,
    argnums: Argnums = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    *,
    chunk_size: int | None = None,
    mode: str | None = None,
    memory_budget: int = DEFAULT_MEMORY,
) -> Function:
    """The function that computes the second derivatives of `fun`, forward over reverse.

    The result nests the output's structure, then the argument's twice. See `jacfwd` for the
    arguments; `chunk_size` applies to both modes.

    With a `mode`, `fun` returns a scalar. "sparse" computes a product for each color of the pattern
    that `functx.sparse.hessian_pattern` finds, "forward" one for each element of the argument, and
    "auto" chooses as `jacobian` does; `functx.sparse.hessian_plan` prints the choice.

    >>> import functx, numpy
    >>> functx.hessian(lambda x: (x ** 3).sum())(numpy.array([1.0, 2.0])).tolist()
    [[6.0, 0.0], [0.0, 12.0]]
    """
    if fun is None:
        return as_decorator(hessian, locals())
    Planner.checked("hessian", "hessian", "auto", holomorphic, memory_budget)
    if mode is None:
        return dense.hessian(fun, argnums, has_aux, holomorphic, chunk_size=chunk_size)
    gradient = make_gradient_function(fun, argnums, has_aux, holomorphic, kind="hessian")
    options = argnums, has_aux, holomorphic, False, mode, chunk_size, memory_budget
    return _by_mode(gradient, fun, "hessian", *options)


def jacobian_plan(
    fun: Function, argnums: Argnums = 0, *, memory_budget: int = DEFAULT_MEMORY
) -> Function:
    """The function that says how `functx.jacobian(fun, mode="auto")` computes a Jacobian, and why.

    >>> import functx, numpy
    >>> functx.sparse.jacobian_plan(lambda x: x[1:] * x[:-1])(numpy.ones(1000)).mode
    'sparse'
    """
    planner = Planner.checked("jacobian", "jacobian_plan", "auto", False, memory_budget)
    return analysis(fun, argnums, "jacobian", planner.plan)


def hessian_plan(
    fun: Function, argnums: Argnums = 0, *, memory_budget: int = DEFAULT_MEMORY
) -> Function:
    """The function that says how `functx.hessian(fun, mode="auto")` computes a Hessian, and why.

    >>> import functx, numpy
    >>> functx.sparse.hessian_plan(lambda x: (x[1:] * x[:-1]).sum())(numpy.ones(1000)).mode
    'sparse'
    """
    gradient = make_gradient_function(fun, argnums, kind="hessian")
    planner = Planner.checked("hessian", "hessian_plan", "auto", False, memory_budget)
    return analysis(gradient, argnums, "hessian", planner.plan, shown=fun)


class Planner(NamedTuple):
    """Plans Jacobians, and Hessians as those of gradients: the choices of the user beside the program."""

    name: str
    mode: str
    holomorphic: bool
    memory: int

    @classmethod
    def checked(cls, name: str, label: str, mode: str, holomorphic: bool, memory: int) -> Planner:
        """The planner; raises ValueRangeError, which begins with `label`, for another `memory`."""
        if type(memory) is not int or memory < 1:
            raise ValueRangeError(f"{label}: memory_budget must be a positive int; got {memory!r}")
        return cls(name, mode, holomorphic, memory)

    def plan(self, jacobian: TracedJacobian) -> JacobianPlan:
        """The plan; found once for equal programs."""
        possible = possible_modes(jacobian, self.holomorphic, self.name)
        is_hessian = self.name == "hessian"
        rewrite = PlanJacobian(
            self.name,
            jacobian.call.active,
            sum(jacobian.inexact),
            known_inputs(jacobian),
            self.mode,
            # A Hessian is computed forward over reverse.
            tuple(possible[:1] if is_hessian else possible),
            is_hessian,
            self.memory,
        )
        return rewrite_by_structure(rewrite, jacobian.call.traced.program)


def _by_mode(
    fun: Function,
    shown: Function,
    name: str,
    argnums: Argnums,
    has_aux: bool,
    holomorphic: bool,
    allow_int: bool,
    mode: str,
    chunk_size: int | None,
    memory: int,
) -> Function:
    """The function that computes the Jacobian of `fun` by a plan; messages name `shown`."""
    check_callable(shown, name)
    label = f"{name}({function_name(shown)})"
    reverse = () if name == "hessian" else ("reverse",)
    check_choice(f"{label}: mode", mode, ("forward", *reverse, "sparse", "auto"))
    check_chunk_size(label, chunk_size)
    planner = Planner.checked(name, label, mode, holomorphic, memory)
    function = JacobianFunction.of(
        fun, shown, name, argnums, has_aux, holomorphic, False, False, allow_int
    )

    def find_rewrite(jacobian: TracedJacobian) -> Rewrite[Program]:
        plan = planner.plan(jacobian)
        return plan.rewrite if chunk_size is None else plan.rewrite.replace(chunk=chunk_size)

    return function.computed_by(find_rewrite)
