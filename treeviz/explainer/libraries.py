"""Explain a failed call of a library: Flax, Equinox, Orbax or Optax.

The first call is the library's outermost one, which has the user's trees. To add an answer, list the module in
`frames._LIBRARIES`, write a function of the first call's variables and of the calls, and list it in `ANSWERS`.
"""

from __future__ import annotations

import sys
import types
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from pathlib import Path as FilePath
from typing import Any

import jax
import numpy as np
from jax import tree_util

from treeviz.analysis.compare.aligned import Openers, Side
from treeviz.analysis.compare.aligned import describe_value as node_text
from treeviz.analysis.compare.difference import Difference
from treeviz.analysis.compare.map_mismatch import map_mismatches
from treeviz.analysis.compare.rearranged import with_hints
from treeviz.analysis.compare.tree_diff import find_differences
from treeviz.explainer.frames import (
    NO_ANSWER,
    Answer,
    Call,
    Calls,
    Variables,
    describe_value,
    file_of,
    frames_of,
    is_array,
    is_of_jax,
    is_of_python,
    is_tree_at_wrapper,
    leaves_of,
    refused,
    unwrapped,
)
from treeviz.prepare import scanned
from treeviz.steps.compiles.types import compare_types, jit_type
from treeviz.tree.files import read_eqx
from treeviz.tree.keys import keystr
from treeviz.tree.text import aval_text, class_name, counted
from treeviz.tree.walk import scan

# `flax.nnx.merge` and `flax.nnx.update`: missing and surplus variables in the states.

Path = tuple[Any, ...]
_NAMES = "graphdef", "state"


def explain_nnx_merge(frame_vars: Variables, calls: Calls) -> Answer:
    graphdef = frame_vars["graphdef_or_graphstate"]
    if not _is_flax(graphdef, "GraphDef"):
        if not any(_is_flax(state, "GraphDef") for state in frame_vars["states"]):
            return NO_ANSWER
        return "nnx.merge takes the graphdef first", [
            f"argument {i}: {_state_text(state)}" for i, state in enumerate((graphdef, *frame_vars["states"]))
        ]
    title = "the states do not match the graphdef"
    expected = dict(_graphdef_leaves(graphdef))
    if len(expected) != graphdef.num_leaves:
        return NO_ANSWER
    state_leaves: dict[Path, Any] = {}
    n_of: Counter[Path] = Counter()
    for i, state in enumerate(frame_vars["states"], 1):
        leaves = [*_state_leaves(state)]
        if () not in expected and any(not path for path, _ in leaves):
            is_nested = isinstance(state, Sequence) and any(isinstance(item, Mapping) for item in state)
            advice = "pass what nnx.split or nnx.state returned"
            advice = "pass each state as an argument, nnx.merge(graphdef, *states)" if is_nested else advice
            return title, [f"argument {i}: {_state_text(state)}: {advice}"]
        state_leaves.update(leaves)
        n_of.update(path for path, _ in leaves)
    differences = [
        *_unmatched("missing", expected, state_leaves, lambda path: expected[path]),
        *_unmatched("extra", state_leaves, expected, lambda path: _state_text(state_leaves[path])),
    ]
    return title, [*differences, *(f"{_keystr(path)}: in {n:,} of the states" for path, n in n_of.items() if n > 1)]


def explain_nnx_update(frame_vars: Variables, calls: Calls) -> Answer:
    """`nnx.update`: the nested calls hold the keys of the path that could not be set."""
    nested = [call.variables for call in reversed(calls) if call.function == "_graph_update_dynamic"]
    if not nested or not all("key" in frame_vars for frame_vars in nested):
        return NO_ANSWER
    frame_vars, path = nested[-1], tuple(outer["key"] for outer in nested)
    value, kind, own = frame_vars["value"], "extra", ""
    if frame_vars["key"] in frame_vars["node_dict"]:
        if isinstance(value, Mapping) == isinstance(frame_vars.get("current_value"), Mapping):
            return NO_ANSWER
        kind, own = "leaf", _state_text(frame_vars["current_value"])
    difference = Difference(_keystr(path), kind, own, _state_text(value), names=("model", "state"))
    return "the state does not match the model", [difference]


def _graphdef_leaves(graphdef: Any) -> Iterator[tuple[Path, str]]:
    """Yields the path and the variable type of each leaf of a graphdef."""
    nodes, attributes = iter(graphdef.nodes), iter(graphdef.attributes)

    def leaves_below(path: Path) -> Iterator[tuple[Path, str]]:
        node = next(nodes)
        if _is_flax(node, "TreeNodeDef"):
            yield from ((tuple(leaf_path), "a leaf") for leaf_path, _ in node.path_index)
        elif _is_flax(node, "VariableDef"):
            if not _is_flax(node.array_refdef, "NodeRef"):
                yield path, class_name(node.type)
        elif _is_flax(node, "ArrayRefDef"):
            yield path, "an array"
        elif _is_flax(node, "NodeDef"):
            for _ in range(node.num_attributes):
                key, value = next(attributes)
                if _is_flax(value, "LeafAttr"):
                    yield (*path, key), "a leaf"
                elif _is_flax(value, "NodeAttr"):
                    yield from leaves_below((*path, key))

    return leaves_below(())


def _state_leaves(state: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yields the path and the value of each leaf of a state, as `nnx.merge` reads it."""
    if _is_flax(state, "FlatState"):
        yield from state
    elif isinstance(state, Mapping):
        for key, child in state.items():
            yield from _state_leaves(child, (*path, key))
    else:
        yield path, state


def _unmatched(kind: Any, left: Mapping[Path, Any], right: Mapping[Path, Any], text: Any) -> Iterator[Difference]:
    """The paths that only `left` has; a whole module is one difference."""
    known = {path[:n] for path in right for n in range(len(path))}
    alone: dict[Path, list[Path]] = {}
    for path in left:
        if path not in right:
            n = next((n for n in range(1, len(path)) if path[:n] not in known), len(path))
            alone.setdefault(path[:n], []).append(path)
    for top, paths in alone.items():
        path, description = (paths[0], text(paths[0])) if len(paths) == 1 else (top, f"{len(paths):,} variables")
        left_text, right_text = (description, "") if kind == "missing" else ("", description)
        yield Difference(_keystr(path), kind, left_text, right_text, names=_NAMES)


def _is_flax(value: Any, name: str) -> bool:
    return type(value).__name__ == name and type(value).__module__.startswith("flax.")


def _state_text(value: Any) -> str:
    if isinstance(value, Mapping | tuple | list):
        return f"{class_name(type(value))} of {len(value):,}"
    is_plain = hasattr(value, "dtype") or type(value).__module__ == "builtins"
    return describe_value(value) if is_plain else class_name(type(value))


# `equinox.tree_at`: why the nodes that `where` selected cannot be replaced.

_CHOOSES = "where must select nodes and leaves of the tree"


def explain_tree_at(frame_vars: Variables, calls: Calls) -> Answer:
    error = calls[0].error
    if "out" in frame_vars:  # after the replacement, tree_at searches for each node
        return _explain_chosen_nodes(frame_vars)
    if {"node_replace_fns", "replace_fns"} & frame_vars.keys():
        return NO_ANSWER
    if "nodes" in frame_vars:
        return _explain_replace_length(frame_vars)
    if "leaves1" in frame_vars:
        return _explain_chosen_leaves(frame_vars, error)
    return _explain_missing_attribute(frame_vars, error)


def _explain_missing_attribute(frame_vars: Mapping[str, Any], error: BaseException) -> Answer:
    """`where` reads an attribute that the node does not have."""
    if not isinstance(error, AttributeError) or not error.name:
        return NO_ANSWER
    node_paths = _NodePaths(frame_vars["pytree"])
    path = node_paths.paths_of(error.obj)
    if not path:
        return NO_ANSWER
    if is_tree_at_wrapper(error.obj):
        return _CHOOSES, [f"{path[0]}: {_text(error.obj)}: .{error.name} of a leaf is not one"]
    names = node_paths.describe_children(error.obj)
    line = f"{path[0]}: {_text(error.obj)}, which has no {error.name!r}"
    return "where selects something that is not in the tree", [line + (f", but {names}" if names else "")]


def _explain_chosen_leaves(frame_vars: Mapping[str, Any], error: BaseException) -> Answer:
    if "node_or_nodes" not in frame_vars:
        return NO_ANSWER
    if isinstance(error, TypeError):  # raised while tree_at unwraps the leaves
        return _CHOOSES, [
            f"its result{path}: {describe_value(leaf)}: a static field, or computed"
            for path, leaf in leaves_of(frame_vars["node_or_nodes"])
            if not is_tree_at_wrapper(leaf)
        ]
    n, n_again = len(frame_vars["leaves1"]), len(frame_vars["leaves2"])
    node_paths = _NodePaths(frame_vars["pytree"], bare=True)
    kept = set(map(id, frame_vars["leaves2"]))
    return "where must select by structure: it is called again with other leaves", [
        f"it selected {counted(n, 'leaf', 'leaves')} first, and then {n_again:,}",
        *(
            f"{(node_paths.paths_of(leaf) or ['a leaf'])[0]}: {describe_value(leaf)}: selected by its value"
            for leaf in frame_vars["leaves1"]
            if id(leaf) not in kept
        ),
    ]


def _explain_replace_length(frame_vars: Mapping[str, Any]) -> Answer:
    """`replace` and the selected nodes differ in number."""
    nodes, replace = frame_vars["nodes"], frame_vars["replace"]
    if not isinstance(nodes, Sequence) or type(replace) is object:  # a sentinel: not given
        return NO_ANSWER
    node_paths = _NodePaths(frame_vars["pytree"])
    replacements = [*replace] if isinstance(replace, tuple | list) else None
    if replacements is not None and len(replacements) == len(nodes):
        return NO_ANSWER
    places = [(node_paths.paths_of(node) or ["what is not in the tree"])[0] for node in nodes]
    chosen = [f"where selected {place}: {_text(node)}" for place, node in zip(places, nodes, strict=True)]
    if replacements is None:
        chosen.append(f"replace: {describe_value(replace)}: not a sequence")
        return "where returned a sequence, so replace must be one", chosen
    surplus = enumerate(replacements[len(nodes) :], len(nodes))
    return f"where selected {len(nodes):,}, and replace has {len(replacements):,}", [
        *(f"{line}: replaced by {describe_value(new)}" for line, new in zip(chosen, replacements, strict=False)),
        *(f"{line}: no replacement for it" for line in chosen[len(replacements) :]),
        *(f"replace[{i}]: {describe_value(new)}: nothing to replace" for i, new in surplus),
    ]


def _explain_chosen_nodes(frame_vars: Mapping[str, Any]) -> Answer:
    """A selected node is not in the tree, is inside another selected node, or occurs several times."""
    node, nodes, node_paths = frame_vars["node"], frame_vars["nodes"], _NodePaths(frame_vars["pytree"])
    paths = node_paths.paths_of(node)
    if not paths:
        return _CHOOSES, [f"its result: {_text(node)}: created by where"]
    if len(paths) > 1:
        fix = ": pass is_leaf=lambda x: x is None to tree_at" if node is None else ""
        return "where selected a node that occurs in several places", [f"{path}: {_text(node)}{fix}" for path in paths]
    return "where selected a node and something inside it", [
        f"{paths[0]}: {_text(node)}: it is in {node_paths.paths_of(parent)[0]}, which is replaced as a whole"
        for parent in nodes
        if node_paths.are_nested(parent, node)
    ]


class _NodePaths:
    """Finds the key paths of nodes and leaves of a tree, by identity."""

    def __init__(self, tree: Any, bare: bool = False) -> None:
        self._table, self._nodes = scan(tree)  # held, so that their ids stay valid
        self._keystr, self._rows = self._table.keystrs(), dict[int, list[int]]()
        for row, node in enumerate(self._nodes):
            self._rows.setdefault(id(unwrapped(node) if bare else node), []).append(row)

    def paths_of(self, node: Any) -> list[str]:
        """The key paths of a node; "the root" for the root."""
        return [self._keystr(row) or "the root" for row in self._rows.get(id(node), ())]

    def are_nested(self, node: Any, descendant: Any) -> bool:
        rows = self._rows.get(id(node), ())
        return any(row < other < self._table[row].end for row in rows for other in self._rows[id(descendant)])

    def describe_children(self, node: Any) -> str:
        return _few([self._table.key(row).keystr for row in self._table.children(self._rows[id(node)][0])])


def _text(node: Any) -> str:
    opened = Openers()(node)
    return describe_value(node) if opened is None else node_text(node, opened)


# Linen: a variable has a different shape than its layer creates, or is missing.

_ERRORS = {"ScopeParamShapeError", "ScopeParamNotFoundError", "ScopeCollectionNotFound", "ScopeVariableNotFoundError"}
_NO_COLLECTIONS = {"ApplyScopeInvalidVariablesTypeError", "ApplyScopeInvalidVariablesStructureError"}
_WITHIN = "/flax/core/scope.py", "/flax/linen/module.py"
_MOST_NAMES = 6


def explain_scope(error: BaseException) -> Answer:
    cls = type(error)
    if cls.__module__ != "flax.errors":
        return NO_ANSWER
    frames = frames_of(error)
    if cls.__name__ in _NO_COLLECTIONS:
        given = _apply_variables(frames)
        lines, params = [], given.get("params")
        if isinstance(params, Mapping) and "params" in params:
            lines.append("['params']['params']: the variables are nested twice: pass what is in ['params']")
        for name, collection in given.items():
            if not isinstance(collection, Mapping):
                described = f"[{name!r}]: {describe_value(collection)} in place of a collection"
                lines.append(f"{described}: pass {{'params': variables}}")
        return "the variables must be a dict of collections", lines
    frame_vars = frames[-1].f_locals
    if cls.__name__ == "ModifyScopeVariableError":
        path = _keystr([frame_vars["col"], *frame_vars["self"].path, frame_vars["name"]])
        line = f"{path}: pass mutable=[{frame_vars['col']!r}] to apply, which returns it"
        return "apply cannot change the variables", [line]
    if cls.__name__ not in _ERRORS:
        return NO_ANSWER
    keys = [frame_vars.get("col", "params"), *frame_vars["self"].path, frame_vars["name"]]
    inputs = _inputs(frames)
    if cls.__name__ == "ScopeParamShapeError":
        parameter, shape = describe_value(frame_vars["val"]), np.shape(frame_vars["abs_val"])
        line = f"{_keystr(keys)}: {parameter}: the layer makes it {shape} for its input"
        return "the parameters belong to a model with other shapes", [line, *inputs]
    return "the variables lack what the model needs", [_missing(_apply_variables(frames), keys), *inputs]


def _apply_variables(frames: Sequence[types.FrameType]) -> Mapping[str, Any]:
    named = (frame.f_locals.get("variables") for frame in reversed(frames))
    return next(variables for variables in named if isinstance(variables, Mapping))


def _missing(given: Mapping[str, Any], keys: Sequence[str]) -> str:
    line = f"{_keystr(keys)}: not in the variables"
    if not given.get(keys[0]):
        below: Any = given
        for key in keys[1:]:
            below = below.get(key) if isinstance(below, Mapping) else None
        if below is not None:
            return f"{line}, which belong in it: pass {{{keys[0]!r}: variables}}"
        return f"{line}, which have only {_few([*map(repr, given)])}"
    node = given[keys[0]]
    for i, key in enumerate(keys[1:], 1):
        if not isinstance(node, Mapping):
            return f"{_keystr(keys[:i])}: {describe_value(node)}, and no layer with {_keystr(keys[i:])}"
        if key not in node:
            return f"{_keystr(keys[: i + 1])}: {_keystr(keys[:i])} has only {_few([*map(repr, node)]) or 'nothing'}"
        node = node[key]
    return line


def _few(names: Sequence[str]) -> str:
    rest = f" and {len(names) - _MOST_NAMES:,} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + rest


def _keystr(keys: Sequence[Any]) -> str:
    return "".join(f"[{key!r}]" for key in keys)


def _inputs(frames: Sequence[types.FrameType]) -> list[str]:
    """The arrays that the layer was called with."""
    for frame in reversed(frames):
        if not file_of(frame).endswith(_WITHIN) and not is_of_jax(frame) and not is_of_python(frame):
            names = frame.f_code.co_varnames[: frame.f_code.co_argcount]
            layer = class_name(type(frame.f_locals[names[0]])) if names and names[0] in frame.f_locals else ""
            return [
                f"{name} of {layer}: {describe_value(array)}"
                for name in names[1:]
                if isinstance(array := frame.f_locals.get(name), jax.Array | np.ndarray)
            ]
    return []


# Restores of checkpoints, and Optax.

_STRUCTURE = ("type", "none", "leaf", "length", "missing", "extra")
_NUMBERS = (bool, int, float, complex, np.generic)


def _explain_flax_restore(frame_vars: Variables, calls: Calls) -> Answer:
    """`flax.serialization.from_bytes` and `from_state_dict`: the file differs from the target."""
    target = sys.modules["flax.serialization"].to_state_dict(frame_vars["target"])
    differences = compare_types(target, jit_type(target), jit_type(frame_vars["state"]), leaves=lambda *_: [])
    return "the restored tree does not match the target", [
        Difference(path, *finding, tree=1, names=("target", "file")) for path, finding in differences
    ]


def _explain_orbax_restore(frame_vars: Variables, calls: Calls) -> Answer:
    """Orbax restores: the metadata on disk differs from the target."""
    from treeviz.integrations.orbax import read_orbax

    trees = frame_vars["serialized_item"], read_orbax(FilePath(str(frame_vars["directory"])))
    target_side, stored_side = (Side(*scanned(_without_classes(tree), None, "tree")) for tree in trees)
    diff = with_hints(target_side, stored_side, find_differences(target_side, stored_side, values=False), values=False)
    structural = [difference for difference in diff.differences if difference.kind in _STRUCTURE]
    return "the checkpoint does not match the target", [
        replace(difference, names=("target", "checkpoint"))
        for difference in structural or diff.differences
        if difference.kind in (*_STRUCTURE, "shape")
    ]


def _without_classes(tree: Any) -> Any:
    """The tree as Orbax stores it: dicts and lists, with None for empty nodes such as `optax.EmptyState`."""
    if isinstance(tree, dict | list | tuple) and not tree:
        return None
    if type(tree) is dict:
        return {key: _without_classes(child) for key, child in tree.items()}
    return [*map(_without_classes, tree)] if isinstance(tree, list | tuple) else tree


def _explain_equinox_restore(frame_vars: Variables, calls: Calls) -> Answer:
    """`equinox.tree_deserialise_leaves`: the file differs from `like`."""
    title = "the file does not match the tree"
    if "out" in frame_vars:  # the whole file was read
        like = frame_vars["like"]
        return title, [
            Difference(path, *finding, tree=1, names=("tree", "file"))
            for path, finding in compare_types(like, jit_type(like), jit_type(frame_vars["out"]))
            if finding[0] in ("shape", "dtype")
        ]
    leaves = [
        (keystr(path), _array_text(leaf))
        for path, leaf in tree_util.tree_flatten_with_path(frame_vars["like"], is_leaf=frame_vars.get("is_leaf"))[0]
        if hasattr(leaf, "shape") or isinstance(leaf, _NUMBERS)
    ]
    arrays = [_array_text(array) for array in read_eqx(FilePath(frame_vars["f"].name))]
    matcher = SequenceMatcher(None, [text for _, text in leaves], arrays, autojunk=False)  # the file stores no names
    findings: list[tuple[str, str, str, str]] = []
    for _, start, end, first, last in (opcode for opcode in matcher.get_opcodes() if opcode[0] != "equal"):
        n = min(end - start, last - first)
        pairs = zip(leaves[start : start + n], arrays[first : first + n], strict=True)
        findings += [(path, "shape", text, stored) for (path, text), stored in pairs]
        findings += [(path, "missing", text, "") for path, text in leaves[start + n : end]]
        findings += [(f"array {i}", "extra", "", arrays[i]) for i in range(first + n, last)]
    return title, [Difference(*finding, names=("tree", "file")) for finding in findings]


def _array_text(leaf: Any) -> str:
    array = leaf if hasattr(leaf, "shape") else np.asarray(leaf)
    return aval_text(array.shape, str(array.dtype))


def _explain_labels(calls: Calls, tree: str) -> Answer:
    """`optax.multi_transform`: labels without a transformation, and labels that do not match the tree."""
    frame_vars = next((call.variables for call in calls if {"labels", "transforms"} <= call.variables.keys()), None)
    if frame_vars is None:
        return NO_ANSWER
    labels, known = frame_vars["labels"], [*frame_vars["transforms"]]
    unknown = [
        f"{keystr(path) or 'the root'}: {describe_value(label)}: none of {', '.join(map(repr, known))}"
        for path, label in tree_util.tree_flatten_with_path(labels)[0]
        if not any(label == known_label for known_label in known)
    ]
    if unknown:
        return "labels of multi_transform that have no transformation", unknown
    differences = [replace(found, names=("labels", tree)) for found in map_mismatches(labels, frame_vars[tree])]
    return f"the labels of multi_transform do not match the {tree}", differences


def _explain_optax_update(frame_vars: Variables, calls: Calls) -> Answer:
    """An optimizer's update: updates, parameters and state differ."""
    updates, state, params = (frame_vars.get(name) for name in ("updates", "state", "params"))
    title, misfits = _explain_labels(calls, "updates")
    if misfits:
        return title, misfits
    if params is not None:
        differences = [
            Difference(path, *finding, tree=1, names=("updates", "params"))
            for path, finding in compare_types(updates, jit_type(updates), jit_type(params))
            if finding[0] not in ("dtype", "weak type", "sharding")
        ]
        if differences:
            return "the updates do not match the params", differences
    name = _namer({"updates": updates, "state": state, "params": params})
    for i, call in enumerate(calls):
        if call.function == "tree_map" and not call.library:
            tree, *others = call.variables["tree"], *call.variables["rest"]
            outer = (call.variables for call in calls[i + 1 :] if call.library == "optax")
            masks = (variables["mask_tree"] for variables in outer if "mask_tree" in variables)
            own_name = "mask" if next(masks, calls) is tree else name(tree, "updates")
            for names, other in [((own_name, name(other)), other) for other in others if name(other)]:
                differences = map_mismatches(tree, other, is_leaf=call.variables["is_leaf"])
                if differences:
                    differences = [replace(difference, names=names) for difference in differences]
                    return f"{' and '.join(names)} do not match", differences
    lines = _state_mismatch(next(call for call in reversed(calls) if call.library == "optax"), name)
    if lines:
        return "the state belongs to another optimizer", lines
    return _explain_non_arrays({"updates": updates, "params": params})


def _explain_optax_init(frame_vars: Variables, calls: Calls) -> Answer:
    """An optimizer's init: the leaves of the parameters that are not arrays, such as functions in a model."""
    title, lines = _explain_labels(calls, "params")
    return (title, lines) if lines else _explain_non_arrays({"params": frame_vars["params"]})


_FUNCTIONS_OF_TREES = "mask", "param_labels"


def explain_optax_arguments(error: BaseException) -> Answer:
    """Arguments of `optax.masked` and `multi_transform` that are swapped, or called with all parameters."""
    frames = [frame for frame in frames_of(error) if not is_of_jax(frame)]
    of_optax = ["/optax/" in file_of(frame) for frame in frames]
    last = max(i for i, is_inside in enumerate(of_optax) if is_inside)
    for frame, is_inside in zip(frames, of_optax, strict=True):
        frame_vars = dict(frame.f_locals) if is_inside else {}
        for first, second, needed in (("inner", "mask", "init"), ("transforms", "param_labels", "items")):
            if {first, second} <= frame_vars.keys() and getattr(error, "name", "") == needed and of_optax[-1]:
                lines = [f"{name}: {class_name(type(frame_vars[name]))}" for name in (first, second)]
                return f"optax takes {first} first, then {second}", lines
    frame_vars = dict(frames[last].f_locals)
    name = next((name for name in _FUNCTIONS_OF_TREES if callable(frame_vars.get(name))), "")
    if not name or of_optax[-1] or not isinstance(error, AttributeError | TypeError | ValueError):
        return NO_ANSWER
    function = frame_vars[name]
    if not tree_util.all_leaves([function]):
        cls, n = class_name(type(function)), len(tree_util.tree_leaves(function))
        line = f"{name}: {cls} of {n:,} leaves: give lambda _: {name}"
        return f"optax calls {name}, since {cls} is callable", [line]
    tree = next((frame_vars[tree] for tree in ("params", "updates") if tree in frame_vars), None)
    if tree is None or tree_util.all_leaves([tree]) or len(frames) - last > 2:
        return NO_ANSWER
    return f"optax calls {name} once, with all parameters", [
        f"it got {class_name(type(tree))} of {len(tree_util.tree_leaves(tree)):,} leaves: "
        "for a function of one leaf, give lambda params: jax.tree.map(function, params)"
    ]


def _explain_non_arrays(trees: dict[str, Any]) -> Answer:
    leaves = [leaf for name, tree in trees.items() for leaf in leaves_of(tree, name)]
    return "an optimizer accepts only arrays", refused(leaves, is_array)


def _state_mismatch(last: Call, name: Callable[..., str]) -> list[str]:
    """Describes the state of the innermost update if it belongs to another optimizer."""
    state, transformations = last.variables.get("state"), last.variables.get("update_fns")
    if state is not None and getattr(last.error, "obj", None) is state:
        return [f"{name(state, 'state')}: {class_name(type(state))}, which has no {getattr(last.error, 'name', '')!r}"]
    if transformations and isinstance(state, tuple) and len(state) != len(transformations):
        description = f"{class_name(type(state))}{f' of {len(state)}' if state else ''}"
        return [f"{name(state, 'state')}: {description}, for a chain of {len(transformations)} transformations"]
    return []


def _namer(trees: dict[str, Any]) -> Callable[..., str]:
    """Returns a function that names a node of the trees, "state[0].mu", and falls back to a given name, or ""."""
    table, nodes = scan(trees)
    shared = id(()), id(None)  # singletons occur in many places
    rows = {id(node): row for row, node in enumerate(nodes) if row and not table.is_leaf[row]}

    def name(node: Any, otherwise: str = "") -> str:
        if id(node) not in rows or id(node) in shared:
            return otherwise
        first, *rest = table.path(rows[id(node)])
        return first.segment + "".join(key.keystr for key in rest)

    return name


# (library, function) -> the answer, and the variables that the call must have.
ANSWERS: dict[tuple[str, str], tuple[Callable[[Variables, Calls], Answer], tuple[str, ...]]] = {
    ("flax", "from_state_dict"): (_explain_flax_restore, ("target", "state")),
    ("flax", "merge"): (explain_nnx_merge, ("graphdef_or_graphstate", "states")),
    ("flax", "update"): (explain_nnx_update, ("node", "state")),
    ("equinox", "tree_at"): (explain_tree_at, ("where", "pytree")),
    ("orbax", "restore"): (_explain_orbax_restore, ("serialized_item", "directory")),
    ("equinox", "tree_deserialise_leaves"): (_explain_equinox_restore, ("like",)),
    ("optax", "init_fn"): (_explain_optax_init, ("params",)),
    ("optax", "init"): (_explain_optax_init, ("params",)),
    ("optax", "update_fn"): (_explain_optax_update, ("updates", "state")),
    ("optax", "update"): (_explain_optax_update, ("updates", "state")),
    ("optax", "apply_updates"): (_explain_optax_update, ("updates", "params")),
}
