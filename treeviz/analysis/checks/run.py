"""Run the rules over a tree, and write what they found as notes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

# Each of these registers its rules.
from treeviz.analysis.checks import leaves, round_trip, static_data, structure, values  # noqa: F401
from treeviz.analysis.checks.finding import LEVELS, TreeFinding, TreeFindings
from treeviz.analysis.checks.rule import RULES, Checked, Found, Rule
from treeviz.tree.facts import Note
from treeviz.tree.table import TreeTable

Result = tuple[Rule, Found]


def run_rules(checked: Checked, *, roundtrip: bool = False, ignore: Collection[str] = ()) -> list[Result]:
    """What all rules found, the worst first; those about values run if the table has statistics."""
    ready = {"", *(["values"] if "nan" in checked.table.columns else []), *(["roundtrip"] if roundtrip else [])}
    found = [
        (rule, each)
        for code, rule in sorted(RULES.items())
        if rule.needs in ready and code not in ignore
        for each in rule.run(checked)
    ]
    rank = {level: i for i, level in enumerate(LEVELS)}
    return sorted(found, key=lambda pair: rank[pair[1].level or pair[0].level])


def findings(table: TreeTable, results: Sequence[Result]) -> TreeFindings:
    about = {code: rule.about for code, rule in RULES.items()}
    return TreeFindings(
        TreeFinding(rule.code, each.level or rule.level, each.row, each.sentence, about[rule.code], each.fix, table)
        for rule, each in results
    )


def with_badges(table: TreeTable, results: Sequence[Result]) -> TreeTable:
    """The table with a badge for each finding, which begins with its code; a note that says the same gets the code."""
    coded = {id(each.note): rule.code for rule, each in results if each.note is not None and each.note.row < 0}
    notes = {row: tuple(_coded(note, coded) for note in at_row) for row, at_row in table.notes.items()}
    for rule, each in results:
        if each.note is None or each.note.row >= 0:
            kind = each.level or rule.level
            notes[each.row] = (*notes.get(each.row, ()), Note(kind, f"{rule.code}: {each.sentence}"))
    counts = [sum((each.level or rule.level) == level for rule, each in results) for level in LEVELS]
    parts = [f"{n:,} {level}{'s' * (n > 1 and level != 'info')}" for n, level in zip(counts, LEVELS, strict=True) if n]
    checked = replace(table, notes=dict(sorted(notes.items())))
    return checked.with_headline(*table.headline, ", ".join(parts) or "checked: no finding")


def _coded(note: Note, coded: dict[int, str]) -> Note:
    return note._replace(text=f"{coded[id(note)]}: {note.text}") if id(note) in coded else note
