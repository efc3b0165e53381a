"""Bytes as text in a page: 6.8 bits in a byte of UTF-8, where base64 holds 6.

A text is what a decoder of asymmetric numeral systems (rANS; J. Duda, arXiv:1311.2540) makes of the bytes, if a
character of one byte of UTF-8 has 112 times the share of one of two bytes, and that 112 times the share of one of
three. So the reader in the page is an encoder, which is a few lines. None of the characters is special in a script of
HTML or in JSON.
"""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

# Of three bytes of UTF-8, two and one: the share of each character and a first and last one. The first are ideographs
# and the syllables of Korean, the second follow the control characters; " " and "!" stand for two of the third.
_SHARES = np.array([1, 112, 12_600])
_FIRST = np.array([0x3400, 0xA1, ord("#")])
_LAST = np.array([0xD7A3, 0x7FF, ord("~")])
_INSTEAD = {ord("<"): ord(" "), ord("\\"): ord("!")}
_BEGIN = 0xA0  # of a chunk
_ENDS = np.cumsum(_SHARES * (_LAST + 1 - _FIRST))
_STARTS = np.append(0, _ENDS[:-1])
_TOTAL = int(_ENDS[-1])
_CLASS_ENDS: list[int] = _ENDS.tolist()
_CLASSES = [*zip(*(each.tolist() for each in (_STARTS, _SHARES, _FIRST)), strict=True)]
_LAST_OF_TWO_AND_ONE: list[int] = _LAST[1:].tolist()
_CHUNK = 512  # bytes; each costs four more
_MANY = 64 * _CHUNK


def in_characters(data: bytes) -> str:
    """The text that load/page_loader.js reads. Where the bytes are many, chunks of them are taken side by side."""
    n_chunked = len(data) - len(data) % _CHUNK if len(data) >= _MANY else 0
    side_by_side = _of_chunks(np.frombuffer(data, np.uint8, n_chunked).reshape(-1, _CHUNK).astype(np.int64))
    codes = np.append(side_by_side, _of_chunk(data[n_chunked:]))
    for code, instead in _INSTEAD.items():
        codes[codes == code] = instead
    return codes.astype("<u2").tobytes().decode("utf-16-le")


def _of_chunk(data: bytes) -> list[int]:
    codes, state = [_BEGIN], 1
    for byte in data:
        while state >= _TOTAL:
            code, state = _next(state)
            codes.append(code)
        state = state << 8 | byte
    while state:
        code, state = _next(state)
        codes.append(code)
    return codes


def _next(state: int) -> tuple[int, int]:
    above, place = divmod(state, _TOTAL)
    start, share, first = _CLASSES[bisect_right(_CLASS_ENDS, place)]
    code, below = divmod(place - start, share)
    return first + code, share * above + below


def _of_chunks(chunks: np.ndarray) -> np.ndarray:
    """The same for int[n_chunks, n_bytes], one after the other."""
    n_chunks, n_bytes = chunks.shape
    lanes, state, n_read = np.arange(n_chunks), np.ones(n_chunks, np.int64), np.zeros(n_chunks, np.int64)
    steps = [np.full(n_chunks, _BEGIN)]
    while state.any():
        while True:
            (hungry,) = np.nonzero((state < _TOTAL) & (n_read < n_bytes))
            if not len(hungry):
                break
            state[hungry] = state[hungry] << 8 | chunks[lanes[hungry], n_read[hungry]]
            n_read[hungry] += 1
        above, place = np.divmod(state, _TOTAL)
        kind = np.searchsorted(_ENDS, place, "right")
        code, below = np.divmod(place - _STARTS[kind], _SHARES[kind])
        steps.append(np.where(state > 0, _FIRST[kind] + code, 0))
        state = _SHARES[kind] * above + below
    codes = np.transpose(steps)
    return codes[codes > 0]


def from_characters(text: str) -> bytes:
    """The bytes that `in_characters` made a text of."""
    back = {instead: code for code, instead in _INSTEAD.items()}
    data, state = bytearray(), 0
    for code in map(ord, reversed(text)):
        if code == _BEGIN:
            while state > 1:
                data.append(state & 255)
                state >>= 8
            state = 0
            continue
        code = back.get(code, code)
        start, share, first = _CLASSES[sum(code <= last for last in _LAST_OF_TWO_AND_ONE)]
        while state >= share << 8:
            data.append(state & 255)
            state >>= 8
        above, below = divmod(state, share)
        state = _TOTAL * above + start + share * (code - first) + below
    return bytes(reversed(data))
