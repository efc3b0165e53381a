"""Files of arrays as trees."""

from __future__ import annotations

import json
import os
import shutil
import struct
import sys
from pathlib import Path

import jax
import ml_dtypes
import mutated_files
import numpy as np
import pytest

import treeviz
from treeviz.analysis.details import window
from treeviz.explorer import window_section
from treeviz.reader import identifier, read
from treeviz.tree.files import LoadError, nested
from treeviz.tree.stored import Stored

pytestmark = pytest.mark.oldest_jax


def write_safetensors(path: Path, arrays: dict[str, tuple[str, np.ndarray]], **changes) -> Path:
    """As https://github.com/huggingface/safetensors defines the format."""
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, (dtype, array) in arrays.items():
        raw = array.tobytes()
        header[name] = {
            "dtype": dtype,
            "shape": list(array.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
            **changes,
        }
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def values_of(stored: Stored) -> np.ndarray:
    """As they stand in the file."""
    return np.concatenate([np.empty(0, stored.dtype), *stored.chunks()])


def test_safetensors_are_nested_by_their_names_and_read_on_demand(tmp_path):
    w = np.arange(6, dtype=np.float32).reshape(2, 3)
    b = np.array([1, -2, 3], ml_dtypes.bfloat16)
    path = write_safetensors(
        tmp_path / "m.safetensors",
        {"model.layers.1.w": ("F32", w + 1), "model.layers.0.w": ("F32", w), "model.ß": ("BF16", b)},
    )
    assert b"\\u00df" in path.read_bytes(), "as no library writes it"
    expected = {"model": {"layers": [{"w": w}, {"w": w + 1}], "ß": b}}
    tree = read(path)
    assert jax.tree.structure(tree) == jax.tree.structure(expected)
    assert [leaf.name for leaf in jax.tree.leaves(tree)] == ["model.layers.0.w", "model.layers.1.w", "model.ß"]
    for stored, truth in zip(*map(jax.tree.leaves, (tree, expected)), strict=True):
        assert (stored.shape, stored.dtype, stored.nbytes) == (truth.shape, truth.dtype, truth.nbytes)
        np.testing.assert_array_equal(np.asarray(stored), truth)
    view = treeviz.render(tree)
    assert {row.kind for row in view.table.leaves} == {"stored"}
    assert [row.stored_name for row in view.table.leaves] == [leaf.name for leaf in jax.tree.leaves(tree)]
    assert treeviz.walk(expected)[1].stored_name == ""


@pytest.mark.parametrize(
    "changes",
    [
        {"shape": [7]},
        {"shape": [-1]},
        {"shape": None},
        {"data_offsets": [0, 9**9]},
        {"data_offsets": "x"},
        {"dtype": []},
    ],
    ids=str,
)
def test_a_header_that_does_not_fit_the_file_is_an_error(tmp_path, changes):
    path = write_safetensors(tmp_path / "m.safetensors", {"a": ("F32", np.ones(3, np.float32))}, **changes)
    with pytest.raises(LoadError, match=r"m\.safetensors is not a whole \.safetensors file"):
        read(path)


def test_a_dtype_that_jax_lacks_stands_in_the_tree_by_name(tmp_path):
    path = write_safetensors(tmp_path / "m.safetensors", {"a": ("F6_E2M3", np.ones(3, np.uint8))}, shape=[4])
    (row,) = treeviz.walk(read(path)).leaves
    assert (row.shape, row.dtype, row["bytes"]) == ((4,), "F6_E2M3", 3)
    with pytest.raises(ValueError, match="treeviz does not read the values of F6_E2M3"):
        np.asarray(read(path)["a"])


def test_npz_and_npy_headers_tell_what_numpy_reads(tmp_path):
    arrays = {
        "a/x": np.ones((2, 3), np.float64, order="F"),
        "a/y": np.zeros((), np.int8),
        "b": np.ones((0, 4), np.complex64),
        "c": np.ones(3, ">f4"),
    }
    np.savez(tmp_path / "m.npz", **arrays)
    expected = {"a": {"x": arrays["a/x"], "y": arrays["a/y"]}, "b": arrays["b"], "c": arrays["c"]}
    for stored, truth in zip(*map(jax.tree.leaves, (read(tmp_path / "m.npz"), expected)), strict=True):
        assert (stored.shape, stored.dtype) == (truth.shape, truth.dtype)
        np.testing.assert_array_equal(values_of(stored), truth.ravel(order="A"))
        np.testing.assert_array_equal(np.asarray(stored), truth)
    np.save(tmp_path / "x.npy", arrays["a/x"])
    assert read(tmp_path / "x.npy").shape == (2, 3)
    np.testing.assert_array_equal(values_of(read(tmp_path / "x.npy")), arrays["a/x"].ravel("A"))


class Bomb:
    """Unpickling it leaves a trace."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


def test_no_pickle_is_opened_and_the_rest_is_shown(tmp_path):
    trace = tmp_path / "trace"
    objects = np.array([Bomb(trace)], object)
    np.savez(tmp_path / "m.npz", bad=objects, good=np.ones(2))
    np.save(tmp_path / "m.npy", objects)
    tree = read(tmp_path / "m.npz")
    assert (tree["bad"].shape, tree["good"].shape) == ((1,), (2,))
    for bad in (tree["bad"], read(tmp_path / "m.npy")):
        with pytest.raises(ValueError, match="pickled Python objects, which treeviz does not open"):
            np.asarray(bad)
    view = treeviz.render(tree, stats=True)
    assert view.table.headline[0] == "2 leaves"
    assert "pickled Python objects, which treeviz does not open" in view.find("bad")[0].facts.text
    for suffix in (".pkl", ".pickle", ".joblib"):
        (tmp_path / f"m{suffix}").touch()
        with pytest.raises(LoadError, match="treeviz does not open pickles, since that runs the code"):
            read(tmp_path / f"m{suffix}")
    assert not trace.exists()


def test_what_is_no_array_stands_in_the_tree_by_name(tmp_path):
    np.savez(tmp_path / "m.npz", s=np.array(["a"]), v=np.ones(2, ml_dtypes.bfloat16), r=np.ones(2, [("f", "i4")]))
    tree = read(tmp_path / "m.npz")
    rows = {row.label: row for row in treeviz.walk(tree).leaves}
    assert [rows[name].shape for name in "svr"] == [(1,), (2,), (2,)]
    assert "NumPy writes bfloat16" in rows["v"].facts.text
    assert all(row.facts.text.startswith("not a JAX dtype") for row in rows.values())
    assert [each.code for each in treeviz.check(tree, for_="jit")] == ["T130"] * 3


@pytest.mark.parametrize(
    ("flat", "tree"),
    [
        ({"a.b": 1, "a.c.d": 2}, {"a": {"b": 1, "c": {"d": 2}}}),
        ({"a/b.c": 1}, {"a": {"b.c": 1}}),
        ({"x.1": 1, "x.0": 0}, {"x": [0, 1]}),
        ({f"x.{i}": i for i in (11, 10, *range(10))}, {"x": list(range(12))}),
        ({"x.1": 1, "x.2": 2}, {"x": {"1": 1, "2": 2}}),
        ({"x.01": 1, "x.00": 0}, {"x": {"01": 1, "00": 0}}),
        ({"0": "a", "1": "b"}, ["a", "b"]),
        ({"a": 1, "a.b": 2}, {"a": 1, "a.b": 2}),
        ({"a.b": 2, "a": 1}, {"a.b": 2, "a": 1}),
        ({"a": {}, "a.b": 2}, {"a": {}, "a.b": 2}),
        ({}, {}),
        ({".": 1, "..": 2}, {".": 1, "..": 2}),
    ],
    ids=str,
)
def test_flat_names_become_nested_where_they_nest(flat, tree):
    assert nested(flat) == tree


def test_a_name_of_100000_parts_is_a_deep_tree():
    tree = nested({".".join("a" * 100_000): 1})
    assert len(treeviz.walk(tree)) == 100_001


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("a/model.npz", "model"),
        ("my-model.v2.npz", "my_model_v2"),
        ("2.npz", "tree"),
        ("class.npz", "tree"),
        ("é.npz", "é"),
    ],
)
def test_a_tree_is_called_as_its_file_in_words_that_python_takes(path, name):
    assert identifier(Path(path)) == name


def model_of(n: int) -> dict:
    return {"layers": [{"w": np.full((4, 3), i, np.float32), "b": np.zeros(3, np.float32)} for i in range(n)]}


def named(tree: dict) -> dict[str, np.ndarray]:
    return {f"layers.{i}.{key}": array for i, layer in enumerate(tree["layers"]) for key, array in layer.items()}


def save_shards(folder: Path, arrays: dict[str, np.ndarray], n: int = 2, index: bool = True) -> None:
    shards: dict[str, dict] = {}
    for i, (name, array) in enumerate(arrays.items()):
        shards.setdefault(f"model-{i % n + 1:05}-of-{n:05}.safetensors", {})[name] = ("F32", array)
    for shard, content in shards.items():
        write_safetensors(folder / shard, content)
    if index:
        where = {name: shard for shard, content in shards.items() for name in content}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))


@pytest.mark.parametrize("index", [True, False])
def test_shards_are_one_tree_by_their_index_or_their_folder(tmp_path, index):
    model = model_of(3)
    save_shards(tmp_path, named(model), index=index)
    for path in (tmp_path, *tmp_path.glob("*.index.json")):
        tree = read(path)
        assert not treeviz.diff(tree, model).differences
        assert not treeviz.diff(model, tree).not_compared


def test_a_shard_that_is_missing_outside_or_lacks_a_tensor_is_named(tmp_path):
    save_shards(tmp_path, named(model_of(2)))
    index = tmp_path / "model.safetensors.index.json"
    known = json.loads(index.read_text())["weight_map"]
    for shard, message in (
        ("gone.safetensors", "the shard gone.safetensors is not there"),
        ("../x/m.safetensors", "the shard '../x/m.safetensors' is not in its folder: nothing outside is read"),
        ("/dev/zero", "the shard '/dev/zero' is not in its folder"),
        ("model-00001-of-00002.safetensors", "has no tensor 'more', which the index names"),
        (f"{'x' * 300}.safetensors", r"characters\) is not there"),
        (3, "no weight_map"),
    ):
        index.write_text(json.dumps({"weight_map": {**known, "more": shard}}))
        with pytest.raises(LoadError, match=message):
            read(tmp_path)
    index.unlink()
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(LoadError, match=r"the shard model-00002-of-00002\.safetensors is not there"):
        read(tmp_path)


REFUSED = "is a link to .*, which is not in the folder that is read. To follow it, pass follow_links=True"


def test_links_out_of_a_folder_are_followed_only_if_asked_for_or_in_a_cache_of_hugging_face(tmp_path):
    outside, model, cache = tmp_path / "outside", tmp_path / "model", tmp_path / "models--a--b"
    snapshot, blobs = cache / "snapshots" / "abc", cache / "blobs"
    for folder in (outside, model, snapshot, blobs):
        folder.mkdir(parents=True)
    mutated_files.index(outside)
    whole = repr(read(outside))
    for file in outside.iterdir():
        (model / file.name).symlink_to(file)
        shutil.copy(file, blobs)
        (snapshot / file.name).symlink_to(f"../../blobs/{file.name}")
    for path in (model / "m.safetensors", snapshot, snapshot / "m.safetensors.index.json"):
        assert repr(read(path)) == whole
    (snapshot / "m.safetensors").unlink()
    (snapshot / "m.safetensors").symlink_to(outside / "m.safetensors")
    for path in (model, model / "m.safetensors.index.json", snapshot):
        with pytest.raises(LoadError, match=REFUSED):
            read(path)
        assert repr(read(path, follow_links=True)) == whole


@pytest.mark.parametrize("link", ["a", "a/0.0", "a/.zarray", "_METADATA"])
def test_links_out_of_a_folder_of_orbax_are_followed_only_if_asked_for(tmp_path, link):
    mutated_files.zarr(tmp_path)
    path, outside = tmp_path / "zarr" / link, tmp_path / "outside"
    if path.exists():
        path.rename(outside)
    else:
        outside.write_text('{"tree_metadata": {}}')
    path.symlink_to(outside)
    with pytest.raises(LoadError, match=REFUSED):
        np.asarray(read(tmp_path / "zarr")["a"])
    followed = read(tmp_path / "zarr", follow_links=True)
    assert followed == {} if link == "_METADATA" else np.asarray(followed["a"]).shape == (3, 2)


def test_values_are_compared_with_those_of_a_file_piece_by_piece(tmp_path, monkeypatch):
    monkeypatch.setattr("treeviz.tree.stored.CHUNK", 64)
    rng = np.random.default_rng(0)
    here = {name: rng.normal(size=(7, 5)).astype(np.float32) for name in "abc"}
    np.savez(tmp_path / "m.npz", a=here["a"], b=np.asfortranarray(here["b"]), c=here["c"])
    file = read(tmp_path / "m.npz")
    there = {name: array.copy() for name, array in here.items()}
    for name in "ab":
        there[name][3, 4] += 1
    there["c"][2, 1] = np.nan
    for left, right in ((file, there), (there, file), (file, jax.device_put(there))):
        found = treeviz.diff(left, right)
        truth = treeviz.diff(*(here if each is file else there for each in (left, right)))
        assert [str(each) for each in found.differences] == [str(each) for each in truth.differences]
    halves = []
    for last in (0, 1):
        bits = np.array([0x7F81, 0x3F80, last], "<u2")  # the first is a NaN that signals
        halves.append(read(write_safetensors(tmp_path / f"{last}.safetensors", {"w": ("BF16", bits)})))
    assert [each.kind for each in treeviz.diff(*halves).differences] == ["value"]
    np.savez(tmp_path / "n.npz", **there)
    found = treeviz.diff(file, read(tmp_path / "n.npz"))
    assert [each.path for each in found.differences] == ["['a']", "['b']", "['c']"] and not found.not_compared


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("order", "CF")
def test_the_code_of_a_diff_converts_files_of_stacks_and_of_layers(tmp_path, compressed, order):
    layers = [{"w": np.arange(6.0).reshape(2, 3) + i, "b": np.full(3, i)} for i in range(3)]
    stack = {
        "w": np.asarray(np.stack([each["w"].T for each in layers]), order=order),
        "b": np.stack([x["b"] for x in layers]),
    }
    save = np.savez_compressed if compressed else np.savez
    save(
        tmp_path / "layers.npz",
        **{f"model.h.{i}.{name}": x for i, each in enumerate(layers) for name, x in each.items()},
    )
    save(tmp_path / "stack.npz", **{f"params.h.{name}": x for name, x in stack.items()})
    files = [tmp_path / "layers.npz", tmp_path / "stack.npz"]
    for first, other in (files, files[::-1]):
        tree, wanted = read(first), read(other)
        (code,) = [each.code for each in treeviz.diff(tree, wanted).differences if each.code]
        made = eval(code, {"tree": tree, "other": wanted, "jax": jax, "np": np})
        assert not treeviz.diff(made, wanted).differences
    with pytest.raises(IndexError):
        tree["params"]["h"]["w"][3]


@pytest.mark.parametrize("suffix", ["npy", "npz", "safetensors"])
def test_a_window_of_an_array_in_a_file_has_its_values_and_reads_no_more_than_that(tmp_path, monkeypatch, suffix):
    monkeypatch.setattr("treeviz.tree.stored.CHUNK", 1 << 12)
    rng = np.random.default_rng(0)
    truth = np.asarray(rng.normal(size=(3, 70, 100)), np.float32, order="F" if suffix == "npy" else "C")
    path = tmp_path / f"m.{suffix}"
    if suffix == "safetensors":
        write_safetensors(path, {"x": ("F32", truth)})
    else:
        np.save(path, truth) if suffix == "npy" else np.savez_compressed(path, x=truth)
    (stored,) = jax.tree.leaves(read(path))
    for axes, starts in (((), ()), ((1, 2), (2, 6, 36)), ((0, 1), (0, 3, 99)), ((2, 0), (1, 69, 30))):
        part, expected = window(stored, axes, starts), window(truth, axes, starts)
        np.testing.assert_array_equal(part.values, expected.values)
        assert part[2:] == expected[2:] and part.is_here.all()
    (section,) = window_section(stored, (1, 2), (2, 6, 36))
    assert (section["kind"], section["starts"], section["sizes"]) == ("window", (2, 6, 36), (1, 64, 64))
    if suffix == "safetensors":
        monkeypatch.setattr("treeviz.tree.files.check_unchanged", lambda *_: None)
        os.truncate(path, path.stat().st_size - truth[2].nbytes)
        np.testing.assert_array_equal(window(stored, (1, 2), (1, 0, 0)).values, truth[1, :64, :64])
    assert window(Stored((), np.dtype(np.int8), lambda _: iter([np.ones(1, np.int8)]))).values == [[1]]


def test_a_quantized_array_tells_of_the_scale_beside_it(tmp_path):
    one = np.ones(4, np.uint8)
    arrays = {"a.w": ("F8_E4M3", one), "a.w_scale_inv": ("F32", np.ones(1, np.float32)), "b.w": ("F8_E4M3", one)}
    tree = read(write_safetensors(tmp_path / "m.safetensors", arrays))
    texts = {row.keystr: (row.dtype, row.facts.text) for row in treeviz.walk(tree).leaves}
    assert texts["['a']['w']"] == ("float8_e4m3fn", "scaled by w_scale_inv")
    assert texts["['b']['w']"] == ("float8_e4m3fn", "")


def test_a_file_of_flax_is_the_tree_that_it_restores(tmp_path, monkeypatch):
    serialization = pytest.importorskip("flax.serialization")
    monkeypatch.setattr(serialization, "MAX_CHUNK_SIZE", 16)
    tree = {
        "params": {"w": np.arange(12, dtype=np.int16).reshape(3, 4), "layers": [np.ones(2), np.zeros((), "?")]},
        "half": jax.numpy.ones((2, 3), jax.numpy.bfloat16),
        "step": 70_000,
        "rate": 0.5,
        "rest": {"text": "é", "none": None, "yes": True, "z": 1 + 2j, "x": np.float32(3), "negative": -200},
    }
    path = tmp_path / "m.msgpack"
    path.write_bytes(serialization.to_bytes(tree))
    read_, truth = read(path), serialization.msgpack_restore(path.read_bytes())
    truth["params"]["layers"] = [truth["params"]["layers"][key] for key in "01"]
    assert jax.tree.structure(read_) == jax.tree.structure(truth)
    for stored, array in zip(*map(jax.tree.leaves, (read_, truth)), strict=True):
        if isinstance(stored, Stored):
            assert (stored.shape, stored.dtype) == (array.shape, array.dtype)
        np.testing.assert_array_equal(np.asarray(stored), array)
    assert read_["params"]["layers"][0].name == "params/layers/0"
    path.rename(tmp_path / "flax_model.msgpack")
    assert jax.tree.structure(read(tmp_path)) == jax.tree.structure(read_)


def test_a_file_of_equinox_is_the_model_that_it_was_written_from(tmp_path):
    eqx = pytest.importorskip("equinox")
    model = eqx.nn.MLP(2, 3, 4, 1, key=jax.random.key(0), dtype=jax.numpy.bfloat16)
    path = tmp_path / "m.eqx"
    with open(path, "wb") as file:
        file.write(b'{"width": 4}\n')
        eqx.tree_serialise_leaves(file, model)
    assert [array.shape for array in read(path)] == [(4, 2), (4,), (3, 4), (3,)]
    assert not treeviz.diff(read(path, like=eqx.filter_eval_shape(lambda: model)), model).differences
    wide = eqx.nn.MLP(2, 3, 5, 1, key=jax.random.key(0))
    with pytest.raises(
        LoadError, match=r"m\.eqx has the shape \(4, 2\) where like= has the shape \(5, 2\): at .layers\[0\].weight"
    ):
        read(path, like=wide)


def test_a_python_name_is_a_tree_or_what_a_function_makes_without_computing_it(tmp_path, monkeypatch):
    (tmp_path / "some_model.py").write_text(
        "import jax\nimport jax.numpy as jnp\ntree = {'a': [1, 2]}\ndef make():\n"
        "    return {'w': jnp.ones((10**6, 10**6)), 'act': jax.nn.relu}\ndef bad():\n    raise KeyError('x')\n"
    )
    monkeypatch.setattr("sys.path", [str(tmp_path), *sys.path])
    assert read("some_model:tree") == {"a": [1, 2]}
    made = read("some_model:make")
    assert made["w"] == jax.ShapeDtypeStruct((10**6, 10**6), "float32") and made["act"] is jax.nn.relu
    for name, message in (("bad", "was called, and raised KeyError"), ("gone", "AttributeError"), ("x.y", "")):
        with pytest.raises(LoadError, match=f"some_model:{name}.*{message}"):
            read(f"some_model:{name}")
    with pytest.raises(LoadError, match="no_such_module:x: ModuleNotFoundError"):
        read("no_such_module:x")
    np.save(tmp_path / "m.npy", np.ones(2))
    with pytest.raises(LoadError, match=r"m\.npy has names: like= is for files without"):
        read(tmp_path / "m.npy", like=made)
    for i, text in enumerate(("raise OSError('no')", "def f(:", "import sys; sys.exit(3)", "", "1 / 0")):
        (tmp_path / f"model_{i}.py").write_text(text + "\nclass A:\n    x = property(lambda self: 1 / 0)\na = A()\n")
        with pytest.raises(LoadError, match=f"^model_{i}:a.x: (OSError|Syntax|SystemExit|ZeroDivision)"):
            read(f"model_{i}:a.x")
        np.save(tmp_path / "m.eqx.npy", np.ones(2))
        os.replace(tmp_path / "m.eqx.npy", tmp_path / "m.eqx")
        with pytest.raises(LoadError, match=f"^model_{i}:a.x: "):
            read(tmp_path / "m.eqx", like=f"model_{i}:a.x")
    assert identifier("package.model:Net.make") == "package_model_Net_make"


def test_what_is_no_file_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "m.npz")
    (tmp_path / "m.safetensors").symlink_to("/dev/zero")
    for name in ("m.npz", "m.safetensors"):
        with pytest.raises(LoadError, match=f"{name} is not a file or folder"):
            read(tmp_path / name)
    run = tmp_path / "run.treeviz"
    for make in (os.mkfifo, lambda path: path.symlink_to("/dev/zero")):
        make(run)
        with pytest.raises(LoadError, match="is not a file or folder"):
            treeviz.GradientInspector.load(run)
        run.unlink()
    (tmp_path / "shards").mkdir()
    os.mkfifo(tmp_path / "shards" / "m.safetensors.index.json")
    with pytest.raises(LoadError, match=r"m\.safetensors\.index\.json is not a file"):
        read(tmp_path / "shards")
    (tmp_path / "empty").mkdir()
    with pytest.raises(LoadError, match="empty is not a known checkpoint"):
        read(tmp_path / "empty")
