"""Files that are damaged at random, by a seed: each is a tree, or an error of one line.

python tests/mutated_files.py [--n 10000] [FORMAT …]
"""

from __future__ import annotations

import argparse
import io
import json
import random
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import norm_runs
import numpy as np
import pytest

import treeviz
from treeviz.reader import read
from treeviz.steps.recording.history_file import save
from treeviz.tree.files import LoadError
from treeviz.tree.table import TreeTable

ARRAYS = {"a.0": np.ones((3, 2), np.float32), "a.1": np.zeros(5, np.int8)}
SLOWEST_S = 2.0


def npz(save: Callable) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        file = io.BytesIO()
        save(file, **ARRAYS, b=np.array(["text"]))
        (folder / "m.npz").write_bytes(file.getvalue())

    return write


def safetensors(folder: Path) -> None:
    header, data = {}, b""
    for name, array in ARRAYS.items():
        start, data = len(data), data + array.tobytes()
        dtype = "F32" if array.dtype == np.float32 else "I8"
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [start, len(data)]}
    text = json.dumps(header).encode()
    (folder / "m.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)


def index(folder: Path) -> None:
    safetensors(folder)
    where = {"metadata": {"about": "x" * 300}, "weight_map": dict.fromkeys(ARRAYS, "m.safetensors")}
    (folder / "m.safetensors.index.json").write_text(json.dumps(where))


def msgpack(folder: Path) -> None:
    serialization = pytest.importorskip("flax.serialization")
    tree = {"params": {"layers": list(ARRAYS.values())}, "step": 3, "text": "é", "z": 1j, "none": None}
    (folder / "m.msgpack").write_bytes(serialization.to_bytes(tree))


def eqx(folder: Path) -> None:
    with open(folder / "m.eqx", "wb") as file:
        for array in ARRAYS.values():
            np.save(file, array)


def gguf(folder: Path) -> None:
    writer = pytest.importorskip("gguf").GGUFWriter(folder / "m.gguf", "llama")
    writer.add_array("tokens", ["a", "b"])
    for name, array in ARRAYS.items():
        writer.add_tensor(name, array)
    blocks = np.zeros((2, 144), np.uint8)
    writer.add_tensor("q", blocks, raw_dtype=pytest.importorskip("gguf").GGMLQuantizationType.Q4_K)
    for what in ("header", "kv_data", "tensors"):
        getattr(writer, f"write_{what}_to_file")()
    writer.close()


def torch(folder: Path) -> None:
    library = pytest.importorskip("torch", reason="PyTorch is too large to be installed for the tests")
    library.save({name: library.from_numpy(array.copy()) for name, array in ARRAYS.items()}, folder / "m.pt")


def orbax_key(folder: Path) -> None:
    ocp, jax = pytest.importorskip("orbax.checkpoint"), pytest.importorskip("jax")
    items = ocp.args.Composite(
        state=ocp.args.StandardSave({"key": jax.random.key(0), "a": ARRAYS["a.0"]}),
        array=ocp.args.ArraySave(ARRAYS["a.1"]),
    )
    ocp.Checkpointer(ocp.CompositeCheckpointHandler()).save(folder / "orbax", args=items)


def orbax(**options: bool) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        ocp = pytest.importorskip("orbax.checkpoint")
        ocp.PyTreeCheckpointer(**options).save(folder / "orbax", {"a": list(ARRAYS.values()), "b": {"c": 1, "d": None}})

    return write


def zarr(folder: Path) -> None:
    """As Orbax without a database, and without what else it writes."""
    pytest.importorskip("tensorstore")
    array = folder / "zarr" / "a"
    array.mkdir(parents=True)
    shape = {"shape": [3, 2], "chunks": [3, 2], "order": "C", "dtype": "<f4", "fill_value": None}
    (array / ".zarray").write_text(json.dumps(shape | {"zarr_format": 2, "compressor": None, "filters": None}))
    (array / "0.0").write_bytes(ARRAYS["a.0"].tobytes())


def t5x(folder: Path) -> None:
    serialization, ts = pytest.importorskip("flax.serialization"), pytest.importorskip("tensorstore")
    (folder / "t5x").mkdir()
    store = {"driver": "file", "path": f"{folder}/t5x/target.w/"}
    array = ts.open({"driver": "zarr", "kvstore": store}, create=True, dtype="float32", shape=[3, 2]).result()
    array.write(ARRAYS["a.0"]).result()
    placed = array.spec().to_json() | {"kvstore": store | {"path": "target.w/"}}
    tree = {"target": {"w": placed, "v": "PLACEHOLDER://target.w"}, "step": ARRAYS["a.1"]}
    (folder / "t5x" / "checkpoint").write_bytes(serialization.msgpack_serialize(tree))


def run(folder: Path) -> None:
    paths = {f"['layers'][{i}]": 100 for i in range(2)}
    save(norm_runs.Run(paths, n_steps=12).history(), folder / "m.treeviz")


# What writes a sample into a folder, by kind.
SAMPLES: dict[str, Callable[[Path], None]] = {
    "npy": lambda folder: np.save(folder / "m.npy", ARRAYS["a.0"]),
    "npz": npz(np.savez_compressed),
    "stored.npz": npz(np.savez),
    "safetensors": safetensors,
    "index": index,
    "msgpack": msgpack,
    "eqx": eqx,
    "gguf": gguf,
    "torch": torch,
    "orbax": orbax(),
    "orbax.zarr": orbax(use_ocdbt=False),
    "orbax.key": orbax_key,
    "t5x": t5x,
    "run": run,
}
# The names of the files that are damaged, of kinds whose other files are those of another kind.
DAMAGED = {"index": ("m.safetensors.index.json",), "orbax.key": ("process_0", "_CHECKPOINT_METADATA")}


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Bytes that are flipped, replaced, cut, repeated or left out, most of them near the beginning."""
    mutated = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 5])):
        mutated = mutated or bytearray(b"\0")
        at = rng.choice([rng.randrange(len(mutated)), rng.randrange(min(160, len(mutated)))])
        length = rng.choice([1, 2, 4, 16])
        match rng.choice(["flip", "flip", "flip", "set", "set", "fill", "fill", "leave", "repeat", "cut"]):
            case "flip":
                mutated[at] ^= 1 << rng.randrange(8)
            case "set":
                mutated[at : at + length] = rng.randbytes(len(mutated[at : at + length]))
            case "fill":
                filling = rng.choice([b"\0", b"\xff", b"9", b"-", b"(", b"'", b'"'])
                mutated[at : at + length] = filling * len(mutated[at : at + length])
            case "leave":
                del mutated[at : at + length]
            case "repeat":
                mutated[at:at] = mutated[at : at + length]
            case _:
                del mutated[max(at, 1) :]
    return bytes(mutated)


def mutations(kind: str, n: int, folder: Path) -> Iterator[Path]:
    """The sample, with one of its files damaged, n times."""
    whole = folder / "whole"
    whole.mkdir()
    SAMPLES[kind](whole)
    files = sorted(path for path in whole.rglob("*") if path.is_file())
    files = [path for path in files if path.name in DAMAGED.get(kind, (path.name,))]
    (sample,) = [path for path in whole.iterdir() if path in files or path.is_dir()]
    data = {path: path.read_bytes() for path in files}
    rng = random.Random(0)
    for _ in range(n):
        path = rng.choice(files)
        path.unlink()  # the file before may be mapped into memory
        path.write_bytes(mutated(data[path], rng))
        yield sample
        path.write_bytes(data[path])


def shown(path: Path, stats: bool) -> TreeTable:
    """The table of what is in a file; a ValueError, if nothing is."""
    if path.suffix == ".treeviz":
        return treeviz.GradientInspector.load(path).render().table
    tree = read(path)
    return treeviz.render(tree, stats=True).table if stats else treeviz.walk(tree)


def fuzz(kind: str, n: int, folder: Path) -> int:
    """How many of n damaged files are refused; all others are shown, and some of their values read."""
    n_refused, slowest = 0, 0.0
    for i, path in enumerate(mutations(kind, n, folder)):
        began = time.process_time()
        try:
            table = shown(path, i % 10 == 1)
        except ValueError as error:
            assert path.suffix == ".treeviz" or isinstance(error, LoadError), repr(error)
            assert str(error).isprintable() and len(str(error)) < 1000, str(error)
            n_refused += 1
        else:
            for row in table:
                assert row.shape is None or min(row.shape, default=0) >= 0
        slowest = max(slowest, time.process_time() - began)
        assert slowest < SLOWEST_S or n < 1000, f"mutation {i} took {slowest:.1f} s"
    return n_refused


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=10_000)
    parser.add_argument("formats", nargs="*", default=list(SAMPLES))
    options = parser.parse_args()
    for kind in options.formats:
        folder = Path(tempfile.mkdtemp())
        began = time.process_time()
        try:
            n_refused = fuzz(kind, options.n, folder)
        except pytest.skip.Exception as why:
            print(f"{kind:12} {why}")
            continue
        finally:
            shutil.rmtree(folder)
        spent, most = time.process_time() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        print(f"{kind:12} {options.n:,} files: {n_refused:,} refused, {spent:.0f} s, at most {most} MB", flush=True)


if __name__ == "__main__":
    sys.exit(main())
