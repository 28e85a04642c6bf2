"""Checks of values while a program runs, which `functx.checkify` turns into a result of the program."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from functx import ops
from functx.core import tree
from functx.core.effects import Effect, Effects
from functx.core.errors import CheckError, UnhandledCheckError
from functx.core.rewriting import Record
from functx.core.samples import f32, i32, sample
from functx.core.types import ShapedArray
from functx.core.typing import Dim, IRValue, NumPyArray, Values
from functx.ops.callbacks import FlatCallback, HostPrimitive
from functx.ops.operands import batch_size

if TYPE_CHECKING:
    from functx.lowering.stablehlo_emitter import LoweringContext


class CheckKind(Enum):
    """A kind of checks that `functx.checkify.checkify` can report."""

    USER = "user"
    NAN = "nan"
    DIVISION = "division"
    INDEX = "index"


class FormatMessage(Record):
    """The function that fills the values of a failed check into its format string."""

    fmt: str
    __name__ = "message"

    def __call__(self, *args: Any, **kwargs: Any) -> str:
        return self.fmt.format(*args, **kwargs)


class CheckSite(Record):
    """A check of a program: its kind, its message as a function of values, and the user's line.

    One with `debug` is made under `checkify` alone. One that is `rethrown`, by `check_error`, counts as one
    of the user too.
    """

    kind: CheckKind
    message: FlatCallback
    line: str
    debug: bool = False
    rethrown: bool = False

    def __repr__(self) -> str:
        return f"<{self.kind.value} check at {self.line.partition(':')[0]}>"

    def text(self, values: Sequence[NumPyArray]) -> str:
        """The message of a failure."""
        args, kwargs = self.message.arguments(values)
        return f"{self.message.fun(*args, **kwargs)}\n  at {self.line}"


def check_site(
    kind: CheckKind, fmt: str, line: str, values: int = 0, debug: bool = False
) -> CheckSite:
    """The site of a check whose format string takes so many values."""
    in_tree = tree.structure(((0,) * values, {}))
    return CheckSite(kind, FlatCallback(FormatMessage(fmt), in_tree), line, debug)


class FailedCheck(NamedTuple):
    """A check that did not hold: the index along mapped axes, the check, the values of its message."""

    position: tuple[int, ...]
    site: CheckSite
    values: Sequence[NumPyArray]


MOST_FAILURES_SHOWN = 8


def find_failures(
    sites: Sequence[CheckSite], numbers: NumPyArray, values: Sequence[NumPyArray]
) -> list[FailedCheck]:
    """The checks that failed, for operands as those of `Check`."""
    indices = [tuple([int(i) for i in index]) for index in np.argwhere(numbers)]
    return [FailedCheck(i, sites[numbers[i] - 1], [x[i] for x in values]) for i in indices]


def failure_text(failures: Sequence[FailedCheck]) -> str | None:
    """The messages of `failures`, one for each index along mapped axes; None if there are none."""
    if not failures:
        return None
    lines = [
        (f"at mapped index {', '.join(map(str, index))}: " if index else "") + site.text(values)
        for index, site, values in sorted(failures[:MOST_FAILURES_SHOWN], key=itemgetter(0))
    ]
    hidden = len(failures) - len(lines)
    return "\n".join([*lines, *[f"and at {hidden} more"] * bool(hidden)])


def failed_check_error(text: str) -> CheckError:
    """The error of failures with this text, which names the user's lines."""
    error = CheckError(text)
    error.source = None
    return error


class Check(HostPrimitive):
    """Fails if a number is not 0: `sites[number - 1]` is the check that did not hold.

    Operands: the int32 array of numbers, one for each element along mapped axes, and the values of the
    message, with the mapped axes before their own. It raises an error when it is computed outside of a
    program; in one, `functx.checkify` must have removed it, unless all sites are for debugging.
    """

    sites: tuple[CheckSite, ...]
    effects: ClassVar[Effects] = frozenset([Effect.CHECK])
    differentiable = False
    samples = (
        sample(
            i32[()], f32[3], sites=(check_site(CheckKind.USER, "{}", "line", 1, True),),
            values={0: 0}, dtypes=("f32",),
        ),
    )  # fmt: skip

    def abstract_eval(self, *avals: ShapedArray) -> Sequence[ShapedArray]:
        return ()

    @property
    def display_name(self) -> str:
        return "check"

    def run(self, *arrays: NumPyArray) -> list[NumPyArray]:
        numbers, *values = arrays
        failed = find_failures(self.sites, numbers, values)
        text = failure_text([each for each in failed if not each.site.debug])
        if text is not None:
            raise failed_check_error(text)
        return []

    def batch(self, args: Values, dims: Sequence[Dim]) -> tuple[Values, Sequence[Dim]]:
        size = batch_size(args, dims)
        self(*[ops.batch_dim_at(x, d, 0, size) for x, d in zip(args, dims, strict=True)])
        return [], []

    def lower(self, ctx: LoweringContext, *values: IRValue) -> Sequence[IRValue]:
        made = [site for site in self.sites if not site.debug]
        if not made:
            return []
        raise UnhandledCheckError(
            "check: a compiled function must return the failures of its checks; got a check in one that "
            "does not",
            f"the check: {made[0].line}",
            fix="Write err, out = functx.jit(functx.checkify.checkify(f))(x); err.throw().",
            source=ctx.source,
        )
