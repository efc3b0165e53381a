"""The keys of children, and the attributes that the fields of a node are."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import tree_util

import treeviz
from treeviz.tree.level import one_level

pytestmark = pytest.mark.oldest_jax


class Named:
    """A node with one child under a key of any kind."""

    def __init__(self, key: Any) -> None:
        self.key = key


class Text:
    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return self.text


tree_util.register_pytree_with_keys(Named, lambda n: ([(n.key, 1.0)], None), lambda _, kids: Named(None))

LONG = "layer_" * 500
KEYS = [
    LONG,
    LONG.encode(),
    10**300,
    -(10**25),
    tuple(range(200)),
    frozenset(range(100)),
    ("a" * 300, 3),
    "",
    " ",
    "'\"",
]


@pytest.mark.parametrize("key", KEYS, ids=lambda key: f"{type(key).__name__} of {len(str(key))}")
def test_the_key_path_of_a_dict_is_that_of_jax(key):
    (row,) = treeviz.walk({key: 1.0}).leaves
    ((path, _),) = tree_util.tree_flatten_with_path({key: 1.0})[0]
    assert row.keystr == tree_util.keystr(path)
    assert len(row.label) < 250
    assert eval(row.expression, {"tree": {key: 1.0}, "treeviz": treeviz}) == 1.0


@pytest.mark.parametrize("key", [tree_util.GetAttrKey(LONG), tree_util.DictKey(LONG), Text(LONG), Text("")], ids=str)
def test_the_key_path_of_a_custom_node_is_that_of_jax(key):
    (row,) = treeviz.walk(Named(key)).leaves
    ((path, _),) = tree_util.tree_flatten_with_path(Named(key))[0]
    assert row.keystr == tree_util.keystr(path)
    assert 0 < len(row.label) < 250


def test_a_key_of_a_million_characters_is_cut():
    (row,) = treeviz.walk({"x" * 10**6: 1.0}).leaves
    assert len(row.keystr) < 10_100
    assert row.keystr.endswith("x…]")


def test_characters_that_cannot_be_printed_are_escaped_in_a_key_path():
    (row,) = treeviz.walk(Named(tree_util.GetAttrKey("a\x1b[31m"))).leaves
    assert row.keystr == r".a\x1b[31m"


@pytest.mark.parametrize("blank", ["", " ", "  ", "\u2800", "\u3164", "\u200b", "\xa0", "\t\n", " end", "end "])
@pytest.mark.parametrize("of", [str, tree_util.GetAttrKey, Text])
def test_a_key_that_would_be_blank_or_hide_its_ends_is_in_quotes_or_escaped(blank, of):
    tree = {blank: 1.0} if of is str else Named(of(blank))
    label = treeviz.walk(tree)[1].label
    assert label.removeprefix(".") == (f"'{blank}'" if blank.isprintable() else blank.encode("unicode_escape").decode())


def test_a_blank_key_is_in_every_view():
    view = treeviz.render({"": 1.0, "a": 2.0})
    assert "├─ ''  float 1.0" in view.text()
    assert "    '': float 1.0\n" in view.html()


def test_a_tree_without_a_name_is_called_a_tree():
    assert treeviz.walk([1.0], name="")[1].expression == "tree[0]"


@pytest.mark.oldest_jax
def test_dicts_with_the_keys_of_others_in_another_order_or_of_another_type_have_their_own():
    orders = [("b", "a", "c"), ("c", "a", "b"), ("b", "a", "c"), (1, 0), (True, False), (0, 1), (1, 0), (1.0, 0.0)]
    apart = ["".join(["long", "er"]), "longer", "a"]  # two objects for one text
    tree = [{key: (i, key) for key in keys} for i, keys in enumerate(orders)]
    tree += [{apart[0]: 1, "a": 2}, {apart[1]: 3, "a": 4}, {"a": 5, apart[0]: 6}, {"a": 7}, {}]
    flat, _ = tree_util.tree_flatten_with_path(tree)
    rows = [*treeviz.walk(tree).leaves]
    assert [row.keystr for row in rows] == [tree_util.keystr(path) for path, _ in flat]
    assert [row.facts.text for row in rows] == [repr(leaf) for _, leaf in flat]


@pytest.mark.oldest_jax
def test_a_dict_that_grew_between_two_that_are_alike_has_all_its_keys():
    tree = [{"b": 1, "a": 2}, {"b": 3, "a": 4, "c": 5}, {"b": 6, "a": 7}]
    for budget in (3, 5, 7, 100):
        leaves = [row.keystr for row in treeviz.tree.walk.walk(tree, max_rows=budget).leaves]
        assert set(leaves) <= {tree_util.keystr(path) for path, _ in tree_util.tree_flatten_with_path(tree)[0]}


# What is a child, what is static and what is dropped, told by identity. Nothing is claimed in doubt.


def register(cls: Any, flatten: Any) -> None:
    tree_util.register_pytree_node(cls, flatten, lambda _, kids: None)


def by_hand(flatten: Callable[[Any], tuple], fields: str = "w n cache", keys: tuple | None = None, **of_class) -> type:
    """A dataclass that is registered by hand."""
    cls: Any = dataclass(type("ByHand", (), {"__annotations__": dict.fromkeys(fields.split(), Any), **of_class}))
    if keys is None:
        register(cls, flatten)
    else:
        named = [tree_util.GetAttrKey(key) for key in keys]

        def with_keys(node):
            kids, aux = flatten(node)
            return list(zip(named, kids, strict=True)), aux

        tree_util.register_pytree_with_keys(cls, with_keys, lambda _, kids: None)
    return cls


def static(tree: Any) -> dict[str, str]:
    return dict(treeviz.walk(tree)[0].facts.static)


def labels(tree: Any) -> list[str]:
    return [row.label for row in treeviz.walk(tree)[0].children]


W = np.ones(3, np.float32)
OTHER = np.zeros(2, np.float32)


@pytest.mark.parametrize(
    ("flatten", "expected"),
    [
        (lambda d: ((d.w,), (d.n, d.cache)), {"n": "1000000", "cache": "[7]"}),
        (lambda d: ((d.w,), [d.cache, d.n]), {"n": "1000000", "cache": "[7]"}),
        (lambda d: ((d.w,), {"x": d.n}), {"n": "1000000", "cache (dropped)": "[7]"}),
        (lambda d: ((d.w,), d.n), {"n": "1000000", "cache (dropped)": "[7]"}),
        (lambda d: ((d.w,), None), {"n (dropped)": "1000000", "cache (dropped)": "[7]"}),
        (lambda d: ((d.w, d.cache), (d.n,)), {"n": "1000000"}),
        # What is no field stands there as it is; then a field may be in it in another form.
        (lambda d: ((d.w,), (d.n + 1, d.cache)), {"cache": "[7]", "aux[0]": "1000001"}),
        (lambda d: ((d.w,), (d.n, tuple(d.cache))), {"aux": "(1000000, (7,))"}),
        (lambda d: ((d.w,), (tuple(d.cache),)), {"aux": "((7,),)"}),
        # A child that is no field may be a field in another form.
        (lambda d: ((d.w * 2,), (d.n,)), {"n": "1000000"}),
    ],
)
@pytest.mark.parametrize("with_keys", [False, True])
def test_children_of_a_dataclass_registered_by_hand_are_never_called_static(flatten, expected, with_keys):
    n_kids = len(flatten(node := by_hand(flatten)(W, 10**6, [7]))[0])
    if with_keys:
        node = by_hand(flatten, keys=("w", "cache")[:n_kids])(W, 10**6, [7])
        if flatten(node)[0][0] is not W:
            expected = {**expected, "cache (dropped)": "[7]"}  # that the child is `w` is said by its key
    assert static(node) == expected


def test_of_a_field_without_value_nothing_is_said_where_the_auxiliary_data_is_none():
    node = by_hand(lambda d: ((d.w,), d.n))(W, None, [7])
    assert static(node) == {"cache (dropped)": "[7]"}


def test_an_array_in_a_dropped_field_is_lost_and_compiles_nothing_again():
    node = by_hand(lambda d: ((d.w,), d.n))(W, 10**6, OTHER)
    (note,) = treeviz.walk(node).notes[0]
    assert note.text == "1 hidden array (8 B), which JAX loses: `tree_flatten` drops it"


def test_a_dataclass_registered_as_jax_documents_it_has_no_static_children():
    @tree_util.register_pytree_node_class
    @dataclass
    class Documented:
        x: Any
        y: Any

        def tree_flatten(self):
            return (self.x, self.y), None

        @classmethod
        def tree_unflatten(cls, _, children):
            return cls(*children)

    assert static(Documented(jnp.ones(3), jnp.ones(2))) == {}
    assert static(Documented(1, None)) == {}
    assert static(Documented({"a": 1}, [])) == {}


@pytest.mark.parametrize("value", [None, True, 3, "x"])
def test_an_object_that_python_shares_by_itself_is_no_proof(value):
    # the child is `w` or `n`: no field is called static, nor dropped
    assert static(by_hand(lambda d: ((d.w,), None), "w n")(value, value)) == {}
    # `n` or `cache` is in the auxiliary data: it is shown without a name
    assert static(by_hand(lambda d: ((d.w,), (d.n,)))(W, value, value)) == {"aux": f"({value!r},)"}
    # both are
    node = by_hand(lambda d: ((d.w,), (d.n, d.cache)))(W, value, value)
    assert static(node) == {"n": repr(value), "cache": repr(value)}


@pytest.mark.parametrize("value", ["x", None, 3, (), (1, 2), W], ids=str)
def test_a_dropped_field_that_is_one_object_with_a_static_one_is_told_from_it(value):
    @functools.partial(tree_util.register_dataclass, data_fields=["w"], meta_fields=["name"], drop_fields=["cache"])
    @dataclass
    class Dropping:
        name: Any
        w: Any
        cache: Any = field(default=None, init=False)

    node = Dropping(value, 1.0)
    node.cache = value
    assert static(node).keys() == {"name", "cache (dropped)"}


@pytest.mark.parametrize("make", ["raises", "deletes"])
def test_where_a_copy_cannot_be_flattened_nothing_is_claimed(make):
    def flatten(node):
        return (node.w,), (node.n.strip(),)

    def deleted(self):
        raise AssertionError("a copy was made")

    of_class: Any = {"__del__": deleted} if make == "deletes" else {}
    node = by_hand(flatten, keys=("w",), **of_class)(W, "x", "x")
    assert static(node) == {"aux": "('x',)"}
    assert not treeviz.walk(node)[0].notes
    if make == "deletes":
        type(node).__del__ = lambda self: None  # type: ignore[attr-defined]


def test_auxiliary_data_of_a_named_tuple_registered_by_hand_is_shown():
    class Packed(NamedTuple):
        packed: Any
        treedef: Any
        n: int

    register(Packed, lambda p: ((p.packed,), (p.treedef, 5)))
    node = Packed((W, OTHER), tree_util.tree_structure({"bias": 1, "kernel": 2}), 3)
    assert static(node) == {"treedef": "PyTreeDef({'bias': *, 'kernel': *})", "aux[1]": "5"}
    assert labels(node) == [".packed = [<flat index 0>]"]


@pytest.mark.parametrize(
    ("make", "attributes"),
    [
        (lambda: tree_util.Partial(jnp.sum, W, axis=0), ["args", "keywords"]),
        (lambda: jax.vjp(lambda x: x * x, jnp.float32(2))[1], None),
        (
            lambda: jax.scipy.stats.gaussian_kde(jnp.arange(5.0)),
            ["neff", "dataset", "weights", "covariance", "inv_cov"],
        ),
        (lambda: _sparse(), ["data", "indices"]),
    ],
    ids=["Partial", "vjp", "kde", "BCOO"],
)
def test_children_registered_without_keys_have_the_name_of_their_attribute_beside_the_key_of_jax(make, attributes):
    node = make()
    table = treeviz.walk(node)
    paths = [tree_util.keystr(path) for path, _ in tree_util.tree_flatten_with_path(node)[0]]
    assert [row.keystr for row in table.leaves] == paths
    children = list(table[0].children)
    for row, (_, child) in zip(children, one_level(node)[0], strict=True):
        assert eval(row.expression, {"tree": node, "treeviz": treeviz}) is child
    if attributes is not None:
        assert [row.label for row in children] == [
            f".{n} = {row.keystr}" for row, n in zip(children, attributes, strict=True)
        ]
        assert [row.expression for row in children] == [f"tree.{name}" for name in attributes]
        assert table.find(attributes[-1])[-1].keystr.startswith(children[-1].keystr)
    assert not any(isinstance(getattr(node, name, None), jax.Array) for name in static(node))


def _sparse() -> Any:
    from jax.experimental.sparse import BCOO

    return BCOO.fromdense(jnp.eye(3))


def _namespace(**attributes: Any) -> Any:
    class Namespace:
        def __init__(self) -> None:
            vars(self).update(attributes)

    register(Namespace, lambda n: ((W, OTHER), None))
    return Namespace()


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({"w": W, "o": OTHER}, [".w", ".o"]),
        ({"_w": W, "w": W, "o": OTHER}, [".w", ".o"]),
        ({"_w": W, "_o": OTHER}, ["._w", "._o"]),
        ({"w": W, "tied": W, "o": OTHER}, ["", ".o"]),
        ({"w": W.copy(), "lambda": OTHER}, ["", ""]),
    ],
)
def test_an_attribute_is_named_where_it_is_the_only_one(attributes, expected):
    flat = ["[<flat index 0>]", "[<flat index 1>]"]
    assert labels(_namespace(**attributes)) == [
        f"{name} = {key}" if name else key for key, name in zip(flat, expected, strict=True)
    ]


def test_a_property_is_not_run_to_name_a_child():
    class Shadowed:
        @property
        def w(self):
            raise AssertionError

        @w.setter
        def w(self, value):
            vars(self)["w"] = value

    register(Shadowed, lambda n: ((vars(n)["w"],), None))
    node = Shadowed()
    node.w = W
    assert labels(node) == ["[<flat index 0>]"]


def test_slots_and_keys_of_other_numbers_are_matched():
    class Slots:
        __slots__ = ("a", "b", "unset")

    register(Slots, lambda s: ((s.b, s.a), None))
    node = Slots()
    node.a, node.b = W, OTHER
    assert labels(node) == [".b = [<flat index 0>]", ".a = [<flat index 1>]"]

    class Odd(list):
        pass

    keys = [tree_util.FlattenedIndexKey(7), tree_util.FlattenedIndexKey(1)]
    tree_util.register_pytree_with_keys(Odd, lambda odd: (list(zip(keys, odd, strict=True)), None), lambda _, k: Odd(k))
    assert labels(Odd([1.0, 2.0])) == ["[<flat index 7>]", "[<flat index 1>]"]
