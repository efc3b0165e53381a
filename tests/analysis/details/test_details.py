"""What is said of one node or leaf on demand: right numbers, nothing moved, nothing kept, whatever it is."""

from __future__ import annotations

import gc
import json
import sys
import threading
import weakref
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from sample_trees import SAMPLES

from treeviz.analysis import details as detail
from treeviz.analysis.details import (
    MOST,
    MOST_BYTES,
    MOST_CELLS,
    MOST_LINES,
    SEES_LOCALS,
    Budget,
    class_facts,
    detail_parts,
    function_source,
    is_array,
    outline,
    referrers,
    referrers_section,
    shard_section,
    statistics,
    window,
)
from treeviz.tree.walk import scan

CUT = PartitionSpec("a", "b")
always = lambda: True
needs_8 = pytest.mark.skipif(len(jax.devices()) < 8, reason="needs 8 devices")


def sharded(shape=(32, 24, 3), spec=CUT) -> jax.Array:
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(4, 2), ("a", "b"))
    values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    return jax.device_put(values, NamedSharding(mesh, spec))


def said(node, kind) -> list:
    budget = Budget()
    return budget.gather(detail_parts(node, kind, budget))


@pytest.mark.oldest_jax
@pytest.mark.parametrize("name", SAMPLES)
def test_of_every_row_of_every_strange_tree_something_plain_is_said(name):
    table, nodes = scan(SAMPLES[name]())
    rows = range(min(len(table), 200))
    for row in rows:
        sections = said(nodes[row], table[row].kind)
        assert len(json.dumps(sections)) < MOST_BYTES
        assert not [each for each in sections if each.get("tone") == "bad"]
        if is_array(nodes[row]) and getattr(nodes[row], "_npy_value", None) is not None:
            assert not isinstance(nodes[row], jax.Array), "a host copy was left on the array"


@pytest.mark.oldest_jax
@pytest.mark.parametrize("shape", [(), (0,), (5,), (5000,), (3, 4), (100, 200), (3, 70, 5, 90), (1, 1, 1)])
def test_a_window_is_what_numpy_cuts_out(shape):
    values = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
    for array in (values, jnp.asarray(values), np.asfortranarray(values)):
        part = window(array)
        if len(shape) < 2:
            flat = part.values[part.is_here] if values.size > MOST else part.values.reshape(-1)
            np.testing.assert_array_equal(flat[: values.size], values.reshape(-1)[: MOST * MOST])
        else:
            cut = values[(0,) * (len(shape) - 2)][:MOST, :MOST]
            np.testing.assert_array_equal(part.values, cut)
        assert max(part.values.shape) <= MOST


@pytest.mark.oldest_jax
@pytest.mark.parametrize(("rows", "columns"), [(0, 1), (1, 0), (3, 1), (0, 3)])
def test_a_window_is_along_the_axes_and_from_the_place_that_are_asked_for(rows, columns):
    values = np.arange(70 * 3 * 5 * 90).reshape(70, 3, 5, 90)
    starts = [60, 2, 4, 10]
    part = window(jnp.asarray(values), (rows, columns), starts)
    for axis, size in enumerate(values.shape):
        thick = min(size, MOST) if axis in (rows, columns) else 1
        assert part.sizes[axis] == thick and part.starts[axis] == min(starts[axis], size - thick)
    place = tuple(slice(start, start + size) for start, size in zip(part.starts, part.sizes, strict=True))
    cut = values[place].squeeze(tuple({0, 1, 2, 3} - {rows, columns}))
    np.testing.assert_array_equal(part.values, cut if rows < columns else cut.T)


@pytest.mark.oldest_jax
@pytest.mark.parametrize("axes", [(0, 0), (-1, 1), (0, 2), (0, -2), (5, 1)])
def test_axes_that_are_not_there_are_refused(axes):
    with pytest.raises(ValueError, match="2 axes"):
        window(np.zeros((3, 4)), axes)


def test_starts_that_do_not_fit_are_refused_or_pushed_back():
    with pytest.raises(ValueError, match="1 starts"):
        window(np.zeros((3, 4)), (0, 1), [0])
    assert window(np.zeros((3, 400)), (0, 1), [-5, 10**15]).starts == (0, 336)


@needs_8
@pytest.mark.oldest_jax
def test_a_window_on_a_sharded_array_is_read_shard_by_shard(monkeypatch):
    x = sharded()
    read = []
    monkeypatch.setattr(detail, "host_view", lambda shard: read.append(shard.shape) or np.array(shard))
    part = window(x, (0, 1), [0, 0, 2])
    np.testing.assert_array_equal(part.values, np.arange(32 * 24 * 3, dtype=np.float32).reshape(32, 24, 3)[:, :, 2])
    assert read == [(8, 12, 3)] * 8 and len(part.devices) == 8
    read.clear()
    assert window(x, (1, 2), [9, 0, 0]).devices == ("cpu:2", "cpu:3") and len(read) == 2
    assert x._npy_value is None


@needs_8
def test_of_replicas_one_is_read():
    part = window(sharded(spec=PartitionSpec("a")), (0, 1))
    assert len(part.devices) == 4


def test_a_transfer_guard_is_not_in_the_way():
    x = jnp.arange(12.0).reshape(3, 4)
    with jax.transfer_guard("disallow"):
        part = window(x)
        sections = statistics(x)
    np.testing.assert_array_equal(part.values, np.arange(12.0).reshape(3, 4))
    assert [each["kind"] for each in sections] == ["numbers", "bars"]


@needs_8
@pytest.mark.oldest_jax
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "bool", "complex64", "int4"])
def test_on_a_device_the_window_is_cut_out_before_it_travels(monkeypatch, dtype):
    values = (np.arange(16 * 400) % 7).reshape(16, 400).astype(jnp.dtype(dtype))
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(4, 2), ("a", "b"))
    x = jax.device_put(values, NamedSharding(mesh, CUT))
    monkeypatch.setattr(detail, "lies_on_host", lambda _: False)
    with jax.transfer_guard("disallow"), jax.debug_nans(True), jax.disable_jit():
        part = window(x, (0, 1), [0, 170])
    np.testing.assert_array_equal(part.values, values[:, 170:234])
    assert part.values.dtype == values.dtype and len(part.devices) == 8 and x._npy_value is None


def test_statistics_are_those_of_numpy():
    values = np.random.default_rng(0).normal(size=(100, 50)).astype(np.float32)
    values[0, :7] = 0
    values[1, 0], values[1, 1] = np.nan, np.inf
    numbers, bars = statistics(jnp.asarray(values))
    found = dict(numbers["pairs"])
    finite = values[np.isfinite(values)].astype(np.float64)
    for name, expected in {
        "min": finite.min(),
        "max": finite.max(),
        "mean": finite.mean(),
        "std": finite.std(),
    }.items():
        assert float(found[name]) == pytest.approx(expected, rel=1e-3, abs=1e-6)
    assert (found["zeros"], found["NaN"], found["+Inf"]) == ("7", "1", "1") and "-Inf" not in found
    exponents = np.floor(np.log2(np.abs(finite[finite != 0]))).astype(int)
    counts = np.bincount(exponents - exponents.min())
    assert bars["heights"] == np.ceil(255 * counts / counts.max()).astype(int).tolist()
    assert bars["title"] == "log₂|x|" and bars["edges"] == [str(exponents.min()), str(exponents.max() + 1)]


def test_statistics_of_a_huge_array_are_a_question():
    (button,) = statistics(np.zeros(100), most_elements=50)
    assert button == {"kind": "button", "label": "compute the statistics of 100 elements", "operation": "statistics"}


@needs_8
def test_the_grid_shows_who_holds_what():
    (grid,) = shard_section(sharded())
    assert grid["columns"] == 2 and len(grid["cells"]) == 8
    assert grid["cells"][:3] == [
        ["cpu:0", "[0:8, 0:12, 0:3]"],
        ["cpu:1", "[0:8, 12:24, 0:3]"],
        ["cpu:2", "[8:16, 0:12, 0:3]"],
    ]
    assert grid["title"] == "8 parts on 8 devices, cut along axis 0 into 4, axis 1 into 2"
    (grid,) = shard_section(sharded(spec=PartitionSpec("b")))
    assert [cell[0] for cell in grid["cells"]] == ["cpu:0,2,4,6", "cpu:1,3,5,7"]
    (grid,) = shard_section(sharded(spec=PartitionSpec()))
    assert grid["cells"] == [["cpu:0–7", "[0:32, 0:24, 0:3]"]]
    assert shard_section(jnp.ones(3)) == []


@needs_8
@pytest.mark.skipif(not hasattr(jax, "new_ref"), reason="this JAX has no references")
def test_the_grid_of_a_reference_is_that_of_its_buffer():
    titles = [section.get("title") for section in said(jax.new_ref(sharded()), "ref")]
    assert "8 parts on 8 devices, cut along axis 0 into 4, axis 1 into 2" in titles


@needs_8
def test_the_grid_names_another_memory():
    if "pinned_host" not in [memory.kind for memory in jax.devices()[0].addressable_memories()]:
        pytest.skip("this JAX has no pinned_host on CPU")
    x = sharded()
    (grid,) = shard_section(jax.device_put(x, x.sharding.with_memory_kind("pinned_host")))
    assert grid["title"].startswith("8 parts on 8 devices in pinned_host, cut along")


class Device(NamedTuple):
    id: int
    platform: str = "tpu"


def test_the_grid_of_many_parts_is_cut():
    parts = {Device(i): (slice(i, i + 1),) for i in range(1000)}
    sharding = SimpleNamespace(device_set=set(parts), devices_indices_map=lambda shape: parts)
    (grid,) = shard_section(SimpleNamespace(shape=(1000,), sharding=sharding))
    assert len(grid["cells"]) == MOST_CELLS and grid["n_more"] == 1000 - MOST_CELLS


class Documented:
    """The first line.

    And more.
    """

    def method(self):
        raise AssertionError("nobody calls this")


class Slippery(type):
    def __getattribute__(cls, name):
        raise AssertionError("nobody asks the metaclass")


class Odd(metaclass=Slippery):
    __doc__ = property(lambda self: 1 / 0)


def test_a_class_is_known_by_its_docstring_and_place():
    facts = dict(class_facts(Documented))
    lines = Path(__file__).read_text("utf-8").splitlines()
    line = 1 + lines.index("class Documented:")
    assert facts["docstring"] == "The first line.\n\nAnd more."
    assert facts["defined in"].endswith(f"analysis/details/test_details.py:{line}")
    assert class_facts(dict) == class_facts(np.ndarray) == []
    assert dict(class_facts(Odd))["class"].endswith("Odd")


def test_the_text_of_a_function_is_found_through_what_wraps_it():
    def scale(x):
        return 2 * x  # a comment

    for function in (scale, partial(scale, 1), jax.jit(scale), partial(jax.jit(scale))):
        place, text = function_source(function)
        assert text == "def scale(x):\n    return 2 * x  # a comment"
        assert "analysis/details/test_details.py:" in place
    assert function_source(len) is None


def test_no_device_and_no_pipe_is_read_as_source():
    for file in ("/dev/zero", "/dev/stdin", "/nowhere/x.py"):
        space = {}
        exec(compile("def f(): pass", file, "exec"), space)
        assert function_source(space["f"]) is None


def test_an_outline_ends_and_opens_nothing_twice():
    endless = {"deep": {}}
    endless["deep"]["up"] = endless
    lines, is_all = outline([("x", endless)], always)
    assert [(depth, name) for depth, name, *_ in lines] == [(0, "x"), (1, "['deep']"), (2, "['up']")] and is_all
    lines, is_all = outline([(str(i), {"a": object()}) for i in range(1000)], always)
    assert len(lines) == MOST_LINES and not is_all
    lines, _ = outline([("x", {str(i): object() for i in range(1000)})], always)
    assert lines[-1][2] == "… 977 more"


def test_an_outline_of_an_object_shows_its_arrays_and_calls_nothing():
    class Leaf:
        def __init__(self):
            self.w = jnp.ones((3, 4))

        def __repr__(self):
            raise AssertionError

        value = property(lambda self: 1 / 0)

    lines, _ = outline([("leaf", Leaf())], always)
    assert lines[1] == (1, ".w", "float32[3,4]", True)


class Owner:
    def __init__(self, **attributes):
        self.__dict__.update(attributes)


held_by_a_module = {}


@pytest.mark.parametrize(
    "make", [lambda: jnp.ones(3), lambda: np.ones(3), lambda: [1], Owner], ids=["jax", "numpy", "list", "object"]
)
def test_who_holds_an_object_is_named(make, request):
    gc.unfreeze()  # Python names no holder that is frozen, as all modules are in the tests
    request.addfinalizer(gc.freeze)
    node = make()
    held_by_a_module["params"] = [{"w": node}]
    owner = Owner(state=Owner(value=node))
    held_by_a_module["owner"] = owner

    def closes_over():
        return node

    try:
        found, is_all = referrers(node, always)
    finally:
        held_by_a_module.clear()
    assert is_all
    assert f"{__name__}.held_by_a_module['params'][0]['w']" in found, found
    assert any(line.endswith("held_by_a_module['owner'].state.value") for line in found), found
    assert any("closes_over" in line for line in found), found


def test_what_holds_an_object_twice_is_named_with_both_places_and_nothing_of_the_search(request):
    gc.unfreeze()
    request.addfinalizer(gc.freeze)
    node = Owner()
    held_by_a_module["params"] = {"first": [node], "second": [node]}
    try:
        found, is_all = referrers(node, always)
    finally:
        held_by_a_module.clear()
    name = f"{__name__}.held_by_a_module['params']"
    assert {line for line in found if " in test_" not in line} == {f"{name}['first'][0]", f"{name}['second'][0]"}
    assert is_all


def test_searching_referrers_keeps_nothing():
    node = Owner()
    ref, before = weakref.ref(node), sys.getrefcount(node)
    referrers(node, always)
    referrers_section(node, Budget())
    assert sys.getrefcount(node) == before
    del node
    assert ref() is None


def test_nobody_is_kept_by_what_is_said():
    x = jnp.ones((3, 4))
    ref = weakref.ref(x)
    said(x, "array")
    window(x)
    del x
    gc.collect()
    assert ref() is None


@pytest.mark.skipif(not SEES_LOCALS, reason="before Python 3.13 looking would hold them")
def test_a_variable_of_a_thread_that_runs_is_found():
    node, is_there, may_go = Owner(), threading.Event(), threading.Event()

    def training(held):
        is_there.set()
        may_go.wait(60)

    thread = threading.Thread(target=training, args=(node,))
    thread.start()
    is_there.wait(60)
    try:
        found, _ = referrers(node, always)
    finally:
        may_go.set()
        thread.join()
    assert any("held in training" in line for line in found), found


def test_a_budget_of_time_bytes_and_interest_ends_an_answer(monkeypatch):
    monkeypatch.setattr(detail, "MOST_SECONDS", 1.0)
    section = {"kind": "text", "text": "x"}
    now = [0.0]

    def part() -> list:
        now[0] += 0.4
        return [section]

    budget = Budget(now=lambda: now[0])
    *said, last = budget.gather([part] * 9)
    assert last["text"].startswith("There is more; listing it takes too long")
    assert len(said) == 4 and now == [1.6], "the first part, and one second"
    huge = {"kind": "text", "text": "x" * (MOST_BYTES // 2)}
    assert [len(each["text"]) > 100 for each in Budget().gather([lambda: [huge]] * 3)] == [True, False]
    assert len(Budget(lambda: True).gather([lambda: [section]] * 9)) == 1


def test_what_a_part_raises_stands_in_its_place():
    bad, good = Budget().gather([lambda: 1 / 0, lambda: [{"kind": "text", "text": "fine"}]])
    assert bad["tone"] == "bad" and "ZeroDivisionError" in bad["text"] and good["text"] == "fine"
