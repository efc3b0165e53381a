"""Notes that the walk can make only when it is done: about shared objects, and about totals that are not whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

from treeviz.tree.budget import Budget
from treeviz.tree.facts import Facts, Note
from treeviz.tree.kinds import KINDS
from treeviz.tree.safe_repr import class_name, module_name

Notes = dict[int, list[Note]]

_MOST = 1_000  # nodes that say that some of them was left out
_MOST_SUM = 2**44  # of one repeated subtree, so that sums stay below 2**63
_AT_LEAST = Note("info", "at least: some of it was left out")


def note_shared(
    notes: Notes, repeats: Sequence[tuple[int, int]], ends: Sequence[int], facts: Callable[[int], Facts]
) -> None:
    """Note every object that occurs several times: a shared subtree once, without the nodes inside it.

    Args:
      repeats: The row of each further occurrence, with the first row.
      ends: Of each row, the end of its subtree.
      facts: The facts of a row.
    """
    places: dict[int, int] = {}
    inside_until = 0
    for row, first in sorted(repeats):
        if row < inside_until or not _is_worth_a_badge(first, ends, facts):
            continue
        inside_until = ends[row]
        places[first] = places.get(first, 1) + 1
        notes.setdefault(row, []).append(Note("shared", "the same object as", first))
    for first, n_places in places.items():
        notes.setdefault(first, []).append(Note("shared", f"stands in {n_places} places"))


def _is_worth_a_badge(first: int, ends: Sequence[int], facts: Callable[[int], Facts]) -> bool:
    """Python shares constant tuples, so a shared tuple is noted only if it contains arrays or mutable objects.

    A static node is a constant, too.
    """
    if facts(first).kind not in ("tuple", "namedtuple", "static"):
        return True
    inside = map(facts, range(first, ends[first]))
    return any(each.bytes or KINDS[each.kind].is_mutable for each in inside)


def repeat_facts(cls: type, inside: Sequence[Facts]) -> Facts:
    """Of a node that occurred before and is not walked again; `inside` are those of its subtree."""
    numbers = zip(*((f.leaves, f.elements, f.bytes) for f in inside), strict=True)
    leaves, elements, n_bytes = (min(sum(part), _MOST_SUM) for part in numbers)
    return Facts("repeat", class_name(cls), False, leaves, elements, n_bytes, module=module_name(cls))


@lru_cache(64)  # thousands of nodes leave out as many
def left_out_note(n_children: int, budget: Budget, max_depth: int, is_late: bool) -> Note:
    """The note of a placeholder for children beyond the budget: how many there are, and why they have no rows."""
    what = f"{n_children:,} more {'child was' if n_children == 1 else 'children were'} left out"
    why = f"the budget is {budget.max_rows:,} rows and {max_depth:,} levels"
    if is_late:
        why = f"walking this tree takes more than {budget.walk_s:g} s"
    return Note("more", f"{what}: {why}{budget.hint}")


def note_left_out(notes: Notes, parents: Sequence[int]) -> None:
    """Note at the nodes above what was left out that their totals are not whole; the highest ones if there are many."""
    above: set[int] = set()
    for row, at_row in notes.items():
        parent = parents[row] if any(note.kind == "more" for note in at_row) else -1
        while parent >= 0 and parent not in above:
            above.add(parent)
            parent = parents[parent]
    for row in sorted(above)[:_MOST]:
        notes.setdefault(row, []).append(_AT_LEAST)
