"""The machine-readable form: valid, complete, and the same as what the table's rows say."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from query_trees import TREES, array, item, node, table
from sample_series import NAN_FROM, layers, run
from sample_trees import SAMPLES

import treeviz
import treeviz.views.exports
from treeviz.tree.facts import Column
from treeviz.tree.keys import Key
from treeviz.tree.series import FindingMark, Series
from treeviz.tree.walk import walk
from treeviz.views.exports import MAX_PATH_DEPTH, to_json
from treeviz.views.view import View


def refuse(constant):
    raise AssertionError(f"{constant} is no JSON")


def read(tree, columns=None):
    columns = list(tree.columns.values()) if columns is None else columns
    return json.loads(to_json(View(tree, columns)), parse_constant=refuse)


@pytest.mark.parametrize("name", TREES)
def test_every_row_says_what_the_table_says(name):
    tree = TREES[name]()
    document = read(tree)
    assert document["format"] == "treeviz/1"
    assert document["name"] == tree.name
    assert len(document["rows"]) == len(tree)
    for row, written in zip(tree, document["rows"], strict=True):
        assert written["number"] == row.number
        assert written["parent"] == (None if row.parent is None else row.parent.number)
        assert written["depth"] == row.depth
        assert written["keystr"] == row.keystr
        assert written["path"] == row.path
        assert written["expression"] == row.expression
        assert written["keystr"].endswith(written["key"])
        assert written["leaf"] == row.is_leaf
        assert (written["kind"], written["type"], written["dtype"]) == (row.kind, row.type, row.dtype)
        assert written["shape"] == (None if row.shape is None else list(row.shape))
        assert written.get("static", []) == [list(pair) for pair in row.facts.static]
        assert [note["text"] for note in written.get("notes", [])] == [note.text for note in row.notes]
        below = [tree[i].facts for i in range(row.number, row.end)]
        for size in ("elements", "bytes", "leaves"):
            assert written[size] == sum(getattr(facts, size) for facts in below)
    assert document["rows"][0]["bytes"] > 0


def test_what_is_written_is_what_the_schema_says():
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads(Path(treeviz.views.exports.__file__).with_name("schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    compared = treeviz.diff({"a": np.ones(3), "b": 1}, {"a": np.zeros(3)})
    view = View(tree := layers(), [], series=run(tree))
    for document in (*(read(make()) for make in TREES.values()), *map(json.loads, (compared.json(), to_json(view)))):
        assert [error.message for error in validator.iter_errors(document)] == []
        assert set(document) <= set(schema["properties"])
        assert all(set(row) <= set(schema["$defs"]["row"]["properties"]) for row in document["rows"])
    assert list(validator.iter_errors({**document, "rows": [{}]}))


@pytest.mark.parametrize("name", SAMPLES)
def test_a_strange_tree_is_valid_json_with_exact_sizes(name):
    tree = treeviz.walk(SAMPLES[name]())
    rows = read(tree)["rows"]
    assert len(rows) == len(tree)
    assert rows[0]["leaves"] == tree.is_leaf.sum() or any(not row.is_leaf and row.facts.leaves for row in tree)
    assert rows[-1]["bytes"] == tree[-1].facts.bytes


def test_what_is_not_finite_is_null_or_a_word():
    one = [(0, 0, node("dict")), *((1, item(key), array("float32")) for key in "abcd")]
    tree = table("t", one, x=[math.nan, math.nan, math.inf, -math.inf, 0.5])
    column = Column("x", "x", tree.columns["x"].levels, format="number", rollup="none")
    assert [row["values"]["x"] for row in read(tree, [column])["rows"]] == [None, None, "Infinity", "-Infinity", 0.5]


def test_a_histogram_is_a_list_of_counts_and_labels_are_texts():
    tree = table("t", [(0, 0, node("dict")), (1, 0, array("float32", 3)), (1, 1, array("float32", 5))])
    histogram = Column("h", "h", np.array([[0, 0], [1, 2], [5, 0]]), format="histogram", rollup="sum")
    where = tree.fact_column("where", ['a"\ud800', "b", ""])
    values = [row["values"] for row in read(tree, [histogram, where])["rows"][:2]]
    assert values == [{"h": [6, 2], "where": 'a"\ud800'}, {"h": [1, 2], "where": "b"}]


def test_series_are_there_value_by_value_with_what_was_not_finite_and_what_was_found():
    tree = layers()
    norm, ratio = run(tree)
    document = json.loads(to_json(View(tree, [], series=[norm, ratio])), parse_constant=refuse)
    assert [(each["name"], each["title"], each["log"]) for each in document["series"]] == [
        ("grads.norm", "grads norm", True),
        ("grads.ratio", "grads ÷ params", True),
    ]
    for series, written in zip((norm, ratio), document["series"], strict=True):
        assert written["first_steps"] == series.first_steps.tolist()
        assert written["last_steps"] == series.last_steps.tolist()
        assert len(written["values"]) == len(document["rows"])
        for name in ("values", "low", "high"):
            truth = getattr(series, name)
            if truth is None:
                assert written[name] is None
            else:  # to the last bit, through as few digits as that takes
                np.testing.assert_array_equal(np.array(written[name], np.float32), truth.astype(np.float32))
        places = [[place for place, bad in enumerate(row) if bad] for row in series.bad.tolist()]
        assert written["nonfinite"] == places
    found = [(mark["row"], mark["place"], mark["kind"], mark["text"]) for mark in document["series"][0]["marks"]]
    assert found == [mark[:4] for mark in norm.marks] and found[0][1] == NAN_FROM


def test_infinities_and_nothing_in_series_are_valid_json_and_evil_texts_stay_texts():
    tree = table("t", [(0, 0, node("dict")), (1, item("a"), array("float32")), (1, item("b"), array("float32"))])
    values = np.array([[np.inf, -np.inf, np.nan], [0, 1e-30, 3e38], [1 / 3, -0.0, 7]], np.float32)
    steps = np.array([0, 5, 10])
    mark = FindingMark(1, 2, '"}],', "</script>\ud800\x00")
    series = Series("x", '"', steps, steps, values, np.zeros((3, 3), bool), log=False, marks=(mark,), unit="s")
    (written,) = json.loads(to_json(View(tree, [], series=[series])), parse_constant=refuse)["series"]
    assert written["values"][0] == ["Infinity", "-Infinity", None]
    assert written["nonfinite"] == [[0, 1], [], []]
    assert np.float32(written["values"][2][0]) == np.float32(1 / 3) and len(str(written["values"][2][0])) < 12
    assert written["marks"] == [{"row": 1, "place": 2, "kind": '"}],', "text": "</script>\ud800\x00"}]
    assert (written["title"], written["unit"]) == ('"', "s")


def test_without_steps_there_are_no_series():
    tree = layers(1)
    nothing = Series("x", "x", np.zeros(0), np.zeros(0), np.zeros((len(tree), 0)), np.zeros((len(tree), 0), bool))
    assert to_json(View(tree, [], series=[nothing])) == to_json(View(tree, [])) and "series" not in read(tree)


def test_an_inspector_saves_its_series_with_their_units(tmp_path):
    inspector = treeviz.GradientInspector()
    for step in range(5):
        grads = {"a": np.array([3.0, 4.0]), "b": np.array([np.nan if step == 2 else 12.0])}
        inspector.record(treeviz.measure(grads=grads, params={"a": np.ones(2), "b": np.ones(1)}), step)
    document = json.loads(inspector.save(tmp_path / "x.json").read_text(), parse_constant=refuse)
    norm, ratio = document["series"]
    assert [each["unit"] for each in (norm, ratio)] == ["L2 norm", "ratio"]
    assert norm["last_steps"] == norm["first_steps"] == [0, 1, 2, 3, 4]
    assert norm["values"] == [[13, 13, 5, 13, 13], [5] * 5, [12, 12, None, 12, 12]]
    assert norm["nonfinite"] == [[2], [], [2]] == ratio["nonfinite"]
    assert norm["marks"][0]["kind"] == "nonfinite" and norm["marks"][0]["place"] == 2


def test_without_columns_each_row_has_no_values():
    assert [row["values"] for row in read(TREES["names"](), [])["rows"]] == [{}] * 11


def test_the_file_of_a_deep_tree_grows_with_its_depth_only():
    key = Key("key", "['key']", "key", ("['key']",))
    deep = table("deep", [(0, 0, node("dict")), *((d, key, node("dict")) for d in range(1, 5000))])
    text = to_json(View(deep, []))
    rows = json.loads(text)["rows"]
    assert len(text) < 5000 * 500
    assert rows[MAX_PATH_DEPTH]["keystr"] == "['key']" * MAX_PATH_DEPTH
    assert "keystr" not in rows[MAX_PATH_DEPTH + 1]
    assert (rows[4999]["key"], rows[4999]["parent"]) == ("['key']", 4998)


def test_keys_that_look_like_json_or_markup_stay_keys():
    strange = ['"}],', "</script>", "\n", "\u202e", "\ud800", "\x00", "é"]
    tree = walk(dict.fromkeys(strange, 1), name='a"b')
    document = read(tree)
    assert document["name"] == 'a"b'
    assert sorted(eval(row["expression"].removeprefix('a"b'))[0] for row in document["rows"][1:]) == sorted(strange)
