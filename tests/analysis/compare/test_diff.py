"""Every difference between two trees, with its path; many from public threads of people who were stuck there."""

from __future__ import annotations

import json
import pickle
import weakref
from collections import OrderedDict, defaultdict
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sample_nodes import AdamState, Layer, Point, WithAux
from sample_trees import SAMPLES

import treeviz as tv
from treeviz.analysis.compare.values import count_nan

pytestmark = pytest.mark.oldest_jax


def differences(left: Any, right: Any, **options: Any) -> list[str]:
    return [str(each) for each in tv.diff(left, right, **options).differences]


def test_the_two_trees_of_the_course_page_differ_in_two_lengths_and_what_is_extra():
    left, right = [[1, 2, 3], [4, 5, 6, 7]], [[1, 2, 3, 4], [4, 5, 6]]
    assert differences(left, right) == [
        "[0]: length: 3 children → 4 children",
        "[0][3]: only in the other: int 4",
        "[1]: length: 4 children → 3 children",
        "[1][3]: only in the first: int 7",
    ]


def test_jax_23771_a_longer_list_deep_in_dicts():
    assert differences({"a": {"b": [1, 2, 3]}}, {"a": {"b": [1, 2, 3, 4]}}, values=False) == [
        "['a']['b']: length: 3 children → 4 children",
        "['a']['b'][3]: only in the other: int 4",
    ]


def test_jax_17798_a_list_where_a_tuple_is_and_what_is_inside_is_still_compared():
    left = {"layers": ({"w": jnp.ones(2)}, {"w": jnp.ones(2)})}
    right = {"layers": [{"w": jnp.ones(2)}, {"w": jnp.ones(3)}]}
    assert differences(left, right) == [
        "['layers']: type: tuple · 2 leaves → list · 2 leaves",
        "['layers'][1]['w']: shape: (2,) → (3,)",
    ]


def test_jax_17663_what_two_branches_of_cond_return():
    branches = lambda x: ({"y": x, "aux": (x, None)}, {"y": x.astype(jnp.bfloat16), "aux": (x, x)})
    assert differences(*jax.eval_shape(branches, jnp.ones(3))) == [
        "['aux'][1]: none: None → float32[3]",
        "['y']: dtype: float32 → bfloat16",
    ]


def test_jax_12643_keys_that_are_missing_are_named():
    left, right = {"w": 1, "b": 2, "scale": 3}, {"w": 1}
    assert [(each.kind, each.path) for each in tv.diff(left, right).differences] == [
        ("missing", "['b']"),
        ("missing", "['scale']"),
    ]
    assert [str(each) for each in tv.explain_map(left, right)] == [
        "['b']: only in the first: int 2",
        "['scale']: only in the first: int 3",
    ]


def test_a_none_in_a_prefix_is_named_as_none():
    """equinox#880, optax#1093: since jax 0.4.34 None in a prefix matches None alone."""
    assert [str(each) for each in tv.explain_map({"a": None, "b": 1}, {"a": (1, 2), "b": 1})] == [
        "['a']: none: None → tuple of 2"
    ]


def test_none_as_a_leaf_is_no_mismatch_and_the_true_one_is_named():
    found = tv.explain_map({"a": None, "b": (1, 2)}, {"a": 1, "b": (1, 2, 3)}, is_leaf=lambda x: x is None)
    assert [each.path for each in found] == ["['b']"]


def test_an_optimizer_that_was_chained_anew_tells_where_its_state_went():
    class Clip(NamedTuple):
        pass

    adam = AdamState(jnp.zeros(()), {"w": jnp.ones(2)}, {"w": jnp.ones(2)})
    assert differences((adam, Clip()), (Clip(), (adam, Clip()))) == [
        "[0]: type: AdamState · 3 leaves → Clip · 0 leaves (the same structure is at [1][0] in the other)",
        "[1]: type: Clip · 0 leaves → tuple · 3 leaves "
        "(its 3 arrays are elsewhere in the first: [1][0].count is [0].count?)",
    ]
    assert differences((Clip(), (adam, Clip())), (adam, Clip()))[0] == (
        "[0]: type: Clip · 0 leaves → AdamState · 3 leaves (the same structure is at [1][0] in the first)"
    )


def test_the_field_of_a_named_tuple_is_the_one_that_differs():
    """jax#39297: JAX names `.count` in place of `.nu`."""
    left, right = (AdamState(1.0, 2.0, {"a": nu}) for nu in ([1], [1, 2]))
    assert [each.path for each in tv.explain_map(left, right)] == [".nu['a']"]


def test_static_data_that_depends_on_values_is_compared_by_field():
    """EasyDeL#279: two wordings of JAX for one mismatch of a node's static data, none with the field."""
    assert differences(Layer("a", 1, 2), Layer("b", 1, 2)) == ["the root: static: name = 'a' → 'b'"]
    assert [str(each) for each in tv.explain_map([WithAux(1, label="x")], [WithAux(1, label="y")])] == [
        "[0]: static: label = 'x' → 'y'"
    ]


def test_static_arrays_are_compared_though_jax_cannot():
    left, right = Layer(np.arange(3), 1, 2), Layer(np.arange(3), 1, 2)
    (found,) = tv.explain_map(left, right)
    assert found.kind == "static" and "ValueError" in found.hint


def test_orbax_2972_a_checkpoint_of_12_layers_for_a_model_of_16():
    def model(n: int) -> Any:
        return {"layers": [{"w": jax.ShapeDtypeStruct((4, 4), jnp.float32)} for _ in range(n)]}

    found = tv.diff(model(16), model(12)).differences
    assert [each.path for each in found] == ["['layers']", *(f"['layers'][{i}]" for i in range(12, 16))]
    assert {each.kind for each in found} == {"length", "missing"}


def test_one_nan_is_one_difference_with_its_place():
    weight = jnp.ones((2, 3))
    assert differences({"w": weight}, {"w": weight.at[0, 1].set(jnp.nan)}) == [
        "['w']: NaN: 0 NaN → 1 NaN (the first at [0, 1])"
    ]
    both = {"w": jnp.array([jnp.nan, jnp.inf, 1.0])}
    assert differences(both, jax.tree.map(jnp.copy, both)) == []


def test_a_difference_in_an_array_of_all_layers_says_in_which():
    left = {"w": np.ones((12, 4), np.float32), "b": jnp.zeros((12, 2)), "out": np.ones(3)}
    right = {"w": left["w"].copy(), "b": left["b"].at[2, 1].set(jnp.nan), "out": np.zeros(3)}
    right["w"][3], right["w"][5, 1] = 2, 7
    assert differences(left, right, stacked=["w", "b"]) == [
        "['b']: NaN: 0 NaN → 1 NaN (the first at [2, 1], layer 2 of 12)",
        "['out']: value: 1 → 0 (at [0]; 3 of 3 differ)",
        "['w']: value: 1 → 7 (at [5, 1], layers 3, 5 of 12; 5 of 48 differ)",
    ]
    view = tv.diff(left, right, stacked=["w", "b"])
    assert [row.keystr for row in view.find('layers:"3"')] == ["['w']"] and not view.find('layers:"4"')
    assert "w    float32[12,4] numpy  3, 5 " in view.text() and "layers" in [each.name for each in view.columns]
    every = {**right, "w": left["w"] + 2}
    assert "w    float32[12,4] numpy  0, 1, 2, 3 … 8 more" in tv.diff(left, every, stacked=["w", "b"]).text()
    (of_columns,) = tv.diff({"w": left["w"]}, {"w": right["w"]}, stacked={"w": 1}, atol=2).differences
    assert of_columns.hint == "at [5, 1], layer 1 of 4; 1 of 48 differ"
    with pytest.raises(ValueError, match="stacked='v'"):
        tv.diff(left, right, stacked="v")


def test_values_tell_the_largest_gap_and_how_many():
    left = np.arange(12.0).reshape(3, 4)
    right = left.copy()
    right[1, 2] += 0.5
    right[2, 3] -= 2
    view = tv.diff({"w": left}, {"w": right})
    assert [str(each) for each in view.differences] == ["['w']: value: 11 → 9 (at [2, 3]; 2 of 12 differ)"]
    assert [view.table[1][name] for name in ("delta", "differ")] == [2.0, 2]
    assert view.table[1]["relative"] == pytest.approx(2 / 9)
    assert not tv.diff({"w": left}, {"w": right}, atol=2).differences
    assert not tv.diff({"w": left}, {"w": right}, values=False).differences


@pytest.mark.parametrize("layout", ["C", "F", "strided"])
def test_values_agree_with_float64_in_every_layout(layout):
    rng = np.random.default_rng(0)
    left = rng.normal(size=(300, 401)).astype(np.float32)
    right = left + (rng.random(left.shape) < 0.01).astype(np.float32) * rng.normal(size=left.shape).astype(np.float32)
    left[5, 7] = right[5, 7] = np.nan
    right[6, 8] = np.inf
    laid = {"C": lambda x: x, "F": np.asfortranarray, "strided": lambda x: np.repeat(x, 2, 1)[:, ::2]}[layout]
    (gap,) = _gaps({"w": laid(left)}, {"w": laid(right)}).values()
    distance = np.abs(left.astype(np.float64) - right.astype(np.float64))
    assert gap.max_abs == np.inf and gap.at == (6, 8)
    assert gap.n_outside == np.count_nonzero(distance > 0)
    assert gap.n_nan == 0


def _gaps(left: Any, right: Any) -> dict[int, Any]:
    from treeviz.analysis.compare.aligned import Side
    from treeviz.analysis.compare.tree_diff import find_differences
    from treeviz.prepare import scanned

    sides = [Side(*scanned(tree, None, "tree")) for tree in (left, right)]
    return find_differences(*sides).gaps


@pytest.mark.parametrize(
    ("left", "right", "max_abs"),
    [
        (np.array([2**63 - 1]), np.array([-(2**63)]), 2.0**64),
        (np.array([2**63], np.uint64), np.array([-5], np.int64), 2.0**63),
        (np.array([True, False]), np.array([True, True]), 1.0),
        (np.array([1 + 1j]), np.array([1 + 0j]), 1.0),
        (np.array([2**60, 1]), np.array([2**60 + 1, 1]), 1.0),
    ],
)
def test_integers_bools_and_complex_values_are_compared(left, right, max_abs):
    (gap,) = _gaps(left, right).values()
    assert (gap.max_abs, gap.n_outside) == (max_abs, 1)


def test_zeros_of_both_signs_are_equal_and_narrow_dtypes_are_read():
    assert not differences(np.array([0.0, -0.0]), np.array([-0.0, 0.0]))
    left = jnp.ones(3, jnp.bfloat16)
    assert differences([left], [left.at[1].set(2)]) == ["[0]: value: 1 → 2 (at [1]; 1 of 3 differ)"]
    for dtype in ("float16", "bfloat16", "float8_e5m2", "float8_e4m3fn"):
        size = jnp.dtype(dtype).itemsize
        of_all = np.arange(1 << 8 * size, dtype=f"u{size}").view(jnp.dtype(dtype))
        with np.errstate(invalid="ignore"):
            assert count_nan(of_all) == np.isnan(of_all.astype(np.float64)).sum() > 0, dtype


def test_small_arrays_are_compared_together_as_numpy_compares_each():
    rng, pairs = np.random.default_rng(2), []
    for i in range(300):
        shape = [(), (3,), (2, 3), (4, 1, 2), (500,)][i % 5]
        left, right = (rng.normal(size=shape).astype([np.float32, ">f8", np.complex64][i % 3]) for _ in range(2))
        right = np.where(rng.random(shape) < 0.5, left, right)
        left, right = (np.where(rng.random(shape) < 0.1, np.nan, each) for each in (left, right))
        pairs.append((np.array(left, order="F"), right))
    found = _gaps(*map(list, zip(*pairs, strict=True)))
    for i, (left, right) in enumerate(pairs):
        nan_left, nan_right = np.isnan(left), np.isnan(right)
        delta = np.where(nan_left | nan_right, 0, np.abs(left.astype(complex) - right.astype(complex)))
        if not delta.any() and (nan_left == nan_right).all():
            assert i + 1 not in found
            continue
        gap, at = found[i + 1], np.unravel_index(np.argmax(delta), left.shape)
        assert (gap.n_outside, gap.n_nan) == (np.count_nonzero(delta), np.count_nonzero(nan_left != nan_right))
        assert (gap.nan_left, gap.nan_right) == (nan_left.sum(), nan_right.sum())
        if gap.n_outside:
            assert (gap.at, gap.left, gap.right) == (at, left[at], right[at])
            assert gap.max_abs == pytest.approx(delta[at])
        if gap.n_nan:
            assert gap.nan_at == np.unravel_index(np.argmax(nan_left != nan_right), left.shape)


@pytest.mark.parametrize("at", [0, 126, 127, 128, 129, 255, 256, 299])
def test_the_one_of_many_small_jax_arrays_that_differs_is_named(at):
    values = [np.arange(1 + i % 4, dtype=np.float32) for i in range(300)]
    left, right = ([jnp.asarray(each) for each in values] for _ in range(2))
    right[at] = right[at] + 1
    assert [each.path for each in tv.diff(left, right).differences] == [f"[{at}]"]


def test_numbers_that_python_makes_into_arrays_are_not_taken_for_each_other():
    class Celsius(float):
        """Of a subclass: it is compared by itself."""

    left, right = ([Celsius(x) for x in values] for values in ((1.5, 2.5, 3.0), (3.5, 2.5, 3.1)))
    assert [each.path for each in tv.diff(left, right).differences] == ["[0]", "[2]"]


def test_small_leaves_of_which_one_cannot_be_read_with_the_others_are_still_compared():
    class Memory(np.ndarray):
        """Not read together with others."""

    ones = [np.ones(2, np.float32) for _ in range(5)]
    others = [*ones[:2], np.zeros(2, np.float32).view(Memory), *(each * 2 for each in ones[3:])]
    assert [each.path for each in tv.diff(ones, others).differences if each.kind == "value"] == ["[2]", "[3]", "[4]"]
    numbers = [1, 2, 2**70, 2**63, -5]
    view = tv.diff(numbers, [each + 1 for each in numbers])
    assert [each.path for each in view.differences] == ["[0]", "[1]", "[3]", "[4]"] and [*view.not_compared] == ["[2]"]
    narrow = [jnp.ones(2, jnp.bfloat16), jnp.ones(2, jnp.int4), jnp.ones(2, jnp.bfloat16)]
    found = tv.diff(narrow, [narrow[0], narrow[1] + 1, narrow[2] * 3]).differences
    assert [str(each) for each in found] == [
        "[1]: value: 1 → 2 (at [0]; 2 of 2 differ)",
        "[2]: value: 1 → 3 (at [0]; 2 of 2 differ)",
    ]
    assert all(each._npy_value is None for each in narrow)


def test_a_weak_type_is_named_after_all_else_that_differs_in_a_row():
    left, right = jnp.asarray(1.0), np.array(np.nan, np.float32)
    view = tv.diff({"a": left}, {"a": jnp.asarray(right)})
    assert [note.sign for note in view.find("a")[0].notes] == ["NaN", "weak type"]
    assert view.table.headline[0] == "2 differences: 1 NaN, 1 weak type"
    view = tv.diff({"a": left, "b": np.zeros(2)}, {"a": jnp.asarray(right), "b": np.array([0, np.inf])})
    assert view.table.headline[0] == "3 differences: 1 NaN, 1 value, 1 weak type"
    assert [line.split()[-2:] for line in view.text().splitlines()[2:3]] == [["NaN/Inf", "2"]]


def test_a_difference_that_is_written_late_is_as_any_other(monkeypatch):
    from treeviz.analysis.compare import tree_diff

    pair = {"a": [1.0, np.nan], "b": np.eye(2)}, {"a": [2.0, 0.0], "b": np.ones((2, 2))}
    soon = tv.diff(*pair).differences
    monkeypatch.setattr(tree_diff, "_FEW", 0)
    late = lambda: tv.diff(*pair).differences
    assert late() == soon and soon == late() and [*map(repr, late())] == [*map(repr, soon)]
    assert [*map(hash, late())] == [*map(hash, soon)] and pickle.loads(pickle.dumps(late())) == soon
    assert [replace(each, hint="") for each in late()] == [replace(each, hint="") for each in soon]
    assert [each.hint for each in late()] == [each.hint for each in soon] and str(late()) == str(soon)
    left, right = [jnp.ones(3)], [jnp.zeros(3)]
    view, arrays = tv.diff(left, right), [*map(weakref.ref, left + right)]
    del left, right
    assert [ref() for ref in arrays] == [None, None], "what writes a difference holds no array"
    assert "_made" not in vars(view._found[0]) and view.table.headline[0] == "1 difference: 1 value"
    assert [each.path for each in view.differences] == ["[0]"] and view.differences is view.differences


def test_an_accelerator_gets_the_numbers_that_the_host_gets():
    from treeviz.analysis.compare import values

    rng = np.random.default_rng(1)
    left = rng.normal(size=(7, 9)).astype(np.float32)
    right = left.copy()
    right[3, 4], right[5, 5], left[0, 0] = 3.5, np.nan, np.inf
    right[1, 1], left[2, 2], right[2, 2] = np.inf, np.inf, -np.inf
    for rtol, n_outside in ((0.0, 4), (0.5, 4), (100.0, 3)):  # no tolerance makes an infinity equal to another number
        on_host = values.compare_arrays(left, right, rtol=rtol)
        on_device = values.ValueDifference(left.size)
        values._compare_on_device(on_device, jnp.asarray(left), jnp.asarray(right), (0, 0), rtol, 0.0)
        assert on_device == on_host and on_host.n_outside == n_outside
    assert differences(1.0, np.inf, rtol=0.5) == differences(1.0, np.inf) != []


def test_sharded_arrays_are_compared_as_they_lie_also_where_they_are_split_otherwise():
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("x", "y"))
    place = lambda *names: jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*names))
    values = np.arange(32.0, dtype=np.float32).reshape(8, 4)
    other = values.copy()
    other[6, 3] = 0
    left = jax.device_put(values, place("x", "y"))
    for names in [("x", "y"), ("y",), (None, ("x", "y")), ()]:
        (gap,) = _gaps([left], [jax.device_put(other, place(*names))]).values()
        assert (gap.at, gap.left, gap.right, gap.n_outside) == ((6, 3), 27.0, 0.0, 1)
    found = tv.diff([left], [jax.device_put(values, place("y"))]).differences
    assert [each.kind for each in found] == ["sharding"]
    assert not tv.diff([left], [jax.device_put(values, place("x", "y"))]).differences


def test_what_cannot_be_read_is_compared_by_what_is_known_and_said():
    array = jnp.ones(3)
    shape = jax.ShapeDtypeStruct((3,), jnp.float32)
    view = tv.diff({"a": array}, {"a": shape})
    assert not view.differences and view.not_compared == {"['a']": "shape only"}
    assert view.table.headline[-1] == "not compared further in 1 place"
    tv.assert_same({"a": array}, {"a": shape})
    gone = jnp.ones(3)
    gone.delete()
    other = jnp.ones(3)
    other.delete()
    with pytest.raises(AssertionError, match="not compared: deleted"):
        tv.assert_same([gone], [other])
    assert [each.kind for each in tv.diff([array], [gone]).differences] == ["deleted"]


def test_kinds_of_leaves_that_hold_the_same_number():
    found = tv.diff([1.0, np.ones(2, np.float32), "a"], [np.float32(1), jnp.ones(2), "b"]).differences
    assert [(each.path, each.kind) for each in found] == [
        ("[0]", "python type"),
        ("[1]", "python type"),
        ("[2]", "value"),
    ]


def test_prng_keys_are_compared_by_their_data_and_have_no_gap():
    keys = jax.random.key(0), jax.random.key(1)
    view = tv.diff({"key": keys[0]}, {"key": keys[1]})
    assert [str(each) for each in view.differences] == ["['key']: value: a PRNG key → another PRNG key"]
    assert "delta" not in view.table.columns and not tv.diff(keys[0], jax.random.key(0)).differences
    assert tv.diff(*keys, atol=2**32).differences


def test_the_order_of_keys_counts_where_jax_keeps_it():
    assert not differences({"a": 1, "b": 2}, {"b": 2, "a": 1})
    left, right = OrderedDict(a=1, b=2), OrderedDict(b=2, a=1)
    assert [each.kind for each in tv.diff(left, right).differences] == ["order"]
    assert [each.kind for each in tv.explain_map(left, right)] == ["order"]


def test_a_class_that_was_defined_again_is_told():
    def define() -> type:
        class Pair(NamedTuple):
            x: Any

        return Pair

    first, again = define()(1), define()(2)
    found = tv.diff(first, again).differences
    assert [each.kind for each in found] == ["type", "value"] and "ran twice" in found[0].hint
    assert "ran twice" in tv.explain_map(first, again)[0].hint


BARE = {  # two trees, and how their treedefs differ
    "a list for a dict": ({"a": 1}, [1], ["the root: type: dict · 1 leaf → list · 1 leaf"]),
    "a list for a tuple": ({"a": (1, 2)}, {"a": [1, 2]}, ["['a']: type: tuple · 2 leaves → list · 2 leaves"]),
    "a leaf for None": ((None, 1), (2, 1), ["[0]: none: None → *"]),
    "a key": ({"a": 1, "b": 2}, {"b": 2}, ["['a']: only in the first: *"]),
    "one more": ([1], [1, 2], ["the root: length: 1 child → 2 children", "[1]: only in the other: *"]),
    "an order": (OrderedDict(a=1, b=2), OrderedDict(b=1, a=2), ["the root: order: ['a', 'b'] → ['b', 'a']"]),
    "a factory": (defaultdict(list, a=1), defaultdict(int, a=1), ["the root: static: default_factory list → int"]),
    "static data": (WithAux(1, label="a"), WithAux(1, label="b"), ["the root: static: ('a', 7) → ('b', 7)"]),
}


@pytest.mark.parametrize("name", BARE)
def test_treedefs_differ_as_their_trees_do(name):
    left, right, expected = BARE[name]
    bare = jax.tree.structure(left), jax.tree.structure(right)
    assert differences(*bare) == expected
    for each in bare:
        assert "not compared" not in str(tv.diff(each, jax.tree.structure(each.unflatten([1] * each.num_leaves))))


@pytest.mark.parametrize("linear", [lambda: jax.linearize(jnp.sin, 1.0)[1], lambda: jax.vjp(jnp.sin, 1.0)[1]])
def test_programs_that_were_traced_twice_are_compared_as_wholes(linear):
    found = differences(linear(), linear())
    assert found and not any("Var(" in each for each in found), found


def test_what_was_renamed_moved_or_stacked_is_told_with_the_code():
    leaf = {"w": jnp.ones((2, 3)), "b": jnp.zeros(3)}
    assert [each.hint for each in tv.diff({"kernel": leaf["w"]}, {"weight": leaf["w"]}).differences] == [
        "renamed to ['weight']?",
        "renamed from ['kernel']?",
    ]
    moved = tv.diff({"a": leaf}, {"b": {"x": leaf}}).differences
    assert moved[0].hint == "the same structure is at ['b']['x'] in the other"
    stack = jax.tree.map(lambda *xs: jnp.stack(xs), leaf, leaf, leaf)
    (found,) = tv.diff([leaf] * 3, stack).differences
    assert "3 layers in the first, and one stack of 3 such layers in the other" in found.hint
    assert "jnp.stack" in found.hint
    transposed = tv.diff(leaf["w"], leaf["w"].T).differences
    assert transposed[0].hint == "the transpose, with the same values: jnp.transpose(x)" and len(transposed) == 1
    other = tv.diff(leaf["w"], jnp.arange(6.0).reshape(3, 2)).differences
    assert other[0].hint == "the same axes in reverse order: a transpose?"
    square = np.arange(4.0).reshape(2, 2)
    (found,) = tv.diff([square], [square.T.copy()]).differences
    assert (
        str(found) == ("[0]: value: 1 → 2 (at [0, 1]; 2 of 4 differ; the values of the transpose: jnp.transpose(x))")
        and found.note == "value: 1 → 2 (at [0, 1]) transposed"
        and found.is_transpose
    )
    (same_place,) = tv.diff({"transpose": square}, {"transpose": square + 1}).differences
    assert not same_place.is_transpose and not transposed[0].is_transpose, "that is of its shape, not of its values"


def test_each_of_many_layers_that_differ_alike_is_told_as_if_it_were_alone():
    layer = {"w": np.ones(2), "mlp": [1.0, 2.0], "norm": np.ones(3)}
    other = {"w": np.ones(2), "mlp": (1.0,), "scale_norm": np.ones(3)}
    alone = [str(each) for each in tv.diff({"here": layer}, {"here": other}).differences]
    assert len(alone) == 4
    lefts, rights = [layer] * 5, [other] * 3 + [layer] + [other]
    found = tv.diff(lefts, rights).differences
    assert [str(each) for each in found] == [
        each.replace("['here']", f"[{i}]", 1) for i in (0, 1, 2, 4) for each in alone
    ]
    assert [each.code for each in found if each.code] == [
        f"tree[{i}]['scale_norm'] = tree[{i}].pop('norm')" for i in (0, 1, 2, 4)
    ]


def test_layers_alike_in_all_but_their_classes_are_not_taken_for_each_other():
    def of_class(*children):
        class Block:
            def __init__(self, *children):
                self.children = children

        jax.tree_util.register_pytree_node(
            Block, lambda block: (block.children, None), lambda _, children: Block(*children)
        )
        return Block(*children)

    block = of_class(1.0, 2.0)
    left = [block, block, block, block]
    right = [of_class(1.0), type(block)(1.0), of_class(1.0), {"w": 1.0}]
    kinds = [(each.path, each.kind) for each in tv.diff(left, right).differences]
    assert [(path, kind) for path, kind in kinds if kind == "type"] == [
        ("[0]", "type"),
        ("[2]", "type"),
        ("[3]", "type"),
    ]
    assert ("[1]", "length") in kinds


def test_what_has_only_its_shape_in_common_is_no_other_name_and_a_name_that_stands_elsewhere_is_not_renamed():
    """As the embedding and the head of a model of transformers, with and without its head, tied or not."""
    embed, head = {"weight": np.zeros((8, 4))}, {"weight": np.ones((8, 4))}
    inner = {"embed_tokens": embed, "norm": {"weight": np.zeros(4)}}
    found = tv.diff(inner, {"model": inner, "lm_head": head}).differences
    assert {each.path: each.hint for each in found if "model" not in each.path} == {
        "['embed_tokens']": "is at ['model']['embed_tokens']['weight'] in the other?",
        "['norm']": "the same structure is at ['model']['norm'] in the other",
        "['lm_head']": "",
    }
    assert not any("lm_head" in each.code for each in found)
    back = tv.diff({"model": inner, "lm_head": {"weight": head["weight"].T}}, inner).differences
    assert [each.hint for each in back if each.path == "['lm_head']"] == [""]
    assert not any(each.hint for each in tv.diff({"embed_tokens": embed}, {"lm_head": head}).differences)
    for one, another in (("layer_norm.weight", "layernorm.scale"), ("norm", "final_norm"), ("kernel", "weight")):
        assert tv.diff({one: head}, {another: head}).differences[0].hint == f"renamed to ['{another}']?"
    assert not any(each.hint for each in tv.diff({"q": np.zeros((8, 4))}, {"o": np.zeros((4, 8))}).differences)


@pytest.mark.parametrize("is_back", [False, True])
def test_kernels_of_convolutions_are_converted_in_the_order_of_their_axes(is_back):
    """As in a model of PyTorch, whose axes of space are the last ones, and one of Flax."""
    rng = np.random.default_rng(0)
    of_shape = lambda *shape: rng.standard_normal(shape).astype(np.float32)
    torch = {"one": of_shape(8, 3, 5, 5), "square": of_shape(4, 4, 3, 3), "deep": of_shape(6, 2, 3, 3, 3)}
    torch |= {"line": of_shape(5, 4, 3), "dense": of_shape(7, 4)}
    flax = {name: np.moveaxis(x, (0, 1), (-1, -2)).copy() for name, x in torch.items()}
    left = {"net": {name: {"weight": x, "bias": np.zeros(i)} for i, (name, x) in enumerate(torch.items())}}
    right = {"params": {name: {"kernel": x, "bias": np.zeros(i)} for i, (name, x) in enumerate(flax.items())}}
    left, right = (right, left) if is_back else (left, right)
    (code,) = [each.code for each in tv.diff(left, right).differences if each.code]
    tv.assert_same(eval(code, {"jax": jax, "jnp": np, "tree": left, "other": right}), right)
    for name in ("one", "deep"):
        mine, other = ({key: each[name]} for key, each in (("weight", torch), ("kernel", flax)))
        for tree, wanted in ((mine, other), (other, mine)):
            tree = {**tree}
            exec(tv.diff(tree, wanted).differences[0].code, {"jnp": np, "tree": tree})
            tv.assert_same(tree, wanted)
    found = tv.diff({"weight": torch["square"]}, {"kernel": flax["square"]}).differences
    assert found[0].hint == "renamed to ['kernel'], and transposed?" and not found[0].code, (
        "in which order is not known"
    )


def test_what_stands_at_the_same_path_of_another_class_is_not_said_to_stand_elsewhere():
    optax = pytest.importorskip("optax")
    params = {"w": jnp.ones((2, 3)), "b": jnp.zeros(3)}
    one, another = (optax.MultiSteps(each(1.0), 4).init(params) for each in (optax.adam, optax.lion))
    found = {each.path: each.hint for each in tv.diff(one, another).differences if each.kind == "type"}
    assert found == {".inner_opt_state[0]": "3 of 5 arrays are at the same paths in the other"}
    schedule = lambda count: count * 0.1
    one = optax.chain(optax.scale_by_adam(), optax.scale_by_schedule(schedule)).init(params)
    another = optax.chain(optax.scale_by_adam(), optax.ema(0.9)).init(params)
    (told,) = tv.diff(one, another).differences
    assert (told.path, told.hint) == ("[1]", "")


def test_names_with_a_prefix_and_matrices_that_were_turned_are_told():
    """As in a checkpoint of PyTorch or of transformers."""
    shape = lambda *sizes: jax.ShapeDtypeStruct(sizes, jnp.float32)
    left = {"h.0.w": shape(2, 3), "h.1.w": shape(2, 3), "b": shape(3)}
    right = {f"model.{name}": leaf for name, leaf in left.items()}
    assert [each.hint for each in tv.diff(left, right).differences if each.kind == "missing"] == [
        *("renamed to ['model.b']?", "renamed to ['model.h.0.w']?", "renamed to ['model.h.1.w']?"),
    ]
    turned = tv.diff({"weight": shape(2, 3)}, {"kernel": shape(3, 2)}).differences
    assert [each.hint for each in turned] == [
        *("renamed to ['kernel'], and transposed?", "renamed from ['weight'], and transposed?"),
    ]
    alike = {"a1": shape(2), "a2": shape(2)}, {"b1": shape(2), "b2": shape(2)}
    assert not any(each.hint for each in tv.diff(*alike).differences), "which of them is not known"


NESTED = {"layers": [{"w": np.ones((2, 3)), "b": np.ones(3)} for _ in range(2)], "head": {"w": np.ones((3, 5))}}
FLAT = {"layers.0.w": NESTED["layers"][0]["w"], "layers.0.b": NESTED["layers"][0]["b"]} | {
    "layers.1.w": NESTED["layers"][1]["w"], "layers.1.b": NESTED["layers"][1]["b"], "head.w": NESTED["head"]["w"]
}  # fmt: skip
PLAIN = {
    "ln_1": np.ones(2),
    "ln_2": np.zeros(2),
    "fc": np.arange(6.0).reshape(3, 2),
    "out": np.arange(4.0).reshape(2, 2),
}
NESTED_TORCH = {"model": {"h": [{name: {"weight": i * x} for name, x in PLAIN.items()} for i in (1, 2)]}}
TORCH = {f"model.h.{i}.{name}.weight": (i + 1) * x for i in (0, 1) for name, x in PLAIN.items()}
FLAX = {
    "params": {
        f"h_{i}": {name: {"scale" if x.ndim == 1 else "kernel": (i + 1) * x.T} for name, x in PLAIN.items()}
        for i in (0, 1)
    }
}
LAYERS = {"e": np.ones(7), "layers": [{"w": np.full(2, i), "mlp": {"b": np.full(1, i)}} for i in range(3)]}
LAYERS_AS_STACK = jax.tree.map(lambda *xs: np.stack(xs), *LAYERS["layers"])
SCANNED = {"params": {"h": jax.tree.map(lambda *xs: np.stack(xs), *FLAX["params"].values())}}
TURNED_LAYERS = [
    {"wi": {"kernel": np.full((3, 5), i)}, "wo": {"kernel": np.full((5, 3), i)}, "norm": {"scale": np.full(3, i)}}
    for i in range(4)
]
ALONG_1 = jax.tree.map(lambda *xs: np.stack(xs, axis=1), *TURNED_LAYERS)  # as T5X and MaxText scan over layers
UNROLLED = {"decoder": {f"layers_{i}": each for i, each in enumerate(TURNED_LAYERS)} | {"norm": {"scale": np.ones(3)}}}
CONVERTED: dict[str, tuple[Any, Any]] = {
    "flat names": (FLAT, NESTED),
    "nested nodes": (NESTED, FLAT),
    "flat names below a word": ({f"model.{name}": leaf for name, leaf in FLAT.items()}, NESTED),
    "flat names, and a model": ({"w.w": np.ones(2), "b.0": np.ones(1)}, Layer("n", {"w": np.ones(2)}, [np.ones(1)])),
    "a model, and flat names": (Layer("n", {"w": np.ones(2)}, [np.ones(1)]), {"w.w": np.ones(2), "b.0": np.ones(1)}),
    "a list of layers": (NESTED["layers"], jax.tree.map(lambda *xs: np.stack(xs), *NESTED["layers"])),
    "a stack of layers": (jax.tree.map(lambda *xs: np.stack(xs), *NESTED["layers"]), NESTED["layers"]),
    "a dict of layers": (
        {f"b{i}": {"w": np.full(2, i)} for i in range(11)},
        {"w": np.repeat(np.arange(11)[:, None], 2, 1)},
    ),
    "a renamed subtree": ({"a": {"old": NESTED}}, {"a": {"new": NESTED}}),
    "names of PyTorch, and a model of Flax": (TORCH, FLAX),
    "nodes of PyTorch, and a model of Flax": (NESTED_TORCH, FLAX),
    "a model of Flax, and nodes of PyTorch": (FLAX, NESTED_TORCH),
    "nodes of PyTorch, and a stack of turned layers": (NESTED_TORCH, SCANNED),
    "names of PyTorch, and a stack of turned layers": (TORCH, SCANNED),
    "a stack of turned layers, and nodes of PyTorch": (SCANNED, NESTED_TORCH),
    "a list of layers, and a stack along axis 1": (TURNED_LAYERS, ALONG_1),
    "a stack along axis 1, and a list of layers": (ALONG_1, TURNED_LAYERS),
    "a dict of layers, and a stack along axis 1": ({f"b{i}": each for i, each in enumerate(TURNED_LAYERS)}, ALONG_1),
    "named layers, and a stack along axis 1": (
        UNROLLED,
        {"decoder": {"layers": ALONG_1, "norm": {"scale": np.ones(3)}}},
    ),
    "a stack along axis 1, and named layers": (
        {"decoder": {"layers": ALONG_1, "norm": {"scale": np.ones(3)}}},
        UNROLLED,
    ),
    "layers, and a stack below a word": (LAYERS, {"params": {"e": LAYERS["e"], "blocks": LAYERS_AS_STACK}}),
    "a stack beside its average, and layers": (
        {"params": {"e": LAYERS["e"], "blocks": LAYERS_AS_STACK}, "ema": {"e": LAYERS["e"], "blocks": LAYERS_AS_STACK}},
        LAYERS,
    ),
}


@pytest.mark.skipif(jax.__version_info__ < (0, 5), reason="keystr has no separator")
@pytest.mark.parametrize("name", CONVERTED)
def test_the_code_that_is_told_converts_the_first_tree(name):
    first, other = jax.tree.map(lambda x: x, CONVERTED[name])
    view = tv.diff(first, other)
    (code,) = [each.code for each in view.differences if each.code]
    assert f"to convert the first:\n  {code}" in view.text(width=200) and json.dumps(code) in view.json()
    names = {"tree": first, "other": other, "jax": jax, "jnp": jnp}
    if name == "a renamed subtree":
        exec(code, names)
    else:
        first = eval(code, names)
    assert not [each for each in tv.diff(first, other).differences if each.kind not in ("python type", "dtype")]


def test_an_axis_that_stands_elsewhere_is_told_where_the_shapes_tell_which():
    def hint(shape, *order):
        first, other = np.ones(shape), np.ones(shape).transpose(order)
        (found,) = tv.diff(first, other).differences
        if found.hint:
            code = found.hint.removeprefix("one axis has moved: ").removesuffix("?")
            assert eval(code, {"jnp": jnp, "x": first}).shape == other.shape
        return found.hint

    assert hint((4, 3, 5), 1, 0, 2) == "one axis has moved: jnp.moveaxis(x, 0, 1)?"
    assert hint((2, 3, 4, 5), 1, 2, 3, 0) == "one axis has moved: jnp.moveaxis(x, 0, 3)?"
    assert hint((2, 3, 4, 5), 3, 0, 1, 2) == "one axis has moved: jnp.moveaxis(x, 3, 0)?"
    assert hint((2, 3, 4, 5), 1, 0, 3, 2) == ""
    assert hint((3, 3, 5, 5), 0, 2, 3, 1) == "", "the first axis may have moved as well"


@pytest.mark.parametrize("width", [60, 80, 200])
def test_what_was_moved_is_told_once_in_a_text_of_any_width(width):
    adam = AdamState(jnp.ones(()), {"w": jnp.ones(3)}, {"w": jnp.ones(3)})
    text = "".join(tv.diff((adam, ()), ((), (adam, ()))).text(width=width).split())
    assert text.count("thesamestructureisat[1][0]intheother") == 1


def test_a_node_of_one_leaf_that_moved_is_found_where_there_is_no_other_like_it():
    head, rest = {"lm_head": np.ones((3, 7))}, np.zeros(2)
    found = tv.diff({"a": head, "rest": rest}, {"b": {"c": head}, "rest": rest}).differences
    assert found[0].hint == "the same structure is at ['b']['c'] in the other"
    found = tv.diff({"lm_head": np.ones((3, 7)), "rest": rest}, {"b": {**head, "x": rest}, "rest": rest}).differences
    assert found[0].hint == "the same structure is at ['b']['lm_head'] in the other"
    twice = tv.diff({"a": head, "rest": rest}, {"b": {"c": head, "d": head}, "rest": rest}).differences
    assert not twice[0].hint


def test_an_element_of_a_list_without_a_counterpart_moved_and_one_of_a_dict_was_renamed():
    """As layers of penzai, that stand in a list."""
    one, two = {"w": np.ones(2), "b": np.ones(3)}, ()
    found = tv.diff({"layers": [one, two]}, {"layers": [two, two, one]}).differences
    assert {each.hint for each in found if each.kind == "extra"} == {"moved from [0]?"}
    found = tv.diff({0: one, 1: two}, {1: two, 2: one}).differences
    assert [each.hint for each in found] == ["renamed to [2]?", "renamed from [0]?"]


def test_layers_of_a_list_that_moved_by_one_are_told_with_their_places():
    layers = [{"w": np.ones((2, 3)), "b": np.ones(3)}, (), {"w": np.ones((3, 4)), "b": np.ones(4)}, (), np.ones(2)]
    first, other = {"layers": layers}, {"layers": layers[1:] + layers[:1]}
    found = tv.diff(first, other).differences
    hints = {each.path.partition("]")[2][:3]: each.hint for each in reversed(found)}
    assert hints == {f"[{i}]": f"moved to [{(i - 1) % 5}], and [{(i + 1) % 5}] to here" for i in range(5)}
    assert found[0].note == "type: moved to [4], and [1] to here"
    assert eval(found[0].code, {"tree": first}) == other["layers"]
    swapped = tv.diff(tuple(layers), (layers[2], layers[1], layers[0], *layers[3:])).differences
    assert [each.hint for each in swapped if each.hint] == [
        "[0] moved to [2], and [2] to [0]",
        "[2] moved to [0], and [0] to [2]",
    ]
    assert [each.path for each in swapped if each.hint] == ["[0]['b']", "[2]['b']"]


def test_elements_that_moved_are_found_whatever_their_order():
    random = np.random.default_rng(0)
    for n in range(2, 30):
        elements = [np.ones(i + 2) if i % 3 else {f"k{i}": np.ones(2), "x": i} for i in range(n)]
        order = random.permutation(n).tolist()
        for cls in (list, tuple):
            tree, other = cls(elements), cls(elements[i] for i in order)
            found = tv.diff(tree, other).differences
            codes = [each.code for each in found if each.code]
            assert bool(found) == (order != sorted(order)) == (len(codes) == 1)
            for code in codes:
                assert jax.tree.map(id, eval(code, {"tree": tree})) == jax.tree.map(id, other)


def test_of_elements_that_changed_as_well_a_move_is_a_guess_and_of_new_ones_none_is_told():
    one, two = {"w": np.ones((2, 3)), "b": np.ones(3)}, {"v": np.ones(4)}
    other = [jax.tree.map(np.negative, two), jax.tree.map(np.negative, one)]
    assert tv.diff([one, two], other).differences[0].hint == "[0] moved to [1], and [1] to [0]?"
    new = {"w": np.ones((5, 3)), "b": np.ones(3)}
    assert not any("moved" in each.hint for each in tv.diff([one, two], [new, two]).differences)
    partly = tv.diff([one, two, 0], [two, new, 0]).differences
    assert {each.hint for each in partly if "moved" in each.hint} == {"[1] moved to [0]"}
    assert not any("moved" in each.hint for each in tv.diff([[1], [1, 2]], [[3, 4], [3]]).differences)
    assert not any("moved" in each.hint for each in tv.diff([one, ()], [(), new]).differences)


def test_a_rotated_model_of_penzai_reads_as_layers_that_moved():
    pz = pytest.importorskip("penzai.pz")
    mlp = pytest.importorskip("penzai.models.simple_mlp").MLP.from_config(jax.random.key(0), [2, 4, 4, 3])
    moved = replace(mlp, sublayers=mlp.sublayers[1:] + mlp.sublayers[:1])
    for first, other in ((mlp, moved), tuple(pz.unbind_params(each)[0] for each in (mlp, moved))):
        found = tv.diff(first, other).differences
        hints = [each.hint for each in found if each.hint]
        assert hints[:4] == [f"moved to [{(i - 1) % 5}], and [{i + 1}] to here" for i in range(4)]
        assert hints[4:] == ["[4] moved to [3], and [0] to [4]"]
        assert not tv.diff(eval(found[0].code, {"tree": first}), other.sublayers).differences


def test_names_that_hold_paths_are_found_in_nodes_of_like_names():
    """As in a checkpoint of Hugging Face against a model of Flax."""
    shape = lambda *sizes: jax.ShapeDtypeStruct(sizes, jnp.float32)
    flat = {f"h.{i}.{name}": leaf for i in range(2) for name, leaf in {"kernel": shape(2, 3), "bias": shape(3)}.items()}
    nodes = {f"h_{i}": {"kernel": shape(3, 2), "bias": shape(3), "own": shape(1)} for i in range(2)}
    found = {each.path: each for each in tv.diff(flat, {"params": nodes}).differences}
    assert found["['h.1.kernel']"].hint == "is at ['params']['h_1']['kernel'] in the other, transposed?"
    assert found["['h.1.bias']"].hint == "is at ['params']['h_1']['bias'] in the other"
    assert found["['params']"].hint == (
        "4 of 6 arrays are elsewhere in the first: ['params']['h_0']['bias'] is ['h.0.bias']?"
    )
    assert not any(each.code for each in found.values())
    assert not any(
        each.hint for each in tv.diff({"a.b": shape(2), "c.d": shape(2)}, {"x": {"y": shape(2)}}).differences
    )


def test_a_layer_that_was_inserted_is_told_by_structure_or_by_values():
    layers = [{"w": np.full((2, 2), i, np.float32)} for i in range(4)]
    more = [*layers[:2], {"w": np.full((2, 2), 9, np.float32)}, *layers[2:]]
    assert tv.diff(layers, more).differences[0].hint == "inserted at [2]?"
    assert tv.diff(more, layers).differences[0].hint == "removed at [2]?"
    assert not tv.diff(layers, more, values=False).differences[0].hint
    assert tv.diff([1, (), 2], [1, {"a": 0}, {"a": 0}, (), 2]).differences[0].hint == "inserted at [1:3]?"


def test_layers_in_a_dict_against_a_stack_of_them_are_told():
    layers = {f"layer_{i}": {"w": jnp.ones((2, 3)), "b": jnp.ones(3)} for i in range(3)}
    stack = {"w": jnp.ones((3, 2, 3)), "b": jnp.ones((3, 3))}
    found = tv.diff({"layers": layers}, {"layers": stack}).differences
    assert found[0].hint == "3 layers in the first, and one stack of 3 such layers in the other"


def test_mappings_of_two_libraries_are_compared_inside():
    frozen = pytest.importorskip("flax.core").freeze({"a": {"w": np.ones(2), "b": np.ones(1)}})
    assert differences({"a": {"w": np.ones(2), "b": np.ones(2)}}, frozen) == [
        "the root: type: dict · 2 leaves → FrozenDict · 2 leaves",
        "['a']['b']: shape: (2,) → (1,)",
    ]


def test_keys_of_a_librarys_mapping_are_named_as_those_of_a_dict_are():
    freeze = pytest.importorskip("flax.core").freeze
    found = tv.explain_map(freeze({"a": {"w": 1, "b": (1, 2)}}), freeze({"a": {"v": 1, "b": (1,), "c": 2}}))
    assert sorted(map(str, found)) == [
        "['a']['b']: length: 2 children → 1 child",
        "['a']['c']: only in the other: int 2",
        "['a']['v']: only in the other: int 1",
        "['a']['w']: only in the first: int 1",
    ]


def test_three_trees_have_a_column_each():
    view = tv.diff({"a": 1.0, "b": 2.0}, {"a": 1.5, "b": 2.0}, {"a": 1.0, "b": 2.0, "c": 3.0})
    assert [(each.tree, each.kind, each.path) for each in view.differences] == [
        (1, "value", "['a']"),
        (2, "extra", "['c']"),
    ]
    assert [column.name for column in view.columns] == ["tree1", "tree2"]
    assert [row["tree1"] for row in view.table][1:] == ["value: 1 → 1.5", ""]
    assert [row.keystr for row in view.find("tree2:extra | tree2:only")] == [""]
    assert "tree 2: ['c']: only in the other: float 3.0" in view.text()


def test_the_view_shows_what_differs_and_counts_what_is_the_same():
    leaf = {"b": np.zeros(4, np.float32), "w": np.ones((4, 4), np.float32)}
    changed = {**leaf, "w": leaf["w"] + 1}
    view = tv.diff(
        {"head": [1, 2], "layers": [leaf] * 12}, {"head": [1, 2], "layers": [leaf] * 7 + [changed] + [leaf] * 4}
    )
    assert (
        view.text()
        == """\
tree · 1 difference: 1 value · 25 leaves are the same
                                max |Δ|  differ
tree        dict                      1      16
├─ head     the same
└─ layers   list                      1      16
   ├─ …     7 are the same
   ├─ [7]   dict                      1      16
   │  ├─ b  the same
   │  └─ w  float32[4,4] numpy        1      16  value: 1 → 2 (at [0, 0])
   └─ …     4 are the same"""
    )
    for query in ("is:differs", "is:changed", "diff:value", 'diff:"value"'):
        assert [row.keystr for row in view.find(query)] == ["['layers'][7]['w']"]
    assert len(view.find('diff:"same" kind:leaf')) == 25 and not view.find('diff:"val"')
    assert "same" in view.html() and view.html() == view.html()


def test_a_page_has_what_is_the_same_up_to_a_bound_and_says_so_beyond(monkeypatch):
    from treeviz.analysis.compare import merged

    left = {"a": np.zeros(2), "same": [{"w": 1.0}, {"w": 2.0}]}
    view = tv.diff(left, {**left, "a": np.ones(2)})
    assert [row.keystr for row in view.table] == [row.keystr for row in tv.walk(left)]
    assert len(view.brief.table) == 3
    monkeypatch.setattr(merged, "MOST_ROWS", 6)
    view = tv.diff(left, {**left, "a": np.ones(2)})
    assert len(view.table) == 3 and view.table.headline[-1] == "in this page only counted"
    assert [len(notes) for notes in view.table.notes.values()] == [1]
    assert view.text().split("\n")[0] == "tree · 1 difference: 1 value · 2 leaves are the same"


@pytest.mark.parametrize("most_rows", [10_000, 3])
def test_renamed_arrays_of_equal_values_stand_below_their_parents(most_rows, monkeypatch):
    from treeviz.analysis.compare import merged

    monkeypatch.setattr(merged, "MOST_ROWS", most_rows)
    left, right = ({"in": {name: np.arange(2.0)}, "rest": np.ones(3)} for name in "xy")
    view = tv.diff(left, right, like="values")
    assert view.text().split("\n")[1:] == [
        "tree     dict",
        "├─ in    dict",
        "│  ├─ x  float64[2] numpy",
        "│  └─ y  float64[2] numpy",
        "└─ rest  the same",
    ]
    assert "float64[2] numpy" in view.html()


def test_the_same_is_not_said_of_what_was_not_compared():
    shapes = {"a": jax.ShapeDtypeStruct((2,), np.float32), "b": [1.0, 2.0], "c": np.zeros(2, np.float32)}
    view = tv.diff({**shapes, "a": np.zeros(2, np.float32)}, shapes)
    assert view.text().split("\n") == [
        "tree · no difference · 3 leaves are the same · not compared further in 1 place",
        "tree  dict",
        "└─ …  3 are the same, not compared further in 1 place: shape only",
    ]
    assert view.table[1]["diff"] == "" and view.table[2]["diff"] == "same"
    assert tv.diff(shapes, shapes, values=False).table.headline[1].endswith("except values, which were not compared")


def test_equal_trees_say_so():
    view = tv.diff([1, 2], [1, 2])
    assert not view.differences and "no difference" in view.text()
    assert str(view.differences) == "no difference"
    tv.assert_same([1, 2], [1, 2])


def test_an_assertion_names_every_difference():
    with pytest.raises(AssertionError) as raised:
        tv.assert_same({"a": [1, 2], "b": np.ones(2)}, {"a": [1, 3], "b": np.ones(3)})
    assert str(raised.value) == (
        "the trees are not the same: 2 differences\n  ['a'][1]: value: 2 → 3\n  ['b']: shape: (2,) → (3,)"
    )


def test_fewer_than_two_trees_are_an_error():
    with pytest.raises(TypeError, match="two or more trees"):
        tv.diff([1])


@pytest.mark.parametrize("name", SAMPLES)
def test_every_tree_is_compared_with_itself_and_with_another(name):
    tree = SAMPLES[name]()
    view = tv.diff(tree, tree)
    assert not [each for each in view.differences if each.kind not in ("error", "static")], view.differences
    other = tv.diff(tree, Point(tree, [tree]))
    assert other.text(width=80, max_rows=40)
    tv.explain_map(tree, Point(1, 2))
    again = tv.diff(tree, SAMPLES[name]())
    assert again.text(width=80, max_rows=40)
    assert len(again.differences) > 0 or "raises from" not in name


def test_broadcast_arrays_are_read_once_and_counted_as_they_are():
    def huge(*values: float) -> np.ndarray:
        return np.broadcast_to(np.array(values, np.float32)[:, None, None], (len(values), 10**6, 10**5))

    assert not tv.diff(huge(1, np.nan), huge(1, np.nan)).differences
    (found,) = tv.diff(huge(1, 2, 5), huge(1, 3, 5)).differences
    assert str(found) == "the root: value: 2 → 3 (at [1, 0, 0]; 100,000,000,000 of 300,000,000,000 differ)"
    (found,) = tv.diff(huge(1, 2), huge(np.nan, 2)).differences
    assert str(found) == "the root: NaN: 0 NaN → 100,000,000,000 NaN (the first at [0, 0, 0])"


def test_no_array_is_kept_and_no_copy_stays():
    array = jnp.ones(1000)
    other = array + 1
    view = tv.diff([array], [other])
    assert array._npy_value is None and other._npy_value is None
    assert jax.jit(lambda x: x, donate_argnums=0)(array) is not None and array.is_deleted()
    assert len(view.differences) == 1


def test_of_keys_that_are_renamed_in_many_layers_each_has_the_code_for_its_own():
    def layer(norm: str, *more: str) -> dict[str, Any]:
        return {"attn": np.ones(3), **dict.fromkeys((norm, *more), np.ones(4)), "b": np.ones(2)}

    other = [layer("rms_norm") for _ in range(300)]
    other[7], other[8] = layer("layer_norm"), layer("scale", "gain")
    found = tv.diff([layer("norm") for _ in range(300)], other).differences
    told = {each.path: (each.hint, each.code) for each in found if each.kind == "missing"}
    assert len(told) == 300 and told["[8]['norm']"] == ("", "")
    for i in (6, 7, 9, 299):
        new = "layer_norm" if i == 7 else "rms_norm"
        code = f"tree[{i}][{new!r}] = tree[{i}].pop('norm')"
        assert told[f"[{i}]['norm']"] == (f"renamed to [{new!r}]?", code)


def test_objects_without_a_comparison_of_their_own_are_compared_by_what_they_hold():
    class Box:
        def __init__(self, x, n=1):
            self.params, self.n = {"w": [x]}, n

    class Raises(Box):
        def __eq__(self, other):
            raise ValueError

    ones, twos = jnp.ones(3), jnp.array([1.0, 2.0, 1.0])
    hint = lambda one, another: [each.hint for each in tv.diff([one], [another]).differences]
    assert hint(Box(ones), Box(jnp.ones(3))) == [] == hint(Box(np.ones(3)), Box(np.ones(3)))
    assert hint(Box(ones), Box(twos)) == [".params['w'][0]: 1 → 2 (at [1]; 1 of 3 differ)"]
    assert hint(Box(ones), Box(jnp.ones(4))) == [".params['w'][0]: float32[3] → float32[4]"]
    assert hint(Box(ones), Box(jnp.array([1.0, np.nan, 1.0])))[0].startswith(".params['w'][0]: ")
    assert hint(Box(ones, 1), Box(ones, 2)) == [".n: 1 → 2"]
    assert hint(Raises(ones), Raises(ones)) == [""] == hint(object(), object()), "not known, so not called the same"
    many = lambda: Box([[i] for i in range(200)])
    assert len(hint(Box(ones, object()), Box(ones, object()))) == 1 and hint(many(), many()) == []


def test_variables_of_penzai_are_compared_by_their_values():
    pytest.importorskip("penzai")
    from penzai.models import simple_mlp

    make = lambda seed: simple_mlp.MLP.from_config(
        name="mlp", init_base_rng=jax.random.key(seed), feature_sizes=[2, 3, 2]
    )
    assert not tv.diff(make(0), make(0)).differences
    found = tv.diff(make(0), make(1)).differences
    assert [each.path for each in found] == [f".sublayers[{i}].sublayers[0].weights" for i in (0, 2)]
    assert all(each.kind == "value" and "at [" in each.hint for each in found), "their arrays, as others"


def test_of_several_trees_it_is_said_which_differs_also_where_one_alone_does():
    view = tv.diff({"a": 1.0}, {"a": 1.0}, {"a": 2.0}, {"a": 1.0})
    assert view.text().split("\n")[0] == "tree · 1 difference: 1 value · trees 1, 3 are the same"
    assert "tree 2: value: 1 → 2" in view.text() and [column.name for column in view.columns] == ["tree2"]
    assert "tree 1 is the same" not in tv.diff({"a": 1.0}, {"a": 1.0}, {"a": 2}, values=False).text()


def test_at_eighty_columns_values_are_whole_and_a_place_is_told_once_at_most():
    left = {f"block_{i}": {"attention": {"kernel": np.full((8, 8), 0.0625 * (i + 3))}} for i in range(7)}
    right = jax.tree.map(lambda x: -1.125 * x, left)
    right["block_3"]["attention"]["bias"] = np.ones(3)
    shown = tv.diff(left, right).text(width=80, fold=False)
    for number in (0.0625 * (i + 3) for i in range(3)):
        assert shown.count(f"value: {number:.4g} → {-1.125 * number:.4g}") == 1
    assert shown.count("at [") <= 7 and "of 64 differ" not in shown
    assert all(len(line) <= 80 for line in shown.splitlines())


def test_a_row_that_stands_for_several_names_the_value_of_none():
    left = {"layers": [{"w": np.full((2, 2), float(i))} for i in range(60)]}
    shown = tv.diff(left, jax.tree.map(lambda x: x + 1, left)).text(width=100)
    lines = [line for line in shown.splitlines() if "×" not in line and "value: differs" in line]
    assert len(lines) == 1 and "─ w" in lines[0] and "(1 of " not in shown


def test_of_twenty_layers_the_one_without_an_array_stands_out_and_all_say_how_many_elements_differ():
    left = {"head": np.zeros(9), "layers": [{"b": np.zeros(4), "w": np.zeros((4, 4))} for _ in range(20)]}
    right = {"head": np.ones(9), "layers": [{"b": np.zeros(4), "w": np.ones((4, 4))} for _ in range(20)]}
    del right["layers"][7]["w"]
    view = tv.diff(left, right)
    assert (
        view.text()
        == """\
tree · 21 differences: 1 missing, 20 value · 20 leaves are the same
                                      max |Δ|  differ
tree              dict                      1     313
├─ head           float64[9] numpy          1       9  value: 0 → 1 (at [0])
└─ layers         list                      1     304
   ├─ [0…19] ×19  dict · 160 B each         1     304
   │  ├─ b        the same
   │  └─ w        float64[4,4] numpy        1      16  value: 0 → 1 (at [0, 0])
   └─ [7]         dict
      ├─ b        the same
      └─ w        float64[4,4] numpy                   only in the first"""
    )
    assert view.text(fold=False).splitlines()[2].split()[-1] == "313"
    as_json = json.loads(view.json())
    assert as_json["rows"][0]["values"]["differ"] == 313 and len(as_json["differences"]) == len(view.differences) == 21
    with pytest.raises(AssertionError, match="the trees are not the same: 21 differences"):
        tv.assert_same(left, right)
