"""Programs as StableHLO in portable bytes: lowered for a platform, and called by JAX."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import jax
from jax import export
from jax.extend.core import Primitive as JaxPrimitive
from jax.extend.mlir import deserialize_portable_artifact, ir, serialize_portable_artifact
from jax.extend.mlir.dialects import func, stablehlo
from jax.interpreters import mlir

from functx.core.caches import garbage_collection
from functx.core.config import outline_mode
from functx.core.errors import ExportFileError
from functx.core.program import Program
from functx.core.types import ShapedArray
from functx.core.typing import IRValue, PyTree, Value
from functx.lowering.functx_call import bind_functx_call, jit_program
from functx.lowering.jax_bridge import JaxAval, jax_aval
from functx.lowering.stablehlo_emitter import ModuleEmitter

func_ops: ModuleType = func
"""The module `func`, whose stubs lack what the bindings have."""


def lower_to_portable(program: Program, platform: str) -> bytes:
    """The StableHLO of `program` for `platform`, one of "cpu", "cuda", "rocm" and "tpu", in portable bytes.

    Versions of JAX from twelve weeks before on can read them. No device of the platform is needed. The
    function `main` takes all inputs of the program and returns its outputs. There are no paths of source
    files in the bytes, and equal programs have equal ones. Raises the errors of `jax.export.export`.
    """
    avals = [
        jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type) for a in program.in_avals
    ]
    lowered = export.export(jit_program(program, keep_unused=True), platforms=[platform])(*avals)
    return portable_bytes(portable_text(lowered.mlir_module_serialized))


def portable_bytes(text: str) -> bytes:
    """The portable bytes of the text of a StableHLO module, for versions from twelve weeks before on."""
    requirement = stablehlo.StablehloCompatibilityRequirement.WEEK_12
    version = stablehlo.get_version_from_compatibility_requirement(requirement)
    return serialize_portable_artifact(text, version)


def portable_text(data: bytes) -> str:
    """The text of a StableHLO module in portable bytes, without source locations."""
    with mlir.make_ir_context():
        module = deserialize_portable_artifact(data)
        return str(module.operation.get_asm(enable_debug_info=False))


class PortableProgram:
    """A pure program by its StableHLO for some platforms; `make_program` gives the one for others.

    It is a parameter of a JAX primitive, equal to itself only.
    """

    __slots__ = ("__weakref__", "in_avals", "make_program", "modules", "name", "out_avals")

    def __init__(
        self,
        name: str,
        in_avals: Sequence[ShapedArray],
        out_avals: Sequence[ShapedArray],
        modules: Mapping[str, bytes],
        make_program: Callable[[], Program],
    ):
        self.name, self.in_avals, self.out_avals = name, in_avals, out_avals
        self.modules, self.make_program = modules, make_program

    def __call__(self, *args: PyTree) -> list[Any]:
        """The outputs on JAX values of the types of the inputs, as one equation of JAX."""
        outs: list[Any] = portable_call.bind(*args, program=self)
        return outs

    def __repr__(self) -> str:
        return self.name


portable_call = JaxPrimitive("portable_call")
portable_call.multiple_results = True


def _abstract_eval_portable_call(*_: JaxAval, program: PortableProgram) -> list[JaxAval]:
    return [jax_aval(aval) for aval in program.out_avals]


portable_call.def_abstract_eval(_abstract_eval_portable_call)


def _evaluate_portable_call(*args: Value, program: PortableProgram) -> list[Value]:
    # Reached without jit, as for the equation that makes a nan, which the program shows.
    return bind_functx_call(program.make_program(), args)


portable_call.def_impl(_evaluate_portable_call)


def _lower_portable_call(
    ctx: mlir.LoweringRuleContext, *values: IRValue, program: PortableProgram
) -> Sequence[IRValue]:
    context = ctx.module_context
    platforms = tuple(context.platforms)
    data = program.modules.get(platforms[0]) if len(platforms) == 1 else None
    if data is None:
        emitter = ModuleEmitter(ctx, outline_mode())
        with garbage_collection.paused():
            return emitter.emit(program.make_program(), values, is_function=True)
    module = _read_module(program.name, data, context.module.context)
    in_types, out_types = [
        [mlir.aval_to_ir_type(context, jax_aval(a)) for a in avals]
        for avals in (program.in_avals, program.out_avals)
    ]
    _check_main(program.name, module, ir.FunctionType.get(in_types, out_types))
    name = mlir.merge_mlir_modules(
        context.module, program.name, module, dst_symtab=context.symbol_table
    )
    call = func_ops.CallOp(out_types, ir.FlatSymbolRefAttr.get(name), list(values))
    return list(call.results)


mlir.register_lowering(portable_call, _lower_portable_call, cacheable=False)


def _read_module(name: str, data: bytes, context: ir.Context) -> ir.Module:
    """The StableHLO module; ExportFileError for bytes that are none, and for one that calls Python."""
    try:
        with context:
            module: ir.Module = deserialize_portable_artifact(data)
    except (RuntimeError, ValueError) as error:
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise ExportFileError(
            f"{name}: the StableHLO of a file must be such that JAX {jax.__version__} can read it; got "
            f"{reason}",
            fix="Call exported.program, which needs no StableHLO, or update JAX.",
        ) from None
    targets: list[str] = []

    def collect(operation: ir.Operation) -> ir.WalkResult:
        if operation.name == "stablehlo.custom_call":
            targets.append(ir.StringAttr(operation.attributes["call_target_name"]).value)
        return ir.WalkResult.ADVANCE

    module.operation.walk(collect)
    if calls := [target for target in targets if "callback" in target or "python" in target]:
        raise ExportFileError(
            f"{name}: the StableHLO of a file must not call Python; got a call of {calls[0]!r}",
            fix="Do not trust this file: functx saves no such calls.",
        )
    return module


def _check_main(name: str, module: ir.Module, expected: ir.FunctionType) -> None:
    """Raises ExportFileError unless the function `main` has the type of the program."""
    table = ir.SymbolTable(module.operation)
    main: Any = table["main"] if "main" in table else None  # noqa: SIM401 - it has no `get`
    if main is None or main.type != expected:
        raise ExportFileError(
            f"{name}: the StableHLO of a file must have a function main of the type of its program, "
            f"{expected}; got {'none' if main is None else main.type}",
            fix="Save the program again.",
        )
