"""One difference between two trees, and a list of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any, Literal, NamedTuple

from treeviz.tree.runtime import computed_once

Kind = Literal[
    "error", "type", "none", "leaf", "length", "missing", "extra", "order", "static",
    "python type", "shape", "dtype", "weak type", "sharding", "deleted", "NaN", "value", "spec", "axis", "size",
    "argument", "setting",
]  # fmt: skip

MEANINGS: dict[str, str] = {
    "error": "JAX cannot flatten the node, or a comparison raised",
    "type": "nodes of different types",
    "none": "None, which has no leaf, against something",
    "leaf": "a leaf against a node",
    "length": "different numbers of children",
    "missing": "only in the first tree",
    "extra": "only in the other tree",
    "order": "the same keys in another order",
    "static": "different static data: fields that JAX keeps in the treedef",
    "python type": "leaves of different Python types",
    "shape": "different shapes",
    "dtype": "different dtypes",
    "weak type": "one of them is weakly typed",
    "sharding": "they lie on different devices, or are split differently",
    "deleted": "one of them is deleted or donated",
    "NaN": "NaN in different places",
    "value": "different values",
    "spec": "what cannot be a spec",
    "axis": "a spec of an axis that is not there",
    "size": "axes whose sizes do not go together",
    "argument": "an argument passed by position and by keyword",
    "setting": "an option or a context of JAX",
}

OF_TRANSPOSE = "the values of the transpose: jnp.transpose(x)"  # how a hint of values ends


class Hint(NamedTuple):
    """What a difference may come from, and Python that converts the first tree, or what writes it."""

    text: str = ""
    code: str | Callable[[], str] = ""


@dataclass(frozen=True)
class Difference:
    """One difference between two trees. It holds texts, and no array.

        (difference,) = treeviz.explain_map({"a": (1, 2)}, {"a": (1, 2, 3)})
        print(difference)  # ['a']: length: 2 children → 3 children
        difference.path, difference.kind

    Attributes:
      path: The key path as `jax.tree_util.keystr` writes it, but right for named tuples (jax#39297): in the first tree;
        of what the other tree alone has, in that one. "" is the root.
      kind: A key of `MEANINGS`: "type", "length", "missing", "shape", "value" …
      left, right: What stands there in the first tree and in the other: "tuple of 2", "float32[3]"; "" is nothing.
      hint: What it may come from: "inserted at [2]", "moved to [1][0]"; or "".
      tree: The position of the other tree among the arguments: 1 is the second.
      names: What the two trees are called.
      code: Of what was only arranged anew, Python that converts that part of the first tree, `tree`; `other` stands for
        the other one. Or "".
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
        """ "shape: (3,) → (4,) (…)", "only in the first: float32[3]": what differs, without the path."""
        if self.kind == "missing":
            text = f"only in the {self.names[0]}: {self.left}"
        elif self.kind == "extra":
            text = f"only in the {self.names[1]}: {self.right}"
        else:
            text = f"{self.kind}: " + " → ".join(filter(None, (self.left, self.right)))
        return f"{text} ({self.hint})" if self.hint else text

    @property
    def is_transpose(self) -> bool:
        """Whether the values of the other array are those of the first one transposed."""
        return self.kind == "value" and self.hint.endswith(OF_TRANSPOSE)

    @property
    def note(self) -> str:
        """The same in a row that shows what stands there."""
        if self.kind == "value":  # how many differ is in a column
            return self.text.partition("; ")[0] + ")" * (";" in self.hint) + " transposed" * self.is_transpose
        if self.kind == "type" and "moved to [" in self.hint:
            return f"type: {self.hint}"
        if self.kind not in ("missing", "extra"):
            return self.text
        text = f"only in the {self.names[self.kind == 'extra']}"
        return f"{text} ({self.hint})" if self.hint else text

    @property
    def brief(self) -> str:
        """The note of a value without where it is; "" for others."""
        return self.note.partition(" (at [")[0] if self.kind == "value" else ""

    def __str__(self) -> str:
        return f"{self.path or 'the root'}: {self.text}"


Write = Callable[[int], tuple[str, str, str, str]]
_set = object.__setattr__  # which makes no dict yet: of 100,000 it takes most of the time


class _Text:
    """A text of an `Unwritten` difference."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, each: Unwritten, owner: type) -> str:
        return each.written().__dict__[self._name]


class Unwritten(Difference):
    """A difference whose texts are written at the first look at one of them; from then on it is a plain `Difference`.

    Args:
      write: Gives `path`, `left`, `right` and `hint` of the difference of a number.
    """

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


def with_hint(each: Difference, hint: Hint) -> Difference:
    """The difference with a hint; what is unwritten stays so, and is changed in place."""
    if "_write" not in each.__dict__:
        return replace(each, hint=hint.text, code=hint.code() if callable(hint.code) else hint.code)
    _set(each, "hint", hint.text)
    _set(each, "_code", hint.code)
    return each


class Differences(list[Difference]):
    """A list of differences; `print` shows a line for each."""

    def __repr__(self) -> str:
        several = len({each.tree for each in self}) > 1
        lines = [f"tree {each.tree}: {each}" if several else str(each) for each in self]
        return "\n".join(lines) or "no difference"

    __str__ = __repr__


class Unmade(Sequence[Unwritten]):
    """Differences that are all made when one of them is asked for; the arguments are those of each."""

    def __init__(self, kinds: list[str], tree: int, write: Write, numbers: Sequence[int]) -> None:
        self.kinds, self._tree, self._write, self._numbers = kinds, tree, write, numbers

    @computed_once
    def _made(self) -> list[Unwritten]:
        return [*map(Unwritten, self.kinds, repeat(self._tree), repeat(self._write), self._numbers)]

    def __len__(self) -> int:
        return len(self.kinds)

    def __getitem__(self, which: Any) -> Any:
        return self._made[which]

    def __iter__(self) -> Iterator[Unwritten]:
        yield from self._made  # they are made by the first step, not by `map` and `zip`
