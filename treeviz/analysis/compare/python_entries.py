"""Python of a large dict in few lines: one for all entries that differ by a number."""

from __future__ import annotations

import re
from collections import defaultdict


def entries(pairs: list[tuple[str, str]]) -> list[str]:
    """Entries of a dict; of those that differ by one number, from 0 on, there is one line for all."""
    groups: dict[tuple[str, str], dict[int, tuple[str, str]]] = defaultdict(dict)  # by what is around a number
    for pair in pairs:
        for number in re.finditer(r"\d{1,6}", pair[0]):
            groups[pair[0][: number.start()], pair[0][number.end() :]][int(number[0])] = pair
    lines, done = [], set[tuple[str, str]]()
    for pair in pairs:
        around = [(pair[0][: number.start()], pair[0][number.end() :]) for number in re.finditer(r"\d{1,6}", pair[0])]
        for group in sorted([groups[each] for each in around], key=len, reverse=True):
            if pair in done or len(group) < 2 or group.keys() != set(range(len(group))):
                continue
            members = [group[i] for i in range(len(group))]
            key, source = (with_index([each[i] for each in members]) for i in (0, 1))
            if key and source and done.isdisjoint(members):
                lines.append(f"**{{{key}: {source} for i in range({len(members)})}}")
                done.update(members)
        if pair not in done:
            lines.append(f"{pair[0]}: {pair[1]}")
    return lines


def with_index(texts: list[str]) -> str:
    """The Python of texts that differ by their index alone, with `i` in its place; "" of others."""
    parts = [re.split(r"(\d+)", text) for text in texts]
    if any(len(each) != len(parts[0]) for each in parts):
        return ""
    common = list(parts[0])
    for at, column in enumerate(zip(*parts, strict=True)):
        if len(set(column)) > 1:
            if column != tuple(map(str, range(len(texts)))):
                return ""
            common[at] = "\0"
    text = re.sub(r"\[((?::, )*)\0\]", r"[\1i]", "".join(common)) if texts[0][:1] != '"' else "".join(common)
    text = re.sub(r"""(["'])((?:(?!\1).)*\0(?:(?!\1).)*)\1""", lambda found: f"f{found[0]}", text)
    return "" if re.search(r"[\w)]\0", re.sub(r"f([\"']).*?\1", "", text)) else text.replace("\0", "{i}")
