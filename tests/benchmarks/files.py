"""What it costs to show a checkpoint of 70 B parameters and 100,000 arrays, beside its library's read of the metadata.

    python tests/benchmarks/files.py [FORMAT …]

Files of safetensors, GGUF and Orbax are sparse: they have their true size, and take no room on disk; the others hold
small arrays. Each read runs in a process of its own. Time is that of the processor, after the imports, and memory the
most that the process had; where a file is shown, both are of the whole command `treeviz FILE` in a terminal.
"""

from __future__ import annotations

import json
import os
import pty
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

N_ARRAYS, N_PARAMETERS = 100_000, 70_000_000_000
N_NUMBERS = N_PARAMETERS // N_ARRAYS // 1024 * 1024  # of each array, in bfloat16
SHAPE = (N_NUMBERS // 1024, 1024)
_OF_A_LAYER = [f"self_attn.{x}_proj.weight" for x in "qkvo"] + [f"mlp.{x}_proj.weight" for x in ("gate", "up", "down")]
_OF_A_LAYER += ["input_layernorm.weight", "post_attention_layernorm.weight", "self_attn.rotary_emb.inv_freq"]
NAMES = [f"model.layers.{i // 10}.{_OF_A_LAYER[i % 10]}" for i in range(N_ARRAYS)]  # as Llama's

MEASURE = """
import re, sys, time
sys.path[:0] = {path!r}
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024
{imports}
before, began = peak(), time.process_time()
{code}
print(time.process_time() - began, peak(), before)
"""
OURS, READ = "import treeviz as tv\ntv.read", "tree = tv.read({path!r})"
SHOWN = """
import re, sys, time
sys.path[:0] = {repository!r}
from treeviz.cli import main
status = main([{path!r}])
most = int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024
print(time.process_time(), most, file=sys.stderr)
sys.exit(status)
"""
THEIRS = {  # what it imports, and what it does
    "safetensors": (
        "from safetensors import safe_open",
        "with safe_open({path!r}, 'np') as f:\n"
        "    all((s.get_shape(), s.get_dtype()) for s in map(f.get_slice, f.keys()))",
    ),
    "npz": ("import numpy as np", "with np.load({path!r}) as f: all(f[name].shape for name in f.files)"),
    "msgpack": (
        "import pathlib\nfrom flax import serialization",
        "serialization.msgpack_restore(pathlib.Path({path!r}).read_bytes())",
    ),
    "orbax": ("import orbax.checkpoint as ocp", "ocp.PyTreeCheckpointer().metadata({path!r})"),
    "gguf": ("import gguf", "gguf.GGUFReader({path!r})"),
    "torch": ("import torch", "torch.load({path!r}, weights_only=True, mmap=True)"),
}


def make_safetensors(folder: Path) -> Path:
    n_bytes = 2 * N_NUMBERS
    header = {
        name: {"dtype": "BF16", "shape": SHAPE, "data_offsets": [i * n_bytes, (i + 1) * n_bytes]}
        for i, name in enumerate(NAMES)
    }
    text = json.dumps(header, separators=(",", ":")).encode()
    return sparse(folder / "m.safetensors", struct.pack("<Q", len(text)) + text, N_ARRAYS * n_bytes)


def make_gguf(folder: Path) -> Path:
    """Of Q4_K: 144 bytes for 256 numbers."""
    n_bytes = N_NUMBERS // 256 * 144
    parts = [b"GGUF" + struct.pack("<IQQ", 3, N_ARRAYS, 0)]
    for i, name in enumerate(NAMES):
        parts.append(struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", 2))
        parts.append(struct.pack("<QQIQ", *SHAPE[::-1], 12, i * n_bytes))
    header = b"".join(parts)
    return sparse(folder / "m.gguf", header + bytes(-len(header) % 32), N_ARRAYS * n_bytes)


def make_npz(folder: Path) -> Path:
    """Not of the true size: an archive has checksums."""
    import numpy as np

    np.savez(folder / "m.npz", **dict.fromkeys(NAMES, np.zeros((2, 2), np.float32)))
    return folder / "m.npz"


def make_msgpack(folder: Path) -> Path:
    """Not of the true size: the library would read all of it."""
    import numpy as np
    from flax import serialization

    tree = {
        f"layer_{i}": {f"block_{j}": {"kernel": np.zeros((2, 2), np.float32)} for j in range(10)}
        for i in range(N_ARRAYS // 10)
    }
    (folder / "m.msgpack").write_bytes(serialization.msgpack_serialize(tree))
    return folder / "m.msgpack"


def make_orbax(folder: Path) -> Path:
    """The metadata of the arrays and none of their chunks, which then are zeros."""
    import tensorstore as ts

    path = folder / "orbax"
    path.mkdir()
    metadata = {
        "chunks": SHAPE,
        "compressor": {"id": "zstd", "level": 1},
        "dimension_separator": ".",
        "dtype": "bfloat16",
    }
    metadata |= {"fill_value": None, "filters": None, "order": "C", "shape": SHAPE, "zarr_format": 2}
    base = {"driver": "file", "path": f"{path}/"}
    with ts.Transaction() as transaction:
        database = ts.KvStore.open({"driver": "ocdbt", "base": base}).result().with_transaction(transaction)
        text = json.dumps(metadata).encode()
        for name in NAMES:
            database.write(f"{name}/.zarray", text).result()
    entries = {
        str(tuple(name.split("."))): {
            "key_metadata": [{"key": key, "key_type": 1 if key.isdigit() else 2} for key in name.split(".")],
            "value_metadata": {"value_type": "jax.Array", "skip_deserialize": False, "write_shape": SHAPE},
        }
        for name in NAMES
    }
    (path / "_METADATA").write_text(json.dumps({"tree_metadata": entries, "use_ocdbt": True, "use_zarr3": False}))
    return path


def make_torch(folder: Path) -> Path:
    """Not of the true size: PyTorch would write it."""
    import torch

    one = torch.zeros((2, 2), dtype=torch.bfloat16)
    torch.save({name: one.clone() for name in NAMES}, folder / "m.pt")
    return folder / "m.pt"


def sparse(path: Path, header: bytes, n_bytes: int) -> Path:
    with open(path, "wb") as file:
        file.write(header)
        file.truncate(len(header) + n_bytes)
    return path


def shown(path: str) -> tuple[float, float]:
    """Seconds and MB of the command, whose output is a terminal that is read."""
    ours, theirs = pty.openpty()
    script = SHOWN.format(path=path, repository=[str(Path(__file__).parents[2])])
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=theirs, stderr=subprocess.PIPE, text=True) as process:
        os.close(theirs)
        try:
            while os.read(ours, 1 << 16):
                pass
        except OSError:  # the other end is closed
            os.close(ours)
        error = process.stderr.read()  # type: ignore[union-attr]
    if process.returncode:
        raise RuntimeError(error)
    seconds, most = map(float, error.split()[-2:])
    return seconds, most


def measured(imports: str, code: str) -> tuple[float, float, float]:
    """Seconds, MB at most, and MB after the imports."""
    script = MEASURE.format(path=[str(Path(__file__).parents[2])], imports=imports, code=code)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    return tuple(map(float, done.stdout.split()[-3:]))  # type: ignore[return-value]


def main(names: list[str]) -> None:
    print(f"{N_ARRAYS:,} arrays of bfloat16{list(SHAPE)}: {N_ARRAYS * N_NUMBERS / 1e9:.1f} B parameters")
    with tempfile.TemporaryDirectory() as folder:
        for name in names or THEIRS:
            try:
                path = str(globals()[f"make_{name}"](Path(folder)))
            except ImportError as error:
                print(f"{name:12} {error.name} is not installed")
                continue
            ours, (seconds, most) = measured(OURS, READ.format(path=path)), shown(path)
            imports, code = THEIRS[name]
            line = f"{name:12} shown in {seconds:5.2f} s, {most:4.0f} MB; read in {ours[0]:5.2f} s"
            try:
                theirs = measured(imports, code.format(path=path))
                line += f"; the library reads its metadata in {theirs[0]:5.2f} s, {theirs[1]:4.0f} MB"
                line += f"; ratio {ours[0] / theirs[0]:.2f}"
            except RuntimeError as error:
                line += f"; the library: {error}"
            print(line, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
