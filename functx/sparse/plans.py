"""Plans of Jacobians: forward, reverse or sparse, and how many products at a time."""

from __future__ import annotations

from typing import NamedTuple

from functx.core.backend import backend
from functx.core.config import format_bytes
from functx.core.errors import PatternSizeError
from functx.core.masks import select_where
from functx.core.program import Program
from functx.core.rewriting import Rewrite, cached_rewrite
from functx.core.types import is_inexact
from functx.passes.memory_planning import compute_cost, temporary_and_result_bytes
from functx.transforms.forward_mode import Linearize
from functx.transforms.jacobian import ForwardJacobian, ReverseJacobian
from functx.transforms.sparse_derivatives import SparseJacobian, choose_products
from functx.transforms.sparsity import JacobianPattern, KnownArrays

LEAST_SPARSE_SIZE = 16
"""The length of the shorter side of a Jacobian below which its pattern is not asked for."""
DEFAULT_MEMORY = 2**30
"""The bytes that a Jacobian may need besides the arguments, unless the user gives another number."""


class Candidate(NamedTuple):
    """One way to compute a Jacobian: the number of products, and what one of them costs."""

    mode: str
    products: int
    bytes_moved: int
    """The bytes that one product moves, with what its arithmetic costs on top."""
    bytes_held: int
    """The bytes that one product needs in memory at a time."""
    rewrite: Rewrite[Program]

    def cost(self, result: int) -> int:
        """The bytes that the Jacobian moves; its elements are written twice if it is sparse."""
        return self.products * self.bytes_moved + result * (2 if self.mode == "sparse" else 1)


class JacobianPlan(NamedTuple):
    """How a Jacobian is computed; `print` shows the choice and the reason."""

    name: str
    shape: tuple[int, int]
    candidates: tuple[Candidate, ...]
    notes: tuple[str, ...]
    chosen: Candidate
    chunk: int | None
    result_bytes: int
    memory: int

    @property
    def mode(self) -> str:
        """The chosen mode."""
        return self.chosen.mode

    @property
    def rewrite(self) -> Rewrite[Program]:
        """The rewrite that computes the Jacobian."""
        return self.chosen.rewrite.replace(chunk=self.chunk)

    def __str__(self) -> str:
        m, n = self.shape
        lines = [f"{self.name}: {m} x {n}, {format_bytes(self.result_bytes)}; chosen: {self.mode}"]
        lines.append("  mode      products      moved  held at once")
        for each in self.candidates:
            mark = "*" if each is self.chosen else " "
            held = min(each.products, self.chunk or each.products) * each.bytes_held
            held = held if each is self.chosen else each.products * each.bytes_held
            cost = format_bytes(each.cost(self.result_bytes))
            lines.append(
                f"{mark} {each.mode:8} {each.products:9} {cost:>10} {format_bytes(held):>10}"
            )
        others = [each for each in self.candidates if each is not self.chosen]
        if others:
            best = min(others, key=lambda each: each.cost(self.result_bytes))
            ratio = best.cost(self.result_bytes) / max(self.chosen.cost(self.result_bytes), 1)
            lines.append(f"  {self.mode} moves {ratio:.3g} times fewer bytes than {best.mode}")
        if self.chunk is not None:
            lines.append(
                f"  {self.chunk} products at a time, to stay within {format_bytes(self.memory)} of memory"
            )
        return "\n".join([*lines, *[f"  {note}" for note in self.notes]])


class PlanJacobian(Rewrite[JacobianPlan]):
    """The analysis that chooses how the Jacobian of a program is computed, in `mode` or the best one.

    The Jacobian is that of the first `outputs` inexact outputs in the inputs marked `active`. `known`
    are the values of inputs. `possible` are the modes, "forward" or "reverse", that can differentiate
    the program; `memory` is the number of bytes that the computation may need.
    """

    name: str
    active: tuple[bool, ...]
    outputs: int
    known: KnownArrays
    mode: str
    possible: tuple[str, ...]
    symmetric: bool
    memory: int

    def __call__(self, program: Program) -> JacobianPlan:
        ins = select_where(program.in_avals, self.active)
        outs = [a for a in program.out_avals if is_inexact(a.dtype)][: self.outputs]
        shape = sum(a.size for a in outs), sum(a.size for a in ins)
        width = max([a.dtype.itemsize for a in (*ins, *outs)], default=1)
        candidates, notes = [], []
        if self.tries("forward"):
            rewrite = ForwardJacobian(self.active, self.outputs)
            candidates.append(self.candidate("forward", shape[1], program, False, rewrite))
        if self.tries("reverse"):
            backward = ReverseJacobian(self.active, self.outputs)
            candidates.append(self.candidate("reverse", shape[0], program, True, backward))
        if self.mode in ("auto", "sparse"):
            if candidates and min(shape) < LEAST_SPARSE_SIZE:
                notes.append(f"sparse: not tried below {LEAST_SPARSE_SIZE} inputs or outputs")
            else:
                try:
                    candidates.append(self.sparse_candidate(program))
                except PatternSizeError as error:
                    if not candidates:
                        raise
                    notes.append(f"sparse: {error.problem}")
        result = shape[0] * shape[1] * width
        chosen = min(candidates, key=lambda each: each.cost(result))
        # The result itself may need more than the budget.
        free = max(self.memory - result, self.memory // 8)
        needed = chosen.products * chosen.bytes_held
        chunk = None if needed <= free else max(1, free // max(chosen.bytes_held, 1))
        return JacobianPlan(
            self.name, shape, tuple(candidates), tuple(notes), chosen, chunk, result, self.memory
        )

    def tries(self, mode: str) -> bool:
        """Whether `mode` is possible, and asked for."""
        return mode in self.possible and self.mode in ("auto", mode)

    def candidate(
        self, mode: str, products: int, program: Program, reverse: bool, rewrite: Rewrite[Program]
    ) -> Candidate:
        """The candidate whose products are the linear program of forward or reverse mode."""
        split = backend.vjp_split(self.active) if reverse else Linearize(self.active)
        linear = cached_rewrite(split, program)[1]
        moved = sum([compute_cost(eqn) for eqn in linear.equations])
        held = cached_rewrite(temporary_and_result_bytes, linear)
        return Candidate(mode, products, moved, held, rewrite)

    def sparse_candidate(self, program: Program) -> Candidate:
        """The candidate with a product for each color of the pattern."""
        pattern = cached_rewrite(JacobianPattern(self.active, self.outputs, self.known), program)
        products = choose_products(pattern, self.symmetric, self.possible)
        rewrite = SparseJacobian(self.active, self.outputs, products, True)
        reverse = products.kind == "reverse"
        return self.candidate("sparse", products.count, program, reverse, rewrite)
