"""Export a view: JSON for programs, Markdown and Mermaid for documents, records for data frames."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from treeviz.tree.facts import KINDS, Column, Facts, Note
from treeviz.tree.frame import Frame, Labels
from treeviz.tree.keys import python_expression
from treeviz.tree.series import Series
from treeviz.tree.table import TreeTable
from treeviz.tree.text import visible
from treeviz.views.picture import GLYPHS, IN_EVERY_ROW, row_badges
from treeviz.views.text.cells import columns_of_cells, type_cells
from treeviz.views.text.rows import first_rows
from treeviz.views.text.text import LeftOut, guides, in_brief, key_labels
from treeviz.views.view import View

FORMAT = "treeviz/1"
MAX_PATH_DEPTH = 64
_SIZES = ("elements", "bytes", "leaves")
_NOT_FINITE = {"nan": "null", "inf": '"Infinity"', "-inf": '"-Infinity"'}
_IN_EVERY_ROW = ("kind", "type", "shape", "dtype", *_SIZES)


def to_json(view: View) -> str:
    """The rows in a stable format: later versions only add names. `schema.json` is its JSON Schema.

    One object with the names

        format    "treeviz/1"
        name      of the tree
        headline  [text, ...], a summary of the tree
        columns   [{name, title, format, rollup, help}, ...] of the rows' `values`
        device_sets  [[id, ...], ...], the devices of the shardings, in mesh order
        rows      [{...}, ...], depth first, one per line
        series    [{...}, ...], if values were recorded over the steps

    and in each row

        number, parent, depth   of the row; parent is the number of the row above (null at the root)
        key                     the last key as `jax.tree_util.keystr` writes it; "" at the root
        keystr, path            the whole key path: as keystr writes it, and joined by slashes
        expression              Python that evaluates to the node, if the tree's name is a variable
        leaf, kind, type        whether JAX treats it as a leaf; its kind and type as in the search
        shape, dtype, weak      of an array or a similar leaf; otherwise shape is null, and dtype is ""
        elements, bytes, leaves   of the row and everything below it
        axes, text, aval, module, static, inside, sharding, notes   only if not empty; static is [[name, value], ...];
                                inside has the same form: contents of an opaque leaf that JAX does not see;
                                axes are the names of the axes, "" for none;
                                aval is the type of a traced value as JAX writes it, if it contains more;
                                a sharding's device_set is an index into device_sets, and its memory is ""
                                for the default memory
        values                  {column: value}, of the row and everything below it

    Rows deeper than 64 levels have no `keystr`, `path` and `expression`, since the file would grow with the square of
    the depth; follow `parent` and `key`. A missing value or NaN is null, and a measured value that is not finite is
    "NaN". Infinities are "Infinity" and "-Infinity". A histogram is a list of counts.

    In each series

        name, title, unit       "grads.norm", "grads norm", "L2 norm"
        log                     whether its scale is logarithmic
        first_steps, last_steps the range of steps that each place in the lists of values covers; a step is a call
        first_inner, last_inner in a run whose calls have inner steps, such as micro-batches: those of the range, from 0
        values                  [[...], ...], a list for each row: the last value in each range, or null
        low, high               the same for the lowest and highest value; null if every range is a single step
        nonfinite               [[...], ...]: for each row, the places where a number in or below it was NaN or
                                infinite; the value there covers only the finite numbers
        marks                   [{row, place, kind, text}, ...]: the findings, each at its first place
    """
    table = view.table
    columns = [column for column in view.columns if column.name not in _IN_EVERY_ROW]
    described = [{name: getattr(c, name) for name in ("name", "title", "format", "rollup", "help")} for c in columns]
    shardings = [facts.sharding for facts in table.facts if facts.sharding is not None]
    device_sets = {ids: i for i, ids in enumerate(dict.fromkeys(sharding.device_ids for sharding in shardings))}
    rows = (_places(table), _facts(table, device_sets), _sizes(table), _values(table, columns))
    parts = [
        f'{{"format": {json.dumps(FORMAT)},\n"name": {json.dumps(table.name)},\n',
        f'"headline": {json.dumps(table.headline)},\n"columns": {json.dumps(described)},\n',
        f'"device_sets": {json.dumps([*device_sets])},\n"rows": [\n',
        ",\n".join(map("".join, zip(*rows, strict=True))),
        "\n]",
        ',\n"series": [\n' + ",\n".join(map(_series, view.series)) + "\n]" if view.series else "",
        "}",
    ]
    return "".join(parts)


def _places(table: TreeTable) -> Iterator[str]:
    """Number, parent, depth, key and paths of each row."""
    root = '{"number": 0, "parent": null, "depth": 0, "key": "", "keystr": "", "path": ""'
    yield f'{root}, "expression": {_text(table.name)}'
    above = [("", "", table.name)]
    places = zip(table.depth.tolist(), table.parent.tolist(), strict=True)
    next(places)
    for row, (depth, parent) in enumerate(places, start=1):
        key = table.key(row)
        place = f'{{"number": {row}, "parent": {parent}, "depth": {depth}, "key": {_text(key.keystr)}'
        if depth > MAX_PATH_DEPTH:
            yield place
            continue
        keystr, path, expression = above[depth - 1]
        keystr, path = keystr + key.keystr, f"{path}/{key.segment}" if depth > 1 else key.segment
        expression = python_expression(expression, (key,))
        yield (f'{place}, "keystr": {_text(keystr)}, "path": {_text(path)}, "expression": {_text(expression)}')
        del above[depth:]
        above.append((keystr, path, expression))


def _facts(table: TreeTable, device_sets: Mapping[tuple[int, ...], int]) -> Iterator[str]:
    """The facts and notes of each row."""
    texts = [json.dumps(_known(facts, device_sets))[1:-1] for facts in table.facts]
    for row, code in enumerate(table.fact_codes.tolist()):
        notes = table.notes.get(row)
        yield f", {texts[code]}" + (f', "notes": {json.dumps([_note(note) for note in notes])}' if notes else "")


def _known(facts: Facts, device_sets: Mapping[tuple[int, ...], int]) -> dict[str, Any]:
    shape = None if facts.shape is None else _dimensions(facts.shape)
    known: dict[str, Any] = {"leaf": facts.is_leaf, "kind": facts.kind, "type": facts.type, "shape": shape}
    known |= {"dtype": facts.dtype, "weak": facts.weak}
    known |= {
        name: value
        for name in ("axes", "text", "aval", "module", "static", "inside")
        if (value := getattr(facts, name))
    }
    if facts.sharding is not None:
        fields: dict[str, Any] = {**facts.sharding._asdict(), "shard_shape": _dimensions(facts.sharding.shard_shape)}
        known["sharding"] = fields | {"device_set": device_sets[fields.pop("device_ids")]}
    return known


def _dimensions(shape: tuple) -> list[int | str]:
    """The sizes, with symbolic dimensions as text."""
    return [size if isinstance(size, int) else str(size) for size in shape]


def _note(note: Note) -> dict[str, Any]:
    row = {"row": note.row} if note.row >= 0 else {}
    return {"kind": note.kind, "text": note.text, **row, **({"details": note.details} if note.details else {})}


def _sizes(table: TreeTable) -> Iterator[str]:
    """The sizes of each row's subtree."""
    sums = []
    for name in _SIZES:
        own = [getattr(facts, name) for facts in table.facts]
        levels = np.array(own, dtype=np.int64 if max(own) * len(table) < 2**63 else np.float64)
        sums.append(table.rolled(table.fact_column(name, levels, format="count", rollup="sum")).tolist())
    for elements, n_bytes, leaves in zip(*sums, strict=True):
        yield f', "elements": {int(elements)}, "bytes": {int(n_bytes)}, "leaves": {int(leaves)}'


def _values(table: TreeTable, columns: Sequence[Column]) -> Iterator[str]:
    """The values of each row in the columns."""
    names = [_text(column.name) for column in columns]
    for values in zip(*(_written(table, column) for column in columns), strict=True):
        written = ", ".join([f"{name}: {value}" for name, value in zip(names, values, strict=True)])
        yield f', "values": {{{written}}}}}'
    if not columns:
        yield from [', "values": {}}'] * len(table)


def _written(table: TreeTable, column: Column) -> list[str]:
    if column.format == "label":
        return list(map(_text, _labels(column)))
    if column.format == "histogram":
        column = replace(column, levels=np.asarray(column.levels, dtype=np.float64))
        return [f"[{', '.join(map(_number, counts))}]" for counts in table.rolled(column).tolist()]
    values = table.rolled(column).tolist()
    # A count may be stored as a float.
    is_count = column.format != "number"
    written = [_number(int(x) if is_count and isinstance(x, float) and x.is_integer() else x) for x in values]
    for row in [] if column.bad is None else np.flatnonzero(column.bad).tolist():
        written[row] = '"NaN"'
    return written


def _series(series: Series) -> str:
    head = {name: getattr(series, name) for name in ("name", "title", "unit", "log")}
    head |= {name: part.tolist() for name, part in _steps_of(series, "first_steps", "last_steps", "last_inner").items()}
    marks = [{"row": int(m.row), "place": int(m.column), "kind": m.kind, "text": m.text} for m in series.marks]
    places = [np.flatnonzero(bad).tolist() for bad in series.bad | np.isinf(series.values)]
    parts = [f'"{name}": {_lines(getattr(series, name))}' for name in ("values", "low", "high")]
    parts += [f'"nonfinite": {json.dumps(places)}', f'"marks": {json.dumps(marks)}']
    return f"{json.dumps(head)[:-1]},\n" + ",\n".join(parts) + "}"


def _lines(values: np.ndarray | None) -> str:
    """A list for each row, with the digits that float32 needs."""
    if values is None:
        return "null"
    written: list[list[str]] = values.astype(np.float32).astype(str).tolist()
    rows = [f"[{', '.join([_NOT_FINITE.get(word, word) for word in row])}]" for row in written]
    return "[\n" + ",\n".join(rows) + "]"


def _number(value: float) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return "null" if math.isnan(value) else '"Infinity"' if value > 0 else '"-Infinity"'
    return json.dumps(value)


_text = json.encoder.encode_basestring_ascii

# A small tree for documents: a Markdown table, a Mermaid diagram

_LONGEST = 200  # characters of a name, a type, a note
_IN_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>|~$&#])")


class _Line(NamedTuple):
    """A row, or a line for the rows left out below one."""

    depth: int
    parent: int  # the index of its line; -1 at the root
    name: str
    type: str
    cells: list[str]
    notes: list[str]
    is_leaf: bool


def markdown(view: View, max_rows: int) -> str:
    """The headline, and below it the first rows as a table in GitHub's Markdown."""
    titles, lines = _outline(view, max_rows)
    rows = [["name", "type", *map(_plain, titles), "notes"], [":--", ":--", *["--:"] * len(titles), ":--"]]
    for line in lines:
        name = "&emsp;" * line.depth + (_plain(line.name) if line.is_leaf else f"**{_plain(line.name)}**")
        rows.append([name, *map(_plain, (line.type, *line.cells, ", ".join(line.notes)))])
    if not any(line.notes for line in lines):
        rows = [row[:-1] for row in rows]
    headline = " · ".join((f"**{_plain(view.table.name)}**", *map(_plain, view.table.headline)))
    return "\n".join([headline, "", *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


def mermaid(view: View, max_rows: int) -> str:
    """The first rows as a Mermaid flow chart, which GitHub and notebooks draw, with a title for screen readers."""
    _, lines = _outline(view, max_rows)
    title, *headline = (_quoted(visible(part, _LONGEST)) for part in (view.table.name, *view.table.headline))
    parts = ["flowchart LR", f"  accTitle: {title}", f"  accDescr: {' · '.join(headline)}"]
    for i, line in enumerate(lines):
        label = "<br>".join(map(_quoted, filter(None, (line.name, line.type, *line.notes))))
        parts.append(f'  n{i}["{label}"]' if line.is_leaf else f'  n{i}(["{label}"])')
        if line.parent >= 0:
            parts.append(f"  n{line.parent} --> n{i}")
    marked = [f"n{i}" for i, line in enumerate(lines) if line.notes]
    if marked:
        parts += [f"  class {','.join(marked)} noted", "  classDef noted stroke:#c5221f,stroke-width:2px"]
    return "\n".join(parts) + "\n"


def _outline(view: View, max_rows: int) -> tuple[list[str], list[_Line]]:
    """The titles of the columns and the lines, with the rows that a picture shows."""
    view = in_brief(view, fold=True)
    table = view.table
    truncated = first_rows(view, max_rows, view.depth)
    rows = truncated.rows
    left_out = LeftOut(table, view.columns, truncated, GLYPHS.dots)
    omitted = {shown: left_out.text(shown) for shown in left_out.closed}
    columns = [column for column in view.columns if column.name not in IN_EVERY_ROW]
    # Bars and shares, whose columns have no title, are left out.
    cells = [cells for cells in columns_of_cells(table, columns, rows, GLYPHS) if cells.title.strip()]
    labels = key_labels(table, rows, len(table), GLYPHS)[0]
    types = type_cells(table, rows, GLYPHS).texts
    badges = list(row_badges(view, rows, omitted))
    lines: list[_Line] = []
    line_numbers: dict[int, int] = {}  # by row
    for _, shown, is_row in guides(table, left_out, 0, GLYPHS):
        row = int(rows[shown])
        depth, parent = int(table.depth[row]), line_numbers.get(int(table.parent[row]), -1)
        if not is_row:
            lines.append(_Line(depth + 1, line_numbers[row], left_out.text(shown), "", [""] * len(cells), [], True))
            continue
        line_numbers[row] = len(lines)
        facts = table[row].facts
        notes = [*(text for text, _ in badges[shown]), *([omitted[shown]] if shown in omitted else [])]
        texts = [cell.texts[shown].strip() for cell in cells]
        is_leaf = facts.is_leaf or KINDS[facts.kind].group == "part"
        lines.append(_Line(depth, parent, labels[shown], types[shown].strip(), texts, notes, is_leaf))
    if view.footer:
        lines.append(_Line(1, 0, view.footer, "", [""] * len(cells), [], True))
    return [cell.title.strip() for cell in cells], lines


def _plain(text: str) -> str:
    """Text escaped for Markdown."""
    return _IN_MARKDOWN.sub(r"\\\1", visible(text, _LONGEST))


def _quoted(text: str) -> str:
    """Text escaped for a quoted label of Mermaid, whose entities begin with # instead of &."""
    return re.sub(r"[^\w .,:×·…\[\]()/+-]", lambda match: f"#{ord(match[0])};", visible(text, _LONGEST))


# Plain Python values for data frames

SIZES = ("elements", "bytes", "leaves")


def to_records(view: View) -> list[dict[str, Any]]:
    """One dict per row, depth first; see `TreeView.to_records`."""
    table = view.table
    known = {column.name: column for column in (*view.columns, *table.columns.values())}
    columns = {name: known[name] for name in (*SIZES, *(column.name for column in view.columns)) if name in known}
    values = {name: _record_values(table, column) for name, column in columns.items()}
    facts = {"path": "keystr", "depth": "depth", "leaf": "is_leaf", "type": "type", "shape": "shape", "dtype": "dtype"}
    return [
        {name: getattr(row, attribute) for name, attribute in facts.items()}
        | {name: column_values[row.number] for name, column_values in values.items()}
        for row in table
    ]


def to_frame(view: View, series: str | None = None) -> Frame:
    """The records as columns, or the columns of a series; see `TreeView.to_pandas`."""
    if series is None:
        rows = to_records(view)
        return {name: [row[name] for row in rows] for name in rows[0]}
    known = {recorded.name: recorded for recorded in view.series}
    chosen = known.get(series)
    if chosen is None:
        raise LookupError(f"to_pandas: no series {series!r}; there are {', '.join(map(repr, known)) or 'none'}.")
    n_rows, n_steps = chosen.values.shape
    low, high = (chosen.values if bound is None else bound for bound in (chosen.low, chosen.high))
    steps = _steps_of(chosen, "first_step", "step", "inner")
    return {
        **{name: np.repeat(part, n_rows) for name, part in steps.items()},
        "path": Labels(np.tile(np.arange(n_rows), n_steps), [row.keystr for row in view.table]),
        **{name: part.T.ravel() for name, part in {"value": chosen.values, "low": low, "high": high}.items()},
        "nonfinite": chosen.bad.T.ravel(),
    }


def _steps_of(series: Series, first: str, last: str, last_inner: str) -> dict[str, np.ndarray]:
    """The steps of the columns of a series, by these names, and their inner steps if it has some."""
    n = series.inner.n
    columns = {first: series.first_steps // n, last: series.last_steps // n}
    if series.inner.noun and n > 1:
        columns |= {"first_inner": series.first_steps % n, last_inner: series.last_steps % n}
    return columns


def _labels(column: Column) -> list[str]:
    levels = [str(level) for level in column.levels]
    return levels if column.codes is None else [levels[code] for code in column.codes.tolist()]


def _record_values(table: TreeTable, column: Column) -> list[Any]:
    if column.format == "label":
        return _labels(column)
    values = table.rolled(column)
    if column.format in ("count", "bytes") and np.isfinite(values).all():
        values = values.astype(np.int64)
    return values.tolist()
