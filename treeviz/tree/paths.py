"""Key paths: follow one to a node, find the keys of a child, parse their text, and build a table from paths alone."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, repeat
from typing import Any

import jax
import numpy as np

from treeviz.tree.facts import Facts
from treeviz.tree.keys import Key
from treeviz.tree.level import child, one_level
from treeviz.tree.table import TreeTable


def follow(tree: Any, path: Iterable[Any], occurrences: Iterable[int] = ()) -> Any:
    """The node of `tree` at a key path, as `jax.tree_util.tree_flatten_with_path` gives it.

    Args:
      occurrences: For each key how many children with the same key to skip, since a custom node may repeat one.

    Raises:
      LookupError: There is no such node; the message says where the path ends.
    """
    node, followed = tree, ""
    for key, occurrence in zip(path, chain(occurrences, repeat(0)), strict=False):
        try:
            node = _step(node, key, occurrence)
        except Exception as error:
            place = followed or "the root"
            raise LookupError(f"at {place} a {type(node).__name__} has no {key}: {type(error).__name__}") from error
        followed += str(key)
    return node


def occurrence(table: TreeTable, row: int) -> int:
    """The number of earlier siblings with the row's key."""
    code, parent = table.key_codes[row], int(table.parent[row])
    if code == 0:
        return 0
    same = [i for i, key in enumerate(table.keys) if key.keystr == table.keys[code].keystr]
    before = slice(parent + 1, row)
    return int(np.count_nonzero((table.parent[before] == parent) & np.isin(table.key_codes[before], same)))


def _step(node: Any, key: Any, occurrence: int) -> Any:
    if isinstance(key, jax.tree_util.DictKey) and isinstance(node, dict):
        return node[key.key]
    if isinstance(key, jax.tree_util.SequenceKey) and isinstance(node, list | tuple):
        return node[key.idx]
    if isinstance(key, jax.tree_util.FlattenedIndexKey):
        return child(node, key.key)
    # The keys of a registered class need not be attributes or items.
    same = [below for path, below in one_level(node)[0] if path and _is_same(path[0], key)]
    if same:
        return same[occurrence]
    if isinstance(key, jax.tree_util.GetAttrKey):
        return getattr(node, key.name)
    return node[key.key if isinstance(key, jax.tree_util.DictKey) else key.idx]


def _is_same(left: Any, right: Any) -> bool:
    """Whether two keys are equal; user-defined ones may not define equality, so their `str` is compared too."""
    return type(left) is type(right) and bool(left == right or str(left) == str(right))


def keys_to(node: Any, position: int, is_wanted: Callable[[Any], bool]) -> tuple:
    """The keys from a node to the child shown at `position`, through boxes that hold only that child."""
    pairs, _ = one_level(node)
    # Try the position first, since two children may be one object; hidden children shift positions.
    path, node_there = next(
        (pair for pair in (*pairs[position : position + 1], *pairs) if is_wanted(pair[1])), pairs[position]
    )
    first = keys = tuple(path)
    while not is_wanted(node_there):
        pairs, data = one_level(node_there)
        if data is None or len(pairs) != 1:
            return first
        path, node_there = pairs[0]
        keys += tuple(path)
    return keys


def dict_key(key: Any) -> Any:
    """The JAX key of a key of a dict."""
    # DictKey(None) is a TypeError with jaxlib 0.4.36, though JAX has such keys.
    keys = jax.tree_util
    return keys.DictKey(key) if key is not None else keys.tree_flatten_with_path({None: 0})[0][0][0][0]


def parse_key(keystr: str, *, otherwise: Any, int_key: Callable[[int], Any] | None = None) -> Any:
    """The JAX key that `jax.tree_util.keystr` writes as `keystr`.

    Args:
      otherwise: What to return for the text of a user-defined key class.
      int_key: The class of the key in "[3]", which a list and a dict with integer keys share.
    """
    if keystr.startswith("."):
        return jax.tree_util.GetAttrKey(keystr[1:])
    try:
        if keystr.startswith("[<flat index "):
            return jax.tree_util.FlattenedIndexKey(int(keystr[len("[<flat index ") : -2]))
        value = ast.literal_eval(keystr)
    except (ValueError, SyntaxError):
        return otherwise
    if type(value) is not list or len(value) != 1:
        return otherwise
    return (int_key or jax.tree_util.SequenceKey)(value[0]) if type(value[0]) is int else dict_key(value[0])


# A table from key paths alone, for recorded trees

# One step of `jax.tree_util.keystr`: a quoted key, anything else in brackets, or an attribute.
_STEP = re.compile(
    r"""\[(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")\]|\[[^\[\]]*(?:\[[^\[\]]*\][^\[\]]*)*\]|\.[^.\[]+""", re.S
)


def table_of_paths(name: str, paths: Sequence[str], leaves: Sequence[Facts], *, chains: bool = False) -> TreeTable:
    """The tree with these leaves, in this order; its nodes are inferred from the paths.

    Text that cannot be parsed, of a user-defined key type, becomes one key with all that follows. A variable of NNX is
    one row, as in a walk: "['kernel'].value".

    Args:
      paths: The `jax.tree_util.keystr` of each leaf.
      leaves: The facts of each leaf.
      chains: Whether a node and its only child are one row, such as "down/lora/lora_a".
    """
    known: dict[str, str] = {}  # so that equal steps are one object
    all_steps: list[Any] = _without_boxes([[known.setdefault(step, step) for step in steps_of(path)] for path in paths])
    all_steps = _with_chains(all_steps) if chains else all_steps
    depths, parents, positions, n_children, ends, key_codes, fact_codes = [0], [-1], [0], [0], [1], [0], [0]
    keys: dict[Key, int] = {Key("[…]", "[…]", "*", ()): 0}
    step_codes: dict[str, tuple[int, int]] = {}  # the key, and the kind of `_NODE_KINDS` that the parent most likely is
    facts: dict[Facts, int] = {Facts(kind, "", False): code for code, kind in enumerate(_NODE_KINDS)}
    ancestors: list[tuple[str, int]] = []  # the step and row of each ancestor of the next row

    for steps, leaf in zip(all_steps, leaves, strict=True):
        n_shared = 0
        while n_shared < min(len(ancestors), len(steps) - 1) and ancestors[n_shared][0] == steps[n_shared]:
            n_shared += 1
        del ancestors[n_shared:]
        for i, step in enumerate(steps[n_shared:], n_shared + 1):
            if step not in step_codes:
                key = (steps_of(step) or [step])[0]
                kind = 1 if key[:2] in ("['", '["') else 2 if key[1:-1].isdigit() else 0
                step_codes[step] = keys.setdefault(_key(step), len(keys)), kind
            row, parent = len(depths), ancestors[-1][1] if ancestors else 0
            key_code, fact_codes[parent] = step_codes[step]
            depths.append(i)
            parents.append(parent)
            positions.append(n_children[parent])
            n_children[parent] += 1
            n_children.append(0)
            ends.append(row + 1)
            key_codes.append(key_code)
            fact_codes.append(facts.setdefault(leaf, len(facts)) if i == len(steps) else 0)
            ancestors.append((step, row))
        if not steps:  # the tree is a leaf
            fact_codes[0] = facts.setdefault(leaf, len(facts))
    for row in range(len(depths) - 1, 0, -1):
        ends[parents[row]] = max(ends[parents[row]], ends[row])
    return TreeTable(
        name=name,
        depth=np.array(depths, np.int32),
        parent=np.array(parents, np.int32),
        end=np.array(ends, np.int32),
        position=np.array(positions, np.int32),
        key_codes=np.array(key_codes, np.int32),
        keys=tuple(keys),
        fact_codes=np.array(fact_codes, np.int32),
        facts=tuple(facts),
    )


def _without_boxes(paths: list[list[str]]) -> list[list[str]]:
    """The steps of each path, with the step into a box joined to the step to the box.

    A box has one child, which is a leaf, or an array whose layers have rows.
    """
    boxes = {(*path[: at + 1],) for path in paths for at in (len(path) - 1, len(path) - 2) if _is_into_box(path, at)}
    if not boxes:
        return paths
    children: dict[tuple[str, ...], set[str]] = {}
    for path in paths:
        for at in range(1, len(path)):
            children.setdefault((*path[:at],), set()).add(path[at])
    boxes = {box for box in boxes if len(children[box[:-1]]) == 1}
    places = (next((at for at in range(1, len(path)) if (*path[: at + 1],) in boxes), 0) for path in paths)
    pairs = zip(paths, places, strict=True)
    return [[*path[: at - 1], path[at - 1] + path[at], *path[at + 1 :]] if at else path for path, at in pairs]


def _with_chains(paths: list[list[str]]) -> list[tuple[str, ...]]:
    """The steps of each path, with the step to an only child joined to the step to its parent.

    An index with siblings stays apart, so that the row of several is "[0…11] ×12".
    """
    nodes: dict[tuple[int, str], int] = {}  # by parent and step
    ends = []
    for path in paths:
        node = 0
        for step in path:
            node = nodes.setdefault((node, step), len(nodes) + 1)
        ends.append(node)
    n_siblings = Counter(parent for parent, _ in nodes)
    joined, is_apart = list[tuple[str, ...]]([()]), [True]
    for parent, step in nodes:
        has_siblings, above = n_siblings[parent] > 1, joined[parent]
        is_joined = not has_siblings and not is_apart[parent]
        joined.append((*above[:-1], above[-1] + step) if is_joined else (*above, step))
        is_apart.append(has_siblings and step[1:-1].isdecimal())
    return [joined[end] for end in ends]


def paths_without_boxes(paths: Sequence[str]) -> list[str]:
    """The paths as the user writes them: "['kernel']", which JAX calls "['kernel'].value" if it is an NNX variable."""
    if not any(box in path for path in paths for box in _INTO_BOX):
        return [*paths]
    all_steps = _without_boxes([*map(steps_of, paths)])
    return ["".join(step.removesuffix(_box_of(step)) for step in steps) for steps in all_steps]


def _is_into_box(path: list[str], i: int) -> bool:
    return i > 0 and path[i] in _INTO_BOX and all(step[1:-1].lstrip(":, ").isdecimal() for step in path[i + 1 :])


def _box_of(step: str) -> str:
    """The step into a box that is joined to this one; "" if none is."""
    return next((end for end in _INTO_BOX if step.endswith(end) and step != end), "")


_INTO_BOX = (".value", ".raw_value")
_NODE_KINDS = ("node", "dict", "list")


def steps_of(path: str) -> list[str]:
    """The steps of a path from `jax.tree_util.keystr`: "['a'].value" gives "['a']" and ".value"."""
    steps, position = _STEP.findall(path), 0
    if "".join(steps) == path:
        return steps
    steps = []
    while position < len(path):
        match = _STEP.match(path, position)
        if match is None:
            return [*steps, path[position:]]
        steps.append(match[0])
        position = match.end()
    return steps


def _key(step: str) -> Key:
    if box := _box_of(step):
        outer = _key(step.removesuffix(box))
        return Key(outer.label, step, outer.segment, (*outer.steps, box))
    if len(parts := steps_of(step)) > 1:
        keys = [*map(_key, parts)]
        label = keys[0].label + "".join(key.label if key.label[:1] in ".[" else f"/{key.label}" for key in keys[1:])
        return Key(label, step, "/".join(key.segment for key in keys), tuple(parts))
    if step[:2] in ("['", '["'):
        return Key(step[2:-2], step, step[2:-2], (step,))
    segment = step.strip(".[]")
    return Key(step, step, segment, (step,))
