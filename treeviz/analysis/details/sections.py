"""The details of one node or leaf on request: plain data, within a budget of time and bytes.

A section is a dict: its kind, mostly a title, and the fields of the kind. Kinds and their fields:
"text" (text, tone), "pairs" and "numbers" (pairs), "code" (text), "outline" (lines), "bars" (heights, edges), "grid"
(columns, cells), "button" (label, operation), and "window", which `treeviz.explorer.explored` adds. Texts are bounded
and printable, but not trusted: a page must escape them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from treeviz.analysis.details.contents import outline
from treeviz.analysis.details.referrers import SEES_LOCALS, referrers
from treeviz.analysis.details.shards import shard_section
from treeviz.analysis.details.source import class_facts, function_source
from treeviz.analysis.stats.columns import value_statistics
from treeviz.analysis.stats.summary import FIRST_EXPONENT
from treeviz.tree.describers import array_inside
from treeviz.tree.functions import captured_values
from treeviz.tree.kinds import KINDS
from treeviz.tree.numbers import count_text, number_text
from treeviz.tree.opaque import contents
from treeviz.tree.safe_repr import class_name, error_text, guarded, has_base
from treeviz.tree.sharding import why_unreduced
from treeviz.tree.stored import Stored
from treeviz.tree.walk import scan

MOST_SECONDS = 1.0
MOST_BYTES = 512_000
MOST_ELEMENTS = 50_000_000  # with more, statistics are computed on request only

Section = dict[str, Any]
Part = Callable[[], list[Section]]


class Budget:
    """The limits of an answer: one second and 512 kB.

    Time counts from the first call of `goes_on`, so that imports for the first answer are excluded.

    Args:
      is_cancelled: Whether the page has cancelled the request.
    """

    def __init__(
        self, is_cancelled: Callable[[], bool] = lambda: False, *, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.is_cancelled = is_cancelled
        self._now = now
        self._end: float | None = None
        self._bytes_left = MOST_BYTES

    def goes_on(self) -> bool:
        now = self._now()
        if self._end is None:
            self._end = now + MOST_SECONDS
        return now < self._end and not self.is_cancelled()

    def gather(self, parts: Iterable[Part]) -> list[Section]:
        """The sections of the parts, until the budget is spent; an exception becomes a section with its text."""
        gathered: list[Section] = []
        for i, part in enumerate(parts):
            if self.is_cancelled() or (i > 0 and not self.goes_on()):
                return [*gathered, text("There is more: it takes too long for one answer.")]
            for section in guarded(part, lambda error: [text(f"could not be found out: {error_text(error)}", "bad")]):
                self._bytes_left -= len(json.dumps(section))
                if self._bytes_left < 0:
                    return [*gathered, text("There is more: it is too much for one answer.")]
                gathered.append(section)
        return gathered


def text(content: str, tone: str = "dim") -> Section:
    return {"kind": "text", "text": content, "tone": tone}


def is_array(node: Any) -> bool:
    """Whether it is a NumPy or JAX array, deleted ones included."""
    cls = type(node)
    return has_base(cls, np.ndarray) or class_name(cls) == "ArrayImpl"


def has_values(node: Any) -> bool:
    """Whether it is an array, also one in a file, or holds one whose values are its own."""
    node = plain_array(node)
    if has_base(type(node), np.ndarray) or type(node) is Stored:
        return True
    return is_array(node) and not why_unreduced(node.sharding)


def plain_array(node: Any) -> Any:
    """The array that a leaf is or holds; a subclass of `numpy.ndarray` as a plain one."""
    if not is_array(node) and type(node) is not Stored:
        inside = array_inside(node)
        node = node if inside is None else inside
    return np.ndarray.view(node, np.ndarray) if has_base(type(node), np.ndarray) else node


def referrers_button(kind: str) -> list[Section]:
    """A button for the search of referrers, which is too slow to run without a click."""
    if not KINDS[kind].has_owner:
        return []
    return [{"kind": "button", "label": "what keeps this in memory?", "operation": "referrers"}]


def treescope_button(kind: str) -> list[Section]:
    """A button for treescope's view of an opaque leaf, which runs code of its classes."""
    return (
        [{"kind": "button", "label": "show it as treescope does", "operation": "treescope"}] if kind == "opaque" else []
    )


def detail_parts(node: Any, kind: str, budget: Budget, *, stats: bool = True) -> Iterator[Part]:
    """The parts of the details of a node or leaf, the cheapest first.

    Args:
      stats: Include the statistics of an array; no other part reads values.
    """
    if kind != "function":
        yield lambda: _class_section(type(node))
    if kind in ("function", "closure"):
        yield lambda: _source_section(node)
    if kind == "function":
        yield lambda: _outline_section("captured", captured_values(node), budget)
    if kind == "opaque" or (kind in ("shape only", "tensor") and not is_array(node)):
        yield lambda: _outline_section("inside (invisible to JAX)", contents(node), budget)
    if kind in ("key", "shape only", "ref") or class_name(type(node)) == "ArrayImpl":
        yield lambda: shard_section(node)
    if stats and has_values(node):
        yield lambda: statistics(node)


def _class_section(cls: type) -> list[Section]:
    facts = class_facts(cls)
    return [{"kind": "pairs", "title": "class", "pairs": facts}] if facts else []


def _source_section(function: Any) -> list[Section]:
    source = function_source(function)
    return [{"kind": "code", "title": source[0], "text": source[1]}] if source else []


def _outline_section(title: str, named: Iterable[tuple[str, Any]], budget: Budget) -> list[Section]:
    lines, is_all = outline(named, budget.goes_on)
    more = [] if is_all else [text("There is more inside.")]
    return [{"kind": "outline", "title": title, "lines": lines}, *more] if lines else more


def statistics(array: Any, *, most_elements: int = MOST_ELEMENTS) -> list[Section]:
    """Statistics and the histogram of magnitudes, computed on the array's device; a button for a huge array."""
    n_elements = int(plain_array(array).size)
    if n_elements > most_elements:
        label = f"compute the statistics of {count_text(n_elements)} elements"
        return [{"kind": "button", "label": label, "operation": "statistics"}]
    table, nodes = scan(array)
    columns, notes = value_statistics(table, nodes, max_elements=max(n_elements, 1))
    sections = [text(reason) for reason in notes.values()]
    values = {column.name: column.values[0] for column in columns}
    numbers = [column for column in columns if column.format == "number"]
    counts = [column for column in columns if column.format == "count" and column.name != "inf"]  # posinf + neginf
    pairs = [(each.title, number_text(values[each.name])) for each in numbers if not np.isnan(values[each.name])]
    pairs += [(each.title, f"{int(values[each.name]):,}") for each in counts if values[each.name] > 0]
    if pairs:
        sections.append({"kind": "numbers", "title": "values", "pairs": pairs})
    used = np.flatnonzero(np.nan_to_num(values["histogram"]))
    if len(used):
        first, last = int(used[0]), int(used[-1])
        bins = values["histogram"][first : last + 1]
        heights = np.ceil(255 * bins / bins.max()).astype(int).tolist()
        edges = [str(FIRST_EXPONENT + i) for i in (first, last + 1)]
        sections.append({"kind": "bars", "title": "log₂|x|", "heights": heights, "edges": edges})
    return sections


def referrers_section(node: Any, budget: Budget) -> list[Section]:
    """The referrers of an object."""
    found, is_all = referrers(node, budget.goes_on)
    lines = [(0, line, "", False) for line in found] or [(0, "nobody who could be found", "", False)]
    more = [] if is_all else [text("There may be more: the search was cut short.")]
    if not SEES_LOCALS:
        more.append(text("The variables of functions that run are not looked at before Python 3.13."))
    return [{"kind": "outline", "title": "held by", "lines": lines}, *more]
