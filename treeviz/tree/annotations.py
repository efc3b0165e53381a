"""What jaxtyping's annotations say of the fields of a class: `x: Float[Array, "batch seq"]`.

jaxtyping has parsed them; its `dims` and `dtypes` are read. Nothing is imported: a program that has not imported
jaxtyping has no such annotation.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple, get_args

import numpy as np

from treeviz.tree.facts import Facts
from treeviz.tree.table import TreeTable, children_of
from treeviz.tree.text import class_name, guarded, mro, visible


class Annotation(NamedTuple):
    """The annotation of an array."""

    text: str  # as the author wrote it, without the class of the array: "Float 'batch seq'"
    names: tuple[str, ...]  # of each axis; "" if it has none, "…" if it stands for any number of axes
    sizes: tuple[int | None, ...]  # of each axis; None if any will do
    broadcast: frozenset[str]  # the names of axes that may have size 1
    dtypes: frozenset[str]  # their names; empty: any

    def surplus(self, n: int) -> int:
        """How many of `n` axes the annotation has not; negative: how many it has more."""
        n_more = n - len(self.names)
        return min(n_more + 1, 0) if "…" in self.names else n_more

    def along(self, n: int, values: tuple[Any, ...], fill: Any) -> list[Any]:
        """The names or sizes of `n` axes, of which a stack has some before those of the annotation."""
        at = self.names.index("…") if "…" in self.names else 0
        return [*values[:at], *[fill] * (n - len(values) + ("…" in self.names)), *values[at + ("…" in self.names) :]]


class Annotated(NamedTuple):
    """An array in a field with an annotation."""

    row: int
    parent: int  # its row
    facts: Facts
    annotation: Annotation
    is_of_stack: bool  # it has as many axes more than its annotation as all arrays of the node, as `vmap` makes them

    @property
    def surplus(self) -> int:
        return 0 if self.is_of_stack else self.annotation.surplus(len(self.facts.shape or ()))


def annotated_arrays(table: TreeTable, nodes: list[Any], *, named: bool = False) -> Iterator[Annotated]:
    """The arrays, also abstract ones, in annotated fields of dataclasses, modules and named tuples.

    Args:
      named: Only in classes that name an axis.
    """
    if "jaxtyping" not in sys.modules:
        return
    of_code = {
        code: guarded(
            lambda code=code: _annotations(type(nodes[(table.fact_codes == code).argmax()])),
            lambda _: {},
        )
        for code, facts in enumerate(table.facts)
        if facts.module and not facts.is_leaf
    }
    codes = [
        code
        for code, annotations in of_code.items()
        if annotations and (not named or {*chain(*[it.names for it in annotations.values()])} - {"", "…"})
    ]
    for parent in np.flatnonzero(np.isin(table.fact_codes, codes)).tolist() if codes else ():
        annotations = of_code[int(table.fact_codes[parent])]
        arrays = []
        for row in children_of(table.end, parent):
            facts = table.facts[table.fact_codes[row]]
            annotation = annotations.get(table.key(row).segment)
            if annotation is not None and facts.is_leaf and facts.shape is not None and facts.dtype:
                arrays.append((row, parent, facts, annotation))
        n_more = {annotation.surplus(len(facts.shape)) for _, _, facts, annotation in arrays}
        is_stack = len(n_more) == 1 and min(n_more) > 0
        yield from (Annotated(*array, is_stack) for array in arrays)


def with_named_axes(table: TreeTable, nodes: list[Any]) -> TreeTable:
    """The table with the names of annotated axes in the facts of their arrays."""
    codes, facts, known = table.fact_codes.copy(), [*table.facts], {}
    for array in annotated_arrays(table, nodes, named=True):
        annotation, plain = array.annotation, array.facts
        axes = tuple(annotation.along(len(plain.shape or ()), annotation.names, ""))
        if not array.surplus and any(axes) and not plain.axes:
            named = plain._replace(axes=axes)
            code = known.setdefault(named, len(facts))
            facts += [named] * (code == len(facts))
            codes[array.row] = code
    return replace(table, fact_codes=codes, facts=tuple(facts)) if known else table


@lru_cache(maxsize=1024)
def _annotations(cls: type) -> Mapping[str, Annotation]:
    found: dict[str, Annotation] = {}
    for base in reversed(mro(cls)):
        for name, annotation in guarded(lambda base=base: inspect.get_annotations(base), lambda _: {}).items():
            parsed = guarded(lambda base=base, it=annotation: _parsed(_evaluated(it, base)), lambda _: None)
            if parsed is not None:
                found[name] = parsed
            else:
                found.pop(name, None)
    return found


def _evaluated(annotation: Any, cls: type) -> Any:
    """The annotation, evaluated where it is text, as after `from __future__ import annotations`."""
    annotation = getattr(annotation, "__forward_arg__", annotation)  # of a named tuple
    if type(annotation) is not str or "[" not in annotation:
        return annotation
    return eval(annotation, dict(vars(sys.modules[cls.__module__])), dict(vars(cls)))


def _parsed(annotation: Any) -> Annotation | None:
    if class_name(type(annotation)) != "_MetaAbstractArray":
        (annotation,) = [part for part in get_args(annotation) if class_name(type(part)) == "_MetaAbstractArray"]
    kinds = [class_name(type(dim)).strip("_") for dim in annotation.dims]
    names = [
        "…" if "Variadic" in kind else visible(str(dim.name), 40) if kind == "NamedDim" else ""
        for kind, dim in zip(kinds, annotation.dims, strict=True)
    ]
    sizes = [dim.size if kind == "FixedDim" else None for kind, dim in zip(kinds, annotation.dims, strict=True)]
    dtypes = annotation.dtypes if isinstance(annotation.dtypes, tuple | list) else ()
    text = visible(f"{class_name(annotation.dtype)}[{annotation.dim_str!r}]", 80)
    broadcast = {name for name, dim in zip(names, annotation.dims, strict=True) if getattr(dim, "broadcastable", False)}
    return Annotation(text, tuple(names), tuple(sizes), frozenset(broadcast), frozenset(map(str, dtypes)))
