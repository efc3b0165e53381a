"""A rule: a function that looks at a table and yields what it found; its docstring says why that matters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from treeviz.analysis.checks.finding import Level
from treeviz.tree.facts import Facts, Note
from treeviz.tree.forks import computed_once
from treeviz.tree.table import TreeTable, children_of

Use = Literal["any", "jit", "grad", "state"]
USES: tuple[Use, ...] = get_args(Use)
MIB = 2**20


@dataclass(frozen=True)
class Checked:
    """The tree that is checked.

    Attributes:
      nodes: The node or leaf of each row.
      use: What the tree is for: an argument of `jit`, of `grad`, the state of a training loop, or anything.
    """

    table: TreeTable
    nodes: list[Any]
    use: Use = "any"
    cache: dict[Any, Any] = field(default_factory=dict)  # of a rule, by its name and more

    @computed_once
    def _fact_codes(self) -> list[int]:
        return self.table.fact_codes.tolist()  # single elements of an array are slow to read

    def facts(self, row: int) -> Facts:
        return self.table.facts[self._fact_codes[row]]

    def rows(self, test: Callable[[Facts], bool]) -> list[int]:
        """The rows whose facts pass a test, which runs once for all rows with the same facts."""
        passed = np.fromiter(map(test, self.table.facts), bool, len(self.table.facts))
        return np.flatnonzero(passed[self.table.fact_codes]).tolist()

    def noted(self, kind: str) -> Iterator[tuple[int, Note]]:
        """(row, note) of the notes of a kind that the walk made."""
        for row, notes in self.table.notes.items():
            for note in notes:
                if note.kind == kind:
                    yield row, note

    def siblings(self, row: int) -> list[int]:
        """The children of the row's parent."""
        return children_of(self.table.end, int(self.table.parent[row]))

    def parent(self, row: int) -> Facts | None:
        return self.facts(int(self.table.parent[row])) if row else None


class Found(NamedTuple):
    """What a rule yields.

    Attributes:
      fix: Python; {at} stands for the expression of the row, {path} for its key path in quotes, {tree} for the
        tree. Or a `Changed`.
      level: Another one than the rule's.
      note: The note of the walk that says the same.
    """

    row: int
    sentence: str
    fix: str = ""
    level: Level | None = None
    note: Note | None = None


Run = Callable[[Checked], Iterator[Found]]


class Rule(NamedTuple):
    """A rule by its code.

    Attributes:
      needs: "": it always runs; "values", "roundtrip": only on request.
    """

    code: str
    level: Level
    run: Run
    needs: str = ""

    @property
    def about(self) -> str:
        return inspect.getdoc(self.run) or ""


RULES: dict[str, Rule] = {}


def rule(code: str, level: Level, needs: str = "") -> Callable[[Run], Run]:
    """Register a rule; its docstring is what `treeviz check --explain CODE` prints."""

    def register(run: Run) -> Run:
        RULES[code] = Rule(code, level, run, needs)
        return run

    return register
