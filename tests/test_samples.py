"""Every view stands every strange tree."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from hostile_objects import HOSTILE
from sample_trees import SAMPLES

import treeviz
from treeviz.tree.facts import KINDS, NOTES
from treeviz.tree.keys import KEYSTR_LIMIT
from treeviz.tree.table import TreeTable
from treeviz.views.tree_view import TreeView

pytestmark = pytest.mark.oldest_jax

TAGS = set(re.findall(r"\w+", "doctype html head body meta title main div pre b i ul li details summary"))
ADDRESS = re.compile(r"0x[0-9a-f]{6,}")
MAX_TEXT = 400  # characters of any one text
# The scripts of a page are ours, so their number is that of any page.
N_SCRIPTS = {kind: getattr(treeviz.render([1.0]), kind)().lower().count("<script") for kind in ("html", "_repr_html_")}

JAX_RAISES = {
    "a flatten that exits",
    "a flatten that raises",
    "keys without a hash",
    "unsortable keys",
}
# These JAX flattens for ever, or not without harm to the process.
JAX_DIES = {"2**40 paths", *(name for name in SAMPLES if re.search("contains itself|levels", name))}


@pytest.fixture(scope="module", params=SAMPLES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def view(name: str) -> TreeView:
    return treeviz.render(SAMPLES[name](), name="params")


@pytest.fixture(scope="module")
def shown(view: TreeView, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Made once for all tests of a tree."""
    return views(view, tmp_path_factory.mktemp("sample"))


def views(view: TreeView, folder: Path) -> dict[str, str]:
    saved = {kind: view.save(folder / f"tree.{kind}").read_text(encoding="utf-8") for kind in ("json", "txt")}
    shown = {"repr": repr(view), "text": view.text(), "html": view.html(), "_repr_html_": view._repr_html_()}
    shown |= {"markdown": view.markdown(), "mermaid": view.mermaid()}
    assert view._repr_mimebundle_() == {"text/plain": shown["repr"], "text/html": shown["_repr_html_"]}
    return saved | shown


def texts(thing: Any) -> Iterator[str]:
    """All strings in facts, keys, notes, and whatever a page is packed from."""
    if isinstance(thing, str):
        yield thing
    elif isinstance(thing, dict):
        yield from texts([*thing, *thing.values()])
    elif isinstance(thing, (list, tuple)):
        for inner in thing:
            yield from texts(inner)


def from_base_91(text: str) -> bytes:
    """Each pair of characters are 13 bits, the lowest ones first."""
    digits = [ord({" ": "&", "!": "<", "~": "\\"}.get(letter, letter)) - 35 for letter in text] + [0]
    words = [low + 91 * high for low, high in zip(digits[::2], digits[1::2], strict=False)]
    bits = sum(word << 13 * i for i, word in enumerate(words))
    return bits.to_bytes(2 * len(words), "little")[: len(text) * 13 // 16]


def packed(html: str) -> tuple[dict[str, Any], list[np.ndarray]]:
    """The header of the data in a page, and its arrays."""
    (data,) = re.findall(r"<script type=text/plain>([^<]*)</script>", html)
    inflated = zlib.decompress(from_base_91(data), -15)
    at = 4 + int.from_bytes(inflated[:4], "little")
    header, arrays = json.loads(inflated[4:at]), []
    for kind, size in header["buffers"]:
        arrays.append(np.frombuffer(inflated, ("u1", "u2", "u4", "i4", "f4", "f8")[kind], size, at))
        at += -(-arrays[-1].nbytes // 8) * 8
    return header, arrays


def test_every_view_shows_every_tree_the_same_in_every_run_without_addresses_or_invisible_characters(
    name, shown, tmp_path
):
    again = views(treeviz.render(SAMPLES[name](), name="params"), tmp_path)
    for kind, text in shown.items():
        assert text == again[kind], kind
        text.encode()
        assert not ADDRESS.search(text), kind
        seen = re.sub(r"(<script type=text/)[^<]*", r"\1", text)  # without what is packed
        bad = {character for character in {*seen} if not character.isprintable()} - {"\n"}
        assert bad == set(), kind


def test_every_script_in_a_page_is_ours(shown):
    for kind, n in N_SCRIPTS.items():
        html = shown[kind].lower()
        assert html.count("<script") == html.count("</script") == n
        outline = re.sub(r"<script\b.*?</script>|<style\b.*?</style>", "", html, flags=re.DOTALL)
        tags = set(re.findall(r"<[/!]?([a-z]+)", outline))
        assert tags <= TAGS
        assert not re.search(r"<[^>]*\son\w+\s*=", outline)


def test_every_text_of_a_table_is_printable_and_bounded(view):
    table = view.table
    check_table(table)
    assert [key for key in table.keys if len(key.keystr) > KEYSTR_LIMIT + 40] == []
    names = [(key.label, key.segment) for key in table.keys]
    found = [*texts(names), *texts(table.facts), *texts(tuple(table.notes.values())), *texts(table.headline)]
    assert [text for text in found if len(text) > MAX_TEXT] == []
    assert [text for text in (*found, *texts(table.keys)) if not text.isprintable()] == []


def check_table(table: TreeTable):
    """The promises of a `TreeTable` about its arrays and words."""
    n_rows = len(table)
    assert table.depth[0] == 0 and table.parent[0] == -1 and table.end[0] == n_rows
    children: dict[int, list[int]] = {}
    for row in range(1, n_rows):
        parent = int(table.parent[row])
        assert parent < row < table.end[row] <= table.end[parent]
        assert table.depth[row] == table.depth[parent] + 1
        children.setdefault(parent, []).append(int(table.position[row]))
    assert all(positions == list(range(len(positions))) for positions in children.values())
    assert {facts.kind for facts in table.facts} <= set(KINDS)
    assert {note.kind for notes in table.notes.values() for note in notes} <= set(NOTES)
    assert all(note.row < n_rows for notes in table.notes.values() for note in notes)


def test_a_page_carries_the_whole_table(view, shown):
    header, arrays = packed(shown["html"])
    assert header["headline"] == list(view.table.headline)
    assert len(header["facts"]["kind"][0]) == len({facts.kind for facts in view.table.facts})
    notes = {str(row): [(*note[:3], [*map(list, note.details)]) for note in of] for row, of in view.table.notes.items()}
    codes, *sent = header.get("notes", [None])
    rows = {} if codes is None else {str(row): sent[arrays[codes][row] - 1] for row in np.flatnonzero(arrays[codes])}
    mirrors = set(map(str, header.get("mirrors", [])))  # beside them stands what they are like
    assert {row: [tuple(note[:4]) for note in of] for row, of in rows.items() if row not in mirrors} == notes


def test_the_plain_rows_of_a_page_say_what_the_text_says(view, shown):
    plain = unescape(re.sub(r"<script\b.*?</script>", "", shown["_repr_html_"], flags=re.DOTALL))
    for summary in view.table.headline:
        assert summary in plain
        assert summary in shown["text"]


@pytest.mark.parametrize("name", ["a flatten that raises", *(name for name in HOSTILE if "10 MB" not in name)])
def test_every_hostile_tree_can_be_checked_compared_and_laid_over_another(name):
    tree, other = SAMPLES[name](), {"a": np.ones(3), "b": [np.ones(2)]}
    said = [treeviz.check(tree), treeviz.explain_map(tree, SAMPLES[name]())]
    for pair in ((tree, other), (other, tree)):
        said += [treeviz.diff(*pair), treeviz.explain_map(*pair), treeviz.stackable(pair)]
    for use in ("in_axes", "out_axes", "shardings", "mask", "labels"):
        views = [treeviz.overlay(tree, of, use=use) for of in (other, tree)]
        said += [*views, *(view.differences for view in views)]
    assert all(line.isprintable() for text in map(str, said) for line in text.split("\n"))


def test_statistics_of_every_tree_come_out(name):
    view = treeviz.render(SAMPLES[name](), stats=True)
    assert len(view.table.columns["nan"].values) == len(view.table)
    view.html(), view.text()


@pytest.mark.filterwarnings("ignore:Python iterable type 'generator'")  # is a leaf, says JAX
@pytest.mark.parametrize("name", [name for name in SAMPLES if name not in JAX_RAISES | JAX_DIES])
def test_leaves_are_those_of_jax(name):
    tree = SAMPLES[name]()
    table = treeviz.walk(tree)
    truth = tree if type(tree) is jax.tree_util.PyTreeDef else jax.tree_util.tree_structure(tree)
    assert table.is_leaf.sum() == truth.num_leaves
    assert not {note.kind for notes in table.notes.values() for note in notes} & {"error", "cycle"}


@pytest.mark.parametrize("name", sorted(JAX_RAISES))
def test_a_tree_that_jax_cannot_flatten_is_shown_all_the_same(name):
    tree = SAMPLES[name]()
    assert len(treeviz.walk(tree))
    with pytest.raises(BaseException):
        jax.tree_util.tree_structure(tree)
