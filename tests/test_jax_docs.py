"""Every example of JAX's "Working with pytrees" and "Custom pytree nodes", as the user sees it here."""

from __future__ import annotations

import collections
import functools
import itertools
import re
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import register_pytree_node, register_pytree_node_class, tree_flatten, tree_unflatten

import treeviz

pytestmark = pytest.mark.oldest_jax


def lines(tree: Any, **options) -> list[str]:
    """What a user reads: the key, what it is, the number of leaves, and what is worth knowing."""
    table = treeviz.render(tree, **options).table
    n_leaves = np.array([facts.leaves for facts in table.facts])
    column = treeviz.Column("n", "leaves", n_leaves, table.fact_codes, format="count", rollup="sum")
    shown = treeviz.render(tree, columns=(column,), **options).text(fold=False).splitlines()
    rows = shown[2 if shown[1].startswith(" ") else 1 :]  # without the headline and the titles
    return [re.sub(r"(?<=[^ │]) {2,}(?![├└│])", "  ", line).rstrip() for line in rows]


def headline(tree: Any, **options) -> str:
    return treeviz.render(tree, **options).text().splitlines()[0]


class TestWorkingWithPytrees:
    def test_leaves_are_told_from_elements(self):
        assert lines([1, "a", object()]) == [
            "tree  list  3",
            "├─ [0]  int 1  1",
            "├─ [1]  str 'a'  1",
            "└─ [2]  object  1",
        ]
        assert lines((1, (2, 3), ())) == [
            "tree  tuple  3",
            "├─ [0]  int 1  1",
            "├─ [1]  tuple  2",
            "│  ├─ [0]  int 2  1",
            "│  └─ [1]  int 3  1",
            "└─ [2]  tuple  empty",
        ]
        assert headline([1, {"k1": 2, "k2": (3, 4)}, 5]) == "tree · 5 leaves"
        assert headline({"a": 2, "b": (2, 3)}) == "tree · 3 leaves"

    def test_an_array_is_one_leaf_with_many_elements(self):
        assert lines(jnp.array([1, 2, 3])) == ["tree  int32[3]  1"]
        assert headline(jnp.array([1, 2, 3])).startswith("tree · 1 leaf · 3 elements · 12 B · int32 100 %")

    def test_a_map_over_trees_keeps_the_structure_that_is_shown(self):
        list_of_lists = [[1, 2, 3], [1, 2], [1, 2, 3, 4]]
        doubled = jax.tree_util.tree_map(lambda x: x * 2, list_of_lists)
        added = jax.tree_util.tree_map(lambda x, y: x + y, list_of_lists, list_of_lists)
        assert lines(doubled) == lines(added)
        assert "│  └─ [2]  int 6  1" in lines(doubled)
        assert [row["leaves"] for row in treeviz.walk(list_of_lists)[0].children] == [3, 2, 4]

    def test_the_shapes_of_a_model_and_its_gradients_are_there_without_a_map(self):
        def init_mlp_params(layer_widths):
            return [
                {"weights": np.zeros((n_in, n_out)), "biases": np.ones((n_out,))}
                for n_in, n_out in itertools.pairwise(layer_widths)
            ]

        def forward(params, x):
            *hidden, last = params
            for layer in hidden:
                x = jax.nn.relu(x @ layer["weights"] + layer["biases"][None])
            return x @ last["weights"] + last["biases"][None]

        params = init_mlp_params([1, 128, 128, 1])
        assert lines(params, name="params") == [
            "params  list  6",
            "├─ [0]  dict  2",
            "│  ├─ biases  float64[128] numpy  1",
            "│  └─ weights  float64[1,128] numpy  1",
            "├─ [1]  dict  2",
            "│  ├─ biases  float64[128] numpy  1",
            "│  └─ weights  float64[128,128] numpy  1",
            "└─ [2]  dict  2",
            "   ├─ biases  float64[1] numpy  1",
            "   └─ weights  float64[128,1] numpy  1",
        ]
        params = jax.tree_util.tree_map(jnp.float32, params)
        x = jnp.ones((8, 1))
        grads = jax.grad(lambda params: jnp.mean((forward(params, x) - x) ** 2))(params)
        updated = jax.jit(lambda p, g: jax.tree_util.tree_map(lambda p, g: p - 1e-4 * g, p, g))(params, grads)
        assert lines(grads) == lines(params) == lines(updated)
        assert headline(grads, name="grads").startswith("grads · 6 leaves · 16,897 elements · 67.6 kB · float32 100 %")

    def test_prefixes_such_as_in_axes_are_trees_too(self):
        assert lines((None, {"k1": None, "k2": 0})) == [
            "tree  tuple  1",
            "├─ [0]  None",
            "└─ [1]  dict  1",
            "   ├─ k1  None",
            "   └─ k2  int 0  1",
        ]

    def test_key_paths(self):
        ATuple = collections.namedtuple("ATuple", ("name",))
        tree = [1, {"k1": 2, "k2": (3, 4)}, ATuple("foo")]
        assert lines(tree) == [
            "tree  list  5",
            "├─ [0]  int 1  1",
            "├─ [1]  dict  3",
            "│  ├─ k1  int 2  1",
            "│  └─ k2  tuple  2",
            "│     ├─ [0]  int 3  1",
            "│     └─ [1]  int 4  1",
            "└─ [2]  ATuple  1",
            "   └─ .name  str 'foo'  1",
        ]
        shown = [f"tree{row.keystr}" for row in treeviz.walk(tree).leaves]
        assert shown == ["tree[0]", "tree[1]['k1']", "tree[1]['k2'][0]", "tree[1]['k2'][1]", "tree[2].name"]

    def test_a_shape_that_was_taken_for_a_leaf_is_seen_to_be_a_node(self):
        shapes = jax.tree_util.tree_map(lambda x: x.shape, [jnp.zeros((2, 3)), jnp.zeros((3, 4))])
        assert lines(shapes) == [
            "tree  list  4",
            "├─ [0]  tuple  2",
            "│  ├─ [0]  int 2  1",
            "│  └─ [1]  int 3  1",
            "└─ [1]  tuple  2",
            "   ├─ [0]  int 3  1",
            "   └─ [1]  int 4  1",
        ]
        ones = jax.tree_util.tree_map(jnp.ones, shapes)
        assert "│  ├─ [0]  float32[2]  1" in lines(ones)
        # the page's way out: a shape that is an array is a leaf
        assert lines([np.array((2, 3))]) == ["tree  list  1", "└─ [0]  int64[2] numpy  1"]

    def test_none_is_the_absence_of_a_leaf_unless_it_is_declared_one(self):
        nones = [None, None, None]
        assert headline(nones) == "tree · 0 leaves"
        assert lines(nones)[1:] == ["├─ [0]  None", "├─ [1]  None", "└─ [2]  None"]
        assert headline(nones, is_leaf=lambda x: x is None) == "tree · 3 leaves"

    def test_a_class_that_validates_can_be_shown_whatever_is_in_it(self):
        class MyTree:
            def __init__(self, a):
                self.a = jnp.asarray(a)

        register_pytree_node(MyTree, lambda tree: ((tree.a,), None), lambda _, args: MyTree(*args))
        tree = MyTree(jnp.arange(5.0))
        assert lines(tree) == ["tree  MyTree  1", "└─ .a = [<flat index 0>]  float32[5]  1"]

    def test_the_jacobian_of_a_tree_is_a_tree_of_trees(self):
        class Pair(NamedTuple):
            a: Any

        jacobian = jax.jacobian(lambda x: x)(Pair(jnp.arange(2.0)))
        assert lines(jacobian) == ["tree  Pair  1", "└─ .a  Pair  1", "   └─ .a  float32[2,2]  1"]

    def test_a_list_of_trees_and_the_tree_of_lists(self):
        episode_steps = [{"t": 1, "obs": 3}, {"t": 2, "obs": 4}]
        transposed = jax.tree_util.tree_map(lambda *xs: list(xs), *episode_steps)
        assert lines(episode_steps)[:3] == ["tree  list  4", "├─ [0]  dict  2", "│  ├─ obs  int 3  1"]
        assert lines(transposed) == [
            "tree  dict  4",
            "├─ obs  list  2",
            "│  ├─ [0]  int 3  1",
            "│  └─ [1]  int 4  1",
            "└─ t  list  2",
            "   ├─ [0]  int 1  1",
            "   └─ [1]  int 2  1",
        ]
        outer = jax.tree_util.tree_structure([0 for _ in episode_steps])
        inner = jax.tree_util.tree_structure(episode_steps[0])
        assert lines(jax.tree_util.tree_transpose(outer, inner, episode_steps)) == lines(transposed)


class Special:
    def __init__(self, x, y):
        self.x = x
        self.y = y


class RegisteredSpecial(Special):
    def __repr__(self):
        return f"RegisteredSpecial(x={self.x}, y={self.y})"


register_pytree_node(RegisteredSpecial, lambda v: ((v.x, v.y), None), lambda _, kids: RegisteredSpecial(*kids))


@register_pytree_node_class
class RegisteredSpecial2(Special):
    def tree_flatten(self):
        return (self.x, self.y), None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)


class MyOtherContainer(NamedTuple):
    name: str
    a: Any
    b: Any
    c: Any


@functools.partial(jax.tree_util.register_dataclass, data_fields=["a", "b", "c"], meta_fields=["name"])
@dataclass
class MyDataclassContainer:
    name: str
    a: Any
    b: Any
    c: Any


class TestCustomPytreeNodes:
    def test_an_unregistered_class_is_a_leaf(self):
        assert lines([Special(0, 1), Special(2, 4)]) == [
            "tree  list  2",
            "├─ [0]  Special  1  inside: x=0, y=1",
            "└─ [1]  Special  1  inside: x=2, y=4",
        ]

    def test_an_unregistered_class_with_trees_inside_says_what_jax_cannot_see(self):
        (_, line) = lines([Special(jnp.ones(3), {"w": np.ones((2, 2))})])
        assert line == (
            "└─ [0]  Special  1  2 hidden arrays (44 B): Special is not registered as a pytree node: "
            ".x float32[3], .y['w'] float64[2,2]  inside: x=float32[3], y={'w': float64[2,2]}"
        )

    @pytest.mark.parametrize("cls", [RegisteredSpecial, RegisteredSpecial2])
    def test_a_registered_class_is_a_node(self, cls):
        tree = jax.tree_util.tree_map(lambda x: x + 1, [cls(0, 1), cls(2, 4)])
        assert lines(tree) == [
            "tree  list  4",
            f"├─ [0]  {cls.__name__}  2",
            "│  ├─ [<flat index 0>]  int 1  1",
            "│  └─ [<flat index 1>]  int 2  1",
            f"└─ [1]  {cls.__name__}  2",
            "   ├─ [<flat index 0>]  int 3  1",
            "   └─ [<flat index 1>]  int 5  1",
        ]

    def test_the_name_in_a_named_tuple_is_a_leaf(self):
        assert lines([MyOtherContainer("Alice", 1, 2, 3)]) == [
            "tree  list  4",
            "└─ [0]  MyOtherContainer  4",
            "   ├─ .name  str 'Alice'  1",
            "   ├─ .a  int 1  1",
            "   ├─ .b  int 2  1",
            "   └─ .c  int 3  1",
        ]
        assert headline([MyOtherContainer("Alice", 1, 2, 3), MyOtherContainer("Bob", 4, 5, 6)]) == "tree · 8 leaves"

    def test_the_name_in_a_dataclass_is_static(self):
        assert lines([MyDataclassContainer("apple", 5.3, 1.2, jnp.zeros([4]))]) == [
            "tree  list  3",
            "└─ [0]  MyDataclassContainer  3  name='apple'",
            "   ├─ .a  float 5.3  1",
            "   ├─ .b  float 1.2  1",
            "   └─ .c  float32[4]  1",
        ]
        assert jax.jit(lambda x: x.a + x.b)(MyDataclassContainer("mdc", 1, 2, 3)) == 3

    def test_a_dataclass_that_is_not_registered_is_a_leaf(self):
        @dataclass
        class Unregistered:
            name: str
            a: Any

        assert lines(Unregistered("x", jnp.ones(2))) == [
            "tree  Unregistered  1  1 hidden array (8 B): Unregistered is not registered as a "
            "pytree node: .a float32[2]  inside: name='x', a=float32[2]"
        ]

    def test_a_treedef_is_the_tree_with_stars_for_leaves(self):
        flat, treedef = tree_flatten([1.0, (2.0, 3.0)])
        assert lines(treedef) == [
            "tree  list  3",
            "├─ [0]  *  1",
            "└─ [1]  tuple  2",
            "   ├─ [0]  *  1",
            "   └─ [1]  *  1",
        ]
        assert lines(tree_unflatten(treedef, [2 * x for x in flat]))[1] == "├─ [0]  float 2.0  1"

    def test_containers(self):
        Point = collections.namedtuple("Point", ["x", "y"])
        shown = {
            "a": (1.0, [2.0, 3.0]),
            "b": (1.0, {"b": 2.0, "a": 3.0}),
            "c": 1.0,
            "d": None,
            "e": jnp.zeros(2),
            "f": Point(1.0, 2.0),
        }
        assert lines(shown) == [
            "tree  dict  10",
            "├─ a  tuple  3",
            "│  ├─ [0]  float 1.0  1",
            "│  └─ [1]  list  2",
            "│     ├─ [0]  float 2.0  1",
            "│     └─ [1]  float 3.0  1",
            "├─ b  tuple  3",
            "│  ├─ [0]  float 1.0  1",
            "│  └─ [1]  dict  2",
            "│     ├─ a  float 3.0  1",
            "│     └─ b  float 2.0  1",
            "├─ c  float 1.0  1",
            "├─ d  None",
            "├─ e  float32[2]  1",
            "└─ f  Point  2",
            "   ├─ .x  float 1.0  1",
            "   └─ .y  float 2.0  1",
        ]

    def test_a_tree_with_a_shared_part_is_shown_as_the_tree_that_jax_makes_of_it(self):
        part = [jnp.ones(2)]
        assert lines((part, part)) == [
            "tree  tuple  2",
            "├─ [0]  list  1  occurs in 2 places",
            "│  └─ [0]  float32[2]  1",
            "└─ [1]  list  1  shared with [0]",
            "   └─ [0]  float32[2]  1",
        ]

    def test_a_reference_cycle_is_shown_where_jax_cannot_handle_it(self):
        tree: list = [1.0]
        tree.append(tree)
        assert lines(tree) == ["tree  list  1", "├─ [0]  float 1.0  1", "└─ [1]  list  cycle to tree"]


def test_a_closure_as_a_pytree_shows_its_function_and_what_it_captured():
    def loss(scale, x):
        return scale * x

    tree = jax.tree_util.Partial(loss, jnp.ones(3))
    line = loss.__code__.co_firstlineno
    node, *rest = lines(tree)
    assert node == (
        "tree  Partial  1  test_a_closure_as_a_pytree_shows_its_function_and_what_it_captured.loss  "
        f"tests/test_jax_docs.py:{line}"
    )
    assert [row.dtype for row in treeviz.walk(tree).leaves] == ["float32"]
    assert any("float32[3]" in text for text in rest)
    assert jax.tree_util.tree_leaves(tree)[0].shape == (3,)


def test_the_linear_layer_of_equinox_shows_its_parameters_and_its_static_fields():
    eqx = pytest.importorskip("equinox")
    linear = eqx.nn.Linear(3, 4, key=jax.random.PRNGKey(0))
    assert lines(linear, name="linear") == [
        "linear  Linear  2  in_features=3, out_features=4, use_bias=True",
        "├─ .weight  float32[4,3]  1",
        "└─ .bias  float32[4]  1",
    ]


def test_an_mlp_of_equinox_shows_that_its_activations_are_leaves():
    eqx = pytest.importorskip("equinox")
    mlp = eqx.nn.MLP(2, 2, 8, 1, key=jax.random.PRNGKey(0))
    functions = [row.keystr for row in treeviz.walk(mlp).leaves if row.kind == "function"]
    assert functions == [".activation", ".final_activation"]
    assert len(list(treeviz.walk(mlp).leaves)) == len(jax.tree_util.tree_leaves(mlp)) == 6


def test_an_optimizer_state_has_the_names_of_its_fields():
    optax = pytest.importorskip("optax")
    state = optax.adam(1e-3).init({"w": jnp.ones((2, 3))})
    assert [row.keystr for row in treeviz.walk(state).leaves] == ["[0].count", "[0].mu['w']", "[0].nu['w']"]
