"""An opaque leaf shows what it holds: its fields and items, marked as invisible to JAX, in every view."""

from __future__ import annotations

import collections
import json
import time
import types
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sample_nodes import Special
from sample_trees import MyDict, MyList

import treeviz

pytestmark = pytest.mark.oldest_jax


def inside(leaf: Any) -> dict[str, str]:
    (row,) = treeviz.walk(leaf)
    assert row.is_leaf and row["leaves"] == 1
    return dict(row.facts.inside)


@dataclass
class Config:
    lr: float = 0.1
    name: str = "adam"
    inner: Any = None
    _cache: Any = field(default=None, repr=False)


@dataclass(slots=True)
class Slotted:
    zeta: Any
    alpha: Any


class NeverSet:
    __slots__ = ("never", "x")

    def __init__(self) -> None:
        self.x = 1


@pytest.mark.parametrize(
    ("leaf", "shown"),
    [
        (Special(1, "2"), {"x": "1", "y": "'2'"}),
        (Config(inner=Config(lr=1.0)), {"lr": "0.1", "name": "'adam'", "_cache": "None"}),
        (Slotted(np.ones(2), 3), {"zeta": "float64[2]", "alpha": "3"}),
        (NeverSet(), {"x": "1"}),
        (SimpleNamespace(a=1, b=[1, {"c": np.ones(2)}]), {"a": "1", "b": "[1, {'c': float64[2]}]"}),
        (MyDict(w=jnp.ones(2), n=1), {"['w']": "float32[2]", "['n']": "1"}),
        (MyList([1, None]), {"[0]": "1", "[1]": "None"}),
        (collections.deque([1, 2], maxlen=3), {"[0]": "1", "[1]": "2"}),
        (collections.Counter("aab"), {"['a']": "2", "['b']": "1"}),
        (collections.UserDict(w=1), {"data": "{'w': 1}"}),
        (types.MappingProxyType({"w": 1}), {"['w']": "1"}),
        ({"b": 1}.keys(), {"[0]": "'b'"}),
        (ValueError("no", 3), {"args": "('no', 3)"}),
        (object(), {}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_fields_and_items_of_an_opaque_leaf_are_shown(leaf, shown):
    found = inside(leaf)
    assert shown.items() <= found.items()
    assert len(found) == len(shown) + ("inner" in found)


@pytest.mark.parametrize(
    ("leaf", "text"),
    [
        (range(1, 9, 2), "range(1, 9, 2)"),
        (slice(None, Special(1, 2)), "slice(None, <sample_nodes.Special>, None)"),
        ({3}, "{3}"),
        (memoryview(b"ab"), "2 bytes"),
        (np, "module numpy"),
    ],
)
def test_what_a_short_text_says_is_not_said_again(leaf, text):
    (row,) = treeviz.walk(leaf)
    assert (row.facts.text, row.facts.inside) == (text, ())


def test_objects_within_a_field_are_written_with_their_own_fields():
    assert inside(Config(inner=Config(lr=1.0)))["inner"] == "Config(lr=1.0, name='adam', inner=None, … 1 more)"
    assert inside(SimpleNamespace(a=MyDict(k=(1,))))["a"] == "MyDict({'k': (1,)})"

    class Point(NamedTuple):
        x: Any

    assert inside(SimpleNamespace(a=Point(1)))["a"] == "Point(x=1)"


@pytest.mark.parametrize("library", ["attrs", "pydantic"])
def test_classes_of_other_libraries_show_their_fields_in_order_and_nothing_of_the_librarys(library):
    module = pytest.importorskip(library)
    if library == "attrs":
        leaf = module.make_class("Model", ["w", "n"], slots=True)(np.ones(2), 3)
    else:
        leaf = module.create_model("Model", w=(Any, None), n=(int, 3))(w=np.ones(2))
    assert list(inside(leaf).items()) == [("w", "float64[2]"), ("n", "3")]


def test_a_data_frame_shows_its_rows_and_the_dtypes_of_its_columns():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": [1.5, 2.5], "b": ["x", "y"]}).astype({"b": "category"})
    (row,) = treeviz.walk(frame)
    assert (row.kind, row.type, row.facts.text) == ("opaque", "DataFrame", "2 rows: a float64, b category")
    (row,) = treeviz.walk(frame["a"])
    assert (row.kind, row.type, row.shape, row.dtype) == ("tensor", "Series", (2,), "float64")


def test_a_large_object_shows_its_first_fields_and_counts_the_others():
    found = inside(SimpleNamespace(**{f"w{i}": i for i in range(1000)}))
    assert list(found.items())[14:] == [("w14", "14"), ("w15", "15"), ("…", "984 more")]
    assert inside(MyDict(dict.fromkeys(range(50_000))))["…"] == "49,984 more"
    found = inside(SimpleNamespace(**{"k" * i: "v" * 1000 for i in range(1, 40)}))
    assert sum(len(name) + len(text) for name, text in found.items()) < 800


def test_the_text_of_one_walk_is_limited_and_what_is_left_out_is_counted(monkeypatch):
    monkeypatch.setattr("treeviz.tree.opaque._WALK_TEXT", 100)
    rows = list(treeviz.walk([SimpleNamespace(a="x" * 10, b=i) for i in range(50)]).leaves)
    assert dict(rows[0].facts.inside) == {"a": repr("x" * 10), "b": "0"}
    assert rows[-1].facts.inside == (("…", "2 more"),)


def test_a_page_of_thousands_of_opaque_leaves_stays_small():
    leaves = [SimpleNamespace(**{f"field_{i}_{j}": f"{i * j:x}" * 8 for j in range(16)}) for i in range(1_200)]
    assert len(treeviz.render(leaves).html()) < 600_000


class Explosive:
    """Whose every method and property fails the test."""

    def __init__(self) -> None:
        vars(self)["w"] = MyDict(n=1)

    def __getattribute__(self, name):
        raise AssertionError(name)

    __repr__ = __eq__ = __hash__ = __len__ = __iter__ = __str__ = __bool__ = __getattribute__  # type: ignore[assignment]

    @property
    def lazy(self):
        raise AssertionError("a property")


def test_looking_inside_runs_no_code_of_the_class():
    leaf = object.__new__(Explosive)
    object.__setattr__(leaf, "w", MyDict(n=1))
    assert inside(leaf) == {"w": "MyDict({'n': 1})"}
    assert inside(SimpleNamespace(below=leaf)) == {"below": "Explosive(w=MyDict({'n': 1}))"}


def test_an_object_that_contains_itself_ends():
    leaf = MyList()
    leaf.append(leaf)
    assert inside(leaf)["[0]"].startswith("MyList([MyList([MyList([MyList")


def test_a_mock_is_no_array_whatever_attribute_it_makes_up():
    for leaf in (mock.MagicMock(), mock.Mock(), mock.MagicMock(spec=np.ndarray)):
        (row,) = treeviz.walk(leaf)
        assert (row.kind, row.shape, row.dtype, row["bytes"]) == ("opaque", None, "", 0)


def test_every_view_tells_what_is_inside():
    view = treeviz.render({"c": Config(), "d": {1: 2.0}})
    assert view.text().splitlines()[-3].endswith("  inside: lr=0.1, name='adam', inner=None, _cache=None")
    row = json.loads(view.json())["rows"][1]
    assert row["inside"] == [["lr", "0.1"], ["name", "'adam'"], ["inner", "None"], ["_cache", "None"]]
    assert "inside: lr=0.1" in view._repr_html_()
    assert [row.keystr for row in view.table.find("adam")] == ["['c']"]


def test_what_is_inside_counts_for_nothing_in_the_numbers_of_the_tree():
    table = treeviz.walk([SimpleNamespace(w=np.ones((100, 100))), jnp.ones(2)])
    assert (table[0]["bytes"], table[0]["elements"], table[0]["leaves"]) == (8, 2, 2)


# Objects with a shape and a dtype


def leaf_facts(leaf: Any) -> tuple:
    (row,) = treeviz.walk(leaf)
    return row.kind, row.type, row.shape, row.dtype, row["elements"], row["bytes"]


class Stored:
    def __init__(self, shape: Any, dtype: Any) -> None:
        self.shape, self.dtype = shape, dtype


@pytest.mark.parametrize(
    ("dtype", "name", "itemsize"),
    [
        (np.dtype("float32"), "float32", 4),
        (jnp.dtype("bfloat16"), "bfloat16", 2),
        (jnp.bfloat16, "bfloat16", 2),
        (np.int8, "int8", 1),
        ("float16", "float16", 2),
        ("<f8", "<f8", 8),
        ("string", "string", 0),
        (np.dtype(object), "object", 8),
    ],
)
def test_any_object_with_a_shape_and_a_dtype_is_a_leaf_with_both(dtype, name, itemsize):
    assert leaf_facts(Stored((2, 3), dtype)) == (
        "shape only",
        "Stored",
        (2, 3),
        name,
        6 * (name not in ("string", "object")),
        6 * itemsize,
    )
    assert leaf_facts(Stored([np.int64(2), 3], dtype))[2:4] == ((2, 3), name)


@pytest.mark.parametrize(
    ("shape", "shown", "n"), [((), (), 1), ((None, 3), ("?", 3), 0), ((float("nan"), 3), ("?", 3), 0), ((0,), (0,), 0)]
)
def test_a_size_that_is_not_known_is_a_question_mark(shape, shown, n):
    assert leaf_facts(Stored(shape, "float32"))[2:] == (shown, "float32", n, 4 * n)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((2, -1), "float32"),
        (3, "float32"),
        ("23", "float32"),
        ((1, True), "float32"),
        ((1,) * 65, "float32"),
        ((2, 3), "<script>"),
        ((2, 3), "x" * 41),
        ((2, 3), None),
        ((2, 3), object()),
        (mock.MagicMock(), mock.MagicMock()),
        ({2: 3}, "float32"),
    ],
)
def test_what_is_no_shape_or_no_dtype_makes_no_array(shape, dtype):
    kind, _, shown, *_ = leaf_facts(Stored(shape, dtype))
    assert (kind, shown) == ("opaque", None)


class Wrapper:
    """An array in a class that JAX does not know, as for quantized weights."""

    def __init__(self, q: Any) -> None:
        self.q = q

    @property
    def shape(self):
        return tuple(self.q.shape)

    @property
    def dtype(self):
        return self.q.dtype


def test_a_wrapper_of_an_array_shows_its_shape_and_that_jax_does_not_see_the_array():
    table = treeviz.walk(Wrapper(np.ones((2, 3), np.int8)))
    assert leaf_facts(Wrapper(np.ones((2, 3), np.int8))) == ("tensor", "Wrapper", (2, 3), "int8", 6, 6)
    assert [note.kind for note in table[0].notes] == ["hidden"]
    assert table[0].facts.inside == (("q", "int8[2,3]"),)


def forever(_):
    while True:
        pass


def asleep(_):
    time.sleep(10_000)


def chained(self):
    return self.lazy.shape


def by_method(self):
    return self.compute()


def failing(self):
    return (1 // 0,)


@pytest.mark.parametrize("shape", [forever, asleep, chained, by_method, failing])
def test_a_property_that_hangs_or_raises_is_not_waited_for(shape):
    cls = type("Slow", (), {"shape": property(shape), "lazy": property(forever), "compute": asleep, "dtype": "f4"})
    assert leaf_facts(cls())[0] == "opaque"


def test_an_attribute_that_is_made_up_on_demand_is_none():
    class Anything:
        dtype = "float32"

        def __getattr__(self, name):
            raise AssertionError(name)

        @property
        def shape(self):
            return self.made_up

    assert leaf_facts(Anything())[0] == "opaque"


def test_what_jax_lowers_shows_the_avals_of_its_arguments_and_which_are_donated():
    info = jax.jit(lambda x: x, donate_argnums=0).lower(jax.ShapeDtypeStruct((2, 3), jnp.float32)).args_info
    (row,) = treeviz.walk(info).leaves
    assert (row.kind, row.type, row.shape, row.dtype) == ("shape only", "ArgInfo", (2, 3), "float32")
    assert row.facts.inside == (("donated", "True"),)


def test_the_metadata_of_a_checkpoint_counts_like_its_arrays():
    pytest.importorskip("orbax.checkpoint")
    from orbax.checkpoint.metadata import ArrayMetadata

    leaf = ArrayMetadata(name="w", directory=None, shape=(3, 4), sharding=None, dtype=jnp.dtype("bfloat16"))
    assert leaf_facts(leaf) == ("shape only", "ArrayMetadata", (3, 4), "bfloat16", 12, 24)
