"""What is wrong with the trees of a library's call that failed: the restore of a checkpoint, an optimizer's update.

The calls are those of a library around JAX, from the outermost, which has the user's trees. To add one: the module in
`frames.py`, a function of the calls, and its name in `ANSWERS`.
"""

from __future__ import annotations

import sys
import types
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from pathlib import Path as Path_as_libraries
from typing import Any

import jax
import numpy as np
from jax import tree_util

from treeviz.analysis.compare.aligned import Openers, Side
from treeviz.analysis.compare.aligned import what as node_text
from treeviz.analysis.compare.difference import Difference
from treeviz.analysis.compare.map_mismatch import map_mismatches
from treeviz.analysis.compare.rearranged import with_hints
from treeviz.analysis.compare.tree_diff import find_differences
from treeviz.explainer.frames import (
    Answer,
    Call,
    Calls,
    frames_of,
    is_array,
    is_of_jax,
    is_of_python,
    is_wrapper,
    leaves_of,
    remedy,
    unwrapped,
    what,
)
from treeviz.prepare import scanned
from treeviz.steps.compiles.types import compare_types, jit_type
from treeviz.tree.files.arrays import read_eqx
from treeviz.tree.text import class_name
from treeviz.tree.walk import scan

# Which variables the states lack, or have too many, that `flax.nnx.merge` and `flax.nnx.update` were given.

Path = tuple[Any, ...]
_NAMES = "graphdef", "state"


def of_merge(calls: Calls) -> Answer:
    of = calls[0].variables
    graphdef = of["graphdef_or_graphstate"]
    if not _is(graphdef, "GraphDef"):
        if not any(_is(each, "GraphDef") for each in of["states"]):
            return "", ()
        return "nnx.merge takes the graphdef first", [
            f"argument {i}: {_state_text(each)}" for i, each in enumerate((graphdef, *of["states"]))
        ]
    title = "the states are not those of the graphdef"
    wanted = dict(_wanted(graphdef))
    if len(wanted) != graphdef.num_leaves:
        return "", ()
    given: dict[Path, Any] = {}
    n_of: Counter[Path] = Counter()
    for i, state in enumerate(of["states"], 1):
        leaves = [*_given_states(state)]
        if () not in wanted and any(not path for path, _ in leaves):
            return title, [f"argument {i}: {_state_text(state)}: {_remedy(state)}"]
        given.update(leaves)
        n_of.update(path for path, _ in leaves)
    found = [
        *_only("missing", wanted, given, lambda path: wanted[path]),
        *_only("extra", given, wanted, lambda path: _state_text(given[path])),
    ]
    return title, [*found, *(f"{_state_path(path)}: in {n:,} of the states" for path, n in n_of.items() if n > 1)]


def of_update(calls: Calls) -> Answer:
    """Of `nnx.update`: the calls on the way to what it could not set hold their keys."""
    below = [call.variables for call in reversed(calls) if call.function == "_graph_update_dynamic"]
    if not below or not all("key" in of for of in below):
        return "", ()
    of, path = below[-1], tuple(each["key"] for each in below)
    value = of["value"]
    if of["key"] not in of["node_dict"]:
        return "the state is not of the model", [
            Difference(_state_path(path), "extra", "", _state_text(value), names=("model", "state"))
        ]
    if isinstance(value, Mapping) == isinstance(of.get("current_value"), Mapping):
        return "", ()
    return "the state is not of the model", [
        Difference(
            _state_path(path), "leaf", _state_text(of["current_value"]), _state_text(value), names=("model", "state")
        )
    ]


def _wanted(graphdef: Any) -> Iterator[tuple[Path, str]]:
    """The leaves of a graphdef by their paths, with the types of the variables."""
    nodes, attributes = iter(graphdef.nodes), iter(graphdef.attributes)

    def below(path: Path) -> Iterator[tuple[Path, str]]:
        node = next(nodes)
        if _is(node, "TreeNodeDef"):
            yield from ((tuple(each), "a leaf") for each, _ in node.path_index)
        elif _is(node, "VariableDef"):
            if not _is(node.array_refdef, "NodeRef"):
                yield path, class_name(node.type)
        elif _is(node, "ArrayRefDef"):
            yield path, "an array"
        elif _is(node, "NodeDef"):
            for _ in range(node.num_attributes):
                key, value = next(attributes)
                if _is(value, "LeafAttr"):
                    yield (*path, key), "a leaf"
                elif _is(value, "NodeAttr"):
                    yield from below((*path, key))

    return below(())


def _given_states(state: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """The leaves of a state by their paths, as `nnx.merge` takes them."""
    if _is(state, "FlatState"):
        yield from state
    elif isinstance(state, Mapping):
        for key, child in state.items():
            yield from _given_states(child, (*path, key))
    else:
        yield path, state


def _only(kind: Any, mine: Mapping[Path, Any], other: Mapping[Path, Any], text: Any) -> Iterator[Difference]:
    """What one of them has alone: of a module, all of it in one line."""
    known = {path[:n] for path in other for n in range(len(path))}
    alone: dict[Path, list[Path]] = {}
    for path in mine:
        if path not in other:
            n = next((n for n in range(1, len(path)) if path[:n] not in known), len(path))
            alone.setdefault(path[:n], []).append(path)
    for top, paths in alone.items():
        path, each = (paths[0], text(paths[0])) if len(paths) == 1 else (top, f"{len(paths):,} variables")
        left, right = (each, "") if kind == "missing" else ("", each)
        yield Difference(_state_path(path), kind, left, right, names=_NAMES)


def _remedy(state: Any) -> str:
    if isinstance(state, Sequence) and any(isinstance(each, Mapping) for each in state):
        return "pass each state as an argument, nnx.merge(graphdef, *states)"
    return "pass what nnx.split or nnx.state returned"


def _is(each: Any, name: str) -> bool:
    return type(each).__name__ == name and type(each).__module__.startswith("flax.")


def _state_text(each: Any) -> str:
    if isinstance(each, Mapping | tuple | list):
        return f"{class_name(type(each))} of {len(each):,}"
    is_plain = hasattr(each, "dtype") or type(each).__module__ == "builtins"
    return what(each) if is_plain else class_name(type(each))


def _state_path(path: Path) -> str:
    return "".join(f"[{key!r}]" for key in path)


# What `where` of `equinox.tree_at` chose, and why that cannot be replaced.

_MOST_NAMES = 6
_CHOOSES = "where chooses nodes and leaves of the tree, and nothing else"


def of_tree_at(calls: Calls) -> Answer:
    of, error = calls[0].variables, calls[0].error
    if "out" in of:  # all was replaced; then each node is looked for
        return _of_chosen(of)
    if "nodes" in of:
        if "node_replace_fns" in of or "replace_fns" in of:
            return "", ()
        return _of_numbers(of)
    if "leaves1" in of:
        return _of_leaves(of, error)
    return _of_names(of, error)


def _of_names(of: Mapping[str, Any], error: BaseException) -> Answer:
    """Of an attribute that `where` asks for, and that is not there."""
    if not isinstance(error, AttributeError) or not error.name:
        return "", ()
    places = _Places(of["pytree"])
    path = places.of(error.obj)
    if not path:
        return "", ()
    if is_wrapper(error.obj):
        return _CHOOSES, [f"{path[0]}: {_text(error.obj)}: .{error.name} of a leaf is none of them"]
    names = places.names(error.obj)
    return "where asks for what is not in the tree", [
        f"{path[0]}: {_text(error.obj)}, which has no {error.name!r}" + (f", but {names}" if names else "")
    ]


def _of_leaves(of: Mapping[str, Any], error: BaseException) -> Answer:
    if "node_or_nodes" not in of:
        return "", ()
    if isinstance(error, TypeError):  # from taking the leaves out of their wrappers
        return _CHOOSES, [
            f"its result{path}: {what(leaf)}: a static field, or computed"
            for path, leaf in leaves_of(of["node_or_nodes"])
            if not is_wrapper(leaf)
        ]
    n, found = len(of["leaves1"]), len(of["leaves2"])
    paths = _Places(of["pytree"], bare=True)
    kept = set(map(id, of["leaves2"]))
    lost = [each for each in of["leaves1"] if id(each) not in kept]
    return "where has to choose by the structure of the tree: it is called again with other leaves", [
        f"it chose {n:,} {'leaf' if n == 1 else 'leaves'} first, and then {found:,}",
        *(f"{(paths.of(leaf) or ['a leaf'])[0]}: {what(leaf)}: chosen for what it is" for leaf in lost),
    ]


def _of_numbers(of: Mapping[str, Any]) -> Answer:
    """Of `replace` and what `where` chose: as many of one as of the other."""
    nodes, replace = of["nodes"], of["replace"]
    if not isinstance(nodes, Sequence) or type(replace) is object:  # one that stands for none
        return "", ()
    places = _Places(of["pytree"])
    given = [*replace] if isinstance(replace, tuple | list) else None
    if given is not None and len(given) == len(nodes):
        return "", ()
    chosen = [f"where chose {places.name(node)}" for node in nodes]
    if given is None:
        return "where chose a sequence, so replace has to be one", [*chosen, f"replace: {what(replace)}: no sequence"]
    return f"where chose {len(nodes):,}, and replace has {len(given):,}", [
        *(f"{line}: replaced by {what(new)}" for line, new in zip(chosen, given, strict=False)),
        *(f"{line}: nothing to replace it by" for line in chosen[len(given) :]),
        *(f"replace[{i}]: {what(given[i])}: for nothing" for i in range(len(nodes), len(given))),
    ]


def _of_chosen(of: Mapping[str, Any]) -> Answer:
    """Of a node that stands nowhere, inside another one, or in several places."""
    node, nodes, places = of["node"], of["nodes"], _Places(of["pytree"])
    paths = places.of(node)
    if not paths:
        return _CHOOSES, [f"its result: {_text(node)}: made by where"]
    if len(paths) > 1:
        fix = ": pass is_leaf=lambda x: x is None to tree_at" if node is None else ""
        return "what where chose stands in several places", [f"{path}: {_text(node)}{fix}" for path in paths]
    return "where chose a node and what is in it", [
        f"{paths[0]}: {_text(node)}: it is in {places.of(each)[0]}, which is replaced as a whole"
        for each in nodes
        if places.are_nested(each, node)
    ]


class _Places:
    """Where the nodes and leaves of a tree stand, by identity."""

    def __init__(self, tree: Any, bare: bool = False) -> None:
        self._table, nodes = scan(tree)
        self._rows: dict[int, list[int]]
        self._nodes = [unwrapped(node) for node in nodes] if bare else nodes
        self._keystr, self._rows = self._table.keystrs(), {}
        for row, node in enumerate(self._nodes):
            self._rows.setdefault(id(node), []).append(row)

    def of(self, node: Any) -> list[str]:
        """The key paths of a node; of the root, "the root"."""
        return [self._keystr(row) or "the root" for row in self._rows.get(id(node), ())]

    def are_nested(self, node: Any, below: Any) -> bool:
        rows = self._rows.get(id(node), ())
        return any(row < other < self._table[row].end for row in rows for other in self._rows[id(below)])

    def name(self, node: Any) -> str:
        return f"{(self.of(node) or ['what is not in the tree'])[0]}: {_text(node)}"

    def names(self, node: Any) -> str:
        """What is in a node."""
        keys = [self._table.key(row).keystr for row in self._table.children(self._rows[id(node)][0])]
        more = f" and {len(keys) - _MOST_NAMES:,} more" if len(keys) > _MOST_NAMES else ""
        return ", ".join(keys[:_MOST_NAMES]) + more


def _text(node: Any) -> str:
    opener = Openers()(node)
    return what(node) if opener is None else node_text(node, opener(node))


# Which variable does not fit a Linen model: it has another shape than its layer makes, or is not there.

_ERRORS = {"ScopeParamShapeError", "ScopeParamNotFoundError", "ScopeCollectionNotFound", "ScopeVariableNotFoundError"}
_NO_COLLECTIONS = {"ApplyScopeInvalidVariablesTypeError", "ApplyScopeInvalidVariablesStructureError"}
_WITHIN = "/flax/core/scope.py", "/flax/linen/module.py"
_MOST_KEYS = 6


def of_scope(error: BaseException) -> Answer:
    cls = type(error)
    if cls.__module__ != "flax.errors":
        return "", ()
    frames = frames_of(error)
    if cls.__name__ in _NO_COLLECTIONS:
        return "the variables are no dict of collections", [*_no_collections(_given(frames))]
    of = frames[-1].f_locals
    if cls.__name__ == "ModifyScopeVariableError":
        path = _keystr([of["col"], *of["self"].path, of["name"]])
        return "apply cannot change the variables", [f"{path}: pass mutable=[{of['col']!r}] to apply, which returns it"]
    if cls.__name__ not in _ERRORS:
        return "", ()
    keys = [of.get("col", "params"), *of["self"].path, of["name"]]
    inputs = _inputs(frames)
    if cls.__name__ == "ScopeParamShapeError":
        line = f"{_keystr(keys)}: {what(of['val'])}: the layer makes it {np.shape(of['abs_val'])} for its input"
        return "the parameters are of a model with other shapes", [line, *inputs]
    return "the model needs what is not in the variables", [_missing(_given(frames), keys), *inputs]


def _given(frames: Sequence[types.FrameType]) -> Mapping[str, Any]:
    """The variables of the innermost `apply`."""
    return next(found for frame in reversed(frames) if isinstance(found := frame.f_locals.get("variables"), Mapping))


def _no_collections(given: Mapping[str, Any]) -> Iterator[str]:
    within = given.get("params")
    if isinstance(within, Mapping) and "params" in within:
        yield "['params']['params']: the variables are inside once more: pass what is in ['params']"
    for name, each in given.items():
        if not isinstance(each, Mapping):
            yield f"[{name!r}]: {what(each)} in place of a collection: pass {{'params': variables}}"


def _missing(given: Mapping[str, Any], keys: Sequence[str]) -> str:
    where = f"{_keystr(keys)}: not in the variables"
    if not given.get(keys[0]):
        if _reaches(given, keys[1:]):
            return f"{where}, which belong into it: pass {{{keys[0]!r}: variables}}"
        return f"{where}, which have only {_names(given)}"
    for i in range(1, len(keys)):
        node = given
        for key in keys[:i]:
            node = node[key]
        if not isinstance(node, Mapping) or keys[i] not in node:
            if not isinstance(node, Mapping):
                return f"{_keystr(keys[:i])}: {what(node)}, and no layer with {_keystr(keys[i:])}"
            return f"{_keystr(keys[: i + 1])}: {_keystr(keys[:i])} has only {_names(node) or 'nothing'}"
    return where


def _reaches(node: Any, keys: Sequence[str]) -> bool:
    for key in keys:
        if not isinstance(node, Mapping) or key not in node:
            return False
        node = node[key]
    return True


def _names(node: Mapping[str, Any]) -> str:
    more = f" and {len(node) - _MOST_KEYS:,} more" if len(node) > _MOST_KEYS else ""
    return ", ".join(map(repr, [*node][:_MOST_KEYS])) + more


def _keystr(keys: Sequence[str]) -> str:
    return "".join(f"[{key!r}]" for key in keys)


def _inputs(frames: Sequence[types.FrameType]) -> list[str]:
    """The arrays that the layer was called with."""
    for frame in reversed(frames):
        file = frame.f_code.co_filename.replace("\\", "/")
        if not file.endswith(_WITHIN) and not is_of_jax(frame) and not is_of_python(frame):
            names = frame.f_code.co_varnames[: frame.f_code.co_argcount]
            layer = class_name(type(frame.f_locals[names[0]])) if names and names[0] in frame.f_locals else ""
            arrays = [(name, frame.f_locals.get(name)) for name in names[1:]]
            return [
                f"{name} of {layer}: {what(array)}"
                for name, array in arrays
                if isinstance(array, jax.Array | np.ndarray)
            ]
    return []


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
    trees = of["serialized_item"], read_orbax(Path_as_libraries(str(of["directory"])))
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
    arrays = [_array_text(each) for each in read_eqx(Path_as_libraries(of["f"].name))]
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
