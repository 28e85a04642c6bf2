"""Products that programs within a program return: made outside of those, where sums see them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from functx.core.program import Atom, Equation, Program, Var, dce_equations
from functx.core.records import Rewrite
from functx.core.rewriting import cached_rewrite
from functx.transforms.batching import Batch, add_axis
from functx.transforms.call import Call
from functx.transforms.control.scan import Scan

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
