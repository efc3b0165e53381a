"""What a page may say to Python: an operation of a fixed set and integers, or a trait of a kind and size."""

from __future__ import annotations

from typing import Any

# What the page may ask for. Each comes with integers, and nothing else.
OPERATIONS = frozenset({"detail", "slice", "statistics", "holders", "whole"})
MOST_NUMBERS = 64
MOST_SELECTED = 10_000
LONGEST_TEXT = 100_000  # of a path or a query from the page


def is_small(name: str, value: Any) -> bool:
    """Whether the page may set a trait to something of this kind and size."""
    if name in ("query", "value"):
        return isinstance(value, str) and len(value) <= LONGEST_TEXT
    if isinstance(value, list) and len(value) <= MOST_SELECTED:
        return sum(len(part) if isinstance(part, str) else 1 for part in value) <= 10 * LONGEST_TEXT
    return False


def read_request(content: Any, buffers: Any) -> tuple[str, int, int, list[int]] | str:
    """Operation, number, version of the tree and integers; or what is wrong with them."""
    if not isinstance(content, dict) or set(content) != {"op", "id", "version", "numbers"} or buffers:
        return "a message that is no request"
    operation, numbers = content["op"], content["numbers"]
    if not isinstance(operation, str) or operation not in OPERATIONS | {"cancel"}:
        return "a request for something unknown"
    if not isinstance(numbers, list) or len(numbers) > MOST_NUMBERS:
        return f"{operation} with too much, or with no list"
    whole = [content["id"], content["version"], *numbers]
    if not all(type(number) is int and abs(number) < 2**53 for number in whole):
        return f"{operation} with something else than integers"
    return operation, content["id"], content["version"], numbers
