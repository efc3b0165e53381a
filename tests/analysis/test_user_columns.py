"""A user's own function of a leaf, as a column."""

from __future__ import annotations

import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hostile_objects import EVIL_TEXTS, boom
from sample_trees import SAMPLES

import treeviz
from treeviz.views.text.cells import columns_of_cells
from treeviz.views.text.terminal import UNICODE

pytestmark = pytest.mark.oldest_jax

TREE = {
    "a": jax.device_put(np.arange(6.0).reshape(2, 3)),
    "b": [np.full(3, -2.0, np.float32), jax.device_put(np.int32(7))],
    "name": "text",
}


def largest(x):
    return jnp.max(jnp.abs(x))


def shown(*columns, tree=TREE):
    """[(title, format, what stands at each leaf)] of the columns that are shown."""
    view = treeviz.render(tree, columns=columns)
    rows = [row.number for row in view.table.leaves]
    return [(c.title, c.format, [view.table.rolled(c)[row] for row in rows]) for c in view.columns]


def test_numbers_of_jax_become_a_column_of_numbers_under_the_functions_name():
    (title, format, numbers), (more, _, texts) = shown(largest)
    assert (title, format, more) == ("largest", "number", "largest: no number")
    np.testing.assert_array_equal(numbers, [5, 2, 7, np.nan])
    assert texts[:3] == ["", "", ""] and texts[3].startswith("TypeError: ")


def test_an_error_stands_in_the_cell_of_its_leaf_and_the_rest_goes_on():
    def odd(x):
        if x is TREE["a"]:
            raise ValueError("</script> \u202e")
        return np.size(x)

    (_, format, sizes), (_, _, texts) = shown(odd)
    assert format == "count"
    np.testing.assert_array_equal(sizes, [np.nan, 3, 1, 1])
    assert texts == ["ValueError: </script> \\u202e", "", "", ""]


def test_errors_alone_are_a_column_of_text():
    ((title, format, texts),) = shown(boom)
    assert (title, format) == ("boom", "label")
    assert set(texts) == {"_Boom: (its message cannot be shown)"}


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_is_no_exception_stops_the_look(error):
    def stop(_):
        raise error

    with pytest.raises(error):
        treeviz.render(TREE, columns=[stop])


def test_texts_are_labels_none_is_nothing_and_other_things_are_described():
    def kind(x):
        return {0: None, 2: "matrix", 1: ("vector", 1)}[np.ndim(x)]

    assert shown(kind) == [("kind", "label", ["matrix", "('vector', 1)", "", ""])]
    ((_, format, texts),) = shown(lambda x: jnp.ones(3), tree=[1.0])
    assert (format, texts) == ("label", ["float32[3]"])
    ((_, _, texts),) = shown(lambda x: x.dtype, tree=[np.ones(2)])
    assert texts == ["float64"]


def test_nan_is_said_since_an_empty_cell_would_say_nothing():
    (_, _, numbers), (_, _, texts) = shown(lambda x: x * np.nan, tree=[1.0, 2.0])
    assert np.isnan(numbers).all() and texts == ["NaN", "NaN"]


def test_bools_are_words_and_with_a_roll_up_numbers():
    tree = {"x": [1.0, -1.0], "y": [2.0]}
    assert shown(lambda x: x < 0, tree=tree) == [("<lambda>", "label", ["False", "True", "False"])]
    view = treeviz.render(tree, columns=[treeviz.column(lambda x: x < 0, rollup="any", title="negative")])
    assert {row.label: row["negative"] for row in view.table if not row.is_leaf} == {"tree": 1, "x": 1, "y": 0}


@pytest.mark.parametrize(
    ("rollup", "join"), [("sum", np.sum), ("max", np.max), ("min", np.min), ("norm", np.linalg.norm)]
)
def test_a_node_has_what_its_leaves_add_up_to(rollup, join):
    tree = {"x": [1.5, -4.0], "y": [2.0]}
    table = treeviz.render(tree, columns=[treeviz.column(float, rollup=rollup)]).table
    np.testing.assert_allclose(table[0]["float"], join([1.5, -4.0, 2.0]))
    np.testing.assert_allclose(table.find("key:x")[0]["float"], join([1.5, -4.0]))


def test_bytes_that_add_up_are_exact_and_fields_of_a_query():
    def half(x):
        return x.nbytes // 2

    tree = {"x": np.zeros(1000), "y": np.zeros(1)}
    view = treeviz.render(tree, columns=[treeviz.column(half, rollup="sum", format="bytes", title="Half of it")])
    assert view.table.columns["half_of_it"].format == "bytes"
    assert view.table.rolled(view.table.columns["half_of_it"]).tolist() == [4004, 4000, 4]
    assert [row.keystr for row in view.find("half_of_it:>1k is:leaf")] == ["['x']"]
    assert "Half of it" in view.text() and "4.0 kB" in view.text() and '"half_of_it": 4004' in view.json()


def test_numbers_of_every_make_are_numbers():
    values = [np.float16(2), np.array(2), jnp.bfloat16(2), jnp.array(2, jnp.int8), 2, 2.0, np.longdouble(2)]
    ((_, format, numbers),) = shown(lambda x: values[x], tree=list(range(len(values))))
    assert (format, numbers) == ("number", [2.0] * len(values))
    ((_, _, huge),) = shown(lambda x: x, tree=[10**400, -(10**400), 2**70, 1])
    assert huge == [np.inf, -np.inf, 2.0**70, 1] or np.isnan(huge[0])


@pytest.mark.parametrize("format", ["count", "bytes", "number"])
@pytest.mark.parametrize(
    ("values", "leaves", "root"),
    [([1e308, 1e308], ["1e308", "1e308"], "inf"), ([np.inf, 1.0], ["inf", "1"], "inf"), ([None, 2.0], ["", "2"], "2")],
)
def test_numbers_of_any_size_are_shown_as_they_are_and_what_is_missing_is_empty(format, values, leaves, root):
    function = treeviz.column(lambda i: values[i], format=format, rollup="sum", title="n")
    view = treeviz.render([0, 1], columns=[function])
    unit = " B" if format == "bytes" else ""
    cells, *_ = columns_of_cells(view.table, view.columns, np.arange(3), UNICODE)
    assert [text.strip() for text in cells.texts] == [f"{text}{unit}" if text else "" for text in [root, *leaves]]
    for output in (view.html(), view.json(), repr(view), view.picture()):
        assert output


def test_names_that_are_taken_or_mean_something_in_a_query_get_a_number():
    def nan(x):
        return "label"

    tree = [np.ones(2)]
    columns = treeviz.render(tree, columns=[nan, nan, lambda x: 1, lambda x: 2]).columns
    assert [column.name for column in columns] == ["nan_2", "nan_3", "lambda", "lambda_2"]
    assert not treeviz.render(tree, columns=[nan], stats=True).find("nan")


def test_columns_stand_in_the_order_in_which_they_were_asked_for():
    own = treeviz.Column("own", "Own", [1.0, 2.0], format="number")
    view = treeviz.render([np.ones(2)], columns=["bytes", np.size, own, "leaves"])
    assert [column.name for column in view.columns] == ["bytes", "size", "own", "leaves"]


def test_a_column_of_another_length_is_refused():
    with pytest.raises(ValueError, match="column 'own' has 3 values, but tree has 2 rows: one for each row, nodes"):
        treeviz.render([1.0], columns=[treeviz.Column("own", "Own", [1.0, 2.0, 3.0], format="number")])


def test_what_is_no_column_is_refused():
    with pytest.raises(TypeError, match="column: pass a function of a leaf, not 3"):
        treeviz.column(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="columns= is an option, a list of names, functions of a leaf"):
        treeviz.render([1.0], columns=[3])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="there is no rollup 'average'; there are 'sum', 'max'"):
        treeviz.column(float, rollup="average")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"columns=\['bytes'\]"):
        treeviz.render([1.0], columns="bytes")
    with pytest.raises(ValueError, match="there is no format 'percent'; there are None, 'label', 'count'"):
        treeviz.column(float, format="percent")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"no column 'nosuch'\. There are: "):
        treeviz.render([1.0], columns=["nosuch"])


def test_a_function_is_called_once_for_each_leaf_in_the_order_of_the_tree():
    asked: list = []
    treeviz.render(TREE, columns=[asked.append])
    assert list(map(id, asked)) == list(map(id, jax.tree.leaves(TREE)))


def test_without_a_roll_up_a_node_has_no_value_and_a_format_is_as_it_was_asked_for():
    table = treeviz.render({"x": [1.5, 2.0]}, columns=[treeviz.column(float)]).table
    assert np.isnan([table[0]["float"], table[1]["float"]]).all()
    assert [row["float"] for row in table.leaves] == [1.5, 2.0]
    (column,) = treeviz.render([1.5], columns=[treeviz.column(float, format="label")]).columns
    assert column.format == "label"


def test_all_scalars_of_all_functions_come_in_one_transfer(monkeypatch):
    transfers = []
    fetch = jax.device_get
    monkeypatch.setattr(jax, "device_get", lambda x: transfers.append(len(x)) or fetch(x))
    treeviz.render([jnp.ones(2)] * 5, columns=[largest, jnp.sum])
    assert transfers == [10]


def test_a_scalar_that_cannot_be_fetched_costs_only_its_own_cell():
    gone = jnp.ones(())
    gone.delete()
    (_, _, numbers), (_, _, texts) = shown(lambda x: x, tree=[jnp.float32(1), gone])
    assert numbers[0] == 1 and "deleted" in texts[1]


def test_nothing_of_the_results_or_leaves_is_kept():
    tree = [jnp.ones(3)]
    results = []

    def total(x):
        result = jnp.sum(x)
        results.extend([weakref.ref(result), weakref.ref(x)])
        return result

    view = treeviz.render(tree, columns=[total])
    del tree
    gc.collect()
    assert view.text() and all(ref() is None for ref in results)


def test_inside_jit_a_traced_result_says_so():
    seen = []

    @jax.jit
    def step(x):
        seen.append(treeviz.render([x], columns=[jnp.sum]).columns[0].values.tolist())
        return x

    step(jnp.ones(3))
    assert seen == [["", "traced: no value yet"]]


@pytest.mark.parametrize("name", EVIL_TEXTS)
def test_evil_titles_and_texts_are_printable_in_every_view(name):
    evil = EVIL_TEXTS[name]
    view = treeviz.render([1.0], columns=[treeviz.column(lambda x: evil, title=evil, help=evil)])
    assert all(line.isprintable() for line in view.text().split("\n"))
    assert view.html() and view.json()


@pytest.mark.parametrize("name", SAMPLES)
def test_every_strange_tree_stands_functions_of_all_sorts(name):
    tree = SAMPLES[name]()
    view = treeviz.render(tree, columns=[id, type, lambda x: x, boom])
    assert view.text(max_rows=50) and all(len(column.values) == len(view.table) for column in view.columns)
