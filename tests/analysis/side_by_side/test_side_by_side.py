"""Trees side by side: the places that are found, and what stands there, as `jax.tree_util` has it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.tree_util import keystr, tree_flatten_with_path
from sample_nodes import AdamState, Layer, Registered
from sample_trees import SAMPLES, deep

import treeviz
from treeviz.analysis.side_by_side import HOLE, find_structure, other_tree_columns
from treeviz.tree.walk import scan, walk

pytestmark = pytest.mark.oldest_jax


def params(dtype: Any = jnp.float32) -> dict[str, Any]:
    return {
        "encoder": {"kernel": jnp.full((4, 3), 2, dtype), "bias": jnp.full(3, 3, dtype)},
        "layers": [{"w": jnp.full((3, 3), i, dtype)} for i in (4, 5)],
        "head": jnp.full((3, 2), 6, dtype),
    }


def like(tree: Any, dtype: Any = jnp.float32) -> Any:
    return jax.tree.map(lambda x: jnp.zeros(x.shape, dtype), tree)


def beside(tree: Any, *, stats: bool = False, **trees: Any) -> treeviz.TreeTable:
    return treeviz.render(tree, name="params", stats=stats, **trees).table


def places(table: treeviz.TreeTable, which: str = ".dtype") -> dict[str, str]:
    """The title of every place that was found, by the name of its column."""
    return {name.removesuffix(which): column.title for name, column in table.columns.items() if name.endswith(which)}


def cells(table: treeviz.TreeTable, place: str) -> dict[str, str]:
    """What stands beside each leaf that has a cell."""
    column = table.columns[f"{place}.dtype"]
    return {row.keystr: column[row.number] for row in table.leaves if column[row.number]}


def expected(tree: Any, other: Any) -> dict[str, str]:
    """The same from JAX: the dtype of the leaf at the same key path, or a hole."""
    there = {keystr(path): str(leaf.dtype) for path, leaf in tree_flatten_with_path(other)[0] if hasattr(leaf, "dtype")}
    return {keystr(path): there.get(keystr(path), HOLE) for path, _ in tree_flatten_with_path(tree)[0]}


def note(table: treeviz.TreeTable) -> str:
    return " | ".join(each.text for each in table[0].notes)


# -- what is found


def test_gradients_of_another_dtype_stand_beside_their_parameters():
    grads = like(params(), jnp.bfloat16)
    table = beside(params(), grads=grads)
    assert places(table) == {"grads": "grads"}
    assert cells(table, "grads") == expected(params(), grads) == dict.fromkeys(expected(params(), grads), "bfloat16")
    assert table.rolled(table.columns["grads.bytes"])[0] == sum(x.nbytes for x in jax.tree.leaves(grads))


def test_the_first_and_second_moments_are_found_in_a_state():
    state = (AdamState(jnp.int32(0), like(params()), like(params(), jnp.float16)), ())
    table = beside(params(), opt_state=state)
    assert places(table) == {"opt_state.0.mu": "mu", "opt_state.0.nu": "nu"}
    assert set(cells(table, "opt_state.0.mu").values()) == {"float32"}
    assert set(cells(table, "opt_state.0.nu").values()) == {"float16"}


@pytest.mark.parametrize("hole", [None, (), {}, AdamState((), (), ())])
def test_holes_are_shown_in_the_place_of_leaves_and_of_whole_subtrees(hole):
    grads = {**like(params()), "encoder": {"kernel": hole, "bias": jnp.zeros(3)}, "layers": hole}
    table = beside(params(), grads=grads)
    assert cells(table, "grads") == expected(params(), grads)
    column = table.columns["grads.dtype"]
    (layers,) = table.find("key:layers kind:list")
    assert column[layers.number] == HOLE
    assert column[0] == f"{HOLE}, float32"


def test_leaves_that_are_missing_are_holes():
    grads = {"head": jnp.zeros((3, 2))}
    assert cells(beside(params(), grads=grads), "grads") == expected(params(), grads)


def test_a_module_stands_beside_its_state_though_the_keys_are_of_other_makes():
    table = beside(Layer("a", jnp.ones((2, 3)), b=jnp.ones(3)), state={"w": jnp.zeros((2, 3)), "b": jnp.zeros(3)})
    assert set(cells(table, "state").values()) == {"float32"}


def test_a_box_of_one_leaf_stands_for_the_leaf():
    boxed = {"w": Layer("box", jnp.zeros((2, 3)), b=None), "b": jnp.zeros(3)}
    plain = {"w": jnp.zeros((2, 3)), "b": jnp.zeros(3)}
    assert list(cells(beside(plain, boxed=boxed), "boxed").values()) == ["float32", "float32"]
    assert list(cells(beside(boxed, plain=plain), "plain").values()) == ["float32", "float32"]


def test_the_very_same_arrays_are_called_that():
    tree = params()
    assert set(cells(beside(tree, ema=dict(tree)), "ema").values()) == {"same array"}


def test_other_shapes_are_shown_where_one_array_fits():
    tree = {"w": jnp.ones((4, 3)), "b": jnp.ones(3)}
    table = beside(tree, state=AdamState(jnp.int32(0), {"w": jnp.zeros(4), "b": jnp.zeros(3)}, ()))
    assert cells(table, "state.mu") == {"['b']": "float32", "['w']": "float32 (4,)"}


def test_an_ensemble_is_no_match_and_the_reason_is_said():
    ensemble = jax.tree.map(lambda x: jnp.stack([x] * 5), params())
    table = beside(params(), ensemble={"of": ensemble})
    assert not places(table)
    assert note(table) == (
        "ensemble: nothing in it has the structure of params; ensemble['of'] comes closest, "
        "but its leaf ['encoder']['bias'] has the shape (5, 3) and not (3,)"
    )


def test_a_leaf_too_many_is_no_match_and_the_reason_is_said():
    table = beside(params(), grads={**like(params()), "new": jnp.zeros(3)})
    assert not places(table)
    assert note(table).endswith("grads comes closest, but its leaf ['new'] has no counterpart in params")


def test_the_steps_and_rates_of_a_state_are_not_taken_for_parameters():
    tree = {"count": jnp.int32(0), "w": jnp.ones(3)}
    assert not places(beside(tree, state=[{"count": jnp.int32(1)}, {"hyper": {"count": 3}}]))
    assert not places(beside(jnp.ones(3), state={"count": jnp.int32(1), "rate": 0.1}))


def test_a_bare_array_stands_beside_arrays_of_its_shape():
    assert places(beside(jnp.ones(3), state={"a": jnp.zeros(3), "b": jnp.zeros((3, 1))})) == {"state.a": "state['a']"}


def test_gradients_stand_beside_every_part_of_a_train_state_that_has_their_structure():
    state = {"params": params(), "step": jnp.int32(1), "opt": AdamState(jnp.int32(0), like(params()), like(params()))}
    table = beside(state, grads=like(params(), jnp.bfloat16))
    found = cells(table, "grads")
    assert len(found) == 3 * len(jax.tree.leaves(params())) and set(found.values()) == {"bfloat16"}
    assert all("count" not in path and "step" not in path for path in found)


def test_labels_of_a_partition_stand_beside_the_parameters():
    labels = jax.tree.map(lambda _: "adam", params())
    assert set(cells(beside(params(), labels=labels), "labels").values()) == {"'adam'"}


def test_siblings_of_one_name_are_told_apart_by_their_order():
    tree = Registered({1: jnp.ones(2)}, {True: jnp.ones(3)})
    assert set(cells(beside(tree, other=like(tree, jnp.float16)), "other").values()) == {"float16"}


def test_of_many_places_twelve_are_shown_and_the_others_counted():
    table = beside({"w": jnp.ones(3)}, model=[{"w": jnp.ones(3)} for _ in range(15)])
    assert len(places(table)) == 12
    assert note(table) == "model: 3 more subtrees have this structure"


def test_titles_are_short_and_tell_the_places_apart():
    moments = AdamState(0, like(params()), like(params()))
    state = {"inner_states": {"a_long_name": {"inner_state": (moments,)}}}
    assert list(places(beside(params(), opt_state=state)).values()) == ["mu", "nu"]
    assert list(places(beside(params(), opt=moments)).values()) == ["opt.mu", "opt.nu"]
    both = {"generator": moments, "discriminator": moments}
    found = places(beside(params(), opt_state=both, grads=params()))
    names = ("['discriminator'].mu", "['discriminator'].nu", "['generator'].mu", "['generator'].nu")
    assert list(found.values()) == [*(f"…{name}" for name in names), "grads"]
    found = places(beside(params(), generator_state=moments, discriminator_state=moments))
    names = ("generator_stat….mu", "generator_stat….nu", "discriminator_….mu", "discriminator_….nu")
    assert list(found.values()) == list(names)


# -- property: what JAX aligns, and nothing else

leaves = st.sampled_from([(2,), (3,), (2, 2)]).map(lambda shape: np.zeros(shape, np.float32))
trees = st.recursive(
    leaves,
    lambda inner: st.lists(inner, min_size=1, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, min_size=1),
)


@settings(max_examples=settings().max_examples * 3 // 2)
@given(trees, trees)
def test_two_trees_of_one_treedef_and_shapes_align_as_tree_map_aligns_them(tree, other):
    found = find_structure(walk(tree), walk({"deep": [other]})).matches
    same = jax.tree.structure(tree) == jax.tree.structure(other)
    if same and [x.shape for x in jax.tree.leaves(tree)] == [x.shape for x in jax.tree.leaves(other)]:
        assert [place.row for place in found][:1] == [2]
        table, others = scan({"deep": [other]})
        _, nodes = scan(tree)
        pairs = {(id(nodes[m]), id(others[o])) for o, m in zip(found[0].own, found[0].leaves, strict=True)}
        assert pairs == {(id(x), id(y)) for x, y in zip(jax.tree.leaves(tree), jax.tree.leaves(other), strict=True)}
    paths = {keystr(path): x.shape for path, x in tree_flatten_with_path(tree)[0]}
    table = walk({"deep": [other]})
    for place in found:  # whatever was found stands at the paths of the tree
        root = table[place.row].keystr
        assert all(table[row].keystr.removeprefix(root) in paths for row in place.own.tolist())


# -- what is measured


def test_the_headline_says_which_other_tree_has_nan():
    grads = jax.tree.map(jnp.zeros_like, params())
    leaves, treedef = jax.tree.flatten(grads)
    bad = treedef.unflatten([leaves[0].at[0].set(jnp.nan), leaves[1].at[0].set(jnp.inf), *leaves[2:]])
    assert treeviz.render(params(), grads=bad, stats=True).table.headline[-2:] == (
        "all finite in tree",
        "NaN/Inf in 2 leaves of grads",
    )
    assert "of grads" not in " ".join(treeviz.render(params(), grads=bad).table.headline), "they were not read"


def test_with_statistics_the_root_mean_squares_stand_side_by_side():
    grads = jax.tree.map(lambda x: x.astype(jnp.float16) / 4, params())
    view = treeviz.render(params(), grads=grads, stats=True)
    assert [column.name for column in view.columns] == ["rms", "grads.rms", "bytes"]
    assert view.table.headline[-1] == f"all finite in {view.table.name}"
    for row in view.table:
        below = [x for path, x in tree_flatten_with_path(grads)[0] if keystr(path).startswith(row.keystr)]
        values = np.concatenate([np.asarray(x, np.float64).ravel() for x in below])
        np.testing.assert_allclose(row["grads.rms"], np.sqrt(np.mean(values**2)), rtol=1e-12)
        np.testing.assert_allclose(row["grads.norm"], np.linalg.norm(values), rtol=1e-12)
        np.testing.assert_allclose(row["grads.ratio"], 0.25, rtol=1e-12)


def test_what_is_not_finite_beside_a_parameter_is_shown_at_once():
    grads = params()
    grads["head"] = grads["head"].at[0].set(jnp.nan)
    view = treeviz.render(params(), grads=grads, stats=True)
    assert [column.name for column in view.columns] == ["rms", "grads.rms", "grads.nonfinite", "bytes"]
    assert [row.keystr for row in view.find("grads.nonfinite:>0")] == ["['head']"]


def test_abstract_parameters_take_their_gradients_values():
    abstract = jax.eval_shape(params)
    assert beside(abstract, grads=params(), stats=True)[0]["grads.rms"] > 0


def test_nothing_is_read_without_statistics_and_no_array_is_kept(monkeypatch):
    import gc
    import weakref

    grads = like(params())
    watched = [weakref.ref(x) for x in jax.tree.leaves(grads)]
    monkeypatch.setattr(type(jnp.ones(1)), "__array__", lambda *_: pytest.fail("a value was read"))
    view = treeviz.render(params(), grads=grads)
    monkeypatch.undo()
    del grads
    gc.collect()
    assert view.html() and not any(ref() is not None for ref in watched)


# -- in the views


def test_the_columns_are_in_the_text_the_page_and_the_file_for_programs():
    view = treeviz.render(params(), grads=like(params(), jnp.bfloat16))
    assert "bfloat16" in view.text() and "grads" in view.text().splitlines()[1]
    assert '"grads.dtype": "bfloat16"' in view.json()
    assert view.html() and view._repr_html_()


def test_the_columns_are_fields_of_a_query():
    view = treeviz.render(params(), grads=params(), stats=True)
    assert [row.keystr for row in view.find("grads.rms:>5 is:leaf")] == ["['head']"]
    assert [row.keystr for row in view.find("grads.bytes:>40 is:leaf")] == ["['encoder']['kernel']"]


def test_hostile_names_of_trees_are_shown_and_make_fields():
    trees = {"</script>": like(params()), "": like(params()), "bytes": like(params()), "ü\u202e": like(params())}
    view = treeviz.render(params(), beside=trees, stats=True)
    fields = [name for name in view.table.columns if name.endswith(".rms")]
    assert len(fields) == 4
    assert all(view.find(f"{name}:>=0") for name in fields)
    assert "\u202e" not in view.text() and "<script>alert" not in view.html()


# -- how it is asked for


def test_a_flag_that_is_misspelt_is_no_tree():
    with pytest.raises(TypeError, match=r"render: there is no option 'verbose'\. Any other keyword names"):
        treeviz.render(params(), verbose=True)
    with pytest.raises(TypeError, match="render: there is no option 'stat'; did you mean 'stats'"):
        treeviz.render(params(), stat=True)
    values = {"colums": ["bytes"], "isleaf": lambda x: False, "stackd": {"*": 0}, "depht": 2.0}
    for (name, value), meant in zip(values.items(), ("columns", "is_leaf", "stacked", "depth"), strict=True):
        with pytest.raises(TypeError, match=rf"no option '{name}'; did you mean '{meant}'\? .* beside={{'{name}': …}}"):
            treeviz.render(params(), **{name: value})
    for tree in ([1.0], {"a": np.ones(3)}, [np.ones(2)], None, []):  # trees, whatever their names
        assert "state" in treeviz.render({"a": 1}, state=tree).text()


@pytest.mark.parametrize(("show", "name"), [(treeviz.explore, "values"), (treeviz.render, "keep")])
def test_an_option_of_the_other_function_is_not_what_was_meant(show, name):
    with pytest.raises(TypeError, match=f"there is no option '{name}'\\. Any other keyword"):
        show(params(), **{name: True})


def test_a_tree_by_the_name_of_an_option_is_refused_and_goes_into_beside():
    for name in ("columns", "depth", "name", "is_leaf"):
        for tree in ({"w": np.ones(2)}, [np.ones(2)], np.ones(2), np.float32(1)):
            options: Any = {name: tree}
            for show in (treeviz.render, treeviz.explore):
                with pytest.raises(TypeError, match=rf"{name}= is an option, a?.*beside=\{{'{name}': …\}}"):
                    show(params(), **options)
    with pytest.raises(TypeError, match=r"stats= is an option, True or False.*beside=\{'stats': …\}"):
        treeviz.render(params(), stats=params())  # type: ignore[arg-type]
    assert places(treeviz.render(params(), beside={"stats": like(params())}).table) == {"stats": "stats"}
    with pytest.raises(TypeError, match="'grads' is given twice"):
        treeviz.render(params(), beside={"grads": 1}, grads=params())
    with pytest.raises(TypeError, match="beside= must be a dict of trees by name, not a list"):
        treeviz.render(params(), beside=[1])  # type: ignore[arg-type]


# -- strange trees


@pytest.mark.parametrize("name", SAMPLES)
def test_every_strange_tree_stands_beside_itself_and_beside_parameters(name):
    tree = SAMPLES[name]()
    table, nodes = scan(tree)
    strange = other_tree_columns(
        table, nodes, {"same": tree, "other": [SAMPLES[name]()], "params": params()}, stats=True
    )
    for column in strange.columns:
        values = table.rolled(column)
        assert len(values) == len(table)
        assert all(
            len(text) < 400 and text.isprintable() for text in (column.title, column.help, *map(str, values[:99]))
        )
    table, nodes = scan(params())
    assert not other_tree_columns(table, nodes, {"strange": tree}, stats=True).columns


def test_arrays_stand_beside_themselves_in_every_strange_tree_that_has_some():
    for name in SAMPLES:
        table = walk(SAMPLES[name]())
        kinds = {table.facts[code].kind for code in table.fact_codes.tolist()}
        if "array" in kinds and not kinds & {"cycle", "repeat", "error", "more"}:
            assert find_structure(table, table).matches[0].row == 0, name


# -- cost


def test_a_search_that_would_square_gives_up_and_says_so():
    """All chains: each row could be the root, and differs at the bottom alone."""
    chain, shorter = walk(deep(20_000)), walk(deep(19_000))
    gave_up = (0, "it is too large to search completely")
    assert find_structure(chain, shorter).almost == gave_up
    assert find_structure(walk(deep(19_000, lambda below: [below, 1.0])), chain).almost == gave_up


# -- libraries


def test_the_states_of_optax_are_found():
    optax = pytest.importorskip("optax")
    tree = params()
    mask = jax.tree.map(lambda x: x.ndim > 1, tree)
    labels = {"encoder": "a", "layers": "b", "head": "b"}
    states = {
        "adam": (optax.adam(1e-3), ["opt[0].mu", "opt[0].nu"]),
        "chain": (
            optax.chain(optax.clip(1.0), optax.adamw(1e-3), optax.ema(0.9)),
            ["opt[1][0].mu", "opt[1][0].nu", "opt[2].ema"],
        ),
        "momentum": (optax.sgd(1e-3, momentum=0.9), ["opt[0].trace"]),
        "masked": (optax.masked(optax.adam(1e-3), mask), ["opt.inner_state[0].mu", "opt.inner_state[0].nu"]),
        "hyperparameters": (
            optax.inject_hyperparams(optax.adam)(learning_rate=1e-3),
            ["opt.inner_state[0].mu", "opt.inner_state[0].nu"],
        ),
        "several": (
            optax.multi_transform({"a": optax.adam(1e-3), "b": optax.sgd(1e-3, momentum=0.9)}, labels),
            [
                "opt.inner_states['a'].inner_state[0].mu",
                "opt.inner_states['a'].inner_state[0].nu",
                "opt.inner_states['b'].inner_state[0].trace",
            ],
        ),
        "steps": (
            optax.MultiSteps(optax.adam(1e-3), 2),
            ["opt.inner_opt_state[0].mu", "opt.inner_opt_state[0].nu", "opt.acc_grads"],
        ),
        "none": (optax.sgd(1e-3), []),
    }
    for name, (optimizer, found) in states.items():
        state = optimizer.init(tree)
        table = beside(tree, opt=state)
        helps = [table.columns[f"{place}.dtype"].help for place in places(table)]
        assert [help.removeprefix("The dtype of ").split(" here")[0] for help in helps] == found, name
        for place, path in zip(places(table), found, strict=True):
            subtree = eval(path, {"opt": state})
            assert cells(table, place) == expected(tree, subtree), (name, path)


def test_filtered_modules_of_equinox_have_holes():
    eqx = pytest.importorskip("equinox")
    model = eqx.nn.MLP(2, 3, 4, 2, key=jax.random.key(0))
    arrays = eqx.filter(model, eqx.is_array)
    grads = eqx.filter_grad(lambda m: jnp.sum(m(jnp.ones(2))))(model)
    for other in (arrays, grads):
        found = cells(beside(model, other=other), "other")
        assert set(found.values()) <= {"float32", "same array", HOLE}
        assert {path for path, cell in found.items() if cell != HOLE} == {
            keystr(path) for path, _ in tree_flatten_with_path(other)[0]
        }


def test_the_states_of_nnx_stand_beside_their_module():
    nnx = pytest.importorskip("flax.nnx")
    optax = pytest.importorskip("optax")

    class Model(nnx.Module):
        def __init__(self, rngs):
            self.a = nnx.Linear(2, 3, rngs=rngs)
            self.norm = nnx.BatchNorm(3, rngs=rngs)
            self.drop = nnx.Dropout(0.1, rngs=rngs)

    model = Model(nnx.Rngs(0))
    state = nnx.state(model, nnx.Param)
    opt_state = optax.adam(1e-3).init(state)
    table = beside(model, state=state, opt_state=opt_state, pure=nnx.to_pure_dict(state))
    assert [*places(table).values()] == ["state", "mu", "nu", "pure"]
    for place in places(table):
        there = [row.path for row in table.leaves if table.columns[f"{place}.dtype"][row.number] != HOLE]
        assert there == ["a/bias", "a/kernel", "norm/bias", "norm/scale"]
    assert list(places(beside(state, model=nnx.state(model, nnx.Param)))) == ["model"]


B, HEAD, W = jax.device_put([np.ones(2), np.ones((4, 2)), np.ones((4, 4))])
PARAMS = {"head": {"b": B, "w": HEAD}, "layers": [{"w": W}] * 2, "none": None}


@pytest.mark.parametrize(
    ("mask", "specs"),
    [
        ({"head": False, "layers": True, "none": None}, ["False", "False", "True", "True"]),
        ({"head": {"b": "a", "w": "b"}, "layers": ["a", "b"], "none": None}, ["a", "b", "a", "b"]),
        ({"head": None, "layers": [0, 1], "none": None}, ["None", "None", "0", "1"]),
        (
            {"head": jax.sharding.PartitionSpec("x"), "layers": None, "none": None},
            [repr(jax.sharding.PartitionSpec("x"))] * 2 + ["None"] * 2,
        ),
    ],
)
def test_a_prefix_of_the_tree_says_in_each_row_what_that_gets(mask, specs):
    view = treeviz.render(PARAMS, mask=mask)
    told = [str(row["mask.spec"]).partition(" ← ")[0] for row in view.table.leaves]
    assert told == specs and not view.table.notes.get(0)


def test_a_mask_that_is_no_prefix_says_where_it_is_not():
    view = treeviz.render(PARAMS, mask={"head": {"b": True, "v": True}, "layers": None, "none": None})
    assert [note.text for note in view.table.notes[0]] == [
        "mask has neither the structure of tree nor is a prefix of it: ['head']['v']: only in the mask: True; "
        "['head']['w']: only in the tree: float32[4,2]; ['layers']: none: None → list of 2"
    ]
    whole = treeviz.render(PARAMS, mask=jax.tree.map(lambda x: x.ndim > 1, PARAMS))
    assert [row["mask.dtype"] for row in whole.table.leaves] == ["False", "True", "True", "True"]
