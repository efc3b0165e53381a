"""The records of a journal: one for each step, each with its own check sum."""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from treeviz.steps.recording.history import History, Record
from treeviz.steps.recording.scalars import MOST_NAMES, ScalarRow, batch_fields, batch_of
from treeviz.tree.safe_repr import printable, visible

_LENGTHS, _SUM = struct.Struct("<II"), struct.Struct("<I")


def first_line(history: History) -> bytes:
    return f"treeviz-journal 1 {history.run}\n".encode()


def encode(n: int, step: int, record: Record) -> bytes:
    """The record of a step; `n` records were appended before it."""
    names = [[source, statistic] for source, statistic, _ in record]
    body = b"".join(values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes() for *_, values in record)
    return _encode({"n": n, "step": int(step), "arrays": names}, body)


def encode_scalars(n: int, row: ScalarRow) -> bytes:
    """The record of scalars; `n` records were appended before it."""
    values = {name: of.tolist() for name, of in row.values.items()}
    batch = None if row.batch is None else batch_fields(row.batch)
    return _encode({"n": n, "step": int(row.step), "scalars": values, "batch": batch}, b"")


def _encode(fields: dict[str, Any], body: bytes) -> bytes:
    head = json.dumps(fields).encode()
    data = _LENGTHS.pack(len(head), len(body)) + head + body
    return data + _SUM.pack(zlib.crc32(data))


def replay(history: History, journal: Path) -> None:
    """Add the steps of a journal that belongs to this history, until its end or a damaged record."""
    with open(journal, "rb") as file:
        n_left = os.fstat(file.fileno()).st_size
        line = file.readline(200)
        if line != first_line(history):
            return
        n_left -= len(line)
        while (lengths := file.read(_LENGTHS.size)) and (whole := _whole_record(file, lengths, n_left)):
            n_left -= len(whole)
            try:
                _add(history, whole)
            except Exception:  # the sum is right and the content is not: of a newer version, or made up
                n_left += len(whole)
                break
    if n_left:
        history.damage = (
            f"The last {n_left:,} bytes of {visible(str(journal), 1000)} cannot be read: the steps in them are missing."
        )


def _whole_record(file, lengths: bytes, n_left: int) -> bytes:
    """The record that begins with `lengths`; b"" if it is cut or damaged."""
    if len(lengths) < _LENGTHS.size or _LENGTHS.size + sum(_LENGTHS.unpack(lengths)) + _SUM.size > n_left:
        return b""  # before reading: a damaged length would take gigabytes
    whole = lengths + file.read(sum(_LENGTHS.unpack(lengths)) + _SUM.size)
    (check_sum,) = _SUM.unpack_from(whole, len(whole) - _SUM.size)
    return whole if zlib.crc32(memoryview(whole)[: -_SUM.size]) == check_sum else b""


def _add(history: History, whole: bytes) -> None:
    n_head, n_body = _LENGTHS.unpack_from(whole)
    begin = _LENGTHS.size + n_head
    head = json.loads(whole[_LENGTHS.size : begin])
    if head["n"] > history.n_records:
        raise ValueError("there is a gap")
    if head["n"] < history.n_records:
        return  # the history has it already
    if "scalars" in head:
        history.append_scalars([_row(head)])
    else:
        history.add([int(head["step"])], list(_arrays(history, head["arrays"], whole[begin : begin + n_body])))


def _row(head: dict[str, Any]) -> ScalarRow:
    named = [*head["scalars"].items()][:MOST_NAMES]
    values = {printable(name): np.array(of, np.float64).reshape(-1) for name, of in named}
    return ScalarRow(int(head["step"]), values, None if head["batch"] is None else batch_of(head["batch"]))


def _arrays(history: History, names: list[list[str]], body: bytes) -> Iterator[tuple[str, str, np.ndarray]]:
    at = 0
    for source, statistic in names:
        shape, dtype = history.kind_of(source, statistic)
        n_bytes = 8 * int(np.prod(shape, dtype=np.int64))
        values = np.frombuffer(body[at : at + n_bytes], np.dtype(dtype).newbyteorder("<"))
        yield source, statistic, values.reshape(1, *shape)
        at += n_bytes
