"""Walk a pytree once, without recursion, into a table."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from contextlib import suppress
from math import inf
from operator import length_hint
from typing import Any

import numpy as np

from treeviz.tree.budget import WHOLE, Budget, Overflow, Stopwatch
from treeviz.tree.describe import Describers, Handler, Inlined
from treeviz.tree.facts import Facts, Note
from treeviz.tree.keys import Key, index_key
from treeviz.tree.safe_repr import class_name, error_text, guarded, module_name, visible
from treeviz.tree.table import TreeTable, without_unused
from treeviz.tree.treedef import is_treedef
from treeviz.tree.walk_alike import Alike, Rows
from treeviz.tree.walk_frames import MORE, Frame, LeftOut, cut, fair_frame, fair_rows, new_frame
from treeviz.tree.walk_notes import left_out_note, note_left_out, note_shared, repeat_facts

MAX_DEPTH = 250_000  # a flatten function may create new nodes without end
MAX_REPEATED_ROWS = 100_000  # of subtrees that already have rows
_CHECK_EVERY = 64  # rows: how often the walk looks at its stopwatch
_FEWEST = 1_000  # rows of a walk that takes too long
_OPEN = 0
IsLeaf = Callable[[Any], bool] | None


def walk(tree: Any, *, is_leaf: IsLeaf = None, name: str = "tree", max_rows: int = WHOLE.max_rows) -> TreeTable:
    """Turn a pytree into a table with one row per node, depth first, as JAX sees it.

    As `treeviz.walk`, but without columns and with a budget of rows.

    Args:
      tree: Any pytree, a tree of `jax.ShapeDtypeStruct`, or a bare `PyTreeDef`.
      is_leaf: As in `jax.tree.leaves`: nodes for which it is true are shown as leaves.
      name: What the root is called, in its row and in expressions.
      max_rows: The budget. Siblings share it fairly; a placeholder counts the omitted children.
    """
    return scan(tree, is_leaf=is_leaf, name=name, budget=Budget(max_rows))[0]


def scan(
    tree: Any, *, is_leaf: IsLeaf = None, name: str = "tree", budget: Budget = WHOLE, at_once: bool = False
) -> tuple[TreeTable, list[Any]]:
    """Walk a tree; return the table, and the node or leaf of each row for analyses that need values.

    With `at_once`, siblings that are alike are walked all at once, in a third of the time; see `Alike`.
    """
    scanner = _Scanner(is_leaf, budget)
    with suppress(Overflow):
        scanner.run(tree, at_once)
        scanner.keep_within_budget()
        return scanner.finish(name)
    scanner.release()
    # A second pass, since fair shares would cut a small but deep tree to reserve rows for siblings.
    scanner = _Scanner(is_leaf, budget, scanner)
    scanner.run(tree)
    return scanner.finish(name)


class _Scanner:
    """One pass over a tree; after a first that did not end, with fair shares of what is left of the budget."""

    def __init__(self, is_leaf: Any, budget: Budget, first: _Scanner | None = None) -> None:
        self._is_leaf = is_leaf
        self._budget, self._fair, self._is_late = budget, first is not None, False
        # Walking some rows too many and leaving them out is faster than a second pass.
        self._max_rows = budget.max_rows if first else max(budget.max_rows, min(2 * budget.max_rows, WHOLE.max_rows))
        self._max_s = budget.walk_s
        self._of = Describers(budget.max_rows, None if first is None else first._of.flattened)
        if first is not None:
            elapsed = first._elapsed()
            self._max_s = max(budget.walk_s - elapsed, budget.walk_s / 2)
            self._is_late = elapsed > budget.walk_s
            if self._is_late:
                self._max_rows = min(max(len(first.nodes) // 3, _FEWEST), budget.max_rows)
        self._elapsed = Stopwatch()
        self._n_expected = 1  # rows that are there, or will be for children of nodes that were opened
        self._of.handle(LeftOut, Handler(None, self._left_out, False))
        self.nodes: list[Any] = []
        self._depths: list[int] = []
        self._parents = array("i")  # arrays, since a list would hold one int object per number
        self._ends = array("i")  # _OPEN while the subtree is being walked
        self._positions: list[int] = []
        self._key_codes: list[int] = []
        self._fact_codes: list[int] = []
        self._notes: dict[int, list[Note]] = {}
        self._boxes: list[Any] = []  # kept alive, so that no id is reused
        self._first_rows: dict[int, int] = {}  # id of an object with an identity -> its first row
        self._repeats: list[tuple[int, int]] = []
        self._repeats_left = MAX_REPEATED_ROWS

    def run(self, tree: Any, at_once: bool = False) -> None:
        if is_treedef(tree):
            self._of.handle_treedefs()
            if tree.num_nodes > self._max_rows and not self._fair:
                raise Overflow
        self._walk(tree, at_once)

    # The hot path: local names, and one loop without calls of our own for leaves and builtin containers.
    def _walk(self, tree: Any, at_once: bool) -> None:
        of, nodes, depths, parents, ends = self._of, self.nodes, self._depths, self._parents, self._ends
        positions, key_codes, fact_codes = self._positions, self._key_codes, self._fact_codes
        keys, handlers, notes, first_rows = of.keys, of.handlers, of.notes, self._first_rows
        is_simple = self._is_leaf is None and not self._fair
        rows = Rows(nodes, depths, parents, ends, positions, key_codes, fact_codes, first_rows)
        alike = Alike(of, rows) if at_once and is_simple and self._max_s == inf else None
        check_at = -1 if self._max_s == inf else _CHECK_EVERY
        stack = [new_frame((-1, 0, [tree], [0], iter((0,)), self._max_rows, [1, 0]))]
        while stack:
            parent, depth, children, codes, waiting, _, _ = stack[-1]
            for position in waiting:
                row = len(nodes)
                if row == check_at:
                    check_at = self._check_time(row, children, codes, position, waiting)
                node = children[position]
                nodes.append(node)
                depths.append(depth)
                parents.append(parent)
                positions.append(position)
                key_codes.append(codes[position])
                ends.append(row + 1)
                handler = handlers.get(id(type(node))) or of.handler(node)
                level, describe, has_identity, _, is_builtin = handler
                if is_builtin and is_simple and id(node) not in first_rows:  # `_enter`, inlined, for most nodes
                    self._n_expected += len(node or ())
                    if self._n_expected > self._max_rows:
                        raise Overflow
                    below, below_codes, _, trouble = level(node, keys)  # type: ignore[misc]
                    fact_codes.append(describe(node))
                    if trouble:
                        self._notes[row] = [Note("error", trouble)]
                    if below:
                        if depth >= MAX_DEPTH:
                            below, below_codes = cut(below, below_codes, 0, keys)
                        first_rows[id(node)] = row
                        ends[row] = _OPEN
                        n, codes_below = len(below), below_codes or [0] * len(below)
                        stack.append(new_frame((row, depth + 1, below, codes_below, iter(range(n)), 0, None)))
                        break
                    continue
                if level is not None:
                    enter = self._open if is_simple and id(node) not in first_rows else self._enter
                    frame = enter(node, row, handler, stack[-1])
                    if notes:
                        self._take_notes(row)
                    if frame is not None:
                        ends[row] = _OPEN
                        stack.append(frame)
                        break
                    continue
                try:
                    fact_codes.append(describe(node))
                except BaseException as error:
                    self._undescribed(node, error)
                if notes:
                    self._take_notes(row)
                if has_identity and first_rows.setdefault(id(node), row) != row:
                    self._repeats.append((row, first_rows[id(node)]))
            else:
                stack.pop()
                if parent >= 0:
                    ends[parent] = len(nodes)
                    if alike is not None:
                        self._n_expected += alike.take(stack[-1], parent, self._max_rows - self._n_expected)

    def _check_time(self, row: int, children: list, codes: list[int], position: int, waiting: Iterator[int]) -> int:
        """Where there is no time left, put a placeholder in the place of the children from `position` on.

        Returns:
          The row at which to check again.
        """
        if self._elapsed() <= self._max_s:
            return row + _CHECK_EVERY
        if not self._fair:
            raise Overflow
        self._is_late = True
        last = children[-1]
        n_in_last = last.n_children if type(last) is LeftOut else 1
        children[position] = LeftOut(length_hint(waiting) + n_in_last)
        codes[position] = self._of.keys.code(MORE)
        for _ in waiting:
            pass
        return row + 1

    def _undescribed(self, leaf: Any, error: BaseException) -> None:
        if isinstance(error, KeyboardInterrupt):
            raise error
        self._fact_codes.append(self._of.trouble(leaf, "describing this leaf raised", error, is_leaf=True))

    def release(self) -> None:
        """Break the reference cycle through the handlers, so that the tree is freed without the garbage collector."""
        self._of.handlers.clear()

    def _take_notes(self, row: int) -> None:
        self._notes.setdefault(row, []).extend(self._of.notes)
        self._of.notes.clear()

    def _left_out(self, left_out: LeftOut) -> int:
        self._of.notes.append(left_out_note(left_out.n_children, self._budget, MAX_DEPTH, self._is_late))
        return self._of.facts.code(Facts("more", "", False, text=f"{left_out.n_children:,} more"))

    def _enter(self, node: Any, row: int, handler: Handler, above: Frame) -> Frame | None:
        """Describe a node; the frame to walk its children, or None if there are none to walk."""
        if self._is_leaf is not None and self._declared_leaf(node):
            self._fact_codes.append(self._of.declared_leaf(node))
            return None
        if handler.has_identity and id(node) in self._first_rows and self._is_skipped(node, row):
            return None
        return self._open(node, row, handler, above)

    def _open(self, node: Any, row: int, handler: Handler, above: Frame) -> Frame | None:
        """`_enter` for a node that is no declared leaf, and is new or may be repeated."""
        of, fact_codes = self._of, self._fact_codes
        if self._fair:
            of.keys.room = above.share(len(self.nodes))
        elif handler.is_builtin:
            self._expect(len(node or ()))
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
        except (KeyboardInterrupt, Overflow):
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
        key_codes = key_codes or [0] * len(children)
        if above.depth >= MAX_DEPTH:
            children, key_codes = cut(children, key_codes, 0, of.keys)
        if self._fair:
            return fair_frame(row, children, key_codes, above, len(self.nodes), of)
        if not handler.is_builtin:
            self._expect(len(children))
        return new_frame((row, above.depth + 1, children, key_codes, iter(range(len(children))), 0, ()))

    def _declared_leaf(self, node: Any) -> bool:
        def complain(error: BaseException) -> None:
            self._of.notes.append(Note("error", f"is_leaf raised here: {error_text(error)}"))

        return bool(guarded(lambda: bool(self._is_leaf(node)), complain))  # type: ignore[misc]

    def _is_skipped(self, node: Any, row: int) -> bool:
        """Whether to skip a node that occurred before: it contains itself, or the budget of repeated rows is spent."""
        first = self._first_rows[id(node)]
        facts, cls = self._of.facts, type(node)
        if self._ends[first] == _OPEN:
            self._of.notes.append(Note("cycle", "contains itself: JAX cannot flatten this tree", first))
            self._fact_codes.append(facts.code(Facts("cycle", class_name(cls), False, module=module_name(cls))))
            return True
        self._repeats.append((row, first))
        n_rows = self._ends[first] - first
        if n_rows <= self._repeats_left:
            self._repeats_left -= n_rows
            return False
        inside = [facts.facts[code] for code in self._fact_codes[first : self._ends[first]]]
        self._fact_codes.append(facts.code(repeat_facts(cls, inside)))
        return True

    def _inline(self, box: Any, row: int, inlined: Inlined) -> None:
        """Replace the row of a box by that of its leaf, with the key of the box."""
        code, inner = self._key_codes[row], inlined.key
        outer = index_key(self._positions[row]) if code == 0 else self._of.keys.keys[code]
        key = Key(outer.label, outer.keystr + inner.keystr, outer.segment, outer.steps + inner.steps)
        self._key_codes[row] = self._of.keys.code(key)
        self.nodes[row] = inlined.leaf
        self._boxes.append(box)
        first = self._first_rows.setdefault(id(box), row)
        if first == row and inlined.has_identity:
            first = self._first_rows.setdefault(id(inlined.leaf), row)
        if first != row and (row, first) not in self._repeats[-1:]:
            self._repeats.append((row, first))

    def _expect(self, n_children: int) -> None:
        """Give up when it is known that there are more rows than the budget has: before their keys are made."""
        self._n_expected += n_children
        if self._n_expected > self._max_rows:
            raise Overflow

    def keep_within_budget(self) -> None:
        """Leave out what is beyond the budget, where the walk has some rows too many."""
        if len(self.nodes) <= self._budget.max_rows:
            return
        kept, left_out = fair_rows(self._ends, self._budget.max_rows)
        rows, notes, repeats = np.array(kept), self._notes, self._repeats
        new = np.full(len(self.nodes), -1, np.int32)
        new[rows] = np.arange(len(rows))
        above, ends = (np.array(each)[rows] for each in (self._parents, self._ends))
        self._parents = array("i", np.where(above < 0, -1, new[above]).tobytes())
        self._ends = array("i", np.searchsorted(rows, ends).astype(np.int32).tobytes())
        for name in ("nodes", "_depths", "_positions", "_key_codes", "_fact_codes"):
            setattr(self, name, list(map(getattr(self, name).__getitem__, kept)))
        self._fair, self._notes, self._repeats = True, {}, []
        more = self._of.keys.code(MORE)
        placeholders = {n: LeftOut(n) for n in {*left_out.values()}}
        said = {n: (self._left_out(each), [self._of.notes.pop()]) for n, each in placeholders.items()}
        for row, n_children in left_out.items():
            at, new[row] = int(new[row]), -1
            self.nodes[at], self._ends[at], self._key_codes[at] = placeholders[n_children], at + 1, more
            self._fact_codes[at], self._notes[at] = said[n_children]
        self._notes |= {
            int(new[row]): [note._replace(row=int(new[note.row])) if note.row >= 0 else note for note in at_row]
            for row, at_row in notes.items()
            if new[row] >= 0
        }
        first_kept: dict[int, int] = {}
        for row, first in sorted(repeats):
            if new[row] >= 0:
                seen = first_kept.setdefault(first, int(new[first if new[first] >= 0 else row]))
                self._repeats += [(int(new[row]), seen)] if seen != new[row] else []

    def finish(self, name: str) -> tuple[TreeTable, list[Any]]:
        """The table, and the node or leaf of each row."""
        facts, codes = self._of.facts.facts, self._fact_codes
        note_shared(self._notes, self._repeats, self._ends, lambda row: facts[codes[row]])
        note_left_out(self._notes, self._parents)
        table = TreeTable(
            name=visible(name) or "tree",
            depth=np.fromiter(self._depths, np.int32, len(self.nodes)),
            parent=np.array(self._parents),
            end=np.array(self._ends),
            position=np.fromiter(self._positions, np.int32, len(self.nodes)),
            key_codes=np.fromiter(self._key_codes, np.int32, len(self.nodes)),
            keys=tuple(self._of.keys.keys),
            fact_codes=np.fromiter(self._fact_codes, np.int32, len(self.nodes)),
            facts=tuple(self._of.facts.facts),
            notes={row: tuple(notes) for row, notes in sorted(self._notes.items())},
        )
        self.release()
        return without_unused(table) if self._fair else table, self.nodes
