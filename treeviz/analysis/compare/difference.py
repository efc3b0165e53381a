"""Differences between two trees, and lists of them that are written on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any, Literal, NamedTuple

from treeviz.tree.runtime import computed_once

Kind = Literal[
    "error", "type", "none", "leaf", "length", "missing", "extra", "order", "static", "metadata",
    "python type", "shape", "dtype", "weak type", "sharding", "deleted", "NaN", "value", "spec", "axis", "size",
    "argument", "setting",
]  # fmt: skip

MEANINGS: dict[str, str] = {  # the greatest first
    "NaN": "NaN in different places",
    "error": "JAX cannot flatten the node, or a comparison raised",
    "type": "nodes of different types",
    "none": "None, which has no leaves, versus a value",
    "leaf": "a leaf versus a node",
    "length": "different numbers of children",
    "missing": "only in the first tree",
    "extra": "only in the other tree",
    "order": "the same keys in another order",
    "static": "different static data: fields that JAX keeps in the treedef",
    "metadata": "what the files say of themselves",
    "python type": "leaves of different Python types",
    "shape": "different shapes",
    "dtype": "different dtypes",
    "sharding": "on different devices, or sharded differently",
    "deleted": "one of them is deleted or donated",
    "value": "different values",
    "spec": "not a valid spec",
    "axis": "a spec for an axis that does not exist",
    "size": "axes with incompatible sizes",
    "argument": "an argument passed by position and by keyword",
    "setting": "an option or a context of JAX",
    "weak type": "one of them is weakly typed",
}

OF_TRANSPOSE = "the values of the transpose: jnp.transpose(x)"  # how a hint of values ends


class Hint(NamedTuple):
    """The likely cause of a difference, and Python that converts the first tree, or a function that writes it."""

    text: str = ""
    code: str | Callable[[], str] = ""


@dataclass(frozen=True)
class Difference:
    """One difference between two trees. Holds texts, but no arrays.

        (difference,) = treeviz.explain_map({"a": (1, 2)}, {"a": (1, 2, 3)})
        print(difference)  # ['a']: length: 2 children → 3 children
        difference.path, difference.kind

    Attributes:
      path: The key path as `jax.tree_util.keystr` writes it, but correct for named tuples (jax#39297). It is a path in
        the first tree, or in the other one for a part that only it has. "" is the root.
      kind: A key of `MEANINGS`: "type", "length", "missing", "shape", "value" …
      left, right: The node, leaf or property in the first tree and in the other: "tuple of 2", "float32[3]"; or "".
      hint: A likely cause: "inserted at [2]", "moved to [1][0]"; or "".
      tree: The position of the other tree among the arguments: 1 is the second.
      names: The names of the two trees.
      code: If a part was only rearranged, Python that converts it in the first tree, `tree`; `other` is the other tree.
        Or "".
    """

    path: str
    kind: str
    left: str
    right: str
    hint: str = ""
    tree: int = 1
    names: tuple[str, str] = ("first", "other")
    code: str = ""

    @property
    def text(self) -> str:
        """The difference without the path: "shape: (3,) → (4,) (…)", "only in the first: float32[3]"."""
        if self.kind == "missing":
            text = f"only in the {self.names[0]}: {self.left}"
        elif self.kind == "extra":
            text = f"only in the {self.names[1]}: {self.right}"
        else:
            text = f"{self.kind}: " + " → ".join(filter(None, (self.left, self.right)))
        return f"{text} ({self.hint})" if self.hint else text

    @property
    def is_transpose(self) -> bool:
        """Whether the other array has the transposed values of the first."""
        return self.kind == "value" and self.hint.endswith(OF_TRANSPOSE)

    @property
    def note(self) -> str:
        """The text for a row that shows the first value."""
        if self.kind == "value":  # a column has the number of different values
            return self.text.partition("; ")[0] + ")" * (";" in self.hint) + " transposed" * self.is_transpose
        if self.kind == "type" and "moved to [" in self.hint:
            return f"type: {self.hint}"
        if self.kind not in ("missing", "extra"):
            return self.text
        text = f"only in the {self.names[self.kind == 'extra']}"
        return f"{text} ({self.hint})" if self.hint else text

    @property
    def brief(self) -> str:
        """The note on a value, without the index; "" for other kinds."""
        return self.note.partition(" (at [")[0] if self.kind == "value" else ""

    def __str__(self) -> str:
        return f"{self.path or 'the root'}: {self.text}"


Write = Callable[[int], tuple[str, str, str, str]]
_set = object.__setattr__  # makes no `__dict__` yet, which would take most of the time for 100,000 differences


class _Text:
    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, difference: Unwritten, owner: type) -> str:
        return difference.written().__dict__[self._name]


class Unwritten(Difference):
    """A difference whose texts (`path`, `left`, `right`, `hint`) `write` returns when one is first read."""

    path, left, right, hint, code = _Text(), _Text(), _Text(), _Text(), _Text()  # type: ignore[assignment]

    def __init__(self, kind: str, tree: int, write: Write, number: int) -> None:
        _set(self, "kind", kind)
        _set(self, "tree", tree)
        _set(self, "_write", write)
        _set(self, "_number", number)

    def written(self) -> Difference:
        fields = self.__dict__
        if "_write" in fields:
            texts = fields["_write"](fields["_number"])
            for name, text in zip(("path", "left", "right", "hint"), texts, strict=True):
                fields.setdefault(name, text)
            code = fields.get("_code", "")
            fields.setdefault("code", code() if callable(code) else code)
            for name in ("_write", "_number", "_code"):
                fields.pop(name, None)
            _set(self, "__class__", Difference)
        return self

    def __eq__(self, other: object) -> bool:
        return self.written() == other

    def __hash__(self) -> int:
        return hash(self.written())

    def __repr__(self) -> str:
        return repr(self.written())

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.written().__reduce_ex__(protocol)


def with_hint(difference: Difference, hint: Hint) -> Difference:
    """The difference with a hint. An unwritten one is changed in place and stays unwritten."""
    if "_write" not in difference.__dict__:
        return replace(difference, hint=hint.text, code=hint.code() if callable(hint.code) else hint.code)
    _set(difference, "hint", hint.text)
    _set(difference, "_code", hint.code)
    return difference


class Differences(list[Difference]):
    """A list of differences; `print` shows one line for each."""

    def __repr__(self) -> str:
        several = any(difference.tree > 1 for difference in self)
        lines = [f"tree {difference.tree}: {difference}" if several else str(difference) for difference in self]
        return "\n".join(lines) or "no difference"

    __str__ = __repr__


class Unmade(Sequence[Unwritten]):
    """Differences that are all created when one is first read, from the arguments of each."""

    def __init__(self, kinds: list[str], tree: int, write: Write, numbers: Sequence[int]) -> None:
        self.kinds, self._tree, self._write, self._numbers = kinds, tree, write, numbers

    @computed_once
    def _made(self) -> list[Unwritten]:
        return [*map(Unwritten, self.kinds, repeat(self._tree), repeat(self._write), self._numbers)]

    def __len__(self) -> int:
        return len(self.kinds)

    def __getitem__(self, index: Any) -> Any:
        return self._made[index]

    def __iter__(self) -> Iterator[Unwritten]:
        yield from self._made  # creates them at the first step
