"""Files of arrays as trees."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
import pytest

import treeviz
from treeviz.tree.files.entries import Stored, Unread
from treeviz.tree.files.loading import LoadError, identifier, load
from treeviz.tree.files.nested import nested


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


def test_safetensors_are_nested_and_abstract_without_values_and_equal_with_them(tmp_path):
    w = np.arange(6, dtype=np.float32).reshape(2, 3)
    b = np.array([1, -2, 3], ml_dtypes.bfloat16)
    path = write_safetensors(
        tmp_path / "m.safetensors",
        {"model.layers.1.w": ("F32", w + 1), "model.layers.0.w": ("F32", w), "model.b": ("BF16", b)},
    )
    expected = {"model": {"layers": [{"w": w}, {"w": w + 1}], "b": b}}
    tree, values = load(path), load(path, values=True)
    assert jax.tree.structure(tree) == jax.tree.structure(values) == jax.tree.structure(expected)
    for aval, value, truth in zip(*map(jax.tree.leaves, (tree, values, expected)), strict=True):
        assert type(aval) is jax.ShapeDtypeStruct
        assert (aval.shape, aval.dtype) == (truth.shape, truth.dtype)
        np.testing.assert_array_equal(values_of(value), truth.ravel())
        assert (value.shape, value.dtype) == (truth.shape, truth.dtype)


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
        load(path, values=True)


def test_a_dtype_that_jax_lacks_stands_in_the_tree_by_name(tmp_path):
    path = write_safetensors(tmp_path / "m.safetensors", {"a": ("F6_E2M3", np.ones(3, np.uint8))})
    assert load(path) == {"a": Unread("tensor", "(3,) of F6_E2M3: not a dtype that JAX has")}


def test_npz_and_npy_headers_tell_what_numpy_reads(tmp_path):
    arrays = {
        "a/x": np.ones((2, 3), np.float64, order="F"),
        "a/y": np.zeros((), np.int8),
        "b": np.ones((0, 4), np.complex64),
        "c": np.ones(3, ">f4"),
    }
    np.savez(tmp_path / "m.npz", **arrays)
    expected = {"a": {"x": arrays["a/x"], "y": arrays["a/y"]}, "b": arrays["b"], "c": arrays["c"]}
    tree, values = load(tmp_path / "m.npz"), load(tmp_path / "m.npz", values=True)
    for aval, stored, truth in zip(*map(jax.tree.leaves, (tree, values, expected)), strict=True):
        assert (aval.shape, aval.dtype) == (stored.shape, stored.dtype) == (truth.shape, truth.dtype)
        np.testing.assert_array_equal(values_of(stored), truth.ravel(order="A"))
    np.save(tmp_path / "x.npy", arrays["a/x"])
    assert load(tmp_path / "x.npy").shape == (2, 3)
    np.testing.assert_array_equal(values_of(load(tmp_path / "x.npy", values=True)), arrays["a/x"].ravel("A"))


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
    for values in (False, True):
        tree = load(tmp_path / "m.npz", values=values)
        assert tree["bad"] == Unread("pickle", "(1,): pickled Python objects, which treeviz does not open")
        assert tree["good"].shape == (2,)
        assert isinstance(load(tmp_path / "m.npy", values=values), Unread)
    view = treeviz.render(tree)
    assert view.table.headline[0] == "2 leaves"
    assert "pickled Python objects, which treeviz does not open" in view.text()
    for suffix in (".pkl", ".pickle", ".pt", ".ckpt"):
        with pytest.raises(LoadError, match="treeviz does not open pickles: that runs whatever code"):
            load(tmp_path / f"m{suffix}")
    assert not trace.exists()


def test_what_is_no_array_stands_in_the_tree_by_name(tmp_path):
    np.savez(tmp_path / "m.npz", s=np.array(["a"]), v=np.ones(2, ml_dtypes.bfloat16), r=np.ones(2, [("f", "i4")]))
    tree = load(tmp_path / "m.npz", values=True)
    assert [type(tree[name]) for name in "svr"] == [Unread] * 3
    assert "NumPy writes bfloat16" in tree["v"].text
    assert treeviz.render(tree).text().count("not a JAX dtype") == 3


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
