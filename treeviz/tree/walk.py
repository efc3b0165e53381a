"""Walk a pytree into a table, without recursion and within a budget of rows, levels and seconds."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import accumulate, chain, islice, repeat, takewhile
from operator import is_, itemgetter, length_hint
from typing import Any, NamedTuple

import numpy as np

from treeviz.tree.describe import ALONE, Describers, Handler, Inlined
from treeviz.tree.describers import WHOLE, Budget, Overflow, Stopwatch
from treeviz.tree.facts import KINDS, Facts, Note
from treeviz.tree.keys import Key, KeyTable, index_key
from treeviz.tree.level import BUILTIN_LEVELS, is_treedef
from treeviz.tree.table import TreeTable, children_of, without_unused
from treeviz.tree.text import class_name, error_text, guarded, is_any, module_name, visible

# Notes written after the walk: shared objects, and totals that are incomplete

Notes = dict[int, list[Note]]

_MOST_CUT_NODES = 1_000  # nodes with the note that their totals are incomplete
_MOST_SUM = 2**44  # of one repeated subtree, so that sums stay below 2**63
_AT_LEAST = Note("info", "at least: some of it was left out")


def note_shared(
    notes: Notes, repeats: Sequence[tuple[int, int]], ends: Sequence[int], facts: Callable[[int], Facts]
) -> None:
    """Note every object that occurs several times: a shared subtree once, without the nodes inside it.

    Args:
      repeats: The row of each further occurrence, with the first row.
      ends: The end of each row's subtree.
      facts: Returns the facts of a row.
    """
    occurrences: dict[int, int] = {}
    inside_until = 0
    for row, first in sorted(repeats):
        if row < inside_until:
            continue
        # Python shares constant tuples; a static node is a constant, too.
        if facts(first).kind in ("tuple", "namedtuple", "static"):
            inside = map(facts, range(first, ends[first]))
            if not any(one.bytes or KINDS[one.kind].is_mutable for one in inside):
                continue
        inside_until = ends[row]
        occurrences[first] = occurrences.get(first, 1) + 1
        notes.setdefault(row, []).append(Note("shared", "the same object as", first))
    for first, n in occurrences.items():
        notes.setdefault(first, []).append(Note("shared", f"occurs in {n} places"))


@lru_cache(64)  # thousands of nodes may leave out equally many
def left_out_note(n_children: int, budget: Budget, max_depth: int, is_late: bool) -> Note:
    """The note of a placeholder for children beyond the budget: how many there are, and why they have no rows."""
    left_out = f"{n_children:,} more {'child was' if n_children == 1 else 'children were'} left out"
    reason = f"the budget is {budget.max_rows:,} rows and {max_depth:,} levels"
    if is_late:
        reason = f"walking this tree takes more than {budget.walk_s:g} s"
    return Note("more", f"{left_out}: {reason}{budget.hint}")


def note_left_out(notes: Notes, parents: Sequence[int]) -> None:
    """Note incomplete totals at the nodes above omitted rows; only at the highest ones if there are many."""
    above: set[int] = set()
    for row, at_row in notes.items():
        parent = parents[row] if any(note.kind == "more" for note in at_row) else -1
        while parent >= 0 and parent not in above:
            above.add(parent)
            parent = parents[parent]
    for row in sorted(above)[:_MOST_CUT_NODES]:
        notes.setdefault(row, []).append(_AT_LEAST)


# Frames: nodes whose children are being walked; siblings share the budget of rows fairly

MORE = Key("…", "", "…", ())


class Frame(NamedTuple):
    """A node whose children are being walked."""

    row: int
    depth: int  # of the children
    children: list
    key_codes: list[int]
    waiting: Iterator[int]  # the positions of the children not walked yet
    limit: int = WHOLE.max_rows  # the subtree ends before this row; used with the next field, only for fair shares
    nodes_from: Sequence[int] = ()  # at i: how many children from i on are nodes

    def share(self, n_rows: int) -> int:
        """The rows for the subtree of the child that became the last of `n_rows` rows: its share of the rest."""
        waiting = length_hint(self.waiting)
        nodes_waiting = self.nodes_from[len(self.children) - waiting]
        return max((self.limit - n_rows - waiting) // (nodes_waiting + 1), 0)


new_frame = partial(tuple.__new__, Frame)  # three times as fast as `_make`


class LeftOut(NamedTuple):
    n_children: int  # beyond the budget


def fair_frame(
    row: int, children: list, key_codes: list[int], above: Frame, n_rows: int, describers: Describers
) -> Frame:
    """The frame of a node with its share of the remaining rows."""
    room = above.share(n_rows)
    if len(children) > room:
        children, key_codes = cut(children, key_codes, max(room - 1, 0), describers.keys)
    are_nodes = (describers.handler(child).level is not None for child in reversed(children))
    nodes_from = [*accumulate(are_nodes, initial=0)][::-1]
    return Frame(row, above.depth + 1, children, key_codes, iter(range(len(children))), n_rows + room, nodes_from)


def fair_rows(ends: Sequence[int], max_rows: int) -> tuple[list[int], dict[int, int]]:
    """Choose the rows to keep if a walk has too many: siblings share them; a subtree that fits in its share is whole.

    Args:
      ends: The end of each row's subtree.

    Returns:
      The rows in order; and those that become placeholders, with the number of siblings from there on.
    """
    kept: list[int] = []
    left_out: dict[int, int] = {}
    waiting = [(0, max_rows, 0, 0)]  # row, end of the parent's share, numbers of later siblings and nodes among them
    while waiting:
        row, limit, n_later, n_nodes = waiting.pop()
        kept.append(row)
        if row in left_out:
            continue
        room, end = max((limit - len(kept) - n_later) // (n_nodes + 1), 0), ends[row]
        if end - row - 1 <= room:
            kept.extend(range(row + 1, end))
            continue
        children, child = [], row + 1
        while child < end:
            children.append(child)
            child = ends[child]
        if len(children) > room:
            n_shown = max(room - 1, 0)
            left_out[children[n_shown]] = len(children) - n_shown
            del children[n_shown + 1 :]
        limit, n_nodes = len(kept) + room, 0
        for n_later, child in enumerate(reversed(children)):
            waiting.append((child, limit, n_later, n_nodes))
            n_nodes += ends[child] > child + 1 and child not in left_out
    return kept, left_out


def cut(children: list, key_codes: Sequence[int] | None, n_kept: int, keys: KeyTable) -> tuple[list, list[int]]:
    """The first children and one placeholder for the others, with their key codes."""
    more = keys.code(MORE)
    key_codes = [0] * n_kept if key_codes is None else key_codes[:n_kept]
    return [*children[:n_kept], LeftOut(len(children) - n_kept)], [*key_codes, more]


# Walk similar siblings at once, column by column: most of a large tree are layers of one kind

_FEWEST_SIBLINGS = 8
_FIRST, _MOST = 16, 1 << 14  # siblings that are tried at once: four times as many after each success
_ROWS_FOR_A_MISS = 256  # a failed try costs as much as walking about so many rows
_shape_of, _dtype_of = np.ndarray.shape.__get__, np.ndarray.dtype.__get__  # type: ignore[attr-defined]


class Rows(NamedTuple):
    """The rows of a walk; see `TreeTable`."""

    nodes: list[Any]
    depths: list[int]
    parents: array
    ends: array
    positions: list[int]
    key_codes: list[int]
    fact_codes: list[int]
    first_rows: dict[int, int]  # by the id of an object with an identity


class _Part(NamedTuple):
    """A row of the subtree that later siblings are compared with."""

    node: Any
    handler: Handler
    fact_code: int
    below: Sequence[int]  # the offsets of its children
    key_codes: list[int]  # of its children
    names: list[str] | None  # the keys of a dict


class SimilarSiblings:
    """Adds the rows of siblings that are similar to the one before.

    Their nodes are lists, tuples, dicts with string keys and objects of registered classes whose children are
    attributes, their leaves of classes of JAX, NumPy or Python, and no object occurs twice.
    """

    def __init__(self, describers: Describers, rows: Rows, is_late: Callable[[], bool]) -> None:
        self._describers, self._rows, self._is_late = describers, rows, is_late
        facts = describers.facts
        self._plain = (facts.numpy, facts.array, facts.scalar, facts.abstract, facts.numpy_scalar, facts.string)
        self._n_missed = -_FEWEST_SIBLINGS

    def add_similar(self, above: Frame, row: int, room: int) -> int:
        """Add the siblings after the last subtree of the rows, up to the first one that is not similar.

        Args:
          above: The frame of their parent.
          row: The first row of that subtree.
          room: How many rows may be added to those that are expected.

        Returns:
          How many were added.
        """
        n_waiting, n_tried, n_added = length_hint(above.waiting), _FIRST, 0
        if n_waiting < _FEWEST_SIBLINGS or self._n_missed * _ROWS_FOR_A_MISS > row:
            return 0
        node, following = self._rows.nodes[row], above.children[-n_waiting]
        if type(node) is not type(following) or (is_any(type(node), BUILTIN_LEVELS) and len(node) != len(following)):
            return 0
        size, parts = self._rows.ends[row] - row, list[_Part]()
        while n_waiting:
            first = len(above.children) - n_waiting
            n = min(n_tried, n_waiting, max(room - n_added, 0) // size)
            # Another thread may change a dict, and flattening a node may raise.
            which = slice(first, first + n)
            n_taken = guarded(lambda which=which: self._add_rows(parts, above, row, which), lambda _: 0)
            n_waiting, n_added = n_waiting - n_taken, n_added + n_taken * (size - 1)
            if n_taken < n_tried or self._is_late():
                break
            # Flattening a node of a registered class may be slow.
            n_tried = _FIRST if any(part.handler.flatten for part in parts) else min(4 * n_tried, _MOST)
        self._n_missed += n_added < _FEWEST_SIBLINGS
        return n_added

    def _make_part(self, start: int, row: int) -> _Part | None:
        """The part for a row of the subtree at `start`; None if siblings with such a row are walked one by one."""
        node, below, names = self._rows.nodes[row], children_of(self._rows.ends, row), None
        handler = self._describers.handler(node)
        if handler.level is None:
            is_known = handler.describer is None and handler.describe in self._plain
        else:
            is_known = handler.flatten is not None or (handler.is_builtin and len(node or ()) == len(below))
        if below and is_known and handler.is_builtin and not isinstance(node, list | tuple):
            is_known = type(node) is dict and False not in _are(node, str)
            names = sorted(node) if is_known else None
        key_codes = [self._rows.key_codes[child] for child in below]
        fact_code, below = self._rows.fact_codes[row], [child - start for child in below]
        return _Part(node, handler, fact_code, below, key_codes, names) if is_known else None

    def _columns(self, parts: list[_Part], row: int, siblings: list[Any]) -> list[list[Any]]:
        """The node at each row of a subtree, for the first similar siblings; appends the parts not known yet."""
        columns, n = {0: siblings}, len(siblings)
        for i in range(self._rows.ends[row] - row):
            part = parts[i] if i < len(parts) else self._make_part(row, row + i)
            if part is None or not n:
                return []
            parts += [part] if i == len(parts) else []
            node, handler, fact_code, below, key_codes, names = part
            nodes = columns[i][: _n_first(_are(columns[i][:n], type(node)))]
            n = len(nodes)
            if handler.flatten is not None:
                nodes = self._describers.nodes.similar(nodes, handler, key_codes, fact_code)
                n = len(nodes)
            elif isinstance(node, list | tuple | dict):
                n = _n_first([*map(len(node).__eq__, map(len, nodes))])
                if names is not None:
                    n = _n_first(_are(chain.from_iterable(nodes[:n]), str)) // len(names)
            for offset, key in zip(below, names or range(len(below)), strict=True):
                columns[offset] = _items(nodes[:n], key)
                n = len(columns[offset])
        return [columns[i][:n] for i in range(len(columns))]

    def _add_rows(self, parts: list[_Part], above: Frame, row: int, which: slice) -> int:
        """Add the rows of similar siblings; return their number."""
        columns, rows, new = self._columns(parts, row, above.children[which]), self._rows, dict[int, int]()
        n, size, start, end = len(columns[0]) if columns else 0, len(columns), len(rows.nodes), rows.ends[row]
        nodes: list[Any] = [None] * (n * size)
        n_identities = 0
        for i, (part, column) in enumerate(zip(parts, columns, strict=True)):
            nodes[i::size] = column
            if part.below or (part.handler.level is None and part.handler.has_identity):
                new.update(zip(map(id, column), range(start + i, start + n * size, size), strict=True))
                n_identities += n
        if not n or len(new) < n_identities or not rows.first_rows.keys().isdisjoint(new):
            return 0
        codes = self._codes(parts, nodes, rows.fact_codes[row:end])  # may raise: nothing is added before
        further = np.arange(start - row, start - row + n * size, size, dtype=np.int32)[:, None]
        for column, top in ((rows.parents, above.row), (rows.ends, None)):
            added = np.array(column[row:end], np.int32) + further
            if top is not None:
                added[:, 0] = top
            column.frombytes(added.tobytes())
        positions = range(which.start, which.stop)
        for column, tops in ((rows.key_codes, above.key_codes[which]), (rows.positions, positions)):
            added = column[row:end] * n
            added[::size] = tops[:n]
            column.extend(added)
        rows.depths.extend(rows.depths[row:end] * n)
        rows.fact_codes.extend(codes)
        rows.nodes.extend(nodes)
        rows.first_rows.update(new)
        next(islice(above.waiting, n - 1, None))
        return n

    def _codes(self, parts: list[_Part], nodes: list[Any], codes: list[int]) -> list[int]:
        """The fact codes of siblings, from those of the one before; new facts get codes in the order of the rows."""
        size = len(parts)
        all_codes, differing = codes * (len(nodes) // size), []
        for i, part in enumerate(parts):
            if part.handler.level is None and not self._have_equal_facts(part, nodes[i::size]):
                differing.append((i, part.handler.describe))
        for start in range(0, len(nodes) if differing else 0, size):
            for i, describe in differing:
                all_codes[start + i] = describe(nodes[start + i])
        return all_codes

    def _have_equal_facts(self, part: _Part, others: list[Any]) -> bool:
        """Whether leaves of one class have the facts of the part's leaf, if a quick test of all at once shows it."""
        leaf, describe, facts = part.node, part.handler.describe, self._describers.facts
        if isinstance(leaf, bool | int | float) and {*map(id, others)} == {id(leaf)}:
            return True
        if type(leaf) is np.ndarray:
            return {*map(_shape_of, others)} == {leaf.shape} and {*map(_dtype_of, others)} == {leaf.dtype}
        if describe == facts.array:
            # Most avals are one object, which `count` compares fast.
            first, *rest = [
                (x.aval, x.committed, x.is_deleted(), type(x.sharding), x.sharding) for x in (leaf, *others)
            ]
            return rest.count(first) == len(rest)
        return isinstance(leaf, int | float) and bool(leaf) and {*others} == {leaf}  # 0.0 equals -0.0


def _are(objects: Iterable[Any], cls: type) -> list[bool]:
    """Whether each is of the class itself."""
    return [*map(is_, map(type, objects), repeat(cls))]  # a metaclass may override ==


def _n_first(flags: list[bool]) -> int:
    """How many are true at the start."""
    return flags.index(False) if False in flags else len(flags)


def _items(column: list[Any], key: Any) -> list[Any]:
    """The values of dicts or lists at a key, up to the first dict without it."""
    get = itemgetter(key)
    try:
        return [*map(get, column)]
    except KeyError:
        return [*map(get, takewhile(lambda node: key in node, column))]


# The walk

MAX_DEPTH = 250_000  # a flatten function may create new nodes without end
MAX_REPEATED_ROWS = 100_000  # of subtrees that already have rows
_CHECK_EVERY = 64  # rows between readings of the stopwatch
_FEWEST = 1_000  # rows of a walk that takes too long
_OPEN = 0
IsLeaf = Callable[[Any], bool] | None


def walk(tree: Any, *, is_leaf: IsLeaf = None, name: str = "tree", max_rows: int = WHOLE.max_rows) -> TreeTable:
    """Turn a pytree into a table with one row per node, depth first, as JAX sees it.

    As `treeviz.walk`, but without columns and with a budget of rows.

    Args:
      tree: Any pytree, a tree of `jax.ShapeDtypeStruct`, or a bare `PyTreeDef`.
      is_leaf: As in `jax.tree.leaves`: nodes for which it is true are shown as leaves.
      name: The name of the root, in its row and in expressions.
      max_rows: The budget. Siblings share it fairly; a placeholder counts the omitted children.
    """
    return scan(tree, is_leaf=is_leaf, name=name, budget=Budget(max_rows))[0]


def scan(
    tree: Any, *, is_leaf: IsLeaf = None, name: str = "tree", budget: Budget = WHOLE
) -> tuple[TreeTable, list[Any]]:
    """Walk a tree; return the table, and the node or leaf of each row for analyses that need values."""
    scanner = _Scanner(is_leaf, budget)
    try:
        scanner.run(tree)
        scanner.keep_within_budget()
        return scanner.finish(name)
    except Overflow:
        scanner.release()
    # A second pass, since fair shares would cut a small but deep tree to reserve rows for siblings.
    scanner = _Scanner(is_leaf, budget, scanner)
    scanner.run(tree)
    return scanner.finish(name)


class _Scanner:
    """One pass over a tree; a second one after an overflow, with fair shares of the remaining budget."""

    def __init__(self, is_leaf: Any, budget: Budget, first: _Scanner | None = None) -> None:
        self._is_leaf = is_leaf
        self._budget, self._fair, self._is_late = budget, first is not None, False
        # Walking some rows too many and leaving them out is faster than a second pass.
        self._max_rows = budget.max_rows if first else max(budget.max_rows, min(2 * budget.max_rows, WHOLE.max_rows))
        self._max_s = budget.walk_s
        self._describers = Describers(budget.max_rows, None if first is None else first._describers.flattened)
        if first is not None:
            elapsed = first._elapsed()
            self._max_s = max(budget.walk_s - elapsed, budget.walk_s / 2)
            self._is_late = elapsed > budget.walk_s
            if self._is_late:
                self._max_rows = min(max(len(first.nodes) // 3, _FEWEST), budget.max_rows)
        self._elapsed = Stopwatch()
        self._n_expected = 1  # rows so far, and those of the children of opened nodes
        self._describers.handle(LeftOut, Handler(None, self._left_out, False))
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

    def run(self, tree: Any) -> None:
        if is_treedef(tree):
            self._describers.handle_treedefs()
            if tree.num_nodes > self._max_rows and not self._fair:
                raise Overflow
        self._walk(tree)

    # The hot path: local names, and a loop without calls of our own for leaves and builtin containers.
    def _walk(self, tree: Any) -> None:
        describers, nodes, depths, parents, ends = self._describers, self.nodes, self._depths, self._parents, self._ends
        positions, key_codes, fact_codes = self._positions, self._key_codes, self._fact_codes
        keys, handlers, notes, first_rows = describers.keys, describers.handlers, describers.notes, self._first_rows
        is_simple = self._is_leaf is None and not self._fair
        rows = Rows(nodes, depths, parents, ends, positions, key_codes, fact_codes, first_rows)
        similar = SimilarSiblings(describers, rows, lambda: self._elapsed() > self._max_s) if is_simple else None
        check_at = _CHECK_EVERY
        stack = [new_frame((-1, 0, [tree], [0], iter((0,)), self._max_rows, [1, 0]))]
        while stack:
            parent, depth, children, codes, waiting, _, _ = stack[-1]
            for position in waiting:
                row = len(nodes)
                if row >= check_at:
                    check_at = self._check_time(row, children, codes, position, waiting)
                node = children[position]
                nodes.append(node)
                depths.append(depth)
                parents.append(parent)
                positions.append(position)
                key_codes.append(codes[position])
                ends.append(row + 1)
                handler = handlers.get(id(type(node))) or describers.handler(node)
                level, describe, has_identity, _, is_builtin, _ = handler
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
                except KeyboardInterrupt:
                    raise
                except BaseException as error:
                    fact_codes.append(describers.trouble(node, "describing this leaf raised", error, is_leaf=True))
                if notes:
                    self._take_notes(row)
                if has_identity and first_rows.setdefault(id(node), row) != row:
                    self._repeats.append((row, first_rows[id(node)]))
            else:
                stack.pop()
                if parent >= 0:
                    ends[parent] = len(nodes)
                    if similar is not None:
                        self._n_expected += similar.add_similar(stack[-1], parent, self._max_rows - self._n_expected)

    def _check_time(self, row: int, children: list, codes: list[int], position: int, waiting: Iterator[int]) -> int:
        """If no time is left, replace the children from `position` on; return the row at which to check again."""
        if self._elapsed() <= self._max_s:
            return row + _CHECK_EVERY
        if not self._fair:
            raise Overflow
        self._is_late = True
        last = children[-1]
        n_in_last = last.n_children if type(last) is LeftOut else 1
        children[position] = LeftOut(length_hint(waiting) + n_in_last)
        codes[position] = self._describers.keys.code(MORE)
        for _ in waiting:
            pass
        return row + 1

    def release(self) -> None:
        """Break the reference cycle through the handlers, so that the tree is freed without the garbage collector."""
        self._describers.handlers.clear()

    def _take_notes(self, row: int) -> None:
        self._notes.setdefault(row, []).extend(self._describers.notes)
        self._describers.notes.clear()

    def _left_out(self, left_out: LeftOut) -> int:
        self._describers.notes.append(left_out_note(left_out.n_children, self._budget, MAX_DEPTH, self._is_late))
        return self._describers.facts.code(Facts("more", "", False, text=f"{left_out.n_children:,} more"))

    def _enter(self, node: Any, row: int, handler: Handler, above: Frame) -> Frame | None:
        """Describe a node; return the frame to walk its children, or None."""

        def complain(error: BaseException) -> None:
            self._describers.notes.append(Note("error", f"is_leaf raised here: {error_text(error)}"))

        if self._is_leaf is not None and guarded(lambda: bool(self._is_leaf(node)), complain):  # type: ignore[misc]
            self._fact_codes.append(self._describers.declared_leaf(node))
            return None
        if handler.has_identity and id(node) in self._first_rows and self._is_skipped(node, row):
            return None
        return self._open(node, row, handler, above)

    def _open(self, node: Any, row: int, handler: Handler, above: Frame) -> Frame | None:
        """`_enter` for a node that is not a declared leaf, and is new or may be repeated."""
        describers, fact_codes = self._describers, self._fact_codes
        if self._fair:
            describers.keys.room = above.share(len(self.nodes))
        elif handler.is_builtin:
            self._expect(len(node or ()))
        try:
            level = handler.level(node, describers.keys)  # type: ignore[misc]
            if level is None:
                fact_codes.append(handler.describe(node))
                return None
            if handler.is_builtin:
                fact_codes.append(handler.describe(node))
            else:
                fact_code, level, inlined = describers.node(node, handler, level, 0 if row else ALONE)
                fact_codes.append(fact_code)
                if inlined is not None:
                    self._inline(node, row, inlined)
        except (KeyboardInterrupt, Overflow):
            raise
        except BaseException as error:
            fact_codes.append(describers.trouble(node, "flattening this node raised", error, is_leaf=False))
            return None
        children, key_codes, _, trouble = level
        if trouble:
            describers.notes.append(Note("error", trouble))
        if not children:
            return None
        if handler.has_identity:
            self._first_rows.setdefault(id(node), row)
        key_codes = key_codes or [0] * len(children)
        if above.depth >= MAX_DEPTH:
            children, key_codes = cut(children, key_codes, 0, describers.keys)
        if self._fair:
            return fair_frame(row, children, key_codes, above, len(self.nodes), describers)
        if not handler.is_builtin:
            self._expect(len(children))
        return new_frame((row, above.depth + 1, children, key_codes, iter(range(len(children))), 0, ()))

    def _is_skipped(self, node: Any, row: int) -> bool:
        """Whether to skip a node that occurred before: it contains itself, or the budget of repeated rows is spent."""
        first = self._first_rows[id(node)]
        facts, cls = self._describers.facts, type(node)
        if self._ends[first] == _OPEN:
            self._describers.notes.append(Note("cycle", "contains itself: JAX cannot flatten this tree", first))
            self._fact_codes.append(facts.code(Facts("cycle", class_name(cls), False, module=module_name(cls))))
            return True
        self._repeats.append((row, first))
        n_rows = self._ends[first] - first
        if n_rows <= self._repeats_left:
            self._repeats_left -= n_rows
            return False
        inside = [facts.facts[code] for code in self._fact_codes[first : self._ends[first]]]
        numbers = zip(*((f.leaves, f.elements, f.bytes) for f in inside), strict=True)
        leaves, elements, n_bytes = (min(sum(part), _MOST_SUM) for part in numbers)
        repeat = Facts("repeat", class_name(cls), False, leaves, elements, n_bytes, module=module_name(cls))
        self._fact_codes.append(facts.code(repeat))
        return True

    def _inline(self, box: Any, row: int, inlined: Inlined) -> None:
        """Replace the row of a box by that of its leaf, with the key of the box."""
        code, inner = self._key_codes[row], inlined.key
        outer = index_key(self._positions[row]) if code == 0 else self._describers.keys.keys[code]
        self._key_codes[row] = self._describers.keys.code(outer.into(inner))
        self.nodes[row] = inlined.leaf
        self._boxes.append(box)
        first = self._first_rows.setdefault(id(box), row)
        if first == row and inlined.has_identity:
            first = self._first_rows.setdefault(id(inlined.leaf), row)
        if first != row and (row, first) not in self._repeats[-1:]:
            self._repeats.append((row, first))

    def _expect(self, n_children: int) -> None:
        """Give up as soon as more rows than the budget are known, before their keys are made."""
        self._n_expected += n_children
        if self._n_expected > self._max_rows:
            raise Overflow

    def keep_within_budget(self) -> None:
        """Leave out the rows beyond the budget if the walk has too many."""
        if len(self.nodes) <= self._budget.max_rows:
            return
        kept, left_out = fair_rows(self._ends, self._budget.max_rows)
        rows, notes, repeats = np.array(kept), self._notes, self._repeats
        new = np.full(len(self.nodes), -1, np.int32)
        new[rows] = np.arange(len(rows))
        parents, ends = (np.array(values)[rows] for values in (self._parents, self._ends))
        self._parents = array("i", np.where(parents < 0, -1, new[parents]).tobytes())
        self._ends = array("i", np.searchsorted(rows, ends).astype(np.int32).tobytes())
        for name in ("nodes", "_depths", "_positions", "_key_codes", "_fact_codes"):
            setattr(self, name, list(map(getattr(self, name).__getitem__, kept)))
        self._fair, self._notes, self._repeats = True, {}, []
        more_code = self._describers.keys.code(MORE)
        placeholders = {n: LeftOut(n) for n in {*left_out.values()}}
        described = {n: (self._left_out(it), [self._describers.notes.pop()]) for n, it in placeholders.items()}
        for row, n_children in left_out.items():
            at, new[row] = int(new[row]), -1
            self.nodes[at], self._ends[at], self._key_codes[at] = placeholders[n_children], at + 1, more_code
            self._fact_codes[at], self._notes[at] = described[n_children]
        self._notes |= {
            int(new[row]): [note._replace(row=int(new[note.row])) if note.row >= 0 else note for note in at_row]
            for row, at_row in notes.items()
            if new[row] >= 0
        }
        first_kept: dict[int, int] = {}
        for row, first in sorted(repeats):
            if new[row] >= 0:
                kept_first = first_kept.setdefault(first, int(new[first if new[first] >= 0 else row]))
                self._repeats += [(int(new[row]), kept_first)] if kept_first != new[row] else []

    def finish(self, name: str) -> tuple[TreeTable, list[Any]]:
        """The table, and the node or leaf of each row."""
        facts, codes = self._describers.facts.facts, self._fact_codes
        if self._repeats:
            note_shared(self._notes, self._repeats, self._ends, lambda row: facts[codes[row]])
        if self._notes:
            note_left_out(self._notes, self._parents)
        table = TreeTable(
            name=visible(name) or "tree",
            depth=np.fromiter(self._depths, np.int32, len(self.nodes)),
            parent=np.array(self._parents),
            end=np.array(self._ends),
            position=np.fromiter(self._positions, np.int32, len(self.nodes)),
            key_codes=np.fromiter(self._key_codes, np.int32, len(self.nodes)),
            keys=tuple(self._describers.keys.keys),
            fact_codes=np.fromiter(self._fact_codes, np.int32, len(self.nodes)),
            facts=tuple(self._describers.facts.facts),
            notes={row: tuple(notes) for row, notes in sorted(self._notes.items())},
        )
        has_boxes = bool(self._boxes)  # their keys and facts are not those of their rows
        self.release()
        return without_unused(table) if self._fair or has_boxes else table, self.nodes
