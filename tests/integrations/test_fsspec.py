"""Files at addresses: in fsspec's memory, and on servers of this machine that keep to the rules, or do not."""

from __future__ import annotations

import gc
import json
import re
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import jax
import mutated_files
import numpy as np
import pytest
from runs_in_files import Training

import treeviz
from treeviz import cli
from treeviz.cli.site import Site
from treeviz.integrations import fsspec as fsspec_files
from treeviz.integrations.fsspec import RunCopy
from treeviz.reader import path_of, read
from treeviz.steps.recording.history_file import Followed, journal_of
from treeviz.tree.files import LoadError
from treeviz.tree.stored import on_fetch

fsspec = pytest.importorskip("fsspec")
pytest.importorskip("aiohttp")


class Server(ThreadingHTTPServer):
    """Serves a folder by ranges; `how` names the rule that it breaks."""

    daemon_threads = True

    def __init__(self, folder: Path, how: str = "") -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder, self.how, self.ranges, self.version = folder, how, [], 1
        self.short: list[int] = []  # where ranges of few bytes start
        self.all_came = threading.Barrier(3)

    def handle_error(self, *_: object) -> None:
        """A client that goes away is no news."""

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def translate_path(self, path: str) -> str:
        return str(self.server.folder) + path.partition("?")[0]

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        file, how = Path(self.translate_path(self.path)), self.server.how
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        self.server.ranges.append((file.name, asked and tuple(map(int, asked.groups()))))
        if how.isdecimal():
            self.send_error(int(how))
        elif not file.is_file() or asked is None or how == "no ranges":
            super().do_GET()
        else:
            self.send_range(file.read_bytes(), *map(int, asked.groups()), how)

    def send_range(self, data: bytes, first: int, last: int, how: str) -> None:
        is_short = last - first < 2_000
        self.server.short += [first] * is_short
        if how == "waits" and (is_short or (first == 0 and self.path.endswith(".safetensors"))):
            self.server.all_came.wait(30)  # until three requests are here at once
        last = min(last, len(data) - 1)
        part = data[first : last + 1]
        size = len(data) + 5 if how == "says more" else len(data)
        first += how == "elsewhere"
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{last}/{'*' if how == 'no size' else size}")
        self.send_header("Content-Length", str(len(part)))
        self.send_header("ETag", f'"{self.server.version}"')
        self.end_headers()
        self.wfile.write(part[:-3] if how == "sends less" else part)
        self.close_connection = how == "sends less"


@pytest.fixture
def serve():
    """Starts servers of a folder."""
    servers: list[Server] = []

    def start(folder: Path, how: str = "") -> Server:
        servers.append(Server(folder, how))
        threading.Thread(target=servers[-1].serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return servers[-1]

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@contextmanager
def counted() -> Iterator[list[int]]:
    """The sizes of the parts that are fetched."""
    sizes: list[int] = []
    on_fetch.append(sizes.append)
    try:
        yield sizes
    finally:
        on_fetch.remove(sizes.append)


def save_shards(folder: Path, n: int, n_tensors: int, n_values: int = 1) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}
    for shard in range(n):
        part = {
            f"model.layers.{shard * n_tensors + i}.w": np.full(n_values, shard * n_tensors + i, np.uint8)
            for i in range(n_tensors)
        }
        places = np.arange(n_tensors + 1) * n_values
        header = {
            name: {"dtype": "U8", "shape": [n_values], "data_offsets": places[i : i + 2].tolist()}
            for i, name in enumerate(part)
        }
        text = json.dumps(header).encode()
        file = folder / f"model-{shard + 1:05}-of-{n:05}.safetensors"
        file.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(x.tobytes() for x in part.values()))
        arrays |= part
    files = [f"model-{1 + i // n_tensors:05}-of-{n:05}.safetensors" for i in range(n * n_tensors)]
    where = {"metadata": {}, "weight_map": dict(zip(arrays, files, strict=True))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(where))
    return arrays


def test_the_rows_of_a_model_in_30_shards_take_two_requests_and_one_for_each_and_no_values(tmp_path, serve):
    save_shards(tmp_path, 30, 4, n_values=60_000)  # 7 MB
    server = serve(tmp_path)
    trees = []
    for address in (server.address, f"{server.address}/model.safetensors.index.json?secret=1"):
        server.ranges.clear()
        with counted() as sizes:
            trees.append(read(address))
            treeviz.render(trees[-1]).html()
        assert len(server.ranges) <= 32 and sum(sizes) < 5_000_000
    assert not treeviz.diff(*trees, read(tmp_path), values=False).differences
    server.ranges.clear()
    np.testing.assert_array_equal(np.asarray(trees[0]["model"]["layers"][7]["w"]), np.full(60_000, 7, np.uint8))
    assert len(server.ranges) == 1
    server.ranges.clear()
    assert trees[0]["model"]["layers"][11]["w"].part((slice(7, 60_000, 1),))[0] == 11 and len(server.ranges) == 1


def test_the_headers_in_an_archive_are_fetched_at_once(tmp_path, serve):
    np.savez(tmp_path / "m.npz", **{f"w{i}": np.full(100_000, i, np.uint8) for i in range(3)})
    server = serve(tmp_path, "waits")
    tree = read(f"{server.address}/m.npz")
    assert len(server.short) == 3 and len(server.ranges) <= 6
    assert [np.asarray(tree[f"w{i}"]).max() for i in range(3)] == [0, 1, 2]


def test_shards_are_fetched_at_once(tmp_path, serve):
    save_shards(tmp_path, 3, 1)
    (tmp_path / "model.safetensors.index.json").unlink()
    assert len(jax.tree.leaves(read(serve(tmp_path, "waits").address))) == 3


@pytest.mark.parametrize("kind", ["npy", "npz", "stored.npz", "safetensors", "msgpack", "eqx", "gguf"])
def test_a_file_in_any_file_system_is_the_tree_that_it_is_on_a_disk(tmp_path, kind):
    mutated_files.SAMPLES[kind](tmp_path)
    (path,) = tmp_path.iterdir()
    fsspec.filesystem("memory").pipe(f"/{path.name}", path.read_bytes())
    assert not treeviz.diff(read(f"memory://{path.name}"), read(path)).differences


@pytest.mark.filterwarnings("ignore")
def test_tensorstore_reads_a_checkpoint_of_orbax_where_it_can_and_pytorch_reads_only_local_files(tmp_path, serve):
    mutated_files.SAMPLES["orbax"](tmp_path)
    trees = read(f"{serve(tmp_path).address}/orbax"), read(tmp_path / "orbax")
    found = treeviz.diff(*trees)
    assert not found.differences and not found.not_compared
    facts = [[row.facts for row in treeviz.walk(tree)] for tree in trees]
    assert facts[0] == facts[1] and any(one.static for one in facts[0])
    gs = fsspec_files.RemotePath(None, "bucket/run", "gs://bucket/run/100")
    assert gs.tensorstore() == {"driver": "gcs", "bucket": "bucket", "path": "run/100/"}
    memory = fsspec.filesystem("memory")
    memory.put(str(tmp_path / "orbax"), "/orbax", recursive=True)
    memory.pipe("/m.pt", b"PK\x03\x04")
    for name, why in (
        ("orbax", "TensorStore, which reads the arrays of Orbax, has no"),
        ("m.pt", "PyTorch reads only"),
    ):
        with pytest.raises(LoadError, match=f"memory://{name}: {why}"):
            read(f"memory://{name}")


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("no ranges", "the server does not send parts of files. Download the file first."),
        ("no size", "the server does not say how long the file is"),
        ("elsewhere", "the server sent other bytes than those that were asked for"),
        ("sends less", "could not be read: "),
        ("says more", "is not a whole .safetensors file: its tensors have 600,000 bytes, and the file 600,005"),
        ("403", "no permission (ClientResponseError: 403"),
        ("404", "there is no such file or folder"),
        ("500", "could not be read: ClientResponseError: 500"),
    ],
    ids=lambda value: value.replace(" ", "_") if len(value) < 12 else "",
)
def test_a_server_that_breaks_a_rule_is_one_line_and_status_2(tmp_path, serve, capsys, how, message):
    save_shards(tmp_path, 1, 3, n_values=200_000)
    address = f"{serve(tmp_path, how).address}/model-00001-of-00001.safetensors"
    assert cli.main([f"{address}?secret=1"]) == cli.TROUBLE
    output = capsys.readouterr()
    assert message in output.err and address in output.err and "secret" not in output.err
    assert output.err.count("\n") == 1 and output.out == ""


def test_a_small_file_of_a_server_without_ranges_and_an_empty_one_are_read(tmp_path, serve):
    np.save(tmp_path / "m.npy", np.arange(5))
    (tmp_path / "empty.npy").touch()
    address = serve(tmp_path, "no ranges").address
    np.testing.assert_array_equal(np.asarray(read(f"{address}/m.npy")), np.arange(5))
    with pytest.raises(LoadError, match="is not a whole"):
        read(f"{address}/empty.npy")


def test_values_stream_in_bounded_memory_and_a_file_that_changed_is_refused(tmp_path, serve, monkeypatch):
    monkeypatch.setattr("treeviz.integrations.fsspec._MOST", 1 << 18)
    monkeypatch.setattr("treeviz.integrations.fsspec._MOST_KEPT", 1 << 20)
    arrays = save_shards(tmp_path, 4, 3, n_values=300_000)
    server = serve(tmp_path)
    tree = read(server.address)
    with counted() as sizes:
        view = treeviz.render(tree, stats=True)
    assert max(sizes) <= 1 << 18 and sum(fsspec_files._kept.values()) <= 1 << 20
    assert sum(sizes) < 1.5 * sum(x.nbytes for x in arrays.values())
    assert [row["max"] for row in view.table.leaves] == [*range(12)]
    server.version += 1
    (row, *_) = treeviz.render(read(server.address)["model"]["layers"][:1], stats=True).table.leaves
    assert row["max"] == 0
    (row, *_) = treeviz.render(tree["model"]["layers"][:1], stats=True).table.leaves
    rewritten = "could not be read: ValueError: the file was rewritten after it was read: read it again"
    assert row.notes[0].text == rewritten
    memory, path = fsspec.filesystem("memory"), tmp_path / "model-00001-of-00004.safetensors"
    memory.pipe("/m.safetensors", path.read_bytes())
    tree = read("memory://m.safetensors")
    memory.pipe("/m.safetensors", path.read_bytes())
    assert [row.notes[0].text for row in treeviz.render(tree, stats=True).table.leaves] == [rewritten] * 3


def test_a_run_at_an_address_is_shown_and_followed(tmp_path, serve, capsys, monkeypatch):
    monkeypatch.setattr("treeviz.integrations.fsspec._EVERY_S", 0.0)
    training, server = Training(tmp_path / "run.treeviz"), serve(tmp_path)
    training.go_on(5)
    address = f"{server.address}/run.treeviz"
    assert cli.main(["grads", address, "--text", "-"]) == 0 and "5 steps" in capsys.readouterr().out
    run = RunCopy(path_of(f"{address}?secret=1"))
    followed = Followed(run)
    assert followed.update() == (True, "") and len(followed.history) == 5 and followed.update() == (False, "")
    training.go_on(3)
    copy = journal_of(run.path).stat().st_ino
    assert followed.update() == (True, "") and len(followed.history) == 8
    assert journal_of(run.path).stat().st_ino == copy  # only the new bytes were added
    site = Site([run])
    (item,) = site.items()
    site._searching.join()
    assert (item["key"], item["kind"]) == ("run.treeviz", "run") and item["bytes"] > 0
    shutil.rmtree(tmp_path)
    assert followed.update() == (False, f"{address} is gone") and len(followed.history) == 8
    assert cli.main(["grads", address]) == cli.TROUBLE
    assert capsys.readouterr().err == f"treeviz: {address}: there is no such file or folder\n"
    path = run.path
    del run, followed, site
    gc.collect()
    assert not path.exists()


@pytest.fixture
def bucket(monkeypatch):
    """A bucket on a server of S3 in this process, and what puts a file or a folder into it."""
    pytest.importorskip("s3fs")
    moto = pytest.importorskip("moto.server", reason="moto's server is not installed")
    server = moto.ThreadedMotoServer(port=0, verbose=False)
    server.start()
    address = "http://{}:{}".format(*server.get_host_and_port())
    for name, value in {"ENDPOINT_URL": address, "ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "b"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    files = fsspec.filesystem("s3", skip_instance_cache=True)
    files.mkdir("bucket")
    yield lambda path: files.put(str(path), f"bucket/{path.name}", recursive=True)
    server.stop()


@pytest.mark.filterwarnings("ignore")
def test_s3(tmp_path, bucket, capsys):
    (tmp_path / "shards").mkdir()
    save_shards(tmp_path / "shards", 3, 2, n_values=60_000)
    Training(tmp_path / "run.treeviz").go_on(5)
    mutated_files.SAMPLES["orbax"](tmp_path)
    np.savez(tmp_path / "m.npz", a=np.arange(5))
    for path in tmp_path.iterdir():
        bucket(path)
    with counted() as sizes:
        tree = read("s3://bucket/shards")
        treeviz.render(tree).html()
    assert sum(sizes) < 5_000_000
    for name in ("shards", "orbax", "m.npz"):
        found = treeviz.diff(read(f"s3://bucket/{name}"), read(tmp_path / name))
        assert not found.differences and not found.not_compared
    assert cli.main(["grads", "s3://bucket/run.treeviz", "--text", "-"]) == 0
    assert "5 steps" in capsys.readouterr().out
    for name in ("none.npz", "none", "none.treeviz"):
        assert cli.main(["grads"] * name.endswith(".treeviz") + [f"s3://bucket/{name}"]) == cli.TROUBLE
        assert capsys.readouterr().err == f"treeviz: s3://bucket/{name}: there is no such file or folder\n"


def test_only_named_protocols_are_read_and_a_missing_library_is_named(monkeypatch):
    for address in ("zip://a.npz", "simplecache::https://a/b.npz", "reference://x", "file:///etc/passwd"):
        with pytest.raises(LoadError, match="treeviz reads local files, and s3://, "):
            read(address)
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(ImportError, match=re.escape('gs:// needs gcsfs: pip install "jax-treeviz[remote]" gcsfs')):
        read("gs://bucket/m.npz")
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(ImportError, match=re.escape('fsspec is not installed: pip install "jax-treeviz[remote]"')):
        read("s3://bucket/m.npz")


def test_the_command_compares_a_local_file_with_one_at_an_address(tmp_path, serve, capsys):
    save_shards(tmp_path, 2, 2)
    address = serve(tmp_path).address
    assert cli.main(["diff", str(tmp_path), address]) == 0
    assert cli.main(["check", address]) == 0
    assert cli.main(["diff", str(tmp_path / "model-00001-of-00002.safetensors"), address]) == 1
    assert cli.main([f"{address}/none.npz"]) == cli.TROUBLE
    assert capsys.readouterr().err == f"treeviz: {address}/none.npz: there is no such file or folder\n"
