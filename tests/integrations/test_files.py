"""Checkpoints that other libraries wrote: the tree is theirs, and so are the values."""

from __future__ import annotations

import io
import json
import os
import shutil
import struct
import sys
import types
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import mutated_files
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import treeviz
from treeviz import cli
from treeviz.explainer.explain import explanation
from treeviz.integrations.orbax import random_keys_of
from treeviz.reader import read
from treeviz.tree.files import LoadError

MODEL = {
    "layers": jax.device_put([{"w": np.full((4, 8), i, jnp.bfloat16), "b": np.zeros(8)} for i in range(2)]),
    "step": np.int32(3),
    "none": None,
    "empty": {},
    "np": np.arange(6.0).reshape(2, 3),
}


def assert_holds(path: Path, tree) -> None:
    """The file has this tree, with these values, and the same shapes."""
    found = read(path)
    assert jax.tree.structure(found) == jax.tree.structure(tree)
    for stored, array in zip(*map(jax.tree.leaves, (found, tree)), strict=True):
        assert stored.shape == array.shape
        np.testing.assert_array_equal(np.asarray(stored, np.float32), np.asarray(array, np.float32))
    compared = treeviz.diff(found, tree)
    assert not compared.differences and not compared.not_compared


@pytest.fixture(scope="module")
def orbax():
    return pytest.importorskip("orbax.checkpoint")


@pytest.mark.filterwarnings("ignore")  # Orbax' own
@pytest.mark.parametrize(
    "options", [{}, {"use_ocdbt": False}, {"use_zarr3": True}, {"use_zarr3": True, "use_ocdbt": False}], ids=str
)
def test_a_folder_of_orbax_is_the_tree_that_was_saved(orbax, tmp_path, options):
    path = tmp_path / "saved"
    orbax.PyTreeCheckpointer(**options).save(path, MODEL)
    assert_holds(path, MODEL)
    theirs = {
        row.name: (tuple(row.shape), row.dtype)
        for row in jax.tree.leaves(orbax.PyTreeCheckpointer().metadata(path).item_metadata)
    }
    ours = {leaf.name: (leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(read(path))}
    assert ours == theirs and "layers.1.w" in ours
    stored, array = read(path)["layers"][1]["w"], np.asarray(MODEL["layers"][1]["w"])
    place = tuple(slice(size // 2, size) for size in array.shape)
    np.testing.assert_array_equal(stored.part(place), array[place])
    changed = {**MODEL, "np": MODEL["np"] + 1}
    orbax.PyTreeCheckpointer(**options).save(path, changed, force=True)
    assert_holds(path, changed)
    if (path / "manifest.ocdbt").exists():
        with pytest.raises(ValueError, match="the checkpoint was rewritten after it was read: read it again"):
            np.asarray(stored)
        return
    lost = path / "np" / ("c/0/0" if "use_zarr3" in options else "0.0")
    lost.unlink()
    notes = {
        row.keystr: [note.text for note in row.notes] for row in treeviz.render(read(path), stats=True).table.leaves
    }
    (message,) = notes.pop("['np']")
    assert message.endswith(f'"{lost}" is missing') and not any(notes.values())
    metadata = (path / "_METADATA").read_text()  # of a release that does not store chunks of zeros
    (path / "_METADATA").write_text(metadata.replace('"store_array_data_equal_to_fill_value": true', '"other": true'))
    assert not np.asarray(read(path)["np"]).any()


@pytest.mark.parametrize(
    ("shape", "chunks", "message"),
    [
        ([9 * 10**8], [9 * 10**8], "it would have 3,600,000,000 bytes in chunks of (900000000,), and its files have"),
        ([10**6, 900], [1, 1], "it would have 3,600,000,000 bytes in chunks of (1, 1), and its files have"),
        ([3], [10**9], "it would have 4,000,000,000 bytes in chunks of (1000000000,), and its files have"),
        ([3, 2], [3, 2], "0.0 in it is not a file"),
    ],
    ids=str,
)
def test_values_that_the_files_of_a_checkpoint_cannot_hold_are_not_read(tmp_path, shape, chunks, message):
    mutated_files.zarr(tmp_path)
    header, values = tmp_path / "zarr/a/.zarray", tmp_path / "zarr/a/0.0"
    header.write_text(json.dumps(json.loads(header.read_text()) | {"shape": shape, "chunks": chunks}))
    values.unlink()
    if message.endswith("not a file"):
        os.mkfifo(values)
    else:
        with open(tmp_path / "zarr/a/hole", "wb") as file:
            file.truncate(1 << 40)
    (row,) = treeviz.render(read(tmp_path / "zarr"), stats=True).table.leaves
    assert row.notes[0].text.startswith(f"could not be read: ValueError: {message}")


@pytest.mark.filterwarnings("ignore")
def test_a_checkpoint_of_orbax_says_how_its_arrays_were_sharded_and_whether_that_fits_a_mesh(orbax, tmp_path, capsys):
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:8]).reshape(4, 2), ("data", "model"))
    specs = {"a": P("data", "model"), "b": P(("data", "model")), "c": P()}
    arrays = {
        name: jax.device_put(np.ones((8, 2), np.float32), jax.sharding.NamedSharding(mesh, spec))
        for name, spec in specs.items()
    }
    orbax.PyTreeCheckpointer().save(tmp_path / "saved", {**arrays, "one": jnp.ones(3), "np": np.ones(2)})
    assert cli.main(["show", str(tmp_path / "saved"), "--sharding"]) == 0
    text = capsys.readouterr().out
    assert "mesh 4×2 (data, model) on 8 devices when saved" in text
    for shown in ("P('data', 'model')", "P(('data', 'model'))", "replicated ×8", "cpu:0"):
        assert shown in text
    tree = read(tmp_path / "saved")
    rows = {row.label: row.facts.sharding for row in treeviz.walk(tree).leaves}
    assert rows["np"] is None and all(
        rows[name].shard_shape == x.sharding.shard_shape(x.shape) for name, x in arrays.items()
    )
    assert not treeviz.diff(tree, {**arrays, "one": jnp.ones(3), "np": np.ones(2)}).differences
    other = jax.sharding.Mesh(np.array(jax.devices()[:6]).reshape(3, 2), ("data", "model"))
    fits = [treeviz.overlay(tree, tree, use="shardings", mesh=each).differences for each in (mesh, other)]
    assert not fits[0] and [each.path for each in fits[1]] == ["['a']", "['b']"]
    shutil.copytree(tmp_path / "saved", tmp_path / "other")
    about = tmp_path / "other" / "_sharding"
    about.write_text(about.read_text().replace(r"\"partition_spec\": [\"data\", \"model\"]", r"\"partition_spec\": []"))
    found = treeviz.diff(tree, read(tmp_path / "other"), values=False).differences
    assert [(each.path, each.kind) for each in found] == [("['a']", "sharding")]
    for text in ("{", '{"YQ==": "7"}', '{"YQ==": 7}', '{"!": "{}"}', "[]"):
        (tmp_path / "saved" / "_sharding").write_text(text)
        assert treeviz.walk(read(tmp_path / "saved")).find("key:a")[0].facts.sharding is None


@pytest.mark.filterwarnings("ignore")
def test_a_managers_folder_is_its_steps_and_each_step_its_items(orbax, tmp_path):
    with orbax.CheckpointManager(tmp_path / "run") as manager:
        for step in (1, 20):
            items = {"state": orbax.args.StandardSave(MODEL), "meta": orbax.args.JsonSave({"rate": 0.5})}
            manager.save(step, args=orbax.args.Composite(**items))
        manager.wait_until_finished()
        metadata = treeviz.walk(manager.metadata(20), name="m")
        assert {row.shape for row in metadata.leaves} == {leaf.shape for leaf in jax.tree.leaves(MODEL)}
        expression = metadata.find("layers/1/w")[0].expression
        assert eval(expression, {"treeviz": treeviz, "m": manager.metadata(20)}).name == "layers.1.w"
        assert len(list(treeviz.walk(manager.item_metadata(20)).leaves)) == len(jax.tree.leaves(MODEL))
        wide = {"w": jnp.zeros((4, 9)), "b": jnp.zeros(8)}
        for layers, lines in (
            (MODEL["layers"] * 2, ["['layers']: length: 4 children → 2 children"]),
            ([MODEL["layers"][0], wide], ["['layers'][1]['w']: shape: (4, 9) → (4, 8)"]),
        ):
            args = orbax.args.Composite(state=orbax.args.StandardRestore({**MODEL, "layers": layers, "step": 3}))
            with pytest.raises(ValueError) as raised, treeviz.explain_errors():
                manager.restore(20, args=args)
            title, *found = explanation(raised.value, limit_s=60).split("\n  ")
            assert title == "treeviz: the checkpoint does not match the target:" and found[: len(lines)] == lines
            del raised
    about = tmp_path / "run" / "20" / "_CHECKPOINT_METADATA"
    about.write_text(json.dumps(json.loads(about.read_text()) | {"custom_metadata": {"lr": 0.1}}))
    steps = read(tmp_path / "run")
    table = treeviz.walk(steps)
    one, twenty = (dict(row.facts.static) for row in table.find("key:1 | key:20") if row.depth == 1)
    assert one["step"] == "1" and twenty["step"] == "20" and twenty["lr"] == "0.1" and one["saved"].endswith(" UTC")
    found = [each.left for each in treeviz.diff(steps[1], steps[20]).differences if each.kind == "metadata"]
    assert found == ["step = 1", "lr = none"]
    assert list(steps) == [1, 20] and steps[20]["meta"] == {"rate": 0.5}
    assert jax.tree.structure(steps[1]["state"]) == jax.tree.structure(MODEL)
    assert_holds(tmp_path / "run" / "20" / "state", MODEL)
    unfinished = tmp_path / "run" / "30.orbax-checkpoint-tmp-1"
    unfinished.mkdir()
    assert list(read(tmp_path / "run")) == [1, 20]
    with pytest.raises(LoadError, match=r"30\.orbax-checkpoint-tmp-1: the checkpoint is being written"):
        read(unfinished)
    (tmp_path / "run" / "20" / "state" / "manifest.ocdbt").unlink()  # what Orbax writes last
    with pytest.raises(LoadError, match="20/state: the checkpoint is being written, or what wrote it did not end"):
        read(tmp_path / "run" / "20")


@pytest.mark.filterwarnings("ignore")
def test_a_folder_of_orbax_version_1_is_its_state_and_says_which_array_is_a_prng_key(orbax, tmp_path):
    orbax.PyTreeCheckpointer().save(tmp_path / "saved" / "state", {"layers": [jax.random.key(1)], "w": jnp.ones(2)})
    assert list(read(tmp_path / "saved")) == ["state"]  # an item of somebody's manager
    (tmp_path / "saved" / "orbax.checkpoint").touch()
    (key,) = treeviz.render(read(tmp_path / "saved"), name="saved").find("prng key")
    assert key.expression == "saved['layers'][0]"


@pytest.mark.filterwarnings("ignore")
def test_what_was_saved_as_an_array_or_as_a_prng_key_is_shown_as_orbax_restores_it(orbax, tmp_path):
    array, args = jnp.arange(6.0).reshape(2, 3), orbax.args
    orbax.Checkpointer(orbax.ArrayCheckpointHandler("mine")).save(tmp_path / "array", args=args.ArraySave(array))
    np.testing.assert_array_equal(np.asarray(read(tmp_path / "array")), array)
    with orbax.CheckpointManager(tmp_path / "run") as manager:
        key = args.JaxRandomKeySave(jax.random.key(1))
        state = args.StandardSave({"checkpoint": array})
        manager.save(1, args=args.Composite(array=args.ArraySave(array), key=key, state=state))
        manager.wait_until_finished()
        theirs = manager.restore(1)
    ours = read(tmp_path / "run")[1]
    assert ours.keys() == theirs.keys()
    np.testing.assert_array_equal(np.asarray(ours["array"]), theirs["array"])
    np.testing.assert_array_equal(np.asarray(ours["state"]["checkpoint"]), theirs["state"]["checkpoint"])
    np.testing.assert_array_equal(np.asarray(ours["key"]["jax_random_key"]), jax.random.key_data(theirs["key"]))
    about = tmp_path / "array" / "_CHECKPOINT_METADATA"
    about.write_text("{")  # Orbax does not need it, and without it nobody knows
    assert list(read(tmp_path / "array")) == ["mine"]


def test_what_is_wrong_in_the_metadata_of_arrays_is_told_with_the_name_of_the_file(tmp_path):
    key = {"array_metadata": {"param_name": "a", "ext_metadata": {"random_key_impl": "fry"}}}
    whole = json.dumps({"array_metadatas": [{"array_metadata": {"param_name": "b", "ext_metadata": None}}, key]})
    assert [*random_keys_of(whole.encode())] == [("a", "fry")]
    assert [*random_keys_of(whole.replace("{", '{"about": {}, ', 1).encode())] == [("a", "fry")]
    (tmp_path / "array_metadatas").mkdir()
    (tmp_path / "_METADATA").write_text('{"tree_metadata": {}}')
    for text in (whole[:-3], whole[:-2] + ",]}", whole + "}", whole.replace("ext_", "no_"), whole.replace("array", "")):
        (tmp_path / "array_metadatas" / "process_0").write_text(text)
        with pytest.raises(LoadError, match="is not a whole checkpoint: in process_0: "):
            read(tmp_path)


def test_a_folder_of_an_older_orbax_is_its_msgpack_with_the_arrays_beside_it(tmp_path):
    """As Orbax 0.1 writes it: names in place of arrays, and an array of zarr for each."""
    serialization = pytest.importorskip("flax.serialization")
    ts = pytest.importorskip("tensorstore")
    tree = {"params": {"w": np.ones((2, 3), np.float32)}, "step": 7}
    names = {"params": {"w": "PLACEHOLDER://params.w"}, "step": 7, "gone": "PLACEHOLDER://gone"}
    (tmp_path / "checkpoint").write_bytes(serialization.msgpack_serialize(names))
    spec = {"driver": "zarr", "kvstore": {"driver": "file", "path": f"{tmp_path}/params.w/"}}
    ts.open(spec, create=True, dtype="float32", shape=[2, 3]).result().write(tree["params"]["w"]).result()
    found = read(tmp_path)
    np.testing.assert_array_equal(np.asarray(found["params"]["w"]), tree["params"]["w"])
    assert found["step"] == 7 and found["gone"].text == "its values are not in the checkpoint"
    names["params"]["w"] = "PLACEHOLDER://../outside"
    (tmp_path / "checkpoint").write_bytes(serialization.msgpack_serialize(names))
    with pytest.raises(LoadError, match=r"'\.\./outside' is not in its folder: nothing outside is read"):
        read(tmp_path)


@pytest.mark.filterwarnings("ignore")  # Flax' own
def test_files_of_flax_and_t5x_have_the_arrays_that_stand_beside_them(tmp_path):
    """As `flax.training.checkpoints` and T5X write them: a name, or what TensorStore needs to open the array."""
    checkpoints = pytest.importorskip("flax.training.checkpoints")
    serialization = pytest.importorskip("flax.serialization")
    ts = pytest.importorskip("tensorstore")
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    with pytest.importorskip("flax.configurations").config.temp_flip_flag("use_orbax_checkpointing", False):
        for step in (9, 10):
            checkpoints.save_checkpoint(tmp_path / "flax", {"w": array * step, "step": step}, step, keep=2)
    found = read(tmp_path / "flax")
    assert list(found) == [9, 10] and found[9]["step"] == 9
    np.testing.assert_array_equal(np.asarray(found[10]["w"]), array * 10)

    def written(path: Path) -> dict[str, Any]:
        store = {"driver": "file", "path": f"{path}/"}
        stored = ts.open({"driver": "zarr", "kvstore": store}, create=True, dtype="float32", shape=[2, 3]).result()
        stored.write(array).result()
        return stored.spec().to_json() | {"kvstore": store | {"path": f"{path.name}/"}}

    (tmp_path / "t5x").mkdir()
    tree: dict[str, Any] = {"target": {"w": written(tmp_path / "t5x" / "target.w")}, "version": 3}
    (tmp_path / "t5x" / "checkpoint").write_bytes(serialization.msgpack_serialize(tree))
    written(tmp_path / "flax" / "checkpoint_11_gda" / "w")
    (tmp_path / "flax" / "checkpoint_11").write_bytes(serialization.msgpack_serialize({"w": "//GDAPlaceholder:w"}))
    for path in (tmp_path / "t5x", tmp_path / "t5x" / "checkpoint"):
        np.testing.assert_array_equal(np.asarray(read(path)["target"]["w"]), array)
    np.testing.assert_array_equal(np.asarray(read(tmp_path / "flax")[11]["w"]), array)
    (tmp_path / "flax" / "checkpoint_9").write_bytes(b"\x81")
    with pytest.raises(LoadError, match="flax is not a whole checkpoint: in checkpoint_9: it is cut"):
        read(tmp_path / "flax")
    tree["target"]["w"]["kvstore"]["path"] = "../flax/checkpoint_11_gda/w/"
    (tmp_path / "t5x" / "checkpoint").write_bytes(serialization.msgpack_serialize(tree))
    with pytest.raises(LoadError, match="nothing outside is read"):
        read(tmp_path / "t5x")


def test_a_file_of_safetensors_has_the_names_and_values_that_it_was_given(tmp_path):
    library = pytest.importorskip("safetensors.numpy")
    arrays = {f"model.layers.{i}.w": np.full((2, 3), i, np.float16) for i in range(2)}
    library.save_file(arrays, tmp_path / "m.safetensors", metadata={"format": "pt"})
    layers = [{"w": arrays[f"model.layers.{i}.w"]} for i in range(2)]
    assert_holds(tmp_path / "m.safetensors", {"model": {"layers": layers}})


def write_gguf(path: Path) -> dict:
    gguf = pytest.importorskip("gguf")
    kinds, rng = gguf.GGMLQuantizationType, np.random.default_rng(0)
    w = rng.normal(size=(8, 512)).astype(np.float32)
    q4 = rng.integers(0, 60, (8, 2 * 144), dtype=np.uint8)
    q8 = gguf.quants.quantize(w, kinds.Q8_0)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("llama.block_count", 2)
    writer.add_array("tokenizer.ggml.tokens", ["a", "b"] * 50)
    writer.add_float32("llama.eps", 1e-5)
    writer.add_array("few", [1, 2])
    writer.add_tensor("blk.0.attn_q.weight", q8, raw_dtype=kinds.Q8_0)
    writer.add_tensor("blk.1.attn_q.weight", q4, raw_dtype=kinds.Q4_K)
    writer.add_tensor("output_norm.weight", w[0].astype(np.float16))
    for write in ("header_to_file", "kv_data_to_file", "tensors_to_file"):
        getattr(writer, f"write_{write}")()
    writer.close()
    blocks = [gguf.quants.dequantize(q8, kinds.Q8_0), gguf.quants.dequantize(q4, kinds.Q4_K)]
    return {"blk": [{"attn_q": {"weight": each}} for each in blocks], "output_norm": {"weight": w[0].astype("f2")}}


def test_a_gguf_file_says_how_it_packs_its_numbers_and_gives_what_they_stand_for(tmp_path, monkeypatch):
    tree = write_gguf(tmp_path / "m.gguf")
    monkeypatch.setattr("treeviz.tree.stored.CHUNK", 1000)
    found = read(tmp_path / "m.gguf")
    for stored, array in zip(*map(jax.tree.leaves, (found, tree)), strict=True):
        np.testing.assert_array_equal(np.asarray(stored), array)
    (q4,) = treeviz.render(found).find("blk/1/**/weight")
    assert (q4.dtype, q4.shape, q4["bytes"], q4["elements"]) == ("Q4_K", (8, 512), 8 * 2 * 144, 4096)
    assert q4.facts.text == "blocks of 256 in 144 bytes"
    about = dict(treeviz.walk(found)[0].facts.static)
    tokens = about.pop("tokenizer.ggml.tokens")
    assert about == {"general.architecture": "'llama'", "llama.block_count": "2", "llama.eps": "1e-05", "few": "[1, 2]"}
    assert tokens.startswith("100 values, CRC-32 ")
    kinds = [(each.kind, each.left, each.right) for each in treeviz.diff(found, tree).differences]
    assert kinds == [("dtype", "Q8_0", "float32"), ("dtype", "Q4_K", "float32")]


def gguf_header(*tensors: tuple[str, tuple[int, ...], int, int], n: int | None = None) -> bytes:
    data = b"GGUF" + struct.pack("<IQQ", 3, len(tensors) if n is None else n, 0)
    for name, shape, kind, offset in tensors:
        data += struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", len(shape))
        data += struct.pack(f"<{len(shape)}QIQ", *shape, kind, offset)
    return data + bytes(-len(data) % 32)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"GGUF\x03\0\0\0", "it is cut: its header goes on"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**62), "it is cut"),
        (gguf_header(n=2**62), "it would have 4,611,686,018,427,387,904 tensors"),
        (gguf_header(("a", (2**63,), 0, 0)), "has the shape"),
        (gguf_header(("a", (2**62, 2**62), 0, 0)), "ends at byte"),
        (gguf_header(("a", (4,), 0, 0)) + bytes(8), "'a' ends at byte 16 of the values, and 8 are there"),
        (gguf_header(("a", (4,), 0, 0), ("b", (4,), 0, 8)) + bytes(24), "'b' overlaps the tensor 'a'"),
        (gguf_header(("a", (4,), 0, 0), ("a", (4,), 0, 16)) + bytes(32), "it has 'a' 2 times"),
        (gguf_header(("a", (3,), 12, 0)) + bytes(200), "has a last axis of 3, and blocks of 256"),
        (gguf_header(("a", (3,), 999, 0)), "999 is not a valid GGMLQuantizationType"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    ],
    ids=range(11),
)
def test_a_gguf_file_that_is_damaged_or_made_to_harm_is_one_line(tmp_path, data, message):
    pytest.importorskip("gguf")
    (tmp_path / "m.gguf").write_bytes(data)
    with pytest.raises(LoadError, match=r"m\.gguf is not a whole \.gguf file: ") as error:
        read(tmp_path / "m.gguf")
    assert message in str(error.value)


def test_the_metadata_of_a_gguf_file_is_skipped_without_a_call_of_the_system_for_each_value(tmp_path):
    pytest.importorskip("gguf")
    from treeviz.integrations.gguf import _Header

    values = struct.pack("<IQ", 0, 0) * 1000 + struct.pack("<IQ", 0, 10**6) + bytes(10**6)  # arrays of bytes
    metadata = struct.pack("<Q", 1) + b"t" + struct.pack("<IIQ", 9, 9, 1001) + values
    (tmp_path / "m.gguf").write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + metadata)
    calls = []

    class File(io.FileIO):
        def tell(self):
            calls.append("tell")
            return super().tell()

        def readinto(self, buffer):
            calls.append(len(buffer))
            return super().readinto(buffer)

    with io.BufferedReader(File(tmp_path / "m.gguf")) as file:
        assert _Header(file).tensors()[0] == []
    assert len(calls) < 30


def test_a_library_that_is_missing_is_named_with_what_installs_it(tmp_path, monkeypatch):
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    (tmp_path / "m.pt").write_bytes(npz_of({"archive/data.pkl": b""}))
    (tmp_path / "o").mkdir()
    (tmp_path / "o" / "manifest.ocdbt").touch()
    leaf = {"key_metadata": [{"key": "a", "key_type": 2}], "value_metadata": {"value_type": "jax.Array"}}
    (tmp_path / "o" / "_METADATA").write_text(json.dumps({"tree_metadata": {"a": leaf}}))
    for name, library, extra in (("m.gguf", "gguf", "gguf"), ("m.pt", "torch", "torch"), ("o", "tensorstore", "orbax")):
        monkeypatch.setitem(sys.modules, library, None)
        with pytest.raises(
            ImportError, match=rf'{name}: {library} is not installed: pip install "jax-treeviz\[{extra}\]"'
        ):
            read(tmp_path / name)


def npz_of(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return file.getvalue()


def test_a_file_of_pytorch_that_is_no_archive_or_compressed_is_refused_before_it_is_opened(tmp_path):
    (tmp_path / "old.pt").write_bytes(b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.")
    with pytest.raises(LoadError, match=r"old\.pt is not an archive of PyTorch 1\.6 or later"):
        read(tmp_path / "old.pt")
    with zipfile.ZipFile(tmp_path / "bomb.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(1 << 20))
    with pytest.raises(LoadError, match=r"compressed, which torch\.save does not do"):
        read(tmp_path / "bomb.pt")
    for part in ("code/__torch__.py", "constants.pkl"):
        (tmp_path / "script.pt").write_bytes(npz_of({f"script/{part}": b"", "script/data.pkl": b""}))
        with pytest.raises(LoadError, match=r"script\.pt holds a TorchScript program, which treeviz does not open"):
            read(tmp_path / "script.pt")


def test_pytorch_is_told_to_run_no_code_of_a_file(tmp_path, monkeypatch):
    """Also where it is not installed: by a stand-in that notes how it is called."""
    torch, told = types.ModuleType("torch"), []
    vars(torch).update(Tensor=bytes, load=lambda path, **options: told.append((path, options)) or {"epoch": 3})
    monkeypatch.setitem(sys.modules, "torch", torch)
    path = tmp_path / "m.pt"
    path.write_bytes(npz_of({"m/data.pkl": b"."}))
    assert read(path) == {"epoch": 3}
    assert told == [(path, {"map_location": "cpu", "weights_only": True, "mmap": True})]


def test_a_file_of_pytorch_is_the_tree_of_its_tensors(tmp_path):
    torch = pytest.importorskip("torch", reason="PyTorch is too large to be installed for the tests")
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2)).to(torch.bfloat16)
    path, trace = tmp_path / "m.pt", tmp_path / "trace"
    more = {
        "epoch": 3,
        "t": torch.arange(6).reshape(2, 3).t(),
        "z": torch.tensor(2.0),
        "rows": torch.eye(3).to_sparse(),
    }
    torch.save({"model": model.state_dict(), **more}, path)
    tree = read(path)
    assert tree["epoch"] == 3 and tree["model"][1]["weight"].name == "model.1.weight"
    truth = model.state_dict()["1.weight"].float().numpy()
    np.testing.assert_array_equal(np.asarray(tree["model"][1]["weight"], np.float32), truth)
    np.testing.assert_array_equal(np.asarray(tree["t"]), np.arange(6).reshape(2, 3).T)
    assert np.asarray(tree["z"]) == 2
    assert treeviz.walk(tree).find("rows")[0].facts.text == "sparse_coo"

    state = {f"layers.{i}.w": torch.full((2, 3), i) for i in range(3)}
    for shard, names in (("a.bin", ["layers.0.w"]), ("b.bin", ["layers.1.w", "layers.2.w"])):
        torch.save({name: state[name] for name in names}, tmp_path / shard)
    where = {"layers.0.w": "a.bin", "layers.1.w": "b.bin", "layers.2.w": "b.bin"}
    (tmp_path / "m.bin.index.json").write_text(json.dumps({"weight_map": where}))
    for index in (tmp_path, tmp_path / "m.bin.index.json"):
        assert [np.asarray(layer["w"])[1, 2] for layer in read(index)["layers"]] == [0, 1, 2]

    class Bomb:
        def __reduce__(self):
            return (os.mkdir, (str(trace),))

    torch.save({"w": torch.ones(2), "bomb": Bomb()}, path)
    with pytest.raises(LoadError, match=r"holds more than tensors and plain values\. treeviz does not open it"):
        read(path)
    assert not trace.exists()


def linen_model(path: Path, save: Callable[[Path, Any], object]) -> tuple[Any, Any]:
    nn = pytest.importorskip("flax.linen")
    model = nn.Sequential([nn.Dense(4), nn.relu, nn.Dense(2, param_dtype=jnp.bfloat16)])
    arguments = jax.random.key(0), jnp.ones((1, 3))
    save(path, model.init(*arguments))
    return read(path), jax.eval_shape(model.init, *arguments)


def nnx_model(path: Path, save: Callable[[Path, Any], object]) -> tuple[Any, Any]:
    nnx = pytest.importorskip("flax.nnx")

    def make() -> Any:
        rngs = nnx.Rngs(0)
        return nnx.state(nnx.Dict(layers=nnx.List([nnx.Linear(3, 4, rngs=rngs)]), norm=nnx.BatchNorm(4, rngs=rngs)))

    save(path, nnx.to_pure_dict(make()))
    # Orbax writes the keys of a dict as text, which Flax' function undoes.
    return nnx.restore_int_paths(read(path)), nnx.to_pure_dict(jax.eval_shape(make))


def equinox_model(path: Path, save: Callable[[Path, Any], object]) -> tuple[Any, Any]:
    eqx = pytest.importorskip("equinox")

    def make() -> Any:
        return eqx.filter(eqx.nn.MLP(2, 3, 4, 1, key=jax.random.key(0)), eqx.is_array)

    eqx.tree_serialise_leaves(path.with_suffix(".eqx"), make())
    return read(path.with_suffix(".eqx"), like=jax.eval_shape(make)), jax.eval_shape(make)


def by_orbax(path: Path, tree: Any) -> None:
    pytest.importorskip("orbax.checkpoint").PyTreeCheckpointer().save(path, tree)


def by_flax(path: Path, tree: Any) -> None:
    path.with_suffix(".msgpack").write_bytes(pytest.importorskip("flax.serialization").to_bytes(tree))
    path.symlink_to(path.with_suffix(".msgpack"))


@pytest.mark.filterwarnings("ignore")  # Orbax' own
@pytest.mark.parametrize(
    ("model", "save"),
    [(linen_model, by_orbax), (linen_model, by_flax), (nnx_model, by_orbax), (equinox_model, by_orbax)],
)
def test_the_checkpoint_of_a_model_is_the_tree_that_eval_shape_gives_for_it(tmp_path, model, save):
    shown, abstract = model(tmp_path / "checkpoint_1", save)
    assert jax.tree.structure(shown) == jax.tree.structure(abstract)
    rows, truth = (treeviz.walk(each) for each in (shown, abstract))
    assert [(row.keystr, row.shape, row.dtype) for row in rows] == [(row.keystr, row.shape, row.dtype) for row in truth]
    kinds = [row.kind for row in rows.leaves]
    assert len(kinds) >= 4 and set(kinds) == {"stored"}
