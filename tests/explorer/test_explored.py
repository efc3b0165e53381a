"""`treeviz.explore` as Python sees it: no browser, no kernel."""

from __future__ import annotations

import gc
import inspect
import re
import weakref
from collections import OrderedDict, defaultdict, namedtuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sample_nodes import Repeated
from sample_trees import SAMPLES

import treeviz as tv

pytest.importorskip("anywidget")
pytestmark = pytest.mark.oldest_jax

Point = namedtuple("Point", "x y")


@jax.tree_util.register_pytree_with_keys_class
class Module:
    """Can be referred to weakly, and has keys."""

    def __init__(self, w, child=None):
        self.w, self.child = w, child

    def tree_flatten_with_keys(self):
        return [(jax.tree_util.GetAttrKey("w"), self.w), (jax.tree_util.GetAttrKey("child"), self.child)], None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)


@jax.tree_util.register_pytree_node_class
class Keyless:
    def __init__(self, *parts):
        self.parts = parts

    def tree_flatten(self):
        return self.parts, None

    @classmethod
    def tree_unflatten(cls, _, parts):
        return cls(*parts)


def params() -> dict:
    return {
        "layers": [{"w": jnp.ones((3, 4)), "b": jnp.zeros(4)} for _ in range(3)],
        "point": Point(jnp.ones(2), (1, 2.5)),
        "module": Module(jnp.ones(2), Module(np.zeros(3))),
        "keyless": Keyless(jnp.ones(1), [jnp.ones(2)]),
        "sorted": {"b": jnp.ones(1), "a": jnp.ones(2)},
        "numpy": {"w": np.zeros(3)},
        7: "a text",
    }


def holds_text_keys_only() -> dict:
    tree = params()
    del tree[7]
    return tree


def nodes_with_paths(tree):
    """Every node and leaf with JAX's key path to it: what is looked for, found without our walk."""
    found, waiting = [], [((), tree)]
    while waiting:
        path, node = waiting.pop()
        found.append((path, node))
        called = []
        pairs, treedef = jax.tree_util.tree_flatten_with_path(
            node, is_leaf=lambda _: called.append(0) or len(called) > 1
        )
        if treedef.node_data() is not None:
            waiting += [((*path, *keys), child) for keys, child in pairs]
    return found


def test_every_selected_row_is_the_very_node_with_the_path_that_jax_gives_it(explore):
    tree = holds_text_keys_only()
    widget = explore(tree)
    expected = {jax.tree_util.keystr(path): (path, node) for path, node in nodes_with_paths(tree)}
    widget.selection = list(range(len(widget.table)))
    assert len(widget.selection) == len(expected)
    for row, node, path in zip(widget.selection, widget.selected, widget.selected_paths, strict=True):
        true_path, true_node = expected[widget.table[row].keystr]
        assert node is true_node
        assert path == true_path


def test_the_paths_of_all_leaves_are_those_of_jax(explore):
    tree = holds_text_keys_only()
    widget = explore(tree)
    widget.selection = np.flatnonzero(widget.table.is_leaf).tolist()
    assert widget.selected_paths == [path for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]
    assert list(map(id, widget.selected)) == list(map(id, jax.tree.leaves(tree)))


def test_findings_of_check_are_badges_also_of_the_next_tree(explore):
    widget = explore({"f": jnp.sin, "x": 1.0}, check="jit")
    assert [row.keystr for row in widget.table.find("T131")] == ["['f']"]
    widget.tree = {"f": 1.0, "x": jnp.sin}
    assert [row.keystr for row in widget.table.find("T131")] == ["['x']"]


def test_selected_paths_make_a_mask(explore):
    tree = holds_text_keys_only()
    widget = explore(tree)
    widget.selection = [row.number for row in widget.table.find("layers/*/w")]
    mask = jax.tree_util.tree_map_with_path(lambda path, leaf: path in widget.selected_paths, tree)
    assert sum(jax.tree.leaves(mask)) == 3
    assert [layer["w"] for layer in mask["layers"]] == [True] * 3


def test_where_finds_the_same_places_in_another_tree(explore):
    tree = holds_text_keys_only()
    widget = explore(tree)
    widget.selection = [row.number for row in widget.table.find("module/w")] + [0]
    doubled = jax.tree.map(lambda leaf: leaf * 2, tree)
    found = widget.where(doubled)
    assert found[0] is doubled["module"].w and found[-1] is doubled
    with pytest.raises(LookupError, match=r"has no \['module'\]"):
        widget.where({"other": 1})


def test_where_tells_children_apart_whose_node_repeats_a_key(explore):
    tree = {"a": Repeated(np.ones(1), Repeated(np.ones(2), np.ones(3)), np.ones(4))}
    widget = explore(tree)
    widget.selection = np.flatnonzero(widget.table.is_leaf).tolist()
    other = jax.tree.map(lambda leaf: leaf * 2, tree)
    assert list(map(id, widget.where(other))) == list(map(id, jax.tree.leaves(other)))
    with pytest.raises(LookupError, match=r"at \['a'\] a Repeated has no \.dup"):
        widget.where({"a": Repeated(np.ones(1))})


def test_where_is_what_equinox_tree_at_wants(explore):
    equinox = pytest.importorskip("equinox")
    model = equinox.nn.MLP(2, 2, 4, 2, key=jax.random.key(0))
    widget = explore(model, name="model")
    widget.value = ".layers[1].weight"
    assert widget.selected[0] is model.layers[1].weight
    new = equinox.tree_at(widget.where, model, replace_fn=jnp.zeros_like)
    assert not new.layers[1].weight.any() and new.layers[0].weight is model.layers[0].weight


def test_selected_expressions_give_the_nodes(explore):
    tree = holds_text_keys_only()
    widget = explore(tree, name="params")
    widget.selection = list(range(len(widget.table)))
    for expression, node in zip(widget.selected_expressions, widget.selected, strict=True):
        assert eval(expression, {"params": tree, "treeviz": tv}) is node


def test_a_layer_of_a_stack_is_selected_as_a_part_of_its_array(explore):
    tree = {"layers": {"w": np.arange(24.0).reshape(2, 3, 4)}}
    widget = explore(tree, name="params", stacked={"w": 1}, stats=True)
    widget.value = "['layers']['w'][:, 2]"
    np.testing.assert_array_equal(widget.selected[0], tree["layers"]["w"][:, 2])
    np.testing.assert_array_equal(widget.where({"layers": {"w": -tree["layers"]["w"]}})[0], -tree["layers"]["w"][:, 2])
    assert list(map(jax.tree_util.keystr, widget.selected_paths)) == ["['layers']['w']"]


def test_value_and_selection_say_the_same_whichever_was_set(explore):
    widget = explore(params(), name="params")
    widget.value = "['layers'][1]['w']"
    assert [widget.table[row].keystr for row in widget.selection] == ["['layers'][1]['w']"]
    widget.selection = [0]
    assert widget.value == "params"
    widget.value = ""
    assert widget.selection == []
    widget.value = "params"
    assert widget.selection == [0]
    widget.selection = []
    assert widget.value == ""


def test_a_row_whose_path_another_row_has_too_stays_selected(explore):
    @jax.tree_util.register_pytree_with_keys_class
    class Twice:
        def tree_flatten_with_keys(self):
            return [(jax.tree_util.GetAttrKey("x"), 1), (jax.tree_util.GetAttrKey("x"), 2)], None

        @classmethod
        def tree_unflatten(cls, _, children):
            return cls()

    widget = explore(Twice())
    widget.selection = [2]
    assert widget.value == ".x" and widget.selection == [2]
    widget.value = ""
    widget.value = ".x"
    assert widget.selection == [1]


def test_rows_that_are_not_there_are_dropped_and_logged(explore, caplog):
    widget = explore([1, 2])
    widget.selection = [1, 99, -1, 1]
    assert widget.selection == [1]
    assert widget.logged == ["selection: of 4 rows 2 are not in this tree, or too many"]
    assert [record.name for record in caplog.records] == ["treeviz"]


def test_an_explorer_keeps_no_array_and_no_module_alive(explore):
    tree = holds_text_keys_only()
    refs = [weakref.ref(leaf) for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array | np.ndarray)]
    refs.append(weakref.ref(tree["module"]))
    widget = explore(tree)
    widget.selection = list(range(len(widget.table)))
    assert len(widget.selected) == len(widget.table)
    widget.tree = tree = {**tree}
    del tree
    gc.collect()
    assert [ref() for ref in refs] == [None] * len(refs)
    widget.value = "['layers'][0]['w']"
    with pytest.raises(ReferenceError, match=r"the array at tree\['layers'\]\[0\]\['w'\] was freed.*keep=True"):
        widget.selected
    with pytest.raises(ReferenceError, match="was freed"):
        widget.tree
    keys = jax.tree_util
    assert widget.selected_paths == [(keys.DictKey("layers"), keys.SequenceKey(0), keys.DictKey("w"))]


def test_other_trees_beside_it_are_not_kept_alive_either(explore):
    tree, grads = {"w": jnp.ones(3)}, {"w": jnp.ones(3)}
    ref = weakref.ref(grads["w"])
    widget = explore(tree, grads=grads)
    assert any("grads" in name for name in widget.table.columns)
    del grads
    gc.collect()
    assert ref() is None
    widget.replace(tree, grads={"w": jnp.zeros(3)})
    assert any("grads" in name for name in widget.table.columns)


def test_keep_holds_on_to_the_tree(explore):
    tree = params()
    ref = weakref.ref(tree["layers"][0]["w"])
    widget = explore(tree, keep=True)
    del tree
    gc.collect()
    widget.value = "['layers'][0]"
    assert widget.selected[0]["w"] is ref()
    widget.close()
    gc.collect()
    assert ref() is None


def test_a_container_that_python_does_not_track_is_found_or_made_again(explore):
    arrays = [np.zeros(3), np.ones(2)]

    def made():
        local = {"b": arrays[0], "a": {"c": arrays[1]}}
        assert not gc.is_tracked(local["a"])
        return explore(local)

    widget = made()
    widget.selection = [0]
    (again,) = widget.selected
    assert list(again) == ["b", "a"]
    assert again["b"] is arrays[0] and again["a"]["c"] is arrays[1]


def test_containers_that_cannot_be_made_again_are_freed(explore):
    array = jnp.ones(3)
    for tree in OrderedDict(w=array), defaultdict(list, w=array):
        kind = type(tree)
        widget = explore([tree])
        del tree
        gc.collect()
        widget.selection = [1]
        try:
            (found,) = widget.selected
        except ReferenceError as error:
            assert "was freed" in str(error)
        else:
            assert type(found) is kind


def test_another_dict_at_the_same_address_is_not_the_node(explore):
    array = jnp.ones(3)
    widget = explore([{"w": array}])
    widget.selection = [1]
    gc.collect()
    others = [{"other": jnp.ones(1)} for _ in range(1000)]
    (node,) = widget.selected
    assert node == {"w": array} and node["w"] is array
    assert len(others) == 1000


def test_a_mutated_tree_gives_what_is_there(explore):
    tree = params()
    widget = explore(tree)
    tree["layers"][0]["w"] = jnp.zeros((3, 4))
    tree["layers"][0]["new"] = 1
    gc.collect()
    widget.value = "['layers'][0]"
    assert widget.selected[0] is tree["layers"][0]
    widget.value = "['layers'][0]['w']"
    with pytest.raises(ReferenceError, match="was freed"):
        widget.selected


def test_a_new_tree_counts_what_changed_was_added_and_is_gone(explore):
    tree = params()
    widget = explore(tree)
    widget.value = "['layers'][2]['w']"
    new = dict(tree)
    new["layers"] = [dict(layer) for layer in tree["layers"]]
    new["layers"][0]["w"] = jnp.ones((3, 4))  # another array that looks the same
    new["layers"][1]["b"] = jnp.zeros(9)  # another shape
    new["point"] = Point(tree["point"].x, (1, 3.5))  # another number
    new["added"] = [1, 2]
    del new["sorted"]
    widget.tree = new
    changed, added, gone, *rows = np.frombuffer(widget._changes, "<u4").tolist()
    assert (changed, added, gone) == (3, 2, 2)
    names = {widget.table[row].keystr for row in rows}
    assert names == {"['layers'][0]['w']", "['layers'][1]['b']", "['point'].y[1]"}
    assert widget.value == "['layers'][2]['w']"
    assert widget.selected[0] is new["layers"][2]["w"]
    assert widget.tree is new


@pytest.mark.optimized
def test_the_same_tree_again_changes_nothing(explore):
    tree = params()
    widget = explore(tree)
    widget.tree = tree
    assert np.frombuffer(widget._changes, "<u4").tolist() == [0, 0, 0]


@pytest.mark.parametrize("name", SAMPLES)
def test_any_tree_can_be_explored_replaced_and_asked_for(explore, name):
    tree = SAMPLES[name]()
    widget = explore(tree)
    rows = range(min(len(widget.table), 12))
    for row in rows:
        widget.selection = [row]
        assert len(widget.selected_paths) == 1
        try:
            widget.selected
        except ReferenceError as error:
            assert "was freed" in str(error)
    widget.tree = [tree]
    widget.tree = tree
    assert widget._version == 2


def test_a_closed_explorer_has_let_go_and_says_so(explore):
    tree = params()
    widget = explore(tree, keep=True)
    ref = weakref.ref(tree["layers"][0]["w"])
    widget.close()
    widget.close()
    del tree
    gc.collect()
    assert ref() is None
    assert repr(widget) == "explore: closed"
    for ask in (lambda: widget.selected, lambda: widget.tree, lambda: widget.table, lambda: setattr(widget, "tree", 1)):
        with pytest.raises(ReferenceError, match="is closed"):
            ask()


def test_what_render_takes_explore_takes(explore):
    tree = {"w": jnp.arange(4.0), "b": [1.0]}
    widget = explore(tree, columns=["max"], stats=True, is_leaf=lambda node: isinstance(node, list), depth=1, name="p")
    assert len(widget.table) == 3 and widget.table.name == "p"
    assert widget.table[0]["max"] == 3
    with pytest.raises(ValueError, match="no column 'nan'"):
        tv.explore(tree, columns=["nan"])
    with pytest.raises(TypeError, match="no option"):
        tv.explore(tree, dept=2)


def test_what_is_open_at_first_is_what_the_page_opens(explore):
    assert explore([[1, 2], [3]]).expanded == ["tree", "[0]", "[1]"]
    assert explore([[0] * 20, [0] * 20]).expanded == ["tree"]
    assert explore([[0] * 20, [0] * 20], depth=2).expanded == ["tree", "[0]", "[1]"]
    assert explore([0] * 100).expanded == ["tree"]
    assert explore(1.0).expanded == []
    assert len(explore([[0]] * 5000, depth=9).expanded) == 2000


def shown(documented) -> list[str]:
    """The code that a docstring shows."""
    lines = inspect.getdoc(documented).splitlines()
    return [line.strip() for line in lines if re.match(r"    \w|jax\.|equinox\.", line)]


def test_what_the_docstrings_show_runs(explore):
    params = {"layers": [{"w": jnp.ones(2)}, {"w": jnp.ones(3)}]}
    new_params = jax.tree.map(lambda leaf: leaf * 2, params)
    names = {"tv": tv, "params": params, "new_params": new_params, "jax": jax, "jnp": jnp}
    lines = shown(tv.explore)
    lines = lines[: lines.index(next(line for line in lines if line.startswith("widget.tree"))) + 1]
    assert len(lines) == 6
    for line in lines:
        exec(line, names)
    widget = names["widget"]
    assert widget.value == "['layers'][0]['w']" and widget.tree is new_params
    (line,) = shown(type(widget).selected_paths)
    assert eval(line, names) == {"layers": [{"w": True}, {"w": False}]}
    (line,) = shown(type(widget).where)
    names["equinox"], names["model"] = pytest.importorskip("equinox"), params
    assert not eval(line, names)["layers"][0]["w"].any()
    widget.close()
