"""Check a tree: what stands behind `check`, `render(check=True)` and `treeviz check`."""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Iterator
from typing import Any

from treeviz.analysis.checks.finding import TreeFindings
from treeviz.analysis.checks.rule import USES, Checked, Use
from treeviz.analysis.checks.run import RULES, Result, findings, run_rules, with_badges
from treeviz.prepare import Prepared, scanned
from treeviz.tree.collector import collector_paused
from treeviz.tree.table import TreeTable
from treeviz.views.tree_view import TreeView

_COLUMNS = ("elements", "bytes", "nan", "inf")


class CheckedTree(TreeView):
    """A tree with a sign in the row of each finding, as `treeviz check` writes it; as text the findings alone."""

    findings: TreeFindings

    def __init__(self, table: TreeTable, found: TreeFindings) -> None:
        super().__init__(table, table.chosen([name for name in _COLUMNS if name in table.columns]))
        object.__setattr__(self, "findings", found)

    def lines(self, width: int | None = None) -> Iterator[str]:
        yield from str(self.findings).split("\n")

    def json(self) -> str:
        """The JSON of a view with `findings`, [{code, level, path, row, sentence, fix}, …]."""
        names = ("code", "level", "path", "row", "sentence", "fix")
        rows = json.dumps([{name: getattr(each, name) for name in names} for each in self.findings])
        return f'{super().json()[:-1]},\n"findings": {rows}}}'


def check_tree(
    tree: Any, *, name: str = "tree", for_: Use, values: bool, roundtrip: bool, ignore: str | Collection[str]
) -> TreeFindings:
    """See `treeviz.check`."""
    table, results = _checked(tree, name, for_, values, roundtrip, ignore)
    with collector_paused():
        return findings(table, results)


def checked_tree(tree: Any, *, name: str, for_: Use, values: bool, ignore: Collection[str]) -> CheckedTree:
    """The same as a view."""
    table, results = _checked(tree, name, for_, values, False, ignore)
    with collector_paused():
        return CheckedTree(with_badges(table, results), findings(table, results))


def _checked(
    tree: Any, name: str, for_: Use, values: bool, roundtrip: bool, ignore: str | Collection[str]
) -> tuple[TreeTable, list[Result]]:
    if for_ not in USES:
        raise ValueError(f"check: for_ is one of {', '.join(map(repr, USES))}, and not {for_!r}")
    ignore = (ignore,) if isinstance(ignore, str) else tuple(ignore)
    for code in ignore:
        _rule(code)
    table, nodes = scanned(tree, None, name)
    if values:
        from treeviz.analysis.stats.columns import value_statistics

        table = table.with_columns(*value_statistics(table, nodes)[0])
    with collector_paused():
        return table, run_rules(Checked(table, nodes, for_), roundtrip=roundtrip, ignore=ignore)


def with_findings(prepared: Prepared, use: bool | Use) -> Prepared:
    """The tree with a badge for each finding; see `check` of `treeviz.render`."""
    if use is True:
        use = "any"
    elif use not in USES:
        raise TypeError(f"check= is an option, True or one of {', '.join(map(repr, USES))}.")
    with collector_paused():
        table = with_badges(prepared.table, run_rules(Checked(prepared.table, prepared.nodes, use)))
    return prepared._replace(table=table)


def explain(code: str) -> str:
    """What a rule looks for, why, and when it is nothing to worry about.

    Raises:
      ValueError: There is no such rule.
    """
    rule = _rule(code.upper())
    option = {"": "", "values": " It reads the values: check(tree, values=True).", "roundtrip": ""}[rule.needs]
    if rule.needs == "roundtrip":
        option = " It unflattens nodes, which runs their code: check(tree, roundtrip=True)."
    return (
        f"{rule.code} ({rule.level})\n\n{rule.about}\n\nTo leave it out: check(tree, ignore=[{rule.code!r}]).{option}"
    )


def _rule(code: str):
    if code not in RULES:
        near = difflib.get_close_matches(str(code), RULES, n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise ValueError(f"check: there is no rule {code!r}; there are {', '.join(sorted(RULES))}.{hint}")
    return RULES[code]
