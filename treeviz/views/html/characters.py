"""Bytes as text in a page: 40 bits in six bytes of UTF-8, where base64 holds 36.

A digit to the base 10,322, whose third power is just above 2**40, is two ASCII characters or one that takes two bytes.
None of the characters is special in a script of HTML or in JSON.
"""

from __future__ import annotations

import numpy as np

# From "#" to "~", with others in place of two; and from U+00A0, behind the control characters, on.
_ASCII = bytes(range(35, 127)).translate(bytes.maketrans(b"<\\", b" !"))
_BASE = 10_322
_WIDE = range(0xA0, 0xA0 + _BASE - len(_ASCII) ** 2)
_DIGITS = [bytes((a, b)) for a in _ASCII for b in _ASCII] + [chr(wide).encode() for wide in _WIDE]
_PAIRS = np.frombuffer(b"".join(_DIGITS), "<u2")
_POWERS = _BASE ** np.arange(3, dtype=np.uint64)


def in_characters(data: bytes) -> str:
    """The text that load/page_loader.js reads: 6 bytes of UTF-8 for 5, and a "#" for each byte that the last 5 lack."""
    n_groups = -(-len(data) // 5)
    groups = np.zeros((n_groups, 8), np.uint8)
    groups[:, :5] = np.frombuffer(data.ljust(5 * n_groups, b"\0"), np.uint8).reshape(-1, 5)
    digits = groups.view("<u8") // _POWERS % np.uint64(_BASE)
    return _PAIRS[digits].tobytes().decode() + "#" * (-len(data) % 5)


def from_characters(text: str) -> bytes:
    """The bytes that `in_characters` made a text of."""
    values = np.zeros(1 << 16, np.uint64)
    values[_PAIRS] = np.arange(_BASE)
    encoded = text.encode()
    n_groups, n_lacking = divmod(len(encoded), 6)
    groups = values[np.frombuffer(encoded, "<u2", 3 * n_groups)].reshape(-1, 3) @ _POWERS
    data = groups.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :5].tobytes()
    return data[: len(data) - n_lacking]
