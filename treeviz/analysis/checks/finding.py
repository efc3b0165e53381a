"""One thing that a rule found in a tree, and a list of them."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from treeviz.tree.table import Row, TreeTable

Level = Literal["error", "warning", "info"]
LEVELS: tuple[Level, ...] = ("error", "warning", "info")
_PLACE = re.compile(r"\{(at|path|tree)\}")
_MOST_LINES = 10  # of one rule, where all are printed


class Changed(str):
    """An expression of {x} for a leaf x, a node, or each leaf in one."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class TreeFinding:
    """Something that is wrong in a tree, or may be. It holds no array.

        (finding,) = treeviz.check({"f": jnp.sin}, for_="jit")
        print(finding.code, finding.level, finding.path)  # T131 error ['f']
        print(finding.fix)

    Attributes:
      code: The code of the rule, as `treeviz.check(ignore=["T131"])` takes it.
      level: "error": JAX raises, or gives wrong results without saying so; "warning": it may, or takes longer; "info".
      row: The row of the table.
      sentence: What is wrong.
      about: What the rule looks for, why, and when it is nothing to worry about.
    """

    code: str
    level: Level
    row: int
    sentence: str
    about: str = field(repr=False)
    _fix: str = field(default="", repr=False)
    _table: TreeTable | None = field(default=None, repr=False, compare=False)

    @property
    def path(self) -> str:
        """The key path as `jax.tree_util.keystr` writes it, but right for named tuples (jax#39297). "" is the root."""
        return "" if self._table is None else self._table[self.row].keystr

    @property
    def fix(self) -> str:
        """Python that cures it, for a tree in a variable with the table's name; "" if there is none."""
        if self._table is None:
            return self._fix
        row = self._table[self.row]
        code = _assignment(row, self._fix) if isinstance(self._fix, Changed) else self._fix
        texts = {"at": lambda: row.expression, "path": lambda: repr(row.keystr), "tree": lambda: row.table.name}
        return _PLACE.sub(lambda match: texts[match[1]](), code)

    def __str__(self) -> str:
        return f"{self.code} {self.level} at {self.path or 'the root'}: {self.sentence}"


def _assignment(row: Row, new: str) -> str:
    """Python that changes a leaf, also where it cannot be assigned."""
    parent = row.parent
    is_builtin = parent is not None and parent.kind in ("dict", "list") and not parent.facts.module
    if parent is None or (is_builtin and all(type(step) is str for step in row.table.key(row.number).steps)):
        at = "{tree}" if parent is None else "{at}"
        return f"{at} = {new.replace('{x}', at)}"
    is_it = " == {path}" if row.is_leaf else ".startswith({path})"
    return (
        "{tree} = jax.tree_util.tree_map_with_path(\n"
        f"    lambda path, x: {new.replace('{x}', 'x')} if jax.tree_util.keystr(path){is_it} else x, {{tree}}\n)"
    )


class TreeFindings(list[TreeFinding]):
    """A list of findings, the worst first; `print` shows a line for each, and the cure of the first of its kind."""

    def __repr__(self) -> str:
        n_all, n_shown = Counter(each.code for each in self), Counter[str]()
        lines: list[str] = []
        for each in self:
            n_shown[each.code] += 1
            if n_shown[each.code] > _MOST_LINES:
                if n_shown[each.code] == n_all[each.code]:
                    lines.append(f"… {n_all[each.code] - _MOST_LINES:,} more of {each.code}")
                continue
            lines.append(str(each))
            if n_shown[each.code] == 1 and each.fix:
                lines += [f"    {line}" for line in each.fix.split("\n")]
        return "\n".join(lines) or "no finding"

    __str__ = __repr__
