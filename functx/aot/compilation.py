"""The compilation of a call of an `aot_function`: its trace, its programs, and their compilers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from functx.aot.analysis import Analysis, analyze_program, trace_with_writes
from functx.aot.array_results import ArrayResults
from functx.aot.call_arguments import ArgumentPlan, merge_shared, plan_of
from functx.aot.call_node import CallPullback
from functx.aot.calls import CallPrograms, CompiledCall, memory_of
from functx.aot.compilers import CompiledProgram, Compiler
from functx.aot.prepared import analyzed_joint_program, with_trailing_writes
from functx.autograd.variable import Variable
from functx.core import tree
from functx.core.errors import CompilerFunctionError, type_name
from functx.core.masks import select_where
from functx.core.memory_layouts import noncontiguous_strides
from functx.core.program import Program
from functx.core.program_editing import replace_program_fields
from functx.core.rewriting import cached_rewrite
from functx.core.strides import is_row_major
from functx.core.tracer import aval_of
from functx.core.typing import ArrayLike, Function
from functx.passes.memory_planning import JointProgram
from functx.passes.partition import Partition
from functx.transforms.aliasing import check_variables_not_aliased
from functx.transforms.dce import with_io
from functx.transforms.decompose import decomposition_rewrite

PartitionFunction: TypeAlias = Callable[[JointProgram], Partition]
"""Splits a joint program into a forward and a backward program."""


class FunctionOptions(NamedTuple):
    """The options of an `aot_function` that its programs depend on."""

    fw_compiler: Compiler | None
    bw_compiler: Compiler | None
    inference_compiler: Compiler | None
    partition_fn: PartitionFunction
    decompositions: Mapping[Any, Any] | None
    keep_input_mutations: bool
    backward_at_once: bool


class Compilation:
    """The compilation number `number` of `fun`, for arguments of the structure `in_tree`."""

    def __init__(
        self,
        fun: Function,
        options: FunctionOptions,
        in_tree: tree.TreeDef,
        number: int,
        label: str,
    ):
        self.fun, self.options, self.in_tree = fun, options, in_tree
        self.number, self.label = number, label
        self.results = ArrayResults(fun, False)
        self.depends_on_memory = False

    def compile(
        self, arrays: Sequence[Any], flags: Sequence[bool] | None, same: Sequence[int] | None
    ) -> CompiledCall:
        """The compiled call for arguments like `arrays`.

        `flags` says which of them need a gradient, None if none is recorded; `same` which are the same.
        """
        plan = plan_of(range(len(arrays)) if same is None else same)
        analysis = self.analyze(plan, arrays, flags)
        written = {i for i, x in enumerate(analysis.meta.inputs) if x.mutates_data}
        if written:
            merged = merge_shared(plan, arrays, written)
            if merged is not plan:
                plan = merged
                analysis = self.analyze(plan, arrays, flags)
                written = {i for i, x in enumerate(analysis.meta.inputs) if x.mutates_data}
            inputs = [*plan.inputs_of(arrays), *analysis.captured]
            for k, x in enumerate(inputs):
                if k in written and isinstance(x, Variable):
                    check_variables_not_aliased([x, *analysis.captured], {0})
        memory = memory_of(arrays) if self.depends_on_memory else None
        programs = self.programs(analysis)
        return CompiledCall(self.number, self.label, plan, analysis, programs, self.results, memory)

    def analyze(
        self, plan: ArgumentPlan, arrays: Sequence[Any], flags: Sequence[bool] | None
    ) -> Analysis:
        """The analysis of the function of the inputs of a plan."""
        inputs = plan.inputs_of(arrays)
        results = ArrayResults(self.fun, any([isinstance(x, Variable) for x in inputs]))
        self.results = results
        fun: Function = results
        in_tree = self.in_tree
        if not plan.is_identity:
            fun, in_tree = (
                results.of_inputs(plan, in_tree),
                tree.structure((tuple(range(len(inputs))), {})),
            )
        avals = [aval_of(x) for x in inputs]
        placed = [placeholder(x) if isinstance(x, Variable) else x for x in inputs]
        traced, strides = trace_with_writes(fun, in_tree, avals, "aot_function", placed)
        records = flags is not None
        needs_grad = [
            records and isinstance(x, Variable) and x.requires_grad
            for x in (*inputs, *traced.captured)
        ]
        meta, program = analyze_program(
            traced.program,
            needs_grad,
            self.options.keep_input_mutations,
            strides=strides or [noncontiguous_strides(x) for x in placed],
            shares_all=any([isinstance(x, Variable) for x in (*inputs, *traced.captured)]),
            is_leaf=[not isinstance(x, Variable) or x.is_leaf for x in (*inputs, *traced.captured)],
        )
        self.depends_on_memory = bool(strides) and any([isinstance(x, np.ndarray) for x in inputs])
        table = self.options.decompositions
        if table is not None:
            program = cached_rewrite(decomposition_rewrite(table), program)
        return Analysis(meta, program, traced.captured, in_tree, traced.out_tree)

    def programs(self, analysis: Analysis) -> CallPrograms:
        """The programs of a call, each with its compiler, which runs at the first use of the program."""
        meta, options = analysis.meta, self.options
        if not meta.is_training:
            program = with_trailing_writes(analysis.program, meta, None)
            forward = self.with_compiler(
                program, "inference", options.inference_compiler, "inference_compiler"
            )
            return CallPrograms(forward, None)
        parts = options.partition_fn(analyzed_joint_program(meta, analysis.program))
        if not isinstance(parts, Partition):
            raise CompilerFunctionError(
                f"{self.label}: partition_fn must return a functx.aot.Partition; got {type_name(parts)}",
                fix="Return the result of functx.aot.default_partition(joint).",
            )
        forward = self.with_compiler(parts.forward, "forward", options.fw_compiler, "fw_compiler")
        backward = self.with_compiler(
            parts.backward, "backward", options.bw_compiler, "bw_compiler"
        )
        if options.backward_at_once:
            backward.compile()
        first, last = len(meta.mutated), len(meta.mutated) + len(meta.in_graph)
        outputs = [*analysis.program.outputs[:first], *analysis.program.outputs[last:]]
        pure = with_io(analysis.program, analysis.program.inputs, select_where(outputs, meta.mask))
        pullback = CallPullback(
            f"{meta.name}Backward", pure, meta.needs_grad, backward, parts.gradients
        )
        return CallPrograms(forward, pullback)

    def with_compiler(
        self, program: Program, role: str, compiler: Compiler | None, option: str
    ) -> CompiledProgram:
        """A program with its compiler, named by the number of the compilation and its role."""
        table = self.options.decompositions
        if table is not None:
            program = cached_rewrite(decomposition_rewrite(table), program)
        named = replace_program_fields(program, name=f"{self.number}_{role}", trees=None)
        return CompiledProgram(named, compiler, option)


def placeholder(x: Variable) -> ArrayLike:
    """A NumPy value that stands for a Variable where the memory of arguments is compared: only its strides count."""
    strides = x.strides_()
    if is_row_major(x.shape, strides):
        return np.float32(0)
    size = x.dtype.itemsize
    whole = np.empty(
        sum([abs(n) * max(k - 1, 0) for n, k in zip(strides, x.shape, strict=True)]) + 1, x.dtype
    )
    first = sum([-n * max(k - 1, 0) for n, k in zip(strides, x.shape, strict=True) if n < 0])
    return np.lib.stride_tricks.as_strided(whole[first:], x.shape, [n * size for n in strides])
