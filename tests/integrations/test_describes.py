"""Users teach treeviz their own classes, and libraries come and go."""

from __future__ import annotations

import sys
import types
from importlib.machinery import ModuleSpec

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agreement import outline, row_at, text_of, walk_and_compare
from test_house import fresh_python

import treeviz
from treeviz import integrations
from treeviz.tree.walk import walk

pytestmark = pytest.mark.oldest_jax


def node_class(keys=("value",), base=object):
    """A new class, registered with JAX, whose children are called `keys`."""

    class Box(base):
        def __init__(self, *children, unit=None):
            self.__dict__.update(zip(keys, children, strict=True))
            self.unit = unit

    jax.tree_util.register_pytree_with_keys(
        Box,
        lambda box: ([(jax.tree_util.GetAttrKey(key), getattr(box, key)) for key in keys], box.unit),
        lambda unit, children: Box(*children, unit=unit),
    )
    return Box


def leaf_class():
    class Quantity:
        def __init__(self, array=None):
            self.array = array

    return Quantity


def test_a_describer_of_a_node_says_what_is_not_found_otherwise():
    Box = node_class()
    treeviz.describes(Box)(
        lambda box: treeviz.Description("module", type="Length", text=f"in {box.unit}", static=[("n", 3)])
    )
    table = walk_and_compare({"a": Box(jnp.ones(2), unit="m")})
    assert outline(table) == ["t dict dict", "  a module Length", "    .value array jax.Array"]
    assert (table[1].facts.text, table[1].facts.static) == ("in m", (("n", "3"),))


def test_a_describer_runs_once_for_each_place_and_again_where_a_budget_is_exceeded():
    Box, asked = node_class(), []
    treeviz.describes(Box)(lambda box: asked.append(box) or treeviz.Description())
    in_two_places, other = Box(jnp.ones(2)), Box(1.0)
    treeviz.walk([in_two_places, in_two_places, other])
    assert asked == [in_two_places, in_two_places, other]
    asked.clear()
    walk([in_two_places] * 4, max_rows=8)
    assert len(asked) == 4
    walk([in_two_places] * 8, max_rows=8)
    assert len(asked) == 4 + 8 + 6, "beyond twice the budget there is a second pass, for what is shown"


def test_what_a_describer_leaves_out_is_what_the_walk_finds():
    Box = node_class()
    treeviz.describes(Box)(lambda box: treeviz.Description(text="words"))
    table = walk_and_compare([Box(1.0, unit="m")])
    assert (table[1].kind, table[1].type, table[1].facts.static) == ("node", "Box", (("aux", "'m'"),))
    Quantity = leaf_class()
    treeviz.describes(Quantity)(lambda leaf: treeviz.Description(text="words"))
    table = walk_and_compare([Quantity()])
    assert (table[1].kind, table[1].type) == ("opaque", "Quantity")

    class Metres(np.ndarray):
        pass

    treeviz.describes(Metres)(lambda array: treeviz.Description(text="in metres"))
    (row,) = walk_and_compare([np.ones(3).view(Metres)]).leaves
    assert (row.kind, row.shape, row.dtype, row.facts.bytes, row.facts.text) == (
        "numpy",
        (3,),
        "float64",
        24,
        "in metres",
    )


def test_a_describer_holds_for_subclasses_until_one_has_its_own():
    Quantity = leaf_class()
    Special = type("Special", (Quantity,), {})
    More = type("More", (Special,), {})
    treeviz.describes(Quantity)(lambda _: treeviz.Description(text="any"))
    treeviz.describes(Special)(lambda _: treeviz.Description(text="special"))
    assert [row.facts.text for row in treeviz.walk([Quantity(), Special(), More()]).leaves] == [
        "any",
        "special",
        "special",
    ]


def test_an_inlined_box_is_one_row_and_its_path_leads_to_the_leaf():
    Box = node_class()

    @treeviz.describes(Box)
    def _(box):
        return treeviz.Description(type="Length", text=f"in {box.unit}", static=(), inline=True)

    tree = {"a": Box(jnp.ones(2), unit="m"), "b": Box(2.5, unit="s"), "c": Box({"x": 1.0}, unit="kg")}
    table = walk_and_compare(tree)
    assert outline(table) == [
        "t dict dict",
        "  a array Length",
        "  b scalar Length",
        "  c node Length",
        "    .value dict dict",
        "      x scalar float",
    ]
    row = row_at(table, "['a'].value")
    assert (row.path, row.expression, row.shape, row.facts.text) == ("a", "t['a'].value", (2,), "in m")
    assert text_of(tree).splitlines()[2:4] == [
        "├─ a          Length float32[2]  in m",
        "├─ b          Length 2.5  in s",
    ]


def test_a_box_at_the_root_keeps_its_own_row():
    Box = node_class()
    treeviz.describes(Box)(lambda box: treeviz.Description(inline=True))
    assert outline(walk_and_compare(Box(jnp.ones(2)))) == ["t node Box", "  .value array jax.Array"]


def test_a_traced_array_in_a_box_is_shown_with_the_name_of_the_box():
    Box = node_class()
    treeviz.describes(Box)(lambda box: treeviz.Description(inline=True))
    seen = []
    jax.jit(lambda tree: seen.append(text_of(tree)))([Box(jnp.ones(2))])
    assert "Box float32[2] tracer" in seen[0]


def test_children_without_leaves_can_be_hidden_and_others_cannot():
    Box = node_class(("value", "cache", "state"))
    treeviz.describes(Box)(lambda box: treeviz.Description(hide=frozenset({"cache", "state"})))
    assert outline(walk_and_compare([Box(jnp.ones(2), None, ())]))[1:] == [
        "  [0] node Box",
        "    .value array jax.Array",
    ]
    table = walk_and_compare([Box(jnp.ones(2), jnp.ones(3), {"a": 1.0})])
    assert [row.label for row in table] == ["t", "[0]", ".value", ".cache", ".state", "a"]


def test_children_can_be_named_and_reached_in_other_words():
    Box = node_class(("_0", "_1"))
    Box.__getitem__ = lambda box, name: box._0 if name == "left" else box._1

    @treeviz.describes(Box)
    def _(box):
        return treeviz.Description(
            labels=["left", "right"], step=lambda keystr: f"[{'left' if keystr == '._0' else 'right'!r}]"
        )

    table = walk_and_compare([Box(jnp.ones(2), {"w": jnp.ones(3)})])
    assert [row.label for row in table] == ["t", "[0]", "left", "right", "w"]
    assert row_at(table, "[0]._1['w']").expression == "t[0]['right']['w']"
    assert [row.keystr for row in table.find("right/w")] == ["[0]._1['w']"]


def test_an_opaque_leaf_that_hides_arrays_is_accused_unless_its_describer_knows_better():
    Quantity = leaf_class()
    treeviz.describes(Quantity)(lambda _: treeviz.Description(text="words"))
    (row,) = walk_and_compare([Quantity(jnp.ones(3))]).leaves
    assert [note.kind for note in row.notes] == ["hidden"]
    treeviz.describes(Quantity)(lambda _: treeviz.Description(text="words", transparent=True))
    (row,) = walk_and_compare([Quantity(jnp.ones(3))]).leaves
    assert row.notes == ()


def test_a_leaf_with_a_shape_counts_as_an_array():
    Quantity = leaf_class()
    treeviz.describes(Quantity)(lambda _: treeviz.Description("tensor", shape=(2, 3), dtype="bf16", bytes=12))
    table = walk_and_compare([Quantity(jnp.ones(3))])
    assert table.headline == ("1 leaf", "6 elements", "12 B", "bf16 100 %")


@pytest.mark.parametrize(
    "describer, text",
    [
        (lambda _: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda _: None, "TypeError: a describer must return a treeviz.Description, not None"),
        (lambda _: treeviz.Description("modul"), "ValueError: there is no kind 'modul'; there are dict, list"),
        (lambda _: treeviz.Description(text=3), "TypeError: "),
        (lambda _: treeviz.Description(labels=["one", "two"]), "ValueError: zip() argument"),
        (lambda _: treeviz.Description(step=lambda _: 1 / 0), "ZeroDivisionError: division by zero"),
        (lambda _: sys.exit(), "SystemExit"),
    ],
)
def test_a_describer_that_raises_is_an_error_in_its_row_and_everything_is_still_there(describer, text):
    Box = node_class()
    treeviz.describes(Box)(describer)
    table = treeviz.walk({"a": Box(jnp.ones(2), unit="m"), "b": 1.0}, name="t")
    assert outline(table) == ["t dict dict", "  a node Box", "    .value array jax.Array", "  b scalar float"]
    (note,) = table[1].notes
    assert note.kind == "error" and f"the describer of this class raised: {text}" in note.text
    assert table.find("is:error") == [table[1]]


@pytest.mark.parametrize("describer", [lambda _: 1 / 0, lambda _: None, lambda _: treeviz.Description(shape=7)])
def test_a_describer_of_a_leaf_that_raises_is_an_error_in_its_row(describer):
    Quantity = leaf_class()
    treeviz.describes(Quantity)(describer)
    table = treeviz.walk([Quantity(), 1.0], name="t")
    assert outline(table) == ["t list list", "  [0] opaque Quantity", "  [1] scalar float"]
    assert [note.kind for note in table[1].notes] == ["error"]


def test_ctrl_c_passes_through_a_describer():
    Quantity = leaf_class()

    @treeviz.describes(Quantity)
    def _(leaf):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        treeviz.walk([Quantity()])


def test_what_a_describer_says_is_made_printable_and_bounded():
    Quantity = leaf_class()
    evil = "</script>\u202e\x00\ud800" + "x" * 10_000
    treeviz.describes(Quantity)(lambda _: treeviz.Description(type=evil, text=evil, dtype=evil, static=[(evil, evil)]))
    view = treeviz.render([Quantity()])
    facts = view.table[1].facts
    for text in (facts.type, facts.text, facts.dtype, *facts.static[0]):
        assert text.isprintable() and len(text) < 400
    view.html().encode()


@pytest.fixture
def library(monkeypatch):
    """A library that is not really there."""
    module = types.ModuleType("fake_library")
    module.__spec__ = ModuleSpec("fake_library", None)
    monkeypatch.setitem(sys.modules, "fake_library", module)
    return module


def test_a_library_whose_import_still_runs_is_looked_at_when_it_is_there(library):
    library.__spec__._initializing = True
    integrations.describes_from("fake_library", "Thing", "Missing")(lambda _: treeviz.Description(text="known"))
    integrations.load()
    Thing = library.Thing = leaf_class()
    assert [row.facts.text for row in treeviz.walk([Thing()]).leaves] == [""]
    library.__spec__._initializing = False
    assert [row.facts.text for row in treeviz.walk([Thing()]).leaves] == ["known"]


def test_another_version_of_a_library_without_the_class_is_no_trouble(library):
    library.Thing = "not a class any more"
    integrations.describes_from("fake_library", "Thing")(lambda _: treeviz.Description(text="known"))
    assert [row.kind for row in treeviz.walk([1.0])] == ["list", "scalar"]


def test_a_module_that_waits_for_its_first_use_is_left_waiting():
    program = """
import importlib.util, sys
spec = importlib.util.find_spec("optax") or importlib.util.find_spec("colorsys")
spec.loader = importlib.util.LazyLoader(spec.loader)
module = importlib.util.module_from_spec(spec)
sys.modules["optax"] = module
spec.loader.exec_module(module)
import treeviz
treeviz.render([1.0]).text()
print(type(module).__name__)
"""
    assert fresh_python(program).strip() == "_LazyModule"


def test_the_sharding_of_a_described_array_is_shown():
    Quantity, place = leaf_class(), jax.sharding.SingleDeviceSharding(jax.devices()[0])
    treeviz.describes(Quantity)(lambda _: treeviz.Description(shape=(2,), dtype="f4", bytes=8, sharding=place))
    (row,) = treeviz.walk([Quantity()]).leaves
    (array,) = treeviz.walk([jax.device_put(np.ones(2, np.float32), place)]).leaves
    assert (row["sharding"], row["device_bytes"]) == (array["sharding"], array["device_bytes"])


def test_without_optax_inspect_gradients_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "optax", None)
    with pytest.raises(ModuleNotFoundError, match="optax"):
        treeviz.inspect_gradients()


def test_a_leaf_whose_describer_gives_its_array_has_the_values_of_that_array():
    Quantity = leaf_class()
    Length = leaf_class()
    values = np.array([[1.0, -4.0], [np.nan, 0.0]], np.float32)
    facts = {"shape": (2, 2), "dtype": "float32", "bytes": 16}
    treeviz.describes(Quantity)(lambda leaf: treeviz.Description("variable", **facts, array=leaf.array))
    treeviz.describes(Length)(lambda leaf: treeviz.Description("variable", **facts))
    alike, shape = jnp.asarray(values), jax.ShapeDtypeStruct((2, 2), jnp.float32)
    view = treeviz.render(
        {"a": Quantity(values), "b": Quantity(alike), "c": Length(values), "d": Quantity(shape), "e": shape}, stats=True
    )
    a, b, c = (view.table[row] for row in (1, 2, 3))
    for row in (a, b):
        assert [row[name] for name in ("min", "max", "mean", "zeros", "nan")] == [-4, 1, -1, 1, 1]
    assert np.isnan(c["nan"])
    assert [note.text for row in (3, 4, 5) for note in view.table.notes.get(row, ())] == [
        "an array of another library: it is not read",
        "no values: only its shape is known",
    ]
    assert [row.keystr for row in view.find("nan")] == ["['a']", "['b']"]
    assert getattr(alike, "_npy_value", None) is None


def test_two_descriptions_that_give_only_a_kind_and_an_array_are_not_compared():
    Quantity = leaf_class()
    treeviz.describes(Quantity)(lambda leaf: treeviz.Description("variable", array=leaf.array))
    table = walk([Quantity(np.ones(2))])
    assert table[1].kind == "variable" and table.notes == {}
