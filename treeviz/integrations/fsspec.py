"""Files at addresses, such as s3://bucket/model.safetensors, read by ranges through fsspec.

A `RemotePath` has the methods of `pathlib.Path` that the readers of files use, so that no format has a second reader.
"""

from __future__ import annotations

import errno
import fnmatch
import io
import os
import re
import shutil
import stat
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from treeviz.integrations import not_installed
from treeviz.tree.files import REWRITTEN, LoadError
from treeviz.tree.stored import on_fetch
from treeviz.tree.text import error_text, visible

# The library behind each protocol. Others, such as "zip" or "reference", would lead to files of this machine.
PROTOCOLS = {"s3": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "hf": "huggingface_hub", "az": "adlfs", "abfs": "adlfs"}
PROTOCOLS |= {"http": "aiohttp", "https": "aiohttp", "memory": "fsspec"}

_HEAD = 1 << 17  # bytes of the first read of a file, enough for the header of a shard
_BLOCK = 1 << 16  # of a later one; a read that goes on where the last one ended takes twice as much as that
_MOST = 1 << 23  # bytes of one read
_MOST_KEPT = 1 << 26  # bytes that were read and are kept, of all files
_AT_ONCE = 16  # files
_EVERY_S = 3.0  # between two looks at a run
# Changes with the contents of a file: the first that a file system has
_VERSIONS = ("ETag", "etag", "generation", "blob_id", "mtime", "LastModified", "last_modified", "updated", "created")
_SIZE = re.compile(r"bytes (?:(\d{1,18})-(\d{1,18})|\*)/(\d{1,18})")  # of the header Content-Range
_Version = tuple[int, str]  # the size, and what changes with the contents


def remote_path(address: str) -> RemotePath:
    """The path of an address; raises ValueError for an unknown protocol, ImportError without its library."""
    protocol = address.partition("://")[0]
    if protocol.lower() not in PROTOCOLS or "::" in address:
        raise LoadError(f"{shown(address)}: treeviz reads local files, and {', '.join(f'{p}://' for p in PROTOCOLS)}")
    try:
        import fsspec

        files = fsspec.filesystem(protocol.lower())
    except ImportError as error:
        library = PROTOCOLS[protocol.lower()]
        hint = not_installed(error, "remote") if library == "fsspec" or error.name == "fsspec" else None
        text = f'{protocol}:// needs {library}: pip install "jax-treeviz[remote]" {library}'
        raise hint or ImportError(text, name=library) from error
    return RemotePath(files, files._strip_protocol(address), address)


def shown(address: str) -> str:
    """The address without its query, user and password, which may be secret."""
    protocol, _, rest = address.partition("://")
    place, slash, path = rest.partition("?")[0].partition("/")
    return visible(f"{protocol}://{place.rpartition('@')[2]}{slash}{path}", 1000)


class RemotePath:
    """A file or a folder at an address."""

    def __init__(self, files: Any, path: str, address: str, parent: RemotePath | None = None) -> None:
        self._files, self._path, self._address = files, path, address
        self.is_http = address.lower().startswith(("http://", "https://"))
        self._parent = parent
        self._children: dict[str, RemotePath] | None = None  # of a folder that was listed
        self._known: dict[str, RemotePath] = {}
        self.version: _Version | None = None
        self._type = ""  # "file", "directory"
        self._start, self._data = 0, b""  # a part of the file
        self._parts: dict[int, bytes] = {}  # short ones, by where they start
        self._next: tuple[int, Future[bytes]] | None = None  # and the one after it, which is read ahead
        self._lock = threading.RLock()

    # As those of `pathlib.Path`

    @property
    def name(self) -> str:
        return unquote(urlsplit(self._path).path if self.is_http else self._path).rstrip("/").rpartition("/")[2]

    @property
    def suffix(self) -> str:
        return f".{self.name.rpartition('.')[2]}" if "." in self.name else ""

    @property
    def parent(self) -> RemotePath:
        if self._parent is None:
            path = self._path.partition("?")[0].rstrip("/").rpartition("/")[0]
            address = path if self.is_http else self._address.rstrip("/").rpartition("/")[0]
            self._parent = RemotePath(self._files, path, address)
            self._parent._known[self.name] = self
        return self._parent

    def __truediv__(self, names: str) -> RemotePath:
        path = self
        for name in names.split("/"):
            if name not in path._known:
                step = f"/{quote(name)}" if self.is_http else f"/{name}"
                inner, address = (f"{text.rstrip('/')}{step}" for text in (path._path, path._address))
                path._known[name] = RemotePath(self._files, address if self.is_http else inner, address, path)
            path = path._known[name]
        return path

    def with_name(self, name: str) -> RemotePath:
        return self.parent / name

    def __str__(self) -> str:
        return shown(self._address)

    def __hash__(self) -> int:
        return hash(self._address)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemotePath) and self._address == other._address

    def is_dir(self) -> bool:
        return self._kind() == "directory"

    def is_file(self) -> bool:
        return self._kind() == "file"

    is_symlink = staticmethod(lambda: False)

    def stat(self) -> Any:
        if not self._kind():
            raise FileNotFoundError(errno.ENOENT, "there is no such file or folder", str(self))
        size = self.begin()[0] if self.is_file() else 0
        return SimpleNamespace(st_mode=stat.S_IFDIR if self.is_dir() else stat.S_IFREG, st_size=size)

    @contextmanager
    def scandir(self) -> Iterator[list[RemotePath]]:
        yield [*self._listed().values()]

    def glob(self, pattern: str) -> Iterator[RemotePath]:
        first, _, rest = pattern.partition("/")
        for path in [*self._listed().values()] if self.is_dir() else ():
            if fnmatch.fnmatchcase(path.name, first):
                yield from path.glob(rest) if rest else [path]

    def all_files(self) -> Iterator[RemotePath]:
        for path in self._listed().values():
            yield from path.all_files() if path.is_dir() else [path]

    def open(self, mode: str = "rb", buffering: int = _BLOCK) -> Any:
        raw = _RemoteFile(self)
        return io.BufferedReader(raw, buffering) if buffering else raw

    def tensorstore(self) -> dict[str, Any]:
        """How TensorStore, which reads the arrays of Orbax, opens the folder with a driver of its own."""
        protocol, _, rest = self._address.partition("://")
        place, _, path = rest.rstrip("/").partition("/")
        if self.is_http:
            return {"driver": "http", "base_url": f"{protocol}://{place}", "path": f"/{path}/"}
        driver = {"gs": "gcs", "gcs": "gcs", "s3": "s3"}.get(protocol)
        if driver is None:
            raise LoadError(f"{self}: TensorStore, which reads the arrays of Orbax, has no driver for {protocol}://")
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3", os.environ.get("AWS_ENDPOINT_URL")) if driver == "s3" else None
        region = os.environ.get("AWS_REGION", os.environ.get("AWS_DEFAULT_REGION", "us-east-1"))
        spec = {"driver": driver, "bucket": place, "path": f"{path}/"}
        return spec | ({"endpoint": endpoint, "aws_region": region} if endpoint else {})

    # What is known of it

    def _kind(self) -> str:
        """ "file", "directory", or "" if it is not there."""
        if not self._type:
            if self.is_http and self._parent is not None and not self.suffix:
                with suppress(OSError):  # its name does not say whether it is a file
                    self._parent._listed()
            try:
                in_list = self._parent is not None and (not self.is_http or self._parent._children is not None)
                if in_list or (self.name.endswith(".index.json") and not self.is_http):
                    self.parent._listed()  # one request for all its files
                elif not self.suffix:
                    self._listed()
                elif self.is_http:
                    self.begin()
                else:
                    self._look()
            except FileNotFoundError:
                return ""
        return self._type

    def _look(self) -> Any:
        with _explained(self):
            self._files.invalidate_cache()
            info = self._files.info(self._path)
        self._type = info["type"]
        return self._learn(info)

    def _learn(self, info: dict[str, Any]) -> _Version | None:
        version = next((str(info[name]) for name in _VERSIONS if info.get(name)), "")
        found = None if info.get("size") is None else (int(info["size"]), version)
        if self.version is None:
            self.version = found
        return found

    def _listed(self) -> dict[str, RemotePath]:
        if self._children is None:
            with _explained(self):
                self._files.invalidate_cache()
                path = f"{self._path.rstrip('/')}/" if self.is_http else self._path
                infos = self._files.ls(path, detail=True)
            own = self._path.partition("?")[0].strip("/") if self.is_http else self._path.strip("/")
            if len(infos) == 1 and infos[0]["name"].strip("/") == own and infos[0]["type"] == "file":
                self._type = "file"
                self._learn(infos[0])
                return {}
            self._type, self._children = "directory", {}
            for info in infos:
                name = unquote(urlsplit(info["name"]).path) if self.is_http else info["name"]
                name = name.rstrip("/").rpartition("/")[2]
                is_inside = not self.is_http or info["name"].partition("?")[0].startswith(f"{own}/")
                if name in ("", ".", "..") or not is_inside or info["name"].partition("?")[0].rstrip("/") == own:
                    continue
                child = self._children[name] = self / name
                child._type = "directory" if info["name"].endswith("/") and self.is_http else info["type"]
                child._learn(info)
        return self._children

    def fetch_ahead(self, names: Sequence[str]) -> None:
        """Read the starts of files in the folder at once, and list folders in it; errors are left to who needs them."""

        def fetch(name: str) -> None:
            with suppress(Exception):
                path = self / name
                if path.is_file():
                    path.bytes_at(0, 1)
                elif path.is_dir():
                    path._listed()

        if not self.is_http:
            self._listed()
        [*_threads().map(fetch, names)]

    def fetch_parts(self, starts: Sequence[int], n: int) -> None:
        """Read short parts of the file at once, for who reads them one after the other."""
        if self.begin()[0] > _HEAD:
            fetch = partial(self._fetch, n=n, is_checked=False)
            self._parts = dict(zip(starts, _threads().map(fetch, starts), strict=True))

    # Its bytes

    def begin(self) -> _Version:
        """The version; the first bytes come with it, if they need no request of their own."""
        with self._lock:
            if self.version is None and self.is_http:
                self._keep(0, self._fetch(0, _HEAD))
            version = self.version or self._look()
            if version is None:
                raise LoadError(f"{self}: it is unknown how long the file is")
            return version

    def forget(self) -> None:
        """Read it anew next time."""
        with self._lock:
            self.version, self._data, self._next = None, b"", None

    def bytes_at(self, start: int, n: int) -> bytes:
        """The next bytes, at least one unless the file ends there; mostly from a part that was read before."""
        with self._lock:
            if part := self._parts.pop(start, b""):
                return part[:n]
            (size, _), first, data = self.begin(), self._start, self._data
            end = first + len(data)
            if start >= size:
                return b""
            if not first <= start < end:
                goes_on = 0 < start == end
                ahead, self._next = self._next, None
                first, is_end = start, size - start < _BLOCK or size <= _HEAD  # such as the list in an archive
                if goes_on and ahead is not None and ahead[0] == start:
                    data = ahead[1].result()
                else:
                    first = max(0, size - _HEAD) if is_end and not goes_on else start
                    n_more = 2 * len(data) if goes_on else _HEAD if first < start or not start else n + _BLOCK
                    data = self._fetch(first, min(max(n_more, n), _MOST))
                self._keep(first, data)
                end = first + len(data)
                if goes_on and end < size:
                    is_checked = not self._address.startswith("hf://")  # which counts requests
                    self._next = end, _threads().submit(self._fetch, end, min(2 * len(data), _MOST), is_checked)
            return data[start - first : start - first + n]

    def _keep(self, start: int, data: bytes) -> None:
        self._start, self._data = start, data
        with _keeping:
            _kept.pop(self, None)
            _kept[self] = len(data)
            while sum(_kept.values()) > _MOST_KEPT and len(_kept) > 1:  # those that were read longest ago forget theirs
                oldest = next(iter(_kept))
                del _kept[oldest]
                oldest._data, oldest._next = b"", None

    def _fetch(self, start: int, n: int, is_checked: bool = True) -> bytes:
        # Without the lock, which is held by the one that waits for what is read ahead.
        known: _Version | None = self.version
        with _explained(self):
            if known is None or self.is_http:
                from fsspec.asyn import sync

                data, version = sync(self._files.loop, _get_range, self._files, self._address, start, n)  # type: ignore[not-iterable]
                self._type = "file"
            else:
                end = min(start + n, known[0])
                data = self._files.cat_file(self._path, start=start, end=end) if start < end else b""
                # After the data, so that these are of that version.
                version = self._look() if start and is_checked else known
        if known is not None and version != known:
            raise ValueError(REWRITTEN)
        self.version = version
        if len(data) != (n_wanted := min(n, version[0] - start)):
            raise LoadError(f"{self}: {len(data):,} bytes came, where {n_wanted:,} were to come")
        for report in on_fetch:
            report(len(data))
        return data


class _RemoteFile(io.RawIOBase):
    def __init__(self, path: RemotePath) -> None:
        self._path, self._at = path, 0
        self.state = path.begin()
        self.size = self.state[0]

    def readable(self) -> bool:
        return True

    seekable = readable

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size}[whence]
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        data = self._path.bytes_at(self._at, len(buffer))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


class RunCopy:
    """A recorded run at an address, and its copy at `path` on this machine, which `update` brings up to date."""

    def __init__(self, remote: RemotePath) -> None:
        self._remote, self._due = remote, 0.0
        self._versions: dict[str, _Version] = {}
        folder = tempfile.mkdtemp(prefix="treeviz-")
        weakref.finalize(self, shutil.rmtree, folder, True)
        self.path = Path(folder, self._remote.name)

    def __str__(self) -> str:
        return str(self._remote)

    def update(self) -> None:
        """Fetch what is new, if that was not done in the last seconds; raises OSError or ValueError."""
        if time.monotonic() < self._due:
            return
        is_new = self._fetched(self._remote, self.path, 0)
        journal, local = self._remote.with_name(f"{self._remote.name}.journal"), Path(f"{self.path}.journal")
        try:
            self._fetched(journal, local, 0 if is_new or not local.exists() else local.stat().st_size)
        except FileNotFoundError:
            local.unlink(missing_ok=True)
        self._due = time.monotonic() + _EVERY_S

    def _fetched(self, remote: RemotePath, local: Path, begin: int) -> bool:
        """Fetch the bytes from `begin` on, if the file has changed. Returns whether it has."""
        remote.forget()
        version = remote.begin()
        if version == self._versions.get(local.name):
            return False
        begin = 0 if begin > version[0] else begin
        with remote.open() as source, open(f"{local}.new" if not begin else local, "ab" if begin else "wb") as file:
            source.seek(begin)
            shutil.copyfileobj(source, file, _MOST)
        if not begin:
            os.replace(f"{local}.new", local)
        self._versions[local.name] = version
        return True


_kept: dict[RemotePath, int] = {}  # the bytes that each file keeps, the oldest first
_keeping = threading.Lock()


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_AT_ONCE, "treeviz-fetch")


async def _get_range(files: Any, url: str, start: int, n: int) -> tuple[bytes, _Version]:
    """Bytes of a file and its version, in one request; fsspec asks for the size by another, and reads a whole file.

    Raises:
      LoadError: The server does not support ranges, or what it says of lengths is not true.
    """
    session = await files.set_session()
    headers = {**files.kwargs.get("headers", {}), "Range": f"bytes={start}-{start + n - 1}"}
    options = {**files.kwargs, "headers": headers | {"Accept-Encoding": "identity"}}
    async with session.get(files.encode_url(url), **options) as answer:
        version = answer.headers.get("ETag") or answer.headers.get("Last-Modified") or ""
        content = _SIZE.fullmatch(answer.headers.get("Content-Range", ""))
        if answer.status == 416 and content is not None:
            return b"", (int(content[3]), version)
        files._raise_not_found_for_status(answer, url)
        if answer.status == 206 and content is not None and content[1] is not None:
            first, last, size = map(int, content.groups())
            if first != start or not first <= last < min(size, start + n):
                raise LoadError(f"{shown(url)}: the server sent other bytes than those that were asked for")
            data = await answer.content.readexactly(last - first + 1)
            return data, (size, version)
        if answer.status == 206:
            raise LoadError(f"{shown(url)}: the server does not say how long the file is")
        data = b""
        while start == 0 and len(data) <= n and (more := await answer.content.readany()):
            data += more
        if start or len(data) > n:
            raise LoadError(f"{shown(url)}: the server does not send parts of files. Download the file first.")
        return data, (len(data), version)


@contextmanager
def _explained(path: RemotePath) -> Iterator[None]:
    """Raise errors of the many libraries as an OSError that says what is wrong with the address."""
    try:
        yield
    except LoadError:
        raise
    except Exception as error:
        status = getattr(getattr(error, "response", None), "status_code", 0)  # of huggingface_hub
        status = error.status if hasattr(error, "status") else status or getattr(error, "code", 0)
        text = re.sub(r"\?[^\s'\"]+", "", error_text(error))  # without queries, which may be secret
        if isinstance(error, FileNotFoundError) or status == 404:
            raise FileNotFoundError(errno.ENOENT, "there is no such file or folder", str(path)) from error
        if isinstance(error, PermissionError) or status in (401, 403) or "credentials" in text.lower():
            raise PermissionError(errno.EACCES, f"no permission ({visible(text, 200)})", str(path)) from error
        raise OSError(errno.EIO, f"could not be read: {visible(text, 200)}", str(path)) from error
