"""Bytes as text in a page: 13 bits in two of 91 characters, where base64 holds 12.

None of the characters is special in a script of HTML, in JSON or in a JavaScript template.
"""

from __future__ import annotations

import numpy as np

# From "#" to "}", with others in place of three.
_CHARACTERS = bytes(range(35, 126)).translate(bytes.maketrans(b"$<\\", b" ~!"))
_PAIRS = np.array([(a, b) for b in _CHARACTERS for a in _CHARACTERS], np.uint8)[: 1 << 13].view("<u2").ravel()


def in_characters(data: bytes) -> str:
    """The text that load/page_loader.js reads: of n characters come 13 n / 16 bytes, rounded down."""
    pairs = np.empty((-(-len(data) // 13), 8), "<u2")
    padded = data + bytes(16)  # the last words begin in the data and end behind it
    for i in range(8):
        byte, shift = divmod(13 * i, 8)
        words = np.ndarray(len(pairs), "<u4", padded, byte, 13)
        pairs[:, i] = _PAIRS[words >> shift & 0x1FFF]
    return pairs.tobytes()[: -(-16 * len(data) // 13)].decode()


def from_characters(text: str) -> bytes:
    """The bytes that `in_characters` made a text of."""
    digits = np.zeros(256, np.uint32)
    digits[np.frombuffer(_CHARACTERS, np.uint8)] = np.arange(len(_CHARACTERS))
    pairs = digits[np.frombuffer(text.encode() + b"#" * (len(text) % 2), np.uint8)].reshape(-1, 2) @ [1, 91]
    bits = (pairs[:, None] >> np.arange(13) & 1).astype(np.uint8)
    return np.packbits(bits, bitorder="little").tobytes()[: len(text) * 13 // 16]
