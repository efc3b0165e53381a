"""A history as plain columns, for files that other programs read and write: JSON Lines.

The first line of JSON Lines is the header of `history_file`, with "n_entries" and "n_buckets", how many entries each
track has and how many of them are buckets. Each further line is an entry: `{"source", "statistic", "first_step",
"step", "n", "value"}`, the last value of each leaf, in the order of the paths in the header; of buckets, also "high",
and "low" or, of counts, "total". An entry of a scalar has the source "scalars" and its name as the statistic, and of
buckets "nonfinite", whether a number was not finite. null is NaN; "Infinity", "-Infinity" and, of scalars, "NaN" are
what they say.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from treeviz.steps.recording.history import History, Track, codes_of, number_of
from treeviz.steps.recording.history_file import checked, header_of, history_of
from treeviz.steps.statistics import STATISTICS

SCALARS = "scalars"
_WORDS: dict[str | None, float] = {"Infinity": np.inf, "-Infinity": -np.inf, "NaN": np.nan, None: np.nan}


class Part(NamedTuple):
    """The entries of a track, oldest first, buckets before exact ones.

    Attributes:
      steps: int64[3, k]: the first step, the last, and how many.
      columns: "value", the last one, and "high": [k, leaves, …]; "low", or of counts "total"; of scalars, which have no
        axis of leaves, also "nonfinite": bool[k].
    """

    source: str
    statistic: str
    steps: np.ndarray
    columns: dict[str, np.ndarray]


def exchanged(history: History) -> tuple[dict[str, Any], list[Part]]:
    """The header, and the part of each track."""
    history.finish()
    parts = [_part(*name, track) for name, track in history.tracks.items()]
    parts += [_part(SCALARS, name, track) for name, track in history.scalars.tracks.items()]
    tracks = (*history.tracks.values(), *history.scalars.tracks.values())
    lengths = {"n_entries": list(map(len, tracks)), "n_buckets": [track.n_buckets for track in tracks]}
    return header_of(history) | lengths, parts


def _part(source: str, statistic: str, track: Track) -> Part:
    exact_steps, exact, bucket_steps, buckets = track.arrays()
    steps = np.concatenate([bucket_steps, np.stack([exact_steps, exact_steps, np.ones_like(exact_steps)])], axis=1)
    low, high, value = np.concatenate([buckets, np.broadcast_to(exact, (3, *exact.shape))], axis=1)
    if source == SCALARS:
        columns = {"value": number_of(value), "low": low[:, 0], "high": high[:, 0], "nonfinite": high[:, 1] > 0}
    else:
        columns = {"value": value, "total" if track.is_count else "low": low, "high": high}
    return Part(source, statistic, steps, columns)


def history_from(header: dict[str, Any], parts: Iterable[tuple[np.ndarray, Mapping[str, np.ndarray]]]) -> History:
    """The history of a header, and of the steps and columns of each of its tracks.

    Raises:
      ValueError: They do not belong together.
    """
    history, tracks = history_of(checked(header))
    for (track, width), n, (steps, columns) in zip(tracks, header["n_buckets"], parts, strict=True):
        if "nonfinite" in columns:
            codes = codes_of(columns["value"])
            low, high = (np.where(np.isfinite(columns[name]), columns[name], np.nan) for name in ("low", "high"))
            is_bad = np.maximum(codes[:, 1], columns["nonfinite"])
            values = [np.stack([low, 0 * is_bad], axis=1), np.stack([high, is_bad], axis=1), codes]
        else:
            values = [columns["total" if track.is_count else "low"], columns["high"], columns["value"]]
        values = np.stack(values).astype(track.exact.dtype).reshape(3, steps.shape[1], *track.shape)
        track.restore((steps[1, n:], values[2, n:], steps[:, :n], values[:, :n]), width)
    return history


def to_json_lines(history: History) -> Iterator[str]:
    """The lines of a file."""
    header, parts = exchanged(history)
    yield json.dumps(header)
    for part, n_buckets in zip(parts, header["n_buckets"], strict=True):
        names = [name for name in part.columns if name != "value"]
        for i, (first, until, n) in enumerate(part.steps.T.tolist()):
            entry = {"source": part.source, "statistic": part.statistic, "first_step": first, "step": until, "n": n}
            of_bucket = names if i < n_buckets else []
            yield json.dumps(entry | {name: _plain(part.columns[name][i]) for name in ("value", *of_bucket)})


def from_json_lines(lines: Iterable[str]) -> History:
    """The history of these lines.

    Raises:
      ValueError, KeyError, TypeError: They are no history.
    """
    lines = iter(lines)
    header = json.loads(next(lines))
    entries = (json.loads(line) for line in lines)
    return history_from(header, [_columns([next(entries) for _ in range(int(n))]) for n in header["n_entries"]])


def _columns(entries: list[dict[str, Any]]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    steps = np.array([[entry[name] for entry in entries] for name in ("first_step", "step", "n")], np.int64)
    is_scalar = bool(entries) and entries[0]["source"] == SCALARS
    is_count = bool(entries) and not is_scalar and STATISTICS[entries[0]["statistic"]].is_count
    columns = {}
    for name in ("value", "high", "total" if is_count else "low"):
        values = [entry.get(name, entry["value"]) for entry in entries]  # of a single step all are its value
        if not is_count:
            values = [_number(each) if is_scalar else [_number(number) for number in each] for each in values]
        columns[name] = np.array(values, np.int64 if is_count else np.float64)
    if is_scalar:
        columns["nonfinite"] = np.array([entry.get("nonfinite", False) for entry in entries], bool)
    return steps, columns


def _number(value: float | str | None) -> float:
    return _WORDS[value] if value is None or isinstance(value, str) else value


def _plain(values: np.ndarray) -> Any:
    """JSON of an array, or of a number of a scalar, whose NaN is one that was recorded."""
    if values.ndim == 0:
        number = values.item()
        return number if isinstance(number, bool) or np.isfinite(number) else _word(number, "NaN")
    if values.dtype.kind != "f" or np.isfinite(values).all():
        return values.tolist()
    return [number if np.isfinite(number) else _word(number, None) for number in values.tolist()]


def _word(number: float, of_nan: str | None) -> str | None:
    return of_nan if np.isnan(number) else "Infinity" if number > 0 else "-Infinity"
