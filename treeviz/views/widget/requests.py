"""The messages that a page may send: changes of four traits, and requests of an operation and integers."""

from __future__ import annotations

from typing import Any

FROM_THE_PAGE = ("expanded", "query", "selection", "value")  # traits, in order of dependence
OPERATIONS = frozenset({"detail", "slice", "statistics", "referrers", "treescope", "whole"})
FROM_PYTHON = ("answer", "append", "log")  # what the page gets, and never sends
MOST_NUMBERS = 64  # of a request
MOST_SELECTED = 10_000
LONGEST_TEXT = 100_000  # characters of a path or a query


def is_message(message: Any) -> bool:
    """Whether a comm message has the form of those of our page."""
    try:
        data = message["content"]["data"]
        method, _ = data["method"], message["buffers"]
        if method == "update":
            return isinstance(data["state"], dict) and not data.get("buffer_paths")
        return method == "request_state" or (method == "custom" and "content" in data)
    except (KeyError, TypeError, AttributeError):
        return False


def is_small(name: str, value: Any) -> bool:
    """Whether `value` has a type and size to which the page may set the trait."""
    if name in ("query", "value"):
        return isinstance(value, str) and len(value) <= LONGEST_TEXT
    if isinstance(value, list) and len(value) <= MOST_SELECTED:
        return sum(len(part) if isinstance(part, str) else 1 for part in value) <= 10 * LONGEST_TEXT
    return False


def read_request(content: Any, buffers: Any) -> tuple[str, int, int, list[int]] | str:
    """The operation, the number of the request, the version of the tree and the integers; or why it is invalid."""
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
