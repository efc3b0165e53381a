"""A table as HTML: a part for notebooks, or a document of its own."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from functools import cache
from hashlib import sha256

from treeviz.tree.column import Column
from treeviz.tree.series import Histograms, Series
from treeviz.tree.table import TreeTable
from treeviz.views.escape import Markup, attribute, text
from treeviz.views.front_end import loader_text, packed_page_module, page_module_text, stand_in_text
from treeviz.views.payload import FORMAT, pack
from treeviz.views.sparks import with_steps
from treeviz.views.static import outline

_SCRIPT = re.compile(r"<script\s*>(.*?)</script\s*>", re.DOTALL | re.IGNORECASE)


def fragment(
    table: TreeTable,
    columns: Sequence[Column],
    *,
    depth: int | None = None,
    values: Mapping[int, str] | None = None,
    series: Sequence[Series] = (),
    histograms: Sequence[Histograms] = (),
) -> str:
    """What a notebook shows: the first rows as plain HTML, and the script and the data that make it a whole view.

    Args:
      columns: Shown at first, in this order; the reader can add the table's other columns.
      depth: How many levels are open at first; None: as many as fit. The plain rows go no deeper.
      values: Pages of HTML that show the values of some rows, by row number; shown in a sandbox.
      series: How values of the rows went over time: sparklines, a heat map beside the rows, and charts.
      histograms: How the values inside the rows were distributed over time; shown where there are series.
    """
    series = with_steps(series)
    return _host(table, columns, depth, values, series, histograms) + _script(bool(series))


def page(
    table: TreeTable,
    columns: Sequence[Column],
    *,
    title: str = "",
    depth: int | None = None,
    values: Mapping[int, str] | None = None,
    series: Sequence[Series] = (),
    histograms: Sequence[Histograms] = (),
) -> str:
    """The same as a document that stands alone: no request leaves it, and no other script runs in it."""
    series = with_steps(series)
    title = title or " · ".join((table.name, *table.headline))
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; {_script_policy(values or {}, bool(series))}"
    )
    head = (
        f'<meta http-equiv="Content-Security-Policy" content="{attribute(policy)}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
    )
    host = _host(table, columns, depth, values, series, histograms, " data-page")
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">{head}<title>{text(title)}</title></head>\n'
        f'<body style="margin:0"><main style="margin:8px">\n{host}\n</main>{_script(bool(series))}</body></html>\n'
    )


def stand_in(
    table: TreeTable,
    columns: Sequence[Column],
    packed: bytes,
    *,
    token: str,
    depth: int | None = None,
    series: Sequence[Series] = (),
) -> str:
    """What a notebook keeps beside a widget: the same as `fragment`, shown only where no widget of this token comes."""
    series = with_steps(series)
    host = _host_of(packed, outline(table, columns, depth=depth, series=series), bool(series), "data-treeviz-waiting")
    module = packed_page_module(series=bool(series))
    return (
        f'<div data-treeviz-stand-in="{attribute(token)}">{host}<script type="text/treeviz-waiting">{module}</script>'
        f'<script type="text/treeviz-loader">{loader_text()}</script><script>{stand_in_text()}</script></div>'
    )


def _host(
    table: TreeTable,
    columns: Sequence[Column],
    depth: int | None,
    values: Mapping[int, str] | None,
    series: Sequence[Series],
    histograms: Sequence[Histograms],
    kind: str = "",
) -> str:
    """The element that the front end takes over: the plain rows, and the packed table."""
    packed = pack(table, columns, depth=depth, values=values, series=series, histograms=histograms)
    return _host_of(packed, outline(table, columns, depth=depth, series=series), bool(series), f"{kind} data-treeviz")


def _host_of(packed: bytes, rows: str, has_series: bool, attribute_of_needs: str) -> str:
    needs = f"{FORMAT} series" if has_series else FORMAT  # a script without the modules for series leaves it alone
    return (
        f'<div class="treeviz" {attribute_of_needs.strip()}="{needs}" data-lm-suppress-shortcuts="true">'
        f'{rows}<script type="application/octet-stream">{b64encode(packed).decode()}</script></div>'
    )


@cache
def _script(has_series: bool) -> Markup:
    packed = packed_page_module(series=has_series)
    return Markup(f'<script type="text/treeviz">{packed}</script><script type="module">{loader_text()}</script>')


@cache
def _script_hash(script: str) -> str:
    return f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'"


def _script_policy(values: Mapping[int, str], has_series: bool) -> str:
    """The front end runs, and in the sandboxed frames of `values`, which inherit the policy, their own scripts."""
    scripts = dict.fromkeys(script for html in values.values() for script in _SCRIPT.findall(html) if script)
    builds_functions = any("new Function" in script for script in scripts)
    hashes = map(_script_hash, (loader_text(), page_module_text(series=has_series), *scripts))
    return " ".join(["script-src", *hashes, *(["'unsafe-eval'"] if builds_functions else [])])
