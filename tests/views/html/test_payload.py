"""The packed table, unpacked by a reader that is written for this test alone."""

from __future__ import annotations

import json
import zlib
from dataclasses import replace

import numpy as np
import pytest
from query_trees import TREES
from sample_trees import SAMPLES

import treeviz
from treeviz.tree.facts import Column
from treeviz.tree.table import TreeTable
from treeviz.tree.text import number_text
from treeviz.views.html.payload import pack
from treeviz.views.text.cells import type_text
from treeviz.views.view import View

DTYPES = ["<u1", "<u2", "<u4", "<i4", "<f4", "<f8"]


def unpacked(packed: bytes) -> tuple[dict, list[np.ndarray]]:
    inflated = zlib.decompress(packed, -15)
    at = 4 + int.from_bytes(inflated[:4], "little")
    header = json.loads(inflated[4:at], parse_constant=pytest.fail)
    buffers = []
    for code, size in header["buffers"]:
        assert at % 8 == 0
        buffers.append(np.frombuffer(inflated, DTYPES[code], size, at))
        at += -(-buffers[-1].nbytes // 8) * 8
    assert at == len(inflated)
    return header, buffers


SPEC = ("name", "format", "levels", "codes", "help", "shown", "title", "rollup", "blank", "bad", "more")


def spec_of(header: dict, name: str) -> dict:
    return next(dict(zip(SPEC, spec, strict=False)) for spec in header["table"] if spec[0] == name)


def values_of(header: dict, buffers: list[np.ndarray], name: str) -> np.ndarray:
    """The column as it was sent, one value for every row."""
    spec = spec_of(header, name)
    if spec["format"] == "label":
        labels, index = header["facts"][name] if spec["levels"] is None else spec["levels"]
        labels = ["" if label is None else str(tuple(label)) if isinstance(label, list) else label for label in labels]
        levels = np.array(labels, dtype=object)[buffers[index]]
    else:
        levels = buffers[spec["levels"]]
        if spec["format"] == "histogram":
            n_bins = spec["more"]["n_bins"]
            levels = levels.reshape(n_bins, levels.size // max(n_bins, 1)).T
    return levels if spec.get("codes") is None else levels[buffers[spec["codes"]]]


def with_column(table: TreeTable, values, **how) -> TreeTable:
    return table.with_columns(Column("x", "x", values, **how))


def packed_values(table: TreeTable, values, **how) -> np.ndarray:
    table = with_column(table, values, **how)
    return values_of(*unpacked(pack(View(table, [table.columns["x"]]))), "x")


@pytest.fixture
def table() -> TreeTable:
    return TREES["model"]()


@pytest.mark.parametrize("name", SAMPLES)
def test_depths_keys_facts_and_labels_of_every_tree_come_through(name):
    table = treeviz.walk(SAMPLES[name]())
    header, buffers = unpacked(pack(View(table, [])))
    for index, sent in zip(header["rows"][:3], (table.depth, table.key_codes, table.fact_codes), strict=True):
        np.testing.assert_array_equal(buffers[index], sent)
    for field in ("kind", "type", "dtype", "text", "module", "is_leaf", "weak"):
        levels, *sent = header["facts"].get(field, [[""]])
        codes = buffers[sent[0]] if sent else [0] * len(table.facts)
        assert sent or len(levels) == 1
        assert [levels[code] or "" for code in codes] == [getattr(facts, field) or "" for facts in table.facts]
    whats, *sent = header["facts"]["what"]
    codes = buffers[sent[0]] if sent else np.zeros(len(table.facts), int)
    for code, facts in zip(codes.tolist(), table.facts, strict=True):
        shape = ",".join(map(str, facts.shape or ()))
        what = whats[code]
        assert type_text(facts) == (
            what if isinstance(what, str) else f"{''.join(what[1:])}{facts.dtype}[{shape}]{what[0]}"
        )
    sent = {spec[0] for spec in header["table"]}
    for column in table.columns.values():
        assert (column.name in sent) == (column.name != "type" and (column.format != "label" or any(column.levels)))
        if column.format == "label" and column.name in sent:
            assert values_of(header, buffers, column.name).tolist() == column.values.tolist()


@pytest.mark.parametrize("rollup", ["sum", "max", "min", "any", "norm", "given", "none"])
def test_a_column_travels_as_the_rows_own_values(table, rollup):
    own = np.arange(len(table))
    assert packed_values(table, own, format="count", rollup=rollup).tolist() == own.tolist()


@pytest.mark.parametrize(
    "value",
    [
        np.nan,
        np.inf,
        -np.inf,
        0.0,
        1.5,
        255,
        256,
        65_536,
        2**31,
        -1,
        -(2**31),
        2**53,
        1e300,
        1e-300,
        3.4e38,
        16_777_217.0,
    ],
)
def test_a_number_of_any_size_comes_through(table, value):
    values = np.full(len(table), value)
    np.testing.assert_allclose(packed_values(table, values, format="number"), values, rtol=1e-7)
    if float(value).is_integer():
        assert packed_values(table, values, format="number").tolist() == values.tolist()


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint8", "int16", "uint32", "int64", "float16", "float32", "float64"]
)
def test_numbers_of_any_dtype_come_through_whatever_numpy_is_told_to_do_about_errors(table, dtype):
    values = np.arange(len(table)).astype(dtype)
    with np.errstate(all="raise"):
        assert packed_values(table, values, format="number").tolist() == values.tolist()


def test_an_array_of_codes_that_columns_share_is_sent_once(table):
    facts = [facts.bytes for facts in table.facts]
    columns = [table.fact_column(f"c{i}", np.array(facts) + i + 1, format="count", rollup="sum") for i in range(20)]
    n_before = len(unpacked(pack(View(table, [])))[1])
    header, buffers = unpacked(pack(View(table.with_columns(*columns), [])))
    assert len(buffers) - n_before == 20  # the levels
    assert {spec_of(header, column.name)["codes"] for column in columns} == {header["rows"][2]}


def test_small_numbers_travel_in_bytes(table):
    header, buffers = unpacked(pack(View(table, [])))
    assert {buffers[index].dtype for index in header["rows"]} == {np.dtype("u1")}


def test_a_histogram_travels_as_heights_relative_to_its_highest_bar(table):
    levels = np.zeros((len(table), 4))
    levels[3] = [0, 1, 1000, 500]
    table = with_column(table, levels, format="histogram")
    header, buffers = unpacked(pack(View(table, [])))
    heights = values_of(header, buffers, "x")
    assert heights[3].tolist() == [1, 51, 26]
    assert not heights[[*range(3), *range(4, len(table))]].any()
    assert spec_of(header, "x")["more"] == {"n_bins": 3, "first_bin": 1}


@pytest.mark.parametrize("name", SAMPLES)
def test_statistics_of_every_tree_are_sent_in_the_digits_that_are_shown(name):
    table = treeviz.render(SAMPLES[name](), stats=True).table
    header, buffers = unpacked(pack(View(table, [])))
    for column in table.columns.values():
        if column.format != "number":
            continue
        told, spec = values_of(header, buffers, column.name).astype(float), spec_of(header, column.name)
        if spec.get("more") is not None:  # the rms, of which the mean stands here: and the standard deviation
            told = np.hypot(told, values_of(header, buffers, "std").astype(float))
        assert list(map(number_text, told)) == list(map(number_text, table.rolled(column))), column.name


def test_statistics_are_sent_in_few_bits():
    params = {f"layer_{i}": np.random.default_rng(i).normal(size=(8, 8)) for i in range(30)}
    header, buffers = unpacked(pack(treeviz.render(params, stats=True)))
    for name in ("min", "max", "mean", "std"):
        bits = values_of(header, buffers, name).view(np.uint32)
        assert np.mean(bits & 0x1FF == 0) > 0.7, name


def test_histograms_add_up_over_a_subtree(table):
    counts = np.eye(len(table), 16, dtype=np.int64)
    heights = packed_values(table, counts, format="histogram", rollup="sum")
    for row in range(len(table)):
        assert np.flatnonzero(heights[row]).tolist() == list(range(row, table.end[row]))


def test_the_rms_is_not_sent_since_it_follows_from_the_mean_and_the_standard_deviation():
    tree = [{"w": np.linspace(-1, 2, 30) ** n, "b": np.array([0.0, 0, 4])} for n in range(1, 4)]
    header, _ = unpacked(pack(View(treeviz.render(tree, stats=True).table, [])))
    rms, mean, std = (spec_of(header, name) for name in ("rms", "mean", "std"))
    assert (rms["levels"], rms["more"]) == (mean["levels"], std["levels"])


def test_a_histogram_of_nothing_is_flat(table):
    assert not packed_values(table, np.full((len(table), 3), np.nan), format="histogram").any()


def test_shown_columns_come_first_and_the_others_come_too(table):
    first, second, third = (Column(name, name, np.zeros(len(table)), format="number") for name in ("a", "b", "c"))
    header, _ = unpacked(
        pack(View(replace(table, columns={c.name: c for c in (first, second, third)}), [third, first]))
    )
    assert [(spec[0], spec[5]) for spec in header["table"]] == [("c", 1), ("a", 1), ("b", None)]
    empty = [Column("shard", "shard", [""] * len(table)), replace(first, levels=np.full(len(table), np.nan))]
    header, _ = unpacked(pack(View(table, [*empty, third])))
    assert [spec_of(header, name).get("shown") for name in ("c", "a", "shard")] == [1, None, None]


def test_the_same_table_gives_the_same_bytes():
    def packed() -> bytes:
        view = treeviz.render(SAMPLES["every kind of leaf"](), stats=True)
        return pack(View(view.table, view.columns, depth=2, values={1: "<p>one</p>"}))

    assert packed() == packed()
