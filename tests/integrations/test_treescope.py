"""Pictures of values by treescope, and a tree view inside treescope's output."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from sample_trees import SAMPLES

import treeviz
from treeviz.analysis import details
from treeviz.analysis.details import Window, color_range
from treeviz.integrations import treescope as pictures
from treeviz.prepare import scanned

treescope = pytest.importorskip("treescope")
pytestmark = pytest.mark.oldest_jax


def drawn(tree, **options) -> dict[str, str]:
    table, nodes = scanned(tree, None, "tree", **options)
    return {table[row].keystr: html for row, html in pictures.array_pictures(table, nodes).items()}


def values_in(html: str) -> np.ndarray:
    """What treescope is to draw, read back from the document."""
    (text,) = re.findall(r'<script type="application/json">(.*?)</script>', html)
    config = json.loads(text)
    dtype = {"float32": np.float32, "int32": np.int32}[config["arrayDtype"]]
    flat = np.frombuffer(base64.b64decode(config["arrayBase64"]), dtype)
    axes = sorted(config["xAxisSpecs"] + config["yAxisSpecs"], key=lambda axis: axis["name"])
    return flat.reshape([axis["end"] for axis in axes])


def caption(html: str) -> str:
    return re.findall(r"<p [^>]*>(.*?)</p>", html)[0]


WITHOUT_WARNINGS = """
import warnings
import numpy as np
import treeviz
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    before = list(warnings.filters)
    view = treeviz.render([np.ones(3), object()], values=True)
    assert warnings.filters == before
assert not warned, [str(each.message) for each in warned]
assert all("treescope" in html for html in view.values.values()) and len(view.values) == 2
"""


def test_nobody_is_warned_of_what_treescope_uses_and_no_filter_of_warnings_is_changed():
    # In a process of its own, since treescope looks up what it uses once.
    subprocess.run([sys.executable, "-c", WITHOUT_WARNINGS], check=True)


A = np.arange(200 * 300, dtype=np.float32).reshape(200, 300) / 7


@pytest.mark.parametrize(
    "make", [np.asarray, jnp.asarray, lambda a: np.asarray(a, order="F")[::1]], ids=["np", "jax", "fortran"]
)
def test_the_first_64_by_64_values_are_drawn(make):
    (html,) = drawn([make(A)]).values()
    np.testing.assert_array_equal(values_in(html), A[:64, :64])
    assert caption(html) == "float32[200,300]: the first 64 × 64 of it"
    assert "axis 0: 64 of 200" in html and "axis 1: 64 of 300" in html


@pytest.mark.parametrize(
    ("array", "expected", "note"),
    [
        (np.float64([[1e300, np.nan]]), np.float32([[np.inf, np.nan]]), "float64[1,2]; as float32"),
        (np.full((2, 2), np.nan), np.full((2, 2), np.float32(np.nan)), "float64[2,2]; as float32"),
        (np.array([1 + 1j, 3 - 4j]), np.float32([2**0.5, 5]), "complex128[2]; magnitudes"),
        (np.array([True, False]), np.int32([1, 0]), "bool[2]"),
        (np.int64([10**12, 1]), np.float32([1e12, 1]), "int64[2]; large integers, as float32"),
        (np.uint64([2**64 - 1]), np.float32([2.0**64]), "uint64[1]; large integers, as float32"),
        (np.int8([-128]), np.int32([-128]), "int8[1]"),
        (np.array([1.5, -2], ml_dtypes.bfloat16), np.float32([1.5, -2]), "bfloat16[2]"),
        (np.array([1, 2], ml_dtypes.float8_e4m3fn), np.float32([1, 2]), "float8_e4m3fn[2]"),
        (np.array([-8, 7], ml_dtypes.int4), np.int32([-8, 7]), "int4[2]"),
        (np.float32(3), None, ""),
        (jnp.float32(3), np.float32([3]), "float32[]"),
    ],
    ids=lambda value: str(getattr(value, "dtype", "")),
)
def test_every_dtype_is_drawn_with_its_values(array, expected, note):
    found = list(drawn([array]).values())
    if expected is None:  # a NumPy scalar has its value in its row
        assert found == []
    else:
        np.testing.assert_array_equal(values_in(found[0]), expected)
        assert caption(found[0]) == note


def test_of_arrays_of_many_axes_the_last_two_are_drawn():
    a = np.arange(3 * 5 * 100 * 200, dtype=np.float32).reshape(3, 5, 100, 200)
    (html,) = drawn([a]).values()
    np.testing.assert_array_equal(values_in(html), a[:1, :1, :64, :64])
    (html,) = drawn([a[:, :, :4, :4]]).values()
    np.testing.assert_array_equal(values_in(html), a[:3, :5, :4, :4])


def test_a_sharded_array_is_not_gathered_its_first_shard_is_drawn():
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(4, 2), ("x", "y"))
    array = jax.device_put(A, NamedSharding(mesh, PartitionSpec("x", "y")))
    with jax.transfer_guard_device_to_device("disallow"):
        (html,) = drawn([array]).values()
    np.testing.assert_array_equal(values_in(html), A[:50, :64])
    assert caption(html) == "float32[200,300]: the first 50 × 64 of the shard on cpu:0, [0:50, 0:150]"
    assert array._npy_value is None


def test_a_replicated_array_is_drawn_as_a_whole():
    mesh = Mesh(np.array(jax.devices()[:8]), ("x",))
    array = jax.device_put(A[:3, :3], NamedSharding(mesh, PartitionSpec()))
    (html,) = drawn([array]).values()
    np.testing.assert_array_equal(values_in(html), A[:3, :3])
    assert caption(html) == "float32[3,3]"


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.int4, jnp.bool_])
def test_no_copy_stays_on_the_array_and_it_can_still_be_donated(dtype):
    array = jnp.ones((100, 100), dtype)
    address = array.unsafe_buffer_pointer()
    view = treeviz.render([array], values=True)
    assert view.values.keys() == {1}
    assert array._npy_value is None
    after = jax.jit(lambda x: x, donate_argnums=0)(array)
    assert array.is_deleted()
    assert after.unsafe_buffer_pointer() == address


def test_of_an_array_on_an_accelerator_only_the_slice_travels(monkeypatch):
    monkeypatch.setattr(details, "lies_on_host", lambda array: False)  # the values are then cut on their device
    monkeypatch.setattr(details, "host_view", None)
    array = jnp.asarray(A)
    (html,) = drawn([array]).values()
    np.testing.assert_array_equal(values_in(html), A[:64, :64])
    assert array._npy_value is None


def test_what_has_no_values_has_no_picture():
    deleted = jnp.ones(3)
    deleted.delete()

    @jax.jit
    def traced(x):
        assert drawn({"x": x}) == {}
        return x

    traced(jnp.ones(3))
    nothing = [deleted, jax.ShapeDtypeStruct((3,), jnp.float32), jax.random.key(0), jnp.ones((0, 3)), np.array(["a"])]
    others = [np.zeros(2, [("f", "i4")]), np.array([{}], object), np.zeros(2, jax.dtypes.float0), 3.0, "x", None, len]
    assert drawn(nothing + others) == {}


def test_a_guard_against_transfers_costs_the_picture_and_not_the_page():
    tree = [jnp.ones(3), np.ones(3)]
    with jax.transfer_guard("disallow_explicit"):
        view = treeviz.render(tree, values=True)
    assert 2 in view.values


def test_many_arrays_share_the_room_and_the_first_ones_are_drawn():
    few = drawn([A] * 100)
    assert len(few) == 100
    assert {values_in(html).shape for html in few.values()} == {(32, 32)}
    many = drawn([np.ones((32, 32), np.float32)] * 3_000)
    n_drawn = [values_in(html).size for html in many.values()]
    assert list(many) == [f"[{i}]" for i in range(len(many))]
    assert pictures.MAX_ELEMENTS - 300 <= sum(n_drawn) <= pictures.MAX_ELEMENTS


def test_the_page_stays_small_what_the_pictures_share_is_sent_once():
    rng = np.random.default_rng(0)
    tree = [rng.normal(size=(100, 100)).astype(np.float32) for _ in range(100)]
    assert len(treeviz.render(tree, values=True).html()) < 1_500_000
    tree = [np.ones((4, 4), np.float32)] * 200
    assert len(treeviz.render(tree, values=True).html()) < 150_000


def test_two_renderings_are_the_same_bytes():
    first, second = (treeviz.render([A, A[:2]], values=True).html() for _ in range(2))
    assert first == second


@pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES)
def test_every_sample_tree_can_be_asked_for_values(sample):
    view = treeviz.render(sample(), values=True)
    for row, html in view.values.items():
        assert view.table[row].is_leaf
        assert html.startswith('<!DOCTYPE html><meta charset="utf-8"><meta http-equiv="Content-Security-Policy"')


def test_no_name_of_the_tree_goes_into_a_picture():
    evil = "</script><script>parent.alert(1)</script>"
    (html,) = drawn({evil: jnp.ones(3)}).values()
    assert "alert" not in html


def test_a_view_is_a_box_in_treescopes_output_as_text_and_as_html():
    evil = "</script><b>&"
    view = treeviz.render({evil: jnp.ones((2, 3)), "n": None}, name="model")
    text = treescope.render_to_text({"view": view, "after": 1})
    lines = [line.strip() for line in text.splitlines()]
    assert any(
        line.startswith("'view': <TreeView model · 1 leaf · 6 elements · 24 B · float32 100 %") for line in lines
    )
    for line in view.text().splitlines():
        assert line.strip() in lines
    html = treescope.render_to_html({"view": view, "after": 1}, compressed=False)
    assert "<TreeView model" in html or "&lt;TreeView model" in html
    assert html.count("data-treeviz") >= 1


class Hidden:
    def __init__(self):
        self.weights = jnp.ones((3, 4))
        self.note = "</script><b>"


CALLED = []  # of Endless


class Endless(dict):
    """All that may be called of it might never end."""

    def __repr__(self, *_):
        CALLED.append("it")
        return super().__repr__()

    __str__ = __iter__ = __len__ = __getitem__ = items = keys = __hash__ = __repr__  # type: ignore[assignment]
    __getattribute__ = __treescope_repr__ = _repr_html_ = __repr__  # type: ignore[assignment]
    __class__ = property(__repr__)  # type: ignore[assignment]


def test_a_leaf_that_jax_does_not_know_is_shown_as_treescope_shows_it_but_for_the_values_of_its_arrays():
    leaf, plain = Hidden(), object()
    tree = {"array": jnp.ones(3), "leaf": leaf, "endless": Endless(a=leaf, b={}), "plain": plain, "text": "x"}
    with jax.transfer_guard_device_to_host("disallow_explicit"):
        html = pictures.object_view(leaf)
    assert html.startswith('<!DOCTYPE html><meta charset="utf-8"><meta http-equiv="Content-Security-Policy"')
    assert "weights=" in html and "float32[3,4]" in html and "</script><b>" not in html
    assert leaf.weights._npy_value is None and hex(id(plain)) not in pictures.object_view(plain)
    view = treeviz.render(tree, values=True)
    assert {view.table[row].keystr for row in view.values} == {"['array']", "['leaf']", "['endless']", "['plain']"}
    first, other = (len(treeviz.render([jnp.ones(3)] * n + [leaf], values=True).html()) for n in (1, 100))
    assert other - first < 30_000  # what arrays share is still sent once
    html = pictures.object_view(tree["endless"])
    assert "Endless(" in html and "weights=" in html and CALLED == []
    deep = leaf
    for _ in range(60):  # 2**60 places
        deep = [deep, deep]
    leaf.note = deep
    assert len(pictures.object_view(leaf)) < 100_000 and "…" in pictures.object_view(leaf)


def test_a_run_and_a_widget_render_themselves_in_treescopes_output():
    inspector = treeviz.GradientInspector()
    assert "nothing was measured" in treescope.render_to_text([inspector])
    inspector.record(treeviz.measure(params={"w": jnp.ones(3)}))
    assert "<TreeView params" in treescope.render_to_text([inspector])
    widget = treeviz.explore({"w": jnp.ones(3)}, name="model")
    assert "<TreeView model · 1 leaf" in treescope.render_to_text([widget])
    widget.close()
    assert "explore: closed" in treescope.render_to_text([widget])
    diff = treeviz.diff({"w": jnp.ones(3)}, {"w": jnp.ones(4)})
    assert "<TreeDiff tree · 1 difference: 1 shape" in treescope.render_to_text([diff])


def hide(monkeypatch, folder) -> str:
    monkeypatch.setitem(sys.modules, "treescope", None)
    return r"treescope \S+ cannot be imported: ModuleNotFoundError: .*\. So treeviz draws it\."


def break_import(monkeypatch, folder) -> str:
    """As where NumPy has taken away a name that treescope uses when it is imported."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "treescope"]:
        monkeypatch.delitem(sys.modules, name)
    (folder / "treescope.py").write_text("import numpy\nnumpy.no_such_name\n")
    monkeypatch.syspath_prepend(folder)
    return r"treescope \S+ cannot be imported: AttributeError: module 'numpy' has no attribute 'no_such_name'\..*"


def break_drawing(monkeypatch, folder) -> str:
    monkeypatch.setattr(treescope, "render_array", lambda *_, **__: np.no_such_name)
    return r"treescope \S+ cannot draw this: AttributeError: module 'numpy' has no attribute 'no_such_name'\..*"


def move_a_name(monkeypatch, folder) -> str:
    monkeypatch.delattr(treescope, "lowering")
    return r"treescope \S+ cannot draw this: AttributeError: module 'treescope' has no attribute 'lowering'\..*"


FAILURES = [hide, break_import, break_drawing, move_a_name]


def cells_of(drawing: dict) -> np.ndarray:
    assert json.loads(json.dumps(drawing, allow_nan=False)) and len(json.dumps(drawing)) < 30_000
    return np.frombuffer(base64.b64decode(drawing["cells"]), "<f4")


@pytest.mark.parametrize("fail", FAILURES)
def test_where_treescope_fails_the_page_draws_the_values_itself_and_says_why(fail, monkeypatch, tmp_path):
    why = fail(monkeypatch, tmp_path)
    deep = np.arange(2 * 3 * 100 * 10.0).reshape(2, 3, 100, 10)
    view = treeviz.render({"a": A, "deep": deep, "o": object(), "v": jnp.arange(200) - 5}, values=True)
    assert view.part == "drawn" and "treescope_out" not in view.html()
    found = {view.table[row].keystr: drawing for row, drawing in view.values.items()}
    assert all(re.fullmatch(why, drawing["why"]) for drawing in found.values() if isinstance(drawing, dict))
    first = found["['a']"]
    np.testing.assert_array_equal(cells_of(first).reshape(64, -1), A[:64, :64])
    assert first["caption"] == "float32[200,300]: the first 64 × 64 of it"
    assert (first["columns"], first["axes"], first["starts"]) == (64, (0, 1), (0, 0))
    np.testing.assert_array_equal(cells_of(found["['deep']"]).reshape(-1, 10), deep[0, 0, :64])
    assert found["['deep']"]["caption"] == "float64[2,3,100,10]: the first 1 × 1 × 64 × 10 of it; as float32"
    np.testing.assert_array_equal(cells_of(found["['v']"]), np.arange(128) - 5)
    assert found["['v']"]["range"] == [-122, 122], "no outliers among integers"
    assert (
        view.html()
        == treeviz.render({"a": A, "deep": deep, "o": object(), "v": jnp.arange(200) - 5}, values=True).html()
    )


@pytest.mark.parametrize("fail", FAILURES)
def test_where_treescope_fails_all_else_goes_on(fail, monkeypatch, tmp_path):
    fail(monkeypatch, tmp_path)
    tree = {"a": jnp.ones(3), "o": object()}
    assert isinstance(treeviz.render(tree)._repr_html_(), str)
    assert treeviz.check(tree) is not None and treeviz.diff(tree, tree) is not None
    assert pictures.trouble().startswith("treescope ")
    is_there = fail in (break_drawing, move_a_name)
    assert (treeviz.render(tree).__treescope_repr__(None, None) is NotImplemented) != is_there


def test_an_array_that_treescope_cannot_draw_is_drawn_beside_those_that_it_draws(monkeypatch):
    draw = treescope.render_array

    def some(values, **how):
        return draw(values, **how) if values.size > 3 else np.no_such_name

    monkeypatch.setattr(treescope, "render_array", some)
    view = treeviz.render([np.ones(3), np.ones(4)], values=True)
    assert isinstance(view.values[1], dict) and "treescope_out" in view.values[2] and view.part == "drawn"


def test_without_treescope_a_shard_is_drawn_with_the_place_where_it_begins(monkeypatch):
    hide(monkeypatch, None)
    devices = np.array(jax.devices()[:4]).reshape(2, 2)[::-1]
    array = jax.device_put(A, NamedSharding(Mesh(devices, ("x", "y")), PartitionSpec("x", "y")))
    (drawing,) = drawn([array]).values()
    start = tuple(part.start or 0 for part in array.addressable_shards[0].index)
    place = tuple(slice(i, i + 64) for i in start)
    np.testing.assert_array_equal(cells_of(drawing).reshape(64, 64), A[place])
    assert drawing["starts"] == start and "64 × 64 of the shard on cpu:" in drawing["caption"]
    assert array._npy_value is None


def test_what_is_in_another_process_is_told_from_values_and_has_no_part_in_the_range():
    is_here = np.array([[True, False], [True, True]])
    part = Window(np.float32([[1, -9], [2, 3]]), is_here, (0, 1), (0, 0), (2, 2), ("cpu:0",), ("cpu:9",))
    drawing = pictures._by_page(part, "", ValueError("no"))
    assert np.frombuffer(base64.b64decode(drawing["elsewhere"]), np.uint8).tolist() == [0, 1, 0, 0]
    assert drawing["range"] == [1, 3]


@pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES)
def test_without_treescope_every_sample_tree_can_be_asked_for_values(sample, monkeypatch):
    hide(monkeypatch, None)
    view = treeviz.render(sample(), values=True)
    for row, drawing in view.values.items():
        assert view.table[row].is_leaf and len(cells_of(drawing)) <= 4096
        low, high = drawing["range"]
        assert low < high and (low == -high or low >= 0)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.0, -3.0, np.nan, np.inf], (-3.0, 3.0)),
        ([2.0, 4.0, -np.inf], (2.0, 4.0)),
        ([5.0, 5.0], (0.0, 5.0)),
        ([0.0], (0.0, 1.0)),
        ([np.nan], (0.0, 1.0)),
        ([], (0.0, 1.0)),
        ([-1.0] * 99 + [1e3], (-3 * np.sqrt((99 + 1e6) / 100), 3 * np.sqrt((99 + 1e6) / 100))),
        ([1.0] * 99 + [101.0], (1.0, 2 + 3 * np.sqrt((99 + 99**2) / 100))),
        ([3.4e38, -3.4e38], (-3.4e38, 3.4e38)),
    ],
)
def test_colors_are_around_zero_if_a_value_is_negative_and_leave_out_what_is_far_from_all_others(values, expected):
    found = color_range(np.array(values, np.float32), trim=True)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
