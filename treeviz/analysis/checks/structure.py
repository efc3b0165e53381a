"""Rules about structure: cycles, nodes that JAX cannot flatten, keys, shared objects, and too many of anything."""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter
from typing import Any

import jax
import numpy as np

from treeviz.analysis.checks.finding import Changed
from treeviz.analysis.checks.rule import Checked, Found, rule
from treeviz.tree.kinds import KINDS
from treeviz.tree.safe_repr import class_name, guarded, mro

_IN_BOXES = ("array", "numpy", "scalar", "key")  # kinds of leaves that have no module
_MANY_LEAVES, _MANY_NODES = 5_000, 2_000
_DEEP = 200  # levels, beyond which joined paths are not compared, and JAX's own flatten is not called


@rule("T110", "error")
def cycle(checked: Checked) -> Iterator[Found]:
    """A node contains itself.

    JAX flattens recursively and without a limit: it raises, or exhausts the interpreter's recursion for good, so that
    even `print` fails afterwards (jax#15711). Keep an index or a name in place of the node.
    """
    for row, note in checked.noted("cycle"):
        yield Found(row, "contains itself: JAX cannot flatten this tree", "{at} = None", note=note)


@rule("T111", "error")
def cannot_flatten(checked: Checked) -> Iterator[Found]:
    """JAX cannot flatten a node: its flatten function raises, or the keys of a dict cannot be sorted.

    JAX's error has no path. Keys of one type can be sorted; a flatten function has to take whatever the node holds.
    """
    for row, note in checked.noted("error"):
        facts = checked.facts(row)
        if facts.kind == "dict" and not facts.module:
            keys = checked.nodes[row].keys()
            is_distinct = guarded(lambda keys=keys: len(set(map(str, keys))) == len(keys), lambda _: False)
            text = "str(key)" if is_distinct else "f'{type(key).__name__} {key}'"
            yield Found(row, note.text, f"{{at}} = {{{text}: value for key, value in {{at}}.items()}}", note=note)
        elif facts.kind == "error" and not facts.is_leaf:
            yield Found(row, note.text, "jax.tree_util.tree_flatten_with_path({at})  # the traceback", note=note)


@rule("T112", "warning")
def repeated_keys(checked: Checked) -> Iterator[Found]:
    """Two children of one node have the same key.

    JAX asks for distinct keys and does not check it. A path then names several leaves, so that masks, checkpoints and
    labels by path mix them up.
    """
    table = checked.table
    rows, known = np.flatnonzero(table.key_codes), dict[str, int]()
    names = np.array([known.setdefault(key.keystr, len(known)) for key in table.keys], np.int64)[table.key_codes[rows]]
    pairs = table.parent[rows].astype(np.int64) * len(known) + names
    _, first, counts = np.unique(pairs, return_index=True, return_counts=True)
    for row, n in zip(rows[first[counts > 1]].tolist(), counts[counts > 1].tolist(), strict=True):
        parent, key = int(table.parent[row]), table.key(row).keystr
        if checked.facts(row).kind != "more":
            yield Found(parent, f"{n:,} of its children have the key {key}", _with_other_keys(checked.nodes[parent]))


def _with_other_keys(node: Any) -> str:
    """Python that numbers the children of a class whose keys are in a method; of another, JAX keeps the function."""
    name = class_name(type(node))
    if not any("tree_flatten_with_keys" in vars(base) for base in mro(type(node))):
        return (
            "leaves = jax.tree_util.tree_leaves_with_path({tree})\n"
            "names = [f'{i}{jax.tree_util.keystr(path)}' for i, (path, _) in enumerate(leaves)]  # each is another"
        )
    return (
        f"def tree_flatten_with_keys(self, flatten={name}.tree_flatten_with_keys):\n"
        "    children, aux = flatten(self)\n"
        "    return [(jax.tree_util.SequenceKey(i), child) for i, (_, child) in enumerate(children)], aux\n\n"
        f"{name}.tree_flatten_with_keys = tree_flatten_with_keys"
    )


@rule("T210", "info")
def shared_node(checked: Checked) -> Iterator[Found]:
    """A node stands in several places.

    JAX sees a tree: each place gets gradients and updates of its own, and after one `jax.tree.map` the places are no
    longer one object. In a state it is a warning: a buffer that is donated twice raises.
    """
    yield from _shared(checked, is_leaf=False)


@rule("T211", "info")
def shared_array(checked: Checked) -> Iterator[Found]:
    """An array stands in several places, as with tied weights.

    JAX sees two leaves: each gets a gradient of its own, and after one update they differ. In a state it is a warning:
    `donate_argnums` raises "Attempt to donate the same buffer twice".
    """
    yield from _shared(checked, is_leaf=True)


def _shared(checked: Checked, is_leaf: bool) -> Iterator[Found]:
    for row, note in checked.noted("shared"):
        facts = checked.facts(row)
        if note.row < 0 or facts.is_leaf != is_leaf or (is_leaf and not KINDS[facts.kind].has_identity):
            continue
        end = int(checked.table.end[row])
        below = {(each.kind, each.is_leaf) for each in map(checked.facts, range(row, min(end, row + 1000)))}
        level = "warning" if checked.use == "state" and ("array", True) in below else None
        what = "array" if is_leaf else "node"
        has_others = any(is_leaf and kind not in ("array", "numpy", "scalar") for kind, is_leaf in below)
        copy = "lambda a: a.copy() if isinstance(a, jax.Array) else a" if has_others else "jnp.copy"
        fix = Changed(f"jax.tree.map({copy}, {{x}})") if level else ""
        yield Found(
            row, f"the same {what} as {_place(checked, note.row)}: JAX updates each on its own", fix, level, note
        )


def _place(checked: Checked, row: int) -> str:
    return checked.table[row].keystr or "the root" if checked.table.depth[row] < _DEEP else "another one"


@rule("T220", "info")
def shape_taken_for_nodes(checked: Checked) -> Iterator[Found]:
    """A tuple or list holds nothing but two to six Python integers: it may be a shape.

    JAX sees a node with that many leaves, so `jax.tree.map` goes inside: say `is_leaf` where the tuple is meant.
    """
    table = checked.table
    n_children = np.bincount(table.parent[1:], minlength=len(table))
    is_int = np.array([f.kind == "scalar" and f.type == "int" for f in table.facts], bool)[table.fact_codes]
    n_ints = np.bincount(table.parent[1:], weights=is_int[1:], minlength=len(table))
    for row in np.flatnonzero((n_children >= 2) & (n_children <= 6) & (n_ints == n_children)).tolist():
        facts = checked.facts(row)
        if facts.kind in ("tuple", "list") and not facts.module:
            fix = (
                f"is_shape = lambda x: type(x) is {facts.type} and len(x) > 0 and all(type(n) is int for n in x)\n"
                "shapes = jax.tree.leaves({tree}, is_leaf=is_shape)  # as in jax.tree.map(f, {tree}, is_leaf=is_shape)"
            )
            yield Found(row, f"a {facts.type} of {n_children[row]} integers is a node with as many leaves", fix)


@rule("T230", "info")
def many_leaves(checked: Checked) -> Iterator[Found]:
    """The tree has more than 5,000 leaves, or 2,000 nodes of registered classes.

    JAX flattens every argument of every call of a jitted function, and builds every result: that takes some 0.1 µs a
    leaf, and some µs for each node that Python flattens. Stack the layers, or split what changes from what does not.
    """
    table = checked.table
    n_leaves = int(np.count_nonzero(table.is_leaf))
    # Of a box with one leaf, such as a variable of Flax, the leaf has the row and the box the module.
    n_nodes = len(checked.rows(lambda f: bool(f.module) and (not f.is_leaf or f.kind in _IN_BOXES)))
    if n_leaves <= _MANY_LEAVES and n_nodes <= _MANY_NODES:
        return
    takes = ""
    is_walked = not any(facts.kind in ("error", "cycle", "repeat", "more") for facts in table.facts)
    if is_walked and table.depth.max() < _DEEP:
        began = perf_counter()
        guarded(lambda: jax.tree_util.tree_flatten(checked.nodes[0]), lambda _: None)
        takes = f": flattening it takes JAX {1e3 * (perf_counter() - began):.1f} ms a call"
    yield Found(0, f"{n_leaves:,} leaves and {n_nodes:,} nodes of registered classes{takes}")


@rule("T231", "info")
def ambiguous_paths(checked: Checked) -> Iterator[Found]:
    """Two leaves have the same path where keys are joined by "/" or ".", as in most files of checkpoints.

    {"a/b": 1, "a": {"b": 2}}: `jax.tree_util.keystr(path, simple=True, separator="/")` is the same for both, and one of
    them is lost.
    """
    table = checked.table
    if table.depth.max() >= _DEEP:
        return
    for separator in "/.":
        if not any(separator in key.segment for key in table.keys):
            continue
        paths, seen = [""], dict[str, int]()
        for row in range(1, len(table)):
            paths.append(f"{paths[table.parent[row]]}{separator}{table.key(row).segment}")
            if table.is_leaf[row] and seen.setdefault(paths[row], row) != row:
                yield Found(row, f'joined by "{separator}" its path is that of {table[seen[paths[row]]].keystr}')
