"""The coverage of JAX's library, which `docs/reference/coverage.md` lists."""

from __future__ import annotations

import inspect
import textwrap
from collections import defaultdict
from collections.abc import Iterator
from importlib import import_module
from inspect import Parameter
from types import ModuleType
from typing import Any, NamedTuple

import jax
from jax.extend.core import Primitive as JaxPrimitive

from functx.core.missing_names import ABSENT
from functx.core.typing import Function

NAMESPACES = (
    "",
    "numpy",
    "numpy.linalg",
    "numpy.fft",
    "lax",
    "lax.linalg",
    "nn",
    "nn.initializers",
    "random",
    "ops",
    "image",
    "tree",
    "tree_util",
    "flatten_util",
    "scipy.special",
    "scipy.linalg",
    "scipy.stats",
    "scipy.signal",
    "scipy.ndimage",
    "scipy.interpolate",
    "scipy.optimize",
    "scipy.integrate",
    "scipy.sparse.linalg",
    "scipy.cluster.vq",
    "scipy.fft",
    "scipy.spatial.transform",
)
"""The modules that are compared; the first is the top level."""


class NotTaken(NamedTuple):
    """A way to pass an argument that a function of JAX has and that of functx lacks."""

    function: str
    parameter: str
    difference: str


_ABSENT, _BY_NAME, _ELSEWHERE = "absent", "by name alone", "in another place"
_NUMPY_ORDER = "the order is that of NumPy"
_OF_DEVICES = "deprecated by JAX; write `jax.device_put`, or `in_shardings`"
REASONS = {
    (
        "accuracy",
        _ABSENT,
    ): "the accuracy is that of the platform; XLA ignores requests on CPU and GPU",
    ("arr", "required; None in JAX"): "an array must be given",
    ("copy", "True; False in JAX"): "the default is that of NumPy",
    ("dtype", _ABSENT): "convert the result",
    ("density", _ELSEWHERE): _NUMPY_ORDER,
    ("device", _ABSENT): _OF_DEVICES,
    ("fill_value", _ELSEWHERE): _NUMPY_ORDER,
    ("inplace", _BY_NAME): _NUMPY_ORDER,
    ("out_sharding", _ABSENT): "write `lax.with_sharding_constraint(result, sharding)`",
    ("reduce_axes", _ABSENT): "write `lax.psum` of the gradient",
    ("shape", _ELSEWHERE): _NUMPY_ORDER,
    ("sum_match", _ABSENT): "for meshes with explicit axes, which programs of functx do not track",
    ("weights", _ELSEWHERE): _NUMPY_ORDER,
    ("x1", _ABSENT): "by position alone, as in NumPy",
    ("x2", _ABSENT): "by position alone, as in NumPy",
    **dict.fromkeys(
        [
            (name, _BY_NAME)
            for name in (
                *("dtype", "indices_are_sorted", "mean", "out", "out_sharding", "sharding"),
                *("unique_indices", "where"),
            )
        ],
        "write its name",
    ),
}
"""For each parameter in which signatures differ, and the difference, why or what to write."""


def public_names(module: ModuleType) -> dict[str, Any]:
    """The functions, classes and objects of a module of JAX, without primitives, types and modules."""
    return {
        name: value
        for name, value in inspect.getmembers(module)
        if not name.startswith("_")
        and not isinstance(value, (ModuleType, JaxPrimitive))
        and callable(value)
    }


def module_of(package: str, namespace: str) -> ModuleType | None:
    """The module `package.namespace`, None if there is none."""
    try:
        return import_module(f"{package}.{namespace}" if namespace else package)
    except ImportError:
        return None


def paired_names(namespace: str) -> Iterator[tuple[str, Any, Any]]:
    """The path of each public name of a module of JAX, its value there, and in functx, or None."""
    ours = module_of("functx", namespace)
    for name, value in public_names(import_module(f"jax.{namespace}".rstrip("."))).items():
        path = f"{namespace}.{name}" if namespace else name
        yield path, value, getattr(ours, name, None)


def absent_names() -> list[str]:
    """The paths of the public names of JAX that functx lacks."""
    return [
        path
        for namespace in NAMESPACES
        for path, _, ours in paired_names(namespace)
        if ours is None
    ]


def differences_of_signatures() -> list[NotTaken]:
    """The arguments that functions of JAX take and those of functx do not."""
    return [
        NotTaken(path, *found)
        for namespace in NAMESPACES
        for path, theirs, ours in paired_names(namespace)
        if ours is not None and ours is not theirs and not inspect.isclass(theirs)
        for found in compare_signatures(theirs, ours)
    ]


def compare_signatures(theirs: Function, ours: Function) -> Iterator[tuple[str, str]]:
    """Each parameter of `theirs` that a call of `ours` cannot be given in the same way, and why."""
    try:
        expected, given = inspect.signature(theirs).parameters, inspect.signature(ours).parameters
    except (TypeError, ValueError):
        return
    positional = [p for p in given.values() if p.kind in _POSITIONAL]
    kinds = {p.kind for p in given.values()}
    for i, p in enumerate(expected.values()):
        if p.name.startswith("_") or p.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD):
            continue
        q = given.get(p.name)
        if p.kind is Parameter.POSITIONAL_ONLY:
            q = positional[i] if i < len(positional) else None
            if q is None and Parameter.VAR_POSITIONAL not in kinds:
                yield p.name, _ABSENT
        elif q is None:
            if Parameter.VAR_KEYWORD not in kinds:
                yield p.name, _ABSENT
        elif (
            p.kind is Parameter.POSITIONAL_OR_KEYWORD
            and positional[i : i + 1] != [q]
            and Parameter.VAR_POSITIONAL not in kinds
        ):
            yield p.name, _BY_NAME if q not in positional else _ELSEWHERE
        if q is None or p.default is Parameter.empty:
            continue
        if q.default is Parameter.empty:
            yield p.name, f"required; {p.default!r} in JAX"
        elif {type(p.default), type(q.default)} <= _COMPARED and p.default != q.default:
            yield p.name, f"{q.default!r}; {p.default!r} in JAX"


_POSITIONAL = Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD
_COMPARED = {bool, int, float, str, tuple}


def coverage_page() -> str:
    """The page: what is absent, which arguments differ, and the names of each module."""
    lines = [
        "# Coverage of JAX's library\n",
        fill(
            f"The public functions and classes of JAX {jax.__version__}, beside primitives, are in functx under "
            "the same names, except those below. A test compares both packages with this page."
        ),
        "\n## Absent\n",
        *[fill(f"- `jax.{path}`: {reason}", "  ") for path, reason in sorted(ABSENT.items())],
        "\n## Arguments that differ\n",
        fill(
            "Where a call of JAX's function cannot be written in the same way. Further arguments of functx's own "
            "are not listed, and a default of None equals any other."
        )
        + "\n",
        *_difference_lines(),
    ]
    for namespace in NAMESPACES:
        names = [path for path, _, ours in paired_names(namespace) if ours is not None]
        short = [f"`{path.removeprefix(namespace).lstrip('.')}`" for path in names]
        title = f"functx.{namespace}".rstrip(".")
        lines.append(f"\n## {title}: {len(short)} names\n\n{fill(' '.join(short))}")
    return "\n".join(lines) + "\n"


def _difference_lines() -> Iterator[str]:
    """A line for each parameter and kind of difference."""
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    for found in differences_of_signatures():
        groups[found.parameter, found.difference].append(f"`{found.function}`")
    for (parameter, difference), functions in sorted(groups.items()):
        reason = REASONS.get((parameter, difference), "")
        yield fill(f"- `{parameter}` is {difference} ({reason}): {', '.join(functions)}", "  ")


def fill(text: str, indent: str = "") -> str:
    """`text` in lines of at most 120 characters."""
    return textwrap.fill(
        text, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
