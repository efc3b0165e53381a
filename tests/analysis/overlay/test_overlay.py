"""A prefix laid over a tree: which spec each leaf gets, and every mismatch where JAX finds one, and nowhere else."""

from __future__ import annotations

import random
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from own_thread import in_a_thread
from random_trees import changed, random_tree
from sample_nodes import Point
from sample_trees import SAMPLES

import treeviz as tv
from treeviz.views.text import terminal
from treeviz.views.text.text import text

pytestmark = pytest.mark.oldest_jax

X = np.ones((5, 3), np.float32)
ARGS = (X, {"k1": X.copy(), "k2": np.ones(5, np.float32)})


def specs(view: tv.TreeOverlay) -> list[str]:
    return [str(row[view.columns[0].name]) for row in view.table.leaves]


def mismatches(prefix: Any, tree: Any, **options: Any) -> list[str]:
    return [str(each) for each in tv.overlay(prefix, tree, **options).differences]


@pytest.mark.parametrize(
    ("in_axes", "told"),
    [
        ((None, {"k1": None, "k2": 0}), ["None", "None", "0"]),
        ((None, 0), ["None", "0 ← [1]", "0 ← [1]"]),
        (0, ["0 ← root", "0 ← root", "0 ← root"]),
    ],
)
def test_the_specs_of_working_with_pytrees(in_axes, told):
    view = tv.overlay(in_axes, ARGS)
    assert specs(view) == told and not view.differences


def test_a_bracket_stands_beside_what_is_inherited_and_it_is_dim():
    view = tv.overlay((None, 0), (X, {"a": X, "b": [X, X]}))
    lines = [line for line in view.text(fold=False).splitlines() if "float32[5,3]" in line]
    assert [line.split("float32[5,3]")[1].split("  ")[1] for line in lines] == ["None", *["│ 0 ← [1]"] * 2, "└ 0 ← [1]"]
    assert view.text(color=True).count(f"{terminal.DIM}{terminal.HUES[1]}│ 0 ← [1]\x1b[0m") == 3
    assert "| 0 <- [1]" in text(view, glyphs=terminal.ASCII)


def test_each_spec_has_a_color_in_a_terminal_and_what_inherits_it_the_same_one_dim():
    tree = {"a": [X, X], "b": X, "c": X, "d": {"e": X}}
    labels = {"a": "adam", "b": "sgd", "c": "adam", "d": {"e": "frozen"}}
    plain, colored = (tv.overlay(labels, tree, use="labels").text(fold=False, color=color) for color in (False, True))
    assert "\x1b" not in plain
    found = {}
    for line in colored.splitlines():
        name = re.sub(r"\x1b\[\d+m", "", line).strip(" │├└─").partition(" ")[0]
        found[name] = re.findall(r"((?:\x1b\[\d+m)+)[│└ ]*(adam|sgd|frozen)\b", line)
    one, two, three = terminal.HUES[:3]
    assert (
        found["a"] == [(one, "adam")] == found["c"] and found["[0]"] == [(terminal.DIM + one, "adam")] == found["[1]"]
    )
    assert found["b"] == [(two, "sgd")] and found["e"] == [(three, "frozen")] and found["d"] == []


def test_keys_that_one_of_the_two_lacks_are_told_with_the_likely_name():
    view = tv.overlay((None, {"k1": None, "k3": 0}), ARGS)
    assert str(view.differences).split("\n") == [
        "[1]['k3']: only in the prefix: 0 (did you mean 'k2'?)",
        "[1]['k2']: only in the tree: float32[5]",
    ]
    assert [note.text for row in view.find("is:warning") for note in row.notes] == [
        "[1]['k3']: only in the prefix: 0 (did you mean 'k2'?)",
        "only in the tree",
    ]


def test_a_spec_of_one_argument_that_is_no_tuple_gets_the_tuple_that_was_meant():
    args = {"a": X}
    view = tv.overlay({"a": 0}, args)
    assert str(view.differences) == (
        "the root: spec: a dict → an int, None or a tuple of specs (did you mean in_axes=({'a': 0},)?)"
    )
    assert specs(view) == ["0"] and "in_axes=({'a': 0},)" in view.text(width=60)
    assert mismatches((0, 1), ((X, X.T),)) == [
        "the root: length: 2 children → 1 child (did you mean in_axes=((0, 1),)?)"
    ]
    part = tv.overlay({"a": 0}, {"a": X, "b": X})
    assert str(part.differences).split("\n") == [
        *str(view.differences).split("\n"),
        "[0]['b']: only in the tree: float32[5,3]",
    ]
    assert part.table.headline[0] == "2 mismatches: 1 no spec, 1 spec" and specs(part) == ["0", "no spec"]
    assert mismatches({"k9": 0}, {"k1": X})[1:] == [
        "[0]['k9']: only in the prefix: 0 (did you mean 'k1'?)",
        "[0]['k1']: only in the tree: float32[5,3]",
    ]
    assert mismatches([0, None], ARGS) == []  # jax#2367: a list of axes is a tuple


@pytest.mark.parametrize(
    ("specs", "use", "other"),
    [
        ((P("x"), P()), "in_axes", "shardings"),
        ((P("x"), None), "out_axes", "shardings"),
        (("adam", "sgd"), "in_axes", "labels"),
        ((True, False), "shardings", "mask"),
        ((P(), P()), "mask", "shardings"),
        ((0, True), "in_axes", ""),
        ((0, "x"), "mask", ""),
    ],
)
def test_specs_that_are_all_for_another_use_name_it(specs, use, other):
    trees = (dict(zip("ab", specs, strict=True)), {"a": X, "b": X}), (specs, (X, X))
    for prefix, tree in trees[use == "in_axes" and not other :]:
        found = tv.overlay(prefix, tree, use=use).differences
        assert found and all((f"did you mean use={other!r}?" == each.hint) is bool(other) for each in found)


def test_sizes_that_differ_name_the_odd_one_out():
    odd = {**{f"w{i}": X for i in range(4)}, "b": np.ones((4, 3))}
    assert mismatches((0,), odd) == ["[0]['b']: size: axis 0 has 4 (4 leaves have 5, such as [0]['w0'])"]
    view = tv.overlay((0, 1), (X, X))
    assert str(view.differences) == "[1]: size: axis 1 has 3 ([0] has 5)"
    assert [row["axis_size"] for row in view.table.leaves] == [5, 3]
    assert "sizes 5 (1), 3 (1)" in view.text()


def test_axes_that_are_not_there_and_leaves_that_have_none():
    assert mismatches((-3, {"k1": 1, "k2": 1}), (X, {"k1": X.T, "k2": 1.0})) == [
        "[0]: axis: -3 → float32[5,3] (it has 2 axes)",
        "[1]['k2']: axis: 1 → float (it has 0 axes)",
    ]
    assert mismatches((0, 0), (X, "text")) == ["[1]: spec: 0 → str, which is not an array"]
    assert mismatches((0, 0), (np.ones(5, ">f4"), np.ma.masked_array(X))) == [
        "[0]: spec: 0 → np.ndarray of >f4, which JAX does not accept",
        "[1]: spec: 0 → np.MaskedArray of float32 with a mask, which JAX does not accept",
    ]
    assert mismatches((0, True), (X, X)) == ["[1]: spec: bool True → an int or None"]
    assert mismatches(None, (X, X)) == ["the root: spec: every spec is None → vmap must map at least one leaf"]


def test_the_axes_of_results_may_be_one_more():
    result = jax.eval_shape(lambda: {"loss": jnp.ones(()), "w": jnp.ones((3, 4))})
    assert mismatches({"loss": 0, "w": 2}, result, use="out_axes") == []
    assert mismatches({"loss": 1, "w": -4}, result, use="out_axes") == [
        "['loss']: axis: 1 → float32[] (mapped, it has 1 axis)",
        "['w']: axis: -4 → float32[3,4] (mapped, it has 3 axes)",
    ]


def test_a_spec_for_nothing_is_told():
    view = tv.overlay((0, {"a": 1, "b": 0}), (X, {"a": None, "b": X}))
    assert not view.differences and "the spec 1 is for no leaf" in view.text()


def test_a_thousand_leaves_are_told_and_the_others_counted():
    found = tv.overlay((1,), [np.ones(2)] * 1_500).differences
    assert len(found) == 1_001 and str(found[-1]) == "[0][1000]: spec: 500 more leaves do not fit"


def test_leaves_of_different_specs_are_not_folded_into_one_row():
    layers = [{"w": np.ones((4, 4))} for _ in range(6)]
    view = tv.overlay((0,), layers)
    assert "[0…5] ×6" in view.text()
    assert "[0…5]" not in tv.overlay(([0, 0, 0, 1, 0, 0],), layers).text()


def test_a_use_that_is_not_there_is_an_error():
    with pytest.raises(ValueError, match="'in_axes', 'out_axes', 'shardings'"):
        tv.overlay(0, ARGS, use="in_axis")  # type: ignore[arg-type]


def random_spec(rng: random.Random, tree: Any, axes: list[Any]) -> Any:
    """A prefix of the tree, with random axes."""
    children, treedef = jax.tree.flatten(tree, is_leaf=lambda node: node is not tree)
    if rng.random() < 0.3 or jax.tree_util.treedef_is_leaf(treedef):
        return rng.choice(axes)
    return treedef.unflatten([random_spec(rng, child, axes) for child in children])


def vmap_takes(in_axes: Any, args: tuple[Any, ...]) -> bool:
    try:
        jax.vmap(lambda *_: 0.0, in_axes=in_axes, out_axes=None)(*args)
    except Exception:  # in some of its messages JAX fails with an AttributeError
        return False
    return True


@pytest.mark.parametrize("seed", range(4))
@in_a_thread
def test_there_is_a_mismatch_exactly_where_vmap_refuses(seed):
    rng = random.Random(seed)
    outcomes = []
    while len(outcomes) < 150:
        leaves = rng.choice([[np.ones((2, 2))], [np.ones((2, 3)), np.ones(2), None], [np.ones((2, 1)), 1.0, (), None]])
        axes = rng.choice([[0], [0, None], [0, 0, -2, None], [0, 1, None, True]])
        args = tuple(random_tree(rng, 3, leaves) for _ in range(rng.choice([1, 2, 2, 3])))
        try:
            in_axes = random_spec(rng, args, axes)
        except (ValueError, TypeError):  # keys that cannot be sorted
            continue
        in_axes = changed(rng, in_axes, axes) if rng.random() < 0.3 else in_axes
        found = tv.overlay(in_axes, args).differences
        outcomes.append(vmap_takes(in_axes, args))
        assert (not found) == outcomes[-1], f"{args}\n{in_axes}\n{found}"
    assert 30 < sum(outcomes) < 120


@pytest.mark.parametrize("name", SAMPLES)
def test_a_prefix_is_laid_over_every_tree(name):
    tree = SAMPLES[name]()
    for prefix, use in (
        (0, "in_axes"),
        (None, "shardings"),
        (True, "mask"),
        ("a", "labels"),
        (Point(0, 1), "out_axes"),
    ):
        view = tv.overlay(prefix, tree, use=use)  # type: ignore[arg-type]
        assert view.text(width=80, max_rows=40) and str(view.differences)
