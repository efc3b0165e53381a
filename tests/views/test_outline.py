"""A small tree in documents: what readers of Markdown and Mermaid get to see."""

from __future__ import annotations

import html
import re

import numpy as np
import pytest

import treeviz

TREE = {"a|b": {"*bold*_x_": np.ones((2, 3), np.float32), "<b>`$\\": np.full(2, np.nan)}, 'q"#1;': [1.5, None]}


def cells(text: str) -> list[list[str]]:
    """The cells of a table, as a reader of Markdown shows them; that of nbconvert leaves entities to the page."""
    mistune = pytest.importorskip("mistune")
    page = mistune.create_markdown(plugins=["table"])(text)
    rows = re.findall(r"<tr>(.*?)</tr>", page, re.DOTALL)
    return [
        [
            html.unescape(html.unescape(re.sub(r"</?strong>", "", cell)))
            for cell in re.findall(r"<t[hd].*?>(.*?)</t[hd]>", row)
        ]
        for row in rows
    ]


def test_a_reader_of_markdown_sees_each_row_with_its_columns_and_what_is_wrong():
    view = treeviz.render(TREE, name="params", stats=True)
    head, *rows = cells(view.markdown())
    assert head[:3] == ["name", "type", "elements"] and head[-1] == "notes"
    names = [row[0].lstrip("\u2003") for row in rows]
    assert names == ["params", "a|b", "*bold*_x_", "<b>`$\\", 'q"#1;', "[0]", "[1]"]
    assert [row[0].count("\u2003") for row in rows] == [row.depth for row in view.table]
    by_name = dict(zip(names, rows, strict=True))
    assert by_name["*bold*_x_"][1:3] == ["float32[2,3] numpy", "6"] and "NaN: 2 of 2" in by_name["<b>`$\\"][-1]


def test_mermaid_has_a_node_for_each_row_a_line_to_its_parent_and_words_for_screen_readers():
    """That Mermaid itself draws it, with the names as they are, was tried with its release 11."""
    view = treeviz.render(TREE, name="params", stats=True)
    text = view.mermaid()
    labels = re.findall(r'n(\d+)\(?\["(.*?)"\]', text)
    shown = [re.sub(r"#(\d+);", lambda found: chr(int(found[1])), label).split("<br>")[0] for _, label in labels]
    assert shown == ["params", "a|b", "*bold*_x_", "<b>`$\\", 'q"#1;', "[0]", "[1]"]
    parents = {int(below): int(above) for above, below in re.findall(r"n(\d+) --> n(\d+)", text)}
    assert parents == {row.number: int(view.table.parent[row.number]) for row in view.table if row.number}
    assert "accTitle: params\n  accDescr: 3 leaves" in text and "class n3 noted" in text


def test_what_does_not_fit_is_counted():
    view = treeviz.render({f"k{i}": np.ones(i + 1) for i in range(100)})
    assert "… 9" in view.markdown(max_rows=10) and "… 9" in view.mermaid(max_rows=10)
    assert len(view.markdown(max_rows=10).splitlines()) < 16
