"""Labels of subtrees: the whole path, a short title above a column, and a field name of queries."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence

from treeviz.tree.safe_repr import visible
from treeviz.tree.table import TreeTable

_N_KEYS = 8  # of a path: the last ones are enough
_N_TITLE, _N_LONGEST = 14, 32  # characters: the width of a page's column; the most
_FIELD = re.compile(r"[^a-z0-9_-]+")


def place_text(table: TreeTable, row: int) -> str:
    """ "opt_state[0].mu"."""
    return visible(table.name + path_text(table, row))


def path_text(table: TreeTable, row: int, root: int = 0) -> str:
    """The key path from `root` to `row`; of a long one the last eight keys."""
    n_keys = int(table.depth[row] - table.depth[root])
    return ("…" if n_keys > _N_KEYS else "") + _last_keys(table, row, min(n_keys, _N_KEYS))


def titles(places: Sequence[tuple[TreeTable, int]]) -> list[str]:
    """A distinct title for each subtree: its path, or the end of a long path: "mu", "…[0].mu"."""
    written: list[str | None] = [None] * len(places)
    taken = {place_text(table, row) for table, row in places}
    for i, (table, row) in enumerate(places):
        whole = place_text(table, row)
        if len(whole) <= _N_TITLE or row == 0:
            written[i] = whole if len(whole) <= _N_LONGEST else f"{whole[: _N_LONGEST - 1]}…"
    for n_keys in range(1, _N_KEYS + 1):
        ends = [_last_keys(table, row, n_keys) for table, row in places]
        n_times = Counter(ends)
        for i, end in enumerate(ends):
            if written[i] is None and n_times[end] == 1:
                table, row = places[i]
                name = table.key(row).segment
                is_plain = n_keys == 1 and name.isidentifier() and len(name) <= _N_LONGEST and name not in taken
                written[i] = name if is_plain else f"…{end[-_N_LONGEST:]}"
    # Equal ends belong to different trees, or are deep in one.
    return [
        visible(f"{table.name[:_N_TITLE]}…{_last_keys(table, row, 1)[-_N_LONGEST:]}" if text is None else text)
        for text, (table, row) in zip(written, places, strict=True)
    ]


def field(table: TreeTable, row: int, taken: Collection[str]) -> str:
    """The subtree as a field name of queries: "opt_state.0.mu", with a number if that is in use."""
    name = _FIELD.sub(".", place_text(table, row).lower()).strip(".-")
    name = name if name[:1].isalpha() or name[:1] == "_" else f"_{name}"
    unique, n = name, 1
    while any(each == unique or each.startswith(f"{unique}.") for each in taken):
        n += 1
        unique = f"{name}_{n}"
    return unique


def _last_keys(table: TreeTable, row: int, n_keys: int) -> str:
    keys: list[str] = []
    while row > 0 and len(keys) < n_keys:
        keys.append(table.key(row).keystr)
        row = int(table.parent[row])
    return "".join(reversed(keys))
