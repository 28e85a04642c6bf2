"""Where a nan comes from: programs run equation by equation under `jax.debug_nans`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from functx.core.dtypes import is_inexact
from functx.core.errors import NonFiniteError
from functx.core.program import Equation, Program, Var
from functx.lowering.call import jit_program


def nonfinite_checks() -> tuple[str, ...]:
    """The kinds of values that JAX is set to refuse, among `nan` and `inf`."""
    switches = {"nan": jax.config.jax_debug_nans, "inf": jax.config.jax_debug_infs}  # type: ignore[attr-defined]
    return tuple([kind for kind, on in switches.items() if on])


def run_checking_finite(program: Program, args: Sequence[Any], kinds: Sequence[str]) -> list[Any]:
    """The outputs of `program`; NonFiniteError for the first equation that gives one of `kinds`."""
    program = program.inline()
    env: dict[Any, Any] = dict(zip(program.inputs, args, strict=True))
    with jax.debug_nans(False), jax.debug_infs(False), jax.disable_jit(False):
        for eqn in program.equations:
            # Not the executable of operations: it may be this one that gave the nan.
            inputs = [v for v in dict.fromkeys(eqn.inputs) if type(v) is Var]
            step = jit_program(Program(eqn.primitive.name, inputs, [eqn], eqn.outputs))
            outs = step(*[env[v] for v in inputs])
            for out in outs:
                check_finite(eqn, np.asarray(out), kinds)
            env.update(zip(eqn.outputs, outs, strict=True))
        return [jax.numpy.asarray(_read_atom(env, a)) for a in program.outputs]


def _read_atom(env: dict[Any, Any], atom: Any) -> Any:
    return env[atom] if type(atom) is Var else np.asarray(atom.value, atom.aval.dtype)


def check_finite(eqn: Equation, out: Any, kinds: Sequence[str]) -> None:
    if not is_inexact(out.dtype):
        return
    for kind in kinds:
        if np.any(np.isnan(out) if kind == "nan" else np.isinf(out)):
            raise NonFiniteError(
                f"{eqn.primitive!r}: no value may be {kind} while jax.debug_{kind}s is on; "
                f"got {kind} in {eqn.outputs[0].aval!r}",
                source=eqn.source,
            )
