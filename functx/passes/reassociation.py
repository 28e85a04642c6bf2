"""Reassociation: sums of products are computed in the cheapest order of contractions.

Products that calls and loops return are hoisted out of them first, so that sums can see them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import Any, NamedTuple

from functx import ops
from functx.core.dead_code import dce_equations
from functx.core.primitive import Primitive
from functx.core.program import Atom, Equation, Program, Var
from functx.core.program_editing import replace_program_fields
from functx.core.rewriting import Record, Rewrite, bind_equation, cached_rewrite, interpret
from functx.core.tracer import Tracer
from functx.core.tracing import trace_closed
from functx.core.typing import Values
from functx.ops.convolution import Convolution
from functx.passes.convolution_patches import is_batch_of_convolutions
from functx.passes.einsum import MEMORY_COST
from functx.passes.einsum_factors import EXPANDABLE_PRIMITIVES, scatter_row_axis
from functx.passes.sums_of_products import SumOfEinsums, expand_sum, is_sum
from functx.transforms.batching import Batch, add_axis
from functx.transforms.call_primitive import Call
from functx.transforms.control.scan import Scan
from functx.transforms.symbolic_zeros import is_zero_array

_MAX_HOIST_ROUNDS = 4


class HoistedProducts(NamedTuple):
    """A program without the products that it returned, and the equations that compute them.

    `hoisted` are those equations; their inputs are inputs of the program or `exposed`, the last
    outputs of `remaining`. They compute the outputs at `outputs_made_outside`.
    """

    outputs_made_outside: tuple[int, ...]
    remaining: Program
    exposed: list[Var]
    hoisted: list[Equation]


class FindHoistableProducts(Rewrite[HoistedProducts | tuple[()]]):
    """Finds the products that a program returns, and splits them off; empty if there are none.

    `find_products` gives the variables of a program that are products, or made of one without a
    sum. The inputs at `internal_inputs` are not available outside.
    """

    find_products: Callable[[Program], set[Any]]
    internal_inputs: range = range(0)

    def __call__(self, program: Program) -> HoistedProducts | tuple[()]:
        products = self.find_products(program)
        positions = tuple([i for i, atom in enumerate(program.outputs) if atom in products])
        if not positions:
            return ()
        needed_outside: set[Atom] = {program.outputs[i] for i in positions}
        hoisted: list[Equation] = []
        for eqn in reversed(program.equations):
            if any([v in needed_outside for v in eqn.outputs]) and eqn.outputs[0] in products:
                hoisted.append(eqn)
                needed_outside.update(eqn.inputs)
        computed_outside = {v for eqn in hoisted for v in eqn.outputs}
        available = {v for i, v in enumerate(program.inputs) if i not in self.internal_inputs}
        needed = dict.fromkeys([a for e in hoisted for a in e.inputs if type(a) is Var])
        exposed = [v for v in needed if v not in computed_outside and v not in available]
        other_outputs = [atom for i, atom in enumerate(program.outputs) if i not in positions]
        outputs: list[Atom] = [*other_outputs, *exposed]
        remaining = Program(
            program.name, program.inputs, dce_equations(program.equations, outputs), outputs
        )
        return HoistedProducts(positions, remaining, exposed, hoisted[::-1])


def hoist_products(program: Program, find_products: Callable[[Program], set[Any]]) -> Program:
    """`program` with the products that calls return hoisted, and calls that take some inlined."""
    for _ in range(_MAX_HOIST_ROUNDS):
        if all(eqn.primitive.name not in CALL_PRIMITIVES for eqn in program.equations):
            break
        hoister = _ProductHoister(program, find_products)
        if not hoister.changed:
            break
        program = Program(
            program.name, program.inputs, hoister.equations, hoister.substituted(program.outputs)
        )
    return program


class _ProductHoister:
    """One pass over the equations of a program that hoists products out of calls."""

    def __init__(self, program: Program, find_products: Callable[[Program], set[Any]]):
        self.find_products = find_products
        self.changed = False
        self.equations: list[Equation] = []
        self.substitutions: dict[Atom, Atom] = {}
        products = find_products(program)
        returned = {*program.outputs}
        for eqn in program.equations:
            if any([a in self.substitutions for a in eqn.inputs]):
                eqn = eqn.replace(inputs=self.substituted(eqn.inputs))
            primitive: Any = eqn.primitive
            split: Any = ()
            if primitive.name in CALL_PRIMITIVES and not primitive.effects:
                # Outputs of this program are needed as they are.
                if not returned.issuperset(eqn.outputs):
                    split = cached_rewrite(
                        FindHoistableProducts(find_products, carried_operands(primitive)),
                        primitive.program,
                    )
                if split and all([eqn.outputs[i] in returned for i in split.outputs_made_outside]):
                    split = ()
            if split:
                self.hoist_from(eqn, split)
            elif (
                type(primitive) is Call
                and not primitive.noinline
                and any([a in products for a in eqn.inputs])
            ):
                self.inline(eqn)
            else:
                self.equations.append(eqn)

    def substituted(self, atoms: Sequence[Atom]) -> list[Atom]:
        """The atoms that now stand for each of `atoms`."""
        return [self.substitutions.get(a, a) for a in atoms]

    def hoist_from(self, eqn: Equation, split: HoistedProducts) -> None:
        """Append the call of the remaining program, then the hoisted equations."""
        self.changed = True
        primitive: Any = eqn.primitive
        program = primitive.program
        env: dict[Atom, Atom] = dict(zip(program.inputs, eqn.inputs, strict=True))
        other_outputs = [
            v for i, v in enumerate(eqn.outputs) if i not in split.outputs_made_outside
        ]
        length = primitive.length if type(primitive) is Scan else None
        exposed_outputs = [
            Var(add_axis(v.aval, None if length is None else 0, length or 0)) for v in split.exposed
        ]
        env.update(zip(split.exposed, exposed_outputs, strict=True))
        params = {f: getattr(primitive, f) for f in primitive.fields}
        call = type(primitive)(**params | {"program": split.remaining})
        if other_outputs or exposed_outputs:
            self.equations.append(
                eqn.replace(primitive=call, outputs=[*other_outputs, *exposed_outputs])
            )
        if length is None:
            self.copy_equations(split.hoisted, env)
        else:
            self.copy_batched(split, program, {*program.inputs[: primitive.consts]}, length, env)
        for i in split.outputs_made_outside:
            self.substitutions[eqn.outputs[i]] = env[program.outputs[i]]

    def copy_batched(
        self,
        split: HoistedProducts,
        program: Program,
        consts: set[Atom],
        length: int,
        env: dict[Atom, Atom],
    ) -> None:
        """Append the hoisted equations of a scan, batched over its steps; `consts` are shared."""
        computed = {v for eqn in split.hoisted for v in eqn.outputs}
        needed = dict.fromkeys(
            [a for e in split.hoisted for a in e.inputs if type(a) is Var and a not in computed]
        )
        outputs = list(dict.fromkeys([program.outputs[i] for i in split.outputs_made_outside]))
        step = Program(program.name, [*needed], split.hoisted, outputs)
        dims = tuple([None if v in consts else 0 for v in needed])
        batched = Batch(length, dims, (0,) * len(outputs))(step)
        batched_env: dict[Atom, Atom] = dict(
            zip(batched.inputs, [env[v] for v in needed], strict=True)
        )
        self.copy_equations(batched.equations, batched_env)
        env.update(zip(outputs, [batched_env[a] for a in batched.outputs], strict=True))

    def inline(self, eqn: Equation) -> None:
        """Append the equations of the called program."""
        self.changed = True
        program = eqn.primitive.program  # type: ignore[attr-defined]
        env: dict[Atom, Atom] = dict(zip(program.inputs, eqn.inputs, strict=True))
        self.copy_equations(program.equations, env)
        for v, atom in zip(eqn.outputs, program.outputs, strict=True):
            self.substitutions[v] = env[atom] if type(atom) is Var else atom

    def copy_equations(self, equations: Sequence[Equation], env: dict[Atom, Atom]) -> None:
        """Append `equations` with new variables; `env` maps the old ones to the new."""
        for eqn in equations:
            outputs = [Var(v.aval) for v in eqn.outputs]
            inputs = [env[a] if type(a) is Var else a for a in eqn.inputs]
            env.update(zip(eqn.outputs, outputs, strict=True))
            self.equations.append(eqn.replace(inputs=inputs, outputs=outputs))


def carried_operands(primitive: Primitive) -> range:
    """The operands of a scan that are carries."""
    if type(primitive) is not Scan:
        return range(0)
    return range(primitive.consts, primitive.consts + primitive.carries)


CALL_PRIMITIVES = frozenset({"call", "checkpoint", "scan"})


class ReassociationThresholds(Record):
    """The least sizes for another order: of products in elements, and of the speedup.

    `scaling_cost` is the cost of compiling and starting the kernels that scale a squared factor, in
    operations of a matrix product.
    """

    min_elements: int
    min_speedup: float
    scaling_cost: int = 0


REASSOCIATION_THRESHOLDS = {
    "auto": ReassociationThresholds(1024, 1.3, 1 << 19),
    "always": ReassociationThresholds(2, 1.0),
}


class ReassociateContractions(Rewrite[Program]):
    """Rewrites sums of products to the cheapest order of contractions.

    Only products that are larger than their operands are expanded. Values change by rounding.
    """

    mode: str = "auto"

    def __call__(self, program: Program) -> Program:
        thresholds = REASSOCIATION_THRESHOLDS.get(self.mode)
        if thresholds is None or program.writes:
            return program
        if not may_have_large_products(program, thresholds):
            return program
        hoisted = hoist_products(program, FindLargeProducts(thresholds))
        products = LargeProducts(hoisted, thresholds)
        einsums = products.select_sums()
        if not einsums:
            return program

        def step(eqn: Equation, *args: Tracer) -> Values:
            einsum = einsums.get(eqn)
            return (
                bind_equation(eqn, *args) if einsum is None else [einsum.emit(values.__getitem__)]
            )

        def body(*args: Tracer) -> list[Tracer]:
            values.update(zip(hoisted.inputs, args, strict=True))
            return interpret(hoisted, args, remember)

        values: dict[Atom, Any] = {}

        def remember(eqn: Equation, *args: Tracer) -> Values:
            outs = step(eqn, *args)
            values.update(zip(eqn.outputs, outs, strict=True))
            return outs

        rewritten = trace_closed(body, program.in_avals, name=program.name)
        return replace_program_fields(
            program,
            inputs=rewritten.inputs,
            equations=rewritten.equations,
            outputs=rewritten.outputs,
        )


def may_have_large_products(program: Program, thresholds: ReassociationThresholds) -> bool:
    """Whether a product may be larger than its operands, by a quick look at the equations."""
    broadcasts = {
        e.outputs[0] for e in program.equations if type(e.primitive) is ops.BroadcastInDim
    }
    outputs = {*program.outputs}
    for eqn in program.equations:
        kind = type(eqn.primitive)
        if kind is ops.DotGeneral:
            x, y = eqn.inputs
            (out,) = eqn.outputs
            size, operand_size = out.aval.size, x.aval.size + y.aval.size
            # A matrix that is an output is needed as it is.
            expandable = not eqn.primitive.contracting_dims[0] or out not in outputs  # type: ignore[attr-defined]
            large = (
                size >= thresholds.min_elements
                and size > min_expansion(eqn.primitive) * operand_size
            )
            if large and expandable:
                return True
        elif kind is ops.Mul:
            if broadcasts and eqn.inputs[0] in broadcasts and eqn.inputs[1] in broadcasts:
                return True
        elif kind is ops.ScatterAdd or is_batch_of_convolutions(eqn):
            (out,) = eqn.outputs
            if out.aval.size >= thresholds.min_elements and out not in outputs:
                return True
        elif eqn.primitive.name in CALL_PRIMITIVES:
            return True
    return False


def min_expansion(product: Any) -> int:
    """The least ratio of a product's size to that of its operands for which it is expanded."""
    # A plain matrix product must be much larger than its operands.
    return _MIN_MATMUL_EXPANSION if product.contracting_dims[0] and not product.batch_dims[0] else 1


class FindLargeProducts(Rewrite[set[Any]]):
    """Finds the variables that are large products, or made of one without a sum."""

    thresholds: ReassociationThresholds

    def __call__(self, program: Program) -> set[Atom]:
        return {*LargeProducts(program, self.thresholds).products_within}


class LargeProducts:
    """The large products of a program, and the variables and sums that they reach."""

    def __init__(self, program: Program, thresholds: ReassociationThresholds):
        self.program, self.thresholds = program, thresholds
        self.producers: dict[Atom, Equation] = {}
        # The large products; for each variable that some reach without a sum, which those are.
        self.large: dict[Var, Equation] = {}
        self.products_within: dict[Atom, frozenset[Var]] = {}
        self.sums: list[Equation] = []
        for eqn in program.equations:
            for v in eqn.outputs:
                self.producers[v] = eqn
            kind = type(eqn.primitive)
            if kind is ops.DotGeneral or kind is ops.Mul or is_batch_of_convolutions(eqn):
                self.visit_product(eqn)
            elif kind is ops.ScatterAdd:
                self.visit_scatter(eqn)
            elif self.products_within:
                if kind in EXPANDABLE_PRIMITIVES or kind is ops.Concatenate:
                    self.propagate(eqn)
                elif kind is ops.Add or kind is ops.Sub:
                    # The sum of a product and another array is computed as it is.
                    if (
                        eqn.inputs[0] in self.products_within
                        and eqn.inputs[1] in self.products_within
                    ):
                        self.propagate(eqn)
                elif is_sum(eqn) and eqn.inputs[0] in self.products_within:
                    self.sums.append(eqn)

    def visit_product(self, eqn: Equation) -> None:
        """Record a product if it is large; else the large products that reach its result."""
        (out,) = eqn.outputs
        is_dot = type(eqn.primitive) is ops.DotGeneral
        contract = self.contracted_size(eqn)
        expansion = min_expansion(eqn.primitive) if is_dot else 1
        size = out.aval.size
        if size >= self.thresholds.min_elements and size > expansion * sum(
            map(self.source_size, eqn.inputs)
        ):
            self.large[out] = eqn
            inner = [self.products_within[a] for a in eqn.inputs if a in self.products_within]
            self.products_within[out] = frozenset({out}).union(*inner)
        elif not self.products_within:
            return
        elif not contract:
            self.propagate(eqn)
        elif is_dot and any([a in self.products_within for a in eqn.inputs]):
            self.sums.append(eqn)

    def visit_scatter(self, eqn: Equation) -> None:
        """Record a scatter-add of rows, which is a product with one-hot vectors, if it is large."""
        (out,) = eqn.outputs
        x, indices, updates = eqn.inputs
        size = out.aval.size
        if (
            size >= self.thresholds.min_elements
            and size > updates.aval.size
            and scatter_row_axis(eqn.primitive, x, indices, updates) is not None
            and (x in self.products_within or is_zero_array(x, self.producers))
        ):
            self.large[out] = eqn
            self.products_within[out] = frozenset({out}) | self.products_within.get(x, frozenset())

    def source_size(self, atom: Atom) -> int:
        """The number of elements that `atom` has without repetitions."""
        while (eqn := self.producers.get(atom)) is not None:
            if type(eqn.primitive) not in _SHAPE_OPS:
                break
            atom = eqn.inputs[0]
        return int(atom.aval.size)

    def propagate(self, eqn: Equation) -> None:
        """Record the large products that reach the result of an equation."""
        operand_products = [
            self.products_within[a] for a in eqn.inputs if a in self.products_within
        ]
        if operand_products:
            self.products_within[eqn.outputs[0]] = frozenset().union(*operand_products)

    def select_sums(self) -> dict[Equation, SumOfEinsums]:
        """The sums to compute in another order, with their einsums."""
        speedup = self.thresholds.min_speedup
        kept = self.required_products(self.program.outputs, {*self.sums})
        orders: dict[Equation, Any] = {}
        pending = self.sums
        while pending:
            expandable = {v for v, found in self.products_within.items() if not found <= kept}
            pending = [eqn for eqn in pending if any([a in expandable for a in eqn.inputs])]
            orders = {eqn: expand_sum(eqn, self.producers, expandable) for eqn in pending}
            rejected = [
                eqn
                for eqn, found in orders.items()
                if found is None
                or self.cost_of(found) * speedup
                > self.cost_of_products([eqn], kept) + self.cost_as_written(eqn)
            ]
            if not rejected:
                break
            # Other sums may read the products that one keeps: those that keep fewest come first.
            missing = {eqn: self.products_read_by([eqn]) - kept for eqn in rejected}
            fewest = min(map(len, missing.values()))
            for eqn, products in missing.items():
                if len(products) == fewest:
                    kept |= products
                    pending.remove(eqn)
        orders = {eqn: e for eqn, e in orders.items() if eqn in pending}
        chosen: dict[Equation, SumOfEinsums] = {}
        for sums in self.group_by_products([eqn for eqn in self.sums if eqn in orders]):
            shared_cost = self.cost_of_products(sums, kept)
            alone = {
                e: orders[e]
                for e in sums
                if self.cost_of(orders[e]) * speedup < self.cost_as_written(e)
            }
            separate_cost = sum(
                [self.cost_of(orders[e]) if e in alone else self.cost_as_written(e) for e in sums]
            )
            joint_cost = sum([self.cost_of(orders[e]) for e in sums])
            better = joint_cost * speedup < shared_cost + separate_cost
            chosen.update({e: orders[e] for e in sums} if better else alone)
        for eqn in self.sums:
            # Products computed anyway: sums of rows would lose accuracy by cancellation.
            only_outer = all(
                [not self.contracted_size(self.large[v]) for v in self.products_read_by([eqn])]
            )
            if only_outer and eqn not in chosen and eqn not in orders:
                found = expand_sum(eqn, self.producers, {*self.products_within})
                if found is not None and self.cost_of(found) * speedup < self.cost_as_written(eqn):
                    chosen[eqn] = found
        return chosen

    def products_read_by(self, eqns: Iterable[Equation]) -> set[Var]:
        """The large products that equations read."""
        return {p for eqn in eqns for a in eqn.inputs for p in self.products_within.get(a, ())}

    def cost_of_products(self, eqns: Iterable[Equation], kept: set[Var]) -> float:
        """The cost to compute the products that equations read, except those that are `kept`."""
        return sum([self.product_cost(self.large[v]) for v in self.products_read_by(eqns) - kept])

    def required_products(self, outputs: Iterable[Atom], sums: set[Equation]) -> set[Var]:
        """The products that `outputs`, or equations which cannot be expanded, need."""
        needed = {*outputs}
        for eqn in self.program.equations:
            if eqn not in sums and (
                len(eqn.outputs) != 1 or eqn.outputs[0] not in self.products_within
            ):
                needed.update(eqn.inputs)
        return set().union(
            *[products for v, products in self.products_within.items() if v in needed]
        )

    def group_by_products(self, sums: Sequence[Equation]) -> list[list[Equation]]:
        """Groups of sums that have products in common."""
        groups: list[tuple[set[Var], list[Equation]]] = []
        for eqn in sums:
            products, members = self.products_read_by([eqn]), [eqn]
            others = []
            for group in groups:
                if group[0].isdisjoint(products):
                    others.append(group)
                else:
                    products |= group[0]
                    members = group[1] + members
            groups = [*others, (products, members)]
        return [members for _, members in groups]

    def contracted_size(self, eqn: Equation) -> int:
        """The number of products summed for an element of a large product; 0 without a sum."""
        if type(eqn.primitive) is ops.ScatterAdd:
            return 1
        if type(eqn.primitive) is Convolution:
            kernel = eqn.inputs[1].aval
            return kernel.size // kernel.shape[eqn.primitive.layouts.kernel[0]]
        if type(eqn.primitive) is not ops.DotGeneral or not eqn.primitive.contracting_dims[0]:
            return 0
        return prod([eqn.inputs[0].aval.shape[d] for d in eqn.primitive.contracting_dims[0]])

    def cost_of(self, found: SumOfEinsums) -> float:
        """The cost of a sum as einsums of small factors."""
        return found.cost + self.thresholds.scaling_cost * found.num_scaled

    def product_cost(self, eqn: Equation) -> float:
        """The cost to compute a product."""
        (out,) = eqn.outputs
        memory = out.aval.size + sum([self.source_size(a) for a in eqn.inputs])
        return 2.0 * out.aval.size * max(self.contracted_size(eqn), 1) + MEMORY_COST * memory

    def cost_as_written(self, eqn: Equation) -> float:
        """The cost to compute a sum from the products as they are."""
        if type(eqn.primitive) is ops.DotGeneral:
            return self.product_cost(eqn)
        return float(MEMORY_COST * (eqn.outputs[0].aval.size + eqn.inputs[0].aval.size))


_MIN_MATMUL_EXPANSION = 4
_SHAPE_OPS = frozenset({ops.BroadcastInDim, ops.Full, ops.Reshape, ops.PermuteDims})
