"""The query language: every case in `query_cases.json`, and what only Python promises."""

import fnmatch
import json
import re
from pathlib import Path

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from query_trees import TREES, array, attribute, item, node, table
from sample_trees import SAMPLES

import treeviz
from treeviz.tree.keys import Key
from treeviz.tree.query import find, matches, on_path
from treeviz.tree.table import Row, TreeTable

CASES = json.loads((Path(__file__).parents[2] / "query_cases.json").read_text(encoding="utf-8"))
FOUND = [case for case in CASES if "rows" in case]
REFUSED = [case for case in CASES if "error" in case]


def title(case):
    return f"{case['tree']} {case['query']}"


@pytest.mark.parametrize("tree", dict.fromkeys(case["tree"] for case in FOUND))
def test_queries_find_exactly_these_rows(tree):
    table = TREES[tree]()
    expected = {case["query"]: case["rows"] for case in FOUND if case["tree"] == tree}
    assert {query: [row.number for row in find(table, query)] for query in expected} == expected


@pytest.mark.parametrize("case", REFUSED, ids=title)
def test_a_query_that_makes_no_sense_says_why(case):
    with pytest.raises(ValueError, match=re.escape(case["error"])) as error:
        find(TREES[case["tree"]](), case["query"])
    assert "near" not in case or f"Did you mean {case['near']}?" in str(error.value)


def message(query, tree="model"):
    with pytest.raises(ValueError) as error:
        find(TREES[tree](), query)
    return str(error.value)


def test_the_errors_say_what_to_write_instead():
    assert message("bytes:>lots") == (
        "find: cannot parse bytes:>lots. "
        "Write bytes:>1M, bytes:<=0.5, bytes:1k..2k or bytes:42; the units are k M G T Ki Mi Gi Ti."
    )
    assert message("cpu:0") == (
        "find: no column 'cpu'. There are: "
        "key, kind, type, dtype, sharding, shape, is, depth, elements, bytes, leaves. "
        'To search for the text itself, put it in quotes: "cpu:0"'
    )
    assert message("byte:1").startswith("find: no column 'byte'. Did you mean bytes? ")
    assert "widget.tree = new" in message("is:changed")
    assert message("shape:x,3") == (
        "find: cannot parse the dimension 'x' of shape:x,3. "
        "Write numbers, >64, <=8, * for one dimension and ... for any number of them: shape:...,>64,768"
    )
    assert message("is:blue") == (
        "find: no is:blue. There are: is:cut, is:cycle, is:differs, is:error, is:hidden, is:info, is:leaf, "
        "is:more, is:node, is:nonfinite, is:opaque, is:partial, is:replicated, is:shared, is:static, is:warning, "
        "is:weak."
    )
    assert message("is:share") == "find: no is:share. Did you mean is:shared?"
    unread = "needs the values, which were not read: render(tree, stats=True) reads them."
    assert message("std:>1") == f"find: std:>1 {unread}"
    assert message("-nan") == f'find: nan {unread} To search for the text itself, put it in quotes: "nan"'
    assert message('a "b') == """find: a quote is not closed in 'a "b'. Put the words between two quotes."""
    assert message("key:") == "find: 'key:' needs a value. To search for the text, put it in quotes: \"key:\""


def test_a_word_that_a_view_shows_finds_its_rows():
    tree = {"a": jax.ShapeDtypeStruct((2,), np.float32), "b": np.zeros(2)}
    table = treeviz.walk(tree)
    assert table[1].kind == "shape only" and "float32[2] shape only" in treeviz.render(tree).text()
    for query in ('kind:"shape only"', "kind:shape*", '"shape only"'):
        assert [row.keystr for row in find(table, query)] == ["['a']"]


def test_the_rows_come_with_paths_to_paste():
    found = find(TREES["model"](), "layers/*/weight")
    assert [row.expression for row in found] == ["params['layers'][0].weight", "params['layers'][1].weight"]


def test_what_was_not_read_is_not_said_to_be_free_of_nan():
    shape_only = treeviz.render({"w": np.zeros(2), "shape": jax.ShapeDtypeStruct((3,), float)}, stats=True)
    with pytest.raises(
        ValueError, match=r"^find: there is no nan in what was read. The values of 1 leaf were not read.$"
    ):
        shape_only.find("nan")
    assert [row.keystr for row in shape_only.find("zeros")] == ["['w']"]


# Against a plain reading of the same rules, row by row, on random trees

NAMES = ["a", "b", "ab", "ba", "a/b", "B", "", "0"]
KEYS = st.one_of(st.integers(0, 11), st.sampled_from(NAMES).map(item), st.sampled_from(["a", "ab"]).map(attribute))


@st.composite
def tables(draw) -> TreeTable:
    rows, depth = [(0, 0, node("dict"))], 0
    for _ in range(draw(st.integers(0, 25))):
        depth = draw(st.integers(1, depth + 1))
        rows.append((depth, draw(KEYS), node("dict", "T")))
    return table("ba", rows)


def path_of(row: Row) -> list[Key]:
    return row.table.path(row.number)


def word_is_on_path(row: Row, word: str) -> bool:
    keys = path_of(row)
    joined = (separator.join([row.table.name, *(key.segment for key in keys)]) for separator in "/.")
    texts = [row.table.name + row.keystr, *joined]
    return any(word in text.lower() for text in [*texts, *(key.label for key in keys)])


def glob_is_at_end(row: Row, pattern: list[str], anchored: bool) -> bool:
    segments = [part for key in path_of(row) for part in key.segment.lower().split("/")]
    starts = [0] if anchored else range(len(segments) + 1)
    return any(same_segments(pattern, segments[start:]) for start in starts)


def same_segments(pattern: list[str], segments: list[str]) -> bool:
    if not pattern:
        return not segments
    if pattern[0] == "**":
        return any(same_segments(pattern[1:], segments[i:]) for i in range(len(segments) + 1))
    return bool(segments) and fnmatch.fnmatch(segments[0], pattern[0]) and same_segments(pattern[1:], segments[1:])


@settings(deadline=None, max_examples=2 * settings().max_examples)
@given(tables(), st.text("ab'[]./01", min_size=1, max_size=6))
def test_a_word_is_found_wherever_the_whole_path_contains_it(tree, word):
    expected = [row.number for row in tree if word_is_on_path(row, word)]
    assert [row.number for row in find(tree, f'"{word}"')] == expected


@settings(deadline=None, max_examples=2 * settings().max_examples)
@given(
    tables(),
    st.lists(st.sampled_from(["a", "b", "*", "**", "?", "[ab]", "a*", "0"]), min_size=1, max_size=4),
    st.booleans(),
)
def test_a_glob_is_matched_as_a_plain_reading_of_the_path_says(tree, pattern, anchored):
    query = "/" * anchored + "/".join(pattern)
    if query in ("a", "b", "0"):
        query = f"**/{query}"
    expected = [row.number for row in tree if glob_is_at_end(row, pattern, anchored)]
    assert [row.number for row in find(tree, query)] == expected


# What it stands


def chain(n: int, key: int | Key = 0) -> TreeTable:
    return table("deep", [(0, 0, node("list")), *((depth, key, node("list")) for depth in range(1, n))])


def test_a_tree_of_20_000_levels_is_searched():
    n = 20_000
    deep = chain(n)
    assert matches(deep, '"[0][0][0]"').sum() == n - 3
    assert matches(deep, "/0/0").nonzero()[0].tolist() == [2]
    assert matches(deep, "**/0/**/0").sum() == n - 2
    assert matches(deep, "depth:>19990").sum() == 9


def test_patterns_that_invite_backtracking_are_linear():
    tree = table("t", [(0, 0, node("dict")), (1, item("a" * 150 + "c"), array("float32", *[2] * 60))])
    assert find(tree, "*a" * 60 + "*b") == []
    assert find(tree, "/".join(["**"] * 60) + "/x") == []
    assert find(tree, "shape:" + ",".join(["..."] * 60) + ",3") == []
    assert find(tree, "x" + " " * 100_000 + "b") == []


def test_an_unclosed_bracket_stands_for_itself():
    tree = table("t", [(0, 0, node("dict")), (1, item("a["), array("float32"))])
    assert [row.number for row in find(tree, "a[")] == [1]


@pytest.mark.parametrize("name", SAMPLES)
def test_every_row_of_a_strange_tree_is_found_by_what_it_says(name):
    tree = treeviz.walk(SAMPLES[name]())
    assert matches(tree, f'"{tree.name}"').all()
    assert matches(tree, "kind:leaf").tolist() == [row.is_leaf for row in tree]
    assert matches(tree, "shape:...").tolist() == [row.shape is not None for row in tree]
    assert matches(tree, "-is:leaf | dtype:float | bytes:>0 | /*/* | [ab]*").shape == (len(tree),)
    for row in list(tree)[1:50]:
        segment = row.table.key(row.number).segment
        assert '"' in segment or not segment or row.number in np.flatnonzero(matches(tree, f'key:"{segment}"'))
    for row in list(tree)[1:50] if len(tree) < 1000 else ():
        is_plain = re.fullmatch(r"(\.\w+|\['\w+'\]|\[-?\d+\])+", row.keystr) and name != "keys of all types"
        assert not is_plain or (on_path(tree, row.keystr)[row.number] and matches(tree, row.keystr)[row.number])


def test_looking_does_not_change_the_table():
    tree = TREES["state"]()
    before = {name: str(column.values.tolist()) for name, column in tree.columns.items()}
    for query in ("kind:leaf", "-kind:leaf", "nan", "depth:1", "is:error"):
        matches(tree, query)[:] = True
    assert tree.is_leaf.sum() == 10
    assert all(str(column.values.tolist()) == before[name] for name, column in tree.columns.items())
