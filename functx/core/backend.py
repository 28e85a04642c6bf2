"""The backend: the hooks through which lower layers use higher ones: lowering, passes, traces of JAX."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from functx.core.typing import ArrayLike

if TYPE_CHECKING:
    from functx.core.primitive import Primitive
    from functx.core.program import Program
    from functx.core.types import ShapedArray

Programs = TypeVar("Programs", bound="tuple[Program, ...]")
Split = Callable[["Program"], Programs]
"""A rewrite to a forward program, which returns the outputs and then the residuals, and to one or more
backward programs, which take the residuals last.
"""


class InnerJaxTrace(Exception):
    """Raised for an operation of a JAX trace that began inside the trace of the builder."""


def _verify_before_compile(program: Program, args: Sequence[ArrayLike]) -> None:
    # Imported at its first use, since it needs SciPy.
    import_module("functx.testing.verification").verify_before_compile(program, args)


class LimitResiduals(Protocol):
    """The type of `Backend.limit_residuals`."""

    def __call__(
        self, split: Split[Programs], free_to_save: tuple[int, ...] = (), consts: int = 0
    ) -> Split[Programs]:
        """The split that saves few residuals."""


class Backend:
    """The hooks that `functx.lowering`, `functx.passes` and `functx.interop` set when imported.

    The first use of a hook imports them, through `functx.api`.
    """

    evaluate: Callable[[Primitive, Sequence[Any]], Any]
    """Evaluates one operation on concrete operands."""
    evaluate_eagerly: Callable[[Primitive, Sequence[Any]], Any]
    """As `evaluate`, also while JAX traces."""
    run: Callable[..., list[Any]]
    """`run(rewrite, program, args, donated=())` runs `rewrite(program)`; compiles once per structure.

    The memory of the arguments at the positions `donated` may be reused.
    """
    prepare_for_transform: Callable[[Program], Program]
    """The program that a transform rewrites: with stable formulas, and repeats as calls of shared programs."""
    limit_residuals: LimitResiduals
    """A split that saves the residuals of the memory plan; set in `functx/passes/rematerialization.py`.

    The inputs at the indices `free_to_save` cost nothing to save. The first `consts` inputs are the same
    in every run of the program.
    """
    recomputes_forward: Callable[[Callable[[Program], tuple[Program, ...]], Program], bool]
    """Whether the backward programs of a split of `limit_residuals` repeat forward equations."""
    vjp_split: Callable[[tuple[bool, ...]], Split[tuple[Program, Program]]]
    """`SplitVJP` under the memory plan; set in `functx/passes/rematerialization.py`."""
    gradient_rewrite: Callable[[tuple[bool, ...], bool], Callable[[Program], Program]]
    """`ValueAndGrad` under the memory plan; set in `functx/passes/rematerialization.py`."""
    jax_aval: Callable[[ShapedArray], Any]
    """JAX's aval of the same type."""
    jax_trace: object
    """The trace of JAX that traced values belong to."""
    call_traced: Callable[[Callable[..., Any], Sequence[Any]], Any]
    """Calls a function such that operations of JAX append equations to the current builder."""
    outer_jax_trace: Callable[[], AbstractContextManager[None]]
    """A context in which JAX's trace is the one that was current before functx traced."""
    jax_is_tracing: Callable[[], bool]
    """Whether operations of JAX become part of a jaxpr now."""
    inside_jax_trace: Callable[[], bool]
    """Whether JAX's own trace is active inside the innermost trace of functx."""
    aval_of_jax_array: Callable[[Any], ShapedArray | None]
    """The aval of an array of a type that the core does not know; None for other values."""
    verify: Callable[[Program, Sequence[ArrayLike]], None] = staticmethod(_verify_before_compile)
    """Checks a new program on its first arguments if `functx.config.verify` is set."""
    concrete_or_none: Callable[[object], Any]
    """The concrete value of an array; None if JAX is tracing it."""
    jax_option: Callable[[str], Any]
    """The value of a JAX option that `functx.config` shows under another name."""
    set_jax_option: Callable[[str, object], None]
    """Sets such an option."""
    raw_key_data: Callable[[object], Any]
    """The key data of JAX's typed keys; any other value unchanged."""
    typed_key_array: Callable[[Any, Any], Any]
    """Typed keys from key data and a key dtype of JAX; any other value as it is."""
    call_with_keys: Callable[[Callable[..., Any], Sequence[Any], Mapping[str, Any]], Any]
    """Calls the function of JAX with the name of a function of functx, for arguments with typed keys."""
    axis_size: Callable[[Any], int | None]
    """The size of a named axis that JAX binds around the current code; None if it binds none."""
    axis_names: Callable[[], Sequence[Hashable]]
    """The names of the axes that JAX maps over devices around the current code."""

    def __getattr__(self, name: str) -> object:
        import_module("functx.api")
        return object.__getattribute__(self, name)


backend = Backend()
