"""Walk any pytree once, without recursion, and it becomes a table."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from operator import length_hint
from typing import Any, NamedTuple

import numpy as np
from jax import tree_util

from treeviz.tree.describe import Describers, Handler, Inlined
from treeviz.tree.keys import Key, index_key
from treeviz.tree.quote import class_name, error_text, guarded, module_name, visible
from treeviz.tree.table import Facts, Note, TreeTable

MAX_ROWS = 2_000_000
MAX_DEPTH = 250_000  # a flatten function may make new nodes for ever
MAX_REPEATED_ROWS = 100_000  # of subtrees that were shown before
_OPEN = 0
_MOST = 2**44  # of what one repeated subtree adds to a sum, which is to stay below 2**63


def walk(
    tree: Any, *, is_leaf: Callable[[Any], bool] | None = None, name: str = "tree", max_rows: int = MAX_ROWS
) -> TreeTable:
    """Turn a pytree into a table with one row per node, depth first, as JAX sees it.

    Iterative: a tree may be 200,000 levels deep. A cycle, a flatten function that raises, keys that
    cannot be sorted and a budget that ran out become rows that say so. No value is read, and nothing
    of the tree stays alive because of the table. Costs about 2 µs a leaf.

    Args:
      tree: Any pytree, a tree of `jax.ShapeDtypeStruct`, or a bare `PyTreeDef`.
      is_leaf: As in `jax.tree.leaves`: nodes for which it is true are shown as leaves.
      name: What the root is called in key paths and expressions.
      max_rows: The budget. It is shared fairly among siblings; what did not fit is counted in a row.
    """
    return scan(tree, is_leaf=is_leaf, name=name, max_rows=max_rows)[0]


def scan(
    tree: Any, *, is_leaf: Callable[[Any], bool] | None = None, name: str = "tree", max_rows: int = MAX_ROWS
) -> tuple[TreeTable, list[Any]]:
    """The table, and the node or leaf of each of its rows, for analyses that need values."""
    try:
        scanner = _Scanner(is_leaf, max_rows, fair=False)
        scanner.run(tree)
    except _Overflow:
        scanner.let_go()
        # only now: shares would cut a small but deep tree for the sake of siblings that it has not
        scanner = _Scanner(is_leaf, max_rows, fair=True)
        scanner.run(tree)
    table, things = scanner.table(name), scanner.things
    scanner.let_go()
    return table, things


class _Frame(NamedTuple):
    """A node whose children are being walked."""

    row: int
    depth: int  # of the children
    children: list
    key_codes: list[int]
    waiting: Iterator[int]  # the positions of the children that are still to be walked
    limit: int = MAX_ROWS  # the row before which the subtree is to end; for fair shares, as the next
    nodes_from: Sequence[int] = ()  # how many of the children from i on are nodes


_new_frame = partial(tuple.__new__, _Frame)  # in a third of the time of `_make`


class _LeftOut(NamedTuple):
    """Stands for the children that the budget left out."""

    n_children: int


class _Overflow(Exception):
    """The tree is larger than the budget."""


class _Scanner:
    def __init__(self, is_leaf: Callable[[Any], bool] | None, max_rows: int, fair: bool) -> None:
        self._is_leaf = is_leaf
        self._max_rows = max_rows
        self._fair = fair
        self._of = Describers()
        self._of.handle(_LeftOut, Handler(None, self._left_out, False))
        self.things: list[Any] = []
        self._depths: list[int] = []
        self._parents = array("i")  # arrays, since most of their numbers are objects of their own in a list
        self._ends = array("i")  # _OPEN while the subtree is being walked
        self._positions: list[int] = []
        self._key_codes: list[int] = []
        self._fact_codes: list[int] = []
        self._notes: dict[int, list[Note]] = {}
        self._boxes: list[Any] = []  # kept, so that no id is used again
        self._first_rows: dict[int, int] = {}  # id of an object with an identity -> where it was met first
        self._met_again: list[tuple[int, int]] = []
        self._repeats_left = MAX_REPEATED_ROWS

    def run(self, tree: Any) -> None:
        if type(tree) is tree_util.PyTreeDef:
            self._of.handle_treedefs()
        of, things, depths, parents, ends = self._of, self.things, self._depths, self._parents, self._ends
        positions, key_codes, fact_codes = self._positions, self._key_codes, self._fact_codes
        first_rows, handlers = self._first_rows, self._of.handlers

        keys, max_rows = of.keys, self._max_rows
        is_simple = self._is_leaf is None and not self._fair

        stack = [_new_frame((-1, 0, [tree], [0], iter((0,)), max_rows, [1, 0]))]
        while stack:
            parent, depth, children, codes, waiting, _, _ = stack[-1]
            for position in waiting:
                thing = children[position]
                row = len(things)
                things.append(thing)
                depths.append(depth)
                parents.append(parent)
                positions.append(position)
                key_codes.append(codes[position])
                ends.append(row + 1)
                handler = handlers.get(id(type(thing))) or of.handler(thing)
                if handler.is_builtin and is_simple and id(thing) not in first_rows:
                    # what `_enter` does, short, since most nodes of most trees are dicts and lists
                    below, below_codes, _, trouble = handler.level(thing, keys)  # type: ignore[misc]
                    fact_codes.append(handler.describe(thing))
                    if trouble:
                        self._notes[row] = [Note("error", trouble)]
                    if below:
                        if row + len(below) >= max_rows:
                            raise _Overflow
                        if depth >= MAX_DEPTH:
                            below, below_codes = self._cut(below, below_codes, 0)
                        first_rows[id(thing)] = row
                        ends[row] = _OPEN
                        stack.append(
                            _new_frame(
                                (
                                    row,
                                    depth + 1,
                                    below,
                                    below_codes or [0] * len(below),
                                    iter(range(len(below))),
                                    0,
                                    None,
                                )
                            )
                        )
                        break
                    continue
                if handler.level is not None:
                    enter = self._open if is_simple and id(thing) not in first_rows else self._enter
                    below = enter(thing, row, handler, stack[-1])
                    if of.notes:
                        self._take_notes(row)
                    if below is not None:
                        ends[row] = _OPEN
                        stack.append(below)
                        break
                    continue
                try:
                    fact_codes.append(handler.describe(thing))
                except KeyboardInterrupt:
                    raise
                except BaseException as error:
                    fact_codes.append(of.trouble(thing, "describing this leaf raised", error, is_leaf=True))
                if of.notes:
                    self._take_notes(row)
                if handler.has_identity:
                    first = first_rows.setdefault(id(thing), row)
                    if first != row:
                        self._met_again.append((row, first))
            else:
                stack.pop()
                if parent >= 0:
                    ends[parent] = len(things)

    def let_go(self) -> None:
        """Refer to itself no more: the tree is not to wait for Python's garbage collector."""
        self._of.handlers.clear()

    def _take_notes(self, row: int) -> None:
        self._notes.setdefault(row, []).extend(self._of.notes)
        self._of.notes.clear()

    def _left_out(self, left_out: _LeftOut) -> int:
        n = left_out.n_children
        budget = f"{self._max_rows:,} rows and {MAX_DEPTH:,} levels"
        text = f"{n:,} more {'child was' if n == 1 else 'children were'} left out: the budget is {budget}"
        self._of.notes.append(Note("more", text))
        return self._of.facts.code(Facts("more", "", False, text=f"{n:,} more"))

    def _enter(self, node: Any, row: int, handler: Handler, above: _Frame) -> _Frame | None:
        """Describe a node; the frame to walk its children, or None if there are none to walk."""
        if self._is_leaf is not None and self._declared_leaf(node):
            self._fact_codes.append(self._of.declared_leaf(node))
            return None
        if handler.has_identity and id(node) in self._first_rows and self._is_met_again(node, row):
            return None
        return self._open(node, row, handler, above)

    def _open(self, node: Any, row: int, handler: Handler, above: _Frame) -> _Frame | None:
        """The same for a node that is no declared leaf and was not met before, or may be repeated."""
        of, fact_codes = self._of, self._fact_codes
        try:
            level = handler.level(node, of.keys)  # type: ignore[misc]
            if level is None:
                fact_codes.append(handler.describe(node))
                return None
            if handler.is_builtin:
                fact_codes.append(handler.describe(node))
            else:
                fact_code, level, inlined = of.node(node, handler, level, row > 0)
                fact_codes.append(fact_code)
                if inlined is not None:
                    self._inline(node, row, inlined)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            fact_codes.append(of.trouble(node, "flattening this node raised", error, is_leaf=False))
            return None
        children, key_codes, _, trouble = level
        if trouble:
            of.notes.append(Note("error", trouble))
        if not children:
            return None
        if handler.has_identity:
            self._first_rows.setdefault(id(node), row)
        if key_codes is None:
            key_codes = [0] * len(children)
        if above.depth >= MAX_DEPTH:
            children, key_codes = self._cut(children, key_codes, 0)
        if self._fair or len(self.things) + len(children) > self._max_rows:
            return self._fair_frame(row, children, key_codes, above)
        return _new_frame((row, above.depth + 1, children, key_codes, iter(range(len(children))), MAX_ROWS, ()))

    def _declared_leaf(self, node: Any) -> bool:
        def complain(error: BaseException) -> bool:
            self._of.notes.append(Note("error", f"is_leaf raised here: {error_text(error)}"))
            return False

        return guarded(lambda: bool(self._is_leaf(node)), complain)  # type: ignore[misc]

    def _is_met_again(self, node: Any, row: int) -> bool:
        """Whether a node is not to be walked: it contains itself, or would be repeated once too often."""
        first = self._first_rows[id(node)]
        facts, cls = self._of.facts, type(node)
        if self._ends[first] == _OPEN:
            self._of.notes.append(Note("cycle", "contains itself: JAX cannot flatten this tree", first))
            self._fact_codes.append(facts.code(Facts("cycle", class_name(cls), False, module=module_name(cls))))
            return True
        self._met_again.append((row, first))
        n_rows = self._ends[first] - first
        if n_rows <= self._repeats_left:
            self._repeats_left -= n_rows
            return False
        inside = [facts.facts[code] for code in self._fact_codes[first : self._ends[first]]]
        leaves, parameters, n_bytes = (
            min(sum(part), _MOST) for part in zip(*((f.leaves, f.parameters, f.bytes) for f in inside), strict=True)
        )
        repeat = Facts("repeat", class_name(cls), False, leaves, parameters, n_bytes, module=module_name(cls))
        self._fact_codes.append(facts.code(repeat))
        return True

    def _inline(self, box: Any, row: int, inlined: Inlined) -> None:
        """The row of a box becomes that of the leaf in it, under the box's name."""
        code, inner = self._key_codes[row], inlined.key
        outer = index_key(self._positions[row]) if code == 0 else self._of.keys.keys[code]
        key = Key(outer.label, outer.keystr + inner.keystr, outer.segment, outer.steps + inner.steps)
        self._key_codes[row] = self._of.keys.code(key)
        self.things[row] = inlined.leaf
        self._boxes.append(box)
        first = self._first_rows.setdefault(id(box), row)
        if first == row and inlined.has_identity:
            first = self._first_rows.setdefault(id(inlined.leaf), row)
        if first != row and (row, first) not in self._met_again[-1:]:
            self._met_again.append((row, first))

    def _fair_frame(self, row: int, children: list, key_codes: list[int], above: _Frame) -> _Frame:
        """The frame of a node that gets no more than its share of the rows that are left."""
        if not self._fair:
            raise _Overflow
        now, waiting = len(self.things), length_hint(above.waiting)
        nodes_waiting = above.nodes_from[len(above.children) - waiting]
        room = max((above.limit - now - waiting) // (nodes_waiting + 1), 0)
        if len(children) > room:
            children, key_codes = self._cut(children, key_codes, max(room - 1, 0))
        are_nodes = (self._of.handler(child).level is not None for child in reversed(children))
        nodes_from = [*accumulate(are_nodes, initial=0)][::-1]
        waiting = iter(range(len(children)))
        return _Frame(row, above.depth + 1, children, key_codes, waiting, now + room, nodes_from)

    def _cut(self, children: list, key_codes: Sequence[int] | None, n_kept: int) -> tuple[list, list[int]]:
        """The first children, and one that stands for the others."""
        more = self._of.keys.code(Key("…", "", "…", ()))
        key_codes = [0] * n_kept if key_codes is None else key_codes[:n_kept]
        return [*children[:n_kept], _LeftOut(len(children) - n_kept)], [*key_codes, more]

    def table(self, name: str) -> TreeTable:
        ends = np.array(self._ends)
        self._note_shared()
        return TreeTable(
            name=visible(name),
            depth=np.array(self._depths, dtype=np.int32),
            parent=np.array(self._parents),
            end=ends,
            position=np.array(self._positions, dtype=np.int32),
            key_codes=np.array(self._key_codes, dtype=np.int32),
            keys=tuple(self._of.keys.keys),
            fact_codes=np.array(self._fact_codes, dtype=np.int32),
            facts=tuple(self._of.facts.facts),
            notes={row: tuple(notes) for row, notes in sorted(self._notes.items())},
        )

    def _note_shared(self) -> None:
        """A badge for every object that stands in several places; one for a subtree, none inside it."""
        places: dict[int, int] = {}
        inside_until = 0
        for row, first in sorted(self._met_again):
            if row < inside_until or not self._is_worth_a_badge(first):
                continue
            inside_until = self._ends[row]
            places[first] = places.get(first, 1) + 1
            self._notes.setdefault(row, []).append(Note("shared", "the same object as", first))
        for first, n_places in places.items():
            self._notes.setdefault(first, []).append(Note("shared", f"stands in {n_places} places"))

    def _is_worth_a_badge(self, first: int) -> bool:
        """Python shares tuples of constants by itself; that is nobody's intent."""
        facts = self._of.facts.facts
        if facts[self._fact_codes[first]].kind not in ("tuple", "namedtuple"):
            return True
        inside = self._fact_codes[first : self._ends[first]]
        return any(facts[code].bytes or facts[code].kind in ("opaque", "ref") for code in inside)
