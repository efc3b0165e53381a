"""Which variables the states lack, or have too many, that `flax.nnx.merge` and `flax.nnx.update` were given."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from treeviz.analysis.compare.difference import Difference
from treeviz.explainer.frames import Answer, Calls
from treeviz.explainer.leaves import what
from treeviz.tree.safe_repr import class_name

Path = tuple[Any, ...]
_NAMES = "graphdef", "state"


def of_merge(calls: Calls) -> Answer:
    of = calls[0].variables
    graphdef = of["graphdef_or_graphstate"]
    if not _is(graphdef, "GraphDef"):
        if not any(_is(each, "GraphDef") for each in of["states"]):
            return "", ()
        return "nnx.merge takes the graphdef first", [
            f"argument {i}: {_text(each)}" for i, each in enumerate((graphdef, *of["states"]))
        ]
    title = "the states are not those of the graphdef"
    wanted = dict(_wanted(graphdef))
    if len(wanted) != graphdef.num_leaves:
        return "", ()
    given: dict[Path, Any] = {}
    n_of: Counter[Path] = Counter()
    for i, state in enumerate(of["states"], 1):
        leaves = [*_given(state)]
        if () not in wanted and any(not path for path, _ in leaves):
            return title, [f"argument {i}: {_text(state)}: {_remedy(state)}"]
        given.update(leaves)
        n_of.update(path for path, _ in leaves)
    found = [
        *_only("missing", wanted, given, lambda path: wanted[path]),
        *_only("extra", given, wanted, lambda path: _text(given[path])),
    ]
    return title, [*found, *(f"{_keystr(path)}: in {n:,} of the states" for path, n in n_of.items() if n > 1)]


def of_update(calls: Calls) -> Answer:
    """Of `nnx.update`: the calls on the way to what it could not set hold their keys."""
    below = [call.variables for call in reversed(calls) if call.function == "_graph_update_dynamic"]
    if not below or not all("key" in of for of in below):
        return "", ()
    of, path = below[-1], tuple(each["key"] for each in below)
    value = of["value"]
    if of["key"] not in of["node_dict"]:
        return "the state is not of the model", [
            Difference(_keystr(path), "extra", "", _text(value), names=("model", "state"))
        ]
    if isinstance(value, Mapping) == isinstance(of.get("current_value"), Mapping):
        return "", ()
    return "the state is not of the model", [
        Difference(_keystr(path), "leaf", _text(of["current_value"]), _text(value), names=("model", "state"))
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


def _given(state: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """The leaves of a state by their paths, as `nnx.merge` takes them."""
    if _is(state, "FlatState"):
        yield from state
    elif isinstance(state, Mapping):
        for key, child in state.items():
            yield from _given(child, (*path, key))
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
        yield Difference(_keystr(path), kind, left, right, names=_NAMES)


def _remedy(state: Any) -> str:
    if isinstance(state, Sequence) and any(isinstance(each, Mapping) for each in state):
        return "pass each state as an argument, nnx.merge(graphdef, *states)"
    return "pass what nnx.split or nnx.state returned"


def _is(each: Any, name: str) -> bool:
    return type(each).__name__ == name and type(each).__module__.startswith("flax.")


def _text(each: Any) -> str:
    if isinstance(each, Mapping | tuple | list):
        return f"{class_name(type(each))} of {len(each):,}"
    is_plain = hasattr(each, "dtype") or type(each).__module__ == "builtins"
    return what(each) if is_plain else class_name(type(each))


def _keystr(path: Path) -> str:
    return "".join(f"[{key!r}]" for key in path)
