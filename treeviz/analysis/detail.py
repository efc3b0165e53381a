"""What is said of one node or leaf when somebody asks: plain data, within a budget of time and bytes.

A section is a dict: its kind, mostly a title, and what that kind is made of. Kinds and their fields:
"text" (text, tone), "pairs" and "numbers" (pairs), "code" (text), "outline" (lines), "bars" (heights, edges), "grid"
(columns, cells), "button" (label, operation), and "window", which `treeviz.explorer` adds. Texts are bounded and
printable, and still anybody's: to be escaped.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from treeviz.analysis.detail_code import class_facts, function_source
from treeviz.analysis.detail_holders import SEES_LOCALS, holders
from treeviz.analysis.detail_inside import outline
from treeviz.analysis.detail_shards import shard_section
from treeviz.analysis.stats import value_statistics
from treeviz.analysis.stats_summary import FIRST_EXPONENT
from treeviz.tree.functions import captured_values
from treeviz.tree.numbers import count_text, number_text
from treeviz.tree.opaque import contents
from treeviz.tree.quote import class_name, error_text, guarded, has_base
from treeviz.tree.walk import scan

MOST_SECONDS = 1.0
MOST_BYTES = 512_000
MOST_ELEMENTS = 50_000_000  # of which statistics are made without being asked for
_NEVER_HELD = frozenset({"scalar", "string", "none", "more", "placeholder"})
_NUMBERS = ("min", "max", "mean", "std", "rms")
_COUNTS = {"zeros": "zeros", "nan": "NaN", "posinf": "+Inf", "neginf": "-Inf"}

Section = dict[str, Any]
Part = Callable[[], list[Section]]


class Budget:
    """How long an answer may take, and how much it may say.

    Time runs from when somebody first asks for it: what the first part of the first answer loads is not counted.

    Args:
      is_cancelled: Whether nobody waits for the answer any more.
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
        """What the parts say, until the budget is spent; what one raises stands in its place."""
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


def text(said: str, tone: str = "dim") -> Section:
    return {"kind": "text", "text": said, "tone": tone}


def is_array(thing: Any) -> bool:
    """Whether it is an array with values, or one that had some."""
    cls = type(thing)
    return has_base(cls, np.ndarray) or class_name(cls) == "ArrayImpl"


def plain_array(array: Any) -> Any:
    """The array, without what a subclass of NumPy's makes of it."""
    return np.ndarray.view(array, np.ndarray) if has_base(type(array), np.ndarray) else array


def holders_button(kind: str) -> list[Section]:
    """The question that costs most, to be asked by a click alone."""
    if kind in _NEVER_HELD:
        return []
    return [{"kind": "button", "label": "who else holds this?", "operation": "holders"}]


def detail_parts(thing: Any, kind: str, budget: Budget, *, stats: bool = True) -> Iterator[Part]:
    """What is to be said of a node or leaf, what costs least first.

    Args:
      stats: With the statistics of an array; nothing else reads values.
    """
    if kind != "function":
        yield lambda: _class_section(type(thing))
    if kind in ("function", "closure"):
        yield lambda: _source_section(thing)
    if kind == "function":
        yield lambda: _outline_section("captured", captured_values(thing), budget)
    if kind == "opaque":
        yield lambda: _outline_section("inside, where JAX does not look", contents(thing), budget)
    if kind in ("key", "abstract") or class_name(type(thing)) == "ArrayImpl":
        yield lambda: shard_section(thing)
    if stats and is_array(thing):
        yield lambda: statistics(thing)


def _class_section(cls: type) -> list[Section]:
    facts = class_facts(cls)
    return [{"kind": "pairs", "title": "class", "pairs": facts}] if facts else []


def _source_section(function: Any) -> list[Section]:
    source = function_source(function)
    return [{"kind": "code", "title": source[0], "text": source[1]}] if source else []


def _outline_section(title: str, things: Iterable[tuple[str, Any]], budget: Budget) -> list[Section]:
    lines, is_all = outline(things, budget.goes_on)
    more = [] if is_all else [text("There is more inside.")]
    return [{"kind": "outline", "title": title, "lines": lines}, *more] if lines else more


def statistics(array: Any, *, most_elements: int = MOST_ELEMENTS) -> list[Section]:
    """Exact numbers, computed where the array lies, and the histogram of its magnitudes; of a huge one a button."""
    n_elements = int(plain_array(array).size)
    if n_elements > most_elements:
        label = f"compute the statistics of {count_text(n_elements)} elements"
        return [{"kind": "button", "label": label, "operation": "statistics"}]
    table, things = scan(array)
    columns, notes = value_statistics(table, things, max_elements=max(n_elements, 1))
    said = [text(reason) for reason in notes.values()]
    values = {column.name: column.values[0] for column in columns}
    pairs = [(name, number_text(values[name])) for name in _NUMBERS if not np.isnan(values[name])]
    pairs += [(title, f"{int(values[name]):,}") for name, title in _COUNTS.items() if values[name] > 0]
    if pairs:
        said.append({"kind": "numbers", "title": "values", "pairs": pairs})
    used = np.flatnonzero(np.nan_to_num(values["histogram"]))
    if len(used):
        first, last = int(used[0]), int(used[-1])
        counts = values["histogram"][first : last + 1]
        heights = np.ceil(255 * counts / counts.max()).astype(int).tolist()
        edges = [number_text(2.0 ** (FIRST_EXPONENT + i)) for i in (first, last + 1)]
        said.append({"kind": "bars", "title": "magnitudes, by powers of two", "heights": heights, "edges": edges})
    return said


def holders_section(thing: Any, budget: Budget) -> list[Section]:
    """Who holds an object."""
    found, is_all = holders(thing, budget.goes_on)
    lines = [(0, line, "", False) for line in found] or [(0, "nobody who could be found", "", False)]
    more = [] if is_all else [text("There may be more: the search was cut short.")]
    if not SEES_LOCALS:
        more.append(text("The variables of functions that run are not looked at before Python 3.13."))
    return [{"kind": "outline", "title": "held by", "lines": lines}, *more]
