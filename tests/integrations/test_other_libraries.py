"""Trees of libraries that name axes, units, states or parameters.

Large libraries are represented by a few lines with the names and registrations of their classes.
"""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agreement import outline, row_at, text_of, walk_and_compare
from jax.example_libraries import optimizers

import treeviz as tv
from treeviz import integrations
from treeviz.steps.tracing.jitted import jitted_step


@pytest.fixture
def stand_in(monkeypatch):
    """Puts a module with these names in place of a library."""

    def install(library, **names):
        monkeypatch.delitem(sys.modules, f"treeviz.integrations.{library.partition('.')[0]}", raising=False)
        monkeypatch.setattr(integrations, "_loaded", integrations._loaded - {library.partition(".")[0]})
        for name in {library.partition(".")[0], library}:
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
        vars(sys.modules[library]).update(names)
        integrations.load()

    return install


def lines(tree, **options):
    """The rows below the root, without bars and numbers."""
    return text_of(tree, **options).splitlines()


def has_line(tree, *parts):
    """Whether a line has all of these parts."""
    return any(all(part in line for part in parts) for line in lines(tree))


def boxed(name, child, *others):
    """A class registered with one child, as `register_pytree_node_class` does for all below; `others` are static."""

    def __init__(self, *values):
        vars(self).update(zip((child, *others), values, strict=True))

    cls = type(name, (), {"__init__": __init__})
    jax.tree_util.register_pytree_node(
        cls,
        lambda x: ((getattr(x, child),), tuple(getattr(x, other) for other in others)),
        lambda aux, xs: cls(*xs, *aux),
    )
    return cls


class Axis(NamedTuple):
    name: str
    size: int


def test_the_axes_of_a_haliax_array_are_in_its_shape(stand_in):
    NamedArray = boxed("NamedArray", "array", "axes")  # haliax/core.py of 1.3
    stand_in("haliax", NamedArray=NamedArray)
    w = NamedArray(jnp.ones((4, 8)), (Axis("embed", 4), Axis("hidden", 8)))
    assert has_line({"w": w}, "└─ w  NamedArray float32[embed 4, hidden 8]")
    view = tv.render({"w": w, "b": NamedArray(jnp.ones(8), (Axis("hidden", 8),))})
    assert [row.keystr.split("[<")[0] for row in view.find("axis:embed")] == ["['w']"]
    (found,) = walk_and_compare([jax.eval_shape(lambda: w)]).leaves
    assert found.facts.axes == ("embed", "hidden")
    batched = jax.tree.map(lambda x: jnp.stack([x, x]), w)
    assert has_line([batched], "NamedArray float32[2,4,8]", "axes=(embed, hidden)")


def test_a_quantity_of_saiunit_is_one_row_with_its_unit(stand_in):
    class Unit:
        dim = np.zeros(7)

        def __str__(self):
            return "mV"

    Quantity = boxed("Quantity", "_mantissa", "_unit")  # saiunit/_base_quantity.py of 0.6
    stand_in("saiunit", Quantity=Quantity)
    tree = {"v": Quantity(jnp.ones(3), Unit()), "i": Quantity(3.0, Unit())}
    assert has_line(tree, "├─ i  Quantity 3.0  mV")
    assert has_line(tree, "└─ v  Quantity float32[3]", "mV")
    assert not walk_and_compare(tree).notes
    volt = type("Volt", (Unit,), {"__str__": lambda self: "V"})
    assert [str(each) for each in tv.diff(tree, {**tree, "v": Quantity(tree["v"]._mantissa, volt())}).differences] == [
        "['v'][<flat index 0>]: static: mV → V"
    ]


def test_states_of_brainstate_show_their_values(stand_in):
    class State:  # brainstate/_state.py of 0.6
        def __init__(self, value, tag=None):
            self._value, self.tag, self._level = value, tag, 0

    ParamState = type("ParamState", (State,), {})
    Node = type("Node", (), {})
    TreefyState = boxed("TreefyState", "value", "type")
    stand_in("brainstate", State=State, TreefyState=TreefyState)
    tree = {
        "p": ParamState(jnp.ones(3), "slow"),
        "u": ParamState(SimpleNamespace(_mantissa=np.ones(2, np.float32), _unit=SimpleNamespace(dim=0))),
        "d": ParamState({"weight": jnp.ones((4, 8))}),
        "r": TreefyState(jnp.ones(5), ParamState),
    }
    table = walk_and_compare(tree)
    assert [(row.type, row.shape, row.kind) for row in table.leaves] == [
        ("ParamState", None, "variable"),
        ("ParamState", (3,), "variable"),
        ("ParamState", (5,), "array"),
        ("ParamState", (2,), "variable"),
    ]
    assert [row.facts.text for row in table.leaves][:2] == ["{'weight': float32[4,8]}", "tag='slow'"]
    assert not table.notes
    stand_in("brainstate.graph", Node=Node)
    assert has_line([Node()], "not a pytree: .states() returns its states")


class Keras:
    """keras/src/backend/common/variables.py and keras/src/layers/layer.py of 3.15."""

    class Variable:
        def __init__(self, path, value, trainable=True):
            self._path, self._value, self.trainable = path, value, trainable
            self.path, self.shape, self.dtype = path, value.shape, str(value.dtype)

    class Layer:
        def __init__(self, *variables):
            self.variables = list(variables)

        @property
        def trainable_variables(self):
            return [each for each in self.variables if each.trainable]

    class Model(Layer):
        def train_step(self, state, data):
            return data, state

    class Optimizer(Layer):
        pass

    class Metric:
        pass


@pytest.fixture
def keras_model(stand_in):
    stand_in("keras", **{name: cls for name, cls in vars(Keras).items() if isinstance(cls, type)})
    return Keras.Model(
        Keras.Variable("mlp/dense/kernel", jnp.ones((4, 8))),
        Keras.Variable("mlp/norm/mean", jnp.ones(8), trainable=False),
        Keras.Variable("mlp/norm/scale", jnp.ones(8)),
    )


def test_a_keras_model_is_its_variables(keras_model):
    view = tv.render(keras_model, name="model")
    assert [row.expression for row in view.table.leaves] == [f"model.variables[{i}]" for i in range(3)]
    assert [row.facts.text for row in view.table.leaves] == [
        "mlp/dense/kernel",
        "mlp/norm/mean, not trainable",
        "mlp/norm/scale",
    ]
    assert view.table.headline[1:3] == ("48 elements", "192 B") and not view.table.notes
    changed = Keras.Model(*keras_model.variables[:2], Keras.Variable("mlp/norm/scale", jnp.ones(8).at[3].set(2)))
    assert [str(each) for each in tv.diff(keras_model, changed).differences] == [
        "[2]: value: 1 → 2 (at [3]; 1 of 8 differ)"
    ]
    (inside,) = walk_and_compare({"m": keras_model}).leaves
    assert inside.facts.text == "3 variables, 1 not trainable: see .variables"
    assert inside.facts.static[1] == ("mlp/norm/mean", "float32[8]") and inside.notes == ()
    del keras_model.variables
    assert tv.walk(keras_model)[0].type == "Keras.Model", "a release that has moved costs what is said besides"


def test_gradients_of_a_keras_model_have_the_paths_of_its_variables(keras_model):
    tidy_path = jitted_step(jax.jit(keras_model.train_step)).tidy_path
    assert [*map(tidy_path, ("[0]", "[1]", "[2]", "[0]['a']"))] == [
        "['mlp']['dense']['kernel']",
        "['mlp']['norm']['scale']",
        "[2]",
        "[0]['a']",
    ]
    keras_model.variables *= 2
    assert jitted_step(jax.jit(keras_model.train_step)).tidy_path is str, "two variables have one path"


def test_static_fields_of_a_simple_pytree_are_named():
    simple_pytree = pytest.importorskip("simple_pytree", reason="needs simple-pytree")

    class Foo(simple_pytree.Pytree):
        y: int = simple_pytree.static_field()

        def __init__(self, x, y):
            self.x, self.y = x, y

    table = walk_and_compare([Foo(jnp.ones(3), 7)])
    assert table[1].facts.static == (("y", "7"),) and outline(table)[2] == "    .x array jax.Array"


def test_the_state_of_an_optimizer_of_jax_has_the_names_of_the_parameters():
    init, _, _ = optimizers.adam(1e-3)
    state = init({"layers": [{"w": jnp.ones((2, 3))}, {"w": jnp.ones(3)}], "b": jnp.ones(2)})
    table = walk_and_compare([state])
    assert [row.label for row in table[1].children] == ["b", "layers/0/w", "layers/1/w"]
    (found,) = tv.diff(
        state, init({"layers": [{"w": jnp.ones((2, 3))}, {"w": jnp.ones(3)}], "c": jnp.ones(2)})
    ).differences
    assert found.kind == "static" and "'b'" in found.left
    row = table.find("layers/1/w/1")[0]
    assert row.keystr == "[0][<flat index 0>][2][1]" and row.expression == "t[0].packed_state[2][1]"
    assert outline(walk_and_compare(init(jnp.ones(2))))[1:3] == [
        "  .packed_state = [<flat index 0>] tuple tuple",
        "    [0] list list",
    ]


def test_fields_of_coordax_show_dimensions_and_coordinates():
    cx = pytest.importorskip("coordax", reason="needs coordax")
    x, y = cx.SizedAxis("x", 3), cx.LabeledAxis("y", np.arange(2.0))
    tree = {"f": cx.field(jnp.ones((3, 2)), x, y), "g": cx.field(jnp.ones((3, 2)), "a", None)}
    assert has_line(tree, "├─ f  Field float32[x 3, y 2]", "x: SizedAxis, y: LabeledAxis 0.0 to 1.0")
    assert has_line(tree, "└─ g  Field float32[a 3, 2]")
    table = walk_and_compare(tree)
    assert not table.notes and row_at(table, "['f'][<flat index 0>][<flat index 0>]").shape == (3, 2)
    assert eval(table[1].expression, {"t": tree, "treeviz": tv}).shape == (3, 2)


def test_arrays_of_xarray_show_dimensions_and_coordinates():
    xr = pytest.importorskip("xarray", reason="needs xarray")
    array = xr.DataArray(np.ones((2, 3)), dims=("x", "y"), coords={"x": [10, 20]})
    tree = {"da": array, "ds": xr.Dataset({"t": array}), "v": array.variable}
    assert has_line(tree, "├─ da  DataArray float64[x 2, y 3] tensor", "coordinates: x")
    assert has_line(tree, "├─ ds  Dataset", "t float64[x 2, y 3] · coordinates: x", "2 hidden arrays")
    assert has_line(tree, "└─ v   Variable float64[x 2, y 3] tensor")
    assert tv.render(tree, stats=True).table[1]["max"] == 1


def test_quantized_arrays_show_their_bits_and_the_shape_of_the_scale():
    qwix = pytest.importorskip("qwix", reason="needs Qwix")
    values, scale = jnp.ones((3, 4), jnp.int8), jnp.ones((3, 1))
    tree = [
        qwix.QArray(values, scale),
        qwix.QArray(values, scale, qtype=jnp.int4),
        qwix.QArray(values.astype(jnp.float8_e4m3fn), scale),
    ]
    assert [row.facts.text for row in walk_and_compare(tree) if row.type == "QArray"] == [
        "int8[3,4] × scale float32[3,1], 8 bits",
        "int8[3,4] × scale float32[3,1], 4 bits",
        "float8_e4m3fn[3,4] × scale float32[3,1], 8 bits",
    ]


def test_tensors_of_aqt_show_their_bits_and_what_they_were():
    aqt = pytest.importorskip("aqt.jax.v2.aqt_tensor", reason="needs AQT")
    tensor = aqt.QTensor(
        qvalue=jnp.ones((3, 4), jnp.int8), scale=[jnp.ones((3, 1))], scale_t=None, bias=[], dequant_dtype=jnp.float32
    )
    table = walk_and_compare([tensor])
    assert table[1].facts.text == "int8[3,4] × scale float32[3,1], 8 bits"
    assert [name for name, _ in table[1].facts.static] == ["dequant_dtype"]
    assert not walk_and_compare([tensor.replace(qvalue=None, scale=None)])[1].facts.text
