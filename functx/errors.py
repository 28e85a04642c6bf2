"""The errors of functx; `python -m functx.errors NAME` prints the page of one: cause, smallest failing code, cure."""

from __future__ import annotations

import difflib
import inspect
import sys

from jax.errors import InconclusiveDimensionOperation as InconclusiveDimensionOperation
from jax.errors import JaxRuntimeError as JaxRuntimeError
from jax.errors import KeyReuseError as KeyReuseError

from functx.core import errors
from functx.core.errors import *  # noqa: F403

# The classes that are raised where JAX raises those of these names, so that programs can catch them.
JAXTypeError = errors.FunctxError
ConcretizationTypeError = errors.ConcretizationError
TracerBoolConversionError = errors.ConcretizationError
TracerIntegerConversionError = errors.ConcretizationError
TracerArrayConversionError = errors.ForeignCodeError
JAXIndexError = errors.IndexingError
NonConcreteBooleanIndexError = errors.IndexingError
UnexpectedTracerError = errors.EscapedTracerError
JaxprTypeError = errors.ProgramError


def error_classes() -> dict[str, type[errors.FunctxError]]:
    """The errors and warnings of functx by name."""
    return {
        name: value
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, errors.FunctxError)
    }


def error_page(name: str) -> str:
    """The page of one error: its name and built-in bases, then cause, smallest failing code and cure."""
    cls = error_classes()[name]
    builtins = ", ".join(base.__name__ for base in cls.__bases__ if base.__module__ == "builtins")
    title = f"{name} ({builtins})" if builtins else name
    return f"{title}\n\n{inspect.getdoc(cls)}\n"


def main(names: list[str]) -> int:
    """Print the pages of the named errors, or the first line of each when none is named."""
    classes = error_classes()
    for name in names:
        if name not in classes:
            close = ", ".join(difflib.get_close_matches(name, classes)) or "none"
            print(f"functx.errors: the name of an error; got {name}, similar: {close}")
            return 2
        print(error_page(name))
    if not names:
        for name, cls in classes.items():
            print(f"{name}: {(inspect.getdoc(cls) or '').splitlines()[0]}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
