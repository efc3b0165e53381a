"""What an explorer answers when the page asks for a row: no browser, no kernel."""

from __future__ import annotations

import base64
import gc
import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sample_trees import SAMPLES

import treeviz as tv
from treeviz.analysis.details import MOST_BYTES, window
from treeviz.views.widget.backend import OPERATIONS

pytest.importorskip("anywidget")
pytest.importorskip("treescope")
pytestmark = pytest.mark.oldest_jax
MOST_ROWS = 12  # of each tree, no two that look alike


def answer(widget, operation: str, *numbers: int) -> list[dict]:
    content, buffers = widget._backend.answer(operation, numbers, lambda: False)
    assert buffers == [] and len(json.dumps(content)) < MOST_BYTES
    return content["sections"]


@pytest.mark.parametrize("name", SAMPLES)
def test_every_row_of_every_strange_tree_has_an_answer(name):
    tree = SAMPLES[name]()
    widget = tv.explore(tree)
    table = widget.table
    alike = {
        (table[row].kind, table[row].facts.type, table[row].facts.dtype): row for row in range(min(len(table), 500))
    }
    for row in sorted(alike.values())[:MOST_ROWS]:
        sections = answer(widget, "detail", row)
        assert all(section["kind"] != "text" or section["tone"] != "bad" for section in sections)
        for section in sections:
            if section["kind"] == "window":
                assert answer(widget, "slice", row, *section["axes"], *section["starts"]) == [section]
    for leaf in jax.tree.leaves(tree) if name in ("params", "sharded") else ():
        assert getattr(leaf, "_npy_value", None) is None
    widget.close()


@pytest.mark.skipif(len(jax.devices()) < 8, reason="needs eight devices")
def test_a_node_says_what_each_device_holds_of_it_where_they_differ():
    tree = {"a": [jax.device_put(np.ones(n, np.int8), jax.devices()[n]) for n in (1, 5)], "b": [jnp.ones(2)]}
    widget = tv.explore(tree)
    (section, _) = answer(widget, "detail", 1)
    assert section == {"kind": "pairs", "title": "bytes on each device", "pairs": [("cpu:5", "5 B"), ("cpu:1", "1 B")]}
    assert [each["kind"] for each in answer(widget, "detail", 4)] == ["button"]


def test_a_slice_is_of_the_place_that_is_asked_for():
    values = jnp.arange(10 * 20 * 100.0).reshape(10, 20, 100)
    widget = tv.explore({"a": values})
    (section,) = answer(widget, "slice", 1, 2, 0, 3, 7, 90)
    assert section["axes"] == (2, 0) and section["starts"] == (0, 7, 36) and section["sizes"] == (10, 1, 64)
    assert "[0:10, 7, 36:100] float32" in section["html"]
    assert values._npy_value is None


@pytest.mark.parametrize("numbers", [(1, 0, 0), (1, 5, 1, 0, 0), (1, 0, 1, 0), (1, 0)])
def test_a_slice_along_no_axes_is_an_error_that_is_said(numbers):
    tree = {"a": np.ones((3, 4))}
    (section,) = answer(tv.explore(tree), "slice", *numbers)
    assert section["tone"] == "bad" and "ValueError" in section["text"]


@pytest.mark.parametrize("operation", sorted(OPERATIONS - {"whole"}))  # that one is for the panel of a live run
def test_each_operation_of_the_page_has_an_answer(operation):
    tree = {"a": jnp.ones(3)}
    assert answer(tv.explore(tree), operation, 1)


def test_what_nobody_answers_is_answered_with_nothing():
    widget = tv.explore({"a": 1})
    assert answer(widget, "whole") == answer(widget, "whole", 1) == answer(widget, "detail") == []


def test_statistics_that_the_page_has_are_not_sent_again():
    tree = {"a": jnp.ones(3)}
    assert "numbers" in [section["kind"] for section in answer(tv.explore(tree), "detail", 1)]
    assert "numbers" not in [section["kind"] for section in answer(tv.explore(tree, stats=True), "detail", 1)]


def test_nobody_is_kept_by_an_answer():
    tree = {"a": jnp.ones((30, 40))}
    widget = tv.explore(tree)
    for operation in ("detail", "slice", "statistics", "referrers"):
        answer(widget, operation, 1)
    gc.disable()
    try:
        tree.clear()
        (section,) = answer(widget, "detail", 1)
    finally:
        gc.enable()
    assert section["tone"] == "gone" and "was freed" in section["text"]


def test_who_holds_an_array_does_not_name_the_explorer():
    tree = {"a": jnp.ones(3)}
    widget = tv.explore(tree)
    (lines, *_) = answer(widget, "referrers", 1)
    here = Path(__file__).name  # a variable of this test holds it
    found = [line.replace(here, "") for _, line, *_ in lines["lines"]]
    assert not any("treeviz" in line or "answer" in line or "<tuple>" in line for line in found), lines
    kept = tv.explore(tree, keep=True)
    (lines, *_) = answer(widget, "referrers", 1)
    assert any("with keep=True" in line for _, line, *_ in lines["lines"])
    kept.close()


def test_the_array_in_a_leaf_of_a_library_has_its_values_and_statistics():
    pz = pytest.importorskip("penzai.pz", reason="needs penzai")
    values = jnp.arange(12.0).reshape(3, 4)
    tree = {"a": pz.Parameter(value=pz.nx.wrap(values).tag("x", "y"), label="w")}
    widget = tv.explore(tree)
    sections = {section["kind"]: section for section in answer(widget, "detail", 1)}
    assert sections["window"]["shape"] == [3, 4] and dict(sections["numbers"]["pairs"])["max"] == "11"
    assert answer(widget, "slice", 1, 1, 0, 0, 0)[0]["axes"] == (1, 0)
    assert values._npy_value is None


def hidden(monkeypatch):
    monkeypatch.setitem(sys.modules, "treescope", None)


def failing(monkeypatch):
    import treescope

    monkeypatch.setattr(treescope, "render_array", lambda *_, **__: 1 / 0)
    monkeypatch.setattr(treescope.renderers, "TreescopeRenderer", lambda *_: 1 / 0)


@pytest.mark.parametrize(
    ("fail", "error"),
    [(hidden, "cannot be imported: ModuleNotFoundError"), (failing, "cannot draw this: ZeroDivisionError")],
)
def test_where_treescope_fails_the_page_gets_the_values_to_draw_and_the_reason(fail, error, monkeypatch):
    fail(monkeypatch)
    values = jnp.arange(3 * 100 * 70, dtype=jnp.float32).reshape(3, 100, 70) - 5
    tree = {"a": values, "o": object(), "v": np.arange(130)}
    widget = tv.explore(tree)
    (section, *others) = [each for each in answer(widget, "detail", 1) if each["kind"] != "button"]
    assert section["kind"] == "window" and "html" not in section and len(json.dumps(section)) < 30_000
    drawn = section["drawn"]
    cells = np.frombuffer(base64.b64decode(drawn["cells"]), "<f4")
    np.testing.assert_array_equal(cells.reshape(-1, drawn["columns"]), np.asarray(values)[0, :64, :64])
    assert drawn["caption"] == "[0, 0:64, 0:64] float32" and drawn["range"] == [-4468, 4468]
    assert error in drawn["why"] and drawn["why"].endswith(". So treeviz draws it.")
    assert {"numbers", "bars"} <= {each["kind"] for each in others}, "all else is there"
    (section,) = answer(widget, "slice", 1, 0, 1, 0, 40, 7)
    assert section["drawn"]["starts"] == section["starts"] == (0, 36, 7) and section["drawn"]["axes"] == (0, 1)
    (section, *_) = answer(widget, "detail", 3)
    cells = np.frombuffer(base64.b64decode(section["drawn"]["cells"]), "<f4")
    np.testing.assert_array_equal(cells, np.arange(130))  # and not what fills its last row
    (section,) = answer(widget, "treescope", 2)
    assert section["tone"] == "bad" and error in section["text"]
    widget.close()


@pytest.mark.skipif(jax.__version_info__ < (0, 10), reason="this jax makes no arrays that are not summed yet")
def test_an_array_whose_parts_are_not_summed_yet_has_no_values_and_says_why():
    make = SAMPLES["an array whose parts are not summed yet"]
    first, other, why = make(), make(), "unreduced over x: each device has a part of every sum"
    view = tv.render(first, stats=True)
    assert why in view.text(width=200) and "unreduced_kind" not in view.text(width=200)
    assert tv.diff(first, other).not_compared == {"['sum']": why}
    with pytest.raises(ValueError, match=why):
        window(first["sum"])
