"""Products that programs within a program return: made outside of those, where sums see them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import Any, NamedTuple

from functx import ops
from functx.core.program import Atom, Equation, Program, Var, dce_equations
from functx.core.program_editing import replace_program_fields
from functx.core.records import Record, Rewrite
from functx.core.rewriting import bind_equation, cached_rewrite, interpret
from functx.core.tracing import Tracer, trace_closed
from functx.passes.einsum import MEMORY_COST
from functx.passes.einsum_factors import (
    EXPANDABLE_PRIMITIVES,
    is_zero_array,
    scatter_row_axis,
)
from functx.passes.sums_of_products import SumOfEinsums, expand_sum, is_sum
from functx.transforms.call_primitive import Call
from functx.transforms.control.scan import Scan
from functx.transforms.vmap import Batch, add_axis

_MAX_HOIST_ROUNDS = 4


class HoistedProducts(NamedTuple):
    """A program without the products it returned, and what makes them of its inputs and outputs.

    `places` are those of the outputs that `outside` makes. Its inputs are variables of the
    program: inputs, or the last outputs of `inside`.
    """

    outputs_made_outside: tuple[int, ...]
    remaining: Program
    exposed: list[Var]
    hoisted: list[Equation]


class FindHoistableProducts(Rewrite[HoistedProducts | tuple[()]]):
    """The analysis of a program that takes off the products that it returns, if it does.

    `reach` gives the variables of a program that are such products, as they are passed on. The
    inputs at `hidden` are not known outside.
    """

    find_products: Callable[[Program], set[Any]]
    internal_inputs: range = range(0)

    def __call__(self, program: Program) -> HoistedProducts | tuple[()]:
        reached = self.find_products(program)
        places = tuple([i for i, atom in enumerate(program.outputs) if atom in reached])
        if not places:
            return ()
        wanted: set[Any] = {program.outputs[i] for i in places}
        outside: list[Equation] = []
        for eqn in reversed(program.equations):
            if any([v in wanted for v in eqn.outputs]) and eqn.outputs[0] in reached:
                outside.append(eqn)
                wanted.update(eqn.inputs)
        made = {v for eqn in outside for v in eqn.outputs}
        given = {v for i, v in enumerate(program.inputs) if i not in self.internal_inputs}
        needed = dict.fromkeys([a for e in outside for a in e.inputs if type(a) is Var])
        extra = [v for v in needed if v not in made and v not in given]
        kept = [atom for i, atom in enumerate(program.outputs) if i not in places]
        outputs: list[Atom] = [*kept, *extra]
        inside = Program(
            program.name, program.inputs, dce_equations(program.equations, outputs), outputs
        )
        return HoistedProducts(places, inside, extra, outside[::-1])


def hoist_products(program: Program, reach: Callable[[Program], set[Any]]) -> Program:
    """`program` with the products that its calls return made outside, and calls that take some inlined."""
    for _ in range(_MAX_HOIST_ROUNDS):
        if all(eqn.primitive.name not in CALL_PRIMITIVES for eqn in program.equations):
            break
        taken_off = _ProductHoister(program, reach)
        if not taken_off.changed:
            break
        program = Program(
            program.name, program.inputs, taken_off.equations, taken_off.outputs(program.outputs)
        )
    return program


class _ProductHoister:
    """One pass over the equations of a program, in which calls are opened up."""

    def __init__(self, program: Program, reach: Callable[[Program], set[Any]]):
        self.find_products = reach
        self.changed = False
        self.equations: list[Equation] = []
        self.substitutions: dict[Any, Atom] = {}
        reached = reach(program)
        returned = {*program.outputs}
        for eqn in program.equations:
            if any([a in self.substitutions for a in eqn.inputs]):
                eqn = eqn.replace(inputs=self.outputs(eqn.inputs))
            primitive: Any = eqn.primitive
            found: Any = ()
            if primitive.name in CALL_PRIMITIVES and not primitive.effects:
                # What is returned from here as well is needed as it is.
                if not returned.issuperset(eqn.outputs):
                    found = cached_rewrite(
                        FindHoistableProducts(reach, carried_operands(primitive)), primitive.program
                    )
                if found and all([eqn.outputs[i] in returned for i in found.outputs_made_outside]):
                    found = ()
            if found:
                self.hoist_from(eqn, found)
            elif (
                type(primitive) is Call
                and not primitive.noinline
                and any([a in reached for a in eqn.inputs])
            ):
                self.inline(eqn)
            else:
                self.equations.append(eqn)

    def outputs(self, atoms: Sequence[Atom]) -> list[Atom]:
        """What stands for each of `atoms` now."""
        return [self.substitutions.get(a, a) for a in atoms]

    def hoist_from(self, eqn: Equation, found: HoistedProducts) -> None:
        """The call of what is left inside, and then what is made outside."""
        self.changed = True
        primitive: Any = eqn.primitive
        program = primitive.program
        env: dict[Any, Atom] = dict(zip(program.inputs, eqn.inputs, strict=True))
        kept = [v for i, v in enumerate(eqn.outputs) if i not in found.outputs_made_outside]
        rows = primitive.length if type(primitive) is Scan else None
        fresh = [
            Var(add_axis(v.aval, None if rows is None else 0, rows or 0)) for v in found.exposed
        ]
        env.update(zip(found.exposed, fresh, strict=True))
        params = {f: getattr(primitive, f) for f in primitive.fields}
        call = type(primitive)(**params | {"program": found.remaining})
        if kept or fresh:
            self.equations.append(eqn.replace(primitive=call, outputs=[*kept, *fresh]))
        if rows is None:
            self.copy_equations(found.hoisted, env)
        else:
            self.copy_batched(found, program, {*program.inputs[: primitive.consts]}, rows, env)
        for i in found.outputs_made_outside:
            self.substitutions[eqn.outputs[i]] = env[program.outputs[i]]

    def copy_batched(
        self,
        found: HoistedProducts,
        program: Program,
        consts: set[Any],
        rows: int,
        env: dict[Any, Atom],
    ) -> None:
        """What each step made, for all rows at once; `consts` are the same in each."""
        made = {v for eqn in found.hoisted for v in eqn.outputs}
        needed = dict.fromkeys(
            [a for e in found.hoisted for a in e.inputs if type(a) is Var and a not in made]
        )
        outputs = list(dict.fromkeys([program.outputs[i] for i in found.outputs_made_outside]))
        one = Program(program.name, [*needed], found.hoisted, outputs)
        dims = tuple([None if v in consts else 0 for v in needed])
        whole = Batch(rows, dims, (0,) * len(outputs))(one)
        inner: dict[Any, Atom] = dict(zip(whole.inputs, [env[v] for v in needed], strict=True))
        self.copy_equations(whole.equations, inner)
        env.update(zip(outputs, [inner[a] for a in whole.outputs], strict=True))  # type: ignore[arg-type]

    def inline(self, eqn: Equation) -> None:
        """The equations of the program in place of its call."""
        self.changed = True
        program = eqn.primitive.program  # type: ignore[attr-defined]
        env: dict[Any, Atom] = dict(zip(program.inputs, eqn.inputs, strict=True))
        self.copy_equations(program.equations, env)
        for v, atom in zip(eqn.outputs, program.outputs, strict=True):
            self.substitutions[v] = env[atom] if type(atom) is Var else atom

    def copy_equations(self, equations: Sequence[Equation], env: dict[Any, Atom]) -> None:
        """Equations once more, with other variables."""
        for eqn in equations:
            outputs = [Var(v.aval) for v in eqn.outputs]
            inputs = [env[a] if type(a) is Var else a for a in eqn.inputs]
            env.update(zip(eqn.outputs, outputs, strict=True))
            self.equations.append(eqn.replace(inputs=inputs, outputs=outputs))


def carried_operands(primitive: Any) -> range:
    """The operands of a loop that change from step to step without being rows."""
    if type(primitive) is not Scan:
        return range(0)
    return range(primitive.consts, primitive.consts + primitive.carries)


CALL_PRIMITIVES = frozenset({"call", "checkpoint", "scan"})


class ReassociationThresholds(Record):
    """From when on an order pays: for products of `elements`, if it costs `times` less."""

    min_elements: int
    min_speedup: float


REASSOCIATION_THRESHOLDS = {
    "auto": ReassociationThresholds(1024, 1.3),
    "always": ReassociationThresholds(2, 1.0),
}


class ReassociateContractions(Rewrite[Program]):
    """The rewrite to a program in which sums of products are made in the cheapest order.

    A product is looked into only if it is larger than what it is made of. Values change in
    rounding alone.
    """

    mode: str = "auto"

    def __call__(self, program: Program) -> Program:
        worth = REASSOCIATION_THRESHOLDS.get(self.mode)
        if worth is None or program.writes:
            return program
        if not may_have_large_products(program, worth):
            return program
        flat = hoist_products(program, FindLargeProducts(worth))
        flow = LargeProducts(flat, worth)
        chosen = flow.select_sums()
        if not chosen:
            return program

        def step(eqn: Equation, *args: Tracer) -> Sequence[Any]:
            einsum = chosen.get(eqn)
            return (
                bind_equation(eqn, *args) if einsum is None else [einsum.emit(values.__getitem__)]
            )

        def body(*args: Tracer) -> list[Tracer]:
            values.update(zip(flat.inputs, args, strict=True))
            return interpret(flat, args, remember)

        values: dict[Any, Any] = {}

        def remember(eqn: Equation, *args: Tracer) -> Sequence[Any]:
            outs = step(eqn, *args)
            values.update(zip(eqn.outputs, outs, strict=True))
            return outs

        made = trace_closed(body, program.in_avals, name=program.name)
        return replace_program_fields(
            program, inputs=made.inputs, equations=made.equations, outputs=made.outputs
        )


def may_have_large_products(program: Program, worth: ReassociationThresholds) -> bool:
    """Whether a product may be larger than what it is made of, as far as a glance tells."""
    wide = {e.outputs[0] for e in program.equations if type(e.primitive) is ops.BroadcastInDim}
    outputs = {*program.outputs}
    for eqn in program.equations:
        kind_of = type(eqn.primitive)
        if kind_of is ops.DotGeneral:
            x, y = eqn.inputs
            (out,) = eqn.outputs
            size, given = out.aval.size, x.aval.size + y.aval.size
            # A matrix that is returned is needed as it is.
            looked_into = not eqn.primitive.contracting_dims[0] or out not in outputs  # type: ignore[attr-defined]
            large = size >= worth.min_elements and size > min_expansion(eqn.primitive) * given
            if large and looked_into:
                return True
        elif kind_of is ops.Mul:
            if wide and eqn.inputs[0] in wide and eqn.inputs[1] in wide:
                return True
        elif kind_of is ops.ScatterAdd:
            (out,) = eqn.outputs
            if out.aval.size >= worth.min_elements and out not in outputs:
                return True
        elif eqn.primitive.name in CALL_PRIMITIVES:
            return True
    return False


def min_expansion(product: Any) -> int:
    """How many times as large as its operands together a product is at least to be looked into."""
    # Of a plain matrix product the difference must be great.
    return _MIN_MATMUL_EXPANSION if product.contracting_dims[0] and not product.batch_dims[0] else 1


class FindLargeProducts(Rewrite[set[Any]]):
    """The analysis of a program that finds its large products, as far as they are passed on."""

    thresholds: ReassociationThresholds

    def __call__(self, program: Program) -> set[Any]:
        return {*LargeProducts(program, self.thresholds).products_within}


class LargeProducts:
    """Where the large products of a program go."""

    def __init__(self, program: Program, worth: ReassociationThresholds):
        self.program, self.thresholds = program, worth
        self.producers: dict[Any, Equation] = {}
        # The large products, and for each value that they reach without being summed, which.
        self.large: dict[Var, Equation] = {}
        self.products_within: dict[Any, frozenset[Var]] = {}
        self.sums: list[Equation] = []
        for eqn in program.equations:
            for v in eqn.outputs:
                self.producers[v] = eqn
            kind_of = type(eqn.primitive)
            if kind_of is ops.DotGeneral or kind_of is ops.Mul:
                self.visit_product(eqn)
            elif kind_of is ops.ScatterAdd:
                self.visit_scatter(eqn)
            elif self.products_within:
                if kind_of in EXPANDABLE_PRIMITIVES or kind_of is ops.Concatenate:
                    self.propagate(eqn)
                elif kind_of is ops.Add or kind_of is ops.Sub:
                    # The sum of a product and of something else is formed.
                    if (
                        eqn.inputs[0] in self.products_within
                        and eqn.inputs[1] in self.products_within
                    ):
                        self.propagate(eqn)
                elif is_sum(eqn) and eqn.inputs[0] in self.products_within:
                    self.sums.append(eqn)

    def visit_product(self, eqn: Equation) -> None:
        (out,) = eqn.outputs
        of_dot = type(eqn.primitive) is ops.DotGeneral
        contract = of_dot and eqn.primitive.contracting_dims[0]  # type: ignore[attr-defined]
        times = min_expansion(eqn.primitive) if of_dot else 1
        size = out.aval.size
        if size >= self.thresholds.min_elements and size > times * sum(
            map(self.source_size, eqn.inputs)
        ):
            self.large[out] = eqn
            below = [self.products_within[a] for a in eqn.inputs if a in self.products_within]
            self.products_within[out] = frozenset({out}).union(*below)
        elif not self.products_within:
            return
        elif not contract:
            self.propagate(eqn)
        elif any([a in self.products_within for a in eqn.inputs]):
            self.sums.append(eqn)

    def visit_scatter(self, eqn: Equation) -> None:
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

    def source_size(self, atom: Any) -> int:
        """The number of elements that `atom` shows, however often it repeats them."""
        while (eqn := self.producers.get(atom)) is not None:
            if type(eqn.primitive) not in _SHAPE_OPS:
                break
            atom = eqn.inputs[0]
        return int(atom.aval.size)

    def propagate(self, eqn: Equation) -> None:
        found = [self.products_within[a] for a in eqn.inputs if a in self.products_within]
        if found:
            self.products_within[eqn.outputs[0]] = frozenset().union(*found)

    def select_sums(self) -> dict[Equation, SumOfEinsums]:
        """The sums to make in another order, and how."""
        times = self.thresholds.min_speedup
        kept = self.required_products(self.program.outputs, {*self.sums})
        orders: dict[Equation, Any] = {}
        pending = self.sums
        while pending:
            open_to = {v for v, found in self.products_within.items() if not found <= kept}
            pending = [eqn for eqn in pending if any([a in open_to for a in eqn.inputs])]
            orders = {eqn: expand_sum(eqn, self.producers, open_to) for eqn in pending}
            closed = [
                eqn
                for eqn, found in orders.items()
                if found is None
                or found.cost * times
                > self.cost_of_products([eqn], kept) + self.cost_as_written(eqn)
            ]
            if not closed:
                break
            # What a sum reads as it is, others may read, too: those that read less come first.
            missing = {eqn: self.products_read_by([eqn]) - kept for eqn in closed}
            least = min(map(len, missing.values()))
            for eqn, products in missing.items():
                if len(products) == least:
                    kept |= products
                    pending.remove(eqn)
        orders = {eqn: e for eqn, e in orders.items() if eqn in pending}
        chosen: dict[Equation, SumOfEinsums] = {}
        for sums in self.group_by_products([eqn for eqn in self.sums if eqn in orders]):
            made = self.cost_of_products(sums, kept)
            alone = {e: orders[e] for e in sums if orders[e].cost * times < self.cost_as_written(e)}
            apart = sum([orders[e].cost if e in alone else self.cost_as_written(e) for e in sums])
            together = sum([orders[e].cost for e in sums])
            better = together * times < made + apart
            chosen.update({e: orders[e] for e in sums} if better else alone)
        for eqn in self.sums:
            # Of what is there anyhow, sums of rows are not worth what cancels in them.
            outer = all(
                [not self.contracted_size(self.large[v]) for v in self.products_read_by([eqn])]
            )
            if outer and eqn not in chosen and eqn not in orders:
                found = expand_sum(eqn, self.producers, {*self.products_within})
                if found is not None and found.cost * times < self.cost_as_written(eqn):
                    chosen[eqn] = found
        return chosen

    def products_read_by(self, eqns: Iterable[Equation]) -> set[Var]:
        """The large products that some equations read."""
        return {p for eqn in eqns for a in eqn.inputs for p in self.products_within.get(a, ())}

    def cost_of_products(self, eqns: Iterable[Equation], kept: set[Var]) -> float:
        """What it costs to make the products that some equations read, but those that are kept."""
        return sum([self.cost(self.large[v]) for v in self.products_read_by(eqns) - kept])

    def required_products(self, outputs: Iterable[Any], sums: set[Equation]) -> set[Var]:
        """The products that `outputs` or equations that cannot be opened up need."""
        needed = {*outputs}
        for eqn in self.program.equations:
            if eqn not in sums and (
                len(eqn.outputs) != 1 or eqn.outputs[0] not in self.products_within
            ):
                needed.update(eqn.inputs)
        return set().union(*[found for v, found in self.products_within.items() if v in needed])

    def group_by_products(self, sums: Sequence[Equation]) -> list[list[Equation]]:
        """Sums in groups of those that have a product in common."""
        groups: list[tuple[set[Var], list[Equation]]] = []
        for eqn in sums:
            products, members = self.products_read_by([eqn]), [eqn]
            apart = []
            for group in groups:
                if group[0].isdisjoint(products):
                    apart.append(group)
                else:
                    products |= group[0]
                    members = group[1] + members
            groups = [*apart, (products, members)]
        return [members for _, members in groups]

    def contracted_size(self, eqn: Equation) -> int:
        """How many products are summed for an element of a large product; 0 without a sum."""
        if type(eqn.primitive) is ops.ScatterAdd:
            return 1
        if type(eqn.primitive) is not ops.DotGeneral or not eqn.primitive.contracting_dims[0]:
            return 0
        return prod([eqn.inputs[0].aval.shape[d] for d in eqn.primitive.contracting_dims[0]])

    def cost(self, eqn: Equation) -> float:
        """What it costs to make a product."""
        (out,) = eqn.outputs
        moved = out.aval.size + sum([self.source_size(a) for a in eqn.inputs])
        return 2.0 * out.aval.size * max(self.contracted_size(eqn), 1) + MEMORY_COST * moved

    def cost_as_written(self, eqn: Equation) -> float:
        """What it costs to make a sum of the products as they are."""
        if type(eqn.primitive) is ops.DotGeneral:
            return self.cost(eqn)
        return float(MEMORY_COST * (eqn.outputs[0].aval.size + eqn.inputs[0].aval.size))


_MIN_MATMUL_EXPANSION = 4
_SHAPE_OPS = frozenset({ops.BroadcastInDim, ops.Full, ops.Reshape, ops.PermuteDims})
