"""Run the rules over a tree, and write what they found as notes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

# Each of these registers its rules.
from treeviz.analysis.checks import leaves, round_trip, static_data, structure, values  # noqa: F401
from treeviz.analysis.checks.finding import LEVELS, Level, TreeFinding, TreeFindings
from treeviz.analysis.checks.rule import RULES, Checked, Found, Rule
from treeviz.tree.facts import Note
from treeviz.tree.table import TreeTable

_SIGNS: dict[Level, str] = {"error": "✕", "warning": "⚠", "info": "·"}
Result = tuple[Rule, list[Found]]


def run_rules(checked: Checked, *, roundtrip: bool = False, ignore: Collection[str] = ()) -> list[Result]:
    """What each rule found; those about values run if the table has statistics."""
    ready = {"", *(["values"] if "nan" in checked.table.columns else []), *(["roundtrip"] if roundtrip else [])}
    rules = [rule for code, rule in sorted(RULES.items()) if rule.needs in ready and code not in ignore]
    return [(rule, list(rule.run(checked))) for rule in rules]


def _worst_first(results: Sequence[Result]) -> Iterator[tuple[Rule, Level, Found]]:
    for level in LEVELS:
        for rule, found in results:
            for each in found:
                if (each.level or rule.level) == level:
                    yield rule, level, each


def findings(table: TreeTable, results: Sequence[Result]) -> TreeFindings:
    about = {code: rule.about for code, rule in RULES.items()}
    return TreeFindings(
        TreeFinding(rule.code, level, each.row, each.sentence, about[rule.code], each.fix, table)
        for rule, level, each in _worst_first(results)
    )


def with_badges(table: TreeTable, results: Sequence[Result]) -> TreeTable:
    """The table with a badge for each finding, which begins with its code.

    A note of the walk that says the same gets the code instead; one that leads to another row says less than a warning.
    """
    counts, coded, added = Counter[Level](), dict[int, tuple[str, Level]](), dict[int, list[Note]]()
    for rule, level, each in _worst_first(results):
        counts[level] += 1
        if each.note is not None and (each.note.row < 0 or level == "info"):
            coded[id(each.note)] = rule.code, level
        else:
            note = Note(level, f"{rule.code}: {each.sentence}", severity=level, sign=_SIGNS[level])
            added.setdefault(each.row, []).append(note)
    notes = {row: tuple([_coded(note, coded) for note in at_row]) for row, at_row in table.notes.items()}
    notes |= {row: (*more, *notes.get(row, ())) for row, more in added.items()}
    parts = [f"{n:,} {level}{'s' * (n > 1 and level != 'info')}" for level, n in counts.items()]
    checked = replace(table, notes=dict(sorted(notes.items())))
    return checked.with_headline(*table.headline, ", ".join(parts) or "checked: no finding")


def _coded(note: Note, coded: dict[int, tuple[str, Level]]) -> Note:
    code, level = coded.get(id(note), ("", ""))
    return note._replace(text=f"{code}: {note.text}", severity=level) if code else note
