"""The private names of other libraries that treeviz uses, and what is lost where a release lacks one.

Each module that uses such names lists them in a table of `PrivateName`: JAX's is in `steps.tracing.jax_private`,
Equinox's and Flax's in `integrations`, that of ipywidgets in `views.widget`.
"""

from __future__ import annotations

import inspect
import re
import sys
import warnings
from collections.abc import Iterable, Sequence
from importlib import import_module
from types import CodeType
from typing import Any, NamedTuple


class PrivateName(NamedTuple):
    """A name that is not in the public API of its library.

    Attributes:
      where: "module:name.attribute". "f()" is what `f` returns for a function, "f.<locals>.g" a function defined
        within `f`, "f.<globals>.g" a global name in the code of `f`. " or " separates the places in different
        releases.
      lost: What does not work without it, to be read after "treeviz: ".
    """

    where: str
    lost: str

    @property
    def library(self) -> str:
        return self.where.partition(":")[0].partition(".")[0]

    @property
    def public_module(self) -> str:
        """The public module: if it is not imported, the name is not needed."""
        return re.sub(r"\._.*", "", self.where.partition(":")[0])

    def __str__(self) -> str:
        return " or ".join(map(_readable, self.where.split(" or ")))

    def is_missing(self) -> bool:
        """Whether the installed library lacks this name in all places."""
        return not any(_exists(place) for place in self.where.split(" or "))


def missing_names(table: Iterable[PrivateName]) -> list[PrivateName]:
    """The names of a table that the installed libraries lack."""
    return [name for name in table if name.is_missing()]


def why_missing(missing: Sequence[PrivateName]) -> str:
    """ "jax 0.99 has no jax._src.api.vjp: steps are not watched", or "" if nothing is missing."""
    if not missing:
        return ""
    library = missing[0].library
    version = getattr(sys.modules.get(library), "__version__", "")
    places = ", ".join(map(str, missing))
    lost = "; ".join(dict.fromkeys(name.lost for name in missing))
    return f"{' '.join(filter(None, (library, version)))} has no {places}: {lost}"


_warned: set[str] = set()


def warn_of_missing(table: Iterable[PrivateName], stacklevel: int = 2) -> None:
    """Warn once per process of what is lost, if the installed library lacks a name of this table."""
    text = why_missing(missing_names(table))
    if text and text not in _warned:
        _warned.add(text)
        warnings.warn(f"treeviz: {text}", RuntimeWarning, stacklevel=stacklevel + 1)


def names_in_code(function: Any) -> tuple[set[str], set[str]]:
    """The global names and attributes in a function's code, and the names of the functions defined within it."""
    codes, names, functions = [_code_of(function)], set(), set()
    while codes:
        code = codes.pop()
        names.update(code.co_names)
        inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
        functions.update(code.co_name for code in inner)
        codes += inner
    return names, functions


def _readable(place: str) -> str:
    function, _, name = place.replace(":", ".").partition(".<globals>.")
    return f"{name} in {function}" if name else function


def _code_of(function: Any) -> CodeType:
    return getattr(function, "__wrapped__", function).__code__


def _exists(place: str) -> bool:
    module, _, path = place.partition(":")
    try:
        value: Any = import_module(module)
        steps = iter(path.split(".") if path else ())
        for step in steps:
            if step in ("<globals>", "<locals>"):
                names, functions = names_in_code(value)
                return next(steps) in (names if step == "<globals>" else functions)
            if step.endswith("()"):
                value = getattr(value, step[:-2])(_probe)
            elif isinstance(value, type) and step in _annotated(value):
                return True  # a dataclass field without a default is no class attribute
            else:
                value = getattr(value, step)
    except Exception:  # an unknown release may raise anything
        return False
    return True


def _annotated(cls: type) -> set[str]:
    return {name for base in cls.__mro__ for name in inspect.get_annotations(base)}


def _probe(x: Any) -> Any:
    return x
