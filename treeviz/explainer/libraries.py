"""What is wrong with the trees of a library's call that failed: the restore of a checkpoint, an optimizer's update.

The calls are those of a library around JAX, from the outermost, which has the user's trees. To add one: the module in
`frames.py`, a function of the calls, and its name in `ANSWERS`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import numpy as np
from jax import tree_util

from treeviz.analysis.compare.aligned import Side
from treeviz.analysis.compare.difference import Difference
from treeviz.analysis.compare.map_mismatch import map_mismatches
from treeviz.analysis.compare.rearranged import with_hints
from treeviz.analysis.compare.tree_diff import find_differences
from treeviz.explainer.frames import Answer, Call, Calls
from treeviz.explainer.leaves import is_array, remedy, what
from treeviz.explainer.nnx_states import of_merge, of_update
from treeviz.explainer.tree_at import of_tree_at
from treeviz.prepare import scanned
from treeviz.steps.compiles.compare import compare_types
from treeviz.steps.compiles.jit_type import jit_type
from treeviz.tree.files.npy import read_eqx
from treeviz.tree.safe_repr import class_name
from treeviz.tree.walk import scan

_STRUCTURE = ("type", "none", "leaf", "length", "missing", "extra")
_NUMBERS = (bool, int, float, complex, np.generic)


def _of_flax(calls: Calls) -> Answer:
    """Of `flax.serialization.from_bytes` and `from_state_dict`: where the file and the target part."""
    of = calls[0].variables
    target = sys.modules["flax.serialization"].to_state_dict(of["target"])
    found = compare_types(target, jit_type(target), jit_type(of["state"]), leaves=lambda *_: [])
    return "what is restored is no state of the target", [
        Difference(path, *finding, tree=1, names=("target", "file")) for path, finding in found
    ]


def _of_orbax(calls: Calls) -> Answer:
    """Of the restores of Orbax: how the target and the metadata on disk differ."""
    from treeviz.integrations.orbax import read_orbax

    of = calls[0].variables
    trees = of["serialized_item"], read_orbax(Path(str(of["directory"])))
    given, stored = (Side(*scanned(_without_classes(tree), None, "tree")) for tree in trees)
    found = with_hints(given, stored, find_differences(given, stored, values=False), values=False)
    structure = [each for each in found.differences if each.kind in _STRUCTURE]
    return "the checkpoint is not of the target", [
        replace(each, names=("target", "checkpoint"))
        for each in structure or found.differences
        if each.kind in (*_STRUCTURE, "shape")
    ]


def _without_classes(tree: Any) -> Any:
    """Dicts and lists, as Orbax stores them, in place of tuples; None for what is empty, as `optax.EmptyState`."""
    if isinstance(tree, dict | list | tuple) and not tree:
        return None
    if type(tree) is dict:
        return {key: _without_classes(child) for key, child in tree.items()}
    return [*map(_without_classes, tree)] if isinstance(tree, list | tuple) else tree


def _of_equinox(calls: Calls) -> Answer:
    """Of `equinox.tree_deserialise_leaves`: how `like` and the file differ."""
    of, title = calls[0].variables, "the file is not of such a tree"
    if "out" in of:  # all of it was read
        found = compare_types(of["like"], jit_type(of["like"]), jit_type(of["out"]))
        each = [Difference(path, *finding, tree=1, names=("tree", "file")) for path, finding in found]
        return title, [difference for difference in each if difference.kind in ("shape", "dtype")]
    leaves = [
        (tree_util.keystr(path), _array_text(leaf))
        for path, leaf in tree_util.tree_flatten_with_path(of["like"], is_leaf=of.get("is_leaf"))[0]
        if hasattr(leaf, "shape") or isinstance(leaf, _NUMBERS)
    ]
    arrays = [_array_text(each) for each in read_eqx(Path(of["f"].name))]
    return title, [*_in_order(leaves, arrays)]


def _array_text(leaf: Any) -> str:
    array = leaf if hasattr(leaf, "shape") else np.asarray(leaf)
    return f"{array.dtype}[{','.join(map(str, array.shape))}]"


def _in_order(leaves: Sequence[tuple[str, str]], arrays: Sequence[str]) -> Iterator[Difference]:
    """How leaves differ from the arrays of a file without names."""
    names = "tree", "file"
    matcher = SequenceMatcher(None, [text for _, text in leaves], arrays, autojunk=False)
    for _, start, end, first, last in (each for each in matcher.get_opcodes() if each[0] != "equal"):
        n = min(end - start, last - first)
        for (path, text), other in zip(leaves[start : start + n], arrays[first : first + n], strict=True):
            yield Difference(path, "shape", text, other, names=names)
        for path, text in leaves[start + n : end]:
            yield Difference(path, "missing", text, "", names=names)
        for i in range(first + n, last):
            yield Difference(f"array {i}", "extra", "", arrays[i], names=names)


def _of_labels(calls: Calls, tree: str) -> Answer:
    """Of `optax.multi_transform`: labels of no transformation, and labels that are not of the tree."""
    of = next((call.variables for call in calls if {"labels", "transforms"} <= call.variables.keys()), None)
    if of is None:
        return "", ()
    labels, known = of["labels"], [*of["transforms"]]
    unknown = [
        f"{tree_util.keystr(path) or 'the root'}: {what(label)}: none of {', '.join(map(repr, known))}"
        for path, label in tree_util.tree_flatten_with_path(labels)[0]
        if not any(label == each for each in known)
    ]
    if unknown:
        return "labels of multi_transform that have no transformation", unknown
    found = map_mismatches(labels, of[tree])
    return f"the labels of multi_transform do not match the {tree}", [
        replace(each, names=("labels", tree)) for each in found
    ]


def _of_optax(calls: Calls) -> Answer:
    """Of the update of an optimizer: how updates, parameters and its state differ."""
    of = calls[0].variables  # the outermost, which has the user's trees
    updates, state, params = (of.get(name) for name in ("updates", "state", "params"))
    title, misfits = _of_labels(calls, "updates")
    if misfits:
        return title, misfits
    if params is not None:
        found = compare_types(updates, jit_type(updates), jit_type(params))
        found = [Difference(path, *finding, tree=1, names=("updates", "params")) for path, finding in found]
        found = [each for each in found if each.kind not in ("dtype", "weak type", "sharding")]
        if found:
            return "the updates do not match the params", found
    name = _namer({"updates": updates, "state": state, "params": params})
    for i, call in enumerate(calls):
        if call.function == "tree_map" and not call.library:
            tree, *others = call.variables["tree"], *call.variables["rest"]
            own = "mask" if _is_mask(tree, calls[i + 1 :]) else name(tree, "updates")
            for names, other in [((own, name(each)), each) for each in others]:
                found = map_mismatches(tree, other, is_leaf=call.variables["is_leaf"]) if names[1] else ()
                if found:
                    return f"{' and '.join(names)} do not match", [replace(each, names=names) for each in found]
    found = _of_state(next(call for call in reversed(calls) if call.library == "optax"), name)
    if found:
        return "the state is of another optimizer", found
    return _that_are_no_arrays({"updates": updates, "params": params})


def _is_mask(tree: Any, calls: Calls) -> bool:
    """Of `optax.masked`, and of optimizers that take a mask."""
    around = next((call.variables for call in calls if call.library == "optax" and "mask_tree" in call.variables), {})
    return around.get("mask_tree") is tree


def _of_optax_init(calls: Calls) -> Answer:
    """Of the state of an optimizer: the leaves of the parameters that are no arrays, as functions in a model."""
    title, found = _of_labels(calls, "params")
    return (title, found) if found else _that_are_no_arrays({"params": calls[0].variables["params"]})


def _that_are_no_arrays(trees: dict[str, Any]) -> Answer:
    return "an optimizer takes arrays alone", [
        f"{name}{tree_util.keystr(path)}: {what(leaf)}: {remedy(leaf)}"
        for name, tree in trees.items()
        for path, leaf in tree_util.tree_flatten_with_path(tree)[0]
        if not is_array(leaf)
    ]


def _of_state(last: Call, name: Callable[..., str]) -> list[str]:
    """Whether the state of the innermost update is that of another one."""
    own, transformations = last.variables.get("state"), last.variables.get("update_fns")
    if own is not None and getattr(last.error, "obj", None) is own:
        return [f"{name(own, 'state')}: {class_name(type(own))}, which has no {getattr(last.error, 'name', '')!r}"]
    if transformations and isinstance(own, tuple) and len(own) != len(transformations):
        given = f"{class_name(type(own))}{f' of {len(own)}' if own else ''}"
        return [f"{name(own, 'state')}: {given}, for a chain of {len(transformations)} transformations"]
    return []


def _namer(trees: dict[str, Any]) -> Callable[..., str]:
    """A function that names a node of the trees, "state[0].mu", and another one by what it is given, or ""."""
    table, nodes = scan(trees)
    shared = id(()), id(None)  # there is one of each, in many places
    rows = {id(node): row for row, node in enumerate(nodes) if row and not table.is_leaf[row]}

    def name(node: Any, otherwise: str = "") -> str:
        if id(node) not in rows or id(node) in shared:
            return otherwise
        first, *rest = table.path(rows[id(node)])
        return first.segment + "".join(key.keystr for key in rest)

    return name


# By the library and the function, whose call has these variables.
ANSWERS: dict[tuple[str, str], tuple[Callable[[Calls], Answer], tuple[str, ...]]] = {
    ("flax", "from_state_dict"): (_of_flax, ("target", "state")),
    ("flax", "merge"): (of_merge, ("graphdef_or_graphstate", "states")),
    ("flax", "update"): (of_update, ("node", "state")),
    ("equinox", "tree_at"): (of_tree_at, ("where", "pytree")),
    ("orbax", "restore"): (_of_orbax, ("serialized_item", "directory")),
    ("equinox", "tree_deserialise_leaves"): (_of_equinox, ("like",)),
    ("optax", "init_fn"): (_of_optax_init, ("params",)),
    ("optax", "init"): (_of_optax_init, ("params",)),
    ("optax", "update_fn"): (_of_optax, ("updates", "state")),
    ("optax", "update"): (_of_optax, ("updates", "state")),
    ("optax", "apply_updates"): (_of_optax, ("updates", "params")),
}
