"""Files that are damaged, cut or made to harm: a tree or one line, and little memory."""

from __future__ import annotations

import bz2
import io
import json
import lzma
import os
import struct
import tracemalloc
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import jax
import mutated_files
import numpy as np
import pytest

import treeviz
from treeviz import cli
from treeviz.reader import read
from treeviz.tree.files import LoadError, Unread
from treeviz.tree.stored import Stored

MB = 1 << 20
ONES = np.ones(3, np.float32)


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def npy_of(header: str | bytes, values: bytes = b"", version: int = 2) -> bytes:
    header = header.encode() if isinstance(header, str) else header
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<I", len(header)) + header + values


def described(shape: str, descr: str = "'<f4'") -> str:
    return f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}\n"


def npz(members: dict[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return file.getvalue()


def safetensors(header: dict | str | bytes, data: bytes = b"") -> bytes:
    header = json.dumps(header) if isinstance(header, dict) else header
    text = header.encode() if isinstance(header, str) else header
    return struct.pack("<Q", len(text)) + text + data


def tensor(start: int, end: int, shape: list | None = None, dtype: str = "U8") -> dict:
    return {"dtype": dtype, "shape": [end - start] if shape is None else shape, "data_offsets": [start, end]}


def flagged(data: bytes, flag: int) -> bytes:
    """The archive with a flag set for its one member, in both places where it stands."""
    data = bytearray(data)
    data[6] |= flag
    data[data.rindex(b"PK\x01\x02") + 8] |= flag
    return bytes(data)


def peak_of(call: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


BROKEN = {
    "cut.npy": (npy(ONES)[:-1], "the array is cut: 12 bytes of values, and 11 are there"),
    "only_header.npy": (npy(ONES)[:-12], "the array is cut"),
    "negative.npy": (npy_of(described("(-3,)"), bytes(12)), "the array has the shape (-3,)"),
    "negative_pair.npy": (npy_of(described("(-3, -1)"), bytes(12)), "the array has the shape (-3, -1)"),
    "bool.npy": (npy_of(described("(True,)"), bytes(12)), "the array has the shape (True,)"),
    "huge.npy": (npy_of(described(f"({2**70}, 0)")), "the array has the shape"),
    "huge_number.npy": (npy_of(described(f"({'9' * 5000}, 0)")), ""),
    "ranks.npy": (npy_of(described(f"({'1,' * 65})"), bytes(4)), "65 dimensions"),
    "version.npy": (npy_of(described("(3,)"), bytes(12), version=9), "version 9.0"),
    "long.npy": (b"\x93NUMPY\x02\x00\xff\xff\xff\xff", "the header of the array would be 4,294,967,295 bytes long"),
    "nested.npy": (npy_of("(" * 9_000), ""),
    "minus.npy": (npy_of("-" * 9_000 + "1"), ""),
    "lists.npy": (npy_of("[" * 9_000 + "]" * 900), ""),
    "token.npy": (npy_of("{'descr': '''<f4"), ""),
    "indent.npy": (npy_of("{'descr': '<f4',\n  'shape'}\n x"), ""),
    "dtype.npy": (npy_of(described("(3,)", "'<f3'"), bytes(12)), ""),
    "nul.npy": (npy_of(b"{'descr'\0: 1}"), ""),
    "utf8.npy": (npy_of(b"{'\xff': 1}", version=3), ""),
    "cut.npz": (npz({"w.npy": npy(ONES)[:-1]}), "w.npy is cut: 12 bytes of values, and 11 are there"),
    "negative.npz": (npz({"w.npy": npy_of(described("(-3,)"), bytes(12))}), "w.npy has the shape (-3,)"),
    "deflate.npz": (npz({"w.npy": npy(ONES)}).replace(b"w.npy", b"w.npy\xff\xff\xff", 1), ""),
    "lzma.npz": (
        npz({"w.npy": npy(ONES)}, zipfile.ZIP_LZMA).replace(b"w.npy\x09\x04\x05\0]", b"w.npy\x09\x04\x05\0\xff"),
        "",
    ),
    "tail.npz": (npz({"w.npy": npy(ONES)})[:-5], ""),
    "holes.safetensors": (safetensors({"a": tensor(0, 3), "b": tensor(4, 8)}, bytes(8)), "'b' does not follow"),
    "overlap.safetensors": (safetensors({"a": tensor(0, 5), "b": tensor(4, 8)}, bytes(8)), "'b' overlaps another"),
    "same.safetensors": (safetensors({"a": tensor(0, 8), "b": tensor(0, 8)}, bytes(8)), "overlaps another"),
    "later.safetensors": (safetensors({"a": tensor(1, 8)}, bytes(8)), "'a' does not follow"),
    "shorter.safetensors": (safetensors({"a": tensor(0, 8)}, bytes(7)), "have 8 bytes, and the file 7"),
    "longer.safetensors": (safetensors({"a": tensor(0, 8)}, bytes(9)), "have 8 bytes, and the file 9"),
    "backwards.safetensors": (safetensors({"a": tensor(8, 0, dtype="F4")}, bytes(8)), "'a'"),
    "negative.safetensors": (safetensors({"a": tensor(0, 8, [-2, -4])}, bytes(8)), "has the shape (-2, -4)"),
    "unknown.safetensors": (safetensors({"a": tensor(0, 8, [-8], "F4")}, bytes(8)), "has the shape (-8,)"),
    "twice.safetensors": (safetensors('{"a": 1, "a": 2}'), "'a' 2 times"),
    "twice_inside.safetensors": (safetensors('{"a": {"shape": [1], "shape": [2]}}'), "'shape' 2 times"),
    "deep.safetensors": (safetensors('{"a":' + "[" * 200_000), ""),
    "utf8.safetensors": (safetensors(b'{"\xff": 1}'), ""),
    "nothing.safetensors": (b"\0" * 8, ""),
    "null.safetensors": (safetensors("null"), "its header is not a JSON object"),
    "digits.safetensors": (safetensors('{"a": ' + "9" * 5_000 + "}"), ""),
}


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("flags", [[], ["--stats"]], ids=["headers", "stats"])
def test_a_broken_file_is_one_line_and_status_2(tmp_path, capsys, name, flags):
    data, message = BROKEN[name]
    (tmp_path / name).write_bytes(data)
    assert cli.main([str(tmp_path / name), *flags]) == cli.TROUBLE
    output = capsys.readouterr()
    assert f"{name} is not a whole {Path(name).suffix} file: " in output.err and message in output.err
    assert output.err.count("\n") == 1 and output.out == ""


def safetensors_of(path: Path, about: object, is_first: bool = True) -> Path:
    header = {"a.w": tensor(0, 1), "b.w": tensor(1, 2)}
    header = {"__metadata__": about, **header} if is_first else {**header, "__metadata__": about}
    path.write_bytes(safetensors(header, b"12"))
    return path


def test_what_a_file_says_of_itself_is_in_the_row_of_its_tree_and_compared(tmp_path, capsys):
    tags = {"tag": list(range(2_000))}
    about = {"format": "pt", "tags": json.dumps(tags), "\x1b[31m\u202e": "\x00\n"}
    path = safetensors_of(tmp_path / "a.safetensors", about)
    other = safetensors_of(tmp_path / "b.safetensors", {**about, "tags": json.dumps(tags)[:-3]}, is_first=False)
    bare = tmp_path / "bare.safetensors"
    bare.write_bytes(safetensors({"a.w": tensor(0, 1), "b.w": tensor(1, 2)}, b"12"))
    tree = read(path)
    root = treeviz.walk(tree)[0]
    (_, form), (name, text), evil = root.facts.static
    assert (form, name, evil) == ("'pt'", "tags", ("\\x1b[31m\\u202e", "'\\x00\\n'"))
    assert text.startswith('\'{"tag": [0, 1, 2') and " characters, CRC-32 " in text and len(text) < 120
    assert "format='pt', … 2 more of metadata" in root.table.headline
    assert [row.keystr for row in treeviz.walk({"x": tree, "y": ONES}) if row.facts.static] == ["['x']"]
    found = treeviz.diff(tree, read(other)).differences
    assert [(each.path, each.kind) for each in found] == [("", "metadata")] and found[0].left.startswith("tags = ")
    for same in (read(path), read(bare), {"a": {"w": np.array([49], "u1")}, "b": {"w": np.array([50], "u1")}}):
        assert not treeviz.diff(tree, same).differences
    assert cli.main(["diff", str(path), str(other), "--only-values"]) == 0
    assert cli.main(["diff", str(path), str(other)]) == 1 and "\x1b" not in capsys.readouterr().out
    np.save(tmp_path / "m.npy", ONES)
    for line, shown in ((b'{"width": 64}\n', ("width", "64")), (b"{not JSON\n", ("header", "b'{not JSON\\n'"))):
        (tmp_path / "m.eqx").write_bytes(line + npy(ONES))
        assert treeviz.walk(read(tmp_path / "m.eqx"))[0].facts.static == (shown,)


@pytest.mark.parametrize(
    "about", [{str(i): "x" for i in range(10**4)}, {"a": "\udcff" * 10**5}, ["x"] * 10**5, 7], ids=range(4)
)
def test_metadata_of_any_size_or_kind_takes_a_few_kilobytes(tmp_path, about):
    root = treeviz.walk(read(safetensors_of(tmp_path / "m.safetensors", about)))[0]
    static = root.facts.static
    assert 0 < len(static) <= 101 and sum(len(name) + len(text) for name, text in static) < 5_000
    assert all(text.isprintable() for pair in static for text in pair)


def test_a_compressed_header_of_many_bytes_is_not_read(tmp_path):
    path = tmp_path / "bomb.npz"
    path.write_bytes(npz({"w.npy": b"\x93NUMPY\x02\x00" + struct.pack("<I", 16 * MB) + b" " * 16 * MB}))

    def refused():
        with pytest.raises(LoadError, match=r"the header of w\.npy would be 16,777,216 bytes long"):
            read(path)

    assert peak_of(refused) < MB


def test_statistics_of_a_compressed_file_take_the_memory_of_a_chunk(tmp_path):
    path = tmp_path / "zeros.npz"
    np.savez_compressed(path, **{f"{i}/w": np.zeros(4 * MB, np.float32) for i in range(2)}, ones=ONES)
    treeviz.render({"w": np.zeros(3)}, stats=True)  # what is imported once is not counted
    views = []
    assert peak_of(lambda: views.append(treeviz.render(read(path), stats=True))) < 12 * MB  # an array has 16
    assert views[0].table[0]["zeros"] == 8 * MB and views[0].table[0]["max"] == 1


def test_statistics_of_a_file_are_those_of_numpy(tmp_path):
    path = tmp_path / "m.npz"
    rng = np.random.default_rng(0)
    arrays = {"a": rng.normal(size=(700, 500)), "b": np.asfortranarray(rng.normal(size=(5, 7))).astype(">f4")}
    np.savez(path, **arrays, c=np.array(2.5), d=np.zeros((0, 3)))
    table = treeviz.render(read(path), stats=True).table
    for row, array in zip(table.leaves, arrays.values(), strict=False):
        assert (row["min"], row["max"]) == (array.min(), array.max())
        np.testing.assert_allclose([row["mean"], row["std"]], [array.mean(), array.std()], rtol=1e-6, atol=1e-9)


def test_an_array_whose_checksum_is_wrong_says_so_in_its_row_and_the_others_are_read(tmp_path):
    data = npz({"bad.npy": npy(np.ones(9_000)), "good.npy": npy(ONES)}, zipfile.ZIP_STORED)
    path = tmp_path / "m.npz"
    path.write_bytes(data.replace(np.ones(9_000).tobytes(), np.zeros(9_000).tobytes(), 1))
    view = treeviz.render(read(path), stats=True)
    bad, good = view.table.leaves
    assert np.isnan(bad["max"]) and good["max"] == 1
    assert "could not be read: BadZipFile: Bad CRC-32 for file 'bad.npy'" in bad.notes[0].text


@pytest.mark.parametrize("suffix", [".npy", ".safetensors"])
def test_a_file_that_shrinks_while_it_is_read_is_an_error_in_its_row(tmp_path, monkeypatch, suffix):
    monkeypatch.setattr("treeviz.tree.files.check_unchanged", lambda *_: None)  # as if it shrank after that
    path = tmp_path / f"m{suffix}"
    path.write_bytes(npy(ONES) if suffix == ".npy" else safetensors({"a": tensor(0, 12, [3], "F32")}, bytes(12)))
    tree = read(path)
    path.write_bytes(path.read_bytes()[:-12])
    (leaf,) = treeviz.render(tree, stats=True).table.leaves
    assert leaf.notes[0].text == "could not be read: EOFError: its last 12 bytes are not there"


@pytest.mark.parametrize("kind", ["npy", "npz", "stored.npz", "safetensors", "msgpack", "eqx", "gguf", "torch"])
def test_values_of_a_file_that_was_written_again_are_refused_until_it_is_read_again(tmp_path, kind):
    mutated_files.SAMPLES[kind](tmp_path)
    (path,) = tmp_path.iterdir()
    tree, status = read(path), path.stat()
    arrays = [leaf for leaf in jax.tree.leaves(tree) if type(leaf) is Stored]
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 10**9))  # as if the clock had gone on
    for array in arrays:
        for look in (np.asarray, lambda array: array.part((slice(0, 1),) * array.ndim)):
            with pytest.raises(ValueError, match="the file was rewritten after it was read: read it again"):
                look(array)
    for array in filter(lambda leaf: type(leaf) is Stored, jax.tree.leaves(read(path))):
        np.asarray(array)


@pytest.mark.parametrize("compress", [bz2.compress, lzma.compress], ids=["bz2", "lzma"])
def test_members_that_numpy_does_not_write_are_read_where_python_can(tmp_path, compress):
    kind = zipfile.ZIP_BZIP2 if compress is bz2.compress else zipfile.ZIP_LZMA
    (tmp_path / "m.npz").write_bytes(npz({"w.npy": npy(ONES)}, kind))
    assert read(tmp_path / "m.npz")["w"].shape == (3,)


def test_an_encrypted_array_stands_in_the_tree_beside_the_others(tmp_path):
    (tmp_path / "m.npz").write_bytes(flagged(npz({"w.npy": npy(ONES)}), 1))
    assert read(tmp_path / "m.npz") == {"w": Unread("file", "encrypted: treeviz asks for no password")}


def test_no_array_of_a_repeated_name_is_lost(tmp_path):
    path = tmp_path / "m.npz"
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w") as archive:
        warnings.simplefilter("ignore")
        for array in (np.ones(1), np.ones(2), np.ones(3)):
            archive.writestr("w.npy", npy(array))
        archive.writestr("w", b"")
    tree = read(path)
    hidden = Unread("hidden", "numpy.load gives a later array of the same name")
    assert {name: entry for name, entry in tree.items() if name != "w"} == {
        "w (hidden 2)": hidden,
        "w (hidden 1)": hidden,
        "w (not an array)": Unread("file", "not an array"),
    }
    with np.load(path) as theirs:
        assert theirs["w.npy"].shape == tree["w"].shape == (3,)


def test_names_of_very_many_parts_stay_flat_instead_of_filling_the_memory(tmp_path):
    path = tmp_path / "m.safetensors"
    name = "." * MB
    path.write_bytes(safetensors({name: tensor(0, 1)}, b"\0"))
    assert list(read(path)) == [name]


def test_names_of_fields_beyond_latin_1_are_those_of_numpy(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy says that it writes version 3.0
        np.save(tmp_path / "m.npy", np.ones(2, [("名", "i4")]))
    assert "('名', '<i4')" in str(read(tmp_path / "m.npy").dtype)


@pytest.mark.parametrize("kind", mutated_files.SAMPLES)
def test_a_mutated_file_is_a_tree_or_a_load_error_of_one_line(tmp_path, kind):
    n = 60
    n_refused = mutated_files.fuzz(kind, n, tmp_path)
    assert 0 < n_refused < n


@pytest.mark.skipif(not os.path.exists("/proc/self/io"), reason="nobody counts the bytes that are read")
@pytest.mark.parametrize(
    "kind", ["npy", "npz", "stored.npz", "safetensors", "index", "msgpack", "eqx", "gguf", "torch", "orbax"]
)
def test_values_are_not_read_to_show_a_file_or_to_check_it(tmp_path, monkeypatch, kind):
    values = np.random.default_rng(0).integers(0, 2**31, (2, 200_000)).astype(np.int32).view(np.float32)
    monkeypatch.setattr(mutated_files, "ARRAYS", {f"a.{i}": array for i, array in enumerate(values)})
    mutated_files.SAMPLES[kind](tmp_path)
    (path,) = [*tmp_path.glob("*.json")] or tmp_path.iterdir()

    def look() -> int:
        before = n_bytes_read()
        tree = read(path)
        treeviz.render(tree, check=True).html()
        treeviz.diff(tree, tree, values=False)
        return n_bytes_read() - before

    look()  # which imports what it needs
    assert look() < 50_000 < values.nbytes / 30


def n_bytes_read() -> int:
    return int(Path("/proc/self/io").read_text().split()[1])


def test_of_a_safetensors_file_only_the_header_is_read(tmp_path, capsys):
    path, n_bytes = tmp_path / "m.safetensors", 1 << 36
    path.write_bytes(safetensors({"w": tensor(0, n_bytes)}))
    os.truncate(path, path.stat().st_size + n_bytes)  # values that no disk holds
    trees: list = []
    assert peak_of(lambda: trees.append(read(path))) < MB and trees[0]["w"].shape == (n_bytes,)
    assert cli.main([str(path), "--find", "bytes:>100M"]) == 0
    assert f"uint8[{n_bytes}]" in capsys.readouterr().out
